//! Sources: rows of files or of the standard input, as batches of records that know their epochs.
//!
//! A [`SourceReader`] is pulled by one thread and gives [`Event`]s in this order: batches of records, and after
//! each stretch of the public clock that closes epochs a [`Mark`] that names the last closed one and the place to
//! resume from. A mark comes after every record of the epochs that it closes; later records belong to later epochs.
//!
//! **Resuming.** A mark's place is the smallest one that misses no record of a later epoch. Reading on from there
//! restores the clock, so that every row is assigned as it was before; rows of closed epochs are passed over. The
//! standard input can't be read again, and nobody knows whether a second run is given the old rows or new ones. So
//! after a restart its rows of closed epochs are dropped and counted, never folded into later epochs: a row that is
//! piped in twice is not counted twice.
//!
//! Where the pipeline asks for a journal, what comes on the standard input is new each time. It goes through the state
//! directory's [journal](crate::state::Ingest), whose sessions are read like files: from a place, one after the other.
//!
//! A socket is journaled as well. Followed files and the streams of brokers have places as files have: they can be read again.
//!
//! The end of the input closes the epoch that has begun, if a clock is there to say so. Rows that a file gains afterwards
//! belong to the next epoch: they are late, not lost.
//!
//! **Several sources** are read each by a reader of its own, by its own clock: so where its records belong does not depend on
//! the others, and a reader that resumes finds it again. [`crate::runtime`] closes an epoch when all clocks have passed it, or
//! those that count. What it has not waited for is told by a [`Resume`].
//!
//! **A clock that leaps** further than the pipeline allows is not believed: the row is counted and not used, and moves nothing.
//!
//! **What a row may do.** A row holds its place in the stream whether or not it can be used, and its arrival moves
//! the clock whether or not its other fields can be read, so what one person's record holds never moves another's.
//! The framing of rows and the arrival column are the collector's, and trusted: a row with a wrong number of fields
//! does not move the clock, for nobody knows which field is which.
//!
//! **Rows that can't be used** are skipped. Where counts are public, a row whose key and time can be read and whose values
//! can't is a record all the same, of NaNs, which the clipper counts as the centre of the bounds: else the count would
//! tell that it was there.

mod door;
mod entry;
mod error;
mod files;
mod follow;
mod intake;
mod reader;
mod roles;
mod session;
mod socket;
mod stream;
#[cfg(test)]
mod tests;

use hushflow_mechanism::epochs::Clock;
use hushflow_operators::Records;
use serde::{Deserialize, Serialize};

pub use error::{Defect, SourceError};
pub(crate) use follow::Followed;
pub(crate) use intake::Intake;
pub use reader::SourceReader;
pub(crate) use socket::Connections;

/// The most rows of a batch, and so the most records.
pub const BATCH_RECORDS: usize = 4096;

/// Records with what tells copies of them.
#[derive(Default)]
pub struct Batch {
    /// In the order of their rows.
    pub records: Records,
    /// Of each record where the pipeline names a column of ids, else none: equal for two records of an epoch that are copies.
    pub fingerprints: Vec<u128>,
}

impl Batch {
    /// Number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

/// What a source gives next.
pub enum Event {
    /// The records of at most [`BATCH_RECORDS`] rows. There may be none: where a batch ends depends on rows alone, and not on what
    /// they hold. One of several sources gives what it has before it waits, even if empty, as a sign that it isn't idle.
    Batch(Batch),
    /// Epochs have closed.
    Mark(Mark),
    /// There is nothing more: the input has ended or the last epoch has closed. All marks came before.
    End,
}

/// Every epoch up to `epoch` is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The last closed epoch.
    pub epoch: u64,
    /// Where to resume once this epoch, or any other that this mark closes, is the last committed one.
    pub resume: Position,
    /// Rows of the input up to the one whose clock has closed the epoch. It is public: it depends on arrivals alone, also after a
    /// restart.
    pub rows: u64,
}

/// A place between two rows of a source. Of a broker's stream it holds the least number that the next entry may have: in
/// JetStream `offset`; in Redis `offset` are the milliseconds of its id and `line` is the number behind them. In a Parquet file
/// `offset` is the row group and `line` is the row in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The file's number in the pipeline's list or that of followed files, or the session's in the journal, from 0.
    pub file: u32,
    /// The offset in that file, in bytes; in a session, behind its header.
    pub offset: u64,
    /// The line in that file, from 1.
    pub line: u64,
    /// What the public clock showed there; `clock.row` is the number of the next row over all files.
    pub clock: Clock,
}

impl Position {
    /// Before the first row.
    pub const START: Position = Position { file: 0, offset: 0, line: 1, clock: Clock::START };
}

/// Where a source goes on after an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// The place.
    pub position: Position,
    /// Rows behind the place and before this one have counted if their epoch is closed. From this one on they had not been
    /// waited for, and are late.
    pub late_from: u64,
}

impl Resume {
    /// Where every row of a closed epoch has counted, as that of a source which is alone.
    pub fn alone(position: Position) -> Self {
        Resume { position, late_from: u64::MAX }
    }
}

/// What became of the rows of this run. Exact counts are private: they are for the operator's eyes, so they can't
/// be printed as a whole. Rows that are read again after a restart count again.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Rows read.
    pub rows: u64,
    /// Rows that lack a value.
    pub missing: u64,
    /// Rows with a value that can't be read.
    pub malformed: u64,
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
    /// Rows whose clock is further ahead than the pipeline allows, dropped.
    pub leaping: u64,
    /// Copies of a record, dropped.
    pub copies: u64,
    /// Records that a disconnect has cut, dropped.
    pub torn: u64,
    /// Records of epochs that an earlier run closed, dropped: the input can't be read again.
    pub already_closed: u64,
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        let Counters { rows, missing, malformed, unknown_key, folded, late, .. } = other;
        let Counters { before_start, after_horizon, leaping, copies, torn, already_closed, .. } = other;
        self.rows += rows;
        self.missing += missing;
        self.malformed += malformed;
        self.unknown_key += unknown_key;
        self.folded += folded;
        self.late += late;
        self.before_start += before_start;
        self.after_horizon += after_horizon;
        self.leaping += leaping;
        self.copies += copies;
        self.torn += torn;
        self.already_closed += already_closed;
    }
}
