//! Per-epoch buffer: keeps the records of each entity that may count, however many arrive.

use super::{BoundSetup, ByEntity, Entity, EntityLimits, RepeatPolicy};
use std::collections::BTreeMap;
use zeroize::{Zeroize, Zeroizing};

/// Buffered records of one epoch. The contents do not depend on the order of arrival.
pub(super) enum EpochBuffer {
    First(FirstRecords),
    Means(KeyMeans),
}

impl EpochBuffer {
    /// Returns an empty buffer with room for the expected number of entities.
    pub(super) fn new(setup: &BoundSetup, expected: usize) -> Self {
        let BoundSetup { limits, by_column, dimension, .. } = *setup;
        let needed = if by_column { 0 } else { dimension };
        match limits.repeat_policy {
            RepeatPolicy::Keep => Self::First(FirstRecords::new(limits, setup.columns.len(), expected)),
            RepeatPolicy::Average => Self::Means(KeyMeans { limits, needed, entities: table(expected) }),
        }
    }

    /// Adds a record of `entity`; `position` is its position in the stream.
    pub(super) fn add(
        &mut self,
        entity: Entity,
        position: u64,
        key: u32,
        row: &[f64],
        bounds: &[(f64, f64)],
    ) {
        match self {
            Self::First(first) => first.add(entity, position, key, row),
            Self::Means(means) => means.add(entity, position, key, row, bounds),
        }
    }

    pub(super) fn close(self) -> ClosedBuffer {
        match self {
            Self::First(FirstRecords { limits, slots, values, entities }) => {
                let (entities, chains) = in_order(entities, |chain| chain);
                ClosedBuffer { limits, entities, records: ClosedRecords::First { chains, slots, values } }
            }
            Self::Means(KeyMeans { limits, entities, .. }) => {
                let (entities, mut sums) = in_order(entities, |sums| sums);
                sums.iter_mut().for_each(|keys| keys.sort_by_key(|sum| sum.first));
                ClosedBuffer { limits, entities, records: ClosedRecords::Means(sums) }
            }
        }
    }
}

/// The buffered records of a closed epoch, by ascending entity.
#[derive(Clone)]
pub(super) struct ClosedBuffer {
    limits: EntityLimits,
    entities: Vec<Entity>,
    records: ClosedRecords,
}

#[derive(Clone)]
enum ClosedRecords {
    /// The records of each entity.
    First { chains: Vec<Chain>, slots: Vec<BufferedRecord>, values: Zeroizing<Vec<f64>> },
    /// The sums of each entity's keys, in the order of their first records.
    Means(Vec<Vec<KeySum>>),
}

impl ClosedBuffer {
    /// All entities with buffered records, ascending.
    pub(super) fn entities(&self) -> &[Entity] {
        &self.entities
    }

    /// Passes position, key and values of every record of the admitted entities to a callback. A
    /// mean has the position of its first record. Admitted entities must ascend.
    pub(super) fn for_each(
        &self,
        admitted: &[Entity],
        bounds: &[(f64, f64)],
        mut give: impl FnMut(u64, u32, &[f64]),
    ) {
        let admitted = common(&self.entities, admitted);
        let most = self.limits.records_per_epoch;
        match &self.records {
            ClosedRecords::First { chains, slots, values } => {
                let pass = marked_first(admitted.map(|at| &chains[at]), slots, most);
                let rows = values.chunks_exact(bounds.len());
                let passed = slots.iter().zip(rows).zip(pass).filter(|(_, pass)| *pass);
                passed.for_each(|((slot, row), _)| give(slot.position, slot.key, row));
            }
            ClosedRecords::Means(sums) => {
                admitted.for_each(|at| give_means(&sums[at], most, bounds, &mut give))
            }
        }
    }

