//! Ranges of files that other processes parse: how the first process hands them out, and what the
//! others do.
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

/// Ranges that another process may have at a time, for each of its threads: one more than it
/// parses, so that it need not wait for the next.
const OUTSTANDING: usize = 2;

/// The processes that parse ranges for the first one.
pub(super) struct Helpers {
    pub(super) post: PostBox,
    pub(super) processes: usize,
    /// Threads of each.
    pub(super) threads: usize,
}

impl Helpers {
    /// Hands ranges out to the other processes, and collects what they have parsed.
    pub(super) fn start(self, board: &RangeBoard, plan: &Arc<RangePlan>, fault: &Fault) -> OtherHolders {
        let mut free = Vec::new();
        for process in 1..self.processes {
            let number = OUTSTANDING * self.threads;
            let (done, turns) = bounded(number);
            (0..number).for_each(|_| {
                let _ = done.try_send(());
            });
            free.push(done);
            let (board, plan, post) = (board.clone(), Arc::clone(plan), Arc::downgrade(&self.post.post));
            spawn("ranges", fault, move || hand_out(process, &board, &plan, &post, &turns));
        }
        let (board, received, raised) = (board.clone(), self.post.received, fault.clone());
        let (returned, results) = unbounded();
        spawn("ranges", fault, move || {
            for message in received {
                match message {
                    ReaderMessage::Parsed(process, range, extent) => {
                        board.put(range, ParsedRange::elsewhere(extent, process));
                        let free = process.checked_sub(1).and_then(|index| free.get(index));
                        let _ = free.map(|done| done.try_send(()));
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

/// Asks another process for one range after the other, whenever one of its `turns` is free.
fn hand_out(process: usize, board: &RangeBoard, plan: &RangePlan, post: &WeakPost, turns: &Receiver<()>) {
    while turns.recv().is_ok() {
        let Some((range, needed)) = board.hand_out() else { return };
        let Some(post) = post.upgrade() else { return };
        let request = RangeRequest { range, plan: plan.of_one(range), needed };
        post.send(process, ReaderMessage::Parse(request));
    }
}

/// Ranges that a process has parsed, until their rows are taken.
type HeldRanges = Arc<Mutex<BTreeMap<usize, ParsedRange>>>;

/// Parses ranges for the first process, on threads of its own, and takes their rows.
pub(super) struct RangeFollower {
    held: HeldRanges,
    requests: Sender<RangeRequest>,
    taker: Option<RangeTaker>,
}

impl RangeFollower {
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
        RangeFollower { held, requests, taker }
    }

    /// Parses a range when a thread is free. Returns whether one will be.
    pub(super) fn parse(&self, request: RangeRequest) -> bool {
        self.requests.send(request).is_ok()
    }

    /// Takes the rows of a range. Returns the records, and what to send back; `None` if it is not
    /// here.
    pub(super) fn take(&mut self, handover: RangeHandover) -> Option<(HeldRecords, RangeResult)> {
        let range = self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(&handover.range)?;
        Some(self.taker.as_mut()?.take(handover, range))
    }
}
