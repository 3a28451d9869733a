//! Files of a directory, read as they grow and as new ones appear.
//!
//! Files are numbered in the order in which they are found, and by name if they are found together.
//! The state directory keeps the list, so a number means the same file after a restart, even if
//! earlier files have been deleted. A file is finished if it has been read to its end *after* a
//! later file had appeared, because then its writer has moved on.
//!
//! A packed file must be complete when it appears: one that grows can't be unpacked safely.
//!
//! Only whole records of the last file are returned: a partial line waits for its rest.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use zeroize::Zeroizing;

use super::FollowedDirectory;
use super::listed::{open_at, stream_at};
use crate::connect::journal::CHUNK;
use crate::connect::{
    FileList, HeaderlessFile, OpenFile, Origin, OriginRequest, ReadExtent, ReadPart, SourceError, io_error,
};
use crate::control::{Control, POLL_INTERVAL};
use crate::format::Format;
use crate::format::framing::Framing;
use crate::format::row::RECORD_LIMIT;
use crate::format::unpack::Packing;
use crate::format::{ByteStream, RetryingReader};
use crate::state::Position;
use crate::whole;

/// Open followed files.
struct FollowedFiles {
    files: FollowedDirectory,
    format: Format,
    control: Control,
    list: Mutex<FollowedNames>,
}

/// The names found so far, in the order of their numbers.
struct FollowedNames {
    names: Vec<OsString>,
    /// The names as a set, for lookup: a directory may hold many files and is listed often.
    known: HashSet<OsString>,
    /// The list in the state directory.
    kept: Option<Arc<dyn FileList>>,
    /// Numbers of the packed ones among those that were opened.
    packed: HashSet<u32>,
}

/// Follows files. The state directory keeps their numbers; without one they are valid for this run
/// only.
pub(super) fn open(
    files: &FollowedDirectory,
    opening: &OriginRequest<'_>,
) -> Result<Box<dyn Origin>, SourceError> {
    let kept = opening.list.clone();
    let names = kept.iter().flat_map(|kept| kept.names()).map(OsString::from_vec).collect();
    let list = FollowedNames::new(names, kept);
    let (format, control) = (opening.shape.format, opening.control.clone());
    Ok(Box::new(Arc::new(FollowedFiles { files: files.clone(), format, control, list: Mutex::new(list) })))
}

impl Origin for Arc<FollowedFiles> {
    fn name(&self, file: u32) -> PathBuf {
        self.path(file)
    }

    /// A file that was read before is there.
    fn may_wait(&self, position: Position) -> bool {
        position.offset == 0
    }

    fn open(
        &mut self,
        Position { part: file, offset, .. }: Position,
    ) -> Result<Option<OpenFile>, SourceError> {
        self.open_file(file, offset)
    }

    /// The list keeps the order of files, so an unread file needs no comparison.
    fn read_before(&self, Position { part, offset, .. }: Position) -> Option<ReadPart> {
        let is_packed = self.list().packed.contains(&part);
        let extent = if is_packed { ReadExtent::Whole } else { ReadExtent::UpTo(offset) };
        (offset > 0).then(|| ReadPart { part, path: self.path(part), extent })
    }

    fn without_header(&self, file: u32) -> HeaderlessFile {
        if self.is_last(file) { HeaderlessFile::Early } else { HeaderlessFile::Passed }
    }
}

impl FollowedFiles {
    fn list(&self) -> MutexGuard<'_, FollowedNames> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the path of a file, or the pattern if it has not been found.
    fn path(&self, file: u32) -> PathBuf {
        self.list().names.get(file as usize).map_or_else(
            || self.files.directory.join(&self.files.pattern),
            |name| self.files.directory.join(name),
        )
    }

    /// Whether no later file has been found.
    fn is_last(&self, file: u32) -> bool {
        self.list().names.len() <= file as usize + 1
    }

    /// Waits for the file with this number and opens it at `offset`; `None` if the run ends first.
    fn open_file(self: &Arc<Self>, file: u32, offset: u64) -> Result<Option<OpenFile>, SourceError> {
        let begun = Instant::now();
        while self.list().names.len() <= file as usize {
            if !self.find_new_files()? {
                if self.control.is_over(begun) {
                    return Ok(None);
                }
                self.control.sleep(POLL_INTERVAL);
            }
        }
        let path = self.path(file);
        let header = (offset > 0).then(|| stream_at(&path, 0)).transpose()?;
        if let Some(packing) = Packing::of(&path)? {
            packing.open(&path)?.verify()?;
            self.list().packed.insert(file);
            return Ok(Some(OpenFile::Bytes { stream: stream_at(&path, offset)?, header, is_rest: false }));
        }
        let opened = open_at(&path, offset)?;
        let inode = opened.metadata().map_err(|source| io_error(&path, source))?.ino();
        let growing = GrowingFile {
            followed: Arc::clone(self),
            number: file,
            path,
            file: opened,
            inode,
            read: offset,
            framing: Framing::new(self.format),
            bytes: Zeroizing::new(Vec::with_capacity(RECORD_LIMIT + 2 * CHUNK)),
            given: 0,
            ready: 0,
            passed: false,
            last: Instant::now(),
        };
        Ok(Some(OpenFile::Bytes { stream: ByteStream::new(growing, offset), header, is_rest: false }))
    }

