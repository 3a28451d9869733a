//! Flat batches that flow between operators, without an allocation per record. Private batches have
//! no `Debug`.

use crate::Entity;
use crate::measurement::MeasurementId;
use hushflow_mechanism::moments::IntegerRow;
use hushflow_mechanism::moments::{QuantisedRows, Sums};
use hushflow_mechanism::release::Released;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
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
    /// whole; otherwise it may be empty.
    pub positions: Vec<u64>,
}

impl Records {
    /// Returns an empty batch with room for records with entities.
    pub(crate) fn with_room(records: usize, columns: usize) -> Self {
        Records {
            keys: Vec::with_capacity(records),
            epochs: Vec::with_capacity(records),
            values: Vec::with_capacity(records * columns),
            entities: Vec::with_capacity(records),
            positions: Vec::with_capacity(records),
        }
    }

    /// Adds the records of another batch of the same kind.
    pub fn append(&mut self, mut other: Records) {
        self.keys.append(&mut other.keys);
        self.epochs.append(&mut other.epochs);
        self.values.append(&mut other.values);
        self.entities.append(&mut other.entities);
        self.positions.append(&mut other.positions);
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
    /// The epoch of each record; empty if all are of the batch's time.
    pub(crate) epochs: Vec<u64>,
    pub(crate) rows: QuantisedRows,
    /// Number of sent records by key.
    pub(crate) sent: BTreeMap<u32, u64>,
    /// Keys with their entities, as in [`BoundedRecords`](crate::BoundedRecords).
    pub(crate) key_entities: Vec<(u32, Entity)>,
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

/// One worker's exact sums over a run of coordinates within one shard of an epoch.
#[derive(Clone, Serialize, Deserialize)]
pub struct PartialSums {
    pub(crate) measurement: MeasurementId,
    pub(crate) epoch: u64,
    pub(crate) shard: u32,
    /// Position of the first sum in the shard.
    pub(crate) offset: u64,
    pub(crate) sums: Sums,
}

impl PartialSums {
    /// The epoch of the records.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
}

/// One shard of a run of epochs: the exact sums, for the private log, and the values with noise.
#[derive(Clone, Serialize, Deserialize)]
pub struct ShardRelease {
    pub(crate) measurement: MeasurementId,
    pub(crate) shard: u32,
    /// The first epoch of the run.
    pub(crate) first: u64,
    /// The sums of each epoch.
    pub(crate) sums: Vec<Sums>,
    /// The values of all epochs, epoch after epoch, with the same number for each.
    pub(crate) values: Released,
    /// The encoder's state after the last epoch if a checkpoint is due.
    pub(crate) state: Option<Zeroizing<Vec<u8>>>,
}

impl ShardRelease {
    /// Wraps public numbers as the release of a shard in one epoch, with private integers in place
    /// of its sums.
    pub(crate) fn of_numbers(
        measurement: MeasurementId,
        (shard, first): (u32, u64),
        numbers: Vec<i128>,
        private: Sums,
        state: Option<Zeroizing<Vec<u8>>>,
    ) -> Self {
        let values = Released::released_before(numbers);
        ShardRelease { measurement, shard, first, sums: vec![private], values, state }
    }

    /// The epochs that it releases.
    pub fn epochs(&self) -> Range<u64> {
        self.first..self.first + self.sums.len() as u64
    }

    /// Returns the values of one of its epochs without copying them.
    pub(crate) fn values_of(&self, epoch: u64) -> Released {
        let width = self.values.row().len() / self.sums.len().max(1);
        let start = (epoch - self.first) as usize * width;
        self.values.part(start..start + width)
    }
}

/// The public part of an epoch: the released values of all keys, end to end, in units of the output
/// grid. They stay as the shards released them, and clones share them.
#[derive(Clone)]
pub struct ReleasedEpoch {
    /// The epoch.
    pub epoch: u64,
    shards: Arc<Vec<Released>>,
}

impl ReleasedEpoch {
    /// Takes the values of all shards, in order.
    pub fn new(epoch: u64, shards: Vec<Released>) -> Self {
        ReleasedEpoch { epoch, shards: Arc::new(shards) }
    }

    /// Takes values of an earlier release, from a log.
    pub fn released_before(epoch: u64, values: Vec<i128>) -> Self {
        Self::new(epoch, vec![Released::released_before(values)])
    }

    /// The values of each shard.
    pub fn rows(&self) -> impl Iterator<Item = IntegerRow<'_>> + Clone {
        self.shards.iter().map(Released::row)
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.rows().map(|shard| shard.len()).sum()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All values.
    pub fn iter(&self) -> impl Iterator<Item = i128> {
        self.rows().flat_map(IntegerRow::iter)
    }

    /// Copies all values.
    pub fn to_vec(&self) -> Vec<i128> {
        let mut values = Vec::with_capacity(self.len());
        values.extend(self.iter());
        values
    }

    /// Returns a run of the values, in pieces.
    pub fn run(&self, run: Range<usize>) -> impl Iterator<Item = IntegerRow<'_>> + Clone {
        let mut start = 0;
        self.rows().map(move |shard| {
            let offset = |value: usize| value.clamp(start, start + shard.len()) - start;
            let piece = shard.run(offset(run.start)..offset(run.end));
            start += shard.len();
            piece
        })
    }
}

impl fmt::Debug for ReleasedEpoch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ReleasedEpoch")
            .field("epoch", &self.epoch)
            .field("values", &self.to_vec())
            .finish()
    }
}

impl PartialEq for ReleasedEpoch {
    fn eq(&self, other: &Self) -> bool {
        self.epoch == other.epoch && self.iter().eq(other.iter())
    }
}

impl Eq for ReleasedEpoch {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_values_spans_shards() {
        let released = ReleasedEpoch::new(1, [vec![1, 2, 3], vec![4]].map(Released::released_before).into());
        let pieces = released.run(1..4).map(|piece| piece.iter().collect());
        assert_eq!(pieces.collect::<Vec<Vec<_>>>(), [vec![2, 3], vec![4]]);
        assert_eq!(released, ReleasedEpoch::released_before(1, vec![1, 2, 3, 4]));
    }
}
