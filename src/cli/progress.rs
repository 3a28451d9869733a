//! Progress display on a terminal.

use std::time::Duration;

use hushflow::strategies::SearchProgress;
use indicatif::{ProgressBar, ProgressStyle};

/// A status line of a search on standard error, if that is a terminal.
pub(super) struct SearchStatus(ProgressBar);

impl SearchStatus {
    pub(super) fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }

    /// Shows the current item.
    pub(super) fn name(&self, name: impl ToString) {
        self.0.set_prefix(name.to_string());
        self.0.set_message("");
    }

    /// Shows the progress of a search.
    pub(super) fn tell(&self, progress: &SearchProgress) {
        let SearchProgress { iteration, objective, lower_bound, .. } = progress;
        self.name(&progress.strategy);
        let gap = match *lower_bound > 0.0 {
            true => format!(", gap {:.1e}", objective / lower_bound - 1.0),
            false => String::new(),
        };
        self.0.set_message(format!("step {iteration}: {objective:.6}{gap}"));
    }

    /// Clears the line.
    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// A progress bar on standard error, if that is a terminal.
pub(super) struct ProgressCounter(ProgressBar);

impl ProgressCounter {
    pub(super) fn new(total: u64, what: &'static str) -> Self {
        let bar = ProgressBar::new(total).with_message(what);
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {human_pos}/{human_len} {msg} {eta}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Advances the bar.
    pub(super) fn add(&self, more: u64) {
        self.0.inc(more);
    }

    /// Clears the bar.
    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }
}
