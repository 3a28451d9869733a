//! Ranges of files that other processes parse: how the first process hands them out, and what the
//! others do.
//!
//! ```text
//! first process    board ─ ranges ─→ parsers ─→ board ─→ rows in order ─→ epochs ─→ its workers
//!                    │                            ↑                          │
//! other processes    └─ ranges ─→ parsers ─ rows without values              ├─ epochs
//!                                    └─ values ──────────────────────────────┴─→ its workers
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam::channel::{Receiver, Sender, bounded, unbounded};
use hushflow_operators::{Fault, Records};

use super::board::RangeBoard;
use super::post::{MISMATCH, Post, PostBox, RangeRequest, ReaderMessage, WeakPost};
use super::spawn;
use crate::source::{AssignedRows, HeldRange, ParsedRange, RangeParser, RangePlan};

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
    pub(super) fn start(self, board: &RangeBoard, plan: &Arc<RangePlan>, fault: &Fault) {
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
        spawn("ranges", fault, move || {
            for message in received {
                let ReaderMessage::Parsed(process, range, rows) = message else { continue };
                let Some(parsed) = ParsedRange::decode(&rows, process) else { return raised.raise(MISMATCH) };
                board.put(range, parsed);
                let _ =
                    process.checked_sub(1).and_then(|index| free.get(index)).map(|done| done.try_send(()));
            }
        });
    }
}

/// Asks another process for one range after the other, whenever one of its `turns` is free.
fn hand_out(process: usize, board: &RangeBoard, plan: &RangePlan, post: &WeakPost, turns: &Receiver<()>) {
    while turns.recv().is_ok() {
        let Some(range) = board.hand_out() else { return };
        let Some(post) = post.upgrade() else { return };
        let stretch = plan.stretches[range];
        let length = plan.least_length(&stretch);
        post.send(process, ReaderMessage::Parse(RangeRequest { range, stretch, length }));
    }
}

/// Ranges that a process has parsed, until their rows have epochs.
type HeldRanges = Arc<Mutex<BTreeMap<usize, HeldRange>>>;

/// Parses ranges for the first process, on threads of its own.
pub(super) struct RangeFollower {
    held: HeldRanges,
    requests: Sender<RangeRequest>,
}

impl RangeFollower {
    pub(super) fn start(process: usize, post: &Arc<Post>, parsers: Vec<RangeParser>, fault: &Fault) -> Self {
        let held = HeldRanges::default();
        let (requests, requested) = unbounded::<RangeRequest>();
        for mut parser in parsers {
            let (held, post, requested) = (Arc::clone(&held), Arc::clone(post), requested.clone());
            spawn("parser", fault, move || {
                for RangeRequest { range, stretch, length } in requested {
                    let (kept, rows) = parser.parse_to_hold(stretch, length);
                    let mut ranges = held.lock().unwrap_or_else(PoisonError::into_inner);
                    kept.and_then(|kept| ranges.insert(range, kept));
                    drop(ranges);
                    post.send(0, ReaderMessage::Parsed(process, range, rows));
                }
            });
        }
        RangeFollower { held, requests }
    }

    /// Parses a range when a thread is free. Returns whether one will be.
    pub(super) fn parse(&self, request: RangeRequest) -> bool {
        self.requests.send(request).is_ok()
    }

    /// Takes the records of rows out of a range. Rows come in their order, so earlier ranges are
    /// not needed any more. A range without rows is not used. `None` if they don't fit what was
    /// parsed.
    pub(super) fn take(&self, rows: &AssignedRows) -> Option<Records> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        *held = held.split_off(&rows.range);
        if rows.epochs.0.is_empty() {
            held.remove(&rows.range);
            return Some(Records::default());
        }
        let range = held.get_mut(&rows.range)?;
        let records = range.assign(rows)?;
        if range.is_done() {
            held.remove(&rows.range);
        }
        Some(records)
    }
}
