//! Epochs: assigns records to epochs and decides which epochs are closed.
//!
//! An epoch is one step t = 1, 2, … of the release. The assignment of a record is a pure function
//! of its own event time and of the [`Clock`], the public information about the arrivals so far.
//! The content of one record does not affect the assignment of another. So the sums of two streams
//! that differ in one record differ only in that record, which is the premise of every sensitivity
//! in [`crate::sensitivity`]. Crash recovery also relies on this: a stream that is read again from
//! a stored clock gets the same assignment.
//!
//! With c the clock's time, the oldest open and the newest epoch are
//!
//! ```text
//! o(c) = max(1, 1 + ⌊(c − lateness − start)/length⌋)        e(c) = 1 + ⌊(c − start)/length⌋
//! ```
//!
//! or, with a [`Calendar`], the epochs whose interval holds c − lateness and c.

mod calendar;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use calendar::{Calendar, EpochRun};

/// Rules that assign records to epochs and close epochs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// By event time: epoch t covers `[start + (t−1)·length, start + t·length)`.
    ByTime(TimeSchedule),
    /// By position: epoch t covers the rows `[(t−1)·n, t·n)` of the stream. Invalid rows count too,
    /// so they do not shift other records.
    ByCount(CountSchedule),
}

/// Epochs in event time, of equal length unless there is a calendar. All times are microseconds
/// since 1970-01-01T00:00:00Z.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeSchedule {
    /// First microsecond of epoch 1.
    pub start: i64,
    /// Microseconds in an epoch, at least 1; with a calendar, in the longest one.
    pub length: i64,
    /// How long an epoch stays open after its end, in microseconds of the clock, at least 0.
    pub lateness: i64,
    /// Number of epochs, at least 1.
    pub horizon: u64,
    /// Treatment of records of closed epochs.
    pub late: LatePolicy,
    /// Source of the clock.
    pub clock: ClockSource,
    /// The boundaries of epochs in a time zone, which may differ in length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calendar: Option<Calendar>,
}

/// Epochs of an equal number of rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountSchedule {
    /// Rows in an epoch, at least 1. Rows without a valid record count too.
    pub records_per_epoch: u64,
    /// Number of epochs, at least 1.
    pub horizon: u64,
}

/// Treatment of a record whose epoch is already closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LatePolicy {
    /// It joins the oldest open epoch.
    Fold,
    /// It is dropped.
    Drop,
}

/// Source of the clock. It must be public, because every reader sees when an epoch closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClockSource {
    /// The largest arrival time so far.
    Arrival,
    /// The largest event time so far. Valid only if event times are public.
    EventTime,
    /// No clock: all epochs stay open until the input ends, and every record joins its own epoch.
    EndOfInput,
}

/// Public information about the arrivals before a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Clock {
    /// Largest public time seen, in microseconds since 1970; `i64::MIN` before the first.
    pub time: i64,
    /// Number of rows seen, which is the position of the next row.
    pub row: u64,
    /// Last epoch that an earlier end of the input closed early; 0 if none.
    pub closed: u64,
}

impl Clock {
    /// The clock before the first row.
    pub const START: Clock = Clock { time: i64::MIN, row: 0, closed: 0 };

    /// Moves the clock to `time`, never back.
    pub fn advance(&mut self, time: i64) {
        self.time = self.time.max(time);
    }
}

/// The assignment of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Assignment {
    /// The record joins its own epoch or, if its event time is ahead of the clock, the clock's
    /// epoch.
    Epoch(u64),
    /// The record's own epoch is closed. The record joins this one.
    Late(u64),
    /// The record joins no epoch.
    Dropped(DropReason),
}

impl Assignment {
    /// The epoch that the record joins, if any.
    pub fn epoch(self) -> Option<u64> {
        match self {
            Assignment::Epoch(epoch) | Assignment::Late(epoch) => Some(epoch),
            Assignment::Dropped(_) => None,
        }
    }
}

/// Reasons to drop a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// The record arrived before the start of epoch 1 or, without a clock, its event time is before
    /// that start.
    BeforeStart,
    /// Its epoch is closed and late records are dropped.
    Late,
    /// Its epoch is after the horizon.
    AfterHorizon,
}

