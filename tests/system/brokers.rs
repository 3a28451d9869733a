//! Tests brokers with real servers. While a run reads, the server is killed, connections are cut,
//! messages are repeated, and the run is killed. The exact sums must equal those of a file with the
//! same rows. Tests without an installed server are skipped with a message.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use crate::harness::{self, Lab, Random, Stream, await_until, finish, releases, run, stop, sums, wait};
use crate::servers::{Client, Proxy, Server, installed};

const STREAM: Stream = Stream { rows: 6000, epochs: 40 };

pub(crate) struct BrokerStream {
    pub(crate) lab: Lab,
    names: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
    pub(crate) expected: Vec<Vec<i128>>,
    random: Random,
}

impl BrokerStream {
    pub(crate) fn new() -> Self {
        let (lab, header, rows, expected) = STREAM.laid_out();
        let fields = |line: &String| line.trim_end().split(',').map(String::from).collect::<Vec<_>>();
        let (names, rows) = (fields(&header), rows.iter().map(fields).collect());
        std::fs::create_dir(lab.path("server")).expect("a directory");
        BrokerStream { names, rows, expected, random: Random(11), lab }
    }

    pub(crate) fn pipeline(&self, path: &str) -> PathBuf {
        let format = if path.starts_with("redis") { "fields" } else { "ndjson" };
        let text = STREAM
            .pipeline(path, "")
            .replace("format = 'csv'", &format!("format = '{format}'\nstream = 'rows'"));
        self.lab.write("pipeline.toml", text)
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.lab.path("state")
    }

    pub(crate) fn start(&self, pipeline: &Path, arguments: &[&str]) -> Child {
        run(pipeline, &self.state(), 2).args(arguments).spawn().expect("the run starts")
    }

    pub(crate) fn json(&self, row: usize) -> String {
        let fields =
            self.names.iter().zip(&self.rows[row]).map(|(name, value)| format!("{name:?}:{value:?}"));
        format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
    }

    /// Publishes all rows in parts, with a fault after each of them.
    fn disturb(
        &mut self,
        path: &str,
        server: &mut Server,
        proxy: &Proxy,
        publish: impl Fn(&Self, u16, usize),
    ) {
        let pipeline = self.pipeline(path);
        let mut run = self.start(&pipeline, &[]);
        let mut seen = 0;
        for (round, row) in (0..self.rows.len()).step_by(300).enumerate() {
            for row in row..self.rows.len().min(row + 300) {
                publish(self, server.port, row);
            }
            match round % 5 {
                0 => proxy.cut(),
                1 => {
                    server.kill();
                    std::thread::sleep(Duration::from_millis(self.random.below(200)));
                    server.start();
                }
                2 => {
                    run.kill().expect("a child can be killed");
                    wait(run);
                    run = self.start(&pipeline, &[]);
                }
                3 => {
                    stop(&run);
                    let ended = wait(run);
                    // On a busy machine the signal may come before the server answers.
                    if !ended.err.contains("stopped before the server answered") {
                        ended.stopped();
                    }
                    run = self.start(&pipeline, &[]);
                }
                _ => std::thread::sleep(Duration::from_millis(300)),
            }
            let now = releases(&self.state()).len();
            assert!(now >= seen, "releases went back");
            seen = now;
        }
        await_until("all epochs but the last are published", || releases(&self.state()).len() >= 38);
        stop(&run);
        wait(run).succeeded();
        wait(self.start(&pipeline, &["--until-idle", "1500ms"])).succeeded();
        assert!(sums(&self.state()) == self.expected, "the sums are not those of a file");
    }
}

pub(crate) fn skipped(server: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "skipped: {server} is not installed");
}

