//! The release of one shard: `y_t = (C·sums)_t + noise`, in integers.
//!
//! The coordinates of all keys, `keys × Layout::coordinates()` in number and laid end to end, are cut into a fixed
//! number of [`Shards`]: the unit of work and of state. Small keys share a shard, a wide key spans several, and the
//! number of workers does not matter to any of them.
//!
//! A [`ReleaseShard`] draws the noise of an epoch **before** it is given that epoch's sums
//! ([`prepare`](ReleaseShard::prepare)), so the time that the draw takes tells nothing about the data, and draws it once: an
//! epoch that was released can't be released again by the same shard.
//!
//! Privacy: by induction over the epochs. Given everything released before, `y_t` is an integer vector `v_t` that
//! depends on the data, plus independent discrete Gaussians whose parameters do not. Its conditional
//! zero-concentrated loss is `Σ Δv²/(2σ²)` (Canonne, Kamath & Steinke 2020, Thm 14), and along every path these add up to at most
//! the squared joint sensitivity over 2(noise deviation)², also when the stream was chosen after seeing earlier releases,
//! because C is lower triangular (fully adaptive composition: Whitehouse et al. 2023).

use crate::jme::JointMechanism;
use crate::moments::Layout;
use crate::noise::{DiscreteGaussian, EntropyError, NoiseSource};
use crate::strategy::{Encoder, StepError, Strategy};
use std::ops::Range;
use thiserror::Error;
use zeroize::Zeroizing;

/// How the coordinates of all keys are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards {
    coordinates: u64,
    number: u32,
}

impl Shards {
    /// Cuts the coordinates of `keys` keys into at most `at_most` shards, and at least one.
    pub fn new(keys: u32, layout: Layout, at_most: u32) -> Self {
        let coordinates = u64::from(keys) * layout.coordinates() as u64;
        let number = coordinates.clamp(1, u64::from(at_most.max(1))) as u32;
        Shards { coordinates, number }
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
        // The largest shard that begins at or before the coordinate.
        let product = u128::from(coordinate + 1) * u128::from(self.number) - 1;
        (product / u128::from(self.coordinates.max(1))) as u32
    }

    /// Cuts a run of coordinates at the borders of shards: `(shard, run)` in order.
    pub fn split(&self, run: Range<u64>) -> impl Iterator<Item = (u32, Range<u64>)> + use<> {
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

/// Why a shard can't release an epoch. Each is fatal to the run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// Epochs come one after another, once each.
    #[error("epoch {found} was given to a shard whose next epoch is {expected}")]
    OutOfOrder {
        /// The epoch asked for.
        found: u64,
        /// The only epoch that can be released now.
        expected: u64,
    },
    /// The strategy can't encode the step.
    #[error(transparent)]
    Step(#[from] StepError),
    /// There is no entropy.
    #[error(transparent)]
    Entropy(#[from] EntropyError),
    /// A noisy sum left the range of 128-bit integers.
    #[error(
        "a released sum left the range of exact 128-bit arithmetic: lower the number of records in an epoch"
    )]
    Overflow,
}

/// Encoder and noise of one shard.
pub struct ReleaseShard {
    shard: u32,
    encoder: Box<dyn Encoder>,
    samplers: Vec<Option<DiscreteGaussian>>,
    source: NoiseSource,
    /// Noise of the next epoch, once it is drawn.
    prepared: Option<Zeroizing<Vec<i128>>>,
}

impl ReleaseShard {
    /// A shard before its first epoch.
    pub fn new(
        shard: u32,
        shards: Shards,
        mechanism: &JointMechanism,
        strategy: &dyn Strategy,
        source: NoiseSource,
    ) -> Self {
        let noise = mechanism.noise();
        let range = shards.range(shard);
        let samplers = range
            .clone()
            .map(|c| noise[(c % noise.len() as u64) as usize].scale.map(DiscreteGaussian::new))
            .collect::<Vec<_>>();
        let encoder = strategy.encoder(samplers.len());
        ReleaseShard { shard, encoder, samplers, source, prepared: None }
    }

    /// The epoch that comes next; the first is 1.
    pub fn next_epoch(&self) -> u64 {
        self.encoder.steps() + 1
    }

    /// Number of coordinates.
    pub fn coordinates(&self) -> usize {
        self.samplers.len()
    }

