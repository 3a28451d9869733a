//! Client of a Kafka topic. It uses librdkafka. The other clients in `connect` are our own code.
//!
//! A partition is assigned, not subscribed to: no group selects the partitions. Only committed
//! transactions are read. Transaction markers and aborted messages have offsets too, so offsets may
//! rise by more than one. The client reconnects by itself. After any reported error a new client is
//! created. If the server refuses an offset that the partition does not have, the reader asks for
//! the available offsets.

use std::io;
use std::time::{Duration, Instant};

use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::BorrowedMessage;
use rdkafka::{Offset, TopicPartitionList};

use super::security::{ConnectionNotes, secure};
use super::topic::Topic;
use crate::connect::error::{RequestError, transient};
use crate::control::Control;

/// Maximum time to wait for an answer, and time between checks for a stop of the run.
pub(super) const TIMEOUT: Duration = Duration::from_secs(3);
const SLICE: Duration = Duration::from_secs(1);

/// Joint limits of the queues of all clients of a topic, in messages and in KiB. Each client may
/// exceed its share by one answer of 1 MiB.
const WAITING_MESSAGES: u32 = 10_000;
const WAITING_KIB: u32 = 16_384;

/// Maximum number of polls that fetch the pending notes of the client library.
const MAX_NOTES: usize = 100;

/// Milliseconds that the server waits for a message.
const WAIT: &str = "250";

/// Client settings shared by sources and sinks.
pub(super) fn config(topic: &Topic, control: &Control) -> Result<ClientConfig, RequestError> {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", &topic.server.address)
        .set("client.id", "hushflow")
        .set("socket.keepalive.enable", "true")
        .set("socket.timeout.ms", "10000")
        .set("reconnect.backoff.max.ms", "5000")
        .set_log_level(RDKafkaLogLevel::Error);
    secure(&mut config, topic, control)?;
    Ok(config)
}

/// Client that asks for the partitions of a topic and reads one of them.
pub(super) struct TopicConsumer {
    topic: Topic,
    consumer: BaseConsumer<ConnectionNotes>,
    notes: ConnectionNotes,
}

pub(super) enum PollResult<'a> {
    Message(BorrowedMessage<'a>),
    /// All available messages have been read.
    End,
    Nothing,
    /// The partition does not have the offset to read.
    OutOfRange,
}

impl TopicConsumer {
    /// Creates one of `sharing` clients, which share the memory for waiting messages.
    pub(super) fn open(topic: &Topic, sharing: u32, control: &Control) -> Result<Self, RequestError> {
        let share = |all: u32, least: u32| (all / sharing.max(1)).max(least).to_string();
        let notes = ConnectionNotes::new(topic, control);
        let consumer = config(topic, control)?
            // The client requires a name, but we never join the group.
            .set("group.id", "hushflow")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "error")
            .set("isolation.level", "read_committed")
            .set("enable.partition.eof", "true")
            .set("check.crcs", "true")
            .set("queued.min.messages", share(WAITING_MESSAGES, 100))
            .set("queued.max.messages.kbytes", share(WAITING_KIB, 256))
            .set("fetch.wait.max.ms", WAIT)
            // Check a full queue again soon.
            .set("fetch.queue.backoff.ms", "10")
            .create_with_context(notes.clone())
            .map_err(|error| request_error(&notes, &error))?;
        Ok(TopicConsumer { topic: topic.clone(), consumer, notes })
    }

    /// Returns the number of partitions of the topic.
    pub(super) fn partitions(&self, control: &Control) -> Result<u32, RequestError> {
        let number = self.ask(control, |client, timeout| {
            let metadata = client.consumer.fetch_metadata(Some(&client.topic.stream), timeout)?;
            Ok(metadata.topics().first().map_or(0, |found| found.partitions().len()))
        })?;
        // A server that has just started may not know the topic yet.
        if number == 0 { Err(transient("the server has no such topic")) } else { Ok(number as u32) }
    }

    fn request_error(&self, error: &KafkaError) -> RequestError {
        request_error(&self.notes, error)
    }

    /// Repeats a question until the server answers or refuses, the run is stopped, or [`TIMEOUT`]
    /// has passed.
    fn ask<T>(
        &self,
        control: &Control,
        question: impl Fn(&Self, Duration) -> KafkaResult<T>,
    ) -> Result<T, RequestError> {
        let begun = Instant::now();
        loop {
            let answer = question(self, SLICE);
            if answer.is_err() {
                self.listen();
                if !self.notes.may_last() && control.keep_waiting(begun, TIMEOUT).is_ok() {
                    continue;
                }
            }
            return answer.map_err(|error| self.request_error(&error));
        }
    }

    /// Fetches the pending notes of the client library. Messages that arrive meanwhile are dropped,
    /// because the client does not read a partition while it asks.
    fn listen(&self) {
        for _ in 0..MAX_NOTES {
            if self.consumer.poll(Duration::ZERO).is_none() {
                return;
            }
        }
    }

    /// Returns the first available offset of a partition, and the offset after the last message.
    pub(super) fn ends(&self, partition: u32, control: &Control) -> Result<(u64, u64), RequestError> {
        let (first, end) = self.ask(control, |client, timeout| {
            client.consumer.fetch_watermarks(&client.topic.stream, partition as i32, timeout)
        })?;
        Ok((first.max(0) as u64, end.max(0) as u64))
    }

    /// Starts reading a partition at this offset, or at the first available one.
    pub(super) fn begin(&self, partition: u32, offset: Option<u64>) -> Result<(), RequestError> {
        let offset = offset.map(i64::try_from).transpose();
        let offset = offset.map_err(|_| transient("the offset is larger than any that Kafka has"))?;
        let mut list = TopicPartitionList::new();
        let offset = offset.map_or(Offset::Beginning, Offset::Offset);
        list.add_partition_offset(&self.topic.stream, partition as i32, offset)
            .and_then(|()| self.consumer.assign(&list))
            .map_err(|error| self.request_error(&error))
    }

    /// Returns the next message, waiting at most `timeout`.
    pub(super) fn poll(&self, timeout: Duration) -> Result<PollResult<'_>, RequestError> {
        match self.consumer.poll(timeout) {
            None => Ok(PollResult::Nothing),
            Some(Ok(message)) => Ok(PollResult::Message(message)),
            Some(Err(KafkaError::PartitionEOF(_))) => Ok(PollResult::End),
            Some(Err(error)) => match error.rdkafka_error_code() {
                Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => {
                    Ok(PollResult::OutOfRange)
                }
                _ => Err(self.request_error(&error)),
            },
        }
    }
}

/// Converts an error of the client. The text is that of the error, or of an earlier refusal that
/// explains it.
pub(super) fn request_error(notes: &ConnectionNotes, error: &KafkaError) -> RequestError {
    if let Some(refusal) = notes.refusal() {
        return refusal;
    }
    match (error, error.rdkafka_error_code()) {
        (KafkaError::ClientCreation(words), _) => notes.client_error(words),
        (_, Some(RDKafkaErrorCode::NotImplemented)) => notes.refused(
            "messages are packed in a way that this build can't unpack: cargo build --features kafka,zstd",
        ),
        (_, Some(code)) => RequestError::Transient(io::Error::other(code.to_string())),
        (_, None) => transient(error.to_string()),
    }
}
