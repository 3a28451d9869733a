//! What a run that is stopped does not wait for: estimates that take minutes. The next run makes
//! them, so nothing is lost.

use std::thread;
use std::time::Duration;

use crossbeam::channel::{RecvTimeoutError, bounded};

use super::NAP;
use crate::control::Control;

/// How long a run that is stopped waits for what other processes compute.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);

/// The fault that is none: the run was stopped while an estimate took long.
pub(super) const STOPPED: &str = "stopped in the middle of an epoch: run it again to go on";

/// What `estimate` gives, computed in a thread that is left alone when the run is stopped before.
pub(super) fn until_stopped(
    control: &Control,
    estimate: impl FnOnce() -> Result<Vec<u8>, String> + Send + 'static,
) -> Result<Vec<u8>, String> {
    let (done, estimated) = bounded(1);
    let compute = move || {
        // Nobody may want it any more.
        let _ = done.send(estimate());
    };
    let thread = thread::Builder::new().name("estimate".into()).spawn(compute);
    thread.map_err(|error| format!("no thread for an estimate: {error}"))?;
    loop {
        match estimated.recv_timeout(NAP) {
            Ok(line) => return line,
            Err(RecvTimeoutError::Disconnected) => {
                return Err("an estimate has ended without a result".into());
            }
            Err(RecvTimeoutError::Timeout) if control.is_stopped() => return Err(STOPPED.into()),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
