//! Metrics, each labelled with who may see it, and the log of a run.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};

use crate::harness::{Lab, answer, await_until, finish, hushflow, releases, run, send, served, wait};
use serde_json::Value;

const PIPELINE: &str = "name = 'watched'
source = { path = '-', format = 'csv', missing = 'skip', malformed = 'skip' }
columns = [{ name = 'x', lower = -1, upper = 1 }]
key = { column = 'key', values = ['a', 'b'] }
privacy = { epsilon = 1, delta = 1e-6 }
release.strategy = 'square-root'
[epochs]
time = 'event'
arrival = 'arrival'
start = '2020-01-01'
length = '10s'
allowed_lateness = '5s'
horizon = 100
";

/// Fourteen rows, some of them unusable, late or out of range. The clock closes one epoch midway
/// and another with the last row.
const ROWS: &str = "event,arrival,key,x
2019-12-31T23:59:58Z,2019-12-31T23:59:59Z,b,0.5
2020-01-01T00:00:01Z,2020-01-01T00:00:01Z,a,0.5
2020-01-01T00:00:02Z,2020-01-01T00:00:02Z,a,
2020-01-01T00:00:03Z,2020-01-01T00:00:03Z,a,no
2020-01-01T00:00:03Z,2020-01-01T00:00:03Z,a,unreadable-value
2020-01-01T00:00:04Z,2020-01-01T00:00:04Z,z,0.5
2020-01-01T00:00:04Z,2020-01-01T00:00:04Z,z,0.5
2020-01-01T00:00:04Z,2020-01-01T00:00:04Z,z,0.5
2020-01-01T00:00:16Z,2020-01-01T00:00:16Z,b,0.5
2020-01-01T00:00:02Z,2020-01-01T00:00:17Z,b,0.5
2020-01-01T00:00:03Z,2020-01-01T00:00:18Z,b,0.5
2020-01-01T00:00:04Z,2020-01-01T00:00:19Z,b,0.5
2020-01-01T00:00:05Z,2020-01-01T00:00:19Z,b,0.5
2020-01-01T00:00:26Z,2020-01-01T00:00:26Z,a,0.5
";

/// Starts a run that serves its metrics and waits for more rows after these.
fn begin(lab: &Lab, arguments: &[&str]) -> (Child, ChildStdin, String, PathBuf) {
    let state = lab.path("state");
    let mut command = run(&lab.write("p.toml", PIPELINE), &state, 1);
    let mut child = command.args(arguments).stdin(Stdio::piped()).spawn().unwrap();
    let (address, mut rest) = served(&mut child);
    std::thread::spawn(move || rest.by_ref().for_each(drop));
    let mut input = child.stdin.take().unwrap();
    input.write_all(ROWS.as_bytes()).unwrap();
    await_until("two epochs are published", || releases(&state).len() == 2);
    (child, input, address, state)
}

/// Returns the text, and every sample by its name and labels.
fn scrape(address: &str) -> (String, BTreeMap<String, f64>) {
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let (status, text) = answer(send(address, &request));
    assert_eq!(status, "HTTP/1.1 200 OK");
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let samples = samples.map(|line| line.rsplit_once(' ').unwrap());
    let samples = samples.map(|(name, value)| (name.to_owned(), value.parse().unwrap()));
    let samples: BTreeMap<String, f64> = samples.collect();
    assert!(samples.keys().all(|name| name.starts_with("hushflow_")), "{text}");
    (text, samples)
}

