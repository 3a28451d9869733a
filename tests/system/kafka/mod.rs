//! Tests Kafka with the test cluster of its client library. While a run reads or writes, the broker
//! fails and the run is killed. The exact sums must equal those of a file, and each release must
//! occur once. Needs the feature `kafka`.

pub(crate) mod cluster;
mod front;
mod registry;
mod secure;

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{
    Lab, Random, Stream, await_until, expected_sums, finish, releases, run, run_as_two, stop, sums, tail,
    wait,
};
use crate::stream_sinks as sinks;
use cluster::KafkaCluster;
use front::Front;
use registry::{SCHEMA_ID, SchemaRegistry};

const STREAM: Stream = Stream { rows: 6000, epochs: 40 };

/// The rows of a stream, and their expected sums.
struct KafkaStream {
    lab: Lab,
    rows: Vec<String>,
    expected: Vec<Vec<i128>>,
    cluster: KafkaCluster,
}

impl KafkaStream {
    fn new() -> Self {
        KafkaStream::on(KafkaCluster::new(&[("rows", 1), ("parts", 3)]))
    }

    fn on(cluster: KafkaCluster) -> Self {
        let lab = Lab::new();
        let text = STREAM.csv();
        lab.write("data.csv", &text);
        let expected = expected_sums(&lab.write("file.toml", STREAM.pipeline("data.csv", "")));
        let rows = text.lines().skip(1).map(String::from).collect();
        KafkaStream { lab, rows, expected, cluster }
    }

    fn pipeline(&self, topic: &str, more: &str) -> PathBuf {
        self.pipeline_at(&self.cluster.address(), topic, more)
    }

    fn pipeline_at(&self, address: &str, topic: &str, more: &str) -> PathBuf {
        let names = "header = ['event', 'arrival', 'key', 'a', 'b', 'c', 'd', 'e']";
        let source = format!("format = 'csv'\nstream = '{topic}'\n{names}\n{more}");
        let text = STREAM.pipeline(&format!("kafka://{address}"), "");
        self.lab.write("pipeline.toml", text.replace("format = 'csv'", &source))
    }

    fn state(&self) -> PathBuf {
        self.lab.path("state")
    }

    fn start(&self, pipeline: &Path) -> Child {
        run(pipeline, &self.state(), 2).spawn().expect("the run starts")
    }

    fn publish(&self, topic: (&str, i32), first: usize, number: usize) {
        let rows = self.rows.iter().skip(first).take(number);
        self.cluster.publish(topic, rows.map(|row| Some(row.as_bytes())));
    }

    /// Publishes all rows to each of the first partitions of a topic.
    fn spread_over(&self, partitions: i32, topic: &str) {
        (0..partitions).for_each(|partition| self.publish((topic, partition), 0, self.rows.len()));
    }

    /// Publishes rows to the partitions of a topic: the first gets half of them, the last a tenth.
    fn spread(&self, topic: &str, first: usize, number: usize) {
        for partition in 0..3 {
            let rows = self.rows.iter().enumerate().skip(first).take(number);
            let own = rows.filter(|(row, _)| partition_of(*row) == partition);
            self.cluster.publish((topic, partition), own.map(|(_, row)| Some(row.as_bytes())));
        }
    }

    /// Runs until all messages are read.
    #[track_caller]
    fn until_idle(&self, pipeline: &Path) {
        finish(run(pipeline, &self.state(), 2).args(["--until-idle", "1500ms"])).succeeded();
    }

    #[track_caller]
    fn refused(&self, pipeline: &Path, parts: &[&str]) {
        finish(run(pipeline, &self.state(), 1).args(["--until-idle", "10s"])).failed(1, parts);
    }
}

fn skipped(program: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {program} is not installed");
}

fn partition_of(row: usize) -> i32 {
    match Random(row as u64).below(10) {
        0..5 => 0,
        5..9 => 1,
        _ => 2,
    }
}

