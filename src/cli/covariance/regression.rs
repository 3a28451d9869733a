//! `hushflow covariance --target`: regression of one column on the others from private second
//! moments (App. G of the PACE-GGM paper).
//!
//! A regression spends no more than a covariance with the same budget. A third of the budget pays
//! for the ridge.

use std::path::PathBuf;

use hushflow::estimators::covariance::estimate::{RegressionEstimate, regress};
use hushflow::estimators::covariance::{CovarianceBudget, CovarianceSample};
use hushflow::lines::{OutputFormat, csv_line};
use hushflow::mechanism::accounting::{Delta, Epsilon, Rho};
use serde_json::{Map, Value, json};

use super::super::CliError;
use super::super::output::{number, print, print_json, print_wrapped, table};
use super::CovarianceArguments;

/// Inputs of a regression.
pub(super) struct RegressionRequest<'a> {
    pub(super) arguments: &'a CovarianceArguments,
    pub(super) columns: &'a [String],
    pub(super) bounds: &'a [(f64, f64)],
    pub(super) rho: Rho,
    pub(super) delta: Delta,
    /// Index of the column that is regressed on the others.
    pub(super) target: usize,
    /// Directory of the ledger to charge, if there is one.
    pub(super) ledger: Option<&'a PathBuf>,
}

impl<'a> RegressionRequest<'a> {
    /// Returns the index of the target among the columns.
    pub(super) fn position(columns: &[String], target: &str) -> Result<usize, CliError> {
        let position = columns.iter().position(|column| column == target);
        let position = position
            .ok_or_else(|| CliError::usage(format!("--target {target:?} is not one of the used columns")))?;
        match columns.len() {
            1 => Err(CliError::usage("--target: expected at least one other column to regress it on")),
            _ => Ok(position),
        }
    }

    /// Computes the regression, charges the ledger and prints the result.
    pub(super) fn answer(&self, sample: &CovarianceSample<'_>) -> Result<(), CliError> {
        let mut generator = self.arguments.source().generator(1, 0)?;
        let found = regress(
            self.arguments.method(),
            sample,
            self.target,
            CovarianceBudget::new(self.rho),
            &mut generator,
        );
        if let Err(error) = &found
            && !error.follows_from_releases()
        {
            return Err(error.clone().into());
        }
        let spending = self.arguments.spending(self.columns.len(), self.rho)?;
        let epsilon = spending.epsilon(self.delta)?;
        self.arguments.enter("regression", self.ledger, &spending, (epsilon, self.delta))?;
        let report = RegressionReport { request: self, epsilon, found: found? };
        Ok(match self.arguments.format.format() {
            OutputFormat::Json => print_json(&report.json()),
            OutputFormat::Csv => print(&report.csv()),
            OutputFormat::Table(_) => print_wrapped(&report.text()),
        }?)
    }

    fn target(&self) -> &str {
        &self.columns[self.target]
    }

    fn others(&self) -> impl Iterator<Item = (&'a String, f64)> {
        let middles = self.bounds.iter().map(|(low, high)| low / 2.0 + high / 2.0);
        let target = self.target;
        self.columns
            .iter()
            .zip(middles)
            .enumerate()
            .filter_map(move |(position, column)| (position != target).then_some(column))
    }
}

struct RegressionReport<'a> {
    request: &'a RegressionRequest<'a>,
    epsilon: Epsilon,
    found: RegressionEstimate,
}

impl RegressionReport<'_> {
    /// Returns the prediction where all other columns are 0. The line goes through the middle of
    /// the bounds.
    fn intercept(&self) -> f64 {
        let (low, high) = self.request.bounds[self.request.target];
        let others = self.request.others().zip(&self.found.coefficients);
        low / 2.0 + high / 2.0 - others.map(|((_, middle), slope)| middle * slope).sum::<f64>()
    }

    fn json(&self) -> Value {
        let RegressionRequest { arguments, columns, bounds, rho, delta, .. } = self.request;
        let slopes = self.request.others().zip(&self.found.coefficients);
        let slopes: Map<String, Value> =
            slopes.map(|((name, _), slope)| (name.clone(), json!(slope))).collect();
        let parts = self.found.budget.by_kind().into_iter();
        let parts: Map<String, Value> = parts.map(|(part, rho)| (part.name().into(), json!(rho))).collect();
        let mut object = arguments.promise(*rho, (self.epsilon, *delta));
        object.extend([
            ("columns".into(), json!(columns)),
            ("bounds".into(), json!(bounds)),
            ("target".into(), json!(self.request.target())),
            ("coefficients".into(), Value::Object(slopes)),
            ("intercept".into(), json!(self.intercept())),
            ("ridge".into(), json!(self.found.ridge)),
            ("parts".into(), Value::Object(parts)),
        ]);
        Value::Object(object)
    }

    fn csv(&self) -> String {
        let slopes = self.request.others().zip(&self.found.coefficients);
        let slopes = slopes.map(|((name, _), slope)| [name.clone(), slope.to_string()]);
        let header = ["column", "coefficient"].map(String::from);
        let intercept = ["(intercept)".into(), self.intercept().to_string()];
        let lines = [header].into_iter().chain(slopes).chain([intercept]);
        lines.map(|line| csv_line(line) + "\n").collect()
    }

    fn text(&self) -> String {
        let header = [format!("{} by", self.request.target()), "coefficient".into()];
        let slopes = self.request.others().zip(&self.found.coefficients);
        let slopes = slopes.map(|((name, _), slope)| [name.clone(), number(*slope)]);
        let intercept = ["(intercept)".into(), number(self.intercept())];
        let lines = [header].into_iter().chain(slopes).chain([intercept]).map(Vec::from);
        let text = table(&lines.collect::<Vec<_>>());
        text + &self.request.arguments.describe(self.request.rho, (self.epsilon, self.request.delta))
    }
}
