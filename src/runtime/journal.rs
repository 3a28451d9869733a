//! The commit operator's log: a [`Store`], opened once a ledger pays for it, and the state from
//! which a run begins.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bincode::Options;
use hushflow_mechanism::discovery::Candidates;
use hushflow_mechanism::moments::IntegerRow;
use hushflow_mechanism::moments::Sums;
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::release::ReleaseShard;
use hushflow_operators::{
    CommitLog, DISCOVERY_SHARD, Entity, EntityHistory, EpochCommit, candidate_state, saved_candidates,
    shard_owner,
};
use serde::{Deserialize, Serialize};
use tracing::{debug, info_span};
use zeroize::Zeroizing;

use super::histories::{EntityHistories, restored};
use super::positions::PartitionPositions;
use super::resume::{EpochResume, options};
use super::{RunError, RunOptions};
use crate::connect::{CommitListener, journal};
use crate::ledger::{Book, LedgerRequest, confirm_room, enter};
use crate::metrics::Metrics;
use crate::pipeline::Pipeline;
use crate::publication::{Calibration, MomentPublication, Publication, PublicationError};
use crate::state::{
    CommittedEpoch, Enrolment, IngestJournal, RecoveredState, SavedEntities, SourcePosition, StateError,
    Store,
};
use crate::time;

/// State from which a run begins. In a cluster a worker has only the states and histories that it
/// owns.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct RunStart {
    /// The first epoch to release.
    pub(super) first_epoch: u64,
    /// Noise and strategy of the log, used by all processes; `None` without moments.
    pub(super) calibration: Option<Calibration>,
    /// Encoder states by shard before `first_epoch`.
    pub(super) states: BTreeMap<u32, Zeroizing<Vec<u8>>>,
    /// Histories of entities before `first_epoch`, if entities are protected.
    pub(super) histories: Vec<(Entity, EntityHistory)>,
}

/// Data stored with an epoch, besides its sums.
#[derive(Clone, Serialize, Deserialize)]
pub(super) enum EpochExtra {
    /// Positions at which a run resumes after the epoch.
    Resume(EpochResume),
    /// Entities that took part in the epoch.
    Admitted(Vec<Entity>),
}

/// Encoder states by shard, as in checkpoints.
pub(super) type ShardStates = Vec<(u32, Zeroizing<Vec<u8>>)>;

impl RunStart {
    /// State after `committed` epochs, without encoder states and histories.
    pub(super) fn after(committed: u64) -> Self {
        RunStart {
            first_epoch: committed + 1,
            calibration: None,
            states: BTreeMap::new(),
            histories: Vec::new(),
        }
    }

    /// The part that worker `worker` of `workers` needs.
    pub(super) fn of_worker(&self, worker: usize, workers: usize) -> Self {
        let owns_shard = |(shard, _): &(&u32, _)| shard_owner(**shard, workers) == worker;
        let owns = |(entity, _): &&(Entity, EntityHistory)| entity.owner(workers) == worker;
        let states = self.states.iter().filter(owns_shard);
        RunStart {
            first_epoch: self.first_epoch,
            calibration: self.calibration.clone(),
            states: states.map(|(&shard, state)| (shard, state.clone())).collect(),
            histories: self.histories.iter().filter(owns).copied().collect(),
        }
    }

