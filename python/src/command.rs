//! The command `hushflow`.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the command with these arguments. The first is its name. Returns the exit status;
/// help and wrong usage end the process.
#[pyfunction]
pub(crate) fn command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| hushflow::cli::execute(arguments))
}
