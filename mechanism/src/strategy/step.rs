//! Helpers for encoders and decoders: checks before a step, the last rows of a stream, and the
//! format of saved encoders.
//!
//! A saved encoder is four 64-bit words in little-endian order (version, fingerprint of the
//! strategy, number of coordinates, number of steps), followed by the strategy's own state.

use super::StepError;
use zeroize::{Zeroize, Zeroizing};

const HEADER_BYTES: usize = 32;

/// Checks that a step can follow `steps` steps, with rows of these lengths.
pub(super) fn check_step(
    horizon: Option<u64>,
    steps: u64,
    expected: usize,
    rows: [usize; 2],
) -> Result<(), StepError> {
    if let Some(horizon) = horizon.filter(|&horizon| steps >= horizon) {
        return Err(StepError::PastHorizon { horizon });
    }
    match rows.into_iter().find(|&found| found != expected) {
        Some(found) => Err(StepError::Coordinates { found, expected }),
        None => Ok(()),
    }
}

pub(super) struct Identification {
    pub(super) version: u64,
    pub(super) fingerprint: u64,
    pub(super) coordinates: usize,
    pub(super) horizon: Option<u64>,
}

impl Identification {
    /// The header of a saved state, with capacity for `more` bytes: growing would leave copies of
    /// raw sums in freed memory.
    pub(super) fn header(&self, steps: u64, more: usize) -> Vec<u8> {
        let mut state = Vec::with_capacity(HEADER_BYTES + more);
        let words = [self.version, self.fingerprint, self.coordinates as u64, steps];
        state.extend(words.into_iter().flat_map(u64::to_le_bytes));
        state
    }

    pub(super) fn save(&self, steps: u64, values: &[i128]) -> Vec<u8> {
        let mut state = self.header(steps, size_of_val(values));
        state.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        state
    }

    /// Number of steps in the header of a saved state, and the bytes after it.
    pub(super) fn read<'a>(&self, state: &'a [u8]) -> Result<(u64, &'a [u8]), StepError> {
        let (words, rest) =
            state.split_at_checked(HEADER_BYTES).ok_or(refused("it is shorter than its header"))?;
        let mut words = words.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let expected = [
            (self.version, "it is of another version"),
            (self.fingerprint, "it was saved by another strategy or for another horizon"),
            (self.coordinates as u64, "it was saved for another number of coordinates"),
        ];
        for (expected, reason) in expected {
            words.next().filter(|&found| found == expected).ok_or(refused(reason))?;
        }
        let within = |steps: &u64| self.horizon.is_none_or(|horizon| *steps <= horizon);
        let steps = words.next().filter(within).ok_or(refused("it has more steps than the horizon"))?;
        Ok((steps, rest))
    }
}

pub(super) fn wrong_length() -> StepError {
    refused("its length does not fit its number of steps")
}

pub(super) fn sums(bytes: &[u8]) -> Result<Zeroizing<Vec<i128>>, StepError> {
    match bytes.as_chunks() {
        (sums, []) => Ok(Zeroizing::new(sums.iter().map(|sum| i128::from_le_bytes(*sum)).collect())),
        _ => Err(wrong_length()),
    }
}

pub(super) fn refused(reason: &'static str) -> StepError {
    StepError::State { reason }
}

/// FNV-1a hash: distinguishes strategies in saved states.
pub(super) fn fingerprint(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let absorb = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, absorb)
}

/// The newest rows of a stream, up to a fixed number, wiped from memory when dropped.
///
/// Rows are stored in a ring, which grows until it holds `kept` rows.
pub(super) struct History<T: Copy + Zeroize> {
    coordinates: usize,
    kept: usize,
    steps: u64,
    rows: Zeroizing<Vec<T>>,
}

impl<T: Copy + Zeroize> History<T> {
    pub(super) fn new(coordinates: usize, kept: usize) -> Self {
        Self { coordinates, kept, steps: 0, rows: Zeroizing::new(Vec::new()) }
    }

    /// Returns this history after `steps` rows, with `rows` as the content of the ring; `None` if
    /// the number of values does not match.
    pub(super) fn replaced(&self, steps: u64, rows: Zeroizing<Vec<T>>) -> Option<Self> {
        let (coordinates, kept) = (self.coordinates, self.kept);
        let fits = stored_rows(steps, kept).checked_mul(coordinates) == Some(rows.len());
        fits.then_some(Self { coordinates, kept, steps, rows })
    }

    /// As [`replaced`](Self::replaced), within a horizon.
    pub(super) fn resumed(&self, horizon: Option<u64>, steps: u64, rows: &[T]) -> Result<Self, StepError> {
        let within = horizon.is_none_or(|horizon| steps <= horizon);
        let resumed = within.then(|| self.replaced(steps, Zeroizing::new(rows.to_vec()))).flatten();
        resumed.ok_or_else(wrong_length)
    }

    /// Raises the number of rows kept. No row may have been dropped yet.
    pub(super) fn keep(&mut self, kept: usize) {
        self.kept = kept;
    }

    /// Checks that the next step can follow, with rows of these lengths.
    pub(super) fn check_step(&self, horizon: Option<u64>, rows: [usize; 2]) -> Result<(), StepError> {
        check_step(horizon, self.steps, self.coordinates, rows)
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    pub(super) fn coordinates(&self) -> usize {
        self.coordinates
    }

    pub(super) fn values(&self) -> &[T] {
        &self.rows
    }

    pub(super) fn newest_first(&self) -> impl Iterator<Item = &[T]> {
        let next = self.next();
        let positions = (0..next).rev().chain((next..stored_rows(self.steps, self.kept)).rev());
        positions.map(|position| &self.rows[position * self.coordinates..][..self.coordinates])
    }

    /// Adds a row of `coordinates` values; drops the oldest if `kept` rows are held.
    pub(super) fn push(&mut self, row: &[T]) {
        if self.kept > 0 {
            let start = self.next() * self.coordinates;
            match self.rows.get_mut(start..start + self.coordinates) {
                Some(position) => position.copy_from_slice(row),
                None => self.append(row),
            }
        }
        self.steps += 1;
    }

    /// Ring position of the next row; while the ring grows, the number of rows held.
    fn next(&self) -> usize {
        self.steps.checked_rem(self.kept as u64).unwrap_or(0) as usize
    }

    /// Appends a row. If needed, copies to a larger buffer and wipes the old one: a vector that
    /// grows by itself would leave a copy of its values in freed memory.
    fn append(&mut self, row: &[T]) {
        if self.rows.len() + row.len() > self.rows.capacity() {
            let mut larger = Zeroizing::new(Vec::with_capacity(2 * (self.rows.len() + row.len())));
            larger.extend_from_slice(&self.rows);
            self.rows = larger;
        }
        self.rows.extend_from_slice(row);
    }
}

fn stored_rows(steps: u64, kept: usize) -> usize {
    steps.min(kept as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_rows_are_kept() {
        for kept in 0..5 {
            for coordinates in 0..3 {
                let mut history = History::new(coordinates, kept);
                for step in 0..12i128 {
                    let expected: Vec<_> = (0..step).rev().take(kept).map(|s| vec![s; coordinates]).collect();
                    assert_eq!(history.newest_first().collect::<Vec<_>>(), expected);
                    assert_eq!(history.steps(), step as u64);
                    history.push(&vec![step; coordinates]);
                }
            }
        }
    }
}
