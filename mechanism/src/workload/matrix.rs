//! A workload given entry by entry: any lower-triangular matrix, with one row per epoch.

use super::{Workload, WorkloadError};
use nalgebra::DMatrix;
use std::sync::Arc;

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

    /// Whether every entry depends only on its lag `t − i`.
    pub fn is_toeplitz(&self) -> bool {
        self.toeplitz
    }

    pub(super) fn squared(&self) -> Self {
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
    /// let workload = Workload::from_matrix("halves.csv", DMatrix::from_row_slice(2, 2, &[1.0, 0.0, 0.5, 0.5]))?;
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
        let place = |(t, i): (usize, usize)| (t + 1, i + 1);
        let all = || (0..height).flat_map(|t| (0..height).map(move |i| (t, i)));
        if let Some((row, column)) = all().find(|&place| !rows[place].is_finite()).map(place) {
            return Err(WorkloadError::NotFinite { row, column });
        }
        if let Some((row, column)) = all().find(|&(t, i)| i > t && rows[(t, i)] != 0.0).map(place) {
            return Err(WorkloadError::NotCausal { row, column });
        }
        let toeplitz = (1..height).all(|t| (1..=t).all(|i| rows[(t, i)] == rows[(t - 1, i - 1)]));
        Ok(Self::Matrix(Arc::new(MatrixWorkload { name: name.into(), rows, toeplitz })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_that_are_no_causal_workload_are_refused() {
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
