//! System calls of a state directory, repeated after an interrupting signal.
//!
//! A signal, a debugger or a user-space file system may interrupt any of these calls, including
//! those that the standard library repeats itself on files. `EINTR` is not a failure: no data were
//! lost, and an interrupted sync has reported no disk error.

use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{self, AtFlags, FlockOperation, Mode, OFlags, Stat, StatVfs},
    io::{Errno, Result, retry_on_intr},
    path::Arg,
};
use std::path::Path;

pub(super) fn open(path: impl Arg + Copy, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    retry_on_intr(|| fs::open(path, flags, mode))
}

pub(super) fn openat(directory: impl AsFd, name: &str, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    retry_on_intr(|| fs::openat(&directory, name, flags, mode))
}

/// Creates a directory. Missing parents are created too, and are durable when this returns. They
/// get the mode `parents` under any umask. Without `parents` they get 0755 without the bits of
/// the umask, so that no other user can replace this directory.
pub(super) fn make_directory(path: &Path, mode: Mode, parents: Option<Mode>) -> Result<()> {
    match (retry_on_intr(|| fs::mkdir(path, mode)), path.parent()) {
        (Err(Errno::NOENT), Some(parent)) if parent != Path::new("") => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let default = Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH;
            match (make_directory(parent, parents.unwrap_or(default), parents), parents) {
                (Ok(()), Some(mode)) => fchmod(open(parent, flags, Mode::empty())?, mode)?,
                (Err(error), _) if error != Errno::EXIST => return Err(error),
                _ => {}
            }
            let above = parent.parent().filter(|above| *above != Path::new("")).unwrap_or(Path::new("."));
            fsync(open(above, flags, Mode::empty())?)?;
            retry_on_intr(|| fs::mkdir(path, mode))
        }
        (made, _) => made,
    }
}

pub(super) fn fchmod(file: impl AsFd, mode: Mode) -> Result<()> {
    retry_on_intr(|| fs::fchmod(&file, mode))
}

pub(super) fn flock(file: impl AsFd, operation: FlockOperation) -> Result<()> {
    retry_on_intr(|| fs::flock(&file, operation))
}

pub(super) fn fsync(file: impl AsFd) -> Result<()> {
    retry_on_intr(|| fs::fsync(&file))
}

pub(super) fn fstat(file: impl AsFd) -> Result<Stat> {
    retry_on_intr(|| fs::fstat(&file))
}

pub(super) fn fstatvfs(file: impl AsFd) -> Result<StatVfs> {
    retry_on_intr(|| fs::fstatvfs(&file))
}

pub(super) fn stat(path: impl Arg + Copy) -> Result<Stat> {
    retry_on_intr(|| fs::stat(path))
}

/// Renames `from` to `to` in a directory, replacing `to`.
pub(super) fn rename(directory: impl AsFd, from: &str, to: &str) -> Result<()> {
    retry_on_intr(|| fs::renameat(&directory, from, &directory, to))
}

pub(super) fn unlink(directory: impl AsFd, name: &str) -> Result<()> {
    retry_on_intr(|| fs::unlinkat(&directory, name, AtFlags::empty()))
}

/// The names in a directory, in any order.
pub(super) fn names(directory: impl AsFd) -> Result<Vec<String>> {
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    retry_on_intr(|| fs::Dir::read_from(&directory)?.map(|entry| entry.map(name)).collect())
}
