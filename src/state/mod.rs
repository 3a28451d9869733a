//! Durable state. Each epoch is committed once, synced and then published. It is never drawn again.
//!
//! [`Store`] is the only writer of a state directory. [`PublicReader`] follows the releases;
//! [`verify`] checks all files. `docs/formats.md` specifies the bytes and the rule: commit before
//! publishing, and never recompute a committed epoch.
//!
//! After a crash there are two cases. An epoch without a committed frame was never published, so
//! fresh noise is safe. The release of an epoch with a committed frame is read back. The actions of
//! a start are a pure function of the files it finds (`recovery`).

mod anchor;
mod batch;
mod calls;
mod chain;
mod checkpoint;
mod difference;
mod enrolment;
mod entities;
mod error;
mod followed;
mod format;
mod frames;
mod ingest;
mod integers;
mod ledger_file;
mod lock;
mod log;
mod private_log;
mod public_directory;
mod public_log;
mod reader;
mod recovery;
mod resume;
mod segments;
mod storage;
mod survey;
mod verify;

#[cfg(test)]
mod anchor_tests;
#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod enrolment_tests;
#[cfg(test)]
mod entities_tests;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod schedules;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod store_tests;

pub use batch::CommittedEpoch;
pub use chain::{ChainLink, HistoryStamp};
pub use enrolment::{Enrolment, EnterLedger, LedgerPayment};
pub use entities::{EntityReader, SavedEntities, SavedEntity};
pub use error::StateError;
pub(crate) use error::restrict;
pub use followed::{FollowedList, verify_followed};
pub use format::MAX_PAYLOAD;
pub use frames::{Checkpoint, EpochFrame, Position, PublicHeader, ReleaseFrame, SourcePosition};
pub use ingest::{
    IngestJournal, IngestReader, IngestReport, JournalFull, WaitForRoom, verify_ingest, verify_ingest_from,
};
pub use ledger_file::{LedgerFile, Reservation};
pub use private_log::Replay;
pub use reader::PublicReader;
pub use segments::SumRetention;
pub use verify::{PublicReport, StateReport, is_public_alone, verify, verify_public, verify_with};

use anchor::Anchor;
use batch::EncodedEpochs;
use chain::LogHead;
use checkpoint::{CheckpointSlot, CheckpointWriter};
use enrolment::DuePayment;
use frames::SegmentPayload;
use log::FrameAppender;
use private_log::LogPosition;
use recovery::decide;
use resume::{resume_private, resume_public};
use segments::Segments;
use std::path::{Path, PathBuf};
use storage::{CHECKPOINTS, DirectoryStorage, Storage};
use survey::Survey;
use tracing::debug;

/// The writer of a state directory, which it holds locked.
///
/// ```
/// use hushflow::state::{EpochFrame, PublicHeader, Store};
///
/// let outer = tempfile::tempdir()?;
/// let path = outer.path().join("state");
/// let header = PublicHeader { parameters: b"horizon = 10".to_vec(), private: true };
/// let (mut store, _) = Store::open(&path, &header)?;
/// let frame = |epoch, sum: i32, value: i32| EpochFrame {
///     epoch,
///     positions: vec![],
///     sums: vec![sum.into()].into(),
///     values: vec![value.into()],
///     admitted: None,
/// };
/// store.commit(&[frame(1, 41, 43)])?;
/// store.checkpoint(1, b"encoder state after epoch 1")?;
/// store.commit(&[frame(2, -7, -9)])?;
/// drop(store);
///
/// let (store, recovered) = Store::open(&path, &header)?;
/// assert_eq!((store.generation(), store.committed()), (2, 2));
/// assert_eq!(recovered.checkpoint.map(|checkpoint| checkpoint.epoch), Some(1));
/// for frame in recovered.replay {
///     assert_eq!(frame?.sums[..], [-7]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Store {
    storage: Box<dyn Storage>,
    private: FrameAppender,
    public: FrameAppender,
    anchor: Option<Anchor>,
    /// This run, the last committed epoch, and its link.
    head: LogHead,
    /// Source positions after that epoch.
    positions: Vec<SourcePosition>,
    segments: Segments,
    checkpoints: CheckpointWriter,
    /// Memory for the frames of a commit.
    encoded: EncodedEpochs,
    /// Payment due at the first commit.
    payment: Option<DuePayment>,
    /// Message of the first failure. After it nothing is written.
    stopped: Option<String>,
}

/// Storage settings of a state directory. The published releases do not depend on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateSettings {
    /// Exact sums to keep longer than recovery needs them.
    pub keep: SumRetention,
    /// A directory elsewhere in which every run records its progress. A state directory restored
    /// from an older copy is then refused.
    pub anchor: Option<PathBuf>,
    /// A directory elsewhere for the public log, which everyone may read. `None`: the state
    /// directory.
    pub public: Option<PathBuf>,
}

