//! Builds a strategy for a workload by name.
//!
//! # Names
//! [`StrategyName`] is a name on the command line; [`StrategyChoice`] is a strategy as a log stores
//! it.

use super::{Factorization, Fit, KINDS, Kind, Specification, Strategy, StrategyParameters, dense, toeplitz};
use crate::workload::Workload;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::Arc;
use thiserror::Error;

/// Longest horizon for which a strategy is built or its error computed.
pub const MAX_HORIZON: u64 = 100_000_000;

/// Longest horizon of strategies that keep the full history. Each step costs one multiplication per
/// coordinate for every earlier step.
pub const MAX_HISTORY_HORIZON: u64 = 1 << 20;

/// Reasons why a strategy can't be built.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StrategyError {
    /// The name is unknown.
    #[error("unknown strategy `{found}`; expected one of {}", all_names())]
    Unknown {
        /// The rejected text.
        found: String,
    },
    /// The number after the name of a strategy is missing or out of range.
    #[error("`{found}` needs a number of {unit} from 1 to {limit}; expected for example `{strategy}:4`")]
    Number {
        /// The name before the number.
        strategy: &'static str,
        /// Meaning of the number.
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
    #[error("the strategy `{strategy}` has no parameters: run its optimiser first")]
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
        /// The requirement of the strategy.
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
/// that is not a name of a strategy.
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

/// Returns the longest horizon for which an error can be computed.
pub(super) fn longest_compared(name: &StrategyName) -> u64 {
    match name {
        StrategyName::Known { kind, normalized: false, .. } if kind.factorization.is_some() => {
            MAX_HISTORY_HORIZON
        }
        _ => longest(name),
    }
}

/// Builds a factorisation that only computes errors, if the named strategy has one and does not
/// run, or not for this many steps. `None` otherwise.
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

/// The name of a strategy.
///
/// ```
/// use hushflow_mechanism::strategy::StrategyName;
///
/// let name: StrategyName = "normalized-banded-square-root:8".parse()?;
/// assert!(matches!(name, StrategyName::Known { normalized: true, .. }));
/// assert_eq!(name.to_string(), "normalized-banded-square-root:8");
/// # Ok::<(), hushflow_mechanism::strategy::StrategyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum StrategyName {
    /// A strategy of the table.
    Known {
        /// The strategy.
        kind: &'static Kind,
        /// The number after the name, if it has one.
        number: Option<NonZeroU32>,
        /// `normalized-…`: with columns scaled to norm 1.
        normalized: bool,
    },
    /// `auto`: the best of all strategies that can run, within a memory limit.
    Auto,
    /// `file:PATH`: a saved strategy, or any lower-triangular C written as a matrix.
    File(String),
}

/// A strategy as it runs and as a log stores it: its name, and its fitted parameters if it needs
/// them.
///
/// Fitted parameters are stored and never recomputed. A fit may differ between machines and
/// versions, and a log must be read with exactly the C that wrote it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StrategyChoice {
    /// The strategy that runs; never [`StrategyName::Auto`].
    pub name: StrategyName,
    /// Fitted parameters; `None` if the name determines the strategy.
    pub fitted: Option<StrategyParameters>,
}

const NORMALIZED: &str = "normalized-";
const AUTO: &str = "auto";
const FILE: &str = "file:";

impl StrategyName {
    /// Returns this strategy with columns scaled to norm 1; `None` if that form does not exist or
    /// is the same.
    pub fn normalized(self) -> Option<Self> {
        match self {
            Self::Known { kind, number, normalized: false } if kind.can_be_normalized() => {
                Some(Self::Known { kind, number, normalized: true })
            }
            _ => None,
        }
    }

    /// The result that an optimiser must find for it.
    pub fn fit(&self) -> Fit {
        match self {
            Self::Known { kind, .. } => kind.fit,
            Self::Auto | Self::File(_) => Fit::None,
        }
    }

    /// The number after the name; 1 for a name without one.
    pub(super) fn number(&self) -> NonZeroU32 {
        match self {
            Self::Known { number: Some(number), .. } => *number,
            _ => NonZeroU32::MIN,
        }
    }

    pub(super) fn is_normalized(&self) -> bool {
        matches!(self, Self::Known { normalized: true, .. })
    }
}

