//! Everything public about a run, by name.
//!
//! It leaves out the facts that the guarantee does not cover: times, queue lengths, the number of
//! epochs per commit, which depends on timing, and the lines of standard error that are marked as
//! private, for the operator.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use hushflow::state::{PublicHeader, PublicReader};
use serde_json::Value;

use super::Leak;
use super::factors::{Case, Factor as F};
use crate::harness::{answer, await_until, finish, hushflow, send, tail};
use crate::sinks;

/// Begins a line of standard error that follows from the releases.
const FAINT: &str = "warning: the published counts";

/// Begins a line of standard error about private rows, for the operator alone. It must change
/// nothing else.
const FOR_THE_OPERATOR: &str = "warning: private, for the operator: ";

/// Public facts by kind.
#[derive(Default)]
pub(super) struct Facts {
    facts: BTreeMap<String, String>,
    /// Facts that follow from the releases, and are equal if the releases are.
    following: BTreeMap<String, String>,
    /// The message of a failed run.
    pub(super) failure: Option<String>,
}

/// Everything public about a world.
pub(super) struct Seen {
    pub(super) facts: Facts,
    pub(super) header: PublicHeader,
    /// The releases, by epoch.
    pub(super) values: Vec<Vec<i128>>,
    /// The ledger's charge: μ = 1/σ of one Gaussian mechanism.
    pub(super) noise_multiplier: f64,
}

impl Facts {
    fn tell(&mut self, name: String, content: impl ToString) {
        self.facts.insert(name, content.to_string());
    }

    /// Records the exit code and the output of a process.
    pub(super) fn ended(&mut self, name: &str, code: Option<i32>, out: &str, err: &str, case: &Case) {
        self.tell(format!("exit code of {name}"), format!("{code:?}"));
        if code != Some(0) {
            self.failure = Some(err.to_owned());
        }
        self.tell(format!("standard error of {name}"), normalised(err));
        self.following.insert(format!("standard output of {name}, to the byte"), out.to_owned());
        let faint: Vec<_> = err.lines().filter(|line| line.starts_with(FAINT)).collect();
        self.following.insert(format!("the warning about counts of {name}"), faint.join("\n"));
        let shape = match &case[F::Watch] {
            "json" => out.lines().map(shape).collect(),
            "csv" => out.lines().count().to_string(),
            _ => out.to_owned(),
        };
        self.tell(format!("standard output of {name}"), shape);
    }

