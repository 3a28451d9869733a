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
mod segment;
#[cfg(test)]
mod tests;
mod verify;

pub use reader::IngestReader;
pub use verify::{IngestReport, verify_ingest, verify_ingest_from};

use super::{Store, error::StateError, log::Appender, resume::rewrite, storage::Storage};
use segment::{Segment, SegmentHead, SegmentName, before_records, begin};
use std::{
    collections::VecDeque,
    io,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

/// A segment that has become this long is followed by another.
const SEGMENT_LENGTH: u64 = 16 << 20;

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
    /// The journal of this state directory, to be read from `from`, the place that the last committed epoch recorded. It
    /// keeps the directory locked.
    ///
    /// # Errors
    /// [`StateError::Damaged`] where what was synced has changed, [`StateError::IngestGap`] where `from` is not in
    /// it, and where the torn tail of an earlier run can't be cut.
    pub fn ingest(&self, from: IngestPlace) -> Result<Ingest, StateError> {
        Ingest::open(self.storage.share(), from, SEGMENT_LENGTH)
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
    fn open(storage: Box<dyn Storage>, from: IngestPlace, segment_length: u64) -> Result<Self, StateError> {
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
        let shared = Shared { storage, segments, session, end, passed: from, ended: false, failure: None };
        let ingest = Self {
            shared: Mutex::new(shared),
            changed: Condvar::new(),
            tail: Mutex::new(None),
            discarding,
            segment_length,
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

    /// Begins a session of this run with the bytes that name its columns, on disk when this returns. One that had begun
    /// ends with what has been synced.
    ///
    /// # Errors
    /// Where the disk refuses.
    pub fn begin(&self, header: &[u8]) -> Result<(), StateError> {
        let mut tail = self.tail();
        let (session, records) = {
            let shared = self.shared();
            (shared.session + u32::from(tail.is_some()), shared.end.records)
        };
        let head = SegmentHead { session, number: 0, start: 0, records, header: header.into() };
        self.grow(&mut tail, head)
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

    /// Appends whole records to the session that has begun: `count` of them, their bytes in two parts, so that who has
    /// the beginning of the first one elsewhere need not copy the rest. They may be read and acknowledged after the next
    /// [`sync`](Self::sync).
    ///
    /// # Errors
    /// Where the disk refuses: nothing more may be appended.
    ///
    /// # Panics
    /// Before [`begin`](Self::begin).
    pub fn append(&self, records: [&[u8]; 2], count: u64) -> Result<(), StateError> {
        let mut tail = self.tail();
        let Tail { head, log } = tail.as_mut().expect("records come after the beginning");
        head.records += count;
        head.start += records.iter().map(|part| part.len() as u64).sum::<u64>();
        log.append(&before_records(log.synced(), head.records, records))?;
        records.iter().filter(|part| !part.is_empty()).try_for_each(|part| log.append(part))
    }

    /// Makes what was appended durable, and lets it be read and acknowledged.
    ///
    /// # Errors
    /// Where the disk refuses: nothing more may be appended.
    pub fn sync(&self) -> Result<(), StateError> {
        let mut tail = self.tail();
        let Some(Tail { head, log }) = tail.as_mut() else { return Ok(()) };
        log.sync()?;
        let (next, durable) = (head.next(), log.synced());
        {
            let mut shared = self.shared();
            (shared.end.start, shared.end.records) = (next.start, next.records);
            if let Some(known) = shared.segments.back_mut() {
                known.durable = durable;
            }
            self.changed.notify_all();
        }
        if durable < self.segment_length { Ok(()) } else { self.grow(&mut tail, next) }
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

    /// Deletes the segments that lie behind `place`, which a commit has recorded for good: nobody goes back there.
    ///
    /// # Errors
    /// Where a file can't be removed.
    pub fn discard_before(&self, place: IngestPlace) -> Result<(), StateError> {
        let storage = self.discarding.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared().passed = place;
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
        self.grow(&mut tail, end)?;
        self.discard_before(passed)
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
