//! Tests the whole path from sums to views. For every method and strategy, the noise of a view must
//! have the covariance s²σ²BBᵀ over the steps, with B = AC⁻¹, and the level that the view states.
//!
//! Tests of levels alone would not detect a release of `Ax + C⁻¹Z` instead of `Ax + AC⁻¹Z`.
//!
//! Keys are the samples: they are released together, and all their sums are zero. A sum of N
//! products of standard normal numbers is a quadratic form with eigenvalues λ. It deviates from its
//! mean by more than `2√(30·Σλ²) + 60·max|λ|` with a probability of at most 2e⁻³⁰ (Laurent &
//! Massart 2000, Lemma 1). The noise is seeded, so there are no false alarms. With fresh noise, all
//! comparisons together would give a false alarm with probability below 10⁻⁹.

use hushflow_mechanism::mechanism::{MatrixMechanism, Method, MomentParameters, Strategies};
use hushflow_mechanism::moments::{Layout, SecondMoment};
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::release::{ReleaseShard, Shards};
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_mechanism::strategy::{
    Fit, Objective, Purpose, Strategy, StrategyChoice, StrategyName, build_chosen, fit,
};
use hushflow_mechanism::view::{Moments, View};
use hushflow_mechanism::workload::Workload;
use nalgebra::DMatrix;
use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::sync::Arc;

const STEPS: usize = 6;
const KEYS: u32 = 4000;

const METHODS: [Method; 6] = [
    Method::Jme,
    Method::Ime { first_moment_share: 0.3 },
    Method::Cs,
    Method::Pp,
    Method::JointClip,
    Method::BatchSquares { size: NonZeroU32::new(3).expect("3 is above 0") },
];

fn strategy(name: &str, workload: &str) -> Arc<dyn Strategy> {
    let steps = STEPS as u64;
    let name = name.parse::<StrategyName>().expect("a strategy");
    let workload = workload.parse::<Workload>().expect("a workload");
    let repeated = matches!(name.fit(), Fit::Program { repeated: true });
    let purpose = Purpose {
        participation: if repeated { "2x3" } else { "1" }.parse().expect("a participation"),
        objective: Objective::MaxError,
        ..Purpose::new(workload.clone(), steps)
    };
    let fitted = match name.fit() {
        Fit::None => None,
        _ => Some(fit(&name, &purpose, &mut |_| ControlFlow::Continue(())).expect("a fit").fitted),
    };
    build_chosen(&StrategyChoice { name, fitted }, &workload, Some(steps)).expect("a strategy of six steps")
}

/// For squares of batches, second moments are diagonal and records are replaced in place, so counts
/// are public.
fn parameters(method: Method) -> MomentParameters {
    let (second, neighbours) = match method {
        Method::BatchSquares { .. } => (SecondMoment::Diagonal, Neighbours::ReplaceOneInPlace),
        _ => (SecondMoment::Full, Neighbours::ReplaceOne),
    };
    MomentParameters {
        method,
        layout: Layout::new(2, second),
        neighbours,
        clip_norm: 3.0,
        noise_multiplier: 1.7,
        second_moment_weight: None,
        count_weight: None,
        bin_weight: None,
    }
}

/// B = AC⁻¹ from the matrix of C, which the release does not use.
fn decoder(strategy: &dyn Strategy, workload: &Workload) -> DMatrix<f64> {
    let matrix = strategy.matrix(STEPS as u64).expect("a matrix of six steps");
    let unit = |i| (0..STEPS).map(|j| f64::from(u8::from(i == j))).collect::<Vec<_>>();
    let c = DMatrix::from_vec(STEPS, STEPS, (0..STEPS).flat_map(|i| matrix.product(&unit(i))).collect());
    workload.matrix(STEPS) * c.try_inverse().expect("strategies are invertible")
}

/// Moments of every key, epoch by epoch, released in seven shards that cut keys in two.
fn views(mechanism: &MatrixMechanism, workload: &Workload) -> Vec<Vec<Moments>> {
    let shards = Shards::new(KEYS, mechanism.layout(), 7);
    let shard = |number| ReleaseShard::new(number, shards, mechanism, NoiseSource::Seeded(23));
    let mut machines: Vec<_> = (0..shards.number()).map(shard).collect();
    let mut view = View::new(mechanism, workload, KEYS, STEPS as u64);
    let mut read = |epoch| {
        let release = |machine: &mut ReleaseShard| {
            machine.release(epoch, &vec![0; machine.coordinates()]).expect("a release")
        };
        let values: Vec<i128> = machines.iter_mut().flat_map(release).collect();
        view.push(&values).expect("a view").collect()
    };
    (1..=STEPS as u64).map(&mut read).collect()
}

/// Errors of some coordinates in units of the noise of C's output: rows are steps, columns samples.
fn samples(views: &[Vec<Moments>], coordinates: &[usize], level: f64) -> DMatrix<f64> {
    let sample = |t: usize, key: usize, coordinate: usize| views[t][key].coordinates[coordinate] / level;
    let keys = KEYS as usize;
    DMatrix::from_fn(STEPS, keys * coordinates.len(), |t, i| sample(t, i % keys, coordinates[i / keys]))
}