    /// Records the public metrics of the process that writes `err`, once they report `epochs`
    /// epochs and are the same three times.
    pub(super) fn metrics(&mut self, name: &str, err: &Path, epochs: usize) {
        let address = || {
            let text = std::fs::read_to_string(err).unwrap_or_default();
            Some(text.split_once("http://")?.1.split_once('/')?.0.to_owned())
        };
        await_until("the metrics are served", || address().is_some());
        let address = address().expect("an address");
        let scrape = || {
            public_metrics(
                &answer(send(
                    &address,
                    "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                ))
                .1,
            )
        };
        let mut scrapes = vec![scrape()];
        await_until("the metrics say that the epochs are committed", || {
            std::thread::sleep(Duration::from_millis(8));
            scrapes.push(scrape());
            let last = scrapes.iter().rev().take(3);
            let settled = scrapes.len() > 2 && last.clone().all(|text| Some(text) == scrapes.last());
            let committed = |text: &String| {
                let (_, number) = text.split_once("\nhushflow_last_committed_epoch ")?;
                number.lines().next()?.parse::<usize>().ok()
            };
            settled && last.clone().all(|text| committed(text).is_some_and(|committed| committed >= epochs))
        });
        self.tell(name.into(), scrapes.pop().unwrap_or_default());
        for probe in ["/healthz", "/readyz"] {
            let request = format!("GET {probe} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            let (status, body) = answer(send(&address, &request));
            // The age of an epoch is a time.
            let body: String = body.chars().filter(|c| !c.is_ascii_digit()).collect();
            self.tell(format!("{probe} beside {name}"), format!("{status}\n{body}"));
        }
    }

    /// Returns the differences between two worlds in public facts.
    pub(super) fn leaks(&self, other: &Self) -> Vec<Leak> {
        differences(&self.facts, &other.facts)
    }

    /// Returns the differences between two worlds with equal releases in facts that follow from the
    /// releases.
    pub(super) fn leaks_of_equals(&self, other: &Self) -> Vec<Leak> {
        differences(&self.following, &other.following)
    }
}

fn differences(ones: &BTreeMap<String, String>, others: &BTreeMap<String, String>) -> Vec<Leak> {
    let names = ones.keys().chain(others.keys().filter(|name| !ones.contains_key(*name)));
    let fact = |facts: &BTreeMap<String, String>, name| facts.get(name).cloned().unwrap_or("nothing".into());
    let pairs = names.map(|name| (name, fact(ones, name), fact(others, name)));
    let different = pairs.filter(|(_, one, other)| one != other);
    let leak = |(name, one, other): (&String, String, String)| Leak {
        kind: format!("public: {name}"),
        detail: format!("one world: {one}\nthe other: {other}"),
    };
    different.map(leak).collect()
}

impl Seen {
    /// Collects the content of the state directory after all runs.
    pub(super) fn of(mut facts: Facts, state: &Path, case: &Case) -> Self {
        let mut reader = PublicReader::open(state).expect("a public log");
        let header = reader.header().clone();
        facts.tell("the header of the public log".into(), String::from_utf8_lossy(&header.parameters));
        let frames: Vec<_> =
            std::iter::from_fn(|| reader.next_frame().expect("a sound public log")).collect();
        let order: Vec<_> =
            frames.iter().map(|frame| (frame.generation, frame.epoch, frame.values.len())).collect();
        if !case.estimates() {
            facts.tell("generation, epoch and length of every release".into(), format!("{order:?}"));
            let packed: usize = frames.iter().map(|frame| packed(&frame.values)).sum();
            let length = std::fs::metadata(state.join("public.log")).expect("a public log").len();
            facts.tell("bytes of the public log beside its packed values".into(), length - packed as u64);
        } else {
            let order: Vec<_> = order.iter().map(|(generation, epoch, _)| (generation, epoch)).collect();
            facts.tell("generation and epoch of every estimate".into(), format!("{order:?}"));
        }
        facts.tell("files of the state directory".into(), files(state).join(" "));
        let log = std::fs::read(state.join("public.log")).expect("a public log");
        // One character for each byte.
        let log = log.into_iter().map(char::from).collect();
        facts.following.insert("the public log, to the byte".into(), log);
        if let Ok(sink) = std::fs::read_to_string(state.with_file_name("sink.jsonl")) {
            facts.tell("lines of the sink".into(), sink.lines().map(shape).collect::<String>());
            facts.following.insert("the sink, to the byte".into(), sink);
        }
        let table = state.with_file_name("table");
        if table.is_dir() {
            facts.tell("files and rows of the table".into(), outline(&table));
            for path in sinks::files(&table) {
                let bytes = std::fs::read(&path).expect("a file of the table");
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let bytes = bytes.into_iter().map(char::from).collect();
                facts.following.insert(format!("the table's {name}, to the byte"), bytes);
            }
        }
        // It costs a process.
        if case.seed.is_multiple_of(4) {
            let lines = finish(&mut tail(state, &[])).succeeded().out;
            facts.following.insert("what tail prints, to the byte".into(), lines);
        }
        let ledger = finish(hushflow(["ledger", "--json"]).arg(state)).succeeded().json().remove(0);
        let entry = &ledger["entries"][0];
        let mut public = entry.clone();
        for name in ["identity", "started"] {
            public[name] = Value::Null;
        }
        facts.tell("what the ledger charges".into(), &public);
        let noise_multiplier = entry["noise_multiplier"].as_f64().expect("a noise multiplier");
        let values = frames.into_iter().map(|frame| frame.values).collect();
        Self { facts, header, values, noise_multiplier }
    }
}

/// The files of a table, their columns, and their rows without what follows from the releases.
fn outline(table: &Path) -> String {
    let rows = sinks::rows(table);
    let header = rows.first().cloned().unwrap_or_default();
    let is_public = |name: &&String| ["epoch", "start", "key", "view", "private"].contains(&name.as_str());
    let public: Vec<_> = (0..header.len()).filter(|&column| is_public(&&header[column])).collect();
    let mut text = format!("{:?}\n{}\n", sinks::files(table).len(), header.join(","));
    // Without a key there is no file.
    for row in rows.iter().skip(1) {
        text += &public.iter().map(|&column| row[column].as_str()).collect::<Vec<_>>().join(",");
        text.push('\n');
    }
    text
}

/// Bytes of a release's values in a frame: a width, and that many bytes for each.
fn packed(values: &[i128]) -> usize {
    let bits = values.iter().fold(0, |bits, value| bits | (value ^ (value >> 127)) as u128);
    let width = (128 - bits.leading_zeros() as usize) / 8 + 1;
    1 + width * values.len()
}

/// The files of a state directory, and the sizes of the public ones.
fn files(state: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![state.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry")) {
            let path = entry.path();
            let name = path.strip_prefix(state).expect("a file of the state").display().to_string();
            match path.is_dir() {
                true => folders.push(path),
                false if name.starts_with("ledger") || name == "enrolment" => {
                    found.push(format!("{name}:{}", entry.metadata().expect("a size").len()));
                }
                // How far the journal has been read is private to the operator.
                false if name.starts_with("ingest-") => found.push("ingest".into()),
                false => found.push(name),
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

/// A line of JSON without its numbers: its view, epoch, key and fields.
fn shape(line: &str) -> String {
    let line: Value = serde_json::from_str(line).expect("a JSON line");
    let identity = ["view", "epoch", "key", "private", "generation"].map(|name| line[name].to_string());
    let fields: Vec<_> = line.as_object().expect("an object").keys().cloned().collect();
    format!("{} {}\n", identity.join(" "), fields.join(" "))
}

/// Sorts the lines of standard error, without times, ports, the boundaries between commits, and a
/// thread's last message, which appears only if the run leaves time for it. Whether a killed run
/// had journaled a row, or the row is sent again, depends on timing too.
fn normalised(text: &str) -> String {
    let mut committed: Option<[u64; 2]> = None;
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut line = line.to_owned();
        if let Ok(Value::Object(mut object)) = serde_json::from_str(&line) {
            object.remove("timestamp");
            if object["message"] == "epochs are durable and published" {
                let [first, last] = ["first", "last"].map(|name| object[name].as_u64().expect("an epoch"));
                let range = committed.get_or_insert([first, last]);
                *range = [range[0].min(first), range[1].max(last)];
                continue;
            }
            line = Value::Object(object).to_string();
        } else if line.len() > 28 && line.as_bytes()[10] == b'T' && line.as_bytes()[26] == b'Z' {
            line = line[27..].to_owned();
        }
        if line.contains("source has ended")
            || [FAINT, FOR_THE_OPERATOR].iter().any(|start| line.starts_with(start))
        {
            continue;
        }
        line = line.replace("<session 0 of the standard input>", "<standard input>");
        if line.contains("<standard input>") && lines.contains(&line) {
            continue;
        }
        if let Some((before, after)) = line.clone().split_once("127.0.0.1:") {
            let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
            line = format!("{before}PORT{rest}");
        }
        lines.push(line);
    }
    lines.sort();
    format!("{}\ncommitted: {committed:?}", lines.join("\n"))
}

/// Families labelled public, except the one that reports the time.
fn public_metrics(page: &str) -> String {
    let mut public = String::new();
    let mut is_public = false;
    for line in page.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            is_public = help.split(' ').nth(1) == Some("PUBLIC.");
        }
        if is_public && !line.starts_with("hushflow_frontier_lag_seconds ") {
            public += line;
            public.push('\n');
        }
    }
    public
}
