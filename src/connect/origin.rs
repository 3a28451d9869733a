//! Sources as configured in a pipeline, and the input that they deliver when opened.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::journal::{Intake, JournalSession};
use super::{AllowedFormats, DynamicEq, SourceError};
use crate::control::Control;
use crate::format::ByteStream;
use crate::format::Format;
use crate::format::form::RowLayout;
use crate::format::row::FileRows;
use crate::state::Position;

/// A source as configured in a pipeline.
pub(crate) trait SourceConfig: DynamicEq + fmt::Debug + Send + Sync {
    /// The source's name for messages, without a secret.
    fn name(&self) -> String;

    /// Formats in which its records may be written.
    fn formats(&self) -> AllowedFormats;

    /// Index of its positions' tag among its system's tags.
    fn kind(&self, _format: Format) -> usize {
        0
    }

    /// Bytes that distinguish a stream from others of the same system, independent of its address.
    fn identity(&self) -> Option<Vec<u8>> {
        None
    }

    /// How it is split into partitions, if it is.
    fn partitioning(&self) -> Option<Partitioning> {
        None
    }

    /// Opens all partitions, for a source that has them. An earlier run has recorded the positions
    /// of the first `recorded` of them.
    fn open_partitions(
        &self,
        _shape: &RowLayout,
        _control: &Control,
        _recorded: u32,
    ) -> Option<Arc<dyn Partitions>> {
        None
    }

    /// Whether its files are numbered by a [list](FileList) in the state directory.
    fn keeps_list(&self) -> bool {
        false
    }

    /// Whether any process of a cluster can open it, by its configuration and its list alone.
    fn opens_anywhere(&self) -> bool {
        false
    }

    /// Returns a listener for the positions of committed epochs, if the source has one.
    fn commit_listener(&self, _control: &Control) -> Option<Box<dyn CommitListener>> {
        None
    }

    /// Its files, if it is a list of files that are read one after the other, whole.
    fn files(&self) -> Option<&[PathBuf]> {
        None
    }

    /// Opens its files to read them in ranges, if it is a list of files.
    fn ranges(&self, _shape: &RowLayout, _control: &Control) -> Option<Box<dyn Origin>> {
        None
    }

    /// Returns how each file of [`ranges`](Self::ranges) is cut.
    fn cuts(&self, _shape: &RowLayout) -> Vec<FileCut> {
        Vec::new()
    }

    /// Whether it has no end.
    fn is_endless(&self) -> bool {
        true
    }

    /// Whether its records are kept in a journal until they are counted.
    fn journaling(&self) -> Journaling {
        Journaling::Never
    }

    /// Whether its rows may arrive over time.
    fn is_live(&self) -> bool {
        self.is_endless() || self.journaling() != Journaling::Never
    }

    /// Opens it at a position.
    ///
    /// # Errors
    /// [`SourceError::NeedsRun`] for a source that can be read into a journal only.
    fn open(&self, opening: &OriginRequest<'_>) -> Result<Box<dyn Origin>, SourceError>;

    /// Starts copying the input into a journal, for sources that may have one.
    ///
    /// # Errors
    /// If the source can't be opened.
    fn take_in(&self, _session: JournalSession, _control: &Control) -> std::io::Result<Intake> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

/// How a source is split into partitions, each with an order, a clock and a position of its own.
#[cfg_attr(not(feature = "kafka"), allow(dead_code, reason = "only Kafka has partitions"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partitioning {
    /// Silence after which the other partitions no longer wait for one.
    pub(crate) idle: Duration,
}

/// Maximum number of partitions of a source.
pub(crate) const MAX_PARTITIONS: u32 = 1024;

/// The open partitions of a source.
pub(crate) trait Partitions: Send + Sync {
    /// Returns the number of partitions found so far: at least one, never fewer than before and at
    /// most [`MAX_PARTITIONS`]. A partition is counted before a row of any other one is delivered
    /// by a connection that has seen it.
    fn number(&self) -> u32;

