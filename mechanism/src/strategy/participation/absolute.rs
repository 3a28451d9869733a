//! `max_π Σ_(i,j∈π) |X_ij|` over patterns with equal gaps.
//!
//! **Toeplitz: the pattern that starts first is the worst.** An entity may make the contributions
//! that start at step i from the first step on instead. Then `C u` is the same sequence, shifted i
//! steps earlier, and fewer of its entries fall behind the horizon. The same holds for `|C| u`.
//!
//! All other matrices: the overlaps at each lag are a diagonal of X, and a pattern's part in it is
//! a sum over a window of equally spaced entries. That costs k diagonals and O(n k log k) additions
//! for all patterns together.
//!
//! # Signs
//! The worst signs of scalar contributions for one pattern with overlaps of both signs, and an
//! upper bound for vectors.

use super::{SensitivityBound, Terms, WorstPattern};
use crate::participation::ParticipationSchedule;
use crate::range::rounded_up;
use crate::strategy::Matrix;
use crate::strategy::matrix::{OVERLAP_ERROR, dot};
use nalgebra::DMatrix;

/// Longest pattern for which overlaps of a Toeplitz matrix with negative coefficients are written
/// out.
const MAX_WRITTEN_OUT: usize = 1024;
/// Maximum number of entries of diagonals of scaled Toeplitz matrices that are computed.
const MAX_ENTRIES: usize = 1 << 32;

pub(super) fn worst(terms: &Terms<'_>, schedule: ParticipationSchedule) -> WorstPattern {
    let matrices: Vec<_> = terms.iter().map(|(_, matrix)| *matrix).collect();
    if only_first_pattern(&matrices) {
        return first_pattern(terms, schedule);
    }
    let lags = schedule.count().min(reach(terms) / schedule.gap() + 1);
    if lags.saturating_mul(schedule.horizon()) > MAX_ENTRIES
        && let Some(bound) = majorised(terms, schedule, |coefficients| coefficients)
    {
        return bound;
    }
    let sums = pattern_sums(terms, schedule, lags);
    let start = (0..sums.len()).max_by(|&i, &j| sums[i].total_cmp(&sums[j])).unwrap_or(0);
    WorstPattern { squared: sums[start], pattern: schedule.pattern(start), bound: None }
}

/// Returns whether the pattern that starts first is the worst of all with equal gaps.
pub(crate) fn only_first_pattern(matrices: &[&Matrix]) -> bool {
    matrices.iter().all(|matrix| matrix.as_toeplitz().is_some_and(|(_, scales)| scales.is_none()))
}

pub(super) fn reach(terms: &Terms<'_>) -> usize {
    terms.iter().map(|(_, matrix)| matrix.reach()).max().unwrap_or(0)
}

/// Returns the sum over the pattern from the first step on, for Toeplitz matrices.
pub(super) fn first_pattern(terms: &Terms<'_>, schedule: ParticipationSchedule) -> WorstPattern {
    let pattern = schedule.pattern(0);
    let written_out = |matrix: &Matrix| !matrix.is_nonnegative() && pattern.len() <= MAX_WRITTEN_OUT;
    let of_one = |matrix: &Matrix| match matrix.as_toeplitz() {
        Some((coefficients, _)) if !written_out(matrix) => magnitudes(coefficients, schedule),
        _ => matrix.gram(&pattern).iter().map(|overlap| overlap.abs()).sum(),
    };
    let squared = terms.iter().map(|(weight, matrix)| weight * of_one(matrix)).sum();
    let apart = |matrix: &Matrix| matrix.reach() < schedule.gap();
    let tight =
        terms.iter().all(|(_, matrix)| matrix.is_nonnegative() || apart(matrix) || written_out(matrix));
    WorstPattern { squared, pattern, bound: (!tight).then_some(SensitivityBound::Majorised) }
}

/// Returns `‖|C| 1_π‖²` for the pattern from the first step on, in O(n log k).
fn magnitudes(coefficients: &[f64], schedule: ParticipationSchedule) -> f64 {
    // In reverse order, a column is summed over windows that end at each step.
    let mut column: Vec<f64> = coefficients.iter().map(|c| c.abs()).collect();
    column.resize(schedule.horizon(), 0.0);
    column.reverse();
    let sums = window_sums(column, schedule.gap(), schedule.count());
    dot(&sums, &sums)
}

/// Returns a bound by Toeplitz matrices whose coefficients are `of` the absolute ones, with the
/// largest scale for all columns: the first pattern is then the worst. `None` if a matrix has
/// another form.
pub(super) fn majorised(
    terms: &Terms<'_>,
    schedule: ParticipationSchedule,
    of: impl Fn(Vec<f64>) -> Vec<f64>,
) -> Option<WorstPattern> {
    let of_one = |(weight, matrix): &(f64, &Matrix)| {
        let (coefficients, scales) = matrix.as_toeplitz()?;
        let largest = scales.map_or(1.0, |scales| scales.iter().fold(0.0_f64, |max, s| max.max(s.abs())));
        let absolute = coefficients.iter().map(|c| c.abs()).collect();
        Some(weight * largest * largest * magnitudes(&of(absolute), schedule))
    };
    let squared = terms.iter().map(of_one).sum::<Option<f64>>()?;
    Some(WorstPattern { squared, pattern: schedule.pattern(0), bound: Some(SensitivityBound::Majorised) })
}

