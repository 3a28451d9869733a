//! The rules: when a source is not what its pipeline file describes.
//!
//! No message holds a value of a row or a count.

use hushflow_mechanism::epochs::{ClockSource, Schedule};
use serde::Serialize;

use super::Observation;
use crate::format::Defect;
use crate::pipeline::{KeyColumn, MissingPolicy, Pipeline};
use crate::source::{ColumnSurvey, RowCounters};
use crate::spelling::closest;

/// Epochs below which none of the rules about empty epochs applies.
const FEW_EPOCHS: u64 = 10;

/// A problem of a pipeline with its source: a run would publish little or nothing of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Name for programs.
    pub kind: &'static str,
    /// Whether it follows from public facts, so that a run may stop.
    pub public: bool,
    /// What was found, and how to mend it.
    pub message: String,
}

/// Returns the problems of these rows. Shares of fewer than `least` rows are none.
pub fn problems(pipeline: &Pipeline, seen: &Observation, least: u64) -> Vec<Problem> {
    let rows = seen.counters.rows;
    if rows < least.max(1) {
        return Vec::new();
    }
    let public = pipeline.privacy.neighbours.counts_are_public();
    let mut found = Vec::new();
    let mut add = |kind, public, message: String| found.push(Problem { kind, public, message });
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
    }
    // With counts by column, a row that lacks a value counts for its other columns.
    let whole_rows = pipeline.rows.missing != MissingPolicy::ByColumn;
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
    let start = "most rows come before the first epoch: correct start in [epochs]";
    let horizon = "most rows come after the last epoch: correct start, length or horizon in [epochs]";
    let late = "most rows come after their epoch has closed: raise allowed_lateness, or choose the clock of [epochs] anew";
    for (kind, count, message) in [
        ("before the start", counters.before_start, start),
        ("after the horizon", counters.after_horizon, horizon),
        ("late", counters.late + counters.folded, late),
    ] {
        if is_most(count) {
            add(kind, public, message.into());
        }
    }
    if is_most(counters.leaping) {
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
            message: "most rows don't count, for several reasons".into(),
        });
    }
    found.extend(out_of_bounds(pipeline, seen, least));
    found.extend(empty_start(pipeline, seen));
    found
}

/// Rows that are dropped though they can be read.
fn dropped(counters: &RowCounters) -> u64 {
    let RowCounters { unknown_key, late, before_start, after_horizon, leaping, copies, .. } = counters;
    unknown_key + late + before_start + after_horizon + leaping + copies
}

/// Values of which most are outside of one bound.
fn out_of_bounds(pipeline: &Pipeline, seen: &Observation, least: u64) -> Vec<Problem> {
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
fn empty_start(pipeline: &Pipeline, seen: &Observation) -> Option<Problem> {
    let Schedule::ByTime(by) = &pipeline.epochs.schedule else { return None };
    let (&first, _) = seen.tally.epochs.first_key_value()?;
    (first > FEW_EPOCHS.max(by.horizon / 10)).then(|| Problem {
        kind: "empty start",
        public: pipeline.privacy.neighbours.counts_are_public(),
        message: "many epochs before the first record would be published empty: correct start in [epochs]"
            .into(),
    })
}

/// Returns the problem of a clock that has closed `closed` epochs by `steps` steps, if few of them
/// held an arrival: a public fact unless the end of the input closes epochs.
pub fn problems_of_epochs(pipeline: &Pipeline, closed: u64, steps: u64) -> Option<Problem> {
    let clocked =
        |schedule: &Schedule| matches!(schedule, Schedule::ByTime(by) if by.clock != ClockSource::EndOfInput);
    let is_public = pipeline.sources.iter().all(|source| clocked(&source.schedule));
    let nearly_all = closed >= 2 * FEW_EPOCHS && steps.saturating_mul(10) < closed;
    (is_public && nearly_all).then(|| Problem {
        kind: "empty epochs",
        public: true,
        message: "by the public clock, no row arrived in nearly all of the epochs, which would be published empty: correct start \
                  or length in [epochs]"
            .into(),
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
        message: format!(
            "{} has no end, so with clock = \"end-of-input\" no epoch would ever be published: name an arrival column in [epochs]",
            endless.input
        ),
    })
}

/// Returns the listed key that is most like an unlisted one. It is public; the unlisted one is not.
fn similar_key<'a>(key: &'a KeyColumn, seen: &Observation) -> Option<&'a str> {
    let listed: Vec<&str> = key.values.iter().map(String::as_str).collect();
    let mut unlisted: Vec<_> = seen.survey.unlisted_keys.iter().collect();
    unlisted.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    let like = |text: &str| {
        let plain = |word: &str| word.split_whitespace().collect::<String>().to_lowercase();
        let same = listed.iter().copied().find(|&word| plain(word) == plain(text));
        same.or_else(|| closest(text, &listed))
    };
    unlisted.iter().find_map(|(text, _)| like(std::str::from_utf8(text).ok()?))
}

/// Names the columns of at least half of the defects that `count` counts.
fn columns(seen: &Observation, count: impl Fn(&ColumnSurvey) -> u64) -> String {
    let most = seen.survey.columns.iter().map(&count).max().unwrap_or(0);
    let named = seen.survey.columns.iter().filter(|column| count(column) > 0 && 2 * count(column) >= most);
    let names: Vec<_> = named.map(|column| format!("{:?}", column.name)).collect();
    if names.is_empty() { String::new() } else { format!(", in column {}", names.join(", ")) }
}

/// Describes the defect of the column with the most unreadable values, or of whole rows.
fn defect(seen: &Observation) -> String {
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
