//! What another process does for the first one, message by message.

use std::sync::Arc;

use crossbeam::channel::Receiver;
use hushflow_operators::Fault;

use super::partitions::PartitionServer;
use super::post::{MISMATCH, Post, ReaderMessage};
use super::ranges::RangeServer;
use super::spawn;
use crate::runtime::feed::RecordDistributor;

/// Serves the requests of the first process in another one.
pub(super) struct RequestServer {
    pub(super) dealer: RecordDistributor,
    pub(super) ranges: RangeServer,
    pub(super) partitions: PartitionServer,
    /// Keeps the dataflow of messages until the end of the input.
    pub(super) post: Arc<Post>,
}

impl RequestServer {
    /// Begins, on a thread of its own.
    pub(super) fn start(self, received: Receiver<ReaderMessage>, fault: &Fault) {
        let raised = fault.clone();
        spawn("source", fault, move || {
            if !self.serve(received) {
                raised.raise(MISMATCH);
            }
        });
    }

    /// Returns whether the messages fit what was read.
    fn serve(self, received: Receiver<ReaderMessage>) -> bool {
        let RequestServer { mut dealer, mut ranges, mut partitions, post } = self;
        for message in received {
            let goes_on = match message {
                ReaderMessage::Parse(request) => ranges.parse(request),
                ReaderMessage::Read(request) => partitions.read(request),
                ReaderMessage::HandOver(handover) => {
                    let Some((mut batches, result)) = ranges.take(*handover) else { return false };
                    // First the clock, because others wait for it.
                    post.send(0, ReaderMessage::HandBack(Box::new(result)));
                    batches.all(|records| dealer.send_records(records))
                }
                ReaderMessage::Taken(events) => match partitions.take(&events) {
                    None => return false,
                    Some(records) => records.is_empty() || dealer.send_records(records),
                },
                ReaderMessage::Numbered(reader) => {
                    partitions.numbered(reader);
                    true
                }
                ReaderMessage::Closed(epoch) => dealer.close_through(epoch),
                ReaderMessage::End => {
                    dealer.finish();
                    return true;
                }
                ReaderMessage::Parsed(..)
                | ReaderMessage::HandBack(_)
                | ReaderMessage::Events(_)
                | ReaderMessage::Found(..) => {
                    return false;
                }
            };
            if !goes_on {
                return true;
            }
        }
        true
    }
}
