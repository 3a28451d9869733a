//! Threads that carry a public log to sinks until the log is complete.
//!
//! The log is the queue, so no queue can overflow. A sink holds at most two epochs at a time. A
//! slow or unreachable destination blocks nothing and catches up later. A restarted sink continues
//! after the last epoch of its destination, whose history must be that of the log.

use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::events::EventServer;
use super::{Encode, EpochContent, EpochReader, SinkError, SinkInput, as_lines, as_records};
use crate::connect::standard::StandardWriter;
use crate::connect::{Outlet, OutletContent, SinkTarget};
use crate::control::{Backoff, Control};
use crate::follow::{FollowError, StopFlag, Subject};
use crate::http::HttpError;
use crate::lines::OutputFormat;
use crate::pipeline::Sink;

/// How often to check whether standard output is read.
const INTERVAL: Duration = Duration::from_millis(20);

/// Attempts to write the remaining epochs after the end.
const LAST_ATTEMPTS: u32 = 3;

/// Maximum time for an answer of a server, and for the remaining epochs, after the run is stopped.
const GRACE: Duration = Duration::from_millis(500);

/// Behaviour of a sink whose address can't be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenAddress {
    /// It fails.
    Refuse,
    /// It reports the failure, and listens as soon as the address is free.
    Retry,
}

/// A thread that carries a log to a sink.
pub struct SinkThread {
    stop: StopFlag,
    thread: JoinHandle<Result<(), SinkError>>,
    /// Number of epochs written to standard output.
    taken: Arc<AtomicU64>,
}

impl SinkThread {
    /// Carries `input` to a sink of a pipeline. Errors are retried and reported to `control`. After
    /// `control` has stopped the run, a server that does not answer is abandoned. The next run
    /// continues after the last epoch in the sink. A sink that listens passes its URL to
    /// `announce`.
    ///
    /// # Errors
    /// [`SinkError::Http`] if an address can't be listened on and `taken` refuses that;
    /// [`SinkError::Thread`].
    pub fn start(
        sink: &Sink,
        input: SinkInput,
        control: &Control,
        taken: TakenAddress,
        announce: fn(&str),
    ) -> Result<Self, SinkError> {
        let (stop, control) = (StopFlag::default(), control.with_grace(GRACE));
        let thread = match sink.target().target(&control) {
            SinkTarget::Lines(outlet) => {
                let encode = |subject: &Arc<Subject>| as_lines(subject, OutputFormat::Json);
                carry(sink.target().name(), outlet, input, encode, &stop, control)
            }
            SinkTarget::Records(outlet) => {
                carry(sink.target().name(), outlet, input, as_records, &stop, control)
            }
            SinkTarget::Events(endpoint) => {
                let (listener, name) = (control.clone(), sink.target().name());
                let warn = move |warning: &str| listener.notice(&format!("{name}: {warning}"));
                let mut endpoint = endpoint;
                endpoint.tls = endpoint.tls.map(|tls| tls.on_warning(warn));
                let flag = stop.clone();
                let listen = move || {
                    EventServer::start(&endpoint, &input, &flag).inspect(|server| announce(server.url()))
                };
                match listen() {
                    Err(error) if taken == TakenAddress::Refuse => return Err(error.into()),
                    server => serve_events(server, listen, &stop, control),
                }
            }
        };
        Ok(SinkThread { stop, thread: thread?, taken: Arc::default() })
    }

    /// Writes the epochs of a log after `since` to standard output.
    ///
    /// # Errors
    /// [`SinkError::Thread`].
    pub fn print(input: SinkInput, format: OutputFormat, since: u64) -> Result<Self, SinkError> {
        let (stop, taken) = (StopFlag::default(), Arc::new(AtomicU64::new(0)));
        let outlet = Box::new(StandardWriter::after(since, Arc::clone(&taken)));
        let encode = move |subject: &Arc<Subject>| as_lines(subject, format.clone());
        let thread = carry("standard output".into(), outlet, input, encode, &stop, Control::new())?;
        Ok(SinkThread { stop, thread, taken })
    }

