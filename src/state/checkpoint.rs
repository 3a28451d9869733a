//! Checkpoints: the encoder's state after an epoch, so that a start need not replay the whole private log.
//!
//! Two files take turns. A new one is written beside them, synced, and renamed over the older, so at every
//! moment at least one whole checkpoint stands. A checkpoint carries the checksum of its epoch's frame: it
//! belongs to one log.

use super::{
    error::StateError,
    format::{FILE_HEADER_LENGTH, Role, file_header, kind},
    frames::{Checkpoint, CheckpointPayload, encode},
    log::{Frame, Reading, damaged, read_file_header, read_frame},
    storage::{CHECKPOINTS, NEW_CHECKPOINT, Storage, StorageFile},
};
use std::collections::VecDeque;
use zeroize::Zeroizing;

/// What stands in one of the two places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Absent,
    /// Fails a checksum; the other place and the private log make up for it.
    Unreadable,
    /// An intact checkpoint; `genuine` once the private log has been seen to hold its epoch's frame.
    Intact {
        epoch: u64,
        frame_checksum: u32,
        genuine: bool,
    },
}

/// What stands in both places.
pub(super) fn look(storage: &dyn Storage) -> Result<[Slot; 2], StateError> {
    Ok([look_at(storage, CHECKPOINTS[0])?, look_at(storage, CHECKPOINTS[1])?])
}

fn look_at(storage: &dyn Storage, name: &str) -> Result<Slot, StateError> {
    let Some(file) = storage.read(name)? else { return Ok(Slot::Absent) };
    let Some(frame) = read_only_frame(&*file)? else { return Ok(Slot::Unreadable) };
    let payload: CheckpointPayload<'_> = frame.decode(&*file)?;
    Ok(Slot::Intact { epoch: payload.epoch, frame_checksum: payload.frame_checksum, genuine: false })
}

/// The checkpoint at `name`, which has been found intact.
pub(super) fn load(storage: &dyn Storage, name: &str) -> Result<Checkpoint, StateError> {
    let gone = || StateError::Missing { path: storage.path().join(name) };
    let file = storage.read(name)?.ok_or_else(gone)?;
    let frame = read_only_frame(&*file)?
        .ok_or_else(|| damaged(&*file, 0, "the checkpoint was readable a moment ago"))?;
    let payload: CheckpointPayload<'_> = frame.decode(&*file)?;
    Ok(Checkpoint { epoch: payload.epoch, bytes: payload.bytes.to_vec().into() })
}

/// The one frame of a checkpoint file, if the file is that and nothing else.
fn read_only_frame(file: &dyn StorageFile) -> Result<Option<Frame>, StateError> {
    let length = file.length()?;
    if !read_file_header(file, Role::Checkpoint)? {
        return Ok(None);
    }
    Ok(match read_frame(file, FILE_HEADER_LENGTH as u64, length)? {
        Reading::Frame(frame) if frame.end() == length && frame.header.kind == kind::CHECKPOINT => {
            Some(frame)
        }
        _ => None,
    })
}

/// Writes checkpoints in turn.
pub(super) struct CheckpointWriter {
    /// The epoch of the newest checkpoint, 0 before the first.
    pub(super) newest: u64,
    /// Which place the next one takes: not the newest's.
    pub(super) next: usize,
    /// Payload checksums of the epochs committed since, in order.
    pub(super) checksums: VecDeque<u32>,
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
        let Some(&frame_checksum) = since.and_then(|since| self.checksums.get(since)) else {
            let committed = self.newest + self.checksums.len() as u64;
            let expected = format!("one after {} and up to {committed}", self.newest);
            return Err(StateError::WrongEpoch { found: epoch, expected });
        };
        encode(kind::CHECKPOINT, 0, &CheckpointPayload { generation, epoch, frame_checksum, bytes })
    }

    /// Writes `frame`, the checkpoint of `epoch`, in the place of the older one.
    pub(super) fn write(
        &mut self,
        storage: &dyn Storage,
        epoch: u64,
        frame: &[u8],
    ) -> Result<(), StateError> {
        let file = storage.write(NEW_CHECKPOINT)?;
        file.truncate(0)?;
        file.write_at(0, &file_header(Role::Checkpoint))?;
        file.write_at(FILE_HEADER_LENGTH as u64, frame)?;
        file.sync()?;
        storage.rename(NEW_CHECKPOINT, CHECKPOINTS[self.next])?;
        storage.sync()?;
        self.checksums.drain(..(epoch - self.newest) as usize);
        self.newest = epoch;
        self.next = 1 - self.next;
        Ok(())
    }
}
