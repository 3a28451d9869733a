//! The chain over releases: every release carries a hash of the previous link and of its own
//! content.
//!
//! A link identifies the whole history up to its epoch. Two logs with the same link are the same up
//! to there; two with different links are forks, so some epoch was drawn twice. The chain detects
//! forks, not forgers: a process that can write the log can also compute new links.

use super::{error::StateError, frames::ReleasePayload, log::Frame, storage::StorageFile};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

/// A link of the chain: SHA-256 of the history up to a release.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainLink([u8; 32]);

impl ChainLink {
    /// Returns the first link, computed from a header frame's payload: the fingerprint of the log.
    pub(super) fn of_header(payload: &[u8]) -> Self {
        Self(Sha256::digest(payload).into())
    }

    /// Returns the link of the release that follows this one. The bytes are hashed as in the
    /// release's frame.
    pub(super) fn next(self, release: &ReleasePayload<'_>) -> Self {
        let hash = Sha256::new()
            .chain_update(self.0)
            .chain_update(release.generation.to_le_bytes())
            .chain_update(release.epoch.to_le_bytes())
            .chain_update((release.values.len() as u64).to_le_bytes())
            .chain_update(release.values);
        Self(hash.finalize().into())
    }

    /// Returns the thirty-two bytes, as frames store them.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the first sixteen hexadecimal digits: enough to detect accidental differences, not
    /// deliberate ones.
    pub fn short(&self) -> String {
        format!("{self:.16}")
    }
}

impl fmt::Display for ChainLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        f.pad(&digits)
    }
}

impl fmt::Debug for ChainLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Distinguishes releases of the same epoch: the run that drew the noise, and the history it
/// continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryStamp {
    /// The run, from 1.
    pub generation: u64,
    /// The link of the history up to the release.
    pub chain: ChainLink,
}

/// Last run, epoch and link of a log, as far as it has been written or read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LogHead {
    /// 0 before the first.
    pub(super) generation: u64,
    /// 0 before the first.
    pub(super) epoch: u64,
    /// The header's link before the first release.
    pub(super) link: ChainLink,
}

impl LogHead {
    /// Returns the head of a log with this header payload before its first release.
    pub(super) fn before(header: &[u8]) -> Self {
        Self { generation: 0, epoch: 0, link: ChainLink::of_header(header) }
    }

    /// Advances to the release in `frame`: the next epoch, of this generation or a later one, with
    /// the link `stored`.
    pub(super) fn advance(
        &mut self,
        file: &dyn StorageFile,
        frame: &Frame,
        release: &ReleasePayload<'_>,
        stored: ChainLink,
    ) -> Result<(), StateError> {
        let ReleasePayload { generation, epoch, .. } = *release;
        follows(file, frame, "epoch", epoch, self.epoch + 1)?;
        follows(file, frame, "generation", generation, generation.max(self.generation).max(1))?;
        let link = self.link.next(release);
        if stored != link {
            return Err(StateError::Forked { path: file.path().to_owned(), offset: frame.offset, epoch });
        }
        *self = Self { generation, epoch, link };
        Ok(())
    }
}

/// Returns an error unless `found` is `expected`.
pub(super) fn follows(
    file: &dyn StorageFile,
    frame: &Frame,
    field: &'static str,
    found: u64,
    expected: u64,
) -> Result<(), StateError> {
    if found == expected {
        return Ok(());
    }
    Err(StateError::Disorder { path: file.path().to_owned(), offset: frame.offset, field, found, expected })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of `printf header | sha256sum`, and that of its bytes followed by those of a
    /// release.
    #[test]
    fn links_are_sha256_values() {
        let first = ChainLink::of_header(b"header");
        assert_eq!(first.to_string(), "1e0584a25d9f43bf5cbd0aec01eb1af2220ed085b4e7f1837b0d89958cae353a");
        let second = first.next(&ReleasePayload { generation: 1, epoch: 2, values: &[1, 5, 255] });
        assert_eq!(second.to_string(), "5afcdf58ce00b3d335fbee6c06d39c11f3a3efa8cc5b860696a803246c8da411");
        assert_eq!(second.short(), "5afcdf58ce00b3d3");
    }

    #[test]
    fn every_part_of_a_release_changes_its_link() {
        let first = ChainLink::of_header(b"header");
        let release = || ReleasePayload { generation: 1, epoch: 2, values: &[1, 5, 255] };
        let others = [
            ReleasePayload { generation: 2, ..release() },
            ReleasePayload { epoch: 3, ..release() },
            ReleasePayload { values: &[1, 5, 254], ..release() },
            ReleasePayload { values: &[1, 5], ..release() },
        ];
        others.iter().for_each(|other| assert_ne!(first.next(other), first.next(&release())));
        assert_ne!(ChainLink::of_header(b"other").next(&release()), first.next(&release()));
    }
}
