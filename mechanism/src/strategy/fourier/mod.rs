//! The Fourier mechanism: running sums of n steps as a circulant matrix of 2n rows, factored at the
//! square root of its eigenvalues ("Multi-Epoch Matrix Factorization Mechanisms", Choquette-Choo et
//! al., 2023, section 4, appendix K).
//!
//! The encoder C is the first n columns of that root. Its decoders:
//! - `fft`: the first n rows of the root. All rows have the squared norm `‖v‖₁/(2n)`, v being the
//!   eigenvalues.
//! - `fft-optimal-decoder`: the optimal decoder, `A` times the pseudo-inverse of C.
//!
//! # Closed forms
//!
//! The eigenvalues have magnitude n once, 0 at the other even frequencies and `1/sin(πa/2n)` at the
//! odd ones a, so `T = CᵀC` is the Toeplitz matrix of
//! `1/2 + (1/2n) Σ_(a odd) cos(πak/n)/sin(πa/2n)`. With
//!
//! ```text
//! q_k = 1/(n sin((2k+1)π/2n)),   Q_t = q_0 + … + q_(t−1),   Q = Q_n
//! ```
//!
//! the identity `Σ_(j<n) sin((2j+1)φ) = sin²(nφ)/sin φ` gives `T_k = (1 + Q)/2 − Q_k`. T minus 1/2
//! in every entry is skew-circulant, with the eigenvalues `1/(2 sin(πa/2n))`. Its inverse has the
//! coefficients `s_0 = 2q_0`, `s_k = q_k − q_(k−1)`, and maps the vector of ones to 2q. So, by
//! Sherman and Morrison,
//!
//! ```text
//! (CᵀC)⁻¹ = (s_|i−j|) − 2 q qᵀ/(1 + Q)
//! ```
//!
//! and the variances of the running sums with the optimal decoder are `2 Q_t (1 − Q_t/(1 + Q))`. No
//! transform is needed: all row norms of a named workload take O(n), for any n.
//!
//! # Causal form
//! The causal square form of the Fourier encoder is the lower-triangular C with the same CᵀC, a
//! Toeplitz matrix.
//!
//! Let `T = LLᵀ` be a Toeplitz matrix with Cholesky factor L. Reversing rows and columns of T gives
//! T again, so `C[t,i] = L[n−1−i, n−1−t]` is lower-triangular with `CᵀC = T`. The Schur algorithm
//! (Schur, 1917; Kailath, Vieira and Morf, 1978) computes the columns of L in turn, in O(n) each:
//! two vectors generate T, and each column takes a hyperbolic rotation of them.

mod transform;

use super::{
    Discrepancy, Factorization, Kind, MAX_DENSE_HORIZON, MAX_HISTORY_HORIZON, Matrix, MatrixError, RowNorms,
    StrategyError, check_horizon, dense,
};
use crate::strategy::Dense;
use crate::workload::Workload;
use faer::Mat;
use nalgebra::DMatrix;
use std::f64::consts::PI;
use std::iter;
use std::sync::Arc;

/// `fft`: the Fourier mechanism with its own decoder.
pub(super) static FFT: Kind = Kind {
    compared: Kind::if_short,
    factorization: Some(|horizon| Ok(Arc::new(Fourier::new(horizon)?))),
    ..Kind::new("fft", "the Fourier mechanism, for comparison: `run` can't use it")
};

/// The Fourier encoder over a number of steps, with either of its decoders.
///
/// ```
/// use hushflow_mechanism::strategy::{Factorization, Fourier};
/// use hushflow_mechanism::workload::Workload;
///
/// let fourier = Fourier::optimal(100_000)?;
/// let variance: f64 = fourier.decoder_row_norms(&Workload::Prefix, 100_000).map(|norm| norm * norm).sum();
/// let loss = fourier.max_column_norm_squared(100_000) * variance;
/// assert!((loss / 100_000.0).sqrt() < 5.4);
/// # Ok::<(), hushflow_mechanism::strategy::StrategyError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Fourier {
    /// Whether the decoder is the optimal one.
    optimal: bool,
    /// q_k for all k < n.
    reciprocals: Vec<f64>,
    /// Q.
    total: f64,
}

impl Fourier {
    /// The encoder with the decoder of `fft`.
    ///
    /// # Errors
    /// [`StrategyError::Horizon`] for a horizon of 0 or more than [`MAX_HISTORY_HORIZON`] steps.
    pub fn new(horizon: u64) -> Result<Self, StrategyError> {
        Self::with_decoder(horizon, false)
    }

