//! Intervals of real numbers, and the statements that they make.

use crate::quantile;

/// The numbers from `lower` to `upper`; an unknown end is infinite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub lower: f64,
    /// Upper end.
    pub upper: f64,
}

/// Subject of an interval: the records whose moments it contains, or their population.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum IntervalSubject {
    /// The released records: only the noise is uncertain.
    Records,
    /// The population from which records were drawn independently: adds the sampling error. Means
    /// need only large samples; covariances also need a population that is about Gaussian.
    Population {
        /// Largest weight of a record in the moments, above 0: 1 for sums. n records of weights w
        /// are worth (Σw)²/Σw² ≥ Σw/max w records of equal weight. The latter number is used: it is
        /// exact for equal weights, and gives wider intervals otherwise.
        heaviest: f64,
    },
}

/// Confidence level of intervals, and the quantities that they are about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Confidence {
    /// Probability of containing the truth, above 0 and below 1.
    pub level: f64,
    /// Whether all means and covariances of a density contain the truth *together* at that level
    /// (Bonferroni's inequality), or each by itself.
    pub joint: bool,
    /// The records or the population whose moments the interval contains.
    pub subject: IntervalSubject,
}

impl Default for Confidence {
    /// 95 %, each by itself, for the records.
    fn default() -> Self {
        Confidence { level: 0.95, joint: false, subject: IntervalSubject::Records }
    }
}

impl Confidence {
    /// Returns z with P(|N(0, 1)| ≤ z) = level, for one statement by itself.
    pub fn normal_quantile(&self) -> f64 {
        quantile::normal((1.0 - self.level) / 2.0)
    }
}

impl Interval {
    /// All real numbers.
    pub const UNBOUNDED: Self = Interval { lower: f64::NEG_INFINITY, upper: f64::INFINITY };

    /// Returns whether the interval contains x.
    pub fn contains(&self, x: f64) -> bool {
        self.lower <= x && x <= self.upper
    }

    /// Returns the interval of offset + scale·x, for a scale above 0.
    pub fn to_units(self, scale: f64, offset: f64) -> Self {
        self.map(|x| offset + scale * x)
    }

    /// Converts the interval of a variance to that of a standard deviation.
    pub fn square_root(self) -> Self {
        self.map(|x| x.max(0.0).sqrt())
    }

    /// Returns the distance between the ends.
    pub fn width(&self) -> f64 {
        self.upper - self.lower
    }

    /// Intersects the interval with `bounds`. An interval that passes an end of the bounds keeps at
    /// least the part of the bounds within `reach` of this end. So it becomes neither empty nor,
    /// for a finite `reach` above 0, a point.
    ///
    /// No truth is lost, because the bounds contain it and the result contains the whole
    /// intersection. An interval wholly beyond an end is replaced by the numbers within `reach` of
    /// this end. With a `reach` of z deviations of the estimate's noise, this misses only truths
    /// from which the estimate is 2z deviations away: one line in 20,000 at 95 %.
    pub fn within(self, bounds: Self, reach: f64) -> Self {
        let width = if reach.is_finite() { reach.min(bounds.width()) } else { 0.0 };
        Interval {
            lower: self.lower.clamp(bounds.lower, bounds.upper - width),
            upper: self.upper.clamp(bounds.lower + width, bounds.upper),
        }
    }

    /// Returns the point of the interval that is nearest to x.
    pub fn nearest(self, x: f64) -> f64 {
        x.max(self.lower).min(self.upper)
    }

    /// Extends the interval to contain x; unbounded if an end is NaN.
    pub fn with(self, x: f64) -> Self {
        match self.lower.is_nan() || self.upper.is_nan() {
            true => Self::UNBOUNDED,
            false => Interval { lower: self.lower.min(x), upper: self.upper.max(x) },
        }
    }

    /// Returns the interval of an estimate plus an independent error of mean 0, from the interval
    /// around the estimate x and the error's distances `(below, above)`. The distances add in
    /// squares (Zou & Donner 2008).
    pub(super) fn widened(self, x: f64, (below, above): (f64, f64)) -> Self {
        Interval { lower: x - (x - self.lower).hypot(below), upper: x + (self.upper - x).hypot(above) }
    }

    pub(super) fn map(self, increasing: impl Fn(f64) -> f64) -> Self {
        Interval { lower: increasing(self.lower), upper: increasing(self.upper) }
    }
}
