//! A regression line, and intervals of its coefficients by the likelihood ratio of the normal
//! equations.
//!
//! At the true line θ, the residual r(θ) = ĉ − B̂θ = e − Eθ is Gaussian with mean 0 and the exactly
//! known covariance V(θ) (Anderson & Rubin 1949). The interval of a coefficient holds every value
//! for which
//!
//! ```text
//! min over the other coefficients of  r(θ)ᵀ V(θ)⁻¹ r(θ)  ≤  z²
//! ```
//!
//! For a slope without an intercept this is Fieller's interval, which is exact. In general the
//! minimum is at most about χ² with one degree of freedom, however weakly the columns determine the
//! line: the statistic does not divide by B̂. Where the columns may determine nothing, the interval
//! is unbounded. So its coverage also holds among the lines whose least eigenvalue happens to
//! exceed the noise. There θ̂ ± z standard errors misses up to one time in seven: B̂ is too large
//! by selection, and the standard errors, which divide by B̂, are too small.

use hushflow_mechanism::estimate::intervals::Interval;
use nalgebra::{Cholesky, DMatrix, DVector};

/// Iterations of the minimum, each with V at the last minimiser.
const ITERATIONS: u32 = 8;

/// Relative change of the minimum at which the iterations end.
const SETTLED: f64 = 1e-7;

/// Growth of a step towards the end of an interval.
const GROWTH: f64 = 1.6;

/// Beyond this many standard errors an interval counts as unbounded.
const FARTHEST: f64 = 1e4;

/// Steps of the search for an end, and its accuracy in standard errors.
const STEPS: u32 = 30;
const ACCURACY: f64 = 1e-5;

/// A line, in the units of the columns.
#[derive(Debug)]
pub(super) struct RegressionLine {
    /// Intercept and slopes.
    pub(super) coefficients: DVector<f64>,
    /// Standard deviations of their noise.
    pub(super) noise: DVector<f64>,
    /// The equations that determine their intervals; `None` if nothing is known.
    pub(super) equations: Option<NormalEquations>,
    /// z of each interval.
    pub(super) z: f64,
    /// z standard deviations of the sampling error of each coefficient.
    pub(super) sampling_error: DVector<f64>,
    /// κ per record.
    pub(super) ridge: f64,
    /// Variance of the residuals, which noise may make negative, and its noise.
    pub(super) residual: (f64, f64),
    /// The interval of the variance of the residuals, within the limits that follow from bounds.
    pub(super) residual_interval: Interval,
}

impl RegressionLine {
    /// The interval of the intercept (0) or a slope; unbounded if nothing is known.
    pub(super) fn interval(&self, index: usize) -> Interval {
        let Some(equations) = &self.equations else { return Interval::UNBOUNDED };
        let (value, noise) = (self.coefficients[index], self.noise[index]);
        let (below, above) = if noise > 0.0 { equations.ends(index, self.z) } else { (0.0, 0.0) };
        let end = |distance: f64| (distance * noise).hypot(self.sampling_error[index]);
        Interval { lower: value - end(below), upper: value + end(above) }
    }
}

/// The normal equations, in coordinates t of θ = centre + Σ directionₖ tₖ, whose unit is about a
/// standard error.
#[derive(Debug)]
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

    /// The t where the root of the statistic reaches z, by regula falsi (the Illinois variant).
    fn end(&self, k: usize, z: f64, sign: f64) -> f64 {
        let excess = |t: f64| self.statistic(k, sign * t).map_or(-z, |statistic| statistic.sqrt() - z);
        let (mut low, mut high) = ((0.0, -z), (z, excess(z)));
        while high.1 <= 0.0 {
            (low, high) = (high, (high.0 * GROWTH, excess(high.0 * GROWTH)));
            if high.0 > FARTHEST {
                return f64::INFINITY;
            }
        }
        let mut last_is_low = None;
        for _ in 0..STEPS {
            if high.0 - low.0 < ACCURACY {
                break;
            }
            let t = (low.0 * high.1 - high.0 * low.1) / (high.1 - low.1);
            let point = (t, excess(t));
            if point.1.abs() < ACCURACY {
                return t;
            }
            let is_low = point.1 < 0.0;
            if is_low {
                low = point
            } else {
                high = point
            }
            match (is_low, last_is_low == Some(is_low)) {
                (true, true) => high.1 /= 2.0,
                (false, true) => low.1 /= 2.0,
                _ => {}
            }
            last_is_low = Some(is_low);
        }
        high.0
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
            let distance = (target - &whitened * &solution).norm_squared();
            at = solution.insert_row(k, t);
            if statistic
                .replace(distance)
                .is_some_and(|last: f64| (last - distance).abs() <= SETTLED * distance)
            {
                break;
            }
        }
        statistic
    }
}
