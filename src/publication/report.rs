//! Estimates as JSON, in the same form for files and windows, and the lines of windows.

use std::error::Error;
use std::sync::Arc;

use hushflow_estimators::covariance::{self, CovarianceError};
use hushflow_estimators::mean::{MeanAnswer, MeanError, MeanMethod, MeanRefusal, StepCost};
use hushflow_mechanism::estimate::intervals::{Confidence, Interval};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::estimates::{
    Band, Cell, ChartGroup, ChartSeries, Estimate, EstimateField, FieldPart, Plot, Reading, Uncertainty,
};

/// The report of a mean.
#[derive(Clone, Debug, Serialize)]
pub struct MeanReport {
    /// The method that ran, also for `auto`.
    pub method: MeanMethod,
    /// Total ε at δ.
    pub spent: f64,
    /// The mean of each column; `None` for a refusal.
    pub mean: Option<Vec<f64>>,
    /// Standard deviation of the noise of each mean.
    pub noise: Option<Vec<f64>>,
    /// Noisy number of kept records, if some were removed.
    pub kept: Option<f64>,
    /// Whether the kept records look clean.
    pub converged: Option<bool>,
    /// Reason for a missing mean.
    pub refusal: Option<RefusalReport>,
    /// Spending of each step.
    pub parts: Vec<StepCost>,
}

/// A refusal, for programs and for people.
#[derive(Clone, Debug, Serialize)]
pub struct RefusalReport {
    /// The machine-readable reason.
    #[serde(flatten)]
    pub refusal: MeanRefusal,
    /// The message for people.
    pub message: String,
}

impl From<MeanAnswer> for MeanReport {
    fn from(answer: MeanAnswer) -> Self {
        let MeanAnswer { method, outcome, parts, spent } = answer;
        let (estimate, refusal) = match outcome {
            Ok(estimate) => (Some(estimate), None),
            Err(refusal) => (None, Some(refusal)),
        };
        MeanReport {
            method,
            spent,
            mean: estimate.as_ref().map(|estimate| estimate.mean.clone()),
            noise: estimate.as_ref().map(|estimate| estimate.noise.clone()),
            kept: estimate.as_ref().and_then(|estimate| estimate.kept),
            converged: estimate.map(|estimate| estimate.converged),
            refusal: refusal.map(|refusal| RefusalReport { refusal, message: refusal.to_string() }),
            parts,
        }
    }
}

/// Formats a covariance with the names of its columns.
pub fn covariance(
    estimate: &covariance::CovarianceEstimate,
    columns: &[impl AsRef<str>],
) -> Map<String, Value> {
    let covariance::CovarianceEstimate { rows, rows_deviation, mean, covariance, measurements, .. } =
        estimate;
    let pair = |one: usize, other: usize| [one, other].map(|index| columns.get(index).map(AsRef::as_ref));
    let matrix: Vec<Vec<f64>> = covariance.row_iter().map(|row| row.iter().copied().collect()).collect();
    let pairs = measurements.iter().filter(|entry| entry.row != entry.column);
    let measured: Vec<_> = pairs.map(|entry| pair(entry.column, entry.row)).collect();
    let entries: Vec<Value> = measurements
        .iter()
        .map(|entry| {
            json!({
                "columns": pair(entry.column, entry.row), "value": entry.value,
                "noise": entry.deviation, "times": entry.times,
            })
        })
        .collect();
    let correlations = estimate.partial_correlations.iter();
    let correlations: Vec<Value> = correlations
        .map(|entry| json!({"columns": pair(entry.column, entry.row), "value": entry.value}))
        .collect();
    let parts = estimate.budget.by_kind().into_iter();
    let parts: Map<String, Value> = parts.map(|(part, rho)| (part.name().into(), json!(rho))).collect();
    let fields = [
        ("parts", json!(parts)),
        ("rows", json!(rows)),
        ("rows_noise", json!(rows_deviation)),
        ("mean", json!(mean.as_ref().map(|mean| &mean.values))),
        ("mean_noise", json!(mean.as_ref().map(|mean| &mean.deviations))),
        ("covariance", json!(matrix)),
        ("covariance_noise", json!(estimate.noise())),
        ("covariance_interval", json!(estimate.intervals(Confidence::default().level))),
        ("clip_norm", json!(estimate.clip_norm)),
        ("measured", json!(measured)),
        ("measured_pairs", json!(estimate.measured_pairs())),
        ("measurements", json!(entries)),
        ("measurement_count", json!(estimate.measurement_count())),
        ("rounds", json!(estimate.rounds)),
        ("sparsity", json!(estimate.sparsity())),
        ("partial_correlations", json!(correlations)),
    ];
    fields.into_iter().map(|(name, value)| (name.into(), value)).collect()
}

