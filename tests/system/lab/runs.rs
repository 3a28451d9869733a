//! Runs under every kind of strategy. The log stores the strategy, so no later run searches for it
//! again.

use std::path::{Path, PathBuf};

use hushflow::state::PublicReader;
use serde_json::Value;

use super::{KEPT, forget, inside, json};
use crate::harness::{
    Ended, Lab, PRIVATE_LOG, cut, finish, hushflow, last_frame, number, releases, run, sums, tail,
};

/// A month of flights; tests fill in the release of its pipeline.
struct Flights {
    lab: Lab,
}

impl Flights {
    fn new() -> Self {
        let lab = Lab::new();
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/flights_jan2013.csv");
        let rows = std::fs::read_to_string(data).expect("the example's data");
        lab.write("all.csv", &rows);
        let half = rows.lines().take(12_000).map(|line| format!("{line}\n"));
        lab.write("grows.csv", half.collect::<String>());
        Flights { lab }
    }

    /// The pipeline over a file instead of the example's.
    fn pipeline(&self, source: &str, release: &str, more: &str) -> PathBuf {
        let example = include_str!("../../../examples/flights.toml");
        let (before, rest) = example.split_once("[release]\n").expect("a section of the example");
        let (_, after) = rest.split_once("\n\n").expect("its end");
        let text = format!("{before}{release}\n{after}\n{more}");
        self.lab.write("pipeline.toml", text.replace("data/flights_jan2013.csv", source))
    }

    fn run(&self, pipeline: &Path, state: &Path, workers: usize) -> Ended {
        finish(inside(&self.lab, &mut run(pipeline, state, workers)))
    }
}

/// Returns the strategy in the header of a log.
fn strategy(state: &Path) -> Value {
    let reader = PublicReader::open(state).expect("a public log");
    let header: Value = serde_json::from_slice(&reader.header().parameters).expect("a header");
    header["strategy"].clone()
}

fn verified(state: &Path) -> Value {
    let mut verify = hushflow(["verify", "--json"]);
    finish(verify.arg(state)).succeeded().json().remove(0)
}

/// Checks that releases are unchanged after the folder of saved strategies is deleted.
fn check_resumed(flights: &Flights, release: &str) -> Value {
    let (pipeline, state) = (flights.pipeline("grows.csv", release, ""), flights.lab.path("resumed"));
    flights.run(&pipeline, &state, 1).succeeded();
    let (begun, found) = (releases(&state), strategy(&state));
    assert!((10..20).contains(&begun.len()), "{release}: half a month is published");
    if flights.lab.path(KEPT).exists() {
        forget(&flights.lab.path(KEPT));
    }
    std::fs::copy(flights.lab.path("all.csv"), flights.lab.path("grows.csv")).expect("the file grows");
    flights.run(&pipeline, &state, 2).succeeded();
    assert!(!flights.lab.path(KEPT).exists(), "{release}: the log has the strategy");
    let published = releases(&state);
    assert!(published.starts_with(&begun) && published.len() == 32, "{release}");
    assert_eq!(strategy(&state), found, "{release}");
    let report = verified(&state);
    assert_eq!([&report["ok"], &report["private"]], [true, true], "{release}");
    assert_eq!([&report["committed"], &report["generations"]], [32, 2], "{release}");
    let again = flights.run(&pipeline, &state, 1).succeeded();
    assert!(again.err.contains("Nothing new: 32 epochs"), "{}", again.err);
    check_views(&state);
    found
}

/// Checks that views need only the log and are reproducible.
fn check_views(state: &Path) {
    for workload in ["prefix", "adam:0.9", "momentum:0.5", "window:7"] {
        let [first, second] =
            [(); 2].map(|()| finish(&mut tail(state, &["--workload", workload])).succeeded());
        assert_eq!(first.out, second.out);
        let lines = first.json();
        assert_eq!(lines.len(), 3 * 32, "a line for every key and epoch");
        assert!(lines.iter().all(|line| line["workload"] == workload && number(&line["count_noise"]) > 0.0));
    }
}

/// Checks that a seeded run whose last epochs are torn off publishes the same ones again, from the
/// restored encoder state.
fn check_torn(flights: &Flights, release: &str) {
    let pipeline = flights.pipeline("all.csv", release, "[simulation]\nseed = 7");
    let state = flights.lab.path("torn");
    flights.run(&pipeline, &state, 1).succeeded();
    let values = || releases(&state).into_iter().map(|frame| frame.values).collect::<Vec<_>>();
    let (published, exact) = (values(), sums(&state));
    for _ in 0..5 {
        for log in [PRIVATE_LOG, "public.log"].map(|log| state.join(log)) {
            cut(&log, last_frame(&log).start);
        }
    }
    assert_eq!(releases(&state).len(), 27);
    flights.run(&pipeline, &state, 2).succeeded();
    assert!(values() == published, "{release}: other epochs than before");
    assert!(sums(&state) == exact, "{release}: other sums than before");
    assert_eq!(verified(&state)["ok"], true, "{release}");
}

