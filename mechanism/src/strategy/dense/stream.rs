//! `C x` with a C given entry by entry, exactly in integers modulo 2¹²⁸ (see [`Encoder`]), and
//! `C⁻¹ y` in floating point.

use super::{Dense, real};
use crate::strategy::{
    Decoder, Encoder, StepError,
    step::{self, History, Identification},
};
use std::iter;

const STATE_VERSION: u64 = 1;

/// Keeps the rows themselves. A saved encoder holds them in ring order, 16 bytes per coordinate.
pub(super) struct DenseEncoder {
    strategy: Dense,
    identification: Identification,
    history: History<i128>,
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
        Self { strategy: strategy.clone(), identification, history }
    }
}

impl Encoder for DenseEncoder {
    fn steps(&self) -> u64 {
        self.history.steps()
    }

    fn encode(&mut self, x: &[i128], y: &mut [i128]) -> Result<(), StepError> {
        self.history.check_step(self.identification.horizon, [x.len(), y.len()])?;
        y.fill(0);
        let coefficients = self.strategy.entries.row(self.steps() as usize).iter().rev();
        for (&m, row) in coefficients.zip(iter::once(x).chain(self.history.newest_first())) {
            y.iter_mut().zip(row).for_each(|(y, &x)| *y = y.wrapping_add(x.wrapping_mul(m.into())));
        }
        self.history.push(x);
        Ok(())
    }

    fn save(&self) -> Vec<u8> {
        self.identification.save(self.steps(), self.history.values())
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), StepError> {
        let (steps, rows) = self.identification.read(state)?;
        let rows = step::sums(rows)?;
        self.history = self.history.replaced(steps, rows).ok_or(step::wrong_length())?;
        Ok(())
    }
}

/// Forward substitution, `x_t = (y_t − Σ_(i<t) m_ti x_i) / m_tt`, with the entries of the encoder.
pub(super) struct DenseDecoder {
    strategy: Dense,
    history: History<f64>,
}

impl DenseDecoder {
    pub(super) fn new(strategy: &Dense, coordinates: usize) -> Self {
        Self { strategy: strategy.clone(), history: History::new(coordinates, strategy.kept()) }
    }
}

impl Decoder for DenseDecoder {
    fn steps(&self) -> u64 {
        self.history.steps()
    }

    fn decode(&mut self, y: &[f64], x: &mut [f64]) -> Result<(), StepError> {
        let entries = &self.strategy.entries;
        self.history.check_step(Some(entries.steps() as u64), [y.len(), x.len()])?;
        x.copy_from_slice(y);
        let row = entries.row(self.steps() as usize);
        let (diagonal, earlier) = row.split_last().expect("a row of a lower triangle has a diagonal entry");
        for (&m, row) in earlier.iter().rev().zip(self.history.newest_first()) {
            let coefficient = real(m);
            x.iter_mut().zip(row).for_each(|(x, earlier)| *x -= coefficient * earlier);
        }
        let diagonal = real(*diagonal);
        x.iter_mut().for_each(|x| *x /= diagonal);
        self.history.push(x);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::OPTIMAL;
    use crate::strategy::{Dense, Strategy};
    use nalgebra::DMatrix;

    fn strategy() -> Dense {
        Dense::new(OPTIMAL.name(), &DMatrix::from_row_slice(2, 2, &[1.0, 0.0, -0.5, 1.0])).unwrap()
    }

    #[test]
    fn encoding_is_exact_modulo_the_range() {
        let encoded = |rows: [i128; 2]| {
            let (mut encoder, mut y) = (strategy().encoder(1), [0]);
            rows.map(|x| {
                encoder.encode(&[x], &mut y).unwrap();
                y[0]
            })
        };
        let ([a, b], [_, c], far) = (encoded([1, 0]), encoded([0, 1]), i128::MAX >> 20);
        let expected = [far.wrapping_mul(a), far.wrapping_mul(b).wrapping_add(7 * c)];
        assert_eq!(encoded([far, 7]), expected);
    }

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
        let other = Dense::new(OPTIMAL.name(), &DMatrix::identity(2, 2)).unwrap();
        let error = strategy().encoder(1).restore(&other.encoder(1).save()).unwrap_err();
        assert!(error.to_string().contains("another strategy"), "{error}");
    }
}
