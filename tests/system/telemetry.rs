//! Telemetry: data that must reach a collector, data that must not, and collectors that fail.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::harness::{Ended, Lab, finish, hushflow, releases, run};

const PIPELINE: &str = "name = 'told'
source = { path = 'secret-rows.csv', malformed = 'reject' }
columns = [{ name = 'x', lower = -1, upper = 1 }]
privacy = { epsilon = 1, delta = 1e-6, neighbours = 'replace-one-in-place' }
release.strategy = 'square-root'
epochs = { time = 'time', start = '2020-01-01', length = '10s', horizon = 9, clock = 'event-time' }
";

const ROWS: &str =
    "time,x\n2020-01-01T00:00:01Z,0.123456\n2020-01-01T00:00:11Z,0.5\n2020-01-01T00:00:21Z,0.5\n";

/// A collector that answers every request with these bytes; without bytes it never answers.
struct Collector {
    address: String,
    requests: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Collector {
    fn answering(answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::<Mutex<Vec<_>>>::default();
        let received = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let received = Arc::clone(&received);
                std::thread::spawn(move || converse(stream.unwrap(), answer, &received));
            }
        });
        Collector { address, requests }
    }

    /// Whether any request to this path contains this text.
    fn has(&self, path: &str, text: &str) -> bool {
        let holds = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        let requests = self.requests.lock().unwrap();
        requests.iter().any(|request| holds(request, &format!("POST {path} ")) && holds(request, text))
    }
}

fn converse(mut stream: TcpStream, answer: &str, received: &Mutex<Vec<Vec<u8>>>) {
    loop {
        let (mut request, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            let Ok(length @ 1..) = stream.read(&mut piece) else { return };
            request.extend_from_slice(&piece[..length]);
            let text = String::from_utf8_lossy(&request).to_ascii_lowercase();
            let Some(head) = request.windows(4).position(|part| part == b"\r\n\r\n") else { continue };
            let body =
                text.split("content-length: ").nth(1).and_then(|rest| rest.split('\r').next()?.parse().ok());
            if request.len() >= head + 4 + body.unwrap_or(0) {
                break;
            }
        }
        received.lock().unwrap().push(request);
        if answer.is_empty() {
            std::thread::sleep(Duration::from_secs(60));
        }
        let _ = stream.write_all(answer.as_bytes());
    }
}

const TAKEN: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";

fn send_to(lab: &Lab, state: &str, rows: &str, address: &str) -> Ended {
    lab.write("secret-rows.csv", rows);
    let pipeline = lab.write("p.toml", PIPELINE);
    let mut command = run(&pipeline, &lab.path(state), 1);
    command.env_remove("OTEL_SERVICE_NAME").args(["--log", "debug", "--telemetry", address]);
    finish(&mut command)
}

#[test]
fn logs_and_spans_reach_a_collector_and_nothing_private_does() {
    let (lab, collector) = (Lab::new(), Collector::answering(TAKEN));
    send_to(&lab, "state", ROWS, &collector.address).succeeded();
    for message in ["a run begins", "the epoch is durable and published", "the run ended cleanly", "hushflow"]
    {
        assert!(collector.has("/v1/logs", message), "{message}");
    }
    for span in ["run", "open", "commit", "service.version"] {
        assert!(collector.has("/v1/traces", span), "{span}");
    }
    let broken = format!("{ROWS}2020-01-01T00:00:31Z,unreadable-value\n");
    let ended = send_to(&lab, "other", &broken, &collector.address);
    assert!(ended.err.contains("the reason of the fault"), "{}", ended.err);
    ended.failed(1, &["secret-rows.csv"]);
    assert!(collector.has("/v1/logs", "a fault has ended the run"));
    for private in ["secret-rows", "unreadable-value", "0.123456", "the reason of the fault"] {
        assert!(!["/v1/logs", "/v1/traces"].iter().any(|path| collector.has(path, private)), "{private}");
    }
}

#[test]
fn no_collector_delays_or_ends_a_run() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let failing = Collector::answering("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n");
    let noise = Collector::answering("\u{16}\u{3}\u{1}\r\n\r\n");
    let silent = Collector::answering("");
    let addresses = [format!("http://{closed}"), failing.address, noise.address, silent.address];
    for address in &addresses {
        let (lab, began) = (Lab::new(), Instant::now());
        send_to(&lab, "state", ROWS, address).succeeded();
        assert!(began.elapsed() < Duration::from_secs(20), "{address}");
        assert_eq!(releases(&lab.path("state")).len(), 3, "{address}");
    }
}

#[test]
fn addresses_that_cannot_be_used_are_refused() {
    for (address, why) in [("https://collector:4318", "only http://"), ("http://[", "expected the address")] {
        let mut command = hushflow(["run", "p.toml", "--telemetry", address]);
        finish(&mut command).failed(2, &["--telemetry", why]);
    }
}
