//! The ledger of a data set: every pipeline that released from it, the spending of each, and their
//! composition.
//!
//! A run [reserves](enter()) its spending before it reads a record, and is charged when it commits
//! its first epoch. Each state directory is charged once, however often the run is restarted. With
//! a [`Budget`], a pipeline that does not fit is refused. The mathematics is in
//! [`composition`](crate::mechanism::accounting::composition), the file format in
//! `docs/formats.md`.
//!
//! A ledger holds no data, only names, parameters and times of runs, which are all public. A
//! release that bypasses the ledger, or a run on a copy of a state directory, spends without an
//! entry.

mod book;
mod budget;
mod composition;
mod error;
mod home;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use book::enter_in;
pub use book::{Book, LedgerRequest, confirm_room, enter, enter_once, set_budget, standing};
pub use budget::LedgerAccount;
pub use budget::{Budget, BudgetExceeded};
use composition::BudgetRule;
pub use composition::{ComposedEpsilon, PureSpending, SampledSpending};
pub use error::{CompositionError, LedgerError, LedgerRefusal};
pub use home::{LedgerHome, LedgerHomeError, data_set_name};

use hushflow_estimators::covariance;
use hushflow_estimators::mean::{MeanMethod, shares_of_range};
use hushflow_mechanism::accounting::adjacency::{Adjacency, Nesting, Unit};
use hushflow_mechanism::accounting::bounded_range::{self, RhoSpending};
use hushflow_mechanism::accounting::composition::Spending;
use hushflow_mechanism::accounting::discrete::{self, Discreteness};
use hushflow_mechanism::accounting::{AccountingError, Delta, Epsilon, MARGIN, NoiseMultiplier};
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_mechanism::windows::WindowOverlap;
use serde::{Deserialize, Serialize};

/// Spending of a pipeline on all releases of one state directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Charge {
    /// The pipeline's name.
    pub pipeline: String,
    /// Method that makes its moments private.
    pub method: String,
    /// The protected unit.
    pub unit: Unit,
    /// Larger kinds of entities that contain each entity of this unit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<String>,
    /// The neighbour relation.
    pub neighbours: Neighbours,
    /// False if a seeded generator draws the noise. Then the other fields give no guarantee.
    pub private: bool,
    /// The requested ε.
    pub epsilon: f64,
    /// The requested δ.
    pub delta: f64,
    /// σ = 1/μ of one Gaussian mechanism that represents all releases.
    pub noise_multiplier: f64,
    /// Total variation between all noise of the pipeline and the ideal noise.
    pub total_variation: f64,
    /// Number of epochs; the guarantee covers all of them.
    pub epochs: u64,
    /// The requested ρ of zero-concentrated privacy, by purpose, if the guarantee is stated as ρ.
    /// μ follows from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rho: Option<RhoSpending>,
    /// Spending of the purely ε-private mechanisms, if there are any. μ covers them too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pure: Option<PureSpending>,
    /// Contributions of a record to random batches, if a training run draws them. μ and the total
    /// variation cover them, without the effect of their secrecy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<SampledSpending>,
}

/// Returns the noise multiplier and the total variation of one Gaussian mechanism that represents a
/// mean by filtering.
fn by_filtering((epsilon, delta): (Epsilon, Delta)) -> Result<(NoiseMultiplier, f64), AccountingError> {
    let total_variation = delta.value() / 1024.0 / (1.0 + epsilon.value().exp());
    let reserved = Discreteness::of_total_variation(total_variation)?;
    Ok((discrete::noise_multiplier_rounded_up(epsilon, delta, reserved)?, total_variation))
}

/// Returns the noise multiplier and the total variation of one Gaussian mechanism that represents
/// the resilience estimator.
fn by_resilience(epsilon: Epsilon, delta: Delta) -> Result<(NoiseMultiplier, f64), AccountingError> {
    Ok((bounded_range::equivalent_noise_multiplier(epsilon)?, delta.value() / 12.0 * (1.0 + MARGIN)))
}

