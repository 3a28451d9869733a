//! A directory in memory for the files of a target.

use std::cell::LazyCell;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

thread_local! {
    static DIRECTORY: LazyCell<TempDir> = const { LazyCell::new(|| {
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.into() } else { std::env::temp_dir() };
        tempfile::tempdir_in(place).expect("a temporary directory")
    }) };
}

/// Works in a directory that this thread keeps, in memory where the system has such a place.
pub fn in_memory<T>(work: impl FnOnce(&Path) -> T) -> T {
    DIRECTORY.with(|directory| work(directory.path()))
}

/// A state directory of this name with these files and no others.
pub fn state_directory<'a>(
    outer: &Path,
    name: &str,
    files: impl IntoIterator<Item = (&'a str, &'a [u8])>,
) -> PathBuf {
    let path = outer.join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir(&path).expect("a directory");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).expect("mode 0700");
    for (name, bytes) in files {
        std::fs::write(path.join(name), bytes).expect("a file");
        std::fs::set_permissions(path.join(name), PermissionsExt::from_mode(0o600)).expect("mode 0600");
    }
    path
}
