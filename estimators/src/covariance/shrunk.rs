//! `shrunk`: all entries at once, of records clipped to a private norm, then shrunk according to
//! the known level of the noise.
//!
//! A twentieth of ρ draws the clipping norm, the rest measures the matrix, and
//! [`shrinkage`](super::shrinkage) chooses the estimate. The choice between the diagonal, few
//! directions and the whole matrix is thus made from the release and costs nothing.
//!
//! # Noise
//! The deviation is τ = Δ/√(2ρ) on the diagonal and τ/√2 off it, for the sensitivity Δ of the whole
//! matrix in the Frobenius norm. *Proof.* A discrete Gaussian of parameter σ_i, moved by Δ_i, is
//! Δ_i²/(2σ_i²)-zCDP (Canonne, Kamath & Steinke 2020), and independent entries add up. The sum is
//! (Σ_j Δ_jj² + 2Σ_(j<k) Δ_jk²)/(2τ²) = ‖Δ‖_F²/(2τ²) ≤ ρ. ∎ `ssp` has τ everywhere, although an
//! entry off the diagonal counts twice in the Frobenius norm.
//!
//! # The norm
//! Candidates are t = d·2^(−i/4) for the squared norm of z. Let c(t) be the number of records
//! beyond t. For each unit that t falls by, clipping removes c(t) from n times the trace, and n
//! times the Frobenius norm of the noise falls by d/√(2ρ). So the best t has a number of records
//! beyond it that follows from d and ρ alone. On the tables of `docs/covariance.md`, where
//! directions differ and shrinkage removes noise, k = d/(2√ρ) works best. One of two scores is
//! used:
//!
//! - **Many records** (g < n/8 for g = 1.5(d − 3/2)/√ρ): −(c(t) + min(g, n/20)·log₂ t). Among norms
//!   that no record exceeds it prefers the smallest. For a larger g it would prefer t = 0.
//! - **Few records**: −|c(t) − k| − k/16·log₂ t, for at most half of the records.
//!
//! With still fewer records (n√ρ < 1.45d) no norm can be found, and all of ρ measures the diagonal.
//!
//! **Privacy of the draw.** One record changes c(t) by at most 1, for all t in the same direction:
//! if its norm grows, no count falls. The rest of a score is a function of public numbers and of
//! the released count. So the first score moves in one direction, as if its sensitivity were ½
//! ([`baselines`](super::baselines)), and the second has sensitivity 1. Which of them is used
//! follows from public numbers. Scores are integers in units of 2⁻¹⁶. ∎

use super::estimate::{CovarianceEstimate, PreparedSample};
use super::sample::{CovarianceSample, add_matrix_noise};
use super::spending::{BudgetPurpose, CovarianceBudget};
use super::{CovarianceError, baselines, shrinkage};
use hushflow_mechanism::moments::{RECORD_BITS, SecondMoment};
use hushflow_mechanism::noise::selection::Selection;
use nalgebra::DMatrix;
use rand::CryptoRng;

/// Share of the budget for the norm.
pub(super) const SHARE: f64 = 0.05;

/// Minimum n√ρ/d for which the matrix is measured, and not the diagonal alone.
const LEAST_SIGNAL: f64 = 1.45;

/// Candidates for each halving of the squared norm.
const PER_HALVING: u32 = 4;

/// Number of halvings of the squared norm.
const HALVINGS: u32 = 15;

/// Number of units of a score in one record.
const UNIT: i128 = 1 << 16;

/// A score that weighs the records beyond a candidate against the noise.
#[derive(Clone, Copy, Debug, PartialEq)]
enum NormScore {
    /// Many records: the number of records beyond the norm that offset a halving of its square.
    Linear(f64),
    /// Few records: the target number of records beyond the norm.
    Quantile(f64),
}

impl NormScore {
    /// `records` and `rho` are public, `spread` is Δ divided by its value for a replaced record.
    fn new(dimension: usize, records: f64, (rho, spread): (f64, f64)) -> Self {
        let (d, unit) = (dimension as f64, spread / rho.sqrt());
        let slope = 1.5 * (d - 1.5).max(d / 2.0) * unit;
        let most = records / 20.0;
        if slope < 2.5 * most {
            Self::Linear(slope.min(most))
        } else {
            Self::Quantile((0.5 * d * unit).min(records / 2.0))
        }
    }

    /// Returns the sensitivity of a score for [`Selection`]. One record moves all linear scores in
    /// the same direction, so half of their change suffices.
    fn sensitivity(self) -> i128 {
        match self {
            Self::Linear(_) => UNIT / 2,
            Self::Quantile(_) => UNIT,
        }
    }

    /// Returns the score of the candidate `index` with `beyond` records outside.
    fn score(self, index: u32, beyond: usize) -> i128 {
        let halvings = f64::from(index) / f64::from(PER_HALVING);
        let units = |records: f64| (records * UNIT as f64).round() as i128;
        let beyond = beyond as i128 * UNIT;
        match self {
            Self::Linear(slope) => units(slope * halvings) - beyond,
            Self::Quantile(wanted) => units(wanted / 16.0 * halvings) - (beyond - units(wanted)).abs(),
        }
    }
}

