//! The page, the metrics and events by HTTPS.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rcgen::date_time_ymd;

use super::{LATER, certificates, connect, get, text};
use crate::harness::{Lab, await_until, finish, hushflow, send, stop, wait};

const PIPELINE: &str = "name = 'n'
source.path = 'tcp-listen://127.0.0.1:0'
source.format = 'csv'
columns = [{ name = 'x', lower = 0, upper = 1 }]
epochs = { records = 1, horizon = 5 }
privacy = { epsilon = 1, delta = 1e-6 }
release.strategy = 'square-root'
sinks = [{ path = 'http-listen://127.0.0.1:0', tls = true, tls_certificate = 'server.pem', tls_key = 'server.key', tls_client_roots = 'ca.pem' }]
views = [{ name = 'v', workload = 'prefix' }]
";

/// Starts a command, and returns the addresses that it serves by HTTPS.
fn serving(lab: &Lab, arguments: &[&str], count: usize) -> (Child, Vec<String>) {
    let file = |name| text(lab.path(name));
    let mut command = hushflow(arguments);
    command.args(["--tls-certificate", &file("server.pem"), "--tls-key", &file("server.key")]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let urls =
        lines.by_ref().filter_map(|line| Some(line.strip_prefix("https://")?.split('/').next()?.to_owned()));
    let addresses: Vec<String> = urls.take(count).collect();
    assert_eq!(addresses.len(), count, "it says where it serves");
    std::thread::spawn(move || lines.for_each(drop));
    (child, addresses)
}

#[test]
fn https_serves_metrics_events_and_the_page_while_others_are_silent() {
    let lab = Lab::new();
    let authority = certificates(&lab);
    let pipeline = text(lab.write("p.toml", PIPELINE));
    let state = text(lab.path("state"));
    let (run, addresses) =
        serving(&lab, &["run", &pipeline, "--state", &state, "--metrics", "127.0.0.1:0"], 2);
    let client = authority.client(&lab, None);
    let metrics = &addresses[0];
    // Connections that send no data, or stop in their handshake.
    let silent: Vec<TcpStream> = (0..500).map(|_| TcpStream::connect(metrics).unwrap()).collect();
    // The server may have disconnected the first ones.
    silent.iter().step_by(2).for_each(|mut silent| drop(silent.write_all(b"\x16\x03\x01")));
    let begun = Instant::now();
    let answer = get(&client, metrics, "/metrics").unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("hushflow_"), "{answer}");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let health = |url: &str, arguments: &[&str]| finish(hushflow(["health", url]).args(arguments));
    let url = format!("https://{metrics}");
    assert_eq!(health(&url, &["--tls-roots", &text(lab.path("ca.pem"))]).succeeded().out, "alive\n");
    health(&url, &[]).failed(1, &["certificate", "--tls-roots"]);
    let strangers = text(lab.path("stranger.pem"));
    let ended = health(&url, &["--tls-roots", &strangers]);
    assert!(!ended.err.contains("tls_"), "{}", ended.err);
    ended.failed(1, &["name the root with --tls-roots"]);
    health(metrics, &[]).failed(1, &["use https://"]);
    health(metrics, &["--tls-server-name", "h"]).failed(2, &["https://HOST:PORT"]);
    let mut plain = String::new();
    send(metrics, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").read_to_string(&mut plain).unwrap();
    assert!(plain.starts_with("HTTP/1.1 400") && plain.contains("use https://"), "{plain}");
    // The sink requires certificates of clients.
    let events = &addresses[1];
    assert!(get(&client, events, "/events").is_err());
    assert!(get(&authority.client(&lab, Some("strange")), events, "/events").is_err());
    let mut reader = connect(&authority.client(&lab, Some("client")), events);
    write!(reader, "GET /events HTTP/1.1\r\nHost: {events}\r\n\r\n").unwrap();
    let head = BufReader::new(reader).lines().next().unwrap().unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    await_until("the log is there", || lab.path("state/public.log").exists());
    let (page, pages) = serving(&lab, &["serve", &state, "--web", "127.0.0.1:0"], 1);
    let answer = get(&client, &pages[0], "/").unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("<html"), "{answer}");
    // A renewed certificate, of another authority, is used without a restart.
    std::fs::copy(lab.path("strange.key"), lab.path("server.key")).unwrap();
    assert!(get(&client, &pages[0], "/").is_ok(), "files that don't fit together yet change nothing");
    let answer = get(&client, metrics, "/metrics").unwrap();
    assert!(answer.contains("\nhushflow_certificate_renewals_failed_total 1\n"), "{answer}");
    std::fs::copy(lab.path("strange.pem"), lab.path("server.pem")).unwrap();
    assert!(get(&client, &pages[0], "/").is_err(), "the client does not know the other authority");
    for child in [run, page] {
        stop(&child);
        wait(child);
    }
}

