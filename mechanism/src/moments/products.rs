//! Exact products of a block of quantised rows, by floating-point matrix products.
//!
//! Entries are integers and rows have squared norm at most 2⁴⁰. So a product of two entries is at
//! most 2⁴⁰, and any partial sum of 2¹² of them, in any order and with or without fused
//! multiply-adds, is an integer of at most 2⁵² < 2⁵³. `f64` holds every one of them exactly. A
//! matrix product may therefore block, unroll and vectorise freely: the result is the same to the
//! last bit, on every machine.
//!
//! # Narrow records
//! Records with few columns are added to the sums one at a time. These sums are exact, too:
//! products of the integer entries add up exactly in `f64` for up to [`BLOCK_ROWS`] rows, in any
//! order.
//!
//! # Several records side by side
//! Long records are added several at a time.
//!
//! Loading records from memory dominates the cost. A processor prefetches several address streams
//! in parallel, and shared sums are loaded and stored once for all of them. Eight records at a time
//! take half the time of one at a time, in the widest [`registers`](crate::registers).
//!
//! Numbers are moved by value in blocks of eight: compilers can't vectorise writes to memory that
//! may be aliased. Blocks are loops over lanes: for small registers, compilers may not inline
//! closures of `array::map`.

use super::rows::{SHIFT, as_integer, round_ties_even, shift_to_integers, shifted_integer};
use super::sums::add_runs;
use super::{Layout, RECORD_BITS, SecondMoment};
use crate::registers::{Lanes, in_widest};
use nalgebra::{DMatrixView, DMatrixViewMut, Dyn};
use zeroize::Zeroize;

/// Maximum number of rows whose products always add up exactly.
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
/// of their key. It takes no memory before it is used.
pub(super) struct BlockProducts {
    layout: Layout,
    first: Vec<f64>,
    /// Full: d × d, where `i·d + j` holds Σ q_i q_j for j ≥ i. Diagonal: d entries.
    second: Vec<f64>,
}

impl BlockProducts {
    pub(super) fn new(layout: Layout) -> Self {
        Self { layout, first: Vec::new(), second: Vec::new() }
    }

    /// Adds any number of records, row-major and of `width` values each, to `sums`. The first d
    /// values of a record add to first moments, the products of the last d to second ones. Both are
    /// the same values if the width is d.
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
        let second = match self.layout.second {
            SecondMoment::Full => dimension * dimension,
            SecondMoment::Diagonal => dimension,
            SecondMoment::None => 0,
        };
        for (sums, length) in [(&mut self.first, dimension), (&mut self.second, second)] {
            sums.clear();
            sums.resize(length, 0.0);
        }
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

impl BlockProducts {
    /// Wipes the last block, and keeps the memory.
    pub(super) fn wipe(&mut self) {
        self.first[..].zeroize();
        self.second[..].zeroize();
    }
}

impl Drop for BlockProducts {
    fn drop(&mut self) {
        self.wipe();
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

/// Maximum number of coordinates of a key whose records are added one by one: eight cache lines of
/// 64 bytes.
const COORDINATES: usize = 64;

/// Maximum number of columns whose count, sums and products fit into [`COORDINATES`].
const COLUMNS: usize = 9;

/// Returns whether each record is added at once to all sums of its key.
pub(super) fn is_narrow(layout: Layout) -> bool {
    layout.second().end <= COORDINATES
}

/// Adds a record to sums in the order of a narrow layout. First moments come from its first d
/// values, products from its last d.
pub(super) fn add_record(sums: &mut [f64], record: &[f64], layout: Layout) {
    let dimension = layout.dimension;
    let (lower, second) = sums.split_at_mut(1 + dimension);
    lower[Layout::COUNT] += 1.0;
    lower[1..].iter_mut().zip(record).for_each(|(sum, value)| *sum += value);
    let row = &record[record.len() - dimension..];
    match layout.second {
        SecondMoment::None => {}
        SecondMoment::Diagonal => second.iter_mut().zip(row).for_each(|(sum, value)| *sum += value * value),
        SecondMoment::Full => ADD_PRODUCTS[dimension](second, row),
    }
}

/// Adds the products of a row's entries to sums.
type AddProducts = fn(&mut [f64], &[f64]);

/// One branch-free loop for each number of columns.
const ADD_PRODUCTS: [AddProducts; COLUMNS + 1] = [
    add_products::<0>,
    add_products::<1>,
    add_products::<2>,
    add_products::<3>,
    add_products::<4>,
    add_products::<5>,
    add_products::<6>,
    add_products::<7>,
    add_products::<8>,
    add_products::<9>,
];

/// Adds the upper triangle of q qᵀ, row by row.
fn add_products<const D: usize>(sums: &mut [f64], row: &[f64]) {
    let (sums, row) = (&mut sums[..D * (D + 1) / 2], &row[..D]);
    let mut start = 0;
    for i in 0..D {
        for j in i..D {
            sums[start + j - i] += row[i] * row[j];
        }
        start += D - i;
    }
}

/// Lanes of a block.
pub(super) const LANES: usize = 8;

/// Number of records whose norms are computed at once.
const NORMS: usize = 8;

/// Number of records that are added at once.
pub(super) const SUMS: usize = 8;

/// Returns the squared norm of a row, from eight partial sums.
pub fn squared_norm<V: Copy + Into<f64>>(row: &[V]) -> f64 {
    let [norm] = in_lanes([row]);
    norm
}

/// Appends the [`squared_norm`] of records of one length to `norms`.
pub(super) fn squared_norms<V: Copy + Into<f64>>(records: &[V], dimension: usize, norms: &mut Vec<f64>) {
    for group in records.chunks(NORMS * dimension) {
        if group.len() == NORMS * dimension {
            let record = |position| &group[position * dimension..][..dimension];
            norms.extend(in_widest(SquaredNorms::<V, NORMS>(std::array::from_fn(record))));
        } else {
            norms.extend(group.chunks(dimension).flat_map(|record| in_widest(SquaredNorms([record]))));
        }
    }
}

struct SquaredNorms<'a, V, const R: usize>([&'a [V]; R]);

impl<V: Copy + Into<f64>, const R: usize> Lanes for SquaredNorms<'_, V, R> {
    type Output = [f64; R];

