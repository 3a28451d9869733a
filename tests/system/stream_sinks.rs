//! Tests releases in streams of real brokers and as server-sent events. After any kill or lost
//! connection, each line of `tail` is in the stream once, in order. No reader or broker delays a
//! run. Tests are skipped with a message if their broker is not installed.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use crate::harness::{
    self, Lab, Random, Stream, await_until, finish, releases, run, send, served, stop, tail, wait,
};
use crate::servers::{Client, Proxy, Server, free_port, installed};
use serde_json::Value;

const STREAM: Stream = Stream { rows: 4000, epochs: 40 };

/// A growing stream, and the sink of its releases.
pub(crate) struct SinkStream {
    pub(crate) lab: Lab,
    rows: Vec<String>,
    written: usize,
}

impl SinkStream {
    pub(crate) fn new() -> Self {
        let lab = Lab::new();
        for folder in ["in", "server"] {
            std::fs::create_dir(lab.path(folder)).expect("a directory");
        }
        let rows = STREAM.csv().lines().map(|line| format!("{line}\n")).collect();
        let mut case = SinkStream { lab, rows, written: 0 };
        case.grow(1);
        case
    }

    pub(crate) fn pipeline(&self, sink: &str) -> PathBuf {
        let view = "[[views]]\nname = 'so far'\nworkload = 'prefix'\n";
        let text = STREAM.pipeline("in/*.csv", &format!("{view}[[sinks]]\n{sink}\n"));
        self.lab.write("pipeline.toml", text.replacen("[source]", "[source]\nfollow = true", 1))
    }

    fn state(&self) -> PathBuf {
        self.lab.path("state")
    }

    pub(crate) fn start(&self, pipeline: &Path) -> Child {
        run(pipeline, &self.state(), 1).spawn().expect("the run starts")
    }

    /// Adds `rows` rows to the file.
    pub(crate) fn grow(&mut self, rows: usize) {
        let end = self.rows.len().min(self.written + rows);
        let path = self.lab.path("in/rows.csv");
        let mut file = File::options().append(true).create(true).open(path).expect("a file");
        file.write_all(self.rows[self.written..end].concat().as_bytes()).expect("a file can grow");
        self.written = end;
    }

    /// Adds `rows` rows to the file and waits for the epochs that follow from them.
    pub(crate) fn progress(&mut self, rows: usize) {
        let before = releases(&self.state()).len();
        self.grow(rows);
        await_until("the run goes on", || releases(&self.state()).len() > before);
    }

    /// Runs to the end.
    pub(crate) fn complete(&mut self, pipeline: &Path) {
        self.grow(self.rows.len());
        finish(run(pipeline, &self.state(), 1).args(["--until-idle", "1s"])).succeeded();
    }

    /// Returns the lines that every sink must hold.
    pub(crate) fn shown(&self) -> Vec<Value> {
        let shown = finish(&mut tail(&self.state(), &[])).succeeded().json();
        assert_eq!(shown.len(), 40 * 7);
        shown
    }

    /// Grows the stream, with a fault after each part, and compares the broker's lines.
    fn disturb(&mut self, scheme: &str, mut server: Server, lines: impl Fn(u16) -> Vec<Value>) {
        let proxy = Proxy::to(server.port);
        let pipeline =
            self.pipeline(&format!("path = '{scheme}://127.0.0.1:{}'\nstream = 'releases'", proxy.port));
        let mut random = Random(5);
        let mut run = self.start(&pipeline);
        self.grow(200);
        for round in 0..20 {
            self.progress(150);
            std::thread::sleep(Duration::from_millis(random.below(150)));
            match round % 5 {
                0 => proxy.cut(),
                1 => {
                    server.kill();
                    std::thread::sleep(Duration::from_millis(random.below(200)));
                    server.start();
                }
                2 => {
                    run.kill().expect("a child can be killed");
                    wait(run);
                    run = self.start(&pipeline);
                }
                3 => {
                    // A missing broker does not delay a run.
                    server.kill();
                    self.progress(200);
                    server.start();
                }
                _ => {
                    stop(&run);
                    wait(run).succeeded();
                    run = self.start(&pipeline);
                }
            }
        }
        run.kill().expect("a child can be killed");
        wait(run);
        self.complete(&pipeline);
        let (found, shown) = (lines(server.port), self.shown());
        assert_eq!(found.len(), shown.len());
        assert!(found == shown, "the stream differs from the output of tail");
        // Another history must not be written to the same stream.
        let other = self.lab.path("other state");
        finish(harness::run(&pipeline, &other, 1).args(["--until-idle", "1s"]))
            .failed(1, &["127.0.0.1", "is not of the history"]);
        assert!(lines(server.port) == shown, "another history was written to the stream");
    }
}

fn skipped(server: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {server} is not installed");
}

fn json(line: &str) -> Value {
    serde_json::from_str(line).expect("a JSON line")
}

