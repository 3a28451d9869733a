//! Reads the rows of a Parquet file (`parquet.apache.org/docs/file-format`), row group by row
//! group.
//!
//! A position is a row group and a row in it, so a run that resumes reads at most one row group
//! again, and decodes only the wanted columns. Columns are found by name, members of structures as
//! `outer.inner`. A null is a missing value; lists are refused. Times without a zone are read as
//! UTC, as in CSV.
//!
//! A file is private data, so errors quote nothing from it.
//!
//! The decoder panics on some damaged files and allocates as much memory as they request. So its
//! assumptions are checked first (`disk`, `header` and `pages`). Any remaining panic is reported as
//! a damaged file, because each thread records the file that it is decoding.

#[cfg(test)]
mod damage;
mod disk;
mod header;
mod meaning;
mod packed;
mod pages;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::DataType;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use parquet::file::reader::Length;
use parquet::file::serialized_reader::SerializedPageReader;

use super::error::{Defect, FormatError};
use super::io_error;
use super::row::{FileRows, RECORD_LIMIT, Row, RowField, RowOutcome};
pub use disk::RandomAccess;
use disk::{ColumnPages, PAGE_LIMIT, ParquetFile, ReadFailure};
use meaning::{ColumnMeaning, find};
use pages::{CheckedPages, is_within};

/// Rows decoded at once.
const BATCH: usize = 1024;

