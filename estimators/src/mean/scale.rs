//! Unknown scales of columns: a private median of distances.
//!
//! Record i is paired with record i + ⌊n/2⌋. In each column, their distance over √2 has the
//! column's scale, whatever its mean. Distances are counted in bins of a quarter of an octave, and
//! only bins that pass the threshold of `range` are visible. The point in a bin where their noisy
//! counts reach half is the median. The median of |N(0, 1)| is 0.6745. A share α of corrupted
//! records spoils 2α of the pairs, so below a quarter it moves the median by a bounded amount.
//!
//! *Privacy.* A replaced record changes one pair, hence one distance in each column: the histograms
//! are those of `range`, with its proof. A column of equal values has distances 0 and gets scale 1,
//! because any number suits it.

use super::budget::MeanBudget;
use super::range::{Histogram, stable};
use super::{EstimationStop, MeanRefusal, Tails};
use hushflow_mechanism::noise::NoiseGenerator;

const BINS_PER_OCTAVE: f64 = 4.0;

const MEDIAN: f64 = 0.674_489_750_196_081_7;

const ZERO: i64 = i64::MIN;

/// Factor for heavy tails, whose standard deviations exceed those that medians suggest.
const HEAVY_ALLOWANCE: f64 = 2.0;

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

/// Returns rows i and i + ⌊n/2⌋: a row is in at most one pair.
pub(super) fn pairs(rows: &[f64], dimension: usize) -> impl Iterator<Item = (&[f64], &[f64])> {
    let (first, second) = rows.split_at(rows.len() / dimension / 2 * dimension);
    first.chunks_exact(dimension).zip(second.chunks_exact(dimension))
}

/// Bin of half the distance, in quarters of an octave.
fn bin(half_distance: f64) -> i64 {
    if half_distance == 0.0 { ZERO } else { (half_distance.log2() * BINS_PER_OCTAVE).floor() as i64 }
}

/// Distance over √2 at which the noisy counts reach half, as if values within a bin were even in
/// logarithms. `Some(None)` if it is 0.
fn median(bins: &[(i64, f64)]) -> Option<Option<f64>> {
    let half = bins.iter().map(|(_, count)| count).sum::<f64>() / 2.0;
    let mut before = 0.0;
    let reached = |&&(_, count): &&(i64, f64)| {
        before += count;
        before >= half
    };
    let &(bin, count) = bins.iter().find(reached)?;
    let place = bin as f64 + 1.0 - (before - half) / count;
    let distance = (place / BINS_PER_OCTAVE).exp2() * std::f64::consts::SQRT_2;
    Some((bin != ZERO).then_some(distance))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_found_within_their_bin() {
        let found = median(&[(-4, 10.0), (0, 40.0), (4, 30.0)]).expect("a median").expect("a distance");
        // Half of 80 is three quarters into the second bin, of a quarter of an octave.
        assert!((found - (0.75_f64 / 4.0).exp2() * 2_f64.sqrt()).abs() < 1e-12, "{found}");
        assert_eq!(median(&[(ZERO, 9.0), (3, 2.0)]), Some(None));
        assert_eq!(median(&[]), None);
    }
}