pub(super) fn of_window_mean(rows: usize, answer: Result<MeanAnswer, MeanError>) -> Map<String, Value> {
    let mut object = match answer.map(|answer| json!(MeanReport::from(answer))) {
        Ok(Value::Object(report)) => report,
        Ok(_) => Map::new(),
        Err(error) => unanswered(&error),
    };
    object.insert("rows".into(), rows.into());
    object
}

pub(super) fn of_window_covariance(
    estimate: Result<covariance::CovarianceEstimate, CovarianceError>,
    columns: &[String],
) -> Map<String, Value> {
    estimate.map_or_else(|error| unanswered(&error), |estimate| covariance(&estimate, columns))
}

/// The report of a missing estimate, from public numbers only.
fn unanswered(error: &dyn Error) -> Map<String, Value> {
    Map::from_iter([("refusal".into(), json!({ "reason": "unanswerable", "message": error.to_string() }))])
}

/// The estimate of a window, as it is in the log. CSV has its numbers, or the reason for a missing
/// estimate. JSON also has the rest (parts, measurements).
#[derive(Debug)]
pub(super) struct WindowReport {
    pub(super) columns: Arc<[String]>,
    /// Whether it is a covariance. Otherwise it is a mean.
    pub(super) is_covariance: bool,
    pub(super) fields: Map<String, Value>,
}

impl WindowReport {
    /// Fields with one number per window, and the statistic that each holds.
    fn numbers(&self) -> [(&'static str, &'static str, FieldPart); 3] {
        let value = |name| (name, name, FieldPart::Value);
        match self.is_covariance {
            true => [value("rows"), ("rows_noise", "rows", FieldPart::Noise), value("measured_pairs")],
            false => [value("rows"), value("kept"), value("spent")],
        }
    }

    /// The field with the noise of the means.
    fn mean_noise(&self) -> &'static str {
        if self.is_covariance { "mean_noise" } else { "noise" }
    }

    /// Pairs of columns, each once, in the order of a matrix' upper triangle.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let columns = if self.is_covariance { self.columns.len() } else { 0 };
        (0..columns).flat_map(move |i| (i..columns).map(move |j| (i, j)))
    }

    fn listed(&self, name: &str, index: usize) -> Option<&Value> {
        self.fields.get(name)?.get(index)
    }

    fn entry(&self, name: &str, (row, column): (usize, usize)) -> Option<&Value> {
        self.listed(name, row)?.get(column)
    }

    /// The interval of an entry of the covariance; `None` if the entry was not measured.
    fn interval(&self, pair: (usize, usize)) -> Option<Interval> {
        let ends = self.entry("covariance_interval", pair)?;
        Some(Interval { lower: ends[0].as_f64()?, upper: ends[1].as_f64()? })
    }

    fn refusal(&self) -> Option<&str> {
        self.fields.get("refusal")?["message"].as_str()
    }
}

/// Group of the chart of each column: means, or variances.
const MEANS: &str = "mean";
const VARIANCES: &str = "variance";

/// Returns the plot of these reports for the page.
pub(super) fn plot(columns: &[String], is_covariance: bool) -> Plot {
    let series = |(index, column): (usize, &String)| {
        let (value, band) = match is_covariance {
            true => (
                json!(["covariance", index, index]),
                Band::Interval(json!(["covariance_interval", index, index])),
            ),
            false => (json!(["mean", index]), Band::Noise(json!(["noise", index]))),
        };
        ChartSeries { name: column.clone(), value, band }
    };
    let (name, title) = if is_covariance { (VARIANCES, "Variance") } else { (MEANS, "Mean") };
    let series = columns.iter().enumerate().map(series).collect();
    let groups = vec![ChartGroup { name, title: title.into(), series }];
    let band =
        if is_covariance { "the variance of the clipped records" } else { "the estimate without noise" };
    Plot { band: band.into(), groups, matrix: false }
}

