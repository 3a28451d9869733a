//! Exact sums of a run of coordinates, in 64 bits where they are known to fit, shared instead of
//! copied.
//!
//! The number of records alone determines whether they fit. So values do not influence which
//! arithmetic adds them, and no sum fails to add (`MomentSums` proves that none exceeds 128 bits).

use super::clipped::NARROW_RECORDS;
use crate::moments::Row;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Exact sums of a run of coordinates. Private: they are wiped when the last owner drops them.
#[derive(Clone, Serialize, Deserialize)]
#[serde(into = "OwnSums", from = "OwnSums")]
pub struct RunSums(Sums);

#[derive(Clone)]
enum Sums {
    /// A run of sums of at most `records` records, and never more than [`NARROW_RECORDS`].
    Narrow {
        all: Arc<Zeroizing<Vec<i64>>>,
        run: Range<usize>,
        records: u64,
    },
    Wide(Zeroizing<Vec<i128>>),
}

/// Sums sent to another process.
#[derive(Serialize, Deserialize)]
enum OwnSums {
    Narrow(u64, Zeroizing<Vec<i64>>),
    Wide(Zeroizing<Vec<i128>>),
}

impl RunSums {
    /// Shares a run of these sums of `records` records.
    pub(super) fn narrow(all: Arc<Zeroizing<Vec<i64>>>, run: Range<usize>, records: u64) -> Self {
        let end = run.end.min(all.len());
        Self(Sums::Narrow { run: run.start.min(end)..end, all, records })
    }

    /// Takes all of these sums of `records` records.
    fn of(sums: Zeroizing<Vec<i64>>, records: u64) -> Self {
        let run = 0..sums.len();
        Self::narrow(Arc::new(sums), run, records)
    }

    /// Returns the sums of no records.
    pub fn zero(coordinates: usize) -> Self {
        Self::of(Zeroizing::new(vec![0; coordinates]), 0)
    }

    /// Returns the number of sums.
    pub fn len(&self) -> usize {
        self.row().len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the sums.
    pub fn row(&self) -> Row<'_> {
        match &self.0 {
            Sums::Narrow { all, run, .. } => Row::Narrow(&all[run.clone()]),
            Sums::Wide(sums) => Row::Wide(sums),
        }
    }

    /// Returns the same sums without a copy; `None` unless they are in 64 bits.
    pub fn shared(&self) -> Option<Self> {
        matches!(self.0, Sums::Narrow { .. }).then(|| self.clone())
    }

    /// Returns the sums in 128 bits.
    pub fn to_wide(&self) -> Zeroizing<Vec<i128>> {
        match self.row() {
            Row::Narrow(sums) => Zeroizing::new(sums.iter().map(|&sum| sum.into()).collect()),
            Row::Wide(sums) => Zeroizing::new(sums.to_vec()),
        }
    }

    /// Returns the memory of these sums, if it is in 64 bits and not shared.
    fn into_room(self) -> Option<Zeroizing<Vec<i64>>> {
        match self.0 {
            Sums::Narrow { all, .. } => Arc::into_inner(all),
            Sums::Wide(_) => None,
        }
    }

    /// Returns these sums plus `others`, whose first coordinate is number `offset` of these. Reuses
    /// the memory of `room` where possible.
    #[must_use]
    pub fn plus(self, offset: usize, others: &Self, room: Option<Self>) -> Self {
        if let (Row::Narrow(these), Row::Narrow(those)) = (self.row(), others.row())
            && (offset, these.len()) == (0, those.len())
            && let Some(records) = self.narrow_records(others)
        {
            let room = room.and_then(Self::into_room).unwrap_or_default();
            return Self::of(sum(these, those, room), records);
        }
        let mut sums = match self.0 {
            Sums::Wide(sums) => sums,
            Sums::Narrow { .. } => self.to_wide(),
        };
        let others = others.to_wide();
        for (sum, other) in sums.get_mut(offset..).unwrap_or_default().iter_mut().zip(others.iter()) {
            *sum = sum.wrapping_add(*other);
        }
        sums.into()
    }

