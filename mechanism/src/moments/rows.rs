//! Quantised records: flat rows of integers with a guaranteed bound.
//!
//! # Borrowed rows
//! [`IntegerRow`] is a borrowed run of integers, wide or narrow.
//!
//! # Rounding
//! Many numbers are converted to integers and back without a call, cast or branch per number, so
//! that compilers vectorise the loop.

use crate::numbers;
#[cfg(target_arch = "x86_64")]
use bytemuck::pod_align_to_mut;
use zeroize::Zeroize;

/// Reasons why a record can't be quantised. Never contain the record's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A value is infinite or not a number.
    #[error("a record holds a value that is not finite: leave the record out")]
    NotFinite,
    /// The values don't divide into rows of d columns.
    #[error("found {found} values where rows of {dimension} columns were expected")]
    Length {
        /// Number of values found.
        found: usize,
        /// Columns of a row.
        dimension: usize,
    },
    /// Rows with and without squares were mixed.
    #[error(
        "rows of two clippers were mixed, and one of them clips records and their squares together: use one clipper for all rows"
    )]
    Mixed,
}

numbers!(enum RecordError { 0 NotFinite, 1 Length { found, dimension }, 2 Mixed });

/// Records as integers of at most 2²⁰ in `f64`, row after row, each of integer squared norm at most
/// 2⁴⁰.
///
/// A record that was [clipped together with its square](super::Clipper::jointly) has two such rows
/// in sequence: one for its first moments, one whose products are its second moments.
///
/// Only a [`Clipper`](super::Clipper) writes rows, so their readers may rely on the bound. Private
/// data: rows can't be printed and are wiped when dropped.
#[derive(Clone)]
pub struct QuantisedRows {
    dimension: usize,
    /// Whether records have two rows.
    joint: bool,
    values: Vec<f64>,
    /// The bin of each record in each histogram, record by record: its position among the bins of
    /// all histograms, or [`NO_BIN`](Self::NO_BIN).
    bins: Vec<u32>,
}

impl QuantisedRows {
    /// No bin: the value is missing.
    pub(super) const NO_BIN: u32 = u32::MAX;

    /// Starts without rows, for `dimension` columns each.
    pub fn new(dimension: usize) -> Self {
        Self { dimension, joint: false, values: Vec::new(), bins: Vec::new() }
    }

    /// Returns the number of columns d.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// Returns all rows, row-major, in units of ζ·2⁻²⁰.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Returns the bins of all records, record by record: one for each histogram.
    pub(super) fn bins(&self) -> &[u32] {
        &self.bins
    }

    /// Appends the bins of the last record.
    pub(super) fn push_bins(&mut self, bins: impl Iterator<Item = u32>) {
        self.bins.extend(bins);
    }

    /// Returns the values of one record: d, or 2d for records that were clipped together with their
    /// squares.
    pub fn width(&self) -> usize {
        self.dimension * if self.joint { 2 } else { 1 }
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.values.len().checked_div(self.width()).unwrap_or(0)
    }

    /// Returns whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Clears the rows and keeps the memory.
    pub fn clear(&mut self) {
        self.values.clear();
        self.bins.clear();
    }

    /// Makes room for more records.
    pub(super) fn reserve(&mut self, records: usize, joint: bool) {
        self.values.reserve(records * self.dimension * if joint { 2 } else { 1 });
    }

    /// Appends a record, twice if it will have two rows, and returns it to be quantised.
    pub(super) fn push(
        &mut self,
        record: impl Iterator<Item = f64>,
        joint: bool,
    ) -> Result<&mut [f64], RecordError> {
        self.set_joint(joint)?;
        let start = self.values.len();
        self.values.extend(record);
        if joint {
            self.values.extend_from_within(start..);
        }
        Ok(&mut self.values[start..])
    }

    /// Returns the values, to which whole records of one row each may be appended.
    pub(super) fn push_all(&mut self) -> Result<&mut Vec<f64>, RecordError> {
        self.set_joint(false)?;
        Ok(&mut self.values)
    }

    /// Takes quantised values, in rows of `dimension`, one for each record.
    pub(super) fn of_values(dimension: usize, values: Vec<f64>) -> Self {
        Self { dimension, joint: false, values, bins: Vec::new() }
    }

    fn set_joint(&mut self, joint: bool) -> Result<(), RecordError> {
        if self.is_empty() {
            self.joint = joint;
        }
        if self.joint == joint { Ok(()) } else { Err(RecordError::Mixed) }
    }

    /// Removes the last record.
    pub(super) fn pop(&mut self) {
        self.values.truncate(self.values.len().saturating_sub(self.width()));
    }
}

impl Drop for QuantisedRows {
    fn drop(&mut self) {
        // The rest of the memory may hold records that were removed.
        let capacity = self.values.capacity();
        self.values.resize(capacity, 0.0);
        wipe(&mut self.values);
        self.bins.zeroize();
    }
}

