//! `hushflow train` over neighbouring rows, along the same releases.
//!
//! A changed row moves the parameters, and so the later gradients of all other rows. The guarantee
//! is about releases *given the earlier ones*: so the second world gets the noise that makes it
//! release what the first one released, step by step. The offsets of that noise (`[simulation]
//! offsets`) are then exactly the differences that noise must hide on this path. Σ(offset/σ)² must
//! be at most what the ledger charges, and everything public must be equal to the byte.

use std::fmt::Write as _;
use std::path::Path;

use hushflow::publication::MomentPublication;
use hushflow::state::PublicReader;

use crate::harness::{Lab, finish, hushflow, releases};

/// Rows of a step, steps of a pass, and passes.
const BATCH: usize = 8;
const STEPS: usize = 2;
const PASSES: usize = 2;

/// Rows of two features, a number and a class; the first one is given.
fn table(first: &str) -> String {
    let mut text = format!("a,b,y,class\n{first}\n");
    for row in 1..BATCH * STEPS {
        let (a, b) = ((row * 7 % 11) as f64 / 5.5 - 1.0, (row * 3 % 10) as f64);
        let class = ["low", "high", "middle"][row % 3];
        let _ = writeln!(text, "{a},{b},{},{class}", 3.0 + a - b);
    }
    text
}

fn pipeline(model: &str, optimiser: &str, neighbours: &str) -> String {
    let column = |name, [lower, upper]: [i32; 2]| {
        format!("[[columns]]\nname = '{name}'\nlower = {lower}\nupper = {upper}\n")
    };
    let (target, number) = match model {
        "linear" => ("target = 'y'", column("y", [-10, 10])),
        "softmax" => ("target = 'class'\nclasses = ['low', 'high', 'middle']", String::new()),
        _ => ("target = 'class'\nclasses = ['low', 'high']", String::new()),
    };
    format!(
        "name = 'model'\n[source]\npath = 'data.csv'\n{}{}{number}[training]\nmodel = '{model}'\n{target}\n\
         records = {}\nbatch_size = {BATCH}\npasses = {PASSES}\noptimiser = '{optimiser}'\nlearning_rate = 0.1\n\
         [privacy]\nepsilon = 2\ndelta = 1e-6\nneighbours = '{neighbours}'\nclip_norm = 1\n[simulation]\nseed = 3\n",
        column("a", [-1, 1]),
        column("b", [0, 10]),
        BATCH * STEPS,
    )
}

/// Everything public about a run, to the byte, and its releases.
#[derive(PartialEq)]
struct Public {
    out: String,
    err: String,
    files: Vec<(String, Vec<u8>)>,
    releases: Vec<Vec<i128>>,
}

/// Trains in a directory of its own.
fn trained(table: &str, pipeline: &str, offsets: &[Vec<i128>]) -> (Lab, Public) {
    let lab = Lab::new();
    lab.write("data.csv", table);
    let line = |step: &Vec<i128>| step.iter().map(ToString::to_string).collect::<Vec<_>>().join(",") + "\n";
    lab.write("offsets.csv", offsets.iter().map(line).collect::<String>());
    let more = if offsets.is_empty() { "" } else { "offsets = 'offsets.csv'\n" };
    let pipeline = lab.write("pipeline.toml", format!("{pipeline}{more}"));
    let state = lab.path("state");
    let ended = finish(hushflow(["train"]).arg(pipeline).arg("--state").arg(&state)).succeeded();
    let here = lab.path("").display().to_string();
    let file = |name: &str| (name.to_owned(), std::fs::read(state.join(name)).expect("a public file"));
    let public = Public {
        out: ended.out.replace(&here, ""),
        err: ended.err.replace(&here, ""),
        files: ["public.log", "model.json"].map(file).into(),
        releases: releases(&state).into_iter().map(|release| release.values).collect(),
    };
    (lab, public)
}

/// Returns Σ(offset/σ)² as a share of what the ledger charges.
fn share(state: &Path, offsets: &[Vec<i128>]) -> f64 {
    let reader = PublicReader::open(state).expect("a log");
    let publication = MomentPublication::from_header(reader.header()).expect("a header");
    let noise = publication.mechanism().moments().noise();
    let term = |(&offset, at): (&i128, usize)| match offset {
        0 => 0.0,
        _ => (offset as f64 / noise[at].scale.map_or(0.0, |scale| scale.sigma())).powi(2),
    };
    let sum: f64 = offsets.iter().flat_map(|step| step.iter().zip(0..).map(term)).sum();
    sum * publication.calibration().noise_multiplier.powi(2)
}

#[test]
fn rows_of_one_world_alone_leave_no_trace_in_training() {
    let (worst, other, blank) = ("1,10,-10,low", "1,10,10,high", "NA,oops,,");
    let mut largest: f64 = 0.0;
    for (model, optimiser, neighbours, [one, other]) in [
        ("linear", "momentum", "replace-one-in-place", [worst, other]),
        ("logistic", "dp-adam", "replace-one-in-place", [worst, other]),
        ("softmax", "jme", "zero-out", [worst, blank]),
        ("logistic", "joint-clip", "zero-out", [worst, blank]),
        ("linear", "scale-then-privatise", "replace-one-in-place", [worst, other]),
    ] {
        let text = pipeline(model, optimiser, neighbours);
        let (_, first) = trained(&table(one), &text, &[]);
        assert_eq!(first.releases.len(), STEPS * PASSES);
        let mut offsets: Vec<Vec<i128>> = Vec::new();
        let (second, lab) = loop {
            let (lab, found) = trained(&table(other), &text, &offsets);
            let Some(step) = (0..first.releases.len()).find(|&at| found.releases[at] != first.releases[at])
            else {
                break (found, lab);
            };
            assert!(step >= offsets.len(), "offsets of earlier steps make these equal");
            offsets.resize(step, vec![0; first.releases[step].len()]);
            let pairs = first.releases[step].iter().zip(&found.releases[step]);
            offsets.push(pairs.map(|(value, own)| value - own).collect());
        };
        let case = format!("{model}, {optimiser}, {neighbours}");
        assert!(second == first, "{case}: something public differs\n{}\n{}", first.err, second.err);
        let share = share(&lab.path("state"), &offsets);
        assert!(share <= 1.0, "{share} of what is charged: {case}");
        largest = largest.max(share);
    }
    // The worst pair is nearly as far apart in both passes.
    assert!(largest > 0.8, "{largest}");
}
