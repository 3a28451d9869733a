//! Probes for supervisors of a process: `/healthz` (alive) and `/readyz` (all sources were
//! connected, and an epoch came within its deadline).
//!
//! Both are public: they depend on the times at which epochs were published, which every reader of
//! the log sees, on a deadline that follows from the flags and the pipeline file, and on whether
//! servers answer. A run whose source is silent publishes nothing, so it is not ready once its
//! deadline has passed. It stays alive: a restart would not bring back the source.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hushflow_mechanism::epochs::{ClockSource, Schedule};
use jiff::SignedDuration;

use crate::http::{HttpAnswer, HttpRequest, HttpStatus, PLAIN_TEXT};

/// Shortest deadline that is derived from a schedule: short epochs may wait for disks.
const SHORTEST_DEADLINE: Duration = Duration::from_secs(60);

/// Returns when the last source was connected for the first time, or why not all were.
type Connections = Box<dyn Fn() -> Result<Option<Instant>, String> + Send + Sync>;

/// Whether epochs come in time.
#[derive(Default)]
pub(crate) struct Readiness {
    /// The connections of the sources, if there are any.
    connections: OnceLock<Connections>,
    /// The deadline that the user set.
    chosen: OnceLock<Duration>,
    start: OnceLock<ReadyStart>,
    /// Nanoseconds from the start to the last epoch; 0 before the first.
    last: AtomicU64,
    is_complete: AtomicBool,
}

/// The time from which epochs are possible, and the deadline for the next one.
#[derive(Debug)]
struct ReadyStart {
    at: Instant,
    within: Option<Duration>,
}

impl Readiness {
    /// Sets the longest time from one epoch to the next, instead of the default.
    pub(crate) fn set_deadline(&self, within: Duration) {
        let _ = self.chosen.set(within);
    }

    /// Sets the connections of the sources. It is not ready before all of them were made.
    pub(crate) fn watch_connections(
        &self,
        connections: impl Fn() -> Result<Option<Instant>, String> + Send + Sync + 'static,
    ) {
        let _ = self.connections.set(Box::new(connections));
    }

    /// Records that epochs are possible from now on, each within `default` of the previous one
    /// unless the user has set a deadline. `None` means no deadline.
    pub(crate) fn begin(&self, default: Option<Duration>) {
        let within = self.chosen.get().copied().or(default);
        let _ = self.start.set(ReadyStart { at: Instant::now(), within });
    }

    /// Records an epoch.
    pub(crate) fn advance(&self) {
        if let Some(start) = self.start.get() {
            self.last.store(start.at.elapsed().as_nanos() as u64, Relaxed);
        }
    }

    /// Records that no more epochs are due.
    pub(crate) fn complete(&self) {
        self.is_complete.store(true, Relaxed);
    }

    /// Returns the time since the last epoch, or since the start; `None` before it.
    pub(crate) fn age(&self) -> Option<Duration> {
        let elapsed = self.start.get()?.at.elapsed();
        Some(elapsed.saturating_sub(Duration::from_nanos(self.last.load(Relaxed))))
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.judge().is_ok()
    }

    /// Returns the reason why the run is ready (`Ok`) or not ready (`Err`).
    fn judge(&self) -> Result<String, String> {
        if self.is_complete.load(Relaxed) {
            return Ok("ready: the last epoch of all is published".into());
        }
        let connected = self.connections.get().map_or(Ok(None), |connections| connections())?;
        let (Some(start), Some(age)) = (self.start.get(), self.age()) else {
            // Only a ready run gets the first peer of a listening source.
            return match self.connections.get() {
                Some(_) => Ok("ready: no row has come yet".into()),
                None => Err("starting: no epoch is possible yet".into()),
            };
        };
        let Some(within) = start.within else {
            return Ok("ready: no deadline is set (--ready-within)".into());
        };
        // The first epoch was not due while a server was away or a listening source had no peer.
        let first = connected.filter(|_| self.last.load(Relaxed) == 0);
        let age = first.map_or(age, |at| age.min(at.elapsed()));
        let [age, deadline] = [age, within].map(in_seconds);
        if age <= deadline {
            return Ok(format!(
                "ready: {age:#} since the last epoch, the start or a first connection; the deadline is {deadline:#}"
            ));
        }
        Err(format!(
            "no epoch for {age:#}, and one was due within {deadline:#}: the source may be silent, its clock may stand \
             still, or the deadline is too short (--ready-within)"
        ))
    }

    /// Answers a request for a probe; `None` for other paths.
    pub(crate) fn answer(&self, request: &HttpRequest) -> Option<HttpAnswer> {
        match request.path.as_str() {
            "/healthz" => Some(HttpAnswer::Document(PLAIN_TEXT, "alive\n".into())),
            "/readyz" => Some(match self.judge() {
                Ok(why) => HttpAnswer::Document(PLAIN_TEXT, format!("{why}\n").into()),
                Err(why) => HttpAnswer::Refused(HttpStatus::Unavailable, why),
            }),
            _ => None,
        }
    }
}

