//! Weights directions in which the released covariance is too large, by matrix multiplicative
//! weights.
//!
//! `U = exp(E)/tr exp(E)`, E = step·Σ(Σ_t − I) over an epoch (Algorithm 10, lines 16 and 17).
//! Exponentials use the symmetric eigendecomposition, which is backward stable. Eigenvalues are
//! shifted by the largest, so nothing overflows, and tr U = 1.
//!
//! # Rounds that remove no record are free
//! While ⟨H, U⟩ is at most a share of ‖H‖, Algorithm 10 keeps all records and queries the same
//! covariance again, hundreds of times. Here H = Σ̃_t − I *is* a private release, so adding it
//! again is post-processing. ψ(k) = ⟨H, U(E + kH)⟩ is the derivative of the convex function k ↦ ln
//! tr exp(E + kH), so it never falls. Doubling and bisection find the first round that filters.
//!
//! # DPfilter
//! Private iterative filtering: Algorithms 7 and 8 of the paper, one direction at a time.
//!
//! A round releases the moments of the kept records and takes the direction in which they exceed I
//! most. It scores records by their squared distance from the mean along it and removes those of
//! score at least bZ, where b is the largest possible score. b does not depend on the records, so
//! progress is slow: a round removes a record with a probability of its score over b. The T = Θ̃(d)
//! rounds divide the same budget as PRIME's.
//!
//! # Removal
//! Filters select the records to remove in such a way that neighbours stay neighbours (Lemma 2.2
//! and Definition C.1 of the paper).
//!
//! A filter removes kept records of score at least θ, highest first, and at most k = ⌈2αn⌉ of
//! them. A score is a function of one record and its position. n is the public number of *all*
//! records, so k and θ are equal for neighbours. Ties are broken by the records' values, first
//! column first, larger before smaller, and equal records by position. This is one total order for
//! all tables that hold the records.
//!
//! # Contraction
//! Let K and K′ each have at most one record that the other lacks. Then so do the filtered sets.
//! *Proof.* Let C = K ∩ K′ and N the number of its records of score ≥ θ. Both filters remove the
//! highest of C, c and c′ of them, so the remainders of C are nested. If K has a record a ∉ C that
//! is removed, c = min(k − 1, N); else c = min(k, N): a above θ is kept only if k others precede
//! it. The same holds for c′. If c = c′, the filtered sets differ at most in a and a′. If c′ = c +
//! 1, then a was removed from K, so K exceeds K′ only by one extra record of C, and K′ exceeds K
//! only by a′. ∎ By induction this holds after any number of filters whose (μ, U, θ) are equal in
//! both worlds, because they were released.

use super::budget::MeanBudget;
use super::prime::{NormalisedMoments, accepted_excess, last_mean, moments_share, scaled_scores};
use super::release::ClippedRecords;
use super::{EstimationStop, MeanError, MeanEstimate, Tails, release};
use faer::{Mat, MatRef, Side};
use hushflow_mechanism::noise::NoiseGenerator;
use rand::Rng;
use std::cmp::Ordering;

/// Number of rounds that an epoch looks ahead. A factor of e^(2²⁰/111) puts all weight on the
/// largest direction.
const MAX_ROUNDS: u32 = 1 << 20;

/// Eigenvalues in ascending order, and eigenvectors as columns.
pub(super) struct Eigensystem {
    pub(super) values: Vec<f64>,
    pub(super) vectors: Mat<f64>,
}

pub(super) fn spectrum(matrix: MatRef<'_, f64>) -> Option<Eigensystem> {
    let eigen = matrix.self_adjoint_eigen(Side::Lower).ok()?;
    let values: Vec<f64> = eigen.S().column_vector().iter().copied().collect();
    values
        .iter()
        .all(|value| value.is_finite())
        .then(|| Eigensystem { values, vectors: eigen.U().to_owned() })
}

/// Weights of directions: U = WWᵀ.
pub(super) struct Weights {
    /// W, columns scaled by the root of their weight.
    pub(super) root: Mat<f64>,
    pub(super) largest: f64,
}

impl Weights {
    /// exp(E)/tr exp(E).
    fn new(exponent: MatRef<'_, f64>) -> Option<Self> {
        let Eigensystem { values, vectors } = spectrum(exponent)?;
        let top = values.last()?;
        let exponentials: Vec<f64> = values.iter().map(|value| (value - top).exp()).collect();
        let trace: f64 = exponentials.iter().sum();
        let dimension = values.len();
        let root =
            Mat::from_fn(dimension, dimension, |i, j| vectors[(i, j)] * (exponentials[j] / trace).sqrt());
        Some(Self { root, largest: trace.recip() })
    }

