//! `hushflow tail --held-out` and `--truth`: scores densities by held-out rows and by a known
//! density.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use hushflow::estimates::{Estimate, quality};
use hushflow::format::table::{MissingRows, Table};
use hushflow::lines::{OutputFormat, csv_line};
use hushflow::mechanism::estimate::density::{Density, DensityError};
use hushflow::mechanism::view::Moments;
use hushflow::pipeline::PublicParameters;
use hushflow::publication::MomentPublication;
use hushflow::whole::{SETTINGS, read_text};
use nalgebra::{DMatrix, DVector};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::super::{CliError, output};

/// Arguments that name the references for scores.
#[derive(Debug, Args)]
pub(super) struct ScoresArguments {
    /// Score densities by the mean log-likelihood, in nats, of the rows of this CSV file. The key
    /// column assigns rows to keys. These scores are not private: only for those who may see the
    /// rows
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sample", "web"])]
    held_out: Option<PathBuf>,
    /// With --held-out: score each row by its log-density, its Mahalanobis distance and the
    /// probability of a larger distance, instead of their mean. Use --last 1 for the newest density
    #[arg(long, requires = "held_out", conflicts_with = "truth")]
    each_row: bool,
    /// Compare densities with the density in this file, by Kullback-Leibler divergences in nats.
    /// The file holds a JSON object with mean and covariance, as in a line of tail --json
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sample", "web"])]
    truth: Option<PathBuf>,
}

impl ScoresArguments {
    pub(super) fn is_requested(&self) -> bool {
        self.held_out.is_some() || self.truth.is_some()
    }
}

/// Columns of a table and their widths.
type Titles = &'static [(&'static str, usize)];

/// The table of scores.
const TITLES: Titles = &[
    ("epoch", 7),
    ("key", 10),
    ("count", 14),
    ("quality", 16),
    ("held_out_rows", 14),
    ("mean_log_likelihood", 20),
    ("divergence", 14),
    ("reverse_divergence", 19),
];

/// The table of scores of rows.
const ROW_TITLES: Titles = &[
    ("epoch", 7),
    ("key", 10),
    ("quality", 16),
    ("row", 8),
    ("log_density", 14),
    ("distance", 12),
    ("p_value", 12),
];

/// Writer of scores.
pub(super) struct Scores {
    publication: MomentPublication,
    format: OutputFormat,
    /// Whether each row has a score of its own.
    each_row: bool,
    held_out: Option<HeldOut>,
    truth: Option<Density>,
    headed: bool,
}

impl Scores {
    /// Reads the references. `keys` is the number of keys to score; 0 means all.
    pub(super) fn new(
        arguments: &ScoresArguments,
        publication: MomentPublication,
        keys: usize,
        format: OutputFormat,
    ) -> Result<Self, CliError> {
        let parameters = publication.parameters();
        if arguments.truth.is_some() && keys != 1 && parameters.keys() > 1 {
            return Err(CliError::usage(
                "--truth: the file describes one density: choose one --key, or --total",
            ));
        }
        let held_out =
            arguments.held_out.as_deref().map(|path| HeldOut::read(path, parameters)).transpose()?;
        let truth = arguments.truth.as_deref().map(|path| truth(path, parameters)).transpose()?;
        Ok(Self { held_out, truth, publication, format, each_row: arguments.each_row, headed: false })
    }

    /// Writes the header again before the next line.
    pub(super) fn restart(&mut self) {
        self.headed = false;
    }

    /// Writes the scores of the density of one key and epoch. Returns the bytes of the header
    /// before them.
    pub(super) fn write(&mut self, estimate: &dyn Estimate, out: &mut Vec<u8>) -> Result<usize, CliError> {
        // `Output` has refused estimates without densities.
        let (Some(moments), Some(density)) = (estimate.moments(), estimate.density()) else { return Ok(0) };
        let lines = match self.each_row {
            true => self.row_lines(moments, density),
            false => vec![self.line(moments, density)?],
        };
        let titles = if self.each_row { ROW_TITLES } else { TITLES };
        let start = out.len();
        if !std::mem::replace(&mut self.headed, true) {
            let names = titles.iter().map(|(title, _)| *title);
            match self.format {
                OutputFormat::Json => {}
                OutputFormat::Csv => writeln!(out, "{}", csv_line(names.map(String::from)))?,
                OutputFormat::Table(_) => {
                    let titles =
                        titles.iter().map(|(title, width)| format!("{:>width$}", title.replace('_', " ")));
                    writeln!(out, "{}", titles.collect::<String>())?;
                }
            }
        }
        let header = out.len() - start;
        for line in lines {
            let cells = titles.iter().map(|&(title, width)| (&line[title], width));
            let text = match self.format {
                OutputFormat::Json => Value::Object(line).to_string(),
                OutputFormat::Csv => csv_line(cells.map(|(value, _)| exact(value))),
                OutputFormat::Table(_) => {
                    cells.map(|(value, width)| format!("{:>width$}", short(value))).collect()
                }
            };
            writeln!(out, "{text}")?;
        }
        Ok(header)
    }

    /// The score of each row of a key; null for rows without a score.
    fn row_lines(
        &self,
        moments: &Moments,
        density: Result<&Density, &DensityError>,
    ) -> Vec<Map<String, Value>> {
        let key = self.publication.key_name(moments.key);
        let quality = quality(density);
        let rows = self.held_out.as_ref().map(|held_out| held_out.numbered(moments.key)).unwrap_or_default();
        let scores =
            density.ok().and_then(|density| density.row_scores(rows.iter().map(|(_, row)| row)).ok());
        let line = |(place, (number, _)): (usize, &(usize, &[f64]))| {
            let score = scores.as_ref().and_then(|scores| scores[place]);
            let values = [
                moments.epoch.into(),
                key.into(),
                quality.into(),
                (number + 1).into(),
                score.map(|score| score.log_density).into(),
                score.map(|score| score.distance).into(),
                score.map(|score| score.p_value).into(),
            ];
            ROW_TITLES.iter().map(|(title, _)| String::from(*title)).zip(values).collect()
        };
        rows.iter().enumerate().map(line).collect()
    }

