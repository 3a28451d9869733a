//! The ledger of a data set: every pipeline that ever released from it, what each of them spends, and what all spend
//! together.
//!
//! A run [reserves](enter()) room before it reads a record, and pays when it commits its first epoch: once for each state directory,
//! however often that is run again. Where there is a [`Budget`], a pipeline that does not fit is refused. The mathematics is that
//! of [`composition`](crate::mechanism::accounting::composition), the bytes are in `docs/formats.md`.
//!
//! A ledger holds no data: names, parameters and times of runs, all of them public. It knows what is entered, no more: whoever
//! releases past it, or runs a copy of a state directory, spends without an entry.

mod book;
mod budget;
mod error;
mod home;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use book::enter_in;
pub use book::{Book, Request, enter, enter_once, set_budget, standing};
pub use budget::{Budget, Exceeded};
pub use error::{LedgerError, NoGuarantee, Refusal};
pub use home::{Home, HomeError, data_set_name};

use hushflow_estimators::covariance;
use hushflow_estimators::mean::{Method, shares_of_range};
use hushflow_mechanism::accounting::adjacency::{Adjacency, Nesting, Unit};
use hushflow_mechanism::accounting::bounded_range::Concentrated;
use hushflow_mechanism::accounting::composition::Spending;
use hushflow_mechanism::accounting::discrete::{self, Discreteness};
use hushflow_mechanism::accounting::{AccountingError, Delta, Epsilon, MARGIN, NoiseMultiplier, pure};
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::sensitivity::Neighbours;
use serde::{Deserialize, Serialize};

/// What a pipeline spends with all releases of one state directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Charge {
    /// The pipeline's name.
    pub pipeline: String,
    /// How its moments are made private.
    pub method: String,
    /// What is protected as a whole.
    pub unit: Unit,
    /// Larger kinds of entities that each entity of this unit lies within.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<String>,
    /// How it may differ.
    pub neighbours: Neighbours,
    /// False where a seeded generator draws the noise: then all that follows is worth nothing.
    pub private: bool,
    /// The ε that was asked for.
    pub epsilon: f64,
    /// The δ that was asked for.
    pub delta: f64,
    /// σ = 1/μ of one Gaussian mechanism that stands for all releases.
    pub noise_multiplier: f64,
    /// Total variation between all its noise and the ideal one.
    pub total_variation: f64,
    /// Number of epochs, over all of which the guarantee is.
    pub epochs: u64,
    /// The ρ of zero-concentrated privacy that was asked for, by what it is spent on, where that is the promise: μ follows from
    /// it. Absent elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rho: Option<Concentrated>,
}

/// A mean by filters as one Gaussian mechanism, and its total variation.
fn by_filtering((epsilon, delta): (Epsilon, Delta)) -> Result<(NoiseMultiplier, f64), AccountingError> {
    let total_variation = delta.value() / 1024.0 / (1.0 + epsilon.value().exp());
    let reserved = Discreteness::of_total_variation(total_variation)?;
    Ok((discrete::noise_multiplier_rounded_up(epsilon, delta, reserved)?, total_variation))
}

/// The estimator by resilience as one Gaussian mechanism, and its total variation.
fn by_resilience(epsilon: Epsilon, delta: Delta) -> Result<(NoiseMultiplier, f64), AccountingError> {
    Ok((pure::noise_multiplier_rounded_down(epsilon)?, delta.value() / 12.0 * (1.0 + MARGIN)))
}

