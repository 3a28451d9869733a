//! Files of lines and of tables that follow the log: every epoch once, as in `tail`, after any
//! kill, and without delaying a run. The tests of the Python package read tables by pyarrow.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use serde_json::Value;

use crate::harness::{self, Lab, Random, Stream, finish, run, tail, wait};

pub(crate) const STREAM: Stream = Stream { rows: 4000, epochs: 40 };

/// A run with a view and more of a pipeline: its pipeline and state directory.
pub(crate) fn case(more: &str) -> (Lab, PathBuf, PathBuf) {
    let lab = Lab::new();
    lab.write("data.csv", STREAM.csv());
    let view = "[[views]]\nname = 'so far'\nworkload = 'prefix'\n";
    let pipeline = lab.write("pipeline.toml", STREAM.pipeline("data.csv", &format!("{view}{more}")));
    let state = lab.path("state");
    (lab, pipeline, state)
}

/// Returns the lines of all files of a sink, in the order of their epochs.
fn lines(folder: &Path) -> (usize, Vec<Value>) {
    let entries = fs::read_dir(folder).expect("the sink's folder");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    // Full files have numbers; the newest has none.
    files.sort_by_key(|path| (!path.display().to_string().contains("releases-"), path.clone()));
    let text: String = files.iter().map(|path| fs::read_to_string(path).expect("a file")).collect();
    (files.len(), text.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect())
}

/// Kills a run six times at random moments, and then runs it to its end.
fn finish_after_kills(pipeline: &Path, state: &Path) {
    let mut random = Random(3);
    for _ in 0..6 {
        let mut child = run(pipeline, state, 1).spawn().expect("the run starts");
        std::thread::sleep(Duration::from_millis(random.below(400)));
        let _ = child.kill();
        wait(child);
    }
    finish(&mut run(pipeline, state, 1)).succeeded();
}

#[test]
fn killed_runs_leave_every_epoch_in_the_files_once_as_tail_shows_it() {
    for (rotate, files) in [("rotate = '7 epochs'", 6..=6), ("rotate = '64 KiB'", 3..=40), ("", 1..=1)] {
        let (lab, pipeline, state) = case(&format!("[[sinks]]\npath = 'out/releases.ndjson'\n{rotate}\n"));
        finish_after_kills(&pipeline, &state);
        let (found, lines) = lines(&lab.path("out"));
        assert!(files.contains(&found), "{rotate}: {found} files");
        let shown = finish(&mut tail(&state, &[])).succeeded().json();
        assert_eq!(shown.len(), 40 * 7);
        assert!(lines == shown, "{rotate}: the files are not what tail shows");
    }
}

#[test]
fn a_failing_sink_delays_nothing_and_resumes_later() {
    let (lab, pipeline, state) = case("[[sinks]]\npath = 'out/releases.ndjson'\n");
    let obstacle = lab.write("out", "a file where a folder should be");
    finish(&mut run(&pipeline, &state, 1)).failed(1, &["out"]);
    assert_eq!(harness::releases(&state).len(), 40, "the run went on without its sink");
    fs::remove_file(obstacle).expect("the obstacle goes");
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    assert_eq!(lines(&lab.path("out")).1.len(), 40 * 7);
    // Another history must not continue in the same file, nor remove anything from it.
    let other = lab.path("other state");
    let shown = fs::read(lab.path("out/releases.ndjson")).expect("the sink's file");
    for _ in 0..2 {
        finish(run(&pipeline, &other, 1).stdin(Stdio::null())).failed(1, &["is not of the history"]);
        assert!(fs::read(lab.path("out/releases.ndjson")).is_ok_and(|found| found == shown));
    }
}

#[test]
fn files_that_are_full_are_of_the_same_history_too() {
    let (lab, pipeline, state) = case("[[sinks]]\npath = 'out/releases.ndjson'\nrotate = '7 epochs'\n");
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    let all = lines(&lab.path("out"));
    // As after a crash between two files, or if the newest file was removed.
    fs::remove_file(lab.path("out/releases.ndjson")).expect("the newest file");
    finish(&mut run(&pipeline, &lab.path("other state"), 1)).failed(1, &["epoch 35", "not of the history"]);
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    assert!(lines(&lab.path("out")) == all);
}

pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the sink's folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"));
    // A killed run may leave a file under its hidden name.
    let mut names: Vec<_> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names.iter().map(|name| folder.join(name)).collect()
}

/// Returns the header and the rows of all files as CSV.
pub(crate) fn rows(folder: &Path) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for path in files(folder) {
        let reader = SerializedFileReader::new(fs::File::open(&path).expect("a file")).expect("Parquet");
        let columns = reader.metadata().file_metadata().schema().get_fields();
        let header: Vec<String> = columns.iter().map(|column| column.name().into()).collect();
        if found.is_empty() {
            found.push(header.clone());
        }
        assert_eq!(found[0], header, "files have the same columns");
        for row in reader.get_row_iter(None).expect("rows") {
            let row = row.expect("a row");
            let text = |field: &Field| match field {
                Field::Null => String::new(),
                Field::Long(number) => number.to_string(),
                Field::Double(number) => number.to_string(),
                Field::Str(text) => text.clone(),
                Field::TimestampMicros(time) => {
                    jiff::Timestamp::from_microsecond(*time).expect("a time").to_string()
                }
                other => panic!("{other:?}"),
            };
            found.push(row.get_column_iter().map(|(_, field)| text(field)).collect());
        }
    }
    found
}

/// Returns the same as `tail` shows it.
pub(crate) fn shown(state: &Path) -> Vec<Vec<String>> {
    let shown = finish(harness::hushflow(["tail", "--format", "csv"]).arg(state)).succeeded().out;
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(shown.as_bytes());
    let rows = reader.records().map(|row| row.expect("a row").iter().map(String::from).collect());
    rows.collect()
}

#[test]
fn killed_runs_leave_every_estimate_in_the_files_once() {
    let (lab, pipeline, state) = case("[[sinks]]\npath = 'out'\nformat = 'parquet'\nrotate = '7 epochs'\n");
    finish_after_kills(&pipeline, &state);
    let (found, expected) = (rows(&lab.path("out")), shown(&state));
    assert_eq!(expected.len(), 1 + 40 * 7);
    assert_eq!(found[0], expected[0]);
    assert!(found == expected, "the files are not what tail shows");
    let files = files(&lab.path("out"));
    assert_eq!(files.len(), 6);
    assert!(files[5].ends_with("epochs-0000000036-0000000042.parquet"), "{files:?}");
    // Another history must not continue in the same files.
    let before = fs::read(&files[5]).expect("a file");
    finish(&mut run(&pipeline, &lab.path("other"), 1)).failed(1, &["is not of the history"]);
    assert!(fs::read(&files[5]).expect("a file") == before);
}