fn check_covariance(errors: &DMatrix<f64>, decoder: &DMatrix<f64>, case: &str) {
    let number = errors.ncols() as f64;
    let (found, expected) = (errors * errors.transpose() / number, decoder * decoder.transpose());
    for (t, i) in (0..STEPS).flat_map(|t| (0..=t).map(move |i| (t, i))) {
        let geometric = (expected[(t, t)] * expected[(i, i)]).sqrt();
        let largest = (geometric + expected[(t, i)].abs()) / 2.0 / number;
        let error = ((geometric.powi(2) + expected[(t, i)].powi(2)) / number).sqrt();
        let plausible = error * 60_f64.sqrt() + 60.0 * largest;
        let (found, expected) = (found[(t, i)], expected[(t, i)]);
        assert!((found - expected).abs() <= plausible, "{case}, steps {i} and {t}: {found}, not {expected}");
    }
}

/// Checks three forms: encoded sums, rounded encoded sums, and correlated noise if the strategy has
/// it.
fn check(method: Method, strategies: &Strategies, workload: &str) {
    let workload: Workload = workload.parse().expect("a workload");
    let mechanism = |strategies: Strategies| {
        let participation = "1".parse().expect("a participation");
        MatrixMechanism::with_participation(parameters(method), strategies, participation, STEPS as u64)
    };
    for encoded in [strategies.clone(), strategies.clone().rounded()] {
        check_form(&mechanism(encoded).expect("a mechanism"), strategies, &workload);
    }
    let correlates =
        [strategies.first(), strategies.second()].iter().all(|strategy| strategy.correlates().is_some());
    match mechanism(strategies.clone().correlated()) {
        Ok(correlated) => check_form(&correlated, strategies, &workload),
        Err(error) => assert!(!correlates, "{error}"),
    }
}

fn check_form(mechanism: &MatrixMechanism, strategies: &Strategies, workload: &Workload) {
    let moments = mechanism.moments();
    let method = moments.parameters().method;
    let layout = mechanism.layout();
    // Levels follow from s and the weights alone, as in one Gaussian mechanism.
    let first = moments.sensitivity() * moments.parameters().noise_multiplier;
    let mut kinds = vec![("first moments", vec![1, 2], first, 0)];
    kinds.extend(moments.count_weight().map(|weight| ("count", vec![0], first / weight, 0)));
    if let Some(lambda) = moments.second_moment_weight() {
        let second = first / lambda.sqrt();
        let (squares, products): (Vec<_>, Vec<_>) =
            layout.second().zip(layout.second_entries()).partition(|(_, (i, j))| i == j);
        let indices = |entries: Vec<(usize, _)>| entries.into_iter().map(|(index, _)| index).collect();
        kinds.push(("squares", indices(squares), second, 1));
        kinds.push(("products", indices(products), second / 2_f64.sqrt(), 1));
    }
    let noisy = layout.coordinates() - usize::from(moments.count_weight().is_none());
    assert_eq!(kinds.iter().map(|kind| kind.1.len()).sum::<usize>(), noisy);
    let decoders = [strategies.first(), strategies.second()].map(|strategy| decoder(strategy, workload));
    let views = views(mechanism, workload);
    for (kind, coordinates, level, part) in kinds.into_iter().filter(|kind| !kind.1.is_empty()) {
        let form = if mechanism.is_correlated() { "correlated" } else { "encoded" };
        let case = format!("{method}, {workload}, {}, {form}, {kind}", strategies.first().name());
        check_covariance(&samples(&views, &coordinates, level), &decoders[part], &case);
        for (t, moments) in views.iter().enumerate() {
            let noise = moments[0].noise;
            let stated = [noise.count, noise.first, noise.first, noise.second][coordinates[0].min(3)];
            let stated = if kind == "products" { stated / 2_f64.sqrt() } else { stated };
            let expected = level * decoders[part].row(t).norm();
            // Scales are rounded up, by less than 2⁻¹⁹.
            assert!((stated / expected - 1.0).abs() < 2e-6, "{case}: {stated}, not {expected}");
        }
    }
}

#[test]
#[ignore = "slow"]
fn noise_covariance_matches_every_method_and_strategy() {
    for method in METHODS {
        for (name, made_for, read_as) in [
            ("identity", "prefix", "prefix"),
            ("square-root", "prefix", "prefix"),
            ("square-root", "prefix", "window:3"),
            ("banded-inverse-square-root:2", "prefix", "average"),
            ("square-root", "window:2", "exponential:0.5"),
            ("tree-optimal-decoder", "prefix", "prefix"),
            ("fft-optimal-decoder", "prefix", "window:3"),
            ("matrix-square-root", "average", "average"),
            ("normalized-banded-square-root:3", "prefix", "prefix"),
            ("log-perturbed-root", "prefix", "prefix"),
            ("blt:2", "prefix", "adam:0.9"),
            ("blt:3", "prefix", "prefix"),
            ("blt:1", "exponential:0.9", "window:3"),
            ("power-law:2", "average", "prefix"),
            ("banded-optimal:3", "prefix", "prefix"),
            ("banded-toeplitz-optimal:3", "prefix", "momentum:0.5"),
            ("coa", "window:2", "window:2"),
            ("optimal", "prefix", "prefix"),
        ] {
            check(method, &Strategies::shared(strategy(name, made_for)), read_as);
        }
    }
}

#[test]
fn noise_covariance_matches_separate_strategies() {
    for method in METHODS.into_iter().filter(|&method| method != Method::JointClip) {
        let (one, other) = (strategy("square-root", "prefix"), strategy("identity", "prefix"));
        check(method, &Strategies::separate(one.clone(), other.clone()), "prefix");
        check(method, &Strategies::separate(other, one), "average");
        let (one, other) = (strategy("blt:2", "prefix"), strategy("blt:1", "exponential:0.5"));
        check(method, &Strategies::separate(one, other), "adam:0.9");
    }
}
