//! Secrets: no exact sums in output, public files or what is served, no private types in formatted
//! output, no memory in core dumps. (`input.rs` checks values of rows in messages.)

use std::collections::HashSet;
use std::fmt::Debug;
use std::io::{BufRead, BufReader, Write};
use std::marker::PhantomData;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{
    Lab, PRIVATE_LOG, Random, answer, await_until, finish, gather, hushflow, releases, send, served, sums,
    wait,
};
use hushflow::mechanism::moments::{Accumulators, QuantisedRows, Sums};
use hushflow::mechanism::noise::{DiscreteGaussian, NoiseGenerator};
use hushflow::mechanism::release::ReleaseShard;
use hushflow::operators::{EpochCommit, PartialSums, QuantisedRecords, Records, ShardRelease};
use hushflow::source::{SourceEvent, SourceReader};
use hushflow::state::{Checkpoint, EpochFrame, RecoveredState, Replay, Store};
use serde_json::Value;

/// Tells whether a type can be printed: its own constant, if it has one, takes precedence over the
/// trait's.
struct Probe<T>(PhantomData<T>);

trait Silent {
    const PRINTS: bool = false;
}

impl<T> Silent for Probe<T> {}

impl<T: Debug> Probe<T> {
    const PRINTS: bool = true;
}

#[test]
fn private_types_cannot_be_printed() {
    macro_rules! silent {
        ($($private:ty),* $(,)?) => { $(const { assert!(!Probe::<$private>::PRINTS, stringify!($private)) };)* };
    }
    const { assert!(Probe::<Vec<i128>>::PRINTS, "the probe sees what prints") };
    silent![
        Records,
        QuantisedRecords,
        PartialSums,
        ShardRelease,
        EpochCommit<u64>,
        SourceEvent,
        SourceReader
    ];
    silent![QuantisedRows, Sums, Accumulators, ReleaseShard, DiscreteGaussian, NoiseGenerator];
    silent![EpochFrame, Checkpoint, RecoveredState, Replay, Store];
}

const EPOCHS: usize = 40;

/// Length of the prefix used to search the output.
const HEAD: usize = 5;

const PIPELINE: &str = "name = 'secret'
source.path = 'data.csv'
columns = [{ name = 'x', lower = -1, upper = 1 }, { name = 'y', lower = -1, upper = 1 }]
epochs = { records = 5, horizon = 60 }
privacy = { epsilon = 1, delta = 1e-6 }
release.strategy = 'square-root'
state.directory = 'state'
";

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = |chunk: &[u8]| {
        let bits = (0..3).fold(0, |bits, i| bits << 8 | u32::from(chunk.get(i).copied().unwrap_or(0)));
        (0..=chunk.len())
            .map(move |i| DIGITS[(bits >> (18 - 6 * i) & 63) as usize] as char)
            .collect::<String>()
    };
    bytes.chunks(3).map(digits).collect()
}

/// Returns an exact sum in every form in which it might leak.
fn forms(sum: i128) -> Vec<Vec<u8>> {
    let little = (sum as i64).to_le_bytes();
    let texts = [
        sum.to_string(),
        format!("{sum:x}"),
        format!("{little:?}"),
        base64(&little),
        base64(sum.to_string().as_bytes()),
    ];
    let bytes = [little, (sum as i64).to_be_bytes(), (sum as f64).to_le_bytes(), (sum as f64).to_be_bytes()];
    texts.into_iter().map(String::into_bytes).chain(bytes.map(Vec::from)).collect()
}

/// Returns the output of all commands on a state directory, damaged or not, and the files readable
/// by everyone.
fn shown(lab: &Lab, pipeline: &Path) -> Vec<u8> {
    let state = lab.path("state");
    let mut shown = Vec::new();
    let mut take = |command: &mut Command| {
        command.env("RUST_BACKTRACE", "full").env("RUST_LOG", "trace");
        let output = command.output().unwrap();
        assert!(output.status.code().is_some_and(|code| code < 3), "{output:?}");
        shown.extend([output.stdout, output.stderr].concat());
    };
    take(hushflow(["verify"]).arg(&state));
    take(hushflow(["verify", "--json"]).arg(&state));
    take(hushflow(["tail", "--json"]).arg(&state));
    take(hushflow(["run", "--counters", "--log", "debug"]).arg(pipeline));
    take(hushflow(["run", "--counters", "--log", "debug", "--log-format", "json"]).arg(pipeline));
    shown.extend(std::fs::read(state.join("public.log")).unwrap_or_default());
    shown
}

