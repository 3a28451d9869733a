//! What can go wrong with a source. No message holds a value of a row.

use std::path::PathBuf;

use thiserror::Error;

use super::files::io_error;
pub use crate::format::Defect;
use crate::format::FormatError;

/// Why a source can't be read on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The operating system refused.
    #[error("{}: can't be read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The rows of a file can't be told apart.
    #[error(transparent)]
    Format(FormatError),
    /// The ingest journal can't be written or read.
    #[error(transparent)]
    Journal(#[from] crate::state::StateError),
    /// A file of text is compressed.
    #[error("{}: the file is compressed ({form}): decompress it, or pipe it in with path = \"-\"", path.display())]
    Compressed {
        /// The file.
        path: PathBuf,
        /// By what.
        form: &'static str,
    },
    /// The first row comes after all epochs.
    #[error(
        "{}:{line}: the clock begins after the last epoch has ended, so all epochs would be published without a record: correct \
         start, length or horizon in [epochs]; nothing was published", path.display()
    )]
    AfterHorizon {
        /// The file.
        path: PathBuf,
        /// The line where the row begins.
        line: u64,
    },
    /// A row can't be used and the pipeline says to stop.
    #[error(
        "{}:{line}: {}{defect}: mend the row, or let [source] skip such rows",
        path.display(), column.as_ref().map(|name| format!("column {name:?}: ")).unwrap_or_default()
    )]
    Rejected {
        /// The file.
        path: PathBuf,
        /// The line where the row begins.
        line: u64,
        /// The column, unless the whole row is wrong.
        column: Option<String>,
        /// What is wrong.
        defect: Defect,
    },
    /// A source that can be read into a journal only.
    #[error("what comes over a socket is read into a journal: only a run with a state directory can do that")]
    NeedsRun,
    /// Another file has taken the place of one that is followed.
    #[error("{}: another file has this name now: let new files have new names, and follow their directory", path.display())]
    Replaced {
        /// The file.
        path: PathBuf,
    },
    /// A server answers with something that can't be mended by trying again.
    #[error("{}: {problem}", path.display())]
    Server {
        /// The server and its stream.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A stream of a server has lost what a run had read, or what it was still to read.
    #[error(
        "{}: the stream {what}: records are lost there; restore the stream, or go on without them in a new state \
         directory", path.display()
    )]
    Lost {
        /// The server and its stream.
        path: PathBuf,
        /// Where the stream and the state disagree.
        what: String,
    },
    /// A file ends before the place to resume from.
    #[error(
        "{}: the file has {found} bytes but was read up to byte {offset} before: \
         it was cut or replaced, restore it to resume", path.display()
    )]
    Shrunk {
        /// The file.
        path: PathBuf,
        /// Bytes that it has.
        found: u64,
        /// The place to resume from.
        offset: u64,
    },
}

impl From<FormatError> for SourceError {
    /// What could not be read may be an error of the transport.
    fn from(error: FormatError) -> Self {
        match error {
            FormatError::Io { path, source } => io_error(&path, source),
            error => SourceError::Format(error),
        }
    }
}
