//! Rules about shares of the rows and values of one source.

use hushflow_mechanism::epochs::{Clock, ClockSource, Schedule};

use super::{Extent, Observation, Problem, SourceRows, keys};
use crate::check::FIRST_ROWS;
use crate::format::Defect;
use crate::histogram::Histogram;
use crate::pipeline::{Column, MissingPolicy, Pipeline, Source};
use crate::source::{BoundSurvey, ColumnSurvey, RowCounters, RowSurvey, Stretch};
use crate::time::TimeFormat;

/// The problem of rows with unlisted keys.
pub(super) const UNLISTED_KEYS: &str = "unlisted keys";

/// The problem of a clock that falls back.
const FALLING_CLOCK: &str = "falling clock";

/// The problem of rows whose keys are spelt nearly like listed ones.
pub(super) const MISSPELT_KEYS: &str = "misspelt keys";

/// The problem of rows before the first epoch.
const BEFORE_START: &str = "before the start";

/// The problem of rows after the last epoch.
const AFTER_HORIZON: &str = "after the horizon";

/// The problem of rows that can't be read.
const UNREADABLE: &str = "unreadable rows";

/// A larger share of malformed rows or clipped values than one in this many is worth a line at the
/// end of a run.
const LOST: u64 = 20;

/// The problem of values that would be clipped.
const OUT_OF_BOUNDS: &str = "values out of bounds";

/// Minimum length of a stretch of rows that don't count, or of values beyond a bound, that is a
/// problem.
const LEAST_STRETCH: u64 = 40;

/// One in this many rows or values must be in such a stretch: a shorter outage is no reason to
/// doubt the source.
const STRETCH_SHARE: u64 = 4;

/// Minimum number of rows at the start of a source, all without a value of a histogram's column,
/// that is a problem.
const LEAST_MISSING: u64 = 1000;

type Count = fn(&RowCounters) -> u64;

pub(super) fn problems(
    (pipeline, source): (&Pipeline, &Source),
    all: &Observation<'_>,
    seen: &SourceRows<'_>,
) -> Vec<Problem> {
    let least = all.extent.least();
    let mut found = Vec::new();
    // A source may well begin before the first epoch, if enough rows come later.
    let begun = if all.extent == Extent::First { seen.started() } else { *seen };
    if begun.counters.rows >= least {
        found.extend(of_shares(pipeline, all.extent, &begun));
    }
    if all.extent == Extent::First
        && (least..FIRST_ROWS + seen.survey.early.rows).contains(&seen.counters.rows)
        && found.iter().all(|problem| problem.kind != BEFORE_START)
    {
        let of_all = of_shares(pipeline, all.extent, seen).into_iter();
        found.extend(of_all.filter(|problem| problem.kind == BEFORE_START));
    }
    let waits =
        matches!(&pipeline.epochs.schedule, Schedule::ByTime(by) if by.clock == ClockSource::EndOfInput);
    let sees_all = all.extent != Extent::Later || waits;
    // When the first check of a live source ends depends on time, so it must not decide how long a
    // stretch may be.
    let may_go_on = all.extent == Extent::First && source.input.source().is_live();
    let least_stretch = |seen: u64| {
        let all = if may_go_on { seen.max(FIRST_ROWS) } else { seen };
        LEAST_STRETCH.max(all / STRETCH_SHARE)
    };
    if sees_all {
        of_stretches(pipeline, all.extent, seen, &least_stretch, &mut found);
    }
    if all.extent != Extent::Later && seen.counters.rows >= least {
        found.extend(unreadable_columns(pipeline, seen, least));
        found.extend(out_of_bounds(pipeline, seen, least));
        found.extend(swapped_clock(seen.survey, least));
        found.extend(empty_histograms(pipeline, seen, least, all.extent == Extent::Whole));
    }
    if sees_all && found.iter().all(|problem| problem.kind != OUT_OF_BOUNDS) {
        found.extend(stretch_out_of_bounds(pipeline, seen, &least_stretch));
    }
    found
}

