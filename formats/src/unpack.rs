//! Unpacks text in gzip (RFC 1952) or zstd (RFC 8878), in any number of members or frames.
//!
//! The first bytes decide whether a file is packed. A suffix that contradicts them is an error.
//! Other packings are recognised by their first bytes, and refused. Offsets count unpacked bytes.
//! Memory holds one buffer each for packed and unpacked bytes, and the window of the format (32 KiB
//! in gzip, at most 128 MiB in zstd), for any unpacked size.

use std::error::Error;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, ErrorKind, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::GzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::{BYTE_ORDER_MARK, ByteStream, FormatError, RetryingReader, io_error};

/// Largest window of a zstd frame: the limit of `zstd` itself without `--long`.
const ZSTD_WINDOW: u64 = 128 << 20;

/// Advice for a damaged file.
const REMEDY: &str = "get the file again";

/// Compression of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
}

impl Packing {
    const ALL: [Packing; 2] = [Packing::Gzip, Packing::Zstd];

    fn name(self) -> &'static str {
        match self {
            Packing::Gzip => "gzip",
            Packing::Zstd => "zstd",
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            Packing::Gzip => "gz",
            Packing::Zstd => "zst",
        }
    }

    /// Returns the magic numbers with which a member or frame may begin. A skippable zstd frame
    /// begins with one of 16.
    fn starts(self) -> impl Iterator<Item = Vec<u8>> {
        let (own, skipped): (&[u8], &[u8]) = match self {
            Packing::Gzip => (b"\x1f\x8b", &[]),
            Packing::Zstd => (b"\x28\xb5\x2f\xfd", b"\x2a\x4d\x18"),
        };
        let lows = if skipped.is_empty() { 0..0 } else { 0x50..0x60 };
        std::iter::once(own.to_vec()).chain(lows.map(move |low| [&[low], skipped].concat()))
    }

    /// Returns the packing of bytes with this start; `None` if they are not packed.
    ///
    /// # Errors
    /// If their packing is not supported.
    fn of_start(path: &Path, bytes: &[u8]) -> Result<Option<Self>, FormatError> {
        let begins = |start: Vec<u8>| bytes.starts_with(&start);
        match FOREIGN.iter().find(|foreign| foreign.starts().any(begins)) {
            Some(ForeignPacking { name, unpack, .. }) => {
                Err(FormatError::Compressed { path: path.into(), packing: name, unpack })
            }
            None => Ok(Self::ALL.into_iter().find(|packing| packing.starts().any(begins))),
        }
    }

    /// Returns the packing that the suffix of a file indicates.
    fn of_name(path: &Path) -> Option<Self> {
        Self::ALL.into_iter().find(|packing| path.extension() == Some(OsStr::new(packing.suffix())))
    }

    /// Returns the packing of a file; `None` if it is not packed.
    ///
    /// # Errors
    /// If the file can't be read, or its suffix does not match its first bytes.
    pub fn of(path: &Path) -> Result<Option<Self>, FormatError> {
        let read = |source| io_error(path, source);
        // The bytes of a named pipe can be read only once.
        if !path.metadata().map_err(read)?.is_file() {
            return Ok(None);
        }
        let mut start = Vec::new();
        RetryingReader(File::open(path).map_err(read)?)
            .take(LONGEST_START)
            .read_to_end(&mut start)
            .map_err(read)?;
        let found = Self::of_start(path, &start)?;
        match Self::of_name(path) {
            Some(named) if found != Some(named) => Err(FormatError::Misnamed {
                path: path.into(),
                suffix: named.suffix(),
                found: found.map_or(if start.is_empty() { "empty" } else { "not packed" }, Self::name),
            }),
            _ => Ok(found),
        }
    }

    /// Opens a file that is packed in this way.
    pub fn open(self, path: &Path) -> Result<UnpackedStream, FormatError> {
        let file = File::open(path).map_err(|source| io_error(path, source))?;
        Ok(self.unpack(path, ByteStream::new(file, 0)))
    }

    /// Unpacks bytes; `name` is that of their source.
    fn unpack(self, name: &Path, input: ByteStream) -> UnpackedStream {
        let decoder = match self {
            Packing::Gzip => {
                Unpacker::Gzip(Box::new(GzipMembers { decoder: Some(GzDecoder::new(input)), ended: None }))
            }
            Packing::Zstd => Unpacker::Zstd(Box::new(ZstdFrames::new(input))),
        };
        UnpackedStream { path: name.into(), packing: self, decoder, unpacked: 0 }
    }
}

