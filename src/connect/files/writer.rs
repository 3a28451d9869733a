//! Writes files of JSON lines, with rotation.
//!
//! Each epoch is in the files once. After a crash the last epoch of the newest file is written
//! again with the same bytes, because every line is a function of the public log. The file must
//! belong to the same history as the log.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{ReleaseFile, Rotation};
use crate::connect::{EpochStamp, Outlet, OutletContent, RequestError};
use crate::whole;

/// The files of a sink, and the position up to which they are written.
pub(super) struct ReleaseFileWriter {
    sink: ReleaseFile,
    file: Option<File>,
    /// Whether the bytes after `length` will be written again. They are kept until the file is
    /// known to hold the log's history: output of another log is never truncated.
    is_to_cut: bool,
    /// Bytes in the newest file, and the first epoch in it, if it has one.
    length: u64,
    first: Option<u64>,
}

/// Contents of the newest file.
#[derive(Default)]
struct ReleaseFileContent {
    first: Option<u64>,
    /// The last epoch, and the offset of its first line.
    last: Option<EpochStamp>,
    begins: u64,
}

impl ReleaseFileWriter {
    pub(super) fn new(sink: ReleaseFile) -> Self {
        ReleaseFileWriter { sink, file: None, is_to_cut: false, length: 0, first: None }
    }

    /// Opens the newest file, whose last epoch will be written again.
    fn begin(&mut self) -> io::Result<OutletContent> {
        let path = &self.sink.path;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        // Release our own lock before the file is opened again.
        self.file = None;
        let file = opened(path)?;
        let contents = ReleaseFileContent::of(&file)?;
        let (first, held) = match contents.last {
            Some(last) => {
                let first = contents.first.filter(|first| *first < last.epoch);
                (first, OutletContent { whole: last.epoch.saturating_sub(1), last: Some(last) })
            }
            None => (None, held_by_full(path)?),
        };
        (self.file, self.is_to_cut, self.length, self.first) = (Some(file), true, contents.begins, first);
        Ok(held)
    }

    fn write(&mut self, epoch: u64, lines: &[u8]) -> io::Result<()> {
        let path = &self.sink.path;
        if let (Some(file), true) = (&self.file, self.is_to_cut) {
            file.set_len(self.length)?;
            self.is_to_cut = false;
        }
        if let (Some(file), Some(first)) = (&self.file, self.first)
            && self.sink.is_full(self.length + lines.len() as u64, epoch - first)
        {
            file.sync_all()?;
            fs::rename(path, rotated(path, first, epoch - 1))?;
            (self.file, self.first, self.length) = (None, None, 0);
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(opened(path)?),
        };
        file.write_all(lines)?;
        self.length += lines.len() as u64;
        self.first.get_or_insert(epoch);
        Ok(())
    }
}

impl Outlet<[u8]> for ReleaseFileWriter {
    fn open(&mut self) -> Result<OutletContent, RequestError> {
        Ok(self.begin()?)
    }

    fn append(&mut self, stamp: &EpochStamp, lines: &[u8]) -> Result<(), RequestError> {
        Ok(self.write(stamp.epoch, lines)?)
    }
}

/// Opens the newest file and locks it, so that only one process writes to a sink. After rotation
/// the lock is held on the next file.
fn opened(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).append(true).create(true).open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(io::Error::other(
                "another process writes to this destination: give this sink to only one process",
            ));
        }
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let (named, ours) = (fs::metadata(path)?, file.metadata()?);
    match (named.dev(), named.ino()) == (ours.dev(), ours.ino()) {
        true => Ok(file),
        false => Err(io::Error::other("another process has renamed it")),
    }
}

impl ReleaseFile {
    /// Whether a file with this number of bytes and epochs is full.
    fn is_full(&self, bytes: u64, epochs: u64) -> bool {
        match self.rotate {
            None => false,
            Some(Rotation::Bytes(most)) => bytes > most,
            Some(Rotation::Epochs(most)) => epochs >= most,
        }
    }
}

impl ReleaseFileContent {
    /// Reads a file up to its last whole line.
    fn of(file: &File) -> io::Result<Self> {
        let (mut contents, mut offset) = (ReleaseFileContent::default(), 0);
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
            let mark = EpochStamp::of(&line)
                .ok_or_else(|| io::Error::other("a line of it was not written by this sink"))?;
            contents.first.get_or_insert(mark.epoch);
            if contents.last.as_ref().is_none_or(|last| last.epoch != mark.epoch) {
                contents.last = Some(mark);
                contents.begins = offset;
            }
            offset += line.len() as u64;
            line.clear();
        }
        Ok(contents)
    }
}

/// Returns the name of a full file: `releases-0000000001-0000000100.ndjson`.
fn rotated(path: &Path, first: u64, last: u64) -> PathBuf {
    let (stem, extension) = (part(path.file_stem()), part(path.extension()));
    path.with_file_name(format!("{stem}-{first:010}-{last:010}.{extension}"))
}

fn part(part: Option<&std::ffi::OsStr>) -> String {
    part.map_or_else(String::new, |part| part.to_string_lossy().into_owned())
}

/// Returns the content of the full files.
fn held_by_full(path: &Path) -> io::Result<OutletContent> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (prefix, suffix) = (format!("{}-", part(path.file_stem())), format!(".{}", part(path.extension())));
    let mut newest: Option<(u64, PathBuf)> = None;
    for entry in whole::entries(folder)? {
        let name = entry.file_name().to_string_lossy().into_owned();
        let epochs = name.strip_prefix(&prefix).and_then(|name| name.strip_suffix(&suffix));
        let end = epochs.and_then(|epochs| epochs.split_once('-')?.1.parse().ok());
        newest = newest.max(end.map(|end| (end, entry.path())));
    }
    let Some((whole, file)) = newest else { return Ok(OutletContent::default()) };
    Ok(OutletContent { whole, last: ReleaseFileContent::of(&File::open(file)?)?.last })
}
