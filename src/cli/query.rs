//! `hushflow query`: private answers to linear queries over a histogram, by the certified optimum.

use std::io::{self, BufWriter, Write, stdout};
use std::path::{Path, PathBuf};

use clap::Args;
use hushflow::estimators::query::{QueryAnswers, QueryMechanism, QueryName, QueryStrategy, QueryWorkload};
use hushflow::format::table::{MissingRows, Table};
use hushflow::ledger::Charge;
use hushflow::lines::{OutputFormat, csv_line};
use hushflow::mechanism::accounting::{Delta, Epsilon, NoiseMultiplier, Rho, zcdp};
use hushflow::mechanism::noise::NoiseSource;
use hushflow::strategies::matrix::read_matrix;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::ledger::ChargeArguments;
use super::output::{half_width, number, print, print_json, print_wrapped, table};
use super::{CliError, FormatArgument, number_in};

/// Default δ of the (ε, δ) that is printed for a ρ.
const TOLD_DELTA: f64 = 1e-6;

/// Largest number of answers that the text output prints.
const SHOWN: usize = 40;

/// Arguments of `hushflow query`.
#[derive(Debug, Args)]
#[command(after_help = "\
The guarantee protects the presence of one record, which adds 1 to one cell. The cells are public: give --column with --bounds \
and --cells to count the values of a column, or --counts for a file that has one row for each cell.

Noise is added to a strategy with the least total squared error over all queries, found from the workload alone. `gap` is a \
verified bound on how far it is from the optimum of all strategies with Gaussian noise. --compare prints the expected errors of \
other strategies and reads no data.

Examples:
  hushflow query flights.csv --column distance --bounds 0:5000 --cells 64 --workload all-range --epsilon 1 --delta 1e-6
  hushflow query cells.csv --counts people --workload marginals:2 --sizes 4,3,2 --rho 0.1 --json
  hushflow query cells.csv --counts people --workload matrix:queries.csv --compare")]
pub(crate) struct QueryArguments {
    /// CSV file with a header, NDJSON or Parquet, packed or not; - reads standard input
    file: PathBuf,
    /// Queries: cells, prefix, all-range, marginals:K (needs --sizes), or matrix:FILE (CSV, one
    /// query in each row)
    #[arg(long, short = 'w')]
    workload: String,
    /// Column with the number of records of each cell, one row for each cell
    #[arg(long, value_name = "COLUMN", conflicts_with_all = ["column", "bounds", "cells"])]
    counts: Option<String>,
    /// Column whose values are counted
    #[arg(long, value_name = "COLUMN", requires = "bounds", requires = "cells")]
    column: Option<String>,
    /// Public bounds of the column; values outside count in the first or last cell
    #[arg(long, value_name = "LO:HI", allow_hyphen_values = true, value_parser = bounds)]
    bounds: Option<(f64, f64)>,
    /// Number of cells of equal width between the bounds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    cells: Option<u32>,
    /// marginals: number of values of each attribute; the last one varies fastest
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    sizes: Vec<usize>,
    /// ε of (ε, δ)-differential privacy, above 0
    #[arg(long, value_name = "ε", allow_hyphen_values = true, conflicts_with = "rho", requires = "delta",
          value_parser = number_in(Epsilon::new))]
    epsilon: Option<Epsilon>,
    /// δ that goes with ε; with ρ, the δ for which ε is printed
    #[arg(long, value_name = "δ", allow_hyphen_values = true, value_parser = number_in(Delta::new))]
    delta: Option<Delta>,
    /// ρ of zero-concentrated differential privacy, instead of ε and δ
    #[arg(long, value_name = "ρ", allow_hyphen_values = true, value_parser = number_in(Rho::new))]
    rho: Option<Rho>,
    /// Print the expected errors of other strategies; reads and spends nothing
    #[arg(long, conflicts_with_all = ["seed", "ledger"])]
    compare: bool,
    /// Draw the noise from a seed, for simulations: NOT private
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    charge: ChargeArguments,
    #[command(flatten)]
    format: FormatArgument,
}

