//! Counts the records that the limits of entities leave out.

use std::collections::{BTreeMap, HashMap, HashSet};

use hushflow_operators::{ByEntity, Entity, EntityHistory, EntityLimits, Records, RepeatPolicy};

use super::Problem;
use super::recent::{Recent, Share, Tally};

/// Records from which their share means anything.
const LEAST_RECORDS: u64 = 20;

/// The number of an entity's records, and that of each key.
type EntityRecords = (u64, Vec<(u32, u64)>);

/// The records that go beyond what their entities may contribute. Private.
#[derive(Clone)]
pub struct EntityCut {
    limits: EntityLimits,
    histories: ByEntity<EntityHistory>,
    /// The records of open epochs by entity: their number, and that of each key if keys count.
    open: BTreeMap<u64, ByEntity<EntityRecords>>,
    /// The last epoch that is published, and the last one whose records are counted.
    committed: u64,
    counted: u64,
    /// The records of closed epochs, and those that are left out.
    recent: Recent<Share>,
    /// What closed epochs count: kept records, or their means.
    kept: u64,
    /// The keys of what closed epochs count, each with its entities, if they are asked for.
    keys: Option<HashSet<(u32, Entity)>>,
}

impl EntityCut {
    /// No records yet after the epoch `committed`, after which entities have these histories.
    pub fn new(
        limits: EntityLimits,
        committed: u64,
        histories: impl IntoIterator<Item = (Entity, EntityHistory)>,
    ) -> Self {
        EntityCut {
            limits,
            histories: histories.into_iter().collect(),
            open: BTreeMap::new(),
            committed,
            counted: committed,
            recent: Recent::default(),
            kept: 0,
            keys: None,
        }
    }

    /// Counts the entities of each key from here on, which needs memory for them.
    pub(super) fn count_keys(&mut self) {
        self.keys = Some(HashSet::new());
    }

    /// Returns the number of different entities with a record of a key that counts, by key, in all
    /// epochs; `None` if they are not counted.
    pub fn entities_of_keys(&self) -> Option<HashMap<u32, u64>> {
        let mut numbers = HashMap::new();
        for (key, _) in self.with_open().keys? {
            *numbers.entry(key).or_default() += 1;
        }
        Some(numbers)
    }

    /// Goes on from a judge that has counted the records of the epochs up to `counted`.
    pub(super) fn resume(self, recent: Recent<Share>, counted: u64) -> Self {
        EntityCut { recent: recent.resume(), counted: counted.max(self.committed), ..self }
    }

    /// Returns the state of closed epochs.
    pub(super) fn state(&self) -> Recent<Share> {
        self.recent
    }

    /// Adds records, except those of published epochs, which a resumed run may read again.
    pub fn add(&mut self, records: &Records) {
        let by_key = self.limits.several == RepeatPolicy::Average;
        let mut entities = records.entities.iter().zip(&records.keys);
        for run in records.epochs.chunk_by(|one, next| one == next) {
            let entities = entities.by_ref().take(run.len());
            if run[0] <= self.committed {
                entities.for_each(drop);
                continue;
            }
            let open = self.open.entry(run[0]).or_default();
            for (&entity, &key) in entities {
                let (records, keys) = open.entry(entity).or_default();
                *records += 1;
                let counts = self.keys.is_some() && *records <= self.limits.records_per_epoch.into();
                if !by_key && !counts {
                    continue;
                }
                match keys.iter_mut().find(|(own, _)| *own == key) {
                    Some((_, count)) => *count += 1,
                    None => keys.push((key, 1)),
                }
            }
        }
    }

    /// Applies the limits to the epochs up to `last`, which get no more records.
    pub fn close(&mut self, last: u64) {
        let later = self.open.split_off(&last.saturating_add(1));
        let mut closed = self.recent.closed;
        for (epoch, entities) in std::mem::replace(&mut self.open, later) {
            for (entity, (records, keys)) in entities {
                let admitted = self.limits.admit(self.histories.get(&entity).copied(), epoch);
                let most = admitted.map_or(0, |_| self.limits.records_per_epoch);
                let (kept, counting) = match self.limits.several {
                    RepeatPolicy::Keep => (records.min(most.into()), records.min(most.into())),
                    // All records of a kept key count in its mean.
                    RepeatPolicy::Average => {
                        let keys = &keys[..keys.len().min(most as usize)];
                        (keys.iter().map(|&(_, count)| count).sum(), keys.len() as u64)
                    }
                };
                self.kept += counting;
                if let Some(counted) = &mut self.keys {
                    counted.extend(keys.iter().take(most as usize).map(|&(key, _)| (key, entity)));
                }
                if epoch > self.counted {
                    closed.add(Share { all: records, bad: records - kept });
                }
                if let Some(history) = admitted {
                    self.histories.insert(entity, history);
                }
            }
        }
        self.counted = self.counted.max(last);
        self.recent.close(closed);
    }