#[test]
fn metrics_count_events_and_mark_private_ones() {
    let lab = Lab::new();
    let (child, mut input, address, _) = begin(&lab, &["--metrics", "127.0.0.1:0"]);
    await_until("both are counted", || scrape(&address).1["hushflow_last_committed_epoch"] == 2.0);
    let read = |rows: f64| scrape(&address).1["hushflow_rows_read_total"] == rows;
    await_until("all rows are counted", || read(14.0));
    // A row that closes no epoch is counted before the next one comes.
    input.write_all(b"2020-01-01T00:00:27Z,2020-01-01T00:00:27Z,a,0.5\n").unwrap();
    await_until("the row is counted", || read(15.0));
    let (text, samples) = scrape(&address);
    assert_eq!(samples["hushflow_rows_closed"], 14.0, "the last row closed the second epoch");
    let reason = |reason: &str| samples[&format!("hushflow_exceptional_rows_total{{reason=\"{reason}\"}}")];
    assert_eq!(["missing", "malformed", "unknown_key", "before_start"].map(reason), [1.0, 2.0, 3.0, 1.0]);
    assert_eq!(reason("late_folded"), 4.0, "{text}");
    for (name, value) in [
        ("generation", 1.0),
        ("epochs_committed_total", 2.0),
        ("horizon_epochs", 100.0),
        ("frontier_lag_epochs", 0.0),
        ("waiting_batches", 0.0),
    ] {
        assert_eq!(samples[&format!("hushflow_{name}")], value, "{name} in {text}");
    }
    assert!(samples["hushflow_commit_seconds_sum"] > 0.0);
    let commits = samples["hushflow_commit_seconds_count"];
    assert!(
        (1.0..=2.0).contains(&commits) && commits == samples["hushflow_commit_seconds_bucket{le=\"+Inf\"}"]
    );
    assert!(samples["hushflow_frontier_lag_seconds"] > 86_400.0, "2020 is long ago");
    // Every family has a label; only exact counts are private.
    let families: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# HELP hushflow_")).collect();
    assert_eq!(families.len(), text.matches("# TYPE ").count());
    for family in families {
        let (name, about) = family.split_once(' ').unwrap();
        let reach = about.split('.').next().unwrap();
        let private = ["exceptional_rows_total", "rows_read_total"].contains(&name);
        assert_eq!(reach == "PRIVATE", private, "{family}");
        assert!(["PUBLIC", "LOAD", "PRIVATE"].contains(&reach), "{family}");
    }
    let (status, _) = answer(send(&address, "GET /metrics HTTP/1.1\r\nHost: rebound.example\r\n\r\n"));
    assert!(status.contains("421"), "{status}");
    let mut second = run(&lab.path("p.toml"), &lab.path("other"), 1);
    finish(second.args(["--metrics", &address])).failed(1, &["can't listen at", &address]);
    assert!(!lab.path("other").exists(), "nothing has begun");
    drop(input);
    assert!(wait(child).code == Some(0));
}

#[test]
fn exact_counts_are_served_on_loopback_or_on_request() {
    for (arguments, is_private) in
        [(&["--metrics", "0.0.0.0:0"][..], false), (&["--metrics", "0.0.0.0:0", "--metrics-private"], true)]
    {
        let lab = Lab::new();
        let (child, input, address, _) = begin(&lab, arguments);
        let (text, samples) = scrape(&address.replace("0.0.0.0", "127.0.0.1"));
        assert_eq!(text.contains("PRIVATE") && text.contains("exceptional"), is_private, "{text}");
        assert_eq!(text.contains("rows_read"), is_private, "{text}");
        assert_eq!(samples["hushflow_horizon_epochs"], 100.0);
        drop(input);
        assert!(wait(child).code == Some(0));
    }
    finish(&mut hushflow(["run", "p.toml", "--metrics-private"])).failed(2, &["--metrics"]);
}

#[test]
fn logs_report_where_a_run_resumes_and_how_it_ends() {
    let lab = Lab::new();
    lab.write("data.csv", ROWS);
    let text = PIPELINE.replace("path = '-'", "path = 'data.csv'");
    let pipeline = lab.write("p.toml", &text);
    let is_private = |pipeline: &PathBuf, arguments: &[&str]| {
        let ended = finish(run(pipeline, &lab.path("state"), 1).args(arguments));
        let lines = ended.err.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        (lines.collect::<Vec<_>>(), ended)
    };
    let json = ["--log", "debug", "--log-format", "json"];
    let (lines, _) = is_private(&pipeline, &json);
    let line_with =
        |message: &str| lines.iter().find(|line| line["message"] == message).cloned().unwrap_or_default();
    assert_eq!(line_with("a run begins")["pipeline"], "watched");
    assert_eq!(line_with("the run resumes after the last committed epoch")["first_epoch"], 1);
    assert_eq!(line_with("the epoch is durable and published")["level"], "DEBUG");
    assert_eq!(line_with("the run ended cleanly")["last_epoch"], 3);
    let (lines, _) = is_private(&pipeline, &["--log", "info", "--log-format", "json"]);
    let again = lines.iter().find(|line| line["first_epoch"] == 4);
    assert!(again.is_some_and(|line| line["generation"] == 2), "{lines:?}");
    assert!(lines.iter().all(|line| line["level"] == "INFO"), "{lines:?}");
    // A refused row: the log gives its position, not its contents.
    let strict = lab.write("strict.toml", text.replace("malformed = 'skip'", "malformed = 'reject'"));
    let mut command = run(&strict, &lab.path("strict"), 1);
    let ended = finish(command.args(["--log", "info"]));
    assert!(ended.err.contains("ERROR") && ended.err.contains("a fault has ended the run"), "{}", ended.err);
    assert!(!ended.err.contains("unreadable-value"), "{}", ended.err);
    ended.failed(1, &["data.csv"]);
    let (_, plain) = is_private(&pipeline, &["--log", "info"]);
    assert!(plain.err.contains("INFO") && plain.err.contains("a run begins"), "{}", plain.err);
    let (_, silent) = is_private(&pipeline, &[]);
    assert!(!silent.err.contains("a run begins"), "{}", silent.err);
    finish(&mut hushflow(["run", "p.toml", "--log-format", "json"])).failed(2, &["--log"]);
}

