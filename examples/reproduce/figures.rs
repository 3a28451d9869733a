//! Reproduces the figures of "Continual Release Moment Estimation with Differential Privacy" with
//! the mechanisms of this project.
//!
//! | figure | shows | file |
//! |---|---|---|
//! | 1 | errors of first against second moments: λ-JME, IME, CS | [`trade_off`](super::trade_off) |
//! | 2, 7 | errors of second moments: JME, PP | [`second_moments`](super::second_moments) |
//! | 3 | errors of covariances against the noise | [`covariance`](super::covariance) |
//! | 4 | errors of the diagonal, for Adam | [`second_moments`](super::second_moments) |
//! | 5 | divergence of a Gaussian density from the truth, by step | [`density`](super::density) |
//!
//! Curves are the closed forms of [`error`](hushflow::mechanism::error). Circles on them, and all
//! of Figure 5, are runs of the release path ([`simulate`](super::simulate)) with seeded noise.
//! Each figure also checks the paper's claims about it ([`FigureFinding`]). `docs/reproduction.md`
//! shows the results.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hushflow::mechanism::error::{Bounds, MethodComparison};
use hushflow::mechanism::mechanism::{MatrixMechanism, MechanismError, Method, MomentParameters};
use hushflow::mechanism::moments::{Layout, SecondMoment};
use hushflow::mechanism::release::ReleaseError;
use hushflow::mechanism::sensitivity::Neighbours;
use hushflow::mechanism::strategy::{MatrixError, Strategy, StrategyError};
use hushflow::mechanism::view::ViewError;
use hushflow::mechanism::workload::WorkloadError;
use serde::Serialize;
use thiserror::Error;

use super::simulate::RunMean;
use hushflow::plot::{LegendCorner, Panel, PlotError, PlotPoint, PlotSeries, PlotStyle, write_panels};

/// A figure of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    /// Figure 1.
    TradeOff,
    /// Figure 2.
    PrefixSums,
    /// Figure 3.
    Covariances,
    /// Figure 4.
    Adam,
    /// Figure 5.
    Densities,
    /// Figure 7.
    Workloads,
}

impl Figure {
    /// All figures, in the paper's order.
    pub(crate) const ALL: [Self; 6] =
        [Self::TradeOff, Self::PrefixSums, Self::Covariances, Self::Adam, Self::Densities, Self::Workloads];

    /// Name on the command line, for example `figure-1`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TradeOff => "figure-1",
            Self::PrefixSums => "figure-2",
            Self::Covariances => "figure-3",
            Self::Adam => "figure-4",
            Self::Densities => "figure-5",
            Self::Workloads => "figure-7",
        }
    }
}

/// The name on the command line.
impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The amount of work, and the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effort {
    /// Number of runs of Figures 3 and 5; circles of the others take a fifth of it, and at least
    /// 200.
    pub(crate) runs: u32,
    /// Seed of all noise and data.
    pub(crate) seed: u64,
    /// Whether streams are shorter, for a first look.
    pub(crate) quick: bool,
}

impl Effort {
    /// Number of runs of a circle. Each sums over many steps, so the mean of a few hundred is
    /// nearly normal.
    pub(crate) fn circle_runs(self) -> u32 {
        (self.runs / 5).max(200)
    }

    /// Number of steps of a stream.
    pub(crate) fn steps(self, steps: u64) -> u64 {
        if self.quick { steps.min(100) } else { steps }
    }
}

/// A reproduced figure.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reproduction {
    pub(crate) figure: Figure,
    /// Its diagrams.
    pub(crate) panels: Vec<Panel>,
    /// The checked claims of the paper.
    pub(crate) findings: Vec<FigureFinding>,
}

/// A claim and its evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct FigureFinding {
    pub(crate) claim: String,
    pub(crate) holds: bool,
    /// The numbers that support or refute it.
    pub(crate) evidence: String,
}

impl FigureFinding {
    pub(crate) fn new(claim: impl Into<String>, holds: bool, evidence: impl Into<String>) -> Self {
        Self { claim: claim.into(), holds, evidence: evidence.into() }
    }
}

