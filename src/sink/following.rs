//! Sinks that follow the public log, each on a thread of its own, until they are told that there will be no more.
//!
//! The log is the queue, so none can overflow: a sink holds two epochs at a time, and what is slow
//! or away holds up nothing and catches up. Where a sink begins anew, what it holds says where to
//! go on, and must be of the log's own history.

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

/// How often the log is looked at.
const INTERVAL: Duration = Duration::from_millis(20);

/// Attempts to write what is left when there will be no more.
const LAST_ATTEMPTS: u32 = 3;

/// How long a server may take for an answer, and for what is left, once the run is stopped.
const GRACE: Duration = Duration::from_millis(500);

/// A public log, and what is shown of it.
#[derive(Clone)]
pub struct Log {
    /// Where it is; it may still have to be begun.
    pub directory: PathBuf,
    /// What is shown.
    pub subject: Arc<Subject>,
}

/// A sink that follows the log.
pub struct Following {
    over: Over,
    thread: JoinHandle<Result<(), SinkError>>,
    address: Option<SocketAddr>,
    /// Epochs that standard output has taken.
    taken: Arc<AtomicU64>,
}

impl Following {
    /// Follows `log` with a sink of a pipeline. What goes wrong is tried again, and `control` hears
    /// of it. Once that stops the run, a server that does not answer is given up: the next run goes
    /// on where the sink is.
    ///
    /// # Errors
    /// [`SinkError::Http`] where an address can't be listened at.
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

    /// Shows what `log` gets after the epoch `since` on standard output.
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

    /// Where it listens, if it does.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// There will be no more.
    fn over(&self) {
        self.over.set();
        self.thread.thread().unpark();
    }

    /// The same as [`finish`](Self::finish) for standard output; none where the run is stopped and
    /// for so long nobody has taken what is written.
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

    /// Waits until everything is written that has been published.
    ///
    /// # Errors
    /// What kept it from that. The next run goes on where it stopped.
    pub fn finish(self) -> Result<(), SinkError> {
        self.over();
        // A thread that panicked has said so.
        self.thread.join().unwrap_or(Ok(()))
    }
}

fn spawn(
    work: impl FnOnce() -> Result<(), SinkError> + Send + 'static,
) -> Result<JoinHandle<Result<(), SinkError>>, SinkError> {
    thread::Builder::new().name("sink".into()).spawn(work).map_err(SinkError::Thread)
}

/// What the thread of a sink does.
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

/// An outlet, and how far it has come.
struct Pursuit {
    log: Log,
    format: Format,
    /// The sink in messages.
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
            // Asked for before the log is read: then all of it is.
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
                // No run has begun the log yet.
                Err(SinkError::Follow(FollowError::State(StateError::Missing { .. }))) if !last => {
                    thread::park_timeout(INTERVAL);
                }
                // Whoever listened to standard output does not listen again.
                Err(error @ SinkError::Output(_)) => return Err(error),
                Err(error) => {
                    // The next attempt finds out what is there.
                    self.held = None;
                    if matches!(error, SinkError::Follow(_)) {
                        self.feed = None;
                    }
                    failures += 1;
                    if last && (failures >= LAST_ATTEMPTS || is_given_up(control, ended)) {
                        return Err(error);
                    }
                    // A connection that has grown old is no news.
                    if failures == 2 {
                        control.notice(&format!("{error}; trying again"));
                    }
                    backoff.failed();
                    pause(backoff.pause(), over, last);
                }
            }
        }
    }

    /// Writes what has been published.
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

    /// Reads the log again if an epoch after `whole` has been read and is not there, or not any more.
    fn go_back_to(&mut self, whole: u64) -> Result<(), SinkError> {
        let waiting = self.pending.as_ref().map(|published| published.mark.epoch);
        let next = waiting.or(self.feed.as_ref().map(|feed| feed.read() + 1));
        if next.is_some_and(|next| whole + 1 < next) {
            (self.feed, self.pending) = (Some(Feed::open(&self.log, self.format)?), None);
        }
        Ok(())
    }
}

/// The epoch that waits, or else the next one of the log.
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

/// Whether the run was stopped, and the sink has had its time since the end.
fn is_given_up(control: &Control, ended: Option<Instant>) -> bool {
    control.is_stopped() && ended.is_some_and(|ended| ended.elapsed() >= GRACE)
}

/// Waits so long, but not beyond an end that is news.
fn pause(pause: Duration, over: &Over, last: bool) {
    let end = Instant::now() + pause;
    while Instant::now() < end && over.is_set() == last {
        thread::sleep(GLANCE.min(pause));
    }
}

/// The lines of a log from its first epoch on.
struct Feed {
    follower: Follower,
    writer: Writer,
}

/// What an epoch is told as.
struct Published {
    mark: Mark,
    /// The lines of all views and keys, each with its line end.
    lines: Vec<u8>,
}

impl Feed {
    /// # Errors
    /// [`FollowError::State`], too where no run has begun the log yet.
    fn open(log: &Log, format: Format) -> Result<Self, FollowError> {
        let follower = Follower::open(&log.directory, &log.subject, &[])?;
        Ok(Feed { follower, writer: Writer::new(&log.subject, format) })
    }

    /// The last epoch that was read.
    fn read(&self) -> u64 {
        self.follower.last()
    }

    /// The next epoch if it has been published, with its lines if it comes after `known`.
    fn next(&mut self, known: u64) -> Result<Option<Published>, FollowError> {
        let Some(epoch) = self.follower.next(|epoch, _| epoch > known)? else { return Ok(None) };
        let mut lines = Vec::new();
        self.writer.write(&epoch, &mut lines).expect("memory takes every line");
        let (generation, chain) = (epoch.stamp.generation, epoch.stamp.chain.short());
        Ok(Some(Published { mark: Mark { epoch: epoch.number, generation, chain }, lines }))
    }
}
