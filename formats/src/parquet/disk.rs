//! Reads a file for its decoder: never beyond the file, and no page above a limit.
//!
//! The decoder allocates the size that a page's header states, and reports an I/O error as damage.
//! So this file reads headers first ([`header`](super::header)) and keeps the first failure.

use std::fs::File;
use std::io::{self, BufReader, Cursor, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use parquet::basic::Compression;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

use super::header::PageHeader;

/// Maximum number of bytes of a page, packed or unpacked.
pub(super) const PAGE_LIMIT: usize = 1 << 28;

/// Maximum number of bytes of a page's header, which may contain the minimum and the maximum of the
/// page.
const HEADER_LIMIT: usize = 1 << 24;

/// Number of bytes that contain nearly every header.
const HEADER: usize = 1 << 12;

/// Upper bound on gzip's compression ratio (it is 1,032).
const GZIP_RATIO: usize = 1100;

/// Bytes with random access.
pub trait RandomAccess: Send + Sync {
    /// Number of bytes.
    fn length(&self) -> io::Result<u64>;

    /// Reads bytes from an offset on. Reads no bytes beyond the end.
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize>;
}

impl RandomAccess for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, at)
    }
}

/// A file, and the first failure to read it.
#[derive(Clone)]
pub(super) struct ParquetFile {
    file: Arc<dyn RandomAccess>,
    length: u64,
    failure: Arc<Mutex<Option<ReadFailure>>>,
}

/// Reasons why the decoder received no bytes.
pub(super) enum ReadFailure {
    /// The operating system returned an error.
    Io(io::Error),
    /// A page has more bytes than [`PAGE_LIMIT`].
    TooLarge,
}

/// Consecutive bytes of a file.
pub(super) struct FileBytes {
    disk: ParquetFile,
    at: u64,
}

/// The pages of a column chunk.
pub(super) struct ColumnPages {
    disk: ParquetFile,
    /// Whether gzip packs them: they may unpack to more than the header states.
    is_gzip: bool,
    /// Bytes of the last page's levels that are never packed.
    levels: Arc<AtomicUsize>,
}

/// The bytes of a page's header, located on the first read: the decoder also requests a reader for
/// a page whose header it already has.
pub(super) struct HeaderBytes {
    disk: ParquetFile,
    start: u64,
    levels: Arc<AtomicUsize>,
    bytes: Option<Cursor<Vec<u8>>>,
}

impl ParquetFile {
    pub(super) fn new(file: Arc<dyn RandomAccess>) -> io::Result<Self> {
        let length = file.length()?;
        Ok(ParquetFile { file, length, failure: Arc::default() })
    }

    /// Returns the failure of the last read, if it failed.
    pub(super) fn failure(&self) -> Option<ReadFailure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn fail(&self, failure: ReadFailure) -> ParquetError {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
        ParquetError::General("the file can't be read on".into())
    }

    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.file.read_at(buffer, at) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    let kind = error.kind();
                    self.fail(ReadFailure::Io(error));
                    return Err(kind.into());
                }
                read => return read,
            }
        }
    }

    /// Reads at most `most` bytes; fewer at the end of the file.
    fn front(&self, start: u64, most: usize) -> Result<Vec<u8>> {
        let left = self.length.saturating_sub(start);
        let mut bytes = vec![0; usize::try_from(left).unwrap_or(most).min(most)];
        let mut filled = 0;
        while filled < bytes.len() {
            match self.read_at(start + filled as u64, &mut bytes[filled..])? {
                0 => break,
                read => filled += read,
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }
}

impl Length for ParquetFile {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for ParquetFile {
    type T = BufReader<FileBytes>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(BufReader::new(FileBytes { disk: self.clone(), at: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let bytes = self.front(start, length)?;
        let is_whole = bytes.len() == length;
        is_whole.then(|| bytes.into()).ok_or_else(|| ParquetError::EOF("the file ends before".into()))
    }
}

impl Read for FileBytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.disk.read_at(self.at, buffer)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl ColumnPages {
    pub(super) fn new(disk: &ParquetFile, codec: Compression) -> Self {
        let is_gzip = matches!(codec, Compression::GZIP(_));
        ColumnPages { disk: disk.clone(), is_gzip, levels: Arc::default() }
    }
}

impl Length for ColumnPages {
    fn len(&self) -> u64 {
        self.disk.length
    }
}

impl ChunkReader for ColumnPages {
    type T = HeaderBytes;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let (disk, levels) = (self.disk.clone(), Arc::clone(&self.levels));
        Ok(HeaderBytes { disk, start, levels, bytes: None })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let bytes = self.disk.get_bytes(start, length)?;
        let packed = bytes.get(self.levels.load(Ordering::Relaxed)..).unwrap_or_default();
        if self.is_gzip && packed.len() > PAGE_LIMIT / GZIP_RATIO {
            // The decoder unpacks gzip without a limit, so check the size first.
            let mut unpacked = MultiGzDecoder::new(packed).take(PAGE_LIMIT as u64 + 1);
            let count = io::copy(&mut unpacked, &mut io::sink());
            if count.is_ok_and(|count| count > PAGE_LIMIT as u64) {
                return Err(self.disk.fail(ReadFailure::TooLarge));
            }
        }
        Ok(bytes)
    }
}

impl HeaderBytes {
    /// Reads exactly the header that begins here.
    fn find(&self) -> Result<Vec<u8>> {
        let mut most = HEADER;
        loop {
            let mut bytes = self.disk.front(self.start, most)?;
            if let Some(header) = PageHeader::read(&bytes) {
                if header.packed.max(header.unpacked) > PAGE_LIMIT {
                    return Err(self.disk.fail(ReadFailure::TooLarge));
                }
                self.levels.store(header.levels, Ordering::Relaxed);
                bytes.truncate(header.length);
                return Ok(bytes);
            }
            if bytes.len() < most || most >= HEADER_LIMIT {
                return Err(ParquetError::General("there is no page header".into()));
            }
            most *= 16;
        }
    }
}

impl Read for HeaderBytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.bytes.is_none() {
            self.bytes = Some(Cursor::new(self.find().map_err(io::Error::other)?));
        }
        self.bytes.as_mut().map_or(Ok(0), |bytes| bytes.read(buffer))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn pages(bytes: &[u8], codec: Compression) -> ColumnPages {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        ColumnPages::new(&ParquetFile::new(Arc::new(file)).unwrap(), codec)
    }

    /// Many small members, which the decoder unpacks one after the other.
    #[test]
    fn gzip_that_unpacks_to_more_than_the_limit_is_refused() {
        let mut member = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        member.write_all(&vec![0; 1 << 20]).unwrap();
        let members = member.finish().unwrap().repeat((PAGE_LIMIT >> 20) + 1);
        let bomb = pages(&members, Compression::GZIP(Default::default()));
        assert!(bomb.get_bytes(0, members.len()).is_err());
        assert!(matches!(bomb.disk.failure(), Some(ReadFailure::TooLarge)));
        assert!(pages(&members, Compression::SNAPPY).get_bytes(0, members.len()).is_ok());
    }

    #[test]
    fn reads_beyond_the_file_are_refused() {
        let all = pages(&[0; 10], Compression::UNCOMPRESSED);
        assert_eq!(all.get_bytes(4, 6).unwrap().len(), 6);
        for (start, length) in [(5, 6), (11, 1), (u64::MAX, 2), (0, usize::MAX)] {
            assert!(all.get_bytes(start, length).is_err());
        }
        assert!(all.disk.failure().is_none(), "a file that is too short is damaged");
    }
}
