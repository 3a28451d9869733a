//! `max_π Σ_(i,j∈π) |X_ij|` over patterns with equal gaps.
//!
//! **Toeplitz: the pattern that starts first is the worst.** An entity may make the contributions
//! that start at step i from the first step on instead. Then `C u` is the same sequence, shifted i
//! steps earlier, and fewer of its entries fall behind the horizon. The same holds for `|C| u`.
//!
//! All other matrices: the overlaps at each lag are a diagonal of X, and a pattern's part in it is
//! a sum over a window of equally spaced entries. That costs k diagonals and O(n k log k) additions
//! for all patterns together.

use super::{SensitivityBound, Terms, WorstPattern};
use crate::{
    participation::ParticipationSchedule,
    strategy::{Matrix, matrix::dot},
};

/// Longest pattern for which overlaps of a Toeplitz matrix with negative coefficients are written
/// out.
const MAX_WRITTEN_OUT: usize = 1024;
/// Most entries of diagonals of scaled Toeplitz matrices that are computed.
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
pub(in super::super) fn only_first_pattern(matrices: &[&Matrix]) -> bool {
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
}
