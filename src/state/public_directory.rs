//! A separate directory for the public log, readable by everyone and writable by its owner only.
//!
//! The state directory is private, so a reader of a public log there must run as the owner of the
//! exact sums. With a separate directory, network-facing processes can run as another user, in a
//! container, or on another machine, without access to the state directory. Recovery does not
//! change: the log is a function of the private log. It is rebuilt if it is behind, and prevents a
//! start if it is ahead or different, so it detects an old copy of the state directory.

use super::{
    calls,
    error::{StateError, refused},
    lock,
    storage::require_private,
};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{Mode, OFlags},
    io::Errno,
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Locked by the run that writes the log. Its mode is 0600, because readers that could lock it
/// could block a run. Deleting it would admit a second run, so before every release the run
/// confirms that it still exists.
const LOCK: &str = "writer.lock";

/// The directory, and the lock if a run writes to it.
#[derive(Clone)]
pub(super) struct PublicDirectory {
    pub(super) path: PathBuf,
    pub(super) handle: Arc<OwnedFd>,
    /// The lock lasts as long as this handle; readers have none.
    lock: Option<Arc<OwnedFd>>,
}

impl PublicDirectory {
    /// Opens and locks the directory at `path` for one writer, whose state directory is `state`.
    /// Creates it and its parents with mode 0755 if missing. Refuses it if others can write to it
    /// or it lies in the state directory.
    pub(super) fn exclusive(path: &Path, state: &Path) -> Result<Self, StateError> {
        let real = |path: &Path| path.canonicalize().ok();
        // A directory that does not exist yet is checked by the nearest parent that does.
        let parents = path.ancestors().map(|path| if path == Path::new("") { Path::new(".") } else { path });
        let resolved = parents.map(real).find_map(|found| found);
        if resolved.zip(real(state)).is_some_and(|(public, state)| public.starts_with(state)) {
            return Err(StateError::Inside { path: path.to_owned(), file: "the public directory" });
        }
        // Readable by others under any umask of the service.
        let mode = Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH;
        let created = match calls::make_directory(path, Mode::RWXU, Some(mode)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(refused(path, "create the directory")(error.into())),
        };
        let directory = Self::shared(path)?;
        if created {
            calls::fchmod(&directory.handle, mode).map_err(|e| refused(path, "set the mode")(e.into()))?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            calls::openat(&directory.handle, "..", flags, Mode::empty())
                .and_then(calls::fsync)
                .map_err(|e| refused(path, "sync the parent directory")(e.into()))?;
        }
        refuse_other_writers(path, &directory.handle)?;
        Ok(Self { lock: Some(Arc::new(directory.lock()?)), ..directory })
    }

    /// Opens the directory at `path` for reading, without a lock.
    pub(super) fn shared(path: &Path) -> Result<Self, StateError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = calls::open(path, flags, Mode::empty()).map_err(|error| match error {
            Errno::NOENT => StateError::Missing { path: path.to_owned() },
            error => refused(path, "open the directory")(error.into()),
        })?;
        Ok(Self { path: path.to_owned(), handle: Arc::new(handle), lock: None })
    }

    /// Returns a handle to the same directory without the lock.
    pub(super) fn reader(&self) -> Self {
        Self { lock: None, ..self.clone() }
    }

    /// Refuses unless the lock file is still the one that another run would lock.
    pub(super) fn confirm(&self) -> Result<(), StateError> {
        self.lock.as_ref().map_or(Ok(()), |held| lock::confirm(&self.path.join(LOCK), held))
    }

    fn lock(&self) -> Result<OwnedFd, StateError> {
        let path = self.path.join(LOCK);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = calls::openat(&self.handle, LOCK, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| refused(&path, "open the file")(e.into()))?;
        require_private(&path, &file)?;
        lock::exclude(&self.path, &file)?;
        Ok(file)
    }
}

