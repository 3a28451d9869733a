//! Hostile readers of every port of a publishing process. The run continues and loses no data, and
//! a well-behaved reader is served afterwards.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use crate::harness::{Lab, Random, answer, await_until, hushflow, releases, run, send, served, stop, wait};

/// Number of simultaneous connections: more than a process with 128 descriptors can hold.
const CONNECTIONS: usize = 400;

/// Epochs of the stream. The private log begins a new file after every 64.
const EPOCHS: usize = 640;

fn pipeline(more: &str) -> String {
    format!(
        "name = 'read'
source = {{ path = '-', format = 'csv' }}
columns = [{{ name = 'x', lower = -1, upper = 1 }}]
epochs = {{ records = 2, horizon = {EPOCHS} }}
privacy = {{ epsilon = 1, delta = 1e-6 }}
release.strategy = 'identity'
{more}"
    )
}

/// The command limited to `descriptors` descriptors.
fn limited(command: &Command, descriptors: usize) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit -n {descriptors}; exec \"$0\" \"$@\"")]);
    limited.arg(command.get_program()).args(command.get_args()).env("HUSHFLOW_STRATEGIES", "/dev/null/kept");
    limited.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    limited
}

/// Ends a storm on drop, even if a test fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Connections that send a byte every 120 ms, never read, and reconnect when closed, while `on` is
/// set.
fn storm(addresses: &[SocketAddr], on: &AtomicBool) {
    let call = |number: usize| {
        let address = &addresses[number % addresses.len()];
        let stream = TcpStream::connect_timeout(address, Duration::from_millis(200)).ok()?;
        stream.set_nonblocking(true).ok()?;
        Some(stream)
    };
    // Some begin with a complete request and continue sending after its answer.
    let greeting: &[u8] = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut streams: Vec<Option<TcpStream>> = (0..CONNECTIONS).map(|_| None).collect();
    while on.load(Ordering::Relaxed) {
        for (number, stream) in streams.iter_mut().enumerate() {
            let bytes = if stream.is_none() && number % 4 == 0 { greeting } else { b"G" };
            if stream.is_none() {
                *stream = call(number);
            }
            let sent = stream.as_ref().is_some_and(|mut stream| stream.write_all(bytes).is_ok());
            if !sent {
                *stream = None;
            }
        }
        sleep(Duration::from_millis(120));
    }
}

/// A run with 128 descriptors that serves metrics and events, and both addresses.
fn publishing(lab: &Lab) -> (Child, [SocketAddr; 2]) {
    let text = pipeline("[[sinks]]\npath = 'http-listen://127.0.0.1:0'\n");
    let mut command = run(&lab.write("p.toml", text), &lab.path("state"), 1);
    command.args(["--metrics", "127.0.0.1:0"]);
    let mut child = limited(&command, 128).spawn().unwrap();
    let (metrics, mut rest) = served(&mut child);
    let events = rest.find(|line| line.starts_with("http://")).unwrap();
    let events = events["http://".len()..].split('/').next().unwrap().to_owned();
    thread::spawn(move || rest.for_each(drop));
    (child, [metrics.parse().unwrap(), events.parse().unwrap()])
}

fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).ok()?;
    let mut bytes = [0; 64];
    let length = stream.read(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

/// Waits until a well-behaved reader is served.
#[track_caller]
fn await_service(address: SocketAddr, path: &str) {
    await_until("a reader is served", || {
        get(address, path).is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
    });
}

fn feed(input: &mut impl Write, epochs: usize) {
    input.write_all("0.5\n0.25\n".repeat(epochs).as_bytes()).expect("the run reads");
}

#[test]
fn a_storm_of_slow_readers_neither_ends_nor_holds_up_a_run() {
    let lab = Lab::new();
    let state = lab.path("state");
    let (mut child, addresses) = publishing(&lab);
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"x\n").unwrap();
    let on = AtomicBool::new(true);
    thread::scope(|scope| {
        scope.spawn(|| storm(&addresses, &on));
        let _ending = Ending(&on);
        // Meanwhile, the log begins new segments and removes old ones.
        for part in 1..=8 {
            feed(&mut input, EPOCHS / 10);
            await_until("what was read is published", || releases(&state).len() == part * EPOCHS / 10);
            sleep(Duration::from_millis(400));
        }
    });
    await_service(addresses[0], "/metrics");
    await_service(addresses[1], "/events");
    feed(&mut input, EPOCHS / 5);
    drop(input);
    let ended = child.wait().unwrap();
    assert_eq!(ended.code(), Some(0));
    assert_eq!(releases(&state).len(), EPOCHS);
}

