//! Checkpoints: the state of the encoder after an epoch, so that recovery need not replay the whole
//! private log.
//!
//! Two files are written alternately. A new one is written under another name, synced, and renamed
//! over the older one, so at least one complete checkpoint exists at every moment. A checkpoint
//! carries the link of its epoch, which ties it to one log.

use super::{
    chain::ChainLink,
    error::StateError,
    format::{FileRole, file_header, kind},
    frames::{Checkpoint, CheckpointPayload, encode},
    log::{Frame, damaged, only_frame},
    storage::{CHECKPOINTS, NEW_CHECKPOINT, Storage, StorageFile, reopen, swap_in},
};
use std::collections::VecDeque;
use zeroize::Zeroizing;

/// Content of one of the two checkpoint files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckpointSlot {
    Absent,
    /// Fails a checksum; recovery uses the other file and the private log instead.
    Unreadable,
    /// An intact checkpoint; `genuine` once the private log is known to hold its epoch.
    Intact {
        epoch: u64,
        link: ChainLink,
        genuine: bool,
    },
}

/// Reads both files.
pub(super) fn read_slots(storage: &dyn Storage) -> Result<[CheckpointSlot; 2], StateError> {
    Ok([read_slot(storage, CHECKPOINTS[0])?, read_slot(storage, CHECKPOINTS[1])?])
}

fn read_slot(storage: &dyn Storage, name: &str) -> Result<CheckpointSlot, StateError> {
    let Some(file) = storage.read(name)? else { return Ok(CheckpointSlot::Absent) };
    let Some(frame) = read_only_frame(&*file)? else { return Ok(CheckpointSlot::Unreadable) };
    let CheckpointPayload { epoch, chain, .. } = frame.decode(&*file)?;
    Ok(CheckpointSlot::Intact { epoch, link: chain, genuine: false })
}

/// Loads the checkpoint at `name`, which is known to be intact.
pub(super) fn load(storage: &dyn Storage, name: &str) -> Result<Checkpoint, StateError> {
    let file = reopen(storage, name)?;
    let frame = read_only_frame(&*file)?
        .ok_or_else(|| damaged(&*file, 0, "the checkpoint was readable a moment ago"))?;
    let CheckpointPayload { epoch, bytes, .. } = frame.decode(&*file)?;
    Ok(Checkpoint { epoch, bytes: bytes.to_vec().into() })
}

fn read_only_frame(file: &dyn StorageFile) -> Result<Option<Frame>, StateError> {
    only_frame(file, FileRole::Checkpoint, kind::CHECKPOINT)
}

/// Writes checkpoints alternately.
pub(super) struct CheckpointWriter {
    /// The epoch of the newest checkpoint, 0 before the first.
    pub(super) newest: u64,
    /// Index of the file that the next one replaces; never that of the newest.
    pub(super) next: usize,
    /// Links of the epochs committed since, in order.
    pub(super) links: VecDeque<ChainLink>,
}

impl CheckpointWriter {
    /// Encodes the checkpoint of `epoch`.
    ///
    /// # Errors
    /// Fails unless `epoch` is committed and newer than the newest checkpoint.
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

    /// Writes `frame`, the checkpoint of `epoch`, over the older one.
    pub(super) fn write(
        &mut self,
        storage: &dyn Storage,
        epoch: u64,
        frame: &[u8],
    ) -> Result<(), StateError> {
        let header = file_header(FileRole::Checkpoint);
        swap_in(storage, NEW_CHECKPOINT, CHECKPOINTS[self.next], &[&header, frame])?;
        self.links.drain(..(epoch - self.newest) as usize);
        self.newest = epoch;
        self.next = 1 - self.next;
        Ok(())
    }
}
