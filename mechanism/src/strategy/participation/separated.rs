//! `max_π Σ_(i,j∈π) |X_ij|` over patterns with gaps of at least b, or an upper bound of it.
//!
//! **Toeplitz with non-negative, non-increasing coefficients: steps 0, b, 2b, … are the worst**
//! (Kalinin & Lampert 2024, "Banded Square Root Matrix Factorization for Differentially Private
//! Model Training", Theorem 2). For i ≤ j, `X_ij = Σ_(l<n−j) c_l c_(l+j−i)` increases neither in j
//! nor in the distance j − i. In a pattern `p_0 < p_1 < …` with gaps of at least b, `p_j ≥ jb` and
//! `p_j − p_i ≥ (j−i)b`. So no overlap exceeds that of steps ib and jb.
//!
//! **No overlaps at lags of b or more** (at most b bands): the sum is one of squared column norms,
//! and dynamic programming is exact.
//!
//! **All others**: with `P_m(p)` an upper bound of `Σ_q |X_qp|` over at most m steps q that are at
//! least b apart from each other and end at least b before p,
//!
//! ```text
//! Σ_(i,j∈π) |X_ij| = Σ_m (X_(p_m p_m) + 2 Σ_(l<m) |X_(p_l p_m)|)
//!                  ≤ Σ_m (X_(p_m p_m) + 2 P_m(p_m)),   m = 0, 1, …
//! ```
//!
//! Dynamic programming finds the maximum of the right side in O(n k). In both cases above there is
//! equality. P_m comes from its own dynamic program over the earlier steps (O(n² k)). If that is
//! too expensive, P_m comes from overlaps at their least lag. The d-th step before p is at least db
//! earlier, so with majorised coefficients `|X_qp| ≤ |s_p|·G(db, n−p)·max_(q ≤ p−db) |s_q|` (O(n
//! k)).
//!
//! The bound is attained if the pattern that it comes from has that sum; the code checks this.

use super::{
    SensitivityBound, Terms, WorstPattern,
    absolute::{absolute_overlaps, first_pattern, majorised, only_first_pattern, reach},
};
use crate::{participation::ParticipationSchedule, strategy::Matrix};

/// Maximum number of entries in a table of partners, and in one of overlaps.
const MAX_TABLE: usize = 1 << 25;
/// Maximum number of additions in building a table of partners.
const MAX_ADDITIONS: usize = 1 << 32;
/// Longest pattern whose sum is checked.
const MAX_LOOKED_UP: usize = 1024;

pub(super) fn worst(terms: &Terms<'_>, schedule: ParticipationSchedule) -> WorstPattern {
    if equal_gaps_are_worst(terms, schedule) {
        return first_pattern(terms, schedule);
    }
    let steps = schedule.horizon();
    let affordable = steps.saturating_mul(schedule.count()) <= MAX_TABLE;
    let partners = affordable.then(|| partners(terms, schedule)).flatten();
    let chained = partners.map(|partners| chained(terms, schedule, &partners));
    let majorised = majorised(terms, schedule, not_increasing);
    let bounds = [chained, majorised].into_iter().flatten();
    bounds.min_by(|a, b| a.squared.total_cmp(&b.squared)).unwrap_or_else(|| by_column_norms(terms, schedule))
}

fn equal_gaps_are_worst(terms: &Terms<'_>, schedule: ParticipationSchedule) -> bool {
    let falls = |matrix: &Matrix| {
        matrix.is_nonnegative() && matrix.as_toeplitz().is_some_and(|(c, _)| c.is_sorted_by(|a, b| a >= b))
    };
    let good = |matrix: &Matrix| matrix.reach() < schedule.gap() || falls(matrix);
    terms.iter().all(|(_, matrix)| only_first_pattern(&[matrix]) && good(matrix))
}

/// Returns the least non-increasing coefficients that are at least the given ones.
fn not_increasing(mut least: Vec<f64>) -> Vec<f64> {
    for i in (1..least.len()).rev() {
        least[i - 1] = least[i - 1].max(least[i]);
    }
    least
}

/// Returns `(k max ‖c_i‖)²`: bounds overlaps by the Cauchy-Schwarz inequality.
fn by_column_norms(terms: &Terms<'_>, schedule: ParticipationSchedule) -> WorstPattern {
    let longest = absolute_overlaps(terms, 0).into_iter().fold(0.0, f64::max);
    let squared = longest * (schedule.count() as f64).powi(2);
    WorstPattern { squared, pattern: schedule.pattern(0), bound: Some(SensitivityBound::ColumnNorms) }
}

/// Returns P_1, P_2, …, P_(k−1), each for all steps.
fn partners(terms: &Terms<'_>, schedule: ParticipationSchedule) -> Option<Vec<Vec<f64>>> {
    let (steps, gap, layers) = (schedule.horizon(), schedule.gap(), schedule.count() - 1);
    partners_of(terms, steps, gap, layers).or_else(|| partners_at_least_lags(terms, steps, gap, layers))
}

