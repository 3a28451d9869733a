//! Tests the encoders and decoders against dense matrices, exact integers and reference vectors.

use super::*;
use crate::strategy::conformance;
use num_bigint::BigInt;
use proptest::prelude::{ProptestConfig, any, prop, prop_assert, proptest};
use serde_json::Value;

const WORKLOADS: [&str; 9] = [
    "prefix",
    "average",
    "exponential:0.9",
    "exponential:0.1",
    "momentum:0.95",
    "adam:0.99",
    "window:1",
    "window:10",
    "window-mean:10",
];

fn toeplitz(horizon: Option<u64>, buffers: &[(f64, f64)]) -> Buffered {
    let buffers = buffers.iter().map(|&(decay, weight)| ExponentialBuffer { decay, weight }).collect();
    let parameters = BufferedParameters { horizon, buffers: Buffers::Toeplitz(buffers) }.rounded();
    Buffered::new("blt:1".parse().unwrap(), parameters).unwrap()
}

fn power_law(horizon: Option<u64>, buffers: &[(f64, f64, f64)]) -> Buffered {
    let buffer = |&(growth, decay, weight)| PowerLawBuffer { growth, decay, weight };
    let buffers = Buffers::PowerLaw(buffers.iter().map(buffer).collect());
    Buffered::new("power-law:1".parse().unwrap(), BufferedParameters { horizon, buffers }).unwrap()
}

/// Buffers with oscillating curves, with `turns` over the horizon.
fn variable(horizon: u64, buffers: usize, knots: usize, turns: f64) -> Buffered {
    let curve = |level: f64, size: f64| -> Vec<f64> {
        (0..knots).map(|knot| level + size * (turns * knot as f64 / knots as f64).sin()).collect()
    };
    let buffer = |j: usize| VariableBuffer {
        decay: curve(1.5 * j as f64 - 1.0, 0.7),
        weight: curve(-1.2 - 0.7 * j as f64, 0.5),
    };
    let buffers = Buffers::Variable((0..buffers).map(buffer).collect());
    let parameters = BufferedParameters { horizon: Some(horizon), buffers };
    Buffered::new("variable-blt:1".parse().unwrap(), parameters).unwrap()
}

/// Buffers that oscillate with the phase too, and a delay line if `delay`.
fn periodic(horizon: u64, buffers: usize, gap: u32, cells: usize, delay: bool) -> Buffered {
    let curve = |level: f64, size: f64, cells: usize| PeriodicCurve {
        ends: (0..5).map(|knot| level + size * (2.0 * f64::from(knot)).sin()).collect(),
        phases: (0..cells).map(|cell| 2.0 * size * (3.0 * cell as f64).sin()).collect(),
    };
    let buffer = |j: usize| PeriodicBuffer {
        decay: curve(1.5 * j as f64 - 1.0, 0.7, cells),
        weight: curve(-1.2 - 0.7 * j as f64, 0.5, cells),
    };
    let periodic = PeriodicBuffers {
        gap,
        gain: curve(-0.6, 0.2, gap as usize),
        buffers: (0..buffers).map(buffer).collect(),
        delay: delay.then(|| PeriodicBuffer { decay: curve(-0.5, 0.5, 0), weight: curve(-0.7, 0.3, 0) }),
    };
    let parameters = BufferedParameters { horizon: Some(horizon), buffers: Buffers::Periodic(periodic) };
    Buffered::new("comb-blt:1".parse().unwrap(), parameters).unwrap()
}

const THREE: [(f64, f64); 3] = [(0.999, 0.03), (0.95, 0.12), (0.5, 0.33)];
const TWO_POWERS: [(f64, f64, f64); 2] = [(1.227, 1.672, 0.911), (14.06, 14.46, 1.999)];

