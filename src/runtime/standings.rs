//! Standings of entities in the log: restored at a start, and stored in checkpoints.

use std::collections::BTreeMap;

use hushflow_operators::{Entity, EntityLimits, Standing};

use super::RunError;

/// Standings of all entities, and their limits.
#[derive(Clone)]
pub(super) struct Standings {
    limits: EntityLimits,
    entities: BTreeMap<Entity, Standing>,
}

impl Standings {
    /// State before the first epoch.
    pub(super) fn new(limits: EntityLimits) -> Self {
        Standings { limits, entities: BTreeMap::new() }
    }

    /// Restores the standings of a checkpoint.
    pub(super) fn restored(limits: EntityLimits, saved: Vec<(Entity, Standing)>) -> Self {
        Standings { limits, entities: saved.into_iter().collect() }
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

    /// Returns all standings.
    pub(super) fn to_vec(&self) -> Vec<(Entity, Standing)> {
        self.entities.iter().map(|(&entity, &standing)| (entity, standing)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hushflow_operators::Several;

    #[test]
    fn standings_follow_the_limits() {
        let limits = EntityLimits {
            participations: 2,
            min_separation: 2,
            records_per_epoch: 1,
            several: Several::Keep,
        };
        let mut standings = Standings::new(limits);
        let [a, b] = [Entity(1), Entity(2)];
        standings.advance(1, [a]).unwrap();
        standings.advance(3, [b, a]).unwrap();
        assert!(standings.advance(4, [b]).is_err(), "too soon");
        assert!(standings.advance(9, [a]).is_err(), "too often");
        let stands = |participations| Standing { participations, last: 3 };
        assert_eq!(standings.to_vec(), [(a, stands(2)), (b, stands(1))]);
        let mut restored = Standings::restored(limits, standings.to_vec());
        assert!(restored.advance(5, [b]).is_ok());
    }
}