    /// Draws the noise of the next epoch, unless it is drawn already.
    ///
    /// # Errors
    /// [`ReleaseError::Entropy`].
    pub fn prepare(&mut self) -> Result<(), ReleaseError> {
        if self.prepared.is_none() {
            let mut generator = self.source.generator(self.next_epoch(), u64::from(self.shard))?;
            let mut noise = Zeroizing::new(vec![0; self.samplers.len()]);
            for (z, sampler) in noise.iter_mut().zip(&self.samplers) {
                *z = sampler.as_ref().map_or(0, |gaussian| gaussian.sample(&mut generator));
            }
            self.prepared = Some(noise);
        }
        Ok(())
    }

    /// Releases one epoch: takes its exact sums, gives its private values.
    ///
    /// # Errors
    /// [`ReleaseError`]; the shard is of no use afterwards.
    pub fn release(&mut self, epoch: u64, sums: &[i128]) -> Result<Vec<i128>, ReleaseError> {
        let expected = self.next_epoch();
        if epoch != expected {
            return Err(ReleaseError::OutOfOrder { found: epoch, expected });
        }
        self.prepare()?;
        let mut values = vec![0; sums.len()];
        self.encoder.encode(sums, &mut values)?;
        let noise = self.prepared.take().unwrap_or_default();
        for (value, noise) in values.iter_mut().zip(noise.iter()) {
            *value = value.checked_add(*noise).ok_or(ReleaseError::Overflow)?;
        }
        Ok(values)
    }

    /// Takes over the sums of an epoch that was released before a restart. Nothing is drawn.
    ///
    /// # Errors
    /// [`ReleaseError::Step`].
    pub fn replay(&mut self, sums: &[i128]) -> Result<(), ReleaseError> {
        let mut encoded = Zeroizing::new(vec![0; sums.len()]);
        Ok(self.encoder.encode(sums, &mut encoded)?)
    }

    /// The state of the encoder: private.
    pub fn save(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(self.encoder.save())
    }

