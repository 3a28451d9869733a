//! The bytes of a source: files, the standard input or its journal, with the offset of the next byte.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::SourceError;
use crate::pipeline::Input;
use crate::state::{Ingest, IngestPlace, IngestReader, StateError};

/// The standard input in messages.
pub(super) const STANDARD_INPUT: &str = "<standard input>";

/// Where bytes come from: one file after the other.
pub(super) enum Origin {
    /// The standard input, which is piped in anew after a restart.
    Stdin,
    Files(Vec<PathBuf>),
    /// The sessions of a journal, each like a file.
    Journal(Arc<Ingest>),
}

/// A file from an offset on.
pub(super) struct Opened {
    pub(super) stream: Stream,
    /// The bytes with the file's header, unless they come first in the stream.
    pub(super) header: Option<Stream>,
}

impl Origin {
    pub(super) fn of(input: &Input) -> Self {
        match input {
            Input::Stdin => Origin::Stdin,
            Input::Files(paths) => Origin::Files(paths.clone()),
        }
    }

    /// Opens the file with this number from `offset` on; none beyond the last one. Waits for a session that may begin.
    pub(super) fn open(&self, file: u32, offset: u64) -> Result<Option<Opened>, SourceError> {
        match self {
            Origin::Stdin if file == 0 => {
                Ok(Some(Opened { stream: Stream::new(io::stdin(), 0), header: None }))
            }
            Origin::Stdin => Ok(None),
            Origin::Files(paths) => {
                let Some(path) = paths.get(file as usize) else { return Ok(None) };
                let header = (offset > 0).then(|| Stream::open_file(path, 0)).transpose()?;
                Ok(Some(Opened { stream: Stream::open_file(path, offset)?, header }))
            }
            Origin::Journal(ingest) => {
                let reader = IngestReader::open(ingest, IngestPlace { session: file, offset });
                let reader = reader.map_err(|source| io_error(&self.name(file), source))?;
                Ok(reader.map(|reader| {
                    let header = Stream::new(io::Cursor::new(reader.header().to_vec()), 0);
                    Opened { stream: Stream::new(reader, offset), header: Some(header) }
                }))
            }
        }
    }

    /// The name of a file for messages.
    pub(super) fn name(&self, file: u32) -> PathBuf {
        match self {
            Origin::Files(paths) => paths.get(file as usize).cloned().unwrap_or_default(),
            Origin::Journal(ingest) if file < ingest.session() => {
                format!("<session {file} of the standard input>").into()
            }
            Origin::Stdin | Origin::Journal(_) => STANDARD_INPUT.into(),
        }
    }
}

/// Bytes that know their offset in the file.
pub(super) struct Stream {
    reader: BufReader<Box<dyn Read + Send>>,
    offset: u64,
}

impl Stream {
    pub(super) fn new(input: impl Read + Send + 'static, offset: u64) -> Self {
        Stream { reader: BufReader::with_capacity(1 << 16, Box::new(input)), offset }
    }

    fn open_file(path: &Path, offset: u64) -> Result<Stream, SourceError> {
        let mut file = File::open(path).map_err(|source| io_error(path, source))?;
        if offset > 0 {
            let found = file.seek(SeekFrom::End(0)).map_err(|source| io_error(path, source))?;
            if found < offset {
                return Err(SourceError::Shrunk { path: path.into(), found, offset });
            }
            file.seek(SeekFrom::Start(offset)).map_err(|source| io_error(path, source))?;
        }
        Ok(Stream::new(file, offset))
    }

    /// The offset of the next byte.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl BufRead for Stream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.reader.consume(amount);
        self.offset += amount as u64;
    }
}

/// The error of reading `path`: one of ours where the journal's thread or files have told it.
pub(super) fn io_error(path: &Path, source: io::Error) -> SourceError {
    let io = |source| SourceError::Io { path: path.into(), source };
    let state = |source: io::Error| source.downcast::<StateError>().map_or_else(io, SourceError::Journal);
    source.downcast::<SourceError>().unwrap_or_else(state)
}
