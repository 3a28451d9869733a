//! Tests sockets whose peers disconnect, repeat data, lie or send junk. Every row counts once or
//! not at all, and the sums equal those of a file with the same rows.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{self, Ended, Lab, Stream, await_until, finish, hushflow, run, stop, sums, wait};

const STREAM: Stream = Stream { rows: 2000, epochs: 20 };

/// A stream in lines, and the expected sums.
struct SocketStream {
    lab: Lab,
    header: String,
    rows: Vec<String>,
    expected: Vec<Vec<i128>>,
}

impl SocketStream {
    fn new() -> Self {
        let (lab, header, rows, expected) = STREAM.laid_out();
        SocketStream { lab, header, rows, expected }
    }

    fn rows(&self, range: std::ops::Range<usize>) -> String {
        self.rows[range].concat()
    }

    fn pipeline(&self, path: &str, more: &str) -> PathBuf {
        let text = STREAM.pipeline(path, "").replacen("[source]", &format!("[source]\n{more}"), 1);
        self.lab.write("pipeline.toml", text)
    }

    /// Starts a run that listens on a free port; returns the port.
    fn listen(&self, more: &str, arguments: &[&str]) -> (Child, String) {
        let port = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = port.local_addr().expect("a bound port").to_string();
        drop(port);
        let pipeline = self.pipeline(&format!("tcp-listen://{address}"), more);
        (self.start(&pipeline, arguments), address)
    }

    fn start(&self, pipeline: &Path, arguments: &[&str]) -> Child {
        let mut command = run(pipeline, &self.state(), 2);
        command.args(arguments).spawn().expect("the run starts")
    }

    fn state(&self) -> PathBuf {
        self.lab.path("state")
    }

    /// Checks that the run ends by itself with the sums of the file.
    fn check(&self, run: Child) -> Ended {
        let ended = wait(run).succeeded();
        assert!(sums(&self.state()) == self.expected, "the sums are not those of the file");
        ended
    }

    /// Stops a run that has read all rows. The next run closes the last epochs when it becomes
    /// idle.
    fn check_stopped(&self, run: Child) {
        await_until("all epochs but the last are published", || harness::releases(&self.state()).len() >= 18);
        stop(&run);
        wait(run).succeeded();
        let (run, _) = self.listen("", &UNTIL_IDLE);
        self.check(run);
    }
}

const UNTIL_IDLE: [&str; 3] = ["--until-idle", "700ms", "--counters"];

fn connect(address: &str) -> TcpStream {
    let mut found = None;
    await_until("the run listens", || {
        found = TcpStream::connect(address).ok();
        found.is_some()
    });
    let stream = found.expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    stream
}

fn numbers(stream: &TcpStream) -> impl Iterator<Item = u64> + use<> {
    let lines = BufReader::new(stream.try_clone().expect("a handle")).lines();
    lines.map_while(Result::ok).map_while(|line| line.parse().ok())
}

#[test]
fn connections_follow_each_other_and_half_records_are_dropped() {
    let case = SocketStream::new();
    let (run, address) = case.listen("", &UNTIL_IDLE);
    let half = &case.rows[700][..20];
    for (from, to, rest) in [(0, 700, half), (700, 1000, "\"never closed\n"), (1000, 2000, "")] {
        let mut peer = connect(&address);
        let text = case.header.clone() + &case.rows(from..to) + rest;
        peer.write_all(text.as_bytes()).expect("the run listens");
    }
    let ended = case.check(run);
    assert!(ended.err.contains("2  cut by a disconnect"), "{}", ended.err);
}

#[test]
fn a_peer_that_resumes_after_its_acknowledgement_neither_loses_nor_repeats_rows() {
    let case = SocketStream::new();
    let mut safe = 0;
    for round in 0..4 {
        let (mut run, address) = case.listen("acknowledge = true", &["--until-idle", "20s"]);
        let mut peer = connect(&address);
        let mut acknowledged = numbers(&peer);
        let first = acknowledged.next().expect("the number at the start") as usize;
        assert!(first >= safe, "{first} are left of {safe}");
        let text = case.header.clone() + &case.rows(first..2000.min(first + 600)) + "2020-01-01T0";
        peer.write_all(text.as_bytes()).expect("the run listens");
        safe = acknowledged
            .find(|&number| number >= 2000.min(first as u64 + 600))
            .expect("all are acknowledged") as usize;
        if round < 3 {
            run.kill().expect("a child can be killed");
            wait(run);
        } else {
            drop(peer);
            stop(&run);
            wait(run).succeeded();
        }
    }
    assert_eq!(safe, 2000);
    // Records in the journal count without a peer, and the end of the silence closes the last
    // epoch.
    let (run, _) = case.listen("", &UNTIL_IDLE);
    case.check(run);
}