/// Adds the problems of the longest stretches of rows that don't count, which shares of all rows
/// may hide. Problems of the public clock stay public. All others are private here, even those that
/// are public for all rows, because private facts decide where a stretch begins.
fn of_stretches(
    pipeline: &Pipeline,
    extent: Extent,
    seen: &SourceRows<'_>,
    least: &dyn Fn(u64) -> u64,
    found: &mut Vec<Problem>,
) {
    let survey = seen.survey;
    let of = |stretch: &Stretch, is_public: bool| {
        let rows = SourceRows { counters: stretch.counters, newest: stretch.counters, survey };
        let is_long = stretch.counters.rows >= least(survey.stretches.rows());
        let problems = if is_long { of_shares(pipeline, extent, &rows) } else { Vec::new() };
        problems.into_iter().map(move |problem| Problem { public: is_public, ..in_one_part(problem) })
    };
    if !found.iter().any(|problem| problem.kind == FALLING_CLOCK) {
        found
            .extend(of(&survey.stretches.behind_clock, true).filter(|problem| problem.kind == FALLING_CLOCK));
    }
    if found.is_empty() {
        found.extend(of(&survey.stretches.uncounted, false));
    }
}

fn in_one_part(problem: Problem) -> Problem {
    Problem { message: format!("in one part of the source, {}", problem.message), ..problem }
}

/// Returns the problems of shares of these rows.
fn of_shares(pipeline: &Pipeline, extent: Extent, seen: &SourceRows<'_>) -> Vec<Problem> {
    let public = pipeline.privacy.neighbours.counts_are_public();
    let mut found = Vec::new();
    let mut add = |kind, public, message: String| found.push(Problem::new(kind, public, message));
    let listed = pipeline.key.as_ref().filter(|key| key.discover.is_none());
    if let Some(key) = listed.filter(|_| seen.are_most(|count| count.unknown_key)) {
        let share =
            if seen.counters.unknown_key == seen.counters.rows { "every row has" } else { "most rows have" };
        let like =
            keys::similar(key, seen).map(|key| format!(" (some are spelt nearly like the listed {key:?})"));
        add(
            UNLISTED_KEYS,
            public,
            format!(
                "{share} a key that [key] doesn't list{}: compare its values with the column {:?}, to the letter",
                like.unwrap_or_default(),
                key.column
            ),
        );
    } else if extent == Extent::Whole
        && let Some(name) = keys::in_two_spellings(pipeline, seen)
    {
        add(
            MISSPELT_KEYS,
            false,
            format!(
                "many rows have a key that differs from a listed one, such as {name:?}, in case or blanks alone, and don't count: correct \
                 the source, or list each spelling in [key]"
            ),
        );
    }
    // A row that lacks a value may count for its other columns.
    let whole_rows =
        pipeline.rows.missing != MissingPolicy::ByColumn || seen.are_most(|count| count.unusable);
    if whole_rows && seen.are_most(|count| count.missing) {
        add("missing values", false, lacking(pipeline, extent, seen));
    }
    if whole_rows && seen.are_most(|count| count.malformed) {
        add(
            UNREADABLE,
            false,
            format!(
                "most rows can't be read{}{}",
                columns(seen, |column| column.malformed),
                defect(pipeline, seen)
            ),
        );
    }
    let (outside, behind) = (extent.outside(), extent.behind());
    let falls = seen.exceed(behind.0, |count| count.behind_clock);
    if falls {
        let is_most = seen.are_most(|count| count.behind_clock);
        found.push(falling_clock(if is_most { "most rows" } else { behind.1 }));
    }
    let mut add = |kind, public, message: String| found.push(Problem::new(kind, public, message));
    let times: [(_, Count, Count, _, _); 3] = [
        (
            BEFORE_START,
            |count| count.early_clock,
            |count| count.before_start,
            outside,
            "come before the first epoch: correct start in [epochs]",
        ),
        (
            AFTER_HORIZON,
            |count| count.past_clock,
            |count| count.after_horizon,
            outside,
            "come after the last epoch: correct start, length or horizon in [epochs]",
        ),
        (
            "late",
            |_| 0,
            |count| count.late + count.folded,
            (2, "most rows"),
            "come after their epoch has closed: raise allowed_lateness, or choose another clock in [epochs]",
        ),
    ];
    for (kind, clocked, count, (share, name), message) in times {
        // Facts of the public clock are public, whatever the rows contain, and so is the message.
        let is_clocked = seen.exceed(share, clocked);
        let count = if is_clocked { clocked } else { count };
        if seen.exceed(share, count) && !(falls && kind == "late") {
            let name = if seen.are_most(count) { "most rows" } else { name };
            let by = if is_clocked { "by the public clock, " } else { "" };
            let need = match epochs_of_clock(pipeline, seen.survey).filter(|_| is_clocked) {
                Some(epochs) if kind == AFTER_HORIZON && extent == Extent::Whole => {
                    format!("; horizon = {epochs} holds all rows")
                }
                Some(epochs) if kind == AFTER_HORIZON => {
                    format!("; these rows need horizon = {epochs}")
                }
                _ => String::new(),
            };
            let is_nearly_all = 10 * count(&seen.counters) >= 9 * seen.counters.rows;
            let unit = match number_format(pipeline).filter(|_| kind != "late" && is_nearly_all) {
                Some(unit) => format!(". Or times are not in {unit}, as time_format in [source] says"),
                None => String::new(),
            };
            add(kind, public || is_clocked, format!("{by}{name} {message}{need}{unit}"));
        }
    }
    if seen.are_most(|count| count.clock_jump) {
        add(
            "leaping clock",
            true,
            "the clock of most rows is further ahead of start than [source] largest_jump allows: correct start in [epochs], or the \
             column of the clock"
                .into(),
        );
    }
    if found.is_empty() && seen.are_most(RowCounters::uncounted) {
        found.push(Problem::new("uncounted rows", false, "most rows don't count, for several reasons"));
    }
    found
}

