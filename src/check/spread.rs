//! The records of each entity in each epoch, and what limits would keep of them.
//!
//! An operator who chooses limits needs to know what they cut. The spread is private, as all exact
//! counts are.

use std::collections::BTreeMap;

use hushflow_operators::{ByEntity, Records, RepeatPolicy};

/// The records of entities by epoch, and by key in the order of the keys' first records. Private.
#[derive(Clone, Default)]
pub struct EntitySpread {
    epochs: ByEntity<BTreeMap<u64, Vec<(u32, u64)>>>,
}

impl EntitySpread {
    /// Adds records.
    pub fn add(&mut self, records: &Records) {
        let rows = records.entities.iter().zip(records.epochs.iter().zip(&records.keys));
        for (&entity, (&epoch, &key)) in rows {
            let keys = self.epochs.entry(entity).or_default().entry(epoch).or_default();
            match keys.iter_mut().find(|(own, _)| *own == key) {
                Some((_, count)) => *count += 1,
                None => keys.push((key, 1)),
            }
        }
    }

    /// Returns the number of records that count if each entity has at most `most` records in an
    /// epoch (or means, by [`RepeatPolicy::Average`]) and takes part in `participations` epochs.
    pub fn kept(&self, repeat_policy: RepeatPolicy, most: u64, participations: u64) -> u64 {
        let of_epoch = |keys: &Vec<(u32, u64)>| -> u64 {
            let counts = keys.iter().map(|&(_, count)| count);
            match repeat_policy {
                RepeatPolicy::Keep => counts.sum::<u64>().min(most),
                // All records of a kept key count in its mean.
                RepeatPolicy::Average => counts.take(usize::try_from(most).unwrap_or(usize::MAX)).sum(),
            }
        };
        let epochs = usize::try_from(participations).unwrap_or(usize::MAX);
        self.epochs.values().flat_map(|own| own.values().take(epochs)).map(of_epoch).sum()
    }

    /// Returns the least number of records in an epoch that keeps nine tenths of all records,
    /// rounded up to one digit; at least 1.
    pub fn sufficient_records(&self, repeat_policy: RepeatPolicy) -> u64 {
        nine_tenths(|most| self.kept(repeat_policy, most, u64::MAX))
    }

    /// Returns the least number of participations that keeps nine tenths of the records that count
    /// with at most `most` in an epoch, rounded up to one digit; at least 1.
    pub fn sufficient_participations(&self, repeat_policy: RepeatPolicy, most: u64) -> u64 {
        nine_tenths(|epochs| self.kept(repeat_policy, most, epochs))
    }
}

/// Returns the least limit that keeps nine tenths of what no limit keeps, rounded up to one digit.
fn nine_tenths(kept: impl Fn(u64) -> u64) -> u64 {
    let all = kept(u64::MAX);
    let is_enough = |limit| kept(limit).saturating_mul(10) >= all.saturating_mul(9);
    let mut high = 1;
    while !is_enough(high) {
        high *= 2;
    }
    let mut low = high / 2 + 1;
    while low < high {
        let middle = low + (high - low) / 2;
        if is_enough(middle) { high = middle } else { low = middle + 1 }
    }
    let step = 10u64.pow(low.ilog10());
    low.div_ceil(step) * step
}

#[cfg(test)]
mod tests {
    use super::*;
    use hushflow_operators::Entity;

    /// Ten entities with 13 records in each of 12 epochs, of two keys by turns.
    fn spread() -> EntitySpread {
        let mut spread = EntitySpread::default();
        let rows = (0..10).flat_map(|entity| {
            (1..=12).flat_map(move |epoch| (0..13).map(move |row| (Entity(entity), epoch, row % 2)))
        });
        let rows: Vec<_> = rows.collect();
        spread.add(&Records {
            keys: rows.iter().map(|row| row.2).collect(),
            epochs: rows.iter().map(|row| row.1).collect(),
            entities: rows.iter().map(|row| row.0).collect(),
            ..Records::default()
        });
        spread
    }

    #[test]
    fn limits_keep_what_they_say() {
        let spread = spread();
        for (repeat_policy, most, participations, expected) in [
            (RepeatPolicy::Keep, 13, 12, 1560),
            (RepeatPolicy::Keep, 2, 12, 240),
            (RepeatPolicy::Keep, 20, 3, 390),
            (RepeatPolicy::Average, 1, 12, 840),
            (RepeatPolicy::Average, 2, 1, 130),
        ] {
            assert_eq!(spread.kept(repeat_policy, most, participations), expected);
        }
    }

    #[test]
    fn sufficient_limits_keep_nine_tenths() {
        let spread = spread();
        // 12 of 13 records are nine tenths; 11 of 12 epochs too.
        assert_eq!(spread.sufficient_records(RepeatPolicy::Keep), 20);
        assert_eq!(spread.sufficient_records(RepeatPolicy::Average), 2);
        assert_eq!(spread.sufficient_participations(RepeatPolicy::Keep, 1), 20);
        assert_eq!(EntitySpread::default().sufficient_records(RepeatPolicy::Keep), 1);
    }
}
