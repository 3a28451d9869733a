//! `bound`: limits each entity to at most m records in each of at most k epochs that are at least b
//! apart.
//!
//! # The rule
//! Let R be the records of one entity, each with its epoch, its key and its position in the stream.
//!
//! 1. *Within an epoch.* [`Several::Keep`] keeps the m records with the lowest positions.
//!    [`Several::Average`] replaces the records of each key by their mean and keeps the means of
//!    the m keys whose first records have the lowest positions.
//! 2. *Over epochs.* In order of epochs, the entity takes part in its first one, and then in every
//!    one that is at least b after the last in which it took part, until it has taken part in k
//!    ([`EntityLimits::admit`]).
//! 3. The kept records of the epochs in which it takes part pass. All others are dropped.
//!
//! # What neighbours can do
//! **Theorem.** Let two streams differ in the records of one entity, which are replaced by any
//! other records of the same entity or removed. Positions, and so the epochs of other entities'
//! records, are equal. Then every other entity contributes the same records to both bounded
//! streams. In each of them this entity contributes to at most k epochs, at least b apart, with at
//! most m records each. If the entity's records are removed (zero-out), the bounded stream changes
//! in at most k epochs, at least b apart, by at most m records each.
//!
//! *Proof.* The rule treats each entity by itself: which of its records pass is a function of its
//! own records, their epochs, the order of their positions, and k, b and m. The epoch of a record
//! depends on its own event time and on the public clock
//! ([`Schedule::assign`](hushflow_mechanism::epochs::Schedule::assign)). So the records of other
//! entities have equal epochs and positions in both streams, and the same ones pass. For the one
//! entity, step 1 keeps at most m records in an epoch. Step 2 admits an epoch only if fewer than k
//! were admitted before and the last of these is at least b earlier. Once removed, the entity
//! contributes nothing to one of the streams. ∎
//!
//! So the joint sensitivity is that of (k, b)-participation, times m. Number the records that an
//! entity keeps in an epoch by 1 … m, and let layer r hold the r-th of every epoch. A layer has at
//! most one record in an epoch, at the steps of a pattern of which some may be skipped. So within
//! each layer the encoded difference of two neighbours is at most s, the sensitivity for single
//! records of `sensitivity/joint_participation.rs`. By the triangle inequality the sum over layers
//! is at most m·s. Equal records attain it.
//!
//! Neighbours that replace records in place keep keys, event times and entities public. Rules 1 and
//! 2 do not read values, so which records pass is a function of public data and exact counts stay
//! equal.
//!
//! Two streams that differ in *one record* of an entity are not one step apart under zero-out:
//! without that record, a later one of the same entity may pass that was dropped before. The head
//! of `accounting/adjacency.rs` proves how many steps lead from one to the other, and `attack`
//! tests it.
//!
//! Rule 2 is **online**: admission to an epoch depends on epochs up to it. So a released epoch
//! never changes, and a stream that adapts to releases is bounded like any other.
//!
//! # State
//! One [`Standing`] for every entity that ever took part: the number of participations and the last
//! epoch. Spent participations must be known for as long as the stream runs. The differential
//! collection in `admit` compacts to some 50 bytes an entity, on the worker that owns it.

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

/// Records that passed [`Bound`]. Private, like all records.
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

/// Output of [`Bound`].
pub struct Bounded<'scope> {
    /// The records that pass, sent once their epoch has closed.
    pub records: StreamVec<'scope, u64, BoundedRecords>,
    /// The entities that take part in an epoch, at its time. Private; needed for a restart.
    pub admitted: StreamVec<'scope, u64, Vec<Entity>>,
}

/// Bounds entities.
pub trait Bound<'scope> {
    /// Passes at most m records of each entity in each of at most k epochs, at least b epochs
    /// apart. The head of this module's source states the rule and proves its sensitivity. Records
    /// must come at the time of their epoch, with entities and positions. A batch without them
    /// raises the fault, as does a measurement that protects no entities.
    ///
    /// An entity with two records in epoch 1 and one in each of the next two; it may take part in
    /// every other epoch:
    ///
    /// ```
    #[doc = include_str!("../../doc/setup.txt")]
    /// let batch = Records {
    ///     keys: vec![0; 4],
    ///     epochs: vec![1, 1, 2, 3],
    ///     values: vec![0.5, 0.25, 0.125, 0.75],
    ///     entities: vec![Entity(7); 4],
    ///     positions: vec![0, 1, 2, 3],
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
        let gathered = gather(address(self, setup.columns.len(), fault.clone()), &setup, fault.clone());
        let admitted = admitted(gathered.present, &setup, fault.clone());
        let measurement = measurement.id();
        let records = pass(gathered.closed, admitted.clone(), setup.columns, fault)
            .map(move |records| BoundedRecords { measurement, records });
        Bounded { records, admitted }
    }
}
