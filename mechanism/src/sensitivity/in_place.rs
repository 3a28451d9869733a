//! Sensitivity factor r_d(ν) of a record replaced within its cell, its free threshold ν* and its
//! inverse.
//!
//! ```text
//! r_d(ν) = sup ‖x − y‖² + ν‖xxᵀ − yyᵀ‖²_F   over ‖x‖, ‖y‖ ≤ 1
//!        = 4                        ν ≤ ν*     attained by y = −x
//!        = (1 + 2ν)²/(2ν)           ν > ν* = ½,            d ≥ 2
//!        = ν(1 + τ)(3 − τ)³/16      ν > ν* = (11 + 5√5)/8, d = 1,   τ = √(1 − 2/ν)
//! ```
//!
//! Derivation of the values. d ≥ 2: unit vectors with `⟨x,y⟩ = t` give `2 − 2t + ν(2 − 2t²)`, which
//! is largest at `t = −1/(2ν)` once that exceeds −1. d = 1: x = 1 and y = −β give
//! `(1 + β)²(1 + ν(1 − β)²)`, which for large ν has its maximum inside the interval, at
//! `β = (1 − τ)/2`.
//!
//! No other pair does better: "Continual Release Moment Estimation with Differential Privacy",
//! Theorems A.1, A.2 and Lemma 3.5. Its Theorem 4.3 gives the same values for the diagonal. The
//! forms here equal the paper's `2 + 2ν + 1/(2ν)` and `(3 − τ)²(ντ + 1 + ν)/8`, with fewer
//! roundings.

/// Returns ν*: the largest relative weight ν at which second moments cost nothing when records are
/// replaced in place. ½ for `dimension` ≥ 2, (11 + 5√5)/8 ≈ 2.77 for dimension 1.
pub fn free_second_weight(dimension: usize) -> f64 {
    if dimension == 1 { (11.0 + 5.0 * 5_f64.sqrt()) / 8.0 } else { 0.5 }
}

/// Returns r_d(ν): the squared joint sensitivity of one record's first and ν-weighted second
/// moments, replaced in place, in the unit ball of `dimension` ≥ 1. Rounded to nearest, not up; NaN
/// for NaN.
pub fn replace_one_factor(dimension: usize, second_weight: f64) -> f64 {
    let nu = second_weight;
    if nu <= free_second_weight(dimension) {
        4.0
    } else if dimension == 1 {
        let tau = (1.0 - 2.0 / nu).sqrt();
        nu * (1.0 + tau) * (3.0 - tau).powi(3) / 16.0
    } else {
        let root = 1.0 + 2.0 * nu;
        root / (2.0 * nu) * root
    }
}

/// Inverse of [`replace_one_factor`]: returns the largest ν with r_d(ν) ≤ `factor`, for
/// `factor` ≥ 4.
///
/// d ≥ 2: the larger root of `(1 + 2ν)² = 2νR`. d = 1: with u = 1 − τ the equation reads
/// `u = (2 + u)³/(8R)`. Its smallest root is the limit of the iteration from 0, because the right
/// side is increasing, with slope at most 0.58 up to that root.
pub(crate) fn largest_second_weight(dimension: usize, factor: f64) -> f64 {
    if dimension == 1 {
        let u = (0..80).fold(0.0_f64, |u, _| (2.0 + u).powi(3) / (8.0 * factor));
        2.0 / (u * (2.0 - u))
    } else {
        (factor - 2.0 + (factor * (factor - 4.0)).sqrt()) / 4.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn agrees_with_the_reference_values() {
        let vectors: Value =
            serde_json::from_str(include_str!("../../../tests/vectors/jme_rd.json")).unwrap();
        let cases = vectors["cases"].as_array().unwrap();
        assert!(cases.len() > 50);
        for case in cases {
            let dimension = case["input"]["d"].as_u64().unwrap() as usize;
            let found = replace_one_factor(dimension, case["input"]["nu"].as_f64().unwrap());
            let expected = case["expected"]["r_d"].as_f64().unwrap();
            assert!((found / expected - 1.0).abs() <= 1e-13, "{}: {found}", case["id"]);
        }
    }

    #[test]
    fn grows_with_the_weight_and_starts_at_four() {
        for dimension in 1..4 {
            let values: Vec<_> =
                (0..2000).map(|i| replace_one_factor(dimension, 1e-3 * 1.01_f64.powi(i))).collect();
            assert!(values.is_sorted());
            assert_eq!(values[0], 4.0);
            assert_eq!(replace_one_factor(dimension, free_second_weight(dimension)), 4.0);
            assert!(replace_one_factor(dimension, f64::NAN).is_nan());
        }
    }

    #[test]
    fn inverse_undoes_the_factor() {
        for dimension in 1..4 {
            let threshold = free_second_weight(dimension);
            assert!((largest_second_weight(dimension, 4.0) / threshold - 1.0).abs() < 1e-14);
            for weight in [1.2, 2.0, 17.0, 1e6].map(|multiple| multiple * threshold) {
                let found = largest_second_weight(dimension, replace_one_factor(dimension, weight));
                assert!((found / weight - 1.0).abs() < 1e-13, "dimension {dimension}: {found} for {weight}");
            }
        }
    }
}
