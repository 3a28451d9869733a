//! Represents exponential-mechanism selections and pure differential privacy as Gaussian
//! mechanisms, so that one ledger can add them to measurements.
//!
//! A mechanism is ε-bounded-range (Durfee & Rogers 2019) if for all neighbours the logarithm of the
//! likelihood ratio of its output lies in *some* interval of length ε. The exponential mechanism is
//! ε-bounded-range ([`selection`](crate::noise::selection)), and it is ρ-zCDP for ρ = ε²/8. zCDP
//! itself gives no μ. The bounded range does:
//!
//! # Lemma
//! An ε-bounded-range mechanism is μ-Gaussian-private (Dong, Roth & Su 2022) for `Φ(μ/2) =
//! e^(ε/2)/(1 + e^(ε/2))`, and for no smaller μ. It is therefore μ-Gaussian-private for `μ² = πε²/8
//! = πρ`. (A Gaussian mechanism of the same ρ has μ² = 2ρ.)
//!
//! *Proof.* (1) Let the ratio of P to Q lie in [a, b], b = a·e^ε, a ≤ 1 ≤ b. A test that falsely
//! rejects P with probability x falsely accepts it with probability at least `1 − x/a`, and at
//! least `(1 − x)/b`. These chords from (0, 1) and (1, 0) meet in the corner `x = (b − 1)/(e^ε −
//! 1)`, `y = (1/a − 1)/(e^ε − 1)`. With K = e^ε − 1 this is (1 + Kx)(1 + Ky) = 1 + K for every a,
//! or `logit(1 − x) = logit(y) + ε`. So all corners lie on the trade-off curve between two logistic
//! distributions, F(·) and F(· − ε). As [below](#pure-differential-privacy), a Gaussian's curve
//! lies below both chords if it lies below the corner. That holds if
//! `μ ≥ −Φ⁻¹(x) − Φ⁻¹(y) = g(v + ε) − g(v)` for `g = Φ⁻¹∘F`, v = logit(y).
//!
//! (2) g is odd. *It is concave where v > 0*, so its derivative is even and falls with |v|. Over
//! all intervals of length ε, g therefore grows most over the one centred at 0: by 2g(ε/2), which
//! is the μ of the lemma. To show concavity: with z = g(v), g' = F(1 − F)/φ(z) = Φ(z)(1 −
//! Φ(z))/φ(z). Its logarithm falls for z > 0 if and only if `k(z) = 4φD − z(1 − D²) ≥ 0`, D = 2Φ
//! − 1. We have k(0) = 0, k → 0 as z → ∞, k' = 8φ² − 1 + D² and k'' = 4φ(D − 4zφ). The factor D −
//! 4zφ is 0 at 0 and has the derivative φ(4z² − 2): it falls below 0 first and then rises to 1. So
//! k' falls and then rises, from 4/π − 1 > 0 to 0: it is first positive, then negative. Hence k
//! rises and then falls to 0, and is nowhere below 0.
//!
//! (3) *No smaller μ*: randomised response with log-ratios ±ε/2 has range ε, and its corner is the
//! symmetric one. *The square*: g is concave, so 2g(ε/2) ≤ ε·g'(0) = ε·√(2π)/4. ∎
//!
//! # Adaptive compositions
//! **Theorem.** Suppose that on every path the Gaussian mechanisms have ρ_i and the selections ρ_j
//! such that `Σ 2ρ_i + Σ πρ_j ≤ μ²`, for a number μ that is fixed beforehand. Then their
//! composition is μ-Gaussian-private.
//!
//! *Proof.* Fix neighbours and the releases so far. By the lemma and Blackwell's theorem a
//! selection is a random function of one draw of N(0, 1) in one world and of N(√(πρ_j), 1) in the
//! other. So the whole is a function of Gaussian mechanisms whose squared shifts are known before
//! each draw and add up to at most μ². That is the ideal run of `docs/privacy.md` ("Adaptivity, and
//! why Gaussian accounting may be used"). ∎
//!
//! # Pure differential privacy
//! **Lemma.** An ε-private mechanism is μ-Gaussian-private (Dong, Roth & Su 2022) for `Φ(μ/2) =
//! e^ε/(1 + e^ε)`, and for no smaller μ.
//!
//! *Proof.* The least errors of any test between neighbours are bounded by `f(α) = max(1 − e^ε α,
//! e^−ε(1 − α), 0)`: two chords from (0, 1) and (1, 0) to the corner α = f(α) = 1/(1 + e^ε). The
//! Gaussian's trade-off curve G is convex and goes through (0, 1) and (1, 0). It goes through the
//! corner if Φ(−μ/2) = 1/(1 + e^ε). So it lies below both chords: G ≤ f. A smaller μ puts G above
//! the corner, which randomised response reaches. ∎
//!
//! This μ is far above that of a Gaussian mechanism calibrated for (ε, δ): 1.232 for a 1-private
//! mechanism, against 0.237 for (1, 10⁻⁶).

