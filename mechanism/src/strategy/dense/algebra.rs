//! Products and triangular solves of matrices with up to a few thousand rows. For errors only: no
//! result enters a coefficient that runs.

use crate::{strategy::Matrix, workload::Workload};
use faer::{Mat, Par, linalg::triangular_solve::solve_upper_triangular_in_place};
use std::ops::Range;

/// A block of A, transposed: one row for each of `columns`, one column for each of `rows`, counted
/// from 0.
pub(in crate::strategy) fn transposed_workload(
    workload: &Workload,
    rows: Range<usize>,
    columns: Range<usize>,
) -> Mat<f64> {
    let divisors: Vec<f64> = rows.clone().map(|t| workload.row_divisor(t as u64 + 1)).collect();
    match workload.toeplitz_part(rows.end) {
        None => Mat::from_fn(columns.len(), rows.len(), |i, t| {
            workload.coefficient((rows.start + t + 1) as u64, (columns.start + i + 1) as u64)
        }),
        Some(toeplitz) => Mat::from_fn(columns.len(), rows.len(), |i, t| {
            let lag = (rows.start + t).checked_sub(columns.start + i);
            lag.map_or(0.0, |lag| toeplitz[lag] / divisors[t])
        }),
    }
}

/// Squared norms of the rows of `A C⁻¹`, given `Aᵀ` and a lower-triangular C.
pub(in crate::strategy) fn squared_row_norms(mut transposed: Mat<f64>, c: &Mat<f64>) -> Vec<f64> {
    solve_upper_triangular_in_place(c.transpose(), transposed.as_mut(), Par::Seq);
    transposed.col_iter().map(|row| row.squared_norm_l2()).collect()
}

pub(in crate::strategy) fn square(matrix: &Matrix) -> Option<Mat<f64>> {
    let entries = (matrix.rows() == matrix.columns()).then(|| matrix.entries())?;
    Some(Mat::from_fn(entries.nrows(), entries.ncols(), |t, i| entries[(t, i)]))
}
