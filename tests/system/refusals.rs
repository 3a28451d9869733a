//! Failures of the operating system: threads, entropy, and reads interrupted by a signal. Each
//! gives a specific error or a retry, never a crash. Uses strace to make system calls fail; skipped
//! if that is not installed.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::can_fail_system_calls;
use crate::harness::{Ended, Lab, Stream, finish, releases, run, sums};
use crate::parquet::write;

const STREAM: Stream = Stream { rows: 2000, epochs: 20 };

/// The run with these options of strace.
fn traced(options: &[&str], pipeline: &Path, state: &Path) -> Command {
    let run = run(pipeline, state, 2);
    let mut traced = Command::new("strace");
    traced.args(["-f", "-qq", "-o", "/dev/null"]).args(options).arg(run.get_program()).args(run.get_args());
    traced.env("HUSHFLOW_STRATEGIES", "/dev/null/kept");
    traced.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    traced
}

/// Fails the calls from the `n`-th on, for n = 1, 2, … until the run no longer fails, or n is
/// `limit`. Returns the number of refused runs.
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
        assert!(!ended.err.contains("bug in hushflow"), "{error} of {call} from {from}: {}", ended.err);
        check(&ended);
        // A state that was begun can be continued.
        if state.exists() {
            finish(&mut run(&pipeline, &state, 1)).succeeded();
            assert_eq!(releases(&state).len(), 20);
        }
        refused += 1;
    }
    refused
}

#[test]
fn a_failed_thread_start_has_its_own_error() {
    if can_fail_system_calls() {
        let named = |ended: &Ended| {
            assert!(ended.err.contains("thread") && !ended.err.contains("kind: "), "{}", ended.err);
        };
        assert!(refuse("clone3", "EAGAIN", 8, named) > 1);
    }
}

#[test]
fn missing_entropy_has_its_own_error() {
    if can_fail_system_calls() {
        assert!(refuse("getrandom", "EIO", 6, |_| ()) > 1);
        // Without this call, another source of entropy may be used.
        refuse("getrandom", "ENOSYS", 3, |_| ());
    }
}

#[test]
fn a_read_that_a_signal_interrupts_is_tried_again() {
    if !can_fail_system_calls() {
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
        let folder = data.parent().and_then(Path::to_str).expect("a plain name");
        let listing = "inject=getdents64:error=EINTR:when=1+3";
        let options = ["-P", path, "-P", folder, "-e", "inject=read:error=EINTR:when=1+2", "-e", listing];
        let mut run = traced(&options, pipeline, &state);
        if number == 2 {
            run.args(["--until-idle", "200ms"]);
        }
        finish(run.stdin(fs::File::open(&data).expect("the data"))).succeeded();
        assert!(sums(&state) == expected, "{}", pipeline.display());
    }
}

/// Reads fail in the footer and in a page.
#[test]
fn a_failing_disk_is_not_reported_as_a_damaged_parquet_file() {
    if !can_fail_system_calls() {
        return;
    }
    let lab = Lab::new();
    let text = STREAM.csv();
    let rows: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split(',').collect()).collect();
    write(&lab.path("data.parquet"), &rows, 1000);
    let text = STREAM.pipeline("data.parquet", "").replace("'csv'", "'parquet'");
    let pipeline = lab.write("pipeline.toml", text);
    let data = fs::canonicalize(lab.path("data.parquet")).expect("the data");
    let path = data.to_str().expect("a plain name");
    let mut refused = 0;
    for from in [1, 2, 5, 20] {
        let inject = format!("inject=pread64:error=EIO:when={from}+");
        let options = ["-P", path, "-e", &inject];
        let ended = finish(&mut traced(&options, &pipeline, &lab.path(&format!("state-{from}"))));
        refused += usize::from(ended.code != Some(0));
        if ended.code != Some(0) {
            ended.failed(1, &["data.parquet", "can't be read", "Input/output error"]);
        }
    }
    assert!(refused > 2, "{refused} runs were refused");
}

/// Interrupts every third of the calls that reach the state directory or its files.
#[test]
fn a_call_on_the_state_directory_that_a_signal_interrupts_is_made_again() {
    if !can_fail_system_calls() {
        return;
    }
    let (lab, _, _, expected) = STREAM.laid_out();
    let text = STREAM.pipeline("data.csv", "[ledger]\ndirectory = 'shared'\ndata_set = 'stream'\n");
    let pipeline = lab.write("pipeline.toml", text);
    let state = lab.path("state");
    let inside = |folder: &str, names: &[&str]| {
        let folder = lab.path(folder);
        let names = names.iter().map(|name| folder.join(name)).collect::<Vec<_>>();
        [vec![folder], names].concat()
    };
    let files = [
        "checkpoint.a",
        "checkpoint.b",
        "checkpoint.new",
        "private.new",
        "enrolment",
        "enrolment.new",
        "public.log",
    ];
    let segments: Vec<String> = (1..9).map(|number| format!("private-{number:06}.log")).collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let paths =
        [inside("state", &[&files[..], &segments].concat()), inside("shared", &["ledger", "ledger.new"])];
    let mut options = Vec::new();
    for path in paths.concat() {
        options.extend(["-P".into(), path.to_str().expect("a plain name").to_owned()]);
    }
    for calls in [
        "open,openat",
        "flock",
        "fsync",
        "fdatasync",
        "ftruncate",
        "fchmod",
        "mkdir",
        "getdents64",
        "pread64",
        "pwrite64",
        "rename,renameat,renameat2",
        "unlink,unlinkat",
        "statfs,fstatfs",
    ] {
        options.extend(["-e".into(), format!("inject={calls}:error=EINTR:when=1+3")]);
    }
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    for _ in 0..2 {
        finish(&mut traced(&options, &pipeline, &state)).succeeded();
        assert!(sums(&state) == expected);
    }
}
