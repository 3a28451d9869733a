//! Ranges of files, parsed ahead of their turn, by other threads and by other processes.
//!
//! **Equal to one reader.** One reader takes the rows of all files in their order. Its clock is the
//! running maximum over the rows before; whether a row leaps, is late, or closes epochs depends on
//! that clock, and so on all rows before it. But what a row *holds* depends on the row alone. So
//! the work is cut there. Ranges are parsed at once, in any order and anywhere ([`RangeParser`]).
//! Their rows then pass one clock in the order of the files, in the same code as rows that are not
//! parsed ahead ([`RangeCursor`]). It would not suffice to combine one maximum for each range:
//! whether a row leaps depends on every row before it.
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
//! **Rows that others hold.** No row of a range that another process has parsed is sent. Instead
//! the clock goes to the values: the process that takes rows sends its [`ReaderState`] to the
//! holder, whose own reader takes the rows of that range, in the same code. It returns the state
//! after them and the epochs that they have closed ([`RangeResult`]). One clock still passes all
//! rows in the order of the files; only the process in which it does so changes. So epochs, late
//! rows, counters and errors are those of one reader by construction.
//!
//! **Parquet files** are cut between rows, so nothing is guessed. Offsets in ranges then count the
//! rows of a file, over its row groups. A small **packed file** is one range: a packed file can't
//! be read from its middle.

mod cursor;
mod handover;
mod parser;
mod pool;
#[cfg(test)]
mod tests;

use hushflow_mechanism::moments::wipe;
use hushflow_operators::Entity;
use serde::{Deserialize, Serialize};

use super::RowSurvey;
use super::content::{RowOutcome, UnusableRow};
use crate::connect::FileCut;
use crate::state::Position;

pub(super) use cursor::{RangeCursor, RowAccess, TakenRow};
pub(crate) use handover::{HeldRecords, RangeHandover, RangeResult, RangeTaker};
pub(super) use handover::{LeapNotice, ReturnedRows};
pub(crate) use parser::RangeParser;
use pool::{Pool, PooledVec};

/// Maximum number of rows of a range. A range with more rows is read in its turn.
const MOST_ROWS: usize = 1 << 20;

/// The stretches of all files, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RangePlan {
    pub(crate) stretches: Vec<FileStretch>,
    /// How each file is cut, from this one on.
    first_file: u32,
    files: Vec<FileCut>,
}

/// A stretch of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileStretch {
    /// The position where it begins.
    pub(crate) start: Position,
    /// Offsets of its beginning and its end: in bytes, or in rows for Parquet. The end is the
    /// largest number for the last stretch of a text file, which may grow.
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl RangePlan {
    /// Bytes of a stretch of a text file, and rows of a stretch of a Parquet file.
    pub(crate) const STRETCH: (u64, u64) = (1 << 19, 1 << 15);

    /// Maximum number of bytes of a stretch of long files, if several processes parse: for each
    /// stretch, the clock goes from one process to another.
    pub(crate) const LONGEST: u64 = 1 << 21;

    /// Total size of the text files that are cut, in bytes.
    pub(crate) fn length(files: &[FileCut]) -> u64 {
        let length = |file: &FileCut| if let FileCut::Bytes(length) = file { *length } else { 0 };
        files.iter().map(length).sum()
    }

    /// Cuts files into stretches of this number of bytes or rows.
    pub(crate) fn new(files: Vec<FileCut>, (bytes, rows): (u64, u64)) -> Self {
        let mut plan = RangePlan { stretches: Vec::new(), first_file: 0, files };
        let mut stretches = Vec::new();
        for (part, file) in (0..).zip(&plan.files) {
            let (stretch, number, end) = match file {
                FileCut::Uncut => continue,
                FileCut::Whole(_) => (u64::MAX, 1, u64::MAX),
                FileCut::Bytes(length) => (bytes, length.div_ceil(bytes).max(1), u64::MAX),
                FileCut::Rows(groups) => {
                    let all = groups.last().copied().unwrap_or(0);
                    (rows, all.div_ceil(rows), all)
                }
            };
            stretches.extend((0..number).map(|index| {
                let from = index * stretch;
                let start = plan.position(Position::new(part, 0), from, 0);
                FileStretch { start, from, to: if index + 1 == number { end } else { from + stretch } }
            }));
        }
        plan.stretches = stretches;
        plan
    }

    /// The plan of one stretch, for the process that parses it.
    pub(crate) fn of_one(&self, stretch: usize) -> Self {
        let stretch = self.stretches[stretch];
        let file = stretch.start.part;
        RangePlan { stretches: vec![stretch], first_file: file, files: vec![self.file(file).clone()] }
    }

    /// Number of bytes that a file must have in every process that reads it.
    fn least_length(&self, stretch: &FileStretch) -> u64 {
        match self.file(stretch.start.part) {
            FileCut::Bytes(length) | FileCut::Whole(length) => *length,
            FileCut::Uncut | FileCut::Rows(_) => 0,
        }
    }

    /// Number of files.
    pub(super) fn files(&self) -> usize {
        self.files.len()
    }

    fn file(&self, part: u32) -> &FileCut {
        let index = part.checked_sub(self.first_file).and_then(|index| self.files.get(index as usize));
        index.unwrap_or(&FileCut::Uncut)
    }

    /// The offset of a position, as ranges count.
    fn offset(&self, position: Position) -> u64 {
        match self.file(position.part) {
            FileCut::Rows(groups) => {
                let group = usize::try_from(position.offset).unwrap_or(usize::MAX);
                groups.get(group).copied().unwrap_or(u64::MAX).saturating_add(position.row.saturating_sub(1))
            }
            _ => position.offset,
        }
    }

    /// The position of an offset, this number of lines after `before` in the same file.
    fn position(&self, before: Position, offset: u64, lines: u64) -> Position {
        match self.file(before.part) {
            FileCut::Rows(groups) => {
                let group = groups.partition_point(|&first| first <= offset).saturating_sub(1);
                let row = offset - groups.get(group).copied().unwrap_or(0) + 1;
                Position { offset: group as u64, row, ..before }
            }
            _ => Position { offset, row: before.row + lines, ..before },
        }
    }

    /// The line of a row at this position: in Parquet, its number in the file.
    fn line(&self, position: Position) -> u64 {
        match self.file(position.part) {
            FileCut::Rows(_) => self.offset(position) + 1,
            _ => position.row,
        }
    }

    /// Whether the rows of a stretch can't continue at a position within it. Outside of text files
    /// nothing is guessed: the rows begin where the stretch does.
    fn is_missed(&self, stretch: &FileStretch, position: Position) -> bool {
        let is_text = matches!(self.file(position.part), FileCut::Bytes(_));
        !is_text && self.offset(position) != stretch.from
    }

    /// Whether a range is known to be incomplete.
    fn is_cut_short(&self, stretch: &FileStretch, range: &RangeExtent) -> bool {
        matches!(self.file(stretch.start.part), FileCut::Rows(_)) && range.end != stretch.to
    }

    /// Whether a file ends with a range, and another file follows.
    fn passes_to_next_file(&self, part: u32, range: &RangeExtent) -> bool {
        let is_last = match self.file(part) {
            FileCut::Rows(groups) => groups.last().is_some_and(|&rows| range.end >= rows),
            _ => range.ends_file,
        };
        is_last && part as usize + 1 < self.files.len()
    }

    /// Whether a stretch ends before a position.
    fn is_before(&self, stretch: &FileStretch, position: Position) -> bool {
        (stretch.start.part, stretch.to) <= (position.part, self.offset(position))
    }

    fn holds(&self, stretch: &FileStretch, position: Position) -> bool {
        stretch.start.part == position.part && (stretch.from..stretch.to).contains(&self.offset(position))
    }
}

