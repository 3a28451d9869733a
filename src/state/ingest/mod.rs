//! The ingest journal: what came from a source that can't be read again, on disk before any of it counts.
//!
//! One run's input is a *session*: a header that names the columns, and records. Records are appended in groups, each a
//! frame that is synced before it is read or acknowledged, to segments of bounded size. A run reads on from the place that
//! the last committed epoch recorded, through older sessions into its own. A segment that lies behind that place as a
//! whole is deleted.
//!
//! An [`Ingest`] is shared by whoever appends, whoever reads, and whoever commits. What a crash leaves behind the last
//! synced frame was never acknowledged: the next start cuts it off.

mod reader;
mod room;
mod segment;
#[cfg(test)]
mod tests;
mod verify;

pub use reader::IngestReader;
pub use room::{Full, Patience};
pub use verify::{IngestReport, verify_ingest, verify_ingest_from};

use super::{Store, error::StateError, log::Appender, resume::rewrite, storage::Storage};
use segment::{Segment, SegmentHead, SegmentName, begin};
use std::{
    collections::VecDeque,
    io,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

/// A segment that has become this long is followed by another, at the latest.
const SEGMENT_LENGTH: u64 = 16 << 20;

/// The least number of segments in a journal at its limit, so that some of it can be deleted while the rest is needed.
const SEGMENTS_IN_LIMIT: u64 = 8;

/// A place between two bytes of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IngestPlace {
    /// The session, from 0.
    pub session: u32,
    /// Bytes of the session behind its header.
    pub offset: u64,
}

impl IngestPlace {
    /// Before everything.
    pub const START: IngestPlace = IngestPlace { session: 0, offset: 0 };
}

/// The journal of a state directory.
pub struct Ingest {
    shared: Mutex<Shared>,
    /// Something in `shared` is another than before.
    changed: Condvar,
    /// What is appended to; locked before the others.
    tail: Mutex<Option<Tail>>,
    /// Where segments are deleted, by one at a time; locked before `shared`.
    discarding: Mutex<Box<dyn Storage>>,
    segment_length: u64,
    /// The most bytes of segments, but see [`room`].
    limit: u64,
}

struct Shared {
    storage: Box<dyn Storage>,
    segments: VecDeque<Known>,
    /// The session that this run writes.
    session: u32,
    /// What would stand before a segment after all that is on disk.
    end: SegmentHead,
    /// The place that the last commit has recorded.
    passed: IngestPlace,
    /// Everything has been read, and the reader waits for more.
    drained: bool,
    /// The last epoch that is closed, and the last one that is committed.
    closed: u64,
    committed: u64,
    /// Nothing more will be appended.
    ended: bool,
    /// Why no more could be appended, until someone has been told.
    failure: Option<io::Error>,
}

/// A segment that is there.
struct Known {
    name: SegmentName,
    /// Bytes of the session before it.
    start: u64,
    /// Bytes of the file that are on disk.
    durable: u64,
}

impl Known {
    fn place(&self) -> IngestPlace {
        IngestPlace { session: self.name.session, offset: self.start }
    }
}

/// The segment that grows.
struct Tail {
    /// What stands before the next segment.
    head: SegmentHead,
    log: Appender,
}

impl Store {
    /// The journal of this state directory, to be read from `from`, the place that the last committed epoch recorded, with
    /// segments of at most `limit` bytes in all. It keeps the directory locked.
    ///
    /// # Errors
    /// [`StateError::Damaged`] where what was synced has changed, [`StateError::IngestGap`] where `from` is not in
    /// it, and where the torn tail of an earlier run can't be cut.
    pub fn ingest(&self, from: IngestPlace, limit: u64) -> Result<Ingest, StateError> {
        let segment_length = SEGMENT_LENGTH.min(limit / SEGMENTS_IN_LIMIT);
        Ingest::open(self.storage.share(), from, (segment_length, limit))
    }

    /// Whether a run has kept a journal here: then its input was new each time.
    ///
    /// # Errors
    /// Where the directory can't be listed.
    pub fn has_ingest(&self) -> Result<bool, StateError> {
        Ok(!SegmentName::all(&*self.storage)?.is_empty())
    }
}

impl Ingest {
    fn open(
        storage: Box<dyn Storage>,
        from: IngestPlace,
        (segment_length, limit): (u64, u64),
    ) -> Result<Self, StateError> {
        let mut segments = VecDeque::new();
        for name in SegmentName::all(&*storage)? {
            if let Some(segment) = Segment::open(&*storage, name)? {
                let durable = segment.file.length()?;
                segments.push_back(Known { name, start: segment.head.start, durable });
            }
        }
        let last = segments.back().map(|known| known.name);
        let session = last.map_or(from.session, |last| last.session + 1);
        let end = SegmentHead { session, number: 0, start: 0, records: 0, header: Vec::new() };
        let discarding = Mutex::new(storage.share());
        let shared = Shared {
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
        shared.holds(from)?;
        if let Some(last) = last {
            shared.mend(last)?;
        }
        drop(shared);
        Ok(ingest)
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tail(&self) -> MutexGuard<'_, Option<Tail>> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, shared: MutexGuard<'a, Shared>) -> MutexGuard<'a, Shared> {
        self.changed.wait(shared).unwrap_or_else(PoisonError::into_inner)
    }