    /// Announces that no more epochs will come.
    fn stop(&self) {
        self.stop.set();
        self.thread.thread().unpark();
    }

    /// Like [`finish`](Self::finish), for standard output. Returns `None` if the run is stopped and
    /// no output has been read for `timeout`.
    pub fn finish_while_taken(
        self,
        is_stopped: impl Fn() -> bool,
        timeout: Duration,
    ) -> Option<Result<(), SinkError>> {
        self.stop();
        let (mut taken, mut since) = (0, Instant::now());
        while !self.thread.is_finished() {
            let now = self.taken.load(Ordering::Relaxed);
            if now != taken {
                (taken, since) = (now, Instant::now());
            }
            if is_stopped() && since.elapsed() >= timeout {
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
        self.stop();
        // A thread that panicked has already reported it.
        self.thread.join().unwrap_or(Ok(()))
    }
}

fn spawn(
    work: impl FnOnce() -> Result<(), SinkError> + Send + 'static,
) -> Result<JoinHandle<Result<(), SinkError>>, SinkError> {
    thread::Builder::new().name("sink".into()).spawn(work).map_err(SinkError::Thread)
}

/// Starts the thread of a sink that listens, which retries until its address is free.
fn serve_events(
    mut server: Result<EventServer, HttpError>,
    listen: impl Fn() -> Result<EventServer, HttpError> + Send + 'static,
    stop: &StopFlag,
    control: Control,
) -> Result<JoinHandle<Result<(), SinkError>>, SinkError> {
    let stop = stop.clone();
    spawn(move || {
        let mut backoff = Backoff::default();
        loop {
            match server {
                Ok(server) => {
                    while !stop.is_set() {
                        thread::park();
                    }
                    server.finish();
                    return Ok(());
                }
                Err(_) if stop.is_set() => return Ok(()),
                Err(error) => {
                    backoff.failed();
                    if backoff.is_first_report(&error.to_string()) {
                        control.notice(&format!("{error}; trying again"));
                    }
                    pause(backoff.pause(), &stop);
                    server = listen();
                }
            }
        }
    })
}

/// Starts the thread of a sink that epochs are written to. `name` is for messages.
fn carry<C: ToOwned + ?Sized + 'static>(
    name: String,
    outlet: Box<dyn Outlet<C>>,
    input: SinkInput,
    encode: impl Fn(&Arc<Subject>) -> Encode<C::Owned> + Send + 'static,
    stop: &StopFlag,
    control: Control,
) -> Result<JoinHandle<Result<(), SinkError>>, SinkError> {
    let stop = stop.clone();
    spawn(move || {
        let encode = Box::new(encode);
        Carrier { input, encode, name, outlet, reader: None, content: None, pending: None }
            .run(&stop, &control)
    })
}

/// A function that makes the encoder of a log.
type EncoderOf<T> = Box<dyn Fn(&Arc<Subject>) -> Encode<T>>;

/// An outlet, and its state of writing.
struct Carrier<C: ToOwned + ?Sized> {
    input: SinkInput,
    encode: EncoderOf<C::Owned>,
    /// The sink's name for messages.
    name: String,
    outlet: Box<dyn Outlet<C>>,
    reader: Option<EpochReader<C::Owned>>,
    content: Option<OutletContent>,
    /// The epoch that was read last, until it is written.
    pending: Option<EpochContent<C::Owned>>,
}

impl<C: ToOwned + ?Sized> Carrier<C> {
    fn run(mut self, stop: &StopFlag, control: &Control) -> Result<(), SinkError> {
        let (mut backoff, mut failures) = (Backoff::default(), 0);
        let mut ended: Option<Instant> = None;
        loop {
            let is_last = stop.is_set();
            if is_last {
                ended.get_or_insert_with(Instant::now);
            }
            let written = stop.wait(Duration::MAX, || {
                let written = self.write_next()?;
                // Only an epoch after the last one there shows that the history is the same.
                if self.content.as_ref().is_some_and(|content| content.last.is_none()) {
                    (backoff, failures) = (Backoff::default(), 0);
                }
                Ok(written)
            });
            match written {
                Ok(Poll::Ready(None)) => return self.check_end(),
                Ok(_) => {}
                // A closed standard output can't be opened again.
                Err(error @ SinkError::Output(_)) => return Err(error),
                Err(error) => {
                    // The next attempt reads the content of the destination again.
                    self.content = None;
                    if matches!(error, SinkError::Follow(_)) {
                        self.reader = None;
                    }
                    failures += 1;
                    if is_last && (failures >= LAST_ATTEMPTS || is_given_up(control, ended)) {
                        return Err(error);
                    }
                    // The first failure may be a stale connection, and is not reported.
                    if failures >= 2 && backoff.is_first_report(&error.to_string()) {
                        control.notice(&format!("{error}; trying again"));
                    }
                    backoff.failed();
                    match is_last {
                        true => thread::sleep(backoff.pause()),
                        false => pause(backoff.pause(), stop),
                    }
                }
            }
        }
    }

