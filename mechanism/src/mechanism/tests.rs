//! Weights, sensitivities and noise levels of all methods.

use super::*;
use crate::accounting::{Delta, Epsilon};
use crate::audit::{AuditClaim, AuditError};
use crate::moments::SecondMoment;
use crate::participation::Participation;
use crate::strategy::buffered::{Buffered, BufferedParameters, Buffers, ExponentialBuffer};
use crate::strategy::{ColumnGeometry, Discrepancy, Matrix, Strategy, build};
use crate::workload::Workload;
use nalgebra::DMatrix;
use serde_json::Value;
use std::{iter, sync::Arc};

fn parameters(neighbours: Neighbours, dimension: usize) -> MomentParameters {
    MomentParameters {
        method: Method::Jme,
        layout: Layout::new(dimension, SecondMoment::Full),
        neighbours,
        clip_norm: 3.0,
        noise_multiplier: 2.0,
        second_moment_weight: None,
        count_weight: None,
        bin_weight: None,
    }
}

fn shared(max_norm_squared: f64, negative_overlap: f64) -> MomentGeometry {
    MomentGeometry::shared(ColumnGeometry::exact(max_norm_squared, negative_overlap))
}

fn mechanism(parameters: MomentParameters) -> Result<MomentMechanism, MechanismError> {
    MomentMechanism::new(parameters, &shared(2.25, 0.0))
}

fn close(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-9, "{found}, expected {expected}");
}

/// Weights, sensitivity and noise levels for records replaced in place, as in the paper.
#[test]
fn agrees_with_the_reference_values() {
    let cases = &crate::reference::cases(include_str!("../../../tests/vectors/jme_errors.json"));
    let mut checked = 0;
    for case in cases.iter().filter(|case| case["input"]["c"] == "identity") {
        let number = |value: &Value| value.as_f64().unwrap();
        let (input, expected) = (&case["input"], &case["expected"]["jme"]);
        let parameters = MomentParameters {
            clip_norm: number(&input["zeta"]),
            noise_multiplier: number(&input["sigma_eps_delta"]),
            ..parameters(Neighbours::ReplaceOneInPlace, input["d"].as_u64().unwrap() as usize)
        };
        let mechanism = MomentMechanism::new(parameters, &shared(1.0, 0.0)).unwrap();
        close(mechanism.second_moment_weight().unwrap(), number(&expected["lambda"]));
        close(mechanism.sensitivity(), number(&expected["sens"]));
        let layout = mechanism.parameters().layout;
        let deviation = |position: usize| mechanism.noise()[position].standard_deviation();
        close(deviation(layout.first().start), number(&expected["noise_std_1"]));
        close(deviation(layout.second().start), number(&expected["noise_std_2"]));
        checked += 1;
    }
    assert!(checked >= 2);
}

#[test]
fn noise_levels_are_those_of_one_gaussian_mechanism() {
    let check_with = |geometry: &MomentGeometry, parameters: MomentParameters, sensitivity: f64| {
        let mechanism = MomentMechanism::new(parameters, geometry).unwrap();
        close(mechanism.sensitivity(), sensitivity);
        assert!(mechanism.sensitivity() >= sensitivity);
        let total = parameters.noise_multiplier * mechanism.sensitivity();
        let lambda = mechanism.second_moment_weight().unwrap_or(f64::NAN);
        let layout = parameters.layout;
        assert_eq!(mechanism.noise().len(), layout.coordinates());
        let count = mechanism.count_weight().map_or(0.0, |kappa| total / kappa);
        let of_entry = |(i, j)| total / if i == j { lambda } else { 2.0 * lambda }.sqrt();
        let expected = iter::once(count)
            .chain(iter::repeat_n(total, layout.dimension))
            .chain(layout.second_entries().map(of_entry));
        for (noise, expected) in mechanism.noise().iter().zip(expected) {
            let found = noise.standard_deviation();
            assert!(found >= expected * (1.0 - 1e-15) && found <= expected * (1.0 + 0.5_f64.powi(30)));
        }
    };
    let check = |parameters, sensitivity| check_with(&shared(2.25, 0.0), parameters, sensitivity);
    let replaced = parameters(Neighbours::ReplaceOne, 3);
    check(replaced, 9.0);
    check(parameters(Neighbours::ReplaceOne, 1), 9.0);
    check(parameters(Neighbours::ReplaceOneInPlace, 3), 9.0);
    check(parameters(Neighbours::ZeroOut, 3), 4.5 * 2_f64.sqrt());
    check_with(&shared(2.25, 0.75), replaced, 3.0 * 12_f64.sqrt());
    // ν = 2, c = 1: 2(1 + ν + c) = 8.
    let weighted = MomentParameters {
        second_moment_weight: Some(2.0 / 9.0),
        count_weight: Some(3.0),
        layout: Layout::new(3, SecondMoment::Diagonal),
        ..replaced
    };
    check(weighted, 4.5 * 8_f64.sqrt());
}