impl Charge {
    /// Returns the charge of a robust mean of a whole table, for rows that are replaced in place.
    ///
    /// - Gaussian noise: one Gaussian mechanism of this (ε, δ).
    /// - Tukey median, purely ε-private: the Gaussian mechanism that reveals at least as much as
    ///   any purely ε-private one ([`bounded_range::equivalent_noise_multiplier`]). It reveals far
    ///   more than the Gaussian mechanism of the same (ε, δ).
    /// - Estimator by resilience: as the Tukey median, plus a total variation of δ/12. Without a
    ///   range (not `ranged`), Gaussian noise of (ε/3, δ/3) finds the range, and the estimator gets
    ///   the other two thirds.
    ///
    /// # Errors
    /// [`AccountingError`] if the numbers give no guarantee.
    pub fn of_mean(
        name: String,
        (method, ranged): (MeanMethod, bool),
        (epsilon, delta): (Epsilon, Delta),
        source: NoiseSource,
    ) -> Result<Self, AccountingError> {
        let pure = |epsilon: Epsilon, rest: Option<NoiseMultiplier>| {
            Some(PureSpending {
                epsilon: epsilon.value(),
                noise_multiplier: rest.map(NoiseMultiplier::value),
            })
        };
        let ((noise_multiplier, total_variation), pure) = match (method, ranged) {
            (MeanMethod::Tukey, _) => (
                (bounded_range::equivalent_noise_multiplier(epsilon)?, f64::MIN_POSITIVE),
                pure(epsilon, None),
            ),
            (MeanMethod::Resilience, true) => (by_resilience(epsilon, delta)?, pure(epsilon, None)),
            (MeanMethod::Resilience, false) => {
                let [range, rest] = shares_of_range(epsilon, delta)?;
                let ((one, of_range), (other, of_rest)) =
                    (by_filtering(range)?, by_resilience(rest.0, rest.1)?);
                // The two μ² add up. The sum is rounded up.
                let mu = one.mu().hypot(other.mu()) * (1.0 + MARGIN);
                ((NoiseMultiplier::new(mu.recip())?, of_range + of_rest), pure(rest.0, Some(one)))
            }
            _ => (by_filtering((epsilon, delta))?, None),
        };
        Ok(Self {
            pipeline: name,
            method: method.to_string(),
            unit: Unit::Record,
            within: Vec::new(),
            neighbours: Neighbours::ReplaceOneInPlace,
            private: source.is_private(),
            epsilon: epsilon.value(),
            delta: delta.value(),
            noise_multiplier: noise_multiplier.value(),
            total_variation,
            epochs: 1,
            rho: None,
            pure,
            sampled: None,
        })
    }

    /// Returns the charge of a covariance of a whole table, with the (ε, δ) that follows from ρ.
    ///
    /// Gaussian noise counts with μ² = 2ρ, and selections with μ² = πρ
    /// ([`bounded_range`]).
    ///
    /// # Errors
    /// [`AccountingError`] if the numbers give no guarantee.
    pub fn of_covariance(
        (name, method): (String, covariance::CovarianceMethod),
        spending: &covariance::CovarianceSpending,
        (epsilon, delta): (Epsilon, Delta),
        neighbours: Neighbours,
        source: NoiseSource,
    ) -> Result<Self, AccountingError> {
        Ok(Self {
            pipeline: name,
            method: method.to_string(),
            unit: Unit::Record,
            within: Vec::new(),
            neighbours,
            private: source.is_private(),
            epsilon: epsilon.value(),
            delta: delta.value(),
            noise_multiplier: spending.rho.noise_multiplier_rounded_down()?.value(),
            total_variation: spending.discreteness.total_variation(),
            epochs: 1,
            rho: Some(spending.rho),
            pure: None,
            sampled: None,
        })
    }

