//! A mixture of normal distributions against the one at zero: dominates Gaussian mechanisms in
//! which records take part at random.

use super::pair::{MAX_LOSS, Tail};
use crate::accounting::AccountingError;
use std::f64::consts::FRAC_1_SQRT_2;

/// P = Σ w_i N(μ_i, 1) against Q = N(0, 1), for w_i ≥ 0 of sum 1 and μ_i ≥ 0.
///
/// The loss at x is `ln Σ w_i e^(μ_i x − μ_i²/2)`. It grows with x, so sets of large losses are
/// half-lines.
#[derive(Clone, Debug, PartialEq)]
pub struct GaussianMixture {
    /// Weight at zero.
    at_rest: f64,
    /// (w, ln w, μ) where μ > 0, in ascending order of μ.
    shifted: Vec<(f64, f64, f64)>,
}

/// Largest distance of the sum of the weights from 1. The weights are divided by their sum.
const MAX_MISSING: f64 = 1e-12;

/// Largest μ: with it, tails of 2⁻¹⁰⁰ have losses below [`MAX_LOSS`], and no tail is subnormal.
pub(super) const MAX_SHIFT: f64 = 22.0;

/// Minimum μ. A smaller one is raised: sets of large losses are half-lines, P of a half-line grows
/// with every μ, and so does δ.
const MIN_SHIFT: f64 = 1e-6;

/// Limit on iterations of Newton's method; fewer are needed.
const STEPS: u32 = 64;

impl GaussianMixture {
    /// Builds the mixture of N(mean, σ²) with these (weight, mean), for σ = `deviation`, against
    /// N(0, σ²).
    ///
    /// # Errors
    /// [`AccountingError::Mixture`] if a weight or a mean is negative or not finite, if the weights
    /// do not sum to 1, if no mean of positive weight is above 0, or if σ is not a positive finite
    /// number. [`AccountingError::PrivacyLoss`] for means above 22σ.
    pub fn new(components: &[(f64, f64)], deviation: f64) -> Result<Self, AccountingError> {
        let valid = |x: f64| (0.0..=f64::MAX).contains(&x);
        let sum: f64 = components.iter().map(|(weight, _)| weight).sum();
        let all = components.iter().all(|&(weight, mean)| valid(weight) && valid(mean));
        let whole = (sum - 1.0).abs() <= MAX_MISSING;
        if !all || !whole || !valid(deviation) || deviation == 0.0 {
            return Err(AccountingError::Mixture(sum));
        }
        let (mut at_rest, mut shifted) = (0.0, Vec::new());
        for &(weight, mean) in components.iter().filter(|(weight, _)| *weight > 0.0) {
            let (weight, shift) = (weight / sum, mean / deviation);
            if !(0.0..=MAX_SHIFT).contains(&shift) {
                return Err(AccountingError::PrivacyLoss(shift * shift / 2.0));
            }
            if mean == 0.0 {
                at_rest += weight
            } else {
                shifted.push((weight, weight.ln(), shift.max(MIN_SHIFT)))
            }
        }
        if shifted.is_empty() {
            return Err(AccountingError::Mixture(sum));
        }
        shifted.sort_by(|one, other| one.2.total_cmp(&other.2));
        Ok(Self { at_rest, shifted })
    }

    /// Returns whether (Q, P) has the same privacy loss as (P, Q).
    pub(super) fn is_symmetric(&self) -> bool {
        self.at_rest == 0.0 && self.shifted.len() == 1
    }

    /// Returns the tail probabilities of losses above `loss` under P and Q.
    pub(super) fn tail(&self, loss: f64) -> Tail {
        let Some(x) = self.outcome(loss) else { return Tail::ALL };
        let p = self.at_rest * upper(x)
            + self.shifted.iter().map(|(weight, _, shift)| weight * upper(x - shift)).sum::<f64>();
        Tail { p, q: upper(x), error: self.error(x, x) }
    }

    /// Returns the tail probabilities of losses above `loss` of the reversed pair, under N(0, 1)
    /// and the mixture.
    pub(super) fn reversed_tail(&self, loss: f64) -> Tail {
        let Some(x) = self.outcome(-loss) else { return Tail::NONE };
        let q = self.at_rest * upper(-x)
            + self.shifted.iter().map(|(weight, _, shift)| weight * upper(shift - x)).sum::<f64>();
        let farthest = self.shifted.last().map_or(0.0, |(_, _, shift)| *shift);
        Tail { p: upper(-x), q, error: self.error(x, farthest - x) }
    }

    /// Returns the outcome x with this loss; `None` if all losses are larger.
    ///
    /// `Σ w_i e^(μ_i x − μ_i²/2) = e^loss` is solved without the weight at zero. The logarithm of
    /// the left side is then convex with slopes of at least the least μ, and Newton's method
    /// approaches the root from above.
    fn outcome(&self, loss: f64) -> Option<f64> {
        let excess = if loss > 1.0 {
            loss + (-self.at_rest * (-loss).exp()).ln_1p()
        } else {
            let others: f64 = self.shifted.iter().map(|(weight, _, _)| weight).sum();
            let left =
                if self.at_rest == 0.0 { return Some(self.solve(loss)) } else { loss.exp_m1() + others };
            if left <= 0.0 {
                return None;
            }
            left.ln()
        };
        Some(self.solve(excess))
    }

    fn solve(&self, excess: f64) -> f64 {
        let start = |(_, log_weight, shift): &(f64, f64, f64)| (excess - log_weight) / shift + shift / 2.0;
        let mut x = self.shifted.iter().map(start).fold(f64::INFINITY, f64::min);
        if self.shifted.len() == 1 {
            return x;
        }
        for _ in 0..STEPS {
            let exponent = |(_, log_weight, shift): &(f64, f64, f64)| log_weight + shift * (x - shift / 2.0);
            let largest = self.shifted.iter().map(exponent).fold(f64::NEG_INFINITY, f64::max);
            let (mut sum, mut slope) = (0.0, 0.0);
            for component in &self.shifted {
                let term = (exponent(component) - largest).exp();
                sum += term;
                slope += term * component.2;
            }
            let step = (largest + sum.ln() - excess) * sum / slope;
            x -= step;
            if step.abs() <= f64::EPSILON * x.abs().max(1.0) {
                break;
            }
        }
        x
    }

    /// Returns a bound of the relative errors of both tails, and of δ relative to them.
    ///
    /// Normal tails: `erfc` errs by less than 2 units in the last place, and the error of its
    /// argument z, 3 units, counts 2 + z² times. The outcome: a loss that is off by e changes δ by
    /// at most e times the tail, because the integrand P − e^ε Q is at most e·P there.
    fn error(&self, x: f64, farthest: f64) -> f64 {
        let shift = self.shifted.last().map_or(0.0, |(_, _, shift)| *shift);
        let of_tails = 16.0 + 4.0 * farthest.max(0.0).powi(2);
        let of_outcome = 16.0 + 8.0 * (shift * x.abs() + shift * shift);
        (of_tails + of_outcome + 2.0 * self.shifted.len() as f64) * f64::EPSILON
    }
}

/// Returns P(N(0, 1) > x).
pub(super) fn upper(x: f64) -> f64 {
    libm::erfc(x * FRAC_1_SQRT_2) / 2.0
}

const _: () = assert!(MAX_SHIFT * MAX_SHIFT / 2.0 + 12.0 * MAX_SHIFT < MAX_LOSS);
