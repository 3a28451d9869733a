//! A Gaussian density with the noise level beside each number, and its scores.
//!
//! [`NoisyMoments::density`](super::debias::NoisyMoments::density) makes it, in the scaled
//! coordinates of the records; [`Density::to_units`] converts it to the user's. Scores come from
//! held-out records ([`Density::mean_log_likelihood`]) or from a known truth p
//! ([`Density::divergence_from`]). For the estimate q, KL(p ‖ q) is how far the expected score of q
//! is below that of p.
//!
//! # Sampling
//! Synthetic records drawn from a released density, in any number and at no privacy cost.
//!
//! x = m̂ + L n with Σ̂ = L Lᵀ and n standard normal, two at a time by the polar form of Box &
//! Muller 1958. This noise protects nothing; the density is already private.

use super::debias::MIN_COUNT_TO_NOISE;
pub use super::quality::Quality;
use nalgebra::{Cholesky, DMatrix, DVector, Dyn};
use rand::Rng;
use std::f64::consts::TAU;
use thiserror::Error;

/// Why there is no density.
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
    /// The count is too small for its noise, so nothing can be divided by it.
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
    #[error("no second moments were released, so there is no covariance: look at the moments instead")]
    NoSecondMoments,
    /// Variances and covariances are of different rows, and nothing is assumed of missing values.
    #[error("columns have values in different rows: set missing_at_random if that is by chance")]
    DifferentRows,
    /// Released numbers contradict that values are missing at random.
    #[error("values are not missing at random: numbers of different rows disagree")]
    NotMissingAtRandom,
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
    /// 0 or nothing was [projected](super::projection::Projection::Raw). Diagonal if only diagonal
    /// second moments were released.
    pub covariance: DMatrix<f64>,
    /// Standard deviation of the noise of each entry of the mean: exact if the count is, else to
    /// first order.
    pub mean_noise: DVector<f64>,
    /// Standard deviation of the noise of each entry of the covariance before projection, with the
    /// estimate in place of the unknown truth. 0 for entries that diagonal second moments do not
    /// estimate.
    pub covariance_noise: DMatrix<f64>,
    /// Weighted count of records.
    pub count: f64,
    /// Standard deviation of the count's noise; 0 if it is exact.
    pub count_noise: f64,
    /// How large the noise is beside the bounds of the columns.
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

    /// Returns the density nearest to what records with coordinates in [−1, 1] allow: a mean in
    /// [−1, 1], and a variance of at most (1 − m)(m + 1). A larger variance is scaled down with its
    /// covariances, which keeps correlations, and eigenvalues at least 0.
    pub fn within_bounds(mut self) -> Self {
        self.mean.apply(|mean| *mean = mean.clamp(-1.0, 1.0));
        let largest = self.mean.map(|mean| (1.0 - mean) * (mean + 1.0));
        let scale = self.covariance.diagonal().zip_map(&largest, |variance, largest| {
            if variance > largest { (largest / variance).sqrt() } else { 1.0 }
        });
        if scale.min() < 1.0 {
            self.covariance.component_mul_assign(&(&scale * scale.transpose()));
        }
        self
    }

    /// Makes a known density, a truth for comparison. Its count and all noise are 0.
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

    /// Returns the density of these columns, in this order; `None` if a column does not exist or
    /// none is given.
    pub fn marginal(&self, columns: &[usize]) -> Option<Self> {
        if columns.is_empty() || columns.iter().any(|&column| column >= self.mean.len()) {
            return None;
        }
        let square = |matrix: &DMatrix<f64>| matrix.select_rows(columns).select_columns(columns);
        Some(Self {
            mean: self.mean.select_rows(columns),
            covariance: square(&self.covariance),
            mean_noise: self.mean_noise.select_rows(columns),
            covariance_noise: square(&self.covariance_noise),
            ..*self
        })
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

    /// Returns the Kullback–Leibler divergence KL(self ‖ other) = E log(self/other) in nats, with
    /// the mean over `self`; `None` if a covariance is singular or the dimensions differ.
    /// `truth.divergence_from(&estimate)` is the loss in score on held-out rows.
    /// `estimate.divergence_from(&truth)` penalises a too narrow estimate less.
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

struct GaussianFactor<'a> {
    mean: &'a DVector<f64>,
    factor: Cholesky<f64, Dyn>,
    /// Logarithm of det(2πΣ).
    log_volume: f64,
}

