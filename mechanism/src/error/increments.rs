//! The covariance of the noise of increments: `x̂ = C⁻¹y = x + e`, with `Cov(e_i, e_j) = τ²Q_ij`,
//! `Q = C⁻¹C⁻ᵀ`.
//!
//! Errors of post-processing are sums over `(AᵀA)_ij` and `Q_ij`. Both matrices are traversed
//! diagonal by diagonal. That takes n²/2 operations in total if C is a Toeplitz matrix with scaled
//! columns, and n operations if C is diagonal. It requires that A is a Toeplitz matrix, or that its
//! coefficients fall geometrically and its rows are divided. Any other A is written out. For
//! `C = T·D` with T Toeplitz, D diagonal and K = T⁻¹ of coefficients k,
//! `Q_ij = Σ_(u ≤ i) k_u k_(u+j−i) / (D_ii D_jj)` for i ≤ j: the overlaps of columns of K from the
//! last to the first. Any other C⁻¹ is written out by decoding unit vectors.

use crate::series::quotient;
use crate::strategy::{Decoder, Matrix, MatrixError, StepError, Strategy};
use crate::workload::Workload;
use nalgebra::DMatrix;
use std::borrow::Cow;

/// Maximum number of steps for which all pairs of steps are traversed.
const MAX_PAIRED_STEPS: usize = 1 << 14;

/// Maximum number of steps for which a matrix is written out.
const MAX_WRITTEN_STEPS: usize = 1 << 11;

fn check_steps(found: usize, limit: usize) -> Result<(), MatrixError> {
    if found <= limit { Ok(()) } else { Err(MatrixError::WrittenOut { found, limit }) }
}

/// `AᵀA` by diagonals.
pub(super) enum Gram {
    /// Overlaps of the columns of A.
    Columns(Matrix),
    /// `A_ti = β^(t−i)/g_t`, hence `(AᵀA)_ij = β^(j−i) Σ_(t ≥ j) β^(2(t−j))/g_t²` for i ≤ j.
    Geometric {
        /// β.
        decay: f64,
        /// The sums, indexed by j.
        tails: Vec<f64>,
    },
}

impl Gram {
    pub(super) fn new(workload: &Workload, steps: usize) -> Result<Self, MatrixError> {
        let decay = match workload {
            Workload::Prefix | Workload::Average => 1.0,
            Workload::Exponential(decay) | Workload::Adam(decay) => decay.get(),
            _ => {
                let divided = matches!(workload, Workload::WindowMean(_));
                let columns = match workload.toeplitz_part(steps).filter(|_| !divided) {
                    Some(coefficients) => Matrix::toeplitz(coefficients, steps),
                    None => {
                        check_steps(steps, MAX_WRITTEN_STEPS)?;
                        Matrix::dense(workload.matrix(steps))
                    }
                };
                return columns.map(Self::Columns);
            }
        };
        let mut tails: Vec<f64> = (1..=steps as u64).map(|t| workload.row_divisor(t).powi(-2)).collect();
        for t in (1..steps).rev() {
            tails[t - 1] += decay * decay * tails[t];
        }
        Ok(Self::Geometric { decay, tails })
    }

    /// Returns `(AᵀA)_(i, i+lag)` for i = 0, 1, ….
    pub(super) fn diagonal(&self, lag: usize) -> Cow<'_, [f64]> {
        match self {
            Self::Columns(matrix) => matrix.overlaps(lag).into(),
            Self::Geometric { tails, .. } if lag == 0 => tails.into(),
            Self::Geometric { decay, tails } => {
                let weight = decay.powi(lag as i32);
                tails.iter().skip(lag).map(|tail| weight * tail).collect()
            }
        }
    }
}

/// Q by diagonals.
pub(super) enum IncrementCovariance {
    /// K, and D if it is not I.
    Toeplitz { inverse: Matrix, scales: Option<Vec<f64>> },
    /// `C⁻ᵀ`, written out.
    Dense(Matrix),
}

impl IncrementCovariance {
    pub(super) fn new(strategy: &dyn Strategy, steps: usize) -> Result<Self, MatrixError> {
        let matrix = strategy.matrix(steps as u64)?;
        let Some((coefficients, scales)) = matrix.as_toeplitz() else {
            check_steps(steps, MAX_WRITTEN_STEPS)?;
            return Matrix::dense(decoder_matrix(strategy, steps).transpose()).map(Self::Dense);
        };
        if coefficients.len() > 1 {
            check_steps(steps, MAX_PAIRED_STEPS)?;
        }
        let terms = if coefficients.len() > 1 { steps } else { 1 };
        let inverse = Matrix::toeplitz(quotient(&[1.0], coefficients, terms), steps)?;
        Ok(Self::Toeplitz { inverse, scales: scales.map(Vec::from) })
    }

