//! Feeds records from the source's thread into the dataflow.
//!
//! One thread reads the source, or [merges](super::merge) several, and deals batches to the workers
//! of its process, whose [operators](super::source) send them on. The channels are bounded, which
//! gives back-pressure. A failing reader reports its error, and the channel shows that a reader has
//! died.
//!
//! **Blocks.** Closing an epoch costs every operator an activation, and the log a sync. So while
//! the next row is available, closed epochs are reported together: up to [`BLOCK_EPOCHS`] of them,
//! or those of a millisecond. An epoch that no row follows is reported at once.

use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, SendTimeoutError, Sender, bounded};
use hushflow_operators::{Fault, Records};
use timely::scheduling::SyncActivator;
use tracing::info;

use crate::check::SourceRows;
use crate::metrics::Metrics;
use crate::source::{EpochMark, RecordBatch, RowCounters, RowSurvey, SourceEvent, SourceReader};
use crate::state::IngestJournal;

use super::duplicates::DuplicateFilter;
use super::preflight::{ClosedEpochs, RowGuard};
use super::readers::OtherReaders;
use super::resume::{EpochResume, SourceResume};

/// Largest number of batches that wait for a worker.
pub(super) const WAITING_BATCHES: usize = 8;

/// Largest number of marks of closed epochs, and of batches, that are reported together.
const BLOCK_EPOCHS: usize = 1024;

/// How long a closed epoch waits for others.
const BLOCK_TIME: Duration = Duration::from_millis(1);

/// How often a waiting reader checks for a fault.
pub(super) const TIMEOUT: Duration = Duration::from_millis(100);

/// Messages from the reader to a worker.
pub(super) enum FeedMessage {
    Records(Records),
    /// All epochs up to the last of these are closed.
    Closed(VecDeque<ClosedRun>),
    /// End of the input.
    End,
}

/// A run of closed epochs, which follows the run before it.
pub(super) struct ClosedRun {
    /// The last epoch of the run.
    pub(super) last: u64,
    /// Positions at which the pipeline resumes after this epoch; only for the worker that passes it
    /// on.
    pub(super) resume: Option<EpochResume>,
}

/// Records and closed epochs that wait to be reported together.
#[derive(Default)]
struct Block {
    /// Records that were read after the first of the epochs was closed.
    records: Records,
    /// The number of their batches, which depends on rows and not on what they hold.
    batches: usize,
    closed: VecDeque<ClosedRun>,
    /// When the first of the epochs was closed.
    since: Option<Instant>,
}

impl Block {
    fn is_full(&self) -> bool {
        let is_old = || self.since.is_some_and(|since| since.elapsed() >= BLOCK_TIME);
        self.closed.len().max(self.batches) >= BLOCK_EPOCHS || is_old()
    }
}

/// The workers' ends of the channels.
#[derive(Clone)]
pub(super) struct WorkerFeed(Arc<Vec<Inbox>>);

/// A worker's end.
struct Inbox {
    messages: Receiver<FeedMessage>,
    /// Set once the source operator is built. timely itself activates the operator for the first
    /// time.
    activator: Arc<OnceLock<SyncActivator>>,
}

/// The reader's end for one worker. Fields are dropped in their order, so the last wake finds the
/// channel closed.
struct Outbox {
    messages: Sender<FeedMessage>,
    waker: SourceWaker,
}

/// Wakes a worker's source operator, the last time when the reader ends.
pub(super) struct SourceWaker(Arc<OnceLock<SyncActivator>>);

impl SourceWaker {
    /// Wakes the operator whose activator will be here.
    pub(super) fn of(activator: &Arc<OnceLock<SyncActivator>>) -> Self {
        SourceWaker(Arc::clone(activator))
    }

    pub(super) fn wake(&self) {
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
pub(super) struct RecordDistributor {
    workers: Vec<Outbox>,
    /// The next worker to receive a batch.
    next_worker: usize,
    block: Block,
    fault: Fault,
    metrics: Arc<Metrics>,
    duplicates: DuplicateFilter,
    /// The journal being read, if any. It is informed of closed epochs.
    ingest: Option<Arc<IngestJournal>>,
    /// Judges the rows.
    guard: Option<RowGuard>,
    /// The processes that hold some of the rows.
    others: Option<OtherReaders>,
}

/// Result of reading at the end of a run. Private.
#[derive(Default)]
pub(super) struct ReadOutcome {
    pub(super) counters: RowCounters,
    /// Lines for the operator.
    pub(super) notices: Vec<String>,
}

impl WorkerFeed {
    /// Returns the messages for a worker of this process, whose source operator `activator` wakes.
    /// Called once for each worker.
    pub(super) fn messages(&self, worker: usize, activator: SyncActivator) -> Receiver<FeedMessage> {
        let inbox = &self.0[worker % self.0.len()];
        let _ = inbox.activator.set(activator);
        inbox.messages.clone()
    }

    /// Returns a function that gives the number of messages waiting for the workers, 0 once the
    /// feed is dropped.
    pub(super) fn waiting(&self) -> impl Fn() -> usize + Send + Sync + 'static {
        let queues = Arc::downgrade(&self.0);
        move || queues.upgrade().map_or(0, |queues| queues.iter().map(|inbox| inbox.messages.len()).sum())
    }
}

/// Creates the channels from a reader to the workers of its process.
pub(super) fn channels(
    workers: usize,
    fault: &Fault,
    metrics: &Arc<Metrics>,
) -> (RecordDistributor, WorkerFeed) {
    let channel = |_| {
        let (sender, messages) = bounded(WAITING_BATCHES);
        let activator = Arc::default();
        let waker = SourceWaker(Arc::clone(&activator));
        (Outbox { messages: sender, waker }, Inbox { messages, activator })
    };
    let (workers, inboxes) = (0..workers).map(channel).unzip();
    let (fault, metrics, duplicates) = (fault.clone(), Arc::clone(metrics), DuplicateFilter::default());
    let (block, ingest, guard, others) = (Block::default(), None, None, None);
    let dealer = RecordDistributor {
        workers,
        next_worker: 0,
        block,
        fault,
        metrics,
        duplicates,
        ingest,
        guard,
        others,
    };
    (dealer, WorkerFeed(Arc::new(inboxes)))
}

impl RecordDistributor {
    /// Sets the journal that is being read.
    pub(super) fn of_journal(self, ingest: Option<Arc<IngestJournal>>) -> Self {
        RecordDistributor { ingest, ..self }
    }

