//! Expected errors, computed without data.
//!
//! | file | error of | source |
//! |---|---|---|
//! | [`expected`] | a workload under a strategy, one coordinate, noise multiplier 1 | |
//! | [`additive`] | moments with own noise: JME, IME, CS | Theorem 3.3, Algorithms 1, 3, 4, 5 |
//! | [`post_processing`] | squared noisy first moments: PP, and from which noise on JME is better | Lemmas 3.8, 4.4, C.1, C.4, Cor. 3.9, Table 2 |
//! | [`covariance`] | covariances from the moments of either kind | Theorems 4.1, 4.2 |
//!
//! The source is "Continual Release Moment Estimation with Differential Privacy" (Kalinin, Upadhyay
//! & Lampert 2025), with corrections: the formulas here hold for every clip norm ζ, workload A and
//! strategy C.
//!
//! # Setting
//! There is one record x_t, `‖x_t‖ ≤ ζ`, in each of n epochs. The targets are `A X` and `A(X•X)`,
//! whose row t is `Σ_i A_ti x_i x_iᵀ` or its diagonal. An error is the expected squared distance of
//! all n of them together, over all entries (`d`, `d²` or d of them), in real units: ζ² for first,
//! ζ⁴ for second moments.
//!
//! # Two numbers called σ
//! The paper writes σ for both
//!
//! - the **noise multiplier**: noise divided by sensitivity, which (ε, δ) determines; in Theorem
//!   3.3 and eq. (9);
//! - the **noise deviation** divided by `‖C‖`, for ζ = 1: the noise that is added to an entry of
//!   `C X`, sensitivity included; in Lemma 3.8, eqs. (10), (13), (14), Theorems 4.1 and 4.2, and in
//!   all comparisons.
//!
//! A noise deviation τ is `2ζσ‖C‖` for the noise multiplier σ, where `‖C‖` is the largest column
//! norm of C: at ζ = 1 and C = I, twice the noise multiplier. Here arguments are called
//! `noise_multiplier` or `noise_deviation`, and no formula takes both.

pub mod additive;
pub mod covariance;
pub mod expected;
mod increments;
pub mod post_processing;
#[cfg(test)]
pub(crate) mod reference;

pub use additive::{InPlaceRelease, NoiseDeviations, SecondEntries};
pub use expected::ExpectedError;
pub use post_processing::{Better, Bounds, MethodComparison, PostProcessing, SquaredNoiseError};