/// Reads bounds such as `lo:hi`.
fn bounds(text: &str) -> Result<(f64, f64), String> {
    let numbers = text.split_once(':').and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
    match numbers {
        Some((low, high)) if low < high && f64::is_finite(high - low) => Ok((low, high)),
        _ => Err("expected two finite numbers, the first below the second, such as 0:250".into()),
    }
}

impl QueryArguments {
    /// Returns the workload; `cells` is the number of cells if public arguments determine it.
    fn workload(&self, cells: Option<usize>) -> Result<QueryWorkload, CliError> {
        let counted = || {
            cells.ok_or_else(|| {
                CliError::usage(
                    "--cells is missing: how many cells has the histogram? For example --cells 64",
                )
            })
        };
        let workload = match self.workload.as_str() {
            "cells" => QueryWorkload::Cells(counted()?),
            "prefix" => QueryWorkload::Prefixes(counted()?),
            "all-range" => QueryWorkload::AllRanges(counted()?),
            text => match text.split_once(':') {
                Some(("matrix", path)) => {
                    let matrix =
                        read_matrix(Path::new(path)).map_err(|error| CliError::usage(error.to_string()))?;
                    QueryWorkload::Matrix(matrix)
                }
                Some(("marginals", _)) if self.sizes.is_empty() => {
                    return Err(CliError::usage(
                        "--sizes is missing: how many values has each attribute? For example --sizes 4,3,2, the last one varying fastest",
                    ));
                }
                Some(("marginals", order)) => {
                    let order = order.parse().map_err(|_| {
                        CliError::usage("marginals:K: expected a number of attributes, such as marginals:2")
                    })?;
                    QueryWorkload::marginals(&self.sizes, order)?
                }
                _ => {
                    return Err(CliError::usage(
                        "--workload: expected cells, prefix, all-range, marginals:K or matrix:FILE",
                    ));
                }
            },
        };
        let expected = workload.cells();
        match cells {
            Some(found) if found != expected => Err(CliError::usage(format!(
                "the workload has {expected} cells and the histogram {found}: expected the same number"
            ))),
            _ => Ok(workload),
        }
    }

    /// Returns the exact count of each cell. Private.
    fn histogram(&self) -> Result<Vec<u64>, CliError> {
        let read = |column: &String| {
            Table::read(&self.file, Some(std::slice::from_ref(column)), MissingRows::Reject)
        };
        match (&self.counts, &self.column, self.bounds, self.cells) {
            (Some(column), ..) => {
                let whole = |count: &f64| *count >= 0.0 && count.fract() == 0.0 && *count < 9e15;
                let table = read(column)?;
                match table.values().iter().position(|count| !whole(count)) {
                    Some(row) => Err(CliError::failed(format!(
                        "the count of cell {} is not a whole number from 0 to 9e15",
                        row + 1
                    ))),
                    None => Ok(table.values().iter().map(|count| *count as u64).collect()),
                }
            }
            (None, Some(column), Some((low, high)), Some(cells)) => {
                let mut counts = vec![0; cells as usize];
                for value in read(column)?.values() {
                    let position = ((value - low) / (high - low) * f64::from(cells)).floor();
                    counts[position.clamp(0.0, f64::from(cells - 1)) as usize] += 1;
                }
                Ok(counts)
            }
            _ => Err(CliError::usage(
                "expected --counts COLUMN, or --column NAME with --bounds LO:HI and --cells N",
            )),
        }
    }

    /// Returns the number of attributes of each marginal, if the queries are marginals.
    fn marginal_order(&self) -> Option<usize> {
        self.workload.strip_prefix("marginals:")?.parse().ok()
    }