#[test]
fn all_partitions_are_read_once_when_brokers_and_runs_end() {
    let case = KafkaStream::new();
    let pipeline = case.pipeline("parts", "group = 'lag'");
    let mut random = Random(13);
    let mut live = case.start(&pipeline);
    for (round, first) in (0..case.rows.len()).step_by(500).enumerate() {
        let before = releases(&case.state()).len();
        case.spread("parts", first, 500);
        case.cluster.mark(("parts", round as u32 % 3), 1 + round % 3);
        std::thread::sleep(Duration::from_millis(random.below(300)));
        match round % 3 {
            0 => {
                case.cluster.down();
                std::thread::sleep(Duration::from_millis(random.below(300)));
                case.cluster.up();
            }
            1 => {
                live.kill().expect("a child can be killed");
                wait(live);
                live = case.start(&pipeline);
            }
            _ => {
                // A run that has just begun does not handle a signal yet.
                await_until("the run goes on", || releases(&case.state()).len() > before);
                stop(&live);
                wait(live).succeeded();
                live = case.start(&pipeline);
            }
        }
    }
    await_until("all epochs but the last are published", || releases(&case.state()).len() >= 38);
    live.kill().expect("a child can be killed");
    wait(live);
    case.until_idle(&pipeline);
    assert!(sums(&case.state()) == case.expected, "the sums are not those of a file");
    let offsets = case.cluster.offsets("lag", "parts", 3);
    let own = |partition| (0..case.rows.len()).filter(|&row| partition_of(row) == partition).count() as i64;
    // Each offset is just after the last message, up to a few transaction markers.
    let near = |(partition, offset): (i32, &Option<i64>)| {
        offset.is_some_and(|offset| (own(partition)..own(partition) + 16).contains(&offset))
    };
    assert!((0..).zip(&offsets).all(near), "{offsets:?}");
}

#[test]
fn two_processes_that_are_killed_read_all_partitions_once() {
    let case = KafkaStream::new();
    let pipeline = case.pipeline("parts", "group = 'lag'");
    let start = || run_as_two(&pipeline, &case.state(), 1).map(|mut run| run.spawn().expect("it starts"));
    let mut processes = start();
    for (round, first) in (0..case.rows.len()).step_by(2000).enumerate() {
        let seen = releases(&case.state());
        case.spread("parts", first, 2000);
        await_until("the cluster publishes", || releases(&case.state()).len() > seen.len() + 5);
        processes[1 - round % 2].kill().expect("a child can be killed");
        processes.into_iter().for_each(|process| drop(wait(process)));
        assert!(
            releases(&case.state()).starts_with(&seen),
            "an epoch that had been published is another now"
        );
        processes = start();
    }
    // A row that closes all epochs.
    let last = case.rows[0].splitn(3, ',').nth(2).expect("a key");
    let last = format!("2020-01-01T02:00:00Z,2020-01-01T02:00:00Z,{last}");
    (0..3).for_each(|partition| {
        case.cluster.publish(("parts", partition), [Some(last.as_bytes())].into_iter())
    });
    processes.into_iter().for_each(|process| drop(wait(process).succeeded()));
    assert!(sums(&case.state()) == case.expected, "the sums are not those of a file");
}

/// Runs that read all partitions of an independent server, and write to several, are killed.
#[test]
fn an_independent_server_is_read_and_written() {
    let Some(cluster) = KafkaCluster::independent(&[("parts", 3), ("releases", 3)]) else {
        return skipped("noida-db");
    };
    let case = KafkaStream::on(cluster);
    let address = case.cluster.address();
    let sink = format!("[[sinks]]\npath = 'kafka://{address}'\nstream = 'releases'\n");
    let text = std::fs::read_to_string(case.pipeline("parts", "group = 'lag'")).expect("a pipeline");
    let pipeline =
        case.lab.write("server.toml", text + "[[views]]\nname = 'v'\nworkload = 'prefix'\n" + &sink);
    let mut random = Random(29);
    for first in (0..case.rows.len()).step_by(1000) {
        let before = releases(&case.state()).len();
        let mut live = case.start(&pipeline);
        case.spread("parts", first, 1000);
        await_until("the run goes on", || releases(&case.state()).len() > before + 2);
        std::thread::sleep(Duration::from_millis(random.below(200)));
        live.kill().expect("a child can be killed");
        wait(live);
    }
    case.until_idle(&pipeline);
    assert!(sums(&case.state()) == case.expected, "the sums are not those of a file");
    let own = |partition| (0..case.rows.len()).filter(|&row| partition_of(row) == partition).count() as i64;
    let offsets = case.cluster.offsets("lag", "parts", 3);
    assert_eq!(offsets, [0, 1, 2].map(|partition| Some(own(partition))));
    let shown = finish(&mut tail(&case.state(), &["--workload", "prefix"])).succeeded().json();
    assert_eq!(lines(&case.cluster, "releases").len(), shown.len());
}

