//! Streams stored on a server: ordered entries, each with the position after it.
//!
//! A position is the server's own number of the entry. Our own log records it with each committed
//! epoch. So nothing is acknowledged to the server and nothing is redelivered: a restarted run
//! continues at the recorded number, and each entry counts once. A message that the server stores
//! twice is two entries, so a publisher that may repeat itself should use the server's
//! deduplication (ids of messages or entries).
//!
//! Entries are read one by one on demand, so a slow pipeline holds up the connection and needs no
//! buffer. An unreachable server is retried until it is back; that never ends the stream.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use super::{AllowedFormats, DynamicEq, OpenFile, Origin, OriginRequest, RequestError, SourceError};
use crate::control::{Backoff, Control};
use crate::format::form::{EntryParser, RowLayout};
use crate::format::row::{FileRows, Row, RowOutcome};
use crate::state::Position;

/// A server's stream as named in a pipeline.
pub(super) trait ServerStream: DynamicEq + fmt::Debug + Clone + Send + Sync + 'static {
    /// Name of the system and the stream for messages, without a secret.
    fn name(&self) -> String;

    /// Bytes that distinguish the stream from others of the same system, independent of its
    /// address.
    fn identity(&self) -> Vec<u8>;

    /// Formats in which entries may be written.
    fn formats(&self) -> AllowedFormats {
        AllowedFormats::MESSAGES
    }

    /// Connects, and reads from a position on.
    fn connect(&self, control: &Control, position: Position) -> Result<Box<dyn Entries>, RequestError>;
}

impl<S: ServerStream> super::SourceConfig for S {
    fn name(&self) -> String {
        ServerStream::name(self)
    }

    fn formats(&self) -> AllowedFormats {
        ServerStream::formats(self)
    }

    fn identity(&self) -> Option<Vec<u8>> {
        Some(ServerStream::identity(self))
    }

    fn open(&self, opening: &OriginRequest<'_>) -> Result<Box<dyn Origin>, SourceError> {
        let (stream, shape, control) = (self.clone(), opening.shape.clone(), opening.control.clone());
        Ok(Box::new(StreamOrigin { stream, shape, control }))
    }
}

/// A connection that delivers entries in order.
pub(crate) trait Entries: Send {
    /// Reads the next entry into `row` and returns the position after it; `None` if none has
    /// arrived for a moment.
    fn next(&mut self, row: &mut Row, form: &mut EntryParser) -> Result<Option<Position>, RequestError>;

    /// Whether the next entry can be read without waiting. May return false for an entry that can.
    fn is_at_hand(&self) -> bool;

    /// Whether entries are known to be there that can't be read yet, so the stream is not idle.
    fn is_behind(&self) -> bool {
        false
    }

    /// Returns the number of the last entry for messages, before this position.
    fn line(&self, position: Position) -> u64 {
        position.offset
    }
}

/// The identity of a named stream in a database or a partition.
pub(super) fn identity(database: u32, partition: u32, stream: &str) -> Vec<u8> {
    [&database.to_le_bytes(), &partition.to_le_bytes(), stream.as_bytes()].concat()
}

/// An open stream.
struct StreamOrigin<S> {
    stream: S,
    shape: RowLayout,
    control: Control,
}

impl<S: ServerStream> Origin for StreamOrigin<S> {
    fn name(&self, _file: u32) -> PathBuf {
        self.stream.name().into()
    }

    fn open(&mut self, position: Position) -> Result<Option<OpenFile>, SourceError> {
        if position.part > 0 {
            return Ok(None);
        }
        let form = EntryParser::new(&self.shape, self.stream.name().as_ref())?;
        Ok(Some(OpenFile::Rows(Box::new(StreamRows {
            stream: self.stream.clone(),
            control: self.control.clone(),
            form,
            position,
            entries: None,
            backoff: Backoff::default(),
            last: Instant::now(),
        }))))
    }
}

/// The rows of a stream.
struct StreamRows<S> {
    stream: S,
    control: Control,
    form: EntryParser,
    position: Position,
    entries: Option<Box<dyn Entries>>,
    backoff: Backoff,
    /// When an entry last arrived or the server was unreachable.
    last: Instant,
}

impl<S: ServerStream> StreamRows<S> {
    fn next(&mut self, row: &mut Row) -> Result<Option<Position>, RequestError> {
        if self.entries.is_none() {
            self.entries = Some(self.stream.connect(&self.control, self.position)?);
            self.last = Instant::now();
        }
        self.entries.as_mut().map_or(Ok(None), |entries| entries.next(row, &mut self.form))
    }

    /// Drops the connection, and waits before the next attempt.
    fn pause(&mut self, error: &io::Error) {
        self.entries = None;
        if self.backoff.failed() && !self.control.is_stopped() {
            self.control.notice(&format!("{}: {error}; trying again", self.stream.name()));
        }
        self.control.sleep(self.backoff.pause());
        self.last = Instant::now();
    }
}

impl<S: ServerStream> FileRows for StreamRows<S> {
    fn read(&mut self, row: &mut Row) -> io::Result<RowOutcome> {
        while !self.control.is_over(self.last) {
            match self.next(row) {
                Ok(Some(position)) => {
                    (self.position, self.last) = (position, Instant::now());
                    self.backoff.reset();
                    return Ok(RowOutcome::Row);
                }
                Ok(None) => {
                    self.backoff.reset();
                    if self.entries.as_ref().is_some_and(|entries| entries.is_behind()) {
                        self.last = Instant::now();
                    }
                }
                Err(RequestError::Passing(error) | RequestError::Gone(error)) => self.pause(&error),
                Err(RequestError::NoStream) => self.pause(&io::Error::other("the stream is not there")),
                Err(RequestError::Insecure(error)) => {
                    let (path, problem) = (self.stream.name().into(), error.to_string());
                    return Err(io::Error::other(SourceError::Server { path, problem }));
                }
                Err(RequestError::Refused { path, problem }) => {
                    return Err(io::Error::other(SourceError::Server { path, problem }));
                }
                Err(RequestError::Lost { path, loss }) => {
                    return Err(io::Error::other(SourceError::Lost { path, loss }));
                }
            }
        }
        Ok(RowOutcome::End)
    }

    fn position(&self) -> (u64, u64) {
        (self.position.offset, self.position.row)
    }

    fn line(&self) -> u64 {
        let position = self.position;
        self.entries.as_ref().map_or(position.offset, |entries| entries.line(position))
    }

    fn is_at_hand(&self) -> bool {
        self.entries.as_ref().is_some_and(|entries| entries.is_at_hand())
    }
}