impl Charge {
    /// That of a robust mean of a whole table, of rows that are replaced in place.
    ///
    /// Methods of Gaussian noise are one Gaussian mechanism of this (ε, δ). The Tukey median is purely ε-private, and the
    /// estimator by resilience but for a total variation of δ/12: these count as the Gaussian mechanism that tells at least as
    /// much as anything purely ε-private ([`pure`]), which is far more than the one of the same (ε, δ). Where no range is given (`ranged`),
    /// the latter is Gaussian noise of (ε/3, δ/3) and two thirds of itself.
    ///
    /// # Errors
    /// [`AccountingError`] where the numbers give no guarantee.
    pub fn of_mean(
        name: String,
        (method, ranged): (Method, bool),
        (epsilon, delta): (Epsilon, Delta),
        source: NoiseSource,
    ) -> Result<Self, AccountingError> {
        let (noise_multiplier, total_variation) = match (method, ranged) {
            (Method::Tukey, _) => (pure::noise_multiplier_rounded_down(epsilon)?, f64::MIN_POSITIVE),
            (Method::Resilience, true) => by_resilience(epsilon, delta)?,
            (Method::Resilience, false) => {
                let [range, rest] = shares_of_range(epsilon, delta)?;
                let ((one, of_range), (other, of_rest)) =
                    (by_filtering(range)?, by_resilience(rest.0, rest.1)?);
                // μ² of both, rounded up.
                let mu = one.mu().hypot(other.mu()) * (1.0 + MARGIN);
                (NoiseMultiplier::new(mu.recip())?, of_range + of_rest)
            }
            _ => by_filtering((epsilon, delta))?,
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
        })
    }

    /// That of a covariance of a whole table, of which an (ε, δ) is told that follows from ρ.
    ///
    /// Gaussian noise counts with μ² = 2ρ, and selections with μ² = πρ ([`bounded_range`](hushflow_mechanism::accounting::bounded_range)).
    ///
    /// # Errors
    /// [`AccountingError`] where the numbers give no guarantee.
    pub fn of_covariance(
        (name, method): (String, covariance::Method),
        spending: &covariance::Spending,
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
        })
    }

    /// Which streams it makes hard to tell apart.
    pub fn adjacency(&self) -> Adjacency {
        Adjacency { unit: self.unit.clone(), neighbours: self.neighbours }
    }

    /// What it spends about these, whatever drew the noise.
    ///
    /// # Errors
    /// [`AccountingError`] where a number is out of its range.
    pub fn spending(&self) -> Result<Spending, AccountingError> {
        Spending::of(NoiseMultiplier::new(self.noise_multiplier)?, self.discreteness()?)
    }

    fn discreteness(&self) -> Result<Discreteness, AccountingError> {
        Discreteness::of_total_variation(self.total_variation)
    }

    /// What it spends about other streams.
    fn spending_about(&self, wanted: &Adjacency, nesting: &Nesting) -> Result<Spending, NoGuarantee> {
        let pipeline = || self.pipeline.clone();
        if !self.private {
            return Err(NoGuarantee::Seeded { pipeline: pipeline() });
        }
        let steps = self.adjacency().steps_to(wanted, nesting);
        let steps = steps
            .map_err(|reason| NoGuarantee::Incomparable { pipeline: pipeline(), reason: Box::new(reason) })?;
        Ok(self.spending()?.over_steps(steps)?)
    }

    /// Pairs of kinds of entities of which one lies within the other.
    fn nested(&self) -> impl Iterator<Item = (&str, &str)> {
        let larger = self.within.iter().map(String::as_str);
        self.unit
            .entity()
            .into_iter()
            .flat_map(move |smaller| larger.clone().map(move |larger| (smaller, larger)))
    }

    /// Whether both are of the same public parameters. Total variations are computed anew on every start, perhaps by another
    /// version on another machine, and may differ in their last digits.
    fn agrees(&self, other: &Self) -> bool {
        let ratio = self.total_variation / other.total_variation;
        let same = Self { total_variation: other.total_variation, ..self.clone() };
        same == *other && (ratio - 1.0).abs() < 1e-6
    }

    fn check(&self) -> Result<(), AccountingError> {
        Epsilon::new(self.epsilon)?;
        Delta::new(self.delta)?;
        if let Some(rho) = self.rho {
            rho.noise_multiplier_rounded_down()?;
        }
        self.spending().map(drop)
    }
}

/// A line of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The state directory whose releases it pays for.
    pub identity: String,
    /// When it was made, by the clock of the machine that made it: RFC 3339.
    pub started: String,
    /// What is spent.
    pub charge: Charge,
}

impl Entry {
    /// That of a run that has not paid yet.
    fn reserved(started: String, charge: Charge) -> Self {
        Self { identity: String::new(), started, charge }
    }

    fn is_reserved(&self) -> bool {
        self.identity.is_empty()
    }
}

/// What is known of a data set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledger {
    /// The name of the data. None where the ledger is that of one state directory, whose data need no name.
    pub data_set: Option<String>,
    /// What all pipelines may spend together.
    pub budget: Option<Budget>,
    /// All pipelines, in the order in which they came.
    pub entries: Vec<Entry>,
}