/// The state from which a run continues.
pub struct RecoveredState {
    /// Source positions when the last committed epoch closed; empty before the first.
    pub positions: Vec<SourcePosition>,
    /// The newest checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// The entities that it saves.
    pub entities: Option<EntityReader>,
    /// The committed epochs after the checkpoint.
    pub replay: Replay,
}

impl Store {
    /// Opens the state directory at `path`, creating it and its parents if needed. Takes
    /// the lock, checks and repairs the files of an earlier run, and begins a new generation.
    ///
    /// # Errors
    /// [`StateError::Locked`] if another run still holds the directory after a second; otherwise
    /// every refusal of `recovery`: other parameters, damage, a private log that was rolled back.
    pub fn open(path: impl AsRef<Path>, header: &PublicHeader) -> Result<(Self, RecoveredState), StateError> {
        Self::open_with(path, header, &StateSettings::default())
    }

    /// As [`Store::open`], with `settings`.
    ///
    /// # Errors
    /// The errors of [`Store::open`], and [`StateError::BehindAnchor`] or
    /// [`StateError::ForkedFromAnchor`] for a directory that is behind its anchor or has another
    /// history.
    pub fn open_with(
        path: impl AsRef<Path>,
        header: &PublicHeader,
        settings: &StateSettings,
    ) -> Result<(Self, RecoveredState), StateError> {
        let directory =
            DirectoryStorage::exclusive(path.as_ref())?.publishing_in(settings.public.as_deref())?;
        let anchor = anchor::hold(settings, header)?;
        Self::recover(Box::new(directory), anchor, header, settings.keep)
    }

    fn recover(
        storage: Box<dyn Storage>,
        anchor: Option<Box<dyn Storage>>,
        header: &PublicHeader,
        keep: SumRetention,
    ) -> Result<(Self, RecoveredState), StateError> {
        let fingerprint = header.fingerprint()?;
        let mut anchor = anchor.map(|storage| Anchor::read_from(storage, fingerprint)).transpose()?;
        let mut survey = Survey::new(anchor.as_ref().and_then(Anchor::anchored));
        survey.conduct(&*storage)?;
        let plan = decide(storage.path(), &survey.facts, &header.payload()?)?;
        let facts = &survey.facts.private;
        let epoch = facts.head.epoch;
        let link = if facts.header.is_some() { facts.head.link } else { fingerprint };
        let head = LogHead { generation: plan.generation, epoch, link };
        let private = resume_private(&*storage, &plan, facts, header)?;
        anchor.as_mut().map_or(Ok(()), |anchor| anchor.move_to(head))?;
        private.confirm()?;
        let end = LogPosition { segment: facts.end().segment, offset: plan.keep_private };
        let replay = |from| Ok(Replay::between(storage.reader()?, from, end));
        let unpublished = replay(survey.unpublished_from)?;
        let public = resume_public(&*storage, &plan, &survey, header, unpublished)?;
        let slots = &survey.facts.checkpoints;
        let newest = plan.checkpoint.map(|slot| (CHECKPOINTS[slot], slots[slot].genuine_list()));
        let list = newest.and_then(|(_, list)| list);
        let recovered = RecoveredState {
            checkpoint: newest.map(|(name, _)| checkpoint::load(&*storage, name)).transpose()?,
            entities: list.map(|list| list.reader(&*storage)).transpose()?,
            replay: replay(survey.replay_from)?,
            positions: survey.positions.clone(),
        };
        let checkpoints = CheckpointWriter {
            newest: survey.newest_checkpoint(),
            next: plan.checkpoint.map_or(0, |slot| 1 - slot),
            links: survey.links,
            lists: slots.map(CheckpointSlot::genuine_list),
        };
        let store = Self {
            storage,
            private,
            public,
            anchor,
            head,
            positions: survey.positions,
            segments: Segments::new(header.clone(), keep, survey.facts.private.segments),
            checkpoints,
            encoded: EncodedEpochs::default(),
            payment: None,
            stopped: None,
        };
        Ok((store, recovered))
    }

    /// The number of this run, from 1.
    pub fn generation(&self) -> u64 {
        self.head.generation
    }

    /// The last committed epoch, 0 before the first.
    pub fn committed(&self) -> u64 {
        self.head.epoch
    }

