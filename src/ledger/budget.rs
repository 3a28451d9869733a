//! The joint budget of all pipelines over a data set, their total spending, and the rest.

use std::fmt;

use hushflow_mechanism::accounting::adjacency::{Adjacency, Nesting, Unit};
use hushflow_mechanism::accounting::composition::Spending;
use hushflow_mechanism::accounting::discrete::Discreteness;
use hushflow_mechanism::accounting::{AccountingError, Delta, Epsilon, MARGIN, NoiseMultiplier};
use hushflow_mechanism::sensitivity::Neighbours;
use serde::{Deserialize, Serialize};

use super::{Book, BudgetRule, Charge, ComposedEpsilon, CompositionError, Ledger, LedgerRefusal};

/// The (ε, δ) for all pipelines over a data set together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    epsilon: f64,
    delta: f64,
    unit: Unit,
    neighbours: Neighbours,
}

/// Reason why a budget does not suffice.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetExceeded {
    /// The budget.
    pub budget: Budget,
    /// Number of entries, including reservations of current runs.
    pub entries: usize,
    /// Number of reservations.
    pub reserved: usize,
    /// Their ε at the δ of the budget.
    pub spent: Option<f64>,
    /// The same with the new pipeline.
    pub together: Option<f64>,
    /// The requested (ε, δ).
    pub requested: (f64, f64),
    /// The largest ε, to four digits, still available at the requested δ.
    pub left: Option<f64>,
    /// Whether the pipeline draws batches at random, and μ² adds up.
    pub sampled: bool,
}

impl Budget {
    /// Makes a budget of (ε, δ) for these streams.
    pub fn new(epsilon: Epsilon, delta: Delta, adjacency: Adjacency) -> Self {
        let Adjacency { unit, neighbours } = adjacency;
        Self { epsilon: epsilon.value(), delta: delta.value(), unit, neighbours }
    }

    /// Returns ε of all releases together.
    pub fn epsilon(&self) -> f64 {
        self.epsilon
    }

    /// Returns δ of all releases together.
    pub fn delta(&self) -> f64 {
        self.delta
    }

    /// Returns the neighbour relation of the guarantee.
    pub fn adjacency(&self) -> Adjacency {
        Adjacency { unit: self.unit.clone(), neighbours: self.neighbours }
    }

    pub(super) fn check(&self) -> Result<(), AccountingError> {
        self.numbers().map(drop)
    }

    fn numbers(&self) -> Result<(Epsilon, Delta), AccountingError> {
        Ok((Epsilon::new(self.epsilon)?, Delta::new(self.delta)?))
    }

    pub(super) fn covers(&self, ledger: &Ledger) -> Result<(), LedgerRefusal> {
        let no_guarantee = |reason| LedgerRefusal::NoGuarantee { budget: Box::new(self.clone()), reason };
        let spent = ledger.composition(&self.adjacency()).map_err(no_guarantee)?;
        let (epsilon, delta) = self.numbers().map_err(|error| no_guarantee(error.into()))?;
        if spent.delta(epsilon) <= delta.value() {
            return Ok(());
        }
        let together = spent.epsilon(delta).map(|epsilon| epsilon.value());
        let budget = Box::new(self.clone());
        Err(LedgerRefusal::Overspent { budget, entries: ledger.entries.len(), together })
    }

    pub(super) fn admit(&self, ledger: &Ledger, charge: &Charge) -> Result<(), LedgerRefusal> {
        let no_guarantee = |reason| LedgerRefusal::NoGuarantee { budget: Box::new(self.clone()), reason };
        let (target, nesting) = (self.adjacency(), ledger.nesting_with(charge));
        let (about, rule) = ((&target, &nesting), ledger.rule(Some(charge)));
        let spent = ledger.spent(about, rule).map_err(no_guarantee)?;
        let requested = charge.spending_about(about, rule).map_err(no_guarantee)?;
        let (epsilon, delta) = self.numbers().map_err(|error| no_guarantee(error.into()))?;
        let together = spent.and(requested).ok();
        if together.is_some_and(|together| together.delta(epsilon) <= delta.value()) {
            return Ok(());
        }
        let epsilon_of = |spending: Spending| Some(spending.epsilon(delta)?.value());
        Err(LedgerRefusal::Exceeded(Box::new(BudgetExceeded {
            budget: self.clone(),
            entries: ledger.entries.len(),
            reserved: ledger.entries.iter().filter(|entry| entry.is_reserved()).count(),
            spent: epsilon_of(spent),
            together: together.and_then(epsilon_of),
            requested: (charge.epsilon, charge.delta),
            left: self.left_for((spent, rule), charge, &nesting),
            sampled: rule == BudgetRule::Gaussian && charge.sampled.is_some(),
        })))
    }

