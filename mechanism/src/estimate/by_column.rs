//! Moments of each column and of each pair of columns over the rows that have them, from released
//! moments of records with [indicators](crate::moments::Clipper::with_indicators).
//!
//! The released vector w = (y, e) has the values y and the indicators e, which are ±½ in units of
//! the clipper's [step](crate::moments::Clipper::indicator_step). Let τ₀, τ₁ and τ₂ be the noise of
//! the release, with steps of 1. The sums of a column and of a pair are linear in different
//! released numbers, so their noises are independent:
//!
//! ```text
//! column  N_j  = ½n + Σ e_j                             variance τ₀²/4 + τ₁²
//!         Σ m_j x_j, Σ m_j x_j²                         τ₁², τ₂²
//! pair    N_ij = ¼n + ½Σ e_i + ½Σ e_j + Σ e_i e_j       τ₀²/16 + τ₁²/2 + τ₂²/2
//!         Σ m_i m_j x_i = ½Σ y_i + Σ y_i e_j            τ₁²/4 + τ₂²/2
//!         Σ m_i m_j x_i x_j                             τ₂²/2
//! ```
//!
//! So each column has the moments of a release of one column. Debiasing, intervals and quality of
//! such releases apply to it. The covariance of a pair is that of the rows that have both columns,
//! about their own means. Covariances of different pairs are of different rows, so together they
//! need not be positive semi-definite.
//!
//! # Conditional on the qualities of a line
//! The qualities of a line depend on the counts N_k of all columns. An error of N_j or N_ij moves
//! the estimates of the column or the pair, and it shares noise with each N_k: in steps of 1
//!
//! ```text
//! cov(N_j, N_k) = τ₀²/4 for k ≠ j,    cov(N_ij, N_k) = τ₀²/8 + τ₁²/2 if k is i or j, else τ₀²/8
//! ```
//!
//! The estimates share no other noise with these counts. So each interval is conditional on the
//! quality of every column ([`selection`](super::selection)), and holds among the lines of any
//! combination of qualities.

use super::debias::{MomentNoise, NoisyMoments};
use super::density::DensityError;
use super::interval::{Confidence, Interval};
use super::intervals::{BOUND_TAIL, MomentIntervals};
use super::projection::{Projection, Spectrum, shrunk};
use super::selection::{Selection, count_interval};
use crate::moments::{Layout, SecondMoment};
use crate::quantile;
use nalgebra::{DMatrix, DVector};
use std::f64::consts::SQRT_2;

mod correlation;

pub use correlation::{CONTRADICTION, PairCorrelation};

/// Released moments of records with indicators: values first, then their indicators.
#[derive(Clone, Copy, Debug)]
pub struct ColumnwiseMoments<'a> {
    moments: NoisyMoments<'a>,
    columns: usize,
    step: f64,
}

/// Moments of one or two columns over the rows that have them.
#[derive(Clone, Debug, PartialEq)]
pub struct SubsetMoments {
    layout: Layout,
    coordinates: Vec<f64>,
    noise: MomentNoise,
    /// The counts that decide the qualities of columns, with the correlation of their noise with
    /// that of the number of these rows.
    selections: Vec<Selection>,
}

/// A covariance over the rows of a pair, before projection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairCovariance {
    /// The debiased estimate.
    pub covariance: f64,
    /// Standard deviation of its noise, to first order.
    pub noise: f64,
}

impl SubsetMoments {
    /// Number of rows, and the standard deviation of its noise.
    pub fn count(&self) -> (f64, f64) {
        (self.coordinates[Layout::COUNT], self.noise.count)
    }

    /// Σx of each column.
    pub fn first(&self) -> &[f64] {
        &self.coordinates[self.layout.first()]
    }

    /// Noise of the sums.
    pub fn noise(&self) -> MomentNoise {
        self.noise
    }

