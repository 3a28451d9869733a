//! A partition of a Kafka topic, read and written by librdkafka: the only client here that is not
//! our own.
//!
//! The partition is assigned, not subscribed to: no group selects the partitions, and no offset is
//! committed to the server. Only committed transactions are read. Transaction markers and aborted
//! messages have offsets too, so offsets rise by more than one. The client reconnects by itself.
//! After any reported error a new client is created, which then checks what the partition still
//! has.

use std::io;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::BorrowedMessage;
use rdkafka::{Offset, TopicPartitionList};

use super::topic::Topic;
use crate::connect::error::{RequestError, passing, refusal};
use crate::control::Control;

/// How long to wait for an answer, and how often to check whether to keep waiting.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);
const SLICE: Duration = Duration::from_secs(1);

/// Limits of the client's queue: number of messages, and KiB, to which one answer of 1 MiB may add.
const WAITING_MESSAGES: &str = "10000";
const WAITING_KIB: &str = "16384";

/// Milliseconds that the server waits for a message.
const WAIT: &str = "250";

/// Client settings shared by sources and sinks.
pub(super) fn config(topic: &Topic) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", &topic.address)
        .set("client.id", "hushflow")
        .set("socket.keepalive.enable", "true")
        .set("socket.timeout.ms", "10000")
        .set("reconnect.backoff.max.ms", "5000");
    config
}

/// Reader of a partition.
pub(super) struct PartitionConsumer {
    pub(super) topic: Topic,
    consumer: BaseConsumer,
    partition: i32,
}

/// Result of a poll.
pub(super) enum PollResult<'a> {
    Message(BorrowedMessage<'a>),
    /// All available messages have been read.
    End,
    Nothing,
}

impl PartitionConsumer {
    pub(super) fn open(topic: &Topic, control: &Control) -> Result<Self, RequestError> {
        let consumer: BaseConsumer = config(topic)
            // The client requires a name, but we never join the group.
            .set("group.id", "hushflow")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "error")
            .set("isolation.level", "read_committed")
            .set("enable.partition.eof", "true")
            .set("check.crcs", "true")
            .set("queued.min.messages", WAITING_MESSAGES)
            .set("queued.max.messages.kbytes", WAITING_KIB)
            .set("fetch.wait.max.ms", WAIT)
            // Check a full queue again soon.
            .set("fetch.queue.backoff.ms", "10")
            .create()
            .map_err(|error| trouble(topic, &error))?;
        let mut reader = PartitionConsumer { topic: topic.clone(), consumer, partition: 0 };
        let partitions = reader.ask(control, |reader, patience| {
            let metadata = reader.consumer.fetch_metadata(Some(&topic.stream), patience)?;
            Ok(metadata.topics().first().map_or(0, |found| found.partitions().len()))
        })?;
        reader.partition = chosen(topic, partitions)?;
        Ok(reader)
    }

    /// Asks the server until it answers, the run is stopped or patience ends.
    fn ask<T>(
        &self,
        control: &Control,
        question: impl Fn(&Self, Duration) -> KafkaResult<T>,
    ) -> Result<T, RequestError> {
        let begun = Instant::now();
        loop {
            match question(self, SLICE) {
                Err(_) if control.keep_waiting(begun, PATIENCE).is_ok() => {}
                answer => return answer.map_err(|error| trouble(&self.topic, &error)),
            }
        }
    }

    /// Returns the first available offset, and the one after the last.
    pub(super) fn ends(&self, control: &Control) -> Result<(u64, u64), RequestError> {
        let (first, end) = self.ask(control, |reader, patience| {
            reader.consumer.fetch_watermarks(&reader.topic.stream, reader.partition, patience)
        })?;
        Ok((first.max(0) as u64, end.max(0) as u64))
    }

    /// Starts reading at this offset.
    pub(super) fn begin(&self, offset: u64) -> Result<(), RequestError> {
        let offset = i64::try_from(offset).map_err(|_| passing("the offset is beyond all others"))?;
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.topic.stream, self.partition, Offset::Offset(offset))
            .and_then(|()| self.consumer.assign(&list))
            .map_err(|error| trouble(&self.topic, &error))
    }

    /// Returns the next message, waiting at most `patience`.
    pub(super) fn poll(&self, patience: Duration) -> Result<PollResult<'_>, RequestError> {
        match self.consumer.poll(patience) {
            None => Ok(PollResult::Nothing),
            Some(Ok(message)) => Ok(PollResult::Message(message)),
            Some(Err(KafkaError::PartitionEOF(_))) => Ok(PollResult::End),
            Some(Err(error)) => Err(trouble(&self.topic, &error)),
        }
    }
}

/// Selects the partition to read of a topic with this number of partitions.
fn chosen(topic: &Topic, partitions: usize) -> Result<i32, RequestError> {
    match (topic.partition, partitions) {
        // A server that has just started may not know the topic yet.
        (_, 0) => Err(passing("the topic is not there")),
        (None, 1) => Ok(0),
        (None, _) => Err(refusal(
            topic.name(),
            &format!(
                "the topic has {partitions} partitions, between which there is no order: name one, as partition = 0"
            ),
        )),
        (Some(partition), _) => match i32::try_from(partition) {
            Ok(number) if (partition as usize) < partitions => Ok(number),
            _ => Err(refusal(
                topic.name(),
                &format!("the topic has {partitions} partitions, numbered from 0: there is no {partition}"),
            )),
        },
    }
}

/// Converts an error of the client, with its words.
pub(super) fn trouble(topic: &Topic, error: &KafkaError) -> RequestError {
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::NotImplemented) => refusal(
            topic.name(),
            "messages are packed in a way that this build can't unpack: cargo build --features kafka,zstd",
        ),
        Some(code) => RequestError::Passing(io::Error::other(code.to_string())),
        None => passing(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_partition_is_read() {
        let check = |partition, partitions, expected: Result<i32, &str>| {
            let topic = Topic { address: "h:9092".into(), stream: "s".into(), partition };
            let found = chosen(&topic, partitions);
            match (&found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(*found, expected),
                (Err(RequestError::Passing(error)), Err(part)) => assert!(error.to_string().contains(part)),
                (Err(RequestError::Refused { problem, .. }), Err(part)) => assert!(problem.contains(part)),
                _ => panic!("{partition:?} of {partitions}: {found:?}"),
            }
        };
        check(None, 1, Ok(0));
        check(Some(2), 3, Ok(2));
        check(None, 0, Err("not there"));
        check(None, 3, Err("partition = 0"));
        check(Some(3), 3, Err("there is no 3"));
        check(Some(u32::MAX), 3, Err("there is no 4294967295"));
    }
}
