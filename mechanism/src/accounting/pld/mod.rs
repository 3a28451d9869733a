//! Privacy loss distributions: composition of mechanisms of any kind, to a stated numerical error.
//!
//! # Definitions
//! For distributions (P, Q) the privacy loss is L = ln(dP/dQ) under P, and the hockey-stick
//! divergence is `δ(ε) = E[(1 − e^(ε−L))₊] = sup_A P(A) − e^ε Q(A)`. A pair *dominates* a
//! mechanism if its δ(ε) is at least that of every pair of neighbours, for every real ε (Zhu, Dong
//! & Wang 2022, Definition 7). Losses of independent pairs add up.
//!
//! # Adaptive composition
//! **Theorem** (Zhu, Dong & Wang 2022, Theorem 10). Let (P_i, Q_i) be fixed beforehand. Suppose
//! that mechanism i is dominated by (P_i, Q_i) for any earlier releases. Then the composition
//! is dominated by the product of the pairs. The *mechanisms* may be chosen adaptively, but not
//! the *pairs*: no filter is known for pairs that depend on releases. Interactive mechanisms may
//! be interleaved (Vadhan & Zhang 2023, for trade-off functions, which are equivalent to δ(·)).
//!
//! # Discretisation
//! A [`PrivacyLossDistribution`] has masses w_l on a grid, and `f(ε) = Σ w_l (1 − e^(ε−l))₊`.
//!
//! **Lemma.** Let f ≥ δ for one pair at every real ε. Replacing the loss of that pair by the
//! masses then raises (or keeps) δ of every composition. The same holds with ≤ for both.
//! *Proof.* Condition on the sum s of all other losses. The composition's δ(ε) is E[δ(ε − s)], an
//! expectation with non-negative weights of a value that is replaced by f(ε − s). Replace one pair
//! after the other. ∎
//!
//! So the *pessimistic* masses give an upper bound and the *optimistic* ones a lower bound, and a
//! result is an [`Enclosure`]. Only its upper end belongs in a guarantee. Pessimistic masses are
//! those of Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022: f is the chord of δ, as a function
//! of e^ε, between grid values (`distribution.rs`).
//!
//! # Sums of losses
//! Fourier transforms compute sums. A plain transform has an absolute error, far above a δ of
//! 10⁻¹². So masses are first tilted by e^(θl), with θ such that the mean is near the wanted ε.
//! The errors of aliasing and rounding are bounded and added (`sum.rs`).

mod allocation;
mod distribution;
mod mixture;
mod pair;
mod replaced_allocation;
mod sum;
#[cfg(test)]
mod tests;

pub use distribution::PrivacyLossDistribution;
pub use mixture::GaussianMixture;
pub use pair::DominatingPair;

use super::{Delta, Epsilon, discrete::Discreteness, least};
use distribution::Rounding;
use sum::{Part, TiltedSum, cumulants};

/// Largest number of grid values of all pairs together.
const MAX_VALUES: f64 = (1 << 20) as f64;

/// Number of grid values of all pairs with which the search for a step starts.
const FIRST_VALUES: f64 = 2048.0;

/// Largest number of grid values for which the tilt is searched.
const SEARCHED_VALUES: usize = 1 << 16;

/// Smallest relative distance between both ends of an interval that is searched, 2⁻²⁴.
const SEARCHED_BINADES: i32 = 24;

/// Largest variance of tilted losses, in variances of plain ones.
const SPREAD: f64 = 4.0;

/// Largest tilt over a step: with more, sums of bounded losses underflow.
const STEEPEST: f64 = 32.0;

/// Largest step, in root mean squares of the deviations of single losses: it adds a variance of at
/// most 0.015²/4 of the total.
const STEP: f64 = 0.015;

/// Largest step, in standard deviations of the sum.
const STEP_OF_SUM: f64 = 1.0 / 1024.0;

/// A number between bounds that include the numerical error. Only `high` belongs in a guarantee.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Enclosure {
    /// A lower bound.
    pub low: f64,
    /// An upper bound.
    pub high: f64,
}

impl Enclosure {
    /// Returns the interval of the larger of two numbers.
    pub fn max(self, other: Self) -> Self {
        Self { low: self.low.max(other.low), high: self.high.max(other.high) }
    }
}