    /// The session that this run writes.
    pub fn session(&self) -> u32 {
        self.shared().session
    }

    /// Begins the segment that grows from now on.
    fn grow(&self, tail: &mut Option<Tail>, head: SegmentHead) -> Result<(), StateError> {
        // Readers and commits go on while the disk works.
        let storage = self.shared().storage.share();
        let (file, end) = begin(&*storage, &head)?;
        let mut shared = self.shared();
        shared.segments.push_back(Known { name: head.name(), start: head.start, durable: end });
        (shared.session, shared.end) = (head.session, head.next());
        *tail = Some(Tail { head, log: Appender::at(file, end) });
        self.changed.notify_all();
        Ok(())
    }

    /// Nothing more comes: readers reach the end of the session, or this failure.
    pub fn end(&self, failure: Option<io::Error>) {
        let mut shared = self.shared();
        shared.ended = true;
        shared.failure = failure;
        self.changed.notify_all();
    }

    /// Waits until another number of records than `known` is on disk, in all sessions: that number, or `None` once no
    /// more will come.
    pub fn acknowledged(&self, known: Option<u64>) -> Option<u64> {
        let mut shared = self.shared();
        while known == Some(shared.end.records) && !shared.ended {
            shared = self.wait(shared);
        }
        Some(shared.end.records).filter(|&records| known != Some(records))
    }

    /// An epoch has closed: it will be committed, whatever else comes.
    pub fn closed(&self, epoch: u64) {
        self.shared().closed = epoch;
    }

    /// An epoch is committed for good, with `place` as the one where the next run goes on: deletes the segments that lie behind
    /// it.
    ///
    /// # Errors
    /// Where a file can't be removed.
    pub fn committed(&self, epoch: u64, place: IngestPlace) -> Result<(), StateError> {
        self.discard_before(place)?;
        self.shared().committed = epoch;
        self.changed.notify_all();
        Ok(())
    }

    /// Deletes the segments that lie behind `place`, which a commit has recorded for good: nobody goes back there.
    fn discard_before(&self, place: IngestPlace) -> Result<(), StateError> {
        let storage = self.discarding.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut shared = self.shared();
            shared.passed = shared.passed.max(place);
        }
        loop {
            // Not locked while the file system works, which takes long: readers and whoever appends go on.
            let Some(behind) = self.shared().take_behind(place) else { return Ok(()) };
            storage.remove(&behind.file())?;
            // One by one: no crash leaves a gap.
            storage.sync()?;
        }
    }

    /// After an orderly end: if everything has been counted, nothing of it is kept but where it ended.
    ///
    /// # Errors
    /// Where the disk refuses.
    pub fn finish(&self) -> Result<(), StateError> {
        let mut tail = self.tail();
        let (end, passed, last) = {
            let shared = self.shared();
            (shared.end.clone(), shared.passed, shared.segments.back().map(Known::place))
        };
        if end.place() != passed || last.is_none_or(|last| last == passed) {
            return Ok(());
        }
        match self.grow(&mut tail, end) {
            // The next start deletes what has been counted.
            Err(error) if error.is_full() => Ok(()),
            grown => grown.and_then(|()| self.discard_before(passed)),
        }
    }
}

impl Shared {
    /// Takes out the first segment, if all of it lies behind `place`.
    fn take_behind(&mut self, place: IngestPlace) -> Option<SegmentName> {
        let next = self.segments.get(1)?.place();
        (next <= place).then(|| self.segments.pop_front())?.map(|behind| behind.name)
    }

    /// Whether the journal goes on from `from` without a gap.
    fn holds(&self, from: IngestPlace) -> Result<(), StateError> {
        let gap = |place: IngestPlace| StateError::IngestGap {
            path: self.storage.path().to_owned(),
            session: place.session,
            offset: place.offset,
        };
        match self.segments.front() {
            None if from.offset > 0 => return Err(gap(from)),
            Some(first) if first.name.session != from.session || first.start > from.offset => {
                return Err(gap(from));
            }
            _ => {}
        }
        for (known, next) in self.segments.iter().zip(self.segments.iter().skip(1)) {
            let follows = next.name == known.name.next()
                || (next.name.session == known.name.session + 1 && next.name.number == 0 && next.start == 0);
            if !follows {
                return Err(gap(IngestPlace { session: known.name.session, offset: next.start }));
            }
        }
        Ok(())
    }

    /// Leaves nothing behind the last whole frame of the last segment, and what is before it on disk.
    fn mend(&mut self, last: SegmentName) -> Result<(), StateError> {
        let Some(mut segment) = Segment::open(&*self.storage, last)? else { return Ok(()) };
        segment.read_to_end(true)?;
        let file = self.storage.write(&last.file())?;
        file.truncate(segment.offset)?;
        rewrite(&*file, segment.unproven, segment.offset)?;
        file.sync()?;
        self.storage.sync()?;
        self.end = SegmentHead { start: segment.logical, records: segment.records, ..segment.head.next() };
        if let Some(known) = self.segments.back_mut() {
            known.durable = segment.offset;
        }
        Ok(())
    }
}
