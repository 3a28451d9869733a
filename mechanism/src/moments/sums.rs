//! Exact sums, in 64 bits where they are known to fit. Sums in 64 bits are shared instead of
//! copied.
//!
//! The number of records alone determines whether sums fit 64 bits, so values do not influence the
//! choice of arithmetic. No sum can exceed its 128 bits, so no error depends on data: entries of
//! records are at most 2⁴⁰ in magnitude, so sums of fewer than 2⁶⁴ records are at most 2¹⁰⁴. (Sums
//! are added modulo 2¹²⁸.)

use super::clipped::NARROW_RECORDS;
use crate::moments::IntegerRow;
use crate::numbers;
use crate::registers::{Lanes, in_widest};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ops::Range;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Reasons why sums can't be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MomentError {
    /// Rows with another number of columns.
    #[error("found rows of {found} columns where {expected} were expected")]
    Dimension {
        /// Columns of the rows.
        found: usize,
        /// Columns of the sums.
        expected: usize,
    },
    /// Rows with and without squares were mixed.
    #[error("found records of {found} values where {expected} were expected: clip all with one clipper")]
    Width {
        /// Values of a record.
        found: usize,
        /// Values of the earlier records.
        expected: usize,
    },
    /// Rows with bins of other histograms.
    #[error("found {found} bins of records where {expected} were expected: clip all with one clipper")]
    Bins {
        /// Bins of the rows.
        found: usize,
        /// The number of rows times that of histograms.
        expected: usize,
    },
    /// The number of keys differs from the number of rows.
    #[error("found {keys} keys for {rows} rows: leave out the keys of rejected records")]
    Keys {
        /// Number of keys.
        keys: usize,
        /// Number of rows.
        rows: usize,
    },
}

numbers!(enum MomentError { 0 Dimension { found, expected }, 1 Width { found, expected }, 2 Keys { keys, rows }, 3 Bins { found, expected } });

/// Exact sums of a run of coordinates, in the order of [`Layout`](super::Layout) and in units of
/// ζ·2⁻²⁰ (first moments) and its square.
///
/// Private data: sums can't be printed and are wiped when the last owner drops them. They can be
/// serialised, because they travel between workers. Integer sums do not depend on order or
/// grouping, so they are bit-identical on one worker and on many.
///
/// ```compile_fail,E0277
/// use hushflow_mechanism::moments::Sums;
///
/// println!("{:?}", Sums::zero(1));
/// ```
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sums(SumsStorage);

/// A run of shared sums.
type SharedSums = (Arc<Zeroizing<Vec<i64>>>, Range<usize>);

#[derive(Clone, Serialize, Deserialize)]
enum SumsStorage {
    /// Sums of at most `records` records, and never more than [`NARROW_RECORDS`].
    Narrow {
        #[serde(serialize_with = "run_alone", deserialize_with = "whole_run")]
        sums: SharedSums,
        records: u64,
    },
    Wide(Zeroizing<Vec<i128>>),
}

/// Serialises this run alone, without the rest of the shared sums.
fn run_alone<S: Serializer>((all, run): &SharedSums, serializer: S) -> Result<S::Ok, S::Error> {
    all[run.clone()].serialize(serializer)
}

fn whole_run<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SharedSums, D::Error> {
    let all = Zeroizing::<Vec<i64>>::deserialize(deserializer)?;
    let run = 0..all.len();
    Ok((Arc::new(all), run))
}

impl Sums {
    /// Shares a run of these sums of `records` records.
    pub(super) fn narrow(all: Arc<Zeroizing<Vec<i64>>>, run: Range<usize>, records: u64) -> Self {
        let end = run.end.min(all.len());
        Self(SumsStorage::Narrow { sums: (all, run.start.min(end)..end), records })
    }

    /// Takes all of these sums of `records` records.
    pub(super) fn of(sums: Zeroizing<Vec<i64>>, records: u64) -> Self {
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

    /// Returns whether there are no sums.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the sums.
    pub fn row(&self) -> IntegerRow<'_> {
        match &self.0 {
            SumsStorage::Narrow { sums: (all, run), .. } => IntegerRow::Narrow(&all[run.clone()]),
            SumsStorage::Wide(sums) => IntegerRow::Wide(sums),
        }
    }

    /// Returns a run of these sums, truncated at their end. The run is shared if the sums are in 64
    /// bits, and copied otherwise.
    #[must_use]
    pub fn part(&self, run: Range<usize>) -> Self {
        match &self.0 {
            SumsStorage::Narrow { sums: (all, own), records } => {
                let [start, end] = [run.start, run.end].map(|sum| (own.start + sum).min(own.end));
                Self::narrow(Arc::clone(all), start..end, *records)
            }
            SumsStorage::Wide(sums) => {
                let end = run.end.min(sums.len());
                Zeroizing::new(sums[run.start.min(end)..end].to_vec()).into()
            }
        }
    }

    /// Returns the same sums without a copy; `None` unless they are in 64 bits.
    pub fn shared(&self) -> Option<Self> {
        matches!(self.0, SumsStorage::Narrow { .. }).then(|| self.clone())
    }

    /// Returns the sums in 128 bits.
    pub fn to_wide(&self) -> Zeroizing<Vec<i128>> {
        match self.row() {
            IntegerRow::Narrow(sums) => Zeroizing::new(sums.iter().map(|&sum| sum.into()).collect()),
            IntegerRow::Wide(sums) => Zeroizing::new(sums.to_vec()),
        }
    }

