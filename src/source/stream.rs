//! Rows of a stream that a server keeps.
//!
//! The position of every entry is the server's own number of it, and it is our own log that
//! remembers how far we are: with each committed epoch, as an offset in a file. So nothing is
//! acknowledged to the server, nothing is ever redelivered, and a run that begins again reads from
//! the recorded number: each entry counts once. What one server numbers twice is two entries; a
//! publisher that may repeat itself uses the server's own means (ids of messages, ids of entries).
//!
//! Entries are read one by one as they are wanted, so a pipeline that is behind holds up the
//! server's connection and takes no memory. A server that is away is tried again until it is back;
//! that is never an end.

use std::io;
use std::time::Instant;

use super::error::SourceError;
use crate::connect::entries::{Entries, Position};
use crate::connect::{StreamSource, Trouble};
use crate::control::{Backoff, Control};
use crate::format::form::Form;
use crate::format::row::{Outcome, Row, Rows};

/// The rows of a stream.
pub(super) struct StreamRows {
    source: StreamSource,
    control: Control,
    form: Form,
    position: Position,
    entries: Option<Box<dyn Entries>>,
    backoff: Backoff,
    /// When something came last, or the server was away.
    last: Instant,
}

impl StreamRows {
    pub(super) fn new(source: &StreamSource, control: &Control, position: Position, form: Form) -> Self {
        StreamRows {
            source: source.clone(),
            control: control.clone(),
            form,
            position,
            entries: None,
            backoff: Backoff::default(),
            last: Instant::now(),
        }
    }

    fn next(&mut self, row: &mut Row) -> Result<Option<Position>, Trouble> {
        if self.entries.is_none() {
            self.entries = Some(self.source.stream().open(&self.control, self.position)?);
            self.last = Instant::now();
        }
        self.entries.as_mut().map_or(Ok(None), |entries| entries.next(row, &mut self.form))
    }

    /// Lets the connection go, and waits before the next attempt.
    fn pause(&mut self, error: &io::Error) {
        self.entries = None;
        if self.backoff.failed() && !self.control.is_stopped() {
            self.control.notice(&format!("{}: {error}; trying again", self.source.stream().name()));
        }
        self.control.sleep(self.backoff.pause());
        self.last = Instant::now();
    }
}

impl Rows for StreamRows {
    fn read(&mut self, row: &mut Row) -> io::Result<Outcome> {
        while !self.control.is_over(self.last) {
            match self.next(row) {
                Ok(Some(position)) => {
                    (self.position, self.last) = (position, Instant::now());
                    self.backoff.reset();
                    return Ok(Outcome::Row);
                }
                Ok(None) => self.backoff.reset(),
                Err(Trouble::Passing(error)) => self.pause(&error),
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
        self.position
    }

    fn line(&self) -> u64 {
        self.position.0
    }

    fn is_at_hand(&self) -> bool {
        self.entries.as_ref().is_some_and(|entries| entries.is_at_hand())
    }
}
