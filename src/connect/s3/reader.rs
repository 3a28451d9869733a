//! Reads the objects of a folder, one after the other, as they come if they are followed.
//!
//! Objects are numbered in the order in which they are found, and by key if they are found
//! together. The state directory's list keeps the key, the ETag and the size of each. So a number
//! means the same object after a restart, even if earlier ones have been deleted. Every request
//! names the ETag, and the store refuses it if the object was replaced. So a resumed run never
//! reads rows that have moved.

use std::collections::HashSet;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::bucket::ObjectSource;
use super::client::{BucketClient, CHUNK, FoundObject, ObjectError};
use crate::connect::error::RequestError;
use crate::connect::{FileList, OpenFile, Origin, OriginRequest, SourceConfig, SourceError, io_error};
use crate::control::{Backoff, Control, POLL_INTERVAL};
use crate::format::parquet::{ParquetRows, RandomAccess};
use crate::format::row::{FileRows, Row, RowOutcome};
use crate::format::unpack::unpacked_name;
use crate::format::{ByteStream, Format};
use crate::state::Position;

/// Time between two listings of a folder.
const EVERY: Duration = Duration::from_secs(5);

/// Open objects.
struct Objects {
    source: ObjectSource,
    format: Format,
    wanted: Vec<String>,
    control: Control,
    client: Mutex<BucketClient>,
    list: Mutex<ObjectList>,
}

/// The objects found so far, in the order of their numbers.
struct ObjectList {
    objects: Vec<FoundObject>,
    /// Their keys, for look-up.
    known: HashSet<String>,
    /// The list in the state directory.
    kept: Option<Arc<dyn FileList>>,
    /// Time at which the folder was last listed.
    listed: Option<Instant>,
}

/// Opens the objects. No request is made before the first object is read.
pub(super) fn open(
    source: &ObjectSource,
    opening: &OriginRequest<'_>,
) -> Result<Box<dyn Origin>, SourceError> {
    let kept = opening.list.clone();
    let entries = kept.as_ref().map(|kept| kept.names()).unwrap_or_default();
    let objects: Option<Vec<_>> = entries.iter().map(|entry| FoundObject::of_entry(entry)).collect();
    let objects = objects.ok_or_else(|| SourceError::Server {
        path: source.name().into(),
        problem: "the list in the state directory is that of other files: begin a new state directory".into(),
    })?;
    let known = objects.iter().map(|object| object.key.clone()).collect();
    let control = opening.control.clone();
    let client = BucketClient::new(&source.bucket, source.name(), &control);
    control.await_connection(&client.name);
    Ok(Box::new(Arc::new(Objects {
        source: source.clone(),
        format: opening.shape.format,
        wanted: opening.shape.wanted.clone(),
        control,
        client: Mutex::new(client),
        list: Mutex::new(ObjectList { objects, known, kept, listed: None }),
    })))
}

impl FoundObject {
    /// The entry in the list of the state directory.
    fn entry(&self) -> Vec<u8> {
        format!("{}\0{}\0{}", self.key, self.tag, self.size).into_bytes()
    }

    fn of_entry(entry: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(entry).ok()?.split('\0');
        let (key, tag, size) = (parts.next()?.into(), parts.next()?.into(), parts.next()?.parse().ok()?);
        parts.next().is_none().then_some(FoundObject { key, tag, size })
    }
}

impl Origin for Arc<Objects> {
    fn name(&self, file: u32) -> PathBuf {
        match self.list().objects.get(file as usize) {
            Some(object) => format!("s3://{}/{}", self.source.bucket.name, object.key).into(),
            None => self.source.name().into(),
        }
    }

    fn may_wait(&self, _position: Position) -> bool {
        true
    }

