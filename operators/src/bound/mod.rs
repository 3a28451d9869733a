//! `bound`: limits each entity to at most m records in each of at most k epochs that are at least b
//! apart.
//!
//! # The rule
//! Let R be the records of one entity, each with its epoch, its key and its position in the stream.
//!
//! 1. *Within an epoch.* [`RepeatPolicy::Keep`] keeps the m records with the lowest positions.
//!    [`RepeatPolicy::Average`] replaces the records of each key by their mean and keeps the means
//!    of the m keys whose first records have the lowest positions.
//! 2. *Over epochs.* In order of epochs, the entity takes part in its first one. Then it takes part
//!    in every one that is at least b after the last in which it took part, until it has taken part
//!    in k ([`EntityLimits::admit`]).
//! 3. The kept records of the epochs in which it takes part pass. All others are dropped.
//! 4. *Sent records.* With a limit M ([`EntityLimits::sent_limit`]) the records that step 1 would
//!    keep with M instead of m are counted by key, in the epochs in which the entity takes part.
//!    Only their number passes: see the head of `mechanism/sent.rs` for its sensitivity.
//!
//! # What neighbours can do
//! **Theorem.** Let two streams differ in the records of one entity, which are replaced by any
//! other records of the same entity or removed. Positions, and so the epochs of other entities'
//! records, are equal. Then every other entity contributes the same records to both bounded
//! streams. In each of them this entity contributes to at most k epochs, at least b apart, with at
//! most m records each. If the entity's records are removed (zero-out), the bounded stream changes
//! in at most k epochs, at least b apart, by at most m records each.
//!
//! *Proof.* The rule treats each entity by itself: the records that pass are a function of its own
//! records, their epochs, the order of their positions, and k, b and m. The epoch of a record
//! depends on its own event time and on the public clock
//! ([`Schedule::assign`](hushflow_mechanism::epochs::Schedule::assign)). So the records of other
//! entities have equal epochs and positions in both streams, and the same ones pass. For the one
//! entity, step 1 keeps at most m records in an epoch. Step 2 admits an epoch only if fewer than k
//! were admitted before and the last of these is at least b earlier. Once removed, the entity
//! contributes nothing to one of the streams. ∎
//!
//! So the joint sensitivity is that of (k, b)-participation, times m. Number the records that an
//! entity keeps in an epoch by 1 … m, and let layer r hold the r-th of every epoch. A layer has at
//! most one record in an epoch, at the steps of a pattern, some of which may be skipped. So within
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
//! Rule 2 is **online**: admission to an epoch depends only on this epoch and earlier ones. So a
//! released epoch never changes, and a stream that adapts to releases is bounded like any other.
//!
//! # State
//! There is one [`EntityHistory`] for every entity that ever took part: its number of
//! participations and its last epoch. Used participations must be remembered as long as the stream
//! runs. The differential collection in `admit` compacts to some 50 bytes per entity, on the worker
//! that owns the entity.

mod admit;
#[cfg(test)]
mod attack;
mod buffer;
mod gather;
#[cfg(test)]
mod tests;

use crate::measurement::{BoundSetup, MeasurementId};
use crate::{Fault, Measurement, Records};
use admit::{admitted, pass};
use gather::{address, gather};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::num::NonZeroU32;
use std::ops::Deref;
use std::sync::Arc;
use timely::dataflow::StreamVec;

/// A 128-bit hash that identifies an entity. Private: `Debug` does not print it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Entity(pub u128);

impl Entity {
    /// Returns which of `workers` holds all records and the history of the entity.
    pub fn owner(self, workers: usize) -> usize {
        // Multiply, because tables use the low bits of the same hash. The upper half times the
        // number of workers fits for fewer than 2³² workers.
        let folded = (self.0 ^ self.0 >> 64) as u64;
        let scattered = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        ((scattered * workers as u64) >> 32) as usize
    }
}

/// A table by entity. An entity is already a hash, so it is not hashed again.
pub type ByEntity<T> = HashMap<Entity, T, BuildHasherDefault<EntityHasher>>;

