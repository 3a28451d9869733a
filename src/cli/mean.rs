//! `hushflow mean`: a private, robust mean of the columns of a file.

use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, ValueEnum};
use hushflow::estimators::mean::{
    Clipping, MeanAnswer, MeanMethod, Question, Scale, StepCost, estimate_and_clipping,
};
use hushflow::format::table::{MissingRows, Table};
use hushflow::ledger::Charge;
use hushflow::mechanism::accounting::{Delta, Epsilon};
use hushflow::mechanism::noise::NoiseSource;
use hushflow::publication::report::MeanReport;
use serde::Serialize;

use super::ledger::ChargeArguments;
use super::output::{number, print_json, print_wrapped, table};
use super::{CliError, number_in};

fn help() -> String {
    let method = |method: &MeanMethod| format!("  {:11} {}\n", method.name(), method.about());
    format!(
        "\
Neighbours are files with the same number of rows that differ in one row: the number of rows is public. Every answer, \
including a refusal, is private and costs the same budget.

Methods:
{}
Scales are the standard deviations of clean values. By default (`--scale auto`), a tenth of the budget estimates them. For \
correlated columns, `--scale whiten` spends four tenths of the budget on directions and their scales, and estimates the mean \
in these. A row with a missing value counts as a row in the middle. --missing skip leaves such rows out; the guarantee \
then covers only the complete rows.

Exit status: 0 success, also for a refusal; 1 failure; 2 wrong usage, or too few rows for the budget.

Examples:
  hushflow mean weather.csv --columns temp,wind_speed --method prime-ht --epsilon 1 --delta 1e-6 --corruption 0.01
  hushflow mean points.csv --scale 1 --epsilon 20 --delta 0.01 --corruption 0.05 --json",
        MeanMethod::ALL.iter().map(method).collect::<String>()
    )
}

/// Arguments of `hushflow mean`.
#[derive(Debug, Args)]
#[command(after_help = help())]
pub(crate) struct MeanArguments {
    /// CSV file with a header, NDJSON or Parquet, packed or not; - reads standard input
    file: PathBuf,
    /// Estimation method
    #[arg(long, default_value_t = MeanMethod::Auto, value_parser = |text: &str| text.parse::<MeanMethod>())]
    method: MeanMethod,
    /// ε of (ε, δ)-differential privacy, above 0
    #[arg(long, value_name = "ε", allow_hyphen_values = true, value_parser = number_in(Epsilon::new))]
    epsilon: Epsilon,
    /// δ of (ε, δ)-differential privacy, between 0 and 1
    #[arg(long, value_name = "δ", allow_hyphen_values = true, value_parser = number_in(Delta::new))]
    delta: Delta,
    /// α: share of rows that may be arbitrarily corrupt, below 1/2
    #[arg(long, value_name = "α", allow_hyphen_values = true)]
    corruption: f64,
    /// Columns to use, by name [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    columns: Option<Vec<String>>,
    /// Standard deviations of clean values: one for all columns, or one for each; or auto; or
    /// whiten, for correlated columns
    #[arg(long, value_name = "S,…|auto|whiten", default_value = "auto", allow_hyphen_values = true)]
    scale: String,
    /// tukey, resilience: bound on every mean, in scales around 0
    #[arg(long, value_name = "R", allow_hyphen_values = true, value_parser = number_in(range))]
    range: Option<f64>,
    /// How to treat rows with a missing value
    #[arg(long, value_enum, default_value_t = MeanMissingRows::Keep)]
    missing: MeanMissingRows,
    /// Draw the noise from a seed, for simulations: NOT private
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    #[command(flatten)]
    charge: ChargeArguments,
    /// Print one JSON object, with all digits
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MeanMissingRows {
    Keep,
    Skip,
    Reject,
}

impl From<MeanMissingRows> for MissingRows {
    fn from(name: MeanMissingRows) -> Self {
        match name {
            MeanMissingRows::Keep => MissingRows::Keep,
            MeanMissingRows::Skip => MissingRows::Skip,
            MeanMissingRows::Reject => MissingRows::Reject,
        }
    }
}

impl MeanArguments {
    fn check_range(&self) -> Result<(), CliError> {
        match self.range {
            Some(_) if !self.method.takes_range() => Err(CliError::usage(format!(
                "--range is for tukey and resilience; {} needs none: leave it out",
                self.method
            ))),
            _ => Ok(()),
        }
    }
}

fn range(value: f64) -> Result<f64, &'static str> {
    if value > 0.0 && value.is_finite() { Ok(value) } else { Err("expected a finite number above 0") }
}

