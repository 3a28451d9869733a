//! Reads a partition of a Kafka topic.
//!
//! The position is the offset after the last message, which our own log records with each committed
//! epoch. Kafka orders messages within a partition but not between partitions. The clock of the
//! epochs needs an order, so a source is one partition.

use std::io;
use std::time::Duration;

use rdkafka::message::Message;

use super::connection::{PartitionConsumer, PollResult};
use super::topic::Topic;
use crate::connect::entries::Entries;
use crate::connect::error::{RequestError, lost};
use crate::control::{Control, GLANCE};
use crate::format::Defect;
use crate::format::form::EntryParser;
use crate::format::row::{RECORD_LIMIT, Row};
use crate::state::Position;

/// A partition that is read.
pub(super) struct PartitionReader {
    reader: PartitionConsumer,
    /// Minimum offset of the next message.
    next: u64,
    /// The next message, if already polled.
    ahead: Option<Result<KafkaMessage, RequestError>>,
}

/// A message.
struct KafkaMessage {
    offset: u64,
    /// Its payload, unless it is missing or too long.
    text: Result<Vec<u8>, Defect>,
}

impl PartitionReader {
    pub(super) fn open(topic: &Topic, control: &Control, position: Position) -> Result<Self, RequestError> {
        let reader = PartitionConsumer::open(topic, control)?;
        let (first, end) = reader.ends(control)?;
        let next = if position == Position::START { first } else { position.offset };
        if end < next {
            let loss = format!("ends before offset {end}, but was read up to {}", next - 1);
            return Err(lost(topic.name(), loss));
        }
        if first > next {
            let loss = format!("begins with offset {first}, but {next} was to be read next");
            return Err(lost(topic.name(), loss));
        }
        reader.begin(next)?;
        Ok(PartitionReader { reader, next, ahead: None })
    }

    fn poll(&self, patience: Duration) -> Option<Result<KafkaMessage, RequestError>> {
        match self.reader.poll(patience) {
            Ok(PollResult::Message(message)) => Some(Ok(KafkaMessage {
                offset: u64::try_from(message.offset()).unwrap_or(0),
                text: match message.payload() {
                    Some(text) if text.len() <= RECORD_LIMIT => Ok(text.to_vec()),
                    Some(_) => Err(Defect::TooLong),
                    None => Err(Defect::Missing),
                },
            })),
            Ok(PollResult::End | PollResult::Nothing) => None,
            Err(trouble) => Some(Err(trouble)),
        }
    }
}

impl Entries for PartitionReader {
    fn next(&mut self, row: &mut Row, form: &mut EntryParser) -> Result<Option<Position>, RequestError> {
        let Some(entry) = self.ahead.take().or_else(|| self.poll(GLANCE)) else { return Ok(None) };
        let KafkaMessage { offset, text } = entry?;
        if offset < self.next {
            return Err(RequestError::Passing(io::Error::other("a message came again")));
        }
        match text {
            Ok(text) => form.read(&text, row),
            Err(defect) => form.refuse(defect, row),
        }
        self.next = offset + 1;
        self.ahead = self.poll(Duration::ZERO);
        Ok(Some(Position::new(0, self.next)))
    }

    fn is_at_hand(&self) -> bool {
        self.ahead.is_some()
    }
}
