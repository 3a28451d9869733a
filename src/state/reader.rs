//! Reads the public log, even while it grows. Never opens a private file.

use super::{
    chain::{ChainLink, LogHead},
    error::StateError,
    format::{FILE_HEADER_LENGTH, FRAME_HEADER_LENGTH, FileRole, FrameHeader, kind},
    frames::{PublicHeader, ReleaseFrame, ReleasePayload},
    log::{Frame, FrameRead, damaged, has_file_header, read_frame},
    storage::{DirectoryStorage, PUBLIC_LOG, Storage, StorageFile, reopen},
};
use std::path::Path;
use std::time::SystemTime;
use zeroize::Zeroizing;

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
/// let (sums, values) = (vec![41].into(), vec![43]);
/// let frame = EpochFrame { epoch: 1, positions: vec![], sums, values, admitted: None };
/// store.commit(&[frame])?;
/// assert_eq!(reader.next_frame()?.map(|release| release.values), Some(vec![43]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PublicReader {
    storage: Box<dyn Storage>,
    file: Box<dyn StorageFile>,
    header: PublicHeader,
    offset: u64,
    head: LogHead,
    ahead: ReadAhead,
}

/// Bytes of the log after the last frame. Reading a block at once is faster than one call for each
/// small frame. The bytes are used only to find whole frames.
#[derive(Default)]
struct ReadAhead {
    start: u64,
    bytes: Vec<u8>,
}

impl ReadAhead {
    /// Bytes read at once.
    const LENGTH: usize = 1 << 16;

    /// Largest frame after which a block is read ahead.
    const SMALL: u64 = 1 << 12;

    /// Returns the intact frame at an offset, if all of it has been read.
    fn frame(&self, offset: u64) -> Option<Frame> {
        let rest = self.bytes.get(usize::try_from(offset.checked_sub(self.start)?).ok()?..)?;
        let (header, rest) = rest.split_first_chunk::<FRAME_HEADER_LENGTH>()?;
        let header = FrameHeader::from_bytes(header)?;
        let payload = rest.get(..header.length as usize)?;
        header.accepts(payload).then(|| Frame { offset, header, payload: Zeroizing::new(payload.to_vec()) })
    }

    /// Reads bytes from an offset.
    fn read(&mut self, file: &dyn StorageFile, offset: u64) -> Result<(), StateError> {
        self.start = offset;
        self.bytes.resize(Self::LENGTH, 0);
        let filled = file.read_at(offset, &mut self.bytes)?;
        self.bytes.truncate(filled);
        Ok(())
    }
}

impl PublicReader {
    /// Opens the public log in the directory at `path`, before its first release. The directory is
    /// a state directory, or one that holds only the public log. Takes no lock.
    ///
    /// # Errors
    /// [`StateError::Missing`] if no run has begun a public log here.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StateError> {
        Self::of(Box::new(DirectoryStorage::shared(path.as_ref())?))
    }

    pub(super) fn of(storage: Box<dyn Storage>) -> Result<Self, StateError> {
        let missing = || StateError::Missing { path: storage.path_of(PUBLIC_LOG) };
        let file = storage.read(PUBLIC_LOG)?.ok_or_else(missing)?;
        if file.length()? < FILE_HEADER_LENGTH as u64 {
            return Err(missing());
        }
        if !has_file_header(&*file, FileRole::PublicLog)? {
            return Err(damaged(&*file, 0, "the file header fails its checksum"));
        }
        let frame = next(&*file, FILE_HEADER_LENGTH as u64)?.ok_or_else(missing)?;
        if frame.header.kind != kind::HEADER {
            return Err(damaged(&*file, frame.offset, "the log does not begin with its header"));
        }
        let header = frame.decode(&*file)?;
        let head = LogHead::before(&frame.payload);
        Ok(Self { storage, file, header, offset: frame.end(), head, ahead: ReadAhead::default() })
    }

    /// Returns the last run and epoch read.
    pub(super) fn head(&self) -> LogHead {
        self.head
    }

    /// Returns the log's header.
    pub fn header(&self) -> &PublicHeader {
        &self.header
    }

    /// Returns the time at which the newest release was published: the modification time of the
    /// log's file, if the file system has one.
    pub fn written_at(&self) -> Option<SystemTime> {
        std::fs::metadata(self.file.path()).and_then(|metadata| metadata.modified()).ok()
    }

    /// Returns the next release, or `None` if it has not been completely published yet: ask again
    /// later.
    ///
    /// # Errors
    /// - [`StateError::Damaged`] at a frame that fails its checksum.
    /// - [`StateError::Disorder`] if an epoch is not the next one or a generation goes backwards.
    /// - [`StateError::Forked`] if a release does not continue the history read by this reader.
    /// - [`StateError::WentBack`] if part of that history is gone.
    pub fn next_frame(&mut self) -> Result<Option<ReleaseFrame>, StateError> {
        let Some(frame) = self.next_of_any_kind()? else { return Ok(None) };
        if frame.header.kind != kind::RELEASE {
            return Err(damaged(&*self.file, frame.offset, "a frame of this kind does not belong here"));
        }
        let (payload, stored): (ReleasePayload<'_>, ChainLink) = frame.decode(&*self.file)?;
        let mut head = self.head;
        head.advance(&*self.file, &frame, &payload, stored)?;
        let release = payload
            .unpack(head.link)
            .ok_or_else(|| damaged(&*self.file, frame.offset, "the packed integers are malformed"))?;
        (self.head, self.offset) = (head, frame.end());
        Ok(Some(release))
    }

    /// Returns the next frame of the open file, or of another file that has replaced it.
    fn next_of_any_kind(&mut self) -> Result<Option<Frame>, StateError> {
        if let Some(frame) = self.ahead.frame(self.offset) {
            return Ok(Some(frame));
        }
        if let Some(frame) = next(&*self.file, self.offset)? {
            if frame.header.frame_length() <= ReadAhead::SMALL {
                self.ahead.read(&*self.file, frame.end())?;
            }
            return Ok(Some(frame));
        }
        self.file = reopen(&*self.storage, PUBLIC_LOG)?;
        if self.file.length()? < self.offset {
            let path = self.file.path().to_owned();
            return Err(StateError::WentBack { path, epoch: self.head.epoch });
        }
        next(&*self.file, self.offset)
    }
}

/// Returns the frame at `offset`, `None` until it is complete.
fn next(file: &dyn StorageFile, offset: u64) -> Result<Option<Frame>, StateError> {
    match read_frame(file, offset, file.length()?)? {
        FrameRead::Frame(frame) => Ok(Some(frame)),
        FrameRead::End | FrameRead::Partial => Ok(None),
        FrameRead::Unreadable => Err(damaged(file, offset, "the frame fails its checksum")),
    }
}
