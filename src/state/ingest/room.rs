//! What is appended to the journal, and when there is room for it.
//!
//! A sender may be faster than the pipeline, so the journal has a limit, and some bytes of the disk are left to the logs. Where a
//! group of records would exceed either, or the disk refuses it, whoever appends is held up. What it was given is taken back
//! from the disk and tried again. The segment that grew so far ends, so that commits can delete it, too.
//!
//! **Why nobody waits for ever.** Only commits make room, and only records close epochs. Three cases:
//!
//! 1. The reader has something to read. It waits for the dataflow (and, beside other sources, until they have said
//!    something), which waits for commits. None of them waits for whoever
//!    appends, and no lock is held while appending waits. So the reader reaches the end, or the run ends by a fault.
//! 2. The reader waits at the end, and a closed epoch is not committed. The dataflow commits it, or the run ends by a fault.
//! 3. The reader waits at the end, and all closed epochs are committed: the journal is *drained*. What is left of it belongs to open
//!    epochs, which only more records can close. Then a group is let in, whatever limit and reserve say. An epoch that is longer than
//!    the limit takes the disk that it needs, one group at a time.
//!
//! A disk that refuses a group in case 3 holds nothing that a commit would free. Whoever appends waits until its operator makes room,
//! or ends the run.

use super::{
    Ingest, Shared, Tail,
    segment::{COUNT_LENGTH, SegmentHead, before_records},
};
use crate::state::{
    error::StateError,
    format::{FRAME_HEADER_LENGTH, MAX_PAYLOAD},
};
use std::{sync::PoisonError, time::Duration};

/// Bytes of the disk that the journal leaves to the logs, unless it is drained.
const RESERVE: u64 = 8 << 20;

/// Bytes that a segment has before its records, at most, without the header that names the columns.
const BEGINNING: u64 = 128;

/// How soon whoever is held up looks again, though nothing has changed here.
const PAUSE: Duration = Duration::from_millis(50);

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The journal has reached its limit.
    Limit,
    /// The disk has little space, or none.
    Disk,
}

/// Is told why there is no room, again and again, and says whether to wait on.
pub type Patience<'a> = &'a mut dyn FnMut(Full) -> bool;

impl Ingest {
    /// Begins a session of this run with the bytes that name its columns, on disk when this returns. One that had begun
    /// ends with what has been synced. Gives whether it has begun: `patience` may end before there is room.
    ///
    /// # Errors
    /// Where the disk refuses.
    pub fn begin(&self, header: &[u8], patience: Patience<'_>) -> Result<bool, StateError> {
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
            if !self.wait_for_room(Full::Disk, patience) {
                return Ok(false);
            }
        }
    }

    /// Appends whole records to the session that has begun: `count` of them, their bytes in two parts, so that who has
    /// the beginning of the first one elsewhere need not copy the rest. Waits until there is room. They are on disk when this
    /// returns, and may be read and acknowledged. Gives whether they were appended: `patience` may end before.
    ///
    /// # Errors
    /// [`StateError::TooLarge`] for more than a frame may hold: nothing has been written. And where the disk refuses: nothing more
    /// may be appended.
    ///
    /// # Panics
    /// Before [`begin`](Self::begin).
    pub fn append(
        &self,
        records: [&[u8]; 2],
        count: u64,
        patience: Patience<'_>,
    ) -> Result<bool, StateError> {
        let payload = (COUNT_LENGTH + records[0].len() + records[1].len()) as u64;
        if payload > MAX_PAYLOAD {
            return Err(StateError::TooLarge { limit: MAX_PAYLOAD });
        }
        loop {
            let full = match self.lacks_room(FRAME_HEADER_LENGTH as u64 + payload) {
                Some(full) => full,
                None => match self.write(records, count) {
                    Err(error) if error.is_full() => Full::Disk,
                    written => return written.map(|()| true),
                },
            };
            self.make_room()?;
            if !self.wait_for_room(full, patience) {
                return Ok(false);
            }
        }
    }

    /// Why a frame of this length, and the beginning of a segment behind it, have no room now, if they have none.
    fn lacks_room(&self, length: u64) -> Option<Full> {
        let (size, drained, storage) = {
            let shared = self.shared();
            let beginning = BEGINNING + shared.end.header.len() as u64;
            (shared.size() + beginning, shared.is_drained(), shared.storage.share())
        };
        match () {
            () if drained => None,
            () if size.saturating_add(length) > self.limit => Some(Full::Limit),
            () if storage.free() < length.saturating_add(RESERVE) => Some(Full::Disk),
            () => None,
        }
    }

    /// Waits for a change, or a moment; whether to try again.
    fn wait_for_room(&self, full: Full, patience: Patience<'_>) -> bool {
        let waits = patience(full);
        if waits {
            let waited = self.changed.wait_timeout(self.shared(), PAUSE);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
        waits
    }

    /// Appends records and makes them durable. What a full disk has refused is gone from it.
    fn write(&self, records: [&[u8]; 2], count: u64) -> Result<(), StateError> {
        let mut tail = self.tail();
        let Tail { head, log } = tail.as_mut().expect("records come after the beginning");
        let total = head.records + count;
        let before = before_records(log.synced(), total, records);
        let [first, second] = records;
        let mut parts = [&before, first, second].into_iter().filter(|part| !part.is_empty());
        let written = parts.try_for_each(|part| log.append(part));
        if let Err(error) = written.and_then(|()| log.sync()) {
            if error.is_full() {
                // What can't be taken back must not be written over: it might look like a frame.
                log.cut_back().map_err(|cut| StateError::Stopped { cause: cut.to_string() })?;
            }
            return Err(error);
        }
        head.start += (first.len() + second.len()) as u64;
        head.records = total;
        let (next, durable) = (head.next(), log.synced());
        {
            let mut shared = self.shared();
            (shared.end.start, shared.end.records) = (next.start, next.records);
            if let Some(known) = shared.segments.back_mut() {
                known.durable = durable;
            }
            shared.drained = false;
            self.changed.notify_all();
        }
        if durable < self.segment_length {
            return Ok(());
        }
        self.follow(&mut tail, next)
    }

    /// Begins the segment that follows, unless the disk is full.
    fn follow(&self, tail: &mut Option<Tail>, next: SegmentHead) -> Result<(), StateError> {
        let file = next.name().file();
        match self.grow(tail, next) {
            // The last segment goes on to grow, unless another one has its place already.
            Err(error) if error.is_full() && self.shared().storage.read(&file)?.is_none() => Ok(()),
            Err(error) if error.is_full() => Err(StateError::Stopped { cause: error.to_string() }),
            grown => grown,
        }
    }

    /// Ends the segment that grows, so that it can be deleted once it is counted, and deletes what is.
    fn make_room(&self) -> Result<(), StateError> {
        let mut tail = self.tail();
        let last = self.shared().segments.back().map(|known| known.start);
        if let Some(Tail { head, .. }) = tail.as_ref()
            && last.is_some_and(|start| start < head.start)
        {
            let next = head.next();
            self.follow(&mut tail, next)?;
        }
        drop(tail);
        let passed = self.shared().passed;
        self.discard_before(passed)
    }
}

impl Shared {
    /// Bytes of all segments.
    fn size(&self) -> u64 {
        self.segments.iter().map(|known| known.durable).sum()
    }

    /// Whether only more records can close an epoch.
    fn is_drained(&self) -> bool {
        self.drained && self.committed >= self.closed
    }
}
