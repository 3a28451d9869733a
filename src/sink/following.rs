//! Sinks that follow the public log, each on its own thread, until the log is complete.
//!
//! The log is the queue, so no queue can overflow. A sink holds at most two epochs at a time. A
//! slow or unreachable destination blocks nothing and catches up later. A restarted sink continues
//! after what its destination holds, which must belong to the log's own history.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::SinkError;
use super::events::Events;
use crate::connect::standard::Standard;
use crate::connect::{Held, Mark, Outlet, Target};
use crate::control::{Backoff, Control, GLANCE};
use crate::follow::{FollowError, Follower, Over, Subject};
use crate::lines::{Format, Writer};
use crate::pipeline::Sink;
use crate::state::StateError;

/// How often to check the log.
const INTERVAL: Duration = Duration::from_millis(20);

/// Attempts to write the remaining epochs after the end.
const LAST_ATTEMPTS: u32 = 3;

/// How long a server may take for an answer, and for the remaining epochs, once the run is stopped.
const GRACE: Duration = Duration::from_millis(500);

/// A public log, and the part of it to show.
#[derive(Clone)]
pub struct Log {
    /// Its directory; the log may not have been started yet.
    pub directory: PathBuf,
    /// The publication and views to show.
    pub subject: Arc<Subject>,
}

/// A sink that follows the log.
pub struct Following {
    over: Over,
    thread: JoinHandle<Result<(), SinkError>>,
    address: Option<SocketAddr>,
    /// Number of epochs written to standard output.
    taken: Arc<AtomicU64>,
}

impl Following {
    /// Follows `log` with a sink of a pipeline. Errors are retried and reported to `control`. Once
    /// it stops the run, a server that does not answer is abandoned; the next run continues where
    /// the sink is.
    ///
    /// # Errors
    /// [`SinkError::Http`] if an address can't be listened on.
    pub fn start(sink: Sink, log: Log, control: &Control) -> Result<Self, SinkError> {
        let (over, control) = (Over::default(), control.with_grace(GRACE));
        let outlet = match sink.target().target(&control) {
            Target::Outlet(outlet) => outlet,
            Target::Events(at) => {
                let events = Events::serve(&at, log, &over)?;
                let address = Some(events.address());
                let thread = spawn({
                    let over = over.clone();
                    move || {
                        while !over.is_set() {
                            thread::park();
                        }
                        events.finish();
                        Ok(())
                    }
                })?;
                return Ok(Following { over, thread, address, taken: Arc::default() });
            }
        };
        let thread =
            spawn(pursuit((log, Format::Json), (sink.target().name(), outlet), over.clone(), control))?;
        Ok(Following { over, thread, address: None, taken: Arc::default() })
    }

    /// Writes the epochs of `log` after `since` to standard output.
    ///
    /// # Errors
    /// [`SinkError::Thread`].
    pub fn show(log: Log, format: Format, since: u64) -> Result<Self, SinkError> {
        let over = Over::default();
        let taken = Arc::new(AtomicU64::new(0));
        let outlet = Box::new(Standard::after(since, Arc::clone(&taken)));
        let outlet = ("standard output".into(), outlet as Box<dyn Outlet>);
        let thread = spawn(pursuit((log, format), outlet, over.clone(), Control::new()))?;
        Ok(Following { over, thread, address: None, taken })
    }

    /// Returns the address at which it listens, if it does.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Announces that no more epochs will come.
    fn over(&self) {
        self.over.set();
        self.thread.thread().unpark();
    }

    /// Like [`finish`](Self::finish), for standard output. Returns `None` if the run is stopped and
    /// nobody has read the output for `patience`.
    pub fn finish_while_taken(
        self,
        is_stopped: impl Fn() -> bool,
        patience: Duration,
    ) -> Option<Result<(), SinkError>> {
        self.over();
        let (mut taken, mut since) = (0, Instant::now());
        while !self.thread.is_finished() {
            let now = self.taken.load(Ordering::Relaxed);
            if now != taken {
                (taken, since) = (now, Instant::now());
            }
            if is_stopped() && since.elapsed() >= patience {
                return None;
            }
            thread::sleep(INTERVAL);
        }
        Some(self.finish())
    }

    /// Waits until everything published is written.
    ///
    /// # Errors
    /// The error that prevented it. The next run continues where this one stopped.
    pub fn finish(self) -> Result<(), SinkError> {
        self.over();
        // A thread that panicked has already reported it.
        self.thread.join().unwrap_or(Ok(()))
    }
}

fn spawn(
    work: impl FnOnce() -> Result<(), SinkError> + Send + 'static,
) -> Result<JoinHandle<Result<(), SinkError>>, SinkError> {
    thread::Builder::new().name("sink".into()).spawn(work).map_err(SinkError::Thread)
}

/// Body of a sink's thread.
fn pursuit(
    (log, format): (Log, Format),
    (name, outlet): (String, Box<dyn Outlet>),
    over: Over,
    control: Control,
) -> impl FnOnce() -> Result<(), SinkError> + Send {
    move || {
        Pursuit { log, format, name, outlet, feed: None, held: None, pending: None }.follow(&over, &control)
    }
}

/// An outlet, and how far it is written.
struct Pursuit {
    log: Log,
    format: Format,
    /// The sink's name for messages.
    name: String,
    outlet: Box<dyn Outlet>,
    feed: Option<Feed>,
    held: Option<Held>,
    /// The epoch that was read last, until it is written.
    pending: Option<Published>,
}

