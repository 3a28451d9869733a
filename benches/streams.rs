//! Runs the binary for minutes on streams of eight columns and measures the latency of epochs,
//! memory over time, and the cost of 100,000 keys.
//!
//! Run `cargo bench --bench streams -- latency memory keys`, or with only some of the three names.
//! `HUSHFLOW_SECONDS` and `HUSHFLOW_RECORDS` set the length of the first two. `docs/benchmarks.md`
//! lists results. The state is on the disk of the build directory.
#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::fmt::Write as _;
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use hushflow::state::PublicReader;
use tempfile::TempDir;

const COLUMNS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// Number of rows, which are generated once and sent repeatedly.
const ROWS: usize = 100_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let measures = arguments.iter().any(|argument| argument == "--bench");
    let chosen: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    // `cargo test --all-targets` starts benchmarks, too.
    let wanted = |name: &str| measures && (chosen.is_empty() || chosen.iter().any(|chosen| *chosen == name));
    if wanted("latency") {
        latency(setting("HUSHFLOW_SECONDS", 60));
    }
    if wanted("memory") {
        memory(setting("HUSHFLOW_RECORDS", 100_000_000));
    }
    if wanted("keys") {
        keys();
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Sends 100,000 records a second into a socket, in ten epochs a second, with 1,000 keys.
fn latency(seconds: u64) {
    // Numbers of records.
    const PER_MILLISECOND: usize = 100;
    const PER_EPOCH: usize = 10_000;
    let directory = BenchDirectory::new();
    let socket = directory.path("socket");
    let source = format!("unix-listen://{}", socket.display());
    let epochs = seconds * 1000 * PER_MILLISECOND as u64 / PER_EPOCH as u64;
    let run = directory.run(&pipeline(&source, 1000, PER_EPOCH, epochs), 1);
    let lines = rows(1000);
    let ends = lines.match_indices('\n').map(|(at, _)| at + 1);
    let ends = ends.skip(PER_MILLISECOND - 1).step_by(PER_MILLISECOND);
    let cuts: Vec<usize> = std::iter::once(0).chain(ends).collect();
    let mut peer = retry(|| UnixStream::connect(&socket).ok());
    peer.write_all(header().as_bytes()).expect("the run listens");
    let seen = watch(directory.state());
    let mut sent = Vec::new();
    let begin = Instant::now();
    for tick in 0..seconds * 1000 {
        let at = tick as usize % (cuts.len() - 1);
        thread::sleep((begin + Duration::from_millis(tick)).saturating_duration_since(Instant::now()));
        let before = Instant::now();
        peer.write_all(&lines.as_bytes()[cuts[at]..cuts[at + 1]]).expect("the run listens");
        if ((tick as usize + 1) * PER_MILLISECOND).is_multiple_of(PER_EPOCH) {
            sent.push(before);
        }
    }
    let rate = (seconds * 1000 * PER_MILLISECOND as u64) as f64 / begin.elapsed().as_secs_f64();
    let mut delays: Vec<Duration> =
        seen.iter().take(sent.len()).map(|(epoch, seen)| seen - sent[epoch as usize - 1]).skip(10).collect();
    delays.sort();
    let quantile = |share: f64| delays[((delays.len() - 1) as f64 * share) as usize];
    println!(
        "latency: {rate:.0} records/s, {} epochs: p50 {:.1?}, p90 {:.1?}, p99 {:.1?}, longest {:.1?}",
        delays.len(),
        quantile(0.5),
        quantile(0.9),
        quantile(0.99),
        quantile(1.0)
    );
    run.stop();
}

/// Sends records through a pipe as fast as the run reads them, and prints resident memory at powers
/// of ten.
fn memory(records: u64) {
    /// Number of records.
    const PER_EPOCH: usize = 1_000_000;
    let directory = BenchDirectory::new();
    // Another epoch, so that the last record does not end the run.
    let mut run = directory.run(&pipeline("-", 1000, PER_EPOCH, records.div_ceil(PER_EPOCH as u64) + 1), 1);
    let mut input = run.child.stdin.take().expect("a pipe");
    input.write_all(header().as_bytes()).expect("the run reads");
    let lines = rows(1000);
    let begin = Instant::now();
    for sent in (ROWS as u64..=records).step_by(ROWS) {
        input.write_all(lines.as_bytes()).expect("the run reads");
        if sent.ilog10() > (sent - 1).ilog10() || sent == records {
            println!("memory: {sent:e} records in {:.1?}: {} resident", begin.elapsed(), run.memory("VmRSS"));
        }
    }
    println!("memory: {} at most", run.memory("VmHWM"));
    drop(input);
    run.wait();
}

/// Publishes five epochs of 100,000 keys from a file, then starts the finished run again.
fn keys() {
    /// Number of records.
    const PER_EPOCH: usize = 500_000;
    const EPOCHS: usize = 5;
    let directory = BenchDirectory::new();
    let lines = rows(ROWS);
    fs::write(directory.path("data.csv"), header() + &lines.repeat(PER_EPOCH * EPOCHS / ROWS))
        .expect("there is room");
    for again in ["", " again, nothing to do:"] {
        let begin = Instant::now();
        let run = directory.run(&pipeline("data.csv", ROWS, PER_EPOCH, EPOCHS as u64), 2);
        let seen = watch(directory.state());
        let peak = run.wait_and_watch();
        let times = seen
            .iter()
            .take(EPOCHS)
            .map(|(_, seen)| format!("{:.1?}", seen.saturating_duration_since(begin)));
        println!(
            "keys: run{again} {:.1?}, at most {peak}; epochs public after {}",
            begin.elapsed(),
            times.collect::<Vec<_>>().join(", ")
        );
    }
    for entry in fs::read_dir(directory.state()).expect("a state directory") {
        let entry = entry.expect("an entry");
        let bytes = entry.metadata().map_or(0, |file| file.len());
        println!("keys: {} of {bytes} bytes", entry.file_name().display());
    }
}

fn pipeline(source: &str, keys: usize, records: usize, horizon: u64) -> String {
    let columns = COLUMNS.map(|name| format!("{{ name = '{name}', lower = -1, upper = 1 }}")).join(", ");
    let keys: Vec<String> = (0..keys).map(|key| format!("'k{key}'")).collect();
    format!(
        "name = 'streams'\nsource = {{ path = '{source}', format = 'csv' }}\ncolumns = [{columns}]\n\
         key = {{ column = 'key', values = [{}] }}\nepochs = {{ records = {records}, horizon = {horizon} }}\n\
         privacy = {{ epsilon = 1, delta = 1e-6 }}\nrelease.strategy = 'identity'\n",
        keys.join(", ")
    )
}

fn header() -> String {
    format!("key,{}\n", COLUMNS.join(","))
}

/// Returns rows without a header, with keys in scattered order.
fn rows(keys: usize) -> String {
    let mut rows = String::new();
    for row in 0..ROWS {
        let _ = write!(rows, "k{}", row * 7919 % keys);
        for column in 0..COLUMNS.len() {
            let _ = write!(rows, ",{:.4}", ((row + column * 17) as f64).sin());
        }
        rows.push('\n');
    }
    rows
}

/// Sends every epoch with the time when it appears in the public log.
fn watch(state: PathBuf) -> Receiver<(u64, Instant)> {
    let (sender, seen) = channel();
    thread::spawn(move || follow(&state, &sender));
    seen
}

/// Follows the log until the receiver or the log is gone.
fn follow(state: &Path, seen: &Sender<(u64, Instant)>) {
    let mut reader = retry(|| PublicReader::open(state).ok());
    loop {
        match reader.next_frame() {
            Err(_) if !state.exists() => return,
            frame => match frame.expect("a sound log") {
                Some(frame) if seen.send((frame.epoch, Instant::now())).is_err() => return,
                Some(_) => {}
                None => thread::sleep(Duration::from_micros(200)),
            },
        }
    }
}

fn retry<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    loop {
        match attempt() {
            Some(found) => return found,
            None => thread::sleep(Duration::from_millis(5)),
        }
    }
}

