//! The bytes of a saved encoder: four 64-bit words in little-endian order (version, fingerprint of the strategy,
//! number of coordinates, number of steps) and then the rows held, 16 bytes a value.

use super::StepError;
use zeroize::Zeroizing;

const STATE_VERSION: u64 = 1;

/// Whose state it is: what must agree between the encoder that saves and the one that restores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    /// Tells a strategy from others.
    pub(super) fingerprint: u64,
    /// Number of coordinates.
    pub(super) coordinates: usize,
    /// Most steps there can have been.
    pub(super) horizon: Option<u64>,
}

impl Owner {
    fn words(&self) -> [u64; 3] {
        [STATE_VERSION, self.fingerprint, self.coordinates as u64]
    }

    pub(super) fn save(&self, steps: u64, values: &[i128]) -> Vec<u8> {
        let words = self.words().into_iter().chain([steps]);
        let mut state: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        // At once, so that growing leaves no copy of raw sums behind.
        state.reserve_exact(size_of_val(values));
        state.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        state
    }

    /// The number of steps and the values; whether their number fits is for the caller to tell.
    pub(super) fn restore(&self, state: &[u8]) -> Result<(u64, Zeroizing<Vec<i128>>), StepError> {
        let (words, values) = state.split_at_checked(32).ok_or(refused("it is shorter than its header"))?;
        let mut words = words.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let reasons = [
            "it is of another version",
            "it was saved by another strategy or for another horizon",
            "it was saved for another number of coordinates",
        ];
        for (expected, reason) in self.words().into_iter().zip(reasons) {
            words.next().filter(|&found| found == expected).ok_or(refused(reason))?;
        }
        let within = |steps: &u64| self.horizon.is_none_or(|horizon| *steps <= horizon);
        let steps = words.next().filter(within).ok_or(refused("it has more steps than the horizon"))?;
        let (values, rest) = values.as_chunks();
        if !rest.is_empty() {
            return Err(wrong_length());
        }
        Ok((steps, Zeroizing::new(values.iter().map(|value| i128::from_le_bytes(*value)).collect())))
    }
}

/// FNV-1a over the bytes of what a strategy is made of.
pub(super) fn fingerprint(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

pub(super) fn wrong_length() -> StepError {
    refused("its length does not fit its number of steps")
}

fn refused(reason: &'static str) -> StepError {
    StepError::State { reason }
}
