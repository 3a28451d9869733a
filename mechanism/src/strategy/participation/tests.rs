//! Compares sensitivities under participation with the paper's tables, other libraries' tests and
//! brute force.
//!
//! Also attacks the claims of [`super`] by coordinate ascent.
//!
//! The attack starts from random contributions on every pattern. It repeatedly turns each
//! contribution in the direction in which it adds most, which never lowers `‖C u‖²`. False alarms
//! are impossible, because every change that it finds is attained. The seeds are fixed.

use super::*;
use crate::series;
use crate::strategy::buffered::{
    Buffered, BufferedParameters, Buffers, PeriodicBuffer, PeriodicBuffers, PeriodicCurve,
};
use crate::strategy::{Factorization, Strategy as _};
use chacha20::ChaCha8Rng;
use nalgebra::DMatrix;
use num_bigint::BigInt;
use rand::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use serde_json::Value;

fn claim(matrix: &Matrix, participation: &str, dimension: usize) -> SensitivityClaim {
    participation_sensitivity(matrix, participation.parse().unwrap(), dimension).unwrap()
}

fn close(name: &str, found: f64, expected: f64, relative: f64) {
    assert!((found - expected).abs() <= relative * expected, "{name}: {found} against {expected}");
}

/// Checks that the claim is exact in every dimension and has this square.
fn check_exact(name: &str, matrix: &Matrix, participation: &str, expected: f64) {
    let found = claim(matrix, participation, 3);
    close(name, found.squared, expected, 1e-10);
    assert!(found.squared >= expected * (1.0 - 1e-15), "{name}: {found:?} is below {expected}");
    assert_eq!(found.kind, ClaimKind::Exact, "{name}");
    assert_eq!(claim(matrix, participation, 1), found, "{name}");
}

pub(super) fn toeplitz(coefficients: &[f64], steps: usize) -> Matrix {
    Matrix::toeplitz(coefficients.to_vec(), steps).unwrap()
}

fn dense(rows: &Value) -> Matrix {
    let rows: Vec<Vec<f64>> = serde_json::from_value(rows.clone()).unwrap();
    Matrix::dense(DMatrix::from_fn(rows.len(), rows[0].len(), |row, column| rows[row][column])).unwrap()
}

/// Returns the encoder with one row for each node of the complete binary subtrees of `steps`
/// leaves.
pub(super) fn tree(steps: usize) -> Matrix {
    let levels = (0..).map(|level| 1 << level).take_while(|&width| width <= steps);
    let nodes: Vec<(usize, usize)> =
        levels.flat_map(|width| (0..steps / width).map(move |node| (node * width, width))).collect();
    let entry = |row: usize, step: usize| {
        let (start, width) = nodes[row];
        f64::from(u8::from((start..start + width).contains(&step)))
    };
    Matrix::dense(DMatrix::from_fn(nodes.len(), steps, entry)).unwrap()
}

/// Online Honaker: the tree is completed to a power of two, and virtual steps are free.
fn completed_tree(steps: usize) -> Matrix {
    let whole = steps.next_power_of_two();
    let nodes: Vec<_> = (0..=whole.ilog2())
        .map(|level| 1_usize << level)
        .flat_map(|width| (0..whole / width).map(move |node| (node * width, width)))
        .collect();
    let entry = |row: usize, step: usize| {
        let (start, width): (usize, usize) = nodes[row];
        f64::from(u8::from((start..start + width).contains(&step)))
    };
    Matrix::dense(DMatrix::from_fn(nodes.len(), steps, entry)).unwrap()
}

