//! The printed answer of `hushflow covariance`: text, CSV and JSON.

use hushflow::estimators::covariance::CovarianceEstimate;
use hushflow::lines::csv_line;
use hushflow::mechanism::accounting::{Delta, Epsilon, Rho};
use hushflow::publication::report;
use serde_json::{Value, json};

use super::super::output::{half_width, number, table, terminal_width};
use super::CovarianceArguments;

/// Largest number of columns for which the text output prints the matrix.
const SHOWN: usize = 10;

/// The printed answer.
pub(super) struct CovarianceReport<'a> {
    pub(super) arguments: &'a CovarianceArguments,
    pub(super) columns: &'a [String],
    pub(super) bounds: &'a [(f64, f64)],
    pub(super) rho: Rho,
    pub(super) epsilon: Epsilon,
    pub(super) delta: Delta,
    pub(super) estimate: &'a CovarianceEstimate,
    pub(super) clipped: Option<(f64, f64)>,
    pub(super) seconds: f64,
}

impl CovarianceReport<'_> {
    pub(super) fn json(&self) -> Value {
        let mut object = self.arguments.promise(self.rho, (self.epsilon, self.delta));
        object.extend([
            ("projection".into(), json!(self.arguments.projection_taken())),
            ("columns".into(), json!(self.columns)),
            ("bounds".into(), json!(self.bounds)),
            ("about".into(), if self.estimate.mean.is_some() { "mean" } else { "middle-of-bounds" }.into()),
        ]);
        object.extend(report::covariance(self.estimate, self.columns));
        if let Some((rows, noise)) = self.clipped {
            object.extend([("clipped".into(), json!(rows)), ("clipped_noise".into(), json!(noise))]);
        }
        object.insert("seconds".into(), json!(self.seconds));
        Value::Object(object)
    }

    /// Formats the private mean of each column, where there is one.
    fn means(&self) -> String {
        let Some(mean) = &self.estimate.mean else { return String::new() };
        let lines = self.columns.iter().zip(mean.values.iter().zip(&mean.deviations));
        let lines = lines.map(|(name, (value, noise))| vec![name.clone(), number(*value), reach(*noise)]);
        let header = vec!["column".into(), "mean".into(), String::new()];
        table(&std::iter::once(header).chain(lines).collect::<Vec<_>>()) + "\n"
    }

    /// One line for each entry of the upper triangle. The noise of an entry that was not measured
    /// is empty.
    pub(super) fn csv(&self) -> String {
        let (estimate, noise) = (self.estimate, self.estimate.noise());
        let header = ["column_a", "column_b", "covariance", "noise"].map(String::from);
        let mut text = csv_line(header) + "\n";
        for (i, one) in self.columns.iter().enumerate() {
            for (j, other) in self.columns.iter().enumerate().skip(i) {
                let noise = noise[i][j].map_or_else(String::new, |noise| noise.to_string());
                let value = estimate.covariance[(i, j)].to_string();
                text += &(csv_line([one.clone(), other.clone(), value, noise]) + "\n");
            }
        }
        text
    }

    /// Formats one line for each entry of the upper triangle, for narrow terminals.
    fn entries(&self) -> String {
        let (estimate, noise) = (self.estimate, self.estimate.noise());
        let entry = |(i, j): (usize, usize)| {
            let value = number(estimate.covariance[(i, j)]);
            let noise = noise[i][j].map_or_else(String::new, reach);
            vec![format!("{}, {}", self.columns[i], self.columns[j]), value, noise]
        };
        let number = self.columns.len();
        let pairs = (0..number).flat_map(|i| (i..number).map(move |j| (i, j)));
        table(&pairs.map(entry).collect::<Vec<_>>())
    }

    pub(super) fn text(&self) -> String {
        let estimate = self.estimate;
        let mut rows = vec![
            vec!["method".into(), self.arguments.method().name().into()],
            vec!["rows".into(), number(estimate.rows)],
            vec!["columns".into(), self.columns.len().to_string()],
            vec!["measured pairs".into(), estimate.measured_pairs().to_string()],
        ];
        if let Some((clipped, noise)) = self.clipped {
            let describe = format!("{} {}", number(clipped), reach(noise));
            rows.push(vec!["rows outside the bounds".into(), describe]);
        }
        let mut text = table(&rows) + "\n" + &self.means();
        if estimate.mean.is_none() {
            text += "Deviations are from the middle of the bounds, not from the mean: --centre gives the covariance \
                about the mean.\n";
        }
        if self.columns.len() <= SHOWN {
            let header = std::iter::once(String::new()).chain(self.columns.iter().cloned()).collect();
            let noise = estimate.noise();
            let lines = self.columns.iter().zip(estimate.covariance.row_iter().zip(&noise));
            let lines = lines.map(|(name, (row, noise))| {
                let cells = row.iter().zip(noise).map(|(value, noise)| match noise {
                    Some(noise) => format!("{} {}", number(*value), reach(*noise)),
                    None => number(*value),
                });
                std::iter::once(name.clone()).chain(cells).collect()
            });
            text += &match estimate.measurements.is_empty() {
                true => format!(
                    "{} has added its noise to eigenvalues and directions: no noise of single entries is known. ssp, ssp-tight, pace \
                     and coinpress measure entries with known noise.\n",
                    self.arguments.method()
                ),
                false => "±: half-width of the 95 % interval of the noise alone; an entry without ± was not measured\n".into(),
            };
            let matrix = table(&std::iter::once(header).chain(lines).collect::<Vec<Vec<String>>>());
            let is_wide = |width| matrix.lines().any(|line| line.chars().count() > width);
            text += &if terminal_width().is_some_and(is_wide) { self.entries() } else { matrix };
        } else {
            text += "The covariance has too many columns to print: use --json or --format csv.\n";
        }
        text + &self.arguments.describe(self.rho, (self.epsilon, self.delta))
    }
}

/// Formats the half-width of an interval for noise with this standard deviation.
fn reach(deviation: f64) -> String {
    format!("± {}", number(half_width(deviation)))
}
