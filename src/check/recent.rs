//! Decides which rows, values or records to judge after the first check: those since the last
//! judgement, or those of the newest epochs if each of these has mostly bad ones.

use serde::{Deserialize, Serialize};

use crate::source::RowCounters;

/// Minimum number to judge after the first check.
pub(super) const LEAST: u64 = 100;

/// Maximum number between two judgements, up to the next closed epoch.
const MOST: u64 = 1 << 16;

/// Minimum number of consecutive mostly bad epochs that are judged separately, and minimum number
/// of rows, values or records in them.
const LEAST_RUN: (u64, u64) = (3, 20);

/// Inverse of two minimum shares: that of these epochs among all closed ones, and that of the rows
/// of closed epochs after which a falling clock is judged.
pub(super) const RUN_SHARE: u64 = 50;

/// Counts of rows, values or records, and of the bad ones among them.
pub(super) trait Tally: Copy + Default {
    /// Returns the number of all.
    fn all(&self) -> u64;

    /// Returns the number of bad ones.
    fn bad(&self) -> u64;

    /// Returns the difference from an earlier state.
    fn since(&self, earlier: &Self) -> Self;

    /// Whether most are bad.
    fn is_mostly_bad(&self) -> bool {
        2 * self.bad() > self.all()
    }
}

impl Tally for RowCounters {
    fn all(&self) -> u64 {
        self.rows
    }

    fn bad(&self) -> u64 {
        self.uncounted()
    }

    fn since(&self, earlier: &Self) -> Self {
        RowCounters::since(self, earlier)
    }
}

/// A number, and that of the bad ones among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Share {
    pub(super) all: u64,
    pub(super) bad: u64,
}

impl Share {
    /// Adds another share.
    pub(super) fn add(&mut self, other: Share) {
        self.all += other.all;
        self.bad += other.bad;
    }
}

impl Tally for Share {
    fn all(&self) -> u64 {
        self.all
    }

    fn bad(&self) -> u64 {
        self.bad
    }

    fn since(&self, earlier: &Self) -> Self {
        Share { all: self.all - earlier.all, bad: self.bad - earlier.bad }
    }
}

/// Tallies of the rows, values or records of closed epochs. The state of a judge; private.
///
/// After the first check they are judged when the clock closes an epoch and at least a tenth of
/// them are new. So a burst stops no run, and a stream that has turned bad stops before it has used
/// up another tenth of its length: a fiftieth, or three epochs, if most of each of these epochs are
/// bad.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Recent<T> {
    /// Tally of the closed epochs.
    pub(super) closed: T,
    /// Tally up to the last judgement.
    judged: T,
    /// Number of consecutive steps of the clock that closed mostly bad epochs, and the tally of the
    /// epochs before them.
    run: (u64, T),
    /// Tally before the newest closed epochs; for a judge that resumes, of all closed epochs.
    #[serde(skip)]
    before: T,
}

impl<T: Tally> Recent<T> {
    /// Goes on from the state of an earlier judge.
    pub(super) fn resume(self) -> Self {
        Recent { before: self.closed, ..self }
    }

    /// Sets the tally of all closed epochs, with the newest ones.
    pub(super) fn close(&mut self, closed: T) {
        self.before = self.closed;
        self.closed = closed;
        let newest = self.newest();
        if newest.all() > 0 {
            if self.run.0 == 0 {
                self.run.1 = self.before;
            }
            self.run.0 = if newest.is_mostly_bad() { self.run.0 + 1 } else { 0 };
        }
    }

    /// Returns the tally of the newest closed epochs.
    pub(super) fn newest(&self) -> T {
        self.closed.since(&self.before)
    }

    /// Returns what to judge now, if it is enough. The clock has closed epochs at `steps` rows.
    pub(super) fn due(&self, steps: u64) -> Option<T> {
        let of_run = self.closed.since(&self.run.1);
        if self.run.0 >= LEAST_RUN.0.max(steps / RUN_SHARE) && of_run.all() >= LEAST_RUN.1 {
            return Some(of_run);
        }
        let recent = self.closed.since(&self.judged);
        let least = LEAST.max(self.closed.all() / 10).min(MOST);
        (recent.all() >= least).then_some(recent)
    }

    /// Notes that everything in closed epochs is judged.
    pub(super) fn set_judged(&mut self) {
        self.judged = self.closed;
    }

    /// Judges what is due. Returns whether most of it is bad, and most of the newest epochs too.
    pub(super) fn judge(&mut self, steps: u64) -> bool {
        let Some(due) = self.due(steps) else { return false };
        self.set_judged();
        due.is_mostly_bad() && self.newest().is_mostly_bad()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Closes epochs of ten rows, `bad` of them bad, and returns those at which most are.
    fn judged(bad: impl Fn(u64) -> u64, epochs: u64) -> Vec<u64> {
        let (mut recent, mut total) = (Recent::<Share>::default(), Share::default());
        let judge = |epoch: &u64| {
            total.add(Share { all: 10, bad: bad(*epoch) });
            recent.close(total);
            recent.judge(*epoch)
        };
        (1..=epochs).filter(judge).collect()
    }

    #[test]
    fn bad_epochs_are_found_within_three_or_a_fiftieth() {
        assert_eq!(judged(|_| 5, 400), [0; 0]);
        assert_eq!(judged(|epoch| 10 * u64::from(epoch > 40), 43), [43]);
        assert_eq!(judged(|epoch| 10 * u64::from(epoch > 300), 310), [306, 307, 308, 309, 310]);
    }

    #[test]
    fn a_short_burst_is_no_reason() {
        assert_eq!(judged(|epoch| 10 * u64::from(epoch == 50 || epoch == 51), 100), [0; 0]);
    }

    /// In every third epoch less than half is bad, so no run of three bad epochs begins. But most
    /// of all are bad.
    #[test]
    fn most_of_a_tenth_are_found() {
        let found = judged(|epoch| if epoch % 3 == 0 { 4 } else { 9 }, 60);
        assert!(!found.is_empty() && found.iter().all(|epoch| epoch % 3 != 0), "{found:?}");
    }
}
