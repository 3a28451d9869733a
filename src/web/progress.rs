//! How far a page has read its log, and how old the newest epoch is.
//!
//! A page that starts later learns the age of the newest epoch from the time at which the file of
//! the log was written. All of it is public: readers of the log see when epochs come.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use hushflow_mechanism::epochs::Schedule;
use serde_json::{Value, json};

use super::json_document;
use crate::http::{HttpAnswer, HttpRequest};
use crate::readiness::{Readiness, default_deadline};

/// Progress of the reader of the log.
pub(super) struct PageProgress {
    /// The last epoch that there will be.
    pub(super) horizon: u64,
    /// The longest time from one epoch to the next; `None` where no epoch is due at a time.
    deadline: Option<Duration>,
    published: AtomicU64,
    newest_at: Mutex<Option<SystemTime>>,
    pub(super) readiness: Readiness,
}

impl PageProgress {
    /// Begins before the first epoch. Each is due `within` a time, by default the usual one of the
    /// schedule; `/readyz` judges by `within` alone.
    pub(super) fn new(schedule: &Schedule, within: Option<Duration>) -> Self {
        let readiness = Readiness::default();
        if let Some(within) = within {
            readiness.set_deadline(within);
        }
        PageProgress {
            horizon: schedule.horizon(),
            deadline: within.or_else(|| default_deadline(schedule)),
            published: AtomicU64::new(0),
            newest_at: Mutex::default(),
            readiness,
        }
    }

    /// Records an epoch that was just found.
    pub(super) fn advance(&self, epoch: u64) {
        self.published.store(epoch, Relaxed);
        self.set_newest_at(Some(SystemTime::now()));
        self.readiness.advance();
        if epoch >= self.horizon {
            self.readiness.complete();
        }
    }

    pub(super) fn published(&self) -> u64 {
        self.published.load(Relaxed)
    }

    /// Sets when the newest epoch was published, if that is known.
    pub(super) fn set_newest_at(&self, at: Option<SystemTime>) {
        *self.newest_at.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    /// Answers requests for probes and for the newest epoch; `None` for other paths.
    pub(super) fn answer(&self, request: &HttpRequest) -> Option<HttpAnswer> {
        match request.path.as_str() {
            "/newest" => Some(json_document(self.newest(SystemTime::now()).to_string())),
            _ => self.readiness.answer(request),
        }
    }

    /// Returns the newest epoch, its age in seconds, and the age at which the next one is late.
    fn newest(&self, now: SystemTime) -> Value {
        let epoch = self.published();
        let at = *self.newest_at.lock().unwrap_or_else(PoisonError::into_inner);
        // If the clock was set back, the age is 0.
        let age = at.map(|at| now.duration_since(at).unwrap_or_default().as_secs_f64());
        json!({
            "epoch": epoch,
            "age": age.filter(|_| epoch > 0),
            "due": self.deadline.filter(|_| epoch < self.horizon).map(|deadline| deadline.as_secs_f64()),
        })
    }
}

#[cfg(test)]
mod tests {
    use hushflow_mechanism::epochs::CountSchedule;

    use super::*;

    #[test]
    fn the_age_of_the_newest_epoch_is_that_of_its_file() {
        let schedule = Schedule::ByCount(CountSchedule { records_per_epoch: 5, horizon: 9 });
        let progress = PageProgress::new(&schedule, Some(Duration::from_secs(60)));
        let now = SystemTime::now();
        assert_eq!(progress.newest(now), json!({ "epoch": 0, "age": null, "due": 60.0 }));
        progress.advance(3);
        progress.set_newest_at(now.checked_sub(Duration::from_secs(90)));
        assert_eq!(progress.newest(now), json!({ "epoch": 3, "age": 90.0, "due": 60.0 }));
        progress.set_newest_at(now.checked_add(Duration::from_secs(90)));
        assert_eq!(progress.newest(now)["age"], json!(0.0));
        progress.advance(9);
        assert_eq!(progress.newest(now)["due"], Value::Null, "nothing follows the last epoch");
        let unlimited = PageProgress::new(&schedule, None);
        assert_eq!(unlimited.newest(now)["due"], Value::Null, "epochs of rows are due at no time");
    }
}
