//! Runs an in-memory Kafka cluster with one broker, fills its topic `flights` with the rows of a
//! CSV file, and prints what arrives in its topic `releases`. Uses librdkafka's mock cluster.
//!
//! ```sh
//! cargo run --release --features kafka --example kafka_cluster -- [FILE]
//! # then: run examples/kafka.toml
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use std::{env, fs, thread};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

const FLIGHTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/flights_jan2013.csv");

/// Address that clients contact first. The cluster then sends them the broker's port.
const ADDRESS: &str = "127.0.0.1:9092";

fn main() -> Result<(), Box<dyn Error>> {
    let text = fs::read_to_string(env::args().nth(1).unwrap_or_else(|| FLIGHTS.into()))?;
    let cluster = MockCluster::new(1)?;
    for topic in ["flights", "releases"] {
        cluster.create_topic(topic, 1, 1)?;
    }
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.bootstrap_servers());
    let rows = publish(&config, &text)?;
    let (listener, broker) = (TcpListener::bind(ADDRESS)?, cluster.bootstrap_servers());
    thread::spawn(move || listener.incoming().flatten().try_for_each(|client| forward(client, &broker)));
    writeln!(io::stderr(), "{rows} rows are in the topic flights at {ADDRESS}; Ctrl-C ends the cluster")?;
    show(&config)
}

/// Publishes all rows except the header and returns their number.
fn publish(config: &ClientConfig, text: &str) -> Result<usize, Box<dyn Error>> {
    let producer: BaseProducer = config.create()?;
    let mut rows = 0;
    for row in text.lines().skip(1) {
        let record = BaseRecord::<str, str>::to("flights").partition(0).payload(row);
        producer.send(record).map_err(|(error, _)| error)?;
        producer.poll(Duration::ZERO);
        rows += 1;
    }
    producer.flush(Duration::from_secs(60))?;
    Ok(rows)
}

/// Forwards bytes between a client and the broker.
fn forward(client: TcpStream, broker: &str) -> io::Result<()> {
    let server = TcpStream::connect(broker)?;
    for (mut from, mut to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
        thread::spawn(move || io::copy(&mut from, &mut to));
    }
    Ok(())
}

/// Prints releases as they arrive.
fn show(config: &ClientConfig) -> Result<(), Box<dyn Error>> {
    let consumer: BaseConsumer = config.clone().set("group.id", "show").create()?;
    let mut list = TopicPartitionList::new();
    list.add_partition_offset("releases", 0, Offset::Offset(0))?;
    consumer.assign(&list)?;
    for message in &consumer {
        let message = message?;
        writeln!(io::stdout(), "{}", String::from_utf8_lossy(message.payload().unwrap_or_default()))?;
    }
    Ok(())
}
