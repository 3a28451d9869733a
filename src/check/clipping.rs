//! Counts the values of a source that are beyond the bounds of their columns, epoch by epoch.

use std::collections::BTreeMap;

use hushflow_operators::Records;
use serde::{Deserialize, Serialize};

use super::recent::{Recent, Share};

/// Distance beyond a bound from which on a value counts as clipped, as a share of the bounds'
/// distance: values of keys with bounds of their own are rounded as they are scaled.
const SLACK: f64 = 1e-9;

/// Number of values of a column, and of those below and above its bounds.
#[derive(Clone, Copy, Default)]
struct ColumnValues {
    all: u64,
    beyond: [u64; 2],
}

/// The values of the records of a source. Private.
#[derive(Clone)]
pub(super) struct ClippedValues {
    bounds: Vec<(f64, f64)>,
    /// The values of each column by epoch after the closed ones.
    open: BTreeMap<u64, Vec<ColumnValues>>,
    columns: Vec<ClippedColumn>,
}

/// The values of a column in closed epochs: those below its bounds, and those above. Private.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct ClippedColumn([Recent<Share>; 2]);

impl ClippedValues {
    /// No values yet of columns with these bounds; goes on from a state, if there is one.
    pub(super) fn new(bounds: impl Iterator<Item = (f64, f64)>, state: Option<&[ClippedColumn]>) -> Self {
        let widened = |(lower, upper): (f64, f64)| {
            let slack = SLACK * (upper - lower);
            (lower - slack, upper + slack)
        };
        let bounds: Vec<_> = bounds.map(widened).collect();
        let resume = |ClippedColumn(ends): &ClippedColumn| ClippedColumn(ends.map(Recent::resume));
        let columns = state.filter(|state| state.len() == bounds.len());
        let columns = columns.map(|state| state.iter().map(resume).collect());
        let columns = columns.unwrap_or_else(|| vec![ClippedColumn::default(); bounds.len()]);
        ClippedValues { bounds, open: BTreeMap::new(), columns }
    }

    /// Returns the state of closed epochs.
    pub(super) fn state(&self) -> Vec<ClippedColumn> {
        self.columns.clone()
    }

    /// Adds records of epochs after `closed`.
    pub(super) fn add(&mut self, records: &Records, closed: u64) {
        if self.bounds.is_empty() {
            return;
        }
        let mut rows = records.values.chunks_exact(self.bounds.len());
        for run in records.epochs.chunk_by(|one, next| one == next) {
            let values = rows.by_ref().take(run.len());
            if run[0] <= closed {
                values.for_each(drop);
                continue;
            }
            let none = || vec![ColumnValues::default(); self.bounds.len()];
            let counts = self.open.entry(run[0]).or_insert_with(none);
            for row in values {
                for ((counts, &value), &(lower, upper)) in counts.iter_mut().zip(row).zip(&self.bounds) {
                    counts.all += u64::from(!value.is_nan());
                    counts.beyond[0] += u64::from(value < lower);
                    counts.beyond[1] += u64::from(value > upper);
                }
            }
        }
    }

    /// Notes that the clock has closed the epochs up to `last` at one row.
    pub(super) fn close(&mut self, last: u64) {
        let later = self.open.split_off(&(last + 1));
        let newest = std::mem::replace(&mut self.open, later);
        for (column, ClippedColumn(ends)) in self.columns.iter_mut().enumerate() {
            for (end, recent) in ends.iter_mut().enumerate() {
                let mut closed = recent.closed;
                let values = newest.values().map(|counts| counts[column]);
                values.for_each(|values| closed.add(Share { all: values.all, bad: values.beyond[end] }));
                recent.close(closed);
            }
        }
    }

    /// Notes that all values of closed epochs are judged.
    pub(super) fn set_judged(&mut self) {
        self.columns.iter_mut().flat_map(|column| &mut column.0).for_each(Recent::set_judged);
    }

    /// Judges the values that are due. Returns the columns most of whose values are beyond a bound,
    /// and whether it is the upper one.
    pub(super) fn judge(&mut self, steps: u64) -> Vec<(usize, bool)> {
        let mut found = Vec::new();
        for (column, ClippedColumn(ends)) in self.columns.iter_mut().enumerate() {
            let is_beyond = ends.each_mut().map(|recent| recent.judge(steps));
            found.extend(
                [false, true].into_iter().zip(is_beyond).filter(|end| end.1).map(|end| (column, end.0)),
            );
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten records in each epoch; from epoch 31 on the second column is in another unit.
    fn records(epoch: u64) -> Records {
        let values = (0..10).flat_map(|row| [f64::from(row), if epoch > 30 { 900.0 } else { 9.0 }]).collect();
        Records { keys: vec![0; 10], epochs: vec![epoch; 10], values, ..Records::default() }
    }

    const BOUNDS: [(f64, f64); 2] = [(0.0, 9.0), (0.0, 10.0)];

    #[test]
    fn a_column_that_leaves_its_bounds_is_found_after_three_epochs() {
        let mut values = ClippedValues::new(BOUNDS.into_iter(), None);
        for epoch in 1..=33 {
            values.add(&records(epoch), epoch - 1);
            values.close(epoch);
            let found = values.judge(epoch);
            assert_eq!(found, if epoch == 33 { vec![(1, true)] } else { vec![] }, "{epoch}");
        }
    }

    /// A judge that resumes after an epoch reads records of closed epochs again.
    #[test]
    fn a_resumed_judge_finds_the_same() {
        let mut values = ClippedValues::new(BOUNDS.into_iter(), None);
        for epoch in 1..=40 {
            let state = serde_json::to_string(&values.state()).expect("a state");
            let state: Vec<ClippedColumn> = serde_json::from_str(&state).expect("the same state");
            let mut other = ClippedValues::new(BOUNDS.into_iter(), Some(&state));
            other.add(&records(epoch - epoch.min(2) + 1), epoch - 1);
            let again = if epoch > 1 { records(epoch) } else { Records::default() };
            other.add(&again, epoch - 1);
            values.add(&records(epoch), epoch - 1);
            for judge in [&mut values, &mut other] {
                judge.close(epoch);
            }
            assert_eq!(values.judge(epoch), other.judge(epoch), "{epoch}");
        }
    }

    /// Missing values don't count as values, and a value at a bound is not beyond it.
    #[test]
    fn only_values_beyond_a_bound_count() {
        let mut values = ClippedValues::new(BOUNDS.into_iter(), None);
        let mut of_epoch = records(1);
        of_epoch.values[0] = f64::NAN;
        of_epoch.values[2] = -1.0;
        values.add(&of_epoch, 0);
        values.close(1);
        let shares = values.columns.iter().map(|column| column.0.map(|recent| recent.closed));
        let share = |all, bad| Share { all, bad };
        assert!(shares.eq([[share(9, 1), share(9, 0)], [share(10, 0), share(10, 0)]]));
    }
}
