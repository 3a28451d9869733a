//! Sources as the pipeline names them, and what they give when they are opened.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::journal::{Intake, Session};
use super::{Equal, SourceError};
use crate::control::Control;
use crate::format::Format;
use crate::format::bytes::Stream;
use crate::format::form::Shape;
use crate::format::row::Rows;
use crate::state::Store;

/// A position between two rows of a source.
///
/// Of a broker's stream it holds the least number that the next entry may have: in JetStream and
/// Kafka `offset`; in Redis `offset` are the milliseconds of its id and `line` is the number behind
/// them. In a Parquet file `offset` is the row group and `line` is the row in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The file's number in the pipeline's list or that of followed files, or the session's in the
    /// journal, from 0.
    pub file: u32,
    /// The offset in that file, in bytes; in a session, behind its header.
    pub offset: u64,
    /// The line in that file, from 1.
    pub line: u64,
}

impl Position {
    /// Before the first row.
    pub const START: Position = Position { file: 0, offset: 0, line: 1 };
}

/// A source as the pipeline names it.
pub(crate) trait Reads: Equal + fmt::Debug + Send + Sync {
    /// The source in messages: without a secret.
    fn name(&self) -> String;

    /// How its records may be written.
    fn formats(&self) -> Formats;

    /// Which of its system's tags its positions have.
    fn kind(&self, _format: Format) -> usize {
        0
    }

    /// What distinguishes a stream from others of the same system, wherever that runs.
    fn identity(&self) -> Option<Vec<u8>> {
        None
    }

    /// Whether records come from a network, so that no row moves the clock far.
    fn is_remote(&self) -> bool {
        true
    }

    /// Whether it has no end.
    fn goes_on(&self) -> bool {
        true
    }

    /// Whether its records are kept in a journal until they are counted.
    fn journaling(&self) -> Journaling {
        Journaling::Never
    }

    /// Opens it at a position.
    ///
    /// # Errors
    /// [`SourceError::NeedsRun`] for a source that can be read into a journal only.
    fn open(&self, opening: &Opening<'_>) -> Result<Box<dyn Origin>, SourceError>;

    /// Begins to take what comes into a journal, where the source may have one.
    ///
    /// # Errors
    /// Where the source can't be opened.
    fn take_in(&self, _session: Session, _control: &Control) -> std::io::Result<Intake> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

/// Whether a source has a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Journaling {
    /// It can be read again.
    Never,
    /// Where the pipeline asks for one.
    IfWanted,
    Always,
}

/// The formats of a source's records.
pub(crate) struct Formats {
    /// Where the pipeline names none; without one the extension of the path decides.
    pub(crate) usual: Option<Format>,
    pub(crate) allowed: &'static [Format],
    /// What is reported of another format, if it is the source's own matter.
    pub(crate) expected: Option<&'static str>,
    /// Whether records come as messages of one each, which have no header and can't be corrected.
    pub(crate) are_messages: bool,
}

impl Formats {
    /// A stream of text.
    pub(super) const TEXT: Formats =
        Formats { usual: None, allowed: &[Format::Csv, Format::Ndjson], expected: None, are_messages: false };

    /// Each entry is a text that holds one record.
    pub(super) const MESSAGES: Formats = Formats {
        usual: Some(Format::Ndjson),
        expected: Some("a message is text: use format = \"ndjson\" or format = \"csv\""),
        are_messages: true,
        ..Formats::TEXT
    };
}

/// Where and how a source is opened.
pub(crate) struct Opening<'a> {
    pub(crate) shape: &'a Shape,
    pub(crate) position: Position,
    pub(crate) control: &'a Control,
    /// Where the state directory keeps lists of files, if there is one.
    pub(crate) lists: Option<Lists<'a>>,
}

/// The list of a source in the state directory.
#[derive(Clone, Copy)]
pub(crate) struct Lists<'a> {
    pub(crate) store: &'a Store,
    /// The number of the source's list.
    pub(crate) number: u64,
    /// Whether the position was recorded, so that its file must be in the list.
    pub(crate) is_resumed: bool,
}

/// A source that is open: one file after the other. A stream of a server is one file without an end.
pub(crate) trait Origin: Send {
    /// The name of a file in messages.
    fn name(&self, file: u32) -> PathBuf;

    /// Opens a file from the position on; none beyond the last one. Waits for a file that may
    /// begin.
    fn open(&mut self, position: Position) -> Result<Option<Opened>, SourceError>;

    /// What a file is that ends before its header.
    fn headless(&self, _file: u32) -> Headless {
        Headless::Fault
    }

    /// Whether it is piped in anew after a restart, so that positions of earlier runs mean nothing.
    fn begins_anew(&self) -> bool {
        false
    }
}

/// A file from a position on.
pub(crate) enum Opened {
    /// Its bytes.
    Bytes {
        stream: Stream,
        /// The bytes with the file's header, unless they come first in the stream.
        header: Option<Stream>,
        /// Whether they go on with a line that was the file's last one when it was read up to there.
        is_rest: bool,
    },
    /// Its rows, where they are no lines.
    Rows(Box<dyn Rows>),
}

/// What a file is that ends before its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Headless {
    Fault,
    /// Its writer has gone on to a later file.
    Passed,
    /// It may begin in a later run.
    Early,
}
