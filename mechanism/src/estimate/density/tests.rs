//! Densities in other units, their scores and samples, and invalid input.

use super::super::debias::{MomentNoise, NoisyMoments};
use super::*;
use crate::moments::{Layout, SecondMoment};
use chacha20::ChaCha8Rng;
use rand::SeedableRng;

fn estimate(coordinates: &[f64], deviation: f64) -> Density {
    let dimension = if coordinates.len() == 3 { 1 } else { 2 };
    let layout = Layout::new(dimension, SecondMoment::Full);
    let noise = MomentNoise { count: 0.0, first: deviation, second: deviation };
    NoisyMoments { layout, coordinates, noise }.density().unwrap()
}

#[test]
fn units_scale_and_shift_everything() {
    let found = estimate(&[10.0, 5.0, -2.5, 10.0, 2.0, 5.0], 0.5);
    let in_units = found.to_units(&[2.0, 10.0], &[1.0, -3.0]).unwrap();
    assert_eq!(in_units.mean[0], 1.0 + 2.0 * found.mean[0]);
    assert_eq!(in_units.mean_noise[1], 10.0 * found.mean_noise[1]);
    assert_eq!(in_units.covariance[(0, 1)], 20.0 * found.covariance[(0, 1)]);
    assert_eq!(in_units.covariance_noise[(1, 1)], 100.0 * found.covariance_noise[(1, 1)]);
    let log_jacobian = 20_f64.ln();
    let (at, in_units_at) = (found.log_density(&[0.1, 0.2]), in_units.log_density(&[1.2, -1.0]));
    assert!((at.unwrap() - in_units_at.unwrap() - log_jacobian).abs() < 1e-14);
}

#[test]
fn invalid_units_are_refused() {
    let found = estimate(&[1.0, 0.0, 1.0], 0.0);
    let shape = DensityError::Shape { found: 2, expected: 1, dimension: 1 };
    assert_eq!(found.to_units(&[1.0], &[0.0, 0.0]), Err(shape));
    assert_eq!(found.to_units(&[0.0], &[0.0]), Err(DensityError::Scale(0.0)));
    assert_eq!(found.to_units(&[1.0], &[f64::NAN]), Err(DensityError::OutOfRange));
    assert_eq!(found.to_units(&[1e200], &[0.0]), Err(DensityError::OutOfRange));
}

#[test]
fn log_density_and_divergence_agree_with_closed_forms() {
    let normal = |mean: f64, variance: f64| estimate(&[1.0, mean, variance + mean * mean], 0.0);
    let (p, q) = (normal(1.0, 4.0), normal(-1.0, 9.0));
    let log_density = -(0.25 + (TAU * 4.0).ln()) / 2.0;
    assert!((p.log_density(&[2.0]).unwrap() - log_density).abs() < 1e-15);
    let divergence = (4.0 / 9.0 + 4.0 / 9.0 - 1.0 + (9.0_f64 / 4.0).ln()) / 2.0;
    assert!((p.divergence_from(&q).unwrap() - divergence).abs() < 1e-15);
    assert_eq!(p.divergence_from(&p), Some(0.0));
    assert_eq!(p.log_density(&[1.0, 2.0]), None);
    assert_eq!(p.divergence_from(&estimate(&[1.0, 0.0, 0.0, 1.0, 0.0, 1.0], 0.0)), None);
}

#[test]
fn both_divergences_name_their_first_density() {
    let known = |mean: [f64; 2], variances: [f64; 2]| {
        let covariance = DMatrix::from_diagonal(&DVector::from_row_slice(&variances));
        Density::known(DVector::from_row_slice(&mean), covariance).unwrap()
    };
    let (truth, narrow) = (known([0.0; 2], [1.0, 1.0]), known([0.0; 2], [0.25, 1.0]));
    let (ratio, log) = (4.0, 4f64.ln());
    assert!((truth.divergence_from(&narrow).unwrap() - (ratio - 1.0 - log) / 2.0).abs() < 1e-15);
    assert!((narrow.divergence_from(&truth).unwrap() - (1.0 / ratio - 1.0 + log) / 2.0).abs() < 1e-15);
    let away = known([2.0, 0.0], [1.0, 1.0]);
    assert_eq!(truth.divergence_from(&away), Some(2.0));
}

