//! Columns and keys of records, and the bounds of their values.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::KeyDiscovery;

/// One coordinate of a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Name of the column in the source.
    pub name: String,
    /// Public lower bound, in the unit of the column.
    pub lower: f64,
    /// Public upper bound, above the lower one.
    pub upper: f64,
    /// `bounds`: lower and upper bound of keys that have bounds of their own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bounds: BTreeMap<String, (f64, f64)>,
}

impl Column {
    /// Returns the bounds of records of a key.
    pub fn bounds_of(&self, key: &str) -> (f64, f64) {
        self.bounds.get(key).copied().unwrap_or((self.lower, self.upper))
    }
}

/// Returns the bounds of each column for each key, or one list for all keys without bounds of their
/// own.
pub fn bounds_by_key(columns: &[Column], key: Option<&KeyColumn>) -> Vec<Vec<(f64, f64)>> {
    let bounds_of = |key: &str| columns.iter().map(|column| column.bounds_of(key)).collect();
    match key.filter(|_| columns.iter().any(|column| !column.bounds.is_empty())) {
        Some(key) => key.values.iter().map(|value| bounds_of(value)).collect(),
        None => vec![columns.iter().map(|column| (column.lower, column.upper)).collect()],
    }
}

/// The public groups of records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyColumn {
    /// Column that holds the key.
    pub column: String,
    /// All keys, at least one, without duplicates. Rows with other keys are counted and skipped.
    /// Empty if keys are discovered.
    pub values: Vec<String>,
    /// `discover`: how keys are discovered; by default they are listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discover: Option<KeyDiscovery>,
}

impl KeyColumn {
    /// Returns the number of keys of a release: those listed, or the slots.
    pub fn number(&self) -> u32 {
        self.discover.as_ref().map_or(self.values.len() as u32, |discover| discover.most)
    }
}