    #[inline(always)]
    fn run(self) -> [f64; R] {
        in_lanes(self.0)
    }
}

#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "a position in several slices, side by side")]
fn in_lanes<V: Copy + Into<f64>, const R: usize>(rows: [&[V]; R]) -> [f64; R] {
    let (blocks, rests) = in_blocks(rows);
    let number = blocks.iter().map(|blocks| blocks.len()).min().unwrap_or(0);
    let mut sums = [[0.0; LANES]; R];
    for position in 0..number {
        for row in 0..R {
            let block: [V; LANES] = blocks[row][position];
            for lane in 0..LANES {
                let value: f64 = block[lane].into();
                sums[row][lane] += value * value;
            }
        }
    }
    let mut norms = [0.0; R];
    for row in 0..R {
        let rest = rests[row].iter().map(|&value| value.into() * value.into()).sum::<f64>();
        norms[row] = sums[row].iter().sum::<f64>() + rest;
    }
    norms
}

/// Returns the whole blocks of some rows, and their remainders.
#[inline(always)]
fn in_blocks<V, const R: usize>(rows: [&[V]; R]) -> ([&[[V; LANES]]; R], [&[V]; R]) {
    let (mut blocks, mut rests): ([&[[V; LANES]]; R], _) = ([&[]; R], rows);
    for row in 0..R {
        (blocks[row], rests[row]) = rows[row].as_chunks();
    }
    (blocks, rests)
}

/// Scales and rounds records, and adds them and their squares to the sums, or overwrites these if
/// they are stale. Returns the sum of each record's squares. Without second moments `second` is
/// empty.
///
/// All records have the length of the first sums. Each has squares that add up to little more than
/// 2⁴⁰, so the sums of a few records are exact in `f64`, and none of the totals may exceed 64 bits.
/// A record's squares are exact too, so a fused multiply-add gives the same integers.
pub(super) fn add_records<V: Copy + Into<f64>, const R: usize>(
    records: [&[V]; R],
    scales: [f64; R],
    first: &mut [i64],
    second: &mut [i64],
    are_stale: bool,
) -> [f64; R] {
    if has_fused_products() {
        in_widest(AddRecords::<V, R, true> { records, scales, first, second, are_stale })
    } else {
        in_widest(AddRecords::<V, R, false> { records, scales, first, second, are_stale })
    }
}

/// Returns whether the registers of [`in_widest`] have fused multiply-adds. Elsewhere these are
/// calls.
fn has_fused_products() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("fma") && std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    cfg!(target_arch = "aarch64")
}

struct AddRecords<'a, V, const R: usize, const FUSED: bool> {
    records: [&'a [V]; R],
    scales: [f64; R],
    first: &'a mut [i64],
    second: &'a mut [i64],
    are_stale: bool,
}

