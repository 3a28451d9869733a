//! Projects a debiased estimate to a covariance by raising eigenvalues that noise made too small.
//!
//! Under noise of standard deviation τ an eigenvalue may be anything within a few τ of the truth,
//! even negative. Let u be its direction and τᵤ the noise of the variance uᵀΣ̂u.
//! [`Projection::Floor`] raises it to max(·, τᵤ). [`Projection::Nearest`] only raises negative
//! ones, to 0, which gives the nearest positive semi-definite matrix in the Frobenius norm (Higham
//! 1988).
//!
//! [`Projection::Shrink`] first shrinks the matrix towards its diagonal D, Σ̂ → (1−α)Σ̂ + αD.
//! Entries off the diagonal have a known noise, σ̂ᵢⱼ = σᵢⱼ + ε, E ε² = ηᵢⱼ², so the expected
//! squared error Σ (1−α)²ηᵢⱼ² + α²σᵢⱼ² is least at
//!
//! ```text
//! α = Σ ηᵢⱼ² / (Σ ηᵢⱼ² + Σ σᵢⱼ²) ≈ min(1, Σ ηᵢⱼ² / Σ σ̂ᵢⱼ²)        over i < j,
//! ```
//!
//! as E σ̂ᵢⱼ² = σᵢⱼ² + ηᵢⱼ²: the oracle of Ledoit & Wolf 2004, with a known variance instead of an
//! estimated one. If noise dominates, α is 1 and correlations vanish; as noise falls α goes to 0.
//!
//! `docs/estimates.md` compares the projections, with figures.

use super::debias::NoisyMoments;
use super::density::DensityError;
use crate::moments::SecondMoment;
use nalgebra::{DMatrix, DVector, SymmetricEigen};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Iterations of the eigenvalue search allowed per dimension; a few are typical.
const ITERATIONS: usize = 100;

/// The way in which a debiased estimate becomes a covariance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Projection {
    /// Raises an eigenvalue to at least the noise of its direction.
    #[default]
    Floor,
    /// The nearest positive semi-definite matrix: negative eigenvalues are raised to the rounding
    /// error above 0, so that a density exists.
    Nearest,
    /// Shrinks entries off the diagonal by their share of noise, then applies the floor.
    Shrink,
    /// No projection: unbiased, but no covariance if eigenvalues are negative.
    Raw,
}

/// A name that is not in a list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("found {found:?}, expected {expected}")]
pub struct UnknownName {
    /// The name.
    pub found: String,
    /// The list.
    pub expected: &'static str,
}

impl Projection {
    /// All projections, the default first.
    pub const ALL: [Self; 4] = [Self::Floor, Self::Nearest, Self::Shrink, Self::Raw];

    /// Returns the name in pipeline files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Nearest => "nearest",
            Self::Shrink => "shrink",
            Self::Raw => "raw",
        }
    }
}

impl fmt::Display for Projection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Projection {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let expected = r#""floor", "nearest", "shrink" or "raw""#;
        let named = Self::ALL.into_iter().find(|projection| projection.name() == text);
        named.ok_or_else(|| UnknownName { found: text.into(), expected })
    }
}

impl NoisyMoments<'_> {
    pub(super) fn project(
        &self,
        projection: Projection,
        mean: &DVector<f64>,
        covariance: DMatrix<f64>,
    ) -> Result<DMatrix<f64>, DensityError> {
        let rounding = mean.len() as f64 * f64::EPSILON * (covariance.amax() + mean.norm_squared());
        let spectrum = self.spectrum(&covariance)?;
        let noise = self.noise_along(&spectrum, mean, rounding);
        let projected = match projection {
            Projection::Raw => covariance,
            Projection::Floor => spectrum.raise(covariance, &noise),
            Projection::Nearest => {
                let floors = DVector::from_element(mean.len(), 4.0 * rounding);
                spectrum.raise(covariance, &floors)
            }
            Projection::Shrink => {
                let noise = self.entry_noise(mean, &covariance);
                let shrunk = shrunk(covariance, &noise);
                let spectrum = self.spectrum(&shrunk)?;
                let noise = self.noise_along(&spectrum, mean, rounding);
                spectrum.raise(shrunk, &noise)
            }
        };
        Ok(projected)
    }

    fn spectrum(&self, covariance: &DMatrix<f64>) -> Result<Spectrum, DensityError> {
        if self.layout.second != SecondMoment::Full {
            return Ok(Spectrum { values: covariance.diagonal(), directions: None });
        }
        Spectrum::of(covariance).ok_or(DensityError::Eigenvalues)
    }

    /// Standard deviation of the noise of the variance in each direction, at least the rounding
    /// error.
    fn noise_along(&self, spectrum: &Spectrum, mean: &DVector<f64>, rounding: f64) -> DVector<f64> {
        let means = spectrum.directions.as_ref().map_or_else(|| mean.clone(), |u| u.tr_mul(mean));
        spectrum.values.zip_map(&means, |value, mean| {
            self.covariance_noise(value.max(0.0), (mean, mean), true).max(rounding)
        })
    }
}

/// Multiplies entries off the diagonal by 1 − α, for noise of these standard deviations.
pub fn shrunk(mut matrix: DMatrix<f64>, noise: &DMatrix<f64>) -> DMatrix<f64> {
    let off_diagonal = |matrix: &DMatrix<f64>| matrix.norm_squared() - matrix.diagonal().norm_squared();
    let (noise, found) = (off_diagonal(noise), off_diagonal(&matrix));
    let kept = if found > noise { 1.0 - noise / found } else { 0.0 };
    let diagonal = matrix.diagonal();
    matrix *= kept;
    matrix.set_diagonal(&diagonal);
    matrix
}

