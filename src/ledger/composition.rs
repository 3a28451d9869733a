//! ε of all entries together.
//!
//! Every entry counts as one Gaussian mechanism, whose μ² add up
//! ([`composition`](crate::mechanism::accounting::composition)). That is exact for Gaussian entries
//! and loose for purely private ones: a pure ε counts as μ² ≈ πε²/2, where ε² would suffice in a
//! long composition. So where an entry has a purely private part, privacy loss distributions
//! ([`pld`](crate::mechanism::accounting::pld)) compose all entries as well, and the smaller ε is
//! reported.
//!
//! **Why that is allowed.** Entries are fixed beforehand, as the composition in (ε, δ) assumes
//! anyway. Put all draws in the order in which they happen, however pipelines are interleaved.
//! Given the releases so far, a purely ε-private mechanism is a random function of randomised
//! response (Kairouz, Oh & Viswanath 2015), whose privacy loss has the same law on every path. The
//! losses of all Gaussian draws, with the normal variable at the end of the proof of adaptivity
//! (`docs/privacy.md`), sum to N(μ²/2, μ²). From the last draw to the first, the characteristic
//! function of the total loss is the product of both, on every path: the loss is that of
//! independent pairs. ∎
//!
//! Random batches of a training run are composed in the same way, by their dominating pairs: given
//! earlier releases, also those of other pipelines, each step or pass is dominated by its pair.
//!
//! **A budget counts μ² only, or ε and δ only.** It limits entries that are chosen after seeing
//! releases. No theorem for such choices is known for privacy loss distributions: which pair comes
//! next would depend on losses. The μ² of a training run with random batches is at least that of
//! batches in order. So such a run would gain nothing from the secrecy of its batches. If such a
//! run is the *first* entry of a ledger, then the budget adds up the δ of all entries and their ε
//! at it instead. That is valid for entries that are chosen adaptively (Rogers, Roth, Ullman &
//! Vadhan 2016, on filters). The first entry is fixed before anything is released, so nobody
//! chooses the rule after a loss.

use super::{Charge, CompositionError, Ledger};
use hushflow_mechanism::accounting::adjacency::Adjacency;
use hushflow_mechanism::accounting::composition::Spending;
use hushflow_mechanism::accounting::discrete::Discreteness;
use hushflow_mechanism::accounting::event::Accountant;
use hushflow_mechanism::accounting::pld::{self, DominatingPair};
use hushflow_mechanism::accounting::{AccountingError, Delta, Epsilon, NoiseMultiplier};
use hushflow_mechanism::sampling::RandomContributions;
use serde::{Deserialize, Serialize};

/// The purely private part of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PureSpending {
    /// Its ε.
    pub epsilon: f64,
    /// σ of the Gaussian mechanism that represents the rest, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise_multiplier: Option<f64>,
}

/// Contributions of a record to a training run with random batches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampledSpending {
    /// Steps and noise of one contribution.
    pub contributions: RandomContributions,
    /// Total variation between the noise and its ideal.
    pub total_variation: f64,
}

/// How a budget adds up entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BudgetRule {
    /// By μ² and total variation.
    Gaussian,
    /// By ε and δ.
    Guarantees,
}

/// ε of all entries together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ComposedEpsilon {
    /// ε, rounded up.
    pub epsilon: f64,
    /// The accountant that gives it.
    pub accountant: Accountant,
    /// Bound of the numerical error of ε; 0 for closed forms.
    pub numerical_error: f64,
}

impl PureSpending {
    pub(super) fn check(&self) -> Result<(), AccountingError> {
        Epsilon::new(self.epsilon)?;
        self.noise_multiplier.map_or(Ok(()), |sigma| NoiseMultiplier::new(sigma).map(drop))
    }
}

impl SampledSpending {
    pub(super) fn check(&self) -> Result<(), AccountingError> {
        self.discreteness()?;
        NoiseMultiplier::new(self.contributions.noise_multiplier).map(drop)
    }

    fn discreteness(&self) -> Result<Discreteness, AccountingError> {
        Discreteness::of_total_variation(self.total_variation)
    }
}

impl Charge {
    /// Returns the Gaussian part of its spending.
    fn gaussian_spending(&self) -> Result<Spending, AccountingError> {
        match (self.pure, self.sampled) {
            (None, None) => self.spending(),
            (Some(PureSpending { noise_multiplier: Some(sigma), .. }), _) => {
                Spending::of(NoiseMultiplier::new(sigma)?, self.discreteness()?)
            }
            _ => Ok(Spending::NOTHING),
        }
    }
}

