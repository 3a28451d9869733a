//! Serves a log as server-sent events: one event per epoch, with its JSON lines.
//!
//! The id of an event is its epoch. `?since=EPOCH` selects where a new reader begins. A reader that
//! reconnects sends the last id in `Last-Event-ID`, as browsers do, and gets every epoch once. Each
//! reader has its own thread, which follows the log as fast as that reader takes events. A slow
//! reader delays only itself, and is disconnected if it does not take an event in time. Readers
//! [take turns](crate::http::ComputeTurn) to compute, so together they use at most one processor.

use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use super::{EpochReader, SinkInput, as_lines};
use crate::follow::{FollowError, StopFlag};
use crate::http::{
    ComputeTurn, EventWriter, HttpAnswer, HttpEndpoint, HttpError, HttpRequest, HttpServer, HttpStatus,
};
use crate::lines::OutputFormat;

/// How often to check at the end whether readers are still connected.
const INTERVAL: Duration = Duration::from_millis(50);

/// How long readers may take for the remaining events after the run has ended.
const LAST_TIMEOUT: Duration = Duration::from_secs(5);

/// Limits of one turn of a reader.
const TURN_EPOCHS: usize = 64;
const TURN_BYTES: usize = 256 << 10;

/// How often a reader gets a keep-alive comment if there is no event.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// A log that is served as events.
pub(super) struct EventServer {
    url: String,
    /// Has one more reference for each reader.
    readers: Arc<()>,
}

impl EventServer {
    /// Serves a log as long as the process lives. After `stop` is set, readers get the remaining
    /// events.
    pub(super) fn start(
        endpoint: &HttpEndpoint,
        input: &SinkInput,
        stop: &StopFlag,
    ) -> Result<Self, HttpError> {
        let server = HttpServer::bind(endpoint)?;
        let events = EventServer { url: server.url(), readers: Arc::default() };
        let (readers, input, stop) = (Arc::clone(&events.readers), input.clone(), stop.clone());
        server.serve(move |request| answer(request, &input, &stop, &readers))?;
        Ok(events)
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Waits until the readers have received all published epochs, or their time is up.
    pub(super) fn finish(&self) {
        let end = Instant::now() + LAST_TIMEOUT;
        // Two references always exist: this one and the server's.
        while Arc::strong_count(&self.readers) > 2 && Instant::now() < end {
            thread::sleep(INTERVAL);
        }
    }
}

fn answer(request: &HttpRequest, input: &SinkInput, stop: &StopFlag, readers: &Arc<()>) -> HttpAnswer {
    if request.path != "/events" {
        return HttpAnswer::Refused(HttpStatus::NotFound, "there is only /events".into());
    }
    let seen = match last_seen(request, input.subject.horizon()) {
        Ok(seen) => seen,
        Err(why) => return HttpAnswer::Refused(HttpStatus::BadRequest, why),
    };
    let (input, stop, reader) = (input.clone(), stop.clone(), Arc::clone(readers));
    let stream = EventStream { input, keys: Vec::new(), seen, backlog: Backlog::Whole, stop };
    HttpAnswer::Events(Box::new(move |events| {
        let _reader = reader;
        stream.send(events)
    }))
}

/// Returns the last epoch that a client has seen, by the number of its last event or by `since=`.
///
/// # Errors
/// The expected form, if `since` is no epoch up to the horizon.
pub(crate) fn last_seen(request: &HttpRequest, horizon: u64) -> Result<u64, String> {
    let since = request.get("since").map_or(Ok(1), str::parse);
    let since = since.ok().filter(|since| (1..=horizon).contains(since));
    let since = since.ok_or_else(|| format!("since: expected an epoch, from 1 to {horizon}"))?;
    Ok(request.last_event.unwrap_or(since - 1))
}

/// The part of the past that a new reader gets.
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
    /// The log, and the keys and views to follow in it.
    pub(crate) input: SinkInput,
    /// The selected keys; all if empty.
    pub(crate) keys: Vec<u32>,
    /// The last epoch that the reader has seen.
    pub(crate) seen: u64,
    /// The part of the past to send.
    pub(crate) backlog: Backlog,
    /// Set when no more epochs will come: the stream ends after the last one.
    pub(crate) stop: StopFlag,
}

impl EventStream {
    /// Sends the epochs in the log, and new ones as they are published, up to the horizon.
    pub(crate) fn send(&self, events: &mut EventWriter<'_>) -> io::Result<()> {
        let horizon = self.input.subject.horizon();
        let (mut reader, mut last, mut sent) = (None, self.seen, Instant::now());
        while last < horizon {
            let timeout = HEARTBEAT.saturating_sub(sent.elapsed());
            match self.stop.wait(timeout, || self.read_batch(&mut reader)) {
                Ok(Poll::Ready(Some(batch))) => {
                    for (epoch, lines) in &batch.events {
                        events.send(*epoch, lines)?;
                        sent = Instant::now();
                    }
                    last = last.max(batch.last);
                }
                Ok(Poll::Ready(None)) => return events.send_event("pause", "the run is over"),
                Ok(Poll::Pending) => {}
                // The serving process reports the cause to its operator.
                Err(_) => return events.send_event("fault", "the log can't be read any further"),
            }
            if sent.elapsed() >= HEARTBEAT {
                events.beat()?;
                sent = Instant::now();
            }
        }
        events.send_event("end", "the last epoch has been published")
    }

    /// Reads on in the log, up to the limits of a turn; `None` if there is nothing new.
    fn read_batch(
        &self,
        reader: &mut Option<EpochReader<Vec<u8>>>,
    ) -> Result<Option<EventBatch>, FollowError> {
        let _turn = ComputeTurn::wait();
        if reader.is_none() {
            let lines = as_lines(&self.input.subject, OutputFormat::Json);
            *reader = EpochReader::open(&self.input, lines, &self.keys)?;
        }
        let Some(reader) = reader else { return Ok(None) };
        let (before, mut bytes, mut events) = (reader.last(), 0, Vec::new());
        for _ in 0..TURN_EPOCHS {
            if bytes >= TURN_BYTES {
                break;
            }
            let Some(epoch) = reader.next(|epoch, newest| self.is_due(epoch, newest))? else { break };
            if !epoch.content.is_empty() {
                bytes += epoch.content.len();
                let lines = String::from_utf8_lossy(&epoch.content).trim_end().to_owned();
                events.push((epoch.mark.epoch, lines));
            }
        }
        Ok((reader.last() > before).then(|| EventBatch { events, last: reader.last() }))
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

/// The events of one turn, by epoch.
struct EventBatch {
    events: Vec<(u64, String)>,
    /// The last epoch that was read.
    last: u64,
}
