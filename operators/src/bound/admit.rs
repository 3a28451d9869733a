//! The second half of `bound`: decides which entities take part, as a differential computation, and
//! passes their records.

use super::BoundSetup;
use super::held::Closed;
use crate::entity::{Entity, EntityLimits, Standing};
use crate::{ClosedEpoch, Fault, OpenEpochs, Records};
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

type Standings = TraceAgent<KeySpine<Entity, u64, Standing>>;

/// The new standing of an entity that takes part.
type Update = ((Entity, ()), u64, Standing);

/// A standing never decreases, so differences add up to the latest one. Nothing is removed from the
/// collection, and an entity compacts to one update however often it took part.
impl Semigroup for Standing {
    fn plus_equals(&mut self, other: &Self) {
        *self = (*self).max(*other);
    }
}

impl IsZero for Standing {
    fn is_zero(&self) -> bool {
        false
    }
}

/// Returns the entities that take part, at the time of that epoch.
///
/// Let S(t) be the standings before epoch t and P(t) the entities present in it. The collection is
/// the recursion
///
/// ```text
/// S(t+1) = S(t) + admitted(S(t), P(t))
/// ```
///
/// with a variable that is fed back one epoch later. Only entities of S(t) that are present are
/// read, in order; the changes are the admissions. Each worker arranges the standings of the
/// entities that it owns, so nothing is exchanged.
pub(super) fn admitted<'scope>(
    present: StreamVec<'scope, u64, Vec<Entity>>,
    setup: &BoundSetup,
    fault: Fault,
) -> StreamVec<'scope, u64, Vec<Entity>> {
    let scope = present.scope();
    let (index, peers, first) = (scope.index(), scope.peers(), setup.first_epoch);
    let standings = Arc::clone(&setup.standings);
    let own = (0..standings.len())
        .map(move |at| standings[at])
        .filter(move |(entity, _)| entity.owner(peers) == index);
    let before: StreamVec<'scope, u64, Update> = own
        .map(move |(entity, standing)| ((entity, ()), first, standing))
        .to_stream(scope)
        .container::<Vec<_>>();
    let (variable, later) = Variable::new(scope, 1);
    let standings =
        arrange_core::<_, _, ContainerChunker<Vec<Update>>, KeyBatcher<_, _, _>, KeyBuilder<_, _, _>, _>(
            later.inner.concat(before),
            Pipeline,
            "Standings",
        );
    let (changes, admitted) = admit(present, standings, setup.limits, fault);
    variable.set(changes.as_collection());
    admitted
}

/// Admits present entities by their standing once that is known. Returns the changes of standings
/// and the admitted entities, ascending.
fn admit<'scope>(
    present: StreamVec<'scope, u64, Vec<Entity>>,
    standings: Arranged<'scope, Standings>,
    limits: EntityLimits,
    fault: Fault,
) -> (StreamVec<'scope, u64, Update>, StreamVec<'scope, u64, Vec<Entity>>) {
    let Arranged { stream, trace: mut standings } = standings;
    let mut builder = OperatorBuilder::new("Admit".to_owned(), present.scope());
    let mut present = builder.new_input(present, Pipeline);
    let mut known = builder.new_input(stream, Pipeline);
    let (changes, change_stream) = builder.new_output::<Vec<Update>>();
    let (admitted, admitted_stream) = builder.new_output::<Vec<Vec<Entity>>>();
    let (mut changes, mut admitted) = (OutputBuilder::from(changes), OutputBuilder::from(admitted));
    builder.build(move |_capabilities| {
        let mut epochs = OpenEpochs::new(fault);
        move |frontiers| {
            let (mut changes, mut admitted) = (changes.activate(), admitted.activate());
            epochs.collect(&mut present, Vec::new, |all: &mut Vec<Entity>, there| all.extend(there));
            // The trace holds their contents.
            known.for_each_time(|_, batches| batches.for_each(Vec::clear));
            epochs.on_close(frontiers, |run| {
                for ClosedEpoch { epoch, times: [change_time, time], data: there } in run {
                    let after = standing_after(&mut standings, &limits, epoch, there);
                    let update = |&(entity, standing): &_| ((entity, ()), epoch, standing);
                    changes.session(change_time).give_iterator(after.iter().map(update));
                    let entities: Vec<Entity> = after.into_iter().map(|(entity, _)| entity).collect();
                    admitted.session(time).give(entities);
                }
                Ok(())
            });
            // Compaction: standings before the first open epoch are not read again.
            if let Some(next) =
                frontiers.iter().filter_map(|frontier| frontier.frontier().first().copied()).min()
            {
                let next = Antichain::from_elem(next);
                standings.set_logical_compaction(next.borrow());
                standings.set_physical_compaction(next.borrow());
            }
        }
    });
    (change_stream, admitted_stream)
}

/// Returns the entities of `present` (ascending) that take part in `epoch`, with their standing
/// after it.
fn standing_after(
    standings: &mut Standings,
    limits: &EntityLimits,
    epoch: u64,
    present: Vec<Entity>,
) -> Vec<(Entity, Standing)> {
    let (mut cursor, storage) = standings.cursor();
    let admitted = present.into_iter().filter_map(|entity| {
        cursor.seek_key(&storage, &entity);
        let mut standing: Option<Standing> = None;
        if cursor.get_key(&storage) == Some(&entity) {
            cursor.map_times(&storage, |&since, &change| {
                if since <= epoch {
                    standing = standing.max(Some(change));
                }
            });
        }
        Some((entity, limits.admit(standing, epoch)?))
    });
    admitted.collect()
}

/// Passes the records of admitted entities, without the entities, once all admissions of the epoch
/// are known.
pub(super) fn pass<'scope>(
    closed: StreamVec<'scope, u64, Closed>,
    admitted: StreamVec<'scope, u64, Vec<Entity>>,
    columns: Arc<[(f64, f64)]>,
    fault: Fault,
) -> StreamVec<'scope, u64, Records> {
    closed.binary_frontier(admitted, Pipeline, Pipeline, "Pass", move |_capability, _info| {
        let mut epochs = OpenEpochs::new(fault);
        move |(closed, closed_frontier), (admitted, admitted_frontier), output| {
            let new = || (Vec::new(), Vec::new());
            epochs.collect(closed, new, |(held, _), closed| held.push(closed));
            epochs.collect(admitted, new, |(_, admitted), entities| admitted.extend(entities));
            epochs.on_close([closed_frontier, admitted_frontier], |run| {
                for ClosedEpoch { epoch, times: [time], data: (held, admitted) } in run {
                    let mut session = output.session(time);
                    held.iter().for_each(|held| {
                        give_batches(held, &admitted, epoch, &columns, |batch| session.give(batch))
                    });
                }
                Ok(())
            });
        }
    })
}

fn give_batches(
    held: &Closed,
    admitted: &[Entity],
    epoch: u64,
    columns: &[(f64, f64)],
    mut give: impl FnMut(Records),
) {
    let room = || Records::with_room(BATCH.min(admitted.len()), columns.len());
    let mut batch = room();
    held.for_each(admitted, columns, |key, row| {
        batch.keys.push(key);
        batch.epochs.push(epoch);
        batch.values.extend_from_slice(row);
        if batch.len() == BATCH {
            give(std::mem::replace(&mut batch, room()));
        }
    });
    if !batch.is_empty() {
        give(batch);
    }
}