#[test]
fn columns_may_come_in_another_order_on_each_connection() {
    let case = SocketStream::new();
    let (run, address) = case.listen("", &UNTIL_IDLE);
    let reversed = |line: &str| line.trim().rsplit(',').collect::<Vec<_>>().join(",") + "\r\n";
    for part in 0..4 {
        let lines = [case.header.clone(), case.rows(part * 500..part * 500 + 500)].concat();
        let lines = if part % 2 == 0 { lines } else { lines.lines().map(reversed).collect() };
        connect(&address).write_all(lines.as_bytes()).expect("the run listens");
    }
    case.check(run);
}

#[test]
fn columns_may_be_named_in_the_pipeline_and_lines_may_be_json() {
    let case = SocketStream::new();
    let names: Vec<String> = case.header.trim().split(',').map(|name| format!("{name:?}")).collect();
    let (run, address) = case.listen(&format!("header = [{}]", names.join(", ")), &UNTIL_IDLE);
    connect(&address).write_all(case.rows(0..900).as_bytes()).expect("the run listens");
    connect(&address).write_all(case.rows(900..2000).as_bytes()).expect("the run listens");
    case.check(run);

    let case = SocketStream::new();
    let path = case.lab.path("socket");
    let pipeline = case.pipeline(&format!("unix-listen://{}", path.display()), "");
    let text = std::fs::read_to_string(&pipeline)
        .expect("a pipeline")
        .replace("format = 'csv'", "format = 'ndjson'");
    case.lab.write("pipeline.toml", text);
    // A socket file left behind by a run that has died does not prevent a start.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
    let run = case.start(&pipeline, &UNTIL_IDLE);
    let object = |row: &String| {
        let fields =
            names.iter().zip(row.trim().split(',')).map(|(name, value)| format!("{name}: {value:?}"));
        format!("{{{}}}\n", fields.collect::<Vec<_>>().join(", "))
    };
    let lines: String = case.rows.iter().map(object).collect();
    let mut peer = None;
    await_until("the run listens", || {
        peer = UnixStream::connect(&path).ok();
        peer.is_some()
    });
    peer.expect("a connection").write_all((lines + "{\"a\": ").as_bytes()).expect("the run listens");
    case.check(run);
}

#[test]
fn a_peer_may_disconnect_and_return() {
    let case = SocketStream::new();
    let server = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = server.local_addr().expect("a bound port");
    let pipeline = case.pipeline(&format!("tcp://{address}"), "");
    let run = case.start(&pipeline, &UNTIL_IDLE);
    let serve = |server: &TcpListener, text: String| {
        let (mut peer, _) = server.accept().expect("the run connects");
        peer.write_all(text.as_bytes()).expect("the run listens");
        peer.shutdown(Shutdown::Write).expect("an end");
        let _ = peer.read(&mut [0]);
    };
    serve(&server, case.header.clone() + &case.rows(0..500) + "half a rec");
    drop(server);
    std::thread::sleep(Duration::from_millis(1500));
    let server = TcpListener::bind(address).expect("the port is free again");
    serve(&server, case.header.clone() + &case.rows(500..2000));
    let ended = case.check(run);
    assert!(ended.err.contains("trying again"), "a missing source is reported: {}", ended.err);
}

