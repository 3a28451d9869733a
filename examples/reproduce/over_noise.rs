//! Shared by the figures of errors against the noise: curves between bounds, circles of runs, axes.

use hushflow::mechanism::error::{Bounds, MethodComparison};

use super::figures::geometric;
use super::simulate::RunMean;
use hushflow::plot::{Corner, Mark, Panel, Point, Series};

/// Maximum distance of a circle from its expectation, in standard errors. The probability that one
/// of the figures' 86 circles exceeds it is below 10⁻⁵.
pub(super) const FAR: f64 = 5.5;

/// Simulated squared errors of N methods for one σ, and their expectations.
pub(super) struct Circle<const N: usize> {
    pub(super) noise: f64,
    pub(super) found: [RunMean; N],
    pub(super) expected: [f64; N],
}

/// Returns the distance of the farthest circle from its expectation, in standard errors.
pub(super) fn farthest<const N: usize>(circles: &[Circle<N>]) -> f64 {
    let distances = circles.iter().flat_map(|circle| {
        circle.found.iter().zip(circle.expected).map(|(found, expected)| found.distance(expected))
    });
    distances.fold(0.0, |far: f64, distance| far.max(distance.abs()))
}

/// The runs of one method.
pub(super) fn runs<const N: usize>(
    name: &str,
    colour: usize,
    circles: &[Circle<N>],
    method: usize,
) -> Series {
    let points = circles.iter().map(|circle| of_estimate(circle.noise, circle.found[method]));
    Series { name: name.into(), mark: Mark::Circles, colour, points: points.collect() }
}

/// Errors of JME and PP against the noise, from low to high in `count` points, and circles of runs.
/// `published` is the squared error of JME with separate noise for each entry, if that differs.
pub(super) fn comparison_panel(
    title: &str,
    (low, high, count): (f64, f64, usize),
    published: Option<&dyn Fn(f64) -> f64>,
    comparison: &dyn Fn(f64) -> MethodComparison,
    runs: impl IntoIterator<Item = Series>,
) -> Panel {
    let curve = |name: &str, mark, colour, squared_error: &dyn Fn(f64) -> Bounds| {
        let points = geometric(low, high, count).map(|x| {
            let Bounds { lower, upper } = squared_error(x).map(f64::sqrt);
            Point { x, y: upper, low: lower, high: upper }
        });
        Series { name: name.into(), mark, colour, points: points.collect() }
    };
    let exact = |error| Bounds { lower: error, upper: error };
    let published =
        published.map(|error| curve("JME, as published", Mark::Dashes, 0, &|noise| exact(error(noise))));
    let curves = [
        curve("JME", Mark::Line, 0, &|noise| exact(comparison(noise).joint)),
        curve("PP", Mark::Band, 1, &|noise| comparison(noise).post_processing.biased()),
        curve("PP, debiased", Mark::Band, 2, &|noise| comparison(noise).post_processing.debiased()),
    ];
    Panel {
        title: title.into(),
        x: "noise deviation σ (twice the noise multiplier)".into(),
        y: "root expected squared error".into(),
        legend: Corner::UpperLeft,
        series: published.into_iter().chain(curves).chain(runs).collect(),
    }
}

/// A circle at the root of a mean, with a bar of four standard errors either way.
pub(super) fn of_estimate(x: f64, RunMean { mean, standard_error }: RunMean) -> Point {
    let bar = 4.0 * standard_error;
    Point { x, y: mean.sqrt(), low: (mean - bar).max(0.0).sqrt(), high: (mean + bar).sqrt() }
}
