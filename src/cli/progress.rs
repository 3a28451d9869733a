//! Progress of long searches, on a terminal only.

use std::time::Duration;

use hushflow::strategies::Progress;
use indicatif::{ProgressBar, ProgressStyle};

/// A line on standard error that tells what is being looked for, where that is a terminal.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }

    /// What is looked at now.
    pub(super) fn name(&self, name: impl ToString) {
        self.0.set_prefix(name.to_string());
        self.0.set_message("");
    }

    /// How far a search is.
    pub(super) fn tell(&self, progress: &Progress) {
        let Progress { iteration, objective, lower_bound, .. } = progress;
        self.name(&progress.strategy);
        let gap = match *lower_bound > 0.0 {
            true => format!(", gap {:.1e}", objective / lower_bound - 1.0),
            false => String::new(),
        };
        self.0.set_message(format!("step {iteration}: {objective:.6}{gap}"));
    }

    /// Takes the line away.
    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }
}
