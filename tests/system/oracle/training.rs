//! `hushflow train` over neighbouring rows, along the same releases.
//!
//! A changed row moves the parameters, and so the later gradients of all other rows. The guarantee
//! is about releases *given the earlier ones*. So the second world gets the noise that makes it
//! release what the first one released, step by step. The offsets of that noise (`[simulation]
//! offsets`) are exactly the differences that noise must hide on this path. Σ(offset/σ)² must be at
//! most what the ledger charges, and everything public must be equal to the byte.
//!
//! The offsets are exact, but the noise that hides them is not tested by them. The last test
//! measures it: a thousand rows, each in one of two worlds by a coin toss, in one run with fresh
//! noise.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use hushflow::publication::MomentPublication;
use hushflow::state::PublicReader;

use crate::harness::{Lab, PRIVATE_LOG, Random, finish, frames, hushflow, releases};

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

fn pipeline(model: &str, (optimiser, sampling): (&str, &str), neighbours: &str, release: &str) -> String {
    let column = |name, [lower, upper]: [i32; 2]| {
        format!("[[columns]]\nname = '{name}'\nlower = {lower}\nupper = {upper}\n")
    };
    let (target, number) = match model {
        "linear" => ("target = 'y'", column("y", [-10, 10])),
        "softmax" => ("target = 'class'\nclasses = ['low', 'high', 'middle']", String::new()),
        "logistic" => ("target = 'class'\nclasses = ['low', 'high']", String::new()),
        _ => ("", String::new()),
    };
    format!(
        "name = 'model'\n[source]\npath = 'data.csv'\n{}{}{number}[training]\nmodel = '{model}'\n{target}\n\
         records = {}\nbatch_size = {BATCH}\npasses = {PASSES}\noptimiser = '{optimiser}'\nsampling = '{sampling}'\n\
         learning_rate = 0.1\n\
         [release]\n{release}\n\
         [privacy]\nepsilon = 2\ndelta = 1e-6\nneighbours = '{neighbours}'\nclip_norm = 1\n[simulation]\nseed = 3\n",
        column("a", [-1, 1]),
        column("b", [0, 10]),
        BATCH * STEPS,
    )
}

/// Everything public about a run, to the byte, its files, the kinds of private frames, and its
/// releases.
#[derive(PartialEq)]
struct Public {
    out: String,
    err: String,
    contents: [Vec<u8>; 2],
    files: Vec<String>,
    kinds: Vec<u8>,
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
    let mut train = hushflow(["train", "--workers", "2"]);
    let ended = finish(train.arg(pipeline).arg("--state").arg(&state)).succeeded();
    let here = lab.path("").display().to_string();
    let content = |name| std::fs::read(state.join(name)).expect("a public file");
    let entries = std::fs::read_dir(&state).expect("a directory");
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").file_name();
    let mut files: Vec<_> = entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect();
    files.sort();
    let public = Public {
        out: ended.out.replace(&here, ""),
        err: ended.err.replace(&here, ""),
        contents: ["public.log", "model.json"].map(content),
        files,
        kinds: frames(&state.join(PRIVATE_LOG)).iter().map(|frame| frame.kind).collect(),
        releases: releases(&state).into_iter().map(|release| release.values).collect(),
    };
    (lab, public)
}

/// Returns Σ(offset/σ)² of every step, in units of the square of the noise multiplier.
fn shares(state: &Path, offsets: &[Vec<i128>]) -> Vec<f64> {
    let reader = PublicReader::open(state).expect("a log");
    let publication = MomentPublication::from_header(reader.header()).expect("a header");
    let noise = publication.mechanism().moments().noise();
    let term = |(&offset, at): (&i128, usize)| match offset {
        0 => 0.0,
        _ => (offset as f64 / noise[at].scale.map_or(0.0, |scale| scale.sigma())).powi(2),
    };
    let square = publication.calibration().noise_multiplier.powi(2);
    offsets.iter().map(|step| square * step.iter().zip(0..).map(term).sum::<f64>()).collect()
}