/// Returns the low 64 bits of an entity as its hash.
#[derive(Clone, Copy, Debug, Default)]
pub struct EntityHasher(u64);

impl Hasher for EntityHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = self.0.rotate_left(32) ^ u64::from_le_bytes(word);
        }
    }

    fn write_u128(&mut self, number: u128) {
        self.0 = number as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl fmt::Debug for Entity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entity(private)")
    }
}

/// How often an entity may take part, and with how many records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntityLimits {
    /// k: maximum number of epochs in which it takes part, at least 1.
    pub participations: u64,
    /// b: minimum distance of two of these epochs, at least 1.
    pub min_separation: u64,
    /// m: maximum number of records in one epoch, at least 1.
    pub records_per_epoch: u32,
    /// Treatment of several records of an entity in an epoch.
    #[serde(rename = "several")]
    pub repeat_policy: RepeatPolicy,
    /// M: maximum number of records of an entity in an epoch that the number of sent records
    /// counts. It includes those that pass. `None` if that number is not released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_limit: Option<NonZeroU32>,
}

/// Treatment of several records of an entity in an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RepeatPolicy {
    /// Keeps the first ones in the stream.
    #[default]
    Keep,
    /// Replaces records of one key by their mean, and keeps the means of the keys that come first
    /// in the stream.
    Average,
}

/// The state of an entity that the rule needs. Private: `Debug` does not print it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EntityHistory {
    /// Number of epochs in which it took part.
    pub participations: u64,
    /// The last of these epochs.
    pub last: u64,
}

impl fmt::Debug for EntityHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EntityHistory(private)")
    }
}

impl EntityLimits {
    /// Limits of one record per entity.
    pub(crate) const LEAST: Self = Self {
        participations: 1,
        min_separation: 1,
        records_per_epoch: 1,
        repeat_policy: RepeatPolicy::Keep,
        sent_limit: None,
    };

    /// Number of records of an entity in an epoch that must be buffered.
    fn buffered_records(&self) -> u32 {
        self.sent_limit.map_or(self.records_per_epoch, |most| most.get().max(self.records_per_epoch))
    }

    /// Maximum number of epochs in which an entity takes part, out of this number of epochs; `None`
    /// for a stream without end.
    pub(crate) fn most_participations(&self, epochs: Option<u64>) -> u64 {
        let within = |epochs: u64| epochs.div_ceil(self.min_separation.max(1));
        epochs.map_or(self.participations, |epochs| within(epochs).min(self.participations))
    }

    /// Applies the rule: returns the history of an entity after `epoch`, or `None` if it may not
    /// take part. An entity takes part in every epoch in which it may.
    ///
    /// ```
    /// use hushflow_operators::{EntityLimits, RepeatPolicy, EntityHistory};
    ///
    /// let limits = EntityLimits {
    ///     participations: 2,
    ///     min_separation: 3,
    ///     records_per_epoch: 1,
    ///     repeat_policy: RepeatPolicy::Keep,
    ///     sent_limit: None,
    /// };
    /// let first = limits.admit(None, 5);
    /// assert_eq!(first, Some(EntityHistory { participations: 1, last: 5 }));
    /// assert_eq!(limits.admit(first, 7), None); // too soon
    /// let second = limits.admit(first, 8);
    /// assert_eq!(limits.admit(second, 100), None); // twice is enough
    /// ```
    pub fn admit(&self, history: Option<EntityHistory>, epoch: u64) -> Option<EntityHistory> {
        let EntityHistory { participations, last } = match history {
            None => {
                return (self.participations > 0).then_some(EntityHistory { participations: 1, last: epoch });
            }
            Some(history) => history,
        };
        let apart = epoch > last && epoch - last >= self.min_separation;
        (apart && participations < self.participations)
            .then_some(EntityHistory { participations: participations + 1, last: epoch })
    }
}

/// Records that passed [`BoundEntities`], with their positions and without their entities. Private,
/// like all records.
#[derive(Clone)]
pub struct BoundedRecords {
    pub(crate) measurement: MeasurementId,
    pub(crate) records: Records,
    /// Number of sent records by key in all batches of the epoch, which includes `records`.
    pub(crate) sent: BTreeMap<u32, u64>,
    /// Pairs of a key and an entity with records of that key, for all batches of an epoch. Empty
    /// unless entities are counted to discover keys.
    pub(crate) key_entities: Vec<(u32, Entity)>,
}

