//! Bounds of single keys: maps the values of a key from its own bounds to those of the columns.
//!
//! The sensitivity is unchanged, because it is that of any record that the clipper receives: the
//! map is applied to one record at a time, before it is clipped, and depends only on that record
//! and public numbers. A key is public in the release, so readers undo it.

use super::{Column, KeyColumn, bounds_by_key};

/// Maps the values of each key, between its own bounds, to the bounds of the columns.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyBounds {
    /// For each key and column the key's bounds and the column's. Empty unless keys have bounds of
    /// their own.
    by_key: Vec<Vec<[(f64, f64); 2]>>,
}

impl KeyBounds {
    /// Returns the bounds of these keys.
    pub(crate) fn new(columns: &[Column], key: Option<&KeyColumn>) -> Self {
        if columns.iter().all(|column| column.bounds.is_empty()) {
            return Self::default();
        }
        let of_columns = || columns.iter().map(|column| (column.lower, column.upper));
        let pairs = |own: Vec<_>| own.into_iter().zip(of_columns()).map(|(own, all)| [own, all]).collect();
        Self { by_key: bounds_by_key(columns, key).into_iter().map(pairs).collect() }
    }

    /// Returns the bounds of a key's values in a column, if keys have bounds of their own.
    pub(crate) fn of(&self, key: u32, column: usize) -> Option<(f64, f64)> {
        self.by_key.get(key as usize).map(|bounds| bounds[column][0])
    }

    /// Maps the values of a record of this key to the bounds of the columns; NaN stays NaN.
    pub(crate) fn scale(&self, key: u32, values: &mut [f64]) {
        let Some(bounds) = self.by_key.get(key as usize) else { return };
        for (value, [(own_lower, own_upper), (lower, upper)]) in values.iter_mut().zip(bounds) {
            let share = (value.clamp(*own_lower, *own_upper) - own_lower) / (own_upper - own_lower);
            *value = lower + (upper - lower) * share;
        }
    }
}