impl Ledger {
    /// Returns the least known ε of all entries together under this neighbour relation, rounded up;
    /// `None` where the discretisation of the noise uses up δ.
    ///
    /// # Errors
    /// As [`composition`](Self::composition).
    pub fn epsilon(
        &self,
        target: &Adjacency,
        delta: Delta,
    ) -> Result<Option<ComposedEpsilon>, CompositionError> {
        let spent = self.composition(target)?;
        let closed = spent.epsilon(delta).map(|epsilon| ComposedEpsilon {
            epsilon: epsilon.value(),
            accountant: Accountant::Gaussian,
            numerical_error: 0.0,
        });
        let computed = self.losses(target)?.and_then(|losses| losses.epsilon(delta));
        let computed = computed.map(|found| ComposedEpsilon {
            epsilon: found.high,
            accountant: Accountant::PrivacyLossDistributions,
            numerical_error: found.high - found.low,
        });
        Ok(match (closed, computed) {
            (Some(closed), Some(computed)) if computed.epsilon < closed.epsilon => Some(computed),
            (closed, computed) => closed.or(computed),
        })
    }

    /// Returns the composition of the privacy losses of all entries; `None` if all of them are
    /// Gaussian, if a loss is too large to compose, or if no loss is known for the target.
    fn losses(&self, target: &Adjacency) -> Result<Option<pld::Composition>, CompositionError> {
        let is_gaussian = |charge: &Charge| charge.pure.is_none() && charge.sampled.is_none();
        if self.entries.iter().all(|entry| is_gaussian(&entry.charge)) {
            return Ok(None);
        }
        let nesting = self.nesting();
        let (mut gaussian, mut losses) = (Spending::NOTHING, pld::Composition::default());
        for charge in self.entries.iter().map(|entry| &entry.charge) {
            let steps = charge.steps_to(target, &nesting)?;
            gaussian = gaussian.and(charge.gaussian_spending()?.over_steps(steps)?)?;
            let noise = charge.sampled.map_or_else(|| charge.discreteness(), |one| one.discreteness())?;
            losses = losses.with_discreteness(noise);
            if let Some(SampledSpending { contributions, .. }) = charge.sampled {
                if steps > 1 {
                    return Ok(None);
                }
                let Ok((pair, count)) = contributions.dominating(charge.neighbours) else { return Ok(None) };
                losses = losses.compose(pair, count).either_direction();
            }
            if let Some(pure) = charge.pure {
                // Group privacy: the ε of every step add up.
                let pair = Epsilon::new(pure.epsilon * f64::from(steps)).and_then(DominatingPair::pure);
                let Ok(pair) = pair else { return Ok(None) };
                losses = losses.compose(pair, 1);
            }
        }
        if gaussian.mu() > 0.0 {
            let sigma = NoiseMultiplier::new(gaussian.mu().recip().next_down())?;
            let Ok(pair) = DominatingPair::gaussian(sigma) else { return Ok(None) };
            losses = losses.compose(pair, 1);
        }
        Ok(Some(losses))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Budget, LedgerEntry, LedgerRefusal};
    use super::*;
    use hushflow_mechanism::accounting::adjacency::Unit;
    use hushflow_mechanism::accounting::amplification::RandomParticipation;
    use hushflow_mechanism::sensitivity::Neighbours;

    fn gaussian(epsilon: f64, delta: f64) -> Charge {
        let exact = Discreteness::of_total_variation(f64::MIN_POSITIVE).unwrap();
        let (of_epsilon, of_delta) = (Epsilon::new(epsilon).unwrap(), Delta::new(delta).unwrap());
        let sigma = hushflow_mechanism::accounting::discrete::noise_multiplier_rounded_up(
            of_epsilon, of_delta, exact,
        );
        Charge {
            pipeline: "p".into(),
            method: "pp".into(),
            unit: Unit::Record,
            within: Vec::new(),
            neighbours: Neighbours::ZeroOut,
            private: true,
            epsilon,
            delta,
            noise_multiplier: sigma.unwrap().value(),
            total_variation: f64::MIN_POSITIVE,
            epochs: 10,
            rho: None,
            pure: None,
            sampled: None,
        }
    }

