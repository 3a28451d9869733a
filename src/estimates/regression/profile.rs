//! Intervals of coefficients by the likelihood ratio of the normal equations.
//!
//! At the true line θ, the residual r(θ) = ĉ − B̂θ = e − Eθ is Gaussian with mean 0 and the exactly
//! known covariance V(θ) (Anderson & Rubin 1949). The interval of a coefficient holds every value for which
//!
//! ```text
//! min over the other coefficients of  r(θ)ᵀ V(θ)⁻¹ r(θ)  ≤  z²
//! ```
//!
//! For a slope without an intercept this is Fieller's interval, which is exact. In general the minimum
//! is at most about χ² with one degree of freedom, however weakly the columns determine the line: the
//! statistic does not divide by B̂. Where the columns may determine nothing, the interval is unbounded. So it
//! also holds among the lines whose least eigenvalue happens to exceed the noise, where
//! θ̂ ± z standard errors misses up to one time in seven: there B̂ is too large by selection, and
//! the standard errors, which divide by it, are too small.

use nalgebra::{Cholesky, DMatrix, DVector};

/// Iterations of the minimum, each with V at the last minimiser.
const ITERATIONS: u32 = 6;

/// Growth of a step towards the end of an interval.
const GROWTH: f64 = 1.5;

/// Beyond this many standard errors an interval counts as unbounded.
const FARTHEST: f64 = 1e4;

/// Halvings of the last step.
const HALVINGS: u32 = 24;

/// The normal equations, in coordinates t of θ = centre + Σ directionₖ tₖ, whose unit is about a
/// standard error.
pub(super) struct NormalEquations {
    /// B̂ times each direction, one per column.
    pub(super) slopes: DMatrix<f64>,
    /// The directions, one per column.
    pub(super) directions: DMatrix<f64>,
    /// θ̂.
    pub(super) centre: DVector<f64>,
    /// ĉ − B̂θ̂.
    pub(super) residual: DVector<f64>,
    /// Noise variances of B̂.
    pub(super) levels: DMatrix<f64>,
    /// Noise variances of ĉ.
    pub(super) product_levels: DVector<f64>,
}

/// Returns the covariance V of e − Eθ.
pub(super) fn residual_noise(
    levels: &DMatrix<f64>,
    product_levels: &DVector<f64>,
    theta: &DVector<f64>,
) -> DMatrix<f64> {
    let mut noise = levels.component_mul(&(theta * theta.transpose()));
    noise.set_diagonal(&(product_levels + levels * theta.component_mul(theta)));
    noise
}

impl NormalEquations {
    /// Returns the ends of the interval of coordinate k below and above 0; infinite if there is
    /// none.
    pub(super) fn ends(&self, k: usize, z: f64) -> (f64, f64) {
        (-self.end(k, z, -1.0), self.end(k, z, 1.0))
    }

    fn end(&self, k: usize, z: f64, sign: f64) -> f64 {
        let within = |t: f64| self.statistic(k, sign * t).is_none_or(|statistic| statistic <= z * z);
        let (mut low, mut high) = (0.0, z / 2.0);
        while within(high) {
            (low, high) = (high, high * GROWTH);
            if high > FARTHEST {
                return f64::INFINITY;
            }
        }
        for _ in 0..HALVINGS {
            let middle = (low + high) / 2.0;
            if within(middle) { low = middle } else { high = middle }
        }
        high
    }

    /// The least rᵀV⁻¹r with coordinate k at t; `None` if V is singular.
    fn statistic(&self, k: usize, t: f64) -> Option<f64> {
        let size = self.centre.len();
        let others = self.slopes.clone().remove_column(k);
        let fixed = &self.residual - self.slopes.column(k) * t;
        let mut at = DVector::zeros(size);
        at[k] = t;
        let mut statistic = None;
        for _ in 0..ITERATIONS {
            let theta = &self.centre + &self.directions * &at;
            let noise = residual_noise(&self.levels, &self.product_levels, &theta);
            let noise = Cholesky::new(noise)?;
            let whitened = noise.l().solve_lower_triangular(&others)?;
            let target = noise.l().solve_lower_triangular(&fixed)?;
            let solution = Cholesky::new(whitened.tr_mul(&whitened))?.solve(&whitened.tr_mul(&target));
            statistic = Some((target - &whitened * &solution).norm_squared());
            at = solution.insert_row(k, t);
        }
        statistic
    }
}
