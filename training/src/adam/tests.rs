//! Compares the optimiser with closed forms, and its releases with the theorems, through the real
//! path in integers.

use super::*;
use chacha20::ChaCha20Rng;
use hushflow_mechanism::mechanism::{MatrixMechanism, Method, MomentParameters, Strategies};
use hushflow_mechanism::moments::{Accumulators, Clipper, Layout, QuantisedRows, SecondMoment};
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::release::{ReleaseShard, Shards};
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_mechanism::strategy::buffered::{BufferedParameters, Buffers, ExponentialBuffer};
use hushflow_mechanism::strategy::{Strategy, StrategyChoice, StrategyParameters, build, build_chosen};
use hushflow_mechanism::workload::{Decay, Workload};
use rand::{RngExt, SeedableRng};
use std::num::NonZeroU32;
use std::sync::Arc;

const STEPS: u64 = 12;
const CLIP_NORM: f64 = 2.0;
const BATCHES_OF_FOUR: Method = Method::BatchSquares { size: NonZeroU32::new(4).unwrap() };

fn setting(batch_size: u32) -> AdamHyperparameters {
    AdamHyperparameters {
        second_decay: Decay::new(0.8).unwrap(),
        ..AdamHyperparameters::new(NonZeroU32::new(batch_size).unwrap(), 0.1)
    }
}

fn strategies() -> Vec<Strategies> {
    let workload: Workload = "exponential:0.9".parse().unwrap();
    let named = |name| build(name, &workload, Some(STEPS)).unwrap();
    let buffers = Buffers::Toeplitz(vec![ExponentialBuffer { decay: 0.8125, weight: 0.25 }]);
    let parameters = BufferedParameters { horizon: Some(STEPS), buffers };
    let buffered = StrategyChoice {
        name: "blt:1".parse().unwrap(),
        fitted: Some(StrategyParameters::Buffered(parameters)),
    };
    let buffered: Arc<dyn Strategy> = build_chosen(&buffered, &workload, Some(STEPS)).unwrap();
    vec![
        named("identity").into(),
        named("square-root").into(),
        Strategies::separate(named("square-root"), buffered),
    ]
}

fn mechanism(
    method: Method,
    dimension: usize,
    strategies: &Strategies,
    participation: &str,
) -> MatrixMechanism {
    let parameters = MomentParameters {
        method,
        layout: Layout::new(dimension, SecondMoment::Diagonal),
        neighbours: Neighbours::ReplaceOneInPlace,
        clip_norm: CLIP_NORM,
        noise_multiplier: 3.0,
        second_moment_weight: None,
        count_weight: None,
        bin_weight: None,
    };
    let participation = participation.parse().unwrap();
    MatrixMechanism::with_participation(parameters, strategies.clone(), participation, STEPS).unwrap()
}

fn sums(mechanism: &MatrixMechanism, gradients: &[f64]) -> Vec<i128> {
    let (layout, batches) = match mechanism.moments().parameters().method {
        Method::BatchSquares { .. } => (mechanism.layout().without_second(), true),
        _ => (mechanism.layout(), false),
    };
    let clipper =
        mechanism.moments().clipper(Clipper::unscaled(layout.dimension, CLIP_NORM).unwrap()).unwrap();
    let mut rows = QuantisedRows::new(layout.dimension);
    clipper.quantise_all(gradients, &mut rows).unwrap();
    let mut accumulators = Accumulators::new(layout);
    accumulators.add_to_key(0, &rows).unwrap();
    let sums = accumulators.take();
    let mut sums = sums.get(&0).map_or(vec![0; layout.coordinates()], |sums| sums.to_wide().to_vec());
    if batches {
        let squares: Vec<i128> = sums[layout.first()].iter().map(|sum| sum * sum).collect();
        sums.extend(squares);
    }
    sums
}

/// Returns a function that encodes the sums of the steps in order.
fn encoder(mechanism: &MatrixMechanism) -> impl FnMut(&[i128]) -> Vec<i128> {
    let (strategies, begin) = (mechanism.strategies(), mechanism.layout().second().start);
    let mut first = strategies.first().encoder(begin);
    let mut second = strategies.second().encoder(mechanism.layout().second_len());
    move |sums| {
        let mut values = vec![0; sums.len()];
        first.encode(&sums[..begin], &mut values[..begin]).unwrap();
        second.encode(&sums[begin..], &mut values[begin..]).unwrap();
        values
    }
}

