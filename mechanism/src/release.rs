//! The release of one shard: `y_t = (C·sums)_t + noise`, in integers.
//!
//! The coordinates of all keys, `keys × Layout::coordinates()` in number and laid end to end, are cut into a fixed
//! number of [`Shards`]: the unit of work and of state. Small keys share a shard, a wide key spans several, and the
//! number of workers does not matter to any of them.
//!
//! A [`ReleaseShard`] draws the noise of an epoch **before** it is given that epoch's sums
//! ([`prepare`](ReleaseShard::prepare)), so the time that the draw takes tells nothing about the data, and draws it once: an
//! epoch that was released can't be released again by the same shard. Noise belongs to the process that drew it: if that
//! forks while the noise waits, the copy draws its own.
//!
//! Privacy: by induction over the epochs. Given everything released before, `y_t` is an integer vector `v_t` that
//! depends on the data, plus independent discrete Gaussians whose parameters do not. Its conditional
//! zero-concentrated loss is `Σ Δv²/(2σ²)` (Canonne, Kamath & Steinke 2020, Thm 14), and along every path these add up to at most
//! the squared joint sensitivity over 2(noise deviation)², also when the stream was chosen after seeing earlier releases,
//! because C is lower triangular (fully adaptive composition: Whitehouse et al. 2023). That these paths may also be accounted
//! for as one Gaussian mechanism, which is what (ε, δ) is calibrated by, is proved in `docs/privacy.md`.

use crate::mechanism::{MatrixMechanism, MomentEncoder};
use crate::moments::Layout;
use crate::noise::{DiscreteGaussian, EntropyError, NoiseScale, NoiseSource};
use crate::strategy::{Row, StepError};
use std::ops::Range;
use thiserror::Error;
use zeroize::Zeroizing;

/// Coordinates whose sums and noise fit the processor's second cache.
const NEAR_COORDINATES: u64 = 1 << 14;

/// Memory for noise is taken in multiples of this, so that shards whose lengths differ by one can use that of each other.
const ROOM: usize = 64;

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

    /// Cuts into this many shards, or into as many more as it takes for a shard to hold no more than 2¹⁴ coordinates, so that
    /// what belongs to them stays in a processor's cache from one stage to the next.
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
        // The largest shard that begins at or before the coordinate.
        let product = u128::from(coordinate + 1) * u128::from(self.number) - 1;
        (product / u128::from(self.coordinates.max(1))) as u32
    }

    /// Cuts a run of coordinates at the borders of shards: `(shard, run)` in order.
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
    encoder: MomentEncoder,
    horizon: Option<u64>,
    coordinates: usize,
    /// Samplers of runs of coordinates with equal noise, and the lengths of the runs.
    samplers: Vec<(Option<DiscreteGaussian>, usize)>,
    source: NoiseSource,
    /// Noise of the next epoch, once it is drawn.
    prepared: Option<Prepared>,
}

/// Noise, and the process that drew it.
struct Prepared {
    noise: Zeroizing<Vec<i128>>,
    process: u32,
}

impl Prepared {
    /// A copy of the process has a copy of the noise, and two releases with the same noise would differ by the data alone.
    fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }
}

impl ReleaseShard {
    /// A shard before its first epoch.
    pub fn new(shard: u32, shards: Shards, mechanism: &MatrixMechanism, source: NoiseSource) -> Self {
        let noise = mechanism.moments().noise();
        let range = shards.range(shard);
        let coordinates = (range.end - range.start) as usize;
        let samplers = samplers(range.clone().map(|c| noise[(c % noise.len() as u64) as usize].scale));
        let encoder = mechanism.strategies().encoder(mechanism.layout(), range);
        let horizon = mechanism.horizon();
        ReleaseShard { shard, encoder, horizon, coordinates, samplers, source, prepared: None }
    }

    /// The epoch that comes next; the first is 1.
    pub fn next_epoch(&self) -> u64 {
        self.encoder.steps() + 1
    }

    /// Number of coordinates.
    pub fn coordinates(&self) -> usize {
        self.coordinates
    }

    /// Draws the noise of the next epoch, unless it is drawn already.
    ///
    /// # Errors
    /// [`ReleaseError::Entropy`].
    pub fn prepare(&mut self) -> Result<(), ReleaseError> {
        self.prepare_in(Vec::new)
    }

    /// The same in memory that has served before, such as that of values which are no longer needed.
    ///
    /// # Errors
    /// [`ReleaseError::Entropy`].
    pub fn prepare_in(&mut self, room: impl FnOnce() -> Vec<i128>) -> Result<(), ReleaseError> {
        if !self.prepared.as_ref().is_some_and(Prepared::is_of_this_process) {
            self.prepared = Some(self.draw(room())?);
        }
        Ok(())
    }

