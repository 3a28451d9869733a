//! The Python module `hushflow._hushflow`: the library behind the package `hushflow`.
//!
//! It has no logic of its own. It converts Python values to library values and back, and errors to
//! exceptions with the same messages. Work runs without the interpreter's lock, and signals still
//! work. The typed interface of the package is in `python/hushflow/`.

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
