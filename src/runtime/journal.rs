//! The commit operator's log: a [`Store`], the state from which a run begins, and the stamps of what it commits.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

use bincode::{DefaultOptions, Options};
use crossbeam::channel::{Receiver, Sender, unbounded};
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::release::ReleaseShard;
use hushflow_operators::{CommitLog, EpochCommit};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::RunError;
use crate::publication::{Calibration, Publication};
use crate::source::Position;
use crate::state::{EpochFrame, Ingest, IngestPlace, Recovered, SourcePosition, Stamp, StateError, Store};

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

/// The partition of positions in a source itself.
const SOURCE: u32 = 0;
/// The partition of positions in the ingest journal.
const INGEST_JOURNAL: u32 = 1;

/// The place at which the source goes on.
pub(super) struct Recorded {
    pub(super) position: Position,
    /// Whether it is one in the ingest journal.
    pub(super) in_journal: bool,
}

impl Recorded {
    pub(super) fn of(recovered: &Recovered) -> Result<Self, RunError> {
        let Some(position) = recovered.positions.last() else {
            return Ok(Recorded { position: Position::START, in_journal: false });
        };
        let in_journal = position.partition == INGEST_JOURNAL;
        let position = options().deserialize(&position.payload).map_err(|_| RunError::Checkpoint)?;
        Ok(Recorded { position, in_journal })
    }
}

/// The store behind the commit operator, and the ingest journal if the source has one.
pub(super) struct Journal {
    store: Store,
    ingest: Option<Arc<Ingest>>,
    /// Where the stamps of committed epochs go: one for each view.
    stamps: Vec<Sender<(u64, Stamp)>>,
}

/// The stamps of committed epochs, in their order, for one view.
pub(super) struct Stamps {
    committed: Receiver<(u64, Stamp)>,
    current: Option<(u64, Stamp)>,
}

impl Stamps {
    /// That of `epoch`, which is committed, and not before one that was asked for.
    pub(super) fn of(&mut self, epoch: u64) -> Option<Stamp> {
        while self.current.is_none_or(|(current, _)| current < epoch) {
            self.current = Some(self.committed.try_recv().ok()?);
        }
        self.current.filter(|(current, _)| *current == epoch).map(|(_, stamp)| stamp)
    }
}

impl CommitLog<Position> for Journal {
    fn commit(&mut self, epochs: &[EpochCommit<Position>]) -> Result<(), Box<dyn Error>> {
        let partition = if self.ingest.is_some() { INGEST_JOURNAL } else { SOURCE };
        let frames = epochs
            .iter()
            .map(|epoch| {
                let positions = epoch.marks.iter().map(|mark| {
                    let payload = options().serialize(mark)?;
                    Ok(SourcePosition { partition, offset: mark.offset, payload })
                });
                Ok(EpochFrame {
                    epoch: epoch.epoch,
                    positions: positions.collect::<Result<_, bincode::Error>>()?,
                    sums: joined(&epoch.sums),
                    values: epoch.values.to_vec(),
                })
            })
            .collect::<Result<Vec<_>, bincode::Error>>()?;
        let generation = self.store.generation();
        for (epoch, chain) in epochs.iter().zip(self.store.commit(&frames)?) {
            for stamps in &self.stamps {
                // Whoever no longer listens does not stop the release.
                let _ = stamps.send((epoch.epoch, Stamp { generation, chain }));
            }
        }
        if let Some(epoch) = epochs.iter().rfind(|epoch| !epoch.states.is_empty()) {
            self.checkpoint(epoch)?;
        }
        let last = epochs.last().and_then(|epoch| epoch.marks.last());
        if let (Some(ingest), Some(&Position { file, offset, .. })) = (&self.ingest, last) {
            ingest.discard_before(IngestPlace { session: file, offset })?;
        }
        Ok(())
    }
}

impl Journal {
    pub(super) fn new(store: Store, ingest: Option<Arc<Ingest>>) -> Self {
        Journal { store, ingest, stamps: Vec::new() }
    }

    /// The number of the run.
    pub(super) fn generation(&self) -> u64 {
        self.store.generation()
    }

    /// The stamps of what will be committed.
    pub(super) fn stamps(&mut self) -> Stamps {
        let (stamps, committed) = unbounded();
        self.stamps.push(stamps);
        Stamps { committed, current: None }
    }

    /// Writes the encoders' states, unless they exceed what a frame may hold: then the next start replays the log.
    fn checkpoint(&mut self, epoch: &EpochCommit<Position>) -> Result<(), StateError> {
        let Ok(states) = options().serialize(&epoch.states).map(Zeroizing::new) else { return Ok(()) };
        match self.store.checkpoint(epoch.epoch, &states) {
            Err(StateError::TooLarge { .. }) => Ok(()),
            written => written,
        }
    }
}

/// All sums in one place, which does not grow: that would leave copies in freed memory.
fn joined(shards: &[Zeroizing<Vec<i128>>]) -> Zeroizing<Vec<i128>> {
    let mut sums = Zeroizing::new(Vec::with_capacity(shards.iter().map(|sums| sums.len()).sum()));
    shards.iter().for_each(|shard| sums.extend_from_slice(shard));
    sums
}

/// How payloads are coded inside the frames of the state.
fn options() -> impl Options {
    DefaultOptions::new().with_fixint_encoding().with_limit(crate::state::MAX_PAYLOAD).reject_trailing_bytes()
}
