//! Products and triangular solves of matrices with up to some thousand rows, for errors only: nothing here enters a
//! coefficient that runs.

use crate::{strategy::Matrix, workload::Workload};
use faer::{Mat, Par, linalg::triangular_solve::solve_upper_triangular_in_place};
use nalgebra::DMatrix;
use std::ops::Range;

/// A block of A, transposed: a row for every one of `columns`, a column for every one of `rows`, counted from 0.
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

/// What stands for a C that is too large to be written down: a single row of infinities, so that no sensitivity that is
/// computed from it is too small.
pub(in crate::strategy) fn too_large(steps: usize) -> Matrix {
    Matrix::Dense(DMatrix::from_element(1, steps, f64::INFINITY))
}

/// All entries of a square C; `None` for one that is not square.
pub(in crate::strategy) fn square(matrix: &Matrix) -> Option<Mat<f64>> {
    let toeplitz = |c: &[f64], t: usize, i: usize| t.checked_sub(i).map_or(0.0, |lag| c[lag]);
    match matrix {
        Matrix::Toeplitz(c) => Some(Mat::from_fn(c.len(), c.len(), |t, i| toeplitz(c, t, i))),
        Matrix::ScaledToeplitz { coefficients: c, column_scales: s } => {
            Some(Mat::from_fn(c.len(), c.len(), |t, i| toeplitz(c, t, i) * s[i]))
        }
        Matrix::Dense(c) => c.is_square().then(|| Mat::from_fn(c.nrows(), c.ncols(), |t, i| c[(t, i)])),
        Matrix::Stamped { block, copies } => {
            let block = square(block)?;
            let (m, n) = (block.nrows(), block.nrows() * copies);
            Some(Mat::from_fn(n, n, |t, i| if t / m == i / m { block[(t % m, i % m)] } else { 0.0 }))
        }
    }
}
