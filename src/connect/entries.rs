//! What a system gives to a source: entries in their order, each with the position behind it.

use std::fmt;

use super::{Equal, Formats, Trouble};
use crate::control::Control;
use crate::format::form::Form;
use crate::format::row::Row;

/// The least number that the next entry may have, in two parts.
pub(crate) type Position = (u64, u64);

/// Before the first entry.
pub(crate) const START: Position = (0, 1);

/// A stream as a pipeline names it.
pub(crate) trait Reads: Equal + fmt::Debug + Send + Sync {
    /// The system and the stream, in messages: without a secret.
    fn name(&self) -> String;

    /// What tells the stream from others of the same system, wherever that runs.
    fn identity(&self) -> Vec<u8>;

    /// How entries may be written.
    fn formats(&self) -> Formats;

    /// Connects, and reads on from a position.
    fn open(&self, control: &Control, position: Position) -> Result<Box<dyn Entries>, Trouble>;
}

/// A connection over which entries come, in their order.
pub(crate) trait Entries: Send {
    /// Reads the next entry into `row`, and gives the position behind it; none if there has been
    /// none for a moment.
    fn next(&mut self, row: &mut Row, form: &mut Form) -> Result<Option<Position>, Trouble>;

    /// Whether there is one that needs not be waited for. False is always safe.
    fn is_at_hand(&self) -> bool;
}

/// The identity of a stream that has a name, in a database or a partition.
pub(super) fn identity(database: u32, partition: u32, stream: &str) -> Vec<u8> {
    [&database.to_le_bytes(), &partition.to_le_bytes(), stream.as_bytes()].concat()
}
