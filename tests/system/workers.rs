//! Tests that results do not depend on the number of workers and processes: exact sums equal those
//! of plain loops over the rows, bit for bit, and seeded releases are equal.

use std::path::{Path, PathBuf};

use crate::harness::{
    Ended, Lab, Stream, expected_sums, finish, releases, run, run_as_two, sums, tail, wait,
};

/// Distribution of a run over workers and processes.
#[derive(Clone, Copy, Debug)]
enum Layout {
    Workers(usize),
    TwoProcesses(usize),
}

use Layout::{TwoProcesses, Workers};

const LAYOUTS: [Layout; 5] = [Workers(1), Workers(2), Workers(4), TwoProcesses(1), TwoProcesses(2)];

fn complete(pipeline: &Path, state: &Path, spread: Layout) -> Ended {
    match spread {
        Workers(workers) => finish(&mut run(pipeline, state, workers)).succeeded(),
        TwoProcesses(workers) => {
            let [mut first, mut second] = run_as_two(pipeline, state, workers);
            let second = second.spawn().expect("the second process starts");
            let ended = finish(&mut first).succeeded();
            wait(second).succeeded();
            ended
        }
    }
}

fn flights(more: &str) -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let text = std::fs::read_to_string(directory.join("flights.toml")).expect("the example");
    text.replace("data/", &format!("{}/data/", directory.display())) + more
}

fn stream(lab: &Lab, more: &str) -> String {
    let stream = Stream { rows: 60_000, epochs: 50 };
    lab.write("data.csv", stream.csv());
    stream.pipeline("data.csv", more)
}

const SEED: &str = "\n[simulation]\nseed = 42\n";

/// Runs the pipeline in every distribution. The sums must equal the expected sums, and the releases
/// must equal those of the first distribution.
fn check_spreads(lab: &Lab, pipeline: &str) {
    let pipeline = lab.write("pipeline.toml", pipeline);
    let expected = expected_sums(&pipeline);
    assert!(expected.len() > 20 && expected.iter().all(|epoch| epoch[0] > 0), "a stream worth summing");
    let states: Vec<PathBuf> = LAYOUTS
        .iter()
        .map(|&spread| {
            let state = lab.path(&format!("{spread:?}"));
            let ended = complete(&pipeline, &state, spread);
            assert!(ended.err.contains("no privacy protection"), "{}", ended.err);
            assert!(sums(&state) == expected, "the sums of {spread:?} are not those of plain loops");
            state
        })
        .collect();
    let first = releases(&states[0]);
    for (state, spread) in states.iter().zip(LAYOUTS) {
        assert!(releases(state) == first, "the releases of {spread:?} are not those of one worker");
    }
}

#[test]
fn flights_are_summed_exactly_on_any_number_of_workers() {
    let lab = Lab::new();
    check_spreads(&lab, &flights(SEED));
}

#[test]
fn a_stream_out_of_order_is_summed_exactly_on_any_number_of_workers() {
    let lab = Lab::new();
    let pipeline = stream(&lab, SEED);
    check_spreads(&lab, &pipeline);
}

#[test]
fn without_a_seed_no_two_runs_release_the_same() {
    let lab = Lab::new();
    let pipeline = lab.write("pipeline.toml", flights(""));
    let expected = expected_sums(&pipeline);
    let states = [("a", Workers(1)), ("b", Workers(1)), ("c", Workers(2)), ("d", TwoProcesses(1))];
    let released = states.map(|(name, spread)| {
        let state = lab.path(name);
        complete(&pipeline, &state, spread);
        assert!(sums(&state) == expected);
        releases(&state)
    });
    for (i, a) in released.iter().enumerate() {
        for b in &released[..i] {
            // Counts may be public and equal, so compare whole epochs.
            assert!(a.iter().zip(b).all(|(a, b)| a.values != b.values), "fresh noise in every epoch");
        }
    }
}

#[test]
fn seeded_releases_are_never_called_private() {
    let lab = Lab::new();
    for (more, private) in [(SEED, false), ("", true)] {
        let pipeline = lab.write("pipeline.toml", flights(more));
        let state = lab.path(&format!("private {private}"));
        let ran = complete(&pipeline, &state, Workers(1));
        let tailed = finish(&mut tail(&state, &["--since", "30"])).succeeded();
        let header = hushflow::state::PublicReader::open(&state).expect("a public log").header().clone();
        assert_eq!(header.private, private);
        assert_eq!(ran.err.contains("[simulation]"), !private, "{}", ran.err);
        assert_eq!(tailed.err.contains("not private"), !private, "{}", tailed.err);
        let lines = tailed.json();
        assert!(!lines.is_empty() && lines.iter().all(|line| line["private"] == private));
    }
}
