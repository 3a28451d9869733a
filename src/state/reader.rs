//! Reads the public log, while it grows too. Never touches a private file.

use super::{
    error::StateError,
    format::{FILE_HEADER_LENGTH, Role, kind},
    frames::{PublicHeader, ReleaseFrame, ReleasePayload},
    log::{Frame, Reading, damaged, read_file_header, read_frame},
    private_log::follows,
    storage::{Directory, PUBLIC_LOG, Storage, StorageFile},
};
use std::path::Path;

/// Follows the releases of a state directory.
///
/// ```
/// use hushflow::state::{EpochFrame, PublicHeader, PublicReader, Store};
///
/// let outer = tempfile::tempdir()?;
/// let path = outer.path().join("state");
/// let header = PublicHeader { parameters: b"horizon = 10".to_vec(), private: true };
/// let (mut store, _) = Store::open(&path, &header)?;
/// let mut reader = PublicReader::open(&path)?;
/// assert!(reader.next_frame()?.is_none(), "nothing has been committed yet");
///
/// let frame = EpochFrame { epoch: 1, positions: vec![], sums: vec![41].into(), values: vec![43] };
/// store.commit(&[frame])?;
/// assert_eq!(reader.next_frame()?.map(|release| release.values), Some(vec![43]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PublicReader {
    file: Box<dyn StorageFile>,
    header: PublicHeader,
    offset: u64,
    generation: u64,
    epoch: u64,
}

impl PublicReader {
    /// Opens the public log of the state directory at `path`, before its first release. Takes no lock.
    ///
    /// # Errors
    /// [`StateError::Missing`] when no run has begun a public log here.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StateError> {
        Self::of(&Directory::shared(path.as_ref())?)
    }

    pub(super) fn of(storage: &dyn Storage) -> Result<Self, StateError> {
        let missing = || StateError::Missing { path: storage.path().join(PUBLIC_LOG) };
        let file = storage.read(PUBLIC_LOG)?.ok_or_else(missing)?;
        if file.length()? < FILE_HEADER_LENGTH as u64 {
            return Err(missing());
        }
        if !read_file_header(&*file, Role::PublicLog)? {
            return Err(damaged(&*file, 0, "the file header fails its checksum"));
        }
        let frame = next(&*file, FILE_HEADER_LENGTH as u64)?.ok_or_else(missing)?;
        if frame.header.kind != kind::HEADER {
            return Err(damaged(&*file, frame.offset, "a log begins with its header"));
        }
        let header = frame.decode(&*file)?;
        Ok(Self { file, header, offset: frame.end(), generation: 0, epoch: 0 })
    }

    /// What the log says of itself.
    pub fn header(&self) -> &PublicHeader {
        &self.header
    }

    /// The next release, or `None` when it has not been published (or not wholly written) yet: ask again later.
    ///
    /// # Errors
    /// [`StateError::Damaged`] at a frame that fails its checksum, and [`StateError::Disorder`] where an epoch
    /// is not the next one or a generation goes backwards.
    pub fn next_frame(&mut self) -> Result<Option<ReleaseFrame>, StateError> {
        let Some(frame) = next(&*self.file, self.offset)? else { return Ok(None) };
        if frame.header.kind != kind::RELEASE {
            return Err(damaged(&*self.file, frame.offset, "a frame of this kind does not belong here"));
        }
        let payload: ReleasePayload<'_> = frame.decode(&*self.file)?;
        follows(&*self.file, &frame, "epoch", payload.epoch, self.epoch + 1)?;
        let generation = payload.generation;
        follows(&*self.file, &frame, "generation", generation, generation.max(self.generation).max(1))?;
        let release = payload.unpack().ok_or_else(|| {
            damaged(&*self.file, frame.offset, "its integers are not packed as they should be")
        })?;
        (self.epoch, self.generation, self.offset) = (release.epoch, generation, frame.end());
        Ok(Some(release))
    }
}

/// The frame at `offset`, `None` while it is not there as a whole.
fn next(file: &dyn StorageFile, offset: u64) -> Result<Option<Frame>, StateError> {
    let length = file.length()?;
    if length < offset {
        return Err(damaged(file, length, "the file has become shorter than what was read of it"));
    }
    match read_frame(file, offset, length)? {
        Reading::Frame(frame) => Ok(Some(frame)),
        Reading::End | Reading::Partial => Ok(None),
        Reading::Unreadable => Err(damaged(file, offset, "the frame fails its checksum")),
    }
}
