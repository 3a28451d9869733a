//! The robust mean and the private covariance of a whole table.

use std::path::PathBuf;

use hushflow::estimators::covariance::{
    CovarianceBudget, CovarianceError, CovarianceMethod, CovarianceSample,
};
use hushflow::estimators::mean::{MeanError, MeanMethod, Question, Scale, estimate};
use hushflow::ledger::Charge;
use hushflow::mechanism::accounting::{AccountingError, Delta, Epsilon, Rho};
use hushflow::mechanism::noise::NoiseSource;
use hushflow::mechanism::sensitivity::Neighbours;
use hushflow::publication::report::{self, MeanReport};
use numpy::PyReadonlyArray2;
use pyo3::prelude::*;
use serde_json::json;

use crate::accounting::{charge, ledger_of_table};
use crate::errors::Failure;
use crate::process::interruptible;

/// δ at which ε is stated for a ρ.
const STATED_DELTA: f64 = 1e-6;

/// Scales of clean values: `auto`, `whiten`, or numbers.
#[derive(FromPyObject)]
pub(crate) enum ScaleArgument {
    #[pyo3(transparent)]
    Word(String),
    #[pyo3(transparent)]
    One(f64),
    #[pyo3(transparent)]
    Each(Vec<f64>),
}

impl ScaleArgument {
    fn scale(self, columns: usize) -> Result<Scale, Failure> {
        match self {
            Self::Word(word) if word == "auto" => Ok(Scale::Estimated),
            Self::Word(word) if word == "whiten" => Ok(Scale::Whitened),
            Self::One(scale) => Ok(Scale::Known(vec![scale; columns])),
            Self::Each(scales) if scales.len() == columns => Ok(Scale::Known(scales)),
            Self::Each(scales) => Err(Failure::parameter(format!(
                "scale: found {} numbers for {columns} columns, expected one for each",
                scales.len()
            ))),
            Self::Word(word) => Err(Failure::parameter(format!(
                "scale: found {word:?}, expected \"auto\", \"whiten\" or numbers"
            ))),
        }
    }
}

fn wrong(error: impl ToString) -> Failure {
    Failure::parameter(error)
}

/// Returns a source of fresh noise, or of seeded noise.
pub(crate) fn source(seed: Option<u64>) -> NoiseSource {
    seed.map_or(NoiseSource::System, NoiseSource::Seeded)
}

/// The mean of the columns of a table, as JSON.
#[pyfunction]
#[pyo3(signature = (rows, *, corruption, epsilon, delta, method, scale, range, skips, seed, ledger, data_set))]
#[expect(clippy::too_many_arguments, reason = "they are keywords")]
pub(crate) fn robust_mean(
    py: Python<'_>,
    rows: PyReadonlyArray2<'_, f64>,
    corruption: f64,
    epsilon: f64,
    delta: f64,
    method: &str,
    scale: ScaleArgument,
    range: Option<f64>,
    skips: bool,
    seed: Option<u64>,
    ledger: Option<PathBuf>,
    data_set: Option<String>,
) -> PyResult<String> {
    let ledger = ledger_of_table(ledger, data_set.as_deref(), skips)?;
    let columns = rows.as_array().ncols();
    let question = Question {
        method: method.parse::<MeanMethod>().map_err(Failure::of_argument("method"))?,
        epsilon: Epsilon::new(epsilon).map_err(Failure::of_argument("epsilon"))?,
        delta: Delta::new(delta).map_err(Failure::of_argument("delta"))?,
        corruption,
        scale: scale.scale(columns)?,
        range,
    };
    let values: Vec<f64> = rows.as_array().iter().copied().collect();
    let work = move || {
        let source = source(seed);
        let mut generator = source.generator(1, 0).map_err(|error| Failure::new("RunError", error))?;
        let found = estimate(&values, columns, &question, &mut generator);
        // An answer, or an error that depends on private releases, is returned only after the
        // ledger is charged.
        let paid = match &found {
            Ok(answer) => Some(answer.method),
            Err(error) => MeanError::follows_from_releases(error).then_some(question.method),
        };
        if let Some(method) = paid {
            let promise = (question.epsilon, question.delta);
            let cost = Charge::of_mean("mean".into(), (method, question.range.is_some()), promise, source);
            charge(ledger, data_set, cost.map_err(wrong)?)?;
        }
        let mut answer = json!(MeanReport::from(found.map_err(wrong)?));
        answer["private"] = source.is_private().into();
        Ok(answer.to_string())
    };
    interruptible(py, work, || (), false)
}