    /// The encoder with the optimal decoder.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn optimal(horizon: u64) -> Result<Self, StrategyError> {
        Self::with_decoder(horizon, true)
    }

    fn with_decoder(horizon: u64, optimal: bool) -> Result<Self, StrategyError> {
        check_horizon(&FFT.name(), horizon, MAX_HISTORY_HORIZON)?;
        let reciprocals = reciprocals(horizon as usize);
        let total = reciprocals.iter().sum();
        Ok(Self { optimal, reciprocals, total })
    }

    /// T_k for all k < n.
    fn gram(&self) -> Vec<f64> {
        gram(&self.reciprocals)
    }

    /// s_k for all k < n.
    fn inverse(&self) -> Vec<f64> {
        let q = &self.reciprocals;
        iter::once(2.0 * q[0]).chain(q.windows(2).map(|pair| pair[1] - pair[0])).collect()
    }

    fn within_horizon(&self, steps: u64) -> usize {
        (steps as usize).min(self.reciprocals.len())
    }

    /// Squared norms of the rows of B for a Toeplitz A.
    ///
    /// `fft` estimates running sums with covariance T, and row t of A is `Σ_i δ_(t−i) S_i` with the
    /// differences δ of a. `δ∗T` is A applied to the differences of T.
    fn toeplitz_squares(&self, workload: &Workload, toeplitz: &[f64]) -> Vec<f64> {
        if self.optimal {
            let inverse = self.inverse();
            let squares =
                quadratic_forms(toeplitz, &convolved(workload, &inverse, toeplitz.len()), inverse[0]);
            let projections = convolved(workload, &self.reciprocals, toeplitz.len());
            let correction = |b: f64| 2.0 * b * b / (1.0 + self.total);
            squares.into_iter().zip(projections).map(|(square, b)| square - correction(b)).collect()
        } else {
            let (differences, gram) = (differences(toeplitz), self.gram());
            let covariances = convolved(workload, &self::differences(&gram), toeplitz.len());
            quadratic_forms(&differences, &covariances, gram[0])
        }
    }

    /// Covariance of the estimated increments of the first steps.
    fn covariance(&self, steps: usize) -> Mat<f64> {
        if self.optimal {
            let (inverse, q) = (self.inverse(), &self.reciprocals);
            let correction = |i: usize, j: usize| 2.0 * q[i] * q[j] / (1.0 + self.total);
            Mat::from_fn(steps, steps, |i, j| inverse[i.abs_diff(j)] - correction(i, j))
        } else {
            let gram = self.gram();
            let sums = |i: usize, j: usize| if i * j == 0 { 0.0 } else { gram[i.abs_diff(j)] };
            Mat::from_fn(steps, steps, |i, j| {
                sums(i + 1, j + 1) - sums(i, j + 1) - sums(i + 1, j) + sums(i, j)
            })
        }
    }

    fn dense_squares(&self, workload: &Workload, steps: usize) -> Vec<f64> {
        let rows = dense::transposed_workload(workload, 0..steps, 0..steps);
        let products = self.covariance(steps) * &rows;
        let inner = |t| rows.col(t).iter().zip(products.col(t).iter()).map(|(a, b)| a * b).sum();
        (0..steps).map(inner).collect()
    }

    /// First column of the circulant root:
    /// `(1/2n) (√n + Σ_(a odd) sin(πa/2n)^(−1/2) cos(πak/n + πa/4n − π/4))`, the eigenvalue at the
    /// frequency a being `1 − i cot(πa/2n)`.
    fn circulant_root(&self) -> Vec<f64> {
        let n = self.reciprocals.len();
        let cosines: Vec<f64> = (0..8 * n).map(|turn| libm::cos(PI * turn as f64 / (4 * n) as f64)).collect();
        let roots: Vec<f64> = self.reciprocals.iter().map(|q| (q * n as f64).sqrt()).collect();
        let phase = |k: usize, a: usize| (4 * a * k + a + 7 * n) % (8 * n);
        let wave = |k: usize, j: usize| roots[j] * cosines[phase(k, 2 * j + 1)];
        let entry = |k| (0..n).map(|j| wave(k, j)).sum::<f64>();
        (0..2 * n).map(|k| (entry(k) + (n as f64).sqrt()) / (2 * n) as f64).collect()
    }
}

