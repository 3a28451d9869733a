//! Lists of entities: the history of every entity after the epoch of a checkpoint.
//!
//! A list is a file of frames. The first ones hold all entities. The later ones hold those that
//! changed since the checkpoint before, so the bytes of a checkpoint are proportional to what
//! changed. Once as many entities have been appended as there are, the next checkpoint begins a
//! new list instead. So no list is longer than two that hold each entity once, and an entity that
//! changes is written at most twice for each of the two checkpoints.
//!
//! **Invariant.** A checkpoint names its list and the length of it. Both are on disk before the
//! checkpoint gets its name. Bytes up to a named length are never written again, and a list is
//! removed only once no checkpoint names it. Each of the two checkpoints has a list of its own, so
//! damage to one of them leaves the other. A crash leaves:
//!
//! | after | found by the next start |
//! |---|---|
//! | frames were appended | the older checkpoint, whose list ends before; they are overwritten |
//! | a new list was written | a list that no checkpoint names; the next checkpoint removes it |
//! | the checkpoint got its name | the new checkpoint, and perhaps the list that it replaces |
//!
//! A list is tied to its checkpoint by the epoch and the link in its last frame.

use super::{
    chain::ChainLink,
    error::StateError,
    format::{FILE_HEADER_LENGTH, FileRole, file_header, kind},
    frames::{EntitiesPayload, encode},
    integers::{PackedWidth, unpack},
    log::{Frame, FrameAppender, FrameRead, damaged, has_file_header, read_frame},
    storage::{Storage, StorageFile},
};
use hushflow_mechanism::moments::IntegerRow;
use serde::{Deserialize, Serialize};
use zeroize::{DefaultIsZeroes, Zeroizing};

/// A list while it is being written.
const NEW_LIST: &str = "entities.new";

/// Most entities in a frame.
const FRAME_ENTITIES: usize = if cfg!(test) { 4 } else { 1 << 15 };

/// The history of an entity. Secret.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct SavedEntity {
    /// Hash of its name.
    pub entity: u128,
    /// Number of epochs in which it took part, from 1.
    pub participations: u64,
    /// The last of them.
    pub last: u64,
}

impl DefaultIsZeroes for SavedEntity {}

/// The entities that a checkpoint saves: their histories after its epoch.
pub trait SavedEntities {
    /// The number of all entities.
    fn number(&self) -> u64;
    /// The entities that took part after epoch `since`, ascending. Epochs of later calls are not
    /// smaller.
    fn changed_since(&mut self, since: u64) -> Zeroizing<Vec<SavedEntity>>;
    /// All entities, ascending.
    fn all(&self) -> Box<dyn Iterator<Item = SavedEntity> + '_>;
}

/// The part of a list that a checkpoint names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NamedList {
    /// The number in its name, from 1.
    pub(super) number: u64,
    /// Bytes in use.
    pub(super) length: u64,
}

/// A list of entities, up to the length that its checkpoint names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntityList {
    pub(super) named: NamedList,
    /// Epoch and link of the checkpoint.
    epoch: u64,
    chain: ChainLink,
    /// Entities in its first frames and, each as often as it occurs, in the later ones.
    whole: u64,
    appended: u64,
}

/// Damage to the list that a checkpoint names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListDamage {
    pub(super) number: u64,
    pub(super) offset: u64,
    pub(super) damage: &'static str,
}

/// Returns the name of the list with this number.
pub(super) fn list_name(number: u64) -> String {
    format!("entities-{number:06}.list")
}

/// Returns the number of the list named `name`.
fn list_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix("entities-")?.strip_suffix(".list")?.parse().ok()?;
    (list_name(number) == name).then_some(number)
}

impl EntityList {
    /// Saves `entities` after `epoch`: appends to the list `before` those that changed, or begins a
    /// list. The list is on disk when this returns.
    pub(super) fn save(
        storage: &dyn Storage,
        before: Option<Self>,
        (epoch, chain): (u64, ChainLink),
        entities: &mut dyn SavedEntities,
    ) -> Result<Self, StateError> {
        if let Some(before) = before {
            let changed = entities.changed_since(before.epoch);
            if before.appended + changed.len() as u64 <= entities.number() {
                return before.append(storage, (epoch, chain), &changed);
            }
        }
        Self::begin(storage, (epoch, chain), entities)
    }

