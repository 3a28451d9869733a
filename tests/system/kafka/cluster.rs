//! Two kinds of test servers: a cluster of one broker in this process, with the transaction markers
//! of real brokers added, and an independent server in a process of its own.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Headers, Message as _};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};
use rdkafka::{Offset, TopicPartitionList};

use crate::harness::{Lab, await_until};
use crate::servers::{free_port, installed};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Kinds of requests, and the versions in which they are made.
const PRODUCE: [u16; 2] = [0, 3];
const CREATE_TOPICS: [u16; 2] = [19, 2];
const CREATE_PARTITIONS: [u16; 2] = [37, 0];

/// Parts of a request: no list, a number of milliseconds, and whether a change is only checked.
const NOTHING: [u8; 4] = [0xff; 4];
const FIVE_SECONDS: [u8; 4] = 5000_u32.to_be_bytes();
const FOR_REAL: [u8; 1] = [0];

pub(super) struct Message {
    pub(super) partition: i32,
    /// Value of its header `id`.
    pub(super) id: Vec<u8>,
    pub(super) key: Vec<u8>,
    pub(super) payload: Vec<u8>,
}

pub(crate) struct KafkaCluster {
    address: String,
    server: BrokerProcess,
}

enum BrokerProcess {
    /// The test cluster of the client library, in this process.
    Mock(MockCluster<'static, DefaultProducerContext>),
    /// noida-db, an independent server, and its data.
    Process { child: Child, _data: Lab },
}

impl KafkaCluster {
    /// Makes a cluster with these topics and partition counts.
    pub(crate) fn new(topics: &[(&str, i32)]) -> Self {
        let mock = MockCluster::new(1).expect("a cluster");
        let (address, server) = (mock.bootstrap_servers(), BrokerProcess::Mock(mock));
        let cluster = KafkaCluster { address, server };
        topics.iter().for_each(|(topic, partitions)| cluster.create(topic, *partitions));
        cluster
    }

    /// Starts an independent server with these topics; `None` if it is not installed. It hides
    /// aborted transactions and refuses writers that another one displaces.
    pub(super) fn independent(topics: &[(&str, i32)]) -> Option<Self> {
        let (port, data) = (free_port(), Lab::new());
        let mut command = Command::new(installed("noida-db")?);
        command.args(["start", "--only", "kafka", "--kafka-port", &port.to_string(), "--data-dir"]);
        let command = command.arg(data.path("")).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("a server starts");
        let address = format!("127.0.0.1:{port}");
        await_until("the server listens", || TcpStream::connect(&address).is_ok());
        let cluster = KafkaCluster { address, server: BrokerProcess::Process { child, _data: data } };
        topics.iter().for_each(|(topic, partitions)| cluster.create(topic, *partitions));
        Some(cluster)
    }

    pub(super) fn create(&self, topic: &str, partitions: i32) {
        match &self.server {
            BrokerProcess::Mock(mock) => mock.create_topic(topic, partitions, 1).expect("a topic"),
            BrokerProcess::Process { .. } => {
                let (one_copy, no_list) = ([0, 1], [0; 4]);
                let settings = [&one_copy[..], &no_list, &no_list, &FIVE_SECONDS, &FOR_REAL].concat();
                self.change(CREATE_TOPICS, topic, partitions, &settings);
            }
        }
    }

    /// Adds partitions to a topic of an independent server, up to this number.
    pub(super) fn grow(&self, topic: &str, partitions: i32) {
        let settings = [&NOTHING[..], &FIVE_SECONDS, &FOR_REAL].concat();
        self.change(CREATE_PARTITIONS, topic, partitions, &settings);
    }

    fn change(&self, kind: [u16; 2], topic: &str, partitions: i32, settings: &[u8]) {
        let one = 1_u32.to_be_bytes();
        let answer = self.ask(kind, &[&one, &text(topic)[..], &partitions.to_be_bytes(), settings].concat());
        // The error follows a delay, the number of topics and the name of this topic.
        let error = &answer[4 + 4 + 2 + topic.len()..][..2];
        assert_eq!(error, [0, 0], "the server refuses a topic");
    }

