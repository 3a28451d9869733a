//! Coefficients that vary with time: the same number of buffers as a BLT, and columns of norm 1.
//!
//! ```text
//! C[t,i] = g_i (δ_ti + Σ_j v_j(i) Π_(i<l<t) θ_j(l)),    g_i > 0: column i has norm 1
//! ```
//!
//! With b buffers, the blocks of C below the diagonal have rank b. The optimal C has nearly such
//! blocks for workloads with exponential memory. So a few buffers come close to it at both ends of
//! the stream, where it is not Toeplitz.
//!
//! *Curves.* The logarithms of θ/(1 − θ) and of v are smooth in log t near the start of the stream
//! and in log (n − t) near its end. So each is a cubic B-spline with uniform knots over
//! `z(t) = log((t − ½)/(n + ½ − t))`, and a stored strategy has a few hundred numbers at any
//! horizon. Curves are evaluated by single IEEE operations and `libm`, and then rounded down to
//! integers. These integers are the strategy.
//!
//! *Gains.* A unit in buffer j after step i adds `Π_(i<l<t) θ_j(l)` to step t. Let G_i hold the
//! products of these columns for all pairs of buffers: `G_n = 0` and
//! `G_(i−1) = 1 1ᵀ + Θ_i G_i Θ_i`. So column i has the norm `g_i √(1 + v_iᵀ G_i v_i)`. All terms
//! are positive, and each step of G rounds three times, so the relative error of the computed
//! square is at most `(3n + 3b² + 4) 2⁻⁵³`. The gain is lowered by `(4n + 64) 2⁻⁵²`, which is more
//! than half of that for b ≤ 8, and `g v` is rounded down. So no column exceeds norm 1.

use super::steps::{BufferStep, SLOTS};
use super::{TWO_40, TWO_64, VariableBuffer};
use crate::series::cubic_splines;
use libm::{exp, log};
use std::sync::Arc;

/// The curves of a strategy, its gains, and bounds of its buffers.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    curves: Curves,
    /// g of every step, in units of 2⁻⁴⁰.
    pub(super) gains: Arc<[i64]>,
    /// Upper bound of `Σ_(s≤t) Π_(s≤l<t) θ_j(l)` over all t, for every buffer.
    pub(super) kept: [f64; SLOTS],
}

impl Variable {
    pub(super) fn new(buffers: &[VariableBuffer], horizon: u64) -> Self {
        let curves = Curves { buffers: buffers.to_vec().into(), horizon };
        let gains = gains(&curves);
        let kept = kept(&curves);
        Self { curves, gains, kept }
    }

    pub(super) fn step(&self, t: u64) -> BufferStep {
        let gain = self.gains.get(t as usize - 1).copied().unwrap_or(0);
        let mut step = BufferStep { gain, ..BufferStep::default() };
        if t >= self.curves.horizon {
            return step; // nothing comes after the last step
        }
        let point = self.curves.at(t);
        for (j, (input, decay)) in step.inputs.iter_mut().zip(&mut step.decays).enumerate() {
            *decay = (point.decays[j] * TWO_64) as u64;
            // A product of two rounded numbers, lowered by more than its rounding.
            *input = (point.weights[j] * gain as f64 * (1.0 - 4.0 * f64::EPSILON)) as i64;
        }
        step
    }
}

/// θ and v of a step.
struct CurvePoint {
    decays: [f64; SLOTS],
    weights: [f64; SLOTS],
}

#[derive(Clone, Debug)]
struct Curves {
    buffers: Arc<[VariableBuffer]>,
    horizon: u64,
}

impl Curves {
    /// θ, a multiple of 2⁻⁶⁴, and v; 0 beyond the buffers in use.
    fn at(&self, t: u64) -> CurvePoint {
        let mut point = CurvePoint { decays: [0.0; SLOTS], weights: [0.0; SLOTS] };
        let Some(knots) = self.buffers.first().map(|buffer| buffer.decay.len()) else { return point };
        let (first, shares) = shares(self.horizon, knots, t as f64);
        let value = |curve: &[f64]| -> f64 {
            shares.iter().zip(&curve[first..]).map(|(share, value)| share * value).sum()
        };
        for (j, buffer) in self.buffers.iter().enumerate() {
            point.decays[j] = (logistic(value(&buffer.decay)) * TWO_64).floor() / TWO_64;
            point.weights[j] = exp(value(&buffer.weight));
        }
        point
    }
}

/// `1/(1 + e^(−x))`, below 1.
pub(super) fn logistic(x: f64) -> f64 {
    (1.0 / (1.0 + exp(-x))).min(1.0 - f64::EPSILON)
}

/// Index of the first B-spline that is not zero at step t, and the values of four from it on.
pub(super) fn shares(horizon: u64, knots: usize, t: f64) -> (usize, [f64; 4]) {
    let last = horizon as f64;
    let z = |t: f64| log((t - 0.5) / ((last - t) + 0.5));
    let end = z(last);
    let along = if end > 0.0 { 0.5 * (z(t) / end + 1.0) } else { 0.5 };
    let position = (along * (knots - 3) as f64).max(0.0);
    let first = (position as usize).min(knots - 4);
    (first, cubic_splines(position - first as f64))
}

/// The gains of all steps, from the last column back.
fn gains(curves: &Curves) -> Arc<[i64]> {
    let steps = curves.horizon;
    let margin = 1.0 - (4 * steps + 64) as f64 * f64::EPSILON;
    let count = curves.buffers.len();
    let mut gains = vec![0; steps as usize];
    let mut below = [[0.0; SLOTS]; SLOTS];
    for (before, gain) in gains.iter_mut().enumerate().rev() {
        let CurvePoint { decays, weights } = curves.at(before as u64 + 1);
        let mut square = 1.0;
        for j in 0..count {
            for k in 0..count {
                square += weights[j] * below[j][k] * weights[k];
                below[j][k] = 1.0 + decays[j] * below[j][k] * decays[k];
            }
        }
        *gain = (margin / square.sqrt() * TWO_40) as i64;
    }
    gains.into()
}

fn kept(curves: &Curves) -> [f64; SLOTS] {
    let (mut kept, mut most) = ([0.0; SLOTS], [0.0f64; SLOTS]);
    for t in 1..=curves.horizon {
        let decays = curves.at(t).decays;
        for j in 0..curves.buffers.len() {
            kept[j] = 1.0 + kept[j] * decays[j];
            most[j] = most[j].max(kept[j]);
        }
    }
    most.map(|kept| kept * (1.0 + (curves.horizon + 8) as f64 * f64::EPSILON))
}
