//! DPthreshold (Algorithms 11 and 17): a score above which a random share of records is removed.
//!
//! Scores are counted in bins that double in width, from 1/4 to the largest possible score, which
//! is public. ρ is the largest bin edge such that the scores' excess over it, counted from their
//! bins' lower edges, is at least 0.31 of their total excess. The counts are one Gaussian release
//! of one histogram. The total excess follows from the moments released before.

use super::budget::MeanBudget;
use super::records::ClippedRecords;
use super::{MeanError, release};
use hushflow_mechanism::noise::NoiseGenerator;

const FIRST_EDGE: f64 = 0.25;

/// Share of the total excess above the threshold, line 6.
const EXCESS_SHARE: f64 = 0.31;

/// Maximum number of bins: scores are below 2¹⁰⁰⁰.
const MOST_BINS: usize = 1000;

/// Returns the threshold ρ for scores of at most `largest`, whose total excess is `excess` per
/// record. `None` if no bin suffices; the paper leaves this case open, and here nothing is removed.
pub(super) fn threshold(
    kept: &ClippedRecords,
    scores: &[f64],
    (largest, excess): (f64, f64),
    share: f64,
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<Option<f64>, MeanError> {
    let edges = edges(largest);
    let mut counts = vec![0i128; edges.len()];
    for (_, score) in scores.iter().enumerate().filter(|(place, _)| kept.is_kept(*place)) {
        // A score that rounding puts beyond the last edge is in the last bin.
        if let Some(bin) = edges.partition_point(|edge| edge <= score).checked_sub(1) {
            counts[bin] += 1;
        }
    }
    let noisy = release::counts(&counts, 1.0, ("threshold", share), budget, rng)?;
    let records = kept.len() as f64;
    let beyond = |edge: f64| -> f64 {
        edges.iter().zip(&noisy).map(|(lower, count)| (lower - edge).max(0.0) * count / records).sum()
    };
    Ok(edges.iter().rev().copied().find(|&edge| beyond(edge) >= EXCESS_SHARE * excess))
}

/// Lower edges of bins up to a largest score.
fn edges(largest: f64) -> Vec<f64> {
    let doubled = std::iter::successors(Some(FIRST_EDGE), |edge| Some(2.0 * edge));
    doubled.take_while(|edge| *edge <= largest.max(FIRST_EDGE)).take(MOST_BINS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_double_up_to_the_largest_score() {
        assert_eq!(edges(3.0), [0.25, 0.5, 1.0, 2.0]);
        assert_eq!(edges(0.0), [0.25]);
    }
}
