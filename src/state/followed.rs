//! Lists of followed files: names in the order of their numbers.
//!
//! A file number in a source's position has a meaning only through this list. If a name were lost
//! or changed, a file's rows would count twice. Each list is a file of frames with the same checks
//! as the logs; names are stored as bytes and are on disk before any of their rows is read. A torn
//! tail that no position refers to is cut. A list too short for the log's position is refused.

use super::{
    Store,
    error::StateError,
    format::{FILE_HEADER_LENGTH, FileRole, file_header, kind},
    frames::encode,
    log::{FrameAppender, FrameRead, damaged, has_file_header, is_damaged, read_frame},
    resume::rewrite,
    storage::{DirectoryStorage, Storage, StorageFile, swap_in},
};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Name of the only list, and prefix of the names of several.
const LIST: &str = "followed";
/// Name of a list while its header is being written.
const NEW_LIST: &str = "followed.new";
/// Maximum number of names in a frame.
const FRAME_NAMES: usize = 1 << 14;

/// The list of one source, which grows.
pub struct FollowedList {
    log: FrameAppender,
    source: u64,
    names: u64,
}

/// Names of files that were found together.
#[derive(Serialize, Deserialize)]
struct NamesPayload {
    /// The number of the source, from 1; 0 for the only one.
    source: u64,
    /// The number of the first name.
    first: u64,
    names: Vec<Vec<u8>>,
}

struct ListContent {
    names: Vec<Vec<u8>>,
    length: u64,
    /// Offset at which its readable part ends.
    end: u64,
    /// No readable frame proves that bytes after this offset were synced.
    unproven: u64,
}

/// Returns the list name of source number `source`, from 1; 0 for a single source.
fn list_name(source: u64) -> String {
    if source == 0 { LIST.into() } else { format!("{LIST}-{source}") }
}

/// Returns the number of the source whose list has this name.
fn source_of(name: &str) -> Option<u64> {
    let number = name.strip_prefix(LIST)?;
    let source = if number.is_empty() { 0 } else { number.strip_prefix('-')?.parse().ok()? };
    (list_name(source) == name).then_some(source)
}

impl Store {
    /// Opens the list of the source with this number (from 1, or 0 for a single source) and returns
    /// it with its names. `reached` is the number, from 0, of the last file of which anything was
    /// read.
    ///
    /// # Errors
    /// [`StateError::Damaged`] if synced bytes have changed, [`StateError::ListShort`] if the list
    /// ends before `reached`, and errors of the disk.
    pub fn followed(
        &self,
        source: u64,
        reached: Option<u32>,
    ) -> Result<(FollowedList, Vec<Vec<u8>>), StateError> {
        FollowedList::open(&*self.storage, source, reached)
    }
}

impl FollowedList {
    pub(super) fn open(
        storage: &dyn Storage,
        source: u64,
        reached: Option<u32>,
    ) -> Result<(Self, Vec<Vec<u8>>), StateError> {
        let name = list_name(source);
        if storage.read(&name)?.is_none() {
            swap_in(storage, NEW_LIST, &name, &[&file_header(FileRole::Followed)])?;
        }
        let file = storage.write(&name)?;
        let content = ListContent::read(&*file, source)?;
        content.check_reaches(reached, &*file)?;
        if content.length > content.end {
            file.truncate(content.end)?;
        }
        rewrite(&*file, content.unproven, content.end)?;
        file.sync()?;
        let list =
            Self { log: FrameAppender::at(file, content.end), source, names: content.names.len() as u64 };
        Ok((list, content.names))
    }

    /// Appends `names` under the next numbers. They are durable when this returns.
    ///
    /// # Errors
    /// Errors of the disk, or a list that has been replaced in the state directory.
    pub fn add(&mut self, names: &[Vec<u8>]) -> Result<(), StateError> {
        self.log.confirm()?;
        let synced = self.log.synced();
        for names in names.chunks(FRAME_NAMES) {
            let payload = NamesPayload { source: self.source, first: self.names, names: names.to_vec() };
            self.log.append(&encode(kind::FOLLOWED, synced, &payload)?)?;
            self.names += names.len() as u64;
        }
        self.log.sync()
    }
}

impl ListContent {
    fn read(file: &dyn StorageFile, source: u64) -> Result<Self, StateError> {
        if !has_file_header(file, FileRole::Followed)? {
            return Err(damaged(
                file,
                0,
                "its beginning was synced before it was renamed, but is not intact",
            ));
        }
        let (length, end) = (file.length()?, FILE_HEADER_LENGTH as u64);
        let mut found = ListContent { names: Vec::new(), length, end, unproven: end };
        while let FrameRead::Frame(frame) = read_frame(file, found.end, length)? {
            let synced = frame.header.synced_length;
            if frame.header.kind != kind::FOLLOWED || synced < found.unproven || synced > frame.offset {
                return Err(damaged(file, frame.offset, "this frame cannot follow those before it"));
            }
            let NamesPayload { source: found_source, first, names } = frame.decode(file)?;
            if (found_source, first) != (source, found.names.len() as u64) {
                return Err(damaged(
                    file,
                    frame.offset,
                    "the frame belongs to another list of followed files",
                ));
            }
            found.names.extend(names);
            (found.end, found.unproven) = (frame.end(), synced);
        }
        if is_damaged(file, found.end, length)? {
            return Err(damaged(file, found.end, "a frame fails its checksum, and was synced"));
        }
        Ok(found)
    }

