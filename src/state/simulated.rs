//! A simulated disk in memory that loses unsynced data as a real disk may ([`PowerLoss`]).
//!
//! Each file has contents as processes see them and durable contents. Writes, cuts and directory
//! entries are pending until a sync. A fault strikes at the n-th call that changes the disk.

pub(super) use super::faults::{DiskFault, LOSSES, PowerLoss};

use super::{
    error::{StateError, refused},
    schedules::mix,
    storage::{Storage, StorageFile},
};
use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

#[derive(Clone)]
enum UnsyncedChange {
    Write(u64, Vec<u8>),
    Truncate(u64),
}

#[derive(Clone, Default)]
struct FileContent {
    seen: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<UnsyncedChange>,
}

#[derive(Clone)]
enum NameChange {
    Create(String, usize),
    Rename(String, String),
    Remove(String),
}

#[derive(Clone, Default)]
struct DiskState {
    files: Vec<FileContent>,
    seen: BTreeMap<String, usize>,
    durable: BTreeMap<String, usize>,
    unsynced: Vec<NameChange>,
    calls: usize,
    fault: Option<(usize, DiskFault)>,
    dead: bool,
    ignores_syncs: bool,
    late: bool,
    free: Option<u64>,
    /// Limit on the total bytes of all files.
    capacity: Option<usize>,
    /// The file with a requested but delayed sync, and the number of changes it covers.
    owed: Option<(usize, usize)>,
    stall: Option<(usize, StallAction)>,
}

/// An action that runs while a process is suspended.
type StallAction = Arc<Mutex<dyn FnMut() + Send>>;

/// The disk, or a folder on it; clones are handles to the same disk.
#[derive(Clone)]
pub(super) struct SimulatedDisk {
    state: Arc<Mutex<DiskState>>,
    folder: &'static str,
}

impl Default for SimulatedDisk {
    fn default() -> Self {
        Self::of(DiskState::default())
    }
}

impl SimulatedDisk {
    fn of(state: DiskState) -> Self {
        Self { state: Arc::new(Mutex::new(state)), folder: "state/" }
    }

    /// Returns another folder on the same disk. A power cut strikes both.
    pub(super) fn folder(&self, folder: &'static str) -> Self {
        Self { state: Arc::clone(&self.state), folder }
    }

