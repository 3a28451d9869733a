//! What a run tells its operator while it works, in the text format of Prometheus.
//!
//! The `HELP` of every metric begins with what it may tell others:
//!
//! - `PUBLIC`: a function of the arrivals, the public clock and the parameters, which the guarantee hides from nobody.
//! - `LOAD`: how long something took or how much of it waits. The guarantee is silent about that (`docs/privacy.md`), and whoever
//!   follows the log sees much of it.
//! - `PRIVATE`: an exact count of what records hold, or one whose changes depend on that, for the operator alone. It is left out
//!   where others may listen.
//!
//! A count can be public and the moments at which it changes can be private. Rows that have been read are such a count: after a
//! restart a source is read again from a place that depends on event times. So the public count changes only where an epoch closes.
//!
//! Threads leave their numbers here once for a batch of records or an epoch, never for a record.

use std::fmt::{Display, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use hushflow_mechanism::epochs::Schedule;

use crate::http::{Answer, Request, Server, Status};
use crate::source::Counters;

pub use crate::http::HttpError;

/// Upper ends of the classes of a commit's time, in seconds.
const COMMIT_CLASSES: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];

/// What is looked up when it is asked for.
type Gauge = Box<dyn Fn() -> usize + Send + Sync>;

/// The numbers of a run.
#[derive(Default)]
pub struct Metrics {
    begun: OnceLock<Begun>,
    rows: AtomicU64,
    rows_closed: AtomicU64,
    exceptional: [AtomicU64; 10],
    waiting_batches: OnceLock<Gauge>,
    closed: AtomicU64,
    committed: AtomicU64,
    commits: [AtomicU64; COMMIT_CLASSES.len() + 1],
    commit_nanoseconds: AtomicU64,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

/// What is known once a run has found where it goes on.
struct Begun {
    generation: u64,
    committed: u64,
    schedule: Schedule,
}

/// What a number may tell others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Public,
    Load,
    Private,
}

impl Metrics {
    /// A run begins after the epoch `committed`.
    pub(crate) fn begin(&self, generation: u64, committed: u64, schedule: &Schedule) {
        // The reader may have closed more by now.
        self.closed.fetch_max(committed, Relaxed);
        self.committed.store(committed, Relaxed);
        let _ = self.begun.set(Begun { generation, committed, schedule: schedule.clone() });
    }

    /// Whoever knows how many batches wait for the workers.
    pub(crate) fn watch_batches(&self, waiting: impl Fn() -> usize + Send + Sync + 'static) {
        let _ = self.waiting_batches.set(Box::new(waiting));
    }

    /// What has become of the rows so far.
    pub(crate) fn tell_read(&self, counters: &Counters) {
        self.rows.store(counters.rows, Relaxed);
        for (told, (_, count)) in self.exceptional.iter().zip(reasons(counters)) {
            told.store(count, Relaxed);
        }
    }

    /// The clock of the first `rows` rows has closed this epoch.
    pub(crate) fn tell_closed(&self, epoch: u64, rows: u64) {
        self.rows_closed.store(rows, Relaxed);
        self.closed.store(epoch, Relaxed);
    }

    /// All epochs up to this one are durable, and the last of them took so long.
    pub(crate) fn tell_committed(&self, epoch: u64, took: Duration) {
        self.committed.store(epoch, Relaxed);
        let class = COMMIT_CLASSES.iter().position(|&end| took.as_secs_f64() <= end);
        self.commits[class.unwrap_or(COMMIT_CLASSES.len())].fetch_add(1, Relaxed);
        self.commit_nanoseconds.fetch_add(took.as_nanos() as u64, Relaxed);
    }

    /// Everything, or everything that is not private, at the time `now`.
    pub fn text(&self, now: SystemTime, with_private: bool) -> String {
        let mut page = Page { text: String::new(), with_private };
        self.write_progress(&mut page, now);
        self.write_load(&mut page);
        let about = "Rows that this run has read so far, those read again after a restart among them.";
        let rows = [(String::new(), self.rows.load(Relaxed))];
        page.family(Reach::Private, "rows_read_total", "counter", about, rows);
        let about = "Rows that were unusable, late or out of range, by what became of them; exact counts of this run.";
        let counts =
            reasons(&Counters::default()).map(|(reason, _)| reason).into_iter().zip(&self.exceptional);
        let counts = counts.map(|(reason, count)| (format!("{{reason=\"{reason}\"}}"), count.load(Relaxed)));
        page.family(Reach::Private, "exceptional_rows_total", "counter", about, counts);
        page.text
    }

