//! Turns a row into a record of an epoch, or counts the reason why it can't.

use hushflow_operators::Entity;

use super::roles::{FieldRoles, entity, fingerprint};
use super::{ResumePoint, SourceReader};
use crate::connect::SourceError;
use crate::format::Defect;
use crate::pipeline::{KeyBounds, MOST_KEYS, MissingPolicy, Pipeline, RowPolicies, RowPolicy};
use crate::time::{TimeFormat, local_time};

const LEAP: &str = "a row's clock is further ahead than largest_jump allows: this row and others like it are not counted; if the \
    time is right, stop the run and start it again with a larger largest_jump: the rows will be read again";

const NEWEST_FIRST: &str = "the clock goes back from row to row at the beginning, where it is further ahead than largest_jump allows, \
    so these rows are not counted: if the newest rows come first, sort them by the column of the clock";

/// Number of consecutive rows with a leaping clock after which reading stops, unless the input has
/// no end.
const LEAPS_IN_A_ROW: u64 = 100;

/// Microseconds of a day.
const DAY: u64 = 86_400_000_000;

/// The pipeline's rules for rows.
pub(super) struct RowRules {
    roles: FieldRoles,
    policies: RowPolicies,
    /// Whether a record with unusable values is passed on as NaN, because public counts must
    /// include it.
    counts_unusable: bool,
    key_bounds: KeyBounds,
    /// The columns' bounds.
    bounds: Vec<(f64, f64)>,
    /// Whether later steps need to know which record came first.
    needs_positions: bool,
}

impl RowRules {
    pub(super) fn new(pipeline: &Pipeline, roles: FieldRoles) -> Self {
        RowRules {
            roles,
            policies: pipeline.rows,
            counts_unusable: pipeline.privacy.neighbours.counts_are_public(),
            needs_positions: pipeline.entity.is_some() || pipeline.estimator.is_some(),
            key_bounds: KeyBounds::new(&pipeline.columns, pipeline.key.as_ref()),
            bounds: pipeline.columns.iter().map(|column| (column.lower, column.upper)).collect(),
        }
    }

    /// Returns the bounds of the values of a key.
    fn bounds_of(&self, key: u32) -> impl Iterator<Item = (f64, f64)> {
        let bounds = self.bounds.iter().enumerate();
        bounds.map(move |(column, &bounds)| self.key_bounds.of(key, column).unwrap_or(bounds))
    }
}

/// Why a row can't be used: the defect, and the field that has it, unless it is the whole row.
pub(super) struct UnusableRow {
    slot: Option<usize>,
    defect: Defect,
}

impl UnusableRow {
    fn of(slot: usize) -> impl FnOnce(Defect) -> UnusableRow {
        move |defect| UnusableRow { slot: Some(slot), defect }
    }
}

impl SourceReader {
    /// Adds the current row, which begins at `before`, to the batch. Returns why it can't be used,
    /// if so.
    pub(super) fn accept(&mut self, before: ResumePoint) -> Result<(), UnusableRow> {
        if let Some(defect) = self.rows.row.defect {
            return Err(UnusableRow { slot: None, defect });
        }
        if let Some(slot) = self.rules.roles.clock {
            let arrival = self.rows.row.time(slot, &self.rules.roles.times).map_err(UnusableRow::of(slot))?;
            let (clock, row, line) = (self.epochs.clock, &self.rows.row, self.rows.line());
            self.survey.clock(clock.time, arrival, (row, slot), line, clock.row);
            self.survey.clocks.skipped += u64::from(self.is_skipped(slot, arrival));
            // After the last epoch a leap closes none.
            if !self.epochs.is_over() && self.leaps(arrival, before) {
                return Ok(());
            }
            self.epochs.advance(arrival, &mut self.counters);
        }
        let event_time = match self.rules.roles.time {
            Some(slot) => self.rows.row.time(slot, &self.rules.roles.times).map_err(UnusableRow::of(slot))?,
            None => 0,
        };
        if let Some(slot) = self.rules.roles.time {
            let clock = self.rules.roles.clock.map(|_| self.epochs.arrived());
            self.survey.event(event_time, clock, (&self.rows.row, slot), self.epochs.clock.row);
            self.survey.events.skipped += u64::from(self.is_skipped(slot, event_time));
        }
        let Some(key) = self.key()? else {
            self.counters.unknown_key += 1;
            return Ok(());
        };
        let entity = self.entity()?;
        if let Some(slot) = self.rules.roles.id {
            self.rows.row.text(slot).map_err(UnusableRow::of(slot))?;
        }
        let start = self.batch.records.values.len();
        let read = self.read_values();
        if read.is_err() {
            self.batch.records.values.truncate(start);
            if !self.rules.counts_unusable {
                return read;
            }
            let width = self.rules.roles.dimension + self.rules.roles.extra.len();
            self.batch.records.values.resize(start + width, f64::NAN);
        }
        if self.epochs.clock.row < self.surveyed_rows {
            let row = self.epochs.clock.row;
            self.survey.values(&self.batch.records.values[start..], self.rules.bounds_of(key), row);
        }
        self.rules.key_bounds.scale(key, &mut self.batch.records.values[start..]);
        match self.epochs.assign(event_time, &mut self.counters) {
            None => self.batch.records.values.truncate(start),
            Some(epoch) => {
                let fingerprint = self.fingerprint(key, event_time, entity, start);
                self.batch.fingerprints.extend(fingerprint);
                let records = &mut self.batch.records;
                records.keys.push(key);
                records.epochs.push(epoch);
                records.entities.extend(entity);
                if self.rules.needs_positions {
                    let (number, sources) = self.rank;
                    records
                        .positions
                        .push(self.epochs.clock.row.saturating_mul(sources).saturating_add(number));
                }
                self.epochs.note(epoch, before);
            }
        }
        read
    }

