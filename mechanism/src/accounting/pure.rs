//! Pure differential privacy as one Gaussian mechanism, so that both add up in one ledger.
//!
//! **Lemma.** An ε-private mechanism is μ-Gaussian-private (Dong, Roth & Su 2022) for `Φ(μ/2) =
//! e^ε/(1 + e^ε)`, and for no smaller μ.
//!
//! *Proof.* The least errors of any test between neighbours are bounded by `f(α) = max(1 − e^ε α,
//! e^−ε(1 − α), 0)`: two chords from (0, 1) and (1, 0) to the corner α = f(α) = 1/(1 + e^ε). The
//! Gaussian's trade-off curve G is convex and goes through (0, 1) and (1, 0). It goes through the
//! corner if Φ(−μ/2) = 1/(1 + e^ε). So it lies below both chords: G ≤ f. A smaller μ puts G above
//! the corner, which randomised response reaches. ∎
//!
//! This μ is far above that of a Gaussian mechanism calibrated for (ε, δ): 0.237 for (1, 10⁻⁶),
//! against 1.232 for a 1-private mechanism.

use super::{AccountingError, Epsilon, MARGIN, NoiseMultiplier};
use crate::quantile::normal;

/// Exceeds the change in μ that the quantile's own rounding causes where e^ε is near 1.
const ROUNDING: f64 = 1e-14;

/// Returns the noise multiplier of the Gaussian mechanism that reveals at least as much as any
/// ε-private mechanism, rounded down.
///
/// # Errors
/// [`AccountingError`] for an ε so large (above 700) that nothing is promised.
///
/// ```
/// use hushflow_mechanism::accounting::{Epsilon, pure};
/// let sigma = pure::noise_multiplier_rounded_down(Epsilon::new(1.0)?)?;
/// assert!((sigma.mu() - 1.2320).abs() < 1e-4);
/// # Ok::<(), hushflow_mechanism::accounting::AccountingError>(())
/// ```
pub fn noise_multiplier_rounded_down(epsilon: Epsilon) -> Result<NoiseMultiplier, AccountingError> {
    let tail = 1.0 / (1.0 + epsilon.value().exp());
    NoiseMultiplier::new(((2.0 * normal(tail) + ROUNDING) * (1.0 + MARGIN)).recip())
}

#[cfg(test)]
mod tests {
    use super::super::tests::eps;
    use super::*;
    use crate::accounting::gaussian;
    use proptest::prelude::*;

    /// Reference values from another program's quantiles.
    #[test]
    fn the_equivalent_is_that_of_the_lemma() {
        for (epsilon, mu) in [(0.01, 0.012_533_118_96), (1.0, 1.232_035_385_3), (8.0, 6.802_568_676_2)] {
            let found = noise_multiplier_rounded_down(eps(epsilon)).unwrap().mu();
            assert!((found / mu - 1.0).abs() < 1e-9, "{epsilon}: {found}");
        }
        assert!(noise_multiplier_rounded_down(eps(800.0)).is_err());
    }

    proptest! {
        /// For randomised response, the worst case of a pure mechanism, δ at every ε' is within δ
        /// of the equivalent.
        #[test]
        fn nothing_pure_exceeds_its_equivalent(epsilon in 1e-6..30.0_f64, share in 0.0..1.0_f64) {
            let sigma = noise_multiplier_rounded_down(eps(epsilon)).unwrap();
            let other = share * epsilon;
            let delta = ((epsilon.exp() - other.exp()) / (1.0 + epsilon.exp())).max(0.0);
            prop_assert!(gaussian::delta(sigma, eps(other)) >= delta * (1.0 - 1e-9), "{epsilon} {other}");
        }

        /// Less noise would not do: at ε' = 0 both agree.
        #[test]
        fn the_equivalent_is_no_larger_than_it_must(epsilon in 1e-3..20.0_f64) {
            let sigma = noise_multiplier_rounded_down(eps(epsilon)).unwrap();
            let delta = (epsilon / 2.0).tanh();
            prop_assert!(gaussian::delta(sigma, eps(0.0)) <= delta * (1.0 + 1e-8));
        }
    }
}
