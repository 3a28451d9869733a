//! The private Tukey median: Algorithm 14 of the paper, for up to four columns.
//!
//! The depth of a point is the least number of records on one side of a hyperplane through it. The
//! exponential mechanism draws a point of a grid over [−2R, 2R]^d with probability ∝
//! exp(ε·depth/2). This is ε-private, because one replaced record changes a depth by at most 1
//! (Proposition I.2). It needs no δ, no sensitivity in units of data and no bound on records.
//!
//! The paper draws from a density. Here the points are a public net, records are rounded one by one
//! to an integer grid, and the draw is exact ([`ExponentialMechanism`]). A record that is not
//! finite does not count on either side of any hyperplane.
//!
//! # Depth
//! The code uses only hyperplanes with a normal in a public set: all integer vectors whose largest
//! entry is m, up to their sign. So the depth is the minimum of counts of records in half spaces
//! that do not depend on the data, computed in integers. *Sensitivity.* A replaced record changes
//! each count, and so the minimum, by at most 1. ∎
//!
//! *Accuracy.* Some normal is within φ of every direction, tan φ ≤ √(d−1)/(2m). A point at distance
//! r from the centre of a symmetric table is outside of a half space at distance r·cos φ, so its
//! depth is at most the depth of a point at r·cos φ with respect to all hyperplanes. The error of
//! the median grows by a factor of at most 1/cos φ, which is below 1.011 for the m here.
//!
//! Each normal requires a sort of the projected records, and a look-up for each point. The net has
//! a spacing of α/2 scales if that is feasible, else as fine as feasible, but at most half a scale.
//! A table that would need a coarser net is refused. This depends on its size alone.

use super::release::in_parallel;
use super::resilience::Net;
use super::{MeanAnswer, MeanError, MeanEstimate, Question, StepCost};
use hushflow_mechanism::noise::NoiseGenerator;
use hushflow_mechanism::noise::selection::ExponentialMechanism;

/// Maximum work: normals times points, and normals times records.
const MAX_STEPS: f64 = 1e9;

/// Maximum number of points of the net.
const MAX_POINTS: f64 = 4e6;

/// Spacing of the points in scales, as a share of α, unless that is less than [`FINEST`].
const SPACING: f64 = 0.5;
const FINEST: f64 = 0.01;

/// Coarsest useful net.
const COARSEST: f64 = 0.5;

/// Maximum number of columns.
const MAX_COLUMNS: usize = 4;

/// Largest entry m of the normals, for each number of columns.
const LARGEST_ENTRIES: [i64; MAX_COLUMNS] = [1, 45, 12, 6];

/// Units of a record's grid in 2R scales. Projections stay below 2⁴⁹.
const UNIT: f64 = (1u64 << 40) as f64;

/// Number of groups of normals, each with the least counts of all points.
const GROUPS: usize = 4;

pub(super) fn estimate(
    rows: &[f64],
    (scales, range): (&[f64], f64),
    question: &Question,
    rng: &mut NoiseGenerator,
) -> Result<MeanAnswer, MeanError> {
    let net = net(rows.len() / scales.len(), scales.len(), range, question)?;
    let scores = scores(&rounded(rows, scales, range), &net);
    let selection = ExponentialMechanism::pure(question.epsilon, 1).map_err(|_| MeanError::Noise)?;
    let mean = net.draw(&selection, &scores, scales, rng)?;
    let spent = question.epsilon.value();
    let part = StepCost { step: "median", releases: 1, squared_mu: 0.0, epsilon: spent, delta: 0.0 };
    let noise = scales.iter().map(|scale| scale * net.spacing()).collect();
    let outcome = Ok(MeanEstimate { mean, noise, kept: None, converged: true });
    Ok(MeanAnswer { method: question.method, outcome, parts: vec![part], spent })
}

fn net(records: usize, dimension: usize, range: f64, question: &Question) -> Result<Net, MeanError> {
    let too_large = |what, found: usize, most: f64| MeanError::TooLarge {
        method: question.method,
        what,
        found: found as f64,
        most: most.floor(),
    };
    if dimension > MAX_COLUMNS {
        return Err(too_large("columns", dimension, MAX_COLUMNS as f64));
    }
    let (half_width, columns) = (2.0 * range, dimension as f64);
    let most = (MAX_STEPS / normals(dimension).len() as f64).floor();
    let affordable = most.min(MAX_POINTS).powf(columns.recip()).floor();
    let finest = Net::side_of(half_width, (question.corruption * SPACING).max(FINEST));
    let least = Net::side_of(half_width, COARSEST);
    if affordable < least.min(finest) {
        return Err(too_large("records for a net over this range", records, 0.0));
    }
    if records as f64 > most {
        return Err(too_large("records for a net over this range", records, most));
    }
    Ok(Net { side: finest.min(affordable) as usize, dimension, half_width })
}

