//! Reads `[release]` of methods that release moments.

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use hushflow_mechanism::mechanism::Method;
use hushflow_mechanism::participation::Participation;
use hushflow_mechanism::strategy::{MAX_DENSE_HORIZON, Purpose, StrategyName, default_strategy};
use hushflow_mechanism::workload::Workload;

use super::super::fields::METHODS;
use super::super::{Release, SecondRelease};
use crate::document::Section;
use crate::estimates::LogFacts;
use crate::strategies::matrix::read_workload;
use crate::strategies::schedule::LearningRates;

/// Any participation that is not single.
const TWICE: Participation =
    Participation::Fixed { count: NonZeroU64::MIN.saturating_add(1), gap: NonZeroU64::MIN };

/// The section `[release]`. Its default strategy depends on other sections.
pub(super) struct ReleaseSection {
    strategy: Option<StrategyName>,
    second_strategy: Option<StrategyName>,
    second_workload: Option<Workload>,
    /// Paths of both strategies if they are files: the header of a log holds only the file names.
    pub(super) files: [Option<PathBuf>; 2],
    workload: Workload,
    /// Learning rates that weigh its steps.
    pub(super) schedule: Option<String>,
    memory_limit: Option<u64>,
    pub(super) method: Method,
}

impl ReleaseSection {
    pub(super) fn new(strategy: Option<StrategyName>, workload: Workload) -> Self {
        Self {
            strategy,
            second_strategy: None,
            second_workload: None,
            files: Default::default(),
            workload,
            schedule: None,
            memory_limit: None,
            method: Method::default(),
        }
    }

    /// Takes this strategy where none is named.
    pub(super) fn by_default(self, strategy: StrategyName) -> Self {
        Self { strategy: self.strategy.or(Some(strategy)), ..self }
    }

    /// Makes the release for its [`weighted`] workload.
    pub(super) fn finish(self, workload: Workload, participation: Participation, horizon: u64) -> Release {
        let Self { strategy, second_strategy, second_workload, memory_limit, method, .. } = self;
        let is_separate = second_strategy.is_some() || second_workload.is_some();
        // The sensitivity of a pair needs both matrices, as that of several participations does:
        // long ones must be Toeplitz.
        let participation = match participation {
            Participation::Single if is_separate && horizon > MAX_DENSE_HORIZON => TWICE,
            participation => participation,
        };
        let default = |workload: &Workload| {
            default_strategy(&Purpose { participation, ..Purpose::new(workload.clone(), horizon) })
        };
        let second = is_separate.then(|| {
            let workload = second_workload.unwrap_or_else(|| workload.clone());
            let strategy = second_strategy.or_else(|| strategy.clone());
            SecondRelease { strategy: strategy.unwrap_or_else(|| default(&workload)), workload }
        });
        let strategy = strategy.unwrap_or_else(|| default(&workload));
        Release { strategy, workload, memory_limit, method, second }
    }
}

/// Reads the section. `default_workload` is the workload if it names none.
pub(super) fn release(
    section: &Section<'_>,
    base: &Path,
    default_workload: &Workload,
) -> Option<ReleaseSection> {
    let workload = |key| match section.text(key) {
        Some(field) => {
            let read = |text: &&str| read_workload(text, base).map_err(|error| error.to_string());
            field.map(read).map(|field| Some(field.value))
        }
        None => Some(None),
    };
    let (of_all, of_second) = (workload("workload"), workload("second_workload"));
    let (strategy, second_strategy) =
        (strategy(section, "strategy", base), strategy(section, "second_strategy", base));
    let method = method(section);
    let limit = section.count("memory_limit");
    let (strategy, file) = strategy?;
    let (second_strategy, second_file) = second_strategy?;
    Some(ReleaseSection {
        strategy,
        second_strategy,
        second_workload: of_second?,
        // Unless it has one of its own, C₂ is the strategy of all moments.
        files: [file.clone(), second_file.or(file)],
        workload: of_all?.unwrap_or_else(|| default_workload.clone()),
        schedule: section.text("schedule").map(|field| field.value.into()),
        memory_limit: limit.map(|limit| limit.value),
        method: method?,
    })
}

/// Reads the name of a strategy, if there is one, and its path if it is a file.
fn strategy(
    section: &Section<'_>,
    key: &'static str,
    base: &Path,
) -> Option<(Option<StrategyName>, Option<PathBuf>)> {
    let Some(field) = section.text(key) else { return Some((None, None)) };
    let strategy: StrategyName = field.map(parsed)?.value;
    let StrategyName::File(path) = &strategy else { return Some((Some(strategy), None)) };
    let file = base.join(path);
    let name = file.file_name().map(|name| StrategyName::File(name.to_string_lossy().into()));
    Some((Some(name.unwrap_or(strategy)), Some(file)))
}

/// Returns the workload of a release with its schedule, if it weighs every epoch of the log.
pub(super) fn weighted(
    root: &Section<'_>,
    base: &Path,
    release: Option<&ReleaseSection>,
    log: &LogFacts<'_>,
) -> Workload {
    let Some(ReleaseSection { workload, second_workload, schedule, .. }) = release else {
        return Workload::default();
    };
    let section = root.peek("release");
    let report = |key, problem: String| {
        if let Some(field) = section.as_ref().and_then(|section| section.get(key)) {
            field.report(problem);
        }
    };
    for (key, workload) in [("workload", Some(workload)), ("second_workload", second_workload.as_ref())] {
        if let Some(Err(problem)) = workload.map(|workload| log.check_workload(workload)) {
            report(key, problem);
        }
    }
    let weighted = schedule.as_ref().filter(|_| log.epochs > 0);
    match weighted.map(|schedule| LearningRates::weigh(schedule, base, workload, log.epochs)) {
        None => workload.clone(),
        Some(Ok(workload)) => workload,
        Some(Err(error)) => {
            report("schedule", error.to_string());
            workload.clone()
        }
    }
}

fn method(section: &Section<'_>) -> Option<Method> {
    let share = section.number("first_moment_share");
    let method = if section.has("method") { section.word("method", METHODS)? } else { Method::default() };
    match (method, share) {
        (Method::Ime { .. }, Some(share)) => Some(Method::Ime { first_moment_share: share.value }),
        _ => Some(method),
    }
}

/// Parses a value and returns the error as text.
fn parsed<T: FromStr<Err: ToString>>(text: &&str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}
