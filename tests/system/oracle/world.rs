//! One world of a case: its files, the runs of the real binary, and their kills.
//!
//! Both worlds of a pair run with the same seed and the same relative paths. They are stopped,
//! killed, cut and inspected at the same positions of the stream, which are public.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::factors::{Case, Factor as F};
use super::pairs::Pair;
use super::pipeline::{JUMP, LATENESS, LENGTH};
use super::public::{Facts, Seen};
use super::rows::{StreamRow, written};
use super::stores;
use crate::harness::{await_until, free_hosts, hushflow, releases};

/// A world while it runs.
pub(super) struct World<'a> {
    case: &'a Case,
    rows: &'a [StreamRow],
    cut: usize,
    directory: PathBuf,
    facts: Facts,
}

/// A process of a run, and the source of its standard input.
struct Running {
    children: Vec<Child>,
}

impl<'a> World<'a> {
    /// Runs one world of the pair in an empty directory; returns everything public about it.
    pub(super) fn seen(case: &'a Case, pair: &'a Pair, which: usize, directory: &Path) -> Seen {
        Self::with_offsets(case, pair, which, directory, None)
    }

    /// Runs one world with these offsets to the noise.
    pub(super) fn with_offsets(
        case: &'a Case,
        pair: &'a Pair,
        which: usize,
        directory: &Path,
        offsets: Option<&str>,
    ) -> Seen {
        std::fs::create_dir_all(directory).expect("a directory for the world");
        let mut world = World {
            case,
            rows: &pair.worlds[which],
            cut: pair.cut,
            directory: directory.into(),
            facts: Facts::default(),
        };
        let turn = stores::lock_server(case);
        let offsets_of_simulation = offsets.map_or("", |_| "offsets = 'offsets.csv'\n");
        world.write("pipeline.toml", &(case.pipeline() + offsets_of_simulation));
        world.write("offsets.csv", offsets.unwrap_or_default());
        world.write("dense.csv", &case.matrix());
        world.write("secret", stores::secret());
        match &case[F::Restart] {
            "none" => world.run("the run", 0, world.rows.len()),
            "grown" | "torn" => {
                world.run("the first run", 0, world.cut);
                if case.is(F::Restart, &["torn"]) {
                    world.tear();
                }
                world.run("the second run", 0, world.rows.len());
            }
            _ => {
                world.killed_run();
                let from = world.acknowledged();
                world.run("the second run", from, world.rows.len());
            }
        }
        drop(turn);
        let state = world.path("state");
        Seen::of(world.facts, &state, case)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.path(name), content).expect("a file of the world");
    }

    fn is_piped(&self) -> bool {
        self.case.is(F::Source, &["stdin", "journal"])
    }

    /// Runs over the rows `from..end` to the end.
    fn run(&mut self, name: &str, from: usize, end: usize) {
        let rows = &self.rows[..end];
        if self.case.is(F::Source, &stores::STORES) {
            stores::fill(self.case, &written(self.case, rows.iter()));
        } else if !self.is_piped() {
            for (source, files) in self.case.files().iter().enumerate() {
                let half = if files.len() == 2 { self.rows.len() / 2 } else { 0 };
                let of_source = |rows: &'a [StreamRow]| rows.iter().filter(move |row| row.source == source);
                let (before, after) = rows.split_at(half.min(end));
                if files.len() == 2 {
                    self.write(&files[0], &written(self.case, before.iter()));
                    self.write(&files[1], &written(self.case, after.iter()));
                } else {
                    self.write(&files[0], &written(self.case, of_source(rows)));
                }
            }
        }
        let mut running = self.start();
        if self.is_piped() {
            let mut input = running.children[0].stdin.take().expect("a pipe");
            let cut = self.cut.clamp(from, end);
            feed(&mut input, &written(self.case, rows[from..cut].iter()));
            if self.case.is(F::Watch, &["metrics"]) {
                self.observe(&format!("metrics in the middle of {name}"), cut, &mut running);
            }
            feed(&mut input, &without_header(self.case, rows[cut..].iter()));
            if self.case.is(F::Watch, &["metrics"]) {
                self.observe(&format!("metrics at the end of {name}"), end, &mut running);
            }
        }
        self.end(name, &mut running);
    }

    /// A run that is killed once it has published the epochs closed by the rows before the cut.
    fn killed_run(&mut self) {
        let mut running = self.start();
        let mut input = running.children[0].stdin.take().expect("a pipe");
        feed(&mut input, &written(self.case, self.rows[..self.cut].iter()));
        self.observe("metrics before the kill", self.cut, &mut running);
        for child in &mut running.children {
            child.kill().expect("a child can be killed");
        }
        // The output depends on the moment of the kill, and so does the end of other processes of
        // the run.
        for child in &mut running.children {
            child.wait().expect("the process has ended");
        }
    }

    /// Starts the processes of a run in the world's directory.
    fn start(&self) -> Running {
        let (workers, processes) = match &self.case[F::Workers] {
            "two processes" => ("1", 2),
            workers => (workers, 1),
        };
        let hosts = (processes == 2).then(free_hosts);
        let spawn = |process: usize| {
            let mut command = hushflow(["run", "pipeline.toml", "--state", "state", "--workers", workers]);
            if let Some(hosts) = &hosts {
                command.args(["--hosts", hosts, "--process", &process.to_string()]);
            }
            match &self.case[F::Watch] {
                "json" => command.arg("--json"),
                "csv" => command.args(["--format", "csv"]),
                "log info" => command.args(["--quiet", "--log", "info"]),
                "log debug" => command.args(["--quiet", "--log", "debug", "--log-format", "json"]),
                "metrics" if process == 0 => command.args(["--quiet", "--metrics", "127.0.0.1:0"]),
                _ => command.arg("--quiet"),
            };
            if self.case.is(F::Source, &["journal"]) && process == 0 {
                command.args(["--acknowledge", "acknowledged"]);
            }
            if self.is_piped() && process == 0 {
                command.stdin(Stdio::piped());
            }
            command.args(stores::arguments(self.case).unwrap_or_default());
            self.spawned(&mut command, process)
        };
        Running { children: (0..processes).map(spawn).collect() }
    }

    fn spawned(&self, command: &mut Command, process: usize) -> Child {
        let file =
            |name: &str| File::create(self.path(&format!("{name}{process}"))).expect("a file of the world");
        command.current_dir(&self.directory).env("HUSHFLOW_STRATEGIES", super::saved_strategies());
        command.stdout(file("out")).stderr(file("err")).spawn().expect("the binary starts")
    }

    /// Waits for all processes, and records their output.
    fn end(&mut self, name: &str, running: &mut Running) {
        for (process, child) in running.children.iter_mut().enumerate() {
            let status = child.wait().expect("the process ends");
            let output_of = |name: &str| std::fs::read_to_string(self.path(&format!("{name}{process}")));
            let [out, err] = ["out", "err"].map(|name| output_of(name).expect("UTF-8"));
            self.facts.ended(&format!("{name}, process {process}"), status.code(), &out, &err, self.case);
        }
    }

    /// Waits until the run has published the epochs closed by the first `rows` rows, or has ended;
    /// reads the metrics if they are served.
    fn observe(&mut self, name: &str, rows: usize, running: &mut Running) {
        let expected = closed(self.case, &self.rows[..rows]);
        let state = self.path("state");
        let mut has_ended = || running.children[0].try_wait().expect("a child").is_some();
        await_until("the epochs that are closed are published", || {
            releases(&state).len() >= expected || has_ended()
        });
        // The last epoch ends the run, and with it the page.
        if self.case.is(F::Watch, &["metrics"]) && expected < self.case.number(F::Horizon) && !has_ended() {
            let err = self.path("err0");
            self.facts.metrics(name, &err, expected);
        }
    }

    /// Number of records that the sender need not send again.
    fn acknowledged(&self) -> usize {
        if !self.case.is(F::Source, &["journal"]) {
            return 0;
        }
        // Starts a run that reads the journal and has no input, and reads the numbers that it
        // appends to the file.
        let acknowledged = self.path("acknowledged");
        let _ = std::fs::remove_file(&acknowledged);
        let mut command = hushflow([
            "run",
            "pipeline.toml",
            "--state",
            "state",
            "--quiet",
            "--acknowledge",
            "acknowledged",
        ]);
        command.stdin(Stdio::piped());
        let mut child = self.spawned(&mut command, 9);
        let first = || std::fs::read_to_string(&acknowledged).ok()?.lines().next()?.parse().ok();
        await_until("the run says what it has", || first().is_some());
        child.kill().expect("a child can be killed");
        child.wait().expect("the child has ended");
        first().expect("a number of records")
    }

    /// Removes what a start does not need: checkpoints, and the end of the public log.
    fn tear(&self) {
        let state = self.path("state");
        for name in ["checkpoint.a", "checkpoint.b"] {
            let _ = std::fs::remove_file(state.join(name));
        }
        let log = OpenOptions::new().write(true).open(state.join("public.log")).expect("a public log");
        let length = log.metadata().expect("its length").len();
        log.set_len(length - length.min(self.case.seed % 400)).expect("a log can be cut");
    }
}

