//! `tail --web`: the page gets exactly what `tail --json` prints, other sites get no data, a
//! stalled client delays no other one, and a real browser shows the page.
//!
//! - `browser`: a headless Chromium, if installed.
//! - `pages`: the page in the browser.
//! - `readings`: the numbers of charts.
//! - `shown`: the texts of the page beside its numbers.

mod browser;
mod pages;
mod readings;
mod shown;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use crate::harness::{self, Lab, Stream, answer, finish, hushflow, releases, run, send, served, tail, wait};
use browser::Browser;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use serde_json::{Value, json};

const STREAM: Stream = Stream { rows: 2000, epochs: 20 };

/// Whether the page has shown the last epoch of all, in its script.
const ENDED: &str = "$('status')?.dataset.state === 'ended'";

/// A state directory with twenty epochs of seven keys, with more records than noise in some of
/// them.
fn published(lab: &Lab) -> PathBuf {
    published_with(lab, "")
}

/// The same, with more sections.
fn published_with(lab: &Lab, more: &str) -> PathBuf {
    lab.write("data.csv", STREAM.csv());
    let text = STREAM.pipeline("data.csv", more).replace("epsilon = 1", "epsilon = 20");
    let pipeline = lab.write("pipeline.toml", text);
    let state = lab.path("state");
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    state
}

/// A running `tail --web`, ended on drop.
struct Site {
    child: Child,
    address: String,
}

impl Site {
    fn of(state: &Path, arguments: &[&str]) -> Self {
        let mut command = hushflow(["tail", "--web", "127.0.0.1:0"]);
        let mut child = command.arg(state).args(arguments).spawn().expect("tail starts");
        let (address, _) = served(&mut child);
        Site { child, address }
    }

    /// Opens the page in a browser, if one is installed.
    fn open(&self, address: &str) -> Option<Browser> {
        Browser::open(&format!("http://{}/{address}", self.address))
    }

