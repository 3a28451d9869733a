//! Partitions of live sources that other processes read.
//!
//! ```text
//! first process    merge ─ partition            merge ─ last closed epoch
//!                              ↓                  ↑            ↓
//! another process           reader, clock ─ keys, epochs    late records ─ values ─→ workers
//! ```
//!
//! A reader of another process runs as a [reader](super::super::threads) of the first one: its
//! events go to the [merge](super::super::merge) in their order, without values. Events that need
//! no waiting are sent together, as a block. The process keeps the values of at most
//! [`WAITING_EVENTS`] blocks, until the merge has taken them. So a partition whose clock is far
//! ahead is paused there too.
//!
//! The position to resume from comes with the marks, and is committed by the first process. What a
//! lost process had read and not delivered is read again by the next run.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, bounded, unbounded};
use hushflow_operators::{Entity, Fault, Records};

use super::lists::{ListsElsewhere, RemoteList};
use super::post::{
    MISMATCH, PartitionEvents, PartitionRequest, Post, PostBox, ReaderMessage, SentEvent, WeakPost,
};
use super::spawn;
use crate::connect::{FileList, Partitions};
use crate::control::Control;
use crate::pipeline::Pipeline;
use crate::runtime::ingest::{PartOf, open_reader, partitions_of};
use crate::runtime::late::LateRule;
use crate::runtime::threads::{ReaderEvent, ReaderThread, WAITING_EVENTS};
use crate::source::{
    BATCH_RECORDS, RecordBatch, RowCounters, RowSurvey, SourceError, SourceEvent, SourceReader,
};

/// The processes of a cluster that read partitions, as the first one asks them.
pub(in crate::runtime) struct PartitionReaders {
    post: Arc<Post>,
    processes: usize,
    /// Where the events of each reader go.
    events: Arc<Mutex<HashMap<usize, Sender<ReaderEvent>>>>,
    lists: ListsElsewhere,
}

/// A partition to read: its source, its number, and the partitions of the source found so far.
#[derive(Clone, Copy)]
pub(in crate::runtime) struct PartitionName {
    pub(in crate::runtime) source: usize,
    pub(in crate::runtime) partition: u32,
    pub(in crate::runtime) found: u32,
}

impl PartitionReaders {
    /// Begins to receive events, on a thread of its own.
    pub(super) fn start(post: PostBox, processes: usize, fault: &Fault) -> Self {
        let PostBox { post, received: messages } = post;
        let events = Arc::<Mutex<HashMap<usize, Sender<ReaderEvent>>>>::default();
        let lists = ListsElsewhere::default();
        let (readers, raised) = (Arc::clone(&events), fault.clone());
        let (kept, answers) = (lists.clone(), Arc::downgrade(&post));
        spawn("partitions", fault, move || {
            for message in messages {
                let block = match message {
                    ReaderMessage::Events(block) => block,
                    ReaderMessage::Found(reader, names) => {
                        kept.number(reader, &names, &answers, &raised);
                        continue;
                    }
                    _ => continue,
                };
                let PartitionEvents { reader, events } = *block;
                match locked(&readers).get(&reader) {
                    // The receiver is gone if the run has ended.
                    Some(sender) => events.into_iter().for_each(|event| drop(sender.send(received(event)))),
                    None => return raised.raise(MISMATCH),
                }
            }
        });
        PartitionReaders { post, processes, events, lists }
    }

    /// Hands the reader with this number to the process whose turn it is; `None` if that is this
    /// one.
    pub(in crate::runtime) fn begin(
        &self,
        number: usize,
        PartitionName { source, partition, found }: PartitionName,
        (reader, list): (&mut SourceReader, Option<&Arc<dyn FileList>>),
        closed: u64,
    ) -> Option<ReaderThread> {
        let process = number % self.processes;
        if process == 0 {
            return None;
        }
        // The turns of the reader bound them.
        let (sender, events) = unbounded();
        locked(&self.events).insert(number, sender);
        let resume = reader.resume_point();
        let names = list.map(|list| list.names());
        list.into_iter().for_each(|list| self.lists.insert(number, process, Arc::clone(list)));
        let request = PartitionRequest { reader: number, source, partition, found, resume, closed, names };
        self.post.send(process, ReaderMessage::Read(request));
        let elsewhere = RemoteReader { number, process, post: Arc::clone(&self.post) };
        Some(ReaderThread::receiving(events, Some(elsewhere)))
    }
}

