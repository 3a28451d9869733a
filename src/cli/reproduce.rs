//! `hushflow reproduce`: the figures of the paper from our own mechanisms, as CSV and SVG.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use hushflow::reproduce::{Effort, Figure, Finding, reproduce};
use serde::Serialize;

use super::CliError;
use super::output::{print, print_json};
use super::progress::Bar;

/// What `hushflow reproduce` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
The figures of \"Continual Release Moment Estimation with Differential Privacy\" (Kalinin, Upadhyay and Lampert 2025):

  figure-1   errors of first against second moments: λ-JME, α-IME, τ-CS
  figure-2   error of second moments over the noise: JME and PP, prefix sums
  figure-3   error of covariances over the noise
  figure-4   error of the diagonal in a million dimensions, for Adam
  figure-5   divergence of a Gaussian density from the truth, step by step
  figure-7   figure-2 for exponential and sliding-window weights

Curves are closed forms; circles, and all of figure-5, are runs of encoder, exact noise, decoder and view. The noise is \
seeded: the same arguments give the same files. Each figure's claims are judged; docs/reproduction.md shows what came out.

Examples:
  hushflow reproduce figure-2 --out figures
  hushflow reproduce all --quick
  hushflow reproduce figure-5 --runs 1000 --seed 7 --json")]
pub(crate) struct ReproduceArguments {
    /// Which figure: figure-1 to figure-5, figure-7, or all
    #[arg(value_name = "FIGURE", value_parser = figures())]
    figures: Figures,
    /// Directory for FIGURE.csv and FIGURE.svg; made if there is none
    #[arg(long, short, value_name = "DIR", default_value = "figures")]
    out: PathBuf,
    /// Runs of figure-3 (at least 1000) and figure-5; circles of the others have a fifth of them (at least 200)
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

fn figures() -> impl TypedValueParser<Value = Figures> {
    let names = Figure::ALL.into_iter().map(Figure::name).chain(["all"]);
    PossibleValuesParser::new(names).map(|name| {
        Figures(Figure::ALL.into_iter().filter(|figure| name == "all" || name == figure.name()).collect())
    })
}

/// A figure that was written.
#[derive(Debug, Serialize)]
struct Report {
    figure: String,
    csv: PathBuf,
    svg: PathBuf,
    findings: Vec<Finding>,
}

#[derive(Debug, Serialize)]
struct Reports {
    runs: u32,
    seed: u64,
    quick: bool,
    figures: Vec<Report>,
}

/// Draws the figures and tells what became of the paper's claims.
pub(crate) fn execute(arguments: &ReproduceArguments) -> Result<(), CliError> {
    let ReproduceArguments { runs, seed, quick, .. } = *arguments;
    let bar = Bar::new();
    let mut reports = Reports { runs, seed, quick, figures: Vec::new() };
    for &figure in &arguments.figures.0 {
        let mut tell = |what: &str| bar.name(format!("{figure} {what}"));
        let reproduction = reproduce(figure, Effort { runs, seed, quick }, &mut tell)?;
        let [csv, svg] = reproduction.write(&arguments.out)?;
        reports.figures.push(Report {
            figure: figure.to_string(),
            csv,
            svg,
            findings: reproduction.findings,
        });
    }
    bar.finish();
    Ok(if arguments.json { print_json(&reports) } else { print(&text(&reports.figures)) }?)
}

fn text(reports: &[Report]) -> String {
    let finding = |Finding { claim, holds, evidence }: &Finding| {
        format!("  {} {claim}\n      {evidence}\n", if *holds { "yes" } else { "NO " })
    };
    let report = |report: &Report| {
        let findings: String = report.findings.iter().map(finding).collect();
        format!("{}: {}, {}\n{findings}", report.figure, report.svg.display(), report.csv.display())
    };
    reports.iter().map(report).collect()
}