    fn begin(
        storage: &dyn Storage,
        (epoch, chain): (u64, ChainLink),
        entities: &dyn SavedEntities,
    ) -> Result<Self, StateError> {
        let file = storage.write(NEW_LIST)?;
        file.truncate(0)?;
        let mut log = FrameAppender::at(file, 0);
        log.append(&file_header(FileRole::Entities))?;
        let (mut all, mut whole) = (entities.all(), 0);
        loop {
            let mut block = Zeroizing::new(Vec::with_capacity(FRAME_ENTITIES));
            block.extend(all.by_ref().take(FRAME_ENTITIES));
            log.append(&frame_of(&block, (epoch, chain), 0)?)?;
            whole += block.len() as u64;
            if block.len() < FRAME_ENTITIES {
                break;
            }
        }
        log.sync()?;
        let number = 1 + lists(storage)?.into_iter().max().unwrap_or(0);
        storage.rename(NEW_LIST, &list_name(number))?;
        storage.sync()?;
        let named = NamedList { number, length: log.synced() };
        Ok(Self { named, epoch, chain, whole, appended: 0 })
    }

    fn append(
        self,
        storage: &dyn Storage,
        (epoch, chain): (u64, ChainLink),
        changed: &[SavedEntity],
    ) -> Result<Self, StateError> {
        let NamedList { number, length } = self.named;
        let file = storage.write(&list_name(number))?;
        if file.length()? < length {
            return Err(damaged(&*file, length, "the file has become shorter than what was read of it"));
        }
        let mut log = FrameAppender::at(file, length);
        let mut rest = changed;
        loop {
            let (block, after) = rest.split_at(rest.len().min(FRAME_ENTITIES));
            log.append(&frame_of(block, (epoch, chain), self.epoch)?)?;
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        log.sync()?;
        let named = NamedList { number, length: log.synced() };
        Ok(Self { named, epoch, chain, appended: self.appended + changed.len() as u64, ..self })
    }

    /// Reads the list that the checkpoint of this epoch and link names.
    pub(super) fn survey(
        storage: &dyn Storage,
        named: NamedList,
        (epoch, chain): (u64, ChainLink),
    ) -> Result<Result<Self, ListDamage>, StateError> {
        let mut list = Self { named, epoch, chain, whole: 0, appended: 0 };
        match list.count(storage) {
            Ok(()) => Ok(Ok(list)),
            Err(StateError::Damaged { offset, damage, .. }) => {
                Ok(Err(ListDamage { number: named.number, offset, damage }))
            }
            Err(error) => Err(error),
        }
    }

    fn count(&mut self, storage: &dyn Storage) -> Result<(), StateError> {
        let mut reader = self.reader(storage)?;
        while let Some(block) = reader.next_block()? {
            let counted = if block.since == 0 { &mut self.whole } else { &mut self.appended };
            *counted += block.entities.len() as u64;
        }
        Ok(())
    }

    /// Opens the list.
    pub(super) fn reader(&self, storage: &dyn Storage) -> Result<EntityReader, StateError> {
        let name = list_name(self.named.number);
        let missing =
            || StateError::Damaged { path: storage.path_of(&name), offset: 0, damage: "the file is missing" };
        let file = storage.read(&name)?.ok_or_else(missing)?;
        let found = file.length()?;
        if found < self.named.length {
            return Err(damaged(&*file, found, "the file is shorter than its checkpoint says"));
        }
        let (list, offset, before) = (*self, FILE_HEADER_LENGTH as u64, None);
        Ok(EntityReader { file, list, offset, before, has_failed: false })
    }
}

/// Returns whether a file with this name is a list, or one that is being written.
pub(super) fn is_list(name: &str) -> bool {
    name == NEW_LIST || list_number(name).is_some()
}

fn lists(storage: &dyn Storage) -> Result<Vec<u64>, StateError> {
    Ok(storage.names()?.iter().filter_map(|name| list_number(name)).collect())
}

/// Removes all lists but those with the numbers `named`.
pub(super) fn remove_other_lists(storage: &dyn Storage, named: &[u64]) -> Result<(), StateError> {
    let mut others = lists(storage)?.into_iter().filter(|number| !named.contains(number));
    others.try_for_each(|number| storage.remove(&list_name(number)))
}

/// Encodes the frame of a block of entities.
fn frame_of(
    block: &[SavedEntity],
    (epoch, chain): (u64, ChainLink),
    since: u64,
) -> Result<Zeroizing<Vec<u8>>, StateError> {
    let mut hashes = Zeroizing::new(Vec::with_capacity(size_of::<u128>() * block.len()));
    block.iter().for_each(|saved| hashes.extend_from_slice(&saved.entity.to_le_bytes()));
    let participations = packed(block.iter().map(|saved| saved.participations));
    let ages = packed(block.iter().map(|saved| epoch.saturating_sub(saved.last)));
    let payload = EntitiesPayload {
        epoch,
        chain,
        since,
        entities: &hashes,
        participations: &participations,
        ages: &ages,
    };
    encode(kind::ENTITIES, 0, &payload)
}

fn packed(integers: impl Iterator<Item = u64>) -> Zeroizing<Vec<u8>> {
    let integers = Zeroizing::new(integers.map(i128::from).collect::<Vec<_>>());
    let row = || std::iter::once(IntegerRow::Wide(&integers));
    let width = PackedWidth::of(row());
    // Full capacity from the start: a growing vector leaves copies in freed memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(width.length() + size_of::<i128>()));
    width.pack(row(), &mut bytes);
    bytes
}

/// Reads the entities of a checkpoint, frame by frame. An entity may occur again with a later
/// history.
pub struct EntityReader {
    file: Box<dyn StorageFile>,
    list: EntityList,
    /// The next frame.
    offset: u64,
    /// Of the last frame: epoch and link, `since`, and the last entity.
    before: Option<((u64, ChainLink), u64, Option<u128>)>,
    has_failed: bool,
}

/// Entities of a frame, ascending.
struct EntityBlock {
    since: u64,
    entities: Zeroizing<Vec<SavedEntity>>,
}

impl EntityReader {
    fn next_block(&mut self) -> Result<Option<EntityBlock>, StateError> {
        let (file, length) = (&*self.file, self.list.named.length);
        if self.before.is_none() && !has_file_header(file, FileRole::Entities)? {
            return Err(damaged(file, 0, "the file header fails its checksum"));
        }
        if self.offset == length {
            let is_own = self.before.is_some_and(|(at, ..)| at == (self.list.epoch, self.list.chain));
            let ended = || damaged(file, length, "it ends after another epoch than its checkpoint");
            return is_own.then_some(None).ok_or_else(ended);
        }
        let frame = match read_frame(file, self.offset, length)? {
            FrameRead::Frame(frame) if frame.header.kind == kind::ENTITIES => frame,
            _ => return Err(damaged(file, self.offset, "a frame of entities fails its checksum")),
        };
        let block = self.admit(&frame)?;
        self.offset = frame.end();
        Ok(Some(block))
    }