#[test]
fn integer_scales_do_not_depend_on_the_clip_norm() {
    let scales = |clip_norm| {
        let found = mechanism(MomentParameters { clip_norm, ..parameters(Neighbours::ReplaceOne, 2) });
        found.unwrap().noise().iter().map(|noise| noise.scale).collect::<Vec<_>>()
    };
    assert_eq!(scales(1.0), scales(1e-80));
    assert_eq!(scales(1.0), scales(1e80));
}

#[test]
fn public_counts_are_exact_and_revealed_by_any_difference() {
    let mechanism = mechanism(parameters(Neighbours::ReplaceOneInPlace, 2)).unwrap();
    assert_eq!(mechanism.count_weight(), None);
    assert_eq!(mechanism.noise()[Layout::COUNT].scale, None);
    assert_eq!(mechanism.noise()[Layout::COUNT].standard_deviation(), 0.0);
    assert_eq!(mechanism.concentrated_loss(&[1]), f64::INFINITY);
    assert!(mechanism.concentrated_loss(&[0, 1]) > 0.0);
}

#[test]
fn refuses_with_a_reason() {
    let base = parameters(Neighbours::ReplaceOne, 2);
    let check = |parameters, message: &str| {
        let found = mechanism(parameters).unwrap_err().to_string();
        assert!(found.starts_with(message), "{found}");
    };
    let without_columns = Layout { dimension: 0, ..base.layout };
    check(MomentParameters { layout: without_columns, ..base }, "dimension is 0.0, expected at least 1");
    for clip_norm in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-100] {
        check(MomentParameters { clip_norm, ..base }, "clip_norm is");
    }
    for value in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        check(MomentParameters { noise_multiplier: value, ..base }, "noise_multiplier is");
        let second_moment_weight = Some(value);
        check(MomentParameters { second_moment_weight, ..base }, "second_moment_weight is");
        check(MomentParameters { count_weight: Some(value), ..base }, "count_weight is");
    }
    check(MomentParameters { second_moment_weight: Some(1e-300), ..base }, "second moments: noise of");
    check(MomentParameters { noise_multiplier: 1e-9, ..base }, "count: noise of");
    check(MomentParameters { noise_multiplier: 1e11, ..base }, "second moments: noise of");
    let in_place = MomentParameters { neighbours: Neighbours::ReplaceOneInPlace, ..base };
    check(
        MomentParameters { count_weight: Some(1.0), ..in_place },
        "count_weight is 1.0, but counts are public",
    );
    let with_method = |method| MomentParameters { method, ..base };
    for first_moment_share in [0.0, 1.0, -0.5, f64::NAN] {
        check(with_method(Method::Ime { first_moment_share }), "first_moment_share is");
    }
    let none = base.layout.without_second();
    for method in [Method::Ime { first_moment_share: 0.5 }, Method::Cs, Method::Pp, Method::JointClip] {
        let without = MomentParameters { layout: none, ..with_method(method) };
        check(without, &format!("the method {method} makes second moments private, but none are wanted"));
    }
    let weighted = MomentParameters { second_moment_weight: Some(1.0), ..base };
    let without = MomentParameters { layout: none, ..weighted };
    let method = |method| MomentParameters { method, ..weighted };
    for parameters in [without, method(Method::Ime { first_moment_share: 0.5 }), method(Method::Pp)] {
        let expected = format!("second_moment_weight is 1.0 with the method {}, but only", parameters.method);
        check(parameters, &expected);
    }
}

fn of_method(method: Method, neighbours: Neighbours, dimension: usize) -> MomentMechanism {
    mechanism(MomentParameters { method, clip_norm: 2.0, ..parameters(neighbours, dimension) }).unwrap()
}

