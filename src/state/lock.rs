//! One writer per state directory: an exclusive `flock` on the file `lock`, held by the kernel for as long as
//! the run lives, so that nothing is left behind by a killed one.

use super::error::{StateError, refused};
use rustix::{
    fd::OwnedFd,
    fs::{FlockOperation, Mode, OFlags, flock, openat},
    io::Errno,
};
use std::path::Path;

const LOCK: &str = "lock";

/// Locks the directory at once or not at all; the lock ends with the returned handle.
pub(super) fn acquire(path: &Path, directory: &OwnedFd) -> Result<OwnedFd, StateError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(directory, LOCK, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|e| refused(path.join(LOCK), "open the file")(e.into()))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(StateError::Locked { path: path.to_owned() }),
        Err(error) => Err(refused(path.join(LOCK), "lock the file")(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use crate::state::{error::StateError, storage::Directory};

    #[test]
    fn a_second_writer_is_refused_until_the_first_ends() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("state");
        let first = Directory::exclusive(&path).unwrap();
        let second = Directory::exclusive(&path).err().unwrap();
        assert!(matches!(second, StateError::Locked { .. }));
        assert!(second.to_string().starts_with(&path.display().to_string()));
        assert!(Directory::shared(&path).is_ok(), "readers need no lock");
        drop(first);
        assert!(Directory::exclusive(&path).is_ok());
    }
}
