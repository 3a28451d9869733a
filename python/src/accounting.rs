//! Binds calibration and ledgers.

use std::path::PathBuf;

use hushflow::ledger::{Book, Charge, LedgerAccount, LedgerHome, enter_once};
use hushflow::mechanism::accounting::{Delta, Epsilon, NoiseMultiplier, gaussian};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::Failure;

/// Computes the missing one of ε, δ and the noise multiplier from the other two.
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

/// Returns the spending in the ledger of a directory, or in the ledger that pays for a state
/// directory.
#[pyfunction]
#[pyo3(signature = (directory, *, delta = None))]
pub(crate) fn ledger<'py>(
    py: Python<'py>,
    directory: PathBuf,
    delta: Option<f64>,
) -> PyResult<Bound<'py, PyDict>> {
    let given = delta.map(Delta::new).transpose().map_err(Failure::of_argument("delta"))?;
    let account = py.detach(|| {
        let book = Book::open(&directory)?;
        let adjacency = book.ledger.adjacency();
        Ok::<_, Failure>(LedgerAccount::new(book, adjacency, given))
    })?;
    let ledger = &account.book.ledger;
    let budget = ledger.budget.as_ref();
    let found = PyDict::new(py);
    found.set_item("path", &account.book.path)?;
    found.set_item("data_set", &ledger.data_set)?;
    found.set_item("entries", ledger.entries.len())?;
    found.set_item("delta", account.delta.value())?;
    found.set_item("spent", account.epsilon().map(|found| found.epsilon))?;
    found.set_item("problem", account.problem())?;
    found.set_item("budget", budget.map(|budget| (budget.epsilon(), budget.delta())))?;
    found.set_item("left", budget.map(|_| account.left().unwrap_or(0.0)))?;
    Ok(found)
}

/// Returns the named ledger, or that of the user's configuration, if there is one. Call it before
/// the release is computed.
///
/// A charge covers neighbours that replace any row by any other. If rows with missing values are
/// left out (`skips`), the release depends on the exact number of complete rows, which
/// distinguishes neighbours: this is refused.
pub(crate) fn ledger_of_table(
    ledger: Option<PathBuf>,
    data_set: Option<&str>,
    skips: bool,
) -> Result<Option<PathBuf>, Failure> {
    let ledger = match (ledger, data_set) {
        (Some(_), None) => {
            return Err(Failure::parameter(
                "data_set: a ledger needs the name of the data, such as \"flights\"",
            ));
        }
        (Some(ledger), Some(_)) => Some(ledger),
        (None, _) => match LedgerHome::find()? {
            Some(home) => Some(home.of_data(data_set)?),
            None => None,
        },
    };
    match ledger {
        Some(ledger) if skips => Err(Failure::parameter(format!(
            "missing: \"skip\" leaves rows out and so reveals the exact number of complete rows, which a charge to the \
             ledger in {} does not cover: use \"keep\", which counts all rows",
            ledger.display()
        ))),
        ledger => Ok(ledger),
    }
}

/// Charges a release to a ledger, if there is one.
pub(crate) fn charge(
    ledger: Option<PathBuf>,
    data_set: Option<String>,
    charge: Charge,
) -> Result<(), Failure> {
    ledger.map_or(Ok(()), |ledger| Ok(enter_once(&ledger, charge, data_set)?))
}