fn strategies(steps: u64) -> Vec<Buffered> {
    let eight: Vec<_> = (0..8).map(|j| (1.0 - 0.001 * 2.3f64.powi(j), 0.01 * 1.4f64.powi(j))).collect();
    vec![
        toeplitz(Some(steps), &[(0.9, 0.4)]),
        toeplitz(None, &THREE),
        toeplitz(Some(steps), &eight),
        toeplitz(Some(1_000_000_000), &[(1.0 - 1e-9, 1e-4), (0.9, 0.4)]),
        power_law(Some(steps), &[(1.6295, 2.0381, 1.173)]),
        power_law(None, &TWO_POWERS),
        power_law(Some(2 * steps), &[(0.0, 0.51, 0.1), (0.5, 1.0, 0.3), (30.0, 64.0, 5.0)]),
        variable(steps, 1, 4, 3.0),
        variable(steps, 3, 12, 9.0),
        variable(2 * steps, 8, 5, 2.0),
        periodic(steps, 2, 7, 3, false),
        periodic(steps, 3, 5, 0, true),
        periodic(2 * steps, 1, 4, 4, true),
    ]
}

#[test]
fn streaming_agrees_with_the_matrix() {
    for strategy in strategies(30) {
        for workload in WORKLOADS {
            conformance::check(&strategy, &workload.parse().unwrap(), 30);
        }
        let rows =
            nalgebra::DMatrix::from_fn(30, 30, |t, i| if i > t { 0.0 } else { ((t * i) as f64).cos() + 2.0 });
        conformance::check(&strategy, &Workload::from_matrix("w", rows).unwrap(), 30);
    }
    for strategy in strategies(1) {
        conformance::check(&strategy, &Workload::Prefix, 1);
    }
}

#[test]
fn parameters_are_stored_exactly() {
    for strategy in strategies(30) {
        let text = serde_json::to_string(strategy.parameters()).unwrap();
        let parameters: BufferedParameters = serde_json::from_str(&text).unwrap();
        let again = Buffered::new(strategy.name.clone(), parameters).unwrap();
        assert_eq!(again.parameters(), strategy.parameters());
        assert_eq!(again.encoder(1).save(), strategy.encoder(1).save());
    }
}

