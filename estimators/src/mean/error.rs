//! Reasons why there is no estimate: refusals, which are part of the private output, and errors,
//! which follow from public numbers.

use super::MeanMethod;
use hushflow_mechanism::accounting::AccountingError;
use hushflow_mechanism::moments::{ClipError, MomentError, RecordError};
use hushflow_mechanism::numbers;
use serde::Serialize;
use thiserror::Error;

/// A data-dependent reason for no estimate. It is part of the private output and costs as much as
/// an estimate.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "reason")]
#[non_exhaustive]
pub enum MeanRefusal {
    /// No bin has enough records.
    #[error(
        "the values of column {column} are too few or too far apart to find their range: raise epsilon, or the scale"
    )]
    Range {
        /// Index of the column, from 0.
        column: usize,
    },
    /// No bin of distances has enough pairs.
    #[error(
        "the scale of column {column}, counted from 0, can't be estimated from these records at this budget: state it, or raise epsilon"
    )]
    Scale {
        /// Index of the column, from 0.
        column: usize,
    },
    /// More records are outliers than may be corrupted.
    #[error(
        "filtering took out more than a quarter of the records and 2.5 times the corruption: raise the corruption, or choose a method that fits these records"
    )]
    TooManyTakenOut,
    /// The records are less resilient than the promised distribution.
    #[error(
        "the records are not resilient as the promised distribution is: raise the corruption or the scale"
    )]
    NotResilient,
}

numbers!(enum MeanRefusal { 0 Range { column }, 1 Scale { column }, 2 TooManyTakenOut, 3 NotResilient });

/// Reasons why there is no estimate. Errors follow from public numbers alone, except those that
/// [follow from releases](MeanError::follows_from_releases).
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum MeanError {
    /// Invalid share of corrupted records.
    #[error(
        "corruption is {0}, but must be at least 0 and below 1/2: no estimator tells a majority of bad records from good ones"
    )]
    Corruption(f64),
    /// A share of corrupted records that the estimator by resilience cannot trim.
    #[error(
        "corruption is {corruption:?}, but the method resilience leaves out three times that share of the rows at either end, and considers \
         subsets without that share: of {rows} rows it must be above about {:.1e}, and below 1/6", 1.0 / *rows as f64
    )]
    Trimmed {
        /// The share.
        corruption: f64,
        /// Number of rows.
        rows: usize,
    },
    /// No rows.
    #[error("there are no rows: a mean needs at least one")]
    NoRows,
    /// The values do not form a table.
    #[error(
        "a table of {values} values can't have {columns} columns: give at least one column, and complete rows"
    )]
    Table {
        /// Number of values.
        values: usize,
        /// Number of columns.
        columns: usize,
    },
    /// Too few rows for this budget.
    #[error(
        "{rows} rows are too few for this budget: the noise of a count has a standard deviation of {noise:.2} times their number; give at least about {needed}, or a larger epsilon"
    )]
    TooFew {
        /// Number of rows.
        rows: usize,
        /// Deviation of a noisy count, divided by the number of rows.
        noise: f64,
        /// Approximate number of rows needed.
        needed: usize,
    },
    /// ε is 0.
    #[error("epsilon is 0, and nothing can be learnt with it: give one above 0")]
    NoBudget,
    /// Invalid scales.
    #[error(
        "column {column} has scale {scale:?}: give a finite number above 0 (1e-307 at least) for each column"
    )]
    Scale {
        /// Index of the column, from 0.
        column: usize,
        /// Scale as given; NaN if there is none.
        scale: f64,
    },
    /// A method that needs a range has none.
    #[error("the method {method} needs a range: give R such that all means are within R scales of 0")]
    NoRange {
        /// The method.
        method: MeanMethod,
    },
    /// A method that needs scales has none.
    #[error("the method {method} needs scales: give the standard deviation of clean values for each column")]
    NoScale {
        /// The method.
        method: MeanMethod,
    },
    /// The exponential-time method would take too long.
    #[error(
        "the method {method} takes exponential time, and {found} {what} are more than the {most} that it can handle: use prime or prime-ht"
    )]
    TooLarge {
        /// The method.
        method: MeanMethod,
        /// The quantity that is too large: one of `QUANTITIES`.
        what: &'static str,
        /// Its value.
        found: f64,
        /// Its maximum.
        most: f64,
    },
    /// Exact noise on a grid costs more than δ/e^ε.
    #[error(
        "the cost of noise on a grid exceeds delta at epsilon {epsilon:?} and delta {delta:?}: give a smaller epsilon (64 is always \
         small enough where delta is no less than 1e-9), or a larger delta"
    )]
    Uncountable {
        /// The requested ε.
        epsilon: f64,
        /// The requested δ.
        delta: f64,
        /// Whether something was released before the error.
        released: bool,
    },
    /// Parts exceed the whole: a fault of the program.
    #[error("the parts of the budget exceed it: this is a fault of the program")]
    Overspent,
    /// Noise of this size cannot be drawn.
    #[error("noise for this budget can't be drawn exactly: raise epsilon or delta")]
    Noise,
    /// An eigendecomposition failed.
    #[error("an eigendecomposition did not converge: give scales that fit the columns")]
    Spectrum,
    /// Numbers of the budget.
    #[error(transparent)]
    Accounting(#[from] AccountingError),
    /// The ball for clipping exceeds floating point.
    #[error(
        "the values of column {column} are too large, or too close together, for floating point at its scale: give another scale, \
         or the column in another unit"
    )]
    Beyond {
        /// Index of the column, from 0.
        column: usize,
    },
    /// The clipper cannot be made.
    #[error(transparent)]
    Clip(ClipError),
    /// A record cannot be clipped.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Records cannot be summed.
    #[error(transparent)]
    Moments(#[from] MomentError),
}

