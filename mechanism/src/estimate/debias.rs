//! Debiased Gaussian densities from released moments.
//!
//! The input consists of the moments of weighted records z with independent Gaussian noise: the
//! count n̂ = n + e₀, the sum ŝ = n m + e₁ and the second moments Ŝ = n M + E₂. The standard
//! deviations are τ₀, τ₁ (an entry) and τ₂ (a diagonal entry; τ₂/√2 off the diagonal). The targets
//! are m and Σ = M − mmᵀ. With r = τ₀²/n² and v = τ₁²/n²,
//!
//! ```text
//! E[ŝ/n̂] = (1+r) m,     E[Ŝ/n̂] = (1+r) M,     E[ŝŝᵀ/n̂²] = (1+3r) mmᵀ + v I
//! ```
//!
//! up to terms of second order in r and v, by the expansions 1/(1+x) = 1 − x + x² and 1/(1+x)² = 1
//! − 2x + 3x² in x = e₀/n. Hence
//!
//! ```text
//! m̂ = (1−r) ŝ/n̂,     Σ̂ = (1−r) (Ŝ/n̂ − m̂m̂ᵀ) + v I
//! ```
//!
//! are unbiased up to these terms, and exactly unbiased if the count is exact. Then v I is the
//! debiasing of Kalinin, Upadhyay & Lampert 2025 (JME), equation (62). Raising small eigenvalues
//! afterwards, as a density requires, adds some bias again. Σ is that of the records, not that of
//! the population from which they were drawn.

use super::density::{Density, DensityError};
use super::projection::Projection;
use crate::moments::{Layout, SecondMoment};
use nalgebra::{DMatrix, DVector};
use std::f64::consts::SQRT_2;

/// Minimum count, in standard deviations of its noise, for a division by it: r ≤ 1/16.
pub const MIN_COUNT_TO_NOISE: f64 = 4.0;

/// Standard deviations of the noise of released moments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MomentNoise {
    /// τ₀ of the count; 0 if the count is exact.
    pub count: f64,
    /// τ₁ of an entry of the first moment.
    pub first: f64,
    /// τ₂ of a diagonal entry of the second moment; an entry off the diagonal has τ₂/√2.
    pub second: f64,
}

/// Decoded weighted moments of one key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoisyMoments<'a> {
    /// Order of the coordinates.
    pub layout: Layout,
    /// Count, Σz and second moments in that order, all with the same weights.
    pub coordinates: &'a [f64],
    /// The noise of the coordinates.
    pub noise: MomentNoise,
}

