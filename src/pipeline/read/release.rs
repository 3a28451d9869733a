//! Reads `[release]` of methods that release moments.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use hushflow_mechanism::mechanism::Method;
use hushflow_mechanism::participation::Participation;
use hushflow_mechanism::strategy::{Purpose, StrategyName, default_strategy};
use hushflow_mechanism::workload::Workload;

use super::super::Release;
use super::super::fields::METHODS;
use crate::document::Section;
use crate::estimates::LogFacts;
use crate::strategies::matrix::read_workload;
use crate::strategies::schedule::LearningRates;

/// The section `[release]`. Its default strategy depends on other sections.
pub(super) struct ReleaseSection {
    strategy: Option<StrategyName>,
    /// Path of the strategy if it is a file: the header of a log holds only the file name.
    pub(super) file: Option<PathBuf>,
    workload: Workload,
    /// Learning rates that weigh its steps.
    pub(super) schedule: Option<String>,
    memory_limit: Option<u64>,
    pub(super) method: Method,
}

impl ReleaseSection {
    pub(super) fn new(strategy: Option<StrategyName>, workload: Workload) -> Self {
        Self { strategy, file: None, workload, schedule: None, memory_limit: None, method: Method::default() }
    }

    /// Makes the release for its [`weighted`] workload.
    pub(super) fn finish(self, workload: Workload, participation: Participation, horizon: u64) -> Release {
        let Self { strategy, memory_limit, method, .. } = self;
        let default =
            || default_strategy(&Purpose { participation, ..Purpose::new(workload.clone(), horizon) });
        Release { strategy: strategy.unwrap_or_else(default), workload, memory_limit, method }
    }
}

/// Reads the section. `default_workload` is the workload if it names none.
pub(super) fn release(
    section: &Section<'_>,
    base: &Path,
    default_workload: &Workload,
) -> Option<ReleaseSection> {
    let workload = match section.text("workload") {
        Some(field) => {
            let read = |text: &&str| read_workload(text, base).map_err(|error| error.to_string());
            field.map(read).map(|field| field.value)
        }
        None => Some(default_workload.clone()),
    };
    let strategy: Option<Option<StrategyName>> = match section.text("strategy") {
        Some(field) => field.map(parsed).map(|field| Some(field.value)),
        None => Some(None),
    };
    let method = method(section);
    let limit = section.count("memory_limit");
    let strategy = strategy?;
    let file = match &strategy {
        Some(StrategyName::File(path)) => Some(base.join(path)),
        _ => None,
    };
    let name = file.as_ref().and_then(|path| path.file_name());
    let strategy = name.map(|name| StrategyName::File(name.to_string_lossy().into())).or(strategy);
    let memory_limit = limit.map(|limit| limit.value);
    let schedule = section.text("schedule").map(|field| field.value.into());
    Some(ReleaseSection { strategy, file, workload: workload?, schedule, memory_limit, method: method? })
}

/// Returns the workload of a release with its schedule, if it weighs every epoch of the log.
pub(super) fn weighted(
    root: &Section<'_>,
    base: &Path,
    release: Option<&ReleaseSection>,
    log: &LogFacts<'_>,
) -> Workload {
    let Some(ReleaseSection { workload, schedule, .. }) = release else { return Workload::default() };
    let section = root.peek("release");
    let report = |key, problem: String| {
        if let Some(field) = section.as_ref().and_then(|section| section.get(key)) {
            field.report(problem);
        }
    };
    if let Err(problem) = log.check_workload(workload) {
        report("workload", problem);
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
