//! Neighbouring streams and the joint sensitivity of their moments.

use serde::{Deserialize, Serialize};

/// Which two streams must be hard to tell apart: a part of every sensitivity, guarantee and ledger entry.
///
/// The sequence of arrivals (how many rows came, and when by the public clock) is the same in both; what one
/// row *holds* differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Neighbours {
    /// One record is replaced by any other: other values, another key, another epoch, or no valid record at
    /// all. Counts are private.
    ReplaceOne,
    /// One record's values are replaced; its key and epoch stay. Keys, epochs and so all counts are public.
    ReplaceOneInPlace,
    /// One record is blanked. Counts are private.
    ZeroOut,
}