/// All integer vectors whose largest entry is m, one of each pair of opposite ones.
fn normals(dimension: usize) -> Vec<Vec<i64>> {
    let most = LARGEST_ENTRIES[dimension - 1];
    let side = 2 * most + 1;
    let vector = |index: i64| -> Vec<i64> {
        let steps = std::iter::successors(Some(index), |rest| Some(rest / side));
        steps.take(dimension).map(|rest| rest % side - most).collect()
    };
    let is_kept = |vector: &Vec<i64>| {
        let first = vector.iter().find(|entry| **entry != 0);
        first.is_some_and(|first| *first > 0) && vector.iter().any(|entry| entry.abs() == most)
    };
    (0..side.pow(dimension as u32)).map(vector).filter(is_kept).collect()
}

/// Finite records in units of the grid, within ±4R.
fn rounded(rows: &[f64], scales: &[f64], range: f64) -> Vec<i64> {
    let finite = rows.chunks_exact(scales.len()).filter(|row| row.iter().all(|value| value.is_finite()));
    let position = |(value, scale): (&f64, &f64)| {
        (value / scale / (2.0 * range) * UNIT).clamp(-2.0 * UNIT, 2.0 * UNIT).round() as i64
    };
    finite.flat_map(|row| row.iter().zip(scales).map(position)).collect()
}

/// The depth of each point of the net.
fn scores(records: &[i64], net: &Net) -> Vec<i128> {
    let points: Vec<i64> = (0..net.len())
        .flat_map(|index| net.point(index))
        .map(|value| (value / net.half_width * UNIT).round() as i64)
        .collect();
    depths(records, &points, net.dimension).into_iter().map(i128::from).collect()
}

/// The depth of each point among records, both stored one after the other.
fn depths(records: &[i64], points: &[i64], dimension: usize) -> Vec<u32> {
    let normals = normals(dimension);
    let groups: Vec<_> = normals.chunks(normals.len().div_ceil(GROUPS)).collect();
    let least = |normals: &&[Vec<i64>]| {
        let mut least = vec![u32::MAX; points.len() / dimension];
        for normal in *normals {
            let projected = |vector: &[i64]| vector.iter().zip(normal).map(|(x, n)| x * n).sum::<i64>();
            let ranks = Ranks::new(records.chunks_exact(dimension).map(projected).collect());
            for (least, point) in least.iter_mut().zip(points.chunks_exact(dimension)) {
                *least = ranks.lesser_side(projected(point)).min(*least);
            }
        }
        least
    };
    let mut groups = in_parallel(&groups, least).into_iter();
    let mut depths = groups.next().unwrap_or_default();
    for group in groups {
        depths.iter_mut().zip(group).for_each(|(depth, other)| *depth = other.min(*depth));
    }
    depths
}

/// Counts of values on either side of a position on a line.
struct Ranks {
    /// Distinct values in order.
    values: Vec<i64>,
    /// Number of values below each distinct value, and at the end the number of all values.
    below: Vec<u32>,
    /// For each interval of 2^`shift` from the first value on, the index of the first distinct
    /// value in it or after it.
    starts: Vec<u32>,
    shift: u32,
}

impl Ranks {
    fn new(mut all: Vec<i64>) -> Self {
        all.sort_unstable();
        let (mut values, mut below) = (Vec::new(), Vec::new());
        for (index, value) in all.iter().enumerate() {
            if values.last() != Some(value) {
                values.push(*value);
                below.push(index as u32);
            }
        }
        below.push(all.len() as u32);
        let width = values.last().zip(values.first()).map_or(0, |(last, first)| last.abs_diff(*first));
        // About as many intervals as values.
        let shift = (u64::BITS - width.leading_zeros()).saturating_sub(values.len().max(1).ilog2());
        let mut starts = vec![values.len() as u32; (width >> shift) as usize + 2];
        for (index, value) in values.iter().enumerate().rev() {
            starts[(value.abs_diff(values[0]) >> shift) as usize] = index as u32;
        }
        for interval in (1..starts.len()).rev() {
            starts[interval - 1] = starts[interval - 1].min(starts[interval]);
        }
        Self { values, below, starts, shift }
    }

