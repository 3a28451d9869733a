//! Sensitivity of the squares of batches.
//!
//! Adam as usually written squares the *mean* of m clipped gradients. That query differs from the
//! mean of m squares. A batch of m ≥ 1 records of norm at most ζ = 1 contributes, per step, first
//! moments and ν-weighted second moments:
//!
//! ```text
//! query               first moments        second moments
//! SquareOfMean        x = (1/m) Σ_j g_j    x ∘ x  or  xxᵀ
//! SquareOfSum         x = Σ_j g_j          x ∘ x  or  xxᵀ
//! MeanOfSquares       (1/m) Σ_j g_j        (1/m) Σ_j g_j ∘ g_j  or  (1/m) Σ_j g_j g_jᵀ
//! ```
//!
//! One record g of the batch is replaced by another record h, or is blanked. The largest
//! `‖Δ first‖² + ν‖Δ second‖²` is
//!
//! ```text
//!                     replaced in place                  zero-out
//! SquareOfMean        (4/m²)(1 + 4ν(1 − 1/m)²)           (1 + ν(2 − 1/m)²)/m²
//! SquareOfSum         4(1 + 4ν(m − 1)²)                  1 + ν(2m − 1)²
//! MeanOfSquares       r_d(ν)/m²                          (1 + ν)/m²
//! ```
//!
//! The upper two in-place values hold for m ≥ 2. For m = 1 all queries are the same, with r_d(ν).
//! **The square of a mean is never free**: its cost on top of the first moments' 4/m² grows with ν
//! from 0 on. Squares of records stay free while ν ≤ ν*.
//!
//! *Proof* of `SquareOfMean`, in place. Let `x = u + g/m`, `y = u + h/m`, `‖u‖ ≤ c = (m−1)/m`. With
//! `e = x − y`, `s = x + y`, `‖xxᵀ − yyᵀ‖² = (‖s‖²‖e‖² + ⟨s,e⟩²)/2`, which also bounds the distance
//! of the diagonals. Let P = g − h have length p, and g + h = t₁P/p + t₂ with t₂ ⊥ P;
//! `‖P ± (g+h)‖ ≤ 2` gives `(p + |t₁|)² + ‖t₂‖² ≤ 4`. The objective is
//! `(p²/m²)[1 + (ν/2)(2s_∥² + ‖s_⊥‖²)]` with `s_∥ = 2u_∥ + t₁/m`, `‖s_⊥‖ ≤ 2‖u_⊥‖ + ‖t₂‖/m`. By
//! `(2a + b/m)² ≤ 8a² + 2b²/m²` it is at most `(p²/m²)[1 + ν((2c + |t₁|/m)² + ‖t₂‖²/m²)]`. At
//! `p = √(4 − t₂²) − |t₁|` this falls in |t₁|, because the slope of its logarithm is at most
//! `−2/p + 2/(2(m−1) + |t₁|) ≤ 0`. At t₁ = 0, with `w = 1 − t₂²/4`,
//! `(4w/m²)[1 + 4ν(c² + (1−w)/m²)]` is stationary only at `w = m²/(8ν) + ((m−1)² + 1)/2 ≥ 1`, so it
//! is largest at w = 1. That is the stated value, attained by u = c·e₁, g = e₁, h = −e₁. ∎
//!
//! Zero-out has e = g/m and s = 2u + g/m, all along one axis at best. A sum is m times the mean,
//! and its square m² times.
//!
//! # Through strategies, under participation
//! The factors of squared means and sums have the form `α + βν`, for every ν. So with V and Z as in
//! [`joint_participation_sensitivity`], one C gives `(α + βν)·V`, and C₁ ≠ C₂ give
//! `max_π α·Z₁ + βν·Z₂`. Equal changes at every step attain both where `X ≥ 0`. The records that
//! stay may be the worst possible. A record that moves to another batch is blanked twice: 4 times
//! zero-out. Means of squares are those of single records, divided by m².

