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
//! Candidates are t = d·2^(−i/16) for the squared norm of z, and c_i is the number of records
//! beyond candidate i. The score of i is k·i − (c_i + c_(i−1) + … + c_(i−31)): each record lowers
//! it by the number of candidates between t and 4t that it exceeds, so a record counts in
//! proportion to the logarithm of its norm over the clipping norm, and fully from twice that norm.
//! The best candidate has k records of norms between one and two times its own.
//!
//! **k.** Clipping at t takes at most L = ∫_t^∞ c from n times the trace, and the noise has n times
//! the Frobenius norm N = t·d/√(2ρ). If c falls as t^(−a), then L = t·c/(a − 1), and L² + N² is
//! least where c = √(a − 1)·d/√(2ρ): for a = 3 this is k = d/√ρ, and it differs by at most √2 for a
//! from 2 to 5. With k ≤ n/10 the 240 steps of k weigh less than n records that count fully, so
//! the score does not run to the smallest norm.
//!
//! **Why not the target c = k.** One record moves a count by 1, and a draw with 5 % of ρ tells
//! counts apart by about 2/√ρ, which is close to k if d is small. A sum of counts over the norms up
//! to twice the clipping norm grows where many records are far beyond it.
//!
//! With few records (n√ρ < 1.45d) no norm can be found, and all of ρ measures the diagonal. With
//! one to three columns the norm is only proposed ([`few`](super::few)).
//!
//! **Privacy of the draw.** One record changes c_i by at most 1, for all i in the same direction:
//! if its norm grows, no count falls. A score has 32 counts, and the rest of it is a function of
//! public numbers and of the released count. So all scores move in the same direction by at most
//! 32, as if the sensitivity were 16 ([`baselines`](super::baselines)). Scores are integers. ∎

use super::estimate::{CovarianceEstimate, PreparedSample};
use super::sample::{CovarianceSample, add_matrix_noise};
use super::spending::{BudgetPurpose, CovarianceBudget};
use super::{CovarianceError, baselines, few, shrinkage};
use hushflow_mechanism::moments::{RECORD_BITS, SecondMoment};
use hushflow_mechanism::noise::selection::ExponentialMechanism;
use nalgebra::DMatrix;
use rand::CryptoRng;

/// Share of the budget for the norm.
pub(super) const SHARE: f64 = 0.05;

/// Minimum n√ρ/d for which the matrix is measured, and not the diagonal alone.
const LEAST_SIGNAL: f64 = 1.45;

/// Candidates for each halving of the squared norm.
pub(super) const PER_HALVING: u32 = 16;

/// Number of halvings of the squared norm.
const HALVINGS: u32 = 15;

/// Number of counts in a score: those of candidates up to twice the norm.
const WINDOW: usize = 2 * PER_HALVING as usize;

/// Largest share of the records between one and two times the norm.
const MOST_CLIPPED: f64 = 0.1;

/// The largest change of a score by one record. All scores move in the same direction, so
/// [`ExponentialMechanism`] takes half of it.
pub(super) const SENSITIVITY: i128 = WINDOW as i128 / 2;

/// Returns k, the number of records between one and two times the best norm, for a public ρ.
pub(super) fn clipped_records(sample: &CovarianceSample<'_>, rho: f64) -> f64 {
    // Δ, divided by its value for a replaced record.
    let spread = sample.matrix_sensitivity() / 2f64.sqrt() / (1u64 << (2 * RECORD_BITS)) as f64;
    sample.dimension() as f64 * spread / rho.sqrt()
}

/// Deviations of the noise of the matrix, on its diagonal and off it.
pub(super) fn deviations(sample: &CovarianceSample<'_>, rho: f64) -> (f64, f64) {
    let deviation = sample.matrix_sensitivity() / (2.0 * rho).sqrt();
    (deviation, deviation / 2f64.sqrt())
}

/// The norm of candidate `index`, in z.
pub(super) fn norm(dimension: usize, index: usize) -> f64 {
    (dimension as f64).sqrt() * 0.5f64.powf(index as f64 / f64::from(2 * PER_HALVING))
}

/// The squared norm of candidate `index`, on the grid of the records.
fn threshold(index: u32) -> i128 {
    let whole = (1u64 << (2 * RECORD_BITS)) as f64;
    (whole * 0.5f64.powf(f64::from(index) / f64::from(PER_HALVING))).round() as i128
}

