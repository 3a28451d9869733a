//! The first half of `bound`: sends records to the worker that owns their entity, buffers those
//! that may count, and lists the present entities when the epoch closes.

use super::buffer::{ClosedBuffer, EpochBuffer};
use super::{BoundSetup, Entity};
use crate::{Fault, OpenEpochs, Records, map_or_fault};
use serde::{Deserialize, Serialize};
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use zeroize::Zeroize;

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct RoutedRecords {
    owner: u64,
    records: Records,
}

pub(super) fn address<'scope>(
    records: StreamVec<'scope, u64, Records>,
    dimension: usize,
    fault: Fault,
) -> StreamVec<'scope, u64, RoutedRecords> {
    let peers = records.scope().peers();
    map_or_fault(records, Pipeline, "Address", fault, move |_, records| {
        if !is_whole(&records, dimension) {
            return Err(
                "a batch lacks the entity or the position of a record: give both for every record".into()
            );
        }
        Ok(route(records, peers, dimension))
    })
}

fn is_whole(records: &Records, dimension: usize) -> bool {
    let count = records.len();
    records.values.len() == count * dimension
        && records.entities.len() == count
        && records.positions.len() == count
}

fn route(mut records: Records, peers: usize, dimension: usize) -> Vec<RoutedRecords> {
    if peers == 1 {
        return vec![RoutedRecords { owner: 0, records }];
    }
    let owners: Vec<usize> = records.entities.iter().map(|entity| entity.owner(peers)).collect();
    let mut counts = vec![0; peers];
    owners.iter().for_each(|&owner| counts[owner] += 1);
    let mut parts: Vec<RoutedRecords> = (0..)
        .zip(counts)
        .map(|(owner, count)| RoutedRecords { owner, records: Records::with_room(count, dimension) })
        .collect();
    for (at, row) in records.values.chunks_exact(dimension).enumerate() {
        let part = &mut parts[owners[at]].records;
        part.keys.push(records.keys[at]);
        part.positions.push(records.positions[at]);
        part.entities.push(records.entities[at]);
        part.values.extend_from_slice(row);
    }
    records.values.zeroize();
    parts.retain(|part| !part.records.is_empty());
    parts
}

/// Output of an epoch when it closes.
pub(super) struct GatherOutput<'scope> {
    pub(super) closed: StreamVec<'scope, u64, ClosedBuffer>,
    /// Every entity with a buffered record, once, ascending.
    pub(super) present: StreamVec<'scope, u64, Vec<Entity>>,
}

/// Buffers the records that may count until their epoch closes.
pub(super) fn gather<'scope>(
    records: StreamVec<'scope, u64, RoutedRecords>,
    setup: &BoundSetup,
    fault: Fault,
) -> GatherOutput<'scope> {
    let setup = setup.clone();
    let mut builder = OperatorBuilder::new("Gather".to_owned(), records.scope());
    let to_owner = Exchange::new(|records: &RoutedRecords| records.owner);
    let mut input = builder.new_input(records, to_owner);
    let (closed, closed_stream) = builder.new_output::<Vec<ClosedBuffer>>();
    let (present, present_stream) = builder.new_output::<Vec<Vec<Entity>>>();
    let (mut closed, mut present) = (OutputBuilder::from(closed), OutputBuilder::from(present));
    builder.build(move |_capabilities| {
        let mut epochs = OpenEpochs::new(fault);
        // Allocated at the size of the last epoch, because a growing table moves its contents.
        let mut expected = 0;
        move |frontiers| {
            let (mut closed, mut present) = (closed.activate(), present.activate());
            let new = || EpochBuffer::new(&setup, expected);
            epochs.collect(&mut input, new, |buffer, RoutedRecords { records: mut batch, .. }| {
                add(buffer, &batch, &setup.columns);
                batch.values.zeroize();
            });
            epochs.on_close(frontiers, |run| {
                for epoch in run {
                    let [time, present_time] = epoch.own_times();
                    let buffer = epoch.data.close();
                    expected = buffer.entities().len();
                    present.session(&present_time).give(buffer.entities().to_vec());
                    closed.session(&time).give(buffer);
                }
                Ok(())
            });
        }
    });
    GatherOutput { closed: closed_stream, present: present_stream }
}

fn add(buffer: &mut EpochBuffer, batch: &Records, columns: &[(f64, f64)]) {
    let rows = batch.values.chunks_exact(columns.len());
    for ((&entity, &position), (&key, row)) in
        batch.entities.iter().zip(&batch.positions).zip(batch.keys.iter().zip(rows))
    {
        buffer.add(entity, position, key, row, columns);
    }
}
