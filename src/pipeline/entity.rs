//! The unit of the guarantee: one record, or all records of an entity within its limits.

use std::num::NonZeroU64;

use hushflow_mechanism::accounting::adjacency::{Adjacency, Unit};
use hushflow_mechanism::participation::Participation;
use hushflow_operators::EntityLimits;
use serde::{Deserialize, Serialize};

use super::PublicParameters;

/// Entities that are protected as a whole: all records of one entity, however many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntityUnit {
    /// Column that identifies the entity of a record.
    pub column: String,
    /// `kind`: kind of the entities in ledgers; by default the name of the column.
    pub kind: String,
    /// `within`: larger kinds of entities that contain these: all records of an entity belong to
    /// one of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<String>,
    /// `participations`, `min_separation`, `records_per_epoch`, `several`: limits on the
    /// contribution of an entity.
    pub limits: EntityLimits,
}

impl EntityUnit {
    /// Returns how often an entity takes part.
    pub fn participation(&self) -> Participation {
        let at_least_one = |number: u64| NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN);
        match self.limits.participations {
            0 | 1 => Participation::Single,
            count => Participation::MinSeparation {
                count: at_least_one(count),
                gap: at_least_one(self.limits.min_separation),
            },
        }
    }
}

impl PublicParameters {
    /// Returns how often a record or entity takes part.
    ///
    /// If keys are discovered, the records of an entity may enter a slot in one epoch. So they are
    /// [records at once](Self::records_at_once), even if they are from several epochs.
    pub fn participation(&self) -> Participation {
        if self.discovery().is_some() {
            return Participation::Single;
        }
        let of_rows = self.training.as_ref().map(|training| training.participation(training.passes));
        of_rows.or(self.entity.as_ref().map(EntityUnit::participation)).unwrap_or(Participation::Single)
    }

    /// Returns the maximum number of records of a record or entity in an epoch. If keys are
    /// discovered, it is the maximum in all epochs.
    pub fn records_at_once(&self) -> u32 {
        let Some(EntityUnit { limits, .. }) = &self.entity else { return 1 };
        let records = limits.records_per_epoch.max(1);
        if self.discovery().is_none() {
            return records;
        }
        let epochs = self.epochs.schedule.horizon().div_ceil(limits.min_separation.max(1));
        let participations = limits.participations.clamp(1, epochs.max(1));
        // Discovery refuses products far below this limit.
        u32::try_from(participations.saturating_mul(records.into())).unwrap_or(u32::MAX)
    }

    /// Returns unit and neighbours of the guarantee.
    pub fn adjacency(&self) -> Adjacency {
        let unit = self.entity.as_ref().map_or(Unit::Record, |entity| Unit::Entity(entity.kind.clone()));
        Adjacency { unit, neighbours: self.privacy.neighbours }
    }
}