    /// Returns the charge of answers to queries over a histogram: one Gaussian mechanism, for a
    /// record that is blanked.
    pub fn of_query(
        (epsilon, delta): (Epsilon, Delta),
        (noise_multiplier, discreteness): (NoiseMultiplier, Discreteness),
        source: NoiseSource,
    ) -> Self {
        Self {
            pipeline: "query".into(),
            method: "optimal".into(),
            unit: Unit::Record,
            within: Vec::new(),
            neighbours: Neighbours::ZeroOut,
            private: source.is_private(),
            epsilon: epsilon.value(),
            delta: delta.value(),
            noise_multiplier: noise_multiplier.value(),
            total_variation: discreteness.total_variation(),
            epochs: 1,
            rho: None,
            pure: None,
            sampled: None,
        }
    }

    /// Returns the charge of all windows that a unit is in, from that of one record in one window
    /// ([`hushflow_mechanism::windows`]). ε and δ stay those of the window.
    ///
    /// # Errors
    /// [`AccountingError`] if all windows together give no guarantee.
    pub fn over_windows(self, overlap: &WindowOverlap) -> Result<Self, AccountingError> {
        if overlap.is_single() {
            return Ok(self);
        }
        let widened = |sigma: f64| sigma / overlap.factor * (1.0 - MARGIN);
        let sigma = NoiseMultiplier::new(widened(self.noise_multiplier))?;
        let is_pure = self.pure.is_some() && self.total_variation == f64::MIN_POSITIVE;
        let total_variation = match is_pure {
            true => self.total_variation,
            false => overlap.total_variation(self.discreteness()?, sigma.mu())?.total_variation(),
        };
        let squared = overlap.factor.powi(2) * (1.0 + MARGIN);
        let rho = self
            .rho
            .map(|rho| RhoSpending { gaussian: rho.gaussian * squared, selection: rho.selection * squared });
        // The ε of several records and of several windows add up.
        let pure = self.pure.map(|pure| PureSpending {
            epsilon: pure.epsilon * overlap.contributions as f64 * (1.0 + MARGIN),
            noise_multiplier: pure.noise_multiplier.map(widened),
        });
        Ok(Self { noise_multiplier: sigma.value(), total_variation, rho, pure, ..self })
    }

    /// Returns the neighbour relation of the guarantee.
    pub fn adjacency(&self) -> Adjacency {
        Adjacency { unit: self.unit.clone(), neighbours: self.neighbours }
    }

    /// Returns the spending under the charge's own neighbour relation, even if a seeded generator
    /// drew the noise.
    ///
    /// # Errors
    /// [`AccountingError`] if a number is out of range.
    pub fn spending(&self) -> Result<Spending, AccountingError> {
        Spending::of(NoiseMultiplier::new(self.noise_multiplier)?, self.discreteness()?)
    }

    fn discreteness(&self) -> Result<Discreteness, AccountingError> {
        Discreteness::of_total_variation(self.total_variation)
    }

    /// Returns the spending under another neighbour relation.
    fn spending_about(
        &self,
        (target, nesting): (&Adjacency, &Nesting),
        rule: BudgetRule,
    ) -> Result<Spending, CompositionError> {
        let spending = match rule {
            BudgetRule::Gaussian => self.spending()?,
            BudgetRule::Guarantees => {
                let delta = Delta::new(self.delta)?;
                // The stated ε of overlapping windows is that of one window.
                let epsilon = match self.sampled {
                    Some(_) => Some(Epsilon::new(self.epsilon)?),
                    None => self.spending()?.epsilon(delta),
                };
                Spending::of_guarantee(epsilon.ok_or(AccountingError::Overspent)?, delta)?
            }
        };
        Ok(spending.over_steps(self.steps_to(target, nesting)?)?)
    }

    /// Returns the number of steps of the charge's own neighbour relation that connect neighbours
    /// under `target`.
    fn steps_to(&self, target: &Adjacency, nesting: &Nesting) -> Result<u32, CompositionError> {
        let pipeline = || self.pipeline.clone();
        if !self.private {
            return Err(CompositionError::Seeded { pipeline: pipeline() });
        }
        self.adjacency().steps_to(target, nesting).map_err(|reason| CompositionError::Incomparable {
            pipeline: pipeline(),
            reason: Box::new(reason),
        })
    }

