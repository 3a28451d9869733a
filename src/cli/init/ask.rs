//! Questions on the terminal, with defaults.

use std::fmt::Display;
use std::io::{BufRead, Write, stderr, stdin};

use hushflow::format::profile::FileProfile;
use hushflow::mechanism::accounting::{Delta, Epsilon};
use hushflow::operators::RepeatPolicy;

use super::super::output::{fit_message, number};
use super::super::{CliError, number_in, thousands};
use super::InitArguments;
use super::draft::{Draft, Times, no_column};
use super::limits::LimitSearch;
use super::propose::{self, Proposal};
use super::values::{self, ColumnBounds, KeyBounds, Keys, repeat_policy_word};

const WARNING: &str = "\
Bounds, keys, start, length and number of epochs are PUBLISHED, and the guarantee does not cover them. Give what everyone may know about \
such data: what is physically possible, what the form allows, where the offices are. What stands in [brackets] is taken \
from this file, for your eyes alone. Press Enter only if you would have answered the same without seeing the file.
";

/// Returns bounds of the listed keys whose values lie in a small part of the column's bounds.
pub(super) type KeyBoundsSearch<'a> = dyn Fn(&Keys, &[ColumnBounds]) -> Result<Vec<KeyBounds>, CliError> + 'a;

/// The questions about a file.
pub(super) struct Questions<'a> {
    pub(super) profile: &'a FileProfile,
    pub(super) proposal: &'a Proposal,
    /// Finds limits of entities.
    pub(super) search: &'a dyn Fn(&Draft) -> Option<LimitSearch>,
    /// Finds bounds of the values of a column of keys.
    pub(super) key_bounds: &'a KeyBoundsSearch<'a>,
}

