//! Pairs of distributions that dominate the mechanisms of the ledger.
//!
//! - **N(μ, 1), N(0, 1)**: a Gaussian mechanism of sensitivity 1 with σ = 1/μ, and all functions of
//!   its output (Balle & Wang 2018).
//! - **(1−q)N(0, 1) + qN(μ, 1), N(0, 1), and reversed**: the same after Poisson sampling at rate q,
//!   for neighbours with and without one record (Zhu, Dong & Wang 2022, Theorem 11).
//! - **(1−q)N(0, 1) + qN(μ, 1), (1−q)N(0, 1) + qN(−μ, 1)**: the same for a record that is replaced
//!   ([`amplification`](crate::accounting::amplification), Theorem 2).
//! - **One of b normal distributions at distance μ, at random, and N(0, I_b), and reversed**:
//!   random allocation to b bins, for neighbours with and without one record (`allocation`).
//! - **One of b normal distributions at distance μ, at random, and one at distance −μ**: the same
//!   for a record that is replaced (`replaced_allocation`).
//! - **A mixture of N(μ_i, 1), N(0, 1), and reversed**: the mechanisms for which the caller proves
//!   that this pair dominates them.
//! - **Randomised response with ε**: every ε-private mechanism is a function of its output
//!   (Kairouz, Oh & Viswanath 2015).
//! - **Laplace noise of scale b, shifted by 1**: the Laplace mechanism of sensitivity 1. The
//!   largest shift is the worst.
//! - **Logistic distributions F, shifted by ε**: every ε-bounded-range mechanism, such as the
//!   exponential mechanism, by the lemma.
//!
//! **Lemma.** The pair of two logistic distributions at distance ε dominates every ε-bounded-range
//! mechanism. *Proof.* By step (1) of the lemma of
//! [`bounded_range`](crate::accounting::bounded_range), the least errors of a test are bounded by
//! two chords from (0, 1) and (1, 0) to a corner, and every corner lies on the trade-off curve of
//! the logistic pair. That curve is convex and passes through all three points, so it lies below
//! both chords. A lower trade-off curve has larger hockey-stick divergences (Dong, Roth & Su 2022,
//! Proposition 6). ∎ The logistic pair spends μ² ≈ ε²/3 in long compositions, where the Gaussian
//! pair spends πε²/8.

use super::GaussianMixture;
use super::allocation::RandomAllocation;
use super::mixture::{MAX_SHIFT, upper};
use super::replaced_allocation::ReplacedAllocation;
use crate::accounting::{AccountingError, Epsilon, NoiseMultiplier, least};
use std::sync::Arc;

/// Largest privacy loss that does not count as infinite.
pub(super) const MAX_LOSS: f64 = 600.0;

/// Probability of losses beyond the grid, which count as infinite: 2⁻¹⁰⁰.
const TAIL: f64 = 1.0 / (1_u128 << 100) as f64;

/// Probability of losses below the grid, which are raised to its first value.
pub(super) const LOWER_TAIL: f64 = 1.0 / (1_u64 << 50) as f64;

/// Tail probabilities of a pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail {
    /// P(L > l).
    pub(super) p: f64,
    /// Q(L > l).
    pub(super) q: f64,
    /// Relative error of both.
    pub(super) error: f64,
}

impl Tail {
    pub(super) const ALL: Self = Self { p: 1.0, q: 1.0, error: 0.0 };
    pub(super) const NONE: Self = Self { p: 0.0, q: 0.0, error: 0.0 };
}

/// A pair of distributions (P, Q), known by the tails of its privacy loss.
#[derive(Clone, Debug, PartialEq)]
pub struct DominatingPair {
    kind: PairForm,
    reversed: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum PairForm {
    Mixture(GaussianMixture),
    RandomizedResponse(f64),
    /// Shift in units of the scale.
    Laplace(f64),
    Logistic(f64),
    Replacement(SampledReplacement),
    Allocation(Arc<RandomAllocation>),
    ReplacedAllocation(Arc<ReplacedAllocation>),
}

impl DominatingPair {
    /// Returns the pair of the Gaussian mechanism of sensitivity 1.
    ///
    /// # Errors
    /// [`AccountingError::PrivacyLoss`] for noise multipliers below 1/22.
    pub fn gaussian(noise_multiplier: NoiseMultiplier) -> Result<Self, AccountingError> {
        GaussianMixture::new(&[(1.0, 1.0)], noise_multiplier.value()).map(Self::mixture)
    }

