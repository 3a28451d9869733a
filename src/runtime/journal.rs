//! The commit operator's log: a [`Store`], and the state from which a run begins.

use std::collections::BTreeMap;
use std::error::Error;

use bincode::{DefaultOptions, Options};
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::release::ReleaseShard;
use hushflow_operators::{CommitLog, EpochCommit};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::RunError;
use crate::publication::{Calibration, Publication};
use crate::source::Position;
use crate::state::{EpochFrame, Recovered, SourcePosition, StateError, Store};

/// Where a run begins. The same on every worker of every process.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Start {
    /// The first epoch to release.
    pub(super) first_epoch: u64,
    /// Noise and strategy of the log, with which all processes release.
    pub(super) calibration: Calibration,
    /// Encoder states by shard after the epochs before it.
    pub(super) states: BTreeMap<u32, Zeroizing<Vec<u8>>>,
}

impl Start {
    /// The state after all committed epochs: that of the checkpoint, and the sums committed after it.
    pub(super) fn recover(
        publication: &Publication,
        recovered: Recovered,
        source: NoiseSource,
    ) -> Result<Self, RunError> {
        let shards = publication.shards();
        let mechanism = publication.mechanism();
        let mut machines: Vec<ReleaseShard> =
            (0..shards.number()).map(|shard| ReleaseShard::new(shard, shards, mechanism, source)).collect();
        let mut committed = 0;
        if let Some(checkpoint) = recovered.checkpoint {
            let states: Vec<(u32, Zeroizing<Vec<u8>>)> =
                options().deserialize(&checkpoint.bytes).map_err(|_| RunError::Checkpoint)?;
            for (shard, state) in states {
                let machine = machines.get_mut(shard as usize).ok_or(RunError::Checkpoint)?;
                machine.restore(&state)?;
            }
            committed = checkpoint.epoch;
        }
        for frame in recovered.replay {
            let frame = frame?;
            for (machine, shard) in machines.iter_mut().zip(0..) {
                let range = shards.range(shard);
                let sums = frame.sums.get(range.start as usize..range.end as usize);
                machine.replay(sums.ok_or(RunError::Checkpoint)?)?;
            }
            committed = frame.epoch;
        }
        if machines.iter().any(|machine| machine.next_epoch() != committed + 1) {
            return Err(RunError::Checkpoint);
        }
        let states = (0..).zip(machines.iter().map(ReleaseShard::save)).collect();
        Ok(Start { first_epoch: committed + 1, calibration: publication.calibration().clone(), states })
    }
}

/// The place at which the source goes on.
pub(super) fn position(recovered: &Recovered) -> Result<Position, RunError> {
    match recovered.positions.last() {
        Some(position) => options().deserialize(&position.payload).map_err(|_| RunError::Checkpoint),
        None => Ok(Position::START),
    }
}

/// The store behind the commit operator.
pub(super) struct Journal(pub(super) Store);

impl CommitLog<Position> for Journal {
    fn commit(&mut self, epochs: &[EpochCommit<Position>]) -> Result<(), Box<dyn Error>> {
        let frames = epochs
            .iter()
            .map(|epoch| {
                let positions = epoch.marks.iter().map(|mark| {
                    let payload = options().serialize(mark)?;
                    Ok(SourcePosition { partition: 0, offset: mark.offset, payload })
                });
                Ok(EpochFrame {
                    epoch: epoch.epoch,
                    positions: positions.collect::<Result<_, bincode::Error>>()?,
                    sums: epoch.sums.clone(),
                    values: epoch.values.clone(),
                })
            })
            .collect::<Result<Vec<_>, bincode::Error>>()?;
        self.0.commit(&frames)?;
        if let Some(epoch) = epochs.iter().rfind(|epoch| !epoch.states.is_empty()) {
            self.checkpoint(epoch)?;
        }
        Ok(())
    }
}

impl Journal {
    /// Writes the encoders' states, unless they exceed what a frame may hold: then the next start replays the log.
    fn checkpoint(&mut self, epoch: &EpochCommit<Position>) -> Result<(), StateError> {
        let Ok(states) = options().serialize(&epoch.states).map(Zeroizing::new) else { return Ok(()) };
        match self.0.checkpoint(epoch.epoch, &states) {
            Err(StateError::TooLarge { .. }) => Ok(()),
            written => written,
        }
    }
}

/// How payloads are coded inside the frames of the state.
fn options() -> impl Options {
    DefaultOptions::new().with_fixint_encoding().with_limit(crate::state::MAX_PAYLOAD).reject_trailing_bytes()
}
