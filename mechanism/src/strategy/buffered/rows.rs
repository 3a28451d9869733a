//! Norms of the rows of A C⁻¹, step by step, and samples of these norms.
//!
//! *Leaps.* The covariance P of a power law's buffers and the running sum evolves by
//! `P ← M P Mᵀ + N`, where M and N change slowly. From step t on, m ≤ t·2⁻¹² updates equal m times
//! the one in their middle, with an error of `(m/t)²/24` of the change. Doubling j times,
//! `N ← M N Mᵀ + N`, `M ← M²`, combines m = 2^j updates into one.
//!
//! # Columns
//! This file also computes the entries of the columns of C, and bounds of their norms.

use super::steps::{BufferCoefficients, BufferStep, RealStep, SLOTS};
use super::{Buffered, Buffers, ExponentialBuffer, InverseBuffer, windows};
use crate::strategy::samples;
use crate::strategy::samples::GeometricTerm;
use crate::strategy::{
    Discrepancy, MAX_COLUMNS, MAX_DENSE_HORIZON, Matrix, MatrixError, RowNorms, RowSample, RowSamples,
    Strategy as _,
};
use crate::workload::Workload;
pub(super) use crate::workload::WorkloadSums;
use libm::{exp, expm1, log1p, pow};
use nalgebra::{DMatrix, DVector};

/// The buffers and the one or two sums of a workload.
const SIZE: usize = SLOTS + 2;

/// Covariances of the buffers and the sums.
pub(super) type Covariance = [[f64; SIZE]; SIZE];

pub(super) fn norms<'a>(strategy: &'a Buffered, workload: &Workload, steps: u64) -> RowNorms<'a> {
    let steps = steps.min(workload.horizon().unwrap_or(steps));
    let toeplitz = matches!(strategy.parameters.buffers, Buffers::Toeplitz(_));
    let is_stepwise = strategy.coefficients.delays() == 0;
    let sums = WorkloadSums::new(workload).filter(|_| is_stepwise);
    let window = workload.window().filter(|_| is_stepwise);
    match (sums, window) {
        _ if toeplitz && workload.toeplitz_part(0).is_some() => toeplitz_norms(strategy, workload, steps),
        (Some(sums), _) => covariance_norms(strategy, workload.clone(), sums, steps),
        (None, Some(length)) => windows::norms(strategy, workload.clone(), length, steps),
        (None, None) => dense_norms(strategy, workload.clone(), steps),
    }
}

/// For `A = D⁻¹T` with the row divisors D, row t of `A C⁻¹` holds the first t coefficients of
/// `T C⁻¹`, divided. They are T applied to the impulse response of the decoder.
fn toeplitz_norms<'a>(strategy: &'a Buffered, workload: &Workload, steps: u64) -> RowNorms<'a> {
    let undivided = workload.undivided();
    let mut squares = Workload::Prefix.state(1);
    let workload = workload.clone();
    Box::new(terms(strategy, &undivided, steps).zip(1..).map_while(move |(term, t)| {
        let square = squares.push(&[term * term]).ok()?[0];
        Some(square.sqrt() / workload.row_divisor(t))
    }))
}

fn terms<'a>(
    strategy: &'a Buffered,
    undivided: &Workload,
    steps: u64,
) -> impl Iterator<Item = f64> + use<'a> {
    let (mut decoder, mut state) = (strategy.decoder(1), undivided.state(1));
    (1..=steps).map_while(move |t| {
        let (impulse, mut increment) = ([if t == 1 { 1.0 } else { 0.0 }], [0.0]);
        decoder.decode(&impulse, &mut increment).ok()?;
        Some(state.push(&increment).ok()?[0])
    })
}

pub(super) fn samples<'a>(strategy: &'a Buffered, workload: &Workload, steps: u64) -> RowSamples<'a> {
    let fewer = match &strategy.parameters.buffers {
        Buffers::Toeplitz(_) => toeplitz_samples(strategy, workload, steps),
        Buffers::PowerLaw(_) => leaps(strategy, workload, steps),
        Buffers::Variable(_) | Buffers::Periodic(_) => None,
    };
    match fewer {
        Some(samples) => Box::new(samples.into_iter()),
        None => samples::all(norms(strategy, workload, steps)),
    }
}