/// Says of which columns most rows lack a value, and what to do.
fn lacking(pipeline: &Pipeline, extent: Extent, seen: &SourceRows<'_>) -> String {
    let columns = columns(seen, |column| column.missing);
    // Among all rows so far, not only among the latest ones or in a stretch.
    let in_all = |column: &ColumnSurvey| {
        extent != Extent::Later && column.missing >= seen.survey.stretches.rows().max(1)
    };
    if seen.counters.missing == seen.counters.rows && seen.survey.columns.iter().any(in_all) {
        return format!("every row lacks a value{columns}: compare the name with the source");
    }
    let by_column = match pipeline.rows.missing {
        MissingPolicy::ByColumn => "",
        _ => ": with missing = \"by-column\" in [source], rows count for the columns that they have",
    };
    format!("most rows lack a value{columns}{by_column}")
}

/// Returns the number of epochs up to the latest value of the public clock.
fn epochs_of_clock(pipeline: &Pipeline, survey: &RowSurvey) -> Option<u64> {
    let (_, time) = survey.clocks.range?;
    u64::try_from(pipeline.epochs.schedule.least_epoch(time, Clock { time, ..Clock::START })).ok()
}

/// Reports a clock that falls back: this share of the rows has a clock value in a closed epoch.
pub(in crate::check) fn falling_clock(rows: &str) -> Problem {
    let message = format!(
        "by the public clock, {rows} are of epochs that rows before them have closed: sort the rows by the column of the clock, \
         list files in its order, or raise allowed_lateness in [epochs]"
    );
    Problem::new(FALLING_CLOCK, true, message)
}

/// Reports event times of which nearly all are after the public clock: if the two columns are
/// swapped, private times move it.
fn swapped_clock(survey: &RowSurvey, least: u64) -> Option<Problem> {
    let timed = survey.early_events + survey.delays.iter().sum::<u64>();
    (timed >= least && survey.early_events.saturating_mul(10) >= 9 * timed && survey.early_events > 0).then(|| {
        Problem::new(
            "swapped clock",
            false,
            "nearly all rows have an event time after their arrival: time and arrival may be swapped in [epochs], or one of them is \
             in local time. Arrivals are public, event times are not",
        )
    })
}

/// Reports columns most of whose values can't be read, where rows count for their other columns.
fn unreadable_columns(pipeline: &Pipeline, seen: &SourceRows<'_>, least: u64) -> Vec<Problem> {
    let is_unreadable = |survey: &&ColumnSurvey| {
        survey.malformed >= least && 2 * survey.malformed > seen.counters.rows.saturating_sub(survey.missing)
    };
    let by_column = pipeline.rows.missing == MissingPolicy::ByColumn;
    let columns = seen.survey.columns.iter().take(if by_column { pipeline.columns.len() } else { 0 });
    let problem = |survey: &ColumnSurvey| {
        let defect = survey.defect.map_or_else(String::new, |defect| format!(": {defect}"));
        let message = format!("most values of {:?} can't be read{defect}", survey.name);
        Problem::new("unreadable values", false, message)
    };
    columns.filter(is_unreadable).map(problem).collect()
}

