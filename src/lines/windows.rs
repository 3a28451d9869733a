//! Estimates of windows, a line for every key and epoch: as a table for people, as JSON, or as CSV.
//!
//! CSV has the numbers of an estimate, or the reason why there is none. JSON has the rest too
//! (parts, measurements).

use std::io::{self, Write};

use serde_json::{Map, Value};

use super::csv::csv_line;
use super::table::{SHOWN, cut, plain, push, push_cell, short};
use super::{Format, start_of};
use crate::follow::Shown;
use crate::pipeline::Estimator;
use crate::publication::WindowPublication;
use crate::state::Stamp;

pub(super) struct WindowWriter {
    publication: WindowPublication,
    format: Format,
}

struct Window<'a> {
    epoch: u64,
    key: u32,
    stamp: &'a Stamp,
    found: &'a Map<String, Value>,
}

impl WindowWriter {
    pub(super) fn new(publication: WindowPublication, format: Format) -> Self {
        WindowWriter { publication, format }
    }

    /// Writes the estimate `found` of one window to `out`, after the header if `heads`.
    ///
    /// # Errors
    /// Those of `out`.
    pub(super) fn write(
        &self,
        (shown, stamp): (&Shown, &Stamp),
        found: &Map<String, Value>,
        heads: bool,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let window = Window { epoch: shown.epoch, key: shown.key, stamp, found };
        match self.format {
            Format::Table if heads => writeln!(out, "{}", self.header())?,
            Format::Csv if heads => writeln!(out, "{}", self.csv_header())?,
            _ => {}
        }
        match self.format {
            Format::Json => writeln!(out, "{}", Value::Object(self.object(&window))),
            Format::Csv => writeln!(out, "{}", self.csv_line(&window)),
            Format::Table => writeln!(out, "{}", self.line(&window)),
        }
    }

    fn columns(&self) -> Vec<&str> {
        self.publication.parameters().columns.iter().map(|column| column.name.as_str()).collect()
    }

    /// Pairs of columns, each once, in the order of a matrix' upper triangle.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let columns = self.publication.parameters().columns.len();
        (0..columns).flat_map(move |i| (i..columns).map(move |j| (i, j)))
    }

    /// Fields with one number per window, by the kind of estimator.
    fn numbers(&self) -> &'static [&'static str] {
        match self.publication.estimator() {
            Estimator::Mean { .. } => &["rows", "kept", "spent"],
            Estimator::Covariance { .. } => &["rows", "rows_noise", "measured_pairs"],
        }
    }

    /// Fields with one number per column.
    fn lists(&self) -> [&'static str; 2] {
        match self.publication.estimator() {
            Estimator::Mean { .. } => ["mean", "noise"],
            Estimator::Covariance { .. } => ["mean", "mean_noise"],
        }
    }

    fn is_covariance(&self) -> bool {
        matches!(self.publication.estimator(), Estimator::Covariance { .. })
    }

    fn csv_header(&self) -> String {
        let columns = self.columns();
        let mut fields: Vec<String> = ["epoch", "start", "key", "estimator"].map(String::from).into();
        fields.extend(self.numbers().iter().map(|name| (*name).into()));
        let of_columns = |name: &'static str| columns.iter().map(move |column| format!("{name}_{column}"));
        fields.extend(self.lists().into_iter().flat_map(of_columns));
        if self.is_covariance() {
            fields.extend(self.pairs().map(|(i, j)| format!("covariance_{}_{}", columns[i], columns[j])));
        }
        fields.push("refusal".into());
        csv_line(fields)
    }

    fn csv_line(&self, window: &Window<'_>) -> String {
        let (found, columns) = (window.found, self.columns().len());
        let number = |value: Option<&Value>| {
            value.filter(|value| value.is_number()).map_or_else(String::new, Value::to_string)
        };
        let key = self.publication.parameters().key_name(window.key).to_owned();
        let estimator = self.publication.estimator().to_string();
        let mut fields = vec![window.epoch.to_string(), self.start(window.epoch), key, estimator];
        fields.extend(self.numbers().iter().map(|name| number(found.get(*name))));
        let of_columns = |name: &'static str| {
            (0..columns).map(move |place| number(found.get(name).and_then(|x| x.get(place))))
        };
        fields.extend(self.lists().into_iter().flat_map(of_columns));
        if self.is_covariance() {
            let entry =
                |(i, j): (usize, usize)| number(found.get("covariance").and_then(|rows| rows.get(i)?.get(j)));
            fields.extend(self.pairs().map(entry));
        }
        let reason = found.get("refusal").and_then(|refusal| refusal["message"].as_str());
        fields.push(reason.unwrap_or_default().into());
        csv_line(fields)
    }

    fn start(&self, epoch: u64) -> String {
        start_of(&self.publication.parameters().epochs.schedule, epoch)
    }

    /// Identifies the line, then adds its fields.
    fn object(&self, window: &Window<'_>) -> Map<String, Value> {
        let parameters = self.publication.parameters();
        let mut object = Map::from_iter([("epoch".into(), window.epoch.into())]);
        let start = self.start(window.epoch);
        if !start.is_empty() {
            object.insert("start".into(), start.into());
        }
        object.insert("key".into(), parameters.key_name(window.key).into());
        object.insert("estimator".into(), self.publication.estimator().to_string().into());
        object.insert("private".into(), self.publication.is_private().into());
        object.insert("generation".into(), window.stamp.generation.into());
        object.insert("chain".into(), window.stamp.chain.short().into());
        object.insert("columns".into(), self.columns().into());
        object.extend(window.found.clone());
        object
    }

    fn header(&self) -> String {
        let what = match self.publication.estimator() {
            Estimator::Mean { .. } => "mean",
            Estimator::Covariance { .. } => "sd",
        };
        let mut text = self.lead("epoch", "from", "key", &self.start(1));
        for column in self.publication.parameters().columns.iter().take(SHOWN) {
            push_cell(&mut text, &cut(&format!("{what} {}", column.name)));
        }
        format!("±: standard deviation of the noise\n{text}")
    }

    fn lead(&self, epoch: &str, from: &str, key: &str, start: &str) -> String {
        let from = if start.is_empty() { String::new() } else { format!("{from:<16}  ") };
        format!("{epoch:>7}  {from}{:<8}", plain(key))
    }

    fn line(&self, window: &Window<'_>) -> String {
        let (start, parameters) = (self.start(window.epoch), self.publication.parameters());
        let key = parameters.key_name(window.key);
        let mut text = self.lead(&window.epoch.to_string(), short(&start), key, &start);
        let found = window.found;
        if let Some(message) = found.get("refusal").and_then(|refusal| refusal["message"].as_str()) {
            return text + "  no estimate: " + &plain(message);
        }
        let number = |name: &str, place: usize| found.get(name).and_then(|list| list[place].as_f64());
        for place in 0..parameters.columns.len().min(SHOWN) {
            let cell = match self.publication.estimator() {
                Estimator::Mean { .. } => (number("mean", place), number("noise", place)),
                Estimator::Covariance { .. } => {
                    let variance = found.get("covariance").and_then(|rows| rows[place][place].as_f64());
                    (variance.map(|variance| variance.max(0.0).sqrt()), None)
                }
            };
            match cell {
                (Some(value), Some(noise)) => push(&mut text, value, noise),
                (Some(value), None) => push_cell(&mut text, &format!("{value:.4}")),
                (None, _) => push_cell(&mut text, "-"),
            }
        }
        text
    }
}