    /// Whether the time zone skips the local time in a field, which was read as `time`.
    fn is_skipped(&mut self, slot: usize, time: i64) -> bool {
        let (row, times) = (&self.rows.row, &self.rules.roles.times);
        let local = || local_time(row.text(slot).ok()?, times.format.as_ref());
        let search = self.skipped.as_mut().filter(|_| self.epochs.clock.row < self.surveyed_rows);
        search.is_some_and(|search| search.has(time, local))
    }

    /// Returns whether the clock value of a row is implausibly far ahead, and counts the row if so.
    fn leaps(&mut self, arrival: i64, before: ResumePoint) -> bool {
        let leaps = self.epochs.leaps(arrival, before, self.rows.line());
        let has_begun = self.epochs.has_begun();
        // If the first rows leap, the notice waits for one that does not. Without one, an error
        // says more.
        let is_due = match leaps {
            true => self.is_live || has_begun,
            false => self.counters.leaping_clock > 0 && !self.is_live && !has_begun,
        };
        let is_due = is_due && !self.epochs.reads_again();
        if is_due && !std::mem::replace(&mut self.has_noticed_leap, true) {
            let goes_back = !leaps && self.epochs.first_leap().is_some_and(|first| first.goes_back());
            let notice = if goes_back { NEWEST_FIRST } else { LEAP };
            self.control.notice(&format!("{}: {notice}", self.rows.name().display()));
        }
        self.counters.leaping_clock += u64::from(leaps);
        leaps
    }

    /// Returns a fingerprint of the record whose values begin at `start` in the batch, to recognise
    /// duplicates. It covers everything if a record may be replaced by any other; if only values
    /// may be replaced, it leaves them out.
    fn fingerprint(&self, key: u32, event_time: i64, entity: Option<Entity>, start: usize) -> Option<u128> {
        let id = self.rows.row.text(self.rules.roles.id?).ok()?;
        let values = &self.batch.records.values[start..];
        let values = if self.rules.counts_unusable { &values[..0] } else { values };
        Some(fingerprint(id, key, event_time, entity, values))
    }

    /// Returns an error if the input ends while its clock leaps: time has really passed, or the
    /// start is wrong.
    pub(super) fn check_leaps(&self) -> Result<(), SourceError> {
        if self.is_live || self.epochs.leaps_in_a_row() < LEAPS_IN_A_ROW {
            return Ok(());
        }
        Err(self.leap_error())
    }

