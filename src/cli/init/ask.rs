//! Questions on the terminal, with defaults.

use std::fmt::Display;
use std::io::{BufRead, Write, stderr, stdin};

use hushflow::format::profile::FileProfile;
use hushflow::mechanism::accounting::{Delta, Epsilon};

use super::super::output::{fit_message, number};
use super::super::{CliError, number_in, thousands};
use super::InitArguments;
use super::draft::{Draft, Times};
use super::propose::{self, Proposal};
use super::values::{self, ColumnBounds, KeyBounds, Keys};

const WARNING: &str = "\
Bounds, keys, start, length and number of epochs are PUBLISHED, and the guarantee does not cover them. Give what everyone may know about \
such data: what is physically possible, what the form allows, where the offices are. What stands in [brackets] is taken \
from this file, for your eyes alone. Press Enter only if you would have answered the same without seeing the file.
";

/// The questions about a file.
pub(super) struct Questions<'a> {
    profile: &'a FileProfile,
    proposal: &'a Proposal,
}

impl<'a> Questions<'a> {
    pub(super) fn new(profile: &'a FileProfile, proposal: &'a Proposal) -> Self {
        Questions { profile, proposal }
    }

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
                "Length of an epoch, such as 6h, 1d, week or month",
                &self.proposal.epoch,
                values::length,
            )?,
            (None, None) => ask("Rows in an epoch", &self.proposal.epoch, whole)?.to_string(),
        };
        let mut usual = (self.proposal.start.clone(), self.proposal.horizon);
        if let Some(span) = time.as_ref().and_then(|time| self.profile.span_of(time)) {
            let zone = timezone.as_deref().unwrap_or(propose::UTC);
            let (_, start, horizon) = propose::epochs(span, &epoch, zone);
            usual = (start, horizon);
        }
        if time.is_some() && start.is_empty() {
            start = ask("Beginning of the first epoch", &usual.0, values::time)?;
        }
        if horizon.is_none() {
            let question = "Number of epochs, for which the budget is spent";
            horizon = Some(ask(question, &usual.1.to_string(), whole)?);
        }
        let entity = match &arguments.unit {
            Some(unit) => Some(unit.clone()).filter(|unit| unit != "record"),
            None => self.unit()?,
        };
        let participations = match (&entity, arguments.participations) {
            (Some(entity), None) => {
                let horizon = horizon.unwrap_or(propose::COUNTED_EPOCHS);
                let usual = self.profile.usual_participations(entity, horizon).to_string();
                let question = format!(
                    "Most epochs, of {horizon}, in which one of them counts: its later records are left out, and more epochs need \
                     more noise"
                );
                Some(ask(&question, &usual, whole)?)
            }
            (_, participations) => participations,
        };
        let epsilon = arguments.epsilon.map_or_else(
            || {
                ask(
                    "ε of all releases together: 0.1 is strict, 1 is usual, 10 is weak",
                    "1",
                    number_in(Epsilon::new),
                )
            },
            Ok,
        )?;
        let delta = arguments.delta.map_or_else(
            || ask("δ, far below one over the number of people", "1e-6", number_in(Delta::new)),
            Ok,
        )?;
        let key_bounds = match (&arguments.key_bounds[..], &key) {
            ([], Some(key)) => self.key_bounds(key, &columns)?,
            (given, _) => given.to_vec(),
        };
        let draft = Draft {
            columns,
            key,
            key_bounds,
            missing: if arguments.missing.is_some() { arguments.missing.clone() } else { self.missing()? },
            time_format: self.profile.time_format(time.as_deref()),
            time,
            arrival,
            timezone,
            epoch: Some(epoch),
            start,
            horizon: horizon.unwrap_or(propose::COUNTED_EPOCHS),
            entity,
            participations,
            epsilon: epsilon.value(),
            delta: delta.value(),
        };
        draft.check(self.profile)?;
        Ok(draft.filled(self.profile))
    }

    fn columns(&self) -> Result<Vec<ColumnBounds>, CliError> {
        show("Columns to publish: bounds as LOWER:UPPER, or - to leave a column out.\n")?;
        let identifiers = self.proposal.identifiers.join(", ");
        if !identifiers.is_empty() {
            show(&format!("Left out, because they look like identifiers: {identifiers}.\n"))?;
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

    /// Asks for the bounds of keys whose values lie in a small part of those of their column.
    fn key_bounds(&self, key: &Keys, columns: &[ColumnBounds]) -> Result<Vec<KeyBounds>, CliError> {
        let mut own = Vec::new();
        for KeyBounds { key: value, column } in &self.proposal.key_bounds {
            if !key.values.contains(value) || !columns.iter().any(|other| other.name == column.name) {
                continue;
            }
            let read = |text: &str| match text {
                "-" => Ok(None),
                text => values::bounds(text).map(Some),
            };
            let question = format!("  bounds of {} for {value}, or - for those of the column", column.name);
            let usual = format!("{}:{}", number(column.lower), number(column.upper));
            if let Some((lower, upper)) = ask(&question, &usual, read)? {
                let column = ColumnBounds { name: column.name.clone(), lower, upper };
                own.push(KeyBounds { key: value.clone(), column });
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

    /// Asks for a column or none.
    fn optional(
        &self,
        question: &str,
        among: &[String],
        usual: Option<&str>,
    ) -> Result<Option<String>, CliError> {
        let names = if among.is_empty() { String::new() } else { format!(" ({})", among.join(", ")) };
        ask(&format!("{question}{names}"), usual.unwrap_or("-"), |text| match text {
            "-" => Ok(None),
            name => self.column(name).map(Some),
        })
    }

    fn column(&self, name: &str) -> Result<String, String> {
        let found = self.profile.columns.iter().any(|column| column.name == name);
        let names =
            || self.profile.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ");
        found
            .then(|| name.to_owned())
            .ok_or_else(|| format!("the file has no column {name:?}, but {}", names()))
    }
}

fn whole(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|&number: &u64| number > 0);
    number.ok_or_else(|| format!("found {text:?}, expected a whole number from 1"))
}

/// Asks until the answer is valid; an empty one stands for `usual`.
fn ask<T, E: Display>(
    question: &str,
    usual: &str,
    read: impl Fn(&str) -> Result<T, E>,
) -> Result<T, CliError> {
    loop {
        show(&format!("{question} [{usual}]: "))?;
        let answer = line()?;
        let answer = if answer.is_empty() { usual } else { &answer };
        match read(answer) {
            Ok(value) => return Ok(value),
            Err(error) => show(&format!("  {error}\n"))?,
        }
    }
}

/// Asks a question with yes as the usual answer.
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
        0 => Err(CliError::failed("the answers have ended, and nothing was written")),
        _ => Ok(line.trim().into()),
    }
}
