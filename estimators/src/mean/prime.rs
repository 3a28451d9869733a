//! PRIME and PRIME-ht: Algorithms 9, 10 and 16 of the paper.
//!
//! An epoch begins with the excess λ of the released covariance over that of clean records. A round
//! weighs directions (`weights`), scores each record by `τ = (x − μ)ᵀU(x − μ)`, finds a threshold ρ
//! (`budget`) and removes records of score at least ρZ, Z uniform (`weights`). The next epoch
//! begins when the excess is half of λ (two thirds for heavy tails). Once clean records may have
//! this λ, the mean is released with the rest of the budget.
//!
//! # Departures from the paper
//! - A round is **one** Gaussian release of count, Σx and Σxxᵀ of the kept records (`release`: the
//!   moments cost as much as Σx alone). λ_t, Σ_t, ψ_t, μ_t and ψ̃ are post-processing; the paper
//!   makes five queries.
//! - No mean is taken over |S_t|, so no sensitivity depends on the number of kept records. The size
//!   check only refuses bad estimates.
//! - Rounds that filter nothing are free (`weights`).
//! - λ is the largest eigenvalue of M − I, not the largest in absolute value. Outliers raise
//!   eigenvalues and filtering lowers them (M is a sum over n, whatever is kept), so the absolute
//!   value never falls below the removed share.
//! - Algorithm 16 removes *all* records that score ρZ, which for small Z is any share of the clean
//!   ones. Here a round removes at most ⌈2αn⌉, as in Algorithm 10.
//! - The public level of the noise of λ is added to the accepted excess of clean records.

use super::budget::MeanBudget;
use super::budget::threshold;
use super::release::{ClippedRecords, ClippingBall};
use super::weights::{WeightEpoch, Weights, spectrum};
use super::weights::{largest_tail, take_out_highest};
use super::{EstimationStop, MeanError, MeanEstimate, MeanRefusal, Shares, Tails, range, release};
use faer::Mat;
use hushflow_mechanism::noise::NoiseGenerator;
use rand::Rng;

/// C of Algorithm 10, "a large enough constant": 1, as in the paper's experiments (Appendix L).
const COVARIANCE_ALLOWANCE: f64 = 1.0;

/// C of Algorithm 16, which the paper leaves open. Clean records have M ≼ I; corruption that adds 1
/// moves the mean by at most √α.
const HEAVY_ALLOWANCE: f64 = 2.0;

/// An epoch ends when the excess falls below this share of λ.
const EPOCH_ENDS: f64 = 0.5;
const HEAVY_EPOCH_ENDS: f64 = 2.0 / 3.0;

/// A round filters if ⟨M − I, U⟩ exceeds this share of λ_t.
const WORTH_FILTERING: f64 = 1.0 / 5.5;

/// Largest share of the records that `auto` lets PRIME remove, in units of the corruption.
const MAX_REMOVED: f64 = 3.0;

/// Margin for the noise of that share.
const COUNT_DEVIATIONS: f64 = 4.0;

/// Minimum number of epochs, and of rounds in an epoch.
const LEAST_ROUNDS: f64 = 2.0;

/// Rules that differ for heavy tails.
struct PrimeRules {
    /// Accepted λ of clean records.
    accepted: f64,
    /// 1 if the covariance of clean records is I, 0 if it is only bounded.
    identity: f64,
    /// α⁽ˢ⁾ is 1/(step·λ).
    step: f64,
    epoch_ends: f64,
    /// Maximum number of records that a round removes: k of `weights`.
    most: usize,
    /// Minimum share of kept records for which the filter goes on.
    least_share: f64,
}

impl PrimeRules {
    fn new(tails: Tails, corruption: f64, records: usize) -> Self {
        match tails {
            Tails::SubGaussian => PrimeRules {
                accepted: COVARIANCE_ALLOWANCE * corruption * (1.0 / corruption.max(f64::MIN_POSITIVE)).ln(),
                identity: 1.0,
                step: 100.0 * (0.1 / COVARIANCE_ALLOWANCE + 1.01),
                epoch_ends: EPOCH_ENDS,
                most: largest_tail(corruption, records),
                least_share: 0.0,
            },
            Tails::BoundedCovariance => PrimeRules {
                accepted: HEAVY_ALLOWANCE,
                identity: 0.0,
                step: 100.0 * (0.1 / HEAVY_ALLOWANCE + 1.05),
                epoch_ends: HEAVY_EPOCH_ENDS,
                most: largest_tail(corruption, records),
                least_share: 0.0,
            },
        }
    }
}