/// The squared norm of candidate `index`, on the grid of the records.
fn threshold(index: u32) -> i128 {
    let whole = (1u64 << (2 * RECORD_BITS)) as f64;
    (whole * 0.5f64.powf(f64::from(index) / f64::from(PER_HALVING))).round() as i128
}

/// Scores of all candidates, from the squared norms of the records.
fn scores(norms: &[i128], score: NormScore) -> Vec<i128> {
    let mut sorted = norms.to_vec();
    sorted.sort_unstable();
    let beyond = |index| sorted.len() - sorted.partition_point(|norm| *norm <= threshold(index));
    (0..=PER_HALVING * HALVINGS).map(|index| score.score(index, beyond(index))).collect()
}

/// Estimates the covariance with the remaining budget.
pub(super) fn estimate<R: CryptoRng + ?Sized>(
    start: PreparedSample<'_>,
    mut budget: CovarianceBudget,
    rng: &mut R,
) -> Result<CovarianceEstimate, CovarianceError> {
    let size = start.sample.dimension();
    if start.rows.0 * budget.left().sqrt() < LEAST_SIGNAL * size as f64 {
        let found = baselines::diagonal(start, budget, rng)?;
        let noisy: Vec<f64> = found.measurements.iter().map(|entry| entry.value / entry.deviation).collect();
        let variances = shrinkage::variances(&noisy).into_iter().zip(&found.measurements);
        let variances: Vec<f64> = variances.map(|(value, entry)| value * entry.deviation).collect();
        return Ok(CovarianceEstimate { covariance: DMatrix::from_diagonal(&variances.into()), ..found });
    }
    let clipped = at_private_norm(&start, &mut budget, rng)?;
    let sample = &clipped.sample;
    let sums = sample.moments(SecondMoment::Full)?.to_wide();
    let noisy = add_matrix_noise(&mut budget, size, &sums[1 + size..], sample.matrix_sensitivity(), rng)?;
    let (measured, deviations) = (clipped.matrix(&noisy), clipped.deviations(&noisy));
    let covariance = shrinkage::covariance(&measured, deviations[(0, 0)])?;
    let measurements = clipped.measured(&measured, &deviations);
    Ok(CovarianceEstimate { measurements, ..clipped.estimate(&covariance, budget)? })
}

fn at_private_norm<'a, R: CryptoRng + ?Sized>(
    start: &PreparedSample<'a>,
    budget: &mut CovarianceBudget,
    rng: &mut R,
) -> Result<PreparedSample<'a>, CovarianceError> {
    let sample: &CovarianceSample<'a> = &start.sample;
    let (dimension, total) = (sample.dimension(), budget.left());
    let spread = sample.matrix_sensitivity() / 2f64.sqrt() / (1u64 << (2 * RECORD_BITS)) as f64;
    let score = NormScore::new(dimension, start.rows.0, ((1.0 - SHARE) * total, spread));
    let rho = budget.spend(BudgetPurpose::Selection, SHARE * total)?;
    let scores = scores(&sample.squared_norms()?, score);
    let index = Selection::new(rho, score.sensitivity())?.select(&scores, rng)?;
    let halvings = index as f64 / f64::from(2 * PER_HALVING);
    start.clipped((dimension as f64).sqrt() * 0.5f64.powf(halvings))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SCORES: [NormScore; 3] =
        [NormScore::Linear(7.3), NormScore::Quantile(2.5), NormScore::Quantile(40.0)];

    proptest! {
        /// Attack: if one norm replaces another, no two scores move apart by more than twice what
        /// the draw allows for.
        #[test]
        fn scores_of_neighbours_move_by_no_more_than_is_charged(
            rest in prop::collection::vec(0i128..=1 << 40, 0..60), one in 0i128..=1 << 40, other in 0i128..=1 << 40,
        ) {
            for score in SCORES {
                let with = |norm: i128| scores(&[&rest[..], &[norm]].concat(), score);
                let moves: Vec<i128> = with(one).iter().zip(with(other)).map(|(a, b)| a - b).collect();
                let (least, most) = (moves.iter().min().expect("one"), moves.iter().max().expect("one"));
                prop_assert!(most - least <= 2 * score.sensitivity(), "{score:?} {moves:?}");
            }
        }
    }

    /// Replacement of a record attains the bound, so a smaller charge would be wrong.
    #[test]
    fn the_charge_for_the_norm_is_tight() {
        let quantile = NormScore::Quantile(1.0);
        let (one, other) = (scores(&[1, 1 << 40], quantile), scores(&[1, 1], quantile));
        let most = one.iter().zip(&other).map(|(a, b)| (a - b).abs()).max();
        assert_eq!(most, Some(quantile.sensitivity()));
    }

    #[test]
    fn the_regime_follows_from_public_numbers() {
        assert_eq!(NormScore::new(10, 1e6, (1.0, 1.0)), NormScore::Linear(12.75));
        assert_eq!(NormScore::new(10, 200.0, (1.0, 1.0)), NormScore::Linear(10.0));
        assert_eq!(NormScore::new(10, 100.0, (1.0, 1.0)), NormScore::Quantile(5.0));
        assert_eq!(NormScore::new(10, 100.0, (1e-6, 1.0)), NormScore::Quantile(50.0));
    }
}