impl GaussianFactor<'_> {
    fn log_density(&self, point: &[f64]) -> f64 {
        let away = DVector::from_column_slice(point) - self.mean;
        -(self.log_volume + self.factor.solve(&away).dot(&away)) / 2.0
    }
}

fn log_determinant(factor: &Cholesky<f64, Dyn>) -> f64 {
    2.0 * factor.l_dirty().diagonal().iter().map(|x| x.ln()).sum::<f64>()
}

/// Draws from one Gaussian density.
#[derive(Clone, Debug)]
pub struct Sampler {
    mean: DVector<f64>,
    /// L.
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
mod tests {
    use super::super::debias::{MomentNoise, NoisyMoments};
    use super::*;
    use crate::moments::{Layout, SecondMoment};
    use chacha20::ChaCha8Rng;
    use rand::SeedableRng;

    fn estimate(coordinates: &[f64], deviation: f64) -> Density {
        let dimension = if coordinates.len() == 3 { 1 } else { 2 };
        let layout = Layout { dimension, second: SecondMoment::Full, sent: None };
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

    #[test]
    fn both_divergences_name_their_first_density() {
        let known = |mean: [f64; 2], variances: [f64; 2]| {
            let covariance = DMatrix::from_diagonal(&DVector::from_row_slice(&variances));
            Density::known(DVector::from_row_slice(&mean), covariance).unwrap()
        };
        let (truth, narrow) = (known([0.0; 2], [1.0, 1.0]), known([0.0; 2], [0.25, 1.0]));
        let (ratio, log) = (4.0, 4f64.ln());
        assert!((truth.divergence_from(&narrow).unwrap() - (ratio - 1.0 - log) / 2.0).abs() < 1e-15);
        assert!((narrow.divergence_from(&truth).unwrap() - (1.0 / ratio - 1.0 + log) / 2.0).abs() < 1e-15);
        let away = known([2.0, 0.0], [1.0, 1.0]);
        assert_eq!(truth.divergence_from(&away), Some(2.0));
    }

    /// The truth's expected score exceeds the estimate's by KL(truth ‖ estimate): within 6 standard
    /// errors of 100,000 differences, each of a deviation below 3.
    #[test]
    fn held_out_rows_lose_the_divergence() {
        use rand::SeedableRng;
        let truth = Density::known(DVector::zeros(2), DMatrix::identity(2, 2)).unwrap();
        let estimate = estimate(&[1.0, 0.3, 0.0, 1.5, 0.2, 0.8], 0.0);
        let (sampler, mut random) = (truth.sampler().unwrap(), chacha20::ChaCha8Rng::seed_from_u64(2));
        let rows: Vec<_> = (0..100_000).map(|_| sampler.draw(&mut random)).collect();
        let score =
            |density: &Density| density.mean_log_likelihood(rows.iter().map(|x| x.as_slice())).unwrap();
        let divergence = truth.divergence_from(&estimate).unwrap();
        assert!((score(&truth) - score(&estimate) - divergence).abs() < 6.0 * 3.0 / 100_000f64.sqrt());
    }

    #[test]
    fn rows_that_can_not_be_scored_are_refused() {
        let density = estimate(&[1.0, 0.0, 1.0], 0.0);
        let check = |rows: &[&[f64]], expected| assert_eq!(density.mean_log_likelihood(rows), Err(expected));
        check(&[], DensityError::NoRows);
        check(&[&[1.0], &[f64::NAN]], DensityError::Row { row: 2 });
        check(&[&[1.0, 2.0]], DensityError::Shape { found: 2, expected: 1, dimension: 1 });
        check(&[&[]], DensityError::Shape { found: 0, expected: 1, dimension: 1 });
        check(&[&[1e200]], DensityError::OutOfRange);
        let flat = Density::known(DVector::zeros(1), DMatrix::zeros(1, 1)).unwrap();
        assert_eq!(flat.mean_log_likelihood([[0.0]]), Err(DensityError::Singular));
    }

    #[test]
    fn invalid_densities_are_refused() {
        let check = |mean: usize, covariance: &[f64], size: usize, expected| {
            let covariance = DMatrix::from_row_slice(size, covariance.len() / size, covariance);
            assert_eq!(Density::known(DVector::zeros(mean), covariance).unwrap_err(), expected);
        };
        check(2, &[1.0, 0.0, 0.5, 1.0], 2, DensityError::Asymmetric);
        check(2, &[1.0, 2.0], 1, DensityError::Shape { found: 2, expected: 4, dimension: 2 });
        check(1, &[f64::INFINITY], 1, DensityError::OutOfRange);
    }

    #[test]
    fn marginals_keep_their_columns() {
        let found = estimate(&[10.0, 5.0, -2.5, 10.0, 2.0, 5.0], 0.5);
        let second = found.marginal(&[1]).unwrap();
        assert_eq!((second.mean[0], second.mean_noise[0]), (found.mean[1], found.mean_noise[1]));
        assert_eq!(second.covariance[(0, 0)], found.covariance[(1, 1)]);
        let swapped = found.marginal(&[1, 0]).unwrap();
        assert_eq!(swapped.marginal(&[1, 0]), Some(found.clone()));
        assert_eq!((found.marginal(&[]), found.marginal(&[2])), (None, None));
    }

    /// Of 200,000 points all first and second moments lie within 6 standard errors of the
    /// density's, and so do fourth ones along the axes, whose variance is 96: a false alarm has a
    /// probability below 10⁻⁷.
    #[test]
    fn samples_have_the_moments_of_the_density() {
        let mean = DVector::from_row_slice(&[1.0, -2.0, 0.5]);
        let covariance = DMatrix::from_row_slice(3, 3, &[4.0, 1.0, 0.0, 1.0, 2.0, -0.5, 0.0, -0.5, 1.0]);
        let density = Density::known(mean.clone(), covariance.clone()).unwrap();
        let sampler = density.sampler().unwrap();
        let (size, mut random) = (200_000, ChaCha8Rng::seed_from_u64(11));
        let away: Vec<_> = (0..size).map(|_| sampler.draw(&mut random) - &mean).collect();
        let errors = (size as f64).sqrt();
        let average = |f: &dyn Fn(&DVector<f64>) -> f64| away.iter().map(f).sum::<f64>() / size as f64;
        for i in 0..3 {
            let variance = covariance[(i, i)];
            assert!(average(&|x| x[i]).abs() < 6.0 * variance.sqrt() / errors);
            let fourth = average(&|x| x[i].powi(4)) / variance.powi(2);
            assert!((fourth - 3.0).abs() < 6.0 * 96f64.sqrt() / errors, "{fourth}");
            for j in 0..3 {
                let spread = (variance * covariance[(j, j)] + covariance[(i, j)].powi(2)).sqrt();
                let found = average(&|x| x[i] * x[j]);
                assert!((found - covariance[(i, j)]).abs() < 6.0 * spread / errors, "{i} {j} {found}");
            }
        }
    }

    #[test]
    fn the_seed_fixes_the_sample_and_a_singular_density_has_none() {
        let density = Density::known(DVector::zeros(3), DMatrix::identity(3, 3)).unwrap();
        let draw = |seed| density.sampler().unwrap().draw(&mut ChaCha8Rng::seed_from_u64(seed));
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
        let flat = Density::known(DVector::zeros(2), DMatrix::from_element(2, 2, 1.0)).unwrap();
        assert!(flat.sampler().is_none());
    }
}