/// The truth's expected score exceeds the estimate's by KL(truth ‖ estimate). The test allows 6
/// standard errors of 100,000 differences, each of a deviation below 3.
#[test]
fn held_out_rows_lose_the_divergence() {
    use rand::SeedableRng;
    let truth = Density::known(DVector::zeros(2), DMatrix::identity(2, 2)).unwrap();
    let estimate = estimate(&[1.0, 0.3, 0.0, 1.5, 0.2, 0.8], 0.0);
    let (sampler, mut random) = (truth.sampler().unwrap(), chacha20::ChaCha8Rng::seed_from_u64(2));
    let rows: Vec<_> = (0..100_000).map(|_| sampler.draw(&mut random)).collect();
    let score = |density: &Density| density.mean_log_likelihood(rows.iter().map(|x| x.as_slice())).unwrap();
    let divergence = truth.divergence_from(&estimate).unwrap();
    assert!((score(&truth) - score(&estimate) - divergence).abs() < 6.0 * 3.0 / 100_000f64.sqrt());
}

#[test]
fn rows_that_can_not_be_scored_are_refused() {
    let density = estimate(&[1.0, 0.0, 1.0], 0.0);
    let check = |rows: &[&[f64]], expected| assert_eq!(density.mean_log_likelihood(rows), Err(expected));
    check(&[], DensityError::NoRows);
    check(&[&[1.0], &[f64::NAN]], DensityError::Row { row: 2 });
    check(&[&[1.0, 2.0]], DensityError::Shape { found: 2, expected: 1, dimension: 1 });
    check(&[&[]], DensityError::Shape { found: 0, expected: 1, dimension: 1 });
    check(&[&[1e200]], DensityError::OutOfRange);
    let flat = Density::known(DVector::zeros(1), DMatrix::zeros(1, 1)).unwrap();
    assert_eq!(flat.mean_log_likelihood([[0.0]]), Err(DensityError::Singular));
}

#[test]
fn invalid_densities_are_refused() {
    let check = |mean: usize, covariance: &[f64], size: usize, expected| {
        let covariance = DMatrix::from_row_slice(size, covariance.len() / size, covariance);
        assert_eq!(Density::known(DVector::zeros(mean), covariance).unwrap_err(), expected);
    };
    check(2, &[1.0, 0.0, 0.5, 1.0], 2, DensityError::Asymmetric);
    check(2, &[1.0, 2.0], 1, DensityError::Shape { found: 2, expected: 4, dimension: 2 });
    check(1, &[f64::INFINITY], 1, DensityError::OutOfRange);
}

/// All first and second moments of 200,000 points lie within 6 standard errors of the density's.
/// So do fourth moments along the axes, whose variance is 96. A false alarm has a probability
/// below 10⁻⁷.
#[test]
fn samples_have_the_moments_of_the_density() {
    let mean = DVector::from_row_slice(&[1.0, -2.0, 0.5]);
    let covariance = DMatrix::from_row_slice(3, 3, &[4.0, 1.0, 0.0, 1.0, 2.0, -0.5, 0.0, -0.5, 1.0]);
    let density = Density::known(mean.clone(), covariance.clone()).unwrap();
    let sampler = density.sampler().unwrap();
    let (size, mut random) = (200_000, ChaCha8Rng::seed_from_u64(11));
    let away: Vec<_> = (0..size).map(|_| sampler.draw(&mut random) - &mean).collect();
    let errors = (size as f64).sqrt();
    let average = |f: &dyn Fn(&DVector<f64>) -> f64| away.iter().map(f).sum::<f64>() / size as f64;
    for i in 0..3 {
        let variance = covariance[(i, i)];
        assert!(average(&|x| x[i]).abs() < 6.0 * variance.sqrt() / errors);
        let fourth = average(&|x| x[i].powi(4)) / variance.powi(2);
        assert!((fourth - 3.0).abs() < 6.0 * 96f64.sqrt() / errors, "{fourth}");
        for j in 0..3 {
            let spread = (variance * covariance[(j, j)] + covariance[(i, j)].powi(2)).sqrt();
            let found = average(&|x| x[i] * x[j]);
            assert!((found - covariance[(i, j)]).abs() < 6.0 * spread / errors, "{i} {j} {found}");
        }
    }
}

#[test]
fn the_seed_fixes_the_sample_and_a_singular_density_has_none() {
    let density = Density::known(DVector::zeros(3), DMatrix::identity(3, 3)).unwrap();
    let draw = |seed| density.sampler().unwrap().draw(&mut ChaCha8Rng::seed_from_u64(seed));
    assert_eq!(draw(5), draw(5));
    assert_ne!(draw(5), draw(6));
    let flat = Density::known(DVector::zeros(2), DMatrix::from_element(2, 2, 1.0)).unwrap();
    assert!(flat.sampler().is_none());
}
