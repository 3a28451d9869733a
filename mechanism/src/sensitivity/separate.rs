//! Joint sensitivity when first and second moments have separate strategies C₁ ≠ C₂, without a
//! count.
//!
//! Let a_i, b_i be the norms of the i-th columns of C₁ and C₂, in any order, and
//! `ν_i = λζ²b_i²/a_i²`. A record that is blanked or replaced in place involves one column i, hence
//!
//! ```text
//! ZeroOut              sens² = max_i ζ²a_i²(1 + ν_i)
//! ReplaceOneInPlace    sens² = max_i ζ²a_i² r_d(ν_i)
//! ReplaceOne           sens² ≤ 4 max_i ζ²a_i²(1 + ν_i)
//! ```
//!
//! The second is Lemma 3.5 of "Continual Release Moment Estimation with Differential Privacy"
//! without its assumption that both norm sequences fall. The third is the triangle inequality: to
//! replace is to blank twice. It holds for any signs of the overlaps between columns. It is never
//! free: a record that moves between cells may have opposite first moments and orthogonal second
//! moments. With C₁ = C₂ that cannot happen, and
//! [`joint_sensitivity_squared`](super::joint_sensitivity_squared) is the sharper bound.

use super::{
    Neighbours, OutOfRange, at_least_one, free_second_weight, in_place::largest_second_weight, positive,
    replace_one_factor, rounded_up,
};

/// Norms of one column, above 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColumnNorms {
    /// a_i, of C₁, which carries the first moments.
    pub first: f64,
    /// b_i, of C₂, which carries the second moments.
    pub second: f64,
}

/// Returns the squared joint sensitivity of first and λ-weighted second moments through strategies
/// with these `columns`, in real units, rounded up. Valid for full and diagonal second moments.
///
/// # Errors
/// [`OutOfRange`] for a dimension of 0, no columns, numbers that are not above 0, and results
/// beyond the range of f64.
pub fn separate_sensitivity_squared(
    neighbours: Neighbours,
    dimension: usize,
    clip_norm: f64,
    second_moment_weight: f64,
    columns: &[ColumnNorms],
) -> Result<f64, OutOfRange> {
    check(dimension, clip_norm, columns)?;
    let root_weight = positive("second_moment_weight", second_moment_weight)?.sqrt();
    let of_column = |column: &ColumnNorms| {
        let nu = (root_weight * clip_norm * column.second / column.first).powi(2);
        let factor = match neighbours {
            Neighbours::ZeroOut => 1.0 + nu,
            Neighbours::ReplaceOneInPlace => replace_one_factor(dimension, nu),
            Neighbours::ReplaceOne => 4.0 * (1.0 + nu),
        };
        positive("squared joint sensitivity", rounded_up((clip_norm * column.first).powi(2) * factor))
    };
    columns.iter().try_fold(0.0_f64, |largest, column| Ok(largest.max(of_column(column)?)))
}

/// Returns λ* of the paper's Algorithm 1, `ν* max a² / (ζ² max b²)`: free when records are replaced
/// in place, for any columns.
///
/// # Errors
/// As [`separate_sensitivity_squared`].
pub fn algorithm_one_second_moment_weight(
    dimension: usize,
    clip_norm: f64,
    columns: &[ColumnNorms],
) -> Result<f64, OutOfRange> {
    check(dimension, clip_norm, columns)?;
    let longest = |norm: fn(&ColumnNorms) -> f64| columns.iter().map(norm).fold(0.0, f64::max);
    let ratio = longest(|column| column.first) / (clip_norm * longest(|column| column.second));
    positive("free second_moment_weight", free_second_weight(dimension) * ratio.powi(2))
}

/// Returns the largest λ that is free when records are replaced in place: the sensitivity stays
/// `2ζ max a`.
///
/// It is the least over i of `ν_i a_i²/(ζ²b_i²)`, where ν_i is the largest with
/// `a_i² r_d(ν_i) ≤ 4 max a²`. It exceeds [`algorithm_one_second_moment_weight`] when the longest
/// columns of C₁ and C₂ are not the same.
///
/// # Errors
/// As [`separate_sensitivity_squared`].
pub fn free_second_moment_weight(
    dimension: usize,
    clip_norm: f64,
    columns: &[ColumnNorms],
) -> Result<f64, OutOfRange> {
    check(dimension, clip_norm, columns)?;
    let longest = columns.iter().map(|column| column.first).fold(0.0, f64::max);
    let free = columns.iter().map(|column| {
        let factor = 4.0 * (longest / column.first).powi(2);
        largest_second_weight(dimension, factor) * (column.first / (clip_norm * column.second)).powi(2)
    });
    positive("free second_moment_weight", free.fold(f64::INFINITY, f64::min))
}

