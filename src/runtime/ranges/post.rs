//! Messages between the readers of the processes of a cluster: a dataflow of its own on their
//! links.

use std::sync::{Arc, OnceLock, Weak};

use crossbeam::channel::{Receiver, Sender, TryRecvError, unbounded};
use serde::{Deserialize, Serialize};
use timely::dataflow::operators::Exchange;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::vec::Map;
use timely::worker::Worker;

use super::super::feed::SourceWaker;
use crate::source::{AssignedRows, FileStretch, Words};

/// A message from one process to another.
#[derive(Clone, Serialize, Deserialize)]
pub(super) enum RangeMessage {
    /// The first process asks for a range.
    Parse(RangeRequest),
    /// Another process has parsed it: its number, the range, and the rows.
    Parsed(usize, usize, Words),
    /// The epochs of rows that a process holds.
    Assigned(AssignedRows),
    /// All epochs up to this one are closed.
    Closed(u64),
    /// End of the input.
    End,
}

/// A range to parse.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct RangeRequest {
    pub(super) range: usize,
    pub(super) stretch: FileStretch,
    /// Least length of the file.
    pub(super) length: u64,
}

/// Sends messages to other processes. The dataflow of a process ends when this is dropped.
pub(super) struct Post {
    // Dropped in this order, so the last wake finds the channel closed.
    messages: Sender<(u64, RangeMessage)>,
    waker: SourceWaker,
    /// Workers of a process.
    workers: u64,
}

impl Post {
    /// Sends a message to a process.
    pub(super) fn send(&self, process: usize, message: RangeMessage) {
        // The receiver is gone if the run has ended.
        let _ = self.messages.send((process as u64 * self.workers, message));
        self.waker.wake();
    }
}

/// What a process sends by, and what it receives.
pub(super) struct PostBox {
    pub(super) post: Arc<Post>,
    pub(super) received: Receiver<RangeMessage>,
}

/// The ends of the same channels in the dataflow, on the first worker of a process.
pub(in crate::runtime) struct PostRoute {
    messages: Receiver<(u64, RangeMessage)>,
    activator: Arc<OnceLock<timely::scheduling::SyncActivator>>,
    received: Sender<RangeMessage>,
    workers: usize,
}

/// Creates the channels of a process with this many workers.
pub(super) fn channels(workers: usize) -> (PostBox, PostRoute) {
    let ((messages, sent), (delivered, received)) = (unbounded(), unbounded());
    let activator = Arc::default();
    let waker = SourceWaker::of(&activator);
    let post = Arc::new(Post { messages, waker, workers: workers as u64 });
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
            let (output, sent) = builder.new_output::<Vec<(u64, RangeMessage)>>();
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
