//! Reads a source: turns its rows into batches of records and marks of closed epochs.

use std::sync::Arc;

use super::clock::EpochClock;
use super::content::RowRules;
use super::ranges::{
    LeapNotice, RangeBuffers, RangeCursor, RangeParser, RangePlan, RangeSupply, ReturnedRows, RowAccess,
};
use super::roles::FieldRoles;
use super::rows::{NextRow, RowReader};
use super::survey::SEARCHED_ROWS;
use super::waiting::WaitListener;
use super::{BATCH_RECORDS, EpochMark, RecordBatch, ResumePoint, RowCounters, RowSurvey, SourceEvent};
use crate::connect::{FileList, Origin, OriginRequest, SourceError};
use crate::control::Control;
use crate::format::form::RowLayout;
use crate::pipeline::{Pipeline, Source};
use crate::state::Position;
use crate::time::ClockChanges;

/// Reads a source of a pipeline.
pub struct SourceReader {
    pub(super) control: Control,
    pub(super) rows: RowReader,
    pub(super) rules: Arc<RowRules>,
    /// The rows that are parsed ahead, if any are.
    pub(super) ranges: Option<RangeCursor>,
    pub(super) epochs: EpochClock,
    /// Index of the source, and the number of sources.
    pub(super) rank: (u64, u64),
    pub(super) batch: RecordBatch,
    /// The line of the current row.
    pub(super) line: u64,
    /// The epoch that the current row joins; 0 if none.
    pub(super) joined: u64,
    pub(super) counters: RowCounters,
    /// The last epoch whose rows an earlier run has counted, and the counters of these rows.
    judged: (u64, RowCounters),
    pub(super) survey: RowSurvey,
    /// Finds local times that the time zone skips.
    pub(super) changes: Option<ClockChanges>,
    /// Whether more rows may arrive later.
    pub(super) is_live: bool,
    pub(super) leap_notice: LeapNotice,
    /// Whether the first epoch has begun, or a record has joined an epoch.
    pub(super) has_started: bool,
    /// Whether to return a batch before a wait, even if it is the only source.
    returns_early: bool,
    /// Number of rows whose values are compared with their bounds.
    pub(super) surveyed_rows: u64,
    /// Number of rows after which it stops reading.
    row_limit: u64,
    /// Number of rows up to which it reads an input with an end after its last epoch has closed.
    pub(super) reads_on: u64,
    /// Rows read since the last event.
    pub(super) pending_rows: usize,
    ended: bool,
    /// Whether other processes must list the records of the rows that they take.
    pub(super) needs_records: bool,
    pub(super) returned: ReturnedRows,
    pub(super) wait_listener: Option<WaitListener>,
}

impl SourceReader {
    /// Reads from the beginning of the pipeline's first source.
    ///
    /// # Errors
    /// If the first file can't be opened or its header lacks a column.
    pub fn open(pipeline: &Pipeline) -> Result<Self, SourceError> {
        Self::resume(pipeline, ResumePoint::START, 0)
    }

    /// Reads on from the position of the mark that closed `committed`, the last committed epoch.
    ///
    /// # Errors
    /// As [`open`](Self::open), and if a file is now shorter than the position to resume from, or
    /// has changed before it.
    pub fn resume(pipeline: &Pipeline, resume: ResumePoint, committed: u64) -> Result<Self, SourceError> {
        let source = &pipeline.sources[0];
        Self::controlled((pipeline, source), &Control::new(), resume, committed)
    }

    /// Resumes any source of the pipeline; `control` can stop it.
    ///
    /// # Errors
    /// As [`resume`](Self::resume).
    pub fn controlled(
        read: (&Pipeline, &Source),
        control: &Control,
        resume: ResumePoint,
        committed: u64,
    ) -> Result<Self, SourceError> {
        Self::listed(read, control, resume, committed, None)
    }

