//! Second moments by post-processing: `Σ A_ti x̂_i x̂_iᵀ` from noisy increments `x̂ = x + e`.
//!
//! # Derivation
//! With `Cov(e_i, e_j) = τ²Q_ij I`, `Q = C⁻¹C⁻ᵀ`, the error of row t is
//! `Σ_i A_ti (x_i e_iᵀ + e_i x_iᵀ + e_i e_iᵀ)`. The last term has mean `τ²(AQ)_t I`, where
//! `(AQ)_t = Σ_i A_ti Q_ii`: the bias, which debiasing subtracts. The rest has mean 0, and by
//! Isserlis' theorem
//!
//! ```text
//! E‖zzᵀ‑terms‖²   = d(d+1) τ⁴ Σ_ij (AᵀA)_ij Q_ij²        (diagonal only: 2d)
//! E‖xzᵀ‑terms‖²   = 2(d+1) τ² Σ_ij (AᵀA)_ij Q_ij ⟨x_i,x_j⟩   (diagonal only: 4)
//! bias²           = d τ⁴ Σ_t (AQ)_t²
//! ```
//!
//! This is Lemma 3.8, its special case Corollary 3.9 (C = I), and Lemmas 4.4 and C.4 for the
//! diagonal, for any ζ. (The paper's factors ζ² belong to its noise multiplier alone; Q is
//! `(CᵀC)⁻¹`, not `(CCᵀ)⁻¹`; and the bias for C = I is the norm of the vector of *row sums* of A.)
//!
//! # The worst data
//! The middle sum is a quadratic form of `M = AᵀA∘Q` in the records. Lemma C.1 bounds its largest
//! value over `‖x_i‖ ≤ ζ` by `ζ²Σ|M_ij|` from above. Equal records give the lower bound
//! `ζ²Σ M_ij = ζ²‖AC⁻¹‖²_F`. Where Q has negative entries, equal records are nearly the best data,
//! because their noise cancels. So two more data sets are tried: alternating signs, and random
//! signs. The mean over random signs is `ζ² tr M`, so some signs reach at least this value. The
//! lower and the upper bound meet where no entry of M is negative.
//!
//! # JME or post-processing: Table 2 of the paper
//! Second moments with their own noise have an error of `Jσ²`. Squares of noisy first moments have
//! `Lσ² + Qσ⁴` when debiased, where L depends on the data. So JME is better from the noise
//! multiplier `√((J − L)/Q)` on, and always where J ≤ L, as for d = 1. For the identity and records
//! replaced in place, in units of `‖A‖²ζ⁴`,
//!
//! ```text
//! J = 8d²     L = 8(d+1)     Q = 16d(d+1)        better from below 1/√2 on
//! J = 4d(d+1), where the triangle of a symmetric matrix is released        from below ½ on
//! ```
//!
//! The crossings lie below these multipliers, and approach them as d grows. In noise deviations of
//! first moments, in units of ζ, the limits are √2 and 1.

use super::SecondEntries;
use super::increments::{Gram, IncrementCovariance};
use crate::strategy::{MatrixError, Strategy};
use crate::workload::Workload;

/// A number known between two bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Lower bound.
    pub lower: f64,
    /// Upper bound.
    pub upper: f64,
}

impl Bounds {
    /// Applies an increasing function to both bounds.
    pub fn map(self, f: impl Fn(f64) -> f64) -> Self {
        Self { lower: f(self.lower), upper: f(self.upper) }
    }
}

/// Expected squared error of squares of noisy numbers, summed over steps and entries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SquaredNoiseError {
    /// The part that debiasing removes.
    pub bias: f64,
    /// The part of the squared noise.
    pub quadratic: f64,
    /// The part of the noise times the data, for the worst data.
    pub linear: Bounds,
}

impl SquaredNoiseError {
    /// Returns the error with the bias subtracted, for the worst data.
    pub fn debiased(self) -> Bounds {
        self.linear.map(|linear| linear + self.quadratic)
    }

    /// Returns the error without debiasing, for the worst data.
    pub fn biased(self) -> Bounds {
        self.debiased().map(|error| error + self.bias)
    }
}

/// The sums over steps that the head of the module defines, for noise deviation 1 and records of
/// norm 1.
pub struct PostProcessing {
    gram: Gram,
    covariance: IncrementCovariance,
    /// `Σ_t (AQ)_t²`.
    bias: f64,
    /// `Σ (AᵀA)_ij Q_ij²`.
    quadratic: f64,
    /// `Σ M_ij`, for equal records.
    constant: f64,
    /// `Σ ±M_ij`, for alternating signs.
    alternating: f64,
    /// `tr M`, for random signs.
    independent: f64,
    /// `Σ |M_ij|`.
    absolute: f64,
}

