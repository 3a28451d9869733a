//! The squared errors of buffers for records that take part several times, and their slopes.
//!
//! Without a delay line, the covariance of the buffers and the sums of the workload follows
//! `P ← F P Fᵀ + e eᵀ` with `e = (v, 1/g)` and `F = D − e 1ᵀ`, the ones over the buffers: O(n b²).
//!
//! A delay line has too many numbers for that. Its inverse is another delay line, with `β + α` in
//! place of β, so a row of `A G⁻¹ V⁻¹` follows from the previous row and few entries. `z T = m` is
//! solved from the last entry back, `z_i = m_i − Σ_j v_j(i) q_j` and `q_j ← z_i + θ_j(i) q_j`: O(n²
//! b).

use super::periodic_loss::PeriodicLoss;
use crate::strategy::buffered::array;

/// The coefficients of a step.
#[derive(Clone, Copy)]
pub(super) struct PeriodicPoint<const B: usize> {
    pub(super) decays: [f64; B],
    pub(super) weights: [f64; B],
    pub(super) gain: f64,
    /// β.
    pub(super) line_decay: f64,
    /// α.
    pub(super) line_weight: f64,
}

/// Slopes with respect to the coefficients of a step; for the gain, with respect to its logarithm.
#[derive(Clone, Copy)]
pub(super) struct PointSlopes<const B: usize> {
    pub(super) decays: [f64; B],
    pub(super) weights: [f64; B],
    pub(super) gain: f64,
    pub(super) line_decay: f64,
    pub(super) line_weight: f64,
}

impl<const B: usize> PointSlopes<B> {
    pub(super) const ZERO: Self =
        Self { decays: [0.0; B], weights: [0.0; B], gain: 0.0, line_decay: 0.0, line_weight: 0.0 };
}

/// The sum of squared errors, and the slopes of its logarithm.
pub(super) struct ErrorSlopes<const B: usize> {
    pub(super) total: f64,
    pub(super) slopes: Vec<PointSlopes<B>>,
}

/// Computes the errors from P before each step. S is B + 2.
pub(super) fn by_covariances<const B: usize, const S: usize>(
    loss: &PeriodicLoss,
    points: &[PeriodicPoint<B>],
) -> ErrorSlopes<B> {
    let [decay, kept, moved] = workload_sums(loss);
    let forget = |vector: &mut [f64; S]| {
        vector[B] *= decay;
        vector[B + 1] = kept * vector[B + 1] + moved * vector[B];
    };
    let forget_transposed = |vector: &mut [f64; S]| {
        vector[B] = decay * (vector[B] + moved * vector[B + 1]);
        vector[B + 1] *= kept;
    };
    let added = |point: &PeriodicPoint<B>| -> [f64; S] {
        array(|k| if k < B { point.weights[k] } else { 1.0 / point.gain })
    };
    let mut before = Vec::with_capacity(points.len());
    let (mut covariance, mut total) = ([[0.0; S]; S], 0.0);
    for (point, divisor) in points.iter().zip(&loss.divisors) {
        before.push(covariance);
        let added = added(point);
        let transit = |vector: &mut [f64; S]| {
            let sum: f64 = vector[..B].iter().sum();
            vector.iter_mut().zip(point.decays).for_each(|(value, decay)| *value *= decay);
            forget(vector);
            vector.iter_mut().zip(added).for_each(|(value, added)| *value -= added * sum);
        };
        covariance.iter_mut().for_each(transit);
        for k in 0..S {
            let mut column: [f64; S] = array(|j| covariance[j][k]);
            transit(&mut column);
            for j in 0..S {
                covariance[j][k] = column[j] + added[j] * added[k];
            }
        }
        total += covariance[S - 1][S - 1] / divisor;
    }
    let mut slopes = vec![PointSlopes::ZERO; points.len()];
    let mut after = [[0.0; S]; S];
    for (t, point) in points.iter().enumerate().rev() {
        after[S - 1][S - 1] += 1.0 / (total * loss.divisors[t]);
        let added = added(point);
        let mut by_added: [f64; S] = array(|k| 2.0 * (0..S).map(|l| after[k][l] * added[l]).sum::<f64>());
        let transit = |vector: &mut [f64; S]| {
            let product: f64 = (0..S).map(|k| added[k] * vector[k]).sum();
            forget_transposed(vector);
            let buffers = vector.iter_mut().zip(point.decays);
            buffers.for_each(|(value, decay)| *value = decay * *value - product);
        };
        after.iter_mut().for_each(transit);
        for k in 0..S {
            let by_row =
                |column: usize| 2.0 * (0..S).map(|i| after[k][i] * before[t][i][column]).sum::<f64>();
            by_added[k] -= (0..B).map(by_row).sum::<f64>();
            if k < B {
                slopes[t].decays[k] = by_row(k);
            }
        }
        slopes[t].weights.copy_from_slice(&by_added[..B]);
        slopes[t].gain = -(by_added[B] + by_added[B + 1]) / point.gain;
        for l in 0..S {
            let mut column: [f64; S] = array(|k| after[k][l]);
            transit(&mut column);
            after.iter_mut().zip(column).for_each(|(row, value)| row[l] = value);
        }
    }
    ErrorSlopes { total, slopes }
}

