//! The private Tukey median: Algorithm 14 of the paper, for up to four columns.
//!
//! The Tukey depth of a point is the least number of records on one side of a hyperplane through
//! it. The exponential mechanism draws a point of a grid over [−2R, 2R]^d with probability ∝
//! exp(ε·depth/2). This is ε-private, because one replaced record changes a depth by at most 1
//! (Proposition I.2). It needs no δ, no sensitivity in units of data and no bound on records.
//!
//! The paper draws from a density. Here the points are a public net, depths are exact integers of
//! records rounded to an integer grid, and the draw is exact ([`Selection`]). Rounding
//! acts on each record alone, so the proof does not change; floating-point depths have no proven
//! sensitivity. A record that is not finite is on no side of any hyperplane, so depths still change
//! by at most 1.
//!
//! Depths take n^(d−1) steps for each point. The net has a spacing of α/2 scales if that is
//! feasible, else as fine as feasible, but no coarser than half a scale; beyond that the table is
//! refused, by its size alone.
//!
//! # Depth
//! This file computes the exact Tukey depth of a point, in up to four columns.
//!
//! The depth is the least number of records in a closed half space whose border contains the point.
//! All arithmetic is on integers, so the depth is exact for the rounded table. Replacing a record
//! changes it by at most 1.
//!
//! ## By projection along records
//! Let x₁, …, xₙ be the records relative to the point, none of them 0 (a record at the point is in
//! every half space). Then `depth = min_i [depth of the others, projected along x_i + the lesser of
//! the records on either side of 0 on the line of x_i]` (Dyckerhoff & Mozharovskyi 2016, Theorem
//! 1). *Proof.* A half space {v·x ≥ 0} whose border holds records loses some of them when v is
//! moved a little. So the minimum is attained at a v off all the planes x_i·v = 0, inside a cell of
//! their arrangement. Some x_i bounds the cell. Let w be a point of that face that is on no other
//! plane except those of records on the line of x_i. v = w ± εx_i separates the records off that
//! line as w does, by their projections along x_i, and those on it by the sign. Each combination of
//! such a w and a sign is a v. ∎
//!
//! So d columns take n^(d−1)·log n steps. In two columns a half plane turns around the point
//! through sorted lines.
//!
//! Projecting doubles the bits of numbers. [`BITS`] leaves room for the last product in 128 bits.

use super::release::in_parallel;
use super::resilience::Net;
use super::{MeanAnswer, MeanError, MeanEstimate, Question, StepCost};
use hushflow_mechanism::noise::NoiseGenerator;
use hushflow_mechanism::noise::selection::Selection;
use std::cmp::Ordering;

/// Maximum work: points times records to the power max(columns − 1, 1).
const MOST_STEPS: f64 = 1e9;

/// Maximum number of points of the net.
const MOST_POINTS: f64 = 4e6;

/// Spacing of the points in scales, as a share of α, unless that is less than [`FINEST`].
const SPACING: f64 = 0.5;
const FINEST: f64 = 0.01;

/// Coarsest useful net.
const COARSEST: f64 = 0.5;

/// Points that one worker scores at a time.
const POINTS_PER_TASK: usize = 64;

pub(super) fn estimate(
    rows: &[f64],
    (scales, range): (&[f64], f64),
    question: &Question,
    rng: &mut NoiseGenerator,
) -> Result<MeanAnswer, MeanError> {
    let net = net(rows.len() / scales.len(), scales.len(), range, question)?;
    let records = rounded(rows, scales, range);
    let scores = scores(&records, &net);
    let selection = Selection::pure(question.epsilon, 1).map_err(|_| MeanError::Noise)?;
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
    if dimension > MOST_COLUMNS {
        return Err(too_large("columns", dimension, MOST_COLUMNS as f64));
    }
    let half_width = 2.0 * range;
    let [columns, of_records] = [dimension as f64, (dimension as f64 - 1.0).max(1.0)];
    let points = (MOST_STEPS / (records as f64).powf(of_records)).min(MOST_POINTS);
    let affordable = points.powf(columns.recip()).floor();
    let finest = Net::side_of(half_width, (question.corruption * SPACING).max(FINEST));
    let least = Net::side_of(half_width, COARSEST);
    if affordable < least.min(finest) {
        let most = (MOST_STEPS / least.powf(columns)).powf(of_records.recip());
        let fits = least.powf(columns) <= MOST_POINTS;
        return Err(too_large("records for a net over this range", records, if fits { most } else { 0.0 }));
    }
    Ok(Net { side: finest.min(affordable) as usize, dimension, half_width })
}

/// Number of units of a record's grid in 2R scales.
fn unit(dimension: usize) -> f64 {
    2_f64.powi(BITS[dimension - 1] as i32 - 2)
}

