//! Epochs of a time zone's calendar: days of 23 to 25 hours, months of 28 to 31 days.
//!
//! The boundaries are stored as runs of epochs of equal length, so a later change of the time zone
//! database does not move them.

use serde::{Deserialize, Serialize};

/// The boundaries of all epochs, and the local time at each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calendar {
    /// Name of the time zone.
    pub time_zone: String,
    /// Runs of epochs in order; the first begins with epoch 1, the last never ends.
    pub runs: Vec<EpochRun>,
}

/// Consecutive epochs of equal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpochRun {
    /// The first epoch.
    pub first: u64,
    /// The first microsecond of the first epoch, since 1970-01-01T00:00:00Z.
    pub start: i64,
    /// Microseconds in each epoch, at least 1.
    pub length: i64,
    /// Seconds by which local time is ahead of UTC when each epoch begins.
    pub offset: i32,
}

impl Calendar {
    /// Joins the boundaries of epochs into runs. Each boundary is a time in microseconds, later
    /// than the previous one, and the offset of local time in seconds. The last boundary ends the
    /// last epoch.
    ///
    /// Returns `None` if there is no epoch or if boundaries don't increase.
    pub fn new(time_zone: &str, boundaries: &[(i64, i32)]) -> Option<Self> {
        let mut runs: Vec<EpochRun> = Vec::new();
        for (pair, epoch) in boundaries.windows(2).zip(1..) {
            let [(start, offset), (end, _)] = *pair else { return None };
            let length = end.checked_sub(start).filter(|&length| length > 0)?;
            if runs.last().is_none_or(|run| (run.length, run.offset) != (length, offset)) {
                runs.push(EpochRun { first: epoch, start, length, offset });
            }
        }
        (!runs.is_empty()).then(|| Calendar { time_zone: time_zone.into(), runs })
    }

    /// Whether the runs begin at `start` with epoch 1 and follow each other without a gap.
    pub(super) fn is_valid(&self, start: i64) -> bool {
        let follows = |pair: &[EpochRun]| {
            let epochs = i128::from(pair[1].first) - i128::from(pair[0].first);
            let end = i128::from(pair[0].start) + epochs * i128::from(pair[0].length);
            epochs > 0 && end == i128::from(pair[1].start)
        };
        let begins = |first: &EpochRun| first.first == 1 && first.start == start;
        self.runs.first().is_some_and(begins)
            && self.runs.iter().all(|run| run.length > 0)
            && self.runs.windows(2).all(follows)
    }

    /// The run that holds a time. The first run also holds the times before its start.
    pub(super) fn run_at(&self, time: i64) -> Option<&EpochRun> {
        let after = self.runs.partition_point(|run| run.start <= time);
        self.runs.get(after.saturating_sub(1))
    }

    pub(super) fn run_of(&self, epoch: u64) -> Option<&EpochRun> {
        let after = self.runs.partition_point(|run| run.first <= epoch);
        self.runs.get(after.saturating_sub(1))
    }

    /// Microseconds in the longest epoch.
    pub fn longest(&self) -> i64 {
        self.runs.iter().map(|run| run.length).max().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ClockSource, LatePolicy, Schedule, TimeSchedule};
    use super::*;
    use proptest::prelude::*;

    fn schedule(lengths: &[i64]) -> TimeSchedule {
        let mut boundaries = vec![(-500, 0)];
        for length in lengths {
            let (last, _) = boundaries[boundaries.len() - 1];
            boundaries.push((last + length, 0));
        }
        let calendar = Calendar::new("zone", &boundaries).unwrap();
        TimeSchedule {
            start: -500,
            length: calendar.longest(),
            lateness: 0,
            horizon: lengths.len() as u64,
            late: LatePolicy::Fold,
            clock: ClockSource::EndOfInput,
            calendar: Some(calendar),
        }
    }

    #[test]
    fn equal_lengths_join_to_one_run() {
        let calendar = schedule(&[24, 24, 23, 24, 24, 25]).calendar.unwrap();
        let runs: Vec<_> = calendar.runs.iter().map(|run| (run.first, run.start, run.length)).collect();
        assert_eq!(runs, [(1, -500, 24), (3, -452, 23), (4, -429, 24), (6, -381, 25)]);
        assert_eq!(calendar.longest(), 25);
        assert!(Calendar::new("zone", &[(5, 0)]).is_none());
        assert!(Calendar::new("zone", &[(5, 0), (5, 0)]).is_none());
    }

    #[test]
    fn runs_with_a_gap_are_refused() {
        let check = |change: fn(&mut Calendar), valid: bool| {
            let mut by = schedule(&[24, 23, 24]);
            by.calendar.as_mut().into_iter().for_each(change);
            assert_eq!(Schedule::ByTime(by).check().is_ok(), valid);
        };
        check(|_| (), true);
        check(|calendar| calendar.runs[1].start += 1, false);
        check(|calendar| calendar.runs[1].length = 0, false);
        check(|calendar| calendar.runs[0].first = 2, false);
        check(|calendar| calendar.runs.clear(), false);
    }

    proptest! {
        #[test]
        fn every_time_is_in_exactly_one_epoch(
            lengths in proptest::collection::vec(1..40i64, 1..30), time in -2000..2000i64,
        ) {
            let by = schedule(&lengths);
            let epoch = by.epoch_at(time);
            prop_assert!(by.epoch_at(time - 1) <= epoch && epoch <= by.epoch_at(time + 1));
            // Compare with the same boundaries one by one, without runs.
            let mut start = -500;
            for (length, expected) in lengths.iter().zip(1..) {
                prop_assert_eq!(by.start_of(expected as u64), Some(start));
                prop_assert_eq!(epoch == expected, (start..start + length).contains(&time));
                start += length;
            }
            prop_assert_eq!(epoch < 1, time < -500);
            prop_assert_eq!(epoch > lengths.len() as i64, time >= start);
        }
    }
}
