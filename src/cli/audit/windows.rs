//! `hushflow audit` for a pipeline that releases estimates of windows.

use hushflow::mechanism::noise::NoiseSource;
use hushflow::publication::{WindowAudit, WindowFinding, WindowPublication};
use serde::Serialize;

use super::super::output::{ProgressCounter, number, print_json, print_wrapped, table};
use super::super::{CliError, thousands};
use super::AuditArguments;

/// Default number of trials. An estimate takes about a thousand times as long as a sum.
const RUNS: u64 = 20_000;

/// Rows of a window divided by those that it needs.
const ROWS_FACTOR: usize = 2;

/// Minimum number of rows of a window without a lower limit.
const LEAST_ROWS: usize = 200;

/// The claim and the finding.
#[derive(Debug, Serialize)]
struct WindowAuditReport {
    name: String,
    estimator: String,
    window: String,
    epsilon: f64,
    delta: f64,
    unit: String,
    neighbours: String,
    records_per_epoch: usize,
    confidence: f64,
    /// Lower bound of ε as a share of the claimed ε.
    share: f64,
    #[serde(flatten)]
    finding: WindowFinding,
}

/// Audits and prints the finding; fails if the claim is exceeded.
pub(super) fn execute(arguments: &AuditArguments, publication: &WindowPublication) -> Result<(), CliError> {
    if arguments.participation.is_some() || arguments.epochs.is_some() {
        return Err(CliError::usage(
            "--participation and --epochs are for moments: an audit of windows estimates those that hold the unit; leave them out",
        ));
    }
    let charge = publication.charge();
    let longest = publication.span().longest(charge.epochs).max(1) as usize;
    let enough =
        publication.rows_needed().map_or(LEAST_ROWS, |rows| rows.saturating_mul(ROWS_FACTOR).max(LEAST_ROWS));
    let records_per_epoch = arguments.records.unwrap_or_else(|| enough.div_ceil(longest));
    let trials = arguments.runs.unwrap_or(RUNS);
    let counter = ProgressCounter::new(trials, "runs");
    let audit = WindowAudit {
        rows_per_epoch: records_per_epoch,
        trials,
        false_alarm: 1.0 - arguments.confidence,
        source: NoiseSource::System,
    };
    let finding = audit.run(publication, &|_| counter.add(1))?;
    counter.finish();
    let ok = finding.ok;
    let report = WindowAuditReport {
        name: publication.parameters().name.clone(),
        estimator: publication.estimator().to_string(),
        window: publication.span().to_string(),
        epsilon: charge.epsilon,
        delta: charge.delta,
        unit: charge.unit.to_string(),
        neighbours: charge.neighbours.to_string(),
        records_per_epoch,
        confidence: arguments.confidence,
        share: finding.epsilon / charge.epsilon,
        finding,
    };
    if arguments.json { print_json(&report) } else { print_wrapped(&report.text()) }?;
    if ok {
        Ok(())
    } else {
        Err(CliError::exceeded("the windows of a unit reveal more than the claim allows"))
    }
}

impl WindowAuditReport {
    fn text(&self) -> String {
        let finding = &self.finding;
        let rows = [
            ["estimator", &self.estimator],
            ["window", &self.window],
            ["rows of a key in an epoch", &thousands(self.records_per_epoch as u64)],
            ["windows of the unit", &thousands(finding.windows as u64)],
            ["its records in them", &thousands(finding.contributions as u64)],
            ["windows refused", &format!("{:.1} %", 100.0 * finding.refused)],
            ["runs", &thousands(finding.trials)],
            ["μ claimed", &number(finding.mu_claimed)],
            ["μ at least", &number(finding.mu)],
            ["ε at least", &number(finding.epsilon)],
            ["share of ε", &format!("{:.1} %", 100.0 * self.share)],
        ];
        let rows: Vec<Vec<String>> = rows.map(|row| row.map(String::from).to_vec()).to_vec();
        let verdict = if finding.ok { "The claim is not exceeded." } else { "THE CLAIM IS EXCEEDED." };
        format!(
            "{}: (ε, δ) = ({}, {}) is claimed for {} neighbours, unit {}; confidence {}\n\n{}\n{verdict} An estimator spends its \
             budget on several steps, and one pair of streams shows only some of them, so the share is well below 100 %.\n",
            self.name,
            number(self.epsilon),
            number(self.delta),
            self.neighbours,
            self.unit,
            self.confidence,
            table(&rows),
        )
    }
}