/// A packing that is recognised and refused.
struct ForeignPacking {
    name: &'static str,
    suffix: &'static str,
    /// First bytes of packed text.
    start: &'static [u8],
    /// The command that unpacks it.
    unpack: &'static str,
}

const FOREIGN: [ForeignPacking; 4] = [
    ForeignPacking { name: "xz", suffix: "xz", start: b"\xfd7zXZ\0", unpack: "xz -dc" },
    // The digit may be any from 1 to 9.
    ForeignPacking { name: "bzip2", suffix: "bz2", start: b"BZh11AY&SY", unpack: "bzip2 -dc" },
    ForeignPacking { name: "lz4", suffix: "lz4", start: b"\x04\x22\x4d\x18", unpack: "lz4 -dc" },
    ForeignPacking { name: "zip", suffix: "zip", start: b"PK\x03\x04", unpack: "unzip -p" },
];

/// Bytes that distinguish all packings.
const LONGEST_START: u64 = 10;

impl ForeignPacking {
    fn starts(&self) -> impl Iterator<Item = Vec<u8>> {
        let levels = if self.name == "bzip2" { b"123456789" } else { &self.start[3..4] };
        levels.iter().map(|&level| [&self.start[..3], &[level], &self.start[4..]].concat())
    }
}

/// Returns the name of a file without the suffix of its packing.
pub fn unpacked_name(path: &Path) -> &Path {
    let is_foreign = FOREIGN.iter().any(|foreign| path.extension() == Some(OsStr::new(foreign.suffix)));
    let is_packed = is_foreign || Packing::of_name(path).is_some();
    path.file_stem().map(Path::new).filter(|_| is_packed).unwrap_or(path)
}

/// The unpacked bytes of a file. An error of reading them contains a [`FormatError`].
pub struct UnpackedStream {
    path: PathBuf,
    packing: Packing,
    decoder: Unpacker,
    /// Bytes unpacked so far.
    unpacked: u64,
}

enum Unpacker {
    Gzip(Box<GzipMembers>),
    Zstd(Box<ZstdFrames>),
}

impl UnpackedStream {
    /// Unpacks the file to its end, which checks its checksums.
    pub fn verify(mut self) -> Result<(), FormatError> {
        let copied = io::copy(&mut self, &mut io::sink());
        copied.map(drop).map_err(|source| io_error(&self.path, source))
    }

    /// Returns the number of packed bytes that were used.
    fn used(&self) -> u64 {
        match &self.decoder {
            Unpacker::Gzip(members) => members.used(),
            Unpacker::Zstd(frames) => frames.input.offset(),
        }
    }

    fn damage(&self, error: &io::Error) -> FormatError {
        FormatError::Packed {
            path: self.path.clone(),
            packing: self.packing.name(),
            offset: self.used(),
            unpacked: self.unpacked,
            problem: match error.kind() {
                _ if is_cut(error) => {
                    format!("it ends too early, so it is cut or still being written; {REMEDY}")
                }
                ErrorKind::Unsupported => error.to_string(),
                _ => format!("{error}; {REMEDY}"),
            },
        }
    }
}

