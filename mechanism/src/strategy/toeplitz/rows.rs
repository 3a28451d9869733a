//! Norms of the rows of the decoder `A C⁻¹` for a Toeplitz C, with or without scaled columns.

use crate::{
    series::{self, fast},
    strategy::{
        RowNorms, RowSample,
        samples::{self, GeometricTerm},
    },
    workload::Workload,
};
use libm::{exp, log1p};
use nalgebra::DMatrix;
use std::collections::VecDeque;

/// For `A = D⁻¹T` with the row divisors D, row t of B holds the first t coefficients of `T C⁻¹`,
/// divided. One quotient of series gives all norms. For any other A, row by row.
pub(super) fn of_toeplitz<'a>(workload: &Workload, coefficients: &[f64], steps: usize) -> RowNorms<'a> {
    let named = !matches!(workload, Workload::Matrix(_));
    if named && (coefficients.len() == 1 || (steps > STREAMED && coefficients.len() < steps)) {
        return streamed(workload, coefficients.to_vec(), steps);
    }
    match workload.toeplitz_part(steps) {
        Some(part) => of_series(workload, fast::quotient(&part, coefficients, steps)),
        None => of_dense(workload, &series::quotient(&[1.0], coefficients, steps), &vec![1.0; steps], None),
    }
}

/// Above this number of steps, the quotient by a banded C is found term by term, with memory only
/// for its bands.
const STREAMED: usize = 1 << 22;

/// [`of_toeplitz`] by long division: `b_t = (a_t − Σ_j c_j b_(t−j))/c_0`, where a is the impulse
/// response of the workload.
fn streamed<'a>(workload: &Workload, coefficients: Vec<f64>, steps: usize) -> RowNorms<'a> {
    let (divided, mut square) = (workload.clone(), 0.0);
    Box::new(terms(workload, coefficients).take(steps).zip(1..).map(move |(term, t)| {
        square += term * term;
        f64::sqrt(square) / divided.row_divisor(t)
    }))
}

fn terms(workload: &Workload, coefficients: Vec<f64>) -> impl Iterator<Item = f64> + use<> {
    let (first, bands) = (coefficients[0], coefficients.len() - 1);
    let workload = workload.clone();
    let (mut state, mut kept) = (workload.state(1), VecDeque::with_capacity(bands + 1));
    (1_u64..).map(move |t| {
        let impulse = if t == 1 { 1.0 } else { 0.0 };
        let part = state.push(&[impulse]).map_or(f64::NAN, |row| row[0] * workload.row_divisor(t));
        let before: f64 = coefficients[1..].iter().zip(&kept).map(|(c, b)| c * b).sum();
        let term = (part - before) / first;
        kept.push_front(term);
        kept.truncate(bands);
        term
    })
}

/// Samples of the rows of `A C⁻¹` for a banded C; the lasting parts are the poles of the workload.
pub(super) fn banded_samples(
    workload: &Workload,
    coefficients: &[f64],
    steps: usize,
) -> Option<Vec<RowSample>> {
    let terms = terms(&samples::base(workload), coefficients.to_vec());
    let parts = parts(workload, |pole| 1.0 / polynomial(coefficients, pole))?;
    samples::of_series(workload, steps as u64, terms, &parts, coefficients.len())
}

pub(super) fn inverse_samples(workload: &Workload, inverse: &[f64], steps: usize) -> Option<Vec<RowSample>> {
    let parts = parts(workload, |pole| polynomial(inverse, pole))?;
    let terms = inverse_terms(&samples::base(workload), inverse.to_vec());
    samples::of_series(workload, steps as u64, terms, &parts, inverse.len())
}

/// The coefficients of `T C⁻¹`, given those of C⁻¹.
pub(super) fn inverse_terms(workload: &Workload, inverse: Vec<f64>) -> impl Iterator<Item = f64> + use<> {
    let (mut state, workload) = (workload.state(1), workload.clone());
    let increments = inverse.into_iter().chain(std::iter::repeat(0.0)).zip(1_u64..);
    increments.map_while(move |(d, t)| state.push(&[d]).ok().map(|row| row[0] * workload.row_divisor(t)))
}