/// Reports columns with most values outside of one bound.
fn out_of_bounds(pipeline: &Pipeline, seen: &SourceRows<'_>, least: u64) -> Vec<Problem> {
    let columns = pipeline.columns.iter().zip(&seen.survey.columns);
    let outside = columns.filter(|(_, survey)| survey.values.all >= least);
    let outside = outside.flat_map(|(column, survey)| {
        let is_most = |end: &BoundSurvey| 2 * end.values > survey.values.all;
        let ends = [(&survey.values.below, false), (&survey.values.above, true)];
        ends.into_iter().filter(move |(end, _)| is_most(end)).map(move |(_, is_above)| (column, is_above))
    });
    outside.map(|(column, is_above)| beyond_bounds(column, is_above)).collect()
}

/// Reports a column with most values outside of one bound in one part of the source. Where it
/// begins and ends is private.
fn stretch_out_of_bounds(
    pipeline: &Pipeline,
    seen: &SourceRows<'_>,
    least: &dyn Fn(u64) -> u64,
) -> Option<Problem> {
    let mut columns = pipeline.columns.iter().zip(&seen.survey.columns);
    columns.find_map(|(column, survey)| {
        let least = least(survey.values.all);
        let is_above = if survey.values.below.longest.values >= least {
            false
        } else if survey.values.above.longest.values >= least {
            true
        } else {
            return None;
        };
        Some(in_one_part(beyond_bounds(column, is_above)))
    })
}

/// Describes values of a column that would be clipped at one of its bounds.
pub(in crate::check) fn beyond_bounds(column: &Column, is_above: bool) -> Problem {
    let bound = match (column.bounds.is_empty(), is_above) {
        (true, false) => format!("below lower = {}", column.lower),
        (true, true) => format!("above upper = {}", column.upper),
        (false, false) => "below the lower bound of their key".into(),
        (false, true) => "above the upper bound of their key".into(),
    };
    let message = format!(
        "most values of {:?} are {bound} and would be clipped: its unit may be another than that of the bounds, or two columns may \
         be swapped",
        column.name
    );
    Problem::new(OUT_OF_BOUNDS, false, message)
}

/// Reports malformed rows, and values of a column beyond its bounds, if they are more than one in
/// twenty.
pub(in crate::check) fn lost_shares(pipeline: &Pipeline, seen: &SourceRows<'_>) -> Vec<Problem> {
    let percent = |part: u64, all: u64| 100.0 * part as f64 / all.max(1) as f64;
    let is_lost = |part: u64, all: u64| LOST * part > all;
    let mut found = Vec::new();
    let RowCounters { rows, malformed, .. } = seen.counters;
    if is_lost(malformed, rows) {
        let message = format!(
            "{:.0} % of the rows {}{}{}",
            percent(malformed, rows),
            if pipeline.rows.missing == MissingPolicy::ByColumn {
                "have a value that can't be read"
            } else {
                "can't be read"
            },
            columns(seen, |column| column.malformed),
            defect(pipeline, seen)
        );
        found.push(Problem::new(UNREADABLE, false, message));
    }
    for (column, survey) in pipeline.columns.iter().zip(&seen.survey.columns) {
        let values = &survey.values;
        let clipped = values.below.values + values.above.values;
        if is_lost(clipped, values.all) {
            let message = format!(
                "{:.0} % of the values of {:?} were beyond its bounds and clipped, which moves its mean",
                percent(clipped, values.all),
                column.name
            );
            found.push(Problem::new(OUT_OF_BOUNDS, false, message));
        }
    }
    found
}

/// Reports histograms without a bin for nearly all rows that have a value, or of a column that no
/// row has. Those of [[columns]] are judged by their values.
fn empty_histograms(pipeline: &Pipeline, seen: &SourceRows<'_>, least: u64, is_whole: bool) -> Vec<Problem> {
    let problem = |(histogram, survey): (&Histogram, &ColumnSurvey)| {
        let (bins, column) = (survey.bins, &histogram.column);
        // A sparse column may have no value among the first rows.
        let least_missing = if is_whole { least } else { least.max(LEAST_MISSING) };
        let message = if bins.values() == 0 && bins.missing >= least_missing {
            format!(
                "no row has a value of the column {column:?} of a histogram: compare its name with the source"
            )
        } else if bins.values() >= least && 10 * bins.without >= 9 * bins.values() {
            let found = match histogram.is_numeric() {
                true => "a number: edges are for numbers, and values = [\"…\"] for texts",
                false => "one of its values: compare them with the column, to the letter",
            };
            format!(
                "nearly all values of {column:?} fall into no bin of its histogram, as they are not {found}"
            )
        } else {
            return None;
        };
        Some(Problem::new("empty histogram", false, message))
    };
    histogram_surveys(pipeline, seen.survey).filter_map(problem).collect()
}

