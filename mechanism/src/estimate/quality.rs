//! The quality of an estimate: how large its noise is relative to the bounds of the columns.
//!
//! The quality depends on public numbers and the released count alone: the dimension, the noise
//! levels, and n̂. A quality that also looked at the released second moments would be chosen by
//! their noise, and intervals would hold the truth less often than they promise.
//!
//! Reference: a column whose standard deviation is a quarter of the distance between its bounds,
//! and whose mean lies halfway between their middle and an end. In the coordinates of the records,
//! between −1 and 1, its variance is ¼. The noise of its variance is √(τ₂² + τ₁²)/n, with τ₁ of
//! sums and τ₂ of squares. The expected operator norm of the noise of a d×d covariance is at most
//! √(2d) times that, about as for a Gaussian orthogonal ensemble. For d variances alone, the
//! expected maximum of their noise is about √(2 + 2 ln d) times that of one. An estimate is good if
//! [`SIGNAL_TO_NOISE`] times this norm is at most ¼.
//!
//! So each quality is a range of the released count, with public ends. If the count is exact, the
//! quality is public. Otherwise intervals hold *given* that the count lies in its range
//! ([`selection`](super::selection)).

use super::debias::{MIN_COUNT_TO_NOISE, NoisyMoments};
use crate::moments::SecondMoment;

/// Variance of the reference column.
const REFERENCE_VARIANCE: f64 = 0.25;

/// Minimum ratio of the reference variance to the expected operator norm of the noise.
pub const SIGNAL_TO_NOISE: f64 = 2.0;

/// The noise of an estimate relative to the bounds of its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quality {
    /// The expected norm of the noise is at most half the variance of a column whose standard
    /// deviation is a quarter of the distance between its bounds.
    Good,
    /// Larger noise.
    NoiseDominated,
}

impl NoisyMoments<'_> {
    /// Returns the quality: a function of public numbers and the released count.
    pub fn quality(&self) -> Quality {
        if self.count() > self.good_count() { Quality::Good } else { Quality::NoiseDominated }
    }

    /// Returns the range of counts that give this quality, or, if the count is too small for any
    /// estimate, the range of such counts.
    pub fn count_range(&self) -> (f64, f64) {
        let least = MIN_COUNT_TO_NOISE * self.noise.count;
        let good = self.good_count().max(least);
        match self.count() {
            count if count <= least => (f64::NEG_INFINITY, least),
            count if count <= good => (least, good),
            _ => (good, f64::INFINITY),
        }
    }

    /// The count above which an estimate is good.
    fn good_count(&self) -> f64 {
        let dimension = self.layout.dimension as f64;
        let norm = match self.layout.second {
            SecondMoment::Full => (2.0 * dimension).sqrt(),
            SecondMoment::Diagonal | SecondMoment::None => (2.0 + 2.0 * dimension.ln()).sqrt(),
        };
        SIGNAL_TO_NOISE * norm * self.noise.second.hypot(self.noise.first) / REFERENCE_VARIANCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::{layout, noise};

    fn moments(coordinates: &[f64]) -> NoisyMoments<'_> {
        NoisyMoments { layout: layout(1, SecondMoment::Full), coordinates, noise: noise(5.0, 3.0, 4.0) }
    }

    #[test]
    fn quality_is_a_range_of_counts() {
        let good = 8.0 * 2f64.sqrt() * 5.0;
        for (count, range) in [
            (-3.0, (f64::NEG_INFINITY, 20.0)),
            (20.0, (f64::NEG_INFINITY, 20.0)),
            (21.0, (20.0, good)),
            (57.0, (good, f64::INFINITY)),
        ] {
            // Sums and squares have no effect on range or quality.
            for others in [[0.0, 0.0], [50.0, -60.0]] {
                let coordinates = [count, others[0], others[1]];
                let found = moments(&coordinates);
                assert_eq!(found.count_range(), range, "{count}");
                assert_eq!(found.quality() == Quality::Good, range.0 == good, "{count}");
            }
        }
    }

    /// At the threshold, a column like the reference has a variance of 2√2 standard deviations.
    #[test]
    fn a_good_estimate_resolves_the_reference_column() {
        let coordinates = [8.0 * 2f64.sqrt() * 5.0, 0.0, 0.0];
        let moments = moments(&coordinates);
        let deviations = REFERENCE_VARIANCE / moments.covariance_noise(REFERENCE_VARIANCE, (0.5, 0.5), true);
        assert!((deviations - 8f64.sqrt()).abs() < 0.01, "{deviations}");
    }
}
