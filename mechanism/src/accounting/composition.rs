//! Total privacy cost of several Gaussian mechanisms on the same data.
//!
//! # Theorem
//! Let mechanisms i = 1, 2, … with noise multipliers σ_i, μ_i = 1/σ_i, run on the same data: in
//! sequence, in parallel or interleaved, where each release is seen before the next. Let τ_i bound
//! the total variation between all noise of mechanism i and its ideal
//! ([`discrete`](super::discrete)). Then for every ε all releases together are (ε, δ(ε))-private,
//! with
//!
//! ```text
//! μ² = Σ μ_i²,   τ = Σ τ_i,      δ(ε) = Q(ε/μ − μ/2) − e^ε Q(ε/μ + μ/2) + (1 + e^ε) τ.
//! ```
//!
//! *Proof.* For ideal noise: Dong, Roth & Su 2022, Corollary 2 (Gaussian mechanisms compose to one
//! of μ² = Σ μ_i²). Total variations along one path add up (chain rule), and cost (1 + e^ε)τ as in
//! a single run. `docs/privacy.md` has the complete proof, for interleaved runs and for mechanisms
//! chosen after earlier releases. ∎
//!
//! ρ = μ²/2 of zCDP adds up in the same way.
//!
//! # Mechanisms that are not Gaussian
//! Let mechanisms of known (ε_j, δ_j) run beside Gaussian ones, with E = Σ ε_j and D = Σ δ_j. Then
//! all together are (ε, δ)-private with δ = δ_G(ε − E) + D. Here δ_G is the δ of the theorem for
//! the Gaussian mechanisms, with (1 + e^ε) τ as its last term. All of them may be chosen after
//! earlier releases, as long as μ², τ, E and D stay within bounds that are fixed beforehand. It is
//! not enough to bound δ alone. A person who has seen a loss could then choose between more μ² and
//! more E, and take the worse of both.
//!
//! *Proof.* An (ε_j, δ_j)-private mechanism, interactive or not, is a random function of a bit of
//! randomised response, or with probability δ_j of the bit itself (Kairouz, Oh & Viswanath 2015;
//! Lyu 2022 for interactive ones). Let P' and Q' be the distributions of everything if no bit is
//! revealed. Then `P ≤ D + Π(1−δ_j) P'` and `Q ≥ Π(1−δ_j) Q'`. The losses of the bits under P' are
//! at most E on every path, and those of the Gaussian draws sum to N(μ²/2, μ²), with the normal
//! variable at the end of the proof of adaptivity (`docs/privacy.md`). So for every set S,
//! `P'(S) − e^ε Q'(S) ≤ E_P' (1 − e^(ε−L))₊ ≤ δ_G(ε − E)`, with L the total loss. ∎
//!
//! # Exact sums, rounded up
//! μ_i² and ε_j are stored as integers in units of 2⁻⁹⁶, τ_i and δ_j in units of 2⁻¹²⁷, each
//! rounded up once. So sums are exact, do not depend on their order, and are never below the truth.

use super::{
    AccountingError, Delta, Epsilon, MARGIN, NoiseMultiplier, discrete::Discreteness, gaussian, least,
};

/// Number of units of μ² and of ε in 1: 2⁹⁶.
const UNITS: f64 = (1_u128 << 96) as f64;

/// Number of units of total variation in 1, its maximum: 2¹²⁷.
const VARIATION_UNITS: u128 = 1 << 127;

/// Upper bound of the relative error of the few roundings to and from the integers.
const ROUNDING: f64 = 8.0 * f64::EPSILON;

/// The least noise multiplier whose cost fits the integers: its μ² is just below 2³².
const MIN_NOISE_MULTIPLIER: f64 = 1.53e-5;

/// Privacy cost of mechanisms: μ² and total variation of Gaussian ones, ε and δ of others, as exact
/// integers that are never below the truth.
///
/// ```
/// use hushflow_mechanism::accounting::composition::Spending;
/// use hushflow_mechanism::accounting::discrete::Discreteness;
/// use hushflow_mechanism::accounting::{Delta, NoiseMultiplier};
///
/// let fine = Discreteness::new(2_f64.powi(40), 1e6)?;
/// let one = Spending::of(NoiseMultiplier::new(4.0)?, fine)?;
/// let four = one.and(one)?.and(one)?.and(one)?;
/// assert!((four.mu() - 0.5).abs() < 1e-12);
/// let epsilon = four.epsilon(Delta::new(1e-6)?).expect("noise on a fine grid costs next to nothing");
/// assert!((epsilon.value() - 2.254_084_650).abs() < 1e-8);
/// # Ok::<(), hushflow_mechanism::accounting::AccountingError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spending {
    squared_mu: u128,
    variation: u128,
    /// E and D of mechanisms that are not Gaussian.
    epsilon: u128,
    delta: u128,
}

