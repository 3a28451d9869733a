//! What a run that is stopped does not wait for: estimates that take minutes, and readers that take nothing.
//!
//! All that is committed is in the log, and all else is done again by the next run; so nothing is lost.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam::channel::{RecvTimeoutError, SendTimeoutError, Sender, bounded};
use hushflow_operators::Fault;

use super::NAP;
use crate::source::Control;

/// How long a run that is stopped waits for what other processes compute, and for whoever looks on.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);

/// The fault that is none: the run was stopped while an estimate took long, or while nobody took what it shows.
pub(super) const STOPPED: &str =
    "stopped in the middle of an epoch, or while nobody read what was published: run it again to go on";

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

/// Gives what was published to whoever looks on. When the run is stopped while they take nothing, it ends: all is in the log.
pub(super) fn show<T>(outputs: &Sender<T>, mut output: T, control: &Control, fault: &Fault) {
    let begun = Instant::now();
    while !fault.is_raised() {
        match outputs.send_timeout(output, NAP) {
            Err(SendTimeoutError::Timeout(back)) => output = back,
            // Whoever no longer listens does not stop the release.
            _ => return,
        }
        if control.is_stopped() && begun.elapsed() >= PATIENCE {
            fault.raise(STOPPED);
        }
    }
}
