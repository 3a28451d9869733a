//! A Gaussian density with the noise level of each number, and its scores.
//!
//! [`NoisyMoments::density`](super::debias::NoisyMoments::density) computes the density in the
//! scaled coordinates of the records; [`Density::to_units`] converts it to the user's units. Scores
//! come from held-out records ([`Density::mean_log_likelihood`]) or from a known truth p
//! ([`Density::divergence_from`]). For the estimate q, KL(p ‖ q) is the expected score of p minus
//! that of q.
//!
//! # Sampling
//! Synthetic records are drawn from a released density, in any number and at no privacy cost.
//!
//! A record is x = m̂ + L n with Σ̂ = L Lᵀ. The standard normal n are drawn two at a time by the
//! transform of Box & Muller 1958. This noise does not serve privacy: the density is already
//! private.

use super::debias::MIN_COUNT_TO_NOISE;
pub use super::quality::Quality;
use crate::quantile;
use nalgebra::{Cholesky, DMatrix, DVector, Dyn};
use rand::Rng;
use std::f64::consts::TAU;
use thiserror::Error;

/// Reasons why there is no density.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum DensityError {
    /// The length of a vector does not match the dimension, or the dimension is 0.
    #[error("found {found} numbers, expected {expected}, for a dimension of {dimension} (at least 1)")]
    Shape {
        /// Actual length.
        found: usize,
        /// Expected length.
        expected: usize,
        /// Dimension d.
        dimension: usize,
    },
    /// Invalid standard deviation.
    #[error("the standard deviation of the noise is {0}, but must be a finite number of at least 0")]
    Noise(f64),
    /// Invalid unit.
    #[error("a column's scale is {0}, but must be a finite number above 0")]
    Scale(f64),
    /// The count is too small for its noise, so sums can't be divided by it.
    #[error(
        "the count is {count} with noise of standard deviation {count_noise}, but must exceed \
         {MIN_COUNT_TO_NOISE} of these, and 0: wait for more records, or release with less noise"
    )]
    TooFewRecords {
        /// The released count.
        count: f64,
        /// Standard deviation of its noise.
        count_noise: f64,
    },
    /// A number or its square is not finite.
    #[error("a moment is not finite, or too large to be squared in floating point: choose larger units")]
    OutOfRange,
    /// Only counts and first moments were released.
    #[error("no second moments were released, so there is no covariance: use the moments instead")]
    NoSecondMoments,
    /// Variances and covariances come from different rows, and values are not assumed to be missing
    /// at random.
    #[error("columns have values in different rows: set missing_at_random if that is by chance")]
    DifferentRows,
    /// Released numbers contradict the assumption that values are missing at random.
    #[error("values are not missing at random: numbers of different rows disagree")]
    NotMissingAtRandom,
    /// Noise may account for the variance of a column.
    #[error("noise may account for the variance of column {} (from 1), so it has no correlations", column + 1)]
    HiddenVariance {
        /// The column, from 0.
        column: usize,
    },
    /// Invalid confidence level.
    #[error("the confidence level is {0}, but must be above 0 and below 1, such as 0.95")]
    Level(f64),
    /// Invalid weight.
    #[error("the heaviest weight of a record is {0}, but must be a finite number above 0")]
    Heaviest(f64),
    /// The covariance is not positive definite.
    #[error(
        "the covariance is not positive definite, so there is no density: choose a projection that makes it one"
    )]
    Singular,
    /// The covariance is not symmetric.
    #[error("the covariance is not symmetric")]
    Asymmetric,
    /// A held-out row has a value that is not finite.
    #[error("held-out row {row} (from 1) has a value that is not finite: leave it out")]
    Row {
        /// The row, from 1.
        row: usize,
    },
    /// There are no rows to score.
    #[error("there are no held-out rows: the mean of their scores needs one at least")]
    NoRows,
    /// The eigenvalue search did not converge.
    #[error("the eigenvalues of the covariance did not converge")]
    Eigenvalues,
}

