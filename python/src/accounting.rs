//! Guarantees and noise levels, and what a ledger has spent.

use std::path::PathBuf;

use hushflow::ledger::{Book, Charge};
use hushflow::mechanism::accounting::discrete::Discreteness;
use hushflow::mechanism::accounting::{AccountingError, Delta, Epsilon, NoiseMultiplier, gaussian};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::Failure;

/// The noise multiplier of a guarantee, or what a noise multiplier gives: two of the three.
#[pyfunction]
#[pyo3(signature = (*, epsilon = None, delta = None, noise_multiplier = None))]
pub(crate) fn calibrate(
    epsilon: Option<f64>,
    delta: Option<f64>,
    noise_multiplier: Option<f64>,
) -> PyResult<(f64, f64, f64, f64, f64)> {
    let checked_epsilon = epsilon.map(Epsilon::new).transpose().map_err(Failure::of_argument("epsilon"))?;
    let checked_delta = delta.map(Delta::new).transpose().map_err(Failure::of_argument("delta"))?;
    let sigma = noise_multiplier
        .map(NoiseMultiplier::new)
        .transpose()
        .map_err(Failure::of_argument("noise_multiplier"))?;
    let (epsilon, delta, sigma) = match (checked_epsilon, checked_delta, sigma) {
        (Some(epsilon), Some(delta), None) => {
            (epsilon, delta.value(), gaussian::noise_multiplier(epsilon, delta))
        }
        (None, Some(delta), Some(sigma)) => (gaussian::epsilon(sigma, delta), delta.value(), sigma),
        (Some(epsilon), None, Some(sigma)) => (epsilon, gaussian::delta(sigma, epsilon), sigma),
        (epsilon, delta, sigma) => {
            let found = [epsilon.is_some(), delta.is_some(), sigma.is_some()];
            let found = found.into_iter().filter(|given| *given).count();
            return Err(Failure::parameter(format!(
                "found {found} of epsilon, delta and noise_multiplier, expected two: leave out the one to compute"
            ))
            .into());
        }
    };
    Ok((epsilon.value(), delta, sigma.value(), sigma.rho().value(), sigma.mu()))
}

/// What the ledger in a directory, or the one that pays for a state directory, has spent.
#[pyfunction]
#[pyo3(signature = (directory, *, delta = None))]
pub(crate) fn ledger<'py>(
    py: Python<'py>,
    directory: PathBuf,
    delta: Option<f64>,
) -> PyResult<Bound<'py, PyDict>> {
    let given = delta.map(Delta::new).transpose().map_err(Failure::of_argument("delta"))?;
    let (book, delta, spent, problem, left) = py.detach(|| account(&directory, given))?;
    let found = PyDict::new(py);
    let budget = book.ledger.budget.as_ref();
    found.set_item("path", &book.path)?;
    found.set_item("data_set", &book.ledger.data_set)?;
    found.set_item("entries", book.ledger.entries.len())?;
    found.set_item("delta", delta)?;
    found.set_item("spent", spent)?;
    found.set_item("problem", problem)?;
    found.set_item("budget", budget.map(|budget| (budget.epsilon(), budget.delta())))?;
    found.set_item("left", left)?;
    Ok(found)
}

/// A ledger, the δ at which its spending is stated, the ε spent, or why there is none, and the ε
/// left of a budget.
type Account = (Book, f64, Option<f64>, Option<String>, Option<f64>);

fn account(directory: &std::path::Path, delta: Option<Delta>) -> Result<Account, Failure> {
    let book = Book::open(directory)?;
    let ledger = &book.ledger;
    let wrong = |error: AccountingError| Failure::new("LedgerError", error);
    let stated = ledger.budget.as_ref().map(hushflow::ledger::Budget::delta);
    let largest = ledger.entries.iter().map(|entry| entry.charge.delta).reduce(f64::max);
    let delta = match delta {
        Some(delta) => delta,
        None => Delta::new(stated.or(largest).unwrap_or(USUAL_DELTA)).map_err(wrong)?,
    };
    let (spent, problem) = match ledger.epsilon(&ledger.adjacency(), delta) {
        Ok(found) => (found.map(|found| found.epsilon), None),
        Err(problem) => (None, Some(problem.to_string())),
    };
    let left = match &ledger.budget {
        None => None,
        Some(budget) => {
            let discreteness = Discreteness::of_total_variation(USUAL_TOTAL_VARIATION).map_err(wrong)?;
            let delta = Delta::new(budget.delta()).map_err(wrong)?;
            let spending = ledger.composition(&budget.adjacency()).ok();
            let left = spending.and_then(|spending| budget.left(spending, 1, discreteness, delta));
            Some(left.unwrap_or(0.0))
        }
    };
    Ok((book, delta.value(), spent, problem, left))
}

/// δ of an empty ledger without a budget.
const USUAL_DELTA: f64 = 1e-6;

/// Upper bound on the total variation distance between the noise of a pipeline and its ideal; see
/// docs/privacy.md.
const USUAL_TOTAL_VARIATION: f64 = 1.0 / (1_u128 << 67) as f64;

/// Charges a release of a whole table to a ledger, if one is named here or for all data sets.
pub(crate) fn charge(
    ledger: Option<PathBuf>,
    data_set: Option<String>,
    charge: Charge,
) -> Result<(), Failure> {
    let ledger = match (ledger, &data_set) {
        (Some(_), None) => {
            return Err(Failure::parameter(
                "data_set: a ledger needs the name of the data, such as \"flights\"",
            ));
        }
        (Some(ledger), Some(_)) => Some(ledger),
        (None, _) => match hushflow::ledger::LedgerHome::find()? {
            Some(home) => Some(home.of_data(data_set.as_deref())?),
            None => None,
        },
    };
    match ledger {
        Some(ledger) => Ok(hushflow::ledger::enter_once(&ledger, charge, data_set)?),
        None => Ok(()),
    }
}