use super::{AccountingError, Epsilon, MARGIN, NoiseMultiplier};
use crate::quantile::normal;
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// ρ of zero-concentrated differential privacy, split by what it is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RhoSpending {
    /// ρ spent on Gaussian noise.
    pub gaussian: f64,
    /// ρ spent on selections by the exponential mechanism. An upper bound where the cost depends on
    /// the data.
    pub selection: f64,
}

impl RhoSpending {
    /// Returns the total ρ.
    pub fn rho(self) -> f64 {
        self.gaussian + self.selection
    }

    /// Returns the noise multiplier 1/μ of a Gaussian mechanism that reveals at least as much: μ² =
    /// 2ρ + πρ' for ρ of Gaussian noise and ρ' of selections, with μ rounded up.
    ///
    /// # Errors
    /// [`AccountingError`] if a part is negative or not finite, or if both are 0.
    ///
    /// ```
    /// use hushflow_mechanism::accounting::bounded_range::RhoSpending;
    /// let spent = RhoSpending { gaussian: 0.5, selection: 0.0 };
    /// assert!((spent.noise_multiplier_rounded_down()?.mu() - 1.0).abs() < 1e-9);
    /// # Ok::<(), hushflow_mechanism::accounting::AccountingError>(())
    /// ```
    pub fn noise_multiplier_rounded_down(self) -> Result<NoiseMultiplier, AccountingError> {
        let none = |part: &f64| part.is_nan() || *part < 0.0;
        if let Some(part) = [self.gaussian, self.selection].into_iter().find(none) {
            return Err(AccountingError::Rho(part));
        }
        let squared_mu = (2.0 * self.gaussian + PI * self.selection) * (1.0 + MARGIN);
        NoiseMultiplier::new(squared_mu.sqrt().recip() * (1.0 - MARGIN))
    }
}

/// A margin larger than the change in μ that the quantile's own rounding causes where e^ε is near
/// 1.
const ROUNDING: f64 = 1e-14;

/// Returns the noise multiplier of the Gaussian mechanism that reveals at least as much as any
/// ε-private mechanism, rounded down.
///
/// # Errors
/// [`AccountingError`] for an ε above about 700, which gives no guarantee.
///
/// ```
/// use hushflow_mechanism::accounting::{Epsilon, bounded_range};
/// let sigma = bounded_range::equivalent_noise_multiplier(Epsilon::new(1.0)?)?;
/// assert!((sigma.mu() - 1.2320).abs() < 1e-4);
/// # Ok::<(), hushflow_mechanism::accounting::AccountingError>(())
/// ```
pub fn equivalent_noise_multiplier(epsilon: Epsilon) -> Result<NoiseMultiplier, AccountingError> {
    let tail = 1.0 / (1.0 + epsilon.value().exp());
    NoiseMultiplier::new(((2.0 * normal(tail) + ROUNDING) * (1.0 + MARGIN)).recip())
}

#[cfg(test)]
mod tests {
    use super::super::tests::eps;
    use super::*;
    use crate::accounting::gaussian;
    use crate::noise::selection::ExponentialMechanism;
    use proptest::prelude::*;