/// A Gaussian density with the noise of its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Density {
    /// Mean m̂ (d).
    pub mean: DVector<f64>,
    /// Covariance Σ̂ (d×d): symmetric, and positive definite unless all moments and their noise are
    /// 0 or the projection is [raw](super::projection::Projection::Raw). Diagonal if only diagonal
    /// second moments were released.
    pub covariance: DMatrix<f64>,
    /// Standard deviation of the noise of each entry of the mean: exact if the count is exact, else
    /// to first order.
    pub mean_noise: DVector<f64>,
    /// Standard deviation of the noise of each entry of the covariance before projection, with the
    /// estimate in place of the unknown truth. It is 0 for entries that diagonal second moments do
    /// not estimate.
    pub covariance_noise: DMatrix<f64>,
    /// Weighted count of records.
    pub count: f64,
    /// Standard deviation of the count's noise; 0 if it is exact.
    pub count_noise: f64,
    /// Size of the noise relative to the bounds of the columns.
    pub quality: Quality,
}

impl Density {
    /// Returns the density of x = offset + scale∘z, in the user's units.
    ///
    /// # Errors
    /// [`DensityError::Shape`] and [`DensityError::Scale`] for an invalid scale or offset, and
    /// [`DensityError::OutOfRange`] if the result is not finite.
    pub fn to_units(&self, scale: &[f64], offset: &[f64]) -> Result<Self, DensityError> {
        let dimension = self.mean.len();
        if let Some(found) = [scale.len(), offset.len()].into_iter().find(|found| *found != dimension) {
            return Err(DensityError::Shape { found, expected: dimension, dimension });
        }
        if let Some(scale) = scale.iter().find(|x| !(f64::MIN_POSITIVE..=f64::MAX).contains(*x)) {
            return Err(DensityError::Scale(*scale));
        }
        let (scale, offset) = (DVector::from_column_slice(scale), DVector::from_column_slice(offset));
        let area = &scale * scale.transpose();
        let density = Self {
            mean: offset + scale.component_mul(&self.mean),
            covariance: area.component_mul(&self.covariance),
            mean_noise: scale.component_mul(&self.mean_noise),
            covariance_noise: area.component_mul(&self.covariance_noise),
            ..*self
        };
        density.finite()
    }

    /// Returns the density, cut to values that records with coordinates in [−1, 1] allow. Its mean
    /// is in [−1, 1], and the variance of a column is at most (1 − m)(m + 1), where m is the
    /// column's mean, moved towards 0 by a standard deviation of its noise. (Only a mean without
    /// noise at a bound excludes any variance.) A larger variance is scaled down with its
    /// covariances, which keeps correlations, and eigenvalues at least 0.
    pub fn within_bounds(mut self) -> Self {
        self.mean.apply(|mean| *mean = mean.clamp(-1.0, 1.0));
        let largest = self.mean.zip_map(&self.mean_noise, |mean, noise| {
            let mean = (mean.abs() - noise).max(0.0);
            (1.0 - mean) * (mean + 1.0)
        });
        let scale = self.covariance.diagonal().zip_map(&largest, |variance, largest| {
            if variance > largest { (largest / variance).sqrt() } else { 1.0 }
        });
        if scale.min() < 1.0 {
            self.covariance.component_mul_assign(&(&scale * scale.transpose()));
        }
        self
    }

    /// Makes a density with known parameters, as the truth for comparisons. Its count and all noise
    /// are 0.
    ///
    /// # Errors
    /// [`DensityError::Shape`], [`DensityError::Asymmetric`] and [`DensityError::OutOfRange`].
    pub fn known(mean: DVector<f64>, covariance: DMatrix<f64>) -> Result<Self, DensityError> {
        let dimension = mean.len();
        let expected = dimension * dimension;
        if covariance.shape() != (dimension, dimension) || dimension == 0 {
            return Err(DensityError::Shape { found: covariance.len(), expected, dimension });
        }
        let density = Self {
            mean_noise: DVector::zeros(dimension),
            covariance_noise: DMatrix::zeros(dimension, dimension),
            mean,
            covariance,
            count: 0.0,
            count_noise: 0.0,
            quality: Quality::Good,
        };
        let density = density.finite()?;
        if density.covariance == density.covariance.transpose() {
            Ok(density)
        } else {
            Err(DensityError::Asymmetric)
        }
    }

