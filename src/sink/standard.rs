//! Standard output: the lines of what a run publishes, for whoever started it.

use std::io::{Write, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::SinkError;
use super::following::{Held, Outlet};

/// Standard output from an epoch on.
pub(super) struct Standard {
    since: u64,
    /// Epochs that were taken.
    taken: Arc<AtomicU64>,
}

impl Standard {
    /// For the epochs after `since`; `taken` counts them as they are written.
    pub(super) fn after(since: u64, taken: Arc<AtomicU64>) -> Self {
        Standard { since, taken }
    }
}

impl Outlet for Standard {
    fn name(&self) -> String {
        "standard output".into()
    }

    fn open(&mut self) -> Result<Held, SinkError> {
        Ok(Held { whole: self.since, last: None })
    }

    fn append(&mut self, epoch: u64, lines: &[u8]) -> Result<(), SinkError> {
        let mut out = stdout().lock();
        self.since = epoch;
        out.write_all(lines).and_then(|()| out.flush()).map_err(SinkError::Output)?;
        self.taken.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