use super::{
    ClaimKind, MomentStrategies, MomentWeights, Neighbours, OutOfRange, SensitivityBound, SensitivityClaim,
    at_least_one,
    joint_participation::{affine_of_strategies, joint_participation_sensitivity},
    joint_sensitivity_squared, not_negative, positive, rounded_up,
};
use crate::{participation::Participation, strategy::ColumnGeometry};

/// The quantity that is squared in a batch of m records. The first moments beside it have the same
/// divisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BatchQuery {
    /// The mean of the batch is squared.
    SquareOfMean,
    /// The sum of the batch is squared.
    SquareOfSum,
    /// The mean of the squares of single records is released.
    MeanOfSquares,
}

/// A query about batches of a given size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TrainingBatch {
    /// The quantity that is squared.
    pub query: BatchQuery,
    /// m ≥ 1, the number of records.
    pub size: usize,
}

/// Returns the squared joint sensitivity of first and ν-weighted second moments of one batch in
/// which one record is blanked or replaced: in units of ζ² when ν is λζ², rounded up. Replace-one
/// covers replacement within the batch and between two batches.
///
/// # Errors
/// [`OutOfRange`] for a batch or dimension of 0, or a negative weight.
///
/// ```
/// use hushflow_mechanism::sensitivity::{
///     BatchQuery, Neighbours, TrainingBatch, batch_sensitivity_squared,
/// };
///
/// let squared = |query| {
///     let batch = TrainingBatch { query, size: 16 };
///     batch_sensitivity_squared(batch, Neighbours::ReplaceOneInPlace, 3, 0.5)
/// };
/// assert!((squared(BatchQuery::MeanOfSquares)? - 4.0 / 256.0).abs() < 1e-12); // as without second moments
/// assert!(squared(BatchQuery::SquareOfMean)? > 2.7 * 4.0 / 256.0);
/// # Ok::<(), hushflow_mechanism::sensitivity::OutOfRange>(())
/// ```
pub fn batch_sensitivity_squared(
    batch: TrainingBatch,
    neighbours: Neighbours,
    dimension: usize,
    second_weight: f64,
) -> Result<f64, OutOfRange> {
    check(batch, dimension, second_weight)?;
    let squared = match batch.factors(neighbours) {
        Some([first, second]) => rounded_up(first + second * second_weight),
        None => {
            let identity = ColumnGeometry::exact(1.0, 0.0);
            let weights = MomentWeights { second: second_weight, count: 0.0 };
            batch.divided(joint_sensitivity_squared(neighbours, dimension, identity, weights)?)
        }
    };
    positive("squared sensitivity of a batch", squared)
}

/// Returns the squared joint sensitivity of batches through strategies, when one entity has a
/// record in the batches of several steps. Units as in [`batch_sensitivity_squared`].
///
/// # Errors
/// As [`batch_sensitivity_squared`], and for results beyond the range of f64.
pub fn batch_participation_sensitivity(
    batch: TrainingBatch,
    neighbours: Neighbours,
    dimension: usize,
    strategies: MomentStrategies<'_>,
    participation: Participation,
    second_weight: f64,
) -> Result<SensitivityClaim, OutOfRange> {
    check(batch, dimension, second_weight)?;
    let claim = match batch.factors(neighbours) {
        Some([first, second]) => {
            let claim =
                affine_of_strategies(neighbours, strategies, participation, first, second * second_weight)?;
            let moves = neighbours == Neighbours::ReplaceOne;
            SensitivityClaim {
                kind: if moves { ClaimKind::UpperBound(SensitivityBound::Triangle) } else { claim.kind },
                ..claim
            }
        }
        None => {
            let weights = MomentWeights { second: second_weight, count: 0.0 };
            let claim =
                joint_participation_sensitivity(neighbours, dimension, strategies, participation, weights)?;
            SensitivityClaim { squared: batch.divided(claim.squared), ..claim }
        }
    };
    positive("squared sensitivity of batches", claim.squared)?;
    Ok(claim)
}

