//! Lines of releases, for people and for programs. All output is public.
//!
//! A [`LineWriter`] turns estimates into a table, JSON lines or CSV: a line for every view, key and
//! epoch. It writes the fields that identify the line; the [`Estimate`] writes the others.

mod style;
mod table;

use std::io::{self, Write};
use std::ops::Range;

use hushflow_mechanism::epochs::Schedule;
use hushflow_mechanism::view::SecondMomentSource;
use hushflow_mechanism::workload::Workload;
use hushflow_operators::RepeatPolicy;
use serde_json::{Map, Value, json};

use crate::estimates::{Cell, Estimate, EstimateField, EstimateRecord, SentRecords, ends};
use crate::follow::{EpochEstimates, KeyEstimate, Subject};
use crate::pipeline::EntityUnit;
use crate::publication::Publication;
use crate::state::HistoryStamp;
use crate::time::epoch_start;

use table::{TableLayout, TableRow, TableSizes};

pub use style::TableStyle;

/// Output format of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// An aligned table, for people.
    Table(TableStyle),
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
    /// Characters of the longest key.
    longest_key: usize,
    headed: bool,
}

impl LineWriter {
    /// Makes a writer for the estimates of a log.
    pub fn new(subject: &Subject, format: OutputFormat) -> Self {
        let parameters = subject.parameters();
        let names = parameters.named_keys().map(|key| parameters.key_name(key).chars().count());
        // Keys that are discovered later are unknown.
        let unknown = if parameters.discovery().is_some() { 12 } else { 0 };
        let longest_key = names.max().unwrap_or(0).max(unknown);
        LineWriter { subject: subject.clone(), format, longest_key, headed: false }
    }

    /// Writes the header again before the next line, of a table for a terminal of this width.
    pub fn restart(&mut self, width: usize) {
        self.headed = false;
        if let OutputFormat::Table(style) = &mut self.format {
            style.width = Some(width);
        }
    }

    /// Returns a name in [`TableStyle::columns`] that no cell of these estimates has, and the
    /// titles of the cells.
    pub fn unknown_column(&self, estimate: &KeyEstimate) -> Option<(&str, Vec<String>)> {
        let OutputFormat::Table(style) = &self.format else { return None };
        let titles = titles_of_cells(&*estimate.estimate);
        let named = [&titles[..], &FIXED_TITLES.map(String::from)].concat();
        Some((style.unknown(&named)?, titles))
    }

    /// Writes the lines of an epoch to `out`.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&mut self, epoch: &EpochEstimates, out: &mut impl Write) -> io::Result<()> {
        let mut line = |estimate| self.write_line(estimate, &epoch.stamp, out).map(drop);
        epoch.estimates.iter().try_for_each(&mut line)
    }

    /// Writes one line, of the release with this `stamp`, to `out`, and the header before the first
    /// line. Returns the number of bytes of the header.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_line(
        &mut self,
        estimate: &KeyEstimate,
        stamp: &HistoryStamp,
        out: &mut impl Write,
    ) -> io::Result<usize> {
        let heads = !std::mem::replace(&mut self.headed, true);
        let line =
            EstimateLine { longest_key: self.longest_key, ..EstimateLine::new(&self.subject, estimate) };
        let header = match &self.format {
            OutputFormat::Table(style) if heads => line.table_header(style) + "\n",
            OutputFormat::Csv if heads => line.csv_header() + "\n",
            _ => String::new(),
        };
        out.write_all(header.as_bytes())?;
        let text = match &self.format {
            OutputFormat::Table(style) => line.table(style),
            OutputFormat::Csv => line.csv(),
            OutputFormat::Json => line.json(stamp),
        };
        writeln!(out, "{text}")?;
        Ok(header.len())
    }
}

/// A line: the estimate of one key in one epoch, under one view.
struct EstimateLine<'a> {
    subject: &'a Subject,
    view: usize,
    epoch: u64,
    key: u32,
    estimate: &'a dyn Estimate,
    longest_key: usize,
}

impl<'a> EstimateLine<'a> {
    fn new(subject: &'a Subject, found: &'a KeyEstimate) -> Self {
        let KeyEstimate { view, epoch, key, estimate } = found;
        let estimate = &**estimate;
        EstimateLine { subject, view: *view, epoch: *epoch, key: *key, estimate, longest_key: 0 }
    }

    fn key(&self) -> &str {
        self.subject.parameters().key_name(self.key)
    }

    /// The first epoch of the estimated data: that of the window, or the epoch itself.
    fn first_epoch(&self) -> u64 {
        match &self.subject.publication {
            Publication::Windows(windows) => windows.span().first_epoch(self.epoch),
            Publication::Moments(_) => self.epoch,
        }
    }