    /// Returns the pair of the Gaussian mechanism on a Poisson sample: P with the record, which is
    /// sampled with probability `rate`, and Q without it.
    ///
    /// # Errors
    /// [`AccountingError::SamplingRate`] for a rate that is not above 0 and at most 1, or as
    /// [`gaussian`](Self::gaussian).
    pub fn poisson_sampled_gaussian(
        noise_multiplier: NoiseMultiplier,
        rate: f64,
    ) -> Result<Self, AccountingError> {
        if !(f64::MIN_POSITIVE..=1.0).contains(&rate) {
            return Err(AccountingError::SamplingRate(rate));
        }
        let components = [(1.0 - rate, 0.0), (rate, 1.0)];
        GaussianMixture::new(&components, noise_multiplier.value()).map(Self::mixture)
    }

    /// Returns the pair of the Gaussian mechanism on a Poisson sample whose record, if it is
    /// sampled, has one value or another. `noise_multiplier` is for the norm of one value.
    ///
    /// # Errors
    /// [`AccountingError::SamplingRate`] for a rate that is not above 0 and at most 1,
    /// [`AccountingError::PrivacyLoss`] for noise multipliers below 1/11 or above 10⁶.
    pub fn poisson_sampled_replacement(
        noise_multiplier: NoiseMultiplier,
        rate: f64,
    ) -> Result<Self, AccountingError> {
        let pair = SampledReplacement::new(noise_multiplier, rate)?;
        Ok(Self { kind: PairForm::Replacement(pair), reversed: false })
    }

    /// Returns the pair of the Gaussian mechanism for a record in one bin at random: P
    /// with the record, and Q without it.
    ///
    /// # Errors
    /// [`AccountingError::Bins`] for no bins or more than 2²⁰, [`AccountingError::PrivacyLoss`] for
    /// noise multipliers below 1/22 or above 10⁶.
    pub fn randomly_allocated_gaussian(
        noise_multiplier: NoiseMultiplier,
        bins: u64,
    ) -> Result<Self, AccountingError> {
        let pair = RandomAllocation::new(noise_multiplier, bins)?;
        Ok(Self { kind: PairForm::Allocation(Arc::new(pair)), reversed: false })
    }

    /// Returns the pair of the Gaussian mechanism for a record in one bin at random that has one
    /// value or another. `noise_multiplier` is for the norm of one value.
    ///
    /// # Errors
    /// [`AccountingError::Bins`] for no bins or more than 2²⁰, [`AccountingError::PrivacyLoss`] for
    /// noise multipliers below 1/11 or above 10⁶.
    pub fn randomly_allocated_replacement(
        noise_multiplier: NoiseMultiplier,
        bins: u64,
    ) -> Result<Self, AccountingError> {
        let pair = ReplacedAllocation::new(noise_multiplier, bins)?;
        Ok(Self { kind: PairForm::ReplacedAllocation(Arc::new(pair)), reversed: false })
    }

    /// Returns the pair of a mixture, P, and the normal distribution at zero, Q.
    pub fn mixture(mixture: GaussianMixture) -> Self {
        Self { kind: PairForm::Mixture(mixture), reversed: false }
    }

    /// Returns the pair that dominates every ε-private mechanism.
    ///
    /// # Errors
    /// [`AccountingError::PrivacyLoss`] for an ε above 600.
    pub fn pure(epsilon: Epsilon) -> Result<Self, AccountingError> {
        bounded(epsilon.value(), PairForm::RandomizedResponse)
    }

    /// Returns the pair of the Laplace mechanism of sensitivity 1 with noise of this scale.
    ///
    /// # Errors
    /// [`AccountingError::PrivacyLoss`] for a scale below 1/600 or not finite.
    pub fn laplace(scale: f64) -> Result<Self, AccountingError> {
        bounded(scale.recip(), PairForm::Laplace)
    }

