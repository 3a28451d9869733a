//! Finds a ball that holds the clean records: Algorithms 5 and 15, with refinements.
//!
//! Each column is cut into bins of one width. Only occupied bins get noise, and only bins above a
//! threshold may win. The noise of an empty bin never passes the threshold, so the infinitely many
//! empty bins need no draws. Algorithm 5 has no threshold, so its output distinguishes neighbours
//! (`docs/mean.md`).
//!
//! # Privacy
//! Replace one record. In each column it leaves one bin and enters another. Let M be the mechanism,
//! and M′ the one that also suppresses, for this pair, the bins that are occupied in only one of
//! the two tables. M′ on the two tables is one Gaussian mechanism: 2d counts of common bins change
//! by at most 1, a distance of √(2d). M differs from M′ only if a bin of one record passes 1 + t.
//! The discrete Gaussian is subgaussian (Canonne, Kamath & Steinke 2020, Corollary 17), so this has
//! probability d·exp(−t²/2s²) ≤ τ for each table, where s is the noise's deviation. Hence M is
//! within total variation τ of M′, and the budget charges (1 + e^ε)τ of δ. If no bin of a column
//! passes, the refusal is part of the output. ∎
//!
//! # From bins to a ball
//! The winner's middle is off by ±1.5 bins if the mean lies in a neighbouring bin. Then, twice,
//! records are clipped to a ball that holds the clean ones. Their private mean, which corruption
//! moves by at most 2α radii, is the centre of a smaller ball (as in CoinPress: Biswas et al.,
//! NeurIPS 2020). All noise is proportional to the square of the radius.
//!
//! # Scales of columns
//! Unknown scales of columns: a private median of distances.
//!
//! Record i is paired with record i + ⌊n/2⌋. In each column, their distance over √2 has the
//! column's scale, for any mean. Distances are counted in bins of a quarter of an octave, and
//! only bins that pass the threshold of `range` are visible. The point in a bin where their noisy
//! counts reach half is the median. The median of |N(0, 1)| is 0.6745. A share α of corrupted
//! records spoils 2α of the pairs, so below a quarter it moves the median by a bounded amount.
//!
//! *Privacy.* A replaced record changes one pair, hence one distance in each column: the histograms
//! are those of `range`, with its proof. A column of equal values has distances 0 and gets scale 1,
//! because any scale suits it.

use super::budget::MeanBudget;
use super::release::{ClippedRecords, ClippingBall, in_parallel};
use super::{EstimationStop, MeanError, MeanRefusal, Shares, Tails, release};
use hushflow_mechanism::noise::NoiseGenerator;
use serde::Serialize;
use std::collections::BTreeMap;

/// ζ: probability that some clean record is outside its ball, or that a heavy tail misleads.
pub(super) const FAILURE: f64 = 0.1;

/// Half width of a bin in scales, Algorithm 5: σ = 1.
pub(super) const HALF_BIN: f64 = 1.0;

/// As [`HALF_BIN`], if only the variance is bounded. The paper's σ is 40, by Markov's inequality;
/// by Chebyshev's, 1/16 of the records are beyond 4, which suffices for [`FAILURE`] and n ≥ 100.
const HALF_BIN_HEAVY: f64 = 4.0;

/// Largest distance of a winner's middle from the mean, in half bins: the mean is in the winner or
/// in a neighbouring bin.
pub(super) const CENTRE_ERROR: f64 = 3.0;

/// Radius of the ball around the mean of heavy-tailed records, in √(d/α): by Chebyshev's inequality
/// a share α/4 of clean ones is outside. The paper's is 25, for α/1250, and its square multiplies
/// all noise.
const HEAVY_RADIUS: f64 = 2.0;

const REFINEMENTS: u32 = 2;

/// Bins further out are merged, because values beyond have too few digits for their scale.
const FARTHEST: f64 = 1e15;

/// Records of one worker's part of a histogram.
const PART: usize = 1 << 16;

/// Radius around the mean that holds the clean records: all of them except with probability ζ if
/// subgaussian, all but a share α/4 for heavy tails. `‖x‖² ≤ d + 2√(dt) + 2t` except with
/// probability e^−t (Hsu, Kakade & Zhang 2012), t = ln(n/ζ).
pub(super) fn clean_radius(tails: Tails, dimension: usize, records: usize, corruption: f64) -> f64 {
    let dimension = dimension as f64;
    match tails {
        Tails::SubGaussian => {
            let t = (records as f64 / FAILURE).ln();
            (dimension + 2.0 * (dimension * t).sqrt() + 2.0 * t).sqrt()
        }
        Tails::BoundedCovariance => HEAVY_RADIUS * (dimension / corruption.max(1.0 / records as f64)).sqrt(),
    }
}

