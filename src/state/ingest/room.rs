//! Appends to the journal, and waits while there is no room.
//!
//! A sender may be faster than the pipeline, so the journal has a limit, and some disk space is
//! reserved for the logs. If a group of records would exceed either, or the disk has no room for
//! it, the appending thread waits. The group is removed from the disk and tried again. The current
//! segment ends, so that commits can delete it too.
//!
//! **No deadlock.** Only commits make room, and only records close epochs. Three cases:
//!
//! 1. The reader has something to read. It waits for the dataflow (and, with several sources, for
//!    the others to advance), and the dataflow waits for commits. None of them waits for the
//!    appending thread, which holds no lock while it waits. So the reader reaches the end, or the
//!    run ends with a fault.
//! 2. The reader waits at the end, and a closed epoch is not committed. The dataflow commits it, or
//!    the run ends with a fault.
//! 3. The reader waits at the end, and all closed epochs are committed: the journal is *drained*.
//!    The rest of it belongs to open epochs, which only more records can close. Then a group is
//!    admitted despite limit and reserve. A long segment ends before it, so that the commit of the
//!    open epochs can delete what comes before the group. An epoch longer than the limit takes as
//!    much disk space as it needs, one group at a time.
//!
//! If the disk refuses a group in case 3, no commit would free space. The appending thread waits
//! until the operator makes room or ends the run.

use super::{
    GrowingSegment, IngestJournal, IngestState,
    segment::{COUNT_LENGTH, SegmentHead, before_records},
};
use crate::state::{
    error::StateError,
    format::{FRAME_HEADER_LENGTH, MAX_PAYLOAD},
};
use std::{sync::PoisonError, time::Duration};

/// Disk space that the journal leaves to the logs, unless it is drained.
const RESERVE: u64 = 8 << 20;

/// Maximum number of bytes of a segment before its records, without the header that names the
/// columns.
const BEGINNING: u64 = 128;

/// Number of bytes from which on a segment ends before a group that is admitted despite limit and
/// reserve. Shorter segments would be too many.
const LONG_SEGMENT: u64 = 1 << 20;

/// Longest wait before checking again for room on the disk.
const PAUSE: Duration = Duration::from_millis(50);

/// Reason why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalFull {
    /// The journal has reached its limit.
    Limit,
    /// The disk has little or no free space.
    Disk,
}

/// Called repeatedly with the reason while there is no room; returns whether to keep waiting.
pub type WaitForRoom<'a> = &'a mut dyn FnMut(JournalFull) -> bool;

impl IngestJournal {
    /// Begins a session of this run with the bytes that name its columns, durable when this
    /// returns. A session already begun ends with its synced records. Returns whether the session
    /// has begun: `wait` may give up before there is room.
    ///
    /// # Errors
    /// Errors of the disk.
    pub fn begin(&self, header: &[u8], wait: WaitForRoom<'_>) -> Result<bool, StateError> {
        loop {
            let mut tail = self.tail();
            let (session, records) = {
                let shared = self.shared();
                (shared.session + u32::from(tail.is_some()), shared.end.records)
            };
            let head = SegmentHead { session, number: 0, start: 0, records, header: header.into() };
            match self.grow(&mut tail, head) {
                Err(error) if error.is_full() => {}
                begun => return begun.map(|()| true),
            }
            drop(tail);
            if !self.wait_for_room(JournalFull::Disk, wait) {
                return Ok(false);
            }
        }
    }

    /// Appends `count` whole records to the session. Their bytes come in two parts, so a caller
    /// that holds the start of the first record elsewhere need not copy the rest. Waits for room.
    /// The records are durable when this returns, and may be read and acknowledged. Returns whether
    /// they were appended: `wait` may give up.
    ///
    /// # Errors
    /// [`StateError::TooLarge`] for more than a frame may hold: nothing has been written. Errors of
    /// the disk: nothing more may be appended.
    ///
    /// # Panics
    /// Before [`begin`](Self::begin).
    pub fn append(&self, records: [&[u8]; 2], count: u64, wait: WaitForRoom<'_>) -> Result<bool, StateError> {
        let payload = (COUNT_LENGTH + records[0].len() + records[1].len()) as u64;
        if payload > MAX_PAYLOAD {
            return Err(StateError::TooLarge { limit: MAX_PAYLOAD });
        }
        loop {
            let (lacks, drained) = self.lacks_room(FRAME_HEADER_LENGTH as u64 + payload);
            let full = match lacks {
                Some(full) if !drained => full,
                lacks => {
                    if lacks.is_some() {
                        self.end_segment(LONG_SEGMENT)?;
                    }
                    match self.write(records, count) {
                        Err(error) if error.is_full() => JournalFull::Disk,
                        written => return written.map(|()| true),
                    }
                }
            };
            self.end_segment(0)?;
            let passed = self.shared().passed;
            self.discard_before(passed)?;
            if !self.wait_for_room(full, wait) {
                return Ok(false);
            }
        }
    }