/// Returns `Σ_(i,j∈π) |X_ij|` for the pattern from each start on, from the overlaps at `lags`
/// multiples of the gap.
fn pattern_sums(terms: &Terms<'_>, schedule: ParticipationSchedule, lags: usize) -> Vec<f64> {
    let mut sums = vec![0.0; schedule.starts().len()];
    for lag in 0..lags {
        let diagonal = absolute_overlaps(terms, lag * schedule.gap());
        let windows = window_sums(diagonal, schedule.gap(), schedule.count() - lag);
        let twice = if lag == 0 { 1.0 } else { 2.0 };
        sums.iter_mut().zip(windows).for_each(|(sum, window)| *sum += twice * window);
    }
    sums
}

/// Returns `Σ w |X_(i, i+lag)|` for all i.
pub(super) fn absolute_overlaps(terms: &Terms<'_>, lag: usize) -> Vec<f64> {
    let weighted = |(weight, matrix): &(f64, &Matrix)| -> Vec<f64> {
        matrix.overlaps(lag).into_iter().map(|overlap| weight * overlap.abs()).collect()
    };
    let added = |mut sum: Vec<f64>, other: Vec<f64>| {
        sum.iter_mut().zip(other).for_each(|(sum, value)| *sum += value);
        sum
    };
    terms.iter().map(weighted).reduce(added).unwrap_or_default()
}

/// Returns `Σ_(a<count) v_(i + a·stride)` for all i, where entries beyond the end are 0. Windows of
/// 1, 2, 4, … entries are combined by the binary digits of `count`. Nothing is subtracted, so no
/// digits are lost.
fn window_sums(mut powers: Vec<f64>, stride: usize, count: usize) -> Vec<f64> {
    let mut sums = vec![0.0; powers.len()];
    let (mut covered, mut length) = (0, 1);
    while covered < count && covered * stride < sums.len() {
        if count & length != 0 {
            sums.iter_mut().zip(&powers[covered * stride..]).for_each(|(sum, power)| *sum += power);
            covered += length;
        }
        for i in length * stride..powers.len() {
            powers[i - length * stride] += powers[i];
        }
        length *= 2;
    }
    sums
}

/// Maximum number of sign patterns that are tried for one sensitivity.
pub(super) const MAX_CORNERS: usize = 1 << 22;

/// Longest pattern whose signs are all tried.
const MAX_STEPS: usize = 16;

/// Returns signs s with `s_i s_j X_ij ≥ 0` for all i, j, if there are any. Entries within their
/// rounding error of 0 have no sign.
///
/// Signs spread along the entries that have one: each entry fixes one sign by another. The first
/// sign of a connected part is arbitrary.
pub(super) fn balancing(gram: &DMatrix<f64>) -> Option<Vec<f64>> {
    let steps = gram.nrows();
    let sign = |i: usize, j: usize| {
        let error = 2.0 * OVERLAP_ERROR * (gram[(i, i)] * gram[(j, j)]).sqrt();
        if gram[(i, j)].abs() <= error { 0.0 } else { gram[(i, j)].signum() }
    };
    let mut signs = vec![0.0; steps];
    for first in 0..steps {
        if signs[first] != 0.0 {
            continue;
        }
        signs[first] = 1.0;
        let mut open = vec![first];
        while let Some(i) = open.pop() {
            for j in 0..steps {
                let wanted = signs[i] * sign(i, j);
                if wanted != 0.0 && signs[j] == 0.0 {
                    signs[j] = wanted;
                    open.push(j);
                } else if wanted * signs[j] < 0.0 {
                    return None;
                }
            }
        }
    }
    Some(signs)
}

/// Returns `max_s sᵀX s` over signs s, and the signs, by trying all of them. The first sign is +,
/// and each trial differs from the last in one index (Gray code). `None` for long patterns and when
/// `corners` are used up.
pub(super) fn maximum(gram: &DMatrix<f64>, corners: &mut usize) -> Option<(f64, Vec<f64>)> {
    let steps = gram.nrows();
    let tried = 1 << (steps.clamp(1, MAX_STEPS) - 1);
    if steps > MAX_STEPS || tried > *corners {
        return None;
    }
    *corners -= tried;
    let mut signs = vec![1.0; steps];
    let mut products: Vec<f64> = gram.column_iter().map(|column| column.sum()).collect();
    let mut value = gram.sum();
    let mut best = (value, signs.clone());
    for code in 1..tried {
        let turned = code.trailing_zeros() as usize + 1;
        value += 4.0 * (gram[(turned, turned)] - signs[turned] * products[turned]);
        signs[turned] = -signs[turned];
        let step = 2.0 * signs[turned];
        products.iter_mut().zip(gram.column(turned).iter()).for_each(|(sum, overlap)| *sum += step * overlap);
        if value > best.0 {
            best = (value, signs.clone());
        }
    }
    // Recomputed, without the roundings of the incremental updates.
    let s = nalgebra::DVector::from_vec(best.1);
    Some((s.dot(&(gram * &s)), s.as_slice().to_vec()))
}