    fn selection(rho: f64) -> NoiseMultiplier {
        RhoSpending { gaussian: 0.0, selection: rho }.noise_multiplier_rounded_down().unwrap()
    }

    /// Returns δ(ε') for a list of likelihoods in both worlds.
    fn delta(worlds: &[(f64, f64)], epsilon: f64) -> f64 {
        worlds.iter().map(|(p, q)| (p - epsilon.exp() * q).max(0.0)).sum()
    }

    #[test]
    fn invalid_parts_are_refused() {
        for (gaussian, selection) in [(0.0, 0.0), (-1.0, 2.0), (1.0, f64::NAN), (f64::INFINITY, 0.0)] {
            let parts = RhoSpending { gaussian, selection };
            assert!(parts.noise_multiplier_rounded_down().is_err(), "{parts:?}");
        }
    }

    proptest! {
        /// For every position of the log-ratio interval, the two-valued mechanism that reaches both
        /// ends is within the bound and within the exact μ of the lemma.
        #[test]
        fn no_interval_exceeds_the_lemma(epsilon in 1e-3..12.0_f64, position in 1e-3..0.999_f64, other in 0.0..1.0_f64) {
            let (a, b) = ((-epsilon * position).exp(), (epsilon * (1.0 - position)).exp());
            let likely = (1.0 - a) / (b - a);
            let worlds = [(b * likely, likely), (a * (1.0 - likely), 1.0 - likely)];
            let exact = equivalent_noise_multiplier(eps(epsilon / 2.0)).unwrap();
            for sigma in [exact, selection(epsilon * epsilon / 8.0)] {
                for at in [other * epsilon, 0.0] {
                    prop_assert!(gaussian::delta(sigma, eps(at)) >= delta(&worlds, at) * (1.0 - 1e-8) - 1e-15);
                }
            }
        }

        /// Attacks the implemented selection. Each score of a neighbour differs by up to Δ, in the
        /// worst direction or in any other.
        #[test]
        fn selections_leak_at_most_their_mu(
            rho in 1e-4..3.0_f64, scores in prop::collection::vec(0..60_i128, 2..6), seed in any::<u64>(), at in 0.0..3.0_f64,
        ) {
            let weight = ExponentialMechanism::new(rho, 10).unwrap().weight();
            let law = |scores: &[i128]| {
                let weights: Vec<f64> = scores.iter().map(|&score| (weight * score as f64).exp()).collect();
                let sum: f64 = weights.iter().sum();
                weights.into_iter().map(move |one| one / sum).collect::<Vec<f64>>()
            };
            let moved = |position: usize, score: i128| score + [-10, 10, 0, 7][(seed >> (2 * position)) as usize % 4];
            let other: Vec<i128> = scores.iter().enumerate().map(|(position, &score)| moved(position, score)).collect();
            let worlds: Vec<(f64, f64)> = law(&scores).into_iter().zip(law(&other)).collect();
            prop_assert!(gaussian::delta(selection(rho), eps(at)) >= delta(&worlds, at) - 1e-12);
        }
    }

    /// Sixteen worst-case selections: δ of the binomial against δ of the one Gaussian for all.
    #[test]
    fn compositions_stay_below_one_gaussian() {
        let runs = 16;
        for rho in [0.001, 0.02, 0.5] {
            let half = (8.0_f64 * rho).sqrt() / 2.0;
            let likely = half.exp() / (1.0 + half.exp());
            let mut binomial = 1.0;
            let worlds: Vec<(f64, f64)> = (0..=runs)
                .map(|hits| {
                    let law = |p: f64| binomial * p.powi(hits) * (1.0 - p).powi(runs - hits);
                    let both = (law(likely), law(1.0 - likely));
                    binomial *= f64::from(runs - hits) / f64::from(hits + 1);
                    both
                })
                .collect();
            for epsilon in [0.0, 0.1, 0.5, 1.0, 3.0] {
                let claimed = gaussian::delta(selection(rho * f64::from(runs)), eps(epsilon));
                assert!(claimed >= delta(&worlds, epsilon) - 1e-12, "{rho} {epsilon}");
            }
        }
    }

