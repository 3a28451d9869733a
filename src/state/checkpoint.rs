//! Checkpoints: the encoder's state after an epoch, so that a start need not replay the whole private log.
//!
//! Two files take turns. A new one is written beside them, synced, and renamed over the older, so at every
//! moment at least one whole checkpoint stands. A checkpoint carries the link of its epoch: it belongs to one log.

use super::{
    chain::Link,
    error::StateError,
    format::{Role, file_header, kind},
    frames::{Checkpoint, CheckpointPayload, encode},
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
        link: Link,
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
    let CheckpointPayload { epoch, chain, .. } = frame.decode(&*file)?;
    Ok(Slot::Intact { epoch, link: chain, genuine: false })
}

/// The checkpoint at `name`, which has been found intact.
pub(super) fn load(storage: &dyn Storage, name: &str) -> Result<Checkpoint, StateError> {
    let file = reopen(storage, name)?;
    let frame = read_only_frame(&*file)?
        .ok_or_else(|| damaged(&*file, 0, "the checkpoint was readable a moment ago"))?;
    let CheckpointPayload { epoch, bytes, .. } = frame.decode(&*file)?;
    Ok(Checkpoint { epoch, bytes: bytes.to_vec().into() })
}

fn read_only_frame(file: &dyn StorageFile) -> Result<Option<Frame>, StateError> {
    only_frame(file, Role::Checkpoint, kind::CHECKPOINT)
}

/// Writes checkpoints in turn.
pub(super) struct CheckpointWriter {
    /// The epoch of the newest checkpoint, 0 before the first.
    pub(super) newest: u64,
    /// Which place the next one takes: not the newest's.
    pub(super) next: usize,
    /// Links of the epochs committed since, in order.
    pub(super) links: VecDeque<Link>,
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
        let Some(&chain) = since.and_then(|since| self.links.get(since)) else {
            let committed = self.newest + self.links.len() as u64;
            let expected = format!("one after {} and up to {committed}", self.newest);
            return Err(StateError::WrongEpoch { found: epoch, expected });
        };
        encode(kind::CHECKPOINT, 0, &CheckpointPayload { generation, epoch, chain, bytes })
    }

    /// Writes `frame`, the checkpoint of `epoch`, in the place of the older one.
    pub(super) fn write(
        &mut self,
        storage: &dyn Storage,
        epoch: u64,
        frame: &[u8],
    ) -> Result<(), StateError> {
        let header = file_header(Role::Checkpoint);
        swap_in(storage, NEW_CHECKPOINT, CHECKPOINTS[self.next], &[&header, frame])?;
        self.links.drain(..(epoch - self.newest) as usize);
        self.newest = epoch;
        self.next = 1 - self.next;
        Ok(())
    }
}