    /// Start of the first epoch, RFC 3339; empty if epochs are counted.
    fn start(&self) -> String {
        match &self.subject.parameters().epochs.schedule {
            Schedule::ByTime(by) => epoch_start(by, self.first_epoch()),
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
            object.insert("count".into(), self.estimate.shown_count().into());
            object.insert("count_noise".into(), moments.noise.count.into());
            if let Some(interval) = self.estimate.count_interval() {
                object.insert("count_interval".into(), ends(Some(interval)));
            }
            if let Some(sent) = self.sent() {
                sent.json(&mut object);
            }
            if let SecondMomentSource::EpochSums(bias) = moments.source {
                object.insert("second_moments_of".into(), "epoch-sums".into());
                object.insert("squares".into(), json!(bias));
            }
        }
        self.estimate.json(&mut object);
        Value::Object(object).to_string()
    }

    fn csv_header(&self) -> String {
        let record = self.record();
        let titles = ["epoch", "start", "key", record.by].into_iter().map(String::from);
        csv_line(titles.chain(record.fields.iter().map(EstimateField::title)))
    }

    fn csv(&self) -> String {
        let record = self.record();
        let fields = [self.epoch.to_string(), self.start(), record.key, record.view];
        csv_line(fields.into_iter().chain(record.fields.iter().map(EstimateField::text)))
    }

    fn table_header(&self, style: &TableStyle) -> String {
        let header = self.titles();
        let layout = self.layout(style, &header);
        let sent = self.sent().map_or(String::new(), |_| format!("; {}", SentRecords::LEGEND));
        let legend = style.note(&format!("±: {}{sent}", plain(&self.estimate.legend())));
        let hidden = match layout.hidden {
            0 => String::new(),
            1 => style.note("1 more cell: choose with --columns"),
            hidden => style.note(&format!("{hidden} more cells: choose with --columns")),
        };
        format!("{legend}{hidden}{}", layout.titles(&header))
    }

    /// Returns the titles of a table's fields.
    fn titles(&self) -> TableRow<'static> {
        let view = self.subject.views.get(self.view);
        let sums = view.is_some_and(|view| view.workload == Workload::Prefix);
        let is_mean = |entity: &EntityUnit| entity.limits.repeat_policy == RepeatPolicy::Average;
        let counted = match self.subject.parameters().entity.as_ref().is_some_and(is_mean) {
            _ if !sums => "weight",
            true => "means",
            false => "records",
        };
        let count = self.estimate.moments().map(|_| counted.into());
        TableRow {
            epoch: "epoch",
            start: if self.start().is_empty() { "" } else { "from" },
            brief_start: "from",
            view: self.has_views().then_some("view"),
            key: "key",
            count,
            cells: titles_of_cells(self.estimate).iter().map(|title| plain(title)).collect(),
            quality: self.estimate.quality().map(|_| "quality"),
        }
    }

    fn layout<'s>(&self, style: &'s TableStyle, header: &TableRow<'_>) -> TableLayout<'s> {
        let sizes = TableSizes {
            horizon: self.subject.horizon(),
            longest_key: self.longest_key,
            // Local time has an offset.
            start: if self.start().ends_with('Z') { 16 } else { 22 },
            brief_start: self.brief_start().len(),
        };
        TableLayout::new(style, &header.cells, header, sizes)
    }

    /// Characters of the start of an epoch that distinguish epochs: its date if the first three
    /// start at the same time of day, and month to minute if these start at full minutes.
    fn brief_start(&self) -> Range<usize> {
        const ALL: Range<usize> = 0..22;
        let Schedule::ByTime(by) = &self.subject.parameters().epochs.schedule else { return ALL };
        let starts = [1, 2, 3].map(|epoch| epoch_start(by, epoch));
        let [first, second, third] = starts.each_ref().map(|start| start.get(11..19));
        let are_full = starts.iter().all(|start| start.get(16..19) == Some(":00"));
        match (first == second && second == third, are_full) {
            (true, _) => 0..10,
            (false, true) => 5..16,
            (false, false) => ALL,
        }
    }

    /// The sent records; `None` where the log does not release their number.
    fn sent(&self) -> Option<SentRecords> {
        let view = self.subject.views.get(self.view)?;
        SentRecords::of(self.estimate.moments()?, view.intervals.level)
    }

    /// Whether lines name their view.
    fn has_views(&self) -> bool {
        self.subject.views.len() > 1
    }

    fn table(&self, style: &TableStyle) -> String {
        let (epoch, start) = (self.epoch.to_string(), self.start());
        // `2013-01-05T05:00:00Z` without zeros at the end, and local time without seconds.
        let start = start
            .strip_suffix(":00Z")
            .map(String::from)
            .unwrap_or_else(|| start.replacen(":00:00", ":00", 1));
        let (view, key) = (plain(self.view()), plain(self.key()));
        let mut estimate = self.estimate.cells();
        if let (Ok(cells), Some(sent)) = (&mut estimate, self.sent()) {
            cells.push(sent.cell());
        }
        let row = TableRow {
            epoch: &epoch,
            start: &start,
            brief_start: start.get(self.brief_start()).unwrap_or(&start),
            view: self.has_views().then_some(&view),
            key: &key,
            count: self.estimate.count_cell().as_ref().map(cell),
            cells: estimate.iter().flatten().map(cell).collect(),
            quality: self.estimate.quality(),
        };
        let reason = estimate.err().map(|reason| plain(&reason));
        self.layout(style, &self.titles()).line(&row, reason.as_deref())
    }
}

