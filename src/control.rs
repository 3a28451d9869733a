//! Communication between a run and its caller while it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing::warn;

/// How often a waiting source checks for a stop.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The target of log events that may name a private fact, such as the defect of a row. They are for
/// the operator's own eyes, and no telemetry carries them.
pub const PRIVATE_LOG: &str = "hushflow::private";

/// Longest pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Stops a run, decides when a source counts as ended, and passes notices to the operator.
///
/// A **stopped** run ends after its last committed epoch, as after a crash, but in good order: open
/// epochs stay open, and the next run reads their records again. The end of a source, by contrast,
/// closes the current epoch.
#[derive(Clone)]
pub struct Control {
    stop: Arc<AtomicBool>,
    /// True until a source is opened.
    preparing: Arc<AtomicBool>,
    until_idle: Option<Duration>,
    /// How long a server may keep a source waiting before its first row.
    server_timeout: Option<Duration>,
    connections: Arc<Mutex<FirstConnections>>,
    /// How long an answer is still waited for when the run is stopped.
    grace: Duration,
    notice: Option<Notice>,
    /// Receives notices about private rows.
    private_notice: Option<Notice>,
    /// Receives private problems that are found before a run spends anything.
    early_warning: Option<Notice>,
}

type Notice = Arc<dyn Fn(&str) + Send + Sync>;

/// First connections of the sources of a run.
#[derive(Default)]
struct FirstConnections {
    /// Servers that no source has reached yet, and why, once an attempt has failed.
    missing: BTreeMap<String, Option<String>>,
    /// Listening sources that had no peer yet.
    listening: BTreeSet<String>,
    /// Time of the last one that was made.
    last: Option<Instant>,
}

impl Default for Control {
    fn default() -> Self {
        let preparing = Arc::new(AtomicBool::new(true));
        Self {
            stop: Arc::default(),
            preparing,
            until_idle: None,
            server_timeout: None,
            connections: Arc::default(),
            grace: Duration::ZERO,
            notice: None,
            private_notice: None,
            early_warning: None,
        }
    }
}

impl Control {
    /// By default the run is not stopped, no source ends by silence, and notices are dropped.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the silence after which an endless source (followed files, sockets, brokers) counts as
    /// ended.
    pub fn until_idle(self, timeout: Option<Duration>) -> Self {
        Control { until_idle: timeout, ..self }
    }

    /// Sets how long to wait for a server that can't be reached, or that holds rows back. By
    /// default a source waits until the run is stopped.
    pub fn wait_for_servers(self, timeout: Duration) -> Self {
        Control { server_timeout: Some(timeout), ..self }
    }

    /// Calls `listener` with notices that do not end the run: a server is away, a peer was refused.
    /// They depend on public facts alone.
    pub fn on_notice(self, listener: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Control { notice: Some(Arc::new(listener)), ..self }
    }

    /// Calls `listener` with notices that depend on the contents of private rows, such as keys that
    /// the pipeline doesn't list. They are for the operator's eyes, so don't log them. By default
    /// they are dropped. No notice contains a byte of a record.
    pub fn on_private_notice(self, listener: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Control { private_notice: Some(Arc::new(listener)), ..self }
    }

    /// Calls `listener` with each private problem that a first run finds before it spends anything,
    /// such as keys that the pipeline doesn't list: once, and before the first release. By default
    /// they are private notices. They are for the operator's eyes too.
    pub fn on_early_warning(self, listener: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Control { early_warning: Some(Arc::new(listener)), ..self }
    }