/// A reader in another process.
pub(in crate::runtime) struct RemoteReader {
    number: usize,
    process: usize,
    post: Arc<Post>,
}

impl RemoteReader {
    /// Informs it that its oldest event is taken, when the epochs up to this one are closed; soon,
    /// if more events wait to be taken.
    pub(in crate::runtime) fn taken(&self, closed: u64, more_wait: bool) {
        self.post.note_taken(self.process, self.number, closed);
        if !more_wait {
            self.post.send_taken(self.process);
        }
    }
}

/// Splits an event, which comes after this number of rows since the one before it, into records
/// that stay here and what is sent.
fn split(
    event: ReaderEvent,
    rows: u64,
    (process, has_entities): (usize, bool),
) -> (Records, ReaderEvent<SentEvent, Vec<u8>>) {
    let mut kept = Records::default();
    let sent = |event| match event {
        Ok(SourceEvent::Batch(RecordBatch { records, .. })) => {
            let rows = usize::try_from(rows).unwrap_or(0).max(records.len());
            let (mut keys, mut epochs) = (records.keys.clone(), records.epochs.clone());
            let mut entities = records.entities.clone();
            keys.resize(rows, 0);
            epochs.resize(rows, 0);
            entities.resize(if has_entities { rows } else { 0 }, Entity(0));
            kept = records;
            SentEvent::Records(Records { keys, epochs, entities, ..Records::default() })
        }
        Ok(SourceEvent::Mark(mark)) => SentEvent::Mark(mark),
        Ok(SourceEvent::End) => SentEvent::End,
        Err(fault) => SentEvent::Fault(format!("process {process}: {fault}")),
    };
    let event = event.map(sent, |survey: Box<RowSurvey>| survey.padded());
    (kept, event)
}

/// Returns an event as its reader returned it, without values.
fn received(event: ReaderEvent<SentEvent, Vec<u8>>) -> ReaderEvent {
    let received = |event| match event {
        SentEvent::Records(mut records) => {
            let number = records.epochs.partition_point(|&epoch| epoch > 0);
            records.keys.truncate(number);
            records.epochs.truncate(number);
            records.entities.truncate(number);
            Ok(SourceEvent::Batch(RecordBatch { records, ..RecordBatch::default() }))
        }
        SentEvent::Mark(mark) => Ok(SourceEvent::Mark(mark)),
        SentEvent::End => Ok(SourceEvent::End),
        SentEvent::Fault(fault) => Err(SourceError::Elsewhere(fault)),
    };
    event.map(received, |survey| Box::new(RowSurvey::of_padded(&survey).unwrap_or_default()))
}

/// Largest number of events of a block.
const BLOCK_EVENTS: usize = 1024;

/// How long the first event of a block waits for others.
const BLOCK_TIME: Duration = Duration::from_millis(1);

/// Records of the events of a reader that the first process has not taken, the oldest first. The
/// last event of a block returns a turn.
type HeldRecords = Arc<Mutex<VecDeque<HeldEvent>>>;

struct HeldEvent {
    records: Records,
    ends_block: bool,
}

/// The open partitions of a source, once any of them is read.
type OpenPartitions = Arc<OnceLock<Option<Arc<dyn Partitions>>>>;

/// Reads partitions for the first process, each on a thread of its own.
pub(super) struct PartitionServer {
    process: usize,
    post: WeakPost,
    pipeline: Arc<Pipeline>,
    control: Control,
    fault: Fault,
    late: LateRule,
    /// By source.
    partitions: Vec<OpenPartitions>,
    /// By the number of the reader: its records, and its turns to read another block.
    readers: HashMap<usize, (HeldRecords, Sender<()>)>,
    /// By the number of the reader: where to send that the files that it has found are numbered.
    lists: HashMap<usize, Sender<()>>,
}