    /// Restores the state after all committed epochs from the checkpoint and the sums committed
    /// after it.
    pub(super) fn recover(
        publication: &MomentPublication,
        recovered: RecoveredState,
        source: NoiseSource,
    ) -> Result<(Self, Option<EntityHistories>), RunError> {
        let limits = publication.parameters().entity.as_ref().map(|entity| entity.limits);
        let mut histories = limits.map(EntityHistories::new);
        let measurement = publication.measurement(source)?.build().map_err(PublicationError::from)?;
        let shards = measurement.shards();
        let mut machines: Vec<ReleaseShard> =
            (0..shards.number()).map(|shard| measurement.machine(shard)).collect();
        let discovers = measurement.discovers();
        let candidates = discovers.then(|| measurement.candidates()).transpose();
        let mut candidates = candidates.map_err(|_| RunError::Checkpoint)?;
        let width = shards.coordinates() as usize;
        let mut committed = 0;
        if let Some(checkpoint) = recovered.checkpoint {
            let states;
            (states, histories) = restored(&checkpoint, recovered.entities, limits)?;
            for (shard, state) in states {
                if let Some(candidates) = candidates.as_mut().filter(|_| shard == DISCOVERY_SHARD) {
                    let saved = saved_candidates(&state).ok_or(RunError::Checkpoint)?;
                    candidates.restore(&saved)?;
                    continue;
                }
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
            if let Some(candidates) = &mut candidates {
                // The output of the discovery follows the sums and the values of the slots.
                let added = frame.sums.get(width..).zip(frame.values.get(width..));
                let (private, public) = added.ok_or(RunError::Checkpoint)?;
                candidates.replay(frame.epoch, private, public)?;
            }
            if let Some(histories) = &mut histories {
                let admitted = frame.admitted.as_ref().ok_or(RunError::Checkpoint)?;
                histories.advance(frame.epoch, admitted.iter().copied().map(Entity))?;
            }
            committed = frame.epoch;
        }
        let next = candidates.as_ref().map_or(committed + 1, Candidates::next_epoch);
        if machines.iter().any(|machine| machine.next_epoch() != committed + 1) || next != committed + 1 {
            return Err(RunError::Checkpoint);
        }
        let of_shards = (0..).zip(machines.iter().map(ReleaseShard::save));
        let of_keys = candidates.map(|candidates| (DISCOVERY_SHARD, candidate_state(&candidates)));
        let states = of_shards.chain(of_keys).collect();
        let calibration = Some(publication.calibration().clone());
        let known = histories.as_ref().map(EntityHistories::to_vec).unwrap_or_default();
        Ok((RunStart { first_epoch: committed + 1, calibration, states, histories: known }, histories))
    }
}

/// The store behind the commit operator, and the ingest journal if the source has one.
pub(super) struct Journal {
    store: Store,
    /// Source tags stored with positions.
    tags: Vec<u32>,
    /// Listeners to the positions of a source after each commit, with the number of the source.
    listeners: Vec<(usize, Box<dyn CommitListener>)>,
    ingest: Option<Arc<IngestJournal>>,
    /// Histories of entities after the committed epochs, if entities are protected.
    histories: Option<EntityHistories>,
    /// Positions of the partitions of an embedding program.
    embedded: Option<PartitionPositions>,
    /// The position of every epoch, if the run has no other positions.
    fixed: Option<SourcePosition>,
    metrics: Arc<Metrics>,
    /// Time of the last checkpoint, and how long it took.
    checkpointed: Option<(Instant, Duration)>,
}

/// Pause before a checkpoint, as a multiple of the time that the last one took. A checkpoint needs
/// several syncs, and a start replays epochs faster than they were committed.
const CHECKPOINT_PAUSE: u32 = 20;

impl CommitLog<EpochExtra> for Journal {
    fn commit(&mut self, epochs: &[EpochCommit<EpochExtra>]) -> Result<(), Box<dyn Error>> {
        let closed = epochs
            .iter()
            .map(|epoch| {
                let positions = match (resumes(epoch).next(), &self.embedded) {
                    (Some(resume), _) => resume.positions(&self.tags)?,
                    (None, Some(embedded)) => embedded.after(epoch.released.epoch)?,
                    (None, None) => self.fixed.iter().cloned().collect(),
                };
                let admitted = self.histories.is_some().then(|| admitted(epoch).map(|Entity(hash)| hash));
                let admitted = admitted.map(|hashes| Zeroizing::new(hashes.collect()));
                Ok(ClosedEpoch { epoch, positions, admitted })
            })
            .collect::<Result<Vec<_>, bincode::Error>>()?;
        let began = Instant::now();
        let last = epochs.last().map(|epoch| epoch.released.epoch);
        info_span!("commit", epochs = epochs.len(), last).in_scope(|| self.store.commit(&closed))?;
        if let Some(last) = epochs.last() {
            self.metrics.record_committed(last.released.epoch, began.elapsed());
        }
        // One line per epoch: the number committed together depends on load.
        epochs
            .iter()
            .for_each(|epoch| debug!(epoch = epoch.released.epoch, "the epoch is durable and published"));
        let paused = |&(written, took): &(Instant, Duration)| written.elapsed() < CHECKPOINT_PAUSE * took;
        let may_write = !self.checkpointed.as_ref().is_some_and(paused);
        let due = epochs.iter().rposition(|epoch| may_write && !epoch.states.is_empty());
        let (due, since) = epochs.split_at(due.map_or(0, |due| due + 1));
        self.advance(due)?;
        if let Some(epoch) = due.last() {
            self.checkpoint(epoch)?;
        }
        self.advance(since)?;
        let Some(last) = epochs.last().and_then(|epoch| resumes(epoch).next()) else { return Ok(()) };
        for (source, listener) in &mut self.listeners {
            listener.committed(last.read_of(*source).collect());
        }
        let journaled = self.tags.iter().position(|&tag| tag == u32::from(journal::TAG));
        let position = journaled.and_then(|source| last.of_source(source).next());
        if let Some((ingest, position)) = self.ingest.as_ref().zip(position) {
            ingest.committed(self.store.committed(), position)?;
        }
        Ok(())
    }
}

impl Journal {
    /// `histories` are those of the entities after the epochs in the store.
    pub(super) fn new(
        store: Store,
        (tags, ingest): (Vec<u32>, Option<Arc<IngestJournal>>),
        histories: Option<EntityHistories>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (embedded, fixed, checkpointed, listeners) = (None, None, None, Vec::new());
        Journal { store, tags, listeners, ingest, histories, embedded, fixed, metrics, checkpointed }
    }

