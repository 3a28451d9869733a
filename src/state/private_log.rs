//! The private log: segments, each with a header and what stands before it, then per run one generation frame and
//! the epoch frames it committed.
//!
//! Its readable part decides what has happened. What follows an unreadable frame is either a torn tail, never
//! acknowledged, or damage: the synced length of any later frame tells (`docs/formats.md`).

use super::{
    chain::{Standing, follows},
    error::StateError,
    format::{FILE_HEADER_LENGTH, Role, file_header, kind},
    frames::{EpochPayload, GenerationPayload, PublicHeader, SegmentPayload, encode},
    log::{Frame, Reading, damaged, has_file_header, is_damaged, read_frame},
    storage::StorageFile,
};
use zeroize::Zeroizing;

/// What the private log holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PrivateFacts {
    /// The payload of the header frame, if the log has a readable beginning.
    pub(super) header: Option<Vec<u8>>,
    /// The segments with a readable beginning, oldest first.
    pub(super) segments: Vec<Segment>,
    /// The number of the last segment that was read, 0 before the first. What follows is about it.
    pub(super) last: u64,
    /// Bytes in the file.
    pub(super) length: u64,
    /// Bytes of it that are readable frames, from the start.
    pub(super) end: u64,
    /// Nothing in the readable part says that what follows this offset has been synced.
    pub(super) unproven: u64,
    /// What follows the readable part.
    pub(super) tail: Tail,
    /// The last run, the last committed epoch, and its link.
    pub(super) standing: Standing,
}

/// A segment of the private log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// The number in its name.
    pub(super) number: u64,
    /// The last epoch before it.
    pub(super) epoch: u64,
    /// When it was begun, in seconds since 1970.
    pub(super) begun: u64,
}

/// A place in the private log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The segment's number.
    pub(super) segment: u64,
    /// The offset in it.
    pub(super) offset: u64,
}

/// What follows the readable part of a segment.
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
    /// The log begins with the `first` one.
    Segment {
        begins: SegmentPayload,
        first: bool,
    },
    Generation,
    Epoch(EpochPayload<'a>),
}

/// Which frame a segment needs next.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Header,
    Segment,
    Entries,
}

impl PrivateFacts {
    /// Of a log that isn't there.
    pub(super) fn none() -> Self {
        Self {
            header: None,
            segments: Vec::new(),
            last: 0,
            length: 0,
            end: 0,
            unproven: 0,
            tail: Tail::Clean,
            standing: Standing::default(),
        }
    }

    /// The last epoch before the log, 0 for a log that is whole.
    pub(super) fn base(&self) -> u64 {
        self.segments.first().map_or(0, |first| first.epoch)
    }

    /// Where the readable part ends.
    pub(super) fn end(&self) -> Place {
        Place { segment: self.last.max(1), offset: self.end }
    }

    /// Reads the next segment and calls `visit` with every frame, in order, and what stands after it. After an
    /// error, the facts describe what came before it.
    pub(super) fn gather(
        &mut self,
        file: &dyn StorageFile,
        number: u64,
        mut visit: impl FnMut(&Frame, Entry<'_>, &Standing) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        if self.tail != Tail::Clean {
            // What another segment follows had been synced whole.
            self.tail = Tail::Damaged;
            return Ok(());
        }
        (self.last, self.length, self.end, self.unproven) = (number, file.length()?, 0, 0);
        if has_file_header(file, Role::PrivateLog)? {
            let mut stage = Stage::Header;
            let mut offset = FILE_HEADER_LENGTH as u64;
            while let Reading::Frame(frame) = read_frame(file, offset, self.length)? {
                let entry = self.admit(file, &frame, &mut stage)?;
                visit(&frame, entry, &self.standing)?;
                offset = frame.end();
                self.end = offset;
                self.unproven = frame.header.synced_length;
            }
        }
        self.tail = self.judge_tail(file)?;
        let begun = self.segments.last().is_some_and(|segment| segment.number == number);
        if !begun {
            return Err(damaged(file, self.end, "its beginning was on disk before it got its name"));
        }
        Ok(())
    }