/// An invalid schedule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// A field is below its minimum.
    #[error("the {field} is {found}: expected at least {least}")]
    TooSmall {
        /// The field.
        field: &'static str,
        /// Its value.
        found: i64,
        /// Its minimum.
        least: i64,
    },
    /// The runs of a calendar don't follow each other.
    #[error("the epochs of the calendar leave gaps, overlap or don't begin at the start")]
    Calendar,
}

impl Schedule {
    /// Checks the ranges documented at the fields.
    ///
    /// # Errors
    /// [`ScheduleError::TooSmall`] names the first field that is out of range;
    /// [`ScheduleError::Calendar`] if the runs of a calendar leave gaps or overlap, or start
    /// elsewhere.
    pub fn check(&self) -> Result<(), ScheduleError> {
        let at_least = |field, found: i64, least| match found < least {
            true => Err(ScheduleError::TooSmall { field, found, least }),
            false => Ok(()),
        };
        match self {
            Schedule::ByTime(by) => {
                at_least("length", by.length, 1)?;
                at_least("lateness", by.lateness, 0)?;
                if by.calendar.as_ref().is_some_and(|calendar| !calendar.is_valid(by.start)) {
                    return Err(ScheduleError::Calendar);
                }
            }
            Schedule::ByCount(by) => at_least("records_per_epoch", clamp(by.records_per_epoch), 1)?,
        }
        at_least("horizon", clamp(self.horizon()), 1)
    }

    /// Number of epochs.
    pub fn horizon(&self) -> u64 {
        match self {
            Schedule::ByTime(by) => by.horizon,
            Schedule::ByCount(by) => by.horizon,
        }
    }

    /// Returns the least epoch that a record may have joined if it arrived at `clock` or later;
    /// below 1 for events before the start. An earlier clock never gives a greater epoch.
    pub fn least_epoch(&self, event_time: i64, clock: Clock) -> i64 {
        match self {
            Schedule::ByTime(by) if by.clock == ClockSource::EndOfInput => by.epoch_at(event_time),
            Schedule::ByTime(by) => by.epoch_at(event_time).min(by.epoch_at(clock.time)),
            Schedule::ByCount(by) => clamp(by.epoch_at(clock.row)),
        }
    }

    /// Assigns a record that arrives at `clock` (`clock.row` is its own position, `clock.time`
    /// includes its own arrival). By count, `event_time` is ignored.
    ///
    /// By time, a record that arrives before the start is dropped, and any other record of an epoch
    /// below 1 is late. Without a clock, a record whose event time is before the start is dropped.
    /// A record of an epoch that an end of the input closed is late too; by count it joins the next
    /// epoch.
    ///
    /// ```
    /// use hushflow_mechanism::epochs::*;
    /// let hourly = Schedule::ByTime(TimeSchedule {
    ///     start: 0, length: 3_600_000_000, lateness: 600_000_000, horizon: 24,
    ///     late: LatePolicy::Fold, clock: ClockSource::Arrival, calendar: None,
    /// });
    /// let minutes = |m: i64| m * 60_000_000;
    /// // At 01:09 the first hour is still open, at 01:10 it has closed.
    /// let at = |time| Clock { time, ..Clock::START };
    /// assert_eq!(hourly.assign(minutes(59), at(minutes(69))), Assignment::Epoch(1));
    /// assert_eq!(hourly.assign(minutes(59), at(minutes(70))), Assignment::Late(2));
    /// ```
    pub fn assign(&self, event_time: i64, clock: Clock) -> Assignment {
        let assignment = match self {
            Schedule::ByTime(by) => by.assign(event_time, clock.time),
            Schedule::ByCount(by) => Assignment::Epoch(by.epoch_at(clock.row)),
        };
        let assignment = match assignment.epoch() {
            Some(epoch) if epoch <= clock.closed => self.late(clock.closed.saturating_add(1)),
            _ => assignment,
        };
        match assignment.epoch() {
            Some(epoch) if epoch > self.horizon() => Assignment::Dropped(DropReason::AfterHorizon),
            _ => assignment,
        }
    }

    fn late(&self, oldest: u64) -> Assignment {
        match self {
            Schedule::ByTime(TimeSchedule { late: LatePolicy::Drop, .. }) => {
                Assignment::Dropped(DropReason::Late)
            }
            _ => Assignment::Late(oldest),
        }
    }

