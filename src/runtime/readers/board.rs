//! Hands out ranges, in their order, to the next free parser, and keeps parsed ranges until their
//! turn.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam::channel::Receiver;

use super::post::{ReaderMessage, WeakPost};
use crate::source::{ParsedRange, RangeHandover, RangeResult, RangeSupply};

/// How long a reader waits for a range before it looks for a stop.
const WAIT: Duration = Duration::from_millis(20);

/// Ranges of a run, shared by the threads that parse and the one that takes rows.
#[derive(Clone)]
pub(super) struct RangeBoard(Arc<(Mutex<RangeProgress>, Condvar)>);

/// Which ranges are handed out.
struct RangeProgress {
    /// Number of ranges.
    number: usize,
    /// Maximum number of ranges that are handed out ahead of their turn.
    ahead: usize,
    /// The range whose turn it is, once any has been asked for.
    wanted: Option<usize>,
    /// The next range to hand out.
    next: usize,
    /// Ranges that are handed out, with what was parsed.
    ranges: BTreeMap<usize, Option<ParsedRange>>,
    is_over: bool,
}

/// The end of the board for the thread that takes rows. Dropping it ends the parsing.
pub(super) struct BoardSupply {
    board: RangeBoard,
    others: Option<OtherHolders>,
}

/// The processes that take rows of the ranges that they hold.
pub(super) struct OtherHolders {
    pub(super) post: WeakPost,
    pub(super) results: Receiver<RangeResult>,
}

impl RangeBoard {
    /// A board of ranges, of which `ahead` may be parsed before their turn.
    pub(super) fn new(number: usize, ahead: usize) -> Self {
        let (next, wanted, is_over) = (0, None, false);
        let progress = RangeProgress { number, ahead, wanted, next, ranges: BTreeMap::new(), is_over };
        RangeBoard(Arc::new((Mutex::new(progress), Condvar::new())))
    }

    /// Returns the end for the thread that takes rows.
    pub(super) fn supply(self, others: Option<OtherHolders>) -> BoardSupply {
        BoardSupply { board: self, others }
    }

    fn lock(&self) -> MutexGuard<'_, RangeProgress> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a range to parse, and returns it and the first that is still needed; `None` if no
    /// more is wanted.
    pub(super) fn hand_out(&self) -> Option<(usize, usize)> {
        let mut progress = self.lock();
        loop {
            if progress.is_over || progress.next >= progress.number {
                return None;
            }
            match progress.wanted {
                Some(wanted) if progress.next < wanted + progress.ahead => {
                    let range = progress.next;
                    progress.next += 1;
                    progress.ranges.insert(range, None);
                    return Some((range, wanted));
                }
                _ => progress = self.0.1.wait(progress).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Stores what was parsed of a range that was handed out.
    pub(super) fn put(&self, range: usize, parsed: ParsedRange) {
        if let Some(place) = self.lock().ranges.get_mut(&range) {
            *place = Some(parsed);
        }
        self.0.1.notify_all();
    }
}

impl RangeSupply for BoardSupply {
    fn want(&mut self, range: usize) {
        let mut progress = self.board.lock();
        if progress.wanted != Some(range) {
            progress.wanted = Some(range);
            progress.next = progress.next.max(range);
            progress.ranges = progress.ranges.split_off(&range);
            self.board.0.1.notify_all();
        }
    }

    fn take(&mut self, range: usize) -> Option<ParsedRange> {
        self.want(range);
        let RangeBoard(shared) = &self.board;
        let mut progress = self.board.lock();
        let is_waiting = |progress: &mut RangeProgress| match progress.ranges.get(&range) {
            Some(parsed) => parsed.is_none(),
            None => progress.next <= range,
        };
        let waited = shared.1.wait_timeout_while(progress, WAIT, is_waiting);
        progress = waited.unwrap_or_else(PoisonError::into_inner).0;
        match progress.ranges.get(&range) {
            Some(Some(_)) => progress.ranges.remove(&range).flatten(),
            // The range was taken before and not used, so it is read in its turn.
            None if progress.next > range => Some(ParsedRange::default()),
            _ => None,
        }
    }

    fn is_ready(&self, range: usize) -> bool {
        matches!(self.board.lock().ranges.get(&range), Some(Some(parsed)) if parsed.holder.is_none())
    }

    fn hand_over(&mut self, holder: usize, handover: RangeHandover) {
        // If the post is gone, the run has ended.
        if let Some(post) = self.others.as_ref().and_then(|others| others.post.upgrade()) {
            post.send(holder, ReaderMessage::HandOver(Box::new(handover)));
        }
    }

    fn take_back(&mut self) -> Option<RangeResult> {
        self.others.as_ref()?.results.recv_timeout(WAIT).ok()
    }
}

impl Drop for BoardSupply {
    fn drop(&mut self) {
        self.board.lock().is_over = true;
        self.board.0.1.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(end: u64) -> ParsedRange {
        let mut range = ParsedRange::default();
        (range.extent.is_parsed, range.extent.end) = (true, end);
        range
    }

    #[test]
    fn ranges_are_parsed_ahead_within_limits() {
        let board = RangeBoard::new(5, 2);
        let mut supply = board.clone().supply(None);
        assert!(supply.take(1).is_none(), "nobody has parsed it");
        assert_eq!((board.hand_out(), board.hand_out()), (Some((1, 1)), Some((2, 1))));
        board.put(2, parsed(20));
        assert!(supply.is_ready(2) && !supply.is_ready(1));
        board.put(1, parsed(10));
        assert_eq!(supply.take(1).map(|range| range.extent.end), Some(10));
        // A range that is asked for again is read in its turn.
        assert!(supply.take(1).is_some_and(|range| !range.extent.is_parsed));
        assert_eq!(supply.take(2).map(|range| range.extent.end), Some(20));
        assert_eq!(board.hand_out(), Some((3, 2)));
        // Ranges before the one that is wanted are forgotten.
        assert!(supply.take(4).is_none());
        board.put(3, parsed(30));
        assert!(!supply.is_ready(3));
        assert_eq!((board.hand_out(), board.hand_out()), (Some((4, 4)), None));
        drop(supply);
        assert_eq!(board.hand_out(), None);
    }
}
