//! Builds a strategy for a workload by name.

use super::{Factorization, Kind, Specification, Strategy, StrategyChoice, StrategyName, dense, name};
use crate::workload::Workload;
use std::{fmt, sync::Arc};
use thiserror::Error;

/// Longest horizon for which a strategy is built or its error computed.
pub const MAX_HORIZON: u64 = 100_000_000;

/// Longest horizon of strategies that keep the full history. Each step costs one multiplication per
/// coordinate for every earlier step.
pub const MAX_HISTORY_HORIZON: u64 = 1 << 20;

/// Error of building a strategy.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StrategyError {
    /// The name is unknown.
    #[error("no strategy is called `{found}`; expected one of {}", name::all_names())]
    Unknown {
        /// The rejected text.
        found: String,
    },
    /// The number after the name of a strategy is missing or out of range.
    #[error("`{found}` needs a number of {unit} from 1 to {limit}; expected for example `{strategy}:4`")]
    Number {
        /// The name before the number.
        strategy: &'static str,
        /// What the number counts.
        unit: &'static str,
        /// Largest allowed number.
        limit: u32,
        /// The rejected text.
        found: String,
    },
    /// The strategy has several rows per step and cannot run.
    #[error(
        "the strategy `{strategy}` releases several numbers a step and can't run; expected its causal form, which is never \
         worse: `tree-optimal-decoder` or `fft-optimal-decoder`"
    )]
    Rectangular {
        /// Name on the command line.
        strategy: String,
    },
    /// The strategy needs the result of an optimiser or a file.
    #[error("the strategy `{strategy}` was not fitted: it needs what an optimiser found for it")]
    NotFitted {
        /// Name on the command line.
        strategy: String,
    },
    /// The strategy does not exist for this workload.
    #[error("the strategy `{strategy}` can't be made for the workload `{workload}`: {reason}")]
    Workload {
        /// Name on the command line.
        strategy: String,
        /// Workload as written on the command line.
        workload: String,
        /// What the strategy needs.
        reason: &'static str,
    },
    /// The strategy needs a number of steps, and none was given.
    #[error(
        "the strategy `{strategy}` needs a horizon: say how many steps the stream has, from 1 to {MAX_HORIZON}"
    )]
    NoHorizon {
        /// Name on the command line.
        strategy: String,
    },
    /// A series does not have the strategy's number of steps.
    #[error("the series has {found} numbers, but the strategy takes {expected}")]
    Length {
        /// Its length.
        found: usize,
        /// Required length.
        expected: usize,
    },
    /// The number of steps is out of range.
    #[error("the horizon is {found} steps; for the strategy `{strategy}` it can be 1 to {limit}")]
    Horizon {
        /// Name on the command line.
        strategy: String,
        /// Requested number of steps.
        found: u64,
        /// Largest number of steps.
        limit: u64,
    },
    /// A C given entry by entry is not square.
    #[error("a strategy needs a row and a column for every step; found {rows} rows and {columns} columns")]
    NotSquare {
        /// Number of rows.
        rows: usize,
        /// Number of columns.
        columns: usize,
    },
    /// An entry of C is NaN or infinite.
    #[error("row {row}, column {column} of the strategy is not finite; expected a number")]
    NotFinite {
        /// From 1.
        row: usize,
        /// From 1.
        column: usize,
    },
    /// C has an entry above the diagonal: it would use future steps.
    #[error(
        "row {row}, column {column} of the strategy is not 0: step {row} can't use what step {column} will bring; \
         expected zeros above the diagonal"
    )]
    NotCausal {
        /// From 1.
        row: usize,
        /// From 1.
        column: usize,
    },
    /// C cannot be decoded.
    #[error(
        "the strategy can't be decoded at step {step}: expected a positive number on the diagonal, at least 2^-41 of the \
         norm of the longest column"
    )]
    Singular {
        /// From 1.
        step: usize,
    },
    /// The stored entries of C cannot be read.
    #[error("the stored strategy can't be read: {reason}; expected what was written when it was made")]
    Parameters {
        /// The problem.
        reason: &'static str,
    },
    /// The parameters do not define a strategy.
    #[error("these parameters make no strategy `{strategy}`: {reason}")]
    Buffers {
        /// Name on the command line.
        strategy: String,
        /// The problem, and what was expected.
        reason: &'static str,
    },
}

