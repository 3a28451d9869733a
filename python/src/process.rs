//! The process of the interpreter: its forks, which would draw the same noise a second time, and
//! its signals, which are handled while long work runs on a separate thread. It also loads numpy.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::errors::Failure;

/// The process that made an object.
pub(crate) struct Owner(u32);

impl Owner {
    pub(crate) fn this_process() -> Self {
        Owner(std::process::id())
    }

    pub(crate) fn is_this_process(&self) -> bool {
        self.0 == std::process::id()
    }

    /// Raises ForkError in a fork. `what` is the object, as in "the publication".
    pub(crate) fn check(&self, what: &str) -> Result<(), Failure> {
        if self.is_this_process() {
            return Ok(());
        }
        Err(Failure::new(
            "ForkError",
            format!(
                "this process is a fork of the one that opened the {what}, and only that one may use it: \
                 open it after the fork, or start processes by spawn"
            ),
        ))
    }
}

/// How often signals are checked.
pub(crate) const SIGNALS: Duration = Duration::from_millis(50);

/// Runs `work` without the interpreter's lock. At a signal that raises, such as Ctrl-C, calls
/// `stop`; with `waits`, the exception then waits for the work to end.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    stop: impl Fn(),
    waits: bool,
) -> PyResult<T> {
    let (sender, receiver) = sync_channel(1);
    let spawned = thread::Builder::new().name("hushflow".into()).spawn(move || sender.send(work()));
    spawned.map_err(|error| Failure::new("RunError", format!("no thread could be started: {error}")))?;
    let (receiver, mut raised) = (Mutex::new(receiver), None::<PyErr>);
    loop {
        let received =
            py.detach(|| receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(SIGNALS));
        match (received, raised.take()) {
            (Ok(result), None) => return Ok(result?),
            (Err(RecvTimeoutError::Disconnected), None) => {
                return Err(Failure::new("RunError", "the work ended unexpectedly: this is a bug").into());
            }
            (Ok(_) | Err(RecvTimeoutError::Disconnected), Some(error)) => return Err(error),
            (Err(RecvTimeoutError::Timeout), error) => raised = error,
        }
        if let Err(error) = py.check_signals() {
            stop();
            if !waits {
                return Err(error);
            }
            raised = Some(error);
        }
    }
}

/// Imports numpy and fills the caches of the crate `numpy`.
///
/// The crate fills them at its first call by code in Python, and panics if that raises, as at
/// Ctrl-C. Only the main thread raises for a signal, so another one runs this code.
#[pyfunction]
pub(crate) fn load_numpy(py: Python<'_>) -> PyResult<()> {
    static LOADED: PyOnceLock<()> = PyOnceLock::new();
    let load = |py: Python<'_>| -> PyResult<()> {
        py.import("numpy")?;
        PyArray1::<f64>::zeros(py, 1, false).try_readonly()?;
        Ok(())
    };
    let loaded = LOADED.get_or_try_init(py, || {
        let work = || thread::spawn(move || Python::attach(load)).join();
        py.detach(work).unwrap_or_else(|_| Err(Failure::new("RunError", "numpy can't be used").into()))
    });
    loaded.copied()
}
