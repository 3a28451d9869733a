//! Describes a strategy and the purpose for which it is made. [`KINDS`](super::KINDS) lists all
//! strategies.

use super::{
    Factorization, KINDS, MAX_HORIZON, Strategy, StrategyError, StrategyName, StrategyParameters,
    buffered::{self, FitError},
    dense, toeplitz,
};
use crate::{
    optimize::{OnProgress, OptimizeError},
    participation::Participation,
    workload::Workload,
};
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    hash::{Hash, Hasher},
    num::NonZeroU32,
    sync::Arc,
};
use thiserror::Error;

/// Longest horizon for which a comparison includes dense strategies and searches, which take
/// seconds.
pub(super) const SHORT: u64 = 512;

/// Longest horizon for which a comparison includes strategies with full history, whose errors take
/// quadratic time.
pub(super) const FULL_HISTORY: u64 = 1 << 13;

/// Number of bands in a comparison for single participation.
const COMPARED_BANDS: u32 = 32;

/// A strategy in a comparison.
pub(super) struct ComparedStrategy {
    name: StrategyName,
    /// Longest horizon for which it takes at most seconds.
    limit: u64,
}

impl StrategyName {
    /// Includes the strategy at every horizon.
    pub(super) fn always(self) -> ComparedStrategy {
        self.up_to(u64::MAX)
    }

    /// Includes the strategy up to a horizon, and beyond it on request.
    pub(super) fn up_to(self, limit: u64) -> ComparedStrategy {
        ComparedStrategy { name: self, limit }
    }
}

/// The strategies that a comparison for a purpose includes, and those that it leaves out.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// In the order of the table.
    pub strategies: Vec<StrategyName>,
    /// Every strategy of the table that is not included.
    pub omissions: Vec<Omission>,
}

/// A strategy that a comparison leaves out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Omission {
    /// As on the command line.
    pub strategy: String,
    /// The reason.
    #[serde(flatten)]
    pub reason: OmissionReason,
}

/// Reasons why a comparison leaves a strategy out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
pub enum OmissionReason {
    /// It would take longer than seconds.
    Time {
        /// Longest horizon for which it is compared by default.
        limit: u64,
    },
    /// The horizon is longer than it supports.
    Horizon {
        /// Its longest horizon.
        limit: u64,
    },
    /// It has no form for the workload or the participation.
    NoForm {
        /// The missing requirement.
        detail: String,
    },
    /// The comparison was stopped before it.
    Stopped,
    /// It could not be made, or its error could not be computed.
    Failed {
        /// The error.
        detail: String,
    },
}

impl fmt::Display for OmissionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time { limit } => write!(f, "takes long beyond {limit} epochs"),
            Self::Horizon { limit } => write!(f, "at most {limit} epochs"),
            Self::NoForm { detail } => f.write_str(detail),
            Self::Stopped => f.write_str("stopped before it"),
            Self::Failed { detail } => write!(f, "failed: {detail}"),
        }
    }
}

