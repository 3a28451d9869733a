//! The forecast of a strategy in the units of the columns of a pipeline file.

use std::str::FromStr;

use hushflow::estimates::Intervals;
use hushflow::pipeline::{Column, Pipeline, PublicParameters};
use hushflow::spelling::did_you_mean;
use serde::Serialize;

use super::super::output::{SearchStatus, fitting_table, number};
use super::super::{CliError, thousands};
use super::forecast::Forecast;
use super::noise::EstimateNoise;
use super::{Objective, PlanArguments, forecast_of_file};

/// Printed instead of a half-width that is larger than the distance to the bounds.
const UNINFORMATIVE: &str = "all";

/// Expected half-widths of the default intervals of a column, near the middle of its bounds.
#[derive(Debug, Serialize)]
pub(super) struct ColumnForecast {
    column: String,
    /// The key with these bounds, if it has its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Share of the records without a value, if rows count for the columns that they have.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing_share: Option<f64>,
    mean: EstimateNoise,
    /// Absent if releases hold no second moments.
    #[serde(skip_serializing_if = "Option::is_none")]
    variance: Option<EstimateNoise>,
    /// Half the distance between the bounds.
    #[serde(skip)]
    half_width: f64,
}

impl ColumnForecast {
    fn name(&self) -> String {
        let ColumnForecast { column, key, .. } = self;
        key.as_ref().map_or_else(|| column.clone(), |key| format!("{column} of {key}"))
    }
}

/// The share of the records that lack a value of a column, as an argument.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::cli) struct MissingShare {
    pub(in crate::cli) column: String,
    pub(in crate::cli) share: f64,
}

impl FromStr for MissingShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            format!("found {text:?}, expected COLUMN=SHARE with a share from 0 and below 1, such as age=0.3")
        };
        let (column, share) = text.rsplit_once('=').ok_or_else(expected)?;
        let share =
            share.trim().parse().ok().filter(|share| (0.0..1.0).contains(share)).ok_or_else(expected)?;
        Ok(MissingShare { column: column.trim().into(), share })
    }
}

#[derive(Debug, Serialize)]
pub(super) struct ColumnForecasts {
    strategy: String,
    /// Confidence level of the intervals.
    level: f64,
    records_per_epoch: f64,
    columns: Vec<ColumnForecast>,
    #[serde(skip)]
    horizon: u64,
    /// Factor by which the interval of a mean is wider at an edge of the bounds.
    #[serde(skip)]
    at_edge: f64,
}

impl ColumnForecasts {
    /// Returns `None` if the number of records per epoch is unknown.
    pub(super) fn new(forecast: &Forecast, file: &Pipeline, missing: &[MissingShare]) -> Option<Self> {
        let by_column = forecast.problem.by_column;
        let records_per_epoch = forecast.problem.records_per_epoch?;
        let mean = forecast.noise.mean_noise?;
        let intervals = Intervals::default();
        let between = |column: &Column, key: Option<&String>, (lower, upper): (f64, f64)| {
            let half_width = (upper - lower) / 2.0;
            let share = missing
                .iter()
                .rfind(|missing| missing.column == column.name)
                .map_or(0.0, |missing| missing.share);
            // The sums of a column have the same noise for any number of records with a value.
            let reach = intervals.count_reach() * half_width / (1.0 - share);
            let variance = forecast.noise.covariance_noise.map(|noise| noise.scaled(reach * half_width));
            let (column, key) = (column.name.clone(), key.cloned());
            let missing_share = by_column.then_some(share);
            ColumnForecast { column, key, missing_share, mean: mean.scaled(reach), variance, half_width }
        };
        let of_column = |column: &Column| {
            let own = column.bounds.iter().map(|(key, bounds)| between(column, Some(key), *bounds));
            let lacks_bounds = |key: &String| !column.bounds.contains_key(key);
            let of_others = file.key.as_ref().is_none_or(|key| key.values.iter().any(lacks_bounds));
            let others = of_others.then(|| between(column, None, (column.lower, column.upper)));
            others.into_iter().chain(own).collect::<Vec<_>>()
        };
        Some(Self {
            strategy: forecast.name(),
            level: intervals.level,
            records_per_epoch,
            columns: file.columns.iter().flat_map(of_column).collect(),
            horizon: forecast.problem.horizon,
            at_edge: {
                // A mean m, in halves of the bounds, is a quotient with noise √(τ₁² + m²τ₀²)/n.
                let noise = forecast.noise.last_noise;
                // The records that have a column are counted by half the count and an indicator.
                let step =
                    2.0 * forecast.problem.clip_norm / (5.0 * forecast.problem.dimension as f64).sqrt();
                let own = || (noise.count / 2.0).hypot(noise.first / step);
                let count = if by_column { own() } else { noise.count };
                (count / noise.first).hypot(1.0)
            },
        })
    }