/// Computed by hand for a squared column norm of 9/4, ζ = 2 and σ = 2.
#[test]
fn noise_levels_of_the_baselines_are_those_of_their_algorithms() {
    let check = |method, neighbours, dimension, expected: [f64; 3]| {
        let found = of_method(method, neighbours, dimension);
        let layout = found.layout();
        let positions = [Some(Layout::COUNT), Some(layout.first().start), layout.second().next()];
        for (position, expected) in positions.into_iter().zip(expected) {
            let level = position.map_or(0.0, |position| found.noise()[position].standard_deviation());
            let close = (level - expected).abs() <= 1e-9 * expected;
            assert!(close, "{method} {neighbours} {dimension}: {level}, expected {expected}");
        }
    };
    let (replaced, in_place, zeroed) =
        (Neighbours::ReplaceOne, Neighbours::ReplaceOneInPlace, Neighbours::ZeroOut);
    let (norm, clip, sigma) = (1.5_f64, 2.0_f64, 2.0_f64);
    let unit = sigma * norm;
    // Algorithm 4 with α = 1/5: 2ζ and √2ζ² divided by the roots of the shares; c = 1.
    let ime = Method::Ime { first_moment_share: 0.2 };
    let (first, second) =
        (unit * 2.0 * clip / 0.2_f64.sqrt(), unit * 2_f64.sqrt() * clip * clip / 0.8_f64.sqrt());
    for dimension in [1, 2, 5] {
        check(ime, replaced, dimension, [first / clip, first, second]);
    }
    check(ime, in_place, 3, [0.0, first, second]);
    check(ime, in_place, 1, [0.0, first, second / 2_f64.sqrt()]);
    let zeroed_first = unit * clip * 1.5_f64.sqrt() / 0.2_f64.sqrt();
    check(ime, zeroed, 3, [zeroed_first / clip * 2_f64.sqrt(), zeroed_first, second / 2_f64.sqrt()]);
    // Algorithm 5 with τζ² = 1/2: 2ζ√(3/2).
    let first = unit * 2.0 * clip * 1.5_f64.sqrt();
    let second = first * clip * 2_f64.sqrt();
    check(Method::Cs, replaced, 3, [first / clip / 1.5_f64.sqrt(), first, second]);
    check(Method::Cs, in_place, 1, [0.0, first, second]);
    check(Method::Cs, zeroed, 3, [unit * 2.0, unit * 2_f64.sqrt() * clip, unit * 2.0 * clip * clip]);
    // Algorithm 6: 2ζ, and the count if it is not public.
    let first = unit * 2.0 * clip;
    check(Method::Pp, replaced, 3, [first / clip, first, 0.0]);
    check(Method::Pp, in_place, 3, [0.0, first, 0.0]);
    // Joint clipping: 2R, with R = ζ.
    check(Method::JointClip, replaced, 3, [first / clip, first, first * clip * 2_f64.sqrt()]);
    check(Method::JointClip, in_place, 3, [0.0, first, first * clip * 2_f64.sqrt()]);
}

/// Without second moments and a weight for them, the claim is that of PP.
#[test]
fn without_second_moments_counts_are_free() {
    let pp = of_method(Method::Pp, Neighbours::ReplaceOne, 3);
    let none = MomentParameters { layout: pp.layout(), method: Method::Jme, ..*pp.parameters() };
    let none = mechanism(none).unwrap();
    assert_eq!((none.noise(), none.layout()), (pp.noise(), pp.layout()));
    assert_eq!((none.second_moment_weight(), none.noise().len()), (None, 4));
}

#[test]
fn more_noise_is_the_same_mechanism() {
    let one = of_method(Method::Cs, Neighbours::ReplaceOne, 3);
    let parameters = MomentParameters { noise_multiplier: 7.0, ..*one.parameters() };
    assert_eq!(one.with_noise_multiplier(7.0).unwrap(), mechanism(parameters).unwrap());
    assert!(one.with_noise_multiplier(f64::NAN).is_err());
}

fn matrices(first: &[f64], second: &[f64], participation: &str) -> MomentGeometry {
    let matrix = |coefficients: &[f64]| Arc::new(Matrix::toeplitz(coefficients.to_vec(), 6).unwrap());
    let participation: Participation = participation.parse().unwrap();
    MomentGeometry::of_matrices(matrix(first), matrix(second), participation, [0.0; 2]).unwrap()
}