/// Wipes numbers by whole registers. `zeroize` may take a call for each number.
pub fn wipe(numbers: &mut [f64]) {
    #[cfg(target_arch = "x86_64")]
    {
        let (start, registers, end) = pod_align_to_mut::<f64, std::arch::x86_64::__m256i>(numbers);
        start.zeroize();
        registers.iter_mut().for_each(Zeroize::zeroize);
        end.zeroize();
    }
    #[cfg(not(target_arch = "x86_64"))]
    numbers.zeroize();
}

/// A row of integers, in 64 bits where all of them are known to fit.
#[derive(Clone, Copy)]
pub enum IntegerRow<'a> {
    /// In 64 bits.
    Narrow(&'a [i64]),
    /// In 128 bits.
    Wide(&'a [i128]),
}

impl<'a> From<&'a [i64]> for IntegerRow<'a> {
    fn from(row: &'a [i64]) -> Self {
        IntegerRow::Narrow(row)
    }
}

impl<'a> From<&'a [i128]> for IntegerRow<'a> {
    fn from(row: &'a [i128]) -> Self {
        IntegerRow::Wide(row)
    }
}

impl<'a> IntegerRow<'a> {
    /// Returns a run of the integers.
    #[must_use]
    pub fn run(self, run: std::ops::Range<usize>) -> IntegerRow<'a> {
        match self {
            IntegerRow::Narrow(row) => IntegerRow::Narrow(&row[run]),
            IntegerRow::Wide(row) => IntegerRow::Wide(&row[run]),
        }
    }

    /// Returns all integers.
    pub fn iter(self) -> impl Iterator<Item = i128> + Clone + 'a {
        // One of the two is empty.
        let (narrow, wide): (&[i64], &[i128]) = match self {
            IntegerRow::Narrow(row) => (row, &[]),
            IntegerRow::Wide(row) => (&[], row),
        };
        narrow.iter().map(|&value| i128::from(value)).chain(wide.iter().copied())
    }

    /// Returns the number of integers.
    pub fn len(&self) -> usize {
        match self {
            IntegerRow::Narrow(row) => row.len(),
            IntegerRow::Wide(row) => row.len(),
        }
    }

    /// Returns whether there are no integers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The middle of [2⁵², 2⁵³], where the floats are exactly the integers, and the bits of successive
/// ones differ by 1.
pub(crate) const SHIFT: f64 = 1.5 * (1u64 << 52) as f64;

/// Returns the nearest integer of a number below 2⁵¹ in magnitude, ties to even; never −0.
///
/// The addition rounds and the subtraction is exact. `f64::round_ties_even` would be a call for
/// every entry on processors without a rounding instruction.
pub(crate) fn round_ties_even(value: f64) -> f64 {
    shift_to_integers(value) - SHIFT
}

/// Returns the nearest integer of a number below 2⁵¹ in magnitude, ties to even, plus [`SHIFT`].
#[inline(always)]
pub(crate) fn shift_to_integers(value: f64) -> f64 {
    value + SHIFT
}

/// Returns the integer to which [`SHIFT`] was added.
#[inline(always)]
pub(crate) fn shifted_integer(shifted: f64) -> i64 {
    (shifted.to_bits() as i64).wrapping_sub(SHIFT.to_bits() as i64)
}

/// Converts an integral float below 2⁵¹ in magnitude to `i64`. A cast would also check the range.
pub(crate) fn as_integer(value: f64) -> i64 {
    shifted_integer(shift_to_integers(value))
}

/// Converts an integer below 2⁵¹ in magnitude to a float, exactly.
pub(crate) fn as_number(value: i64) -> f64 {
    f64::from_bits(value.wrapping_add(SHIFT.to_bits() as i64) as u64) - SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: f64 = (1u64 << 51) as f64;

    proptest! {
        #[test]
        fn rounding_and_conversions_agree_with_the_library(value in -LIMIT..LIMIT, exponent in -60i32..1) {
            let value = value * 2f64.powi(exponent);
            let rounded = round_ties_even(value);
            prop_assert_eq!(rounded, value.round_ties_even());
            prop_assert_eq!(as_integer(rounded), rounded as i64);
            prop_assert_eq!(as_number(rounded as i64), rounded);
        }
    }

    #[test]
    fn every_number_is_wiped() {
        let all: Vec<f64> = (1..40).map(f64::from).collect();
        for start in 0..9 {
            for end in start..all.len() {
                let mut numbers = all.clone();
                wipe(&mut numbers[start..end]);
                let expected: Vec<f64> =
                    (0..39).map(|i| if (start..end).contains(&i) { 0.0 } else { all[i] }).collect();
                assert_eq!(numbers, expected);
            }
        }
    }

    #[test]
    fn ties_go_to_even_and_zero_has_no_sign() {
        assert_eq!([0.5, 1.5, -0.5, -2.5].map(round_ties_even), [0.0, 2.0, 0.0, -2.0]);
        assert!(round_ties_even(-0.25).is_sign_positive());
        assert_eq!([LIMIT - 1.0, 1.0 - LIMIT].map(as_integer), [(1 << 51) - 1, 1 - (1 << 51)]);
    }
}
