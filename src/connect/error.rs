//! Errors of sources and systems. No message holds a value of a row, or the position to resume
//! from: that position depends on event times and keys, so it is private.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::format::FormatError;
use crate::security::SecurityError;
use crate::state::StateError;

/// Reasons why a source can't be read further.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// An error of the operating system.
    #[error("{}: can't be read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The rows of a file can't be separated.
    #[error(transparent)]
    Format(FormatError),
    /// The ingest journal can't be written or read.
    #[error(transparent)]
    Journal(#[from] StateError),
    /// The first row comes after all epochs.
    #[error(
        "{}:{line}: the clock begins after the last epoch has ended, so all epochs would be published without a record: correct \
         start, length or horizon in [epochs]{unit}", path.display()
    )]
    AfterHorizon {
        /// The file.
        path: PathBuf,
        /// The line where the row begins.
        line: u64,
        /// Doubt about the unit of times, if they are numbers.
        unit: String,
    },
    /// There are more keys than a run can have.
    #[error(
        "{}:{line}: the column of [key] has more than {most} different values: discover the keys of another column, or list them",
        path.display()
    )]
    Keys {
        /// The file.
        path: PathBuf,
        /// The line where the row begins.
        line: u64,
        /// Maximum number of keys.
        most: usize,
    },
    /// The clock of many rows is further ahead than allowed.
    #[error(
        "{}:{line}: {rows} further ahead of {since} than [source] largest_jump allows, so the epochs between \
         would be published without a record; correct start in [epochs] or the column of the clock; if time has really gone on \
         so far, set a larger jump, such as largest_jump = \"{days}d\", and run again{unit}", path.display()
    )]
    Leap {
        /// The file.
        path: PathBuf,
        /// The line where the first of these rows begins.
        line: u64,
        /// Subject of the sentence: which rows jump.
        rows: &'static str,
        /// The time from which the jump is measured.
        since: &'static str,
        /// Days that a larger jump must have.
        days: u64,
        /// Doubt about the unit of times, if they are numbers.
        unit: String,
    },
    /// The clock begins far ahead and goes back from row to row.
    #[error(
        "{}:{line}: from here on the clock goes back from row to row, so the file has its newest rows first, and the first of them would close all epochs: sort the rows by the column of the clock, the oldest first", path.display()
    )]
    NewestFirst {
        /// The file.
        path: PathBuf,
        /// The line where the first of these rows begins.
        line: u64,
    },
    /// The clock has not reached the first epoch at the end of the input.
    #[error(
        "{}: the last row comes before the first epoch, by the clock in column {column:?}, so no row counts: correct start in \
         [epochs]{unit}", path.display()
    )]
    BeforeStart {
        /// The file.
        path: PathBuf,
        /// The column of the clock.
        column: String,
        /// Doubt about the unit of times, if they are numbers.
        unit: String,
    },
    /// No row has a readable clock.
    #[error(
        "{}: no row counts, because the clock never moves: its column {column:?} does not hold {expected}", path.display()
    )]
    NoClock {
        /// The file.
        path: PathBuf,
        /// The column of the clock.
        column: String,
        /// The expected content, and the remedy.
        expected: String,
    },
    /// A row can't be used and the pipeline says to stop.
    #[error(
        "{}:{line}: {}{defect}: correct or remove the row, or let [source] skip such rows",
        path.display(), column.as_ref().map(|name| format!("column {name:?}: ")).unwrap_or_default()
    )]
    Rejected {
        /// The file.
        path: PathBuf,
        /// The line where the row begins.
        line: u64,
        /// The column, unless the whole row is wrong.
        column: Option<String>,
        /// The defect, and the expected content.
        defect: String,
    },
    /// Another process of a cluster can't read it. The text says which and why.
    #[error("{0}")]
    Elsewhere(String),
    /// The source can only be read into a journal.
    #[error("a socket is read through a journal, so it needs a run with a state directory")]
    NeedsRun,
    /// A followed file was replaced by another one.
    #[error("{}: another file has this name now: let new files have new names, and follow their directory", path.display())]
    Replaced {
        /// The file.
        path: PathBuf,
    },
    /// A server's answer is an error that a retry can't fix.
    #[error("{}: {problem}", path.display())]
    Server {
        /// The server and its stream.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A server was never reached, or held all rows back.
    #[error("nothing was read: {0}")]
    Unreached(String),
    /// A server's stream has lost entries that a run had read or was still to read.
    #[error(
        "{}: the stream {loss}: records are lost there; restore the stream, or go on without them in a new state \
         directory", path.display()
    )]
    Lost {
        /// The server and its stream.
        path: PathBuf,
        /// The difference between the stream and the state.
        loss: String,
    },
    /// The part of a file that an earlier run has read has changed.
    #[error(
        "{}: the file has changed before the position where the last run stopped: rows would count twice or never; restore what was \
         read and only append to it, or begin a new state directory, which spends again", path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A file ends before the position to resume from.
    #[error(
        "{}: the file has {found} bytes, fewer than were read before: it was cut or replaced, restore it to resume",
        path.display()
    )]
    Shrunk {
        /// The file.
        path: PathBuf,
        /// Its number of bytes.
        found: u64,
    },
}

