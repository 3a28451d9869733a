//! Which strategies there are, and the making of one for a workload.

use super::{Chosen, Strategy, StrategyName, name, toeplitz::Toeplitz};
use crate::{series, workload::Workload};
use std::{fmt, num::NonZeroUsize, sync::Arc};
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
    /// The strategy has to be found by an optimiser first, or read from a file.
    #[error("the strategy `{strategy}` was not fitted: it needs what an optimiser found for it")]
    NotFitted {
        /// As on the command line.
        strategy: String,
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
    /// A C given entry by entry is not square.
    #[error("a strategy needs a row and a column for every step; found {rows} rows and {columns} columns")]
    NotSquare {
        /// Number of rows.
        rows: usize,
        /// Number of columns.
        columns: usize,
    },
    /// An entry of a C is no number.
    #[error("row {row}, column {column} of the strategy is not finite; expected a number")]
    NotFinite {
        /// From 1.
        row: usize,
        /// From 1.
        column: usize,
    },
    /// A C looks into the future.
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
    /// A C can't be decoded.
    #[error(
        "the strategy can't be decoded at step {step}: expected a positive number on the diagonal, at least 2^-41 of the \
         norm of the longest column"
    )]
    Singular {
        /// From 1.
        step: usize,
    },
    /// The stored entries of a C can't be read.
    #[error("the stored strategy can't be read: {reason}; expected what was written when it was made")]
    Parameters {
        /// What is wrong.
        reason: &'static str,
    },
    /// The numbers that a strategy is made of make no strategy.
    #[error("these parameters make no strategy `{strategy}`: {reason}")]
    Buffers {
        /// As on the command line.
        strategy: String,
        /// What is wrong, and what would be right.
        reason: &'static str,
    },
}

/// Makes the named strategy for a workload and, where it needs one, a horizon of 1 to [`MAX_HORIZON`] steps.
///
/// # Errors
/// As [`build_chosen`].
pub fn build(
    name: StrategyName,
    workload: &Workload,
    horizon: Option<u64>,
) -> Result<Arc<dyn Strategy>, StrategyError> {
    build_chosen(&name.into(), workload, horizon)
}

/// Makes a strategy from its name and what was found for it.
///
/// # Errors
/// [`StrategyError::Horizon`] for a horizon out of range, [`StrategyError::NoHorizon`] where one is missing,
/// [`StrategyError::NotFitted`] where the name does not say it all, [`StrategyError::Workload`] where the workload has no
/// such strategy.
pub fn build_chosen(
    chosen: &Chosen,
    workload: &Workload,
    horizon: Option<u64>,
) -> Result<Arc<dyn Strategy>, StrategyError> {
    let name = chosen.name.clone();
    if let Some(found) = horizon {
        check_horizon(&name, found, MAX_HORIZON)?;
    }
    let steps = || horizon.ok_or_else(|| StrategyError::NoHorizon { strategy: name.to_string() });
    Ok(match &name {
        StrategyName::Identity => Arc::new(Toeplitz::new(name, &[1.0], None)),
        StrategyName::SquareRoot => {
            let steps = steps()?;
            check_root(&name, workload, steps)?;
            Arc::new(Toeplitz::new(name, &root(workload, steps as usize), horizon))
        }
        _ => return Err(StrategyError::NotFitted { strategy: name.to_string() }),
    })
}

