//! Lines of releases, for people and for programs. All output is public.
//!
//! A [`Writer`] turns estimates into a table, JSON lines or CSV. The noise level is beside every
//! number: its standard deviation, exact for moments. For means and covariances it is exact if
//! counts are public, and else to first order in the count's noise. Means, covariances and derived
//! numbers also have confidence intervals, and every line of a density says whether it shows the
//! data or their noise.

mod csv;
mod json;
mod table;
mod windows;

use std::io::{self, Write};

use hushflow_mechanism::epochs::Schedule;
use hushflow_mechanism::estimate::density::{Density, DensityError, Quality};
use hushflow_mechanism::estimate::intervals::{Interval, Intervals};
use hushflow_mechanism::moments::SecondMoment;
use hushflow_mechanism::view::{Moments, SecondMomentSource};
use hushflow_operators::Estimated;

pub use csv::csv_line;
use windows::WindowWriter;

use crate::follow::{Epoch, Found, Shown, Subject};
use crate::pipeline::{Estimate, View};
use crate::publication::{MomentPublication, Publication};
use crate::state::Stamp;

/// Output format of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
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
pub struct Writer {
    lines: Lines,
    format: Format,
    headed: bool,
}

enum Lines {
    /// With several views each line names its view.
    Moments(MomentPublication, Vec<View>),
    Windows(WindowWriter),
}

impl Writer {
    /// Makes a writer for what is followed in a log.
    pub fn new(subject: &Subject, format: Format) -> Self {
        let lines = match subject.publication.clone() {
            Publication::Moments(moments) => Lines::Moments(moments, subject.views.clone()),
            Publication::Windows(windows) => Lines::Windows(WindowWriter::new(windows, format)),
        };
        Writer { lines, format, headed: false }
    }

    /// Writes the lines of an epoch to `out`.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&mut self, epoch: &Epoch, out: &mut impl Write) -> io::Result<()> {
        epoch.shown.iter().try_for_each(|shown| self.write_line(shown, &epoch.stamp, out))
    }

    /// Writes one line, of the release with this `stamp`, to `out`, and the header before the first
    /// line.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_line(&mut self, shown: &Shown, stamp: &Stamp, out: &mut impl Write) -> io::Result<()> {
        let headed = std::mem::replace(&mut self.headed, true);
        match (&self.lines, &shown.found) {
            (Lines::Windows(windows), Found::Window(found)) => {
                windows.write((shown, stamp), found, !headed, out)
            }
            (Lines::Moments(publication, views), Found::Moments(estimated)) => {
                let view = &views[shown.view];
                let named = views.len() > 1;
                write_moments((publication, view, named), (estimated, stamp), (self.format, !headed), out)
            }
            _ => Ok(()),
        }
    }
}

fn write_moments(
    (publication, view, named): (&MomentPublication, &View, bool),
    (estimated, stamp): (&Estimated, &Stamp),
    (format, heads): (Format, bool),
    out: &mut impl Write,
) -> io::Result<()> {
    let density = match (&estimated.density, view.estimate) {
        (_, Estimate::Moments) => None,
        (Ok(density), Estimate::Gaussian) => Some(publication.to_units(density)),
        (Err(error), Estimate::Gaussian) => Some(Err(*error)),
    };
    let moments = &estimated.moments;
    let confidence = view.intervals.confidence(&view.workload, moments.epoch);
    let noisy = moments.noisy();
    let line = Line {
        publication,
        view,
        named,
        moments,
        stamp,
        density: density.as_ref().map(Result::as_ref),
        intervals: noisy.intervals(confidence).ok(),
    };
    match format {
        Format::Table if heads => writeln!(out, "{}", table::header(&line))?,
        Format::Csv if heads => writeln!(out, "{}", csv::header(&line))?,
        _ => {}
    }
    let text = match format {
        Format::Table => table::line(&line),
        Format::Csv => csv::line(&line),
        Format::Json => json::line(&line),
    };
    writeln!(out, "{text}")
}

struct Line<'a> {
    publication: &'a MomentPublication,
    view: &'a View,
    named: bool,
    moments: &'a Moments,
    stamp: &'a Stamp,
    /// In the units of the columns; `None` for a view of moments.
    density: Option<Result<&'a Density, &'a DensityError>>,
    /// In centred and scaled coordinates; `None` without a density.
    intervals: Option<Intervals<'a>>,
}

impl Line<'_> {
    fn key(&self) -> &str {
        self.publication.key_name(self.moments.key)
    }

    fn columns(&self) -> impl Iterator<Item = &str> {
        self.publication.parameters().columns.iter().map(|column| column.name.as_str())
    }

    /// Pairs of columns whose second moment is known, in the order of moments.
    fn pairs(&self) -> Vec<(usize, usize)> {
        self.moments.layout.second_entries().collect()
    }

    fn is_full(&self) -> bool {
        self.moments.layout.second == SecondMoment::Full
    }

    /// Whether second moments are squares of epoch sums, not of records.
    fn squares_epoch_sums(&self) -> bool {
        self.moments.source != SecondMomentSource::Released
    }

    /// Half the width of a column's bounds, which is its unit.
    fn scale(&self, column: usize) -> f64 {
        self.publication.clipper().half_widths()[column]
    }

    fn mean_interval(&self, column: usize) -> Option<Interval> {
        let centre = self.publication.clipper().centres()[column];
        Some(self.intervals.as_ref()?.mean(column)?.to_units(self.scale(column), centre))
    }

    fn covariance_interval(&self, (i, j): (usize, usize)) -> Option<Interval> {
        Some(self.intervals.as_ref()?.covariance(i, j)?.to_units(self.scale(i) * self.scale(j), 0.0))
    }

    /// `None` if a variance does not exceed its noise.
    fn correlation(&self, (i, j): (usize, usize)) -> Option<(f64, Interval)> {
        self.intervals.as_ref()?.correlation(i, j)
    }

    /// Start of the epoch, RFC 3339; empty if epochs are counted.
    fn start(&self) -> String {
        start_of(&self.publication.parameters().epochs.schedule, self.moments.epoch)
    }

    /// One word: whether the numbers show the data or their noise.
    fn quality(&self) -> &'static str {
        self.density.map_or("good", quality)
    }
}

/// Returns one word: whether a density shows the data or their noise, or why there is none.
pub fn quality(density: Result<&Density, &DensityError>) -> &'static str {
    match density {
        Ok(Density { quality: Quality::Good, .. }) => "good",
        Ok(_) => "noise-dominated",
        Err(DensityError::TooFewRecords { .. }) => "too-few-records",
        Err(DensityError::NoSecondMoments) => "no-second-moments",
        Err(_) => "out-of-range",
    }
}

/// Start of an epoch, RFC 3339; empty if epochs are counted.
fn start_of(schedule: &Schedule, epoch: u64) -> String {
    match schedule {
        Schedule::ByTime(by) => time(by.start, by.length, epoch),
        Schedule::ByCount(_) => String::new(),
    }
}

fn time(start: i64, length: i64, epoch: u64) -> String {
    let offset = i128::from(length) * i128::from(epoch - 1);
    i64::try_from(i128::from(start) + offset)
        .ok()
        .and_then(|micros| jiff::Timestamp::from_microsecond(micros).ok())
        .map_or_else(String::new, |timestamp| timestamp.to_string())
}
