//! The private log: segments. Each has a header and a segment frame, then for each run one
//! generation frame and its committed epoch frames.
//!
//! Readable frames are authoritative. Bytes after an unreadable frame are either a torn tail, which
//! was never acknowledged, or damage. The synced length of a later frame decides which
//! (`docs/formats.md`).

use super::{
    chain::{ChainLink, LogHead, follows},
    error::StateError,
    format::{FILE_HEADER_LENGTH, FileRole, file_header, kind},
    frames::{EpochFrame, EpochPayload, GenerationPayload, PublicHeader, SegmentPayload, encode},
    log::{Frame, FrameRead, damaged, has_file_header, is_damaged, read_frame},
    storage::{Storage, StorageFile, reopen, segment_name},
};
use zeroize::Zeroizing;

/// Content of the private log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PrivateFacts {
    /// The payload of the header frame, if the log's start is readable.
    pub(super) header: Option<Vec<u8>>,
    /// The segments with a readable start, oldest first.
    pub(super) segments: Vec<LogSegment>,
    /// The number of the last segment read, 0 before the first. The fields below describe it.
    pub(super) last: u64,
    /// Bytes in the file.
    pub(super) length: u64,
    /// Length of its readable prefix of frames.
    pub(super) end: u64,
    /// End of the part that readable frames prove to be synced.
    pub(super) unproven: u64,
    /// State of the bytes after the readable part.
    pub(super) tail: LogTail,
    /// The last run, the last committed epoch, and its link.
    pub(super) head: LogHead,
}

/// A segment of the private log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogSegment {
    /// The number in its name.
    pub(super) number: u64,
    /// The last epoch before it.
    pub(super) epoch: u64,
    /// Time of creation, in seconds since 1970.
    pub(super) begun: u64,
}

/// A position in the private log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogPosition {
    /// The segment's number.
    pub(super) segment: u64,
    pub(super) offset: u64,
}

/// State of the bytes after the readable part of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogTail {
    /// There are no such bytes.
    Clean,
    /// Rest of a commit that was not acknowledged.
    Torn,
    /// Bytes that had been synced, according to a later frame.
    Damaged,
}

/// A frame of the private log, by kind.
pub(super) enum LogEntry<'a> {
    Header,
    /// `first` if the log begins with this segment.
    Segment {
        begins: SegmentPayload,
        first: bool,
    },
    Generation,
    Epoch(EpochPayload<'a>),
}

/// Kind of frame that a segment needs next.
#[derive(Clone, Copy, PartialEq)]
enum ExpectedFrame {
    Header,
    Segment,
    Entries,
}

impl PrivateFacts {
    /// Facts about a missing log.
    pub(super) fn none() -> Self {
        Self {
            header: None,
            segments: Vec::new(),
            last: 0,
            length: 0,
            end: 0,
            unproven: 0,
            tail: LogTail::Clean,
            head: LogHead::default(),
        }
    }

    /// The last epoch before the log's first segment, 0 for a complete log.
    pub(super) fn base(&self) -> u64 {
        self.segments.first().map_or(0, |first| first.epoch)
    }

    /// Returns the end of the readable part.
    pub(super) fn end(&self) -> LogPosition {
        LogPosition { segment: self.last.max(1), offset: self.end }
    }

    /// Reads the next segment, calls `visit` with every frame in order, and classifies the bytes
    /// after them. After an error, the facts describe the part before it.
    pub(super) fn gather(
        &mut self,
        file: &dyn StorageFile,
        number: u64,
        mut visit: impl FnMut(&Frame, LogEntry<'_>, &LogHead) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        if self.tail != LogTail::Clean {
            // A segment with a successor was synced completely.
            self.tail = LogTail::Damaged;
            return Ok(());
        }
        (self.last, self.length, self.end, self.unproven) = (number, file.length()?, 0, 0);
        if has_file_header(file, FileRole::PrivateLog)? {
            let mut stage = ExpectedFrame::Header;
            let mut offset = FILE_HEADER_LENGTH as u64;
            while let FrameRead::Frame(frame) = read_frame(file, offset, self.length)? {
                let entry = self.admit(file, &frame, &mut stage)?;
                visit(&frame, entry, &self.head)?;
                offset = frame.end();
                self.end = offset;
                self.unproven = frame.header.synced_length;
            }
        }
        self.tail = self.judge_tail(file)?;
        let begun = self.segments.last().is_some_and(|segment| segment.number == number);
        if !begun {
            return Err(damaged(
                file,
                self.end,
                "its beginning was synced before it was renamed, but is not intact",
            ));
        }
        Ok(())
    }

