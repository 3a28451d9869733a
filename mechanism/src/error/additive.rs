//! Moments that are released with their own noise: JME, IME and CS.
//!
//! With noise of deviation τ on every entry of `C X`, `A C⁻¹` times the noise is the error of
//! `A X`. Its expected square is `τ²‖AC⁻¹‖²_F` for each of the d coordinates (Theorem 3.3). The
//! same holds for second moments through C₂, with the factor [`SecondEntries::variances`] instead
//! of d.
//!
//! [`InPlaceRelease`] has the noise deviations of the paper's methods in the paper's setting: no
//! count, a record replaced in place, continuous noise. A running release has the noise deviations
//! of its mechanism. [`NoiseDeviations`] holds either.
//!
//! # Covariances
//! Errors of covariances follow Theorems 4.1 and 4.2.
//!
//! Row t of the workload, divided by its sum, weights the records by a_1, a_2, …, which add up
//! to 1. The records have mean μ and covariance `Σ = Σ_i a_i x_i x_iᵀ − μμᵀ`.
//!
//! ## JME
//! `Ŝ − μ̂μ̂ᵀ` has the noise of Ŝ, `μzᵀ + zμᵀ` and zzᵀ, where z is the noise of μ̂. Its variance is
//! `v = τ₁²r²` in every coordinate, where r is the norm of row t of AC⁻¹ divided by the sum of row
//! t of A. Debiasing adds vI. The worst case is `‖μ‖ = ζ`, which equal records reach at all steps
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
//! ## Post-processing
//! With C = I and increments x + e the error of the same covariance is the sum of
//! `Σ a_i(x_i − μ)e_iᵀ`, its transpose, and `EᵀPE` for `P = diag(a) − aaᵀ`. For running averages
//! the last term has mean `τ²(1 − 1/t)I`, and
//!
//! ```text
//! quadratic   d(d+1) τ⁴ (H_1 − H_2)      H_m = Σ_(t ≤ n) t^−m
//! linear      2(d+1) τ² Σ_t t⁻²Σ_i‖x_i − μ_t‖²,
//!             between 2(d+1) τ²ζ²(H_1 − H_3) and 2(d+1) τ²ζ²H_1 for the worst data
//! bias        d τ⁴ (n − 2H_1 + H_2)
//! ```

use super::post_processing::{Bounds, SquaredNoiseError};
use crate::sensitivity::{free_second_weight, largest_second_weight, replace_one_factor};

/// The entries of the second moments over which an error is summed, for dimension d.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondEntries {
    /// All d², each with its own noise: Algorithm 1 as published.
    Independent,
    /// All d² of a symmetric matrix, whose upper triangle is released with half the variance off
    /// the diagonal: as implemented.
    Symmetric,
    /// The d of the diagonal.
    Diagonal,
}

impl SecondEntries {
    /// Returns the sum of the variances of the entries with noise, in units of that of a diagonal
    /// entry.
    pub fn variances(self, dimension: usize) -> f64 {
        let d = dimension as f64;
        match self {
            Self::Independent => d * d,
            Self::Symmetric => d * (d + 1.0) / 2.0,
            Self::Diagonal => d,
        }
    }

    /// Returns the expected `‖μzᵀ + zμᵀ‖²` for standard normal z and a unit vector μ.
    pub(super) fn linear(self, dimension: usize) -> f64 {
        if self == Self::Diagonal { 4.0 } else { 2.0 * (dimension as f64 + 1.0) }
    }

    /// Returns the expected `‖zzᵀ − I‖²` for standard normal z.
    pub(super) fn quadratic(self, dimension: usize) -> f64 {
        let d = dimension as f64;
        if self == Self::Diagonal { 2.0 * d } else { d * (d + 1.0) }
    }
}

/// Standard deviations of the noise on an entry of `C₁X` and on a diagonal entry of `C₂(X•X)`, in
/// real units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoiseDeviations {
    /// τ₁, in the unit of the records.
    pub first: f64,
    /// τ₂, in the square of that unit.
    pub second: f64,
}

impl NoiseDeviations {
    /// Returns the error of all first moments: `dτ₁²‖A₁C₁⁻¹‖²_F`.
    pub fn first_moment_error(self, dimension: usize, decoder_frobenius: f64) -> f64 {
        dimension as f64 * (self.first * decoder_frobenius).powi(2)
    }

    /// Returns the error of all second moments: `τ₂²‖A₂C₂⁻¹‖²_F` times
    /// [`SecondEntries::variances`].
    pub fn second_moment_error(
        self,
        entries: SecondEntries,
        dimension: usize,
        decoder_frobenius: f64,
    ) -> f64 {
        entries.variances(dimension) * (self.second * decoder_frobenius).powi(2)
    }
}

