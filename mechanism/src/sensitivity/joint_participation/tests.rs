//! Joint sensitivities under participation against reference values, and against those of single
//! participations.

use super::*;
use crate::sensitivity::{BatchQuery, TrainingBatch, batch_participation_sensitivity};
use nalgebra::DMatrix;
use serde_json::Value;

const ALL_NEIGHBOURS: [Neighbours; 3] =
    [Neighbours::ReplaceOne, Neighbours::ReplaceOneInPlace, Neighbours::ZeroOut];

fn dense(rows: &Value) -> Matrix {
    let rows: Vec<Vec<f64>> = serde_json::from_value(rows.clone()).unwrap();
    Matrix::dense(DMatrix::from_fn(rows.len(), rows[0].len(), |row, column| rows[row][column])).unwrap()
}

fn toeplitz(coefficients: &[f64], steps: usize) -> Matrix {
    Matrix::toeplitz(coefficients.to_vec(), steps).unwrap()
}

#[test]
fn agrees_with_the_reference_values() {
    let cases =
        &crate::reference::cases(include_str!("../../../../tests/vectors/jme_multi_participation.json"));
    assert_eq!(cases.len(), 8);
    for case in cases {
        let input = |name: &str| case["input"][name].as_f64().unwrap();
        let (first, second) = (dense(&case["input"]["c1"]), dense(&case["input"]["c2"]));
        let strategies = MomentStrategies::separate(&first, &second).unwrap();
        let participation = format!("{}x{}", input("k"), input("b")).parse().unwrap();
        let (dimension, unit) = (input("d") as usize, input("zeta").powi(2));
        let close = |found: f64, name: &str, relative: f64| {
            let expected = case["expected"][name].as_f64().unwrap();
            assert!((found / expected - 1.0).abs() <= relative, "{} {name}: {found}", case["id"]);
        };
        let weights = MomentWeights { second: input("lambda") * unit, count: 0.0 };
        let joint = |neighbours, weights| {
            joint_participation_sensitivity(neighbours, dimension, strategies, participation, weights)
        };
        let squared = |neighbours, weights| unit * joint(neighbours, weights).unwrap().squared;
        close(squared(Neighbours::ReplaceOneInPlace, weights), "sens2_replace_bound", 1e-11);
        close(squared(Neighbours::ZeroOut, weights), "sens2_zero_out", 1e-11);
        let nothing = MomentWeights { second: 0.0, count: 0.0 };
        close(squared(Neighbours::ReplaceOneInPlace, nothing), "first_moment_sens2_replace", 1e-11);
        assert_eq!(joint(Neighbours::ZeroOut, weights).unwrap().kind, ClaimKind::Exact);
        let batch = TrainingBatch { query: BatchQuery::SquareOfMean, size: 4 };
        let of_batch = |neighbours| {
            let found = batch_participation_sensitivity(
                batch,
                neighbours,
                dimension,
                strategies,
                participation,
                weights.second,
            );
            assert_eq!(found.as_ref().unwrap().kind, ClaimKind::Exact);
            unit * found.unwrap().squared
        };
        close(of_batch(Neighbours::ReplaceOneInPlace), "batch_mean_m4_sens2_replace", 1e-11);
        close(of_batch(Neighbours::ZeroOut), "batch_mean_m4_sens2_zero_out", 1e-11);
        let schedule = strategies.on(participation);
        let sums = row_sums(strategies, schedule).unwrap();
        let ratios = sums.iter().flat_map(|(sums, _)| sums).map(|[first, second]| first / second);
        let sufficient = free_second_weight(dimension) * ratios.fold(f64::INFINITY, f64::min) / unit;
        close(sufficient, "lambda_free_sufficient", 1e-11);
        // The reference allows an error of 1e-14. r_d leaves 4 with slope 0 for d ≥ 2, so the free
        // weight differs by the root of that error.
        let free = free_second_weight_under_participation(dimension, strategies, participation).unwrap();
        close(free / unit, "lambda_free_of_bound", 1e-6);
        assert!(free >= sufficient * unit * (1.0 - 1e-12));
        let excess = |weight: f64| {
            let bound = |weight: f64| {
                sums.iter().map(|(sums, _)| in_place_bound(dimension, weight, sums)).fold(0.0, f64::max)
            };
            bound(weight) / bound(0.0) - 1.0
        };
        assert_eq!(excess(free), 0.0);
        assert!(excess(free * (1.0 + 1e-6)) > 0.0);
        let reference = case["expected"]["lambda_free_of_bound"].as_f64().unwrap();
        assert!(excess(reference * unit).abs() <= 2e-14, "{}", excess(reference * unit));
    }
}

