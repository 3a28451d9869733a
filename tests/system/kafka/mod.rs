//! Kafka, with the test cluster of its client library. While a run reads or writes, the broker goes
//! away and the run is killed. The exact sums must equal those of a file, and each release occurs
//! once. Needs the feature `kafka`.

mod cluster;

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{
    Lab, Random, Stream, await_until, expected_sums, finish, releases, run, stop, sums, wait,
};
use crate::stream_sinks as sinks;
use cluster::KafkaCluster;

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
        let lab = Lab::new();
        let text = STREAM.csv();
        lab.write("data.csv", &text);
        let expected = expected_sums(&lab.write("file.toml", STREAM.pipeline("data.csv", "")));
        let rows = text.lines().skip(1).map(String::from).collect();
        KafkaStream { lab, rows, expected, cluster: KafkaCluster::new(&[("rows", 1), ("parts", 2)]) }
    }

    fn pipeline(&self, topic: &str, more: &str) -> PathBuf {
        let names = "header = ['event', 'arrival', 'key', 'a', 'b', 'c', 'd', 'e']";
        let source = format!("format = 'csv'\nstream = '{topic}'\n{names}\n{more}");
        let text = STREAM.pipeline(&format!("kafka://{}", self.cluster.address()), "");
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

    /// Runs until everything has been read.
    #[track_caller]
    fn until_idle(&self, pipeline: &Path) {
        finish(run(pipeline, &self.state(), 2).args(["--until-idle", "1500ms"])).succeeded();
    }

    #[track_caller]
    fn refused(&self, pipeline: &Path, parts: &[&str]) {
        finish(run(pipeline, &self.state(), 1).args(["--until-idle", "10s"])).failed(1, parts);
    }
}

#[test]
fn a_partition_is_read_once_when_brokers_and_runs_end() {
    let case = KafkaStream::new();
    let pipeline = case.pipeline("rows", "");
    let mut random = Random(13);
    let mut live = case.start(&pipeline);
    for (round, first) in (0..case.rows.len()).step_by(500).enumerate() {
        let before = releases(&case.state()).len();
        case.publish(("rows", 0), first, 500);
        case.cluster.mark("rows", 1 + round % 3);
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
}

#[test]
fn one_partition_is_chosen() {
    let case = KafkaStream::new();
    case.refused(&case.pipeline("parts", ""), &["kafka://", "2 partitions", "no order", "partition = 0"]);
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

#[test]
fn a_partition_that_lost_messages_is_refused() {
    let mut case = KafkaStream::new();
    case.publish(("rows", 0), 0, 1000);
    let pipeline = case.pipeline("rows", "");
    case.until_idle(&pipeline);
    // This cluster removes everything before the last five megabytes.
    let large = vec![b'x'; 900_000];
    case.cluster.publish(("rows", 0), (0..8).map(|_| Some(large.as_slice())));
    case.refused(&pipeline, &["begins with offset 100", "but 1000 was to be read next"]);
    case.cluster = KafkaCluster::new(&[("rows", 1)]);
    case.publish(("rows", 0), 0, 10);
    case.refused(&case.pipeline("rows", ""), &["ends before offset 10, but was read up to 999"]);
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

/// Returns the lines in a topic; their keys identify them.
fn lines(cluster: &KafkaCluster, topic: &str) -> Vec<Value> {
    let found = cluster.messages(topic);
    let lines = found.iter().enumerate().map(|(number, (key, line))| {
        let line: Value = serde_json::from_slice(line).expect("a JSON line");
        assert_eq!(String::from_utf8_lossy(key), format!("{}-{}", line["epoch"], number % 7));
        line
    });
    lines.collect()
}

#[test]
fn a_topic_has_every_line_once() {
    let cluster = KafkaCluster::new(&[("releases", 1)]);
    let mut case = sinks::KafkaStream::new();
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
                // As a real server writes after a transaction.
                cluster.mark("releases", 1 + 3 * round);
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
    let cluster = KafkaCluster::new(&[("used", 1), ("parts", 2)]);
    cluster.publish(("used", 0), [Some(b"not a release".as_slice())].into_iter());
    let mut case = sinks::KafkaStream::new();
    case.grow(1000);
    for (topic, part) in [("used", "was not written by a sink"), ("parts", "2 partitions")] {
        let pipeline = case.pipeline(&format!("path = 'kafka://{}'\nstream = '{topic}'", cluster.address()));
        finish(run(&pipeline, &case.lab.path(topic), 1).args(["--until-idle", "1s"])).failed(1, &[part]);
        assert_eq!(cluster.messages(topic).len(), usize::from(topic == "used"));
    }
}