    fn open(&mut self, position: Position) -> Result<Option<OpenFile>, SourceError> {
        let Some(object) = self.await_object(position.part)? else { return Ok(None) };
        let path = self.name(position.part);
        let is_packed = unpacked_name(&path) != path;
        if self.format != Format::Parquet && !is_packed && position.offset >= object.size {
            // The object was read completely, and it may have been deleted.
            return Ok(Some(OpenFile::Rows(Box::new(FinishedObject(position)))));
        }
        let bytes =
            |at| ObjectBytes { objects: Arc::clone(self), object: object.clone(), at, chunk: Bytes::new() };
        if self.format == Format::Parquet {
            let object = ObjectAccess(Mutex::new(bytes(0)));
            let rows =
                ParquetRows::of(Arc::new(object), &path, (position.offset, position.row), &self.wanted)?;
            return Ok(Some(OpenFile::Rows(Box::new(rows))));
        }
        let offset = position.offset;
        let begun = |at| match is_packed {
            true => ByteStream::of_pipe(bytes(at), &path),
            false => ByteStream::new(bytes(at), at),
        };
        let header = (offset > 0).then(|| begun(0));
        let stream = match offset {
            0 => begun(0),
            _ if !is_packed => begun(offset),
            _ => {
                let mut stream = begun(0);
                let skipped = io::copy(&mut (&mut stream).take(offset), &mut io::sink());
                let found = skipped.map_err(|source| io_error(&path, source))?;
                if found < offset && !self.control.is_stopped() {
                    return Err(SourceError::Shrunk { path, found });
                }
                stream
            }
        };
        Ok(Some(OpenFile::Bytes { stream, header, is_rest: false }))
    }
}

impl Objects {
    fn list(&self) -> MutexGuard<'_, ObjectList> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the object with this number; `None` after the last one, or if the run ends first.
    fn await_object(&self, number: u32) -> Result<Option<FoundObject>, SourceError> {
        let begun = Instant::now();
        loop {
            if let Some(object) = self.list().objects.get(number as usize) {
                return Ok(Some(object.clone()));
            }
            let listed = self.list().listed;
            if !self.source.follows && listed.is_some() {
                if number == 0 {
                    let problem = "no object fits: check the folder and the pattern, or add follow = true to wait for one";
                    return Err(SourceError::Server {
                        path: self.source.name().into(),
                        problem: problem.into(),
                    });
                }
                return Ok(None);
            }
            if listed.is_none_or(|listed| listed.elapsed() >= EVERY) {
                if !self.list_new_objects()? {
                    return Ok(None);
                }
                continue;
            }
            if self.control.is_over(begun) {
                return Ok(None);
            }
            self.control.sleep(POLL_INTERVAL);
        }
    }

    /// Lists the folder and adds new objects. Returns false if the run stopped meanwhile.
    fn list_new_objects(&self) -> Result<bool, SourceError> {
        let Some(found) = self.persist(|client| client.list(&self.source.folder))? else { return Ok(false) };
        let mut list = self.list();
        let fits = |object: &FoundObject| {
            let name = object.key.rsplit('/').next().unwrap_or_default();
            self.source.names(name) && !list.known.contains(&object.key)
        };
        let new: Vec<_> = found.into_iter().filter(fits).collect();
        if let Some(kept) = list.kept.as_ref().filter(|_| !new.is_empty()) {
            kept.add(&new.iter().map(FoundObject::entry).collect::<Vec<_>>())?;
        }
        list.known.extend(new.iter().map(|object| object.key.clone()));
        list.objects.extend(new);
        list.listed = Some(Instant::now());
        Ok(true)
    }

    /// Repeats a request until the store answers. `None` if the run ends first.
    fn persist<T>(
        &self,
        mut ask: impl FnMut(&mut BucketClient) -> Result<T, RequestError>,
    ) -> Result<Option<T>, SourceError> {
        let (mut backoff, begun) = (Backoff::default(), Instant::now());
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        let name = client.name.clone();
        while !self.control.is_stopped() {
            let problem = match ask(&mut client) {
                Ok(answer) => {
                    self.control.note_attempt(&name, None);
                    return Ok(Some(answer));
                }
                Err(RequestError::Transient(error) | RequestError::Gone(error)) => {
                    format!("can't be reached: {error}")
                }
                Err(RequestError::NoStream) => "there is no such bucket".into(),
                Err(RequestError::Insecure(error)) => {
                    return Err(SourceError::Server { path: name.into(), problem: error.to_string() });
                }
                Err(RequestError::Refused { path, problem }) => {
                    return Err(SourceError::Server { path, problem });
                }
                Err(RequestError::Lost { path, loss }) => return Err(SourceError::Lost { path, loss }),
            };
            // The secret may have been renewed.
            client.close();
            if self.list().listed.is_none() {
                self.control.note_attempt(&name, Some(&problem));
            }
            backoff.failed();
            if !self.control.is_stopped() && backoff.is_first_report(&problem) {
                self.control.notice(&format!("{name}: {problem}; trying again"));
            }
            if self.control.is_past_server_timeout(begun) {
                return Err(SourceError::Unreached(format!("{name}: {problem}")));
            }
            self.control.sleep(backoff.pause());
        }
        Ok(None)
    }

