//! A survey of the rows of a source, for the operator only: defects by column, unlisted keys,
//! times.
//!
//! All of it is private, exact, and kept in memory only. It explains counts; only the
//! [check](crate::check) of the first rows decides by it, and no release depends on it.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{Defect, RowCounters, Stretches, ValueSurvey};
use crate::format::row::Row;
use crate::time::ClockChange;

/// Maximum number of distinct unlisted keys that are kept.
const UNLISTED_KEYS: usize = 1000;

/// Maximum number of steps of a clock that are kept.
const LARGEST_STEPS: usize = 3;

/// Number of first rows whose times are searched for offsets from UTC, and, in a run, whose values
/// are compared with their bounds.
pub(super) const SEARCHED_ROWS: u64 = 4096;

/// Bytes of the [padded](RowSurvey::padded) form without its columns. The longest survey has fewer.
const PADDED_BYTES: usize = 2048;

/// Bytes of a column in the padded form without its name. The longest column has fewer.
const PADDED_COLUMN_BYTES: usize = 512;

/// Private facts about the rows of a source.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct RowSurvey {
    /// One for each wanted column: the values first, those only for histograms, then key, entity,
    /// times and id.
    pub columns: Vec<ColumnSurvey>,
    /// Number of rows that are unusable as a whole.
    pub whole_rows: u64,
    /// The defect of the first of them.
    pub row_defect: Option<Defect>,
    /// Keys that the pipeline doesn't list, with the number of their rows: the first thousand.
    pub unlisted_keys: HashMap<Vec<u8>, u64>,
    /// Event times.
    pub events: TimeSurvey,
    /// Values of the clock, if a column moves it.
    pub clocks: TimeSurvey,
    /// The largest steps of the clock from one row to the next, the largest first.
    pub steps: Vec<ClockStep>,
    /// Rows whose clock value is before that of an earlier row.
    pub backward_steps: u64,
    /// Rows whose event time is after their clock value.
    pub early_events: u64,
    /// Rows by the seconds from event to clock: entry 0 counts delays below 1, entry i those from
    /// 2^(i − 1) to below 2^i, and the last entry all longer ones.
    pub delays: [u64; 32],
    /// The longest stretches of rows that don't count.
    pub stretches: Stretches,
    /// Outcomes of the rows up to the last one before the first epoch, if it comes before all rows
    /// of an epoch.
    pub early: RowCounters,
}

/// Defects of a wanted column.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct ColumnSurvey {
    /// Name of the column.
    pub name: String,
    /// Rows without a value.
    pub missing: u64,
    /// Rows with a value that can't be read.
    pub malformed: u64,
    /// The first such defect.
    pub defect: Option<Defect>,
    /// Unreadable times that are whole numbers, such as seconds since 1970.
    pub numeric_times: u64,
    /// Its values compared with its bounds.
    pub values: ValueSurvey,
    /// Rows with and without a bin, if it is only for a histogram.
    pub bins: BinSurvey,
}

/// Rows by whether a histogram has a bin for them.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub struct BinSurvey {
    /// Number of rows with a value.
    pub with: u64,
    /// Rows with a value that can't be read or is not listed.
    pub without: u64,
    /// Rows without a value.
    pub missing: u64,
}

impl BinSurvey {
    /// Rows with a value.
    pub fn values(&self) -> u64 {
        self.with + self.without
    }
}

/// Times of a column, in microseconds since 1970.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub struct TimeSurvey {
    /// The earliest and the latest.
    pub range: Option<(i64, i64)>,
    /// Times without an offset from UTC, among the first rows.
    pub without_offset: u64,
    /// Local times that the time zone skips as clocks go forward.
    pub skipped: u64,
    /// Local times that come twice as clocks go back.
    pub repeated: u64,
}

/// A step of the clock from one row to the next, in microseconds since 1970.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct ClockStep {
    /// The clock before the row.
    pub from: i64,
    /// The clock value of the row.
    pub to: i64,
    /// The line of the row.
    pub line: u64,
}