fn push(adam: &mut PrivateAdam, layout: Layout, values: &[i128]) -> UpdatePart {
    adam.push([&values[layout.first()]], [&values[layout.second()]]).unwrap()
}

#[test]
fn streaming_equals_the_closed_form() {
    let setting = setting(1);
    let mut adam = Adam::new(&setting, 1);
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let gradients: Vec<f64> = (0..50).map(|_| rng.random_range(-1.0..1.0)).collect();
    let squares: Vec<f64> = (0..50).map(|_| rng.random_range(-0.2..1.0)).collect();
    for t in 1..=50 {
        let mut direction = [0.0];
        adam.step(&gradients[t - 1..t], &squares[t - 1..t], 0.01, &mut direction);
        let average = |decay, values: &[f64]| {
            let workload = Workload::Adam(decay);
            (1..=t).map(|i| workload.coefficient(t as u64, i as u64) * values[i - 1]).sum::<f64>()
        };
        let [m, v] = [average(setting.first_decay, &gradients), average(setting.second_decay, &squares)];
        let expected = m / (v.max(0.01).sqrt() + 1e-8);
        assert!((direction[0] - expected).abs() < 1e-12 * expected.abs().max(1.0), "{t}");
        assert!((adam.roots().next().unwrap() - v.max(0.0).sqrt()).abs() < 1e-12);
    }
}

/// Without noise the decoded optimiser is plain Adam on the batch means, for all strategies. A
/// range of the parameters can be updated alone.
#[test]
fn a_release_without_noise_gives_plain_adam() {
    let mut rng = ChaCha20Rng::seed_from_u64(2);
    for strategies in strategies() {
        for method in [Method::Jme, Method::Pp, BATCHES_OF_FOUR] {
            let mechanism = mechanism(method, 5, &strategies, "1");
            let (layout, setting) =
                (mechanism.layout(), AdamHyperparameters { squares: GradientSquares::Raw, ..setting(4) });
            // No noise, so no floor.
            let setting = AdamHyperparameters { floor_deviations: 0.0, ..setting };
            let mut whole = PrivateAdam::new(&mechanism, setting, 0..5, STEPS).unwrap();
            let mut part = PrivateAdam::new(&mechanism, setting, 2..4, STEPS).unwrap();
            let mut plain = Adam::new(&setting, 5);
            let mut encode = encoder(&mechanism);
            for _ in 0..STEPS {
                let gradients: Vec<f64> = (0..20).map(|_| rng.random_range(-0.5..0.5)).collect();
                let mean = |power: i32| {
                    let sums =
                        (0..5).map(|j| (0..4).map(|i| gradients[5 * i + j].powi(power)).sum::<f64>() / 4.0);
                    sums.collect::<Vec<f64>>()
                };
                let squares = match method {
                    Method::Jme => mean(2),
                    _ => mean(1).iter().map(|mean| mean * mean).collect(),
                };
                let mut expected = [0.0; 5];
                plain.step(&mean(1), &squares, 0.0, &mut expected);
                let values = encode(&sums(&mechanism, &gradients));
                let found = push(&mut whole, layout, &values).direction;
                for (found, expected) in found.iter().zip(expected) {
                    assert!((found - expected).abs() < 1e-4, "{method}: {found} {expected}");
                }
                let second = values[layout.second()].get(2..4).unwrap_or_default();
                let run = part.push(values[layout.first()][2..4].chunks(1), [second]).unwrap();
                assert_eq!((run.start, &run.direction[..]), (2, &found[2..4]));
            }
        }
    }
}

fn noise_alone(mechanism: &MatrixMechanism, seed: u64, mut each: impl FnMut(&[i128])) {
    let (layout, source) = (mechanism.layout(), NoiseSource::Seeded(seed));
    let mut shard = ReleaseShard::new(0, Shards::new(1, layout, 1), mechanism, source);
    for epoch in 1..=STEPS {
        each(&shard.release(epoch, &vec![0; layout.coordinates()]).unwrap());
    }
}

