//! The reader of a source: rows in, batches and marks out.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use hushflow_mechanism::epochs::{Assignment, Clock, Reason, Schedule};
use hushflow_operators::{Entity, Records};

use super::control::Control;
use super::csv::{CsvRows, header_row};
use super::error::{Defect, SourceError};
use super::files::{Opened, Origin, Stream, io_error};
use super::follow::Followed;
use super::ndjson::NdjsonRows;
use super::roles::{Roles, entity};
use super::row::{Outcome, RECORD_LIMIT, Row, Rows};
use super::{BATCH_RECORDS, Counters, Event, Mark, Position};
use crate::pipeline::{Format, Pipeline, RowPolicies, RowPolicy};
use crate::state::Ingest;

/// Reads a pipeline's source.
pub struct SourceReader {
    origin: Origin,
    format: Format,
    /// The header row of rows that come without one.
    header: Option<Vec<u8>>,
    control: Control,
    policies: RowPolicies,
    /// A record whose values can't be used is passed on as NaN: where counts are public, it must count.
    counts_unusable: bool,
    /// Behind the source it matters which record came first.
    needs_places: bool,
    schedule: Schedule,
    roles: Roles,
    rows: Option<Box<dyn Rows>>,
    row: Row,
    /// The place of the next row, where no file is open.
    position: Position,
    clock: Clock,
    /// The last epoch that a mark has closed, or an earlier run.
    closed: u64,
    /// The last epoch that the clock has closed.
    due: u64,
    /// Rows of the standard input up to this epoch may have been counted by an earlier run.
    pub(super) counted_before: u64,
    /// The public time of the current row alone.
    arrived: i64,
    /// The rows whose epoch is later than that of every row before them.
    firsts: VecDeque<(u64, Position)>,
    batch: Records,
    counters: Counters,
    ended: bool,
    /// Nothing at all is a fault: a header should have come.
    expects_header: bool,
}

/// Why a row can't be used: the field, unless it is the whole row, and what is wrong with it.
struct Refusal {
    slot: Option<usize>,
    defect: Defect,
}

impl Refusal {
    fn of(slot: usize) -> impl FnOnce(Defect) -> Refusal {
        move |defect| Refusal { slot: Some(slot), defect }
    }
}

impl SourceReader {
    /// Reads from the beginning.
    ///
    /// # Errors
    /// Where the first file can't be opened or its header lacks a column.
    pub fn open(pipeline: &Pipeline) -> Result<Self, SourceError> {
        Self::resume(pipeline, Position::START, 0)
    }

    /// Reads on from the `resume` place of the mark that closed `committed`, the last epoch that is committed.
    ///
    /// # Errors
    /// As [`open`](Self::open), and where a file has become shorter than the place to resume from.
    pub fn resume(pipeline: &Pipeline, position: Position, committed: u64) -> Result<Self, SourceError> {
        Self::controlled(pipeline, &Control::new(), position, committed)
    }

    /// As [`resume`](Self::resume), until it is stopped.
    ///
    /// # Errors
    /// As [`resume`](Self::resume).
    pub fn controlled(
        pipeline: &Pipeline,
        control: &Control,
        position: Position,
        committed: u64,
    ) -> Result<Self, SourceError> {
        Self::over(Origin::of(&pipeline.source, control)?, pipeline, control, position, committed)
    }

    /// Reads on in files that are followed.
    pub(crate) fn following(
        pipeline: &Pipeline,
        files: Followed,
        control: &Control,
        position: Position,
        committed: u64,
    ) -> Result<Self, SourceError> {
        Self::over(Origin::Followed(Arc::new(files)), pipeline, control, position, committed)
    }