/// A release of first and second moments whose records are replaced in place, by any method.
///
/// ```
/// use hushflow_mechanism::error::{InPlaceRelease, SecondEntries};
///
/// // Theorem 3.3 for d = 3, ζ = 2, C = I, and an A with ‖A‖_F = 10.
/// let release = InPlaceRelease::new(3, 2.0, 0.5);
/// let noise = release.joint();
/// assert_eq!(noise.first_moment_error(3, 10.0), 3.0 * (2.0 * 2.0 * 0.5 * 10.0f64).powi(2));
/// let second = noise.second_moment_error(SecondEntries::Independent, 3, 10.0);
/// assert!((second / (2.0 * 4.0 * 2f64.sqrt() * 3.0 * 0.5 * 10.0).powi(2) - 1.0).abs() < 1e-15);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InPlaceRelease {
    /// Dimension d, at least 1.
    pub dimension: usize,
    /// Clip norm ζ, above 0.
    pub clip_norm: f64,
    /// Noise multiplier σ: noise deviation divided by sensitivity.
    pub noise_multiplier: f64,
    /// `‖C₁‖`: the largest norm of a column of the strategy of first moments.
    pub first_column_norm: f64,
    /// `‖C₂‖`: the largest norm of a column of the strategy of second moments.
    pub second_column_norm: f64,
}

impl InPlaceRelease {
    /// Builds a release with strategies whose columns have norm 1.
    pub fn new(dimension: usize, clip_norm: f64, noise_multiplier: f64) -> Self {
        Self { dimension, clip_norm, noise_multiplier, first_column_norm: 1.0, second_column_norm: 1.0 }
    }

    /// Returns the same release with one strategy for both moments, whose longest column has this
    /// norm.
    pub fn with_column_norm(self, norm: f64) -> Self {
        Self { first_column_norm: norm, second_column_norm: norm, ..self }
    }

    /// Returns λ* of Algorithm 1: the weight at which second moments are free.
    pub fn free_second_moment_weight(&self) -> f64 {
        let ratio = self.first_column_norm / (self.clip_norm * self.second_column_norm);
        free_second_weight(self.dimension) * ratio * ratio
    }

    /// Returns the noise of JME, Algorithm 1.
    pub fn joint(&self) -> NoiseDeviations {
        self.weighted_joint(self.free_second_moment_weight())
    }

    /// Returns the noise of λ-JME, Algorithm 3: `s = ζ‖C₁‖√r_d(λζ²‖C₂‖²/‖C₁‖²)`, noise σs and
    /// σs/√λ.
    pub fn weighted_joint(&self, second_moment_weight: f64) -> NoiseDeviations {
        let ratio = self.clip_norm * self.second_column_norm / self.first_column_norm;
        let factor = replace_one_factor(self.dimension, second_moment_weight * ratio * ratio);
        let first = self.noise_multiplier * self.clip_norm * self.first_column_norm * factor.sqrt();
        NoiseDeviations { first, second: first / second_moment_weight.sqrt() }
    }

    /// Returns the noise of λ-JME with the largest λ for which the noise of first moments is
    /// `first`, at least [`post_processed`](Self::post_processed). This is the point to compare
    /// with a method of the same error of first moments.
    pub fn joint_with_first_deviation(&self, first: f64) -> NoiseDeviations {
        let factor = (first / (self.noise_multiplier * self.clip_norm * self.first_column_norm)).powi(2);
        let ratio = self.first_column_norm / (self.clip_norm * self.second_column_norm);
        let weight = largest_second_weight(self.dimension, factor.max(4.0)) * ratio * ratio;
        NoiseDeviations { first, second: first / weight.sqrt() }
    }

    /// Returns the noise of α-IME, Algorithm 4, where the budget of Gaussian privacy is split as in
    /// its theorem: `α = μ₁²/μ²`. First moments have noise multiplier σ/√α and second moments
    /// σ/√(1−α). Sensitivities are `2ζ‖C₁‖` and `√2ζ²‖C₂‖`; for d = 1, where squares are between 0
    /// and ζ², `ζ²‖C₂‖`.
    pub fn independent(&self, first_moment_share: f64) -> NoiseDeviations {
        let distance = if self.dimension == 1 { 1.0 } else { 2_f64.sqrt() };
        let first = self.post_processed() / first_moment_share.sqrt();
        let sensitivity = distance * self.clip_norm.powi(2) * self.second_column_norm;
        NoiseDeviations {
            first,
            second: self.noise_multiplier * sensitivity / (1.0 - first_moment_share).sqrt(),
        }
    }

    /// Returns the noise of τ-CS, Algorithm 5: first moments and √τ times second moments in one
    /// vector, of norm at most `ζ√(1+τζ²)`, privatised as any vector of that norm. With its exact
    /// sensitivity it would be λ-JME.
    pub fn concatenated(&self, second_moment_weight: f64) -> NoiseDeviations {
        let second = second_moment_weight * (self.clip_norm * self.second_column_norm).powi(2);
        let first =
            2.0 * self.noise_multiplier * self.clip_norm * (self.first_column_norm.powi(2) + second).sqrt();
        NoiseDeviations { first, second: first / second_moment_weight.sqrt() }
    }