    /// Sends a request, and returns the answer without its length and number.
    fn ask(&self, [kind, version]: [u16; 2], body: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.address()).expect("the broker listens");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        let number = 1_u32.to_be_bytes();
        let head = [&kind.to_be_bytes()[..], &version.to_be_bytes(), &number, &text("test")].concat();
        stream.write_all(&sized(&[&head, body].concat())).expect("the broker listens");
        let mut length = [0; 4];
        stream.read_exact(&mut length).expect("the broker answers");
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut answer).expect("the broker answers");
        answer.split_off(number.len())
    }

    pub(crate) fn address(&self) -> String {
        self.address.clone()
    }

    pub(super) fn down(&self) {
        self.mock().broker_down(1).expect("a broker goes");
    }

    pub(super) fn up(&self) {
        self.mock().broker_up(1).expect("a broker comes");
    }

    fn mock(&self) -> &MockCluster<'static, DefaultProducerContext> {
        match &self.server {
            BrokerProcess::Mock(mock) => mock,
            BrokerProcess::Process { .. } => panic!("the server has no such command"),
        }
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.address()).set("message.max.bytes", "4000000");
        config
    }

    /// Publishes messages in order, and waits until they have arrived.
    pub(crate) fn publish<'a>(
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
        producer.flush(TIMEOUT).expect("the broker answers");
    }

    fn consumer(&self, group: &str) -> BaseConsumer {
        let mut config = self.config();
        config.set("group.id", group).set("enable.partition.eof", "true").create().expect("a consumer")
    }

    /// The committed messages of a topic, partition by partition.
    pub(super) fn messages(&self, topic: &str) -> Vec<Message> {
        let metadata =
            self.consumer("test").fetch_metadata(Some(topic), TIMEOUT).expect("the broker answers");
        let partitions = metadata.topics()[0].partitions().len() as i32;
        (0..partitions).flat_map(|partition| self.messages_of(topic, partition)).collect()
    }

    fn messages_of(&self, topic: &str, partition: i32) -> Vec<Message> {
        let consumer = self.consumer("test");
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, partition, Offset::Beginning).expect("an offset");
        consumer.assign(&list).expect("an assignment");
        let mut found = Vec::new();
        loop {
            match consumer.poll(TIMEOUT).expect("the broker answers") {
                Ok(message) => {
                    let part = |part: Option<&[u8]>| part.unwrap_or_default().to_vec();
                    let id =
                        message.headers().and_then(|headers| headers.iter().find(|found| found.key == "id"));
                    let id = part(id.and_then(|header| header.value));
                    let (key, payload) = (part(message.key()), part(message.payload()));
                    found.push(Message { partition, id, key, payload });
                }
                Err(KafkaError::PartitionEOF(_)) => return found,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The offsets of a consumer group in the first partitions of a topic.
    pub(super) fn offsets(&self, group: &str, topic: &str, partitions: i32) -> Vec<Option<i64>> {
        let mut list = TopicPartitionList::new();
        list.add_partition_range(topic, 0, partitions - 1);
        let found = self.consumer(group).committed_offsets(list, TIMEOUT).expect("the broker answers");
        let offset = |partition| match found.find_partition(topic, partition).map(|found| found.offset()) {
            Some(Offset::Offset(offset)) => Some(offset),
            _ => None,
        };
        (0..partitions).map(offset).collect()
    }

    /// Appends `number` markers of committed transactions to a partition: they take offsets, and no
    /// consumer sees them.
    pub(super) fn mark(&self, (topic, partition): (&str, u32), number: usize) {
        for _ in 0..number {
            let answer = self.ask(PRODUCE, &produced(topic, partition, &marker()));
            // The error follows the topic and the partition, each with a count before it.
            let error = &answer[4 + 2 + topic.len() + 4 + 4..][..2];
            assert_eq!(error, [0, 0], "the broker refuses a marker");
        }
    }
}

impl Drop for KafkaCluster {
    fn drop(&mut self) {
        if let BrokerProcess::Process { child, .. } = &mut self.server {
            let _ = child.kill();
            let _ = child.wait();
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

/// A request to append records to a partition.
fn produced(topic: &str, partition: u32, records: &[u8]) -> Vec<u8> {
    let (no_transaction, acknowledged_by_all) = ([0xff, 0xff], [0xff, 0xff]);
    let (one, partition) = (1_u32.to_be_bytes(), partition.to_be_bytes());
    [
        &no_transaction[..],
        &acknowledged_by_all,
        &FIVE_SECONDS,
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