    fn draw(&self, room: Vec<i128>) -> Result<Prepared, ReleaseError> {
        let mut generator = self.source.generator(self.next_epoch(), u64::from(self.shard))?;
        let mut noise = Zeroizing::new(room);
        if noise.capacity() < self.coordinates {
            *noise = Vec::with_capacity(self.coordinates.next_multiple_of(ROOM));
        }
        noise.resize(self.coordinates, 0);
        let mut rest = &mut noise[..];
        for (sampler, length) in &self.samplers {
            let (run, after) = rest.split_at_mut(*length);
            match sampler {
                Some(gaussian) => gaussian.fill(&mut generator, run),
                None => run.fill(0),
            }
            rest = after;
        }
        Ok(Prepared { noise, process: std::process::id() })
    }

    /// The noise of the next epoch, for once.
    fn take_noise(&mut self) -> Result<Zeroizing<Vec<i128>>, ReleaseError> {
        match self.prepared.take().filter(Prepared::is_of_this_process) {
            Some(prepared) => Ok(prepared.noise),
            None => Ok(self.draw(Vec::new())?.noise),
        }
    }

    /// Releases one epoch: takes its exact sums, gives its private values.
    ///
    /// # Errors
    /// [`ReleaseError`]; the shard is of no use afterwards.
    pub fn release(&mut self, epoch: u64, sums: &[i128]) -> Result<Vec<i128>, ReleaseError> {
        self.release_row(epoch, sums.into())
    }