impl BoundedRecords {
    /// Returns the number of sent records by key; empty without a
    /// [limit](EntityLimits::sent_limit). The number covers all batches of an epoch together.
    pub fn sent(&self) -> &BTreeMap<u32, u64> {
        &self.sent
    }
}

impl Deref for BoundedRecords {
    type Target = Records;

    fn deref(&self) -> &Records {
        &self.records
    }
}

/// Parameters of [`BoundEntities`]. Made from the [`Measurement`] or
/// [`Windows`](crate::Windows) of the releases.
#[derive(Clone)]
pub struct BoundPlan {
    pub(crate) id: MeasurementId,
    /// `None` if single records are protected.
    pub(crate) setup: Option<BoundSetup>,
}

impl From<&Measurement> for BoundPlan {
    fn from(measurement: &Measurement) -> Self {
        Self { id: measurement.id(), setup: measurement.bound_setup() }
    }
}

/// Output of [`BoundEntities`].
pub struct BoundOutput<'scope> {
    /// The records that pass, sent once their epoch has closed.
    pub records: StreamVec<'scope, u64, BoundedRecords>,
    /// The entities that take part in an epoch, at its time. Private; needed for a restart.
    pub admitted: StreamVec<'scope, u64, Vec<Entity>>,
}

/// Bounds the contribution of each entity.
pub trait BoundEntities<'scope> {
    /// Passes at most m records of each entity in each of at most k epochs, at least b epochs
    /// apart. The head of this module's source states the rule and proves its sensitivity. Records
    /// must come at the time of their epoch, with entities and positions. A batch without them
    /// raises the fault. `plan` is the [`Measurement`] of the release, or its
    /// [`Windows`](crate::Windows); one that protects no entities raises the fault.
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
    /// let limits = EntityLimits {
    ///     participations: 4,
    ///     min_separation: 2,
    ///     records_per_epoch: 1,
    ///     repeat_policy: RepeatPolicy::Keep,
    ///     sent_limit: None,
    /// };
    /// # let strategies = mechanism.strategies().clone();
    /// # let schema = "4x2+".parse()?;
    /// # let mechanism = MatrixMechanism::with_participation(parameters, strategies, schema, 8)?;
    /// let measurement = Measurement::of_columns(mechanism, [(-1.0, 1.0)]);
    /// let measurement = measurement.entities(limits).build()?;
    /// timely::example(move |scope| {
    ///     let records = vec![batch].to_stream(scope).container::<Vec<_>>();
    ///     let bounded = records.epochs().bound(&measurement, fault).records;
    ///     bounded.inspect_time(move |&epoch, batch| {
    ///         sender.send((epoch, batch.values.clone())).expect("a receiver");
    ///     });
    /// });
    /// assert_eq!(receiver.iter().collect::<Vec<_>>(), [(1, vec![0.5]), (3, vec![0.75])]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn bound(self, plan: impl Into<BoundPlan>, fault: Fault) -> BoundOutput<'scope>;
}

impl<'scope> BoundEntities<'scope> for StreamVec<'scope, u64, Records> {
    fn bound(self, plan: impl Into<BoundPlan>, fault: Fault) -> BoundOutput<'scope> {
        let BoundPlan { id, setup } = plan.into();
        let setup = setup.unwrap_or_else(|| {
            fault.raise("records are to be bounded under a measurement that protects no entities: give it their limits");
            BoundSetup { limits: EntityLimits::LEAST, discovers: false, by_column: false, dimension: 0, columns: Arc::default(), histories: Arc::default(), first_epoch: 1 }
        });
        let gathered = gather(address(self, setup.columns.len(), fault.clone()), &setup, fault.clone());
        let admitted = admitted(gathered.present, &setup, fault.clone());
        let records = pass(gathered.closed, admitted.clone(), &setup, id, fault);
        BoundOutput { records, admitted }
    }
}
