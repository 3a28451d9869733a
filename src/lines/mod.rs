//! Lines of releases, for people and for programs. All output is public.
//!
//! A [`LineWriter`] turns estimates into a table, JSON lines or CSV: a line for every view, key and
//! epoch. It writes the fields that identify the line; the [`Estimate`] writes the others.

use std::io::{self, Write};

use hushflow_mechanism::epochs::Schedule;
use hushflow_mechanism::view::SecondMomentSource;
use hushflow_mechanism::workload::Workload;
use serde_json::{Map, Value, json};

use crate::estimates::{Cell, Estimate};
use crate::follow::{EpochEstimates, KeyEstimate, Subject};
use crate::publication::Publication;
use crate::state::HistoryStamp;
use crate::time::epoch_start;

/// Width of a cell of a table.
const CELL: usize = 19;

/// Output format of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// An aligned table, for people.
    Table,
    /// One JSON object per line.
    Json,
    /// CSV with a header line.
    Csv,
}

/// Writes a follower's epochs, a line for every view, key and epoch.
///
/// The output is a parameter of every call: writers that share an output must share its buffer too,
/// or full buffers would cut their lines.
pub struct LineWriter {
    subject: Subject,
    format: OutputFormat,
    headed: bool,
}

impl LineWriter {
    /// Makes a writer for the estimates of a log.
    pub fn new(subject: &Subject, format: OutputFormat) -> Self {
        LineWriter { subject: subject.clone(), format, headed: false }
    }

    /// Writes the lines of an epoch to `out`.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&mut self, epoch: &EpochEstimates, out: &mut impl Write) -> io::Result<()> {
        epoch.estimates.iter().try_for_each(|estimate| self.write_line(estimate, &epoch.stamp, out))
    }

    /// Writes one line, of the release with this `stamp`, to `out`, and the header before the first
    /// line.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_line(
        &mut self,
        estimate: &KeyEstimate,
        stamp: &HistoryStamp,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let heads = !std::mem::replace(&mut self.headed, true);
        let KeyEstimate { view, epoch, key, estimate } = estimate;
        let line = EstimateLine {
            subject: &self.subject,
            view: *view,
            epoch: *epoch,
            key: *key,
            estimate: &**estimate,
        };
        match self.format {
            OutputFormat::Table if heads => writeln!(out, "{}", line.table_header())?,
            OutputFormat::Csv if heads => writeln!(out, "{}", line.csv_header())?,
            _ => {}
        }
        let text = match self.format {
            OutputFormat::Table => line.table(),
            OutputFormat::Csv => line.csv(),
            OutputFormat::Json => line.json(stamp),
        };
        writeln!(out, "{text}")
    }
}

/// A line: the estimate of one key in one epoch, under one view.
struct EstimateLine<'a> {
    subject: &'a Subject,
    view: usize,
    epoch: u64,
    key: u32,
    estimate: &'a dyn Estimate,
}

