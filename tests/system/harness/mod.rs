//! Shared by the whole-system tests: a directory for files, the real binary, access to its logs,
//! and a plain computation of the expected sums.

pub(crate) mod means;
pub(crate) mod power;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use hushflow::mechanism::epochs::{ClockSource, LatePolicy, Schedule};
use hushflow::mechanism::moments::{Clipper, QuantisedRows};
use hushflow::pipeline::{Pipeline, Source};
use hushflow::state::{PublicHeader, PublicReader, ReleaseFrame, Store};
use hushflow::time::parse_time;
use serde_json::Value;
use tempfile::TempDir;

/// The first segment of the private log of a state directory.
pub(crate) const PRIVATE_LOG: &str = "private-000001.log";

/// A directory for one test's files.
pub(crate) struct Lab(TempDir);

impl Lab {
    pub(crate) fn new() -> Self {
        Lab(tempfile::tempdir().expect("a temporary directory"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("a file of the test is written");
        path
    }
}

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
        let ended = Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) };
        assert!(!ended.err.contains("panicked"), "{}", ended.err);
        ended
    }

    #[track_caller]
    pub(crate) fn succeeded(self) -> Self {
        assert_eq!(self.code, Some(0), "{}", self.err);
        self
    }

    /// Checks for the result of a signal: an orderly end, or, before anything is read, death by
    /// that signal.
    #[track_caller]
    pub(crate) fn stopped(self) {
        assert!(matches!(self.code, Some(0) | None), "{:?}: {}", self.code, self.err);
    }

    /// Checks for this exit code and a message with all these parts.
    #[track_caller]
    pub(crate) fn failed(self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.err);
        for part in parts {
            assert!(self.err.contains(part), "expected {part:?} in: {}", self.err);
        }
    }

    pub(crate) fn json(&self) -> Vec<Value> {
        self.out.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
    }
}

/// The binary with these arguments. Standard input is empty, and strategies it finds can't be
/// saved.
pub(crate) fn hushflow<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hushflow"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("HUSHFLOW_STRATEGIES", "/dev/null/kept");
    // The user's own ledger is disabled too.
    command.env_remove("HUSHFLOW_LEDGER").env("XDG_CONFIG_HOME", "/dev/null/configured");
    command
}

/// Runs to the end.
pub(crate) fn finish(command: &mut Command) -> Ended {
    Ended::of(command.output().expect("the binary starts"))
}

/// Waits for a started process.
pub(crate) fn wait(child: Child) -> Ended {
    Ended::of(child.wait_with_output().expect("the process ends"))
}

/// Sends the signal that service managers use to end a process.
pub(crate) fn stop(child: &Child) {
    let status = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(status.expect("a signal is sent").success());
}

/// `hushflow run`, quietly.
pub(crate) fn run(pipeline: &Path, state: &Path, workers: usize) -> Command {
    let mut command = hushflow(["run", "--quiet", "--workers", &workers.to_string()]);
    command.arg(pipeline).arg("--state").arg(state);
    command
}

/// Free ports for two processes, in the form of `--hosts`.
pub(crate) fn free_hosts() -> String {
    let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    ports.each_ref().map(|port| port.local_addr().expect("a bound port").to_string()).join(",")
}

/// `hushflow run` as a cluster of two processes on free ports.
pub(crate) fn run_as_two(pipeline: &Path, state: &Path, workers: usize) -> [Command; 2] {
    let hosts = free_hosts();
    ["0", "1"].map(|process| {
        let mut command = run(pipeline, state, workers);
        command.args(["--hosts", &hosts, "--process", process]);
        command
    })
}

/// `hushflow tail --json` with more arguments.
pub(crate) fn tail(state: &Path, arguments: &[&str]) -> Command {
    let mut command = hushflow(["tail", "--json"]);
    command.arg(state).args(arguments);
    command
}

