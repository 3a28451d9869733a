//! What `[[sinks]]` say: where releases are written to, beside the log.

use std::path::PathBuf;

/// A file that follows the public log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sink {
    /// `path`: a file of JSON lines.
    pub path: PathBuf,
    /// `rotate`: when another file begins.
    pub rotate: Option<Rotation>,
}

/// When a file is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// After so many epochs.
    Epochs(u64),
    /// Before it has more bytes than this, unless one epoch alone has.
    Bytes(u64),
}
