//! Durable state: each epoch is committed once, synced, then published, and never drawn again.
//!
//! [`Store`] is the one writer of a state directory and the only way in for a run. [`PublicReader`] follows the
//! releases; [`verify`] reads everything. The rule (commit, then publish; a committed epoch is never
//! recomputed) and the bytes are in `docs/formats.md`.
//!
//! A crash leaves an epoch either without a committed frame, so nobody saw it and fresh noise is harmless, or with
//! one, so its release is read back. What a start does is a pure function of what it finds (`recovery`).

mod checkpoint;
mod error;
mod format;
mod frames;
mod integers;
mod lock;
mod log;
mod private_log;
mod public_log;
mod reader;
mod recovery;
mod storage;
mod survey;
mod verify;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod schedules;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod store_tests;

pub use error::StateError;
pub use format::MAX_PAYLOAD;
pub use frames::{Checkpoint, EpochFrame, PublicHeader, ReleaseFrame, SourcePosition};
pub use private_log::Replay;
pub use reader::PublicReader;
pub use verify::{Report, verify};

use checkpoint::CheckpointWriter;
use format::{FRAME_HEADER_LENGTH, Role, kind};
use frames::{EncodedEpoch, EpochPayload, encode};
use log::Appender;
use private_log::{beginning, generation_frame};
use recovery::{Plan, decide};
use std::path::Path;
use storage::{CHECKPOINTS, Directory, PRIVATE_LOG, PUBLIC_LOG, Storage, StorageFile};
use survey::Survey;
use zeroize::Zeroizing;

/// The writer of a state directory, which it holds locked.
///
/// ```
/// use hushflow::state::{EpochFrame, PublicHeader, Store};
///
/// let outer = tempfile::tempdir()?;
/// let path = outer.path().join("state");
/// let header = PublicHeader { parameters: b"horizon = 10".to_vec(), private: true };
/// let (mut store, _) = Store::open(&path, &header)?;
/// store.commit(&[EpochFrame { epoch: 1, positions: vec![], sums: vec![41].into(), values: vec![43] }])?;
/// store.checkpoint(1, b"encoder state after epoch 1")?;
/// store.commit(&[EpochFrame { epoch: 2, positions: vec![], sums: vec![-7].into(), values: vec![-9] }])?;
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
    private: Appender,
    public: Appender,
    generation: u64,
    committed: u64,
    checkpoints: CheckpointWriter,
    /// The first failure's message; from then on nothing is written.
    stopped: Option<String>,
}

/// What a run goes on from.
pub struct Recovered {
    /// Where the sources stood when the last committed epoch closed; empty before the first.
    pub positions: Vec<SourcePosition>,
    /// The newest checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// The committed epochs after it.
    pub replay: Replay,
}

impl Store {
    /// Opens the state directory at `path`, creating it (not its parents) when needed: takes the lock, judges what
    /// an earlier run left, mends what may be mended, and opens a new generation.
    ///
    /// # Errors
    /// [`StateError::Locked`] at once when another run holds it; otherwise whatever `recovery` refuses: other
    /// parameters, damage, a private log that was rolled back.
    pub fn open(path: impl AsRef<Path>, header: &PublicHeader) -> Result<(Self, Recovered), StateError> {
        Self::recover(Box::new(Directory::exclusive(path.as_ref())?), header)
    }

    fn recover(storage: Box<dyn Storage>, header: &PublicHeader) -> Result<(Self, Recovered), StateError> {
        let mut survey = Survey::new();
        survey.conduct(&*storage)?;
        let header_frame = encode(kind::HEADER, 0, header)?;
        let plan = decide(storage.path(), &survey.facts, &header_frame[FRAME_HEADER_LENGTH..])?;
        let private = resume_private(&*storage, &plan, survey.facts.private.length, header)?;
        let replay = |from| Ok(Replay::between(reopen(&*storage, PRIVATE_LOG)?, from, plan.keep_private));
        let unpublished = replay(survey.unpublished_from)?;
        let public = resume_public(&*storage, &plan, survey.facts.public.length, header, unpublished)?;
        let newest = plan.checkpoint.map(|place| CHECKPOINTS[place]);
        let recovered = Recovered {
            checkpoint: newest.map(|name| checkpoint::load(&*storage, name)).transpose()?,
            replay: replay(survey.replay_from)?,
            positions: std::mem::take(&mut survey.positions),
        };
        let checkpoints = CheckpointWriter {
            newest: survey.newest_checkpoint(),
            next: plan.checkpoint.map_or(0, |place| 1 - place),
            checksums: survey.checksums,
        };
        let (generation, committed) = (plan.generation, survey.facts.private.epoch);
        let store = Self { storage, private, public, generation, committed, checkpoints, stopped: None };
        Ok((store, recovered))
    }

