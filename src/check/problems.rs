//! The rules: when a source is not what its pipeline file describes.
//!
//! No message holds a value of a row or a count.

use std::collections::HashMap;

use hushflow_mechanism::epochs::{ClockSource, Schedule};
use serde::Serialize;

use super::coverage::Coverage;
use crate::format::Defect;
use crate::pipeline::{KeyColumn, MissingPolicy, Pipeline};
use crate::source::{ColumnSurvey, RowCounters, RowSurvey, SourceError};
use crate::spelling::closest;

/// Epochs before the first record that are no problem.
const FEW_EPOCHS: u64 = 10;

/// Closed epochs from which it means anything that nearly all of them are empty.
const LEAST_EPOCHS: u64 = 8;

/// Largest number of rows for each row that spells a listed key in another way, if that is a
/// problem.
const ROWS_PER_MISSPELT: u64 = 20;

/// Unlisted rows from which they may be those of a listed key without a row.
const LEAST_UNLISTED: u64 = 20;

/// A problem of a pipeline with its source: a run would publish little or nothing of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Name for programs.
    pub kind: &'static str,
    /// Whether it follows from public facts, so that a run may stop.
    pub public: bool,
    /// Whether a run of the pipeline stops at it.
    pub stops: bool,
    /// What was found, and how to mend it.
    pub message: String,
}

impl Problem {
    /// Returns the problem of a source that can't be read further, at which every run stops.
    pub fn of_fault(fault: &SourceError) -> Self {
        let (kind, public) = match fault {
            SourceError::Leap { .. } => ("leaping clock", true),
            SourceError::BeforeStart { .. } => ("before the start", true),
            SourceError::AfterHorizon { .. } => ("after the horizon", true),
            SourceError::NoClock { .. } => ("no clock", true),
            SourceError::Rejected { .. } => ("rejected row", false),
            _ => ("unreadable source", true),
        };
        Problem { kind, public, stops: true, message: fault.to_string() }
    }
}

/// What was seen of the rows of all sources. Private.
#[derive(Clone, Copy)]
pub struct Observation<'a> {
    /// Which rows these are.
    pub extent: Extent,
    /// What became of them.
    pub counters: RowCounters,
    /// What the rows so far hold.
    pub survey: &'a RowSurvey,
    /// The epochs and keys that have had records so far.
    pub coverage: &'a Coverage,
}

/// Which rows were seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The first rows of a run, which may stop at a problem.
    First,
    /// Later rows of a run, which may stop at a problem. Values and times are not judged again.
    Later,
    /// All rows of a run, or of a check.
    Whole,
}

impl Extent {
    /// Rows from which shares mean anything.
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
            Extent::Whole => (5, "more than a fifth of the rows"),
        }
    }
}

/// Returns the problems of these rows. A run stops at none of them unless it is marked so.
pub fn problems(pipeline: &Pipeline, seen: &Observation<'_>) -> Vec<Problem> {
    let mut found = problems_of_rows(pipeline, seen);
    found.extend(empty_start(pipeline, seen.coverage));
    found.extend(idle_clock(pipeline, seen.coverage));
    // Other problems explain empty epochs. Private ones must not decide whether a public one is
    // found.
    if let Some(empty) = empty_epochs(pipeline, seen.coverage)
        && found.iter().all(|other| empty.public && !other.public)
    {
        found.push(empty);
    }
    found
}

