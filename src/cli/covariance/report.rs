//! The printed answer of `hushflow covariance`: text, CSV and JSON.

use hushflow::estimators::covariance::CovarianceEstimate;
use hushflow::lines::csv_line;
use hushflow::mechanism::accounting::{Delta, Epsilon, Rho};
use hushflow::mechanism::estimate::intervals::Confidence;
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

    /// The 95 % interval of each entry.
    fn intervals(&self) -> Vec<Vec<Option<(f64, f64)>>> {
        self.estimate.intervals(Confidence::default().level)
    }

    /// One line for each entry of the upper triangle. The noise and the interval of an entry that
    /// was not measured are empty.
    pub(super) fn csv(&self) -> String {
        let (estimate, noise, intervals) = (self.estimate, self.estimate.noise(), self.intervals());
        let header = ["column_a", "column_b", "covariance", "noise", "lower", "upper"].map(String::from);
        let mut text = csv_line(header) + "\n";
        for (i, one) in self.columns.iter().enumerate() {
            for (j, other) in self.columns.iter().enumerate().skip(i) {
                let [noise, lower, upper] =
                    [noise[i][j], intervals[i][j].map(|ends| ends.0), intervals[i][j].map(|ends| ends.1)]
                        .map(|number| number.map_or_else(String::new, |number| number.to_string()));
                let value = estimate.covariance[(i, j)].to_string();
                text += &(csv_line([one.clone(), other.clone(), value, noise, lower, upper]) + "\n");
            }
        }
        text
    }

    /// Formats one line for each entry of the upper triangle, for narrow terminals.
    fn entries(&self) -> String {
        let (estimate, intervals) = (self.estimate, self.intervals());
        let entry = |(i, j): (usize, usize)| {
            let value = number(estimate.covariance[(i, j)]);
            vec![format!("{}, {}", self.columns[i], self.columns[j]), value, ends(intervals[i][j])]
        };
        let number = self.columns.len();
        let pairs = (0..number).flat_map(|i| (i..number).map(move |j| (i, j)));
        table(&pairs.map(entry).collect::<Vec<_>>())
    }

    /// Says what the intervals contain, or why there are none.
    fn legend(&self) -> String {
        let method = self.arguments.method();
        match (self.estimate.measurements.is_empty(), self.estimate.clip_norm) {
            (true, _) => format!(
                "{method} has added its noise to eigenvalues and directions: no interval of single entries is known. \
                 shrunk, ssp, ssp-tight and pace measure entries with known noise.\n"
            ),
            (false, None) => format!(
                "{method} clips the rows to an ellipsoid that it does not publish: no interval is known.\n"
            ),
            (false, Some(norm)) => {
                let largest = (self.columns.len() as f64).sqrt();
                let rows = match norm < largest * (1.0 - 1e-9) {
                    true => format!(
                        "the rows clipped to norm {}, where that of a row at all bounds is {}",
                        number(norm),
                        number(largest)
                    ),
                    false => "the rows clipped to their bounds".into(),
                };
                format!(
                    "In parentheses: 95 % interval of the entry of {rows}. It is about the measured entry, the number \
                     before it is shrunk or projected; without one, an entry was not measured.\n"
                )
            }
        }
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
            let intervals = self.intervals();
            let lines = self.columns.iter().zip(estimate.covariance.row_iter().zip(&intervals));
            let lines = lines.map(|(name, (row, intervals))| {
                let cells = row.iter().zip(intervals).map(|(value, interval)| {
                    format!("{} {}", number(*value), ends(*interval)).trim_end().to_owned()
                });
                std::iter::once(name.clone()).chain(cells).collect()
            });
            text += &self.legend();
            let matrix = table(&std::iter::once(header).chain(lines).collect::<Vec<Vec<String>>>());
            let is_wide = |width| matrix.lines().any(|line| line.chars().count() > width);
            text += &if terminal_width().is_some_and(is_wide) { self.entries() } else { matrix };
        } else {
            text += "The covariance has too many columns to print: use --json or --format csv.\n";
        }
        text + &self.arguments.describe(self.rho, (self.epsilon, self.delta))
    }
}

/// Formats the ends of an interval, if there is one.
fn ends(interval: Option<(f64, f64)>) -> String {
    interval.map_or_else(String::new, |(lower, upper)| format!("({} to {})", number(lower), number(upper)))
}

/// Formats the half-width of an interval for noise with this standard deviation.
fn reach(deviation: f64) -> String {
    format!("± {}", number(half_width(deviation)))
}