/// Runs all checks of a pipeline with this release, and checks the name of the strategy in its log.
#[track_caller]
fn check(flights: &Flights, release: &str, name: &str) {
    let report = check_resumed(flights, release);
    assert_eq!(report["name"], name, "{release}");
    check_torn(flights, release);
}

#[test]
fn a_pipeline_without_a_strategy_runs_the_default() {
    check(&Flights::new(), "", "variable-blt:4");
    check(&Flights::new(), "[release]\nworkload = 'window:3'", "variable-banded:10");
}

#[test]
fn fitted_strategies_run() {
    check(&Flights::new(), "[release]\nstrategy = 'blt:2'", "blt:2");
    check(&Flights::new(), "[release]\nstrategy = 'variable-blt:3'", "variable-blt:3");
    let inverse = "banded-inverse-optimal:3";
    check(&Flights::new(), &format!("[release]\nstrategy = '{inverse}'"), inverse);
    check(&Flights::new(), "[release]\nstrategy = 'optimal'", "optimal");
}

#[test]
fn power_laws_run() {
    let release = "[release]\nworkload = 'average'\nstrategy = 'power-law:2'";
    check(&Flights::new(), release, "power-law:2");
}

#[test]
fn closed_forms_run() {
    check(&Flights::new(), "[release]\nstrategy = 'normalized-square-root'", "normalized-square-root");
    check(&Flights::new(), "[release]\nstrategy = 'fft-optimal-decoder'", "fft-optimal-decoder");
}

#[test]
fn auto_keeps_within_the_memory_limit() {
    for (limit, bytes) in [(64, 64), (0, 0)] {
        let flights = Flights::new();
        let release = format!("[release]\nstrategy = 'auto'\nmemory_limit = {limit}");
        let report = check_resumed(&flights, &release);
        let name = report["name"].as_str().expect("a name");
        let line = format!("plan --workload prefix --horizon 32 --strategy {name}");
        assert!(number(&json(&flights.lab, &line)["memory_per_coordinate"]) <= f64::from(bytes), "{name}");
        assert_eq!(name == "identity", limit == 0, "{name}");
        check_torn(&flights, &release);
    }
}

#[test]
fn a_strategy_file_is_read_once() {
    let flights = Flights::new();
    let report = json(&flights.lab, "optimize --method coa --workload prefix --horizon 32 -o best.json");
    let release = "[release]\nstrategy = 'file:best.json'";
    check(&flights, release, "coa");
    let planned = json(&flights.lab, "plan --workload prefix --horizon 32 --strategy file:best.json");
    assert!((number(&planned["loss"]) / number(&report["objective"]) - 1.0).abs() < 1e-9);
    std::fs::remove_file(flights.lab.path("best.json")).expect("the strategy file");
    let (pipeline, state) = (flights.pipeline("grows.csv", release, ""), flights.lab.path("resumed"));
    let again = flights.run(&pipeline, &state, 1).succeeded();
    assert!(again.err.contains("Nothing new: 32 epochs"), "{}", again.err);
    flights
        .run(&pipeline, &flights.lab.path("new"), 1)
        .failed(2, &["pipeline.toml", "best.json", "can't be read"]);
}

#[test]
fn strategies_that_cannot_run_are_refused() {
    let flights = Flights::new();
    let check = |release: &str, parts: &[&str]| {
        let pipeline = flights.pipeline("all.csv", &format!("[release]\n{release}"), "");
        let state = flights.lab.path("refused");
        flights.run(&pipeline, &state, 1).failed(2, &[&["pipeline.toml"], parts].concat());
        assert!(!state.exists(), "{release}: nothing was begun");
    };
    flights.lab.write("short.csv", "1\n");
    flights.lab.write("singular.csv", "1,0\n1,0\n");
    check("strategy = 'fft'", &["`fft`", "can't run", "`fft-optimal-decoder`"]);
    check("strategy = 'honaker'", &["`honaker`", "can't run", "`tree-optimal-decoder`"]);
    check("strategy = 'power-law:2'", &["`power-law:2`", "`prefix`", "`average` alone"]);
    check("strategy = 'blt:9'", &["release.strategy", "from 1 to 8"]);
    check("strategy = 'best'", &["release.strategy", "unknown strategy `best`"]);
    check("strategy = 'file:short.csv'", &["short.csv", "made for 1 steps, not for 32"]);
    check("strategy = 'file:singular.csv'", &["singular.csv", "can't be decoded at step 2"]);
    check("strategy = 'blt:2'\nmemory_limit = 64", &["release.memory_limit", "leave it out"]);
    check("strategy = 'auto'\nmemory_limit = -1", &["release.memory_limit", "a whole number from 0"]);
    check("workload = 'adam:1'", &["release.workload", "above 0 and below 1"]);
}