impl Ledger {
    /// What is written of it.
    fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// What was written; none of its numbers is out of its range.
    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let ledger: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let charges = ledger.entries.iter().map(|entry| entry.charge.check());
        let checked = charges.chain(ledger.budget.iter().map(Budget::check)).collect::<Result<(), _>>();
        checked.map(|()| ledger).map_err(|error| error.to_string())
    }

    /// The entry of a state directory, with its number from 1.
    pub fn entry(&self, identity: &str) -> Option<(usize, &Entry)> {
        (1..).zip(&self.entries).find(|(_, entry)| entry.identity == identity)
    }

    /// What all entries spend together about such streams.
    ///
    /// # Errors
    /// [`NoGuarantee`] names the first entry with which there is no guarantee.
    pub fn composition(&self, wanted: &Adjacency) -> Result<Spending, NoGuarantee> {
        self.spent(wanted, &self.nesting())
    }

    fn spent(&self, wanted: &Adjacency, nesting: &Nesting) -> Result<Spending, NoGuarantee> {
        self.entries.iter().try_fold(Spending::NOTHING, |sum, entry| {
            Ok(sum.and(entry.charge.spending_about(wanted, nesting)?)?)
        })
    }

    /// Which kinds of entities lie within which, as all entries say.
    fn nesting(&self) -> Nesting {
        Nesting::new(self.entries.iter().flat_map(|entry| entry.charge.nested()))
    }

    /// The same, with what one more pipeline says.
    fn nesting_with(&self, charge: &Charge) -> Nesting {
        Nesting::new(self.entries.iter().flat_map(|entry| entry.charge.nested()).chain(charge.nested()))
    }

    /// The streams that the budget is about or, without one, those about which the entries together say most: the
    /// smallest kind of entity, where it lies within all others, or else the record.
    pub fn adjacency(&self) -> Adjacency {
        if let Some(budget) = &self.budget {
            return budget.adjacency();
        }
        let found: Vec<_> = self.entries.iter().map(|entry| entry.charge.adjacency()).collect();
        let kinds: Option<Vec<&str>> = found.iter().map(|one| one.unit.entity()).collect();
        let (kinds, nesting) = (kinds.unwrap_or_default(), self.nesting());
        let within_all = |kind: &&&str| kinds.iter().all(|larger| nesting.is_within(kind, larger));
        let smallest = kinds.iter().find(within_all);
        let unit = smallest.map_or(Unit::Record, |&kind| Unit::Entity(kind.into()));
        let all_blank = found.iter().all(|one| one.neighbours == Neighbours::ZeroOut);
        let neighbours = if found.iter().any(|one| one.neighbours == Neighbours::ReplaceOneInPlace) {
            Neighbours::ReplaceOneInPlace
        } else if !found.is_empty() && all_blank {
            Neighbours::ZeroOut
        } else {
            Neighbours::ReplaceOne
        };
        Adjacency { unit, neighbours }
    }

    /// Of these data, or as it is where they have no name.
    ///
    /// # Errors
    /// [`Refusal::OtherData`] if it is that of others.
    pub fn of_data(mut self, data_set: Option<&str>) -> Result<Self, Refusal> {
        match (&self.data_set, data_set) {
            (Some(stands), Some(named)) if stands != named => {
                let (stands, named) = (stands.clone(), named.into());
                return Err(Refusal::OtherData { stands, named });
            }
            (None, Some(named)) => self.data_set = Some(named.into()),
            _ => {}
        }
        Ok(self)
    }

    /// With one more entry, and the budget that its pipeline states.
    ///
    /// # Errors
    /// [`Refusal`] if that is another budget than the ledger's, or if it does not suffice.
    pub fn with(mut self, entry: Entry, stated: Option<Budget>) -> Result<Self, Refusal> {
        if let (Some(stands), Some(stated)) = (&self.budget, &stated)
            && stands != stated
        {
            let (stands, stated) = (Box::new(stands.clone()), Box::new(stated.clone()));
            return Err(Refusal::OtherBudget { stands, stated });
        }
        self.budget = self.budget.or(stated);
        if let Some(budget) = &self.budget {
            budget.admit(&self, &entry.charge)?;
        }
        self.entries.push(entry);
        Ok(self)
    }

    /// With the budget that the pipeline of one of its entries states now.
    ///
    /// # Errors
    /// [`Refusal`] if that, or the one that stands, is exceeded.
    pub fn stating(mut self, stated: Option<Budget>) -> Result<Self, Refusal> {
        self.budget.iter().chain(&stated).try_for_each(|budget| budget.covers(&self))?;
        self.budget = self.budget.or(stated);
        Ok(self)
    }
}
