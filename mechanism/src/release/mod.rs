//! The release of one shard, in integers: `y_t = (C·sums)_t + noise` (`encoded`), or the equivalent
//! `w_t = sums_t + (C⁻¹ noise)_t` (`correlated`), which needs no decoding.
//!
//! The coordinates of all keys, `keys × Layout::coordinates()` laid end to end, are cut into a
//! fixed number of [`Shards`], the unit of work and of state. Small keys share a shard, and a wide
//! key spans several. Shards do not depend on the number of workers.
//!
//! A [`ReleaseShard`] draws the noise of an epoch **before** it receives that epoch's sums
//! ([`prepare`](ReleaseShard::prepare)), so the duration of the draw reveals nothing about the
//! data. It draws the noise once: a shard cannot release an epoch twice. Noise belongs to the
//! process that drew it. If the process forks while noise is pending, the copy draws its own.
//!
//! Privacy: by induction over the epochs. Given everything released before, the release is an
//! integer vector `v_t` that depends on the data, plus independent discrete Gaussians whose
//! parameters do not. Its conditional zero-concentrated loss is `Σ Δv²/(2σ²)` (Canonne, Kamath &
//! Steinke 2020, Thm 14). Along every path these losses add up to at most the squared joint
//! sensitivity over 2(noise deviation)². This also holds if the stream is chosen after seeing
//! earlier releases, because C is lower triangular (fully adaptive composition: Whitehouse et al.
//! 2023). `docs/privacy.md` proves that the paths may also be accounted for as one Gaussian
//! mechanism, by which (ε, δ) is calibrated.
//!
//! This argument covers integers only, so the output must be a function of the released integers.
//! [`Released`] ensures it: equal integers are indistinguishable. Errors do not depend on sums
//! either, because arithmetic is modulo 2¹²⁸ (proof at [`Encoder`](crate::strategy::Encoder)). The
//! exceptions are encoders that round, which work for any sums of up to
//! [`MatrixMechanism::most_records`](crate::mechanism::MatrixMechanism::most_records) records.

#[cfg(test)]
mod alike;
mod correlated;
mod noise_alone;
mod numbers;
mod shards;
mod values;

pub use noise_alone::{NoiseStream, NoiseStreamParameters, UNREAD_COUNT};
pub use numbers::Numbers;
pub use shards::Shards;
pub use values::{Released, in_real_units, to_real};

use crate::mechanism::MatrixMechanism;
use crate::moments::IntegerRow;
use crate::noise::{EntropyError, NoiseSource};
use crate::strategy::StepError;
use correlated::CorrelatedNoise;
use correlated::EncodedSums;
use thiserror::Error;
use values::NoiseBuffer;
use zeroize::Zeroizing;

/// Error of releasing an epoch. Each is fatal to the run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// Epochs must be released in order, once each.
    #[error("epoch {found} was given to a shard whose next epoch is {expected}")]
    OutOfOrder {
        /// The epoch asked for.
        found: u64,
        /// The only epoch that can be released now.
        expected: u64,
    },
    /// The strategy cannot encode the step.
    #[error(transparent)]
    Step(#[from] StepError),
    /// No entropy is available.
    #[error(transparent)]
    Entropy(#[from] EntropyError),
}

/// Encoder and noise of one shard.
pub struct ReleaseShard {
    shard: u32,
    horizon: Option<u64>,
    /// Offset among the coordinates of all keys.
    first_coordinate: u64,
    coordinates: usize,
    source: NoiseSource,
    form: ShardNoise,
    prepared: Option<PreparedNoise>,
    room: NoiseBuffer,
}

enum ShardNoise {
    /// Sums are encoded, then noise is added.
    Encoded(EncodedSums),
    /// Noise is correlated, then sums are added.
    Correlated(CorrelatedNoise),
}

struct PreparedNoise {
    noise: DrawnNoise,
    process: u32,
}

enum DrawnNoise {
    Independent(Zeroizing<Vec<i128>>),
    ToCorrelate(Zeroizing<Vec<i64>>),
}

impl PreparedNoise {
    /// A forked process has a copy of the noise. Two releases with the same noise would differ by
    /// the data alone.
    fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }
}

