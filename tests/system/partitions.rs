//! Streams of a server that the processes of a cluster read in turn: the exact sums are those of
//! one reader of the same rows, however these are spread over streams, workers and processes, and
//! also when processes are killed. Tests without an installed server are skipped with a message.

use std::path::{Path, PathBuf};
use std::process::Child;

use crate::brokers::{BrokerStream, create_stream, skipped};
use crate::harness::{
    Lab, Random, Stream, await_until, finish, free_hosts_of, releases, run, run_as_two, sums, wait,
};
use crate::servers::{Client, Server, installed};

const STREAM: Stream = Stream { rows: 2400, epochs: 24 };

/// Seconds after which the last epoch has ended, and no row is late.
const AFTER_ALL: &str = "2020-01-01T00:50:00Z";

/// Rows on a server, and their expected sums.
struct SpreadRows {
    lab: Lab,
    names: Vec<String>,
    rows: Vec<Vec<String>>,
    expected: Vec<Vec<i128>>,
    server: Server,
    client: Client,
}

impl SpreadRows {
    /// `None` if no server is installed.
    fn new() -> Option<Self> {
        let Some(program) = installed("redis-server") else {
            skipped("redis-server");
            return None;
        };
        let (lab, header, rows, expected) = STREAM.laid_out();
        let fields = |line: &String| line.trim_end().split(',').map(String::from).collect::<Vec<_>>();
        std::fs::create_dir(lab.path("server")).expect("a directory");
        let server = Server::redis(program, &lab.path("server"));
        let client = Client::new(server.port);
        let (names, rows) = (fields(&header), rows.iter().map(fields).collect());
        Some(SpreadRows { lab, names, rows, expected, server, client })
    }

    /// A pipeline over these streams of a database.
    fn pipeline(&self, database: u32, streams: &[String]) -> PathBuf {
        let path = format!("redis://127.0.0.1:{}/{database}", self.server.port);
        let source = |stream: &String| {
            format!(
                "[[sources]]\nname = '{stream}'\npath = '{path}'\nstream = '{stream}'\nformat = 'fields'\nlargest_jump = '2h'\n"
            )
        };
        let sources: String = streams.iter().map(source).collect();
        let text = STREAM.pipeline("x", "").replace("[source]\npath = 'x'\nformat = 'csv'\n", &sources);
        self.lab.write(&format!("{}-{database}.toml", streams.join("-")), text)
    }

    fn publish(&mut self, stream: &str, row: &[String]) {
        let fields = self.names.iter().zip(row).flat_map(|(name, value)| [name.as_str(), value.as_str()]);
        let answer = self.client.redis(&["XADD", stream, "*"].into_iter().chain(fields).collect::<Vec<_>>());
        assert!(answer.contains('-'), "{answer}");
    }

    /// Publishes a row that closes all epochs.
    fn end(&mut self, stream: &str) {
        let mut row = self.rows[0].clone();
        (row[0], row[1]) = (AFTER_ALL.into(), AFTER_ALL.into());
        self.publish(stream, &row);
    }
}

fn named(prefix: &str, number: usize) -> Vec<String> {
    (0..number).map(|stream| format!("{prefix}{stream}")).collect()
}

#[test]
fn sums_do_not_depend_on_streams_workers_and_processes() {
    let Some(mut case) = SpreadRows::new() else { return };
    let mut random = Random(5);
    for (number, workers, processes) in [(2, 1, 2), (3, 2, 1), (5, 2, 3)] {
        let streams = named(&format!("s{number}-"), number);
        let runs = random.below(2) == 0;
        for row in 0..case.rows.len() {
            // In runs of the stream, or row by row.
            let stream =
                if runs { row * number / case.rows.len() } else { random.below(number as u64) as usize };
            case.publish(&streams[stream], &case.rows[row].clone());
        }
        streams.iter().for_each(|stream| case.end(stream));
        let (pipeline, state) = (case.pipeline(0, &streams), case.lab.path(&streams[0]));
        let hosts = free_hosts_of(processes);
        let start = |process: usize| {
            let mut command = run(&pipeline, &state, workers);
            if processes > 1 {
                command.args(["--hosts", &hosts, "--process", &process.to_string()]);
            }
            command.spawn().expect("the process starts")
        };
        let children: Vec<Child> = (0..processes).map(start).collect();
        children.into_iter().for_each(|child| drop(wait(child).succeeded()));
        assert!(sums(&state) == case.expected, "{number} streams, {processes} processes of {workers}");
    }
}

/// The other process reads another database of the server, with other values. So the sums show who
/// has read them.
#[test]
fn every_other_stream_is_read_by_the_other_process() {
    let Some(mut case) = SpreadRows::new() else { return };
    let streams = named("s", 2);
    for (row, mut fields) in case.rows.clone().into_iter().enumerate() {
        case.publish(&streams[row % 2], &fields);
        case.client.redis(&["SELECT", "1"]);
        fields[3..].iter_mut().for_each(|value| *value = "0".into());
        case.publish(&streams[row % 2], &fields);
        case.client.redis(&["SELECT", "0"]);
    }
    for database in ["0", "1"] {
        case.client.redis(&["SELECT", database]);
        streams.iter().for_each(|stream| case.end(stream));
    }
    let (state, pipelines) = (case.lab.path("state"), [0, 1].map(|number| case.pipeline(number, &streams)));
    let hosts = free_hosts_of(2);
    let start = |process: usize| {
        let mut command = run(&pipelines[process], &state, 1);
        command.args(["--hosts", &hosts, "--process", &process.to_string()]);
        command.spawn().expect("the process starts")
    };
    [0, 1].map(start).into_iter().for_each(|child| drop(wait(child).succeeded()));
    let found = sums(&state);
    assert_eq!(found.len(), case.expected.len());
    for (epoch, (found, expected)) in found.iter().zip(&case.expected).enumerate() {
        assert_eq!(found[0], expected[0], "the counts of epoch {epoch} agree");
        assert!(found[1..] != expected[1..], "epoch {epoch} has rows of the other process");
    }
}