impl Fourier {
    /// An entry of the root is `1/2n` times a sum of √n and of n products of a root `(nq_j)^(1/2)`
    /// and a cosine. Each product is off by at most 2⁻⁴⁸ of the root: angles are below 2π with a
    /// relative error of 2⁻⁵², and `libm` is assumed to err by 2⁻⁵⁰. Summing n + 1 terms adds 2⁻⁵³
    /// of their magnitudes for each. A column has 2n entries.
    fn discrepancy(&self) -> Discrepancy {
        let n = self.reciprocals.len() as f64;
        let magnitudes = self.reciprocals.iter().map(|q| (q * n).sqrt()).sum::<f64>() + n.sqrt();
        let entry = magnitudes / (2.0 * n) * (32.0 + n) * f64::EPSILON;
        Discrepancy { column: entry * (2.0 * n).sqrt() * 1.01, ..Discrepancy::NONE }
    }
}

/// q_k for all k < n; they are symmetric.
fn reciprocals(n: usize) -> Vec<f64> {
    let angle = |k: usize| (2 * k.min(n - 1 - k) + 1) as f64 * PI / (2 * n) as f64;
    (0..n).map(|k| 1.0 / (n as f64 * libm::sin(angle(k)))).collect()
}

fn gram(reciprocals: &[f64]) -> Vec<f64> {
    let total: f64 = reciprocals.iter().sum();
    let next = |entry: &mut f64, q: &f64| Some(std::mem::replace(entry, *entry - q));
    reciprocals.iter().scan((1.0 + total) / 2.0, next).collect()
}

fn differences(series: &[f64]) -> Vec<f64> {
    let first = series.first().copied();
    first.into_iter().chain(series.windows(2).map(|pair| pair[1] - pair[0])).collect()
}

/// The Toeplitz part of A applied to a series.
fn convolved(workload: &Workload, series: &[f64], steps: usize) -> Vec<f64> {
    let mut state = workload.state(1);
    let apply = |(t, &term): (u64, &f64)| {
        let row = state.push(&[term]).map_or(f64::NAN, |row| row[0]);
        row * workload.row_divisor(t)
    };
    (1..).zip(&series[..steps]).map(apply).collect()
}

/// `Σ_(i,j≤t) a_i a_j k_|i−j|` for all t, given a, the convolution `a∗k` and `k_0`.
fn quadratic_forms(a: &[f64], convolved: &[f64], first: f64) -> Vec<f64> {
    let next = |sum: &mut f64, (&a, &b): (&f64, &f64)| {
        *sum += a * (2.0 * b - a * first);
        Some(*sum)
    };
    a.iter().zip(convolved).scan(0.0, next).collect()
}

impl Factorization for Fourier {
    fn name(&self) -> String {
        if self.optimal { &FFT_OPTIMAL_DECODER } else { &FFT }.name().to_string()
    }

    fn horizon(&self) -> Option<u64> {
        Some(self.reciprocals.len() as u64)
    }

    /// The encoder, 2n rows, up to rounding, for a horizon of at most [`MAX_DENSE_HORIZON`].
    fn matrix(&self, steps: u64) -> Result<Matrix, MatrixError> {
        let (steps, rows) = (self.within_horizon(steps), 2 * self.reciprocals.len());
        if self.reciprocals.len() as u64 > MAX_DENSE_HORIZON {
            return Err(MatrixError::WrittenOut { found: steps, limit: MAX_DENSE_HORIZON as usize });
        }
        let root = self.circulant_root();
        let matrix = Matrix::dense(DMatrix::from_fn(rows, steps, |k, i| root[(k + rows - i) % rows]))?;
        Ok(matrix.with_discrepancy(self.discrepancy()))
    }

    /// `(1 + Q)/2` for every column, plus the rounding of n terms and of their sum.
    fn max_column_norm_squared(&self, _: u64) -> f64 {
        let terms = self.reciprocals.len() as f64 + 16.0;
        (1.0 + self.total) / 2.0 * (1.0 + terms * f64::EPSILON)
    }

