//! Charts of an estimate on the page: groups of series, and their readings.
//!
//! A series is located twice: by a path in the JSON lines that readers get, and by its index in
//! [`Estimate::reading`](super::Estimate::reading), which needs no JSON. `tests/system/web`
//! compares both for every estimator.

use hushflow_mechanism::estimate::intervals::Interval;
use serde::Serialize;
use serde_json::Value;

/// The page's plot: groups of charts, and a matrix of correlations if the lines have one.
#[derive(Clone, Debug, Serialize)]
pub struct Plot {
    /// Target of the confidence bands.
    pub band: String,
    /// The groups, the default one first.
    pub groups: Vec<ChartGroup>,
    /// Whether lines have `covariance` and `correlation` of all pairs of columns. Then
    /// [`CORRELATION`] is a group too, whose series are the pairs, the smaller index first.
    pub matrix: bool,
}

/// Name of the group of correlations of pairs.
pub const CORRELATION: &str = "correlation";

/// Series of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct ChartGroup {
    /// Name in requests.
    pub name: &'static str,
    /// Title of its charts.
    pub title: String,
    /// The series, one chart for each.
    pub series: Vec<ChartSeries>,
}

/// One number of each line. Its path in a JSON line is a list of names and positions.
#[derive(Clone, Debug, Serialize)]
pub struct ChartSeries {
    /// Name of the chart.
    pub name: String,
    /// Path of the value.
    pub value: Value,
    /// Path of its interval or its noise.
    #[serde(flatten)]
    pub band: Band,
}

/// The uncertainty of a series.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Band {
    /// Path of `[lower, upper]`.
    Interval(Value),
    /// Path of the standard deviation.
    Noise(Value),
}

/// A number of an estimate and its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// The number, if there is one.
    pub value: Option<f64>,
    /// Its uncertainty.
    pub spread: Uncertainty,
}

/// The uncertainty of a reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Uncertainty {
    /// Its confidence interval; `None` if there is no interval.
    Interval(Option<Interval>),
    /// The standard deviation of its noise.
    Noise(f64),
}

impl Reading {
    pub(super) fn within(value: Option<f64>, interval: Option<Interval>) -> Self {
        Reading { value, spread: Uncertainty::Interval(interval) }
    }

    pub(super) fn with_noise(value: Option<f64>, noise: f64) -> Self {
        Reading { value, spread: Uncertainty::Noise(noise) }
    }

    /// Returns the finite ends of its interval. If the noise is known, the interval extends by
    /// `reach` standard deviations on either side.
    pub fn ends(&self, reach: f64) -> [Option<f64>; 2] {
        let ends = match (self.spread, self.value) {
            (Uncertainty::Interval(interval), _) => interval.map(|interval| [interval.lower, interval.upper]),
            (Uncertainty::Noise(noise), value) => {
                value.map(|value| [value - reach * noise, value + reach * noise])
            }
        };
        ends.map_or([None; 2], |ends| ends.map(|end| Some(end).filter(|end| end.is_finite())))
    }
}
