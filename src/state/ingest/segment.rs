//! A segment file of the ingest journal: its name, head and readable part.
//!
//! A segment is written under another name and renamed, so a named segment has a complete head. It
//! is synced to its end before the next one begins, so only the very last segment may have a torn
//! tail.

use super::super::{
    chain::follows,
    error::StateError,
    format::{FILE_HEADER_LENGTH, FRAME_HEADER_LENGTH, FileRole, FrameHeader, file_header, kind},
    frames::{Position, encode},
    log::{Frame, FrameRead, damaged, find_frame, has_file_header, read_frame, read_frame_into},
    storage::{Storage, StorageFile, swap_in},
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Name of a segment while its head is being written.
const NEW_SEGMENT: &str = "ingest.new";

/// Bytes before the records in a frame: the number of records up to its end, in all sessions.
pub(super) const COUNT_LENGTH: usize = 8;

/// Maximum number of bytes or records before a segment, so that adding the contents of a file does
/// not overflow.
const MOST: u64 = u64::MAX / 2;

/// Numbers of a session and of a segment in it, both from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SegmentName {
    pub(super) session: u32,
    pub(super) number: u32,
}

impl SegmentName {
    pub(super) fn file(self) -> String {
        format!("ingest-{:06}-{:06}.log", self.session, self.number)
    }

    /// Returns the segments in `storage`, in order.
    pub(super) fn all(storage: &dyn Storage) -> Result<Vec<Self>, StateError> {
        let mut names: Vec<Self> = storage.names()?.iter().filter_map(|name| Self::parse(name)).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn parse(name: &str) -> Option<Self> {
        let (session, number) = name.strip_prefix("ingest-")?.strip_suffix(".log")?.split_once('-')?;
        let parsed = Self { session: session.parse().ok()?, number: number.parse().ok()? };
        (parsed.file() == name).then_some(parsed)
    }

    /// Returns the next segment of the same session.
    pub(super) fn next(self) -> Self {
        Self { number: self.number + 1, ..self }
    }

    /// Returns the first segment of the next session.
    pub(super) fn next_session(self) -> Self {
        Self { session: self.session + 1, number: 0 }
    }
}

/// Payload of a segment's first frame: the state before the segment.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct SegmentHead {
    pub(super) session: u32,
    pub(super) number: u32,
    /// Bytes of the session before this segment.
    pub(super) start: u64,
    /// Records before this segment, in all sessions.
    pub(super) records: u64,
    /// The bytes that name the columns, in every segment of the session.
    pub(super) header: Vec<u8>,
}

impl SegmentHead {
    pub(super) fn name(&self) -> SegmentName {
        SegmentName { session: self.session, number: self.number }
    }

    /// Returns the head of the next segment of the session.
    pub(super) fn next(&self) -> Self {
        Self { number: self.number + 1, ..self.clone() }
    }

    /// Returns the position at which the segment begins.
    pub(super) fn position(&self) -> Position {
        Position::new(self.session, self.start)
    }
}

/// Begins a segment, on disk when this returns. Returns the file and its length.
pub(super) fn begin(
    storage: &dyn Storage,
    head: &SegmentHead,
) -> Result<(Box<dyn StorageFile>, u64), StateError> {
    let (name, beginning) = (head.name().file(), file_header(FileRole::IngestJournal));
    let frame = encode(kind::INGEST_SEGMENT, 0, head)?;
    swap_in(storage, NEW_SEGMENT, &name, &[&beginning, &frame])?;
    Ok((storage.write(&name)?, (beginning.len() + frame.len()) as u64))
}

/// A segment being read frame by frame.
pub(super) struct SegmentReader {
    pub(super) file: Box<dyn StorageFile>,
    pub(super) head: SegmentHead,
    /// Offset of the next frame in the file.
    pub(super) offset: u64,
    /// Offset of the next frame's records in the session.
    pub(super) logical: u64,
    /// Number of records before the next frame, in all sessions.
    pub(super) records: u64,
    /// The synced length in the last frame read. Later bytes are not known to be synced.
    pub(super) unproven: u64,
}

impl SegmentReader {
    /// Opens the segment `name` before its first records; `None` if there is none.
    pub(super) fn open(storage: &dyn Storage, name: SegmentName) -> Result<Option<Self>, StateError> {
        let Some(file) = storage.read(&name.file())? else { return Ok(None) };
        let offset = FILE_HEADER_LENGTH as u64;
        let whole = has_file_header(&*file, FileRole::IngestJournal)?;
        let frame = match read_frame(&*file, offset, file.length()?)? {
            FrameRead::Frame(frame) if whole && frame.header.kind == kind::INGEST_SEGMENT => frame,
            _ => return Err(damaged(&*file, 0, "a segment has its name only with a whole beginning")),
        };
        let head: SegmentHead = frame.decode(&*file)?;
        follows(&*file, &frame, "session", head.session.into(), name.session.into())?;
        follows(&*file, &frame, "segment", head.number.into(), name.number.into())?;
        if head.start.max(head.records) > MOST {
            return Err(damaged(&*file, frame.offset, "it says that more came before it than can have come"));
        }
        let (logical, records) = (head.start, head.records);
        Ok(Some(Self { file, head, offset: frame.end(), logical, records, unproven: frame.end() }))
    }