    /// Takes over a state written by [`save`](Self::save).
    ///
    /// # Errors
    /// [`ReleaseError::Step`] if it belongs to another shard or strategy.
    pub fn restore(&mut self, state: &[u8]) -> Result<(), ReleaseError> {
        self.prepared = None;
        Ok(self.encoder.restore(state)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jme::JointParameters;
    use crate::moments::SecondMoment;
    use crate::sensitivity::Neighbours;
    use crate::strategy::{StrategyName, build};
    use crate::workload::Workload;
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};
    use std::sync::Arc;

    const LAYOUT: Layout = Layout { dimension: 2, second: SecondMoment::Full };
    const HORIZON: u64 = 8;

    fn mechanism(neighbours: Neighbours) -> (JointMechanism, Arc<dyn Strategy>) {
        let strategy = build(StrategyName::SquareRoot, &Workload::Prefix, Some(HORIZON)).unwrap();
        let mechanism = JointMechanism::new(JointParameters {
            layout: LAYOUT,
            neighbours,
            clip_norm: 1.0,
            noise_multiplier: 1.0,
            geometry: strategy.geometry(),
            second_moment_weight: None,
            count_weight: None,
        });
        (mechanism.unwrap(), strategy)
    }

    fn shard(neighbours: Neighbours, shards: Shards) -> ReleaseShard {
        let (mechanism, strategy) = mechanism(neighbours);
        ReleaseShard::new(0, shards, &mechanism, strategy.as_ref(), NoiseSource::System)
    }

    fn sums(epoch: u64, coordinates: usize) -> Vec<i128> {
        (1..=coordinates as i128).map(|place| place * i128::from(epoch) << 30).collect()
    }

    /// What is encoded, without noise.
    fn encoded(epochs: u64, coordinates: usize) -> Vec<Vec<i128>> {
        let mut encoder = mechanism(Neighbours::ReplaceOne).1.encoder(coordinates);
        let encode = |epoch| {
            let mut values = vec![0; coordinates];
            encoder.encode(&sums(epoch, coordinates), &mut values).unwrap();
            values
        };
        (1..=epochs).map(encode).collect()
    }

    proptest! {
        #[test]
        fn shards_part_the_coordinates(keys in 0u32..2000, dimension in 1usize..40, at_most in 0u32..200) {
            let layout = Layout { dimension, second: SecondMoment::Full };
            let shards = Shards::new(keys, layout, at_most);
            let ranges: Vec<_> = (0..shards.number()).map(|shard| shards.range(shard)).collect();
            prop_assert_eq!(ranges[0].start, 0);
            prop_assert_eq!(ranges[ranges.len() - 1].end, shards.coordinates());
            for (pair, shard) in ranges.windows(2).zip(0..) {
                prop_assert_eq!(pair[0].end, pair[1].start);
                prop_assert!(pair[0].start < pair[0].end);
                prop_assert_eq!(shards.shard_of(pair[0].start), shard);
                prop_assert_eq!(shards.shard_of(pair[0].end - 1), shard);
            }
            let pieces: Vec<_> = shards.split(0..shards.coordinates()).collect();
            let expected = (0..).zip(ranges).filter(|(_, range)| !range.is_empty());
            prop_assert!(pieces.into_iter().eq(expected));
        }
    }

    /// 4,000 draws of one release in each coordinate: mean and variance at six standard deviations, 24 comparisons, a false
    /// alarm with probability below 10⁻⁶.
    #[test]
    fn a_release_is_the_encoded_sums_and_noise_of_the_mechanism() {
        const DRAWS: u64 = 4000;
        let shards = Shards::new(2, LAYOUT, 1);
        let (mechanism, strategy) = mechanism(Neighbours::ReplaceOne);
        let [centre] = &encoded(1, 12)[..] else { panic!("one epoch") };
        let (mut totals, mut squares) = (vec![0.0; 12], vec![0.0; 12]);
        for seed in 0..DRAWS {
            let source = NoiseSource::Seeded(seed);
            let mut shard = ReleaseShard::new(0, shards, &mechanism, strategy.as_ref(), source);
            let values = shard.release(1, &sums(1, 12)).unwrap();
            for (place, value) in values.iter().enumerate() {
                let scale = mechanism.noise()[place % 6].scale.unwrap();
                let noise = (value - centre[place]) as f64 / scale.sigma();
                totals[place] += noise;
                squares[place] += noise * noise;
            }
        }
        let draws = DRAWS as f64;
        for (total, square) in totals.iter().zip(&squares) {
            assert!(total.abs() < 6.0 * draws.sqrt(), "mean {}", total / draws);
            assert!((square - draws).abs() < 6.0 * (2.0 * draws).sqrt(), "variance {}", square / draws);
        }
    }

    #[test]
    fn noise_is_drawn_once_an_epoch_and_never_again() {
        let shards = Shards::new(1, LAYOUT, 1);
        let mut shard = shard(Neighbours::ReplaceOne, shards);
        shard.prepare().unwrap();
        let drawn = shard.prepared.as_ref().unwrap().to_vec();
        shard.prepare().unwrap();
        assert_eq!(*drawn, **shard.prepared.as_ref().unwrap(), "the noise of an epoch is drawn once");
        for (epoch, encoded) in (1..).zip(encoded(3, 6)) {
            let values = shard.release(epoch, &sums(epoch, 6)).unwrap();
            let noise: Vec<i128> = values.iter().zip(&encoded).map(|(value, sum)| value - sum).collect();
            assert_eq!(noise == drawn, epoch == 1, "noise of epoch 1 in epoch {epoch}");
            assert!(shard.prepared.is_none());
            let again = shard.release(epoch, &sums(epoch, 6));
            assert!(matches!(again, Err(ReleaseError::OutOfOrder { .. })));
        }
        let skipped = shard.release(9, &sums(9, 6));
        assert!(matches!(skipped, Err(ReleaseError::OutOfOrder { found: 9, expected: 4 })));
    }

    /// A restart by checkpoint and by replay, with exact public counts to compare.
    #[test]
    fn a_restarted_shard_goes_on_with_the_same_sums_and_other_noise() {
        let shards = Shards::new(1, LAYOUT, 1);
        let new = || shard(Neighbours::ReplaceOneInPlace, shards);
        let [mut first, mut restored, mut replayed] = [new(), new(), new()];
        for epoch in 1..=2 {
            first.release(epoch, &sums(epoch, 6)).unwrap();
            replayed.replay(&sums(epoch, 6)).unwrap();
        }
        restored.prepare().unwrap();
        restored.restore(&first.save()).unwrap();
        assert!(restored.prepared.is_none(), "noise drawn for another epoch is not used");
        let releases =
            [&mut first, &mut restored, &mut replayed].map(|shard| shard.release(3, &sums(3, 6)).unwrap());
        let counts = releases.each_ref().map(|values| values[Layout::COUNT]);
        assert_eq!(counts, [encoded(3, 6)[2][Layout::COUNT]; 3]);
        assert!(releases[0][1..] != releases[1][1..] && releases[0][1..] != releases[2][1..]);
    }
}
