//! Figures 2, 4 and 7: the error of second moments against the noise.
//!
//! x is the paper's σ, the noise deviation for columns of norm 1 and ζ = 1: twice the noise
//! multiplier. y is the root of the expected squared error of all steps and entries, for the worst
//! data. If only bounds of it are known (Lemma C.1), a band lies between them. Circles are runs
//! with records that change their sign at every step.
//!
//! If all d² entries count, JME has two curves: as published, with separate noise for each entry,
//! and as implemented here, where a symmetric matrix is released. The latter has about half the
//! squared error.

use std::sync::Arc;

use hushflow::mechanism::error::{
    Better, Bounds, ExpectedError, InPlaceRelease, MethodComparison, PostProcessing, SecondEntries,
};
use hushflow::mechanism::mechanism::Method;
use hushflow::mechanism::moments::SecondMoment;
use hushflow::mechanism::strategy::{Strategy, build};
use hushflow::mechanism::view::SquareBias;
use hushflow::mechanism::workload::Workload;

use super::figures::{
    Circle, Effort, FAR, FigureContent, FigureFinding, ReproductionError, comparison_panel, farthest,
    few_coordinates, geometric, in_place, runs,
};
use super::simulate::{Quantity, RunMean, SimulatedStream, equal_entries};
use hushflow::plot::Panel;

/// Range of the paper's σ (lowest, highest) and number of points.
const SIGMA_RANGE: (f64, f64, usize) = (0.005, 20.0, 73);

/// σ at which mechanisms are run.
const SIMULATED_SIGMAS: [f64; 4] = [0.05, 0.7, 1.5, 10.0];

/// Figure 2: prefix sums of 1000 steps.
pub(super) fn prefix_sums(
    effort: Effort,
    progress: &mut dyn FnMut(&str),
) -> Result<FigureContent, ReproductionError> {
    let full = SecondMoment::Full;
    let case = |letter, dimension, strategy| {
        SecondMomentPanel::new(letter, "prefix", strategy, dimension, full, effort)
    };
    let cases = [
        case("a", 1, "identity"),
        case("b", 1, "square-root"),
        case("c", 1000, "identity"),
        case("d", 1000, "square-root"),
    ];
    draw(cases, progress)
}

/// Figure 4: the diagonal of Adam's second moments in a million dimensions.
pub(super) fn adam(
    effort: Effort,
    progress: &mut dyn FnMut(&str),
) -> Result<FigureContent, ReproductionError> {
    let case = |letter, strategy| {
        SecondMomentPanel::new(letter, "adam:0.999", strategy, 1_000_000, SecondMoment::Diagonal, effort)
    };
    draw([case("a", "identity"), case("b", "square-root")], progress)
}

/// Figure 7: other workloads in 100 dimensions.
pub(super) fn workloads(
    effort: Effort,
    progress: &mut dyn FnMut(&str),
) -> Result<FigureContent, ReproductionError> {
    let case = |letter, workload, strategy| {
        SecondMomentPanel::new(letter, workload, strategy, 100, SecondMoment::Full, effort)
    };
    let cases = [
        case("a", "exponential:0.9", "identity"),
        case("b", "exponential:0.9", "square-root"),
        case("c", "window:10", "identity"),
        case("d", "window:10", "square-root"),
    ];
    draw(cases, progress)
}

fn draw(
    cases: impl IntoIterator<Item = Result<SecondMomentPanel, ReproductionError>>,
    progress: &mut dyn FnMut(&str),
) -> Result<FigureContent, ReproductionError> {
    let (mut panels, mut findings) = (Vec::new(), Vec::new());
    for case in cases {
        let case = case?;
        progress(&case.title);
        let circles = case.circles()?;
        findings.extend(case.findings(&circles));
        panels.push(case.panel(&circles));
    }
    Ok((panels, findings))
}

struct SecondMomentPanel {
    title: String,
    workload: Workload,
    strategy: Arc<dyn Strategy>,
    steps: u64,
    dimension: usize,
    second: SecondMoment,
    effort: Effort,
    /// Error of the workload under the strategy.
    error: ExpectedError,
    post_processing: PostProcessing,
}

impl SecondMomentPanel {
    fn new(
        letter: &str,
        workload: &str,
        strategy: &str,
        dimension: usize,
        second: SecondMoment,
        effort: Effort,
    ) -> Result<Self, ReproductionError> {
        let steps = effort.steps(1000);
        let title = format!("({letter}) {workload}, {strategy}, d = {dimension}, n = {steps}");
        let workload: Workload = workload.parse()?;
        let strategy = build(strategy, &workload, Some(steps))?;
        let error = ExpectedError::new(&workload, strategy.as_ref(), steps)?;
        let post_processing = PostProcessing::new(&workload, strategy.as_ref(), steps)?;
        Ok(Self { title, workload, strategy, steps, dimension, second, effort, error, post_processing })
    }

    /// Returns the release at the paper's σ.
    fn release(&self, noise: f64) -> InPlaceRelease {
        InPlaceRelease::new(self.dimension, 1.0, noise / 2.0).with_column_norm(self.error.sensitivity)
    }

    fn entries(&self) -> SecondEntries {
        if self.second == SecondMoment::Full { SecondEntries::Symmetric } else { SecondEntries::Diagonal }
    }

