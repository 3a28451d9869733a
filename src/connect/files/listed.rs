//! Reads the files that the pipeline lists, one after the other.

use std::fs::{File, Metadata};
use std::io::{self, BufRead, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::connect::standard::StoppableInput;
use crate::connect::{FileCut, OpenFile, Origin, OriginRequest, ReadExtent, ReadPart, SourceError, io_error};
use crate::control::Control;
use crate::format::ByteStream;
use crate::format::Format;
use crate::format::form::RowLayout;
use crate::format::parquet::ParquetRows;
use crate::format::unpack::Packing;
use crate::state::Position;

/// Maximum size in bytes of a packed file that is read as one range.
const PACKED: u64 = 4 << 20;

/// Maximum number of rows of a Parquet file that is cut: a damaged file may state any number.
const PARQUET_ROWS: u64 = 1 << 35;

/// Text files.
struct TextFiles {
    paths: Vec<PathBuf>,
    /// Whether each of them is packed.
    packed: Vec<bool>,
    control: Control,
}

/// Parquet files.
struct ParquetFiles {
    paths: Vec<PathBuf>,
    wanted: Vec<String>,
}

/// Opens the files at a position. Checks each file before anything is published: it must be
/// readable, and if text is expected, not packed in an unknown way or under another suffix. Packed
/// files are unpacked to their ends, so that a damaged one is refused before any budget is spent.
pub(super) fn open(paths: &[PathBuf], opening: &OriginRequest<'_>) -> Result<Box<dyn Origin>, SourceError> {
    let is_text = opening.shape.format != Format::Parquet;
    // Earlier files have been read, and may be gone.
    let passed = (opening.position.part as usize).min(paths.len());
    let mut packed = vec![false; passed];
    for path in &paths[passed..] {
        packed.push(check(path, is_text)?);
    }
    Ok(files(paths, opening.shape, packed, opening.control))
}

/// Returns the origin of these files; `packed` tells which of them are packed.
pub(super) fn files(
    paths: &[PathBuf],
    shape: &RowLayout,
    packed: Vec<bool>,
    control: &Control,
) -> Box<dyn Origin> {
    let paths = paths.to_vec();
    match shape.format {
        Format::Parquet => Box::new(ParquetFiles { paths, wanted: shape.wanted.clone() }),
        _ => Box::new(TextFiles { paths, packed, control: control.clone() }),
    }
}

/// Returns how a file is cut into ranges. Pipes and large packed files are not cut: reading them
/// ahead of their turn would take memory for all of their rows.
pub(super) fn cut(path: &Path, shape: &RowLayout) -> FileCut {
    let Some(found) = path.metadata().ok().filter(Metadata::is_file) else { return FileCut::Uncut };
    if shape.format == Format::Parquet {
        let groups = ParquetRows::row_groups(path).ok();
        let groups = groups.filter(|groups| groups.last().is_some_and(|&rows| rows <= PARQUET_ROWS));
        return groups.map_or(FileCut::Uncut, FileCut::Rows);
    }
    match Packing::of(path) {
        Ok(None) => FileCut::Bytes(found.len()),
        Ok(Some(_)) if found.len() <= PACKED => FileCut::Whole(found.len()),
        _ => FileCut::Uncut,
    }
}

/// Checks a file and returns whether it is packed.
fn check(path: &Path, is_text: bool) -> Result<bool, SourceError> {
    let found = path.metadata().map_err(|source| io_error(path, source))?;
    // A named pipe gives its bytes only once.
    if !found.is_file() {
        return Ok(false);
    }
    open_at(path, 0)?;
    let packing = if is_text { Packing::of(path)? } else { None };
    packing.map_or(Ok(()), |packing| packing.open(path)?.verify())?;
    Ok(packing.is_some())
}

/// Returns the part of the listed files that was read before a position. For a position at the
/// start of a file, this is the whole file before it.
fn read_before(paths: &[PathBuf], position: Position, is_whole: bool) -> Option<ReadPart> {
    let is_start = position.offset == 0 && position.row <= 1;
    let (part, is_whole) = match is_start {
        true => (position.part.checked_sub(1)?, true),
        false => (position.part, is_whole),
    };
    let extent = if is_whole { ReadExtent::Whole } else { ReadExtent::UpTo(position.offset) };
    Some(ReadPart { part, path: paths.get(part as usize)?.clone(), extent })
}

impl Origin for TextFiles {
    fn name(&self, file: u32) -> PathBuf {
        self.paths.get(file as usize).cloned().unwrap_or_default()
    }

    fn open(&mut self, position: Position) -> Result<Option<OpenFile>, SourceError> {
        let Some(path) = self.paths.get(position.part as usize) else { return Ok(None) };
        let offset = position.offset;
        if path.metadata().is_ok_and(|found| found.file_type().is_fifo()) {
            let stream = ByteStream::of_pipe(open_pipe(path, offset, &self.control)?, path);
            return Ok(Some(OpenFile::Bytes { stream, header: None, is_rest: false }));
        }
        let header = (offset > 0).then(|| stream_at(path, 0)).transpose()?;
        let (stream, is_rest) = resume_at(path, offset)?;
        Ok(Some(OpenFile::Bytes { stream, header, is_rest }))
    }

    fn read_before(&self, position: Position) -> Option<ReadPart> {
        let is_packed = self.packed.get(position.part as usize).is_some_and(|&packed| packed);
        read_before(&self.paths, position, is_packed)
    }
}

impl Origin for ParquetFiles {
    fn name(&self, file: u32) -> PathBuf {
        self.paths.get(file as usize).cloned().unwrap_or_default()
    }

    fn open(
        &mut self,
        Position { part: file, offset, row }: Position,
    ) -> Result<Option<OpenFile>, SourceError> {
        let Some(path) = self.paths.get(file as usize) else { return Ok(None) };
        Ok(Some(OpenFile::Rows(Box::new(ParquetRows::open(path, (offset, row), &self.wanted)?))))
    }

    fn read_before(&self, position: Position) -> Option<ReadPart> {
        read_before(&self.paths, position, true)
    }
}

/// Opens a file at an offset. Also returns whether the bytes continue a line that an earlier run
/// has read as the last line of the file.
fn resume_at(path: &Path, offset: u64) -> Result<(ByteStream, bool), SourceError> {
    let Some(last) = offset.checked_sub(1) else { return Ok((stream_at(path, 0)?, false)) };
    let mut stream = stream_at(path, last)?;
    let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let mut before = [0];
    if stream.read(&mut before).map_err(|source| io_error(path, source))? == 0 {
        return Err(SourceError::Shrunk { path: path.into(), found: last });
    }
    let next = stream.fill_buf().map_err(|source| io_error(path, source))?;
    let is_rest = !is_end(&before[0]) && next.first().is_some_and(|next| !is_end(next));
    Ok((stream, is_rest))
}

/// Opens a named pipe, which may not have a writer yet. Without `NONBLOCK`, opening would wait for
/// one and ignore a stop.
fn open_pipe(path: &Path, offset: u64, control: &Control) -> Result<StoppableInput, SourceError> {
    if offset > 0 {
        // The bytes already read are gone.
        return Err(io_error(path, ErrorKind::NotSeekable.into()));
    }
    let input = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
    let input = input.map_err(|source| io_error(path, source.into()))?.into();
    Ok(StoppableInput { input, control: control.clone() })
}

/// Opens a file at an offset. A packed file is unpacked, and the offset counts unpacked bytes.
pub(super) fn stream_at(path: &Path, offset: u64) -> Result<ByteStream, SourceError> {
    let Some(packing) = Packing::of(path)? else {
        return Ok(ByteStream::new(open_at(path, offset)?, offset));
    };
    let mut stream = ByteStream::new(packing.open(path)?, 0);
    let skipped = io::copy(&mut (&mut stream).take(offset), &mut io::sink());
    let found = skipped.map_err(|source| io_error(path, source))?;
    match found < offset {
        true => Err(SourceError::Shrunk { path: path.into(), found }),
        false => Ok(stream),
    }
}

/// Opens a file at an offset, which must be within it.
pub(super) fn open_at(path: &Path, offset: u64) -> Result<File, SourceError> {
    let mut file = File::open(path).map_err(|source| io_error(path, source))?;
    if offset > 0 {
        let found = file.seek(SeekFrom::End(0)).map_err(|source| io_error(path, source))?;
        if found < offset {
            return Err(SourceError::Shrunk { path: path.into(), found });
        }
        file.seek(SeekFrom::Start(offset)).map_err(|source| io_error(path, source))?;
    }
    Ok(file)
}