fn partners_of(terms: &Terms<'_>, steps: usize, gap: usize, layers: usize) -> Option<Vec<Vec<f64>>> {
    if let Some((blocks, width)) = common_blocks(terms) {
        let of_block = partners_of(&blocks, width, gap, layers)?;
        return Some(of_block.into_iter().map(|layer| layer.repeat(steps / width)).collect());
    }
    let reach = reach(terms);
    let lags = (reach + 1).saturating_sub(gap);
    let rows = terms.iter().map(|(_, matrix)| if matrix.as_toeplitz().is_some() { 1 } else { matrix.rows() });
    let work = steps.saturating_mul(lags).saturating_mul(layers.max(rows.max().unwrap_or(1)));
    if steps.saturating_mul(lags) > MAX_TABLE || work > MAX_ADDITIONS {
        return None;
    }
    let diagonals: Vec<_> = (gap..gap + lags).map(|lag| absolute_overlaps(terms, lag)).collect();
    let mut table = vec![vec![0.0; steps]; layers];
    for step in gap..steps {
        let earliest = step.saturating_sub(reach);
        let row: Vec<f64> =
            (earliest..=step - gap).map(|earlier| diagonals[step - earlier - gap][earlier]).collect();
        let mut sums = Vec::new();
        for layer in &mut table {
            sums = extended(&row, gap, &sums);
            layer[step] = sums.last().copied().unwrap_or(0.0);
        }
    }
    Some(table)
}

/// Takes the largest sums of at most m entries of a row that are at least `gap` apart and end at
/// each index or before. Returns those of at most m + 1 entries.
fn extended(row: &[f64], gap: usize, sums: &[f64]) -> Vec<f64> {
    let before = |position: usize| position.checked_sub(gap).and_then(|end| sums.get(end)).unwrap_or(&0.0);
    let mut largest = 0.0_f64;
    let position = |(position, value): (usize, &f64)| {
        largest = largest.max(value + before(position));
        largest
    };
    row.iter().enumerate().map(position).collect()
}

/// Returns the blocks of stamped matrices that all have the same width.
fn common_blocks<'a>(terms: &Terms<'a>) -> Option<(Vec<(f64, &'a Matrix)>, usize)> {
    let block = |(weight, matrix): &(f64, &'a Matrix)| Some((*weight, matrix.as_stamped()?.0));
    let blocks: Vec<_> = terms.iter().map(block).collect::<Option<_>>()?;
    let width = blocks.first()?.1.columns();
    blocks.iter().all(|(_, block)| block.columns() == width).then_some((blocks, width))
}

fn partners_at_least_lags(
    terms: &Terms<'_>,
    steps: usize,
    gap: usize,
    layers: usize,
) -> Option<Vec<Vec<f64>>> {
    let mut table = vec![vec![0.0; steps]; layers];
    for (weight, matrix) in terms {
        let (coefficients, scales) = matrix.as_toeplitz()?;
        let absolute = coefficients.iter().map(|c| c.abs()).collect();
        let larger = Matrix::toeplitz(not_increasing(absolute), steps).ok()?;
        let scale = |step: usize| scales.map_or(1.0, |scales| scales[step].abs());
        let mut added = vec![0.0; steps];
        for (layer, lag) in table.iter_mut().zip((1..).map(|d| d * gap)) {
            let mut largest = 0.0_f64;
            for (earlier, overlap) in larger.overlaps(lag).into_iter().enumerate() {
                largest = largest.max(scale(earlier));
                added[earlier + lag] += weight * overlap * scale(earlier + lag) * largest;
            }
            layer.iter_mut().zip(&added).for_each(|(sum, value)| *sum += value);
        }
    }
    Some(table)
}

/// Returns the largest `Σ_m (X_(p_m p_m) + 2 P_m(p_m))`, and its pattern.
fn chained(terms: &Terms<'_>, schedule: ParticipationSchedule, partners: &[Vec<f64>]) -> WorstPattern {
    let (steps, gap) = (schedule.horizon(), schedule.gap());
    let norms = absolute_overlaps(terms, 0);
    let own = |position: usize, step: usize| match position.checked_sub(1) {
        Some(earlier) => norms[step] + 2.0 * partners[earlier][step],
        None => norms[step],
    };
    // The largest sum of patterns of `position` + 1 steps that end at each step or before, and the
    // last step of the best one.
    let mut sums = vec![0.0; steps];
    let mut ends: Vec<Vec<u32>> = Vec::new();
    let mut best = (0.0, 0);
    for position in 0..schedule.count() {
        let (mut next, mut end) = (vec![0.0; steps], vec![0; steps]);
        let mut largest = (0.0, 0);
        for step in position * gap..steps {
            let before = if position == 0 { 0.0 } else { sums[step - gap] };
            let sum = before + own(position, step);
            if sum > largest.0 {
                largest = (sum, step as u32);
            }
            (next[step], end[step]) = largest;
        }
        if largest.0 > best.0 {
            best = (largest.0, position);
        }
        sums = next;
        ends.push(end);
    }
    let mut pattern = Vec::new();
    let mut last = steps - 1;
    for position in (0..=best.1).rev() {
        let step = ends[position][last] as usize;
        pattern.push(step);
        last = step.saturating_sub(gap);
    }
    pattern.reverse();
    let bound = (!has(terms, &pattern, best.0)).then_some(SensitivityBound::EarlierPartners);
    WorstPattern { squared: best.0, pattern, bound }
}

/// Returns whether the absolute overlaps of a pattern add up to `squared`, up to rounding.
fn has(terms: &Terms<'_>, pattern: &[usize], squared: f64) -> bool {
    let of_one = |matrix: &Matrix| matrix.gram(pattern).iter().map(|overlap| overlap.abs()).sum::<f64>();
    let sum = || terms.iter().map(|(weight, matrix)| weight * of_one(matrix)).sum::<f64>();
    pattern.len() <= MAX_LOOKED_UP && sum() * (1.0 + 2_f64.powi(-40)) >= squared
}
