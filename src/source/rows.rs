//! Reads the rows of a source, one file after another, with their positions.

use std::io;
use std::path::PathBuf;

use super::fingerprint::Fingerprints;
use crate::connect::{HeaderlessFile, OpenFile, Origin, SourceError, io_error};
use crate::control::Control;
use crate::format::ByteStream;
use crate::format::csv::CsvRows;
use crate::format::form::RowLayout;
use crate::format::ndjson::NdjsonRows;
use crate::format::row::{FileRows, RECORD_LIMIT, Row, RowOutcome};
use crate::format::{Defect, Delimiter, Format, FormatError};
use crate::state::Position;

const REST: &str = "an earlier run has read the beginning of a line as the last row of the file, and the line has gone on since: its rest is \
    not used; a file that is still written is read with follow = true, which waits for whole lines";

/// Reads rows, and opens one file after the other.
pub(super) struct RowReader {
    origin: Box<dyn Origin>,
    shape: RowLayout,
    /// Whether an empty input is an error, because a header is required.
    expects_header: bool,
    control: Control,
    rows: Option<Box<dyn FileRows>>,
    /// The current row.
    pub(super) row: Row,
    /// Whether the next row is the remainder of a row that an earlier run has read.
    continues: bool,
    /// The position of the next row while no file is open.
    position: Position,
    /// Whether a file must be opened at `position` before the next row is read.
    is_parked: bool,
    /// Number of files before which it stops, because their rows may be parsed already; 0 if it
    /// passes on to the next file.
    ranged_files: u32,
    fingerprints: Fingerprints,
}

/// The next item of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextRow {
    /// A row that begins here.
    Row(Position),
    /// The beginning of the next file, if files are read in ranges.
    NextFile,
    /// The end of the input.
    End,
}

/// The next item of a reader of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangeRow {
    /// A row that begins at this offset and line, as [`RowReader::range_position`] counts them.
    Row((u64, u64)),
    /// A row that begins after the range.
    Past,
    /// The end of the file.
    FileEnd,
}

impl RowReader {
    /// Opens the file of a position.
    pub(super) fn open(
        origin: Box<dyn Origin>,
        shape: RowLayout,
        expects_header: bool,
        control: &Control,
        position: Position,
    ) -> Result<Self, SourceError> {
        let mut reader = Self::parked(origin, shape, expects_header, control, position);
        match reader.open_file() {
            Err(error) if !reader.control.is_stopped() => Err(error),
            _ => Ok(reader),
        }
    }

    /// Returns a reader that opens its first file when the first row is read.
    pub(super) fn parked(
        origin: Box<dyn Origin>,
        shape: RowLayout,
        expects_header: bool,
        control: &Control,
        position: Position,
    ) -> Self {
        RowReader {
            origin,
            shape,
            expects_header,
            control: control.clone(),
            rows: None,
            row: Row::default(),
            continues: false,
            position,
            is_parked: true,
            ranged_files: 0,
            fingerprints: Fingerprints::default(),
        }
    }

    /// Stops before each of the first `number` files.
    pub(super) fn stop_before_files(&mut self, number: usize) {
        self.ranged_files = u32::try_from(number).unwrap_or(u32::MAX);
    }

    /// Goes to a position, where the next row is read.
    pub(super) fn park(&mut self, position: Position) {
        (self.rows, self.continues, self.position, self.is_parked) = (None, false, position, true);
    }

    /// Passes the line ends before the next row, in a file that does not grow, and returns where
    /// the row begins.
    pub(super) fn settle(&mut self) -> Result<Position, SourceError> {
        if let Some(rows) = &mut self.rows {
            rows.settle().map_err(|source| io_error(&self.origin.name(self.position.part), source))?;
        }
        Ok(self.position())
    }

    /// Reads the next row of the same file if it begins before the offset `to`.
    pub(super) fn read_within(&mut self, to: u64) -> Result<RangeRow, SourceError> {
        self.unpark()?;
        self.settle()?;
        let before = self.range_position();
        if before.0 >= to {
            return Ok(RangeRow::Past);
        }
        let path = || self.origin.name(self.position.part);
        let Some(rows) = &mut self.rows else { return Ok(RangeRow::FileEnd) };
        match rows.read(&mut self.row).map_err(|source| io_error(&path(), source))? {
            RowOutcome::Row => Ok(RangeRow::Row(before)),
            RowOutcome::End => Ok(RangeRow::FileEnd),
            RowOutcome::TooLong => {
                let line = rows.line();
                Err(FormatError::RecordTooLong { path: path(), line, limit: RECORD_LIMIT }.into())
            }
        }
    }

    /// Whether offsets in ranges count rows: those of a Parquet file.
    pub(super) fn counts_rows(&self) -> bool {
        self.shape.format == Format::Parquet
    }

    /// The offset and the line of the next row, as ranges count: bytes and lines of a text; rows of
    /// a Parquet file, all in one line.
    pub(super) fn range_position(&self) -> (u64, u64) {
        match &self.rows {
            Some(rows) if self.counts_rows() => (rows.line(), 1),
            _ => (self.position().offset, self.position().row),
        }
    }

    /// Returns the bytes of a file from a position on, if there are any.
    pub(super) fn bytes_at(&mut self, position: Position) -> Result<Option<ByteStream>, SourceError> {
        Ok(match self.origin.open(position)? {
            Some(OpenFile::Bytes { stream, .. }) => Some(stream),
            _ => None,
        })
    }

    /// Opens the file at the position where the reader was parked.
    fn unpark(&mut self) -> Result<(), SourceError> {
        if self.is_parked { self.open_file() } else { Ok(()) }
    }

