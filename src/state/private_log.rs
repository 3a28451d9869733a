//! The private log: a header, then per run one generation frame and the epoch frames it committed.
//!
//! Its readable part decides what has happened. What follows an unreadable frame is either a torn tail, never
//! acknowledged, or damage: the synced length of any later frame tells (`docs/formats.md`).

use super::{
    error::StateError,
    format::{FILE_HEADER_LENGTH, Role, file_header, kind},
    frames::{EpochFrame, EpochPayload, GenerationPayload, PublicHeader, encode},
    log::{Frame, Reading, damaged, find_frame, read_file_header, read_frame},
    storage::StorageFile,
};
use zeroize::Zeroizing;

/// What the private log holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PrivateFacts {
    /// The payload of the header frame, if the log has a readable beginning.
    pub(super) header: Option<Vec<u8>>,
    /// Bytes in the file.
    pub(super) length: u64,
    /// Bytes of it that are readable frames, from the start.
    pub(super) end: u64,
    /// Nothing in the readable part says that what follows this offset has been synced.
    pub(super) unproven: u64,
    /// The last run, 0 before the first.
    pub(super) generation: u64,
    /// The last committed epoch, 0 before the first.
    pub(super) epoch: u64,
    /// What follows the readable part.
    pub(super) tail: Tail,
}

/// What follows the readable part of the private log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tail {
    /// Nothing.
    Clean,
    /// What is left of a commit that was not acknowledged.
    Torn,
    /// Bytes that had been synced: a later frame says so.
    Damaged,
}

/// A frame of the private log, in its place.
pub(super) enum Entry<'a> {
    Header,
    Generation,
    Epoch(EpochPayload<'a>),
}

impl PrivateFacts {
    /// Of a log that isn't there.
    pub(super) fn none() -> Self {
        Self { header: None, length: 0, end: 0, unproven: 0, generation: 0, epoch: 0, tail: Tail::Clean }
    }

    /// Reads the whole log and calls `visit` with every frame, in order. After an error, the facts describe what
    /// came before it.
    pub(super) fn gather(
        &mut self,
        file: &dyn StorageFile,
        mut visit: impl FnMut(&Frame, Entry<'_>) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        self.length = file.length()?;
        if read_file_header(file, Role::PrivateLog)? {
            let mut offset = FILE_HEADER_LENGTH as u64;
            while let Reading::Frame(frame) = read_frame(file, offset, self.length)? {
                visit(&frame, self.admit(file, &frame)?)?;
                offset = frame.end();
                self.end = offset;
                self.unproven = frame.header.synced_length;
            }
        }
        self.tail = self.judge_tail(file)?;
        Ok(())
    }

    /// Checks that `frame` may follow what came before, and takes it in.
    fn admit<'f>(&mut self, file: &dyn StorageFile, frame: &'f Frame) -> Result<Entry<'f>, StateError> {
        let synced = frame.header.synced_length;
        if synced < self.unproven || synced > frame.offset {
            return Err(damaged(
                file,
                frame.offset,
                "its synced length is not one that a run could write here",
            ));
        }
        match (frame.header.kind, &self.header) {
            (kind::HEADER, None) => {
                self.header = Some(frame.payload.to_vec());
                Ok(Entry::Header)
            }
            (kind::GENERATION, Some(_)) => {
                let GenerationPayload { generation } = frame.decode(file)?;
                follows(file, frame, "generation", generation, self.generation + 1)?;
                self.generation = generation;
                Ok(Entry::Generation)
            }
            (kind::EPOCH, Some(_)) => {
                let payload: EpochPayload<'_> = frame.decode(file)?;
                follows(file, frame, "generation", payload.generation, self.generation)?;
                follows(file, frame, "epoch", payload.epoch, self.epoch + 1)?;
                self.epoch = payload.epoch;
                Ok(Entry::Epoch(payload))
            }
            _ => Err(damaged(file, frame.offset, "a frame of this kind does not belong here")),
        }
    }

    fn judge_tail(&self, file: &dyn StorageFile) -> Result<Tail, StateError> {
        if self.end == self.length {
            return Ok(Tail::Clean);
        }
        let mut from = self.end;
        while let Some(frame) = find_frame(file, from, self.length)? {
            if frame.header.synced_length > self.end {
                return Ok(Tail::Damaged);
            }
            from = frame.end();
        }
        Ok(Tail::Torn)
    }
}

/// An error unless `found` is `expected`.
pub(super) fn follows(
    file: &dyn StorageFile,
    frame: &Frame,
    what: &'static str,
    found: u64,
    expected: u64,
) -> Result<(), StateError> {
    if found == expected {
        return Ok(());
    }
    Err(StateError::Disorder { path: file.path().to_owned(), offset: frame.offset, what, found, expected })
}

/// The file header and the header frame: how a log of `role` begins.
pub(super) fn beginning(role: Role, header: &PublicHeader) -> Result<Vec<u8>, StateError> {
    Ok([&file_header(role)[..], &encode(kind::HEADER, 0, header)?].concat())
}

/// The frame that opens a run.
pub(super) fn generation_frame(
    generation: u64,
    synced_length: u64,
) -> Result<Zeroizing<Vec<u8>>, StateError> {
    encode(kind::GENERATION, synced_length, &GenerationPayload { generation })
}

/// The committed epochs after the checkpoint, in order: what the encoder must be fed to stand where it stood.
pub struct Replay {
    file: Box<dyn StorageFile>,
    offset: u64,
    end: u64,
}

impl Replay {
    /// The epoch frames of `file` between `offset` and `end`, which have been found readable.
    pub(super) fn between(file: Box<dyn StorageFile>, offset: u64, end: u64) -> Self {
        Self { file, offset, end }
    }

    /// The next frame of kind `kind::EPOCH`, still packed.
    pub(super) fn next_packed(&mut self) -> Result<Option<Frame>, StateError> {
        loop {
            match read_frame(&*self.file, self.offset, self.end)? {
                Reading::End => return Ok(None),
                Reading::Frame(frame) => {
                    self.offset = frame.end();
                    if frame.header.kind == kind::EPOCH {
                        return Ok(Some(frame));
                    }
                }
                Reading::Partial | Reading::Unreadable => {
                    return Err(damaged(&*self.file, self.offset, "the frame was readable a moment ago"));
                }
            }
        }
    }

    /// The file that is read.
    pub(super) fn file(&self) -> &dyn StorageFile {
        &*self.file
    }

    fn next_epoch(&mut self) -> Result<Option<EpochFrame>, StateError> {
        let Some(frame) = self.next_packed()? else { return Ok(None) };
        let epoch: EpochPayload<'_> = frame.decode(self.file())?;
        let unpacked = epoch.unpack();
        unpacked
            .ok_or_else(|| {
                damaged(self.file(), frame.offset, "its integers are not packed as they should be")
            })
            .map(Some)
    }
}

impl Iterator for Replay {
    type Item = Result<EpochFrame, StateError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_epoch().transpose();
        if matches!(next, Some(Err(_))) {
            self.offset = self.end;
        }
        next
    }
}
