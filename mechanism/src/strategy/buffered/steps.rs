//! The coefficients of every step, in integers.
//!
//! `y_t = g x_t + Σ_j r_j` and `r_j ← θ_j r_j + h_j x_t`, so `C[t,i] = h_ij Π_(i<l<t) θ_lj`, summed
//! over j, below a diagonal of `C[t,t] = g_t`.
//!
//! *Toeplitz:* g = 1, and h_j = ω_j and θ_j are the same at every step.
//!
//! *Variable:* see `variable`. *Periodic:* see `periodic`, which also has a delay line.
//!
//! *Power law:* `g_t = 1/N_t`, `h_tj = g_t w_j t^(a_j) (t+1)^(−b_j)` and `θ_tj = (t/(t+1))^(b_j)`,
//! all rounded down, so that no entry of C exceeds `w_j i^(a_j) t^(−b_j) / N_i`. If N_i is at least
//! the norm of the column before scaling, column norms are below 1 whatever the rounding. N_i² is 1
//! plus the sum of `f(t) = (Σ_j w_j i^(a_j) t^(−b_j))²` over i < t ≤ n. The first [`EXACT_TERMS`]
//! are summed. The rest is at most `∫ f` from half a step before to half a step after, because f is
//! convex. The exponents −b_j − b_k are below −1, so the integral stays finite as n → ∞: the norms
//! converge, and one bound holds for any n.

use super::periodic::Periodic;
use super::variable::Variable;
use super::{
    BufferedParameters, Buffers, ENDLESS_POWER_LAW_STEPS, ExponentialBuffer, MAX_BUFFERS, PowerLawBuffer,
    TWO_40, TWO_64,
};
use libm::{exp, log, log1p, pow};

/// Number of slots for buffers; the coefficients of unused ones are 0.
pub(super) const SLOTS: usize = MAX_BUFFERS as usize;

const EXACT_TERMS: u64 = 24;

/// Bound of the relative rounding error of N_i², a sum of fewer than 2⁹ positive terms with powers
/// of exponent at most 64. The relative error of each is below 2⁻⁴².
const NORM_MARGIN: f64 = 1.0 + 1.0 / (1u64 << 36) as f64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BufferStep {
    /// g in units of 2⁻⁴⁰, at most 2⁴⁰.
    pub(super) gain: i64,
    /// h in units of 2⁻⁴⁰, at most 2⁴⁰.
    pub(super) inputs: [i64; SLOTS],
    /// θ in units of 2⁻⁶⁴.
    pub(super) decays: [u64; SLOTS],
    /// All 0 without a delay line.
    pub(super) delay: DelayStep,
}

/// The coefficients of a delay line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DelayStep {
    /// g α in units of 2⁻⁴⁰, at most 2⁴⁰.
    pub(super) input: i64,
    /// β in units of 2⁻⁶⁴.
    pub(super) decay: u64,
    /// v in units of 2⁻⁶⁴: the share that each buffer inherits.
    pub(super) weights: [u64; SLOTS],
}