/// `identity`: fresh noise at every step.
impl Default for StrategyName {
    fn default() -> Self {
        toeplitz::IDENTITY.name()
    }
}

impl fmt::Display for StrategyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str(AUTO),
            Self::File(path) => write!(f, "{FILE}{path}"),
            Self::Known { kind, number, normalized } => {
                write!(f, "{}{}", if *normalized { NORMALIZED } else { "" }, kind.word)?;
                number.map_or(Ok(()), |number| write!(f, ":{number}"))
            }
        }
    }
}

impl FromStr for StrategyName {
    type Err = StrategyError;

    fn from_str(text: &str) -> Result<Self, StrategyError> {
        let unknown = || StrategyError::Unknown { found: text.into() };
        if let Some(inner) = text.strip_prefix(NORMALIZED) {
            return match inner.parse::<Self>() {
                Err(StrategyError::Unknown { .. }) => Err(unknown()),
                inner => inner?.normalized().ok_or_else(unknown),
            };
        }
        if text == AUTO {
            return Ok(Self::Auto);
        }
        if let Some(path) = text.strip_prefix(FILE).filter(|path| !path.is_empty()) {
            return Ok(Self::File(path.into()));
        }
        let (word, after) = text.split_once(':').map_or((text, None), |(word, after)| (word, Some(after)));
        let kind = *KINDS.iter().find(|kind| kind.word == word).ok_or_else(unknown)?;
        let number = match (kind.number, after) {
            (None, None) => None,
            (None, Some(_)) => return Err(unknown()),
            (Some((unit, limit)), after) => {
                let number = after.and_then(|after| after.parse().ok());
                let number = number.filter(|number: &NonZeroU32| number.get() <= limit);
                let refused =
                    || StrategyError::Number { strategy: kind.word, unit, limit, found: text.into() };
                Some(number.ok_or_else(refused)?)
            }
        };
        Ok(Self::Known { kind, number, normalized: false })
    }
}

impl TryFrom<String> for StrategyName {
    type Error = StrategyError;

    fn try_from(text: String) -> Result<Self, StrategyError> {
        text.parse()
    }
}

impl From<StrategyName> for String {
    fn from(name: StrategyName) -> Self {
        name.to_string()
    }
}

impl From<StrategyName> for StrategyChoice {
    fn from(name: StrategyName) -> Self {
        Self { name, fitted: None }
    }
}

pub(super) fn all_names() -> String {
    let names = KINDS.iter().map(|kind| kind.usage()).chain([AUTO.into(), format!("{FILE}PATH")]);
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
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

    #[test]
    fn names_are_read_and_written_back() {
        let numbered = ["banded-square-root:7", "banded-inverse-square-root:1", "banded-optimal:2", "blt:8"];
        let normalized = ["normalized-square-root", "normalized-banded-inverse-square-root:3"];
        let known = KINDS.iter().map(|kind| kind.name().to_string());
        let others = numbered.into_iter().chain(normalized).chain(["auto", "power-law:1", "file:a b.json"]);
        for text in known.chain(others.map(String::from)) {
            let name: StrategyName = text.parse().unwrap();
            assert_eq!(name.to_string(), text);
            assert_eq!(serde_json::to_string(&name).unwrap(), format!("\"{text}\""));
        }
    }

    #[test]
    fn every_strategy_has_a_unique_name_and_can_be_built() {
        for (index, kind) in KINDS.iter().enumerate() {
            assert!(KINDS[..index].iter().all(|other| other != kind), "{kind:?}");
            assert!(kind.strategy.is_some() || kind.factorization.is_some(), "{kind:?}");
        }
    }

    #[test]
    fn invalid_names_are_refused_with_the_valid_ones() {
        let check = |text: &str, part: &str| {
            let message = text.parse::<StrategyName>().unwrap_err().to_string();
            assert!(message.contains(part) && message.contains(text), "{message}");
        };
        for text in ["", "root", "identity:1", "Identity", "normalized-", "normalized-identity", "blt4"] {
            check(text, "`square-root`");
        }
        check("normalized-normalized-square-root", "`square-root`");
        for text in ["blt", "blt:", "blt:0", "blt:9", "blt:-1", "blt:two", "blt:4:2"] {
            check(text, "from 1 to 8");
        }
        check("banded-square-root:1048577", "from 1 to 1048576");
    }
}