/// A composition of dominating pairs that are fixed beforehand.
///
/// ```
/// use hushflow_mechanism::accounting::pld::{Composition, DominatingPair};
/// use hushflow_mechanism::accounting::{Delta, NoiseMultiplier};
///
/// // Training with Poisson sampling at rate 0.01: each pair is the one with a record against the
/// // one without it.
/// let step = DominatingPair::poisson_sampled_gaussian(NoiseMultiplier::new(1.0)?, 0.01)?;
/// let epochs = Composition::default().compose(step, 1000);
/// let epsilon = epochs.either_direction().epsilon(Delta::new(1e-5)?).expect("δ is not too small");
/// assert!(epsilon.high < 1.83 && epsilon.high - epsilon.low < 1e-3);
/// # Ok::<(), hushflow_mechanism::accounting::AccountingError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Composition {
    parts: Vec<(DominatingPair, u64)>,
    total_variation: f64,
    either: bool,
}

/// The quantity that a computation solves for.
#[derive(Clone, Copy)]
enum Target {
    Epsilon(f64),
    LogDelta(f64),
}

impl Composition {
    /// Adds `count` independent copies of a pair.
    #[must_use]
    pub fn compose(mut self, pair: DominatingPair, count: u64) -> Self {
        match self.parts.iter_mut().find(|(known, _)| *known == pair) {
            Some((_, total)) => *total = total.saturating_add(count),
            None if count > 0 => self.parts.push((pair, count)),
            None => {}
        }
        self
    }

    /// Charges noise on a grid: δ grows by (1 + e^ε) times the total variation between the noise
    /// and its ideal.
    #[must_use]
    pub fn with_discreteness(mut self, discreteness: Discreteness) -> Self {
        self.total_variation = (self.total_variation + discreteness.total_variation()).min(1.0);
        self
    }

    /// Makes all results the larger of both directions, (P, Q) and (Q, P), each for all pairs.
    #[must_use]
    pub fn either_direction(mut self) -> Self {
        self.either = true;
        self
    }

    /// Returns the least ε for this δ; `None` where infinite losses or the total variation may use
    /// up δ.
    pub fn epsilon(&self, delta: Delta) -> Option<Enclosure> {
        let directions = self.directions().map(|parts| self.epsilon_of(&parts, delta));
        directions.reduce(|one, other| Some(one?.max(other?)))?
    }

    /// Returns the least δ for this ε; at most 1.
    pub fn delta(&self, epsilon: Epsilon) -> Enclosure {
        let directions = self.directions().map(|parts| self.delta_of(&parts, epsilon.value()));
        directions.fold(Enclosure { low: 0.0, high: 0.0 }, Enclosure::max)
    }

    fn directions(&self) -> impl Iterator<Item = Vec<(DominatingPair, u64)>> {
        let reversed: Vec<_> =
            self.parts.iter().map(|(pair, count)| (pair.clone().reversed(), *count)).collect();
        let other = (self.either && reversed != self.parts).then_some(reversed);
        [self.parts.clone()].into_iter().chain(other)
    }

    /// Returns the increase of δ by discrete noise, rounded up.
    fn discreteness(&self, epsilon: f64) -> f64 {
        if self.total_variation == 0.0 {
            return 0.0;
        }
        (1.0 + epsilon.exp()) * self.total_variation * (1.0 + super::MARGIN)
    }

    fn epsilon_of(&self, parts: &[(DominatingPair, u64)], delta: Delta) -> Option<Enclosure> {
        let delta = delta.value() * (1.0 - super::MARGIN);
        if parts.is_empty() {
            return (2.0 * self.total_variation <= delta).then_some(Enclosure { low: 0.0, high: 0.0 });
        }
        let resolution = Resolution::of(parts, Target::LogDelta(delta.ln()));
        let above = resolution.sum(parts, Rounding::Pessimistic);
        let enough = |epsilon: f64| above.delta_above(epsilon) + self.discreteness(epsilon) <= delta;
        // δ rises again where discreteness decides, so the search ends there.
        let rising = |epsilon: f64| self.discreteness(epsilon) > delta / 2.0;
        let high = least(0.0, pair::MAX_LOSS * 1e6, |epsilon| enough(epsilon) || rising(epsilon));
        if !enough(high) {
            return None;
        }
        let below = resolution.sum(parts, Rounding::Optimistic);
        let missing = |epsilon: f64| below.delta_below(epsilon) + self.discreteness(epsilon) <= delta;
        // Lower bounds hold everywhere and are sharp near the tilted mean: walk down from there.
        let start = (2..=SEARCHED_BINADES).rev().map(|halvings| high * (1.0 - 0.5_f64.powi(halvings)));
        let start = start.into_iter().find(|epsilon| !missing(*epsilon)).unwrap_or(0.0);
        let low = if missing(start) { 0.0 } else { least(start, high, missing).next_down() };
        Some(Enclosure { low, high })
    }