/// One strategy given as a matrix, with one participation, agrees with its column geometry.
#[test]
fn matrices_of_one_strategy_agree_with_its_geometry() {
    let (one, overlapping) = (matrices(&[1.0, 0.5], &[1.0, 0.5], "1"), shared(1.25, 0.0));
    let methods =
        [Method::Jme, Method::Ime { first_moment_share: 0.3 }, Method::Cs, Method::Pp, Method::JointClip];
    for method in methods {
        for neighbours in [Neighbours::ReplaceOne, Neighbours::ReplaceOneInPlace, Neighbours::ZeroOut] {
            for dimension in [1, 3] {
                let parameters = MomentParameters { method, ..parameters(neighbours, dimension) };
                let [a, b] = [&one, &overlapping].map(|of| MomentMechanism::new(parameters, of).unwrap());
                for (a, b) in a.noise().iter().zip(b.noise()) {
                    let (a, b) = (a.standard_deviation(), b.standard_deviation());
                    assert!((a - b).abs() <= 1e-8 * b, "{method} {neighbours} {dimension}: {a}, not {b}");
                }
            }
        }
    }
}

#[test]
fn several_participations_cost_their_root_without_overlaps() {
    let once = |method| of_method(method, Neighbours::ReplaceOneInPlace, 3).sensitivity();
    for method in
        [Method::Jme, Method::Ime { first_moment_share: 0.5 }, Method::Cs, Method::Pp, Method::JointClip]
    {
        let parameters =
            MomentParameters { method, clip_norm: 2.0, ..parameters(Neighbours::ReplaceOneInPlace, 3) };
        let thrice = MomentMechanism::new(parameters, &matrices(&[1.5], &[1.5], "3x2")).unwrap();
        let ratio = thrice.sensitivity() / once(method);
        assert!((ratio - 3_f64.sqrt()).abs() < 1e-8, "{method}: {ratio}");
    }
}

/// The scale of C₂ does not change the noise of first moments. The noise of encoded second moments
/// is proportional to it.
#[test]
fn two_strategies_have_weights_of_their_own() {
    for neighbours in [Neighbours::ReplaceOne, Neighbours::ReplaceOneInPlace, Neighbours::ZeroOut] {
        let mechanism_scaled_by = |scale: f64| {
            let geometry = matrices(&[1.0], &[scale, 0.5 * scale], "1");
            MomentMechanism::new(parameters(neighbours, 3), &geometry).unwrap()
        };
        let [one, scaled] = [1.0, 8.0].map(mechanism_scaled_by);
        let layout = one.layout();
        for (position, factor) in [(layout.first().start, 1.0), (layout.second().start, 8.0)] {
            let [a, b] = [&one, &scaled].map(|found| found.noise()[position].standard_deviation());
            assert!((b / a / factor - 1.0).abs() < 1e-6, "{neighbours} {position}: {a} and {b}");
        }
    }
    let joint = MomentParameters { method: Method::JointClip, ..parameters(Neighbours::ReplaceOne, 3) };
    let refused = MomentMechanism::new(joint, &matrices(&[1.0], &[1.0, 0.5], "1"));
    assert_eq!(refused, Err(MechanismError::OneStrategy { method: Method::JointClip }));
}

/// Takes a C that differs from its matrix as much as allowed, in the worst direction. Tries errors
/// of both kinds on records of equal and of opposite contributions.
#[test]
fn errors_of_a_matrix_are_charged() {
    const STEPS: usize = 40;
    const RECORDS: usize = 20;
    // Columns that hardly overlap: their sum grows with √20, and the sum of equal errors with 20.
    let entry = |t: usize, i: usize| if t == i { 1.0 } else { 1e-3 * f64::from(u8::from(t > i)) };
    let matrix = DMatrix::from_fn(STEPS, STEPS, entry);
    let pattern: Vec<usize> = (0..RECORDS).map(|i| 2 * i).collect();
    let largest = |c: &DMatrix<f64>| {
        let signed = |sign: f64| -> f64 {
            let signs = pattern.iter().enumerate().map(|(m, &i)| (i, if m % 2 == 0 { 1.0 } else { sign }));
            signs.map(|(i, sign)| c.column(i) * sign).sum::<nalgebra::DVector<f64>>().norm_squared()
        };
        signed(1.0).max(signed(-1.0))
    };
    let participation = "20x2".parse().unwrap();
    let charged = |discrepancy: Discrepancy| {
        let matrix = Arc::new(Matrix::dense(matrix.clone()).unwrap().with_discrepancy(discrepancy));
        let geometry = MomentGeometry::of_matrices(matrix.clone(), matrix, participation, [0.0; 2]).unwrap();
        let weights = MomentWeights { second: 0.0, count: 0.0 };
        geometry.joint(Neighbours::ZeroOut, 2, weights).unwrap()
    };
    let exact = charged(Discrepancy::NONE);
    assert!(largest(&matrix) <= exact && largest(&matrix) > exact * (1.0 - 1e-10));
    for size in [1e-9, 1e-4, 0.1] {
        // Every column is moved by the same vector of that length.
        let error = DMatrix::from_element(STEPS, STEPS, size / (STEPS as f64).sqrt());
        let column = Discrepancy { column: size, relative: 0.0 };
        let relative = Discrepancy { relative: size, column: 0.0 };
        for (runs, discrepancy) in [(&matrix + error, column), (&matrix * (1.0 + size), relative)] {
            let found = largest(&runs);
            assert!(found > exact * (1.0 + 2f64.powi(-30)), "{size}: {found}");
            assert!(found <= charged(discrepancy), "{size}: {found} above {}", charged(discrepancy));
        }
    }
    let discrepancy_of = |name: &str| {
        let strategy = build(name, &Workload::Prefix, Some(1 << 10)).unwrap();
        strategy.matrix(1 << 10).unwrap().discrepancy()
    };
    assert_eq!(discrepancy_of("square-root"), Discrepancy::NONE);
    assert!(discrepancy_of("normalized-square-root").column > 14.0 * 2f64.powi(-40));
    assert!(discrepancy_of("banded-inverse-square-root:8").relative > 2f64.powi(-50));
}

