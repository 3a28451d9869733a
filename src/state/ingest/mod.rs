//! The ingest journal: records of a source that can't be read again, durable before any of them
//! counts.
//!
//! The input of one run is a *session*: a header that names the columns, and records. Records are
//! appended in groups to segments of bounded size. Each group is a frame that is synced before it
//! is read or acknowledged. A run continues at the position of the last committed epoch, through
//! older sessions into its own. Segments completely behind that position are deleted.
//!
//! The part of a [`Position`] is the session, and the offset counts its bytes after the header. The
//! journal does not use row numbers: its positions keep the first one.
//!
//! An [`IngestJournal`] is shared by the threads that append, read and commit. Bytes after the last
//! synced frame were never acknowledged: the next start cuts them.

mod reader;
mod room;
mod segment;
#[cfg(test)]
mod tests;
mod verify;

pub use reader::IngestReader;
pub use room::{JournalFull, WaitForRoom};
pub use verify::{IngestReport, verify_ingest, verify_ingest_from};

use super::{Position, Store, error::StateError, log::FrameAppender, resume::rewrite, storage::Storage};
use segment::{SegmentHead, SegmentName, SegmentReader, begin};
use std::{
    collections::VecDeque,
    io,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

/// Length in bytes after which the next segment begins. A limit may make segments shorter.
const SEGMENT_LENGTH: u64 = 16 << 20;

/// Minimum number of segments in a journal at its limit, so that some can be deleted while the rest
/// is needed.
const SEGMENTS_IN_LIMIT: u64 = 8;

/// The journal of a state directory.
pub struct IngestJournal {
    shared: Mutex<IngestState>,
    /// Signals a change of `shared`.
    changed: Condvar,
    /// The segment that grows; locked before the others.
    tail: Mutex<Option<GrowingSegment>>,
    /// Storage used to delete segments, one thread at a time; locked before `shared`.
    discarding: Mutex<Box<dyn Storage>>,
    segment_length: u64,
    /// Limit on the bytes of all segments; for exceptions see [`room`].
    limit: u64,
}

struct IngestState {
    storage: Box<dyn Storage>,
    segments: VecDeque<SegmentExtent>,
    /// The session that this run writes.
    session: u32,
    /// Head of the next segment.
    end: SegmentHead,
    /// The position recorded by the last commit.
    passed: Position,
    /// The reader has read everything and waits for more.
    drained: bool,
    /// The last closed epoch, and the last committed one.
    closed: u64,
    committed: u64,
    /// Nothing more will be appended.
    ended: bool,
    /// The error that ended appending, until it is reported.
    failure: Option<io::Error>,
}

/// An existing segment.
struct SegmentExtent {
    name: SegmentName,
    /// Bytes of the session before this segment.
    start: u64,
    /// Durable bytes of the file.
    durable: u64,
}

impl SegmentExtent {
    fn position(&self) -> Position {
        Position::new(self.name.session, self.start)
    }
}

struct GrowingSegment {
    /// Head of the next segment.
    head: SegmentHead,
    log: FrameAppender,
}

impl Store {
    /// Opens the journal of this state directory at `from`, the position of the last committed
    /// epoch, with segments of at most `limit` bytes in all. It keeps the directory locked.
    ///
    /// # Errors
    /// [`StateError::Damaged`] if synced bytes have changed, [`StateError::IngestGap`] if the
    /// journal lacks `from`, and errors of the disk while cutting an earlier run's torn tail.
    pub fn ingest(&self, from: Position, limit: u64) -> Result<IngestJournal, StateError> {
        let from = Position::new(from.part, from.offset);
        let segment_length = SEGMENT_LENGTH.min(limit / SEGMENTS_IN_LIMIT);
        IngestJournal::open(self.storage.share(), from, (segment_length, limit))
    }

    /// Returns whether an earlier run kept a journal here. Its source can't be read again.
    ///
    /// # Errors
    /// If the directory can't be listed.
    pub fn has_ingest(&self) -> Result<bool, StateError> {
        Ok(!SegmentName::all(&*self.storage)?.is_empty())
    }
}

impl IngestJournal {
    fn open(
        storage: Box<dyn Storage>,
        from: Position,
        (segment_length, limit): (u64, u64),
    ) -> Result<Self, StateError> {
        let mut segments = VecDeque::new();
        for name in SegmentName::all(&*storage)? {
            if let Some(segment) = SegmentReader::open(&*storage, name)? {
                let durable = segment.file.length()?;
                segments.push_back(SegmentExtent { name, start: segment.head.start, durable });
            }
        }
        let last = segments.back().map(|segment| segment.name);
        let session = last.map_or(from.part, |last| last.session + 1);
        let end = SegmentHead { session, number: 0, start: 0, records: 0, header: Vec::new() };
        let discarding = Mutex::new(storage.share());
        let shared = IngestState {
            storage,
            segments,
            session,
            end,
            passed: from,
            drained: false,
            closed: 0,
            committed: 0,
            ended: false,
            failure: None,
        };
        let ingest = Self {
            shared: Mutex::new(shared),
            changed: Condvar::new(),
            tail: Mutex::new(None),
            discarding,
            segment_length,
            limit,
        };
        ingest.discard_before(from)?;
        let mut shared = ingest.shared();
        shared.check_continues_at(from)?;
        if let Some(last) = last {
            shared.repair(last)?;
        }
        drop(shared);
        Ok(ingest)
    }

    fn shared(&self) -> MutexGuard<'_, IngestState> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tail(&self) -> MutexGuard<'_, Option<GrowingSegment>> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, shared: MutexGuard<'a, IngestState>) -> MutexGuard<'a, IngestState> {
        self.changed.wait(shared).unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the session that this run writes.
    pub fn session(&self) -> u32 {
        self.shared().session
    }

    /// Begins the next segment to grow.
    fn grow(&self, tail: &mut Option<GrowingSegment>, head: SegmentHead) -> Result<(), StateError> {
        // No lock is held while the disk works, so readers and commits continue.
        let storage = self.shared().storage.share();
        let (file, end) = begin(&*storage, &head)?;
        let mut shared = self.shared();
        shared.segments.push_back(SegmentExtent { name: head.name(), start: head.start, durable: end });
        (shared.session, shared.end) = (head.session, head.next());
        *tail = Some(GrowingSegment { head, log: FrameAppender::at(file, end) });
        self.changed.notify_all();
        Ok(())
    }

    /// Ends the input: readers reach the end of the session, or `failure`.
    pub fn end(&self, failure: Option<io::Error>) {
        let mut shared = self.shared();
        shared.ended = true;
        shared.failure = failure;
        self.changed.notify_all();
    }

    /// Waits until the number of durable records in all sessions differs from `previous`. Returns
    /// that number, or `None` once no more records will come.
    pub fn acknowledged(&self, previous: Option<u64>) -> Option<u64> {
        let mut shared = self.shared();
        while previous == Some(shared.end.records) && !shared.ended {
            shared = self.wait(shared);
        }
        Some(shared.end.records).filter(|&records| previous != Some(records))
    }

    /// Records that an epoch has closed. It will be committed without waiting for more records.
    pub fn closed(&self, epoch: u64) {
        self.shared().closed = epoch;
    }

    /// Records that an epoch is durably committed and that the next run resumes at `position`.
    /// Deletes the segments behind it.
    ///
    /// # Errors
    /// If a file can't be removed.
    pub fn committed(&self, epoch: u64, position: Position) -> Result<(), StateError> {
        self.discard_before(Position::new(position.part, position.offset))?;
        self.shared().committed = epoch;
        self.changed.notify_all();
        Ok(())
    }

    /// Deletes the segments behind `position`, which a commit has made durable: no run reads them
    /// again.
    fn discard_before(&self, position: Position) -> Result<(), StateError> {
        let storage = self.discarding.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut shared = self.shared();
            shared.passed = shared.passed.max(position);
        }
        loop {
            // No lock is held while a file is removed, so reading and appending continue.
            let Some(behind) = self.shared().take_behind(position) else { return Ok(()) };
            storage.remove(&behind.file())?;
            // One by one, so no crash leaves a gap.
            storage.sync()?;
        }
    }

    /// Deletes all records after a normal end at which all of them were counted, and keeps only the
    /// position of the end.
    ///
    /// # Errors
    /// Errors of the disk.
    pub fn finish(&self) -> Result<(), StateError> {
        let mut tail = self.tail();
        let (end, passed, last) = {
            let shared = self.shared();
            (shared.end.clone(), shared.passed, shared.segments.back().map(SegmentExtent::position))
        };
        if end.position() != passed || last.is_none_or(|last| last == passed) {
            return Ok(());
        }
        match self.grow(&mut tail, end) {
            // The next start deletes the counted segments.
            Err(error) if error.is_full() => Ok(()),
            grown => grown.and_then(|()| self.discard_before(passed)),
        }
    }
}

impl IngestState {
    /// Takes out the first segment, if it lies completely behind `position`.
    fn take_behind(&mut self, position: Position) -> Option<SegmentName> {
        let next = self.segments.get(1)?.position();
        (next <= position).then(|| self.segments.pop_front())?.map(|behind| behind.name)
    }

    /// Checks that the journal continues at `from` without a gap.
    fn check_continues_at(&self, from: Position) -> Result<(), StateError> {
        let gap = |position: Position| StateError::IngestGap {
            path: self.storage.path().to_owned(),
            session: position.part,
            offset: position.offset,
        };
        match self.segments.front() {
            None if from.offset > 0 => return Err(gap(from)),
            Some(first) if first.name.session != from.part || first.start > from.offset => {
                return Err(gap(from));
            }
            _ => {}
        }
        for (segment, next) in self.segments.iter().zip(self.segments.iter().skip(1)) {
            let follows = next.name == segment.name.next()
                || (next.name.session == segment.name.session + 1
                    && next.name.number == 0
                    && next.start == 0);
            if !follows {
                return Err(gap(Position::new(segment.name.session, next.start)));
            }
        }
        Ok(())
    }

    /// Cuts the bytes after the last intact frame of the last segment, and makes the frames
    /// durable.
    fn repair(&mut self, last: SegmentName) -> Result<(), StateError> {
        let Some(mut segment) = SegmentReader::open(&*self.storage, last)? else { return Ok(()) };
        segment.read_to_end(true)?;
        let file = self.storage.write(&last.file())?;
        file.truncate(segment.offset)?;
        rewrite(&*file, segment.unproven, segment.offset)?;
        file.sync()?;
        self.storage.sync()?;
        self.end = SegmentHead { start: segment.logical, records: segment.records, ..segment.head.next() };
        if let Some(last) = self.segments.back_mut() {
            last.durable = segment.offset;
        }
        Ok(())
    }
}