/// The independent server gets partitions. Without it, a proxy of the test cluster shows more.
#[test]
fn new_partitions_are_found_by_a_running_pipeline() {
    let independent = KafkaCluster::independent(&[("parts", 1)]);
    let is_independent = independent.is_some();
    let case = independent.map_or_else(KafkaStream::new, KafkaStream::on);
    let front = (!is_independent).then(|| Front::showing(case.cluster.address(), 1));
    let address = front.as_ref().map_or_else(|| case.cluster.address(), Front::address);
    let pipeline = case.pipeline_at(&address, "parts", "partition_idle = '1h'");
    // The second process reads a partition that is found during the run.
    let [live, other] =
        run_as_two(&pipeline, &case.state(), 1).map(|mut run| run.spawn().expect("it starts"));
    // Rows of the first epochs are in the only partition.
    case.publish(("parts", 0), 0, 1000);
    await_until("the run goes on", || releases(&case.state()).len() >= 3);
    match &front {
        Some(front) => front.show(3),
        None => case.cluster.grow("parts", 3),
    }
    std::thread::sleep(Duration::from_secs(9));
    case.spread("parts", 1000, 2000);
    await_until("the run goes on", || releases(&case.state()).len() >= 15);
    stop(&live);
    wait(live).succeeded();
    wait(other).succeeded();
    let live = case.start(&pipeline);
    case.spread("parts", 3000, case.rows.len());
    await_until("all epochs but the last are published", || releases(&case.state()).len() >= 38);
    stop(&live);
    wait(live).succeeded();
    case.until_idle(&pipeline);
    assert!(sums(&case.state()) == case.expected, "the sums are not those of a file");
}

#[test]
fn a_run_that_begins_without_servers_waits_for_all_partitions() {
    let case = KafkaStream::new();
    case.spread("parts", 0, case.rows.len());
    case.cluster.down();
    let pipeline = case.pipeline("parts", "");
    let mut run = run(&pipeline, &case.state(), 2);
    let live = run.args(["--until-idle", "1500ms"]).spawn().expect("the run starts");
    std::thread::sleep(Duration::from_secs(5));
    case.cluster.up();
    wait(live).succeeded();
    assert!(sums(&case.state()) == case.expected, "the sums are not those of a file");
}

/// Tests an empty partition, and one whose rows end early.
#[test]
fn idle_partitions_do_not_hold_epochs() {
    let case = KafkaStream::new();
    case.publish(("parts", 0), 0, case.rows.len());
    let live = case.start(&case.pipeline("parts", "partition_idle = '500ms'"));
    await_until("all epochs but the last are published", || releases(&case.state()).len() >= 38);
    stop(&live);
    wait(live).succeeded();
    // Later rows of the idle partitions are late, and counted as late.
    case.publish(("parts", 1), 0, 100);
    let mut run = run(&case.pipeline("parts", "partition_idle = '500ms'"), &case.state(), 1);
    let ended = finish(run.args(["--until-idle", "1500ms", "--counters"])).succeeded();
    assert!(ended.err.contains("late"), "{}", ended.err);
}

#[test]
fn a_partition_that_is_gone_is_refused() {
    let mut case = KafkaStream::new();
    case.spread("parts", 0, 1000);
    let pipeline = case.pipeline("parts", "");
    case.until_idle(&pipeline);
    let before = releases(&case.state()).len();
    case.cluster = KafkaCluster::new(&[("parts", 2)]);
    case.spread_over(2, "parts");
    case.refused(&case.pipeline("parts", ""), &["has 2 partitions, but had one numbered 2"]);
    assert_eq!(releases(&case.state()).len(), before);
}

#[test]
fn one_partition_is_chosen() {
    let case = KafkaStream::new();
    case.refused(&case.pipeline("parts", "partition = 7"), &["there is no 7"]);
    case.publish(("parts", 0), 0, 10);
    case.publish(("parts", 1), 0, case.rows.len());
    case.until_idle(&case.pipeline("parts", "partition = 1"));
    assert!(sums(&case.state()) == case.expected, "the sums are not those of a file");
    case.refused(
        &case.pipeline("parts", "partition = 0"),
        &["the last run read another stream, or another partition"],
    );
}

const SCHEMA: &str = r#"{"type": "record", "name": "Row", "fields": [
    {"name": "event", "type": "string"}, {"name": "arrival", "type": "string"},
    {"name": "key", "type": ["null", "string"]},
    {"name": "a", "type": "double"}, {"name": "b", "type": "double"}, {"name": "c", "type": "double"},
    {"name": "d", "type": "double"}, {"name": "e", "type": "double"}]}"#;

/// The bytes before a message with a schema.
fn framed(number: u32, content: &[u8]) -> Vec<u8> {
    [&[0], &number.to_be_bytes()[..], content].concat()
}

