//! Counts the records that the limits of entities leave out.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use hushflow_operators::{ByEntity, Entity, EntityHistory, EntityLimits, Records, RepeatPolicy};

use super::Problem;
use super::recent::{Recent, Share, Tally};

/// Minimum number of records whose share is judged.
const LEAST_RECORDS: u64 = 20;

/// The records of an entity in an epoch.
#[derive(Clone, Default)]
struct EntityRecords {
    all: u64,
    /// The number of each key, if keys count, in the order of their first records.
    keys: Vec<(u32, u64)>,
    /// The pairs (item, column) with a value. An item is what may count: a record, or a key with
    /// the mean of its records.
    values: BTreeSet<(u32, u32)>,
}

/// The records that go beyond what their entities may contribute. Private.
#[derive(Clone)]
pub struct EntityCut {
    limits: EntityLimits,
    histories: ByEntity<EntityHistory>,
    /// The records of open epochs by entity.
    open: BTreeMap<u64, ByEntity<EntityRecords>>,
    /// The last epoch that is published, and the last one whose records are counted.
    committed: u64,
    counted: u64,
    /// The records of closed epochs, and those that are left out.
    recent: Recent<Share>,
    /// Number of records of closed epochs that count: kept records, or their means.
    kept: u64,
    /// The same by epoch, and the values of each column among these; empty unless they are counted.
    by_epoch: BTreeMap<u64, u64>,
    values: Vec<u64>,
    /// The keys of what counts in closed epochs, each with its entities, if they are asked for.
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
            by_epoch: BTreeMap::new(),
            values: Vec::new(),
            keys: None,
        }
    }

    /// Also tallies the records or means that count in each epoch, and their values in each of the
    /// first `columns` columns.
    pub(super) fn count_values(&mut self, columns: usize) {
        self.values = vec![0; columns];
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
        let by_key = self.limits.repeat_policy == RepeatPolicy::Average;
        let most = self.limits.records_per_epoch;
        let width = records.values.len() / records.len().max(1);
        let values = |row: usize| records.values[row * width..][..width].iter().take(self.values.len());
        let mut entities = records.entities.iter().zip(&records.keys).enumerate();
        for run in records.epochs.chunk_by(|one, next| one == next) {
            let entities = entities.by_ref().take(run.len());
            if run[0] <= self.committed {
                entities.for_each(drop);
                continue;
            }
            let open = self.open.entry(run[0]).or_default();
            for (row, (&entity, &key)) in entities {
                let own = open.entry(entity).or_default();
                let number = match own.keys.iter().position(|(own, _)| *own == key) {
                    _ if !by_key => own.all,
                    Some(at) => at as u64,
                    None => own.keys.len() as u64,
                };
                own.all += 1;
                if by_key || self.keys.is_some() && own.all <= most.into() {
                    match own.keys.iter_mut().find(|(own, _)| *own == key) {
                        Some((_, count)) => *count += 1,
                        None => own.keys.push((key, 1)),
                    }
                }
                if let Some(number) = u32::try_from(number).ok().filter(|&number| number < most) {
                    let present = (0..).zip(values(row)).filter(|(_, value)| !value.is_nan());
                    own.values.extend(present.map(|(column, _)| (number, column)));
                }
            }
        }
    }

    /// Applies the limits to the epochs up to `last`, which get no more records.
    pub fn close(&mut self, last: u64) {
        let later = self.open.split_off(&last.saturating_add(1));
        let mut closed = self.recent.closed;
        for (epoch, entities) in std::mem::replace(&mut self.open, later) {
            for (entity, EntityRecords { all: records, keys, values }) in entities {
                let admitted = self.limits.admit(self.histories.get(&entity).copied(), epoch);
                let most = admitted.map_or(0, |_| self.limits.records_per_epoch);
                let (kept, counting) = match self.limits.repeat_policy {
                    RepeatPolicy::Keep => (records.min(most.into()), records.min(most.into())),
                    // All records of a kept key count in its mean.
                    RepeatPolicy::Average => {
                        let keys = &keys[..keys.len().min(most as usize)];
                        (keys.iter().map(|&(_, count)| count).sum(), keys.len() as u64)
                    }
                };
                self.kept += counting;
                if !self.values.is_empty() {
                    *self.by_epoch.entry(epoch).or_default() += counting;
                }
                for (_, column) in values.into_iter().filter(|_| admitted.is_some()) {
                    self.values[column as usize] += 1;
                }
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

    /// Returns the same by epoch; nothing unless it is counted.
    pub fn counting_by_epoch(&self) -> BTreeMap<u64, u64> {
        self.with_open().by_epoch
    }

    /// Returns the values of each column among [`counting`](Self::counting); none unless they are
    /// counted.
    pub fn values(&self) -> Vec<u64> {
        self.with_open().values
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

    /// Returns a copy in which all epochs are closed.
    fn with_open(&self) -> Self {
        let mut all = self.clone();
        all.close(u64::MAX);
        all
    }
}

/// The problem of limits that leave out most records.
pub(super) const ENTITY_LIMITS: &str = "entity limits";

fn problem() -> Problem {
    let message = "the limits of entities leave out most records, which don't count: raise participations or \
        records_per_epoch in [entity], or lengthen epochs";
    Problem::new(ENTITY_LIMITS, false, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entity 1: three records in epoch 1, one in 2 (too soon), one in 3, one in 5 (spent).
    const ROWS: [(u64, u128, u32); 7] =
        [(1, 1, 0), (1, 1, 1), (1, 1, 0), (2, 1, 0), (3, 1, 0), (5, 1, 0), (2, 2, 0)];

    /// The second column has a value in every other row.
    fn records(rows: &[(u64, u128, u32)]) -> Records {
        let values = (0..rows.len()).flat_map(|row| [1.0, if row % 2 == 0 { f64::NAN } else { 2.0 }]);
        Records {
            keys: rows.iter().map(|row| row.2).collect(),
            epochs: rows.iter().map(|row| row.0).collect(),
            entities: rows.iter().map(|row| Entity(row.1)).collect(),
            values: values.collect(),
            ..Records::default()
        }
    }

    #[test]
    fn keys_are_counted_with_the_entities_whose_records_count() {
        for (policy, most, expected) in [
            (RepeatPolicy::Keep, 1, [(0, 2)].as_slice()),
            (RepeatPolicy::Keep, 2, &[(0, 2), (1, 1)]),
            (RepeatPolicy::Average, 2, &[(0, 2), (1, 1)]),
        ] {
            let limits = EntityLimits { records_per_epoch: most, ..limits(policy) };
            let mut cut = EntityCut::new(limits, 0, []);
            assert_eq!(cut.entities_of_keys(), None);
            cut.count_keys();
            cut.add(&records(&ROWS));
            assert_eq!(cut.entities_of_keys(), Some(expected.iter().copied().collect()));
        }
    }

    fn limits(repeat_policy: RepeatPolicy) -> EntityLimits {
        EntityLimits {
            participations: 2,
            min_separation: 2,
            records_per_epoch: 1,
            repeat_policy,
            sent_limit: None,
        }
    }

    #[test]
    fn records_beyond_the_limits_are_counted() {
        for (repeat_policy, expected) in [(RepeatPolicy::Keep, 4), (RepeatPolicy::Average, 3)] {
            let mut cut = EntityCut::new(limits(repeat_policy), 0, []);
            cut.add(&records(&ROWS));
            cut.close(2);
            // One record or mean in epochs 1 and 3, and one of entity 2.
            assert_eq!((cut.left_out(), cut.counting(), cut.values().len()), (expected, 3, 0));
        }
    }

    /// One record or one key of each entity and epoch are those of rows 0, 4 and 6, and of row 2 in
    /// the same mean as row 0: none has a value of the second column. Two of them include row 1,
    /// which has one.
    #[test]
    fn values_are_those_of_what_counts() {
        for (several, most, expected) in [
            (RepeatPolicy::Keep, 1, [3, 0]),
            (RepeatPolicy::Average, 1, [3, 0]),
            (RepeatPolicy::Keep, 2, [4, 1]),
            (RepeatPolicy::Average, 2, [4, 1]),
        ] {
            let limits = EntityLimits { records_per_epoch: most, ..limits(several) };
            let mut cut = EntityCut::new(limits, 0, []);
            cut.count_values(2);
            cut.add(&records(&ROWS));
            assert_eq!(
                (cut.counting(), cut.values()),
                (expected[0], expected.to_vec()),
                "{several:?} {most}"
            );
            let by_epoch = cut.counting_by_epoch();
            assert_eq!((by_epoch.values().sum::<u64>(), by_epoch[&3]), (expected[0], 1));
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
