//! Storage of a state directory: a trait narrow enough to simulate, and the real directory.
//!
//! Files are opened relative to one directory handle and without following links, so the checked
//! file is the one used. Failed operations are not retried: after a failed sync the state of the
//! disk is unknown.

use super::{
    calls,
    error::{StateError, refused},
    lock,
    public_directory::{PublicDirectory, open_for_all, refuse_other_writers},
};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{Mode, OFlags, Stat},
    process::geteuid,
};
use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

/// The first segment of the private log.
pub(super) const PRIVATE_LOG: &str = "private-000001.log";
/// The start of a segment while it is being written.
pub(super) const NEW_SEGMENT: &str = "private.new";
/// The log of releases.
pub(super) const PUBLIC_LOG: &str = "public.log";
/// The two checkpoint files.
pub(super) const CHECKPOINTS: [&str; 2] = ["checkpoint.a", "checkpoint.b"];
/// A checkpoint while it is being written.
pub(super) const NEW_CHECKPOINT: &str = "checkpoint.new";

/// Returns the name of the private log's segment with this number, from 1.
pub(super) fn segment_name(number: u64) -> String {
    format!("private-{number:06}.log")
}

/// Returns the number of the segment named `name`.
fn segment_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix("private-")?.strip_suffix(".log")?.parse().ok()?;
    (segment_name(number) == name).then_some(number)
}

