//! `C x` with a C given entry by entry, exactly in integers.

use super::Dense;
use crate::strategy::{
    Encoder, StepError,
    history::History,
    step::{self, Identification},
};
use std::iter;

const STATE_VERSION: u64 = 1;

/// Keeps the rows themselves; a saved one holds them in the order of their ring, 16 bytes a coordinate.
pub(super) struct DenseEncoder {
    strategy: Dense,
    /// Largest sum of the magnitudes in a row of C.
    weight: u128,
    identification: Identification,
    history: History<i128>,
    /// At least the magnitude of every value held.
    largest: u128,
}

impl DenseEncoder {
    pub(super) fn new(strategy: &Dense, coordinates: usize) -> Self {
        let entries = &strategy.entries;
        let identification = Identification {
            version: STATE_VERSION,
            fingerprint: step::fingerprint(entries.all().iter().flat_map(|m| m.to_le_bytes())),
            coordinates,
            horizon: Some(entries.steps() as u64),
        };
        let history = History::new(coordinates, strategy.kept());
        Self {
            weight: entries.largest_row_sum(),
            strategy: strategy.clone(),
            identification,
            history,
            largest: 0,
        }
    }
}

impl Encoder for DenseEncoder {
    fn steps(&self) -> u64 {
        self.history.steps()
    }

    /// `Σ|m| · max|x|` bounds every partial sum: a step for which that leaves the range is refused.
    fn encode(&mut self, x: &[i128], y: &mut [i128]) -> Result<(), StepError> {
        let horizon = self.identification.horizon;
        step::check_step(horizon, self.steps(), self.identification.coordinates, [x.len(), y.len()])?;
        let largest = x.iter().map(|x| x.unsigned_abs()).fold(self.largest, u128::max);
        let bound = largest.checked_mul(self.weight).ok_or(StepError::Overflow)?;
        i128::try_from(bound).map_err(|_| StepError::Overflow)?;
        y.fill(0);
        let coefficients = self.strategy.entries.row(self.steps() as usize).iter().rev();
        for (&m, row) in coefficients.zip(iter::once(x).chain(self.history.newest_first())) {
            y.iter_mut().zip(row).for_each(|(y, &x)| *y += x * i128::from(m));
        }
        self.largest = largest;
        self.history.push(x);
        Ok(())
    }

    fn save(&self) -> Vec<u8> {
        let values = self.history.values();
        let mut state = self.identification.header(self.steps(), size_of_val(values));
        state.extend(values.iter().flat_map(|x| x.to_le_bytes()));
        state
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), StepError> {
        let (steps, rows) = self.identification.read(state)?;
        let rows = step::sums(rows)?;
        let largest = rows.iter().map(|x| x.unsigned_abs()).fold(0, u128::max);
        let history = self.history.replaced(steps, rows);
        self.history = history.ok_or(step::refused("its length does not fit its number of steps"))?;
        self.largest = largest;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::strategy::{Dense, StepError, Strategy, StrategyName};
    use nalgebra::DMatrix;

    fn strategy() -> Dense {
        Dense::new(StrategyName::Optimal, &DMatrix::from_row_slice(2, 2, &[1.0, 0.0, -0.5, 1.0])).unwrap()
    }

    /// What was taken in before counts for the range of a later step.
    #[test]
    fn steps_that_can_leave_the_range_are_refused() {
        let (mut encoder, mut y) = (strategy().encoder(1), [0]);
        let limit = i128::MAX >> 41;
        assert_eq!(encoder.encode(&[2 * limit], &mut y), Err(StepError::Overflow));
        encoder.encode(&[limit], &mut y).unwrap();
        assert_eq!(encoder.encode(&[i128::MIN], &mut y), Err(StepError::Overflow));
        let mut restored = strategy().encoder(1);
        restored.restore(&encoder.save()).unwrap();
        for mut encoder in [encoder, restored] {
            assert_eq!(encoder.encode(&[2 * limit], &mut y), Err(StepError::Overflow));
            encoder.encode(&[limit], &mut y).unwrap();
            assert_eq!(encoder.steps(), 2);
        }
    }

    /// States on disk must stay readable.
    #[test]
    fn the_saved_bytes_are_those_of_version_1() {
        let mut encoder = strategy().encoder(1);
        encoder.encode(&[-2], &mut [0]).unwrap();
        let header = [1, 0, 1, 1].map(u64::to_le_bytes).concat();
        let saved = encoder.save();
        assert_eq!((&saved[..8], &saved[16..32]), (&header[..8], &header[16..]));
        assert_eq!(saved[32..], (-2i128).to_le_bytes());
    }

    #[test]
    fn another_matrix_is_told_apart() {
        let other = Dense::new(StrategyName::Optimal, &DMatrix::identity(2, 2)).unwrap();
        let error = strategy().encoder(1).restore(&other.encoder(1).save()).unwrap_err();
        assert!(error.to_string().contains("another strategy"), "{error}");
    }
}
