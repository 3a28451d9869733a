//! The critical value of simultaneous bands, from a fixed sample of noise.

use super::NoisyHistogram;
use crate::estimate::interval::Confidence;
use crate::quantile;
use chacha20::ChaCha8Rng;
use rand::{Rng, SeedableRng};
use std::sync::OnceLock;

/// Number of samples: the level of a band errs with a deviation of 0.35 percentage points.
const SAMPLES: usize = 4000;

/// The level above which the sample has too few numbers beyond its quantile: at most 4.
const SAMPLED_LEVEL: f64 = 0.999;

/// Number of normal quantiles from which noise is drawn, all equally likely.
const QUANTILES: usize = 4096;

/// Returns the quantile of `max_k |D_k|/√v_k(F_k)`.
pub(super) fn critical_value(histogram: &NoisyHistogram, values: &[f64], confidence: Confidence) -> f64 {
    let bins = values.len();
    let scales: Vec<f64> = (1..bins)
        .map(|k| {
            histogram.variance(histogram.tree.noise_of(k, false), values[k - 1], confidence).max(0.0).sqrt()
        })
        .map(|deviation| if deviation > 0.0 { deviation.recip() } else { 0.0 })
        .collect();
    let sampling = histogram.sampling(confidence).sqrt();
    let (deviation, of_count) = histogram.tree.deviations();
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let (mut nodes, mut sample) = (vec![0.0; histogram.tree.nodes() + 1], vec![0.0; bins]);
    let shares = (0..bins).map(|bin| values[bin] - if bin == 0 { 0.0 } else { values[bin - 1] });
    let roots: Vec<f64> = shares.map(|share| share.max(0.0).sqrt()).collect();
    let mut largest: Vec<f64> = (0..SAMPLES)
        .map(|_| {
            draw(&mut random, &mut nodes);
            nodes.iter_mut().for_each(|node| *node *= deviation);
            let (count, nodes) = nodes.split_last_mut().expect("a count behind the nodes");
            let count = if deviation > 0.0 { *count * of_count.unwrap_or(0.0) / deviation } else { 0.0 };
            let total = histogram.tree.solve(nodes, count);
            let noise = &mut nodes[..bins];
            if sampling > 0.0 {
                draw(&mut random, &mut sample);
                let mean: f64 = roots.iter().zip(&sample).map(|(root, drawn)| root * drawn).sum();
                for ((noise, root), drawn) in noise.iter_mut().zip(&roots).zip(&sample) {
                    *noise += sampling * root * (drawn - root * mean);
                }
            }
            let mut sum = 0.0;
            let apart = noise.iter().zip(values).zip(&scales).map(|((noise, value), scale)| {
                sum += noise;
                ((sum - value * total) * scale).abs()
            });
            apart.fold(0.0, f64::max)
        })
        .collect();
    largest.sort_by(f64::total_cmp);
    let rank = (confidence.level * (SAMPLES + 1) as f64).ceil() as usize;
    let of_sample = largest[rank.clamp(1, SAMPLES) - 1];
    if confidence.level > SAMPLED_LEVEL { of_sample.max(bonferroni(bins - 1, confidence)) } else { of_sample }
}

/// Returns z such that intervals of z deviations around `statements` normal numbers hold together
/// (Bonferroni's inequality).
fn bonferroni(statements: usize, confidence: Confidence) -> f64 {
    let level = 1.0 - (1.0 - confidence.level) / statements.max(1) as f64;
    Confidence { level, ..confidence }.normal_quantile()
}

/// Draws standard normal numbers.
fn draw(random: &mut ChaCha8Rng, numbers: &mut [f64]) {
    static NORMAL: OnceLock<Vec<f64>> = OnceLock::new();
    let normal = NORMAL.get_or_init(|| {
        let upper = (0..QUANTILES / 2).map(|at| quantile::normal((at as f64 + 0.5) / QUANTILES as f64));
        upper.flat_map(|number| [number, -number]).collect()
    });
    for four in numbers.chunks_mut(4) {
        let mut bits = random.next_u64();
        for number in four {
            *number = normal[bits as usize % QUANTILES];
            bits >>= 16;
        }
    }
}