fn level(values: impl Iterator<Item = f64>) -> (f64, f64, f64) {
    let (count, sum, squares) =
        values.fold((0.0, 0.0, 0.0), |(count, sum, squares), x| (count + 1.0, sum + x, squares + x * x));
    ((squares / count).sqrt(), sum / count, count)
}

/// The noise in v has the stated bias and deviation, step by step: deviations of 20 000 coordinates
/// are within 7 standard errors (false alarm below 1e-10 for each of 60).
#[test]
fn noise_in_v_has_the_stated_bias_and_deviation() {
    const COORDINATES: usize = 20_000;
    for (strategies, method) in strategies()
        .into_iter()
        .map(|strategies| (strategies, Method::Jme))
        .chain([(strategies().remove(0), Method::Pp), (strategies().remove(2), BATCHES_OF_FOUR)])
    {
        let mechanism = mechanism(method, COORDINATES, &strategies, "3x4");
        let setting = setting(4);
        let stated = second_moment_noise(&mechanism, &setting, STEPS);
        let layout = mechanism.layout();
        let divisor = if method == BATCHES_OF_FOUR { 16.0 } else { 4.0 };
        let unit = |coordinate: usize| mechanism.moments().noise()[coordinate].unit / divisor;
        let (range, strategy) = match layout.second_len() {
            0 => (layout.first(), mechanism.strategies().first()),
            _ => (layout.second(), mechanism.strategies().second()),
        };
        let mut decoder = strategy.decoder(COORDINATES);
        let mut average = Workload::Adam(setting.second_decay).state(COORDINATES);
        let mut step = 0;
        noise_alone(&mechanism, 5, |values| {
            let real: Vec<f64> =
                values[range.clone()].iter().map(|&value| value as f64 * unit(range.start)).collect();
            let mut increments = vec![0.0; COORDINATES];
            decoder.decode(&real, &mut increments).unwrap();
            if layout.second_len() == 0 {
                increments.iter_mut().for_each(|x| *x = *x * *x - stated[step].bias);
            }
            let (deviation, mean, count) = level(average.push(&increments).unwrap().iter().copied());
            let expected = stated[step].deviation;
            assert!(mean.abs() < 7.0 * expected / count.sqrt(), "step {step}: a bias of {mean}");
            // The kurtosis of squares is at most 15: their variance has a standard error of
            // √(14/n).
            let error = (14.0 / count).sqrt() / 2.0;
            assert!((deviation / expected - 1.0).abs() < 7.0 * error, "step {step}: {deviation} {expected}");
            step += 1;
        });
    }
}

/// If ε dominates, the direction is m/ε and its noise has the covariance `τ²(A C⁻¹)(A C⁻¹)ᵀ/m²`
/// across steps, for every strategy and method. (Noise added as C⁻¹Z after A, a published mistake,
/// has another.)
#[test]
fn noise_in_m_has_the_covariance_of_the_theorem() {
    const COORDINATES: usize = 20_000;
    for strategies in strategies() {
        for method in [Method::Jme, Method::Pp] {
            let mechanism = mechanism(method, COORDINATES, &strategies, "3x4");
            let layout = mechanism.layout();
            let setting = AdamHyperparameters { stability: 1e12, ..setting(4) };
            let mut adam = PrivateAdam::new(&mechanism, setting, 0..COORDINATES, STEPS).unwrap();
            let mut found: Vec<Vec<f64>> = Vec::new();
            noise_alone(&mechanism, 6, |values| found.push(push(&mut adam, layout, values).direction));
            let rows = decoder_rows(mechanism.strategies().first(), &Workload::Adam(setting.first_decay));
            let deviation =
                mechanism.moments().noise()[layout.first().start].standard_deviation() / 4.0 / 1e12;
            let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            for t in 0..STEPS as usize {
                for s in 0..=t {
                    let sample = product(&found[t], &found[s]) / COORDINATES as f64;
                    let expected = deviation * deviation * product(&rows[t], &rows[s]);
                    let norms = deviation
                        * deviation
                        * (product(&rows[t], &rows[t]) * product(&rows[s], &rows[s])).sqrt();
                    // A covariance has a standard error of at most √(2/n) of the norms: 7 of them,
                    // 468 times.
                    let allowed = 7.0 * norms * (2.0 / COORDINATES as f64).sqrt();
                    assert!((sample - expected).abs() < allowed, "{method} {t} {s}: {sample} {expected}");
                }
            }
        }
    }
}

