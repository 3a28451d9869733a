//! Writes to a Kafka topic with one partition: one message per line, with `epoch-line` as its key.
//!
//! Lines are written in transactions, under one transactional id per topic. Opening the sink takes
//! the id over: the server aborts another writer's open transaction and refuses its later writes.
//! Only then does the sink look for the last committed message, after which it resumes. So readers
//! of committed messages never see a line twice, even if a writer was killed or its messages are
//! still in flight.

use std::time::Duration;

use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use super::connection::{PATIENCE, PartitionConsumer, PollResult, config, trouble};
use super::topic::Topic;

use crate::connect::error::{RequestError, foreign};
use crate::connect::wire::{format_id, malformed_answer, parse_id};
use crate::connect::writer::{EntryId, EpochStamp, ServerWriter};
use crate::control::Control;

/// Maximum size in bytes of a message that the client accepts; the server has its own limit.
const LARGEST: &str = "67108864";

/// Distance from the end at which the search for the last message begins: the message and the
/// marker of its transaction.
const BACK: u64 = 2;

pub(super) struct TopicWriter {
    topic: Topic,
    control: Control,
    producer: Option<BaseProducer>,
}

impl TopicWriter {
    pub(super) fn new(topic: &Topic, control: &Control) -> Self {
        TopicWriter { topic: topic.clone(), control: control.clone(), producer: None }
    }
}

impl ServerWriter for TopicWriter {
    fn open(&mut self) -> Result<(EntryId, Option<EpochStamp>), RequestError> {
        self.producer = None;
        let topic = &self.topic;
        let refused = |error| trouble(topic, &error);
        let producer: BaseProducer = config(topic)
            .set("transactional.id", format!("hushflow-{}", topic.stream))
            .set("message.max.bytes", LARGEST)
            .create()
            .map_err(refused)?;
        producer.init_transactions(PATIENCE).map_err(refused)?;
        let last = last(topic, &self.control)?;
        self.producer = Some(producer);
        let Some((key, line)) = last else { return Ok(((0, 0), None)) };
        let (id, mark) = read(&key, &line).ok_or_else(|| foreign(self.topic.name()))?;
        Ok((id, Some(mark)))
    }

    fn send(
        &mut self,
        lines: &[(EntryId, &str)],
        acknowledge: &mut dyn FnMut(EntryId),
    ) -> Result<(), RequestError> {
        let Some(producer) = &self.producer else { return Err(malformed_answer().into()) };
        let refused = |error| trouble(&self.topic, &error);
        producer.begin_transaction().map_err(refused)?;
        for &(id, line) in lines {
            let key = format_id(id);
            let record = BaseRecord::to(&self.topic.stream).partition(0).key(&key).payload(line);
            producer.send(record).map_err(|(error, _)| refused(error))?;
            producer.poll(Duration::ZERO);
        }
        producer.commit_transaction(PATIENCE).map_err(refused)?;
        lines.iter().for_each(|&(id, _)| acknowledge(id));
        Ok(())
    }
}

/// Key and line of a message.
type KeyedMessage = (Vec<u8>, Vec<u8>);

/// Finds the last message. The end of the partition may hold transaction markers and aborted
/// messages, so the search starts further and further back.
fn last(topic: &Topic, control: &Control) -> Result<Option<KeyedMessage>, RequestError> {
    let mut back = BACK;
    loop {
        let reader = PartitionConsumer::open(topic, control)?;
        let (first, end) = reader.ends(control)?;
        let begin = end.saturating_sub(back).max(first);
        let message = if begin < end { last_from(&reader, begin)? } else { None };
        if message.is_some() || begin == first {
            return Ok(message);
        }
        back = back.saturating_mul(8);
    }
}

/// Returns the last message from this offset on.
fn last_from(reader: &PartitionConsumer, begin: u64) -> Result<Option<KeyedMessage>, RequestError> {
    reader.begin(begin)?;
    let mut last = None;
    loop {
        match reader.poll(PATIENCE)? {
            PollResult::Message(message) => {
                let part = |part: Option<&[u8]>| part.unwrap_or_default().to_vec();
                last = Some((part(message.key()), part(message.payload())));
            }
            PollResult::End => return Ok(last),
            PollResult::Nothing => return Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }
}

/// Returns the id of a message and the mark of its line, if a sink wrote it.
fn read(key: &[u8], line: &[u8]) -> Option<(EntryId, EpochStamp)> {
    let (id, mark) = (parse_id(key).ok()?, EpochStamp::of(line)?);
    (id.0 == mark.epoch).then_some((id, mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_of_a_sink_are_read() {
        let line = br#"{"epoch":3,"generation":1,"chain":"0a"}"#;
        assert_eq!(read(b"3-7", line).map(|(id, mark)| (id, mark.epoch)), Some(((3, 7), 3)));
        assert!(read(b"4-7", line).is_none() && read(b"", line).is_none() && read(b"3-7", b"{}").is_none());
    }
}
