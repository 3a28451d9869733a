//! Selects the records that a filter removes, so that neighbours stay neighbours (Lemma 2.2 and
//! Definition C.1 of the paper).
//!
//! Of the records kept so far, a filter removes those of score at least θ, at most k = ⌈2αn⌉ of
//! them, highest first. A score is a function of one record and its position. n is the public
//! number of *all* records, so k and θ are equal for neighbours. Ties are broken by the records'
//! values, first column first, larger before smaller, and equal records by position: one total
//! order for all tables that hold them.
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

use super::release::ClippedRecords;
use std::cmp::Ordering;

/// k = ⌈2αn⌉, Definition C.1 for 𝒯_2α.
pub(super) fn largest_tail(corruption: f64, records: usize) -> usize {
    (2.0 * corruption * records as f64).ceil() as usize
}

/// Removes kept records of score at least `threshold`: at most `most`, highest first.
pub(super) fn take_out_highest(kept: &mut ClippedRecords, scores: &[f64], threshold: f64, most: usize) {
    let reaches = |&place: &usize| kept.is_kept(place) && scores[place] >= threshold;
    let mut high: Vec<usize> = (0..kept.len()).filter(reaches).collect();
    if most < high.len() {
        high.select_nth_unstable_by(most, |&a, &b| before(kept, scores, a, b));
        high.truncate(most);
    }
    high.into_iter().for_each(|place| kept.take_out(place));
}

/// Definition C.1: `Less` for the record that is removed first.
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

    fn table(rows: &[[f64; 2]]) -> ClippedRecords {
        let ball = ClippingBall { centre: vec![0.0; 2], radius: 8.0 };
        ClippedRecords::new(rows.as_flattened(), &[1.0, 1.0], &ball).unwrap()
    }

    fn left(kept: &ClippedRecords) -> BTreeSet<(usize, Vec<i64>)> {
        let values = |place| kept.row(place).iter().map(|value| *value as i64).collect();
        (0..kept.len()).filter(|&place| kept.is_kept(place)).map(|place| (place, values(place))).collect()
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
            place in any::<prop::sample::Index>(),
            filters in prop::collection::vec((0.0f64..12.0, 0usize..8, -1.0f64..1.0), 1..6),
        ) {
            let mut replaced = rows.clone();
            replaced[place.index(rows.len())] = other;
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
    fn ties_are_broken_by_values_and_then_by_place() {
        let rows = [[1.0, 0.0], [-1.0, 2.0], [-1.0, 3.0], [1.0, 0.0], [0.5, 0.0]];
        let scores = [4.0, 4.0, 4.0, 4.0, 1.0];
        let taken = |most| {
            let mut kept = table(&rows);
            take_out_highest(&mut kept, &scores, 2.0, most);
            (0..5).filter(|&place| !kept.is_kept(place)).collect::<Vec<_>>()
        };
        assert_eq!(
            [1, 2, 3, 4, 5].map(taken),
            [vec![0], vec![0, 3], vec![0, 2, 3], vec![0, 1, 2, 3], vec![0, 1, 2, 3]]
        );
    }
}