/// Returns everything that a run over these rows labels public, while it waits for more rows and
/// again after a restart: the public samples, and the log.
fn public(rows: &str) -> (BTreeMap<String, f64>, Vec<String>, BTreeMap<String, f64>) {
    let lab = Lab::new();
    let (state, pipeline) = (lab.path("state"), lab.write("p.toml", PIPELINE));
    let directory = lab.path("").display().to_string();
    let directory = directory.trim_end_matches('/');
    let begin = |rows: &str, epochs: usize| {
        let mut command = run(&pipeline, &state, 1);
        command.args(["--metrics", "127.0.0.1:0", "--log", "debug", "--log-format", "json"]);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let (address, rest) = served(&mut child);
        let messages = std::thread::spawn(move || rest.collect::<Vec<_>>());
        let mut input = child.stdin.take().unwrap();
        input.write_all(rows.as_bytes()).unwrap();
        await_until("the epochs are published", || releases(&state).len() == epochs);
        let read = "hushflow_rows_read_total";
        let lines = rows.lines().count() as f64 - 1.0;
        await_until("all rows have been read", || scrape(&address).1[read] >= lines - 4096.0);
        await_until("the epochs are counted", || {
            scrape(&address).1["hushflow_last_committed_epoch"] == epochs as f64
        });
        let (text, samples) = scrape(&address);
        let is_public = |name: &String| text.contains(&format!("# HELP {name} PUBLIC"));
        let samples = samples.into_iter().filter(|(name, _)| is_public(name)).collect();
        drop(input);
        assert_eq!(child.wait().unwrap().code(), Some(0));
        let lines = messages.join().unwrap().into_iter().map(|line| {
            let mut line: Value = serde_json::from_str(&line).unwrap_or(Value::String(line));
            line.as_object_mut().map(|fields| fields.remove("timestamp"));
            line.to_string().replace(directory, "")
        });
        // Two threads write lines, in an order that depends on scheduling.
        let mut lines: Vec<_> = lines.collect();
        lines.sort();
        (samples, lines)
    };
    let (samples, log) = begin(rows, 2);
    let (later, _) = begin(rows, 3);
    (samples, log, later)
}

/// Everything labelled public is equal for streams that differ only in rows that are unusable,
/// late, early or of another key.
#[test]
fn public_metrics_are_the_same_for_neighbours() {
    const ROWS: usize = 4200;
    let stream = |unusual: &[(usize, &str)]| {
        let mut rows = String::from("event,arrival,key,x\n");
        for number in 0..ROWS {
            let second = match number {
                0..4100 => "05",
                4100..4150 => "16",
                _ => "26",
            };
            let time = format!("2020-01-01T00:00:{second}Z");
            match unusual.iter().find(|(which, _)| *which == number) {
                Some((_, held)) => rows.push_str(&held.replace("NOW", &time)),
                None => rows.push_str(&format!("{time},{time},a,0.5")),
            }
            rows.push('\n');
        }
        rows
    };
    let plain = public(&stream(&[]));
    assert_eq!(
        plain.0["hushflow_rows_closed"], 4151.0,
        "the row that closed the second epoch is the last that counts"
    );
    assert!(plain.1.iter().any(|line| line.contains("the epoch is durable")), "{:?}", plain.1);
    let malformed: Vec<_> = (0..7).map(|number| (600 * number, "NOW,NOW,a,no")).collect();
    let cases: [&[(usize, &str)]; 6] = [
        &[(17, "NOW,NOW,a,no")],
        &malformed,
        &[(4095, "NOW,NOW,a,")],
        &[(4096, "NOW,NOW,z,0.5")],
        &[(3, "2020-01-01T00:00:29Z,NOW,b,0.5")],
        &[(4120, "2020-01-01T00:00:01Z,NOW,b,-0.5"), (4149, "2019-01-01T00:00:00Z,NOW,b,1")],
    ];
    for case in cases {
        let found = public(&stream(case));
        assert_eq!(found.0, plain.0, "{case:?}");
        assert_eq!(found.1, plain.1, "{case:?}");
        assert_eq!(found.2, plain.2, "{case:?}, after a restart");
    }
}