    /// Puts all weight on one direction.
    pub(super) fn of_direction(direction: &[f64]) -> Self {
        Self { root: Mat::from_fn(direction.len(), 1, |i, _| direction[i]), largest: 1.0 }
    }

    /// ⟨matrix, U⟩.
    pub(super) fn product(&self, matrix: MatRef<'_, f64>) -> f64 {
        let product = matrix * &self.root;
        (0..self.root.ncols())
            .map(|j| (0..self.root.nrows()).map(|i| self.root[(i, j)] * product[(i, j)]).sum::<f64>())
            .sum()
    }
}

pub(super) struct WeightEpoch {
    exponent: Mat<f64>,
    step: f64,
}

impl WeightEpoch {
    pub(super) fn new(dimension: usize, step: f64) -> Self {
        Self { exponent: Mat::zeros(dimension, dimension), step }
    }

    /// Adds `excess` repeatedly until ⟨excess, U⟩ exceeds `enough`; `None` if it never does.
    pub(super) fn weights(&mut self, excess: MatRef<'_, f64>, enough: f64) -> Option<Weights> {
        let after = |rounds: u32| {
            let exponent = &self.exponent + faer::Scale(self.step * f64::from(rounds)) * excess;
            let weights = Weights::new(exponent.as_ref())?;
            let suffices = weights.product(excess) > enough;
            Some((exponent, weights, suffices))
        };
        let mut rounds = 1;
        while !after(rounds)?.2 {
            rounds *= 2;
            if rounds > MAX_ROUNDS {
                return None;
            }
        }
        let (mut low, mut high) = (rounds / 2, rounds);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if after(middle)?.2 { high = middle } else { low = middle }
        }
        let (exponent, weights, _) = after(high)?;
        self.exponent = exponent;
        Some(weights)
    }
}

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
        let eigen = spectrum(view.excess.as_ref()).ok_or(MeanError::Spectrum)?;
        if eigen.values[dimension - 1] <= accepted {
            return last_mean(&kept, true, budget, rng);
        }
        let direction: Vec<f64> = (0..dimension).map(|i| eigen.vectors[(i, dimension - 1)]).collect();
        let weights = Weights::of_direction(&direction);
        let scores = scaled_scores(&kept, &weights, &view.mean);
        let uniform = (rng.next_u64() >> 11) as f64 * 0.5_f64.powi(53);
        let threshold = view.largest_score(kept.ball(), &weights) * uniform;
        take_out_highest(&mut kept, &scores, threshold, most);
    }
    last_mean(&kept, false, budget, rng)
}

/// k = ⌈2αn⌉, Definition C.1 for 𝒯_2α.
pub(super) fn largest_tail(corruption: f64, records: usize) -> usize {
    (2.0 * corruption * records as f64).ceil() as usize
}

/// Removes kept records of score at least `threshold`: at most `most`, highest first.
pub(super) fn take_out_highest(kept: &mut ClippedRecords, scores: &[f64], threshold: f64, most: usize) {
    let reaches = |&position: &usize| kept.is_kept(position) && scores[position] >= threshold;
    let mut high: Vec<usize> = (0..kept.len()).filter(reaches).collect();
    if most < high.len() {
        high.select_nth_unstable_by(most, |&a, &b| before(kept, scores, a, b));
        high.truncate(most);
    }
    high.into_iter().for_each(|position| kept.take_out(position));
}

/// The order of Definition C.1: `Less` if the first record is removed before the second.
fn before(kept: &ClippedRecords, scores: &[f64], a: usize, b: usize) -> Ordering {
    let by_score = scores[b].total_cmp(&scores[a]);
    let values =
        || kept.row(a).iter().zip(kept.row(b)).map(|(x, y)| y.total_cmp(x)).find(|order| order.is_ne());
    by_score.then_with(|| values().unwrap_or(Ordering::Equal)).then(a.cmp(&b))
}

#[cfg(test)]
mod tests {
    use super::super::release::ClippingBall;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn symmetric(seed: u64, dimension: usize) -> Mat<f64> {
        let entry = |i: usize, j: usize| (((i.min(j) * 31 + i.max(j) * 17) as f64 + seed as f64) * 0.7).sin();
        Mat::from_fn(dimension, dimension, entry)
    }

