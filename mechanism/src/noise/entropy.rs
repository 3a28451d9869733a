//! Where random bits come from.
//!
//! A release takes 32 fresh bytes of operating-system entropy for every (epoch, shard) and expands them by
//! ChaCha20. Nothing is kept on disk: no seed outlives its epoch, so there is no key to steal, and no restored backup
//! draws the same noise twice. No generator outlives the call that made it, so a forked process has none to share. (Two copies of a machine cloned while it *runs* share what is in memory: the noise of the
//! epoch in progress.) The seeded source exists for tests and
//! simulations; releases made with it are marked `private: false`.

use chacha20::ChaCha20Rng;
use rand::{SeedableRng, TryRng, rngs::SysRng};
use thiserror::Error;
use zeroize::Zeroizing;

/// The generator of one epoch and shard. Wiped from memory when dropped.
pub type NoiseGenerator = ChaCha20Rng;

/// The operating system gave no entropy: nothing may be released.
#[derive(Debug, Error)]
#[error("the operating system gave no entropy ({0}); no noise can be drawn, so nothing is released")]
pub struct EntropyError(String);

/// Where the noise of a run comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoiseSource {
    /// The operating system: the only source of a private release.
    System,
    /// A seed, for tests and simulations: **not private**. Equal seeds give equal noise for equal (epoch, shard).
    Seeded(u64),
    /// An operating system that has no entropy.
    #[cfg(test)]
    Exhausted,
}

impl NoiseSource {
    /// Whether releases with this noise are private.
    pub fn is_private(self) -> bool {
        self == NoiseSource::System
    }

    /// The generator for one epoch and shard.
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
            NoiseSource::Seeded(number) => {
                seed[..8].copy_from_slice(&number.to_le_bytes());
                seed[8..16].copy_from_slice(&epoch.to_le_bytes());
            }
        }
        let mut generator = NoiseGenerator::from_seed(*seed);
        generator.set_stream(shard);
        Ok(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::Rng;

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
}
