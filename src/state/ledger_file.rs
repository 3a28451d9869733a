//! Storage of a ledger: one sealed file in a directory that is locked while it changes.

use super::{
    error::StateError,
    format::{FileRole, kind},
    log::SealedFile,
    storage::{DirectoryStorage, Storage},
};
use serde::{Deserialize, Serialize};
use std::{
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

const LEDGER: SealedFile =
    SealedFile { name: "ledger", temporary_name: "ledger.new", role: FileRole::Ledger, kind: kind::LEDGER };

/// How long to wait for other runs to make their entries. An entry takes a few syncs.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The payload of the file's frame.
#[derive(Serialize, Deserialize)]
struct LedgerPayload {
    text: Vec<u8>,
}

/// The file of a ledger. Its content is opaque to this module.
pub struct LedgerFile {
    storage: Box<dyn Storage>,
}

impl LedgerFile {
    /// Opens the ledger at `path` for reading, without a lock.
    ///
    /// # Errors
    /// [`StateError::Missing`] without such a directory.
    pub fn shared(path: &Path) -> Result<Self, StateError> {
        Ok(Self::on(Box::new(DirectoryStorage::shared(path)?)))
    }

    /// Opens the ledger at `path` for reading and writing, and locks it. Creates the directory, not
    /// its parents, if needed.
    ///
    /// # Errors
    /// [`StateError::Locked`] after twenty seconds.
    pub fn exclusive(path: &Path) -> Result<Self, StateError> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match DirectoryStorage::exclusive(path) {
                Err(StateError::Locked { .. }) if Instant::now() < deadline => {
                    sleep(Duration::from_millis(5))
                }
                directory => return Ok(Self::on(Box::new(directory?))),
            }
        }
    }

    pub(super) fn on(storage: Box<dyn Storage>) -> Self {
        Self { storage }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.storage.path()
    }

    /// Returns the last content, `None` if nothing was written yet.
    ///
    /// # Errors
    /// [`StateError::Damaged`] if the file has changed since it was written.
    pub fn read(&self) -> Result<Option<Vec<u8>>, StateError> {
        Ok(LEDGER.read(&*self.storage)?.map(|LedgerPayload { text }| text))
    }

    /// Replaces the content. It is on disk when this returns.
    ///
    /// # Errors
    /// [`StateError::Io`]; the old content may remain. [`StateError::Replaced`] if the path no
    /// longer leads to the locked directory.
    pub fn write(&self, text: Vec<u8>) -> Result<(), StateError> {
        self.storage.confirm()?;
        LEDGER.write(&*self.storage, &LedgerPayload { text })?;
        self.storage.confirm()
    }
}
