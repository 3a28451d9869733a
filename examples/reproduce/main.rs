//! Reproduces the figures of the paper on joint moment estimation with the mechanisms of this
//! project, as CSV and SVG.
//!
//! ```sh
//! cargo run --release --example reproduce -- figure-2 --out figures
//! cargo run --release --example reproduce -- all --quick
//! cargo run --release --example reproduce -- figure-5 --runs 1000 --seed 7 --json
//! ```

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example prints its results")]

mod covariance;
mod density;
mod figures;
mod second_moments;
mod simulate;
mod trade_off;

use std::path::PathBuf;
use std::process::ExitCode;

use self::figures::{Effort, Figure, FigureFinding, ReproductionError, reproduce};
use clap::Parser;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use indicatif::ProgressBar;
use serde::Serialize;

/// Reproduces the figures of the paper on joint moment estimation and checks its claims.
#[derive(Debug, Parser)]
#[command(after_help = "\
The figures of \"Continual Release Moment Estimation with Differential Privacy\" (Kalinin, Upadhyay and Lampert 2025):

  figure-1   errors of first against second moments: λ-JME, α-IME, τ-CS
  figure-2   error of second moments over the noise: JME and PP, prefix sums
  figure-3   error of covariances over the noise
  figure-4   error of the diagonal in a million dimensions, for Adam
  figure-5   divergence of a Gaussian density from the truth, step by step
  figure-7   figure-2 for exponential and sliding-window weights

Curves are closed forms; circles, and all of figure-5, are runs of encoder, exact noise, decoder and view. The noise is \
seeded: the same arguments give the same files. The paper's claims are checked; docs/reproduction.md shows the results.")]
struct ReproductionArguments {
    /// Which figure: figure-1 to figure-5, figure-7, or all
    #[arg(value_name = "FIGURE", value_parser = names())]
    figures: Figures,
    /// Directory for FIGURE.csv and FIGURE.svg; created if missing
    #[arg(long, short, value_name = "DIR", default_value = "figures")]
    out: PathBuf,
    /// Number of runs of figure-3 (at least 1000) and figure-5; circles of the others take a fifth
    /// of them (at least 200)
    #[arg(long, value_name = "N", default_value_t = 1000, allow_hyphen_values = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(10..=100_000))]
    runs: u32,
    /// Seed of noise and data
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Streams of 100 steps, for a first look
    #[arg(long)]
    quick: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One figure or all.
#[derive(Clone, Debug)]
struct Figures(Vec<Figure>);

fn names() -> impl TypedValueParser<Value = Figures> {
    let names = Figure::ALL.into_iter().map(Figure::name).chain(["all"]);
    PossibleValuesParser::new(names).map(|name| {
        Figures(Figure::ALL.into_iter().filter(|figure| name == "all" || name == figure.name()).collect())
    })
}

/// A figure that was written.
#[derive(Debug, Serialize)]
struct FigureReport {
    figure: String,
    csv: PathBuf,
    svg: PathBuf,
    findings: Vec<FigureFinding>,
}

#[derive(Debug, Serialize)]
struct ReproductionReport {
    runs: u32,
    seed: u64,
    quick: bool,
    figures: Vec<FigureReport>,
}

fn main() -> ExitCode {
    match draw(&ReproductionArguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn draw(arguments: &ReproductionArguments) -> Result<(), ReproductionError> {
    let ReproductionArguments { runs, seed, quick, .. } = *arguments;
    let bar = ProgressBar::new_spinner();
    let mut reports = ReproductionReport { runs, seed, quick, figures: Vec::new() };
    for &figure in &arguments.figures.0 {
        let mut progress = |what: &str| bar.set_message(format!("{figure} {what}"));
        let reproduction = reproduce(figure, Effort { runs, seed, quick }, &mut progress)?;
        let [csv, svg] = reproduction.write(&arguments.out)?;
        reports.figures.push(FigureReport {
            figure: figure.to_string(),
            csv,
            svg,
            findings: reproduction.findings,
        });
    }
    bar.finish_and_clear();
    match arguments.json {
        true => println!("{}", serde_json::json!(reports)),
        false => print!("{}", text(&reports.figures)),
    }
    Ok(())
}

fn text(reports: &[FigureReport]) -> String {
    let finding = |FigureFinding { claim, holds, evidence }: &FigureFinding| {
        format!("  {} {claim}\n      {evidence}\n", if *holds { "yes" } else { "NO " })
    };
    let report = |report: &FigureReport| {
        let findings: String = report.findings.iter().map(finding).collect();
        format!("{}: {}, {}\n{findings}", report.figure, report.svg.display(), report.csv.display())
    };
    reports.iter().map(report).collect()
}
