//! Readers: the output of `tail` while a run publishes, and views compared with plain arithmetic on
//! the moments.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::harness::{Lab, Stream, await_full, await_until, finish, hushflow, releases, run, tail, wait};
use rustix::fs::{OFlags, fcntl_setfl};
use serde_json::Value;

const STREAM: Stream = Stream { rows: 2000, epochs: 20 };

/// A state directory with twenty epochs of seven keys.
fn published(lab: &Lab) -> PathBuf {
    lab.write("data.csv", STREAM.csv());
    let pipeline = lab.write("pipeline.toml", STREAM.pipeline("data.csv", ""));
    let state = lab.path("state");
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    state
}

/// Starts `tail --follow`; returns the process and its lines.
fn follow(command: &mut Command) -> (Child, impl Iterator<Item = Value> + use<>) {
    let mut child = command.spawn().expect("tail starts");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let parse =
        |line: std::io::Result<String>| serde_json::from_str(&line.expect("a line")).expect("a JSON line");
    (child, lines.map(parse))
}

#[test]
fn followers_see_every_epoch_as_it_is_committed_and_end_with_the_last_one() {
    let lab = Lab::new();
    let pipeline = lab.write("pipeline.toml", STREAM.pipeline("-", ""));
    let state = lab.path("state");
    let messages = lab.path("messages");
    let file = File::create(&messages).expect("a file");
    let (early, mut early_lines) = follow(tail(&state, &["--follow"]).stderr(file));
    await_until("the first follower waits", || {
        std::fs::read_to_string(&messages).is_ok_and(|text| text.contains("waiting"))
    });
    let mut run = run(&pipeline, &state, 2).stdin(Stdio::piped()).spawn().expect("the run starts");
    let mut input = run.stdin.take().expect("a pipe");
    let csv = STREAM.csv();
    let (header, rows) = csv.split_once('\n').expect("a header");
    writeln!(input, "{header}").expect("the run reads");
    let mut rows = rows.lines();
    // One row per second: after 100 t + 90 rows and one more, the clock has closed epoch t.
    let mut next = |number: usize| {
        rows.by_ref().take(number).for_each(|row| writeln!(input, "{row}").expect("the run reads"));
        input.flush().expect("the run reads");
    };
    next(91);
    for epoch in 1..=5 {
        next(100);
        let seen: Vec<_> = early_lines.by_ref().take(7).collect();
        assert!(seen.iter().all(|line| line["epoch"] == epoch), "{seen:?}");
        await_until("the log has the epoch", || releases(&state).len() == epoch);
    }
    let (late, late_lines) = follow(&mut tail(&state, &["--follow"]));
    next(usize::MAX);
    drop(input);
    wait(run).succeeded();
    let epochs =
        |lines: &mut dyn Iterator<Item = Value>| lines.map(|line| line["epoch"].as_u64()).collect::<Vec<_>>();
    let expected =
        |first: u64| (first..=STREAM.epochs).flat_map(|epoch| [Some(epoch); 7]).collect::<Vec<_>>();
    assert_eq!(epochs(&mut early_lines), expected(6));
    assert_eq!(epochs(&mut { late_lines }), expected(1));
    wait(early).succeeded();
    wait(late).succeeded();
}

/// Times that the threads of a process went to sleep.
fn sleeps(process: &Child) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{}/task", process.id())).expect("a process");
    let switches_of = |thread: std::io::Result<std::fs::DirEntry>| {
        let status = std::fs::read_to_string(thread.expect("a thread").path().join("status"));
        let status = status.expect("a status");
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse::<u64>().ok()).expect("a number")
    };
    threads.map(switches_of).sum()
}

/// Two workers that looked for records every half millisecond would sleep 4,000 times.
#[test]
fn a_run_without_records_sleeps() {
    let lab = Lab::new();
    let pipeline = lab.write("pipeline.toml", STREAM.pipeline("-", ""));
    let state = lab.path("state");
    let mut run = run(&pipeline, &state, 2).stdin(Stdio::piped()).spawn().expect("the run starts");
    let mut input = run.stdin.take().expect("a pipe");
    let first: Vec<_> = STREAM.csv().split_inclusive('\n').take(300).map(String::from).collect();
    input.write_all(first.concat().as_bytes()).expect("the run reads");
    await_until("the log has an epoch", || releases(&state).len() > 1);
    let before = sleeps(&run);
    std::thread::sleep(Duration::from_secs(1));
    let slept = sleeps(&run) - before;
    assert!(slept < 400, "{slept} times in a second");
    drop(input);
    wait(run).succeeded();
}