/// Noise is refused if it can't be correlated, or if its rounding error would be too large.
#[test]
fn noise_is_correlated_where_that_is_sound() {
    let blt = |buffers: &[(f64, f64)], horizon: Option<u64>| -> Arc<dyn Strategy> {
        let buffers = buffers.iter().map(|&(decay, weight)| ExponentialBuffer { decay, weight }).collect();
        let fitted = BufferedParameters { horizon, buffers: Buffers::Toeplitz(buffers) }.rounded();
        Arc::new(Buffered::new(format!("blt:{}", fitted.count()).parse().unwrap(), fitted).unwrap())
    };
    let correlated = |strategy: &Arc<dyn Strategy>, noise_multiplier: f64, dimension: usize| {
        let parameters =
            MomentParameters { noise_multiplier, ..parameters(Neighbours::ReplaceOne, dimension) };
        let horizon = strategy.horizon().unwrap_or(1000);
        let strategies = Strategies::shared(strategy.clone()).correlated();
        MatrixMechanism::with_participation(parameters, strategies, Participation::Single, horizon)
    };
    let good = blt(&[(0.75, 0.5)], Some(1000));
    let sound = correlated(&good, 1.0, 3).unwrap();
    let encoded = MatrixMechanism::new(parameters(Neighbours::ReplaceOne, 3), good.clone()).unwrap();
    assert!(sound.is_correlated() && !encoded.is_correlated());
    let ratio = sound.moments().sensitivity() / encoded.moments().sensitivity();
    assert!((ratio - 1.0).abs() < 1e-6 && sound.moments().rounding_share() > 0.0);
    // All numbers change with the noise multiplier.
    let more = sound.with_noise_multiplier(9.0).unwrap();
    assert!(more.is_correlated() && *more.moments() == *correlated(&good, 9.0, 3).unwrap().moments());
    assert!(more.moments().sensitivity() > sound.moments().sensitivity());
    let claim = (Epsilon::new(1.0).unwrap(), Delta::new(1e-6).unwrap());
    let audited = |mechanism| AuditClaim::new(mechanism, "1".parse().unwrap(), 3, 1, claim);
    assert!(matches!(audited(&sound), Err(AuditError::Correlated)) && audited(&encoded).is_ok());
    for noise in sound.moments().noise() {
        let in_units = noise.scale.unwrap().sigma() / 2f64.powi(noise.coarse_bits.into());
        assert!((41.0..42.0001).contains(&in_units.log2()), "{in_units}");
    }

    let square_root = build("square-root", &Workload::Prefix, Some(10)).unwrap();
    let alternating = blt(&[(0.1, 0.999), (0.01, 0.09)], Some(100_000));
    assert!(matches!(correlated(&square_root, 1.0, 3), Err(MechanismError::Correlation)));
    let long = blt(&[(1.0 - 1e-9, 0.9)], Some(10_000_000));
    assert!(matches!(correlated(&long, 1.0, 3), Err(MechanismError::GridRounding { .. })));
    assert!(matches!(correlated(&good, 1e5, 3), Err(MechanismError::CorrelationRange { .. })));
    // The inverse of this strategy has long rows.
    assert!(matches!(correlated(&alternating, 1.0, 3), Err(MechanismError::Correlation)));
}