    /// Writes the next published epoch, after those that the destination holds; `None` if there is
    /// none yet.
    fn write_next(&mut self) -> Result<Option<()>, SinkError> {
        if self.reader.is_none() {
            self.reopen()?;
        }
        if self.reader.is_some() && self.content.is_none() {
            let content = self.outlet.open().map_err(|trouble| SinkError::of(&self.name, trouble))?;
            self.go_back_to(content.whole)?;
            self.content = Some(content);
        }
        let (Some(reader), Some(content)) = (&mut self.reader, &mut self.content) else { return Ok(None) };
        loop {
            if self.pending.is_none() {
                self.pending = reader.next(|epoch, _| epoch > content.whole)?;
            }
            let Some(EpochContent { mark, content: written }) = &self.pending else {
                self.outlet.settle().map_err(|trouble| SinkError::of(&self.name, trouble))?;
                return Ok(None);
            };
            if let Some(found) = content.last.as_ref().filter(|found| !found.agrees(mark)) {
                let epoch = found.epoch;
                self.reader = None;
                return Err(SinkError::OtherHistory { name: self.name.clone(), epoch });
            }
            let is_new = mark.epoch > content.whole;
            if is_new {
                let written = self.outlet.append(mark, written.borrow());
                written.map_err(|trouble| SinkError::of(&self.name, trouble))?;
                content.whole = mark.epoch;
                content.last.take_if(|found| found.epoch <= mark.epoch);
            }
            self.pending = None;
            if is_new {
                return Ok(Some(()));
            }
        }
    }

    /// Rereads the log if the destination lacks an epoch after `whole` that was already read.
    fn go_back_to(&mut self, whole: u64) -> Result<(), FollowError> {
        let waiting = self.pending.as_ref().map(|pending| pending.mark.epoch);
        let next = waiting.or(self.reader.as_ref().map(|reader| reader.last() + 1));
        if next.is_some_and(|next| whole + 1 < next) {
            self.reopen()?;
        }
        Ok(())
    }

    /// Reads the log from its first epoch again, once a run has created it.
    fn reopen(&mut self) -> Result<(), FollowError> {
        let encode = (self.encode)(&self.input.subject);
        (self.reader, self.pending) = (EpochReader::open(&self.input, encode, &[])?, None);
        Ok(())
    }

    /// Checks that the destination has no epochs after the end of the log.
    fn check_end(self) -> Result<(), SinkError> {
        let end = self.reader.map_or(0, |reader| reader.last());
        let last = self.content.and_then(|content| content.last).map_or(0, |mark| mark.epoch);
        if last > end { Err(SinkError::Ahead { name: self.name, epoch: last, end }) } else { Ok(()) }
    }
}

/// Whether the run was stopped and the sink's grace period since the end is over.
fn is_given_up(control: &Control, ended: Option<Instant>) -> bool {
    control.is_stopped() && ended.is_some_and(|ended| ended.elapsed() >= GRACE)
}

/// Sleeps, but wakes when the end is announced.
fn pause(pause: Duration, stop: &StopFlag) {
    let end = Instant::now() + pause;
    while Instant::now() < end && !stop.is_set() {
        thread::park_timeout(end.saturating_duration_since(Instant::now()));
    }
}
