//! Messages between the readers of the processes of a cluster: a dataflow of its own on their
//! links.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crossbeam::channel::{Receiver, Sender, TryRecvError, unbounded};
use hushflow_operators::Records;
use serde::{Deserialize, Serialize};
use timely::dataflow::operators::Exchange;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::vec::Map;
use timely::worker::Worker;

use crate::runtime::feed::SourceWaker;
use crate::runtime::threads::ReaderEvent;
use crate::source::{EpochMark, RangeExtent, RangeHandover, RangePlan, RangeResult, ResumePoint};

pub(super) const MISMATCH: &str =
    "the processes of the cluster disagree about the rows of a source: a fault of hushflow";

/// A message from one process to another.
#[derive(Clone, Serialize, Deserialize)]
pub(super) enum ReaderMessage {
    /// The first process asks for a range.
    Parse(RangeRequest),
    /// Another process has parsed it: its number, the range, and where the range begins and ends.
    Parsed(usize, usize, RangeExtent),
    /// The first process hands over the clock, to take the rows of a range.
    HandOver(Box<RangeHandover>),
    /// Another process returns the clock after these rows.
    HandBack(Box<RangeResult>),
    /// The first process asks to read a partition.
    Read(PartitionRequest),
    /// What the reader of a partition has come to.
    Events(Box<PartitionEvents>),
    /// The first process has taken the oldest events that it had not taken, one after the other:
    /// for each the reader, and the epoch up to which its records are late.
    Taken(Vec<(usize, u64)>),
    /// A reader has found files with these names, and waits until they are numbered.
    Found(usize, Vec<Vec<u8>>),
    /// The files that a reader has found are numbered.
    Numbered(usize),
    /// All epochs up to this one are closed.
    Closed(u64),
    /// End of the input.
    End,
}

/// A range to parse.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct RangeRequest {
    pub(super) range: usize,
    /// The part of the plan about this range.
    pub(super) plan: RangePlan,
    /// Ranges before this one are not needed any more.
    pub(super) needed: usize,
}

/// A partition to read.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct PartitionRequest {
    /// The number of its reader among all of the run.
    pub(super) reader: usize,
    pub(super) source: usize,
    pub(super) partition: u32,
    /// Number of partitions of the source that were found.
    pub(super) found: u32,
    pub(super) resume: ResumePoint,
    /// Epochs up to this one are closed.
    pub(super) closed: u64,
    /// The list of the source's files, if it keeps one.
    pub(super) names: Option<Vec<Vec<u8>>>,
}

/// What the reader of a partition has come to. Its length follows from the numbers of rows and of
/// closed epochs alone.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct PartitionEvents {
    pub(super) reader: usize,
    /// With the [padded](crate::source::RowSurvey::padded) surveys.
    pub(super) events: Vec<ReaderEvent<SentEvent, Vec<u8>>>,
}

/// An event of a reader, without values.
#[derive(Clone, Serialize, Deserialize)]
pub(super) enum SentEvent {
    /// Keys, epochs and entities of records; behind them, as many of epoch 0 as rows hold none.
    Records(Records),
    Mark(EpochMark),
    End,
    /// Why it can't be read further.
    Fault(String),
}

/// Sends messages to other processes. The dataflow of a process ends when this is dropped.
pub(super) struct Post {
    // Dropped in this order, so the last wake finds the channel closed.
    messages: Sender<(u64, ReaderMessage)>,
    waker: SourceWaker,
    /// Workers of a process.
    workers: u64,
    /// Events that were taken, by process, until they are sent together.
    taken: Mutex<BTreeMap<usize, Vec<(usize, u64)>>>,
}

impl Post {
    /// Sends a message to a process, after those that wait for it.
    pub(super) fn send(&self, process: usize, message: ReaderMessage) {
        self.send_taken(process);
        self.post(process, message);
    }

