//! Refuses Parquet files in a build without the feature `parquet`.

use std::path::{Path, PathBuf};

use super::FormatError;
use super::row::{FileRows, Row, RowOutcome};

/// Returns `None`: no file is decoded.
pub fn file_being_decoded() -> Option<PathBuf> {
    None
}

/// Replaces the rows of a file; it has no values.
pub enum ParquetRows {}

impl ParquetRows {
    /// # Errors
    /// Always: no file is read.
    pub fn open(path: &Path, _from: (u64, u64), _wanted: &[String]) -> Result<Self, FormatError> {
        Err(refused(path))
    }

    /// # Errors
    /// Always: no file is read.
    pub fn row_groups(path: &Path) -> Result<Vec<u64>, FormatError> {
        Err(refused(path))
    }

    /// # Errors
    /// Always: no file is read.
    pub fn names(path: &Path) -> Result<Vec<String>, FormatError> {
        Err(refused(path))
    }
}

fn refused(path: &Path) -> FormatError {
    let problem = "this program was built without the feature `parquet`: build it with that feature, or convert \
                   the file to CSV or NDJSON";
    FormatError::Parquet { path: path.into(), problem: problem.into() }
}

impl FileRows for ParquetRows {
    fn read(&mut self, _row: &mut Row) -> std::io::Result<RowOutcome> {
        match *self {}
    }

    fn position(&self) -> (u64, u64) {
        match *self {}
    }

    fn line(&self) -> u64 {
        match *self {}
    }

    fn has_buffered_row(&self) -> bool {
        match *self {}
    }
}