    /// Commits epochs and returns their links. All epochs are in the private log, synced once,
    /// before any is published. The encoded batch is held in memory. A payment due to a ledger is
    /// made first.
    ///
    /// # Errors
    /// [`StateError::Unpaid`] if the ledger refuses the entry, [`StateError::WrongEpoch`] unless
    /// the epochs are the next ones in order, and [`StateError::TooLarge`] above [`MAX_PAYLOAD`]:
    /// nothing has been written. Any other error stops the store: end the run and start again, and
    /// recovery finds out which epochs were committed.
    pub fn commit<E: CommittedEpoch>(&mut self, epochs: &[E]) -> Result<Vec<ChainLink>, StateError> {
        self.check_running()?;
        for (expected, epoch) in (self.committed() + 1..).zip(epochs) {
            if epoch.epoch() != expected {
                let (found, expected) = (epoch.epoch(), expected.to_string());
                return Err(StateError::WrongEpoch { found, expected });
            }
        }
        let Some(last) = epochs.last() else { return Ok(Vec::new()) };
        let mut encoded = std::mem::take(&mut self.encoded);
        encoded.encode(self.generation(), self.private.synced(), self.head.link, epochs)?;
        if let Some(payment) = self.payment.take() {
            // Check before paying: an epoch that can't be committed must not be charged.
            self.or_stop(|store| store.confirm())?;
            self.or_stop(|store| store.pay(payment, encoded.private.len() as u64))?;
        }
        self.or_stop(|store| store.write(&encoded))?;
        self.positions = last.positions().to_vec();
        let links = std::mem::take(&mut encoded.links);
        encoded.clear();
        self.encoded = encoded;
        Ok(links)
    }

    /// Pays for a first commit of `length` bytes after reserving disk space for them, so a full
    /// disk is found before anything is spent.
    fn pay(&mut self, payment: DuePayment, length: u64) -> Result<(), StateError> {
        let paid = self.private.reserve(length).and_then(|()| payment.settle(&*self.storage));
        if paid.is_err() {
            // If this fails too, the next start cuts the tail.
            let _ = self.private.discard_unsynced();
        }
        paid
    }

    fn write(&mut self, epochs: &EncodedEpochs) -> Result<(), StateError> {
        self.confirm()?;
        self.private.append(&epochs.private)?;
        self.private.sync()?;
        self.head.epoch += epochs.links.len() as u64;
        self.head.link = epochs.links.last().copied().unwrap_or(self.head.link);
        if let Some(anchor) = &mut self.anchor {
            anchor.move_to(self.head)?;
        }
        // Publish nothing if the path leads to another directory: another run may be using the log
        // there.
        self.confirm()?;
        self.public.append(&epochs.public)?;
        self.checkpoints.links.extend(&epochs.links);
        Ok(())
    }

    fn confirm(&self) -> Result<(), StateError> {
        self.storage.confirm()?;
        self.private.confirm()?;
        self.public.confirm()
    }

    /// Writes a checkpoint of the state after `epoch`, replacing the older of the two. Then begins
    /// a new segment of the private log and deletes the segments that no start needs, unless the
    /// settings keep them.
    ///
    /// # Errors
    /// [`StateError::WrongEpoch`] unless `epoch` is committed and newer than the newest checkpoint,
    /// and [`StateError::TooLarge`]: nothing has been written. Any other error stops the store.
    pub fn checkpoint(&mut self, epoch: u64, bytes: &[u8]) -> Result<(), StateError> {
        self.checkpoint_with(epoch, bytes, None)
    }

    /// As [`Store::checkpoint`], and saves the histories of entities after `epoch`. Writes only
    /// those that changed, most of the time.
    ///
    /// # Errors
    /// The errors of [`Store::checkpoint`].
    pub fn checkpoint_with(
        &mut self,
        epoch: u64,
        bytes: &[u8],
        entities: Option<&mut dyn SavedEntities>,
    ) -> Result<(), StateError> {
        self.check_running()?;
        let payload = self.checkpoints.payload(self.generation(), epoch, bytes)?;
        let older = self.checkpoints.newest;
        self.or_stop(|store| {
            store.public.sync()?;
            store.checkpoints.write(&*store.storage, &payload, entities)?;
            store.compact(older)
        })
    }

    /// Begins a segment and removes those behind the checkpoint of epoch `older`; 0 removes none.
    fn compact(&mut self, older: u64) -> Result<(), StateError> {
        let LogHead { generation, epoch, link } = self.head;
        if let Some(segment) = self.segments.next(epoch) {
            let (begun, positions) = (self.storage.now(), self.positions.clone());
            let begins = SegmentPayload { segment, begun, generation, epoch, chain: link, positions };
            self.private = self.segments.begin(&*self.storage, &begins)?;
            debug!(segment, epoch, "new segment of the private log");
        }
        self.segments.remove_obsolete(&*self.storage, older, epoch)
    }

    fn check_running(&self) -> Result<(), StateError> {
        self.stopped.as_ref().map_or(Ok(()), |cause| Err(StateError::Stopped { cause: cause.clone() }))
    }

    /// Runs `work`. After a failure the state of the disk is unknown, so nothing more is written.
    fn or_stop(&mut self, work: impl FnOnce(&mut Self) -> Result<(), StateError>) -> Result<(), StateError> {
        let outcome = work(self);
        self.stopped = outcome.as_ref().err().map(ToString::to_string);
        outcome
    }
}