/// Reads a scale: `auto`, `whiten`, one number for all columns, or one number for each column.
fn scale(text: &str, columns: usize) -> Result<Scale, CliError> {
    match text {
        "auto" => return Ok(Scale::Estimated),
        "whiten" => return Ok(Scale::Whitened),
        _ => (),
    }
    let numbers: Result<Vec<f64>, _> = text.split(',').map(|number| number.trim().parse()).collect();
    match numbers {
        Ok(numbers) if numbers.len() == 1 => Ok(Scale::Known(vec![numbers[0]; columns])),
        Ok(numbers) if numbers.len() == columns => Ok(Scale::Known(numbers)),
        Ok(numbers) => Err(CliError::usage(format!(
            "--scale has {} numbers for {columns} columns: give one for all columns or one for each",
            numbers.len()
        ))),
        Err(_) => Err(CliError::usage("--scale: expected auto, whiten or numbers such as 1 or 0.5,20")),
    }
}

/// The printed answer.
#[derive(Debug, Serialize)]
struct MeanSummary {
    epsilon: f64,
    delta: f64,
    corruption: f64,
    neighbours: &'static str,
    rows: usize,
    columns: Vec<String>,
    #[serde(flatten)]
    found: MeanReport,
    /// Clipping of each column; empty if unknown.
    clipping: Vec<Clipping>,
    /// Reasons to distrust the mean that `noise` does not cover.
    warnings: Vec<String>,
    /// Whether the noise came from the operating system.
    private: bool,
    seconds: f64,
}

impl MeanSummary {
    fn new(
        arguments: &MeanArguments,
        data: &Table,
        (answer, clipping): (MeanAnswer, Vec<Clipping>),
        seconds: f64,
    ) -> Self {
        let warnings = warnings(arguments, data, &answer, &clipping);
        MeanSummary {
            clipping,
            warnings,
            epsilon: arguments.epsilon.value(),
            delta: arguments.delta.value(),
            corruption: arguments.corruption,
            neighbours: "replace-one-in-place",
            rows: data.rows(),
            columns: data.columns().to_vec(),
            found: answer.into(),
            private: arguments.seed.is_none(),
            seconds,
        }
    }

    fn text(&self) -> String {
        let mut text = match (&self.found.mean, &self.found.noise) {
            (Some(mean), Some(noise)) => self.means(mean, noise),
            _ => String::new(),
        };
        if let Some(why) = &self.found.refusal {
            text +=
                &format!("No mean: {}. What was asked is spent: the refusal is an answer.\n", why.message);
        }
        if self.found.mean.is_some() {
            text += "noise: standard deviation of the noise alone. It does not cover what clipping and \
                filtering move.\n";
        }
        for warning in &self.warnings {
            text += &format!("Warning: {warning}\n");
        }
        text += "\n";
        text += &self.parts();
        text += &format!(
            "\n{} over {} rows spent ε = {} of {} at δ = {}, {} s.\n",
            self.found.method,
            self.rows,
            number(self.found.spent),
            number(self.epsilon),
            number(self.delta),
            number(self.seconds)
        );
        if self.found.converged == Some(false) {
            text +=
                "The filter ran out of rounds before the kept rows looked clean, so the mean may be wrong.\n";
        }
        if !self.private {
            text += "NOT private: a seed drew the noise.\n";
        }
        text
    }

