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
//! **A budget counts μ² only.** It limits entries that are chosen after seeing releases. No such
//! theorem is known for privacy loss distributions: which pair comes next would depend on losses.

use super::{Charge, CompositionError, Ledger};
use hushflow_mechanism::accounting::adjacency::Adjacency;
use hushflow_mechanism::accounting::composition::Spending;
use hushflow_mechanism::accounting::discrete::Discreteness;
use hushflow_mechanism::accounting::event::Accountant;
use hushflow_mechanism::accounting::pld::{self, DominatingPair};
use hushflow_mechanism::accounting::{AccountingError, Delta, Epsilon, NoiseMultiplier};
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

impl Charge {
    /// Returns the Gaussian part of its spending.
    fn gaussian_spending(&self) -> Result<Spending, AccountingError> {
        match self.pure {
            None => self.spending(),
            Some(PureSpending { noise_multiplier: Some(sigma), .. }) => {
                Spending::of(NoiseMultiplier::new(sigma)?, self.discreteness()?)
            }
            Some(_) => Ok(Spending::NOTHING),
        }
    }
}

impl Ledger {
    /// Returns the least known ε of all entries together about such streams, rounded up; `None`
    /// where the discretisation of the noise uses up δ.
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
        let computed = self.losses(target, spent)?.and_then(|losses| losses.epsilon(delta));
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
    /// Gaussian, or if a loss is too large for it.
    fn losses(
        &self,
        target: &Adjacency,
        spent: Spending,
    ) -> Result<Option<pld::Composition>, CompositionError> {
        if self.entries.iter().all(|entry| entry.charge.pure.is_none()) {
            return Ok(None);
        }
        let nesting = self.nesting();
        let (mut gaussian, mut losses) = (Spending::NOTHING, pld::Composition::default());
        for charge in self.entries.iter().map(|entry| &entry.charge) {
            let steps = charge.steps_to(target, &nesting)?;
            gaussian = gaussian.and(charge.gaussian_spending()?.over_steps(steps)?)?;
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
        Ok(Some(losses.with_discreteness(Discreteness::of_total_variation(spent.total_variation())?)))
    }
}
