//! What can go wrong with a source or a system. No message holds a value of a row.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::format::{Defect, FormatError};
use crate::state::StateError;

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
    Journal(#[from] StateError),
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

/// The error of reading `path`: one of ours where the journal's thread, files or a reader of rows
/// have told it.
pub(crate) fn io_error(path: &Path, source: io::Error) -> SourceError {
    let io = |source| SourceError::Io { path: path.into(), source };
    let state = |source: io::Error| source.downcast::<StateError>().map_or_else(io, SourceError::Journal);
    let format = |source: io::Error| source.downcast::<FormatError>().map_or_else(state, SourceError::from);
    source.downcast::<SourceError>().unwrap_or_else(format)
}

/// Why a system did not do what was asked.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// It may be over after another attempt.
    Passing(io::Error),
    /// Whoever read what was written is gone for good.
    Gone(io::Error),
    /// The server refuses, in its own words: they are about the stream, not about records.
    Refused {
        /// The server and its stream.
        path: PathBuf,
        problem: String,
    },
    /// The stream is not there.
    NoStream,
    /// The stream is not what it was.
    Lost {
        /// The server and its stream.
        path: PathBuf,
        /// What is different: the words behind "the stream".
        what: String,
    },
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Trouble::Passing(error)
    }
}

/// What may pass, in the server's words or ours.
pub(super) fn passing(words: impl Into<String>) -> Trouble {
    Trouble::Passing(io::Error::other(words.into()))
}

/// What trying again does not mend.
pub(super) fn refusal(name: String, words: &str) -> Trouble {
    let problem: String = words.chars().filter(|c| !c.is_control()).take(200).collect();
    Trouble::Refused { path: name.into(), problem }
}

/// Reports that a stream has lost entries, or was replaced.
pub(super) fn lost(name: String, what: String) -> Trouble {
    Trouble::Lost { path: name.into(), what }
}

/// Refuses a stream whose last entry was not written by a sink.
pub(super) fn foreign(name: String) -> Trouble {
    let problem = "the last entry was not written by a sink: name a stream that is for it alone".into();
    Trouble::Refused { path: name.into(), problem }
}