    fn joint(&self, entries: SecondEntries, noise: f64) -> f64 {
        let joint = self.release(noise).joint();
        joint.second_moment_error(entries, self.dimension, self.error.frobenius)
    }

    fn comparison(&self, noise: f64) -> MethodComparison {
        let deviation = self.release(noise).post_processed();
        let (entries, dimension) = (self.entries(), self.dimension);
        MethodComparison {
            joint: self.joint(entries, noise),
            post_processing: self.post_processing.error(entries, dimension, 1.0, deviation),
        }
    }

    fn circles(&self) -> Result<Vec<Circle<3>>, ReproductionError> {
        SIMULATED_SIGMAS.iter().map(|&noise| self.circle(noise)).collect()
    }

    fn circle(&self, noise: f64) -> Result<Circle<3>, ReproductionError> {
        let MethodComparison { joint, post_processing } = self.comparison(noise);
        let sum = self.post_processing.alternating_records();
        let deviation = self.release(noise).post_processed();
        let debiased = post_processing.quadratic
            + PostProcessing::linear(self.entries(), self.dimension, deviation, sum);
        Ok(Circle {
            noise,
            found: [
                self.run(Method::Jme, SquareBias::Removed, noise)?,
                self.run(Method::Pp, SquareBias::Kept, noise)?,
                self.run(Method::Pp, SquareBias::Removed, noise)?,
            ],
            expected: [joint, debiased + post_processing.bias, debiased],
        })
    }

    fn run(&self, method: Method, square_bias: SquareBias, noise: f64) -> Result<RunMean, ReproductionError> {
        let layout = few_coordinates(self.dimension, self.second);
        let mechanism = in_place(method, layout, 1.0, noise / 2.0, None, &self.strategy)?;
        let signs = (0..self.steps).map(|t| t % 2 == 0);
        let records = equal_entries(self.dimension, layout.dimension, signs);
        let stream = SimulatedStream {
            mechanism: &mechanism,
            workload: &self.workload,
            square_bias,
            dimension: self.dimension,
            records: &records,
        };
        let runs = self.effort.circle_runs();
        Ok(stream.run(Quantity::SecondMoments, runs, self.effort.seed)?.second)
    }

    fn panel(&self, circles: &[Circle<3>]) -> Panel {
        let published = |noise| self.joint(SecondEntries::Independent, noise);
        let published = (self.second == SecondMoment::Full && self.dimension > 1)
            .then_some(&published as &dyn Fn(f64) -> f64);
        let names = ["JME, runs", "PP, runs", "PP debiased, runs"];
        let runs = names.iter().enumerate().map(|(method, name)| runs(name, method, circles, method));
        comparison_panel(&self.title, SIGMA_RANGE, published, &|noise| self.comparison(noise), runs)
    }

    fn findings(&self, circles: &[Circle<3>]) -> Vec<FigureFinding> {
        let farthest = farthest(circles);
        vec![
            FigureFinding::new(
                format!("{}: the errors of the runs agree with the closed forms", self.title),
                farthest < FAR,
                format!(
                    "{} runs at each of {SIMULATED_SIGMAS:?}: at most {farthest:.1} standard errors off",
                    self.effort.circle_runs()
                ),
            ),
            if self.dimension == 1 { self.always_joint(circles) } else { self.crossing(circles) },
        ]
    }

    /// Returns the finding for d = 1.
    fn always_joint(&self, circles: &[Circle<3>]) -> FigureFinding {
        let (low, high, count) = SIGMA_RANGE;
        let least = geometric(low, high, count)
            .map(|noise| self.comparison(noise))
            .map(|found| found.post_processing.debiased().lower / found.joint)
            .fold(f64::INFINITY, f64::min);
        let runs = circles.iter().all(|circle| circle.found[0].mean < circle.found[2].mean);
        FigureFinding::new(
            format!("{}: JME is always better than PP", self.title),
            least > 1.0 && runs,
            format!(
                "the squared error of debiased PP is at least {least:.3} times that of JME over the whole curve"
            ),
        )
    }

    /// Returns the finding for more dimensions.
    fn crossing(&self, circles: &[Circle<3>]) -> FigureFinding {
        let released = self.comparison(1.0);
        let published = MethodComparison { joint: self.joint(SecondEntries::Independent, 1.0), ..released };
        let (released, published) = (released.crossing(), published.crossing());
        // The runs must agree with the bounds wherever the bounds decide.
        let agrees = circles.iter().all(|circle| {
            let joint_is_better = circle.found[0].mean < circle.found[2].mean;
            match self.comparison(circle.noise).better() {
                Better::Joint => joint_is_better,
                Better::PostProcessing => !joint_is_better,
                Better::Undecided => true,
            }
        });
        let range = |bounds: Bounds| match bounds.upper - bounds.lower {
            gap if gap <= 1e-3 * bounds.upper => format!("{:.3}", bounds.upper),
            _ => format!("{:.3} to {:.3}, depending on the data", bounds.lower, bounds.upper),
        };
        let as_published = match self.second {
            SecondMoment::Full => format!("; as published from {}", range(published)),
            _ => String::new(),
        };
        FigureFinding::new(
            format!("{}: JME is better than debiased PP at high privacy", self.title),
            agrees && released.upper.is_finite(),
            format!("as implemented from σ = {}{as_published}; the runs agree", range(released)),
        )
    }
}
