//! Metrics of a run in the text format of Prometheus.
//!
//! The `HELP` of every metric begins with its audience:
//!
//! - `PUBLIC`: a function of the arrivals, the public clock and the parameters, which the guarantee
//!   does not hide.
//! - `LOAD`: a duration or a queue length. The guarantee does not cover these (`docs/privacy.md`),
//!   and a reader of the log sees much of them.
//! - `PRIVATE`: for the operator only. An exact count that depends on the contents of records, or
//!   that changes at times that do. It is left out where other people may read it.
//!
//! A count can be public while the times at which it changes are private. An example is the number
//! of rows read: after a restart a source is read again from a position that depends on event
//! times. So the public count changes only when an epoch closes.
//!
//! Threads update metrics once per batch of records or epoch, and before they wait for a record of
//! a live source, never per record.

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use hushflow_mechanism::epochs::Schedule;

use crate::control::Control;
use crate::http::{HttpAnswer, HttpRequest, HttpServer, HttpStatus};
use crate::readiness::{Readiness, default_deadline};
use crate::security::failed_renewals;
use crate::source::RowCounters;

pub use crate::http::{HttpEndpoint, HttpError};

/// Upper limits of the commit time's histogram buckets, in seconds.
const COMMIT_CLASSES: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];

/// A value looked up when the metrics are read.
type Gauge = Box<dyn Fn() -> usize + Send + Sync>;

/// The metrics of a run.
#[derive(Default)]
pub struct Metrics {
    start: OnceLock<MeasuredRun>,
    readiness: Readiness,
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

/// Values known once a run has found its starting epoch.
struct MeasuredRun {
    /// Name of the pipeline.
    name: String,
    generation: u64,
    committed: u64,
    schedule: Schedule,
}

/// The readers that may see a metric.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Audience {
    Public,
    Load,
    Private,
}

impl Metrics {
    /// Records that a run of the pipeline `name` begins after the epoch `committed`.
    pub(crate) fn begin(&self, name: &str, generation: u64, committed: u64, schedule: &Schedule) {
        // The reader may have closed more by now.
        self.closed.fetch_max(committed, Relaxed);
        self.committed.store(committed, Relaxed);
        let run = MeasuredRun { name: name.into(), generation, committed, schedule: schedule.clone() };
        let _ = self.start.set(run);
        self.readiness.begin(default_deadline(schedule));
    }

    /// Records that this process of a cluster works for the one that commits.
    pub(crate) fn begin_following(&self) {
        self.readiness.begin(None);
    }

    /// Sets the longest time from one epoch to the next at which `/readyz` reports ready. By
    /// default it is twice the length of an epoch and its lateness, at least a minute.
    pub fn set_ready_within(&self, within: Duration) {
        self.readiness.set_deadline(within);
    }

    /// Sets the control that knows which sources were connected. Before all were, `/readyz` reports
    /// not ready.
    pub(crate) fn watch_connections(&self, control: &Control) {
        let control = control.clone();
        self.readiness.watch_connections(move || control.sources_connected());
    }

    /// Sets the source of the number of batches waiting for the workers.
    pub(crate) fn watch_batches(&self, waiting: impl Fn() -> usize + Send + Sync + 'static) {
        let _ = self.waiting_batches.set(Box::new(waiting));
    }

    /// Records the row counts so far. Counts that are behind those recorded before change nothing.
    pub(crate) fn record_read(&self, counters: &RowCounters) {
        self.rows.fetch_max(counters.rows, Relaxed);
        for (total, (_, count)) in self.exceptional.iter().zip(reasons(counters)) {
            total.fetch_max(count, Relaxed);
        }
    }

    /// Records that the clock of the first `rows` rows has closed this epoch.
    pub(crate) fn record_closed(&self, epoch: u64, rows: u64) {
        self.rows_closed.store(rows, Relaxed);
        self.closed.store(epoch, Relaxed);
    }

    /// The last committed epoch; 0 before the first.
    pub(crate) fn last_committed(&self) -> u64 {
        self.committed.load(Relaxed)
    }