    /// Returns the buffer of these sums, if it is of 64-bit integers and not shared.
    fn into_room(self) -> Option<Zeroizing<Vec<i64>>> {
        match self.0 {
            SumsStorage::Narrow { sums: (all, _), .. } => Arc::into_inner(all),
            SumsStorage::Wide(_) => None,
        }
    }

    /// Returns these sums plus `others`, whose first coordinate is added to coordinate `offset`.
    /// Reuses the memory of `room` where possible.
    #[must_use]
    pub fn plus(self, offset: usize, others: &Self, room: Option<Self>) -> Self {
        if let (IntegerRow::Narrow(these), IntegerRow::Narrow(those)) = (self.row(), others.row())
            && (offset, these.len()) == (0, those.len())
            && let Some(records) = self.narrow_records(others)
        {
            let room = room.and_then(Self::into_room).unwrap_or_default();
            return Self::of(sum(these, those, room), records);
        }
        let mut sums = match self.0 {
            SumsStorage::Wide(sums) => sums,
            SumsStorage::Narrow { .. } => self.to_wide(),
        };
        add(sums.get_mut(offset..).unwrap_or_default(), others.row());
        sums.into()
    }

    /// Returns the number of records of both together, if their sums fit 64 bits.
    fn narrow_records(&self, others: &Self) -> Option<u64> {
        match (&self.0, &others.0) {
            (SumsStorage::Narrow { records: these, .. }, SumsStorage::Narrow { records: those, .. }) => {
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
    sums.resize(these.len(), 0);
    in_widest(Add { these, those, sums: &mut sums });
    sums
}

struct Add<'a> {
    these: &'a [i64],
    those: &'a [i64],
    sums: &'a mut [i64],
}

impl Lanes for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for ((sum, this), that) in self.sums.iter_mut().zip(self.these).zip(self.those) {
            *sum = this.wrapping_add(*that);
        }
    }
}

/// Adds a run of integers to as many sums.
pub(super) fn add(sums: &mut [i128], row: IntegerRow<'_>) {
    match row {
        IntegerRow::Narrow(row) => add_each(sums, row.iter().map(|&integer| i128::from(integer))),
        IntegerRow::Wide(row) => add_each(sums, row.iter().copied()),
    }
}

/// Adds integers, run after run, to the sums in their order. Each is below 2⁵³ in magnitude.
pub(super) fn add_runs<'a>(mut sums: &mut [i128], runs: impl Iterator<Item = &'a [f64]>) {
    for run in runs {
        let (own, after) = sums.split_at_mut(run.len());
        // Through i64, because processors convert to no wider integers.
        add_each(own, run.iter().map(|&integer| i128::from(integer as i64)));
        sums = after;
    }
}

fn add_each(sums: &mut [i128], increments: impl Iterator<Item = i128>) {
    sums.iter_mut().zip(increments).for_each(|(sum, increment)| *sum = sum.wrapping_add(increment));
}

impl From<Zeroizing<Vec<i128>>> for Sums {
    fn from(sums: Zeroizing<Vec<i128>>) -> Self {
        Self(SumsStorage::Wide(sums))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn narrow(sums: &[i64]) -> Sums {
        Sums::of(Zeroizing::new(sums.to_vec()), 1)
    }

    fn wide(sums: &[i128]) -> Sums {
        Zeroizing::new(sums.to_vec()).into()
    }

    #[test]
    fn sums_add_up_in_any_width() {
        let check = |one: Sums, offset, other: Sums, expected: &[i128]| {
            assert_eq!(*one.plus(offset, &other, None).to_wide(), expected);
        };
        check(narrow(&[1, -2, 3]), 0, narrow(&[4, 5, 6]), &[5, 3, 9]);
        check(narrow(&[1, 2, 3]), 1, narrow(&[4, 5]), &[1, 6, 8]);
        check(Sums::zero(3), 2, wide(&[7]), &[0, 0, 7]);
        check(wide(&[1 << 90, 0]), 0, narrow(&[1, 2]), &[(1 << 90) + 1, 2]);
        check(narrow(&[1]), 5, narrow(&[1]), &[1]);
        for room in [narrow(&[7; 9]), narrow(&[7]), wide(&[7; 9])] {
            let sums = narrow(&[1, 2]).plus(0, &narrow(&[3, 4]), Some(room));
            assert_eq!(*sums.to_wide(), [4, 6]);
        }
    }

    /// Tests the largest number of records whose sums fit 64 bits for any values, and one more.
    #[test]
    fn the_width_of_a_total_depends_on_the_number_of_records_alone() {
        for (records, is_narrow) in [(NARROW_RECORDS - 1, true), (NARROW_RECORDS, false)] {
            for value in [0, 1 << 62] {
                let sums = Sums::of(Zeroizing::new(vec![value]), records).plus(0, &narrow(&[5]), None);
                assert_eq!(matches!(sums.row(), IntegerRow::Narrow(_)), is_narrow);
                assert_eq!(*sums.to_wide(), [i128::from(value) + 5]);
            }
        }
    }

    #[test]
    fn shared_sums_equal_their_range() {
        let all = Arc::new(Zeroizing::new(vec![1, 2, 3, 4]));
        let run = Sums::narrow(all.clone(), 1..3, 9);
        assert_eq!((*run.to_wide()).clone(), [2, 3]);
        let text = serde_json::to_string(&run).unwrap();
        assert_eq!(text, r#"{"Narrow":{"sums":[2,3],"records":9}}"#, "nothing else is sent");
        assert_eq!(*serde_json::from_str::<Sums>(&text).unwrap().to_wide(), [2, 3]);
        assert!(Sums::narrow(all, 3..9, 9).len() == 1);
    }
}