    /// Returns the pair that dominates every ε-bounded-range mechanism, such as an exponential
    /// mechanism of ρ = ε²/8.
    ///
    /// # Errors
    /// [`AccountingError::PrivacyLoss`] for an ε above 600.
    pub fn bounded_range(epsilon: Epsilon) -> Result<Self, AccountingError> {
        bounded(epsilon.value(), PairForm::Logistic)
    }

    /// Returns the pair (Q, P).
    #[must_use]
    pub fn reversed(self) -> Self {
        let reversed = match &self.kind {
            PairForm::Mixture(mixture) => !self.reversed && !mixture.is_symmetric(),
            PairForm::Allocation(_) => !self.reversed,
            _ => false,
        };
        Self { reversed, ..self }
    }

    /// Returns the tail probabilities of losses above `loss`.
    pub(super) fn tail(&self, loss: f64) -> Tail {
        let exact = |p, q| Tail { p, q, error: 16.0 * f64::EPSILON * (1.0 + loss.abs()) };
        match &self.kind {
            PairForm::Mixture(mixture) if self.reversed => mixture.reversed_tail(loss),
            PairForm::Mixture(mixture) => mixture.tail(loss),
            PairForm::Replacement(pair) => pair.tail(loss),
            PairForm::Allocation(pair) if self.reversed => pair.reversed_tail(loss),
            PairForm::Allocation(pair) => pair.tail(loss),
            PairForm::ReplacedAllocation(pair) => pair.tail(loss),
            PairForm::RandomizedResponse(epsilon)
            | PairForm::Laplace(epsilon)
            | PairForm::Logistic(epsilon)
                if loss < -epsilon =>
            {
                Tail::ALL
            }
            PairForm::RandomizedResponse(epsilon)
            | PairForm::Laplace(epsilon)
            | PairForm::Logistic(epsilon)
                if loss >= *epsilon =>
            {
                Tail::NONE
            }
            PairForm::RandomizedResponse(epsilon) => {
                exact((1.0 + (-epsilon).exp()).recip(), (1.0 + epsilon.exp()).recip())
            }
            PairForm::Laplace(shift) => {
                exact(1.0 - ((loss - shift) / 2.0).exp() / 2.0, (-(loss + shift) / 2.0).exp() / 2.0)
            }
            // With v = e^(−x) at the outcome x of this loss.
            PairForm::Logistic(epsilon) => {
                let inverse = -((loss + epsilon) / 2.0).exp_m1() / ((loss - epsilon) / 2.0).exp_m1();
                exact((1.0 + inverse * (-epsilon).exp()).recip(), (1.0 + inverse).recip())
            }
        }
    }

    /// Returns the largest loss if its probability is above 0.
    pub(super) fn atom(&self) -> Option<f64> {
        match self.kind {
            PairForm::RandomizedResponse(epsilon) | PairForm::Laplace(epsilon) => Some(epsilon),
            _ => None,
        }
    }

    /// Returns the two losses between which the grid lies.
    pub(super) fn range(&self) -> (f64, f64) {
        if let PairForm::Allocation(pair) = &self.kind {
            return if self.reversed { pair.reversed_range() } else { pair.range() };
        }
        if let PairForm::ReplacedAllocation(pair) = &self.kind {
            return pair.range();
        }
        let below = least(0.0, MAX_LOSS, |loss| self.tail(-loss).p >= 1.0 - LOWER_TAIL);
        (-below, least(0.0, MAX_LOSS, |loss| self.tail(loss).p <= TAIL))
    }
}

fn bounded(loss: f64, kind: impl FnOnce(f64) -> PairForm) -> Result<DominatingPair, AccountingError> {
    if (f64::MIN_POSITIVE..=MAX_LOSS).contains(&loss) {
        Ok(DominatingPair { kind: kind(loss), reversed: false })
    } else {
        Err(AccountingError::PrivacyLoss(loss))
    }
}

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