#[test]
fn agrees_with_the_reference_values() {
    let mut checked = 0;
    let cases = crate::reference::cases(include_str!("../../../../tests/vectors/memf_sensitivity.json"));
    for case in cases.iter().filter(|case| case["input"]["c"].is_array()) {
        let (input, id) = (&case["input"], case["id"].as_str().unwrap());
        let number = |name: &str| case["expected"][name].as_f64().unwrap();
        let matrix = dense(&input["c"]);
        let schema = format!("{}x{}", input["k"], input["b"]);
        let schedule = schema.parse::<Participation>().unwrap().on(matrix.columns());
        let patterns = schedule.patterns(schedule.starts(), 100).unwrap();
        assert_eq!(serde_json::json!(patterns), case["expected"]["patterns_zero_based"], "{id}");
        let largest = |of: &dyn Fn(&DMatrix<f64>) -> f64| {
            patterns.iter().map(|pattern| of(&matrix.gram(pattern))).fold(0.0, f64::max)
        };
        let spectral = largest(&|gram| absolute::spectral(gram).unwrap());
        close(id, spectral, number("sens2_spectral_bound"), 1e-10);
        let scalar = largest(&|gram| absolute::maximum(gram, &mut absolute::MAX_CORNERS.clone()).unwrap().0);
        close(id, scalar, number("sens2_scalar_brute"), 1e-10);
        close(id, worst(&[(1.0, &matrix)], schedule).squared, number("sens2_abs_bound"), 1e-10);
        close(id, claim(&matrix, &schema, 1).squared, number("sens2_scalar_brute"), 1e-10);
        let equal = attained(&matrix, schedule, false).unwrap().by_equal_contributions();
        assert_eq!(equal, case["expected"]["gram_nonnegative"] == true || schedule.count() == 1, "{id}");
        checked += 1;
    }
    assert_eq!(checked, 5);
}

/// Appendix H.2: for records of dimension 2 the sensitivity exceeds that for scalars.
#[test]
fn scalar_bounds_are_not_used_for_vectors() {
    let entries = [2.0, 1.0, 1.0, 1.0, 2.0, -1.0, 1.0, -1.0, 2.0].map(|entry: f64| entry / 24_f64.sqrt());
    let matrix = DMatrix::from_row_slice(3, 3, &entries);
    let records = DMatrix::from_row_slice(3, 2, &[2.0, 1.0, 2.0, -1.0, 1.0, 2.0].map(|x| x / 5_f64.sqrt()));
    let reached = (&matrix * records).norm_squared();
    let matrix = Matrix::dense(matrix).unwrap();
    let [scalar, vector] = [1, 2].map(|dimension| claim(&matrix, "every-step", dimension));
    assert_eq!(scalar.kind, ClaimKind::ExactForScalars);
    close("scalar", scalar.squared, 1.0, 1e-12);
    close("reached", reached, 1.1, 1e-12);
    assert!(vector.squared >= reached);
    // The spectral bound is the least of 1.125, 1.5 and π/2, and not far above the sensitivity.
    assert_eq!(vector.kind, ClaimKind::UpperBound(SensitivityBound::Spectral));
    close("vector", vector.squared, 1.125, 1e-10);
}

/// Squared sensitivities in Table 1 of the paper, of restarted Honaker trees.
#[test]
fn sensitivities_agree_with_table_1() {
    let mut checked = 0;
    for case in &crate::reference::cases(include_str!("../../../../tests/vectors/memf_table1.json")) {
        let (input, number) = (&case["input"], |name: &str| case["input"][name].as_u64().unwrap() as usize);
        if !input["mechanism"].as_str().unwrap().starts_with("honaker") {
            continue;
        }
        let stamped = Matrix::stamped(completed_tree(number("n_block")), number("stamps")).unwrap();
        let expected = case["expected"]["sens2"].as_f64().unwrap();
        check_exact(case["id"].as_str().unwrap(), &stamped, "20x100", expected);
        checked += 1;
    }
    assert_eq!(checked, 5);
}

