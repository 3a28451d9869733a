//! What takes long hears a signal, what is large has a limit.

use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::harness::{Lab, Stream, finish, hushflow, run, stop};

/// The search for the best matrix of so many steps takes many minutes.
const STREAM: Stream = Stream { rows: 20_000, epochs: 4000 };

/// The signal itself ends the process, so a shell reports 143 and a service manager a clean stop. The limit is generous: without
/// the mend this takes minutes.
#[test]
fn a_search_for_a_strategy_is_ended_by_a_signal() {
    let lab = Lab::new();
    lab.write("data.csv", "event,arrival,key,a,b,c,d,e\n");
    let pipeline = STREAM.pipeline("data.csv", "").replace("'square-root'", "'optimal'");
    let pipeline = lab.write("pipeline.toml", pipeline);
    let mut child = run(&pipeline, &lab.path("state"), 1).spawn().expect("the run starts");
    std::thread::sleep(Duration::from_secs(2));
    assert!(child.try_wait().expect("a child").is_none(), "the search is over before the signal");
    stop(&child);
    let begun = Instant::now();
    let mut status = None;
    while status.is_none() && begun.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(50));
        status = child.try_wait().expect("a child");
    }
    let _ = child.kill();
    assert_eq!(status.and_then(|status| status.signal()), Some(15), "SIGTERM ends the process");
}

/// A gigabyte of addresses, of which the program and its threads take a share, for 10⁸ steps.
#[test]
fn long_horizons_are_planned_in_little_memory() {
    for (strategy, horizon) in [("identity", "100000000"), ("banded-square-root:4", "20000000")] {
        let script = "ulimit -v 1000000; exec \"$0\" plan -w prefix -n \"$2\" -s \"$1\" --json";
        let binary = hushflow([""; 0]).get_program().to_owned();
        let planned = finish(Command::new("sh").args(["-c", script]).arg(binary).args([strategy, horizon]));
        assert_eq!(planned.succeeded().json().len(), 1, "{strategy}");
    }
    finish(&mut hushflow(["plan", "-w", "prefix", "-n", "100000000", "-s", "log-perturbed-root"]))
        .failed(2, &["log-perturbed-root", "1048576"]);
}

#[test]
fn what_is_parsed_whole_has_an_end() {
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
