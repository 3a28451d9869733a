//! Buffers for records that take part several times, at gaps of b steps.
//!
//! ```text
//! w_t = g_t x_t − d_p                      p = t mod b, the phase of the step
//! y_t = w_t + Σ_j r_j
//! r_j ← θ_j(t) r_j + v_j(t) w_t            d_p ← β(t) d_p + α(t) g_t x_t
//! ```
//!
//! *Curves.* Each coefficient is a curve over the horizon, as in `variable`, plus a step function
//! of the phase. So a buffer can forget at the same phase of every gap, and few columns overlap
//! with those one gap later.
//!
//! *Delay line.* The columns of the best C under (k, b)-participation are orthogonal at lags of
//! multiples of b (the dual in `optimize` has a multiplier of either sign for each such overlap).
//! They decrease slowly up to lag b and change sign there. Buffers alone can't do this. The delay
//! line d has one number for each phase. It subtracts from a step the remainder of earlier steps of
//! its phase: `C = T V G` with the matrix T of the buffers, the gains G, and a V between steps of
//! one phase. V removes overlaps at multiples of the gap, T keeps the sums of all phases.
//!
//! *Exact.* g, `g v` and `g α` are multiples of 2⁻⁴⁰; θ, v and β are multiples of 2⁻⁶⁴. These
//! integers are the strategy. A column is computed from them entry by entry. Compare it with the
//! column that has `+ d_p` in place of `− d_p`, whose terms are all at least 0. A step rounds each
//! term at most five times, so after n steps the error of an entry is below the share
//! `(n + 8) 2⁻⁵⁰` of that column. The sensitivity to a participation comes from the whole matrix.

use super::steps::{BufferStep, DelayStep, SLOTS};
use super::variable::{logistic, shares};
use super::{MAX_KNOTS, MAX_LOGARITHM, TWO_40, TWO_64, rows};
use crate::strategy::MAX_DENSE_HORIZON;
use libm::exp;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Maximum number of parts of a gap with values of their own.
const MAX_CELLS: usize = 4096;

/// Buffers for records that take part every `gap` steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeriodicBuffers {
    /// b, the number of steps from one participation of a record to the next.
    pub gap: u32,
    /// The logarithm of g, the diagonal of C.
    pub gain: PeriodicCurve,
    /// The buffers.
    pub buffers: Vec<PeriodicBuffer>,
    /// β and α of a delay line, or `None` without one.
    pub delay: Option<PeriodicBuffer>,
}

/// A buffer, or a delay line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeriodicBuffer {
    /// The logarithm of θ/(1 − θ), where θ is the decay.
    pub decay: PeriodicCurve,
    /// The logarithm of v, the weight of the input, which is cut to less than 1.
    pub weight: PeriodicCurve,
}

/// A curve over the horizon plus a step function of the phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeriodicCurve {
    /// Coefficients of B-splines, as in [`VariableBuffer`](super::VariableBuffer). All curves of a
    /// strategy have the same number, 4 to 256, each between −40 and 40.
    pub ends: Vec<f64>,
    /// Values between −40 and 40 for equal parts of the gap, from its first step on. There is at
    /// most one for each step; a curve that does not depend on the phase has no values.
    pub phases: Vec<f64>,
}

impl PeriodicBuffers {
    pub(super) fn curves(&self) -> impl Iterator<Item = &PeriodicCurve> {
        let pairs = self.buffers.iter().chain(&self.delay).flat_map(|buffer| [&buffer.decay, &buffer.weight]);
        std::iter::once(&self.gain).chain(pairs)
    }

    /// Returns the reason why the parameters are invalid, if they are.
    pub(super) fn reason(&self) -> Option<&'static str> {
        let (knots, gap) = (self.gain.ends.len(), self.gap as usize);
        let values = |curve: &PeriodicCurve| {
            curve.ends.iter().chain(&curve.phases).all(|value| value.abs() <= MAX_LOGARITHM)
        };
        match () {
            () if !(1..=MAX_DENSE_HORIZON).contains(&u64::from(self.gap)) => {
                Some("expected a gap of 1 to 4096 steps")
            }
            () if !(4..=MAX_KNOTS).contains(&knots)
                || self.curves().any(|curve| curve.ends.len() != knots) =>
            {
                Some("expected curves of 4 to 256 coefficients, all of the same number")
            }
            () if self.curves().any(|curve| curve.phases.len() > gap.min(MAX_CELLS)) => {
                Some("expected at most one value for each step of the gap, and at most 4096")
            }
            () if !self.curves().all(values) => Some("expected coefficients of curves between -40 and 40"),
            () => None,
        }
    }
}

