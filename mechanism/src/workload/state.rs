//! Applies a workload to a stream, one row at a time, in bounded memory and without drift.
//!
//! The running sums of `prefix`, `average` and `momentum` are compensated: the error of every
//! addition is itself a floating-point number (Knuth's TwoSum, The Art of Computer Programming
//! 4.2.2), and these errors are summed separately. So rounding errors of single additions do not
//! add up over the horizon. The window never subtracts, so values that have left it leave no
//! rounding error behind.
//!
//! # Workload matrices
//! [`MatrixWorkload`] is a workload given entry by entry: any lower-triangular matrix, with one row
//! per epoch.

use super::{Workload, WorkloadError};
use nalgebra::DMatrix;
use std::sync::Arc;

/// Computes the rows of `A x` for a stream of rows x, coordinate by coordinate.
///
/// Memory: one to three rows, and k more for a window of length k; all rows for a matrix given
/// entry by entry.
///
/// ```
/// let mut average = hushflow_mechanism::workload::Workload::Average.state(2);
/// assert_eq!(average.push(&[1.0, 5.0])?, [1.0, 5.0]);
/// assert_eq!(average.push(&[2.0, 7.0])?, [1.5, 6.0]);
/// # Ok::<(), hushflow_mechanism::workload::WorkloadError>(())
/// ```
#[derive(Clone, Debug)]
pub struct WorkloadState {
    workload: Workload,
    steps: u64,
    memory: Memory,
    view: Vec<f64>,
}

#[derive(Clone, Debug)]
enum Memory {
    Sum(Vec<CompensatedSum>),
    Exponential { decay: f64, sums: Vec<f64> },
    Momentum { decay: f64, momenta: Vec<f64>, sums: Vec<CompensatedSum> },
    Window(WindowSums),
    Matrix { increments: Vec<f64> },
}

impl WorkloadState {
    pub(super) fn new(workload: &Workload, coordinates: usize) -> Self {
        let sums = || vec![CompensatedSum::default(); coordinates];
        let memory = match workload {
            Workload::Prefix | Workload::Average => Memory::Sum(sums()),
            Workload::Exponential(decay) | Workload::Adam(decay) => {
                Memory::Exponential { decay: decay.get(), sums: vec![0.0; coordinates] }
            }
            Workload::Momentum(decay) => {
                Memory::Momentum { decay: decay.get(), momenta: vec![0.0; coordinates], sums: sums() }
            }
            Workload::Window(length) | Workload::WindowMean(length) => {
                Memory::Window(WindowSums::new(length.get(), coordinates))
            }
            Workload::Matrix(_) => Memory::Matrix { increments: Vec::new() },
        };
        Self { workload: workload.clone(), steps: 0, memory, view: vec![0.0; coordinates] }
    }

