//! Estimators compute the contents of a view from the moments of a key. This is post-processing of
//! releases and costs no privacy.
//!
//! An estimator is one file here and one line of [`ESTIMATORS`]. The file holds its name, its
//! parameters in `[[views]]`, its flag of `hushflow tail`, its computation, its fields in JSON and
//! CSV, its columns in a table and its plot on the page. All other code finds estimators by the
//! table: pipeline files, `tail`, followers, lines, sinks and pages.

mod adam;
mod by_column;
mod cell;
mod chart;
mod fields;
mod gaussian;
mod histogram;
mod moments;
mod pca;
mod quantiles;
mod regression;
mod sent;
mod view;

use std::fmt;
use std::sync::Arc;

use hushflow_mechanism::estimate::density::{Density, DensityError};
use hushflow_mechanism::estimate::intervals::Interval;
use hushflow_mechanism::mechanism::Method;
use hushflow_mechanism::moments::SecondMoment;
use hushflow_mechanism::view::Moments;
use hushflow_mechanism::workload::{Decay, Workload};
use serde_json::{Map, Value};

use crate::document::definition::{FieldDefinition, FieldType, Presence, ValueForm};
use crate::document::{Document, Field, Section};
use crate::histogram::Histogram;
use crate::spelling::did_you_mean;

pub use cell::Cell;
pub use chart::{Band, CORRELATION, ChartGroup, ChartSeries, Plot, Reading, Uncertainty};
pub use fields::{EstimateField, EstimateRecord, FieldPart, FieldValue, StatisticRow};
pub(crate) use gaussian::ends;
pub use gaussian::quality;
pub use sent::SentRecords;
pub use view::{EstimateView, Intervals};
pub(crate) use view::{VIEW, all_workloads, schedules, views};

/// All estimators. The default of a log is the first one without a flag of its own that the log
/// supports.
pub static ESTIMATORS: &[EstimatorKind] = &[
    gaussian::ESTIMATOR,
    moments::ESTIMATOR,
    adam::ESTIMATOR,
    regression::ESTIMATOR,
    pca::ESTIMATOR,
    histogram::ESTIMATOR,
    quantiles::ESTIMATOR,
];

/// Bounds of every correlation.
const CORRELATIONS: Interval = Interval { lower: -1.0, upper: 1.0 };

/// Bounds of every count and of every standard deviation.
const COUNTS: Interval = Interval { lower: 0.0, upper: f64::INFINITY };

/// A kind of estimator.
pub struct EstimatorKind {
    /// Name in pipeline files, and after `tail --view` if it has no flag of its own.
    pub name: &'static str,
    /// Help text of its name.
    pub help: &'static str,
    /// Second moments of records that the estimator needs.
    needs: SecondMoment,
    /// Histograms that the estimator needs.
    histograms: HistogramNeed,
    /// Whether the estimator sets the workloads of its views itself ([`ViewEstimator::decays`]).
    own_workloads: bool,
    /// The flag of `tail` that gives all its parameters; `None` if `tail --view` names it.
    pub flag: Option<Flag>,
    /// Its parameters in `[[views]]`.
    pub(crate) fields: &'static [FieldDefinition],
    /// Reads its parameters from a section of `[[views]]`. If it returns `None`, it has reported
    /// why.
    read: fn(&Section<'_>, &LogFacts<'_>) -> Option<Arc<dyn ViewEstimator>>,
}

/// The histograms that an estimator needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HistogramNeed {
    None,
    Any,
    /// A histogram of a numeric column.
    Numeric,
}

/// A flag of `tail`.
pub struct Flag {
    /// Name without dashes.
    pub name: &'static str,
    /// Name of its value.
    pub value: &'static str,
    /// Help text.
    pub help: &'static str,
    /// Converts the value to the fields of `[[views]]`.
    fields: fn(&str) -> Result<toml::Table, String>,
}

/// Facts about a log that are known before its first release.
#[derive(Clone, Debug)]
pub struct LogFacts<'a> {
    /// Names of the columns; `None` if the pipeline file has none that can be read.
    pub columns: Option<Vec<&'a str>>,
    /// Second moments of records that the releases determine.
    pub second_moments: SecondMoment,
    /// The method that made the moments private.
    pub method: Method,
    /// Whether there is more than one series.
    pub keyed: bool,
    /// Whether keys have bounds of their own, so that sums over keys have no unit.
    pub key_bounds: bool,
    /// Whether rows count for the columns that they have (`missing = "by-column"`).
    pub by_column: bool,
    /// Histograms in addition to the moments.
    pub histograms: &'a [Histogram],
    /// Number of epochs; 0 if it is unknown.
    pub epochs: u64,
}

