//! Binds strategies: their errors, sensitivities and matrices, and comparisons of all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hushflow::mechanism::error::ExpectedError;
use hushflow::mechanism::optimize::loss_bound;
use hushflow::mechanism::participation::Participation;
use hushflow::mechanism::strategy::{
    KINDS, Objective, Purpose, Strategy as Runs, StrategyError, StrategyName, compare,
};
use hushflow::mechanism::workload::Workload;
use hushflow::strategies::{Candidate, StrategiesError};
use numpy::{PyArray2, PyArrayMethods, ToPyArray};
use pyo3::prelude::*;

use crate::errors::{Failure, checked};
use crate::process::{interruptible, load_numpy};

/// The purpose of a strategy, except the number of epochs.
#[derive(Clone)]
struct Setting {
    workload: Workload,
    participation: Participation,
    objective: Objective,
}

impl Setting {
    fn read(workload: &str, participation: &str, objective: &str) -> Result<Self, Failure> {
        let workload: Workload = workload.parse().map_err(Failure::of_argument("workload"))?;
        let participation: Participation =
            participation.parse().map_err(Failure::of_argument("participation"))?;
        let objective = match objective {
            "rmse" => Objective::Rmse,
            "max" => Objective::MaxError,
            other => {
                return Err(Failure::parameter(format!(
                    "objective: found {other:?}, expected \"rmse\" or \"max\""
                )));
            }
        };
        Ok(Setting { workload, participation, objective })
    }

    fn purpose(&self, horizon: u64) -> Result<Purpose, Failure> {
        if horizon == 0 {
            return Err(Failure::parameter("horizon: found 0, expected the number of epochs, at least 1"));
        }
        let Setting { workload, participation, objective } = self.clone();
        Ok(Purpose { participation, objective, ..Purpose::new(workload, horizon) })
    }
}

/// A strategy for a workload and, once they are known, a number of epochs.
#[pyclass(frozen, module = "hushflow._hushflow")]
pub(crate) struct Strategy {
    name: StrategyName,
    setting: Setting,
    made: Option<(Candidate, Purpose)>,
}

/// Makes a strategy, possibly by a long search.
fn candidate(py: Python<'_>, name: &StrategyName, purpose: &Purpose) -> PyResult<Candidate> {
    let (name, purpose) = (name.clone(), purpose.clone());
    interruptible(py, move || Ok(Candidate::new(&name, &purpose, &mut |_| ())?), || (), false)
}

fn that_runs(candidate: &Candidate) -> Result<Arc<dyn Runs>, Failure> {
    let strategy = candidate.chosen.name.to_string();
    let refused = || Failure::new("StrategyError", StrategyError::Rectangular { strategy });
    candidate.strategy.clone().ok_or_else(refused)
}

impl Strategy {
    fn made(&self) -> Result<&(Candidate, Purpose), Failure> {
        let strategy = self.name.to_string();
        let refused = || Failure::new("StrategyError", StrategyError::NoHorizon { strategy });
        self.made.as_ref().ok_or_else(refused)
    }

    /// Returns the strategy that runs, and its purpose.
    pub(crate) fn running(&self) -> Result<(Arc<dyn Runs>, Purpose), Failure> {
        let (candidate, purpose) = self.made()?;
        Ok((that_runs(candidate)?, purpose.clone()))
    }

    /// Returns the strategy that runs for this many steps: the existing one, or otherwise one made
    /// for this participation.
    pub(crate) fn of_run(
        &self,
        py: Python<'_>,
        horizon: u64,
        participation: &str,
    ) -> PyResult<Arc<dyn Runs>> {
        if let Some((candidate, _)) = &self.made {
            return Ok(that_runs(candidate)?);
        }
        let participation = participation.parse().map_err(Failure::of_argument("participation"))?;
        let purpose = Setting { participation, ..self.setting.clone() }.purpose(horizon)?;
        Ok(that_runs(&candidate(py, &self.name, &purpose)?)?)
    }

    fn error(&self) -> Result<ExpectedError, Failure> {
        let (candidate, purpose) = self.made()?;
        Ok(candidate.error_under(purpose)?)
    }
}

