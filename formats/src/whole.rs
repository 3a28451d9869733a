//! Files that are read as a whole, in any format and packing.

use std::io::{Cursor, Read, stdin};
use std::path::{Path, PathBuf};

use super::csv::CsvRows;
use super::ndjson::NdjsonRows;
use super::parquet::ParquetRows;
use super::row::FileRows;
use super::{ByteStream, Format, FormatError, STANDARD_INPUT};

/// A file or a pipe, opened once, whose name or first rows give its format.
pub(super) struct WholeFile {
    path: PathBuf,
    format: Format,
    stream: ByteStream,
}

impl WholeFile {
    pub(super) fn open(path: &Path) -> Result<Self, FormatError> {
        Self::of(path, ByteStream::of_file(path)?)
    }

    /// Opens a file of a known format.
    pub(super) fn with_format(path: &Path, format: Format) -> Result<Self, FormatError> {
        Ok(WholeFile { path: path.into(), format, stream: ByteStream::of_file(path)? })
    }

    pub(super) fn standard_input() -> Result<Self, FormatError> {
        let path = Path::new(STANDARD_INPUT);
        let file = Self::of(path, ByteStream::of_pipe(stdin(), path))?;
        match file.format {
            Format::Parquet => {
                let problem = "a pipe can't be read as Parquet, whose index is at its end: name the file";
                Err(FormatError::Parquet { path: path.into(), problem: problem.into() })
            }
            _ => Ok(file),
        }
    }

    fn of(path: &Path, mut stream: ByteStream) -> Result<Self, FormatError> {
        let (format, start) = Format::of_start(path, &mut stream)?;
        let stream = ByteStream::new(Cursor::new(start).chain(stream), 0);
        Ok(WholeFile { path: path.into(), format, stream })
    }

    /// Returns its rows with these columns.
    pub(super) fn rows(self, wanted: &[String]) -> Result<Box<dyn FileRows>, FormatError> {
        let WholeFile { path, format, stream } = self;
        Ok(match format {
            Format::Csv(delimiter) => Box::new(CsvRows::open(stream, &path, delimiter, wanted)?),
            Format::Parquet => Box::new(ParquetRows::open(&path, (0, 1), wanted)?),
            _ => Box::new(NdjsonRows::open(stream, 1, wanted)),
        })
    }

    /// Returns its rows with all columns, and the names of the columns. NDJSON is an error: each of
    /// its rows names its own columns, so one record would decide which columns there are.
    pub(super) fn all(self) -> Result<(Box<dyn FileRows>, Vec<String>), FormatError> {
        let WholeFile { path, format, stream } = self;
        match format {
            Format::Csv(delimiter) => {
                let (rows, names) = CsvRows::open_all(stream, &path, delimiter)?;
                Ok((Box::new(rows), names))
            }
            Format::Parquet => {
                let names = ParquetRows::names(&path)?;
                Ok((Box::new(ParquetRows::open(&path, (0, 1), &names)?), names))
            }
            _ => Err(FormatError::NoColumnsNamed { path }),
        }
    }
}
