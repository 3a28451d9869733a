//! The public log in a separate directory: its readers need no access to the state directory, and
//! run as another user.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::{Lab, Stream, answer, finish, hushflow, releases, run, send, served};
use serde_json::Value;

const STREAM: Stream = Stream { rows: 2000, epochs: 20 };

/// A user without files of its own.
const NOBODY: u32 = 65_534;

/// A copy of the binary that everyone may execute.
fn binary_for_all(lab: &Lab) -> PathBuf {
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let copy = lab.path("hushflow");
    // Another process copies the file. If this one did, a child that is started meanwhile would
    // inherit a writable handle, and a file that is open for writing can't be executed.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_hushflow")).arg(&copy).status().unwrap();
    assert!(copied.success());
    mode(&copy, 0o755);
    mode(&lab.path(""), 0o755);
    copy
}

/// The command as a user without rights, if this test may switch users.
fn as_nobody(binary: &Path, arguments: &[&str], directory: &Path) -> Command {
    let mut command = Command::new(binary);
    let [name, rest @ ..] = arguments else { panic!("a command") };
    command.arg(name).arg(directory).args(rest).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

#[test]
fn readers_need_the_public_directory_alone() {
    let lab = Lab::on_disk();
    lab.write("data.csv", STREAM.csv());
    let pipeline = lab.write("p.toml", STREAM.pipeline("data.csv", ""));
    let (state, public) = (lab.path("state"), lab.path("above/it/public"));
    let command = run(&pipeline, &state, 1);
    // As in a systemd service with UMask=0077.
    let mut closed = Command::new("sh");
    closed.args(["-c", "umask 077; exec \"$0\" \"$@\""]).arg(command.get_program()).args(command.get_args());
    closed.arg("--public").arg(&public).env("HUSHFLOW_STRATEGIES", "/dev/null/kept");
    let ended = finish(closed.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped())).succeeded();
    assert!(ended.err.contains(&format!("hushflow tail {}", public.display())), "{}", ended.err);
    assert_eq!(releases(&public).len(), 20);
    assert!(!state.join("public.log").exists());
    let mode_of = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode_of(&state), 0o700);
    // No other user may replace a state directory, under any umask.
    let deep = run(&pipeline, &lab.path("new/deep/state"), 1);
    let mut open = Command::new("sh");
    open.args(["-c", "umask 000; exec \"$0\" \"$@\""]).arg(deep.get_program()).args(deep.get_args());
    finish(open.env("HUSHFLOW_STRATEGIES", "/dev/null/kept").stdin(Stdio::null())).succeeded();
    for (path, mode) in [("new", 0o755), ("new/deep", 0o755), ("new/deep/state", 0o700)] {
        assert_eq!(mode_of(&lab.path(path)), mode, "{path}");
    }

    let binary = binary_for_all(&lab);
    let lines = finish(&mut as_nobody(&binary, &["tail", "--json"], &public)).succeeded().json();
    assert_eq!(lines.len(), 20 * 7);
    let verified = finish(&mut as_nobody(&binary, &["verify", "--json"], &public)).succeeded().json();
    assert_eq!((&verified[0]["published"], &verified[0]["private"]), (&Value::from(20), &Value::from(true)));
    let mut page = as_nobody(&binary, &["tail", "--web", "127.0.0.1:0"], &public).spawn().unwrap();
    let (address, _rest) = served(&mut page);
    let ask = |path: &str| answer(send(&address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n")));
    let about: Value = serde_json::from_str(&ask("/about").1).unwrap();
    assert_eq!((&about["horizon"], &about["ledger"]), (&Value::from(20), &Value::Null));
    assert_eq!(ask("/events").1.matches("id: ").count(), 20);
    page.kill().unwrap();
    page.wait().unwrap();
    if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
        finish(&mut as_nobody(&binary, &["tail", "--json"], &state)).failed(1, &["state", "denied"]);
    }

    // The owner compares the public log with the private one.
    let mut verify = hushflow(["verify", "--json"]);
    let verified = finish(verify.arg(&state).arg("--public").arg(&public)).succeeded().json();
    assert_eq!((&verified[0]["ok"], &verified[0]["published"]), (&Value::from(true), &Value::from(20)));
    let log = std::fs::read(public.join("public.log")).unwrap();
    std::fs::write(public.join("public.log"), [&log[..], &log[log.len() - 100..]].concat()).unwrap();
    let mut verify = hushflow(["verify"]);
    let name = public.join("public.log").display().to_string();
    finish(verify.arg(&state).arg("--public").arg(&public)).failed(1, &[&name]);
    finish(&mut as_nobody(&binary, &["verify"], &public)).failed(1, &[&name]);
}

/// The pipeline file names the directory. Lost files there are rebuilt, and sinks follow the log
/// there.
#[test]
fn a_run_rebuilds_a_damaged_public_directory() {
    let lab = Lab::new();
    lab.write("data.csv", STREAM.csv());
    let sink = "[[sinks]]\npath = 'out.ndjson'\n";
    let text = STREAM.pipeline("data.csv", sink).replace("keep = 'all'", "keep = 'all'\npublic = 'public'");
    let (pipeline, state, public) = (lab.write("p.toml", text), lab.path("state"), lab.path("public"));
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    let log = std::fs::read(public.join("public.log")).unwrap();
    assert_eq!(releases(&public).len(), 20);
    let lines = std::fs::read_to_string(lab.path("out.ndjson")).unwrap();
    assert_eq!(lines.lines().count(), 20 * 7);
    std::fs::remove_dir_all(&public).unwrap();
    finish(&mut run(&pipeline, &state, 2)).succeeded();
    assert!(std::fs::read(public.join("public.log")).unwrap() == log);
    std::fs::set_permissions(&public, std::fs::Permissions::from_mode(0o777)).unwrap();
    finish(&mut run(&pipeline, &state, 1)).failed(1, &["public", "chmod go-w"]);
}
