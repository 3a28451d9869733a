//! The operator's screen of `hushflow check`.

use hushflow::check::{DiscoveredKeys, KeyCount, Problem};
use hushflow::lines::TableStyle;
use hushflow::mechanism::epochs::Schedule;
use hushflow::operators::RepeatPolicy;
use hushflow::pipeline::{Column, MissingPolicy, Pipeline};
use hushflow::publication::{Publication, PublicationError};
use hushflow::runtime::DryRun;
use hushflow::source::{ColumnSurvey, RowCounters};
use hushflow::time::{epoch_start, time_text};

use super::super::output::{fit_columns, fitting_table, number, table, terminal_width};
use super::super::{PRIVATE, prospects, thousands};

/// Maximum number of epochs and unlisted keys in a list.
pub(super) const LISTED: usize = 12;

/// Titles of the counts in an epoch, if the limits of entities decide.
const WITHIN_LIMITS: &str = "within limits";
const MEANS: &str = "means";

/// The rows seen, and how a run would count them.
pub(super) struct CheckReport<'a> {
    pub(super) pipeline: &'a Pipeline,
    pub(super) run: &'a DryRun,
    pub(super) problems: Vec<Problem>,
    /// The last epoch that a run would publish.
    pub(super) published: u64,
    /// Releases and cost of a run.
    pub(super) release: String,
    /// The keys, if they are discovered.
    pub(super) discovered: Option<DiscoveredKeys>,
    /// A warning if every line would show noise.
    pub(super) prospects: Option<String>,
}

impl<'a> CheckReport<'a> {
    pub(super) fn new(
        pipeline: &'a Pipeline,
        publication: &Publication,
        run: &'a DryRun,
        problems: Vec<Problem>,
    ) -> Result<Self, PublicationError> {
        let (parameters, charge) = (publication.parameters(), publication.charge()?);
        let horizon = parameters.epochs.schedule.horizon();
        let keys = match parameters.keys() {
            1 => String::new(),
            keys if pipeline.discovery().is_some() => format!(" for up to {} keys", thousands(keys.into())),
            keys => format!(" for {} keys", thousands(keys.into())),
        };
        let published = run.stops_after.unwrap_or(run.closed);
        let least = if run.is_whole || run.stops_after.is_some() { "" } else { "at least " };
        let release = match run.stops_after {
            Some(0) => "A run would stop before it publishes or spends anything.".into(),
            None if run.is_empty() => "A run would publish nothing, because there is no row.".into(),
            _ => format!(
                "A run would publish {least}{} of {} epochs{keys}{} once, for all epochs: (ε, δ) = ({}, {}) for {}.",
                thousands(published),
                thousands(horizon),
                if run.stops_after.is_some() { " and stop. It would spend" } else { ", and spend" },
                number(charge.epsilon),
                number(charge.delta),
                parameters.adjacency()
            ),
        };
        let discovered = DiscoveredKeys::new(pipeline, publication, (&run.tally, published), LISTED)?;
        let prospects = prospects::warning(publication, &pipeline.views, run);
        Ok(CheckReport { pipeline, run, problems, published, release, discovered, prospects })
    }

    /// Returns the outcomes of the rows: a name for programs, one for people, and a count.
    pub(super) fn outcomes(&self) -> [(&'static str, &'static str, u64); 13] {
        let c: &RowCounters = &self.run.counters;
        let [missing, malformed] = match self.pipeline.rows.missing {
            MissingPolicy::ByColumn => ["  lack a value or more", "  have a malformed value or more"],
            _ => ["unusable, a value is missing", "unusable, malformed"],
        };
        let unlisted =
            if self.discovered.is_some() { "skipped, not a key" } else { "skipped, key not listed" };
        let within = self.run.left_out.map_or(0, |left_out| self.run.tally.records - left_out);
        let records = match self.pipeline.entity {
            Some(_) => "records, before the limits of entities",
            None => "count as records",
        };
        [
            ("records", records, self.run.tally.records),
            ("within_limits", "  within the limits of entities, which count", within),
            ("folded", "  late, counted in the oldest open epoch", c.folded),
            ("centred", "  unusable, counted as the centre of the bounds", self.run.tally.centred),
            ("missing", missing, c.missing),
            ("malformed", malformed, c.malformed),
            ("unlisted_key", unlisted, c.unknown_key),
            ("late", "late, dropped", c.late),
            ("before_start", "before the first epoch, dropped", c.before_start),
            ("after_horizon", "after the last epoch, dropped", c.after_horizon),
            ("clock_jump", "too far ahead of the clock, dropped", c.clock_jump),
            ("duplicates", "duplicates, dropped", c.duplicates),
            ("already_closed", "for epochs closed earlier, dropped", c.already_closed),
        ]
    }