    /// The smaller of two counts: values up to a position, and values from it on.
    fn lesser_side(&self, position: i64) -> u32 {
        match (self.values.first(), self.values.last()) {
            (Some(first), Some(last)) if (*first..=*last).contains(&position) => {
                let interval = (position.abs_diff(*first) >> self.shift) as usize;
                let [from, to] = [0, 1].map(|next| self.starts[interval + next] as usize);
                let index = from + self.values[from..to].partition_point(|value| *value < position);
                let equal = usize::from(self.values.get(index) == Some(&position));
                self.below[index + equal].min(self.below[self.values.len()] - self.below[index])
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MeanMethod, Scale, estimate};
    use super::*;
    use hushflow_mechanism::accounting::{Delta, Epsilon};
    use hushflow_mechanism::noise::NoiseSource;
    use proptest::prelude::*;

    fn question(columns: usize, epsilon: f64) -> Question {
        Question {
            method: MeanMethod::Tukey,
            epsilon: Epsilon::new(epsilon).expect("an epsilon"),
            delta: Delta::new(1e-6).expect("a delta"),
            corruption: 0.1,
            scale: Scale::Known(vec![1.0; columns]),
            range: Some(2.0),
        }
    }

    /// A tenth of the records at 50, the others around 1 in all columns.
    fn table(records: usize, columns: usize) -> Vec<f64> {
        let value = |position: usize| {
            let (record, column) = (position / columns, position % columns);
            let spread = record * [7919, 104_729, 1_299_709][column] % 1000;
            if record % 10 == 0 { 50.0 } else { spread as f64 / 500.0 }
        };
        (0..records * columns).map(value).collect()
    }

    #[test]
    fn ranges_of_any_size_have_a_median() {
        for range in [1e-300, 1e-30, 1e-3] {
            let question = Question { range: Some(range), ..question(1, 1.0) };
            let mut rng = NoiseSource::Seeded(1).generator(0, 0).unwrap();
            let found = estimate(&table(60, 1), 1, &question, &mut rng).unwrap().outcome.unwrap();
            assert!(found.mean[0].abs() <= 2.0 * range, "{range}: {found:?}");
        }
    }

    #[test]
    fn the_median_is_found_among_corrupted_records() {
        for (columns, records, epsilon, most) in [(1, 400, 1.0, 0.4), (2, 400, 2.0, 0.5), (3, 400, 10.0, 0.5)]
        {
            let rows = table(records, columns);
            let mut rng = NoiseSource::Seeded(1).generator(0, 0).unwrap();
            let answer = estimate(&rows, columns, &question(columns, epsilon), &mut rng).unwrap();
            let found = answer.outcome.unwrap();
            assert!(found.mean.iter().all(|mean| (mean - 1.0).abs() < most), "{columns}: {found:?}");
            assert_eq!(answer.parts[0].epsilon, answer.spent);
        }
    }

    #[test]
    fn refusals_name_a_feasible_size() {
        let refused = |records, columns| net(records, columns, 2.0, &question(columns, 1.0)).unwrap_err();
        for columns in [3, 4] {
            let MeanError::TooLarge { most, .. } = refused(1_000_000, columns) else { panic!("{columns}") };
            let largest = net(most as usize, columns, 2.0, &question(columns, 1.0)).unwrap();
            assert!(largest.spacing() <= COARSEST && most > 10.0, "{columns}: {most}");
            assert!(matches!(refused(most as usize + 1, columns), MeanError::TooLarge { .. }), "{columns}");
        }
        assert!(refused(10, 5).to_string().contains("5 columns are more than the 4"), "{}", refused(10, 5));
    }

    /// Attack: each probability of the draw, by its definition, changes by at most e^ε when a
    /// record moves through the middle.
    #[test]
    fn a_replaced_record_changes_each_probability_by_at_most_epsilon() {
        let (columns, epsilon) = (3, 1.5);
        let rows = table(24, columns);
        let net = Net { side: 5, dimension: columns, half_width: 4.0 };
        let probabilities = |rows: &[f64]| {
            let scores = scores(&rounded(rows, &[1.0; 3], 2.0), &net);
            let weights: Vec<f64> =
                scores.iter().map(|depth| (epsilon / 2.0 * *depth as f64).exp()).collect();
            let total: f64 = weights.iter().sum();
            weights.iter().map(|weight| weight / total).collect::<Vec<_>>()
        };
        let before = probabilities(&rows);
        for other in [[1.0, 1.0, 1.0], [-50.0, 3.0, 0.0], [f64::NAN, 0.0, 0.0], [1e300, -1e300, 1.0]] {
            let mut replaced = rows.clone();
            replaced[..3].copy_from_slice(&other);
            let after = probabilities(&replaced);
            assert!(before.iter().zip(&after).all(|(a, b)| (a / b).ln().abs() <= epsilon), "{other:?}");
        }
    }

    #[test]
    fn depths_agree_with_known_values() {
        let depth_at = |rows: &[i64], point: &[i64]| depths(rows, point, point.len())[0];
        let row = [10, 20, 30, 40, 50];
        assert_eq!([0, 10, 30, 45].map(|at| depth_at(&row, &[at])), [0, 1, 3, 1]);
        assert_eq!(depths(&row, &[0, 10, 30, 45, 60], 1), [0, 1, 3, 1, 0]);
        let square = [10, 10, -10, 10, -10, -10, 10, -10];
        assert_eq!([[0, 0], [3, 1], [10, 10], [20, 0]].map(|at| depth_at(&square, &at)), [2, 1, 1, 0]);
        assert_eq!(depth_at(&[], &[1, 2]), 0);
        // At the middle of a cross of 2d records, each pair has one record on either side.
        for columns in [3, 4] {
            let axes = (0..2 * columns * columns).map(|position| {
                let (vector, column) = (position / columns, position % columns);
                if vector / 2 == column { [1, -1][vector % 2] << 12 } else { 0 }
            });
            let cross: Vec<i64> = axes.collect();
            let middle = vec![0; columns];
            assert_eq!(depth_at(&cross, &middle), columns as u32);
            let twice = [cross.clone(), middle.clone()].concat();
            assert_eq!(depth_at(&twice, &middle), columns as u32 + 1, "one at the point itself");
        }
    }

    /// Checks the largest angle between random directions and their nearest normals.
    #[test]
    fn normals_cover_all_directions() {
        let mut rng = NoiseSource::Seeded(7).generator(0, 0).unwrap();
        for dimension in 2..=MAX_COLUMNS {
            let normals = normals(dimension);
            let most = LARGEST_ENTRIES[dimension - 1] as f64;
            let bound = ((dimension as f64 - 1.0).sqrt() / (2.0 * most)).atan();
            assert!(bound.cos().recip() < 1.011, "{dimension}");
            for _ in 0..200 {
                let vector: Vec<f64> = (0..dimension).map(|_| uniform(&mut rng)).collect();
                let norm = |vector: &[f64]| vector.iter().map(|x| x * x).sum::<f64>().sqrt();
                let cosine = |normal: &Vec<i64>| {
                    let normal: Vec<f64> = normal.iter().map(|x| *x as f64).collect();
                    let product: f64 = normal.iter().zip(&vector).map(|(a, b)| a * b).sum();
                    product.abs() / norm(&normal) / norm(&vector)
                };
                let nearest = normals.iter().map(cosine).fold(0.0, f64::max);
                assert!(nearest.min(1.0).acos() <= bound + 1e-7, "{dimension} {vector:?}");
            }
        }
    }

    fn uniform(rng: &mut NoiseGenerator) -> f64 {
        use rand::Rng;
        rng.next_u64() as f64 / (1u64 << 63) as f64 - 1.0
    }

    /// The depth by its definition: the least count on one side of any hyperplane.
    fn by_counting(records: &[i64], point: &[i64]) -> u32 {
        let dimension = point.len();
        let least = |normal: Vec<i64>| {
            let side = |record: &[i64]| {
                record.iter().zip(point).zip(&normal).map(|((x, p), n)| (x - p) * n).sum::<i64>()
            };
            let count = |sign: i64| records.chunks_exact(dimension).filter(|r| sign * side(r) >= 0).count();
            count(1).min(count(-1)) as u32
        };
        normals(dimension).into_iter().map(least).min().unwrap_or(0)
    }

    fn small(dimension: usize) -> impl Strategy<Value = Vec<i64>> {
        (1usize..30).prop_flat_map(move |count| prop::collection::vec(-4i64..5, count * dimension))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn depths_agree_with_their_definition(
            dimension in 1..4usize, records in small(12), points in small(12), large in any::<bool>(),
        ) {
            let unit = if large { (UNIT / 4.0) as i64 } else { 1 };
            let [records, points] = [records, points].map(|v| v.iter().map(|x| x * unit).collect::<Vec<_>>());
            let found = depths(&records, &points, dimension);
            for (point, depth) in points.chunks_exact(dimension).zip(found) {
                prop_assert_eq!(depth, by_counting(&records, point));
            }
        }

        /// A replaced record changes each depth by at most 1, in any number of columns. The largest
        /// coordinates do not overflow.
        #[test]
        fn depth_has_sensitivity_one(
            rows in prop::collection::vec([-1i64..2, -1i64..2, -1i64..2, -1i64..2], 2..9),
            other in [-1i64..2, -1i64..2, -1i64..2, -1i64..2],
            large in any::<bool>(),
        ) {
            for dimension in 1..=MAX_COLUMNS {
                let unit = if large { 2 * UNIT as i64 } else { 1 };
                let vectors = |rows: &[[i64; 4]]| -> Vec<i64> {
                    rows.iter().flat_map(|row| row[..dimension].iter().map(|x| x * unit)).collect()
                };
                let mut replaced = rows.clone();
                replaced[0] = other;
                let points = vectors(&rows);
                let [one, other] = [&rows, &replaced].map(|rows| depths(&vectors(rows), &points, dimension));
                for (one, other) in one.into_iter().zip(other) {
                    prop_assert!(one.abs_diff(other) <= 1, "{}: {} {}", dimension, one, other);
                }
            }
        }
    }
}