/// The lasting parts come from `C(1/λ) = 1 + Σ ω/(λ − θ)` at the poles λ of the workload, and from
/// the poles of C⁻¹, except those that at least halve in a step.
fn toeplitz_samples(strategy: &Buffered, workload: &Workload, steps: u64) -> Option<Vec<RowSample>> {
    let (Buffers::Toeplitz(buffers), Some(inverse)) = (&strategy.parameters.buffers, strategy.inverse())
    else {
        return None;
    };
    let poles = samples::poles(workload)?;
    let response = |complement: f64| {
        1.0 / (1.0 + buffers.iter().map(|b| b.weight / (1.0 - b.decay - complement)).sum::<f64>())
    };
    let slow = inverse.iter().filter(|buffer| buffer.decay > 0.5);
    let of_buffer = |&InverseBuffer { decay, weight, complement }: &InverseBuffer| {
        let amplitude =
            poles.iter().fold(weight / decay, |product, pole| product * decay / (pole - complement));
        GeometricTerm { amplitude, complement }
    };
    let mut parts = samples::parts_of_workload(&poles, response);
    parts.extend(slow.map(of_buffer));
    let terms = terms(strategy, &samples::base(workload), steps);
    samples::of_series(workload, steps, terms, &parts, buffers.len())
}

/// The covariance of the buffers and the sums of the workload if y is white noise of unit variance.
/// Its last entry is the squared norm of the row.
fn covariance_norms(strategy: &Buffered, workload: Workload, sums: WorkloadSums, steps: u64) -> RowNorms<'_> {
    let mut covariance = [[0.0; SIZE]; SIZE];
    Box::new((1..=steps).map(move |t| {
        advance(&mut covariance, &strategy.coefficients.step(t).real(), sums);
        covariance[SIZE - 1][SIZE - 1].sqrt() / workload.row_divisor(t)
    }))
}

/// `v ← D v + e x` with `x = (y − Σ r)/g`. With u = cov(v, x),
/// `P ← D P Dᵀ + D u eᵀ + e (D u)ᵀ + e eᵀ var x`.
pub(super) fn advance(covariance: &mut Covariance, step: &RealStep, sums: WorkloadSums) {
    let from_buffers = |row: &[f64; SIZE]| -row[..SLOTS].iter().sum::<f64>() / step.gain;
    let mut overlap = covariance.each_ref().map(from_buffers);
    let variance = from_buffers(&overlap) + 1.0 / (step.gain * step.gain);
    covariance.iter_mut().for_each(|row| forget(row, step, sums));
    for j in 0..SIZE {
        let mut column = covariance.each_ref().map(|row| row[j]);
        forget(&mut column, step, sums);
        covariance.iter_mut().zip(column).for_each(|(row, value)| row[j] = value);
    }
    forget(&mut overlap, step, sums);
    let mut added = [1.0; SIZE];
    added[..SLOTS].copy_from_slice(&step.inputs);
    for (j, row) in covariance.iter_mut().enumerate() {
        for (k, entry) in row.iter_mut().enumerate() {
            *entry += overlap[j] * added[k] + added[j] * overlap[k] + added[j] * added[k] * variance;
        }
    }
}

/// `D v`. The entry before the last is the momentum; it is unused if the last is a sum of x itself.
fn forget(vector: &mut [f64; SIZE], step: &RealStep, sums: WorkloadSums) {
    vector.iter_mut().zip(step.decays).for_each(|(value, decay)| *value *= decay);
    vector[SLOTS] *= sums.decay;
    vector[SLOTS + 1] =
        if sums.summed { vector[SLOTS + 1] + vector[SLOTS] } else { sums.decay * vector[SLOTS + 1] };
}

/// Number of steps before the first leap.
const FIRST_LEAP: u64 = 1 << 14;
/// Least ratio of the elapsed time to the length of a leap.
const SLOWNESS: u64 = 1 << 12;