/// Losses divided by `‖A C⁻¹‖²_F` for prefix sums, n = 2000, (k, b) = (20, 100), computed
/// independently.
#[test]
fn losses_agree_with_published_values() {
    let loss = |coefficients: &[f64], schema: &str| {
        let matrix = toeplitz(coefficients, 2000);
        let inverse = series::product(&series::quotient(&[1.0], coefficients, 2000), &[1.0; 2000], 2000);
        let frobenius: f64 = (0..2000).map(|i| (2000 - i) as f64 * inverse[i] * inverse[i]).sum();
        let found = claim(&matrix, schema, 5);
        assert_eq!(found.kind, ClaimKind::Exact);
        found.squared * frobenius
    };
    for schema in ["20x100", "20x100+"] {
        let root = series::binomial(-0.5, 1.0, 2000);
        close("square root", loss(&root, schema), 1_872_296.3, 1e-7);
        let banded =
            [(200, 913_804.3), (100, 984_752.1), (64, 1_340_728.0), (32, 2_273_525.9), (16, 3_976_142.3)];
        for (bands, expected) in banded {
            close("banded square root", loss(&root[..bands], schema), expected, 1e-7);
        }
        let inverse_root = series::binomial(0.5, 1.0, 2000);
        let banded_inverse = [
            (128, 990_226.3),
            (64, 967_819.4),
            (32, 1_208_492.4),
            (16, 1_907_885.9),
            (8, 3_395_938.9),
            (2, 13_380_000.0),
        ];
        for (bands, expected) in banded_inverse {
            let coefficients = series::quotient(&[1.0], &inverse_root[..bands], 2000);
            close("banded inverse square root", loss(&coefficients, schema), expected, 1e-7);
        }
        close("identity", loss(&[1.0], schema), 40_020_000.0, 1e-10);
    }
}

/// Reference values from other libraries' tests. These count the steps between two participations:
/// their separation of 2 is a gap of 3.
#[test]
fn trees_have_their_known_sensitivities() {
    check_exact("once", &tree(8), "1x8+", 4.0);
    check_exact("three in nine", &tree(9), "3x4+", 11.0);
    check_exact("three in seven", &tree(7), "3x3+", 9.0);
    check_exact("eight in 24", &tree(24), "8x3+", 88.0);
    check_exact("adjacent", &tree(8), "2x1+", 2.0 + 4.0 * 3.0);
    check_exact("all of eight", &tree(8), "every-step", 120.0);
    for steps in [1_usize, 2, 3, 7, 12, 21] {
        let trees = (0..6).filter(|digit| steps >> digit & 1 == 1);
        let expected: usize = trees.map(|depth| (1 << depth) * ((1 << (depth + 1)) - 1)).sum();
        check_exact("all", &tree(steps), "every-step", expected as f64);
    }
}

#[test]
fn banded_and_diagonal_matrices_have_their_known_sensitivities() {
    let rows = [[1.0, 0.0, 0.0, 0.0], [2.0, 1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0, -6.0]];
    let banded = Matrix::dense(DMatrix::from_fn(4, 4, |row, column| rows[row][column])).unwrap();
    check_exact("banded", &banded, "1", 36.0);
    check_exact("banded", &banded, "4x2+", 41.0);
    check_exact("banded", &banded, "2x3+", 41.0);
    let diagonal = [0.0, 3.0, 0.0, 1.0, 2.0];
    let diagonal =
        Matrix::dense(DMatrix::from_diagonal(&nalgebra::DVector::from_row_slice(&diagonal))).unwrap();
    check_exact("diagonal", &diagonal, "9x2+", 13.0);
    check_exact("diagonal", &diagonal, "1", 9.0);
    let coefficients = [1.0, 0.9, -0.3, 0.2];
    let norms = toeplitz(&coefficients, 32).overlaps(0);
    let normalised = Matrix::scaled_toeplitz(
        coefficients.to_vec(),
        norms.iter().map(|norm| norm.sqrt().recip()).collect(),
    );
    let normalised = normalised.unwrap();
    check_exact("normalised", &normalised, "99x4+", 8.0);
    check_exact("normalised", &normalised, "6x4+", 6.0);
    check_exact("normalised", &normalised, "6x4", 6.0);
}

#[test]
fn the_identity_counts_participations() {
    for (gap, expected) in [(1, 5.0), (2, 3.0), (3, 2.0), (4, 2.0), (5, 1.0)] {
        check_exact("identity", &toeplitz(&[1.0], 5), &format!("9x{gap}+"), expected);
        check_exact("identity", &toeplitz(&[1.0], 5), &format!("9x{gap}"), expected);
    }
    check_exact("identity", &toeplitz(&[1.0], 1), "every-step", 1.0);
    // Sums over the rows of the leading columns of ones: 1, 2, 3, 3.
    check_exact("ones", &toeplitz(&[1.0; 4], 4), "3x1+", 1.0 + 4.0 + 9.0 + 9.0);
}