impl Spending {
    /// The cost of no mechanism.
    pub const NOTHING: Self = Self { squared_mu: 0, variation: 0, epsilon: 0, delta: 0 };

    /// Returns the cost of one mechanism.
    ///
    /// # Errors
    /// [`AccountingError::Overspent`] for a noise multiplier below 1.53·10⁻⁵.
    pub fn of(
        noise_multiplier: NoiseMultiplier,
        discreteness: Discreteness,
    ) -> Result<Self, AccountingError> {
        if noise_multiplier.value() < MIN_NOISE_MULTIPLIER {
            return Err(AccountingError::Overspent);
        }
        let squared_mu = noise_multiplier.mu().powi(2) * (1.0 + ROUNDING) * UNITS;
        let variation = discreteness.total_variation() * VARIATION_UNITS as f64;
        let (squared_mu, variation) = (squared_mu.ceil() as u128, variation.ceil() as u128);
        Ok(Self { squared_mu, variation, ..Self::NOTHING })
    }

    /// Returns the cost of one mechanism of which this guarantee is known, and nothing else.
    ///
    /// # Errors
    /// [`AccountingError::Overspent`] if ε exceeds 2³².
    pub fn of_guarantee(epsilon: Epsilon, delta: Delta) -> Result<Self, AccountingError> {
        // Scaling by a power of two is exact.
        let units = (epsilon.value() * UNITS).ceil();
        if units >= UNITS * 2_f64.powi(32) {
            return Err(AccountingError::Overspent);
        }
        let delta = (delta.value() * VARIATION_UNITS as f64).ceil() as u128;
        Ok(Self { epsilon: units as u128, delta, ..Self::NOTHING })
    }

    /// Returns the cost of both on the same data, about the same pairs of streams.
    ///
    /// # Errors
    /// [`AccountingError::Overspent`] if μ² or E exceeds 2³².
    pub fn and(self, other: Self) -> Result<Self, AccountingError> {
        let sum = |one: u128, other| one.checked_add(other).ok_or(AccountingError::Overspent);
        let at_most_one = |one: u128, other| one.saturating_add(other).min(VARIATION_UNITS);
        Ok(Self {
            squared_mu: sum(self.squared_mu, other.squared_mu)?,
            variation: at_most_one(self.variation, other.variation),
            epsilon: sum(self.epsilon, other.epsilon)?,
            delta: at_most_one(self.delta, other.delta),
        })
    }

    /// Returns the cost for streams that are `steps` steps apart ([`steps_to`]), by group privacy.
    /// μ and E are multiplied by `steps`, and D by `1 + e^E + … + e^((steps−1)E)`. That is at least
    /// the sum of what the single mechanisms cost.
    ///
    /// # Errors
    /// [`AccountingError::Overspent`] if μ² or E exceeds 2³².
    ///
    /// [`steps_to`]: super::adjacency::Adjacency::steps_to
    pub fn over_steps(self, steps: u32) -> Result<Self, AccountingError> {
        let times = |one: u128, factor: u128| one.checked_mul(factor).ok_or(AccountingError::Overspent);
        let each = rounded_up(self.epsilon, UNITS);
        let factor: f64 = (0..steps).map(|step| (f64::from(step) * each).exp()).sum();
        let delta = match (self.delta, steps) {
            (0, _) | (_, 0 | 1) => self.delta,
            (delta, _) => (delta as f64 * factor * (1.0 + MARGIN)).ceil().min(VARIATION_UNITS as f64) as u128,
        };
        Ok(Self {
            squared_mu: times(self.squared_mu, u128::from(steps).pow(2))?,
            epsilon: times(self.epsilon, steps.into())?,
            delta,
            ..self
        })
    }

    /// Returns μ of Gaussian differential privacy, rounded up. Excludes the total variation and
    /// mechanisms that are not Gaussian.
    pub fn mu(self) -> f64 {
        (self.squared_mu as f64 / UNITS).sqrt() * (1.0 + ROUNDING)
    }

    /// Returns ρ of zero-concentrated differential privacy, rounded up. Excludes the same as
    /// [`mu`](Self::mu).
    pub fn rho(self) -> f64 {
        self.squared_mu as f64 / UNITS / 2.0 * (1.0 + ROUNDING)
    }

    /// Returns E and D: the sums of ε and δ of mechanisms that are not Gaussian, rounded up.
    pub fn guarantees(self) -> (f64, f64) {
        (rounded_up(self.epsilon, UNITS), rounded_up(self.delta, VARIATION_UNITS as f64))
    }