/// Returns the lines in Redis, after a check of their ids.
fn in_redis(port: u16) -> Vec<Value> {
    let texts = Client::new(port).redis_texts(&["XRANGE", "releases", "-", "+"]);
    let entries: Vec<_> = texts.chunks_exact(3).map(|entry| (entry[0].clone(), json(&entry[2]))).collect();
    for (number, (id, line)) in entries.iter().enumerate() {
        assert_eq!(*id, format!("{}-{}", line["epoch"], number % 7));
    }
    entries.into_iter().map(|(_, line)| line).collect()
}

/// Returns the messages in JetStream.
fn in_nats(port: u16) -> Vec<Value> {
    let mut client = Client::nats(port);
    let messages = std::iter::successors(Some(1), |number| Some(number + 1));
    messages.map_while(|number| client.nats_message("releases", number)).map(|line| json(&line)).collect()
}

/// A stop does not wait for a server that accepts connections and never answers.
#[test]
fn a_stop_does_not_wait_for_a_silent_server() {
    let mut case = SinkStream::new();
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = silent.local_addr().expect("a bound port").port();
    let pipeline = case.pipeline(&format!("path = 'redis://127.0.0.1:{port}'\nstream = 'releases'"));
    let run = case.start(&pipeline);
    case.progress(400);
    let begun = Instant::now();
    stop(&run);
    wait(run).failed(1, &["stopped before the server answered"]);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

#[test]
fn redis_has_every_line_once() {
    let Some(program) = installed("redis-server") else { return skipped("redis-server") };
    let mut case = SinkStream::new();
    let server = Server::redis(program, &case.lab.path("server"));
    case.disturb("redis", server, in_redis);
}

#[test]
fn jetstream_has_every_line_once() {
    let Some(program) = installed("nats-server") else { return skipped("nats-server") };
    let mut case = SinkStream::new();
    let server = Server::nats(program, &case.lab.path("server"));
    case.disturb("nats", server, in_nats);
}

#[test]
fn lines_that_a_broker_lost_are_written_again_and_foreign_ones_are_left_alone() {
    let Some(program) = installed("redis-server") else { return skipped("redis-server") };
    let mut case = SinkStream::new();
    // No server listens on this port yet.
    let port = free_port();
    let pipeline = case.pipeline(&format!("path = 'redis://127.0.0.1:{port}'\nstream = 'releases'"));
    case.grow(2000);
    let early = finish(run(&pipeline, &case.state(), 1).args(["--until-idle", "1s"]));
    early.failed(1, &[&format!("redis://127.0.0.1:{port}")]);
    let before = releases(&case.state()).len();
    assert!(before >= 18, "the run went on without its broker");
    let server = Server::redis(program, &case.lab.path("server"));
    let pipeline = case.pipeline(&format!("path = 'redis://127.0.0.1:{}'\nstream = 'releases'", server.port));
    let live = case.start(&pipeline);
    let mut client = Client::new(server.port);
    await_until("the published epochs are written", || in_redis(server.port).len() >= 7 * before);
    client.redis(&["DEL", "releases"]);
    stop(&live);
    wait(live).succeeded();
    case.complete(&pipeline);
    assert!(in_redis(server.port) == case.shown());
    client.redis(&["DEL", "releases"]);
    client.redis(&["XADD", "releases", "*", "a", "1"]);
    finish(run(&pipeline, &case.state(), 1).args(["--until-idle", "1s"]))
        .failed(1, &["was not written by a sink"]);
    assert_eq!(client.redis(&["XLEN", "releases"]), ":1");
    let keeping = format!("path = 'redis://127.0.0.1:{}'\nstream = 'short'\nkeep = '5 epochs'", server.port);
    case.complete(&case.pipeline(&keeping));
    let left: usize = client.redis(&["XLEN", "short"])[1..].parse().expect("a number");
    assert!((5 * 7..40 * 7).contains(&left), "{left} lines are left");
}

/// A reader of events.
struct Reader(BufReader<TcpStream>);

impl Reader {
    /// Requests the events after the one with this number.
    fn request(address: &str, seen: u64) -> Self {
        let last = if seen > 0 { format!("Last-Event-ID: {seen}\r\n") } else { String::new() };
        let stream = send(address, &format!("GET /events HTTP/1.1\r\nHost: localhost\r\n{last}\r\n"));
        let mut reader = Reader(BufReader::new(stream));
        assert!(reader.line().is_some_and(|line| line.contains("200 OK")));
        while reader.line().is_some_and(|line| !line.is_empty()) {}
        reader
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.0.read_line(&mut line).unwrap_or(0);
        (read > 0).then(|| line.trim_end().into())
    }

    /// Returns the number and the lines of the next complete numbered event.
    fn next(&mut self) -> Option<(u64, Vec<Value>)> {
        let (mut number, mut lines) = (None, Vec::new());
        loop {
            let line = self.line()?;
            if let Some(id) = line.strip_prefix("id: ") {
                number = id.parse().ok();
            } else if let Some(data) = line.strip_prefix("data: ") {
                lines.push(data.to_owned());
            } else if let (true, Some(number)) = (line.is_empty(), number) {
                return Some((number, lines.iter().map(|line| json(line)).collect()));
            } else if line.is_empty() {
                lines.clear();
            }
        }
    }
}

#[test]
fn a_reader_of_events_that_comes_back_has_every_epoch_once() {
    let mut case = SinkStream::new();
    let pipeline = case.pipeline("path = 'http-listen://127.0.0.1:0'");
    let (mut found, mut seen) = (Vec::new(), 0);
    let mut take = |reader: &mut Reader, events: u64| {
        for _ in 0..events {
            let Some((number, lines)) = reader.next() else { break };
            assert_eq!((number, lines.len()), (seen + 1, 7));
            seen = number;
            found.extend(lines);
        }
        seen
    };
    let mut live = case.start(&pipeline);
    let (address, _more) = served(&mut live);
    let mut reader = Reader::request(&address, 0);
    // A reader that requests events and reads nothing does not delay other readers.
    let _stalled: Vec<_> = (0..10).map(|_| Reader::request(&address, 0)).collect();
    case.grow(1500);
    assert_eq!(take(&mut reader, 8), 8);
    let mut reader = Reader::request(&address, 8);
    assert_eq!(take(&mut reader, 4), 12);
    live.kill().expect("a child can be killed");
    wait(live);
    let _ = take(&mut reader, 40);
    let mut live = case.start(&pipeline);
    let (address, _more) = served(&mut live);
    let seen = take(&mut reader, 0);
    let mut reader = Reader::request(&address, seen);
    case.grow(1500);
    assert_eq!(take(&mut reader, 20 - seen), 20);
    stop(&live);
    wait(live).succeeded();
    // The last run delivers everything before it ends.
    case.grow(4000);
    let mut last = run(&pipeline, &case.state(), 1);
    let mut last = last.args(["--until-idle", "1s"]).spawn().expect("the run starts");
    let (address, _more) = served(&mut last);
    let seen = take(&mut reader, 40);
    let mut reader = Reader::request(&address, seen);
    assert_eq!(take(&mut reader, 40), 40);
    wait(last).succeeded();
    assert!(found == case.shown(), "the events differ from the output of tail");
}

#[test]
fn a_run_whose_address_is_taken_continues_and_listens_once_it_is_free() {
    let mut case = SinkStream::new();
    let mut first = case.start(&case.pipeline("path = 'http-listen://127.0.0.1:0'"));
    let (address, _more) = served(&mut first);
    let (pipeline, state) =
        (case.pipeline(&format!("path = 'http-listen://{address}'")), case.lab.path("second"));
    let mut second = run(&pipeline, &state, 1).spawn().expect("the run starts");
    let lines = BufReader::new(second.stderr.take().expect("a pipe")).lines();
    let mut lines = lines.map(|line| line.expect("a line"));
    let expected = format!("warning: can't listen at {address}: Address already in use");
    assert!(lines.any(|line| line.starts_with(&expected)), "no warning");
    case.grow(2000);
    await_until("the second run publishes", || releases(&state).len() >= 18);
    let mut serve = harness::hushflow(["serve"]);
    finish(serve.arg(&pipeline).arg("--state").arg(&state)).failed(1, &["can't listen at"]);
    stop(&first);
    wait(first).succeeded();
    let expected = format!("http://{address}/events serves the releases as events");
    assert_eq!(lines.find(|line| line.starts_with("http://")), Some(expected));
    assert_eq!(Reader::request(&address, 0).next().map(|(number, _)| number), Some(1));
    stop(&second);
    wait(second).succeeded();
}

#[test]
fn a_run_whose_address_stays_taken_publishes_everything() {
    let mut case = SinkStream::new();
    let occupied = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = occupied.local_addr().expect("an address");
    case.complete(&case.pipeline(&format!("path = 'http-listen://{address}'")));
    assert_eq!(case.shown().len(), 40 * 7);
}

#[test]
fn only_events_are_served() {
    let mut case = SinkStream::new();
    let pipeline =
        case.pipeline("path = 'http-listen://127.0.0.1:0'\nserved_as = ['run', 'Stats.example.org']");
    case.grow(2000);
    let mut live = case.start(&pipeline);
    let (address, _more) = served(&mut live);
    await_until("epochs are published", || releases(&case.state()).len() >= 18);
    let status_as = |host: &str, request: &str| {
        harness::answer(send(&address, &format!("GET {request} HTTP/1.1\r\nHost: {host}\r\n\r\n"))).0
    };
    let status = |request: &str| status_as("localhost", request);
    assert!(status("/").contains("404"));
    // A proxy passes on the names that its operator has listed, and no other.
    for (host, expected) in [("run:8080", "404"), ("stats.example.org", "404"), ("example.org", "421")] {
        let line = status_as(host, "/");
        assert!(line.contains(expected), "{host}: {line}");
    }
    assert!(status("/events?since=0").contains("400"));
    assert!(status("/events?since=x").contains("400"));
    let reader = send(&address, "GET /events?since=18 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    std::thread::sleep(Duration::from_millis(300));
    stop(&live);
    let (_, body) = harness::answer(reader);
    assert!(body.starts_with("id: 18\n") && body.contains("event: pause\n"), "{body}");
    wait(live).succeeded();
}
