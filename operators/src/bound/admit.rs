//! The second half of `bound`: who may take part, as a differential computation, and the records of those who may.

use super::BoundSetup;
use super::limits::{Entity, EntityLimits, Standing};
use crate::Records;
use differential_dataflow::operators::iterate::Variable;
use differential_dataflow::{AsCollection, VecCollection};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::hash::BuildHasherDefault;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Concat;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::{Map, ToStream};
use zeroize::Zeroize;

/// What is known of an entity at an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
enum Fact {
    /// What its past leaves behind.
    Stands(Standing),
    /// It has records in this epoch.
    Present(u64),
}

type Update = ((Entity, Fact), u64, isize);

/// Entities that take part, at the time of the epoch in which they do.
///
/// With S(t) the standings before epoch t, and P(t) who is present in it, the collection is the recursion
///
/// ```text
/// S(t+1) = admitted(S(t), P(t))
/// ```
///
/// a variable that is fed back one epoch later. P(t) is inserted at t and taken back at t+1, so what the arrangements
/// keep, once compacted, is one standing of every entity. Only entities of S(t) that are present are looked at.
pub(super) fn admitted<'scope>(
    present: StreamVec<'scope, u64, Vec<Entity>>,
    setup: &BoundSetup,
) -> StreamVec<'scope, u64, Vec<Entity>> {
    let scope = present.scope();
    let limits = setup.limits;
    let facts = present.flat_map(|entities| entities);
    let transient = facts.unary(Pipeline, "Present", move |_capability, _info| {
        move |input, output| {
            input.for_each_time(|time, batches| {
                let epoch = *time.time();
                let there = batches.flat_map(|batch| batch.drain(..)).flat_map(|entity| {
                    let fact = (entity, Fact::Present(epoch));
                    [(fact, epoch, 1), (fact, epoch + 1, -1)]
                });
                output.session(&time).give_iterator(there);
            });
        }
    });
    // Every worker brings the standings of its own share of the entities.
    let (index, peers, first) = (scope.index(), scope.peers(), setup.first_epoch);
    let standings = setup.standings.clone();
    let before = (index..standings.len()).step_by(peers).flat_map(move |at| {
        let (entity, standing) = standings[at];
        let fact = (entity, Fact::Stands(standing));
        [(fact, first, 1), (fact, first + 1, -1)]
    });
    let before: StreamVec<'scope, u64, Update> = before.to_stream(scope).container::<Vec<_>>();
    let (variable, standing): (_, VecCollection<'scope, u64, (Entity, Fact), isize>) =
        Variable::new(scope, 1);
    let after = standing.concat(transient.concat(before).as_collection()).reduce_named(
        "Admit",
        move |_entity, facts, after| {
            after.extend(
                stands_after(&limits, facts.iter().map(|(fact, _)| **fact)).map(|standing| (standing, 1)),
            );
        },
    );
    variable.set(after.clone().map(|(entity, standing)| (entity, Fact::Stands(standing))));
    at_their_epochs(after.inner)
}

/// An entity's standing after an epoch of which these facts are known.
fn stands_after(limits: &EntityLimits, facts: impl Iterator<Item = Fact>) -> Option<Standing> {
    let (mut standing, mut present) = (None, None);
    for fact in facts {
        match fact {
            Fact::Stands(known) => standing = Some(known),
            Fact::Present(epoch) => present = Some(epoch),
        }
    }
    present.and_then(|epoch| limits.admit(standing, epoch)).or(standing)
}

/// Those whose standing changes because they take part, each at the time of that epoch.
fn at_their_epochs<'scope>(
    changes: StreamVec<'scope, u64, ((Entity, Standing), u64, isize)>,
) -> StreamVec<'scope, u64, Vec<Entity>> {
    changes.unary(Pipeline, "Admitted", move |_capability, _info| {
        move |input, output| {
            input.for_each_time(|time, batches| {
                let mut epochs: BTreeMap<u64, Vec<Entity>> = BTreeMap::new();
                for ((entity, standing), epoch, change) in batches.flat_map(|batch| batch.drain(..)) {
                    if change > 0 && standing.last == epoch {
                        epochs.entry(epoch).or_default().push(entity);
                    }
                }
                for (epoch, entities) in epochs {
                    output.session(&time.delayed(&epoch, 0)).give(entities);
                }
            });
        }
    })
}

/// Lets the records of admitted entities pass, once all who are admitted to the epoch are known.
pub(super) fn admit<'scope>(
    records: StreamVec<'scope, u64, Records>,
    admitted: StreamVec<'scope, u64, Vec<Entity>>,
    dimension: usize,
) -> StreamVec<'scope, u64, Records> {
    records.binary_frontier(admitted, Pipeline, Pipeline, "Admit", move |_capability, _info| {
        let mut open = BTreeMap::new();
        let mut known: BTreeMap<u64, Admitted> = BTreeMap::new();
        move |(records, records_frontier), (admitted, admitted_frontier), output| {
            records.for_each_time(|time, batches| {
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
                && !records_frontier.less_equal(entry.key())
                && !admitted_frontier.less_equal(entry.key())
            {
                let (epoch, (time, held)) = entry.remove_entry();
                let admitted = known.remove(&epoch).unwrap_or_default();
                let passed = held.into_iter().map(|batch| those_of(&admitted, batch, dimension));
                output.session(&time).give_iterator(passed.filter(|batch| !batch.is_empty()));
            }
        }
    })
}

type Admitted = HashSet<Entity, BuildHasherDefault<super::held::Identity>>;

/// The records of admitted entities, whose they are no longer said.
fn those_of(admitted: &Admitted, mut batch: Records, dimension: usize) -> Records {
    let mut passed = Records::default();
    let rows = batch.values.chunks_exact(dimension);
    for ((entity, row), (&key, &epoch)) in
        batch.entities.iter().zip(rows).zip(batch.keys.iter().zip(&batch.epochs))
    {
        if admitted.contains(entity) {
            passed.keys.push(key);
            passed.epochs.push(epoch);
            passed.values.extend_from_slice(row);
        }
    }
    batch.values.zeroize();
    passed
}