#[test]
fn one_participation_has_the_joint_sensitivity() {
    for coefficients in [vec![1.0], vec![1.0, 0.5, 0.375], vec![1.0, -0.9, 0.3], vec![1.0, 0.2, -0.5]] {
        let matrix = toeplitz(&coefficients, 6);
        let geometry = ColumnGeometry::exact(matrix.overlap(0, 0), matrix.negative_overlap().unwrap());
        for (neighbours, dimension) in
            ALL_NEIGHBOURS.into_iter().flat_map(|neighbours| [(neighbours, 1), (neighbours, 3)])
        {
            for (second, count) in [(0.5, 0.5), (0.2, 0.0), (2.77, 0.1), (6.0, 1.0), (0.0, 0.0)] {
                let weights = MomentWeights { second, count };
                let before = joint_sensitivity_squared(neighbours, dimension, geometry, weights).unwrap();
                for schema in ["1", "1x4", "9x6"] {
                    let strategies = MomentStrategies::shared(&matrix);
                    let schema = schema.parse().unwrap();
                    let now =
                        joint_participation_sensitivity(neighbours, dimension, strategies, schema, weights);
                    let now = now.unwrap();
                    assert!((now.squared / before - 1.0).abs() < 1e-12, "{neighbours} {now:?} {before}");
                    assert!(now.squared >= before * (1.0 - 1e-15));
                }
            }
        }
    }
}

#[test]
fn defaults_are_free_under_participation() {
    let root = crate::series::binomial(-0.5, 1.0, 200);
    let matrix = toeplitz(&root, 200);
    let strategies = MomentStrategies::shared(&matrix);
    for schema in ["5x20", "5x20+", "every-step"] {
        let schema = schema.parse().unwrap();
        let first = crate::sensitivity::participation_sensitivity(&matrix, schema, 4).unwrap().squared;
        for neighbours in [Neighbours::ReplaceOne, Neighbours::ReplaceOneInPlace] {
            let weights = MomentWeights::default_for(neighbours, 4);
            let claim = joint_participation_sensitivity(neighbours, 4, strategies, schema, weights).unwrap();
            assert!((claim.squared / (4.0 * first) - 1.0).abs() < 1e-12);
            assert_eq!(claim.kind, ClaimKind::Exact);
        }
    }
}

/// For equal but separate strategies, the two-strategy bounds are never below the one-strategy
/// bounds, nor far above.
#[test]
fn two_strategies_agree_with_one_where_they_are_equal() {
    let matrix = toeplitz(&[1.0, 0.6, 0.4, 0.1], 9);
    let other = Matrix::dense(DMatrix::from_fn(9, 9, |row, column| {
        row.checked_sub(column).and_then(|lag| [1.0, 0.6, 0.4, 0.1].get(lag).copied()).unwrap_or(0.0)
    }));
    let other = other.unwrap();
    let strategies =
        [MomentStrategies::shared(&matrix), MomentStrategies::separate(&matrix, &other).unwrap()];
    for (neighbours, schema) in
        ALL_NEIGHBOURS.into_iter().flat_map(|n| ["3x2", "3x2+", "1"].map(|schema| (n, schema)))
    {
        for (second, count) in [(0.5, 0.5), (2.0, 0.0)] {
            let [one, two] = strategies.map(|strategies| {
                let weights = MomentWeights { second, count };
                joint_participation_sensitivity(neighbours, 2, strategies, schema.parse().unwrap(), weights)
                    .unwrap()
                    .squared
            });
            let most = if neighbours == Neighbours::ReplaceOne { 2.0 } else { 1.0 };
            assert!(two >= one * (1.0 - 1e-12) && two <= one * most * (1.0 + 1e-12), "{neighbours} {schema}");
        }
    }
}

#[test]
fn invalid_arguments_are_refused_with_a_reason() {
    let (three, four) = (toeplitz(&[1.0], 3), toeplitz(&[1.0], 4));
    assert!(
        MomentStrategies::separate(&three, &four).unwrap_err().to_string().contains("4.0, expected as many")
    );
    let check = |dimension, second, count, name| {
        let weights = MomentWeights { second, count };
        let shared = MomentStrategies::shared(&three);
        let found = joint_participation_sensitivity(
            Neighbours::ZeroOut,
            dimension,
            shared,
            Participation::Single,
            weights,
        );
        assert_eq!(found.unwrap_err().name, name);
    };
    check(0, 0.5, 0.5, "dimension");
    check(1, -0.5, 0.5, "relative weight of second moments");
    check(1, 0.5, f64::NAN, "relative weight of the count");
    check(1, 1e308, 1e308, "squared joint sensitivity");
}
