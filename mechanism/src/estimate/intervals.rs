//! Confidence intervals of means, covariances, correlations and eigenvalues, which account for the
//! noise.
//!
//! For the records' own moments, with z the two-sided normal quantile of the level:
//!
//! - a mean: `{m : |ŝ − m n̂| ≤ z √(τ₁² + m²τ₀²)}` (Fieller 1954), at exactly the level;
//! - a covariance: its range over the ball of moments within z of the released ones (`ball.rs`),
//!   before projection, whose bias has no known distribution. The estimate ± z of its own standard
//!   deviations contains the truth too rarely if that deviation depends on a noise-dominated mean;
//! - a correlation: `correlation.rs`.
//!
//! If the count is noisy, z depends on the side and on the entry, so that intervals keep their
//! level given the quality of the line ([`quality`](super::quality)): see
//! [`selection`](super::selection). A relative error e of the count moves a mean m by −m·e, and a
//! covariance by (mᵢmⱼ − σᵢⱼ)·e, with the m or the σᵢⱼ of the end in question. Other noisy counts
//! that decide quality flags are given by [`MomentIntervals::given`].
//!
//! [`MomentIntervals::within_bounds`] cuts intervals to the values that records in [−1, 1] allow
//! ([`Interval::within`], with a half-width of z deviations). This never removes the truth, with
//! one exception: the largest variance, 1 − m², depends on an unknown mean. The mean nearest to 0
//! in its interval is taken, at a fiftieth of the tail.
//!
//! **Coverage given the flags.** Let W be the counts that decide the quality flags of a line, I the
//! interval of θ given the ranges of W, and B the values of θ that bounds allow. For every θ in B,
//! θ ∈ I with the probability of the level, given the flags. The shown interval contains I ∩ B, so
//! it contains θ at least as often. This requires that only W decides flags. An interval wholly
//! outside B is more frequent if θ̂ is far from θ. A flag for such intervals would select lines
//! whose other numbers are wrong, too.
//!
//! For the population, the error of the sample is independent of the noise, and the two are
//! combined as by Zou & Donner 2008. A sample mean has Student's distribution. A sample covariance
//! σᵢⱼ is distributed as u − w, where u and w are the variances of (x/σᵢ ± y/σⱼ)/√2, independent
//! multiples of χ². Means need samples that are not small, covariances a population that is about
//! Gaussian.

use super::ball::EntryMoments;
use super::debias::{MomentNoise, NoisyMoments};
use super::density::DensityError;
pub use super::interval::{Confidence, Interval, IntervalSubject};
use super::selection::{Selection, conditional_quantiles, count_interval};
use crate::moments::SecondMoment;
use crate::quantile;
use nalgebra::{DMatrix, DVector};
use std::f64::consts::SQRT_2;

mod correlation;

pub(super) use correlation::CLEAR;

/// Range of the coordinates of records, and of correlations.
const UNIT: Interval = Interval { lower: -1.0, upper: 1.0 };

/// Smallest sample for a statement about its population.
pub const LEAST_SAMPLE: f64 = 10.0;

/// Share of the tail at which a mean bounds a variance.
pub(super) const BOUND_TAIL: f64 = 0.02;

/// Iterations of the search for the end of an interval, whose quantile depends on the end.
const ROUNDS: u32 = 6;

/// Confidence intervals of the moments of one key, in the coordinates of the moments.
#[derive(Clone, Debug)]
pub struct MomentIntervals<'a> {
    moments: NoisyMoments<'a>,
    mean: DVector<f64>,
    covariance: DMatrix<f64>,
    tail: f64,
    z: f64,
    subject: IntervalSubject,
    /// Whether the coordinates of records lie in [−1, 1].
    bounded: bool,
    /// Other counts that decide quality flags, with the correlations of their noise with that of
    /// the count.
    others: Vec<Selection>,
}