    fn decoder_row_norms(&self, workload: &Workload, steps: u64) -> RowNorms<'_> {
        let steps = self.within_horizon(steps);
        let squares = match workload.toeplitz_part(steps) {
            Some(toeplitz) => self.toeplitz_squares(workload, &toeplitz),
            None => return Box::new(self.dense_squares(workload, steps).into_iter().map(f64::sqrt)),
        };
        let divisors: Vec<f64> = (1..=steps as u64).map(|t| workload.row_divisor(t)).collect();
        Box::new(squares.into_iter().zip(divisors).map(|(square, divisor)| square.sqrt() / divisor))
    }
}

/// `fft-optimal-decoder`, which can run; [`Fourier`] computes errors for longer horizons.
pub(in crate::strategy) static FFT_OPTIMAL_DECODER: Kind = Kind {
    horizon: MAX_DENSE_HORIZON,
    compared: Kind::if_short,
    strategy: Some(|specification| Ok(Arc::new(fft_optimal_decoder(specification.steps()?)?))),
    factorization: Some(|horizon| Ok(Arc::new(Fourier::optimal(horizon)?))),
    ..Kind::new("fft-optimal-decoder", "the encoder of `fft` with the best decoder, in causal form")
};

fn fft_optimal_decoder(horizon: u64) -> Result<Dense, StrategyError> {
    Dense::new(FFT_OPTIMAL_DECODER.name(), &causal_form(&gram(&reciprocals(horizon as usize))))
}

