//! The second half of `bound`: decides which entities take part, as a differential computation, and
//! passes their records.

use super::buffer::ClosedBuffer;
use super::{BoundSetup, BoundedRecords, Entity, EntityHistory, EntityLimits};
use crate::measurement::MeasurementId;
use crate::{Fault, OpenEpochs, Records};
use differential_dataflow::AsCollection;
use differential_dataflow::difference::{IsZero, Semigroup};
use differential_dataflow::operators::arrange::arrangement::arrange_core;
use differential_dataflow::operators::arrange::{Arranged, TraceAgent};
use differential_dataflow::operators::iterate::Variable;
use differential_dataflow::trace::implementations::{ContainerChunker, KeyBatcher, KeyBuilder, KeySpine};
use differential_dataflow::trace::{Cursor, TraceReader};
use std::sync::Arc;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Concat;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::ToStream;
use timely::progress::Antichain;

const BATCH: usize = 8192;

type HistoryTrace = TraceAgent<KeySpine<Entity, u64, EntityHistory>>;

/// The new history of an entity that takes part.
type HistoryUpdate = ((Entity, ()), u64, EntityHistory);

/// A history never decreases, so differences add up to the latest one. Nothing is removed from the
/// collection, and an entity compacts to one update however often it took part.
impl Semigroup for EntityHistory {
    fn plus_equals(&mut self, other: &Self) {
        *self = (*self).max(*other);
    }
}

impl IsZero for EntityHistory {
    fn is_zero(&self) -> bool {
        false
    }
}

/// Returns the entities that take part, at the time of that epoch.
///
/// Let S(t) be the histories before epoch t and P(t) the entities present in it. The collection is
/// the recursion
///
/// ```text
/// S(t+1) = S(t) + admitted(S(t), P(t))
/// ```
///
/// with a variable that is fed back one epoch later. Only entities of S(t) that are present are
/// read, in order. The changes are the admissions. Each worker arranges the histories of the
/// entities that it owns, so no data are exchanged.
pub(super) fn admitted<'scope>(
    present: StreamVec<'scope, u64, Vec<Entity>>,
    setup: &BoundSetup,
    fault: Fault,
) -> StreamVec<'scope, u64, Vec<Entity>> {
    let scope = present.scope();
    let (index, peers, first) = (scope.index(), scope.peers(), setup.first_epoch);
    let histories = Arc::clone(&setup.histories);
    let own = (0..histories.len())
        .map(move |at| histories[at])
        .filter(move |(entity, _)| entity.owner(peers) == index);
    let before: StreamVec<'scope, u64, HistoryUpdate> = own
        .map(move |(entity, history)| ((entity, ()), first, history))
        .to_stream(scope)
        .container::<Vec<_>>();
    let (variable, later) = Variable::new(scope, 1);
    let histories = arrange_core::<
        _,
        _,
        ContainerChunker<Vec<HistoryUpdate>>,
        KeyBatcher<_, _, _>,
        KeyBuilder<_, _, _>,
        _,
    >(later.inner.concat(before), Pipeline, "Histories");
    let (changes, admitted) = admit(present, histories, setup.limits, fault);
    variable.set(changes.as_collection());
    admitted
}

/// Admits present entities by their history once that is known. Returns the changes of histories
/// and the admitted entities, ascending.
fn admit<'scope>(
    present: StreamVec<'scope, u64, Vec<Entity>>,
    histories: Arranged<'scope, HistoryTrace>,
    limits: EntityLimits,
    fault: Fault,
) -> (StreamVec<'scope, u64, HistoryUpdate>, StreamVec<'scope, u64, Vec<Entity>>) {
    let Arranged { stream, trace: mut histories } = histories;
    let mut builder = OperatorBuilder::new("Admit".to_owned(), present.scope());
    let mut present = builder.new_input(present, Pipeline);
    let mut known = builder.new_input(stream, Pipeline);
    let (changes, change_stream) = builder.new_output::<Vec<HistoryUpdate>>();
    let (admitted, admitted_stream) = builder.new_output::<Vec<Vec<Entity>>>();
    let (mut changes, mut admitted) = (OutputBuilder::from(changes), OutputBuilder::from(admitted));
    builder.build(move |_capabilities| {
        let mut epochs = OpenEpochs::new(fault);
        move |frontiers| {
            let (mut changes, mut admitted) = (changes.activate(), admitted.activate());
            epochs.collect(&mut present, Vec::new, |all: &mut Vec<Entity>, entities| all.extend(entities));
            // The trace holds the contents of the batches.
            known.for_each_time(|_, batches| batches.for_each(Vec::clear));
            epochs.on_close(frontiers, |run| {
                for closed in run {
                    let [change_time, time] = closed.own_times();
                    let epoch = closed.epoch;
                    let after = history_after(&mut histories, &limits, epoch, closed.data);
                    let update = |&(entity, history): &_| ((entity, ()), epoch, history);
                    changes.session(&change_time).give_iterator(after.iter().map(update));
                    let entities: Vec<Entity> = after.into_iter().map(|(entity, _)| entity).collect();
                    admitted.session(&time).give(entities);
                }
                Ok(())
            });
            // Compaction: histories before the first open epoch are not read again.
            if let Some(next) =
                frontiers.iter().filter_map(|frontier| frontier.frontier().first().copied()).min()
            {
                let next = Antichain::from_elem(next);
                histories.set_logical_compaction(next.borrow());
                histories.set_physical_compaction(next.borrow());
            }
        }
    });
    (change_stream, admitted_stream)
}