    /// Checks that `frame` may follow the frames before it, and records it.
    fn admit<'f>(
        &mut self,
        file: &dyn StorageFile,
        frame: &'f Frame,
        stage: &mut ExpectedFrame,
    ) -> Result<LogEntry<'f>, StateError> {
        let synced = frame.header.synced_length;
        if synced < self.unproven || synced > frame.offset {
            return Err(damaged(
                file,
                frame.offset,
                "its synced length is not one that a run could write here",
            ));
        }
        match (frame.header.kind, *stage) {
            (kind::HEADER, ExpectedFrame::Header) => {
                *stage = ExpectedFrame::Segment;
                self.admit_header(file, frame)
            }
            (kind::SEGMENT, ExpectedFrame::Segment) => {
                *stage = ExpectedFrame::Entries;
                self.admit_segment(file, frame)
            }
            (kind::GENERATION, ExpectedFrame::Entries) => {
                let GenerationPayload { generation } = frame.decode(file)?;
                follows(file, frame, "generation", generation, self.head.generation + 1)?;
                self.head.generation = generation;
                Ok(LogEntry::Generation)
            }
            (kind::EPOCH | kind::ENTITY_EPOCH, ExpectedFrame::Entries) => {
                let (payload, stored) = frame.decode_epoch(file)?;
                follows(file, frame, "generation", payload.generation, self.head.generation)?;
                self.head.advance(file, frame, &payload.release(), stored)?;
                Ok(LogEntry::Epoch(payload))
            }
            _ => Err(damaged(file, frame.offset, "a frame of this kind does not belong here")),
        }
    }

    fn admit_header(
        &mut self,
        file: &dyn StorageFile,
        frame: &Frame,
    ) -> Result<LogEntry<'static>, StateError> {
        match &self.header {
            Some(header) if *header != *frame.payload => {
                return Err(damaged(file, frame.offset, "its header is not that of the segments before it"));
            }
            Some(_) => {}
            None => {
                self.header = Some(frame.payload.to_vec());
                self.head = LogHead::before(&frame.payload);
            }
        }
        Ok(LogEntry::Header)
    }

    /// Checks a segment frame. The first one gives the state before the log. The others must match
    /// the frames before them.
    fn admit_segment(
        &mut self,
        file: &dyn StorageFile,
        frame: &Frame,
    ) -> Result<LogEntry<'static>, StateError> {
        let begins: SegmentPayload = frame.decode(file)?;
        let SegmentPayload { segment, begun, generation, epoch, chain, .. } = begins;
        follows(file, frame, "segment", segment, self.last)?;
        let first = self.segments.is_empty();
        if first && epoch > 0 {
            self.head = LogHead { generation, epoch, link: chain };
        }
        follows(file, frame, "generation", generation, self.head.generation)?;
        follows(file, frame, "epoch", epoch, self.head.epoch)?;
        if chain != self.head.link {
            return Err(StateError::Forked { path: file.path().to_owned(), offset: frame.offset, epoch });
        }
        self.segments.push(LogSegment { number: segment, epoch, begun });
        Ok(LogEntry::Segment { begins, first })
    }

    fn judge_tail(&self, file: &dyn StorageFile) -> Result<LogTail, StateError> {
        if self.end == self.length {
            return Ok(LogTail::Clean);
        }
        Ok(if is_damaged(file, self.end, self.length)? { LogTail::Damaged } else { LogTail::Torn })
    }
}

/// Builds the file header and the first frames of a log of `role`, with a segment frame if one is
/// given.
pub(super) fn beginning(
    role: FileRole,
    header: &PublicHeader,
    segment: Option<&SegmentPayload>,
) -> Result<Vec<u8>, StateError> {
    let mut bytes = [&file_header(role)[..], &encode(kind::HEADER, 0, header)?].concat();
    if let Some(segment) = segment {
        bytes.extend_from_slice(&encode(kind::SEGMENT, 0, segment)?);
    }
    Ok(bytes)
}

/// Builds the frame that begins a run.
pub(super) fn generation_frame(
    generation: u64,
    synced_length: u64,
) -> Result<Zeroizing<Vec<u8>>, StateError> {
    encode(kind::GENERATION, synced_length, &GenerationPayload { generation })
}

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
        let malformed = || damaged(file, frame.offset, "the packed integers are malformed");
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
