//! Confidence intervals of means, covariances, correlations and eigenvalues, which account for the noise.
//!
//! For the records' own moments, with z the two-sided normal quantile of the level:
//!
//! - a mean: `{m : |ŝ − m n̂| ≤ z √(τ₁² + m²τ₀²)}` (Fieller 1954), at exactly the level;
//! - a covariance: its range over the ball of moments within z of the released ones (`ball.rs`), made before
//!   any projection, whose bias has no known law. The estimate ± z of its own standard deviations holds the
//!   truth too rarely where that deviation depends on a mean that is itself noise;
//! - a correlation: in the scale atanh ρ, with the noise of the first order, and only where both
//!   variances are surely above 0.
//!
//! For the population, the error of the sample is independent of the noise, and the two are joined as Zou &
//! Donner 2008 do. A sample mean errs by Student's law; a sample covariance σᵢⱼ is that of u − w, u and w the
//! variances of (x/σᵢ ± y/σⱼ)/√2, independent multiples of χ². Means need samples that are not
//! small, covariances a population that is about Gaussian.
//!
//! Eigenvalues: [`Intervals::eigenvalue_radius`].

pub use super::interval::{Confidence, Interval, Subject};

use super::ball::Entry;
use super::debias::NoisyMoments;
use super::density::DensityError;
use super::quantile;
use crate::moments::SecondMoment;
use nalgebra::{DMatrix, DVector};
use std::f64::consts::SQRT_2;

/// The smallest sample of which anything is said about its population.
pub const LEAST_SAMPLE: f64 = 10.0;

/// Confidence intervals of the moments of one key, in the coordinates of the moments.
#[derive(Clone, Debug)]
pub struct Intervals<'a> {
    moments: NoisyMoments<'a>,
    mean: DVector<f64>,
    covariance: DMatrix<f64>,
    tail: f64,
    z: f64,
    subject: Subject,
}

impl<'a> NoisyMoments<'a> {
    /// Confidence intervals for what these moments estimate.
    ///
    /// # Errors
    /// As [`density`](Self::density), [`DensityError::Level`] and [`DensityError::Heaviest`].
    ///
    /// ```
    /// use hushflow_mechanism::estimate::{debias::{MomentNoise, NoisyMoments}, intervals::{Confidence, Subject}};
    /// use hushflow_mechanism::moments::{Layout, SecondMoment};
    /// let moments = NoisyMoments {
    ///     layout: Layout { dimension: 1, second: SecondMoment::Full },
    ///     coordinates: &[100.0, 50.0, 125.0],
    ///     noise: MomentNoise { count: 0.0, first: 2.0, second: 3.0 },
    /// };
    /// let mean = moments.intervals(Confidence::default())?.mean(0).expect("column 0 of 1");
    /// assert!((mean.lower - (0.5 - 1.96 * 0.02)).abs() < 1e-6 && mean.contains(0.5));
    ///
    /// let subject = Subject::Population { heaviest: 1.0 };
    /// let wider = moments.intervals(Confidence { subject, ..Confidence::default() })?;
    /// assert!(wider.mean(0).expect("column 0 of 1").upper > 0.69);
    /// # Ok::<(), hushflow_mechanism::estimate::density::DensityError>(())
    /// ```
    pub fn intervals(&self, confidence: Confidence) -> Result<Intervals<'a>, DensityError> {
        let Confidence { level, joint, subject } = confidence;
        if !(level > 0.0 && level < 1.0) {
            return Err(DensityError::Level(level));
        }
        match subject {
            Subject::Population { heaviest } if !(f64::MIN_POSITIVE..=f64::MAX).contains(&heaviest) => {
                return Err(DensityError::Heaviest(heaviest));
            }
            _ => {}
        }
        let (mean, covariance) = self.estimates()?;
        let statements = if joint { self.layout.coordinates() - 1 } else { 1 };
        let tail = (1.0 - level) / 2.0 / statements as f64;
        Ok(Intervals { moments: *self, mean, covariance, tail, z: quantile::normal(tail), subject })
    }
}

