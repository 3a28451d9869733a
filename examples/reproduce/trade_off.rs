//! Figure 1: the error of second moments against that of first moments, for all parameters of
//! λ-JME, α-IME and τ-CS.
//!
//! d = 10, prefix sums of 100 steps, C = I, ζ = 1, noise multiplier 1. In panel (a) all d² entries
//! of the second moments have separate noise, as published. Panel (b) is what runs: a symmetric
//! matrix for all three methods, with circles for runs. JME begins at λ*, where second moments are
//! free; smaller weights only lose.

use std::sync::Arc;

use hushflow::mechanism::error::{ExpectedError, InPlaceRelease, NoiseDeviations, SecondEntries};
use hushflow::mechanism::mechanism::Method;
use hushflow::mechanism::moments::{Layout, SecondMoment};
use hushflow::mechanism::strategy::{Strategy, build};
use hushflow::mechanism::view::SquareBias;
use hushflow::mechanism::workload::Workload;

use super::figures::{
    Effort, FAR, FigureContent, FigureFinding, ReproductionError, geometric, in_place, of_estimate,
};
use super::simulate::{Quantity, SimulatedStream, SquaredErrors, equal_entries};
use hushflow::plot::{LegendCorner, Panel, PlotPoint, PlotSeries, PlotStyle};

const DIMENSION: usize = 10;

const STEPS: u64 = 100;

/// A method with its parameter λ, α or τ.
#[derive(Clone, Copy)]
enum WeightedMethod {
    WeightedJoint(f64),
    Independent(f64),
    Concatenated(f64),
}

impl WeightedMethod {
    fn noise(self) -> NoiseDeviations {
        let release = InPlaceRelease::new(DIMENSION, 1.0, 1.0);
        match self {
            Self::WeightedJoint(weight) => release.weighted_joint(weight),
            Self::Independent(share) => release.independent(share),
            Self::Concatenated(weight) => release.concatenated(weight),
        }
    }

    /// Returns the mechanism's method and its weight of second moments.
    fn mechanism(self) -> (Method, Option<f64>) {
        match self {
            Self::WeightedJoint(weight) => (Method::Jme, Some(weight)),
            Self::Independent(first_moment_share) => (Method::Ime { first_moment_share }, None),
            Self::Concatenated(weight) => (Method::Cs, Some(weight)),
        }
    }

    /// Roots of the expected squared errors of first and second moments.
    fn errors(self, entries: SecondEntries, frobenius: f64) -> (f64, f64) {
        let noise = self.noise();
        let second = noise.second_moment_error(entries, DIMENSION, frobenius);
        (noise.first_moment_error(DIMENSION, frobenius).sqrt(), second.sqrt())
    }
}