impl RowSurvey {
    pub(super) fn new(columns: &[String]) -> Self {
        let columns =
            columns.iter().map(|name| ColumnSurvey { name: name.clone(), ..ColumnSurvey::default() });
        RowSurvey { columns: columns.collect(), ..RowSurvey::default() }
    }

    /// Notes the clock value of a row, and its text, if it is known. The clock is at `clock` before
    /// it.
    pub(super) fn clock(
        &mut self,
        clock: i64,
        arrival: i64,
        text: Option<(&Row, usize)>,
        line: u64,
        number: u64,
    ) {
        self.clocks.add(arrival, text, number);
        if clock == i64::MIN {
            return;
        }
        self.backward_steps += u64::from(arrival < clock);
        let step = arrival.saturating_sub(clock);
        let least = self.steps.get(LARGEST_STEPS - 1).map_or(0, |step| step.to.saturating_sub(step.from));
        if step > least {
            let larger = |kept: &ClockStep| kept.to.saturating_sub(kept.from) >= step;
            let position = self.steps.partition_point(larger);
            self.steps.insert(position, ClockStep { from: clock, to: arrival, line });
            self.steps.truncate(LARGEST_STEPS);
        }
    }

    /// Notes the event time of a row, its text, if it is known, and its delay if a clock has a
    /// value.
    pub(super) fn event(&mut self, event: i64, clock: Option<i64>, text: Option<(&Row, usize)>, number: u64) {
        self.events.add(event, text, number);
        if let Some(clock) = clock {
            let delay = clock.saturating_sub(event);
            if delay < 0 {
                self.early_events += 1;
                return;
            }
            let seconds = (delay / 1_000_000) as u64;
            let class = (u64::BITS - seconds.leading_zeros()) as usize;
            self.delays[class.min(self.delays.len() - 1)] += 1;
        }
    }

    /// Notes a row with an unlisted key.
    pub(super) fn unlisted(&mut self, key: &[u8]) {
        if let Some(rows) = self.unlisted_keys.get_mut(key) {
            *rows += 1;
        } else if self.unlisted_keys.len() < UNLISTED_KEYS {
            self.unlisted_keys.insert(key.to_vec(), 1);
        }
    }

    /// Notes a row that can't be used, because of a field unless it is the whole row. The values
    /// are the first `dimension` fields; all of them are examined.
    pub(super) fn unusable(&mut self, row: &Row, slot: Option<usize>, defect: Defect, dimension: usize) {
        let Some(slot) = slot else {
            self.whole_rows += 1;
            self.row_defect.get_or_insert(defect);
            return;
        };
        let digits = |text: &[u8]| text.iter().all(|byte| byte.is_ascii_digit());
        let numeric = row.text(slot).map_or_else(|_| row.number(slot).is_ok(), digits);
        self.columns[slot].add(defect);
        self.columns[slot].numeric_times += u64::from(defect == Defect::NotATime && numeric);
        for other in (0..dimension).filter(|&other| other != slot && slot < dimension) {
            if let Err(defect) = row.number(other) {
                self.columns[other].add(defect);
            }
        }
    }

    /// Notes whether a histogram of a column has a bin for a row, or whether the row lacks a value.
    pub(super) fn binned(&mut self, slot: usize, has_bin: bool, is_missing: bool) {
        let bins = &mut self.columns[slot].bins;
        let count = match (has_bin, is_missing) {
            (true, _) => &mut bins.with,
            (false, false) => &mut bins.without,
            (false, true) => &mut bins.missing,
        };
        *count += 1;
    }

    /// Compares the values of a record with their bounds. `row` is the number of its row, from 0.
    pub(super) fn values(&mut self, values: &[f64], bounds: impl Iterator<Item = (f64, f64)>, row: u64) {
        for ((column, &value), bounds) in self.columns.iter_mut().zip(values).zip(bounds) {
            if !value.is_nan() {
                column.values.compare(value, bounds, row);
            }
        }
    }