#[test]
fn coefficients_that_rise_again_are_majorised_or_searched() {
    let rising = [1.0, 0.5, 0.8];
    // Overlaps of 0.9 at lag 1 and of 0.8 at lag 2: neighbouring steps are the worst.
    check_exact("tried", &toeplitz(&rising, 6), "2x1+", 2.0 * 1.89 + 2.0 * (0.5 + 0.4));
    // A table of these overlaps would be too large, so they are bounded by those of [1, 0.8, 0.8].
    let many = claim(&toeplitz(&rising, 1 << 20), "1000x2+", 1);
    let larger = claim(&toeplitz(&[1.0, 0.8, 0.8], 1 << 20), "1000x2+", 1);
    assert_eq!(many.kind, ClaimKind::UpperBound(SensitivityBound::Majorised));
    assert_eq!(many.squared, larger.squared);
    assert_eq!(larger.kind, ClaimKind::Exact);
}

/// Compares tables, closed forms and bounds with the largest value over all patterns.
#[test]
fn separated_patterns_agree_with_a_search_through_all() {
    let root = series::binomial(-0.5, 1.0, 14);
    let norms = toeplitz(&root, 14).overlaps(0);
    let normalised = norms.iter().map(|norm| norm.sqrt().recip()).collect();
    let matrices = [
        toeplitz(&root, 14),
        toeplitz(&[1.0, 0.2, 0.9, 0.1, 0.7, 0.6], 14),
        toeplitz(&[1.0, -0.7, 0.4, -0.1, 0.7, -0.6], 14),
        Matrix::scaled_toeplitz(root.clone(), normalised).unwrap(),
        tree(14),
        Matrix::stamped(tree(7), 2).unwrap(),
        Matrix::stamped(toeplitz(&root, 3), 5).unwrap(),
    ];
    for (matrix, schema) in matrices
        .iter()
        .flat_map(|matrix| ["4x2+", "3x1+", "9x3+", "2x6+", "4x2", "5x1"].map(|schema| (matrix, schema)))
    {
        let schedule = schema.parse::<Participation>().unwrap().on(matrix.columns());
        let patterns = schedule.patterns(schedule.first_steps(), 1 << 14).unwrap();
        let sum =
            |pattern: &Vec<usize>| matrix.gram(pattern).iter().map(|overlap| overlap.abs()).sum::<f64>();
        let largest = patterns.iter().map(sum).fold(0.0, f64::max);
        let found = worst(&[(1.0, matrix)], schedule);
        let name = format!("{schema} of {matrix:?}: {found:?} against {largest}");
        assert!(found.squared >= largest * (1.0 - 1e-12) && found.squared <= largest * 1.3, "{name}");
        assert!(found.bound.is_some() || found.squared <= largest * (1.0 + 1e-11), "{name}");
        let claim = attained(matrix, schedule, true).unwrap().claim;
        assert!(
            claim.squared <= largest * (1.0 + 1e-10)
                && claim.kind != ClaimKind::UpperBound(SensitivityBound::Spectral)
        );
    }
}

#[test]
fn long_horizons_are_quick_and_consistent() {
    let steps = 1_000_000;
    let root = series::binomial(-0.5, 1.0, steps);
    let norms = toeplitz(&root, steps).overlaps(0);
    let scales: Vec<f64> = norms.iter().map(|norm| norm.sqrt().recip()).collect();
    let plain = toeplitz(&root, steps);
    let normalised = Matrix::scaled_toeplitz(root, scales).unwrap();
    for schema in ["1", "20x50000", "20x50000+", "20x100", "10000x100", "10000x100+", "every-step"] {
        assert_eq!(claim(&plain, schema, 7).kind, ClaimKind::Exact);
    }
    check_exact("once", &normalised, "1", 1.0);
    let fixed = claim(&normalised, "20x50000", 7);
    assert_eq!(fixed.kind, ClaimKind::Exact);
    let separated = claim(&normalised, "20x50000+", 7);
    assert!(separated.squared >= fixed.squared && separated.squared <= 1.3 * fixed.squared, "{separated:?}");
}

