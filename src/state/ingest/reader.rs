//! Reads a session of the ingest journal from any place, and waits at its end as long as it grows.

use super::{
    Ingest, IngestPlace, Shared,
    segment::{Records, Segment, SegmentName},
};
use crate::state::error::StateError;
use std::{
    io::{self, Read},
    sync::{Arc, MutexGuard},
};

/// The bytes of one session behind its header. Errors of the journal come as those of the operating system, with a
/// [`StateError`] or the cause that [`Ingest::end`] was given inside.
pub struct IngestReader {
    ingest: Arc<Ingest>,
    segment: Segment,
    /// Bytes yet to be passed over.
    skip: u64,
    records: Records,
}

/// What is there behind a frame.
enum Next {
    /// This many bytes of the same segment.
    Segment(u64),
    /// The next segment, perhaps of the next session.
    Follows(Segment),
    /// Nothing.
    End,
}

impl Ingest {
    /// Waits for a change where everything has been read.
    fn wait_drained<'a>(&'a self, mut shared: MutexGuard<'a, Shared>) -> MutexGuard<'a, Shared> {
        if !shared.drained {
            shared.drained = true;
            self.changed.notify_all();
        }
        self.wait(shared)
    }
}

impl IngestReader {
    /// Opens a session at `place`; `None` if there is no such session (yet, which is waited for, or ever).
    ///
    /// # Errors
    /// Where the session can't be read, and what the appending run failed with.
    pub fn open(ingest: &Arc<Ingest>, place: IngestPlace) -> io::Result<Option<Self>> {
        let mut shared = ingest.shared();
        let session = loop {
            if let Some(failure) = shared.failure.take() {
                return Err(failure);
            }
            let found = shared
                .segments
                .iter()
                .rfind(|known| known.name.session == place.session && known.start <= place.offset);
            match found {
                Some(known) => break known.name,
                None if shared.ended || place.session != shared.session => return Ok(None),
                None => shared = ingest.wait_drained(shared),
            }
        };
        let segment = Segment::open(&*shared.storage, session).and_then(|segment| {
            segment.ok_or_else(|| StateError::Missing { path: shared.storage.path().join(session.file()) })
        });
        drop(shared);
        let segment = segment.map_err(io::Error::other)?;
        let skip = place.offset.saturating_sub(segment.head.start);
        Ok(Some(Self { ingest: Arc::clone(ingest), segment, skip, records: Records::none() }))
    }

    /// The bytes that name the session's columns.
    pub fn header(&self) -> &[u8] {
        &self.segment.head.header
    }

    /// Waits for what comes behind the records that were read last.
    fn next(&self) -> io::Result<Next> {
        let name = self.segment.head.name();
        let mut shared = self.ingest.shared();
        loop {
            if let Some(failure) = shared.failure.take() {
                return Err(failure);
            }
            if let Some(known) = shared.segments.iter().find(|known| known.name == name)
                && known.durable > self.segment.offset
            {
                return Ok(Next::Segment(known.durable));
            }
            let follower = [name.next(), name.next_session()];
            let follower =
                follower.iter().find(|name| shared.segments.iter().any(|known| known.name == **name));
            if let Some(&follower) = follower {
                let segment = Segment::open(&*shared.storage, follower).map_err(io::Error::other)?;
                return segment.map(Next::Follows).ok_or_else(|| io::ErrorKind::NotFound.into());
            }
            if shared.ended || name.session != shared.session {
                return Ok(Next::End);
            }
            shared = self.ingest.wait_drained(shared);
        }
    }

    /// Fetches the next records that are not to be passed over; `false` at the end of the session.
    fn fetch(&mut self) -> io::Result<bool> {
        match self.next()? {
            Next::Segment(durable) => {
                let before = std::mem::replace(&mut self.records, Records::none());
                let records = self
                    .segment
                    .next(durable, before)
                    .and_then(|records| records.ok_or_else(|| self.segment.broken()));
                self.records = records.map_err(io::Error::other)?;
                self.skip -= self.records.skip(self.skip);
            }
            Next::Follows(next) if !next.continues(&self.segment) => {
                return Err(io::Error::other(self.gap()));
            }
            Next::Follows(next) if next.head.session == self.segment.head.session => self.segment = next,
            Next::Follows(_) | Next::End if self.skip > 0 => return Err(io::Error::other(self.gap())),
            Next::Follows(_) | Next::End => return Ok(false),
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
