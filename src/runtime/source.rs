//! The source operator of a worker: sends what the reader deals to it.
//!
//! It holds a capability at the oldest epoch that may still get records. It advances the capability
//! only when the reader reports closed epochs, past as many of these as may be closed. It never
//! drops the capability when the reader fails or dies.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use crossbeam::channel::TryRecvError;
use hushflow_operators::{Fault, Records};
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{ProbeHandle, Scope, StreamVec};

use super::feed::{ClosedRun, FeedMessage, WAITING_BATCHES, WorkerFeed};
use super::resume::EpochResume;

/// Number of epochs that may always be closed but not committed.
pub(super) const EPOCHS_AHEAD: u64 = 256;

/// Number of coordinates, of all epochs together, that may be closed but not committed. It bounds
/// the memory of closed epochs, but [`EPOCHS_AHEAD`] epochs are always allowed.
const COORDINATES_AHEAD: u64 = 1 << 18;

/// Maximum number of epochs that are closed but not committed, where an epoch has this many
/// coordinates. A sync then takes little of the time of its epochs, however small they are.
pub(super) fn epochs_ahead(coordinates: u64) -> u64 {
    (COORDINATES_AHEAD / coordinates.max(1)).clamp(EPOCHS_AHEAD, 32 * EPOCHS_AHEAD)
}

/// How soon a source operator tries again when too many epochs wait for their commit.
const IDLE: Duration = Duration::from_micros(100);

/// Output streams of a worker's source operator.
pub(super) struct SourceStreams<'scope> {
    /// Records, at times no later than their epochs.
    pub(super) records: StreamVec<'scope, u64, Records>,
    /// Positions at which a run resumes after each epoch, at times no later than the epoch; only
    /// from the process's first worker.
    pub(super) marks: StreamVec<'scope, u64, (u64, EpochResume)>,
    /// The last closed epoch, once the source has ended.
    pub(super) ends: StreamVec<'scope, u64, u64>,
}

/// Start of a source operator.
#[derive(Clone, Copy)]
pub(super) struct SourceStart {
    pub(super) first_epoch: u64,
    /// Maximum number of epochs that are closed but not committed.
    pub(super) ahead: u64,
}

/// Builds the source operator of the process's worker number `worker`; without a feed it sends
/// nothing.
pub(super) fn source<'scope>(
    scope: Scope<'scope, u64>,
    feed: Option<&WorkerFeed>,
    worker: usize,
    start: SourceStart,
    committed: ProbeHandle<u64>,
    fault: Fault,
) -> SourceStreams<'scope> {
    let mut builder = OperatorBuilder::new("Source".to_owned(), scope);
    let address = builder.operator_info().address;
    let again = scope.activator_for(Rc::clone(&address));
    let (records, record_stream) = builder.new_output::<Vec<Records>>();
    let (marks, mark_stream) = builder.new_output::<Vec<(u64, EpochResume)>>();
    let (ends, end_stream) = builder.new_output::<Vec<u64>>();
    let (mut records, mut marks, mut ends) =
        (OutputBuilder::from(records), OutputBuilder::from(marks), OutputBuilder::from(ends));
    let messages =
        feed.map(|feed| feed.messages(worker, scope.worker().sync_activator_for(address.to_vec())));
    builder.build(move |capabilities| {
        let delayed = capabilities.into_iter().map(|mut capability| {
            capability.downgrade(&start.first_epoch);
            capability
        });
        let mut delayed: Option<Vec<Capability<u64>>> = messages.is_some().then(|| delayed.collect());
        let mut parked: Option<FeedMessage> = None;
        move |_frontiers| {
            let (Some(capabilities), Some(messages)) = (delayed.as_mut(), messages.as_ref()) else { return };
            let (mut records, mut marks, mut ends) = (records.activate(), marks.activate(), ends.activate());
            for _ in 0..WAITING_BATCHES {
                match parked.take().map_or_else(|| messages.try_recv(), Ok) {
                    Ok(FeedMessage::Records(batch)) => records.session(&capabilities[0]).give(batch),
                    Ok(FeedMessage::Closed(mut closed)) => {
                        let limit = start.last_to_close(&committed);
                        let (open, mut session) = (*capabilities[0].time(), marks.session(&capabilities[1]));
                        let next = close(&mut closed, open, limit, |epoch, mark| session.give((epoch, mark)));
                        drop(session);
                        capabilities.iter_mut().for_each(|capability| capability.downgrade(&next));
                        if !closed.is_empty() {
                            parked = Some(FeedMessage::Closed(closed));
                            return again.activate_after(IDLE);
                        }
                    }
                    Ok(FeedMessage::End) => {
                        ends.session(&capabilities[2]).give(capabilities[0].time() - 1);
                        delayed = None;
                        return;
                    }
                    // The reader wakes this operator.
                    Err(TryRecvError::Empty) => return,
                    Err(TryRecvError::Disconnected) => {
                        return fault.raise("the reader of the source has stopped without saying why");
                    }
                }
            }
            again.activate();
        }
    });
    SourceStreams { records: record_stream, marks: mark_stream, ends: end_stream }
}

impl SourceStart {
    /// Returns the last epoch that may be closed now.
    fn last_to_close(self, committed: &ProbeHandle<u64>) -> u64 {
        committed.with_frontier(|frontier| {
            frontier.first().map_or(u64::MAX, |&next| next.max(self.first_epoch) + self.ahead - 1)
        })
    }
}

/// Closes the epochs from `open` up to `limit`, calls `mark` with the positions at which a run
/// resumes after each, and returns the first open one. A jump of the clock closes any number of
/// epochs with one mark; what is beyond the limit stays in `closed`, to be closed as fast as epochs
/// are committed.
fn close(
    closed: &mut VecDeque<ClosedRun>,
    mut open: u64,
    limit: u64,
    mut mark: impl FnMut(u64, EpochResume),
) -> u64 {
    while let Some(run) = closed.front_mut().filter(|_| open <= limit) {
        let last = run.last.min(limit);
        if let Some(resume) = &run.resume {
            (open..last).for_each(|epoch| mark(epoch, resume.clone()));
        }
        let is_over = last == run.last;
        let resume = if is_over { run.resume.take() } else { run.resume.clone() };
        resume.filter(|_| open <= last).into_iter().for_each(|resume| mark(last, resume));
        open = open.max(last.saturating_add(1));
        if is_over {
            closed.pop_front();
        }
    }
    open
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(lasts: &[u64]) -> VecDeque<ClosedRun> {
        let resume = || Some(EpochResume { sources: Vec::new(), judged: None });
        lasts.iter().map(|&last| ClosedRun { last, resume: resume() }).collect()
    }

    #[test]
    fn a_jump_of_the_clock_closes_epochs_as_fast_as_they_are_committed() {
        let mut waiting = closed(&[2, 3, 9]);
        let mut marked = Vec::new();
        let mut open = 1;
        for (limit, expected) in [(0, 1), (2, 3), (5, 6), (5, 6), (20, 10)] {
            open = close(&mut waiting, open, limit, |epoch, _| marked.push(epoch));
            assert_eq!(open, expected, "up to {limit}");
        }
        assert!(waiting.is_empty() && marked.iter().copied().eq(1..=9));
    }

    #[test]
    fn epochs_that_are_closed_already_are_passed_over() {
        let mut waiting = closed(&[4, 6]);
        let mut marked = Vec::new();
        assert_eq!(close(&mut waiting, 6, 9, |epoch, _| marked.push(epoch)), 7);
        assert_eq!(marked, [6]);
    }
}