/// Junk does not stop the run, and does not appear in messages.
#[test]
fn junk_is_refused_or_counted() {
    let case = SocketStream::new();
    let (run, address) = case.listen("", &UNTIL_IDLE);
    let send = |bytes: &[u8]| {
        let mut peer = connect(&address);
        // A refused peer may notice it while writing.
        let _ = peer.write_all(bytes);
        let _ = peer.shutdown(Shutdown::Write);
        let mut answer = String::new();
        let _ = peer.read_to_string(&mut answer);
        answer
    };
    let header = case.header.as_bytes();
    let answer = send(b"secret,columns\n1,2\n");
    assert!(answer.is_empty() || answer.contains("none of the 2 columns"), "{answer}");
    let giant = [header, b"\"", &b"secret".repeat(400_000)].concat();
    let answer = send(&giant);
    assert!(answer.is_empty() || answer.contains("longer than"), "{answer}");
    send(&[header, case.rows(0..1000).as_bytes(), b"\xff\xfe\0\x01secret\n\0\0\0\n,,,,,,,\n"].concat());
    send(b"");
    send(b"\n\n\n");
    send(&b"\"".repeat(3000));
    send(&[header, case.rows(1000..2000).as_bytes()].concat());
    let ended = case.check(run);
    assert!(!ended.err.contains("secret"), "{}", ended.err);
    assert!(ended.err.contains("refused"), "{}", ended.err);
    finish(hushflow(["verify"]).arg(case.state())).succeeded();
}

#[test]
fn a_signal_ends_a_run_cleanly_and_the_next_run_resumes() {
    let case = SocketStream::new();
    for from in [0, 1000] {
        let (run, address) = case.listen("acknowledge = true", &[]);
        let mut peer = connect(&address);
        let mut acknowledged = numbers(&peer);
        assert_eq!(acknowledged.next(), Some(from as u64));
        let text = case.header.clone() + &case.rows(from..from + 1000);
        peer.write_all(text.as_bytes()).expect("the run listens");
        assert!(acknowledged.any(|number| number == from as u64 + 1000));
        stop(&run);
        let ended = wait(run).succeeded();
        assert!(ended.err.contains("Stopped by a signal"), "{}", ended.err);
        assert!(case.expected.starts_with(&sums(&case.state())), "no epoch is closed before its time");
    }
    let (run, _) = case.listen("", &UNTIL_IDLE);
    case.check(run);
}

#[test]
fn every_source_is_stopped_by_a_signal() {
    let case = SocketStream::new();
    for more in ["", "journal = true"] {
        let pipeline = case.pipeline("-", more);
        let state = case.lab.path(&format!("state {more}"));
        let mut run = run(&pipeline, &state, 1).stdin(Stdio::piped()).spawn().expect("the run starts");
        let mut input = run.stdin.take().expect("a pipe");
        input.write_all((case.header.clone() + &case.rows(0..1000)).as_bytes()).expect("the run listens");
        await_until("epochs are published", || harness::releases(&state).len() >= 9);
        stop(&run);
        wait(run).succeeded();
        assert!(case.expected.starts_with(&sums(&state)));
    }
}

/// A run that is stopped before it has reached its server fails, and a check fails after a while.
/// A run that has reached its server succeeds.
#[test]
fn a_server_that_is_never_reached_is_an_error() {
    let case = SocketStream::new();
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = free.local_addr().expect("an address");
    drop(free);
    for (path, more) in
        [(format!("tcp://{address}"), ""), (format!("redis://{address}"), "stream = 's'\nformat = 'fields'")]
    {
        let text = std::fs::read_to_string(case.pipeline(&path, more)).expect("a pipeline");
        let text = if more.is_empty() { text } else { text.replacen("format = 'csv'\n", "", 1) };
        let pipeline = case.lab.write("p.toml", text);
        let run = run(&pipeline, &case.lab.path("unreached"), 1).spawn().expect("the run starts");
        std::thread::sleep(Duration::from_millis(700));
        stop(&run);
        let ended = wait(run);
        assert!(!ended.err.contains("no row"), "{}", ended.err);
        ended.failed(5, &[&path, "can't be reached", "refused", "nothing was published or spent"]);
    }
    finish(hushflow(["check"]).arg(case.lab.path("p.toml"))).failed(5, &["can't be reached", "refused"]);
}