    /// Reports the positions of sources after each commit.
    pub(super) fn reporting(self, listeners: Vec<(usize, Box<dyn CommitListener>)>) -> Self {
        Journal { listeners, ..self }
    }

    /// Commits the positions of an embedding program's partitions with each epoch.
    pub(super) fn embedded(self, positions: PartitionPositions) -> Self {
        Journal { embedded: Some(positions), ..self }
    }

    /// Commits this position with each epoch.
    #[cfg(feature = "training")]
    pub(super) fn always_at(self, position: SourcePosition) -> Self {
        Journal { fixed: Some(position), ..self }
    }

    fn advance(&mut self, epochs: &[EpochCommit<EpochExtra>]) -> Result<(), RunError> {
        let Some(histories) = &mut self.histories else { return Ok(()) };
        epochs.iter().try_for_each(|epoch| histories.advance(epoch.released.epoch, admitted(epoch)))
    }

    /// Returns the number of the run.
    pub(super) fn generation(&self) -> u64 {
        self.store.generation()
    }

    /// Writes encoder states and the histories that changed, unless the states exceed the limit of
    /// a frame. In that case the next start replays the log.
    fn checkpoint(&mut self, epoch: &EpochCommit<EpochExtra>) -> Result<(), StateError> {
        let states = options().serialize(&epoch.states);
        let Ok(states) = states.map(Zeroizing::new) else { return Ok(()) };
        let began = Instant::now();
        let entities = self.histories.as_mut().map(|histories| histories as &mut dyn SavedEntities);
        match self.store.checkpoint_with(epoch.released.epoch, &states, entities) {
            Err(StateError::TooLarge { .. }) => Ok(()),
            written => {
                written?;
                self.checkpointed = Some((Instant::now(), began.elapsed()));
                debug!(epoch = epoch.released.epoch, "checkpoint written");
                Ok(())
            }
        }
    }
}

/// Returns the positions at which a run resumes after an epoch.
fn resumes(epoch: &EpochCommit<EpochExtra>) -> impl Iterator<Item = &EpochResume> {
    epoch.marks.iter().filter_map(|mark| match mark {
        EpochExtra::Resume(resume) => Some(resume),
        EpochExtra::Admitted(_) => None,
    })
}

/// Returns the entities that took part in an epoch.
fn admitted(epoch: &EpochCommit<EpochExtra>) -> impl Iterator<Item = Entity> {
    let lists = epoch.marks.iter().filter_map(|mark| match mark {
        EpochExtra::Resume(_) => None,
        EpochExtra::Admitted(entities) => Some(entities),
    });
    lists.flatten().copied()
}

/// An epoch as the store commits it.
struct ClosedEpoch<'a> {
    epoch: &'a EpochCommit<EpochExtra>,
    positions: Vec<SourcePosition>,
    admitted: Option<Zeroizing<Vec<u128>>>,
}

