//! Residue classes of the steps, and matrices that are block-diagonal over them.
//!
//! Under (k, b)-participation an entity takes part in steps of one residue class mod b. Steps are
//! sorted by class, so that the entries of X that affect a participation are in diagonal blocks.

use super::patterns::Patterns;
use faer::{Mat, MatRef};
use nalgebra::DMatrix;
use std::ops::Range;

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

    /// Whether a class has several patterns. Only then its X may have positive entries within
    /// patterns.
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

    /// U: [`Patterns::matrix`].
    pub(super) fn matrices(&self, multipliers: &[f64]) -> Blocks {
        self.parts().map(|(patterns, part)| patterns.matrix(&multipliers[part])).collect()
    }

    /// [`Patterns::seen`].
    pub(super) fn seen(&self, blocks: &Blocks) -> Vec<f64> {
        self.patterns.iter().zip(blocks).flat_map(|(patterns, block)| patterns.seen(block)).collect()
    }

    /// [`Patterns::solved`].
    pub(super) fn solved(&self, blocks: &Blocks) -> Vec<f64> {
        self.patterns.iter().zip(blocks).flat_map(|(patterns, block)| patterns.solved(block)).collect()
    }

    /// [`Patterns::lifted`].
    pub(super) fn lifted(&self, multipliers: &[f64]) -> Blocks {
        self.parts().map(|(patterns, part)| patterns.lifted(&multipliers[part])).collect()
    }

    pub(super) fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    pub(super) fn sorted(&self, matrix: MatRef<'_, f64>) -> Mat<f64> {
        let at = |place: usize| self.order[place];
        Mat::from_fn(matrix.nrows(), matrix.ncols(), |i, j| matrix[(at(i), at(j))])
    }

    pub(super) fn unsorted(&self, matrix: MatRef<'_, f64>) -> Mat<f64> {
        let mut places = vec![0; self.order.len()];
        self.order.iter().enumerate().for_each(|(place, &step)| places[step] = place);
        Mat::from_fn(matrix.nrows(), matrix.ncols(), |i, j| matrix[(places[i], places[j])])
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

    /// 1/m on the diagonal for the members of a class with patterns of m.
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
            let seen = patterns.seen(&block.to_owned());
            let largest = seen[..patterns.number()].iter().copied().fold(0.0, f64::max);
            scale[range.clone()].fill(largest.sqrt().recip());
        }
        Mat::from_fn(gram.nrows(), gram.ncols(), |i, j| feasible[(i, j)] * (scale[i] * scale[j]))
    }

    /// Block of each class in the order of its members, the first class that of step 0.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorting_is_undone_and_brings_classes_together() {
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
    fn where_patterns_overlap_only_negative_entries_within_them_go() {
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
    fn a_class_longer_than_the_gap_is_one_step_each() {
        assert_eq!(Classes::new(3, 1, 10).ranges, [0..1, 1..2, 2..3]);
    }
}