    /// Reads on in the sessions of the journal of a source with this name, and waits at its end for what comes.
    ///
    /// # Errors
    /// As [`resume`](Self::resume), and what the journal's writer failed with.
    pub(crate) fn journaled(
        pipeline: &Pipeline,
        (ingest, name): (Arc<Ingest>, PathBuf),
        control: &Control,
        position: Position,
        committed: u64,
    ) -> Result<Self, SourceError> {
        Self::over(Origin::Journal(ingest, name), pipeline, control, position, committed)
    }

    fn over(
        origin: Origin,
        pipeline: &Pipeline,
        control: &Control,
        position: Position,
        committed: u64,
    ) -> Result<Self, SourceError> {
        let again = matches!(origin, Origin::Stdin(_));
        // The standard input starts anew: its rows are numbered from 0, while the clock never goes back.
        let clock = if again { Clock { row: 0, ..position.clock } } else { position.clock };
        let mut reader = SourceReader {
            origin,
            format: pipeline.source.format,
            header: pipeline.source.header.as_deref().map(header_row),
            control: control.clone(),
            policies: pipeline.rows,
            counts_unusable: pipeline.privacy.neighbours.counts_are_public(),
            needs_places: pipeline.entity.is_some() || pipeline.estimator.is_some(),
            schedule: pipeline.epochs.schedule.clone(),
            roles: Roles::new(pipeline),
            rows: None,
            row: Row::default(),
            position: if again { Position::START } else { position },
            clock,
            closed: committed,
            due: 0,
            counted_before: if again { committed } else { 0 },
            arrived: Clock::START.time,
            firsts: VecDeque::new(),
            batch: Records::default(),
            counters: Counters::default(),
            ended: false,
            expects_header: !pipeline.source.goes_on() && pipeline.source.header.is_none(),
        };
        match reader.open_file() {
            Err(error) if !control.is_stopped() => Err(error),
            _ => Ok(reader),
        }
    }

    /// What became of the rows so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Waits for the next event. A batch is given when it is full, and before every mark. A reader that is stopped comes to
    /// its end at once, without the marks that the end of the input has.
    ///
    /// # Errors
    /// Where the input can't be read, a record is too long, or a row is rejected by the pipeline's policy.
    pub fn next_event(&mut self) -> Result<Event, SourceError> {
        loop {
            if self.control.is_stopped() {
                return Ok(Event::End);
            }
            let pending = self.due > self.closed;
            let over = self.ended || self.closed >= self.schedule.horizon();
            if self.batch.len() >= BATCH_RECORDS || ((pending || over) && !self.batch.is_empty()) {
                return Ok(Event::Batch(std::mem::take(&mut self.batch)));
            }
            if pending {
                return Ok(Event::Mark(self.mark()));
            }
            if over {
                return Ok(Event::End);
            }
            match self.advance() {
                Err(error) if !self.control.is_stopped() => return Err(error),
                _ => {}
            }
        }
    }

    /// Reads one row, or finds that there is none. Then tells which epochs are closed.
    fn advance(&mut self) -> Result<(), SourceError> {
        let read = self.read_row()?;
        if self.control.is_stopped() {
            // The row may have been cut, and an end may be none.
            return Ok(());
        }
        let Some(before) = read else {
            self.ended = true;
            self.due = self.schedule.last_at_end(self.clock);
            // For the rows that come after this end, in a later run.
            self.clock.closed = self.due;
            return Ok(());
        };
        self.counters.rows += 1;
        if let Err(refusal) = self.accept(before) {
            self.refuse(refusal)?;
        }
        self.clock.row += 1;
        self.due = self.schedule.oldest_open(self.clock) - 1;
        Ok(())
    }

    /// Closes as many due epochs as share a place to resume from: one of the rows that come first for all later
    /// epochs, or the next row.
    fn mark(&mut self) -> Mark {
        while self.firsts.front().is_some_and(|&(epoch, _)| epoch <= self.closed + 1) {
            self.firsts.pop_front();
        }
        let (epoch, resume) = match self.firsts.front() {
            Some(&(epoch, position)) => (self.due.min(epoch - 1), position),
            None => (self.due, self.here()),
        };
        self.closed = epoch;
        Mark { epoch, resume }
    }

