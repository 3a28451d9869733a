//! The balloon: a baseline that clips at a private quantile of the distance from the centre.
//!
//! Source: Ramsay et al., arXiv 2606.12654; this code follows its abstract and its authors' code.
//! Each step privately finds the radius of the ball around the current centre that holds a share of
//! the records. Records are clipped to that ball, and their mean is the next centre. Corruption
//! moves the mean by at most α radii.
//!
//! # The ball of PRIME-ht
//! Chebyshev's radius for heavy tails, 2√(d/α), is several times the norm of most records, and its
//! square multiplies the noise of every check. [`tightened`] replaces it by twice the radius that
//! holds all but a share 1.5α of the records, which is private. *Bias.* At most a share 1.5α of the
//! records is clipped. By Cauchy–Schwarz, each direction of the mean then moves by at most √(1.5α)
//! of its standard deviation, the order of the method's own error bound. Because of the factor 2,
//! the bias is far smaller for all but contrived tails.

use super::budget::MeanBudget;
use super::prime::last_mean;
use super::release::{ClippedRecords, ClippingBall};
use super::weights::Weights;
use super::{EstimationStop, MeanError, MeanEstimate, Shares, release};
use faer::Mat;
use hushflow_mechanism::noise::NoiseGenerator;

/// Share of the records in a balloon; the authors' default.
const INSIDE: f64 = 0.9;

/// Number of balloons; the authors' default.
const BALLOONS: u32 = 2;

/// Number of candidate radii, spaced evenly in logarithms from a hundredth of the first ball's
/// radius to the whole radius.
const RADII: usize = 256;

/// Number of candidate radii for [`tightened`]. Fewer suffice there, because its ball is twice as
/// large, and the noise of a sum of counts grows with the root of their number.
const COARSE_RADII: usize = 64;
const SMALLEST_RADIUS: f64 = 0.01;

/// Returns the mean of the records clipped by the last balloon, starting from the ball that holds
/// the clean ones.
pub(super) fn estimate(
    rows: &[f64],
    mut kept: ClippedRecords,
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<MeanEstimate, EstimationStop> {
    let scales = kept.scales().to_vec();
    let share = Shares::ROUNDS * budget.whole() / f64::from(BALLOONS);
    for round in 1..=BALLOONS {
        let part = share * Shares::THRESHOLD;
        let radius = radius(&kept, (INSIDE, RADII), part, budget, rng)? * kept.ball().radius;
        let balloon = ClippingBall { radius, ..kept.ball().clone() };
        kept = ClippedRecords::new(rows, &scales, &balloon)?;
        if round < BALLOONS {
            let step = ("balloons", share * (1.0 - Shares::THRESHOLD));
            let sums = release::sums(&kept, step, budget, rng)?;
            let mean: Vec<f64> = sums.first.iter().map(|sum| sum / kept.len() as f64).collect();
            let centre = balloon.to_units(&mean, &vec![1.0; scales.len()]);
            kept = ClippedRecords::new(rows, &scales, &ClippingBall { centre, radius: 2.0 * radius })?;
        }
    }
    last_mean(&kept, true, budget, rng)
}

/// Clips the records again at twice the radius that holds all but 1.5α of them. Does nothing if
/// that number of records is at most four deviations of the histogram's noise, or half of all.
pub(super) fn tightened(
    rows: &[f64],
    kept: ClippedRecords,
    corruption: f64,
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<ClippedRecords, EstimationStop> {
    let (share, outside) = (Shares::RADIUS * budget.whole(), 1.5 * corruption);
    let noise = release::count_deviation(1.0, share) * (COARSE_RADII as f64).sqrt();
    if outside * kept.len() as f64 <= 4.0 * noise || outside >= 0.5 {
        return Ok(kept);
    }
    let found = 2.0 * radius(&kept, (1.0 - outside, COARSE_RADII), share, budget, rng)?;
    let ball = ClippingBall { radius: kept.ball().radius * found.min(1.0), ..kept.ball().clone() };
    Ok(ClippedRecords::new(rows, kept.scales(), &ball)?.with_corruption(corruption))
}

/// Returns the radius, as a share of the ball's radius, that contains the share `within` of the
/// records, among `radii` candidates. It is found from a noisy histogram of their norms.
fn radius(
    kept: &ClippedRecords,
    (within, radii): (f64, usize),
    share: f64,
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<f64, MeanError> {
    let dimension = kept.dimension();
    let identity = Mat::<f64>::identity(dimension, dimension);
    let weights = Weights { root: identity, largest: 1.0 };
    let edge = |bin: usize| SMALLEST_RADIUS.powf(1.0 - bin as f64 / (radii - 1) as f64);
    let edges: Vec<f64> = (0..radii).map(|bin| edge(bin).powi(2)).collect();
    let mut counts = vec![0i128; radii];
    for score in kept.scores(weights.root.as_ref(), &vec![0.0; dimension]) {
        counts[edges.partition_point(|edge| *edge < score).min(radii - 1)] += 1;
    }
    let noisy = release::counts(&counts, 1.0, ("radii", share), budget, rng)?;
    let mut inside = 0.0;
    let enough = noisy.iter().position(|count| {
        inside += count;
        inside >= within * kept.len() as f64
    });
    Ok(edge(enough.unwrap_or(radii - 1)))
}