    /// Adds new files to the list. Returns whether there are any.
    fn find_new_files(&self) -> Result<bool, SourceError> {
        let mut list = self.list();
        let refused = |source| io_error(&self.files.directory, source);
        let mut found = Vec::new();
        for entry in whole::entries(&self.files.directory).map_err(refused)? {
            let name = entry.file_name();
            let passed = list.known.contains(&name) || !self.files.names(&name.to_string_lossy());
            if !passed && fs::metadata(entry.path()).is_ok_and(|file| file.is_file()) {
                found.push(name);
            }
        }
        found.sort();
        list.add(&found)?;
        Ok(!found.is_empty())
    }
}

impl FollowedNames {
    fn new(names: Vec<OsString>, kept: Option<Arc<dyn FileList>>) -> Self {
        let known = names.iter().cloned().collect();
        FollowedNames { names, known, kept, packed: HashSet::new() }
    }

    /// Numbers more files; durable when this returns.
    fn add(&mut self, names: &[OsString]) -> Result<(), SourceError> {
        if names.is_empty() {
            return Ok(());
        }
        if let Some(kept) = &self.kept {
            let names: Vec<_> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
            kept.add(&names)?;
        }
        self.names.extend_from_slice(names);
        self.known.extend(names.iter().cloned());
        Ok(())
    }
}

/// A file that may grow.
struct GrowingFile {
    followed: Arc<FollowedFiles>,
    number: u32,
    path: PathBuf,
    file: File,
    inode: u64,
    /// Bytes of the file that have been read.
    read: u64,
    framing: Framing,
    /// Bytes that have been read. Those up to `ready` are whole records, and those up to `given`
    /// were returned.
    bytes: Zeroizing<Vec<u8>>,
    given: usize,
    ready: usize,
    /// Whether a later file had appeared before the end of this one was read.
    passed: bool,
    /// Time at which bytes last arrived.
    last: Instant,
}

impl GrowingFile {
    /// Waits for more whole records. Returns whether there are any.
    fn fetch(&mut self) -> Result<bool, SourceError> {
        self.bytes.drain(..self.ready);
        (self.given, self.ready) = (0, 0);
        loop {
            let seen = self.bytes.len();
            self.bytes.resize(seen + CHUNK, 0);
            let read = RetryingReader(&self.file).read(&mut self.bytes[seen..]);
            let read = read.map_err(|source| io_error(&self.path, source));
            self.bytes.truncate(seen + *read.as_ref().unwrap_or(&0));
            let read = read?;
            self.read += read as u64;
            if read > 0 {
                self.last = Instant::now();
                let end = self.framing.last_end(&self.bytes[seen..]);
                // The parser reports a record that is too long.
                self.ready = match end {
                    _ if self.framing.is_too_long() => self.bytes.len(),
                    0 => 0,
                    end => seen + end,
                };
                if self.ready > 0 {
                    return Ok(true);
                }
            } else if self.passed {
                self.ready = self.bytes.len();
                return Ok(self.ready > 0);
            } else if !self.followed.is_last(self.number) || self.followed.find_new_files()? {
                self.passed = true;
            } else if self.followed.control.is_over(self.last) {
                return Ok(false);
            } else {
                self.check()?;
                self.followed.control.sleep(POLL_INTERVAL);
            }
        }
    }

    /// Refuses a file that was cut or replaced by another one.
    fn check(&self) -> Result<(), SourceError> {
        let metadata = self.file.metadata().map_err(|source| io_error(&self.path, source))?;
        if metadata.len() < self.read {
            let (path, found) = (self.path.clone(), metadata.len());
            return Err(SourceError::Shrunk { path, found });
        }
        let replaced = fs::metadata(&self.path).is_ok_and(|there| there.ino() != self.inode);
        if replaced { Err(SourceError::Replaced { path: self.path.clone() }) } else { Ok(()) }
    }
}

impl Read for GrowingFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.given == self.ready && !self.fetch().map_err(io::Error::other)? {
            return Ok(0);
        }
        let count = buffer.len().min(self.ready - self.given);
        buffer[..count].copy_from_slice(&self.bytes[self.given..self.given + count]);
        self.given += count;
        Ok(count)
    }
}
