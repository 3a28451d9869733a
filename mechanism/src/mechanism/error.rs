//! Reasons why parameters do not define a mechanism.

use super::Method;
use crate::accounting::AccountingError;
use crate::moments::{Bins, ClipError, Layout};
use crate::noise::scale::NoiseScaleError;
use crate::sensitivity::OutOfRange;
use crate::strategy::MatrixError;
use thiserror::Error;

/// Reasons why parameters do not define a mechanism.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum MechanismError {
    /// A number is out of its range.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// A weight for a public count.
    #[error(
        "count_weight is {count_weight:?}, but counts are public when records are replaced in place: leave it out, or choose other neighbours"
    )]
    CountIsPublic {
        /// The given weight.
        count_weight: f64,
    },
    /// A weight for second moments where there are none, or with a method that has no such weight.
    #[error(
        "second_moment_weight is {second_moment_weight:?} with the method {method}, but only second moments by the methods jme, cs and joint-clip have this weight: leave it out, or release second moments by one of these"
    )]
    SecondMomentWeight {
        /// The method.
        method: Method,
        /// The given weight.
        second_moment_weight: f64,
    },
    /// A weight of histograms, without any histograms.
    #[error("histogram_weight is {bin_weight:?}, but there are no histograms: leave it out, or add one")]
    BinWeight {
        /// The given weight.
        bin_weight: f64,
    },
    /// A clipper for histograms other than those of the mechanism.
    #[error(
        "the clipper has {} histograms with {} bins, the mechanism {} with {}: give both the same",
        found.histograms, found.number, expected.histograms, expected.number
    )]
    Bins {
        /// Histograms of the clipper.
        found: Bins,
        /// Histograms of the mechanism.
        expected: Bins,
    },
    /// A method for second moments, in a release without second moments.
    #[error(
        "the method {method} makes second moments private, but none are wanted: choose the method jme, or second moments"
    )]
    NoSecondMoments {
        /// The method.
        method: Method,
    },
    /// Two strategies, with a method that needs a single one.
    #[error(
        "the method {method} makes first and second moments private together: give them one strategy, or choose the method jme or ime"
    )]
    OneStrategy {
        /// The method.
        method: Method,
    },
    /// Squares of batches without public batch sizes, or with full second moments.
    #[error(
        "the method batch-squares needs public batch sizes, and squares single coordinates: choose neighbours replace-one-in-place and diagonal second moments"
    )]
    BatchSquares,
    /// The sampler cannot draw the noise of a moment.
    #[error("{moment}: {source}")]
    Scale {
        /// The moment.
        moment: &'static str,
        /// The problem with its noise.
        source: NoiseScaleError,
    },
    /// A clipper with another norm or number of columns.
    #[error("the clipper is for {found_dimension} columns and the norm {found_norm}, the mechanism for {} and {clip_norm}: give both the same", layout.dimension)]
    Clipper {
        /// ζ of the clipper.
        found_norm: f64,
        /// d of the clipper.
        found_dimension: usize,
        /// ζ of the mechanism.
        clip_norm: f64,
        /// Layout of the mechanism.
        layout: Layout,
    },
    /// A record and its square can't be clipped together.
    #[error(transparent)]
    Clip(#[from] ClipError),
    /// A strategy whose noise can't be correlated ahead of the sums.
    #[error(
        "noise can be correlated ahead of the sums for a horizon and buffered Toeplitz strategies, blt:b, whose inverse has no long rows: encode the sums instead"
    )]
    Correlation,
    /// Correlated noise, or sums rounded to a grid, whose rounding error is too large.
    #[error(
        "rounding to the grid of the noise moves the release by {share:?} of the sensitivity or of the noise, expected at most 0.01: shorten the horizon, or release encoded sums without correlated noise or a grid"
    )]
    GridRounding {
        /// The larger of the two shares.
        share: f64,
    },
    /// No noise gives the guarantee.
    #[error(transparent)]
    Accounting(#[from] AccountingError),
    /// Noise outside the range of 64 bits.
    #[error(
        "the noise of {moment} is out of the range in which it can be correlated ahead of the sums: encode the sums instead"
    )]
    CorrelationRange {
        /// The moment.
        moment: &'static str,
    },
    /// More steps than the strategy has.
    #[error("the horizon is {horizon} steps, but the strategy ends after {limit}: make it for more steps")]
    Horizon {
        /// Requested number of steps.
        horizon: u64,
        /// Number of steps of the strategy.
        limit: u64,
    },
    /// The sensitivity of a strategy can't be computed over this horizon.
    #[error(transparent)]
    Matrix(#[from] MatrixError),
}
