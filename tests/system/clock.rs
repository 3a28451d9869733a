//! The machine's clock jumps forward or back, or stops, between the runs of a pipeline. The
//! releases must not depend on it. Uses libfaketime; skipped, with a message, if that is not
//! installed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::power::Witness;
use crate::harness::{
    self, Lab, Stream, await_until, expected_sums, finish, hushflow, logs, run, sums, wait,
};

const STREAM: Stream = Stream { rows: 24_000, epochs: 400 };

/// Path of libfaketime.
fn library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.map_while(Result::ok);
    let found =
        folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1")).find(|path| path.is_file());
    if found.is_none() {
        let written = writeln!(std::io::stderr(), "skipped: libfaketime is not installed");
        written.expect("standard error is open");
    }
    found
}

/// Runs the command at another time; durations are unchanged.
fn at(library: &Path, time: &str, mut command: Command) -> Command {
    command.env("LD_PRELOAD", library).env("FAKETIME", time).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    command
}

/// Ten years forward, forty back, stopped, before 1970.
const TIMES: [&str; 5] =
    ["@2036-02-29 23:59:58", "@1996-01-01 00:00:00", "2001-01-01 00:00:00", "@1969-12-31 23:59:59", "-1d"];

#[test]
fn clock_jumps_do_not_change_releases() {
    let Some(library) = library() else { return };
    let lab = Lab::new();
    lab.write("data.csv", STREAM.csv());
    let pipeline = lab.write("pipeline.toml", STREAM.pipeline("data.csv", ""));
    let state = lab.path("state");
    let mut witness = Witness::of(&state);
    for (life, time) in TIMES.iter().enumerate() {
        let mut child = at(&library, time, run(&pipeline, &state, 2)).spawn().expect("the run starts");
        let enough = (life + 1) * 48;
        await_until("some more epochs are published", || {
            witness.observe().expect("no epoch is published twice") >= enough
        });
        child.kill().expect("a child can be killed");
        wait(child);
    }
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    assert_eq!(witness.observe(), Ok(STREAM.epochs as usize));
    assert!(sums(&state) == expected_sums(&pipeline));
    finish(hushflow(["verify"]).arg(&state)).succeeded();
    let ledger = finish(hushflow(["ledger", "--json"]).arg(&state)).succeeded().json();
    let started = ledger[0]["entries"][0]["started"].as_str().expect("a time");
    assert!(
        started.starts_with("2036-02-2") || started.starts_with("2036-03-01"),
        "the first life was at {started}"
    );
}

/// With a clock that was set back, sums are kept longer, never shorter.
#[test]
fn a_clock_that_was_set_back_keeps_sums_longer() {
    let Some(library) = library() else { return };
    let lab = Lab::new();
    lab.write("data.csv", STREAM.csv());
    let text = STREAM.pipeline("data.csv", "").replacen("keep = 'all'", "keep = '30 days'", 1);
    let pipeline = lab.write("pipeline.toml", text);
    let first_kept = |name: &str, times: [&str; 2]| {
        let state = lab.path(name);
        let mut child = at(&library, times[0], run(&pipeline, &state, 1)).spawn().expect("the run starts");
        await_until("half is published", || harness::releases(&state).len() >= 80);
        child.kill().expect("a child can be killed");
        wait(child);
        finish(&mut at(&library, times[1], run(&pipeline, &state, 1))).succeeded();
        finish(hushflow(["verify"]).arg(&state)).succeeded();
        logs(&state).into_iter().find(|name| name.starts_with("private")).expect("a private log")
    };
    let (before, after) = ("@2026-03-01 00:00:00", "@2026-06-01 00:00:00");
    assert_ne!(
        first_kept("forward", [before, after]),
        harness::PRIVATE_LOG,
        "three months are more than 30 days"
    );
    assert_eq!(first_kept("back", [after, before]), harness::PRIVATE_LOG);
}