fn leaps(strategy: &Buffered, workload: &Workload, steps: u64) -> Option<Vec<RowSample>> {
    let sums = WorkloadSums::new(workload).filter(|sums| sums.decay == 1.0 && !sums.summed)?;
    if steps < 2 * FIRST_LEAP {
        return None;
    }
    let mut covariance = [[0.0; SIZE]; SIZE];
    let mut rows = Vec::new();
    let row = |step: u64, weight, square: f64| RowSample {
        step: step as f64,
        weight,
        norm: square.sqrt() / workload.row_divisor(step),
    };
    for t in 1..=FIRST_LEAP {
        advance(&mut covariance, &strategy.coefficients.step(t).real(), sums);
        rows.push(row(t, 1.0, covariance[SIZE - 1][SIZE - 1]));
    }
    let buffers = strategy.parameters.count();
    let positions: Vec<usize> = (0..buffers).chain([SIZE - 1]).collect();
    let mut covariance =
        DMatrix::from_fn(positions.len(), positions.len(), |j, k| covariance[positions[j]][positions[k]]);
    let mut t = FIRST_LEAP;
    while t < steps {
        // The longest power of 2 that is neither too long nor beyond the end.
        let length = 1 << (t / SLOWNESS).min(steps - t).ilog2();
        let (transition, noise) = leap(strategy, t + length / 2, length);
        covariance = &transition * covariance * transition.transpose() + noise;
        t += length;
        // The rows of a leap are interpolated linearly from end to end.
        if let Some(before) = rows.last_mut() {
            before.weight += 0.5 * (length - 1) as f64;
        }
        rows.push(row(t, 0.5 * (length + 1) as f64, covariance[(buffers, buffers)]));
    }
    Some(rows)
}

/// Transition and noise of the buffers and the running sum over `length` steps, a power of 2, whose
/// middle follows step `before`.
fn leap(strategy: &Buffered, before: u64, length: u64) -> (DMatrix<f64>, DMatrix<f64>) {
    let buffers = strategy.parameters.count();
    let steps = [before, before + 1].map(|t| strategy.coefficients.step(t).real());
    let mean = |of: &dyn Fn(&RealStep) -> f64| 0.5 * (of(&steps[0]) + of(&steps[1]));
    let gain = mean(&|step| step.gain);
    let input = |j: usize| if j < buffers { mean(&|step| step.inputs[j]) } else { 1.0 };
    let decay = |j: usize| if j < buffers { mean(&|step| step.decays[j]) } else { 1.0 };
    let mut transition = DMatrix::from_fn(buffers + 1, buffers + 1, |j, k| {
        let kept = if j == k { decay(j) } else { 0.0 };
        if k < buffers { kept - input(j) / gain } else { kept }
    });
    let added = DVector::from_fn(buffers + 1, |j, _| input(j) / gain);
    let mut noise = &added * added.transpose();
    for _ in 0..length.ilog2() {
        noise = &transition * &noise * transition.transpose() + &noise;
        transition = &transition * &transition;
    }
    (transition, noise)
}

/// Row by row: `b C = a` from the last entry back, `b_i = (a_i − Σ_j h_ij q_j − g_i α_i p)/g_i` and
/// `q_j ← b_i + θ_ij q_j`. For the phase of the step, `p ← β_i p − (b_i + Σ_j v_ij q_j)`.
pub(super) fn dense_norms(strategy: &Buffered, workload: Workload, steps: u64) -> RowNorms<'_> {
    let all: Vec<RealStep> = (1..=steps).map(|t| strategy.coefficients.step(t).real()).collect();
    let delays = strategy.coefficients.delays();
    Box::new((1..=steps).map(move |t| {
        let mut later = [0.0; SLOTS];
        let mut lines = vec![0.0; delays];
        let square = |i: u64| {
            let step = &all[i as usize - 1];
            let mut known: f64 = step.inputs.iter().zip(later).map(|(input, later)| input * later).sum();
            let line = if delays > 0 { lines.get_mut((i as usize - 1) % delays) } else { None };
            known += line.as_ref().map_or(0.0, |line| step.delay.input * **line);
            let entry = (workload.coefficient(t, i) - known) / step.gain;
            if let Some(line) = line {
                let taken: f64 = step.delay.weights.iter().zip(later).map(|(v, later)| v * later).sum();
                *line = step.delay.decay * *line - (entry + taken);
            }
            later.iter_mut().zip(step.decays).for_each(|(later, decay)| *later = entry + decay * *later);
            entry * entry
        };
        (1..=t).rev().map(square).sum::<f64>().sqrt()
    }))
}

/// Bound of the relative rounding error of up to 4096 squares of a column, and of the geometric
/// sums between two steps of a record. All terms are positive. A geometric sum uses `exp`, `expm1`
/// and `log1p`, whose relative errors are assumed to be at most 2⁻⁵⁰. The exponential of less than
/// −745 is zero. So if the argument has a relative error of a few times 2⁻⁵⁰, the relative error of
/// `exp` is less than 2⁻⁴⁰, and that of `expm1` is smaller.
const MARGIN: f64 = 1.0 / (1u64 << 40) as f64;

