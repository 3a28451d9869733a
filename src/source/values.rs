//! Compares the values of a column with its bounds: counts those beyond each bound, and finds the
//! longest stretch of values that are mostly beyond one.
//!
//! Values are taken in blocks of [`BLOCK`], and a stretch is a series of blocks, in each of which
//! most values are beyond the same bound. Missing values don't count, so a sparse column has blocks
//! over many rows. All of it is private.

use serde::{Deserialize, Serialize};

/// Number of values in a block.
const BLOCK: u64 = 20;

/// Values compared with their bounds: those of the first rows in some runs, all values in a check.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct ValueSurvey {
    /// Number of values.
    pub all: u64,
    /// Values below the lower bound.
    pub below: BoundSurvey,
    /// Values above the upper bound.
    pub above: BoundSurvey,
    /// The least and the greatest value.
    pub range: Option<(f64, f64)>,
}

/// Values beyond a bound.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct BoundSurvey {
    /// Number of values.
    pub values: u64,
    /// The longest stretch in which most values are beyond the bound.
    pub longest: ValueStretch,
    /// `values` at the end of the last block.
    last: u64,
    /// The stretch in progress.
    open: ValueStretch,
}

/// Consecutive values, without missing ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueStretch {
    /// Number of values.
    pub values: u64,
    /// Rows before the first of them.
    pub before: u64,
    /// The row of the last, from 1.
    pub last_row: u64,
}

impl ValueSurvey {
    /// Compares the value in a row, numbered from 0, with its bounds.
    pub(super) fn compare(&mut self, value: f64, (lower, upper): (f64, f64), row: u64) {
        if self.all.is_multiple_of(BLOCK) {
            self.below.begin(row);
            self.above.begin(row);
        }
        self.all += 1;
        self.below.values += u64::from(value < lower);
        self.above.values += u64::from(value > upper);
        let (least, greatest) = self.range.unwrap_or((value, value));
        self.range = Some((least.min(value), greatest.max(value)));
        if self.all.is_multiple_of(BLOCK) {
            self.below.end(row);
            self.above.end(row);
        }
    }

    /// Adds the values of another source, and keeps the longer stretches.
    pub(super) fn merge(&mut self, other: &Self) {
        self.all += other.all;
        for (own, other) in [(&mut self.below, &other.below), (&mut self.above, &other.above)] {
            own.values += other.values;
            if other.longest.values > own.longest.values {
                own.longest = other.longest;
            }
        }
        let both = self.range.zip(other.range);
        let range = both.map(|(a, b)| (a.0.min(b.0), a.1.max(b.1)));
        self.range = range.or(self.range).or(other.range);
    }
}

impl BoundSurvey {
    fn begin(&mut self, row: u64) {
        if self.open.values == 0 {
            self.open.before = row;
        }
    }

    fn end(&mut self, row: u64) {
        let beyond = self.values - std::mem::replace(&mut self.last, self.values);
        if 2 * beyond <= BLOCK {
            self.open.values = 0;
            return;
        }
        self.open.values += BLOCK;
        self.open.last_row = row + 1;
        if self.open.values > self.longest.values {
            self.longest = self.open;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values 41 to 100 and 121 to 160 are too large; every third row has no value.
    #[test]
    fn the_longest_stretch_is_kept() {
        let mut survey = ValueSurvey::default();
        let rows = (0..).filter(|row| row % 3 != 2).zip(1..=175);
        for (row, number) in rows {
            let is_beyond = (41..=100).contains(&number) || (121..=160).contains(&number);
            survey.compare(if is_beyond { 90.0 } else { 1.0 }, (0.0, 10.0), row);
        }
        assert_eq!(survey.above.longest, ValueStretch { values: 60, before: 60, last_row: 149 });
        assert_eq!((survey.all, survey.above.values, survey.below.values), (175, 100, 0));
        assert_eq!((survey.below.longest.values, survey.range), (0, Some((1.0, 90.0))));
    }
}