fn parts(workload: &Workload, response: impl Fn(f64) -> f64) -> Option<Vec<GeometricTerm>> {
    Some(samples::parts_of_workload(&samples::poles(workload)?, response))
}

/// `Σ c_j λ^(−j)` for the pole λ with this complement.
fn polynomial(coefficients: &[f64], complement: f64) -> f64 {
    let rate = -log1p(-complement);
    coefficients.iter().enumerate().map(|(j, c)| c * exp(rate * j as f64)).sum()
}

/// Norms of the rows of `D⁻¹M`, where M is the Toeplitz matrix of the series and D the row divisors
/// of the workload.
pub(super) fn of_series<'a>(
    workload: &Workload,
    series: impl IntoIterator<Item = f64, IntoIter: 'a>,
) -> RowNorms<'a> {
    let workload = workload.clone();
    let squared_norms = series.into_iter().scan(0.0, |sum, b| {
        *sum += b * b;
        Some(*sum)
    });
    Box::new(squared_norms.zip(1..).map(move |(square, t)| f64::sqrt(square) / workload.row_divisor(t)))
}

/// Row norms for C with columns scaled by s, and rows by ρ if given: `B = A S⁻¹ T R⁻¹`, with T the
/// Toeplitz matrix of the inverse series. Every named workload is a short recursion over the rows
/// `g_t` of `S⁻¹ T`, entry by entry: `m_t = β m_(t−1) + g_t`, `v_t = α v_(t−1) + m_t`. After the
/// terms of a short inverse, an entry changes only by α and β. Such entries are kept together, as
/// sums of squares. A row takes as many steps as the inverse has terms, and for a window its epochs
/// in addition.
pub(super) fn of_scaled<'a>(
    workload: &Workload,
    inverse: &[f64],
    scales: &[f64],
    row_scales: Option<&[f64]>,
) -> RowNorms<'a> {
    let (alpha, beta, window) = match workload {
        Workload::Prefix | Workload::Average => (1.0, 0.0, None),
        Workload::Exponential(decay) | Workload::Adam(decay) => (decay.get(), 0.0, None),
        Workload::Momentum(decay) => (1.0, decay.get(), None),
        Workload::Window(length) | Workload::WindowMean(length) => (1.0, 0.0, Some(length.get())),
        Workload::Matrix(_) => return of_dense(workload, inverse, scales, row_scales),
    };
    let window = window.map(|length| length.min(scales.len() as u64 + 1));
    let changing = inverse.len().saturating_add(window.unwrap_or(0) as usize).min(scales.len());
    let rows = ScaledRows {
        reversed: (0..changing).rev().map(|lag| inverse.get(lag).copied().unwrap_or(0.0)).collect(),
        scales: scales.to_vec(),
        weights: match row_scales {
            Some(rows) => rows.iter().map(|row| 1.0 / (row * row)).collect(),
            None => vec![1.0; scales.len()],
        },
        alpha,
        beta,
        window: window.map(|length| length as usize),
        unchanged: [0.0; 3],
        momenta: vec![0.0; if beta > 0.0 { scales.len() } else { 0 }],
        row: vec![0.0; scales.len()],
        steps: 0,
    };
    let part = workload.clone();
    let unit = match workload {
        Workload::Window(length) | Workload::WindowMean(length) => length.get() as f64,
        _ => 1.0,
    };
    Box::new(rows.zip(1..).map(move |(norm, t)| norm / (unit * part.row_divisor(t))))
}

struct ScaledRows {
    /// The inverse series, last coefficient first. Row t of `S⁻¹ T` is its last entries divided by
    /// `s_t`.
    reversed: Vec<f64>,
    scales: Vec<f64>,
    /// Weights of squares.
    weights: Vec<f64>,
    alpha: f64,
    beta: f64,
    window: Option<usize>,
    momenta: Vec<f64>,
    row: Vec<f64>,
    /// Weighted sums of m², m v and v² over the entries that change only by α and β.
    unchanged: [f64; 3],
    steps: usize,
}

impl ScaledRows {
    /// Multiplies `sums` by `decay`, then adds `weight` times row `t` of `S⁻¹ T`, counted from 1.
    fn add(sums: &mut [f64], decay: f64, reversed: &[f64], weight: f64) {
        let row = &reversed[reversed.len() - sums.len()..];
        sums.iter_mut().zip(row).for_each(|(sum, g)| *sum = decay * *sum + weight * g);
    }

