//! The anchor: a record of a log's progress, stored outside the state directory.
//!
//! A state directory restored from a copy is consistent but old, and only the anchor shows it. The
//! anchor is moved after the private log's sync and before anything is published, so every
//! published epoch is anchored.
//!
//! An anchor is a directory that a run holds locked from before it reads the anchor until it ends.
//! So a second run on a copy of the state directory is refused even while the first is suspended,
//! and the anchor never moves backwards.

use super::{
    StateSettings,
    chain::{ChainLink, LogHead},
    error::{StateError, refused},
    format::{FileRole, file_header, kind},
    frames::{PublicHeader, encode},
    log::{damaged, only_frame},
    storage::{DirectoryStorage, Storage, swap_in},
};
use std::{
    io,
    path::{Path, PathBuf},
};

/// The anchor of one log.
pub(super) struct Anchor {
    storage: Box<dyn Storage>,
    fingerprint: ChainLink,
    /// The content as this process last read or wrote it; `None` before the first.
    head: Option<LogHead>,
}

/// Content of an anchor, and whether the surveyed log agrees with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AnchorContent {
    pub(super) path: PathBuf,
    pub(super) head: LogHead,
    /// Whether the log has the anchored link at the anchored epoch.
    pub(super) agrees: bool,
}

const NAME: &str = "anchor";
/// Name of the anchor's file while it is being written.
const BESIDE: &str = "anchor.new";

/// Path of the anchor of the log with this fingerprint, in a directory of anchors. The directory
/// must exist: a missing one may be on a disk that is not mounted.
fn anchor_directory(anchors: &Path, fingerprint: ChainLink) -> Result<PathBuf, StateError> {
    match DirectoryStorage::shared(anchors) {
        Ok(_) => Ok(anchors.join(format!("{}.anchor", fingerprint.short()))),
        Err(StateError::Missing { path }) => Err(refused(
            path,
            "open the anchor's directory, which must exist",
        )(io::ErrorKind::NotFound.into())),
        Err(error) => Err(error),
    }
}

/// Locks the anchor of a log with this header, if the settings name one.
pub(super) fn hold(
    settings: &StateSettings,
    header: &PublicHeader,
) -> Result<Option<Box<dyn Storage>>, StateError> {
    let Some(anchors) = &settings.anchor else { return Ok(None) };
    match DirectoryStorage::exclusive(&anchor_directory(anchors, header.fingerprint()?)?) {
        Ok(directory) => Ok(Some(Box::new(directory))),
        Err(StateError::Locked { path }) => Err(StateError::AnchorHeld { path }),
        Err(error) => Err(error),
    }
}

/// Opens the anchor of the log with this fingerprint for reading, without a lock.
pub(super) fn open_shared(anchors: &Path, fingerprint: ChainLink) -> Result<Box<dyn Storage>, StateError> {
    match DirectoryStorage::shared(&anchor_directory(anchors, fingerprint)?) {
        Ok(directory) => Ok(Box::new(directory)),
        Err(StateError::Missing { path }) => Err(StateError::NotAnchored { path }),
        Err(error) => Err(error),
    }
}

impl Anchor {
    /// Reads the anchor in `storage`, of the log with this fingerprint.
    pub(super) fn read_from(storage: Box<dyn Storage>, fingerprint: ChainLink) -> Result<Self, StateError> {
        let mut anchor = Self { storage, fingerprint, head: None };
        anchor.head = anchor.read()?;
        Ok(anchor)
    }

    /// Returns the content that the log must agree with; `None` if there is no anchor yet.
    pub(super) fn anchored(&self) -> Option<AnchorContent> {
        self.head.map(|head| AnchorContent { path: self.path(), head, agrees: false })
    }

    /// Records the progress of the log.
    pub(super) fn move_to(&mut self, head: LogHead) -> Result<(), StateError> {
        self.storage.confirm()?;
        if self.read()? != self.head {
            return Err(StateError::AnchorMoved { path: self.path() });
        }
        let frame = encode(kind::ANCHOR, 0, &(self.fingerprint, head))?;
        let parts = [&file_header(FileRole::Anchor)[..], &frame];
        swap_in(&*self.storage, BESIDE, NAME, &parts)?;
        self.storage.confirm()?;
        self.head = Some(head);
        Ok(())
    }

    fn read(&self) -> Result<Option<LogHead>, StateError> {
        let Some(file) = self.storage.read(NAME)? else { return Ok(None) };
        let unreadable = "the anchor fails its checksum (to delete it accepts the state directory as it is)";
        let frame = only_frame(&*file, FileRole::Anchor, &[kind::ANCHOR])?;
        let frame = frame.ok_or_else(|| damaged(&*file, 0, unreadable))?;
        let (fingerprint, head): (ChainLink, LogHead) = frame.decode(&*file)?;
        if fingerprint != self.fingerprint {
            return Err(damaged(&*file, 0, "the anchor is that of another log"));
        }
        Ok(Some(head))
    }

    pub(super) fn path(&self) -> PathBuf {
        self.storage.path().join(NAME)
    }
}