impl ReleaseShard {
    /// A shard before its first epoch.
    pub fn new(shard: u32, shards: Shards, mechanism: &MatrixMechanism, source: NoiseSource) -> Self {
        let range = shards.range(shard);
        let (first_coordinate, coordinates) = (range.start, (range.end - range.start) as usize);
        let form = if mechanism.is_correlated() {
            ShardNoise::Correlated(CorrelatedNoise::new(mechanism, range))
        } else {
            ShardNoise::Encoded(EncodedSums::new(mechanism, range))
        };
        let horizon = mechanism.horizon();
        let (prepared, room) = (None, NoiseBuffer::default());
        ReleaseShard { shard, horizon, first_coordinate, coordinates, source, form, prepared, room }
    }

    /// The next epoch; the first is 1.
    pub fn next_epoch(&self) -> u64 {
        1 + match &self.form {
            ShardNoise::Encoded(sums) => sums.steps(),
            ShardNoise::Correlated(noise) => noise.steps(),
        }
    }

    /// Number of coordinates.
    pub fn coordinates(&self) -> usize {
        self.coordinates
    }

    /// Draws the noise of the next epoch, unless it is drawn already. Reuses the memory of dropped
    /// values.
    ///
    /// # Errors
    /// [`ReleaseError::Entropy`].
    pub fn prepare(&mut self) -> Result<(), ReleaseError> {
        if !self.prepared.as_ref().is_some_and(PreparedNoise::is_of_this_process) {
            self.prepared = Some(self.draw()?);
        }
        Ok(())
    }

    fn draw(&self) -> Result<PreparedNoise, ReleaseError> {
        let epoch = self.next_epoch();
        let mut generator = self.source.generator(epoch, u64::from(self.shard))?;
        let offsets = self.source.offsets(epoch, self.first_coordinate);
        let noise = match &self.form {
            ShardNoise::Encoded(sums) => {
                let mut noise = sums.draw(&mut generator, &self.room);
                noise.iter_mut().zip(offsets).for_each(|(z, &offset)| *z = z.wrapping_add(offset));
                DrawnNoise::Independent(noise)
            }
            ShardNoise::Correlated(noise) => {
                let mut noise = noise.draw(&mut generator, &self.room);
                noise.iter_mut().zip(offsets).for_each(|(z, &offset)| *z = z.wrapping_add(offset as i64));
                DrawnNoise::ToCorrelate(noise)
            }
        };
        Ok(PreparedNoise { noise, process: std::process::id() })
    }

    fn take_noise(&mut self) -> Result<DrawnNoise, ReleaseError> {
        match self.prepared.take().filter(PreparedNoise::is_of_this_process) {
            Some(prepared) => Ok(prepared.noise),
            None => Ok(self.draw()?.noise),
        }
    }

    /// Releases one epoch: takes its exact sums, returns its private values.
    ///
    /// # Errors
    /// [`ReleaseError`]; the shard must not be used afterwards.
    pub fn release(&mut self, epoch: u64, sums: &[i128]) -> Result<Vec<i128>, ReleaseError> {
        Ok(self.release_row(epoch, sums.into())?.into_wide())
    }

