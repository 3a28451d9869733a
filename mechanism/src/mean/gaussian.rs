//! The plain private mean, and the balloon: what robust estimators are compared with.
//!
//! - **Plain**: the records in the ball of `range`, their mean, one Gaussian release (Kamath, Li, Singhal & Ullman 2019, as the
//!   paper's "DP mean"). Nothing is filtered, so a share α of records at distance s moves it by αs: α√d for the paper's corruption.
//! - **Balloon** (Ramsay et al., arXiv 2606.12654, known here by its abstract and its authors' code): the radius of the ball
//!   around the present centre that holds a share of the records is found privately, records are clipped to it, their mean is the
//!   next centre. Clipping at such a radius bounds what corruption can do to α radii.

use super::budget::Budget;
use super::prime::last_mean;
use super::records::{Ball, Kept};
use super::weights::Weights;
use super::{Estimate, MeanError, Refusal, Shares, Tails, range, release};
use crate::noise::NoiseGenerator;
use faer::Mat;

/// Share of the records that a balloon is to hold; the authors' default.
const HELD: f64 = 0.9;

/// Balloons; the authors' default.
const BALLOONS: u32 = 2;

/// Radii that are tried: as many steps from a hundredth of the first ball to all of it, evenly in logarithms.
const RADII: usize = 256;
const SMALLEST: f64 = 0.01;

/// The mean of the clipped records.
pub(super) fn plain(
    rows: &[f64],
    scales: &[f64],
    corruption: f64,
    budget: &mut Budget,
    rng: &mut NoiseGenerator,
) -> Result<Result<Estimate, Refusal>, MeanError> {
    Ok(match range::ball(rows, scales, (Tails::SubGaussian, corruption), budget, rng)? {
        Err(refusal) => Err(refusal),
        Ok(ball) => last_mean(&Kept::new(rows, scales, &ball)?, &ball, scales, true, budget, rng)?,
    })
}

/// The mean of what the last balloon clips.
pub(super) fn balloon(
    rows: &[f64],
    scales: &[f64],
    corruption: f64,
    budget: &mut Budget,
    rng: &mut NoiseGenerator,
) -> Result<Result<Estimate, Refusal>, MeanError> {
    let mut ball = match range::ball(rows, scales, (Tails::BoundedCovariance, corruption), budget, rng)? {
        Ok(ball) => ball,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let share = Shares::ROUNDS * budget.whole() / f64::from(BALLOONS);
    for round in 1..=BALLOONS {
        let wide = Kept::new(rows, scales, &ball)?;
        let radius = radius(&wide, share * Shares::THRESHOLD, budget, rng)? * ball.radius;
        ball.radius = radius;
        if round < BALLOONS {
            let kept = Kept::new(rows, scales, &ball)?;
            let step = ("balloons", share * (1.0 - Shares::THRESHOLD));
            let sums = release::sums(&kept, step, budget, rng)?;
            let mean: Vec<f64> = sums.first.iter().map(|sum| sum / kept.len() as f64).collect();
            ball = Ball { centre: ball.place(&mean, &vec![1.0; scales.len()]), radius: 2.0 * radius };
        }
    }
    last_mean(&Kept::new(rows, scales, &ball)?, &ball, scales, true, budget, rng)
}

/// The radius, in units of the ball's, within which a share [`HELD`] of the records is, by a noisy histogram of their norms.
fn radius(kept: &Kept, share: f64, budget: &mut Budget, rng: &mut NoiseGenerator) -> Result<f64, MeanError> {
    let dimension = kept.dimension();
    let identity = Mat::<f64>::identity(dimension, dimension);
    let weights = Weights { root: identity, largest: 1.0 };
    let edge = |bin: usize| SMALLEST.powf(1.0 - bin as f64 / (RADII - 1) as f64);
    let edges: Vec<f64> = (0..RADII).map(|bin| edge(bin).powi(2)).collect();
    let mut counts = vec![0i128; RADII];
    for score in kept.scores(weights.root.as_ref(), &vec![0.0; dimension]) {
        counts[edges.partition_point(|edge| *edge < score).min(RADII - 1)] += 1;
    }
    let noisy = release::counts(&counts, 1.0, ("radii", share), budget, rng)?;
    let mut held = 0.0;
    let enough = noisy.iter().position(|count| {
        held += count;
        held >= HELD * kept.len() as f64
    });
    Ok(edge(enough.unwrap_or(RADII - 1)))
}
