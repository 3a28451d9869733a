//! Readers in other processes: what the first process sends to them, and what they do with it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam::channel::{Receiver, Sender, bounded, unbounded};
use hushflow_operators::{Fault, Records};

use super::board::RangeBoard;
use super::post::{Post, PostBox, RangeMessage, RangeRequest, WeakPost};
use super::spawn;
use crate::runtime::feed::RecordDistributor;
use crate::source::{AssignedRows, HeldRange, ParsedRange, RangeParser, RangePlan};

/// Ranges that another process may have at a time, for each of its threads: one more than it
/// parses, so that it need not wait for the next.
const OUTSTANDING: usize = 2;

const MISMATCH: &str = "the processes of the cluster disagree about the rows of a file: a fault of hushflow";

/// The other processes, as the first one informs them.
pub(in crate::runtime) struct OtherReaders {
    post: Arc<Post>,
    processes: usize,
}

impl OtherReaders {
    pub(super) fn new(post: Arc<Post>, processes: usize) -> Self {
        OtherReaders { post, processes }
    }

    /// Sends the epochs of rows to the process that holds them.
    pub(in crate::runtime) fn assign(&self, rows: AssignedRows) {
        self.post.send(rows.holder, RangeMessage::Assigned(rows));
    }

    /// Informs all that the epochs up to this one are closed.
    pub(in crate::runtime) fn close(&self, epoch: u64) {
        (1..self.processes).for_each(|process| self.post.send(process, RangeMessage::Closed(epoch)));
    }

    /// Informs all that the input has ended.
    pub(in crate::runtime) fn end(&self) {
        (1..self.processes).for_each(|process| self.post.send(process, RangeMessage::End));
    }
}

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
                let RangeMessage::Parsed(process, range, rows) = message else { continue };
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
        let length = plan.lengths.get(stretch.part as usize).copied().flatten().unwrap_or(0);
        post.send(process, RangeMessage::Parse(RangeRequest { range, stretch, length }));
    }
}

/// Ranges that a process has parsed, until their rows have epochs.
type HeldRanges = Arc<Mutex<BTreeMap<usize, HeldRange>>>;

/// Does what the first process asks, on a thread of its own.
pub(super) fn follow(
    (process, post, received): (usize, Arc<Post>, Receiver<RangeMessage>),
    parsers: Vec<RangeParser>,
    dealer: RecordDistributor,
    fault: &Fault,
) {
    let held = HeldRanges::default();
    let (requests, requested) = unbounded::<RangeRequest>();
    for mut parser in parsers {
        let (held, post, requested) = (Arc::clone(&held), Arc::clone(&post), requested.clone());
        spawn("parser", fault, move || {
            for RangeRequest { range, stretch, length } in requested {
                let (kept, rows) = parser.parse_to_hold(stretch, length);
                let mut ranges = held.lock().unwrap_or_else(PoisonError::into_inner);
                kept.and_then(|kept| ranges.insert(range, kept));
                drop(ranges);
                post.send(0, RangeMessage::Parsed(process, range, rows));
            }
        });
    }
    drop(post);
    let raised = fault.clone();
    let follower = Follower { dealer, held, requests };
    spawn("source", fault, move || {
        if !follower.follow(received) {
            raised.raise(MISMATCH);
        }
    });
}

/// Follows the messages of the first process.
struct Follower {
    dealer: RecordDistributor,
    held: HeldRanges,
    requests: Sender<RangeRequest>,
}

impl Follower {
    /// Returns whether the messages fit what was parsed.
    fn follow(mut self, received: Receiver<RangeMessage>) -> bool {
        for message in received {
            let goes_on = match message {
                RangeMessage::Parse(request) => self.requests.send(request).is_ok(),
                RangeMessage::Assigned(rows) => {
                    let Some(records) = self.records(&rows) else { return false };
                    records.is_empty() || self.dealer.send_records(records)
                }
                RangeMessage::Closed(epoch) => self.dealer.close_through(epoch),
                RangeMessage::End => {
                    self.dealer.finish();
                    return true;
                }
                RangeMessage::Parsed(..) => return false,
            };
            if !goes_on {
                return true;
            }
        }
        true
    }

    /// Takes the records of rows out of a range. Rows come in their order, so earlier ranges are
    /// not needed any more. A range without rows is not used.
    fn records(&self, rows: &AssignedRows) -> Option<Records> {
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
