//! `hushflow plan` for a pipeline that releases estimates of windows: their privacy cost, the rows
//! that they need, and the noise to expect.

use hushflow::mechanism::epochs::Schedule;
use hushflow::pipeline::{Pipeline, PublicParameters};
use hushflow::publication::{PublicationError, WindowEstimate, WindowPublication};
use serde::Serialize;
use serde_json::Value;

use super::super::output::{number, table};
use super::super::thousands;

/// Maximum number of rows of a window whose noise is forecast by a simulation.
const SIMULATED_ROWS: f64 = (1 << 17) as f64;

/// The privacy cost of all windows together, and the accuracy of one.
#[derive(Debug, Serialize)]
pub(super) struct WindowPlan {
    estimator: String,
    /// Number of pairs of key and window.
    windows: u64,
    epsilon: f64,
    delta: f64,
    unit: String,
    neighbours: String,
    /// ρ of zero-concentrated privacy for Gaussian noise and for selections, where the estimator
    /// spends ρ.
    rho: Option<[f64; 2]>,
    /// μ of Gaussian differential privacy that a ledger is charged.
    mu: f64,
    noise_multiplier: f64,
    #[serde(flatten)]
    each: EachWindow,
    /// The same without overlap.
    #[serde(skip_serializing_if = "Option::is_none")]
    without_overlap: Option<EachWindow>,
    /// Expected rows of one key in an epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    records_per_epoch: Option<f64>,
}

/// One window.
#[derive(Debug, Serialize)]
struct EachWindow {
    /// The epochs of a window.
    window: String,
    /// Maximum number of epochs of a window.
    epochs: u64,
    /// Maximum number of windows that hold records of the protected unit, counted once for each of
    /// its epochs.
    windows_of_unit: u64,
    /// Factor of the noise of sums over that of a window with the whole budget.
    noise_factor: f64,
    /// Budget of one window for one record.
    budget: Budget,
    /// Minimum number of rows of a window that is not refused as too small.
    rows_needed: Option<usize>,
    /// Expected rows of one key in the longest window.
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<f64>,
    /// Whether all windows will be refused as too small.
    #[serde(skip_serializing_if = "Option::is_none")]
    all_refused: Option<bool>,
    /// Expected deviation of the noise by column: of the mean, or of the variance.
    #[serde(skip_serializing_if = "Option::is_none")]
    noise: Option<Vec<f64>>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Budget {
    Mean { epsilon: f64, delta: f64 },
    Covariance { rho: f64 },
}

/// Returns the records of one key in an epoch, if epochs have a fixed number and there is one key.
fn fixed_records(parameters: &PublicParameters) -> Option<f64> {
    match &parameters.epochs.schedule {
        Schedule::ByCount(schedule) if parameters.keys() == 1 => Some(schedule.records_per_epoch as f64),
        _ => None,
    }
}

impl EachWindow {
    fn new(publication: &WindowPublication, records_per_epoch: Option<f64>) -> Self {
        let span = publication.span();
        let epochs = span.longest(publication.parameters().epochs.schedule.horizon());
        let rows = records_per_epoch.map(|records| records * epochs as f64);
        let rows_needed = publication.rows_needed();
        let all_refused = rows.map(|rows| rows_needed.is_some_and(|needed| rows < needed as f64));
        let is_fast = !matches!(publication.estimator().to_string().as_str(), "tukey" | "resilience");
        let simulated = rows.filter(|rows| is_fast && all_refused == Some(false) && *rows <= SIMULATED_ROWS);
        let budget = match publication.window_estimate() {
            WindowEstimate::Mean { question, .. } => {
                Budget::Mean { epsilon: question.epsilon.value(), delta: question.delta.value() }
            }
            WindowEstimate::Covariance { rho, .. } => Budget::Covariance { rho: rho.value() },
        };
        Self {
            window: span.to_string(),
            epochs,
            windows_of_unit: publication.overlap().windows,
            noise_factor: publication.overlap().factor,
            budget,
            rows_needed,
            rows,
            all_refused,
            noise: simulated.and_then(|rows| noise(publication, rows as usize)),
        }
    }

    fn budget(&self) -> String {
        match self.budget {
            Budget::Mean { epsilon, delta } => {
                format!("ε = {}, δ = {}", number(epsilon), number(delta))
            }
            Budget::Covariance { rho } => format!("ρ = {}", number(rho)),
        }
    }
}

/// Returns the noise of each column in a simulated window of this many rows.
fn noise(publication: &WindowPublication, rows: usize) -> Option<Vec<f64>> {
    let report = publication.forecast(rows)?;
    let list = |name: &str| report.get(name).and_then(Value::as_array);
    match list("noise") {
        Some(noise) => noise.iter().map(Value::as_f64).collect(),
        None => {
            let matrix = list("covariance_noise")?;
            matrix.iter().enumerate().map(|(at, row)| row.get(at)?.as_f64()).collect()
        }
    }
}

impl WindowPlan {
    /// Returns `None` for a pipeline of moments.
    pub(super) fn of(
        pipeline: &Pipeline,
        records_per_epoch: Option<f64>,
    ) -> Result<Option<Self>, PublicationError> {
        let Some(publication) = WindowPublication::new(pipeline.public_parameters(), true)? else {
            return Ok(None);
        };
        let (parameters, charge) = (publication.parameters(), publication.charge());
        let records_per_epoch = records_per_epoch.or_else(|| fixed_records(parameters));
        let tumbling = publication.span().tumbling().and_then(|window| {
            let parameters = PublicParameters { window, ..parameters.clone() };
            // A horizon below its length has no such window.
            WindowPublication::new(parameters, true).ok().flatten()
        });
        Ok(Some(WindowPlan {
            estimator: publication.estimator().to_string(),
            windows: u64::from(parameters.keys()).saturating_mul(publication.span().count(charge.epochs)),
            epsilon: charge.epsilon,
            delta: charge.delta,
            unit: charge.unit.to_string(),
            neighbours: charge.neighbours.to_string(),
            rho: charge.rho.map(|rho| [rho.gaussian, rho.selection]),
            mu: charge.spending()?.mu(),
            noise_multiplier: charge.noise_multiplier,
            each: EachWindow::new(&publication, records_per_epoch),
            without_overlap: tumbling.map(|tumbling| EachWindow::new(&tumbling, records_per_epoch)),
            records_per_epoch,
        }))
    }