/// Longest pattern whose overlaps are decomposed.
const MAX_DECOMPOSED: usize = 256;

/// Returns `k·λ_max(X)`, rounded up; `None` for long patterns.
///
/// Computed eigenvalues and vectors are not trusted: with `X = QΛQᵀ + R` for any Q,
/// `λ_max(X) ≤ λ_max(Λ)·‖Q‖₂² + ‖R‖_F` and `‖Q‖₂² ≤ 1 + ‖QᵀQ − I‖_F`.
pub(super) fn spectral(gram: &DMatrix<f64>) -> Option<f64> {
    let steps = gram.nrows();
    if steps > MAX_DECOMPOSED {
        return None;
    }
    let eigen = gram.clone().symmetric_eigen();
    let basis = &eigen.eigenvectors;
    let rest = gram - basis * DMatrix::from_diagonal(&eigen.eigenvalues) * basis.transpose();
    let skew = (basis.transpose() * basis - DMatrix::identity(steps, steps)).norm();
    let rounding = 256.0 * f64::EPSILON * steps as f64 * gram.trace();
    Some(rounded_up(steps as f64 * (eigen.eigenvalues.max() * (1.0 + skew) + rest.norm() + rounding)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_summed() {
        let values: Vec<f64> = (0..23).map(|i| f64::from(i * i % 17)).collect();
        for (stride, count) in [(1, 1), (1, 5), (2, 3), (3, 8), (5, 2), (7, 100), (30, 4), (1, 23)] {
            let direct =
                (0..23).map(|i| (0..count).map(|a| values.get(i + a * stride).unwrap_or(&0.0)).sum::<f64>());
            assert_eq!(window_sums(values.clone(), stride, count), direct.collect::<Vec<f64>>());
        }
    }

    fn gram(rows: usize, seed: u64) -> DMatrix<f64> {
        let entry = |i: usize, j: usize| {
            ((i as u64 * 7919 + j as u64 * 104_729 + seed * 31) * 2_654_435_761 % 1000) as f64 / 500.0 - 1.0
        };
        let c = DMatrix::from_fn(rows + 2, rows, entry);
        c.transpose() * c
    }

    #[test]
    fn all_signs_are_tried() {
        for (steps, seed) in [(1, 1), (2, 2), (3, 3), (5, 4), (8, 5)] {
            let gram = gram(steps, seed);
            let sign = |mask: usize, i: usize| if mask >> i & 1 == 1 { -1.0 } else { 1.0 };
            let value = |mask: usize| -> f64 {
                let pairs = (0..steps).flat_map(|i| (0..steps).map(move |j| (i, j)));
                pairs.map(|(i, j)| sign(mask, i) * sign(mask, j) * gram[(i, j)]).sum()
            };
            let largest = (0..1 << steps).map(value).fold(0.0, f64::max);
            let (found, signs) = maximum(&gram, &mut MAX_CORNERS.clone()).unwrap();
            assert!((found - largest).abs() < 1e-12 * largest, "{steps}: {found}, {largest}");
            let mask = (0..steps).filter(|&i| signs[i] < 0.0).map(|i| 1 << i).sum();
            assert!((value(mask) - largest).abs() < 1e-12 * largest);
        }
        assert_eq!(maximum(&gram(4, 1), &mut 7), None);
        assert_eq!(maximum(&gram(17, 1), &mut MAX_CORNERS.clone()), None);
    }

    #[test]
    fn signs_are_found_where_there_are_any() {
        for seed in 0..40 {
            let gram = gram(4, seed);
            let (largest, _) = maximum(&gram, &mut MAX_CORNERS.clone()).unwrap();
            let absolute: f64 = gram.iter().map(|overlap| overlap.abs()).sum();
            assert_eq!(balancing(&gram).is_some(), absolute - largest < 1e-9, "{seed}");
        }
        let noise = DMatrix::from_row_slice(3, 3, &[1.0, 0.5, 1e-16, 0.5, 1.0, -1e-16, 1e-16, -1e-16, 1.0]);
        assert_eq!(balancing(&noise), Some(vec![1.0, 1.0, 1.0]));
    }

    #[test]
    fn the_spectral_bound_is_close_and_never_below() {
        for seed in 0..20 {
            let gram = gram(6, seed);
            let exact = 6.0 * gram.symmetric_eigenvalues().max();
            let found = spectral(&gram).unwrap();
            assert!(found >= exact && found <= exact * (1.0 + 1e-10));
        }
    }
}
