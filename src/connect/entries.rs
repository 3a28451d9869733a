//! Streams stored on a server: ordered entries, each with the position after it.
//!
//! A position is the server's own number of the entry. Our own log records it with each committed
//! epoch. So no acknowledgements or redeliveries are needed: a restarted run continues at the
//! recorded number, and each entry counts once. A message that the server stores twice is two
//! entries, so a publisher that may repeat itself should use the server's deduplication (ids of
//! messages or entries).
//!
//! Entries are read one by one on demand, so a slow pipeline delays the connection and needs no
//! buffer. An unreachable server is retried until it is back or the run is stopped. A check gives
//! up after a while.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::{AllowedFormats, DynamicEq, OpenFile, Origin, OriginRequest, RequestError, SourceError};
use crate::control::{Backoff, Control};
use crate::format::form::{EntryParser, RowLayout};
use crate::format::row::{FileRows, Row, RowOutcome};
use crate::state::Position;

/// A server's stream as named in a pipeline.
pub(super) trait ServerStream: fmt::Debug + Clone + Send + Sync + 'static {
    /// Name of the system and the stream for messages, without a secret.
    fn name(&self) -> String;

    /// Bytes that distinguish the stream from others of the same system, independent of its
    /// address.
    fn identity(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Formats in which entries may be written.
    fn formats(&self) -> AllowedFormats {
        AllowedFormats::MESSAGES
    }

    /// The part of its positions.
    fn part(&self) -> u32 {
        0
    }

    /// Time at which an entry last arrived. Streams that end together after a silence share it.
    fn activity(&self) -> Activity {
        Activity::default()
    }

    /// Connects, and reads from a position on.
    fn connect(&self, control: &Control, position: Position) -> Result<Box<dyn Entries>, RequestError>;
}

impl<S: ServerStream + DynamicEq> super::SourceConfig for S {
    fn name(&self) -> String {
        ServerStream::name(self)
    }

    fn formats(&self) -> AllowedFormats {
        ServerStream::formats(self)
    }

    fn identity(&self) -> Option<Vec<u8>> {
        Some(ServerStream::identity(self))
    }

    fn opens_anywhere(&self) -> bool {
        true
    }

    fn open(&self, opening: &OriginRequest<'_>) -> Result<Box<dyn Origin>, SourceError> {
        Ok(origin(self.clone(), opening.shape, opening.control))
    }
}

/// Opens a stream.
pub(super) fn origin(stream: impl ServerStream, shape: &RowLayout, control: &Control) -> Box<dyn Origin> {
    Box::new(StreamOrigin { stream, shape: shape.clone(), control: control.clone() })
}

/// Time at which an entry last arrived or a server was last unreachable.
#[derive(Clone, Debug)]
pub(super) struct Activity(Arc<Mutex<Instant>>);

