//! Correlations of columns over the rows that have both, and whether values are missing at random.
//!
//! The squares of a column are released over all of its rows, not over those of a pair. Let q be
//! the covariance of the pair, divided by the standard deviations of the columns. Then q is the
//! correlation ρ of the pair's rows only if values are missing at random. For any missing values, ρ
//! has known bounds. Let P be the rows of the pair, R those that have column i but not j, and T and
//! T_P the scatter of i, the sum of its squares about the mean, over all its rows and over P.
//! Records lie in [−1, 1], so
//!
//! ```text
//! T − D ≤ T_P ≤ T,    D = N_R − N m² + N_P m_P²        from Σ_R x² ≤ N_R
//! ρ = q / √(a_i a_j),    a = (T_P/N_P) / (T/N) ∈ [N/N_P · (1 − D/T), N/N_P]
//! ```
//!
//! N_R and Σ_R x are the moments of a pair with the other indicator reversed, so their noise is
//! that of a pair. To first order D changes by (1 + m²) dN_R + (m² − m_P²) dN_P − 2m dΣ_R +
//! 2(m_P − m) dΣ_P, whose deviation is at most the sum of the deviations of the four terms. The
//! bounds of a, with z deviations on each side, hold together with the interval of q, which is
//! widened by them.
//!
//! # Missing at random
//! If column j is missing at random, i has the same mean over P and R. With B the moments of P
//! minus those of R, B_N = Σe_j + 2Σe_ie_j and B_Σ = 2Σy_ie_j have noise that is independent of
//! that of the moments of i. So under this hypothesis
//!
//! ```text
//! B_Σ − m B_N  has variance  2τ₂² + m² (τ₁² + 2τ₂²) + B_N² var(m̂) + h N σ²
//! ```
//!
//! in steps of 1. The last term is the sampling error of a random subset, with h the largest weight
//! of a record, and N and σ² the count and the variance of i.

use super::{ColumnwiseMoments, PairCovariance};
use crate::estimate::debias::MomentNoise;
use crate::estimate::interval::{Confidence, Interval, IntervalSubject};
use crate::estimate::intervals::{CLEAR, LEAST_SAMPLE};
use crate::estimate::selection::{Selection, hybrid_quantiles};
use crate::moments::SecondMoment;
use std::f64::consts::SQRT_2;

/// Number of standard deviations by which a mean over the rows of a pair must differ to contradict
/// that values are missing at random: by chance once in 16,000 comparisons.
pub const CONTRADICTION: f64 = 4.0;

pub(super) const ALL_CORRELATIONS: Interval = Interval { lower: -1.0, upper: 1.0 };

/// What is known about the correlation of two columns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PairCorrelation {
    /// The estimate.
    Shown(f64),
    /// A variance is too small relative to its noise.
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

impl ColumnwiseMoments<'_> {
    /// Returns an estimate of the correlation of two columns over the rows that have both, and its
    /// interval, which holds whichever values are missing. The estimate is unbiased only if values
    /// are missing at random. Without an estimate the interval is [−1, 1]. `None` if too few rows
    /// have both columns.
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

    /// Bounds of a: the variance of a column over the rows that also have `other`, divided by the
    /// column's variance over all its rows. They include z deviations of noise on each side, and
    /// contain 1.
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

    /// Whether a column has another mean in the rows without `other`.
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
    /// random. The interval holds all ρ for which the estimate is at most z standard deviations of
    /// its noise away, to first order and at that ρ. There is no estimate, and the interval is
    /// [−1, 1], unless both variances are clear. If they are, z is conditional on that, as for
    /// [rows without missing values](crate::estimate::intervals). `None` if too few rows have both
    /// columns.
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
        // The noise of the covariance at the correlation ρ, and that of the variances, treated as
        // independent: most of the noise of each is its own.
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
}

/// The interval of ρ whose distance from the estimate is at most the reach at ρ.
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
