//! Dense operations of the optimisers, on matrices of a thousand rows and more, and conjugate
//! gradients.

use faer::{
    Accum, Mat, MatRef, Side, get_global_parallelism,
    linalg::{
        matmul::triangular::{self, BlockStructure},
        triangular_solve::solve_lower_triangular_in_place,
    },
};
use nalgebra::DMatrix;

/// Eigenvalues of a positive semidefinite matrix, and its eigenvectors as columns.
pub(super) struct Eigen {
    pub(super) values: Vec<f64>,
    pub(super) vectors: Mat<f64>,
}

/// Decomposes the lower triangle. Eigenvalues at the level of rounding are 0. `None` if the
/// iteration fails.
pub(super) fn eigen(matrix: MatRef<'_, f64>) -> Option<Eigen> {
    let found = matrix.self_adjoint_eigen(Side::Lower).ok()?;
    let mut values: Vec<f64> = found.S().column_vector().iter().copied().collect();
    let rounding = 8.0 * f64::EPSILON * values.last()?.abs();
    values.iter_mut().filter(|value| **value < rounding).for_each(|value| *value = 0.0);
    values.iter().all(|value| value.is_finite()).then(|| Eigen { values, vectors: found.U().to_owned() })
}

/// Returns the lower-triangular L with L Lᵀ = matrix; `None` unless the matrix is positive
/// definite.
pub(super) fn cholesky(matrix: MatRef<'_, f64>) -> Option<Mat<f64>> {
    let factor = matrix.llt(Side::Lower).ok()?.L().to_owned();
    (0..factor.nrows()).all(|i| factor[(i, i)].is_normal()).then_some(factor)
}

/// Returns the lower-triangular C with CᵀC = matrix.
pub(super) fn reverse_cholesky(matrix: MatRef<'_, f64>) -> Option<Mat<f64>> {
    let factor = cholesky(matrix.reverse_rows_and_cols())?;
    Some(factor.as_ref().reverse_rows_and_cols().transpose().to_owned())
}

/// L⁻¹ · right.
pub(super) fn solve_lower(lower: MatRef<'_, f64>, right: MatRef<'_, f64>) -> Mat<f64> {
    let mut solution = right.to_owned();
    solve_lower_triangular_in_place(lower, solution.as_mut(), get_global_parallelism());
    solution
}

/// The lower triangle of left · right, zeros above.
pub(super) fn lower_product(left: MatRef<'_, f64>, right: MatRef<'_, f64>) -> Mat<f64> {
    let mut product = Mat::zeros(left.nrows(), right.ncols());
    triangular::matmul(
        product.as_mut(),
        BlockStructure::TriangularLower,
        Accum::Replace,
        left,
        BlockStructure::Rectangular,
        right,
        BlockStructure::Rectangular,
        1.0,
        get_global_parallelism(),
    );
    product
}

/// left · right, where left is lower triangular.
pub(super) fn lower_times(left: MatRef<'_, f64>, right: MatRef<'_, f64>) -> Mat<f64> {
    let mut product = Mat::zeros(left.nrows(), right.ncols());
    triangular::matmul(
        product.as_mut(),
        BlockStructure::Rectangular,
        Accum::Replace,
        left,
        BlockStructure::TriangularLower,
        right,
        BlockStructure::Rectangular,
        1.0,
        get_global_parallelism(),
    );
    product
}

/// matrixᵀ · matrix.
pub(super) fn gram(matrix: MatRef<'_, f64>) -> Mat<f64> {
    let mut product = lower_product(matrix.transpose(), matrix);
    for j in 0..product.ncols() {
        for i in 0..j {
            product[(i, j)] = product[(j, i)];
        }
    }
    product
}

/// Multiplies row i by factors[i].
pub(super) fn scale_rows(matrix: &mut Mat<f64>, factors: &[f64]) {
    for j in 0..matrix.ncols() {
        matrix.col_as_slice_mut(j).iter_mut().zip(factors).for_each(|(entry, factor)| *entry *= factor);
    }
}

pub(super) fn view(matrix: &DMatrix<f64>) -> MatRef<'_, f64> {
    MatRef::from_column_major_slice(matrix.as_slice(), matrix.nrows(), matrix.ncols())
}

pub(super) fn dense(matrix: MatRef<'_, f64>) -> DMatrix<f64> {
    DMatrix::from_fn(matrix.nrows(), matrix.ncols(), |i, j| matrix[(i, j)])
}

/// Solves `curvature(x) = right` until the energy of the residual, ⟨r, precondition(r)⟩, is at most
/// `enough` of the first one, or for `limit` steps. Also returns the number of steps.
pub(super) fn conjugate_gradients(
    curvature: impl Fn(&[f64]) -> Vec<f64>,
    precondition: impl Fn(&[f64]) -> Vec<f64>,
    right: &[f64],
    enough: impl FnOnce(f64) -> f64,
    limit: usize,
) -> (Vec<f64>, usize) {
    let mut residual = right.to_vec();
    let mut search = precondition(&residual);
    let mut energy = dot(&residual, &search);
    let enough = enough(energy);
    let mut solution = vec![0.0; right.len()];
    for step in 0..limit {
        if energy <= enough {
            return (solution, step);
        }
        let image = curvature(&search);
        let length = energy / dot(&search, &image);
        if !length.is_finite() {
            return (solution, step);
        }
        solution = plus(&solution, length, &search);
        residual = plus(&residual, -length, &image);
        let next = precondition(&residual);
        let next_energy = dot(&residual, &next);
        search = plus(&next, next_energy / energy, &search);
        energy = next_energy;
    }
    (solution, limit)
}

/// ⟨a, b⟩.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// a + factor · b.
pub(super) fn plus(a: &[f64], factor: f64, b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + factor * b).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_causal_factor_of_every_definite_matrix(entries in prop::collection::vec(-1.0..1.0f64, 36)) {
            let root = Mat::from_fn(6, 6, |i, j| entries[6 * i + j] + if i == j { 3.0 } else { 0.0 });
            let matrix = gram(root.as_ref());
            let causal = reverse_cholesky(matrix.as_ref()).unwrap();
            prop_assert!((gram(causal.as_ref()) - &matrix).norm_max() < 1e-12);
            prop_assert!((0..6).all(|j| (0..j).all(|i| causal[(i, j)] == 0.0)));
        }
    }

    #[test]
    fn no_factor_of_an_indefinite_matrix() {
        let matrix = Mat::from_fn(3, 3, |i, j| if i == j { 1.0 } else { -0.9 });
        assert!(cholesky(matrix.as_ref()).is_none() && reverse_cholesky(matrix.as_ref()).is_none());
    }
}
