//! Reads the rows of a CSV file (RFC 4180, any delimiter, header row) into bounded buffers.

use std::io::{self, BufRead, Cursor};
use std::path::Path;

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};

use super::error::{Defect, FormatError};
use super::row::{FileRows, RECORD_LIMIT, Row, RowField, RowOutcome};
use super::{ByteStream, io_error};
use crate::spelling::misspelt;

/// Delimiter of the fields of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delimiter {
    /// `,`
    #[default]
    Comma,
    /// `;`
    Semicolon,
    /// A tab.
    Tab,
    /// `|`
    Bar,
}

/// Number of rows that determine the delimiter of a file.
const LOOKED_AT: usize = 50;

impl Delimiter {
    const ALL: [Delimiter; 4] = [Self::Comma, Self::Semicolon, Self::Tab, Self::Bar];

    /// Returns the character.
    pub const fn byte(self) -> u8 {
        match self {
            Self::Comma => b',',
            Self::Semicolon => b';',
            Self::Tab => b'\t',
            Self::Bar => b'|',
        }
    }

    /// Returns the delimiter by which the most rows at the start of a file have as many fields as
    /// the header; of several, the one that splits the header into the most fields. A comma, if
    /// each leaves the header whole.
    ///
    /// # Errors
    /// If the file can't be read.
    pub(super) fn of(path: &Path, start: &[u8]) -> Result<Self, FormatError> {
        let mut best = (Self::Comma, (0, 0));
        for delimiter in Self::ALL {
            let fit = delimiter.fit(path, start)?;
            if fit > best.1 {
                best = (delimiter, fit);
            }
        }
        Ok(best.0)
    }

    /// Returns how many of the first rows have as many fields as the header, and this number of
    /// fields; zeros if the header has one.
    fn fit(self, path: &Path, start: &[u8]) -> Result<(usize, usize), FormatError> {
        let stream = ByteStream::new(Cursor::new(start.to_vec()), 0);
        let (mut rows, mut row) = (CsvRows::before_header(stream, self), Row::default());
        let (mut width, mut fitting) = (0, 0);
        for number in 0..=LOOKED_AT {
            match rows.read_fields(&mut row).map_err(|source| io_error(path, source))? {
                (RowOutcome::Row, fields) if number == 0 => width = fields,
                (RowOutcome::Row, fields) => fitting += usize::from(fields == width),
                _ => break,
            }
        }
        Ok(if width > 1 { (fitting, width) } else { (0, 0) })
    }
}

/// A CSV file after its header.
pub struct CsvRows {
    stream: ByteStream,
    parser: Reader,
    /// The number of fields in the header.
    width: usize,
    /// The index in a row of every wanted column.
    columns: Vec<usize>,
    /// The end of each field of the current row in its text.
    ends: Vec<usize>,
    line: u64,
}

impl CsvRows {
    /// Reads the header of `stream` and finds the wanted columns in it.
    pub fn open(
        stream: ByteStream,
        path: &Path,
        delimiter: Delimiter,
        wanted: &[String],
    ) -> Result<Self, FormatError> {
        let rows = Self::before_header(stream, delimiter);
        rows.after_header(path, |header| find_all(header, wanted, path))
    }

    /// Reads the header of `stream` and takes all its columns.
    pub fn open_all(
        stream: ByteStream,
        path: &Path,
        delimiter: Delimiter,
    ) -> Result<(Self, Vec<String>), FormatError> {
        let mut names = Vec::new();
        let rows = Self::before_header(stream, delimiter).after_header(path, |header| {
            names = header.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
            find_all(header, &names, path)
        })?;
        Ok((rows, names))
    }

    fn before_header(stream: ByteStream, delimiter: Delimiter) -> Self {
        let parser = ReaderBuilder::new().delimiter(delimiter.byte()).build();
        CsvRows { stream, parser, width: 0, columns: Vec::new(), ends: vec![0; 64], line: 1 }
    }

    fn after_header(
        self,
        path: &Path,
        columns: impl FnOnce(&[&[u8]]) -> Result<Vec<usize>, FormatError>,
    ) -> Result<Self, FormatError> {
        let (mut rows, mut row) = (self, Row::default());
        match rows.read_fields(&mut row).map_err(|source| io_error(path, source))? {
            (RowOutcome::End, _) => Err(FormatError::NoHeader { path: path.into() }),
            (RowOutcome::TooLong, _) => {
                Err(FormatError::RecordTooLong { path: path.into(), line: rows.line, limit: RECORD_LIMIT })
            }
            (RowOutcome::Row, width) => {
                let header: Vec<&[u8]> = (0..width).map(|i| row.text[rows.range(i)].trim_ascii()).collect();
                rows.columns = columns(&header)?;
                rows.width = width;
                Ok(rows)
            }
        }
    }

    /// Continues in `stream`, which is the same file at another position, in line `line`.
    pub fn resume(mut self, stream: ByteStream, line: u64) -> Self {
        self.stream = stream;
        self.parser.set_line(line);
        self
    }