#[test]
fn a_certificate_that_is_not_valid_now_is_a_warning_at_the_start() {
    let lab = Lab::new();
    certificates(&lab).issue_unsuitable(&lab, "future", |parameters| {
        parameters.not_before = date_time_ymd(2150, 1, 1);
        parameters.not_after = date_time_ymd(LATER, 1, 1);
    });
    let sink = PIPELINE.replace("127.0.0.1:0'\nsource", "127.0.0.1:0'\nsource.tls = true\nsource.tls_certificate = 'expired.pem'\nsource.tls_key = 'expired.key'\nsource");
    let sink = sink.replace("'server.", "'expired.");
    let pipeline = text(lab.write("p.toml", sink));
    let files = [text(lab.path("expired.pem")), text(lab.path("expired.key"))];
    let mut command =
        hushflow(["run", &pipeline, "--state", &text(lab.path("state")), "--metrics", "127.0.0.1:0"]);
    let run = command.args(["--tls-certificate", &files[0], "--tls-key", &files[1]]).spawn().unwrap();
    await_until("it runs", || lab.path("state/private-000001.log").exists());
    std::thread::sleep(Duration::from_millis(500));
    stop(&run);
    let errors = wait(run).err;
    let warnings = errors.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(warnings.matches("expired.pem of").count(), 3, "metrics, source and sink: {errors}");
    assert!(
        warnings.contains("of --tls-certificate has expired on 2021-01-01T00:00:00Z, so clients refuse it"),
        "{errors}"
    );
    let mut command =
        hushflow(["serve", &text(lab.path("nowhere")), "--web", "127.0.0.1:0", "--tls-certificate"]);
    let files = [text(lab.path("future.pem")), text(lab.path("future.key"))];
    let mut page = command.args([&files[0], "--tls-key", &files[1]]).spawn().unwrap();
    let first = BufReader::new(page.stderr.take().unwrap()).lines().next().unwrap().unwrap();
    assert!(
        first.contains("future.pem of --tls-certificate is not valid before 2150-01-01T00:00:00Z"),
        "{first}"
    );
    stop(&page);
    wait(page).stopped();
    assert!(warnings.contains("tcp-listen://127.0.0.1:0: the certificate"), "{errors}");
}

#[test]
fn a_certificate_that_cannot_be_used_is_refused_at_the_start() {
    let lab = Lab::new();
    certificates(&lab);
    let pipeline = text(lab.write("p.toml", PIPELINE));
    let state = text(lab.path("state"));
    let run = |certificate: &str, key: &str| {
        let files = [text(lab.path(certificate)), text(lab.path(key))];
        let mut command = hushflow(["run", &pipeline, "--state", &state, "--metrics", "127.0.0.1:0"]);
        command.args(["--tls-certificate", &files[0], "--tls-key", &files[1]]).output().unwrap()
    };
    for (certificate, key, part) in [
        ("server.pem", "client.key", "don't fit together"),
        ("gone.pem", "server.key", "of --tls-certificate can't be read"),
        ("server.key", "server.key", "no certificate in PEM"),
        ("server.pem", "server.pem", "no private key in PEM"),
    ] {
        let ended = run(certificate, key);
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && errors.contains(part), "{errors}");
    }
}
