//! Offsets of a consumer group, so that Kafka's own tools show how far a topic was read.
//!
//! They are written after the commit of an epoch and never read: the positions in the private log
//! decide where a run resumes. These positions are private, because event times and keys decide
//! them. The written offsets depend on arrivals alone: each is the offset after the message that
//! closed the epoch.
//!
//! The group has no members. Servers that are away lose nothing: only the latest offsets are sent.
//! Sending delays a run only at its end, by two seconds at most.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};

use super::connection::config;
use super::security::ConnectionNotes;
use super::topic::Topic;
use crate::connect::error::RequestError;
use crate::connect::origin::CommitListener;
use crate::control::Control;
use crate::state::Position;

/// Shortest pause between two requests.
const PAUSE: Duration = Duration::from_millis(500);

/// How long the end of a run waits for the last offsets to be stored.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Sends offsets, on a thread of its own.
pub(super) struct GroupOffsets {
    latest: Arc<LatestOffsets>,
    thread: Option<JoinHandle<()>>,
    /// `partition` of the pipeline.
    partition: Option<u32>,
}

/// The offsets to send next.
#[derive(Default)]
struct LatestOffsets {
    waiting: Mutex<WaitingOffsets>,
    changed: Condvar,
}

#[derive(Default)]
struct WaitingOffsets {
    /// Partition and offset.
    offsets: Option<Vec<(i32, i64)>>,
    /// Whether no more will come.
    is_last: bool,
}

impl GroupOffsets {
    pub(super) fn start(topic: &Topic, group: &str, control: &Control) -> Self {
        let latest = Arc::<LatestOffsets>::default();
        let sender = OffsetSender {
            topic: topic.clone(),
            group: group.into(),
            control: control.clone(),
            latest: Arc::clone(&latest),
            consumer: None,
        };
        let thread = std::thread::Builder::new().name("group".into()).spawn(|| sender.run());
        if let Err(error) = &thread {
            control.notice(&format!("{}: no offsets of group {group:?} are stored: {error}", topic.name()));
        }
        GroupOffsets { latest, thread: thread.ok(), partition: topic.partition }
    }
}

impl CommitListener for GroupOffsets {
    fn committed(&mut self, positions: Vec<Position>) {
        let offset = |position: &Position| {
            let partition = i32::try_from(self.partition.unwrap_or(position.part)).ok()?;
            Some((partition, i64::try_from(position.offset).ok().filter(|&offset| offset > 0)?))
        };
        let offsets = positions.iter().filter_map(offset).collect();
        self.latest.lock().offsets = Some(offsets);
        self.latest.changed.notify_one();
    }
}

impl Drop for GroupOffsets {
    /// Waits a short time until the last offsets are stored.
    fn drop(&mut self) {
        self.latest.lock().is_last = true;
        self.latest.changed.notify_one();
        let (Some(thread), begun) = (self.thread.take(), Instant::now()) else { return };
        while !thread.is_finished() && begun.elapsed() < TIMEOUT {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl LatestOffsets {
    fn lock(&self) -> std::sync::MutexGuard<'_, WaitingOffsets> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for offsets; returns them, and whether they are the last.
    fn take(&self) -> (Option<Vec<(i32, i64)>>, bool) {
        let mut waiting = self.lock();
        while waiting.offsets.is_none() && !waiting.is_last {
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        (waiting.offsets.take(), waiting.is_last)
    }
}

/// The thread that sends offsets.
struct OffsetSender {
    topic: Topic,
    group: String,
    control: Control,
    latest: Arc<LatestOffsets>,
    consumer: Option<BaseConsumer<ConnectionNotes>>,
}

impl OffsetSender {
    fn run(mut self) {
        let mut has_failed = false;
        loop {
            let (offsets, is_last) = self.latest.take();
            if let Some(offsets) = offsets.filter(|offsets| !offsets.is_empty()) {
                let sent = self.send(&offsets);
                if let Err(error) = &sent {
                    self.consumer = None;
                    // Keep these offsets to try again, unless newer ones have come.
                    self.latest.lock().offsets.get_or_insert(offsets);
                    if !has_failed {
                        self.control.notice(&format!(
                            "{}: the offsets of group {:?} can't be stored: {error}; trying again",
                            self.topic.name(),
                            self.group
                        ));
                    }
                }
                has_failed = sent.is_err();
            }
            if is_last {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn send(&mut self, offsets: &[(i32, i64)]) -> Result<(), String> {
        let notes = ConnectionNotes::new(&self.topic, &self.control);
        let words = |error: KafkaError| match notes.refusal() {
            Some(RequestError::Insecure(problem)) => problem.to_string(),
            Some(RequestError::Refused { problem, .. }) => problem,
            _ => error.to_string(),
        };
        let consumer = match &self.consumer {
            Some(consumer) => consumer,
            None => {
                let config = config(&self.topic, &self.control);
                let mut config = config.map_err(|_| "the connection can't be secured".to_owned())?;
                config.set("group.id", &self.group).set("enable.auto.commit", "false");
                self.consumer.insert(config.create_with_context(notes.clone()).map_err(words)?)
            }
        };
        let mut list = TopicPartitionList::new();
        for &(partition, offset) in offsets {
            let added = list.add_partition_offset(&self.topic.stream, partition, Offset::Offset(offset));
            added.map_err(words)?;
        }
        consumer.commit(&list, CommitMode::Sync).map_err(words)
    }
}
