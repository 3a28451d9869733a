//! The pair of a Poisson sample in which a record has one value or another.

use super::mixture::{MAX_SHIFT, upper};
use super::pair::Tail;
use crate::accounting::{AccountingError, NoiseMultiplier};

/// P = (1−q) N(0, 1) + q N(μ, 1) against Q = (1−q) N(0, 1) + q N(−μ, 1).
///
/// With z = e^(μx), a = 1 − q and c = q e^(−μ²/2) the loss at x is `ln (a + cz)/(a + c/z)`. It
/// grows with x and is odd in x, so (Q, P) has the same losses. It is l at the positive root of `c
/// z² − a(e^l − 1) z − c e^l = 0`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SampledReplacement {
    rate: f64,
    shift: f64,
}

impl SampledReplacement {
    pub(super) fn new(noise_multiplier: NoiseMultiplier, rate: f64) -> Result<Self, AccountingError> {
        let shift = noise_multiplier.mu();
        if !(f64::MIN_POSITIVE..=1.0).contains(&rate) {
            return Err(AccountingError::SamplingRate(rate));
        }
        // With rate 1 the loss is that of a shift by 2μ.
        if !(1e-6..=MAX_SHIFT / 2.0).contains(&shift) {
            return Err(AccountingError::PrivacyLoss(2.0 * shift * shift));
        }
        Ok(Self { rate, shift })
    }

    /// Returns the tail probabilities of losses above `loss` under P and Q.
    pub(super) fn tail(&self, loss: f64) -> Tail {
        let Self { rate, shift } = *self;
        let x = if loss < 0.0 { -self.outcome(-loss) } else { self.outcome(loss) };
        let tail = |shift: f64| (1.0 - rate) * upper(x) + rate * upper(x - shift);
        // The errors of normal tails and of the outcome count as for other mixtures.
        let of_tails = 16.0 + 4.0 * (x + shift).max(0.0).powi(2);
        let of_outcome = 32.0 + 16.0 * (shift * x.abs() + shift * shift);
        Tail { p: tail(shift), q: tail(-shift), error: (of_tails + of_outcome) * f64::EPSILON }
    }

    /// Returns the outcome of a loss that is not negative.
    fn outcome(&self, loss: f64) -> f64 {
        let Self { rate, shift } = *self;
        // Half of the middle term over c; dividing the equation by c keeps ln z in range.
        let half = (1.0 - rate) / rate * loss.exp_m1() / 2.0;
        // z = half·e^(μ²/2) + √(half² e^(μ²) + e^l), as a logarithm.
        let scaled = half.ln() + shift * shift / 2.0;
        let ratio = loss / 2.0 - scaled;
        let log = if ratio.is_nan() || ratio > 0.0 {
            // The root of the sum is the larger part: asinh form around e^(l/2).
            loss / 2.0 + (scaled - loss / 2.0).exp().asinh()
        } else {
            scaled + (1.0 + (1.0 + (2.0 * ratio).exp()).sqrt()).ln()
        };
        log / shift
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounting::gaussian;
    use crate::accounting::tests::{assert_close, eps, sigma};

    #[test]
    fn outcomes_have_their_losses() {
        for (noise, rate) in [(1.0, 0.02), (0.2, 0.5), (10.0, 1e-4), (1.0, 1.0), (0.12, 1e-3)] {
            let pair = SampledReplacement::new(sigma(noise), rate).unwrap();
            for loss in [0.0, 1e-9, 1e-3, 0.1, 1.0, 10.0, 80.0] {
                let x = pair.outcome(loss);
                let term =
                    |x: f64| (1.0 - rate) + rate * (pair.shift * x - pair.shift * pair.shift / 2.0).exp();
                let found = term(x).ln() - term(-x).ln();
                if found.is_finite() {
                    assert!((found - loss).abs() <= 1e-12 * (1.0 + loss), "{noise} {rate}: {found} {loss}");
                }
            }
        }
    }

    #[test]
    fn rate_one_is_the_gaussian_mechanism_of_twice_the_distance() {
        let pair = SampledReplacement::new(sigma(2.0), 1.0).unwrap();
        for epsilon in [0.0, 0.3, 2.0] {
            let Tail { p, q, .. } = pair.tail(epsilon);
            assert_close(p - epsilon.exp() * q, gaussian::delta(sigma(1.0), eps(epsilon)), 1e-10);
        }
    }
}
