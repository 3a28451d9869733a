//! A Gaussian density with the noise level beside each number, and what can be asked of it.
//!
//! [`NoisyMoments::density`](super::debias::NoisyMoments::density) makes it, in the scaled coordinates of
//! the records; [`Density::to_units`] brings it to the user's.

use super::debias::MIN_COUNT_TO_NOISE;
use nalgebra::{Cholesky, DMatrix, DVector, Dyn};
use std::f64::consts::TAU;
use thiserror::Error;

/// Why no density can be given.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum DensityError {
    /// A vector has not the length that the dimension asks for, or the dimension is 0.
    #[error("found {found} numbers, expected {expected}, for a dimension of {dimension} (at least 1)")]
    Shape {
        /// Numbers found.
        found: usize,
        /// Numbers expected.
        expected: usize,
        /// Dimension d.
        dimension: usize,
    },
    /// Not a standard deviation.
    #[error("the standard deviation of the noise is {0}, but must be a finite number of at least 0")]
    Noise(f64),
    /// Not a unit.
    #[error("a column's scale is {0}, but must be a finite number above 0")]
    Scale(f64),
    /// The count does not stand out of its noise, so nothing can be divided by it.
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
    /// A number is not finite, or its square would not be.
    #[error("a moment is not finite, or too large to be squared in floating point: choose larger units")]
    OutOfRange,
    /// Only counts and first moments were released.
    #[error("no second moments were released, so there is no covariance: look at the moments instead")]
    NoSecondMoments,
    /// The eigenvalues of the covariance were not found.
    #[error("the eigenvalues of the covariance did not converge")]
    Eigenvalues,
}

/// Whether a density shows the data or their noise.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Quality {
    /// The covariance stands out of its noise.
    Good,
    /// The covariance is mostly noise: its largest eigenvalue is at most
    /// [`MIN_SIGNAL_TO_NOISE`](super::debias::MIN_SIGNAL_TO_NOISE) times the noise's expected operator
    /// norm, or more than half of its eigenvalues lay below their own noise.
    NoiseDominated {
        /// Largest eigenvalue over the expected operator norm of the noise.
        signal_to_noise: f64,
        /// Number of eigenvalues that were raised to their noise.
        clipped: usize,
    },
}

/// A Gaussian density with the noise of its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Density {
    /// Mean m̂ (d).
    pub mean: DVector<f64>,
    /// Covariance Σ̂ (d×d): symmetric, and positive definite unless all moments and their noise are 0.
    /// Diagonal if only diagonal second moments were released.
    pub covariance: DMatrix<f64>,
    /// Standard deviation of the noise of each entry of the mean: exact if the count is, else of first
    /// order.
    pub mean_noise: DVector<f64>,
    /// Standard deviation of the noise of each entry of the covariance before projection, with the estimate
    /// in the place of the unknown truth. 0 where diagonal second moments leave nothing to estimate.
    pub covariance_noise: DMatrix<f64>,
    /// Weighted count of records.
    pub count: f64,
    /// Standard deviation of the count's noise; 0 if it is exact.
    pub count_noise: f64,
    /// Whether the covariance stands out of its noise.
    pub quality: Quality,
}

impl Density {
    /// The density of x = offset + scale∘z, in the user's units.
    ///
    /// # Errors
    /// [`DensityError::Shape`] and [`DensityError::Scale`] for a scale or offset that is none, and
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

    /// Logarithm of the density at a point (d), per unit of volume; `None` if the covariance is singular or
    /// the point has another dimension.
    pub fn log_density(&self, point: &[f64]) -> Option<f64> {
        let factor = Cholesky::new(self.covariance.clone())?;
        let away =
            (point.len() == self.mean.len()).then(|| DVector::from_column_slice(point) - &self.mean)?;
        let log_volume = self.mean.len() as f64 * TAU.ln() + log_determinant(&factor);
        Some(-(log_volume + factor.solve(&away).dot(&away)) / 2.0)
    }