#[test]
fn invalid_settings_are_explained() {
    let case = SocketStream::new();
    let check = |path: &str, more: &str, parts: &[&str]| {
        let pipeline = case.pipeline(path, more);
        finish(&mut run(&pipeline, &case.state(), 1)).failed(2, parts);
    };
    check("tcp://localhost", "", &["source.path", "tcp://host:port"]);
    check("ftp://localhost:1", "", &["source.path", "unix-listen"]);
    check("tcp://localhost:1", "journal = false", &["source.journal", "always journaled"]);
    check("tcp://localhost:1", "missing = 'reject'", &["can't be corrected"]);
    check("data.csv", "acknowledge = true", &["source.acknowledge"]);
    check("-", "follow = true", &["source.follow"]);
    check("tcp-listen://0.0.0.0:1", "", &["source.path", "expose = true"]);
    check("tcp-listen://0.0.0.0:1", "expose = true\nacknowledge = true", &["source.acknowledge", "key = "]);
    let pipeline = case.pipeline("data.csv", "");
    finish(run(&pipeline, &case.state(), 1).args(["--until-idle", "1s"]))
        .failed(2, &["--until-idle", "has an end"]);
    let pipeline = case.pipeline("tcp-listen://127.0.0.1:1", "");
    let occupied = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = occupied.local_addr().expect("a bound port").to_string();
    let text = std::fs::read_to_string(&pipeline).expect("a pipeline").replace("127.0.0.1:1", &address);
    let pipeline = case.lab.write("taken.toml", text);
    finish(&mut run(&pipeline, &case.state(), 1)).failed(1, &[&address]);
}

/// Sends these bytes; returns the answer until the run closes the connection.
fn reply(address: &str, bytes: &[u8]) -> String {
    let mut peer = connect(address);
    // A refused peer may notice it while writing.
    let _ = peer.write_all(bytes);
    let mut answer = String::new();
    let _ = peer.read_to_string(&mut answer);
    answer
}

const POST: &[u8] =
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/plain\r\nContent-Length: 99\r\n\r\n\
    event,arrival,key,a,b,c,d,e\n2020-01-01T00:30:00Z,2020-01-01T00:33:00Z,k1,1,1,1,1,1\n";
const HELLO: &[u8] = b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\n1,2,3\n";

/// Tested with and without another connected peer.
#[test]
fn requests_from_web_pages_and_tls_clients_publish_nothing() {
    let case = SocketStream::new();
    for more in ["acknowledge = true", ""] {
        let (run, address) = case.listen(more, &["--counters", "--until-idle", "4s"]);
        for _ in 0..3 {
            assert!(reply(&address, POST).contains("HTTP"));
            assert!(reply(&address, HELLO).contains("TLS"));
        }
        let mut peer = connect(&address);
        assert!(reply(&address, POST).contains("HTTP"), "also while another peer is connected");
        if more.is_empty() {
            peer.write_all((case.header.clone() + &case.rows(0..2000)).as_bytes()).expect("the run listens");
            drop(peer);
            let ended = case.check(run);
            assert!(ended.err.contains("2,000  rows read"), "{}", ended.err);
            assert!(!ended.err.contains("malformed") && ended.err.contains("refused"), "{}", ended.err);
        } else {
            drop(peer);
            wait(run).succeeded();
            assert!(sums(&case.state()).is_empty(), "nothing was published");
        }
    }
}

/// The peers in the queue send no data, and the connected one sends half a line.
#[test]
fn idle_strangers_block_no_connection() {
    let case = SocketStream::new();
    let (run, address) = case.listen("", &[]);
    let mut half = connect(&address);
    half.write_all(&case.header.as_bytes()[..9]).expect("the run listens");
    let strangers: Vec<_> = (0..500).filter_map(|_| TcpStream::connect(&address).ok()).collect();
    assert!(strangers.len() > 100, "{} could connect", strangers.len());
    let mut peer = connect(&address);
    peer.write_all((case.header.clone() + &case.rows(0..2000)).as_bytes()).expect("the run listens");
    case.check_stopped(run);
    let mut answer = String::new();
    let _ = half.read_to_string(&mut answer);
    assert!(answer.contains("another peer is ready"), "{answer}");
}

