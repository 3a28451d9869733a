//! A directory in memory for the files of one target.

use std::path::Path;
use tempfile::TempDir;

/// A new directory, in memory where the system has such a place.
pub fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory.into() } else { std::env::temp_dir() };
    tempfile::tempdir_in(place).expect("a temporary directory")
}