impl PostProcessing {
    /// Computes the sums for a workload of second moments and the strategy through which first
    /// moments were released.
    ///
    /// | strategy | operations | maximum number of steps |
    /// |---|---|---|
    /// | the identity | `steps` | |
    /// | a Toeplitz matrix, with scaled columns or not | `steps²` | 2¹⁴ |
    /// | any other | `steps³` | 2¹¹ |
    ///
    /// With the workload `window-mean`, or a table that is not a Toeplitz matrix, every strategy
    /// has at most 2¹¹ steps.
    ///
    /// ```
    /// use hushflow_mechanism::error::{PostProcessing, SecondEntries};
    /// use hushflow_mechanism::strategy::build;
    /// use hushflow_mechanism::workload::Workload;
    ///
    /// // Corollary 3.9: d = 3, noise deviation 2, prefix sums of 10 epochs, whose ‖A‖² is 55.
    /// let strategy = build("identity", &Workload::Prefix, None)?;
    /// let post_processing = PostProcessing::new(&Workload::Prefix, strategy.as_ref(), 10)?;
    /// let error = post_processing.error(SecondEntries::Symmetric, 3, 1.0, 2.0);
    /// assert_eq!(error.debiased().upper, (3.0 * 4.0 * 16.0 + 2.0 * 4.0 * 4.0) * 55.0);
    /// assert_eq!(error.bias, 3.0 * 16.0 * 385.0); // 1² + 2² + … + 10²
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`MatrixError`] if the strategy or the workload is not defined for this many steps, or is
    /// too large for a matrix.
    pub fn new(workload: &Workload, strategy: &dyn Strategy, steps: u64) -> Result<Self, MatrixError> {
        let steps = usize::try_from(steps).map_err(|_| MatrixError::Columns { found: usize::MAX })?;
        // Runs first because it refuses too many steps before it allocates anything.
        let covariance = IncrementCovariance::new(strategy, steps)?;
        let gram = Gram::new(workload, steps)?;
        let bias = squared_row_sums(workload, &covariance.diagonal(0));
        let zero = [0.0; 5];
        let [quadratic, constant, alternating, independent, absolute] =
            (0..=covariance.reach()).fold(zero, |mut sums, lag| {
                let weight = if lag == 0 { 1.0 } else { 2.0 };
                let sign = if lag % 2 == 0 { weight } else { -weight };
                let random = if lag == 0 { 1.0 } else { 0.0 };
                for (g, q) in gram.diagonal(lag).iter().zip(covariance.diagonal(lag)) {
                    let product = g * q;
                    let terms = [
                        weight * product * q,
                        weight * product,
                        sign * product,
                        random * product,
                        weight * product.abs(),
                    ];
                    sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
                }
                sums
            });
        Ok(Self { gram, covariance, bias, quadratic, constant, alternating, independent, absolute })
    }

    /// Returns the error for a dimension d, clip norm ζ and noise deviation τ of the first moments.
    pub fn error(
        &self,
        entries: SecondEntries,
        dimension: usize,
        clip_norm: f64,
        noise_deviation: f64,
    ) -> SquaredNoiseError {
        let variance = noise_deviation * noise_deviation;
        let linear = entries.linear(dimension) * variance * clip_norm * clip_norm;
        let least = self.constant.max(self.alternating).max(self.independent);
        SquaredNoiseError {
            bias: dimension as f64 * variance * variance * self.bias,
            quadratic: entries.quadratic(dimension) * variance * variance * self.quadratic,
            linear: Bounds { lower: least, upper: self.absolute }.map(|sum| linear * sum),
        }
    }

    /// Returns `Σ ±M_ij` for records of norm 1 that change their sign at every step.
    pub fn alternating_records(&self) -> f64 {
        self.alternating
    }

    /// Returns `Σ M_ij⟨x_i,x_j⟩` for any records, given by their inner products, steps from 0.
    pub fn of_records(&self, inner_product: impl Fn(usize, usize) -> f64) -> f64 {
        let of_lag = |lag: usize| {
            let weight = if lag == 0 { 1.0 } else { 2.0 };
            let (gram, covariance) = (self.gram.diagonal(lag), self.covariance.diagonal(lag));
            let terms = gram.iter().zip(covariance).enumerate();
            terms.map(|(i, (g, q))| weight * g * q * inner_product(i, i + lag)).sum::<f64>()
        };
        (0..=self.covariance.reach()).map(of_lag).sum()
    }

    /// Returns the linear part of an [`error`](Self::error), for a sum such as that of
    /// [`of_records`](Self::of_records).
    pub fn linear(entries: SecondEntries, dimension: usize, noise_deviation: f64, sum: f64) -> f64 {
        entries.linear(dimension) * noise_deviation * noise_deviation * sum
    }
}