    /// The same for sums that may be in 64 bits, which is faster.
    ///
    /// # Errors
    /// [`ReleaseError`]; the shard is of no use afterwards.
    pub fn release_row(&mut self, epoch: u64, sums: Row<'_>) -> Result<Vec<i128>, ReleaseError> {
        let expected = self.next_epoch();
        if epoch != expected {
            return Err(ReleaseError::OutOfOrder { found: epoch, expected });
        }
        if let Some(horizon) = self.horizon.filter(|&horizon| epoch > horizon) {
            return Err(StepError::PastHorizon { horizon }.into());
        }
        // It is wiped unless all of it has become values.
        let mut noise = self.take_noise()?;
        self.encoder.add_encoded(sums, &mut noise)?;
        Ok(std::mem::take(&mut *noise))
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
        self.encoder.save()
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

/// One sampler for each run of equal scales.
fn samplers(scales: impl Iterator<Item = Option<NoiseScale>>) -> Vec<(Option<DiscreteGaussian>, usize)> {
    let mut samplers: Vec<(Option<DiscreteGaussian>, usize)> = Vec::new();
    for scale in scales {
        match samplers.last_mut() {
            Some((last, length)) if last.as_ref().map(DiscreteGaussian::scale) == scale => *length += 1,
            _ => samplers.push((scale.map(DiscreteGaussian::new), 1)),
        }
    }
    samplers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mechanism::{Method, MomentParameters};
    use crate::moments::SecondMoment;
    use crate::sensitivity::Neighbours;
    use crate::strategy::{StrategyName, build};
    use crate::workload::Workload;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    const LAYOUT: Layout = Layout { dimension: 2, second: SecondMoment::Full };

    fn parameters(neighbours: Neighbours) -> MomentParameters {
        MomentParameters {
            method: Method::Jme,
            layout: LAYOUT,
            neighbours,
            clip_norm: 1.0,
            noise_multiplier: 2.0,
            second_moment_weight: None,
            count_weight: None,
        }
    }

    fn machine(neighbours: Neighbours, source: NoiseSource) -> ReleaseShard {
        let strategy = build(StrategyName::SquareRoot, &Workload::Prefix, Some(5)).unwrap();
        let mechanism = MatrixMechanism::new(parameters(neighbours), strategy).unwrap();
        ReleaseShard::new(0, Shards::new(1, LAYOUT, 1), &mechanism, source)
    }

    proptest! {
        #[test]
        fn shards_are_a_partition_in_order(keys in 1u32..200, dimension in 1usize..12, at_most in 1u32..100) {
            let shards = Shards::new(keys, Layout { dimension, second: SecondMoment::Full }, at_most);
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
        fn shards_are_small_or_few(dimension in 1usize..100_000, least in 1u32..100) {
            let shards = Shards::at_least(1, Layout { dimension, second: SecondMoment::None }, least);
            let longest = (0..shards.number()).map(|shard| shards.range(shard)).map(|run| run.end - run.start).max();
            prop_assert!(longest <= Some(NEAR_COORDINATES));
            prop_assert!(u64::from(shards.number()) >= u64::from(least).min(shards.coordinates()));
        }

        #[test]
        fn a_run_is_cut_at_borders_and_nowhere_else(start in 0u64..500, length in 0u64..500, at_most in 1u32..40) {
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

    #[test]
    fn noise_is_drawn_before_the_sums_and_does_not_depend_on_them() {
        let difference = |sums: [i128; 6]| {
            let mut with = machine(Neighbours::ReplaceOne, NoiseSource::Seeded(3));
            let mut without = machine(Neighbours::ReplaceOne, NoiseSource::Seeded(3));
            with.prepare().unwrap();
            let (a, b) = (with.release(1, &sums).unwrap(), without.release(1, &[0; 6]).unwrap());
            a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>()
        };
        // In the first step C multiplies by one, which is 2⁴⁰ units.
        assert_eq!(difference([1, -2, 3, 4, 5, -6]), [1i128, -2, 3, 4, 5, -6].map(|sum| sum << 40));
    }

    /// As after a fork: the copy holds noise that its parent will use.
    #[test]
    fn noise_that_another_process_drew_is_not_used() {
        let mut shard = machine(Neighbours::ReplaceOne, NoiseSource::System);
        shard.prepare().unwrap();
        let mut of_parent = shard.prepared.take().unwrap();
        of_parent.process = of_parent.process.wrapping_add(1);
        let noise = of_parent.noise.clone();
        shard.prepared = Some(of_parent);
        assert!(shard.release(1, &[0; 6]).unwrap() != *noise);

        shard.prepare().unwrap();
        let noise = shard.prepared.as_ref().unwrap().noise.clone();
        assert!(shard.release(2, &[0; 6]).unwrap() == *noise, "its own noise is used as it was drawn");
    }

    #[test]
    fn without_entropy_nothing_is_released() {
        let mut shard = machine(Neighbours::ReplaceOne, NoiseSource::Exhausted);
        assert!(matches!(shard.prepare(), Err(ReleaseError::Entropy(_))));
        assert!(matches!(shard.release(1, &[0; 6]), Err(ReleaseError::Entropy(_))));
        assert_eq!(shard.next_epoch(), 1, "the epoch is not used up");
    }

    #[test]
    fn every_epoch_is_released_once_and_in_order() {
        let mut shard = machine(Neighbours::ReplaceOne, NoiseSource::System);
        let first = shard.release(1, &[0; 6]).unwrap();
        assert!(matches!(shard.release(1, &[0; 6]), Err(ReleaseError::OutOfOrder { found: 1, expected: 2 })));
        assert!(matches!(shard.release(3, &[0; 6]), Err(ReleaseError::OutOfOrder { found: 3, expected: 2 })));
        assert_ne!(first, shard.release(2, &[0; 6]).unwrap(), "fresh noise");
        for epoch in 3..=5 {
            shard.release(epoch, &[0; 6]).unwrap();
        }
        let end = shard.release(6, &[0; 6]);
        assert!(matches!(end, Err(ReleaseError::Step(StepError::PastHorizon { horizon: 5 }))));
    }

    #[test]
    fn a_restored_and_a_replayed_shard_go_on_alike() {
        let source = NoiseSource::Seeded(9);
        let sums = |epoch: i128| [epoch, -7 * epoch, 11, 1 << 50, -3, epoch * epoch];
        let mut whole = machine(Neighbours::ReplaceOne, source);
        let mut replayed = machine(Neighbours::ReplaceOne, source);
        for epoch in 1..=3 {
            whole.release(epoch as u64, &sums(epoch)).unwrap();
            replayed.replay(&sums(epoch)).unwrap();
        }
        let mut restored = machine(Neighbours::ReplaceOne, source);
        restored.restore(&whole.save()).unwrap();
        let expected = whole.release(4, &sums(4)).unwrap();
        assert_eq!(restored.release(4, &sums(4)).unwrap(), expected);
        assert_eq!(replayed.release(4, &sums(4)).unwrap(), expected);
        assert!(restored.restore(b"something else").is_err());
    }

    #[test]
    fn counts_have_noise_unless_they_are_public() {
        let count =
            |neighbours| machine(neighbours, NoiseSource::System).release(1, &[5, 0, 0, 0, 0, 0]).unwrap()[0];
        assert_eq!(count(Neighbours::ReplaceOneInPlace), 5 << 40);
        assert_ne!(count(Neighbours::ReplaceOne), 5 << 40);
        assert_ne!(count(Neighbours::ZeroOut), 5 << 40);
    }

    #[test]
    fn sums_beyond_the_range_are_refused() {
        let mut shard = machine(Neighbours::ReplaceOne, NoiseSource::System);
        let error = shard.release(1, &[0, i128::MAX, 0, 0, 0, 0]).unwrap_err();
        assert!(matches!(error, ReleaseError::Step(StepError::Overflow) | ReleaseError::Overflow), "{error}");
    }
}