impl Default for Activity {
    fn default() -> Self {
        Activity(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Activity {
    fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn last(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that delivers entries in order.
pub(crate) trait Entries: Send {
    /// Reads the next entry into `row` and returns the position after it; `None` if no
    /// entry arrives within a short wait.
    fn next(&mut self, row: &mut Row, form: &mut EntryParser) -> Result<Option<Position>, RequestError>;

    /// Whether the next entry can be read without waiting. May return false even if it can.
    fn has_buffered_row(&self) -> bool;

    /// Whether entries are known to be there that can't be read yet, so the stream is not idle.
    fn is_behind(&self) -> bool {
        false
    }

    /// Returns why entries that are there can't be read yet.
    fn obstacle(&self) -> Option<String> {
        None
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
        if position.part != self.stream.part() {
            return Ok(None);
        }
        let form = EntryParser::new(&self.shape, self.stream.name().as_ref())?;
        self.control.await_connection(&self.stream.name());
        Ok(Some(OpenFile::Rows(Box::new(StreamRows {
            stream: self.stream.clone(),
            control: self.control.clone(),
            form,
            position,
            entries: None,
            has_connected: false,
            has_rows: false,
            waits_since: Instant::now(),
            backoff: Backoff::default(),
            activity: self.stream.activity(),
        }))))
    }
}

struct StreamRows<S: ServerStream> {
    stream: S,
    control: Control,
    form: EntryParser,
    position: Position,
    entries: Option<Box<dyn Entries>>,
    /// Whether an attempt to connect has succeeded.
    has_connected: bool,
    /// Whether a row was read.
    has_rows: bool,
    /// Time from which on the server has held rows back or was unreachable.
    waits_since: Instant,
    backoff: Backoff,
    activity: Activity,
}

impl<S: ServerStream> StreamRows<S> {
    fn next(&mut self, row: &mut Row) -> Result<Option<Position>, RequestError> {
        if self.entries.is_none() {
            self.entries = Some(self.stream.connect(&self.control, self.position)?);
            self.activity.note();
        }
        let next = self.entries.as_mut().map_or(Ok(None), |entries| entries.next(row, &mut self.form))?;
        // A server that only accepts connections may be another one, or hang.
        if !std::mem::replace(&mut self.has_connected, true) {
            self.control.note_attempt(&self.stream.name(), None);
        }
        Ok(next)
    }

    /// Drops the connection, and waits before the next attempt. Returns whether to make one.
    fn pause(&mut self, error: &io::Error) -> bool {
        self.entries = None;
        if !self.has_connected {
            self.control.note_attempt(&self.stream.name(), Some(&format!("can't be reached: {error}")));
        }
        self.backoff.failed();
        if !self.control.is_stopped() && self.backoff.is_first_report(&error.to_string()) {
            self.control.notice(&format!("{}: {error}; trying again", self.stream.name()));
        }
        if self.control.is_past_server_timeout(self.waits_since) {
            return false;
        }
        self.control.sleep(self.backoff.pause());
        self.activity.note();
        true
    }

    /// Whether to keep waiting for entries that the server holds back.
    fn waits_on(&self, entries: &dyn Entries) -> bool {
        if !self.control.is_past_server_timeout(self.waits_since) {
            return true;
        }
        let obstacle = entries.obstacle().unwrap_or_else(|| "the server holds rows back".into());
        match self.has_rows {
            true => self
                .control
                .notice(&format!("{}: {obstacle}; the later ones are left out", self.stream.name())),
            false => self.control.note_attempt(&self.stream.name(), Some(&obstacle)),
        }
        false
    }
}

impl<S: ServerStream> Drop for StreamRows<S> {
    /// Another process reads the stream, or nobody does.
    fn drop(&mut self) {
        if !self.has_connected {
            self.control.forget_connection(&self.stream.name());
        }
    }
}

impl<S: ServerStream> FileRows for StreamRows<S> {
    fn read(&mut self, row: &mut Row) -> io::Result<RowOutcome> {
        while !self.control.is_stopped() {
            match self.next(row) {
                Ok(Some(position)) => {
                    self.position = position;
                    self.has_rows = true;
                    self.waits_since = Instant::now();
                    self.activity.note();
                    self.backoff.reset();
                    return Ok(RowOutcome::Row);
                }
                Ok(None) => {
                    self.backoff.reset();
                    if let Some(entries) = self.entries.as_deref().filter(|entries| entries.is_behind()) {
                        if !self.waits_on(entries) {
                            break;
                        }
                        self.activity.note();
                        continue;
                    }
                    self.waits_since = Instant::now();
                    if self.control.is_over(self.activity.last()) {
                        break;
                    }
                }
                Err(RequestError::Transient(error) | RequestError::Gone(error)) => {
                    if !self.pause(&error) {
                        break;
                    }
                }
                Err(RequestError::NoStream) => {
                    if !self.pause(&io::Error::other("the stream is not there")) {
                        break;
                    }
                }
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

    fn has_buffered_row(&self) -> bool {
        self.entries.as_ref().is_some_and(|entries| entries.has_buffered_row())
    }
}
