//! `[[sinks]]`: where releases are written in addition to the log.

use std::path::PathBuf;

use crate::connect::StreamSink;

/// A destination of releases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sink {
    /// `path = "out/releases.ndjson"`.
    File(ReleaseFile),
    /// `path = "redis://…"` and the like: a stream on a server. No other writer may use it.
    Stream(StreamSink),
    /// `path = "http-listen://address:port"`: server-sent events for clients of this address.
    Events(String),
}

/// A file of JSON lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseFile {
    /// `path`: name of the file.
    pub path: PathBuf,
    /// `rotate`: when a new file is started.
    pub rotate: Option<Rotation>,
}

/// When a file is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// After this number of epochs.
    Epochs(u64),
    /// Before the file exceeds this number of bytes; a single epoch may exceed it.
    Bytes(u64),
}
