//! Streams that a server keeps: entries in their order, each with the position behind it.
//!
//! The position of every entry is the server's own number of it, and it is our own log that
//! remembers how far we are: with each committed epoch. So nothing is acknowledged to the server,
//! nothing is ever redelivered, and a run that begins again reads from the recorded number: each
//! entry counts once. What one server numbers twice is two entries; a publisher that may repeat
//! itself uses the server's own means (ids of messages, ids of entries).
//!
//! Entries are read one by one as they are wanted, so a pipeline that is behind holds up the
//! server's connection and takes no memory. A server that is away is tried again until it is back;
//! that is never an end.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use super::{Equal, Formats, Opened, Opening, Origin, Position, SourceError, Trouble};
use crate::control::{Backoff, Control};
use crate::format::form::{Form, Shape};
use crate::format::row::{Outcome, Row, Rows};

/// A stream of a server as a pipeline names it.
pub(super) trait ServerStream: Equal + fmt::Debug + Clone + Send + Sync + 'static {
    /// The system and the stream, in messages: without a secret.
    fn name(&self) -> String;

    /// What distinguishes the stream from others of the same system, wherever that runs.
    fn identity(&self) -> Vec<u8>;

    /// How entries may be written.
    fn formats(&self) -> Formats {
        Formats::MESSAGES
    }

    /// Connects, and reads on from a position.
    fn connect(&self, control: &Control, position: Position) -> Result<Box<dyn Entries>, Trouble>;
}

impl<S: ServerStream> super::Reads for S {
    fn name(&self) -> String {
        ServerStream::name(self)
    }

    fn formats(&self) -> Formats {
        ServerStream::formats(self)
    }

    fn identity(&self) -> Option<Vec<u8>> {
        Some(ServerStream::identity(self))
    }

    fn open(&self, opening: &Opening<'_>) -> Result<Box<dyn Origin>, SourceError> {
        let (stream, shape, control) = (self.clone(), opening.shape.clone(), opening.control.clone());
        Ok(Box::new(StreamOrigin { stream, shape, control }))
    }
}

/// A connection over which entries come, in their order.
pub(crate) trait Entries: Send {
    /// Reads the next entry into `row`, and gives the position behind it; none if there has been
    /// none for a moment.
    fn next(&mut self, row: &mut Row, form: &mut Form) -> Result<Option<Position>, Trouble>;

    /// Whether there is one that needs not be waited for. False is always safe.
    fn is_at_hand(&self) -> bool;
}

/// The identity of a stream that has a name, in a database or a partition.
pub(super) fn identity(database: u32, partition: u32, stream: &str) -> Vec<u8> {
    [&database.to_le_bytes(), &partition.to_le_bytes(), stream.as_bytes()].concat()
}

/// A stream that is open.
struct StreamOrigin<S> {
    stream: S,
    shape: Shape,
    control: Control,
}

impl<S: ServerStream> Origin for StreamOrigin<S> {
    fn name(&self, _file: u32) -> PathBuf {
        self.stream.name().into()
    }

    fn open(&mut self, position: Position) -> Result<Option<Opened>, SourceError> {
        if position.file > 0 {
            return Ok(None);
        }
        let form = Form::new(&self.shape, self.stream.name().as_ref())?;
        Ok(Some(Opened::Rows(Box::new(StreamRows {
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
    form: Form,
    position: Position,
    entries: Option<Box<dyn Entries>>,
    backoff: Backoff,
    /// When something came last, or the server was away.
    last: Instant,
}

impl<S: ServerStream> StreamRows<S> {
    fn next(&mut self, row: &mut Row) -> Result<Option<Position>, Trouble> {
        if self.entries.is_none() {
            self.entries = Some(self.stream.connect(&self.control, self.position)?);
            self.last = Instant::now();
        }
        self.entries.as_mut().map_or(Ok(None), |entries| entries.next(row, &mut self.form))
    }

    /// Lets the connection go, and waits before the next attempt.
    fn pause(&mut self, error: &io::Error) {
        self.entries = None;
        if self.backoff.failed() && !self.control.is_stopped() {
            self.control.notice(&format!("{}: {error}; trying again", self.stream.name()));
        }
        self.control.sleep(self.backoff.pause());
        self.last = Instant::now();
    }
}

impl<S: ServerStream> Rows for StreamRows<S> {
    fn read(&mut self, row: &mut Row) -> io::Result<Outcome> {
        while !self.control.is_over(self.last) {
            match self.next(row) {
                Ok(Some(position)) => {
                    (self.position, self.last) = (position, Instant::now());
                    self.backoff.reset();
                    return Ok(Outcome::Row);
                }
                Ok(None) => self.backoff.reset(),
                Err(Trouble::Passing(error) | Trouble::Gone(error)) => self.pause(&error),
                Err(Trouble::NoStream) => self.pause(&io::Error::other("the stream is not there")),
                Err(Trouble::Refused { path, problem }) => {
                    return Err(io::Error::other(SourceError::Server { path, problem }));
                }
                Err(Trouble::Lost { path, what }) => {
                    return Err(io::Error::other(SourceError::Lost { path, what }));
                }
            }
        }
        Ok(Outcome::End)
    }

    fn place(&self) -> (u64, u64) {
        (self.position.offset, self.position.line)
    }

    fn line(&self) -> u64 {
        self.place().0
    }

    fn is_at_hand(&self) -> bool {
        self.entries.as_ref().is_some_and(|entries| entries.is_at_hand())
    }
}