impl Read for UnpackedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match &mut self.decoder {
            Unpacker::Gzip(members) => members.read(buffer),
            Unpacker::Zstd(frames) => frames.read(buffer),
        };
        match read {
            Ok(read) => {
                self.unpacked += read as u64;
                Ok(read)
            }
            // The file itself can't be read.
            Err(error) if error.raw_os_error().is_some() => Err(error),
            Err(error) => Err(io::Error::other(self.damage(&error))),
        }
    }
}

/// Explains an error of the decoder, whose own messages are names in its code.
fn in_our_words(error: FrameDecoderError) -> io::Error {
    let unsupported = |words: String| io::Error::new(ErrorKind::Unsupported, words);
    match error {
        FrameDecoderError::WindowSizeTooBig { requested, max } => unsupported(format!(
            "a frame needs a window of {requested} bytes, more than {max}: pack it again without --long or --ultra"
        )),
        FrameDecoderError::DictNotProvided { .. } => {
            unsupported("it was packed with a dictionary: pack it again without one".into())
        }
        error if is_cut(&error) => io::Error::other(error),
        _ => io::Error::other("a frame is damaged, or was packed with a dictionary"),
    }
}

/// Whether the input has ended within packed data.
fn is_cut(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        match error.downcast_ref::<io::Error>() {
            Some(error) if error.kind() == ErrorKind::UnexpectedEof => return true,
            Some(error) => cause = error.get_ref().map(|inner| inner as &(dyn Error + 'static)),
            None => cause = error.source(),
        }
    }
    false
}

/// Returns whether packed data continue: true if another member or frame begins, false at the end
/// of the file.
///
/// # Errors
/// If the following bytes begin with neither a member nor a frame.
fn another_member_follows(input: &mut ByteStream, packing: Packing) -> io::Result<bool> {
    let rest = input.fill_buf()?;
    if rest.is_empty() {
        return Ok(false);
    }
    // The buffer may hold only a part of the start. The decoder then checks the rest.
    let begins = |start: Vec<u8>| rest.iter().zip(&start).all(|(byte, expected)| byte == expected);
    if packing.starts().any(begins) {
        return Ok(true);
    }
    if packing == Packing::Gzip && skip_zeros(input)? {
        return Ok(false);
    }
    let name = packing.name();
    Err(io::Error::other(format!("bytes follow after the end of the {name} stream")))
}

/// Skips the zeros with which tapes and some copies fill up a gzip file. Returns whether no other
/// byte follows.
fn skip_zeros(input: &mut ByteStream) -> io::Result<bool> {
    loop {
        let rest = input.fill_buf()?;
        let (zeros, length) = (rest.iter().take_while(|byte| **byte == 0).count(), rest.len());
        input.consume(zeros);
        match zeros == length {
            true if length == 0 => return Ok(true),
            true => {}
            false => return Ok(false),
        }
    }
}

/// Bytes of a pipe, which are unpacked if they begin like packed ones.
pub struct PipedBytes {
    name: PathBuf,
    /// The pipe, before its first byte is read.
    pipe: Option<Box<dyn Read + Send>>,
    bytes: Box<dyn Read + Send>,
}

impl PipedBytes {
    /// Takes a pipe, and reads nothing yet. `name` is for messages.
    pub fn new(pipe: impl Read + Send + 'static, name: &Path) -> Self {
        let pipe: Box<dyn Read + Send> = Box::new(RetryingReader(pipe));
        PipedBytes { name: name.into(), pipe: Some(pipe), bytes: Box::new(io::empty()) }
    }

    /// Reads only as many bytes as determine the packing, because a pipe may be slow. A byte order
    /// mark is passed on together with the byte after it, because parsers recognise it only then.
    fn begin(&self, mut pipe: Box<dyn Read + Send>) -> io::Result<Box<dyn Read + Send>> {
        let (mut start, mut next) = (Vec::new(), [0]);
        let starts = Packing::ALL.into_iter().flat_map(Packing::starts).chain([BYTE_ORDER_MARK.into()]);
        let starts: Vec<_> = starts.chain(FOREIGN.iter().flat_map(ForeignPacking::starts)).collect();
        while starts.iter().any(|whole| whole.len() > start.len() && whole.starts_with(&start))
            && pipe.read(&mut next)? > 0
        {
            start.push(next[0]);
        }
        if start == BYTE_ORDER_MARK && pipe.read(&mut next)? > 0 {
            start.push(next[0]);
        }
        let packing = Packing::of_start(&self.name, &start).map_err(io::Error::other)?;
        let whole = io::Cursor::new(start).chain(pipe);
        Ok(match packing {
            None => Box::new(whole),
            Some(packing) => Box::new(packing.unpack(&self.name, ByteStream::new(whole, 0))),
        })
    }
}

impl Read for PipedBytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(pipe) = self.pipe.take() {
            self.bytes = self.begin(pipe)?;
        }
        self.bytes.read(buffer)
    }
}

