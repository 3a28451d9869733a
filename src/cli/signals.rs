//! SIGINT and SIGTERM: the first signal stops a command in good order, the second one ends the
//! process.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hushflow::control::Control;
use hushflow::follow::StopFlag;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_default};

use super::CliError;

/// Sets a flag at the first signal; the second one ends the process.
pub(super) fn set_by_signals(stop: &Arc<AtomicBool>) -> Result<(), CliError> {
    install(&[SIGINT, SIGTERM], None, stop)
}

/// Returns a flag that the first SIGTERM sets; the second one ends the process, as SIGINT does.
pub(super) fn stopped_by_sigterm() -> Result<StopFlag, CliError> {
    let stop = Arc::default();
    install(&[SIGTERM], None, &stop)?;
    Ok(StopFlag::from(stop))
}

/// Stops a run at the first signal, after its current step; the second one ends the process. So
/// does the first one before the run opens a source.
pub(super) fn stopped_by_signals(control: Control) -> Result<Control, CliError> {
    install(&[SIGINT, SIGTERM], Some(control.preparing_flag()), &control.stop_flag())?;
    Ok(control)
}

/// Ends the process at one of these signals while `ends` is set, or once `stop` is; otherwise sets
/// `stop`.
fn install(signals: &[i32], ends: Option<Arc<AtomicBool>>, stop: &Arc<AtomicBool>) -> Result<(), CliError> {
    for &signal in signals {
        // Handlers run in the order of their registration.
        ends.iter()
            .chain([stop])
            .try_for_each(|flag| register_conditional_default(signal, Arc::clone(flag)).map(drop))
            .and_then(|()| register(signal, Arc::clone(stop)).map(drop))
            .map_err(|error| CliError::failed(format!("can't install signal handlers: {error}")))?;
    }
    Ok(())
}
