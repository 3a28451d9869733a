//! The dataflow of a pipeline that releases estimates of windows, from the source to the commit.
//!
//! A committed epoch is never estimated again: its numbers are in the log. An uncommitted epoch was
//! not seen by anyone, and its records are read again from the position of the last committed
//! epoch. The rows of committed epochs that later windows contain are in the private log.
//!
//! An estimate may take minutes. A stopped run abandons it ([`until_stopped`]), and the next run
//! makes it.

use std::thread;
use std::time::Duration;

use crate::control::Control;
use crossbeam::channel::{RecvTimeoutError, bounded};
use std::sync::Arc;

use hushflow_operators::{Commit, CommitLog, Entity, ReleaseWindows, SplitEpochs, WindowRows};
use timely::dataflow::operators::vec::Map as _;
use timely::dataflow::operators::{Concat, Inspect, Probe};
use timely::worker::Worker;
use zeroize::Zeroizing;

use super::histories::{EntityHistories, restored};
use super::journal::{EpochExtra, Journal, RunStart};
use super::moments::admitted;
use super::source::{EPOCHS_AHEAD, SourceStart, source};
use super::{CHECKPOINT_INTERVAL, PARK_TIMEOUT, RunContext, RunError};
use crate::publication::WindowPublication;
use crate::state::RecoveredState;

/// Restores the rows that later windows contain, and the histories of entities, after all committed
/// epochs: from the checkpoint, and the frames committed after it.
pub(super) fn recover(
    publication: &WindowPublication,
    recovered: RecoveredState,
) -> Result<(RunStart, Option<EntityHistories>), RunError> {
    let parameters = publication.parameters();
    let (columns, span) = (parameters.columns.len(), publication.span());
    let limits = parameters.entity.as_ref().map(|entity| entity.limits);
    let mut histories = limits.map(EntityHistories::new);
    let mut held: Vec<WindowRows> = (0..parameters.keys()).map(|_| WindowRows::new(columns)).collect();
    let mut committed = 0;
    if let Some(checkpoint) = recovered.checkpoint {
        let states;
        (states, histories) = restored(&checkpoint, recovered.entities, limits)?;
        for (key, state) in states {
            let rows = held.get_mut(key as usize).ok_or(RunError::Checkpoint)?;
            *rows = WindowRows::restored(columns, &state).ok_or(RunError::Checkpoint)?;
        }
        committed = checkpoint.epoch;
    }
    for frame in recovered.replay {
        let frame = frame?;
        let mut kept = &frame.sums[..];
        if !kept.is_empty() {
            let replayed = held.iter_mut().try_for_each(|rows| rows.replay(frame.epoch, &mut kept));
            replayed.filter(|()| kept.is_empty()).ok_or(RunError::Checkpoint)?;
        }
        let needed = span.first_needed_after(frame.epoch);
        held.iter_mut().for_each(|rows| rows.drop_before(needed));
        if let Some(histories) = &mut histories {
            let admitted = frame.admitted.as_ref().ok_or(RunError::Checkpoint)?;
            histories.advance(frame.epoch, admitted.iter().copied().map(Entity))?;
        }
        committed = frame.epoch;
    }
    let states = (0..).zip(held.iter().map(WindowRows::save)).collect();
    let known = histories.as_ref().map(EntityHistories::to_vec).unwrap_or_default();
    Ok((RunStart { states, histories: known, ..RunStart::after(committed) }, histories))
}

/// Builds the dataflow of one worker.
pub(super) fn build(
    publication: &WindowPublication,
    worker: &mut Worker,
    run: RunContext<'_>,
    journal: Option<Journal>,
) {
    let RunContext { noise, feed, fault, control, cuts, start, committed, last, .. } = run;
    let estimate = Arc::new(publication.window_estimate().clone());
    let log = journal.map(|journal| Box::new(journal) as Box<dyn CommitLog<EpochExtra>>);
    let (first_epoch, number, control) = (start.first_epoch, worker.index(), control.clone());
    let (states, histories) = (start.states.clone(), start.histories.clone());
    let windows = publication.windows(first_epoch, CHECKPOINT_INTERVAL, states, histories);
    worker.dataflow::<u64, _, _>(|scope| {
        let sources = source(
            scope,
            feed,
            number,
            SourceStart { first_epoch, ahead: EPOCHS_AHEAD },
            committed.clone(),
            fault.clone(),
        );
        let answer = move |epoch, key: u32, rows: &[f64]| {
            let (estimate, rows) = (Arc::clone(&estimate), Zeroizing::new(rows.to_vec()));
            let generator = noise.generator(epoch, key.into());
            let mut generator = generator.map_err(|error| error.to_string())?;
            until_stopped(&control, move || Ok(estimate.numbers(&rows, &mut generator)))
        };
        let records = sources.records.epochs();
        let mut marks = sources.marks.map(|(epoch, resume)| (epoch, EpochExtra::Resume(resume)));
        let released = match windows.entities {
            None => records.release_windows(sources.ends, &windows, fault.clone(), answer),
            Some(_) => {
                let bounded = cuts.bound(records, &windows, fault.clone());
                marks = marks.concat(admitted(bounded.admitted, fault));
                bounded.records.release_windows(sources.ends, &windows, fault.clone(), answer)
            }
        };
        released
            .commit(marks, &windows, log, fault.clone())
            .inspect(move |released| last.set(released.epoch + 1))
            .probe_with(committed);
    });
}

/// How long a stopped run waits for computations of other processes.
pub(super) const TIMEOUT: Duration = Duration::from_millis(500);

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
        match estimated.recv_timeout(PARK_TIMEOUT) {
            Ok(estimate) => return estimate,
            Err(RecvTimeoutError::Disconnected) => {
                return Err("an estimate has ended without a result".into());
            }
            Err(RecvTimeoutError::Timeout) if control.is_stopped() => return Err(STOPPED.into()),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