    /// Returns the time at which an epoch begins; `-` if epochs are counted in rows.
    pub(super) fn epoch_name(&self, epoch: u64) -> String {
        match &self.pipeline.epochs.schedule {
            Schedule::ByTime(by) => epoch_start(by, epoch),
            Schedule::ByCount(_) => "-".into(),
        }
    }

    /// Title of the number of records of a key or an epoch.
    fn records_title(&self) -> &'static str {
        if self.pipeline.entity.is_some() { "before limits" } else { "records" }
    }

    pub(super) fn key_names(&self) -> Vec<&str> {
        let listed = self.pipeline.key.as_ref().filter(|key| key.discover.is_none());
        listed.map_or(vec!["all"], |key| key.values.iter().map(String::as_str).collect())
    }

    /// Returns the unlisted keys with the most rows.
    pub(super) fn unlisted(&self) -> Vec<(String, u64)> {
        let keys = self.run.survey.unlisted_keys.iter();
        let mut keys: Vec<_> =
            keys.map(|(key, &rows)| (String::from_utf8_lossy(key).into_owned(), rows)).collect();
        keys.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        keys
    }

    /// Returns the columns of values, each with its survey.
    pub(super) fn columns(&self) -> impl Iterator<Item = (&ColumnSurvey, &Column)> {
        self.run.survey.columns.iter().zip(&self.pipeline.columns)
    }

    /// Returns the report as text.
    pub(super) fn text(&self, all_epochs: bool, style: &TableStyle) -> String {
        let names: Vec<_> = self.pipeline.sources.iter().map(|source| source.input.to_string()).collect();
        let mut text = format!("{PRIVATE}\n\n{}: {}\n\n", self.pipeline.name, names.join(", "));
        text += &self.rows_text();
        if self.run.counters.rows > 0 {
            text += &titled(&self.columns_text(), style);
            text += &titled(&self.keys_text(), style);
            text += &self.times_text();
            text += &titled(&self.epochs_text(all_epochs), style);
        }
        if let Some(share) = self.left_out() {
            text += &format!(
                "{} records, {share} of those that could count, are beyond the limits of their entities in [entity] and left out.\n",
                thousands(self.run.left_out.unwrap_or(0))
            );
        }
        let counted = self.run.tally.records - self.run.left_out.unwrap_or(0);
        if let Some(means) = self.run.counting.filter(|&means| means < counted) {
            text += &format!(
                "{} records would count as {} means, one for each entity, key and epoch. Compare noise with the number of means.\n",
                thousands(counted),
                thousands(means)
            );
        }
        text += &format!("{}\n", self.release);
        for note in self.notes() {
            text += &format!("{} {note}\n", style.faint("note:"));
        }
        for problem in &self.problems {
            let word = match problem.stops {
                true => "a run would stop",
                false if self.run.is_empty() => "a run would end at once",
                false => "a run would go on",
            };
            let problem_word = style.warning(&format!("PROBLEM ({word}):"));
            text += &format!("{problem_word} {}\n", problem.message);
        }
        if self.problems.is_empty() {
            let good = style.good("No problems:");
            text += &format!("{good} hushflow plan forecasts the accuracy, hushflow run publishes.\n");
        }
        text
    }

    fn rows_text(&self) -> String {
        let rows = self.run.counters.rows;
        let title = if self.run.is_whole { "rows" } else { "rows read so far" };
        let mut lines = vec![vec![title.to_owned(), thousands(rows), String::new()]];
        let shown = self.outcomes().into_iter().filter(|&(name, _, count)| count > 0 || name == "records");
        lines.extend(
            shown.map(|(_, outcome, count)| vec![outcome.into(), thousands(count), percent(count, rows)]),
        );
        table(&lines) + "\n"
    }

    fn columns_text(&self) -> String {
        let titles = ["column", "bounds", "clipped below", "clipped above", "missing", "unreadable"];
        let mut lines = vec![titles.map(String::from).to_vec()];
        let rows = self.run.counters.rows;
        for (survey, column) in self.columns() {
            lines.push(vec![
                column.name.clone(),
                match column.bounds.is_empty() {
                    true => format!("{} to {}", number(column.lower), number(column.upper)),
                    false => "by key".into(),
                },
                percent(survey.values.below.values, survey.values.all),
                percent(survey.values.above.values, survey.values.all),
                percent(survey.missing, rows),
                percent(survey.malformed, rows),
            ]);
        }
        let defective = |survey: &&ColumnSurvey| survey.missing + survey.malformed > 0;
        let others = self.run.survey.columns.iter().skip(self.pipeline.columns.len()).filter(defective);
        for survey in others {
            let dash = || "-".to_owned();
            let shares = [survey.missing, survey.malformed].map(|count| percent(count, rows));
            let [missing, unreadable] = shares;
            lines.push(vec![survey.name.clone(), dash(), dash(), dash(), missing, unreadable]);
        }
        fitting_table(&lines) + "\n"
    }

    fn keys_text(&self) -> String {
        let Some(key) = &self.pipeline.key else { return String::new() };
        let records = self.run.tally.records;
        let column = format!("key {:?}", key.column);
        if let Some(discovered) = &self.discovered {
            return discovered_text(discovered, column, records);
        }
        let mut lines = vec![vec![column, self.records_title().into(), String::new()]];
        let counts = self.run.tally.by_key();
        let listed = key.values.iter().zip(counts).take(if key.values.len() > 2 * LISTED {
            LISTED
        } else {
            usize::MAX
        });
        lines.extend(
            listed.map(|(name, count)| vec![name.clone(), thousands(count), percent(count, records)]),
        );
        if lines.len() <= key.values.len() {
            lines.push(vec![format!("… {} more keys", key.values.len() + 1 - lines.len())]);
        }
        let unlisted = self.unlisted();
        for (name, count) in unlisted.iter().take(LISTED) {
            lines.push(vec![format!("not listed: {}", printable(name)), thousands(*count), String::new()]);
        }
        if unlisted.len() > LISTED {
            lines.push(vec![format!("… {} more unlisted keys", unlisted.len() - LISTED)]);
        }
        table(&lines) + "\n"
    }

    fn times_text(&self) -> String {
        let survey = &self.run.survey;
        let mut lines = Vec::new();
        let range = |range: Option<(i64, i64)>| match range {
            Some((first, last)) => format!("{} to {}", time_text(first), time_text(last)),
            None => "none".into(),
        };
        let Some(time) = &self.pipeline.epochs.time else { return String::new() };
        lines.push(vec![format!("time {time:?}"), range(survey.events.range)]);
        if let Some(arrival) = &self.pipeline.epochs.arrival {
            lines.push(vec![format!("arrival {arrival:?}"), range(survey.clocks.range)]);
        }
        for step in survey.steps.iter().filter(|step| step.to > step.from) {
            let name = if lines.iter().any(|line| line[0].starts_with("largest")) {
                ""
            } else {
                "largest steps of the clock"
            };
            let from =
                format!("{}, at {} (line {})", span(step.to - step.from), time_text(step.from), step.line);
            lines.push(vec![name.into(), from]);
        }
        if let (Some(half), Some(most)) = (survey.delay_within(0.5), survey.delay_within(0.99)) {
            let [half, most] = [half, most].map(|seconds| span(1_000_000 * seconds as i64));
            lines.push(vec![
                "time to arrival".into(),
                format!("half of all rows within {half}, 99 % within {most}"),
            ]);
        }
        let left = lines.iter().map(|line| line[0].chars().count()).max().unwrap_or(0);
        let line = |line: &Vec<String>| format!("{:<left$}  {}\n", line[0], line[1]);
        lines.iter().map(line).collect::<String>() + "\n"
    }

    fn epochs_text(&self, all: bool) -> String {
        let tally = &self.run.tally;
        let mut totals: Vec<u64> = tally.epochs.values().map(|counts| counts.iter().sum()).collect();
        totals.sort_unstable();
        let (Some(&least), Some(&most)) = (totals.first(), totals.last()) else { return String::new() };
        let keys = self.key_names();
        let per_key = keys.len() <= 8;
        let mut lines = vec![vec!["epoch".to_owned(), "from".into(), self.records_title().into()]];
        let cuts = self.pipeline.entity.as_ref();
        lines[0].extend(cuts.map(|entity| match entity.limits.repeat_policy {
            RepeatPolicy::Keep => WITHIN_LIMITS.to_owned(),
            RepeatPolicy::Average => MEANS.to_owned(),
        }));
        if per_key && keys.len() > 1 {
            lines[0].extend(keys.iter().map(|&key| key.to_owned()));
        }
        let skipped =
            if all || tally.epochs.len() <= 2 * LISTED { 0 } else { tally.epochs.len() - 2 * LISTED };
        for (index, (&epoch, counts)) in tally.epochs.iter().enumerate() {
            if skipped > 0 && index == LISTED {
                lines.push(vec![format!("… {skipped} more")]);
            }
            if skipped > 0 && (LISTED..LISTED + skipped).contains(&index) {
                continue;
            }
            let mut line = vec![epoch.to_string(), self.epoch_name(epoch), thousands(counts.iter().sum())];
            let counting = || self.run.counting_by_epoch.get(&epoch).copied().unwrap_or(0);
            line.extend(cuts.map(|_| thousands(counting())));
            if per_key && keys.len() > 1 {
                line.extend(counts.iter().map(|&count| thousands(count)));
            }
            lines.push(line);
        }
        let mut order: Vec<&str> = keys.iter().rev().copied().collect();
        order.push("from");
        let left_out = fit_columns(&mut lines, terminal_width(), &order);
        let left_out = match left_out.is_empty() {
            true => String::new(),
            false => format!("Columns that don't fit: {}; --json has them.\n", left_out.join(", ")),
        };
        let last = self.run.closed.max(tally.epochs.last_key_value().map_or(0, |(&epoch, _)| epoch));
        let empty = last - totals.len() as u64;
        format!(
            "{}{left_out}\n{} of the epochs 1 to {last} hold records, {} none; an epoch with records has {} to {}, {} in the middle{}.\n",
            table(&lines),
            thousands(totals.len() as u64),
            thousands(empty),
            thousands(least),
            thousands(most),
            thousands(totals[totals.len() / 2]),
            if cuts.is_some() { ", before the limits of entities" } else { "" }
        )
    }

    /// Returns the share of the records that the limits of entities leave out, if they leave out
    /// any.
    fn left_out(&self) -> Option<String> {
        let count = self.run.left_out.filter(|&count| count > 0)?;
        Some(percent(count, self.run.tally.records))
    }
}