    /// A selection and a Gaussian measurement: δ by a fine sum over the noise, against δ of the one
    /// Gaussian for both. Charging the selection μ² = 2ρ, as for Gaussian noise, would claim too
    /// strong a guarantee.
    #[test]
    fn mixtures_stay_below_one_gaussian_and_exceed_a_smaller_one() {
        let (rho_selection, rho_gaussian) = (0.02_f64, 0.005_f64);
        let half = (8.0 * rho_selection).sqrt() / 2.0;
        let likely = half.exp() / (1.0 + half.exp());
        let shift = (2.0 * rho_gaussian).sqrt();
        let density = |x: f64| (-x * x / 2.0).exp() / (2.0 * PI).sqrt();
        let step = 1e-3;
        let worlds: Vec<(f64, f64)> = (-9000..9000)
            .flat_map(|position| {
                let x = f64::from(position) * step;
                let (p, q) = (density(x - shift) * step, density(x) * step);
                [(p * likely, q * (1.0 - likely)), (p * (1.0 - likely), q * likely)]
            })
            .collect();
        let claimed = RhoSpending { gaussian: rho_gaussian, selection: rho_selection };
        let claimed = claimed.noise_multiplier_rounded_down().unwrap();
        for epsilon in [0.0, 0.05, 0.2, 0.5] {
            assert!(gaussian::delta(claimed, eps(epsilon)) >= delta(&worlds, epsilon) - 1e-9, "{epsilon}");
        }
        let naive = NoiseMultiplier::new((2.0 * (rho_gaussian + rho_selection)).sqrt().recip()).unwrap();
        assert!(gaussian::delta(naive, eps(0.0)) < delta(&worlds, 0.0));
    }

    /// Checks on a grid that g of the lemma is concave above 0, and that μ²/ρ tends to π for small
    /// ρ.
    #[test]
    fn proof_holds_numerically() {
        let g = |v: f64| normal((1.0 + v.exp()).recip());
        for position in 1..400 {
            let v = f64::from(position) * 0.05;
            assert!(g(v - 0.05) + g(v + 0.05) <= 2.0 * g(v) + 1e-12, "{v}");
        }
        let (epsilon, rho) = (1e-3_f64, 1e-6 / 8.0);
        assert!(((2.0 * normal((1.0 + (epsilon / 2.0).exp()).recip())).powi(2) / rho - PI).abs() < 1e-3);
    }

    /// Reference values from another program's quantiles.
    #[test]
    fn the_equivalent_mu_agrees_with_reference_quantiles() {
        for (epsilon, mu) in [(0.01, 0.012_533_118_96), (1.0, 1.232_035_385_3), (8.0, 6.802_568_676_2)] {
            let found = equivalent_noise_multiplier(eps(epsilon)).unwrap().mu();
            assert!((found / mu - 1.0).abs() < 1e-9, "{epsilon}: {found}");
        }
        assert!(equivalent_noise_multiplier(eps(800.0)).is_err());
    }

    proptest! {
        /// For randomised response, the worst case of a pure mechanism, δ at every ε' is within δ
        /// of the equivalent.
        #[test]
        fn a_pure_mechanism_stays_within_its_equivalent(epsilon in 1e-6..30.0_f64, share in 0.0..1.0_f64) {
            let sigma = equivalent_noise_multiplier(eps(epsilon)).unwrap();
            let other = share * epsilon;
            let delta = ((epsilon.exp() - other.exp()) / (1.0 + epsilon.exp())).max(0.0);
            prop_assert!(gaussian::delta(sigma, eps(other)) >= delta * (1.0 - 1e-9), "{epsilon} {other}");
        }

        /// A smaller μ would not suffice: at ε' = 0 both values of δ agree.
        #[test]
        fn equivalent_mu_is_minimal(epsilon in 1e-3..20.0_f64) {
            let sigma = equivalent_noise_multiplier(eps(epsilon)).unwrap();
            let delta = (epsilon / 2.0).tanh();
            prop_assert!(gaussian::delta(sigma, eps(0.0)) <= delta * (1.0 + 1e-8));
        }
    }
}