impl Pursuit {
    fn follow(mut self, over: &Over, control: &Control) -> Result<(), SinkError> {
        let (mut backoff, mut failures) = (Backoff::default(), 0);
        let mut ended: Option<Instant> = None;
        loop {
            // Checked before the log is read, so that the whole log is read afterwards.
            let last = over.is_set();
            if last && ended.is_none() {
                ended = Some(Instant::now());
            }
            match self.catch_up(last) {
                Ok(()) if last => return Ok(()),
                Ok(()) => {
                    (backoff, failures) = (Backoff::default(), 0);
                    thread::park_timeout(INTERVAL);
                }
                // No run has started the log yet.
                Err(SinkError::Follow(FollowError::State(StateError::Missing { .. }))) if !last => {
                    thread::park_timeout(INTERVAL);
                }
                // A closed standard output does not come back.
                Err(error @ SinkError::Output(_)) => return Err(error),
                Err(error) => {
                    // The next attempt checks again what the destination holds.
                    self.held = None;
                    if matches!(error, SinkError::Follow(_)) {
                        self.feed = None;
                    }
                    failures += 1;
                    if last && (failures >= LAST_ATTEMPTS || is_given_up(control, ended)) {
                        return Err(error);
                    }
                    // A stale connection is not worth reporting.
                    if failures == 2 {
                        control.notice(&format!("{error}; trying again"));
                    }
                    backoff.failed();
                    pause(backoff.pause(), over, last);
                }
            }
        }
    }

    /// Writes all published epochs.
    fn catch_up(&mut self, last: bool) -> Result<(), SinkError> {
        if self.feed.is_none() {
            (self.feed, self.pending) = (Some(Feed::open(&self.log, self.format)?), None);
        }
        if self.held.is_none() {
            let held = self.outlet.open().map_err(|trouble| SinkError::of(&self.name, trouble))?;
            self.go_back_to(held.whole)?;
            self.held = Some(held);
        }
        let (Some(feed), Some(held)) = (&mut self.feed, &mut self.held) else { return Ok(()) };
        while let Some(published) = next(feed, &mut self.pending, held.whole)? {
            let mark = &published.mark;
            if let Some(found) = held.last.as_ref().filter(|found| !found.agrees(mark)) {
                let epoch = found.epoch;
                self.feed = None;
                return Err(SinkError::OtherHistory { name: self.name.clone(), epoch });
            }
            if mark.epoch > held.whole {
                let written = self.outlet.append(mark.epoch, &published.lines);
                written.map_err(|trouble| SinkError::of(&self.name, trouble))?;
                held.whole = mark.epoch;
                held.last.take_if(|found| found.epoch <= mark.epoch);
            }
            self.pending = None;
        }
        match &held.last {
            Some(Mark { epoch, .. }) if last && *epoch > feed.read() => {
                Err(SinkError::Ahead { name: self.name.clone(), epoch: *epoch, end: feed.read() })
            }
            _ => Ok(()),
        }
    }

    /// Rereads the log if the destination lacks an epoch after `whole` that was already read.
    fn go_back_to(&mut self, whole: u64) -> Result<(), SinkError> {
        let waiting = self.pending.as_ref().map(|published| published.mark.epoch);
        let next = waiting.or(self.feed.as_ref().map(|feed| feed.read() + 1));
        if next.is_some_and(|next| whole + 1 < next) {
            (self.feed, self.pending) = (Some(Feed::open(&self.log, self.format)?), None);
        }
        Ok(())
    }
}

/// Returns the waiting epoch, or else the next one of the log.
fn next<'a>(
    feed: &mut Feed,
    pending: &'a mut Option<Published>,
    known: u64,
) -> Result<Option<&'a Published>, SinkError> {
    if pending.is_none() {
        *pending = feed.next(known)?;
    }
    Ok(pending.as_ref())
}

/// Whether the run was stopped and the sink's grace period since the end is over.
fn is_given_up(control: &Control, ended: Option<Instant>) -> bool {
    control.is_stopped() && ended.is_some_and(|ended| ended.elapsed() >= GRACE)
}

/// Sleeps, but wakes when the end is announced.
fn pause(pause: Duration, over: &Over, last: bool) {
    let end = Instant::now() + pause;
    while Instant::now() < end && over.is_set() == last {
        thread::sleep(GLANCE.min(pause));
    }
}

/// Reads the lines of a log from its first epoch on.
struct Feed {
    follower: Follower,
    writer: Writer,
}

/// A published epoch in text form.
struct Published {
    mark: Mark,
    /// The lines of all views and keys, each with its line end.
    lines: Vec<u8>,
}

impl Feed {
    /// # Errors
    /// [`FollowError::State`], also if no run has started the log yet.
    fn open(log: &Log, format: Format) -> Result<Self, FollowError> {
        let follower = Follower::open(&log.directory, &log.subject, &[])?;
        Ok(Feed { follower, writer: Writer::new(&log.subject, format) })
    }

    /// The last epoch that was read.
    fn read(&self) -> u64 {
        self.follower.last()
    }

    /// Returns the next epoch if it has been published, with its lines if it comes after `known`.
    fn next(&mut self, known: u64) -> Result<Option<Published>, FollowError> {
        let Some(epoch) = self.follower.next(|epoch, _| epoch > known)? else { return Ok(None) };
        let mut lines = Vec::new();
        self.writer.write(&epoch, &mut lines).expect("memory takes every line");
        let (generation, chain) = (epoch.stamp.generation, epoch.stamp.chain.short());
        Ok(Some(Published { mark: Mark { epoch: epoch.number, generation, chain }, lines }))
    }
}
