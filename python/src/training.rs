//! Private Adam for training loops in Python.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hushflow::mechanism::accounting::{Delta, Epsilon};
use hushflow::mechanism::mechanism::Strategies;
use hushflow::mechanism::participation::Participation;
use hushflow::mechanism::workload::Workload;
use hushflow_training::plan::{Privatisation, TrainingError, TrainingPlan as Plan};
use hushflow_training::sampling::Sampling;
use hushflow_training::{ClaimError, Journal, TrainingSteps};
use numpy::{PyArray1, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods, ToPyArray};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use zeroize::Zeroizing;

use crate::errors::Failure;
use crate::estimators::source;
use crate::noise::neighbours;
use crate::process::Owner;
use crate::process::interruptible;
use crate::strategies::Strategy;

/// Number of values copied from an array at a time. Each value is needed twice, but is read only
/// once from the array, which other threads may change.
const BLOCK: usize = 1 << 18;

/// The guarantee of a training run, and the records of each step.
#[pyclass(frozen, module = "hushflow._hushflow")]
pub(crate) struct TrainingPlan {
    plan: Plan,
    /// Whether the first step sets the batch size.
    #[pyo3(get)]
    sized: bool,
}

#[pymethods]
impl TrainingPlan {
    #[new]
    fn new(
        participation: &str,
        epsilon: f64,
        delta: f64,
        batch_size: Option<u32>,
        neighbours: &str,
        method: &str,
    ) -> PyResult<Self> {
        let found = participation.parse().map_err(Failure::of_argument("participation"))?;
        let passes_of = |count: u64, gap: u64| Some((u32::try_from(count).ok()?, u32::try_from(gap).ok()?));
        let Some((passes, steps)) = (match found {
            Participation::Fixed { count, gap } => passes_of(count.get(), gap.get()),
            _ => None,
        }) else {
            return Err(Failure::parameter(format!(
                "participation: found {participation:?}, expected passes and their number of steps, such as \
                 \"5x50\": a record takes part once in a pass, always at the same step"
            ))
            .into());
        };
        let named = Privatisation::NAMED.iter().find(|(name, _)| *name == method);
        let names = || Privatisation::NAMED.map(|(name, _)| name).join(", ");
        let (_, privatisation) = named.ok_or_else(|| {
            Failure::parameter(format!("method: found {method:?}, expected one of {}", names()))
        })?;
        let size = batch_size.map(|size| {
            let expected = "expected the number of records of a step, at least 1";
            NonZeroU32::new(size)
                .ok_or_else(|| Failure::parameter(format!("batch_size: found 0, {expected}")))
        });
        let size = size.transpose()?;
        let plan = Plan {
            records: 0,
            batch_size: NonZeroU32::MIN,
            passes: NonZeroU32::new(passes).unwrap_or(NonZeroU32::MIN),
            sampling: Sampling::InOrder,
            neighbours: self::neighbours(neighbours)?,
            epsilon: Epsilon::new(epsilon).map_err(Failure::of_argument("epsilon"))?,
            delta: Delta::new(delta).map_err(Failure::of_argument("delta"))?,
            clip_norm: 1.0,
            privatisation: *privatisation,
            learning_rate: 0.0,
        };
        let plan = with_batches(plan, steps as usize, size.unwrap_or(NonZeroU32::MIN));
        Ok(TrainingPlan { plan, sized: size.is_some() })
    }

    #[getter]
    fn horizon(&self) -> u64 {
        self.plan.horizon()
    }

    #[getter]
    fn batch_size(&self) -> Option<u32> {
        self.sized.then(|| self.plan.batch_size.get())
    }

    #[getter]
    fn participation(&self) -> String {
        format!("{}x{}", self.plan.passes, self.plan.steps_per_pass())
    }

    #[getter]
    fn epsilon(&self) -> f64 {
        self.plan.epsilon.value()
    }

    #[getter]
    fn delta(&self) -> f64 {
        self.plan.delta.value()
    }

    fn __repr__(&self) -> String {
        let size = self.batch_size().map(|size| format!(", batch_size={size}")).unwrap_or_default();
        let (epsilon, delta) = (self.epsilon(), self.delta());
        format!("TrainingPlan({:?}, epsilon={epsilon:?}, delta={delta:?}{size})", self.participation())
    }
}

/// Returns the plan with batches of this size and `steps` steps in each pass.
fn with_batches(plan: Plan, steps: usize, size: NonZeroU32) -> Plan {
    Plan { records: steps.saturating_mul(size.get() as usize), batch_size: size, ..plan }
}

/// A run of private Adam.
#[pyclass(frozen, module = "hushflow._hushflow")]
pub(crate) struct PrivateAdam {
    steps: Mutex<TrainingSteps>,
    owner: Owner,
    #[pyo3(get)]
    private: bool,
}

