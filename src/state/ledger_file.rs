//! Storage of a ledger: one sealed file in a directory that is locked while it changes, and files
//! that reserve budget until a run pays.
//!
//! A reservation has an exclusive `flock`, which the kernel releases when the run ends, so nothing
//! has to be given back after a crash. It only informs other runs: nothing is published because of
//! it. So its file has no checksum and is never synced.

use super::{
    calls::{flock, names, open},
    error::{StateError, refused},
    format::{FileRole, kind},
    log::SealedFile,
    storage::{DirectoryStorage, Storage},
};
use rand::{TryRng, rngs::SysRng};
use rustix::{
    fs::{FlockOperation, Mode, OFlags},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use std::{
    fs::{File, remove_file},
    io::{self, Read, Write},
    path::{Path, PathBuf},
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

    /// Opens the ledger at `path` for reading and writing, and locks it. Creates the directory and
    /// its parents if needed.
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

const PREFIX: &str = "reserved-";

/// A reservation that is valid, and whose file exists, while this value lives.
pub struct Reservation {
    path: PathBuf,
    /// Holds the lock; never read.
    _file: File,
}

impl Reservation {
    /// Writes `text` into the directory of a ledger, which the caller has locked.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn make(directory: &Path, text: &[u8]) -> Result<Self, StateError> {
        let mut number = [0; 8];
        SysRng
            .try_fill_bytes(&mut number)
            .map_err(|error| refused(directory, "draw a name for a reservation")(io::Error::other(error)))?;
        let path = directory.join(format!("{PREFIX}{:016x}", u64::from_le_bytes(number)));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = open(&path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|error| refused(&path, "create the file")(error.into()))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| refused(&path, "lock the file")(error.into()))?;
        // From here on `drop` removes the file.
        let mut reservation = Self { path, _file: File::from(file) };
        let written = reservation._file.write_all(text);
        written.map_err(refused(&reservation.path, "write the file"))?;
        Ok(reservation)
    }

    /// Returns the reservations of running processes in the directory of a ledger, which the caller
    /// has locked. Removes those of processes that have ended.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn all(directory: &Path) -> Result<Vec<Vec<u8>>, StateError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let names = open(directory, flags, Mode::empty()).and_then(names);
        let names = names.map_err(|error| refused(directory, "list the directory")(error.into()))?;
        let mut texts = Vec::new();
        for name in names.iter().filter(|name| name.starts_with(PREFIX)) {
            texts.extend(Self::read(&directory.join(name))?);
        }
        Ok(texts)
    }

    /// Returns the text of a reservation whose run has not ended.
    fn read(path: &Path) -> Result<Option<Vec<u8>>, StateError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match open(path, flags, Mode::empty()) {
            // Its run has just ended.
            Err(Errno::NOENT) => return Ok(None),
            file => file.map_err(|error| refused(path, "open the file")(error.into()))?,
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                let mut text = Vec::new();
                File::from(file).read_to_end(&mut text).map_err(refused(path, "read the file"))?;
                Ok(Some(text))
            }
            Err(error) => Err(refused(path, "lock the file")(error.into())),
            Ok(()) => {
                let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
                match remove_file(path) {
                    Err(error) if !is_missing(&error) => Err(refused(path, "remove the file")(error)),
                    _ => Ok(None),
                }
            }
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // A file that stays is removed by the next run that lists them.
        let _ = remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::read_dir;

    #[test]
    fn a_reservation_counts_for_as_long_as_it_lives() {
        let directory = tempfile::tempdir().unwrap();
        let all = || {
            let mut all = Reservation::all(directory.path()).unwrap();
            all.sort();
            all
        };
        assert!(all().is_empty());
        let one = Reservation::make(directory.path(), b"one").unwrap();
        let two = Reservation::make(directory.path(), b"two").unwrap();
        assert_eq!(all(), [b"one", b"two"]);
        drop(one);
        assert_eq!(all(), [b"two"]);
        drop(two);
        assert_eq!(read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn leftovers_of_a_dead_run_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("reserved-00"), b"dead").unwrap();
        std::fs::write(directory.path().join("ledger"), b"not ours").unwrap();
        assert!(Reservation::all(directory.path()).unwrap().is_empty());
        assert_eq!(read_dir(directory.path()).unwrap().count(), 1);
    }
}
