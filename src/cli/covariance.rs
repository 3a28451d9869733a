//! `hushflow covariance`: a private covariance of the rows of a file.

mod regression;
mod report;

use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, ValueEnum};
use hushflow::estimators::covariance::{
    CovarianceBudget, CovarianceError, CovarianceEstimate, CovarianceMethod, CovarianceSample,
    CovarianceSpending, Pace,
};
use hushflow::format::table::{MissingRows, Table};
use hushflow::ledger::Charge;
use hushflow::lines::OutputFormat;
use hushflow::mechanism::accounting::{Delta, Epsilon, Rho};
use hushflow::mechanism::estimate::projection::Projection;
use hushflow::mechanism::noise::NoiseSource;
use hushflow::mechanism::sensitivity::Neighbours;
use serde_json::{Map, Value, json};

use super::ledger::ChargeArguments;
use super::output::{number, print, print_json, print_wrapped};
use super::{CliError, FormatArgument, number_in};
use regression::RegressionRequest;
use report::CovarianceReport;

/// Default δ of the (ε, δ) that is printed for a ρ.
const TOLD_DELTA: f64 = 1e-6;

/// Arguments of `hushflow covariance`.
#[derive(Debug, Args)]
#[command(after_help = "\
Every row is a record; the guarantee protects one record. Columns are clipped to public bounds: choose the bounds without \
looking at the data. Without --centre, the answer is the mean product of deviations from the middle of the bounds, not from the mean: \
add --centre for the covariance about a private mean.

shrunk adds noise to all entries of records that are clipped to a private norm, and shrinks the matrix by what the noise is \
known to be. pace measures the diagonal, then in each round one entry that the current estimate fits badly, and completes the \
matrix. ssp adds noise to all entries; ssp-tight adds the least noise that hides a record between the bounds.

Examples:
  hushflow covariance scaled.csv --rho 0.1 --json
  hushflow covariance weather.csv --columns temp,humid --bounds 0:110,0:100 --epsilon 1 --delta 1e-6 --centre --missing skip
  hushflow covariance scaled.csv --rho 1 --method pace --dot graph.dot
  hushflow covariance scaled.csv --rho 1 --target price --method ssp")]