impl EstimateLine<'_> {
    fn key(&self) -> &str {
        self.subject.parameters().key_name(self.key)
    }

    /// Start of the epoch, RFC 3339; empty if epochs are counted.
    fn start(&self) -> String {
        match &self.subject.parameters().epochs.schedule {
            Schedule::ByTime(by) => epoch_start(by, self.epoch),
            Schedule::ByCount(_) => String::new(),
        }
    }

    /// Name of the view; empty for estimates of windows.
    fn view(&self) -> &str {
        self.subject.views.get(self.view).map_or("", |view| view.name.as_str())
    }

    fn json(&self, stamp: &HistoryStamp) -> String {
        let publication = &self.subject.publication;
        let mut object = Map::new();
        object.insert("epoch".into(), self.epoch.into());
        let start = self.start();
        if !start.is_empty() {
            object.insert("start".into(), start.into());
        }
        object.insert("key".into(), self.key().into());
        if let Publication::Windows(windows) = publication {
            object.insert("estimator".into(), windows.estimator().to_string().into());
        }
        if let Some(view) = self.subject.views.get(self.view) {
            object.insert("view".into(), view.name.as_str().into());
            object.insert("workload".into(), view.workload.to_string().into());
        }
        object.insert("private".into(), publication.is_private().into());
        object.insert("generation".into(), stamp.generation.into());
        object.insert("chain".into(), stamp.chain.short().into());
        if let Some(moments) = self.estimate.moments() {
            object.insert("count".into(), moments.count().into());
            object.insert("count_noise".into(), moments.noise.count.into());
            if let SecondMomentSource::EpochSums(bias) = moments.source {
                object.insert("second_moments_of".into(), "epoch-sums".into());
                object.insert("squares".into(), json!(bias));
            }
        }
        self.estimate.json(&mut object);
        Value::Object(object).to_string()
    }

    fn csv_header(&self) -> String {
        let (by, counts): (_, &[_]) = match self.estimate.moments() {
            Some(_) => ("view", &["count", "count_noise"]),
            None => ("estimator", &[]),
        };
        let titles = ["epoch", "start", "key", by].into_iter().chain(counts.iter().copied());
        csv_line(titles.map(String::from).chain(self.estimate.csv_titles()))
    }

    fn csv(&self) -> String {
        let by = match &self.subject.publication {
            Publication::Windows(windows) => windows.estimator().to_string(),
            Publication::Moments(_) => self.view().into(),
        };
        let mut fields = vec![self.epoch.to_string(), self.start(), self.key().into(), by];
        if let Some(moments) = self.estimate.moments() {
            fields.extend([moments.count(), moments.noise.count].map(|number| number.to_string()));
        }
        fields.extend(self.estimate.csv());
        csv_line(fields)
    }

    fn table_header(&self) -> String {
        let mut text = format!("±: {}\n", self.estimate.legend());
        text.push_str(&self.table_lead("epoch", "from", "view", "key"));
        if self.estimate.moments().is_some() {
            let view = self.subject.views.get(self.view);
            let sums = view.is_some_and(|view| view.workload == Workload::Prefix);
            push_cell(&mut text, if sums { "records" } else { "weight" });
        }
        for title in self.estimate.titles() {
            push_cell(&mut text, &cut(&title));
        }
        if self.estimate.quality().is_some() {
            text.push_str("  quality");
        }
        text
    }

    fn table(&self) -> String {
        let (epoch, start) = (self.epoch.to_string(), self.start());
        // `2013-01-05T05:00:00Z` without zeros at the end, and local time without seconds.
        let start = start
            .strip_suffix(":00Z")
            .map(String::from)
            .unwrap_or_else(|| start.replacen(":00:00", ":00", 1));
        let start = start.as_str();
        let mut text = self.table_lead(&epoch, start, self.view(), self.key());
        if let Some(count) = self.estimate.count_cell() {
            push(&mut text, &count);
        }
        match self.estimate.cells() {
            Ok(cells) => {
                cells.iter().for_each(|cell| push(&mut text, cell));
                if let Some(quality) = self.estimate.quality() {
                    text.extend(["  ", quality]);
                }
            }
            Err(reason) => text.extend(["  no estimate: ", &plain(&reason)]),
        }
        text
    }

    /// Formats the cells that identify a line. With several views these include the view.
    fn table_lead(&self, epoch: &str, from: &str, view: &str, key: &str) -> String {
        let (view, key) = (plain(view), plain(key));
        let mut text = format!("{epoch:>7}  ");
        if !self.start().is_empty() {
            let width = if self.start().ends_with('Z') { 16 } else { 22 };
            text += &format!("{from:<width$}  ");
        }
        if self.subject.views.len() > 1 {
            text += &format!("{view:<12}  ");
        }
        text + &format!("{key:<8}")
    }
}

/// Formats the fields of a CSV line and quotes those with commas, quotes or line ends (RFC 4180).
pub fn csv_line(fields: impl IntoIterator<Item = String>) -> String {
    let quoted = fields.into_iter().map(|field| {
        if field.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", field.replace('"', "\"\""))
        } else {
            field
        }
    });
    quoted.collect::<Vec<_>>().join(",")
}

fn push(text: &mut String, cell: &Cell) {
    match *cell {
        Cell::Value(value, reach) => push_value(text, value, reach),
        Cell::Plain(value) => push_cell(text, &format!("{value:.4}")),
        Cell::Range(lower, upper) => {
            let places = places(upper - lower);
            push_cell(text, &format!("{lower:.places$} to {upper:.places$}"));
        }
        Cell::AtMost(bound) => {
            let places = (2.0 - bound.log10().floor()).clamp(0.0, 6.0) as usize;
            push_cell(text, &format!("≤ {bound:.places$}"));
        }
        Cell::Empty => push_cell(text, "-"),
    }
}

/// Appends `value ± reach`, both rounded to the second significant digit of `reach`.
fn push_value(text: &mut String, value: f64, reach: f64) {
    let places = places(reach);
    let cell = if reach > 0.0 { format!("{value:.places$} ± {reach:.places$}") } else { format!("{value}") };
    push_cell(text, &cell);
}

/// Decimal places up to the second significant digit of a width.
fn places(width: f64) -> usize {
    if width > 0.0 && width.is_finite() { (1.0 - width.log10().floor()).clamp(0.0, 6.0) as usize } else { 0 }
}

fn push_cell(text: &mut String, cell: &str) {
    text.push_str(&format!(" {cell:>width$}", width = CELL - 1));
}

/// Replaces control characters in a name from a log, which could move a terminal's cursor or end
/// the line.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

fn cut(title: &str) -> String {
    let title = plain(title);
    if title.chars().count() < CELL { title } else { title.chars().take(CELL - 2).chain(['…']).collect() }
}