pub(super) fn ball(
    rows: &[f64],
    scales: &[f64],
    (tails, corruption): (Tails, f64),
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<(ClippingBall, ReleasedBins), EstimationStop> {
    let (dimension, records) = (scales.len(), rows.len() / scales.len());
    let half_bin = match tails {
        Tails::SubGaussian => HALF_BIN,
        Tails::BoundedCovariance => HALF_BIN_HEAVY,
    };
    let part = ("range", Shares::RANGE * budget.whole());
    let bins = released_bins(rows, (scales, half_bin), part, budget, rng)?;
    let centre = bins.winners()?;
    let clean = clean_radius(tails, dimension, records, corruption);
    let mut ball =
        ClippingBall { centre, radius: clean + CENTRE_ERROR * half_bin * (dimension as f64).sqrt() };
    for _ in 0..REFINEMENTS {
        ball = refined(rows, scales, &ball, (clean, corruption), budget, rng)?;
    }
    Ok((ball, bins))
}

/// Returns the ball around the private mean of the records in a larger ball.
fn refined(
    rows: &[f64],
    scales: &[f64],
    ball: &ClippingBall,
    (clean, corruption): (f64, f64),
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<ClippingBall, MeanError> {
    let dimension = scales.len();
    let kept = ClippedRecords::new(rows, scales, ball)?;
    let share = Shares::REFINEMENT * budget.whole() / f64::from(REFINEMENTS);
    let sums = release::sums(&kept, ("refinement", share), budget, rng)?;
    let records = kept.len() as f64;
    let mean: Vec<f64> = sums.first.iter().map(|sum| sum / records).collect();
    let noise = release::deviation(share) / records * ball.radius * ((dimension as f64).sqrt() + 3.0);
    let ones = vec![1.0; dimension];
    let radius = clean + 2.0 * corruption * ball.radius + noise;
    Ok(ClippingBall { centre: ball.to_units(&mean, &ones), radius: radius.min(ball.radius) })
}

/// Returns the middle of the fullest bin of each column, in scaled units, for μ² of a step.
pub(super) fn winners(
    rows: &[f64],
    scaled: (&[f64], f64),
    part: (&'static str, f64),
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<Vec<f64>, EstimationStop> {
    released_bins(rows, scaled, part, budget, rng)?.winners()
}

fn released_bins(
    rows: &[f64],
    (scales, half_bin): (&[f64], f64),
    part: (&'static str, f64),
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<ReleasedBins, MeanError> {
    let widths: Vec<f64> = scales.iter().map(|scale| 2.0 * half_bin * scale).collect();
    let histograms = histograms(rows, &widths, |value| value.floor());
    Ok(ReleasedBins { half_bin, columns: stable(&histograms, part, budget, rng)? })
}

/// Noisy counts of the bins that passed the threshold, for each column. They are released, so
/// computations on them have no privacy cost.
pub(super) struct ReleasedBins {
    half_bin: f64,
    columns: Vec<Vec<(i64, f64)>>,
}

impl ReleasedBins {
    /// The middle of the fullest bin of each column, in scaled units.
    fn winners(&self) -> Result<Vec<f64>, EstimationStop> {
        let winner = |(column, bins): (usize, &Vec<(i64, f64)>)| -> Result<f64, EstimationStop> {
            let fullest = bins.iter().copied().reduce(|best, bin| if bin.1 > best.1 { bin } else { best });
            let middle = |(bin, _): (i64, f64)| (2.0 * bin as f64 + 1.0) * self.half_bin;
            fullest.map(middle).ok_or(MeanRefusal::Range { column }.into())
        };
        self.columns.iter().enumerate().map(winner).collect()
    }

    /// Estimates from the released bins how many values are beyond the ball, in the units of the
    /// columns. Values within a bin count as evenly spread. Bins below the threshold are missing,
    /// so there may be more.
    pub(super) fn clipping(&self, ball: &ClippingBall, scales: &[f64]) -> Vec<Clipping> {
        let width = 2.0 * self.half_bin;
        let column = |bins: &[(i64, f64)], centre: f64, scale: f64| {
            let (lower, upper) = (centre - ball.radius, centre + ball.radius);
            let all = bins.iter().map(|(_, count)| count.max(0.0)).sum::<f64>().max(1.0);
            let (mut share, mut bias) = (0.0, 0.0);
            for &(bin, count) in bins {
                let (from, to) = (bin as f64 * width, (bin as f64 + 1.0) * width);
                let weight = count.max(0.0) / all / width;
                // Integrals over the parts of the bin beyond each end.
                let (low, high) = ((lower.min(to) - from).max(0.0), (to - upper.max(from)).max(0.0));
                share += weight * (low + high);
                bias += weight * low * (lower - from - low / 2.0);
                bias -= weight * high * (to - upper - high / 2.0);
            }
            Clipping { lower: lower * scale, upper: upper * scale, share, bias: bias * scale, scale }
        };
        let columns = self.columns.iter().zip(&ball.centre).zip(scales);
        columns.map(|((bins, &centre), &scale)| column(bins, centre, scale)).collect()
    }
}

/// Estimated clipping of a column, from released numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Clipping {
    /// Lower end of the range.
    pub lower: f64,
    /// Upper end of the range.
    pub upper: f64,
    /// Share of the values beyond it.
    pub share: f64,
    /// Change of the mean by clipping.
    pub bias: f64,
    /// Scale of the column, given or estimated.
    pub scale: f64,
}

/// Occupied bins of a column and their counts.
pub(super) type Histogram = BTreeMap<i64, i128>;

/// Returns the histograms of all columns; `bin` maps a value, in units of its column's width, to a
/// bin. NaN is in no bin.
pub(super) fn histograms(rows: &[f64], widths: &[f64], bin: impl Fn(f64) -> f64 + Sync) -> Vec<Histogram> {
    let dimension = widths.len();
    let parts: Vec<&[f64]> = rows.chunks(PART * dimension).collect();
    let count = |rows: &&[f64]| {
        let mut counts = vec![BinCounts::default(); dimension];
        for row in rows.chunks_exact(dimension) {
            for ((value, width), counts) in row.iter().zip(widths).zip(&mut counts) {
                let bin_index = bin((value / width).clamp(-FARTHEST, FARTHEST));
                if !bin_index.is_nan() {
                    counts.add(bin_index as i64);
                }
            }
        }
        counts
    };
    let mut whole = vec![Histogram::new(); dimension];
    for part in in_parallel(&parts, count) {
        for (whole, part) in whole.iter_mut().zip(part) {
            part.drain_into(whole);
        }
    }
    whole
}

/// Counts of bins: an array for bins near zero, a tree for others.
#[derive(Clone)]
struct BinCounts {
    near: Vec<i128>,
    far: Histogram,
}

const NEAR: i64 = 512;

impl Default for BinCounts {
    fn default() -> Self {
        Self { near: vec![0; 2 * NEAR as usize], far: Histogram::new() }
    }
}

impl BinCounts {
    fn add(&mut self, bin: i64) {
        match self.near.get_mut((bin.wrapping_add(NEAR)) as usize) {
            Some(count) => *count += 1,
            None => *self.far.entry(bin).or_default() += 1,
        }
    }

    fn drain_into(self, whole: &mut Histogram) {
        let near = (-NEAR..).zip(self.near).filter(|(_, count)| *count > 0);
        near.chain(self.far).for_each(|(bin, count)| *whole.entry(bin).or_default() += count);
    }
}

/// Returns the bins of each histogram that pass the threshold, with their noisy counts.
pub(super) fn stable(
    histograms: &[Histogram],
    (step, share): (&'static str, f64),
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<Vec<Vec<(i64, f64)>>, MeanError> {
    let columns = histograms.len() as f64;
    let exact: Vec<i128> = histograms.iter().flat_map(|histogram| histogram.values().copied()).collect();
    let mut noisy = release::counts(&exact, columns, (step, share), budget, rng)?.into_iter();
    let tail = budget.threshold_variation(THRESHOLDED) / columns;
    let threshold = 1.0 + release::count_deviation(columns, share) * (-2.0 * tail.ln()).sqrt() * (1.0 + 1e-9);
    let above_threshold = |histogram: &Histogram| {
        let bins = histogram.keys().copied().zip(noisy.by_ref());
        // Draw all of this column's noise, for any number of bins that pass.
        let bins: Vec<_> = bins.take(histogram.len()).collect();
        bins.into_iter().filter(|(_, count)| *count > threshold).collect()
    };
    Ok(histograms.iter().map(above_threshold).collect())
}

/// Maximum number of thresholded sets of histograms in one estimate: scales, both passes of
/// whitening, and a range for each of the two methods that `auto` may run.
const THRESHOLDED: u32 = 5;

const BINS_PER_OCTAVE: f64 = 4.0;

const MEDIAN: f64 = 0.674_489_750_196_081_7;

const ZERO: i64 = i64::MIN;

/// Factor for heavy tails, whose standard deviations are larger than medians suggest.
pub(super) const HEAVY_ALLOWANCE: f64 = 2.0;

/// Returns a scale for each column, by histograms of this share of μ².
pub(super) fn estimate(
    rows: &[f64],
    dimension: usize,
    (step, share): (&'static str, f64),
    tails: Tails,
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<Vec<f64>, EstimationStop> {
    let mut histograms = vec![Histogram::new(); dimension];
    for (a, b) in pairs(rows, dimension) {
        for ((a, b), histogram) in a.iter().zip(b).zip(&mut histograms) {
            let distance = (a / 2.0 - b / 2.0).abs();
            if distance.is_finite() {
                *histogram.entry(bin(distance)).or_default() += 1;
            }
        }
    }
    let noisy = stable(&histograms, (step, share * budget.whole()), budget, rng)?;
    let allowance = match tails {
        Tails::SubGaussian => 1.0,
        Tails::BoundedCovariance => HEAVY_ALLOWANCE,
    };
    let columns = noisy.into_iter().enumerate();
    let scale = |(column, bins): (usize, Vec<(i64, f64)>)| -> Result<f64, EstimationStop> {
        let median = median(&bins).ok_or(MeanRefusal::Scale { column })?;
        Ok(median.map_or(1.0, |median| median / MEDIAN * allowance))
    };
    columns.map(scale).collect()
}

/// Returns pairs of rows i and i + ⌊n/2⌋. A row is in at most one pair.
pub(super) fn pairs(rows: &[f64], dimension: usize) -> impl Iterator<Item = (&[f64], &[f64])> {
    let (first, second) = rows.split_at(rows.len() / dimension / 2 * dimension);
    first.chunks_exact(dimension).zip(second.chunks_exact(dimension))
}

/// Bin of half the distance, in quarters of an octave.
fn bin(half_distance: f64) -> i64 {
    if half_distance == 0.0 { ZERO } else { (half_distance.log2() * BINS_PER_OCTAVE).floor() as i64 }
}

/// Distance over √2 at which the noisy counts reach half, if values within a bin are spread evenly
/// in logarithms. `Some(None)` if it is 0.
fn median(bins: &[(i64, f64)]) -> Option<Option<f64>> {
    let half = bins.iter().map(|(_, count)| count).sum::<f64>() / 2.0;
    let mut before = 0.0;
    let reached = |&&(_, count): &&(i64, f64)| {
        before += count;
        before >= half
    };
    let &(bin, count) = bins.iter().find(reached)?;
    let bin_index = bin as f64 + 1.0 - (before - half) / count;
    let distance = (bin_index / BINS_PER_OCTAVE).exp2() * std::f64::consts::SQRT_2;
    Some((bin != ZERO).then_some(distance))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bins of width 2 from −2 to 10, and a ball from 0 to 7: half of bin 3 and all of bin 4 are
    /// above, bin −1 is below.
    #[test]
    fn released_bins_estimate_the_clipping() {
        let bins =
            ReleasedBins { half_bin: 1.0, columns: vec![vec![(-1, 10.0), (0, 70.0), (3, 10.0), (4, 10.0)]] };
        let ball = ClippingBall { centre: vec![3.5], radius: 3.5 };
        let found = bins.clipping(&ball, &[10.0])[0];
        assert_eq!((found.lower, found.upper), (0.0, 70.0));
        assert!((found.share - 0.25).abs() < 1e-12, "{found:?}");
        // Bin −1 moves up by 1 on average, half of bin 3 down by ½, bin 4 by 2.
        assert!((found.bias - 10.0 * (0.1 - 0.05 * 0.5 - 0.1 * 2.0)).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn medians_are_interpolated_within_their_bin() {
        let found = median(&[(-4, 10.0), (0, 40.0), (4, 30.0)]).expect("a median").expect("a distance");
        // Half of 80 is three quarters into the second bin, of a quarter of an octave.
        assert!((found - (0.75_f64 / 4.0).exp2() * 2_f64.sqrt()).abs() < 1e-12, "{found}");
        assert_eq!(median(&[(ZERO, 9.0), (3, 2.0)]), Some(None));
        assert_eq!(median(&[]), None);
    }
}