/// Returns the problems of shares of the rows.
fn problems_of_rows(pipeline: &Pipeline, seen: &Observation<'_>) -> Vec<Problem> {
    let (rows, least) = (seen.counters.rows, seen.extent.least());
    if rows < least {
        return Vec::new();
    }
    let public = pipeline.privacy.neighbours.counts_are_public();
    let mut found = Vec::new();
    let mut add = |kind, public, message: String| found.push(Problem { kind, public, stops: false, message });
    let is_most = |count: u64| 2 * count > rows;
    let counters = &seen.counters;
    if let Some(key) = pipeline.key.as_ref().filter(|_| is_most(counters.unknown_key)) {
        let share = if counters.unknown_key == rows { "every row has" } else { "most rows have" };
        let like =
            similar_key(key, seen).map(|key| format!(" (some are spelt nearly like the listed {key:?})"));
        add(
            "unlisted keys",
            public,
            format!(
                "{share} a key that [key] doesn't list{}: compare its values with the column {:?}, to the letter",
                like.unwrap_or_default(),
                key.column
            ),
        );
    } else if let Some(name) = unseen_key(pipeline, seen) {
        add(
            "key without rows",
            public,
            format!(
                "no row has the listed key {name:?}, and many rows have keys that [key] doesn't list: check its spelling, to the \
                 letter"
            ),
        );
    } else if let Some(name) = key_in_two_spellings(pipeline, seen).filter(|_| seen.extent == Extent::Whole) {
        add(
            "misspelt keys",
            false,
            format!(
                "many rows have a key that differs from a listed one, such as {name:?}, in case or blanks alone, and don't count: mend \
                 the source, or list each spelling in [key]"
            ),
        );
    }
    // With counts by column, a row that lacks a value counts for its other columns.
    let whole_rows = pipeline.rows.missing != MissingPolicy::ByColumn || seen.coverage.closed.records == 0;
    if whole_rows && is_most(counters.missing) {
        add(
            "missing values",
            false,
            format!("most rows lack a value{}", columns(seen, |column| column.missing)),
        );
    }
    if whole_rows && is_most(counters.malformed) {
        add(
            "unreadable rows",
            false,
            format!("most rows can't be read{}{}", columns(seen, |column| column.malformed), defect(seen)),
        );
    }
    let outside = seen.extent.outside();
    let late =
        "come after their epoch has closed: raise allowed_lateness, or choose the clock of [epochs] anew";
    for (kind, clocked, count, (share, name), message) in [
        (
            "before the start",
            counters.early_clock,
            counters.before_start,
            outside,
            "come before the first epoch: correct start in [epochs]",
        ),
        (
            "after the horizon",
            counters.past_clock,
            counters.after_horizon,
            outside,
            "come after the last epoch: correct start, length or horizon in [epochs]",
        ),
        ("late", 0, counters.late + counters.folded, (2, "most rows"), late),
    ] {
        // What the public clock shows is public whatever the rows hold, and so is its message.
        let is_clocked = share * clocked > rows;
        let count = if is_clocked { clocked } else { count };
        if share * count > rows {
            let name = if is_most(count) { "most rows" } else { name };
            let by = if is_clocked { "by the public clock, " } else { "" };
            add(kind, public || is_clocked, format!("{by}{name} {message}"));
        }
    }
    if is_most(counters.leaping_clock) {
        add(
            "leaping clock",
            true,
            "the clock of most rows is further ahead of start than [source] largest_jump allows: correct start in [epochs], or the \
             column of the clock"
                .into(),
        );
    }
    let unusable = if whole_rows { counters.missing + counters.malformed } else { 0 };
    if found.is_empty() && is_most(unusable + dropped(counters)) {
        found.push(Problem {
            kind: "uncounted rows",
            public: false,
            stops: false,
            message: "most rows don't count, for several reasons".into(),
        });
    }
    if seen.extent == Extent::Later {
        return found;
    }
    if !whole_rows {
        found.extend(empty_columns(pipeline, seen));
    }
    found.extend(out_of_bounds(pipeline, seen, least));
    found.extend(swapped_clock(seen.survey, least));
    found
}

/// Event times of which nearly all are after the clock, which is public: if the two columns are
/// swapped, private times move it.
fn swapped_clock(survey: &RowSurvey, least: u64) -> Option<Problem> {
    let timed = survey.early_events + survey.delays.iter().sum::<u64>();
    (timed >= least && survey.early_events.saturating_mul(10) >= 9 * timed && survey.early_events > 0).then(|| Problem {
        kind: "swapped clock",
        public: false,
        stops: false,
        message: "nearly all rows have an event time after their arrival: time and arrival may be swapped in [epochs], or one of \
                  them is in local time. Arrivals are public, event times are not"
            .into(),
    })
}

/// Rows that are dropped though they can be read.
fn dropped(counters: &RowCounters) -> u64 {
    let RowCounters { unknown_key, late, before_start, after_horizon, leaping_clock, copies, .. } = counters;
    unknown_key + late + before_start + after_horizon + leaping_clock + copies
}