/// Returns `Σ_t (A v)_t²`; NaN where the workload ends earlier.
fn squared_row_sums(workload: &Workload, vector: &[f64]) -> f64 {
    let mut state = workload.state(1);
    vector.iter().map(|&value| state.push(&[value]).map_or(f64::NAN, |row| row[0] * row[0])).sum()
}

/// The second moments with the smaller expected squared error for the worst data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Second moments with their own noise.
    Joint,
    /// Second moments squared from noisy first moments.
    PostProcessing,
    /// The bounds do not decide.
    Undecided,
}

/// Errors of both methods at one noise multiplier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MethodComparison {
    /// Error of second moments with their own noise.
    pub joint: f64,
    /// Error of second moments squared from noisy first moments.
    pub post_processing: SquaredNoiseError,
}

impl MethodComparison {
    /// Returns the better method, with debiased post-processing.
    pub fn better(&self) -> Better {
        let Bounds { lower, upper } = self.post_processing.debiased();
        if self.joint <= lower {
            Better::Joint
        } else if self.joint >= upper {
            Better::PostProcessing
        } else {
            Better::Undecided
        }
    }

    /// Returns the noise multiplier from which on JME is better, in units of the multiplier of
    /// these errors; 0 if JME is always better.
    pub fn crossing(&self) -> Bounds {
        let SquaredNoiseError { quadratic, linear, .. } = self.post_processing;
        let crossover = |linear: f64| ((self.joint - linear).max(0.0) / quadratic).sqrt();
        Bounds { lower: crossover(linear.upper), upper: crossover(linear.lower) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ExpectedError, InPlaceRelease, PostProcessing, SecondEntries};
    use super::*;
    use crate::reference::{self, close};
    use crate::strategy::build;
    use crate::workload::Workload;
    use nalgebra::DMatrix;
    use proptest::prelude::*;

    #[test]
    fn errors_agree_with_the_reference() {
        for case in reference::second_moment_cases() {
            let sums = PostProcessing::new(&case.workload, case.strategy.as_ref(), case.steps).unwrap();
            let deviation = case.expected(&["pp", "noise_std"]);
            let records = case.records();
            let of_records =
                sums.of_records(|i, j| records[i].iter().zip(&records[j]).map(|(a, b)| a * b).sum());
            for (entries, prefix) in [(SecondEntries::Symmetric, ""), (SecondEntries::Diagonal, "diag_")] {
                let error = sums.error(entries, case.dimension, case.clip_norm, deviation);
                let linear = |sum: f64| PostProcessing::linear(entries, case.dimension, deviation, sum);
                let check = |name: &str, found: f64| {
                    let name = format!("{prefix}{name}");
                    close(&name, found, case.expected(&["pp", &name]), 1e-9);
                };
                check("bias_term", error.bias);
                check("quadratic_term", error.quadratic);
                check("linear_lower", linear(sums.constant * case.clip_norm.powi(2)));
                check("linear_upper", error.linear.upper);
                check("total_for_x", linear(of_records) + error.quadratic + error.bias);
                check("total_for_x_debiased", linear(of_records) + error.quadratic);
            }
        }
    }

    fn sums(workload: &str, strategy: &str, steps: u64) -> (Workload, PostProcessing) {
        let workload: Workload = workload.parse().unwrap();
        let strategy = build(strategy, &workload, Some(steps)).unwrap();
        let sums = PostProcessing::new(&workload, strategy.as_ref(), steps).unwrap();
        (workload, sums)
    }

    /// Corollary 3.9, with row sums in the bias: n for the average, where column sums would give 2n
    /// − H_n.
    #[test]
    fn the_identity_needs_no_matrices() {
        let (_, average) = sums("average", "identity", 1000);
        let harmonic: f64 = (1..=1000).map(|k| 1.0 / f64::from(k)).sum();
        close("bias", average.bias, 1000.0, 1e-12);
        for sum in
            [average.quadratic, average.constant, average.alternating, average.independent, average.absolute]
        {
            close("sum", sum, harmonic, 1e-12);
        }
        let (_, long) = sums("prefix", "identity", 1_000_000);
        close("a million steps", long.quadratic, 1e6 * (1e6 + 1.0) / 2.0, 1e-12);
    }

    #[test]
    fn bounds_meet_where_nothing_is_negative_and_are_near_elsewhere() {
        for workload in ["prefix", "average", "adam:0.9"] {
            let (_, sums) = sums(workload, "identity", 50);
            let error = sums.error(SecondEntries::Symmetric, 4, 1.0, 1.0);
            close(workload, error.linear.lower, error.linear.upper, 1e-12);
        }
        let (_, root) = sums("prefix", "square-root", 1000);
        let error = root.error(SecondEntries::Symmetric, 4, 1.0, 1.0);
        assert!(error.linear.lower > 0.7 * error.linear.upper, "{error:?}");
        assert!(root.constant < 0.01 * root.absolute, "the bound of Lemma C.1 alone is far");
    }

    proptest! {
        /// No records of norm 1 exceed the bounds, for strategies of every form.
        #[test]
        fn records_stay_below_the_upper_bound(
            angles in prop::collection::vec(0.0..std::f64::consts::TAU, 12),
            name in prop::sample::select(vec![
                "identity", "square-root", "normalized-square-root", "banded-inverse-square-root:2", "tree-optimal-decoder",
            ]),
        ) {
            let (workload, sums) = sums("prefix", name, 12);
            let found = sums.of_records(|i, j| (angles[i] - angles[j]).cos());
            prop_assert!(found <= sums.absolute * (1.0 + 1e-12) && found >= -1e-9 * sums.absolute);
            let strategy = build(name, &workload, Some(12)).unwrap();
            let inverse = strategy.matrix(12).unwrap().entries().try_inverse().unwrap();
            let (a, q) = (workload.matrix(12), &inverse * inverse.transpose());
            let form = (a.transpose() * a).component_mul(&q);
            let gram = DMatrix::from_fn(12, 12, |i, j| (angles[i] - angles[j]).cos());
            close(name, found, form.component_mul(&gram).sum(), 1e-9);
        }
    }

    fn compare(
        dimension: usize,
        noise_multiplier: f64,
        strategy: &str,
        entries: SecondEntries,
    ) -> MethodComparison {
        let (workload, steps) = (Workload::Prefix, 200);
        let strategy = build(strategy, &workload, Some(steps)).unwrap();
        let error = ExpectedError::new(&workload, strategy.as_ref(), steps).unwrap();
        let release =
            InPlaceRelease::new(dimension, 3.0, noise_multiplier).with_column_norm(error.sensitivity);
        MethodComparison {
            joint: release.joint().second_moment_error(entries, dimension, error.frobenius),
            post_processing: PostProcessing::new(&workload, strategy.as_ref(), steps).unwrap().error(
                entries,
                dimension,
                release.clip_norm,
                release.post_processed(),
            ),
        }
    }

    /// Checks the crossing derived at the head of the module.
    #[test]
    fn the_identity_crosses_where_the_theory_says() {
        for d in [3, 10, 1000] {
            let f = d as f64;
            let published = (2.0 * f * f - 2.0 * (f + 1.0)) / (f * (f + 1.0));
            let symmetric = 1.0 - 2.0 / f;
            for (entries, deviation) in
                [(SecondEntries::Independent, published), (SecondEntries::Symmetric, symmetric)]
            {
                let crossing = compare(d, 1.0, "identity", entries).crossing();
                close("crossing", crossing.lower, deviation.sqrt() / 2.0, 1e-9);
                close("crossing", crossing.upper, crossing.lower, 1e-9);
                let at = |factor: f64| compare(d, crossing.upper * factor, "identity", entries).better();
                assert_eq!((at(0.999), at(1.001)), (Better::PostProcessing, Better::Joint));
            }
        }
    }

    #[test]
    fn one_dimension_is_always_better_with_its_own_noise() {
        for strategy in ["identity", "square-root"] {
            for noise_multiplier in [1e-4, 0.1, 1.0, 100.0] {
                let found = compare(1, noise_multiplier, strategy, SecondEntries::Symmetric);
                assert_eq!((found.better(), found.crossing().upper), (Better::Joint, 0.0));
            }
        }
    }

    #[test]
    fn between_the_crossings_data_decide() {
        let crossing = compare(1000, 1.0, "square-root", SecondEntries::Symmetric).crossing();
        assert!(0.0 < crossing.lower && crossing.lower < crossing.upper);
        let at = |noise_multiplier| {
            compare(1000, noise_multiplier, "square-root", SecondEntries::Symmetric).better()
        };
        assert_eq!(at(crossing.lower * 0.99), Better::PostProcessing);
        assert_eq!(at((crossing.lower * crossing.upper).sqrt()), Better::Undecided);
        assert_eq!(at(crossing.upper * 1.01), Better::Joint);
    }
}
