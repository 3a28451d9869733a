//! Records of a dataflow, one by one or in batches.

use hushflow_operators::{Entity, Fault, Records};
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline as Local;
use timely::dataflow::operators::generic::operator::Operator;

use crate::pipeline::KeyBounds;

/// A record of a dataflow. Private, so it has no `Debug`.
#[derive(Clone)]
pub struct Record {
    epoch: u64,
    key: u32,
    entity: Option<Entity>,
    values: Vec<f64>,
}

impl Record {
    /// Returns a record of an epoch, with the index of its key in the list of keys (0 without keys)
    /// and the values of its columns in order.
    pub fn new(epoch: u64, key: u32, values: impl Into<Vec<f64>>) -> Self {
        Self { epoch, key, entity: None, values: values.into() }
    }

    /// Sets the person or other entity to whom the record belongs, if entities are protected.
    /// [`entity`](crate::source::entity) makes one of a name.
    pub fn of_entity(self, entity: Entity) -> Self {
        Self { entity: Some(entity), ..self }
    }
}

/// Which records a publication accepts.
pub(super) struct WantedRecords {
    pub(super) first_epoch: u64,
    pub(super) keys: u32,
    pub(super) columns: usize,
    pub(super) has_entities: bool,
    pub(super) bounds: KeyBounds,
}

impl WantedRecords {
    /// Returns whether a batch holds only records that the publication accepts.
    pub(super) fn fit(&self, records: &Records) -> bool {
        let (rows, entities) = (records.len(), if self.has_entities { records.len() } else { 0 });
        records.epochs.len() == rows
            && records.values.len() == rows * self.columns
            && records.entities.len() == entities
            && records.positions.len() >= entities
            && records.keys.iter().all(|&key| key < self.keys)
            && records.epochs.iter().all(|&epoch| epoch >= self.first_epoch)
    }

    /// Rescales values from the bounds of their keys to those of the columns.
    pub(super) fn scale(&self, records: &mut Records) {
        let rows = records.values.chunks_exact_mut(self.columns);
        rows.zip(&records.keys).for_each(|(values, &key)| self.bounds.scale(key, values));
    }
}

/// Batches records for the operators.
pub(super) fn batches<'scope>(
    records: StreamVec<'scope, u64, Record>,
    wanted: WantedRecords,
    (worker, workers): (usize, usize),
    fault: Fault,
) -> StreamVec<'scope, u64, Records> {
    let mut number = worker as u64;
    records.unary(Local, "Records", move |_capability, _info| {
        move |input, output| {
            input.for_each_time(|time, batches| {
                let mut session = output.session(&time);
                for batch in batches {
                    let mut records = Records::default();
                    for record in batch.drain(..) {
                        let position = number;
                        number += workers as u64;
                        if record.values.len() != wanted.columns
                            || record.entity.is_some() != wanted.has_entities
                        {
                            fault.raise(
                                "a record needs one value for each column, and an entity if and only if \
                                 entities are protected",
                            );
                            return;
                        }
                        if record.epoch < wanted.first_epoch || record.key >= wanted.keys {
                            continue;
                        }
                        records.keys.push(record.key);
                        records.epochs.push(record.epoch);
                        records.values.extend(record.values);
                        if let Some(entity) = record.entity {
                            records.entities.push(entity);
                            records.positions.push(position);
                        }
                    }
                    session.give(records);
                }
            });
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_batches_of_open_epochs_and_listed_keys_fit() {
        let bounds = KeyBounds::default();
        let wanted = WantedRecords { first_epoch: 3, keys: 2, columns: 2, has_entities: true, bounds };
        let batch = || Records {
            keys: vec![0, 1],
            epochs: vec![3, 4],
            values: vec![0.5; 4],
            entities: vec![Entity(1), Entity(2)],
            positions: vec![7, 9],
        };
        assert!(wanted.fit(&batch()) && wanted.fit(&Records::default()));
        let wrong: [fn(&mut Records); 6] = [
            |batch| batch.keys[1] = 2,
            |batch| batch.epochs[0] = 2,
            |batch| batch.epochs.truncate(1),
            |batch| batch.values.truncate(3),
            |batch| batch.entities.clear(),
            |batch| batch.positions.clear(),
        ];
        for spoil in wrong {
            let mut batch = batch();
            spoil(&mut batch);
            assert!(!wanted.fit(&batch));
        }
    }
}
