//! Tests released views minus the sums of the rows: mean, noise level, covariance over time,
//! independence.

use nalgebra::DMatrix;

use super::bounds::{faults_of_noise, faults_of_view};
use super::experiment::{BOUNDS, Experiment, ExperimentCase, ExperimentRow};

/// Runs of each case, unless `HUSHFLOW_RUNS` is set.
const RUNS: usize = 50;

const BASE: ExperimentCase = ExperimentCase {
    method: "jme",
    strategy: "square-root",
    made_for: "prefix",
    keys: 3,
    dimension: 2,
    epochs: 12,
    neighbours: "replace-one",
    second_moments: "full",
    clip_norm: std::f64::consts::SQRT_2,
    second_moment_weight: None,
    epsilon: 1.0,
    views: &["prefix", "average", "exponential:0.9", "window:5"],
};

fn wanted_runs() -> Option<usize> {
    let text = std::env::var("HUSHFLOW_RUNS").ok()?;
    Some(text.parse().expect("HUSHFLOW_RUNS is a number of runs"))
}

/// Rows spread over keys and epochs. Some lie outside their bounds, and the third epoch has none.
fn rows(case: &ExperimentCase) -> Vec<ExperimentRow> {
    let fraction = |i: usize, step: f64| (i as f64 * step).fract();
    let (lower, upper) = (BOUNDS.0 - 0.5, BOUNDS.1 + 0.5);
    let row = |i| ExperimentRow {
        key: i % case.keys.max(1),
        epoch: (fraction(i, 0.618_034) * case.epochs as f64) as usize,
        values: (0..case.dimension)
            .map(|j| lower + (upper - lower) * fraction(i * case.dimension + j, 0.414_214))
            .collect(),
    };
    (0..150).map(row).filter(|row| row.epoch != 2).collect()
}

/// Errors of each view in each run, in units of the noise of C's output.
fn errors(experiment: &Experiment, runs: usize) -> Vec<Vec<DMatrix<f64>>> {
    let released: Vec<_> = (0..runs).map(|run| experiment.run(run)).collect();
    assert!(released[0] == experiment.tail(0), "tail prints what run printed");
    let of_view = |(index, view): (usize, &&str)| {
        released.iter().map(|views| experiment.errors(view, &views[index])).collect()
    };
    experiment.case.views.iter().enumerate().map(of_view).collect()
}

/// The noise of C's output, recovered from the errors of a view.
fn noise(errors: &[DMatrix<f64>], decoder: &DMatrix<f64>) -> Vec<DMatrix<f64>> {
    let encoder = decoder.clone().try_inverse().expect("a workload has no zero on its diagonal");
    errors.iter().map(|error| &encoder * error).collect()
}

#[track_caller]
fn check(case: ExperimentCase) {
    let experiment = Experiment::new(case, &rows(&case));
    let errors = errors(&experiment, wanted_runs().unwrap_or(RUNS));
    let kinds = experiment.kinds();
    let mut faults = faults_of_noise(&noise(&errors[0], &experiment.decoder(case.views[0])), &kinds);
    for (view, errors) in case.views.iter().zip(&errors) {
        let found = faults_of_view(errors, &experiment.decoder(view), &kinds);
        faults.extend(found.into_iter().map(|fault| format!("{view}: {fault}")));
    }
    let ExperimentCase { strategy, made_for, keys, dimension, neighbours, .. } = case;
    let name = format!("{strategy} for {made_for}, {keys} keys, {dimension} columns, {neighbours}");
    assert!(faults.is_empty(), "{name}:\n{}", faults.join("\n"));
}

fn check_strategy(strategy: &'static str, made_for: &'static str, covering: &[(usize, usize)]) {
    let all: Vec<_> = [0, 3].into_iter().flat_map(|keys| [1, 2, 8].map(|d| (keys, d))).collect();
    let chosen = if wanted_runs().is_some() { &all } else { covering };
    for &(keys, dimension) in chosen {
        let clip_norm = (dimension as f64).sqrt();
        check(ExperimentCase { strategy, made_for, keys, dimension, clip_norm, ..BASE });
    }
}

#[test]
fn identity() {
    check_strategy("identity", "prefix", &[(0, 8), (3, 1)]);
}

#[test]
fn square_root_for_prefix_sums() {
    check_strategy("square-root", "prefix", &[(0, 1), (0, 2), (3, 8)]);
}

