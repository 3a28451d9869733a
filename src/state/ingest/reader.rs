//! Reads a session of the ingest journal from any position, and waits at its end while it grows.

use super::{
    IngestJournal, IngestState,
    segment::{FrameRecords, SegmentName, SegmentReader},
};
use crate::state::{Position, error::StateError};
use std::{
    io::{self, Read},
    sync::{Arc, MutexGuard},
};

/// The bytes of one session after its header. Errors of the journal are [`io::Error`]s that contain
/// a [`StateError`] or the cause given to [`IngestJournal::end`].
pub struct IngestReader {
    ingest: Arc<IngestJournal>,
    segment: SegmentReader,
    /// Bytes still to skip.
    skip: u64,
    records: FrameRecords,
}

/// What comes after the last frame read.
enum NextFrame {
    /// Further bytes of the same segment; the number of all its durable bytes.
    Segment(u64),
    /// The next segment, possibly of the next session.
    Follows(SegmentReader),
    /// No further frame.
    End,
}

impl IngestJournal {
    /// Waits for a change after everything has been read.
    fn wait_drained<'a>(&'a self, mut shared: MutexGuard<'a, IngestState>) -> MutexGuard<'a, IngestState> {
        if !shared.drained {
            shared.drained = true;
            self.changed.notify_all();
        }
        self.wait(shared)
    }
}

impl IngestReader {
    /// Opens a session at `position`, waiting for it if it may still begin; `None` if it will not
    /// exist.
    ///
    /// # Errors
    /// If the session can't be read, or the error that ended appending.
    pub fn open(ingest: &Arc<IngestJournal>, position: Position) -> io::Result<Option<Self>> {
        let mut shared = ingest.shared();
        let session = loop {
            if let Some(failure) = shared.failure.take() {
                return Err(failure);
            }
            let holder = shared
                .segments
                .iter()
                .rfind(|segment| segment.name.session == position.part && segment.start <= position.offset);
            match holder {
                Some(segment) => break segment.name,
                None if shared.ended || position.part != shared.session => return Ok(None),
                None => shared = ingest.wait_drained(shared),
            }
        };
        let segment = SegmentReader::open(&*shared.storage, session).and_then(|segment| {
            segment.ok_or_else(|| StateError::Missing { path: shared.storage.path().join(session.file()) })
        });
        drop(shared);
        let segment = segment.map_err(io::Error::other)?;
        let skip = position.offset.saturating_sub(segment.head.start);
        Ok(Some(Self { ingest: Arc::clone(ingest), segment, skip, records: FrameRecords::none() }))
    }

    /// Returns the bytes that name the session's columns.
    pub fn header(&self) -> &[u8] {
        &self.segment.head.header
    }

    /// Waits for the frame after the last records read.
    fn next(&self) -> io::Result<NextFrame> {
        let name = self.segment.head.name();
        let mut shared = self.ingest.shared();
        loop {
            if let Some(failure) = shared.failure.take() {
                return Err(failure);
            }
            if let Some(segment) = shared.segments.iter().find(|segment| segment.name == name)
                && segment.durable > self.segment.offset
            {
                return Ok(NextFrame::Segment(segment.durable));
            }
            let follower = [name.next(), name.next_session()];
            let follower =
                follower.iter().find(|name| shared.segments.iter().any(|segment| segment.name == **name));
            if let Some(&follower) = follower {
                let segment = SegmentReader::open(&*shared.storage, follower).map_err(io::Error::other)?;
                return segment.map(NextFrame::Follows).ok_or_else(|| io::ErrorKind::NotFound.into());
            }
            if shared.ended || name.session != shared.session {
                return Ok(NextFrame::End);
            }
            shared = self.ingest.wait_drained(shared);
        }
    }

    /// Fetches the next records that are not skipped; `false` at the end of the session.
    fn fetch(&mut self) -> io::Result<bool> {
        match self.next()? {
            NextFrame::Segment(durable) => {
                let before = std::mem::replace(&mut self.records, FrameRecords::none());
                let records = self
                    .segment
                    .next(durable, before)
                    .and_then(|records| records.ok_or_else(|| self.segment.broken()));
                self.records = records.map_err(io::Error::other)?;
                self.skip -= self.records.skip(self.skip);
            }
            NextFrame::Follows(next) if !next.continues(&self.segment) => {
                return Err(io::Error::other(self.gap()));
            }
            NextFrame::Follows(next) if next.head.session == self.segment.head.session => self.segment = next,
            NextFrame::Follows(_) | NextFrame::End if self.skip > 0 => {
                return Err(io::Error::other(self.gap()));
            }
            NextFrame::Follows(_) | NextFrame::End => return Ok(false),
        }
        Ok(true)
    }

    fn gap(&self) -> StateError {
        let SegmentName { session, .. } = self.segment.head.name();
        let path = self.segment.file.path().to_owned();
        StateError::IngestGap { path, session, offset: self.segment.logical }
    }
}

impl Read for IngestReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.records.take(buffer) {
                0 if buffer.is_empty() || !self.fetch()? => return Ok(0),
                0 => {}
                taken => return Ok(taken),
            }
        }
    }
}
