//! A cluster of one broker in this process, with a feature of real brokers that it lacks:
//! transaction markers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};
use rdkafka::{Offset, TopicPartitionList};

const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct KafkaCluster {
    mock: MockCluster<'static, DefaultProducerContext>,
}

impl KafkaCluster {
    /// Makes a cluster with these topics and partition counts.
    pub(super) fn new(topics: &[(&str, i32)]) -> Self {
        let cluster = KafkaCluster { mock: MockCluster::new(1).expect("a cluster") };
        topics.iter().for_each(|(topic, partitions)| cluster.create(topic, *partitions));
        cluster
    }

    pub(super) fn create(&self, topic: &str, partitions: i32) {
        self.mock.create_topic(topic, partitions, 1).expect("a topic");
    }

    pub(super) fn address(&self) -> String {
        self.mock.bootstrap_servers()
    }

    pub(super) fn down(&self) {
        self.mock.broker_down(1).expect("a broker goes");
    }

    pub(super) fn up(&self) {
        self.mock.broker_up(1).expect("a broker comes");
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.address()).set("message.max.bytes", "4000000");
        config
    }

    /// Publishes messages in order, and waits until they have arrived.
    pub(super) fn publish<'a>(
        &self,
        (topic, partition): (&str, i32),
        messages: impl Iterator<Item = Option<&'a [u8]>>,
    ) {
        let producer: BaseProducer =
            self.config().set("enable.idempotence", "true").create().expect("a producer");
        for message in messages {
            let record = BaseRecord::<[u8], [u8]>::to(topic).partition(partition);
            let record = message.into_iter().fold(record, BaseRecord::payload);
            producer.send(record).map_err(|(error, _)| error).expect("room");
            producer.poll(Duration::ZERO);
        }
        producer.flush(PATIENCE).expect("the broker answers");
    }

    /// The keys and payloads of all messages in partition 0.
    pub(super) fn messages(&self, topic: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut config = self.config();
        let consumer: BaseConsumer =
            config.set("group.id", "test").set("enable.partition.eof", "true").create().expect("a consumer");
        let (first, end) = consumer.fetch_watermarks(topic, 0, PATIENCE).expect("the broker answers");
        if first == end {
            return Vec::new();
        }
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, 0, Offset::Offset(first)).expect("an offset");
        consumer.assign(&list).expect("an assignment");
        let mut found = Vec::new();
        loop {
            match consumer.poll(PATIENCE).expect("the broker answers") {
                Ok(message) => {
                    let part = |part: Option<&[u8]>| part.unwrap_or_default().to_vec();
                    found.push((part(message.key()), part(message.payload())));
                }
                Err(KafkaError::PartitionEOF(_)) => return found,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Appends `number` markers of committed transactions: they take offsets, and no consumer sees
    /// them.
    pub(super) fn mark(&self, topic: &str, number: usize) {
        let mut stream = TcpStream::connect(self.address()).expect("the broker listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        for _ in 0..number {
            stream.write_all(&sized(&produce(topic, &marker()))).expect("the broker listens");
            let mut length = [0; 4];
            stream.read_exact(&mut length).expect("the broker answers");
            let mut answer = vec![0; u32::from_be_bytes(length) as usize];
            stream.read_exact(&mut answer).expect("the broker answers");
            // After the number of the request, the topic and the partition.
            let error = &answer[4 + 4 + 2 + topic.len() + 4 + 4..][..2];
            assert_eq!(error, [0, 0], "the broker refuses a marker");
        }
    }
}

/// Prefixes the length.
fn sized(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat()
}

/// A request of kind 0 (produce), version 3, with records for partition 0.
fn produce(topic: &str, records: &[u8]) -> Vec<u8> {
    let head = [&[0, 0, 0, 3, 0, 0, 0, 1], &text("test")[..]].concat();
    let no_transaction = [0xff, 0xff];
    let (acknowledged_by_all, timeout) = ([0xff, 0xff], 5000_u32.to_be_bytes());
    let (one, partition) = (1_u32.to_be_bytes(), 0_u32.to_be_bytes());
    [
        &head[..],
        &no_transaction,
        &acknowledged_by_all,
        &timeout,
        &one,
        &text(topic),
        &one,
        &partition,
        &sized(records),
    ]
    .concat()
}

/// A batch of one control record for "committed" (KIP-98).
fn marker() -> Vec<u8> {
    // Lengths are signed and encoded as twice their value: a key of 4 bytes (version, 1 for a
    // commit) and a value of 6.
    let record = [&[0, 0, 0, 4 * 2][..], &[0, 0, 0, 1], &[6 * 2], &[0; 6], &[0]].concat();
    let (control_of_transaction, no_sequence) = (0x30_u16, u32::MAX);
    let checked = [
        &control_of_transaction.to_be_bytes()[..],
        &0_u32.to_be_bytes(),
        &[0; 16],
        &7_u64.to_be_bytes(),
        &[0; 2],
        &no_sequence.to_be_bytes(),
        &1_u32.to_be_bytes(),
        &[record.len() as u8 * 2],
        &record,
    ]
    .concat();
    let magic = 2;
    let rest = [&[0; 4][..], &[magic], &crc32c::crc32c(&checked).to_be_bytes(), &checked].concat();
    [&[0; 8][..], &sized(&rest)].concat()
}