    /// The place of the next row.
    fn here(&self) -> Position {
        match &self.rows {
            None => Position { clock: self.clock, ..self.position },
            Some(rows) => {
                let (offset, line) = rows.place();
                Position { offset, line, clock: self.clock, ..self.position }
            }
        }
    }

    /// Reads the next row of this file or the next ones: the place before it.
    fn read_row(&mut self) -> Result<Option<Position>, SourceError> {
        loop {
            let before = self.here();
            let Some(rows) = &mut self.rows else { return Ok(None) };
            let path = || self.origin.name(before.file);
            match rows.read(&mut self.row).map_err(|source| io_error(&path(), source))? {
                Outcome::Row => return Ok(Some(before)),
                Outcome::TooLong => {
                    let line = rows.line();
                    return Err(SourceError::RecordTooLong { path: path(), line, limit: RECORD_LIMIT });
                }
                Outcome::End => {
                    let (end, _) = rows.place();
                    self.position = Position { file: before.file + 1, ..Position::START };
                    self.open_file()?;
                    if self.rows.is_none() {
                        // There is no next file: a later run goes on at the end of this one, which may grow.
                        self.position = Position { offset: end, ..before };
                    }
                }
            }
        }
    }

    /// Opens the file that the position names, if there is one.
    fn open_file(&mut self) -> Result<(), SourceError> {
        let Position { file, offset, line, .. } = self.position;
        let opened = self.origin.open(file, (offset, line), &self.roles.wanted)?;
        if file == 0 && opened.is_none() && self.format == Format::Csv && self.expects_header {
            // Nothing has ever come into the journal.
            return Err(SourceError::NoHeader { path: self.origin.name(file) });
        }
        self.rows = match (opened, self.format) {
            (None, _) => None,
            (Some(Opened::Rows(rows)), _) => Some(rows),
            (Some(Opened::Bytes { stream, header }), Format::Csv) => match self.open_csv(stream, header) {
                Err(SourceError::NoHeader { .. }) if self.origin.may_begin_later() => {
                    return self.pass_over(file);
                }
                rows => Some(Box::new(rows?)),
            },
            (Some(Opened::Bytes { stream, .. }), _) => {
                Some(Box::new(NdjsonRows::open(stream, line, &self.roles.wanted)))
            }
        };
        Ok(())
    }

    /// Goes on behind a file that has stayed empty, unless it is the last one: then it may begin in a later run.
    fn pass_over(&mut self, file: u32) -> Result<(), SourceError> {
        self.rows = None;
        if self.origin.is_last(file) {
            return Ok(());
        }
        self.position = Position { file: file + 1, ..Position::START };
        self.open_file()
    }

    /// Reads the header of a CSV file, whose rows follow in the same stream or in another.
    fn open_csv(&self, stream: Stream, header: Option<Stream>) -> Result<CsvRows, SourceError> {
        let Position { file, line, .. } = self.position;
        let (path, wanted) = (self.origin.name(file), &self.roles.wanted);
        let given = self.header.as_ref().map(|header| Stream::new(io::Cursor::new(header.clone()), 0));
        match (given, header) {
            (Some(given), _) => Ok(CsvRows::open(given, &path, wanted)?.resume(stream, line)),
            (None, None) => CsvRows::open(stream, &path, wanted),
            (None, Some(header)) => {
                let rows = CsvRows::open(header, &path, wanted)?;
                let (_, behind) = rows.place();
                Ok(rows.resume(stream, line.max(behind)))
            }
        }
    }

