//! Records which epochs and keys have a record: only what rules about empty ones need, so that a
//! run can keep it for all of its rows.

use std::collections::BTreeMap;

use hushflow_operators::Records;
use serde::{Deserialize, Serialize};

use crate::pipeline::Pipeline;

/// Epochs and keys with records. Private.
#[derive(Clone)]
pub struct Coverage {
    /// Counts of the closed epochs.
    pub closed: ClosedCoverage,
    /// Records by epoch after the closed ones.
    open: BTreeMap<u64, u64>,
    /// The first epoch with a record of each key; the largest number without one.
    keys: Vec<u64>,
    /// The number of keys without a record.
    absent_keys: usize,
    /// Keys have records if their first one is of an epoch up to this one.
    reach: u64,
    /// Whether all keys have records in closed epochs.
    is_complete: bool,
}

/// Records of the epochs that the clock has closed. Private.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub struct ClosedCoverage {
    /// Records.
    pub records: u64,
    /// The first epoch with a record.
    pub first: Option<u64>,
    /// The last epoch that was committed before the first of these.
    pub committed: u64,
    /// The last epoch that the clock has closed.
    pub last: u64,
    /// Number of rows at which the clock closed epochs.
    pub steps: u64,
    /// Epochs with records.
    pub filled: u64,
}

impl Coverage {
    /// No records yet after this epoch.
    pub fn new(pipeline: &Pipeline, committed: u64) -> Self {
        let keys = pipeline.listed_keys();
        Coverage {
            closed: ClosedCoverage { committed, last: committed, ..ClosedCoverage::default() },
            open: BTreeMap::new(),
            keys: vec![u64::MAX; keys],
            absent_keys: keys,
            reach: committed,
            is_complete: false,
        }
    }

    /// Continues after these closed epochs, with whether each key has a record; no keys if all
    /// have.
    pub fn resume(pipeline: &Pipeline, closed: ClosedCoverage, keys: &[bool]) -> Self {
        let mut coverage = Self::new(pipeline, closed.last);
        coverage.closed = closed;
        coverage.is_complete = keys.len() != coverage.keys.len();
        for (first, _) in coverage.keys.iter_mut().zip(keys).filter(|(_, has_record)| **has_record) {
            *first = 0;
            coverage.absent_keys -= 1;
        }
        coverage
    }

    /// Returns whether each key has a record in a closed epoch; no keys if all have.
    pub fn keys(&self) -> Vec<bool> {
        let keys = if self.is_complete { &[][..] } else { &self.keys };
        keys.iter().map(|&first| first <= self.closed.last).collect()
    }

    /// Adds records, except those of closed epochs, which a resumed run reads again. Once all keys
    /// have records, the work for each record is a comparison with the one before.
    pub fn add(&mut self, records: &Records) {
        for run in records.epochs.chunk_by(|one, next| one == next) {
            if run[0] > self.closed.last {
                *self.open.entry(run[0]).or_default() += run.len() as u64;
            }
        }
        if self.is_complete {
            return;
        }
        for (&key, &epoch) in records.keys.iter().zip(&records.epochs) {
            // Discovered keys are not told apart.
            let key = if self.keys.len() == 1 { 0 } else { key as usize };
            let first = &mut self.keys[key];
            self.absent_keys -= usize::from(*first == u64::MAX);
            *first = epoch.min(*first);
        }
    }

    /// Notes that the clock has closed the epochs up to `last` at one row.
    pub fn close(&mut self, last: u64) {
        let later = self.open.split_off(&(last + 1));
        for (epoch, records) in std::mem::replace(&mut self.open, later) {
            self.closed.records += records;
            self.closed.first.get_or_insert(epoch);
            self.closed.filled += 1;
        }
        self.closed.last = last;
        self.closed.steps += 1;
        self.reach = last;
        self.is_complete |= self.absent_keys == 0 && self.keys.iter().all(|&first| first <= last);
    }

    /// Returns the coverage with the records of open epochs.
    pub fn with_open(&self) -> Self {
        let mut all = Coverage { reach: u64::MAX - 1, ..self.clone() };
        all.closed.records += all.open.values().sum::<u64>();
        all.closed.first = all.closed.first.or(all.open.first_key_value().map(|(&epoch, _)| epoch));
        all
    }

    /// Returns the keys without a record.
    pub fn empty_keys(&self) -> impl Iterator<Item = usize> {
        let keys = if self.is_complete { &[][..] } else { &self.keys };
        keys.iter().enumerate().filter(|&(_, &first)| first > self.reach).map(|(key, _)| key)
    }
}

impl ClosedCoverage {
    /// Returns the number of epochs.
    pub fn epochs(&self) -> u64 {
        self.last - self.committed
    }

    /// Returns the epochs closed since an earlier state of the same coverage.
    pub fn since(&self, earlier: &Self) -> Self {
        ClosedCoverage {
            records: self.records - earlier.records,
            first: None,
            committed: earlier.last,
            last: self.last,
            steps: self.steps - earlier.steps,
            filled: self.filled - earlier.filled,
        }
    }
}
