//! Converts errors of the library to exceptions of the package.

use std::error::Error;

use hushflow::follow::FollowError;
use hushflow::ledger::{LedgerError, LedgerHomeError};
use hushflow::pipeline::PipelineError;
use hushflow::publication::PublicationError;
use hushflow::runtime::RunError;
use hushflow::state::StateError;
use hushflow::strategies::StrategiesError;
use pyo3::conversion::FromPyObjectOwned;
use pyo3::prelude::*;

/// An error to raise in Python: the name of an exception in `hushflow._errors`, and its arguments.
#[derive(Clone)]
pub(crate) struct Failure {
    class: &'static str,
    message: String,
    /// Path of a pipeline file, and its problems.
    problems: Option<(String, Vec<Problem>)>,
}

/// Line, column, field and message of a problem in a pipeline file.
type Problem = (usize, usize, String, String);

impl Failure {
    pub(crate) fn new(class: &'static str, message: impl ToString) -> Self {
        Failure { class, message: message.to_string(), problems: None }
    }

    /// An invalid value of a parameter.
    pub(crate) fn parameter(message: impl ToString) -> Self {
        Self::new("ParameterError", message)
    }

    /// Names the argument whose value was refused.
    pub(crate) fn of_argument<E: Error>(name: &'static str) -> impl Fn(E) -> Self {
        move |error| Self::parameter(format!("{name}: {error}"))
    }
}

/// Checks an argument of a class that users call, as the functions of the package check theirs:
/// `annotation` is its type in Python.
pub(crate) fn checked<'py, T: FromPyObjectOwned<'py>>(
    name: &str,
    annotation: &str,
    value: &Bound<'py, PyAny>,
) -> PyResult<T> {
    value.py().import("hushflow._arguments")?.call_method1("check", (name, annotation, value))?;
    value.extract().map_err(Into::into)
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        let Failure { class, message, problems } = failure;
        let raised = |py: Python<'_>| -> PyResult<PyErr> {
            let class = py.import("hushflow._errors")?.getattr(class)?;
            let value = match problems {
                Some(problems) => class.call1((message, problems.0, problems.1))?,
                None => class.call1((message,))?,
            };
            Ok(PyErr::from_value(value))
        };
        Python::attach(|py| raised(py).unwrap_or_else(|error| error))
    }
}

impl From<PipelineError> for Failure {
    fn from(error: PipelineError) -> Self {
        let message = error.to_string();
        let problems = match error {
            PipelineError::Invalid { path, problems } => {
                let problems = problems.into_iter();
                let problems = problems.map(|found| (found.line, found.column, found.field, found.message));
                Some((path.display().to_string(), problems.collect()))
            }
            PipelineError::Read { path, .. } => Some((path.display().to_string(), Vec::new())),
            _ => None,
        };
        Failure { class: "PipelineError", message, problems }
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        match error {
            RunError::MomentPublication(error) => error.into(),
            RunError::State(error) => error.into(),
            RunError::Ledger(error) => error.into(),
            RunError::Home(error) => error.into(),
            error @ (RunError::Source(_) | RunError::Unopened(..)) => Self::new("SourceError", error),
            RunError::Checkpoint
            | RunError::JournalOff
            | RunError::OtherSource
            | RunError::OtherStream
            | RunError::Release(_) => Self::new("StateError", error),
            error => Self::new("RunError", error),
        }
    }
}

impl From<PublicationError> for Failure {
    fn from(error: PublicationError) -> Self {
        match error {
            PublicationError::Header(_) | PublicationError::Promise | PublicationError::NoStrategy => {
                Self::new("StateError", error)
            }
            PublicationError::Strategy(_) | PublicationError::Search(_) => Self::new("StrategyError", error),
            error => Self::parameter(error),
        }
    }
}

/// Converts every variant of an error type to one exception.
macro_rules! raised_as {
    ($($error:ty => $class:literal,)*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::new($class, error)
            }
        }
    )*};
}

raised_as! {
    FollowError => "StateError",
    StateError => "StateError",
    StrategiesError => "StrategyError",
    LedgerError => "LedgerError",
    LedgerHomeError => "LedgerError",
}