struct BenchDirectory(TempDir);

impl BenchDirectory {
    fn new() -> Self {
        BenchDirectory(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("there is room"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn state(&self) -> PathBuf {
        self.path("state")
    }

    fn run(&self, pipeline: &str, workers: usize) -> BenchRun {
        let file = self.path("pipeline.toml");
        fs::write(&file, pipeline).expect("there is room");
        let mut command = Command::new(env!("CARGO_BIN_EXE_hushflow"));
        command.arg("run").arg(file).arg("--state").arg(self.state());
        command.args(["--quiet", "--workers", &workers.to_string()]).stdin(Stdio::piped());
        BenchRun { child: command.spawn().expect("the binary starts") }
    }
}

struct BenchRun {
    child: Child,
}

impl BenchRun {
    /// Returns a value of the process from `/proc`, or an empty text after its end.
    fn memory(&self, name: &str) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|line| line[1..].trim().to_owned()).unwrap_or_default()
    }

    /// Waits for the end of the run and returns its peak resident memory.
    fn wait_and_watch(mut self) -> String {
        let mut peak = String::new();
        loop {
            let now = self.memory("VmHWM");
            if !now.is_empty() {
                peak = now;
            }
            if let Some(status) = self.child.try_wait().expect("a child") {
                assert!(status.success(), "{status}");
                return peak;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn wait(mut self) {
        let status = self.child.wait().expect("a child");
        assert!(status.success(), "{status}");
    }

    fn stop(self) {
        let signal = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        assert!(signal.expect("a signal is sent").success());
        self.wait();
    }
}