/// Returns the numbers of the existing segments, in order.
pub(super) fn segment_numbers(storage: &dyn Storage) -> Result<Vec<u64>, StateError> {
    let mut numbers: Vec<u64> = storage.names()?.iter().filter_map(|name| segment_number(name)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Opens a file that is known to exist, for reading.
pub(super) fn reopen(storage: &dyn Storage, name: &str) -> Result<Box<dyn StorageFile>, StateError> {
    storage.read(name)?.ok_or_else(|| StateError::Missing { path: storage.path_of(name) })
}

/// Writes a file, in parts, under the name `temporary_name`, syncs it, and renames it into place.
pub(super) fn swap_in(
    storage: &dyn Storage,
    temporary_name: &str,
    name: &str,
    parts: &[&[u8]],
) -> Result<(), StateError> {
    let file = storage.write(temporary_name)?;
    file.truncate(0)?;
    let mut end = 0;
    for part in parts {
        file.write_at(end, part)?;
        end += part.len() as u64;
    }
    file.sync()?;
    storage.rename(temporary_name, name)?;
    storage.sync()
}

/// A flat directory of files.
pub(super) trait Storage: Send {
    /// The directory, for messages.
    fn path(&self) -> &Path;
    /// A file in it, for messages.
    fn path_of(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
    /// Opens a file for reading, if it exists.
    fn read(&self, name: &str) -> Result<Option<Box<dyn StorageFile>>, StateError>;
    /// Opens a file for reading and writing, creating it when needed.
    fn write(&self, name: &str) -> Result<Box<dyn StorageFile>, StateError>;
    /// Replaces `to` by `from`.
    fn rename(&self, from: &str, to: &str) -> Result<(), StateError>;
    /// Removes a file.
    fn remove(&self, name: &str) -> Result<(), StateError>;
    /// Makes creations, renames and removals durable.
    fn sync(&self) -> Result<(), StateError>;
    /// The names of all files, in any order.
    fn names(&self) -> Result<Vec<String>, StateError>;
    /// Another handle on the directory, for reading, without the lock.
    fn reader(&self) -> Result<Box<dyn Storage>, StateError>;
    /// Seconds since 1970, by a clock that may be wrong.
    fn now(&self) -> u64;
    /// Bytes free on the file system, `u64::MAX` if unknown.
    fn free(&self) -> u64;
    /// Another handle on the directory, which stays locked while either handle exists.
    fn share(&self) -> Box<dyn Storage>;
    /// Refuses with [`StateError::Replaced`] unless the path still leads to this directory.
    fn confirm(&self) -> Result<(), StateError>;
}

/// An open file.
pub(super) trait StorageFile: Send {
    /// The file, for messages.
    fn path(&self) -> &Path;
    /// Current number of bytes in the file.
    fn length(&self) -> Result<u64, StateError>;
    /// Fills `buffer` from `offset`, or as much of it as the file has; returns the bytes filled.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, StateError>;
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), StateError>;
    /// Cuts the file to `length` bytes.
    fn truncate(&self, length: u64) -> Result<(), StateError>;
    /// Makes content and length durable.
    fn sync(&self) -> Result<(), StateError>;
    /// Refuses with [`StateError::Replaced`] unless the path still leads to this file.
    fn confirm(&self) -> Result<(), StateError>;
}

/// A directory of the file system.
#[derive(Clone)]
pub(super) struct DirectoryStorage {
    path: PathBuf,
    handle: Arc<OwnedFd>,
    /// The public log's directory, if it is a separate one.
    public: Option<PublicDirectory>,
    /// The lock of a writer, which lasts as long as this handle; `None` for readers.
    lock: Option<Arc<OwnedFd>>,
}

impl DirectoryStorage {
    /// Opens and locks the directory at `path` for one writer. Creates it and its parents if
    /// missing; refuses it if other users have access.
    pub(super) fn exclusive(path: &Path) -> Result<Self, StateError> {
        match calls::make_directory(path, Mode::RWXU, None) {
            Err(error) if error != rustix::io::Errno::EXIST => {
                return Err(refused(path, "create the directory")(error.into()));
            }
            _ => {}
        }
        let mut directory = Self::shared(path)?;
        require_private(path, &directory.handle)?;
        directory.lock = Some(Arc::new(lock::acquire(path, &directory.handle)?));
        if directory.read(PRIVATE_LOG)?.is_none() {
            directory.sync_parent()?;
        }
        Ok(directory)
    }

    /// Opens the directory at `path` for reading, without a lock.
    pub(super) fn shared(path: &Path) -> Result<Self, StateError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = calls::open(path, flags, Mode::empty()).map_err(|error| match error {
            rustix::io::Errno::NOENT => StateError::Missing { path: path.to_owned() },
            error => refused(path, "open the directory")(error.into()),
        })?;
        Ok(Self { path: path.to_owned(), handle: Arc::new(handle), public: None, lock: None })
    }

    /// Adds a separate directory for the public log, if given, for one writer.
    pub(super) fn publishing_in(self, public: Option<&Path>) -> Result<Self, StateError> {
        let public = public.map(|public| PublicDirectory::exclusive(public, &self.path)).transpose()?;
        Ok(Self { public, ..self })
    }

    /// Adds a separate directory for the public log, if given, for reading.
    pub(super) fn published_in(self, public: Option<&Path>) -> Result<Self, StateError> {
        let public = public.map(PublicDirectory::shared).transpose()?;
        Ok(Self { public, ..self })
    }

    /// Syncs the parent directory, which holds the entry of a new directory.
    fn sync_parent(&self) -> Result<(), StateError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        calls::openat(&self.handle, "..", flags, Mode::empty())
            .and_then(calls::fsync)
            .map_err(|e| refused(&self.path, "sync the parent directory")(e.into()))
    }

    fn open(&self, name: &str, flags: OFlags) -> Result<Option<DirectoryFile>, StateError> {
        let path = self.path_of(name);
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match self.public_of(name) {
            Some(public) => open_for_all(&public.handle, name, flags),
            None => calls::openat(&self.handle, name, flags, creation_mode(name)),
        };
        let handle = match opened {
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            other => other.map_err(|e| refused(&path, "open the file")(e.into()))?,
        };
        if name != PUBLIC_LOG {
            require_private(&path, &handle)?;
        } else if self.lock.is_some() {
            refuse_other_writers(&path, &handle)?;
        }
        Ok(Some(DirectoryFile { path, file: handle.into() }))
    }
}

impl DirectoryStorage {
    /// Returns the separate directory that holds the file, if there is one.
    fn public_of(&self, name: &str) -> Option<&PublicDirectory> {
        self.public.as_ref().filter(|_| name == PUBLIC_LOG)
    }
}

/// Other users may read only the public log.
fn creation_mode(name: &str) -> Mode {
    let owner = Mode::RUSR | Mode::WUSR;
    if name == PUBLIC_LOG { owner | Mode::RGRP | Mode::ROTH } else { owner }
}

/// Refuses a file or directory that another user owns, or that group or others can access.
pub(super) fn require_private(path: &Path, handle: impl AsFd) -> Result<(), StateError> {
    let status = calls::fstat(handle).map_err(|e| refused(path, "read the permissions")(e.into()))?;
    check_private(path, &status, geteuid().as_raw())
}