    /// Notes that the oldest event of a reader was taken. The process learns it with the next
    /// message, or by [`send_taken`](Self::send_taken).
    pub(super) fn note_taken(&self, process: usize, reader: usize, closed: u64) {
        self.taken().entry(process).or_default().push((reader, closed));
    }

    /// Informs a process of the events that were taken.
    pub(super) fn send_taken(&self, process: usize) {
        if let Some(taken) = self.taken().remove(&process) {
            self.post(process, ReaderMessage::Taken(taken));
        }
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<usize, Vec<(usize, u64)>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(&self, process: usize, message: ReaderMessage) {
        // The receiver is gone if the run has ended.
        let _ = self.messages.send((process as u64 * self.workers, message));
        self.waker.wake();
    }
}

/// The other processes, as the first one informs them.
pub(in crate::runtime) struct OtherReaders {
    post: Arc<Post>,
    processes: usize,
}

impl OtherReaders {
    pub(super) fn new(post: Arc<Post>, processes: usize) -> Self {
        OtherReaders { post, processes }
    }

    /// Informs all that the epochs up to this one are closed.
    pub(in crate::runtime) fn close(&self, epoch: u64) {
        (1..self.processes).for_each(|process| self.post.send(process, ReaderMessage::Closed(epoch)));
    }

    /// Informs all that the input has ended.
    pub(in crate::runtime) fn end(&self) {
        (1..self.processes).for_each(|process| self.post.send(process, ReaderMessage::End));
    }
}

/// What a process sends by, and what it receives.
pub(super) struct PostBox {
    pub(super) post: Arc<Post>,
    pub(super) received: Receiver<ReaderMessage>,
}

/// The ends of the same channels in the dataflow, on the first worker of a process.
pub(in crate::runtime) struct PostRoute {
    messages: Receiver<(u64, ReaderMessage)>,
    activator: Arc<OnceLock<timely::scheduling::SyncActivator>>,
    received: Sender<ReaderMessage>,
    workers: usize,
}

/// Creates the channels of a process with this many workers.
pub(super) fn channels(workers: usize) -> (PostBox, PostRoute) {
    let ((messages, sent), (delivered, received)) = (unbounded(), unbounded());
    let activator = Arc::default();
    let waker = SourceWaker::of(&activator);
    let post = Arc::new(Post { messages, waker, workers: workers as u64, taken: Mutex::default() });
    (PostBox { post, received }, PostRoute { messages: sent, activator, received: delivered, workers })
}

/// A handle that doesn't keep the dataflow from ending.
pub(super) type WeakPost = Weak<Post>;

impl PostRoute {
    /// Builds the dataflow that carries the messages, on every worker of every process.
    pub(in crate::runtime) fn build(&self, worker: &mut Worker) {
        let is_first = worker.index().is_multiple_of(self.workers.max(1));
        let (messages, received) = (self.messages.clone(), self.received.clone());
        worker.dataflow::<u64, _, _>(|scope| {
            let mut builder = OperatorBuilder::new("Post".to_owned(), scope);
            let address = builder.operator_info().address;
            let (output, sent) = builder.new_output::<Vec<(u64, ReaderMessage)>>();
            let mut output = OutputBuilder::from(output);
            if is_first {
                let _ = self.activator.set(scope.worker().sync_activator_for(address.to_vec()));
            }
            builder.build(move |mut capabilities| {
                let mut capability = capabilities.pop().filter(|_| is_first);
                move |_frontiers| {
                    let mut output = output.activate();
                    while let Some(open) = &capability {
                        match messages.try_recv() {
                            Ok(message) => output.session(open).give(message),
                            Err(TryRecvError::Empty) => return,
                            Err(TryRecvError::Disconnected) => capability = None,
                        }
                    }
                }
            });
            sent.exchange(|(to, _)| *to).map(move |(_, message)| {
                // The receiver is gone if the run has ended.
                let _ = received.send(message);
            });
        });
    }
}