/// Longest power law, or strategy with varying buffers, whose column norms are summed entry by
/// entry.
const SUMMED_STEPS: u64 = 4096;

/// C for a number of steps. All parameters are exact in floating point and no entry is negative, so
/// rounding changes each entry by a share of it ([`Discrepancy`]). An entry of a Toeplitz C is a
/// sum of at most 8 products with a power. An entry of a power law is a sum of at most 8 products,
/// each of at most as many factors as there are steps. The relative error of a product, sum or
/// power is at most 2^-50, which for powers is an assumption about `libm`.
pub(super) fn matrix(strategy: &Buffered, steps: usize) -> Result<Matrix, MatrixError> {
    let limit = MAX_DENSE_HORIZON as usize;
    let (matrix, roundings) = match &strategy.parameters.buffers {
        Buffers::Toeplitz(_) if steps > MAX_COLUMNS => return Err(MatrixError::Columns { found: steps }),
        Buffers::Toeplitz(buffers) => (Matrix::toeplitz(coefficients(buffers, steps), steps)?, SLOTS + 2),
        Buffers::PowerLaw(_) | Buffers::Variable(_) | Buffers::Periodic(_) if steps > limit => {
            return Err(MatrixError::WrittenOut { found: steps, limit });
        }
        Buffers::PowerLaw(_) | Buffers::Variable(_) | Buffers::Periodic(_) => {
            (Matrix::dense(dense(strategy, steps))?, SLOTS + steps)
        }
    };
    let relative = roundings as f64 * 2f64.powi(-50) * (1.0 + 2f64.powi(-30));
    // Powers below the least float become 0; no column loses more than this.
    let column = f64::MIN_POSITIVE * (SLOTS * steps) as f64;
    let discrepancy = match strategy.coefficients.delays() {
        0 => Discrepancy { relative, column },
        // Errors are relative to the same column without cancellation.
        delays => {
            let all = all_steps(&strategy.coefficients, steps as u64);
            let longest = (0..steps).map(|i| norm_squared(&all[i..], delays, 1.0)).fold(0.0, f64::max).sqrt();
            Discrepancy { relative: 0.0, column: column + relative * longest * (1.0 + MARGIN) }
        }
    };
    Ok(matrix.with_discrepancy(discrepancy))
}

pub(super) fn coefficients(buffers: &[ExponentialBuffer], steps: usize) -> Vec<f64> {
    (0..steps).map(|lag| entry(buffers, lag)).collect()
}

fn entry(buffers: &[ExponentialBuffer], lag: usize) -> f64 {
    let power = |b: &ExponentialBuffer| b.weight * pow(b.decay, lag as f64 - 1.0);
    if lag == 0 { 1.0 } else { buffers.iter().map(power).sum() }
}

fn dense(strategy: &Buffered, steps: usize) -> DMatrix<f64> {
    let all = all_steps(&strategy.coefficients, steps as u64);
    let mut matrix = DMatrix::zeros(steps, steps);
    for i in 0..steps {
        let column = column(&all[i..], strategy.coefficients.delays(), -1.0);
        matrix.column_mut(i).rows_mut(i, steps - i).iter_mut().zip(column).for_each(|(entry, c)| *entry = c);
    }
    matrix
}

fn all_steps(coefficients: &BufferCoefficients, steps: u64) -> Vec<BufferStep> {
    (1..=steps).map(|t| coefficients.step(t)).collect()
}

/// The entries, from the diagonal down, of the column of the first of these steps. `sign` is that
/// of the delay line: −1, or 1 for a bound of the changes by rounding.
fn column(steps: &[BufferStep], delays: usize, sign: f64) -> impl Iterator<Item = f64> {
    let first = steps.first().map(BufferStep::real);
    let mut parts = first.map_or([0.0; SLOTS], |step| step.inputs);
    let mut line = first.map_or(0.0, |step| step.delay.input);
    let below = steps.iter().enumerate().skip(1).map(move |(lag, step)| {
        let (step, due) = (step.real(), delays > 0 && lag % delays == 0);
        let delayed = if due { sign * line } else { 0.0 };
        let entry = parts.iter().sum::<f64>() + delayed;
        parts.iter_mut().zip(step.decays).for_each(|(part, decay)| *part *= decay);
        if due {
            parts.iter_mut().zip(step.delay.weights).for_each(|(part, weight)| *part += weight * delayed);
            line *= step.delay.decay;
        }
        entry
    });
    first.map(|step| step.gain).into_iter().chain(below)
}

