//! Binds pipeline files and their runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hushflow::control::Control;
use hushflow::follow::Subject;
use hushflow::ledger::LedgerHome;
use hushflow::publication::Publication;
use hushflow::runtime::{RunOptions, run as run_pipeline};
use hushflow::sink::{SinkError, SinkInput, SinkThread, TakenAddress};
use pyo3::prelude::*;

use crate::errors::{Failure, checked};
use crate::process::interruptible;

/// A pipeline file that has been read and checked.
#[pyclass(frozen, module = "hushflow._hushflow")]
pub(crate) struct Pipeline(pub(crate) hushflow::pipeline::Pipeline);

#[pymethods]
impl Pipeline {
    /// Reads a file, or a text with paths relative to that of a file.
    #[new]
    #[pyo3(signature = (path, text = None))]
    fn new(py: Python<'_>, path: &Bound<'_, PyAny>, text: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let path: PathBuf = checked("path", "Path", path)?;
        let text: Option<String> = text.map(|text| checked("text", "str", text)).transpose()?;
        let read = py.detach(|| match &text {
            Some(text) => hushflow::pipeline::Pipeline::parse(text, &path),
            None => hushflow::pipeline::Pipeline::load(&path),
        });
        Ok(Pipeline(read.map_err(Failure::from)?))
    }

    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    #[getter]
    fn columns(&self) -> Vec<(String, f64, f64)> {
        let columns = self.0.columns.iter();
        columns.map(|column| (column.name.clone(), column.lower, column.upper)).collect()
    }

    /// Name of the key column, and the keys.
    #[getter]
    fn key(&self) -> Option<(String, Vec<String>)> {
        self.0.key.as_ref().map(|key| (key.column.clone(), key.values.clone()))
    }

    #[getter]
    fn entity(&self) -> Option<&str> {
        self.0.entity.as_ref().map(|entity| entity.column.as_str())
    }

    #[getter]
    fn time(&self) -> Option<&str> {
        self.0.epochs.time.as_deref()
    }

    #[getter]
    fn horizon(&self) -> u64 {
        self.0.epochs.schedule.horizon()
    }

    #[getter]
    fn state(&self) -> Option<&Path> {
        self.0.state_directory.as_deref()
    }

    fn __repr__(&self) -> String {
        format!("Pipeline({:?})", self.0.name)
    }

    /// It never changes, so it is its own copy: scikit-learn's `clone` copies parameters.
    fn __copy__<'py>(slf: PyRef<'py, Self>) -> PyRef<'py, Self> {
        slf
    }

    fn __deepcopy__<'py>(slf: PyRef<'py, Self>, _memo: &Bound<'py, PyAny>) -> PyRef<'py, Self> {
        slf
    }
}

/// Returns the given state directory, or else that of the pipeline.
pub(crate) fn state_directory(
    pipeline: &hushflow::pipeline::Pipeline,
    state: Option<PathBuf>,
) -> Result<PathBuf, Failure> {
    state.or_else(|| pipeline.state_directory.clone()).ok_or_else(|| {
        Failure::parameter(
            "state: no state directory: name one, or add [state] directory to the pipeline file",
        )
    })
}

/// Runs a pipeline until its source ends. Returns its state directory, the first epoch that it
/// committed and the one after the last, and the number of the run.
#[pyfunction]
#[pyo3(signature = (pipeline, *, state = None, workers = 1))]
pub(crate) fn run(
    py: Python<'_>,
    pipeline: PyRef<'_, Pipeline>,
    state: Option<PathBuf>,
    workers: usize,
) -> PyResult<(PathBuf, u64, u64, u64)> {
    if !(1..=256).contains(&workers) {
        return Err(Failure::parameter(format!("workers: found {workers}, expected 1 to 256")).into());
    }
    let pipeline = pipeline.0.clone();
    let state = state_directory(&pipeline, state)?;
    let control = Control::new().on_early_warning(|warning| {
        Python::attach(|py| {
            let logger =
                py.import("logging").and_then(|logging| logging.call_method1("getLogger", ("hushflow",)));
            let logged =
                logger.and_then(|logger| logger.call_method1("warning", ("%s", warning.to_string())));
            // A broken handler of the program must not end the run.
            if let Err(error) = logged {
                error.write_unraisable(py, None);
            }
        });
    });
    let options = RunOptions {
        control: control.clone(),
        ledgers: LedgerHome::find().map_err(Failure::from)?,
        ..RunOptions::new(workers, state)
    };
    let work = move || {
        let publication = Publication::of_pipeline(&pipeline, &options.state, &mut |_| ())?;
        let subject = Subject { publication: publication.clone(), views: pipeline.views.clone() };
        let directory = pipeline.log_directory(&options.state).to_owned();
        let input = SinkInput { directory: directory.clone(), subject: Arc::new(subject) };
        let sink_error = |error: SinkError| Failure::new("RunError", error);
        let start = |sink| {
            SinkThread::start(sink, input.clone(), &options.control, TakenAddress::Retry, |_address| ())
        };
        let sinks = pipeline.sinks.iter().map(start).collect::<Result<Vec<_>, _>>().map_err(sink_error)?;
        let summary = run_pipeline(&pipeline, &publication, &options, |_first_epoch| ());
        let finished: Vec<_> = sinks.into_iter().map(SinkThread::finish).collect();
        let summary = summary?;
        finished.into_iter().collect::<Result<(), _>>().map_err(sink_error)?;
        Ok((directory, summary.epochs.start, summary.epochs.end, summary.generation))
    };
    interruptible(py, work, || control.stop(), true)
}