    /// Returns each column with the half-width for its mean after the last epoch.
    pub(super) fn last_means(&self) -> impl Iterator<Item = (String, String)> {
        self.columns.iter().map(|column| {
            let reach = column.mean.last_epoch;
            let reach = if reach < column.half_width { number(reach) } else { UNINFORMATIVE.into() };
            (column.name(), reach)
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
        // An interval beyond the bounds is cut to them. Then it contains all possible values.
        let reach = |noise: f64, most: f64| match noise < most {
            true => format!("± {}", number(noise)),
            false => UNINFORMATIVE.into(),
        };
        let row = |forecast: &ColumnForecast| {
            let ColumnForecast { missing_share, mean, variance, half_width, .. } = forecast;
            let mut name = forecast.name();
            if let Some(share) = missing_share.filter(|share| *share > 0.0) {
                name += &format!(", {} % missing", number(share * 100.0));
            }
            let of = |noise: &EstimateNoise, most| {
                [noise.first_epoch, noise.last_epoch].map(|noise| reach(noise, most))
            };
            let variance = variance.as_ref().map(|variance| of(variance, half_width * half_width));
            let cells = of(mean, *half_width).into_iter().chain(variance.into_iter().flatten());
            [name].into_iter().chain(cells).collect()
        };
        let shown = if self.columns.iter().any(|column| column.variance.is_some()) { 5 } else { 3 };
        let titles = titles[..shown].iter().map(|title| String::from(*title)).collect();
        let rows: Vec<Vec<String>> = [titles].into_iter().chain(self.columns.iter().map(row)).collect();
        let mut text = format!(
            "With {}, {} records of a key per epoch and values near the middle of the bounds:\n\
             half-widths of {level} % intervals in the units of the columns, for the noise\n{}",
            self.strategy,
            number(self.records_per_epoch),
            fitting_table(&rows),
        );
        if rows.iter().flatten().any(|cell| cell == UNINFORMATIVE) {
            text += "all: the interval holds all values between the bounds, so it says nothing\n";
        }
        if self.columns.iter().all(|column| column.missing_share == Some(0.0)) {
            text += "This supposes that no value is missing: --missing-share COLUMN=0.3 forecasts the noise if 30 % of a column are.\n";
        }
        if self.at_edge > 1.0 {
            text += &format!(
                "A mean near a bound, as of a skewed column, has up to {:.1} times the half-width, cut at the bound.\n",
                self.at_edge
            );
        }
        text
    }
}

/// Checks that each share names a column whose values may be missing.
pub(super) fn check_shares(shares: &[MissingShare], file: &PublicParameters) -> Result<(), CliError> {
    let unknown = shares.iter().find(|share| !file.columns.iter().any(|column| column.name == share.column));
    match unknown {
        Some(MissingShare { column, .. }) => {
            let names: Vec<&str> = file.columns.iter().map(|column| column.name.as_str()).collect();
            Err(CliError::usage(format!(
                "--missing-share: the pipeline has no column {column:?}{}",
                did_you_mean(column, &names)
            )))
        }
        None if !shares.is_empty() && !file.by_column() => Err(CliError::usage(
            "--missing-share: rows that lack a value don't count in this pipeline: give the others as --records-per-epoch, or set \
             missing = \"by-column\" in [source]",
        )),
        None => Ok(()),
    }
}

/// Returns the forecast of the means of a file's own strategy, in the units of its columns, if each
/// key has this number of records in an epoch.
pub(in crate::cli) fn forecast_of_means(
    file: &Pipeline,
    records_per_epoch: f64,
    missing_share: Vec<MissingShare>,
) -> Result<Option<String>, CliError> {
    let forecast = own_forecast(file, Some(records_per_epoch), missing_share.clone())?;
    Ok(ColumnForecasts::new(&forecast, file, &missing_share).map(|columns| columns.text()))
}

/// Returns the noise of the sums of a file's own strategy after the last epoch, in scaled units.
pub(in crate::cli) fn last_noise(file: &Pipeline) -> Result<f64, CliError> {
    Ok(own_forecast(file, None, Vec::new())?.noise.last_noise.first)
}

fn own_forecast(
    file: &Pipeline,
    records_per_epoch: Option<f64>,
    missing_share: Vec<MissingShare>,
) -> Result<Forecast, CliError> {
    let arguments = PlanArguments {
        pipeline: None,
        workload: None,
        horizon: None,
        schedule: None,
        strategy: None,
        dimension: None,
        clip_norm: None,
        method: None,
        moments: None,
        neighbours: None,
        epsilon: None,
        delta: None,
        noise_multiplier: None,
        second_moment_weight: None,
        participation: None,
        stamps: 1,
        all: false,
        objective: Objective::Rmse,
        records_per_epoch,
        missing_share,
        plot: None,
        json: false,
    };
    let plan = arguments.plan(Some(&file.public_parameters()))?;
    let bar = SearchStatus::new();
    let forecast = forecast_of_file(&plan, file, None, &bar);
    bar.finish();
    Ok(forecast?)
}
