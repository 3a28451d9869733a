//! The bytes of a source: files or the standard input, with the offset of the next byte.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::error::SourceError;
use crate::pipeline::Input;

/// Bytes that know their offset in the file.
pub(super) struct Stream {
    reader: BufReader<Box<dyn Read + Send>>,
    offset: u64,
}

impl Stream {
    fn new(input: impl Read + Send + 'static, offset: u64) -> Self {
        Stream { reader: BufReader::with_capacity(1 << 16, Box::new(input)), offset }
    }

    /// Opens the file with this number from `offset` on; none beyond the last one.
    pub(super) fn open(input: &Input, file: usize, offset: u64) -> Result<Option<Stream>, SourceError> {
        match input {
            Input::Stdin if file == 0 => Ok(Some(Stream::new(io::stdin(), 0))),
            Input::Stdin => Ok(None),
            Input::Files(paths) => paths.get(file).map(|path| Self::open_file(path, offset)).transpose(),
        }
    }

    pub(super) fn open_file(path: &Path, offset: u64) -> Result<Stream, SourceError> {
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

/// The name of a file of the input for messages.
pub(super) fn name(input: &Input, file: usize) -> PathBuf {
    match input {
        Input::Stdin => "<standard input>".into(),
        Input::Files(paths) => paths.get(file).cloned().unwrap_or_default(),
    }
}

pub(super) fn io_error(path: &Path, source: io::Error) -> SourceError {
    SourceError::Io { path: path.into(), source }
}
