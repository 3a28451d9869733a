//! From a debiased estimate to a covariance: what happens to eigenvalues that noise made too small.
//!
//! Under noise of standard deviation τ an eigenvalue comes out as anything within a few τ of the truth, negative too.
//! With u its direction and τᵤ the noise of the variance uᵀΣ̂u, it is raised to max(·, τᵤ) by
//! [`Projection::Floor`]; [`Projection::Nearest`] raises only what is negative, to 0, which is the nearest positive
//! semi-definite matrix in the Frobenius norm (Higham 1988).
//!
//! [`Projection::Shrink`] first draws the matrix towards its diagonal D, Σ̂ → (1−α)Σ̂ + αD. Entries off the diagonal
//! have a known noise, σ̂ᵢⱼ = σᵢⱼ + ε, E ε² = ηᵢⱼ², so the expected squared error Σ (1−α)²ηᵢⱼ² + α²σᵢⱼ² is least at
//!
//! ```text
//! α = Σ ηᵢⱼ² / (Σ ηᵢⱼ² + Σ σᵢⱼ²) ≈ min(1, Σ ηᵢⱼ² / Σ σ̂ᵢⱼ²)        over i < j,
//! ```
//!
//! as E σ̂ᵢⱼ² = σᵢⱼ² + ηᵢⱼ²: the oracle of Ledoit & Wolf 2004, with a variance that is known instead of estimated. Where noise
//! dominates α is 1 and correlations are given up; as it falls α goes to 0.
//!
//! Which one is best for what, with figures: `docs/estimates.md`.

use super::debias::NoisyMoments;
use super::density::DensityError;
use super::quality::Quality;
use crate::moments::SecondMoment;
use nalgebra::{DMatrix, DVector, SymmetricEigen};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Iterations of the eigenvalue search allowed per dimension; a few are typical.
const ITERATIONS: usize = 100;

/// How a debiased estimate becomes a covariance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Projection {
    /// An eigenvalue below the noise of its direction is raised to that.
    #[default]
    Floor,
    /// The nearest positive semi-definite matrix: a negative eigenvalue is raised to 0, or rather to what rounding
    /// leaves of 0, so that it is a density's.
    Nearest,
    /// Entries off the diagonal are shrunk by the share of noise in them, then the floor is kept.
    Shrink,
    /// None: unbiased, and no covariance where eigenvalues are negative.
    Raw,
}

/// No projection is called so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("found {0:?}, expected \"floor\", \"nearest\", \"shrink\" or \"raw\"")]
pub struct UnknownProjection(String);

impl Projection {
    /// All of them, the default first.
    pub const ALL: [Self; 4] = [Self::Floor, Self::Nearest, Self::Shrink, Self::Raw];

    /// Its name in pipeline files and on the command line.
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
    type Err = UnknownProjection;

    fn from_str(text: &str) -> Result<Self, UnknownProjection> {
        let named = Self::ALL.into_iter().find(|projection| projection.name() == text);
        named.ok_or_else(|| UnknownProjection(text.into()))
    }
}

impl NoisyMoments<'_> {
    /// The projected covariance, and how the estimate before projection is judged.
    pub(super) fn project(
        &self,
        projection: Projection,
        mean: &DVector<f64>,
        covariance: DMatrix<f64>,
    ) -> Result<(DMatrix<f64>, Quality), DensityError> {
        let rounding = mean.len() as f64 * f64::EPSILON * (covariance.amax() + mean.norm_squared());
        let spectrum = self.spectrum(&covariance)?;
        let noise = self.noise_along(&spectrum, mean, rounding);
        let quality = self.judge(mean, &spectrum.values, &noise);
        let projected = match projection {
            Projection::Raw => covariance,
            Projection::Floor => spectrum.raise(covariance, &noise),
            Projection::Nearest => {
                let floors = DVector::from_element(mean.len(), 4.0 * rounding);
                spectrum.raise(covariance, &floors)
            }
            Projection::Shrink => {
                let shrunk = self.shrink(mean, covariance);
                let spectrum = self.spectrum(&shrunk)?;
                let noise = self.noise_along(&spectrum, mean, rounding);
                spectrum.raise(shrunk, &noise)
            }
        };
        Ok((projected, quality))
    }

    /// The covariance with its entries off the diagonal times 1 − α.
    fn shrink(&self, mean: &DVector<f64>, mut covariance: DMatrix<f64>) -> DMatrix<f64> {
        let noise = self.entry_noise(mean, &covariance);
        let off_diagonal = |matrix: &DMatrix<f64>| matrix.norm_squared() - matrix.diagonal().norm_squared();
        let (noise, found) = (off_diagonal(&noise), off_diagonal(&covariance));
        let kept = if found > noise { 1.0 - noise / found } else { 0.0 };
        let diagonal = covariance.diagonal();
        covariance *= kept;
        covariance.set_diagonal(&diagonal);
        covariance
    }

    /// Eigenvalues of a covariance, and eigenvectors unless they are the axes.
    fn spectrum(&self, covariance: &DMatrix<f64>) -> Result<Spectrum, DensityError> {
        if self.layout.second == SecondMoment::Diagonal {
            return Ok(Spectrum { values: covariance.diagonal(), directions: None });
        }
        let iterations = ITERATIONS * self.layout.dimension;
        SymmetricEigen::try_new(covariance.clone(), f64::EPSILON, iterations)
            .filter(|eigen| eigen.eigenvalues.iter().all(|value| value.is_finite()))
            .map(|eigen| Spectrum { values: eigen.eigenvalues, directions: Some(eigen.eigenvectors) })
            .ok_or(DensityError::Eigenvalues)
    }

    /// Standard deviation of the noise of the variance in each direction, at least what rounding leaves unknown.
    fn noise_along(&self, spectrum: &Spectrum, mean: &DVector<f64>, rounding: f64) -> DVector<f64> {
        let means = spectrum.directions.as_ref().map_or_else(|| mean.clone(), |u| u.tr_mul(mean));
        spectrum.values.zip_map(&means, |value, mean| {
            self.covariance_noise(value.max(0.0), (mean, mean), true).max(rounding)
        })
    }
}

/// Eigenvalues, and their directions unless these are the axes.
struct Spectrum {
    values: DVector<f64>,
    directions: Option<DMatrix<f64>>,
}

impl Spectrum {
    /// The matrix of this spectrum with eigenvalues raised to their floors: the same matrix if none is below.
    fn raise(&self, matrix: DMatrix<f64>, floors: &DVector<f64>) -> DMatrix<f64> {
        if self.values.iter().zip(floors).all(|(value, floor)| value >= floor) {
            return matrix;
        }
        let raised = DMatrix::from_diagonal(&self.values.zip_map(floors, f64::max));
        let raised = self.directions.as_ref().map_or_else(|| raised.clone(), |u| u * &raised * u.transpose());
        (&raised + raised.transpose()) / 2.0
    }
}
