//! Compares every form of a matrix with the same matrix in dense form.

use super::*;

fn scaled() -> Matrix {
    Matrix::scaled_toeplitz(vec![1.0, -0.5, 0.25], vec![1.0, 2.0, 3.0, 0.5, -1.0]).unwrap()
}

fn written_out(matrix: &Matrix) -> DMatrix<f64> {
    let column = |i| {
        let unit: Vec<f64> = (0..matrix.columns()).map(|j| f64::from(u8::from(i == j))).collect();
        matrix.product(&unit)
    };
    let columns: Vec<f64> = (0..matrix.columns()).flat_map(column).collect();
    DMatrix::from_vec(matrix.rows(), matrix.columns(), columns)
}

#[test]
fn columns_as_far_apart_as_there_are_bands_share_no_row() {
    let banded = DMatrix::from_row_slice(3, 3, &[1.0, 0.0, 0.0, -1.0, 1.0, 0.0, 0.0, 0.5, 1.0]);
    let forms = [
        (Matrix::toeplitz(vec![1.0], 4).unwrap(), Some(1)),
        (Matrix::toeplitz(vec![1.0, 0.5, 0.0, 0.25, 0.0], 9).unwrap(), Some(4)),
        (scaled(), Some(3)),
        (Matrix::dense(banded.clone()).unwrap(), Some(2)),
        (Matrix::stamped(scaled(), 3).unwrap(), Some(3)),
        (Matrix::dense(banded.transpose()).unwrap(), None),
        (Matrix::dense(DMatrix::from_element(4, 3, 1.0)).unwrap(), None),
    ];
    for (matrix, expected) in forms {
        assert_eq!(matrix.bands(), expected);
        let entries = matrix.entries();
        for (i, j) in (0..matrix.columns()).flat_map(|i| (i..matrix.columns()).map(move |j| (i, j))) {
            let shared = entries.column(i).iter().zip(&entries.column(j)).any(|(a, b)| a * b != 0.0);
            assert!(expected.is_none_or(|bands| !shared || j - i < bands));
        }
    }
}

#[test]
fn every_form_agrees_with_its_matrix() {
    let tall = DMatrix::from_fn(7, 4, |row, column| ((row * 3 + column * 5) % 7) as f64 - 2.0);
    let forms = [
        Matrix::toeplitz(vec![1.0, 0.5, 0.375, 0.3125, 0.0, 9.0], 4).unwrap(),
        scaled(),
        Matrix::dense(tall).unwrap(),
        Matrix::stamped(scaled(), 3).unwrap(),
        Matrix::stamped(Matrix::stamped(scaled(), 2).unwrap(), 2).unwrap(),
    ];
    for matrix in forms {
        let entries = written_out(&matrix);
        assert_eq!(matrix.entries(), entries);
        let gram = entries.transpose() * &entries;
        let all: Vec<usize> = (0..matrix.columns()).collect();
        assert!((matrix.gram(&all) - &gram).amax() < 1e-13);
        for lag in 0..=matrix.columns() {
            let diagonal = matrix.overlaps(lag);
            assert_eq!(diagonal.len(), matrix.columns() - lag);
            for (i, value) in diagonal.iter().enumerate() {
                assert!((value - gram[(i, i + lag)]).abs() < 1e-13, "{matrix:?}: {i}, {lag}");
                assert!(lag <= matrix.reach() || *value == 0.0);
            }
        }
        assert_eq!(matrix.is_nonnegative(), entries.min() >= 0.0);
        assert!((matrix.negative_overlap().unwrap() - (-gram.min()).max(0.0)).abs() < 1e-12);
    }
}

#[test]
fn a_toeplitz_matrix_begins_with_its_coefficients() {
    let entries = written_out(&scaled());
    assert_eq!(entries.column(1).as_slice(), [0.0, 2.0, -1.0, 0.5, 0.0]);
    assert_eq!(entries.column(4).as_slice(), [0.0, 0.0, 0.0, 0.0, -1.0]);
}

#[test]
fn refuses_with_a_reason() {
    let check = |found: Result<Matrix, MatrixError>, part: &str| {
        let message = found.unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    };
    check(Matrix::toeplitz(vec![1.0], 0), "has 0 columns");
    check(Matrix::toeplitz(vec![1.0], MAX_COLUMNS + 1), "columns");
    check(Matrix::toeplitz(vec![], 3), "largest entry of a strategy is 0e0");
    check(Matrix::toeplitz(vec![1.0, f64::NAN], 3), "is NaN");
    check(Matrix::toeplitz(vec![1e-200], 3), "1e-200");
    check(Matrix::scaled_toeplitz(vec![1.0], vec![1.0, f64::INFINITY]), "is inf");
    check(Matrix::scaled_toeplitz(vec![1.0], vec![]), "has 0 columns");
    check(Matrix::dense(DMatrix::zeros(0, 3)), "largest entry");
    check(Matrix::dense(DMatrix::zeros(3, 0)), "has 0 columns");
    check(Matrix::stamped(scaled(), 0), "has 0 columns");
    check(Matrix::stamped(scaled(), usize::MAX), "columns");
}