/// A page of a small log, served with 128 descriptors.
fn page(state: &Path) -> (Child, SocketAddr) {
    let mut command = hushflow(["tail", "--web", "127.0.0.1:0"]);
    let mut child = limited(command.arg(state), 128).spawn().unwrap();
    let (address, rest) = served(&mut child);
    thread::spawn(move || rest.for_each(drop));
    (child, address.parse().unwrap())
}

/// A state directory with `epochs` epochs of a stream with this horizon.
fn published(lab: &Lab, epochs: usize, horizon: u64) -> std::path::PathBuf {
    let text = pipeline("").replace(&format!("horizon = {EPOCHS}"), &format!("horizon = {horizon}"));
    let state = lab.path("state");
    let mut child =
        run(&lab.write("p.toml", text), &state, 1).stdin(Stdio::piped()).spawn().expect("the run starts");
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"x\n").unwrap();
    feed(&mut input, epochs);
    drop(input);
    wait(child).succeeded();
    state
}

#[test]
fn a_storm_of_slow_readers_does_not_end_a_page() {
    let lab = Lab::new();
    let (mut child, address) = page(&published(&lab, 20, EPOCHS as u64));
    let on = AtomicBool::new(true);
    thread::scope(|scope| {
        scope.spawn(|| storm(&[address], &on));
        let _ending = Ending(&on);
        sleep(Duration::from_secs(4));
    });
    await_service(address, "/about");
    await_service(address, "/events");
    assert!(child.try_wait().unwrap().is_none(), "the page is still there");
    stop(&child);
    child.wait().unwrap();
}

#[test]
fn a_run_survives_arbitrary_bytes_on_a_port() {
    let lab = Lab::new();
    let state = lab.path("state");
    let (mut child, addresses) = publishing(&lab);
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"x\n").unwrap();
    feed(&mut input, 10);
    await_until("the log begins", || releases(&state).len() == 10);
    let (mut page, site) = page(&state);
    let mut random = Random(7);
    for round in 0..300 {
        let length = 24 + random.below(977);
        let bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        let begin: &[u8] = [&b""[..], b"GET ", b"GET /events HTTP/1.1\r\n", b"\x16\x03\x01"][round % 4];
        for address in addresses.iter().chain([&site]) {
            if let Ok(mut stream) = TcpStream::connect(address) {
                let _ = stream.write_all(&[begin, &bytes].concat());
            }
        }
    }
    await_service(addresses[0], "/metrics");
    await_service(addresses[1], "/events");
    await_service(site, "/about");
    feed(&mut input, EPOCHS - 10);
    drop(input);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(releases(&state).len(), EPOCHS);
    stop(&page);
    page.wait().unwrap();
}

/// Peak memory of a process in bytes.
fn peak(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    1024 * line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
}

/// Noise levels of ten million epochs take 80 MB. Six readers of three epochs must not need them.
#[test]
fn the_cost_of_a_request_grows_with_published_epochs_only() {
    let lab = Lab::new();
    let (mut child, address) = page(&published(&lab, 3, 10_000_000));
    await_service(address, "/about");
    let before = peak(&child);
    let following: Vec<_> = (0..6)
        .map(|_| {
            let address = address.to_string();
            let mut stream = send(&address, &format!("GET /events HTTP/1.1\r\nHost: {address}\r\n\r\n"));
            let mut text = String::new();
            while !text.contains("id: 3\n") {
                let mut bytes = [0; 4096];
                let length = stream.read(&mut bytes).expect("events");
                assert!(length > 0, "{text}");
                text.push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
            stream
        })
        .collect();
    let taken = peak(&child) - before;
    assert!(taken < 40 << 20, "{taken} bytes for six readers");
    for query in ["since=18446744073709551615&workload=window:4000000000", "workload=matrix:/dev/zero"] {
        let request = format!("GET /events?{query} HTTP/1.1\r\nHost: {address}\r\n\r\n");
        let mut asked = answer(send(&address.to_string(), &request));
        // The slot of the request before becomes free shortly after its answer.
        await_until("a place is free", || {
            if asked.0.contains("503") {
                asked = answer(send(&address.to_string(), &request));
            }
            !asked.0.contains("503")
        });
        let (status, body) = asked;
        assert!(status.contains("400") && body.contains("this page shows prefix"), "{status} {body}");
    }
    drop(following);
    stop(&child);
    child.wait().unwrap();
}