    /// Returns the logarithm of the density at a point (d), per unit of volume; `None` if the
    /// covariance is singular or the point has another dimension.
    pub fn log_density(&self, point: &[f64]) -> Option<f64> {
        (point.len() == self.mean.len()).then(|| self.factored())?.map(|factored| factored.log_density(point))
    }

    /// Returns the mean logarithm of the density over held-out rows (d each), in nats per row;
    /// higher is better. Rows from which the density was estimated give too high a score.
    ///
    /// # Errors
    /// [`DensityError::Singular`], [`DensityError::Shape`] for a row of another length,
    /// [`DensityError::Row`] for one with NaN or infinity, [`DensityError::NoRows`],
    /// [`DensityError::OutOfRange`] if the sum is too large.
    ///
    /// ```
    /// # use hushflow_mechanism::estimate::density::Density;
    /// # use nalgebra::{DMatrix, DVector};
    /// let density = Density::known(DVector::zeros(1), DMatrix::identity(1, 1))?;
    /// let score = density.mean_log_likelihood([[1.0], [-1.0]])?;
    /// assert!((score + (1.0 + std::f64::consts::TAU.ln()) / 2.0).abs() < 1e-15);
    /// # Ok::<(), hushflow_mechanism::estimate::density::DensityError>(())
    /// ```
    pub fn mean_log_likelihood<R: AsRef<[f64]>>(
        &self,
        rows: impl IntoIterator<Item = R>,
    ) -> Result<f64, DensityError> {
        let factored = self.factored().ok_or(DensityError::Singular)?;
        let expected = self.mean.len();
        let (mut size, mut sum) = (0, 0.0);
        for row in rows {
            let row = row.as_ref();
            size += 1;
            if row.len() != expected {
                return Err(DensityError::Shape { found: row.len(), expected, dimension: expected });
            }
            if !row.iter().all(|x| x.is_finite()) {
                return Err(DensityError::Row { row: size });
            }
            sum += factored.log_density(row);
        }
        match sum / size as f64 {
            _ if size == 0 => Err(DensityError::NoRows),
            mean if mean.is_finite() => Ok(mean),
            _ => Err(DensityError::OutOfRange),
        }
    }

    /// Returns the score of each row (d each); `None` for a row of another length or with NaN or
    /// infinity.
    ///
    /// # Errors
    /// [`DensityError::Singular`].
    ///
    /// ```
    /// # use hushflow_mechanism::estimate::density::Density;
    /// # use nalgebra::{DMatrix, DVector};
    /// let density = Density::known(DVector::zeros(2), DMatrix::identity(2, 2))?;
    /// let score = density.row_scores([[3.0, 4.0]])?[0].expect("a row of two numbers");
    /// assert!(score.distance == 5.0 && (score.p_value - (-12.5f64).exp()).abs() < 1e-15);
    /// # Ok::<(), hushflow_mechanism::estimate::density::DensityError>(())
    /// ```
    pub fn row_scores<R: AsRef<[f64]>>(
        &self,
        rows: impl IntoIterator<Item = R>,
    ) -> Result<Vec<Option<RowScore>>, DensityError> {
        let factored = self.factored().ok_or(DensityError::Singular)?;
        let dimension = self.mean.len();
        let score = |row: R| {
            let is_known = |row: &&[f64]| row.len() == dimension && row.iter().all(|x| x.is_finite());
            let row = Some(row.as_ref()).filter(is_known)?;
            let square = factored.square(row);
            let score = RowScore {
                log_density: -(factored.log_volume + square) / 2.0,
                distance: square.sqrt(),
                p_value: quantile::chi_squared_tail(square, dimension),
            };
            square.is_finite().then_some(score)
        };
        Ok(rows.into_iter().map(score).collect())
    }

    /// Returns the Kullback–Leibler divergence KL(self ‖ other) = E log(self/other) in nats, with
    /// the mean over `self`; `None` if a covariance is singular or the dimensions differ.
    /// `truth.divergence_from(&estimate)` is the loss in score on held-out rows.
    /// `estimate.divergence_from(&truth)` penalises an estimate that is too narrow less.
    pub fn divergence_from(&self, other: &Self) -> Option<f64> {
        let (own, theirs) = (self.factored()?, other.factored()?);
        let away = (self.mean.len() == other.mean.len()).then(|| &self.mean - &other.mean)?;
        let excess = theirs.factor.solve(&self.covariance).trace() - away.len() as f64;
        let log_ratio = log_determinant(&theirs.factor) - log_determinant(&own.factor);
        Some((excess + theirs.factor.solve(&away).dot(&away) + log_ratio) / 2.0)
    }