    /// The input of all estimates.
    pub fn noisy(&self) -> NoisyMoments<'_> {
        NoisyMoments { layout: self.layout, coordinates: &self.coordinates, noise: self.noise }
    }

    /// Returns confidence intervals, given the qualities of all columns.
    ///
    /// # Errors
    /// As [`NoisyMoments::intervals`].
    pub fn intervals(&self, confidence: Confidence) -> Result<MomentIntervals<'_>, DensityError> {
        Ok(self.noisy().intervals(confidence)?.given(self.selections.clone()))
    }
}

impl<'a> ColumnwiseMoments<'a> {
    /// Reads moments of vectors of values and indicators, which are `step` apart for a present and
    /// a missing value.
    ///
    /// # Errors
    /// [`DensityError::Shape`] unless the vectors have an even dimension and all coordinates,
    /// [`DensityError::Scale`] for a step that is not above 0.
    ///
    /// ```
    /// use hushflow_mechanism::estimate::by_column::ColumnwiseMoments;
    /// use hushflow_mechanism::estimate::debias::{MomentNoise, NoisyMoments};
    /// use hushflow_mechanism::moments::{Layout, SecondMoment};
    /// // Two rows, (4, none) and (6, 1): counts, Σ(y₁, y₂, e₁, e₂), and no second moments.
    /// let coordinates = [2.0, 10.0, 1.0, 1.0, 0.0];
    /// let layout = Layout::new(4, SecondMoment::None);
    /// let noise = MomentNoise { count: 0.0, first: 0.0, second: 0.0 };
    /// let moments = ColumnwiseMoments::new(NoisyMoments { layout, coordinates: &coordinates, noise }, 1.0)?;
    /// assert_eq!([0, 1].map(|column| moments.column(column).count().0), [2.0, 1.0]);
    /// # Ok::<(), hushflow_mechanism::estimate::density::DensityError>(())
    /// ```
    pub fn new(moments: NoisyMoments<'a>, step: f64) -> Result<Self, DensityError> {
        let Layout { dimension, .. } = moments.layout;
        let (found, expected) = (moments.coordinates.len(), moments.layout.coordinates());
        if found != expected || dimension == 0 || !dimension.is_multiple_of(2) {
            return Err(DensityError::Shape { found, expected, dimension });
        }
        if !(f64::MIN_POSITIVE..=f64::MAX).contains(&step) {
            return Err(DensityError::Scale(step));
        }
        Ok(Self { moments, columns: dimension / 2, step })
    }

    /// Number of columns d.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Which second moments of columns are known.
    pub fn second(&self) -> SecondMoment {
        self.moments.layout.second
    }

    /// The moments of a column over its own rows: count, Σx and Σx², the last where known.
    pub fn column(&self, column: usize) -> SubsetMoments {
        let (layout, noise) = self.layout_and_noise_of_columns();
        let mut coordinates = vec![self.column_count(column), self.first(column)];
        coordinates.extend((layout.second != SecondMoment::None).then(|| self.product(column, column)));
        let shared = self.moments.noise.count.powi(2) / 4.0;
        let selections = self.selections(noise.count, |other| (other != column).then_some(shared));
        SubsetMoments { layout, coordinates, noise, selections }
    }

    /// The same for all columns.
    fn layout_and_noise_of_columns(&self) -> (Layout, MomentNoise) {
        let MomentNoise { count, first, second } = self.moments.noise;
        let kind = match self.second() {
            SecondMoment::None => SecondMoment::None,
            SecondMoment::Full | SecondMoment::Diagonal => SecondMoment::Diagonal,
        };
        let noise = MomentNoise { count: (count / 2.0).hypot(first / self.step), first, second };
        (Layout::new(1, kind), noise)
    }

    /// The counts that decide the qualities of columns, for a number with this noise. `shared` is
    /// the covariance of the noise of the number and of a column's count; `None` leaves the column
    /// out.
    fn selections(&self, noise: f64, shared: impl Fn(usize) -> Option<f64>) -> Vec<Selection> {
        let (layout, of_columns) = self.layout_and_noise_of_columns();
        let selection = |column: usize| {
            let shared = shared(column)?;
            let count = self.column_count(column);
            let range = NoisyMoments { layout, coordinates: &[count], noise: of_columns }.count_range();
            let correlation = if noise > 0.0 { shared / noise / of_columns.count } else { 0.0 };
            Some(Selection::by_range(count, range, of_columns.count, correlation))
        };
        (0..self.columns).filter_map(selection).collect()
    }

