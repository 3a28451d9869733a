//! Residue classes of the steps, and matrices that are block-diagonal over them.
//!
//! Under (k, b)-participation an entity takes part in steps of one residue class mod b. Steps are
//! sorted by class, so that the entries of X that affect a participation are in diagonal blocks.
//!
//! # Patterns
//! [`Patterns`] relates the multipliers of one class of steps to their matrix U.
//!
//! A class of m steps has the patterns of k consecutive members, or one of all members if m ≤ k.
//! Pattern π has a multiplier v_π of `Σ_(i,j ∈ π) X_ij ≤ 1`. A pair of steps i > j that share a
//! pattern has a multiplier w_ij of `X_ij ≥ 0`. Together they define the matrix with the entries
//! `U_ij = Σ_(π ∋ i,j) v_π − w_ij`, where w_ii = 0; pairs without a common pattern have U_ij = 0.
//! All multipliers are in one list: the v_π in the order of their first steps, then the w_ij row by
//! row. v alone determines the diagonal, so (v, w) and U determine each other.

use faer::linalg::solvers::Solve;
use faer::{Mat, MatRef};
use nalgebra::DMatrix;
use std::ops::{Range, RangeInclusive};

/// Symmetric matrices on the members of each class.
pub(super) type Blocks = Vec<Mat<f64>>;

pub(super) struct Classes {
    gap: usize,
    count: usize,
    /// Step at each position of the sorted order.
    order: Vec<usize>,
    ranges: Vec<Range<usize>>,
    patterns: Vec<Patterns>,
    parts: Vec<Range<usize>>,
}

impl Classes {
    /// Classifies steps `0..steps` by their residues mod `gap`; an entity takes part in `count`
    /// consecutive members.
    pub(super) fn new(steps: usize, count: usize, gap: usize) -> Self {
        let members = |class| (class..steps).step_by(gap);
        let order: Vec<usize> = (0..gap.min(steps)).flat_map(members).collect();
        let ranges = in_turn((0..gap.min(steps)).map(|class| members(class).count()));
        let patterns: Vec<_> = ranges.iter().map(|range| Patterns::new(range.len(), count)).collect();
        let parts = in_turn(patterns.iter().map(Patterns::multipliers));
        Self { gap, count, order, ranges, patterns, parts }
    }