/// Values of which most are outside of one bound.
fn out_of_bounds(pipeline: &Pipeline, seen: &Observation<'_>, least: u64) -> Vec<Problem> {
    let columns = pipeline.columns.iter().zip(&seen.survey.columns);
    let outside = columns.filter_map(|(column, survey)| {
        let (lower, upper) = match column.bounds.is_empty() {
            true => (format!("lower = {}", column.lower), format!("upper = {}", column.upper)),
            false => ("the lower bound of their key".into(), "the upper bound of their key".into()),
        };
        let bound = match (2 * survey.below > survey.values, 2 * survey.above > survey.values) {
            _ if survey.values < least => return None,
            (true, _) => format!("below {lower}"),
            (_, true) => format!("above {upper}"),
            _ => return None,
        };
        Some(Problem {
            kind: "values out of bounds",
            public: false,
            stops: false,
            message: format!(
                "most values of {:?} are {bound} and would be clipped: its unit may be another than that of the bounds, or two \
                 columns may be swapped",
                column.name
            ),
        })
    });
    outside.collect()
}

/// Epochs before the first record.
fn empty_start(pipeline: &Pipeline, coverage: &Coverage) -> Option<Problem> {
    let Schedule::ByTime(by) = &pipeline.epochs.schedule else { return None };
    let first = coverage.closed.first.filter(|_| coverage.closed.committed == 0)?;
    (first > FEW_EPOCHS.max(by.horizon / 10)).then(|| Problem {
        kind: "empty start",
        public: pipeline.privacy.neighbours.counts_are_public(),
        stops: false,
        message: "many epochs before the first record would be published empty: correct start in [epochs]"
            .into(),
    })
}

/// Epochs of which nearly all had no arrival: a public fact unless the end of the input closes
/// epochs.
fn idle_clock(pipeline: &Pipeline, coverage: &Coverage) -> Option<Problem> {
    let closed = coverage.closed.epochs();
    let clocked =
        |schedule: &Schedule| matches!(schedule, Schedule::ByTime(by) if by.clock != ClockSource::EndOfInput);
    let is_public = pipeline.sources.iter().all(|source| clocked(&source.schedule));
    let nearly_all = closed >= 2 * FEW_EPOCHS && coverage.closed.steps.saturating_mul(10) < closed;
    (is_public && nearly_all).then(|| Problem {
        kind: "empty epochs",
        public: true,
        stops: false,
        message: "by the public clock, no row arrived in nearly all of the epochs, which would be published empty: correct start \
                  or length in [epochs]"
            .into(),
    })
}

/// Whether enough epochs have closed, and at least nine in ten of them have no record.
pub(super) fn is_nearly_empty(pipeline: &Pipeline, coverage: &Coverage) -> bool {
    let (closed, filled) = (coverage.closed.epochs(), coverage.closed.filled);
    let is_timed = matches!(pipeline.epochs.schedule, Schedule::ByTime(_));
    is_timed && closed >= LEAST_EPOCHS && filled.saturating_mul(10) <= closed
}

/// Closed epochs of which nearly all have no record.
fn empty_epochs(pipeline: &Pipeline, coverage: &Coverage) -> Option<Problem> {
    is_nearly_empty(pipeline, coverage).then(|| Problem {
        kind: "empty epochs",
        public: pipeline.privacy.neighbours.counts_are_public(),
        stops: false,
        message: "nearly all epochs would be published without a record: correct start, length or horizon in [epochs]".into(),
    })
}

/// Returns a listed key without a record, if there are rows with unlisted keys: for each listed key
/// without a record at least a tenth of the mean of the others.
fn unseen_key<'a>(pipeline: &'a Pipeline, seen: &Observation<'_>) -> Option<&'a str> {
    let key = pipeline.key.as_ref()?;
    let unlisted = seen.counters.unknown_key;
    if unlisted < LEAST_UNLISTED {
        return None;
    }
    let unseen: Vec<usize> = seen.coverage.empty_keys().collect();
    let (first, empty, all) = (*unseen.first()?, unseen.len() as u64, key.values.len() as u64);
    let is_enough = 10 * u128::from(unlisted) * u128::from(all - empty)
        >= u128::from(seen.coverage.closed.records) * u128::from(empty);
    (empty < all && is_enough).then(|| key.values[first].as_str())
}