/// Builds the named strategy for a workload and, if the strategy needs one, a horizon of 1 to
/// [`MAX_HORIZON`] steps.
///
/// # Errors
/// As [`build_chosen`], and [`StrategyError::Unknown`] and [`StrategyError::Number`] for a text
/// that is no name.
pub fn build(
    name: &str,
    workload: &Workload,
    horizon: Option<u64>,
) -> Result<Arc<dyn Strategy>, StrategyError> {
    build_chosen(&name.parse::<StrategyName>()?.into(), workload, horizon)
}

/// Builds a strategy from its name and its fitted parameters.
///
/// # Errors
/// [`StrategyError::Horizon`] for a horizon out of range, [`StrategyError::NoHorizon`] for a
/// missing one, [`StrategyError::NotFitted`] if the name needs fitted parameters and has none,
/// [`StrategyError::Workload`] if the workload has no such strategy,
/// [`StrategyError::Rectangular`] if it cannot run.
pub fn build_chosen(
    chosen: &StrategyChoice,
    workload: &Workload,
    horizon: Option<u64>,
) -> Result<Arc<dyn Strategy>, StrategyError> {
    let StrategyChoice { name, fitted } = chosen;
    if let Some(found) = horizon {
        check_horizon(name, found, longest(name))?;
        check_rows(name, workload, found)?;
    }
    let specification = Specification { name, workload, horizon, fitted: fitted.as_ref() };
    match name {
        StrategyName::Known { kind: Kind { strategy: Some(strategy), .. }, .. } => strategy(&specification),
        StrategyName::Known { .. } => Err(StrategyError::Rectangular { strategy: name.to_string() }),
        StrategyName::File(_) | StrategyName::Auto => dense::of_parameters(&specification),
    }
}

/// Returns the longest horizon of the strategy that runs.
fn longest(name: &StrategyName) -> u64 {
    match name {
        StrategyName::Known { kind, normalized: true, .. } => kind.normalized.unwrap_or(kind.horizon),
        StrategyName::Known { kind, .. } => kind.horizon,
        StrategyName::Auto | StrategyName::File(_) => MAX_HORIZON,
    }
}

/// Builds a factorisation only for computing errors, if the named strategy does not run, or not for
/// this many steps.
///
/// # Errors
/// As [`build_chosen`].
pub fn build_factorization(
    name: &StrategyName,
    workload: &Workload,
    horizon: u64,
) -> Option<Result<Arc<dyn Factorization>, StrategyError>> {
    let StrategyName::Known { kind, .. } = name else { return None };
    let factorization = kind.factorization.filter(|_| kind.strategy.is_none() || horizon > longest(name))?;
    Some(check_rows(name, workload, horizon).and_then(|()| factorization(horizon)))
}

fn check_rows(name: &StrategyName, workload: &Workload, steps: u64) -> Result<(), StrategyError> {
    if workload.horizon().is_none_or(|rows| steps <= rows) {
        return Ok(());
    }
    let (strategy, workload) = (name.to_string(), workload.to_string());
    Err(StrategyError::Workload { strategy, workload, reason: "it has fewer rows than the horizon" })
}

pub(crate) fn check_horizon(
    strategy: &dyn fmt::Display,
    found: u64,
    limit: u64,
) -> Result<(), StrategyError> {
    if (1..=limit).contains(&found) {
        Ok(())
    } else {
        Err(StrategyError::Horizon { strategy: strategy.to_string(), found, limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_horizon_is_at_least_one_step() {
        let limits = |name, horizon| build(name, &Workload::Prefix, horizon).map(|s| s.horizon());
        assert_eq!(limits("identity", None), Ok(None));
        assert_eq!(limits("identity", Some(5)), Ok(None));
        assert_eq!(limits("square-root", Some(1)), Ok(Some(1)));
        for (name, limit) in [("identity", MAX_HORIZON), ("square-root", MAX_HISTORY_HORIZON)] {
            for found in [0, limit + 1, u64::MAX] {
                let error = StrategyError::Horizon { strategy: name.into(), found, limit };
                assert_eq!(limits(name, Some(found)), Err(error));
            }
        }
        let message = limits("square-root", None).unwrap_err().to_string();
        assert!(message.contains("`square-root` needs a horizon"), "{message}");
    }
}