    /// Number of rows pushed so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Adds the next row and returns the next row of `A x`, in the unit of x.
    ///
    /// # Errors
    /// [`WorkloadError::Coordinates`] for a row of another length and
    /// [`WorkloadError::PastHorizon`] after the last row of a matrix; the state is then unchanged.
    pub fn push(&mut self, increment: &[f64]) -> Result<&[f64], WorkloadError> {
        if increment.len() != self.view.len() {
            return Err(WorkloadError::Coordinates { found: increment.len(), expected: self.view.len() });
        }
        if let Some(horizon) = self.workload.horizon().filter(|&horizon| self.steps >= horizon) {
            return Err(WorkloadError::PastHorizon { horizon });
        }
        self.steps += 1;
        let divisor = self.workload.row_divisor(self.steps);
        match &mut self.memory {
            Memory::Sum(sums) => {
                for ((view, sum), &x) in self.view.iter_mut().zip(sums).zip(increment) {
                    sum.add(x);
                    *view = sum.total() / divisor;
                }
            }
            Memory::Exponential { decay, sums } => {
                for ((view, sum), &x) in self.view.iter_mut().zip(sums).zip(increment) {
                    *sum = *decay * *sum + x;
                    *view = *sum / divisor;
                }
            }
            Memory::Momentum { decay, momenta, sums } => {
                let state = momenta.iter_mut().zip(sums);
                for ((view, (momentum, sum)), &x) in self.view.iter_mut().zip(state).zip(increment) {
                    *momentum = *decay * *momentum + x;
                    sum.add(*momentum);
                    *view = sum.total();
                }
            }
            Memory::Window(window) => window.push(increment, divisor, &mut self.view),
            Memory::Matrix { increments } => {
                increments.extend_from_slice(increment);
                self.view.fill(0.0);
                let rows = increments.chunks_exact(increment.len().max(1));
                for (row, i) in rows.zip(1..) {
                    let weight = self.workload.coefficient(self.steps, i);
                    self.view.iter_mut().zip(row).for_each(|(view, x)| *view += weight * x);
                }
            }
        }
        Ok(&self.view)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct CompensatedSum {
    sum: f64,
    error: f64,
}

impl CompensatedSum {
    fn add(&mut self, x: f64) {
        let sum = self.sum + x;
        let added = sum - self.sum;
        self.error += (self.sum - (sum - added)) + (x - added);
        self.sum = sum;
    }

    fn total(self) -> f64 {
        self.sum + self.error
    }
}

/// Sums of the last `length` rows, by additions only.
///
/// Rows come in blocks of `length`. A full block is turned into its suffix sums in place. The next
/// block overwrites them row by row. The window at position p is the sum of the new block up to p,
/// plus the suffix sum of the old block from p + 1.
#[derive(Clone, Debug)]
struct WindowSums {
    length: u64,
    /// Rows of this block up to `position`, then suffix sums of the previous block (not in the
    /// first block).
    rows: Vec<f64>,
    block_sum: Vec<f64>,
    position: usize,
}

impl WindowSums {
    fn new(length: u64, coordinates: usize) -> Self {
        Self { length, rows: Vec::new(), block_sum: vec![0.0; coordinates], position: 0 }
    }

    /// Adds a row. Writes the window's sums to `view`, divided by `length · divisor`.
    fn push(&mut self, increment: &[f64], divisor: f64, view: &mut [f64]) {
        if self.position as u64 == self.length {
            self.start_block();
        }
        let (width, start) = (increment.len(), self.position * increment.len());
        match self.rows.get_mut(start..start + width) {
            Some(row) => row.copy_from_slice(increment),
            None => self.rows.extend_from_slice(increment),
        }
        self.position += 1;
        view.fill(0.0);
        if let Some(older) = self.rows.get(start + width..start + 2 * width) {
            view.copy_from_slice(older);
        }
        for ((view, sum), &x) in view.iter_mut().zip(&mut self.block_sum).zip(increment) {
            *sum += x;
            *view = (*view + *sum) / (self.length as f64 * divisor);
        }
    }

    fn start_block(&mut self) {
        let width = self.block_sum.len();
        for index in (0..self.rows.len() - width).rev() {
            self.rows[index] += self.rows[index + width];
        }
        self.block_sum.fill(0.0);
        self.position = 0;
    }
}

/// A square, finite, lower-triangular matrix with at least one row, and its name.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixWorkload {
    name: String,
    rows: DMatrix<f64>,
    toeplitz: bool,
}

impl MatrixWorkload {
    /// The name after `matrix:`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The matrix A.
    pub fn rows(&self) -> &DMatrix<f64> {
        &self.rows
    }

    /// Returns whether every entry depends only on its lag `t − i`.
    pub fn is_toeplitz(&self) -> bool {
        self.toeplitz
    }

