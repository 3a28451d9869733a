//! Files of frames: functions read the next frame, find a frame behind damage, and append frames.
//! Also small files of one frame, which are written under a temporary name and then renamed.
//!
//! A number is trusted only after its checksum is verified, and no allocation exceeds the file's
//! size.

use super::{
    chain::ChainLink,
    error::StateError,
    format::{
        FILE_HEADER_LENGTH, FRAME_HEADER_LENGTH, FileRole, FrameHeader, HeaderFlaw, VERSION,
        check_file_header, file_header, kind,
    },
    frames::{EpochPayload, decode, encode},
    storage::{Storage, StorageFile, swap_in},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use zeroize::Zeroizing;

/// Space to leave for the files that are written between the reservation and the commit.
const SPARE: u64 = 1 << 15;

/// A frame whose checksums match.
pub(super) struct Frame {
    /// Offset in the file.
    pub(super) offset: u64,
    pub(super) header: FrameHeader,
    pub(super) payload: Zeroizing<Vec<u8>>,
}

impl Frame {
    /// Offset of the next frame.
    pub(super) fn end(&self) -> u64 {
        self.offset + self.header.frame_length()
    }

    /// Decodes the payload as a `T`; errors name `file`.
    pub(super) fn decode<'a, T: Deserialize<'a>>(&'a self, file: &dyn StorageFile) -> Result<T, StateError> {
        decode(&self.payload)
            .map_err(|_| damaged(file, self.offset, "the payload does not have the form of its kind"))
    }

    /// Decodes the epoch and its link from a frame of either epoch kind.
    pub(super) fn decode_epoch(
        &self,
        file: &dyn StorageFile,
    ) -> Result<(EpochPayload<'_>, ChainLink), StateError> {
        if self.header.kind != kind::ENTITY_EPOCH {
            return self.decode(file);
        }
        let ((epoch, admitted), link): ((EpochPayload<'_>, &[u8]), _) = self.decode(file)?;
        Ok((EpochPayload { admitted: Some(admitted), ..epoch }, link))
    }
}

/// Result of reading at an offset.
pub(super) enum FrameRead {
    /// An intact frame.
    Frame(Frame),
    /// The end of the file.
    End,
    /// An incomplete frame. If its header is complete, the header is intact.
    Partial,
    /// Other bytes: a damaged frame or header.
    Unreadable,
}

/// Reads the frame at `offset` of a file of `length` bytes.
pub(super) fn read_frame(file: &dyn StorageFile, offset: u64, length: u64) -> Result<FrameRead, StateError> {
    read_frame_into(file, offset, length, Zeroizing::default())
}

/// Reads a frame into the memory of an earlier payload. Wiping and allocating memory would take as
/// long as reading.
pub(super) fn read_frame_into(
    file: &dyn StorageFile,
    offset: u64,
    length: u64,
    mut payload: Zeroizing<Vec<u8>>,
) -> Result<FrameRead, StateError> {
    if offset >= length {
        return Ok(FrameRead::End);
    }
    let mut header = [0; FRAME_HEADER_LENGTH];
    if length - offset < header.len() as u64 || file.read_at(offset, &mut header)? < header.len() {
        return Ok(FrameRead::Partial);
    }
    let Some(header) = FrameHeader::from_bytes(&header) else {
        return Ok(FrameRead::Unreadable);
    };
    if length - offset < header.frame_length() {
        return Ok(FrameRead::Partial);
    }
    if payload.capacity() < header.length as usize {
        // Allocate a new buffer, because growing would leave a copy in freed memory.
        payload = Zeroizing::new(Vec::with_capacity(header.length as usize));
    }
    payload.resize(header.length as usize, 0);
    file.read_at(offset + FRAME_HEADER_LENGTH as u64, &mut payload)?;
    Ok(if header.accepts(&payload) {
        FrameRead::Frame(Frame { offset, header, payload })
    } else {
        FrameRead::Unreadable
    })
}

/// Returns the first intact frame that begins at or after `from`.
pub(super) fn find_frame(
    file: &dyn StorageFile,
    mut from: u64,
    length: u64,
) -> Result<Option<Frame>, StateError> {
    let mut window = Zeroizing::new(vec![0; 1 << 16]);
    while from < length {
        let filled = file.read_at(from, &mut window)?;
        for shift in 0..filled {
            if window[shift..filled].first_chunk().and_then(FrameHeader::from_bytes).is_some()
                && let FrameRead::Frame(frame) = read_frame(file, from + shift as u64, length)?
            {
                return Ok(Some(frame));
            }
        }
        if filled < window.len() {
            break;
        }
        // The next window starts at the first header that does not fit in this one.
        from += (window.len() - FRAME_HEADER_LENGTH + 1) as u64;
    }
    Ok(None)
}

/// Returns whether the bytes from `end` on, which form no frame, had been synced according to a
/// later frame. Otherwise they are left over from a write that was never acknowledged.
pub(super) fn is_damaged(file: &dyn StorageFile, end: u64, length: u64) -> Result<bool, StateError> {
    let mut from = end;
    while let Some(frame) = find_frame(file, from, length)? {
        if frame.header.synced_length > end {
            return Ok(true);
        }
        from = frame.end();
    }
    Ok(false)
}

/// Returns whether the file begins with the header of `role`; false only for a torn or damaged
/// header.
///
/// # Errors
/// An intact header of another version or role.
pub(super) fn has_file_header(file: &dyn StorageFile, role: FileRole) -> Result<bool, StateError> {
    let mut bytes = [0; FILE_HEADER_LENGTH];
    let filled = file.read_at(0, &mut bytes)?;
    match check_file_header(&bytes[..filled], role) {
        Ok(()) => Ok(true),
        Err(HeaderFlaw::Unreadable) => Ok(false),
        Err(HeaderFlaw::Version(found)) => {
            let path = file.path().to_owned();
            Err(StateError::UnknownVersion { path, found, supported: VERSION })
        }
        Err(HeaderFlaw::Role) => Err(damaged(file, 0, "the file header belongs to another kind of file")),
    }
}

/// Returns the frame of a file of `role` that holds exactly one frame, of one of `kinds`.
pub(super) fn only_frame(
    file: &dyn StorageFile,
    role: FileRole,
    kinds: &[u8],
) -> Result<Option<Frame>, StateError> {
    if !has_file_header(file, role)? {
        return Ok(None);
    }
    let length = file.length()?;
    Ok(match read_frame(file, FILE_HEADER_LENGTH as u64, length)? {
        FrameRead::Frame(frame) if frame.end() == length && kinds.contains(&frame.header.kind) => Some(frame),
        _ => None,
    })
}

/// A kind of small file with a single frame. A reader finds either the old or the new content. Any
/// other content is damage.
pub(super) struct SealedFile {
    pub(super) name: &'static str,
    /// Name of the file while it is being written.
    pub(super) temporary_name: &'static str,
    pub(super) role: FileRole,
    /// Kind of the file's frame.
    pub(super) kind: u8,
}

impl SealedFile {
    /// Returns the content, if the file exists. Any changed bit is an error.
    pub(super) fn read<T: DeserializeOwned>(&self, storage: &dyn Storage) -> Result<Option<T>, StateError> {
        let Some(file) = storage.read(self.name)? else { return Ok(None) };
        let (start, length) = (FILE_HEADER_LENGTH as u64, file.length()?);
        if !has_file_header(&*file, self.role)? {
            return Err(damaged(&*file, 0, "the file header fails its checksum"));
        }
        match read_frame(&*file, start, length)? {
            FrameRead::Frame(frame) if frame.header.kind != self.kind => {
                Err(damaged(&*file, start, "a frame of this kind does not belong here"))
            }
            FrameRead::Frame(frame) if frame.end() != length => {
                Err(damaged(&*file, frame.end(), "there are bytes after the last frame"))
            }
            FrameRead::Frame(frame) => frame.decode(&*file).map(Some),
            _ => Err(damaged(&*file, start, "the frame is cut short or fails its checksum")),
        }
    }

    /// Replaces the file. The new content is on disk when this returns.
    pub(super) fn write(&self, storage: &dyn Storage, content: &impl Serialize) -> Result<(), StateError> {
        let frame = encode(self.kind, 0, content)?;
        swap_in(storage, self.temporary_name, self.name, &[&file_header(self.role), &frame])
    }
}

/// Builds the error for damage at `offset` of `file`.
pub(super) fn damaged(file: &dyn StorageFile, offset: u64, damage: &'static str) -> StateError {
    StateError::Damaged { path: file.path().to_owned(), offset, damage }
}

/// A file that grows frame by frame.
pub(super) struct FrameAppender {
    file: Box<dyn StorageFile>,
    end: u64,
    synced: u64,
}

impl FrameAppender {
    /// Appends at `end`. The bytes before it must be synced or rebuildable.
    pub(super) fn at(file: Box<dyn StorageFile>, end: u64) -> Self {
        Self { file, end, synced: end }
    }

    /// Length of the file known to be on disk: the synced length of the next frame.
    pub(super) fn synced(&self) -> u64 {
        self.synced
    }

    /// Fails if the path no longer leads to this file.
    pub(super) fn confirm(&self) -> Result<(), StateError> {
        self.file.confirm()
    }

    pub(super) fn append(&mut self, frame: &[u8]) -> Result<(), StateError> {
        self.file.write_at(self.end, frame)?;
        self.end += frame.len() as u64;
        Ok(())
    }

    /// Writes zeros, which form no frame, to the `length` bytes behind the end, and checks that
    /// [`SPARE`] more bytes are free.
    pub(super) fn reserve(&self, length: u64) -> Result<(), StateError> {
        static ZEROS: [u8; SPARE as usize] = [0; SPARE as usize];
        let (mut from, end) = (self.end, self.end + length + SPARE);
        while from < end {
            let part = ZEROS.len().min(usize::try_from(end - from).unwrap_or(ZEROS.len()));
            self.file.write_at(from, &ZEROS[..part])?;
            from += part as u64;
        }
        self.file.truncate(self.end + length)?;
        self.file.sync()
    }

    /// Durably removes bytes appended since the last sync, because another file may follow this
    /// one.
    pub(super) fn discard_unsynced(&mut self) -> Result<(), StateError> {
        self.end = self.synced;
        self.file.truncate(self.synced)?;
        self.file.sync()
    }

    pub(super) fn sync(&mut self) -> Result<(), StateError> {
        self.file.sync()?;
        self.synced = self.end;
        Ok(())
    }
}
