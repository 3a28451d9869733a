//! The dataflow of a pipeline that releases estimates of windows, from the source to the commit.
//!
//! A committed epoch is never estimated again: its numbers are in the log. An uncommitted epoch was
//! not seen by anyone, and its records are read again from the position of the last committed
//! epoch. A window leaves no state, so nothing is restored.
//!
//! An estimate may take minutes. A stopped run abandons it ([`until_stopped`]), and the next run
//! makes it.

use std::thread;
use std::time::Duration;

use crate::control::Control;
use crossbeam::channel::{RecvTimeoutError, bounded};
use std::sync::Arc;

use hushflow_operators::{Commit, CommitLog, ReleaseWindows, SplitEpochs};
use timely::dataflow::operators::vec::Map as _;
use timely::dataflow::operators::{Inspect, Probe};
use timely::worker::Worker;
use zeroize::Zeroizing;

use super::journal::{EpochExtra, Journal};
use super::source::{EPOCHS_AHEAD, SourceStart, source};
use super::{CHECKPOINT_INTERVAL, NAP, RunContext};
use crate::publication::WindowPublication;

/// Builds the dataflow of one worker.
pub(super) fn build(
    publication: &WindowPublication,
    worker: &mut Worker,
    run: RunContext<'_>,
    journal: Option<Journal>,
) {
    let RunContext { noise, feed, fault, control, start, committed, last } = run;
    let estimate = match publication.window_estimate() {
        Ok(estimate) => Arc::new(estimate),
        Err(error) => return fault.raise(error),
    };
    let log = journal.map(|journal| Box::new(journal) as Box<dyn CommitLog<EpochExtra>>);
    let (first_epoch, number, control) = (start.first_epoch, worker.index(), control.clone());
    let windows = publication.windows(first_epoch, CHECKPOINT_INTERVAL);
    worker.dataflow::<u64, _, _>(|scope| {
        let sources = source(
            scope,
            feed,
            number,
            SourceStart { first_epoch, ahead: EPOCHS_AHEAD },
            committed.clone(),
            fault.clone(),
        );
        sources
            .records
            .epochs()
            .release_windows(sources.ends, &windows, fault.clone(), move |epoch, key, rows| {
                let (estimate, rows) = (Arc::clone(&estimate), Zeroizing::new(rows.to_vec()));
                let generator = noise.generator(epoch, key.into());
                let mut generator = generator.map_err(|error| error.to_string())?;
                until_stopped(&control, move || Ok(estimate.numbers(&rows, &mut generator)))
            })
            .commit(
                sources.marks.map(|(epoch, resume)| (epoch, EpochExtra::Resume(resume))),
                &windows,
                log,
                fault.clone(),
            )
            .inspect(move |released| last.set(released.epoch + 1))
            .probe_with(committed);
    });
}

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
