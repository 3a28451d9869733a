//! Accounting: the noise that a guarantee needs, and the guarantee that a noise level gives.
//!
//! The moments that hushflow releases are one Gaussian mechanism of sensitivity 1 with standard
//! deviation `noise_multiplier` (σ). This module converts between σ and (ε, δ):
//! - [`gaussian`]: exactly, for continuous noise (also called μ-GDP, μ = 1/σ);
//! - [`discrete`]: the same, plus the cost of exact noise on a grid;
//! - [`composition`]: the same for several mechanisms on the same data, for the neighbours of one
//!   [`adjacency`];
//! - [`bounded_range`]: ε-private mechanisms, selections by the exponential mechanism, and
//!   estimates that select and measure, as one Gaussian mechanism that reveals at least as much;
//! - [`pld`]: several mechanisms of any kind, by privacy loss distributions;
//! - [`event`]: lists of mechanisms by name, and the best of these accountants for them;
//! - [`amplification`]: Gaussian mechanisms whose records take part at random, by [`pld`];
//! - [`zcdp`]: through ρ = 1/(2σ²), which holds unchanged for noise on a grid and adds up under
//!   composition.
//!
//! Plain functions return the nearest number. Functions named `…_rounded_up`, and all of
//! [`discrete`] and [`composition`], move their inputs and outputs by the relative [`MARGIN`]
//! towards more privacy. Only these belong in a guarantee.

use crate::numbers;
use thiserror::Error;

pub mod adjacency;
pub mod amplification;
pub mod bounded_range;
pub mod composition;
pub mod discrete;
pub mod event;
pub mod gaussian;
pub mod pld;
pub mod zcdp;

/// Relative margin of the conservative functions: several times the rounding error of the formulas.
pub const MARGIN: f64 = 1e-12;

/// Reasons why a number is not valid in a guarantee.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum AccountingError {
    /// An invalid ε.
    #[error("epsilon is {0}, but must be a finite number of at least 0")]
    Epsilon(f64),
    /// An invalid δ.
    #[error("delta is {0}, but must be at least {min:e} and below 1", min = f64::MIN_POSITIVE)]
    Delta(f64),
    /// An invalid noise multiplier.
    #[error(
        "the noise multiplier is {0}, but must be a finite number of at least {min:e}",
        min = NoiseMultiplier::MIN
    )]
    NoiseMultiplier(f64),
    /// An invalid ρ of zCDP.
    #[error("rho is {0}, but must be between {min:e} and {max:e}", min = f64::MIN_POSITIVE, max = Rho::MAX)]
    Rho(f64),
    /// The grid of the noise is too coarse for the bound on discreteness.
    #[error(
        "the noise's standard deviation is {0} grid steps, but must be at least {min}: choose a finer grid",
        min = discrete::MIN_GRID_SCALE
    )]
    GridScale(f64),
    /// An invalid number of draws.
    #[error("the number of noise draws is {0}, but must be a finite number of at least 1")]
    Draws(f64),
    /// An invalid total variation.
    #[error("the total variation is {0}, but must be above 0 and at most 1")]
    TotalVariation(f64),
    /// The cost of discrete noise uses up δ.
    #[error(
        "epsilon is too large for this delta: noise is drawn on a grid, which costs {cost:.2e} of delta, and delta is {delta:e}. \
         The cost grows as e^epsilon: {}", lower_epsilon(*cost, *delta)
    )]
    DiscretenessExceedsDelta {
        /// (1+e^ε) times the total variation between discrete and continuous noise.
        cost: f64,
        /// The requested δ.
        delta: f64,
    },
    /// Mechanisms spend more than can be represented.
    #[error(
        "together the mechanisms spend more than can be represented (μ² above 2³²): they give no privacy"
    )]
    Overspent,
    /// A privacy loss is too large, or too small, to be counted.
    #[error(
        "a privacy loss of {0} can't be computed: expected at most 600, and noise multipliers from 1/22 \
         (1/11 where records are replaced) to 10⁶"
    )]
    PrivacyLoss(f64),
    /// An invalid sampling rate.
    #[error("the sampling rate is {0}, but must be above 0 and at most 1")]
    SamplingRate(f64),
    /// An invalid number of bins.
    #[error("the number of bins is {0}, but must be between 1 and 2^20")]
    Bins(f64),
    /// An invalid mixture.
    #[error(
        "the weights of a mixture sum to {0}, but must be at least 0 with a sum of 1, with means of at least 0 and one above"
    )]
    Mixture(f64),
}