    /// Sets the guard that judges the rows.
    pub(super) fn guarded(self, guard: Option<RowGuard>) -> Self {
        RecordDistributor { guard, ..self }
    }

    /// Sets the processes that hold some of the rows.
    pub(super) fn among(self, others: Option<OtherReaders>) -> Self {
        RecordDistributor { others, ..self }
    }

    /// Reads the source to its end, on a thread of its own.
    pub(super) fn deal(mut self, reader: SourceReader) -> ReadOutcome {
        let metrics = Arc::clone(&self.metrics);
        let mut reader = reader.reporting(move |counters| metrics.record_read(counters));
        loop {
            let waits = self.holds_epochs() && reader.must_wait();
            if waits && !self.end_first_check() {
                return self.outcome(&[SourceRows::of(&reader)], *reader.counters());
            }
            if self.has_block() && (reader.has_read_all() || self.block.is_full()) && !self.send_block() {
                return self.outcome(&[SourceRows::of(&reader)], *reader.counters());
            }
            reader.return_early(self.holds_epochs(), self.has_block());
            reader.need_records(self.guard.as_ref().is_some_and(RowGuard::needs_records));
            let event = reader.next_event();
            self.survey(0, SourceRows::of(&reader));
            self.update_counters(*reader.counters());
            let delivered = match event {
                Ok(SourceEvent::Batch(batch)) => self.batch(0, batch),
                Ok(SourceEvent::Mark(EpochMark { epoch, due, rows, resume, read })) => {
                    let resumes = vec![SourceResume { source: 0, resume, read: Some(read) }];
                    let counters = vec![reader.unjudged()];
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

    /// Returns the outcome at the end: the counters of all rows, and notices about the rows of each
    /// source.
    pub(super) fn outcome(self, sources: &[SourceRows<'_>], counters: RowCounters) -> ReadOutcome {
        let notices = self.guard.as_ref().map(|guard| guard.private_notices(sources));
        ReadOutcome { counters: self.counted(counters), notices: notices.unwrap_or_default() }
    }

    /// Whether closed epochs wait for more.
    pub(super) fn has_block(&self) -> bool {
        !self.block.closed.is_empty()
    }

    /// Whether the waiting epochs must be reported now, even if more rows are available.
    pub(super) fn is_block_full(&self) -> bool {
        self.block.is_full()
    }

    /// Reports the closed epochs that wait. Returns whether they were accepted.
    pub(super) fn send_block(&mut self) -> bool {
        let Block { records, closed, .. } = std::mem::take(&mut self.block);
        let Some(last) = closed.back().map(|run| run.last) else { return true };
        if !records.is_empty() && !self.send_records(records) {
            return false;
        }
        self.others.iter().for_each(|others| others.close(last));
        let Some((first, _)) = self.workers.split_first() else { return true };
        self.deliver(first, FeedMessage::Closed(closed)) && self.close_others(1, last)
    }

    /// Informs all workers that the epochs up to `last` are closed, in a process that only follows.
    pub(super) fn close_through(&self, last: u64) -> bool {
        self.close_others(0, last)
    }

    /// Informs the workers from `first` on, which don't pass on where the pipeline resumes.
    fn close_others(&self, first: usize, last: u64) -> bool {
        let closed = || FeedMessage::Closed(VecDeque::from([ClosedRun { last, resume: None }]));
        self.workers[first..].iter().all(|worker| self.deliver(worker, closed()))
    }

    /// Hands records to the next worker.
    pub(super) fn send_records(&mut self, records: Records) -> bool {
        self.next_worker = (self.next_worker + 1) % self.workers.len();
        self.deliver(&self.workers[self.next_worker], FeedMessage::Records(records))
    }

    /// Whether the check of the first rows still goes on.
    pub(super) fn is_checking_first_rows(&self) -> bool {
        self.guard.as_ref().is_some_and(RowGuard::is_checking_first_rows)
    }

    /// Whether closed epochs wait for the end of the check of the first rows.
    pub(super) fn holds_epochs(&self) -> bool {
        self.guard.as_ref().is_some_and(RowGuard::holds_epochs)
    }

    /// Ends the check of the first rows, if it is not over. Returns whether to continue.
    pub(super) fn end_first_check(&mut self) -> bool {
        let closed = self.guard.as_mut().map_or(Ok(Vec::new()), RowGuard::end_first_check);
        self.send_epochs(closed)
    }

    fn send_epochs(&mut self, closed: Result<Vec<ClosedEpochs>, String>) -> bool {
        match closed {
            Ok(closed) => {
                closed.into_iter().for_each(|closed| self.hold(closed));
                true
            }
            Err(refusal) => self.refuse(refusal),
        }
    }

    /// Stops the run once all epochs that were reported closed are committed. So the number of
    /// published epochs depends on the rows and the clock, never on the speed of workers.
    pub(super) fn refuse(&mut self, refusal: impl Display) -> bool {
        self.send_block();
        while self.metrics.has_uncommitted() && !self.fault.is_raised() {
            std::thread::sleep(TIMEOUT / 10);
        }
        self.fault.raise(refusal);
        false
    }

    /// Ends the check of the first rows once it has seen enough. Returns whether to continue.
    fn end_first_check_if_done(&mut self) -> bool {
        !self.guard.as_ref().is_some_and(RowGuard::has_checked_first_rows) || self.end_first_check()
    }

    pub(super) fn fault(&self) -> &Fault {
        &self.fault
    }

    /// Reports the counters of all sources, with the duplicates found, to the metrics and to the
    /// guard.
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

    /// Adds the duplicates found to `counters`.
    pub(super) fn counted(&self, counters: RowCounters) -> RowCounters {
        RowCounters { duplicates: self.duplicates.found(), ..counters }
    }

    /// Hands records of a source to the next worker, without duplicates. Returns whether they were
    /// accepted, as do `close` and `end`.
    pub(super) fn batch(&mut self, source: usize, mut batch: RecordBatch) -> bool {
        self.duplicates.take_out(&mut batch);
        if let Some(guard) = &mut self.guard {
            guard.add(source, &batch.records, self.duplicates.found());
            guard.add(source, &batch.elsewhere, self.duplicates.found());
        }
        self.block.batches += usize::from(self.has_block());
        if batch.is_empty() {
            return !self.fault.is_raised() && self.end_first_check_if_done();
        }
        if self.has_block() {
            self.block.records.append(batch.records);
            return self.end_first_check_if_done();
        }
        self.send_records(batch.records) && self.end_first_check_if_done()
    }

    /// Notes records of a source that another process hands to its workers.
    pub(super) fn batch_elsewhere(&mut self, source: usize, records: &Records) -> bool {
        if let Some(guard) = &mut self.guard {
            guard.add(source, records, self.duplicates.found());
        }
        self.block.batches += usize::from(self.has_block());
        !self.fault.is_raised() && self.end_first_check_if_done()
    }

    /// Adds closed epochs to those that wait to be reported to all workers, unless the guard holds
    /// them or stops the run. `surveys` has one survey of each source.
    pub(super) fn close(&mut self, closed: ClosedEpochs, surveys: &[&RowSurvey]) -> bool {
        let closed = match &mut self.guard {
            Some(guard) => guard.close(closed, surveys),
            None => Ok(Some(closed)),
        };
        match closed {
            Ok(Some(closed)) => {
                self.hold(closed);
                true
            }
            Ok(None) => self.end_first_check_if_done(),
            Err(refusal) => self.refuse(refusal),
        }
    }

    fn hold(&mut self, closed: ClosedEpochs) {
        let ClosedEpochs { epoch, rows, resumes: sources, judged, .. } = closed;
        self.duplicates.forget(epoch);
        self.metrics.record_closed(epoch, rows);
        if let Some(ingest) = &self.ingest {
            ingest.closed(epoch);
        }
        let resume = Some(EpochResume { sources, judged });
        self.block.closed.push_back(ClosedRun { last: epoch, resume });
        self.block.since.get_or_insert_with(Instant::now);
    }

    /// Reports the end to all workers; nothing is accepted afterwards.
    pub(super) fn end(&mut self) -> bool {
        let closed = self.guard.as_mut().map_or(Ok(Vec::new()), RowGuard::end_input);
        if !self.send_epochs(closed) || !self.send_block() {
            return false;
        }
        info!("the source has ended");
        self.others.iter().for_each(OtherReaders::end);
        self.finish();
        false
    }

    /// Reports the end to the workers of this process.
    pub(super) fn finish(&self) {
        self.workers.iter().all(|worker| self.deliver(worker, FeedMessage::End));
    }

    /// Waits for room in the channel, unless there is a fault. Returns whether the message was
    /// accepted.
    fn deliver(&self, worker: &Outbox, mut message: FeedMessage) -> bool {
        loop {
            match worker.messages.send_timeout(message, TIMEOUT) {
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