/// Columns of which most values are missing or unreadable, though their rows count for others.
fn empty_columns(pipeline: &Pipeline, seen: &Observation<'_>) -> Option<Problem> {
    let columns = seen.survey.columns.iter().zip(&pipeline.columns);
    // A run compares the values of its first rows only, so another column must have some.
    let is_surveyed = columns.clone().any(|(survey, _)| survey.values > 0);
    let mut unread = columns
        .filter(|(survey, _)| survey.values == 0 && survey.missing + survey.malformed >= seen.extent.least());
    let (survey, column) = unread.next().filter(|_| is_surveyed)?;
    let defect = survey.defect.map_or_else(String::new, |defect| format!(": {defect}"));
    Some(Problem {
        kind: "column without values",
        public: false,
        stops: false,
        message: format!("every row lacks a readable value of {:?}{defect}", column.name),
    })
}

/// Returns the problem of a source without an end whose epochs close at its end alone.
pub fn never_closes(pipeline: &Pipeline) -> Option<Problem> {
    let waits =
        |schedule: &Schedule| matches!(schedule, Schedule::ByTime(by) if by.clock == ClockSource::EndOfInput);
    let endless = pipeline
        .sources
        .iter()
        .find(|source| source.goes_on() && source.idle.is_none() && waits(&source.schedule))?;
    Some(Problem {
        kind: "no epoch closes",
        public: true,
        stops: true,
        message: format!(
            "{} has no end, so with clock = \"end-of-input\" no epoch would ever be published: name an arrival column in [epochs]",
            endless.input
        ),
    })
}

/// Returns a listed key that many rows spell in another way, though every listed key has rows. A
/// list may leave out other keys on purpose, but not a spelling. No run stops at it.
fn key_in_two_spellings<'a>(pipeline: &'a Pipeline, seen: &Observation<'_>) -> Option<&'a str> {
    let key = pipeline.key.as_ref()?;
    let listed: HashMap<String, &str> =
        key.values.iter().map(|value| (plain(value), value.as_str())).collect();
    let spelt = seen.survey.unlisted_keys.iter().filter_map(|(text, &rows)| {
        let listed = listed.get(&plain(std::str::from_utf8(text).ok()?))?;
        Some((rows, *listed))
    });
    let spelt: Vec<(u64, &str)> = spelt.collect();
    let rows: u64 = spelt.iter().map(|&(rows, _)| rows).sum();
    let name = spelt.iter().map(|&(_, name)| name).min()?;
    (ROWS_PER_MISSPELT * rows >= seen.counters.rows).then_some(name)
}

/// Returns a key in lower case and without blanks.
fn plain(word: &str) -> String {
    word.split_whitespace().collect::<String>().to_lowercase()
}

/// Returns the listed key that is most like an unlisted one. It is public; the unlisted one is not.
fn similar_key<'a>(key: &'a KeyColumn, seen: &Observation<'_>) -> Option<&'a str> {
    let listed: Vec<&str> = key.values.iter().map(String::as_str).collect();
    let mut unlisted: Vec<_> = seen.survey.unlisted_keys.iter().collect();
    unlisted.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    let like = |text: &str| {
        let same = listed.iter().copied().find(|&word| plain(word) == plain(text));
        same.or_else(|| closest(text, &listed))
    };
    unlisted.iter().find_map(|(text, _)| like(std::str::from_utf8(text).ok()?))
}

/// Names the columns of at least half of the defects that `count` counts.
fn columns(seen: &Observation<'_>, count: impl Fn(&ColumnSurvey) -> u64) -> String {
    let most = seen.survey.columns.iter().map(&count).max().unwrap_or(0);
    let named = seen.survey.columns.iter().filter(|column| count(column) > 0 && 2 * count(column) >= most);
    let names: Vec<_> = named.map(|column| format!("{:?}", column.name)).collect();
    if names.is_empty() { String::new() } else { format!(", in column {}", names.join(", ")) }
}

/// Describes the defect of the column with the most unreadable values, or of whole rows.
fn defect(seen: &Observation<'_>) -> String {
    let worst = seen.survey.columns.iter().max_by_key(|column| column.malformed);
    let of_row =
        seen.survey.row_defect.filter(|_| worst.is_none_or(|worst| seen.survey.whole_rows > worst.malformed));
    match (of_row, worst) {
        (Some(defect), _) => format!(": {defect}"),
        (None, Some(worst)) if 2 * worst.numeric_times > worst.malformed => {
            format!(
                ": {}, found numbers, perhaps seconds or milliseconds since 1970: write them as times",
                Defect::NotATime
            )
        }
        (None, worst) => {
            worst.and_then(|worst| worst.defect).map_or_else(String::new, |defect| format!(": {defect}"))
        }
    }
}