    /// As [`release`](Self::release), for sums and values that may be in 64 bits, which is faster.
    ///
    /// # Errors
    /// [`ReleaseError`]; the shard must not be used afterwards.
    pub fn release_row(&mut self, epoch: u64, sums: IntegerRow<'_>) -> Result<Released, ReleaseError> {
        let expected = self.next_epoch();
        if epoch != expected {
            return Err(ReleaseError::OutOfOrder { found: epoch, expected });
        }
        if let Some(horizon) = self.horizon.filter(|&horizon| epoch > horizon) {
            return Err(StepError::PastHorizon { horizon }.into());
        }
        let values = match (self.take_noise()?, &mut self.form) {
            (DrawnNoise::Independent(mut noise), ShardNoise::Encoded(encoded)) => {
                // Wiped unless all of it has become values.
                encoded.add(sums, &mut noise)?;
                Released::released_before(std::mem::take(&mut *noise))
            }
            (DrawnNoise::ToCorrelate(noise), ShardNoise::Correlated(correlated)) => {
                correlated.release(noise, sums)?
            }
            // Unreachable: a shard draws noise for its own form.
            _ => return Err(StepError::State { reason: "its noise is of another form" }.into()),
        };
        Ok(values.back_to(&self.room))
    }

    /// Replays the sums of an epoch that was released before a restart. Draws nothing.
    ///
    /// # Errors
    /// [`ReleaseError::Step`], also if noise is correlated: the sums do not determine it.
    pub fn replay(&mut self, sums: &[i128]) -> Result<(), ReleaseError> {
        match &mut self.form {
            ShardNoise::Encoded(encoded) => Ok(encoded.replay(sums)?),
            ShardNoise::Correlated(_) => {
                Err(StepError::State { reason: "sums don't tell what noise was correlated" }.into())
            }
        }
    }

    /// The complete state. Private.
    pub fn save(&self) -> Zeroizing<Vec<u8>> {
        match &self.form {
            ShardNoise::Encoded(sums) => sums.save(),
            ShardNoise::Correlated(noise) => noise.save(),
        }
    }

