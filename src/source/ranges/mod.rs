//! Ranges of files, parsed ahead of their turn, by other threads and by other processes.
//!
//! **Equal to one reader.** One reader takes the rows of all files in their order. Its clock is the
//! running maximum over the rows before; whether a row leaps, is late, or closes epochs depends on
//! that clock, and so on all rows before it. But what a row *holds* depends on the row alone. So
//! the work is cut there: ranges are parsed at once, in any order and anywhere
//! ([`RangeParser`]), and their rows then pass one clock in the order of the files, in the same
//! code as rows that are not parsed ahead ([`RangeCursor`]). Joining only a maximum per range would
//! not do: whether a row leaps depends on every row before it.
//!
//! **Where a range begins.** A range is the rows whose first byte lies in a stretch of
//! [`RangePlan::STRETCH`] bytes. Whether a line end in a CSV file ends a row or lies within quotes
//! depends on all bytes before it. So the parser of a range guesses its first row: the one after
//! the first line end of the stretch. If that row does not have the fields of the header, it is one
//! of the next rows, or of those after the next closing quote. The guess is never trusted: the rows
//! of a range are used only if the row before them ended exactly where they begin. One reader would
//! then have parsed them alike. Otherwise they are read as by one reader, from the position where
//! the rows before ended. The same happens for a range that could not be parsed, so errors come
//! from the same row and have the same text. A wrong guess costs time and changes nothing.
//!
//! **Rows that others hold.** For a range parsed by another process, only [`ParsedRow`]s arrive:
//! times, key, and where the row begins. Their values stay there, and their epochs are sent back
//! ([`AssignedRows`]).

mod cursor;
mod held;
mod parser;
mod pool;
#[cfg(test)]
mod tests;
mod words;

use hushflow_mechanism::moments::wipe;
use hushflow_operators::Entity;
use serde::{Deserialize, Serialize};

use super::RowSurvey;
use super::content::{RowFate, UnusableRow};
use crate::state::Position;

pub(super) use cursor::{RangeCursor, TakenRow, Turn};
pub(crate) use held::{AssignedRows, HeldRange};
pub(crate) use parser::RangeParser;
use pool::{Pool, PooledVec};
pub(crate) use words::Words;

/// The stretches of all files, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangePlan {
    pub(crate) stretches: Vec<FileStretch>,
    /// The length of each file; `None` for one that is not cut, and read in its turn.
    pub(crate) lengths: Vec<Option<u64>>,
}

/// A stretch of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileStretch {
    /// Index of the file.
    pub(crate) part: u32,
    pub(crate) from: u64,
    /// The end; the largest number for the last stretch of a file, which may grow.
    pub(crate) to: u64,
}

impl RangePlan {
    /// Bytes of a stretch.
    pub(crate) const STRETCH: u64 = 1 << 19;

    /// Cuts files of these lengths.
    pub(crate) fn new(lengths: Vec<Option<u64>>, stretch: u64) -> Self {
        let of_file = |(part, length): (u32, &Option<u64>)| {
            let number = length.map_or(0, |length| length.div_ceil(stretch).max(1));
            (0..number).map(move |index| {
                let to = if index + 1 == number { u64::MAX } else { (index + 1) * stretch };
                FileStretch { part, from: index * stretch, to }
            })
        };
        let stretches = (0..).zip(&lengths).flat_map(of_file).collect();
        RangePlan { stretches, lengths }
    }
}

impl FileStretch {
    /// Whether it ends before a position.
    fn is_before(&self, position: Position) -> bool {
        (self.part, self.to) <= (position.part, position.offset)
    }

    fn holds(&self, position: Position) -> bool {
        self.part == position.part && (self.from..self.to).contains(&position.offset)
    }
}

/// Parses ranges ahead of their turn.
pub(crate) trait RangeSupply: Send {
    /// Takes a range, by its index in the plan. Waits a short time, and returns `None` if it is not
    /// parsed by then. Ranges before it are not asked for again.
    fn take(&mut self, range: usize) -> Option<ParsedRange>;

    /// Whether a range is parsed.
    fn is_ready(&self, range: usize) -> bool;
}

/// The rows of a range.
#[derive(Default)]
pub(crate) struct ParsedRange {
    /// Whether it was parsed. If not, its rows must be read in their turn.
    pub(crate) is_parsed: bool,
    /// Offset of the first row.
    pub(crate) start: u64,
    /// Offset after the last row.
    pub(crate) end: u64,
    /// Line ends from the first row to the end.
    pub(crate) lines: u64,
    /// Whether the file ends with it.
    pub(crate) ends_file: bool,
    pub(crate) rows: PooledVec<ParsedRow>,
    /// What the rows hold beside; `None` if another process holds it.
    pub(crate) held: Option<HeldContent>,
    /// That process.
    pub(crate) holder: usize,
}

/// A row of a range, without its values. Private.
#[derive(Clone, Copy)]
pub(crate) struct ParsedRow {
    clock: i64,
    event: i64,
    key: u32,
    /// Bytes from the start of the range.
    start: u32,
    /// Line ends from the start of the range.
    line: u32,
    fate: ParsedFate,
}

/// What a row is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParsedFate {
    /// It does not move the clock.
    NoClock(UnusableRow),
    /// Its event time can't be read.
    NoEvent(UnusableRow),
    Content(RowFate),
}

/// Values of the records of a range. Private.
#[derive(Default)]
pub(crate) struct HeldContent {
    values: PooledVec<f64>,
    /// Number of values of a record.
    width: usize,
    /// One for each record, if entities are protected.
    entities: Vec<Entity>,
    /// One for each record, if the pipeline names an id.
    fingerprints: Vec<u128>,
    survey: RowSurvey,
}

impl ParsedRow {
    /// Whether it has values.
    fn is_record(&self) -> bool {
        use RowFate::{Blank, Partial, Record};
        matches!(self.fate, ParsedFate::Content(Record | Partial(_) | Blank(_)))
    }
}

/// Buffers of the ranges of a process.
#[derive(Clone, Default)]
pub(super) struct RangeBuffers {
    rows: Pool<ParsedRow>,
    values: Pool<f64>,
}

impl Drop for HeldContent {
    fn drop(&mut self) {
        wipe(&mut self.values);
    }
}