    /// Returns the number of records left out of all epochs, the open ones too.
    pub fn left_out(&self) -> u64 {
        self.with_open().recent.closed.bad
    }

    /// Returns what counts in all epochs, the open ones too: the records within the limits, or
    /// their means by [`RepeatPolicy::Average`].
    pub fn counting(&self) -> u64 {
        self.with_open().kept
    }

    /// Returns the problem of limits that leave out most of all records so far, if they do.
    pub fn problem(&self) -> Option<Problem> {
        let all = self.with_open().recent.closed;
        (all.all >= LEAST_RECORDS && all.is_mostly_bad()).then(problem)
    }

    /// Notes that all records of closed epochs are judged.
    pub(super) fn set_judged(&mut self) {
        self.recent.set_judged();
    }

    /// Judges the records that are due.
    pub(super) fn judge(&mut self, steps: u64) -> Option<Problem> {
        self.recent.judge(steps).then(problem)
    }

    /// Closes all epochs.
    fn with_open(&self) -> Self {
        let mut all = self.clone();
        all.close(u64::MAX);
        all
    }
}

fn problem() -> Problem {
    let message = "the limits of entities leave out most records, which don't count: raise participations or \
        records_per_epoch in [entity], or lengthen epochs";
    Problem::new("entity limits", false, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entity 1: three records in epoch 1, one in 2 (too soon), one in 3, one in 5 (spent).
    const ROWS: [(u64, u128, u32); 7] =
        [(1, 1, 0), (1, 1, 1), (1, 1, 0), (2, 1, 0), (3, 1, 0), (5, 1, 0), (2, 2, 0)];

    fn records(rows: &[(u64, u128, u32)]) -> Records {
        Records {
            keys: rows.iter().map(|row| row.2).collect(),
            epochs: rows.iter().map(|row| row.0).collect(),
            entities: rows.iter().map(|row| Entity(row.1)).collect(),
            ..Records::default()
        }
    }

    #[test]
    fn keys_are_counted_with_the_entities_whose_records_count() {
        for (several, most, expected) in [
            (RepeatPolicy::Keep, 1, [(0, 2)].as_slice()),
            (RepeatPolicy::Keep, 2, &[(0, 2), (1, 1)]),
            (RepeatPolicy::Average, 2, &[(0, 2), (1, 1)]),
        ] {
            let limits = EntityLimits { records_per_epoch: most, ..limits(several) };
            let mut cut = EntityCut::new(limits, 0, []);
            assert_eq!(cut.entities_of_keys(), None);
            cut.count_keys();
            cut.add(&records(&ROWS));
            assert_eq!(cut.entities_of_keys(), Some(expected.iter().copied().collect()));
        }
    }

    fn limits(several: RepeatPolicy) -> EntityLimits {
        EntityLimits { participations: 2, min_separation: 2, records_per_epoch: 1, several, sent_limit: None }
    }

    #[test]
    fn records_beyond_the_limits_are_counted() {
        for (several, expected) in [(RepeatPolicy::Keep, 4), (RepeatPolicy::Average, 3)] {
            let mut cut = EntityCut::new(limits(several), 0, []);
            cut.add(&records(&ROWS));
            cut.close(2);
            // One record or mean in epochs 1 and 3, and one of entity 2.
            assert_eq!((cut.left_out(), cut.counting()), (expected, 3));
        }
    }

    /// A judge that resumes has the histories of the published epochs, and counts no record twice.
    #[test]
    fn a_resumed_cut_counts_the_same() {
        let mut whole = EntityCut::new(limits(RepeatPolicy::Keep), 0, []);
        whole.add(&records(&ROWS));
        whole.close(1);
        let history = EntityHistory { participations: 1, last: 1 };
        // The judge has counted epoch 2, which is not published.
        let mut judged = whole.clone();
        judged.close(2);
        let mut resumed =
            EntityCut::new(limits(RepeatPolicy::Keep), 1, [(Entity(1), history)]).resume(judged.state(), 2);
        resumed.add(&records(&ROWS));
        let closed = |cut: &EntityCut| cut.with_open().recent.closed;
        assert_eq!(closed(&resumed), closed(&whole));
        assert_eq!(closed(&resumed), Share { all: 7, bad: 4 });
    }
}