    /// Path of `name` on the disk.
    fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.folder)
    }

    /// Makes `fault` strike the `call`-th changing call from now, counted from 0.
    pub(super) fn fail_at(&self, call: usize, fault: DiskFault) {
        let mut state = self.state();
        (state.calls, state.fault) = (0, Some((call, fault)));
    }

    /// Suspends the process before its `call`-th changing call from now, counted from 0, and runs
    /// `meanwhile`.
    pub(super) fn stall_at(&self, call: usize, meanwhile: impl FnMut() + Send + 'static) {
        self.state().stall = Some((call, Arc::new(Mutex::new(meanwhile))));
    }

    fn stall(&self) {
        let mut state = self.state();
        let due = state.stall.take_if(|(left, _)| *left == 0);
        state.stall.iter_mut().for_each(|(left, _)| *left -= 1);
        drop(state);
        due.iter().for_each(|(_, meanwhile)| meanwhile.lock().unwrap()());
    }

    pub(super) fn set_free(&self, bytes: u64) {
        self.state().free = Some(bytes);
    }

    /// Refuses every write that would make the total of all files exceed `bytes`.
    pub(super) fn limit(&self, bytes: Option<usize>) {
        self.state().capacity = bytes;
    }

    /// Makes every later sync succeed without making anything durable.
    pub(super) fn ignore_syncs(&self) {
        self.state().ignores_syncs = true;
    }

    /// Delays the sync of a file until the next sync is requested.
    pub(super) fn sync_late(&self) {
        self.state().late = true;
    }

    /// Returns whether the fault has struck.
    pub(super) fn struck(&self) -> bool {
        let state = self.state();
        state.fault.is_some_and(|(call, _)| state.calls > call)
    }

    /// Returns the disk as a process finds it after a power cut with this loss.
    pub(super) fn after_power_cut(&self, loss: PowerLoss) -> Self {
        let before = self.state();
        let mut state = DiskState {
            durable: before.durable.clone(),
            ignores_syncs: before.ignores_syncs,
            late: before.late,
            ..DiskState::default()
        };
        for (index, entry) in before.unsynced.iter().enumerate() {
            if arrives(loss, index, before.unsynced.len()) {
                entry.apply(&mut state.durable);
            }
        }
        state.files = before.files.iter().map(|file| file.after_power_cut(loss)).collect();
        state.seen = state.durable.clone();
        Self::of(state)
    }

    /// Returns the same disk for a new process, without losses and without faults.
    pub(super) fn after_restart(&self) -> Self {
        let mut state = self.state().clone();
        (state.fault, state.dead, state.owed) = (None, false, None);
        Self::of(state)
    }

    /// Replaces the folder's files by those on `other`, as when a copy is restored. Handles of open
    /// files still refer to the old files.
    pub(super) fn turn_into(&self, other: &Self) {
        let other = other.state().clone();
        let mut state = self.state();
        state.seen.retain(|full_name, _| !full_name.starts_with(self.folder));
        state.durable.retain(|full_name, _| !full_name.starts_with(self.folder));
        for (full_name, &file) in
            other.seen.iter().filter(|(full_name, _)| full_name.starts_with(self.folder))
        {
            let copy = state.files.len();
            state.files.push(other.files[file].clone());
            state.seen.insert(full_name.clone(), copy);
            state.durable.insert(full_name.clone(), copy);
        }
    }

    /// Returns all files as processes see them.
    pub(super) fn snapshot(&self) -> BTreeMap<String, Vec<u8>> {
        let state = self.state();
        state.seen.iter().map(|(name, &file)| (name.clone(), state.files[file].seen.clone())).collect()
    }

    /// Returns the contents of `name` as processes see it.
    pub(super) fn content(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        state.seen.get(&self.full_name(name)).map(|&file| state.files[file].seen.clone())
    }

    /// Replaces `name` by `bytes`, durably.
    pub(super) fn put(&self, name: &str, bytes: &[u8]) {
        let mut state = self.state();
        let file = state.files.len();
        state.files.push(FileContent { seen: bytes.to_vec(), durable: bytes.to_vec(), unsynced: vec![] });
        state.seen.insert(self.full_name(name), file);
        state.durable.insert(self.full_name(name), file);
    }

    /// Removes `name`, durably.
    pub(super) fn lose(&self, name: &str) {
        let mut state = self.state();
        state.seen.remove(&self.full_name(name));
        state.durable.remove(&self.full_name(name));
    }

    fn change_entry(&self, entry: NameChange) -> Result<(), StateError> {
        let mut state = self.call(self.path(), false)?;
        entry.apply(&mut state.seen);
        state.unsynced.push(entry);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap()
    }

    /// Locks the state for a changing call, unless a fault strikes.
    fn call(&self, path: &Path, is_sync: bool) -> Result<MutexGuard<'_, DiskState>, StateError> {
        self.stall();
        let mut state = self.state();
        state.call(is_sync).map_or(Ok(()), |struck| Err(fault(path, struck)))?;
        Ok(state)
    }
}

fn arrives(loss: PowerLoss, index: usize, count: usize) -> bool {
    match loss {
        PowerLoss::Everything => false,
        PowerLoss::LaterHalf => 2 * index < count,
        PowerLoss::EarlierHalf => 2 * index >= count,
        PowerLoss::Some(seed) => mix(seed, index as u64).is_multiple_of(2),
        PowerLoss::Nothing | PowerLoss::Torn | PowerLoss::Zeros | PowerLoss::Garbage => true,
    }
}

impl NameChange {
    fn is_in(&self, folder: &str) -> bool {
        let (NameChange::Create(full_name, _)
        | NameChange::Rename(full_name, _)
        | NameChange::Remove(full_name)) = self;
        full_name.starts_with(folder)
    }

    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            NameChange::Create(name, file) => {
                names.insert(name.clone(), *file);
            }
            NameChange::Rename(from, to) => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
            NameChange::Remove(name) => {
                names.remove(name);
            }
        }
    }
}