#[pymethods]
impl Strategy {
    #[new]
    #[pyo3(signature = (name, *, workload = None, horizon = None, participation = None, objective = None))]
    fn new(
        py: Python<'_>,
        name: &Bound<'_, PyAny>,
        workload: Option<&Bound<'_, PyAny>>,
        horizon: Option<&Bound<'_, PyAny>>,
        participation: Option<&Bound<'_, PyAny>>,
        objective: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let text = |of: &str, value: Option<&Bound<'_, PyAny>>, default: &str| match value {
            Some(value) => checked::<String>(of, "str", value),
            None => Ok(default.to_owned()),
        };
        let name = text("name", Some(name), "")?;
        let setting = Setting::read(
            &text("workload", workload, "prefix")?,
            &text("participation", participation, "1")?,
            &text("objective", objective, "rmse")?,
        )?;
        let horizon: Option<u64> =
            horizon.map(|steps| checked("horizon", "int | None", steps)).transpose()?;
        let name: StrategyName =
            name.parse().map_err(|error: StrategyError| Failure::new("StrategyError", error))?;
        let made = horizon.map(|horizon| {
            let purpose = setting.purpose(horizon)?;
            Ok::<_, PyErr>((candidate(py, &name, &purpose)?, purpose))
        });
        Ok(Strategy { made: made.transpose()?, name, setting })
    }

    #[getter]
    fn name(&self) -> String {
        self.made.as_ref().map_or(&self.name, |(candidate, _)| &candidate.chosen.name).to_string()
    }

    #[getter]
    fn workload(&self) -> String {
        self.setting.workload.to_string()
    }

    #[getter]
    fn horizon(&self) -> Option<u64> {
        self.made.as_ref().map(|(_, purpose)| purpose.horizon)
    }

    #[getter]
    fn participation(&self) -> String {
        self.setting.participation.to_string()
    }

    #[getter]
    fn runs(&self) -> PyResult<bool> {
        Ok(self.made()?.0.strategy.is_some())
    }

    #[getter]
    fn state_bytes(&self) -> PyResult<Option<usize>> {
        Ok(self.made()?.0.strategy.as_ref().map(|strategy| strategy.encoder_bytes()))
    }

    #[getter]
    fn rmse(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(py.detach(|| self.error())?.rmse)
    }

    #[getter]
    fn max_error(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(py.detach(|| self.error())?.max_error)
    }

    #[getter]
    fn lower_bound(&self, py: Python<'_>) -> PyResult<f64> {
        let (candidate, purpose) = self.made()?;
        let loss = py.detach(|| match candidate.loss_lower_bound {
            Some(bound) => Ok(bound),
            None => bound_of(purpose),
        })?;
        Ok((loss / purpose.horizon as f64).sqrt())
    }

    #[pyo3(signature = (participation = None))]
    fn sensitivity(&self, py: Python<'_>, participation: Option<&Bound<'_, PyAny>>) -> PyResult<f64> {
        let (candidate, purpose) = self.made()?;
        let mut purpose = purpose.clone();
        if let Some(text) = participation {
            let text: String = checked("participation", "str | None", text)?;
            purpose.participation = text.parse().map_err(Failure::of_argument("participation"))?;
        }
        let error = py.detach(|| candidate.error_under(&purpose)).map_err(Failure::from)?;
        Ok(error.sensitivity)
    }

    #[pyo3(signature = (steps = None))]
    fn matrix<'py>(
        &self,
        py: Python<'py>,
        steps: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray2<f64>>> {
        let (candidate, Purpose { horizon, .. }) = self.made()?;
        let steps = steps.map(|steps| checked("steps", "int | None", steps)).transpose()?;
        let steps: u64 = steps.unwrap_or(*horizon);
        if steps == 0 || steps > *horizon {
            let range = format!("steps: found {steps}, expected 1 to the horizon, {horizon}");
            return Err(Failure::parameter(range).into());
        }
        let matrix = py.detach(|| candidate.factorization.matrix(steps));
        let entries = matrix.map_err(|error| Failure::new("StrategyError", error))?.entries();
        load_numpy(py)?;
        // Column by column in memory: the transpose is a view.
        let transposed = entries.as_slice().to_pyarray(py).reshape([entries.ncols(), entries.nrows()])?;
        transposed.transpose()
    }

    fn __repr__(&self) -> String {
        let horizon = self.horizon().map(|horizon| format!(", horizon={horizon}")).unwrap_or_default();
        let participation = match self.setting.participation.is_single() {
            true => String::new(),
            false => format!(", participation={:?}", self.participation()),
        };
        format!("Strategy({:?}, workload={:?}{horizon}{participation})", self.name(), self.workload())
    }

    /// Returns itself, because it never changes. scikit-learn's `clone` copies parameters.
    fn __copy__<'py>(slf: PyRef<'py, Self>) -> PyRef<'py, Self> {
        slf
    }

    fn __deepcopy__<'py>(slf: PyRef<'py, Self>, _memo: &Bound<'py, PyAny>) -> PyRef<'py, Self> {
        slf
    }
}