    /// Adds the survey of the rows of another source, or of other rows of the same one.
    pub fn merge(&mut self, other: &RowSurvey) {
        self.early += other.early;
        for column in &other.columns {
            match self.columns.iter_mut().find(|own| own.name == column.name) {
                None => self.columns.push(column.clone()),
                Some(own) => {
                    own.missing += column.missing;
                    own.malformed += column.malformed;
                    own.defect = own.defect.or(column.defect);
                    own.numeric_times += column.numeric_times;
                    own.values.merge(&column.values);
                    own.bins.with += column.bins.with;
                    own.bins.without += column.bins.without;
                    own.bins.missing += column.bins.missing;
                }
            }
        }
        self.whole_rows += other.whole_rows;
        self.row_defect = self.row_defect.or(other.row_defect);
        for (key, rows) in &other.unlisted_keys {
            if let Some(own) = self.unlisted_keys.get_mut(key) {
                *own += rows;
            } else if self.unlisted_keys.len() < UNLISTED_KEYS {
                self.unlisted_keys.insert(key.clone(), *rows);
            }
        }
        self.events.merge(&other.events);
        self.clocks.merge(&other.clocks);
        self.steps.extend(&other.steps);
        self.steps.sort_by_key(|step| step.from.saturating_sub(step.to));
        self.steps.truncate(LARGEST_STEPS);
        self.backward_steps += other.backward_steps;
        self.early_events += other.early_events;
        self.delays.iter_mut().zip(other.delays).for_each(|(own, more)| *own += more);
        self.stretches.merge(&other.stretches);
    }

    /// Returns a form for another process, without unlisted keys. It is padded, so that its length
    /// does not depend on the rows.
    pub(crate) fn padded(&self) -> Vec<u8> {
        let unlisted_keys = HashMap::new();
        let bytes = bincode::serialize(&RowSurvey { unlisted_keys, ..self.clone() });
        let mut bytes = bytes.unwrap_or_default();
        let columns = self.columns.iter().map(|column| PADDED_COLUMN_BYTES + column.name.len());
        bytes.resize(PADDED_BYTES + columns.sum::<usize>(), 0);
        bytes
    }

    /// Reads the form that [`padded`](Self::padded) returns.
    pub(crate) fn of_padded(bytes: &[u8]) -> Option<Self> {
        bincode::deserialize_from(bytes).ok()
    }

    /// Returns a number of seconds, a power of two, such that at least this share of the delays
    /// from event to clock is shorter; `None` without delays.
    pub fn delay_within(&self, share: f64) -> Option<u64> {
        let all: u64 = self.delays.iter().sum();
        let mut sum = 0;
        let reached = self.delays.iter().position(|&rows| {
            sum += rows;
            all > 0 && sum as f64 >= share * all as f64
        });
        reached.map(|class| 1 << class)
    }
}

impl ColumnSurvey {
    fn add(&mut self, defect: Defect) {
        if defect == Defect::Missing {
            self.missing += 1;
        } else {
            self.malformed += 1;
            self.defect.get_or_insert(defect);
        }
    }
}

impl TimeSurvey {
    fn add(&mut self, time: i64, text: Option<(&Row, usize)>, number: u64) {
        let (first, last) = self.range.unwrap_or((time, time));
        self.range = Some((first.min(time), last.max(time)));
        if let Some((row, slot)) = text.filter(|_| number < SEARCHED_ROWS) {
            self.without_offset += u64::from(row.text(slot).is_ok_and(|text| !has_offset(text)));
        }
    }

    /// Counts a local time at which clocks change.
    pub(super) fn note_change(&mut self, change: Option<ClockChange>) {
        match change {
            Some(ClockChange::Skipped) => self.skipped += 1,
            Some(ClockChange::Repeated) => self.repeated += 1,
            None => {}
        }
    }

