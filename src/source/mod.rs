//! Sources: rows of any [input](crate::pipeline::Input), as batches of records with their epochs.
//!
//! One thread pulls a [`SourceReader`]. It returns [`SourceEvent`]s: batches of records, and an
//! [`EpochMark`] each time the public clock closes epochs. A mark names the last closed epoch and
//! where to resume. It comes after every record of the epochs that it closes.
//!
//! **Resuming.** A mark's position is the latest one that misses no record of a later epoch.
//! Reading on from there restores the clock, so every row is assigned as before; rows of closed
//! epochs are skipped. Standard input can't be read again, and a second run may get old or new
//! rows. So after a restart its rows of closed epochs are dropped and counted, never moved to later
//! epochs: a row that is piped in twice is not counted twice. With a journal, all input is new. It
//! is kept in the state directory's [journal](crate::state::IngestJournal), whose sessions are read
//! like files. Sockets always have a journal. The part of a file that was read must not have
//! changed: a position has a fingerprint of the bytes before it.
//!
//! **The end of the input** closes the current epoch if a clock has started. Rows that are later
//! appended to a file are late for that epoch, but not lost.
//!
//! **Several sources** have a reader and a clock each. So the epoch of a record does not depend on
//! other sources, and a resumed reader assigns it again. [`crate::runtime`] closes an epoch when
//! all clocks that count have passed it. [`ResumePoint`] records which rows were not waited for.
//!
//! **Clock jumps** beyond the pipeline's limit are ignored: the row is counted and dropped, and
//! does not move the clock. If a hundred consecutive rows jump, either time has really passed or
//! `start` is wrong, and an input that ends is not read further. Rows that jump at the end of such
//! an input are read again by the next run.
//!
//! **Effects of a row.** A row keeps its position even if it can't be used, and its arrival moves
//! the clock even if its other fields can't be parsed. So one person's record never changes the
//! epoch of another's. Framing and the arrival column belong to the collector and are trusted. A
//! row with a wrong number of fields does not move the clock, because its fields can't be
//! identified.
//!
//! **Unusable rows** are skipped. If counts are public, a row with a readable key and time but
//! unreadable values must still count, or the count would reveal it. It is passed on as NaNs, which
//! the clipper counts as the centre of the bounds.

mod accept;
mod clock;
mod content;
mod fingerprint;
mod ranges;
mod reader;
mod roles;
mod rows;
mod stretch;
mod survey;
#[cfg(test)]
mod tests;
mod values;
mod waiting;

use hushflow_mechanism::epochs::Clock;
use hushflow_operators::Records;
use serde::{Deserialize, Serialize};

use crate::state::Position;

pub use crate::connect::SourceError;
pub use crate::format::Defect;
use ranges::RangeCursor;
pub(crate) use ranges::{
    HeldRecords, ParsedRange, RangeExtent, RangeHandover, RangeParser, RangePlan, RangeResult, RangeSupply,
    RangeTaker,
};
pub use reader::SourceReader;
pub(crate) use reader::{is_ranged, range_parsers, range_plan, shape};
pub use roles::entity;
pub use stretch::{Stretch, Stretches};
pub use survey::{BinSurvey, ClockStep, ColumnSurvey, RowSurvey, TimeSurvey};
pub use values::{BoundSurvey, ValueStretch, ValueSurvey};

/// Maximum number of rows, and so of records, in a batch.
pub const BATCH_RECORDS: usize = 4096;

/// Records, and fingerprints that identify duplicates.
#[derive(Default)]
pub struct RecordBatch {
    /// In row order.
    pub records: Records,
    /// One for each record if the pipeline names an id column, else empty. Two records of an epoch
    /// are duplicates if their fingerprints are equal.
    pub fingerprints: Vec<u128>,
    /// Keys and epochs of records in another process, if they are needed.
    pub(crate) elsewhere: Records,
}

impl RecordBatch {
    /// Number of records in this process.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

/// The next result of a source.
pub enum SourceEvent {
    /// The records of at most [`BATCH_RECORDS`] rows; possibly none, because the end of a batch
    /// depends on the number of rows and not on their contents. One of several sources returns its
    /// batch before it waits, even if empty, to show that it isn't idle.
    Batch(RecordBatch),
    /// Epochs have closed.
    Mark(EpochMark),
    /// The input has ended or the last epoch has closed. All marks came before.
    End,
}

/// Every epoch up to `epoch` is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochMark {
    /// The last closed epoch.
    pub epoch: u64,
    /// The last epoch that the clock has closed, with this mark or the next ones.
    pub due: u64,
    /// Position to resume from if this epoch, or any other that this mark closes, was the last
    /// committed one.
    pub resume: ResumePoint,
    /// Rows of the input up to the one that closed the epoch. Public: it depends on arrivals alone,
    /// also after a restart.
    pub rows: u64,
    /// Position after that row. As public as `rows`, unlike the position to resume from.
    pub read: Position,
}