#[test]
fn a_reader_that_closes_the_pipe_early_is_success() {
    let lab = Lab::new();
    let state = published(&lab);
    for format in ["table", "json", "csv"] {
        let mut command = hushflow(["tail", "--format", format]);
        let mut child = command.arg(&state).spawn().expect("tail starts");
        let mut first = [0; 10];
        child.stdout.take().expect("a pipe").read_exact(&mut first).expect("a beginning");
        let ended = wait(child).succeeded();
        assert_eq!(ended.err, "", "{format}");
    }
    let pipeline = lab.path("pipeline.toml");
    let mut command = hushflow(["run", "--json"]);
    let again = lab.path("again");
    let mut child = command.arg(&pipeline).arg("--state").arg(&again).spawn().expect("the run starts");
    drop(child.stdout.take());
    wait(child).succeeded();
    assert_eq!(releases(&again).len(), 20, "the run goes on without its reader");
}

#[test]
fn only_the_requested_epochs_and_keys_are_shown() {
    let lab = Lab::new();
    let state = published(&lab);
    let shown = |arguments: &[&str]| {
        let lines = finish(&mut tail(&state, arguments)).succeeded().json();
        let name = |line: &Value| (line["epoch"].as_u64().unwrap_or(0), line["key"].to_string());
        lines.iter().map(name).collect::<Vec<_>>()
    };
    let keys = (0..7).map(|key| format!("\"k{key}\""));
    let all: Vec<_> = (1..=20).flat_map(|epoch| keys.clone().map(move |key| (epoch, key))).collect();
    let lines_where = |wanted: &dyn Fn(&(u64, String)) -> bool| {
        all.iter().filter(|line| wanted(line)).cloned().collect::<Vec<_>>()
    };
    assert_eq!(shown(&[]), all);
    assert_eq!(shown(&["--since", "18"]), lines_where(&|line| line.0 >= 18));
    assert_eq!(shown(&["--since", "21"]), []);
    let beyond = finish(&mut tail(&state, &["--since", "21"])).succeeded();
    assert!(beyond.err.contains("note: the log ends at epoch 20, before epoch 21"), "{}", beyond.err);
    finish(&mut tail(&state, &["--quantiles", "0.5"]))
        .failed(2, &["they need [[histograms]] in the pipeline file"]);
    assert_eq!(shown(&["--key", "k3"]), lines_where(&|line| line.1 == "\"k3\""));
    let two = shown(&["--key", "k6", "--key", "k0", "--since", "20"]);
    assert_eq!(two, lines_where(&|line| line.0 == 20 && ["\"k0\"", "\"k6\""].contains(&line.1.as_str())));
    finish(&mut tail(&state, &["--key", "k7"])).failed(2, &["--key k7", "no key with this name"]);
    finish(&mut tail(&state, &["--workload", "window:0"])).failed(2, &["window:0"]);
    finish(&mut tail(&lab.path("nowhere"), &[])).failed(1, &["nowhere"]);
}

/// Returns each key's numbers, epoch by epoch: count, first and second moments in one list.
fn moments(state: &Path, workload: &str) -> BTreeMap<String, Vec<Vec<f64>>> {
    let lines = finish(&mut tail(state, &["--view", "moments", "--workload", workload])).succeeded().json();
    let mut series: BTreeMap<String, Vec<Vec<f64>>> = BTreeMap::new();
    for line in lines {
        let mut numbers = Vec::new();
        ["count", "first", "second"].iter().for_each(|name| flatten(&line[*name], &mut numbers));
        assert_eq!(numbers.len(), 1 + 5 + 25);
        series.entry(line["key"].to_string()).or_default().push(numbers);
    }
    series
}

fn flatten(value: &Value, numbers: &mut Vec<f64>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| flatten(value, numbers)),
        value => numbers.push(value.as_f64().expect("a number")),
    }
}

/// Checks that the view applies these weights, by epoch t and step i ≤ t from 1, to the differences
/// of running sums.
fn check_view(state: &Path, workload: &str, weight: impl Fn(i32, i32) -> f64) {
    let (prefixes, views) = (moments(state, "prefix"), moments(state, workload));
    assert_eq!(views.len(), 7);
    for (key, view) in views {
        let prefix = &prefixes[&key];
        assert_eq!(view.len(), 20);
        for (t, found) in view.iter().enumerate() {
            for (index, &found) in found.iter().enumerate() {
                let before = |i: usize| if i == 0 { 0.0 } else { prefix[i - 1][index] };
                let terms =
                    (0..=t).map(|i| weight(t as i32 + 1, i as i32 + 1) * (prefix[i][index] - before(i)));
                let expected: f64 = terms.sum();
                let scale = 1.0 + prefix.iter().map(|sums| sums[index].abs()).fold(0.0, f64::max);
                assert!(
                    (found - expected).abs() <= 1e-10 * scale,
                    "{workload} {key} epoch {}: {found} for {expected}",
                    t + 1
                );
            }
        }
    }
}

#[test]
fn every_workload_is_its_weights_over_the_increments() {
    let lab = Lab::new();
    let state = published(&lab);
    check_view(&state, "average", |t, _| 1.0 / f64::from(t));
    check_view(&state, "window:7", |t, i| if t - i < 7 { 1.0 / 7.0 } else { 0.0 });
    check_view(&state, "window:1", |t, i| if t == i { 1.0 } else { 0.0 });
    check_view(&state, "exponential:0.75", |t, i| 0.75f64.powi(t - i));
}