    /// Returns the number of records that the admitted entities sent, by key: at most `sent_limit`
    /// of each entity. With [`RepeatPolicy::Average`], all records of an entity under one key count
    /// as one. Empty without that limit.
    pub(super) fn sent(&self, admitted: &[Entity]) -> BTreeMap<u32, u64> {
        let mut sent = BTreeMap::new();
        let Some(most) = self.limits.sent_limit else { return sent };
        let admitted = common(&self.entities, admitted);
        let mut count = |key: u32| *sent.entry(key).or_default() += 1;
        match &self.records {
            ClosedRecords::First { chains, slots, .. } => {
                let is_sent = marked_first(admitted.map(|at| &chains[at]), slots, most.get());
                slots.iter().zip(is_sent).filter(|(_, sent)| *sent).for_each(|(slot, _)| count(slot.key));
            }
            ClosedRecords::Means(sums) => {
                let keys = admitted.flat_map(|at| sums[at].iter().take(most.get() as usize));
                keys.for_each(|sum| count(sum.key));
            }
        }
        sent
    }
}

impl ClosedBuffer {
    /// Returns each pair of a key and an entity that has records of the key that pass, once, in any
    /// order.
    pub(super) fn key_entities(&self, admitted: &[Entity]) -> Vec<(u32, Entity)> {
        let most = self.limits.records_per_epoch;
        let mut pairs = Vec::with_capacity(admitted.len());
        for at in common(&self.entities, admitted) {
            let (entity, first) = (self.entities[at], pairs.len());
            match &self.records {
                ClosedRecords::First { chains, slots, .. } => {
                    let Chain { latest, length } = chains[at];
                    let mut before = latest.map(|slot| &slots[slot as usize]);
                    // Latest first: those beyond the limit come before the ones that pass.
                    for left in (1..=length).rev() {
                        let Some(slot) = before else { break };
                        if left <= most {
                            pairs.push((slot.key, entity));
                        }
                        before = slot.before.map(|slot| &slots[slot as usize]);
                    }
                }
                ClosedRecords::Means(sums) => {
                    pairs.extend(sums[at].iter().take(most as usize).map(|sum| (sum.key, entity)));
                }
            }
            pairs[first..].sort_unstable();
        }
        pairs.dedup();
        pairs
    }
}

fn in_order<T, U>(table: ByEntity<T>, mut value: impl FnMut(T) -> U) -> (Vec<Entity>, Vec<U>) {
    let mut order: Vec<_> = table.into_iter().map(|(entity, entry)| (entity, value(entry))).collect();
    order.sort_unstable_by_key(|(entity, _)| *entity);
    order.into_iter().unzip()
}

/// Indices in `all` of the entities of `some`; both must ascend.
fn common(all: &[Entity], some: &[Entity]) -> impl Iterator<Item = usize> {
    let mut some = some.iter().peekable();
    all.iter().enumerate().filter_map(move |(at, entity)| {
        while some.next_if(|other| *other < entity).is_some() {}
        some.next_if_eq(&entity).map(|_| at)
    })
}

/// Marks the slots of the first records of these chains, at most `most` of each, so that slots can
/// be read in memory order.
fn marked_first<'a>(
    chains: impl Iterator<Item = &'a Chain>,
    slots: &[BufferedRecord],
    most: u32,
) -> Vec<bool> {
    let mut marked = vec![false; slots.len()];
    for &Chain { mut latest, length } in chains {
        let mut left = length;
        while let Some(slot) = latest.map(|slot| slot as usize) {
            marked[slot] = left <= most;
            left -= 1;
            latest = slots[slot].before;
        }
    }
    marked
}

/// The first records of every entity. A later record is dropped at once, so a heavy contributor
/// takes no more room than another.
pub(super) struct FirstRecords {
    limits: EntityLimits,
    slots: Vec<BufferedRecord>,
    values: Zeroizing<Vec<f64>>,
    entities: ByEntity<Chain>,
}

/// A record and a link to the previous one of the same entity.
#[derive(Clone)]
struct BufferedRecord {
    position: u64,
    key: u32,
    before: Option<u32>,
}

