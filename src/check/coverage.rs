//! Which epochs and keys have a record: the least that rules about empty ones need, so that a run
//! can keep it for all of its rows.

use std::collections::BTreeSet;

use hushflow_operators::Records;

use crate::pipeline::Pipeline;

/// Epochs and keys with records. Private.
#[derive(Clone, Default)]
pub struct Coverage {
    /// Records.
    pub records: u64,
    /// The first epoch with a record.
    pub first: Option<u64>,
    /// The last epoch that an earlier run has committed.
    pub committed: u64,
    /// The last epoch that the clock has closed.
    pub closed: u64,
    /// Number of rows at which the clock closed epochs. Several marks may close the epochs of one
    /// row, and how many is private; `closed` and `steps` depend on the clock alone.
    pub steps: u64,
    /// The last of these rows.
    last_step: Option<u64>,
    /// Closed epochs with records that are no longer in `open`.
    filled: u64,
    /// Epochs with records.
    open: BTreeSet<u64>,
    /// Whether each key has a record.
    keys: Vec<bool>,
    /// The number of keys without one.
    empty_keys: usize,
}

impl Coverage {
    /// No records yet after this epoch.
    pub fn new(pipeline: &Pipeline, committed: u64) -> Self {
        let keys = pipeline.key.as_ref().map_or(1, |key| key.values.len());
        Coverage {
            committed,
            closed: committed,
            keys: vec![false; keys],
            empty_keys: keys,
            ..Coverage::default()
        }
    }

    /// Adds records. The work for each is a comparison with the one before.
    pub fn add(&mut self, records: &Records) {
        self.records += records.len() as u64;
        for run in records.epochs.chunk_by(|one, next| one == next) {
            self.open.insert(run[0]);
            self.first = Some(self.first.map_or(run[0], |first| first.min(run[0])));
        }
        if self.empty_keys == 0 {
            return;
        }
        for &key in &records.keys {
            let is_first = !std::mem::replace(&mut self.keys[key as usize], true);
            self.empty_keys -= usize::from(is_first);
        }
    }

    /// Notes that row number `row` has closed the epochs up to `due`, and that none up to `epoch`
    /// gets another record.
    pub fn close(&mut self, epoch: u64, due: u64, row: u64) {
        self.steps += u64::from(self.last_step.replace(row) != Some(row));
        self.closed = self.closed.max(due);
        let later = self.open.split_off(&(epoch + 1));
        self.filled += std::mem::replace(&mut self.open, later).len() as u64;
    }

    /// Returns the number of epochs that the clock has closed, and how many of them have records.
    pub fn closed_and_filled(&self) -> (u64, u64) {
        let open = self.open.range(..=self.closed).count() as u64;
        (self.closed - self.committed, self.filled + open)
    }

    /// Returns the keys without a record.
    pub fn empty_keys(&self) -> impl Iterator<Item = usize> {
        self.keys.iter().enumerate().filter(|&(_, &filled)| !filled).map(|(key, _)| key)
    }
}