impl Questions<'_> {
    /// Asks for everything that no flag gives.
    pub(super) fn draft(&self, arguments: &InitArguments) -> Result<Draft, CliError> {
        show(&format!(
            "{} rows, {} columns.\n\n{WARNING}\n",
            thousands(self.profile.rows),
            self.profile.columns.len()
        ))?;
        let columns = match arguments.columns.is_empty() {
            true => self.columns()?,
            false => arguments.columns(),
        };
        let key = if arguments.key.is_some() { arguments.key.clone() } else { self.key()? };
        let time = match &arguments.time {
            None => self.optional(
                "Column with the time of the event, or - for epochs of a number of rows",
                &self.proposal.times,
                self.proposal.time.as_deref(),
            )?,
            time => time.clone(),
        };
        let (mut arrival, mut start, mut horizon) =
            (arguments.arrival.clone(), arguments.start.clone().unwrap_or_default(), arguments.horizon);
        if time.is_some() && arrival.is_none() && self.proposal.times.len() > 1 {
            arrival = self.optional(
                "Column with the time when a row arrived, which closes epochs, or - to close all at the end of the file",
                &self.proposal.times,
                self.proposal.arrival.as_deref(),
            )?;
        }
        let timezone = match (&arguments.timezone, &time) {
            (None, Some(time)) => {
                if let Some(note) = self.profile.zone_note(time) {
                    show(&format!("Note: {note}.\n"))?;
                }
                let question = "Time zone of days, weeks and months, such as America/New_York";
                Some(ask(question, propose::UTC, values::time_zone)?).filter(|zone| zone != propose::UTC)
            }
            (zone, _) => zone.clone(),
        };
        let epoch = match (&arguments.epoch, &time) {
            (Some(epoch), _) => epoch.clone(),
            (None, Some(_)) => ask(
                "Length of an epoch, such as 6h, 1d, week or month; the one in brackets comes from the span of this file",
                &self.proposal.epoch,
                values::length,
            )?,
            (None, None) => ask("Rows in an epoch", &self.proposal.epoch, whole)?.to_string(),
        };
        let mut default = (self.proposal.start.clone(), self.proposal.horizon);
        if let Some(span) = time.as_ref().and_then(|time| self.profile.span_of(time)) {
            let zone = timezone.as_deref().unwrap_or(propose::UTC);
            let (_, start, horizon) = propose::epochs(span, &epoch, zone);
            default = (start, horizon);
        }
        if time.is_some() && start.is_empty() {
            start = ask(
                "Beginning of the first epoch; that in brackets comes from the first time in this file",
                &default.0,
                values::time,
            )?;
        }
        if horizon.is_none() {
            let question = match time.is_some() {
                true => {
                    "Number of epochs, for which the budget is spent; that in brackets comes from the last time in this file"
                }
                false => "Number of epochs, for which the budget is spent",
            };
            horizon = Some(ask(question, &default.1.to_string(), whole)?);
        }
        let entity = match &arguments.unit {
            Some(unit) => Some(unit.clone()).filter(|unit| unit != "record"),
            None => self.unit()?,
        };
        let by_column = self.proposal.lacks_values.then(|| "by-column".into());
        let mut draft = Draft {
            columns,
            key,
            key_bounds: arguments.key_bounds.clone(),
            missing: arguments.missing.clone().or(by_column),
            time_format: self.profile.time_format(time.as_deref()),
            time,
            arrival,
            timezone,
            epoch: Some(epoch),
            start,
            horizon: horizon.unwrap_or(propose::COUNTED_EPOCHS),
            entity,
            repeat_policy: arguments.repeat_policy,
            records: arguments.records_per_epoch,
            participations: arguments.participations,
            epsilon: arguments.epsilon.map_or(1.0, Epsilon::value),
            delta: arguments.delta.map_or(1e-6, Delta::value),
        };
        draft.check(self.profile)?;
        if draft.entity.is_some() {
            self.limits(&mut draft)?;
        }
        if arguments.epsilon.is_none() {
            let question = "ε of all releases together: 0.1 is strict, 1 is usual, 10 is weak";
            draft.epsilon = ask(question, "1", number_in(Epsilon::new))?.value();
        }
        if arguments.delta.is_none() {
            let question = "δ, far below one over the number of people";
            draft.delta = ask(question, "1e-6", number_in(Delta::new))?.value();
        }
        if let ([], Some(key)) = (&arguments.key_bounds[..], &draft.key) {
            draft.key_bounds = self.key_bounds(key, &draft.columns)?;
        }
        if arguments.missing.is_none() {
            draft.missing = self.missing()?;
        }
        Ok(draft.filled(self.profile))
    }

    /// Asks for the limits of entities that no flag gives.
    fn limits(&self, draft: &mut Draft) -> Result<(), CliError> {
        let is_given =
            draft.repeat_policy.is_some() && draft.records.is_some() && draft.participations.is_some();
        let search = if is_given { None } else { (self.search)(draft) };
        let repeat_policy = match draft.repeat_policy {
            Some(repeat_policy) => repeat_policy,
            None => {
                let default =
                    search.as_ref().filter(|_| draft.records.is_none()).map(LimitSearch::repeat_policy);
                let question = "If one of them has more records in an epoch than count: keep the first ones, or average those of a key \
                                to one record, their mean";
                ask(question, repeat_policy_word(default.unwrap_or_default()), values::repeat_policy)?
            }
        };
        let records = match draft.records {
            Some(records) => records,
            None => {
                let default = search.as_ref().map_or(1, |search| search.records(repeat_policy));
                let what = match repeat_policy {
                    RepeatPolicy::Keep => "Maximum number of records of one of them that count in an epoch",
                    RepeatPolicy::Average => {
                        "Maximum number of keys to which one of them contributes in an epoch"
                    }
                };
                ask(&format!("{what}: noise is proportional to it"), &default.to_string(), whole)?
            }
        };
        if draft.participations.is_none() {
            let horizon = draft.horizon;
            let default =
                search.as_ref().map_or(horizon, |search| search.participations(repeat_policy, records));
            let question = format!(
                "Most epochs, of {horizon}, in which one of them counts: its later records are left out, and more epochs need more \
                 noise"
            );
            draft.participations = Some(ask(&question, &default.to_string(), whole)?);
        }
        (draft.repeat_policy, draft.records) = (Some(repeat_policy), Some(records));
        Ok(())
    }

    fn columns(&self) -> Result<Vec<ColumnBounds>, CliError> {
        show("Columns to publish: bounds as LOWER:UPPER, or - to leave a column out.\n")?;
        for remark in self.proposal.left_out() {
            show(&format!("{remark}\n"))?;
        }
        let mut columns = Vec::new();
        for ColumnBounds { name, lower, upper } in &self.proposal.columns {
            let range = self
                .profile
                .columns
                .iter()
                .find(|column| column.name == *name)
                .and_then(|column| column.range);
            let (least, greatest) = range.unwrap_or((*lower, *upper));
            let question = format!("  {name} (in this file {} to {})", number(least), number(greatest));
            let read = |text: &str| match text {
                "-" => Ok(None),
                text => values::bounds(text).map(Some),
            };
            let bounds = ask(&question, &format!("{}:{}", number(*lower), number(*upper)), read)?;
            columns.extend(bounds.map(|(lower, upper)| ColumnBounds { name: name.clone(), lower, upper }));
        }
        match columns.is_empty() {
            true => Err(CliError::failed("no column is left to publish")),
            false => Ok(columns),
        }
    }

    fn key(&self) -> Result<Option<Keys>, CliError> {
        let names: Vec<_> = self.proposal.keys.iter().map(|key| key.column.clone()).collect();
        let first = names.first().cloned();
        let column =
            self.optional("Column that groups the records, or - for one group", &names, first.as_deref())?;
        let Some(column) = column else { return Ok(None) };
        let proposed = self.proposal.keys.iter().find(|key| key.column == column);
        let values = proposed.map_or(String::new(), |key| values::list(&key.values));
        let read = |text: &str| format!("{column}={text}").parse::<Keys>();
        ask("  its values, separated by commas; in quotes if they hold one", &values, read).map(Some)
    }

    /// Asks for the bounds of keys whose values lie in a small part of the column's bounds.
    fn key_bounds(&self, key: &Keys, columns: &[ColumnBounds]) -> Result<Vec<KeyBounds>, CliError> {
        let mut own = Vec::new();
        for KeyBounds { key: value, column } in (self.key_bounds)(key, columns)? {
            let read = |text: &str| match text {
                "-" => Ok(None),
                text => values::bounds(text).map(Some),
            };
            let question = format!("  bounds of {} for {value}, or - for those of the column", column.name);
            let default = format!("{}:{}", number(column.lower), number(column.upper));
            if let Some((lower, upper)) = ask(&question, &default, read)? {
                own.push(KeyBounds { key: value, column: ColumnBounds { lower, upper, ..column } });
            }
        }
        Ok(own)
    }

    /// Asks what happens to rows that lack a value, if there are many.
    fn missing(&self) -> Result<Option<String>, CliError> {
        if !self.proposal.lacks_values {
            return Ok(None);
        }
        let read = |text: &str| match text {
            "skip" | "by-column" => Ok(text.to_owned()),
            _ => Err("expected skip or by-column".to_owned()),
        };
        ask(
            "Rows that lack a value: skip them, or count them by-column, for their other columns",
            "by-column",
            read,
        )
        .map(Some)
    }

    fn unit(&self) -> Result<Option<String>, CliError> {
        let likely = &self.proposal.entities;
        if let Some(explanation) = self.proposal.explain_unit() {
            show(&format!("{explanation} Answer record if every row is of another person.\n"))?;
        }
        let among = if likely.len() < 2 { String::new() } else { format!(" ({})", likely.join(", ")) };
        let question =
            format!("What is protected: record, or the column that names a person or device{among}");
        ask(&question, likely.first().map_or("record", String::as_str), |text| match text {
            "record" => Ok(None),
            name => self.column(name).map(Some),
        })
    }

    /// Asks for an optional column.
    fn optional(
        &self,
        question: &str,
        among: &[String],
        default: Option<&str>,
    ) -> Result<Option<String>, CliError> {
        let names = if among.is_empty() { String::new() } else { format!(" ({})", among.join(", ")) };
        ask(&format!("{question}{names}"), default.unwrap_or("-"), |text| match text {
            "-" => Ok(None),
            name => self.column(name).map(Some),
        })
    }

    fn column(&self, name: &str) -> Result<String, String> {
        let found = self.profile.columns.iter().any(|column| column.name == name);
        found.then(|| name.to_owned()).ok_or_else(|| no_column(name, self.profile))
    }
}

