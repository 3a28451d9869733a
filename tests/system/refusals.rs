//! What the operating system refuses: threads, entropy, and reads that a signal interrupts. Each is an error of its own or a retry, never a
//! fault of the program. By strace, which makes system calls fail; skipped where that is not installed.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{Ended, Lab, Stream, finish, releases, run, sums};

const STREAM: Stream = Stream { rows: 2000, epochs: 20 };

/// Whether system calls can be made to fail here.
fn can_inject() -> bool {
    let traced = Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).status();
    let can = traced.is_ok_and(|status| status.success());
    if !can {
        let _ = writeln!(std::io::stderr(), "skipped: system calls fail by strace, which can't be used here");
    }
    can
}

/// The run with these options of strace.
fn traced(options: &[&str], pipeline: &Path, state: &Path) -> Command {
    let run = run(pipeline, state, 2);
    let mut traced = Command::new("strace");
    traced.args(["-f", "-qq", "-o", "/dev/null"]).args(options).arg(run.get_program()).args(run.get_args());
    traced.env("HUSHFLOW_STRATEGIES", "/dev/null/kept");
    traced.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    traced
}

/// Fails the calls from the `n`-th on, for n = 1, 2, … in turn, until the run no longer minds, or `limit`. Gives how many runs were refused.
fn refuse(call: &str, error: &str, limit: usize, check: impl Fn(&Ended)) -> usize {
    let lab = Lab::new();
    lab.write("data.csv", STREAM.csv());
    let pipeline = lab.write("pipeline.toml", STREAM.pipeline("data.csv", ""));
    let mut refused = 0;
    for from in 1..=limit {
        let state = lab.path(&format!("state-{from}"));
        let inject = format!("inject={call}:error={error}:when={from}+");
        let ended = finish(&mut traced(&["-e", &inject], &pipeline, &state));
        if ended.code == Some(0) {
            assert_eq!(releases(&state).len(), 20);
            continue;
        }
        assert_eq!(ended.code, Some(1), "{error} of {call} from {from}: {}", ended.err);
        assert!(!ended.err.contains("fault of hushflow"), "{error} of {call} from {from}: {}", ended.err);
        check(&ended);
        // What was begun goes on.
        if state.exists() {
            finish(&mut run(&pipeline, &state, 1)).succeeded();
            assert_eq!(releases(&state).len(), 20);
        }
        refused += 1;
    }
    refused
}

#[test]
fn a_thread_that_cannot_be_had_is_an_error_of_its_own() {
    if can_inject() {
        let named = |ended: &Ended| assert!(ended.err.contains("thread"), "{}", ended.err);
        assert!(refuse("clone3", "EAGAIN", 8, named) > 1);
    }
}

#[test]
fn entropy_that_cannot_be_had_is_an_error_of_its_own() {
    if can_inject() {
        assert!(refuse("getrandom", "EIO", 6, |_| ()) > 1);
        // There is another way to it, which may be taken.
        refuse("getrandom", "ENOSYS", 3, |_| ());
    }
}

#[test]
fn a_read_that_a_signal_interrupts_is_tried_again() {
    if !can_inject() {
        return;
    }
    let (lab, _, _, expected) = STREAM.laid_out();
    let data = fs::canonicalize(lab.path("data.csv")).expect("the data");
    let path = data.to_str().expect("a plain name");
    let follow = |text: String| text.replacen("[source]", "[source]\nfollow = true", 1);
    let pipelines = [
        lab.path("file.toml"),
        lab.write("stdin.toml", STREAM.pipeline("-", "")),
        lab.write("follow.toml", follow(STREAM.pipeline("data.csv", ""))),
    ];
    for (number, pipeline) in pipelines.iter().enumerate() {
        let state = lab.path(&format!("state-{number}"));
        let options = ["-P", path, "-e", "inject=read:error=EINTR:when=1+2"];
        let mut run = traced(&options, pipeline, &state);
        if number == 2 {
            run.args(["--until-idle", "200ms"]);
        }
        finish(run.stdin(fs::File::open(&data).expect("the data"))).succeeded();
        assert!(sums(&state) == expected, "{}", pipeline.display());
    }
}