/// Peers of an acknowledging source wait for a number before they send, just like a silent
/// stranger.
#[test]
#[ignore = "slow"]
fn a_queue_of_silent_strangers_delays_a_waiting_peer_only_briefly() {
    let case = SocketStream::new();
    let (run, address) = case.listen("acknowledge = true", &[]);
    let first = connect(&address);
    let silent = (0..65).filter_map(|_| TcpStream::connect(&address).ok());
    let strangers: Vec<_> =
        silent.map(|stranger| (&stranger).write_all(b"event").map(|()| stranger)).collect();
    let mut greeted = None;
    let deadline = Instant::now() + Duration::from_secs(90);
    while greeted.is_none() && Instant::now() < deadline {
        let peer = connect(&address);
        let number = numbers(&peer).next();
        greeted = number.map(|number| (peer, number));
        std::thread::sleep(Duration::from_millis(100));
    }
    let (mut peer, number) = greeted.expect("a peer that waits for its number has its turn");
    assert_eq!(number, 0);
    let text = case.header.clone() + &case.rows(0..2000);
    peer.write_all(text.as_bytes()).expect("the run listens");
    assert!(numbers(&peer).any(|number| number == 2000), "all are acknowledged");
    drop((first, strangers));
    stop(&run);
    wait(run).succeeded();
    let (run, _) = case.listen("", &UNTIL_IDLE);
    case.check(run);
}

#[test]
fn blank_lines_have_no_position() {
    let case = SocketStream::new();
    let (run, address) = case.listen("", &[]);
    let mut blank = connect(&address);
    blank.write_all(b"\n").expect("the run listens");
    let mut blanks = blank.try_clone().expect("a handle");
    let babble = std::thread::spawn(move || {
        while blanks.write_all(b"\r\n\n").is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let mut peer = connect(&address);
    peer.write_all((case.header.clone() + &case.rows(0..2000)).as_bytes()).expect("the run listens");
    case.check_stopped(run);
    let mut answer = String::new();
    let _ = blank.read_to_string(&mut answer);
    assert!(answer.contains("another peer is ready"), "{answer}");
    babble.join().expect("the babbler ends");
}

#[test]
fn a_source_with_a_key_takes_rows_only_from_peers_with_its_token() {
    let case = SocketStream::new();
    let key = case.lab.path("source.key");
    finish(hushflow(["key"]).arg(&key)).succeeded();
    let token = finish(hushflow(["key", "--token"]).arg(&key)).succeeded().out;
    let (run, address) =
        case.listen("key = 'source.key'\nacknowledge = true", &["--counters", "--until-idle", "4s"]);
    let rows = case.header.clone() + &case.rows(0..1000);
    let mut random = harness::Random(16);
    let idle = connect(&address);
    for length in [24, 100, 300, 1000] {
        let bytes: Vec<u8> = (0..length).map(|_| 32 + random.below(90) as u8).collect();
        let bytes = [bytes, b"\n".to_vec()].concat();
        assert!(
            reply(&address, &bytes).contains("token"),
            "bytes that are not a token are not read as a row"
        );
    }
    for wrong in
        [rows.clone(), format!("{}\n{rows}", "0".repeat(64)), format!("{}\n{rows}", &token.trim()[1..])]
    {
        assert!(reply(&address, wrong.as_bytes()).contains("token"));
    }
    for part in [0..1000, 1000..2000] {
        let mut peer = connect(&address);
        peer.write_all(token.as_bytes()).expect("the run listens");
        let mut safe = numbers(&peer);
        assert_eq!(
            safe.next(),
            Some(part.start as u64),
            "only senders with the token learn the number of records"
        );
        let text = case.header.clone() + &case.rows(part.clone());
        peer.write_all(text.as_bytes()).expect("the run listens");
        assert!(safe.any(|number| number == part.end as u64));
    }
    drop(idle);
    let ended = case.check(run);
    assert!(!ended.err.contains("malformed") && !ended.err.contains(token.trim()), "{}", ended.err);
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o640)).expect("a mode");
    let (run, _) = case.listen("key = 'source.key'", &[]);
    wait(run).failed(1, &["0640", "chmod 600"]);
}

/// A row that would move the clock by more than a tenth of the horizon, or ten epochs, is rejected.
#[test]
fn one_row_from_a_network_does_not_publish_the_whole_horizon() {
    let case = SocketStream::new();
    let (run, address) = case.listen("", &UNTIL_IDLE);
    let leap = case.rows[0].replace("2020-01-01T", "2031-01-01T");
    let text = [&case.header, &leap, &case.rows(0..2000)].map(String::as_str).concat();
    connect(&address).write_all(text.as_bytes()).expect("the run listens");
    let ended = case.check(run);
    assert!(ended.err.contains("1  too far ahead of the clock"), "{}", ended.err);
}
