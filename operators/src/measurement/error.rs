//! Reasons why a measurement cannot be made.

use crate::EntityLimits;
use hushflow_mechanism::mechanism::MechanismError;
use hushflow_mechanism::moments::ClipError;
use hushflow_mechanism::participation::Participation;
use std::num::NonZeroU32;
use thiserror::Error;

/// Reasons why a measurement cannot be made.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum MeasurementError {
    /// Unusable bounds.
    #[error(transparent)]
    Clip(#[from] ClipError),
    /// The bounds do not match the mechanism's records.
    #[error(transparent)]
    Mechanism(#[from] MechanismError),
    /// The limits allow entities to take part more often, closer together or with more records at
    /// once than the noise covers.
    #[error(
        "the noise is for entities that take part as {participation}, with {records} records at once; the limits allow \
         {limits:?}: make the mechanism with the participation of the limits, written {}x{}+, and for_records_at_once; \
         if keys are discovered, the mechanism and the discovery are for the records of all epochs at once",
        limits.participations, limits.min_separation
    )]
    Entities {
        /// The limits.
        limits: EntityLimits,
        /// The steps of an entity that the mechanism accounts for.
        participation: Participation,
        /// The records of an entity in a step that the mechanism accounts for.
        records: u32,
    },
    /// The limits count another number of sent records than the noise covers.
    #[error(
        "the noise is for a sent_limit of {}, the limits of entities have {}: give both the same",
        or_none(noise),
        or_none(limits)
    )]
    Sent {
        /// M of the mechanism's layout.
        noise: Option<NonZeroU32>,
        /// M of the limits.
        limits: Option<NonZeroU32>,
    },
    /// Without histories after a restart, each entity could take part again from the start.
    #[error(
        "a measurement that resumes at epoch {first_epoch} and protects entities needs `histories`, even if they are \
         empty"
    )]
    Histories {
        /// The first epoch to release.
        first_epoch: u64,
    },
    /// Sent records are counted under keys that are discovered.
    #[error("the limits of entities have a sent_limit, and keys are discovered: leave one of them out")]
    SentDiscovery,
    /// Keys are discovered into another number of slots.
    #[error(
        "keys are discovered into {slots} slots, and the measurement has {keys} keys: give the same number"
    )]
    Discovery {
        /// Slots of the discovery.
        slots: u32,
        /// Keys of the measurement.
        keys: u32,
    },
    /// There is no epoch 0.
    #[error(
        "the first epoch is 0: epochs are numbered from 1, so give the one after the last that was committed"
    )]
    FirstEpoch,
}

fn or_none(limit: &Option<NonZeroU32>) -> String {
    limit.map_or("none".into(), |limit| limit.to_string())
}