    /// Puts the current row, which begins at `before`, into the batch. Says what in it can't be used.
    fn accept(&mut self, before: Position) -> Result<(), Refusal> {
        if let Some(defect) = self.row.defect {
            return Err(Refusal { slot: None, defect });
        }
        if let Some(slot) = self.roles.clock {
            let arrival = self.row.time(slot).map_err(Refusal::of(slot))?;
            self.clock.advance(arrival);
            self.arrived = arrival;
        }
        let event_time = match self.roles.time {
            Some(slot) => self.row.time(slot).map_err(Refusal::of(slot))?,
            None => 0,
        };
        let Some(key) = self.key()? else {
            self.counters.unknown_key += 1;
            return Ok(());
        };
        let entity = self.entity()?;
        let start = self.batch.values.len();
        let read = self.read_values();
        if read.is_err() {
            self.batch.values.truncate(start);
            if !self.counts_unusable {
                return read;
            }
            self.batch.values.resize(start + self.roles.dimension, f64::NAN);
        }
        match self.assign(event_time) {
            None => self.batch.values.truncate(start),
            Some(epoch) => {
                self.batch.keys.push(key);
                self.batch.epochs.push(epoch);
                self.batch.entities.extend(entity);
                if self.needs_places {
                    self.batch.places.push(self.clock.row);
                }
                if self.firsts.back().is_none_or(|&(last, _)| last < epoch) {
                    self.firsts.push_back((epoch, before));
                }
            }
        }
        read
    }

    fn key(&self) -> Result<Option<u32>, Refusal> {
        let Some((slot, numbers)) = &self.roles.key else { return Ok(Some(0)) };
        let text = self.row.text(*slot).map_err(Refusal::of(*slot))?;
        Ok(numbers.get(text).copied())
    }

    /// Whose the record is, where that matters.
    fn entity(&self) -> Result<Option<Entity>, Refusal> {
        let Some(slot) = self.roles.entity else { return Ok(None) };
        let name = self.row.text(slot).map_err(Refusal::of(slot))?;
        Ok(Some(entity(name)))
    }

    fn read_values(&mut self) -> Result<(), Refusal> {
        for slot in 0..self.roles.dimension {
            self.batch.values.push(self.row.number(slot).map_err(Refusal::of(slot))?);
        }
        Ok(())
    }

    /// The epoch that the current record joins, if any.
    fn assign(&mut self, event_time: i64) -> Option<u64> {
        let counters = &mut self.counters;
        let counted_before = i64::try_from(self.counted_before).unwrap_or(i64::MAX);
        // An earlier run may have seen this row by an earlier clock, but not by one before its own arrival.
        let clock = Clock { time: self.arrived, ..self.clock };
        if counted_before > 0 && self.schedule.least_epoch(event_time, clock) <= counted_before {
            counters.already_closed += 1;
            return None;
        }
        let assignment = self.schedule.assign(event_time, self.clock);
        match assignment {
            Assignment::Epoch(_) => {}
            Assignment::Late(_) => counters.folded += 1,
            Assignment::Dropped(Reason::Late) => counters.late += 1,
            Assignment::Dropped(Reason::BeforeStart) => counters.before_start += 1,
            Assignment::Dropped(Reason::AfterHorizon) => counters.after_horizon += 1,
        }
        // Read again on the way to the first row that was not committed.
        assignment.epoch().filter(|&epoch| epoch > self.closed)
    }

    /// Counts a row that can't be used, or stops.
    fn refuse(&mut self, Refusal { slot, defect }: Refusal) -> Result<(), SourceError> {
        let (policy, counter) = match defect {
            Defect::Missing => (self.policies.missing, &mut self.counters.missing),
            _ => (self.policies.malformed, &mut self.counters.malformed),
        };
        *counter += 1;
        if policy == RowPolicy::Skip {
            return Ok(());
        }
        let path = self.origin.name(self.position.file);
        let line = self.rows.as_ref().map_or(0, |rows| rows.line());
        Err(SourceError::Rejected {
            path,
            line,
            column: slot.map(|slot| self.roles.wanted[slot].clone()),
            defect,
        })
    }
}