    /// Returns an error if there are more keys than a run can have. To leave some out would make
    /// one key depend on others.
    pub(super) fn check_keys(&self) -> Result<(), SourceError> {
        match &self.rules.roles.key {
            Some((_, numbers)) if numbers.are_too_many() => {
                Err(SourceError::Keys { path: self.rows.name(), line: self.rows.line(), most: MOST_KEYS })
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

    /// Doubts the unit of times that are numbers since 1970, if they are.
    pub(super) fn unit_doubt(&self) -> String {
        match &self.rules.roles.times.format {
            Some(format @ TimeFormat::SinceEpoch(_)) => {
                format!("; or times are not in {}, as time_format in [source] says", format.name())
            }
            _ => String::new(),
        }
    }

    /// Says what the field of the clock should hold, and how to go on if it holds numbers.
    fn expected_time(&self, slot: usize) -> String {
        let are_numbers = self.survey.columns[slot].numeric_times > 0;
        match &self.rules.roles.times.format {
            None if are_numbers => {
                "a date or an RFC 3339 time, but numbers: if they are seconds since 1970, add time_format = \"seconds\" to [source] \
                 (or \"milliseconds\", …)"
                    .into()
            }
            None => "a date or an RFC 3339 time".into(),
            Some(TimeFormat::Pattern(pattern)) => format!("a time of the pattern {pattern:?}"),
            Some(format) => format!("a time of our days in {} since 1970", format.name()),
        }
    }

    fn key(&mut self) -> Result<Option<u32>, UnusableRow> {
        let Some((slot, numbers)) = &self.rules.roles.key else { return Ok(Some(0)) };
        let text = self.rows.row.text(*slot).map_err(UnusableRow::of(*slot))?;
        let key = numbers.get(text);
        if key.is_none() {
            self.survey.unlisted(text);
        }
        Ok(key)
    }

    /// Returns the entity of the record, if entities are protected.
    fn entity(&self) -> Result<Option<Entity>, UnusableRow> {
        let Some(slot) = self.rules.roles.entity else { return Ok(None) };
        let name = self.rows.row.text(slot).map_err(UnusableRow::of(slot))?;
        Ok(Some(entity(name)))
    }

    /// Reads the values of all columns. With `missing = "by-column"` an unusable one is NaN, and
    /// only a row without any value is unusable.
    fn read_values(&mut self) -> Result<(), UnusableRow> {
        let RowPolicies { missing, malformed } = self.rules.policies;
        let mut unusable: Option<UnusableRow> = None;
        let mut usable = 0;
        for slot in 0..self.rules.roles.dimension {
            let value = self.rows.row.number(slot).map_err(UnusableRow::of(slot));
            let value = value.or_else(|row| {
                let skips = row.defect == Defect::Missing || malformed == RowPolicy::Skip;
                if missing != MissingPolicy::ByColumn || !skips {
                    return Err(row);
                }
                unusable.get_or_insert(row);
                Ok(f64::NAN)
            })?;
            usable += usize::from(!value.is_nan());
            self.batch.records.values.push(value);
        }
        if usable > 0 {
            self.read_extra();
        }
        match unusable {
            Some(row) if usable == 0 => Err(row),
            Some(row) => {
                *self.counters.of_defect(row.defect) += 1;
                let dimension = self.rules.roles.dimension;
                self.survey.unusable(&self.rows.row, row.slot, row.defect, dimension);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Reads the values for histograms alone. One that is missing, can't be read or is not listed
    /// is NaN, and never makes a row unusable.
    fn read_extra(&mut self) {
        let (row, roles) = (&self.rows.row, &self.rules.roles);
        for (slot, numbers) in (roles.dimension..).zip(&roles.extra) {
            let (value, is_missing) = match numbers {
                None => {
                    let number = row.number(slot);
                    (number.ok(), number == Err(Defect::Missing))
                }
                Some(numbers) => {
                    let text = row.text(slot);
                    let is_missing = text == Err(Defect::Missing);
                    (text.ok().and_then(|text| numbers.get(text)).map(|&at| at.into()), is_missing)
                }
            };
            self.survey.binned(slot, value.is_some(), is_missing);
            self.batch.records.values.push(value.unwrap_or(f64::NAN));
        }
    }

    /// Counts an unusable row, or stops with an error.
    pub(super) fn refuse(&mut self, UnusableRow { slot, defect }: UnusableRow) -> Result<(), SourceError> {
        self.survey.unusable(&self.rows.row, slot, defect, self.rules.roles.dimension);
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
        let column = slot.map(|slot| self.rows.column(slot));
        Err(SourceError::Rejected { path: self.rows.name(), line: self.rows.line(), column, defect })
    }
}