/// A strategy of the table: how it is written, explained, compared, fitted and built.
pub struct Kind {
    /// Name on the command line, before the number.
    pub(super) word: &'static str,
    /// One line for `--help`.
    pub(super) help: &'static str,
    /// Meaning of the number after the name, and its maximum; `None` for a name without a number.
    pub(super) number: Option<(&'static str, u32)>,
    /// Longest horizon of the strategy that runs.
    pub(super) horizon: u64,
    /// Longest horizon of the form with columns of norm 1; `None` if there is no such form.
    pub(super) normalized: Option<u64>,
    /// The strategies that a comparison for a purpose includes, or why there is none.
    pub(super) compared: fn(&'static Self, &Purpose) -> Result<Vec<ComparedStrategy>, &'static str>,
    /// The result that an optimiser must find.
    pub(super) fit: Fit,
    /// Makes the strategy that runs; `None` for one that is only compared.
    pub(super) strategy: Option<MakeStrategy>,
    /// Makes a factorisation of a number of steps only for computing errors, if the strategy does
    /// not run, or not for this many steps.
    pub(super) factorization: Option<MakeFactorization>,
}

type MakeStrategy = fn(&Specification<'_>) -> Result<Arc<dyn Strategy>, StrategyError>;
type MakeFactorization = fn(u64) -> Result<Arc<dyn Factorization>, StrategyError>;

/// The result that an optimiser must find for a strategy.
#[derive(Clone, Copy)]
pub enum Fit {
    /// No result is needed: the name determines the strategy.
    None,
    /// Its parameters, for a purpose.
    Parameters {
        /// The optimiser.
        search: Search,
        /// Whether the result depends on the objective of the purpose.
        objective: bool,
    },
    /// The certified optimum over all C of a convex [`program`](crate::optimize), which also takes
    /// workloads that are not causal.
    Program {
        /// Whether it takes repeated participations into account.
        repeated: bool,
    },
}

/// An optimiser: finds the parameters of the named strategy for a purpose.
pub type Search = fn(&StrategyName, &Purpose, OnProgress<'_>) -> Result<OptimisedStrategy, SearchError>;

/// Input of a strategy's constructor.
pub(super) struct Specification<'a> {
    pub(super) name: &'a StrategyName,
    pub(super) workload: &'a Workload,
    /// Within the limits of the kind.
    pub(super) horizon: Option<u64>,
    pub(super) fitted: Option<&'a StrategyParameters>,
}

impl Specification<'_> {
    /// The horizon of a strategy that needs one.
    pub(super) fn steps(&self) -> Result<u64, StrategyError> {
        self.horizon.ok_or_else(|| StrategyError::NoHorizon { strategy: self.name.to_string() })
    }
}

/// The purpose of a strategy.
#[derive(Clone, Debug, PartialEq)]
pub struct Purpose {
    /// The workload A.
    pub workload: Workload,
    /// Number of steps, at least 1.
    pub horizon: u64,
    /// Participation of the protected unit.
    pub participation: Participation,
    /// Number of copies: 1 for a strategy over the whole horizon, s for s copies one after another.
    pub stamps: u64,
    /// Objective of a fit that has a choice.
    pub objective: Objective,
}

impl Purpose {
    /// Single participation, one copy, least mean squared error.
    pub fn new(workload: Workload, horizon: u64) -> Self {
        let (participation, objective) = (Participation::Single, Objective::Rmse);
        Self { workload, horizon, participation, stamps: 1, objective }
    }

    /// The purpose of a single copy.
    #[must_use]
    pub fn of_single_copy(&self) -> Self {
        Self { horizon: self.horizon.div_ceil(self.stamps.max(1)), stamps: 1, ..self.clone() }
    }

    /// Returns the least number of steps between participations; `None` for a single one.
    pub(super) fn gap(&self) -> Option<u64> {
        let schedule = self.participation.on(self.horizon as usize);
        (schedule.count() > 1).then_some(schedule.gap() as u64)
    }

    /// Returns the largest number of bands, up to 4096, for which the columns of one entity do not
    /// overlap; [`COMPARED_BANDS`] for single participation.
    pub(super) fn bands_apart(&self) -> u32 {
        self.gap().map_or(COMPARED_BANDS, |gap| gap.min(1 << 12) as u32)
    }

    /// For [`compared`](Kind::compared): includes strategies if the workload has a Toeplitz part
    /// with a positive diagonal.
    pub(super) fn if_toeplitz(
        &self,
        compared: impl IntoIterator<Item = ComparedStrategy>,
    ) -> Result<Vec<ComparedStrategy>, &'static str> {
        match self.workload.toeplitz_part(1) {
            Some(part) if part[0] > 0.0 => Ok(compared.into_iter().collect()),
            Some(_) => Err("the diagonal of the workload is not positive"),
            None => Err("the workload is not a Toeplitz matrix"),
        }
    }
}

/// The objective of a fit, for noise that is calibrated to the sensitivity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// `rmse`: root of the mean squared error over all steps; for a stream without end, the limit
    /// of the error.
    Rmse,
    /// `max`: the largest error of a step.
    #[serde(rename = "max")]
    MaxError,
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rmse => "rmse",
            Self::MaxError => "max",
        })
    }
}

/// Result of an optimiser.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimisedStrategy {
    /// The parameters.
    pub fitted: StrategyParameters,
    /// Value reached at sensitivity 1: the total squared error, or the objective of buffers.
    pub objective: f64,
    /// Lower bound of the total squared error of every strategy for the purpose, if known.
    pub lower_bound: Option<f64>,
    /// Lower bound of the purpose's objective for every strategy of the class, such as all Toeplitz
    /// strategies, if known.
    pub class_bound: Option<f64>,
}

/// Reasons why an optimiser finds no strategy.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SearchError {
    /// It cannot be made.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// The convex program failed.
    #[error("the strategy `{strategy}` can't be found: {source}")]
    Optimize {
        /// As on the command line.
        strategy: String,
        /// The cause.
        source: OptimizeError,
    },
    /// The fit failed.
    #[error("the strategy `{strategy}` can't be fitted: {source}")]
    Fit {
        /// As on the command line.
        strategy: String,
        /// The cause.
        source: FitError,
    },
}

impl Kind {
    pub(super) const fn new(word: &'static str, help: &'static str) -> Self {
        Self {
            word,
            help,
            number: None,
            horizon: MAX_HORIZON,
            normalized: None,
            compared: |kind, _| Ok(vec![kind.name().always()]),
            fit: Fit::None,
            strategy: None,
            factorization: None,
        }
    }

