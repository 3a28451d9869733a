//! Turns a row into a record of an epoch, or counts the reason why it can't.

use super::content::{RowContent, RowOutcome, UnusableRow};
use super::ranges::{LeapNotice, TakenRow};
use super::{ResumePoint, SourceReader};
use crate::connect::SourceError;
use crate::format::Defect;
use crate::pipeline::{MOST_KEYS, MissingPolicy, RowPolicies, RowPolicy};
use crate::time::{ClockChange, TimeFormat, local_time};

const LEAP: &str = "a row's clock is further ahead than largest_jump allows: this row and others like it are not counted; if the \
    time is right, stop the run and start it again with a larger largest_jump: the rows will be read again";

const NEWEST_FIRST: &str = "the clock goes back from row to row at the beginning, where it is further ahead than largest_jump allows, \
    so these rows are not counted: if the newest rows come first, sort them by the column of the clock";

/// Number of consecutive rows with a leaping clock after which reading stops, unless the input has
/// no end.
const LEAPS_IN_A_ROW: u64 = 100;

/// Microseconds of a day.
const DAY: u64 = 86_400_000_000;

impl SourceReader {
    /// Adds a row, which begins at `before`, to the batch, or counts why it can't be used. A row
    /// that was not parsed ahead is the current one of the row reader.
    ///
    /// # Errors
    /// If the pipeline's policy rejects the row.
    pub(super) fn accept(
        &mut self,
        before: ResumePoint,
        taken: Option<&TakenRow>,
    ) -> Result<(), SourceError> {
        self.joined = 0;
        let clock = match taken {
            None => self.rules.clock(&self.rows.row, &mut self.survey),
            Some(taken) => taken.clock(self.rules.roles.clock.is_some()),
        };
        let arrival = match clock {
            Ok(arrival) => arrival,
            Err(unusable) => return self.refuse(unusable),
        };
        if let (Some(arrival), Some(slot)) = (arrival, self.rules.roles.clock) {
            let clock = self.epochs.clock;
            let text = taken.is_none().then_some((&self.rows.row, slot));
            self.survey.clock(clock.time, arrival, text, self.line, clock.row);
            if taken.is_none() {
                let change = self.clock_change(slot, arrival);
                self.survey.clocks.note_change(change);
            }
            // After the last epoch a leap closes no epoch.
            if !self.epochs.is_over() && self.leaps(arrival, before) {
                return Ok(());
            }
            self.epochs.advance(arrival, &mut self.counters);
        }
        let values = &mut self.batch.records.values;
        let start = values.len();
        let content = match (taken, &self.ranges) {
            (Some(taken), Some(ranges)) => ranges.content(taken, values),
            _ => self.rules.content(&self.rows.row, values, &mut self.survey),
        };
        if let (Some(event), Some(slot)) = (content.event, self.rules.roles.time) {
            let clock = self.rules.roles.clock.map(|_| self.epochs.arrived());
            let text = taken.is_none().then_some((&self.rows.row, slot));
            self.survey.event(event, clock, text, self.epochs.clock.row);
            if taken.is_none() {
                let change = self.clock_change(slot, event);
                self.survey.events.note_change(change);
            }
        }
        match content.outcome {
            RowOutcome::Unlisted => {
                self.counters.unknown_key += 1;
                return Ok(());
            }
            RowOutcome::Unusable(unusable) => return self.refuse(unusable),
            RowOutcome::Partial(unusable) => *self.counters.of_defect(unusable.defect) += 1,
            RowOutcome::Record | RowOutcome::Blank(_) => {}
        }
        self.place(&content, before, start);
        if let RowOutcome::Blank(unusable) = content.outcome { self.refuse(unusable) } else { Ok(()) }
    }

    /// Assigns a record to its epoch. Its values begin at `start` in the batch.
    fn place(&mut self, content: &RowContent, before: ResumePoint, start: usize) {
        let (row, key) = (self.epochs.clock.row, content.key);
        let values = &mut self.batch.records.values[start..];
        if row < self.surveyed_rows.saturating_add(self.survey.early.rows) {
            self.survey.values(values, self.rules.bounds_of(key), row);
        }
        self.rules.key_bounds.scale(key, values);
        let Some(epoch) = self.epochs.assign(content.event.unwrap_or(0), &mut self.counters) else {
            self.batch.records.values.truncate(start);
            return;
        };
        self.joined = epoch;
        self.epochs.note(epoch, before);
        self.batch.fingerprints.extend(content.fingerprint);
        let records = &mut self.batch.records;
        records.keys.push(key);
        records.epochs.push(epoch);
        records.entities.extend(content.entity);
        if self.rules.needs_positions {
            let (number, sources) = self.rank;
            records.positions.push(row.saturating_mul(sources).saturating_add(number));
        }
    }

    /// Returns whether the time zone skips or repeats the local time in a field, which was read as
    /// `time`.
    fn clock_change(&mut self, slot: usize, time: i64) -> Option<ClockChange> {
        let (row, times) = (&self.rows.row, &self.rules.roles.times);
        let local = || local_time(row.text(slot).ok()?, times.format.as_ref());
        let search = self.changes.as_mut().filter(|_| self.epochs.clock.row < self.surveyed_rows);
        search.and_then(|search| search.at(time, local))
    }

