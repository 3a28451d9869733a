//! What flows between the operators: flat batches, no allocation per record, and no way to print what is private.

use crate::Entity;
use hushflow_mechanism::moments::QuantisedRows;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use zeroize::Zeroizing;

/// A batch of raw records: one entry of `keys` and `epochs`, d of `values` each. Private data, so it can't be
/// printed.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Records {
    /// Index of each record's key; 0 where there are none.
    pub keys: Vec<u32>,
    /// The epoch that each record joins, from 1, as [`Schedule::assign`](hushflow_mechanism::epochs::Schedule::assign)
    /// tells.
    pub epochs: Vec<u64>,
    /// The columns of all records, row by row, in the units of the source.
    pub values: Vec<f64>,
    /// Whose each record is; empty where single records are protected.
    pub entities: Vec<Entity>,
    /// The place of each record's row in the stream, which is public: rising in a batch, and batches are runs of the stream. Needed where
    /// entities are protected or windows are looked at as a whole; elsewhere it may be empty.
    pub places: Vec<u64>,
}

impl Records {
    /// None yet, but room for so many of records with entities, of so many columns.
    pub(crate) fn with_room(records: usize, columns: usize) -> Self {
        Records {
            keys: Vec::with_capacity(records),
            epochs: Vec::with_capacity(records),
            values: Vec::with_capacity(records * columns),
            entities: Vec::with_capacity(records),
            places: Vec::with_capacity(records),
        }
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

/// A batch of clipped records on the integer grid.
#[derive(Clone)]
pub struct QuantisedRecords {
    /// Index of each record's key.
    pub keys: Vec<u32>,
    /// The records.
    pub rows: QuantisedRows,
}

/// One worker's exact sums over a run of coordinates within one shard.
#[derive(Clone, Serialize, Deserialize)]
pub struct PartialSums {
    /// The shard.
    pub(crate) shard: u32,
    /// Place of the first sum in the shard.
    pub(crate) offset: u64,
    pub(crate) sums: Zeroizing<Vec<i128>>,
}

/// One shard of one epoch: the exact sums, for the private log, and the private values.
#[derive(Clone, Serialize, Deserialize)]
pub struct ShardRelease {
    pub(crate) shard: u32,
    pub(crate) sums: Zeroizing<Vec<i128>>,
    pub(crate) values: Vec<i128>,
    /// The encoder's state after this epoch, when it is time for a checkpoint.
    pub(crate) state: Option<Zeroizing<Vec<u8>>>,
}

impl ShardRelease {
    /// Bytes that may be seen by anyone, as the release of a shard that leaves no sums behind, nor a state where a checkpoint is due.
    pub(crate) fn of_bytes(shard: u32, bytes: &[u8], checkpoint: bool) -> Self {
        let values = bytes.iter().map(|&byte| i128::from(byte as i8)).collect();
        ShardRelease { shard, sums: Zeroizing::default(), values, state: checkpoint.then(Zeroizing::default) }
    }

    /// The bytes of a release of bytes, in which each is an integer of one byte with its sign; none if these are others.
    pub fn bytes(values: &[i128]) -> Option<Vec<u8>> {
        values.iter().map(|&value| i8::try_from(value).ok().map(|byte| byte as u8)).collect()
    }
}

/// The private values of an epoch, all keys end to end, in units of the output grid. They stay as the shards released them, and
/// clones share them.
#[derive(Clone, Debug, Default)]
pub struct Values(Arc<Vec<Vec<i128>>>);

impl Values {
    /// Shard by shard.
    pub(crate) fn new(shards: Vec<Vec<i128>>) -> Self {
        Values(Arc::new(shards))
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All values.
    pub fn to_vec(&self) -> Vec<i128> {
        self.0.concat()
    }

    /// Appends a run of the values to others.
    pub fn append_run(&self, run: Range<usize>, to: &mut Vec<i128>) {
        let mut start = 0;
        for shard in self.0.iter() {
            let place = |value: usize| value.clamp(start, start + shard.len()) - start;
            to.extend_from_slice(&shard[place(run.start)..place(run.end)]);
            start += shard.len();
        }
    }
}

impl From<Vec<i128>> for Values {
    fn from(values: Vec<i128>) -> Self {
        Values::new(vec![values])
    }
}

impl PartialEq for Values {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().flatten().eq(other.0.iter().flatten())
    }
}

impl Eq for Values {}
