//! The second half of `bound`: who may take part, as a differential computation, and the records of those who may.

use super::BoundSetup;
use super::held::Closed;
use crate::Records;
use crate::entity::{Entity, EntityLimits, Standing};
use differential_dataflow::AsCollection;
use differential_dataflow::difference::{IsZero, Semigroup};
use differential_dataflow::operators::arrange::arrangement::arrange_core;
use differential_dataflow::operators::arrange::{Arranged, TraceAgent};
use differential_dataflow::operators::iterate::Variable;
use differential_dataflow::trace::implementations::{ContainerChunker, KeyBatcher, KeyBuilder, KeySpine};
use differential_dataflow::trace::{Cursor, TraceReader};
use std::collections::BTreeMap;
use std::sync::Arc;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Concat;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::ToStream;
use timely::progress::Antichain;

/// The most records of a batch.
const BATCH: usize = 8192;

/// Entities, each with its standing as difference.
type Standings = TraceAgent<KeySpine<Entity, u64, Standing>>;

/// An entity takes part: how it stands from then on.
type Update = ((Entity, ()), u64, Standing);

/// A standing never goes back, so differences add up to the latest: nothing is ever taken out of the collection, and an entity
/// that took part many times compacts to one update.
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

/// Entities that take part, at the time of the epoch in which they do.
///
/// With S(t) the standings before epoch t, and P(t) who is present in it, the collection is the recursion
///
/// ```text
/// S(t+1) = S(t) + admitted(S(t), P(t))
/// ```
///
/// a variable that is fed back one epoch later. Only entities of S(t) that are present are looked at, in their order; what changes
/// is what was admitted. Each worker arranges the standings of the entities that it owns, and nothing travels.
pub(super) fn admitted<'scope>(
    present: StreamVec<'scope, u64, Vec<Entity>>,
    setup: &BoundSetup,
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
    let (changes, admitted) = admit(present, standings, setup.limits);
    variable.set(changes.as_collection());
    admitted
}

/// Admits who is present by how they stand, once that is known: the changes of their standings, and who they are, ascending.
fn admit<'scope>(
    present: StreamVec<'scope, u64, Vec<Entity>>,
    standings: Arranged<'scope, Standings>,
    limits: EntityLimits,
) -> (StreamVec<'scope, u64, Update>, StreamVec<'scope, u64, Vec<Entity>>) {
    let Arranged { stream, trace: mut standings } = standings;
    let mut builder = OperatorBuilder::new("Admit".to_owned(), present.scope());
    let mut present = builder.new_input(present, Pipeline);
    let mut known = builder.new_input(stream, Pipeline);
    let (changes, change_stream) = builder.new_output::<Vec<Update>>();
    let (admitted, admitted_stream) = builder.new_output::<Vec<Vec<Entity>>>();
    let (mut changes, mut admitted) = (OutputBuilder::from(changes), OutputBuilder::from(admitted));
    builder.build(move |_capabilities| {
        let mut open = BTreeMap::new();
        move |frontiers| {
            let (mut changes, mut admitted) = (changes.activate(), admitted.activate());
            present.for_each_time(|time, batches| {
                let (_, there) = open
                    .entry(*time.time())
                    .or_insert_with(|| ([time.retain(0), time.retain(1)], Vec::new()));
                there.extend(batches.flat_map(|batch| batch.drain(..)).flatten());
            });
            // What is in them is in the trace.
            known.for_each_time(|_, batches| batches.for_each(Vec::clear));
            while let Some(entry) = open.first_entry()
                && frontiers.iter().all(|frontier| !frontier.less_equal(entry.key()))
            {
                let (epoch, ([change_time, time], there)) = entry.remove_entry();
                let after = standing_after(&mut standings, &limits, epoch, there);
                let update = |&(entity, standing): &_| ((entity, ()), epoch, standing);
                changes.session(&change_time).give_iterator(after.iter().map(update));
                let entities: Vec<Entity> = after.into_iter().map(|(entity, _)| entity).collect();
                admitted.session(&time).give(entities);
            }
            // Nobody asks for standings before the first epoch that may still close.
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

/// Those of `present`, ascending, who take part in `epoch`, and how they stand after it.
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

/// Lets the records of admitted entities pass, once all who are admitted to the epoch are known. Whose they are is no longer said.
pub(super) fn pass<'scope>(
    closed: StreamVec<'scope, u64, Closed>,
    admitted: StreamVec<'scope, u64, Vec<Entity>>,
    columns: Arc<[(f64, f64)]>,
) -> StreamVec<'scope, u64, Records> {
    closed.binary_frontier(admitted, Pipeline, Pipeline, "Pass", move |_capability, _info| {
        let mut open = BTreeMap::new();
        let mut known: BTreeMap<u64, Vec<Entity>> = BTreeMap::new();
        move |(closed, closed_frontier), (admitted, admitted_frontier), output| {
            closed.for_each_time(|time, batches| {
                let (_, held) = open.entry(*time.time()).or_insert_with(|| (time.retain(0), Vec::new()));
                held.extend(batches.flat_map(|batch| batch.drain(..)));
            });
            admitted.for_each_time(|time, batches| {
                known
                    .entry(*time.time())
                    .or_default()
                    .extend(batches.flat_map(|batch| batch.drain(..)).flatten());
            });
            while let Some(entry) = open.first_entry()
                && !closed_frontier.less_equal(entry.key())
                && !admitted_frontier.less_equal(entry.key())
            {
                let (epoch, (time, held)) = entry.remove_entry();
                let admitted = known.remove(&epoch).unwrap_or_default();
                let mut session = output.session(&time);
                held.iter().for_each(|held| {
                    give_batches(held, &admitted, epoch, &columns, |batch| session.give(batch))
                });
            }
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