impl NoisyMoments<'_> {
    /// Returns the Gaussian density with these moments, debiased as derived at the head of the
    /// [module](self). The covariance is projected by the default [`Projection`]: an eigenvalue is
    /// raised to at least the standard deviation of the noise of the variance in its direction. So
    /// no direction appears to vary less than its noise level.
    ///
    /// # Errors
    /// [`DensityError::TooFewRecords`] if the count is not positive or too small for its noise;
    /// others for invalid lengths, noise levels or moments.
    ///
    /// ```
    /// use hushflow_mechanism::estimate::{debias::{MomentNoise, NoisyMoments}, density::Quality};
    /// use hushflow_mechanism::moments::{Layout, SecondMoment};
    /// let density = NoisyMoments {
    ///     layout: Layout::new(1, SecondMoment::Full),
    ///     coordinates: &[100.0, 50.0, 125.0],
    ///     noise: MomentNoise { count: 0.0, first: 2.0, second: 3.0 },
    /// }
    /// .density()?;
    /// assert_eq!(density.mean[0], 0.5);
    /// assert!((density.covariance[(0, 0)] - 1.0004).abs() < 1e-12);
    /// assert_eq!(density.mean_noise[0], 0.02);
    /// assert_eq!(density.quality, Quality::Good);
    /// # Ok::<(), hushflow_mechanism::estimate::density::DensityError>(())
    /// ```
    pub fn density(&self) -> Result<Density, DensityError> {
        self.density_by(Projection::default())
    }

    /// Returns the Gaussian density with these moments, with the covariance projected by
    /// `projection`.
    ///
    /// # Errors
    /// As [`density`](Self::density).
    pub fn density_by(&self, projection: Projection) -> Result<Density, DensityError> {
        let (mean, covariance) = self.estimates()?;
        let covariance = self.project(projection, &mean, covariance)?;
        let density = Density {
            mean_noise: mean.map(|m| self.noise.first.hypot(m * self.noise.count) / self.count()),
            covariance_noise: self.entry_noise(&mean, &covariance),
            mean,
            covariance,
            count: self.count(),
            count_noise: self.noise.count,
            quality: self.quality(),
        };
        density.finite()
    }

    pub(super) fn count(&self) -> f64 {
        self.coordinates[Layout::COUNT]
    }

    /// m̂ and Σ̂ before projection, of valid moments.
    pub(super) fn estimates(&self) -> Result<(DVector<f64>, DMatrix<f64>), DensityError> {
        self.validate()?;
        let (mean, covariance) = self.debiased();
        let finite = covariance.iter().chain(&mean).all(|x| x.is_finite());
        if finite { Ok((mean, covariance)) } else { Err(DensityError::OutOfRange) }
    }

    fn validate(&self) -> Result<(), DensityError> {
        let dimension = self.layout.dimension;
        if self.layout.second == SecondMoment::None {
            return Err(DensityError::NoSecondMoments);
        }
        let (found, expected) = (self.coordinates.len(), self.layout.coordinates());
        if found != expected || dimension == 0 {
            return Err(DensityError::Shape { found, expected, dimension });
        }
        let deviations = [self.noise.count, self.noise.first, self.noise.second];
        if let Some(deviation) = deviations.into_iter().find(|x| !(0.0..=f64::MAX).contains(x)) {
            return Err(DensityError::Noise(deviation));
        }
        if !self.coordinates.iter().all(|x| x.is_finite()) {
            return Err(DensityError::OutOfRange);
        }
        let (count, count_noise) = (self.count(), self.noise.count);
        if count > 0.0 && count > MIN_COUNT_TO_NOISE * count_noise {
            Ok(())
        } else {
            Err(DensityError::TooFewRecords { count, count_noise })
        }
    }

    /// m̂ and Σ̂ before projection.
    fn debiased(&self) -> (DVector<f64>, DMatrix<f64>) {
        let count = self.count();
        let shrink = 1.0 - (self.noise.count / count).powi(2);
        let mean = DVector::from_column_slice(&self.coordinates[self.layout.first()]) * (shrink / count);
        let mut covariance = DMatrix::zeros(mean.len(), mean.len());
        let second = &self.coordinates[self.layout.second()];
        for ((i, j), sum) in self.layout.second_entries().zip(second) {
            covariance[(i, j)] = shrink * (sum / count - mean[i] * mean[j]);
            covariance[(j, i)] = covariance[(i, j)];
        }
        let mean_variance = (self.noise.first / count).powi(2);
        (0..mean.len()).for_each(|i| covariance[(i, i)] += mean_variance);
        (mean, covariance)
    }

    /// Standard deviation of the noise of uᵀΣ̂w for unit vectors u = w (`same`) or u ⊥ w: to first
    /// order in τ₀, and exact in τ₁ and τ₂. The arguments are uᵀΣw, uᵀm and wᵀm.
    pub(super) fn covariance_noise(&self, covariance: f64, means: (f64, f64), same: bool) -> f64 {
        let MomentNoise { count: tau_0, first: tau_1, second: tau_2 } = self.noise;
        let repetition = if same { SQRT_2 } else { 1.0 };
        let product = repetition * (tau_2 / SQRT_2).hypot(tau_1 * means.0.hypot(means.1));
        let square = repetition * tau_1 * tau_1 / self.count();
        let ratio = (covariance - means.0 * means.1) * tau_0;
        product.hypot(square).hypot(ratio) / self.count()
    }

    pub(super) fn entry_noise(&self, mean: &DVector<f64>, covariance: &DMatrix<f64>) -> DMatrix<f64> {
        let mut noise = DMatrix::zeros(mean.len(), mean.len());
        for (i, j) in self.layout.second_entries() {
            noise[(i, j)] = self.covariance_noise(covariance[(i, j)], (mean[i], mean[j]), i == j);
            noise[(j, i)] = noise[(i, j)];
        }
        noise
    }
}

#[cfg(test)]
mod tests {
    use super::super::density::Quality;
    use super::*;
    use crate::reference::{layout, moments, noise, released};
    use chacha20::ChaCha8Rng;
    use proptest::prelude::*;
    use rand::SeedableRng;