impl UnsyncedChange {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            UnsyncedChange::Write(offset, new) => {
                let (start, end) = (*offset as usize, *offset as usize + new.len());
                bytes.resize(bytes.len().max(end), 0);
                bytes[start..end].copy_from_slice(new);
            }
            UnsyncedChange::Truncate(length) => bytes.resize(*length as usize, 0),
        }
    }

    /// Returns the part of this change that becomes durable. `last` says whether it is the last
    /// change of its file, which has `old` durable bytes. Only newly allocated bytes may be zero or
    /// arbitrary; an overwritten byte is old or new.
    fn arrived(&self, loss: PowerLoss, last: bool, old: usize) -> Self {
        let UnsyncedChange::Write(offset, bytes) = self else { return self.clone() };
        let mut bytes = bytes.clone();
        let kept = old.saturating_sub(*offset as usize).min(bytes.len());
        match loss {
            PowerLoss::Torn if last => bytes.truncate(bytes.len() / 2),
            PowerLoss::Zeros => bytes[kept..].fill(0),
            PowerLoss::Garbage => {
                (kept..bytes.len()).for_each(|index| bytes[index] = mix(*offset, index as u64) as u8);
            }
            _ => {}
        }
        UnsyncedChange::Write(*offset, bytes)
    }
}

impl FileContent {
    fn after_power_cut(&self, loss: PowerLoss) -> Self {
        let mut bytes = self.durable.clone();
        let count = self.unsynced.len();
        for (index, change) in self.unsynced.iter().enumerate() {
            if arrives(loss, index, count) {
                change.arrived(loss, index + 1 == count, self.durable.len()).apply(&mut bytes);
            }
        }
        Self { seen: bytes.clone(), durable: bytes, unsynced: vec![] }
    }

    fn change(&mut self, change: UnsyncedChange) {
        change.apply(&mut self.seen);
        self.unsynced.push(change);
    }

    /// Makes durable the first `changes` changes that are marked unsynced. A failed sync has
    /// removed the mark.
    fn sync(&mut self, changes: usize) {
        for change in self.unsynced.drain(..changes.min(self.unsynced.len())) {
            change.apply(&mut self.durable);
        }
    }
}

impl DiskState {
    /// Returns whether files that grow by `grown` bytes exceed the capacity. Removed files take no
    /// space.
    fn is_full(&self, grown: usize) -> bool {
        let used = || self.seen.values().map(|&file| self.files[file].seen.len()).sum::<usize>();
        grown > 0 && self.capacity.is_some_and(|capacity| used() + grown > capacity)
    }

    /// Counts a changing call and returns the fault that strikes it.
    fn call(&mut self, is_sync: bool) -> Option<DiskFault> {
        self.calls += 1;
        match self.fault {
            Some((call, DiskFault::Sync)) if self.calls == call + 1 => is_sync.then_some(DiskFault::Sync),
            Some((call, fault)) if self.calls == call + 1 => {
                self.dead = fault == DiskFault::Power;
                Some(fault)
            }
            _ => self.dead.then_some(DiskFault::Power),
        }
    }
}

fn fault(path: &Path, fault: DiskFault) -> StateError {
    let kind = if fault == DiskFault::Full { io::ErrorKind::StorageFull } else { io::ErrorKind::Other };
    refused(path, "reach the simulated disk")(kind.into())
}

impl Storage for SimulatedDisk {
    fn path(&self) -> &Path {
        Path::new(self.folder)
    }

    fn read(&self, name: &str) -> Result<Option<Box<dyn StorageFile>>, StateError> {
        let file = self.state().seen.get(&self.full_name(name)).copied();
        Ok(file.map(|file| -> Box<dyn StorageFile> {
            Box::new(SimulatedFile { disk: self.clone(), file, path: self.path().join(name) })
        }))
    }