impl Intervals<'_> {
    /// The interval of the mean of a column; `None` if there is no such column.
    pub fn mean(&self, column: usize) -> Option<Interval> {
        let estimate = *self.mean.get(column)?;
        let interval = self.fieller(self.first(column)).with(estimate);
        Some(match self.subject {
            Subject::Records => interval,
            Subject::Population { .. } => self.sampled(interval, estimate, |freedom| {
                let error = quantile::student(self.z, freedom) * (self.spread(column) / freedom).sqrt();
                (error, error)
            }),
        })
    }

    /// The interval of the covariance of two columns, or of the variance of one; `None` if there is no such column
    /// or if only diagonal moments are known.
    pub fn covariance(&self, i: usize, j: usize) -> Option<Interval> {
        let estimate = *self.covariance.get((i, j))?;
        let interval = self.entry(i, j)?.covariance_range(self.z).with(estimate);
        let Subject::Population { .. } = self.subject else { return Some(interval) };
        let scale = (self.spread(i) * self.spread(j)).sqrt();
        let (u, w) = match i == j {
            true => (2.0 * scale, 0.0),
            false => ((scale + estimate).max(0.0), (scale - estimate).max(0.0)),
        };
        let sampled = self.sampled(interval, estimate, |freedom| {
            let below = 1.0 - freedom / quantile::chi_squared(self.z, freedom);
            let above = freedom / quantile::chi_squared(-self.z, freedom) - 1.0;
            ((u * below).hypot(w * above) / 2.0, (u * above).hypot(w * below) / 2.0)
        });
        // A sample's covariance is that of its population times (n−1)/n.
        let sample = self.sample()?;
        Some(sampled.map(|x| x * sample / (sample - 1.0).max(f64::MIN_POSITIVE)))
    }

    /// The interval of the standard deviation of a column.
    pub fn standard_deviation(&self, column: usize) -> Option<Interval> {
        self.covariance(column, column).map(Interval::square_root)
    }

    /// The estimated correlation of two columns and its interval; `None` where a variance is not surely above
    /// 0, so that a correlation means nothing.
    pub fn correlation(&self, i: usize, j: usize) -> Option<(f64, Interval)> {
        let sure = |column| self.covariance(column, column).is_some_and(|interval| interval.lower > 0.0);
        if i == j || !sure(i) || !sure(j) {
            return None;
        }
        let estimate = self.covariance.get((i, j))? / self.deviation(i) / self.deviation(j);
        self.entry(i, j)?;
        if estimate.abs() >= 1.0 {
            return None;
        }
        let noise = self.correlation_noise(i, j, estimate) / (1.0 - estimate * estimate);
        let sampling = match self.subject {
            Subject::Records => 0.0,
            Subject::Population { .. } if !self.is_sampled() => f64::INFINITY,
            Subject::Population { .. } => 1.0 / (self.sample()? - 3.0).sqrt(),
        };
        let (centre, reach) = (estimate.atanh(), self.z * noise.hypot(sampling));
        let interval = Interval { lower: centre - reach, upper: centre + reach };
        Some((estimate, interval.map(f64::tanh)))
    }

    /// How far any eigenvalue of the records' covariance, and its variance in any direction, can be from that of
    /// the debiased estimate before projection: all at once, with at least the level's probability. It is
    /// about records, whatever the subject, and proven for any dimension and noise, so it is wider than it
    /// would have to be.
    ///
    /// With f = m̃ − m, the error of Ŝ/n̂ − m̃m̃ᵀ is (E₂ − e₀M)/n̂ − m̃fᵀ − fm̃ᵀ + ffᵀ, and by Weyl's
    /// inequality no eigenvalue moves by more than its norm. Here |e₀| ≤ τ₀z and |f|(n̂ − |e₀|) ≤ |e₁| + |e₀||m̃|;
    /// |e₁| ≤ τ₁(√d + z) and the eigenvalues of ±E₂ are at most τ₂(√(2d) + z), for a convex function of normal
    /// variables exceeds its mean by z Lipschitz constants no more often than a normal variable exceeds z
    /// (isoperimetry, and the median is below the mean), and the largest eigenvalue of E₂ is at most √(2d)τ₂ in the
    /// mean (Sudakov & Fernique). Each of these five tails takes at most two fifths of one side of the level. What
    /// debiasing moves is added.
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
            SecondMoment::Diagonal => (2.0 * (2.0 * dimension).ln()).sqrt(),
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
        (second_error + scaled) / count + mean_error * (2.0 * mean_norm + mean_error) + debiasing
    }

    /// The released count, sums and second moment behind a covariance.
    fn entry(&self, i: usize, j: usize) -> Option<Entry> {
        let NoisyMoments { layout, coordinates, noise } = self.moments;
        let (row, column, dimension) = (i.min(j), i.max(j), layout.dimension);
        let place = match layout.second {
            _ if column >= dimension => None,
            SecondMoment::Full => Some(row * (2 * dimension - row - 1) / 2 + column),
            SecondMoment::Diagonal => (row == column).then_some(row),
        }?;
        let second_noise = noise.second / if i == j { 1.0 } else { SQRT_2 };
        Some(Entry {
            count: (self.moments.count(), noise.count),
            sums: (self.first(i), self.first(j)),
            sum_noise: noise.first,
            second: (coordinates[layout.second().start + place], second_noise),
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

    /// Number of records of equal weight that these are worth; of records alone, `None`.
    fn sample(&self) -> Option<f64> {
        match self.subject {
            Subject::Records => None,
            Subject::Population { heaviest } => Some(self.moments.count() / heaviest),
        }
    }

    fn is_sampled(&self) -> bool {
        self.sample().is_some_and(|sample| sample >= LEAST_SAMPLE)
    }

    /// The interval with the sampling error, given its distances for these degrees of freedom.
    fn sampled(&self, interval: Interval, estimate: f64, error: impl Fn(f64) -> (f64, f64)) -> Interval {
        match self.sample().filter(|_| self.is_sampled()) {
            Some(sample) => interval.widened(estimate, error(sample - 1.0)),
            None => Interval::UNBOUNDED,
        }
    }

    /// The variance of a column, at least one standard deviation of its noise.
    fn spread(&self, column: usize) -> f64 {
        let (variance, mean) = (self.covariance[(column, column)], self.mean[column]);
        variance.max(self.moments.covariance_noise(variance.max(0.0), (mean, mean), true))
    }

    fn deviation(&self, column: usize) -> f64 {
        self.covariance[(column, column)].max(0.0).sqrt()
    }

    /// Noise of ρ̂ to the first order: with (A, B, C) its derivatives by σᵢⱼ, σᵢᵢ and σⱼⱼ, the noises of the second
    /// moments, of both sums and of the count enter independently.
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