/// The records of an entity, latest first.
#[derive(Clone, Copy, Default)]
struct Chain {
    latest: Option<u32>,
    length: u32,
}

impl FirstRecords {
    fn new(limits: EntityLimits, columns: usize, expected: usize) -> Self {
        Self {
            limits,
            slots: Vec::with_capacity(expected),
            values: Zeroizing::new(Vec::with_capacity(expected * columns)),
            entities: table(expected),
        }
    }

    fn add(&mut self, entity: Entity, position: u64, key: u32, row: &[f64]) {
        let Self { limits, slots, values, entities } = self;
        let most = limits.buffered_records();
        let chain = entities.entry(entity).or_default();
        let slot = match chain.latest {
            _ if chain.length < most => {
                chain.length += 1;
                slots.push(BufferedRecord { position, key, before: None });
                values.extend_from_slice(row);
                slots.len() - 1
            }
            Some(latest) if position < slots[latest as usize].position => {
                let latest = latest as usize;
                chain.latest = slots[latest].before;
                slots[latest] = BufferedRecord { position, key, before: None };
                values[latest * row.len()..][..row.len()].copy_from_slice(row);
                latest
            }
            _ => return,
        };
        let mut behind: Option<u32> = None;
        let mut before = chain.latest;
        while let Some(next) = before.filter(|&next| slots[next as usize].position > position) {
            (behind, before) = (before, slots[next as usize].before);
        }
        slots[slot].before = before;
        let link = behind.map_or(&mut chain.latest, |behind| &mut slots[behind as usize].before);
        *link = Some(slot as u32);
    }
}

/// Fractions of a column's range have units of 2⁻⁵².
const FRACTION: f64 = (1_u64 << 52) as f64;

/// The means of each entity's records under each key. Each value is clamped to its bounds and
/// counted as an integer fraction of their range, so means do not depend on the order of records.
pub(super) struct KeyMeans {
    limits: EntityLimits,
    /// Number of leading values of a record. If one of them is missing, the record counts in no
    /// mean.
    needed: usize,
    entities: ByEntity<Vec<KeySum>>,
}

/// The records of an entity under one key.
#[derive(Clone)]
struct KeySum {
    key: u32,
    /// Position of the first record.
    first: u64,
    /// Number of records that count for each column, and their sums.
    counts: Vec<u64>,
    sums: Vec<u128>,
}

impl KeyMeans {
    fn add(&mut self, entity: Entity, position: u64, key: u32, row: &[f64], bounds: &[(f64, f64)]) {
        let keys = self.entities.entry(entity).or_default();
        let at = keys.iter().position(|sum| sum.key == key).unwrap_or_else(|| {
            keys.push(KeySum { key, first: position, counts: vec![0; row.len()], sums: vec![0; row.len()] });
            keys.len() - 1
        });
        let sum = &mut keys[at];
        sum.first = sum.first.min(position);
        if !row.iter().take(self.needed).all(|value| value.is_finite()) {
            return;
        }
        let columns = sum.counts.iter_mut().zip(&mut sum.sums).zip(row).zip(bounds);
        for (((count, sum), &value), &(lower, upper)) in columns.filter(|((_, value), _)| value.is_finite()) {
            let fraction = (value.clamp(lower, upper) - lower) / (upper - lower);
            *count += 1;
            *sum += (fraction * FRACTION).round() as u128;
        }
    }
}

/// Passes on the means of the first keys.
fn give_means(keys: &[KeySum], most: u32, bounds: &[(f64, f64)], give: &mut impl FnMut(u64, u32, &[f64])) {
    for sum in keys.iter().take(most as usize) {
        let mut mean = sum.mean(bounds);
        give(sum.first, sum.key, &mean);
        mean.zeroize();
    }
}