    /// `None` if the covariance is not positive definite.
    fn factored(&self) -> Option<GaussianFactor<'_>> {
        let factor = Cholesky::new(self.covariance.clone())?;
        let log_volume = self.mean.len() as f64 * TAU.ln() + log_determinant(&factor);
        Some(GaussianFactor { mean: &self.mean, factor, log_volume })
    }

    /// Returns the density if all its numbers are finite.
    pub(super) fn finite(self) -> Result<Self, DensityError> {
        let vectors = self.mean.iter().chain(&self.mean_noise);
        let finite = vectors.chain(&self.covariance).chain(&self.covariance_noise).all(|x| x.is_finite());
        if finite { Ok(self) } else { Err(DensityError::OutOfRange) }
    }
}

/// The score of a row under a density.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowScore {
    /// Logarithm of the density, per unit of volume.
    pub log_density: f64,
    /// Mahalanobis distance √((x − m)ᵀ Σ⁻¹ (x − m)) from the mean.
    pub distance: f64,
    /// Probability of a larger distance under the density.
    pub p_value: f64,
}

struct GaussianFactor<'a> {
    mean: &'a DVector<f64>,
    factor: Cholesky<f64, Dyn>,
    /// Logarithm of det(2πΣ).
    log_volume: f64,
}

impl GaussianFactor<'_> {
    fn log_density(&self, point: &[f64]) -> f64 {
        -(self.log_volume + self.square(point)) / 2.0
    }

    /// Square of the Mahalanobis distance.
    fn square(&self, point: &[f64]) -> f64 {
        let away = DVector::from_column_slice(point) - self.mean;
        self.factor.solve(&away).dot(&away).max(0.0)
    }
}

fn log_determinant(factor: &Cholesky<f64, Dyn>) -> f64 {
    2.0 * factor.l_dirty().diagonal().iter().map(|x| x.ln()).sum::<f64>()
}

/// Draws from one Gaussian density.
#[derive(Clone, Debug)]
pub struct Sampler {
    mean: DVector<f64>,
    /// L, the Cholesky factor of the covariance.
    factor: DMatrix<f64>,
}

impl Density {
    /// Returns a sampler of this density, in its coordinates; `None` if the covariance is not
    /// positive definite.
    ///
    /// ```
    /// use hushflow_mechanism::estimate::density::Density;
    /// use nalgebra::{DMatrix, DVector};
    /// use rand::SeedableRng;
    ///
    /// let density = Density::known(DVector::from_element(2, 0.5), DMatrix::identity(2, 2))?;
    /// let sampler = density.sampler().expect("the identity is positive definite");
    /// let mut random = chacha20::ChaCha8Rng::seed_from_u64(1);
    /// assert_eq!(sampler.draw(&mut random).len(), 2);
    /// # Ok::<(), hushflow_mechanism::estimate::density::DensityError>(())
    /// ```
    pub fn sampler(&self) -> Option<Sampler> {
        let factor = Cholesky::new(self.covariance.clone())?.unpack();
        Some(Sampler { mean: self.mean.clone(), factor })
    }
}

impl Sampler {
    /// Draws one point (d).
    pub fn draw(&self, random: &mut (impl Rng + ?Sized)) -> DVector<f64> {
        let mut normal = DVector::zeros(self.mean.len());
        for pair in normal.as_mut_slice().chunks_mut(2) {
            pair.copy_from_slice(&normals(random)[..pair.len()]);
        }
        &self.mean + &self.factor * normal
    }
}

fn normals(random: &mut (impl Rng + ?Sized)) -> [f64; 2] {
    // Uniform on (0, 1], in steps of 2⁻⁵³.
    let mut uniform = || ((random.next_u64() >> 11) + 1) as f64 * 2f64.powi(-53);
    let (radius, (sine, cosine)) = ((-2.0 * uniform().ln()).sqrt(), (TAU * uniform()).sin_cos());
    [radius * cosine, radius * sine]
}

#[cfg(test)]
mod tests;
