//! Released sums of products as the matrix that a line is computed from, and their noise.

use hushflow_mechanism::view::Moments;
use nalgebra::DMatrix;

/// Returns the sums of products of 1 and these columns, in this order.
pub(super) fn products(moments: &Moments, columns: &[usize]) -> DMatrix<f64> {
    let (first, second, dimension) = (moments.first(), moments.second(), moments.layout.dimension);
    let product = |one: usize, other: usize| {
        let (row, column) = (one.min(other), one.max(other));
        second[row * (2 * dimension - row - 1) / 2 + column]
    };
    DMatrix::from_fn(columns.len() + 1, columns.len() + 1, |i, j| match (i, j) {
        (0, 0) => moments.count(),
        (0, one) | (one, 0) => first[columns[one - 1]],
        (one, other) => product(columns[one - 1], columns[other - 1]),
    })
}

/// Returns the variances of their noise, for a matrix of `size` rows.
pub(super) fn variances(moments: &Moments, size: usize) -> DMatrix<f64> {
    let noise = moments.noise;
    DMatrix::from_fn(size, size, |i, j| match (i, j) {
        (0, 0) => noise.count.powi(2),
        (0, _) | (_, 0) => noise.first.powi(2),
        _ if i == j => noise.second.powi(2),
        _ => noise.second.powi(2) / 2.0,
    })
}