impl KeySum {
    /// Returns the mean of each column, NaN if no record counts for it. A row of NaN alone counts
    /// as one unusable record.
    fn mean(&self, bounds: &[(f64, f64)]) -> Vec<f64> {
        let mean = |((&sum, &count), &(lower, upper)): ((&u128, &u64), &(f64, f64))| {
            let fraction = sum as f64 / count as f64 / FRACTION;
            lower + (upper - lower) * fraction
        };
        self.sums.iter().zip(&self.counts).zip(bounds).map(mean).collect()
    }
}

impl Drop for KeySum {
    fn drop(&mut self) {
        self.sums.zeroize();
        self.counts.zeroize();
    }
}

fn table<T>(expected: usize) -> ByEntity<T> {
    ByEntity::with_capacity_and_hasher(expected, Default::default())
}

#[cfg(test)]
mod tests {
    use super::super::EntityLimits;
    use super::*;
    use proptest::prelude::*;
    use std::num::NonZeroU32;
    use std::sync::Arc;

    fn setup(limits: EntityLimits, columns: &[(f64, f64)], by_column: bool) -> BoundSetup {
        let (histories, dimension) = (Arc::default(), columns.len());
        BoundSetup {
            limits,
            discovers: true,
            by_column,
            dimension,
            columns: columns.into(),
            histories,
            first_epoch: 1,
        }
    }

    fn limits(most: u32, repeat_policy: RepeatPolicy) -> EntityLimits {
        EntityLimits { records_per_epoch: most, repeat_policy, ..EntityLimits::LEAST }
    }

    fn passed(limits: EntityLimits, records: &[(u8, u64, u32, f64)]) -> Vec<(u128, u32, u64)> {
        let bounds = [(0.0, 8.0)];
        let mut buffer = EpochBuffer::new(&setup(limits, &bounds, false), 0);
        for &(entity, position, key, value) in records {
            buffer.add(Entity(entity.into()), position, key, &[value], &bounds);
        }
        let closed = buffer.close();
        let mut passed = Vec::new();
        for entity in closed.entities() {
            // With another entity that has no records.
            let admitted = [*entity, Entity(u128::MAX)];
            closed.for_each(&admitted, &bounds, |_, key, row| passed.push((entity.0, key, row[0].to_bits())));
        }
        passed.sort();
        passed
    }