    /// The number of this run, from 1.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The last committed epoch, 0 before the first.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// Commits epochs: all are in the private log and synced, with one sync, before any is published.
    /// The encoded batch is held in memory.
    ///
    /// # Errors
    /// [`StateError::WrongEpoch`] unless the epochs are the next ones, in order, and [`StateError::TooLarge`] above
    /// [`MAX_PAYLOAD`]: nothing has been written. Any other error stops the store: end the run and start
    /// again, and recovery finds out which epochs were committed.
    pub fn commit(&mut self, frames: &[EpochFrame]) -> Result<(), StateError> {
        self.check_running()?;
        for (expected, frame) in (self.committed + 1..).zip(frames) {
            if frame.epoch != expected {
                return Err(StateError::WrongEpoch { found: frame.epoch, expected: expected.to_string() });
            }
        }
        let encode = |frame| EncodedEpoch::new(self.generation, self.private.synced(), frame);
        let encoded: Vec<_> = frames.iter().map(encode).collect::<Result<_, _>>()?;
        self.or_stop(|store| store.write(&encoded))
    }

    fn write(&mut self, epochs: &[EncodedEpoch]) -> Result<(), StateError> {
        for epoch in epochs {
            self.private.append(&epoch.private)?;
        }
        self.private.sync()?;
        for epoch in epochs {
            self.public.append(&epoch.public)?;
            self.committed += 1;
            self.checkpoints.checksums.push_back(epoch.checksum);
        }
        Ok(())
    }

    /// Writes a checkpoint of the state after `epoch`, replacing the older of the two.
    ///
    /// # Errors
    /// [`StateError::WrongEpoch`] unless `epoch` is committed and newer than the newest checkpoint, and
    /// [`StateError::TooLarge`]: nothing has been written. Any other error stops the store.
    pub fn checkpoint(&mut self, epoch: u64, bytes: &[u8]) -> Result<(), StateError> {
        self.check_running()?;
        let frame = self.checkpoints.encode(self.generation, epoch, bytes)?;
        self.or_stop(|store| {
            store.public.sync()?;
            store.checkpoints.write(&*store.storage, epoch, &frame)
        })
    }

    fn check_running(&self) -> Result<(), StateError> {
        self.stopped.as_ref().map_or(Ok(()), |cause| Err(StateError::Stopped { cause: cause.clone() }))
    }

    /// Does `work`; when it fails, what is on disk is unknown, and so nothing more is written.
    fn or_stop(&mut self, work: impl FnOnce(&mut Self) -> Result<(), StateError>) -> Result<(), StateError> {
        let outcome = work(self);
        self.stopped = outcome.as_ref().err().map(ToString::to_string);
        outcome
    }
}

/// Mends the private log as planned and opens the new generation: synced before anything else is written.
fn resume_private(
    storage: &dyn Storage,
    plan: &Plan,
    length: u64,
    header: &PublicHeader,
) -> Result<Appender, StateError> {
    let file = storage.write(PRIVATE_LOG)?;
    let end = cut_or_begin(&*file, plan.keep_private, length, Role::PrivateLog, header)?;
    if plan.keep_private > 0 {
        rewrite(&*file, plan.rewrite_from, end)?;
    }
    file.sync()?;
    storage.sync()?;
    let mut log = Appender::at(file, end);
    log.append(&generation_frame(plan.generation, end)?)?;
    log.sync()?;
    Ok(log)
}

/// Writes `from..end` once more. After a sync that failed, the system may hold these bytes in memory only and
/// report the next sync as a success; bytes written again are synced again.
fn rewrite(file: &dyn StorageFile, mut from: u64, end: u64) -> Result<(), StateError> {
    let mut window = Zeroizing::new(vec![0; 1 << 16]);
    while from < end {
        let wanted = window.len().min((end - from) as usize);
        let filled = file.read_at(from, &mut window[..wanted])?;
        if filled == 0 {
            return Err(log::damaged(file, from, "the file has become shorter than what was read of it"));
        }
        file.write_at(from, &window[..filled])?;
        from += filled as u64;
    }
    Ok(())
}

/// Mends the public log as planned and appends what it lacks.
fn resume_public(
    storage: &dyn Storage,
    plan: &Plan,
    length: u64,
    header: &PublicHeader,
    mut unpublished: Replay,
) -> Result<Appender, StateError> {
    let file = storage.write(PUBLIC_LOG)?;
    let end = cut_or_begin(&*file, plan.keep_public, length, Role::PublicLog, header)?;
    let mut log = Appender::at(file, end);
    while let Some(frame) = unpublished.next_packed()? {
        let epoch: EpochPayload<'_> = frame.decode(unpublished.file())?;
        log.append(&epoch.release()?)?;
    }
    Ok(log)
}

/// Leaves the first `keep` of `length` bytes, or the beginning of a new log; returns where it ends.
fn cut_or_begin(
    file: &dyn StorageFile,
    keep: u64,
    length: u64,
    role: Role,
    header: &PublicHeader,
) -> Result<u64, StateError> {
    if length > keep {
        file.truncate(keep)?;
    }
    if keep > 0 {
        return Ok(keep);
    }
    let beginning = beginning(role, header)?;
    file.write_at(0, &beginning)?;
    Ok(beginning.len() as u64)
}

/// A second handle, for reading, on a file that has just been written.
fn reopen(storage: &dyn Storage, name: &str) -> Result<Box<dyn StorageFile>, StateError> {
    storage.read(name)?.ok_or_else(|| StateError::Missing { path: storage.path().join(name) })
}
