//! What flows between the operators: flat batches, no allocation per record, and no way to print what is private.

use crate::Entity;
use crate::measurement::MeasurementId;
use hushflow_mechanism::moments::Row;
use hushflow_mechanism::moments::{QuantisedRows, RunSums};
use hushflow_mechanism::release::ReleasedValues;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// A batch of clipped records on the integer grid. Only [`Clip`](crate::Clip) makes one, with the clipper of a measurement:
///
/// ```compile_fail
/// use hushflow_mechanism::moments::QuantisedRows;
/// use hushflow_operators::QuantisedRecords;
///
/// let forged = QuantisedRecords { keys: vec![0], rows: QuantisedRows::new(1) };
/// ```
#[derive(Clone)]
pub struct QuantisedRecords {
    pub(crate) measurement: MeasurementId,
    pub(crate) keys: Vec<u32>,
    pub(crate) rows: QuantisedRows,
}

impl QuantisedRecords {
    /// Index of each record's key.
    pub fn keys(&self) -> &[u32] {
        &self.keys
    }

    /// The records.
    pub fn rows(&self) -> &QuantisedRows {
        &self.rows
    }
}

/// One worker's exact sums over a run of coordinates within one shard.
#[derive(Clone, Serialize, Deserialize)]
pub struct PartialSums {
    pub(crate) measurement: MeasurementId,
    /// The shard.
    pub(crate) shard: u32,
    /// Place of the first sum in the shard.
    pub(crate) offset: u64,
    pub(crate) sums: RunSums,
}

/// Memory of released values that nobody needs any longer, for noise to come: fresh memory would cost more than what is
/// done with it. What it holds has been released.
#[derive(Clone, Default)]
pub(crate) struct Spare {
    rooms: Arc<Mutex<Vec<ReleasedValues>>>,
    most: usize,
}

impl Spare {
    /// Keeps the memory of so many shards.
    pub(crate) fn new(most: usize) -> Self {
        Spare { rooms: Arc::default(), most }
    }

    /// Empty room where there is none.
    pub(crate) fn take(&self) -> ReleasedValues {
        self.rooms().pop().unwrap_or_default()
    }

    fn give_back(&self, room: ReleasedValues) {
        let mut rooms = self.rooms();
        if rooms.len() < self.most {
            rooms.push(room);
        }
    }

    fn rooms(&self) -> MutexGuard<'_, Vec<ReleasedValues>> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The private values of a shard. Their memory goes back to where it came from.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct ShardValues {
    values: ReleasedValues,
    #[serde(skip)]
    home: Spare,
}

impl ShardValues {
    pub(crate) fn new(values: ReleasedValues, home: Spare) -> Self {
        ShardValues { values, home }
    }

    pub(crate) fn row(&self) -> Row<'_> {
        self.values.row()
    }
}

impl Drop for ShardValues {
    fn drop(&mut self) {
        self.home.give_back(std::mem::take(&mut self.values));
    }
}

/// One shard of one epoch: the exact sums, for the private log, and the private values.
#[derive(Clone, Serialize, Deserialize)]
pub struct ShardRelease {
    pub(crate) measurement: MeasurementId,
    pub(crate) shard: u32,
    pub(crate) sums: RunSums,
    pub(crate) values: ShardValues,
    /// The encoder's state after this epoch, when it is time for a checkpoint.
    pub(crate) state: Option<Zeroizing<Vec<u8>>>,
}

impl ShardRelease {
    /// Bytes that may be seen by anyone, as the release of a shard that leaves no sums behind, nor a state where a checkpoint is due.
    pub(crate) fn of_bytes(measurement: MeasurementId, shard: u32, bytes: &[u8], checkpoint: bool) -> Self {
        let values = bytes.iter().map(|&byte| i128::from(byte as i8)).collect();
        let values = ShardValues::new(ReleasedValues::released_before(values), Spare::default());
        let state = checkpoint.then(Zeroizing::default);
        ShardRelease { measurement, shard, sums: RunSums::zero(0), values, state }
    }

    /// The bytes of a release of bytes, in which each is an integer of one byte with its sign; none if these are others.
    pub fn bytes(values: &[i128]) -> Option<Vec<u8>> {
        values.iter().map(|&value| i8::try_from(value).ok().map(|byte| byte as u8)).collect()
    }
}

/// The private values of an epoch, all keys end to end, in units of the output grid. They stay as the shards released them, and
/// clones share them.
#[derive(Clone, Default)]
pub struct Values(Arc<Vec<ShardValues>>);

impl Values {
    /// Shard by shard.
    pub(crate) fn new(shards: Vec<ShardValues>) -> Self {
        Values(Arc::new(shards))
    }

    fn shards(&self) -> impl Iterator<Item = Row<'_>> + Clone {
        self.0.iter().map(ShardValues::row)
    }

    fn iter(&self) -> impl Iterator<Item = i128> {
        self.shards().flat_map(Row::iter)
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.shards().map(|shard| shard.len()).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All values.
    pub fn to_vec(&self) -> Vec<i128> {
        self.iter().collect()
    }

    /// A run of the values, in pieces.
    pub fn run(&self, run: Range<usize>) -> impl Iterator<Item = Row<'_>> + Clone {
        let mut start = 0;
        self.shards().map(move |shard| {
            let place = |value: usize| value.clamp(start, start + shard.len()) - start;
            let piece = shard.run(place(run.start)..place(run.end));
            start += shard.len();
            piece
        })
    }
}

impl From<Vec<i128>> for Values {
    fn from(values: Vec<i128>) -> Self {
        Values::new(vec![ShardValues::new(ReleasedValues::released_before(values), Spare::default())])
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.iter()).finish()
    }
}

impl PartialEq for Values {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Values {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_values_goes_back_when_nobody_sees_them() {
        let spare = Spare::new(1);
        let shards = [vec![1, 2, 3], vec![4]].map(ReleasedValues::released_before);
        let shards = shards.map(|values| ShardValues::new(values, spare.clone()));
        let values = Values::new(shards.into());
        let seen = values.clone();
        drop(values);
        assert!(spare.take().row().is_empty());
        assert_eq!(
            seen.run(1..4).map(|piece| piece.iter().collect()).collect::<Vec<Vec<_>>>(),
            [vec![2, 3], vec![4]]
        );
        drop(seen);
        assert_eq!(spare.take().row().len() + spare.take().row().len(), 3, "no more than was asked for");
    }
}