/// Members of gzip, one after the other.
struct GzipMembers {
    /// The open member; `None` after the last one.
    decoder: Option<GzDecoder<ByteStream>>,
    /// Number of packed bytes used up to the end of the last member.
    ended: Option<u64>,
}

impl GzipMembers {
    fn used(&self) -> u64 {
        let open = self.decoder.as_ref().map(|decoder| decoder.get_ref().offset());
        open.or(self.ended).unwrap_or(0)
    }
}

impl Read for GzipMembers {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !buffer.is_empty()
            && let Some(decoder) = &mut self.decoder
        {
            let read = decoder.read(buffer)?;
            if read > 0 {
                return Ok(read);
            }
            self.ended = Some(decoder.get_ref().offset());
            let ended = self.decoder.take();
            let Some(mut input) = ended.map(GzDecoder::into_inner) else { break };
            if another_member_follows(&mut input, Packing::Gzip)? {
                self.decoder = Some(GzDecoder::new(input));
            }
        }
        Ok(0)
    }
}

/// Frames of zstd, one after the other.
struct ZstdFrames {
    input: ByteStream,
    decoder: FrameDecoder,
    /// Whether the checksum of the current frame is still to be compared.
    is_open: bool,
}

impl ZstdFrames {
    fn new(input: ByteStream) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(ZSTD_WINDOW);
        ZstdFrames { input, decoder, is_open: false }
    }

    /// Begins the next frame. Returns whether there is one.
    fn begin(&mut self) -> io::Result<bool> {
        loop {
            if !another_member_follows(&mut self.input, Packing::Zstd)? {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.input) {
                Ok(()) => {
                    self.is_open = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let skipped = io::copy(&mut (&mut self.input).take(length.into()), &mut io::sink())?;
                    if skipped < length.into() {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(in_our_words(error)),
            }
        }
    }
}

impl Read for ZstdFrames {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            while self.is_open && self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let decoded =
                    self.decoder.decode_blocks(&mut self.input, BlockDecodingStrategy::UptoBlocks(1));
                decoded.map_err(in_our_words)?;
            }
            if self.is_open && self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            if self.is_open
                && let Some(stored) = self.decoder.get_checksum_from_data()
                && self.decoder.get_calculated_checksum() != Some(stored)
            {
                return Err(io::Error::other("the checksum of a frame is wrong"));
            }
            self.is_open = false;
            if !self.begin()? {
                return Ok(0);
            }
        }
    }
}

impl Packing {
    /// Packs each part as a separate member or frame: input for tests.
    pub fn pack(self, parts: &[&[u8]]) -> Vec<u8> {
        let pack = |part: &&[u8]| match self {
            Packing::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                io::Write::write_all(&mut encoder, part).expect("memory takes every byte");
                encoder.finish().expect("memory takes every byte")
            }
            Packing::Zstd => {
                use ruzstd::encoding::{CompressionLevel, compress_to_vec};
                compress_to_vec(*part, CompressionLevel::Fastest)
            }
        };
        parts.iter().flat_map(pack).collect()
    }
}

#[cfg(test)]
mod tests;
