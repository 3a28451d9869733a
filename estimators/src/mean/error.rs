//! Why there is no estimate: refusals, which are part of the private output, and errors, which follow from public numbers.

use super::Method;
use hushflow_mechanism::accounting::AccountingError;
use hushflow_mechanism::moments::{ClipError, MomentError, RecordError};
use serde::Serialize;
use thiserror::Error;

/// Why there is no estimate. It depends on the data, privately: it is part of the output, and has cost as much.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "reason")]
#[non_exhaustive]
pub enum Refusal {
    /// No bin has enough records.
    #[error(
        "the values of column {column} are too few or too far apart to find their range: raise epsilon, or the scale"
    )]
    Range {
        /// Place of the column, from 0.
        column: usize,
    },
    /// No bin of distances has enough pairs.
    #[error("the scale of column {column} can't be told from so few records: give it with the question")]
    Scale {
        /// Place of the column, from 0.
        column: usize,
    },
    /// More records stand out than may be corrupted.
    #[error(
        "filtering took out more than a quarter of the records: they are not what the method assumes, or corruption is higher"
    )]
    TooManyTakenOut,
    /// The resilience of the records is not that of the promised distribution.
    #[error(
        "the records are not resilient as the promised distribution is: raise the corruption or the scale"
    )]
    NotResilient,
}

/// Why nothing was estimated: known from public numbers, but for what
/// [follows from releases](MeanError::follows_from_releases).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MeanError {
    /// Not a share of corrupted records.
    #[error(
        "corruption is {0}, but must be at least 0 and below 1/2: no estimator tells a majority of bad records from good ones"
    )]
    Corruption(f64),
    /// Not a share of corrupted records that the estimator by resilience can trim.
    #[error(
        "corruption is {corruption:?}, but the method resilience leaves out three times that share of the rows at either end, and looks at \
         subsets without that share: of {rows} rows it must be above about {:.1e}, and below 1/6", 1.0 / *rows as f64
    )]
    Trimmed {
        /// The share.
        corruption: f64,
        /// Rows given.
        rows: usize,
    },
    /// No rows.
    #[error("there are no rows, and the mean of nothing is no number: give some")]
    NoRows,
    /// Not a table.
    #[error(
        "a table of {values} values can't have {columns} columns: give at least one column, and rows that are whole"
    )]
    Table {
        /// Values in all.
        values: usize,
        /// Columns asked for.
        columns: usize,
    },
    /// Too few rows to say anything at this budget.
    #[error(
        "{rows} rows are too few for this budget: the noise of a count alone would be a share {noise:.2} of them; give at least about {needed}, or a larger epsilon"
    )]
    TooFew {
        /// Rows given.
        rows: usize,
        /// Deviation of a noisy count over the rows.
        noise: f64,
        /// Rows needed, about.
        needed: usize,
    },
    /// ε is 0: nothing may be learnt.
    #[error("epsilon is 0, and nothing can be learnt with it: give one above 0")]
    NoBudget,
    /// Not scales.
    #[error(
        "column {column} has scale {scale:?}: give a finite number above 0 (1e-307 at least) for each column"
    )]
    Scale {
        /// Place of the column, from 0.
        column: usize,
        /// Scale as given, NaN where there is none.
        scale: f64,
    },
    /// A method that needs a range has none.
    #[error("the method {method} needs a range: give R such that all means are within R scales of 0")]
    NoRange {
        /// The method.
        method: Method,
    },
    /// A method that needs scales has none.
    #[error("the method {method} needs scales: give the standard deviation of clean values for each column")]
    NoScale {
        /// The method.
        method: Method,
    },
    /// Exponential time would take too long.
    #[error(
        "the method {method} takes exponential time, and {found} {what} are more than the {most} that end: use prime or prime-ht"
    )]
    TooLarge {
        /// The method.
        method: Method,
        /// What there is too much of.
        what: &'static str,
        /// How much.
        found: f64,
        /// The most.
        most: f64,
    },
    /// What exact noise on a grid costs is more than δ/e^ε.
    #[error(
        "noise on a grid can't be counted at epsilon {epsilon:?} and delta {delta:?}: give a smaller epsilon (64 is always \
         small enough where delta is no less than 1e-9), or a larger delta"
    )]
    Uncountable {
        /// ε asked for.
        epsilon: f64,
        /// δ asked for.
        delta: f64,
        /// Whether something was released before this was seen.
        released: bool,
    },
    /// Parts exceed the whole: a fault of the program.
    #[error("the parts of the budget exceed it: this is a fault of the program")]
    Overspent,
    /// Noise of this size can't be drawn.
    #[error("noise for this budget can't be drawn exactly: raise epsilon or delta")]
    Noise,
    /// An eigendecomposition failed.
    #[error("an eigendecomposition did not converge")]
    Spectrum,
    /// Numbers of the budget.
    #[error(transparent)]
    Accounting(#[from] AccountingError),
    /// The ball that records are clipped to is beyond floating point.
    #[error(
        "around where column {column} has its values, numbers are too large or too close together for its scale: give another scale, \
         or the column in another unit"
    )]
    Beyond {
        /// Place of the column, from 0.
        column: usize,
    },
    /// Records can't be clipped.
    #[error(transparent)]
    Clip(ClipError),
    /// A record can't be clipped.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Records can't be summed.
    #[error(transparent)]
    Moments(#[from] MomentError),
}

impl MeanError {
    /// Whether it may follow from what was released, such as a centre too far away to be told from its surroundings, and so has to be
    /// paid for like an estimate.
    pub fn follows_from_releases(&self) -> bool {
        matches!(
            self,
            Self::Spectrum
                | Self::Beyond { .. }
                | Self::Clip(_)
                | Self::Overspent
                | Self::Uncountable { released: true, .. }
        )
    }
}

impl From<ClipError> for MeanError {
    /// Nobody gave bounds: they are those of a ball.
    fn from(error: ClipError) -> Self {
        match error {
            ClipError::Bounds { column, .. } => Self::Beyond { column },
            error => Self::Clip(error),
        }
    }
}

/// What ends an estimate early.
pub(super) enum Stop {
    /// A refusal: an answer like any other.
    Refused(Refusal),
    /// An error.
    Failed(MeanError),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Stop::Refused(refusal)
    }
}

impl From<MeanError> for Stop {
    fn from(error: MeanError) -> Self {
        Stop::Failed(error)
    }
}

/// The outcome of what may end early.
pub(super) fn outcome<T>(ended: Result<T, Stop>) -> Result<Result<T, Refusal>, MeanError> {
    match ended {
        Ok(found) => Ok(Ok(found)),
        Err(Stop::Refused(refusal)) => Ok(Err(refusal)),
        Err(Stop::Failed(error)) => Err(error),
    }
}