/// One release about the kept records, in scaled units from the ball's centre.
pub(super) struct NormalisedMoments {
    /// Count over n.
    share: f64,
    /// In units of the ball's radius, and within it.
    pub(super) mean: Vec<f64>,
    /// M − I, or M: about `mean`, over n.
    pub(super) excess: Mat<f64>,
}

impl NormalisedMoments {
    /// Refuses if too many records were removed.
    pub(super) fn new(
        sums: &release::NoisySums,
        kept: &ClippedRecords,
        identity: f64,
    ) -> Result<Self, MeanRefusal> {
        let (n, squared_radius) = (kept.len() as f64, kept.ball().radius.powi(2));
        let mean = mean_within(sums);
        let dimension = mean.len();
        let excess = match &sums.second {
            None => Mat::zeros(dimension, dimension),
            Some(second) => Mat::from_fn(dimension, dimension, |i, j| {
                let about = second[(i, j)] - sums.count * mean[i] * mean[j];
                let unit = if i == j { identity } else { 0.0 };
                about / n * squared_radius - unit
            }),
        };
        let share = sums.count / n;
        if share < kept.least_kept() {
            Err(MeanRefusal::TooManyTakenOut)
        } else {
            Ok(NormalisedMoments { share, mean, excess })
        }
    }

    /// Largest possible score of a record of the ball under these weights, in scaled units.
    pub(super) fn largest_score(&self, ball: &ClippingBall, weights: &Weights) -> f64 {
        let from_centre = self.mean.iter().map(|value| value * value).sum::<f64>().sqrt();
        weights.largest * ((1.0 + from_centre) * ball.radius).powi(2)
    }
}

/// Σx over the count, projected into the ball: noise may leave it, and the ball bounds scores.
fn mean_within(sums: &release::NoisySums) -> Vec<f64> {
    let mean: Vec<f64> = sums.first.iter().map(|sum| sum / sums.count.max(1.0)).collect();
    let norm = mean.iter().map(|value| value * value).sum::<f64>().sqrt();
    mean.into_iter().map(|value| value / norm.max(1.0)).collect()
}

/// Number of rounds that share the budget: T₁ = ⌈ln(2r)⌉ epochs of T₂ = ⌈ln d⌉ rounds.
fn most_rounds(ball: &ClippingBall, dimension: usize) -> u32 {
    let epochs = (2.0 * ball.radius).ln().ceil().max(LEAST_ROUNDS);
    (epochs * (dimension as f64).ln().ceil().max(LEAST_ROUNDS)) as u32
}

pub(super) fn moments_share(budget: &MeanBudget, rounds: u32) -> f64 {
    Shares::ROUNDS * (1.0 - Shares::THRESHOLD) * budget.whole() / f64::from(rounds)
}

/// Whether PRIME has a smaller error bound than the plain mean, by public numbers. (Appendix L
/// compares n with c·d^1.5/(αε); here the noises themselves are compared.) Corruption within the
/// noise moves PRIME's mean by √(α(λ + noise)), and the plain mean by α radii.
pub(super) fn is_worthwhile(alpha: f64, records: usize, columns: usize, budget: &MeanBudget) -> bool {
    let radius = range::clean_radius(Tails::SubGaussian, columns, records, alpha);
    let unseen =
        accepted_excess(Tails::SubGaussian, alpha) + noise_of_rounds(radius, columns, records, budget);
    let noise = |share: f64| {
        release::deviation(share * budget.whole()) * radius / records as f64 * (columns as f64).sqrt()
    };
    let plain = alpha * radius + noise(1.0 - Shares::BEFORE);
    let robust = (alpha * unseen).sqrt() + noise(1.0 - Shares::BEFORE - Shares::ROUNDS);
    robust <= plain
}

/// Likely spectral norm of the noise of M in one round, in scaled units.
fn noise_of_rounds(radius: f64, dimension: usize, records: usize, budget: &MeanBudget) -> f64 {
    let ball = ClippingBall { centre: Vec::new(), radius };
    let share = moments_share(budget, most_rounds(&ball, dimension));
    release::spectral_noise(share, dimension) * radius * radius / records as f64
}

/// Accepted excess of clean records, without noise.
pub(super) fn accepted_excess(tails: Tails, corruption: f64) -> f64 {
    PrimeRules::new(tails, corruption, 1).accepted
}