/// Scores of all candidates, from the squared norms of the records.
pub(super) fn scores(norms: &[i128], clipped: f64) -> Vec<i128> {
    let mut sorted = norms.to_vec();
    sorted.sort_unstable();
    let beyond = |index| sorted.len() - sorted.partition_point(|norm| *norm <= threshold(index));
    let counts: Vec<i128> = (0..=PER_HALVING * HALVINGS).map(|index| beyond(index) as i128).collect();
    let score = |index: usize| {
        let within = &counts[(index + 1).saturating_sub(WINDOW)..=index];
        (clipped * index as f64).round() as i128 - within.iter().sum::<i128>()
    };
    (0..counts.len()).map(score).collect()
}

/// Estimates the covariance with the remaining budget.
pub(super) fn estimate<R: CryptoRng + ?Sized>(
    start: PreparedSample<'_>,
    mut budget: CovarianceBudget,
    rng: &mut R,
) -> Result<CovarianceEstimate, CovarianceError> {
    let size = start.sample.dimension();
    if size <= few::MOST_COLUMNS {
        return few::estimate(start, budget, rng);
    }
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
    let rho = budget.spend(BudgetPurpose::Matrix, budget.left())?;
    let noisy = add_matrix_noise(size, &sums[1 + size..], deviations(sample, rho), rng)?;
    let (measured, noise) = (clipped.matrix(&noisy), clipped.deviations(&noisy));
    let covariance = shrinkage::covariance(&measured, noise[(0, 0)])?;
    let measurements = clipped.measured(&measured, &noise);
    Ok(CovarianceEstimate { measurements, ..clipped.estimate(&covariance, budget)? })
}

fn at_private_norm<'a, R: CryptoRng + ?Sized>(
    start: &PreparedSample<'a>,
    budget: &mut CovarianceBudget,
    rng: &mut R,
) -> Result<PreparedSample<'a>, CovarianceError> {
    let sample: &CovarianceSample<'a> = &start.sample;
    let (dimension, total) = (sample.dimension(), budget.left());
    let clipped = clipped_records(sample, (1.0 - SHARE) * total).min(MOST_CLIPPED * start.rows.0);
    let rho = budget.spend(BudgetPurpose::Selection, SHARE * total)?;
    let scores = scores(&sample.squared_norms()?, clipped);
    let index = ExponentialMechanism::new(rho, SENSITIVITY)?.select(&scores, rng)?;
    start.clipped(norm(dimension, index))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Attack: if one norm replaces another, all scores move in the same direction, by no more
        /// than twice what the draw allows for.
        #[test]
        fn scores_of_neighbours_move_by_no_more_than_is_charged(
            rest in prop::collection::vec(0i128..=1 << 40, 0..60), one in 0i128..=1 << 40, other in 0i128..=1 << 40,
        ) {
            let with = |norm: i128| scores(&[&rest[..], &[norm]].concat(), 2.5);
            let moves: Vec<i128> = with(one).iter().zip(with(other)).map(|(a, b)| a - b).collect();
            let (least, most) = (moves.iter().min().expect("one"), moves.iter().max().expect("one"));
            prop_assert!(most - least <= 2 * SENSITIVITY, "{moves:?}");
            prop_assert!(*least >= 0 || *most <= 0, "{moves:?}");
        }
    }

    /// Replacement of a record attains the bound, so a smaller charge would be wrong.
    #[test]
    fn the_charge_for_the_norm_is_tight() {
        let (one, other) = (scores(&[1, 1 << 40], 1.0), scores(&[1, 1], 1.0));
        let most = one.iter().zip(&other).map(|(a, b)| (a - b).abs()).max();
        assert_eq!(most, Some(2 * SENSITIVITY));
    }

    /// The best candidate has k records of up to twice its norm, and records that fill their bounds
    /// are not clipped, unless a tenth of them is too few for the noise.
    #[test]
    fn the_best_norm_leaves_the_wanted_number_of_records_beyond() {
        let squares: Vec<i128> = (1..=4000).map(|rank| (1 << 40) / rank).collect();
        let best = |norms: &[i128], clipped: f64| {
            let scores = scores(norms, clipped);
            threshold((0..).zip(&scores).max_by_key(|(_, score)| **score).expect("a score").0)
        };
        let found = best(&squares, 30.0);
        let within = squares.iter().filter(|norm| (found..4 * found).contains(*norm)).count();
        assert!((28..=32).contains(&within), "{within}");
        assert_eq!(best(&[1 << 40; 500], MOST_CLIPPED * 500.0), 1 << 40);
    }
}
