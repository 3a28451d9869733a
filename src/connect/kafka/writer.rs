//! A topic of Kafka with one partition: a message for each line, with `epoch-line` as its key.
//!
//! Lines are written in transactions, under one name for each topic. Whoever opens the sink takes that name over: what another
//! writer has begun is taken back, it can write no more, and only then is it found out where to go on, behind the last
//! message that was committed. So no line can be there twice for a reader of what is committed, whoever is killed and whatever
//! is still on its way.

use std::time::Duration;

use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use super::connection::{PATIENCE, Polled, Reader, config, trouble};
use super::topic::Topic;

use crate::connect::error::{Trouble, foreign};
use crate::connect::wire::{garbled, parse_id, shown_id};
use crate::connect::writer::{Id, Mark, Writer};
use crate::control::Control;

/// The most bytes of a message that the client takes; the server has a limit of its own.
const LARGEST: &str = "67108864";

/// Offsets from the end at which a last message is looked for at first: it, and the marker of its transaction.
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

impl Writer for TopicWriter {
    fn open(&mut self) -> Result<(Id, Option<Mark>), Trouble> {
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

    fn send(&mut self, lines: &[(Id, &str)], taken: &mut dyn FnMut(Id)) -> Result<(), Trouble> {
        let Some(producer) = &self.producer else { return Err(garbled().into()) };
        let refused = |error| trouble(&self.topic, &error);
        producer.begin_transaction().map_err(refused)?;
        for &(id, line) in lines {
            let key = shown_id(id);
            let record = BaseRecord::to(&self.topic.stream).partition(0).key(&key).payload(line);
            producer.send(record).map_err(|(error, _)| refused(error))?;
            producer.poll(Duration::ZERO);
        }
        producer.commit_transaction(PATIENCE).map_err(refused)?;
        lines.iter().for_each(|&(id, _)| taken(id));
        Ok(())
    }
}

/// The key of a message, and its line.
type Found = (Vec<u8>, Vec<u8>);

/// The last message. At the end may be markers of transactions and what was taken back, so it is looked
/// for further and further back.
fn last(topic: &Topic, control: &Control) -> Result<Option<Found>, Trouble> {
    let mut back = BACK;
    loop {
        let reader = Reader::open(topic, control)?;
        let (first, end) = reader.ends(control)?;
        let begin = end.saturating_sub(back).max(first);
        let found = if begin < end { last_from(&reader, begin)? } else { None };
        if found.is_some() || begin == first {
            return Ok(found);
        }
        back = back.saturating_mul(8);
    }
}

/// The last message from this offset on.
fn last_from(reader: &Reader, begin: u64) -> Result<Option<Found>, Trouble> {
    reader.begin(begin)?;
    let mut last = None;
    loop {
        match reader.poll(PATIENCE)? {
            Polled::Message(message) => {
                let part = |part: Option<&[u8]>| part.unwrap_or_default().to_vec();
                last = Some((part(message.key()), part(message.payload())));
            }
            Polled::End => return Ok(last),
            Polled::Nothing => return Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }
}

/// The id of a message and what its line tells, if it is one of ours.
fn read(key: &[u8], line: &[u8]) -> Option<(Id, Mark)> {
    let (id, mark) = (parse_id(key).ok()?, Mark::of(line)?);
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