impl PartitionServer {
    pub(super) fn new(
        process: usize,
        post: &Arc<Post>,
        pipeline: &Pipeline,
        control: &Control,
        fault: &Fault,
    ) -> Self {
        PartitionServer {
            process,
            post: Arc::downgrade(post),
            pipeline: Arc::new(pipeline.clone()),
            control: control.of_follower(),
            fault: fault.clone(),
            late: LateRule::new(pipeline),
            partitions: pipeline.sources.iter().map(|_| OpenPartitions::default()).collect(),
            readers: HashMap::new(),
            lists: HashMap::new(),
        }
    }

    /// Begins to read a partition.
    pub(super) fn read(&mut self, mut request: PartitionRequest) -> bool {
        let Some(partitions) = self.partitions.get(request.source).cloned() else { return false };
        let (turn, turns) = bounded(WAITING_EVENTS);
        (0..WAITING_EVENTS).for_each(|_| {
            let _ = turn.try_send(());
        });
        let held = HeldRecords::default();
        self.readers.insert(request.reader, (Arc::clone(&held), turn));
        let (process, post, rows) = (self.process, self.post.clone(), 0);
        let names = request.names.take();
        let list = names.map(|names| RemoteList::new(request.reader, self.post.clone(), names));
        let list = list.map(|(list, numbered)| {
            self.lists.insert(request.reader, numbered);
            Arc::new(list) as Arc<dyn FileList>
        });
        let mut thread = PartitionThread { request, list, process, post, turns, held, partitions, rows };
        let (pipeline, control) = (Arc::clone(&self.pipeline), self.control.clone());
        spawn("partition", &self.fault, move || thread.read(&pipeline, &control));
        true
    }

    /// Notes that the files that a reader has found are numbered.
    pub(super) fn numbered(&self, reader: usize) {
        // The receiver is gone if the reader has failed.
        let _ = self.lists.get(&reader).map(|list| list.send(()));
    }

    /// Takes the records of the oldest events: for each event its reader, and the epoch up to which
    /// records are late. `None` if there is no such event.
    pub(super) fn take(&mut self, events: &[(usize, u64)]) -> Option<Records> {
        let mut all = Records::default();
        for &(reader, closed) in events {
            let (held, turn) = self.readers.get(&reader)?;
            let HeldEvent { mut records, ends_block } = locked(held).pop_front()?;
            if ends_block {
                let _ = turn.try_send(());
            }
            self.late.apply(&mut records, &mut Vec::new(), closed, &mut RowCounters::default());
            all.append(records);
        }
        Some(all)
    }
}

/// What the thread of a partition needs.
struct PartitionThread {
    request: PartitionRequest,
    /// The list of the source's files, if it keeps one.
    list: Option<Arc<dyn FileList>>,
    process: usize,
    post: WeakPost,
    turns: Receiver<()>,
    held: HeldRecords,
    partitions: OpenPartitions,
    /// Rows up to the last event.
    rows: u64,
}

impl PartitionThread {
    /// Sends events until the partition ends or fails, or the run is over.
    fn read(&mut self, pipeline: &Pipeline, control: &Control) {
        let PartitionRequest { source, partition, found, resume, closed, .. } = self.request;
        let (read, has_entities) = ((pipeline, source), pipeline.entity.is_some());
        let partitions = self.partitions.get_or_init(|| partitions_of(read, control, found)).clone();
        let part_of = match &partitions {
            Some(partitions) => PartOf::Partitions(&**partitions),
            None => PartOf::Listed(self.list.take()),
        };
        let mut opened = open_reader(read, control, part_of, (partition, resume), closed);
        while self.turns.recv().is_ok() {
            let mut block = match opened {
                Ok(ref mut reader) => next_block(reader),
                Err(fault) => {
                    self.send(vec![ReaderEvent::failed(fault)], has_entities);
                    return;
                }
            };
            let found = partitions.as_ref().map_or(0, |partitions| partitions.number());
            block.iter_mut().for_each(|event| event.partitions = found);
            let is_last = block.last().is_some_and(ReaderEvent::is_last);
            if !self.send(block, has_entities) || is_last {
                return;
            }
        }
    }

