//! Which strategies there are, and the making of one for a workload.

use super::{Strategy, StrategyName, name, toeplitz};
use crate::workload::Workload;
use std::{fmt, sync::Arc};
use thiserror::Error;

/// The longest horizon a strategy is made or judged for. At every step, a strategy with full history costs a
/// multiplication per coordinate for each step before it.
pub const MAX_HORIZON: u64 = 1 << 20;

/// Why there is no such strategy.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StrategyError {
    /// No strategy is written like this.
    #[error("no strategy is called `{found}`; expected one of {}", name::all_names())]
    Unknown {
        /// What was written.
        found: String,
    },
    /// The number behind the name of a strategy is missing or out of range.
    #[error("`{found}` needs a number of {unit} from 1 to {limit}; expected for example `{strategy}:4`")]
    Number {
        /// The name before the number.
        strategy: &'static str,
        /// What is counted.
        unit: &'static str,
        /// The largest number.
        limit: u32,
        /// What was written.
        found: String,
    },
    /// The strategy is not made for this workload.
    #[error("the strategy `{strategy}` can't be made for the workload `{workload}`: {reason}")]
    Workload {
        /// As on the command line.
        strategy: String,
        /// As on the command line.
        workload: String,
        /// What the strategy needs.
        reason: &'static str,
    },
    /// The strategy is made for a number of steps, and none was given.
    #[error(
        "the strategy `{strategy}` needs a horizon: say how many steps the stream has, from 1 to {MAX_HORIZON}"
    )]
    NoHorizon {
        /// As on the command line.
        strategy: String,
    },
    /// The number of steps is out of range.
    #[error("the horizon is {found} steps; for the strategy `{strategy}` it can be 1 to {limit}")]
    Horizon {
        /// As on the command line.
        strategy: String,
        /// Number of steps asked for.
        found: u64,
        /// Largest number of steps.
        limit: u64,
    },
}

/// Makes the named strategy for a workload and, where it needs one, a horizon of 1 to [`MAX_HORIZON`] steps.
///
/// # Errors
/// [`StrategyError::Horizon`] for a horizon out of range, [`StrategyError::NoHorizon`] where one is missing.
pub fn build(
    name: StrategyName,
    workload: &Workload,
    horizon: Option<u64>,
) -> Result<Arc<dyn Strategy>, StrategyError> {
    if let Some(found) = horizon {
        check_horizon(&name, found, MAX_HORIZON)?;
    }
    let needed = || horizon.ok_or_else(|| StrategyError::NoHorizon { strategy: name.to_string() });
    Ok(match &name {
        StrategyName::Identity => Arc::new(toeplitz::identity(&name)),
        StrategyName::SquareRoot => Arc::new(toeplitz::square_root(&name, workload, needed()?)?),
        StrategyName::BandedSquareRoot(bands) => {
            Arc::new(toeplitz::banded_square_root(&name, workload, *bands)?)
        }
        StrategyName::BandedInverseSquareRoot(bands) => {
            Arc::new(toeplitz::banded_inverse_square_root(&name, workload, *bands, needed()?)?)
        }
        StrategyName::LogPerturbedRoot => Arc::new(toeplitz::log_perturbed_root(&name, workload)?),
        StrategyName::Normalized(inner) => match **inner {
            StrategyName::SquareRoot => {
                Arc::new(toeplitz::normalized_square_root(&name, workload, None, needed()?)?)
            }
            StrategyName::BandedSquareRoot(bands) => {
                Arc::new(toeplitz::normalized_square_root(&name, workload, Some(bands), needed()?)?)
            }
            StrategyName::BandedInverseSquareRoot(bands) => {
                Arc::new(toeplitz::normalized_banded_inverse_square_root(&name, workload, bands, needed()?)?)
            }
            _ => return Err(StrategyError::Unknown { found: name.to_string() }),
        },
        _ => return Err(StrategyError::Unknown { found: name.to_string() }),
    })
}

/// Checks that `1 ≤ found ≤ limit`.
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
        let limits =
            |name: StrategyName, horizon| build(name, &Workload::Prefix, horizon).map(|s| s.horizon());
        assert_eq!(limits(StrategyName::Identity, None), Ok(None));
        assert_eq!(limits(StrategyName::Identity, Some(5)), Ok(None));
        assert_eq!(limits(StrategyName::SquareRoot, Some(1)), Ok(Some(1)));
        for name in [StrategyName::Identity, StrategyName::SquareRoot] {
            for found in [0, MAX_HORIZON + 1, u64::MAX] {
                let strategy = name.to_string();
                let error = StrategyError::Horizon { strategy, found, limit: MAX_HORIZON };
                assert_eq!(limits(name.clone(), Some(found)), Err(error));
            }
        }
        let message = limits(StrategyName::SquareRoot, None).unwrap_err().to_string();
        assert!(message.contains("`square-root` needs a horizon"), "{message}");
    }
}