    /// Pairs of entity kinds, the first within the second.
    fn nested(&self) -> impl Iterator<Item = (&str, &str)> {
        let larger = self.within.iter().map(String::as_str);
        self.unit
            .entity()
            .into_iter()
            .flat_map(move |smaller| larger.clone().map(move |larger| (smaller, larger)))
    }

    /// Whether both have the same public parameters. Every start computes the total variation
    /// again, perhaps with another version or on another machine, so its last digits may differ.
    /// The purely private part follows from the method, and older entries do not state it.
    fn agrees(&self, other: &Self) -> bool {
        let ratio = self.total_variation / other.total_variation;
        let (Self { total_variation, pure, sampled, .. }, near) = (other, 1e-6);
        let same = Self { total_variation: *total_variation, pure: *pure, sampled: *sampled, ..self.clone() };
        let same_batches = match (self.sampled, sampled) {
            (Some(one), Some(other)) => one.contributions == other.contributions,
            (one, other) => one.is_none() && other.is_none(),
        };
        same == *other && same_batches && (ratio - 1.0).abs() < near
    }

    fn check(&self) -> Result<(), AccountingError> {
        Epsilon::new(self.epsilon)?;
        Delta::new(self.delta)?;
        if let Some(rho) = self.rho {
            rho.noise_multiplier_rounded_down()?;
        }
        self.pure.map_or(Ok(()), |pure| pure.check())?;
        self.sampled.map_or(Ok(()), |sampled| sampled.check())?;
        self.spending().map(drop)
    }
}

/// An entry of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LedgerEntry {
    /// Identity of the state directory whose releases the entry pays for. Empty for a reservation.
    pub identity: String,
    /// Time of the entry by its machine's clock, RFC 3339.
    pub started: String,
    /// The spending.
    pub charge: Charge,
}

impl LedgerEntry {
    /// Makes the entry of a run that is not charged yet.
    fn reserved(started: String, charge: Charge) -> Self {
        Self { identity: String::new(), started, charge }
    }

    fn is_reserved(&self) -> bool {
        self.identity.is_empty()
    }
}

/// Contents of the ledger of a data set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledger {
    /// Name of the data set. `None` for the ledger of a single state directory, whose data need no
    /// name.
    pub data_set: Option<String>,
    /// Joint budget of all pipelines.
    pub budget: Option<Budget>,
    /// All pipelines, in order of arrival.
    pub entries: Vec<LedgerEntry>,
}

