//! Cells of a table: numbers with the half-width or the ends of their intervals.

use hushflow_mechanism::estimate::intervals::Interval;

use super::CORRELATIONS;

/// Ratio of the sides of an interval above which a table shows both ends instead of ±.
const LOPSIDED: f64 = 1.5;

/// A cell of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cell {
    /// A value and its half-width, which is 0 if the value is exact.
    Value(f64, f64),
    /// A value of unknown noise.
    Plain(f64),
    /// The ends of an interval that is longer on one side of its value, or for which ± would reach
    /// beyond the bounds; one may be infinite.
    Range(f64, f64),
    /// An upper bound of a value without an estimate.
    AtMost(f64),
    /// A word in place of a number.
    Word(&'static str),
    /// No number.
    Empty,
}

impl Cell {
    /// Returns the cell of a correlation, which is empty if it is not shown.
    pub(super) fn of_correlation((shown, interval): (Option<f64>, Interval)) -> Self {
        shown.map_or(Cell::Empty, |value| Self::of_interval(value, interval, CORRELATIONS))
    }

    /// Returns the cell of a value with its interval. It holds the ends of the interval if one side
    /// is much longer, or if a number that ± covers is not within `bounds`, which contain the
    /// interval.
    pub(crate) fn of_interval(value: f64, interval: Interval, bounds: Interval) -> Self {
        let (below, above) = (value - interval.lower, interval.upper - value);
        let reach = below.max(above);
        let is_cut = interval.lower <= bounds.lower || interval.upper >= bounds.upper;
        let is_within = value - reach >= bounds.lower && value + reach <= bounds.upper && !is_cut;
        match reach {
            _ if interval == Interval::UNBOUNDED => Cell::Plain(value),
            reach if reach <= f64::MIN_POSITIVE => Cell::Value(value, reach),
            reach if reach <= LOPSIDED * below.min(above) && is_within => Cell::Value(value, reach),
            _ => Cell::Range(interval.lower, interval.upper),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plus_or_minus_never_leaves_the_bounds() {
        let check = |value: f64, (lower, upper): (f64, f64), expected| {
            let bounds = Interval { lower: 0.0, upper: 60.0 };
            assert_eq!(Cell::of_interval(value, Interval { lower, upper }, bounds), expected);
        };
        check(28.0, (20.0, 37.0), Cell::Value(28.0, 9.0));
        check(28.0, (0.0, 60.0), Cell::Range(0.0, 60.0));
        check(28.0, (10.0, 60.0), Cell::Range(10.0, 60.0));
        check(5.0, (1.0, 10.5), Cell::Range(1.0, 10.5));
        check(5.0, (1.0, 9.0), Cell::Value(5.0, 4.0));
        check(28.0, (20.0, 41.0), Cell::Range(20.0, 41.0));
        check(0.0, (0.0, 0.0), Cell::Value(0.0, 0.0));
        let cell = |interval| Cell::of_interval(3.0, interval, Interval::UNBOUNDED);
        let open = Interval { lower: 3.0, upper: f64::INFINITY };
        assert_eq!(cell(open), Cell::Range(3.0, f64::INFINITY));
        assert_eq!(cell(Interval::UNBOUNDED), Cell::Plain(3.0));
    }
}