    pub(super) fn gap(&self) -> usize {
        self.gap
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Whether a class has several patterns. Only then may X have positive entries within patterns.
    pub(super) fn overlap(&self) -> bool {
        self.patterns.iter().any(|patterns| patterns.number() > 1)
    }

    /// Patterns of each class with the range of their multipliers.
    pub(super) fn parts(&self) -> impl Iterator<Item = (&Patterns, Range<usize>)> {
        self.patterns.iter().zip(self.parts.iter().cloned())
    }

    /// Limits of X: 1 for the multipliers of patterns, 0 for those of pairs.
    pub(super) fn limits(&self) -> Vec<f64> {
        let mut limits = Vec::new();
        for (patterns, part) in self.parts() {
            limits.resize(part.start + patterns.number(), 1.0);
            limits.resize(part.end, 0.0);
        }
        limits
    }

    /// Applies [`Patterns::matrix`] to each class.
    pub(super) fn matrices(&self, multipliers: &[f64]) -> Blocks {
        self.parts().map(|(patterns, part)| patterns.matrix(&multipliers[part])).collect()
    }

    /// Applies [`Patterns::adjoint`] to each class.
    pub(super) fn adjoint(&self, blocks: &Blocks) -> Vec<f64> {
        self.patterns.iter().zip(blocks).flat_map(|(patterns, block)| patterns.adjoint(block)).collect()
    }

    /// Applies [`Patterns::solved`] to each class.
    pub(super) fn solved(&self, blocks: &Blocks) -> Vec<f64> {
        self.patterns.iter().zip(blocks).flat_map(|(patterns, block)| patterns.solved(block)).collect()
    }

    /// Applies [`Patterns::lifted`] to each class.
    pub(super) fn lifted(&self, multipliers: &[f64]) -> Blocks {
        self.parts().map(|(patterns, part)| patterns.lifted(&multipliers[part])).collect()
    }

    pub(super) fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    pub(super) fn sorted(&self, matrix: MatRef<'_, f64>) -> Mat<f64> {
        let at = |position: usize| self.order[position];
        Mat::from_fn(matrix.nrows(), matrix.ncols(), |i, j| matrix[(at(i), at(j))])
    }

    pub(super) fn unsorted(&self, matrix: MatRef<'_, f64>) -> Mat<f64> {
        let mut positions = vec![0; self.order.len()];
        self.order.iter().enumerate().for_each(|(position, &step)| positions[step] = position);
        Mat::from_fn(matrix.nrows(), matrix.ncols(), |i, j| matrix[(positions[i], positions[j])])
    }

    /// matrix · blocks, the blocks taken as one block-diagonal matrix.
    pub(super) fn times(&self, matrix: MatRef<'_, f64>, blocks: &Blocks) -> Mat<f64> {
        let mut product = Mat::zeros(matrix.nrows(), matrix.ncols());
        for (range, block) in self.ranges.iter().zip(blocks) {
            let columns = matrix.get(.., range.clone()) * block;
            product.get_mut(.., range.clone()).copy_from(&columns);
        }
        product
    }

    /// Diagonal blocks of leftᵀ · right.
    pub(super) fn blocks_of_product(&self, left: MatRef<'_, f64>, right: MatRef<'_, f64>) -> Blocks {
        let columns =
            |range: &Range<usize>| left.get(.., range.clone()).transpose() * right.get(.., range.clone());
        self.ranges.iter().map(columns).collect()
    }

    pub(super) fn blocks_of(&self, matrix: MatRef<'_, f64>) -> Blocks {
        let block = |range: &Range<usize>| matrix.get(range.clone(), range.clone()).to_owned();
        self.ranges.iter().map(block).collect()
    }

    /// 1/m on the diagonal for the members of a class whose patterns have m members.
    pub(super) fn identity(&self) -> Mat<f64> {
        let mut identity = Mat::zeros(self.order.len(), self.order.len());
        for (range, patterns) in self.ranges.iter().zip(&self.patterns) {
            range.clone().for_each(|i| identity[(i, i)] = (patterns.length() as f64).recip());
        }
        identity
    }

    /// Makes X feasible: 0 between steps that share a pattern, or at least 0 if patterns overlap,
    /// scaled class by class so that the largest sum over a pattern is 1.
    pub(super) fn feasible(&self, gram: &Mat<f64>) -> Mat<f64> {
        let least = if self.overlap() { 0.0 } else { f64::INFINITY };
        let mut feasible = gram.clone();
        let mut scale = vec![1.0; gram.nrows()];
        for (range, patterns) in self.ranges.iter().zip(&self.patterns) {
            let mut block = feasible.get_mut(range.clone(), range.clone());
            for (i, j) in patterns.pairs() {
                let entry = if block[(i, j)] > least { block[(i, j)] } else { 0.0 };
                (block[(i, j)], block[(j, i)]) = (entry, entry);
            }
            let sums = patterns.adjoint(&block.to_owned());
            let largest = sums[..patterns.number()].iter().copied().fold(0.0, f64::max);
            scale[range.clone()].fill(largest.sqrt().recip());
        }
        Mat::from_fn(gram.nrows(), gram.ncols(), |i, j| feasible[(i, j)] * (scale[i] * scale[j]))
    }

    /// Returns the block of each class in the order of its members, beginning with the class of
    /// step 0.
    pub(super) fn dense(blocks: &Blocks) -> Vec<DMatrix<f64>> {
        blocks.iter().map(|block| super::algebra::dense(block.as_ref())).collect()
    }
}

/// Consecutive ranges of these lengths.
fn in_turn(lengths: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let mut end = 0;
    lengths
        .map(|length| {
            end += length;
            end - length..end
        })
        .collect()
}

pub(super) fn scaled(a: &Blocks, factor: f64) -> Blocks {
    a.iter().map(|block| faer::Scale(factor) * block).collect()
}

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