#[test]
fn killed_processes_count_every_entry_once() {
    let Some(mut case) = SpreadRows::new() else { return };
    let (streams, state) = (named("s", 2), case.lab.path("state"));
    let pipeline = case.pipeline(0, &streams);
    let start = |pipeline: &Path, state: &Path| {
        run_as_two(pipeline, state, 1).map(|mut process| process.spawn().expect("the process starts"))
    };
    let mut random = Random(9);
    let mut processes = start(&pipeline, &state);
    for (round, first) in (0..case.rows.len()).step_by(600).enumerate() {
        let seen = releases(&state);
        for row in first..first + 600 {
            case.publish(&streams[random.below(2) as usize], &case.rows[row].clone());
        }
        await_until("the cluster publishes", || releases(&state).len() > seen.len() + 1);
        processes[round % 2].kill().expect("a child can be killed");
        processes.into_iter().for_each(|process| drop(wait(process)));
        assert!(releases(&state).starts_with(&seen), "an epoch that had been published is another now");
        processes = start(&pipeline, &state);
    }
    streams.iter().for_each(|stream| case.end(stream));
    processes.into_iter().for_each(|process| drop(wait(process).succeeded()));
    assert!(sums(&state) == case.expected, "the sums are not those of a file");
}

/// Two subjects of one stream, each read by one of two processes.
#[test]
fn subjects_of_a_stream_are_read_by_two_processes() {
    let Some(program) = installed("nats-server") else { return skipped("nats-server") };
    let case = BrokerStream::new();
    let server = Server::nats(program, &case.lab.path("server"));
    create_stream(server.port);
    let mut client = Client::nats(server.port);
    let mut publish = |subject: usize, message: &str| {
        assert!(client.nats_ask(&format!("rows.{subject}"), "", message).contains("\"seq\""));
    };
    (0..case.rows.len()).for_each(|row| publish(row * row % 3 % 2, &case.json(row)));
    let last = case.json(0);
    let first = &case.rows[0];
    let last = last.replace(&first[1], "2020-01-01T02:00:00Z").replace(&first[0], "2020-01-01T02:00:00Z");
    [0, 1].iter().for_each(|&subject| publish(subject, &last));
    let text = std::fs::read_to_string(case.pipeline(&format!("nats://127.0.0.1:{}", server.port)));
    let text = text.expect("a pipeline");
    let range = text.find("[source]").expect("a source")..text.find("[[columns]]").expect("columns");
    let source = |number: usize| {
        let title = format!("[[sources]]\nname = 's{number}'\nsubject = 'rows.{number}'\n");
        text[range.clone()].replace("[source]\n", &title)
    };
    let pipeline = case.lab.write("two.toml", text.replace(&text[range.clone()], &(source(0) + &source(1))));
    let processes = run_as_two(&pipeline, &case.state(), 1);
    let processes = processes.map(|mut process| process.spawn().expect("the process starts"));
    processes.into_iter().for_each(|process| drop(wait(process).succeeded()));
    assert!(sums(&case.state()) == case.expected, "the sums are not those of a file");
}

/// A process that can't log in, and processes that end because of silence.
#[test]
fn a_process_that_is_refused_ends_the_run_and_silence_is_judged_by_the_first() {
    let case = BrokerStream::new();
    let Some(program) = installed("redis-server") else { return skipped("redis-server") };
    let server = Server::redis(program, &case.lab.path("server"));
    let path = format!("redis://127.0.0.1:{}", server.port);
    let text = std::fs::read_to_string(case.pipeline(&path)).expect("a pipeline");
    let begin = text.find("[source]").expect("a source");
    let end = text.find("[[columns]]").expect("columns");
    let source =
        |name: &str| text[begin..end].replace("[source]\n", &format!("[[sources]]\nname = '{name}'\n"));
    let both = source("a") + &source("b").replace("'rows'", "'others'");
    let pipeline = case.lab.write("both.toml", text.replace(&text[begin..end], &both));
    let others = both.replace("'others'\n", "'others'\npassword_file = 'missing'\n");
    let locked = case.lab.write("locked.toml", text.replace(&text[begin..end], &others));
    let hosts = free_hosts_of(2);
    let start = |file: &Path, process: &str, more: &[&str]| {
        let mut command = run(file, &case.state(), 1);
        command.args(["--hosts", &hosts, "--process", process]).args(more);
        command.spawn().expect("the process starts")
    };
    let [first, second] = [start(&pipeline, "0", &[]), start(&locked, "1", &[])];
    wait(first).failed(1, &["process 1: ", "password_file names a file"]);
    wait(second);
    let idle = ["--until-idle", "300ms"];
    let [first, second] = [start(&pipeline, "0", &idle), start(&locked, "1", &idle)];
    [first, second].into_iter().for_each(|child| drop(wait(child).succeeded()));
    drop(finish(run(&pipeline, &case.state(), 1).args(idle)).succeeded());
}
