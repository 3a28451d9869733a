//! Duplicates of a record: each record counts once in an epoch, however often it arrives.
//!
//! Two records are duplicates if they join the same epoch and have the same fingerprint. An open
//! epoch keeps a set of fingerprints, 16 bytes each, which is dropped when the epoch closes. None
//! of it is stored: a run that resumes reads the rows of open epochs again and rebuilds the set. A
//! duplicate that arrives later is late, and dropped.
//!
//! **Privacy.** An epoch counts the *set* of its records instead of the multiset. Let two streams
//! differ in one record: x in epoch s of the first is replaced by y in epoch t of the second. The
//! sets of all other fingerprints and epochs agree. Duplicates of x in s agree in everything that
//! counts (id, key, event time, entity, every value). So their joint contribution is that of one
//! record if any duplicate is present, and zero otherwise: it changes by at most x. The same holds
//! for y and t. So sums differ by at most −x in epoch s and +y in epoch t, as without duplicates,
//! and every sensitivity stays valid. This also holds if two people share an id, or a whole record:
//! no record replaces one with other contents. Duplicates in *different* epochs must each count: if
//! the first one hid the second, removing it would reveal the second, which is a third change.
//!
//! With `replace-one-in-place`, ids, keys, times and entities are public, and so are counts. There
//! the fingerprint excludes the values: which records are duplicates is public, the first one
//! counts, and a changed value changes at most that one record. With entities, the entity is part
//! of the fingerprint, so the remaining records of an entity depend only on its own records and
//! their order of arrival.

use std::collections::{BTreeMap, HashSet};

use hushflow_operators::Records;

use crate::source::RecordBatch;

/// Fingerprints of the records in open epochs.
#[derive(Default)]
pub(super) struct DuplicateFilter {
    seen: BTreeMap<u64, HashSet<u128>>,
    found: u64,
}

impl DuplicateFilter {
    /// Keeps the first of all duplicates.
    pub(super) fn take_out(&mut self, batch: &mut RecordBatch) {
        let fingerprints = std::mem::take(&mut batch.fingerprints);
        if fingerprints.is_empty() {
            return;
        }
        let epochs = &batch.records.epochs;
        let known = fingerprints.into_iter().zip(epochs);
        let first: Vec<bool> = known
            .map(|(fingerprint, &epoch)| self.seen.entry(epoch).or_default().insert(fingerprint))
            .collect();
        self.found += first.iter().filter(|first| !**first).count() as u64;
        retain(&mut batch.records, &first);
    }

    /// Drops the sets of the epochs up to `epoch`, which accept no more records.
    pub(super) fn forget(&mut self, epoch: u64) {
        self.seen = self.seen.split_off(&(epoch + 1));
    }

    /// Returns the number of duplicates found.
    pub(super) fn found(&self) -> u64 {
        self.found
    }
}

/// Keeps the records marked in `kept`.
pub(super) fn retain(records: &mut Records, kept: &[bool]) {
    if kept.iter().all(|&kept| kept) {
        return;
    }
    let dimension = records.values.len() / kept.len();
    leave(&mut records.keys, kept, 1);
    leave(&mut records.epochs, kept, 1);
    leave(&mut records.entities, kept, 1);
    leave(&mut records.positions, kept, 1);
    leave(&mut records.values, kept, dimension);
}

/// Keeps the groups of `width` elements marked in `kept`.
fn leave<T>(column: &mut Vec<T>, kept: &[bool], width: usize) {
    let mut at = 0;
    column.retain(|_| {
        at += 1;
        kept[(at - 1) / width]
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(rows: &[(u64, u128, f64)]) -> RecordBatch {
        let records = Records {
            keys: vec![0; rows.len()],
            epochs: rows.iter().map(|row| row.0).collect(),
            values: rows.iter().flat_map(|row| [row.2, -row.2]).collect(),
            ..Records::default()
        };
        RecordBatch {
            records,
            fingerprints: rows.iter().map(|row| row.1).collect(),
            ..RecordBatch::default()
        }
    }

    #[test]
    fn duplicates_are_removed_within_an_epoch() {
        let mut duplicates = DuplicateFilter::default();
        let mut check = |rows: &[(u64, u128, f64)], left: &[f64]| {
            let mut batch = batch(rows);
            duplicates.take_out(&mut batch);
            let firsts: Vec<f64> = batch.records.values.iter().copied().step_by(2).collect();
            assert_eq!(firsts, left);
            assert_eq!((batch.len(), batch.records.values.len()), (left.len(), 2 * left.len()));
            duplicates.forget(rows.last().map_or(0, |row| row.0 - 1));
        };
        check(&[(1, 7, 0.5), (1, 8, 0.25), (1, 7, 0.5), (2, 7, 0.5)], &[0.5, 0.25, 0.5]);
        check(&[(2, 7, 0.5), (2, 8, 0.25)], &[0.25]);
        check(&[], &[]);
        assert_eq!((duplicates.found(), duplicates.seen.len()), (2, 1));
    }

    #[test]
    fn without_ids_all_records_are_left() {
        let mut duplicates = DuplicateFilter::default();
        let mut batch = RecordBatch { fingerprints: vec![], ..batch(&[(1, 7, 0.5), (1, 7, 0.5)]) };
        duplicates.take_out(&mut batch);
        assert_eq!((batch.len(), duplicates.found()), (2, 0));
    }
}
