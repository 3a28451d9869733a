//! Feeds records from the source's thread into the dataflow.
//!
//! One thread reads the source, or [merges](super::merge) several, and deals batches to the workers
//! of its process. The channels are bounded, which gives back-pressure. Each worker has a source
//! operator. It holds a capability at the oldest epoch that may still get records, and advances it
//! only when the reader reports closed epochs. A failing reader reports its error, and the channel
//! shows that a reader has died. In neither case does an operator drop its capability.

use std::fmt::Display;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam::channel::{Receiver, SendTimeoutError, Sender, TryRecvError, bounded};
use hushflow_operators::{Fault, Records};
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{ProbeHandle, Scope, StreamVec};
use timely::scheduling::SyncActivator;
use tracing::info;

use crate::check::SourceRows;
use crate::metrics::Metrics;
use crate::source::{EpochMark, RecordBatch, RowCounters, RowSurvey, SourceEvent, SourceReader};
use crate::state::IngestJournal;

use super::copies::DuplicateFilter;
use super::preflight::{ClosedEpochs, RowGuard};
use super::resume::EpochResume;

/// Most batches that wait for a worker.
const WAITING_BATCHES: usize = 8;

/// Most epochs that are closed but not committed. It bounds the memory of closed epochs.
pub(super) const EPOCHS_AHEAD: u64 = 256;

/// How often a waiting reader checks for a fault.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);

/// How soon a source operator tries again when too many epochs wait for their commit.
const IDLE: Duration = Duration::from_micros(500);

/// Messages from the reader to a worker.
enum FeedMessage {
    Records(Records),
    /// All epochs up to this one are closed; where a run resumes after them.
    Closed(u64, EpochResume),
    /// End of the input.
    End,
}

/// The workers' ends of the channels.
#[derive(Clone)]
pub(super) struct WorkerFeed(Arc<Vec<Inbox>>);

/// A worker's end.
struct Inbox {
    messages: Receiver<FeedMessage>,
    /// Set once the source operator is built. Its first activation is timely's.
    activator: Arc<OnceLock<SyncActivator>>,
}

/// The reader's end for one worker. Fields are dropped in their order, so the last wake finds the
/// channel closed.
struct Outbox {
    messages: Sender<FeedMessage>,
    waker: SourceWaker,
}

/// Wakes a worker's source operator, the last time when the reader ends.
struct SourceWaker(Arc<OnceLock<SyncActivator>>);

impl SourceWaker {
    fn wake(&self) {
        if let Some(activator) = self.0.get() {
            // An error means that the worker has ended.
            let _ = activator.activate();
        }
    }
}

impl Drop for SourceWaker {
    fn drop(&mut self) {
        self.wake();
    }
}

/// The reader's ends of the channels.
pub(super) struct RecordDealer {
    workers: Vec<Outbox>,
    /// The next worker to receive a batch.
    turn: usize,
    fault: Fault,
    metrics: Arc<Metrics>,
    copies: DuplicateFilter,
    /// The journal being read, if any. It is informed of closed epochs.
    ingest: Option<Arc<IngestJournal>>,
    /// Judges the rows.
    guard: Option<RowGuard>,
}

/// What a reader leaves at the end of a run. Private.
#[derive(Default)]
pub(super) struct ReadOutcome {
    pub(super) counters: RowCounters,
    /// Lines for the operator.
    pub(super) notices: Vec<String>,
}

impl WorkerFeed {
    /// Returns a function that gives the number of messages waiting for the workers, 0 once the
    /// feed is dropped.
    pub(super) fn waiting(&self) -> impl Fn() -> usize + Send + Sync + 'static {
        let queues = Arc::downgrade(&self.0);
        move || queues.upgrade().map_or(0, |queues| queues.iter().map(|inbox| inbox.messages.len()).sum())
    }
}

/// Creates the channels from a reader to the workers of its process.
pub(super) fn channels(workers: usize, fault: &Fault, metrics: &Arc<Metrics>) -> (RecordDealer, WorkerFeed) {
    let channel = |_| {
        let (sender, messages) = bounded(WAITING_BATCHES);
        let activator = Arc::default();
        let waker = SourceWaker(Arc::clone(&activator));
        (Outbox { messages: sender, waker }, Inbox { messages, activator })
    };
    let (workers, inboxes) = (0..workers).map(channel).unzip();
    let (fault, metrics, copies) = (fault.clone(), Arc::clone(metrics), DuplicateFilter::default());
    let dealer = RecordDealer { workers, turn: 0, fault, metrics, copies, ingest: None, guard: None };
    (dealer, WorkerFeed(Arc::new(inboxes)))
}

impl RecordDealer {
    /// Sets the journal that is being read.
    pub(super) fn of_journal(self, ingest: Option<Arc<IngestJournal>>) -> Self {
        RecordDealer { ingest, ..self }
    }

