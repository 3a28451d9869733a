//! What a run had published and spent when it failed: errors say it, because the operator has to
//! know whether the budget is gone.

use std::path::PathBuf;
use std::sync::Arc;

use super::{RunError, RunOptions};
use crate::metrics::Metrics;
use crate::state::Enrolment;

/// What a run has published and spent, which is public.
#[derive(Clone)]
pub(super) struct PublicProgress {
    metrics: Arc<Metrics>,
    state: PathBuf,
}

impl PublicProgress {
    pub(super) fn of(options: &RunOptions) -> Self {
        PublicProgress { metrics: Arc::clone(&options.metrics), state: options.state.clone() }
    }

    fn has_paid(&self) -> bool {
        Enrolment::of(&self.state).is_ok_and(|own| own.is_some_and(|own| own.has_begun()))
    }

    /// Describes the progress of a run that has read nothing.
    fn before_reading(&self) -> &'static str {
        match self.has_paid() {
            false => "nothing was published or spent",
            true => "nothing more was published or spent",
        }
    }

    /// Returns the reason of a fault, and what was published and spent before it.
    pub(super) fn after(&self, reason: &str) -> String {
        let progress = match (self.metrics.last_committed(), self.has_paid()) {
            (0, false) => "nothing was published or spent".into(),
            (0, true) => "nothing was published".into(),
            (last, _) => format!(
                "the epochs up to {last} are published, and no later one; the (ε, δ) of [privacy] is spent, and covers later epochs \
                 too"
            ),
        };
        format!("{reason}; {progress}")
    }

    /// Adds the progress to an error.
    pub(super) fn with(&self, error: RunError) -> RunError {
        match error {
            RunError::Source(error) => RunError::Unopened(error, self.before_reading()),
            RunError::Fault(reason) => RunError::Fault(self.after(&reason)),
            RunError::Unreached(reason) => RunError::Unreached(self.after(&reason)),
            error => error,
        }
    }
}
