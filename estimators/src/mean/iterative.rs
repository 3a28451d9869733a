//! Private iterative filtering: Algorithms 7 and 8 of the paper, one direction at a time.
//!
//! A round releases the moments of the kept records and takes the direction in which they exceed I
//! most. It scores records by their squared distance from the mean along it and removes those of
//! score at least bZ, where b is the largest possible score. b depends on no record, so progress is
//! slow: the expected share that a round removes is a record's score over b. The T = Θ̃(d) rounds
//! divide the same budget as PRIME's.

use super::budget::MeanBudget;
use super::filter::{largest_tail, take_out_highest};
use super::prime::{NormalisedMoments, accepted_excess, last_mean, moments_share, scaled_scores};
use super::records::ClippedRecords;
use super::weights::{Weights, spectrum};
use super::{EstimationStop, MeanError, MeanEstimate, Tails, release};
use hushflow_mechanism::noise::NoiseGenerator;
use rand::Rng;

/// Rounds per column: T = Θ̃(d), whose constant the paper leaves open.
const ROUNDS_OF_COLUMN: u32 = 2;

const MORE_ROUNDS: u32 = 20;

pub(super) fn estimate(
    mut kept: ClippedRecords,
    (tails, corruption): (Tails, f64),
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<MeanEstimate, EstimationStop> {
    let (dimension, records) = (kept.dimension(), kept.len());
    let rounds = MORE_ROUNDS + ROUNDS_OF_COLUMN * dimension as u32;
    let share = moments_share(budget, rounds);
    let noise = release::spectral_noise(share, dimension) * kept.ball().radius.powi(2) / records as f64;
    let accepted = accepted_excess(tails, corruption) + noise;
    let most = largest_tail(corruption, records);
    for _ in 0..rounds {
        let sums = release::moments(&kept, ("rounds", share), budget, rng)?;
        let view = NormalisedMoments::new(&sums, &kept, 1.0)?;
        let found = spectrum(view.excess.as_ref()).ok_or(MeanError::Spectrum)?;
        if found.values[dimension - 1] <= accepted {
            return last_mean(&kept, true, budget, rng);
        }
        let direction: Vec<f64> = (0..dimension).map(|i| found.vectors[(i, dimension - 1)]).collect();
        let weights = Weights::of_direction(&direction);
        let scores = scaled_scores(&kept, &weights, &view.mean);
        let uniform = (rng.next_u64() >> 11) as f64 * 0.5_f64.powi(53);
        let threshold = view.largest_score(kept.ball(), &weights) * uniform;
        take_out_highest(&mut kept, &scores, threshold, most);
    }
    last_mean(&kept, false, budget, rng)
}