    /// Sets the guard that judges the rows.
    pub(super) fn guarded(self, guard: Option<RowGuard>) -> Self {
        RecordDealer { guard, ..self }
    }

    /// Reads the source to its end, on a thread of its own.
    pub(super) fn deal(mut self, mut reader: SourceReader) -> ReadOutcome {
        loop {
            let waits = self.holds_epochs() && reader.must_wait();
            if waits && !self.end_look() {
                return self.outcome(&[SourceRows::of(&reader)], *reader.counters());
            }
            reader.return_early(self.holds_epochs());
            let event = reader.next_event();
            self.survey(0, SourceRows::of(&reader));
            self.update_counters(*reader.counters());
            let delivered = match event {
                Ok(SourceEvent::Batch(batch)) => self.batch(batch),
                Ok(SourceEvent::Mark(EpochMark { epoch, due, rows, resume })) => {
                    let (counters, resumes) = (vec![reader.unjudged()], vec![resume]);
                    let closed = ClosedEpochs { epoch, due, rows, counters, resumes, judged: None };
                    self.close(closed, &[reader.survey()])
                }
                Ok(SourceEvent::End) => self.end(),
                Err(error) => self.refuse(error),
            };
            if !delivered {
                return self.outcome(&[SourceRows::of(&reader)], *reader.counters());
            }
        }
    }

    /// Returns what is left at the end: the rows of each source, and what became of all of them.
    pub(super) fn outcome(self, sources: &[SourceRows<'_>], counters: RowCounters) -> ReadOutcome {
        let notices = self.guard.as_ref().map(|guard| guard.private_notices(sources));
        ReadOutcome { counters: self.counted(counters), notices: notices.unwrap_or_default() }
    }

    /// Whether the look at the first rows is not over.
    pub(super) fn is_looking(&self) -> bool {
        self.guard.as_ref().is_some_and(RowGuard::is_looking)
    }

    /// Whether closed epochs wait for the end of the look at the first rows.
    pub(super) fn holds_epochs(&self) -> bool {
        self.guard.as_ref().is_some_and(RowGuard::holds_epochs)
    }

    /// Ends the look at the first rows, if it is not over. Returns whether to go on.
    pub(super) fn end_look(&mut self) -> bool {
        let closed = self.guard.as_mut().map_or(Ok(Vec::new()), RowGuard::end_look);
        self.send_epochs(closed)
    }

    fn send_epochs(&mut self, closed: Result<Vec<ClosedEpochs>, String>) -> bool {
        match closed {
            Ok(closed) => closed.iter().all(|closed| self.send_closed(closed)),
            Err(refusal) => self.refuse(refusal),
        }
    }

    /// Stops the run once all epochs that were reported closed are committed. So the number of
    /// published epochs depends on the rows and the clock, never on the speed of workers.
    pub(super) fn refuse(&self, refusal: impl Display) -> bool {
        while self.metrics.has_uncommitted() && !self.fault.is_raised() {
            std::thread::sleep(PATIENCE / 10);
        }
        self.fault.raise(refusal);
        false
    }

    /// Ends the look at the first rows once it has seen enough. Returns whether to go on.
    fn look_on(&mut self) -> bool {
        !self.guard.as_ref().is_some_and(RowGuard::has_looked) || self.end_look()
    }

    pub(super) fn fault(&self) -> &Fault {
        &self.fault
    }

    /// Reports the counters of all sources, with the copies found, to the metrics and to the guard.
    pub(super) fn update_counters(&mut self, counters: RowCounters) {
        self.metrics.record_read(&self.counted(counters));
        if let Some(guard) = &mut self.guard {
            guard.count(counters.rows);
        }
    }

    /// Reports the first rows of a source to the guard.
    pub(super) fn survey(&mut self, source: usize, rows: SourceRows<'_>) {
        if let Some(guard) = &mut self.guard {
            guard.survey(source, rows);
        }
    }

    /// Adds the copies found to `counters`.
    pub(super) fn counted(&self, counters: RowCounters) -> RowCounters {
        RowCounters { copies: self.copies.found(), ..counters }
    }

    /// Hands records to the next worker, without copies. Returns whether they were accepted, as do
    /// `close` and `end`.
    pub(super) fn batch(&mut self, mut batch: RecordBatch) -> bool {
        self.copies.take_out(&mut batch);
        if let Some(guard) = &mut self.guard {
            guard.add(&batch, self.copies.found());
        }
        if batch.is_empty() {
            return !self.fault.is_raised() && self.look_on();
        }
        self.turn = (self.turn + 1) % self.workers.len();
        self.deliver(&self.workers[self.turn], FeedMessage::Records(batch.records)) && self.look_on()
    }

    /// Reports closed epochs to all workers, unless the guard holds them or stops the run.
    /// There is a survey of each source.
    pub(super) fn close(&mut self, closed: ClosedEpochs, surveys: &[&RowSurvey]) -> bool {
        let closed = match &mut self.guard {
            Some(guard) => guard.close(closed, surveys),
            None => Ok(Some(closed)),
        };
        match closed {
            Ok(Some(closed)) => self.send_closed(&closed),
            Ok(None) => self.look_on(),
            Err(refusal) => self.refuse(refusal),
        }
    }

    fn send_closed(&mut self, closed: &ClosedEpochs) -> bool {
        let &ClosedEpochs { epoch, rows, ref resumes, ref judged, .. } = closed;
        self.copies.forget(epoch);
        self.metrics.record_closed(epoch, rows);
        if let Some(ingest) = &self.ingest {
            ingest.closed(epoch);
        }
        let resume = EpochResume { sources: resumes.clone(), judged: judged.clone() };
        self.workers.iter().all(|worker| self.deliver(worker, FeedMessage::Closed(epoch, resume.clone())))
    }

    /// Reports the end to all workers; nothing is accepted afterwards.
    pub(super) fn end(&mut self) -> bool {
        let closed = self.guard.as_mut().map_or(Ok(Vec::new()), RowGuard::end_input);
        if !self.send_epochs(closed) {
            return false;
        }
        info!("the source has ended");
        self.workers.iter().all(|worker| self.deliver(worker, FeedMessage::End));
        false
    }

    /// Waits for room in the channel, unless there is a fault. Returns whether the message was
    /// accepted.
    fn deliver(&self, worker: &Outbox, mut message: FeedMessage) -> bool {
        loop {
            match worker.messages.send_timeout(message, PATIENCE) {
                Ok(()) => {
                    worker.waker.wake();
                    return true;
                }
                Err(SendTimeoutError::Timeout(back)) if !self.fault.is_raised() => message = back,
                Err(_) => return false,
            }
        }
    }
}

/// Output streams of a worker's source operator.
pub(super) struct SourceStreams<'scope> {
    /// Records, at or before the time of their epoch.
    pub(super) records: StreamVec<'scope, u64, Records>,
    /// Where a run resumes after each epoch; only from the process's first worker.
    pub(super) marks: StreamVec<'scope, u64, EpochResume>,
    /// The last closed epoch, once the source has ended.
    pub(super) ends: StreamVec<'scope, u64, u64>,
}