    /// Returns the fingerprint of the bytes read before a position.
    pub(super) fn fingerprint(&mut self, position: Position) -> Option<u32> {
        self.fingerprints.before(&*self.origin, position)
    }

    /// Checks that the bytes that an earlier run read before a position are unchanged.
    pub(super) fn check_unchanged(&mut self, position: Position, recorded: u32) -> Result<(), SourceError> {
        match self.fingerprint(position) {
            Some(found) if found != recorded => {
                let path = self
                    .origin
                    .read_before(position)
                    .map_or_else(|| self.origin.name(position.part), |read| read.path);
                Err(SourceError::Changed { path })
            }
            _ => Ok(()),
        }
    }

    /// The position of the next row.
    pub(super) fn position(&self) -> Position {
        match &self.rows {
            None => self.position,
            Some(rows) => {
                let (offset, line) = rows.position();
                Position { offset, row: line, ..self.position }
            }
        }
    }

    /// The name of the next row's file, for messages.
    pub(super) fn name(&self) -> PathBuf {
        self.name_of(self.position.part)
    }

    /// The name of a file, for messages.
    pub(super) fn name_of(&self, part: u32) -> PathBuf {
        self.origin.name(part)
    }

    /// The line where the current row began.
    pub(super) fn line(&self) -> u64 {
        self.rows.as_ref().map_or(0, |rows| rows.line())
    }

    /// The name of a wanted column.
    pub(super) fn column(&self, slot: usize) -> String {
        self.shape.wanted[slot].clone()
    }

    /// Whether the next row may require waiting.
    pub(super) fn must_wait(&self) -> bool {
        self.rows.as_ref().is_none_or(|rows| !rows.has_buffered_row())
    }

    /// Reads the next row of this or the following files.
    pub(super) fn read(&mut self) -> Result<NextRow, SourceError> {
        self.unpark()?;
        loop {
            let before = self.position();
            let path = || self.origin.name(before.part);
            let Some(rows) = &mut self.rows else { return Ok(NextRow::End) };
            match rows.read(&mut self.row).map_err(|source| io_error(&path(), source))? {
                RowOutcome::Row => {
                    if std::mem::take(&mut self.continues) {
                        self.row.defect = Some(Defect::Continued);
                        self.control.notice(&format!("{}: {REST}", path().display()));
                    }
                    return Ok(NextRow::Row(before));
                }
                RowOutcome::TooLong => {
                    let line = rows.line();
                    return Err(FormatError::RecordTooLong { path: path(), line, limit: RECORD_LIMIT }.into());
                }
                RowOutcome::End => {
                    let (end, _) = rows.position();
                    if before.part + 1 < self.ranged_files {
                        self.park(Position::new(before.part + 1, 0));
                        return Ok(NextRow::NextFile);
                    }
                    self.position = Position::new(before.part + 1, 0);
                    self.open_file()?;
                    if self.rows.is_none() {
                        // Last file: a later run resumes at its end, because it may grow.
                        self.position = Position { offset: end, ..before };
                    }
                }
            }
        }
    }

    /// Opens the file that the position names, if there is one.
    fn open_file(&mut self) -> Result<(), SourceError> {
        let Position { part: file, row: line, .. } = self.position;
        self.is_parked = false;
        let opened = self.origin.open(self.position)?;
        self.continues = matches!(opened, Some(OpenFile::Bytes { is_rest: true, .. }));
        if file == 0 && opened.is_none() && matches!(self.shape.format, Format::Csv(_)) && self.expects_header
        {
            // The journal is still empty.
            return Err(FormatError::NoHeader { path: self.origin.name(file) }.into());
        }
        self.rows = match (opened, self.shape.format) {
            (None, _) => None,
            (Some(OpenFile::Rows(rows)), _) => Some(rows),
            (Some(OpenFile::Bytes { stream, header, .. }), Format::Csv(delimiter)) => {
                match (self.open_csv(stream, header, delimiter), self.origin.without_header(file)) {
                    (Err(FormatError::NoHeader { .. }), HeaderlessFile::Early) => None,
                    (Err(FormatError::NoHeader { .. }), HeaderlessFile::Passed) => {
                        self.rows = None;
                        self.position = Position::new(file + 1, 0);
                        return self.open_file();
                    }
                    (rows, _) => Some(Box::new(rows?)),
                }
            }
            (Some(OpenFile::Bytes { stream, .. }), _) => {
                Some(Box::new(NdjsonRows::open(stream, line, &self.shape.wanted)))
            }
        };
        Ok(())
    }

    /// Reads the header of a CSV file. The rows follow in the same stream or in another one.
    fn open_csv(
        &self,
        stream: ByteStream,
        header: Option<ByteStream>,
        delimiter: Delimiter,
    ) -> Result<CsvRows, FormatError> {
        let Position { part: file, row: line, .. } = self.position;
        let (path, wanted) = (self.origin.name(file), &self.shape.wanted);
        let own_header =
            self.shape.header.as_ref().map(|header| ByteStream::new(io::Cursor::new(header.clone()), 0));
        match (own_header, header) {
            (Some(own_header), _) => {
                Ok(CsvRows::open(own_header, &path, delimiter, wanted)?.resume(stream, line))
            }
            (None, None) => CsvRows::open(stream, &path, delimiter, wanted),
            (None, Some(header)) => {
                let rows = CsvRows::open(header, &path, delimiter, wanted)?;
                let (_, behind) = rows.position();
                Ok(rows.resume(stream, line.max(behind)))
            }
        }
    }
}
