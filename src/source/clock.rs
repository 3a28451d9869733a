//! The clock of a source: assigns records to epochs, closes epochs, and remembers where to resume.

use std::collections::VecDeque;

use hushflow_mechanism::epochs::{Assignment, Clock, DropReason, Schedule};
use serde::{Deserialize, Serialize};

use super::{EpochMark, ResumePoint, RowCounters};
use crate::pipeline::Source;

/// Number of first rows of epochs that a [`ClockState`] holds. If there are more, resumed runs read
/// some rows again.
pub(super) const SENT_FIRSTS: usize = 64;

pub(super) struct EpochClock {
    schedule: Schedule,
    /// Largest allowed advance of the clock by one row.
    largest_jump: Option<i64>,
    pub(super) clock: Clock,
    /// The public time of the current row.
    arrived: i64,
    /// The last epoch closed by a mark or an earlier run.
    closed: u64,
    /// The last epoch closed by the clock.
    due: u64,
    /// The last epoch of earlier runs.
    committed: u64,
    /// Rows of standard input up to this epoch may have been counted by an earlier run.
    pub(super) counted_before: u64,
    /// The row from which on rows of closed epochs are late.
    late_from: u64,
    /// The rows with a later epoch than every row before them.
    firsts: VecDeque<(u64, ResumePoint)>,
    /// The number of leaping rows since the clock last moved, and the first of them.
    leaps: u64,
    first_leap: Option<FirstLeap>,
}

/// The state of a clock, for another process. It has one length, whatever rows hold. Private.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct ClockState {
    clock: Clock,
    arrived: i64,
    closed: u64,
    due: u64,
    committed: u64,
    late_from: u64,
    /// The first rows of epochs, padded with entries of epoch 0.
    firsts: Vec<(u64, ResumePoint)>,
    leaps: u64,
    first_leap: Option<FirstLeap>,
}

/// The first of several consecutive rows whose clock leaps.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct FirstLeap {
    resume: ResumePoint,
    pub(super) line: u64,
    /// The least jump of these rows.
    pub(super) jump: i64,
    /// The times of the first and the last of these rows.
    times: (i64, i64),
    /// Whether the clock never rises from one of these rows to the next.
    never_rises: bool,
}

impl FirstLeap {
    /// Whether the clock goes back from row to row, as in a file with its newest rows first.
    pub(super) fn goes_back(&self) -> bool {
        self.never_rises && self.times.1 < self.times.0
    }
}

impl EpochClock {
    /// Starts after the last committed epoch. `restarts` if rows of earlier runs may come again.
    pub(super) fn new(source: &Source, resume: ResumePoint, committed: u64, restarts: bool) -> Self {
        // Rows of a new standard input are numbered from 0, while the clock does not go back before
        // the end of the last epoch. The clock to resume from follows event times: if it judged
        // the jumps of rows that come again, these would show in which epochs records lie.
        let clock = match source.schedule.closing_time(committed).filter(|_| committed > 0) {
            _ if !restarts => resume.clock,
            Some(time) => Clock { time, row: 0, closed: committed },
            None => Clock { row: 0, ..resume.clock },
        };
        EpochClock {
            schedule: source.schedule.clone(),
            largest_jump: source.largest_jump,
            clock,
            arrived: Clock::START.time,
            closed: committed,
            due: (source.schedule.oldest_open(clock) - 1).min(committed),
            committed,
            counted_before: if restarts { committed } else { 0 },
            late_from: if restarts { u64::MAX } else { resume.late_from },
            firsts: VecDeque::new(),
            leaps: 0,
            first_leap: None,
        }
    }

    /// Returns the state of a clock that reads no restarted input.
    ///
    /// If more epochs than fit have begun, the newest ones share a position to resume from: that of
    /// the first row of all of them. It is before the first rows of each, so no record is missed.
    pub(super) fn state(&self) -> ClockState {
        let EpochClock { clock, arrived, closed, due, committed, late_from, leaps, first_leap, .. } = *self;
        let mut firsts: Vec<_> = self.firsts.iter().copied().take(SENT_FIRSTS).collect();
        if let (Some(last), Some(&(newest, _))) = (firsts.last_mut(), self.firsts.back()) {
            last.0 = newest;
        }
        firsts.resize(SENT_FIRSTS, (0, ResumePoint::START));
        ClockState { clock, arrived, closed, due, committed, late_from, firsts, leaps, first_leap }
    }

    /// Continues from the state of another clock.
    pub(super) fn restore(&mut self, state: ClockState) {
        let ClockState { clock, arrived, closed, due, committed, late_from, firsts, leaps, first_leap } =
            state;
        (self.clock, self.arrived, self.closed, self.due) = (clock, arrived, closed, due);
        (self.committed, self.late_from) = (committed, late_from);
        (self.leaps, self.first_leap) = (leaps, first_leap);
        self.firsts = firsts.into_iter().filter(|&(epoch, _)| epoch > 0).collect();
    }

