//! Errors of a whole file and of a single row. No message contains a value of a row.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::csv::Delimiter;

/// Reasons why reading rows can't continue.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The bytes can't be read.
    #[error("{}: can't be read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file has no header row.
    #[error("{}: the file is empty: expected a header row with the columns' names", path.display())]
    NoHeader {
        /// The file.
        path: PathBuf,
    },
    /// A wanted column is not in the header.
    ///
    /// The header may be a row of data by mistake. So the message quotes only one name from it: a
    /// name similar to the missing one, and only if all other wanted names are in the header.
    #[error(
        "{}:1: none of the {width} columns that line 1 names is {column:?}{}: names must agree to the letter; \
         correct the name, or begin the file with a header{}", path.display(),
        meant.as_ref().map(|meant| format!("; did you mean {meant:?}?")).unwrap_or_default(),
        other.map_or_else(String::new, |other| format!(
            "; one column may mean another delimiter, such as [source] delimiter = {:?}", char::from(other.byte()).to_string()
        ))
    )]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The missing column.
        column: String,
        /// The number of columns.
        width: usize,
        /// The name that may be meant.
        meant: Option<String>,
        /// Another delimiter that line 1 holds, if it names one column.
        other: Option<Delimiter>,
    },
    /// A wanted column is in the header twice.
    #[error("{}:1: the header has more than one column {column:?}: rename one of them", path.display())]
    ColumnTwice {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
    },
    /// A record is so long that the framing itself is in doubt: an open quote swallows the rows
    /// after it.
    #[error(
        "{}:{line}: the record that begins here is longer than {limit} bytes: look for a quote that is not closed, or a \
         line that does not end", path.display()
    )]
    RecordTooLong {
        /// The file.
        path: PathBuf,
        /// The line where the record begins.
        line: u64,
        /// Maximum number of bytes of a record.
        limit: usize,
    },
    /// Packed data are damaged or cut.
    #[error(
        "{}: the {packing} data can't be unpacked any further at byte {offset}, after {unpacked} unpacked bytes: {problem}",
        path.display()
    )]
    Packed {
        /// The file.
        path: PathBuf,
        /// The form of compression.
        packing: &'static str,
        /// Bytes of the file that were used.
        offset: u64,
        /// Bytes that were unpacked.
        unpacked: u64,
        /// The problem, and what to do.
        problem: String,
    },
    /// The data have a form of compression that is not supported.
    #[error(
        "{}: the data are packed by {packing}, and only gzip and zstd are unpacked here: pack them again by one of these, or \
         pipe them in with path = \"-\", as in {unpack} FILE | hushflow run PIPELINE", path.display()
    )]
    Compressed {
        /// The file.
        path: PathBuf,
        /// The form of compression.
        packing: &'static str,
        /// The command that unpacks it.
        unpack: &'static str,
    },
    /// The suffix of a file contradicts its content.
    #[error("{}: the name ends in .{suffix}, but the file is {found}: correct its name, or get the file again", path.display())]
    Misnamed {
        /// The file.
        path: PathBuf,
        /// The suffix.
        suffix: &'static str,
        /// Description of the file.
        found: &'static str,
    },
    /// A file is not text.
    #[error(
        "{}: the file is not text: expected CSV or NDJSON in UTF-8, or Parquet, packed by gzip or zstd or not (save a \
         spreadsheet or a text in UTF-16 as CSV in UTF-8)", path.display()
    )]
    Binary {
        /// The file.
        path: PathBuf,
    },
    /// A file is one JSON list.
    #[error("{0}: the file is one JSON list: write an object on each line: jq -c '.[]' {0}", path.display())]
    JsonList {
        /// The file.
        path: PathBuf,
    },
    /// A Parquet file can't be used.
    #[error("{}: {problem}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The first line contains only numbers.
    #[error(
        "{}:1: every name in the first line is a number: expected a header row with the columns' names, so that no \
         record is taken for one", path.display()
    )]
    HeaderOfNumbers {
        /// The file.
        path: PathBuf,
    },
    /// No columns are requested of a file whose rows name their own.
    #[error("{}: the rows of NDJSON name their own columns: say which are wanted (--columns)", path.display())]
    NoColumnsNamed {
        /// The file.
        path: PathBuf,
    },
    /// A column is requested twice.
    #[error("column {column:?} is asked for twice: name it once")]
    AskedTwice {
        /// The column.
        column: String,
    },
    /// A row lacks a value although `MissingRows::Reject` is set.
    #[error(
        "{}:{line}: {}{defect}: correct or remove the row, or use --missing where the command has it",
        path.display(), named(column)
    )]
    MissingValue {
        /// The file.
        path: PathBuf,
        /// The line where the row begins.
        line: u64,
        /// The first column that lacks a value.
        column: Option<String>,
        /// Missing, or not finite.
        defect: Defect,
    },
    /// A row has text where a number was expected, or too few or too many fields.
    #[error(
        "{}:{line}: {}{defect}: correct or remove the row, or name only numeric columns",
        path.display(), named(column)
    )]
    UnusableRow {
        /// The file.
        path: PathBuf,
        /// The line where the row begins.
        line: u64,
        /// The column, unless the whole row is wrong.
        column: Option<String>,
        /// The defect.
        defect: Defect,
    },
}

fn named(column: &Option<String>) -> String {
    column.as_ref().map(|name| format!("column {name:?}: ")).unwrap_or_default()
}

/// A defect of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Defect {
    /// A field is empty, null or absent.
    #[error("the value is missing")]
    Missing,
    /// A field is not a number.
    #[error("expected a number")]
    NotANumber,
    /// A number has a comma.
    #[error("expected a number with a decimal point, found a comma")]
    DecimalComma,
    /// A number is NaN, infinite or beyond the range of a 64-bit float.
    #[error("expected a finite number")]
    NotFinite,
    /// A field is not a time.
    #[error("expected a date or an RFC 3339 time")]
    NotATime,
    /// A field is a time or has a fraction, where text is needed.
    #[error("expected a text or a whole number")]
    NotAText,
    /// A field is a boolean, a list or an object.
    #[error("expected a text or a number")]
    NotScalar,
    /// A CSV row has more or fewer fields than the header.
    #[error("the row does not have as many fields as the header")]
    FieldCount,
    /// An earlier run has read the start of the line, which was then the end of the file.
    #[error("an earlier run has read the beginning of this line as the last row of the file")]
    Continued,
    /// A line is not a JSON object.
    #[error("the line is not a JSON object")]
    NotAnObject,
    /// A message is not a record in Avro.
    #[error("the message is not a record in Avro of a schema in the registry")]
    NotARecord,
    /// A record of a server's stream is too long.
    #[error("the record is too long")]
    TooLong,
    /// A JSON object has a field twice.
    #[error("duplicate field")]
    FieldTwice,
}