    /// Returns whether the clock value of a row is implausibly far ahead, and counts the row if so.
    fn leaps(&mut self, arrival: i64, before: ResumePoint) -> bool {
        let leaps = self.epochs.leaps(arrival, before, self.line);
        let has_begun = self.epochs.has_begun();
        // If the first rows leap, the notice waits for a row that does not. If there is no such
        // row, an error explains more.
        let is_due = match leaps {
            true => self.is_live || has_begun,
            false => self.counters.clock_jump > 0 && !self.is_live && !has_begun,
        };
        let is_due = is_due && !self.epochs.reads_again();
        if is_due {
            let goes_back = !leaps && self.epochs.first_leap().is_some_and(|first| first.goes_back());
            self.notice_leap(if goes_back { LeapNotice::NewestFirst } else { LeapNotice::Leap });
        }
        self.counters.clock_jump += u64::from(leaps);
        leaps
    }

    /// Informs the operator of rows whose clock leaps, unless that was done before.
    pub(super) fn notice_leap(&mut self, notice: LeapNotice) {
        let text = match notice {
            LeapNotice::None => return,
            LeapNotice::Leap => LEAP,
            LeapNotice::NewestFirst => NEWEST_FIRST,
        };
        if self.leap_notice == LeapNotice::None {
            self.leap_notice = notice;
            self.control.notice(&format!("{}: {text}", self.rows.name().display()));
        }
    }

    /// Returns an error if [`LEAPS_IN_A_ROW`] consecutive rows leap, in an input that has an end:
    /// time has really passed, or the start is wrong.
    pub(super) fn check_leaps(&self) -> Result<(), SourceError> {
        if self.is_live || self.epochs.leaps_in_a_row() < LEAPS_IN_A_ROW {
            return Ok(());
        }
        Err(self.leap_error())
    }

    /// Returns an error if there are more keys than a run can have. If some were left out, the
    /// release of a key would depend on other keys.
    pub(super) fn check_keys(&self) -> Result<(), SourceError> {
        match &self.rules.roles.key {
            Some((_, numbers)) if numbers.are_too_many() => {
                Err(SourceError::Keys { path: self.rows.name(), line: self.line, most: MOST_KEYS })
            }
            _ => Ok(()),
        }
    }

    /// Returns an error if the input ends and no row has moved the clock into an epoch.
    pub(super) fn check_end(&self) -> Result<(), SourceError> {
        let Some(slot) = self.rules.roles.clock.filter(|_| !self.is_live && self.rank.1 == 1) else {
            return Ok(());
        };
        if self.epochs.closed() > 0 || self.counters.rows == 0 {
            return Ok(());
        }
        if self.epochs.leaps_in_a_row() > 0 && !self.epochs.has_begun() {
            return Err(self.leap_error());
        }
        let (path, column) = (self.rows.name(), self.rows.column(slot));
        match self.epochs.has_begun() {
            false => Err(SourceError::NoClock { path, column, expected: self.expected_time(slot) }),
            true if self.epochs.is_before_start() => {
                Err(SourceError::BeforeStart { path, column, unit: self.unit_doubt() })
            }
            true => Ok(()),
        }
    }

    fn leap_error(&self) -> SourceError {
        let since = if self.epochs.has_begun() { "the row before" } else { "start in [epochs]" };
        let rows = match self.epochs.leaps_in_a_row() {
            1 => "a row is",
            LEAPS_IN_A_ROW.. => "many rows in a row are",
            _ => "the last rows are",
        };
        let first = self.epochs.first_leap();
        let (line, jump) = first.map_or((0, 0), |first| (first.line, first.jump));
        if first.is_some_and(|first| first.goes_back()) {
            return SourceError::NewestFirst { path: self.rows.name(), line };
        }
        // One day more, because later rows may be slightly out of order.
        let days = jump.unsigned_abs().div_ceil(DAY) + 1;
        SourceError::Leap { path: self.rows.name(), line, rows, since, days, unit: self.unit_doubt() }
    }

    /// Returns a doubt about the unit of times, if they are numbers since 1970.
    pub(super) fn unit_doubt(&self) -> String {
        match &self.rules.roles.times.format {
            Some(format @ TimeFormat::SinceEpoch(_)) => {
                format!("; or times are not in {}, as time_format in [source] says", format.name())
            }
            _ => String::new(),
        }
    }

    /// Returns the expected content of the clock's field, and the remedy if it holds numbers.
    fn expected_time(&self, slot: usize) -> String {
        let are_numbers = self.survey.columns[slot].numeric_times > 0;
        match &self.rules.roles.times.format {
            None if are_numbers => {
                "a date or an RFC 3339 time, but numbers: if they are seconds since 1970, add time_format = \"seconds\" to [source] \
                 (or \"milliseconds\", …)"
                    .into()
            }
            None => "a date or an RFC 3339 time".into(),
            Some(format) => format.expected(),
        }
    }

    /// Counts an unusable row, or stops with an error.
    fn refuse(&mut self, UnusableRow { slot, defect }: UnusableRow) -> Result<(), SourceError> {
        *self.counters.of_defect(defect) += 1;
        self.counters.unusable += 1;
        let RowPolicies { missing, malformed } = self.rules.policies;
        let rejects = match defect {
            Defect::Missing => missing == MissingPolicy::Reject,
            _ => malformed == RowPolicy::Reject,
        };
        if !rejects {
            return Ok(());
        }
        let column = slot.map(|slot| self.rows.column(slot.into()));
        let format = self.rules.roles.times.format.as_ref().filter(|_| defect == Defect::NotATime);
        let defect = match format {
            Some(format) => format!("expected {}, as time_format in [source] says", format.expected()),
            None => defect.to_string(),
        };
        Err(SourceError::Rejected { path: self.rows.name(), line: self.line, column, defect })
    }
}
