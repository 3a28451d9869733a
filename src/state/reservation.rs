//! Reserves room in a ledger until a run pays: a file beside the ledger with an exclusive `flock`.
//! The kernel releases the lock when the run ends, so nothing has to be given back after a crash.
//!
//! A reservation is a courtesy between runs, not a payment: nothing is published because of one. So
//! its file has no checksum and is never synced.

use super::{
    calls::{flock, names, open},
    error::{StateError, refused},
};
use rand::{TryRng, rngs::SysRng};
use rustix::{
    fs::{FlockOperation, Mode, OFlags},
    io::Errno,
};
use std::{
    fs::{File, remove_file},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

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

    /// Returns the text of a reservation whose run is alive.
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
