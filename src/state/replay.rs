//! Reads committed epochs back, across segments.

use super::{
    chain::ChainLink,
    error::StateError,
    format::{FILE_HEADER_LENGTH, kind},
    frames::{EpochFrame, EpochPayload},
    log::{Frame, FrameRead, damaged, read_frame},
    private_log::LogPosition,
    storage::{Storage, StorageFile, reopen, segment_name},
};

/// The committed epochs after the checkpoint, in order. Feeding them to the encoder restores its
/// state.
pub struct Replay {
    storage: Box<dyn Storage>,
    /// Position of the next frame.
    next: LogPosition,
    end: LogPosition,
    /// The segment with the next frame, once opened.
    file: Option<Box<dyn StorageFile>>,
}

impl Replay {
    /// Reads the epoch frames between `from` and `end`, which are known to be readable.
    pub(super) fn between(storage: Box<dyn Storage>, from: LogPosition, end: LogPosition) -> Self {
        Self { storage, next: from, end, file: None }
    }

    /// Calls `take` with every epoch, still packed, and its link.
    pub(super) fn for_each_packed(
        mut self,
        mut take: impl FnMut(EpochPayload<'_>, ChainLink) -> Result<(), StateError>,
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
            let (LogPosition { segment, offset }, end) = (self.next, self.end);
            let last = segment == end.segment;
            let file = self.file()?;
            let length = if last { end.offset } else { file.length()? };
            match read_frame(file, offset, length)? {
                FrameRead::Frame(frame) => {
                    self.next.offset = frame.end();
                    if matches!(frame.header.kind, kind::EPOCH | kind::ENTITY_EPOCH) {
                        return Ok(Some(frame));
                    }
                }
                FrameRead::End if last => self.next = self.end,
                FrameRead::End => {
                    self.file = None;
                    self.next = LogPosition { segment: segment + 1, offset: FILE_HEADER_LENGTH as u64 };
                }
                FrameRead::Partial | FrameRead::Unreadable => {
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