    /// The moments of two columns over the rows that have both; `None` unless products of columns
    /// are known. The two squares are not released over these rows. Each is replaced by the number
    /// that gives its column the variance of all rows of the column, or 0 without an estimate.
    pub fn pair(&self, i: usize, j: usize) -> Option<SubsetMoments> {
        if self.second() != SecondMoment::Full || i == j {
            return None;
        }
        let (step, offset) = (self.step, self.columns);
        let of_both =
            |value: usize, other: usize| self.first(value) / 2.0 + self.product(value, offset + other) / step;
        let count = self.count() / 4.0
            + (self.indicator(i) + self.indicator(j)) / 2.0
            + self.product(offset + i, offset + j) / step / step;
        let sums = [of_both(i, j), of_both(j, i)];
        let square = |column: usize, sum: f64| {
            let variance = self.column(column).noisy().estimates().map_or(0.0, |(_, variance)| variance[0]);
            if count > 0.0 { count * variance.max(0.0) + sum * sum / count } else { 0.0 }
        };
        let squares = [square(i, sums[0]), square(j, sums[1])];
        let released = self.moments.noise;
        let product = released.second / SQRT_2;
        let noise = MomentNoise {
            count: (released.count / 4.0).hypot(released.first / step / SQRT_2).hypot(product / step / step),
            first: (released.first / 2.0).hypot(product / step),
            second: released.second,
        };
        let shared = |column: usize| {
            let own = if column == i || column == j { (released.first / step).powi(2) / 2.0 } else { 0.0 };
            Some(released.count.powi(2) / 8.0 + own)
        };
        Some(SubsetMoments {
            layout: Layout::new(2, SecondMoment::Full),
            coordinates: vec![count, sums[0], sums[1], squares[0], self.product(i, j), squares[1]],
            noise,
            selections: self.selections(noise.count, shared),
        })
    }

    /// Estimates the covariance of two columns.
    ///
    /// # Errors
    /// [`DensityError`], most often because too few rows have both.
    pub fn covariance(&self, i: usize, j: usize) -> Result<PairCovariance, DensityError> {
        let moments = self.pair(i, j).ok_or(DensityError::NoSecondMoments)?;
        let (mean, matrix) = moments.noisy().estimates()?;
        let covariance = matrix[(0, 1)];
        let noise = moments.noisy().covariance_noise(covariance, (mean[0], mean[1]), false);
        Ok(PairCovariance { covariance, noise })
    }

    /// Returns the interval of a column's count at this level, given the qualities of all columns.
    /// It ends no later than the interval of the number of all rows, taken at a fiftieth of the
    /// tail.
    pub fn column_count_interval(&self, column: usize, level: f64) -> Interval {
        let own = self.column(column);
        let (count, noise) = own.count();
        let range = own.noisy().count_range();
        let selections = [Selection::by_range(count, range, noise, 1.0)].into_iter().chain(own.selections);
        let interval = count_interval(count, noise, level, &selections.collect::<Vec<_>>());
        let reach = quantile::normal((1.0 - level) / 2.0 * BOUND_TAIL) * self.moments.noise.count;
        let all = Interval { lower: 0.0, upper: self.count().max(0.0) + reach };
        interval.within(all, quantile::normal((1.0 - level) / 2.0) * noise)
    }

    /// Returns the interval of the number of all rows at this level, given the qualities of all
    /// columns.
    pub fn count_interval(&self, level: f64) -> Interval {
        let noise = self.moments.noise.count;
        let selections = self.selections(noise, |_| Some(noise.powi(2) / 2.0));
        count_interval(self.count(), noise, level, &selections)
    }