impl PeriodicCurve {
    fn at(&self, t: u64, gap: u32, (first, shares): &(usize, [f64; 4])) -> f64 {
        let ends: f64 = shares.iter().zip(&self.ends[*first..]).map(|(share, value)| share * value).sum();
        ends + self.phases.get(cell(t, gap, self.phases.len())).copied().unwrap_or(0.0)
    }
}

/// Returns which of `cells` equal parts of the gap contains step t.
pub(super) fn cell(t: u64, gap: u32, cells: usize) -> usize {
    (((t - 1) % u64::from(gap)) * cells as u64 / u64::from(gap)) as usize
}

/// The coefficients of all steps, and bounds of the strategy's state.
#[derive(Clone, Debug)]
pub(super) struct Periodic {
    pub(super) steps: Arc<[BufferStep]>,
    /// The gap if there is a delay line, or 0.
    pub(super) delays: usize,
    /// Upper bounds of the rounding errors, in units, of all buffers and of the delay line.
    pub(super) kept: Vec<f64>,
    /// Largest squared norm of a column, rounded up.
    pub(super) largest: f64,
}

impl Periodic {
    pub(super) fn new(parameters: &PeriodicBuffers, horizon: u64) -> Self {
        let steps: Arc<[BufferStep]> = (1..=horizon).map(|t| step(parameters, horizon, t)).collect();
        let delays = if parameters.delay.is_some() { parameters.gap as usize } else { 0 };
        let kept = kept(&steps, parameters.buffers.len(), delays);
        let largest = rows::largest_column(&steps, delays);
        Self { steps, delays, kept, largest }
    }
}

fn step(parameters: &PeriodicBuffers, horizon: u64, t: u64) -> BufferStep {
    let shares = shares(horizon, parameters.gain.ends.len(), t as f64);
    let value = |curve: &PeriodicCurve| curve.at(t, parameters.gap, &shares);
    let below_one = |value: f64| value.min(1.0 - f64::EPSILON);
    let gain = (exp(value(&parameters.gain)).min(1.0) * TWO_40) as i64;
    let mut step = BufferStep { gain, ..BufferStep::default() };
    for (j, buffer) in parameters.buffers.iter().enumerate() {
        let weight = below_one(exp(value(&buffer.weight)));
        step.decays[j] = (logistic(value(&buffer.decay)) * TWO_64) as u64;
        step.inputs[j] = (weight * gain as f64) as i64;
        step.delay.weights[j] = (weight * TWO_64) as u64;
    }
    match &parameters.delay {
        Some(delay) => {
            let weight = below_one(exp(value(&delay.weight)));
            step.delay.decay = (logistic(value(&delay.decay)) * TWO_64) as u64;
            step.delay.input = (weight * gain as f64) as i64;
        }
        None => step.delay = DelayStep::default(),
    }
    step
}

/// Sums of products of decays, which bound the errors. The delay line errs by at most a unit in
/// each update, so by at most `D = max_t Σ Π β`. A buffer errs by at most 2 units in an update that
/// reads the delay line, and inherits at most `v_j D`.
fn kept(steps: &[BufferStep], buffers: usize, delays: usize) -> Vec<f64> {
    let (mut sums, mut most, mut weights) = ([0.0; SLOTS], [0.0f64; SLOTS], [0.0f64; SLOTS]);
    let (mut lines, mut longest) = (vec![0.0; delays], 0.0f64);
    for (t, step) in steps.iter().enumerate() {
        let step = step.real();
        for j in 0..buffers {
            sums[j] = 1.0 + sums[j] * step.decays[j];
            most[j] = most[j].max(sums[j]);
            weights[j] = weights[j].max(step.delay.weights[j]);
        }
        if delays > 0 {
            lines[t % delays] = 1.0 + lines[t % delays] * step.delay.decay;
            longest = longest.max(lines[t % delays]);
        }
    }
    let of_update = |j: usize| if delays > 0 { 2.0 + weights[j] * longest } else { 1.0 };
    let up = 1.0 + (4 * steps.len() + 64) as f64 * f64::EPSILON;
    let all = (0..buffers).map(|j| most[j] * of_update(j));
    all.chain((delays > 0).then_some(longest)).map(|kept| kept * up).collect()
}