/// Publishes a row to Redis, then again with the same id, like a sender that missed the answer.
pub(crate) fn to_redis(case: &BrokerStream, port: u16, client: &mut Option<Client>, row: usize) {
    let id = format!("{}-{}", 1 + row / 1000, row % 1000);
    let fields =
        case.names.iter().zip(&case.rows[row]).flat_map(|(name, value)| [name.as_str(), value.as_str()]);
    let parts: Vec<&str> = ["XADD", "rows", &id].into_iter().chain(fields).collect();
    if row.is_multiple_of(300) {
        *client = Some(Client::new(port));
        let ready = |client: &mut Client| !client.redis(&["PING"]).starts_with("-LOADING");
        await_until("Redis has read its file", || client.as_mut().is_some_and(ready));
    }
    let client = client.as_mut().expect("a client");
    let answer = client.redis(&parts);
    assert_eq!(answer, id);
    if row.is_multiple_of(7) {
        assert!(client.redis(&parts).contains("equal or smaller"), "Redis takes an id once");
    }
}

#[test]
fn every_redis_entry_counts_once_through_kills_cuts_and_repeats() {
    let Some(program) = installed("redis-server") else { return skipped("redis-server") };
    let mut case = BrokerStream::new();
    let mut server = Server::redis(program, &case.lab.path("server"));
    let proxy = Proxy::to(server.port);
    let client = std::cell::RefCell::new(None);
    case.disturb(&format!("redis://127.0.0.1:{}", proxy.port), &mut server, &proxy, |case, port, row| {
        to_redis(case, port, &mut client.borrow_mut(), row);
    });
}

#[test]
fn unusable_redis_entries_are_counted() {
    let Some(program) = installed("redis-server") else { return skipped("redis-server") };
    let case = BrokerStream::new();
    let server = Server::redis(program, &case.lab.path("server"));
    let pipeline = case.pipeline(&format!("redis://127.0.0.1:{}/0", server.port));
    let run = case.start(&pipeline, &["--until-idle", "1500ms", "--counters"]);
    let mut client = None;
    for row in 0..3000 {
        to_redis(&case, server.port, &mut client, row);
    }
    let other = client.as_mut().expect("a client");
    let giant = "secret".repeat(400_000);
    for (field, value) in
        [("a", "1"), ("event", "\u{1}\0secret"), ("a", giant.as_str()), (giant.as_str(), "x")]
    {
        other.redis(&["XADD", "rows", "3-*", field, value]);
    }
    other.redis(&["XADD", "rows", "3-*", "a", "1", "a", "2"]);
    // Ids continue after those of the unusable entries.
    other.redis(&["XTRIM", "rows", "MAXLEN", "5"]);
    await_until("the rows are read", || releases(&case.state()).len() >= 18);
    let ended = wait(run).succeeded();
    assert!(!ended.err.contains("secret"), "{}", ended.err);
    assert!(ended.err.contains("3,005  rows read"), "{}", ended.err);
    assert!(ended.err.contains("malformed"), "{}", ended.err);
}

#[test]
fn a_redis_stream_that_was_reset_is_refused() {
    let Some(program) = installed("redis-server") else { return skipped("redis-server") };
    let case = BrokerStream::new();
    let server = Server::redis(program, &case.lab.path("server"));
    let pipeline = case.pipeline(&format!("redis://127.0.0.1:{}", server.port));
    let mut client = None;
    for row in 0..1000 {
        to_redis(&case, server.port, &mut client, row);
    }
    wait(case.start(&pipeline, &["--until-idle", "1s"])).succeeded();
    let other = client.as_mut().expect("a client");
    other.redis(&["COPY", "rows", "others"]);
    let named = |from: &str, to: &str| {
        let text = std::fs::read_to_string(&pipeline).expect("the pipeline").replace(from, to);
        case.lab.write("other.toml", text)
    };
    let refused = ["the last run read another stream"];
    finish(&mut run(&named("'rows'", "'others'"), &case.state(), 1)).failed(1, &refused);
    let port = server.port.to_string();
    finish(&mut run(&named(&port, &format!("{port}/1")), &case.state(), 1)).failed(1, &refused);
    other.redis(&["DEL", "rows"]);
    finish(&mut run(&pipeline, &case.state(), 1)).failed(1, &["redis://127.0.0.1", "no longer exists"]);
    other.redis(&["XADD", "rows", "1-1", "a", "1"]);
    finish(&mut run(&pipeline, &case.state(), 1)).failed(1, &["ends with id 1-1, before the last entry"]);
    other.redis(&["DEL", "rows"]);
    other.redis(&["SET", "rows", "no stream"]);
    finish(&mut run(&pipeline, &case.state(), 1)).failed(1, &["WRONGTYPE"]);
    other.redis(&["CONFIG", "SET", "requirepass", "hidden"]);
    finish(&mut run(&pipeline, &case.state(), 1))
        .failed(1, &["NOAUTH Authentication required: add password_env or password_file"]);
    case.lab.write("password", "mistaken\n");
    let wrong = named("stream = 'rows'", "stream = 'rows'\npassword_file = 'password'");
    let ended = finish(&mut run(&wrong, &case.state(), 1));
    assert!(!ended.err.contains("mistaken"), "{}", ended.err);
    ended.failed(1, &["WRONGPASS", "see password_file"]);
}

