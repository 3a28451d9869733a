//! Helpers for the whole-system tests: a directory for files, the real binary, access to its logs,
//! a plain computation of the expected sums, and checks of which system features a test can use. A
//! test that can't run prints the reason to standard error, and passes.

mod logs;
pub(crate) mod power;
mod stream;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::fd::AsFd;
use rustix::io::ioctl_fionread;
use serde_json::Value;
use tempfile::TempDir;

pub(crate) use logs::{
    FramePosition, PRIVATE_LOG, cut, frames, gather, last_frame, logs, recorded, releases, sums,
};
pub(crate) use stream::{Assigned, Random, Stream, assigned, expected_sums, sums_of};

/// Free memory above which the files of tests are kept in memory.
const SPARE_MEMORY: u64 = 2 << 30;

/// A temporary directory, in memory if there is enough. Runs sync every commit, which is slow on a
/// disk, and tests could not detect a missing sync, which matters only in a power cut.
fn temporary_directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let is_spare = rustix::fs::statvfs(memory).is_ok_and(|room| room.f_bavail * room.f_frsize > SPARE_MEMORY);
    let made = if is_spare { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a temporary directory")
}

/// A directory for one test's files.
pub(crate) struct Lab(TempDir);

impl Lab {
    pub(crate) fn new() -> Self {
        Lab(temporary_directory())
    }

    /// For files too large for memory, and for programs, which may not run from memory.
    pub(crate) fn on_disk() -> Self {
        Lab(tempfile::tempdir().expect("a temporary directory"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("a file of the test is written");
        path
    }
}

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
        let ended = Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) };
        assert!(!ended.err.contains("panicked"), "{}", ended.err);
        ended
    }

    #[track_caller]
    pub(crate) fn succeeded(self) -> Self {
        assert_eq!(self.code, Some(0), "{}", self.err);
        self
    }

    /// Checks for the result of a signal: an orderly end, or, before anything is read, death by
    /// that signal.
    #[track_caller]
    pub(crate) fn stopped(self) {
        assert!(matches!(self.code, Some(0) | None), "{:?}: {}", self.code, self.err);
    }

    /// Checks for this exit code and a message with all these parts.
    #[track_caller]
    pub(crate) fn failed(self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.err);
        for part in parts {
            assert!(self.err.contains(part), "expected {part:?} in: {}", self.err);
        }
    }

    pub(crate) fn json(&self) -> Vec<Value> {
        self.out.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
    }
}

/// The binary with these arguments. Standard input is empty, and strategies it finds can't be
/// saved.
pub(crate) fn hushflow<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hushflow"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("HUSHFLOW_STRATEGIES", "/dev/null/kept");
    // The user's own ledger is disabled too.
    command.env_remove("HUSHFLOW_LEDGER").env("XDG_CONFIG_HOME", "/dev/null/configured");
    command
}

/// Runs to the end.
pub(crate) fn finish(command: &mut Command) -> Ended {
    Ended::of(command.output().expect("the binary starts"))
}

/// Waits for a started process.
pub(crate) fn wait(child: Child) -> Ended {
    Ended::of(child.wait_with_output().expect("the process ends"))
}

/// Sends the signal that service managers use to end a process.
pub(crate) fn stop(child: &Child) {
    let status = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(status.expect("a signal is sent").success());
}

/// `hushflow run`, quietly.
pub(crate) fn run(pipeline: &Path, state: &Path, workers: usize) -> Command {
    let mut command = hushflow(["run", "--quiet", "--workers", &workers.to_string()]);
    command.arg(pipeline).arg("--state").arg(state);
    command
}

/// Free ports for two processes, in the form of `--hosts`.
pub(crate) fn free_hosts() -> String {
    free_hosts_of(2)
}

/// The same for this number of processes.
pub(crate) fn free_hosts_of(processes: usize) -> String {
    let port = |_| TcpListener::bind("127.0.0.1:0").expect("a free port");
    let ports: Vec<_> = (0..processes).map(port).collect();
    let address = |port: &TcpListener| port.local_addr().expect("a bound port").to_string();
    ports.iter().map(address).collect::<Vec<_>>().join(",")
}