    fn delta_of(&self, parts: &[(DominatingPair, u64)], epsilon: f64) -> Enclosure {
        let discreteness = self.discreteness(epsilon);
        if parts.is_empty() {
            let both = discreteness.min(1.0);
            return Enclosure { low: both, high: both };
        }
        let resolution = Resolution::of(parts, Target::Epsilon(epsilon));
        let high = resolution.sum(parts, Rounding::Pessimistic).delta_above(epsilon);
        let low = resolution.sum(parts, Rounding::Optimistic).delta_below(epsilon);
        Enclosure { low: (low + discreteness).min(1.0), high: (high + discreteness).min(1.0) }
    }
}

/// Step and tilt of a computation. Any choice gives valid bounds.
struct Resolution {
    target: Target,
    step: f64,
    tilt: f64,
}

impl Resolution {
    /// Refines the step until the discretisation hardly changes the spread of the sum.
    ///
    /// Steps are powers of two, times the least loss that has a probability of its own: such
    /// losses then lie on the grid.
    fn of(parts: &[(DominatingPair, u64)], target: Target) -> Self {
        let width: f64 = parts.iter().map(|(pair, _)| pair.range().1 - pair.range().0).sum();
        let count: f64 = parts.iter().map(|(_, count)| *count as f64).sum();
        let unit = parts.iter().filter_map(|(pair, _)| pair.atom()).reduce(f64::min).unwrap_or(1.0);
        let at_most = |step: f64| unit * 2_f64.powi((step / unit).log2().floor() as i32);
        let finest = 2.0 * at_most(width / MAX_VALUES);
        let mut chosen = Self { target, step: at_most(width / FIRST_VALUES), tilt: 0.0 };
        loop {
            let discrete = chosen.discretised(parts, Rounding::Pessimistic);
            chosen.tilt = chosen.tilt_for(&discrete);
            let deviation = cumulants(&discrete, 0.0).variance.sqrt();
            let wanted = at_most(deviation * (STEP / count.sqrt()).min(STEP_OF_SUM)).max(finest);
            if wanted >= chosen.step {
                return chosen;
            }
            chosen.step = wanted;
        }
    }

    fn discretised(&self, parts: &[(DominatingPair, u64)], rounding: Rounding) -> Vec<Part> {
        let part = |(pair, count): &(DominatingPair, u64)| Part {
            distribution: PrivacyLossDistribution::of(pair, self.step, rounding),
            count: *count,
        };
        parts.iter().map(part).collect()
    }

    fn sum(&self, parts: &[(DominatingPair, u64)], rounding: Rounding) -> TiltedSum {
        let discrete = self.discretised(parts, rounding);
        TiltedSum::new(&discrete, self.tilt_for(&discrete))
    }

    /// Returns the tilt θ whose mean is near the wanted ε, or the one of a coarser grid where the
    /// search would take too long.
    ///
    /// With K the logarithm of E e^(θL) and g as in [`sum`], δ is about e^(K − θε) max g at ε =
    /// K'(θ); both K' and that bound are monotone. Where single large losses decide, the variance
    /// grows with the tilt, and with it the window: such tilts are avoided.
    fn tilt_for(&self, parts: &[Part]) -> f64 {
        if parts.iter().map(|part| part.distribution.len()).sum::<usize>() > SEARCHED_VALUES {
            return self.tilt;
        }
        let widest = SPREAD * cumulants(parts, 0.0).variance;
        let beyond = |tilt: f64| {
            let found = cumulants(parts, tilt);
            found.variance > widest
                || match self.target {
                    Target::Epsilon(epsilon) => found.mean >= epsilon,
                    Target::LogDelta(log_delta) => {
                        found.log_moment - tilt * found.mean + sum::largest_weight(tilt).ln() <= log_delta
                    }
                }
        };
        let steepest = STEEPEST / self.step;
        let (mut low, mut high) = ((steepest * 2_f64.powi(-40)).ln(), steepest.ln());
        while high - low > 1e-2 {
            let middle: f64 = (low + high) / 2.0;
            if beyond(middle.exp()) { high = middle } else { low = middle }
        }
        low.exp()
    }
}