#[derive(Clone, Debug)]
pub(super) enum BufferCoefficients {
    Constant(BufferStep),
    PowerLaw {
        buffers: Vec<PowerLawBuffer>,
        /// Last step that the column norms cover; `None` for all.
        horizon: Option<u64>,
    },
    Variable(Variable),
    Periodic(Periodic),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RealStep {
    pub(super) gain: f64,
    pub(super) inputs: [f64; SLOTS],
    pub(super) decays: [f64; SLOTS],
    pub(super) delay: RealDelay,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RealDelay {
    pub(super) input: f64,
    pub(super) decay: f64,
    pub(super) weights: [f64; SLOTS],
}

impl BufferCoefficients {
    pub(super) fn new(parameters: &BufferedParameters) -> Self {
        match &parameters.buffers {
            Buffers::Toeplitz(buffers) => Self::Constant(constant(buffers)),
            Buffers::PowerLaw(buffers) => {
                Self::PowerLaw { buffers: buffers.clone(), horizon: parameters.horizon }
            }
            Buffers::Variable(buffers) => Self::Variable(Variable::new(buffers, parameters.steps())),
            Buffers::Periodic(periodic) => Self::Periodic(Periodic::new(periodic, parameters.steps())),
        }
    }

    /// Whether no diagonal entry of C rounds to 0.
    pub(super) fn are_invertible(&self) -> bool {
        match self {
            Self::Variable(variable) => !variable.gains.contains(&0),
            Self::Periodic(periodic) => periodic.steps.iter().all(|step| step.gain > 0),
            Self::PowerLaw { buffers, horizon } => {
                largest_norm(buffers, horizon.unwrap_or(ENDLESS_POWER_LAW_STEPS)) < TWO_40 / 2.0
            }
            Self::Constant(_) => true,
        }
    }

    /// Length of the delay line; 0 without one.
    pub(super) fn delays(&self) -> usize {
        if let Self::Periodic(periodic) = self { periodic.delays } else { 0 }
    }

    pub(super) fn step(&self, t: u64) -> BufferStep {
        match self {
            Self::Constant(step) => *step,
            Self::PowerLaw { buffers, horizon } => power_law(buffers, *horizon, t),
            Self::Variable(variable) => variable.step(t),
            Self::Periodic(periodic) => periodic.steps.get(t as usize - 1).copied().unwrap_or_default(),
        }
    }
}

impl BufferStep {
    /// Returns the real values. They are exact except for decays below 2⁻¹¹.
    pub(super) fn real(&self) -> RealStep {
        RealStep {
            gain: self.gain as f64 / TWO_40,
            inputs: self.inputs.map(|h| h as f64 / TWO_40),
            decays: self.decays.map(|a| a as f64 / TWO_64),
            delay: RealDelay {
                input: self.delay.input as f64 / TWO_40,
                decay: self.delay.decay as f64 / TWO_64,
                weights: self.delay.weights.map(|v| v as f64 / TWO_64),
            },
        }
    }
}

fn constant(buffers: &[ExponentialBuffer]) -> BufferStep {
    let mut step = BufferStep { gain: TWO_40 as i64, ..BufferStep::default() };
    for ((input, decay), buffer) in step.inputs.iter_mut().zip(&mut step.decays).zip(buffers) {
        (*input, *decay) = ((buffer.weight * TWO_40) as i64, (buffer.decay * TWO_64) as u64);
    }
    step
}

/// Every factor is lowered by more than its rounding error, so that it is rounded down. The error
/// of `exp(−b ln(1 + 1/t))` is below `2⁻⁵² (1 + 2b/t)`, and that of a power is a few units in the
/// last place.
fn power_law(buffers: &[PowerLawBuffer], horizon: Option<u64>, t: u64) -> BufferStep {
    let time = t as f64;
    let gain = down(1.0 / norm_bound(buffers, horizon, t), 4.0);
    let mut step = BufferStep { gain: (gain * TWO_40) as i64, ..BufferStep::default() };
    if horizon == Some(t) {
        return step; // nothing comes after the last step
    }
    for ((input, decay), buffer) in step.inputs.iter_mut().zip(&mut step.decays).zip(buffers) {
        let forget = exp(-buffer.decay * log1p(1.0 / time));
        let entry = gain * buffer.weight * entry(buffer, time, time + 1.0);
        *decay = (down(forget, 4.0 + 4.0 * buffer.decay / time) * TWO_64) as u64;
        *input = (down(entry, 16.0 + 4.0 * buffer.decay * (1.0 + log(time))) * TWO_40) as i64;
    }
    step
}

fn down(value: f64, positions: f64) -> f64 {
    value * (1.0 - positions * f64::EPSILON)
}

/// `i^a t^(−b)`, without powers that overflow.
fn entry(buffer: &PowerLawBuffer, i: f64, t: f64) -> f64 {
    pow(i / t, buffer.growth) * pow(t, buffer.growth - buffer.decay)
}

/// Upper bound of the norm of column i up to the horizon, before scaling.
fn norm_bound(buffers: &[PowerLawBuffer], horizon: Option<u64>, i: u64) -> f64 {
    (NORM_MARGIN * column_norm_squared(buffers, horizon, i).0).sqrt()
}

/// Upper bound of the norms of all columns, before scaling: the sum of `(i^a t^(−b))²` over t > i
/// is at most its integral `i^(2a−2b+1)/(2b−1)`, and norms obey the triangle inequality.
fn largest_norm(buffers: &[PowerLawBuffer], steps: u64) -> f64 {
    let norm = |b: &PowerLawBuffer| {
        let exponent = (2.0 * (b.growth - b.decay) + 1.0).max(0.0);
        b.weight * (pow(steps as f64, exponent) / (2.0 * b.decay - 1.0)).sqrt()
    };
    1.0 + buffers.iter().map(norm).sum::<f64>()
}

/// `N_i²` up to rounding, and its derivatives by the growth, decay and weight of every buffer.
pub(super) fn column_norm_squared(
    buffers: &[PowerLawBuffer],
    horizon: Option<u64>,
    i: u64,
) -> (f64, [[f64; 3]; SLOTS]) {
    let last = horizon.map_or(i + EXACT_TERMS, |horizon| horizon.min(i + EXACT_TERMS));
    let column = i as f64;
    let (mut square, mut slopes) = (1.0, [[0.0; 3]; SLOTS]);
    for t in (i + 1..=last).map(|t| t as f64) {
        let entries = buffers.iter().map(|b| b.weight * entry(b, column, t));
        let sum: f64 = entries.clone().sum();
        square += sum * sum;
        for ((slopes, buffer), entry) in slopes.iter_mut().zip(buffers).zip(entries) {
            let parts = [log(column), -log(t), 1.0 / buffer.weight];
            slopes.iter_mut().zip(parts).for_each(|(slope, part)| *slope += 2.0 * sum * entry * part);
        }
    }
    let ends = [Some(last), horizon].map(|t| t.map_or(f64::INFINITY, |t| t as f64 + 0.5));
    if ends[0] < ends[1] {
        tail(buffers, column, ends, &mut square, &mut slopes);
    }
    (square, slopes)
}

/// Adds `∫ (Σ_j w_j i^(a_j) t^(−b_j))² dt` between two times.
fn tail(
    buffers: &[PowerLawBuffer],
    i: f64,
    ends: [f64; 2],
    square: &mut f64,
    slopes: &mut [[f64; 3]; SLOTS],
) {
    let [from, length] = [ends[0], log(ends[1] / ends[0])];
    for (slopes, one) in slopes.iter_mut().zip(buffers) {
        for other in buffers {
            let exponent = one.decay + other.decay - 1.0;
            let weights = one.weight * other.weight;
            let all = weights * entry(one, i, from) * entry(other, i, from) * from / exponent;
            let part = all * -libm::expm1(-exponent * length);
            let end = if length.is_finite() { length * (all - part) } else { 0.0 };
            let by_decay = end - part * (log(from) + 1.0 / exponent);
            let parts = [part * log(i), by_decay, part / one.weight];
            *square += part;
            slopes.iter_mut().zip(parts).for_each(|(slope, by)| *slope += 2.0 * by);
        }
    }
}