    /// Kullback–Leibler divergence KL(self ‖ other) in nats; `None` if a covariance is singular or the
    /// dimensions differ.
    pub fn divergence_from(&self, other: &Self) -> Option<f64> {
        let (own, theirs) =
            (Cholesky::new(self.covariance.clone())?, Cholesky::new(other.covariance.clone())?);
        let away = (self.mean.len() == other.mean.len()).then(|| &self.mean - &other.mean)?;
        let excess = theirs.solve(&self.covariance).trace() - away.len() as f64;
        let log_ratio = log_determinant(&theirs) - log_determinant(&own);
        Some((excess + theirs.solve(&away).dot(&away) + log_ratio) / 2.0)
    }

    /// Itself, if all its numbers are finite.
    pub(super) fn finite(self) -> Result<Self, DensityError> {
        let vectors = self.mean.iter().chain(&self.mean_noise);
        let finite = vectors.chain(&self.covariance).chain(&self.covariance_noise).all(|x| x.is_finite());
        if finite { Ok(self) } else { Err(DensityError::OutOfRange) }
    }
}

/// Logarithm of the determinant of a factored matrix, without overflow.
fn log_determinant(factor: &Cholesky<f64, Dyn>) -> f64 {
    2.0 * factor.l_dirty().diagonal().iter().map(|x| x.ln()).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::super::debias::{MomentNoise, NoisyMoments};
    use super::*;
    use crate::moments::{Layout, SecondMoment};

    fn estimate(coordinates: &[f64], deviation: f64) -> Density {
        let dimension = if coordinates.len() == 3 { 1 } else { 2 };
        let layout = Layout { dimension, second: SecondMoment::Full };
        let noise = MomentNoise { count: 0.0, first: deviation, second: deviation };
        NoisyMoments { layout, coordinates, noise }.density().unwrap()
    }

    #[test]
    fn units_scale_and_shift_everything() {
        let found = estimate(&[10.0, 5.0, -2.5, 10.0, 2.0, 5.0], 0.5);
        let in_units = found.to_units(&[2.0, 10.0], &[1.0, -3.0]).unwrap();
        assert_eq!(in_units.mean[0], 1.0 + 2.0 * found.mean[0]);
        assert_eq!(in_units.mean_noise[1], 10.0 * found.mean_noise[1]);
        assert_eq!(in_units.covariance[(0, 1)], 20.0 * found.covariance[(0, 1)]);
        assert_eq!(in_units.covariance_noise[(1, 1)], 100.0 * found.covariance_noise[(1, 1)]);
        let log_jacobian = 20_f64.ln();
        let (at, in_units_at) = (found.log_density(&[0.1, 0.2]), in_units.log_density(&[1.2, -1.0]));
        assert!((at.unwrap() - in_units_at.unwrap() - log_jacobian).abs() < 1e-14);
    }

    #[test]
    fn invalid_units_are_refused() {
        let found = estimate(&[1.0, 0.0, 1.0], 0.0);
        let shape = DensityError::Shape { found: 2, expected: 1, dimension: 1 };
        assert_eq!(found.to_units(&[1.0], &[0.0, 0.0]), Err(shape));
        assert_eq!(found.to_units(&[0.0], &[0.0]), Err(DensityError::Scale(0.0)));
        assert_eq!(found.to_units(&[1.0], &[f64::NAN]), Err(DensityError::OutOfRange));
        assert_eq!(found.to_units(&[1e200], &[0.0]), Err(DensityError::OutOfRange));
    }

    #[test]
    fn log_density_and_divergence_agree_with_closed_forms() {
        let normal = |mean: f64, variance: f64| estimate(&[1.0, mean, variance + mean * mean], 0.0);
        let (p, q) = (normal(1.0, 4.0), normal(-1.0, 9.0));
        let log_density = -(0.25 + (TAU * 4.0).ln()) / 2.0;
        assert!((p.log_density(&[2.0]).unwrap() - log_density).abs() < 1e-15);
        let divergence = (4.0 / 9.0 + 4.0 / 9.0 - 1.0 + (9.0_f64 / 4.0).ln()) / 2.0;
        assert!((p.divergence_from(&q).unwrap() - divergence).abs() < 1e-15);
        assert_eq!(p.divergence_from(&p), Some(0.0));
        assert_eq!(p.log_density(&[1.0, 2.0]), None);
        assert_eq!(p.divergence_from(&estimate(&[1.0, 0.0, 0.0, 1.0, 0.0, 1.0], 0.0)), None);
    }
}
