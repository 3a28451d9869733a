//! The partitions of a topic, those found at the start and new ones.
//!
//! Each partition is read by a client of its own. So no partition holds up another if it is slow,
//! if its leader is away, or if it is not read because its clock is far ahead. Each resumes at its
//! own offset.
//!
//! **Finding partitions.** Every connection asks for the number of partitions and notes it before
//! it delivers a message. A thread asks again every [`EVERY`]. So a run that begins while the
//! servers are away reads no message before it knows all partitions.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::connection::TopicConsumer;
use super::reader::PartitionReader;
use super::topic::Topic;
use crate::connect::entries::{Activity, Entries, ServerStream, origin};
use crate::connect::error::{RequestError, lost, refusal};
use crate::connect::{MAX_PARTITIONS, Origin, Partitions};
use crate::control::Control;
use crate::format::form::RowLayout;
use crate::state::Position;

/// How often a topic is searched for new partitions.
const EVERY: Duration = Duration::from_secs(5);

/// The number of partitions found, shared by their readers.
#[derive(Clone, Debug, Default)]
pub(super) struct FoundPartitions(Arc<AtomicU32>);

impl FoundPartitions {
    /// Notes a number of partitions. Kafka never removes one from a topic.
    fn note(&self, number: u32) {
        self.0.fetch_max(number, Ordering::Release);
    }

    fn number(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}

#[derive(Clone, Debug)]
pub(super) struct TopicPartition {
    pub(super) topic: Topic,
    pub(super) number: u32,
    found: FoundPartitions,
    activity: Activity,
}

impl TopicPartition {
    pub(super) fn new(topic: &Topic, number: u32, found: &FoundPartitions) -> Self {
        let (topic, found) = (topic.clone(), found.clone());
        TopicPartition { topic, number, found, activity: Activity::default() }
    }

    /// Number of partitions that share the memory for messages that wait.
    pub(super) fn sharing(&self) -> u32 {
        if self.topic.partition.is_some() { 1 } else { self.found.number().max(1) }
    }

    /// Notes the number of partitions that a server has reported, among which this one must be.
    pub(super) fn found(&self, partitions: u32) -> Result<(), RequestError> {
        self.found.note(partitions);
        let name = || self.topic.name();
        match self.topic.partition {
            _ if self.number < partitions => self.check(),
            Some(number) => Err(refusal(
                name(),
                &format!("the topic has {partitions} partitions, numbered from 0: there is no {number}"),
            )),
            None => Err(lost(
                name(),
                format!("has {partitions} partitions, but had one numbered {}", self.number),
            )),
        }
    }

    /// Refuses a topic with too many partitions.
    pub(super) fn check(&self) -> Result<(), RequestError> {
        let partitions = self.found.number();
        if self.topic.partition.is_some() || partitions <= MAX_PARTITIONS {
            return Ok(());
        }
        let problem = format!(
            "the topic has {partitions} partitions, and a source reads at most {MAX_PARTITIONS}: read some of them, as partition = 0"
        );
        Err(refusal(self.topic.name(), &problem))
    }
}

impl ServerStream for TopicPartition {
    fn name(&self) -> String {
        match self.topic.partition {
            Some(_) => self.topic.name(),
            None => format!("{} {}", self.topic.name(), self.number),
        }
    }

    fn part(&self) -> u32 {
        if self.topic.partition.is_some() { 0 } else { self.number }
    }

    fn activity(&self) -> Activity {
        self.activity.clone()
    }

    fn connect(&self, control: &Control, position: Position) -> Result<Box<dyn Entries>, RequestError> {
        Ok(Box::new(PartitionReader::open(self, control, position)?))
    }
}

pub(super) struct TopicPartitions {
    first: TopicPartition,
    shape: RowLayout,
    control: Control,
}

impl TopicPartitions {
    /// Opens the partitions that are `recorded` or found now. Without an answer, others are found
    /// later.
    pub(super) fn open(topic: &Topic, shape: &RowLayout, control: &Control, recorded: u32) -> Self {
        let found = FoundPartitions::default();
        found.note(recorded.max(1));
        let search = PartitionSearch { topic: topic.clone(), client: None };
        let watched = (search, control.clone(), Arc::downgrade(&found.0));
        let first = TopicPartition::new(topic, 0, &found);
        let (searched, done) = crossbeam::channel::bounded::<()>(1);
        // Without the thread, connections still find partitions.
        let watching = std::thread::Builder::new().name("partitions".into()).spawn(move || {
            let (mut search, control, found) = watched;
            search.once(&control, &found);
            drop(searched);
            search.repeat(&control, &found);
        });
        if watching.is_ok() {
            let _ = done.recv();
        }
        TopicPartitions { first, shape: shape.clone(), control: control.clone() }
    }
}

impl Partitions for TopicPartitions {
    fn number(&self) -> u32 {
        self.first.found.number().clamp(1, MAX_PARTITIONS)
    }

    fn note(&self, number: u32) {
        self.first.found.note(number);
    }

    fn open(&self, partition: u32) -> Box<dyn Origin> {
        let partition = TopicPartition { number: partition, ..self.first.clone() };
        origin(partition, &self.shape, &self.control)
    }
}

/// Searches a topic for partitions.
struct PartitionSearch {
    topic: Topic,
    client: Option<TopicConsumer>,
}

impl PartitionSearch {
    /// Asks the servers once. The readers of partitions report servers that are away.
    fn once(&mut self, control: &Control, found: &Weak<AtomicU32>) {
        if self.client.is_none() {
            self.client = TopicConsumer::open(&self.topic, MAX_PARTITIONS, control).ok();
        }
        let number = self.client.as_ref().and_then(|client| client.partitions(control).ok());
        match number.zip(found.upgrade()) {
            Some((number, found)) => FoundPartitions(found).note(number),
            None => self.client = None,
        }
    }

    /// Asks again until the topic has no reader.
    fn repeat(mut self, control: &Control, found: &Weak<AtomicU32>) {
        while found.strong_count() > 0 && !control.is_stopped() {
            control.sleep(EVERY);
            self.once(control, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_must_be_there() {
        let topic = |partition| Topic {
            server: Default::default(),
            mechanism: Default::default(),
            stream: "s".into(),
            partition,
            idle: Duration::ZERO,
            group: None,
            registry: None,
        };
        let check = |chosen, number, partitions, expected: Result<(), &str>| {
            let partition = TopicPartition::new(&topic(chosen), number, &FoundPartitions::default());
            match (partition.found(partitions), expected) {
                (Ok(()), Ok(())) => {}
                (Err(RequestError::Refused { problem, .. }), Err(part)) => assert!(problem.contains(part)),
                (Err(RequestError::Lost { loss, .. }), Err(part)) => assert!(loss.contains(part)),
                (found, _) => panic!("{chosen:?} {number} of {partitions}: {found:?}"),
            }
        };
        check(None, 0, 1, Ok(()));
        check(Some(2), 2, 3, Ok(()));
        check(Some(2), 2, 5000, Ok(()));
        check(Some(3), 3, 3, Err("there is no 3"));
        check(None, 3, 3, Err("has 3 partitions, but had one numbered 3"));
        check(None, 3, 1025, Err("at most 1024"));
    }

    #[test]
    fn the_number_of_partitions_never_falls() {
        let found = FoundPartitions::default();
        [3, 5, 2].iter().for_each(|&number| found.note(number));
        assert_eq!(found.number(), 5);
    }
}
