//! Sources of random bits.
//!
//! A release takes 32 fresh bytes of operating-system entropy for every shard and run of epochs
//! that close together, and expands them by ChaCha20. Every bit of the keystream is used once: the
//! noise of an epoch follows that of the epoch before. Nothing is stored on disk. No seed outlives
//! the draw of its run, so there is no key to steal, and no restored backup draws the same noise
//! twice. No generator outlives the call that made it, so a forked process shares none. (Two copies
//! of a machine cloned while it *runs* share its memory: the noise of epochs in progress.)
//!
//! The seeded source exists for tests and simulations. Releases made with it are marked
//! `private: false`.

use super::keystream::{BATCH, Keystream};
use rand::{TryCryptoRng, TryRng, rngs::SysRng};
use std::convert::Infallible;
use std::str::FromStr;
use thiserror::Error;
use zeroize::Zeroizing;

/// The generator of a shard for one epoch, or for a run of them: the keystream of ChaCha20, under a
/// fresh key and a nonce for the shard. Wiped from memory when dropped.
///
/// It gives the same bytes as `ChaCha20Rng` of the same seed and stream.
pub struct NoiseGenerator {
    keystream: Keystream,
    batch: Zeroizing<[u8; BATCH]>,
    /// Number of bytes of the batch already given out.
    given: usize,
}

impl NoiseGenerator {
    fn new(key: &[u8; 32], shard: u64) -> Self {
        let keystream = Keystream::new(key, shard);
        Self { keystream, batch: Zeroizing::new([0; BATCH]), given: BATCH }
    }

    /// Returns the generator of one stream under a secret key. The key must be used for nothing
    /// else.
    pub fn of_key(key: &[u8; 32], stream: u64) -> Self {
        Self::new(key, stream)
    }

    fn fill(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            if self.given == BATCH {
                let (whole, rest) = bytes.as_chunks_mut();
                whole.iter_mut().for_each(|batch| self.keystream.write(batch));
                bytes = rest;
                if bytes.is_empty() {
                    return;
                }
                self.keystream.write(&mut self.batch);
                self.given = 0;
            }
            let now = bytes.len().min(BATCH - self.given);
            let (piece, rest) = bytes.split_at_mut(now);
            piece.copy_from_slice(&self.batch[self.given..][..now]);
            (self.given, bytes) = (self.given + now, rest);
        }
    }

    #[inline]
    fn take<const BYTES: usize>(&mut self) -> [u8; BYTES] {
        if let Some(word) = self.batch[self.given..].first_chunk() {
            self.given += BYTES;
            return *word;
        }
        let mut word = [0; BYTES];
        self.fill(&mut word);
        word
    }
}

impl TryRng for NoiseGenerator {
    type Error = Infallible;

    #[inline]
    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(u32::from_le_bytes(self.take()))
    }

    #[inline]
    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(u64::from_le_bytes(self.take()))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.fill(bytes);
        Ok(())
    }
}

impl TryCryptoRng for NoiseGenerator {}

/// The operating system gave no entropy, so nothing may be released.
#[derive(Debug, Error)]
#[error("the operating system gave no entropy ({0}); no noise can be drawn, so nothing is released")]
pub struct EntropyError(String);

/// The source of a run's noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoiseSource {
    /// The operating system: the only source of a private release.
    System,
    /// A seed, for tests and simulations: **not private**. Equal seeds give equal noise for equal
    /// (epoch, shard).
    Seeded(u64),
    /// The noise of a seed plus an integer for every coordinate: **not private**. For tests that
    /// choose the released values.
    Shifted {
        /// The seed.
        seed: u64,
        /// The integers added to the seeded noise.
        offsets: &'static Offsets,
    },
    /// Simulates an operating system without entropy.
    #[cfg(test)]
    Exhausted,
}

impl NoiseSource {
    /// Returns whether releases with this noise are private.
    pub fn is_private(self) -> bool {
        self == NoiseSource::System
    }

    /// Returns the generator for one epoch and shard.
    ///
    /// # Errors
    /// [`EntropyError`] if the operating system fails; it is fatal.
    pub fn generator(self, epoch: u64, shard: u64) -> Result<NoiseGenerator, EntropyError> {
        let mut seed = Zeroizing::new([0u8; 32]);
        match self {
            NoiseSource::System => {
                SysRng.try_fill_bytes(&mut *seed).map_err(|error| EntropyError(error.to_string()))?
            }
            #[cfg(test)]
            NoiseSource::Exhausted => return Err(EntropyError("none is left".into())),
            NoiseSource::Seeded(number) | NoiseSource::Shifted { seed: number, .. } => {
                seed[..8].copy_from_slice(&number.to_le_bytes());
                seed[8..16].copy_from_slice(&epoch.to_le_bytes());
            }
        }
        Ok(NoiseGenerator::new(&seed, shard))
    }

    /// Returns the generators of a run of epochs of this shard.
    pub(crate) fn generators(self, shard: u64) -> RunGenerators {
        RunGenerators { source: self, shard, generator: None }
    }

    /// Returns the integers added to the noise of an epoch, from this coordinate on.
    pub(crate) fn offsets(self, epoch: u64, coordinate: u64) -> &'static [i128] {
        match self {
            NoiseSource::Shifted { offsets, .. } => offsets.from(epoch, coordinate),
            _ => &[],
        }
    }
}

/// The generators of a run of epochs of a shard. They must not outlive the call that draws the run.
pub(crate) struct RunGenerators {
    source: NoiseSource,
    shard: u64,
    generator: Option<NoiseGenerator>,
}

