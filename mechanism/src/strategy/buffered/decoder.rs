//! `C⁻¹ y` in floating point.

use super::Buffered;
use crate::strategy::{Decoder, StepError};

/// The inverted recursion `x_t = (y_t − Σ_j r_j)/g_t`, with the encoder's coefficients and number
/// of buffers.
pub(super) struct BufferedDecoder<const B: usize> {
    strategy: Buffered,
    steps: u64,
    buffers: Vec<[f64; B]>,
}

impl<const B: usize> BufferedDecoder<B> {
    pub(super) fn new(strategy: &Buffered, coordinates: usize) -> Self {
        Self { strategy: strategy.clone(), steps: 0, buffers: vec![[0.0; B]; coordinates] }
    }
}

impl<const B: usize> Decoder for BufferedDecoder<B> {
    fn steps(&self) -> u64 {
        self.steps
    }

    fn decode(&mut self, y: &[f64], x: &mut [f64]) -> Result<(), StepError> {
        self.strategy.check_step(self.steps, [y.len(), x.len()], self.buffers.len())?;
        self.steps += 1;
        let step = self.strategy.coefficients.step(self.steps).real();
        let (inputs, decays): ([f64; B], [f64; B]) =
            (std::array::from_fn(|j| step.inputs[j]), std::array::from_fn(|j| step.decays[j]));
        let scale = 1.0 / step.gain;
        for ((r, &y), x) in self.buffers.iter_mut().zip(y).zip(x) {
            *x = (y - r.iter().sum::<f64>()) * scale;
            for j in 0..B {
                r[j] = decays[j] * r[j] + inputs[j] * *x;
            }
        }
        Ok(())
    }
}
