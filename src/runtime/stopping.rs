//! Abandons slow estimates when a run is stopped. The next run makes them, so nothing is lost.

use std::thread;
use std::time::Duration;

use crossbeam::channel::{RecvTimeoutError, bounded};

use super::NAP;
use crate::control::Control;

/// How long a stopped run waits for computations of other processes.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);

/// Raised like a fault when the run was stopped during a slow estimate.
pub(super) const STOPPED: &str = "stopped in the middle of an epoch: run it again to go on";

/// Returns the result of `estimate`, computed in a thread that is abandoned when the run is
/// stopped.
pub(super) fn until_stopped(
    control: &Control,
    estimate: impl FnOnce() -> Result<Vec<i128>, String> + Send + 'static,
) -> Result<Vec<i128>, String> {
    let (done, estimated) = bounded(1);
    let compute = move || {
        // The receiver may be gone.
        let _ = done.send(estimate());
    };
    let thread = thread::Builder::new().name("estimate".into()).spawn(compute);
    thread.map_err(|error| format!("no thread for an estimate: {error}"))?;
    loop {
        match estimated.recv_timeout(NAP) {
            Ok(estimate) => return estimate,
            Err(RecvTimeoutError::Disconnected) => {
                return Err("an estimate has ended without a result".into());
            }
            Err(RecvTimeoutError::Timeout) if control.is_stopped() => return Err(STOPPED.into()),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