/// Titles of the fields that every line has, whichever cells are chosen.
const FIXED_TITLES: [&str; 8] = ["epoch", "from", "view", "key", "records", "means", "weight", "quality"];

fn titles_of_cells(estimate: &dyn Estimate) -> Vec<String> {
    let has_sent = estimate.moments().is_some_and(|moments| moments.sent().is_some());
    let sent = has_sent.then(|| SentRecords::TITLE.to_owned());
    estimate.titles().into_iter().chain(sent).collect()
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

/// Formats a cell of a table: a value and its reach to the second significant digit of the reach.
fn cell(cell: &Cell) -> String {
    match *cell {
        Cell::Value(value, reach) => {
            let decimals = decimals(reach);
            match reach > 0.0 {
                true => format!("{value:.decimals$} ± {reach:.decimals$}"),
                // At most four decimal places: sums weighted by a workload may have endless ones.
                false => {
                    let text = format!("{value:.4}");
                    text.trim_end_matches('0').trim_end_matches('.').into()
                }
            }
        }
        Cell::Plain(value) => format!("{value:.4}"),
        Cell::Range(lower, f64::INFINITY) => format!("≥ {}", bound(lower)),
        Cell::Range(f64::NEG_INFINITY, upper) => format!("≤ {}", bound(upper)),
        Cell::Range(lower, upper) => {
            let decimals = decimals(upper - lower);
            format!("{lower:.decimals$} to {upper:.decimals$}")
        }
        Cell::AtMost(upper) => format!("≤ {}", bound(upper)),
        Cell::Word(word) => word.into(),
        Cell::Empty => "-".into(),
    }
}

/// Formats the only finite end of an interval, to three significant digits.
fn bound(end: f64) -> String {
    let decimals = (2.0 - end.abs().log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{end:.decimals$}")
}

/// Decimal places up to the second significant digit of a width.
fn decimals(width: f64) -> usize {
    if width > 0.0 && width.is_finite() { (1.0 - width.log10().floor()).clamp(0.0, 6.0) as usize } else { 0 }
}

/// Replaces control characters in a name from a log, which could move a terminal's cursor or end
/// the line.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Returns the records of an epoch, in the order of its lines.
pub fn records(subject: &Subject, epoch: &EpochEstimates) -> Vec<EstimateRecord> {
    let record = |estimate: &KeyEstimate| EstimateLine::new(subject, estimate).record();
    epoch.estimates.iter().map(record).collect()
}

impl EstimateLine<'_> {
    fn record(&self) -> EstimateRecord {
        let (by, view) = match &self.subject.publication {
            Publication::Windows(windows) => ("estimator", windows.estimator().to_string()),
            Publication::Moments(_) => ("view", self.view().into()),
        };
        let start = match &self.subject.parameters().epochs.schedule {
            Schedule::ByTime(schedule) => schedule.start_of(self.first_epoch()),
            Schedule::ByCount(_) => None,
        };
        let shown = self.estimate.shown_count();
        let count = self.estimate.moments().map(|moments| shown.map(|count| (count, moments.noise.count)));
        let counts = count.into_iter().flat_map(|count| EstimateField::noisy("count", &[], count));
        let sent = self.sent();
        let sent = sent.iter().flat_map(SentRecords::fields);
        let fields = counts.chain(sent).chain(self.estimate.fields()).collect();
        let private = self.subject.publication.is_private();
        EstimateRecord { epoch: self.epoch, start, key: self.key().into(), by, view, private, fields }
    }
}