    /// Keeps the records of a block and sends the rest. Returns whether the run goes on.
    fn send(&mut self, block: Vec<ReaderEvent>, has_entities: bool) -> bool {
        let (mut held, mut events) = (VecDeque::new(), Vec::with_capacity(block.len()));
        for event in block {
            let rows = event.counters.rows;
            let since = rows - std::mem::replace(&mut self.rows, rows);
            let (records, event) = split(event, since, (self.process, has_entities));
            held.push_back(HeldEvent { records, ends_block: false });
            events.push(event);
        }
        held.back_mut().into_iter().for_each(|last| last.ends_block = true);
        locked(&self.held).append(&mut held);
        let Some(post) = self.post.upgrade() else { return false };
        let events = PartitionEvents { reader: self.request.reader, events };
        post.send(0, ReaderMessage::Events(Box::new(events)));
        true
    }
}

/// Waits for the next event, and takes those that follow without waiting.
fn next_block(reader: &mut SourceReader) -> Vec<ReaderEvent> {
    let before = reader.counters().rows;
    let mut block = vec![ReaderEvent::next(reader)];
    let since = Instant::now();
    loop {
        let is_over = block.last().is_some_and(ReaderEvent::is_last) || reader.has_read_all();
        let rows = reader.counters().rows - before;
        let is_full = block.len() >= BLOCK_EVENTS || rows >= BATCH_RECORDS as u64;
        if is_over || is_full || since.elapsed() >= BLOCK_TIME {
            return block;
        }
        block.push(ReaderEvent::next(reader));
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(event: Result<SourceEvent, SourceError>, survey: RowSurvey) -> ReaderEvent {
        ReaderEvent { survey: Some(Box::new(survey)), ..ReaderEvent::failed(SourceError::NeedsRun) }
            .map(|_| event, |survey| survey)
    }

    fn batch(records: u64) -> Records {
        Records {
            keys: (0..records as u32).collect(),
            epochs: (0..records).map(|record| 7 + record % 3).collect(),
            values: vec![0.5; 2 * records as usize],
            entities: (0..records).map(|record| Entity(record.into())).collect(),
            positions: (0..records).collect(),
        }
    }

    fn sent(records: u64, survey: RowSurvey) -> (Records, ReaderEvent<SentEvent, Vec<u8>>) {
        let records = RecordBatch { records: batch(records), ..RecordBatch::default() };
        split(event(Ok(SourceEvent::Batch(records)), survey), 100, (1, true))
    }

    /// Whatever the rows hold.
    #[test]
    fn the_length_of_a_message_follows_from_the_number_of_rows() {
        let length = |records, unlisted: &[u8]| {
            let mut survey = RowSurvey::default();
            (0..records).for_each(|_| *survey.unlisted_keys.entry(unlisted.to_vec()).or_default() += 1);
            bincode::serialized_size(&PartitionEvents { reader: 3, events: vec![sent(records, survey).1] })
                .unwrap()
        };
        let expected = length(100, b"");
        for (records, unlisted) in [(0, &b""[..]), (1, b"secret"), (99, b"a longer secret")] {
            assert_eq!(length(records, unlisted), expected, "{records} records");
        }
    }

    #[test]
    fn events_arrive_without_values() {
        for records in [0, 1, 100] {
            let (kept, event) = sent(records, RowSurvey::default());
            assert!(kept.values.len() as u64 == 2 * records && kept.positions.len() as u64 == records);
            let ReaderEvent { event: Ok(SourceEvent::Batch(found)), .. } = received(event) else {
                panic!("a batch")
            };
            let expected = batch(records);
            assert_eq!((found.records.keys, found.records.epochs), (expected.keys, expected.epochs));
            assert!(found.records.entities == expected.entities && found.records.values.is_empty());
        }
        let fault = split(event(Err(SourceError::NeedsRun), RowSurvey::default()), 0, (2, false)).1;
        let fault = received(fault).event.err().map(|fault| fault.to_string());
        assert!(fault.is_some_and(|fault| fault.starts_with("process 2: a socket")));
        let end = split(event(Ok(SourceEvent::End), RowSurvey::default()), 0, (2, false)).1;
        assert!(received(end).is_last());
    }
}