    fn noise(&self, mechanism: &QueryMechanism) -> Result<(NoiseMultiplier, Epsilon, Delta), CliError> {
        let told = Delta::new(TOLD_DELTA)?;
        let (noise, delta) = match (self.epsilon, self.delta, self.rho) {
            (Some(epsilon), Some(delta), None) if epsilon.value() > 0.0 => {
                return Ok((mechanism.noise_multiplier(epsilon, delta)?, epsilon, delta));
            }
            (None, delta, Some(rho)) => {
                (NoiseMultiplier::new((2.0 * rho.value()).sqrt().recip().next_up())?, delta.unwrap_or(told))
            }
            _ => {
                return Err(CliError::usage(
                    "expected --epsilon above 0 and --delta, or --rho: say how much privacy to spend",
                ));
            }
        };
        // Discrete Gaussian noise is ρ-zCDP itself, so this holds at every ε.
        let by_rho = zcdp::epsilon_rounded_up(noise.rho(), delta);
        let charge = self.charge_of((by_rho, delta), mechanism, noise)?;
        let by_curve = charge.spending()?.epsilon(delta);
        let epsilon = by_curve.filter(|epsilon| *epsilon < by_rho).unwrap_or(by_rho);
        Ok((noise, epsilon, delta))
    }

    fn charge_of(
        &self,
        promise: (Epsilon, Delta),
        mechanism: &QueryMechanism,
        noise: NoiseMultiplier,
    ) -> Result<Charge, CliError> {
        Ok(Charge::of_query(promise, (noise, mechanism.discreteness(noise)?), self.source()))
    }

    fn source(&self) -> NoiseSource {
        self.seed.map_or(NoiseSource::System, NoiseSource::Seeded)
    }

    /// Prints expected errors at σ = 1.
    fn print_comparison(&self, strategy: &QueryStrategy) -> Result<(), CliError> {
        let (error, bound) = strategy.error();
        let baselines = strategy.baselines()?;
        let (queries, cells) = (strategy.workload().queries(), strategy.workload().cells());
        let rows: Vec<(&str, f64)> = [("optimal", error)]
            .into_iter()
            .chain(baselines.iter().map(|baseline| (baseline.name, baseline.error)))
            .collect();
        let root = |error: f64| (error / queries as f64).sqrt();
        Ok(match self.format.format() {
            OutputFormat::Json => {
                let strategies: Vec<Value> = rows
                    .iter()
                    .map(|(name, error)| json!({"strategy": name, "squared_error": error, "rmse": root(*error)}))
                    .collect();
                print_json(&json!({"queries": queries, "cells": cells, "lower_bound": bound,
                    "strategies": strategies}))
            }
            OutputFormat::Csv => {
                let lines = rows
                    .iter()
                    .map(|(name, error)| [(*name).to_owned(), error.to_string(), root(*error).to_string()]);
                let header = ["strategy", "squared_error", "rmse"].map(String::from);
                print(
                    &[header].into_iter().chain(lines).map(|line| csv_line(line) + "\n").collect::<String>(),
                )
            }
            OutputFormat::Table(_) => {
                let header = vec!["strategy".into(), "rmse at σ = 1".into(), "of the bound".into()];
                let lines = rows.iter().map(|(name, error)| {
                    vec![(*name).to_owned(), number(root(*error)), format!("{:.3}", (error / bound).sqrt())]
                });
                print_wrapped(&table(&std::iter::once(header).chain(lines).collect::<Vec<_>>()))
            }
        }?)
    }
}

/// The printed answer.
struct QueryReport<'a> {
    mechanism: &'a QueryMechanism,
    found: &'a QueryAnswers,
    promise: (Epsilon, Delta),
    noise: NoiseMultiplier,
    private: bool,
    /// The sizes of the attributes and the number of them in each marginal.
    marginals: Option<(&'a [usize], usize)>,
}

