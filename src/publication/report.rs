//! Estimates as JSON, in the same form for files and windows, and the lines of windows.

use std::error::Error;
use std::sync::Arc;

use hushflow_estimators::covariance::{self, CovarianceError};
use hushflow_estimators::mean::{MeanAnswer, MeanError, MeanMethod, MeanRefusal, StepCost};
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

/// The matrices of a covariance.
const MATRICES: [(&str, FieldPart); 2] =
    [("covariance", FieldPart::Value), ("covariance_noise", FieldPart::Noise)];

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
        let (value, noise) = match is_covariance {
            true => (json!(["covariance", index, index]), json!(["covariance_noise", index, index])),
            false => (json!(["mean", index]), json!(["noise", index])),
        };
        ChartSeries { name: column.clone(), value, band: Band::Noise(noise) }
    };
    let (name, title) = if is_covariance { (VARIANCES, "Variance") } else { (MEANS, "Mean") };
    let series = columns.iter().enumerate().map(series).collect();
    let groups = vec![ChartGroup { name, title: title.into(), series }];
    Plot { band: "the estimate without noise".into(), groups, matrix: false }
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
        let entry = |(i, j): (usize, usize)| {
            MATRICES.map(|(name, part)| {
                let value = self.listed(name, i).and_then(|row| row.get(j));
                number("covariance", part, &[&self.columns[i], &self.columns[j]], value)
            })
        };
        let numbers = of_rows.chain(means).chain(self.pairs().flat_map(entry));
        numbers.chain([EstimateField::word("refusal", self.refusal())]).collect()
    }

    fn reading(&self, group: &str, index: usize) -> Reading {
        let of_matrix = |name| self.listed(name, index).and_then(|row| row.get(index)?.as_f64());
        let (value, noise) = match group {
            VARIANCES => (of_matrix("covariance"), of_matrix("covariance_noise")),
            MEANS => {
                let [value, noise] = ["mean", "noise"].map(|name| self.listed(name, index));
                (value.and_then(Value::as_f64), noise.and_then(Value::as_f64))
            }
            _ => (None, None),
        };
        Reading { value, spread: Uncertainty::Noise(noise.unwrap_or(f64::INFINITY)) }
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
                let entry = |name| self.listed(name, index).and_then(|row| row.get(index)?.as_f64());
                match (entry("covariance"), entry("covariance_noise")) {
                    (Some(variance), Some(noise)) if variance > noise => {
                        let deviation = variance.sqrt();
                        Cell::Value(deviation, noise / (2.0 * deviation))
                    }
                    (Some(variance), Some(noise)) => Cell::AtMost((variance.max(0.0) + noise).sqrt()),
                    (Some(variance), None) => Cell::Plain(variance.max(0.0).sqrt()),
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
