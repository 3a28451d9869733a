//! The sums from which a regression line is computed. They are those of a release. With
//! `missing = "by-column"` they follow from the covariances of pairs of columns.

use hushflow_mechanism::estimate::by_column::ColumnwiseMoments;
use hushflow_mechanism::estimate::debias::MIN_COUNT_TO_NOISE;
use hushflow_mechanism::estimate::density::{Density, DensityError};
use hushflow_mechanism::view::Moments;
use nalgebra::DMatrix;

use super::Regression;
use crate::estimates::by_column::columnwise;
use crate::estimates::{ColumnScales, ScaledView};

/// The sums of products of 1, the columns of `on` and the target, in this order, about the centres
/// of the scales.
pub(super) struct LineInput {
    pub(super) sums: DMatrix<f64>,
    /// Variances of the noise of `sums`.
    pub(super) variances: DMatrix<f64>,
    /// Weighted number of records.
    pub(super) count: f64,
    pub(super) scales: ColumnScales,
}

impl Regression {
    /// Returns the columns of `on`, and then the target.
    fn columns(&self) -> Vec<usize> {
        self.on.iter().copied().chain([self.target]).collect()
    }

    pub(super) fn input(&self, moments: &Moments, scaled: &ScaledView) -> Result<LineInput, DensityError> {
        let scales = scaled.scales(moments.key).clone();
        if let Some(by_column) = columnwise(moments, scaled) {
            if !scaled.view.intervals.missing_at_random {
                return Err(DensityError::DifferentRows);
            }
            let input = self.input_by_column(&by_column, scales)?;
            let largest_weight = scaled.view.workload.largest_coefficient(moments.epoch);
            return match by_column.contradict_random(&self.columns(), largest_weight) {
                true => Err(DensityError::NotMissingAtRandom),
                false => Ok(input),
            };
        }
        let (count, count_noise) = (moments.count(), moments.noise.count);
        if !(count > 0.0 && count > MIN_COUNT_TO_NOISE * count_noise) {
            return Err(DensityError::TooFewRecords { count, count_noise });
        }
        Ok(LineInput { sums: self.sums(moments), variances: self.variances(moments), count, scales })
    }

    /// Returns the input from the covariances of pairs, about the means of the columns.
    fn input_by_column(
        &self,
        moments: &ColumnwiseMoments<'_>,
        mut scales: ColumnScales,
    ) -> Result<LineInput, DensityError> {
        let columns = self.columns();
        let densities = columns.iter().map(|&column| moments.column(column).noisy().density());
        let densities: Vec<Density> = densities.collect::<Result<_, _>>()?;
        let mut count = f64::INFINITY;
        for (at, &i) in columns.iter().enumerate() {
            for &j in &columns[..at] {
                moments.covariance(i, j)?;
                count = moments.pair(i, j).map_or(count, |pair| count.min(pair.count().0));
            }
        }
        let (covariance, noise) = moments.entries();
        let size = columns.len() + 1;
        let entry = |matrix: &DMatrix<f64>, i: usize, j: usize| matrix[(columns[i - 1], columns[j - 1])];
        let sums = DMatrix::from_fn(size, size, |i, j| match (i, j) {
            (0, 0) => count,
            (0, _) | (_, 0) => 0.0,
            (i, j) => count * entry(&covariance, i, j),
        });
        let variances = DMatrix::from_fn(size, size, |i, j| match (i, j) {
            (0, 0) => 0.0,
            (0, one) | (one, 0) => (count * densities[one - 1].mean_noise[0]).powi(2),
            (i, j) => (count * entry(&noise, i, j)).powi(2),
        });
        for (&column, density) in columns.iter().zip(&densities) {
            scales.centres[column] += density.mean[0] * scales.half_widths[column];
        }
        Ok(LineInput { sums, variances, count, scales })
    }

    /// Returns the sums of products of 1, the columns of `on`, and the target, in this order.
    pub(super) fn sums(&self, moments: &Moments) -> DMatrix<f64> {
        let columns = self.columns();
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

    /// Returns the variances of the noise of [`sums`](Self::sums).
    fn variances(&self, moments: &Moments) -> DMatrix<f64> {
        let noise = moments.noise;
        DMatrix::from_fn(self.on.len() + 2, self.on.len() + 2, |i, j| match (i, j) {
            (0, 0) => noise.count.powi(2),
            (0, _) | (_, 0) => noise.first.powi(2),
            _ if i == j => noise.second.powi(2),
            _ => noise.second.powi(2) / 2.0,
        })
    }
}