/// Eigenvalues, with their directions unless these are the axes.
pub struct Spectrum {
    /// The eigenvalues.
    pub values: DVector<f64>,
    /// Eigenvectors, one per column; `None` if they are the axes.
    pub directions: Option<DMatrix<f64>>,
}

impl Spectrum {
    /// Decomposes a symmetric matrix; `None` if that fails.
    pub fn of(matrix: &DMatrix<f64>) -> Option<Self> {
        SymmetricEigen::try_new(matrix.clone(), f64::EPSILON, ITERATIONS * matrix.nrows())
            .filter(|eigen| eigen.eigenvalues.iter().all(|value| value.is_finite()))
            .map(|eigen| Self { values: eigen.eigenvalues, directions: Some(eigen.eigenvectors) })
    }

    /// Returns the matrix of this spectrum with eigenvalues raised to their floors: the same matrix
    /// if none is below.
    pub fn raise(&self, matrix: DMatrix<f64>, floors: &DVector<f64>) -> DMatrix<f64> {
        if self.values.iter().zip(floors).all(|(value, floor)| value >= floor) {
            return matrix;
        }
        let raised = DMatrix::from_diagonal(&self.values.zip_map(floors, f64::max));
        let raised = self.directions.as_ref().map_or_else(|| raised.clone(), |u| u * &raised * u.transpose());
        (&raised + raised.transpose()) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::{layout, moments, noise, released};
    use chacha20::ChaCha8Rng;
    use nalgebra::Cholesky;
    use rand::SeedableRng;

    /// Projects the covariance of ten exact records, with noise τ₂ = 1.
    fn projected(projection: Projection, dimension: usize, covariance: &[f64]) -> DMatrix<f64> {
        let layout = layout(dimension, SecondMoment::Full);
        let coordinates = moments(layout, 10.0, &vec![0.0; dimension], covariance);
        let moments = NoisyMoments { layout, coordinates: &coordinates, noise: noise(0.0, 0.0, 1.0) };
        moments.density_by(projection).unwrap().covariance
    }

    #[test]
    fn each_projection_gives_its_matrix() {
        let check = |projection, expected: [f64; 4]| {
            let found = projected(projection, 2, &[1.0, 2.0, 2.0, 1.0]);
            let error = (&found - DMatrix::from_row_slice(2, 2, &expected)).amax();
            assert!(error < 1e-14, "{projection}: {found}");
        };
        check(Projection::Raw, [1.0, 2.0, 2.0, 1.0]);
        // Eigenvalues 3 and −1 of (1, ±1)/√2: −1 becomes 0, or τ₂/n = 1/10.
        check(Projection::Nearest, [1.5, 1.5, 1.5, 1.5]);
        check(Projection::Floor, [1.55, 1.45, 1.45, 1.55]);
        // α = η²/σ̂² = (1/2)/10²/2², so off the diagonal 2 − 1/400; eigenvalues 3 − 1/400 and 1/10.
        let (half, floor) = ((3.0 - 1.0 / 400.0) / 2.0, 0.05);
        check(Projection::Shrink, [half + floor, half - floor, half - floor, half + floor]);
    }

    #[test]
    fn correlations_within_noise_are_dropped() {
        let shrunk = projected(Projection::Shrink, 2, &[1.0, 0.07, 0.07, 2.0]);
        assert_eq!(shrunk.as_slice(), [1.0, 0.0, 0.0, 2.0], "0.07 is below 1/(10√2)");
        let kept = projected(Projection::Shrink, 2, &[1.0, 0.1, 0.1, 2.0]);
        assert!((kept[(0, 1)] - 0.05).abs() < 1e-12, "half of 0.1² is noise: {kept}");
    }

    #[test]
    fn covariances_that_stand_out_are_not_projected() {
        let covariance = [3.0, 1.0, 1.0, 3.0];
        for projection in [Projection::Floor, Projection::Nearest, Projection::Raw] {
            assert_eq!(projected(projection, 2, &covariance).as_slice(), covariance);
        }
    }

    /// In pure noise, all projections except the raw one are positive definite. The nearest matrix
    /// has a smaller error in the Frobenius norm than the raw one: projecting on a convex set that
    /// contains the truth never increases the distance from it.
    #[test]
    fn projections_of_noise_are_covariances() {
        let layout = layout(5, SecondMoment::Full);
        let exact = moments(layout, 10.0, &[0.2; 5], DMatrix::from_diagonal_element(5, 5, 0.1).as_slice());
        let noise = noise(0.0, 5.0, 7.0);
        let mut random = ChaCha8Rng::seed_from_u64(9);
        for _ in 0..1000 {
            let coordinates = released(layout, &exact, noise, &mut random);
            let moments = NoisyMoments { layout, coordinates: &coordinates, noise };
            let by = |projection| moments.density_by(projection).unwrap().covariance;
            for projection in [Projection::Floor, Projection::Nearest, Projection::Shrink] {
                assert!(Cholesky::new(by(projection)).is_some(), "{projection}");
            }
            let error = |projection| (by(projection) - DMatrix::from_diagonal_element(5, 5, 0.1)).norm();
            assert!(error(Projection::Nearest) <= error(Projection::Raw));
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for projection in Projection::ALL {
            assert_eq!(projection.to_string().parse(), Ok(projection));
        }
        let error = "ceiling".parse::<Projection>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "found \"ceiling\", expected \"floor\", \"nearest\", \"shrink\" or \"raw\""
        );
    }
}