    /// Resumes a source, with the list of its files if the state directory keeps one.
    pub(crate) fn listed(
        (pipeline, source): (&Pipeline, &Source),
        control: &Control,
        resume: ResumePoint,
        committed: u64,
        list: Option<Arc<dyn FileList>>,
    ) -> Result<Self, SourceError> {
        control.begin();
        let (_, shape) = FieldRoles::new(pipeline, source);
        let opening = OriginRequest { shape: &shape, position: resume.position, control, list };
        let origin = source.input.source().open(&opening)?;
        Self::over(origin, (pipeline, source), control, resume, committed)
    }

    /// Continues in an opened source or in its journal.
    ///
    /// # Errors
    /// As [`resume`](Self::resume), and the error of the journal's writer.
    pub(crate) fn over(
        origin: Box<dyn Origin>,
        (pipeline, source): (&Pipeline, &Source),
        control: &Control,
        resume: ResumePoint,
        committed: u64,
    ) -> Result<Self, SourceError> {
        control.begin();
        let shape = shape(pipeline, source);
        let restarts = origin.has_new_input_after_restart();
        let position = if restarts { Position::START } else { resume.position };
        let expects_header = !source.is_endless() && source.header.is_none();
        // One source that waits must not keep the others closed: its own thread opens it.
        let waits = pipeline.has_several_sources() && origin.may_wait(position);
        let mut rows = match waits {
            true => RowReader::parked(origin, shape, expects_header, control, position),
            false => RowReader::open(origin, shape, expects_header, control, position)?,
        };
        if let Some(recorded) = resume.fingerprint.filter(|_| !restarts) {
            rows.check_unchanged(position, recorded)?;
        }
        let epochs = EpochClock::new(source, resume, committed, restarts);
        let is_live = source.input.source().is_live();
        let has_started = committed > 0;
        Ok(SourceReader { has_started, is_live, ..Self::of_rows(rows, (pipeline, source), control, epochs) })
    }

    /// Takes the rows of ranges that this process has parsed for another one; `None` if the source
    /// has no ranges.
    pub(super) fn of_others((pipeline, source): (&Pipeline, &Source)) -> Option<Self> {
        let (shape, control) = (shape(pipeline, source), Control::new());
        let origin = source.input.source().ranges(&shape, &control)?;
        let rows = RowReader::parked(origin, shape, false, &control, Position::START);
        let epochs = EpochClock::new(source, ResumePoint::START, 0, false);
        Some(Self::of_rows(rows, (pipeline, source), &control, epochs))
    }

    fn of_rows(
        rows: RowReader,
        (pipeline, source): (&Pipeline, &Source),
        control: &Control,
        epochs: EpochClock,
    ) -> Self {
        let (roles, shape) = FieldRoles::new(pipeline, source);
        SourceReader {
            control: control.clone(),
            rows,
            changes: ClockChanges::of(&roles.times.zone),
            rules: Arc::new(RowRules::new(pipeline, roles)),
            ranges: None,
            epochs,
            rank: (0, 1),
            batch: RecordBatch::default(),
            line: 0,
            joined: 0,
            counters: RowCounters::default(),
            judged: (0, RowCounters::default()),
            survey: RowSurvey::new(&shape.wanted),
            is_live: false,
            leap_notice: LeapNotice::None,
            has_started: false,
            returns_early: false,
            surveyed_rows: SEARCHED_ROWS,
            row_limit: u64::MAX,
            reads_on: 0,
            pending_rows: 0,
            ended: false,
            needs_records: false,
            returned: ReturnedRows::default(),
            wait_listener: None,
        }
    }

    /// Takes rows that are parsed ahead, in these ranges. The first rows, which are searched, are
    /// read in order.
    pub(crate) fn parsed_ahead(self, plan: RangePlan, supply: Box<dyn RangeSupply>, first_row: u64) -> Self {
        self.in_ranges(plan, supply, first_row.max(SEARCHED_ROWS))
    }

    /// Takes the rows from this one on in ranges.
    pub(super) fn in_ranges(mut self, plan: RangePlan, supply: Box<dyn RangeSupply>, first_row: u64) -> Self {
        self.rows.stop_before_files(plan.files());
        SourceReader { ranges: Some(RangeCursor::new(plan, supply, first_row)), ..self }
    }

