//! The histories of all entities, as the first process knows them. Committed epochs advance them,
//! and checkpoints save those that changed.

use std::collections::BTreeMap;

use bincode::Options;
use hushflow_operators::{Entity, EntityHistory, EntityLimits};
use zeroize::Zeroizing;

use super::RunError;
use super::journal::ShardStates;
use super::memory::entities_that_fit;
use super::resume::options;
use crate::state::{Checkpoint, EntityReader, SavedEntities, SavedEntity};

/// Decodes a checkpoint, with the entities that it saves if they are protected.
pub(super) fn restored(
    checkpoint: &Checkpoint,
    entities: Option<EntityReader>,
    limits: Option<EntityLimits>,
) -> Result<(ShardStates, Option<EntityHistories>), RunError> {
    let states = options().deserialize(&checkpoint.bytes).map_err(|_| RunError::Checkpoint)?;
    let histories = match (limits, entities) {
        (None, None) => None,
        (Some(limits), Some(saved)) => Some(EntityHistories::restored(limits, checkpoint.epoch, saved)?),
        _ => return Err(RunError::Checkpoint),
    };
    Ok((states, histories))
}

/// Histories of all entities, and their limits.
pub(super) struct EntityHistories {
    limits: EntityLimits,
    entities: BTreeMap<Entity, EntityHistory>,
    /// Entities that took part after epoch `recent_from`, with the epoch. Without this list a
    /// checkpoint would have to look at all entities.
    recent: Vec<(u64, Entity)>,
    recent_from: u64,
    /// Largest number of entities.
    most: u64,
}

impl EntityHistories {
    /// State before the first epoch.
    pub(super) fn new(limits: EntityLimits) -> Self {
        let most = entities_that_fit();
        EntityHistories { limits, entities: BTreeMap::new(), recent: Vec::new(), recent_from: 0, most }
    }

    /// Restores the histories that the checkpoint of `epoch` saves.
    fn restored(limits: EntityLimits, epoch: u64, saved: EntityReader) -> Result<Self, RunError> {
        let mut histories = EntityHistories { recent_from: epoch, ..Self::new(limits) };
        for block in saved {
            let history = |saved: &SavedEntity| EntityHistory {
                participations: saved.participations,
                last: saved.last,
            };
            histories.entities.extend(block?.iter().map(|saved| (Entity(saved.entity), history(saved))));
        }
        Ok(histories)
    }

    /// Advances over an epoch in which `admitted` took part.
    ///
    /// # Errors
    /// [`RunError::Checkpoint`] if the limits don't allow it: the log belongs to another pipeline.
    /// [`RunError::Fault`] if they don't fit into memory.
    pub(super) fn advance(
        &mut self,
        epoch: u64,
        admitted: impl IntoIterator<Item = Entity>,
    ) -> Result<(), RunError> {
        for entity in admitted {
            let before = self.entities.get(&entity).copied();
            let after = self.limits.admit(before, epoch).ok_or(RunError::Checkpoint)?;
            self.entities.insert(entity, after);
            self.recent.push((epoch, entity));
        }
        if self.entities.len() as u64 > self.most {
            return Err(RunError::Fault(format!(
                "about {} entities fit into the memory of this process, and more have taken part: nothing is lost, and with \
                 more memory (256 bytes for each entity) the run goes on",
                self.most
            )));
        }
        if 4 * self.recent.len() > self.entities.len() {
            // Looking at all entities takes hardly longer, and the list stays short.
            self.recent.clear();
            self.recent_from = epoch;
        }
        Ok(())
    }

    /// Returns all histories.
    pub(super) fn to_vec(&self) -> Vec<(Entity, EntityHistory)> {
        self.entities.iter().map(|(&entity, &history)| (entity, history)).collect()
    }
}

fn saved((&Entity(entity), &history): (&Entity, &EntityHistory)) -> SavedEntity {
    let EntityHistory { participations, last } = history;
    SavedEntity { entity, participations, last }
}

impl SavedEntities for EntityHistories {
    fn number(&self) -> u64 {
        self.entities.len() as u64
    }

    fn changed_since(&mut self, since: u64) -> Zeroizing<Vec<SavedEntity>> {
        if since < self.recent_from {
            return Zeroizing::new(self.all().filter(|saved| saved.last > since).collect());
        }
        self.recent.retain(|&(epoch, _)| epoch > since);
        self.recent_from = since;
        let mut changed: Vec<Entity> = self.recent.iter().map(|&(_, entity)| entity).collect();
        changed.sort_unstable();
        changed.dedup();
        let histories = changed.iter().filter_map(|entity| self.entities.get_key_value(entity));
        Zeroizing::new(histories.map(saved).collect())
    }

    fn all(&self) -> Box<dyn Iterator<Item = SavedEntity> + '_> {
        Box::new(self.entities.iter().map(saved))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hushflow_operators::RepeatPolicy;

    fn limits(participations: u64) -> EntityLimits {
        EntityLimits {
            participations,
            min_separation: 2,
            records_per_epoch: 1,
            repeat_policy: RepeatPolicy::Keep,
            sent_limit: None,
        }
    }

    #[test]
    fn standings_follow_the_limits() {
        let mut histories = EntityHistories::new(limits(2));
        let [a, b] = [Entity(1), Entity(2)];
        histories.advance(1, [a]).unwrap();
        histories.advance(3, [b, a]).unwrap();
        assert!(histories.advance(4, [b]).is_err(), "too soon");
        assert!(histories.advance(9, [a]).is_err(), "too often");
        let history = |participations| EntityHistory { participations, last: 3 };
        assert!(histories.to_vec() == [(a, history(2)), (b, history(1))]);
        assert!(histories.advance(5, [b]).is_ok());
    }

    #[test]
    fn entities_beyond_memory_are_refused_with_the_number_that_fits() {
        let mut histories = EntityHistories { most: 2, ..EntityHistories::new(limits(9)) };
        histories.advance(1, [Entity(1), Entity(2)]).unwrap();
        let refused = histories.advance(2, [Entity(3)]).unwrap_err().to_string();
        assert!(refused.starts_with("about 2 entities fit into the memory of this process"), "{refused}");
    }

    /// With the list of recent entities and without it.
    #[test]
    fn those_that_changed_are_found() {
        for entities in [3, 251] {
            let mut histories = EntityHistories::new(limits(u64::MAX));
            for epoch in 1..=400 {
                let admitted = Entity(u128::from(epoch * 7 % entities));
                histories.advance(epoch, [admitted]).unwrap();
                if epoch % 10 == 0 {
                    let since = epoch.saturating_sub(20);
                    let changed = histories.changed_since(since);
                    let expected: Vec<_> = histories.all().filter(|saved| saved.last > since).collect();
                    assert!(!expected.is_empty() && expected == **changed, "epoch {epoch}");
                }
            }
        }
    }
}