pub(crate) struct CovarianceArguments {
    /// CSV file with a header, NDJSON or Parquet, packed or not; - reads standard input
    file: PathBuf,
    /// Estimation method; auto is pace if a flag for pace is given, and shrunk otherwise
    #[arg(long, default_value = "auto", value_parser = method_choice)]
    method: MethodChoice,
    /// ρ of zero-concentrated differential privacy to spend, above 0
    #[arg(long, value_name = "ρ", allow_hyphen_values = true, value_parser = number_in(Rho::new))]
    rho: Option<Rho>,
    /// ε of (ε, δ)-differential privacy to spend, instead of ρ
    #[arg(long, value_name = "ε", allow_hyphen_values = true, conflicts_with = "rho", requires = "delta",
          value_parser = number_in(Epsilon::new))]
    epsilon: Option<Epsilon>,
    /// δ that goes with ε; with ρ, the δ for which ε is printed
    #[arg(long, value_name = "δ", allow_hyphen_values = true, value_parser = number_in(Delta::new))]
    delta: Option<Delta>,
    /// Columns to use, by name [default: all]
    #[arg(long, value_delimiter = ',')]
    columns: Option<Vec<String>>,
    /// Public bounds: one lo:hi for all columns, or one for each
    #[arg(long, value_name = "LO:HI", value_delimiter = ',', allow_hyphen_values = true, default_value = "-1:1",
          value_parser = bounds)]
    bounds: Vec<(f64, f64)>,
    /// What the guarantee hides: the values of a row, or also its presence
    #[arg(long, value_enum, default_value_t = NeighboursArgument::ReplaceOneInPlace)]
    neighbours: NeighboursArgument,
    /// Centre by a private mean, with this share of the budget
    #[arg(long, value_name = "SHARE", num_args = 0..=1, default_missing_value = "0.1", allow_negative_numbers = true)]
    centre: Option<f64>,
    /// Print a noisy count of the rows with a value outside the bounds, with this share of the
    /// budget
    #[arg(long, value_name = "SHARE", num_args = 0..=1, default_missing_value = "0.01", allow_negative_numbers = true)]
    count_clipped: Option<f64>,
    /// pace: share α of the budget for the diagonal [default: 0.3]
    #[arg(long, value_name = "α", allow_negative_numbers = true)]
    diagonal_share: Option<f64>,
    /// pace: share β of each round's budget for the selection [default: 0.5]
    #[arg(long, value_name = "β", allow_negative_numbers = true)]
    selection_share: Option<f64>,
    /// pace: number of rounds T that the budget lasts for [default: twice the number of pairs]
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
    /// ssp, ssp-tight, diagonal: how to turn the noisy entries into a covariance: floor, nearest,
    /// shrink or raw [default: nearest]
    #[arg(long, value_name = "PROJECTION", value_parser = |text: &str| text.parse::<Projection>())]
    projection: Option<Projection>,
    /// Regress this column on the others, through the middle of the bounds, with a third of the
    /// budget for the ridge. With ssp this is AdaSSP
    #[arg(long, value_name = "COLUMN",
          conflicts_with_all = ["centre", "count_clipped", "projection", "dot", "diagonal_share", "selection_share", "rounds"])]
    target: Option<String>,
    /// How to treat rows with a missing value
    #[arg(long, value_enum, default_value_t = CovarianceMissingRows::Reject)]
    missing: CovarianceMissingRows,
    /// Draw the noise from a seed, for simulations: NOT private
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    charge: ChargeArguments,
    /// Write the graph of measured pairs to this file in the DOT language
    #[arg(long, value_name = "FILE")]
    dot: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArgument,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum NeighboursArgument {
    /// One row is replaced by another: the number of rows is public
    #[value(name = "replace-one-in-place", alias = "replace-one")]
    ReplaceOneInPlace,
    /// One row is blanked: the number of rows is private
    ZeroOut,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CovarianceMissingRows {
    /// Fail
    Reject,
    /// Leave the row out: the guarantee covers the other rows
    Skip,
    /// Count the row as the middle of the bounds: the guarantee covers all rows
    Centre,
}

/// A method, or `auto`.
#[derive(Clone, Copy, Debug)]
enum MethodChoice {
    Auto,
    Given(CovarianceMethod),
}

fn method_choice(text: &str) -> Result<MethodChoice, String> {
    match text {
        "auto" => Ok(MethodChoice::Auto),
        name => name.parse().map(MethodChoice::Given).map_err(|_| {
            let names = CovarianceMethod::ALL.map(CovarianceMethod::name).join(", ");
            format!("expected auto, {names}")
        }),
    }
}

/// Reads bounds such as `lo:hi`.
fn bounds(text: &str) -> Result<(f64, f64), String> {
    let numbers = text.split_once(':').and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
    numbers.ok_or_else(|| "expected two numbers with a colon between them, such as -1:1 or 0:250".into())
}

impl CovarianceArguments {
    /// Returns the method: the given one, or the one that the other arguments require.
    fn method(&self) -> CovarianceMethod {
        let of_pace = self.dot.is_some() || self.pace_flags().into_iter().any(|(_, given)| given);
        match self.method {
            MethodChoice::Given(method) => method,
            MethodChoice::Auto if of_pace => CovarianceMethod::Pace,
            MethodChoice::Auto => CovarianceMethod::Shrunk,
        }
    }

    /// Flags for [`CovarianceMethod::Pace`] alone, and whether they are given.
    fn pace_flags(&self) -> [(&'static str, bool); 3] {
        [
            ("--diagonal-share", self.diagonal_share.is_some()),
            ("--selection-share", self.selection_share.is_some()),
            ("--rounds", self.rounds.is_some()),
        ]
    }

    fn rho(&self, columns: usize) -> Result<Rho, CliError> {
        match (self.rho, self.epsilon, self.delta) {
            (Some(rho), None, _) => Ok(rho),
            (None, Some(epsilon), Some(delta)) => match self.method() {
                CovarianceMethod::Pace => self.pace().rho_for(columns, (epsilon, delta)),
                method => method.rho_for(columns, (epsilon, delta)),
            }
            .ok_or_else(|| {
                CliError::usage(format!(
                    "no discrete noise is known to give epsilon {:?} at delta {:?}: {}",
                    epsilon.value(),
                    delta.value(),
                    if epsilon.value() > 1.0 {
                        "give a smaller epsilon, or --rho"
                    } else {
                        "give a larger epsilon or delta"
                    }
                ))
            }),
            _ => Err(CliError::usage(
                "expected --rho, or --epsilon and --delta: say how much privacy to spend",
            )),
        }
    }

    fn neighbours(&self) -> Neighbours {
        match self.neighbours {
            NeighboursArgument::ReplaceOneInPlace => Neighbours::ReplaceOneInPlace,
            NeighboursArgument::ZeroOut => Neighbours::ZeroOut,
        }
    }

    fn table(&self) -> Result<Table, CliError> {
        let missing = match self.missing {
            CovarianceMissingRows::Reject => MissingRows::Reject,
            CovarianceMissingRows::Skip => MissingRows::Skip,
            CovarianceMissingRows::Centre => MissingRows::Keep,
        };
        Ok(Table::read(&self.file, self.columns.as_deref(), missing)?)
    }

    /// Returns the bounds of each column.
    fn bounds_of(&self, columns: &[String]) -> Result<Vec<(f64, f64)>, CliError> {
        let bounds = match self.bounds[..] {
            [all] => vec![all; columns.len()],
            _ => self.bounds.clone(),
        };
        if bounds.len() != columns.len() {
            let (found, expected) = (bounds.len(), columns.len());
            let message = format!(
                "found {found} pairs of --bounds for {expected} columns: give one for all columns or one for each"
            );
            return Err(CliError::usage(message));
        }
        let spans = |(low, high): &(f64, f64)| low < high && low.is_finite() && high.is_finite();
        match columns.iter().zip(&bounds).find(|(_, bounds)| !spans(bounds)) {
            Some((name, (low, high))) => Err(CliError::usage(format!(
                "column {name:?} is bounded by {low} and {high}: give two finite numbers, the first below the second"
            ))),
            None => Ok(bounds),
        }
    }

    /// Returns the projection; `None` for methods that don't measure all entries at once.
    fn projection_taken(&self) -> Option<Projection> {
        self.projection.or(self.method().measures_at_once().then_some(Projection::Nearest))
    }

    /// Refuses flags that the method does not use, and a budget of 0.
    fn check(&self) -> Result<(), CliError> {
        if self.epsilon.is_some_and(|epsilon| epsilon.value() == 0.0) {
            return Err(CliError::usage("epsilon is 0, which allows no output: give one above 0"));
        }
        match (self.pace_flags().into_iter().find(|(_, given)| *given), self.projection) {
            (Some((flag, _)), _) if self.method() != CovarianceMethod::Pace => Err(CliError::usage(format!(
                "{flag} is for pace, which measures in rounds; {} does not: leave it out",
                self.method()
            ))),
            (_, Some(_)) if !self.method().measures_at_once() => Err(CliError::usage(format!(
                "--projection is for methods that measure all entries at once (ssp, ssp-tight and diagonal); the estimate \
                 of {} is already semidefinite: leave it out",
                self.method()
            ))),
            _ => Ok(()),
        }
    }

    fn source(&self) -> NoiseSource {
        self.seed.map_or(NoiseSource::System, NoiseSource::Seeded)
    }

    /// Returns the estimate, with the noisy count of clipped rows if requested. The inner error
    /// depends on private releases and must be paid for.
    fn estimate(
        &self,
        sample: &CovarianceSample<'_>,
        rho: Rho,
    ) -> Result<Result<CovarianceResult, CovarianceError>, CliError> {
        let mut generator =
            self.source().generator(1, 0).map_err(|error| CliError::failed(error.to_string()))?;
        let mut budget = CovarianceBudget::new(rho);
        let count = |share| sample.count_clipped(share, &mut budget, &mut generator);
        let clipped = self.count_clipped.map(count).transpose()?;
        let found = match self.method() {
            CovarianceMethod::Pace => self.pace().estimate(sample, budget, &mut generator),
            method => method.estimate(sample, self.centre, budget, &mut generator),
        };
        let found = match self.projection {
            Some(projection) => found.and_then(|found| found.projected(projection)),
            None => found,
        };
        match found {
            Err(error) if !error.follows_from_releases() => Err(error.into()),
            found => Ok(found.map(|estimate| CovarianceResult { estimate, clipped })),
        }
    }

    fn pace(&self) -> Pace {
        let default = Pace::default();
        Pace {
            diagonal_share: self.diagonal_share.unwrap_or(default.diagonal_share),
            selection_share: self.selection_share.unwrap_or(default.selection_share),
            rounds: self.rounds,
            centre: self.centre,
        }
    }

    /// Returns the privacy cost of the estimate.
    fn spending(&self, columns: usize, rho: Rho) -> Result<CovarianceSpending, CovarianceError> {
        match self.method() {
            CovarianceMethod::Pace => self.pace().spending(columns, rho),
            method => method.spending(columns, rho),
        }
    }

    /// Charges the estimate to the ledger, if there is one.
    fn enter(
        &self,
        name: &str,
        ledger: Option<&PathBuf>,
        spending: &CovarianceSpending,
        describe: (Epsilon, Delta),
    ) -> Result<(), CliError> {
        let name = (name.to_owned(), self.method());
        let charge = Charge::of_covariance(name, spending, describe, self.neighbours(), self.source())?;
        self.charge.enter(ledger, charge)
    }

    /// Returns the fields that begin every JSON answer.
    fn promise(&self, rho: Rho, (epsilon, delta): (Epsilon, Delta)) -> Map<String, Value> {
        let guarantee = json!({
            "rho": rho.value(), "epsilon": epsilon.value(), "delta": delta.value(),
            "unit": "record", "neighbours": self.neighbours(),
        });
        Map::from_iter([
            ("method".into(), json!(self.method().name())),
            ("private".into(), json!(self.source().is_private())),
            ("guarantee".into(), guarantee),
            ("rho".into(), json!(rho.value())),
        ])
    }

    /// Returns the guarantee that ends every text answer.
    fn describe(&self, rho: Rho, (epsilon, delta): (Epsilon, Delta)) -> String {
        let [rho, epsilon, delta] = [rho.value(), epsilon.value(), delta.value()].map(number);
        let neighbours = self.neighbours();
        let warning = match self.source().is_private() {
            true => "",
            false => "The noise was drawn from a seed: a simulation, NOT private.\n",
        };
        format!(
            "\nThe answer is {rho}-zCDP, and so ({epsilon}, {delta})-differentially private, for {neighbours} neighbours.\n{warning}"
        )
    }
}

/// The estimate, and the number of clipped rows with the standard deviation of its noise.
struct CovarianceResult {
    estimate: CovarianceEstimate,
    clipped: Option<(f64, f64)>,
}

/// Estimates and prints the covariance.
pub(crate) fn execute(arguments: &CovarianceArguments) -> Result<(), CliError> {
    let start = Instant::now();
    let delta = match arguments.delta {
        Some(delta) => delta,
        None => Delta::new(TOLD_DELTA).map_err(|error| CliError::usage(error.to_string()))?,
    };
    // Check the arguments before reading the file.
    arguments.rho(1)?;
    arguments.check()?;
    let ledger =
        arguments.charge.ledger(matches!(arguments.missing, CovarianceMissingRows::Skip), "centre")?;
    let table = arguments.table()?;
    let bounds = arguments.bounds_of(table.columns())?;
    let rho = arguments.rho(bounds.len())?;
    let columns = table.columns();
    let target =
        arguments.target.as_deref().map(|target| RegressionRequest::position(columns, target)).transpose()?;
    let sample = CovarianceSample::new(&bounds, table.values(), arguments.neighbours())?;
    if let Some(target) = target {
        let ledger = ledger.as_ref();
        return RegressionRequest { arguments, columns, bounds: &bounds, rho, delta, target, ledger }
            .answer(&sample);
    }
    let estimate = arguments.estimate(&sample, rho)?;
    let spending = arguments.spending(bounds.len(), rho)?;
    let epsilon = spending.epsilon(delta)?;
    // An answer, or an error that depends on private releases, is printed only after the ledger is
    // charged.
    arguments.enter("covariance", ledger.as_ref(), &spending, (epsilon, delta))?;
    let CovarianceResult { estimate, clipped } = estimate?;
    if let Some(path) = &arguments.dot {
        std::fs::write(path, estimate.dot(columns))
            .map_err(|error| CliError::failed(format!("{}: can't be written: {error}", path.display())))?;
    }
    let report = CovarianceReport {
        arguments,
        columns,
        bounds: &bounds,
        rho,
        epsilon,
        delta,
        estimate: &estimate,
        clipped,
        seconds: start.elapsed().as_secs_f64(),
    };
    Ok(match arguments.format.format() {
        OutputFormat::Json => print_json(&report.json()),
        OutputFormat::Csv => print(&report.csv()),
        OutputFormat::Table(_) => print_wrapped(&report.text()),
    }?)
}
