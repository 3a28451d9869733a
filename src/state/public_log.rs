//! The public log: the projection of the private log that alone is shown.
//!
//! It is a function of the private log, byte for byte, so it is written without syncs and compared, cut and
//! continued at every start. What it holds beyond the private log is proof that the private log was cut.

use super::{
    chain::{Link, Standing},
    error::StateError,
    format::{FILE_HEADER_LENGTH, Role, kind},
    frames::ReleasePayload,
    log::{Frame, Reading, find_frame, has_file_header, read_frame},
    storage::StorageFile,
};

/// What the public log holds, compared with the private log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PublicFacts {
    /// Bytes in the file.
    pub(super) length: u64,
    /// Bytes, from the start, that the private log gives as well; 0 unless the header is among them.
    pub(super) matched: u64,
    /// The last epoch among them, 0 before the first.
    pub(super) epoch: u64,
    /// What follows them.
    pub(super) rest: Rest,
}

/// What follows the part of the public log that agrees with the private log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Nothing.
    Nothing,
    /// The beginning of a frame, cut off by a crash or still being written.
    Partial,
    /// Bytes that fail a checksum. They are rebuilt, as they have never been synced.
    Unreadable,
    /// Something unreadable, or nothing, where the private log no longer gives what stood here.
    Lost { offset: u64 },
    /// An intact frame where the private log gives another; epoch 0 stands for the header.
    Differs { offset: u64, epoch: u64 },
    /// An intact frame beyond the private log's end; epoch 0 stands for the header.
    Ahead { epoch: u64 },
}

impl PublicFacts {
    /// Of a log that isn't there.
    pub(super) fn none() -> Self {
        Self { length: 0, matched: 0, epoch: 0, rest: Rest::Nothing }
    }
}

/// Compares the public log with what the private log gives, frame by frame.
pub(super) struct Comparison<'a> {
    file: Option<&'a dyn StorageFile>,
    /// Before the first release.
    start: Standing,
    /// Where the next frame is expected; `None` once one was missing or other.
    expected_at: Option<u64>,
    pub(super) facts: PublicFacts,
}

impl<'a> Comparison<'a> {
    /// Of the first `length` bytes of `file`.
    pub(super) fn new(file: Option<&'a dyn StorageFile>, length: u64) -> Result<Self, StateError> {
        let found = file.map_or(Ok(false), |file| has_file_header(file, Role::PublicLog))?;
        let expected_at = found.then_some(FILE_HEADER_LENGTH as u64);
        let facts = PublicFacts { length, ..PublicFacts::none() };
        Ok(Self { file, start: Standing::default(), expected_at, facts })
    }

    /// The header frame of the private log; once, however many segments there are.
    pub(super) fn expect_header(&mut self, payload: &[u8]) -> Result<(), StateError> {
        if self.facts.matched > 0 {
            return Ok(());
        }
        self.start = Standing::before(payload);
        self.expect(kind::HEADER, 0, payload)
    }

    /// Follows the chain to where the private log begins, `end`, and calls `visit` on the way.
    pub(super) fn follow(
        &mut self,
        end: &Standing,
        mut visit: impl FnMut(&Standing),
    ) -> Result<(), StateError> {
        let mut standing = self.start;
        while standing.epoch < end.epoch {
            let offset = self.facts.matched;
            let Some((file, frame)) = self.next_release()? else {
                if self.facts.rest == Rest::Nothing {
                    self.facts.rest = Rest::Lost { offset };
                }
                return Ok(());
            };
            let (release, stored): (ReleasePayload<'_>, Link) = frame.decode(file)?;
            standing.advance(file, &frame, &release, stored)?;
            if standing.epoch == end.epoch && standing.link != end.link {
                self.facts.rest = Rest::Differs { offset, epoch: end.epoch };
                return Ok(());
            }
            visit(&standing);
            self.matches(&frame, standing.epoch);
        }
        Ok(())
    }

    /// The release frame that stands where one is expected.
    fn next_release(&mut self) -> Result<Option<(&'a dyn StorageFile, Frame)>, StateError> {
        let (Some(file), Some(offset)) = (self.file, self.expected_at.take()) else { return Ok(None) };
        Ok(match read_frame(file, offset, self.facts.length)? {
            Reading::Frame(frame) if frame.header.kind == kind::RELEASE => Some((file, frame)),
            _ => None,
        })
    }

    fn matches(&mut self, frame: &Frame, epoch: u64) {
        self.facts.matched = frame.end();
        self.facts.epoch = epoch;
        self.expected_at = Some(frame.end());
    }

    /// The next frame that the private log gives.
    pub(super) fn expect(&mut self, kind: u8, epoch: u64, payload: &[u8]) -> Result<(), StateError> {
        let (Some(file), Some(offset)) = (self.file, self.expected_at.take()) else { return Ok(()) };
        if let Reading::Frame(frame) = read_frame(file, offset, self.facts.length)? {
            if frame.header.kind == kind && *frame.payload == payload {
                self.matches(&frame, epoch);
            } else {
                self.facts.rest = Rest::Differs { offset, epoch };
            }
        }
        Ok(())
    }

    /// Looks for frames beyond the private log, which ends at epoch `committed`, or has no beginning at all.
    pub(super) fn finish(mut self, committed: Option<u64>) -> Result<PublicFacts, StateError> {
        if let Some(file) = self.file
            && self.facts.rest == Rest::Nothing
        {
            self.facts.rest = rest(file, &self.facts, committed)?;
        }
        Ok(self.facts)
    }
}

fn rest(file: &dyn StorageFile, facts: &PublicFacts, committed: Option<u64>) -> Result<Rest, StateError> {
    let mut from = facts.matched;
    let mut rest = match read_frame(file, from, facts.length)? {
        Reading::End => return Ok(Rest::Nothing),
        Reading::Partial => Rest::Partial,
        Reading::Unreadable | Reading::Frame(_) => Rest::Unreadable,
    };
    while let Some(frame) = find_frame(file, from, facts.length)? {
        let epoch = epoch_of(&frame, file)?;
        if committed.is_none_or(|committed| epoch > committed) {
            rest = Rest::Ahead { epoch };
        }
        from = frame.end();
    }
    Ok(rest)
}

fn epoch_of(frame: &Frame, file: &dyn StorageFile) -> Result<u64, StateError> {
    match frame.header.kind {
        kind::RELEASE => {
            let (release, _): (ReleasePayload<'_>, Link) = frame.decode(file)?;
            Ok(release.epoch)
        }
        _ => Ok(0),
    }
}