    /// Returns the noise deviation of the first moments alone, `2ζσ‖C₁‖`: the only noise of
    /// post-processing.
    pub fn post_processed(&self) -> f64 {
        2.0 * self.clip_norm * self.noise_multiplier * self.first_column_norm
    }
}

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
/// use hushflow_mechanism::error::{InPlaceRelease, SecondEntries, joint_covariance_error};
///
/// // Theorem 4.1 for d = 2, n = 2 and noise deviation 1.
/// let noise = InPlaceRelease::new(2, 1.0, 0.5).joint();
/// let rows = [1.0, 0.5_f64.sqrt()].into_iter();
/// let error = joint_covariance_error(SecondEntries::Independent, 2, 1.0, noise, rows);
/// assert!((error.debiased - ((2.0 * 4.0 + 6.0) * 1.5 + 6.0 * 1.25)).abs() < 1e-12);
/// ```
pub fn joint_covariance_error(
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
pub fn post_processed_covariance_error(
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
    use super::*;
    use crate::error::ExpectedError;
    use crate::reference;
    use crate::reference::{ReferenceCase, close};
    use proptest::prelude::*;

    #[test]
    fn errors_of_the_joint_mechanism_agree_with_the_reference() {
        for case in reference::second_moment_cases() {
            let error = ExpectedError::new(&case.workload, case.strategy.as_ref(), case.steps).unwrap();
            let release = InPlaceRelease::new(case.dimension, case.clip_norm, case.noise_multiplier)
                .with_column_norm(error.sensitivity);
            let noise = release.joint();
            let second = |entries| noise.second_moment_error(entries, case.dimension, error.frobenius);
            let check = |name: &str, found: f64| close(name, found, case.expected(&["jme", name]), 1e-9);
            check("lambda", release.free_second_moment_weight());
            check("sens", release.post_processed() / case.noise_multiplier);
            check("noise_std_1", noise.first);
            check("noise_std_2", noise.second);
            check("first_mse_total", noise.first_moment_error(case.dimension, error.frobenius));
            check("second_mse_total", second(SecondEntries::Independent));
            check("second_mse_total_symmetrised", second(SecondEntries::Symmetric));
            check("second_diag_mse_total", second(SecondEntries::Diagonal));
        }
    }

    /// Checks Theorems 3.6 and 3.7 for one setting: with the baseline's noise of first moments,
    /// λ-JME has less noise on the second.
    fn dominates(release: InPlaceRelease, baseline: NoiseDeviations) -> bool {
        let joint = release.joint_with_first_deviation(baseline.first);
        let weight = (joint.first / joint.second).powi(2);
        close("the inverse", release.weighted_joint(weight).first, baseline.first, 1e-9);
        joint.second < baseline.second
    }

    proptest! {
        #[test]
        fn weighted_joint_noise_dominates_both_baselines_over_their_whole_curves(
            dimension in 1_usize..5, clip_norm in 0.1..10.0, noise_multiplier in 0.1..10.0,
            column_norm in 1.0..4.0, share in 0.001..0.999, log_weight in -6.0..6.0,
        ) {
            let release = InPlaceRelease::new(dimension, clip_norm, noise_multiplier).with_column_norm(column_norm);
            prop_assert!(dominates(release, release.independent(share)));
            prop_assert!(dominates(release, release.concatenated(10_f64.powf(log_weight) / clip_norm.powi(2))));
        }
    }

    #[test]
    fn entries_count_variances() {
        let counts = |entries: SecondEntries| [1, 2, 10].map(|d| entries.variances(d));
        assert_eq!(counts(SecondEntries::Independent), [1.0, 4.0, 100.0]);
        assert_eq!(counts(SecondEntries::Symmetric), [1.0, 3.0, 55.0]);
        assert_eq!(counts(SecondEntries::Diagonal), [1.0, 2.0, 10.0]);
    }

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
    fn errors_agree_with_the_reference() {
        for case in reference::covariance_cases() {
            let (d, zeta, deviation) = (case.dimension, case.clip_norm, case.input("noise_std_total"));
            let noise = InPlaceRelease::new(d, zeta, deviation / (2.0 * zeta)).joint();
            let check = |name: &str, found: f64| close(name, found, case.expected(&[name]), 1e-10);
            for power in 1..=3 {
                check(&format!("H{power}"), harmonic(case.steps, power));
            }
            let (entries, rows) =
                (SecondEntries::Independent, || (1..=case.steps).map(|t| (t as f64).powf(-0.5)));
            let found = joint_covariance_error(entries, d, zeta, noise, rows());
            check("jme_debiased_sup", found.debiased);
            check("jme_biased_sup", found.debiased + found.bias);
            let squared = post_processed_covariance_error(entries, d, zeta, deviation, case.steps);
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
