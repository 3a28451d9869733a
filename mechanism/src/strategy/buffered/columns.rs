//! The columns of C: their entries, and bounds of their norms.

use super::{
    Buffered, Buffers, ExponentialBuffer,
    steps::{BufferCoefficients, BufferStep, ROOM},
};
use crate::strategy::{Discrepancy, MAX_COLUMNS, MAX_DENSE_HORIZON, Matrix, MatrixError};
use libm::{exp, expm1, log1p, pow};
use nalgebra::DMatrix;

/// Bound of the relative rounding error of up to 4096 squares of a column, and of the geometric
/// sums between two steps of a record. All terms are positive. A geometric sum uses `exp`, `expm1`
/// and `log1p`, whose relative errors are assumed to be at most 2⁻⁵⁰. The exponential of less than
/// −745 is zero. So if the argument has a relative error of a few times 2⁻⁵⁰, the relative error of
/// `exp` is less than 2⁻⁴⁰, and that of `expm1` is smaller.
const MARGIN: f64 = 1.0 / (1u64 << 40) as f64;

/// Longest power law that can be written out, with columns summed entry by entry.
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
        Buffers::Toeplitz(buffers) => (Matrix::toeplitz(coefficients(buffers, steps), steps)?, ROOM + 2),
        Buffers::PowerLaw(_) if steps > limit => {
            return Err(MatrixError::WrittenOut { found: steps, limit });
        }
        Buffers::PowerLaw(_) => (Matrix::dense(dense(strategy, steps))?, ROOM + steps),
    };
    let relative = roundings as f64 * 2f64.powi(-50) * (1.0 + 2f64.powi(-30));
    // Powers below the least float become 0; no column loses more than this.
    let column = f64::MIN_POSITIVE * (ROOM * steps) as f64;
    Ok(matrix.with_discrepancy(Discrepancy { relative, column }))
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
        let column = column(&all[i..]);
        matrix.column_mut(i).rows_mut(i, steps - i).iter_mut().zip(column).for_each(|(entry, c)| *entry = c);
    }
    matrix
}

fn all_steps(coefficients: &BufferCoefficients, steps: u64) -> Vec<BufferStep> {
    (1..=steps).map(|t| coefficients.step(t)).collect()
}

/// The entries, from the diagonal down, of the column of the first of these steps.
fn column(steps: &[BufferStep]) -> impl Iterator<Item = f64> {
    let first = steps.first().map(BufferStep::real);
    let mut parts = first.map_or([0.0; ROOM], |step| step.inputs);
    let below = steps.iter().skip(1).map(move |step| {
        let entry = parts.iter().sum();
        parts.iter_mut().zip(step.real().decays).for_each(|(part, decay)| *part *= decay);
        entry
    });
    first.map(|step| step.gain).into_iter().chain(below)
}

/// Largest squared norm of a column up to `steps`, rounded up. For a power law beyond
/// [`SUMMED_STEPS`] it is the bound for all steps: the first columns are complete by then.
pub(super) fn max_norm_squared(strategy: &Buffered, steps: u64) -> f64 {
    match &strategy.parameters.buffers {
        Buffers::Toeplitz(buffers) => participation_norm_squared(buffers, steps, 1, steps),
        Buffers::PowerLaw(_) if steps > SUMMED_STEPS => 1.0,
        Buffers::PowerLaw(_) => {
            let all = all_steps(&strategy.coefficients, steps);
            let norm = |i: usize| column(&all[i..]).map(|c| c * c).sum::<f64>();
            (1.0 + MARGIN) * (0..all.len()).map(norm).fold(0.0, f64::max)
        }
    }
}

/// Largest squared norm of a column over all steps of the strategy, rounded up.
pub(super) fn lasting_norm_squared(strategy: &Buffered) -> f64 {
    match &strategy.parameters.buffers {
        Buffers::Toeplitz(_) => max_norm_squared(strategy, strategy.parameters.steps()),
        Buffers::PowerLaw(_) => 1.0,
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
    let mut held = vec![0.0; buffers.len()];
    let mut total = 0.0;
    for start in (0..count).map(|m| m.saturating_mul(gap)).take_while(|&start| start < horizon) {
        let length = if start / gap.max(1) + 1 == count { horizon - start } else { gap.min(horizon - start) };
        let diagonal = 1.0 + held.iter().sum::<f64>();
        held.iter_mut().zip(buffers).for_each(|(held, b)| *held = *held * b.decay + b.weight);
        let pair = |(one, a): (&f64, f64), (other, b): (&f64, f64)| {
            one * other * geometric_sum(a + b - a * b, length - 1)
        };
        let parts = || held.iter().zip(complements.iter().copied());
        let sums: f64 = parts().map(|one| parts().map(|other| pair(one, other)).sum::<f64>()).sum();
        total += diagonal * diagonal + sums;
        held.iter_mut()
            .zip(&complements)
            .for_each(|(held, &c)| *held *= exp((length - 1) as f64 * log1p(-c)));
    }
    (1.0 + count.min(horizon) as f64 * MARGIN) * total
}

/// `Σ_(l<terms) (1 − x)^l = (1 − (1 − x)^terms)/x` for 0 < x < 1, to a few units in the last place.
pub(super) fn geometric_sum(x: f64, terms: u64) -> f64 {
    -expm1(terms as f64 * log1p(-x)) / x
}