impl QueryReport<'_> {
    fn gap(&self) -> f64 {
        let (error, bound) = self.mechanism.strategy().error();
        (error / bound - 1.0).max(0.0)
    }

    /// One object. The answers are written one by one, because there may be millions.
    fn json(&self) -> impl Serialize {
        #[derive(Serialize)]
        struct Answer {
            query: QueryName,
            answer: f64,
            noise: f64,
        }
        struct Answers<'a>(&'a QueryReport<'a>);
        impl Serialize for Answers<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_seq(self.0.rows().map(|(query, answer, noise)| Answer {
                    query,
                    answer,
                    noise,
                }))
            }
        }
        #[derive(Serialize)]
        struct Object<'a> {
            #[serde(flatten)]
            head: Value,
            answers: Answers<'a>,
        }
        let (error, bound) = self.mechanism.strategy().error();
        let head = json!({
            "private": self.private,
            "guarantee": {
                "epsilon": self.promise.0.value(), "delta": self.promise.1.value(),
                "rho": self.noise.rho().value(), "unit": "record", "neighbours": "zero-out",
            },
            "noise_multiplier": self.noise.value(),
            "squared_error": error * self.noise.value().powi(2),
            "lower_bound": bound * self.noise.value().powi(2),
            "gap": self.gap(),
            "cells": self.found.cells,
        });
        Object { head, answers: Answers(self) }
    }

    /// The name, the answer and the noise of each query.
    fn rows(&self) -> impl Iterator<Item = (QueryName, f64, f64)> {
        let answers = self.found.answers.iter().zip(&self.found.deviations);
        let names: Box<dyn Iterator<Item = QueryName>> = match self.marginals {
            Some((sizes, order)) => Box::new(QueryWorkload::marginal_names(sizes, order)),
            None => self.mechanism.workload().names(),
        };
        names.zip(answers).map(|(name, (a, noise))| (name, *a, *noise))
    }

    fn print_csv(&self) -> io::Result<()> {
        let mut out = BufWriter::new(stdout().lock());
        let header = ["query", "answer", "noise"].map(String::from);
        writeln!(out, "{}", csv_line(header))?;
        for (name, answer, noise) in self.rows() {
            writeln!(out, "{}", csv_line([name, answer.to_string(), noise.to_string()]))?;
        }
        out.flush()
    }

    fn text(&self) -> String {
        let header = vec!["query".into(), "answer".into(), String::new()];
        let lines = self.rows().take(SHOWN);
        let lines = lines.map(|(name, answer, noise)| {
            vec![name, number(answer), format!("± {}", number(half_width(noise)))]
        });
        let mut text = table(&std::iter::once(header).chain(lines).collect::<Vec<_>>());
        let all = self.mechanism.workload().queries();
        if all > SHOWN {
            text += &format!("{SHOWN} of {all} answers: --json or --format csv prints all.\n");
        }
        let [epsilon, delta] = [self.promise.0.value(), self.promise.1.value()].map(number);
        text += &format!(
            "± is the half-width of the 95 % confidence interval.\n\nThe total squared error is at most {:.1e} above that of every \
             strategy with Gaussian noise.\nThe answers together are ({epsilon}, {delta})-differentially private, for zero-out \
             neighbours.\n",
            self.gap()
        );
        if !self.private {
            text += "The noise was drawn from a seed: a simulation, NOT private.\n";
        }
        text
    }
}

/// Answers and prints the queries.
pub(crate) fn execute(arguments: &QueryArguments) -> Result<(), CliError> {
    if !arguments.sizes.is_empty() && !arguments.workload.starts_with("marginals:") {
        return Err(CliError::usage(format!(
            "--sizes is for marginals:K, and --workload is {}: leave it out",
            arguments.workload
        )));
    }
    let public = arguments.cells.map(|cells| cells as usize);
    if arguments.compare {
        return arguments.print_comparison(&QueryStrategy::optimal(&arguments.workload(public)?)?);
    }
    let ledger = arguments.charge.ledger(false, "")?;
    // One row for each cell: their number is public.
    let counts = arguments.histogram()?;
    let mechanism = QueryMechanism::new(arguments.workload(Some(counts.len()))?)?;
    let (noise, epsilon, delta) = arguments.noise(&mechanism)?;
    let mut generator = arguments.source().generator(1, 0)?;
    let found = mechanism.release(&counts, noise, &mut generator)?;
    arguments.charge.enter(ledger.as_ref(), arguments.charge_of((epsilon, delta), &mechanism, noise)?)?;
    let report = QueryReport {
        mechanism: &mechanism,
        found: &found,
        promise: (epsilon, delta),
        noise,
        private: arguments.source().is_private(),
        marginals: arguments.marginal_order().map(|order| (&arguments.sizes[..], order)),
    };
    Ok(match arguments.format.format() {
        OutputFormat::Json => print_json(&report.json()),
        OutputFormat::Csv => report.print_csv(),
        OutputFormat::Table(_) => print_wrapped(&report.text()),
    }?)
}