    /// Returns the total variation between all the noise and its ideal, rounded up; at most 1.
    pub fn total_variation(self) -> f64 {
        (self.variation as f64 / VARIATION_UNITS as f64 * (1.0 + ROUNDING)).min(1.0)
    }

    /// Returns an upper bound of the least δ for this ε. At most 1, and 0 only if nothing was
    /// spent.
    ///
    /// Half the margin exceeds the error of the formula. A single mechanism still gets the δ for
    /// which it was calibrated.
    pub fn delta(self, epsilon: Epsilon) -> f64 {
        let Some(of_noise) = self.beside_guarantees(epsilon.value()) else { return 1.0 };
        let ideal = self.noise_multiplier().map_or(0.0, |sigma| gaussian::delta(sigma, Epsilon(of_noise)));
        let discreteness = match self.variation {
            0 => 0.0,
            _ => (1.0 + epsilon.value().exp()) * self.total_variation() * (1.0 + MARGIN),
        };
        let least = if self == Self::NOTHING { 0.0 } else { f64::MIN_POSITIVE };
        (ideal * (1.0 + MARGIN / 2.0) + discreteness + self.guarantees().1).clamp(least, 1.0)
    }

    /// Returns ε − E, rounded down; `None` if it is negative.
    fn beside_guarantees(self, epsilon: f64) -> Option<f64> {
        if self.epsilon == 0 {
            return Some(epsilon);
        }
        let left = ((epsilon * UNITS) as u128).checked_sub(self.epsilon)?;
        Some(left as f64 / UNITS * (1.0 - ROUNDING))
    }

    /// Returns an upper bound of the least ε for this δ; `None` where the total variation uses up
    /// δ.
    ///
    /// With ε' = ε − E the derivative of δ(ε) is −e^ε'(Q(ε'/μ + μ/2) − e^E τ). So δ falls as long
    /// as Q(ε'/μ + μ/2) > e^E τ and rises after that point: the solution lies before that point or
    /// does not exist.
    pub fn epsilon(self, delta: Delta) -> Option<Epsilon> {
        let enough = |epsilon| self.delta(Epsilon(epsilon)) <= delta.value();
        let rising = |epsilon| match self.beside_guarantees(epsilon) {
            Some(epsilon) => {
                let raised = self.guarantees().0.exp() * self.total_variation();
                self.squared_mu == 0 || self.upper_tail(epsilon) <= raised
            }
            None => false,
        };
        let smallest = least(0.0, f64::MAX, |epsilon| enough(epsilon) || rising(epsilon));
        enough(smallest).then_some(Epsilon(smallest))
    }

    /// Returns the least noise multiplier of one more mechanism, of this total variation, with
    /// which all together stay within (ε, δ). `None` if there is no such multiplier.
    pub fn noise_multiplier_left(
        self,
        epsilon: Epsilon,
        delta: Delta,
        discreteness: Discreteness,
    ) -> Option<NoiseMultiplier> {
        let fits = |sigma: f64| {
            let together = Self::of(NoiseMultiplier(sigma), discreteness).and_then(|one| self.and(one));
            together.is_ok_and(|together| together.delta(epsilon) <= delta.value())
        };
        let smallest = least(MIN_NOISE_MULTIPLIER, UNITS, fits);
        fits(smallest).then_some(NoiseMultiplier(smallest))
    }

    /// Returns the largest ε of one more mechanism that is not Gaussian, of this δ, with which all
    /// together stay within (ε, δ). `None` if there is none.
    pub fn epsilon_left(self, (epsilon, delta): (Epsilon, Delta), of_one: Delta) -> Option<f64> {
        let one = Self::of_guarantee(Epsilon(0.0), of_one).ok()?;
        let together = self.and(one).ok()?.epsilon(delta)?;
        Some(epsilon.value() - together.value()).filter(|&left| left > 0.0)
    }

    /// Returns the noise multiplier of one Gaussian mechanism with this μ, rounded down.
    fn noise_multiplier(self) -> Option<NoiseMultiplier> {
        (self.squared_mu > 0).then(|| NoiseMultiplier(self.mu().recip() * (1.0 - ROUNDING)))
    }

    /// Returns Q(ε/μ + μ/2).
    fn upper_tail(self, epsilon: f64) -> f64 {
        let mu = self.mu();
        libm::erfc((epsilon / mu + mu / 2.0) / 2_f64.sqrt()) / 2.0
    }
}