/// Rows of A C⁻¹, by decoding unit vectors.
fn decoder_rows(strategy: &dyn Strategy, workload: &Workload) -> Vec<Vec<f64>> {
    let steps = STEPS as usize;
    let mut decoder = strategy.decoder(steps);
    let mut view = workload.state(steps);
    let rows = (0..steps).map(|t| {
        let mut unit = vec![0.0; steps];
        unit[t] = 1.0;
        let mut decoded = vec![0.0; steps];
        decoder.decode(&unit, &mut decoded).unwrap();
        view.push(&decoded).unwrap().to_vec()
    });
    rows.collect()
}

/// Two runs differ in one record, at each of its participations. The privacy loss, computed in
/// integers, is at most that of the noise multiplier. Opposite gradients attain it where the bound
/// is exact.
#[test]
fn one_record_changes_a_release_within_its_sensitivity() {
    let mut rng = ChaCha20Rng::seed_from_u64(8);
    for strategies in strategies() {
        for method in [Method::Jme, Method::Pp] {
            let mechanism = mechanism(method, 3, &strategies, "3x4");
            let mut attack = |trial| match trial {
                0 => NeighbouringBatches {
                    others: vec![0.3; 6],
                    one: vec![1e9, 0.0, 0.0],
                    other: vec![-1e9, 0.0, 0.0],
                },
                _ => {
                    let mut vector = |length| (0..length).map(|_| rng.random_range(-2.0..2.0)).collect();
                    NeighbouringBatches { others: vector(6), one: vector(3), other: vector(3) }
                }
            };
            let worst = worst_loss(&mechanism, false, 60, &mut attack);
            // With C₁ = C₂ ≥ 0 and free second moments, opposite gradients are the worst case.
            assert!(worst <= 1.0 && (worst > 0.99 || !strategies.are_one()), "{method}: {worst}");
        }
    }
}

/// The same for squares of batches with arbitrary other records. Equal records attain the bound up
/// to rounding to the grid; the sensitivity of a single record would be exceeded.
#[test]
fn one_record_changes_batch_squares_within_their_sensitivity() {
    let mut rng = ChaCha20Rng::seed_from_u64(9);
    for size in [1, 2, 4, 16, 256] {
        for (strategies, participation) in
            [(0, "1"), (0, "3x4"), (1, "3x4")].map(|(at, p)| (strategies().remove(at), p))
        {
            let method = Method::BatchSquares { size: NonZeroU32::new(size).unwrap() };
            let mechanism = mechanism(method, 2, &strategies, participation);
            let mut attack = |trial: usize| {
                // All others have a common direction and length; random records are near the axis
                // or anywhere.
                let spread = if trial == 0 { 0.0 } else { rng.random_range(0.0..2.0) };
                let mut near = |x: f64| {
                    vec![x + spread * rng.random_range(-1.0..1.0), spread * rng.random_range(-1.0..1.0)]
                };
                let (one, other, common) = (near(2.0), near(-2.0), near(2.0));
                NeighbouringBatches { others: common.repeat(size as usize - 1), one, other }
            };
            let worst = worst_loss(&mechanism, participation == "1", 40, &mut attack);
            assert!(worst <= 1.0 && worst > 0.99, "m = {size}, {participation}: {worst}");
        }
    }
}

/// A record that is replaced among others, in the same way at each of its participations.
struct NeighbouringBatches {
    others: Vec<f64>,
    one: Vec<f64>,
    other: Vec<f64>,
}

/// Returns the largest ρ over several attacks, divided by the claimed ρ. The record takes part at
/// every fourth step, or once if `once`.
fn worst_loss(
    mechanism: &MatrixMechanism,
    once: bool,
    trials: usize,
    attack: &mut dyn FnMut(usize) -> NeighbouringBatches,
) -> f64 {
    let loss = |trial| {
        let [mut encode_one, mut encode_other] = [(); 2].map(|()| encoder(mechanism));
        let NeighbouringBatches { others, one, other } = attack(trial);
        let takes_part = |step: u64| if once { step == 0 } else { step % 4 == trial as u64 % 4 };
        let mut difference = Vec::new();
        for step in 0..STEPS {
            let other = if takes_part(step) { &other } else { &one };
            let [one, other] = [&one, other].map(|record| sums(mechanism, &[&others[..], record].concat()));
            let values = encode_one(&one).into_iter().zip(encode_other(&other));
            difference.extend(values.map(|(one, other)| one - other));
        }
        mechanism.moments().concentrated_loss(&difference) * 2.0 * 9.0
    };
    (0..trials).map(loss).fold(0.0, f64::max)
}

