//! Serves releases as server-sent events at an address: one event per epoch, with the JSON lines of
//! all views.
//!
//! `?since=EPOCH` selects where a new reader begins. A returning reader continues after the last
//! epoch that it has seen ([`EventStream`]).

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::SinkError;
use super::event_stream::{Backlog, EventStream};
use super::following::Log;
use crate::follow::Over;
use crate::http::{Answer, Request, Server, Status};

/// How often to check whether readers are still connected.
const INTERVAL: Duration = Duration::from_millis(50);

/// How long readers may take for the remaining events after the run has ended.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// A served log.
pub(super) struct Events {
    address: SocketAddr,
    readers: Arc<()>,
}

struct Readers {
    log: Log,
    over: Over,
    /// Has one more reference for each reader.
    count: Arc<()>,
}

impl Events {
    /// Serves `log` at `address` as long as the process lives. After `over` is set, readers get the
    /// remaining events.
    pub(super) fn serve(address: &str, log: Log, over: &Over) -> Result<Self, SinkError> {
        let server = Server::bind(address)?;
        let events = Events { address: server.address(), readers: Arc::default() };
        let readers = Readers { log, over: over.clone(), count: Arc::clone(&events.readers) };
        server.serve(move |request| readers.answer(request))?;
        Ok(events)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the readers have received all published epochs, or their time is up.
    pub(super) fn finish(&self) {
        let end = Instant::now() + LAST_PATIENCE;
        // Two references always exist: this one and the server's.
        while Arc::strong_count(&self.readers) > 2 && Instant::now() < end {
            thread::sleep(INTERVAL);
        }
    }
}

impl Readers {
    fn answer(&self, request: &Request) -> Answer {
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
        let Log { directory, subject } = self.log.clone();
        let seen = request.last_event.unwrap_or(since - 1);
        let (backlog, over, keys) = (Backlog::Whole, self.over.clone(), Vec::new());
        let stream = EventStream { directory, subject, keys, seen, backlog, over };
        let counted = Arc::clone(&self.count);
        Answer::Events(Box::new(move |events| {
            let _counted = counted;
            stream.tell(events)
        }))
    }
}