#[test]
fn refuses_records_without_coordinates() {
    let found = participation_sensitivity(&tree(3), Participation::Single, 0);
    assert_eq!(found.unwrap_err().name, "dimension");
}

const STEPS: usize = 7;

fn normalised(coefficients: Vec<f64>) -> Matrix {
    let norms = toeplitz(&coefficients, coefficients.len()).overlaps(0);
    Matrix::scaled_toeplitz(coefficients, norms.iter().map(|norm| norm.sqrt().recip()).collect()).unwrap()
}

fn random(rows: usize, columns: usize, seed: u64) -> Matrix {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    Matrix::dense(DMatrix::from_fn(rows, columns, |_, _| StandardNormal.sample(&mut random))).unwrap()
}

/// Strategies of all kinds: without overlaps, with overlaps above 0, with overlaps of both signs,
/// stamped, with more rows than steps.
pub(crate) fn strategies(steps: usize) -> Vec<Matrix> {
    let root = series::binomial(-0.5, 1.0, steps);
    vec![
        toeplitz(&[1.0], steps),
        toeplitz(&root, steps),
        toeplitz(&root[..2], steps),
        toeplitz(&[1.0, -0.6, 0.3, -0.4], steps),
        toeplitz(&[1.0, 0.3, 0.9, 0.2, 0.8], steps),
        normalised(root.clone()),
        tree(steps),
        random(steps, steps, 1),
        random(2 * steps, steps, 2),
        random(3, steps, 3),
    ]
}

pub(crate) const SCHEMAS: [&str; 8] = ["1", "2x3", "3x2", "4x1", "3x2+", "2x3+", "3x1+", "every-step"];

/// Returns the largest `‖C u‖²` found from one start.
fn climb(matrix: &Matrix, pattern: &[usize], mut u: DMatrix<f64>) -> f64 {
    let gram = matrix.gram(pattern);
    for _ in 0..40 {
        for i in 0..pattern.len() {
            let pull = gram.row(i) * &u - u.row(i) * gram[(i, i)];
            let norm = pull.norm();
            if norm > 1e-9 {
                u.set_row(i, &(pull / norm));
            }
        }
    }
    let change = |coordinate: usize| {
        let mut stream = vec![0.0; matrix.columns()];
        pattern.iter().enumerate().for_each(|(i, &step)| stream[step] = u[(i, coordinate)]);
        matrix.product(&stream).iter().map(|y| y * y).sum::<f64>()
    };
    (0..u.ncols()).map(change).sum()
}

#[test]
fn no_attack_exceeds_the_claim_and_attacks_attain_exact_claims() {
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let (mut exact, mut scalar, mut bounds) = (0, 0, 0);
    for (matrix, schema) in strategies(STEPS).iter().flat_map(|matrix| SCHEMAS.map(|schema| (matrix, schema)))
    {
        for dimension in [1, 2, 3] {
            let participation: Participation = schema.parse().unwrap();
            let claim = participation_sensitivity(matrix, participation, dimension).unwrap();
            let schedule = participation.on(STEPS);
            let mut largest = 0.0_f64;
            for pattern in schedule.patterns(schedule.first_steps(), 1000).unwrap() {
                for _ in 0..8 {
                    let u = DMatrix::<f64>::from_fn(pattern.len(), dimension, |_, _| {
                        StandardNormal.sample(&mut random)
                    });
                    let u = DMatrix::from_fn(pattern.len(), dimension, |i, j| u[(i, j)] / u.row(i).norm());
                    largest = largest.max(climb(matrix, &pattern, u));
                }
            }
            let case = format!("{schema}, dimension {dimension}: {largest} against {claim:?} of {matrix:?}");
            assert!(largest <= claim.squared * (1.0 + 1e-12), "exceeded: {case}");
            match claim.kind {
                ClaimKind::Exact => exact += 1,
                ClaimKind::ExactForScalars => scalar += 1,
                ClaimKind::UpperBound(_) => bounds += 1,
            }
            let bounded = matches!(claim.kind, ClaimKind::UpperBound(_));
            assert!(largest >= claim.squared * if bounded { 0.6 } else { 0.99 }, "not reached: {case}");
            assert!(dimension == 1 || claim.kind != ClaimKind::ExactForScalars, "{case}");
        }
    }
    assert!(exact > 150 && scalar > 5 && bounds > 5, "{exact} {scalar} {bounds}");
}