/// Scaling is undone, and the noise of all coordinates together never grows.
#[test]
fn scaling_cancels_and_does_not_amplify_noise() {
    let strategies = strategies().remove(0);
    let mechanism = mechanism(Method::Pp, 3, &strategies, "1");
    let layout = mechanism.layout();
    let scaled = AdamHyperparameters { squares: GradientSquares::Scaling { damping: 0.1 }, ..setting(1) };
    let raw = AdamHyperparameters { squares: GradientSquares::Raw, ..scaled };
    let [mut scaling, mut plain] =
        [scaled, raw].map(|setting| PrivateAdam::new(&mechanism, setting, 0..3, STEPS).unwrap());
    let gradient = [0.5, -0.1, 0.001];
    let mut scale = vec![1.0; 3];
    for _ in 0..STEPS {
        let encoded = |scale: &[f64]| {
            let scaled: Vec<f64> = gradient.iter().zip(scale).map(|(g, s)| g * s).collect();
            sums(&mechanism, &scaled).iter().map(|sum| sum << 40).collect::<Vec<i128>>()
        };
        let expected = push(&mut plain, layout, &encoded(&[1.0; 3])).direction;
        let part = push(&mut scaling, layout, &encoded(&scale));
        for (found, expected) in part.direction.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-2 * expected.abs(), "{found} {expected}");
        }
        scale = part.scale;
        assert!(scale.iter().map(|s| 1.0 / (s * s)).sum::<f64>() <= 3.0 * (1.0 + 1e-12));
        assert!(scale[0] < scale[1] && scale[1] < scale[2]);
    }
}

#[test]
fn extreme_gradients_give_finite_parameters() {
    for (method, squares) in [
        (Method::Jme, GradientSquares::Raw),
        (Method::Pp, GradientSquares::Raw),
        (Method::Pp, GradientSquares::Debiased),
        (Method::Pp, GradientSquares::Scaling { damping: 0.1 }),
    ] {
        let mechanism = mechanism(method, 2, &strategies().remove(1), "1");
        let (layout, setting) = (mechanism.layout(), AdamHyperparameters { squares, ..setting(3) });
        let mut adam = PrivateAdam::new(&mechanism, setting, 0..2, STEPS).unwrap();
        let mut parameters = Parameters::new(vec![1.0; 2], &setting);
        let mut shard = ReleaseShard::new(0, Shards::new(1, layout, 1), &mechanism, NoiseSource::Seeded(3));
        let cases: [&[f64]; 6] = [
            &[],
            &[0.0; 6],
            &[1e300, -1e300],
            &[f64::NAN, 1.0, 0.5, 0.5],
            &[f64::INFINITY, 0.0],
            &[f64::MIN_POSITIVE, 5e-324],
        ];
        for (epoch, gradients) in (1..).zip(cases) {
            let values = shard.release(epoch, &sums(&mechanism, gradients)).unwrap();
            parameters.apply(&[push(&mut adam, layout, &values)]).unwrap();
            assert!(parameters.values().iter().all(|value| value.is_finite()), "{squares:?} {epoch}");
        }
    }
}