fn check(dimension: usize, clip_norm: f64, columns: &[ColumnNorms]) -> Result<(), OutOfRange> {
    at_least_one("dimension", dimension)?;
    at_least_one("number of columns", columns.len())?;
    positive("clip_norm", clip_norm)?;
    for column in columns {
        positive("column norm of the first strategy", column.first)?;
        positive("column norm of the second strategy", column.second)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{MomentWeights, joint_sensitivity_squared};
    use super::*;
    use crate::strategy::ColumnGeometry;
    use serde_json::Value;

    fn columns_of(input: &Value) -> Vec<ColumnNorms> {
        let norms = |name: &str| input[name].as_array().unwrap().iter().map(|norm| norm.as_f64().unwrap());
        norms("col_norms_c1")
            .zip(norms("col_norms_c2"))
            .map(|(first, second)| ColumnNorms { first, second })
            .collect()
    }

    #[test]
    fn agrees_with_the_reference_values() {
        let vectors: Value =
            serde_json::from_str(include_str!("../../../tests/vectors/jme_sensitivity.json")).unwrap();
        let cases = vectors["cases"].as_array().unwrap();
        assert_eq!(cases.len(), 10);
        for case in cases {
            let (input, columns) = (&case["input"], columns_of(&case["input"]));
            let dimension = input["d"].as_u64().unwrap() as usize;
            let clip_norm = input["zeta"].as_f64().unwrap();
            let weight = input["lambda"].as_f64().unwrap();
            let check = |found: Result<f64, OutOfRange>, name: &str| {
                let (found, expected) = (found.unwrap(), case["expected"][name].as_f64().unwrap());
                assert!((found / expected - 1.0).abs() <= 1e-12, "{} {name}: {found}", case["id"]);
            };
            let squared =
                |neighbours| separate_sensitivity_squared(neighbours, dimension, clip_norm, weight, &columns);
            check(squared(Neighbours::ReplaceOneInPlace), "sens2_replace");
            check(squared(Neighbours::ZeroOut), "sens2_zero_out");
            check(
                algorithm_one_second_moment_weight(dimension, clip_norm, &columns),
                "lambda_star_algorithm1",
            );
            check(free_second_moment_weight(dimension, clip_norm, &columns), "lambda_free_exact");
        }
    }

    #[test]
    fn one_strategy_for_both_is_the_shared_case() {
        let columns = [1.3, 1.1, 1.0].map(|norm| ColumnNorms { first: norm, second: norm });
        let geometry = ColumnGeometry::exact(1.3 * 1.3, 0.0);
        for (dimension, clip_norm, second) in [(1, 0.5, 4.0), (2, 3.0, 0.5), (5, 1.0, 2.0)] {
            let weight = second / (clip_norm * clip_norm);
            let weights = MomentWeights { second, count: 0.0 };
            let ratio = |neighbours| {
                separate_sensitivity_squared(neighbours, dimension, clip_norm, weight, &columns).unwrap()
                    / joint_sensitivity_squared(neighbours, dimension, geometry, weights).unwrap()
                    / (clip_norm * clip_norm)
            };
            assert!((ratio(Neighbours::ZeroOut) - 1.0).abs() < 1e-14);
            assert!((ratio(Neighbours::ReplaceOneInPlace) - 1.0).abs() < 1e-14);
            assert!(ratio(Neighbours::ReplaceOne) >= 1.0 && ratio(Neighbours::ReplaceOne) <= 2.0 + 1e-14);
        }
    }

    #[test]
    fn moving_between_cells_of_different_strategies_costs_more_than_in_place() {
        // Columns that are parallel in C₁ and orthogonal in C₂: moving x to −x costs (1 + 1)² + 2ν,
        // although ν = ½ is free in place.
        let columns = [ColumnNorms { first: 1.0, second: 1.0 }; 2];
        let squared = |neighbours| separate_sensitivity_squared(neighbours, 3, 1.0, 0.5, &columns).unwrap();
        assert!(squared(Neighbours::ReplaceOneInPlace) < 4.0 + 1e-12);
        assert!(squared(Neighbours::ReplaceOne) >= 5.0);
    }

    #[test]
    fn refuses_what_no_invertible_strategy_has() {
        let column = |first, second| ColumnNorms { first, second };
        let check = |dimension, clip_norm, weight, columns: &[ColumnNorms], name| {
            let found =
                separate_sensitivity_squared(Neighbours::ZeroOut, dimension, clip_norm, weight, columns);
            assert_eq!(found.unwrap_err().name, name);
        };
        let good = [column(1.0, 1.0)];
        check(0, 1.0, 1.0, &good, "dimension");
        check(2, 1.0, 1.0, &[], "number of columns");
        check(2, -1.0, 1.0, &good, "clip_norm");
        check(2, 1.0, f64::NAN, &good, "second_moment_weight");
        check(2, 1.0, 1.0, &[column(0.0, 1.0)], "column norm of the first strategy");
        check(2, 1.0, 1.0, &[column(1.0, f64::INFINITY)], "column norm of the second strategy");
        check(2, 1e-170, 1.0, &good, "squared joint sensitivity");
    }
}
