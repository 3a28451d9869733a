//! A lower triangular strategy in integers: exact sums, exact sensitivity, and its inverse.

use nalgebra::DMatrix;

/// Number of fractional bits of the entries of C.
const BITS: u32 = 40;

/// The value in C of one unit of K.
const UNIT: f64 = 1.0 / (1u64 << BITS) as f64;

/// K = ⌊2⁴⁰·C⌉ of a lower triangular C with entries of at most 1.
#[derive(Debug)]
pub(super) struct TriangularIntegers {
    cells: usize,
    /// Row by row, each up to its diagonal.
    entries: Vec<i64>,
}

impl TriangularIntegers {
    /// K = 0.
    pub(super) fn zeros(cells: usize) -> Self {
        Self { cells, entries: vec![0; start(cells)] }
    }

    /// Rounds a row of C, given from its first entry.
    pub(super) fn set_row(&mut self, row: usize, entries: impl Iterator<Item = f64>) {
        let slots = &mut self.entries[start(row)..=start(row) + row];
        slots.iter_mut().zip(entries).for_each(|(slot, entry)| *slot = (entry / UNIT).round() as i64);
    }

    fn row(&self, row: usize) -> &[i64] {
        &self.entries[start(row)..=start(row) + row]
    }

    /// The squared norm of each column of K.
    pub(super) fn squared_norms(&self) -> Vec<i128> {
        let mut squares = vec![0; self.cells];
        for row in 0..self.cells {
            let entries = self.row(row).iter().map(|entry| i128::from(*entry));
            squares.iter_mut().zip(entries).for_each(|(square, entry)| *square += entry * entry);
        }
        squares
    }

    /// K times counts.
    pub(super) fn sums(&self, counts: &[u64]) -> impl Iterator<Item = i128> {
        (0..self.cells).map(move |row| {
            let entries = self.row(row).iter().zip(counts);
            entries.map(|(entry, count)| i128::from(*entry) * i128::from(*count)).sum()
        })
    }

    /// C⁻¹ times a vector in units of K.
    pub(super) fn solved(&self, sums: impl Iterator<Item = i128>) -> Vec<f64> {
        let mut cells: Vec<f64> = Vec::with_capacity(self.cells);
        for (row, sum) in sums.enumerate() {
            let entries = self.row(row);
            let known: f64 = entries.iter().zip(&cells).map(|(entry, cell)| *entry as f64 * cell).sum();
            cells.push((sum as f64 - known) / entries[row] as f64);
        }
        cells
    }

    /// The variance of the sum of the cells with the weights `query`, for noise of variance 1 on
    /// the answers to C.
    pub(super) fn variance(&self, mut query: Vec<f64>) -> f64 {
        let mut variance = 0.0;
        for row in (0..self.cells).rev() {
            let entries = self.row(row);
            let share = query[row] / (entries[row] as f64 * UNIT);
            query.iter_mut().zip(entries).for_each(|(left, entry)| *left -= share * (*entry as f64 * UNIT));
            variance += share * share;
        }
        variance
    }

    /// K in units of C.
    pub(super) fn matrix(&self) -> DMatrix<f64> {
        let entry = |i: usize, j: usize| if j <= i { self.entries[start(i) + j] as f64 * UNIT } else { 0.0 };
        DMatrix::from_fn(self.cells, self.cells, entry)
    }

    /// The value in C of one unit of K.
    pub(super) fn unit() -> f64 {
        UNIT
    }
}

/// Number of entries before a row.
fn start(row: usize) -> usize {
    row * (row + 1) / 2
}