/// `hushflow run` as a cluster of two processes on free ports.
pub(crate) fn run_as_two(pipeline: &Path, state: &Path, workers: usize) -> [Command; 2] {
    let hosts = free_hosts();
    ["0", "1"].map(|process| {
        let mut command = run(pipeline, state, workers);
        command.args(["--hosts", &hosts, "--process", process]);
        command
    })
}

/// `hushflow tail --json` with more arguments.
pub(crate) fn tail(state: &Path, arguments: &[&str]) -> Command {
    let mut command = hushflow(["tail", "--json"]);
    command.arg(state).args(arguments);
    command
}

/// Sends a request unchanged; returns the connection, whose reads time out.
pub(crate) fn send(address: &str, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("somebody listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    stream.write_all(request.as_bytes()).expect("the request is taken");
    stream
}

/// Returns the status line and the body of an answer.
pub(crate) fn answer(mut stream: TcpStream) -> (String, String) {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

/// Returns the address of the page that a process serves, and its further output.
pub(crate) fn served(child: &mut Child) -> (String, impl Iterator<Item = String> + use<>) {
    let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let mut lines = lines.map(|line| line.expect("a line"));
    let line = lines.find(|line| line.starts_with("http://")).expect("it says where the page is");
    (line["http://".len()..].split('/').next().expect("an address").to_owned(), lines)
}

/// Waits until `ready`, for at most twenty seconds.
#[track_caller]
pub(crate) fn await_until(what: &str, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !ready() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a pipe is full that is not read.
#[track_caller]
pub(crate) fn await_full(pipe: impl AsFd) {
    let mut last = (0, Instant::now());
    await_until("the pipe is full", || {
        let unread = ioctl_fionread(&pipe).expect("a pipe");
        if unread != last.0 {
            last = (unread, Instant::now());
        }
        unread > 32 << 10 && last.1.elapsed() > Duration::from_millis(200)
    });
}

/// Returns the cases of a file of reference numbers.
pub(crate) fn cases(vectors: &str) -> Vec<Value> {
    let vectors: Value = serde_json::from_str(vectors).expect("reference numbers are JSON");
    vectors["cases"].as_array().expect("a list of cases").clone()
}

pub(crate) fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// Checks a number to this relative error.
#[track_caller]
pub(crate) fn close(what: &str, found: &Value, expected: f64, relative: f64) {
    let found = number(found);
    assert!((found - expected).abs() <= relative * expected.abs() + 1e-12, "{what}: {found}, not {expected}");
}

/// Converts a workload of the reference numbers to the command line's form.
pub(crate) fn workload(input: &Value) -> String {
    match input["workload"].as_str().expect("a name") {
        "exp" => format!("exponential:{}", input["param"]),
        parametric @ ("window" | "momentum" | "adam") => format!("{parametric}:{}", input["param"]),
        plain => plain.into(),
    }
}

fn succeeds(command: &mut Command, otherwise: &str) -> bool {
    let can = command.output().is_ok_and(|tried| tried.status.success());
    if !can {
        let _ = writeln!(std::io::stderr(), "skipped: {otherwise}");
    }
    can
}

/// Returns whether file systems can be mounted, in a separate namespace.
pub(crate) fn can_mount(lab: &Lab) -> bool {
    let mut mount = Command::new("unshare");
    mount.args(["-m", "mount", "-t", "tmpfs", "none"]).arg(lab.path(""));
    succeeds(&mut mount, "mounting a file system takes root and unshare")
}

/// Returns whether system calls can be made to fail.
pub(crate) fn can_fail_system_calls() -> bool {
    let mut trace = Command::new("strace");
    trace.args(["-qq", "-o", "/dev/null", "true"]);
    succeeds(&mut trace, "making system calls fail takes strace, which can't be used here")
}