fn check_private(path: &Path, status: &Stat, user: u32) -> Result<(), StateError> {
    if status.st_uid != user {
        return Err(StateError::ForeignOwner { path: path.to_owned(), owner: status.st_uid });
    }
    match status.st_mode & 0o777 {
        mode if mode & 0o077 != 0 => Err(StateError::Exposed { path: path.to_owned(), mode }),
        _ => Ok(()),
    }
}

impl Storage for DirectoryStorage {
    fn path(&self) -> &Path {
        &self.path
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.public_of(name).map_or(&self.path, |public| &public.path).join(name)
    }

    fn read(&self, name: &str) -> Result<Option<Box<dyn StorageFile>>, StateError> {
        let file = self.open(name, OFlags::RDONLY)?;
        Ok(file.map(|file| -> Box<dyn StorageFile> { Box::new(file) }))
    }

    fn write(&self, name: &str) -> Result<Box<dyn StorageFile>, StateError> {
        let file = self.open(name, OFlags::RDWR | OFlags::CREATE)?;
        // A copy of the directory may share its private log through hard links.
        if let Some(file) = &file
            && self.lock.is_some()
            && segment_number(name).is_some()
        {
            lock::exclude(&self.path, &file.file)?;
        }
        let file = file.map(|file| -> Box<dyn StorageFile> { Box::new(file) });
        file.ok_or_else(|| refused(self.path.join(name), "create the file")(io::ErrorKind::NotFound.into()))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), StateError> {
        calls::rename(&self.handle, from, to)
            .map_err(|e| refused(self.path.join(from), "rename the file")(e.into()))
    }

    fn remove(&self, name: &str) -> Result<(), StateError> {
        calls::unlink(&self.handle, name)
            .map_err(|e| refused(self.path.join(name), "remove the file")(e.into()))
    }

    fn sync(&self) -> Result<(), StateError> {
        let public = self.public.as_ref().map(|public| (&public.path, &public.handle));
        [(&self.path, &self.handle)].into_iter().chain(public).try_for_each(|(path, handle)| {
            calls::fsync(handle).map_err(|e| refused(path, "sync the directory")(e.into()))
        })
    }

    fn names(&self) -> Result<Vec<String>, StateError> {
        calls::names(&self.handle).map_err(|e| refused(&self.path, "list the directory")(e.into()))
    }

    fn reader(&self) -> Result<Box<dyn Storage>, StateError> {
        let public = self.public.as_ref().map(PublicDirectory::reader);
        Ok(Box::new(Self { public, lock: None, ..self.clone() }))
    }

    fn share(&self) -> Box<dyn Storage> {
        Box::new(self.clone())
    }

    fn confirm(&self) -> Result<(), StateError> {
        lock::confirm(&self.path, &self.handle)?;
        self.public.as_ref().map_or(Ok(()), PublicDirectory::confirm)
    }

    fn free(&self) -> u64 {
        match calls::fstatvfs(&self.handle) {
            // A file system without blocks reports zero.
            Ok(status) if status.f_blocks > 0 => status.f_bavail.saturating_mul(status.f_frsize),
            _ => u64::MAX,
        }
    }

    fn now(&self) -> u64 {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }
}

struct DirectoryFile {
    path: PathBuf,
    file: File,
}

impl StorageFile for DirectoryFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn length(&self) -> Result<u64, StateError> {
        Ok(self.file.metadata().map_err(refused(&self.path, "read the file's length"))?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, StateError> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.file.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(refused(&self.path, "read the file")(error)),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), StateError> {
        self.file.write_all_at(bytes, offset).map_err(refused(&self.path, "write the file"))
    }

    fn truncate(&self, length: u64) -> Result<(), StateError> {
        self.file.set_len(length).map_err(refused(&self.path, "cut the file"))
    }

    fn sync(&self) -> Result<(), StateError> {
        // fdatasync also syncs the length; it omits only metadata that reading back does not need.
        self.file.sync_data().map_err(refused(&self.path, "sync the file"))
    }