thread_local! {
    static DECODED: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// Returns the file that this thread is decoding. A panic means that the file is damaged.
pub fn file_being_decoded() -> Option<PathBuf> {
    DECODED.try_with(|path| path.try_borrow().ok()?.clone()).ok().flatten()
}

/// Marks a file as being decoded while it lives.
struct DecodingGuard;

impl DecodingGuard {
    fn begin(path: &Path) -> Self {
        DECODED.set(Some(path.into()));
        DecodingGuard
    }
}

impl Drop for DecodingGuard {
    fn drop(&mut self) {
        DECODED.set(None);
    }
}

/// The rows of a file.
pub struct ParquetRows {
    path: PathBuf,
    disk: ParquetFile,
    file: ParquetMetaData,
    /// The index and the meaning of every wanted column.
    wanted: Vec<(usize, ColumnMeaning)>,
    /// The row group, the number of rows in earlier groups, and the number of its own rows
    /// returned.
    group: usize,
    before: u64,
    given: u64,
    columns: Vec<ColumnDecoder>,
    /// Number of decoded rows, and of those that have been returned.
    decoded: usize,
    next: usize,
}

/// A wanted column of a row group, and a decoded part of it.
struct ColumnDecoder {
    reader: ColumnValues,
    meaning: ColumnMeaning,
    /// The definition level of a present value.
    defined: i16,
    levels: Vec<i16>,
    /// The next value; nulls have none.
    next: usize,
}

/// A reader and its decoded values.
enum ColumnValues {
    Boolean(TypedColumn<parquet::data_type::BoolType>),
    Int32(TypedColumn<parquet::data_type::Int32Type>),
    Int64(TypedColumn<parquet::data_type::Int64Type>),
    Float(TypedColumn<parquet::data_type::FloatType>),
    Double(TypedColumn<parquet::data_type::DoubleType>),
    Bytes(TypedColumn<parquet::data_type::ByteArrayType>),
    Fixed(TypedColumn<parquet::data_type::FixedLenByteArrayType>),
}

struct TypedColumn<T: DataType> {
    reader: ColumnReaderImpl<T>,
    values: Vec<T::T>,
}

impl<T: DataType> TypedColumn<T> {
    fn new(reader: ColumnReaderImpl<T>) -> Self {
        TypedColumn { reader, values: Vec::with_capacity(BATCH) }
    }

    /// Decodes the next rows; returns their number.
    fn decode(&mut self, levels: &mut Vec<i16>) -> Result<usize, ParquetError> {
        self.values.clear();
        Ok(self.reader.read_records(BATCH, Some(levels), None, &mut self.values)?.0)
    }
}

impl ParquetRows {
    /// Continues at a row, from 1, of a row group.
    pub fn open(path: &Path, (group, row): (u64, u64), wanted: &[String]) -> Result<Self, FormatError> {
        let file = File::open(path).map_err(|source| io_error(path, source))?;
        Self::of(Arc::new(file), path, (group, row), wanted)
    }

    /// Continues at a row, from 1, of a row group of bytes with this name.
    pub fn of(
        bytes: Arc<dyn RandomAccess>,
        path: &Path,
        (group, row): (u64, u64),
        wanted: &[String],
    ) -> Result<Self, FormatError> {
        let refused = |problem| FormatError::Parquet { path: path.into(), problem };
        let disk = ParquetFile::new(bytes).map_err(|source| io_error(path, source))?;
        let damaged = |_| match disk.failure() {
            Some(ReadFailure::Io(source)) => io_error(path, source),
            _ => refused("it is not a Parquet file, or was not written to its end".into()),
        };
        let decoding = DecodingGuard::begin(path);
        let file = ParquetMetaDataReader::new().parse_and_finish(&disk).map_err(damaged)?;
        let groups = file.num_row_groups();
        let at = usize::try_from(group).ok().filter(|&group| group <= groups);
        let at = at.ok_or_else(|| {
            refused(format!("it has {groups} row groups, fewer than were read before: restore it"))
        })?;
        drop(decoding);
        let wanted = wanted.iter().map(|name| find(&file, path, name)).collect::<Result<_, _>>()?;
        let mut rows = ParquetRows {
            path: path.into(),
            disk,
            file,
            wanted,
            group: at,
            before: 0,
            given: 0,
            columns: Vec::new(),
            decoded: 0,
            next: 0,
        };
        rows.before = rows.rows_before_groups()?[at];
        rows.begin(row - 1).map_err(|error| io_error(path, error))?;
        Ok(rows)
    }

    /// Returns the numbers of rows before each row group, and of all rows.
    pub fn row_groups(path: &Path) -> Result<Vec<u64>, FormatError> {
        Self::open(path, (0, 1), &[])?.rows_before_groups()
    }

    /// Returns the names of the columns that can be read.
    pub fn names(path: &Path) -> Result<Vec<String>, FormatError> {
        let rows = Self::open(path, (0, 1), &[])?;
        let columns = rows.file.file_metadata().schema_descr().columns().iter();
        let names = columns.map(|column| column.path().string());
        Ok(names.filter(|name| find(&rows.file, path, name).is_ok()).collect())
    }

    /// Builds an error of this file.
    fn refused(&self, problem: String) -> io::Error {
        io::Error::other(FormatError::Parquet { path: self.path.clone(), problem })
    }

    /// Builds the error of a column that can't be decoded: damage, unless reading the file failed.
    fn damaged(&self, slot: usize) -> io::Error {
        let what = match self.disk.failure() {
            Some(ReadFailure::Io(error)) => return error,
            Some(ReadFailure::TooLarge) => {
                format!("a page has more than {PAGE_LIMIT} bytes: write the file with smaller pages")
            }
            None => "it can't be decoded: the file is damaged".into(),
        };
        let column = self.file.file_metadata().schema_descr().column(self.wanted[slot].0);
        let (name, group) = (column.path().string(), self.group);
        self.refused(format!("row group {group}, column {name:?}: {what}"))
    }

    /// Returns the number of rows in a row group.
    fn length(&self, group: usize) -> io::Result<u64> {
        let rows = self.file.row_group(group).num_rows();
        u64::try_from(rows)
            .map_err(|_| self.refused(format!("row group {group}: its number of rows is negative")))
    }

    /// Returns the numbers of rows before each row group, and of all rows.
    fn rows_before_groups(&self) -> Result<Vec<u64>, FormatError> {
        let mut before = vec![0u64];
        for group in 0..self.file.num_row_groups() {
            let length = self.length(group).map_err(|error| io_error(&self.path, error))?;
            before.push(before[group].saturating_add(length));
        }
        Ok(before)
    }

    /// Opens the row group and skips its first `passed` rows.
    fn begin(&mut self, passed: u64) -> io::Result<()> {
        (self.columns, self.given, self.decoded, self.next) = (Vec::new(), passed, 0, 0);
        if self.group == self.file.num_row_groups() {
            return Ok(());
        }
        let length = self.length(self.group)?;
        if passed > length {
            return Err(
                self.refused("a row group has fewer rows than were read before: restore the file".into())
            );
        }
        let _decoding = DecodingGuard::begin(&self.path);
        let group = self.file.row_group(self.group);
        let mut columns = Vec::new();
        for (slot, &(number, meaning)) in self.wanted.iter().enumerate() {
            if !is_within(group.column(number), self.disk.len()) {
                return Err(self.damaged(slot));
            }
            let codec = group.column(number).compression();
            if !is_unpacked(codec) {
                let problem = format!(
                    "its pages are packed by {codec}, which this program was built without: {REMEDY}"
                );
                return Err(self.refused(problem));
            }
            let mut column = ColumnDecoder::open(&self.disk, group, (number, meaning))
                .ok_or_else(|| self.damaged(slot))?;
            column.pass(passed).ok_or_else(|| self.damaged(slot))?;
            columns.push(column);
        }
        self.columns = columns;
        Ok(())
    }

    /// Decodes more rows; returns whether this row group has any.
    fn decode(&mut self) -> io::Result<bool> {
        let left = self.length(self.group)? - self.given;
        let expected = usize::try_from(left).unwrap_or(usize::MAX).min(BATCH);
        let mut columns = std::mem::take(&mut self.columns);
        let _decoding = DecodingGuard::begin(&self.path);
        for (slot, column) in columns.iter_mut().enumerate() {
            if !matches!(column.decode(), Ok(rows) if rows == expected) {
                return Err(self.damaged(slot));
            }
        }
        (self.columns, self.decoded, self.next) = (columns, expected, 0);
        Ok(expected > 0)
    }
}

const REMEDY: &str = "write the file with snappy, gzip or lz4, or build with --features zstd";

/// Returns whether pages with this codec can be unpacked.
fn is_unpacked(codec: Compression) -> bool {
    let is_packed_by_zstd = matches!(codec, Compression::ZSTD(_));
    cfg!(feature = "zstd") && is_packed_by_zstd
        || matches!(
            codec,
            Compression::UNCOMPRESSED
                | Compression::SNAPPY
                | Compression::GZIP(_)
                | Compression::LZ4
                | Compression::LZ4_RAW
        )
}

impl FileRows for ParquetRows {
    fn read(&mut self, row: &mut Row) -> io::Result<RowOutcome> {
        while self.next == self.decoded {
            if self.group == self.file.num_row_groups() {
                return Ok(RowOutcome::End);
            }
            if !self.decode()? {
                self.before += self.given;
                self.group += 1;
                self.begin(0)?;
            }
        }
        row.text.clear();
        row.fields.clear();
        row.defect = None;
        for slot in 0..self.columns.len() {
            let field = self.columns[slot].field(self.next, &mut row.text);
            row.fields.push(field.ok_or_else(|| self.damaged(slot))?);
            if row.text.len() > RECORD_LIMIT {
                row.defect = Some(Defect::TooLong);
                row.text.clear();
            }
        }
        self.next += 1;
        self.given += 1;
        Ok(RowOutcome::Row)
    }

    fn has_buffered_row(&self) -> bool {
        self.next < self.decoded
    }

    fn position(&self) -> (u64, u64) {
        (self.group as u64, self.given + 1)
    }

    fn line(&self) -> u64 {
        self.before + self.given
    }
}

impl ColumnDecoder {
    fn open(
        disk: &ParquetFile,
        group: &RowGroupMetaData,
        (number, meaning): (usize, ColumnMeaning),
    ) -> Option<Self> {
        let chunk = group.column(number);
        let described = chunk.column_descr_ptr();
        let pages = Arc::new(ColumnPages::new(disk, chunk.compression()));
        let pages = SerializedPageReader::new(pages, chunk, usize::try_from(group.num_rows()).ok()?, None);
        let pages = Box::new(CheckedPages::new(Box::new(pages.ok()?), &described));
        let reader = match get_column_reader(described, pages) {
            ColumnReader::BoolColumnReader(reader) => ColumnValues::Boolean(TypedColumn::new(reader)),
            ColumnReader::Int32ColumnReader(reader) => ColumnValues::Int32(TypedColumn::new(reader)),
            ColumnReader::Int64ColumnReader(reader) => ColumnValues::Int64(TypedColumn::new(reader)),
            ColumnReader::FloatColumnReader(reader) => ColumnValues::Float(TypedColumn::new(reader)),
            ColumnReader::DoubleColumnReader(reader) => ColumnValues::Double(TypedColumn::new(reader)),
            ColumnReader::ByteArrayColumnReader(reader) => ColumnValues::Bytes(TypedColumn::new(reader)),
            ColumnReader::FixedLenByteArrayColumnReader(reader) => {
                ColumnValues::Fixed(TypedColumn::new(reader))
            }
            ColumnReader::Int96ColumnReader(_) => return None,
        };
        let defined = chunk.column_descr().max_def_level();
        Some(ColumnDecoder { reader, meaning, defined, levels: Vec::with_capacity(BATCH), next: 0 })
    }

    /// Skips rows; `None` if there are too few.
    fn pass(&mut self, rows: u64) -> Option<()> {
        let rows = usize::try_from(rows).ok()?;
        let passed = match &mut self.reader {
            ColumnValues::Boolean(typed) => typed.reader.skip_records(rows),
            ColumnValues::Int32(typed) => typed.reader.skip_records(rows),
            ColumnValues::Int64(typed) => typed.reader.skip_records(rows),
            ColumnValues::Float(typed) => typed.reader.skip_records(rows),
            ColumnValues::Double(typed) => typed.reader.skip_records(rows),
            ColumnValues::Bytes(typed) => typed.reader.skip_records(rows),
            ColumnValues::Fixed(typed) => typed.reader.skip_records(rows),
        };
        passed.ok().filter(|&passed| passed == rows).map(drop)
    }

    /// Decodes the next rows; returns their number.
    fn decode(&mut self) -> Result<usize, ParquetError> {
        self.levels.clear();
        self.next = 0;
        let levels = &mut self.levels;
        match &mut self.reader {
            ColumnValues::Boolean(typed) => typed.decode(levels),
            ColumnValues::Int32(typed) => typed.decode(levels),
            ColumnValues::Int64(typed) => typed.decode(levels),
            ColumnValues::Float(typed) => typed.decode(levels),
            ColumnValues::Double(typed) => typed.decode(levels),
            ColumnValues::Bytes(typed) => typed.decode(levels),
            ColumnValues::Fixed(typed) => typed.decode(levels),
        }
    }

    /// Returns the value of a decoded row; `None` if it was not decoded.
    fn field(&mut self, row: usize, text: &mut Vec<u8>) -> Option<RowField> {
        if self.defined > 0 && *self.levels.get(row)? != self.defined {
            return Some(RowField::Missing);
        }
        let at = self.next;
        self.next += 1;
        let meaning = self.meaning;
        Some(match &self.reader {
            ColumnValues::Boolean(typed) => RowField::Number(f64::from(u8::from(*typed.values.get(at)?))),
            ColumnValues::Int32(typed) => {
                let value = *typed.values.get(at)?;
                let unsigned = meaning == ColumnMeaning::Unsigned;
                whole(if unsigned { i128::from(value as u32) } else { value.into() }, meaning, text)
            }
            ColumnValues::Int64(typed) => {
                let value = *typed.values.get(at)?;
                let unsigned = meaning == ColumnMeaning::Unsigned;
                whole(if unsigned { i128::from(value as u64) } else { value.into() }, meaning, text)
            }
            ColumnValues::Float(typed) => RowField::Number((*typed.values.get(at)?).into()),
            ColumnValues::Double(typed) => RowField::Number(*typed.values.get(at)?),
            ColumnValues::Bytes(typed) => bytes(typed.values.get(at)?.data(), meaning, text),
            ColumnValues::Fixed(typed) => bytes(typed.values.get(at)?.data(), meaning, text),
        })
    }
}

/// Converts a whole number.
fn whole(value: i128, meaning: ColumnMeaning, text: &mut Vec<u8>) -> RowField {
    match meaning {
        ColumnMeaning::Time(nanoseconds) => {
            let micros = (value * i128::from(nanoseconds)).div_euclid(1000);
            i64::try_from(micros).map_or(RowField::Defective(Defect::NotATime), RowField::Time)
        }
        ColumnMeaning::Decimal(scale) if scale != 0 => {
            write(text, format_args!("{value}e{}", -i64::from(scale)))
        }
        _ => write(text, format_args!("{value}")),
    }
}

/// Converts bytes.
fn bytes(bytes: &[u8], meaning: ColumnMeaning, text: &mut Vec<u8>) -> RowField {
    if bytes.len() > RECORD_LIMIT {
        return RowField::Defective(Defect::TooLong);
    }
    match (meaning, bytes) {
        (ColumnMeaning::Decimal(_), [first, rest @ ..]) if rest.len() < 16 => {
            // Two's complement, most significant byte first.
            let sign = if *first < 0x80 { 0 } else { -1 };
            whole(bytes.iter().fold(sign, |value, &byte| value << 8 | i128::from(byte)), meaning, text)
        }
        (ColumnMeaning::Decimal(_), _) => RowField::Defective(Defect::NotANumber),
        _ => {
            let start = text.len();
            text.extend_from_slice(bytes);
            RowField::Text(start..text.len())
        }
    }
}

fn write(text: &mut Vec<u8>, value: std::fmt::Arguments<'_>) -> RowField {
    use io::Write;
    let start = text.len();
    text.write_fmt(value).expect("memory takes every number");
    RowField::Text(start..text.len())
}