numbers!(enum AccountingError {
    0 Epsilon(epsilon), 1 Delta(delta), 2 NoiseMultiplier(sigma), 3 Rho(rho), 4 GridScale(steps), 5 Draws(draws),
    6 TotalVariation(variation), 7 DiscretenessExceedsDelta { cost, delta }, 8 Overspent,
    9 PrivacyLoss(loss), 10 SamplingRate(rate), 11 Mixture(sum), 12 Bins(bins)
});

/// Advises how much smaller ε must be for the cost of the grid to fall below δ. A smaller ε also
/// has more noise, which lowers the cost further.
fn lower_epsilon(cost: f64, delta: f64) -> String {
    match (cost / delta).ln() {
        excess if excess.is_finite() => format!("lower epsilon by {}", excess.max(0.0).floor() + 1.0),
        _ => "choose one of at most 10, which is already weak".into(),
    }
}

/// ε of (ε, δ)-differential privacy: finite, at least 0.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Epsilon(f64);

impl Epsilon {
    /// Takes an ε.
    ///
    /// # Errors
    /// [`AccountingError::Epsilon`] if it is negative or not finite.
    pub fn new(epsilon: f64) -> Result<Self, AccountingError> {
        if (0.0..=f64::MAX).contains(&epsilon) {
            Ok(Self(epsilon))
        } else {
            Err(AccountingError::Epsilon(epsilon))
        }
    }

    /// Returns the number.
    pub fn value(self) -> f64 {
        self.0
    }
}

/// δ of (ε, δ)-differential privacy: a normal floating-point number between 0 and 1, both excluded.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Delta(f64);

impl Delta {
    /// Takes a δ.
    ///
    /// # Errors
    /// [`AccountingError::Delta`] if it is below 2.2·10⁻³⁰⁸ or not below 1.
    pub fn new(delta: f64) -> Result<Self, AccountingError> {
        if (f64::MIN_POSITIVE..1.0).contains(&delta) {
            Ok(Self(delta))
        } else {
            Err(AccountingError::Delta(delta))
        }
    }

    /// Returns the number.
    pub fn value(self) -> f64 {
        self.0
    }

    /// Returns this δ, smaller by the margin.
    fn rounded_down(self) -> Self {
        Self(self.0 * (1.0 - MARGIN))
    }
}

/// σ: the standard deviation of the noise divided by the sensitivity.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct NoiseMultiplier(f64);

impl NoiseMultiplier {
    /// The least σ whose ε is a finite floating-point number for every δ.
    pub const MIN: f64 = 1e-153;

    /// Takes a σ.
    ///
    /// # Errors
    /// [`AccountingError::NoiseMultiplier`] if it is below [`MIN`](Self::MIN) or not finite.
    pub fn new(noise_multiplier: f64) -> Result<Self, AccountingError> {
        let valid = (Self::MIN..=f64::MAX).contains(&noise_multiplier);
        if valid {
            Ok(Self(noise_multiplier))
        } else {
            Err(AccountingError::NoiseMultiplier(noise_multiplier))
        }
    }

    /// Returns the number.
    pub fn value(self) -> f64 {
        self.0
    }

    /// Returns μ = 1/σ of Gaussian differential privacy (Dong, Roth & Su 2022, Theorem 2.7).
    pub fn mu(self) -> f64 {
        self.0.recip()
    }

