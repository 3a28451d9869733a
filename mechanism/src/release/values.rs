//! The private values of a shard, in as many bits as they take.

use crate::strategy::Row;
use serde::{Deserialize, Serialize};

/// Released values, in 64 bits where all of them fit. They may be seen by anyone.
#[derive(Clone, Serialize, Deserialize)]
pub enum ReleasedValues {
    /// In 64 bits.
    Narrow(Vec<i64>),
    /// In 128 bits.
    Wide(Vec<i128>),
}

impl ReleasedValues {
    /// All values.
    pub fn row(&self) -> Row<'_> {
        match self {
            ReleasedValues::Narrow(values) => Row::Narrow(values),
            ReleasedValues::Wide(values) => Row::Wide(values),
        }
    }

    /// All values, in 128 bits.
    pub fn into_wide(self) -> Vec<i128> {
        match self {
            ReleasedValues::Narrow(values) => values.into_iter().map(i128::from).collect(),
            ReleasedValues::Wide(values) => values,
        }
    }

    /// Their memory, if it is of 64 bits.
    pub(super) fn narrow_room(self) -> Vec<i64> {
        match self {
            ReleasedValues::Narrow(room) => room,
            ReleasedValues::Wide(_) => Vec::new(),
        }
    }

    /// Their memory, if it is of 128 bits.
    pub(super) fn wide_room(self) -> Vec<i128> {
        match self {
            ReleasedValues::Narrow(_) => Vec::new(),
            ReleasedValues::Wide(room) => room,
        }
    }
}

impl Default for ReleasedValues {
    fn default() -> Self {
        ReleasedValues::Wide(Vec::new())
    }
}