/// Returns the offsets with which the second world releases what the first one did, and that world.
fn along_the_same_releases(
    table: &str,
    text: &str,
    released: &[Vec<i128>],
) -> (Vec<Vec<i128>>, (Lab, Public)) {
    let mut offsets: Vec<Vec<i128>> = Vec::new();
    loop {
        let found = trained(table, text, &offsets);
        let own = &found.1.releases;
        let Some(step) = (0..released.len()).find(|&at| own[at] != released[at]) else {
            return (offsets, found);
        };
        assert!(step >= offsets.len(), "offsets of earlier steps make these equal");
        offsets.resize(step, vec![0; released[step].len()]);
        offsets.push(released[step].iter().zip(&own[step]).map(|(value, own)| value - own).collect());
    }
}

/// The worst rows of linear models and of gradients, their opposites, and a blank row.
const WORST: &str = "1,10,-10,low";
const OPPOSITE: &str = "1,10,10,high";
const GRADIENT: &str = "1,0,0,low";
const OPPOSITE_GRADIENT: &str = "-1,0,0,low";
const BLANK: &str = "NA,oops,,";
const MALFORMED: &str = "1e308,-1e308,\"x\",y,z";

#[test]
fn rows_of_one_world_alone_leave_no_trace_in_training() {
    let in_place = "replace-one-in-place";
    // Beside each case stands the least share of the charge that its pair attains.
    for (model, optimiser, neighbours, release, [one, other], least) in [
        ("gradients", "sgd", in_place, "strategy = 'identity'", [GRADIENT, OPPOSITE_GRADIENT], 0.99),
        ("gradients", "sgd", "zero-out", "strategy = 'optimal'", [GRADIENT, BLANK], 0.99),
        ("gradients", "jme", in_place, "second_strategy = 'identity'", [GRADIENT, OPPOSITE_GRADIENT], 0.99),
        ("linear", "momentum", in_place, "schedule = 'cosine:1'", [WORST, OPPOSITE], 0.99),
        ("logistic", "dp-adam", in_place, "strategy = 'blt:2'", [WORST, OPPOSITE], 0.7),
        ("logistic", "sgd", in_place, "strategy = 'identity'", [WORST, MALFORMED], 0.15),
        ("logistic", "dp-adam-bc", "zero-out", "", [WORST, BLANK], 0.2),
        ("softmax", "jme", "zero-out", "second_workload = 'adam:0.999'", [WORST, BLANK], 0.2),
        ("logistic", "joint-clip", "zero-out", "", [WORST, BLANK], 0.2),
        ("linear", "scale-then-privatise", in_place, "", [WORST, OPPOSITE], 0.5),
    ] {
        let text = pipeline(model, (optimiser, "in-order"), neighbours, release);
        let (_, first) = trained(&table(one), &text, &[]);
        assert_eq!(first.releases.len(), STEPS * PASSES);
        let (offsets, (lab, second)) = along_the_same_releases(&table(other), &text, &first.releases);
        let case = format!("{model}, {optimiser}, {neighbours}, {release}");
        assert!(second == first, "LEAK public: {case}\n{}\n{}", first.err, second.err);
        let share: f64 = shares(&lab.path("state"), &offsets).iter().sum();
        if super::number("HUSHFLOW_ORACLE_CASES").is_some() {
            let _ = writeln!(std::io::stdout(), "{share:.4}  {case}, {other}");
        }
        assert!(share <= 1.0, "LEAK distance: {share} of what is charged: {case}");
        assert!(share > least, "only {share} of what is charged: {case}");
    }
}

/// With random batches of one seed, a row moves the steps of its coins alone, each by at most one
/// contribution, and everything public is equal.
#[test]
fn rows_leave_no_trace_in_steps_that_did_not_draw_them() {
    let in_place = "replace-one-in-place";
    // Beside each case stands the least share of a contribution that its pair attains in a step.
    for (model, optimiser, sampling, neighbours, release, [one, other], least) in [
        ("gradients", "sgd", "poisson", in_place, "", [GRADIENT, OPPOSITE_GRADIENT], 0.99),
        ("gradients", "sgd", "balls-in-bins", "zero-out", "", [GRADIENT, BLANK], 0.99),
        ("softmax", "jme", "poisson", "zero-out", "", [WORST, BLANK], 0.2),
    ] {
        let text = pipeline(model, (optimiser, sampling), neighbours, release);
        let (_, first) = trained(&table(one), &text, &[]);
        let (offsets, (lab, second)) = along_the_same_releases(&table(other), &text, &first.releases);
        let case = format!("{model}, {optimiser}, {sampling}, {neighbours}, {release}");
        assert!(second == first, "LEAK public: {case}\n{}\n{}", first.err, second.err);
        let shares = shares(&lab.path("state"), &offsets);
        assert!(shares.iter().all(|&share| share <= 1.0), "LEAK distance: {shares:?}: {case}");
        let most = shares.iter().copied().fold(0.0, f64::max);
        assert!(most > least, "only {most} of a contribution: {case}");
        let taken = shares.iter().filter(|&&share| share > 0.0).count();
        match sampling {
            "poisson" => assert!((1..STEPS * PASSES).contains(&taken), "{taken} steps: {case}"),
            _ => assert_eq!(taken, PASSES, "{case}"),
        }
    }
}

