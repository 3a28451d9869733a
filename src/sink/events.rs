//! Releases as server-sent events, for whoever asks at an address: an event for each epoch, with the JSON lines of all views.
//!
//! The number of an event is its epoch, so a reader that comes back tells with `Last-Event-ID` where it is, as browsers do by
//! themselves, and has every epoch once; `?since=EPOCH` says where a new one begins. Each reader has a thread of its own that reads
//! the log as fast as the reader takes it: one that stalls holds up itself alone, and is let go after ten seconds.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::SinkError;
use super::feed::Feed;
use super::following::Log;
use crate::http::{self, Answer, Request, Server, Status};
use crate::state::StateError;

/// How often a log is looked at.
const INTERVAL: Duration = Duration::from_millis(50);

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
        thread::spawn(move || server.serve(move |request| readers.answer(request)));
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
        let Ok(since @ 1..) = since else {
            return Answer::Refused(Status::BadRequest, "since: expected an epoch, from 1".into());
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
        let (mut feed, mut told) = (None, Instant::now());
        loop {
            // Asked for before the log is read: then all of it is.
            let over = self.over.load(Ordering::Acquire);
            match self.catch_up(&mut feed, seen, events)? {
                Ok(0) => {}
                Ok(_) => told = Instant::now(),
                // What is wrong is told to the operator, by the run.
                Err(_) => return events.tell("fault", "the log can't be read on"),
            }
            if feed.as_ref().is_some_and(|feed: &Feed| feed.read() >= self.log.subject.horizon()) {
                return events.tell("end", "the last epoch has been published");
            }
            if over {
                return events.tell("pause", "the run is over");
            }
            if told.elapsed() >= HEARTBEAT {
                events.beat()?;
                told = Instant::now();
            }
            thread::sleep(INTERVAL);
        }
    }

    /// Sends what has been published since: the number of events. The outer error is the reader's.
    fn catch_up(
        &self,
        feed: &mut Option<Feed>,
        seen: u64,
        events: &mut http::Events<'_>,
    ) -> io::Result<Result<u64, SinkError>> {
        if feed.is_none() {
            *feed = match self.log.feed() {
                Ok(opened) => Some(opened),
                // No run has begun the log yet.
                Err(SinkError::State(StateError::Missing { .. })) => None,
                Err(error) => return Ok(Err(error)),
            };
        }
        let Some(feed) = feed else { return Ok(Ok(0)) };
        let mut number = 0;
        loop {
            match feed.next(seen) {
                Ok(None) => return Ok(Ok(number)),
                Ok(Some(published)) if published.mark.epoch > seen => {
                    events.send(published.mark.epoch, &String::from_utf8_lossy(&published.lines))?;
                    number += 1;
                }
                Ok(Some(_)) => {}
                Err(error) => return Ok(Err(error)),
            }
        }
    }
}