    /// Returns ρ = 1/(2σ²) of zero-concentrated differential privacy (Bun & Steinke 2016,
    /// Proposition 1.6).
    pub fn rho(self) -> Rho {
        Rho((self.mu() * self.mu() / 2.0).max(f64::MIN_POSITIVE))
    }
}

/// ρ of ρ-zCDP, between 2.2·10⁻³⁰⁸ and [`Rho::MAX`]. The ρ of several releases add up, even if
/// these are adaptive.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Rho(f64);

impl Rho {
    /// The largest ρ whose ε is a finite floating-point number for every δ.
    pub const MAX: f64 = 1e306;

    /// Takes a ρ.
    ///
    /// # Errors
    /// [`AccountingError::Rho`] if it is below 2.2·10⁻³⁰⁸ or above [`MAX`](Self::MAX).
    pub fn new(rho: f64) -> Result<Self, AccountingError> {
        if (f64::MIN_POSITIVE..=Self::MAX).contains(&rho) {
            Ok(Self(rho))
        } else {
            Err(AccountingError::Rho(rho))
        }
    }

    /// Returns the number.
    pub fn value(self) -> f64 {
        self.0
    }
}

/// Returns the least float between `low` and `high` (neither negative) for which the monotone
/// `holds` is true. Returns `high` if there is none below it.
///
/// Non-negative floats are ordered as their bit patterns are, so bisecting these takes at most 64
/// steps for any `holds`. The search stops at a float for which `holds` is true, while it is false
/// for the next lower float.
pub fn least(low: f64, high: f64, holds: impl Fn(f64) -> bool) -> f64 {
    let (mut low, mut high) = (low.to_bits(), high.to_bits());
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(f64::from_bits(middle)) { high = middle } else { low = middle + 1 }
    }
    f64::from_bits(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn sigma(noise_multiplier: f64) -> NoiseMultiplier {
        NoiseMultiplier::new(noise_multiplier).unwrap()
    }

    pub(super) fn eps(epsilon: f64) -> Epsilon {
        Epsilon::new(epsilon).unwrap()
    }

    pub(super) fn del(delta: f64) -> Delta {
        Delta::new(delta).unwrap()
    }

    #[track_caller]
    pub(super) fn assert_close(found: f64, expected: f64, relative: f64) {
        let error = (found - expected).abs();
        assert!(error <= relative * expected.abs(), "found {found:e}, expected {expected:e}");
    }

    #[test]
    fn invalid_privacy_parameters_are_refused() {
        for x in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0] {
            assert!(Epsilon::new(x).is_err() && Delta::new(x).is_err(), "{x}");
            assert!(NoiseMultiplier::new(x).is_err() && Rho::new(x).is_err(), "{x}");
        }
        for x in [0.0, 1e-320] {
            assert!(
                Delta::new(x).is_err() && NoiseMultiplier::new(x).is_err() && Rho::new(x).is_err(),
                "{x}"
            );
        }
        assert_eq!(Delta::new(1.0), Err(AccountingError::Delta(1.0)));
        assert_eq!(Epsilon::new(0.0).unwrap().value(), 0.0);
    }

    #[test]
    fn messages_name_the_value_and_the_range() {
        let message = NoiseMultiplier::new(-2.0).unwrap_err().to_string();
        assert_eq!(message, "the noise multiplier is -2, but must be a finite number of at least 1e-153");
        let message = Delta::new(1.5).unwrap_err().to_string();
        assert_eq!(message, "delta is 1.5, but must be at least 2.2250738585072014e-308 and below 1");
    }

    #[test]
    fn least_finds_the_exact_boundary() {
        for boundary in [0.0, f64::MIN_POSITIVE, 1e-200, 0.1, 1.0, 1e300, f64::MAX] {
            assert_eq!(least(0.0, f64::MAX, |x| x >= boundary), boundary);
        }
        assert_eq!(least(1.0, 2.0, |_| false), 2.0);
    }
}