/// Sends a request unchanged; returns the connection, whose reads time out.
pub(crate) fn send(address: &str, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("somebody listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    stream.write_all(request.as_bytes()).expect("the request is taken");
    stream
}

/// Returns the status line and the body of an answer.
pub(crate) fn answer(mut stream: TcpStream) -> (String, String) {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

/// Returns the address of the page that a process serves, and its further output.
pub(crate) fn served(child: &mut Child) -> (String, impl Iterator<Item = String> + use<>) {
    let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let mut lines = lines.map(|line| line.expect("a line"));
    let line = lines.find(|line| line.starts_with("http://")).expect("it says where the page is");
    (line["http://".len()..].split('/').next().expect("an address").to_owned(), lines)
}

/// Waits until `ready`, for at most twenty seconds.
#[track_caller]
pub(crate) fn await_until(what: &str, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !ready() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the public log, checking that every epoch occurs once, in order; empty if there is none
/// yet.
pub(crate) fn releases(state: &Path) -> Vec<ReleaseFrame> {
    let Ok(mut reader) = PublicReader::open(state) else { return Vec::new() };
    let frames: Vec<_> = std::iter::from_fn(|| reader.next_frame().expect("a sound public log")).collect();
    assert!(frames.iter().map(|frame| frame.epoch).eq(1..=frames.len() as u64));
    frames
}

/// Returns the exact sums of every committed epoch, if all are kept: in a copy without checkpoints
/// the store replays the whole log.
pub(crate) fn sums(state: &Path) -> Vec<Vec<i128>> {
    let (_lab, copy) = copied(state);
    let header = PublicReader::open(&copy).expect("a public log").header().clone();
    let (_store, recovered) = Store::open(&copy, &header).expect("a sound state");
    let frames = recovered.replay.map(|frame| frame.expect("a sound frame"));
    let sums: Vec<_> = frames.zip(1..).inspect(|(frame, epoch)| assert_eq!(frame.epoch, *epoch)).collect();
    sums.into_iter().map(|(frame, _)| frame.sums.to_vec()).collect()
}

/// Returns the position at which a start resumes, if a commit has recorded one: the file, or the
/// session of a journal, and the offset.
pub(crate) fn recorded(state: &Path) -> Option<(u32, u64)> {
    let (_lab, copy) = copied(state);
    // The public log may be garbage after a power cut; the start of the private one never is.
    let first = copy.join(PRIVATE_LOG);
    let payload = frames(&first).first().map(|frame| frame.start as usize + 24..frame.end as usize)?;
    let payload = std::fs::read(&first).expect("a log")[payload].to_vec();
    let (private, parameters) = payload.split_last().expect("parameters, and whether the noise is private");
    let header = PublicHeader { parameters: parameters[8..].to_vec(), private: *private == 1 };
    let (_store, recovered) = Store::open(&copy, &header).expect("a sound state");
    let place = recovered.positions.last()?;
    let file = place.payload.first_chunk().expect("a position begins with the number of its file");
    Some((u32::from_le_bytes(*file), place.offset))
}

/// Copies the logs of a state directory.
fn copied(state: &Path) -> (Lab, PathBuf) {
    let lab = Lab::new();
    let copy = lab.path("copy");
    std::fs::create_dir(&copy).expect("a directory for the copy");
    std::fs::set_permissions(&copy, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("mode 0700");
    for name in logs(state) {
        std::fs::copy(state.join(&name), copy.join(&name)).expect("a log to copy");
    }
    (lab, copy)
}

/// Returns the names of the logs in a state directory, in order.
pub(crate) fn logs(state: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(state).expect("a state directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    let mut logs: Vec<String> = names.filter(|name| name.ends_with(".log")).collect();
    logs.sort();
    logs
}

/// A row that joins an epoch.
pub(crate) struct Assigned {
    /// From 1.
    pub(crate) epoch: usize,
    pub(crate) key: usize,
    /// Its entity; empty if single records are protected.
    pub(crate) entity: String,
    pub(crate) values: Vec<f64>,
}

/// Returns the number of epochs and, in order, the rows of a pipeline that join an epoch, computed
/// by plain loops. Each source is one CSV file.
pub(crate) fn assigned(pipeline: &Pipeline) -> (usize, Vec<Assigned>) {
    let mut seen = HashSet::new();
    let read: Vec<_> = pipeline.sources.iter().map(|source| read(pipeline, source, &mut seen)).collect();
    let last = read.iter().map(|(last, _)| *last).max().expect("a source");
    (last, read.into_iter().flat_map(|(_, rows)| rows).collect())
}

/// Returns the rows of one source without copies of those in `seen`: whole rows, with their epochs.
fn read(
    pipeline: &Pipeline,
    source: &Source,
    seen: &mut HashSet<(i64, Vec<String>)>,
) -> (usize, Vec<Assigned>) {
    let Schedule::ByTime(by) = &source.schedule else { panic!("epochs are made of time") };
    let epoch_at = |time: i64| 1 + (time - by.start).div_euclid(by.length);
    let clock_column =
        if by.clock == ClockSource::EventTime { &pipeline.epochs.time } else { &source.arrival };

    let (mut rows, mut last, mut clock) = (Vec::new(), 0, i64::MIN);
    let mut reader = csv::Reader::from_path(source.input.to_string()).expect("the data");
    let header = reader.headers().expect("a header").clone();
    let place = |name: &str| header.iter().position(|found| found == name).expect("the column");
    let time_of = |row: &csv::StringRecord, column: &Option<String>| {
        parse_time(&row[place(column.as_ref().expect("a column of times"))]).expect("a time")
    };
    for row in reader.records() {
        let row = row.expect("a row");
        let arrival = time_of(&row, clock_column);
        if source.largest_jump.is_some_and(|jump| arrival > clock.max(by.start) + jump) {
            continue;
        }
        clock = clock.max(arrival);
        let (oldest, newest) = (epoch_at(clock - by.lateness).max(1), epoch_at(clock));
        last = last.max(newest.clamp(0, by.horizon as i64) as usize);
        let values: Option<Vec<f64>> =
            pipeline.columns.iter().map(|column| row[place(&column.name)].parse().ok()).collect();
        let own = epoch_at(time_of(&row, &pipeline.epochs.time)).min(newest);
        let epoch = own.max(oldest);
        let key = pipeline
            .key
            .as_ref()
            .map_or(Some(0), |key| key.values.iter().position(|value| *value == row[place(&key.column)]));
        let (Some(values), Some(key)) = (values, key) else { continue };
        let dropped = own < oldest && by.late == LatePolicy::Drop;
        if clock < by.start || epoch > by.horizon as i64 || dropped {
            continue;
        }
        let entity =
            pipeline.entity.as_ref().map_or(String::new(), |entity| row[place(&entity.column)].into());
        if pipeline.id.is_none() || seen.insert((epoch, row.iter().map(String::from).collect())) {
            rows.push(Assigned { epoch: epoch as usize, key, entity, values });
        }
    }
    (last, rows)
}

/// The exact sums of rows, epoch by epoch.
pub(crate) fn sums_of(pipeline: &Pipeline, epochs: usize, rows: &[Assigned]) -> Vec<Vec<i128>> {
    let bounds: Vec<_> = pipeline.columns.iter().map(|column| (column.lower, column.upper)).collect();
    let clipper = Clipper::new(&bounds, pipeline.privacy.clip_norm).expect("bounds");
    let d = bounds.len();
    let width = 1 + d + d * (d + 1) / 2;
    let keys = pipeline.key.as_ref().map_or(1, |key| key.values.len());
    let mut sums = vec![vec![0; keys * width]; epochs];
    for row in rows {
        let mut quantised = QuantisedRows::new(d);
        clipper.quantise(&row.values, &mut quantised).expect("finite values");
        let q: Vec<i128> = quantised.values().iter().map(|&value| value as i128).collect();
        let products = (0..d).flat_map(|i| (i..d).map(move |j| (i, j))).map(|(i, j)| q[i] * q[j]);
        let record = [1].into_iter().chain(q.iter().copied()).chain(products);
        let places = sums[row.epoch - 1][row.key * width..].iter_mut();
        places.zip(record).for_each(|(sum, part)| *sum += part);
    }
    sums
}

/// Returns the sums expected of a pipeline over CSV files that protects single records.
pub(crate) fn expected_sums(pipeline: &Path) -> Vec<Vec<i128>> {
    let pipeline = Pipeline::load(pipeline).expect("a pipeline");
    let (epochs, rows) = assigned(&pipeline);
    sums_of(&pipeline, epochs, &rows)
}

/// A frame of a log or a checkpoint (`docs/formats.md`).
pub(crate) struct FramePlace {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) kind: u8,
    /// In the private log, the synced length of the file when it was written.
    pub(crate) synced: u64,
    /// The epoch of frames that have one; else 0.
    pub(crate) epoch: u64,
}

/// Returns the frames of a file up to its end or the first incomplete one; empty without a file.
/// Ignores checksums: lengths and kinds detect zeros and garbage.
pub(crate) fn frames(file: &Path) -> Vec<FramePlace> {
    let bytes = std::fs::read(file).unwrap_or_default();
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let mut frames = Vec::new();
    let mut start = 16;
    while start + 24 <= bytes.len() {
        let kind = bytes[start + 4];
        let end = start + 24 + (number(start) as u32) as usize;
        if !(1..=17).contains(&kind) || end > bytes.len() {
            break;
        }
        let epoch = if (3..=5).contains(&kind) && end >= start + 40 { number(start + 32) } else { 0 };
        frames.push(FramePlace {
            start: start as u64,
            end: end as u64,
            kind,
            synced: number(start + 8),
            epoch,
        });
        start = end;
    }
    frames
}

/// Returns the range of a log's last frame.
pub(crate) fn last_frame(log: &Path) -> Range<u64> {
    let frames = frames(log);
    let last = frames.last().expect("a frame");
    last.start..last.end
}

/// Cuts a log short.
pub(crate) fn cut(log: &Path, length: u64) {
    let file = std::fs::File::options().write(true).open(log).expect("a log");
    file.set_len(length).expect("a file can be cut");
}

/// Returns the cases of a file of reference numbers.
pub(crate) fn cases(vectors: &str) -> Vec<Value> {
    let vectors: Value = serde_json::from_str(vectors).expect("reference numbers are JSON");
    vectors["cases"].as_array().expect("a list of cases").clone()
}

pub(crate) fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Checks a number to this relative error.
#[track_caller]
pub(crate) fn close(what: &str, found: &Value, expected: f64, relative: f64) {
    let found = number(found);
    assert!((found - expected).abs() <= relative * expected.abs() + 1e-12, "{what}: {found}, not {expected}");
}

/// Converts a workload of the reference numbers to the command line's form.
pub(crate) fn workload(input: &Value) -> String {
    match input["workload"].as_str().expect("a name") {
        "exp" => format!("exponential:{}", input["param"]),
        parametric @ ("window" | "momentum" | "adam") => format!("{parametric}:{}", input["param"]),
        plain => plain.into(),
    }
}

/// Splitmix64 (Steele, Lea & Flood 2014): test data from a seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % bound
    }
}

/// An artificial stream: five columns, seven keys, one row per second of arrival, and events up to
/// `LATENESS` seconds before or, every hundredth row, after the arrival.
pub(crate) struct Stream {
    pub(crate) rows: u64,
    pub(crate) epochs: u64,
}

const LATENESS: u64 = 90;

impl Stream {
    /// Writes it as `data.csv` in a new lab; returns the lab, the header, the rows with their line
    /// ends, and the expected sums.
    pub(crate) fn laid_out(&self) -> (Lab, String, Vec<String>, Vec<Vec<i128>>) {
        let (lab, text) = (Lab::new(), self.csv());
        lab.write("data.csv", &text);
        let expected = expected_sums(&lab.write("file.toml", self.pipeline("data.csv", "")));
        let mut lines = text.split_inclusive('\n').map(String::from);
        let header = lines.next().expect("a header");
        (lab, header, lines.collect(), expected)
    }

    pub(crate) fn csv(&self) -> String {
        let mut random = Random(self.rows);
        let mut text = String::from("event,arrival,key,a,b,c,d,e\n");
        for second in 0..self.rows {
            let early = second % 100 == 99;
            let offset = random.below(LATENESS);
            let event = if early { second + offset } else { second.saturating_sub(offset) };
            let _ = write!(text, "{},{},k{}", time(event), time(second), random.below(8));
            for _ in 0..5 {
                let _ = write!(text, ",{}.{:03}", random.below(24) as i64 - 12, random.below(1000));
            }
            text.push('\n');
        }
        text
    }

    /// The pipeline over `path`, which keeps all sums, with more sections at its end.
    pub(crate) fn pipeline(&self, path: &str, more: &str) -> String {
        let column = |name| format!("[[columns]]\nname = '{name}'\nlower = -10\nupper = 10\n");
        let columns: String = ["a", "b", "c", "d", "e"].map(column).concat();
        format!(
            "name = 'stream'
[source]
path = '{path}'
format = 'csv'
{columns}[key]
column = 'key'
values = ['k0', 'k1', 'k2', 'k3', 'k4', 'k5', 'k6']
[epochs]
time = 'event'
arrival = 'arrival'
start = '2020-01-01'
length = '{}s'
allowed_lateness = '{LATENESS}s'
horizon = {}
[privacy]
epsilon = 1
delta = 1e-6
clip_norm = 1.5
[state]
keep = 'all'
[release]
strategy = 'square-root'
{more}",
            self.rows / self.epochs,
            self.epochs,
        )
    }
}

fn time(second: u64) -> String {
    let (day, hour, minute) = (1 + second / 86_400, second / 3600 % 24, second / 60 % 60);
    format!("2020-01-{day:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
}