    fn merge(&mut self, other: &TimeSurvey) {
        self.without_offset += other.without_offset;
        self.skipped += other.skipped;
        self.repeated += other.repeated;
        let both = self.range.zip(other.range);
        self.range = both.map(|(a, b)| (a.0.min(b.0), a.1.max(b.1))).or(self.range).or(other.range);
    }
}

/// Whether a time ends with an offset from UTC, or is a date, which needs no offset.
fn has_offset(time: &[u8]) -> bool {
    let clock = time.iter().position(|byte| matches!(byte, b'T' | b't' | b' '));
    clock.is_none_or(|at| time[at + 1..].iter().any(|byte| matches!(byte, b'Z' | b'z' | b'+' | b'-')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_found() {
        let check = |time: &str, expected| assert_eq!(has_offset(time.as_bytes()), expected, "{time}");
        check("2013-01-01T05:00:00Z", true);
        check("2013-01-01 05:00:00-05:00", true);
        check("2013-01-01T05:00+01", true);
        check("2013-01-01", true);
        check("2013-01-01T05:00:00", false);
        check("2013-01-01 05:00", false);
    }

    /// The length is the same for a survey in which every field is set.
    #[test]
    fn padded_surveys_have_one_length_and_arrive() {
        let mut survey = RowSurvey::new(&["name".into(), "x".into()]);
        let empty = survey.padded();
        survey.row_defect = Some(Defect::FieldCount);
        survey.unlisted(b"unlisted");
        survey.steps = vec![ClockStep { from: 1, to: 2, line: 3 }; LARGEST_STEPS];
        survey.events.range = Some((1, 2));
        survey.clocks.range = Some((3, 4));
        for column in &mut survey.columns {
            column.defect = Some(Defect::Continued);
            (0..50).for_each(|row| column.values.compare(7.0, (0.0, 1.0), row));
        }
        let mut counters = super::super::RowCounters::default();
        for rows in 1..100 {
            (counters.rows, counters.unknown_key, counters.behind_clock) = (rows, rows, rows);
            survey.stretches.note(&counters);
        }
        let full = bincode::serialized_size(&survey).unwrap() as usize;
        assert!(full < empty.len(), "{full} bytes");
        let padded = survey.padded();
        assert_eq!(padded.len(), empty.len());
        let arrived = RowSurvey::of_padded(&padded).unwrap();
        assert!(arrived.unlisted_keys.is_empty());
        survey.unlisted_keys.clear();
        assert!(bincode::serialize(&arrived).unwrap() == bincode::serialize(&survey).unwrap());
    }

    #[test]
    fn the_largest_steps_are_kept() {
        let (mut survey, row) = (RowSurvey::default(), Row::default());
        let mut clock = i64::MIN;
        for (line, time) in [0, 5, 6, 20, 19, 50, 51].into_iter().enumerate() {
            survey.clock(clock, time, Some((&row, 0)), line as u64, u64::MAX);
            clock = clock.max(time);
        }
        let steps: Vec<_> = survey.steps.iter().map(|step| (step.to - step.from, step.line)).collect();
        assert_eq!(steps, [(30, 5), (14, 3), (5, 1)]);
        assert_eq!((survey.backward_steps, survey.clocks.range), (1, Some((0, 51))));
    }

    #[test]
    fn delays_are_classed() {
        let (mut survey, row) = (RowSurvey::default(), Row::default());
        assert_eq!(survey.delay_within(0.5), None);
        for seconds in [0, 1, 3, 100] {
            survey.event(0, Some(1_000_000 * seconds), Some((&row, 0)), u64::MAX);
        }
        assert_eq!((survey.delay_within(0.5), survey.delay_within(1.0)), (Some(2), Some(128)));
        survey.event(9_000_000, Some(0), Some((&row, 0)), u64::MAX);
        assert_eq!((survey.early_events, survey.delays.iter().sum::<u64>()), (1, 4));
    }
}
