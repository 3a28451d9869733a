//! Files that follow the log: every epoch once, as in `tail`, after any kill, and without delaying
//! a run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::harness::{self, Lab, Random, Stream, finish, run, tail, wait};
use serde_json::Value;

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

#[test]
fn killed_runs_leave_every_epoch_in_the_files_once_as_tail_shows_it() {
    for (rotate, files) in [("rotate = '7 epochs'", 6..=6), ("rotate = '64 KiB'", 3..=40), ("", 1..=1)] {
        let (lab, pipeline, state) = case(&format!("[[sinks]]\npath = 'out/releases.ndjson'\n{rotate}\n"));
        let mut random = Random(3);
        for _ in 0..6 {
            let mut child = run(&pipeline, &state, 1).spawn().expect("the run starts");
            std::thread::sleep(Duration::from_millis(random.below(400)));
            let _ = child.kill();
            wait(child);
        }
        finish(&mut run(&pipeline, &state, 1)).succeeded();
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
