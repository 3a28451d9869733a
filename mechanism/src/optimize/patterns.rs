//! The multipliers of one class of steps and their matrix U.
//!
//! A class of m steps has the patterns of k consecutive members, or one of all members if m ≤ k.
//! Pattern π has a multiplier v_π of `Σ_(i,j ∈ π) X_ij ≤ 1`. A pair of steps i > j that share a
//! pattern has a multiplier w_ij of `X_ij ≥ 0`. They make `U_ij = Σ_(π ∋ i,j) v_π − w_ij`, with
//! w_ii = 0; pairs without a common pattern have U_ij = 0. Both are in one list: the v_π in the
//! order of their first steps, then the w_ij row by row. v alone determines the diagonal, so (v, w)
//! and U determine each other.

use faer::{Mat, linalg::solvers::Solve};
use std::ops::RangeInclusive;

pub(super) struct Patterns {
    members: usize,
    length: usize,
    /// The pseudo-inverse of v ↦ diag U.
    inverse: Mat<f64>,
}

impl Patterns {
    /// Makes the patterns of a class of `members`, with `count` consecutive members each.
    pub(super) fn new(members: usize, count: usize) -> Self {
        let length = count.min(members);
        let patterns = members - length + 1;
        let shared = |p: usize, q: usize| length.saturating_sub(p.abs_diff(q)) as f64;
        let holds = Mat::from_fn(patterns, members, |p, i| f64::from(u8::from((p..p + length).contains(&i))));
        let inverse = Mat::from_fn(patterns, patterns, shared).partial_piv_lu().solve(holds);
        Self { members, length, inverse }
    }

    pub(super) fn number(&self) -> usize {
        self.members - self.length + 1
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }

    pub(super) fn multipliers(&self) -> usize {
        self.number() + self.pairs().count()
    }

    /// Pairs i > j that share a pattern.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.members).flat_map(|i| (self.first(i)..i).map(move |j| (i, j)))
    }

    /// Earliest member that shares a pattern with member i.
    pub(super) fn first(&self, i: usize) -> usize {
        (i + 1).saturating_sub(self.length)
    }

    /// Patterns that contain both i ≥ j.
    pub(super) fn holding(&self, i: usize, j: usize) -> RangeInclusive<usize> {
        self.first(i)..=j.min(self.members - self.length)
    }

    /// Column π of the pseudo-inverse's transpose.
    pub(super) fn diagonal_of(&self, pattern: usize) -> impl Iterator<Item = f64> {
        (0..self.members).map(move |i| self.inverse[(pattern, i)])
    }

    /// U.
    pub(super) fn matrix(&self, multipliers: &[f64]) -> Mat<f64> {
        let (v, w) = multipliers.split_at(self.number());
        let shared = |i, j| v[self.holding(i, j)].iter().sum::<f64>();
        let mut matrix = Mat::zeros(self.members, self.members);
        (0..self.members).for_each(|i| matrix[(i, i)] = shared(i, i));
        for ((i, j), w) in self.pairs().zip(w) {
            let entry = shared(i, j) - w;
            (matrix[(i, j)], matrix[(j, i)]) = (entry, entry);
        }
        matrix
    }

    /// The adjoint of [`matrix`](Self::matrix): the sums of X over patterns and `−2 X_ij`.
    pub(super) fn seen(&self, matrix: &Mat<f64>) -> Vec<f64> {
        let mut seen = vec![0.0; self.number()];
        let mut add = |i, j, entry: f64| seen[self.holding(i, j)].iter_mut().for_each(|sum| *sum += entry);
        (0..self.members).for_each(|i| add(i, i, matrix[(i, i)]));
        let mut pairs = Vec::new();
        for (i, j) in self.pairs() {
            let entry = matrix[(i, j)] + matrix[(j, i)];
            add(i, j, entry);
            pairs.push(-entry);
        }
        seen.extend(pairs);
        seen
    }

    /// The multipliers whose U is nearest to the symmetric part of a matrix.
    pub(super) fn solved(&self, matrix: &Mat<f64>) -> Vec<f64> {
        let dot = |p: usize| (0..self.members).map(|i| self.inverse[(p, i)] * matrix[(i, i)]).sum();
        let v: Vec<f64> = (0..self.number()).map(dot).collect();
        let shared = |i, j| v[self.holding(i, j)].iter().sum::<f64>();
        let w: Vec<f64> =
            self.pairs().map(|(i, j)| shared(i, j) - (matrix[(i, j)] + matrix[(j, i)]) / 2.0).collect();
        [v, w].concat()
    }

    /// The adjoint of [`solved`](Self::solved).
    pub(super) fn lifted(&self, multipliers: &[f64]) -> Mat<f64> {
        let (v, w) = multipliers.split_at(self.number());
        let mut v = v.to_vec();
        let mut matrix = Mat::zeros(self.members, self.members);
        for ((i, j), w) in self.pairs().zip(w) {
            v[self.holding(i, j)].iter_mut().for_each(|sum| *sum += w);
            (matrix[(i, j)], matrix[(j, i)]) = (-w / 2.0, -w / 2.0);
        }
        for (pattern, weight) in v.iter().enumerate() {
            self.diagonal_of(pattern).enumerate().for_each(|(i, entry)| matrix[(i, i)] += weight * entry);
        }
        matrix
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn inner(a: &Mat<f64>, b: &Mat<f64>) -> f64 {
        (0..a.ncols()).flat_map(|j| (0..a.nrows()).map(move |i| a[(i, j)] * b[(i, j)])).sum()
    }

    fn dot(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    #[test]
    fn patterns_are_runs_of_members() {
        let patterns = Patterns::new(4, 3);
        assert_eq!((patterns.number(), patterns.length(), patterns.multipliers()), (2, 3, 7));
        assert_eq!(patterns.pairs().collect::<Vec<_>>(), [(1, 0), (2, 0), (2, 1), (3, 1), (3, 2)]);
        assert_eq!(
            [patterns.holding(0, 0), patterns.holding(2, 1), patterns.holding(3, 2)],
            [0..=0, 0..=1, 1..=1]
        );
        let matrix = patterns.matrix(&[1.0, 10.0, 0.25, 0.5, 0.0, 0.0, 4.0]);
        let expected =
            [[1.0, 0.75, 0.5, 0.0], [0.75, 11.0, 11.0, 10.0], [0.5, 11.0, 11.0, 6.0], [0.0, 10.0, 6.0, 10.0]];
        assert_eq!(matrix, Mat::from_fn(4, 4, |i, j| expected[i][j]));
        assert_eq!(Patterns::new(2, 9).number(), 1);
    }

    proptest! {
        #[test]
        fn multipliers_and_matrices_determine_each_other(
            (members, count) in (1..9usize, 1..9usize),
            entries in prop::collection::vec(-1.0..1.0f64, 200),
        ) {
            let patterns = Patterns::new(members, count);
            let (multipliers, others) = (&entries[..patterns.multipliers()], &entries[100..100 + patterns.multipliers()]);
            let matrix = patterns.matrix(multipliers);
            for (found, expected) in patterns.solved(&matrix).iter().zip(multipliers) {
                prop_assert!((found - expected).abs() < 1e-10);
            }
            let other = Mat::from_fn(members, members, |i, j| entries[members * i + j] * entries[150 + j]);
            prop_assert!((inner(&matrix, &other) - dot(multipliers, &patterns.seen(&other))).abs() < 1e-10);
            let lifted = inner(&patterns.lifted(others), &other);
            prop_assert!((lifted - dot(others, &patterns.solved(&other))).abs() < 1e-10);
        }
    }
}