    /// Covariance matrix of all columns after the [`Projection`], and the noise of its entries
    /// before it; `None` unless every column and every pair has an estimate.
    pub fn covariance_matrix(&self, projection: Projection) -> Option<(DMatrix<f64>, DMatrix<f64>)> {
        let (matrix, noise) = self.entries();
        let complete = |matrix: &DMatrix<f64>| matrix.iter().all(|entry| entry.is_finite());
        if !complete(&matrix) || !complete(&noise) {
            return None;
        }
        let along = |spectrum: &Spectrum| match &spectrum.directions {
            None => noise.diagonal(),
            Some(directions) => {
                // Entries on both sides of the diagonal have the same noise.
                let squares = directions.map(|u| u * u);
                let levels = noise.component_mul(&noise);
                let twice = &levels * 2.0 - DMatrix::from_diagonal(&levels.diagonal());
                DVector::from_iterator(
                    squares.ncols(),
                    squares.column_iter().map(|u| (&twice * u).dot(&u).sqrt()),
                )
            }
        };
        let raise = |matrix: DMatrix<f64>, floor: bool| {
            let spectrum = match self.second() {
                SecondMoment::Full => Spectrum::of(&matrix)?,
                _ => Spectrum { values: matrix.diagonal(), directions: None },
            };
            let rounding = 4.0 * matrix.nrows() as f64 * f64::EPSILON * matrix.amax();
            let floors = along(&spectrum).map(|noise| if floor { noise.max(rounding) } else { rounding });
            Some(spectrum.raise(matrix, &floors))
        };
        let projected = match projection {
            Projection::Raw => matrix,
            Projection::Floor => raise(matrix, true)?,
            Projection::Nearest => raise(matrix, false)?,
            Projection::Shrink => raise(shrunk(matrix, &noise), true)?,
        };
        Some((projected, noise))
    }

    /// Covariances before projection and their noise; NaN where there is no estimate. 0 off the
    /// diagonal if only squares are known.
    pub fn entries(&self) -> (DMatrix<f64>, DMatrix<f64>) {
        let mut matrix = DMatrix::zeros(self.columns, self.columns);
        let mut noise = matrix.clone();
        let entries = Layout::new(self.columns, self.second()).second_entries();
        for (i, j) in entries {
            let found = if i == j { self.variance(i) } else { self.covariance(i, j).ok() };
            let found = found.unwrap_or(PairCovariance { covariance: f64::NAN, noise: f64::NAN });
            for at in [(i, j), (j, i)] {
                (matrix[at], noise[at]) = (found.covariance, found.noise);
            }
        }
        (matrix, noise)
    }

    fn variance(&self, column: usize) -> Option<PairCovariance> {
        let moments = self.column(column);
        let (mean, variance) = moments.noisy().estimates().ok()?;
        let (mean, covariance) = (mean[0], variance[0]);
        let noise = moments.noisy().covariance_noise(covariance.max(0.0), (mean, mean), true);
        Some(PairCovariance { covariance, noise })
    }

    fn count(&self) -> f64 {
        self.moments.coordinates[Layout::COUNT]
    }

    fn column_count(&self, column: usize) -> f64 {
        self.count() / 2.0 + self.indicator(column)
    }

    fn first(&self, entry: usize) -> f64 {
        self.moments.coordinates[self.moments.layout.first()][entry]
    }

    /// Σ e of a column.
    fn indicator(&self, column: usize) -> f64 {
        self.first(self.columns + column) / self.step
    }

    /// Σ of the product of two entries of a vector.
    fn product(&self, i: usize, j: usize) -> f64 {
        let (row, column, dimension) = (i.min(j), i.max(j), 2 * self.columns);
        let second = &self.moments.coordinates[self.moments.layout.second()];
        match self.second() {
            SecondMoment::Full => second[row * (2 * dimension - row - 1) / 2 + column],
            _ => second[row],
        }
    }
}

#[cfg(test)]
mod tests;