    /// Requests a path with more header fields; returns status line and body.
    fn get(&self, path: &str, fields: &str) -> (String, String) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n{fields}\r\n", self.address);
        answer(send(&self.address, &request))
    }

    /// Returns the events of a query up to the end, with their numbers.
    fn events(&self, query: &str, fields: &str) -> Vec<(u64, String)> {
        let (status, body) = self.get(&format!("/events?{query}"), fields);
        assert_eq!(status, "HTTP/1.1 200 OK", "{body}");
        let (events, end) = body.split_at(body.find("event: end").expect("the stream ends in good order"));
        assert!(end.ends_with("\n\n"), "{end}");
        let event = |text: &str| {
            let (number, data) = text.strip_prefix("id: ")?.split_once("\ndata: ")?;
            Some((number.parse().ok()?, data.to_owned()))
        };
        let texts = events.split("\n\n").filter(|text| !text.is_empty() && *text != ":");
        texts.map(|text| event(text).unwrap_or_else(|| panic!("{text}"))).collect()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the output of `tail --json`.
fn lines(state: &Path, arguments: &[&str]) -> Vec<String> {
    finish(&mut tail(state, arguments)).succeeded().out.lines().map(String::from).collect()
}

#[test]
fn events_equal_the_lines_of_tail_and_resume_where_a_client_stopped() {
    let lab = Lab::new();
    let state = published(&lab);
    let workloads = ["prefix", "average", "exponential:0.75", "window:7", "momentum:0.5", "window:999999"];
    let offered = workloads.iter().flat_map(|workload| ["--workload", workload]);
    let site =
        Site::of(&state, &[&["--level", "0.9", "--key", "k5"][..], &offered.collect::<Vec<_>>()].concat());
    for workload in workloads {
        let expected = lines(&state, &["--level", "0.9", "--key", "k3", "--workload", workload]);
        let events = site.events(&format!("key=k3&workload={workload}"), "");
        assert_eq!(events.len(), 20);
        let expected: Vec<_> = (1..).zip(expected).collect();
        assert_eq!(events, expected, "{workload}");
        let rest = site.events(&format!("key=k3&workload={workload}"), "Last-Event-ID: 12\r\n");
        assert_eq!(rest, expected[12..], "{workload}");
    }
    let moments = Site::of(&state, &["--view", "moments"]);
    let expected = lines(&state, &["--view", "moments", "--key", "k0"]);
    assert_eq!(
        moments.events("", ""),
        (1..).zip(expected).collect::<Vec<_>>(),
        "the first key is the default"
    );
    let regression = ["--regress", "a~b+c"];
    let site_of_line = Site::of(&state, &regression);
    let expected = lines(&state, &[&regression[..], &["--key", "k0"]].concat());
    assert_eq!(site_of_line.events("", ""), (1..).zip(expected).collect::<Vec<_>>());
    let about: Value = serde_json::from_str(&site_of_line.get("/about", "").1).expect("JSON");
    let series =
        json!({ "name": "b", "value": ["coefficients", "b"], "interval": ["coefficients_interval", "b"] });
    let group = &about["plot"]["groups"][0];
    assert_eq!((&group["title"], &group["series"][1]), (&json!("Regression of a: coefficient"), &series));
    assert_eq!(about["view"]["estimate"], "regression:a~b+c");
    let adam = Site::of(&state, &["--view", "adam", "--beta2", "0.9"]);
    let expected = lines(&state, &["--view", "adam", "--beta2", "0.9", "--key", "k0"]);
    assert_eq!(adam.events("workload=adam:0.9", ""), (1..).zip(expected).collect::<Vec<_>>());
    let about: Value = serde_json::from_str(&adam.get("/about", "").1).expect("JSON");
    assert_eq!((&about["workloads"], &about["view"]["estimate"]), (&json!(["adam:0.9"]), &json!("adam")));
    assert!(adam.get("/events?workload=prefix", "").0.contains("400"), "it has its own workloads");
    let total = lines(&state, &["--level", "0.9", "--total", "--workload", "window:7"]);
    assert_eq!(site.events("key=all&workload=window:7", ""), (1..).zip(total).collect::<Vec<_>>());
    let first = |query: &str| site.events(query, "").remove(0).1;
    assert!(first("").contains("\"k5\""), "a key that is asked for is shown first");
    let both = site.events("key=k1&key=all&since=19", "");
    let expected = |epoch: u64| {
        let of = |which: &[&str]| {
            lines(&state, &[&["--level", "0.9"], which].concat())[epoch as usize - 1].clone()
        };
        format!("{}\ndata: {}", of(&["--key", "k1"]), of(&["--total"]))
    };
    assert_eq!(both, [19, 20].map(|epoch| (epoch, expected(epoch))), "several keys, from an epoch on");
    assert_eq!(site.events("", "Last-Event-ID: 20\r\n"), []);
    assert_eq!(site.events("", "Last-Event-ID: 18446744073709551615\r\n"), []);
}

#[test]
fn the_page_states_the_guarantee_and_nothing_about_the_machine() {
    let lab = Lab::new();
    let state = published(&lab);
    let site = Site::of(&state, &["--workload", "window:3"]);
    let (_, about) = site.get("/about", "");
    assert!(!about.contains(&lab.path("").display().to_string()), "{about}");
    let about: Value = serde_json::from_str(&about).expect("JSON");
    assert_eq!(about["epsilon"], 20.0);
    assert_eq!(about["private"], true);
    assert_eq!(about["horizon"], 20);
    assert_eq!(about["view"], json!({ "key": null, "workload": "window:3", "estimate": "gaussian" }));
    assert_eq!(about["workloads"], json!(["window:3", "prefix"]), "those of the command and of the release");
    assert_eq!(about["protects"], json!({ "unit": "record" }));
    let guarantee = about["guarantee"].as_str().expect("words");
    assert!(
        guarantee.contains("replace-one neighbours") && guarantee.contains("what one record holds"),
        "{guarantee}"
    );
    let promise = about["promise"].as_str().expect("a sentence");
    assert!(promise.starts_with("Had any one record held anything else"), "{promise}");
    assert!(promise.contains("a factor of 486,000,000, plus 1 in 1,000,000."), "{promise}");
    assert_eq!(about["ledger"]["entries"][0]["pipeline"], "stream");
    assert!(about["ledger"]["entries"][0].get("identity").is_none());
    // A copy of the public log alone has no ledger.
    let copy = lab.path("copy");
    std::fs::create_dir(&copy).expect("a directory");
    std::fs::copy(state.join("public.log"), copy.join("public.log")).expect("a copy");
    let site = Site::of(&copy, &[]);
    let about: Value = serde_json::from_str(&site.get("/about", "").1).expect("JSON");
    assert_eq!(about["ledger"], Value::Null);
    for (path, kind) in [("/", "<!doctype html>"), ("/page.js", "//"), ("/page.css", ":root")] {
        assert!(site.get(path, "").1.starts_with(kind), "{path}");
    }
}

#[test]
fn the_page_of_entities_speaks_of_entities() {
    let lab = Lab::new();
    lab.write("data.csv", "who,x\nann,0.5\nbob,0.25\nann,0.125\nbob,0\n");
    let text = "name = 'visits'
source.path = 'data.csv'
columns = [{ name = 'x', lower = -1, upper = 1 }]
entity = { column = 'who', participations = 3, min_separation = 2 }
epochs = { records = 2, horizon = 8 }
privacy = { epsilon = 1, delta = 1e-6, unit = 'entity' }
release.strategy = 'identity'
";
    let (pipeline, state) = (lab.write("p.toml", text), lab.path("state"));
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    let site = Site::of(&state, &[]);
    let about: Value = serde_json::from_str(&site.get("/about", "").1).expect("JSON");
    let unit = json!({ "unit": "entity", "column": "who", "participations": 3, "min_separation": 2, "records_per_epoch": 1 });
    assert_eq!(about["protects"], unit);
    let guarantee = about["guarantee"].as_str().expect("words");
    for part in [
        "(1, 0.000001)",
        "entities",
        "column who",
        "at most 3 epochs",
        "at least 2 epochs apart",
        "1 record in each",
    ] {
        assert!(guarantee.contains(part), "{part:?} in {guarantee}");
    }
    assert!(!guarantee.contains("one record holds"), "{guarantee}");
    let promise = about["promise"].as_str().expect("a sentence");
    assert!(promise.contains("all records of any one entity (one value of the column who)"), "{promise}");
}

#[test]
fn requests_for_other_paths_and_hosts_are_refused() {
    let lab = Lab::new();
    let state = published(&lab);
    let site = Site::of(&state, &[]);
    for (path, status) in [
        ("/../../../etc/passwd", "404"),
        ("/%2e%2e/public.log", "404"),
        ("/private-000001.log", "404"),
        ("/page.js/", "404"),
        ("/events?key=k9", "400"),
        ("/events?workload=window:0", "400"),
        ("/events?workload=matrix:/etc/passwd", "400"),
        ("/events?workload=exponential:2", "400"),
        ("/events?workload=window:5", "400"),
        ("/events?key=%ff", "400"),
        ("/events?since=x", "400"),
        ("/events?since=0", "400"),
        ("/events?since=21", "400"),
        ("/events?key=k0&key=k1&key=k2&key=k3&key=k4&key=k5&key=k6", "400"),
        ("/readings?of=mean:z", "400"),
        ("/readings?of=correlation", "400"),
        ("/readings?estimate=none", "400"),
        ("/readings?estimate=regression:a~a", "400"),
        ("/readings?estimate=regression:a~/etc/passwd", "400"),
        ("/readings?from=-1", "400"),
        ("/readings?last=7.5", "400"),
        ("/about?estimate=adam&workload=prefix", "400"),
    ] {
        let (line, body) = site.get(path, "");
        assert!(line.contains(status), "{path}: {line}");
        assert!(!body.contains("root:"), "{body}");
    }
    let ask = |request: String| answer(send(&site.address, &request)).0;
    let host = format!("Host: {}\r\n", site.address);
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: rebound.example\r\n\r\n".to_owned(), "421"),
        (format!("POST / HTTP/1.1\r\n{host}\r\n"), "405"),
        (format!("GET / HTTP/1.1\r\n{host}Content-Length: 5\r\n\r\nhello"), "400"),
        (format!("GET / HTTP/1.1\r\n{host}X: {}\r\n\r\n", "y".repeat(10_000)), "431"),
        ("\u{1}\u{2}\u{3}\r\n\r\n".to_owned(), "400"),
    ] {
        let line = ask(request);
        assert!(line.contains(status), "{line}, not {status}");
    }
    // Behind a proxy, only the names given by `--served-as` are accepted.
    let named = Site::of(&state, &["--served-as", "Stats.example.org"]);
    for (host, status) in [("stats.example.org:443", "200"), ("example.org", "421")] {
        let request = format!("GET /newest HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let line = answer(send(&named.address, &request)).0;
        assert!(line.contains(status), "{host}: {line}");
    }
    for name in ["https://stats.example.org", "stats.example.org:443", "*.example.org"] {
        let mut wrong = hushflow(["tail", "--web", "127.0.0.1:0", "--served-as", name]);
        finish(wrong.arg(&state)).failed(2, &["expected the name of a host"]);
    }
    let mut unserved = hushflow(["tail", "--served-as", "stats.example.org"]);
    finish(unserved.arg(&state)).failed(2, &["--served-as is for what --web serves"]);
    let mut second_server = hushflow(["tail", "--web", &site.address]);
    finish(second_server.arg(&state)).failed(1, &["can't listen at", &site.address, "name a free HOST:PORT"]);
    let mut both = hushflow(["tail", "--follow", "--web", "127.0.0.1:0"]);
    finish(both.arg(&state)).failed(2, &["--web"]);
}

/// A pipeline over `rows` rows of numbers on standard input, with `per_epoch` per epoch, and these
/// rows.
fn plain(lab: &Lab, columns: usize, rows: usize, per_epoch: usize) -> (PathBuf, String) {
    let names: Vec<_> = (0..columns).map(|column| format!("c{column}")).collect();
    let bounds = names.iter().map(|name| format!("{{ name = '{name}', lower = -1, upper = 1 }}"));
    let bounds = bounds.collect::<Vec<_>>().join(", ");
    let text = format!(
        "name = 'plain'
source = {{ path = '-', format = 'csv' }}
columns = [{bounds}]
epochs = {{ records = {per_epoch}, horizon = {} }}
privacy = {{ epsilon = 1, delta = 1e-6 }}
release.strategy = 'identity'
simulation.seed = 1
",
        rows / per_epoch
    );
    let row = |row: usize| {
        (0..columns).map(|column| format!("0.{}", (row * 7 + column) % 10)).collect::<Vec<_>>().join(",")
    };
    let csv = [names.join(",")].into_iter().chain((0..rows).map(row)).map(|line| line + "\n").collect();
    (lab.write("plain.toml", text), csv)
}

/// While a run publishes more bytes than a connection buffers, some clients read none of them, and
/// one client follows.
#[test]
#[ignore = "slow"]
fn a_stalled_reader_delays_neither_the_run_nor_other_readers() {
    let lab = Lab::new();
    let (pipeline, csv) = plain(&lab, 24, 1600, 10);
    let state = lab.path("state");
    let mut run = run(&pipeline, &state, 1).stdin(Stdio::piped()).spawn().expect("the run starts");
    let (begin, rest) = csv.split_at(csv.len() / 10);
    let mut input = run.stdin.take().expect("a pipe");
    input.write_all(begin.as_bytes()).expect("the run reads");
    harness::await_until("the log begins", || !releases(&state).is_empty());
    let site = Site::of(&state, &[]);
    let request = format!("GET /events HTTP/1.1\r\nHost: {}\r\n\r\n", site.address);
    let stall = |_| {
        let client = send(&site.address, &request);
        set_socket_recv_buffer_size(&client, 4096).expect("a small buffer");
        client
    };
    let stalled: Vec<_> = (0..4).map(stall).collect();
    let following = std::thread::scope(|scope| {
        let following = scope.spawn(|| site.events("", ""));
        input.write_all(rest.as_bytes()).expect("the run reads");
        drop(input);
        wait(run).succeeded();
        following.join().expect("the follower gets to the end")
    });
    assert_eq!(releases(&state).len(), 160);
    assert!(following.iter().map(|event| event.0).eq(1..=160));
    let sent: usize = following.iter().map(|event| event.1.len()).sum();
    // Linux lets the sender's buffer grow to 4 MiB.
    assert!(sent > 9 << 19, "{sent} bytes fit no connection");
    drop(stalled);
}