    fn write_progress(&self, page: &mut Page, now: SystemTime) {
        let (closed, committed) = (self.closed.load(Relaxed), self.committed.load(Relaxed));
        page.one(
            "rows_closed",
            "gauge",
            "Rows of the input up to the one whose clock closed the last epoch; 0 until this run closes one.",
            self.rows_closed.load(Relaxed),
        );
        let Some(begun) = self.begun.get() else { return };
        page.one("generation", "gauge", "The number of this run in its state directory.", begun.generation);
        let about = "Epochs that this run has made durable and published.";
        page.one("epochs_committed_total", "counter", about, committed - begun.committed);
        page.one("last_committed_epoch", "gauge", "The last durable epoch, of all runs.", committed);
        page.one("horizon_epochs", "gauge", "The last epoch that there will be.", begun.schedule.horizon());
        let about = "Epochs that the public clock has closed and that are not durable yet.";
        let lag = [(String::new(), closed.saturating_sub(committed))];
        page.family(Reach::Load, "frontier_lag_epochs", "gauge", about, lag);
        if let Schedule::ByTime(by) = &begun.schedule {
            let end = by.start as f64 + by.length as f64 * committed as f64;
            let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros() as f64;
            let about = "How long ago the last durable epoch ended, by this machine's clock.";
            let lag = [(String::new(), (now - end) / 1e6)];
            page.family(Reach::Load, "frontier_lag_seconds", "gauge", about, lag);
        }
    }

    fn write_load(&self, page: &mut Page) {
        let about = "Time to write, sync and publish a batch of epochs.";
        let mut sum = 0;
        let classes = COMMIT_CLASSES.iter().map(f64::to_string).chain(["+Inf".into()]);
        let classes = classes.zip(&self.commits).map(|(end, count)| {
            sum += count.load(Relaxed);
            (format!("_bucket{{le=\"{end}\"}}"), sum)
        });
        let classes: Vec<_> = classes.collect();
        page.family(Reach::Load, "commit_seconds", "histogram", about, classes);
        let seconds = self.commit_nanoseconds.load(Relaxed) as f64 / 1e9;
        let _ =
            writeln!(page.text, "hushflow_commit_seconds_sum {seconds}\nhushflow_commit_seconds_count {sum}");
        let about = "Batches of rows that wait for the workers.";
        let waiting = self.waiting_batches.get().map_or(0, |waiting| waiting());
        page.family(Reach::Load, "waiting_batches", "gauge", about, [(String::new(), waiting)]);
    }

    /// Serves them at `http://ADDRESS/metrics` from now on, `address` being `HOST:PORT`. Private ones are told on a loopback address
    /// only, unless `expose_private`.
    ///
    /// # Errors
    /// [`HttpError`] if that can't be listened at.
    pub fn serve(self: &Arc<Self>, address: &str, expose_private: bool) -> Result<SocketAddr, HttpError> {
        let server = Server::bind(address)?;
        let address = server.address();
        let with_private = expose_private || address.ip().is_loopback();
        let metrics = Arc::clone(self);
        let answer = move |request: &Request| match request.path.as_str() {
            "/metrics" => Answer::Document(
                "text/plain; version=0.0.4; charset=utf-8",
                metrics.text(SystemTime::now(), with_private).into(),
            ),
            _ => Answer::Refused(Status::NotFound, "there is no such page: go to /metrics".into()),
        };
        server.serve(answer)?;
        Ok(address)
    }
}

/// Everything that can become of a row but to count in its own epoch.
fn reasons(counters: &Counters) -> [(&'static str, u64); 10] {
    [
        ("missing", counters.missing),
        ("malformed", counters.malformed),
        ("unknown_key", counters.unknown_key),
        ("late_folded", counters.folded),
        ("late_dropped", counters.late),
        ("before_start", counters.before_start),
        ("after_horizon", counters.after_horizon),
        ("already_closed", counters.already_closed),
        ("leaping_clock", counters.leaping),
        ("copy", counters.copies),
    ]
}

/// Metrics, one below the other.
struct Page {
    text: String,
    with_private: bool,
}

impl Page {
    fn one(&mut self, name: &str, kind: &str, about: &str, value: impl Display) {
        self.family(Reach::Public, name, kind, about, [(String::new(), value)]);
    }

    fn family<V: Display>(
        &mut self,
        reach: Reach,
        name: &str,
        kind: &str,
        about: &str,
        values: impl IntoIterator<Item = (String, V)>,
    ) {
        if reach == Reach::Private && !self.with_private {
            return;
        }
        let reach = match reach {
            Reach::Public => "PUBLIC",
            Reach::Load => "LOAD",
            Reach::Private => "PRIVATE",
        };
        let _ = writeln!(self.text, "# HELP hushflow_{name} {reach}. {about}\n# TYPE hushflow_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(self.text, "hushflow_{name}{labels} {value}");
        }
    }
}