/// Returns a number of units as a float that is not below it.
fn rounded_up(units: u128, in_one: f64) -> f64 {
    let near = units as f64;
    let float = if (near as u128) < units { near.next_up() } else { near };
    float / in_one
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_close, del, eps, sigma};
    use super::*;
    use proptest::prelude::*;

    fn spending(noise_multiplier: f64, draws: f64) -> Spending {
        let discreteness = Discreteness::new(2_f64.powi(40), draws).unwrap();
        Spending::of(sigma(noise_multiplier), discreteness).unwrap()
    }

    fn total(parts: &[Spending]) -> Spending {
        parts.iter().try_fold(Spending::NOTHING, |sum, &part| sum.and(part)).unwrap()
    }

    /// Reference: bisection of the closed form in 100-digit arithmetic, without discreteness.
    #[test]
    fn compositions_agree_with_the_reference() {
        let check = |sigmas: &[f64], delta: f64, expected: f64| {
            let parts: Vec<_> = sigmas.iter().map(|&sigma| spending(sigma, 1.0)).collect();
            assert_close(total(&parts).epsilon(del(delta)).unwrap().value(), expected, 1e-9);
        };
        check(&[4.0], 1e-6, 1.060701862328287);
        check(&[4.0; 4], 1e-6, 2.2540846502197525);
        check(&[3.0, 4.0], 1e-6, 1.846082723013609);
        check(&[4.22468, 4.22468], 1e-6, 1.454670662607981);
        check(&[50.0; 7], 1e-5, 0.1702513320920218);
    }

    #[test]
    fn an_empty_composition_spends_nothing() {
        assert_eq!(Spending::NOTHING.delta(eps(0.0)), 0.0);
        assert_eq!(Spending::NOTHING.epsilon(del(1e-30)), Some(eps(0.0)));
        assert_eq!((Spending::NOTHING.mu(), Spending::NOTHING.rho()), (0.0, 0.0));
        let one = spending(3.0, 7.0);
        assert_eq!(one.and(Spending::NOTHING), Ok(one));
    }

    #[test]
    fn steps_multiply_mu_and_leave_the_total_variation() {
        let (one, two) = (spending(3.0, 1e9), spending(3.0, 1e9).over_steps(2).unwrap());
        assert_close(two.mu(), 2.0 / 3.0, 1e-14);
        assert_eq!(two.variation, one.variation);
        assert_eq!(one.over_steps(1), Ok(one));
    }

    #[test]
    fn overspent_budgets_are_refused() {
        let discreteness = Discreteness::new(64.0, 1.0).unwrap();
        assert_eq!(Spending::of(sigma(1.52e-5), discreteness), Err(AccountingError::Overspent));
        let most = Spending::of(sigma(MIN_NOISE_MULTIPLIER), discreteness).unwrap();
        assert_eq!(most.and(most), Err(AccountingError::Overspent));
        assert_eq!(most.over_steps(2), Err(AccountingError::Overspent));
        let all = Discreteness::new(64.0, 1e300).unwrap();
        let certain = Spending::of(sigma(1.0), all).unwrap();
        assert_eq!(certain.and(certain).unwrap().total_variation(), 1.0);
        assert_eq!(certain.delta(eps(0.0)), 1.0);
    }

    #[test]
    fn discreteness_above_delta_leaves_no_epsilon() {
        let grid = Discreteness::new(64.0, 1.0).unwrap();
        let coarse = Spending::of(sigma(3.0), grid).unwrap();
        assert_eq!(coarse.epsilon(del(1e-6)), None);
        assert_eq!(coarse.noise_multiplier_left(eps(1.0), del(1e-6), grid), None);
        let (delta, most) = (1e-4, coarse.epsilon(del(1e-4)).unwrap());
        assert!(coarse.delta(most) <= delta);
        assert!(most > gaussian::epsilon(sigma(3.0), del(delta)), "discreteness costs something");
    }

    /// Guarantees fill a budget exactly, and shift ε of Gaussian mechanisms.
    #[test]
    fn guarantees_add_up() {
        let check = |epsilon: f64, delta: f64| {
            let one = Spending::of_guarantee(eps(epsilon), del(delta)).unwrap();
            assert_eq!(one.guarantees(), (epsilon, delta));
            assert!(one.delta(eps(epsilon)) == delta && one.delta(eps(epsilon.next_down())) == 1.0);
            assert_eq!(one.epsilon(del(delta)), Some(eps(epsilon)));
            assert_eq!(one.epsilon(del(delta.next_down())), None);
            assert_eq!((one.mu(), one.rho(), one.over_steps(1)), (0.0, 0.0, Ok(one)));
        };
        for (epsilon, delta) in [(2.0, 1e-6), (0.1, 1e-5), (1.0 / 3.0, 1e-9), (1e3, 0.5)] {
            check(epsilon, delta);
        }
        let one = Spending::of_guarantee(eps(0.7), del(1e-7)).unwrap();
        let both = one.and(spending(3.0, 1e6)).unwrap();
        let alone = spending(3.0, 1e6).epsilon(del(9e-7)).unwrap().value();
        assert_close(both.epsilon(del(1e-6)).unwrap().value(), 0.7 + alone, 1e-10);
        let left = spending(3.0, 1e6).epsilon_left((eps(0.7 + alone), del(1e-6)), del(1e-7)).unwrap();
        assert_close(left, 0.7, 1e-9);
        assert_eq!(both.epsilon_left((eps(0.7 + alone), del(1e-6)), del(1e-9)), None);
        let (epsilon, delta) = one.over_steps(3).unwrap().guarantees();
        assert_close(epsilon, 2.1, 1e-12);
        assert_close(delta, 1e-7 * (1.0 + 0.7_f64.exp() + 1.4_f64.exp()), 1e-9);
        let large = Spending::of_guarantee(eps(2f64.powi(33)), del(1e-6));
        assert_eq!(large, Err(AccountingError::Overspent));
    }

    proptest! {
        #[test]
        fn order_and_grouping_do_not_matter(
            sigmas in prop::collection::vec(0.01..1e6_f64, 1..20), cut in 0_usize..20, turn in 0_usize..20,
        ) {
            let mut parts: Vec<_> = sigmas.iter().map(|&sigma| spending(sigma, 1.0 + sigma)).collect();
            let expected = total(&parts);
            let (left, right) = parts.split_at(cut.min(parts.len()));
            prop_assert_eq!(total(left).and(total(right)), Ok(expected));
            let turn = turn % parts.len();
            parts.rotate_left(turn);
            prop_assert_eq!(total(&parts), expected);
        }

        #[test]
        fn sums_are_close_and_never_below(sigmas in prop::collection::vec(0.01..1e4_f64, 1..20)) {
            let parts: Vec<_> = sigmas.iter().map(|&sigma| spending(sigma, 1.0)).collect();
            let found = total(&parts).mu();
            let truth = sigmas.iter().map(|sigma| sigma.powi(-2)).sum::<f64>().sqrt();
            prop_assert!(found >= truth && found < truth * (1.0 + 1e-13), "{found} {truth}");
        }

        #[test]
        fn more_mechanisms_cost_more(a in 0.1..100.0_f64, b in 0.1..100.0_f64, epsilon in 0.0..10.0_f64) {
            let (one, both) = (spending(a, 1e6), spending(a, 1e6).and(spending(b, 1e6)).unwrap());
            prop_assert!(both.delta(eps(epsilon)) >= one.delta(eps(epsilon)));
            let least = |spent: Spending| spent.epsilon(del(1e-6)).map_or(f64::INFINITY, Epsilon::value);
            prop_assert!(least(both) >= least(one));
        }

        /// A pipeline fits into the budget that it requests.
        #[test]
        fn mechanism_keeps_its_calibration(
            epsilon in 1e-6..50.0_f64, log_delta in -60.0..-1.0_f64, draws in 1.0..1e12_f64,
        ) {
            let (epsilon, delta) = (eps(epsilon), del(log_delta.exp()));
            let discreteness = Discreteness::new(2_f64.powi(38), draws).unwrap();
            let calibrated = super::super::discrete::noise_multiplier_rounded_up(epsilon, delta, discreteness);
            prop_assume!(calibrated.is_ok());
            let one = Spending::of(calibrated.unwrap(), discreteness).unwrap();
            prop_assert!(one.delta(epsilon) <= delta.value(), "{:e} of {:e}", one.delta(epsilon), delta.value());
            prop_assert!(one.epsilon(delta).unwrap() <= epsilon);
        }

        #[test]
        fn remaining_noise_multiplier_is_minimal(a in 1.0..100.0_f64, epsilon in 0.1..5.0_f64) {
            let discreteness = Discreteness::new(2_f64.powi(40), 1e6).unwrap();
            let (epsilon, delta, spent) = (eps(epsilon), del(1e-6), spending(a, 1e6));
            let fits = |sigma: f64| spending(sigma, 1e6).and(spent).unwrap().delta(epsilon) <= delta.value();
            match spent.noise_multiplier_left(epsilon, delta, discreteness) {
                Some(left) => prop_assert!(fits(left.value()) && !fits(left.value() * (1.0 - 1e-9))),
                None => prop_assert!(spent.delta(epsilon) > delta.value() * (1.0 - 1e-9)),
            }
        }
    }
}
