//! Confidence intervals of means, covariances, correlations and eigenvalues, which account for the
//! noise.
//!
//! For the records' own moments, with z the two-sided normal quantile of the level:
//!
//! - a mean: `{m : |ŝ − m n̂| ≤ z √(τ₁² + m²τ₀²)}` (Fieller 1954), at exactly the level;
//! - a covariance: its range over the ball of moments within z of the released ones (`ball.rs`),
//!   before projection, whose bias has no known law. The estimate ± z of its own standard
//!   deviations contains the truth too rarely if that deviation depends on a noise-dominated mean;
//! - a correlation: all ρ for which the estimate is at most z standard deviations of its noise
//!   away, to first order and at that ρ; only if both variances exceed their noise.
//!
//! For the population, the error of the sample is independent of the noise, and the two are
//! combined as by Zou & Donner 2008. A sample mean has Student's law. A sample covariance σᵢⱼ is
//! that of u − w, where u and w are the variances of (x/σᵢ ± y/σⱼ)/√2, independent multiples of χ².
//! Means need samples that are not small, covariances a population that is about Gaussian.
//!
//! Eigenvalues: [`MomentIntervals::eigenvalue_radius`].
//!
//! # Intervals
//! Intervals of real numbers and their confidence.

use super::ball::EntryMoments;
use super::debias::NoisyMoments;
use super::density::DensityError;
use crate::moments::SecondMoment;
use crate::quantile;
use nalgebra::{DMatrix, DVector};
use std::f64::consts::SQRT_2;

/// Smallest sample for a statement about its population.
pub const LEAST_SAMPLE: f64 = 10.0;

/// Minimum variance, in standard deviations of its noise, for a correlation.
pub const MIN_VARIANCE_TO_NOISE: f64 = 4.0;

/// Confidence intervals of the moments of one key, in the coordinates of the moments.
#[derive(Clone, Debug)]
pub struct MomentIntervals<'a> {
    moments: NoisyMoments<'a>,
    mean: DVector<f64>,
    covariance: DMatrix<f64>,
    tail: f64,
    z: f64,
    subject: IntervalSubject,
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
    ///     layout: Layout { dimension: 1, second: SecondMoment::Full },
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
        let statements = if joint { self.layout.coordinates() - 1 } else { 1 };
        let tail = (1.0 - level) / 2.0 / statements as f64;
        Ok(MomentIntervals { moments: *self, mean, covariance, tail, z: quantile::normal(tail), subject })
    }
}