    /// Makes this reader number `rank.0` of `rank.1` sources.
    pub(crate) fn among(self, rank: (u64, u64)) -> Self {
        SourceReader { rank, ..self }
    }

    /// Notes that an earlier run has judged the rows up to the end of this epoch.
    pub(crate) fn judged_through(self, epoch: u64) -> Self {
        SourceReader { judged: (epoch, RowCounters::default()), ..self }
    }

    /// Makes this reader compare the values of all rows with their bounds.
    pub(crate) fn comparing_all(self) -> Self {
        SourceReader { surveyed_rows: u64::MAX, ..self }
    }

    /// Makes this reader read up to `rows` rows of an input with an end, even if a clock has closed
    /// the last epoch, and count those after it.
    pub(crate) fn reading_on(self, rows: u64) -> Self {
        let reads_on = if self.epochs.is_timed() { rows } else { 0 };
        SourceReader { reads_on, ..self }
    }

    /// Sets whether other processes must list the records of the rows that they take.
    pub(crate) fn need_records(&mut self, needs_records: bool) {
        self.needs_records = needs_records;
    }

    /// Makes this reader stop after `rows` rows.
    pub(crate) fn limited(self, rows: u64) -> Self {
        SourceReader { row_limit: rows, ..self }
    }

    pub(crate) fn next_row(&self) -> u64 {
        self.epochs.clock.row
    }

    /// Returns the number of the first row for which a closed epoch means late; 0 if unknown.
    pub(crate) fn late_from(&self) -> u64 {
        self.epochs.late_from()
    }

    /// Returns the outcome of the rows so far.
    pub fn counters(&self) -> &RowCounters {
        &self.counters
    }

    /// Returns the outcome of the rows so far that no earlier run has counted, from the first epoch
    /// on. A row belongs to the epoch of the clock just before the row.
    pub(crate) fn unjudged(&self) -> RowCounters {
        self.counters.since(&self.judged.1).since(&self.survey.early)
    }

    /// Returns the survey of the rows so far.
    pub fn survey(&self) -> &RowSurvey {
        &self.survey
    }