    /// Returns the largest ε, to four digits, of a pipeline like `charge` that still fits.
    fn left_for(
        &self,
        (spent, rule): (Spending, BudgetRule),
        charge: &Charge,
        nesting: &Nesting,
    ) -> Option<f64> {
        let steps = charge.adjacency().steps_to(&self.adjacency(), nesting).ok()?;
        let delta = Delta::new(charge.delta).ok()?;
        match (rule, charge.sampled) {
            (BudgetRule::Gaussian, None) => self.left(spent, steps, charge.discreteness().ok()?, delta),
            // No closed form says which ε random batches would have.
            (BudgetRule::Gaussian, Some(_)) => None,
            (BudgetRule::Guarantees, _) if steps == 1 => self.guarantee_left(spent, delta),
            (BudgetRule::Guarantees, _) => None,
        }
    }

    /// Returns the largest ε, to four digits, of one more pipeline of this δ beside `spent`, where
    /// guarantees add up.
    fn guarantee_left(&self, spent: Spending, delta: Delta) -> Option<f64> {
        let left = spent.epsilon_left(self.numbers().ok()?, delta)?;
        (left > LEAST_EPSILON).then(|| four_digits_down(left))
    }

    /// Returns the largest ε, to four digits, of one more pipeline that fits in addition to
    /// `spent`: for streams `steps` apart, with noise of this discreteness, at this δ.
    pub fn left(&self, spent: Spending, steps: u32, discreteness: Discreteness, delta: Delta) -> Option<f64> {
        let (budget_epsilon, budget_delta) = self.numbers().ok()?;
        let least = spent.noise_multiplier_left(budget_epsilon, budget_delta, discreteness)?;
        let noise = NoiseMultiplier::new(least.value() * f64::from(steps)).ok()?;
        let epsilon = Spending::of(noise, discreteness).ok()?.epsilon(delta)?;
        (epsilon.value() > LEAST_EPSILON).then(|| four_digits_down(epsilon.value()))
    }
}

/// Smallest ε that counts as available.
const LEAST_EPSILON: f64 = 1e-9;

/// Rounds down to four digits, by more than calibration rounds up.
fn four_digits_down(number: f64) -> f64 {
    let number = number * (1.0 - 1e-9);
    let scale = 10_f64.powi(3 - number.log10().floor() as i32);
    (number * scale).floor() / scale
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "(ε, δ) = ({}, {:e}) for {}", self.epsilon, self.delta, self.adjacency())
    }
}

/// Formats an (ε, δ), if one is reached.
pub(super) fn reached(epsilon: Option<f64>, delta: f64) -> String {
    match epsilon {
        Some(epsilon) => format!("({epsilon:.6}, {delta:e})"),
        None => format!("more than any ε at δ = {delta:e}"),
    }
}

impl fmt::Display for BudgetExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BudgetExceeded { budget, entries, reserved, spent, together, requested, left, sampled } = self;
        let at_delta =
            |epsilon: &Option<f64>| epsilon.map_or("∞".into(), |epsilon| format!("{epsilon:.6}"));
        write!(
            f,
            "the budget of this data set is {budget}: at its δ, {}{} spent ε = {}, and with the ({}, {:e}) of this \
             pipeline ε would be {}; nothing was published: ",
            if *entries == 1 { "1 entry".into() } else { format!("{entries} entries") },
            match (reserved, *entries == 1) {
                (0, true) => " has".into(),
                (0, false) => " have".into(),
                (_, true) => " (reserved by a run under way) has".into(),
                (_, false) => format!(" ({reserved} reserved by runs under way) have"),
            },
            at_delta(spent),
            requested.0,
            requested.1,
            at_delta(together)
        )?;
        match left {
            Some(left) => {
                write!(f, "add noise, epsilon = {left} at delta = {:e} is what is left", requested.1)?
            }
            None if *sampled => f.write_str(
                "this ledger adds up μ², for which batches that are drawn at random count as if they were public: begin a ledger \
                 with such a run (it then adds up ε and δ), or choose sampling = \"in-order\"",
            )?,
            None => f.write_str("nothing is left at this delta")?,
        }
        f.write_str(
            "; or raise the budget, in the pipeline file and, where the ledger has it from another run, with `hushflow ledger \
             DIR --budget EPSILON,DELTA`",
        )
    }
}