/// Records in units of 2R/2^(bits−2) scales, within ±4R, without those that are not finite.
fn rounded(rows: &[f64], scales: &[f64], range: f64) -> Vec<i128> {
    let unit = unit(scales.len());
    let finite = rows.chunks_exact(scales.len()).filter(|row| row.iter().all(|value| value.is_finite()));
    let position = |(value, scale): (&f64, &f64)| {
        (value / scale / (2.0 * range) * unit).clamp(-2.0 * unit, 2.0 * unit).round() as i128
    };
    finite.flat_map(|row| row.iter().zip(scales).map(position)).collect()
}

fn scores(records: &[i128], net: &Net) -> Vec<i128> {
    let unit = unit(net.dimension);
    let runs: Vec<_> = (0..net.len()).step_by(POINTS_PER_TASK).collect();
    let score = |position: usize| {
        let point: Vec<i128> =
            net.point(position).iter().map(|value| (value / net.half_width * unit).round() as i128).collect();
        let differences: Vec<i128> = records.iter().zip(point.iter().cycle()).map(|(x, p)| x - p).collect();
        depth(&differences, net.dimension) as i128
    };
    in_parallel(&runs, |&run| (run..net.len().min(run + POINTS_PER_TASK)).map(score).collect::<Vec<_>>())
        .concat()
}

/// Maximum number of columns.
pub(super) const MOST_COLUMNS: usize = 4;

/// Bits of relative records, per number of columns: 2^(d−1)·(bits + 1) − 1 ≤ 127 for d ≥ 2.
pub(super) const BITS: [u32; MOST_COLUMNS] = [40, 40, 30, 14];

/// Returns the depth of 0 among vectors, stored one after the other, of at most [`BITS`] bits.
pub(super) fn depth(vectors: &[i128], dimension: usize) -> usize {
    let is_zero = |vector: &&[i128]| vector.iter().all(|x| *x == 0);
    let at_origin = vectors.chunks_exact(dimension).filter(is_zero).count();
    let others: Vec<i128> =
        vectors.chunks_exact(dimension).filter(|vector| !is_zero(vector)).flatten().copied().collect();
    if is_outside(&others, dimension) { at_origin } else { at_origin + nonzero_depth(&others, dimension) }
}

/// Whether all vectors are on the same side as their sum, so that the depth is 0: a quick test for
/// most points of a net.
fn is_outside(vectors: &[i128], dimension: usize) -> bool {
    let mut sum = vec![0; dimension];
    for vector in vectors.chunks_exact(dimension) {
        sum.iter_mut().zip(vector).for_each(|(sum, x)| *sum += x);
    }
    let product = |vector: &[i128]| vector.iter().zip(&sum).map(|(x, sum)| x * sum).sum::<i128>();
    vectors.chunks_exact(dimension).all(|vector| product(vector) > 0)
}

/// Returns the depth of 0 among nonzero vectors.
fn nonzero_depth(vectors: &[i128], dimension: usize) -> usize {
    match dimension {
        1 => {
            let positive = vectors.iter().filter(|x| **x > 0).count();
            positive.min(vectors.len() - positive)
        }
        2 => planar(vectors),
        _ => {
            let depth_beside = |axis| depth_beside(vectors, axis, dimension);
            vectors.chunks_exact(dimension).map(depth_beside).min().unwrap_or(0)
        }
    }
}

/// Returns the minimum over half spaces whose border is next to the vector `axis`.
fn depth_beside(vectors: &[i128], axis: &[i128], dimension: usize) -> usize {
    let pivot = (0..dimension).find(|&position| axis[position] != 0).unwrap_or(0);
    let (mut same, mut opposite) = (0, 0);
    let mut projected = Vec::with_capacity(vectors.len());
    for vector in vectors.chunks_exact(dimension) {
        let start = projected.len();
        let others = (0..dimension).filter(|&position| position != pivot);
        projected
            .extend(others.map(|position| vector[position] * axis[pivot] - vector[pivot] * axis[position]));
        if projected[start..].iter().all(|x| *x == 0) {
            projected.truncate(start);
            if (vector[pivot] > 0) == (axis[pivot] > 0) { same += 1 } else { opposite += 1 }
        }
    }
    nonzero_depth(&projected, dimension - 1) + same.min(opposite)
}

