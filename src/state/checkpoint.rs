//! Checkpoints: the state of the encoder after an epoch, so that recovery need not replay the whole
//! private log.
//!
//! Two files are written alternately. A new one is written under another name, synced, and renamed
//! over the older one, so at least one complete checkpoint exists at every moment. A checkpoint
//! carries the link of its epoch, which ties it to one log. It names the list with the histories of
//! [entities](super::entities), if they are protected.

use super::{
    chain::ChainLink,
    entities::{EntityList, ListDamage, NamedList, SavedEntities, remove_other_lists},
    error::StateError,
    format::{FileRole, file_header, kind},
    frames::{Checkpoint, CheckpointPayload, encode, encoded_length},
    log::{Frame, damaged, only_frame},
    storage::{CHECKPOINTS, NEW_CHECKPOINT, Storage, StorageFile, reopen, swap_in},
};
use std::collections::VecDeque;

/// Content of one of the two checkpoint files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckpointSlot {
    Absent,
    /// It fails a checksum, or the list of entities that it names is damaged; recovery uses the
    /// other file and the private log instead.
    Unreadable {
        list: Option<ListDamage>,
    },
    /// An intact checkpoint; `genuine` once the private log is known to hold its epoch.
    Intact {
        epoch: u64,
        link: ChainLink,
        genuine: bool,
        list: Option<EntityList>,
    },
}

impl CheckpointSlot {
    /// Returns the list of entities of a genuine checkpoint.
    pub(super) fn genuine_list(self) -> Option<EntityList> {
        match self {
            Self::Intact { genuine: true, list, .. } => list,
            _ => None,
        }
    }
}

/// Reads both files, and the lists that they name.
pub(super) fn read_slots(storage: &dyn Storage) -> Result<[CheckpointSlot; 2], StateError> {
    Ok([read_slot(storage, CHECKPOINTS[0])?, read_slot(storage, CHECKPOINTS[1])?])
}

fn read_slot(storage: &dyn Storage, name: &str) -> Result<CheckpointSlot, StateError> {
    let mut slot = read_once(storage, name)?;
    while matches!(slot, CheckpointSlot::Unreadable { list: Some(_) }) {
        // A concurrent run may have replaced the checkpoint, and then removed its list.
        let again = read_once(storage, name)?;
        if again == slot {
            break;
        }
        slot = again;
    }
    Ok(slot)
}

fn read_once(storage: &dyn Storage, name: &str) -> Result<CheckpointSlot, StateError> {
    let Some(file) = storage.read(name)? else { return Ok(CheckpointSlot::Absent) };
    let Some(frame) = read_only_frame(&*file)? else { return Ok(CheckpointSlot::Unreadable { list: None }) };
    let (CheckpointPayload { epoch, chain: link, .. }, named) = decode_checkpoint(&frame, &*file)?;
    let list = named.map(|named| EntityList::survey(storage, named, (epoch, link))).transpose()?;
    Ok(match list.transpose() {
        Ok(list) => CheckpointSlot::Intact { epoch, link, genuine: false, list },
        Err(damage) => CheckpointSlot::Unreadable { list: Some(damage) },
    })
}

/// Loads the checkpoint at `name`, which is known to be intact.
pub(super) fn load(storage: &dyn Storage, name: &str) -> Result<Checkpoint, StateError> {
    let file = reopen(storage, name)?;
    let frame = read_only_frame(&*file)?
        .ok_or_else(|| damaged(&*file, 0, "the checkpoint was readable a moment ago"))?;
    let (CheckpointPayload { epoch, bytes, .. }, _) = decode_checkpoint(&frame, &*file)?;
    Ok(Checkpoint { epoch, bytes: bytes.to_vec().into() })
}

fn read_only_frame(file: &dyn StorageFile) -> Result<Option<Frame>, StateError> {
    only_frame(file, FileRole::Checkpoint, &[kind::CHECKPOINT, kind::ENTITY_CHECKPOINT])
}

fn decode_checkpoint<'f>(
    frame: &'f Frame,
    file: &dyn StorageFile,
) -> Result<(CheckpointPayload<'f>, Option<NamedList>), StateError> {
    if frame.header.kind == kind::CHECKPOINT {
        return Ok((frame.decode(file)?, None));
    }
    let (payload, named) = frame.decode(file)?;
    Ok((payload, Some(named)))
}

/// Writes checkpoints alternately.
pub(super) struct CheckpointWriter {
    /// The epoch of the newest checkpoint, 0 before the first.
    pub(super) newest: u64,
    /// Index of the file that the next one replaces; never that of the newest.
    pub(super) next: usize,
    /// Links of the epochs committed since, in order.
    pub(super) links: VecDeque<ChainLink>,
    /// The lists that the two files name.
    pub(super) lists: [Option<EntityList>; 2],
}

impl CheckpointWriter {
    /// Returns the checkpoint of `epoch`, to be written.
    ///
    /// # Errors
    /// Fails unless `epoch` is committed and newer than the newest checkpoint, and if the bytes are
    /// too many.
    pub(super) fn payload<'a>(
        &self,
        generation: u64,
        epoch: u64,
        bytes: &'a [u8],
    ) -> Result<CheckpointPayload<'a>, StateError> {
        let since = epoch.checked_sub(self.newest + 1).and_then(|since| usize::try_from(since).ok());
        let Some(&chain) = since.and_then(|since| self.links.get(since)) else {
            let committed = self.newest + self.links.len() as u64;
            let expected = format!("one after {} and up to {committed}", self.newest);
            return Err(StateError::WrongEpoch { found: epoch, expected });
        };
        let payload = CheckpointPayload { generation, epoch, chain, bytes };
        encoded_length(&(&payload, NamedList { number: 0, length: 0 }))?;
        Ok(payload)
    }

    /// Saves `entities`, writes the checkpoint over the older one, and removes the lists that no
    /// checkpoint names.
    pub(super) fn write(
        &mut self,
        storage: &dyn Storage,
        checkpoint: &CheckpointPayload<'_>,
        entities: Option<&mut dyn SavedEntities>,
    ) -> Result<(), StateError> {
        let (epoch, before) = (checkpoint.epoch, self.lists[self.next]);
        let save = |entities| EntityList::save(storage, before, (epoch, checkpoint.chain), entities);
        let list = entities.map(save).transpose()?;
        let frame = match &list {
            None => encode(kind::CHECKPOINT, 0, checkpoint)?,
            Some(list) => encode(kind::ENTITY_CHECKPOINT, 0, &(checkpoint, list.named))?,
        };
        let header = file_header(FileRole::Checkpoint);
        swap_in(storage, NEW_CHECKPOINT, CHECKPOINTS[self.next], &[&header, &frame])?;
        self.links.drain(..(epoch - self.newest) as usize);
        self.newest = epoch;
        self.lists[self.next] = list;
        self.next = 1 - self.next;
        if list.is_none() {
            return Ok(());
        }
        let named: Vec<u64> = self.lists.iter().flatten().map(|list| list.named.number).collect();
        remove_other_lists(storage, &named)
    }
}
