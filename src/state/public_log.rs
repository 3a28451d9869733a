//! The public log: a projection of the private log, and the only part that is published.
//!
//! It is a function of the private log, byte for byte. So commits append to it without a sync, and
//! every start compares, cuts and continues it. A checkpoint syncs it, before segments that could
//! rebuild it are removed from the private log. Content beyond the private log proves that the
//! private log was cut.

use super::{
    chain::{ChainLink, LogHead},
    error::StateError,
    format::{FILE_HEADER_LENGTH, FileRole, kind},
    frames::ReleasePayload,
    log::{Frame, FrameRead, find_frame, has_file_header, read_frame},
    storage::StorageFile,
};

/// Content of the public log, compared with the private log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PublicFacts {
    /// Bytes in the file.
    pub(super) length: u64,
    /// Length of the prefix that agrees with the private log; 0 unless it includes the header.
    pub(super) matched: u64,
    /// The last epoch in that prefix, 0 before the first.
    pub(super) epoch: u64,
    /// The content after the prefix.
    pub(super) rest: PublicTail,
}

/// State of the public log after the part that agrees with the private log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PublicTail {
    /// No bytes follow.
    Nothing,
    /// The start of a frame, cut off by a crash or still being written.
    Partial,
    /// Bytes that fail a checksum. They were never synced, and are rebuilt.
    Unreadable,
    /// Unreadable or missing bytes that the private log can no longer rebuild.
    Lost { offset: u64 },
    /// An intact frame that differs from the private log's; epoch 0 means the header.
    Differs { offset: u64, epoch: u64 },
    /// An intact frame beyond the private log's end; epoch 0 means the header.
    Ahead { epoch: u64 },
}

impl PublicFacts {
    /// Facts about a missing log.
    pub(super) fn none() -> Self {
        Self { length: 0, matched: 0, epoch: 0, rest: PublicTail::Nothing }
    }
}

/// Compares the public log with the private log, frame by frame.
pub(super) struct LogComparison<'a> {
    file: Option<&'a dyn StorageFile>,
    /// Head of the log before the first release.
    start: LogHead,
    /// Offset of the next expected frame; `None` once one was missing or different.
    expected_at: Option<u64>,
    pub(super) facts: PublicFacts,
}

impl<'a> LogComparison<'a> {
    /// Compares the first `length` bytes of `file`.
    pub(super) fn new(file: Option<&'a dyn StorageFile>, length: u64) -> Result<Self, StateError> {
        let has_header = file.map_or(Ok(false), |file| has_file_header(file, FileRole::PublicLog))?;
        let expected_at = has_header.then_some(FILE_HEADER_LENGTH as u64);
        let facts = PublicFacts { length, ..PublicFacts::none() };
        Ok(Self { file, start: LogHead::default(), expected_at, facts })
    }

    /// Compares the private log's header frame. Every segment has one; only the first is compared.
    pub(super) fn expect_header(&mut self, payload: &[u8]) -> Result<(), StateError> {
        if self.facts.matched > 0 {
            return Ok(());
        }
        self.start = LogHead::before(payload);
        self.expect(kind::HEADER, 0, payload)
    }

    /// Follows the chain up to `end`, where the private log begins, and calls `visit` for each
    /// release.
    pub(super) fn follow(
        &mut self,
        end: &LogHead,
        mut visit: impl FnMut(&LogHead),
    ) -> Result<(), StateError> {
        let mut head = self.start;
        while head.epoch < end.epoch {
            let offset = self.facts.matched;
            let Some((file, frame)) = self.next_release()? else {
                if self.facts.rest == PublicTail::Nothing {
                    self.facts.rest = PublicTail::Lost { offset };
                }
                return Ok(());
            };
            let (release, stored): (ReleasePayload<'_>, ChainLink) = frame.decode(file)?;
            head.advance(file, &frame, &release, stored)?;
            if head.epoch == end.epoch && head.link != end.link {
                self.facts.rest = PublicTail::Differs { offset, epoch: end.epoch };
                return Ok(());
            }
            visit(&head);
            self.matches(&frame, head.epoch);
        }
        Ok(())
    }

    /// Returns the release frame at the expected offset.
    fn next_release(&mut self) -> Result<Option<(&'a dyn StorageFile, Frame)>, StateError> {
        let (Some(file), Some(offset)) = (self.file, self.expected_at.take()) else { return Ok(None) };
        Ok(match read_frame(file, offset, self.facts.length)? {
            FrameRead::Frame(frame) if frame.header.kind == kind::RELEASE => Some((file, frame)),
            _ => None,
        })
    }

    fn matches(&mut self, frame: &Frame, epoch: u64) {
        self.facts.matched = frame.end();
        self.facts.epoch = epoch;
        self.expected_at = Some(frame.end());
    }

    /// Compares the next frame of the private log.
    pub(super) fn expect(&mut self, kind: u8, epoch: u64, payload: &[u8]) -> Result<(), StateError> {
        let (Some(file), Some(offset)) = (self.file, self.expected_at.take()) else { return Ok(()) };
        if let FrameRead::Frame(frame) = read_frame(file, offset, self.facts.length)? {
            if frame.header.kind == kind && *frame.payload == payload {
                self.matches(&frame, epoch);
            } else {
                self.facts.rest = PublicTail::Differs { offset, epoch };
            }
        }
        Ok(())
    }

    /// Looks for frames beyond the private log, whose last epoch is `committed`; `None` if its
    /// start is unreadable.
    pub(super) fn finish(mut self, committed: Option<u64>) -> Result<PublicFacts, StateError> {
        if let Some(file) = self.file
            && self.facts.rest == PublicTail::Nothing
        {
            self.facts.rest = rest(file, &self.facts, committed)?;
        }
        Ok(self.facts)
    }
}

fn rest(
    file: &dyn StorageFile,
    facts: &PublicFacts,
    committed: Option<u64>,
) -> Result<PublicTail, StateError> {
    let mut from = facts.matched;
    let mut rest = match read_frame(file, from, facts.length)? {
        FrameRead::End => return Ok(PublicTail::Nothing),
        FrameRead::Partial => PublicTail::Partial,
        FrameRead::Unreadable | FrameRead::Frame(_) => PublicTail::Unreadable,
    };
    while let Some(frame) = find_frame(file, from, facts.length)? {
        let epoch = epoch_of(&frame, file)?;
        if committed.is_none_or(|committed| epoch > committed) {
            rest = PublicTail::Ahead { epoch };
        }
        from = frame.end();
    }
    Ok(rest)
}

fn epoch_of(frame: &Frame, file: &dyn StorageFile) -> Result<u64, StateError> {
    match frame.header.kind {
        kind::RELEASE => {
            let (release, _): (ReleasePayload<'_>, ChainLink) = frame.decode(file)?;
            Ok(release.epoch)
        }
        _ => Ok(0),
    }
}
