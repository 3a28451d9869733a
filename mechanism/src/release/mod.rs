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
//! process that drew it. If the process forks while noise is pending, the child process draws its
//! own.
//!
//! Epochs that close together are released as a run: the noise of all of them is drawn in one call,
//! from one key, and then their sums are read. The distribution of the release is that of epochs
//! one by one, because every bit of the keystream is used once.
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
use zeroize::{DefaultIsZeroes, Zeroize, Zeroizing};

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
    buffer: NoiseBuffer,
}

enum ShardNoise {
    /// Sums are encoded, then noise is added.
    Encoded(EncodedSums),
    /// Noise is correlated, then sums are added.
    Correlated(CorrelatedNoise),
}

/// Noise of the next epochs.
struct PreparedNoise {
    epochs: usize,
    noise: DrawnNoise,
    process: u32,
}

enum DrawnNoise {
    Independent(Zeroizing<Vec<i128>>),
    ToCorrelate(Zeroizing<Vec<i64>>),
}

impl PreparedNoise {
    /// Returns whether this process drew the noise. A forked process has a copy of it, and two
    /// releases with the same noise would differ by the data alone.
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
        let (prepared, buffer) = (None, NoiseBuffer::default());
        ReleaseShard { shard, horizon, first_coordinate, coordinates, source, form, prepared, buffer }
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
        self.prepare_run(1)
    }

    /// Draws the noise of the next `epochs` epochs, except for epochs whose noise is already drawn.
    ///
    /// # Errors
    /// [`ReleaseError::Entropy`].
    pub fn prepare_run(&mut self, epochs: usize) -> Result<(), ReleaseError> {
        let begun = self.prepared.take().filter(PreparedNoise::is_of_this_process);
        self.prepared = Some(match begun {
            Some(prepared) if prepared.epochs >= epochs => prepared,
            begun => self.draw(epochs, begun)?,
        });
        Ok(())
    }

    /// Draws the noise of the next `epochs` epochs. `begun` is the noise of the first of them that
    /// is already drawn.
    fn draw(&self, epochs: usize, begun: Option<PreparedNoise>) -> Result<PreparedNoise, ReleaseError> {
        let width = self.coordinates;
        let (drawn, begun) = begun.map_or((0, None), |begun| (begun.epochs, Some(begun.noise)));
        let mut generators = self.source.generators(u64::from(self.shard));
        let rows = (self.next_epoch()..).zip(0..epochs).skip(drawn);
        let offsets = |epoch| self.source.offsets(epoch, self.first_coordinate);
        let noise = match &self.form {
            ShardNoise::Encoded(sums) => {
                let begun = if let Some(DrawnNoise::Independent(noise)) = begun {
                    noise
                } else {
                    Zeroizing::default()
                };
                let mut noise = extended(begun, epochs * width, || self.buffer.take_wide());
                for (epoch, row) in rows {
                    let noise = &mut noise[row * width..][..width];
                    sums.draw(generators.of_epoch(epoch)?, noise);
                    noise.iter_mut().zip(offsets(epoch)).for_each(|(z, &offset)| *z = z.wrapping_add(offset));
                }
                DrawnNoise::Independent(noise)
            }
            ShardNoise::Correlated(correlated) => {
                let begun = if let Some(DrawnNoise::ToCorrelate(noise)) = begun {
                    noise
                } else {
                    Zeroizing::default()
                };
                let mut noise = extended(begun, epochs * width, || self.buffer.take_narrow());
                for (epoch, row) in rows {
                    let noise = &mut noise[row * width..][..width];
                    correlated.draw(generators.of_epoch(epoch)?, noise);
                    noise
                        .iter_mut()
                        .zip(offsets(epoch))
                        .for_each(|(z, &offset)| *z = z.wrapping_add(offset as i64));
                }
                DrawnNoise::ToCorrelate(noise)
            }
        };
        Ok(PreparedNoise { epochs, noise, process: std::process::id() })
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
        self.release_run(epoch, [sums].into_iter())
    }

    /// Releases a run of epochs, the `first` and those after it. `sums` has their sums.
    /// Returns the values of all of them, epoch after epoch. Sums are read after all noise is
    /// drawn.
    ///
    /// # Errors
    /// [`ReleaseError`]; the shard must not be used afterwards.
    pub fn release_run<'s>(
        &mut self,
        first: u64,
        sums: impl ExactSizeIterator<Item = IntegerRow<'s>>,
    ) -> Result<Released, ReleaseError> {
        let expected = self.next_epoch();
        if first != expected {
            return Err(ReleaseError::OutOfOrder { found: first, expected });
        }
        let last = first.saturating_add(sums.len() as u64).saturating_sub(1);
        if let Some(horizon) = self.horizon.filter(|&horizon| last > horizon) {
            return Err(StepError::PastHorizon { horizon }.into());
        }
        self.prepare_run(sums.len())?;
        let (width, length) = (self.coordinates, sums.len() * self.coordinates);
        let values = match (self.prepared.take().map(|prepared| prepared.noise), &mut self.form) {
            (Some(DrawnNoise::Independent(mut noise)), ShardNoise::Encoded(encoded)) => {
                cut(&mut noise, length);
                // An error of any row wipes `noise`, with the rows that have become values.
                for (row, sums) in sums.enumerate() {
                    encoded.add(sums, &mut noise[row * width..][..width])?;
                }
                Released::into_buffer(std::mem::take(&mut *noise), &self.buffer)
            }
            (Some(DrawnNoise::ToCorrelate(mut noise)), ShardNoise::Correlated(correlated)) => {
                cut(&mut noise, length);
                correlated.release(noise, width, sums)?
            }
            // Unreachable: a shard draws noise for its own form.
            _ => return Err(StepError::State { reason: "its noise is of another form" }.into()),
        };
        Ok(values.returning_to(&self.buffer))
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

/// Returns `begun` followed by any public numbers, in memory of `buffer` if `begun` is too short.
/// Reallocation would leave a copy of the noise behind, not wiped.
fn extended<Z: Copy + Default + DefaultIsZeroes>(
    mut begun: Zeroizing<Vec<Z>>,
    length: usize,
    buffer: impl FnOnce() -> Vec<Z>,
) -> Zeroizing<Vec<Z>> {
    if begun.capacity() < length {
        let mut noise = Zeroizing::new(buffer());
        // Old values are public, and will be overwritten.
        noise.truncate(length);
        let more = length - noise.len();
        noise.reserve_exact(more);
        noise.resize(length, Z::default());
        noise[..begun.len()].copy_from_slice(&begun);
        return noise;
    }
    begun.resize(length, Z::default());
    begun
}

/// Wipes and cuts off noise beyond this length.
fn cut<Z: DefaultIsZeroes>(noise: &mut Vec<Z>, length: usize) {
    noise[length..].zeroize();
    noise.truncate(length);
}

#[cfg(test)]
mod tests;