/// Checks that the Toeplitz part of a workload has a square root.
fn check_root(name: &StrategyName, workload: &Workload, steps: u64) -> Result<(), StrategyError> {
    let first = workload.toeplitz_part(1).map(|part| part[0]);
    let reason = match (first, workload.horizon()) {
        (None, _) => "it is no Toeplitz matrix",
        (Some(first), _) if first <= 0.0 => "its diagonal is not positive",
        (_, Some(rows)) if rows < steps => "it has fewer rows than the horizon",
        _ => return Ok(()),
    };
    Err(StrategyError::Workload { strategy: name.to_string(), workload: workload.to_string(), reason })
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

/// First `terms` coefficients of the square root of the Toeplitz part of a workload, all at most 1 in magnitude:
/// `(1 − βx)^(−1/2)`, and `k^(−1/2) ((1 − x^k)/(1 − x))^(1/2)` for a window. Products of binomial series keep the
/// digits that the square root of a series would lose.
pub(super) fn root(workload: &Workload, terms: usize) -> Vec<f64> {
    match workload {
        Workload::Prefix | Workload::Average => series::binomial(-0.5, 1.0, terms),
        Workload::Exponential(decay) | Workload::Adam(decay) => series::binomial(-0.5, decay.get(), terms),
        Workload::Window(length) => {
            let stride = NonZeroUsize::try_from(*length).unwrap_or(NonZeroUsize::MAX);
            let end =
                series::stretch(&series::binomial(0.5, 1.0, terms.div_ceil(stride.get())), stride, terms);
            let mut root = series::product(&end, &series::binomial(-0.5, 1.0, terms), terms);
            root.iter_mut().for_each(|coefficient| *coefficient /= (length.get() as f64).sqrt());
            root
        }
        Workload::Momentum(decay) => {
            let momentum = series::binomial(-0.5, decay.get(), terms);
            series::product(&momentum, &series::binomial(-0.5, 1.0, terms), terms)
        }
        Workload::Matrix(_) => series::square_root(&workload.toeplitz_part(terms).unwrap_or_default(), terms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

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

    fn check_series(found: &[f64], indices: &Value, expected: &Value, relative: f64, absolute: f64) {
        for (index, expected) in indices.as_array().unwrap().iter().zip(expected.as_array().unwrap()) {
            let (index, expected) = (index.as_u64().unwrap() as usize, expected.as_f64().unwrap());
            let error = (found[index] - expected).abs();
            assert!(
                error <= relative * expected.abs() + absolute,
                "term {index}: {} {expected}",
                found[index]
            );
        }
    }

    fn check_sum(terms: impl Iterator<Item = f64>, expected: &Value, relative: f64) {
        let (sum, expected) = (terms.sum::<f64>(), expected.as_f64().unwrap());
        assert!((sum - expected).abs() <= relative * expected, "{sum} against {expected}");
    }

    /// The root as computed here, and its inverse as the same product with the exponents turned round.
    #[test]
    fn roots_and_their_inverses_have_the_reference_coefficients() {
        let vectors: Value =
            serde_json::from_str(include_str!("../../../tests/vectors/toeplitz_sqrt.json")).unwrap();
        for case in vectors["cases"].as_array().unwrap() {
            let (input, expected) = (&case["input"], &case["expected"]);
            let n = input["n"].as_u64().unwrap() as usize;
            let window = input["workload"] == "window";
            let text = match input["workload"].as_str().unwrap() {
                "exp" => format!("exponential:{}", input["param"]),
                "window" => format!("window:{}", input["param"]),
                other => other.to_string(),
            };
            let found = root(&text.parse().unwrap(), n);
            let inverse = if window {
                let k = input["param"].as_u64().unwrap() as usize;
                let stride = NonZeroUsize::new(k).unwrap();
                let poles = series::stretch(&series::binomial(-0.5, 1.0, n), stride, n);
                let inverse = series::product(&poles, &series::binomial(0.5, 1.0, n), n);
                inverse.iter().map(|c| c * (k as f64).sqrt()).collect()
            } else {
                series::binomial(0.5, input["param"].as_f64().unwrap_or(1.0), n)
            };
            let (relative, absolute) = if window { (5e-12, 1e-15) } else { (1e-13, 1e-300) };
            check_series(&found, &expected["index"], &expected["sqrt_coef"], relative, absolute);
            let (relative, absolute) = if window { (0.0, 2e-14) } else { (1e-13, 1e-300) };
            check_series(&inverse, &expected["index"], &expected["inv_sqrt_coef"], relative, absolute);
            check_sum(found.iter().copied(), &expected["sum_sqrt"], 1e-13);
            check_sum(found.iter().map(|c| c * c), &expected["sumsq_sqrt"], 1e-13);
            check_sum(inverse.iter().map(|c| c.abs()), &expected["sum_abs_inv"], 1e-12);
            check_sum(inverse.iter().map(|c| c * c), &expected["sumsq_inv"], 1e-12);
        }
    }

    #[test]
    fn a_window_of_one_epoch_is_the_identity() {
        let root = root(&"window:1".parse().unwrap(), 50);
        assert_eq!(root[0], 1.0);
        assert!(root[1..].iter().all(|c| c.abs() < 1e-15));
    }

    #[test]
    fn a_window_longer_than_the_stream_is_a_scaled_prefix() {
        let window = root(&"window:18446744073709551615".parse().unwrap(), 50);
        let prefix = root(&Workload::Prefix, 50);
        assert!(window.iter().zip(prefix).all(|(w, p)| *w == p / 2f64.powi(32)));
    }
}
