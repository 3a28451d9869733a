//! Private covariance matrices of n records at once, from a file or a window.
//!
//! Columns have public bounds, which are mapped to [−1, 1]. A method spends a budget ρ of
//! zero-concentrated differential privacy on noisy entries of the second moments. The rest is
//! post-processing.
//!
//! | file | subject |
//! |---|---|
//! | [`sample`] | records as integers, exact moments, sensitivities with proofs |
//! | [`pace`] | PACE-GGM (Ferrando et al. 2026): entries selected and measured one by one |
//! | [`completion`] | the maximum-entropy matrix that fits measured entries |
//! | `shrunk` | all entries at once, at a private clipping norm |
//! | `few` | the same for one to three columns |
//! | `shrinkage` | estimates from all entries, chosen by their estimated error |
//! | [`baselines`] | all entries at once, the diagonal, eigenvalues; CoinPress, AdaptiveCov |
//! | `project` | other projections of entries measured at once |
//! | [`spending`] | ρ, spent in parts; the cost of an estimate as one Gaussian mechanism |
//! | [`estimate`] | the result and its graph; linear regression from it, and AdaSSP |
//!
//! Contract, proofs, gaps in the papers and results: `docs/covariance.md`.

pub mod baselines;
pub mod completion;
pub mod estimate;
mod few;
pub mod pace;
mod project;
pub mod sample;
mod shrinkage;
mod shrunk;
pub mod spending;

pub use estimate::{CovarianceEstimate, EntryMeasurement};
pub use pace::Pace;
pub use sample::CovarianceSample;
pub use spending::CovarianceSpending;
pub use spending::{BudgetPurpose, CovarianceBudget};

use hushflow_mechanism::accounting::AccountingError;
use hushflow_mechanism::estimate::projection::UnknownName;
use hushflow_mechanism::moments::{ClipError, MomentError, RecordError};
use hushflow_mechanism::noise::scale::NoiseScaleError;
use hushflow_mechanism::noise::selection::SelectionError;
use hushflow_mechanism::numbers;
use hushflow_mechanism::sensitivity::Neighbours;
use nalgebra::DMatrix;
use rand::CryptoRng;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Reasons why there is no estimate. They follow from public numbers alone, except those that
/// [follow from releases](CovarianceError::follows_from_releases).
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum CovarianceError {
    /// Unusable bounds.
    #[error(transparent)]
    Bounds(#[from] ClipError),
    /// Records with another number of columns.
    #[error(transparent)]
    Records(#[from] RecordError),
    /// Moments beyond 128 bits.
    #[error(transparent)]
    Moments(#[from] MomentError),
    /// Too few records. Never reported if counts are private.
    #[error("found {found} records, expected at least 2: a covariance takes more than one")]
    TooFew {
        /// The number of records.
        found: usize,
    },
    /// ρ is not positive or not finite.
    #[error("rho is {0:?}, but must be a finite number above 0")]
    Rho(f64),
    /// A share of the budget outside (0, 1).
    #[error("the share of the budget for {what} is {share:?}, but must be above 0 and below 1")]
    Share {
        /// Its purpose: one of `SHARES`.
        what: &'static str,
        /// The share as given.
        share: f64,
    },
    /// No proof of privacy covers these neighbours.
    #[error(
        "no estimate for {0} neighbours: expected replace-one-in-place, where the number of records is public, or zero-out"
    )]
    Neighbours(Neighbours),
    /// A method that divides by the number of records before noise is added.
    #[error(
        "this method needs a public number of records: choose replace-one-in-place neighbours, or another method"
    )]
    PublicCount,
    /// The noise does not fit the grid.
    #[error(transparent)]
    Noise(#[from] NoiseScaleError),
    /// A selection whose privacy parameters are unusable.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// Accounting failed.
    #[error(transparent)]
    Accounting(#[from] AccountingError),
    /// A requested part of the budget exceeds the remaining budget.
    #[error("a part of {wanted:e} exceeds the remaining rho of {left:e}")]
    Overspent {
        /// The requested part.
        wanted: f64,
        /// The remaining budget.
        left: f64,
    },
    /// A result exceeds the range of floating-point numbers.
    #[error("the estimate is beyond floating point: choose bounds of ordinary size, or a larger rho")]
    Numerical,
}

numbers!(enum CovarianceError {
    0 Bounds(error), 1 Records(error), 2 Moments(error), 3 TooFew { found }, 4 Rho(rho),
    5 Share { what: SHARES, share }, 6 Neighbours(neighbours), 7 PublicCount, 8 Noise(error), 9 Selection(error),
    10 Accounting(error), 11 Overspent { wanted, left }, 12 Numerical
});

/// Purposes of shares of a budget.
const SHARES: [&str; 4] = ["centring", "the diagonal", "selections", "the number of clipped records"];

impl CovarianceError {
    /// Whether the error may follow from releases, so that it costs as much as an estimate.
    pub fn follows_from_releases(&self) -> bool {
        matches!(self, Self::Numerical | Self::Overspent { .. })
    }
}

/// Method of estimating a covariance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum CovarianceMethod {
    /// The whole matrix at a private clipping norm, shrunk by the known noise: towards the
    /// diagonal, towards few directions, or not at all.
    Shrunk,
    /// PACE-GGM: the diagonal, then poorly estimated entries one by one.
    Pace,
    /// The whole matrix, with the noise of the paper's baseline.
    Ssp,
    /// The whole matrix, with the least noise that hides a record of bounded columns.
    SspTight,
    /// The diagonal alone.
    Diagonal,
    /// The better of [`CovarianceMethod::Ssp`] and [`CovarianceMethod::Separate`] by a private
    /// trace, at a private clipping norm (Dong et al. 2022).
    Adaptive,
    /// Eigenvalues and eigenvectors with separate noise (Dong et al. 2022).
    Separate,
    /// Clipping to an ellipsoid that is refined step by step (Biswas et al. 2020).
    #[serde(rename = "coinpress")]
    CoinPress,
}