    pub(super) fn text(&self, columns: &[String]) -> String {
        let rows = [
            ["estimator", &self.estimator],
            ["windows", &thousands(self.windows)],
            ["ε", &number(self.epsilon)],
            ["δ", &number(self.delta)],
            ["unit", &self.unit],
            ["neighbours", &self.neighbours],
            [
                "ρ of noise and of selections",
                &self.rho.map_or("-".into(), |parts| parts.map(number).join(" + ")),
            ],
            ["μ", &number(self.mu)],
        ];
        let rows: Vec<Vec<String>> = rows.map(|row| row.map(String::from).to_vec()).to_vec();
        [table(&rows), "\n".into(), self.each_window(columns), self.meaning()].concat()
    }

    /// Formats the properties of one window, beside those of one without overlap.
    fn each_window(&self, columns: &[String]) -> String {
        let all: Vec<&EachWindow> = [&self.each].into_iter().chain(&self.without_overlap).collect();
        let row = |title: &str, cell: &dyn Fn(&EachWindow) -> String| {
            [title.to_owned()].into_iter().chain(all.iter().map(|each| cell(each))).collect::<Vec<_>>()
        };
        let optional = |value: Option<f64>| value.map_or("-".into(), number);
        let mut rows = vec![
            row("window", &|each| each.window.clone()),
            row("windows that hold a unit", &|each| thousands(each.windows_of_unit)),
            row("budget of one, for a record", &|each| each.budget()),
            row("rows that one needs", &|each| {
                each.rows_needed.map_or("-".into(), |rows| thousands(rows as u64))
            }),
        ];
        if self.records_per_epoch.is_some() {
            rows.push(row("rows of a key in one", &|each| optional(each.rows)));
            let kind = match self.each.budget {
                Budget::Mean { .. } => "mean",
                Budget::Covariance { .. } => "variance",
            };
            for (at, column) in columns.iter().enumerate() {
                let noise = |each: &EachWindow| {
                    optional(each.noise.as_ref().and_then(|noise| noise.get(at).copied()))
                };
                rows.push(row(&format!("{kind} of {column} ±"), &noise));
            }
        }
        table(&rows)
    }

    fn meaning(&self) -> String {
        let mut text = String::from("\n");
        if let Some(refusal) = self.refusal() {
            text += &format!("EVERY WINDOW WILL BE REFUSED: {refusal}.\n");
        }
        text += match (self.each.windows_of_unit, self.each.noise_factor == 1.0) {
            (1, true) => "Every record is in one window, so all windows together spend as much as one.",
            _ => {
                "All windows together that hold records of a unit spend (ε, δ), so each has a part of it. The records of a unit in \
                 one window, and its windows, are charged together."
            }
        };
        text += " Each window is estimated when its last epoch closes. The noise of an estimate depends on its rows and is published \
                 with it.";
        text += match self.records_per_epoch {
            None => " Add --records-per-epoch to see whether windows have enough rows, and their noise.\n",
            Some(_) => {
                " ±: standard deviation of the noise in a simulated window of as many normal rows; - where none is simulated.\n"
            }
        };
        text
    }

    /// Returns why every window will be refused, if public numbers show it.
    fn refusal(&self) -> Option<String> {
        let (needed, rows) = (self.each.rows_needed?, self.each.rows?);
        (self.each.all_refused == Some(true)).then(|| {
            let records = self.records_per_epoch.unwrap_or(rows);
            // Longer windows that overlap would divide the budget further.
            let least = self.without_overlap.as_ref().and_then(|each| each.rows_needed).unwrap_or(needed);
            let epochs = (least as f64 / records).ceil();
            format!(
                "a window of {} rows is too small for {}, which needs {} at this budget: set [release] window and stride both to \
                 at least {}, lengthen epochs, or raise epsilon",
                number(rows),
                self.estimator,
                thousands(needed as u64),
                number(epochs)
            )
        })
    }
}

/// Returns why every window of a run will be refused, if the pipeline file alone shows it.
pub(in crate::cli) fn refusal(pipeline: &Pipeline) -> Result<Option<String>, PublicationError> {
    if pipeline.estimator.is_none() || fixed_records(&pipeline.public_parameters()).is_none() {
        return Ok(None);
    }
    Ok(WindowPlan::of(pipeline, None)?.and_then(|plan| plan.refusal()))
}