    /// Whether it has read its input to the end, or the last epoch is over.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended || self.is_over()
    }

    fn is_over(&self) -> bool {
        self.epochs.is_over() && (self.is_live || self.counters.rows >= self.reads_on)
    }

    /// Returns the records that a stopped reader has not returned.
    pub(crate) fn take_batch(&mut self) -> RecordBatch {
        std::mem::take(&mut self.batch)
    }

    /// Sets whether to return a batch before every wait: if `always`, or if more rows may arrive
    /// later and `early`.
    pub(crate) fn return_early(&mut self, early: bool, always: bool) {
        self.returns_early = always || (early && self.is_live);
    }

    /// Whether the next row must be read or waited for, and all before it were returned.
    pub(crate) fn has_read_all(&self) -> bool {
        let has_mark = self.epochs.is_due() || !self.returned.marks.is_empty();
        self.pending_rows == 0 && !has_mark && self.lacks_row()
    }

    /// Whether more rows may arrive later.
    pub(crate) fn is_live(&self) -> bool {
        self.is_live
    }

    /// Whether the next row may take long to arrive.
    pub(crate) fn must_wait(&self) -> bool {
        self.is_live && self.lacks_row()
    }

    /// Whether the next row is not in memory.
    fn lacks_row(&self) -> bool {
        !self.ranges.as_ref().is_some_and(RangeCursor::has_row) && self.rows.must_wait()
    }

    /// Returns the position from which a later run resumes if nothing more is read.
    pub(crate) fn here(&mut self) -> ResumePoint {
        let here = self.before_next();
        ResumePoint { fingerprint: self.rows.fingerprint(here.position), ..here }
    }

    /// Returns the position from which another reader continues as this one would.
    pub(crate) fn resume_point(&mut self) -> ResumePoint {
        ResumePoint { late_from: self.epochs.late_row(), ..self.here() }
    }

    fn before_next(&self) -> ResumePoint {
        let in_range = self.ranges.as_ref().and_then(RangeCursor::position);
        let position = in_range.unwrap_or_else(|| self.rows.position());
        ResumePoint { position, clock: self.epochs.clock, ..ResumePoint::START }
    }

    /// Waits for the next event. Batches end after [`BATCH_RECORDS`] rows and before every mark. A
    /// stopped reader ends at once, without the marks that the end of the input would cause.
    ///
    /// # Errors
    /// If the input can't be read, a record is too long, or the pipeline's policy rejects a row.
    pub fn next_event(&mut self) -> Result<SourceEvent, SourceError> {
        loop {
            if self.control.is_stopped() {
                return Ok(SourceEvent::End);
            }
            if self.returned.marks.is_empty() {
                self.counters = self.returned.counters.take().unwrap_or(self.counters);
            }
            let pending = self.epochs.is_due() || !self.returned.marks.is_empty();
            let over = self.ended || self.is_over() || self.counters.rows >= self.row_limit;
            // After the last epoch no mark ends a batch, but the search of the first rows ends.
            let ends_look = self.epochs.is_over() && self.counters.rows == SEARCHED_ROWS;
            let due = self.pending_rows >= BATCH_RECORDS || self.is_due();
            let due = due || (ends_look && self.pending_rows > 0);
            if due || ((pending || over) && self.pending_rows > 0) {
                self.pending_rows = 0;
                return Ok(SourceEvent::Batch(std::mem::take(&mut self.batch)));
            }
            let returned = self.returned.marks.pop_front();
            if let Some((mut mark, counters)) = returned.or_else(|| self.mark()) {
                self.counters = counters;
                mark.resume.fingerprint = self.rows.fingerprint(mark.resume.position);
                return Ok(SourceEvent::Mark(mark));
            }
            if let Some(fault) = self.returned.fault.take() {
                return Err(SourceError::Elsewhere(fault));
            }
            if over {
                return Ok(SourceEvent::End);
            }
            self.report_before_wait();
            match self.advance() {
                Err(error) if !self.control.is_stopped() => return Err(error),
                _ => {}
            }
        }
    }

    /// Whether to return the batch before reading on. Other sources then see the progress of this
    /// one, and closed epochs need not wait for another row.
    fn is_due(&self) -> bool {
        (self.rank.1 > 1 || self.returns_early) && self.pending_rows > 0 && self.lacks_row()
    }

    /// Reads one row, if there is one, and determines which epochs are closed.
    pub(super) fn advance(&mut self) -> Result<(), SourceError> {
        let next = match &mut self.ranges {
            None => RowAccess::Read,
            Some(ranges) => ranges.next_row(&mut self.rows, self.epochs.clock.row, &mut self.survey)?,
        };
        let read = match (next, &mut self.ranges) {
            (RowAccess::Wait, _) => return Ok(()),
            (RowAccess::Elsewhere, _) => {
                let state = self.state();
                self.ranges.iter_mut().for_each(|ranges| ranges.hand_over(state.clone()));
                return Ok(());
            }
            (RowAccess::Taken(result), _) => {
                self.take_back(*result);
                return Ok(());
            }
            (RowAccess::Parsed, Some(ranges)) => {
                ranges.take().map(|(position, taken)| (position, Some(taken)))
            }
            _ => match self.rows.read()? {
                NextRow::Row(position) => Some((position, None)),
                NextRow::NextFile => return Ok(()),
                NextRow::End => None,
            },
        };
        if self.control.is_stopped() {
            // The row may be incomplete, and this may not be the real end of the input.
            return Ok(());
        }
        let Some((position, taken)) = read else {
            self.check_end()?;
            self.ended = true;
            self.epochs.end();
            return Ok(());
        };
        let before = ResumePoint { position, clock: self.epochs.clock, ..ResumePoint::START };
        self.line = taken.map_or_else(|| self.rows.line(), |taken| taken.line);
        self.counters.rows += 1;
        self.pending_rows += 1;
        self.epochs.begin_row();
        let had_begun = self.epochs.has_begun();
        let early = (self.counters.early_clock, self.counters.before_start);
        let is_judged = self.epochs.due() < self.judged.0;
        self.accept(before, taken.as_ref())?;
        self.note_start(early);
        self.check_leaps()?;
        self.check_keys()?;
        self.epochs.end_row();
        self.survey.stretches.note(&self.counters);
        if is_judged {
            self.judged.1 = self.counters;
        }
        let begins = !had_begun && self.epochs.has_begun() && self.rank.1 == 1;
        if begins && self.epochs.begins_after_horizon() {
            let (path, line, unit) = (self.rows.name(), self.line, self.unit_doubt());
            return Err(SourceError::AfterHorizon { path, line, unit });
        }
        Ok(())
    }

    /// Notes whether the row that was read comes before the first epoch, as all rows before it:
    /// by the public clock, or without one by its time. Takes the counts of early rows before it.
    fn note_start(&mut self, (early_clock, before_start): (u64, u64)) {
        if self.has_started {
            return;
        }
        let (is_early, has_started) = match self.rules.roles.clock {
            Some(_) => (self.counters.early_clock > early_clock, !self.epochs.is_before_start()),
            None => (self.counters.before_start > before_start, self.joined > 0),
        };
        self.has_started = has_started;
        if is_early && !has_started {
            self.survey.early = self.counters;
        }
    }

    /// Closes due epochs, as many as share a position to resume from; `None` if none is due. Also
    /// returns the counters.
    pub(super) fn mark(&mut self) -> Option<(EpochMark, RowCounters)> {
        self.epochs.is_due().then(|| {
            let next = self.before_next();
            (self.epochs.mark(next), self.counters)
        })
    }
}

