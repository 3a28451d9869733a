//! The notes of `hushflow check`: facts that look wrong but may be intended.

use hushflow::check::histogram_surveys;
use hushflow::mechanism::epochs::{Clock, Schedule};
use hushflow::pipeline::{MissingPolicy, Source};
use hushflow::spelling::did_you_mean;

use super::super::budget::large_delta;
use super::super::output::number;
use super::super::thousands;
use super::report::{CheckReport, LISTED, percent};

/// A note is made if all values together span less than this share of the bounds.
const NARROW: f64 = 0.02;

/// Lengths at which a stretch of uncounted rows is noted, as a share of all rows, and a stretch of
/// clipped values, as a share of all values. A longer one is a problem of nearly all rows.
const LONG_STRETCH: std::ops::Range<f64> = 0.02..0.9;

/// Shares of the values of a column at which clipping is noted.
const CLIPPED: std::ops::RangeInclusive<f64> = 0.05..=0.5;

/// Number of records of a key in an epoch below which noise is noted.
const FEW_RECORDS: u64 = 10;

impl CheckReport<'_> {
    /// Returns the median over the epochs of the records per key, if there are several epochs.
    fn middle_epoch(&self) -> Option<u64> {
        let tally = &self.run.tally;
        let mut totals: Vec<u64> = tally.epochs.values().map(|counts| counts.iter().sum()).collect();
        totals.sort_unstable();
        let middle = totals.get(totals.len() / 2).filter(|_| totals.len() > 1)?;
        Some(middle / self.key_names().len().max(1) as u64)
    }

    /// Returns the number of the epoch of the latest row, which may be after the horizon.
    fn last_epoch(&self) -> Option<u64> {
        let survey = &self.run.survey;
        let (_, time) = survey.clocks.range.or(survey.events.range)?;
        let clock = Clock { time, ..Clock::START };
        u64::try_from(self.pipeline.epochs.schedule.least_epoch(time, clock)).ok()
    }

    /// Returns a note for each column of the pipeline that no row has, with the fields that the
    /// first rows have.
    fn unknown_fields(&self) -> Vec<String> {
        let rows = self.run.counters.rows;
        let unknown = self.run.survey.columns.iter().filter(|column| column.missing == rows && rows > 0);
        let mut unknown: Vec<&str> = unknown.map(|column| column.name.as_str()).collect();
        unknown.sort_unstable();
        unknown.dedup();
        if unknown.is_empty() {
            return Vec::new();
        }
        let mut names: Vec<String> = self.pipeline.sources.iter().flat_map(Source::field_names).collect();
        names.sort_unstable();
        names.dedup();
        let names: Vec<&str> =
            names.iter().map(String::as_str).filter(|name| !unknown.contains(name)).collect();
        let note = |name: &&str| {
            format!("no row has the field {name:?}, but {}{}", names.join(", "), did_you_mean(name, &names))
        };
        unknown.iter().filter(|_| !names.is_empty()).map(note).collect()
    }

    /// Returns the notes, in sentences.
    pub(super) fn notes(&self) -> Vec<String> {
        let (survey, counters) = (&self.run.survey, &self.run.counters);
        let rows = self.pipeline.entity.is_none().then_some(counters.rows as f64);
        let mut notes: Vec<_> = large_delta(self.pipeline.privacy.delta, rows).into_iter().collect();
        for (survey, column) in self.columns().filter(|(_, column)| column.bounds.is_empty()) {
            let width = column.upper - column.lower;
            if let Some((least, most)) =
                survey.values.range.filter(|(least, most)| most - least < NARROW * width && least < most)
            {
                let share = 100.0 * (most - least) / width;
                notes.push(format!(
                    "all values of {:?} lie within {} % of its bounds: noise is as wide as the bounds, so check the unit",
                    column.name,
                    number((share * 10.0).round() / 10.0)
                ));
            }
        }
        let empty: Vec<_> = self
            .key_names()
            .into_iter()
            .zip(self.run.tally.by_key())
            .filter(|&(_, count)| count == 0)
            .collect();
        if !empty.is_empty() && self.run.tally.records > 0 {
            let names: Vec<_> = empty.iter().take(LISTED).map(|(name, _)| format!("{name:?}")).collect();
            let more = if empty.len() > LISTED { ", …" } else { "" };
            notes.push(format!("listed keys without a record: {}{more}", names.join(", ")));
        }
        let unlisted = counters.unknown_key;
        if 20 * unlisted > counters.rows && 2 * unlisted <= counters.rows {
            let listed = self.pipeline.discovery().is_none();
            notes.push(format!(
                "{} of the rows {}, so they don't count",
                percent(unlisted, counters.rows),
                if listed {
                    "have a key that [key] doesn't list"
                } else {
                    "have no key, one of more than 256 bytes, or one with control characters"
                }
            ));
        }
        let early = counters.before_start;
        if 100 * early > counters.rows && 20 * early <= counters.rows {
            notes.push(format!(
                "{} of the rows come before the first epoch and don't count: is start in [epochs] right?",
                percent(early, counters.rows)
            ));
        }
        let late = counters.after_horizon;
        if let Some(epochs) = self.last_epoch().filter(|_| late > 0) {
            notes.push(format!(
                "{} of the rows come after the last epoch and don't count: horizon = {epochs} in [epochs] holds all rows",
                percent(late, counters.rows)
            ));
        }
        notes.extend(self.unknown_fields());
        for (histogram, survey) in histogram_surveys(self.pipeline, survey) {
            let bins = survey.bins;
            if bins.without > 0 {
                notes.push(format!(
                    "{} of the values of {:?} fall into no bin of its histogram, as they are not {}",
                    percent(bins.without, bins.values()),
                    histogram.column,
                    if histogram.is_numeric() { "numbers" } else { "listed" }
                ));
            }
            if bins.missing > 0 {
                notes.push(format!(
                    "{} of the rows lack a value of {:?}, and count in no bin of its histogram",
                    percent(bins.missing, bins.values() + bins.missing),
                    histogram.column
                ));
            }
        }
        let stretch = &survey.stretches.uncounted;
        if LONG_STRETCH.contains(&(stretch.counters.rows as f64 / counters.rows.max(1) as f64)) {
            notes.push(format!(
                "most of the rows {} to {} don't count, all in a row",
                thousands(stretch.before + 1),
                thousands(stretch.before + stretch.counters.rows)
            ));
        }
        for (column, values) in self.columns().map(|(survey, column)| (column, &survey.values)) {
            let clipped = values.below.values + values.above.values;
            // A share of more than half is a problem instead of a note.
            if CLIPPED.contains(&(clipped as f64 / values.all.max(1) as f64)) {
                notes.push(format!(
                    "{} of the values of {:?} are beyond its bounds and would be clipped, which moves its mean: wider bounds \
                     clip fewer, with more noise",
                    percent(clipped, values.all),
                    column.name
                ));
            }
            for (stretch, bound) in [(values.below.longest, "below"), (values.above.longest, "above")] {
                if LONG_STRETCH.contains(&(stretch.values as f64 / values.all.max(1) as f64)) {
                    notes.push(format!(
                        "most values of {:?} in the rows {} to {} are {bound} its bounds, and would be clipped",
                        column.name,
                        thousands(stretch.before + 1),
                        thousands(stretch.last_row)
                    ));
                }
            }
        }
        let in_utc = !matches!(&self.pipeline.epochs.schedule, Schedule::ByTime(by) if by.calendar.is_some());
        if in_utc && survey.events.without_offset + survey.clocks.without_offset > 0 {
            notes.push("times without an offset from UTC are read as UTC: if they are local times, name their zone with timezone in [epochs]".into());
        }
        let skipped = survey.events.skipped.max(survey.clocks.skipped);
        if skipped > 0 {
            notes.push(format!(
                "{} of the rows have a local time that the time zone skips as clocks go forward, and count as if it were that much \
                 later: is timezone in [epochs] the zone of the data?",
                percent(skipped, counters.rows)
            ));
        }
        let repeated = survey.events.repeated.max(survey.clocks.repeated);
        if repeated > 0 {
            notes.push(format!(
                "{} of the rows have a local time that comes twice as clocks go back, and count at the first of both: write times \
                 with an offset from UTC to tell them apart",
                percent(repeated, counters.rows)
            ));
        }
        if 100 * survey.early_events > counters.rows {
            notes.push(format!(
                "{} of the rows have an event time after their arrival: the two columns may be swapped, or one is in local time",
                percent(survey.early_events, counters.rows)
            ));
        }
        notes.extend(self.prospects.clone());
        if let Some(records) = self.middle_epoch().filter(|&records| records < FEW_RECORDS) {
            notes.push(format!(
                "the middle one of the epochs with records has {records} for each key, fewer than the standard deviation of the noise of a count: lengthen \
                 epochs in [epochs], unless only sums over many of them matter"
            ));
        }
        if survey.backward_steps > 0 {
            notes.push(format!(
                "the clock steps back at {} of the rows. It never moves back: such a row counts if its epoch is still open, as \
                 allowed_lateness decides, and is late otherwise",
                percent(survey.backward_steps, counters.rows)
            ));
        }
        let by_column =
            self.pipeline.rows.missing == MissingPolicy::ByColumn || self.pipeline.columns.len() == 1;
        if !by_column && 20 * counters.missing > counters.rows {
            notes.push(format!(
                "{} of the rows lack a value and don't count; with missing = \"by-column\" in [source], a row counts for the columns \
                 that it has",
                percent(counters.missing, counters.rows)
            ));
        }
        if !self.run.is_whole && self.run.fault.is_none() {
            notes.push("the source was not read to its end".into());
        }
        notes
    }
}
