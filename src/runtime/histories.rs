//! The histories of all entities, as the first process knows them. Committed epochs advance them,
//! and checkpoints save those that changed.

use std::collections::BTreeMap;

use bincode::Options;
use hushflow_operators::{Entity, EntityHistory, EntityLimits};
use zeroize::Zeroizing;

use super::RunError;
use super::journal::ShardStates;
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
}

impl EntityHistories {
    /// State before the first epoch.
    pub(super) fn new(limits: EntityLimits) -> Self {
        EntityHistories { limits, entities: BTreeMap::new(), recent: Vec::new(), recent_from: 0 }
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

    #[test]
    #[ignore = "measure"]
    fn zz_measure() {
        use crate::state::{EpochFrame, PublicHeader, Store};
        use std::time::Instant;
        for old in [true, false] {
            let outer = tempfile::tempdir().unwrap();
            let path = outer.path().join("s");
            let header = PublicHeader { parameters: b"horizon = 10".to_vec(), private: true };
            let (mut store, _) = Store::open(&path, &header).unwrap();
            let mut h = EntityHistories::new(EntityLimits { min_separation: 1, ..limits(u64::MAX) });
            let hash = |i: u128| Entity(i.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_ac3a_2b1d_5e77));
            let mut next = 0u128;
            for epoch in 1..=64 * 9u64 {
                let n: u128 = if epoch == 1 { 1_000_000 } else { 100 };
                let admitted: Vec<Entity> = (0..n).map(|i| hash((next + i) % 1_000_000)).collect();
                next += n;
                let frame = EpochFrame { epoch, positions: vec![], sums: vec![1].into(), values: vec![1], admitted: Some(Zeroizing::new(admitted.iter().map(|e| e.0).collect())) };
                store.commit(&[frame]).unwrap();
                h.advance(epoch, admitted).unwrap();
                if epoch % 64 == 0 {
                    let states: ShardStates = vec![(0, vec![0; 64].into())];
                    let lens = || std::fs::read_dir(&path).unwrap().map(|e| e.unwrap()).filter(|e| { let n = e.file_name().into_string().unwrap(); n.contains("entities") || n.contains("checkpoint") }).map(|e| e.metadata().unwrap().len()).sum::<u64>();
                    let before = lens();
                    let began = Instant::now();
                    if old {
                        let bytes = options().serialize(&(&states, h.to_vec())).unwrap();
                        store.checkpoint(epoch, &bytes).unwrap();
                    } else {
                        let bytes = options().serialize(&states).unwrap();
                        store.checkpoint_with(epoch, &bytes, Some(&mut h)).unwrap();
                    }
                    eprintln!("old {old} epoch {epoch}: {:?}, files {} -> {}", began.elapsed(), before, lens());
                }
            }
            drop(store);
            let began = Instant::now();
            let (_, rec) = Store::open(&path, &header).unwrap();
            let t = began.elapsed();
            if !old {
                let c = rec.checkpoint.unwrap();
                let (_, h) = restored(&c, rec.entities, Some(limits(u64::MAX))).unwrap();
                eprintln!("start {t:?}, restored {} in {:?}", h.unwrap().number(), began.elapsed());
            } else {
                eprintln!("start {t:?}");
            }
        }
    }
}