#[cfg(test)]
impl LogFacts<'static> {
    /// A log of one series with these columns.
    fn plain(columns: &[&'static str], second_moments: SecondMoment) -> Self {
        let (columns, method) = (Some(columns.to_vec()), Method::Jme);
        LogFacts {
            columns,
            second_moments,
            method,
            keyed: false,
            key_bounds: false,
            by_column: false,
            histograms: &[],
            epochs: 0,
        }
    }
}

impl LogFacts<'_> {
    /// Checks that a workload weighs every epoch.
    ///
    /// # Errors
    /// A matrix has too few rows.
    pub fn check_workload(&self, workload: &Workload) -> Result<(), String> {
        match workload.horizon() {
            Some(rows) if rows < self.epochs => Err(format!(
                "{workload} has {rows} rows, expected one for each of the {} epochs",
                self.epochs
            )),
            _ => Ok(()),
        }
    }

    /// Returns the position of a column, or reports that there is no such column. If the columns
    /// are unknown, returns 0 and reports nothing.
    fn column(&self, name: &Field<'_, &str>) -> Option<usize> {
        let Some(columns) = &self.columns else { return Some(0) };
        let found = columns.iter().position(|column| *column == name.value);
        if found.is_none() {
            let expected = columns.join(", ");
            let meant = did_you_mean(name.value, columns);
            name.report(format!("there is no column {:?}: expected one of {expected}{meant}", name.value));
        }
        found
    }
}

/// Whether the value of a parameter is a text; that of others is a number.
fn is_text(field: &FieldDefinition) -> bool {
    matches!(field.value, FieldType::Text)
}