pub(super) fn estimate(
    mut kept: ClippedRecords,
    (tails, corruption): (Tails, f64),
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<MeanEstimate, EstimationStop> {
    let rules = PrimeRules::new(tails, corruption, kept.len());
    let converged = filtered(&mut kept, &rules, budget, rng)?;
    last_mean(&kept, converged, budget, rng)
}

/// Filters as PRIME until more than [`MAX_REMOVED`] times the corruption is removed. Returns `None`
/// if it stopped there: then the records are not what PRIME assumes, and no mean is released.
///
/// Rounds remove at most 2α each, and corrupt rows of one kind go in the first. Columns with a long
/// tail or correlation lose 2α in each round.
pub(super) fn estimate_or_stop(
    mut kept: ClippedRecords,
    corruption: f64,
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<Option<MeanEstimate>, EstimationStop> {
    let rules = PrimeRules {
        least_share: 1.0 - MAX_REMOVED * corruption,
        ..PrimeRules::new(Tails::SubGaussian, corruption, kept.len())
    };
    match filtered(&mut kept, &rules, budget, rng) {
        Ok(converged) => last_mean(&kept, converged, budget, rng).map(Some),
        Err(EstimationStop::Refused(MeanRefusal::TooManyTakenOut)) => Ok(None),
        Err(stop) => Err(stop),
    }
}

fn filtered(
    kept: &mut ClippedRecords,
    rules: &PrimeRules,
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<bool, EstimationStop> {
    let (dimension, ball) = (kept.dimension(), kept.ball().clone());
    let rounds = most_rounds(&ball, dimension);
    let share = moments_share(budget, rounds);
    let threshold_share = Shares::ROUNDS * Shares::THRESHOLD * budget.whole() / f64::from(rounds);
    let noise = release::spectral_noise(share, dimension) * ball.radius.powi(2) / kept.len() as f64;
    let mut epoch: Option<(f64, WeightEpoch)> = None;
    for _ in 0..rounds {
        let sums = release::moments(kept, ("rounds", share), budget, rng)?;
        let view = NormalisedMoments::new(&sums, kept, rules.identity)?;
        if view.share + COUNT_DEVIATIONS * release::deviation(share) / (kept.len() as f64) < rules.least_share
        {
            return Err(MeanRefusal::TooManyTakenOut.into());
        }
        let excess = spectrum(view.excess.as_ref()).and_then(|found| found.values.last().copied());
        let excess = excess.ok_or(MeanError::Spectrum)?;
        if excess <= rules.accepted + noise {
            return Ok(true);
        }
        let ended = epoch.as_ref().is_none_or(|(begun, _)| excess <= rules.epoch_ends * begun);
        if ended {
            epoch = Some((excess, WeightEpoch::new(dimension, (rules.step * excess).recip())));
        }
        let Some((_, exponent)) = &mut epoch else { continue };
        let Some(weights) = exponent.weights(view.excess.as_ref(), WORTH_FILTERING * excess) else {
            return Ok(false);
        };
        let scores = scaled_scores(kept, &weights, &view.mean);
        let total = weights.product(view.excess.as_ref()) + rules.identity * (1.0 - view.share);
        let largest = view.largest_score(&ball, &weights);
        let cut = threshold(kept, &scores, (largest, total), threshold_share, budget, rng)?;
        let uniform = (rng.next_u64() >> 11) as f64 * 0.5_f64.powi(53);
        if let Some(threshold) = cut {
            take_out_highest(kept, &scores, threshold * uniform, rules.most);
        }
    }
    Ok(false)
}

/// Scores in scaled units.
pub(super) fn scaled_scores(kept: &ClippedRecords, weights: &Weights, mean: &[f64]) -> Vec<f64> {
    let mut scores = kept.scores(weights.root.as_ref(), mean);
    let unit = kept.ball().radius.powi(2);
    scores.iter_mut().for_each(|score| *score *= unit);
    scores
}

/// Returns the mean of the kept records, with the rest of the budget.
pub(super) fn last_mean(
    kept: &ClippedRecords,
    converged: bool,
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<MeanEstimate, EstimationStop> {
    let (share, ball, scales) = (budget.left(), kept.ball(), kept.scales());
    let sums = release::sums(kept, ("mean", share), budget, rng)?;
    if sums.count < kept.least_kept() * kept.len() as f64 {
        return Err(MeanRefusal::TooManyTakenOut.into());
    }
    let noise = release::deviation(share) / sums.count * ball.radius;
    Ok(MeanEstimate {
        mean: ball.to_units(&mean_within(&sums), scales),
        noise: scales.iter().map(|scale| scale * noise).collect(),
        kept: Some(sums.count),
        converged,
    })
}