    /// Whether epochs are closed that are not committed yet.
    pub(crate) fn has_uncommitted(&self) -> bool {
        self.closed.load(Relaxed) > self.committed.load(Relaxed)
    }

    /// Records that all epochs up to this one are durable, and how long the last of them took.
    pub(crate) fn record_committed(&self, epoch: u64, took: Duration) {
        self.committed.store(epoch, Relaxed);
        self.readiness.advance();
        if self.start.get().is_some_and(|start| epoch >= start.schedule.horizon()) {
            self.readiness.complete();
        }
        let class = COMMIT_CLASSES.iter().position(|&end| took.as_secs_f64() <= end);
        self.commits[class.unwrap_or(COMMIT_CLASSES.len())].fetch_add(1, Relaxed);
        self.commit_nanoseconds.fetch_add(took.as_nanos() as u64, Relaxed);
    }

    /// Returns all metrics at the time `now`, without the private ones unless `with_private`.
    pub fn text(&self, now: SystemTime, with_private: bool) -> String {
        let mut page = MetricsText { text: String::new(), with_private };
        self.write_progress(&mut page, now);
        self.write_load(&mut page);
        let about = "Rows that this run has read so far, those read again after a restart among them.";
        let rows = [(String::new(), self.rows.load(Relaxed))];
        page.family(Audience::Private, "rows_read_total", "counter", about, rows);
        let about = "Rows that were unusable, late or out of range, by reason; exact counts of this run.";
        let counts =
            reasons(&RowCounters::default()).map(|(reason, _)| reason).into_iter().zip(&self.exceptional);
        let counts = counts.map(|(reason, count)| (format!("{{reason=\"{reason}\"}}"), count.load(Relaxed)));
        page.family(Audience::Private, "exceptional_rows_total", "counter", about, counts);
        page.text
    }

    fn write_progress(&self, page: &mut MetricsText, now: SystemTime) {
        let (closed, committed) = (self.closed.load(Relaxed), self.committed.load(Relaxed));
        page.one(
            "rows_closed",
            "gauge",
            "Rows of the input up to the one whose clock closed the last epoch; 0 until this run closes one.",
            self.rows_closed.load(Relaxed),
        );
        let Some(start) = self.start.get() else { return };
        let about = "1: the name of the pipeline, by which a run is known wherever it runs.";
        let info = [(format!("{{name=\"{}\"}}", escaped(&start.name)), 1)];
        page.family(Audience::Public, "run_info", "gauge", about, info);
        page.one("generation", "gauge", "The number of this run in its state directory.", start.generation);
        let about = "Epochs that this run has made durable and published.";
        page.one("epochs_committed_total", "counter", about, committed - start.committed);
        page.one("last_committed_epoch", "gauge", "The last durable epoch, of all runs.", committed);
        page.one("horizon_epochs", "gauge", "The last epoch that there will be.", start.schedule.horizon());
        let about = "Epochs that the public clock has closed and that are not durable yet.";
        let lag = [(String::new(), closed.saturating_sub(committed))];
        page.family(Audience::Load, "frontier_lag_epochs", "gauge", about, lag);
        if let Schedule::ByTime(by) = &start.schedule {
            let end = by.start_of(committed.saturating_add(1)).unwrap_or(i64::MAX) as f64;
            let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros() as f64;
            let about = "How long ago the last durable epoch ended, by this machine's clock.";
            let lag = [(String::new(), (now - end) / 1e6)];
            page.family(Audience::Load, "frontier_lag_seconds", "gauge", about, lag);
        }
    }

