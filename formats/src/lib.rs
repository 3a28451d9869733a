//! Formats of rows: CSV, NDJSON and Parquet, from any transport.
//!
//! A format turns bytes into rows of wanted fields, for any transport: a `ByteStream` may be a
//! file, a session of a journal or data from a socket. An `EntryParser` reads one message at a
//! time.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

pub mod avro;
pub mod csv;
mod error;
pub mod form;
pub mod framing;
pub mod ndjson;
#[cfg_attr(not(feature = "parquet"), path = "no_parquet.rs")]
pub mod parquet;
pub mod profile;
pub mod row;
pub mod spelling;
pub mod table;
pub mod time;
pub mod unpack;
mod whole;

use unpack::{Packing, PipedBytes, unpacked_name};

pub use csv::Delimiter;
pub use error::{Defect, FormatError};
pub use parquet::file_being_decoded;

/// Number of first bytes of a stream by which its format is found.
const START: u64 = 1 << 16;

/// Format of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Separated values with a header row (RFC 4180).
    Csv(Delimiter),
    /// One JSON object per line or message.
    Ndjson,
    /// Entries with named fields.
    Fields,
    /// Parquet files.
    Parquet,
    /// Records in Avro, one per message.
    Avro,
}

impl Format {
    /// Values separated by commas.
    pub const COMMAS: Format = Format::Csv(Delimiter::Comma);

    /// Returns the format by the extension of a file, before the extension of its compression.
    pub fn of_name(path: &Path) -> Option<Self> {
        match unpacked_name(path).extension()?.to_str()? {
            "csv" => Some(Format::COMMAS),
            "tsv" => Some(Format::Csv(Delimiter::Tab)),
            "ndjson" | "jsonl" => Some(Format::Ndjson),
            "parquet" => Some(Format::Parquet),
            _ => None,
        }
    }

    /// Returns the format of a file by its extension, or by its first bytes if that is unknown. The
    /// first rows decide the delimiter.
    ///
    /// # Errors
    /// [`FormatError`] if the file can't be read, or is one JSON list.
    pub fn of_file(path: &Path) -> Result<Self, FormatError> {
        Self::of_start(path, &mut ByteStream::of_file(path)?).map(|(format, _)| format)
    }

    /// Returns the same of a stream, and the bytes that it has read to find out.
    fn of_start(path: &Path, stream: &mut ByteStream) -> Result<(Self, Vec<u8>), FormatError> {
        let mut start = Vec::new();
        stream.take(START).read_to_end(&mut start).map_err(|source| io_error(path, source))?;
        let format = match Self::of_name(path).map_or_else(|| Self::of_content(path, &start), Ok)? {
            Format::Csv(_) | Format::Ndjson if is_binary(&start) => {
                return Err(FormatError::Binary { path: path.into() });
            }
            Format::Csv(_) => Format::Csv(Delimiter::of(path, &start)?),
            format => format,
        };
        Ok((format, start))
    }

    fn of_content(path: &Path, start: &[u8]) -> Result<Self, FormatError> {
        let text = start.strip_prefix(BYTE_ORDER_MARK).unwrap_or(start).trim_ascii_start();
        match text {
            [b'P', b'A', b'R', b'1', ..] => Ok(Format::Parquet),
            [b'{', ..] => Ok(Format::Ndjson),
            [b'[', ..] => Err(FormatError::JsonList { path: path.into() }),
            _ => Ok(Format::COMMAS),
        }
    }
}

/// Whether these bytes are not text in an encoding with ASCII: they have a byte 0, or more than one
/// control character in fifty.
fn is_binary(start: &[u8]) -> bool {
    let is_control = |byte: &&u8| byte.is_ascii_control() && !byte.is_ascii_whitespace();
    start.contains(&0) || 50 * start.iter().filter(is_control).count() > start.len()
}

/// Name of the standard input in messages.
pub const STANDARD_INPUT: &str = "<standard input>";

/// Input whose reads are retried after an interrupting signal.
pub struct RetryingReader<R>(pub R);

impl<R: Read> Read for RetryingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }
}

/// UTF-8 byte order mark, which some programs write at the start.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Bytes with their offset in the file.
pub struct ByteStream {
    reader: BufReader<Box<dyn Read + Send>>,
    offset: u64,
}

impl ByteStream {
    /// Reads `input`, whose next byte is at `offset` of the file.
    pub fn new(input: impl Read + Send + 'static, offset: u64) -> Self {
        ByteStream { reader: BufReader::with_capacity(1 << 16, Box::new(RetryingReader(input))), offset }
    }

    /// Opens a whole file, which may be packed.
    pub fn of_file(path: &Path) -> Result<ByteStream, FormatError> {
        if let Some(packing) = Packing::of(path)? {
            return Ok(ByteStream::new(packing.open(path)?, 0));
        }
        let file = File::open(path).map_err(|source| io_error(path, source))?;
        Ok(ByteStream::of_pipe(file, path))
    }

    /// Reads a pipe, whose bytes may be packed.
    pub fn of_pipe(pipe: impl Read + Send + 'static, name: &Path) -> Self {
        ByteStream::new(PipedBytes::new(pipe, name), 0)
    }

    /// Returns whether the buffer holds a complete line that is not blank.
    pub fn holds_line(&self) -> bool {
        self.reader.buffer().trim_ascii_start().contains(&b'\n')
    }

    /// Returns the offset of the next byte.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl Read for ByteStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl BufRead for ByteStream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.reader.consume(amount);
        self.offset += amount as u64;
    }
}

/// Converts an error of reading `path`; a [`FormatError`] inside is returned as it is.
pub fn io_error(path: &Path, source: io::Error) -> FormatError {
    source.downcast().unwrap_or_else(|source| FormatError::Io { path: path.into(), source })
}
