//! Slow operations react to signals; large inputs have limits.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use hushflow::state::PublicReader;

use crate::harness::{
    Lab, Random, Stream, await_full, await_until, finish, hushflow, releases, run, stop, wait,
};

/// The search for the best matrix with this many steps takes many minutes.
const STREAM: Stream = Stream { rows: 20_000, epochs: 4000 };

/// The signal itself ends the process, so a shell reports 143 and a service manager a clean stop.
#[test]
fn a_search_for_a_strategy_is_ended_by_a_signal() {
    let lab = Lab::new();
    lab.write("data.csv", "event,arrival,key,a,b,c,d,e\n");
    let pipeline = STREAM.pipeline("data.csv", "").replace("'square-root'", "'optimal'");
    let pipeline = lab.write("pipeline.toml", pipeline);
    let mut child = run(&pipeline, &lab.path("state"), 1).spawn().expect("the run starts");
    await_until("the search takes time", || processor_time(&child, "hushflow") > Duration::from_millis(300));
    assert!(child.try_wait().expect("a child").is_none(), "the search is over before the signal");
    assert_eq!(ended_by_a_signal(&mut child).signal(), Some(15), "SIGTERM ends the process");
}

/// Ends a run that would continue for minutes; the limit is generous.
fn ended_by_a_signal(child: &mut Child) -> ExitStatus {
    stop(child);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(30) {
        if let Some(status) = child.try_wait().expect("a child") {
            return status;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = child.kill();
    panic!("the signal was not heard");
}

/// Returns the processor time of the threads with this name, in steps of ten milliseconds.
fn processor_time(process: &Child, thread: &str) -> Duration {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", process.id())) else {
        return Duration::ZERO;
    };
    let ticks = |entry: std::io::Result<std::fs::DirEntry>| {
        let line = std::fs::read_to_string(entry.ok()?.path().join("stat")).ok()?;
        let (name, fields) = line.split_once('(')?.1.rsplit_once(") ")?;
        let fields: Vec<_> = fields.split(' ').collect();
        let spent = fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?;
        name.starts_with(thread).then_some(spent)
    };
    Duration::from_millis(10 * threads.filter_map(ticks).sum::<u64>())
}

/// Waits until a process has used no processor time for a third of a second.
fn await_idle(process: &Child) {
    let mut last = (processor_time(process, ""), Instant::now());
    await_until("the run waits", || {
        let now = processor_time(process, "");
        if now > last.0 {
            last = (now, Instant::now());
        }
        last.1.elapsed() > Duration::from_millis(300)
    });
}

fn is_stopped_in_good_order(mut child: Child) {
    let status = ended_by_a_signal(&mut child);
    let ended = wait(child);
    assert_eq!(status.code(), Some(0), "{}", ended.err);
    assert!(ended.err.contains("Stopped by a signal"), "{}", ended.err);
}

/// A Tukey median of this many records takes minutes.
const WINDOW: &str = "name = 'w'
source.path = 'rows.csv'
columns = [{ name = 'x', lower = -1, upper = 1 }, { name = 'y', lower = -1, upper = 1 }]
privacy = { epsilon = 5, delta = 1e-6, neighbours = 'replace-one-in-place' }
epochs = { records = 4000, horizon = 3 }
release = { method = 'tukey', corruption = 0.1, scale = [0.1, 0.1], range = 20 }
simulation.seed = 1";

#[test]
fn a_signal_stops_the_estimate_of_a_window() {
    let lab = Lab::new();
    let mut random = Random(27);
    let mut number = || random.below(2_000_001) as f64 / 1e6 - 1.0;
    let rows: String = (0..8000).map(|_| format!("{},{}\n", number(), number())).collect();
    lab.write("rows.csv", format!("x,y\n{rows}"));
    let (pipeline, state) = (lab.write("pipeline.toml", WINDOW), lab.path("state"));
    let child = run(&pipeline, &state, 2).spawn().expect("the run starts");
    await_until("the estimate takes time", || {
        processor_time(&child, "estimate") > Duration::from_millis(300)
    });
    is_stopped_in_good_order(child);
    assert!(releases(&state).is_empty(), "the window was estimated before the signal");
}

/// Which epochs have records is private: a stopped run publishes the epochs that its clock has
/// closed, not the empty epochs before the first record.
#[test]
fn a_signal_publishes_no_epoch_before_waiting_records() {
    for workers in [1, 2] {
        let lab = Lab::new();
        let pipeline = "name = 'waiting'
source = { path = '-', format = 'csv' }
columns = [{ name = 'value', lower = 0, upper = 1 }]
privacy = { epsilon = 1, delta = 1e-6 }
epochs = { time = 'time', clock = 'end-of-input', start = 2026-01-01, length = '1d', horizon = 40 }
release = { strategy = 'identity', workload = 'prefix' }";
        let (pipeline, state) = (lab.write("pipeline.toml", pipeline), lab.path("state"));
        let mut command = run(&pipeline, &state, workers);
        let mut child = command.stdin(Stdio::piped()).spawn().expect("the run starts");
        let rows = "2026-01-25T05:00:00Z,0.5\n".repeat(50_000);
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(format!("time,value\n{rows}").as_bytes()).expect("the run reads");
        await_idle(&child);
        is_stopped_in_good_order(child);
        assert!(releases(&state).is_empty(), "an epoch was published that no clock had closed");
    }
}

#[test]
fn a_signal_stops_a_run_with_unread_output() {
    let lab = Lab::new();
    let stream = Stream { rows: 40_000, epochs: 4000 };
    lab.write("data.csv", stream.csv());
    let (pipeline, state) = (lab.write("pipeline.toml", stream.pipeline("data.csv", "")), lab.path("state"));
    let mut command = hushflow(["run", "--json"]);
    let child = command.arg(&pipeline).arg("--state").arg(&state).spawn().expect("the run starts");
    await_full(child.stdout.as_ref().expect("a pipe"));
    is_stopped_in_good_order(child);
    assert!(releases(&state).len() < stream.epochs as usize, "all was written before the signal");
}

/// Without a writer, and with a silent one.
#[test]
fn a_run_over_a_named_pipe_hears_a_signal() {
    let lab = Lab::new();
    let made = Command::new("mkfifo").arg(lab.path("pipe.csv")).status().expect("mkfifo");
    assert!(made.success());
    let stream = Stream { rows: 400, epochs: 4 };
    let pipeline = lab.write("pipeline.toml", stream.pipeline("pipe.csv", ""));
    let state = lab.path("state");
    let child = run(&pipeline, &state, 1).spawn().expect("the run starts");
    await_until("the run has begun", || PublicReader::open(&state).is_ok());
    await_idle(&child);
    is_stopped_in_good_order(child);
    let child = run(&pipeline, &state, 1).spawn().expect("the run starts");
    let mut pipe = File::options().write(true).open(lab.path("pipe.csv")).expect("the run reads");
    pipe.write_all(stream.csv().as_bytes()).expect("the run reads");
    await_until("epochs are published", || !releases(&state).is_empty());
    is_stopped_in_good_order(child);
    drop(pipe);
}

/// 10⁸ steps in half a gigabyte of address space, including the program and its threads. Row by
/// row, the power law alone would take half an hour.
#[test]
#[ignore = "slow"]
fn long_horizons_are_planned_in_little_time_and_memory() {
    let workloads = [
        "prefix",
        "average",
        "exponential:0.999",
        "window:1000",
        "window:20000000",
        "momentum:0.99",
        "adam:0.999",
    ];
    for workload in workloads {
        let script = "ulimit -v 500000; exec \"$0\" plan -w \"$1\" -n 100000000 --json";
        let binary = hushflow([""; 0]).get_program().to_owned();
        let planned =
            finish(Command::new("timeout").args(["120", "sh", "-c", script]).arg(binary).arg(workload));
        let strategies = planned.succeeded().json()[0]["strategies"].as_array().map_or(0, Vec::len);
        assert!(strategies >= 3, "{workload}");
    }
    finish(&mut hushflow(["plan", "-w", "prefix", "-n", "100000000", "-s", "log-perturbed-root"]))
        .failed(2, &["log-perturbed-root", "1048576"]);
}

#[test]
#[ignore = "slow"]
fn files_read_into_memory_have_a_size_limit() {
    let lab = Lab::new();
    let state = lab.path("state");
    finish(&mut run("/dev/zero".as_ref(), &state, 1)).failed(2, &["/dev/zero", "larger than 64 MiB"]);
    let saved = lab.path("saved.json");
    symlink("/dev/zero", &saved).expect("a link");
    for path in ["/dev/zero".as_ref(), saved.as_path()] {
        let strategy = format!("file:{}", path.display());
        finish(&mut hushflow(["plan", "-w", "prefix", "-n", "10", "-s", &strategy]))
            .failed(2, &[&path.display().to_string(), "larger than 512 MiB"]);
    }
}