fn norm_squared(steps: &[BufferStep], delays: usize, sign: f64) -> f64 {
    column(steps, delays, sign).map(|entry| entry * entry).sum()
}

/// Largest squared norm of a column, rounded up. With a delay line, the rounding of a column is
/// bounded by that of the same column without cancellation.
pub(super) fn largest_column(steps: &[BufferStep], delays: usize) -> f64 {
    let norm = |i: usize| norm_squared(&steps[i..], delays, -1.0);
    let largest = (0..steps.len()).map(norm).fold(0.0, f64::max);
    if delays == 0 {
        return (1.0 + MARGIN) * largest;
    }
    let bound = (0..steps.len()).map(|i| norm_squared(&steps[i..], delays, 1.0)).fold(0.0, f64::max);
    (largest.sqrt() + 4.0 * MARGIN * bound.sqrt()).powi(2) * (1.0 + MARGIN)
}

/// Largest squared norm of a column up to `steps`, rounded up. For a power law and for varying
/// buffers beyond [`SUMMED_STEPS`] it is 1, the bound for all steps: the first columns are complete
/// by then.
pub(super) fn max_norm_squared(strategy: &Buffered, steps: u64) -> f64 {
    match &strategy.parameters.buffers {
        Buffers::Toeplitz(buffers) => participation_norm_squared(buffers, steps, 1, steps),
        Buffers::PowerLaw(_) | Buffers::Variable(_) if steps > SUMMED_STEPS => 1.0,
        Buffers::PowerLaw(_) | Buffers::Variable(_) | Buffers::Periodic(_) => {
            largest_column(&all_steps(&strategy.coefficients, steps), strategy.coefficients.delays())
        }
    }
}

/// Largest squared norm of a column over all steps of the strategy, rounded up.
pub(super) fn largest_norm_squared_of_all_steps(strategy: &Buffered) -> f64 {
    match &strategy.coefficients {
        BufferCoefficients::Constant(_) => max_norm_squared(strategy, strategy.parameters.steps()),
        BufferCoefficients::PowerLaw { .. } | BufferCoefficients::Variable(_) => 1.0,
        BufferCoefficients::Periodic(periodic) => periodic.largest,
    }
}

/// `‖Σ_(m<count) c_(m·gap)‖²`, the squared norm of the sum of the columns of a Toeplitz C at steps
/// 0, gap, 2·gap, … within a horizon, rounded up. The coefficients are positive, so this is the
/// squared sensitivity to a record that takes part in up to `count` steps at fixed gaps. If the
/// coefficients never increase, it also holds for gaps of at least `gap` (Kalinin and Lampert,
/// 2024, Theorem 2).
///
/// Between two steps of the record, buffer j holds `s_j θ_j^l`, so the squares of the sums are
/// geometric sums over l.
pub(super) fn participation_norm_squared(
    buffers: &[ExponentialBuffer],
    horizon: u64,
    count: u64,
    gap: u64,
) -> f64 {
    let complements: Vec<f64> = buffers.iter().map(|b| 1.0 - b.decay).collect();
    let mut contents = vec![0.0; buffers.len()];
    let mut total = 0.0;
    for start in (0..count).map(|m| m.saturating_mul(gap)).take_while(|&start| start < horizon) {
        let length = if start / gap.max(1) + 1 == count { horizon - start } else { gap.min(horizon - start) };
        let diagonal = 1.0 + contents.iter().sum::<f64>();
        contents.iter_mut().zip(buffers).for_each(|(contents, b)| *contents = *contents * b.decay + b.weight);
        let pair = |(one, a): (&f64, f64), (other, b): (&f64, f64)| {
            one * other * geometric_sum(a + b - a * b, length - 1)
        };
        let parts = || contents.iter().zip(complements.iter().copied());
        let sums: f64 = parts().map(|one| parts().map(|other| pair(one, other)).sum::<f64>()).sum();
        total += diagonal * diagonal + sums;
        contents
            .iter_mut()
            .zip(&complements)
            .for_each(|(contents, &c)| *contents *= exp((length - 1) as f64 * log1p(-c)));
    }
    (1.0 + count.min(horizon) as f64 * MARGIN) * total
}

/// `Σ_(l<terms) (1 − x)^l = (1 − (1 − x)^terms)/x` for 0 < x < 1, to a few units in the last place.
pub(super) fn geometric_sum(x: f64, terms: u64) -> f64 {
    -expm1(terms as f64 * log1p(-x)) / x
}
