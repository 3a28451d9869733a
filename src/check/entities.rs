//! Counts the records that the limits of entities leave out.

use std::collections::{BTreeMap, HashMap};

use hushflow_operators::{Entity, EntityHistory, EntityLimits, Records, RepeatPolicy};

use super::Problem;

/// Records from which their share means anything.
const LEAST_RECORDS: u64 = 20;

/// The records that go beyond what their entities may contribute. Private.
#[derive(Clone)]
pub struct EntityCut {
    limits: EntityLimits,
    histories: HashMap<Entity, EntityHistory>,
    /// The records of open epochs by entity: each key with its records, in the order of the stream.
    open: BTreeMap<u64, HashMap<Entity, Vec<(u32, u64)>>>,
    left_out: u64,
    records: u64,
}

impl EntityCut {
    /// No records yet.
    pub fn new(limits: EntityLimits) -> Self {
        EntityCut { limits, histories: HashMap::new(), open: BTreeMap::new(), left_out: 0, records: 0 }
    }

    /// Adds records.
    pub fn add(&mut self, records: &Records) {
        self.records += records.len() as u64;
        let entities = records.entities.iter().zip(records.keys.iter().zip(&records.epochs));
        for (&entity, (&key, &epoch)) in entities {
            let keys = self.open.entry(epoch).or_default().entry(entity).or_default();
            match keys.iter_mut().find(|(own, _)| *own == key) {
                Some((_, count)) => *count += 1,
                None => keys.push((key, 1)),
            }
        }
    }

    /// Applies the limits to the epochs up to `epoch`, which get no more records.
    pub fn close(&mut self, epoch: u64) {
        let later = self.open.split_off(&epoch.saturating_add(1));
        for (epoch, entities) in std::mem::replace(&mut self.open, later) {
            for (entity, keys) in entities {
                let records: u64 = keys.iter().map(|&(_, count)| count).sum();
                let admitted = self.limits.admit(self.histories.get(&entity).copied(), epoch);
                let most = admitted.map_or(0, |_| self.limits.records_per_epoch);
                let kept = match self.limits.several {
                    RepeatPolicy::Keep => records.min(most.into()),
                    // All records of a kept key count in its mean.
                    RepeatPolicy::Average => keys.iter().take(most as usize).map(|&(_, count)| count).sum(),
                };
                self.left_out += records - kept;
                if let Some(history) = admitted {
                    self.histories.insert(entity, history);
                }
            }
        }
    }

    /// Returns the number of records left out of the closed epochs.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Returns the problem of limits that leave out most of the records so far, if they do.
    pub fn problem(&self) -> Option<Problem> {
        let mut all = self.clone();
        all.close(u64::MAX);
        let is_most = all.records >= LEAST_RECORDS && all.left_out.saturating_mul(2) > all.records;
        let message = "the limits of entities leave out most records, which don't count: raise participations in [entity], or lengthen \
            epochs and let more records of an entity count in each";
        is_most.then(|| Problem::new("entity limits", false, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_beyond_the_limits_are_counted() {
        // Entity 1: three records in epoch 1, one in 2 (too soon), one in 3, one in 5 (spent).
        let rows = [(1, 1, 0), (1, 1, 1), (1, 1, 0), (2, 1, 0), (3, 1, 0), (5, 1, 0), (2, 2, 0)];
        let records = Records {
            keys: rows.map(|row| row.2).to_vec(),
            epochs: rows.map(|row| row.0).to_vec(),
            entities: rows.map(|row| Entity(row.1)).to_vec(),
            ..Records::default()
        };
        for (several, expected) in [(RepeatPolicy::Keep, 4), (RepeatPolicy::Average, 3)] {
            let limits = EntityLimits {
                participations: 2,
                min_separation: 2,
                records_per_epoch: 1,
                several,
                sent_limit: None,
            };
            let mut cut = EntityCut::new(limits);
            cut.add(&records);
            cut.close(2);
            cut.close(u64::MAX);
            assert_eq!(cut.left_out(), expected);
        }
    }
}
