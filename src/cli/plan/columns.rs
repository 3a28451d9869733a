//! The forecast of a strategy in the units of the columns of a pipeline file.

use hushflow::estimates::Intervals;
use hushflow::pipeline::Column;
use serde::Serialize;

use super::super::output::{number, table};
use super::super::thousands;
use super::forecast::{EstimateNoise, Forecast};

/// Expected half-widths of the default intervals of a column, near the middle of its bounds.
#[derive(Debug, Serialize)]
pub(super) struct ColumnForecast {
    column: String,
    mean: EstimateNoise,
    /// Absent where releases hold no second moments.
    #[serde(skip_serializing_if = "Option::is_none")]
    variance: Option<EstimateNoise>,
}

/// The forecasts of all columns.
#[derive(Debug, Serialize)]
pub(super) struct ColumnForecasts {
    strategy: String,
    /// Confidence level of the intervals.
    level: f64,
    records_per_epoch: f64,
    columns: Vec<ColumnForecast>,
    /// Whether single keys have bounds of their own.
    #[serde(skip)]
    has_key_bounds: bool,
    #[serde(skip)]
    horizon: u64,
}

impl ColumnForecasts {
    /// Returns `None` where the records of an epoch are not known.
    pub(super) fn new(forecast: &Forecast, columns: &[Column]) -> Option<Self> {
        let records_per_epoch = forecast.problem.records_per_epoch?;
        let mean = forecast.noise.mean_noise?;
        let intervals = Intervals::default();
        let column = |column: &Column| {
            let half_width = (column.upper - column.lower) / 2.0;
            let reach = intervals.count_reach() * half_width;
            let variance = forecast.noise.covariance_noise.map(|noise| noise.scaled(reach * half_width));
            ColumnForecast { column: column.name.clone(), mean: mean.scaled(reach), variance }
        };
        Some(Self {
            strategy: forecast.strategy.to_string(),
            level: intervals.level,
            records_per_epoch,
            columns: columns.iter().map(column).collect(),
            has_key_bounds: columns.iter().any(|column| !column.bounds.is_empty()),
            horizon: forecast.problem.horizon,
        })
    }

    /// Formats a line for each column.
    pub(super) fn text(&self) -> String {
        let (last, level) = (thousands(self.horizon), self.level * 100.0);
        let titles = [
            "column",
            "mean, epoch 1",
            &format!("epoch {last}"),
            "variance, epoch 1",
            &format!("epoch {last}"),
        ];
        let reach = |noise: f64| format!("± {}", number(noise));
        let row = |forecast: &ColumnForecast| {
            let ColumnForecast { column, mean, variance } = forecast;
            let variance = variance.map(|variance| [variance.first_epoch, variance.last_epoch]);
            let noise = [mean.first_epoch, mean.last_epoch].into_iter().chain(variance.into_iter().flatten());
            [column.clone()].into_iter().chain(noise.map(reach)).collect()
        };
        let shown = if self.columns.iter().any(|column| column.variance.is_some()) { 5 } else { 3 };
        let titles = titles[..shown].iter().map(|title| String::from(*title)).collect();
        let rows: Vec<Vec<String>> = [titles].into_iter().chain(self.columns.iter().map(row)).collect();
        let others = if self.has_key_bounds { ", for keys without bounds of their own" } else { "" };
        format!(
            "With {}, {} records of a key per epoch and values near the middle of the bounds{others}:\n\
             half-widths of {level} % intervals in the units of the columns, for the noise\n{}",
            self.strategy,
            number(self.records_per_epoch),
            table(&rows),
        )
    }
}
