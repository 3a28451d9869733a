//! Moments of each column and of each pair of columns over the rows that have them, from released
//! moments of records with [indicators](crate::moments::Clipper::with_indicators).
//!
//! The released vector w = (y, e) has the values y and the indicators e, ±½ apart by the clipper's
//! [step](crate::moments::Clipper::indicator_step). Let τ₀, τ₁ and τ₂ be the noise of the release,
//! with steps of 1. The sums of a column and of a pair are linear in different released numbers,
//! so their noises are independent:
//!
//! ```text
//! column  N_j  = ½n + Σ e_j                             variance τ₀²/4 + τ₁²
//!         Σ m_j x_j, Σ m_j x_j²                         τ₁², τ₂²
//! pair    N_ij = ¼n + ½Σ e_i + ½Σ e_j + Σ e_i e_j       τ₀²/16 + τ₁²/2 + τ₂²/2
//!         Σ m_i m_j x_i = ½Σ y_i + Σ y_i e_j            τ₁²/4 + τ₂²/2
//!         Σ m_i m_j x_i x_j                             τ₂²/2
//! ```
//!
//! So each column has the moments of a release of one column, and everything that is known of such
//! releases holds for it: debiasing, intervals, quality. The covariance of a pair is that of the
//! rows that have both columns, about their own means. Covariances of different pairs are of
//! different rows, so together they need not be positive semi-definite.
//!
//! # Correlations
//! The squares of a column are released over all of its rows, not over those of a pair. So the
//! covariance over the standard deviations of the columns, q, is the correlation ρ of the pair's
//! rows only if values are missing at random. For any missing values, ρ has known bounds. Let P be
//! the rows of the pair, R those that have column i but not j, and T and T_P the scatter of i, the
//! sum of its squares about the mean, over all its rows and over P. Records lie in [−1, 1], so
//!
//! ```text
//! T − D ≤ T_P ≤ T,    D = N_R − N m² + N_P m_P²        from Σ_R x² ≤ N_R
//! ρ = q / √(a_i a_j),    a = (T_P/N_P) / (T/N) ∈ [N/N_P · (1 − D/T), N/N_P]
//! ```
//!
//! N_R and Σ_R x are the moments of a pair with the other indicator reversed, so their noise is
//! that of a pair. To first order D moves by (1 + m²) dN_R + (m² − m_P²) dN_P − 2m dΣ_R +
//! 2(m_P − m) dΣ_P, whose deviation is at most the sum of the four. With z deviations on each side
//! the bounds of a hold beside the interval of q, which is widened by them.
//!
//! # Missing at random
//! If column j is missing at random, i has the same mean over P and R. With s the step and B the
//! moments of P less those of R, B_N = Σe_j + 2Σe_ie_j and B_Σ = 2Σy_ie_j are independent of the
//! moments of i, so under this hypothesis
//!
//! ```text
//! B_Σ − m B_N  has variance  2τ₂² + m² (τ₁² + 2τ₂²) + B_N² var(m̂) + h N σ²
//! ```
//!
//! in steps of 1. The last term is the sampling error of a random subset, with h the largest weight
//! of a record.

use super::debias::{MomentNoise, NoisyMoments};
use super::density::DensityError;
use super::interval::{Confidence, Interval, IntervalSubject};
use super::intervals::{BOUND_TAIL, CLEAR, LEAST_SAMPLE};
use super::projection::{Projection, Spectrum, shrunk};
use super::selection::{Selection, hybrid_quantiles};
use crate::moments::{Layout, SecondMoment};
use crate::quantile;
use nalgebra::{DMatrix, DVector};
use std::f64::consts::SQRT_2;

/// Number of standard deviations by which a mean over the rows of a pair must differ to contradict
/// that values are missing at random: by chance once in 16,000 comparisons.
pub const CONTRADICTION: f64 = 4.0;

const ALL_CORRELATIONS: Interval = Interval { lower: -1.0, upper: 1.0 };

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
}

/// A covariance over the rows of a pair, before projection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairCovariance {
    /// The debiased estimate.
    pub covariance: f64,
    /// Standard deviation of its noise, to first order.
    pub noise: f64,
}

/// Knowledge of the correlation of two columns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PairCorrelation {
    /// The estimate.
    Shown(f64),
    /// A variance does not stand out of its noise.
    Hidden,
    /// The quotient of covariance and deviations is beyond ±1 by more than its noise: the rows of
    /// the pair are unlike those of its columns.
    BeyondOne,
}

