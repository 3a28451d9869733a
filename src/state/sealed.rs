//! Small files that are written whole: a file header and one frame, written beside and renamed into place, so that a
//! reader finds the old content or the new, and anything else is damage.

use super::{
    error::StateError,
    format::{FILE_HEADER_LENGTH, Role, file_header},
    frames::encode,
    log::{Reading, damaged, has_file_header, read_frame},
    storage::{Storage, swap_in},
};
use serde::{Serialize, de::DeserializeOwned};

/// A kind of sealed file.
pub(super) struct Sealed {
    pub(super) name: &'static str,
    /// Its name while it is being written.
    pub(super) beside: &'static str,
    pub(super) role: Role,
    /// The kind of its frame.
    pub(super) kind: u8,
}

impl Sealed {
    /// What the file holds, if it exists. Every bit of it counts.
    pub(super) fn read<T: DeserializeOwned>(&self, storage: &dyn Storage) -> Result<Option<T>, StateError> {
        let Some(file) = storage.read(self.name)? else { return Ok(None) };
        let (start, length) = (FILE_HEADER_LENGTH as u64, file.length()?);
        if !has_file_header(&*file, self.role)? {
            return Err(damaged(&*file, 0, "the file header fails its checksum"));
        }
        match read_frame(&*file, start, length)? {
            Reading::Frame(frame) if frame.header.kind != self.kind => {
                Err(damaged(&*file, start, "a frame of this kind does not belong here"))
            }
            Reading::Frame(frame) if frame.end() != length => {
                Err(damaged(&*file, frame.end(), "bytes follow where the file should end"))
            }
            Reading::Frame(frame) => frame.decode(&*file).map(Some),
            _ => Err(damaged(&*file, start, "the frame is cut short or fails its checksum")),
        }
    }

    /// Replaces the file; when this returns, the new content is on disk.
    pub(super) fn write(&self, storage: &dyn Storage, content: &impl Serialize) -> Result<(), StateError> {
        let frame = encode(self.kind, 0, content)?;
        swap_in(storage, self.beside, self.name, &[&file_header(self.role), &frame])
    }
}
