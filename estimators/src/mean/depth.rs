//! Exact Tukey depth of a point, in up to four columns.
//!
//! The depth is the least number of records in a closed half space whose border contains the point.
//! All arithmetic is on integers, so the depth is exact for the rounded table. Replacing a record
//! changes it by at most 1.
//!
//! # By projection along records
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

use std::cmp::Ordering;

pub(super) const MOST_COLUMNS: usize = 4;

/// Bits of relative records, per number of columns: 2^(d−1)·(bits + 1) − 1 ≤ 127 for d ≥ 2.
pub(super) const BITS: [u32; MOST_COLUMNS] = [40, 40, 30, 14];

/// Returns the depth of 0 among vectors, stored one after the other, of at most [`BITS`] bits.
pub(super) fn depth(vectors: &[i128], dimension: usize) -> usize {
    let is_zero = |vector: &&[i128]| vector.iter().all(|x| *x == 0);
    let here = vectors.chunks_exact(dimension).filter(is_zero).count();
    let others: Vec<i128> =
        vectors.chunks_exact(dimension).filter(|vector| !is_zero(vector)).flatten().copied().collect();
    if is_outside(&others, dimension) { here } else { here + around(&others, dimension) }
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
fn around(vectors: &[i128], dimension: usize) -> usize {
    match dimension {
        1 => {
            let positive = vectors.iter().filter(|x| **x > 0).count();
            positive.min(vectors.len() - positive)
        }
        2 => planar(vectors),
        _ => {
            let along = |axis| along(vectors, axis, dimension);
            vectors.chunks_exact(dimension).map(along).min().unwrap_or(0)
        }
    }
}

/// Minimum over half spaces whose border is next to this vector.
fn along(vectors: &[i128], axis: &[i128], dimension: usize) -> usize {
    let pivot = (0..dimension).find(|&place| axis[place] != 0).unwrap_or(0);
    let (mut same, mut opposite) = (0, 0);
    let mut projected = Vec::with_capacity(vectors.len());
    for vector in vectors.chunks_exact(dimension) {
        let start = projected.len();
        let others = (0..dimension).filter(|&place| place != pivot);
        projected.extend(others.map(|place| vector[place] * axis[pivot] - vector[pivot] * axis[place]));
        if projected[start..].iter().all(|x| *x == 0) {
            projected.truncate(start);
            if (vector[pivot] > 0) == (axis[pivot] > 0) { same += 1 } else { opposite += 1 }
        }
    }
    around(&projected, dimension - 1) + same.min(opposite)
}

/// Two columns: sorts lines through 0 by angle and turns a half plane past them.
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
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn depths_are_right() {
        let seen = |rows: &[i128], point: &[i128]| {
            let columns = point.len();
            let vectors: Vec<i128> = rows.iter().zip(point.iter().cycle()).map(|(x, p)| x - p).collect();
            depth(&vectors, columns)
        };
        let row = [10, 20, 30, 40, 50];
        assert_eq!([0, 10, 30, 45].map(|at| seen(&row, &[at])), [0, 1, 3, 1]);
        let square = [10, 10, -10, 10, -10, -10, 10, -10];
        assert_eq!([[0, 0], [3, 1], [10, 10], [20, 0]].map(|at| seen(&square, &at)), [2, 1, 1, 0]);
        // In the middle of a cross of 2d records each pair has one on either side; a corner of a
        // simplex has only itself.
        for columns in [3, 4] {
            let axes = (0..2 * columns * columns).map(|place| {
                let (vector, column) = (place / columns, place % columns);
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

    /// Brute force: minimum over all normals of hyperplanes through d − 1 vectors, moved to either
    /// side by a later vector and so on, as counts over a fine net of directions. All cells of so
    /// few small vectors contain one.
    fn by_directions(vectors: &[i128], dimension: usize) -> usize {
        let reach = 9i128;
        let side = 2 * reach + 1;
        (0..side.pow(dimension as u32))
            .map(|place| {
                let steps = std::iter::successors(Some(place), |rest| Some(rest / side));
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
        fn planar_depth_is_that_of_all_directions(vectors in small(2)) {
            prop_assert_eq!(depth(&vectors, 2), by_directions(&vectors, 2));
        }

        #[test]
        fn depth_in_three_columns_is_that_of_all_directions(vectors in small(3)) {
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