    fn line(
        &self,
        moments: &Moments,
        density: Result<&Density, &DensityError>,
    ) -> Result<Map<String, Value>, CliError> {
        let key = self.publication.key_name(moments.key);
        let quality = quality(density);
        let density = density.ok();
        let rows = self.held_out.as_ref().map(|held_out| held_out.of_key(moments.key));
        let score = match (density, &rows) {
            (Some(density), Some(rows)) => score(density, rows)?,
            _ => None,
        };
        let pair = density.zip(self.truth.as_ref());
        let divergence = pair.and_then(|(density, truth)| truth.divergence_from(density));
        let reverse = pair.and_then(|(density, truth)| density.divergence_from(truth));
        let values = [
            moments.epoch.into(),
            key.into(),
            moments.count().into(),
            quality.into(),
            rows.map(|rows| rows.len()).into(),
            score.into(),
            divergence.into(),
            reverse.into(),
        ];
        Ok(TITLES.iter().map(|(title, _)| String::from(*title)).zip(values).collect())
    }
}

/// Returns the mean log-likelihood; `None` where there are no rows or no density.
fn score(density: &Density, rows: &[&[f64]]) -> Result<Option<f64>, CliError> {
    match density.mean_log_likelihood(rows) {
        Ok(score) => Ok(Some(score)),
        Err(DensityError::NoRows | DensityError::Singular | DensityError::OutOfRange) => Ok(None),
        Err(error) => Err(CliError::failed(format!("--held-out: {error}"))),
    }
}

/// Held-out rows.
struct HeldOut {
    table: Table,
    /// Row indices of each key; `None` where there are no keys.
    of_keys: Option<Vec<Vec<usize>>>,
}

impl HeldOut {
    fn read(path: &Path, parameters: &PublicParameters) -> Result<Self, CliError> {
        let columns: Vec<String> = parameters.columns.iter().map(|column| column.name.clone()).collect();
        let Some(key) = &parameters.key else {
            return Ok(Self { table: Table::read(path, Some(&columns), MissingRows::Keep)?, of_keys: None });
        };
        let (table, labels) = Table::read_labelled(path, &columns, &key.column, MissingRows::Keep)?;
        let keys: HashMap<&String, usize> = key.values.iter().zip(0..).collect();
        let mut of_keys = vec![Vec::new(); keys.len()];
        for (index, label) in labels.iter().enumerate() {
            keys.get(label).into_iter().for_each(|&key| of_keys[key].push(index));
        }
        Ok(Self { table, of_keys: Some(of_keys) })
    }

    /// Returns the complete rows of a key.
    fn of_key(&self, key: u32) -> Vec<&[f64]> {
        let rows = self.numbered(key).into_iter().map(|(_, row)| row);
        rows.filter(|row| row.iter().all(|value| value.is_finite())).collect()
    }

    /// Returns the rows of a key with their positions in the file; NaN where a row lacks a value.
    /// The total, whose index follows those of the keys, has the rows of all keys of the log.
    fn numbered(&self, key: u32) -> Vec<(usize, &[f64])> {
        let width = self.table.columns().len();
        let row = |&index: &usize| (index, &self.table.values()[index * width..][..width]);
        match &self.of_keys {
            None => self.table.values().chunks_exact(width).enumerate().collect(),
            Some(of_keys) => match of_keys.get(key as usize) {
                Some(rows) => rows.iter().map(row).collect(),
                None => of_keys.iter().flatten().map(row).collect(),
            },
        }
    }
}

/// The density in a line of `tail --json`.
#[derive(Deserialize)]
struct MeanAndCovariance {
    mean: Map<String, Value>,
    covariance: Vec<Vec<f64>>,
}

fn truth(path: &Path, parameters: &PublicParameters) -> Result<Density, CliError> {
    let wrong = |what: String| CliError::usage(format!("--truth {}: {what}", path.display()));
    let text = read_text(path, SETTINGS).map_err(|error| wrong(error.to_string()))?;
    let expected = "expected one JSON object such as {\"mean\": {\"x\": 0.5}, \"covariance\": [[1.5]]}";
    let given: MeanAndCovariance =
        serde_json::from_str(&text).map_err(|error| wrong(format!("{error}: {expected}")))?;
    let names = || parameters.columns.iter().map(|column| &column.name);
    let mean = |name: &String| {
        let number = given.mean.get(name).and_then(Value::as_f64);
        number.ok_or_else(|| wrong(format!("the mean has no number for the column {name:?}")))
    };
    let mean = names().map(mean).collect::<Result<Vec<f64>, _>>()?;
    let (size, rows) = (mean.len(), &given.covariance);
    if rows.len() != size || rows.iter().any(|row| row.len() != size) {
        return Err(wrong(format!("expected a covariance of {size} rows of {size} numbers")));
    }
    let covariance = DMatrix::from_fn(size, size, |i, j| rows[i][j]);
    let density =
        Density::known(DVector::from_vec(mean), covariance).map_err(|error| wrong(error.to_string()))?;
    match density.sampler() {
        Some(_) => Ok(density),
        None => Err(wrong(DensityError::Singular.to_string())),
    }
}

/// Formats a value for programs.
fn exact(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        number => number.to_string(),
    }
}

/// Formats a value for people.
fn short(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::Number(number) => number.as_f64().map_or_else(String::new, output::number),
        other => exact(other),
    }
}
