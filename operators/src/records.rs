//! Flat batches that flow between operators, without an allocation per record. Private batches have
//! no `Debug`.

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

/// A batch of raw records: one entry of `keys` and `epochs` and d of `values` for each. Private, so
/// it has no `Debug`.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Records {
    /// Index of each record's key; 0 if there are no keys.
    pub keys: Vec<u32>,
    /// The epoch that each record joins, from 1, as
    /// [`Schedule::assign`](hushflow_mechanism::epochs::Schedule::assign) returns it.
    pub epochs: Vec<u64>,
    /// The columns of all records, row by row, in the units of the source.
    pub values: Vec<f64>,
    /// Entity of each record; empty if single records are protected.
    pub entities: Vec<Entity>,
    /// Public position of each record's row in the stream. Positions rise within a batch, and
    /// batches are runs of the stream. Required if entities are protected or windows are read as a
    /// whole; else it may be empty.
    pub places: Vec<u64>,
}

impl Records {
    /// Returns an empty batch with room for records with entities.
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

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

/// A batch of clipped records on the integer grid. Only [`Clip`](crate::Clip) makes one, with a
/// measurement's clipper:
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
    pub(crate) shard: u32,
    /// Position of the first sum in the shard.
    pub(crate) offset: u64,
    pub(crate) sums: RunSums,
}

/// A pool of buffers of released values, for reuse by later noise: allocating would cost more than
/// the work on them. Its contents are public.
#[derive(Clone, Default)]
pub(crate) struct Spare {
    rooms: Arc<Mutex<Vec<ReleasedValues>>>,
    most: usize,
}

impl Spare {
    pub(crate) fn new(most: usize) -> Self {
        Spare { rooms: Arc::default(), most }
    }

    /// Returns a buffer, an empty one if the pool has none.
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

/// The released values of a shard. Their buffer returns to its pool on drop.
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

/// One shard of one epoch: the exact sums, for the private log, and the values with noise.
#[derive(Clone, Serialize, Deserialize)]
pub struct ShardRelease {
    pub(crate) measurement: MeasurementId,
    pub(crate) shard: u32,
    pub(crate) sums: RunSums,
    pub(crate) values: ShardValues,
    /// The encoder's state after this epoch if a checkpoint is due.
    pub(crate) state: Option<Zeroizing<Vec<u8>>>,
}

impl ShardRelease {
    /// Wraps public bytes as the release of a shard without sums, with an empty state if a
    /// checkpoint is due.
    pub(crate) fn of_bytes(measurement: MeasurementId, shard: u32, bytes: &[u8], checkpoint: bool) -> Self {
        let values = bytes.iter().map(|&byte| i128::from(byte as i8)).collect();
        let values = ShardValues::new(ReleasedValues::released_before(values), Spare::default());
        let state = checkpoint.then(Zeroizing::default);
        ShardRelease { measurement, shard, sums: RunSums::zero(0), values, state }
    }

    /// Returns the bytes of a release of bytes, each a signed one-byte integer. `None` for other
    /// values.
    pub fn bytes(values: &[i128]) -> Option<Vec<u8>> {
        values.iter().map(|&value| i8::try_from(value).ok().map(|byte| byte as u8)).collect()
    }
}

/// The released values of an epoch, all keys end to end, in units of the output grid. They stay as
/// the shards released them, and clones share them.
#[derive(Clone, Default)]
pub struct Values(Arc<Vec<ShardValues>>);

impl Values {
    /// Joins the values of all shards.
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

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies all values.
    pub fn to_vec(&self) -> Vec<i128> {
        self.iter().collect()
    }

    /// Returns a run of the values, in pieces.
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
