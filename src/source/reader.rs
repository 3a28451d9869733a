//! The reader of a source: rows in, batches and marks out.

mod accept;

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use hushflow_mechanism::epochs::{Clock, Schedule};

use super::error::{Defect, SourceError};
use super::files::{Opened, Origin, io_error};
use super::follow::Followed;
use super::roles::Roles;
use super::{BATCH_RECORDS, Batch, Counters, Event, Mark, Position};
use crate::control::Control;
use crate::format::FormatError;
use crate::format::bytes::Stream;
use crate::format::csv::{CsvRows, header_row};
use crate::format::ndjson::NdjsonRows;
use crate::format::row::{Outcome, RECORD_LIMIT, Row, Rows};
use crate::pipeline::{Format, Pipeline, RowPolicies, Source};
use crate::state::Ingest;

const REST: &str = "an earlier run has read the beginning of a line as the last row of the file, and the line has gone on since: its rest is \
    not used; a file that is still written is read with follow = true, which waits for whole lines";

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
    /// How far ahead of the clock a row may be that moves it.
    largest_jump: Option<i64>,
    /// Its number among the sources, and how many there are.
    place: (u64, u64),
    /// Rows of closed epochs are late from this one on.
    late_from: u64,
    /// Rows read since the last event.
    unheard: usize,
    roles: Roles,
    rows: Option<Box<dyn Rows>>,
    row: Row,
    /// What comes next is the rest of a row that an earlier run has read.
    continues: bool,
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
    batch: Batch,
    counters: Counters,
    ended: bool,
    /// Nothing at all is a fault: a header should have come.
    expects_header: bool,
}