    /// Returns why there is no room for a frame of this length and the start of a segment after it,
    /// if there is none, and whether the journal is drained.
    fn lacks_room(&self, length: u64) -> (Option<JournalFull>, bool) {
        let (size, drained, storage) = {
            let shared = self.shared();
            let beginning = BEGINNING + shared.end.header.len() as u64;
            (shared.size() + beginning, shared.is_drained(), shared.storage.share())
        };
        let lacks = match () {
            () if size.saturating_add(length) > self.limit => Some(JournalFull::Limit),
            () if storage.free() < length.saturating_add(RESERVE) => Some(JournalFull::Disk),
            () => None,
        };
        (lacks, drained)
    }

    /// Waits for a change or [`PAUSE`]; returns whether to try again.
    fn wait_for_room(&self, full: JournalFull, wait: WaitForRoom<'_>) -> bool {
        let waits = wait(full);
        if waits {
            let waited = self.changed.wait_timeout(self.shared(), PAUSE);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
        waits
    }

    /// Appends records and makes them durable. Removes them again if the disk is full.
    fn write(&self, records: [&[u8]; 2], count: u64) -> Result<(), StateError> {
        let mut tail = self.tail();
        let GrowingSegment { head, log } = tail.as_mut().expect("records come after the beginning");
        let total = head.records + count;
        let before = before_records(log.synced(), total, records);
        let [first, second] = records;
        let mut parts = [&before, first, second].into_iter().filter(|part| !part.is_empty());
        let written = parts.try_for_each(|part| log.append(part));
        if let Err(error) = written.and_then(|()| log.sync()) {
            if error.is_full() {
                // Never write over bytes that could not be removed: a mix of old and new bytes
                // might look like a frame.
                log.discard_unsynced().map_err(|cut| StateError::Stopped { cause: cut.to_string() })?;
            }
            return Err(error);
        }
        head.start += (first.len() + second.len()) as u64;
        head.records = total;
        let (next, durable) = (head.next(), log.synced());
        {
            let mut shared = self.shared();
            (shared.end.start, shared.end.records) = (next.start, next.records);
            if let Some(segment) = shared.segments.back_mut() {
                segment.durable = durable;
            }
            shared.drained = false;
            self.changed.notify_all();
        }
        if durable < self.segment_length {
            return Ok(());
        }
        self.follow(&mut tail, next)
    }

    /// Begins the next segment, unless the disk is full.
    fn follow(&self, tail: &mut Option<GrowingSegment>, next: SegmentHead) -> Result<(), StateError> {
        let file = next.name().file();
        match self.grow(tail, next) {
            // The last segment keeps growing, unless the next one already exists.
            Err(error) if error.is_full() && self.shared().storage.read(&file)?.is_none() => Ok(()),
            Err(error) if error.is_full() => Err(StateError::Stopped { cause: error.to_string() }),
            grown => grown,
        }
    }

    /// Ends the current segment if it has records and at least this number of bytes, so that it can
    /// be deleted once its records are counted.
    fn end_segment(&self, least: u64) -> Result<(), StateError> {
        let mut tail = self.tail();
        let last = self.shared().segments.back().map(|segment| (segment.start, segment.durable));
        if let Some(GrowingSegment { head, .. }) = tail.as_ref()
            && last.is_some_and(|(start, durable)| start < head.start && durable >= least)
        {
            let next = head.next();
            self.follow(&mut tail, next)?;
        }
        Ok(())
    }
}

impl IngestState {
    /// Bytes of all segments.
    fn size(&self) -> u64 {
        self.segments.iter().map(|segment| segment.durable).sum()
    }

    /// Returns whether only more records can close an epoch.
    fn is_drained(&self) -> bool {
        self.drained && self.committed >= self.closed
    }
}