impl<'a> NoisyMoments<'a> {
    /// Returns confidence intervals for the estimates from these moments.
    ///
    /// # Errors
    /// As [`density`](Self::density), [`DensityError::Level`] and [`DensityError::Heaviest`].
    ///
    /// ```
    /// use hushflow_mechanism::estimate::debias::{MomentNoise, NoisyMoments};
    /// use hushflow_mechanism::estimate::intervals::{Confidence, IntervalSubject};
    /// use hushflow_mechanism::moments::{Layout, SecondMoment};
    /// let moments = NoisyMoments {
    ///     layout: Layout::new(1, SecondMoment::Full),
    ///     coordinates: &[100.0, 50.0, 125.0],
    ///     noise: MomentNoise { count: 0.0, first: 2.0, second: 3.0 },
    /// };
    /// let mean = moments.intervals(Confidence::default())?.mean(0).expect("column 0 of 1");
    /// assert!((mean.lower - (0.5 - 1.96 * 0.02)).abs() < 1e-6 && mean.contains(0.5));
    ///
    /// let subject = IntervalSubject::Population { heaviest: 1.0 };
    /// let wider = moments.intervals(Confidence { subject, ..Confidence::default() })?;
    /// assert!(wider.mean(0).expect("column 0 of 1").upper > 0.69);
    /// # Ok::<(), hushflow_mechanism::estimate::density::DensityError>(())
    /// ```
    pub fn intervals(&self, confidence: Confidence) -> Result<MomentIntervals<'a>, DensityError> {
        let Confidence { level, joint, subject } = confidence;
        if !(level > 0.0 && level < 1.0) {
            return Err(DensityError::Level(level));
        }
        match subject {
            IntervalSubject::Population { heaviest }
                if !(f64::MIN_POSITIVE..=f64::MAX).contains(&heaviest) =>
            {
                return Err(DensityError::Heaviest(heaviest));
            }
            _ => {}
        }
        let (mean, covariance) = self.estimates()?;
        let statements = if joint { self.layout.dimension + self.layout.second_len() } else { 1 };
        let tail = (1.0 - level) / 2.0 / statements as f64;
        Ok(MomentIntervals {
            moments: *self,
            mean,
            covariance,
            tail,
            z: quantile::normal(tail),
            subject,
            bounded: false,
            others: Vec::new(),
        })
    }
}

impl NoisyMoments<'_> {
    /// Returns the interval of the count at this level, given the quality. It exists for every
    /// count, and begins at 0 or above.
    pub fn count_interval(&self, level: f64) -> Interval {
        let (count, noise) = (self.count(), self.noise.count);
        count_interval(count, noise, level, &[Selection::by_range(count, self.count_range(), noise, 1.0)])
    }
}

