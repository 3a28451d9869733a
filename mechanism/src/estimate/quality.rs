//! Whether a covariance shows the data or the noise.
//!
//! The yardstick is the operator norm of the noise. That of a full second moment is √(2d) τ₂ in the mean at most, about
//! a Gaussian orthogonal ensemble; d independent variances have a maximum of about √(2 + 2 ln d) of their
//! noise. The sums add |m| τ₁ √d where the mean m is not 0. A covariance is called noise where even its largest
//! eigenvalue does not exceed twice that norm, or where most of its eigenvalues lie below their own noise.
//!
//! How often that is wrong, by simulation (`docs/estimates.md`): records that do not vary at all pass for good ones at a
//! rate of 0.24 % in one dimension and more rarely in others; records whose every variance is six times the norm are
//! never taken for noise.

use super::debias::NoisyMoments;
use crate::moments::SecondMoment;
use nalgebra::DVector;

/// How far the largest eigenvalue of a covariance must exceed the expected operator norm of its noise.
pub const MIN_SIGNAL_TO_NOISE: f64 = 2.0;

/// Whether a density shows the data or their noise.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Quality {
    /// The covariance stands out of its noise.
    Good,
    /// The covariance is mostly noise: its largest eigenvalue is at most [`MIN_SIGNAL_TO_NOISE`] times the
    /// noise's expected operator norm, or more than half of its eigenvalues lay below their own noise.
    NoiseDominated {
        /// Largest eigenvalue over the expected operator norm of the noise.
        signal_to_noise: f64,
        /// Number of eigenvalues below the noise of their direction.
        clipped: usize,
    },
}

impl NoisyMoments<'_> {
    /// Judges the eigenvalues of a covariance before projection by the noise of their directions.
    pub(super) fn judge(&self, mean: &DVector<f64>, values: &DVector<f64>, noise: &DVector<f64>) -> Quality {
        let noise_norm = self.expected_noise_norm(mean, noise);
        let clipped = values.iter().zip(noise).filter(|(value, noise)| value < noise).count();
        let signal_to_noise = if noise_norm > 0.0 { values.max() / noise_norm } else { 0.0 };
        if signal_to_noise > MIN_SIGNAL_TO_NOISE && 2 * clipped <= values.len() {
            Quality::Good
        } else {
            Quality::NoiseDominated { signal_to_noise, clipped }
        }
    }

    /// Expected operator norm of the noise of the covariance: by the root mean square over directions, which
    /// knows of the count too, or by its parts, which knows that the noise of the sums has a direction.
    fn expected_noise_norm(&self, mean: &DVector<f64>, noise: &DVector<f64>) -> f64 {
        let dimension = mean.len() as f64;
        let root_mean_square = noise.norm() / dimension.sqrt();
        match self.layout.second {
            SecondMoment::Diagonal => (2.0 + 2.0 * dimension.ln()).sqrt() * root_mean_square,
            SecondMoment::Full => {
                let parts = 2f64.sqrt() * self.noise.second + mean.norm() * self.noise.first;
                dimension.sqrt() * (2f64.sqrt() * root_mean_square).max(parts / self.count())
            }
        }
    }
}