impl EstimatorKind {
    /// Returns the default estimator of a log.
    pub fn default_of(log: &LogFacts<'_>) -> &'static Self {
        let fits = |estimator: &&Self| estimator.flag.is_none() && estimator.lacks(log).is_none();
        ESTIMATORS.iter().find(fits).unwrap_or(&moments::ESTIMATOR)
    }

    fn form(&self) -> ValueForm {
        ValueForm { usage: self.name.into(), about: self.help }
    }

    /// Returns what the log lacks for this estimator and the consequence; `None` if the log has all
    /// that is needed.
    pub(crate) fn lacks(&self, log: &LogFacts<'_>) -> Option<(&'static str, &'static str)> {
        let numeric = log.histograms.iter().any(Histogram::is_numeric);
        match self.histograms {
            HistogramNeed::Any if log.histograms.is_empty() => {
                return Some(("histograms", "so there are no counts of bins"));
            }
            HistogramNeed::Numeric if !numeric => {
                return Some(("histograms of numbers", "so there are no quantiles"));
            }
            _ => {}
        }
        match (self.needs, log.second_moments) {
            (SecondMoment::None, _) | (_, SecondMoment::Full) => None,
            (SecondMoment::Diagonal, SecondMoment::Diagonal) => None,
            (_, SecondMoment::None) => {
                Some(("second moments of records", "so there is no covariance and no square"))
            }
            (SecondMoment::Full, SecondMoment::Diagonal) => {
                Some(("second moments of pairs of columns", "so there is no covariance of two columns"))
            }
        }
    }

    /// Returns the name of each parameter that has a flag of `tail` of its own, with the name of
    /// its value and the help text.
    pub fn parameters(&self) -> impl Iterator<Item = (&'static str, &'static str, String)> {
        let fields = if self.flag.is_some() { &[] } else { self.fields };
        fields.iter().map(|field| {
            let without = match field.presence {
                Presence::Default(value) => format!(" [default: {value}]"),
                _ => String::new(),
            };
            let about = field.about.trim_end_matches('.');
            let value = if is_text(field) { "NAME" } else { "NUMBER" };
            (field.key, value, format!("For --view {}: {about}{without}", self.name))
        })
    }

    /// Makes the estimator from the value of its flag, or without parameters.
    ///
    /// # Errors
    /// An error in the value, or what the log lacks.
    pub fn from_flag(&self, value: &str, log: &LogFacts<'_>) -> Result<Arc<dyn ViewEstimator>, String> {
        let fields = self.flag.as_ref().map(|flag| (flag.fields)(value)).transpose()?;
        self.with_fields(fields.unwrap_or_default(), log)
    }

    /// Makes the estimator from some of its [parameters](Self::parameters), as texts. The others
    /// have their defaults.
    ///
    /// # Errors
    /// An invalid parameter, or what the log lacks.
    pub fn from_texts(
        &self,
        parameters: &[(&str, String)],
        log: &LogFacts<'_>,
    ) -> Result<Arc<dyn ViewEstimator>, String> {
        let value = |(key, text): &(&str, String)| {
            let value = match self.fields.iter().any(|field| field.key == *key && is_text(field)) {
                true => toml::Value::from(text.as_str()),
                false => {
                    let number = text.parse::<f64>();
                    number.map_err(|_| format!("{key}: found {text:?}, expected a number"))?.into()
                }
            };
            Ok::<_, String>(((*key).into(), value))
        };
        self.with_fields(parameters.iter().map(value).collect::<Result<_, _>>()?, log)
    }

    /// Makes the estimator from its fields of `[[views]]`, as a JSON object.
    ///
    /// # Errors
    /// An error in a field, or what the log lacks.
    pub fn from_json(&self, fields: &str, log: &LogFacts<'_>) -> Result<Arc<dyn ViewEstimator>, String> {
        self.with_fields(serde_json::from_str(fields).map_err(|error| error.to_string())?, log)
    }

    /// Makes the estimator from its fields of `[[views]]`, if the log has what it needs.
    fn with_fields(&self, fields: toml::Table, log: &LogFacts<'_>) -> Result<Arc<dyn ViewEstimator>, String> {
        if let Some((what, so)) = self.lacks(log) {
            let remedy = match self.histograms {
                HistogramNeed::None => "choose --view moments",
                _ => "they need [[histograms]] in the pipeline file of a new run",
            };
            return Err(format!("this log has no {what}, {so}: {remedy}"));
        }
        let text = fields.to_string();
        let document = Document::new(&text);
        let parsed = document.parse();
        let estimator = parsed.as_ref().and_then(|table| {
            let section = Section::root(&document, table, &VIEW);
            let estimator = (self.read)(&section, log);
            section.finish(estimator.is_some());
            estimator
        });
        let problems = document.into_problems().into_iter();
        let problems: Vec<_> =
            problems.map(|problem| format!("{}: {}", problem.field, problem.message)).collect();
        estimator.filter(|_| problems.is_empty()).ok_or_else(|| problems.join("; "))
    }
}

impl fmt::Debug for EstimatorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// An estimator with its parameters, for views.
pub trait ViewEstimator: fmt::Debug + Send + Sync {
    /// Name of the estimator.
    fn name(&self) -> &'static str;

    /// Input of its estimates.
    fn averages(&self) -> Averages<'_>;

    /// The decays of its own exponential averages of first and second moments; `None` if the view
    /// names one workload for both.
    fn decays(&self) -> Option<[Decay; 2]> {
        match self.averages() {
            Averages::One(_) => None,
            Averages::Two(decays, _) => Some(decays),
        }
    }

    /// Its parameter in the form of its [flag](EstimatorKind::flag), such as `y~x1+x2`, if it has
    /// one.
    fn parameter(&self, _columns: &[String]) -> Option<String> {
        None
    }

    /// Returns the plot of its estimates for the page.
    fn plot(&self, scaled: &ScaledView) -> Plot;