    /// Returns the oldest open epoch at `clock`; all epochs before it are closed. It exceeds the
    /// horizon once the schedule is over, and never decreases as the clock advances.
    pub fn oldest_open(&self, clock: Clock) -> u64 {
        let oldest = match self {
            Schedule::ByTime(by) => by.oldest_open(clock.time),
            Schedule::ByCount(by) => by.epoch_at(clock.row),
        };
        oldest.max(clock.closed.saturating_add(1)).min(self.horizon().saturating_add(1))
    }

    /// Returns the least clock time at which this epoch is closed; `None` if epochs are of rows, or
    /// if the next epoch begins beyond the range of times.
    pub fn closing_time(&self, epoch: u64) -> Option<i64> {
        match self {
            Schedule::ByTime(by) => Some(by.start_of(epoch.saturating_add(1))?.saturating_add(by.lateness)),
            Schedule::ByCount(_) => None,
        }
    }

    /// Returns the last epoch to release when the input ends at `clock`; 0 if there is none. With a
    /// public clock it is the newest epoch that has begun. Without one it is the horizon, because
    /// the epochs that hold records are private.
    pub fn last_at_end(&self, clock: Clock) -> u64 {
        let last = match self {
            Schedule::ByTime(by) if by.clock == ClockSource::EndOfInput => by.horizon,
            Schedule::ByTime(by) => by.epoch_at(clock.time).max(0).unsigned_abs(),
            Schedule::ByCount(by) => clock.row.div_ceil(by.records_per_epoch.max(1)),
        };
        last.max(clock.closed).min(self.horizon())
    }
}

impl TimeSchedule {
    /// Returns the run of equal epochs given by `of_calendar`, or that of the whole schedule:
    /// number and start of its first epoch, and their length.
    fn run(&self, of_calendar: impl FnOnce(&Calendar) -> Option<&EpochRun>) -> (u64, i64, i64) {
        let run = self.calendar.as_ref().and_then(of_calendar);
        run.map_or((1, self.start, self.length), |run| (run.first, run.start, run.length))
    }

    fn epoch_at(&self, time: i64) -> i64 {
        let (first, start, length) = self.run(|calendar| calendar.run_at(time));
        time.saturating_sub(start).div_euclid(length.max(1)).saturating_add(clamp(first))
    }

    /// Returns the first microsecond of an epoch from 1 on; `None` if it is out of range.
    pub fn start_of(&self, epoch: u64) -> Option<i64> {
        let (first, start, length) = self.run(|calendar| calendar.run_of(epoch));
        let offset = (i128::from(epoch) - i128::from(first)) * i128::from(length);
        i64::try_from(i128::from(start) + offset).ok()
    }

    /// Returns the seconds by which local time is ahead of UTC when an epoch begins; `None`
    /// without a calendar.
    pub fn offset_of(&self, epoch: u64) -> Option<i32> {
        Some(self.calendar.as_ref()?.run_of(epoch)?.offset)
    }

    fn oldest_open(&self, clock: i64) -> u64 {
        match self.clock {
            ClockSource::EndOfInput => 1,
            _ => self.epoch_at(clock.saturating_sub(self.lateness)).max(1).unsigned_abs(),
        }
    }

    fn assign(&self, event_time: i64, clock: i64) -> Assignment {
        let own = self.epoch_at(event_time);
        let clocked = self.clock != ClockSource::EndOfInput;
        if (if clocked { clock } else { event_time }) < self.start {
            return Assignment::Dropped(DropReason::BeforeStart);
        }
        let epoch = if clocked { own.min(self.epoch_at(clock)) } else { own };
        let oldest = self.oldest_open(clock);
        match u64::try_from(epoch) {
            Ok(epoch) if epoch >= oldest => Assignment::Epoch(epoch),
            _ if self.late == LatePolicy::Fold => Assignment::Late(oldest),
            _ => Assignment::Dropped(DropReason::Late),
        }
    }
}

impl CountSchedule {
    fn epoch_at(&self, row: u64) -> u64 {
        (row / self.records_per_epoch.max(1)).saturating_add(1)
    }
}

fn clamp(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