    fn means(&self, mean: &[f64], noise: &[f64]) -> String {
        let heading = ["column", "mean", "noise"].map(String::from).to_vec();
        let columns = self.columns.iter().zip(mean).zip(noise);
        let row = |((name, mean), noise): ((&String, &f64), &f64)| {
            vec![name.clone(), number(*mean), number(*noise)]
        };
        table(&std::iter::once(heading).chain(columns.map(row)).collect::<Vec<_>>())
    }

    fn parts(&self) -> String {
        let heading = ["step", "releases", "μ²", "ε"].map(String::from).to_vec();
        let own = |value: f64| if value == 0.0 { "-".into() } else { number(value) };
        let row = |part: &StepCost| {
            vec![part.step.into(), part.releases.to_string(), own(part.squared_mu), own(part.epsilon)]
        };
        table(&std::iter::once(heading).chain(self.found.parts.iter().map(row)).collect::<Vec<_>>())
    }
}

/// A filter removes clean rows along with corrupt ones: up to this many times the corrupt share.
const REMOVED_ALLOWANCE: f64 = 4.0;

/// Returns why the mean may be far from that of the rows. All of it follows from released and
/// public numbers.
fn warnings(
    arguments: &MeanArguments,
    data: &Table,
    answer: &MeanAnswer,
    clipping: &[Clipping],
) -> Vec<String> {
    let Ok(estimate) = &answer.outcome else { return Vec::new() };
    let mut warnings = Vec::new();
    let advice = "if the rows are skewed rather than corrupt, give a larger --scale, or use a pipeline with public bounds";
    for ((name, noise), clipped) in data.columns().iter().zip(&estimate.noise).zip(clipping) {
        if clipped.share > arguments.corruption && clipped.bias.abs() > *noise {
            let direction = if clipped.bias < 0.0 { "low" } else { "high" };
            warnings.push(format!(
                "{name}: about {} of the rows lie outside {} to {} and were clipped, which makes the mean too {direction} by \
                 about {} or more: values too rare to be seen and filtering add to it, by an amount that no released number \
                 bounds; {advice}",
                percent(clipped.share),
                number(clipped.lower),
                number(clipped.upper),
                number(clipped.bias.abs()),
            ));
        }
    }
    let removed = estimate.kept.map_or(0.0, |kept| 1.0 - kept / data.rows() as f64);
    if removed > REMOVED_ALLOWANCE * arguments.corruption && removed > LEAST_REMOVED {
        let allowed = match arguments.corruption > 0.0 {
            true => format!("far more than the {} that may be corrupt", percent(arguments.corruption)),
            false => "though none may be corrupt".into(),
        };
        warnings.push(format!(
            "about {} of the rows were removed as outliers, {allowed}, so the mean misses a tail: {advice}",
            percent(removed),
        ));
    }
    warnings.extend(skewness_warning(arguments, data, (answer.method, removed), clipping));
    warnings
}

/// Formats a share.
fn percent(share: f64) -> String {
    match share {
        share if share > 0.0 && share < 5e-4 => "less than 0.1 %".into(),
        share => format!("{:.1} %", share * 100.0),
    }
}

/// A share of removed rows that causes a warning, even if no row may be corrupt.
const LEAST_REMOVED: f64 = 1e-3;

