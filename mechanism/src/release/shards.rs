//! Shards: the coordinates of all keys, cut into units of work and state.

use crate::moments::Layout;
use std::ops::Range;

/// Coordinates whose sums and noise fit the processor's second-level cache.
const NEAR_COORDINATES: u64 = 1 << 14;

/// Coordinates of a shard in [`Shards::of`]: enough that an epoch's fixed work for a shard is small
/// relative to that for its coordinates. The fixed work is a key from the operating system, a first
/// kilobyte of keystream and a message.
const WIDE: u64 = 256;

/// Coordinates of a shard where there are few, so that several workers can share them.
const NARROW: u64 = 16;

/// Maximum number of shards: for few coordinates, and for any number of them.
const FEW_MANY: [u64; 2] = [8, 64];

/// A partition of the coordinates of all keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards {
    coordinates: u64,
    number: u32,
}

impl Shards {
    /// Cuts the coordinates of `keys` keys into at least one and at most `at_most` shards.
    pub fn new(keys: u32, layout: Layout, at_most: u32) -> Self {
        let coordinates = u64::from(keys) * layout.coordinates() as u64;
        let number = coordinates.clamp(1, u64::from(at_most.max(1))) as u32;
        Shards { coordinates, number }
    }

    /// Cuts into as many shards as are efficient: up to eight of 16 coordinates, then up to 64 of
    /// 256.
    pub fn of(keys: u32, layout: Layout) -> Self {
        let coordinates = u64::from(keys) * layout.coordinates() as u64;
        let [few, many] = FEW_MANY;
        let narrow = coordinates.div_ceil(NARROW).min(few);
        let wide = coordinates.div_ceil(WIDE).min(many);
        Shards::new(keys, layout, narrow.max(wide) as u32)
    }

    /// Cuts into at least `least` shards, and into more if needed for a shard to hold at most 2¹⁴
    /// coordinates. Their data then stays in the processor's cache between stages.
    pub fn at_least(keys: u32, layout: Layout, least: u32) -> Self {
        let coordinates = u64::from(keys) * layout.coordinates() as u64;
        let enough = u32::try_from(coordinates.div_ceil(NEAR_COORDINATES)).unwrap_or(u32::MAX);
        Shards::new(keys, layout, least.max(enough))
    }

    /// Number of shards.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Number of coordinates of all keys.
    pub fn coordinates(&self) -> u64 {
        self.coordinates
    }

    /// The coordinates of one shard.
    pub fn range(&self, shard: u32) -> Range<u64> {
        self.begin(shard)..self.begin(shard + 1)
    }

    /// The shard that holds a coordinate.
    pub fn shard_of(&self, coordinate: u64) -> u32 {
        // The last shard that begins at or before the coordinate.
        let product = u128::from(coordinate + 1) * u128::from(self.number) - 1;
        (product / u128::from(self.coordinates.max(1))) as u32
    }

    /// Cuts a run of coordinates at shard boundaries: `(shard, run)` in order.
    pub fn split(&self, run: Range<u64>) -> impl Iterator<Item = (u32, Range<u64>)> + Clone + use<> {
        let shards = *self;
        let mut next = run.start;
        std::iter::from_fn(move || {
            if next >= run.end {
                return None;
            }
            let shard = shards.shard_of(next);
            let piece = next..run.end.min(shards.range(shard).end);
            next = piece.end;
            Some((shard, piece))
        })
    }

    fn begin(&self, shard: u32) -> u64 {
        (u128::from(self.coordinates) * u128::from(shard) / u128::from(self.number)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moments::SecondMoment;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    const LAYOUT: Layout = Layout::new(2, SecondMoment::Full);

    proptest! {
        #[test]
        fn shards_are_a_partition_in_order(keys in 1u32..200, dimension in 1usize..12, at_most in 1u32..100) {
            let shards = Shards::new(keys, Layout::new(dimension, SecondMoment::Full), at_most);
            prop_assert!(shards.number() <= at_most);
            let mut next = 0;
            for shard in 0..shards.number() {
                let range = shards.range(shard);
                prop_assert_eq!(range.start, next);
                prop_assert!(range.end > range.start, "no shard is empty");
                for coordinate in [range.start, range.end - 1] {
                    prop_assert_eq!(shards.shard_of(coordinate), shard);
                }
                next = range.end;
            }
            prop_assert_eq!(next, shards.coordinates());
        }

        #[test]
        fn the_default_shards_are_few_for_few_coordinates(dimension in 1usize..100_000) {
            let shards = Shards::of(1, Layout::new(dimension, SecondMoment::None));
            let (number, coordinates) = (u64::from(shards.number()), shards.coordinates());
            prop_assert!(number <= FEW_MANY[1] && number <= coordinates.div_ceil(NARROW));
            prop_assert!(number <= FEW_MANY[0] || number <= coordinates.div_ceil(WIDE));
            prop_assert!(coordinates < 2 * NARROW || number > 1, "workers can share the coordinates");
        }

        #[test]
        fn shards_are_small_or_few(dimension in 1usize..100_000, least in 1u32..100) {
            let shards = Shards::at_least(1, Layout::new(dimension, SecondMoment::None), least);
            let longest = (0..shards.number()).map(|shard| shards.range(shard)).map(|run| run.end - run.start).max();
            prop_assert!(longest <= Some(NEAR_COORDINATES));
            prop_assert!(u64::from(shards.number()) >= u64::from(least).min(shards.coordinates()));
        }

        #[test]
        fn a_run_is_cut_exactly_at_shard_borders(start in 0u64..500, length in 0u64..500, at_most in 1u32..40) {
            let shards = Shards::new(200, LAYOUT, at_most);
            let run = start..start + length;
            let pieces: Vec<_> = shards.split(run.clone()).collect();
            let mut next = run.start;
            for (shard, piece) in &pieces {
                prop_assert_eq!(piece.start, next);
                let range = shards.range(*shard);
                prop_assert!(range.start <= piece.start && piece.end <= range.end);
                next = piece.end;
            }
            prop_assert_eq!(next, run.end);
            prop_assert!(pieces.windows(2).all(|pair| pair[0].0 < pair[1].0));
        }
    }
}