    /// The last epoch closed by a mark or an earlier run.
    pub(super) fn closed(&self) -> u64 {
        self.closed
    }

    /// The public time of the current row.
    pub(super) fn arrived(&self) -> i64 {
        self.arrived
    }

    /// Number of leaping rows since the clock last moved.
    pub(super) fn leaps_in_a_row(&self) -> u64 {
        self.leaps
    }

    /// The first leaping row since the clock last moved.
    pub(super) fn first_leap(&self) -> Option<FirstLeap> {
        self.first_leap
    }

    /// Whether an earlier run had read the current row when it closed its last epoch. The position
    /// to resume from follows event times, so how many such rows there are is private.
    pub(super) fn reads_again(&self) -> bool {
        self.due < self.committed
    }

    /// Whether the first epoch has not begun.
    pub(super) fn is_before_start(&self) -> bool {
        self.schedule.last_at_end(self.clock) == 0
    }

    /// The last epoch closed by the clock.
    pub(super) fn due(&self) -> u64 {
        self.due
    }

    /// Whether the clock has closed epochs that no mark has closed yet.
    pub(super) fn is_due(&self) -> bool {
        self.due > self.closed
    }

    /// Whether times and not numbers of rows close epochs.
    pub(super) fn is_timed(&self) -> bool {
        matches!(self.schedule, Schedule::ByTime(_))
    }

    /// Whether the last epoch is closed.
    pub(super) fn is_over(&self) -> bool {
        self.closed >= self.schedule.horizon()
    }

    /// Whether any row has moved the clock.
    pub(super) fn has_begun(&self) -> bool {
        self.clock.time != Clock::START.time
    }

    /// Whether all epochs would be published without records.
    pub(super) fn begins_after_horizon(&self) -> bool {
        self.closed == 0 && self.due >= self.schedule.horizon()
    }

    /// Returns the number of the first row for which a closed epoch means late; 0 if unknown.
    pub(super) fn late_from(&self) -> u64 {
        if self.late_from == u64::MAX { 0 } else { self.late_from }
    }

    /// As [`late_from`](Self::late_from), in the form that positions record: `u64::MAX` if unknown.
    pub(super) fn late_row(&self) -> u64 {
        self.late_from
    }

    /// Starts a row.
    pub(super) fn begin_row(&mut self) {
        if self.clock.row >= self.late_from {
            // An earlier run closed these epochs without waiting for this row.
            (self.clock.closed, self.late_from) = (self.clock.closed.max(self.closed), u64::MAX);
        }
    }

    /// Ends a row, after it has moved the clock.
    pub(super) fn end_row(&mut self) {
        self.clock.row += 1;
        self.due = self.schedule.oldest_open(self.clock) - 1;
    }

    /// Ends the input. A later run reads the last rows again if their clock leaps.
    pub(super) fn end(&mut self) {
        self.due = self.schedule.last_at_end(self.clock);
        // Applies to rows that a later run finds after this end.
        self.clock.closed = self.due;
        if let Some(FirstLeap { resume, .. }) = self.first_leap {
            self.note(u64::MAX, ResumePoint { clock: Clock { closed: self.due, ..resume.clock }, ..resume });
        }
    }

    /// Whether a row's clock value is implausibly far ahead. Before its first row, the clock is at
    /// the start of the first epoch. The row begins at `before`, on this line.
    pub(super) fn leaps(&mut self, arrival: i64, before: ResumePoint, line: u64) -> bool {
        let (Some(largest), Schedule::ByTime(by)) = (self.largest_jump, &self.schedule) else { return false };
        let jump = arrival.saturating_sub(self.clock.time.max(by.start));
        if jump <= largest {
            return false;
        }
        self.leaps += 1;
        let times = (arrival, arrival);
        let new = FirstLeap { resume: before, line, jump, times, never_rises: true };
        let first = self.first_leap.get_or_insert(new);
        first.jump = jump.min(first.jump);
        first.never_rises &= arrival <= first.times.1;
        first.times.1 = arrival;
        true
    }

    /// Moves the clock to the public time of the current row. Counts a time outside of the epochs,
    /// or in an epoch that the clock has closed.
    pub(super) fn advance(&mut self, arrival: i64, counters: &mut RowCounters) {
        (self.leaps, self.first_leap) = (0, None);
        if let Schedule::ByTime(_) = self.schedule {
            let epoch = self.schedule.least_epoch(arrival, Clock { time: arrival, ..Clock::START });
            let oldest_open = if self.has_begun() { self.schedule.oldest_open(self.clock) } else { 1 };
            match u64::try_from(epoch) {
                Ok(epoch) if epoch > self.schedule.horizon() => counters.past_clock += 1,
                Ok(epoch) if epoch > 0 => counters.behind_clock += u64::from(epoch < oldest_open),
                // Once the first epoch is closed, a row from before it shows a clock that falls
                // back, and not a wrong start.
                _ if oldest_open > 1 => counters.behind_clock += 1,
                _ => counters.early_clock += 1,
            }
        }
        self.clock.advance(arrival);
        self.arrived = arrival;
    }

