//! Dense linear algebra for the optimisers, on matrices of a thousand rows and more, and conjugate
//! gradients.
//!
//! # Quadratic forms
//! [`QuadraticForm`] is a workload as optimisers use it: the quadratic form V = AᵀA of the total
//! squared error tr(V X⁻¹).

use super::OptimizeError;
use crate::workload::Workload;
use faer::linalg::matmul::triangular;
use faer::linalg::matmul::triangular::BlockStructure;
use faer::linalg::triangular_solve::solve_lower_triangular_in_place;
use faer::{Accum, Mat, MatRef, Side, get_global_parallelism};
use nalgebra::DMatrix;

/// Eigenvalues of a positive semidefinite matrix, and its eigenvectors as columns.
pub(super) struct Eigen {
    pub(super) values: Vec<f64>,
    pub(super) vectors: Mat<f64>,
}

/// Decomposes the lower triangle. Eigenvalues at the level of rounding are 0. `None` if the
/// iteration fails.
pub(super) fn eigen(matrix: MatRef<'_, f64>) -> Option<Eigen> {
    let eigen = matrix.self_adjoint_eigen(Side::Lower).ok()?;
    let mut values: Vec<f64> = eigen.S().column_vector().iter().copied().collect();
    let rounding = 8.0 * f64::EPSILON * values.last()?.abs();
    values.iter_mut().filter(|value| **value < rounding).for_each(|value| *value = 0.0);
    values.iter().all(|value| value.is_finite()).then(|| Eigen { values, vectors: eigen.U().to_owned() })
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
/// `enough` of the first residual's energy, or for `limit` steps. Also returns the number of steps.
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

/// V = AᵀA of a workload with n columns, one for each step.
#[derive(Clone, Debug, PartialEq)]
pub struct QuadraticForm {
    matrix: DMatrix<f64>,
}

impl QuadraticForm {
    /// Makes the form of the first `steps` rows of a workload, in O(n²) operations and without
    /// forming A, unless A is given entry by entry.
    ///
    /// ```
    /// use hushflow_mechanism::optimize::QuadraticForm;
    ///
    /// let form = QuadraticForm::from_workload(&"prefix".parse()?, 3)?;
    /// assert_eq!(form.matrix()[(0, 1)], 2.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`OptimizeError::Empty`] if `steps` is 0.
    pub fn from_workload(workload: &Workload, steps: usize) -> Result<Self, OptimizeError> {
        match (workload, workload.toeplitz_part(steps)) {
            (Workload::Average, _) => Self::new(weighted_decay(1.0, &divisors(workload, steps))),
            (Workload::Adam(decay), _) => Self::new(weighted_decay(decay.get(), &divisors(workload, steps))),
            (Workload::WindowMean(_), _) => Self::from_matrix(&workload.matrix(steps)),
            (_, Some(coefficients)) => Self::new(toeplitz_gram(&coefficients)),
            (_, None) => Self::from_matrix(&workload.matrix(steps)),
        }
    }

    /// Makes the form of an m×n workload matrix.
    ///
    /// # Errors
    /// [`OptimizeError::Empty`], [`OptimizeError::NotFinite`] and [`OptimizeError::Zero`].
    pub fn from_matrix(workload: &DMatrix<f64>) -> Result<Self, OptimizeError> {
        check_entries(workload)?;
        Self::new(dense(gram(view(workload)).as_ref()))
    }

    /// Makes the form of all n(n+1)/2 sums over ranges of consecutive steps: V_ij = i (n − j + 1)
    /// for steps i ≤ j from 1.
    ///
    /// # Errors
    /// [`OptimizeError::Empty`] if `steps` is 0.
    pub fn all_ranges(steps: usize) -> Result<Self, OptimizeError> {
        Self::new(DMatrix::from_fn(steps, steps, |i, j| ((i.min(j) + 1) * (steps - i.max(j))) as f64))
    }

    fn new(matrix: DMatrix<f64>) -> Result<Self, OptimizeError> {
        check_entries(&matrix)?;
        if matrix.iter().all(|&entry| entry == 0.0) {
            return Err(OptimizeError::Zero);
        }
        Ok(Self { matrix })
    }

    /// Number of steps n.
    pub fn steps(&self) -> usize {
        self.matrix.nrows()
    }

    /// V, symmetric and positive semidefinite.
    pub fn matrix(&self) -> &DMatrix<f64> {
        &self.matrix
    }
}

fn check_entries(matrix: &DMatrix<f64>) -> Result<(), OptimizeError> {
    if matrix.is_empty() {
        return Err(OptimizeError::Empty { rows: matrix.nrows(), columns: matrix.ncols() });
    }
    let bad = (0..matrix.len()).find(|&k| !matrix[k].is_finite());
    bad.map_or(Ok(()), |k| {
        Err(OptimizeError::NotFinite { row: k % matrix.nrows() + 1, column: k / matrix.nrows() + 1 })
    })
}

fn divisors(workload: &Workload, steps: usize) -> Vec<f64> {
    (1..=steps as u64).map(|t| workload.row_divisor(t)).collect()
}

/// `V_ij = β^|i−j| Σ_(t ≥ m) β^(2(t−m)) / divisor(t)²` with m = max(i,j), for `A[t,i] = β^(t−i) /
/// divisor(t)`.
fn weighted_decay(decay: f64, divisors: &[f64]) -> DMatrix<f64> {
    let mut tails: Vec<f64> = divisors.iter().map(|divisor| divisor.powi(-2)).collect();
    for t in (1..tails.len()).rev() {
        tails[t - 1] += decay * decay * tails[t];
    }
    let powers: Vec<f64> = (0..tails.len()).map(|lag| libm::pow(decay, lag as f64)).collect();
    DMatrix::from_fn(tails.len(), tails.len(), |i, j| powers[i.abs_diff(j)] * tails[i.max(j)])
}

/// V_ij = V_(i+1)(j+1) + T_(n−i) T_(n−j), steps from 1.
fn toeplitz_gram(coefficients: &[f64]) -> DMatrix<f64> {
    let steps = coefficients.len();
    let mut matrix = DMatrix::zeros(steps, steps);
    for j in (0..steps).rev() {
        for i in (0..steps).rev() {
            let later = if i.max(j) + 1 < steps { matrix[(i + 1, j + 1)] } else { 0.0 };
            matrix[(i, j)] = later + coefficients[steps - 1 - i] * coefficients[steps - 1 - j];
        }
    }
    matrix
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_definite_matrix_has_a_causal_factor(entries in prop::collection::vec(-1.0..1.0f64, 36)) {
            let root = Mat::from_fn(6, 6, |i, j| entries[6 * i + j] + if i == j { 3.0 } else { 0.0 });
            let matrix = gram(root.as_ref());
            let causal = reverse_cholesky(matrix.as_ref()).unwrap();
            prop_assert!((gram(causal.as_ref()) - &matrix).norm_max() < 1e-12);
            prop_assert!((0..6).all(|j| (0..j).all(|i| causal[(i, j)] == 0.0)));
        }
    }

    #[test]
    fn indefinite_matrices_have_no_factor() {
        let matrix = Mat::from_fn(3, 3, |i, j| if i == j { 1.0 } else { -0.9 });
        assert!(cholesky(matrix.as_ref()).is_none() && reverse_cholesky(matrix.as_ref()).is_none());
    }

    fn workload_matrix(workload: &Workload, steps: usize) -> DMatrix<f64> {
        DMatrix::from_fn(steps, steps, |t, i| workload.coefficient(t as u64 + 1, i as u64 + 1))
    }

    #[test]
    fn closed_forms_agree_with_products() {
        for text in [
            "prefix",
            "average",
            "exponential:0.9",
            "window:4",
            "window:40",
            "window-mean:4",
            "momentum:0.8",
            "adam:0.7",
        ] {
            let workload = text.parse().unwrap();
            let closed = QuadraticForm::from_workload(&workload, 17).unwrap();
            let product = QuadraticForm::from_matrix(&workload_matrix(&workload, 17)).unwrap();
            assert!((closed.matrix() - product.matrix()).amax() < 1e-13 * product.matrix().amax(), "{text}");
        }
        let ranges: Vec<_> = (0..6).flat_map(|a| (a..6).map(move |b| (a, b))).collect();
        let all = DMatrix::from_fn(21, 6, |q, i| f64::from(u8::from(ranges[q].0 <= i && i <= ranges[q].1)));
        assert_eq!(QuadraticForm::all_ranges(6).unwrap(), QuadraticForm::from_matrix(&all).unwrap());
    }

    #[test]
    fn invalid_workloads_are_refused() {
        let check = |matrix: DMatrix<f64>, hint: &str| {
            let message = QuadraticForm::from_matrix(&matrix).unwrap_err().to_string();
            assert!(message.contains(hint), "{message}");
        };
        check(DMatrix::zeros(0, 3), "0×3");
        check(DMatrix::zeros(2, 3), "zero");
        check(DMatrix::from_element(2, 2, f64::NAN), "row 1, column 1");
        check(DMatrix::from_element(2, 2, 1e200), "row 1, column 1");
        check(DMatrix::from_row_slice(2, 2, &[1.0, f64::INFINITY, 0.0, 1.0]), "row 1, column 2");
        assert!(QuadraticForm::from_workload(&Workload::Prefix, 0).is_err());
        assert!(QuadraticForm::all_ranges(0).is_err());
    }
}