impl MomentIntervals<'_> {
    /// Returns the interval of a column's mean; `None` if there is no such column.
    pub fn mean(&self, column: usize) -> Option<Interval> {
        let estimate = *self.mean.get(column)?;
        let interval = self.fieller(self.first(column)).with(estimate);
        let IntervalSubject::Population { .. } = self.subject else { return Some(interval) };
        let sampled = self.sampled(interval, estimate, |freedom| {
            let error = quantile::student(self.z, freedom) * (self.spread(column) / freedom).sqrt();
            (error, error)
        });
        Some(sampled.with(estimate))
    }

    /// Returns the interval of the covariance of two columns, or of the variance of one; `None` if
    /// there is no such column or if only diagonal moments are known. That of a variance begins at
    /// 0 or above, and ends at least one standard deviation of its noise above 0: a negative
    /// estimate hides a variance, too.
    pub fn covariance(&self, i: usize, j: usize) -> Option<Interval> {
        let estimate = *self.covariance.get((i, j))?;
        let records = self.entry(i, j)?.covariance_range(self.z).with(estimate);
        let interval = match self.subject {
            IntervalSubject::Records => records,
            IntervalSubject::Population { heaviest } => {
                // A sample's covariance is that of its population times (n−1)/n.
                let sample = self.moments.count() / heaviest;
                let sampled = self.sampled(records, estimate, |freedom| self.sampling(i, j, freedom));
                sampled.map(|x| x * sample / (sample - 1.0).max(f64::MIN_POSITIVE)).with(estimate)
            }
        };
        Some(match i == j {
            true => {
                Interval { lower: interval.lower.max(0.0), upper: interval.upper.max(self.variance_noise(i)) }
            }
            false => interval,
        })
    }

    /// Returns the interval of a column's standard deviation.
    pub fn standard_deviation(&self, column: usize) -> Option<Interval> {
        self.covariance(column, column).map(Interval::square_root)
    }

    /// Returns the estimated correlation of two columns and its interval; `None` if a variance is
    /// below [`MIN_VARIANCE_TO_NOISE`] of its noise, where a correlation has no meaning.
    pub fn correlation(&self, i: usize, j: usize) -> Option<(f64, Interval)> {
        if !self.stands_out(i)? || !self.stands_out(j)? {
            return None;
        }
        if i == j {
            return Some((1.0, Interval { lower: 1.0, upper: 1.0 }));
        }
        self.entry(i, j)?;
        let estimate = self.covariance[(i, j)] / self.deviation(i) / self.deviation(j);
        let records = self.score(estimate, |correlation| self.correlation_noise(i, j, correlation).powi(2));
        let within = estimate.clamp(-1.0, 1.0);
        let interval = match self.subject {
            IntervalSubject::Records => records,
            IntervalSubject::Population { .. } => self.sampled(records, estimate, |freedom| {
                let reach = self.z / (freedom - 2.0).sqrt();
                let end = |shift: f64| (within.atanh() + shift).tanh();
                (within - end(-reach), end(reach) - within)
            }),
        };
        let ends = interval.with(within).map(|end| end.clamp(-1.0, 1.0));
        Some((within, ends))
    }

    /// Returns a bound of the distance of any eigenvalue of the records' covariance, and its
    /// variance in any direction, from that of the debiased estimate before projection: all at
    /// once, with at least the level's probability. It is always about records, whatever the
    /// subject. It is proven for any dimension and noise, so it is conservative.
    ///
    /// With f = m̃ − m, the error of Ŝ/n̂ − m̃m̃ᵀ is (E₂ − e₀M)/n̂ − m̃fᵀ − fm̃ᵀ + ffᵀ, and by
    /// Weyl's inequality no eigenvalue moves by more than its norm. Here `|e₀| ≤ τ₀z` and
    /// `|f|(n̂ − |e₀|) ≤ |e₁| + |e₀||m̃|`. Also `|e₁| ≤ τ₁(√d + z)`, and the eigenvalues of ±E₂ are
    /// at most τ₂(√(2d) + z). The reason: a convex function of normal variables exceeds its mean by
    /// z Lipschitz constants no more often than a normal variable exceeds z (isoperimetry, and the
    /// median is below the mean), and the largest eigenvalue of E₂ is at most √(2d)τ₂ in the mean
    /// (Sudakov & Fernique). Each of these five tails takes at most two fifths of one side of the
    /// level. The shift by debiasing is added.
    pub fn eigenvalue_radius(&self) -> f64 {
        let z = quantile::normal(self.tail * 0.4);
        let moments = self.moments;
        let (count, noise) = (moments.count(), moments.noise);
        let dimension = self.mean.len() as f64;
        let count_error = z * noise.count;
        if count <= count_error {
            return f64::INFINITY;
        }
        let expected = match moments.layout.second {
            SecondMoment::Full => (2.0 * dimension).sqrt(),
            SecondMoment::Diagonal | SecondMoment::None => (2.0 * (2.0 * dimension).ln()).sqrt(),
        };
        let second_error = noise.second * (expected + z);
        let first_error = noise.first * (dimension.sqrt() + z);
        let mean_norm = self.mean.norm() * (1.0 + (noise.count / count).powi(2) * 2.0);
        let mean_error = (first_error + count_error * mean_norm) / (count - count_error);
        let second_norm = moments.coordinates[moments.layout.second()].iter().map(|x| x.abs());
        let second_norm = SQRT_2 * second_norm.fold(0.0, f64::hypot);
        let scaled = count_error * (second_norm + second_error) / (count - count_error);
        let debiasing = (noise.first / count).powi(2)
            + (noise.count / count).powi(2) * (second_norm / count + 3.0 * mean_norm * mean_norm);
        let radius =
            (second_error + scaled) / count + mean_error * (2.0 * mean_norm + mean_error) + debiasing;
        if radius.is_nan() { f64::INFINITY } else { radius }
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

    /// The m with |sum − m n̂| ≤ z √(τ₁² + m²τ₀²).
    fn fieller(&self, sum: f64) -> Interval {
        let (count, noise) = (self.moments.count(), self.moments.noise);
        let scale = (count - self.z * noise.count) * (count + self.z * noise.count);
        if scale <= 0.0 {
            return Interval::UNBOUNDED;
        }
        let (centre, reach) = (count * sum, self.z * (sum * noise.count).hypot(noise.first * scale.sqrt()));
        Interval { lower: (centre - reach) / scale, upper: (centre + reach) / scale }
    }

    /// Adds the sampling error, given its distances for the degrees of freedom of the records, at
    /// their equivalent number of equal weight.
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

    /// The ρ with |estimate − ρ| ≤ z √variance(ρ), for a variance that is quadratic in ρ.
    fn score(&self, estimate: f64, variance: impl Fn(f64) -> f64) -> Interval {
        let (at_minus, at_zero, at_one) = (variance(-1.0), variance(0.0), variance(1.0));
        let z = self.z * self.z;
        let scale = 1.0 - z * ((at_one + at_minus) / 2.0 - at_zero);
        if scale <= 0.0 {
            return Interval::UNBOUNDED;
        }
        let centre = estimate + z * (at_one - at_minus) / 4.0;
        let product = estimate * estimate - z * at_zero;
        let reach = (centre * centre - scale * product).max(0.0).sqrt();
        Interval { lower: (centre - reach) / scale, upper: (centre + reach) / scale }
    }

    fn variance_noise(&self, column: usize) -> f64 {
        let (variance, mean) = (self.covariance[(column, column)], self.mean[column]);
        self.moments.covariance_noise(variance.max(0.0), (mean, mean), true)
    }

    /// Whether a variance exceeds [`MIN_VARIANCE_TO_NOISE`] of its noise.
    fn stands_out(&self, column: usize) -> Option<bool> {
        let variance = *self.covariance.get((column, column))?;
        Some(variance > MIN_VARIANCE_TO_NOISE * self.variance_noise(column))
    }

    /// The variance of a column, at least one standard deviation of its noise.
    fn spread(&self, column: usize) -> f64 {
        self.covariance[(column, column)].max(self.variance_noise(column))
    }

    fn deviation(&self, column: usize) -> f64 {
        self.covariance[(column, column)].max(0.0).sqrt()
    }

    /// Noise of ρ̂ to first order: with (A, B, C) its derivatives by σᵢⱼ, σᵢᵢ and σⱼⱼ, the noises
    /// of the second moments, of both sums and of the count enter independently.
    fn correlation_noise(&self, i: usize, j: usize, correlation: f64) -> f64 {
        let noise = self.moments.noise;
        let (deviations, means) = ((self.deviation(i), self.deviation(j)), (self.mean[i], self.mean[j]));
        let a = 1.0 / (deviations.0 * deviations.1);
        let b = -correlation / (2.0 * deviations.0 * deviations.0);
        let c = -correlation / (2.0 * deviations.1 * deviations.1);
        let second = noise.second * (a / SQRT_2).hypot(b).hypot(c);
        let sums = (a * means.1 + 2.0 * b * means.0).hypot(a * means.0 + 2.0 * c * means.1);
        let ratio = a * means.0 * means.1 + b * means.0 * means.0 + c * means.1 * means.1;
        second.hypot(noise.first * sums).hypot(noise.count * ratio) / self.moments.count()
    }
}

