//! C⁻¹: the decoder, and for a Toeplitz C its form, which is that of C.
//!
//! C is the series `1 + Σ ω_j z/(1 − θ_j z)`, which with λ = 1/z is the function
//! `q(λ) = 1 + Σ ω_j/(λ − θ_j)`. All ω are positive, so q decreases between any two poles and has
//! one zero there, and one below the last pole: the poles θ̂_j of the inverse lie between those of
//! C. The weights of the inverse are the residues of 1/q, `ω̂_j = 1/q′(θ̂_j)`, all negative.
//! Computations use the complements 1 − θ, which keep their digits if θ is near 1.

use super::{Buffered, Buffers, Decoder, ExponentialBuffer, StepError};

/// A buffer of the inverse: `C⁻¹[t,i] = Σ_j ω̂_j θ̂_j^(t−i−1)` below a diagonal of ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InverseBuffer {
    /// θ̂, above −1 and below 1.
    pub decay: f64,
    /// ω̂, below 0.
    pub weight: f64,
    /// 1 − θ̂, to full precision.
    pub complement: f64,
}

impl Buffered {
    /// C⁻¹ in the form of C, slowest buffer first; `None` for a power law, which has no such form.
    pub fn inverse(&self) -> Option<Vec<InverseBuffer>> {
        match &self.parameters.buffers {
            Buffers::Toeplitz(buffers) => Some(inverse(buffers)),
            Buffers::PowerLaw(_) => None,
        }
    }
}

fn inverse(buffers: &[ExponentialBuffer]) -> Vec<InverseBuffer> {
    let slope = |pole: f64| -> f64 {
        buffers.iter().map(|b| (b.weight, 1.0 - b.decay - pole)).map(|(w, d)| w / (d * d)).sum()
    };
    let poles = inverse_complements(buffers).into_iter();
    poles
        .map(|pole| InverseBuffer { decay: 1.0 - pole, weight: -1.0 / slope(pole), complement: pole })
        .collect()
}

pub(super) fn complements(buffers: &[ExponentialBuffer]) -> Vec<f64> {
    buffers.iter().map(|b| 1.0 - b.decay).collect()
}

/// All 1 − θ̂_j, by bisection to the last digit.
pub(super) fn inverse_complements(buffers: &[ExponentialBuffer]) -> Vec<f64> {
    let complements = complements(buffers);
    let weights: f64 = buffers.iter().map(|b| b.weight).sum();
    let last = complements.last().map(|last| last + 2.0 * weights);
    let ends = complements[1..].iter().copied().chain(last);
    let value =
        |at: f64| 1.0 + buffers.iter().zip(&complements).map(|(b, c)| b.weight / (c - at)).sum::<f64>();
    let root = |(mut low, mut high): (f64, f64)| loop {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            return middle;
        }
        *(if value(middle) < 0.0 { &mut low } else { &mut high }) = middle;
    };
    complements.iter().copied().zip(ends).map(root).collect()
}

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
