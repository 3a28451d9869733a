//! Workloads in the form that optimisers use: the quadratic form V = AᵀA of the total squared error
//! tr(V X⁻¹).

use super::{OptimizeError, algebra};
use crate::workload::Workload;
use nalgebra::DMatrix;

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
            (_, Some(coefficients)) => Self::new(toeplitz_gram(&coefficients)),
            (_, None) => Self::from_matrix(&workload.matrix(steps)),
        }
    }

    /// Makes the form of any m×n workload matrix.
    ///
    /// # Errors
    /// [`OptimizeError::Empty`], [`OptimizeError::NotFinite`] and [`OptimizeError::Zero`].
    pub fn from_matrix(workload: &DMatrix<f64>) -> Result<Self, OptimizeError> {
        check_entries(workload)?;
        Self::new(algebra::dense(algebra::gram(algebra::view(workload)).as_ref()))
    }

    /// Makes the form of all n(n+1)/2 sums over consecutive steps: V_ij = i (n − j + 1) for steps i
    /// ≤ j from 1.
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

    fn workload_matrix(workload: &Workload, steps: usize) -> DMatrix<f64> {
        DMatrix::from_fn(steps, steps, |t, i| workload.coefficient(t as u64 + 1, i as u64 + 1))
    }

    #[test]
    fn closed_forms_are_the_products() {
        for text in
            ["prefix", "average", "exponential:0.9", "window:4", "window:40", "momentum:0.8", "adam:0.7"]
        {
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
    fn what_is_no_workload_is_refused() {
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
