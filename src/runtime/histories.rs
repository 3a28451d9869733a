//! Histories of entities in the log: restored at a start, and stored in checkpoints.

use std::collections::BTreeMap;

use hushflow_operators::{Entity, EntityHistory, EntityLimits};

use super::RunError;

/// Histories of all entities, and their limits.
#[derive(Clone)]
pub(super) struct EntityHistories {
    limits: EntityLimits,
    entities: BTreeMap<Entity, EntityHistory>,
}

impl EntityHistories {
    /// State before the first epoch.
    pub(super) fn new(limits: EntityLimits) -> Self {
        EntityHistories { limits, entities: BTreeMap::new() }
    }

    /// Restores the histories of a checkpoint.
    pub(super) fn restored(limits: EntityLimits, saved: Vec<(Entity, EntityHistory)>) -> Self {
        EntityHistories { limits, entities: saved.into_iter().collect() }
    }

    /// Advances over an epoch in which `admitted` took part.
    ///
    /// # Errors
    /// [`RunError::Checkpoint`] if the limits don't allow it: the log belongs to another pipeline.
    pub(super) fn advance(
        &mut self,
        epoch: u64,
        admitted: impl IntoIterator<Item = Entity>,
    ) -> Result<(), RunError> {
        for entity in admitted {
            let before = self.entities.get(&entity).copied();
            let after = self.limits.admit(before, epoch).ok_or(RunError::Checkpoint)?;
            self.entities.insert(entity, after);
        }
        Ok(())
    }

    /// Returns all histories.
    pub(super) fn to_vec(&self) -> Vec<(Entity, EntityHistory)> {
        self.entities.iter().map(|(&entity, &history)| (entity, history)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hushflow_operators::RepeatPolicy;

    #[test]
    fn standings_follow_the_limits() {
        let limits = EntityLimits {
            participations: 2,
            min_separation: 2,
            records_per_epoch: 1,
            several: RepeatPolicy::Keep,
        };
        let mut histories = EntityHistories::new(limits);
        let [a, b] = [Entity(1), Entity(2)];
        histories.advance(1, [a]).unwrap();
        histories.advance(3, [b, a]).unwrap();
        assert!(histories.advance(4, [b]).is_err(), "too soon");
        assert!(histories.advance(9, [a]).is_err(), "too often");
        let stands = |participations| EntityHistory { participations, last: 3 };
        assert_eq!(histories.to_vec(), [(a, stands(2)), (b, stands(1))]);
        let mut restored = EntityHistories::restored(limits, histories.to_vec());
        assert!(restored.advance(5, [b]).is_ok());
    }
}