#[test]
fn square_root_for_averages() {
    check_strategy("square-root", "average", &[(3, 2)]);
}

#[test]
fn square_root_for_a_forgetful_sum() {
    check_strategy("square-root", "exponential:0.9", &[(0, 8), (3, 1)]);
}

/// Columns of this strategy point away from each other, which increases its cost.
#[test]
fn square_root_for_a_window() {
    check_strategy("square-root", "window:5", &[(0, 1), (3, 2)]);
}

#[test]
#[ignore = "slow"]
fn neighbours_and_moments_of_other_kinds() {
    let one_column = ExperimentCase { dimension: 1, clip_norm: 1.0, ..BASE };
    let in_place = "replace-one-in-place";
    check(ExperimentCase { neighbours: in_place, ..BASE });
    check(ExperimentCase { neighbours: in_place, ..one_column });
    check(ExperimentCase { neighbours: "zero-out", ..BASE });
    check(ExperimentCase { second_moments: "diagonal", ..BASE });
    // Shorter than √2, so records are clipped. ν = λζ² is 0.72 compared with the free half, or a
    // tenth of that.
    let clipped = ExperimentCase { clip_norm: 0.6, ..BASE };
    check(ExperimentCase { second_moment_weight: Some(2.0), ..clipped });
    check(ExperimentCase { second_moment_weight: Some(0.2), ..clipped });
    check(ExperimentCase { second_moment_weight: Some(2.0), neighbours: in_place, ..clipped });
}

/// Methods other than JME. For `pp`, only released values are tested.
#[test]
#[ignore = "slow"]
fn other_methods() {
    for method in ["ime", "cs", "pp", "joint-clip"] {
        // Half of the rows are longer than 0.6.
        let case = ExperimentCase { method, clip_norm: 0.6, views: &["prefix", "window:5"], ..BASE };
        check(case);
        check(ExperimentCase {
            strategy: "identity",
            dimension: 1,
            keys: 0,
            neighbours: "replace-one-in-place",
            ..case
        });
        check(ExperimentCase {
            made_for: "window:5",
            neighbours: "zero-out",
            second_moments: "diagonal",
            ..case
        });
    }
}

/// Many keys make a large sample: a level that is off by 3 % would be detected.
#[test]
#[ignore = "slow"]
fn large_samples() {
    check(ExperimentCase { keys: 100, epochs: 8, views: &["average"], ..BASE });
}

#[test]
fn planted_faults_are_found() {
    let experiment = Experiment::new(BASE, &rows(&BASE));
    let (kinds, width) = (experiment.kinds(), BASE.coordinates());
    let prefix = &errors(&experiment, RUNS)[0];
    let decoder = experiment.decoder("prefix");
    let noise = noise(prefix, &decoder);
    let planted = |plant: &dyn Fn(&DMatrix<f64>) -> DMatrix<f64>| noise.iter().map(plant).collect::<Vec<_>>();

    let in_view = |errors: Vec<DMatrix<f64>>| faults_of_view(&errors, &decoder, &kinds);
    let undecoded = planted(&|z| dense_prefix() * z);
    assert!(!in_view(undecoded).is_empty(), "noise that did not go through C⁻¹");
    let biased = prefix.iter().map(|error| error.add_scalar(5.0)).collect();
    assert!(!in_view(biased).is_empty(), "a bias");
    let repeated = vec![prefix[0].clone(); RUNS];
    assert!(!in_view(repeated).is_empty(), "the same noise in every run");

    let in_noise = |noise: Vec<DMatrix<f64>>| faults_of_noise(&noise, &kinds);
    assert!(!in_noise(planted(&|z| z * 0.8)).is_empty(), "too little noise");
    assert!(!in_noise(planted(&|z| z * 1.2)).is_empty(), "too much noise");
    let copied = |from: usize, to: usize| {
        in_noise(planted(&|z| {
            let mut copy = z.clone();
            copy.set_column(to, &z.column(from));
            copy
        }))
    };
    assert!(!copied(0, width).is_empty(), "two keys that share their noise");
    assert!(!copied(1, 2).is_empty(), "two coordinates that share their noise");
    let late = planted(&|z| z.clone().remove_row(0).insert_row(0, 0.0) * 0.5 + z * 0.75f64.sqrt());
    assert!(!in_noise(late).is_empty(), "noise that the epoch before has had");
}

fn dense_prefix() -> DMatrix<f64> {
    super::dense::workload("prefix", BASE.epochs)
}