impl Ledger {
    fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// Parses the file content and checks the range of its numbers.
    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let ledger: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let charges = ledger.entries.iter().map(|entry| entry.charge.check());
        let checked = charges.chain(ledger.budget.iter().map(Budget::check)).collect::<Result<(), _>>();
        checked.map(|()| ledger).map_err(|error| error.to_string())
    }

    /// Returns the entry of a state directory, with its number from 1.
    pub fn entry(&self, identity: &str) -> Option<(usize, &LedgerEntry)> {
        (1..).zip(&self.entries).find(|(_, entry)| entry.identity == identity)
    }

    /// Returns the spending of all entries together under this neighbour relation.
    ///
    /// # Errors
    /// [`CompositionError`] names the first entry without a guarantee.
    pub fn composition(&self, target: &Adjacency) -> Result<Spending, CompositionError> {
        self.spent((target, &self.nesting()), self.rule(None))
    }

    fn spent(&self, about: (&Adjacency, &Nesting), rule: BudgetRule) -> Result<Spending, CompositionError> {
        self.entries
            .iter()
            .try_fold(Spending::NOTHING, |sum, entry| Ok(sum.and(entry.charge.spending_about(about, rule)?)?))
    }

    /// Returns how a budget adds up the entries. The first entry decides; if there is none, `next`
    /// does.
    fn rule(&self, next: Option<&Charge>) -> BudgetRule {
        match self.entries.first().map(|entry| &entry.charge).or(next) {
            Some(Charge { sampled: Some(_), .. }) => BudgetRule::Guarantees,
            _ => BudgetRule::Gaussian,
        }
    }

    /// Returns the nesting of entity kinds that all entries declare.
    fn nesting(&self) -> Nesting {
        Nesting::new(self.entries.iter().flat_map(|entry| entry.charge.nested()))
    }

    /// As [`nesting`](Self::nesting), with one more pipeline.
    fn nesting_with(&self, charge: &Charge) -> Nesting {
        Nesting::new(self.entries.iter().flat_map(|entry| entry.charge.nested()).chain(charge.nested()))
    }

    /// Returns the neighbour relation of the budget. Without a budget, returns the relation for
    /// which the joint guarantee of the entries is strongest: the smallest kind of entity if it
    /// lies within all other kinds, or else the record.
    pub fn adjacency(&self) -> Adjacency {
        if let Some(budget) = &self.budget {
            return budget.adjacency();
        }
        let adjacencies: Vec<_> = self.entries.iter().map(|entry| entry.charge.adjacency()).collect();
        let kinds: Option<Vec<&str>> = adjacencies.iter().map(|one| one.unit.entity()).collect();
        let (kinds, nesting) = (kinds.unwrap_or_default(), self.nesting());
        let within_all = |kind: &&&str| kinds.iter().all(|larger| nesting.is_within(kind, larger));
        let smallest = kinds.iter().find(within_all);
        let unit = smallest.map_or(Unit::Record, |&kind| Unit::Entity(kind.into()));
        let all_blank = adjacencies.iter().all(|one| one.neighbours == Neighbours::ZeroOut);
        let neighbours = if adjacencies.iter().any(|one| one.neighbours == Neighbours::ReplaceOneInPlace) {
            Neighbours::ReplaceOneInPlace
        } else if !adjacencies.is_empty() && all_blank {
            Neighbours::ZeroOut
        } else {
            Neighbours::ReplaceOne
        };
        Adjacency { unit, neighbours }
    }

    /// Assigns the ledger to this data set, or leaves it unchanged for `None`.
    ///
    /// # Errors
    /// [`LedgerRefusal::OtherData`] if it belongs to another data set.
    pub fn of_data(mut self, data_set: Option<&str>) -> Result<Self, LedgerRefusal> {
        match (&self.data_set, data_set) {
            (Some(recorded), Some(named)) if recorded != named => {
                let (recorded, named) = (recorded.clone(), named.into());
                return Err(LedgerRefusal::OtherData { recorded, named });
            }
            (None, Some(named)) => self.data_set = Some(named.into()),
            _ => {}
        }
        Ok(self)
    }

    /// Adds an entry and the budget that its pipeline states.
    ///
    /// # Errors
    /// [`LedgerRefusal`] if the stated budget differs from the ledger's, or if it does not suffice.
    pub fn with(mut self, entry: LedgerEntry, stated: Option<Budget>) -> Result<Self, LedgerRefusal> {
        if let (Some(recorded), Some(stated)) = (&self.budget, &stated)
            && recorded != stated
        {
            let (recorded, stated) = (Box::new(recorded.clone()), Box::new(stated.clone()));
            return Err(LedgerRefusal::OtherBudget { recorded, stated });
        }
        self.budget = self.budget.or(stated);
        if let Some(budget) = &self.budget {
            budget.admit(&self, &entry.charge)?;
        }
        self.entries.push(entry);
        Ok(self)
    }

    /// Adds a budget that the pipeline of an existing entry states at a restart.
    ///
    /// # Errors
    /// [`LedgerRefusal`] if that budget, or the existing one, is exceeded.
    pub fn stating(mut self, stated: Option<Budget>) -> Result<Self, LedgerRefusal> {
        self.budget.iter().chain(&stated).try_for_each(|budget| budget.covers(&self))?;
        self.budget = self.budget.or(stated);
        Ok(self)
    }
}
