//! Reads a partition of a Kafka topic.
//!
//! The position is the offset after the last message, which our own log records with each committed
//! epoch. Kafka orders messages within a partition but not between partitions. The clock of the
//! epochs needs an order, so each partition has a clock of its own.

use std::io;
use std::time::Duration;

use rdkafka::message::Message;

use super::connection::{PollResult, TopicConsumer};
use super::partitions::TopicPartition;
use crate::connect::entries::Entries;
use crate::connect::error::{RequestError, lost, transient};
use crate::control::{Control, POLL_INTERVAL};
use crate::format::Defect;
use crate::format::avro::framed;
use crate::format::form::EntryParser;
use crate::format::row::{RECORD_LIMIT, Row};
use crate::state::Position;

/// A partition that is read.
pub(super) struct PartitionReader {
    partition: TopicPartition,
    consumer: TopicConsumer,
    control: Control,
    part: u32,
    /// Minimum offset of the next message; `None` before the first.
    next: Option<u64>,
    /// The next message, if already polled.
    ahead: Option<Result<KafkaMessage, RequestError>>,
}

struct KafkaMessage {
    offset: u64,
    /// Its payload, unless it is missing or too long.
    text: Result<Vec<u8>, Defect>,
}

impl PartitionReader {
    pub(super) fn open(
        partition: &TopicPartition,
        control: &Control,
        position: Position,
    ) -> Result<Self, RequestError> {
        let consumer = TopicConsumer::open(&partition.topic, partition.sharing(), control)?;
        partition.found(consumer.partitions(control)?)?;
        let next = (position.offset > 0).then_some(position.offset);
        consumer.begin(partition.number, next)?;
        let (partition, control, part) = (partition.clone(), control.clone(), position.part);
        Ok(PartitionReader { partition, consumer, control, part, next, ahead: None })
    }

    fn poll(&self, timeout: Duration) -> Option<Result<KafkaMessage, RequestError>> {
        match self.consumer.poll(timeout) {
            Ok(PollResult::Message(message)) => Some(Ok(KafkaMessage {
                offset: u64::try_from(message.offset()).unwrap_or(0),
                text: match message.payload() {
                    Some(text) if text.len() <= RECORD_LIMIT => Ok(text.to_vec()),
                    Some(_) => Err(Defect::TooLong),
                    None => Err(Defect::Missing),
                },
            })),
            Ok(PollResult::End | PollResult::Nothing) => None,
            Ok(PollResult::OutOfRange) => Some(Err(self.loss())),
            Err(error) => Some(Err(error)),
        }
    }

    /// Explains why the server does not have the offset to read next.
    fn loss(&self) -> RequestError {
        let (first, end) = match self.consumer.ends(self.partition.number, &self.control) {
            Ok(ends) => ends,
            Err(error) => return error,
        };
        let name = self.partition.topic.name();
        let of = format!("partition {}", self.partition.number);
        match self.next {
            Some(next) if end < next => {
                lost(name, format!("ends before offset {end} in {of}, and later messages were read"))
            }
            Some(next) if first > next => {
                lost(name, format!("begins with offset {first} in {of}, after the message to be read next"))
            }
            _ => transient("the server has no such offset"),
        }
    }
}

impl PartitionReader {
    /// Reads a message, once its schema is known. After an error the message is polled again.
    fn read(&self, text: &[u8], row: &mut Row, form: &mut EntryParser) -> Result<(), RequestError> {
        if let Some(registry) = &self.partition.topic.registry
            && let Some(number) = form.unknown_schema(text)
            && let Err(problem) = form.learn(number, &registry.schema(number, &self.control)?)
        {
            let name = self.partition.topic.name();
            self.control.notice(&format!("{name}: schema {number} can't be used: {problem}"));
        }
        // A JSON object may come without the number of its schema.
        let is_framed = self.partition.topic.registry.is_some() && !form.has_schemas();
        let framed = framed(text).filter(|_| is_framed);
        form.read(framed.map_or(text, |(_, content)| content), row);
        Ok(())
    }
}

impl Entries for PartitionReader {
    fn next(&mut self, row: &mut Row, form: &mut EntryParser) -> Result<Option<Position>, RequestError> {
        self.partition.check()?;
        let Some(entry) = self.ahead.take().or_else(|| self.poll(POLL_INTERVAL)) else { return Ok(None) };
        let KafkaMessage { offset, text } = entry?;
        if self.next.is_some_and(|next| offset < next) {
            return Err(RequestError::Transient(io::Error::other("a message came again")));
        }
        match text {
            Ok(text) => self.read(&text, row, form)?,
            Err(defect) => form.refuse(defect, row),
        }
        self.next = Some(offset + 1);
        self.ahead = self.poll(Duration::ZERO);
        Ok(Some(Position::new(self.part, offset + 1)))
    }

    fn has_buffered_row(&self) -> bool {
        self.ahead.is_some()
    }
}
