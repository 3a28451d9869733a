//! Which records a filter takes out, and why neighbours stay neighbours (Lemma 2.2 and Definition C.1 of the paper).
//!
//! A filter takes out, of the records kept so far, those of score at least θ, but no more than k = ⌈2αn⌉ of them, and the
//! highest first. Scores are functions of a record and its place alone; n is the number of *all* records, which is public, so k and θ
//! are the same for neighbours. Ties are broken by the records' values, the first column first, larger before smaller, and
//! equal records by their place: one total order for all tables that hold them.
//!
//! # Contraction
//! Let K and K′ have at most one record each that the other lacks. Then so have the filtered sets. *Proof.* Let C = K ∩ K′ and N
//! the number of its records of score ≥ θ. Both filters take out the highest of C, c and c′ of them, so what they leave of C is nested.
//! If K has a record a ∉ C that is taken out, c = min(k − 1, N) ; else c = min(k, N): a above θ is left only if
//! k others precede it. Likewise c′. If c = c′, the filtered sets differ in a and a′ at most. If c′ = c + 1, then a was taken out of
//! K, so the one extra record of C that K has is all that K has beyond K′, and a′ all that K′ has beyond K. ∎ By induction this
//! holds after any number of filters whose (μ, U, θ) are the same in both worlds, because they were released.

use super::records::Kept;
use std::cmp::Ordering;

/// k = ⌈2αn⌉, Definition C.1 for 𝒯_2α.
pub(super) fn largest_tail(corruption: f64, records: usize) -> usize {
    (2.0 * corruption * records as f64).ceil() as usize
}

/// Takes out what is kept and scores at least `threshold`: at most `most` records, the highest first.
pub(super) fn take_out_highest(kept: &mut Kept, scores: &[f64], threshold: f64, most: usize) {
    let reaches = |&place: &usize| kept.is_kept(place) && scores[place] >= threshold;
    let mut high: Vec<usize> = (0..kept.len()).filter(reaches).collect();
    if most < high.len() {
        high.select_nth_unstable_by(most, |&a, &b| before(kept, scores, a, b));
        high.truncate(most);
    }
    high.into_iter().for_each(|place| kept.take_out(place));
}

/// Definition C.1: `Less` for the record that is taken out first.
fn before(kept: &Kept, scores: &[f64], a: usize, b: usize) -> Ordering {
    let by_score = scores[b].total_cmp(&scores[a]);
    let values =
        || kept.row(a).iter().zip(kept.row(b)).map(|(x, y)| y.total_cmp(x)).find(|order| order.is_ne());
    by_score.then_with(|| values().unwrap_or(Ordering::Equal)).then(a.cmp(&b))
}

#[cfg(test)]
mod tests {
    use super::super::records::Ball;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn table(rows: &[[f64; 2]]) -> Kept {
        let ball = Ball { centre: vec![0.0; 2], radius: 8.0 };
        Kept::new(rows.as_flattened(), &[1.0, 1.0], &ball).unwrap()
    }

    fn left(kept: &Kept) -> BTreeSet<(usize, Vec<i64>)> {
        let values = |place| kept.row(place).iter().map(|value| *value as i64).collect();
        (0..kept.len()).filter(|&place| kept.is_kept(place)).map(|place| (place, values(place))).collect()
    }

    /// Values of few kinds, so that there are many ties.
    fn row() -> impl Strategy<Value = [f64; 2]> {
        [(-3i32..4).prop_map(f64::from), (-1i32..2).prop_map(f64::from)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// Lemma 2.2: after any number of filters with the same parameters, neighbours differ in one record on either side at most.
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

    /// The order of Definition C.1, whatever the order of records.
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
