//! One writer per directory: an exclusive `flock` on the directory itself. The kernel releases it
//! when the run ends, so a killed run leaves no lock behind.
//!
//! There is no lock file, because deleting it would admit a second run. The directory can't be
//! deleted while it holds a log, but it can be renamed, replaced by a copy, or covered by a mount.
//! So before every release the run confirms that the paths of its logs still lead to its open
//! files.

use super::{
    calls::{flock, fstat, openat, stat},
    error::{StateError, refused},
};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{FlockOperation, Mode, OFlags},
    io::Errno,
};
use std::{
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

/// Maximum wait for a lock. A killed run holds its lock until the kernel has closed its files. A
/// child process holds copies of our handles until it executes its program.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Locks the directory at `path`. The lock ends with the returned handle.
pub(super) fn acquire(path: &Path, directory: &OwnedFd) -> Result<OwnedFd, StateError> {
    // A separate handle: other handles on the directory may outlive the lock.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let handle = openat(directory, ".", flags, Mode::empty())
        .map_err(|e| refused(path, "open the directory")(e.into()))?;
    exclude(path, &handle)?;
    confirm(path, &handle)?;
    Ok(handle)
}

/// Locks an open file or directory; `path` is its state directory, for messages.
pub(super) fn exclude(path: &Path, handle: impl AsFd) -> Result<(), StateError> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match flock(&handle, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => sleep(Duration::from_millis(5)),
            Err(Errno::WOULDBLOCK) => return Err(StateError::Locked { path: path.to_owned() }),
            Err(error) => {
                return Err(refused(
                    path,
                    "lock the directory, which must be on a local file system (network file systems can't lock directories)",
                )(error.into()));
            }
        }
    }
}

/// Checks that `path` still leads to the file that `handle` has open.
pub(super) fn confirm(path: &Path, handle: impl AsFd) -> Result<(), StateError> {
    let opened = fstat(handle).map_err(|e| refused(path, "identify the open file")(e.into()))?;
    match stat(path) {
        Ok(found) if (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino) => Ok(()),
        Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => Err(StateError::Replaced { path: path.to_owned() }),
        Err(error) => Err(refused(path, "identify the file")(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use crate::state::{
        error::StateError,
        storage::{DirectoryStorage, PRIVATE_LOG, PUBLIC_LOG, Storage},
    };
    use std::fs;

    #[test]
    fn a_second_writer_is_refused_until_the_first_ends() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("state");
        let first = DirectoryStorage::exclusive(&path).unwrap();
        let second = DirectoryStorage::exclusive(&path).err().unwrap();
        assert!(matches!(second, StateError::Locked { .. }));
        assert!(second.to_string().starts_with(&path.display().to_string()));
        assert!(DirectoryStorage::shared(&path).is_ok(), "readers need no lock");
        let reader = first.reader().unwrap();
        drop(first);
        assert!(DirectoryStorage::exclusive(&path).is_ok());
        drop(reader);
    }

    /// Deleting files does not release the lock.
    #[test]
    fn a_writer_stays_alone_after_files_are_deleted() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("state");
        let first = DirectoryStorage::exclusive(&path).unwrap();
        first.write(PUBLIC_LOG).unwrap();
        for entry in fs::read_dir(&path).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        assert!(matches!(DirectoryStorage::exclusive(&path), Err(StateError::Locked { .. })));
    }

    /// A child process holds such a copy until it executes its program.
    #[test]
    fn an_open_copy_of_the_handle_delays_the_lock() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("state");
        drop(DirectoryStorage::exclusive(&path).unwrap());
        let lock = super::acquire(&path, &fs::File::open(&path).unwrap().into()).unwrap();
        let copy = lock.try_clone().unwrap();
        drop(lock);
        let closed = std::thread::spawn(move || {
            std::thread::sleep(super::LOCK_TIMEOUT / 10);
            drop(copy);
        });
        assert!(DirectoryStorage::exclusive(&path).is_ok());
        closed.join().unwrap();
    }

    /// A copy made of hard links has the same files in another directory.
    #[test]
    fn a_linked_copy_does_not_share_its_private_log() {
        let outer = tempfile::tempdir().unwrap();
        let (path, copy) = (outer.path().join("state"), outer.path().join("copy"));
        let first = DirectoryStorage::exclusive(&path).unwrap();
        let log = first.write(PRIVATE_LOG).unwrap();
        let second = DirectoryStorage::exclusive(&copy).unwrap();
        fs::hard_link(path.join(PRIVATE_LOG), copy.join(PRIVATE_LOG)).unwrap();
        assert!(matches!(second.write(PRIVATE_LOG), Err(StateError::Locked { .. })));
        drop(log);
        assert!(second.write(PRIVATE_LOG).is_ok());
    }

    #[test]
    fn a_file_or_directory_that_was_replaced_is_not_confirmed() {
        let outer = tempfile::tempdir().unwrap();
        let (path, away) = (outer.path().join("state"), outer.path().join("away"));
        let directory = DirectoryStorage::exclusive(&path).unwrap();
        let log = directory.write(PUBLIC_LOG).unwrap();
        let confirmed = || (directory.confirm().is_ok(), log.confirm().is_ok());
        assert_eq!(confirmed(), (true, true));
        fs::rename(path.join(PUBLIC_LOG), path.join("other")).unwrap();
        assert_eq!(confirmed(), (true, false));
        fs::copy(path.join("other"), path.join(PUBLIC_LOG)).unwrap();
        assert!(matches!(log.confirm(), Err(StateError::Replaced { .. })));
        fs::rename(path.join("other"), path.join(PUBLIC_LOG)).unwrap();
        assert_eq!(confirmed(), (true, true));
        fs::rename(&path, &away).unwrap();
        assert_eq!(confirmed(), (false, false));
        fs::create_dir(&path).unwrap();
        assert_eq!(confirmed(), (false, false));
    }
}
