//! Synthetic records drawn from a released density, in any number and at no privacy cost.
//!
//! x = m̂ + L n with Σ̂ = L Lᵀ and n standard normal, two at a time by the polar form of Box &
//! Muller 1958. This noise protects nothing; the density is already private.

use super::density::Density;
use nalgebra::{Cholesky, DMatrix, DVector};
use rand::Rng;
use std::f64::consts::TAU;

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
    use super::*;
    use chacha20::ChaCha8Rng;
    use rand::SeedableRng;

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