    pub(super) fn squared(&self) -> Self {
        // A square may overflow, and entries must stay finite.
        let rows = self.rows.map(|entry| (entry * entry).min(f64::MAX));
        Self { name: format!("{} squared", self.name), rows, toeplitz: self.toeplitz }
    }
}

impl Workload {
    /// The workload called `matrix:NAME` with these rows, one per epoch.
    ///
    /// ```
    /// use hushflow_mechanism::workload::Workload;
    /// use nalgebra::DMatrix;
    ///
    /// let halves = DMatrix::from_row_slice(2, 2, &[1.0, 0.0, 0.5, 0.5]);
    /// let workload = Workload::from_matrix("halves.csv", halves)?;
    /// assert_eq!(workload.coefficient(2, 1), 0.5);
    /// assert_eq!(workload.to_string(), "matrix:halves.csv");
    /// # Ok::<(), hushflow_mechanism::workload::WorkloadError>(())
    /// ```
    ///
    /// # Errors
    /// [`WorkloadError::Shape`], [`WorkloadError::NotFinite`] and [`WorkloadError::NotCausal`] for
    /// a matrix that is not square, finite and lower-triangular.
    pub fn from_matrix(name: impl Into<String>, rows: DMatrix<f64>) -> Result<Self, WorkloadError> {
        let (height, width) = rows.shape();
        if height != width || height == 0 {
            return Err(WorkloadError::Shape { rows: height, columns: width });
        }
        let one_based = |(t, i): (usize, usize)| (t + 1, i + 1);
        let all = || (0..height).flat_map(|t| (0..height).map(move |i| (t, i)));
        if let Some((row, column)) = all().find(|&position| !rows[position].is_finite()).map(one_based) {
            return Err(WorkloadError::NotFinite { row, column });
        }
        if let Some((row, column)) = all().find(|&(t, i)| i > t && rows[(t, i)] != 0.0).map(one_based) {
            return Err(WorkloadError::NotCausal { row, column });
        }
        let toeplitz = (1..height).all(|t| (1..=t).all(|i| rows[(t, i)] == rows[(t - 1, i - 1)]));
        Ok(Self::Matrix(Arc::new(MatrixWorkload { name: name.into(), rows, toeplitz })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chacha20::ChaCha20Rng;
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng};

    fn rows(steps: usize, coordinates: usize, seed: u64) -> Vec<Vec<f64>> {
        let mut random = ChaCha20Rng::seed_from_u64(seed);
        (0..steps).map(|_| (0..coordinates).map(|_| random.random_range(-1.0..1.0)).collect()).collect()
    }

    proptest! {
        #[test]
        fn a_stream_gets_the_rows_of_the_matrix(
            text in "prefix|average|(exponential|momentum|adam):0\\.[1-9]|window(-mean)?:[1-9][0-9]?",
            coordinates in 0usize..4,
            seed: u64,
        ) {
            let workload: Workload = text.parse().unwrap();
            let rows = rows(70, coordinates, seed);
            let mut state = workload.state(coordinates);
            for t in 1..=rows.len() {
                let found = state.push(&rows[t - 1]).unwrap();
                for c in 0..coordinates {
                    let dense: f64 =
                        (1..=t).map(|i| workload.coefficient(t as u64, i as u64) * rows[i - 1][c]).sum();
                    let value = found[c];
                    prop_assert!(
                        (value - dense).abs() < 1e-13 * t as f64,
                        "{text} {t}: found {value}, expected {dense}"
                    );
                }
            }
            prop_assert_eq!(state.steps(), 70);
        }
    }

    /// Values in (0, 2) whose sums are known exactly: they are integer multiples of 2⁻⁴⁰.
    #[test]
    fn sums_do_not_drift_over_many_steps() {
        const STEPS: usize = 100_000;
        let check = |text: &str, length: usize| {
            let mut random = ChaCha20Rng::seed_from_u64(7);
            let integers: Vec<i64> = (0..STEPS).map(|_| random.random_range(1..1i64 << 41)).collect();
            let mut state = text.parse::<Workload>().unwrap().state(1);
            let divisor = if text == "prefix" { 1.0 } else { length as f64 };
            let mut sum = 0i128;
            for (t, &integer) in integers.iter().enumerate() {
                sum += i128::from(integer) - if t >= length { i128::from(integers[t - length]) } else { 0 };
                let found = state.push(&[integer as f64 / 2f64.powi(40)]).unwrap()[0];
                let exact = sum as f64 / 2f64.powi(40) / divisor;
                assert!(
                    (found - exact).abs() <= 1e-12 * exact,
                    "{text} at {t}: found {found}, expected {exact}"
                );
            }
        };
        check("prefix", STEPS);
        check("window:10", 10);
        check("window:1000", 1000);
    }

    #[test]
    fn huge_row_has_no_effect_after_leaving_the_window() {
        let mut state = "window:3".parse::<Workload>().unwrap().state(1);
        let views: Vec<f64> =
            [1e300, f64::INFINITY, 0.3, 0.3, 0.3].map(|x| state.push(&[x]).unwrap()[0]).to_vec();
        assert_eq!(views[4], (0.3 + 0.3 + 0.3) / 3.0);
    }

    #[test]
    fn compensated_sum_keeps_small_terms_beside_a_huge_one() {
        let mut state = Workload::Prefix.state(1);
        let last = [1.0, 1e100, 1.0, -1e100].map(|x| state.push(&[x]).unwrap()[0])[3];
        assert_eq!(last, 2.0);
    }

    #[test]
    fn a_matrix_is_applied_row_by_row_to_its_end() {
        let rows = nalgebra::DMatrix::from_row_slice(2, 2, &[2.0, 0.0, -1.0, 3.0]);
        let mut state = Workload::from_matrix("w", rows).unwrap().state(2);
        assert_eq!(state.push(&[1.0, 2.0]).unwrap(), [2.0, 4.0]);
        assert_eq!(state.push(&[10.0, 20.0]).unwrap(), [29.0, 58.0]);
        assert_eq!(state.push(&[1.0, 1.0]), Err(WorkloadError::PastHorizon { horizon: 2 }));
    }

    #[test]
    fn a_row_of_another_length_is_refused_and_changes_nothing() {
        let mut state = Workload::Prefix.state(2);
        assert_eq!(state.push(&[1.0]), Err(WorkloadError::Coordinates { found: 1, expected: 2 }));
        assert_eq!(state.steps(), 0);
        assert_eq!(state.push(&[1.0, 2.0]).unwrap(), [1.0, 2.0]);
    }

    #[test]
    fn matrices_that_are_not_a_causal_workload_are_refused() {
        let check = |rows: DMatrix<f64>, expected: WorkloadError| {
            assert_eq!(Workload::from_matrix("w.csv", rows), Err(expected));
        };
        check(DMatrix::zeros(0, 0), WorkloadError::Shape { rows: 0, columns: 0 });
        check(DMatrix::zeros(2, 3), WorkloadError::Shape { rows: 2, columns: 3 });
        for value in [f64::NAN, f64::INFINITY] {
            let rows = DMatrix::from_row_slice(2, 2, &[1.0, 0.0, value, 1.0]);
            check(rows, WorkloadError::NotFinite { row: 2, column: 1 });
        }
        let rows = DMatrix::from_row_slice(2, 2, &[1.0, 0.5, 0.0, 1.0]);
        check(rows, WorkloadError::NotCausal { row: 1, column: 2 });
    }

    #[test]
    fn a_toeplitz_matrix_is_recognised() {
        let part = |rows: &[f64]| {
            Workload::from_matrix("w", DMatrix::from_row_slice(2, 2, rows)).unwrap().toeplitz_part(3)
        };
        assert_eq!(part(&[2.0, 0.0, 1.0, 2.0]), Some(vec![2.0, 1.0, 0.0]));
        assert_eq!(part(&[2.0, 0.0, 1.0, 1.0]), None);
    }
}