fn failure(error: TrainingError) -> Failure {
    match error {
        TrainingError::Gradients { .. } => Failure::new("BatchError", error),
        TrainingError::State(_)
        | TrainingError::Claim(ClaimError::Drawn { .. } | ClaimError::OtherRun { .. }) => {
            Failure::new("StateError", error)
        }
        TrainingError::Adam(hushflow_training::adam::AdamError::PastHorizon { .. })
        | TrainingError::Claim(_)
        | TrainingError::Release(_)
        | TrainingError::Fault(_) => Failure::new("RunError", error),
        TrainingError::Strategy(_) => Failure::new("StrategyError", error),
        error => Failure::parameter(error),
    }
}

impl PrivateAdam {
    fn steps(&self) -> MutexGuard<'_, TrainingSteps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PrivateAdam {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn new(
        py: Python<'_>,
        parameters: PyReadonlyArray1<'_, f64>,
        plan: PyRef<'_, TrainingPlan>,
        strategy: PyRef<'_, Strategy>,
        batch_size: u32,
        learning_rate: f64,
        clip_norm: f64,
        journal: Option<PathBuf>,
        seed: Option<u64>,
    ) -> PyResult<Self> {
        let size = NonZeroU32::new(batch_size).ok_or_else(|| {
            Failure::new("BatchError", "a batch has no records: its size is that of all batches")
        })?;
        let plan = Plan { clip_norm, learning_rate, ..plan.plan };
        let plan = with_batches(plan, plan.steps_per_pass() as usize, size);
        let participation = format!("{}x{}", plan.passes, plan.steps_per_pass());
        let strategy = strategy.of_run(py, plan.horizon(), &participation)?;
        let parameters = parameters.as_array().to_vec();
        let source = source(seed);
        let work = move || {
            let encoded = Strategies::shared(strategy);
            let correlated = encoded.clone().correlated();
            // Use noise that is correlated in integers if the strategy allows it: it needs no
            // decoding.
            let fits = plan.expected_noise(parameters.len(), &correlated, &Workload::Prefix).is_ok();
            let journal = journal.map(|path| Journal::open(&path)).transpose();
            let journal = journal.map_err(|error| failure(error.into()))?;
            let strategies = if fits { correlated } else { encoded };
            plan.steps(&strategies, parameters, source, journal).map_err(failure)
        };
        let steps = Mutex::new(interruptible(py, work, || (), false)?);
        Ok(PrivateAdam { steps, owner: Owner::this_process(), private: source.is_private() })
    }

    /// Adds one gradient per row and ends the step.
    fn step(&self, py: Python<'_>, gradients: PyReadonlyArray2<'_, f32>) -> PyResult<()> {
        self.owner.check("optimiser")?;
        let dimension = self.steps().parameters().len();
        let shape = gradients.shape();
        if shape[1] != dimension {
            return Err(Failure::new(
                "BatchError",
                format!("found gradients of {} values, expected (batch, {dimension})", shape[1]),
            )
            .into());
        }
        let rows = gradients.is_c_contiguous().then(|| gradients.as_slice().ok()).flatten();
        let gradients = rows.ok_or_else(|| {
            Failure::new("BatchError", "the gradients are not row after row in memory: expected order C")
        })?;
        py.detach(|| {
            let mut steps = self.steps();
            let most = steps.plan().batch_size.get() as usize;
            if gradients.len() > most * dimension {
                return Err(TrainingError::Gradients { values: gradients.len(), dimension, most });
            }
            let mut block = Zeroizing::new(Vec::with_capacity(BLOCK.max(dimension)));
            for rows in gradients.chunks((BLOCK / dimension).max(1) * dimension) {
                block.clear();
                block.extend_from_slice(rows);
                steps.add(&block)?;
            }
            steps.finish()
        })
        .map_err(failure)?;
        Ok(())
    }

    #[getter]
    fn parameters<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        self.steps().parameters().to_pyarray(py)
    }

    #[getter]
    fn next_step(&self) -> u64 {
        self.steps().next_step()
    }

    #[getter]
    fn batch_size(&self) -> u32 {
        self.steps().plan().batch_size.get()
    }

    #[getter]
    fn noise_multiplier(&self) -> f64 {
        self.steps().noise_multiplier()
    }

    fn spent(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(py.detach(|| self.steps().spent()).map_err(failure)?)
    }

    fn save<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.owner.check("optimiser")?;
        let state = py.detach(|| self.steps().save());
        Ok(PyBytes::new(py, &state))
    }

    fn restore(&self, py: Python<'_>, state: &[u8]) -> PyResult<()> {
        self.owner.check("optimiser")?;
        let state = Zeroizing::new(state.to_vec());
        Ok(py.detach(|| self.steps().restore(&state)).map_err(failure)?)
    }
}
