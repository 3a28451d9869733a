//! The scale of columns, where it is not known: a private median of distances.
//!
//! Record i is paired with record i + ⌊n/2⌋, and in each column the distance of the two over √2 has the column's scale, whatever
//! its mean. Distances are counted in bins of a quarter of an octave; only bins that pass the threshold of `range` are seen; the
//! bin in which their noisy counts reach half is the median, and the median of |N(0, 1)| is 0.6745. A share α of
//! corrupted records spoils 2α of the pairs, so below a quarter it moves the median by a bounded amount.
//!
//! *Privacy.* A replaced record changes one pair, hence one distance in each column: the histograms are those of `range`, with
//! its proof. A column of equal values has distances 0 and gets scale 1: any number serves it.

use super::budget::Budget;
use super::range::{Histogram, stable};
use super::{MeanError, Refusal, Shares, Tails};
use crate::noise::NoiseGenerator;

/// Bins of an octave.
const BINS_PER_OCTAVE: f64 = 4.0;

/// Median of |N(0, 1)|.
const MEDIAN: f64 = 0.674_489_750_196_081_7;

/// Bin of distances that are 0.
const ZERO: i64 = i64::MIN;

/// Standard deviations exceed what medians say of them where tails are heavy.
const HEAVY_ALLOWANCE: f64 = 2.0;

/// A scale for each column.
pub(super) fn estimate(
    rows: &[f64],
    dimension: usize,
    tails: Tails,
    budget: &mut Budget,
    rng: &mut NoiseGenerator,
) -> Result<Result<Vec<f64>, Refusal>, MeanError> {
    let half = rows.len() / dimension / 2;
    let mut histograms = vec![Histogram::new(); dimension];
    let (first, second) = rows.split_at(half * dimension);
    for (a, b) in first.chunks_exact(dimension).zip(second.chunks_exact(dimension)) {
        for ((a, b), histogram) in a.iter().zip(b).zip(&mut histograms) {
            let distance = (a / 2.0 - b / 2.0).abs();
            if distance.is_finite() {
                *histogram.entry(bin(distance)).or_default() += 1;
            }
        }
    }
    let noisy = stable(&histograms, ("scale", Shares::SCALE * budget.whole()), budget, rng)?;
    let allowance = match tails {
        Tails::SubGaussian => 1.0,
        Tails::BoundedCovariance => HEAVY_ALLOWANCE,
    };
    let columns = noisy.into_iter().enumerate();
    let scale = |(column, bins): (usize, Vec<(i64, f64)>)| {
        let median = median(&bins).ok_or(Refusal::Scale { column })?;
        Ok(if median == ZERO { 1.0 } else { middle(median) / MEDIAN * allowance })
    };
    Ok(columns.map(scale).collect())
}

/// Of half the distance, in quarters of an octave.
fn bin(half_distance: f64) -> i64 {
    if half_distance == 0.0 { ZERO } else { (half_distance.log2() * BINS_PER_OCTAVE).floor() as i64 }
}

/// Middle of a bin, as distance over √2.
fn middle(bin: i64) -> f64 {
    ((bin as f64 + 0.5) / BINS_PER_OCTAVE).exp2() * std::f64::consts::SQRT_2
}

/// The bin in which half of the counts is reached.
fn median(bins: &[(i64, f64)]) -> Option<i64> {
    let half = bins.iter().map(|(_, count)| count).sum::<f64>() / 2.0;
    let mut before = 0.0;
    bins.iter()
        .find(|(_, count)| {
            before += count;
            before >= half
        })
        .map(|(bin, _)| *bin)
}
