//! The total spending of a ledger, and what is left of its budget.

use hushflow_mechanism::accounting::Delta;
use hushflow_mechanism::accounting::adjacency::Adjacency;
use hushflow_mechanism::accounting::composition::Spending;
use hushflow_mechanism::accounting::discrete::Discreteness;

use super::{Book, Budget, ComposedEpsilon, CompositionError};

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

    /// Returns the largest ε of one more pipeline, at the δ and for the neighbours of the budget.
    pub fn left(&self) -> Option<f64> {
        let budget = self.book.ledger.budget.as_ref()?;
        let spent = self.book.ledger.composition(&budget.adjacency()).ok()?;
        let discreteness = Discreteness::of_total_variation(NOISE_TOTAL_VARIATION).ok()?;
        budget.left(spent, 1, discreteness, Delta::new(budget.delta()).ok()?)
    }

    /// Returns why the entries have no (ε, δ) together.
    pub fn problem(&self) -> Option<String> {
        match (&self.composition, self.epsilon()) {
            (Err(reason), _) => Some(reason.to_string()),
            (Ok(_), None) => Some(format!(
                "the discretisation of the noise alone costs more than δ = {:e}",
                self.delta.value()
            )),
            _ => None,
        }
    }
}
