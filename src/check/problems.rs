//! The rules: when a source is not what its pipeline file describes.
//!
//! Shares of rows and values are judged for each source by itself: among larger sources, one whose
//! rows don't count would go unnoticed. Epochs, keys and columns without a record are judged over
//! all sources together.
//!
//! A run that stops later withholds its newest epochs. So their own rows must show the problem too:
//! rows of published epochs alone stop no run, and one that goes on with a corrected source
//! publishes.
//!
//! No message holds a value of a row or a count.

mod epochs;
mod keys;
mod rows;

use serde::Serialize;

use super::coverage::{ClosedCoverage, Coverage};
use crate::pipeline::{MissingPolicy, Pipeline};
use crate::source::{RowCounters, RowSurvey, SourceError, SourceReader};

pub(super) use epochs::is_nearly_empty;
pub use epochs::never_closes;
pub use rows::histogram_surveys;
pub(super) use rows::{beyond_bounds, falling_clock, lost_shares};

/// A problem of a pipeline with its source: a run would publish little or nothing of the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Name for programs.
    pub kind: &'static str,
    /// The name of the source, if it is one of several and the problem is its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Whether it follows from public facts, so that a run may stop.
    pub public: bool,
    /// Whether a run of the pipeline stops at it.
    pub stops: bool,
    /// The fact and how to correct it.
    pub message: String,
}

impl Problem {
    /// Returns a problem of all sources together, at which no run stops.
    pub fn new(kind: &'static str, public: bool, message: impl Into<String>) -> Self {
        Problem { kind, source: None, public, stops: false, message: message.into() }
    }

    /// Returns the problem of a source that can't be read further, at which every run stops.
    pub fn of_fault(fault: &SourceError) -> Self {
        let (kind, public) = match fault {
            SourceError::Leap { .. } => ("leaping clock", true),
            SourceError::NewestFirst { .. } => ("falling clock", true),
            SourceError::BeforeStart { .. } => ("before the start", true),
            SourceError::AfterHorizon { .. } => ("after the horizon", true),
            SourceError::NoClock { .. } => ("no clock", true),
            SourceError::Rejected { .. } => ("rejected row", false),
            SourceError::Unreached(_) => ("unreachable source", true),
            _ => ("unreadable source", true),
        };
        Problem { stops: true, ..Problem::new(kind, public, fault.to_string()) }
    }

    /// Whether it is the same problem of the same source.
    pub fn is_same(&self, other: &Problem) -> bool {
        (self.kind, &self.source) == (other.kind, &other.source)
    }

    /// Makes it the problem of one source of several.
    pub(super) fn of_source(self, name: &str) -> Self {
        let message = format!("in the source {name:?}, {}", self.message);
        Problem { source: Some(name.into()), message, ..self }
    }
}

/// Observed rows of all sources. Private.
pub struct Observation<'a> {
    /// The rows observed.
    pub extent: Extent,
    /// The rows of each source.
    pub sources: &'a [SourceRows<'a>],
    /// Number of duplicates.
    pub duplicates: u64,
    /// The epochs and keys that have had records so far.
    pub coverage: &'a Coverage,
    /// The newest closed epochs.
    pub newest: ClosedCoverage,
}

/// Observed rows of a source. Private.
#[derive(Clone, Copy)]
pub struct SourceRows<'a> {
    /// Outcomes of the rows.
    pub counters: RowCounters,
    /// Outcomes of the rows of the newest closed epochs.
    pub newest: RowCounters,
    /// Survey of the values of the rows so far.
    pub survey: &'a RowSurvey,
}

impl<'a> SourceRows<'a> {
    /// Rows that were read, all new.
    pub fn new(counters: RowCounters, survey: &'a RowSurvey) -> Self {
        SourceRows { counters, newest: counters, survey }
    }

    /// The rows that a reader has read.
    pub fn of(reader: &'a SourceReader) -> Self {
        SourceRows::new(*reader.counters(), reader.survey())
    }

