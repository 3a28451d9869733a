//! An interval of real numbers, and what confidence it is to hold.

use crate::quantile;

/// The numbers from `lower` to `upper`; infinite ends where nothing can be said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub lower: f64,
    /// Upper end.
    pub upper: f64,
}

/// Whose moments an interval is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Subject {
    /// The records that were released: only the noise is uncertain.
    Records,
    /// The population from which records were drawn independently: the sampling error comes on top. Means of
    /// large samples need no more than that; covariances need a population that is about Gaussian.
    Population {
        /// The largest weight that a record has in the moments, above 0: 1 for sums. n records of weights w are
        /// worth (Σw)²/Σw² ≥ Σw/max w of equal weight, and are taken for these: exactly where weights are
        /// equal, with wider intervals where they are not.
        heaviest: f64,
    },
}

/// What an interval promises.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Confidence {
    /// The probability to hold the truth, above 0 and below 1.
    pub level: f64,
    /// Whether all means and covariances of a density hold theirs *together* at that level (Bonferroni's
    /// inequality), or each by itself.
    pub joint: bool,
    /// Whose moments are meant.
    pub subject: Subject,
}

impl Default for Confidence {
    /// 95 %, each by itself, for the records.
    fn default() -> Self {
        Confidence { level: 0.95, joint: false, subject: Subject::Records }
    }
}

impl Confidence {
    /// z with P(|N(0, 1)| ≤ z) = level, for one statement by itself.
    pub fn normal_quantile(&self) -> f64 {
        quantile::normal((1.0 - self.level) / 2.0)
    }
}

impl Interval {
    /// All real numbers.
    pub const UNBOUNDED: Self = Interval { lower: f64::NEG_INFINITY, upper: f64::INFINITY };

    /// Whether it holds x.
    pub fn contains(&self, x: f64) -> bool {
        self.lower <= x && x <= self.upper
    }

    /// The interval of offset + scale·x, for a scale above 0.
    pub fn to_units(self, scale: f64, offset: f64) -> Self {
        self.map(|x| offset + scale * x)
    }

    /// The interval of a standard deviation, from that of a variance.
    pub fn square_root(self) -> Self {
        self.map(|x| x.max(0.0).sqrt())
    }

    /// How far its farther end is from x.
    pub fn reach_from(&self, x: f64) -> f64 {
        (self.upper - x).max(x - self.lower)
    }

    /// Itself, wide enough for x; unbounded where an end is lost to overflow.
    pub(super) fn with(self, x: f64) -> Self {
        match self.lower.is_nan() || self.upper.is_nan() {
            true => Self::UNBOUNDED,
            false => Interval { lower: self.lower.min(x), upper: self.upper.max(x) },
        }
    }

    /// The interval of the sum of an estimate and an independent error of mean 0, from the interval around the
    /// estimate x and the distances `(below, above)` of the error's own (Zou & Donner 2008): the distances
    /// add in squares.
    pub(super) fn widened(self, x: f64, (below, above): (f64, f64)) -> Self {
        Interval { lower: x - (x - self.lower).hypot(below), upper: x + (self.upper - x).hypot(above) }
    }

    pub(super) fn map(self, increasing: impl Fn(f64) -> f64) -> Self {
        Interval { lower: increasing(self.lower), upper: increasing(self.upper) }
    }
}