numbers!(enum MeanError {
    0 Corruption(share), 1 Trimmed { corruption, rows }, 2 NoRows, 3 Table { values, columns },
    4 TooFew { rows, noise, needed }, 5 NoBudget, 6 Scale { column, scale }, 7 NoRange { method },
    8 NoScale { method }, 9 TooLarge { method, what: QUANTITIES, found, most },
    10 Uncountable { epsilon, delta, released }, 11 Overspent, 12 Noise, 13 Spectrum, 14 Accounting(error),
    15 Beyond { column }, 16 Clip(error), 17 Record(error), 18 Moments(error)
});

const QUANTITIES: [&str; 3] = ["columns", "records for this range", "records for a net over this range"];

impl MeanError {
    /// Whether the error may follow from releases, for example from a centre too far away to
    /// resolve its surroundings. Then it costs as much as an estimate.
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
    /// The bounds in the error are those of the ball, not those that the caller gave.
    fn from(error: ClipError) -> Self {
        match error {
            ClipError::Bounds { column, .. } => Self::Beyond { column },
            error => Self::Clip(error),
        }
    }
}

pub(super) enum EstimationStop {
    Refused(MeanRefusal),
    Failed(MeanError),
}

impl From<MeanRefusal> for EstimationStop {
    fn from(refusal: MeanRefusal) -> Self {
        EstimationStop::Refused(refusal)
    }
}

impl From<MeanError> for EstimationStop {
    fn from(error: MeanError) -> Self {
        EstimationStop::Failed(error)
    }
}

pub(super) fn outcome<T>(ended: Result<T, EstimationStop>) -> Result<Result<T, MeanRefusal>, MeanError> {
    match ended {
        Ok(found) => Ok(Ok(found)),
        Err(EstimationStop::Refused(refusal)) => Ok(Err(refusal)),
        Err(EstimationStop::Failed(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_read_back_from_their_numbers() {
        let too_large = |what| MeanError::TooLarge { method: MeanMethod::Tukey, what, found: 5.0, most: 4.0 };
        let mut errors = vec![
            MeanError::Trimmed { corruption: 0.2, rows: 9 },
            MeanError::NoRows,
            MeanError::TooFew { rows: 3, noise: 0.1, needed: 7 },
            MeanError::NoScale { method: MeanMethod::PrimeHt },
            MeanError::Uncountable { epsilon: 1.0, delta: 1e-6, released: true },
            AccountingError::DiscretenessExceedsDelta { cost: 1e-3, delta: 1e-6 }.into(),
            MeanError::Beyond { column: 3 },
            MeanError::Clip(ClipError::ClipNorm(0.0)),
            RecordError::Length { found: 1, dimension: 2 }.into(),
            MomentError::Keys { keys: 1, rows: 2 }.into(),
        ];
        errors.extend(QUANTITIES.map(too_large));
        for error in errors {
            assert_eq!(crate::read_back(&error), error);
        }
    }
}
