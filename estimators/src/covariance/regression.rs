//! Linear regression from private second moments: from a covariance of any method, or from SSP
//! (Wang 2018's AdaSSP, in zCDP).
//!
//! The last third of the budget sets the ridge. The least eigenvalue of the regressors' second
//! moments is measured with noise, and the ridge raises it to what the noise of the other moments
//! may have removed. Everything is in z, between −1 and 1.
//!
//! **Sensitivity** of the least eigenvalue of Σ qqᵀ: it moves by at most the spectral norm of vvᵀ −
//! uuᵀ ≤ R² (Weyl), plus the error of the eigenvalue search ([`eigenvalue_slack`](super::rivals)).

use super::rivals::{eigenvalue_slack, eigenvalues};
use super::sample::{CovarianceSample, measure};
use super::spending::{BudgetPurpose, CovarianceBudget};
use super::{CovarianceError, CovarianceMethod};
use nalgebra::{Cholesky, DMatrix, DVector};
use rand::CryptoRng;

/// Failure probability of the ridge.
const TAIL: f64 = 0.05;

/// A private regression of one column on the others.
#[derive(Clone, Debug, PartialEq)]
pub struct RegressionEstimate {
    /// The coefficient of each column except the target, in the columns' own units.
    pub coefficients: Vec<f64>,
    /// The ridge, in z² per record.
    pub ridge: f64,
    /// Spent budget.
    pub budget: CovarianceBudget,
}

/// Returns the coefficients of the column `target` on the others, from second moments and a ridge.
/// `None` if they are not determined.
pub fn coefficients(moments: &DMatrix<f64>, target: usize, ridge: f64) -> Option<DVector<f64>> {
    let others = moments.clone().remove_row(target).remove_column(target);
    let with_target = moments.column(target).clone_owned().remove_row(target);
    let size = others.nrows();
    Some(Cholesky::new(others + DMatrix::identity(size, size) * ridge)?.solve(&with_target))
}

/// Regresses the column `target` on the others. Two thirds of the rest of the budget go to second
/// moments by `method`, one third to the ridge. [`CovarianceMethod::Ssp`] makes it AdaSSP.
///
/// # Errors
/// [`CovarianceError`], by public numbers alone; [`CovarianceError::Numerical`] if `target` is no
/// column.
pub fn regress<R: CryptoRng + ?Sized>(
    method: CovarianceMethod,
    sample: &CovarianceSample<'_>,
    target: usize,
    mut budget: CovarianceBudget,
    rng: &mut R,
) -> Result<RegressionEstimate, CovarianceError> {
    if target >= sample.dimension() || sample.dimension() < 2 {
        return Err(CovarianceError::Numerical);
    }
    let third = budget.left() / 3.0;
    let others: Vec<f64> = sample
        .records()
        .chunks_exact(sample.dimension())
        .flat_map(|record| record.iter().enumerate().filter(|(place, _)| *place != target).map(|(_, x)| *x))
        .collect();
    let (centres, widths) = (sample.centres(), sample.half_widths());
    let kept = (0..sample.dimension()).filter(|place| *place != target);
    let bounds: Vec<(f64, f64)> = kept.map(|j| (centres[j] - widths[j], centres[j] + widths[j])).collect();
    let regressors = CovarianceSample::new(&bounds, &others, sample.neighbours())?;
    let least = eigenvalues(&regressors)?.last().copied().unwrap_or(0);
    let sensitivity = regressors.trace_sensitivity() + eigenvalue_slack(&regressors);
    let noisy = measure(&mut budget, (BudgetPurpose::Eigenvalues, third), least, sensitivity, rng)?;
    let unit = regressors.grid() * regressors.grid() / regressors.rows() as f64;
    let log = (6.0 / TAIL).ln();
    let least = ((noisy.value as f64 - noisy.deviation * (2.0 * log).sqrt()) * unit).max(0.0);
    let d = bounds.len() as f64;
    let spread = sample.matrix_sensitivity() / (2.0 * budget.left()).sqrt() * sample.grid().powi(2)
        / regressors.rows() as f64;
    let ridge = (spread * (d * (2.0 * d * d / TAIL).ln()).sqrt() - least).max(0.0);
    let estimate = method.estimate(sample, None, budget, rng)?;
    let size = sample.dimension();
    let moments = DMatrix::from_fn(size, size, |i, j| estimate.covariance[(i, j)] / (widths[i] * widths[j]));
    // A singular matrix needs a small positive ridge.
    let found = coefficients(&moments, target, ridge.max(1e-12)).ok_or(CovarianceError::Numerical)?;
    let kept = (0..size).filter(|place| *place != target);
    let coefficients = kept.zip(found.iter()).map(|(j, b)| b * widths[target] / widths[j]).collect();
    Ok(RegressionEstimate { coefficients, ridge, budget: estimate.budget })
}