    fn write_load(&self, page: &mut MetricsText) {
        let about = "Time to write, sync and publish a batch of epochs.";
        let mut sum = 0;
        let classes = COMMIT_CLASSES.iter().map(f64::to_string).chain(["+Inf".into()]);
        let classes = classes.zip(&self.commits).map(|(end, count)| {
            sum += count.load(Relaxed);
            (format!("_bucket{{le=\"{end}\"}}"), sum)
        });
        let classes: Vec<_> = classes.collect();
        page.family(Audience::Load, "commit_seconds", "histogram", about, classes);
        let seconds = self.commit_nanoseconds.load(Relaxed) as f64 / 1e9;
        let _ =
            writeln!(page.text, "hushflow_commit_seconds_sum {seconds}\nhushflow_commit_seconds_count {sum}");
        let about = "Batches of rows that wait for the workers.";
        let waiting = self.waiting_batches.get().map_or(0, |waiting| waiting());
        page.family(Audience::Load, "waiting_batches", "gauge", about, [(String::new(), waiting)]);
        let about =
            "1 if all sources were connected and an epoch came within its deadline, as /readyz reports.";
        let ready = [(String::new(), u8::from(self.readiness.is_ready()))];
        page.family(Audience::Load, "ready", "gauge", about, ready);
        let about =
            "Changed files of certificates that could not be used: the last certificate stays in use.";
        page.one("certificate_renewals_failed_total", "counter", about, failed_renewals());
        if let Some(age) = self.readiness.age() {
            let about = "Time since this run published an epoch, or since it began.";
            let age = [(String::new(), age.as_secs_f64())];
            page.family(Audience::Load, "epoch_age_seconds", "gauge", about, age);
        }
    }

    /// Serves the metrics from now on, and beside them the probes `/healthz` and `/readyz`. Returns
    /// their URL. Private metrics are included only on a loopback address, unless `expose_private`.
    ///
    /// # Errors
    /// [`HttpError`] if it can't listen at the address, or can't use the certificate.
    pub fn serve(
        self: &Arc<Self>,
        endpoint: &HttpEndpoint,
        expose_private: bool,
    ) -> Result<String, HttpError> {
        let server = HttpServer::bind(endpoint)?;
        let url = server.url() + "/metrics";
        let address = server.address();
        let with_private = expose_private || address.ip().is_loopback();
        let metrics = Arc::clone(self);
        let document = move |metrics: &Self, path: &str| match path {
            "/metrics" => HttpAnswer::Document(
                "text/plain; version=0.0.4; charset=utf-8",
                metrics.text(SystemTime::now(), with_private).into(),
            ),
            _ => HttpAnswer::Refused(HttpStatus::NotFound, "there is no such page: go to /metrics".into()),
        };
        let answer = move |request: &HttpRequest| {
            metrics.readiness.answer(request).unwrap_or_else(|| document(&metrics, &request.path))
        };
        server.serve(answer)?;
        Ok(url)
    }
}

/// Escapes the value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Returns, by reason, the counts of rows that are not counted in their own epoch.
fn reasons(counters: &RowCounters) -> [(&'static str, u64); 10] {
    [
        ("missing", counters.missing),
        ("malformed", counters.malformed),
        ("unknown_key", counters.unknown_key),
        ("late_folded", counters.folded),
        ("late_dropped", counters.late),
        ("before_start", counters.before_start),
        ("after_horizon", counters.after_horizon),
        ("already_closed", counters.already_closed),
        ("clock_jump", counters.clock_jump),
        ("copy", counters.duplicates),
    ]
}

struct MetricsText {
    text: String,
    with_private: bool,
}

impl MetricsText {
    fn one(&mut self, name: &str, kind: &str, about: &str, value: impl Display) {
        self.family(Audience::Public, name, kind, about, [(String::new(), value)]);
    }

    fn family<V: Display>(
        &mut self,
        audience: Audience,
        name: &str,
        kind: &str,
        about: &str,
        values: impl IntoIterator<Item = (String, V)>,
    ) {
        if audience == Audience::Private && !self.with_private {
            return;
        }
        let audience = match audience {
            Audience::Public => "PUBLIC",
            Audience::Load => "LOAD",
            Audience::Private => "PRIVATE",
        };
        let _ =
            writeln!(self.text, "# HELP hushflow_{name} {audience}. {about}\n# TYPE hushflow_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(self.text, "hushflow_{name}{labels} {value}");
        }
    }
}
