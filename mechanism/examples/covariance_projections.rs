//! Compares projections of the covariance, as evidence for the default.
//!
//! Records of a Gaussian truth in the unit ball are released once, with the noise of the joint
//! mechanism at clip norm 1: τ₁ on sums and √2 τ₁ on second moments, count exact. For many
//! releases, the four projections are measured in three ways: KL(truth ‖ estimate), the error of
//! the covariance in the Frobenius norm over the truth's norm, and how far the mean log-likelihood
//! of held-out rows lies below that of the truth.
//!
//! ```sh
//! cargo run --release -p hushflow-mechanism --example covariance_projections
//! ```
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::error::Error;
use std::f64::consts::SQRT_2;

use chacha20::ChaCha8Rng;
use hushflow_mechanism::estimate::debias::{MomentNoise, NoisyMoments};
use hushflow_mechanism::estimate::density::{Density, Quality};
use hushflow_mechanism::estimate::projection::Projection;
use hushflow_mechanism::moments::{Layout, SecondMoment};
use nalgebra::{DMatrix, DVector};
use rand::SeedableRng;

const RELEASES: u32 = 200;

const SUM_NOISE: f64 = 20.0;

/// Trace of the truth's covariance: records have a norm of about 0.6.
const TRACE: f64 = 0.3;

fn main() -> Result<(), Box<dyn Error>> {
    println!(
        "| d | condition | records | good | KL floor | nearest | shrink | error floor | nearest | shrink | raw | held-out floor | nearest | shrink |"
    );
    println!("|{}", "--:|".repeat(14));
    for dimension in [2, 5, 20] {
        for condition in [1.0, 100.0] {
            for count in [200, 1000, 5000, 50_000] {
                println!("{}", row(dimension, condition, count)?);
            }
        }
    }
    Ok(())
}

/// One setting: medians over releases.
fn row(dimension: usize, condition: f64, count: u32) -> Result<String, Box<dyn Error>> {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let truth = truth(dimension, condition)?;
    let sampler = truth.sampler().ok_or("the truth is a density")?;
    let held_out: Vec<_> = (0..2000).map(|_| sampler.draw(&mut random)).collect();
    let score = |density: &Density| density.mean_log_likelihood(held_out.iter().map(|x| x.as_slice()));
    let best = score(&truth)?;
    let [mut divergences, mut errors, mut losses] = [const { [const { Vec::new() }; 4] }; 3];
    let mut good = 0;
    for _ in 0..RELEASES {
        let (layout, coordinates, noise) = release(&truth, count, &mut random)?;
        let moments = NoisyMoments { layout, coordinates: &coordinates, noise };
        good += u32::from(moments.density()?.quality == Quality::Good);
        for (index, projection) in Projection::ALL.into_iter().enumerate() {
            let estimate = moments.density_by(projection)?;
            errors[index].push((&estimate.covariance - &truth.covariance).norm() / truth.covariance.norm());
            divergences[index].push(truth.divergence_from(&estimate).unwrap_or(f64::INFINITY));
            losses[index].push(score(&estimate).map_or(f64::NEG_INFINITY, |score| score - best));
        }
    }
    let cells = |measure: &mut [Vec<f64>], take: usize| -> Vec<String> {
        measure.iter_mut().take(take).map(|values| cell(median(values))).collect()
    };
    let cells = [cells(&mut divergences, 3), cells(&mut errors, 4), cells(&mut losses, 3)].concat();
    let good = good * 100 / RELEASES;
    Ok(format!("| {dimension} | {condition} | {count} | {good} % | {} |", cells.join(" | ")))
}

/// Variances fall geometrically; a reflection turns the directions away from the axes.
fn truth(dimension: usize, condition: f64) -> Result<Density, Box<dyn Error>> {
    let values = DVector::from_fn(dimension, |i, _| condition.powf(-(i as f64) / (dimension - 1) as f64));
    let normal = DVector::from_fn(dimension, |i, _| 1.0 + (i as f64 * 1.7).sin()).normalize();
    let reflection = DMatrix::identity(dimension, dimension) - 2.0 * &normal * normal.transpose();
    let covariance = &reflection * DMatrix::from_diagonal(&(&values * (TRACE / values.sum()))) * &reflection;
    let covariance = (&covariance + covariance.transpose()) / 2.0;
    Ok(Density::known(DVector::from_element(dimension, 0.2 / (dimension as f64).sqrt()), covariance)?)
}

/// Moments of `count` records of the truth, with noise.
fn release(
    truth: &Density,
    count: u32,
    random: &mut ChaCha8Rng,
) -> Result<(Layout, Vec<f64>, MomentNoise), Box<dyn Error>> {
    let layout = Layout::new(truth.mean.len(), SecondMoment::Full);
    let sampler = truth.sampler().ok_or("the truth is a density")?;
    let mut sums = vec![0.0; layout.coordinates()];
    for _ in 0..count {
        let record = sampler.draw(random);
        let entries = layout.second_entries().map(|(i, j)| record[i] * record[j]);
        let terms = [1.0].into_iter().chain(record.iter().copied()).chain(entries);
        sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
    }
    let standard = Density::known(DVector::zeros(sums.len()), DMatrix::identity(sums.len(), sums.len()))?;
    let normal = standard.sampler().ok_or("the identity is a covariance")?.draw(random);
    let first = layout.first();
    let entries: Vec<_> = layout.second_entries().collect();
    for (index, (sum, normal)) in sums.iter_mut().zip(normal.iter()).enumerate().skip(1) {
        let off_diagonal = index >= first.end && entries[index - first.end].0 != entries[index - first.end].1;
        let scale = if first.contains(&index) || off_diagonal { SUM_NOISE } else { SQRT_2 * SUM_NOISE };
        *sum += scale * normal;
    }
    Ok((layout, sums, MomentNoise { count: 0.0, first: SUM_NOISE, second: SQRT_2 * SUM_NOISE }))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn cell(value: f64) -> String {
    match value.abs() {
        size if size < 1000.0 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}
