//! Dense operations of the interior-point method, on one thread: equal inputs give equal bits for
//! any number of workers.

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt::factor::{cholesky_in_place, cholesky_in_place_scratch};
use faer::linalg::matmul::matmul;
use faer::linalg::triangular_solve::{solve_lower_triangular_in_place, solve_upper_triangular_in_place};
use faer::{Accum, Mat, MatRef, Par};

/// Returns the lower-triangular L with L Lᵀ = matrix, from the lower triangle; `None` unless the
/// matrix is positive definite.
pub(super) fn cholesky(mut matrix: Mat<f64>) -> Option<Mat<f64>> {
    let size = matrix.nrows();
    let scratch = cholesky_in_place_scratch::<f64>(size, Par::Seq, Default::default());
    let mut memory = MemBuffer::new(scratch);
    let stack = MemStack::new(&mut memory);
    cholesky_in_place(matrix.as_mut(), Default::default(), Par::Seq, stack, Default::default()).ok()?;
    for j in 0..size {
        matrix.col_as_slice_mut(j)[..j].fill(0.0);
    }
    (0..size).all(|j| matrix[(j, j)].is_normal()).then_some(matrix)
}

/// (L Lᵀ)⁻¹.
pub(super) fn inverse(factor: &Mat<f64>) -> Mat<f64> {
    let mut root = Mat::identity(factor.nrows(), factor.nrows());
    solve_lower_triangular_in_place(factor.as_ref(), root.as_mut(), Par::Seq);
    product(root.transpose(), root.as_ref())
}

/// (L Lᵀ)⁻¹ · right.
pub(super) fn solve(factor: &Mat<f64>, right: &[f64]) -> Vec<f64> {
    let mut solution = Mat::from_fn(right.len(), 1, |i, _| right[i]);
    solve_lower_triangular_in_place(factor.as_ref(), solution.as_mut(), Par::Seq);
    solve_upper_triangular_in_place(factor.transpose(), solution.as_mut(), Par::Seq);
    solution.col_as_slice(0).to_vec()
}

pub(super) fn product(left: MatRef<'_, f64>, right: MatRef<'_, f64>) -> Mat<f64> {
    let mut product = Mat::zeros(left.nrows(), right.ncols());
    matmul(product.as_mut(), Accum::Replace, left, right, 1.0, Par::Seq);
    product
}

/// (A + Aᵀ)/2.
pub(super) fn symmetric_part(mut matrix: Mat<f64>) -> Mat<f64> {
    for j in 0..matrix.ncols() {
        for i in 0..j {
            let middle = (matrix[(i, j)] + matrix[(j, i)]) / 2.0;
            (matrix[(i, j)], matrix[(j, i)]) = (middle, middle);
        }
    }
    matrix
}

/// Σ a_ij b_ij.
pub(super) fn inner(a: &Mat<f64>, b: &Mat<f64>) -> f64 {
    let columns = (0..a.ncols()).map(|j| (a.col_as_slice(j), b.col_as_slice(j)));
    columns.map(|(a, b)| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>()).sum()
}

/// a + step·b.
pub(super) fn moved(a: &Mat<f64>, step: f64, b: &Mat<f64>) -> Mat<f64> {
    let mut moved = a.clone();
    for j in 0..a.ncols() {
        let column = moved.col_as_slice_mut(j).iter_mut().zip(b.col_as_slice(j));
        column.for_each(|(a, b)| *a += step * b);
    }
    moved
}
