//! Exact products of a block of quantised rows, by floating-point matrix products.
//!
//! Entries are integers and rows have squared norm at most 2⁴⁰. So a product of two entries is at
//! most 2⁴⁰, and any partial sum of 2¹² of them, in any order and with or without fused
//! multiply-adds, is an integer of at most 2⁵² < 2⁵³. `f64` holds every one of them exactly. A
//! matrix product may therefore block, unroll and vectorise freely: the result is the same to the
//! last bit, on every machine.

use super::sums::add_runs;
use super::{Layout, RECORD_BITS, SecondMoment};
use nalgebra::{DMatrixView, DMatrixViewMut, Dyn};
use zeroize::Zeroize;

/// Most rows whose products certainly add up exactly.
pub(super) const BLOCK_ROWS: usize = 1 << (52 - 2 * RECORD_BITS);

/// Number of columns from which the matrix product is faster than the loop over rows (measured).
const PRODUCT_COLUMNS: usize = 8;

/// Rows multiplied together: few enough to stay in the processor's cache between panels (measured).
const PRODUCT_ROWS: usize = 256;

/// Number of columns whose sums stay in the nearest cache from row to row.
const NEAR_COLUMNS: usize = 1024;

/// Number of columns computed together. Work below the diagonal is skipped panel by panel.
const PANEL: usize = 32;

/// Sums and products of one block: the workspace in which rows are added before they join the sums
/// of their key.
pub(super) struct BlockProducts {
    layout: Layout,
    first: Vec<f64>,
    /// Full: d × d, where `i·d + j` holds Σ q_i q_j for j ≥ i. Diagonal: d entries.
    second: Vec<f64>,
}

impl BlockProducts {
    pub(super) fn new(layout: Layout) -> Self {
        let second = match layout.second {
            SecondMoment::Full => layout.dimension * layout.dimension,
            SecondMoment::Diagonal => layout.dimension,
            SecondMoment::None => 0,
        };
        Self { layout, first: vec![0.0; layout.dimension], second: vec![0.0; second] }
    }

    /// Adds any number of records, row-major and of `width` values each, to `sums`. The first d
    /// values of a record add to first moments, the products of the last d to second ones. They are
    /// the same values where the width is d.
    pub(super) fn add_rows(&mut self, rows: &[f64], width: usize, sums: &mut [i128]) {
        for block in rows.chunks(BLOCK_ROWS * width) {
            self.multiply(block, width);
            let count = (block.len() / width) as f64;
            add_runs(sums, [&[count], &self.first[..]].into_iter().chain(self.second_moments()));
        }
    }

    /// Returns runs of second moments in the layout's order: rows of the upper triangle, or the
    /// diagonal.
    fn second_moments(&self) -> impl Iterator<Item = &[f64]> {
        self.second.chunks(self.layout.dimension).enumerate().map(|(i, row)| &row[i..])
    }

    fn multiply(&mut self, block: &[f64], width: usize) {
        let dimension = self.layout.dimension;
        self.first.fill(0.0);
        self.second.fill(0.0);
        add_columns(block, width, 0, &mut self.first, |value| value);
        match self.layout.second {
            SecondMoment::None => {}
            SecondMoment::Diagonal => {
                add_columns(block, width, width - dimension, &mut self.second, |value| value * value);
            }
            SecondMoment::Full if dimension < PRODUCT_COLUMNS => {
                add_outer_products(block, width, dimension, &mut self.second);
            }
            SecondMoment::Full => {
                let parts = block.chunks(PRODUCT_ROWS * width);
                parts.for_each(|rows| add_matrix_product(rows, width, dimension, &mut self.second));
            }
        }
    }
}

impl Drop for BlockProducts {
    fn drop(&mut self) {
        self.first.zeroize();
        self.second.zeroize();
    }
}

/// Adds `term` of the values of all rows from column `begin` on. Takes a few columns of all rows at
/// a time, so that wide sums do not go through memory for every row.
fn add_columns(rows: &[f64], width: usize, begin: usize, sums: &mut [f64], term: impl Fn(f64) -> f64) {
    for (sums, start) in sums.chunks_mut(NEAR_COLUMNS).zip((begin..).step_by(NEAR_COLUMNS)) {
        for row in rows.chunks_exact(width) {
            sums.iter_mut().zip(&row[start..]).for_each(|(sum, &value)| *sum += term(value));
        }
    }
}

/// Adds Σ q qᵀ over the last `dimension` values of records of `width`, one row at a time.
fn add_outer_products(rows: &[f64], width: usize, dimension: usize, products: &mut [f64]) {
    for row in rows.chunks_exact(width) {
        let row = &row[width - dimension..];
        for (i, target) in products.chunks_exact_mut(dimension).enumerate() {
            target[i..].iter_mut().zip(&row[i..]).for_each(|(sum, value)| *sum += row[i] * value);
        }
    }
}

/// Adds Σ q qᵀ as matrix products: for each panel of columns, the rows of the result from the
/// diagonal on.
fn add_matrix_product(rows: &[f64], width: usize, dimension: usize, products: &mut [f64]) {
    let count = Dyn(rows.len() / width);
    let (step, row, stride) = (Dyn(1), Dyn(dimension), Dyn(width));
    for start in (0..dimension).step_by(PANEL) {
        let (height, panel_width) = (Dyn(dimension - start), Dyn(PANEL.min(dimension - start)));
        // Row-major records are the columns of a d × n matrix and, with strides exchanged, its
        // transpose.
        let values = &rows[width - dimension + start..];
        let below = DMatrixView::from_slice_with_strides_generic(values, height, count, step, stride);
        let panel = DMatrixView::from_slice_with_strides_generic(values, count, panel_width, stride, step);
        let target = &mut products[start * dimension + start..];
        DMatrixViewMut::from_slice_with_strides_generic(target, height, panel_width, step, row)
            .gemm(1.0, &below, &panel, 1.0);
    }
}
