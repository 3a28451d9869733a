//! Parses ranges of files in other processes. The first process hands out the ranges, and the
//! others parse them and pass on their rows.
//!
//! The board keeps parsed ranges until their turn. The clock is the reader's state: the first
//! process lends it to the process that holds the next range.
//!
//! ```text
//! first process    board ─ ranges ─→ parsers ─→ board ─→ rows in order ─→ its workers
//!                    │                            ↑            │   ↑
//! other processes    └─ ranges ─→ parsers ─ extent of a range  │   │
//!                                    │                       clock │
//!                                    │                         ↓   │
//!                                    └─ rows and values ─→ rows in order ─→ its workers
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam::channel::{Receiver, Sender, bounded, unbounded};
use hushflow_operators::Fault;

use super::board::{OtherHolders, RangeBoard};
use super::post::{MISMATCH, Post, PostBox, RangeRequest, ReaderMessage, WeakPost};
use super::spawn;
use crate::source::{
    HeldRecords, ParsedRange, RangeHandover, RangeParser, RangePlan, RangeResult, RangeTaker,
};

/// Maximum number of outstanding ranges per thread of another process: one being parsed and one
/// queued, so that the thread need not wait.
const OUTSTANDING_PER_THREAD: usize = 2;

/// The processes that parse ranges for the first one.
pub(super) struct ParserProcesses {
    pub(super) post: PostBox,
    /// Number of processes, with the first one.
    pub(super) processes: usize,
    /// Number of parser threads in each process.
    pub(super) threads: usize,
}

impl ParserProcesses {
    /// Starts one thread per other process that hands out ranges, and one that collects the
    /// replies. Returns the handle for taking rows from the holders.
    pub(super) fn start(self, board: &RangeBoard, plan: &Arc<RangePlan>, fault: &Fault) -> OtherHolders {
        let mut releases = Vec::new();
        for process in 1..self.processes {
            let outstanding = OUTSTANDING_PER_THREAD * self.threads;
            let (release, permits) = bounded(outstanding);
            (0..outstanding).for_each(|_| {
                let _ = release.try_send(());
            });
            releases.push(release);
            let (board, plan, post) = (board.clone(), Arc::clone(plan), Arc::downgrade(&self.post.post));
            spawn("range-requests", fault, move || hand_out(process, &board, &plan, &post, &permits));
        }
        let (board, received, raised) = (board.clone(), self.post.received, fault.clone());
        let (returned, results) = unbounded();
        spawn("range-replies", fault, move || {
            for message in received {
                match message {
                    ReaderMessage::Parsed(process, range, extent) => {
                        board.put(range, ParsedRange::elsewhere(extent, process));
                        let release = process.checked_sub(1).and_then(|index| releases.get(index));
                        let _ = release.map(|release| release.try_send(()));
                    }
                    // The receiver is gone if the run has ended.
                    ReaderMessage::HandBack(result) => drop(returned.send(*result)),
                    _ => raised.raise(MISMATCH),
                }
            }
        });
        OtherHolders { post: Arc::downgrade(&self.post.post), results }
    }
}

/// Sends another process the next range whenever it has a free permit.
fn hand_out(process: usize, board: &RangeBoard, plan: &RangePlan, post: &WeakPost, permits: &Receiver<()>) {
    while permits.recv().is_ok() {
        let Some((range, needed)) = board.hand_out() else { return };
        let Some(post) = post.upgrade() else { return };
        let request = RangeRequest { range, plan: plan.of_one(range), needed };
        post.send(process, ReaderMessage::Parse(request));
    }
}

/// Parsed ranges whose rows have not been taken.
type HeldRanges = Arc<Mutex<BTreeMap<usize, ParsedRange>>>;

/// Parses ranges for the first process on separate threads, and takes their rows.
pub(super) struct RangeServer {
    held: HeldRanges,
    requests: Sender<RangeRequest>,
    taker: Option<RangeTaker>,
}

impl RangeServer {
    pub(super) fn start(
        process: usize,
        post: &Arc<Post>,
        (parsers, taker): (Vec<RangeParser>, Option<RangeTaker>),
        fault: &Fault,
    ) -> Self {
        let held = HeldRanges::default();
        let (requests, requested) = unbounded::<RangeRequest>();
        for mut parser in parsers {
            let (held, post, requested) = (Arc::clone(&held), Arc::clone(post), requested.clone());
            spawn("parser", fault, move || {
                for RangeRequest { range, plan, needed } in requested {
                    let parsed = parser.parse_planned(&plan);
                    let extent = parsed.extent;
                    let mut ranges = held.lock().unwrap_or_else(PoisonError::into_inner);
                    *ranges = ranges.split_off(&needed);
                    ranges.insert(range, parsed);
                    drop(ranges);
                    post.send(0, ReaderMessage::Parsed(process, range, extent));
                }
            });
        }
        RangeServer { held, requests, taker }
    }

    /// Queues a range for the parser threads. Returns whether any of them still runs.
    pub(super) fn parse(&self, request: RangeRequest) -> bool {
        self.requests.send(request).is_ok()
    }

    /// Takes the rows of a range. Returns the records and the reply to the first process; `None` if
    /// this process does not hold the range.
    pub(super) fn take(&mut self, handover: RangeHandover) -> Option<(HeldRecords, RangeResult)> {
        let range = self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(&handover.range)?;
        Some(self.taker.as_mut()?.take(handover, range))
    }
}