/// The lower-triangular C with `(CᵀC)_ij = gram_|i−j|`. Plain loops, for the same result on every
/// machine.
fn causal_form(gram: &[f64]) -> DMatrix<f64> {
    let n = gram.len();
    let mut c = DMatrix::zeros(n, n);
    let mut leading: Vec<f64> = gram.iter().map(|entry| entry / gram[0].sqrt()).collect();
    let mut trailing = leading[1..].to_vec();
    for t in (0..n).rev() {
        leading.iter().enumerate().for_each(|(lag, &entry)| c[(t, t - lag)] = entry);
        if t > 0 {
            leading.pop();
            let reflection = trailing[0] / leading[0];
            let norm = ((1.0 - reflection) * (1.0 + reflection)).sqrt();
            for (a, b) in leading.iter_mut().zip(&mut trailing) {
                (*a, *b) = ((*a - reflection * *b) / norm, (*b - reflection * *a) / norm);
            }
            trailing.remove(0);
        }
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::{Factorization, Strategy, conformance};

    fn close(found: f64, expected: f64, tolerance: f64, name: &str) {
        assert!((found - expected).abs() <= tolerance * expected.abs(), "{name}: {found} against {expected}");
    }

    #[test]
    fn the_encoder_agrees_with_the_reference() {
        for case in &crate::reference::cases(include_str!("../../../../tests/vectors/memf_fft.json")) {
            let n = case["input"]["n"].as_u64().unwrap();
            let expected = |field: &str| case["expected"][field].as_f64().unwrap();
            let fourier = Fourier::new(n).unwrap();
            let norm = fourier.max_column_norm_squared(n);
            close(norm, expected("encoder_column_norm2"), 1e-10, "column norm");
            close(2.0 * n as f64 * norm, expected("v_dft_l1"), 1e-10, "eigenvalues");
            let squares = fourier.decoder_row_norms(&Workload::Prefix, n).map(|row| row * row);
            let error = norm * squares.sum::<f64>() / (2.0 * n as f64);
            close(error, expected("mse_per_step_rho1"), 1e-10, "error");
            let root = fourier.circulant_root();
            for (found, expected) in
                root.iter().zip(case["expected"]["encoder_first_column"].as_array().unwrap())
            {
                close(*found, expected.as_f64().unwrap(), 1e-10, "coefficient");
            }
        }
    }

    #[test]
    fn row_norms_agree_with_dense_decoders() {
        let any = DMatrix::from_fn(24, 24, |t, i| if i > t { 0.0 } else { ((t * 7 + i * 3) as f64).sin() });
        let any = Workload::from_matrix("any", any).unwrap();
        let workloads =
            ["prefix", "average", "exponential:0.8", "window:3", "window-mean:3", "momentum:0.9", "adam:0.9"];
        let workloads = workloads.map(|text| text.parse().unwrap()).into_iter().chain([any]);
        for workload in workloads {
            for (n, optimal) in [1, 2, 5, 24].into_iter().flat_map(|n| [(n, false), (n, true)]) {
                let fourier = Fourier::with_decoder(n as u64, optimal).unwrap();
                let c = fourier.matrix(n as u64).unwrap().entries();
                let root = fourier.circulant_root();
                let sums = DMatrix::from_fn(n, 2 * n, |t, k| root[(t + 2 * n - k) % (2 * n)]);
                assert!((&sums * &c - Workload::Prefix.matrix(n)).amax() < 1e-13, "{n}");
                let increments = match optimal {
                    false => Workload::Prefix.matrix(n).try_inverse().unwrap() * sums,
                    true => c.pseudo_inverse(1e-12).unwrap(),
                };
                let decoder = workload.matrix(n) * increments;
                let norms: Vec<f64> = fourier.decoder_row_norms(&workload, n as u64).collect();
                assert_eq!(norms.len(), n);
                for (t, &norm) in norms.iter().enumerate() {
                    close(norm, decoder.row(t).norm(), 1e-11, &format!("{optimal} {workload} {n}: row {t}"));
                }
            }
        }
    }

    #[test]
    fn the_inverse_agrees_with_the_gram_matrix() {
        let fourier = Fourier::optimal(50).unwrap();
        let gram = fourier.gram();
        let gram = Mat::from_fn(50, 50, |i, j| gram[i.abs_diff(j)]);
        let error = gram * fourier.covariance(50) - Mat::<f64>::identity(50, 50);
        assert!(error.norm_max() < 1e-13);
    }

    /// Squared decoder norms of several copies: that of a finished block is added to all rows after
    /// it.
    #[test]
    fn stamped_decoders_agree_with_the_reference() {
        let check = |fourier: Result<Fourier, _>, n: u64, copies: u64, expected: f64| {
            let fourier = fourier.unwrap();
            let squares: Vec<f64> =
                fourier.decoder_row_norms(&Workload::Prefix, n).map(|row| row * row).collect();
            let finished = (copies * (copies - 1) / 2 * n) as f64 * squares[squares.len() - 1];
            close(squares.iter().sum::<f64>() * copies as f64 + finished, expected, 1e-10, "decoder");
        };
        check(Fourier::new(2000), 2000, 1, 6801.40763125082);
        check(Fourier::new(400), 400, 5, 17330.423686788996);
        check(Fourier::new(100), 100, 20, 51389.83064789314);
        check(Fourier::optimal(1000), 1000, 2, 7732.904681796061);
        check(Fourier::optimal(200), 200, 10, 19595.21246186326);
    }

    #[test]
    fn matrices_too_large_to_write_out_are_refused() {
        assert!(Fourier::new(5000).unwrap().matrix(10).is_err());
        assert!(Fourier::new(0).is_err() && Fourier::optimal(MAX_HISTORY_HORIZON + 1).is_err());
    }

    #[test]
    fn the_square_form_has_the_gram_matrix() {
        for n in [1, 2, 3, 10, 300] {
            let gram = gram(&reciprocals(n));
            let c = causal_form(&gram);
            let expected = DMatrix::from_fn(n, n, |i, j| gram[i.abs_diff(j)]);
            assert!((c.transpose() * c - expected).amax() < 1e-12, "{n}");
        }
    }

    #[test]
    fn streaming_agrees_with_the_matrix() {
        for (workload, steps) in
            [("prefix", 1), ("prefix", 20), ("window:3", 16), ("window-mean:3", 16), ("average", 13)]
        {
            let strategy = fft_optimal_decoder(steps).unwrap();
            conformance::check(&strategy, &workload.parse().unwrap(), steps as usize);
        }
    }

    #[test]
    fn strategy_agrees_with_its_closed_forms() {
        for workload in
            ["prefix", "average", "exponential:0.99", "window:30", "window-mean:30", "momentum:0.9"]
        {
            for n in [100, 1000] {
                let workload = workload.parse().unwrap();
                let strategy = fft_optimal_decoder(n).unwrap();
                let fourier = Fourier::optimal(n).unwrap();
                let scale =
                    (fourier.max_column_norm_squared(n) / strategy.geometry().max_norm_squared).sqrt();
                let pairs =
                    strategy.decoder_row_norms(&workload, n).zip(fourier.decoder_row_norms(&workload, n));
                for (t, (found, expected)) in pairs.enumerate() {
                    let ratio = found / scale / expected;
                    assert!((ratio - 1.0).abs() < 1e-10, "{workload} {n}: row {t}: {ratio}");
                }
            }
        }
    }
}
