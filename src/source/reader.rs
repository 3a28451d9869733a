//! The reader of a source: rows in, batches and marks out.

use super::accept::Rules;
use super::clock::EpochClock;
use super::roles::Roles;
use super::rows::RowReader;
use super::{BATCH_RECORDS, Batch, Counters, Event, Resume};
use crate::connect::{Lists, Opening, Origin, Position, SourceError};
use crate::control::Control;
use crate::format::form::Shape;
use crate::pipeline::{Pipeline, Source};

/// Reads a pipeline's source.
pub struct SourceReader {
    pub(super) control: Control,
    pub(super) rows: RowReader,
    pub(super) rules: Rules,
    pub(super) epochs: EpochClock,
    /// Its number among the sources, and how many there are.
    pub(super) place: (u64, u64),
    pub(super) batch: Batch,
    pub(super) counters: Counters,
    /// Rows read since the last event.
    unheard: usize,
    ended: bool,
}

impl SourceReader {
    /// Reads from the beginning of the pipeline's first source.
    ///
    /// # Errors
    /// Where the first file can't be opened or its header lacks a column.
    pub fn open(pipeline: &Pipeline) -> Result<Self, SourceError> {
        Self::resume(pipeline, Resume::START, 0)
    }

    /// Reads on from where the mark that closed `committed`, the last committed epoch, says.
    ///
    /// # Errors
    /// As [`open`](Self::open), and where a file has become shorter than the position to resume from.
    pub fn resume(pipeline: &Pipeline, resume: Resume, committed: u64) -> Result<Self, SourceError> {
        let source = &pipeline.sources[0];
        Self::controlled((pipeline, source), &Control::new(), resume, committed)
    }

    /// Reads on in any source of the pipeline, until it is stopped.
    ///
    /// # Errors
    /// As [`resume`](Self::resume).
    pub fn controlled(
        read: (&Pipeline, &Source),
        control: &Control,
        resume: Resume,
        committed: u64,
    ) -> Result<Self, SourceError> {
        Self::listed(read, control, resume, committed, None)
    }

    /// Reads on in a source whose lists of files the state directory keeps.
    pub(crate) fn listed(
        (pipeline, source): (&Pipeline, &Source),
        control: &Control,
        resume: Resume,
        committed: u64,
        lists: Option<Lists<'_>>,
    ) -> Result<Self, SourceError> {
        control.begin();
        let (_, shape) = Roles::new(pipeline, source);
        let opening = Opening { shape: &shape, position: resume.position, control, lists };
        let origin = source.input.source().open(&opening)?;
        Self::over(origin, (pipeline, source), control, resume, committed)
    }

    /// Reads on in what has been opened of a source, or in its journal.
    ///
    /// # Errors
    /// As [`resume`](Self::resume), and what the journal's writer failed with.
    pub(crate) fn over(
        origin: Box<dyn Origin>,
        (pipeline, source): (&Pipeline, &Source),
        control: &Control,
        resume: Resume,
        committed: u64,
    ) -> Result<Self, SourceError> {
        control.begin();
        let (roles, shape) = Roles::new(pipeline, source);
        let is_anew = origin.begins_anew();
        let position = if is_anew { Position::START } else { resume.position };
        let expects_header = !source.goes_on() && source.header.is_none();
        Ok(SourceReader {
            control: control.clone(),
            rows: RowReader::open(origin, shape, expects_header, control, position)?,
            rules: Rules::new(pipeline, roles),
            epochs: EpochClock::new(source, resume, committed, is_anew),
            place: (0, 1),
            batch: Batch::default(),
            counters: Counters::default(),
            unheard: 0,
            ended: false,
        })
    }

    /// Reads as number `place.0` of `place.1` sources.
    pub(crate) fn among(self, place: (u64, u64)) -> Self {
        SourceReader { place, ..self }
    }

    /// The number of the next row.
    pub(crate) fn next_row(&self) -> u64 {
        self.epochs.clock.row
    }

    /// The row from which on those of closed epochs are late, 0 if that is unknown.
    pub(crate) fn late_from(&self) -> u64 {
        self.epochs.late_from()
    }

    /// What became of the rows so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Where the next row is.
    pub(crate) fn here(&self) -> Resume {
        Resume { position: self.rows.position(), clock: self.epochs.clock, ..Resume::START }
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
            let pending = self.epochs.is_due();
            let over = self.ended || self.epochs.is_over();
            let due = self.unheard >= BATCH_RECORDS || self.is_due();
            if due || ((pending || over) && self.unheard > 0) {
                self.unheard = 0;
                return Ok(Event::Batch(std::mem::take(&mut self.batch)));
            }
            if pending {
                let next = self.here();
                return Ok(Event::Mark(self.epochs.mark(next)));
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
        self.place.1 > 1 && self.unheard > 0 && self.rows.must_wait()
    }

    /// Reads one row, or finds that there is none. Then tells which epochs are closed.
    fn advance(&mut self) -> Result<(), SourceError> {
        let read = self.rows.read()?;
        if self.control.is_stopped() {
            // The row may have been cut, and an end may be none.
            return Ok(());
        }
        let Some(position) = read else {
            self.ended = true;
            self.epochs.end();
            return Ok(());
        };
        let before = Resume { position, clock: self.epochs.clock, ..Resume::START };
        self.counters.rows += 1;
        self.unheard += 1;
        self.epochs.begin_row();
        let had_begun = self.epochs.has_begun();
        if let Err(refusal) = self.accept(before) {
            self.refuse(refusal)?;
        }
        self.epochs.end_row();
        let begins = !had_begun && self.epochs.has_begun() && self.place.1 == 1;
        if begins && self.epochs.begins_after_horizon() {
            return Err(SourceError::AfterHorizon { path: self.rows.name(), line: self.rows.line() });
        }
        Ok(())
    }
}

/// What the rows of a source look like, and the columns that its pipeline wants.
pub(crate) fn shape(pipeline: &Pipeline, source: &Source) -> Shape {
    Roles::new(pipeline, source).1
}
