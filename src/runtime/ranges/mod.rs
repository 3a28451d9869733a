//! Reads the files of a source by all workers of all processes.
//!
//! The first process takes the rows in the order of the files, as one reader does; [ranges] of them
//! are parsed ahead by as many threads as there are workers, in every process. A process keeps the
//! values of the ranges that it has parsed and gives them to its own workers, once the first
//! process has sent the epochs of their rows.
//!
//! ```text
//! first process    board ─ ranges ─→ parsers ─→ board ─→ rows in order ─→ epochs ─→ its workers
//!                    │                            ↑                          │
//! other processes    └─ ranges ─→ parsers ─ rows without values              ├─ epochs
//!                                    └─ values ──────────────────────────────┴─→ its workers
//! ```
//!
//! Messages to a process arrive in the order in which they are sent. So its workers have the
//! records of an epoch before they hear that it is closed, and no epoch is committed before the
//! workers of all processes have. Positions, counters and everything else that a run needs to
//! resume stay in the first process.
//!
//! **Who may.** A source of listed text files, alone in its pipeline, without keys to discover.
//! Other processes read if, besides, nothing needs the values of all rows in one place: duplicates
//! that are recognised by an id, `preflight = "stop"`, and exact counts that are shown to a person.
//!
//! [ranges]: crate::source::RangePlan

mod board;
mod others;
mod post;

use std::sync::Arc;

use hushflow_operators::Fault;

use super::RunOptions;
use super::feed::RecordDistributor;
use crate::control::Control;
use crate::pipeline::{Pipeline, Preflight};
use crate::source::{BATCH_RECORDS, RangeParser, RangePlan, SourceReader, is_ranged, range_parsers};
use board::RangeBoard;
use others::Helpers;
use post::PostBox;

pub(super) use others::OtherReaders;
pub(super) use post::PostRoute;

/// Ranges that are handed out ahead of their turn for each thread that parses.
const AHEAD: usize = 3;

/// How a process of a run reads.
pub(super) struct RangeReading {
    /// Threads that parse.
    threads: usize,
    /// The number of this process, and of all.
    process: usize,
    processes: usize,
    /// Messages between processes, if others may read.
    post: Option<PostBox>,
}

impl RangeReading {
    /// Decides who reads, from the configuration alone, so that all processes decide alike. Also
    /// returns the route of messages between processes, if others may read.
    pub(super) fn new(pipeline: &Pipeline, options: &RunOptions) -> (Self, Option<PostRoute>) {
        let cluster = options.cluster.as_ref();
        let processes = cluster.map_or(1, |cluster| cluster.hosts.len());
        let channels =
            (processes > 1 && may_share(pipeline, &options.control)).then(|| post::channels(options.workers));
        let (post, route) = channels.unzip();
        let process = cluster.map_or(0, |cluster| cluster.process);
        (RangeReading { threads: options.workers, process, processes, post }, route)
    }

    /// Whether this process has to feed its workers.
    pub(super) fn feeds(&self) -> bool {
        self.process == 0 || self.post.is_some()
    }

    /// Informs other processes of closed epochs.
    pub(super) fn informs(&self) -> Option<OtherReaders> {
        self.post.as_ref().map(|post| OtherReaders::new(Arc::clone(&post.post), self.processes))
    }

    /// In the first process: makes the reader of a pipeline's only source take rows that are parsed
    /// ahead, if they may be.
    pub(super) fn ahead(
        self,
        reader: SourceReader,
        (pipeline, options): (&Pipeline, &RunOptions),
        fault: &Fault,
    ) -> SourceReader {
        let [source] = &pipeline.sources[..] else { return reader };
        let parsers = range_parsers((pipeline, source), &options.control, self.threads);
        let Some((parsers, plan)) = parsers else { return reader };
        let others = self.post.filter(|_| !options.control.shows_private());
        let processes = if others.is_some() { self.processes } else { 1 };
        let threads = self.threads * processes;
        if threads < 2 || plan.stretches.len() < 2 {
            return reader;
        }
        let plan = Arc::new(plan);
        let (board, supply) = RangeBoard::new(plan.stretches.len(), AHEAD * threads);
        if let Some(post) = others {
            Helpers { post, processes, threads: self.threads }.start(&board, &plan, fault);
        }
        for parser in parsers {
            let (board, plan) = (board.clone(), Arc::clone(&plan));
            spawn("parser", fault, move || parse_all(parser, &board, &plan));
        }
        reader.parsed_ahead((*plan).clone(), Box::new(supply), 2 * BATCH_RECORDS as u64)
    }

    /// In another process: parses ranges for the first one and gives their records to the workers.
    pub(super) fn follow(
        self,
        pipeline: &Pipeline,
        options: &RunOptions,
        dealer: RecordDistributor,
        fault: &Fault,
    ) {
        let Some(PostBox { post, received }) = self.post else { return };
        let [source] = &pipeline.sources[..] else { return };
        let parsers = range_parsers((pipeline, source), &options.control, self.threads);
        let parsers = parsers.map_or_else(Vec::new, |(parsers, _)| parsers);
        others::follow((self.process, post, received), parsers, dealer, fault);
    }
}

/// Whether values may stay in the process that reads them.
fn may_share(pipeline: &Pipeline, control: &Control) -> bool {
    let [source] = &pipeline.sources[..] else { return false };
    pipeline.id.is_none() && pipeline.preflight != Preflight::Stop && is_ranged(pipeline, source, control)
}

fn parse_all(mut parser: RangeParser, board: &RangeBoard, plan: &RangePlan) {
    while let Some(range) = board.hand_out() {
        board.put(range, parser.parse(plan.stretches[range]));
    }
}

/// Starts a thread; it is never joined.
fn spawn(name: &str, fault: &Fault, work: impl FnOnce() + Send + 'static) {
    if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(work) {
        fault.raise(format_args!("no thread for a reader: {error}"));
    }
}
