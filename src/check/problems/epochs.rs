//! Rules about epochs without records.

use hushflow_mechanism::epochs::{ClockSource, Schedule};

use super::{Extent, Observation, Problem};
use crate::check::coverage::{ClosedCoverage, Coverage};
use crate::pipeline::Pipeline;

/// Number of epochs before the first record that is not a problem.
const FEW_EPOCHS: u64 = 10;

/// Minimum number of closed epochs for which it is a problem that nearly all are empty.
const LEAST_EPOCHS: u64 = 8;

/// Reports many epochs before the first record.
pub(super) fn empty_start(pipeline: &Pipeline, seen: &Observation<'_>) -> Option<Problem> {
    let Schedule::ByTime(by) = &pipeline.epochs.schedule else { return None };
    let closed = &seen.coverage.closed;
    let first = closed.first.filter(|_| closed.committed == 0)?;
    let message = "many epochs before the first record would be published empty: correct start in [epochs]";
    let public = pipeline.privacy.neighbours.counts_are_public();
    // Rows that wait for the end of the input come in any order: earlier records may follow. They
    // are judged when it closes the epochs.
    if seen.extent == Extent::First && by.clock == ClockSource::EndOfInput && !public {
        return None;
    }
    (first > FEW_EPOCHS.max(by.horizon / 10)).then(|| Problem::new("empty start", public, message))
}

/// Reports that nearly all epochs had no arrival: a public fact unless the end of the input closes
/// epochs.
pub(super) fn idle_clock(pipeline: &Pipeline, seen: &Observation<'_>) -> Option<Problem> {
    let clocked =
        |schedule: &Schedule| matches!(schedule, Schedule::ByTime(by) if by.clock != ClockSource::EndOfInput);
    let is_public = pipeline.sources.iter().all(|source| clocked(&source.schedule));
    // One row, or the end of the input, may close all epochs that waited for late rows.
    let waiting = pipeline.sources.iter().map(|source| waiting_epochs(&source.schedule)).max().unwrap_or(0);
    let is_idle = |closed: &ClosedCoverage| {
        let epochs = closed.epochs().saturating_sub(waiting);
        closed.steps.saturating_mul(10) < epochs
    };
    let closed = &seen.coverage.closed;
    let nearly_all = closed.epochs() >= 2 * FEW_EPOCHS && is_idle(closed) && is_idle(&seen.newest);
    let message = "by the public clock, no row arrived in nearly all of the epochs, which would be published empty: correct start \
                   or length in [epochs]";
    (is_public && nearly_all).then(|| Problem::new("empty epochs", true, message))
}

/// Returns the number of epochs that stay open for late rows.
fn waiting_epochs(schedule: &Schedule) -> u64 {
    match schedule {
        Schedule::ByTime(by) => by.lateness.unsigned_abs().div_ceil(by.length.unsigned_abs().max(1)),
        Schedule::ByCount(_) => 0,
    }
}

/// Whether enough epochs have closed, and at least nine in ten of them have no record, also of the
/// newest ones.
pub(in crate::check) fn is_nearly_empty(
    pipeline: &Pipeline,
    coverage: &Coverage,
    newest: &ClosedCoverage,
) -> bool {
    let is_timed = matches!(pipeline.epochs.schedule, Schedule::ByTime(_));
    let is_enough = is_timed && coverage.closed.epochs() >= LEAST_EPOCHS;
    is_enough
        && [&coverage.closed, newest].iter().all(|closed| closed.filled.saturating_mul(10) <= closed.epochs())
}

/// Reports that nearly all closed epochs have no record.
pub(super) fn empty_epochs(pipeline: &Pipeline, seen: &Observation<'_>) -> Option<Problem> {
    let public = pipeline.privacy.neighbours.counts_are_public();
    let message =
        "nearly all epochs would be published without a record: correct start, length or horizon in [epochs]";
    is_nearly_empty(pipeline, seen.coverage, &seen.newest)
        .then(|| Problem::new("empty epochs", public, message))
}

/// Returns the problem of a source without an end whose epochs close at its end alone.
pub fn never_closes(pipeline: &Pipeline) -> Option<Problem> {
    let waits =
        |schedule: &Schedule| matches!(schedule, Schedule::ByTime(by) if by.clock == ClockSource::EndOfInput);
    let endless = pipeline
        .sources
        .iter()
        .find(|source| source.is_endless() && source.idle.is_none() && waits(&source.schedule))?;
    let message = format!(
        "{} has no end, so with clock = \"end-of-input\" no epoch would ever be published: name an arrival column in [epochs]",
        endless.input
    );
    Some(Problem { stops: true, ..Problem::new("no epoch closes", true, message) })
}
