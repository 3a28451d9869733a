//! Reads committed epochs back, across segments.

use super::{
    chain::Link,
    error::StateError,
    format::{FILE_HEADER_LENGTH, kind},
    frames::{EpochFrame, EpochPayload},
    log::{Frame, Reading, damaged, read_frame},
    private_log::Place,
    storage::{Storage, StorageFile, reopen, segment_name},
};

/// The committed epochs after the checkpoint, in order. Feeding them to the encoder restores its
/// state.
pub struct Replay {
    storage: Box<dyn Storage>,
    /// Position of the next frame.
    next: Place,
    end: Place,
    /// The segment with the next frame, once opened.
    file: Option<Box<dyn StorageFile>>,
}

impl Replay {
    /// Reads the epoch frames between `from` and `end`, which are known to be readable.
    pub(super) fn between(storage: Box<dyn Storage>, from: Place, end: Place) -> Self {
        Self { storage, next: from, end, file: None }
    }

    /// Calls `take` with every epoch, still packed, and its link.
    pub(super) fn for_each_packed(
        mut self,
        mut take: impl FnMut(EpochPayload<'_>, Link) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        while let Some(frame) = self.next_packed()? {
            let (epoch, link) = frame.decode_epoch(self.file()?)?;
            take(epoch, link)?;
        }
        Ok(())
    }

    fn next_epoch(&mut self) -> Result<Option<EpochFrame>, StateError> {
        let Some(frame) = self.next_packed()? else { return Ok(None) };
        let file = self.file()?;
        let (epoch, _) = frame.decode_epoch(file)?;
        let malformed = || damaged(file, frame.offset, "its integers are not packed as they should be");
        epoch.unpack().ok_or_else(malformed).map(Some)
    }

    /// Returns the next epoch frame, still packed.
    fn next_packed(&mut self) -> Result<Option<Frame>, StateError> {
        while self.next != self.end {
            let (Place { segment, offset }, end) = (self.next, self.end);
            let last = segment == end.segment;
            let file = self.file()?;
            let length = if last { end.offset } else { file.length()? };
            match read_frame(file, offset, length)? {
                Reading::Frame(frame) => {
                    self.next.offset = frame.end();
                    if matches!(frame.header.kind, kind::EPOCH | kind::ENTITY_EPOCH) {
                        return Ok(Some(frame));
                    }
                }
                Reading::End if last => self.next = self.end,
                Reading::End => {
                    self.file = None;
                    self.next = Place { segment: segment + 1, offset: FILE_HEADER_LENGTH as u64 };
                }
                Reading::Partial | Reading::Unreadable => {
                    return Err(damaged(file, offset, "the frame was readable a moment ago"));
                }
            }
        }
        Ok(None)
    }

    /// Returns the segment with the next frame.
    fn file(&mut self) -> Result<&dyn StorageFile, StateError> {
        let name = segment_name(self.next.segment);
        let file = match self.file.take() {
            Some(file) => file,
            None => reopen(&*self.storage, &name)?,
        };
        Ok(&**self.file.insert(file))
    }
}

impl Iterator for Replay {
    type Item = Result<EpochFrame, StateError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_epoch().transpose();
        if matches!(next, Some(Err(_))) {
            self.next = self.end;
        }
        next
    }
}
