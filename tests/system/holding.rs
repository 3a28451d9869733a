//! Tests that only one run at a time holds a state directory and its copies that share an anchor.
//! This holds if files are deleted, renamed or copied, and wherever a run is suspended.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use crate::harness::{Lab, Random, Stream, await_until, finish, hushflow, releases, run, wait};

const STREAM: Stream = Stream { rows: 2000, epochs: 20 };

/// A run that has published some epochs and waits for more input.
struct Waiting {
    lab: Lab,
    state: PathBuf,
    run: Child,
    input: ChildStdin,
    rest: String,
    /// The same pipeline over a file.
    other: PathBuf,
}

impl Waiting {
    fn new() -> Self {
        let (lab, header, rows, _) = STREAM.laid_out();
        let (pipeline, state) = (lab.write("pipeline.toml", STREAM.pipeline("-", "")), lab.path("state"));
        let other = lab.path("file.toml");
        let mut run = run(&pipeline, &state, 1).stdin(Stdio::piped()).spawn().expect("the run starts");
        let mut input = run.stdin.take().expect("a pipe");
        input.write_all((header + &rows[..1000].concat()).as_bytes()).expect("the run reads");
        input.flush().expect("the run reads");
        await_until("epochs are published", || releases(&state).len() >= 8);
        Waiting { lab, state, run, input, rest: rows[1000..].concat(), other }
    }

    /// Sends the remaining rows, and checks that no more epochs are published in `published`.
    fn ends_refused(mut self, published: &Path) {
        let before = releases(published).len();
        // The run may end before it has read everything.
        let _ = self.input.write_all(self.rest.as_bytes());
        drop(self.input);
        wait(self.run)
            .failed(1, &["no longer leads to what this run has locked", "nothing more is published"]);
        assert_eq!(releases(published).len(), before);
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.expect("cp runs").success());
}

/// Any file that is not a log may be deleted, because the lock is not in such a file.
#[test]
fn a_second_run_is_refused_after_files_are_deleted() {
    let mut waiting = Waiting::new();
    fs::write(waiting.state.join("lock"), "").expect("a file");
    for entry in fs::read_dir(&waiting.state).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "log") && path.is_file() {
            fs::remove_file(path).expect("a file can be removed");
        }
    }
    finish(&mut run(&waiting.other, &waiting.state, 1))
        .failed(1, &["another run holds this state directory"]);
    waiting.input.write_all(waiting.rest.as_bytes()).expect("the run reads");
    drop(waiting.input);
    wait(waiting.run).succeeded();
    assert_eq!(releases(&waiting.state).len(), 20);
}

/// If the directory is renamed and another run continues on its copy, the first run ends.
#[test]
fn a_run_publishes_no_more_in_a_directory_that_was_replaced() {
    let waiting = Waiting::new();
    let away = waiting.lab.path("away");
    fs::rename(&waiting.state, &away).expect("a directory can be renamed");
    copy(&away, &waiting.state);
    finish(&mut run(&waiting.other, &waiting.state, 1)).succeeded();
    assert_eq!(releases(&waiting.state).len(), 20);
    waiting.ends_refused(&away);
}

#[test]
fn a_run_publishes_no_more_in_logs_that_were_replaced() {
    for name in ["public.log", "private-000001.log"] {
        let waiting = Waiting::new();
        let (log, away) = (waiting.state.join(name), waiting.lab.path("away"));
        fs::rename(&log, &away).expect("a file can be renamed");
        copy(&away, &log);
        let state = waiting.state.clone();
        waiting.ends_refused(&state);
    }
}

fn signal(child: &Child, signal: &str) {
    let status = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(status.expect("a signal is sent").success());
}

/// A copy is refused while the first run is suspended at any point, and after it has continued.
#[test]
fn a_copy_that_shares_the_anchor_is_refused_wherever_the_first_run_is_suspended() {
    let lab = Lab::new();
    let stream = Stream { rows: 60_000, epochs: 1000 };
    lab.write("data.csv", stream.csv());
    let text =
        stream.pipeline("data.csv", "").replacen("keep = 'all'", "keep = 'all'\nanchor = 'anchors'", 1);
    let pipeline = lab.write("pipeline.toml", text);
    fs::create_dir(lab.path("anchors")).expect("a directory for anchors");
    let (state, twin) = (lab.path("state"), lab.path("twin"));
    let mut random = Random(7);
    let mut stalls = 0;
    let mut first = run(&pipeline, &state, 2).spawn().expect("the run starts");
    await_until("epochs are published", || !releases(&state).is_empty());
    while stalls < 12 && first.try_wait().expect("a child can be asked").is_none() {
        std::thread::sleep(Duration::from_micros(random.below(10_000)));
        signal(&first, "-STOP");
        let _ = fs::remove_dir_all(&twin);
        copy(&state, &twin);
        let seen = releases(&twin).len();
        if seen == stream.epochs as usize {
            // The first run has ended before it could be suspended.
            break;
        }
        finish(&mut run(&pipeline, &twin, 1)).failed(1, &["another run holds this anchor"]);
        assert_eq!(releases(&twin).len(), seen);
        signal(&first, "-CONT");
        stalls += 1;
    }
    assert!(stalls > 2, "the run is long enough to stand still");
    wait(first).succeeded();
    assert_eq!(releases(&state).len(), 1000);
    if releases(&twin).len() < 1000 {
        finish(&mut run(&pipeline, &twin, 1))
            .failed(1, &["its anchor", "restore the newest state directory"]);
    }
    finish(hushflow(["verify", "--anchor"]).arg(lab.path("anchors")).arg(&state)).succeeded();
}