/// Encodes a row of CSV.
fn avro(row: &str) -> Vec<u8> {
    let fields: Vec<&str> = row.split(',').collect();
    // A short length is twice itself.
    let text = |text: &str| [&[2 * text.len() as u8], text.as_bytes()].concat();
    let mut bytes = [text(fields[0]), text(fields[1]), vec![2], text(fields[2])].concat();
    for number in &fields[3..] {
        bytes.extend(number.parse::<f64>().expect("a number").to_le_bytes());
    }
    bytes
}

#[test]
fn records_in_avro_are_read_by_their_schemas() {
    let case = KafkaStream::new();
    let registry = SchemaRegistry::serve(SCHEMA, Some("Authorization: Basic dTpw"));
    registry.set_unavailable(true);
    let messages: Vec<Vec<u8>> = case.rows.iter().map(|row| framed(SCHEMA_ID, &avro(row))).collect();
    // Messages that are cut, have an unknown or no schema, or are not Avro.
    let whole = &messages[0];
    let junk = [&whole[..30], &framed(9, &whole[5..]), &whole[5..], b"secret"];
    for partition in 0..3 {
        let own = messages.iter().enumerate().filter(|(row, _)| partition_of(*row) == partition);
        let own = own.map(|(_, message)| message.as_slice()).chain(junk);
        case.cluster.publish(("parts", partition), own.map(Some));
    }
    let user = "registry_user = 'u'\nregistry_password_env = 'REGISTRY_PASSWORD'";
    let more = format!("registry = '{}'\n{user}", registry.url());
    let text = std::fs::read_to_string(case.pipeline("parts", &more)).expect("a pipeline");
    let text = text.replace("format = 'csv'", "format = 'avro'");
    let pipeline = text.lines().filter(|line| !line.starts_with("header")).collect::<Vec<_>>().join("\n");
    let pipeline = case.lab.write("avro.toml", pipeline);
    let command = |password| {
        let mut command = run(&pipeline, &case.state(), 2);
        command.args(["--until-idle", "1500ms", "--counters"]).env("REGISTRY_PASSWORD", password);
        command
    };
    let live = command("p").spawn().expect("the run starts");
    std::thread::sleep(Duration::from_secs(3));
    assert!(releases(&case.state()).is_empty());
    stop(&live);
    wait(live).failed(5, &["nothing was read", "the schema registry answers with status 503"]);
    registry.set_unavailable(false);
    finish(&mut command("secret")).failed(1, &["the schema registry refuses the user or the password"]);
    let live = command("p").spawn().expect("the run starts");
    let ended = wait(live).succeeded();
    assert!(!ended.err.contains("secret"), "{}", ended.err);
    assert!(ended.err.contains("6,012  rows read"), "{}", ended.err);
    assert!(sums(&case.state()) == case.expected, "the sums are not those of a file");
    // Each connection fetches a schema once.
    assert!(registry.requests() < 100, "{}", registry.requests());
}

#[test]
fn json_may_have_the_number_of_its_schema() {
    let case = KafkaStream::new();
    let names = ["event", "arrival", "key", "a", "b", "c", "d", "e"];
    let json = |row: &String| -> Value { names.into_iter().zip(row.split(',')).collect() };
    let messages: Vec<_> = case.rows.iter().map(|row| framed(4, json(row).to_string().as_bytes())).collect();
    case.cluster.publish(("rows", 0), messages.iter().map(|message| Some(message.as_slice())));
    let text = std::fs::read_to_string(case.pipeline("rows", "registry = 'http://127.0.0.1:1'"));
    let text = text.expect("a pipeline").replace("format = 'csv'", "format = 'ndjson'");
    let pipeline = text.lines().filter(|line| !line.starts_with("header")).collect::<Vec<_>>().join("\n");
    case.until_idle(&case.lab.write("json.toml", pipeline));
    assert!(sums(&case.state()) == case.expected, "the sums are not those of a file");
}

#[test]
fn a_partition_that_lost_messages_is_refused() {
    let mut case = KafkaStream::new();
    case.publish(("rows", 0), 0, 1000);
    let pipeline = case.pipeline("rows", "");
    case.until_idle(&pipeline);
    // This cluster removes everything before the last five megabytes.
    let large = vec![b'x'; 900_000];
    case.cluster.publish(("rows", 0), (0..8).map(|_| Some(large.as_slice())));
    case.refused(&pipeline, &["begins with offset 100", "in partition 0, after the message to be read next"]);
    case.cluster = KafkaCluster::new(&[("rows", 1)]);
    case.publish(("rows", 0), 0, 10);
    case.refused(
        &case.pipeline("rows", ""),
        &["ends before offset 10 in partition 0, and later messages were read"],
    );
}