impl SourceError {
    /// Whether the source can't be read at all, as opposed to a run that stops by a rule.
    pub fn is_unreadable(&self) -> bool {
        !matches!(
            self,
            SourceError::AfterHorizon { .. }
                | SourceError::Keys { .. }
                | SourceError::BeforeStart { .. }
                | SourceError::Leap { .. }
                | SourceError::NewestFirst { .. }
                | SourceError::NoClock { .. }
                | SourceError::Rejected { .. }
        )
    }
}

impl From<FormatError> for SourceError {
    /// A format error may be an error of the transport.
    fn from(error: FormatError) -> Self {
        match error {
            FormatError::Io { path, source } => io_error(&path, source),
            error => SourceError::Format(error),
        }
    }
}

/// Returns the error of reading `path`. An error that the journal's thread, files or a reader of
/// rows reported is kept.
pub(crate) fn io_error(path: &Path, source: io::Error) -> SourceError {
    let io = |source| SourceError::Io { path: path.into(), source };
    let state = |source: io::Error| source.downcast::<StateError>().map_or_else(io, SourceError::Journal);
    let format = |source: io::Error| source.downcast::<FormatError>().map_or_else(state, SourceError::from);
    source.downcast::<SourceError>().unwrap_or_else(format)
}

/// Reasons why a request to a system failed.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// Another attempt may succeed.
    Transient(io::Error),
    /// The reader of the output is gone for good.
    Gone(io::Error),
    /// The connection can't be secured until a person corrects something.
    Insecure(SecurityError),
    /// The server refuses. Its message concerns the stream and not records.
    Refused {
        /// The server and its stream.
        path: PathBuf,
        problem: String,
    },
    /// The stream does not exist.
    NoStream,
    /// The stream has changed.
    Lost {
        /// The server and its stream.
        path: PathBuf,
        /// The difference, as it follows "the stream" in a message.
        loss: String,
    },
}

impl From<io::Error> for RequestError {
    fn from(error: io::Error) -> Self {
        error.downcast::<SecurityError>().map_or_else(RequestError::Transient, RequestError::from)
    }
}

impl From<SecurityError> for RequestError {
    fn from(error: SecurityError) -> Self {
        match error.is_lasting() {
            true => RequestError::Insecure(error),
            false => RequestError::Transient(error.into()),
        }
    }
}

/// A problem that a retry may fix, described by the server or by this program.
pub(super) fn transient(words: impl Into<String>) -> RequestError {
    RequestError::Transient(io::Error::other(words.into()))
}

/// A problem that a retry does not fix.
pub(super) fn refusal(name: String, words: &str) -> RequestError {
    let problem: String = words.chars().filter(|c| !c.is_control()).take(200).collect();
    RequestError::Refused { path: name.into(), problem }
}

/// Reports that a stream has lost entries, or was replaced.
pub(super) fn lost(name: String, loss: String) -> RequestError {
    RequestError::Lost { path: name.into(), loss }
}

/// Refuses a stream whose last entry was not written by a sink.
pub(super) fn foreign(name: String) -> RequestError {
    let problem = "the last entry was not written by a sink: name a stream that only this sink uses".into();
    RequestError::Refused { path: name.into(), problem }
}