/// Formats the most frequent of discovered keys, and how many a run would show.
fn discovered_text(discovered: &DiscoveredKeys, column: String, records: u64) -> String {
    let counts_records = discovered.counted == "records";
    let share = |count| if counts_records { percent(count, records) } else { String::new() };
    let mut lines = vec![vec![column, discovered.counted.into(), String::new()]];
    let line = |key: &KeyCount| vec![printable(&key.key), thousands(key.count), share(key.count)];
    lines.extend(discovered.frequent.iter().map(line));
    let more = discovered.keys - discovered.frequent.len() as u64;
    if more > 0 {
        lines.push(vec![format!("… {} more keys", thousands(more))]);
    }
    format!(
        "{}\nA run would show about {} of {} keys by the end of epoch {}: those with a noisy count above {} {}.\n",
        table(&lines),
        number(discovered.expected.round()),
        thousands(discovered.keys),
        thousands(discovered.epoch),
        number(discovered.threshold.round()),
        if counts_records { "records" } else { "different entities" }
    )
}

/// Makes the first line bold, which holds the titles of a table.
fn titled(text: &str, style: &TableStyle) -> String {
    text.split_once('\n').map_or_else(String::new, |(titles, rest)| format!("{}\n{rest}", style.bold(titles)))
}

/// Formats a share. One strictly between 0 and 100 % is never formatted as either.
pub(super) fn percent(count: u64, all: u64) -> String {
    let share = 100.0 * count as f64 / all.max(1) as f64;
    match count {
        0 => "0 %".into(),
        _ if share < 0.05 => "< 0.1 %".into(),
        _ if share > 99.9 && count < all => "> 99.9 %".into(),
        _ => format!("{share:.1} %"),
    }
}

