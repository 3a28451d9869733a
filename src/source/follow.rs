//! Files of a directory, read as they grow and as new ones come.
//!
//! A file has a number by the order in which it was found, names that come together in the order of names. The state directory
//! keeps the list, so numbers mean the same after a restart, also when files that are behind have been deleted. The next
//! file is begun when the last one has been read to its end *after* a later one was there: its writer had gone on.
//!
//! Of the last file only whole records are given out: a half line waits for its rest.

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

use super::error::SourceError;
use super::files::{Opened, io_error, open_at, stream_at};
use super::intake::CHUNK;
use crate::control::{Control, GLANCE};
use crate::format::bytes::{Stream, Uninterrupted};
use crate::format::framing::Framing;
use crate::format::row::RECORD_LIMIT;
use crate::pipeline::{self, Format};
use crate::state::FollowedList;
use crate::whole;

/// The files that are followed.
pub(crate) struct Followed {
    files: pipeline::Followed,
    format: Format,
    control: Control,
    list: Mutex<List>,
}

/// The names that have been found, in the order of their numbers.
struct List {
    names: Vec<OsString>,
    /// The same, to be looked up: a directory may hold many, and is looked at often.
    known: HashSet<OsString>,
    /// Where they are kept.
    kept: Option<FollowedList>,
}

impl Followed {
    /// Follows files whose numbers the state directory keeps, in this list, which holds these names.
    pub(crate) fn kept(
        files: &pipeline::Followed,
        format: Format,
        control: &Control,
        (kept, names): (FollowedList, Vec<Vec<u8>>),
    ) -> Self {
        let names = names.into_iter().map(OsString::from_vec).collect();
        let list = Mutex::new(List::new(names, Some(kept)));
        Followed { files: files.clone(), format, control: control.clone(), list }
    }

    /// Follows files whose numbers are good for this run alone.
    pub(super) fn forgetful(files: &pipeline::Followed, format: Format, control: &Control) -> Self {
        let list = Mutex::new(List::new(Vec::new(), None));
        Followed { files: files.clone(), format, control: control.clone(), list }
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path of a file that has been found.
    pub(super) fn path(&self, file: u32) -> PathBuf {
        self.list().names.get(file as usize).map_or_else(
            || self.files.directory.join(&self.files.pattern),
            |name| self.files.directory.join(name),
        )
    }

    /// Whether no later file has been found.
    pub(super) fn is_last(&self, file: u32) -> bool {
        self.list().names.len() <= file as usize + 1
    }

    /// Waits for the file with this number, and opens it from `offset` on; none if the run ends before there is one.
    pub(super) fn open(self: &Arc<Self>, file: u32, offset: u64) -> Result<Option<Opened>, SourceError> {
        let begun = Instant::now();
        while self.list().names.len() <= file as usize {
            if !self.look()? {
                if self.control.is_over(begun) {
                    return Ok(None);
                }
                self.control.sleep(GLANCE);
            }
        }
        let path = self.path(file);
        let header = (offset > 0).then(|| stream_at(&path, 0)).transpose()?;
        let opened = open_at(&path, offset)?;
        let inode = opened.metadata().map_err(|source| io_error(&path, source))?.ino();
        let growing = Growing {
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
        Ok(Some(Opened::Bytes { stream: Stream::new(growing, offset), header }))
    }

    /// Looks for new files: whether there are any.
    fn look(&self) -> Result<bool, SourceError> {
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

impl List {
    fn new(names: Vec<OsString>, kept: Option<FollowedList>) -> Self {
        let known = names.iter().cloned().collect();
        List { names, known, kept }
    }

    /// Numbers more files, for good when this returns.
    fn add(&mut self, names: &[OsString]) -> Result<(), SourceError> {
        if names.is_empty() {
            return Ok(());
        }
        if let Some(kept) = &mut self.kept {
            let names: Vec<_> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
            kept.add(&names)?;
        }
        self.names.extend_from_slice(names);
        self.known.extend(names.iter().cloned());
        Ok(())
    }
}

/// A file that may grow.
struct Growing {
    followed: Arc<Followed>,
    number: u32,
    path: PathBuf,
    file: File,
    inode: u64,
    /// Bytes of the file that have been read.
    read: u64,
    framing: Framing,
    /// What has been read and not been given out: whole records up to `ready`, given out up to `given`.
    bytes: Zeroizing<Vec<u8>>,
    given: usize,
    ready: usize,
    /// A later file was there before the end of this one was looked for.
    passed: bool,
    /// When something came last.
    last: Instant,
}

impl Growing {
    /// Waits for more whole records; whether there are any.
    fn fetch(&mut self) -> Result<bool, SourceError> {
        self.bytes.drain(..self.ready);
        (self.given, self.ready) = (0, 0);
        loop {
            let seen = self.bytes.len();
            self.bytes.resize(seen + CHUNK, 0);
            let read = Uninterrupted(&self.file).read(&mut self.bytes[seen..]);
            let read = read.map_err(|source| io_error(&self.path, source));
            self.bytes.truncate(seen + *read.as_ref().unwrap_or(&0));
            let read = read?;
            self.read += read as u64;
            if read > 0 {
                self.last = Instant::now();
                let end = self.framing.last_end(&self.bytes[seen..]);
                // A record that is too long is left to the parser, who says so.
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
            } else if !self.followed.is_last(self.number) || self.followed.look()? {
                self.passed = true;
            } else if self.followed.control.is_over(self.last) {
                return Ok(false);
            } else {
                self.check()?;
                self.followed.control.sleep(GLANCE);
            }
        }
    }

    /// A file that was cut, or that another has taken the place of, can't be followed.
    fn check(&self) -> Result<(), SourceError> {
        let metadata = self.file.metadata().map_err(|source| io_error(&self.path, source))?;
        if metadata.len() < self.read {
            let (path, found) = (self.path.clone(), metadata.len());
            return Err(SourceError::Shrunk { path, found, offset: self.read });
        }
        let replaced = fs::metadata(&self.path).is_ok_and(|there| there.ino() != self.inode);
        if replaced { Err(SourceError::Replaced { path: self.path.clone() }) } else { Ok(()) }
    }
}

impl Read for Growing {
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