    /// For [`compared`](Self::compared): includes the strategy up to [`SHORT`] steps.
    pub(super) fn if_short(&'static self, _: &Purpose) -> Result<Vec<ComparedStrategy>, &'static str> {
        Ok(vec![self.name().up_to(SHORT)])
    }

    /// The name of the strategy; with the number 1, if it has one.
    pub fn name(&'static self) -> StrategyName {
        self.numbered(1)
    }

    /// The name with a number, clamped to its limits; without a number if the strategy has none.
    pub fn numbered(&'static self, number: u32) -> StrategyName {
        let number = self.number.and_then(|(_, limit)| NonZeroU32::new(number.clamp(1, limit)));
        StrategyName::Known { kind: self, number, normalized: false }
    }

    /// The name as it is written in a list: `blt:b`.
    pub fn usage(&self) -> String {
        let letter = |(unit, _): (&str, u32)| format!("{}:{}", self.word, &unit[..1]);
        self.number.map_or(self.word.into(), letter)
    }

    /// One line of help.
    pub fn help(&self) -> &'static str {
        self.help
    }

    /// The result that an optimiser must find.
    pub fn fit(&self) -> Fit {
        self.fit
    }

    /// Whether a run can use it; otherwise it is for comparison.
    pub fn can_run(&self) -> bool {
        self.strategy.is_some()
    }

    /// Whether there is a form with columns of norm 1.
    pub fn can_be_normalized(&self) -> bool {
        self.normalized.is_some()
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        self.word == other.word
    }
}

impl Eq for Kind {}

impl Hash for Kind {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.word.hash(state);
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word)
    }
}

/// Returns the default strategy for a purpose. Buffers, the usual default, take constant memory,
/// and are within about a per cent of the best for single participation.
pub fn default_strategy(purpose: &Purpose) -> StrategyName {
    match &purpose.workload {
        // Buffers forget gradually, so they don't fit a window, which forgets at once.
        Workload::Window(length) | Workload::WindowMean(length) => {
            let shorter = |_| toeplitz::banded_for_window(length.get(), purpose);
            dense::bands_for_window(purpose).unwrap_or_else(shorter)
        }
        Workload::Matrix(_) => match purpose.horizon {
            // Longer ones take minutes to find.
            0..=SHORT => dense::OPTIMAL.name(),
            _ => toeplitz::IDENTITY.name(),
        },
        _ if buffered::variable_buffers_fit(purpose) => buffered::VARIABLE_BLT.numbered(4),
        // Columns of a power law overlap over the whole stream, so it is for single participation.
        Workload::Average if purpose.gap().is_none() => buffered::POWER_LAW.numbered(2),
        _ => buffered::BLT.numbered(5),
    }
}

/// Returns the strategies to compare for a purpose; with `all`, also those that take longer than
/// seconds.
pub fn compare(purpose: &Purpose, all: bool) -> Comparison {
    let copy = purpose.of_single_copy();
    let mut comparison = Comparison { strategies: Vec::new(), omissions: Vec::new() };
    for &kind in KINDS {
        let compared = match (kind.compared)(kind, &copy) {
            Ok(compared) => compared,
            Err(detail) => {
                let reason = OmissionReason::NoForm { detail: detail.into() };
                comparison.omissions.push(Omission { strategy: kind.usage(), reason });
                continue;
            }
        };
        for ComparedStrategy { name, limit } in compared {
            let longest = super::build::longest_compared(&name);
            let reason = if copy.horizon > longest {
                OmissionReason::Horizon { limit: longest }
            } else if copy.horizon > limit && !all {
                OmissionReason::Time { limit }
            } else {
                comparison.strategies.push(name);
                continue;
            };
            comparison.omissions.push(Omission { strategy: name.to_string(), reason });
        }
    }
    comparison
}

/// Finds the parameters of a strategy by its optimiser.
///
/// # Errors
/// [`SearchError`]; [`StrategyError::NotFitted`] for a strategy without an optimiser.
pub fn fit(
    name: &StrategyName,
    purpose: &Purpose,
    progress: OnProgress<'_>,
) -> Result<OptimisedStrategy, SearchError> {
    match name.fit() {
        Fit::Parameters { search, .. } => search(name, purpose, progress),
        Fit::Program { repeated } => dense::optimum(name, purpose, repeated, progress),
        Fit::None => Err(StrategyError::NotFitted { strategy: name.to_string() }.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_follows_workload_horizon_and_participation() {
        let check = |workload: &str, horizon, participation: &str, name: &str| {
            let purpose = Purpose::new(workload.parse().unwrap(), horizon);
            let participation = participation.parse().unwrap();
            let found = default_strategy(&Purpose { participation, ..purpose });
            assert_eq!(found.to_string(), name, "{workload} {horizon} {participation}");
        };
        check("prefix", 1, "1", "variable-blt:4");
        check("average", 1 << 17, "1", "variable-blt:4");
        check("average", 1 + (1 << 17), "1", "power-law:2");
        check("adam:0.9", 100, "2x10+", "variable-blt:4");
        check("adam:0.9", 2000, "2x10+", "blt:5");
        check("average", 2000, "2x10+", "blt:5");
        check("window:7", 100, "1", "variable-banded:22");
        check("window-mean:7", 100, "1", "variable-banded:22");
        check("window:7", 100, "5x30+", "variable-banded:22");
        check("window:7", 100, "5x10+", "variable-banded:10");
        check("window:7", 5000, "5x10+", "banded-square-root:10");
        check("window:7", 5000, "5x100", "banded-square-root:28");
    }
}