    /// Checks that `frame` may follow what came before, and takes it in.
    fn admit<'f>(
        &mut self,
        file: &dyn StorageFile,
        frame: &'f Frame,
        stage: &mut Stage,
    ) -> Result<Entry<'f>, StateError> {
        let synced = frame.header.synced_length;
        if synced < self.unproven || synced > frame.offset {
            return Err(damaged(
                file,
                frame.offset,
                "its synced length is not one that a run could write here",
            ));
        }
        match (frame.header.kind, *stage) {
            (kind::HEADER, Stage::Header) => {
                *stage = Stage::Segment;
                self.admit_header(file, frame)
            }
            (kind::SEGMENT, Stage::Segment) => {
                *stage = Stage::Entries;
                self.admit_segment(file, frame)
            }
            (kind::GENERATION, Stage::Entries) => {
                let GenerationPayload { generation } = frame.decode(file)?;
                follows(file, frame, "generation", generation, self.standing.generation + 1)?;
                self.standing.generation = generation;
                Ok(Entry::Generation)
            }
            (kind::EPOCH | kind::ENTITY_EPOCH, Stage::Entries) => {
                let (payload, stored) = frame.decode_epoch(file)?;
                follows(file, frame, "generation", payload.generation, self.standing.generation)?;
                self.standing.advance(file, frame, &payload.release(), stored)?;
                Ok(Entry::Epoch(payload))
            }
            _ => Err(damaged(file, frame.offset, "a frame of this kind does not belong here")),
        }
    }

    fn admit_header(&mut self, file: &dyn StorageFile, frame: &Frame) -> Result<Entry<'static>, StateError> {
        match &self.header {
            Some(header) if *header != *frame.payload => {
                return Err(damaged(file, frame.offset, "its header is not that of the segments before it"));
            }
            Some(_) => {}
            None => {
                self.header = Some(frame.payload.to_vec());
                self.standing = Standing::before(&frame.payload);
            }
        }
        Ok(Entry::Header)
    }

    /// The first segment says what stands before the log; the others must agree with what was read.
    fn admit_segment(&mut self, file: &dyn StorageFile, frame: &Frame) -> Result<Entry<'static>, StateError> {
        let begins: SegmentPayload = frame.decode(file)?;
        let SegmentPayload { segment, begun, generation, epoch, chain, .. } = begins;
        follows(file, frame, "segment", segment, self.last)?;
        let first = self.segments.is_empty();
        if first && epoch > 0 {
            self.standing = Standing { generation, epoch, link: chain };
        }
        follows(file, frame, "generation", generation, self.standing.generation)?;
        follows(file, frame, "epoch", epoch, self.standing.epoch)?;
        if chain != self.standing.link {
            return Err(StateError::Forked { path: file.path().to_owned(), offset: frame.offset, epoch });
        }
        self.segments.push(Segment { number: segment, epoch, begun });
        Ok(Entry::Segment { begins, first })
    }

    fn judge_tail(&self, file: &dyn StorageFile) -> Result<Tail, StateError> {
        if self.end == self.length {
            return Ok(Tail::Clean);
        }
        Ok(if is_damaged(file, self.end, self.length)? { Tail::Damaged } else { Tail::Torn })
    }
}

/// The file header and the first frames of a log of `role`: a segment frame too where there is one.
pub(super) fn beginning(
    role: Role,
    header: &PublicHeader,
    segment: Option<&SegmentPayload>,
) -> Result<Vec<u8>, StateError> {
    let mut bytes = [&file_header(role)[..], &encode(kind::HEADER, 0, header)?].concat();
    if let Some(segment) = segment {
        bytes.extend_from_slice(&encode(kind::SEGMENT, 0, segment)?);
    }
    Ok(bytes)
}

/// The frame that opens a run.
pub(super) fn generation_frame(
    generation: u64,
    synced_length: u64,
) -> Result<Zeroizing<Vec<u8>>, StateError> {
    encode(kind::GENERATION, synced_length, &GenerationPayload { generation })
}