impl PairCorrelation {
    /// Returns the estimate, if it is shown.
    pub fn shown(self) -> Option<f64> {
        match self {
            PairCorrelation::Shown(correlation) => Some(correlation),
            PairCorrelation::Hidden | PairCorrelation::BeyondOne => None,
        }
    }
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
        let MomentNoise { count, first, second } = self.moments.noise;
        let known = self.second() != SecondMoment::None;
        let mut coordinates = vec![self.count() / 2.0 + self.indicator(column), self.first(column)];
        coordinates.extend(known.then(|| self.product(column, column)));
        let kind = if known { SecondMoment::Diagonal } else { SecondMoment::None };
        SubsetMoments {
            layout: Layout::new(1, kind),
            coordinates,
            noise: MomentNoise { count: (count / 2.0).hypot(first / self.step), first, second },
        }
    }

    /// The moments of two columns over the rows that have both; `None` unless products of columns
    /// are known. The two squares are not released over these rows. In their position is the number
    /// that gives each column the variance of all its rows, if it has one.
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
        let noise = self.moments.noise;
        let product = noise.second / SQRT_2;
        Some(SubsetMoments {
            layout: Layout::new(2, SecondMoment::Full),
            coordinates: vec![count, sums[0], sums[1], squares[0], self.product(i, j), squares[1]],
            noise: MomentNoise {
                count: (noise.count / 4.0).hypot(noise.first / step / SQRT_2).hypot(product / step / step),
                first: (noise.first / 2.0).hypot(product / step),
                second: noise.second,
            },
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

    /// Returns the interval of a column's count at this level. It ends where that of all rows does,
    /// at a fiftieth of the tail.
    pub fn count_interval(&self, column: usize, level: f64) -> Interval {
        let own = self.column(column);
        let reach = quantile::normal((1.0 - level) / 2.0 * BOUND_TAIL) * self.moments.noise.count;
        let all = Interval { lower: 0.0, upper: self.count().max(0.0) + reach };
        own.noisy().count_interval(level).within(all, quantile::normal((1.0 - level) / 2.0) * own.count().1)
    }

    /// Returns an estimate of the correlation of two columns over the rows that have both, and its
    /// interval, which holds whichever values are missing. The estimate lacks a bias only if values
    /// are missing at random. Without one the interval is [−1, 1]. `None` if too few rows have both
    /// columns.
    pub fn correlation(
        &self,
        i: usize,
        j: usize,
        confidence: Confidence,
    ) -> Option<(PairCorrelation, Interval)> {
        let (found, quotient) = self.correlation_at_random(i, j, confidence)?;
        let Some(estimate) = found.shown().filter(|_| i != j && quotient != ALL_CORRELATIONS) else {
            return Some((found, quotient));
        };
        let z = confidence.normal_quantile();
        let [one, other] = [self.variance_ratio(i, j, z)?, self.variance_ratio(j, i, z)?];
        let factor = |one: f64, other: f64| (one * other).sqrt().recip();
        let (least, most) = (factor(one.upper, other.upper), factor(one.lower, other.lower));
        let outward =
            |end: f64, away: bool| if end == 0.0 { 0.0 } else { end * if away { most } else { least } };
        let lower = outward(quotient.lower, quotient.lower < 0.0);
        let upper = outward(quotient.upper, quotient.upper > 0.0);
        let interval = Interval { lower, upper }.with(estimate);
        Some((found, interval.map(|end| end.clamp(-1.0, 1.0))))
    }

    /// Bounds of the variance of a column over the rows that have `other` too, over its variance
    /// over all its rows, with z deviations of noise on each side; they contain 1.
    fn variance_ratio(&self, column: usize, other: usize, z: f64) -> Option<Interval> {
        let (own, pair) = (self.column(column), self.pair(column, other)?);
        let (count, of_pair) = (own.count().0, pair.count().0);
        let (noise, rest) = (pair.noise(), count - of_pair);
        let (mean, pair_mean) = (own.first()[0] / count, pair.first()[0] / of_pair);
        let counts = (1.0 + mean * mean) + (mean * mean - pair_mean * pair_mean).abs();
        let means = 2.0 * (mean.abs() + (pair_mean - mean).abs());
        let lost = rest - count * mean * mean + of_pair * pair_mean * pair_mean;
        let lost = (lost + z * (noise.count * counts + noise.first * means)).max(0.0);
        let PairCovariance { covariance, noise: variance_noise } = self.variance(column)?;
        let scatter = count * (covariance - z * variance_noise);
        let least = if scatter > lost { 1.0 - lost / scatter } else { 0.0 };
        // The rows of the pair are rows of the column.
        let counts = |sign: f64| (1.0 + (rest + sign * z * noise.count) / of_pair).max(1.0);
        Some(Interval { lower: (counts(-1.0) * least).min(1.0), upper: counts(1.0) })
    }

    /// Whether released means contradict that the values of these columns are missing at random.
    /// No record has more than the weight `heaviest`.
    pub fn contradict_random(&self, columns: &[usize], heaviest: f64) -> bool {
        let pairs = columns.iter().flat_map(|&i| columns.iter().map(move |&j| (i, j)));
        pairs.filter(|(i, j)| i != j).any(|(i, j)| self.mean_depends_on(i, j, heaviest).unwrap_or(false))
    }

    /// Whether the mean of a column is another one where `other` is missing.
    fn mean_depends_on(&self, column: usize, other: usize, heaviest: f64) -> Option<bool> {
        if self.second() != SecondMoment::Full {
            return None;
        }
        let (step, offset) = (self.step, self.columns);
        let own = self.column(column);
        let density = own.noisy().density().ok()?;
        let (mean, mean_noise) = (density.mean[0], density.mean_noise[0]);
        let count = self.indicator(other) + 2.0 * self.product(offset + column, offset + other) / step / step;
        let sum = 2.0 * self.product(column, offset + other) / step;
        let MomentNoise { first, second, .. } = self.moments.noise;
        let count_noise = (first / step).hypot(SQRT_2 * second / step / step);
        let noise = (SQRT_2 * second / step).hypot(mean * count_noise).hypot(count * mean_noise);
        let sampling = heaviest * own.count().0 * density.covariance[(0, 0)];
        Some((sum - mean * count).abs() > CONTRADICTION * noise.hypot(sampling.max(0.0).sqrt()))
    }

    /// Returns the estimated correlation of two columns and its interval if values are missing at
    /// random: all ρ from which the estimate is at most z standard deviations of its noise away, to
    /// first order and at that ρ. There is no estimate, and the interval is [−1, 1], unless both
    /// variances are clear; then z is that given that they are, as for [rows without missing
    /// values](super::intervals). `None` if too few rows have both columns.
    pub fn correlation_at_random(
        &self,
        i: usize,
        j: usize,
        confidence: Confidence,
    ) -> Option<(PairCorrelation, Interval)> {
        let [one, other] = [self.variance(i)?, self.variance(j)?];
        if i == j {
            return Some((PairCorrelation::Shown(1.0), Interval { lower: 1.0, upper: 1.0 }));
        }
        let PairCovariance { covariance, .. } = self.covariance(i, j).ok()?;
        let deviations = (one.covariance.max(0.0) * other.covariance.max(0.0)).sqrt();
        let estimate = if deviations > 0.0 { covariance / deviations } else { 0.0 };
        let within = estimate.clamp(-1.0, 1.0);
        let z = confidence.normal_quantile();
        let relative = |of: PairCovariance| of.noise / of.covariance;
        let least = CLEAR * z;
        if [one, other].iter().any(|of| of.covariance <= least * of.noise) {
            return Some((PairCorrelation::Hidden, ALL_CORRELATIONS));
        }
        let moments = self.pair(i, j)?;
        let (mean, _) = moments.noisy().estimates().ok()?;
        // The noise of the covariance at the correlation ρ, and that of the variances, as if
        // independent: they share no large part.
        let noise = |correlation: f64| {
            let at = correlation * deviations;
            let product = moments.noisy().covariance_noise(at, (mean[0], mean[1]), false) / deviations;
            product.hypot(correlation * relative(one).hypot(relative(other)) / 2.0)
        };
        if (estimate - within).abs() > z * noise(within) {
            return Some((PairCorrelation::BeyondOne, ALL_CORRELATIONS));
        }
        let tail = (1.0 - confidence.level) / 2.0;
        let quantiles = |correlation: f64| {
            let given = |of: PairCovariance| {
                let shared = -correlation * relative(of) / 2.0 / noise(correlation);
                Selection::exceeding(of.covariance / of.noise - least, shared)
            };
            hybrid_quantiles(tail, &[given(one), given(other)])
        };
        let records = score(estimate, |correlation| {
            let (down, up) = quantiles(correlation);
            (down * noise(correlation), up * noise(correlation))
        });
        let interval = match confidence.subject {
            IntervalSubject::Records => records,
            IntervalSubject::Population { heaviest } => {
                let rows = moments.count().0 / heaviest;
                if rows < LEAST_SAMPLE {
                    return Some((PairCorrelation::Shown(within), ALL_CORRELATIONS));
                }
                let reach = z / (rows - 3.0).sqrt();
                let end = |shift: f64| (within.atanh() + shift).tanh();
                records.widened(estimate, (within - end(-reach), end(reach) - within))
            }
        };
        let interval = interval.with(within).within(ALL_CORRELATIONS, z * noise(within));
        Some((PairCorrelation::Shown(within), interval))
    }

    /// Covariance matrix of all columns as a [`Projection`] makes it one, and the noise of its
    /// entries before; `None` unless every column and every pair has an estimate.
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

/// The ρ that are no further below and above the estimate than the reaches at ρ.
fn score(estimate: f64, reaches: impl Fn(f64) -> (f64, f64)) -> Interval {
    // The noise is not a square root of a polynomial in ρ, so the ends are found by halving.
    const HALVINGS: usize = 32;
    let end = |sign: f64| {
        let holds = |reach: f64| {
            let (down, up) = reaches((estimate + sign * reach).clamp(-1.0, 1.0));
            reach <= if sign < 0.0 { down } else { up }
        };
        let (mut low, mut high) = (0.0, 2.0 + estimate.abs());
        for _ in 0..HALVINGS {
            let middle = (low + high) / 2.0;
            if holds(middle) { low = middle } else { high = middle }
        }
        estimate + sign * high
    };
    Interval { lower: end(-1.0), upper: end(1.0) }
}

#[cfg(test)]
mod tests;