impl<V: Copy + Into<f64>, const R: usize, const FUSED: bool> Lanes for AddRecords<'_, V, R, FUSED> {
    type Output = [f64; R];

    #[inline(always)]
    fn run(self) -> [f64; R] {
        let Self { mut records, scales, first, second, are_stale } = self;
        for record in &mut records {
            *record = &record[..first.len()];
        }
        let (blocks, rests) = in_blocks(records);
        let ((firsts, first_rest), (seconds, second_rest)) = (first.as_chunks_mut(), second.as_chunks_mut());
        let mut squared_norms = [[0.0; LANES]; R];
        for (position, first) in firsts.iter_mut().enumerate() {
            let (mut integers, mut squares) = ([0i64; LANES], [0.0; LANES]);
            for record in 0..R {
                let block: [V; LANES] = blocks[record][position];
                for lane in 0..LANES {
                    let shifted = shift_to_integers(block[lane].into() * scales[record]);
                    let integer = shifted - SHIFT;
                    integers[lane] = integers[lane].wrapping_add(shifted_integer(shifted));
                    squares[lane] = add_square::<FUSED>(integer, squares[lane]);
                    squared_norms[record][lane] = add_square::<FUSED>(integer, squared_norms[record][lane]);
                }
            }
            add_lanes(first, integers, are_stale);
            if let Some(second) = seconds.get_mut(position) {
                let mut integers = [0i64; LANES];
                for lane in 0..LANES {
                    integers[lane] = as_integer(squares[lane]);
                }
                add_lanes(second, integers, are_stale);
            }
        }
        let mut norms = [0.0; R];
        for record in 0..R {
            norms[record] = squared_norms[record].iter().sum();
        }
        for (position, first) in first_rest.iter_mut().enumerate() {
            let (mut sum, mut squares) = (0, 0.0);
            for record in 0..R {
                let integer = round_ties_even(rests[record][position].into() * scales[record]);
                (sum, squares) = (as_integer(integer).wrapping_add(sum), squares + integer * integer);
                norms[record] += integer * integer;
            }
            let sum_after = |before: i64, sum: i64| if are_stale { sum } else { before.wrapping_add(sum) };
            *first = sum_after(*first, sum);
            if let Some(second) = second_rest.get_mut(position) {
                *second = sum_after(*second, as_integer(squares));
            }
        }
        norms
    }
}

/// Returns integer² + sum, which is an exact integer.
#[inline(always)]
fn add_square<const FUSED: bool>(integer: f64, sum: f64) -> f64 {
    if FUSED { integer.mul_add(integer, sum) } else { integer * integer + sum }
}

/// Adds to sums, or overwrites them without a read.
#[inline(always)]
fn add_lanes(sums: &mut [i64; LANES], integers: [i64; LANES], are_stale: bool) {
    let before: [i64; LANES] = if are_stale { [0; LANES] } else { *sums };
    let mut total = before;
    for lane in 0..LANES {
        total[lane] = before[lane].wrapping_add(integers[lane]);
    }
    *sums = total;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the sums by definition.
    fn one_by_one(records: &[Vec<f64>], scales: &[f64]) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
        let columns = records[0].len();
        let integer =
            |record: usize, column: usize| (records[record][column] * scales[record]).round_ties_even();
        let sum = |power: i32| {
            (0..columns)
                .map(|column| (0..records.len()).map(|record| integer(record, column).powi(power)).sum())
                .collect()
        };
        let norm = |record| (0..columns).map(|column| integer(record, column).powi(2)).sum();
        (sum(1), sum(2), (0..records.len()).map(norm).collect())
    }

    proptest! {
        #[test]
        fn several_records_equal_one_after_another(
            columns in 1usize..40,
            scales in prop::array::uniform8(1.0..1000.0),
            values in prop::collection::vec(-100.0..100.0, 40 * SUMS),
        ) {
            let records: Vec<Vec<f64>> = values.chunks(40).map(|record| record[..columns].to_vec()).collect();
            let expected = one_by_one(&records, &scales);
            let slices: [&[f64]; SUMS] = std::array::from_fn(|record| &records[record][..]);
            let plus = |sums: &[f64], before: i64| sums.iter().map(|sum| before + *sum as i64).collect::<Vec<_>>();
            for (are_stale, before) in [(true, 0), (false, 7)] {
                let [mut first, mut second] = [vec![7; columns], vec![7; columns]];
                let norms = add_records(slices, scales, &mut first, &mut second, are_stale);
                prop_assert_eq!((&first, &second), (&plus(&expected.0, before), &plus(&expected.1, before)));
                prop_assert_eq!(&norms[..], &expected.2[..]);
                let mut alone = vec![7; columns];
                prop_assert_eq!(add_records(slices, scales, &mut alone, &mut [], are_stale), norms);
                prop_assert_eq!(alone, first);
            }
            let [mut first, mut second] = [vec![0; columns], vec![0; columns]];
            let mut single =
                |record: usize| add_records([slices[record]], [scales[record]], &mut first, &mut second, false)[0];
            prop_assert_eq!((0..SUMS).map(&mut single).collect::<Vec<_>>(), &expected.2[..]);
            prop_assert_eq!((first, second), (plus(&expected.0, 0), plus(&expected.1, 0)));
            // Without fused multiply-adds, as on other processors.
            let [mut first, mut second] = [vec![0; columns], vec![0; columns]];
            let (records, are_stale) = (slices, true);
            let plain = AddRecords::<f64, SUMS, false> { records, scales, first: &mut first, second: &mut second, are_stale };
            prop_assert_eq!(&plain.run()[..], &expected.2[..]);
            prop_assert_eq!((first, second), (plus(&expected.0, 0), plus(&expected.1, 0)));
        }

        #[test]
        fn norms_are_the_same_to_the_last_bit(
            dimension in 1usize..40,
            number in 0usize..20,
            values in prop::collection::vec(-1e3f32..1e3, 800),
        ) {
            let records = &values[..dimension * number];
            let mut norms = Vec::new();
            squared_norms(records, dimension, &mut norms);
            let expected: Vec<f64> = records.chunks(dimension).map(squared_norm).collect();
            prop_assert_eq!(norms, expected);
        }
    }
}