    fn write(&self, name: &str) -> Result<Box<dyn StorageFile>, StateError> {
        if self.read(name)?.is_none() {
            let mut state = self.call(self.path(), false)?;
            let file = state.files.len();
            state.files.push(FileContent::default());
            state.seen.insert(self.full_name(name), file);
            state.unsynced.push(NameChange::Create(self.full_name(name), file));
        }
        Ok(self.read(name)?.unwrap())
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), StateError> {
        self.change_entry(NameChange::Rename(self.full_name(from), self.full_name(to)))
    }

    fn remove(&self, name: &str) -> Result<(), StateError> {
        self.change_entry(NameChange::Remove(self.full_name(name)))
    }

    fn sync(&self) -> Result<(), StateError> {
        let mut state = self.call(self.path(), true)?;
        if !state.ignores_syncs {
            let waiting = std::mem::take(&mut state.unsynced);
            let (synced, waiting) = waiting.into_iter().partition(|entry| entry.is_in(self.folder));
            state.unsynced = waiting;
            Vec::into_iter(synced).for_each(|entry| entry.apply(&mut state.durable));
        }
        Ok(())
    }

    fn names(&self) -> Result<Vec<String>, StateError> {
        let state = self.state();
        Ok(state
            .seen
            .keys()
            .filter_map(|full_name| full_name.strip_prefix(self.folder))
            .map(String::from)
            .collect())
    }

    fn reader(&self) -> Result<Box<dyn Storage>, StateError> {
        Ok(Box::new(self.clone()))
    }

    fn share(&self) -> Box<dyn Storage> {
        Box::new(self.clone())
    }

    fn confirm(&self) -> Result<(), StateError> {
        Ok(())
    }

    fn now(&self) -> u64 {
        0
    }

    fn free(&self) -> u64 {
        self.state().free.unwrap_or(u64::MAX)
    }
}

struct SimulatedFile {
    disk: SimulatedDisk,
    file: usize,
    path: PathBuf,
}

impl StorageFile for SimulatedFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn length(&self) -> Result<u64, StateError> {
        Ok(self.disk.state().files[self.file].seen.len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, StateError> {
        let state = self.disk.state();
        let rest = state.files[self.file].seen.get(offset as usize..).unwrap_or_default();
        let filled = rest.len().min(buffer.len());
        buffer[..filled].copy_from_slice(&rest[..filled]);
        Ok(filled)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), StateError> {
        self.disk.stall();
        let mut state = self.disk.state();
        let grown = (offset as usize + bytes.len()).saturating_sub(state.files[self.file].seen.len());
        let struck = state.call(false).or_else(|| state.is_full(grown).then_some(DiskFault::Full));
        let arriving = match struck {
            None => bytes.len(),
            Some(DiskFault::Full) => bytes.len() / 2,
            Some(_) => 0,
        };
        state.files[self.file].change(UnsyncedChange::Write(offset, bytes[..arriving].to_vec()));
        struck.map_or(Ok(()), |struck| Err(fault(&self.path, struck)))
    }

    fn truncate(&self, length: u64) -> Result<(), StateError> {
        self.disk.call(&self.path, false)?.files[self.file].change(UnsyncedChange::Truncate(length));
        Ok(())
    }

    fn sync(&self) -> Result<(), StateError> {
        self.disk.stall();
        let mut state = self.disk.state();
        let (struck, ignores_syncs) = (state.call(true), state.ignores_syncs);
        match struck {
            None if ignores_syncs => {}
            None if state.late => {
                let unsynced = (self.file, state.files[self.file].unsynced.len());
                if let Some((file, changes)) = state.owed.replace(unsynced) {
                    state.files[file].sync(changes);
                }
            }
            None => state.files[self.file].sync(usize::MAX),
            Some(DiskFault::Sync) => state.files[self.file].unsynced.clear(),
            Some(_) => {}
        }
        struck.map_or(Ok(()), |struck| Err(fault(&self.path, struck)))
    }

    fn confirm(&self) -> Result<(), StateError> {
        let found = self.disk.state().seen.get(&self.path.display().to_string()).copied();
        let replaced = || StateError::Replaced { path: self.path.clone() };
        (found == Some(self.file)).then_some(()).ok_or_else(replaced)
    }
}
