//! Releases as server-sent events, for whoever asks at an address: an event for each epoch, with the JSON lines of all views.
//!
//! `?since=EPOCH` says where a new reader begins; one that returns goes on behind the last epoch
//! that it has seen ([`EventStream`]).

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::SinkError;
use super::event_stream::{Backlog, EventStream};
use super::following::Log;
use crate::follow::Over;
use crate::http::{Answer, Request, Server, Status};

/// How often it is looked whether readers are still there.
const INTERVAL: Duration = Duration::from_millis(50);

/// How long readers may take for what is left when the run is over.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// A log that is served.
pub(super) struct Events {
    address: SocketAddr,
    readers: Arc<()>,
}

struct Readers {
    log: Log,
    over: Over,
    /// One more for each reader.
    count: Arc<()>,
}

impl Events {
    /// Serves `log` at `address` for as long as the process lives. When it is `over`, readers get what there is.
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