    /// Refuses a list that ends before file number `reached`.
    fn check_reaches(&self, reached: Option<u32>, file: &dyn StorageFile) -> Result<(), StateError> {
        let (found, expected) = (self.names.len(), reached.map_or(0, |file| file as usize + 1));
        let short = || StateError::ListShort { path: file.path().to_owned(), found, expected };
        (found >= expected).then_some(()).ok_or_else(short)
    }
}

/// Checks all lists in the state directory at `path`. `reached` has, for each source that follows
/// files, the number of the source and that of the last file of which anything was read. Takes no
/// lock: a run may be active.
///
/// # Errors
/// The first problem found.
pub fn verify_followed(path: impl AsRef<Path>, reached: &[(u64, u32)]) -> Result<(), StateError> {
    verify_lists(&DirectoryStorage::shared(path.as_ref())?, reached)
}

pub(super) fn verify_lists(storage: &dyn Storage, reached: &[(u64, u32)]) -> Result<(), StateError> {
    let names = storage.names()?;
    let stored = names.iter().filter_map(|name| source_of(name)).map(|source| (source, None));
    for (source, reached) in stored.chain(reached.iter().map(|&(source, file)| (source, Some(file)))) {
        match storage.read(&list_name(source))? {
            Some(file) => ListContent::read(&*file, source)?.check_reaches(reached, &*file)?,
            None if reached.is_none() => {}
            None => {
                let (path, expected) =
                    (storage.path().join(list_name(source)), reached.map_or(0, |file| file as usize + 1));
                return Err(StateError::ListShort { path, found: 0, expected });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::simulated::SimulatedDisk, *};

    fn names() -> [Vec<u8>; 5] {
        [b"a.csv".to_vec(), b"b\r".to_vec(), b"c\nd".to_vec(), vec![0xff, 0xfe], vec![]]
    }

    /// Writes names to a list in three steps; returns its length after each.
    fn listed(disk: &SimulatedDisk) -> Vec<usize> {
        let [a, b, c, d, e] = names();
        let (mut list, none) = FollowedList::open(disk, 2, None).unwrap();
        assert!(none.is_empty());
        let length = || disk.content("followed-2").unwrap().len();
        let mut lengths = vec![length()];
        for found in [&[a, b][..], &[c], &[d, e]] {
            list.add(found).unwrap();
            lengths.push(length());
        }
        lengths
    }

    #[test]
    fn names_of_any_bytes_keep_their_numbers() {
        let disk = SimulatedDisk::default();
        listed(&disk);
        let (mut list, found) = FollowedList::open(&disk, 2, Some(4)).unwrap();
        assert_eq!(found, names());
        list.add(&[b"last".to_vec()]).unwrap();
        let (_, found) = FollowedList::open(&disk, 2, Some(5)).unwrap();
        assert_eq!((found.len(), &found[5][..]), (6, &b"last"[..]));
        verify_lists(&disk, &[(2, 5)]).unwrap();
        assert!(matches!(verify_lists(&disk, &[(2, 6)]), Err(StateError::ListShort { expected: 7, .. })));
        assert!(matches!(verify_lists(&disk, &[(1, 0)]), Err(StateError::ListShort { found: 0, .. })));
        assert!(FollowedList::open(&disk, 2, Some(6)).is_err());
    }

    /// Changes to names that a position needs are errors. Changes to later names keep the earlier
    /// ones; the rest is found again.
    #[test]
    fn every_flipped_bit_and_every_cut_is_refused_or_forgets_unread_names_alone() {
        let disk = SimulatedDisk::default();
        let lengths = listed(&disk);
        let bytes = disk.content("followed-2").unwrap();
        let check = |changed: &[u8], at: usize, reached: u32| {
            let disk = SimulatedDisk::default();
            disk.put("followed-2", changed);
            let verified = verify_lists(&disk, &[(2, reached)]);
            match FollowedList::open(&disk, 2, Some(reached)) {
                Err(_) => assert!(verified.is_err(), "byte {at}: only a start refuses"),
                Ok((_, found)) => {
                    assert!(verified.is_ok() && found.len() > reached as usize, "byte {at}");
                    assert!(names().starts_with(&found), "byte {at}: other names");
                }
            }
        };
        for reached in [0, 2, 4] {
            for bit in 0..8 * bytes.len() {
                let mut bad = bytes.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                check(&bad, bit / 8, reached);
            }
            (0..bytes.len()).for_each(|length| check(&bytes[..length], length, reached));
        }
        // Damage before the last frame is an error for any `reached`.
        let mut bad = bytes.clone();
        bad[lengths[1] - 1] ^= 1;
        disk.put("followed-2", &bad);
        assert!(matches!(FollowedList::open(&disk, 2, None), Err(StateError::Damaged { .. })));
    }

    #[test]
    fn a_list_of_another_source_is_refused() {
        let disk = SimulatedDisk::default();
        listed(&disk);
        disk.put("followed-1", &disk.content("followed-2").unwrap());
        assert!(matches!(FollowedList::open(&disk, 1, None), Err(StateError::Damaged { .. })));
        assert!(verify_lists(&disk, &[]).is_err());
    }

    #[test]
    fn lists_are_known_by_their_names() {
        for (name, source) in [("followed", Some(0)), ("followed-12", Some(12)), ("followed.new", None)] {
            assert_eq!(source_of(name), source, "{name}");
        }
        assert!(["followed-0", "followed-01", "followed-x", "follow"].iter().all(|n| source_of(n).is_none()));
    }
}