impl Estimate for WindowReport {
    fn json(&self, object: &mut Map<String, Value>) {
        object.insert("columns".into(), self.columns.to_vec().into());
        object.extend(self.fields.clone());
    }

    fn fields(&self) -> Vec<EstimateField> {
        let number = |statistic, part, of: &[&str], value: Option<&Value>| {
            EstimateField::number(statistic, part, of, value.and_then(Value::as_f64))
        };
        let of_rows = self
            .numbers()
            .into_iter()
            .map(|(name, statistic, part)| number(statistic, part, &[], self.fields.get(name)));
        let mean = |(index, column): (usize, &String)| {
            [("mean", FieldPart::Value), (self.mean_noise(), FieldPart::Noise)]
                .map(|(list, part)| number("mean", part, &[column], self.listed(list, index)))
        };
        let means = self.columns.iter().enumerate().flat_map(mean);
        let entry = |pair: (usize, usize)| {
            let of = |name| self.entry(name, pair).and_then(Value::as_f64);
            let value =
                of("covariance").map(|value| (value, of("covariance_noise").unwrap_or(f64::INFINITY)));
            let names = [&*self.columns[pair.0], &*self.columns[pair.1]];
            EstimateField::all("covariance", &names, value, self.interval(pair))
        };
        let numbers = of_rows.chain(means).chain(self.pairs().flat_map(entry));
        numbers.chain([EstimateField::word("refusal", self.refusal())]).collect()
    }

    fn reading(&self, group: &str, index: usize) -> Reading {
        let [value, noise] = ["mean", "noise"].map(|name| self.listed(name, index).and_then(Value::as_f64));
        match group {
            VARIANCES => {
                let variance = self.entry("covariance", (index, index)).and_then(Value::as_f64);
                Reading { value: variance, spread: Uncertainty::Interval(self.interval((index, index))) }
            }
            MEANS => Reading { value, spread: Uncertainty::Noise(noise.unwrap_or(f64::INFINITY)) },
            _ => Reading { value: None, spread: Uncertainty::Interval(None) },
        }
    }

    fn legend(&self) -> String {
        match self.is_covariance {
            true => "half-width of the 95 % interval for the records clipped to the norm in clip_norm (a to b: its ends)".into(),
            false => "standard deviation of the noise".into(),
        }
    }

    fn titles(&self) -> Vec<String> {
        let what = if self.is_covariance { "sd" } else { "mean" };
        self.columns.iter().map(|column| format!("{what} {column}")).collect()
    }

    fn cells(&self) -> Result<Vec<Cell>, String> {
        if let Some(message) = self.refusal() {
            return Err(message.into());
        }
        let number = |name, index| self.listed(name, index).and_then(Value::as_f64);
        let cell = |index: usize| match self.is_covariance {
            true => {
                let variance = self.entry("covariance", (index, index)).and_then(Value::as_f64);
                let interval = self.interval((index, index)).map(Interval::square_root);
                match (variance.map(|variance| variance.max(0.0).sqrt()), interval) {
                    (Some(_), Some(interval)) if interval.lower == 0.0 => Cell::AtMost(interval.upper),
                    (Some(deviation), Some(interval)) if interval.contains(deviation) => {
                        Cell::of_interval(deviation, interval, Interval::UNBOUNDED)
                    }
                    (Some(_), Some(interval)) => Cell::Range(interval.lower, interval.upper),
                    (Some(deviation), None) => Cell::Plain(deviation),
                    (None, _) => Cell::Empty,
                }
            }
            false => match (number("mean", index), number("noise", index)) {
                (Some(mean), Some(noise)) => Cell::Value(mean, noise),
                (Some(mean), None) => Cell::Plain(mean),
                (None, _) => Cell::Empty,
            },
        };
        Ok((0..self.columns.len()).map(cell).collect())
    }
}
