//! Serves a log as server-sent events: one event per epoch, with its JSON lines.
//!
//! The id of an event is its epoch. A reader that reconnects sends the last id in `Last-Event-ID`,
//! as browsers do, and gets every epoch once. Each reader has its own thread, which follows the log
//! as fast as that reader takes events. A slow reader delays only itself, and is disconnected if it
//! does not take an event in time. Readers [take turns](crate::http::Turn) to compute, so together
//! they use at most one processor.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::follow::{FollowError, Follower, Over, Subject};
use crate::http::{Events, Turn};
use crate::lines::{Format, Writer};
use crate::state::StateError;

/// How often to check the log.
const INTERVAL: Duration = Duration::from_millis(50);

/// Limits of one turn of a reader: epochs, and bytes of lines.
const SLICE: (usize, usize) = (64, 256 << 10);

/// How often a reader gets a sign of life if nothing happens.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// How much of the past a new reader gets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Backlog {
    /// Every epoch.
    Whole,
    /// About `most` of the epochs up to `published`, evenly spaced, and the newest.
    Subsampled {
        /// The last past epoch.
        published: u64,
        /// The number of events.
        most: u64,
    },
}

/// The events for one reader.
pub(crate) struct EventStream {
    /// The directory of the log.
    pub(crate) directory: PathBuf,
    /// The publication and views to show.
    pub(crate) subject: Arc<Subject>,
    /// The keys to show; all if empty.
    pub(crate) keys: Vec<u32>,
    /// The last epoch that the reader has seen.
    pub(crate) seen: u64,
    /// How much of the past to send.
    pub(crate) backlog: Backlog,
    /// Set when no more epochs will come: the stream ends after the last one.
    pub(crate) over: Over,
}

impl EventStream {
    /// Sends the epochs in the log, and new ones as they are published, up to the horizon.
    pub(crate) fn tell(&self, events: &mut Events<'_>) -> io::Result<()> {
        let horizon = self.subject.horizon();
        let (mut reading, mut told) = (None, Instant::now());
        let mut last = self.seen;
        loop {
            let over = self.over.is_set();
            let slice = if last < horizon { self.slice(&mut reading) } else { Ok(Slice::default()) };
            // The serving process reports the cause to its operator.
            let Ok(slice) = slice else { return events.tell("fault", "the log can't be read any further") };
            for (epoch, lines) in &slice.events {
                events.send(*epoch, lines)?;
                told = Instant::now();
            }
            last = last.max(slice.last);
            if last >= horizon {
                return events.tell("end", "the last epoch has been published");
            }
            if over && !slice.goes_on {
                return events.tell("pause", "the run is over");
            }
            if told.elapsed() >= HEARTBEAT {
                events.beat()?;
                told = Instant::now();
            }
            if !slice.goes_on {
                thread::sleep(INTERVAL);
            }
        }
    }

    /// Reads on in the log, up to the limits of a turn.
    fn slice(&self, reading: &mut Option<Reading>) -> Result<Slice, FollowError> {
        let _turn = Turn::wait();
        if reading.is_none() {
            let follower = match Follower::open(&self.directory, &self.subject, &self.keys) {
                // No run has started the log yet.
                Err(FollowError::State(StateError::Missing { .. })) => return Ok(Slice::default()),
                opened => opened?,
            };
            let writer = Writer::new(&self.subject, Format::Json);
            *reading = Some(Reading { follower, writer, text: Vec::new() });
        }
        let Some(reading) = reading else { return Ok(Slice::default()) };
        let (mut slice, mut bytes) = (Slice { goes_on: true, ..Slice::default() }, 0);
        for _ in 0..SLICE.0 {
            if bytes >= SLICE.1 {
                break;
            }
            let Some(epoch) = reading.follower.next(|epoch, newest| self.is_due(epoch, newest))? else {
                slice.goes_on = false;
                break;
            };
            slice.last = epoch.number;
            if !epoch.shown.is_empty() {
                reading.text.clear();
                let written = reading.writer.write(&epoch, &mut reading.text);
                written.expect("memory takes every line");
                bytes += reading.text.len();
                slice
                    .events
                    .push((epoch.number, String::from_utf8_lossy(&reading.text).trim_end().to_owned()));
            }
        }
        Ok(slice)
    }

    fn is_due(&self, epoch: u64, newest: bool) -> bool {
        let due = match self.backlog {
            Backlog::Whole => true,
            Backlog::Subsampled { published, most } => {
                let stride = published.saturating_sub(self.seen).div_ceil(most).max(1);
                newest || epoch > published || epoch.saturating_sub(self.seen).is_multiple_of(stride)
            }
        };
        epoch > self.seen && due
    }
}

/// How far a reader has come in the log.
struct Reading {
    follower: Follower,
    writer: Writer,
    text: Vec<u8>,
}

/// Result of one turn.
#[derive(Default)]
struct Slice {
    events: Vec<(u64, String)>,
    /// The last epoch that was read.
    last: u64,
    /// There may be more in the log.
    goes_on: bool,
}