/// Position at which a source resumes after an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumePoint {
    /// The position of the next row.
    pub position: Position,
    /// State of the public clock there; `clock.row` is the number of the next row over all files.
    pub clock: Clock,
    /// Rows before this number have counted if their epoch is closed. Later rows of closed epochs
    /// arrived after the close, and are late. The largest number for a single source: every row of
    /// a closed epoch has counted.
    pub late_from: u64,
    /// Checksum of the bytes before the position, which must be the same when it resumes; `None`
    /// where nothing can be compared. Private, as the position is.
    pub fingerprint: Option<u32>,
}

impl ResumePoint {
    /// Before the first row.
    pub const START: ResumePoint = ResumePoint {
        position: Position::START,
        clock: Clock::START,
        late_from: u64::MAX,
        fingerprint: None,
    };
}

/// Outcome of the rows of this run. Exact counts are private and only for the operator, so the type
/// can't be printed; serialized it goes to the private log alone. Rows that are read again after a
/// restart count again.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowCounters {
    /// Rows read.
    pub rows: u64,
    /// Rows that lack a value. With `missing = "by-column"` they count for their other columns.
    pub missing: u64,
    /// Rows with a value that can't be read. With `missing = "by-column"` they count for their
    /// other columns.
    pub malformed: u64,
    /// Rows that can't be used at all, for one of these reasons.
    pub unusable: u64,
    /// Rows skipped with a key that the pipeline doesn't list.
    pub unknown_key: u64,
    /// Late records that joined the oldest open epoch.
    pub folded: u64,
    /// Late records that were dropped.
    pub late: u64,
    /// Records from before the first epoch, dropped.
    pub before_start: u64,
    /// Records from after the last epoch, dropped.
    pub after_horizon: u64,
    /// Rows with a clock value further ahead than the pipeline allows, dropped.
    pub clock_jump: u64,
    /// Rows with a clock value from before the first epoch. Public, as the clock is.
    pub early_clock: u64,
    /// Rows with a clock value from after the last epoch. Public.
    pub past_clock: u64,
    /// Rows with a clock value in an epoch that rows before them have closed. Public.
    pub behind_clock: u64,
    /// Duplicates of a record, dropped.
    pub duplicates: u64,
    /// Records that a disconnect has cut, dropped.
    pub cut_off: u64,
    /// Records of epochs that an earlier run closed, dropped: the input can't be read again.
    pub already_closed: u64,
}

impl RowCounters {
    /// The counter of rows with this defect.
    fn of_defect(&mut self, defect: Defect) -> &mut u64 {
        match defect {
            Defect::Missing => &mut self.missing,
            _ => &mut self.malformed,
        }
    }
}

impl RowCounters {
    /// Rows that are not counted, or in another epoch than their own.
    pub(crate) fn uncounted(&self) -> u64 {
        let RowCounters {
            unusable, unknown_key, folded, late, before_start, after_horizon, clock_jump, ..
        } = self;
        unusable + unknown_key + folded + late + before_start + after_horizon + clock_jump
    }

    /// Returns the counts since an earlier state of the same counters.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        self.zip(earlier, u64::saturating_sub)
    }

    /// Combines each counter with that of the same name.
    fn zip(&self, other: &Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        RowCounters {
            rows: combine(self.rows, other.rows),
            missing: combine(self.missing, other.missing),
            malformed: combine(self.malformed, other.malformed),
            unusable: combine(self.unusable, other.unusable),
            unknown_key: combine(self.unknown_key, other.unknown_key),
            folded: combine(self.folded, other.folded),
            late: combine(self.late, other.late),
            before_start: combine(self.before_start, other.before_start),
            after_horizon: combine(self.after_horizon, other.after_horizon),
            clock_jump: combine(self.clock_jump, other.clock_jump),
            early_clock: combine(self.early_clock, other.early_clock),
            past_clock: combine(self.past_clock, other.past_clock),
            behind_clock: combine(self.behind_clock, other.behind_clock),
            duplicates: combine(self.duplicates, other.duplicates),
            cut_off: combine(self.cut_off, other.cut_off),
            already_closed: combine(self.already_closed, other.already_closed),
        }
    }
}

impl std::ops::AddAssign for RowCounters {
    fn add_assign(&mut self, other: Self) {
        *self = self.zip(&other, |own, more| own + more);
    }
}