/// Whether a source is read in ranges. All processes of a run get the same answer.
pub(crate) fn is_ranged(pipeline: &Pipeline, source: &Source, control: &Control) -> bool {
    let shape = FieldRoles::new(pipeline, source).1;
    // Discovered keys are numbered in the order of their first rows.
    pipeline.discovery().is_none()
        && !source.journal
        && source.input.source().ranges(&shape, control).is_some()
}

/// Returns how the files of a source are cut for this number of threads that parse. Some
/// of them may be of other processes.
pub(crate) fn range_plan(
    (pipeline, source): (&Pipeline, &Source),
    (threads, has_others): (usize, bool),
) -> RangePlan {
    let files = source.input.source().cuts(&shape(pipeline, source));
    let most = if has_others { RangePlan::LONGEST } else { RangePlan::STRETCH.0 };
    let stretch = (RangePlan::length(&files) / (16 * threads as u64)).clamp(RangePlan::STRETCH.0, most);
    RangePlan::new(files, (stretch, RangePlan::STRETCH.1))
}

/// Returns this number of parsers of ranges of a source's files; `None` if its rows must be read in
/// order.
pub(crate) fn range_parsers(
    (pipeline, source): (&Pipeline, &Source),
    control: &Control,
    number: usize,
) -> Option<Vec<RangeParser>> {
    if !is_ranged(pipeline, source, control) {
        return None;
    }
    let (roles, shape) = FieldRoles::new(pipeline, source);
    let (rules, buffers) = (Arc::new(RowRules::new(pipeline, roles)), RangeBuffers::default());
    let parser = || {
        let origin = source.input.source().ranges(&shape, control)?;
        let (columns, expects_header) = (shape.wanted.clone(), source.header.is_none());
        let rows = RowReader::parked(origin, shape.clone(), expects_header, control, Position::START);
        Some(RangeParser::new(Arc::clone(&rules), columns, rows, buffers.clone()))
    };
    (0..number).map(|_| parser()).collect()
}

/// Returns the layout of a source's rows, with the columns that the pipeline reads.
pub(crate) fn shape(pipeline: &Pipeline, source: &Source) -> RowLayout {
    FieldRoles::new(pipeline, source).1
}