    /// Notes a number of partitions that another process has found.
    fn note(&self, number: u32);

    /// Opens a partition. The part of its positions is its number.
    fn open(&self, partition: u32) -> Box<dyn Origin>;
}

/// How a file is cut into ranges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FileCut {
    /// It is not cut, and read in its turn.
    Uncut,
    /// It is packed, so it is one range. It has this many bytes.
    Whole(u64),
    /// It is text of this many bytes, and cut at any of them.
    Bytes(u64),
    /// It is a Parquet file, and cut between rows. The numbers of rows before each row group, and
    /// of all rows.
    Rows(Vec<u64>),
}

/// Stores outside of the state directory how far a source has been read.
pub(crate) trait CommitListener: Send {
    /// Records the public positions of a committed epoch, at most one for each partition: those
    /// after the rows whose arrival closed it. Never the position to resume from, which is private.
    /// Never waits.
    fn committed(&mut self, positions: Vec<Position>);
}

/// Condition for a journal of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Journaling {
    /// It can be read again.
    Never,
    /// Only if the pipeline requests one.
    IfWanted,
    Always,
}

/// Parameters for opening a source.
pub(crate) struct OriginRequest<'a> {
    pub(crate) shape: &'a RowLayout,
    pub(crate) position: Position,
    pub(crate) control: &'a Control,
    /// The list of its files, if it keeps one.
    pub(crate) list: Option<Arc<dyn FileList>>,
}

/// The list that numbers the files of a source. The state directory keeps it, so a number means the
/// same file after a restart.
pub(crate) trait FileList: Send + Sync {
    /// The names, in the order of their numbers.
    fn names(&self) -> Vec<Vec<u8>>;

    /// Numbers more files. The names are durable when this returns.
    fn add(&self, names: &[Vec<u8>]) -> Result<(), SourceError>;
}

/// An open source: one file after the other. A server's stream is one endless file.
pub(crate) trait Origin: Send {
    /// The name of a file for messages.
    fn name(&self, file: u32) -> PathBuf;

    /// Opens a file at a position; `None` after the last file. Waits for a file that may still
    /// appear.
    fn open(&mut self, position: Position) -> Result<Option<OpenFile>, SourceError>;

    /// Whether [`open`](Self::open) may wait at this position: for a peer, a server or a file that
    /// is not there yet.
    fn may_wait(&self, _position: Position) -> bool {
        false
    }

    /// Returns the part of a file that was read before a position, if a later run can check that it
    /// is unchanged. An origin that may wait there has none.
    fn read_before(&self, _position: Position) -> Option<ReadPart> {
        None
    }

    /// How to treat a file that ends before its header.
    fn without_header(&self, _file: u32) -> HeaderlessFile {
        HeaderlessFile::Fault
    }

    /// Whether it delivers new input after a restart, so that positions of earlier runs are
    /// meaningless.
    fn has_new_input_after_restart(&self) -> bool {
        false
    }
}

/// A file that was read up to a position.
pub(crate) struct ReadPart {
    pub(crate) part: u32,
    pub(crate) path: PathBuf,
    pub(crate) extent: ReadExtent,
}

/// The part of a file that must not change once it has been read.
pub(crate) enum ReadExtent {
    /// The bytes before this offset: the file may grow.
    UpTo(u64),
    /// All bytes.
    Whole,
}

/// A file opened at a position.
pub(crate) enum OpenFile {
    /// Its bytes.
    Bytes {
        stream: ByteStream,
        /// Stream that begins with the file's header, unless `stream` does.
        header: Option<ByteStream>,
        /// Whether the bytes continue a line that an earlier run has read as the last line of the
        /// file.
        is_rest: bool,
    },
    /// Its rows, if they are not text.
    Rows(Box<dyn FileRows>),
}

/// How to treat a file that ends before its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderlessFile {
    Fault,
    /// Skip the file: its writer has moved on to a later one.
    Passed,
    /// Resume at the file: a later run may find a header in it.
    Early,
}