/// Builds the source operator of the process's worker number `worker`; without a feed it sends
/// nothing.
pub(super) fn source<'scope>(
    scope: Scope<'scope, u64>,
    feed: Option<&WorkerFeed>,
    worker: usize,
    first_epoch: u64,
    committed: ProbeHandle<u64>,
    fault: Fault,
) -> SourceStreams<'scope> {
    let mut builder = OperatorBuilder::new("Source".to_owned(), scope);
    let address = builder.operator_info().address;
    let again = scope.activator_for(Rc::clone(&address));
    let (records, record_stream) = builder.new_output::<Vec<Records>>();
    let (marks, mark_stream) = builder.new_output::<Vec<EpochResume>>();
    let (ends, end_stream) = builder.new_output::<Vec<u64>>();
    let (mut records, mut marks, mut ends) =
        (OutputBuilder::from(records), OutputBuilder::from(marks), OutputBuilder::from(ends));
    let messages = feed.map(|feed| {
        let Inbox { messages, activator } = &feed.0[worker];
        // Set once: each worker builds one source.
        let _ = activator.set(scope.worker().sync_activator_for(address.to_vec()));
        messages.clone()
    });
    builder.build(move |capabilities| {
        let delayed = capabilities.into_iter().map(|mut capability| {
            capability.downgrade(&first_epoch);
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
                    Ok(FeedMessage::Closed(epoch, resume)) => {
                        let open = *capabilities[0].time();
                        let last = epoch.min(last_to_close(&committed, first_epoch));
                        if worker == 0 {
                            for closed in open..=last {
                                capabilities[1].downgrade(&closed);
                                marks.session(&capabilities[1]).give(resume.clone());
                            }
                        }
                        if last >= open {
                            capabilities.iter_mut().for_each(|capability| capability.downgrade(&(last + 1)));
                        }
                        if last < epoch {
                            parked = Some(FeedMessage::Closed(epoch, resume));
                            return again.activate_after(IDLE);
                        }
                    }
                    Ok(FeedMessage::End) => {
                        ends.session(&capabilities[2]).give(capabilities[0].time() - 1);
                        delayed = None;
                        return;
                    }
                    // The reader wakes it.
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

/// Returns the last epoch that may be closed now. A jump of the clock closes any number of epochs
/// with one mark; they are closed as fast as they are committed.
fn last_to_close(committed: &ProbeHandle<u64>, first_epoch: u64) -> u64 {
    committed.with_frontier(|frontier| {
        frontier.first().map_or(u64::MAX, |&next| next.max(first_epoch) + EPOCHS_AHEAD - 1)
    })
}