fn in_seconds(duration: Duration) -> SignedDuration {
    SignedDuration::from_secs(i64::try_from(duration.as_secs()).unwrap_or(i64::MAX))
}

/// Returns the default of the longest time from one epoch to the next: twice the length of an
/// epoch, and its lateness. `None` if the schedule does not determine when epochs come.
pub(crate) fn default_deadline(schedule: &Schedule) -> Option<Duration> {
    match schedule {
        Schedule::ByTime(by) if by.clock != ClockSource::EndOfInput => {
            let micros = by.length.saturating_mul(2).saturating_add(by.lateness);
            Some(Duration::from_micros(micros.unsigned_abs()).max(SHORTEST_DEADLINE))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use hushflow_mechanism::epochs::{CountSchedule, LatePolicy, TimeSchedule};

    use super::*;
    use crate::control::Control;

    #[test]
    fn ready_means_an_epoch_within_the_deadline() {
        let readiness = Readiness::default();
        assert!(!readiness.is_ready() && readiness.age().is_none());
        readiness.set_deadline(Duration::ZERO);
        readiness.begin(Some(Duration::MAX));
        // The deadline counts whole seconds.
        assert!(readiness.is_ready());
        let late = Readiness::default();
        let at = Instant::now().checked_sub(Duration::from_secs(10)).expect("a machine that has run");
        late.start.set(ReadyStart { at, within: Some(Duration::from_secs(5)) }).expect("the first start");
        let why = late.judge().expect_err("late");
        assert!(why.starts_with("no epoch for 10s, and one was due within 5s:"), "{why}");
        late.advance();
        assert!(late.is_ready() && late.age().is_some_and(|age| age < Duration::from_secs(5)));
        late.last.store(0, Relaxed);
        assert!(!late.is_ready());
        late.complete();
        assert!(late.is_ready());
        let endless = Readiness::default();
        endless.begin(None);
        assert!(endless.is_ready());
    }

    #[test]
    fn ready_means_that_every_source_was_connected() {
        let control = Control::new();
        let ready = Readiness::default();
        let at = Instant::now().checked_sub(Duration::from_secs(10)).expect("a machine that has run");
        ready.start.set(ReadyStart { at, within: Some(Duration::from_secs(5)) }).expect("the first start");
        let watched = control.clone();
        ready.watch_connections(move || watched.sources_connected());
        assert_eq!(ready.judge().expect_err("not open"), "starting: no source is open yet");
        control.begin();
        control.note_attempt("nats://h:1 s", Some("can't be reached: refused"));
        let why = ready.judge().expect_err("not connected");
        assert_eq!(why, "a source was never connected: nats://h:1 s: can't be reached: refused");
        control.note_attempt("nats://h:1 s", None);
        assert!(ready.is_ready(), "the deadline counts from the first connection");
        let waiting = Readiness::default();
        let watched = control.clone();
        waiting.watch_connections(move || watched.sources_connected());
        assert!(waiting.is_ready(), "a listening source gets no peer before");
        control.note_attempt("other", Some("away"));
        assert!(!waiting.is_ready());
        let listening = Readiness::default();
        let at = Instant::now().checked_sub(Duration::from_secs(10)).expect("a machine that has run");
        listening
            .start
            .set(ReadyStart { at, within: Some(Duration::from_secs(5)) })
            .expect("the first start");
        let peers = Control::new();
        let other = peers.clone();
        listening.watch_connections(move || other.first_connections());
        assert!(!listening.is_ready(), "late");
        peers.await_peer("tcp-listen://h:1");
        assert!(listening.is_ready(), "without a peer no epoch is due");
        listening.last.store(1, Relaxed);
        assert!(!listening.is_ready(), "the other sources have gone on without the peer");
        ready.complete();
        assert!(ready.is_ready(), "nothing is due after the last epoch");
    }

    #[test]
    fn deadlines_follow_from_schedules() {
        let by_time = |length, lateness, clock| {
            let late = LatePolicy::Fold;
            Schedule::ByTime(TimeSchedule {
                start: 0,
                length,
                lateness,
                horizon: 9,
                late,
                clock,
                calendar: None,
            })
        };
        let day = 86_400_000_000;
        let seconds = |schedule| default_deadline(&schedule).map(|within| within.as_secs());
        assert_eq!(seconds(by_time(day, day / 24, ClockSource::Arrival)), Some(49 * 3600));
        assert_eq!(seconds(by_time(1000, 0, ClockSource::EventTime)), Some(60));
        assert_eq!(seconds(by_time(day, 0, ClockSource::EndOfInput)), None);
        assert!(seconds(by_time(i64::MAX, i64::MAX, ClockSource::Arrival)).is_some());
        assert_eq!(seconds(Schedule::ByCount(CountSchedule { records_per_epoch: 5, horizon: 9 })), None);
    }
}