    /// Whether these counts are more than one in `share` of the rows, also of the newest ones.
    fn exceed(&self, share: u64, count: impl Fn(&RowCounters) -> u64) -> bool {
        [self.counters, self.newest]
            .iter()
            .all(|counters| share.saturating_mul(count(counters)) > counters.rows)
    }

    /// The rows without those before the first epoch at the beginning of the source.
    pub(super) fn started(&self) -> Self {
        let since = |counters: RowCounters| counters.since(&self.survey.early);
        SourceRows { counters: since(self.counters), newest: since(self.newest), survey: self.survey }
    }

    /// Whether these counts are more than half of the rows, also of the newest ones.
    pub(super) fn are_most(&self, count: impl Fn(&RowCounters) -> u64) -> bool {
        self.exceed(2, count)
    }
}

/// A part of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The first rows of a run, which may stop at a problem.
    First,
    /// Later rows of a run, which may stop at a problem. Their values are judged by themselves.
    Later,
    /// All rows of a run, or of a check.
    Whole,
}

impl Extent {
    /// Minimum number of rows whose shares are judged.
    fn least(self) -> u64 {
        match self {
            Extent::First | Extent::Later => 20,
            Extent::Whole => 1,
        }
    }

    /// Returns the share of rows outside of the epochs that is a problem, as its inverse, and its
    /// name. A part of the rows may well begin before the first epoch.
    fn outside(self) -> (u64, &'static str) {
        match self {
            Extent::First | Extent::Later => (2, "most rows"),
            Extent::Whole => (20, "more than one row in twenty"),
        }
    }

    /// Returns the same for rows of epochs that rows before them have closed. Some may be late.
    fn behind(self) -> (u64, &'static str) {
        match self {
            Extent::First | Extent::Later => (2, "most rows"),
            Extent::Whole => (5, "more than a fifth of the rows"),
        }
    }
}

/// Returns the problems of these rows. A run stops at none of them unless it is marked so.
pub fn problems(pipeline: &Pipeline, seen: &Observation<'_>) -> Vec<Problem> {
    let mut found = Vec::new();
    for (source, rows) in pipeline.sources.iter().zip(seen.sources) {
        let own = rows::problems((pipeline, source), seen, rows).into_iter();
        found.extend(own.map(|problem| match pipeline.has_several_sources() {
            true => problem.of_source(&source.name),
            false => problem,
        }));
    }
    if found.iter().all(|problem| problem.kind != rows::UNLISTED_KEYS)
        && let Some(unseen) = keys::unseen(pipeline, seen)
    {
        // It explains the spellings.
        found.retain(|problem| problem.kind != rows::MISSPELT_KEYS);
        found.push(unseen);
    }
    if seen.extent != Extent::Later {
        found.extend(duplicates(pipeline, seen));
        if pipeline.rows.missing == MissingPolicy::ByColumn {
            found.extend(rows::empty_column(pipeline, seen));
        }
    }
    found.extend(epochs::empty_start(pipeline, seen));
    found.extend(epochs::idle_clock(pipeline, seen));
    // Other problems explain empty epochs. Private ones must not decide whether a public one is
    // found.
    if let Some(empty) = epochs::empty_epochs(pipeline, seen)
        && found.iter().all(|other| empty.public && !other.public)
    {
        found.push(empty);
    }
    found
}

/// Reports that most rows are duplicates. They are counted for all sources together: which
/// duplicate is the first depends on the order of reading.
fn duplicates(pipeline: &Pipeline, seen: &Observation<'_>) -> Option<Problem> {
    let rows: u64 = seen.sources.iter().map(|source| source.counters.rows).sum();
    let id = pipeline.id.as_ref().filter(|_| rows >= seen.extent.least() && 2 * seen.duplicates > rows)?;
    let message = format!(
        "most rows are duplicates of others by the column {id:?}, and don't count: name a column in [source] id that tells records apart"
    );
    Some(Problem::new("copies", false, message))
}