    /// Patterns that contain both members i and j, where i ≥ j.
    pub(super) fn holding(&self, i: usize, j: usize) -> RangeInclusive<usize> {
        self.first(i)..=j.min(self.members - self.length)
    }

    /// Column π of the pseudo-inverse's transpose.
    pub(super) fn diagonal_of(&self, pattern: usize) -> impl Iterator<Item = f64> {
        (0..self.members).map(move |i| self.inverse[(pattern, i)])
    }

    /// The matrix U of these multipliers.
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
    pub(super) fn adjoint(&self, matrix: &Mat<f64>) -> Vec<f64> {
        let mut sums = vec![0.0; self.number()];
        let mut add = |i, j, entry: f64| sums[self.holding(i, j)].iter_mut().for_each(|sum| *sum += entry);
        (0..self.members).for_each(|i| add(i, i, matrix[(i, i)]));
        let mut pairs = Vec::new();
        for (i, j) in self.pairs() {
            let entry = matrix[(i, j)] + matrix[(j, i)];
            add(i, j, entry);
            pairs.push(-entry);
        }
        sums.extend(pairs);
        sums
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

    #[test]
    fn sorting_groups_classes_and_can_be_undone() {
        let classes = Classes::new(7, 3, 3);
        assert_eq!(classes.order, [0, 3, 6, 1, 4, 2, 5]);
        assert_eq!(classes.ranges, [0..3, 3..5, 5..7]);
        let matrix = Mat::from_fn(7, 7, |i, j| (10 * i + j) as f64);
        let sorted = classes.sorted(matrix.as_ref());
        assert_eq!(sorted[(1, 3)], 31.0);
        assert_eq!(classes.unsorted(sorted.as_ref()), matrix);
    }

    #[test]
    fn a_feasible_matrix_has_patterns_of_sum_one_and_no_overlap_in_them() {
        let gram = Mat::from_fn(5, 5, |i, j| if i == j { 1.0 + i as f64 } else { 0.5 });
        let classes = Classes::new(5, 3, 2);
        let feasible = classes.feasible(&gram);
        for block in classes.blocks_of(feasible.as_ref()) {
            let trace: f64 = (0..block.nrows()).map(|i| block[(i, i)]).sum();
            assert!((trace - 1.0).abs() < 1e-15 && block[(1, 0)] == 0.0);
        }
        assert!(feasible[(0, 4)] > 0.0);
    }

    #[test]
    fn overlapping_patterns_lose_only_negative_entries() {
        let gram = Mat::from_fn(5, 5, |i, j| match i.abs_diff(j) {
            0 => 1.0 + i as f64,
            1 if i + j == 1 => -0.5,
            _ => 0.25,
        });
        let feasible = Classes::new(5, 2, 1).feasible(&gram);
        assert!(feasible[(0, 1)] == 0.0 && feasible[(0, 2)] > 0.0);
        assert!((feasible[(3, 3)] + feasible[(4, 4)] + 2.0 * feasible[(4, 3)] - 1.0).abs() < 1e-15);
    }

    #[test]
    fn class_longer_than_the_gap_has_one_step_each() {
        assert_eq!(Classes::new(3, 1, 10).ranges, [0..1, 1..2, 2..3]);
    }

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
            prop_assert!((inner(&matrix, &other) - dot(multipliers, &patterns.adjoint(&other))).abs() < 1e-10);
            let lifted = inner(&patterns.lifted(others), &other);
            prop_assert!((lifted - dot(others, &patterns.solved(&other))).abs() < 1e-10);
        }
    }
}