#[test]
fn messages_that_cannot_be_used_are_counted() {
    let case = KafkaStream::new();
    // The topic may be created after the run starts.
    let pipeline = case.pipeline("later", "");
    let mut run = run(&pipeline, &case.state(), 2);
    let live = run.args(["--until-idle", "3s", "--counters"]).spawn().expect("the run starts");
    std::thread::sleep(Duration::from_millis(500));
    case.cluster.create("later", 1);
    case.publish(("later", 0), 0, 2000);
    let giant = "secret".repeat(200_000);
    let junk = ["", "secret", "a,\"secret", "\u{0}\u{1}", "secret\nsecret", &giant];
    case.cluster.publish(("later", 0), junk.iter().map(|junk| Some(junk.as_bytes())).chain([None]));
    let ended = wait(live).succeeded();
    assert!(!ended.err.contains("secret"), "{}", ended.err);
    assert!(ended.err.contains("2,007  rows read"), "{}", ended.err);
}

/// Returns the lines in a topic in the order of their ids. The lines of a key are in order in one
/// partition, the one that Kafka's clients would choose.
fn lines(cluster: &KafkaCluster, topic: &str) -> Vec<Value> {
    let mut found = Vec::new();
    let mut partitions = HashMap::new();
    for message in cluster.messages(topic) {
        let line: Value = serde_json::from_slice(&message.payload).expect("a JSON line");
        let key = String::from_utf8(message.key).expect("a key");
        assert_eq!(line["key"], key.as_str());
        let (number, own) = partitions.entry(key).or_insert((0_usize, message.partition));
        assert_eq!(*own, message.partition);
        let id = String::from_utf8(message.id).expect("an id");
        let (epoch, at) = id.split_once('-').expect("two numbers");
        assert_eq!(line["epoch"].to_string(), epoch);
        let id: (u64, u64) = (epoch.parse().expect("a number"), at.parse().expect("a number"));
        *number += 1;
        found.push((id, line));
    }
    assert!(found.is_sorted_by_key(|(id, _)| id.0) || partitions.len() > 1);
    found.sort_by_key(|&(id, _)| id);
    found.into_iter().map(|(_, line)| line).collect()
}

#[test]
fn a_topic_of_several_partitions_has_every_line_once() {
    let cluster = KafkaCluster::new(&[("releases", 3)]);
    let mut case = sinks::SinkStream::new();
    let pipeline = case.pipeline(&format!("path = 'kafka://{}'\nstream = 'releases'", cluster.address()));
    let mut random = Random(5);
    let mut live = case.start(&pipeline);
    case.grow(200);
    for round in 0..6 {
        case.progress(300);
        std::thread::sleep(Duration::from_millis(random.below(200)));
        match round % 3 {
            0 => {
                live.kill().expect("a child can be killed");
                wait(live);
                // A real server writes such markers after a transaction.
                cluster.mark(("releases", round as u32 % 3), 1 + 3 * round);
                live = case.start(&pipeline);
            }
            1 => {
                // A missing broker does not delay a run.
                cluster.down();
                case.progress(200);
                cluster.up();
            }
            _ => {
                stop(&live);
                wait(live).succeeded();
                live = case.start(&pipeline);
            }
        }
    }
    live.kill().expect("a child can be killed");
    wait(live);
    case.complete(&pipeline);
    let (found, shown) = (lines(&cluster, "releases"), case.shown());
    assert_eq!(found.len(), shown.len());
    assert!(found == shown, "the topic is not what tail shows");
    // Another history must not continue in the same topic.
    finish(run(&pipeline, &case.lab.path("other state"), 1).args(["--until-idle", "1s"]))
        .failed(1, &["kafka://127.0.0.1", "is not of the history"]);
    assert!(lines(&cluster, "releases") == shown, "another history has come into the topic");
}

#[test]
fn topics_that_are_not_for_a_sink_are_left_alone() {
    let cluster = KafkaCluster::new(&[("used", 2)]);
    cluster.publish(("used", 0), [Some(b"not a release".as_slice())].into_iter());
    let mut case = sinks::SinkStream::new();
    case.grow(1000);
    let pipeline = case.pipeline(&format!("path = 'kafka://{}'\nstream = 'used'", cluster.address()));
    finish(run(&pipeline, &case.lab.path("state"), 1).args(["--until-idle", "1s"]))
        .failed(1, &["was not written by a sink"]);
    assert_eq!(cluster.messages("used").len(), 1);
}