    /// Whether its estimates have [densities](Estimate::density).
    fn has_densities(&self) -> bool {
        false
    }
}

/// The averages of the records that an estimator needs. An estimator can be called only with all of
/// them.
pub enum Averages<'a> {
    /// The average of the view's workload.
    One(&'a dyn OneAverage),
    /// Exponential averages with these decays, of first and second moments.
    Two([Decay; 2], &'a dyn TwoAverages),
}

/// Estimates from one average.
pub trait OneAverage {
    /// Computes the estimate of one key at one epoch.
    fn estimate(&self, moments: Moments, scaled: &Arc<ScaledView>) -> Arc<dyn Estimate>;
}

/// Estimates from two averages.
pub trait TwoAverages {
    /// Computes the estimate of one key at one epoch.
    fn estimate(
        &self,
        moments: Moments,
        second: SecondAverage,
        scaled: &Arc<ScaledView>,
    ) -> Arc<dyn Estimate>;
}

/// Moments of the same key and epoch under the second of two averages.
#[derive(Clone, Debug)]
pub struct SecondAverage {
    /// The moments.
    pub moments: Moments,
    /// Correlation of the noise of counts and first moments under both averages.
    pub correlation: f64,
}

/// A view, with the names and scales of the columns of its log.
#[derive(Debug)]
pub struct ScaledView {
    /// The view.
    pub view: EstimateView,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Scales of the columns: an entry for each key if keys have bounds of their own, otherwise
    /// one entry for all.
    pub key_scales: Vec<ColumnScales>,
    /// The distance between the indicators of a present and a missing value, if values may be
    /// missing one by one
    /// ([`ColumnwiseMoments`](hushflow_mechanism::estimate::by_column::ColumnwiseMoments)).
    pub indicator_step: Option<f64>,
    /// Whether keys have bounds of their own, for each column; false after the last entry.
    pub keyed_bounds: Vec<bool>,
    /// The histograms, whose bins follow the moments in this order.
    pub histograms: Vec<Histogram>,
    /// Whether each record that counts has a bin in every histogram of one of `columns`.
    pub bins_every_record: bool,
}

/// The scaled unit of each column in the column's own unit.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnScales {
    /// Middle of each column's bounds.
    pub centres: Vec<f64>,
    /// Half the width of each column's bounds.
    pub half_widths: Vec<f64>,
}

impl ColumnScales {
    /// Returns the bounds of the means of a column.
    fn means(&self, column: usize) -> Interval {
        Interval { lower: -1.0, upper: 1.0 }.to_units(self.half_widths[column], self.centres[column])
    }

    /// Returns the bounds of the standard deviations of a column.
    fn deviations(&self, column: usize) -> Interval {
        Interval { lower: 0.0, upper: self.half_widths[column] }
    }
}

impl ScaledView {
    /// Returns the scales of a key, or those of all keys together.
    ///
    /// # Panics
    /// Without any scales.
    pub fn scales(&self, key: u32) -> &ColumnScales {
        let own = usize::try_from(key).ok().and_then(|key| self.key_scales.get(key));
        own.unwrap_or(&self.key_scales[0])
    }
}

/// The estimate of one key at one epoch, and its output formats. Unavailable numbers are null in
/// JSON and empty in CSV.
pub trait Estimate: fmt::Debug + Send + Sync {
    /// The moments; `None` if the log holds estimates of windows.
    fn moments(&self) -> Option<&Moments> {
        None
    }

    /// The density in the units of the columns, for estimates that have one.
    fn density(&self) -> Option<Result<&Density, &DensityError>> {
        None
    }

    /// Adds the fields of a JSON line.
    fn json(&self, object: &mut Map<String, Value>);

    /// The fields of a CSV line or a table. Their names do not depend on their values.
    fn fields(&self) -> Vec<EstimateField>;

    /// The meaning of ± in a table.
    fn legend(&self) -> String {
        "standard deviation of the noise".into()
    }

    /// Titles of the cells of a table.
    fn titles(&self) -> Vec<String>;

    /// Cells of a table, or why there is no estimate.
    fn cells(&self) -> Result<Vec<Cell>, String>;

    /// The number that the chart of a group at this index draws, and its interval: the same that
    /// [`plot`](ViewEstimator::plot) locates in a JSON line.
    fn reading(&self, group: &str, index: usize) -> Reading {
        let _ = (group, index);
        Reading::within(None, None)
    }

    /// One word at the end of a table line: how large the noise is, or why there is no estimate.
    fn quality(&self) -> Option<&'static str> {
        None
    }

    /// The interval of the count, for estimates that have one.
    fn count_interval(&self) -> Option<Interval> {
        None
    }

    /// The count that every output shows, moved to the nearest end if it is outside its interval;
    /// `None` if the log holds estimates of windows.
    fn shown_count(&self) -> Option<f64> {
        let count = self.moments()?.count();
        Some(self.count_interval().map_or(count, |interval| interval.nearest(count)))
    }

    /// The cell of the count.
    fn count_cell(&self) -> Option<Cell> {
        let (count, noise) = (self.shown_count()?, self.moments()?.noise.count);
        Some(match self.count_interval() {
            Some(interval) => Cell::of_interval(count, interval, COUNTS),
            None => Cell::Value(count, noise),
        })
    }
}

/// Returns the pairs of different columns, the smaller index first.
pub(crate) fn pairs(columns: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..columns).flat_map(move |first| (first + 1..columns).map(move |second| (first, second)))
}