    /// A run of ε = 1.7 with δ = 10⁻⁶.
    fn sampled() -> Charge {
        let participation = RandomParticipation::Poisson { rate: 0.02, steps: 250 };
        let contributions = RandomContributions { participation, noise_multiplier: 1.2 };
        let (cover, variation) = contributions.gaussian_cover(Neighbours::ZeroOut, 1e-35).unwrap();
        Charge {
            noise_multiplier: cover.value(),
            total_variation: variation,
            sampled: Some(SampledSpending { contributions, total_variation: f64::MIN_POSITIVE }),
            ..gaussian(1.7, 1e-6)
        }
    }

    fn ledger(charges: &[Charge], (epsilon, delta): (f64, f64)) -> Result<Ledger, LedgerRefusal> {
        let about = gaussian(1.0, 1e-6).adjacency();
        let budget = Budget::new(Epsilon::new(epsilon).unwrap(), Delta::new(delta).unwrap(), about);
        charges.iter().cloned().try_fold(Ledger::default(), |ledger, charge| {
            let (identity, started) = (ledger.entries.len().to_string(), String::new());
            ledger.with(LedgerEntry { identity, started, charge }, Some(budget.clone()))
        })
    }

    /// The rule follows from the first entry alone, and each rule keeps its own sums.
    #[test]
    fn the_first_entry_decides_how_a_budget_adds_up() {
        let (one, two, half) = (gaussian(1.0, 1e-6), sampled(), gaussian(0.5, 1e-6));
        assert!(ledger(std::slice::from_ref(&two), (1.7, 1e-6)).is_ok());
        assert!(ledger(std::slice::from_ref(&two), (1.69, 1e-6)).is_err());
        assert!(ledger(&[two.clone(), one.clone()], (2.7, 2e-6)).is_ok());
        assert!(ledger(&[two.clone(), one.clone()], (2.7, 1.9e-6)).is_err(), "δ adds up");
        assert!(ledger(&[two.clone(), one.clone()], (2.69, 2e-6)).is_err(), "ε adds up");
        assert!(ledger(&[two.clone(), half.clone(), half.clone()], (2.7, 3e-6)).is_ok());
        let windows = Charge { noise_multiplier: one.noise_multiplier / 2.0, ..one.clone() };
        assert!(
            ledger(&[two.clone(), windows], (2.7, 2e-6)).is_err(),
            "the noise counts, not what is stated"
        );
        let refused = ledger(&[one.clone(), two.clone()], (4.0, 1e-4)).unwrap_err();
        assert!(matches!(refused, LedgerRefusal::Exceeded(exceeded) if exceeded.sampled));
        // Without secrecy the run would cost the ε of its cover.
        let cover = ledger(&[one, two.clone()], (60.0, 1e-4)).unwrap();
        let spent = cover.composition(&two.adjacency()).unwrap();
        assert!(spent.guarantees() == (0.0, 0.0) && spent.mu() > two.noise_multiplier.recip());
    }

    /// Losses of random batches compose with others: less than the sum of ε, and more than either.
    #[test]
    fn losses_of_random_batches_compose() {
        let (delta, about) = (Delta::new(1e-6).unwrap(), sampled().adjacency());
        let epsilon = |charges: &[Charge]| {
            let ledger = ledger(charges, (60.0, 0.1)).unwrap();
            ledger.epsilon(&about, delta).unwrap().unwrap()
        };
        let (alone, other) = (epsilon(&[sampled()]), epsilon(&[gaussian(1.0, 1e-6)]));
        assert!(alone.epsilon > 1.6 && alone.epsilon <= 1.7, "{alone:?}");
        for both in [[sampled(), gaussian(1.0, 1e-6)], [gaussian(1.0, 1e-6), sampled()]] {
            let both = epsilon(&both);
            assert_eq!(both.accountant, Accountant::PrivacyLossDistributions);
            assert!(both.epsilon > alone.epsilon.max(other.epsilon), "{both:?}");
            assert!(both.epsilon < alone.epsilon + other.epsilon, "{both:?}");
        }
        // For neighbours that take two steps only the guarantees are known.
        let replaced = Adjacency { neighbours: Neighbours::ReplaceOne, ..about.clone() };
        let found = ledger(&[sampled()], (1.7, 1e-6)).unwrap().epsilon(&replaced, Delta::new(1e-4).unwrap());
        assert_eq!(found.unwrap().unwrap().epsilon, 3.4);
    }
}
