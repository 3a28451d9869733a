//! Probes of a run and of a page: alive, and an epoch within its deadline.

use std::io::Write;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::harness::{Lab, Stream, answer, await_until, finish, hushflow, run, send, served, stop, wait};
use crate::servers::free_port;

const PIPELINE: &str = "name = 'probed'
source = { path = '-', format = 'csv' }
columns = [{ name = 'x', lower = -1, upper = 1 }]
privacy = { epsilon = 1, delta = 1e-6, neighbours = 'replace-one-in-place' }
release.strategy = 'square-root'
epochs = { time = 'time', start = '2020-01-01', length = '10s', horizon = 3, clock = 'event-time' }
";

/// Returns the status and the body of an answer.
fn ask(address: &str, method: &str, path: &str) -> (u16, String) {
    let (status, body) =
        answer(send(address, &format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\n\r\n")));
    (status.split(' ').nth(1).unwrap().parse().unwrap(), body)
}

fn is_ready(address: &str) -> bool {
    ask(address, "GET", "/readyz").0 == 200
}

#[test]
fn a_run_is_ready_while_epochs_come_within_their_deadline() {
    let lab = Lab::new();
    let pipeline = lab.write("p.toml", PIPELINE);
    let mut command = run(&pipeline, &lab.path("state"), 1);
    command.args(["--metrics", "127.0.0.1:0", "--ready-within", "1ms"]).stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (address, mut rest) = served(&mut child);
    std::thread::spawn(move || rest.by_ref().for_each(drop));
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "time,x\n2020-01-01T00:00:01Z,0.125\n2020-01-01T00:00:11Z,0.5").unwrap();
    await_until("an epoch makes it ready", || is_ready(&address));
    let health = |arguments: &[&str]| finish(hushflow(["health", &address]).args(arguments));
    assert_eq!(health(&["--ready"]).succeeded().out.split(':').next(), Some("ready"));
    await_until("a silent source makes it late", || !is_ready(&address));
    let (status, late) = ask(&address, "GET", "/readyz");
    assert!(status == 503 && late.contains("no epoch for 1s") && late.contains("--ready-within"), "{late}");
    health(&["--ready"]).failed(1, &["/readyz", "no epoch for"]);
    // The run is alive, although it is not ready.
    assert_eq!(ask(&address, "GET", "/healthz"), (200, "alive\n".into()));
    assert_eq!(health(&[]).succeeded().out, "alive\n");
    let metrics = ask(&address, "GET", "/metrics").1;
    assert!(metrics.contains("\nhushflow_ready 0\n"), "{metrics}");
    for (path, status) in [("/healthz", 200), ("/readyz", 503), ("/metrics", 200), ("/nowhere", 404)] {
        assert_eq!(ask(&address, "HEAD", path), (status, String::new()), "{path}");
    }
    // The next epoch makes it ready again, and no probe shows a value or a count.
    writeln!(input, "2020-01-01T00:00:21Z,0.125").unwrap();
    await_until("the next epoch makes it ready", || is_ready(&address));
    drop(input);
    wait(child).succeeded();
}

#[test]
fn a_run_has_a_deadline_of_its_own_unless_epochs_come_at_any_time() {
    let lab = Lab::new();
    let days =
        PIPELINE.replace("'10s'", "'1d'").replace("'event-time'", "'event-time', allowed_lateness = '1h'");
    let at_any_time = PIPELINE.replace("'event-time'", "'end-of-input'");
    for (text, said) in [(days, "is 49h"), (at_any_time, "no deadline is set")] {
        let pipeline = lab.write("p.toml", text);
        let mut command = run(&pipeline, &lab.path("state"), 1);
        let mut child = command.args(["--metrics", "127.0.0.1:0"]).stdin(Stdio::piped()).spawn().unwrap();
        let (address, _rest) = served(&mut child);
        writeln!(child.stdin.as_ref().unwrap(), "time,x\n2020-01-01T00:00:01Z,0.125").unwrap();
        await_until("it is ready for this reason", || {
            let (status, why) = ask(&address, "GET", "/readyz");
            status == 200 && why.contains(said)
        });
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// A server that was never reached is named, and its first connection makes the run ready.
#[test]
fn a_run_is_ready_once_its_sources_are_connected() {
    let lab = Lab::new();
    let closed = free_port();
    let path = format!("path = 'tcp://127.0.0.1:{closed}'");
    let pipeline = lab.write("p.toml", PIPELINE.replace("path = '-'", &path));
    let mut command = run(&pipeline, &lab.path("state"), 1);
    let mut child = command.args(["--metrics", "127.0.0.1:0"]).spawn().unwrap();
    let (address, _rest) = served(&mut child);
    let source = format!("a source was never connected: tcp://127.0.0.1:{closed}: can't be reached:");
    await_until("an attempt fails", || ask(&address, "GET", "/readyz").1.starts_with(&source));
    assert_eq!(ask(&address, "GET", "/healthz").0, 200);
    assert!(ask(&address, "GET", "/metrics").1.contains("\nhushflow_ready 0\n"));
    let listener = TcpListener::bind(("127.0.0.1", closed)).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let why = || ask(&address, "GET", "/readyz");
    await_until("it is connected", || why() == (200, "ready: no row has come yet\n".into()));
    peer.write_all(b"time,x\n2020-01-01T00:00:01Z,0.125\n").unwrap();
    await_until("the first row begins the deadline", || is_ready(&address) && !why().1.contains("no row"));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_page_is_ready_once_it_has_read_the_log() {
    let lab = Lab::new();
    let stream = Stream { rows: 400, epochs: 4 };
    lab.write("data.csv", stream.csv());
    let whole = lab.write("p.toml", stream.pipeline("data.csv", ""));
    let state = lab.path("state");
    finish(&mut run(&whole, &state, 1)).succeeded();
    let longer =
        lab.write("long.toml", stream.pipeline("data.csv", "").replace("horizon = 4", "horizon = 5"));
    let unfinished = lab.path("unfinished");
    finish(&mut run(&longer, &unfinished, 1)).succeeded();
    for (state, deadline, becomes_late) in
        [(&state, "1ms", false), (&unfinished, "1h", false), (&unfinished, "1ms", true)]
    {
        let mut command = hushflow(["serve", "--web", "127.0.0.1:0", "--ready-within", deadline]);
        let mut child = command.arg(state).spawn().unwrap();
        let (address, _rest) = served(&mut child);
        assert_eq!(ask(&address, "HEAD", "/").0, 200);
        assert_eq!(ask(&address, "GET", "/healthz").0, 200);
        if becomes_late {
            await_until("no epoch comes", || !is_ready(&address));
        }
        assert_eq!(is_ready(&address), !becomes_late, "{deadline}: {}", ask(&address, "GET", "/readyz").1);
        // Readers of events take all connections but those of probes.
        let request = format!("GET /events HTTP/1.1\r\nHost: {address}\r\n\r\n");
        let readers: Vec<_> =
            (0..if deadline == "1h" { 64 } else { 0 }).map(|_| send(&address, &request)).collect();
        if !readers.is_empty() {
            let about = || ask(&address, "GET", "/about").1;
            await_until("readers have all connections", || about().contains("too many are connected"));
            assert_eq!([ask(&address, "GET", "/healthz").0, ask(&address, "GET", "/readyz").0], [200, 200]);
        }
        stop(&child);
        wait(child).succeeded();
    }
}

/// Silent clients, and clients that stop within their request, hold up neither probes nor readers.
#[test]
fn probes_are_answered_among_silent_connections() {
    let lab = Lab::new();
    let pipeline = lab.write("p.toml", PIPELINE);
    let mut command = run(&pipeline, &lab.path("state"), 1);
    let mut child = command.args(["--metrics", "127.0.0.1:0"]).stdin(Stdio::piped()).spawn().unwrap();
    let (address, _rest) = served(&mut child);
    let text = |number| if number % 2 == 0 { "" } else { "GET /healthz HTTP/1.1\r\nHost" };
    let mut silent: Vec<_> = (0..500).map(|number| send(&address, text(number))).collect();
    for round in 0..5 {
        for path in ["/healthz", "/metrics", "/nowhere"] {
            let begun = Instant::now();
            let expected = if path == "/nowhere" { 404 } else { 200 };
            assert_eq!(ask(&address, "GET", path).0, expected, "{path}");
            assert!(begun.elapsed() < Duration::from_secs(2), "{path}: {:?}", begun.elapsed());
        }
        silent.extend((0..50).map(|number| send(&address, text(number + round))));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn health_fails_in_time_where_nobody_answers() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let began = Instant::now();
    let ask =
        |address: &str| finish(hushflow(["health", address, "--timeout", "200ms"]).stdin(Stdio::null()));
    ask(&address).failed(1, &[&address, "no answer in time"]);
    assert!(began.elapsed() < Duration::from_secs(10));
    drop(silent);
    ask(&address).failed(1, &[&address, "refused"]);
    ask("nonsense").failed(1, &["nonsense"]);
}
