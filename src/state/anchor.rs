//! The anchor: how far a log has come, written down elsewhere.
//!
//! A state directory that was restored from a copy is whole, only old. Nothing in it says so; the anchor does. It is
//! moved after the private log's sync and before anything is published, so whatever was shown is anchored.

use super::{
    chain::{Link, Standing},
    error::{StateError, refused},
    format::{Role, Version, file_header, kind},
    frames::encode,
    log::{damaged, only_frame},
    storage::{Directory, Storage, swap_in},
};
use std::{
    io,
    path::{Path, PathBuf},
};

/// The anchor of one log in a directory that may hold those of others.
pub(super) struct Anchor {
    storage: Box<dyn Storage>,
    name: String,
    fingerprint: Link,
    /// What it says, unless somebody else has moved it since.
    standing: Option<Standing>,
}

/// What an anchor says, and whether the log that is surveyed holds the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Anchored {
    pub(super) path: PathBuf,
    pub(super) standing: Standing,
    /// Whether the anchored link has been seen at the anchored epoch.
    pub(super) agrees: bool,
}

/// The directory of anchors, which must exist: it may be that of a disk that is not mounted.
pub(super) fn directory(path: &Path) -> Result<Box<dyn Storage>, StateError> {
    match Directory::shared(path) {
        Ok(directory) => Ok(Box::new(directory)),
        Err(StateError::Missing { path }) => Err(refused(
            path,
            "open the anchor's directory, which must exist",
        )(io::ErrorKind::NotFound.into())),
        Err(error) => Err(error),
    }
}

impl Anchor {
    /// Looks for the anchor of the log with this fingerprint.
    pub(super) fn find(storage: Box<dyn Storage>, fingerprint: Link) -> Result<Self, StateError> {
        let name = format!("{}.anchor", fingerprint.short());
        let mut anchor = Self { storage, name, fingerprint, standing: None };
        anchor.standing = anchor.read()?;
        Ok(anchor)
    }

    /// What the log must agree with; `None` where there is no anchor yet.
    pub(super) fn anchored(&self) -> Option<Anchored> {
        self.standing.map(|standing| Anchored { path: self.path(), standing, agrees: false })
    }

    /// Writes down how far the log has come.
    pub(super) fn move_to(&mut self, standing: Standing) -> Result<(), StateError> {
        if self.read()? != self.standing {
            return Err(StateError::AnchorMoved { path: self.path() });
        }
        let frame = encode(kind::ANCHOR, 0, &(self.fingerprint, standing))?;
        let parts = [&file_header(Role::Anchor, Version::NEWEST)[..], &frame];
        swap_in(&*self.storage, &format!("{}.new", self.name), &self.name, &parts)?;
        self.standing = Some(standing);
        Ok(())
    }

    fn read(&self) -> Result<Option<Standing>, StateError> {
        let Some(file) = self.storage.read(&self.name)? else { return Ok(None) };
        let unreadable = "the anchor fails its checksum (to delete it accepts the state directory as it is)";
        let frame = only_frame(&*file, Role::Anchor, kind::ANCHOR)?;
        let (_, frame) = frame.ok_or_else(|| damaged(&*file, 0, unreadable))?;
        let (fingerprint, standing): (Link, Standing) = frame.decode(&*file)?;
        if fingerprint != self.fingerprint {
            return Err(damaged(&*file, 0, "the anchor is that of another log"));
        }
        Ok(Some(standing))
    }

    pub(super) fn path(&self) -> PathBuf {
        self.storage.path().join(&self.name)
    }
}
