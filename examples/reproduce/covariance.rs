//! Reproduces Figure 3: the error of covariances against the noise, for JME and PP, with running
//! averages and C = I.
//!
//! The axes are those of Figures 2, 4 and 7 ([`second_moments`](super::second_moments)). Bands lie
//! between the bounds of Theorem 4.2. Circles are simulated runs. JME runs on equal records, its
//! worst case. PP runs on records whose sign alternates, nearly its worst case.

use std::sync::Arc;

use hushflow::mechanism::error::{
    Better, InPlaceRelease, MethodComparison, SecondEntries, SquaredNoiseError, joint_covariance_error,
    post_processed_covariance_error,
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
const SIGMA_RANGE: (f64, f64, usize) = (0.02, 20.0, 61);

/// σ at which mechanisms are run.
const SIMULATED_SIGMAS: [f64; 4] = [0.05, 0.5, 2.0, 10.0];

pub(super) fn figure(
    effort: Effort,
    progress: &mut dyn FnMut(&str),
) -> Result<FigureContent, ReproductionError> {
    let strategy = build("identity", &Workload::Average, None)?;
    let (mut panels, mut findings) = (Vec::new(), Vec::new());
    for (letter, dimension) in [("a", 1), ("b", 100)] {
        let steps = effort.steps(1000);
        let title = format!("({letter}) covariance, d = {dimension}, n = {steps}");
        progress(&title);
        let panel = CovariancePanel { title, steps, dimension, strategy: strategy.clone(), effort };
        let circles = panel.circles()?;
        findings.extend(panel.findings(&circles));
        panels.push(panel.panel(&circles));
    }
    Ok((panels, findings))
}

struct CovariancePanel {
    title: String,
    steps: u64,
    dimension: usize,
    strategy: Arc<dyn Strategy>,
    effort: Effort,
}

impl CovariancePanel {
    fn release(&self, noise: f64) -> InPlaceRelease {
        // The paper's σ is twice the noise multiplier.
        InPlaceRelease::new(self.dimension, 1.0, noise / 2.0)
    }

    /// Returns the error of debiased JME.
    fn joint(&self, entries: SecondEntries, noise: f64) -> f64 {
        let rows = (1..=self.steps).map(|t| (t as f64).powf(-0.5));
        joint_covariance_error(entries, self.dimension, 1.0, self.release(noise).joint(), rows).debiased
    }

    fn post_processed(&self, noise: f64) -> SquaredNoiseError {
        let deviation = self.release(noise).post_processed();
        post_processed_covariance_error(SecondEntries::Symmetric, self.dimension, 1.0, deviation, self.steps)
    }

    fn comparison(&self, noise: f64) -> MethodComparison {
        let joint = self.joint(SecondEntries::Symmetric, noise);
        MethodComparison { joint, post_processing: self.post_processed(noise) }
    }

    /// Returns circles of JME and debiased PP.
    fn circles(&self) -> Result<Vec<Circle<2>>, ReproductionError> {
        let circle = |&noise: &f64| {
            Ok(Circle {
                noise,
                found: [self.run(Method::Jme, noise)?, self.run(Method::Pp, noise)?],
                expected: [self.joint(SecondEntries::Symmetric, noise), self.alternating(noise)],
            })
        };
        SIMULATED_SIGMAS.iter().map(circle).collect()
    }

    /// Returns the error of debiased PP for records of alternating sign. Their running mean is 0 at
    /// even steps and 1/t at odd ones.
    fn alternating(&self, noise: f64) -> f64 {
        let error = self.post_processed(noise);
        let t = || (1..=self.steps).map(|t| t as f64);
        let harmonic: f64 = t().map(f64::recip).sum();
        let lost: f64 = t().step_by(2).map(|t| t.powi(-3)).sum();
        error.quadratic + error.linear.upper * (1.0 - lost / harmonic)
    }

    fn run(&self, method: Method, noise: f64) -> Result<RunMean, ReproductionError> {
        let layout = few_coordinates(self.dimension, SecondMoment::Full);
        // The paper's σ is twice the noise multiplier.
        let mechanism = in_place(method, layout, 1.0, noise / 2.0, None, &self.strategy)?;
        let signs = (0..self.steps).map(|t| method == Method::Jme || t % 2 == 0);
        let records = equal_entries(self.dimension, layout.dimension, signs);
        let stream = SimulatedStream {
            mechanism: &mechanism,
            workload: &Workload::Average,
            square_bias: SquareBias::Removed,
            dimension: self.dimension,
            records: &records,
        };
        Ok(stream.run(Quantity::Covariance, self.runs(), self.effort.seed)?.second)
    }

    /// Returns the number of runs, at least 1000. Most of the error comes from the first few steps,
    /// so the mean over runs becomes normal only slowly.
    fn runs(&self) -> u32 {
        self.effort.runs.max(1000)
    }

    fn panel(&self, circles: &[Circle<2>]) -> Panel {
        let published = |noise| self.joint(SecondEntries::Independent, noise);
        let published = (self.dimension > 1).then_some(&published as &dyn Fn(f64) -> f64);
        let runs = [runs("JME, runs", 0, circles, 0), runs("PP debiased, runs", 2, circles, 1)];
        comparison_panel(&self.title, SIGMA_RANGE, published, &|noise| self.comparison(noise), runs)
    }

    fn findings(&self, circles: &[Circle<2>]) -> Vec<FigureFinding> {
        let farthest = farthest(circles);
        let agreement = FigureFinding::new(
            format!("{}: the errors of the runs agree with Theorems 4.1 and 4.2", self.title),
            farthest < FAR,
            format!("{} runs at each circle: at most {farthest:.1} standard errors off", self.runs()),
        );
        vec![agreement, self.compare_methods()]
    }

    /// Reports which method is better at which noise.
    fn compare_methods(&self) -> FigureFinding {
        let (low, high, count) = SIGMA_RANGE;
        let better = move |wanted| move |noise: &f64| self.comparison(*noise).better() == wanted;
        let joint = geometric(low, high, count).find(better(Better::Joint)).unwrap_or(f64::INFINITY);
        let baseline = geometric(low, high, count).filter(better(Better::PostProcessing)).fold(0.0, f64::max);
        let ratio = |noise| {
            let found = self.comparison(noise);
            (found.post_processing.debiased().upper / found.joint).sqrt()
        };
        FigureFinding::new(
            format!("{}: JME is better at high privacy", self.title),
            joint <= high && baseline < joint,
            format!(
                "JME is surely better for σ ≥ {joint:.2}, PP for σ ≤ {baseline:.2} (0: nowhere). Error of PP \
                 divided by that of JME: {:.3} at σ = {low}, {:.3} at σ = {high}",
                ratio(low),
                ratio(high)
            ),
        )
    }
}