/// On a terminal there is one table, redrawn in place, of the newest epoch.
#[test]
fn a_terminal_shows_the_newest_epoch_in_place() {
    let lab = Lab::new();
    let state = published(&lab);
    let binary = hushflow([""; 0]).get_program().display().to_string();
    let command = format!("stty rows 24 cols 200; '{binary}' tail '{}' --follow", state.display());
    let mut terminal = std::process::Command::new("script");
    terminal.args(["-qec", &command, "/dev/null"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let Ok(shown) = terminal.output() else {
        let _ = writeln!(std::io::stderr(), "skipped: a terminal is made by script, which is not installed");
        return;
    };
    let shown = String::from_utf8_lossy(&shown.stdout).replace('\r', "");
    assert_eq!(shown.matches("epoch").count(), 1, "one header: {shown}");
    let lines: Vec<_> = shown.lines().filter(|line| line.contains("2020-01-01T")).collect();
    assert_eq!(lines.len(), 7, "{shown}");
    assert!(lines.iter().all(|line| line.trim_start().starts_with("20 ")), "{shown}");
}

/// Histories can be compared: every reader prints the same run and link of a release.
#[test]
fn run_and_tail_stamp_every_release_alike() {
    let lab = Lab::new();
    lab.write("data.csv", STREAM.csv());
    let views = "[[views]]\nname = 'a'\nworkload = 'prefix'\n[[views]]\nname = 'b'\nworkload = 'window:3'\n";
    let pipeline = lab.write("pipeline.toml", STREAM.pipeline("data.csv", views));
    let state = lab.path("state");
    let mut command = hushflow(["run", "--json", "--workers", "2"]);
    let shown = finish(command.arg(&pipeline).arg("--state").arg(&state)).succeeded().json();
    let stamp = |line: &Value| {
        let field = |name: &str| line[name].to_string();
        (line["epoch"].as_u64(), (field("generation"), field("chain")))
    };
    let stamps: BTreeMap<_, _> =
        finish(&mut tail(&state, &[])).succeeded().json().iter().map(stamp).collect();
    assert_eq!(shown.len(), 2 * 7 * 20);
    assert!(shown.iter().map(stamp).all(|(epoch, stamp)| stamps.get(&epoch) == Some(&stamp)));
    let mut links: Vec<_> = stamps.values().map(|(_, chain)| chain).collect();
    links.sort();
    links.dedup();
    assert_eq!(links.len(), 20, "no two epochs have the same link");

    // A view of the file has its name, and its flags are those of the file.
    let named = |more: &[&str]| {
        let mut tail = hushflow(["tail", "--json"]);
        finish(tail.arg(&pipeline).arg("--state").arg(&state).args(more))
    };
    let of_run: Vec<&Value> = shown.iter().filter(|line| line["view"] == "b").collect();
    let lines = named(&["--view", "b"]).succeeded().json();
    assert_eq!(lines.iter().collect::<Vec<_>>(), of_run);
    assert_eq!(named(&[]).succeeded().json().len(), 7 * 20);
    named(&["--view", "c"]).failed(2, &["--view c: found no such view", "\"gaussian\"", "\"a\", \"b\""]);
    named(&["--view", "b", "--level", "0.9"]).failed(2, &["--level: the view \"b\" of the file sets it"]);
    finish(&mut tail(&state, &["--view", "b"])).failed(2, &["where its file is given"]);
    finish(&mut tail(&state, &["--public", "elsewhere"]))
        .failed(2, &["--public locates the log of a pipeline"]);
    let views = "[[views]]\nname = 'b'\nworkload = 'prefix'\nkeys = 'total'\n";
    let total = lab.write("total.toml", STREAM.pipeline("data.csv", views));
    let mut of_one = hushflow(["tail", "--view", "b", "--key", "1"]);
    finish(of_one.arg(total).arg("--state").arg(&state))
        .failed(2, &["--key: the view \"b\" of the file sets it: leave it out"]);
}

/// Another process that shares the pipe may have made it non-blocking.
#[test]
fn a_nonblocking_pipe_receives_every_line() {
    let lab = Lab::new();
    let stream = Stream { rows: 600, epochs: 60 };
    lab.write("data.csv", stream.csv());
    let pipeline = lab.write("p.toml", stream.pipeline("data.csv", ""));
    let state = lab.path("state");
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    let lines = finish(&mut tail(&state, &[])).succeeded().json().len();
    assert_eq!(lines, 60 * 7);
    let mut again = hushflow(["run", "--json"]);
    again.arg(&pipeline).arg("--state").arg(lab.path("again"));
    for mut command in [tail(&state, &[]), again] {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        fcntl_setfl(&writer, OFlags::NONBLOCK).expect("a flag of the pipe");
        let mut child = command.stdout(writer).spawn().expect("it starts");
        // The command holds the write end.
        drop(command);
        await_full(&reader);
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("UTF-8");
        assert!(child.wait().expect("it ends").success());
        assert_eq!(text.lines().count(), lines);
    }
}
