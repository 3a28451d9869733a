//! Turns entries that were measured at once into a covariance by a chosen [`Projection`]:
//! post-processing of releases.
//!
//! The matrix is projected in units of z, scaled so that the noise of every variance is 1.
//! Measurements have independent noise of deviations δ_ij. So the noise of the variance along a
//! unit vector u has the variance `2Σ(u_i u_j δ_ij)² − Σ(u_i² δ_ii)²`.

use super::{CovarianceError, CovarianceEstimate, CovarianceMethod};
use hushflow_mechanism::estimate::projection::{Projection, Spectrum, shrunk};
use nalgebra::{DMatrix, DVector};

impl CovarianceMethod {
    /// Whether the method uses only entries that it measured at once, so that a projection can be
    /// chosen ([`CovarianceEstimate::projected`]).
    pub fn measures_at_once(self) -> bool {
        matches!(self, Self::Ssp | Self::SspTight | Self::Diagonal)
    }
}

impl CovarianceEstimate {
    /// Projects the same measurements again, for a method that
    /// [measures at once](CovarianceMethod::measures_at_once). Entries that were not measured are
    /// 0. These methods themselves use [`Projection::Nearest`].
    ///
    /// # Errors
    /// [`CovarianceError::Numerical`] if a variance was not measured or an eigendecomposition
    /// fails.
    pub fn projected(self, projection: Projection) -> Result<Self, CovarianceError> {
        let size = self.covariance.nrows();
        let (mut matrix, mut noise) = (DMatrix::zeros(size, size), DMatrix::zeros(size, size));
        for entry in &self.measurements {
            for position in [(entry.row, entry.column), (entry.column, entry.row)] {
                (matrix[position], noise[position]) = (entry.value, entry.deviation);
            }
        }
        if projection == Projection::Raw {
            return Ok(Self { covariance: matrix, ..self });
        }
        let units: DVector<f64> = noise.diagonal().map(f64::sqrt);
        if units.iter().any(|unit| !(unit.is_normal() && *unit > 0.0)) {
            return Err(CovarianceError::Numerical);
        }
        let scale = &units * units.transpose();
        let (scaled, noise) = (matrix.component_div(&scale), noise.component_div(&scale));
        let projected = project(projection, scaled, &noise).ok_or(CovarianceError::Numerical)?;
        Ok(Self { covariance: projected.component_mul(&scale), ..self })
    }
}

fn project(projection: Projection, matrix: DMatrix<f64>, noise: &DMatrix<f64>) -> Option<DMatrix<f64>> {
    let matrix = if projection == Projection::Shrink { shrunk(matrix, noise) } else { matrix };
    let spectrum = Spectrum::of(&matrix)?;
    let floors = match projection {
        Projection::Nearest => DVector::zeros(matrix.nrows()),
        _ => noise_along(noise, spectrum.directions.as_ref()?),
    };
    Some(spectrum.raise(matrix, &floors))
}

/// Standard deviation of the noise of the variance along each direction.
fn noise_along(noise: &DMatrix<f64>, directions: &DMatrix<f64>) -> DVector<f64> {
    let (all, squares) = (noise.map(|x| x * x), directions.map(|x| x * x));
    let along = |u: nalgebra::DVectorView<'_, f64>| {
        let own: f64 = u.iter().zip(all.diagonal().iter()).map(|(u, noise)| u * u * noise).sum();
        (2.0 * u.dot(&(&all * u)) - own).sqrt()
    };
    DVector::from_iterator(squares.ncols(), squares.column_iter().map(along))
}

#[cfg(test)]
mod tests {
    use super::super::{CovarianceBudget, CovarianceSample};
    use super::*;
    use chacha20::ChaCha20Rng;
    use hushflow_mechanism::accounting::Rho;
    use hushflow_mechanism::sensitivity::Neighbours;
    use rand::SeedableRng;

    fn estimate(method: CovarianceMethod, rho: f64, seed: u64) -> CovarianceEstimate {
        let records: Vec<f64> =
            (0..400).flat_map(|i| [f64::from(i % 20) / 10.0 - 1.0, f64::from(i % 20) / 2.5 - 4.0]).collect();
        let sample =
            CovarianceSample::new(&[(-1.0, 1.0), (-4.0, 4.0)], &records, Neighbours::ReplaceOneInPlace)
                .unwrap();
        let budget = CovarianceBudget::new(Rho::new(rho).unwrap());
        method.estimate(&sample, None, budget, &mut ChaCha20Rng::seed_from_u64(seed)).unwrap()
    }

    #[test]
    fn methods_use_the_nearest_projection() {
        for method in [CovarianceMethod::Ssp, CovarianceMethod::SspTight, CovarianceMethod::Diagonal] {
            for seed in 0..20 {
                let found = estimate(method, 1e-4, seed);
                let nearest = found.clone().projected(Projection::Nearest).unwrap();
                let off =
                    (&nearest.covariance - &found.covariance).norm() / found.covariance.norm().max(1e-9);
                assert!(off < 1e-9, "{method} {seed}: {off}");
                assert_eq!(nearest.measurements, found.measurements);
            }
        }
    }

    /// Checks in units of the variances' noise that no eigenvalue is below the noise of its
    /// direction, which is between 1 and √2.
    #[test]
    fn floors_are_the_noise_and_shrunk_entries_are_smaller() {
        for seed in 0..20 {
            let found = estimate(CovarianceMethod::Ssp, 1e-3, seed);
            let by = |projection| found.clone().projected(projection).unwrap().covariance;
            let units: Vec<f64> =
                found.measurements.iter().filter(|m| m.row == m.column).map(|m| m.deviation).collect();
            let least = |matrix: DMatrix<f64>| {
                let scaled = DMatrix::from_fn(2, 2, |i, j| matrix[(i, j)] / (units[i] * units[j]).sqrt());
                scaled.symmetric_eigenvalues().min()
            };
            assert!(
                least(by(Projection::Floor)) > 1.0 - 1e-9 && least(by(Projection::Shrink)) > 1.0 - 1e-9,
                "{seed}"
            );
            let raw = by(Projection::Raw);
            assert_eq!(raw[(0, 1)], found.measurements[1].value);
            if least(raw.clone()) > 2.0 {
                assert!(by(Projection::Shrink)[(0, 1)].abs() < raw[(0, 1)].abs(), "{seed}");
                let raised = (by(Projection::Floor) - &raw).norm() / raw.norm();
                assert!(raised < 1e-12, "{seed}: nothing to raise");
            }
        }
    }

    #[test]
    fn only_measured_variances_are_projected() {
        assert!(!CovarianceMethod::Separate.measures_at_once());
        assert_eq!(
            estimate(CovarianceMethod::Separate, 1.0, 1).projected(Projection::Floor),
            Err(CovarianceError::Numerical)
        );
    }
}
