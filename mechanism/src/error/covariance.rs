//! Errors of covariances: Theorems 4.1 and 4.2.
//!
//! Row t of the workload, divided by its sum, weights the records by a_1, a_2, …, which add up
//! to 1. They have mean μ and covariance `Σ = Σ_i a_i x_i x_iᵀ − μμᵀ`.
//!
//! # JME
//! `Ŝ − μ̂μ̂ᵀ` has the noise of Ŝ, `μzᵀ + zμᵀ` and zzᵀ, where z is the noise of μ̂, of variance
//! `v = τ₁²r²` in every coordinate. r is the norm of row t of AC⁻¹ divided by the sum of row t of
//! A. Debiasing adds vI. The worst case is `‖μ‖ = ζ`, which equal records reach at all steps
//! together. Hence
//!
//! ```text
//! E‖Σ̂ − Σ‖² = Σ_t (d² τ₂² r_t² + 2(d+1) τ₁² ζ² r_t² + d(d+1) τ₁⁴ r_t⁴)
//!              without debiasing d τ₁⁴ Σ r_t⁴ more
//! ```
//!
//! For running averages and C = I, `r_t² = 1/t`: Theorem 4.1. For entries other than all d² the
//! factors are different ([`SecondEntries`]).
//!
//! # Post-processing
//! With C = I and increments x + e the error of the same covariance is `Σ a_i(x_i − μ)e_iᵀ`, its
//! transpose, and `EᵀPE` for `P = diag(a) − aaᵀ`. For running averages the last term has mean
//! `τ²(1 − 1/t)I`, and
//!
//! ```text
//! quadratic   d(d+1) τ⁴ (H_1 − H_2)      H_m = Σ_(t ≤ n) t^−m
//! linear      2(d+1) τ² Σ_t t⁻²Σ_i‖x_i − μ_t‖²,
//!             between 2(d+1) τ²ζ²(H_1 − H_3) and 2(d+1) τ²ζ²H_1 for the worst data
//! bias        d τ⁴ (n − 2H_1 + H_2)
//! ```

use super::post_processing::{Bounds, SquaredNoiseError};
use super::{NoiseDeviations, SecondEntries};

/// Expected squared error of covariances, summed over steps and entries, for the worst data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JointCovarianceError {
    /// The error with debiasing.
    pub debiased: f64,
    /// The additional error without debiasing.
    pub bias: f64,
}

/// Returns the error of covariances from moments with their own noise, all through one strategy.
///
/// `relative_row_norms` are the row norms of AC⁻¹ divided by the row sums of A, step by step:
/// `1/√t` for averages and C = I.
///
/// ```
/// use hushflow_mechanism::error::{InPlaceRelease, SecondEntries, covariance};
///
/// // Theorem 4.1 for d = 2, n = 2 and noise deviation 1.
/// let noise = InPlaceRelease::new(2, 1.0, 0.5).joint();
/// let rows = [1.0, 0.5_f64.sqrt()].into_iter();
/// let error = covariance::joint(SecondEntries::Independent, 2, 1.0, noise, rows);
/// assert!((error.debiased - ((2.0 * 4.0 + 6.0) * 1.5 + 6.0 * 1.25)).abs() < 1e-12);
/// ```
pub fn joint(
    entries: SecondEntries,
    dimension: usize,
    clip_norm: f64,
    noise: NoiseDeviations,
    relative_row_norms: impl Iterator<Item = f64>,
) -> JointCovarianceError {
    let (squares, fourths) = relative_row_norms
        .map(|norm| norm * norm)
        .fold((0.0, 0.0), |sums, square| (sums.0 + square, sums.1 + square * square));
    let variance = noise.first * noise.first;
    let linear = entries.linear(dimension) * variance * clip_norm * clip_norm;
    let added = entries.variances(dimension) * noise.second * noise.second;
    let fourth = variance * variance * fourths;
    JointCovarianceError {
        debiased: (added + linear) * squares + entries.quadratic(dimension) * fourth,
        bias: dimension as f64 * fourth,
    }
}

/// Returns the error of running covariances of `steps` noisy increments x + e, of noise deviation
/// τ.
pub fn post_processed(
    entries: SecondEntries,
    dimension: usize,
    clip_norm: f64,
    noise_deviation: f64,
    steps: u64,
) -> SquaredNoiseError {
    let variance = noise_deviation * noise_deviation;
    let [first, second, third] = [1, 2, 3].map(|power| harmonic(steps, power));
    let linear = entries.linear(dimension) * variance * clip_norm * clip_norm;
    SquaredNoiseError {
        bias: dimension as f64 * variance * variance * (steps as f64 - 2.0 * first + second),
        quadratic: entries.quadratic(dimension) * variance * variance * (first - second),
        linear: Bounds { lower: linear * (first - third), upper: linear * first },
    }
}

/// Returns `H_(n,m) = Σ_(k ≤ n) k^−m`.
fn harmonic(steps: u64, power: i32) -> f64 {
    (1..=steps).rev().map(|k| (k as f64).powi(-power)).sum()
}

#[cfg(test)]
mod tests {
    use super::super::InPlaceRelease;
    use super::super::reference::{self, ReferenceCase, close};
    use super::*;

    /// Returns the sums over the steps of ‖μ_t‖²/t, and of the mean squared distance from μ_t
    /// divided by t.
    fn spreads(case: &ReferenceCase) -> (f64, f64) {
        let mut sum = vec![0.0; case.dimension];
        let (mut squares, mut spreads) = (0.0, (0.0, 0.0));
        for (record, t) in case.records().iter().zip(1..) {
            sum.iter_mut().zip(record).for_each(|(sum, x)| *sum += x);
            squares += record.iter().map(|x| x * x).sum::<f64>();
            let t = f64::from(t);
            let mean = sum.iter().map(|x| x * x).sum::<f64>() / (t * t);
            spreads = (spreads.0 + mean / t, spreads.1 + (squares / t - mean) / t);
        }
        spreads
    }

    #[test]
    fn reference_errors_are_met() {
        for case in reference::covariance_cases() {
            let (d, zeta, deviation) = (case.dimension, case.clip_norm, case.input("noise_std_total"));
            let noise = InPlaceRelease::new(d, zeta, deviation / (2.0 * zeta)).joint();
            let check = |name: &str, found: f64| close(name, found, case.expected(&[name]), 1e-10);
            for power in 1..=3 {
                check(&format!("H{power}"), harmonic(case.steps, power));
            }
            let (entries, rows) =
                (SecondEntries::Independent, || (1..=case.steps).map(|t| (t as f64).powf(-0.5)));
            let found = joint(entries, d, zeta, noise, rows());
            check("jme_debiased_sup", found.debiased);
            check("jme_biased_sup", found.debiased + found.bias);
            let squared = post_processed(entries, d, zeta, deviation, case.steps);
            check("pp_debiased_lower", squared.debiased().lower);
            check("pp_debiased_upper", squared.debiased().upper);
            let (means, distances) = spreads(&case);
            let linear = entries.linear(d) * deviation * deviation;
            let worst = linear * zeta * zeta * harmonic(case.steps, 1);
            check("jme_debiased_for_x", found.debiased - worst + linear * means);
            check("pp_debiased_for_x", squared.quadratic + linear * distances);
            check("pp_biased_for_x", squared.quadratic + linear * distances + squared.bias);
        }
    }
}
