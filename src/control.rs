//! What a run and whoever started it tell each other while it runs.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a source that waits looks whether it is to stop.
pub(crate) const GLANCE: Duration = Duration::from_millis(50);

/// The longest pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Asks a run to end, says when a source counts as ended, and hears what its operator should know.
///
/// A run that is **stopped** ends after the last epoch that it has committed, as after a crash, but in good order: the epochs
/// that have begun stay open, and the next run reads their records again. The end of a source closes the epoch that has
/// begun.
#[derive(Clone)]
pub struct Control {
    stop: Arc<AtomicBool>,
    /// Whether no source has been opened yet.
    preparing: Arc<AtomicBool>,
    until_idle: Option<Duration>,
    notice: Option<Notice>,
}

type Notice = Arc<dyn Fn(&str) + Send + Sync>;

impl Default for Control {
    fn default() -> Self {
        let preparing = Arc::new(AtomicBool::new(true));
        Self { stop: Arc::default(), preparing, until_idle: None, notice: None }
    }
}

impl Control {
    /// Nobody stops the run, no source ends by silence, and nobody hears notices.
    pub fn new() -> Self {
        Self::default()
    }

    /// A source that goes on (followed files, sockets, brokers) counts as ended when nothing has come for so long.
    pub fn until_idle(self, patience: Option<Duration>) -> Self {
        Control { until_idle: patience, ..self }
    }

    /// Tells `listener` what an operator should know and no run ends for: that a server is away, that a peer was refused.
    /// No notice holds a byte of a record.
    pub fn on_notice(self, listener: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Control { notice: Some(Arc::new(listener)), ..self }
    }

    /// The flag that stops the run when it is set, as a signal handler may do.
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// A flag that is set until the first source is opened. What a run does before (searching for a strategy, waiting for other
    /// processes, reading the log) may take minutes and doesn't look for a stop, but has nothing to end in good order: a
    /// signal should end the process at once, which loses no more than any kill does.
    pub fn preparing_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.preparing)
    }

    /// From now on a stop is looked for.
    pub(crate) fn begin(&self) {
        self.preparing.store(false, Ordering::Relaxed);
    }

    /// Stops the run.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether the run is stopped.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn notice(&self, message: &str) {
        if let Some(listener) = &self.notice {
            listener(message);
        }
    }

    /// Whether to wait no longer for a source that has said nothing since `last`.
    pub(crate) fn is_over(&self, last: Instant) -> bool {
        self.is_stopped() || self.until_idle.is_some_and(|patience| last.elapsed() >= patience)
    }

    /// Waits so long, but not beyond a stop.
    pub(crate) fn sleep(&self, pause: Duration) {
        let end = Instant::now() + pause;
        while !self.is_stopped() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(GLANCE));
        }
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("stopped", &self.is_stopped()).finish_non_exhaustive()
    }
}

/// The pauses between attempts to connect: they double, so a server that comes back is not run over.
#[derive(Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// After an attempt that succeeded.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// After one that failed: whether it was the first since the last success, and so news.
    pub(crate) fn failed(&mut self) -> bool {
        self.failures += 1;
        self.failures == 1
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
    fn pauses_double_up_to_a_limit() {
        let mut backoff = Backoff::default();
        assert!(backoff.failed() && !backoff.failed());
        assert_eq!(backoff.pause(), Duration::from_millis(200));
        assert!((0..100).all(|_| !backoff.failed()));
        assert_eq!(backoff.pause(), LONGEST_PAUSE);
        backoff.reset();
        assert!(backoff.failed());
    }
}
