//! From sums to views, with everything that runs in between: for every method and strategy the noise of what is read has
//! the covariance s²σ²BBᵀ over the steps, with B = AC⁻¹, and the level that is printed beside it.
//!
//! (Releasing `Ax + C⁻¹Z` where `Ax + AC⁻¹Z` is due passes every test of levels alone.)
//!
//! Keys are the samples: they are released together, and all their sums are zero. A sum of N products of standard normal
//! numbers strays by more than `2√(30·Σλ²) + 60·max|λ|`, λ their eigenvalues, with probability 2e⁻³⁰ (Laurent & Massart
//! 2000, Lemma 1). The noise is seeded, so there are no false alarms at all; with fresh noise all comparisons together
//! would give one with probability below 10⁻⁹.

use hushflow_mechanism::mechanism::{MatrixMechanism, Method, MomentParameters, Strategies};
use hushflow_mechanism::moments::{Layout, SecondMoment};
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::release::{ReleaseShard, Shards};
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_mechanism::strategy::{Strategy, build};
use hushflow_mechanism::view::{Moments, View};
use hushflow_mechanism::workload::Workload;
use nalgebra::DMatrix;
use std::sync::Arc;

const STEPS: usize = 6;
const KEYS: u32 = 4000;

const METHODS: [Method; 5] =
    [Method::Jme, Method::Ime { first_moment_share: 0.3 }, Method::Cs, Method::Pp, Method::JointClip];

fn strategy(name: &str, workload: &str) -> Arc<dyn Strategy> {
    let (name, workload) = (name.parse().expect("a strategy"), workload.parse().expect("a workload"));
    build(name, &workload, Some(STEPS as u64)).expect("a strategy of six steps")
}

fn parameters(method: Method) -> MomentParameters {
    MomentParameters {
        method,
        layout: Layout { dimension: 2, second: SecondMoment::Full },
        neighbours: Neighbours::ReplaceOne,
        clip_norm: 3.0,
        noise_multiplier: 1.7,
        second_moment_weight: None,
        count_weight: None,
    }
}

/// B = AC⁻¹ from the matrix of C, which the release does not use.
fn decoder(strategy: &dyn Strategy, workload: &Workload) -> DMatrix<f64> {
    let matrix = strategy.matrix(STEPS as u64).expect("a matrix of six steps");
    let unit = |i| (0..STEPS).map(|j| f64::from(u8::from(i == j))).collect::<Vec<_>>();
    let c = DMatrix::from_vec(STEPS, STEPS, (0..STEPS).flat_map(|i| matrix.product(&unit(i))).collect());
    workload.matrix(STEPS) * c.try_inverse().expect("strategies are invertible")
}

/// What is read of every key, epoch by epoch, in two shards that cut a key in two.
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

/// Errors of some coordinates in units of the noise of C's output: a step a row, a sample a column.
fn samples(views: &[Vec<Moments>], places: &[usize], level: f64) -> DMatrix<f64> {
    let sample = |t: usize, key: usize, place: usize| views[t][key].coordinates[place] / level;
    let keys = KEYS as usize;
    DMatrix::from_fn(STEPS, keys * places.len(), |t, i| sample(t, i % keys, places[i / keys]))
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

fn check(method: Method, strategies: &Strategies, workload: &str) {
    let workload: Workload = workload.parse().expect("a workload");
    let mechanism = MatrixMechanism::with_participation(
        parameters(method),
        strategies.clone(),
        "1".parse().expect("a participation"),
        STEPS as u64,
    )
    .expect("a mechanism");
    let moments = mechanism.moments();
    let layout = mechanism.layout();
    // s and the weights alone tell the levels, as in one Gaussian mechanism.
    let first = moments.sensitivity() * moments.parameters().noise_multiplier;
    let count = first / moments.count_weight().expect("counts are private");
    let mut kinds = vec![("count", vec![0], count, 0), ("first moments", vec![1, 2], first, 0)];
    if let Some(lambda) = moments.second_moment_weight() {
        let second = first / lambda.sqrt();
        kinds.push(("squares", vec![3, 5], second, 1));
        kinds.push(("products", vec![4], second / 2_f64.sqrt(), 1));
    }
    assert_eq!(kinds.iter().map(|kind| kind.1.len()).sum::<usize>(), layout.coordinates());
    let decoders = [strategies.first(), strategies.second()].map(|strategy| decoder(strategy, &workload));
    let views = views(&mechanism, &workload);
    for (kind, places, level, part) in kinds {
        let case = format!("{method}, {workload}, {}, {kind}", strategies.first().name());
        check_covariance(&samples(&views, &places, level), &decoders[part], &case);
        for (t, moments) in views.iter().enumerate() {
            let noise = moments[0].noise;
            let told = [noise.count, noise.first, noise.first, noise.second][places[0].min(3)];
            let told = if kind == "products" { told / 2_f64.sqrt() } else { told };
            let expected = level * decoders[part].row(t).norm();
            assert!((told / expected - 1.0).abs() < 1e-6, "{case}: {told}, not {expected}");
        }
    }
}

#[test]
fn of_every_method_through_every_kind_of_strategy() {
    for method in METHODS {
        for (name, made_for, read_as) in [
            ("identity", "prefix", "prefix"),
            ("square-root", "prefix", "prefix"),
            ("square-root", "prefix", "window:3"),
            ("banded-inverse-square-root:2", "prefix", "average"),
            ("square-root", "window:2", "exponential:0.5"),
            ("tree-optimal-decoder", "prefix", "prefix"),
        ] {
            check(method, &Strategies::shared(strategy(name, made_for)), read_as);
        }
    }
}

#[test]
fn of_a_strategy_for_each_moment() {
    for method in METHODS.into_iter().filter(|&method| method != Method::JointClip) {
        let (one, other) = (strategy("square-root", "prefix"), strategy("identity", "prefix"));
        check(method, &Strategies::separate(one.clone(), other.clone()), "prefix");
        check(method, &Strategies::separate(other, one), "average");
    }
}