impl CommittedEpoch for ClosedEpoch<'_> {
    fn epoch(&self) -> u64 {
        self.epoch.released.epoch
    }

    fn positions(&self) -> &[SourcePosition] {
        &self.positions
    }

    fn sums(&self) -> impl Iterator<Item = IntegerRow<'_>> {
        self.epoch.sums.iter().map(Sums::row)
    }

    fn values(&self) -> impl Iterator<Item = IntegerRow<'_>> {
        self.epoch.released.rows()
    }

    fn admitted(&self) -> Option<&[u128]> {
        self.admitted.as_ref().map(|hashes| &hashes[..])
    }
}

/// Returns the directory of the shared ledger that pays for a run's releases: the one that the
/// pipeline names, or that of its state directory if something was published there, or that of its
/// data in the directory of all ledgers. `None` if the state directory's own ledger pays. Then the
/// budget covers the releases of this state directory only.
///
/// # Errors
/// [`RunError`] if this can't be determined.
pub fn shared_ledger(pipeline: &Pipeline, options: &RunOptions) -> Result<Option<PathBuf>, RunError> {
    if let Some(directory) = &pipeline.ledger.directory {
        let absolute = std::path::absolute(directory);
        return absolute
            .map(Some)
            .map_err(|error| RunError::Start(format!("the working directory is gone: {error}")));
    }
    let enrolment = match Enrolment::of(&options.state) {
        Err(StateError::Missing { .. }) => None,
        enrolment => enrolment?,
    };
    if let Some(enrolment) = enrolment.filter(Enrolment::has_begun) {
        return Ok(Some(enrolment.ledger()).filter(|ledger| *ledger != Book::own()));
    }
    let home = options.ledgers.as_ref();
    Ok(home.map(|home| home.of_data(pipeline.ledger.data_set.as_deref())).transpose()?)
}

/// Opens the state directory once a ledger has room for its releases.
pub(super) fn open_store(
    pipeline: &Pipeline,
    publication: &Publication,
    options: &RunOptions,
) -> Result<(Store, RecoveredState), RunError> {
    let header = publication.header()?;
    let (ledger, request) = ledger_request(pipeline, publication, options)?;
    Store::open_enrolled(&options.state, &header, &pipeline.state, &ledger, |enrolment| {
        Ok(enter(&options.state.join(&ledger), enrolment, request)?)
    })
}

/// Returns the ledger of a run, and the run's request to it.
fn ledger_request(
    pipeline: &Pipeline,
    publication: &Publication,
    options: &RunOptions,
) -> Result<(PathBuf, LedgerRequest), RunError> {
    let shared = shared_ledger(pipeline, options)?;
    let request = LedgerRequest {
        charge: publication.charge()?,
        budget: pipeline.ledger.budget.clone(),
        data_set: pipeline.ledger.data_set.clone(),
        shared: shared.is_some(),
        started: time::now(),
    };
    Ok((shared.unwrap_or_else(Book::own), request))
}

/// Checks, without spending anything, that a ledger has room for a run.
///
/// # Errors
/// The error with which the run would end.
pub fn confirm_budget(
    pipeline: &Pipeline,
    publication: &Publication,
    options: &RunOptions,
) -> Result<(), RunError> {
    let (ledger, request) = ledger_request(pipeline, publication, options)?;
    let has_begun = match Enrolment::of(&options.state) {
        Err(StateError::Missing { .. }) => false,
        enrolment => enrolment?.is_some_and(|enrolment| enrolment.has_begun()),
    };
    // A state directory pays once.
    if has_begun { Ok(()) } else { Ok(confirm_room(&options.state.join(ledger), request)?) }
}