    /// Returns a part of an object; empty if the run ends first.
    fn part(&self, object: &FoundObject, at: u64, length: u64) -> io::Result<Bytes> {
        let refused = |problem: &str| SourceError::Server {
            path: format!("s3://{}/{}", self.source.bucket.name, object.key).into(),
            problem: problem.into(),
        };
        let part = self.persist(|client| match client.range(&object.key, &object.tag, at, length) {
            Ok(part) => Ok(Ok(part)),
            Err(ObjectError::Changed) => Ok(Err(refused(
                "the object was replaced after it had been found, so rows would count twice or never: restore it, and write new \
                 rows into new objects",
            ))),
            Err(ObjectError::Missing) => {
                Ok(Err(refused("the object is gone, and not all of it is known to be read: restore it to go on")))
            }
            Err(ObjectError::Other(error)) => Err(error),
        });
        let part = part.and_then(|part| part.unwrap_or(Ok(Bytes::new())));
        part.map_err(io::Error::other)
    }
}

/// An object without more rows.
struct FinishedObject(Position);

impl FileRows for FinishedObject {
    fn read(&mut self, _row: &mut Row) -> io::Result<RowOutcome> {
        Ok(RowOutcome::End)
    }

    fn position(&self) -> (u64, u64) {
        (self.0.offset, self.0.row)
    }

    fn line(&self) -> u64 {
        self.0.row
    }

    fn has_buffered_row(&self) -> bool {
        false
    }
}

struct ObjectBytes {
    objects: Arc<Objects>,
    object: FoundObject,
    /// Offset of the byte after `chunk`.
    at: u64,
    /// Received bytes that were not returned yet.
    chunk: Bytes,
}

impl Read for ObjectBytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.chunk.is_empty() {
            let left = self.object.size.saturating_sub(self.at).min(CHUNK);
            if left == 0 {
                return Ok(0);
            }
            self.chunk = self.objects.part(&self.object, self.at, left)?;
            if self.chunk.is_empty() && !self.objects.control.is_stopped() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.at += self.chunk.len() as u64;
        }
        let count = self.chunk.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.chunk.split_to(count));
        Ok(count)
    }
}

/// Random access to an object for a decoder. The last received bytes are kept.
struct ObjectAccess(Mutex<ObjectBytes>);

impl RandomAccess for ObjectAccess {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).object.size)
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = bytes.at - bytes.chunk.len() as u64;
        if !(begin..bytes.at).contains(&at) {
            (bytes.at, bytes.chunk) = (at, Bytes::new());
        }
        let mut rest = bytes.chunk.clone();
        if rest.is_empty() {
            let left = bytes.object.size.saturating_sub(at).min(CHUNK);
            if left == 0 {
                return Ok(0);
            }
            let chunk = bytes.objects.part(&bytes.object, at, left)?;
            if chunk.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            bytes.at = at + chunk.len() as u64;
            bytes.chunk = chunk.clone();
            rest = chunk;
        } else {
            rest = rest.slice((at - begin) as usize..);
        }
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_the_list_hold_key_tag_and_size() {
        let object = FoundObject { key: "a/b.csv".into(), tag: "\"x\"".into(), size: 7 };
        assert_eq!(FoundObject::of_entry(&object.entry()), Some(object));
        assert!(
            [&b"a.csv"[..], b"a\0b\0c", b"a\0b\x001\0", b"\xff\0b\x001"]
                .iter()
                .all(|entry| FoundObject::of_entry(entry).is_none())
        );
    }
}