    /// Checks that a frame may follow those before it.
    fn admit(&mut self, frame: &Frame) -> Result<EntityBlock, StateError> {
        let file = &*self.file;
        let payload: EntitiesPayload<'_> = frame.decode(file)?;
        let (at, since) = ((payload.epoch, payload.chain), payload.since);
        let (goes_on, last) = match self.before {
            None => (since == 0, None),
            Some((before, same, last)) if before == at && same == since => (true, last),
            Some(((before, _), ..)) => (since == before && at.0 > before, None),
        };
        let malformed = || damaged(file, frame.offset, "a frame of entities can't be one of this list");
        let entities = payload.unpack().filter(|_| goes_on).ok_or_else(malformed)?;
        let mut before = last;
        for saved in entities.iter() {
            let ascends = before.is_none_or(|before| before < saved.entity);
            let is_history = saved.participations > 0 && saved.last > since;
            if !(ascends && is_history) {
                return Err(malformed());
            }
            before = Some(saved.entity);
        }
        self.before = Some((at, since, before));
        Ok(EntityBlock { since, entities })
    }
}

impl EntitiesPayload<'_> {
    fn unpack(&self) -> Option<Zeroizing<Vec<SavedEntity>>> {
        let (hashes, rest) = self.entities.as_chunks();
        let [participations, ages] =
            [self.participations, self.ages].map(|bytes| unpack(bytes).map(Zeroizing::new));
        let (participations, ages) = (participations?, ages?);
        if !rest.is_empty() || participations.len() != hashes.len() || ages.len() != hashes.len() {
            return None;
        }
        let mut entities = Zeroizing::new(Vec::with_capacity(hashes.len()));
        for ((hash, &participations), &age) in hashes.iter().zip(participations.iter()).zip(ages.iter()) {
            entities.push(SavedEntity {
                entity: u128::from_le_bytes(*hash),
                participations: u64::try_from(participations).ok()?,
                last: self.epoch.checked_sub(u64::try_from(age).ok()?)?,
            });
        }
        Some(entities)
    }
}

impl Iterator for EntityReader {
    type Item = Result<Zeroizing<Vec<SavedEntity>>, StateError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let next = self.next_block();
        self.has_failed = next.is_err();
        next.map(|block| block.map(|block| block.entities)).transpose()
    }
}
