//! Checkpoints: the encoder's state after an epoch, so that a start need not replay the whole private log.
//!
//! Two files take turns. A new one is written beside them, synced, and renamed over the older, so at every
//! moment at least one whole checkpoint stands. A checkpoint carries the link of its epoch: it belongs to one log.

use super::{
    chain::Link,
    error::StateError,
    format::{Role, Version, file_header, kind},
    frames::{Checkpoint, CheckpointPayload, Mark, encode},
    log::{Frame, damaged, only_frame},
    storage::{CHECKPOINTS, NEW_CHECKPOINT, Storage, StorageFile, reopen, swap_in},
};
use std::collections::VecDeque;
use zeroize::Zeroizing;

/// What stands in one of the two places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Absent,
    /// Fails a checksum; the other place and the private log make up for it.
    Unreadable,
    /// An intact checkpoint; `genuine` once the private log has been seen to hold its epoch.
    Intact {
        epoch: u64,
        mark: Mark,
        genuine: bool,
    },
}

/// What stands in both places.
pub(super) fn look(storage: &dyn Storage) -> Result<[Slot; 2], StateError> {
    Ok([look_at(storage, CHECKPOINTS[0])?, look_at(storage, CHECKPOINTS[1])?])
}

fn look_at(storage: &dyn Storage, name: &str) -> Result<Slot, StateError> {
    let Some(file) = storage.read(name)? else { return Ok(Slot::Absent) };
    let Some((version, frame)) = read_only_frame(&*file)? else { return Ok(Slot::Unreadable) };
    let (epoch, mark, _) = parts(&frame, &*file, version)?;
    Ok(Slot::Intact { epoch, mark, genuine: false })
}

/// The checkpoint at `name`, which has been found intact.
pub(super) fn load(storage: &dyn Storage, name: &str) -> Result<Checkpoint, StateError> {
    let file = reopen(storage, name)?;
    let (version, frame) = read_only_frame(&*file)?
        .ok_or_else(|| damaged(&*file, 0, "the checkpoint was readable a moment ago"))?;
    let (epoch, _, bytes) = parts(&frame, &*file, version)?;
    Ok(Checkpoint { epoch, bytes: bytes.to_vec().into() })
}

fn read_only_frame(file: &dyn StorageFile) -> Result<Option<(Version, Frame)>, StateError> {
    only_frame(file, Role::Checkpoint, kind::CHECKPOINT)
}

/// Epoch, mark and content.
fn parts<'a>(
    frame: &'a Frame,
    file: &dyn StorageFile,
    version: Version,
) -> Result<(u64, Mark, &'a [u8]), StateError> {
    Ok(match version {
        Version::One => {
            let payload: CheckpointPayload<'_, u32> = frame.decode(file)?;
            (payload.epoch, Mark::Frame(payload.mark), payload.bytes)
        }
        Version::Two => {
            let payload: CheckpointPayload<'_, Link> = frame.decode(file)?;
            (payload.epoch, Mark::Chain(payload.mark), payload.bytes)
        }
    })
}

/// Writes checkpoints in turn.
pub(super) struct CheckpointWriter {
    /// The epoch of the newest checkpoint, 0 before the first.
    pub(super) newest: u64,
    /// Which place the next one takes: not the newest's.
    pub(super) next: usize,
    /// Marks of the epochs committed since, in order.
    pub(super) marks: VecDeque<Mark>,
    pub(super) version: Version,
}

impl CheckpointWriter {
    /// The frame of the checkpoint of `epoch`, an error unless that is committed and newer than the newest one.
    pub(super) fn encode(
        &self,
        generation: u64,
        epoch: u64,
        bytes: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, StateError> {
        let since = epoch.checked_sub(self.newest + 1).and_then(|since| usize::try_from(since).ok());
        let Some(&mark) = since.and_then(|since| self.marks.get(since)) else {
            let committed = self.newest + self.marks.len() as u64;
            let expected = format!("one after {} and up to {committed}", self.newest);
            return Err(StateError::WrongEpoch { found: epoch, expected });
        };
        match mark {
            Mark::Frame(mark) => {
                encode(kind::CHECKPOINT, 0, &CheckpointPayload { generation, epoch, mark, bytes })
            }
            Mark::Chain(mark) => {
                encode(kind::CHECKPOINT, 0, &CheckpointPayload { generation, epoch, mark, bytes })
            }
        }
    }

    /// Writes `frame`, the checkpoint of `epoch`, in the place of the older one.
    pub(super) fn write(
        &mut self,
        storage: &dyn Storage,
        epoch: u64,
        frame: &[u8],
    ) -> Result<(), StateError> {
        let header = file_header(Role::Checkpoint, self.version);
        swap_in(storage, NEW_CHECKPOINT, CHECKPOINTS[self.next], &[&header, frame])?;
        self.marks.drain(..(epoch - self.newest) as usize);
        self.newest = epoch;
        self.next = 1 - self.next;
        Ok(())
    }
}
