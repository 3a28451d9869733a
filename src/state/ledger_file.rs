//! Where a ledger lives: one sealed file in a directory of its own, which is locked while it changes.

use super::{
    error::StateError,
    format::{Role, kind},
    log::Sealed,
    storage::{Directory, Storage},
};
use serde::{Deserialize, Serialize};
use std::{
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

const LEDGER: Sealed =
    Sealed { name: "ledger", beside: "ledger.new", role: Role::Ledger, kind: kind::LEDGER };

/// How long a run waits for others to enter theirs: an entry takes a few syncs.
const PATIENCE: Duration = Duration::from_secs(20);

/// The payload of the file's frame.
#[derive(Serialize, Deserialize)]
struct LedgerPayload {
    text: Vec<u8>,
}

/// The file of a ledger. Its content is opaque here.
pub struct LedgerFile {
    storage: Box<dyn Storage>,
}

impl LedgerFile {
    /// To read what was last written, whoever else writes.
    ///
    /// # Errors
    /// [`StateError::Missing`] without such a directory.
    pub fn shared(path: &Path) -> Result<Self, StateError> {
        Ok(Self::on(Box::new(Directory::shared(path)?)))
    }

    /// To read and write while all other writers wait. Creates the directory, not its parents, when needed.
    ///
    /// # Errors
    /// [`StateError::Locked`] after twenty seconds.
    pub fn exclusive(path: &Path) -> Result<Self, StateError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match Directory::exclusive(path) {
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

    /// What was last written, if anything was.
    ///
    /// # Errors
    /// [`StateError::Damaged`] if that is no longer what is there.
    pub fn read(&self) -> Result<Option<Vec<u8>>, StateError> {
        Ok(LEDGER.read(&*self.storage)?.map(|LedgerPayload { text }| text))
    }

    /// Replaces what was there. When this returns, it is on disk.
    ///
    /// # Errors
    /// [`StateError::Io`]; what was there before may still be. [`StateError::Replaced`] where the path no longer leads to the
    /// directory that is locked.
    pub fn write(&self, text: Vec<u8>) -> Result<(), StateError> {
        self.storage.confirm()?;
        LEDGER.write(&*self.storage, &LedgerPayload { text })?;
        self.storage.confirm()
    }
}
