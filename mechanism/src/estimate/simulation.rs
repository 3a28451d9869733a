//! Moments and their releases for tests.

use super::debias::MomentNoise;
use crate::moments::{Layout, SecondMoment};
use chacha20::ChaCha8Rng;
use nalgebra::{DMatrix, DVector};
use rand_distr::{Distribution, StandardNormal};
use std::f64::consts::SQRT_2;

pub(super) const fn noise(count: f64, first: f64, second: f64) -> MomentNoise {
    MomentNoise { count, first, second }
}

pub(super) const fn layout(dimension: usize, second: SecondMoment) -> Layout {
    Layout { dimension, second }
}

pub(super) fn normal(random: &mut ChaCha8Rng) -> f64 {
    StandardNormal.sample(random)
}

/// The exact moments of `count` records with this mean and covariance (row by row).
pub(super) fn moments(layout: Layout, count: f64, mean: &[f64], covariance: &[f64]) -> Vec<f64> {
    let entry = |(i, j)| covariance[i * layout.dimension + j] + mean[i] * mean[j];
    let entries = layout.second_entries().map(entry);
    [1.0].into_iter().chain(mean.iter().copied()).chain(entries).map(|x| x * count).collect()
}

/// The exact moments of `count` records drawn from N(mean, factor·factorᵀ).
pub(super) fn sampled(
    layout: Layout,
    count: usize,
    mean: &[f64],
    factor: &DMatrix<f64>,
    random: &mut ChaCha8Rng,
) -> Vec<f64> {
    let mut sums = vec![0.0; layout.coordinates()];
    for _ in 0..count {
        let deviates = DVector::from_fn(layout.dimension, |_, _| normal(random));
        let record = DVector::from_column_slice(mean) + factor * deviates;
        let entries = layout.second_entries().map(|(i, j)| record[i] * record[j]);
        let terms = [1.0].into_iter().chain(record.iter().copied()).chain(entries);
        sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
    }
    sums
}

pub(super) fn released(
    layout: Layout,
    exact: &[f64],
    noise: MomentNoise,
    random: &mut ChaCha8Rng,
) -> Vec<f64> {
    let first = std::iter::repeat_n(noise.first, layout.dimension);
    let second = layout.second_entries().map(|(i, j)| noise.second / if i == j { 1.0 } else { SQRT_2 });
    let deviations = [noise.count].into_iter().chain(first).chain(second);
    exact.iter().zip(deviations).map(|(x, deviation)| x + deviation * normal(random)).collect()
}