/// Rows of the last test, each with a coordinate of its own, and passes over them.
const CANARIES: usize = 1000;

/// Every row takes part in both of two passes. Its gradient is ±ζ in a coordinate of its own, so
/// the projection of that coordinate's releases on the effect of the row is N(±μ/2, 1). The
/// difference of the means of both worlds has a standard error of 2/√rows.
#[test]
fn noise_hides_both_participations_of_a_row() {
    let lab = Lab::new();
    let mut random = Random(11);
    let upper: Vec<bool> = (0..CANARIES).map(|_| random.below(2) == 1).collect();
    let names: Vec<String> = (0..CANARIES).map(|column| format!("c{column}")).collect();
    let mut rows = names.join(",") + "\n";
    for (row, &upper) in upper.iter().enumerate() {
        let value = |column| {
            if column != row {
                "0"
            } else if upper {
                "1"
            } else {
                "-1"
            }
        };
        let values: Vec<_> = (0..CANARIES).map(value).collect();
        rows += &(values.join(",") + "\n");
    }
    lab.write("data.csv", rows);
    let columns: Vec<_> =
        names.iter().map(|name| format!("{{ name = '{name}', lower = -1, upper = 1 }}")).collect();
    let pipeline = lab.write(
        "pipeline.toml",
        format!(
            "name = 'model'\nsource.path = 'data.csv'\ncolumns = [{}]\n\
             training = {{ model = 'gradients', records = {CANARIES}, batch_size = {CANARIES}, passes = 2, \
             optimiser = 'sgd', learning_rate = 0.1 }}\nrelease.strategy = 'square-root'\n\
             privacy = {{ epsilon = 30, delta = 1e-6, neighbours = 'replace-one-in-place', clip_norm = 1 }}\n",
            columns.join(", ")
        ),
    );
    let state = lab.path("state");
    finish(hushflow(["train"]).arg(pipeline).arg("--state").arg(&state)).succeeded();
    let reader = PublicReader::open(&state).expect("a log");
    let publication = MomentPublication::from_header(reader.header()).expect("a header");
    let (noise, first) = (publication.mechanism().moments().noise()[1], publication.layout().first());
    // C has the columns (1, ½) and (0, 1), so a row moves the steps by 1 and 3/2.
    let effect = [1.0, 1.5];
    let norm = effect.iter().map(|effect| effect * effect).sum::<f64>().sqrt();
    let mut projections = vec![0.0; CANARIES];
    for (step, effect) in releases(&state).iter().zip(effect) {
        for (sum, &value) in projections.iter_mut().zip(&step.values[first.clone()]) {
            *sum += effect / norm * value as f64 * noise.unit / noise.standard_deviation();
        }
    }
    let mean = |world: bool| {
        let of_world = projections.iter().zip(&upper).filter(|(_, upper)| **upper == world);
        let (sum, number) = of_world.fold((0.0, 0.0), |(sum, n), (value, _)| (sum + value, n + 1.0));
        sum / number
    };
    let (found, mu) = (mean(true) - mean(false), publication.calibration().noise_multiplier.recip());
    // Six standard errors: a false alarm has probability 2·10⁻⁹.
    let plausible = 6.0 * 2.0 / (CANARIES as f64).sqrt();
    assert!((found - mu).abs() < plausible, "LEAK power: μ looks like {found}, the charge is {mu}");
    assert!(mu > 4.0 * plausible, "a participation that is not counted would be seen");
}