#[cfg(test)]
mod tests;

/// The numbers from `lower` to `upper`; an unknown end is infinite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub lower: f64,
    /// Upper end.
    pub upper: f64,
}

/// What an interval's moments describe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum IntervalSubject {
    /// The released records: only the noise is uncertain.
    Records,
    /// The population from which records were drawn independently: adds the sampling error. Means
    /// need only large samples; covariances also need a population that is about Gaussian.
    Population {
        /// Largest weight of a record in the moments, above 0: 1 for sums. n records of weights w
        /// are worth (Σw)²/Σw² ≥ Σw/max w of equal weight. The latter number is used: exact for
        /// equal weights, with wider intervals otherwise.
        heaviest: f64,
    },
}

/// The promise of an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Confidence {
    /// Probability of containing the truth, above 0 and below 1.
    pub level: f64,
    /// Whether all means and covariances of a density contain the truth *together* at that level
    /// (Bonferroni's inequality), or each by itself.
    pub joint: bool,
    /// Whose moments are meant.
    pub subject: IntervalSubject,
}

impl Default for Confidence {
    /// 95 %, each by itself, for the records.
    fn default() -> Self {
        Confidence { level: 0.95, joint: false, subject: IntervalSubject::Records }
    }
}

impl Confidence {
    /// Returns z with P(|N(0, 1)| ≤ z) = level, for one statement by itself.
    pub fn normal_quantile(&self) -> f64 {
        quantile::normal((1.0 - self.level) / 2.0)
    }
}

impl Interval {
    /// All real numbers.
    pub const UNBOUNDED: Self = Interval { lower: f64::NEG_INFINITY, upper: f64::INFINITY };

    /// Whether it contains x.
    pub fn contains(&self, x: f64) -> bool {
        self.lower <= x && x <= self.upper
    }

    /// Returns the interval of offset + scale·x, for a scale above 0.
    pub fn to_units(self, scale: f64, offset: f64) -> Self {
        self.map(|x| offset + scale * x)
    }

    /// Converts the interval of a variance to that of a standard deviation.
    pub fn square_root(self) -> Self {
        self.map(|x| x.max(0.0).sqrt())
    }

    /// Returns the distance from x to the farther end.
    pub fn reach_from(&self, x: f64) -> f64 {
        (self.upper - x).max(x - self.lower)
    }

    /// Extends the interval to contain x; unbounded if an end is NaN.
    pub(super) fn with(self, x: f64) -> Self {
        match self.lower.is_nan() || self.upper.is_nan() {
            true => Self::UNBOUNDED,
            false => Interval { lower: self.lower.min(x), upper: self.upper.max(x) },
        }
    }

    /// Returns the interval of an estimate plus an independent error of mean 0, from the interval
    /// around the estimate x and the error's distances `(below, above)` (Zou & Donner 2008): the
    /// distances add in squares.
    pub(super) fn widened(self, x: f64, (below, above): (f64, f64)) -> Self {
        Interval { lower: x - (x - self.lower).hypot(below), upper: x + (self.upper - x).hypot(above) }
    }

    pub(super) fn map(self, increasing: impl Fn(f64) -> f64) -> Self {
        Interval { lower: increasing(self.lower), upper: increasing(self.upper) }
    }
}
