//! Output of `hushflow tail`: lines, scores or a sample; on a terminal, a table redrawn in place.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write, stdout};

use console::{Term, measure_text_width, strip_ansi_codes};
use hushflow::follow::{KeyEstimate, Subject};
use hushflow::lines::{LineWriter, OutputFormat, csv_line};
use hushflow::mechanism::estimate::density::{Density, DensityError};
use hushflow::mechanism::noise::NoiseSource;
use hushflow::publication::{MomentPublication, Publication};
use hushflow::state::HistoryStamp;
use serde_json::{Map, Value};

use super::super::CliError;
use super::TailArguments;
use super::scores::Scores;

/// Maximum number of titles that an error lists.
const MAX_LISTED_TITLES: usize = 30;

/// Output for each key and epoch.
pub(super) enum Output {
    /// The estimates.
    Lines(Box<LineWriter>),
    /// Scores of their densities.
    Scores(Box<Scores>),
    /// Records drawn from the newest densities.
    Sample(Box<SyntheticSample>),
}

impl Output {
    pub(super) fn new(
        arguments: &TailArguments,
        subject: &Subject,
        format: OutputFormat,
    ) -> Result<Self, CliError> {
        let scores = &arguments.scores;
        let lines = || Self::Lines(Box::new(LineWriter::new(subject, format.clone())));
        let Publication::Moments(publication) = &subject.publication else { return Ok(lines()) };
        let has_densities = subject.views.iter().all(|view| view.estimator.has_densities());
        if (arguments.sample.is_some() || scores.is_requested()) && !has_densities {
            return Err(CliError::usage(
                "--sample, --held-out and --truth need densities, and this view has none: use --view gaussian on a \
                 log with second moments of records",
            ));
        }
        let publication = publication.clone();
        Ok(match arguments.sample {
            Some(size) => Self::Sample(Box::new(SyntheticSample::new(
                publication,
                size,
                arguments.seed,
                format.clone(),
            ))),
            None if scores.is_requested() => {
                let keys = if arguments.total { 1 } else { arguments.key.len() };
                Self::Scores(Box::new(Scores::new(scores, publication, keys, format.clone())?))
            }
            None => lines(),
        })
    }

    /// Writes the header again before the next line, for a terminal of this width.
    pub(super) fn restart(&mut self, width: usize) {
        match self {
            Self::Lines(writer) => writer.restart(width),
            Self::Scores(scores) => scores.restart(),
            Self::Sample(_) => {}
        }
    }

    /// Writes an estimate. Returns the bytes of the header before it.
    pub(super) fn write(
        &mut self,
        estimate: &KeyEstimate,
        stamp: &HistoryStamp,
        out: &mut Vec<u8>,
    ) -> Result<usize, CliError> {
        match self {
            Self::Lines(writer) => {
                if let Some((name, titles)) = writer.unknown_column(estimate) {
                    let more = if titles.len() > MAX_LISTED_TITLES { ", …" } else { "" };
                    let titles = titles[..titles.len().min(MAX_LISTED_TITLES)].join(", ");
                    return Err(CliError::usage(format!(
                        "--columns {name}: the table has no such cell, but {titles}{more}"
                    )));
                }
                Ok(writer.write_line(estimate, stamp, out)?)
            }
            Self::Scores(scores) => scores.write(&*estimate.estimate, out),
            Self::Sample(sample) => {
                sample.keep(estimate);
                Ok(0)
            }
        }
    }

    /// Writes the output that follows the last epoch.
    pub(super) fn finish(self, out: &mut impl Write) -> Result<(), CliError> {
        match self {
            Self::Sample(sample) => sample.write(out),
            Self::Lines(_) | Self::Scores(_) => Ok(()),
        }
    }
}

/// Synthetic records from the newest density of each key, at no privacy cost.
pub(super) struct SyntheticSample {
    publication: MomentPublication,
    size: u32,
    source: NoiseSource,
    format: OutputFormat,
    /// Densities by key, in the units of the columns.
    newest: BTreeMap<u32, Result<Density, DensityError>>,
}

impl SyntheticSample {
    fn new(publication: MomentPublication, size: u32, seed: Option<u64>, format: OutputFormat) -> Self {
        let source = seed.map_or(NoiseSource::System, NoiseSource::Seeded);
        Self { publication, size, source, format, newest: BTreeMap::new() }
    }

    /// Keeps the newest density of a key.
    fn keep(&mut self, estimate: &KeyEstimate) {
        if let Some(density) = estimate.estimate.density() {
            self.newest.insert(estimate.key, density.cloned().map_err(|error| *error));
        }
    }

    /// Writes the samples of all keys.
    fn write(self, out: &mut impl Write) -> Result<(), CliError> {
        let columns = self.publication.parameters().columns.iter().map(|column| column.name.clone());
        let keyed = self.publication.parameters().key.as_ref().map(|key| key.column.clone());
        let names: Vec<String> = keyed.iter().cloned().chain(columns).collect();
        if self.format != OutputFormat::Json {
            writeln!(out, "{}", csv_line(names.clone()))?;
        }
        for (&key, density) in &self.newest {
            let name = self.publication.key_name(key);
            let failed = |reason: String| CliError::failed(format!("no sample of {name}: {reason}"));
            let density = density.as_ref().map_err(|error| failed(error.to_string()))?;
            let sampler = density.sampler().ok_or_else(|| failed(DensityError::Singular.to_string()))?;
            // u64::MAX is not an epoch, so these random numbers differ from those of any release.
            let mut random = self.source.generator(u64::MAX, key.into())?;
            for _ in 0..self.size {
                let record = sampler.draw(&mut random);
                let label = keyed.as_ref().map(|_| Value::from(name));
                let fields = label.into_iter().chain(record.iter().map(|&value| value.into()));
                writeln!(out, "{}", self.line(&names, fields))?;
            }
        }
        Ok(out.flush()?)
    }