/// The rows of a stream, as lines of CSV.
fn rows(count: usize) -> String {
    let mut random = Random(5);
    let mut number = || random.below(2_000_000) as f64 / 1e6 - 1.0;
    (0..count).map(|_| format!("{},{}\n", number(), number())).collect()
}

/// The exact sums of a state directory that are too large to appear by chance, in all forms.
struct Canaries {
    forms: Vec<Vec<u8>>,
    heads: HashSet<Vec<u8>>,
}

impl Canaries {
    fn of(state: &Path) -> Self {
        let sums: Vec<_> = sums(state).concat().into_iter().filter(|sum| sum.abs() > 1_000_000_000).collect();
        assert!(sums.len() >= 100, "{} sums are too large to appear by chance", sums.len());
        let forms: Vec<_> = sums.into_iter().flat_map(forms).collect();
        let heads = forms.iter().map(|form| form[..HEAD].to_vec()).collect();
        Canaries { forms, heads }
    }

    fn search(&self, what: &str, shown: &[u8]) {
        for (at, _) in shown.windows(HEAD).enumerate().filter(|(_, window)| self.heads.contains(*window)) {
            let leaked = self.forms.iter().find(|form| shown[at..].starts_with(form));
            assert!(leaked.is_none(), "{what}: {:?}", leaked.map(|form| String::from_utf8_lossy(form)));
        }
    }
}

#[test]
fn no_output_contains_exact_sums_of_damaged_logs() {
    let lab = Lab::new();
    let rows = rows(5 * EPOCHS);
    lab.write("data.csv", format!("x,y\n{rows}"));
    let pipeline = lab.write("p.toml", PIPELINE);
    let run = hushflow(["run", "--quiet", "--log", "debug"]).arg(&pipeline).output().unwrap();
    assert!(run.status.success());
    let log = String::from_utf8(run.stderr).unwrap();
    assert!(log.contains("the epoch is durable"), "{log}");
    let values = rows.split([',', '\n']).filter(|value| value.len() >= HEAD);
    values.for_each(|value| assert!(!log.contains(value), "{value} in: {log}"));
    let state = lab.path("state");
    let canaries = Canaries::of(&state);
    canaries.search("the log of the run", log.as_bytes());
    let check = |what: &str| canaries.search(what, &shown(&lab, &pipeline));
    check("a sound directory");
    let files = [PRIVATE_LOG, "public.log", "checkpoint.a", "checkpoint.b"];
    for name in files.into_iter().filter(|name| state.join(name).exists()) {
        let path = state.join(name);
        let sound = std::fs::read(&path).unwrap();
        for place in [3, 12, 20, sound.len() / 2, sound.len().saturating_sub(3)] {
            let mut damaged = sound.clone();
            damaged.get_mut(place).into_iter().for_each(|byte| *byte ^= 0x40);
            std::fs::write(&path, damaged).unwrap();
            check(&format!("{name}, byte {place}"));
        }
        std::fs::write(&path, &sound[..sound.len() * 2 / 3]).unwrap();
        check(&format!("{name}, cut short"));
        std::fs::write(&path, sound).unwrap();
    }
}