    /// Moves the entry that the next row of `S⁻¹ T` does not reach to the sums.
    fn retire(&mut self) {
        let [momenta, mixed, values] = self.unchanged;
        let (alpha, beta) = (self.alpha, self.beta);
        self.unchanged = [
            beta * beta * momenta,
            beta * (alpha * mixed + beta * momenta),
            alpha * (alpha * values + 2.0 * beta * mixed) + beta * beta * momenta,
        ];
        let Some(first) = self.steps.checked_sub(self.reversed.len() + 1) else { return };
        if self.window.is_some() {
            return; // it has left the window
        }
        let momentum = self.momenta.get(first).map_or(0.0, |momentum| self.beta * momentum);
        let value = self.alpha * self.row[first] + momentum;
        let squares = [momentum * momentum, momentum * value, value * value];
        self.unchanged.iter_mut().zip(squares).for_each(|(sum, square)| *sum += self.weights[first] * square);
    }
}

impl Iterator for ScaledRows {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        let scale = *self.scales.get(self.steps)?;
        self.steps += 1;
        self.retire();
        let first = self.steps.saturating_sub(self.reversed.len());
        let row = &mut self.row[first..self.steps];
        if self.beta > 0.0 {
            let momenta = &mut self.momenta[first..self.steps];
            Self::add(momenta, self.beta, &self.reversed, 1.0 / scale);
            row.iter_mut().zip(momenta).for_each(|(v, m)| *v = self.alpha * *v + *m);
        } else {
            Self::add(row, self.alpha, &self.reversed, 1.0 / scale);
        }
        if let Some(before) = self.window.and_then(|length| self.steps.checked_sub(length)).filter(|&t| t > 0)
        {
            let row = &mut row[..before.saturating_sub(first)];
            Self::add(row, 1.0, &self.reversed, -1.0 / self.scales[before - 1]);
        }
        let square = weighted_square(row, &self.weights[first..self.steps]);
        Some((self.unchanged[2] + square).sqrt())
    }
}

/// Weighted sum of squares in lanes: takes no longer than reading the row.
fn weighted_square(row: &[f64], weights: &[f64]) -> f64 {
    let ((blocks, rest), (weight_blocks, rest_weights)) = (row.as_chunks::<8>(), weights.as_chunks::<8>());
    let mut lanes = [0.0; 8];
    for (block, weights) in blocks.iter().zip(weight_blocks) {
        lanes.iter_mut().zip(block).zip(weights).for_each(|((sum, v), weight)| *sum += weight * v * v);
    }
    lanes.iter().sum::<f64>() + rest.iter().zip(rest_weights).map(|(v, weight)| weight * v * v).sum::<f64>()
}

fn of_dense<'a>(
    workload: &Workload,
    inverse: &[f64],
    scales: &[f64],
    row_scales: Option<&[f64]>,
) -> RowNorms<'a> {
    let steps = scales.len();
    let coefficient = |t: usize, i: usize| match t.checked_sub(i).and_then(|lag| inverse.get(lag)) {
        Some(term) => term / scales[t] / row_scales.map_or(1.0, |rows| rows[i]),
        None => 0.0,
    };
    let inverse = DMatrix::from_fn(steps, steps, coefficient);
    let decoder = workload.matrix(steps) * inverse;
    Box::new((0..steps).map(move |t| decoder.row(t).norm()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streamed_rows_agree_with_the_quotient() {
        for text in
            ["prefix", "average", "exponential:0.9", "window:7", "window-mean:7", "momentum:0.9", "adam:0.9"]
        {
            let workload: Workload = text.parse().unwrap();
            for coefficients in [vec![0.5], vec![1.0, 0.5, 0.375, 0.3125]] {
                let part = workload.toeplitz_part(300).unwrap();
                let all = of_series(&workload, fast::quotient(&part, &coefficients, 300));
                for (t, (found, expected)) in streamed(&workload, coefficients, 300).zip(all).enumerate() {
                    assert!(
                        (found - expected).abs() < 1e-11 * expected,
                        "{text}, row {t}: {found} {expected}"
                    );
                }
            }
        }
    }
}