    #[test]
    fn sent_records_are_the_first_ones_of_admitted_entities() {
        let records = [(1, 5, 7), (1, 9, 8), (1, 6, 7), (2, 7, 8), (1, 4, 9), (3, 8, 9)];
        let sent = |repeat_policy, most| {
            let limits = EntityLimits { sent_limit: NonZeroU32::new(most), ..limits(1, repeat_policy) };
            let mut buffer = EpochBuffer::new(&setup(limits, &[(0.0, 1.0)], false), 0);
            for (entity, position, key) in records {
                buffer.add(Entity(entity), position, key, &[0.5], &[(0.0, 1.0)]);
            }
            buffer.close().sent(&[Entity(1), Entity(2)]).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(sent(RepeatPolicy::Keep, 0), []);
        assert_eq!(sent(RepeatPolicy::Keep, 2), [(7, 1), (8, 1), (9, 1)]);
        assert_eq!(sent(RepeatPolicy::Keep, 3), [(7, 2), (8, 1), (9, 1)]);
        assert_eq!(sent(RepeatPolicy::Keep, 9), [(7, 2), (8, 2), (9, 1)]);
        // All records of a key count as one.
        assert_eq!(sent(RepeatPolicy::Average, 2), [(7, 1), (8, 1), (9, 1)]);
        assert_eq!(sent(RepeatPolicy::Average, 9), [(7, 1), (8, 2), (9, 1)]);
    }

    #[test]
    fn entities_are_listed_once_with_each_key_of_records_that_pass() {
        let records = [(1, 5, 7), (1, 9, 8), (1, 6, 7), (2, 7, 8), (1, 4, 9), (3, 8, 9)];
        let listed = |several, most| {
            let limits = limits(most, several);
            let mut buffer = EpochBuffer::new(&setup(limits, &[(0.0, 1.0)], false), 0);
            for (entity, position, key) in records {
                buffer.add(Entity(entity), position, key, &[0.5], &[(0.0, 1.0)]);
            }
            let mut pairs = buffer.close().key_entities(&[Entity(1), Entity(2)]);
            pairs.sort_unstable();
            pairs.into_iter().map(|(key, Entity(entity))| (key, entity)).collect::<Vec<_>>()
        };
        assert_eq!(listed(RepeatPolicy::Keep, 1), [(8, 2), (9, 1)]);
        assert_eq!(listed(RepeatPolicy::Keep, 3), [(7, 1), (8, 2), (9, 1)]);
        assert_eq!(listed(RepeatPolicy::Keep, 4), [(7, 1), (8, 1), (8, 2), (9, 1)]);
        assert_eq!(listed(RepeatPolicy::Average, 2), [(7, 1), (8, 2), (9, 1)]);
    }

    #[test]
    fn keys_with_the_first_records_keep_their_means() {
        let records = [(1, 5, 7, 1.0), (1, 9, 8, 4.0), (1, 6, 7, 99.0), (2, 7, 8, f64::NAN), (1, 4, 9, 8.0)];
        let passed = passed(limits(2, RepeatPolicy::Average), &records);
        let value = |at: usize| f64::from_bits(passed[at].2);
        assert_eq!((passed[0].0, passed[0].1, value(0)), (1, 7, 4.5), "of 1 and the bound 8");
        assert_eq!((passed[1].0, passed[1].1, value(1)), (1, 9, 8.0));
        assert_eq!((passed.len(), passed[2].0), (3, 2));
        assert!(value(2).is_nan());
    }

    #[test]
    fn means_by_column_use_the_records_that_have_the_column() {
        let bounds = [(0.0, 8.0); 3];
        let rows = [[1.0, f64::NAN, f64::NAN], [3.0, 99.0, f64::NAN]];
        for (by_column, expected) in [(true, [2.0, 8.0]), (false, [f64::NAN; 2])] {
            let mut buffer =
                EpochBuffer::new(&setup(limits(1, RepeatPolicy::Average), &bounds, by_column), 0);
            let rows = rows.iter().zip(0..);
            rows.for_each(|(row, position)| buffer.add(Entity(1), position, 0, row, &bounds));
            let mut passed = Vec::new();
            buffer.close().for_each(&[Entity(1)], &bounds, |_, _, row| passed.push(row.to_vec()));
            let [row] = &passed[..] else { panic!("one mean") };
            // The sign of a NaN means nothing.
            let same =
                |(mean, expected): (&f64, f64)| *mean == expected || (mean.is_nan() && expected.is_nan());
            assert!(row.iter().zip([expected[0], expected[1], f64::NAN]).all(same), "{row:?}");
        }
    }

    proptest! {
        #[test]
        fn the_first_records_are_kept_in_any_order_of_arrival(
            records in prop::collection::vec((0..4_u8, 0..3_u32, 0..8_u8), 0..40),
            most in 1..4_u32,
            rotation in 0..40_usize,
        ) {
            let in_order: Vec<_> = records.iter().zip(0..)
                .map(|(&(entity, key, value), position)| (entity, position, key, f64::from(value))).collect();
            let mut expected = Vec::new();
            for entity in 0..4 {
                let first = in_order.iter().filter(|record| record.0 == entity).take(most as usize);
                expected.extend(first.map(|record| (u128::from(record.0), record.2, record.3.to_bits())));
            }
            expected.sort();
            let mut reordered = in_order.clone();
            reordered.rotate_left(rotation.min(in_order.len()));
            reordered.chunks_mut(3).for_each(<[_]>::reverse);
            prop_assert_eq!(passed(limits(most, RepeatPolicy::Keep), &reordered), expected);
            let average = limits(most, RepeatPolicy::Average);
            prop_assert_eq!(passed(average, &reordered), passed(average, &in_order));
        }
    }
}
