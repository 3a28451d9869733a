//! Reports the counts of rows before the reader of a live source waits for the next row.
//!
//! A batch is returned only when it is full or an epoch closes. Without this report, counts of a
//! slow stream would be behind by up to a batch.

use super::{RowCounters, SourceReader};

/// Receives the counts of all rows so far.
type Listener = Box<dyn Fn(&RowCounters) + Send>;

/// A listener, and the number of rows that it knows.
pub(super) struct WaitListener {
    listener: Listener,
    rows: u64,
}

impl SourceReader {
    /// Calls `listener` before each wait for a row, if rows were read since.
    pub(crate) fn reporting(mut self, listener: impl Fn(&RowCounters) + Send + 'static) -> Self {
        self.wait_listener = Some(WaitListener { listener: Box::new(listener), rows: 0 });
        self
    }

    pub(super) fn report_before_wait(&mut self) {
        let rows = self.counters.rows;
        let is_known = self.wait_listener.as_ref().is_none_or(|known| known.rows == rows);
        if is_known || !self.must_wait() {
            return;
        }
        if let Some(known) = &mut self.wait_listener {
            known.rows = rows;
            (known.listener)(&self.counters);
        }
    }
}