impl SourceReader {
    /// Reads from the beginning of the pipeline's first source.
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
        let source = &pipeline.sources[0];
        Self::controlled((pipeline, source), &Control::new(), position, committed)
    }

    /// Reads on in any source of the pipeline, until it is stopped.
    ///
    /// # Errors
    /// As [`resume`](Self::resume).
    pub fn controlled(
        (pipeline, source): (&Pipeline, &Source),
        control: &Control,
        position: Position,
        committed: u64,
    ) -> Result<Self, SourceError> {
        Self::over(Origin::of(source, control)?, (pipeline, source), control, position, committed)
    }

    /// Reads on in files that are followed.
    pub(crate) fn following(
        read: (&Pipeline, &Source),
        files: Followed,
        control: &Control,
        position: Position,
        committed: u64,
    ) -> Result<Self, SourceError> {
        Self::over(Origin::Followed(Arc::new(files)), read, control, position, committed)
    }

    /// Reads on in the sessions of the journal of a source with this name, and waits at its end for what comes.
    ///
    /// # Errors
    /// As [`resume`](Self::resume), and what the journal's writer failed with.
    pub(crate) fn journaled(
        read: (&Pipeline, &Source),
        (ingest, name): (Arc<Ingest>, PathBuf),
        control: &Control,
        position: Position,
        committed: u64,
    ) -> Result<Self, SourceError> {
        Self::over(Origin::Journal(ingest, name), read, control, position, committed)
    }

    fn over(
        origin: Origin,
        (pipeline, source): (&Pipeline, &Source),
        control: &Control,
        position: Position,
        committed: u64,
    ) -> Result<Self, SourceError> {
        control.begin();
        let again = matches!(origin, Origin::Stdin(_));
        // The standard input starts anew: its rows are numbered from 0, while the clock never goes back.
        let clock = if again { Clock { row: 0, ..position.clock } } else { position.clock };
        let mut reader = SourceReader {
            origin,
            format: source.format,
            header: source.header.as_deref().map(header_row),
            control: control.clone(),
            policies: pipeline.rows,
            counts_unusable: pipeline.privacy.neighbours.counts_are_public(),
            needs_places: pipeline.entity.is_some() || pipeline.estimator.is_some(),
            schedule: source.schedule.clone(),
            largest_jump: source.largest_jump,
            place: (0, 1),
            late_from: u64::MAX,
            unheard: 0,
            roles: Roles::new(pipeline, source),
            rows: None,
            row: Row::default(),
            continues: false,
            position: if again { Position::START } else { position },
            clock,
            closed: committed,
            due: 0,
            counted_before: if again { committed } else { 0 },
            arrived: Clock::START.time,
            firsts: VecDeque::new(),
            batch: Batch::default(),
            counters: Counters::default(),
            ended: false,
            expects_header: !source.goes_on() && source.header.is_none(),
        };
        reader.origin.check(reader.position.file)?;
        match reader.open_file() {
            Err(error) if !control.is_stopped() => Err(error),
            _ => Ok(reader),
        }
    }

    /// Reads as number `place.0` of `place.1` sources: rows that an earlier run had read from `late_from` on are late where their
    /// epoch has closed.
    pub(crate) fn among(mut self, place: (u64, u64), late_from: u64) -> Self {
        self.place = place;
        if self.counted_before == 0 {
            self.late_from = late_from;
        }
        self
    }

    /// The number of the next row.
    pub(crate) fn next_row(&self) -> u64 {
        self.clock.row
    }

    /// The row from which on those of closed epochs are late, 0 if that is unknown.
    pub(crate) fn late_from(&self) -> u64 {
        if self.late_from == u64::MAX { 0 } else { self.late_from }
    }

    /// What became of the rows so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Waits for the next event. A batch is given after [`BATCH_RECORDS`] rows, and before every mark. A reader that is stopped comes to
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
            let due = self.unheard >= BATCH_RECORDS || self.is_due();
            if due || ((pending || over) && self.unheard > 0) {
                self.unheard = 0;
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

    /// Whether the other sources should hear of this one before it reads on.
    fn is_due(&self) -> bool {
        let waits = || self.rows.as_ref().is_none_or(|rows| !rows.is_at_hand());
        self.place.1 > 1 && self.unheard > 0 && waits()
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
        self.unheard += 1;
        if self.clock.row >= self.late_from {
            // Closed by an earlier run that did not wait for this row.
            (self.clock.closed, self.late_from) = (self.clock.closed.max(self.closed), u64::MAX);
        }
        let started = self.clock.time != Clock::START.time;
        if let Err(refusal) = self.accept(before) {
            self.refuse(refusal)?;
        }
        self.clock.row += 1;
        self.due = self.schedule.oldest_open(self.clock) - 1;
        let alone = self.place.1 == 1 && self.closed == 0;
        if !started && self.clock.time != Clock::START.time && alone && self.due >= self.schedule.horizon() {
            let line = self.rows.as_ref().map_or(0, |rows| rows.line());
            return Err(SourceError::AfterHorizon { path: self.origin.name(before.file), line });
        }
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
        Mark { epoch, resume, rows: self.clock.row }
    }

    /// The place of the next row.
    pub(crate) fn here(&self) -> Position {
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
                Outcome::Row => {
                    if std::mem::take(&mut self.continues) {
                        self.row.defect = Some(Defect::Continued);
                        self.control.notice(&format!("{}: {REST}", self.origin.name(before.file).display()));
                    }
                    return Ok(Some(before));
                }
                Outcome::TooLong => {
                    let line = rows.line();
                    return Err(FormatError::RecordTooLong { path: path(), line, limit: RECORD_LIMIT }.into());
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
        self.continues = self.origin.goes_on_in_line(file, offset)?;
        if file == 0 && opened.is_none() && self.format == Format::Csv && self.expects_header {
            // Nothing has ever come into the journal.
            return Err(FormatError::NoHeader { path: self.origin.name(file) }.into());
        }
        self.rows = match (opened, self.format) {
            (None, _) => None,
            (Some(Opened::Rows(rows)), _) => Some(rows),
            (Some(Opened::Bytes { stream, header }), Format::Csv) => match self.open_csv(stream, header) {
                Err(FormatError::NoHeader { .. }) if self.origin.may_begin_later() => {
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
    fn open_csv(&self, stream: Stream, header: Option<Stream>) -> Result<CsvRows, FormatError> {
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
}
