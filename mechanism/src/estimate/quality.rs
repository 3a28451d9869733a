//! Decides whether a covariance shows the data or the noise.
//!
//! The reference is the operator norm of the noise. For a full second moment its mean is at most
//! √(2d) τ₂, about that of a Gaussian orthogonal ensemble. For d independent variances the maximum
//! is about √(2 + 2 ln d) of their noise. The sums add |m| τ₁ √d if the mean m is not 0. A
//! covariance is called noise if its largest eigenvalue does not exceed twice that norm, or if most
//! of its eigenvalues are below their own noise.
//!
//! Error rates: records without any variance pass as good at a rate of 0.24 % in one dimension and
//! more rarely in others. Records whose every variance is six times the norm are called noise at a
//! rate of 10⁻⁸ in one dimension and more rarely in others.

use super::debias::NoisyMoments;
use crate::moments::SecondMoment;
use nalgebra::DVector;

/// Minimum ratio of the largest eigenvalue of a covariance to the expected operator norm of its
/// noise.
pub const MIN_SIGNAL_TO_NOISE: f64 = 2.0;

/// Whether a density shows the data or their noise.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Quality {
    /// The covariance exceeds its noise.
    Good,
    /// The covariance is mostly noise: its largest eigenvalue is at most [`MIN_SIGNAL_TO_NOISE`]
    /// times the noise's expected operator norm, or more than half of its eigenvalues were below
    /// their own noise.
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

    /// Expected operator norm of the noise of the covariance: by the root mean square over
    /// directions, which includes the count, or by its parts, which includes the direction of the
    /// sums' noise.
    fn expected_noise_norm(&self, mean: &DVector<f64>, noise: &DVector<f64>) -> f64 {
        let dimension = mean.len() as f64;
        let root_mean_square = noise.norm() / dimension.sqrt();
        match self.layout.second {
            SecondMoment::Diagonal | SecondMoment::None => {
                (2.0 + 2.0 * dimension.ln()).sqrt() * root_mean_square
            }
            SecondMoment::Full => {
                let parts = 2f64.sqrt() * self.noise.second + mean.norm() * self.noise.first;
                dimension.sqrt() * (2f64.sqrt() * root_mean_square).max(parts / self.count())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::density::Density;
    use super::super::simulation::{layout, moments, noise, released};
    use super::*;
    use crate::estimate::debias::MomentNoise;
    use crate::moments::Layout;
    use chacha20::ChaCha8Rng;
    use nalgebra::Cholesky;
    use rand::SeedableRng;

    const COUNT: f64 = 10.0;

    fn densities(
        layout: Layout,
        (mean, variance): (f64, f64),
        noise: MomentNoise,
        releases: usize,
        random: &mut ChaCha8Rng,
    ) -> impl Iterator<Item = Density> {
        let d = layout.dimension;
        let covariance: Vec<f64> =
            (0..d * d).map(|k| if k % (d + 1) == 0 { variance } else { 0.0 }).collect();
        let exact = moments(layout, COUNT, &vec![mean; d], &covariance);
        (0..releases).map(move |_| {
            let coordinates = released(layout, &exact, noise, random);
            NoisyMoments { layout, coordinates: &coordinates, noise }.density().unwrap()
        })
    }

    /// In one dimension noise passes for signal beyond 2√2 deviations, at a rate of 0.24 %, and
    /// more rarely in others. More than 15 of 1000 then do so with a probability below 10⁻⁷.
    #[test]
    fn pure_noise_is_called_noise_and_stays_positive_definite() {
        let mut random = ChaCha8Rng::seed_from_u64(5);
        let mut check = |layout: Layout, mean: f64, noise: MomentNoise| {
            let densities = densities(layout, (mean, 0.0), noise, 1000, &mut random);
            let good = densities.filter(|density| {
                assert_eq!(density.covariance, density.covariance.transpose());
                assert!(Cholesky::new(density.covariance.clone()).is_some());
                density.quality == Quality::Good
            });
            let good = good.count();
            assert!(good <= 15, "{layout:?} {mean}: {good}");
        };
        for dimension in [1, 2, 5] {
            for kind in [SecondMoment::Full, SecondMoment::Diagonal] {
                check(layout(dimension, kind), 0.0, noise(0.0, 1.0, 20.0));
                check(layout(dimension, kind), 0.5, noise(1.0, 1.0, 20.0));
            }
        }
        // The noise of the sums, in the direction of the mean, dominates.
        check(layout(50, SecondMoment::Full), 0.5, noise(0.0, 1.0, 0.1));
    }

    /// Variances of six times the norm lie 4√2 standard deviations of their noise above the
    /// threshold in one dimension, the smallest distance: a false alarm has a probability below
    /// 10⁻⁷.
    #[test]
    fn strong_signals_are_not_called_noise() {
        let mut random = ChaCha8Rng::seed_from_u64(6);
        let mut check = |layout: Layout, noise: MomentNoise, noise_norm: f64| {
            let variance = 6.0 * noise_norm / COUNT;
            let mut densities = densities(layout, (0.0, variance), noise, 1000, &mut random);
            assert!(densities.all(|density| density.quality == Quality::Good), "{layout:?}");
        };
        for dimension in [1, 2, 5, 20] {
            let norm = 2.0 * (2.0 * dimension as f64).sqrt();
            check(layout(dimension, SecondMoment::Full), noise(0.0, 1.0, 2.0), norm);
            let norm = 2.0 * (2.0 + 2.0 * (dimension as f64).ln()).sqrt();
            check(layout(dimension, SecondMoment::Diagonal), noise(0.0, 1.0, 2.0), norm);
        }
    }

    /// One direction above the noise and four below make no density to trust.
    #[test]
    fn most_directions_in_the_noise_are_called_noise() {
        let five = layout(5, SecondMoment::Diagonal);
        let mut variances = [0.0; 25];
        variances[0] = 100.0;
        let exact = moments(five, COUNT, &[0.0; 5], &variances);
        let noise = noise(0.0, 0.0, 1.0);
        let found = NoisyMoments { layout: five, coordinates: &exact, noise }.density().unwrap();
        let Quality::NoiseDominated { signal_to_noise, clipped: 4 } = found.quality else {
            panic!("{:?}", found.quality);
        };
        assert!(signal_to_noise > 100.0, "{signal_to_noise}");
    }
}