/// The metrics, the page and its events, tables of CSV and Parquet.
#[test]
fn nothing_that_is_served_contains_exact_sums() {
    let lab = Lab::new();
    let sinks = "[[sinks]]\npath = 'tables'\nformat = 'parquet'\n[[sinks]]\npath = 'lines.ndjson'\n\
                 [[views]]\nname = 'sums'\nestimate = 'moments'\nworkload = 'prefix'\n";
    let source = "source = { path = '-', format = 'csv' }";
    let pipeline = lab.write("p.toml", PIPELINE.replace("source.path = 'data.csv'", source) + sinks);
    let state = lab.path("state");
    let mut command = hushflow(["run", "--format", "csv", "--metrics", "127.0.0.1:0"]);
    let mut run = command.arg(&pipeline).stdin(Stdio::piped()).spawn().unwrap();
    let (metrics, lines) = served(&mut run);
    let mut input = run.stdin.take().unwrap();
    write!(input, "x,y\n{}", rows(5 * EPOCHS + 1)).unwrap();
    await_until("all epochs are published", || releases(&state).len() == EPOCHS);
    let get = |address: &str, path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
        let (status, body) = answer(send(address, &request));
        assert_eq!(status, "HTTP/1.1 200 OK", "{path}: {body}");
        body
    };
    let mut shown: String = ["/metrics", "/healthz", "/readyz"].map(|path| get(&metrics, path)).concat();
    let mut page = hushflow(["tail", "--web", "127.0.0.1:0"]).arg(&state).spawn().unwrap();
    let (address, _lines) = served(&mut page);
    shown += &["/", "/page.js", "/page.css", "/healthz", "/about"].map(|path| get(&address, path)).concat();
    for estimate in ["gaussian", "moments"] {
        let about: Value =
            serde_json::from_str(&get(&address, &format!("/about?estimate={estimate}"))).unwrap();
        let groups = about["plot"]["groups"].as_array().unwrap();
        let names = groups.iter().map(|group| group["name"].as_str().unwrap());
        let readings = |name| get(&address, &format!("/readings?estimate={estimate}&of={name}&key=all"));
        shown.extend(names.map(readings));
        let request = format!("GET /events?estimate={estimate} HTTP/1.1\r\nHost: {address}\r\n\r\n");
        let events = BufReader::new(send(&address, &request)).lines().map(Result::unwrap);
        let last = format!("id: {EPOCHS}");
        let mut ended = false;
        shown.extend(events.take_while(|line| {
            ended |= *line == last;
            !(ended && line.is_empty())
        }));
    }
    page.kill().unwrap();
    page.wait().unwrap();
    drop(input);
    let ended = wait(run).succeeded();
    let table = finish(hushflow(["tail", "--format", "csv"]).arg(&state)).succeeded().out;
    shown = [shown, lines.collect(), ended.out, table].concat();
    let mut shown = shown.into_bytes();
    gather(&lab.path("tables"), &mut shown);
    shown.extend(std::fs::read(lab.path("lines.ndjson")).unwrap());
    for covered in
        ["hushflow_rows", "<html", "\"epsilon\":", "\"epochs\":", "data: {", "epoch,start,key", "PAR1"]
    {
        let found = shown.windows(covered.len()).any(|part| part == covered.as_bytes());
        assert!(found, "the search covers {covered}");
    }
    Canaries::of(&state).search("what is served", &shown);
}

#[test]
fn a_command_that_holds_rows_leaves_no_core_dump() {
    let lab = Lab::new();
    let pipeline = lab.write(
        "p.toml",
        PIPELINE.replace("source.path = 'data.csv'", "source = { path = '-', format = 'csv' }"),
    );
    let check = |command: &mut Command| {
        let mut running =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let limits = format!("/proc/{}/limits", running.id());
        let mut limit = String::new();
        await_until("the command sets its limit", || {
            let limits = std::fs::read_to_string(&limits).unwrap_or_default();
            limit =
                limits.lines().find(|line| line.starts_with("Max core file size")).unwrap_or_default().into();
            limit.split_whitespace().nth(4) == Some("1")
        });
        assert_eq!(limit.split_whitespace().nth(5), Some("1"), "{limit}");
        running.stdin.take().unwrap().write_all("x,y\n0.5,0.5\n0.4,0.1\n".repeat(20).as_bytes()).unwrap();
        running.wait().unwrap();
    };
    check(hushflow(["run", "--quiet"]).arg(&pipeline));
    check(&mut hushflow(["mean", "-", "--epsilon", "1", "--delta", "1e-6", "--corruption", "0.1"]));
    check(&mut hushflow(["covariance", "-", "--rho", "1"]));
}
