//! Flips bits in every file of a state directory. Either `verify` and the next run refuse the flip,
//! or the run reaches the same sums and releases as without it.
//!
//! `HUSHFLOW_FLIPS=n` flips n bits instead of 48.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::{
    Lab, Random, Stream, await_until, finish, frames, hushflow, recorded, releases, run, stop, sums, wait,
};
use crate::journal::acknowledged_numbers;

const STREAM: Stream = Stream { rows: 2000, epochs: 20 };

/// State directory of an interrupted run, and the command that continues it.
struct UnfinishedRun {
    lab: Lab,
    pipeline: PathBuf,
    arguments: &'static [&'static str],
    expected: Vec<Vec<i128>>,
}

const ANCHOR: &str = "keep = 'all'\nanchor = 'anchors'";

/// A run over two directories of growing files, ended by a signal.
fn over_followed_files() -> UnfinishedRun {
    let (lab, header, rows, expected) = STREAM.laid_out();
    for folder in ["anchors", "in"] {
        fs::create_dir(lab.path(folder)).expect("a directory");
    }
    let text = STREAM.pipeline("in/*", "").replacen("[source]", "[source]\nfollow = true", 1);
    let pipeline = lab.write("pipeline.toml", text.replacen("keep = 'all'", ANCHOR, 1));
    let arguments = &["--until-idle", "200ms"];
    for (life, part) in rows[..1200].chunks(400).enumerate() {
        lab.write(&format!("in/{life}.csv"), header.clone() + &part.concat());
        let run = run(&pipeline, &lab.path("state"), 1).spawn().expect("the run starts");
        await_until("epochs are published", || releases(&lab.path("state")).len() >= 4 * life + 2);
        stop(&run);
        wait(run).succeeded();
    }
    assert!(recorded(&lab.path("state")).is_some_and(|(file, _)| file == 2));
    lab.write("in/3.csv", header + &rows[1200..].concat());
    UnfinishedRun { lab, pipeline, arguments, expected }
}

/// A run with an ingest journal, killed before all records of the journal were counted.
fn over_a_journal() -> UnfinishedRun {
    let (lab, header, rows, expected) = STREAM.laid_out();
    fs::create_dir(lab.path("anchors")).expect("a directory");
    let text = STREAM.pipeline("-", "").replacen("[source]", "[source]\njournal = true", 1);
    let pipeline = lab.write("pipeline.toml", text.replacen("keep = 'all'", ANCHOR, 1));
    let state = lab.path("state");
    let mut read = 0;
    for part in [&rows[..900], &rows[900..]] {
        let mut run = run(&pipeline, &state, 1);
        let mut run = run.args(["--acknowledge", "-"]).stdin(Stdio::piped()).spawn().expect("the run starts");
        let mut input = run.stdin.take().expect("a pipe");
        let (before, last) = (releases(&state).len(), read + part.len());
        input.write_all((header.clone() + &part.concat()).as_bytes()).expect("the run reads");
        assert!(acknowledged_numbers(&mut run).any(|number| number == last as u64));
        read = last;
        await_until("epochs are published", || releases(&state).len() >= before + 7);
        run.kill().expect("a child can be killed");
        wait(run);
    }
    UnfinishedRun { lab, pipeline, arguments: &[], expected }
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.expect("cp runs").success());
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { files.extend(self::files(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

impl UnfinishedRun {
    fn resumes(&self) -> Result<(), String> {
        let (state, anchors) = (self.lab.path("state"), self.lab.path("anchors"));
        let verified = finish(hushflow(["verify", "--anchor"]).arg(anchors).arg(&state));
        let seen = releases(&self.lab.path("before"));
        let ended = finish(run(&self.pipeline, &state, 1).args(self.arguments));
        if ended.code == Some(0) {
            assert!(sums(&state) == self.expected, "other sums; verify said {}", verified.err);
            assert!(releases(&state).starts_with(&seen), "an epoch was released twice");
            return Ok(());
        }
        assert_eq!(verified.code, Some(1), "verify finds nothing, but the run: {}", ended.err);
        Err(ended.err)
    }

    /// Flips bits of all files in turn.
    fn check(&self, flips: u64, random: &mut Random) {
        let (state, anchors) = (self.lab.path("state"), self.lab.path("anchors"));
        let (before, anchored) = (self.lab.path("before"), self.lab.path("anchored"));
        copy(&state, &before);
        copy(&anchors, &anchored);
        let restore = || {
            copy(&before, &state);
            copy(&anchored, &anchors);
        };
        self.resumes().expect("a sound state directory");
        restore();
        let all: Vec<_> = files(&state).into_iter().chain(files(&anchors)).collect();
        let mut refused = 0;
        for flip in 0..flips {
            let path = &all[flip as usize % all.len()];
            let mut bytes = fs::read(path).expect("a file of the state");
            let name = path.file_name().expect("a name").to_string_lossy();
            // The last group of a journal looks like one that was never written completely.
            let length = match name.starts_with("ingest-") {
                true => frames(path).last().expect("a frame").start as usize,
                false => bytes.len(),
            };
            // The run was killed before it wrote to this file.
            if length == 0 {
                continue;
            }
            let at = match flip as usize / all.len() {
                0 => random.below(16.min(length as u64)),
                _ => random.below(length as u64),
            };
            bytes[at as usize] ^= 1 << random.below(8);
            fs::write(path, bytes).expect("a file of the state");
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.resumes()));
            refused += u64::from(outcome.unwrap_or_else(|_| panic!("{name}, byte {at}")).is_err());
            restore();
        }
        assert!(refused > flips / 4, "{refused} of {flips}: most files have no second copy");
    }
}

#[test]
fn a_flipped_bit_in_any_file_is_refused_or_changes_nothing() {
    let flips = std::env::var("HUSHFLOW_FLIPS").ok().and_then(|flips| flips.parse().ok()).unwrap_or(48);
    let mut random = Random(27);
    for left in [over_followed_files(), over_a_journal()] {
        left.check(flips / 2, &mut random);
    }
}

/// A flipped bit in the name of a file that was read makes it the name of another file.
#[test]
fn a_changed_name_in_the_list_of_followed_files_is_refused() {
    let left = over_followed_files();
    let list = left.lab.path("state").join("followed");
    let mut bytes = fs::read(&list).expect("the list");
    let at = bytes.windows(5).position(|name| name == b"1.csv").expect("a name");
    bytes[at] ^= 8;
    fs::write(&list, bytes).expect("the list");
    let parts = ["followed", "damaged at byte"];
    finish(hushflow(["verify"]).arg(left.lab.path("state"))).failed(1, &parts);
    finish(run(&left.pipeline, &left.lab.path("state"), 1).args(left.arguments)).failed(1, &parts);
    fs::remove_file(&list).expect("the list can be removed");
    let parts = ["followed", "has 0 names, but the last run had read up to number 3"];
    finish(hushflow(["verify"]).arg(left.lab.path("state"))).failed(1, &parts);
    finish(run(&left.pipeline, &left.lab.path("state"), 1).args(left.arguments)).failed(1, &parts);
}