/// Returns a lower bound of the loss of every strategy.
fn bound_of(purpose: &Purpose) -> Result<f64, Failure> {
    loss_bound(&purpose.workload, purpose.horizon, purpose.participation)
        .map_err(|error| Failure::new("StrategyError", error))
}

/// Names of all strategies as they are written, each with a line of help.
#[pyfunction]
pub(crate) fn strategy_names() -> Vec<(String, &'static str)> {
    KINDS.iter().map(|kind| (kind.usage(), kind.help())).collect()
}

/// A row of a comparison: name, sensitivity, root mean squared and largest error, and bytes of
/// state.
type Row = (String, f64, f64, f64, Option<usize>);

/// Strategies that are left out, with the reasons.
type Omissions = Vec<(String, String)>;

/// Compares all strategies that apply. Returns the rows, best first, the least error that any
/// strategy can have, if known, and the strategies that are left out with the reasons.
#[pyfunction]
#[pyo3(signature = (*, workload = "prefix", horizon, participation = "1", objective = "rmse", all = false))]
pub(crate) fn plan(
    py: Python<'_>,
    workload: &str,
    horizon: u64,
    participation: &str,
    objective: &str,
    all: bool,
) -> PyResult<(Vec<Row>, Option<f64>, Omissions)> {
    let purpose = Setting::read(workload, participation, objective)?.purpose(horizon)?;
    let stopped = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&stopped);
    let work = move || {
        let comparison = compare(&purpose, all);
        let mut left_out: Vec<_> = comparison
            .omissions
            .iter()
            .map(|left| (left.strategy.clone(), left.reason.to_string()))
            .collect();
        let (mut rows, mut bound) = (Vec::<(f64, Row)>::new(), None::<f64>);
        for name in comparison.strategies {
            if stopped.load(Ordering::Relaxed) {
                break;
            }
            let found = Candidate::new(&name, &purpose, &mut |_| ())
                .and_then(|candidate| Ok((candidate.error_under(&purpose)?, candidate)));
            let (error, candidate) = match found {
                Ok(found) => found,
                Err(error) => match error.omission() {
                    Some(reason) => {
                        left_out.push((name.to_string(), reason.to_string()));
                        continue;
                    }
                    None => return Err(StrategiesError::into(error)),
                },
            };
            bound = candidate.loss_lower_bound.into_iter().chain(bound).reduce(f64::max);
            let bytes = candidate.strategy.as_ref().map(|strategy| strategy.encoder_bytes());
            let row = (name.to_string(), error.sensitivity, error.rmse, error.max_error, bytes);
            rows.push((error.of(purpose.objective), row));
        }
        let bound = bound.or_else(|| bound_of(&purpose).ok());
        rows.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let rows = rows.into_iter().map(|(_, row)| row).collect();
        Ok((rows, bound.map(|loss| (loss / purpose.horizon as f64).sqrt()), left_out))
    };
    interruptible(py, work, || stop.store(true, Ordering::Relaxed), false)
}