/// Refuses a public log, or its directory, that others may write.
pub(super) fn refuse_other_writers(path: &Path, handle: impl AsFd) -> Result<(), StateError> {
    let status = calls::fstat(handle).map_err(|e| refused(path, "read the permissions")(e.into()))?;
    match status.st_mode & 0o777 {
        mode if mode & 0o022 != 0 => Err(StateError::Writable { path: path.to_owned(), mode }),
        _ => Ok(()),
    }
}

/// Opens a file that everyone may read, creating it if needed, under any umask.
pub(super) fn open_for_all(directory: &OwnedFd, name: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    if flags.contains(OFlags::CREATE) {
        match calls::openat(directory, name, flags | OFlags::EXCL, mode) {
            Ok(file) => {
                calls::fchmod(&file, mode)?;
                return Ok(file);
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
    }
    calls::openat(directory, name, flags, mode)
}

#[cfg(test)]
mod tests {
    use super::super::{EpochFrame, PublicHeader, PublicReader, StateSettings, Store, verify_with};
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    struct TestDirectories {
        _outer: tempfile::TempDir,
        state: PathBuf,
        public: PathBuf,
    }

    impl TestDirectories {
        fn new() -> Self {
            let outer = tempfile::tempdir().unwrap();
            let resolved = |name| outer.path().join(name);
            Self { state: resolved("state"), public: resolved("public"), _outer: outer }
        }

        fn open_in(&self, state: &Path) -> Result<Store, StateError> {
            let header = PublicHeader { parameters: b"p".to_vec(), private: true };
            let settings = StateSettings { public: Some(self.public.clone()), ..StateSettings::default() };
            Store::open_with(state, &header, &settings).map(|(store, _)| store)
        }

        fn open(&self) -> Result<Store, StateError> {
            self.open_in(&self.state)
        }

        fn log(&self) -> PathBuf {
            self.public.join("public.log")
        }

        /// Commits epochs up to this one.
        fn commit_to(&self, last: u64) {
            let mut store = self.open().unwrap();
            for epoch in store.committed() + 1..=last {
                let values = vec![7 * i128::from(epoch)];
                let frame =
                    EpochFrame { epoch, positions: vec![], sums: vec![1].into(), values, admitted: None };
                store.commit(&[frame]).unwrap();
            }
        }
    }

    fn mode_of(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn only_the_public_log_is_in_the_directory_and_everyone_may_read_it() {
        let directories = TestDirectories::new();
        directories.commit_to(3);
        assert_eq!((mode_of(&directories.public), mode_of(&directories.log())), (0o755, 0o644));
        assert_eq!(mode_of(&directories.public.join(LOCK)), 0o600);
        assert_eq!(mode_of(&directories.state), 0o700);
        assert!(!directories.state.join("public.log").exists());
        let mut reader = PublicReader::open(&directories.public).unwrap();
        let released = std::iter::from_fn(|| reader.next_frame().unwrap());
        assert_eq!(released.map(|release| release.epoch).collect::<Vec<_>>(), [1, 2, 3]);
        let settings = StateSettings { public: Some(directories.public.clone()), ..StateSettings::default() };
        let report = verify_with(&directories.state, &settings).unwrap();
        assert!(report.problem.is_none() && report.published == 3, "{:?}", report.problem);
    }

    #[test]
    fn a_log_that_is_lost_or_behind_is_rebuilt_to_the_last_byte() {
        let directories = TestDirectories::new();
        directories.commit_to(5);
        let whole = std::fs::read(directories.log()).unwrap();
        for length in [0, 3, whole.len() / 2, whole.len() - 1] {
            std::fs::write(directories.log(), &whole[..length]).unwrap();
            directories.commit_to(5);
            assert!(std::fs::read(directories.log()).unwrap() == whole, "cut to {length}");
        }
        std::fs::remove_dir_all(&directories.public).unwrap();
        directories.commit_to(5);
        assert!(std::fs::read(directories.log()).unwrap() == whole);
        assert_eq!((mode_of(&directories.public), mode_of(&directories.log())), (0o755, 0o644));
    }

    #[test]
    fn a_log_that_is_ahead_or_different_is_refused_by_name() {
        let directories = TestDirectories::new();
        directories.commit_to(2);
        let copy = directories.state.with_file_name("copy");
        std::fs::create_dir(&copy).unwrap();
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o700)).unwrap();
        for entry in std::fs::read_dir(&directories.state).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
        directories.commit_to(4);
        let refused = |error: StateError| {
            let log = directories.log().display().to_string();
            assert!(error.to_string().contains(&log), "{error}");
            error
        };
        let old = refused(directories.open_in(&copy).err().unwrap());
        assert!(matches!(old, StateError::RolledBack { witnessed: 4, .. }), "{old}");
        let new = refused(directories.open_in(&directories.state.with_file_name("new")).err().unwrap());
        assert!(matches!(new, StateError::PrivateLogLost { .. }), "{new}");
        let own = std::fs::read(directories.log()).unwrap();
        std::fs::rename(&directories.public, directories.public.with_file_name("kept")).unwrap();
        std::fs::rename(&directories.state, directories.state.with_file_name("moved")).unwrap();
        // Another stream of the same length with the same parameters.
        let mut store = directories.open().unwrap();
        let frame = |epoch| EpochFrame {
            epoch,
            positions: vec![],
            sums: vec![1].into(),
            values: vec![-7 * i128::from(epoch)],
            admitted: None,
        };
        store.commit(&[frame(1), frame(2), frame(3), frame(4)]).unwrap();
        drop(store);
        std::fs::write(directories.log(), own).unwrap();
        let other = refused(directories.open().err().unwrap());
        assert!(matches!(other, StateError::Conflict { epoch: 1, .. }), "{other}");
    }

    /// Deleting the lock file admits another run, which would draw the same epochs again.
    #[test]
    fn a_run_whose_lock_was_deleted_publishes_nothing_more() {
        let directories = TestDirectories::new();
        let header = PublicHeader { parameters: b"p".to_vec(), private: true };
        let settings = StateSettings { public: Some(directories.public.clone()), ..StateSettings::default() };
        let (mut store, _) = Store::open_with(&directories.state, &header, &settings).unwrap();
        let before = std::fs::read(directories.log()).unwrap();
        std::fs::remove_file(directories.public.join(LOCK)).unwrap();
        let (positions, sums) = (vec![], vec![1].into());
        let frame = EpochFrame { epoch: 1, positions, sums, values: vec![7], admitted: None };
        let error = store.commit(&[frame]).unwrap_err();
        assert!(matches!(&error, StateError::Replaced { path } if path.ends_with(LOCK)), "{error}");
        assert!(std::fs::read(directories.log()).unwrap() == before);
    }

    #[test]
    fn only_one_run_may_write() {
        let directories = TestDirectories::new();
        let first = directories.open().unwrap();
        let second = directories.open_in(&directories.state.with_file_name("other")).err().unwrap();
        assert!(matches!(&second, StateError::Locked { path } if *path == directories.public), "{second}");
        drop(first);
        let lock = directories.public.join(LOCK);
        std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o666)).unwrap();
        let exposed = directories.open().err().unwrap();
        assert!(matches!(exposed, StateError::Exposed { .. }), "others could hold the lock: {exposed}");
        std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o600)).unwrap();
        for mode in [0o757, 0o775, 0o777] {
            std::fs::set_permissions(&directories.public, std::fs::Permissions::from_mode(mode)).unwrap();
            let error = directories.open().err().unwrap();
            assert!(matches!(error, StateError::Writable { .. }), "{error}");
            assert!(error.to_string().contains("chmod go-w"), "{error}");
        }
        for mode in [0o750, 0o700, 0o755] {
            std::fs::set_permissions(&directories.public, std::fs::Permissions::from_mode(mode)).unwrap();
            drop(directories.open().unwrap());
            assert_eq!(mode_of(&directories.public), mode, "what its owner has chosen stays");
        }
        let inside = TestDirectories { public: directories.state.join("public"), ..directories };
        assert!(matches!(inside.open().err().unwrap(), StateError::Inside { .. }));
    }
}