    fn estimate(layout: Layout, coordinates: &[f64], noise: MomentNoise) -> Result<Density, DensityError> {
        NoisyMoments { layout, coordinates, noise }.density()
    }

    #[derive(Default)]
    struct SampleMoments {
        size: f64,
        sums: Vec<(f64, f64)>,
    }

    impl SampleMoments {
        fn add<'a>(&mut self, entries: impl Iterator<Item = &'a f64>) {
            self.size += 1.0;
            for (k, x) in entries.enumerate() {
                if k == self.sums.len() {
                    self.sums.push((0.0, 0.0));
                }
                self.sums[k] = (self.sums[k].0 + x, self.sums[k].1 + x * x);
            }
        }

        fn summary(&self) -> impl Iterator<Item = (f64, f64)> {
            self.sums.iter().map(|(sum, squares)| {
                let mean = sum / self.size;
                (mean, (squares / self.size - mean * mean).sqrt())
            })
        }
    }

    /// Over 400,000 releases every mean lies within 5.5 standard errors of the truth (false alarm
    /// below 10⁻⁶ for all entries of all settings together). At least one of the plain estimates is
    /// off by more than ten standard errors. Every standard deviation is within 2 % of the stated
    /// noise (18 standard errors, to leave room for terms of second order).
    fn check_unbiased(layout: Layout, mean: &[f64], covariance: &[f64], noise: MomentNoise, seed: u64) {
        let trials = 400_000;
        let exact = moments(layout, 100.0, mean, covariance);
        let stated = estimate(layout, &exact, noise).unwrap();
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let (mut debiased, mut plain) = (SampleMoments::default(), SampleMoments::default());
        for _ in 0..trials {
            let coordinates = released(layout, &exact, noise, &mut random);
            let entries = |noise| {
                let (mean, covariance) = NoisyMoments { layout, coordinates: &coordinates, noise }.debiased();
                mean.iter().chain(&covariance).copied().collect::<Vec<_>>()
            };
            debiased.add(entries(noise).iter());
            plain.add(entries(MomentNoise { count: 0.0, first: 0.0, second: 0.0 }).iter());
        }
        let wanted: Vec<f64> = mean.iter().chain(covariance).copied().collect();
        let biases = |sample: &SampleMoments| -> Vec<f64> {
            let errors = (trials as f64).sqrt();
            let scores = sample.summary().zip(&wanted).map(|((mean, deviation), truth)| {
                if deviation > 0.0 { (mean - truth) / deviation * errors } else { 0.0 }
            });
            scores.collect()
        };
        assert!(biases(&debiased).iter().all(|z| z.abs() < 5.5), "{:?}", biases(&debiased));
        assert!(biases(&plain).iter().any(|z| z.abs() > 10.0), "{:?}", biases(&plain));
        let deviations = stated.mean_noise.iter().chain(&stated.covariance_noise);
        for ((_, found), stated) in debiased.summary().zip(deviations) {
            assert!((found - stated).abs() <= 0.02 * stated, "found {found}, stated {stated}");
        }
    }

    #[test]
    fn estimates_are_unbiased_and_their_noise_is_as_stated() {
        let (full, diagonal) = (SecondMoment::Full, SecondMoment::Diagonal);
        check_unbiased(layout(1, full), &[0.8], &[0.5], noise(5.0, 5.0, 8.0), 1);
        check_unbiased(layout(2, full), &[0.7, -0.5], &[0.5, 0.2, 0.2, 0.4], noise(0.0, 8.0, 8.0), 2);
        check_unbiased(layout(2, full), &[1.0, 0.3], &[0.5, -0.2, -0.2, 0.3], noise(5.0, 4.0, 6.0), 3);
        check_unbiased(layout(2, diagonal), &[1.0, 0.3], &[0.5, 0.0, 0.0, 0.3], noise(4.0, 6.0, 6.0), 4);
    }

    #[test]
    fn exact_moments_give_their_density() {
        let exact = moments(layout(2, SecondMoment::Full), 8.0, &[1.0, -0.5], &[1.0, 0.75, 0.75, 1.0]);
        let found = estimate(layout(2, SecondMoment::Full), &exact, noise(0.0, 0.0, 0.0)).unwrap();
        assert_eq!(found.mean.as_slice(), [1.0, -0.5]);
        assert_eq!(found.covariance.as_slice(), [1.0, 0.75, 0.75, 1.0]);
        assert!(found.mean_noise.iter().chain(&found.covariance_noise).all(|x| *x == 0.0));
        assert_eq!((found.count, found.count_noise, found.quality), (8.0, 0.0, Quality::Good));
    }

    #[test]
    fn diagonal_moments_give_a_diagonal_covariance() {
        let diagonal = layout(2, SecondMoment::Diagonal);
        let exact = moments(diagonal, 10.0, &[1.0, 0.0], &[2.0, 0.0, 0.0, -5.0]);
        let found = estimate(diagonal, &exact, noise(0.0, 0.0, 1.0)).unwrap();
        assert_eq!(found.covariance.as_slice(), [2.0, 0.0, 0.0, 0.1]);
        assert_eq!(found.covariance_noise.as_slice(), [0.1, 0.0, 0.0, 0.1]);
        assert_eq!(found.quality, Quality::NoiseDominated);
    }

    #[test]
    fn eigenvalues_are_raised_to_their_noise_and_others_left() {
        let full = layout(2, SecondMoment::Full);
        let exact = moments(full, 10.0, &[0.0, 0.0], &[1.0, 2.0, 2.0, 1.0]);
        let found = estimate(full, &exact, noise(0.0, 0.0, 1.0)).unwrap();
        let expected = DMatrix::from_row_slice(2, 2, &[1.55, 1.45, 1.45, 1.55]);
        assert!((found.covariance - expected).amax() < 1e-14);
    }

    #[test]
    fn a_count_below_its_noise_gives_no_density() {
        let check = |count: f64, count_noise: f64| {
            let found =
                estimate(layout(1, SecondMoment::Full), &[count, 1.0, 1.0], noise(count_noise, 1.0, 1.0));
            assert_eq!(found, Err(DensityError::TooFewRecords { count, count_noise }));
        };
        check(0.0, 0.0);
        check(-5.0, 0.0);
        check(-5.0, 1.0);
        check(8.0, 2.0);
    }

    #[test]
    fn invalid_moments_are_refused() {
        let line = layout(1, SecondMoment::Full);
        let check = |coordinates: &[f64], noise: MomentNoise, expected: DensityError| {
            assert_eq!(estimate(line, coordinates, noise), Err(expected));
        };
        let some = noise(0.0, 1.0, 1.0);
        check(&[1.0, 1.0], some, DensityError::Shape { found: 2, expected: 3, dimension: 1 });
        check(&[1.0, f64::NAN, 1.0], some, DensityError::OutOfRange);
        check(&[f64::INFINITY, 1.0, 1.0], some, DensityError::OutOfRange);
        check(&[1.0, 1e200, 1.0], some, DensityError::OutOfRange);
        check(&[1.0, 1.0, 1.0], noise(0.0, 1e200, 1.0), DensityError::OutOfRange);
        check(&[1.0, 1.0, 1.0], noise(0.0, -1.0, 1.0), DensityError::Noise(-1.0));
        check(&[1.0, 1.0, 1.0], noise(0.0, 1.0, f64::INFINITY), DensityError::Noise(f64::INFINITY));
        let point = estimate(layout(0, SecondMoment::Full), &[1.0], some);
        assert_eq!(point, Err(DensityError::Shape { found: 1, expected: 1, dimension: 0 }));
    }

    proptest! {
        #[test]
        fn no_input_panics_or_gives_a_number_that_is_not_finite(
            coordinates in proptest::collection::vec(any::<f64>(), 6), levels in any::<[f64; 2]>(),
            tame in any::<bool>(),
        ) {
            let tamed = |x: f64| if tame { x.signum() * x.abs().ln_1p() } else { x };
            let coordinates: Vec<f64> = coordinates.into_iter().map(tamed).collect();
            let noise = noise(0.0, tamed(levels[0]).abs(), tamed(levels[1]).abs());
            for layout in [layout(2, SecondMoment::Full), layout(2, SecondMoment::Diagonal)] {
                let coordinates = &coordinates[..layout.coordinates()];
                if let Ok(density) = estimate(layout, coordinates, noise) {
                    prop_assert_eq!(&density.covariance, &density.covariance.transpose());
                    prop_assert!(density.covariance.iter().chain(&density.mean).all(|x| x.is_finite()));
                    prop_assert!(density.covariance.diagonal().min() >= 0.0);
                }
            }
        }
    }
}