fn whole(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|&number: &u64| number > 0);
    number.ok_or_else(|| format!("found {text:?}, expected a whole number from 1"))
}

/// Asks until the answer is valid; an empty one means `default`.
fn ask<T, E: Display>(
    question: &str,
    default: &str,
    read: impl Fn(&str) -> Result<T, E>,
) -> Result<T, CliError> {
    loop {
        show(&format!("{question} [{default}]: "))?;
        let answer = line()?;
        let answer = if answer.is_empty() { default } else { &answer };
        match read(answer) {
            Ok(value) => return Ok(value),
            Err(error) => show(&format!("  {error}\n"))?,
        }
    }
}

/// Asks a question with yes as the default.
pub(super) fn confirm(question: &str) -> Result<bool, CliError> {
    show(&format!("{question} [Y/n]: "))?;
    Ok(matches!(line()?.to_lowercase().as_str(), "" | "y" | "yes"))
}

fn show(text: &str) -> Result<(), CliError> {
    let mut err = stderr().lock();
    Ok(err.write_all(fit_message(text).as_bytes()).and_then(|()| err.flush())?)
}

fn line() -> Result<String, CliError> {
    let mut line = String::new();
    match stdin().lock().read_line(&mut line)? {
        0 => Err(CliError::failed("the input ended before the last question, and nothing was written")),
        _ => Ok(line.trim().into()),
    }
}