    fn line(&self, names: &[String], fields: impl Iterator<Item = Value>) -> String {
        match self.format {
            OutputFormat::Json => {
                Value::Object(names.iter().cloned().zip(fields).collect::<Map<_, _>>()).to_string()
            }
            OutputFormat::Table(_) | OutputFormat::Csv => csv_line(fields.map(|field| match field {
                Value::String(text) => text,
                number => number.to_string(),
            })),
        }
    }
}

/// A table at the bottom of the terminal with one line for each key.
pub(super) struct LiveTable {
    terminal: Term,
    head: Vec<String>,
    rows: Vec<String>,
    /// Lines on the screen.
    drawn: usize,
    changed: bool,
}

impl LiveTable {
    /// Returns `None` if standard output is not a terminal.
    pub(super) fn new() -> Option<Self> {
        let terminal = stdout().is_terminal().then(Term::buffered_stdout)?;
        Some(Self { terminal, head: Vec::new(), rows: Vec::new(), drawn: 0, changed: false })
    }

    /// Begins the next epoch.
    pub(super) fn begin_epoch(&mut self) {
        self.rows.clear();
        self.changed = true;
    }

    /// Returns the columns of the terminal.
    pub(super) fn width(&self) -> usize {
        self.terminal.size().1.into()
    }

    /// Adds the lines of a key, after `header` bytes of the table's header.
    pub(super) fn push(&mut self, text: &str, header: usize) {
        let (header, row) = text.split_at(header);
        if !header.is_empty() {
            self.head = header.lines().map(String::from).collect();
        }
        self.rows.push(row.trim_end_matches('\n').into());
    }

    /// Replaces the table by that of the newest epoch.
    ///
    /// # Errors
    /// Returns errors of the terminal.
    pub(super) fn draw(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.changed) {
            return Ok(());
        }
        let (height, width) = self.terminal.size();
        let lines = fit_screen(&self.head, &self.rows, height.into(), width.into());
        self.terminal.clear_last_lines(self.drawn)?;
        lines.iter().try_for_each(|line| self.terminal.write_line(line))?;
        self.drawn = lines.len();
        self.terminal.flush()
    }
}

/// Returns the lines that fit a screen. One line is left for the cursor. A row may have several
/// lines; a line wider than the screen is continued on the next one.
fn fit_screen(head: &[String], rows: &[String], height: usize, width: usize) -> Vec<String> {
    let width = width.saturating_sub(1).max(1);
    let head: Vec<String> = head.iter().flat_map(|line| wrap_line(line, width)).collect();
    let fit = |row: &String| row.lines().flat_map(|line| wrap_line(line, width)).collect::<Vec<_>>();
    let rows: Vec<Vec<String>> = rows.iter().map(fit).collect();
    let room = height.saturating_sub(1 + head.len()).max(2);
    let ends = rows.iter().scan(0, |end, row| {
        *end += row.len();
        Some(*end)
    });
    let ends: Vec<usize> = ends.collect();
    let shown = match ends.last().is_some_and(|&end| end > room) {
        true => ends.iter().take_while(|&&end| end < room).count(),
        false => rows.len(),
    };
    let hidden = rows.len() - shown;
    let more = (hidden > 0).then(|| format!("… and {hidden} more keys: --key chooses"));
    let more = more.iter().flat_map(|line| wrap_line(line, width));
    head.into_iter().chain(rows.into_iter().take(shown).flatten()).chain(more).collect()
}

/// Breaks a line that is too wide, and drops its colours then.
fn wrap_line(line: &str, width: usize) -> Vec<String> {
    if measure_text_width(line) <= width {
        return vec![line.into()];
    }
    let characters: Vec<char> = strip_ansi_codes(line).chars().collect();
    characters.chunks(width).map(|part| part.iter().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_the_screen() {
        let lines = |texts: &[&str]| texts.iter().map(|text| String::from(*text)).collect::<Vec<_>>();
        let (head, rows) = (lines(&["key mean"]), lines(&["a 1", "b 2", "c 3"]));
        assert_eq!(fit_screen(&head, &rows, 24, 80), lines(&["key mean", "a 1", "b 2", "c 3"]));
        assert_eq!(fit_screen(&head, &rows, 6, 6), lines(&["key m", "ean", "a 1", "b 2", "c 3"]));
        let wrapped = lines(&["a 1\n a", "b 2\n b"]);
        assert_eq!(fit_screen(&head, &wrapped, 6, 80), lines(&["key mean", "a 1", " a", "b 2", " b"]));
        assert_eq!(
            fit_screen(&head, &wrapped, 5, 80),
            lines(&["key mean", "a 1", " a", "… and 1 more keys: --key chooses"])
        );
        assert_eq!(
            fit_screen(&head, &rows, 4, 80),
            lines(&["key mean", "a 1", "… and 2 more keys: --key chooses"])
        );
        assert!(fit_screen(&head, &rows, 0, 0).iter().all(|line| line.chars().count() == 1));
    }
}