    /// Returns the flag that stops the run when set, for example by a signal handler.
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Returns a flag that is true until the first source is opened. The steps before that
    /// (searching for a strategy, waiting for other processes, reading the log) may take minutes
    /// and don't check for a stop. A signal should end the process at once: nothing has to end in
    /// good order, and no more is lost than by a kill.
    pub fn preparing_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.preparing)
    }

    /// Checks for a stop from now on.
    pub(crate) fn begin(&self) {
        self.preparing.store(false, Ordering::Relaxed);
    }

    /// Stops the run.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Returns whether the run is stopped.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Returns the servers of sources that could never be reached, each with the last failure.
    pub fn unreached(&self) -> Vec<String> {
        let connections = self.connections();
        let failed = connections.missing.iter();
        failed.filter_map(|(name, problem)| Some(format!("{name}: {}", problem.as_ref()?))).collect()
    }

    /// Logs the servers that could never be reached.
    ///
    /// # Errors
    /// They are all of `sources`. Whether another source had rows is private, so their number
    /// decides.
    pub(crate) fn check_reached(&self, sources: usize) -> Result<(), String> {
        let unreached = self.unreached();
        let all = unreached.join("; ");
        match unreached.len() {
            0 => Ok(()),
            failed if failed >= sources => Err(all),
            _ => {
                warn!(sources = all, "some sources were never reached");
                Ok(())
            }
        }
    }

    /// Returns when the last source was connected for the first time, if one had to be: now, while
    /// a listening source waits for its first peer.
    ///
    /// # Errors
    /// The sources that have never been connected, and why.
    pub(crate) fn first_connections(&self) -> Result<Option<Instant>, String> {
        let connections = self.connections();
        let missing = connections.missing.iter().map(|(name, problem)| match problem {
            Some(problem) => format!("{name}: {problem}"),
            None => format!("{name}: not connected yet"),
        });
        let missing: Vec<_> = missing.collect();
        match missing.is_empty() {
            true if connections.listening.is_empty() => Ok(connections.last),
            true => Ok(Some(Instant::now())),
            false => Err(missing.join("; ")),
        }
    }

    /// As [`first_connections`](Self::first_connections), with the whole reason, also before the
    /// first source is open.
    pub(crate) fn sources_connected(&self) -> Result<Option<Instant>, String> {
        if self.preparing.load(Ordering::Relaxed) {
            return Err("starting: no source is open yet".into());
        }
        self.first_connections().map_err(|missing| format!("a source was never connected: {missing}"))
    }

    /// Notes that a source needs a connection to this server, which was never reached before.
    pub(crate) fn await_connection(&self, name: &str) {
        self.connections().missing.entry(name.into()).or_default();
    }

    /// Notes that a listening source waits for its first peer.
    pub(crate) fn await_peer(&self, name: &str) {
        self.connections().listening.insert(name.into());
    }

    /// Notes that no source of this process needs a server any more, unless an attempt has failed.
    pub(crate) fn forget_connection(&self, name: &str) {
        let missing = &mut self.connections().missing;
        if missing.get(name).is_some_and(Option::is_none) {
            missing.remove(name);
        }
    }

    /// Notes the last attempt to reach a server that was never reached before: why it failed, or
    /// `None` for success, or for the first peer of a listening source.
    pub(crate) fn note_attempt(&self, name: &str, problem: Option<&str>) {
        let mut connections = self.connections();
        match problem {
            Some(problem) => drop(connections.missing.insert(name.into(), Some(problem.into()))),
            None => {
                connections.missing.remove(name);
                connections.listening.remove(name);
                connections.last = Some(Instant::now());
            }
        }
    }

    fn connections(&self) -> MutexGuard<'_, FirstConnections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether to give up waiting for a server, which began at `since`.
    pub(crate) fn is_past_server_timeout(&self, since: Instant) -> bool {
        self.server_timeout.is_some_and(|timeout| since.elapsed() >= timeout)
    }

    pub(crate) fn notice(&self, message: &str) {
        if let Some(listener) = &self.notice {
            listener(message);
        }
    }

    /// Whether private notices have a listener.
    pub(crate) fn shows_private(&self) -> bool {
        self.private_notice.is_some()
    }

    pub(crate) fn private_notice(&self, message: &str) {
        if let Some(listener) = &self.private_notice {
            listener(message);
        }
    }

    pub(crate) fn early_warning(&self, message: &str) {
        match &self.early_warning {
            Some(listener) => listener(message),
            None => self.private_notice(message),
        }
    }

    /// Returns the control of a sink of this run. After a stop, the sink still writes published
    /// epochs, if its server answers within `grace`.
    pub(crate) fn with_grace(&self, grace: Duration) -> Self {
        Control { grace, ..self.clone() }
    }

    /// Returns the control of readers in a process that follows another one, which decides when
    /// they end.
    pub(crate) fn of_follower(&self) -> Self {
        let connections = Arc::clone(&self.connections);
        Control { notice: self.notice.clone(), connections, ..Control::default() }
    }

    /// Whether a source without an end ends by silence.
    pub(crate) fn ends_when_idle(&self) -> bool {
        self.until_idle.is_some()
    }

    /// Whether to wait on for an answer that has been waited for since `begun`.
    ///
    /// # Errors
    /// `Interrupted` where the run is stopped, `TimedOut` after `timeout`.
    pub(crate) fn keep_waiting(&self, begun: Instant, timeout: Duration) -> io::Result<()> {
        let waited = begun.elapsed();
        if self.is_stopped() && waited >= self.grace {
            return Err(io::Error::new(ErrorKind::Interrupted, "stopped before the server answered"));
        }
        if waited >= timeout { Err(ErrorKind::TimedOut.into()) } else { Ok(()) }
    }

    /// Returns whether to stop waiting for a source silent since `last`.
    pub(crate) fn is_over(&self, last: Instant) -> bool {
        self.is_stopped() || self.until_idle.is_some_and(|timeout| last.elapsed() >= timeout)
    }

    /// Sleeps for `pause`, or until a stop.
    pub(crate) fn sleep(&self, pause: Duration) {
        let end = Instant::now() + pause;
        while !self.is_stopped() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(POLL_INTERVAL));
        }
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("stopped", &self.is_stopped()).finish_non_exhaustive()
    }
}