/// Why a figure can't be reproduced.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum ReproductionError {
    /// A mechanism can't be made.
    #[error(transparent)]
    Mechanism(#[from] MechanismError),
    /// A strategy can't be made.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// A strategy can't be evaluated.
    #[error(transparent)]
    Matrix(#[from] MatrixError),
    /// A release failed.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// A view failed.
    #[error(transparent)]
    View(#[from] ViewError),
    /// A workload is not defined for the stream.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The noise of simulated data can't be drawn.
    #[error("the data of a simulation can't be drawn: {reason}")]
    Data {
        /// The problem.
        reason: String,
    },
    /// A plot can't be written.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// A file can't be written.
    #[error("{path}: the file can't be written: {reason}")]
    File {
        /// The file.
        path: String,
        /// The cause.
        reason: std::io::Error,
    },
}

/// Reproduces a figure; `progress` receives the name of each part as work on it begins. Equal
/// efforts give equal figures.
///
/// # Errors
/// [`ReproductionError`].
pub(crate) fn reproduce(
    figure: Figure,
    effort: Effort,
    progress: &mut dyn FnMut(&str),
) -> Result<Reproduction, ReproductionError> {
    let (panels, findings) = match figure {
        Figure::TradeOff => super::trade_off::figure(effort, progress)?,
        Figure::PrefixSums => super::second_moments::prefix_sums(effort, progress)?,
        Figure::Covariances => super::covariance::figure(effort, progress)?,
        Figure::Adam => super::second_moments::adam(effort, progress)?,
        Figure::Densities => super::density::figure(effort, progress)?,
        Figure::Workloads => super::second_moments::workloads(effort, progress)?,
    };
    Ok(Reproduction { figure, panels, findings })
}

/// Diagrams and findings of a figure.
pub(crate) type FigureContent = (Vec<Panel>, Vec<FigureFinding>);

impl Reproduction {
    /// Writes `figure-N.csv` and `figure-N.svg` into a directory and returns their paths.
    ///
    /// # Errors
    /// [`ReproductionError::File`] and [`ReproductionError::Plot`].
    pub(crate) fn write(&self, directory: &Path) -> Result<[PathBuf; 2], ReproductionError> {
        let path = |ending: &str| directory.join(format!("{}.{ending}", self.figure));
        let (csv, svg) = (path("csv"), path("svg"));
        let refused = |path: &Path| {
            let path = path.display().to_string();
            |reason| ReproductionError::File { path, reason }
        };
        std::fs::create_dir_all(directory).map_err(refused(directory))?;
        std::fs::write(&csv, self.csv()).map_err(refused(&csv))?;
        write_panels(&svg, &self.panels)?;
        Ok([csv, svg])
    }

    /// Formats all points as CSV: `low` and `high` are the ends of the band or bar.
    pub(crate) fn csv(&self) -> String {
        let mut text = String::from("panel,series,x,y,low,high\n");
        for panel in &self.panels {
            for series in &panel.series {
                for point in &series.points {
                    let [x, y, low, high] = [point.x, point.y, point.low, point.high].map(significant);
                    text += &format!("\"{}\",\"{}\",{x},{y},{low},{high}\n", panel.title, series.name);
                }
            }
        }
        text
    }
}

/// Formats a number with seven digits, so that a figure gives the same file on every machine.
fn significant(value: f64) -> String {
    format!("{value:.6e}")
}

/// Returns `count` numbers from `low` to `high`, evenly spaced in their logarithms.
pub(crate) fn geometric(low: f64, high: f64, count: usize) -> impl Iterator<Item = f64> + Clone {
    let last = (count - 1).max(1) as f64;
    (0..count).map(move |i| low * (high / low).powf(i as f64 / last))
}

/// Returns a mechanism in the paper's setting: records are replaced in place, counts are public.
pub(crate) fn in_place(
    method: Method,
    layout: Layout,
    clip_norm: f64,
    noise_multiplier: f64,
    second_moment_weight: Option<f64>,
    strategy: &Arc<dyn Strategy>,
) -> Result<MatrixMechanism, MechanismError> {
    let parameters = MomentParameters {
        method,
        layout,
        neighbours: Neighbours::ReplaceOneInPlace,
        clip_norm,
        noise_multiplier,
        second_moment_weight,
        count_weight: None,
        bin_weight: None,
    };
    MatrixMechanism::new(parameters, strategy.clone())
}

/// The layout of a few coordinates that represent all `dimension`: see
/// [`simulate`](super::simulate).
pub(crate) fn few_coordinates(dimension: usize, second: SecondMoment) -> Layout {
    Layout::new(dimension.min(2), second)
}

/// Maximum distance of a circle from its expectation, in standard errors. The probability that one
/// of the figures' 160 distances (two for a circle of Figure 1) exceeds it is below 10⁻⁵.
pub(crate) const FAR: f64 = 5.5;

/// Simulated squared errors of N methods for one σ, and their expectations.
pub(crate) struct Circle<const N: usize> {
    pub(crate) noise: f64,
    pub(crate) found: [RunMean; N],
    pub(crate) expected: [f64; N],
}

/// Returns the distance of the farthest circle from its expectation, in standard errors.
pub(crate) fn farthest<const N: usize>(circles: &[Circle<N>]) -> f64 {
    let distances = circles.iter().flat_map(|circle| {
        circle.found.iter().zip(circle.expected).map(|(found, expected)| found.distance(expected))
    });
    distances.fold(0.0, |far: f64, distance| far.max(distance.abs()))
}

/// Returns the circles of one method.
pub(crate) fn runs<const N: usize>(
    name: &str,
    colour: usize,
    circles: &[Circle<N>],
    method: usize,
) -> PlotSeries {
    let points = circles.iter().map(|circle| of_estimate(circle.noise, circle.found[method]));
    PlotSeries { name: name.into(), mark: PlotStyle::Circles, colour, points: points.collect() }
}

/// Errors of JME and PP against the noise, from low to high in `count` points, and circles of runs.
/// `published` is the squared error of JME with separate noise for each entry, if that differs.
pub(crate) fn comparison_panel(
    title: &str,
    (low, high, count): (f64, f64, usize),
    published: Option<&dyn Fn(f64) -> f64>,
    comparison: &dyn Fn(f64) -> MethodComparison,
    runs: impl IntoIterator<Item = PlotSeries>,
) -> Panel {
    let curve = |name: &str, mark, colour, squared_error: &dyn Fn(f64) -> Bounds| {
        let points = geometric(low, high, count).map(|x| {
            let Bounds { lower, upper } = squared_error(x).map(f64::sqrt);
            PlotPoint { x, y: upper, low: lower, high: upper }
        });
        PlotSeries { name: name.into(), mark, colour, points: points.collect() }
    };
    let exact = |error| Bounds { lower: error, upper: error };
    let published =
        published.map(|error| curve("JME, as published", PlotStyle::Dashes, 0, &|noise| exact(error(noise))));
    let curves = [
        curve("JME", PlotStyle::Line, 0, &|noise| exact(comparison(noise).joint)),
        curve("PP", PlotStyle::Band, 1, &|noise| comparison(noise).post_processing.biased()),
        curve("PP, debiased", PlotStyle::Band, 2, &|noise| comparison(noise).post_processing.debiased()),
    ];
    Panel {
        title: title.into(),
        x: "noise deviation σ (twice the noise multiplier)".into(),
        y: "root expected squared error".into(),
        legend: LegendCorner::UpperLeft,
        series: published.into_iter().chain(curves).chain(runs).collect(),
    }
}

/// Returns a circle at the root of a mean, with a bar of four standard errors either way.
pub(crate) fn of_estimate(x: f64, RunMean { mean, standard_error }: RunMean) -> PlotPoint {
    let bar = 4.0 * standard_error;
    PlotPoint { x, y: mean.sqrt(), low: (mean - bar).max(0.0).sqrt(), high: (mean + bar).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quick(figure: Figure, runs: u32) -> Reproduction {
        reproduce(figure, Effort { runs, seed: 1, quick: true }, &mut |_| {}).unwrap()
    }

    #[test]
    #[ignore = "slow"]
    fn every_figure_depends_on_its_seed_alone() {
        let directory = tempfile::tempdir().unwrap();
        for figure in Figure::ALL {
            let reproduction = quick(figure, 10);
            assert!(!reproduction.panels.is_empty() && !reproduction.findings.is_empty(), "{figure}");
            let [csv, svg] = reproduction.write(directory.path()).unwrap();
            let text = std::fs::read_to_string(&csv).unwrap();
            assert!(text.lines().count() > 50 && !text.contains("NaN") && !text.contains("inf"), "{figure}");
            assert!(svg.ends_with(format!("{figure}.svg")));
            assert_eq!(quick(figure, 10).csv(), text, "{figure}");
        }
    }

    /// Checks all claims except those of Figure 5, which takes too many runs for a test.
    #[test]
    #[ignore = "slow"]
    fn claims_of_closed_forms_hold() {
        for figure in Figure::ALL.into_iter().filter(|figure| *figure != Figure::Densities) {
            for finding in quick(figure, 1000).findings {
                assert!(finding.holds, "{figure}: {finding:?}");
            }
        }
    }
}