/// Names and parameters of the methods, `count` each.
fn weighted_methods(count: usize) -> [(&'static str, Vec<WeightedMethod>); 3] {
    let free = InPlaceRelease::new(DIMENSION, 1.0, 1.0).free_second_moment_weight();
    // Odds from 1/20, so shares from 1/21 to nearly 1.
    let shares = geometric(0.05, 1000.0, count).map(|odds| odds / (1.0 + odds));
    [
        ("λ-JME", geometric(free, 40.0, count).map(WeightedMethod::WeightedJoint).collect()),
        ("α-IME", shares.map(WeightedMethod::Independent).collect()),
        ("τ-CS", geometric(0.005, 20.0, count).map(WeightedMethod::Concatenated).collect()),
    ]
}

pub(super) fn figure(
    effort: Effort,
    progress: &mut dyn FnMut(&str),
) -> Result<FigureContent, ReproductionError> {
    progress("λ-JME, α-IME and τ-CS");
    let strategy = build("identity", &Workload::Prefix, Some(STEPS))?;
    let frobenius = ExpectedError::new(&Workload::Prefix, strategy.as_ref(), STEPS)?.frobenius;
    let curves = |entries| {
        weighted_methods(60).into_iter().enumerate().map(move |(colour, (name, methods))| {
            let points = methods.iter().map(|method| method.errors(entries, frobenius));
            let points = points.map(|(x, y)| PlotPoint::exact(x, y)).collect();
            PlotSeries { name: name.into(), mark: PlotStyle::Line, colour, points }
        })
    };
    let panel = |title: &str, series| Panel {
        title: title.into(),
        x: "root expected squared error of first moments".into(),
        y: "of second moments".into(),
        legend: LegendCorner::UpperRight,
        series,
    };
    let (circles, farthest) = circles(effort, &strategy, frobenius)?;
    let panels = vec![
        panel("(a) as published: d² noisy entries", curves(SecondEntries::Independent).collect()),
        panel("(b) as it runs: symmetric", curves(SecondEntries::Symmetric).chain(circles).collect()),
    ];
    Ok((panels, vec![agreement(farthest, effort), dominance(1), dominance(2)]))
}

/// Runs all methods. Returns circles, and the distance of the farthest from its expectation in
/// standard errors.
fn circles(
    effort: Effort,
    strategy: &Arc<dyn Strategy>,
    frobenius: f64,
) -> Result<(Vec<PlotSeries>, f64), ReproductionError> {
    let (mut circles, mut farthest) = (Vec::new(), 0.0_f64);
    for (colour, (name, methods)) in weighted_methods(4).into_iter().enumerate() {
        let mut points = Vec::new();
        for method in methods {
            let SquaredErrors { first, second } = run(method, effort, strategy)?;
            let (expected_first, expected_second) = method.errors(SecondEntries::Symmetric, frobenius);
            for distance in [first.distance(expected_first.powi(2)), second.distance(expected_second.powi(2))]
            {
                farthest = farthest.max(distance.abs());
            }
            points.push(of_estimate(first.mean.sqrt(), second));
        }
        circles.push(PlotSeries { name: format!("{name}, runs"), mark: PlotStyle::Circles, colour, points });
    }
    Ok((circles, farthest))
}

fn run(
    method: WeightedMethod,
    effort: Effort,
    strategy: &Arc<dyn Strategy>,
) -> Result<SquaredErrors, ReproductionError> {
    let (method, weight) = method.mechanism();
    let layout = Layout::new(DIMENSION, SecondMoment::Full);
    let mechanism = in_place(method, layout, 1.0, 1.0, weight, strategy)?;
    let records = equal_entries(DIMENSION, DIMENSION, (0..STEPS).map(|_| true));
    let stream = SimulatedStream {
        mechanism: &mechanism,
        workload: &Workload::Prefix,
        square_bias: SquareBias::Removed,
        dimension: DIMENSION,
        records: &records,
    };
    stream.run(Quantity::SecondMoments, effort.circle_runs(), effort.seed)
}

fn agreement(farthest: f64, effort: Effort) -> FigureFinding {
    FigureFinding::new(
        "the errors of the runs agree with the closed forms",
        farthest < FAR,
        format!("{} runs at each circle: at most {farthest:.1} standard errors off", effort.circle_runs()),
    )
}

/// Whether each point of a method's curve is above that of λ-JME with the same error of first
/// moments.
fn dominance(method: usize) -> FigureFinding {
    let [_, independent, concatenated] = weighted_methods(2000);
    let (name, methods) = if method == 1 { independent } else { concatenated };
    let release = InPlaceRelease::new(DIMENSION, 1.0, 1.0);
    let ratio = |method: &WeightedMethod| {
        let noise = method.noise();
        noise.second / release.joint_with_first_deviation(noise.first).second
    };
    let ratios = methods.iter().map(ratio);
    let (least, most) = ratios
        .fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), ratio| (least.min(ratio), most.max(ratio)));
    FigureFinding::new(
        format!("λ-JME Pareto-dominates {name} over the whole curve"),
        least > 1.0,
        format!(
            "for the same error of first moments, {name} has {least:.3} to {most:.3} times its error of second moments"
        ),
    )
}