    /// Returns the largest lag at which Q is not 0.
    pub(super) fn reach(&self) -> usize {
        match self {
            Self::Toeplitz { inverse, .. } => inverse.reach(),
            Self::Dense(transposed) => transposed.columns() - 1,
        }
    }

    /// Returns `Q_(i, i+lag)` for i = 0, 1, ….
    pub(super) fn diagonal(&self, lag: usize) -> Vec<f64> {
        match self {
            Self::Dense(transposed) => transposed.overlaps(lag),
            Self::Toeplitz { inverse, scales } => {
                let mut diagonal = inverse.overlaps(lag);
                diagonal.reverse();
                if let Some(scales) = scales {
                    let pairs = scales.iter().zip(&scales[lag..]);
                    diagonal.iter_mut().zip(pairs).for_each(|(value, (one, other))| *value /= one * other);
                }
                diagonal
            }
        }
    }
}

/// Returns `C⁻¹`, by decoding the unit vectors side by side; NaN if the strategy ends earlier.
fn decoder_matrix(strategy: &dyn Strategy, steps: usize) -> DMatrix<f64> {
    let mut decoder = strategy.decoder(steps);
    let mut inverse = DMatrix::zeros(steps, steps);
    let mut row = vec![0.0; steps];
    for t in 0..steps {
        if decode_unit(decoder.as_mut(), t, &mut row).is_err() {
            row.fill(f64::NAN);
        }
        inverse.row_mut(t).copy_from_slice(&row);
    }
    inverse
}

/// Decodes step t of all unit streams; stream i is 1 at step i and 0 elsewhere.
fn decode_unit(decoder: &mut dyn Decoder, t: usize, row: &mut [f64]) -> Result<(), StepError> {
    let mut unit = vec![0.0; row.len()];
    unit[t] = 1.0;
    decoder.decode(&unit, row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::build;

    fn symmetric(steps: usize, diagonal: impl Fn(usize) -> Vec<f64>) -> DMatrix<f64> {
        let diagonals: Vec<_> = (0..steps).map(diagonal).collect();
        DMatrix::from_fn(steps, steps, |i, j| {
            diagonals[i.abs_diff(j)].get(i.min(j)).copied().unwrap_or(f64::NAN)
        })
    }

    #[test]
    fn too_many_steps_are_refused() {
        let check = |name: &str, steps: usize, refused: bool| {
            let strategy = build(name, &Workload::Prefix, Some(steps as u64)).unwrap();
            let found = IncrementCovariance::new(strategy.as_ref(), steps);
            assert_eq!(matches!(found, Err(MatrixError::WrittenOut { .. })), refused, "{name}");
        };
        check("identity", 1 << 20, false);
        check("square-root", 1 << 15, true);
        check("tree-optimal-decoder", 1 << 12, true);
    }

    #[test]
    fn diagonals_agree_with_the_matrices() {
        let steps = 9;
        let table =
            DMatrix::from_fn(
                steps,
                steps,
                |t, i| if i <= t { ((t * 5 + i * 3) % 7) as f64 - 2.0 } else { 0.0 },
            );
        let names =
            ["prefix", "average", "exponential:0.8", "adam:0.7", "window:3", "window-mean:3", "momentum:0.6"];
        let workloads = names.map(|name| name.parse().unwrap()).into_iter();
        for workload in workloads.chain([Workload::from_matrix("table", table).unwrap()]) {
            let a = workload.matrix(steps);
            let gram = Gram::new(&workload, steps).unwrap();
            let found = symmetric(steps, |lag| gram.diagonal(lag).into_owned());
            assert!((found - a.transpose() * a).amax() < 1e-12, "{workload}");
        }
        let strategies = [
            "identity",
            "square-root",
            "normalized-square-root",
            "banded-square-root:3",
            "banded-inverse-square-root:3",
            "tree-optimal-decoder",
            "matrix-square-root",
        ];
        for name in strategies {
            let strategy = build(name, &Workload::Prefix, Some(steps as u64)).unwrap();
            let inverse = strategy.matrix(steps as u64).unwrap().entries().try_inverse().unwrap();
            let covariance = IncrementCovariance::new(strategy.as_ref(), steps).unwrap();
            let found = symmetric(steps, |lag| {
                if lag <= covariance.reach() { covariance.diagonal(lag) } else { vec![0.0; steps - lag] }
            });
            assert!((found - &inverse * inverse.transpose()).amax() < 1e-9, "{name}");
            assert!((decoder_matrix(strategy.as_ref(), steps) - inverse).amax() < 1e-9, "{name}");
        }
    }
}