/// The covariance of the columns of a table, as JSON.
#[pyfunction]
#[pyo3(signature = (rows, names, bounds, *, rho, epsilon, delta, method, neighbours, centre, skips, seed, ledger, data_set))]
#[expect(clippy::too_many_arguments, reason = "they are keywords")]
pub(crate) fn private_covariance(
    py: Python<'_>,
    rows: PyReadonlyArray2<'_, f64>,
    names: Vec<String>,
    bounds: Vec<(f64, f64)>,
    rho: Option<f64>,
    epsilon: Option<f64>,
    delta: Option<f64>,
    method: &str,
    neighbours: &str,
    centre: Option<f64>,
    skips: bool,
    seed: Option<u64>,
    ledger: Option<PathBuf>,
    data_set: Option<String>,
) -> PyResult<String> {
    let ledger = ledger_of_table(ledger, data_set.as_deref(), skips)?;
    let method: CovarianceMethod = method.parse().map_err(Failure::of_argument("method"))?;
    let neighbours = match neighbours {
        "replace-one" | "replace-one-in-place" => Neighbours::ReplaceOneInPlace,
        "zero-out" => Neighbours::ZeroOut,
        other => {
            let expected = "expected \"replace-one\" or \"zero-out\"";
            return Err(Failure::parameter(format!("neighbours: found {other:?}, {expected}")).into());
        }
    };
    let stated = Delta::new(delta.unwrap_or(STATED_DELTA)).map_err(Failure::of_argument("delta"))?;
    let rho = match (rho, epsilon) {
        (Some(rho), None) => Rho::new(rho).map_err(Failure::of_argument("rho"))?,
        (None, Some(epsilon)) if delta.is_some() => {
            let epsilon = Epsilon::new(epsilon).map_err(Failure::of_argument("epsilon"))?;
            method.rho_for(bounds.len(), (epsilon, stated)).ok_or_else(|| {
                Failure::parameter("epsilon: no discrete noise is known to give this (ε, δ): give rho")
            })?
        }
        _ => {
            return Err(
                Failure::parameter("expected rho, or epsilon and delta: how much privacy to spend").into()
            );
        }
    };
    let values: Vec<f64> = rows.as_array().iter().copied().collect();
    let work = move || {
        let source = source(seed);
        let sample = CovarianceSample::new(&bounds, &values, neighbours).map_err(wrong)?;
        let mut generator = source.generator(1, 0).map_err(|error| Failure::new("RunError", error))?;
        let found = method.estimate(&sample, centre, CovarianceBudget::new(rho), &mut generator);
        if let Err(error) = &found
            && !CovarianceError::follows_from_releases(error)
        {
            return Err(wrong(error));
        }
        let spending = method.spending(bounds.len(), rho).map_err(wrong)?;
        let epsilon = spending.epsilon(stated).map_err(wrong)?;
        let name = ("covariance".to_owned(), method);
        let cost: Result<Charge, AccountingError> =
            Charge::of_covariance(name, &spending, (epsilon, stated), neighbours, source);
        charge(ledger, data_set, cost.map_err(wrong)?)?;
        let estimate = found.map_err(wrong)?;
        let mut answer = report::covariance(&estimate, &names);
        answer.insert("method".into(), method.name().into());
        answer.insert("rho".into(), rho.value().into());
        answer.insert("epsilon".into(), epsilon.value().into());
        answer.insert("delta".into(), stated.value().into());
        answer.insert("private".into(), source.is_private().into());
        Ok(serde_json::Value::Object(answer).to_string())
    };
    interruptible(py, work, || (), false)
}