#[test]
fn parameters_that_make_no_strategy_are_refused() {
    let check = |buffers: Buffers, part: &str| {
        let parameters = BufferedParameters { horizon: Some(9), buffers };
        let error = Buffered::new("blt:1".parse().unwrap(), parameters).map(|s| s.name()).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    };
    let one = |decay, weight| Buffers::Toeplitz(vec![ExponentialBuffer { decay, weight }]);
    check(Buffers::Toeplitz(vec![]), "1 to 8 buffers");
    check(one(1.0, 0.5), "decays above 0 and below 1");
    check(one(f64::NAN, 0.5), "decays above 0 and below 1");
    check(one(0.5, 0.0), "weights above 0");
    check(one(0.5, f64::NAN), "weights above 0");
    check(one(0.5, 0.1), "units of 2^-40");
    let pair = |weight| ExponentialBuffer { decay: 0.5, weight };
    check(Buffers::Toeplitz(vec![pair(0.25), pair(0.25)]), "decays to fall");
    let fast = [0.75, 0.5, 0.25].map(|decay| ExponentialBuffer { decay, weight: 0.75 });
    check(Buffers::Toeplitz(fast.to_vec()), "inverse does not forget");
    let law = |growth, decay, weight| Buffers::PowerLaw(vec![PowerLawBuffer { growth, decay, weight }]);
    for law in [law(-1.0, 2.0, 1.0), law(2.0, 2.0, 1.0), law(0.0, 0.5, 1.0), law(f64::NAN, 1.0, 1.0)] {
        check(law, "decay above it");
    }
    check(law(1.0, 65.0, 1.0), "at most 64");
    check(law(1.0, 2.0, f64::INFINITY), "weights above 0");
    check(law(0.0, 0.51, 2f64.powi(40)), "diagonal entry");
    let curves =
        |decay: Vec<f64>, weight: Vec<f64>| Buffers::Variable(vec![VariableBuffer { decay, weight }]);
    check(curves(vec![0.0; 3], vec![0.0; 3]), "4 to 256 coefficients");
    check(curves(vec![0.0; 5], vec![0.0; 4]), "all of the same number");
    check(curves(vec![f64::NAN; 4], vec![0.0; 4]), "between -40 and 40");
    check(curves(vec![0.0; 4], vec![41.0; 4]), "between -40 and 40");
    check(curves(vec![40.0; 4], vec![40.0; 4]), "diagonal entry");
    let Buffers::Periodic(good) = &periodic(9, 1, 4, 2, true).parameters.buffers else { panic!() };
    let changed = |change: &dyn Fn(&mut PeriodicBuffers)| {
        let mut periodic = good.clone();
        change(&mut periodic);
        Buffers::Periodic(periodic)
    };
    check(changed(&|periodic| periodic.gap = 0), "a gap of 1 to 4096");
    check(changed(&|periodic| periodic.gap = u32::MAX), "a gap of 1 to 4096");
    check(changed(&|periodic| periodic.gap = 3), "one value for each step of the gap");
    check(changed(&|periodic| periodic.buffers.clear()), "1 to 8 buffers");
    check(changed(&|periodic| periodic.buffers[0].decay.ends.push(0.0)), "all of the same number");
    check(changed(&|periodic| periodic.gain.phases[0] = f64::NAN), "between -40 and 40");
    check(changed(&|periodic| periodic.gain.phases[0] = -40.0), "diagonal entry");
    let no_horizon = BufferedParameters { horizon: None, buffers: curves(vec![0.0; 4], vec![0.0; 4]) };
    assert!(Buffered::new("variable-blt:1".parse().unwrap(), no_horizon).is_err());
    let endless = |horizon| {
        let parameters = BufferedParameters { horizon: Some(horizon), buffers: one(0.5, 0.5) };
        Buffered::new("blt:1".parse().unwrap(), parameters).map(|s| s.name())
    };
    assert!(matches!(endless(0), Err(StrategyError::Horizon { .. })));
    assert!(matches!(endless(ENDLESS_TOEPLITZ_STEPS + 1), Err(StrategyError::Horizon { .. })));
    assert!(endless(ENDLESS_TOEPLITZ_STEPS).is_ok());
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn check_close(found: f64, expected: f64, relative: f64, absolute: f64, name: &str) {
    assert!((found - expected).abs() <= relative * expected.abs() + absolute, "{name}: {found} {expected}");
}

/// The reference vectors are not rounded to 2⁻⁴⁰; rounding moves a coefficient by up to 2⁻⁴¹ per
/// buffer.
#[test]
fn matrices_have_the_reference_figures() {
    for case in &crate::reference::cases(include_str!("../../../../tests/vectors/blt_eval.json")) {
        let (input, expected) = (&case["input"], &case["expected"]);
        let (name, n) = (case["id"].as_str().unwrap(), input["n"].as_u64().unwrap());
        let (theta, omega) = (numbers(&input["theta"]), numbers(&input["omega"]));
        let buffers: Vec<_> = theta.into_iter().zip(omega).collect();
        let strategy = toeplitz(Some(n), &buffers);
        let coefficients = strategy.matrix(1000.min(n)).unwrap().product(&[1.0]);
        let inverse = strategy.inverse().unwrap();
        let inverse_coefficient = |lag: i32| -> f64 {
            if lag == 0 { 1.0 } else { inverse.iter().map(|b| b.weight * b.decay.powi(lag - 1)).sum() }
        };
        let coefs = numbers(&expected["coef"]).into_iter().zip(numbers(&expected["inv_coef"]));
        for (index, (coef, inverse_coef)) in numbers(&expected["index"]).into_iter().zip(coefs) {
            check_close(coefficients[index as usize], coef, 1e-12, 4e-12, name);
            check_close(inverse_coefficient(index as i32), inverse_coef, 1e-9, 1e-11, name);
        }
        for (j, b) in inverse.iter().enumerate() {
            check_close(b.decay, numbers(&expected["theta_hat"])[j], 1e-10, 4e-12, name);
            check_close(b.weight, numbers(&expected["omega_hat"])[j], 1e-9, 4e-12, name);
        }
        let norm = strategy.max_column_norm_squared(n).sqrt();
        let rows: Vec<f64> = strategy.decoder_row_norms(&Workload::Prefix, n).collect();
        let frobenius = rows.iter().map(|row| row * row).sum::<f64>().sqrt();
        let real = |name: &str| expected[name].as_f64().unwrap();
        check_close(norm, real("sens"), 1e-8, 0.0, name);
        check_close(rows[rows.len() - 1], real("b_max_row"), 1e-8, 0.0, name);
        check_close(frobenius, real("b_frobenius"), 1e-8, 0.0, name);
        check_close(norm * rows[rows.len() - 1], real("max_error"), 1e-8, 0.0, name);
        check_close(norm * frobenius / (n as f64).sqrt(), real("rmse"), 1e-8, 0.0, name);
    }
}

/// The charged sensitivity holds for the exact rational matrix, computed from the integers of C.
#[test]
fn column_norms_are_bounded_from_above_and_closely() {
    for strategy in strategies(64) {
        for i in [1, 2, 17] {
            let mut parts: Vec<BigInt> = Vec::new();
            let (mut line, gap) = (BigInt::ZERO, strategy.coefficients.delays() as u64);
            let (mut square, first) = (0.0, strategy.coefficients.step(i));
            for t in i..=64 {
                let step = strategy.coefficients.step(t);
                if t == i {
                    square += (first.gain as f64 / 2f64.powi(40)).powi(2);
                    parts = first.inputs.iter().map(|&h| BigInt::from(h) << 500u32).collect();
                    line = BigInt::from(first.delay.input) << 500u32;
                } else {
                    let due = (t - i).checked_rem(gap) == Some(0);
                    let delayed = if due { line.clone() } else { BigInt::ZERO };
                    let entry = parts.iter().sum::<BigInt>() - &delayed;
                    square += (to_real(&entry) / 2f64.powi(40)).powi(2);
                    let next = |((p, a), v): ((&BigInt, u64), u64)| (p * a - &delayed * v) >> 64u32;
                    parts = parts.iter().zip(step.decays).zip(step.delay.weights).map(next).collect();
                    line = if due { (line * step.delay.decay) >> 64u32 } else { line };
                }
            }
            let charged = strategy.max_column_norm_squared(64).min(strategy.geometry().max_norm_squared);
            assert!(square <= charged, "{}: column {i}: {square} above {charged}", strategy.name());
        }
    }
}

fn to_real(value: &BigInt) -> f64 {
    let shifted: i128 = (value >> 420u32).try_into().unwrap();
    shifted as f64 * 0.5f64.powi(80)
}

/// The column norms of a power law reach the bound, minus the part beyond the last step.
#[test]
fn power_law_columns_have_norm_one() {
    let strategy = power_law(Some(2000), &TWO_POWERS);
    let c = strategy.matrix(2000).unwrap().entries();
    for i in 0..2000 {
        let norm = c.column(i).norm_squared();
        assert!(norm <= 1.0 && norm > 1.0 - 2e-5, "column {i}: {norm}");
    }
    let endless = power_law(None, &TWO_POWERS);
    assert_eq!(endless.max_column_norm_squared(1 << 24), 1.0);
    assert!(endless.max_column_norm_squared(1) < 0.99);
}

/// No diagonal entry of the largest accepted weights rounds to 0: the bound of all norms holds.
#[test]
fn power_laws_with_large_weights_are_invertible() {
    for (growth, decay) in [(0.0, 0.51), (0.7, 0.75), (2.0, 2.1), (0.0, 64.0), (63.0, 64.0)] {
        for horizon in [None, Some(2), Some(1000)] {
            let accepted = |weight: f64| {
                let buffers = Buffers::PowerLaw(vec![PowerLawBuffer { growth, decay, weight }; 2]);
                let parameters = BufferedParameters { horizon, buffers };
                Buffered::new("power-law:2".parse().unwrap(), parameters).ok()
            };
            let strategy = (0..=40).rev().find_map(|power| accepted(2f64.powi(power))).unwrap();
            let last = strategy.parameters.steps();
            for t in (1..=last.min(1000)).chain([last / 2, last - 1, last].into_iter().filter(|&t| t > 0)) {
                assert!(strategy.coefficients.step(t).gain > 0, "{growth} {decay} {horizon:?}: step {t}");
            }
        }
    }
}

#[test]
fn columns_that_vary_have_norm_one() {
    for strategy in [variable(2000, 1, 4, 1.0), variable(2000, 5, 12, 20.0)] {
        let c = strategy.matrix(2000).unwrap().entries();
        for i in 0..2000 {
            let norm = c.column(i).norm_squared();
            assert!(norm <= 1.0 && norm > 1.0 - 1e-10, "column {i}: {norm}");
        }
    }
}

#[test]
fn participation_norms_are_those_of_the_sums_of_columns() {
    let strategy = toeplitz(Some(100), &THREE);
    let c = strategy.matrix(100).unwrap().product(&[1.0]);
    let Buffers::Toeplitz(buffers) = &strategy.parameters().buffers else { panic!() };
    for (count, gap, horizon) in
        [(1, 1, 1), (1, 7, 100), (4, 25, 100), (3, 10, 100), (20, 30, 100), (100, 1, 100)]
    {
        let starts = (0..count).map(|m| m * gap).filter(|&s| s < horizon);
        let starts: Vec<usize> = starts.collect();
        let row = |t: usize| starts.iter().filter(|&&s| s <= t).map(|s| c[t - s]).sum::<f64>();
        let expected: f64 = (0..horizon).map(|t| row(t) * row(t)).sum();
        let found = rows::participation_norm_squared(buffers, horizon as u64, count as u64, gap as u64);
        assert!(
            (found - expected).abs() < 1e-9 * expected && found >= expected * (1.0 - 1e-13),
            "{found} {expected}"
        );
    }
}

#[test]
fn row_norms_keep_their_digits_over_a_million_steps() {
    let buffers = [(1.0 - 1e-5, 0.002), (0.999, 0.015), (0.97, 0.08), (0.6, 0.3)];
    let strategy = toeplitz(Some(1 << 20), &buffers);
    let inverse = strategy.inverse().unwrap();
    let Buffers::Toeplitz(buffers) = &strategy.parameters().buffers else { panic!() };
    let lasting = 1.0 / (1.0 + buffers.iter().map(|b| b.weight / (1.0 - b.decay)).sum::<f64>());
    let mut parts: Vec<f64> = inverse.iter().map(|b| -b.weight / (1.0 - b.decay)).collect();
    let mut squares = Workload::Prefix.state(1);
    for found in strategy.decoder_row_norms(&Workload::Prefix, 1 << 20) {
        let coefficient = lasting + parts.iter().sum::<f64>();
        let square = squares.push(&[coefficient * coefficient]).unwrap()[0];
        assert!((found * found - square).abs() < 1e-11 * square, "{found} {square}");
        parts.iter_mut().zip(&inverse).for_each(|(part, b)| *part *= b.decay);
    }
}

/// The norms of late rows of windows equal those of their entries, computed one by one.
#[test]
fn row_norms_of_windows_are_those_of_their_entries() {
    let law = power_law(None, &TWO_POWERS);
    for strategy in [variable(600, 4, 9, 11.0), law] {
        for length in [1, 7, 199, 599, 900] {
            for workload in [format!("window:{length}"), format!("window-mean:{length}")] {
                let workload: Workload = workload.parse().unwrap();
                let found = strategy.decoder_row_norms(&workload, 600);
                let expected = rows::dense_norms(&strategy, workload.clone(), 600);
                for ((found, expected), t) in found.zip(expected).zip(1..) {
                    assert!((found / expected - 1.0).abs() < 1e-9, "{workload} {t}: {found} {expected}");
                }
            }
        }
    }
}

fn deviation(strategy: &Buffered, stream: &[i64], step: usize, change: i64) -> f64 {
    let [mut one, mut other] = [strategy.encoder(1), strategy.encoder(1)];
    let unit: Vec<f64> = (0..=step).map(|t| if t == step { 1.0 } else { 0.0 }).collect();
    let column = strategy.matrix(stream.len() as u64).unwrap().product(&unit);
    let mut sum = 0.0;
    for (t, &x) in stream.iter().enumerate() {
        let (mut y, mut z) = ([0], [0]);
        one.encode(&[x.into()], &mut y).unwrap();
        other.encode(&[i128::from(x) + if t == step { i128::from(change) } else { 0 }], &mut z).unwrap();
        let exact = column[t] * change as f64;
        sum += ((z[0] - y[0]) as f64 / 2f64.powi(40) - exact).powi(2);
    }
    sum
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn rounding_adds_no_more_than_is_charged(
        stream in prop::collection::vec(-1i64 << 40..1 << 40, 300), step in 0usize..300, change in -3i64..4
    ) {
        let slow = toeplitz(Some(300), &[(1.0 - 2f64.powi(-20), 0.25)]);
        let (phases, line) = (periodic(300, 3, 9, 4, false), periodic(300, 3, 20, 0, true));
        for strategy in [toeplitz(Some(300), &THREE), slow, variable(300, 4, 9, 11.0), phases, line] {
            let charged = strategy.geometry().rounding_squared;
            prop_assert!(charged <= 2f64.powi(-28));
            prop_assert!(deviation(&strategy, &stream, step, change) <= charged);
        }
    }

    #[test]
    fn a_refused_state_changes_nothing(state in prop::collection::vec(any::<u8>(), 0..200), good: bool) {
        conformance::check_restoring(periodic(9, 1, 3, 0, true).encoder(2), state.clone(), good);
        conformance::check_restoring(toeplitz(Some(9), &THREE).encoder(2), state, good);
    }
}

/// Inputs up to the limit never leave the range, for any number of steps. Inputs far above it are
/// refused and leave the state unchanged. A restored encoder refuses them too.
#[test]
fn sums_stay_in_range() {
    for strategy in [
        toeplitz(Some(1000), &THREE),
        toeplitz(Some(5), &[(0.5, 0.25)]),
        variable(1000, 4, 9, 11.0),
        periodic(1000, 4, 2, 0, true),
    ] {
        let limit = strategy.input_limit().unwrap() as i128;
        assert!(limit > 1 << 75);
        let [mut encoder, mut restored] = [strategy.encoder(1), strategy.encoder(1)];
        for step in 0..4 {
            encoder.encode(&[if step % 2 == 0 { limit } else { -limit }], &mut [0]).unwrap();
        }
        let saved = encoder.save();
        restored.restore(&saved).unwrap();
        for encoder in [&mut encoder, &mut restored] {
            assert_eq!(encoder.encode(&[limit << 12], &mut [0]), Err(StepError::Overflow));
            assert_eq!((encoder.steps(), encoder.save()), (4, saved.clone()));
            encoder.encode(&[1], &mut [0]).unwrap();
        }
        let mut encoder = strategy.encoder(1);
        let steps = strategy.horizon().unwrap();
        (0..steps).for_each(|_| encoder.encode(&[limit], &mut [0]).unwrap());
    }
}