    fn confirm(&self) -> Result<(), StateError> {
        lock::confirm(&self.path, &self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn mode_of(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_new_directory_is_closed_to_others_and_so_are_its_private_files() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("state");
        let directory = DirectoryStorage::exclusive(&path).unwrap();
        for name in [PRIVATE_LOG, PUBLIC_LOG, CHECKPOINTS[0]] {
            directory.write(name).unwrap();
        }
        assert_eq!(mode_of(&path), 0o700);
        assert_eq!(mode_of(&path.join(PRIVATE_LOG)), 0o600);
        assert_eq!(mode_of(&path.join(CHECKPOINTS[0])), 0o600);
        assert_eq!(mode_of(&path.join(PUBLIC_LOG)) & !0o644, 0);
    }

    #[test]
    fn access_of_group_or_others_is_refused() {
        let check = |mode: u32, accepted: bool| {
            let outer = tempfile::tempdir().unwrap();
            let path = outer.path().join("state");
            std::fs::create_dir(&path).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            match DirectoryStorage::exclusive(&path) {
                Ok(_) => assert!(accepted, "{mode:o}"),
                Err(error) => {
                    assert!(!accepted && error.to_string().contains("chmod go-rwx"), "{mode:o}: {error}");
                }
            }
        };
        check(0o700, true);
        for mode in [0o701, 0o702, 0o704, 0o710, 0o720, 0o740, 0o755, 0o777] {
            check(mode, false);
        }
    }

    #[test]
    fn an_exposed_private_file_and_a_foreign_owner_are_refused() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("state");
        let directory = DirectoryStorage::exclusive(&path).unwrap();
        directory.write(PRIVATE_LOG).unwrap();
        std::fs::set_permissions(path.join(PRIVATE_LOG), std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(directory.read(PRIVATE_LOG), Err(StateError::Exposed { mode: 0o640, .. })));
        let status = calls::fstat(&directory.handle).unwrap();
        let stranger = check_private(&path, &status, status.st_uid + 1);
        assert!(matches!(stranger, Err(StateError::ForeignOwner { .. })));
    }

    #[test]
    fn a_public_log_that_others_may_write_is_refused_to_its_writer() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("state");
        let directory = DirectoryStorage::exclusive(&path).unwrap();
        directory.write(PUBLIC_LOG).unwrap();
        let set = |mode| {
            std::fs::set_permissions(path.join(PUBLIC_LOG), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        for mode in [0o666, 0o664, 0o646] {
            set(mode);
            assert!(matches!(directory.write(PUBLIC_LOG), Err(StateError::Writable { .. })), "{mode:o}");
            assert!(matches!(directory.read(PUBLIC_LOG), Err(StateError::Writable { .. })), "{mode:o}");
            assert!(
                DirectoryStorage::shared(&path).unwrap().read(PUBLIC_LOG).is_ok(),
                "a copy may be anyone's"
            );
        }
        for mode in [0o644, 0o600, 0o640] {
            set(mode);
            assert!(directory.write(PUBLIC_LOG).is_ok(), "{mode:o}");
        }
    }

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("state");
        let directory = DirectoryStorage::exclusive(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", path.join(PRIVATE_LOG)).unwrap();
        assert!(matches!(directory.write(PRIVATE_LOG), Err(StateError::Io { .. })));
    }

    #[test]
    fn segment_names_are_parsed() {
        let check = |name, number| assert_eq!(segment_number(name), number, "{name}");
        check(PRIVATE_LOG, Some(1));
        check("private-1000000.log", Some(1_000_000));
        for name in
            ["private-1.log", "private-0000002.log", "private-00000a.log", "private.new", "public.log"]
        {
            check(name, None);
        }
    }

    #[test]
    fn a_file_returns_the_bytes_written() {
        let outer = tempfile::tempdir().unwrap();
        let directory = DirectoryStorage::exclusive(&outer.path().join("state")).unwrap();
        assert!(directory.read("file").unwrap().is_none());
        let file = directory.write("file").unwrap();
        file.write_at(2, b"abc").unwrap();
        file.truncate(4).unwrap();
        file.sync().unwrap();
        directory.write("gone").unwrap();
        directory.remove("gone").unwrap();
        directory.rename("file", "other").unwrap();
        let files: Vec<_> =
            directory.names().unwrap().into_iter().filter(|name| name.contains("o")).collect();
        assert!(files.contains(&"other".into()) && !files.contains(&"gone".into()), "{files:?}");
        directory.sync().unwrap();
        let file = directory.read("other").unwrap().unwrap();
        let mut buffer = [9; 6];
        assert_eq!(file.read_at(1, &mut buffer).unwrap(), 3);
        assert_eq!((file.length().unwrap(), buffer), (4, [0, b'a', b'b', 9, 9, 9]));
    }
}
