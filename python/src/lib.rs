//! The Python module `hushflow._hushflow`: the library behind the package `hushflow`.
//!
//! It has no logic of its own. Values of Python become values of the library and back, errors
//! become exceptions with the same messages, and work runs without the interpreter's lock while
//! signals are honoured. The typed face of the package is in `python/hushflow/`.

mod accounting;
mod batches;
mod command;
mod errors;
mod estimators;
mod logs;
mod noise;
mod process;
mod runs;
mod session;
mod strategies;
mod training;

use pyo3::prelude::pymodule;

#[pymodule]
mod _hushflow {
    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "the name that Python has for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    use crate::accounting::{calibrate, ledger};
    #[pymodule_export]
    use crate::command::command;
    #[pymodule_export]
    use crate::estimators::{private_covariance, robust_mean};
    #[pymodule_export]
    use crate::logs::{Follow, Log};
    #[pymodule_export]
    use crate::noise::NoiseStream;
    #[pymodule_export]
    use crate::process::load_numpy;
    #[pymodule_export]
    use crate::runs::{Pipeline, run};
    #[pymodule_export]
    use crate::session::Session;
    #[pymodule_export]
    use crate::strategies::{Strategy, plan, strategy_names};
    #[pymodule_export]
    use crate::training::{PrivateAdam, TrainingPlan};
}
