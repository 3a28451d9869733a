//! Residue classes of the steps, and matrices that are block-diagonal over them.
//!
//! Under (k, b)-participation with n ≤ k·b an entity takes part in steps of one residue class mod b. All work is
//! done on steps sorted by class, so that the entries of X that a participation can see are diagonal blocks.

use faer::{Mat, MatRef};
use nalgebra::DMatrix;
use std::ops::Range;

/// Symmetric matrices on the members of each class.
pub(super) type Blocks = Vec<Mat<f64>>;

pub(super) struct Classes {
    /// Step at each place of the sorted order.
    order: Vec<usize>,
    /// Places of each class.
    ranges: Vec<Range<usize>>,
}

impl Classes {
    /// Steps `0..steps` by their residues mod `gap`.
    pub(super) fn new(steps: usize, gap: usize) -> Self {
        let members = |class| (class..steps).step_by(gap);
        let order: Vec<usize> = (0..gap.min(steps)).flat_map(members).collect();
        let ranges = (0..gap.min(steps)).scan(0, |start, class| {
            let range = *start..*start + members(class).count();
            *start = range.end;
            Some(range)
        });
        Self { ranges: ranges.collect(), order }
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

    /// 1/m on the diagonal for the members of a class of m.
    pub(super) fn identity(&self) -> Mat<f64> {
        let mut identity = Mat::zeros(self.order.len(), self.order.len());
        for range in &self.ranges {
            range.clone().for_each(|i| identity[(i, i)] = (range.len() as f64).recip());
        }
        identity
    }

    /// X with 0 between different members of a class, scaled so that the trace of every class is 1.
    pub(super) fn feasible(&self, gram: &Mat<f64>) -> Mat<f64> {
        let (mut class, mut scale) = (vec![0; gram.nrows()], vec![1.0; gram.nrows()]);
        for (c, range) in self.ranges.iter().enumerate() {
            let trace: f64 = range.clone().map(|i| gram[(i, i)]).sum();
            class[range.clone()].fill(c);
            scale[range.clone()].fill(trace.sqrt().recip());
        }
        Mat::from_fn(gram.nrows(), gram.ncols(), |i, j| {
            if i != j && class[i] == class[j] { 0.0 } else { gram[(i, j)] * (scale[i] * scale[j]) }
        })
    }

    /// Block of each class in the order of its members, the first class that of step 0.
    pub(super) fn dense(blocks: &Blocks) -> Vec<DMatrix<f64>> {
        blocks.iter().map(|block| super::algebra::dense(block.as_ref())).collect()
    }
}

/// The part of each block that a multiplier can have: symmetric, with a constant diagonal.
pub(super) fn project(mut blocks: Blocks) -> Blocks {
    for block in &mut blocks {
        let members = block.nrows();
        let mean = (0..members).map(|i| block[(i, i)]).sum::<f64>() / members as f64;
        for j in 0..members {
            block[(j, j)] = mean;
            for i in 0..j {
                let mean = (block[(i, j)] + block[(j, i)]) / 2.0;
                (block[(i, j)], block[(j, i)]) = (mean, mean);
            }
        }
    }
    blocks
}

/// Σ ⟨a, b⟩ over the classes.
pub(super) fn dot(a: &Blocks, b: &Blocks) -> f64 {
    let block = |(a, b): (&Mat<f64>, &Mat<f64>)| {
        let columns = (0..a.ncols()).flat_map(|j| a.col_as_slice(j).iter().zip(b.col_as_slice(j)));
        columns.map(|(a, b)| a * b).sum::<f64>()
    };
    a.iter().zip(b).map(block).sum()
}

/// a + factor · b.
pub(super) fn plus(a: &Blocks, factor: f64, b: &Blocks) -> Blocks {
    let entry = |a: &Mat<f64>, b: &Mat<f64>| {
        Mat::from_fn(a.nrows(), a.ncols(), |i, j| a[(i, j)] + factor * b[(i, j)])
    };
    a.iter().zip(b).map(|(a, b)| entry(a, b)).collect()
}

pub(super) fn scaled(a: &Blocks, factor: f64) -> Blocks {
    a.iter().map(|block| faer::Scale(factor) * block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorting_is_undone_and_brings_classes_together() {
        let classes = Classes::new(7, 3);
        assert_eq!(classes.order, [0, 3, 6, 1, 4, 2, 5]);
        assert_eq!(classes.ranges, [0..3, 3..5, 5..7]);
        let matrix = Mat::from_fn(7, 7, |i, j| (10 * i + j) as f64);
        let sorted = classes.sorted(matrix.as_ref());
        assert_eq!(sorted[(1, 3)], 31.0);
        assert_eq!(classes.unsorted(sorted.as_ref()), matrix);
    }

    #[test]
    fn a_feasible_matrix_has_classes_of_trace_one_and_no_overlap_in_them() {
        let classes = Classes::new(5, 2);
        let gram = Mat::from_fn(5, 5, |i, j| if i == j { 1.0 + i as f64 } else { 0.5 });
        let gram = classes.feasible(&gram);
        for block in classes.blocks_of(gram.as_ref()) {
            let trace: f64 = (0..block.nrows()).map(|i| block[(i, i)]).sum();
            assert!((trace - 1.0).abs() < 1e-15 && block[(1, 0)] == 0.0);
        }
        assert!(gram[(0, 4)] > 0.0);
    }

    #[test]
    fn a_class_longer_than_the_gap_is_one_step_each() {
        assert_eq!(Classes::new(3, 10).ranges, [0..1, 1..2, 2..3]);
    }
}
