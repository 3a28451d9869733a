//! `C⁻¹ y` with a C given entry by entry, in floating point.

use super::{Dense, real};
use crate::strategy::{Decoder, StepError, history::History, step};

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
        let horizon = Some(entries.steps() as u64);
        step::check_step(horizon, self.steps(), self.history.coordinates(), [y.len(), x.len()])?;
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