    #[test]
    fn weights_are_the_matrix_exponential() {
        for seed in 0..5 {
            let exponent = symmetric(seed, 4);
            let (mut sum, mut term) = (Mat::<f64>::identity(4, 4), Mat::<f64>::identity(4, 4));
            for k in 1..60 {
                term = faer::Scale(1.0 / f64::from(k)) * (&term * &exponent);
                sum += &term;
            }
            let trace: f64 = (0..4).map(|i| sum[(i, i)]).sum();
            let weights = Weights::new(exponent.as_ref()).unwrap();
            let found = &weights.root * weights.root.transpose();
            for (i, j) in (0..4).flat_map(|i| (0..4).map(move |j| (i, j))) {
                assert!((found[(i, j)] - sum[(i, j)] / trace).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn an_exponent_of_any_size_keeps_the_trace() {
        let huge = faer::Scale(1e8) * symmetric(1, 5);
        let weights = Weights::new(huge.as_ref()).unwrap();
        assert!((weights.product(Mat::<f64>::identity(5, 5).as_ref()) - 1.0).abs() < 1e-12);
        assert!(weights.largest <= 1.0);
    }

    #[test]
    fn skipped_rounds_change_nothing() {
        for (seed, share) in [(1, 0.18), (2, 0.5), (3, 0.9)] {
            let excess = symmetric(seed, 6);
            let top = *spectrum(excess.as_ref()).unwrap().values.last().unwrap();
            let mut epoch = WeightEpoch::new(6, 0.01);
            let found = epoch.weights(excess.as_ref(), share * top).unwrap();
            let mut exponent = Mat::zeros(6, 6);
            let expected = loop {
                exponent += faer::Scale(0.01) * &excess;
                let weights = Weights::new(exponent.as_ref()).unwrap();
                if weights.product(excess.as_ref()) > share * top {
                    break weights;
                }
            };
            assert!((found.largest - expected.largest).abs() < 1e-9, "{seed}");
        }
    }

    #[test]
    fn no_step_count_reduces_a_negative_excess() {
        let excess = faer::Scale(-1.0) * Mat::<f64>::identity(3, 3);
        assert!(WeightEpoch::new(3, 0.01).weights(excess.as_ref(), 0.1).is_none());
    }

    fn table(rows: &[[f64; 2]]) -> ClippedRecords {
        let ball = ClippingBall { centre: vec![0.0; 2], radius: 8.0 };
        ClippedRecords::new(rows.as_flattened(), &[1.0, 1.0], &ball).unwrap()
    }

    fn left(kept: &ClippedRecords) -> BTreeSet<(usize, Vec<i64>)> {
        let values = |position| kept.row(position).iter().map(|value| *value as i64).collect();
        (0..kept.len())
            .filter(|&position| kept.is_kept(position))
            .map(|position| (position, values(position)))
            .collect()
    }

    fn row() -> impl Strategy<Value = [f64; 2]> {
        [(-3i32..4).prop_map(f64::from), (-1i32..2).prop_map(f64::from)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// Lemma 2.2: after any number of filters with the same parameters, neighbours differ in at
        /// most one record on either side.
        #[test]
        fn filtered_neighbours_stay_neighbours(
            rows in prop::collection::vec(row(), 2..40),
            other in row(),
            position in any::<prop::sample::Index>(),
            filters in prop::collection::vec((0.0f64..12.0, 0usize..8, -1.0f64..1.0), 1..6),
        ) {
            let mut replaced = rows.clone();
            replaced[position.index(rows.len())] = other;
            let mut worlds = [table(&rows), table(&replaced)];
            for (threshold, most, mean) in filters {
                for kept in &mut worlds {
                    let weights = faer::mat![[8.0], [0.0]];
                    let scores = kept.scores(weights.as_ref(), &[mean / 8.0, 0.0]);
                    take_out_highest(kept, &scores, threshold, most);
                }
                let [one, other] = [0, 1].map(|world| left(&worlds[world]));
                prop_assert!(one.difference(&other).count() <= 1);
                prop_assert!(other.difference(&one).count() <= 1);
            }
        }
    }

    #[test]
    fn ties_are_broken_by_value_then_position() {
        let rows = [[1.0, 0.0], [-1.0, 2.0], [-1.0, 3.0], [1.0, 0.0], [0.5, 0.0]];
        let scores = [4.0, 4.0, 4.0, 4.0, 1.0];
        let removed = |most| {
            let mut kept = table(&rows);
            take_out_highest(&mut kept, &scores, 2.0, most);
            (0..5).filter(|&position| !kept.is_kept(position)).collect::<Vec<_>>()
        };
        assert_eq!(
            [1, 2, 3, 4, 5].map(removed),
            [vec![0], vec![0, 3], vec![0, 2, 3], vec![0, 1, 2, 3], vec![0, 1, 2, 3]]
        );
    }
}