    /// Restores a state written by [`save`](Self::save).
    ///
    /// # Errors
    /// [`ReleaseError::Step`] if it belongs to another shard or strategy.
    pub fn restore(&mut self, state: &[u8]) -> Result<(), ReleaseError> {
        self.prepared = None;
        match &mut self.form {
            ShardNoise::Encoded(sums) => Ok(sums.restore(state)?),
            ShardNoise::Correlated(noise) => Ok(noise.restore(state)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mechanism::{Method, MomentParameters, Strategies};
    use crate::moments::{Layout, SecondMoment};
    use crate::participation::Participation;
    use crate::sensitivity::Neighbours;
    use crate::strategy::buffered::{Buffered, BufferedParameters, Buffers, ExponentialBuffer};
    use crate::strategy::build;
    use crate::workload::Workload;
    use std::sync::Arc;

    const LAYOUT: Layout = Layout { dimension: 2, second: SecondMoment::Full, sent: None };

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

    fn mechanisms(neighbours: Neighbours) -> [MatrixMechanism; 2] {
        let square_root = build("square-root", &Workload::Prefix, Some(5)).unwrap();
        let buffers = Buffers::Toeplitz(vec![ExponentialBuffer { decay: 0.75, weight: 0.5 }]);
        let fitted = BufferedParameters { horizon: Some(5), buffers };
        let buffered = Arc::new(Buffered::new("blt:1".parse().unwrap(), fitted).unwrap());
        let encoded = MatrixMechanism::new(parameters(neighbours), square_root).unwrap();
        let strategies = Strategies::shared(buffered).correlated();
        let correlated =
            MatrixMechanism::with_participation(parameters(neighbours), strategies, Participation::Single, 5)
                .unwrap();
        [encoded, correlated]
    }

    fn shard(mechanism: &MatrixMechanism, source: NoiseSource) -> ReleaseShard {
        ReleaseShard::new(0, Shards::new(1, LAYOUT, 1), mechanism, source)
    }

    fn machines(neighbours: Neighbours, source: NoiseSource) -> [ReleaseShard; 2] {
        mechanisms(neighbours).map(|mechanism| shard(&mechanism, source))
    }

    /// Difference of the last epoch's releases with and without these sums. The first shard
    /// prepares its noise, the second draws it on release.
    fn difference(mechanism: &MatrixMechanism, epochs: u64, sums: [i128; 6]) -> Vec<i128> {
        let [mut with, mut without] = [(); 2].map(|()| shard(mechanism, NoiseSource::Seeded(3)));
        let mut release = |epoch| {
            with.prepare().unwrap();
            let (a, b) = (with.release(epoch, &sums).unwrap(), without.release(epoch, &[0; 6]).unwrap());
            a.iter().zip(b).map(|(a, b)| a - b).collect()
        };
        (1..=epochs).map(&mut release).last().unwrap()
    }

    #[test]
    fn noise_is_drawn_before_the_sums_and_does_not_depend_on_them() {
        let sums = [1i128, -2, 3, 4, 5, -6];
        let [encoded, correlated] = mechanisms(Neighbours::ReplaceOne);
        // In the first step C multiplies by one, which is 2⁴⁰ units.
        assert_eq!(difference(&encoded, 1, sums), sums.map(|sum| sum << 40));
        // Correlated noise and sums meet in a single addition, at every step.
        let bits = correlated.moments().noise().iter().map(|noise| noise.sum_bits);
        let expected: Vec<i128> = sums.iter().zip(bits).map(|(sum, bits)| sum << bits).collect();
        for epochs in 1..=5 {
            assert_eq!(difference(&correlated, epochs, sums), expected);
        }
    }

    /// Simulates a fork: the copy holds noise that its parent will use.
    #[test]
    fn noise_that_another_process_drew_is_not_used() {
        let drawn = |prepared: &PreparedNoise| match &prepared.noise {
            DrawnNoise::Independent(noise) => noise.to_vec(),
            DrawnNoise::ToCorrelate(noise) => noise.iter().map(|&z| z.into()).collect(),
        };
        let twice = [(); 2].map(|()| machines(Neighbours::ReplaceOne, NoiseSource::System));
        let [children, owns] = twice;
        for (mut child, mut own) in children.into_iter().zip(owns) {
            child.prepare().unwrap();
            let mut of_parent = child.prepared.take().unwrap();
            of_parent.process = of_parent.process.wrapping_add(1);
            let noise = drawn(&of_parent);
            child.prepared = Some(of_parent);
            assert_ne!(child.release(1, &[0; 6]).unwrap(), noise);

            own.prepare().unwrap();
            let noise = drawn(own.prepared.as_ref().unwrap());
            assert_eq!(own.release(1, &[0; 6]).unwrap(), noise, "its own noise is used as it was drawn");
        }
    }

    #[test]
    fn without_entropy_nothing_is_released() {
        for mut shard in machines(Neighbours::ReplaceOne, NoiseSource::Exhausted) {
            assert!(matches!(shard.prepare(), Err(ReleaseError::Entropy(_))));
            assert!(matches!(shard.release(1, &[0; 6]), Err(ReleaseError::Entropy(_))));
            assert_eq!(shard.next_epoch(), 1, "the epoch is not used up");
        }
    }

    #[test]
    fn every_epoch_is_released_once_and_in_order() {
        for mut shard in machines(Neighbours::ReplaceOne, NoiseSource::System) {
            let first = shard.release(1, &[0; 6]).unwrap();
            let out_of_order = |found| ReleaseError::OutOfOrder { found, expected: 2 }.to_string();
            for epoch in [1, 3] {
                assert_eq!(shard.release(epoch, &[0; 6]).unwrap_err().to_string(), out_of_order(epoch));
            }
            assert_ne!(first, shard.release(2, &[0; 6]).unwrap(), "fresh noise");
            for epoch in 3..=5 {
                shard.release(epoch, &[0; 6]).unwrap();
            }
            let end = shard.release(6, &[0; 6]);
            assert!(matches!(end, Err(ReleaseError::Step(StepError::PastHorizon { horizon: 5 }))));
        }
    }

    #[test]
    fn a_restored_and_a_replayed_shard_continue_alike() {
        let source = NoiseSource::Seeded(9);
        let sums = |epoch: i128| [epoch, -7 * epoch, 11, 1 << 50, -3, epoch * epoch];
        let [mut replayed, mut not_replayed] = machines(Neighbours::ReplaceOne, source);
        let mut states = Vec::new();
        for mechanism in mechanisms(Neighbours::ReplaceOne) {
            let mut whole = shard(&mechanism, source);
            for epoch in 1..=3 {
                whole.release(epoch as u64, &sums(epoch)).unwrap();
            }
            let mut restored = shard(&mechanism, source);
            restored.restore(&whole.save()).unwrap();
            states.push(whole.save());
            let expected = whole.release(4, &sums(4)).unwrap();
            assert_eq!(restored.release(4, &sums(4)).unwrap(), expected);
            assert_eq!(restored.save(), whole.save());
            if !mechanism.is_correlated() {
                (1..=3).for_each(|epoch| replayed.replay(&sums(epoch)).unwrap());
                assert_eq!(replayed.release(4, &sums(4)).unwrap(), expected);
            }
        }
        assert!(not_replayed.replay(&sums(1)).is_err(), "sums don't tell the noise");
        for (mut shard, other) in machines(Neighbours::ReplaceOne, source).into_iter().zip([1, 0]) {
            let cut = states[1 - other].len() - 1;
            let longer = [&states[1 - other][..], &[0]].concat();
            for state in [&b"something else"[..], &states[other], &states[1 - other][..cut], &longer, &[]] {
                assert!(shard.restore(state).is_err());
            }
            shard.restore(&states[1 - other]).unwrap();
            assert_eq!(shard.next_epoch(), 4);
        }
    }

    #[test]
    fn counts_have_noise_unless_they_are_public() {
        let counts = |neighbours| {
            let release = |mut shard: ReleaseShard| shard.release(1, &[5, 0, 0, 0, 0, 0]).unwrap()[0];
            machines(neighbours, NoiseSource::System).map(release)
        };
        assert_eq!(counts(Neighbours::ReplaceOneInPlace), [5 << 40; 2]);
        for neighbours in [Neighbours::ReplaceOne, Neighbours::ZeroOut] {
            let bits = mechanisms(neighbours).map(|mechanism| mechanism.moments().noise()[0].sum_bits);
            assert!(counts(neighbours).iter().zip(bits).all(|(count, bits)| *count != 5 << bits));
        }
    }

    #[test]
    fn sums_of_any_size_are_released() {
        for mechanism in mechanisms(Neighbours::ReplaceOne) {
            for sums in [[i128::MAX, i128::MIN, 1 << 126, -1 << 90, 1 << 63, 0], [1; 6]] {
                let [mut with, mut without] = [(); 2].map(|()| shard(&mechanism, NoiseSource::Seeded(6)));
                let (a, b) = (with.release(1, &sums).unwrap(), without.release(1, &[0; 6]).unwrap());
                let bits = mechanism.moments().noise().iter().map(|noise| u32::from(noise.sum_bits));
                for (((a, b), sum), bits) in a.iter().zip(b).zip(sums).zip(bits) {
                    assert_eq!(a.wrapping_sub(b), sum.wrapping_shl(bits));
                }
            }
            let mut shard = shard(&mechanism, NoiseSource::System);
            assert!(shard.release(1, &[0; 5]).is_err(), "of other coordinates");
        }
    }

    #[test]
    fn correlated_releases_are_wide_only_where_needed() {
        let [_, mechanism] = mechanisms(Neighbours::ReplaceOne);
        for (sums, are_narrow) in [([7; 6], true), ([7, -7, i64::MAX, i64::MIN, 0, 1], false)] {
            let [mut narrow, mut wide] = [(); 2].map(|()| shard(&mechanism, NoiseSource::Seeded(5)));
            for epoch in 1..=5 {
                let values = narrow.release_row(epoch, IntegerRow::Narrow(&sums)).unwrap();
                assert_eq!(matches!(values.row(), IntegerRow::Narrow(_)), are_narrow);
                let of_wide = wide.release_row(epoch, IntegerRow::Wide(&sums.map(i128::from))).unwrap();
                assert_eq!(values, of_wide);
            }
        }
    }
}
