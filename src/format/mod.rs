//! Formats: rows of CSV, NDJSON and Parquet, whatever transport delivers their bytes.
//!
//! A format turns bytes into rows of wanted fields. It knows no transport: a `ByteStream` of bytes may
//! be a file, a session of a journal or data from a socket, and a `EntryParser` reads one message at a
//! time.

pub(crate) mod bytes;
pub(crate) mod csv;
mod error;
pub(crate) mod form;
pub(crate) mod framing;
pub(crate) mod ndjson;
pub(crate) mod parquet;
pub(crate) mod row;
pub mod table;

pub use error::{Defect, FormatError};
pub use parquet::file_being_decoded;

/// Format of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Comma-separated values with a header row (RFC 4180).
    Csv,
    /// One JSON object per line or message.
    Ndjson,
    /// Entries with named fields.
    Fields,
    /// Parquet files.
    Parquet,
}