impl MomentIntervals<'_> {
    /// Returns the same intervals for records whose coordinates lie in [−1, 1], cut to the values
    /// that such records allow.
    pub fn within_bounds(self) -> Self {
        Self { bounded: true, ..self }
    }

    /// Returns the same intervals, given that these other counts are in their ranges, too. The
    /// correlation of each is that of its noise with the noise of the count. Given the noise of the
    /// count, their noise must be independent of that of the estimates.
    pub fn given(self, others: Vec<Selection>) -> Self {
        Self { others, ..self }
    }

    /// Returns the interval of a column's mean; `None` if there is no such column.
    pub fn mean(&self, column: usize) -> Option<Interval> {
        self.mean_at(column, self.tail)
    }

    fn mean_at(&self, column: usize, tail: f64) -> Option<Interval> {
        let interval = self.uncut_mean(column, tail)?;
        let MomentNoise { count, first, .. } = self.moments.noise;
        // The deviation of a mean of ±1, which is at a bound.
        let noise = first.hypot(count) / self.moments.count();
        Some(if self.bounded { interval.within(UNIT, self.z * noise) } else { interval })
    }

    fn uncut_mean(&self, column: usize, tail: f64) -> Option<Interval> {
        let estimate = *self.mean.get(column)?;
        let records = self.fieller(self.first(column), estimate, tail).with(estimate);
        Some(match self.subject {
            IntervalSubject::Records => records,
            IntervalSubject::Population { .. } => {
                let z = quantile::normal(tail);
                let sampled = self.sampled(records, estimate, |freedom| {
                    let error = quantile::student(z, freedom) * (self.spread(column) / freedom).sqrt();
                    (error, error)
                });
                sampled.with(estimate)
            }
        })
    }

    /// Returns the interval of the covariance of two columns, or of the variance of one; `None` if
    /// there is no such column or if only diagonal moments are known. The interval of a variance
    /// begins at 0 or above. It ends at least z standard deviations of its noise above 0, because a
    /// negative estimate may also belong to a positive variance.
    pub fn covariance(&self, i: usize, j: usize) -> Option<Interval> {
        let estimate = *self.covariance.get((i, j))?;
        let entry = self.entry(i, j)?;
        let records = self.covariance_of_records(&entry, (i, j)).with(estimate);
        let interval = match self.subject {
            IntervalSubject::Records => records,
            IntervalSubject::Population { heaviest } => {
                // A sample's covariance is that of its population times (n−1)/n.
                let sample = self.moments.count() / heaviest;
                let sampled = self.sampled(records, estimate, |freedom| self.sampling(i, j, freedom));
                sampled.map(|x| x * sample / (sample - 1.0).max(f64::MIN_POSITIVE)).with(estimate)
            }
        };
        let largest = match self.bounded {
            true => (self.largest_variance(i)? * self.largest_variance(j)?).sqrt(),
            false => f64::INFINITY,
        };
        let bounds = Interval { lower: if i == j { 0.0 } else { -largest }, upper: largest };
        Some(interval.within(bounds, self.z * self.entry_noise(i, j)))
    }

    /// The covariances whose distance from the estimate is at most the quantile of their side,
    /// given the quality and at that covariance. Using the covariance of the estimate instead would
    /// mix the effect of the count with the noise. An estimate that noise has raised would seem to
    /// fall as the count rises, and the interval below the estimate would be too short.
    fn covariance_of_records(&self, entry: &EntryMoments, (i, j): (usize, usize)) -> Interval {
        let means = (self.mean[i], self.mean[j]);
        let quantiles = |covariance: f64| {
            let covariance = if self.bounded { covariance.clamp(-1.0, 1.0) } else { covariance };
            let covariance = if i == j { covariance.max(0.0) } else { covariance };
            let noise = self.moments.covariance_noise(covariance, means, i == j);
            self.quantiles(self.tail, (means.0 * means.1 - covariance) / noise)
        };
        let plain = entry.covariance_range(self.z);
        let is_plain = quantiles(plain.lower).0 == self.z && quantiles(plain.upper).1 == self.z;
        if is_plain { plain } else { settle(plain, quantiles, |z| entry.covariance_range(z)) }
    }

    /// The largest variance of records in [−1, 1] with a mean in its interval.
    fn largest_variance(&self, column: usize) -> Option<f64> {
        let mean = self.mean_at(column, self.tail * BOUND_TAIL)?;
        let nearest = 0f64.clamp(mean.lower, mean.upper);
        Some((1.0 - nearest) * (1.0 + nearest))
    }

    /// Returns the interval of a column's standard deviation.
    pub fn standard_deviation(&self, column: usize) -> Option<Interval> {
        self.covariance(column, column).map(Interval::square_root)
    }

    fn entry(&self, i: usize, j: usize) -> Option<EntryMoments> {
        let NoisyMoments { layout, coordinates, noise } = self.moments;
        let (row, column, dimension) = (i.min(j), i.max(j), layout.dimension);
        let position = match layout.second {
            _ if column >= dimension => None,
            SecondMoment::None => None,
            SecondMoment::Full => Some(row * (2 * dimension - row - 1) / 2 + column),
            SecondMoment::Diagonal => (row == column).then_some(row),
        }?;
        let second_noise = noise.second / if i == j { 1.0 } else { SQRT_2 };
        Some(EntryMoments {
            count: (self.moments.count(), noise.count),
            sums: (self.first(i), self.first(j)),
            sum_noise: noise.first,
            second: (coordinates[layout.second().start + position], second_noise),
            same: i == j,
        })
    }

    fn first(&self, column: usize) -> f64 {
        self.moments.coordinates[self.moments.layout.first()][column]
    }

    /// The quantiles down and up for an estimate. `slope` is its change by an error of the count,
    /// in standard deviations of the estimate's noise, times n̂.
    fn quantiles(&self, tail: f64, slope: f64) -> (f64, f64) {
        conditional_quantiles(tail, &self.selections(slope))
    }

    /// The selections by the counts that decide quality flags, for an estimate of this slope.
    fn selections(&self, slope: f64) -> Vec<Selection> {
        let (count, noise) = (self.moments.count(), self.moments.noise.count);
        let correlation = (slope * noise / count).clamp(-1.0, 1.0);
        let correlation = if correlation.is_nan() { 0.0 } else { correlation };
        let own = Selection::by_range(count, self.moments.count_range(), noise, correlation);
        [own].into_iter().chain(self.others.iter().map(|other| other.through(correlation))).collect()
    }

    /// The m with |sum − m n̂| ≤ z √(τ₁² + m²τ₀²), for the quantile z of each side given the
    /// quality at the end of that side.
    fn fieller(&self, sum: f64, estimate: f64, tail: f64) -> Interval {
        let noise = self.moments.noise;
        let quantiles = |mean: f64| {
            let mean = if self.bounded { mean.clamp(-1.0, 1.0) } else { mean.clamp(-1e9, 1e9) };
            let deviation = noise.first.hypot(mean * noise.count);
            self.quantiles(tail, -mean * self.moments.count() / deviation)
        };
        let plain = self.roots(sum, quantiles(estimate).0.max(0.0));
        if noise.count > 0.0 { settle(plain, quantiles, |z| self.roots(sum, z)) } else { plain }
    }

    /// The m with sum − m n̂ = ±z √(τ₁² + m²τ₀²).
    fn roots(&self, sum: f64, z: f64) -> Interval {
        let (count, noise) = (self.moments.count(), self.moments.noise);
        let scale = (count - z * noise.count) * (count + z * noise.count);
        if scale <= 0.0 || !scale.is_finite() {
            return Interval::UNBOUNDED;
        }
        let (centre, reach) = (count * sum, z * (sum * noise.count).hypot(noise.first * scale.sqrt()));
        Interval { lower: (centre - reach) / scale, upper: (centre + reach) / scale }
    }

    /// Adds the sampling error. `error` returns its distances for given degrees of freedom: the
    /// equivalent number of records of equal weight, less 1.
    fn sampled(&self, records: Interval, estimate: f64, error: impl Fn(f64) -> (f64, f64)) -> Interval {
        match self.subject {
            IntervalSubject::Population { heaviest } if self.moments.count() / heaviest >= LEAST_SAMPLE => {
                records.widened(estimate, error(self.moments.count() / heaviest - 1.0))
            }
            IntervalSubject::Population { .. } => Interval::UNBOUNDED,
            IntervalSubject::Records => records,
        }
    }

    /// Distances of the sampling error of a covariance.
    fn sampling(&self, i: usize, j: usize, freedom: f64) -> (f64, f64) {
        let scale = (self.spread(i) * self.spread(j)).sqrt();
        let (u, w) = match i == j {
            true => (2.0 * scale, 0.0),
            false => ((scale + self.covariance[(i, j)]).max(0.0), (scale - self.covariance[(i, j)]).max(0.0)),
        };
        let below = 1.0 - freedom / quantile::chi_squared(self.z, freedom);
        let above = freedom / quantile::chi_squared(-self.z, freedom) - 1.0;
        ((u * below).hypot(w * above) / 2.0, (u * above).hypot(w * below) / 2.0)
    }

    /// Noise of an entry of the covariance.
    fn entry_noise(&self, i: usize, j: usize) -> f64 {
        let covariance = self.covariance[(i, j)];
        let covariance = if i == j { covariance.max(0.0) } else { covariance };
        self.moments.covariance_noise(covariance, (self.mean[i], self.mean[j]), i == j)
    }

    /// The variance of a column, at least one standard deviation of its noise.
    fn spread(&self, column: usize) -> f64 {
        self.covariance[(column, column)].max(self.entry_noise(column, column))
    }
}

/// Searches for an interval whose ends are both roots for the quantile at that end: the quantile
/// down for the lower end, and up for the upper one.
pub(super) fn settle(
    plain: Interval,
    quantiles: impl Fn(f64) -> (f64, f64),
    roots: impl Fn(f64) -> Interval,
) -> Interval {
    let (mut ends, mut before) = (plain, plain);
    for _ in 0..ROUNDS {
        before = ends;
        ends.lower = roots(quantiles(before.lower).0).lower;
        ends.upper = roots(quantiles(before.upper).1).upper;
        if ends == before {
            break;
        }
    }
    // Close to the end of a range an end may alternate: the noise of the selecting number moves
    // estimates of opposite signs in opposite directions.
    Interval {
        lower: if before.lower < ends.lower { before.lower } else { ends.lower },
        upper: if before.upper > ends.upper { before.upper } else { ends.upper },
    }
}

#[cfg(test)]
mod tests;