    /// Returns the number of records of both together, if their sums fit 64 bits.
    fn narrow_records(&self, others: &Self) -> Option<u64> {
        match (&self.0, &others.0) {
            (Sums::Narrow { records: these, .. }, Sums::Narrow { records: those, .. }) => {
                these.checked_add(*those).filter(|records| *records <= NARROW_RECORDS)
            }
            _ => None,
        }
    }
}

fn sum(these: &[i64], those: &[i64], mut sums: Zeroizing<Vec<i64>>) -> Zeroizing<Vec<i64>> {
    if sums.capacity() < these.len() {
        sums = Zeroizing::new(Vec::with_capacity(these.len()));
    }
    sums.clear();
    sums.extend(these.iter().zip(those).map(|(&this, &that)| this.wrapping_add(that)));
    sums
}

impl From<Zeroizing<Vec<i128>>> for RunSums {
    fn from(sums: Zeroizing<Vec<i128>>) -> Self {
        Self(Sums::Wide(sums))
    }
}

impl From<RunSums> for OwnSums {
    fn from(sums: RunSums) -> Self {
        match sums.0 {
            Sums::Narrow { all, run, records } => OwnSums::Narrow(records, Zeroizing::new(all[run].to_vec())),
            Sums::Wide(sums) => OwnSums::Wide(sums),
        }
    }
}

impl From<OwnSums> for RunSums {
    fn from(sums: OwnSums) -> Self {
        match sums {
            OwnSums::Narrow(records, sums) => Self::of(sums, records),
            OwnSums::Wide(sums) => sums.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn narrow(sums: &[i64]) -> RunSums {
        RunSums::of(Zeroizing::new(sums.to_vec()), 1)
    }

    fn wide(sums: &[i128]) -> RunSums {
        Zeroizing::new(sums.to_vec()).into()
    }

    #[test]
    fn sums_add_up_in_any_width() {
        let check = |one: RunSums, offset, other: RunSums, expected: &[i128]| {
            assert_eq!(*one.plus(offset, &other, None).to_wide(), expected);
        };
        check(narrow(&[1, -2, 3]), 0, narrow(&[4, 5, 6]), &[5, 3, 9]);
        check(narrow(&[1, 2, 3]), 1, narrow(&[4, 5]), &[1, 6, 8]);
        check(RunSums::zero(3), 2, wide(&[7]), &[0, 0, 7]);
        check(wide(&[1 << 90, 0]), 0, narrow(&[1, 2]), &[(1 << 90) + 1, 2]);
        check(narrow(&[1]), 5, narrow(&[1]), &[1]);
        for room in [narrow(&[7; 9]), narrow(&[7]), wide(&[7; 9])] {
            let sums = narrow(&[1, 2]).plus(0, &narrow(&[3, 4]), Some(room));
            assert_eq!(*sums.to_wide(), [4, 6]);
        }
    }

    /// Tests as many records as fit 64 bits, for any sums, and one more.
    #[test]
    fn the_width_of_a_total_depends_on_the_number_of_records_alone() {
        for (records, is_narrow) in [(NARROW_RECORDS - 1, true), (NARROW_RECORDS, false)] {
            for value in [0, 1 << 62] {
                let sums = RunSums::of(Zeroizing::new(vec![value]), records).plus(0, &narrow(&[5]), None);
                assert_eq!(matches!(sums.row(), Row::Narrow(_)), is_narrow);
                assert_eq!(*sums.to_wide(), [i128::from(value) + 5]);
            }
        }
    }

    #[test]
    fn a_run_of_shared_sums_is_what_it_says() {
        let all = Arc::new(Zeroizing::new(vec![1, 2, 3, 4]));
        let run = RunSums::narrow(all.clone(), 1..3, 9);
        assert_eq!((*run.to_wide()).clone(), [2, 3]);
        assert_eq!(*RunSums::from(OwnSums::from(run)).to_wide(), [2, 3]);
        assert!(RunSums::narrow(all, 3..9, 9).len() == 1);
    }
}
