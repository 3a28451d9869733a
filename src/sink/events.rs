//! Releases as server-sent events, for whoever asks at an address: an event for each epoch, with the JSON lines of all views.
//!
//! The number of an event is its epoch, so a reader that returns names with `Last-Event-ID` the last one that it has seen, as browsers do by
//! themselves, and has every epoch once; `?since=EPOCH` says where a new one begins. Each reader has a thread of its own that reads
//! the log as fast as the reader takes it: one that stalls holds up itself alone, and is dropped when it has not taken an event in
//! time. Readers [take turns](crate::http::Turn) to compute, so they never take more than one processor from the run.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::SinkError;
use super::feed::{Feed, Published};
use super::following::Log;
use crate::http::{self, Answer, Request, Server, Status, Turn};
use crate::state::StateError;

/// How often a log is looked at.
const INTERVAL: Duration = Duration::from_millis(50);

/// Epochs, and bytes of lines, that are computed for a reader in one turn.
const SLICE: (usize, usize) = (64, 256 << 10);

/// How often a reader hears that nothing has happened.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// How long readers may take for what is left when the run is over.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// A log that is served.
pub(super) struct Events {
    address: SocketAddr,
    readers: Arc<()>,
}

struct Readers {
    log: Log,
    over: Arc<AtomicBool>,
    /// One more for each reader.
    count: Arc<()>,
}

impl Events {
    /// Serves `log` at `address` for as long as the process lives. When it is `over`, readers get what there is.
    pub(super) fn serve(address: &str, log: Log, over: &Arc<AtomicBool>) -> Result<Self, SinkError> {
        let server = Server::bind(address)?;
        let events = Events { address: server.address(), readers: Arc::default() };
        let (over, count) = (Arc::clone(over), Arc::clone(&events.readers));
        let readers = Arc::new(Readers { log, over, count });
        server.serve(move |request| readers.answer(request))?;
        Ok(events)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the readers have what was published, or have had their time.
    pub(super) fn finish(&self) {
        let end = Instant::now() + LAST_PATIENCE;
        // This one and that of the server are always there.
        while Arc::strong_count(&self.readers) > 2 && Instant::now() < end {
            thread::sleep(INTERVAL);
        }
    }
}

impl Readers {
    fn answer(self: &Arc<Self>, request: &Request) -> Answer {
        if request.path != "/events" {
            return Answer::Refused(Status::NotFound, "there is only /events".into());
        }
        let since = request.get("since").map_or(Ok(1), str::parse);
        let horizon = self.log.subject.horizon();
        let Some(since) = since.ok().filter(|since| (1..=horizon).contains(since)) else {
            return Answer::Refused(
                Status::BadRequest,
                format!("since: expected an epoch, from 1 to {horizon}"),
            );
        };
        let seen = request.last_event.unwrap_or(since - 1);
        let (readers, counted) = (Arc::clone(self), Arc::clone(&self.count));
        Answer::Events(Box::new(move |events| {
            let _counted = counted;
            readers.tell(seen, events)
        }))
    }

    /// Sends what there is after the epoch `seen`, and what comes.
    fn tell(&self, seen: u64, events: &mut http::Events<'_>) -> io::Result<()> {
        let horizon = self.log.subject.horizon();
        let (mut feed, mut told) = (None, Instant::now());
        loop {
            // Asked for before the log is read: then all of it is.
            let over = self.over.load(Ordering::Acquire);
            let slice = if seen < horizon { self.slice(&mut feed, seen) } else { Ok(Slice::default()) };
            // What is wrong is reported to the operator, by the run.
            let Ok(slice) = slice else { return events.tell("fault", "the log can't be read on") };
            for Published { mark, lines } in &slice.published {
                events.send(mark.epoch, &String::from_utf8_lossy(lines))?;
                told = Instant::now();
            }
            if seen.max(feed.as_ref().map_or(0, Feed::read)) >= horizon {
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

    /// Reads on in the log, but no more than a turn allows.
    fn slice(&self, feed: &mut Option<Feed>, seen: u64) -> Result<Slice, SinkError> {
        let _turn = Turn::wait();
        if feed.is_none() {
            *feed = match self.log.feed() {
                Ok(opened) => Some(opened),
                // No run has begun the log yet.
                Err(SinkError::State(StateError::Missing { .. })) => None,
                Err(error) => return Err(error),
            };
        }
        let Some(feed) = feed else { return Ok(Slice::default()) };
        let (mut slice, mut bytes) = (Slice::default(), 0);
        for _ in 0..SLICE.0 {
            let Some(published) = feed.next(seen)? else { return Ok(slice) };
            if published.mark.epoch > seen {
                bytes += published.lines.len();
                slice.published.push(published);
            }
            if bytes >= SLICE.1 {
                break;
            }
        }
        Ok(Slice { goes_on: true, ..slice })
    }
}

/// What one turn has computed.
#[derive(Default)]
struct Slice {
    published: Vec<Published>,
    /// There may be more in the log.
    goes_on: bool,
}