impl TrainingBatch {
    /// Returns α and β of a factor `α + βν`; `None` where the squares are those of single records.
    fn factors(self, neighbours: Neighbours) -> Option<[f64; 2]> {
        let size = self.size as f64;
        let blanked = [1.0, (2.0 * size - 1.0).powi(2)];
        let sum_factors = match neighbours {
            Neighbours::ZeroOut => blanked,
            Neighbours::ReplaceOneInPlace => [4.0, 16.0 * (size - 1.0).powi(2)],
            Neighbours::ReplaceOne => blanked.map(|factor| 4.0 * factor),
        };
        match self.query {
            _ if self.size == 1 => None,
            BatchQuery::SquareOfSum => Some(sum_factors),
            BatchQuery::SquareOfMean => Some([sum_factors[0] / size.powi(2), sum_factors[1] / size.powi(4)]),
            BatchQuery::MeanOfSquares => None,
        }
    }

    /// Converts a squared sensitivity of sums over single records to that of this query.
    fn divided(self, squared: f64) -> f64 {
        let divided = self.query != BatchQuery::SquareOfSum;
        if divided { rounded_up(squared / (self.size as f64).powi(2)) } else { squared }
    }
}

fn check(batch: TrainingBatch, dimension: usize, second_weight: f64) -> Result<(), OutOfRange> {
    at_least_one("number of records of a batch", batch.size)?;
    at_least_one("dimension", dimension)?;
    not_negative("relative weight of second moments", second_weight)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use BatchQuery::{MeanOfSquares, SquareOfMean, SquareOfSum};
    use Neighbours::{ReplaceOne, ReplaceOneInPlace, ZeroOut};

    #[test]
    fn agrees_with_the_reference_values() {
        let cases = &crate::reference::cases(include_str!("../../../tests/vectors/jme_batch.json"));
        assert!(cases.len() > 30);
        for case in cases {
            let size = |name: &str| case["input"][name].as_u64().unwrap() as usize;
            let weight = case["input"]["nu"].as_f64().unwrap();
            let check = |query, neighbours, name: &str| {
                let batch = TrainingBatch { query, size: size("m") };
                let found = batch_sensitivity_squared(batch, neighbours, size("d"), weight).unwrap();
                let expected = case["expected"][name].as_f64().unwrap();
                assert!((found / expected - 1.0).abs() <= 2e-13, "{} {name}: {found}", case["id"]);
            };
            check(SquareOfMean, ReplaceOneInPlace, "sup_mean_squares_replace");
            check(SquareOfMean, ZeroOut, "sup_mean_squares_zero_out");
            check(SquareOfSum, ReplaceOneInPlace, "sup_sum_convention_replace");
            check(MeanOfSquares, ReplaceOneInPlace, "sup_per_record_squares_mean_replace");
        }
    }

    #[test]
    fn batches_of_one_record_equal_single_records() {
        for neighbours in [ZeroOut, ReplaceOneInPlace, ReplaceOne] {
            let squared = [SquareOfMean, SquareOfSum, MeanOfSquares].map(|query| {
                batch_sensitivity_squared(TrainingBatch { query, size: 1 }, neighbours, 2, 0.7).unwrap()
            });
            assert!(squared.iter().all(|value| (value / squared[0] - 1.0).abs() < 1e-12));
        }
    }

    #[test]
    fn invalid_batches_are_refused() {
        let check = |size, dimension, weight, name| {
            let batch = TrainingBatch { query: SquareOfSum, size };
            assert_eq!(batch_sensitivity_squared(batch, ZeroOut, dimension, weight).unwrap_err().name, name);
        };
        check(0, 1, 1.0, "number of records of a batch");
        check(2, 0, 1.0, "dimension");
        check(2, 1, f64::NAN, "relative weight of second moments");
        check(2, 1, 1e308, "squared sensitivity of a batch");
    }
}
