//! Parameters of a buffered strategy, as stored in a log.

use crate::strategy::{StrategyError, StrategyName};
use serde::{Deserialize, Serialize};

/// Largest number of buffers of a buffered strategy.
pub const MAX_BUFFERS: u32 = 8;

/// Most steps of a Toeplitz strategy made for an unbounded stream: one step a second for 136 years.
pub const ENDLESS_TOEPLITZ_STEPS: u64 = 1 << 32;

/// Most steps of a power law made for an unbounded stream: one step a minute for 31 years.
pub const ENDLESS_POWER_LAW_STEPS: u64 = 1 << 24;

const MAX_EXPONENT: f64 = 64.0;

/// All parameters needed to rebuild exactly the same C.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BufferedParameters {
    /// Number of steps it was fitted for; `None` for an unbounded stream.
    pub horizon: Option<u64>,
    /// The buffers.
    pub buffers: Buffers,
}

/// The decay of the buffers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Buffers {
    /// `C[t,i] = Σ_j ω_j θ_j^(t−i−1)` below a diagonal of ones.
    Toeplitz(Vec<ExponentialBuffer>),
    /// `C[t,i] ∝ Σ_j w_j i^(a_j) t^(−b_j)` below a diagonal of ones, columns scaled to norm 1.
    PowerLaw(Vec<PowerLawBuffer>),
}

/// A buffer of a Toeplitz strategy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExponentialBuffer {
    /// θ, the decay per step: above 0 and below 1.
    pub decay: f64,
    /// ω, the contribution to the next step: above 0, at most 1.
    pub weight: f64,
}

/// A buffer of a power law.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PowerLawBuffer {
    /// a, at least 0: growth of the weight of later steps.
    pub growth: f64,
    /// b, above 1/2 and above a: speed of decay.
    pub decay: f64,
    /// w, above 0.
    pub weight: f64,
}

impl BufferedParameters {
    /// Most steps that the strategy can run.
    pub fn steps(&self) -> u64 {
        self.horizon.unwrap_or(match self.buffers {
            Buffers::Toeplitz(_) => ENDLESS_TOEPLITZ_STEPS,
            Buffers::PowerLaw(_) => ENDLESS_POWER_LAW_STEPS,
        })
    }

    /// Number of buffers.
    pub fn count(&self) -> usize {
        match &self.buffers {
            Buffers::Toeplitz(buffers) => buffers.len(),
            Buffers::PowerLaw(buffers) => buffers.len(),
        }
    }

    /// The same parameters, rounded to numbers that fixed point represents exactly.
    #[must_use]
    pub(crate) fn rounded(mut self) -> Self {
        if let Buffers::Toeplitz(buffers) = &mut self.buffers {
            for buffer in buffers {
                buffer.decay = (buffer.decay * TWO_64).floor() / TWO_64;
                buffer.weight = (buffer.weight * TWO_40).round() / TWO_40;
            }
        }
        self
    }

    pub(super) fn check(&self, name: &StrategyName) -> Result<(), StrategyError> {
        let limit = match self.buffers {
            Buffers::Toeplitz(_) => ENDLESS_TOEPLITZ_STEPS,
            Buffers::PowerLaw(_) => ENDLESS_POWER_LAW_STEPS,
        };
        crate::strategy::check_horizon(name, self.steps(), limit)?;
        let reason = match &self.buffers {
            _ if self.count() == 0 || self.count() > MAX_BUFFERS as usize => "expected 1 to 8 buffers",
            Buffers::Toeplitz(buffers) => match toeplitz_reason(buffers) {
                Some(reason) => reason,
                None if self.clone().rounded() == *self => return Ok(()),
                None => "expected decays in units of 2^-64 and weights in units of 2^-40",
            },
            Buffers::PowerLaw(buffers) => match power_law_reason(buffers) {
                Some(reason) => reason,
                None => return Ok(()),
            },
        };
        Err(StrategyError::Buffers { strategy: name.to_string(), reason })
    }
}

/// 2⁶⁴: decays are multiples of 1/2⁶⁴.
pub(super) const TWO_64: f64 = 18_446_744_073_709_551_616.0;

/// 2⁴⁰: coefficients are multiples of 1/2⁴⁰.
pub(super) const TWO_40: f64 = (1u64 << crate::strategy::COEFFICIENT_BITS) as f64;

/// The inverse decays too if `1 + Σ ω_j/(−1 − θ_j) > 0`: then all its poles lie in (−1, 1).
fn toeplitz_reason(buffers: &[ExponentialBuffer]) -> Option<&'static str> {
    let decays = buffers.iter().all(|b| b.decay > 0.0 && b.decay < 1.0);
    let weights = buffers.iter().all(|b| b.weight > 0.0 && b.weight <= 1.0);
    let back: f64 = buffers.iter().map(|b| b.weight / (1.0 + b.decay)).sum();
    match () {
        () if !decays => Some("expected decays above 0 and below 1"),
        () if !weights => Some("expected weights above 0, at most 1"),
        () if !buffers.is_sorted_by(|a, b| a.decay > b.decay) => Some("expected decays to fall"),
        () if back.is_nan() || back >= 1.0 => {
            Some("its inverse does not forget: expected the sum of weight/(1 + decay) below 1")
        }
        () => None,
    }
}

fn power_law_reason(buffers: &[PowerLawBuffer]) -> Option<&'static str> {
    let exponents = buffers.iter().all(|b| b.growth >= 0.0 && b.decay > b.growth.max(0.5));
    let limits = buffers.iter().all(|b| b.decay <= MAX_EXPONENT);
    let weights = buffers.iter().all(|b| b.weight > 0.0 && b.weight <= TWO_40);
    match () {
        () if !exponents => Some("expected a growth of at least 0 and a decay above it and above 1/2"),
        () if !limits => Some("expected decays of at most 64"),
        () if !weights => Some("expected weights above 0, at most 2^40"),
        () => None,
    }
}