    /// Returns the epoch that the current record joins, if any.
    pub(super) fn assign(&mut self, event_time: i64, counters: &mut RowCounters) -> Option<u64> {
        let counted_before = i64::try_from(self.counted_before).unwrap_or(i64::MAX);
        // An earlier run may have seen this row by an earlier clock, but not by one before its own
        // arrival.
        let clock = Clock { time: self.arrived, ..self.clock };
        if counted_before > 0 && self.schedule.least_epoch(event_time, clock) <= counted_before {
            counters.already_closed += 1;
            return None;
        }
        let assignment = self.schedule.assign(event_time, self.clock);
        match assignment {
            Assignment::Epoch(_) => {}
            Assignment::Late(_) => counters.folded += 1,
            Assignment::Dropped(DropReason::Late) => counters.late += 1,
            Assignment::Dropped(DropReason::BeforeStart) => counters.before_start += 1,
            Assignment::Dropped(DropReason::AfterHorizon) => counters.after_horizon += 1,
        }
        // A row of a closed epoch was read again on the way to the first uncommitted one.
        assignment.epoch().filter(|&epoch| epoch > self.closed)
    }

    /// Notes that the row that begins at `before` holds a record of this epoch.
    pub(super) fn note(&mut self, epoch: u64, before: ResumePoint) {
        if self.firsts.back().is_none_or(|&(last, _)| last < epoch) {
            self.firsts.push_back((epoch, before));
        }
    }

    /// Closes as many due epochs as share a position to resume from. That is the first row of a
    /// later epoch, or the next row if there is none.
    pub(super) fn mark(&mut self, next: ResumePoint) -> EpochMark {
        while self.firsts.front().is_some_and(|&(epoch, _)| epoch <= self.closed + 1) {
            self.firsts.pop_front();
        }
        let (epoch, resume) = match self.firsts.front() {
            Some(&(epoch, first)) => (self.due.min(epoch - 1), first),
            None => (self.due, next),
        };
        self.closed = epoch;
        EpochMark { epoch, due: self.due, resume, rows: self.clock.row, read: next.position }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Pipeline;

    fn source() -> Source {
        let text = "name = 'n'\nsource.path = '-'\nsource.format = 'csv'\nsource.largest_jump = '100s'\n\
            columns = [{ name = 'x', lower = 0, upper = 1 }]\nprivacy = { epsilon = 1, delta = 1e-6 }\n\
            epochs = { time = 'e', arrival = 'a', start = '1970-01-01', length = '10s', horizon = 100 }";
        Pipeline::parse(text, "p.toml".as_ref()).expect("a valid file").sources.remove(0)
    }

    /// Clocks that resume after the third epoch, from two positions. They differ because records
    /// before its end lie in different epochs.
    fn resumed(source: &Source, restarts: bool) -> [EpochClock; 2] {
        [12_000_000, 27_000_000].map(|time| {
            let clock = Clock { time, ..Clock::START };
            EpochClock::new(source, ResumePoint { clock, ..ResumePoint::START }, 3, restarts)
        })
    }

    #[test]
    fn a_new_input_begins_at_the_public_end_of_the_last_epoch() {
        let source = source();
        for clock in resumed(&source, true) {
            assert_eq!(clock.clock, Clock { time: 30_000_000, row: 0, closed: 3 });
            assert!(!clock.reads_again());
        }
    }

    #[test]
    fn rows_are_read_again_up_to_the_one_that_closed_the_last_epoch() {
        let source = source();
        for mut clock in resumed(&source, false) {
            assert!(clock.reads_again());
            for (arrival, is_old) in [(28, true), (29, true), (31, false), (45, false)] {
                clock.begin_row();
                clock.advance(arrival * 1_000_000, &mut RowCounters::default());
                clock.end_row();
                assert_eq!(clock.reads_again(), is_old, "{arrival}");
            }
        }
    }

    /// A row from before the first epoch is early until that epoch is closed. Then the clock has
    /// fallen back.
    #[test]
    fn the_clock_falls_back_to_before_the_first_epoch() {
        let mut clock = EpochClock::new(&source(), ResumePoint::START, 0, false);
        let mut counters = RowCounters::default();
        for (arrival, early, behind) in [(-5, 1, 0), (4, 1, 0), (-5, 2, 0), (23, 2, 0), (-5, 2, 1), (4, 2, 2)]
        {
            clock.begin_row();
            clock.advance(arrival * 1_000_000, &mut counters);
            clock.end_row();
            assert_eq!((counters.early_clock, counters.behind_clock), (early, behind), "{arrival}");
        }
    }
}
