//! Reads whole files with a size limit, so that a device, a pipe or a wrong file can't fill the
//! memory, and lists whole directories.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Maximum number of bytes of a settings file: a pipeline, a list of keys, an expected density.
pub const SETTINGS: u64 = 1 << 26;

/// Maximum number of bytes of a file of numbers: a saved strategy, a matrix. The largest dense
/// strategy takes half of this as text.
pub(crate) const NUMBERS: u64 = 1 << 29;

/// Reads the text of a file of at most `limit` bytes.
///
/// # Errors
/// The errors of [`std::fs::read_to_string`], and [`ErrorKind::FileTooLarge`].
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    let mut text = String::new();
    LimitedFile::open(path, limit)?.read_to_string(&mut text)?;
    Ok(text)
}

/// A file that returns an error after a number of bytes.
pub(crate) struct LimitedFile {
    file: File,
    limit: u64,
    left: u64,
}

impl LimitedFile {
    pub(crate) fn open(path: &Path, limit: u64) -> io::Result<Self> {
        Ok(Self { file: File::open(path)?, limit, left: limit })
    }
}

impl Read for LimitedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // One byte more than is left distinguishes a file that ends from one that continues.
        let most = usize::try_from(self.left.saturating_add(1)).unwrap_or(usize::MAX).min(buffer.len());
        let found = self.file.read(&mut buffer[..most])?;
        self.left = self.left.checked_sub(found as u64).ok_or_else(|| {
            let message =
                format!("it is larger than {} MiB, the most that is read of such a file", self.limit >> 20);
            io::Error::new(ErrorKind::FileTooLarge, message)
        })?;
        Ok(found)
    }
}

/// Lists a directory, again from the start if a signal interrupts.
pub(crate) fn entries(folder: &Path) -> io::Result<Vec<fs::DirEntry>> {
    loop {
        match fs::read_dir(folder).and_then(Iterator::collect) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            entries => return entries,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_the_limit_and_no_further() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("text");
        std::fs::write(&path, "twelve bytes").unwrap();
        for limit in [12, 13, u64::MAX] {
            assert_eq!(read_text(&path, limit).unwrap(), "twelve bytes");
        }
        for (path, limit) in [(path.as_path(), 11), (&path, 0), ("/dev/zero".as_ref(), 1 << 20)] {
            assert_eq!(read_text(path, limit).unwrap_err().kind(), ErrorKind::FileTooLarge);
        }
        assert_eq!(read_text("/dev/null".as_ref(), 0).unwrap(), "");
    }
}