/// Buffers with oscillating coefficients, and a delay line if `delay`.
fn periodic(steps: u64, gap: u32, delay: bool) -> Buffered {
    let curve = |level: f64, phases: usize| PeriodicCurve {
        ends: (0..4).map(|knot| level + 0.4 * (2.0 * f64::from(knot)).sin()).collect(),
        phases: (0..phases).map(|phase| 0.5 * (3.0 * phase as f64).sin()).collect(),
    };
    let buffer = |decay, weight| PeriodicBuffer { decay: curve(decay, 2), weight: curve(weight, 1) };
    let periodic = PeriodicBuffers {
        gap,
        gain: curve(-0.7, gap as usize),
        buffers: vec![buffer(-0.5, -1.0), buffer(2.0, -1.5)],
        delay: delay.then(|| buffer(-0.3, -0.6)),
    };
    let parameters = BufferedParameters { horizon: Some(steps), buffers: Buffers::Periodic(periodic) };
    Buffered::new("comb-blt:2".parse().unwrap(), parameters).unwrap()
}

/// The columns of C as the encoder computes them for an input of 2⁶⁰, in units of 2⁻¹⁰⁰. Each entry
/// is exact to a few units, so the sums below are exact to 2⁻⁸⁰.
fn integer_columns(strategy: &Buffered, steps: usize) -> Vec<Vec<BigInt>> {
    let column = |i: usize| {
        let mut encoder = strategy.encoder(1);
        let entry = |t: usize| {
            let mut y = [0];
            encoder.encode(&[if t == i { 1 << 60 } else { 0 }], &mut y).unwrap();
            BigInt::from(y[0])
        };
        (0..steps).map(entry).collect()
    };
    (0..steps).map(column).collect()
}

/// Tests all patterns with all signs, in exact integers. None exceeds the claim, and if the claim
/// is exact, one attains it.
#[test]
fn no_pattern_of_periodic_buffers_exceeds_the_claim() {
    for (steps, gap, delay) in [(9, 3, false), (9, 3, true), (10, 2, true), (8, 4, true)] {
        let strategy = periodic(steps as u64, gap, delay);
        let (columns, matrix) = (integer_columns(&strategy, steps), strategy.matrix(steps as u64).unwrap());
        for participation in [format!("3x{gap}"), format!("4x{gap}+"), "2x1".into(), "every-step".into()] {
            let schedule = participation.parse::<Participation>().unwrap().on(steps);
            let (mut largest, mut absolute) = (0.0f64, 0.0f64);
            for pattern in schedule.patterns(schedule.first_steps(), 10_000).unwrap() {
                for signs in 0..1_u32 << (pattern.len() - 1) {
                    let row = |t: usize| -> BigInt {
                        let signed = |(number, &i): (usize, &usize)| match signs >> number & 1 {
                            0 => columns[i][t].clone(),
                            _ => -columns[i][t].clone(),
                        };
                        pattern.iter().enumerate().map(signed).sum()
                    };
                    let square: BigInt = (0..steps).map(row).map(|row| &row * &row).sum();
                    let square: i128 = (square >> 100u32).try_into().unwrap();
                    largest = largest.max(square as f64 * 0.5f64.powi(100));
                }
                absolute = absolute.max(matrix.gram(&pattern).iter().map(|overlap| overlap.abs()).sum());
            }
            let found = claim(&matrix, &participation, 3);
            let charged = found.squared * (1.0 + matrix.relative_discrepancy(schedule.count())).powi(2);
            assert!(charged >= largest, "{participation}: {found:?} against {largest}");
            // A flexible schedule has another upper bound.
            let bound = if schedule.is_flexible() { 1.2 } else { 1.0 + 1e-10 };
            assert!(found.squared <= absolute * bound, "{participation}: {found:?} against {absolute}");
            if found.kind == ClaimKind::Exact {
                close(&participation, found.squared, largest, 1e-10);
            }
        }
    }
}