/// Returns the entities of `present` (ascending) that take part in `epoch`, with their history
/// after it.
fn history_after(
    histories: &mut HistoryTrace,
    limits: &EntityLimits,
    epoch: u64,
    present: Vec<Entity>,
) -> Vec<(Entity, EntityHistory)> {
    let (mut cursor, storage) = histories.cursor();
    let admitted = present.into_iter().filter_map(|entity| {
        cursor.seek_key(&storage, &entity);
        let mut history: Option<EntityHistory> = None;
        if cursor.get_key(&storage) == Some(&entity) {
            cursor.map_times(&storage, |&since, &change| {
                if since <= epoch {
                    history = history.max(Some(change));
                }
            });
        }
        Some((entity, limits.admit(history, epoch)?))
    });
    admitted.collect()
}

/// Passes the records of admitted entities, without the entities but with positions, once all
/// admissions of the epoch are known.
pub(super) fn pass<'scope>(
    closed: StreamVec<'scope, u64, ClosedBuffer>,
    admitted: StreamVec<'scope, u64, Vec<Entity>>,
    setup: &BoundSetup,
    measurement: MeasurementId,
    fault: Fault,
) -> StreamVec<'scope, u64, BoundedRecords> {
    let (columns, discovers) = (Arc::clone(&setup.columns), setup.discovers);
    closed.binary_frontier(admitted, Pipeline, Pipeline, "Pass", move |_capability, _info| {
        let mut epochs = OpenEpochs::new(fault);
        move |(closed, closed_frontier), (admitted, admitted_frontier), output| {
            let new = || (Vec::new(), Vec::new());
            epochs.collect(closed, new, |(buffers, _), closed| buffers.push(closed));
            epochs.collect(admitted, new, |(_, admitted), entities| admitted.extend(entities));
            epochs.on_close([closed_frontier, admitted_frontier], |run| {
                for closed in run {
                    let ([time], epoch) = (closed.own_times(), closed.epoch);
                    let (buffers, admitted) = closed.data;
                    let mut session = output.session(&time);
                    buffers.iter().for_each(|buffer| {
                        let batch = |records| {
                            let (sent, key_entities) = Default::default();
                            BoundedRecords { measurement, records, sent, key_entities }
                        };
                        let last = give_batches(buffer, &admitted, epoch, &columns, |records| {
                            session.give(batch(records));
                        });
                        let sent = buffer.sent(&admitted);
                        let key_entities =
                            if discovers { buffer.key_entities(&admitted) } else { Vec::new() };
                        if !(last.is_empty() && sent.is_empty() && key_entities.is_empty()) {
                            session.give(BoundedRecords { sent, key_entities, ..batch(last) });
                        }
                    });
                }
                Ok(())
            });
        }
    })
}

/// Gives the records in batches, except for the last batch, which it returns; it may be empty.
fn give_batches(
    buffer: &ClosedBuffer,
    admitted: &[Entity],
    epoch: u64,
    columns: &[(f64, f64)],
    mut give: impl FnMut(Records),
) -> Records {
    let room = || Records::with_room(BATCH.min(admitted.len()), columns.len());
    let mut batch = room();
    buffer.for_each(admitted, columns, |position, key, row| {
        batch.keys.push(key);
        batch.positions.push(position);
        batch.epochs.push(epoch);
        batch.values.extend_from_slice(row);
        if batch.len() == BATCH {
            give(std::mem::replace(&mut batch, room()));
        }
    });
    batch
}