    /// Returns the records of the next frame, if it is intact and within the first `length` bytes
    /// of the file. Reuses the memory of `before`.
    pub(super) fn next(
        &mut self,
        length: u64,
        before: FrameRecords,
    ) -> Result<Option<FrameRecords>, StateError> {
        let reading = read_frame_into(&*self.file, self.offset, length, before.payload)?;
        let FrameRead::Frame(frame) = reading else { return Ok(None) };
        self.admit(&frame)?;
        Ok(Some(FrameRecords { at: COUNT_LENGTH, payload: frame.payload }))
    }

    /// Checks that `frame` may follow, and records it.
    fn admit(&mut self, frame: &Frame) -> Result<(), StateError> {
        let refuse = |damage| Err(damaged(&*self.file, frame.offset, damage));
        let synced = frame.header.synced_length;
        if frame.header.kind != kind::INGEST_RECORDS {
            return refuse("a frame of this kind does not belong here");
        }
        if synced < self.unproven || synced > frame.offset {
            return refuse("its synced length is not one that a run could write here");
        }
        let Some((count, records)) = frame.payload.split_first_chunk::<COUNT_LENGTH>() else {
            return refuse("the payload does not have the form of its kind");
        };
        let count = u64::from_le_bytes(*count);
        if count < self.records {
            return refuse("it counts fewer records than the frame before it");
        }
        if count - self.records > records.len() as u64 {
            return refuse("it counts more records than it has bytes");
        }
        self.logical += records.len() as u64;
        (self.records, self.unproven, self.offset) = (count, synced, frame.end());
        Ok(())
    }

    /// Reads to the end of the intact frames. No bytes may follow, except a torn tail (not known to
    /// be synced) in the last segment.
    pub(super) fn read_to_end(&mut self, last: bool) -> Result<(), StateError> {
        let length = self.file.length()?;
        let mut records = Some(FrameRecords::none());
        while let Some(before) = records {
            records = self.next(length, before)?;
        }
        let mut torn = last;
        let mut from = self.offset;
        while let (true, Some(frame)) = (torn, find_frame(&*self.file, from, length)?) {
            torn = frame.header.synced_length <= self.offset;
            from = frame.end();
        }
        if self.offset == length || torn { Ok(()) } else { Err(self.broken()) }
    }

    /// Returns whether this segment follows `before`, which has been read to its end.
    pub(super) fn continues(&self, before: &SegmentReader) -> bool {
        let (name, last) = (self.head.name(), before.head.name());
        let start = if name == last.next() { before.logical } else { 0 };
        (name == last.next() || name == last.next_session())
            && self.head.start == start
            && self.head.records == before.records
    }

    /// Builds the error for a synced frame that fails its checksum.
    pub(super) fn broken(&self) -> StateError {
        damaged(&*self.file, self.offset, "the frame fails its checksum, and it had been synced")
    }
}

/// Records read from a frame, and the number of bytes taken.
pub(super) struct FrameRecords {
    payload: Zeroizing<Vec<u8>>,
    at: usize,
}

impl FrameRecords {
    pub(super) fn none() -> Self {
        Self { payload: Zeroizing::default(), at: 0 }
    }

    /// Skips at most `bytes` bytes; returns the number skipped.
    pub(super) fn skip(&mut self, bytes: u64) -> u64 {
        let skipped = bytes.min((self.payload.len() - self.at) as u64);
        self.at += skipped as usize;
        skipped
    }

    /// Takes the bytes that fit into `buffer`.
    pub(super) fn take(&mut self, buffer: &mut [u8]) -> usize {
        let rest = &self.payload[self.at..];
        let taken = rest.len().min(buffer.len());
        buffer[..taken].copy_from_slice(&rest[..taken]);
        self.at += taken;
        taken
    }
}

/// Returns the prefix of a frame whose end is at record number `count` of all sessions.
pub(super) fn before_records(
    synced_length: u64,
    count: u64,
    records: [&[u8]; 2],
) -> [u8; FRAME_HEADER_LENGTH + COUNT_LENGTH] {
    let (count, [first, second]) = (count.to_le_bytes(), records);
    let header = FrameHeader::of_parts(kind::INGEST_RECORDS, synced_length, &[&count, first, second]);
    let mut bytes = [0; FRAME_HEADER_LENGTH + COUNT_LENGTH];
    bytes[..FRAME_HEADER_LENGTH].copy_from_slice(&header.to_bytes());
    bytes[FRAME_HEADER_LENGTH..].copy_from_slice(&count);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_names_are_parsed() {
        let check = |name: &str, expected: Option<(u32, u32)>| {
            let parsed = SegmentName::parse(name).map(|name| (name.session, name.number));
            assert_eq!(parsed, expected, "{name}");
        };
        check("ingest-000000-000012.log", Some((0, 12)));
        check("ingest-1000000-000001.log", Some((1_000_000, 1)));
        for name in
            ["ingest-0-0.log", "ingest-000000-000000", "ingest.new", "ingest-00000a-000000.log", "lock"]
        {
            check(name, None);
        }
    }
}
