//! The exact sums of one key: count, Σq and Σqqᵀ (or Σq∘q) of its quantised records, as 128-bit
//! integers.

use super::Layout;
use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

/// Reasons why sums can't be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MomentError {
    /// Two parts of one stream have different layouts.
    #[error("found moments {found:?} where {expected:?} were expected: give both sides the same columns")]
    Layout {
        /// Layout of the sums to be added.
        found: Layout,
        /// Layout of the sums they are added to.
        expected: Layout,
    },
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
    /// The number of keys differs from the number of rows.
    #[error("found {keys} keys for {rows} rows: leave out the keys of rejected records")]
    Keys {
        /// Number of keys.
        keys: usize,
        /// Number of rows.
        rows: usize,
    },
    /// The number of coordinates differs from that of the layout.
    #[error("found {found} coordinates, too many or too few for {layout:?}")]
    Coordinates {
        /// Number of coordinates.
        found: usize,
        /// The layout they were stored with.
        layout: Layout,
    },
}

/// Exact sums of one key, in the order of [`Layout`] and in units of ζ·2⁻²⁰ (first moments) and its
/// square.
///
/// Private data: sums can't be printed and are wiped when dropped. They can be serialised, because
/// they travel between workers and into the private log.
///
/// Integers add up to the same in every order and grouping, so sums are bit-identical on one worker
/// and on many. No sum can exceed its 128 bits, so no error depends on data: entries of records are
/// at most 2⁴⁰ in magnitude, so sums of fewer than 2⁶⁴ records are at most 2¹⁰⁴. (Sums are added
/// modulo 2¹²⁸.)
///
/// ```compile_fail,E0277
/// use hushflow_mechanism::moments::{Layout, MomentSums, SecondMoment};
///
/// let sums = MomentSums::zero(Layout { dimension: 1, second: SecondMoment::Full });
/// println!("{sums:?}");
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Parts")]
pub struct MomentSums {
    layout: Layout,
    coordinates: Vec<i128>,
}

impl MomentSums {
    /// Returns the sums of no records.
    pub fn zero(layout: Layout) -> Self {
        Self { layout, coordinates: vec![0; layout.coordinates()] }
    }

    /// Takes sums in the order of the layout.
    pub(super) fn of(layout: Layout, coordinates: impl Iterator<Item = i128>) -> Self {
        Self { layout, coordinates: coordinates.collect() }
    }

    /// Resets to the sums of no records.
    pub(super) fn clear(&mut self) {
        self.coordinates.fill(0);
    }

    /// Returns which sums are kept, and where.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns all sums, in the layout's order.
    pub fn coordinates(&self) -> &[i128] {
        &self.coordinates
    }

    /// Returns whether no record was added.
    pub fn is_empty(&self) -> bool {
        self.coordinates[Layout::COUNT] == 0
    }

    /// Adds the sums of other records of the same key.
    pub fn merge(&mut self, other: &Self) -> Result<(), MomentError> {
        if other.layout != self.layout {
            return Err(MomentError::Layout { found: other.layout, expected: self.layout });
        }
        add(&mut self.coordinates, other.coordinates.iter().copied());
        Ok(())
    }

    /// Adds integers, run after run, to the coordinates in their order. Each is below 2⁵³ in
    /// magnitude.
    pub(super) fn add_runs<'a>(&mut self, runs: impl Iterator<Item = &'a [f64]>) {
        let mut rest = &mut self.coordinates[..];
        for run in runs {
            let (sums, after) = rest.split_at_mut(run.len());
            // Through i64, because processors convert to no wider integers.
            add(sums, run.iter().map(|&integer| i128::from(integer as i64)));
            rest = after;
        }
    }
}

fn add(sums: &mut [i128], increments: impl Iterator<Item = i128>) {
    sums.iter_mut().zip(increments).for_each(|(sum, increment)| *sum = sum.wrapping_add(increment));
}

impl Drop for MomentSums {
    fn drop(&mut self) {
        self.coordinates.zeroize();
    }
}

/// Sums as read, before their length is checked.
#[derive(Deserialize)]
struct Parts {
    layout: Layout,
    coordinates: Vec<i128>,
}

impl TryFrom<Parts> for MomentSums {
    type Error = MomentError;

    fn try_from(Parts { layout, coordinates }: Parts) -> Result<Self, MomentError> {
        let found = coordinates.len();
        // The first test prevents overflow in the second for a damaged dimension.
        if layout.dimension < found && layout.coordinates() == found {
            return Ok(Self { layout, coordinates });
        }
        Err(MomentError::Coordinates { found, layout })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moments::SecondMoment;

    const LAYOUT: Layout = Layout { dimension: 1, second: SecondMoment::Diagonal };

    fn sums(coordinates: [i128; 3]) -> MomentSums {
        MomentSums { layout: LAYOUT, coordinates: coordinates.to_vec() }
    }

    #[test]
    fn sums_merge_and_know_when_they_are_empty() {
        let mut total = MomentSums::zero(LAYOUT);
        assert!(total.is_empty());
        total.merge(&sums([2, -3, 5])).unwrap();
        total.merge(&sums([1, 1, 1])).unwrap();
        assert!(!total.is_empty());
        assert_eq!(total.coordinates(), [3, -2, 6]);
    }

    #[test]
    fn sums_of_other_columns_are_refused() {
        let found = Layout { dimension: 2, second: SecondMoment::Full };
        let merged = MomentSums::zero(LAYOUT).merge(&MomentSums::zero(found));
        assert_eq!(merged, Err(MomentError::Layout { found, expected: LAYOUT }));
    }

    #[test]
    fn sums_travel() {
        let sent = sums([1, -(1 << 100), 1 << 100]);
        let text = serde_json::to_string(&sent).unwrap();
        let received: MomentSums = serde_json::from_str(&text).unwrap();
        assert!(received == sent);
    }

    #[test]
    fn damaged_sums_are_refused() {
        for (dimension, coordinates) in [(1, "[]"), (1, "[1,2]"), (2, "[1,2,3]"), (usize::MAX, "[1,2,3]")] {
            let text = format!(
                r#"{{"layout":{{"dimension":{dimension},"second":"full"}},"coordinates":{coordinates}}}"#
            );
            assert!(serde_json::from_str::<MomentSums>(&text).is_err(), "{text}");
        }
    }
}
