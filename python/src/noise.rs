//! Correlated noise for training code that adds the noise itself.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hushflow::mechanism::mechanism::MechanismError;
use hushflow::mechanism::release::{NoiseStream as Stream, NoiseStreamParameters, ReleaseError};
use hushflow::mechanism::sensitivity::Neighbours;
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;

use crate::errors::Failure;
use crate::estimators::source;
use crate::process::Owner;
use crate::process::interruptible;
use crate::strategies::Strategy;

/// A stream of noise, drawn step by step in order.
#[pyclass(frozen, module = "hushflow._hushflow")]
pub(crate) struct NoiseStream {
    stream: Mutex<Stream>,
    owner: Owner,
    #[pyo3(get)]
    private: bool,
}

impl NoiseStream {
    fn stream(&self) -> MutexGuard<'_, Stream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns neighbours whose records keep their step.
pub(crate) fn neighbours(text: &str) -> Result<Neighbours, Failure> {
    match text {
        "zero-out" => Ok(Neighbours::ZeroOut),
        "replace-one-in-place" => Ok(Neighbours::ReplaceOneInPlace),
        other => Err(Failure::parameter(format!(
            "neighbours: found {other:?}, expected \"zero-out\" or \"replace-one-in-place\""
        ))),
    }
}

#[pymethods]
impl NoiseStream {
    #[new]
    fn new(
        py: Python<'_>,
        strategy: PyRef<'_, Strategy>,
        dimension: usize,
        noise_multiplier: f64,
        clip_norm: f64,
        neighbours: &str,
        seed: Option<u64>,
    ) -> PyResult<Self> {
        if dimension == 0 {
            return Err(Failure::parameter("dimension: found 0, expected at least 1").into());
        }
        let (strategy, purpose) = strategy.running()?;
        let parameters = NoiseStreamParameters {
            dimension,
            clip_norm,
            noise_multiplier,
            neighbours: self::neighbours(neighbours)?,
            participation: purpose.participation,
            horizon: purpose.horizon,
            threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        };
        let source = source(seed);
        let wrong = move |error: MechanismError| match error {
            MechanismError::Scale { .. } => Failure::parameter(format!(
                "noise_multiplier: found {noise_multiplier:?}, whose noise can't be drawn: choose one nearer to 1"
            )),
            error => Failure::parameter(error),
        };
        let work = move || Stream::new(parameters, strategy, source).map_err(wrong);
        let stream = Mutex::new(interruptible(py, work, || (), false)?);
        Ok(NoiseStream { stream, owner: Owner::this_process(), private: source.is_private() })
    }

    #[getter]
    fn dimension(&self) -> usize {
        self.stream().dimension()
    }

    #[getter]
    fn horizon(&self) -> u64 {
        self.stream().horizon()
    }

    #[getter]
    fn next_step(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.stream().next_step())
    }

    #[getter]
    fn sensitivity(&self) -> f64 {
        self.stream().sensitivity()
    }

    fn standard_deviations<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        let deviations: Vec<f64> = py.detach(|| self.stream().standard_deviations().collect());
        deviations.into_pyarray(py)
    }

    /// Draws the noise of a step, or of the next one.
    fn draw<'py>(&self, py: Python<'py>, step: Option<u64>) -> PyResult<Bound<'py, PyArray1<f64>>> {
        self.owner.check("noise")?;
        let noise = py.detach(|| {
            let mut stream = self.stream();
            let mut noise = vec![0.0; stream.dimension()];
            let step = step.unwrap_or_else(|| stream.next_step());
            stream.draw(step, &mut noise).map(|()| noise).map_err(|error| match error {
                ReleaseError::OutOfOrder { found, expected } => Failure::new(
                    "RunError",
                    format!("step: found {found}, expected {expected}: each step is drawn once, in order"),
                ),
                error => Failure::new("RunError", error),
            })
        })?;
        Ok(noise.into_pyarray(py))
    }
}
