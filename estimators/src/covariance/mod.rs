//! Private covariance matrices of n records at once, of a file or of a window.
//!
//! Columns lie between public bounds, which are mapped to [−1, 1]. A method spends a budget ρ of zero-concentrated differential
//! privacy on noisy entries of the second moments, and what follows from these is post-processing.
//!
//! | file | subject |
//! |---|---|
//! | [`sample`] | records as integers, their exact moments, and what a neighbour changes of each statistic, with proofs |
//! | [`budget`] | ρ, spent part by part |
//! | [`pace`] | PACE-GGM (Ferrando et al. 2026): entries selected and measured one by one |
//! | [`completion`] | the maximum-entropy matrix that fits measured entries |
//! | [`rivals`] | the whole matrix at once, the diagonal alone, eigenvalues apart, CoinPress |
//! | `adaptive` | AdaptiveCov: the better of two of these, at a clipping norm that is sought |
//! | `project` | other projections of what was measured at once |
//! | [`spending`] | what an estimate spends in all, as one Gaussian mechanism |
//! | [`estimate`] | what comes out, its errors, its graph |
//! | [`regression`] | linear regression from a private covariance, and AdaSSP |
//!
//! Contract, proofs, what the papers leave open and results: `docs/covariance.md`.

mod adaptive;
pub mod budget;
pub mod completion;
pub mod estimate;
pub mod pace;
mod project;
pub mod regression;
pub mod rivals;
pub mod sample;
pub mod spending;

pub use budget::{Budget, Part};
pub use estimate::{Estimate, Measurement};
pub use pace::Pace;
pub use sample::Sample;
pub use spending::Spending;

use hushflow_mechanism::accounting::AccountingError;
use hushflow_mechanism::moments::{ClipError, MomentError, RecordError};
use hushflow_mechanism::noise::scale::NoiseScaleError;
use hushflow_mechanism::noise::selection::SelectionError;
use hushflow_mechanism::sensitivity::Neighbours;
use nalgebra::DMatrix;
use rand::CryptoRng;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Why there is no estimate. Each of these is decided by public numbers alone, but for those that
/// [follow from what was released](CovarianceError::follows_from_releases).
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum CovarianceError {
    /// Bounds that can't be used.
    #[error(transparent)]
    Bounds(#[from] ClipError),
    /// Records of another number of columns.
    #[error(transparent)]
    Records(#[from] RecordError),
    /// Moments beyond 128 bits.
    #[error(transparent)]
    Moments(#[from] MomentError),
    /// Too few records. Where counts are private this is never said.
    #[error("found {found} records, expected at least 2: a covariance takes more than one")]
    TooFew {
        /// The number of records.
        found: usize,
    },
    /// ρ can't be spent.
    #[error("rho is {0:?}, but must be a finite number above 0")]
    Rho(f64),
    /// A share of the budget that is none.
    #[error("the share of the budget for {what} is {share:?}, but must be above 0 and below 1")]
    Share {
        /// What it is for.
        what: &'static str,
        /// What was found.
        share: f64,
    },
    /// No proof for these neighbours.
    #[error(
        "no estimate for {0} neighbours: expected replace-one-in-place, where the number of records is public, or zero-out"
    )]
    Neighbours(Neighbours),
    /// A method that divides by the number of records before noise is added.
    #[error(
        "this method needs a public number of records: choose replace-one-in-place neighbours, or another method"
    )]
    PublicCount,
    /// The noise doesn't fit the grid.
    #[error(transparent)]
    Noise(#[from] NoiseScaleError),
    /// A selection without weight.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// More is spent than can be counted.
    #[error(transparent)]
    Accounting(#[from] AccountingError),
    /// More is asked for than is left.
    #[error("a part of {wanted:e} does not fit the {left:e} of rho that are left")]
    Overspent {
        /// What was to be spent.
        wanted: f64,
        /// What was left.
        left: f64,
    },
    /// Numbers went beyond what floating point holds.
    #[error("the estimate is beyond floating point: choose bounds of ordinary size, or a larger rho")]
    Numerical,
}

impl CovarianceError {
    /// Whether it may follow from what was released, and so has to be paid for like an estimate.
    pub fn follows_from_releases(&self) -> bool {
        matches!(self, Self::Numerical | Self::Overspent { .. })
    }
}

/// How a covariance is estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Method {
    /// PACE-GGM: the diagonal, then one badly approximated entry after the other.
    Pace,
    /// The whole matrix, with the noise of the paper's baseline.
    Ssp,
    /// The whole matrix, with the least noise that hides a record of bounded columns.
    SspTight,
    /// The diagonal alone.
    Diagonal,
    /// The better of the whole matrix and of eigenvalues apart, by a private trace, at a private clipping norm (Dong et al. 2022).
    Adaptive,
    /// Eigenvalues and eigenvectors with noise of their own (Dong et al. 2022).
    Separate,
    /// Clipping to an ellipsoid that is refined step by step (Biswas et al. 2020).
    #[serde(rename = "coinpress")]
    CoinPress,
}

impl Method {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Pace,
        Self::Ssp,
        Self::SspTight,
        Self::Diagonal,
        Self::Adaptive,
        Self::Separate,
        Self::CoinPress,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pace => "pace",
            Self::Ssp => "ssp",
            Self::SspTight => "ssp-tight",
            Self::Diagonal => "diagonal",
            Self::Adaptive => "adaptive",
            Self::Separate => "separate",
            Self::CoinPress => "coinpress",
        }
    }

    /// Estimates the covariance of a sample with all that is left of a budget, about the middle of the bounds, or about a mean
    /// that takes the share `centre` of the budget.
    ///
    /// # Errors
    /// [`CovarianceError`], by public numbers alone.
    pub fn estimate<R: CryptoRng + ?Sized>(
        self,
        sample: &Sample<'_>,
        centre: Option<f64>,
        budget: Budget,
        rng: &mut R,
    ) -> Result<Estimate, CovarianceError> {
        match self {
            Self::Pace => Pace { centre, ..Pace::default() }.estimate(sample, budget, rng),
            _ => rivals::estimate(self, sample, centre, budget, rng),
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No method is called so.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("found {0:?}, expected pace, ssp, ssp-tight, diagonal, adaptive, separate or coinpress")]
pub struct UnknownMethod(String);

impl FromStr for Method {
    type Err = UnknownMethod;

    fn from_str(text: &str) -> Result<Self, UnknownMethod> {
        Self::ALL.into_iter().find(|method| method.name() == text).ok_or_else(|| UnknownMethod(text.into()))
    }
}

/// The nearest positive semidefinite matrix in the Frobenius norm (Higham 1988). `None` where eigenvalues can't be found.
pub(crate) fn nearest_semidefinite(matrix: &DMatrix<f64>) -> Option<DMatrix<f64>> {
    let eigen = nalgebra::SymmetricEigen::try_new(matrix.clone(), f64::EPSILON, 100 * matrix.nrows() + 100)?;
    let raised = DMatrix::from_diagonal(&eigen.eigenvalues.map(|value| value.max(0.0)));
    let nearest = &eigen.eigenvectors * raised * eigen.eigenvectors.transpose();
    Some((&nearest + nearest.transpose()) / 2.0)
}

#[cfg(test)]
mod tests;