/// Formats microseconds in the two largest units.
fn span(micros: i64) -> String {
    let seconds = micros / 1_000_000;
    let units = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let Some(first) = units.iter().position(|&(unit, _)| seconds >= unit) else {
        return "less than 1 s".into();
    };
    let (unit, name) = units[first];
    let rest = units.get(first + 1).map(|&(next, name)| (seconds % unit / next, name));
    match rest.filter(|&(count, _)| count > 0) {
        Some((count, next)) => format!("{} {name} {count} {next}", seconds / unit),
        None => format!("{} {name}", seconds / unit),
    }
}

/// Returns text without control characters, which could move the cursor, and not too long.
fn printable(text: &str) -> String {
    let shown: String = text.chars().filter(|character| !character.is_control()).take(40).collect();
    if shown.chars().count() == 40 { shown + "…" } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_two_units() {
        let check = |seconds: i64, expected: &str| assert_eq!(span(1_000_000 * seconds), expected);
        check(0, "less than 1 s");
        check(59, "59 s");
        check(3600, "1 h");
        check(3661, "1 h 1 min");
        check(31_622_400, "366 d");
        check(90_000, "1 d 1 h");
    }

    #[test]
    fn shares_never_hide_a_row() {
        let check = |count, all, expected| assert_eq!(percent(count, all), expected);
        check(0, 0, "0 %");
        check(1, 1_000_000, "< 0.1 %");
        check(1, 2, "50.0 %");
        check(7_999, 8_000, "> 99.9 %");
        check(8_000, 8_000, "100.0 %");
    }

    #[test]
    fn keys_from_rows_cannot_move_the_cursor() {
        assert_eq!(printable("a\u{1b}[2Jb"), "a[2Jb");
        assert_eq!(printable(&"x".repeat(50)).chars().count(), 41);
    }
}