/// Returns the depth in two columns: sorts lines through 0 by angle and turns a half plane past
/// them.
fn planar(vectors: &[i128]) -> usize {
    let line = |vector: &[i128]| {
        let (x, y) = (vector[0], vector[1]);
        let upper = y > 0 || y == 0 && x > 0;
        if upper { (x, y, true) } else { (-x, -y, false) }
    };
    let turn = |a: &(i128, i128, bool), b: &(i128, i128, bool)| (a.1 * b.0).cmp(&(a.0 * b.1));
    let mut lines: Vec<_> = vectors.chunks_exact(2).map(line).collect();
    lines.sort_unstable_by(turn);
    let mut inside = lines.iter().filter(|line| line.2).count();
    let lesser = |inside: usize| inside.min(lines.len() - inside);
    let mut least = lesser(inside);
    for line in lines.chunk_by(|a, b| turn(a, b) == Ordering::Equal) {
        let leaving = line.iter().filter(|line| line.2).count();
        inside = inside - leaving + (line.len() - leaving);
        least = least.min(lesser(inside));
    }
    least
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
    #[ignore = "slow"]
    fn the_median_is_found_among_corrupted_records() {
        for (columns, records, epsilon, most) in [(1, 400, 1.0, 0.4), (2, 400, 2.0, 0.5), (3, 90, 10.0, 0.8)]
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
        let depth_at = |rows: &[i128], point: &[i128]| {
            let columns = point.len();
            let vectors: Vec<i128> = rows.iter().zip(point.iter().cycle()).map(|(x, p)| x - p).collect();
            depth(&vectors, columns)
        };
        let row = [10, 20, 30, 40, 50];
        assert_eq!([0, 10, 30, 45].map(|at| depth_at(&row, &[at])), [0, 1, 3, 1]);
        let square = [10, 10, -10, 10, -10, -10, 10, -10];
        assert_eq!([[0, 0], [3, 1], [10, 10], [20, 0]].map(|at| depth_at(&square, &at)), [2, 1, 1, 0]);
        // At the middle of a cross of 2d records, each pair has one record on either side. A corner
        // of a simplex has only itself.
        for columns in [3, 4] {
            let axes = (0..2 * columns * columns).map(|position| {
                let (vector, column) = (position / columns, position % columns);
                if vector / 2 == column { [1, -1][vector % 2] << 12 } else { 0 }
            });
            let cross: Vec<i128> = axes.collect();
            assert_eq!(depth(&cross, columns), columns);
            let twice = [cross.clone(), vec![0; columns]].concat();
            assert_eq!(depth(&twice, columns), columns + 1, "one at the point itself");
            let simplex: Vec<i128> =
                (0..columns * columns).map(|p| i128::from(p % (columns + 1) == 0)).collect();
            let with = |last: i128| [simplex.clone(), vec![last; columns]].concat();
            assert_eq!((depth(&with(-1), columns), depth(&with(1), columns)), (1, 0));
        }
    }

    /// Brute force: the minimum over a net of directions so fine that every cell of the arrangement
    /// of such small vectors contains one.
    fn by_directions(vectors: &[i128], dimension: usize) -> usize {
        let reach = 9i128;
        let side = 2 * reach + 1;
        (0..side.pow(dimension as u32))
            .map(|position| {
                let steps = std::iter::successors(Some(position), |rest| Some(rest / side));
                steps.take(dimension).map(|rest| rest % side - reach).collect::<Vec<_>>()
            })
            .filter(|direction| direction.iter().any(|x| *x != 0))
            .map(|direction| {
                let product = |v: &[i128]| v.iter().zip(&direction).map(|(x, d)| x * d).sum::<i128>();
                vectors.chunks_exact(dimension).filter(|v| product(v) >= 0).count()
            })
            .min()
            .unwrap_or(0)
    }

    fn small(dimension: usize) -> impl Strategy<Value = Vec<i128>> {
        (1usize..9).prop_flat_map(move |count| prop::collection::vec(-1i128..2, count * dimension))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn planar_depth_agrees_with_all_directions(vectors in small(2)) {
            prop_assert_eq!(depth(&vectors, 2), by_directions(&vectors, 2));
        }

        #[test]
        fn depth_in_three_columns_agrees_with_all_directions(vectors in small(3)) {
            prop_assert_eq!(depth(&vectors, 3), by_directions(&vectors, 3));
        }

        /// A replaced record changes no depth by more than 1, in any number of columns; the largest
        /// numbers fit.
        #[test]
        fn depth_has_sensitivity_one(
            rows in prop::collection::vec([-1i128..2, -1i128..2, -1i128..2, -1i128..2], 2..9),
            other in [-1i128..2, -1i128..2, -1i128..2, -1i128..2],
            large in any::<bool>(),
        ) {
            for dimension in 1..=MOST_COLUMNS {
                let unit = if large { (1 << BITS[dimension - 1]) - 1 } else { 1 };
                let vectors = |rows: &[[i128; 4]]| -> Vec<i128> {
                    rows.iter().flat_map(|row| row[..dimension].iter().map(|x| x * unit)).collect()
                };
                let mut replaced = rows.clone();
                replaced[0] = other;
                let [one, other] = [&rows, &replaced].map(|rows| depth(&vectors(rows), dimension));
                prop_assert!(one.abs_diff(other) <= 1, "{}: {} {}", dimension, one, other);
            }
        }
    }
}