/// Returns the histograms of columns that have no other use, with the surveys of these columns.
pub fn histogram_surveys<'a>(
    pipeline: &'a Pipeline,
    survey: &'a RowSurvey,
) -> impl Iterator<Item = (&'a Histogram, &'a ColumnSurvey)> {
    let is_column = |name: &str| pipeline.columns.iter().any(|column| column.name == name);
    let alone = pipeline.histograms.iter().filter(move |histogram| !is_column(&histogram.column));
    alone.zip(survey.columns.iter().skip(pipeline.columns.len()))
}

/// Reports a column without a readable value in any source, although rows count for others.
pub(super) fn empty_column(pipeline: &Pipeline, seen: &Observation<'_>) -> Option<Problem> {
    let surveys = || seen.sources.iter().map(|source| &source.survey.columns);
    // A run may compare the values of its first rows only, so another column must have some.
    surveys().flatten().find(|column| column.values.all > 0)?;
    let of_column = |at: usize| surveys().filter_map(move |columns| columns.get(at));
    let is_empty = |&(at, _): &(usize, &Column)| {
        let unread: u64 = of_column(at).map(|survey| survey.missing + survey.malformed).sum();
        of_column(at).all(|survey| survey.values.all == 0) && unread >= seen.extent.least()
    };
    let (at, column) = pipeline.columns.iter().enumerate().find(is_empty)?;
    let defect = of_column(at).find_map(|survey| survey.defect);
    let defect = defect.map_or_else(String::new, |defect| format!(": {defect}"));
    let message = format!("every row lacks a readable value of {:?}{defect}", column.name);
    Some(Problem::new("column without values", false, message))
}

/// Names the columns with at least half as many of the defects that `count` counts as the worst
/// column has.
fn columns(seen: &SourceRows<'_>, count: impl Fn(&ColumnSurvey) -> u64) -> String {
    let most = seen.survey.columns.iter().map(&count).max().unwrap_or(0);
    let named = seen.survey.columns.iter().filter(|column| count(column) > 0 && 2 * count(column) >= most);
    let names: Vec<_> = named.map(|column| format!("{:?}", column.name)).collect();
    if names.is_empty() { String::new() } else { format!(", in column {}", names.join(", ")) }
}

/// Returns how times are written, if not in RFC 3339.
fn time_format(pipeline: &Pipeline) -> Option<&TimeFormat> {
    pipeline.sources.iter().find_map(|source| source.time_format.as_ref())
}

/// Returns the unit of times that are numbers since 1970, if they are.
fn number_format(pipeline: &Pipeline) -> Option<&str> {
    time_format(pipeline).filter(|format| matches!(format, TimeFormat::SinceEpoch(_))).map(TimeFormat::name)
}

/// Describes the defect of the column with the most unreadable values, or of whole rows.
fn defect(pipeline: &Pipeline, seen: &SourceRows<'_>) -> String {
    let worst = seen.survey.columns.iter().max_by_key(|column| column.malformed);
    let of_row =
        seen.survey.row_defect.filter(|_| worst.is_none_or(|worst| seen.survey.whole_rows > worst.malformed));
    match (of_row, worst) {
        (Some(defect), _) => format!(": {defect}"),
        (None, Some(worst)) if 2 * worst.numeric_times > worst.malformed => match number_format(pipeline) {
            Some(unit) => format!(
                ": found numbers that are not recent times in {unit} since 1970, as time_format in [source] says: \
                 try seconds, milliseconds, microseconds or nanoseconds"
            ),
            None => format!(
                ": {}, found numbers: if they are seconds since 1970, add time_format = \"seconds\" to [source] (or \"milliseconds\", …)",
                Defect::NotATime
            ),
        },
        (None, worst) => worst.and_then(|worst| worst.defect).map_or_else(String::new, |defect| {
            let format = time_format(pipeline).filter(|_| defect == Defect::NotATime);
            match format {
                Some(format) => {
                    format!(": expected {}, as time_format in [source] says", format.expected())
                }
                None => format!(": {defect}"),
            }
        }),
    }
}
