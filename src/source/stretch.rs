//! The longest stretches of consecutive rows of a source that don't count. Shares among all rows
//! would hide a source that turns bad in its middle.
//!
//! Rows are taken in blocks of [`BLOCK`], and a stretch is a series of blocks where most rows of
//! each block don't count. Blocks begin at every twentieth row, for any contents of rows. So the
//! stretch of rows by the public clock is public.
//!
//! A source may well begin before the first epoch and end after the last one, and rows whose clock
//! leaps are read again by the next run. Such rows are not a stretch.

use serde::{Deserialize, Serialize};

use super::RowCounters;

/// Rows of a block.
const BLOCK: u64 = 20;

/// The longest stretches of a source.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub struct Stretches {
    /// The counters after the last whole block.
    last: RowCounters,
    /// Rows that are not counted, or in another epoch than their own. Private.
    pub uncounted: Stretch,
    /// Rows whose clock value is of an epoch that rows before them have closed. Public.
    pub behind_clock: Stretch,
    /// Whether most rows of a block were not before the first epoch.
    has_begun: bool,
}

/// The longest stretch so far.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub struct Stretch {
    /// Outcome of its rows.
    pub counters: RowCounters,
    /// Rows before it.
    pub before: u64,
    /// The counters where the stretch in progress began.
    begun: Option<RowCounters>,
}

impl Stretches {
    /// Notes the counters after a row.
    pub(super) fn note(&mut self, counters: &RowCounters) {
        if counters.rows < self.last.rows + BLOCK {
            return;
        }
        let block = counters.since(&self.last);
        let early = if self.has_begun { 0 } else { block.before_start };
        let uncounted = block.uncounted() - block.clock_jump - block.after_horizon - early;
        // Rows that don't count for another reason say nothing about their times.
        let timed = (block.rows + block.before_start).saturating_sub(block.uncounted());
        self.has_begun |= 2 * block.before_start < timed;
        self.uncounted.note(2 * uncounted > block.rows, &self.last, counters);
        self.behind_clock.note(2 * block.behind_clock > block.rows, &self.last, counters);
        self.last = *counters;
    }

    /// Rows in whole blocks so far.
    pub(crate) fn rows(&self) -> u64 {
        self.last.rows
    }

    /// Keeps the longer stretches of two sources.
    pub(super) fn merge(&mut self, other: &Self) {
        self.last += other.last;
        for (own, other) in
            [(&mut self.uncounted, &other.uncounted), (&mut self.behind_clock, &other.behind_clock)]
        {
            if other.counters.rows > own.counters.rows {
                *own = *other;
            }
        }
    }
}

impl Stretch {
    /// Adds the rows between two states of the counters.
    fn note(&mut self, is_bad: bool, before: &RowCounters, after: &RowCounters) {
        if !is_bad {
            self.begun = None;
            return;
        }
        let begun = self.begun.get_or_insert(*before);
        let counters = after.since(begun);
        if counters.rows > self.counters.rows {
            (self.counters, self.before) = (counters, begun.rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows 41 to 100 and 121 to 160 have an unlisted key.
    #[test]
    fn the_longest_stretch_is_kept() {
        let (mut stretches, mut counters) = (Stretches::default(), RowCounters::default());
        for row in 1..=175 {
            counters.rows = row;
            counters.after_horizon += u64::from(row > 160);
            counters.unknown_key += u64::from((41..=100).contains(&row) || (121..=160).contains(&row));
            stretches.note(&counters);
        }
        let found = stretches.uncounted;
        assert_eq!((found.before, found.counters.rows, found.counters.unknown_key), (40, 60, 60));
        assert_eq!(stretches.behind_clock.counters.rows, 0);
    }

    /// Rows before the first epoch are a stretch only if other rows come before them.
    #[test]
    fn a_source_may_begin_before_the_first_epoch() {
        let (mut stretches, mut counters) = (Stretches::default(), RowCounters::default());
        for row in 1..=400 {
            counters.rows = row;
            counters.before_start += u64::from(row <= 200 || (301..=340).contains(&row));
            stretches.note(&counters);
        }
        assert_eq!((stretches.uncounted.before, stretches.uncounted.counters.rows), (300, 40));
        // One row in twenty has an unlisted key.
        let (mut stretches, mut counters) = (Stretches::default(), RowCounters::default());
        for row in 1..=400 {
            counters.rows = row;
            counters.unknown_key += u64::from(row % 20 == 3);
            counters.before_start += u64::from(row % 20 != 3 && (row <= 200 || (301..=340).contains(&row)));
            stretches.note(&counters);
        }
        assert_eq!((stretches.uncounted.before, stretches.uncounted.counters.rows), (300, 40));
    }
}