/// Returns how far the mean of skewed rows may be off. Nothing that is released bounds it in units
/// of the column: a few values in the tail can make the standard deviation arbitrarily large.
///
/// Let σ be the standard deviation of a column over all rows. Without a share q of the rows, the
/// mean moves by at most σ√(q/(1−q)): by Cauchy and Schwarz, |E[(X−μ)1_B]| = |Cov(X, 1_B)| ≤
/// σ√(q(1−q)) for the removed rows B. Values clipped to a range around the mean move it by no more
/// than if they were removed.
fn skewness_warning(
    arguments: &MeanArguments,
    data: &Table,
    (method, removed): (MeanMethod, f64),
    clipping: &[Clipping],
) -> Option<String> {
    let clipped = clipping.iter().map(|column| column.share).fold(0.0, f64::max);
    let (share, action) = match method {
        MeanMethod::Tukey => {
            return Some(
                "the answer is a median: where rows are skewed, it is off the mean by up to one standard deviation \
                 of the column"
                    .into(),
            );
        }
        MeanMethod::Gaussian => (clipped.max(arguments.corruption), "clips"),
        MeanMethod::Balloon => {
            return Some(
                "the answer leaves out a tail like corrupt rows: where rows are skewed, it is off the mean by an amount that no \
                 released number bounds"
                    .into(),
            );
        }
        _ => ((removed.max(0.0) + clipped).max(arguments.corruption), "removes or clips"),
    };
    // If more than half of the rows are removed, the released numbers determine too little.
    let share = share.min(0.5);
    let advice = "If a column may be skewed, publish its mean by a pipeline with public bounds (hushflow init FILE), or give a \
        --scale that covers its tail";
    if share <= 0.0 {
        return Some(format!(
            "{method} clips values outside of a range that it finds. None was seen there, but some may be too rare to be seen, and \
             how far they move the mean of a skewed column, no released number bounds. {advice}"
        ));
    }
    let deviations = (share / (1.0 - share)).sqrt();
    // Two digits: the standard deviation is a guess.
    let rough = |value: f64| number(format!("{value:.1e}").parse().unwrap_or(value));
    let scale = |(name, column): (&String, &Clipping)| format!("{} of {name}", rough(column.scale));
    let scales: Vec<String> = data.columns().iter().zip(clipping).map(scale).collect();
    let scales = match scales.is_empty() {
        true => String::new(),
        false => format!(" ({})", scales.join(", ")),
    };
    let like = if arguments.corruption > 0.0 { " like corrupt rows" } else { "" };
    Some(format!(
        "{method} {action} the tail of a skewed column{like}. For a share of {} of the rows this can move a mean by up to {} \
         standard deviations of its column. Those of a skewed column may be many times the scale{scales}, so no released number \
         bounds how far its mean is off. {advice}",
        percent(share),
        rough(deviations),
    ))
}

/// Reads the file, charges the ledger, estimates and prints.
pub(crate) fn execute(arguments: &MeanArguments) -> Result<(), CliError> {
    let start = Instant::now();
    arguments.check_range()?;
    let ledger = arguments.charge.ledger(matches!(arguments.missing, MeanMissingRows::Skip), "keep")?;
    let data = Table::read(&arguments.file, arguments.columns.as_deref(), arguments.missing.into())?;
    let question = Question {
        method: arguments.method,
        epsilon: arguments.epsilon,
        delta: arguments.delta,
        corruption: arguments.corruption,
        scale: scale(&arguments.scale, data.columns().len())?,
        range: arguments.range,
    };
    let source = arguments.seed.map_or(NoiseSource::System, NoiseSource::Seeded);
    // The generator of the first window of a stream: with the same seed, both give the same answer.
    let mut generator = source.generator(1, 0)?;
    let found = estimate_and_clipping(data.values(), data.columns().len(), &question, &mut generator);
    // An answer, or an error that depends on private releases, is printed only after the ledger is
    // charged.
    let paid = match &found {
        Ok((answer, _)) => Some(answer.method),
        Err(error) => error.follows_from_releases().then_some(question.method),
    };
    if let Some(method) = paid {
        let promise = (question.epsilon, question.delta);
        let charge = Charge::of_mean("mean".into(), (method, question.range.is_some()), promise, source)?;
        arguments.charge.enter(ledger.as_ref(), charge)?;
    }
    let answer = found?;
    let report = MeanSummary::new(arguments, &data, answer, start.elapsed().as_secs_f64());
    Ok(if arguments.json { print_json(&report) } else { print_wrapped(&report.text()) }?)
}
