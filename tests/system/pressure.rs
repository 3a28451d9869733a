//! Tests senders that are faster than a run, or send only blanks: memory, journal and disk stay
//! within their limits, and every record counts once.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::harness::can_mount;
use crate::harness::{Lab, Stream, expected_sums, finish, hushflow, run, sums, wait};

/// Bytes of the ingest journal.
fn journal_size(state: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(state) else { return 0 };
    let ingest = |name: &str| name.starts_with("ingest-");
    let entries = entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(ingest));
    entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

fn acknowledging(pipeline: &Path, state: &Path) -> Child {
    let mut command = run(pipeline, state, 2);
    command.args(["--acknowledge", "-"]).stdin(Stdio::piped()).spawn().expect("the run starts")
}

/// The run is killed repeatedly while the sender is ahead of it. The sender continues after the
/// acknowledged number.
#[test]
fn a_fast_sender_waits_at_the_limit() {
    const LIMIT: u64 = 8 << 20;
    let (lab, header, rows, expected) = Stream { rows: 300_000, epochs: 300 }.laid_out();
    let journal = "format = 'csv'\njournal = true\njournal_limit = '8 MiB'";
    let pipeline =
        Stream { rows: 300_000, epochs: 300 }.pipeline("-", "").replacen("format = 'csv'", journal, 1);
    let (pipeline, state) = (lab.write("pipeline.toml", pipeline), lab.path("state"));
    let (longest, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                longest.fetch_max(journal_size(&state), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        for enough in [60_000, 150_000, u64::MAX] {
            let mut child = acknowledging(&pipeline, &state);
            let mut input = child.stdin.take().expect("a pipe");
            let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
            let mut numbers = lines.map_while(Result::ok).map(|line| line.parse::<u64>().expect("a number"));
            let safe = numbers.next().expect("the number at the start");
            let text = header.clone() + &rows[safe as usize..].concat();
            // A killed run does not read everything.
            let sending = scope.spawn(move || drop(input.write_all(text.as_bytes())));
            if numbers.any(|number| number >= enough) {
                child.kill().expect("a child can be killed");
                wait(child);
            } else {
                wait(child).succeeded();
            }
            sending.join().expect("the sender has ended");
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(sums(&state) == expected, "the sums are not those of the file");
    // File sizes are not read at the same instant, so one segment may have been deleted in between.
    let longest = longest.into_inner();
    assert!(longest <= LIMIT + (LIMIT >> 3), "the journal had {longest} bytes");
    let written = writeln!(std::io::stderr(), "the journal had at most {longest} bytes");
    written.expect("standard error is open");
}

const NDJSON: Stream = Stream { rows: 2000, epochs: 20 };

/// A stream of JSON lines, a pipeline for each kind of input, and the expected sums.
struct Blanks {
    lab: Lab,
    lines: Vec<String>,
    expected: Vec<Vec<i128>>,
}

impl Blanks {
    fn new() -> Self {
        let (lab, header, rows, expected) = NDJSON.laid_out();
        let names: Vec<&str> = header.trim().split(',').collect();
        let object = |row: &String| {
            let fields =
                names.iter().zip(row.trim().split(',')).map(|(name, value)| format!("{name:?}:{value:?}"));
            format!("{{{}}}\n", fields.collect::<Vec<_>>().join(","))
        };
        Blanks { lines: rows.iter().map(object).collect(), lab, expected }
    }

    fn pipeline(&self, path: &str, more: &str) -> PathBuf {
        let format = format!("format = 'ndjson'\n{more}");
        let text = NDJSON.pipeline(path, "").replacen("format = 'csv'", &format, 1);
        self.lab.write("pipeline.toml", text)
    }

    /// A run limited to this much memory.
    fn bounded(&self, pipeline: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -v 500000; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_hushflow")]);
        command.args(["run", "--quiet", "--workers", "1"]).arg(pipeline).arg("--state").arg(self.state());
        command.env("MALLOC_ARENA_MAX", "2");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn state(&self) -> PathBuf {
        self.lab.path("state")
    }
}

/// More than the memory limit of a run.
const TOO_MUCH: usize = 600 << 20;

fn pour(input: &mut impl Write, byte: u8, mut count: usize) {
    let block = vec![byte; 1 << 20];
    while count > 0 && input.write_all(&block).is_ok() {
        count -= block.len().min(count);
    }
}

#[test]
fn endless_blanks_are_refused_and_acknowledged_rows_count() {
    let case = Blanks::new();
    let pipeline = case.pipeline("-", "journal = true");
    let (first, rest) = case.lines.split_at(900);
    let mut child = case.bounded(&pipeline).args(["--acknowledge", "-"]).spawn().expect("the run starts");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(first.concat().as_bytes()).expect("the run listens");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut numbers = lines.map_while(Result::ok);
    assert!(numbers.any(|number| number == "900"), "all rows are acknowledged");
    pour(&mut input, b' ', TOO_MUCH);
    drop(input);
    wait(child).failed(1, &["<standard input>:901", "longer than 1048576 bytes"]);
    finish(hushflow(["verify"]).arg(case.state())).succeeded();
    let mut child = case.bounded(&pipeline).spawn().expect("the run starts");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(rest.concat().as_bytes()).expect("the run listens");
    drop(input);
    wait(child).succeeded();
    assert!(sums(&case.state()) == case.expected);
}

#[test]
#[ignore = "slow"]
fn blank_lines_take_neither_memory_nor_disk() {
    for journal in ["journal = true", "journal = false"] {
        let case = Blanks::new();
        let pipeline = case.pipeline("-", journal);
        let mut child = case.bounded(&pipeline).spawn().expect("the run starts");
        let mut input = child.stdin.take().expect("a pipe");
        for part in case.lines.chunks(700) {
            pour(&mut input, b'\n', 60 << 20);
            // Blanks received with records may be kept with them, up to 4 MiB per group.
            assert!(journal_size(&case.state()) < 40 << 20, "{journal}");
            input.write_all(part.concat().as_bytes()).expect("the run listens");
        }
        drop(input);
        wait(child).succeeded();
        assert!(sums(&case.state()) == case.expected);
    }
}

#[test]
fn a_followed_file_of_blanks_is_refused_in_bounded_memory() {
    let case = Blanks::new();
    let pipeline = case.pipeline("log.ndjson", "follow = true");
    let mut file = std::fs::File::create(case.lab.path("log.ndjson")).expect("a file");
    file.write_all(case.lines[..100].concat().as_bytes()).expect("the test writes");
    pour(&mut file, b' ', TOO_MUCH);
    let ended = finish(case.bounded(&pipeline).stdin(Stdio::null()));
    std::fs::remove_file(case.lab.path("log.ndjson")).expect("the file goes");
    ended.failed(1, &["log.ndjson:101", "longer than 1048576 bytes"]);
}

/// Runs over a stream longer than a disk of 12 MiB, with `script` in parallel; returns the run's
/// messages.
fn on_a_small_disk(epochs: u64, script: &str) -> Option<String> {
    let stream = Stream { rows: 200_000, epochs };
    let lab = Lab::new();
    if !can_mount(&lab) {
        return None;
    }
    lab.write("data.csv", stream.csv());
    let expected = expected_sums(&lab.write("file.toml", stream.pipeline("data.csv", "")));
    let journal = stream.pipeline("-", "").replacen("format = 'csv'", "format = 'csv'\njournal = true", 1);
    lab.write("pipeline.toml", journal);
    std::fs::create_dir(lab.path("disk")).expect("a mount point");
    let script = format!(
        "set -e; cd \"$2\"; mount -t tmpfs -o size=12m none disk
        (set +e; \"$1\" run --quiet pipeline.toml --state disk/state < data.csv 2> said; echo $? > ended) &
        {script}
        wait; cp -a disk/state state"
    );
    let binary = hushflow([""; 0]).get_program().to_owned();
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script, "sh"]).arg(binary).arg(lab.path(""));
    finish(&mut command).succeeded();
    let messages = std::fs::read_to_string(lab.path("said")).expect("standard error");
    let ended = std::fs::read_to_string(lab.path("ended")).expect("a code");
    assert_eq!(ended.trim(), "0", "{messages}");
    assert!(sums(&lab.path("state")) == expected, "the sums are not those of the file");
    Some(messages)
}

#[test]
fn a_small_disk_blocks_the_sender_while_records_are_counted() {
    on_a_small_disk(400, "");
}

#[test]
fn a_disk_too_small_for_an_epoch_blocks_the_sender_until_there_is_space() {
    let grow = "while ! grep -q 'no room' said && [ ! -e ended ]; do sleep 0.05; done
        sleep 1; [ ! -e ended ]; mount -o remount,size=64m none disk";
    if let Some(said) = on_a_small_disk(1, grow) {
        assert!(said.contains("the disk has no room for the ingest journal"), "{said}");
    }
}

#[test]
fn invalid_journal_limits_are_explained() {
    let stream = Stream { rows: 2000, epochs: 20 };
    let lab = Lab::new();
    for (more, parts) in [
        ("journal = true\njournal_limit = '1 MiB'", ["source.journal_limit", "a size from \"8 MiB\""]),
        ("journal_limit = '1 GiB'", ["source.journal_limit", "add journal = true"]),
    ] {
        let text = stream.pipeline("-", "").replacen("format = 'csv'", &format!("format = 'csv'\n{more}"), 1);
        let pipeline = lab.write("pipeline.toml", text);
        finish(&mut run(&pipeline, &lab.path("state"), 1)).failed(2, &parts);
    }
}