/// Parses ranges ahead of their turn.
pub(crate) trait RangeSupply: Send {
    /// Takes a range, by its index in the plan. Waits a short time, and returns `None` if it is not
    /// parsed by then. Ranges before it are not asked for again.
    fn take(&mut self, range: usize) -> Option<ParsedRange>;

    /// Announces that this range is taken next.
    fn want(&mut self, range: usize);

    /// Whether a range is parsed in this process.
    fn is_ready(&self, range: usize) -> bool;

    /// Lets the process that holds a range take its rows.
    fn hand_over(&mut self, holder: usize, handover: RangeHandover);

    /// Returns what has become of the range that was handed over. Waits a short time, and returns
    /// `None` if that is not known by then.
    fn take_back(&mut self) -> Option<RangeResult>;
}

/// Where a parsed range begins and ends.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct RangeExtent {
    /// Whether it was parsed. If not, its rows must be read in their turn.
    pub(crate) is_parsed: bool,
    /// Offset of the first row.
    start: u64,
    /// Offset after the last row.
    pub(crate) end: u64,
    /// Line ends from the first row to the end.
    lines: u64,
    /// Whether the file ends with it.
    ends_file: bool,
    /// Number of rows.
    rows: u64,
}

/// A parsed range, here or in another process.
#[derive(Default)]
pub(crate) struct ParsedRange {
    pub(crate) extent: RangeExtent,
    /// Its rows, if they are here.
    rows: PooledVec<ParsedRow>,
    held: HeldContent,
    /// The process that holds the rows, if it is another one.
    pub(crate) holder: Option<usize>,
}

impl ParsedRange {
    /// A range whose rows the process with this number holds.
    pub(crate) fn elsewhere(extent: RangeExtent, holder: usize) -> Self {
        ParsedRange { extent, holder: Some(holder), ..ParsedRange::default() }
    }
}

/// A row of a range, without its values. Private.
#[derive(Clone, Copy)]
pub(crate) struct ParsedRow {
    clock: i64,
    event: i64,
    key: u32,
    /// Bytes, or rows in Parquet, from the start of the range.
    start: u32,
    /// Line ends from the start of the range.
    line: u32,
    outcome: ParsedOutcome,
}

/// What a parsed row can be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParsedOutcome {
    /// It does not move the clock.
    NoClock(UnusableRow),
    /// Its event time can't be read.
    NoEvent(UnusableRow),
    Content(RowOutcome),
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
        use RowOutcome::{Blank, Partial, Record};
        matches!(self.outcome, ParsedOutcome::Content(Record | Partial(_) | Blank(_)))
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