/// δ of an empty ledger without a budget.
const DEFAULT_DELTA: f64 = 1e-6;

/// Upper bound on the total variation distance between the noise of a pipeline and its ideal; see
/// docs/privacy.md.
const NOISE_TOTAL_VARIATION: f64 = 1.0 / (1_u128 << 67) as f64;

/// A ledger and its composition.
pub struct LedgerAccount {
    /// The ledger.
    pub book: Book,
    /// The neighbours for which its entries are composed.
    pub adjacency: Adjacency,
    /// δ of the composition.
    pub delta: Delta,
    /// The spending of all entries together and their ε if it is finite, or why they don't compose.
    pub composition: Result<(Spending, Option<ComposedEpsilon>), CompositionError>,
}

impl LedgerAccount {
    /// Composes the entries. Without `delta`, δ is that of the budget, or else the largest of the
    /// entries.
    pub fn new(book: Book, adjacency: Adjacency, delta: Option<Delta>) -> Self {
        let largest = book.ledger.entries.iter().map(|entry| entry.charge.delta).reduce(f64::max);
        let default = book.ledger.budget.as_ref().map(Budget::delta).or(largest).unwrap_or(DEFAULT_DELTA);
        let delta =
            delta.or(Delta::new(default).ok()).expect("a ledger's numbers were checked when it was read");
        let epsilon = book.ledger.epsilon(&adjacency, delta);
        let composition = epsilon.and_then(|epsilon| Ok((book.ledger.composition(&adjacency)?, epsilon)));
        Self { book, adjacency, delta, composition }
    }

    /// Returns ε of all entries together, if it is finite.
    pub fn epsilon(&self) -> Option<ComposedEpsilon> {
        self.composition.as_ref().ok()?.1
    }

    /// Returns whether the budget adds up the ε and the δ of the entries, since the first of them
    /// is a training run with random batches.
    pub fn adds_guarantees(&self) -> bool {
        self.book.ledger.rule(None) == BudgetRule::Guarantees
    }

    /// Returns the δ of [`left`](Self::left): that of the budget, or what is left of it where δ
    /// adds up.
    pub fn left_delta(&self) -> Option<f64> {
        let budget = self.book.ledger.budget.as_ref()?;
        let spent = self.book.ledger.composition(&budget.adjacency()).ok()?;
        let left = (budget.delta() - spent.guarantees().1) * (1.0 - MARGIN);
        Some(if self.adds_guarantees() { left.max(0.0) } else { budget.delta() })
    }

    /// Returns the largest ε of one more pipeline, at the δ of [`left_delta`](Self::left_delta) and
    /// for the neighbours of the budget.
    pub fn left(&self) -> Option<f64> {
        let budget = self.book.ledger.budget.as_ref()?;
        let spent = self.book.ledger.composition(&budget.adjacency()).ok()?;
        if self.adds_guarantees() {
            return budget.guarantee_left(spent, Delta::new(self.left_delta()?).ok()?);
        }
        let discreteness = Discreteness::of_total_variation(NOISE_TOTAL_VARIATION).ok()?;
        budget.left(spent, 1, discreteness, Delta::new(budget.delta()).ok()?)
    }

    /// Returns why the entries have no (ε, δ) together.
    pub fn problem(&self) -> Option<String> {
        match (&self.composition, self.epsilon()) {
            (Err(reason), _) => Some(reason.to_string()),
            (Ok(_), None) => Some(format!(
                "the discretisation of the noise, and guarantees whose δ adds up, cost more than δ = {:e}: choose a larger δ",
                self.delta.value()
            )),
            _ => None,
        }
    }
}