/// Waits up to [`POLL_INTERVAL`] for a descriptor. Returns whether it is ready.
pub(crate) fn is_ready(descriptor: BorrowedFd<'_>, flags: PollFlags) -> io::Result<bool> {
    let glance = Timespec { tv_sec: 0, tv_nsec: POLL_INTERVAL.subsec_nanos().into() };
    match poll(&mut [PollFd::from_borrowed_fd(descriptor, flags)], Some(&glance)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Pauses between attempts to connect. They double, so a returning server is not overwhelmed.
#[derive(Default)]
pub(crate) struct Backoff {
    failures: u32,
    /// Problems that were reported since the last success.
    reported: Vec<String>,
}

/// Maximum number of different problems that are reported between two successes.
const PROBLEMS: usize = 8;

impl Backoff {
    /// Records a successful attempt.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
        self.reported.clear();
    }

    /// Records a failed attempt.
    pub(crate) fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// Returns whether a problem is worth a notice: it has not been reported since the last
    /// success. A server that can be reached again may report another problem.
    pub(crate) fn is_first_report(&mut self, problem: &str) -> bool {
        let is_first_report =
            self.reported.len() < PROBLEMS && !self.reported.iter().any(|known| known == problem);
        if is_first_report {
            self.reported.push(problem.into());
        }
        is_first_report
    }

    pub(crate) fn pause(&self) -> Duration {
        LONGEST_PAUSE.min(Duration::from_millis(50) * 2u32.saturating_pow(self.failures))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_wakes_and_silence_ends() {
        let control = Control::new().until_idle(Some(Duration::from_millis(10)));
        let last = Instant::now();
        assert!(!control.is_stopped());
        std::thread::sleep(Duration::from_millis(11));
        assert!(control.is_over(last) && !Control::new().is_over(last));
        let other = control.clone();
        std::thread::spawn(move || other.stop());
        control.sleep(Duration::from_secs(60));
        assert!(control.is_stopped() && Instant::now() - last < Duration::from_secs(30));
    }

    #[test]
    fn a_sink_waits_for_its_grace_after_a_stop() {
        let control = Control::new();
        let (begun, sink) = (Instant::now(), control.with_grace(Duration::from_secs(60)));
        let check = |control: &Control, timeout, expected: Option<ErrorKind>| {
            let waited = control.keep_waiting(begun, Duration::from_secs(timeout));
            assert_eq!(waited.err().map(|error| error.kind()), expected);
        };
        check(&control, 60, None);
        check(&control, 0, Some(ErrorKind::TimedOut));
        control.stop();
        check(&control, 60, Some(ErrorKind::Interrupted));
        check(&sink, 60, None);
        check(&sink, 0, Some(ErrorKind::TimedOut));
    }

    #[test]
    fn first_connections_are_awaited() {
        let control = Control::new();
        assert_eq!(control.first_connections(), Ok(None), "files need no connection");
        ["a", "b", "c"].iter().for_each(|name| control.await_connection(name));
        control.note_attempt("a", Some("refused"));
        control.await_connection("a");
        control.forget_connection("a");
        control.forget_connection("c");
        assert_eq!(control.of_follower().first_connections(), Err("a: refused; b: not connected yet".into()));
        assert_eq!(control.unreached(), ["a: refused"], "no attempt at b has failed");
        ["a", "b"].iter().for_each(|name| control.note_attempt(name, None));
        assert!(
            control.first_connections().is_ok_and(|last| last.is_some()) && control.unreached().is_empty()
        );
    }

    #[test]
    fn pauses_double_up_to_a_limit() {
        let mut backoff = Backoff::default();
        (0..2).for_each(|_| backoff.failed());
        assert_eq!(backoff.pause(), Duration::from_millis(200));
        (0..100).for_each(|_| backoff.failed());
        assert_eq!(backoff.pause(), LONGEST_PAUSE);
        backoff.reset();
        backoff.failed();
        assert_eq!(backoff.pause(), Duration::from_millis(100));
    }

    #[test]
    fn each_problem_is_reported_once_until_a_success() {
        let mut backoff = Backoff::default();
        let mut told = |problem: &str| backoff.is_first_report(problem);
        assert!(told("away") && !told("away") && told("no certificate") && !told("away"));
        let more = (0..100).filter(|number| told(&number.to_string())).count();
        assert_eq!(more, PROBLEMS - 2);
        backoff.reset();
        assert!(backoff.is_first_report("away"));
    }
}