#[test]
fn updates_are_clipped_in_norm() {
    let part = |start, direction: Vec<f64>| UpdatePart::new(start, direction, Vec::new());
    let parts = [part(0, vec![3.0, 0.0]), part(2, vec![-4.0])];
    let applied = |update_norm| {
        let setting = AdamHyperparameters { update_norm, ..setting(1) };
        let mut parameters = Parameters::new(vec![0.0; 3], &setting);
        parameters.apply(&parts).unwrap();
        parameters.values().to_vec()
    };
    let close = |found: Vec<f64>, expected: [f64; 3]| {
        assert!(
            found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-15),
            "{found:?}"
        );
    };
    close(applied(None), [-0.3, 0.0, 0.4]);
    close(applied(Some(0.6)), [-0.3, 0.0, 0.4]);
    close(applied(Some(0.25)), [-0.15, 0.0, 0.2]);
    let mut parameters = Parameters::new(vec![0.0; 3], &setting(1));
    for wrong in [&parts[..1], &parts[1..], &[parts[1].clone(), parts[0].clone()]] {
        assert!(matches!(parameters.apply(wrong), Err(AdamError::Length { .. })));
    }
    assert_eq!(parameters.values(), [0.0; 3]);
}

#[test]
fn invalid_settings_are_refused() {
    let check = |setting: AdamHyperparameters, message: &str| {
        let found = setting.check().unwrap_err().to_string();
        assert!(found.starts_with(message), "{found}");
    };
    for value in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        check(AdamHyperparameters { learning_rate: value, ..setting(1) }, "learning_rate is");
        check(AdamHyperparameters { stability: value, ..setting(1) }, "stability is");
        check(AdamHyperparameters { update_norm: Some(value), ..setting(1) }, "update_norm is");
        let squares = GradientSquares::Scaling { damping: value };
        check(AdamHyperparameters { squares, ..setting(1) }, "damping is");
    }
    check(AdamHyperparameters { floor_deviations: -1.0, ..setting(1) }, "floor_deviations is -1.0");
    for decay in [0.0, 1.0, -0.1, f64::NAN] {
        assert!(Decay::new(decay).is_err());
    }
    let strategies = strategies().remove(0);
    let both = mechanism(Method::Jme, 2, &strategies, "1");
    let scaling = AdamHyperparameters { squares: GradientSquares::Scaling { damping: 1.0 }, ..setting(1) };
    assert_eq!(scaling.check_release(&both), Err(AdamError::Scaling { method: Method::Jme }));
    let mut adam = PrivateAdam::new(&both, setting(1), 0..2, 1).unwrap();
    assert_eq!(adam.push([&[0i64; 2][..]], [&[0i64][..]]), Err(AdamError::Length { found: 1, expected: 2 }));
    adam.push([&[0i64; 2][..]], [&[0i128; 2][..]]).unwrap();
    assert_eq!(adam.push([&[0i64; 2][..]], [&[0i128; 2][..]]), Err(AdamError::PastHorizon { horizon: 1 }));
    let parameters =
        MomentParameters { layout: Layout::new(2, SecondMoment::Full), ..*both.moments().parameters() };
    let full = MatrixMechanism::with_participation(parameters, strategies.clone(), "1".parse().unwrap(), 3);
    assert!(matches!(
        setting(1).check_release(&full.unwrap()),
        Err(AdamError::SecondMoments { released: 3, dimension: 2 })
    ));
    let without_noise = MomentParameters { noise_multiplier: 0.0, ..*both.moments().parameters() };
    let without_noise =
        MatrixMechanism::with_participation(without_noise, strategies, "1".parse().unwrap(), 3);
    assert!(without_noise.is_err_and(|error| error.to_string().starts_with("noise_multiplier is 0")));
}

#[test]
fn heavy_ball_momentum_is_the_sum_of_decayed_gradients() {
    let setting = AdamHyperparameters { heavy_ball: Some(0.5), ..setting(1) };
    let (mut adam, mut direction) = (Adam::new(&setting, 1), [0.0]);
    let mut parameters = Parameters::new(vec![0.0], &setting);
    for (expected, value) in [(1.0, -0.05), (1.5, -0.125), (1.75, -0.2125)] {
        adam.step(&[1.0], &[9.0], 0.0, &mut direction);
        assert_eq!(direction, [expected]);
        parameters.apply_at(0.5, &[UpdatePart::new(0, direction.to_vec(), Vec::new())]).unwrap();
        assert!((parameters.values()[0] - value).abs() < 1e-15, "α is 0.1, and half of it is taken");
    }
    for decay in [-0.1, 1.0, f64::NAN] {
        let error = AdamHyperparameters { heavy_ball: Some(decay), ..setting }.check().unwrap_err();
        assert!(error.to_string().starts_with("heavy_ball is"), "{error}");
    }
}