/// Pipes text into a run, which may have ended after its last epoch.
fn feed(input: &mut impl Write, text: &str) {
    if let Err(error) = input.write_all(text.as_bytes()) {
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
}

fn without_header<'a>(case: &Case, rows: impl Iterator<Item = &'a StreamRow>) -> String {
    let text = written(case, rows);
    match case.is(F::Format, &["csv"]) {
        true => text.split_once('\n').map(|(_, rows)| rows.to_owned()).expect("a header"),
        false => text,
    }
}

/// Number of epochs that the public clock has closed after these rows: by arrivals and row counts,
/// or by event times if these are public.
fn closed(case: &Case, rows: &[StreamRow]) -> usize {
    let horizon = case.number(F::Horizon);
    let lateness = if case.is(F::Clock, &["late folded", "late dropped"]) { LATENESS } else { 0 };
    let limited = case.is(F::Jump, &["limited"]);
    let number = match &case[F::Clock] {
        "records" => rows.len() / case.rows_per_epoch(),
        "end-of-input" => 0,
        clock => {
            let mut now = 0;
            for row in rows {
                let at = if clock == "event-time" { row.event_second() } else { row.arrival };
                if !(limited && at > now + JUMP) {
                    now = at.max(now);
                }
            }
            ((now - lateness) / LENGTH).max(0) as usize
        }
    };
    number.min(horizon)
}