pub(crate) fn create_stream(port: u16) {
    let mut client = Client::nats(port);
    let config = r#"{"name":"rows","subjects":["rows.*"],"storage":"file","duplicate_window":120000000000}"#;
    let answer = client.nats_ask("$JS.API.STREAM.CREATE.rows", "", config);
    assert!(!answer.contains("\"error\""), "{answer}");
}

/// Publishes a row to JetStream, then again with the same id, like a sender that missed the answer.
pub(crate) fn to_nats(case: &BrokerStream, port: u16, client: &mut Option<Client>, row: usize) {
    if row.is_multiple_of(300) {
        *client = Some(Client::nats(port));
    }
    let client = client.as_mut().expect("a client");
    let head = format!("Nats-Msg-Id: {row}\r\n");
    let mut publish = || client.nats_ask("rows.x", &head, &case.json(row));
    let answer = publish();
    assert!(answer.contains("\"seq\""), "{answer}");
    if row.is_multiple_of(7) {
        assert!(publish().contains("\"duplicate\""), "JetStream takes an id once");
    }
}

#[test]
fn every_jetstream_message_counts_once_through_kills_cuts_and_repeats() {
    let Some(program) = installed("nats-server") else { return skipped("nats-server") };
    let mut case = BrokerStream::new();
    let mut server = Server::nats(program, &case.lab.path("server"));
    create_stream(server.port);
    let proxy = Proxy::to(server.port);
    let client = std::cell::RefCell::new(None);
    case.disturb(&format!("nats://127.0.0.1:{}", proxy.port), &mut server, &proxy, |case, port, row| {
        to_nats(case, port, &mut client.borrow_mut(), row);
    });
}

#[test]
fn unusable_jetstream_messages_are_counted_and_a_reset_stream_is_refused() {
    let Some(program) = installed("nats-server") else { return skipped("nats-server") };
    let case = BrokerStream::new();
    let server = Server::nats(program, &case.lab.path("server"));
    let pipeline = case.pipeline(&format!("nats://127.0.0.1:{}", server.port));
    // The stream may be created after the run starts.
    let run = case.start(&pipeline, &["--until-idle", "3s", "--counters"]);
    std::thread::sleep(Duration::from_millis(300));
    create_stream(server.port);
    let mut client = None;
    for row in 0..2000 {
        to_nats(&case, server.port, &mut client, row);
    }
    let other = client.as_mut().expect("a client");
    for junk in ["", "secret", "{\"a\": \"secret", "\u{0}\u{1}", "[]", "{} {}"] {
        assert!(other.nats_ask("rows.x", "", junk).contains("\"seq\""));
    }
    let ended = wait(run).succeeded();
    assert!(!ended.err.contains("secret"), "{}", ended.err);
    assert!(ended.err.contains("2,006  rows read"), "{}", ended.err);
    assert!(ended.err.contains("trying again"), "{}", ended.err);
    let again = || harness::finish(&mut harness::run(&pipeline, &case.state(), 1));
    other.nats_ask("$JS.API.STREAM.DELETE.rows", "", "");
    again().failed(1, &["nats://127.0.0.1", "no longer exists"]);
    create_stream(server.port);
    again().failed(1, &["ends with message 0, before the last message"]);
}