/// The sums of a workload follow `s ← decay s`, then `r ← kept r + moved s`.
fn workload_sums(loss: &PeriodicLoss) -> [f64; 3] {
    let decay = loss.sums.decay;
    if loss.sums.summed { [decay, 1.0, 1.0] } else { [decay, decay, 0.0] }
}

/// Entries of `G⁻¹ V⁻¹` in the rows of all steps: at the step, and at 1, 2, … gaps before it.
fn inverse_rows<const B: usize>(gap: usize, points: &[PeriodicPoint<B>]) -> Vec<Vec<f64>> {
    let mut rows: Vec<Vec<f64>> = points.iter().map(|point| vec![1.0 / point.gain]).collect();
    for (t, row) in rows.iter_mut().enumerate() {
        row.resize(t / gap + 1, 0.0);
    }
    for (from, point) in points.iter().enumerate() {
        let mut line = point.line_weight;
        for (lag, t) in (from..points.len()).step_by(gap).enumerate().skip(1) {
            rows[t][lag] = line / points[t].gain;
            line *= points[t].line_decay + points[t].line_weight;
        }
    }
    rows
}

pub(super) fn by_rows<const B: usize>(
    loss: &PeriodicLoss,
    gap: usize,
    points: &[PeriodicPoint<B>],
) -> ErrorSlopes<B> {
    let [decay, kept, moved] = workload_sums(loss);
    let steps = points.len();
    let rows = inverse_rows(gap, points);
    let mut slopes = vec![PointSlopes::ZERO; steps];
    let (mut first, mut second, mut total) = (vec![0.0; steps], vec![0.0; steps], 0.0);
    let (mut solved, mut later) = (vec![0.0; steps], vec![[0.0; B]; steps]);
    let mut by_rows: Vec<Vec<f64>> = Vec::with_capacity(steps);
    for (t, row) in rows.iter().enumerate() {
        for (one, two) in first.iter_mut().zip(&mut second).take(t) {
            *one *= decay;
            *two = kept * *two + moved * *one;
        }
        for (lag, entry) in row.iter().enumerate() {
            first[t - lag * gap] += entry;
            second[t - lag * gap] += entry;
        }
        let scale = 1.0 / loss.divisors[t];
        let mut state = [0.0; B];
        for i in (0..=t).rev() {
            let PeriodicPoint { decays, weights, .. } = &points[i];
            later[i] = state;
            let known: f64 = weights.iter().zip(state).map(|(v, q)| v * q).sum();
            solved[i] = second[i] - known;
            total += scale * solved[i] * solved[i];
            for j in 0..B {
                state[j] = solved[i] + decays[j] * state[j];
            }
        }
        let mut by_state = [0.0; B];
        let back = |i: usize| {
            let PeriodicPoint { decays, weights, .. } = &points[i];
            let by_solved = 2.0 * scale * solved[i] + by_state.iter().sum::<f64>();
            for j in 0..B {
                slopes[i].weights[j] -= by_solved * later[i][j];
                slopes[i].decays[j] += by_state[j] * later[i][j];
                by_state[j] = decays[j] * by_state[j] - by_solved * weights[j];
            }
            by_solved
        };
        by_rows.push((0..=t).map(back).collect());
    }
    let (mut by_first, mut by_second) = (vec![0.0; steps], vec![0.0; steps]);
    let mut by_entries = rows.clone();
    for (t, by_row) in by_rows.iter().enumerate().rev() {
        by_second.iter_mut().zip(by_row).for_each(|(by, slope)| *by += slope);
        for (lag, by_entry) in by_entries[t].iter_mut().enumerate() {
            *by_entry = by_first[t - lag * gap] + by_second[t - lag * gap];
        }
        for (one, two) in by_first.iter_mut().zip(&mut by_second) {
            *one = decay * (*one + moved * *two);
            *two *= kept;
        }
    }
    add_slopes_of_inverse(gap, points, &by_entries, &mut slopes);
    for slope in &mut slopes {
        let all = slope.decays.iter_mut().chain(&mut slope.weights);
        all.chain([&mut slope.gain, &mut slope.line_decay, &mut slope.line_weight])
            .for_each(|slope| *slope /= total);
    }
    ErrorSlopes { total, slopes }
}

/// Adds the slopes through the entries of `G⁻¹ V⁻¹`.
fn add_slopes_of_inverse<const B: usize>(
    gap: usize,
    points: &[PeriodicPoint<B>],
    by_entries: &[Vec<f64>],
    slopes: &mut [PointSlopes<B>],
) {
    let mut lines = Vec::new();
    for (from, point) in points.iter().enumerate() {
        slopes[from].gain -= by_entries[from][0] / point.gain;
        lines.clear();
        let mut line = point.line_weight;
        for (lag, t) in (from..points.len()).step_by(gap).enumerate().skip(1) {
            lines.push((lag, t, line));
            line *= points[t].line_decay + points[t].line_weight;
        }
        let mut by_line = 0.0;
        for &(lag, t, line) in lines.iter().rev() {
            let by_entry = by_entries[t][lag] / points[t].gain;
            slopes[t].gain -= by_entry * line;
            slopes[t].line_decay += by_line * line;
            slopes[t].line_weight += by_line * line;
            by_line = by_line * (points[t].line_decay + points[t].line_weight) + by_entry;
        }
        slopes[from].line_weight += by_line;
    }
}
