//! Maximum-entropy completion of measured entries: of the positive semidefinite matrices that fit
//! noisy measurements best, the one with the largest determinant (Ferrando et al. 2026, Problem 2).
//! The completion is updated with each measurement.
//!
//! - Columns that no chain of measured entries connects are uncorrelated in the completion
//!   (Fischer's inequality). So each connected component is solved separately, and a measurement
//!   affects only its own component.
//! - Within a component the unknowns are the measured entries (`interior`). The previous path is
//!   for the same component with one entry less. The new path starts at a point of the previous
//!   path that is far from the boundary.
//!
//! The precision matrix is exactly sparse: its entries are the multipliers.

mod interior;
#[cfg(test)]
mod tests;

use faer::Mat;
use interior::{MeasuredEntry, PathPoint, follow};
use nalgebra::DMatrix;

/// μ, in units of the log-likelihood, of an estimate between two measurements. Its effect is far
/// below the noise of the measurements.
const WHILE_MEASURING: f64 = 1e-4;

/// μ of the final estimate.
const FINAL: f64 = 1e-11;

/// μ at the start of a component's first path.
const WARM: f64 = 0.1;

/// Smallest μ of a stored point, from which later paths start.
const REMEMBERED: f64 = 2e-3;

/// Measured entries of a symmetric matrix and their completion of maximum entropy.
pub struct Completion {
    components: Vec<Component>,
    of_column: Vec<usize>,
    /// The position of each column in its component.
    position: Vec<usize>,
    steps: usize,
}

#[derive(Default)]
struct Component {
    columns: Vec<usize>,
    entries: Vec<MeasuredEntry>,
    ends: Option<(PathPoint, PathPoint)>,
}

impl Completion {
    /// Completes a measured diagonal, given as values y_jj with the inverse variances of their
    /// noise.
    pub fn of_diagonal(diagonal: &[(f64, f64)]) -> Self {
        let component = |(column, &(value, precision)): (usize, &(f64, f64))| Component {
            columns: vec![column],
            entries: vec![MeasuredEntry { row: 0, column: 0, value, precision }],
            ends: Some((
                PathPoint::single(value, precision, WARM),
                PathPoint::single(value, precision, WHILE_MEASURING),
            )),
        };
        let components = diagonal.iter().enumerate().map(component).collect();
        Self {
            components,
            of_column: (0..diagonal.len()).collect(),
            position: vec![0; diagonal.len()],
            steps: 0,
        }
    }

    /// Sets the measured value of an entry and the inverse variance of its noise, and solves its
    /// component again.
    pub fn measure(&mut self, row: usize, column: usize, value: f64, precision: f64) {
        let home = self.join(self.of_column[row], self.of_column[column]);
        let (a, b) = (self.position[row], self.position[column]);
        let entry = MeasuredEntry { row: a.max(b), column: a.min(b), value, precision };
        let component = &mut self.components[home];
        let at = |known: &&mut MeasuredEntry| (known.row, known.column) == (entry.row, entry.column);
        match component.entries.iter_mut().find(at) {
            Some(known) => *known = entry,
            None => component.entries.push(entry),
        }
        self.steps += component.solve(WHILE_MEASURING);
    }

    /// Solves all components to the final accuracy.
    pub fn finish(&mut self) {
        self.steps += self.components.iter_mut().map(|component| component.solve(FINAL)).sum::<usize>();
    }

    /// Number of Newton steps so far.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Returns an entry of the completion.
    pub fn covariance(&self, row: usize, column: usize) -> f64 {
        self.entry(row, column, |point| &point.covariance)
    }

    /// Returns the completion.
    pub fn matrix(&self) -> DMatrix<f64> {
        let size = self.of_column.len();
        DMatrix::from_fn(size, size, |i, j| self.covariance(i, j))
    }

    /// Returns the multiplier M of W ⪰ 0: μ times the inverse of the completion, and zero where
    /// nothing was measured.
    pub fn multiplier(&self) -> DMatrix<f64> {
        let size = self.of_column.len();
        DMatrix::from_fn(size, size, |i, j| self.entry(i, j, |point| &point.multiplier))
    }

    /// Returns the measured entries, with rows and columns of the whole matrix.
    #[cfg(test)]
    fn entries(&self) -> impl Iterator<Item = MeasuredEntry> + '_ {
        self.components.iter().flat_map(|component| {
            component.entries.iter().map(|entry| {
                let (a, b) = (component.columns[entry.row], component.columns[entry.column]);
                MeasuredEntry { row: a.max(b), column: a.min(b), ..*entry }
            })
        })
    }

    fn entry(&self, row: usize, column: usize, matrix: impl Fn(&PathPoint) -> &Mat<f64>) -> f64 {
        let home = self.of_column[row];
        match &self.components[home].ends {
            Some((_, end)) if home == self.of_column[column] => {
                matrix(end)[(self.position[row], self.position[column])]
            }
            _ => 0.0,
        }
    }

    /// Joins two components and returns the index of the result.
    fn join(&mut self, home: usize, other: usize) -> usize {
        if home == other {
            return home;
        }
        let moved = std::mem::take(&mut self.components[other]);
        let component = &mut self.components[home];
        let shift = component.columns.len();
        for (offset, &column) in moved.columns.iter().enumerate() {
            (self.of_column[column], self.position[column]) = (home, shift + offset);
        }
        let shifted = moved.entries.iter().map(|&entry| MeasuredEntry {
            row: entry.row + shift,
            column: entry.column + shift,
            ..entry
        });
        component.entries.extend(shifted);
        component.columns.extend(&moved.columns);
        component.ends = component.ends.take().zip(moved.ends).map(|(a, b)| {
            (PathPoint::block_diagonal(&[&a.0, &b.0]), PathPoint::block_diagonal(&[&a.1, &b.1]))
        });
        home
    }
}

impl Component {
    /// Follows the central path down to `target`. Returns the number of steps.
    fn solve(&mut self, target: f64) -> usize {
        let Some((begin, end)) = self.ends.take() else { return 0 };
        if let [entry] = self.entries[..] {
            let single = |barrier| PathPoint::single(entry.value, entry.precision, barrier);
            self.ends = Some((single(WARM), single(target)));
            return 0;
        }
        let start = if target < WHILE_MEASURING { end } else { begin.clone() };
        let solution = follow(&self.entries, start, target, REMEMBERED);
        let begin = if target < WHILE_MEASURING { begin } else { solution.begin };
        self.ends = Some((begin, solution.end));
        solution.steps
    }
}
