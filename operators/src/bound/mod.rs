//! `bound`: how much of the stream one entity may be: at most m records in each of at most k epochs, at least b apart.
//!
//! # The rule
//! Let R be the records of one entity, each with its epoch, its key and its place in the stream.
//!
//! 1. *Within an epoch.* Of its records in an epoch the m of the lowest places are kept ([`Several::Keep`]); or those of each
//!    key become one record, their mean, and the means of the m keys whose first records have the lowest places are kept
//!    ([`Several::Average`]).
//! 2. *Over epochs.* The epochs in which it has records are gone through in their order. It takes part in the first, and then in
//!    every one that is at least b after the last in which it took part, until it has taken part in k
//!    ([`EntityLimits::admit`]).
//! 3. The kept records of the epochs in which it takes part pass; all others are cut.
//!
//! # What neighbours can do
//! **Theorem.** Let two streams differ in the records of one entity, replaced at will by others of the same entity or by none;
//! places, and so the epoch of every record of somebody else, are the same. Then every other entity's part of the bounded
//! streams is the same, and this entity's lies in each of the two in at most k epochs, at least b apart, with at most m records
//! in each. Between a stream and the one from which the entity's records are taken away (zero-out) the bounded stream changes in
//! at most k epochs, at least b apart, by at most m records each.
//!
//! *Proof.* The rule is applied to every entity by itself: what passes of it is a function of its own records, their epochs
//! and the order of their places, and of k, b and m. The epoch of a record depends on its own event time and on the public clock
//! ([`Schedule::assign`](hushflow_mechanism::epochs::Schedule::assign)), so the records of others are the same in both streams, in
//! the same epochs and places, and the same of them passes. Of the one entity, step 1 leaves at most m records in an epoch. Step
//! 2 admits an epoch only if fewer than k were admitted before and the last of these is at least b earlier. Taken away, the entity
//! leaves nothing in one of the streams. ∎
//!
//! So the joint sensitivity is that of (k, b)-participation, times m: number the records that an entity keeps in an epoch by
//! 1 … m, and let layer r hold the r-th of every epoch. A layer has at most one record in an epoch, at the steps of a
//! pattern of which some may be skipped, so the encoded difference of two neighbours is within each layer at most s, the
//! sensitivity for single records of `sensitivity/joint_participation.rs`, and the sum over layers at most m·s by the triangle
//! inequality. It is attained by m equal records.
//!
//! Under neighbours that replace records in place, where keys, event times and whose a row is are public, which records pass is
//! a function of what is public, in both modes: values play no part in rules 1 and 2. So exact counts stay the same.
//!
//! Two streams that differ in *one record* of an entity are not neighbours of one step under zero-out: with the record
//! gone, a later one of the same entity may pass that was cut before. How many steps lead from one to the other is proved at
//! the head of `accounting/adjacency.rs`, and attacked in `attack`.
//!
//! Rule 2 is **online**: what is admitted to an epoch depends on epochs up to it, so an epoch that was released never
//! changes, and a stream that adapts to releases is bounded as any other.
//!
//! # What is kept
//! One [`Standing`] for every entity that ever took part: how often, and the last time. It can't be less: who has spent its
//! participations must be known for as long as the stream runs. The differential collection in `admit` compacts to that, some 50
//! bytes an entity, on the worker that owns it.

mod admit;
#[cfg(test)]
mod attack;
mod gather;
mod held;
#[cfg(test)]
mod tests;

use crate::entity::{Entity, EntityLimits};

use crate::measurement::{BoundSetup, MeasurementId};
use crate::{Fault, Measurement, Records};
use admit::{admitted, pass};
use gather::{address, gather};
use std::ops::Deref;
use std::sync::Arc;
use timely::dataflow::StreamVec;
use timely::dataflow::operators::vec::Map;

/// Records that have passed [`Bound`]. Private data, as records are.
#[derive(Clone)]
pub struct BoundedRecords {
    pub(crate) measurement: MeasurementId,
    pub(crate) records: Records,
}

impl Deref for BoundedRecords {
    type Target = Records;

    fn deref(&self) -> &Records {
        &self.records
    }
}

/// What bounding gives.
pub struct Bounded<'scope> {
    /// The records that pass, once their epoch has closed.
    pub records: StreamVec<'scope, u64, BoundedRecords>,
    /// Who takes part in an epoch, at its time: what a restart needs, and private.
    pub admitted: StreamVec<'scope, u64, Vec<Entity>>,
}

/// Bounds entities.
pub trait Bound<'scope> {
    /// Lets of every entity at most m records in each of at most k epochs pass, at least b epochs apart; the rule and what
    /// follows from it are at the head of this module's source. Records come at the time of their epoch, with their entities and
    /// places. A batch that lacks them raises the fault, as does a measurement that protects no entities.
    ///
    /// One entity with two records in epoch 1 and one in each of the next two, of which it may take part in every other:
    ///
    /// ```
    #[doc = include_str!("../../doc/setup.txt")]
    /// let batch = Records {
    ///     keys: vec![0; 4],
    ///     epochs: vec![1, 1, 2, 3],
    ///     values: vec![0.5, 0.25, 0.125, 0.75],
    ///     entities: vec![Entity(7); 4],
    ///     places: vec![0, 1, 2, 3],
    /// };
    /// let limits = EntityLimits { participations: 4, min_separation: 2, records_per_epoch: 1, several: Several::Keep };
    /// # let strategies = mechanism.strategies().clone();
    /// # let mechanism = MatrixMechanism::with_participation(parameters, strategies, "4x2+".parse()?, 8)?;
    /// let measurement = Measurement::of_columns(mechanism, [(-1.0, 1.0)]).entities(limits).build()?;
    /// timely::example(move |scope| {
    ///     let records = vec![batch].to_stream(scope).container::<Vec<_>>();
    ///     let bounded = records.epochs().bound(&measurement, fault).records;
    ///     bounded.inspect_time(move |epoch, batch| seen.send((*epoch, batch.values.clone())).expect("heard"));
    /// });
    /// assert_eq!(all_seen.iter().collect::<Vec<_>>(), [(1, vec![0.5]), (3, vec![0.75])]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn bound(self, measurement: &Measurement, fault: Fault) -> Bounded<'scope>;
}

impl<'scope> Bound<'scope> for StreamVec<'scope, u64, Records> {
    fn bound(self, measurement: &Measurement, fault: Fault) -> Bounded<'scope> {
        let setup = measurement.bound_setup().unwrap_or_else(|| {
            fault.raise("records are to be bounded under a measurement that protects no entities: give it their limits");
            BoundSetup { limits: EntityLimits::LEAST, columns: Arc::default(), standings: Arc::default(), first_epoch: 1 }
        });
        let gathered = gather(address(self, setup.columns.len(), fault.clone()), &setup, fault);
        let admitted = admitted(gathered.present, &setup);
        let measurement = measurement.id();
        let records = pass(gathered.closed, admitted.clone(), setup.columns)
            .map(move |records| BoundedRecords { measurement, records });
        Bounded { records, admitted }
    }
}
