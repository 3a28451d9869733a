//! Reads the partitions of sources by the workers of all processes.
//!
//! **Partitions.** A partition is what one reader reads in order, and what has a position: a range
//! of a file, a partition of a Kafka topic, a stream of Redis or NATS, a table, a folder of files
//! or objects. Any process reads it, parses its rows, and gives their values to its own workers
//! once their epochs are known.
//!
//! **One interleaving.** The first process puts all rows in one order, and this order alone decides
//! which epoch a record joins, whether it is late, and the positions that are committed with an
//! epoch. Where the source fixes an order, that is the one: the rows of files pass one clock, one
//! after the other. Where it fixes none, between the partitions of live sources, any order is
//! legal, and the one that was seen is the one that is committed. So a run that resumes counts each
//! row once, with any number of processes, and partitions are assigned anew.
//!
//! | | [ranges] of files | [partitions] of live sources |
//! |---|---|---|
//! | assigned | to the next free thread | to the processes in turn |
//! | clock | one, handed to the holder of the next range | one each, then [merged](super::merge) |
//! | sent by a reader | closed epochs, the clock | key and epoch of each record, closed epochs |
//! | sent to a reader | the clock | the last closed epoch: older records are late |
//!
//! No row of a file crosses, except that the first process counts records by key and epoch until
//! the first epoch of a first run is published: with `clock = "end-of-input"`, 12 bytes for each.
//!
//! Messages to a process arrive in the order in which they are sent. So its workers have the
//! records of an epoch before they hear that it is closed, and no epoch is committed before the
//! workers of all processes have. Positions, counters and everything else that a run needs to
//! resume stay in the first process. A cluster that loses a process ends and is started again.
//!
//! **Who may.** Nothing may need the values of all rows in one place: duplicates that are
//! recognised by an id, keys to discover, `preflight = "stop"`, and exact counts that are shown to
//! a person.
//! Ranges are of the listed files of a pipeline's only source. Live partitions are of sources that
//! any process can open; the state directory of the first one keeps the [lists] of files and
//! objects. With `--until-idle` the first process reads them alone, because silence is of all of
//! them together. Standard input and sockets are read by the first process too: no record of theirs
//! may be acknowledged before it is in the journal, which is in the state directory.

mod board;
mod lists;
mod partitions;
mod post;
mod ranges;
mod server;

use std::sync::Arc;

use hushflow_operators::Fault;

use super::RunOptions;
use super::feed::RecordDistributor;
use crate::control::Control;
use crate::pipeline::{Pipeline, Preflight, Source};
use crate::source::{
    BATCH_RECORDS, RangeParser, RangePlan, RangeTaker, SourceReader, is_ranged, range_parsers, range_plan,
};
use board::RangeBoard;
use partitions::PartitionServer;
use post::PostBox;
use ranges::{ParserProcesses, RangeServer};
use server::RequestServer;

pub(super) use partitions::{PartitionName, PartitionReaders, RemoteReader};
pub(super) use post::{OtherReaders, PostRoute};

/// Ranges that are handed out ahead of their turn for each thread that parses.
const AHEAD: usize = 3;

/// How a process of a run reads.
pub(super) struct SharedReading {
    /// Threads that parse.
    threads: usize,
    /// The number of this process, and of all.
    process: usize,
    processes: usize,
    /// Messages between processes, if others may read.
    post: Option<PostBox>,
}

impl SharedReading {
    /// Decides who reads, from the configuration alone, so that all processes decide alike. Also
    /// returns the route of messages between processes, if others may read.
    pub(super) fn new(pipeline: &Pipeline, options: &RunOptions) -> (Self, Option<PostRoute>) {
        let cluster = options.cluster.as_ref();
        let processes = cluster.map_or(1, |cluster| cluster.hosts.len());
        let channels =
            (processes > 1 && may_share(pipeline, &options.control)).then(|| post::channels(options.workers));
        let (post, route) = channels.unzip();
        let process = cluster.map_or(0, |cluster| cluster.process);
        (SharedReading { threads: options.workers, process, processes, post }, route)
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
        let Some(parsers) = parsers else { return reader };
        let others = self.post.filter(|_| !options.control.shows_private());
        let processes = if others.is_some() { self.processes } else { 1 };
        let threads = self.threads * processes;
        if threads < 2 {
            return reader;
        }
        let plan = Arc::new(range_plan((pipeline, source), (threads, processes > 1)));
        if plan.stretches.len() < 2 {
            return reader;
        }
        let board = RangeBoard::new(plan.stretches.len(), AHEAD * threads);
        let others = others.map(|post| ParserProcesses { post, processes, threads: self.threads });
        let holders = others.map(|others| others.start(&board, &plan, fault));
        for parser in parsers {
            let (board, plan) = (board.clone(), Arc::clone(&plan));
            spawn("parser", fault, move || parse_all(parser, &board, &plan));
        }
        let supply = Box::new(board.supply(holders));
        reader.parsed_ahead((*plan).clone(), supply, 2 * BATCH_RECORDS as u64)
    }

    /// In the first process: returns the processes that read partitions, if they may.
    pub(super) fn partitions(self, options: &RunOptions, fault: &Fault) -> Option<PartitionReaders> {
        let is_alone = options.control.shows_private() || options.control.ends_when_idle();
        let post = self.post.filter(|_| !is_alone)?;
        Some(PartitionReaders::start(post, self.processes, fault))
    }

    /// In another process: reads for the first one and gives records to the workers.
    pub(super) fn follow(
        self,
        pipeline: &Pipeline,
        options: &RunOptions,
        dealer: RecordDistributor,
        fault: &Fault,
    ) {
        let Some(PostBox { post, received }) = self.post else { return };
        let read = match &pipeline.sources[..] {
            [source] => range_parsers((pipeline, source), &options.control, self.threads)
                .map(|parsers| (parsers, RangeTaker::new((pipeline, source)))),
            _ => None,
        };
        let ranges = RangeServer::start(self.process, &post, read.unwrap_or_default(), fault);
        let partitions = PartitionServer::new(self.process, &post, pipeline, &options.control, fault);
        RequestServer { dealer, ranges, partitions, post }.start(received, fault);
    }
}

/// Whether values may stay in the process that reads them.
fn may_share(pipeline: &Pipeline, control: &Control) -> bool {
    // Discovered keys are numbered in the order of their first rows.
    let needs_all = pipeline.id.is_some() || pipeline.discovery().is_some();
    let is_shared = |source: &Source| {
        let input = source.input.source();
        let is_one_of_several = pipeline.has_several_sources() || input.partitioning().is_some();
        match is_one_of_several {
            true => input.opens_anywhere(),
            false => is_ranged(pipeline, source, control),
        }
    };
    !needs_all && pipeline.preflight != Preflight::Stop && pipeline.sources.iter().any(is_shared)
}

fn parse_all(mut parser: RangeParser, board: &RangeBoard, plan: &RangePlan) {
    while let Some((range, _)) = board.hand_out() {
        board.put(range, parser.parse(plan.stretches[range]));
    }
}

/// Starts a thread; it is never joined.
fn spawn(name: &str, fault: &Fault, work: impl FnOnce() + Send + 'static) {
    if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(work) {
        fault.raise(format_args!("no thread for a reader: {error}"));
    }
}