    /// Continues in `stream`, and discards the state of the parser.
    pub fn begin(&mut self, stream: ByteStream) {
        self.parser.reset();
        self.stream = stream;
    }

    /// Returns whether only line ends remain.
    pub fn is_at_end(&mut self) -> bool {
        self.skip_line_ends().is_ok() && self.stream.fill_buf().is_ok_and(<[u8]>::is_empty)
    }

    /// Reads the next record; returns the number of its fields.
    fn read_fields(&mut self, row: &mut Row) -> io::Result<(RowOutcome, usize)> {
        self.skip_line_ends()?;
        self.line = self.parser.line();
        let (mut written, mut fields, mut length) = (0, 0, 0);
        loop {
            let input = self.stream.fill_buf()?;
            let (result, read, more_text, more_fields) =
                self.parser.read_record(input, &mut row.text[written..], &mut self.ends[fields..]);
            self.stream.consume(read);
            written += more_text;
            fields += more_fields;
            length += read;
            if length > RECORD_LIMIT {
                return Ok((RowOutcome::TooLong, fields));
            }
            let grown = match result {
                ReadRecordResult::InputEmpty => true,
                ReadRecordResult::OutputFull => grow(&mut row.text),
                ReadRecordResult::OutputEndsFull => grow(&mut self.ends),
                ReadRecordResult::Record => return Ok((RowOutcome::Row, fields)),
                ReadRecordResult::End => return Ok((RowOutcome::End, 0)),
            };
            if !grown {
                return Ok((RowOutcome::TooLong, fields));
            }
        }
    }

    /// Skips empty lines and the rest of the last row's `\r\n`, so that a row's first line is
    /// known.
    fn skip_line_ends(&mut self) -> io::Result<()> {
        while let Some(&byte @ (b'\r' | b'\n')) = self.stream.fill_buf()?.first() {
            self.stream.consume(1);
            self.parser.set_line(self.parser.line() + u64::from(byte == b'\n'));
        }
        Ok(())
    }

    fn range(&self, column: usize) -> std::ops::Range<usize> {
        let start = if column == 0 { 0 } else { self.ends[column - 1] };
        start..self.ends[column]
    }
}

impl FileRows for CsvRows {
    fn read(&mut self, row: &mut Row) -> io::Result<RowOutcome> {
        let (outcome, fields) = self.read_fields(row)?;
        row.fields.clear();
        row.defect = (fields != self.width).then_some(Defect::FieldCount);
        if outcome == RowOutcome::Row && row.defect.is_none() {
            row.fields.extend(self.columns.iter().map(|&column| RowField::Text(self.range(column))));
        }
        Ok(outcome)
    }

    fn settle(&mut self) -> io::Result<()> {
        self.skip_line_ends()
    }

    fn position(&self) -> (u64, u64) {
        (self.stream.offset(), self.parser.line())
    }

    fn line(&self) -> u64 {
        self.line
    }

    fn has_buffered_row(&self) -> bool {
        self.stream.holds_line()
    }
}

/// Returns the header row with these column names.
pub fn header_row(names: &[String], delimiter: Delimiter) -> Vec<u8> {
    let quoted = |name: &String| format!("\"{}\"", name.replace('"', "\"\""));
    let names: Vec<String> = names.iter().map(quoted).collect();
    (names.join(&char::from(delimiter.byte()).to_string()) + "\n").into_bytes()
}

fn find_all(header: &[&[u8]], wanted: &[String], path: &Path) -> Result<Vec<usize>, FormatError> {
    wanted.iter().map(|name| find(header, name, wanted, path)).collect()
}

fn find(header: &[&[u8]], name: &str, wanted: &[String], path: &Path) -> Result<usize, FormatError> {
    let mut indices = header.iter().enumerate().filter(|(_, found)| **found == name.as_bytes());
    match (indices.next(), indices.next()) {
        (Some((index, _)), None) => Ok(index),
        (Some(_), Some(_)) => Err(FormatError::ColumnTwice { path: path.into(), column: name.into() }),
        (None, _) => {
            let held =
                |header: &[u8]| Delimiter::ALL.into_iter().find(|other| header.contains(&other.byte()));
            let other = if let [header] = header { held(header) } else { None };
            let is_header = |other: &String| other == name || header.contains(&other.as_bytes());
            let names: Vec<&str> = header.iter().filter_map(|name| std::str::from_utf8(name).ok()).collect();
            let meant = misspelt(name, &names).filter(|_| wanted.len() > 1 && wanted.iter().all(is_header));
            Err(FormatError::NoColumn {
                path: path.into(),
                column: name.into(),
                width: header.len(),
                meant: meant.map(String::from),
                other,
            })
        }
    }
}

/// Doubles a buffer; returns false at the limit of a record.
fn grow<T: Clone + Default>(buffer: &mut Vec<T>) -> bool {
    let grown = buffer.len() < RECORD_LIMIT;
    if grown {
        buffer.resize((buffer.len() * 2).clamp(1024, RECORD_LIMIT), T::default());
    }
    grown
}