impl RunGenerators {
    /// Returns the generator of the next epoch to draw. The operating system gives one key for all
    /// epochs; a seed gives a key for each, so its noise does not depend on how epochs are grouped.
    ///
    /// # Errors
    /// [`EntropyError`] if the operating system fails; it is fatal.
    pub(crate) fn of_epoch(&mut self, epoch: u64) -> Result<&mut NoiseGenerator, EntropyError> {
        let generator = match self.generator.take().filter(|_| self.source == NoiseSource::System) {
            Some(generator) => generator,
            None => self.source.generator(epoch, self.shard)?,
        };
        Ok(self.generator.insert(generator))
    }
}

/// Integers that a simulation adds to seeded noise.
///
/// With the noise `z' = z + C(x − x')`, the sums `x'` are released as the same integers as `x` with
/// the noise z. Two such runs have the same output, so any other difference between the runs
/// depends on the sums. There is one integer per epoch and coordinate, all keys end to end. Missing
/// integers are zero.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Offsets(Vec<Vec<i128>>);

impl Offsets {
    /// Takes offsets by epoch, beginning with epoch 1, and by coordinate.
    pub fn new(epochs: Vec<Vec<i128>>) -> Self {
        Self(epochs)
    }

    /// Keeps the offsets until the process ends, so that a [`NoiseSource`] stays a plain value.
    pub fn leaked(self) -> &'static Self {
        Box::leak(Box::new(self))
    }

    /// Returns the offsets of an epoch, from this coordinate on.
    fn from(&self, epoch: u64, coordinate: u64) -> &[i128] {
        let row = usize::try_from(epoch).ok().and_then(|epoch| self.0.get(epoch.checked_sub(1)?));
        let rest = usize::try_from(coordinate).ok().and_then(|first| row?.get(first..));
        rest.unwrap_or_default()
    }
}

/// A field that is not an integer.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("line {line}, column {column} holds {found:?}: expected an integer of at most 128 bits, such as -12")]
pub struct OffsetsError {
    line: usize,
    column: usize,
    found: String,
}

/// Parses one line per epoch, with integers separated by commas. An empty line has none.
impl FromStr for Offsets {
    type Err = OffsetsError;

    fn from_str(text: &str) -> Result<Self, OffsetsError> {
        let number = |line: usize, (column, field): (usize, &str)| {
            let found = || field.chars().take(40).collect();
            field.trim().parse().map_err(|_| OffsetsError { line, column: column + 1, found: found() })
        };
        let row = |(line, text): (usize, &str)| match text.trim() {
            "" => Ok(Vec::new()),
            text => text.split(',').enumerate().map(|field| number(line + 1, field)).collect(),
        };
        text.lines().enumerate().map(row).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chacha20::ChaCha20Rng;
    use rand::{Rng, SeedableRng};

    fn words(source: NoiseSource, epoch: u64, shard: u64) -> [u64; 4] {
        let mut generator = source.generator(epoch, shard).unwrap();
        std::array::from_fn(|_| generator.next_u64())
    }

    #[test]
    fn system_noise_never_repeats_and_seeded_noise_always_does() {
        assert_ne!(words(NoiseSource::System, 1, 0), words(NoiseSource::System, 1, 0));
        let seeded = NoiseSource::Seeded(7);
        assert_eq!(words(seeded, 1, 0), words(seeded, 1, 0));
        assert_ne!(words(seeded, 1, 0), words(seeded, 1, 1), "another shard, another stream");
        assert_ne!(words(seeded, 1, 0), words(seeded, 2, 0), "another epoch, another key");
        assert!(NoiseSource::System.is_private() && !seeded.is_private());
    }

    #[test]
    fn block_generator_agrees_with_the_library_for_every_call_size() {
        let (key, shard) = ([7; 32], 1 << 40);
        let mut expected = ChaCha20Rng::from_seed(key);
        expected.set_stream(shard);
        let mut generator = NoiseGenerator::new(&key, shard);
        for length in [8, 1016, 1024, 40, 2000, 4, 20] {
            let mut bytes = [vec![0; length], vec![0; length]];
            generator.fill_bytes(&mut bytes[0]);
            expected.fill_bytes(&mut bytes[1]);
            assert_eq!(bytes[0], bytes[1], "{length}");
            assert_eq!(generator.next_u64(), expected.next_u64());
            assert_eq!(generator.next_u32(), expected.next_u32());
        }
    }

    #[test]
    fn missing_offsets_are_zero() {
        let offsets: Offsets = "1, -2,3\n\n-170141183460469231731687303715884105728\n".parse().unwrap();
        assert_eq!(offsets, Offsets(vec![vec![1, -2, 3], vec![], vec![i128::MIN]]));
        assert_eq!(offsets.from(1, 1), [-2, 3]);
        for (epoch, coordinate) in [(0, 0), (1, 3), (1, 4), (2, 0), (4, 0), (u64::MAX, u64::MAX)] {
            assert!(offsets.from(epoch, coordinate).is_empty());
        }
    }

    #[test]
    fn an_error_names_line_and_column() {
        let error = "1,2\n3,x4\n".parse::<Offsets>().unwrap_err();
        assert!(
            error.to_string().starts_with("line 2, column 2 holds \"x4\": expected an integer"),
            "{error}"
        );
        assert!("1,\n".parse::<Offsets>().is_err() && "1.5".parse::<Offsets>().is_err());
    }
}