impl CovarianceMethod {
    /// All methods.
    pub const ALL: [Self; 8] = [
        Self::Shrunk,
        Self::Pace,
        Self::Ssp,
        Self::SspTight,
        Self::Diagonal,
        Self::Adaptive,
        Self::Separate,
        Self::CoinPress,
    ];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shrunk => "shrunk",
            Self::Pace => "pace",
            Self::Ssp => "ssp",
            Self::SspTight => "ssp-tight",
            Self::Diagonal => "diagonal",
            Self::Adaptive => "adaptive",
            Self::Separate => "separate",
            Self::CoinPress => "coinpress",
        }
    }

    /// Describes the method in one line.
    pub fn about(self) -> &'static str {
        match self {
            Self::Shrunk => {
                "Covariance with noise on every entry, at a private clipping norm, shrunk by the known noise."
            }
            Self::Pace => {
                "Covariance: the diagonal, then the entries that fit badly; for many columns and small budgets."
            }
            Self::Ssp => "Covariance with noise on every entry.",
            Self::SspTight => "The same with the least noise that hides a record of bounded columns.",
            Self::Diagonal => "Variances only.",
            Self::Adaptive => "The better of ssp and separate, by a private trace.",
            Self::Separate => "Eigenvalues and eigenvectors with separate noise.",
            Self::CoinPress => "Clips to an ellipsoid that is refined step by step.",
        }
    }

    /// Estimates the covariance of a sample with the remaining budget, about the middle of the
    /// bounds or about a mean that takes the share `centre` of the budget.
    ///
    /// # Errors
    /// [`CovarianceError`]: from public numbers alone, unless it [follows from
    /// releases](CovarianceError::follows_from_releases).
    pub fn estimate<R: CryptoRng + ?Sized>(
        self,
        sample: &CovarianceSample<'_>,
        centre: Option<f64>,
        budget: CovarianceBudget,
        rng: &mut R,
    ) -> Result<CovarianceEstimate, CovarianceError> {
        match self {
            Self::Pace => Pace { centre, ..Pace::default() }.estimate(sample, budget, rng),
            _ => baselines::estimate(self, sample, centre, budget, rng),
        }
    }
}

impl fmt::Display for CovarianceMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CovarianceMethod {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let expected = "shrunk, pace, ssp, ssp-tight, diagonal, adaptive, separate or coinpress";
        Self::ALL
            .into_iter()
            .find(|method| method.name() == text)
            .ok_or_else(|| UnknownName { found: text.into(), expected })
    }
}

/// Returns the nearest positive semidefinite matrix in the Frobenius norm (Higham 1988). `None` if
/// the eigendecomposition fails.
pub(crate) fn nearest_semidefinite(matrix: &DMatrix<f64>) -> Option<DMatrix<f64>> {
    let eigen = nalgebra::SymmetricEigen::try_new(matrix.clone(), f64::EPSILON, 100 * matrix.nrows() + 100)?;
    let raised = DMatrix::from_diagonal(&eigen.eigenvalues.map(|value| value.max(0.0)));
    let nearest = &eigen.eigenvectors * raised * eigen.eigenvectors.transpose();
    Some((&nearest + nearest.transpose()) / 2.0)
}

#[cfg(test)]
mod tests;
