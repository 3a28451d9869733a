//! Quantised records: flat rows of integers with a guaranteed bound, and why a record can't be
//! quantised.

use crate::numbers;
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
        "rows of two clippers were mixed, one of which clips records and their squares together: use one for all rows"
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
}

impl QuantisedRows {
    /// Starts without rows, for `dimension` columns each.
    pub fn new(dimension: usize) -> Self {
        Self { dimension, joint: false, values: Vec::new() }
    }

    /// Returns the number of columns d.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// Returns all rows, row-major, in units of ζ·2⁻²⁰.
    pub fn values(&self) -> &[f64] {
        &self.values
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
    }

    /// Makes room for more records.
    pub(super) fn reserve(&mut self, records: usize, joint: bool) {
        self.values.reserve(records * self.dimension * if joint { 2 } else { 1 });
    }

    /// Appends a record, twice where it will have two rows, and returns it to be quantised.
    pub(super) fn push(
        &mut self,
        record: impl Iterator<Item = f64>,
        joint: bool,
    ) -> Result<&mut [f64], RecordError> {
        if self.is_empty() {
            self.joint = joint;
        } else if self.joint != joint {
            return Err(RecordError::Mixed);
        }
        let start = self.values.len();
        self.values.extend(record);
        if joint {
            self.values.extend_from_within(start..);
        }
        Ok(&mut self.values[start..])
    }

    /// Removes the last record.
    pub(super) fn pop(&mut self) {
        self.values.truncate(self.values.len().saturating_sub(self.width()));
    }
}

impl Drop for QuantisedRows {
    fn drop(&mut self) {
        self.values.zeroize();
    }
}
