//! Writes to a Kafka topic: one message per line, with the line's key as the message's key, and
//! `epoch-line` in the header `id`.
//!
//! The key chooses the partition, by the hash that Kafka's own clients use. So the lines of a key
//! are in order, and in the same partition as messages with that key from other programs. Lines
//! without a key share one partition.
//!
//! Lines are written in transactions over all partitions, under one transactional id per topic.
//! Opening the sink takes the id over: the server aborts another writer's open transaction and
//! refuses its later writes. Only then does the sink look for the last committed message of each
//! partition. Ids rise within a partition, and a transaction ends before the next one begins. So
//! every line up to the highest id found is there, and the sink resumes after it. Readers of
//! committed messages therefore never see a line twice, even if a writer was killed or its messages
//! are still in flight.

use std::time::Duration;

use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use serde::Deserialize;

use super::connection::{PollResult, TIMEOUT, TopicConsumer, config, request_error};
use super::security::ConnectionNotes;
use super::topic::Topic;

use crate::connect::error::{RequestError, foreign};
use crate::connect::wire::{format_id, malformed_answer, parse_id};
use crate::connect::writer::{EntryId, EpochStamp, ServerWriter};
use crate::control::Control;

/// Maximum size in bytes of a message that the client accepts; the server has its own limit.
const LARGEST: &str = "67108864";

/// Header of a message that holds its id.
const ID: &str = "id";

/// Distance from the end of a partition at which the search for its last message begins: the
/// message and the marker of its transaction.
const BACK: u64 = 2;

pub(super) struct TopicWriter {
    topic: Topic,
    control: Control,
    producer: Option<BaseProducer<ConnectionNotes>>,
    notes: ConnectionNotes,
}

impl TopicWriter {
    pub(super) fn new(topic: &Topic, control: &Control) -> Self {
        TopicWriter {
            topic: topic.clone(),
            control: control.clone(),
            producer: None,
            notes: ConnectionNotes::new(topic, control),
        }
    }
}

impl ServerWriter for TopicWriter {
    fn open(&mut self) -> Result<(EntryId, Option<EpochStamp>), RequestError> {
        self.producer = None;
        self.notes = ConnectionNotes::new(&self.topic, &self.control);
        let (topic, notes) = (&self.topic, &self.notes);
        let refused = |error| request_error(notes, &error);
        let producer: BaseProducer<ConnectionNotes> = config(topic, &self.control)?
            .set("transactional.id", format!("hushflow-{}", topic.stream))
            .set("message.max.bytes", LARGEST)
            .set("partitioner", "murmur2")
            .create_with_context(notes.clone())
            .map_err(refused)?;
        producer.init_transactions(TIMEOUT).map_err(|error| {
            // Delivers the client library's message about the error.
            producer.poll(Duration::ZERO);
            refused(error)
        })?;
        let last = last(topic, &self.control)?;
        self.producer = Some(producer);
        Ok(last.map_or(((0, 0), None), |(id, mark)| (id, Some(mark))))
    }

    fn send(
        &mut self,
        lines: &[(EntryId, &str)],
        acknowledge: &mut dyn FnMut(EntryId),
    ) -> Result<(), RequestError> {
        let Some(producer) = &self.producer else { return Err(malformed_answer().into()) };
        let refused = |error| request_error(&self.notes, &error);
        producer.begin_transaction().map_err(refused)?;
        for &(id, line) in lines {
            let (id, key) = (format_id(id), key(line));
            let headers = OwnedHeaders::new().insert(Header { key: ID, value: Some(&id) });
            let record = BaseRecord::to(&self.topic.stream).payload(line).headers(headers);
            let record = key.iter().fold(record, |record, key| record.key(key.as_str()));
            producer.send(record).map_err(|(error, _)| refused(error))?;
            producer.poll(Duration::ZERO);
        }
        producer.commit_transaction(TIMEOUT).map_err(refused)?;
        lines.iter().for_each(|&(id, _)| acknowledge(id));
        Ok(())
    }
}

/// Returns the key of a line, if it has one.
fn key(line: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct KeyedLine {
        key: Option<String>,
    }
    serde_json::from_str::<KeyedLine>(line).ok()?.key
}

/// A line as found in a topic.
type WrittenLine = (EntryId, EpochStamp);

/// Returns the last line of all partitions.
fn last(topic: &Topic, control: &Control) -> Result<Option<WrittenLine>, RequestError> {
    let partitions = TopicConsumer::open(topic, 1, control)?.partitions(control)?;
    let mut last: Option<WrittenLine> = None;
    for partition in 0..partitions {
        let found = last_of(topic, partition, control)?;
        last = last.into_iter().chain(found).max_by_key(|&(id, _)| id);
    }
    Ok(last)
}

/// Finds the last line of a partition. Its end may hold transaction markers and aborted messages,
/// so the search starts further and further back.
fn last_of(topic: &Topic, partition: u32, control: &Control) -> Result<Option<WrittenLine>, RequestError> {
    let mut back = BACK;
    loop {
        let reader = TopicConsumer::open(topic, 1, control)?;
        let (first, end) = reader.ends(partition, control)?;
        let begin = end.saturating_sub(back).max(first);
        let line = if begin < end { last_from(topic, &reader, (partition, begin))? } else { None };
        if line.is_some() || begin == first {
            return Ok(line);
        }
        back = back.saturating_mul(8);
    }
}

/// Returns the last line of a partition from this offset on.
fn last_from(
    topic: &Topic,
    reader: &TopicConsumer,
    (partition, offset): (u32, u64),
) -> Result<Option<WrittenLine>, RequestError> {
    reader.begin(partition, Some(offset))?;
    let mut last = None;
    loop {
        match reader.poll(TIMEOUT)? {
            PollResult::Message(message) => {
                let headers = message.headers().into_iter().flat_map(Headers::iter);
                let id = headers.filter(|header| header.key == ID).find_map(|header| header.value);
                let line = read(id.unwrap_or_default(), message.payload().unwrap_or_default());
                last = Some(line.ok_or_else(|| foreign(topic.name()))?);
            }
            PollResult::End => return Ok(last),
            PollResult::Nothing | PollResult::OutOfRange => {
                return Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
            }
        }
    }
}

/// Returns the id of a message and the mark of its line, if a sink wrote it.
fn read(id: &[u8], line: &[u8]) -> Option<WrittenLine> {
    let (id, mark) = (parse_id(id).ok()?, EpochStamp::of(line)?);
    (id.0 == mark.epoch).then_some((id, mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_of_a_sink_are_read() {
        let line = br#"{"epoch":3,"generation":1,"chain":"0a"}"#;
        assert_eq!(read(b"3-7", line).map(|(id, mark)| (id, mark.epoch)), Some(((3, 7), 3)));
        assert!(key(r#"{"epoch":3,"key":"JFK \"x\""}"#).is_some_and(|key| key == "JFK \"x\""));
        assert!(key(r#"{"epoch":3}"#).is_none() && key("{").is_none());
        assert!(read(b"4-7", line).is_none() && read(b"", line).is_none() && read(b"3-7", b"{}").is_none());
    }
}
