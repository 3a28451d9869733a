//! The bytes of a source: files, the standard input or its journal, with the offset of the next byte.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags};

use super::error::SourceError;
use super::follow::Followed;
use super::stream::StreamRows;
use crate::connect::StreamSource;
use crate::control::{Control, is_ready};
use crate::format::bytes::{STANDARD_INPUT, Stream};
use crate::format::form::Form;
use crate::format::parquet::ParquetRows;
use crate::format::row::Rows;
use crate::format::{Format, FormatError};
use crate::pipeline::{Input, Source};
use crate::state::{Ingest, IngestPlace, IngestReader, StateError};

/// How compressed files begin.
const COMPRESSED: [(&[u8], &str); 4] =
    [(b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\xfd7zXZ\0", "xz"), (b"PK\x03\x04", "zip")];

/// Where rows come from: one file after the other.
pub(super) enum Origin {
    /// The standard input, which is piped in anew after a restart.
    Stdin(Control),
    Files(Vec<PathBuf>, Control),
    /// Parquet files.
    Parquet(Vec<PathBuf>),
    /// Files of a directory, in the order in which they were found.
    Followed(Arc<Followed>),
    /// The sessions of a journal, each like a file, and the name of the source.
    Journal(Arc<Ingest>, PathBuf),
    /// A stream of a server: one file without an end.
    Stream(Box<Source>, StreamSource, Control),
}

/// A file from a place on.
pub(super) enum Opened {
    /// Its bytes.
    Bytes {
        stream: Stream,
        /// The bytes with the file's header, unless they come first in the stream.
        header: Option<Stream>,
    },
    /// Its rows, where they are no lines.
    Rows(Box<dyn Rows>),
}

impl Origin {
    /// # Errors
    /// [`SourceError::NeedsRun`] for what can be read into a journal only.
    pub(super) fn of(source: &Source, control: &Control) -> Result<Self, SourceError> {
        Ok(match &source.input {
            Input::Stdin => Origin::Stdin(control.clone()),
            Input::Files(paths) if source.format == Format::Parquet => Origin::Parquet(paths.clone()),
            Input::Files(paths) => Origin::Files(paths.clone(), control.clone()),
            Input::Followed(files) => {
                Origin::Followed(Arc::new(Followed::forgetful(files, source.format, control)))
            }
            Input::Stream(stream) => {
                Origin::Stream(Box::new(source.clone()), stream.clone(), control.clone())
            }
            Input::Socket(_) => return Err(SourceError::NeedsRun),
        })
    }

    /// Looks at every file that is listed from the number `first` on, before anything is published: whether it can be opened, and
    /// is the text that it should be.
    pub(super) fn check(&self, first: u32) -> Result<(), SourceError> {
        let (Origin::Files(paths, _) | Origin::Parquet(paths)) = self else { return Ok(()) };
        for path in paths.iter().skip(first as usize) {
            let found = path.metadata().map_err(|source| io_error(path, source))?;
            // A named pipe gives its bytes only once.
            if !found.is_file() {
                continue;
            }
            let (file, mut start) = (open_at(path, 0)?, Vec::new());
            if matches!(self, Origin::Files(..)) {
                file.take(6).read_to_end(&mut start).map_err(|source| io_error(path, source))?;
            }
            if let Some((_, form)) = COMPRESSED.iter().find(|(magic, _)| start.starts_with(magic)) {
                return Err(SourceError::Compressed { path: path.clone(), form });
            }
        }
        Ok(())
    }

    /// Opens the file with this number from the place `(offset, line)` on; none beyond the last one. Waits for a session or
    /// a file that may begin.
    pub(super) fn open(
        &self,
        file: u32,
        (offset, line): (u64, u64),
        wanted: &[String],
    ) -> Result<Option<Opened>, SourceError> {
        match self {
            Origin::Stdin(control) if file == 0 => {
                let input = io::stdin().as_fd().try_clone_to_owned().map(File::from);
                let input = input.map_err(|source| io_error(&self.name(file), source))?;
                let stream = Stream::new(Patient { input, control: control.clone() }, 0);
                Ok(Some(Opened::Bytes { stream, header: None }))
            }
            Origin::Stream(source, stream, control) if file == 0 => {
                let form = Form::new(source.format, source.header.as_deref(), wanted, &self.name(file))?;
                let rows = StreamRows::new(stream, control, (offset, line), form);
                Ok(Some(Opened::Rows(Box::new(rows))))
            }
            Origin::Stdin(_) | Origin::Stream(..) => Ok(None),
            Origin::Files(paths, control) => {
                let Some(path) = paths.get(file as usize) else { return Ok(None) };
                if path.metadata().is_ok_and(|found| found.file_type().is_fifo()) {
                    let stream = Stream::new(Patient::of_pipe(path, offset, control)?, 0);
                    return Ok(Some(Opened::Bytes { stream, header: None }));
                }
                let header = (offset > 0).then(|| stream_at(path, 0)).transpose()?;
                Ok(Some(Opened::Bytes { stream: stream_at(path, offset)?, header }))
            }
            Origin::Parquet(paths) => {
                let Some(path) = paths.get(file as usize) else { return Ok(None) };
                let rows = ParquetRows::open(path, (offset, line), wanted)?;
                Ok(Some(Opened::Rows(Box::new(rows))))
            }
            Origin::Followed(followed) => followed.open(file, offset),
            Origin::Journal(ingest, _) => {
                let reader = IngestReader::open(ingest, IngestPlace { session: file, offset });
                let reader = reader.map_err(|source| io_error(&self.name(file), source))?;
                Ok(reader.map(|reader| {
                    let header = Stream::new(io::Cursor::new(reader.header().to_vec()), 0);
                    Opened::Bytes { stream: Stream::new(reader, offset), header: Some(header) }
                }))
            }
        }
    }

    /// Whether what comes at `offset` of a file goes on with a line that was the file's last one when it was read up to there.
    pub(super) fn goes_on_in_line(&self, file: u32, offset: u64) -> Result<bool, SourceError> {
        let path = match self {
            Origin::Files(paths, _) if offset > 0 => paths.get(file as usize),
            _ => None,
        };
        let Some(path) = path else { return Ok(false) };
        let mut around = Vec::new();
        let read = open_at(path, offset - 1)?.take(2).read_to_end(&mut around);
        read.map_err(|source| io_error(path, source))?;
        Ok(around.len() == 2 && !around.iter().any(|byte| matches!(byte, b'\r' | b'\n')))
    }

    /// Whether a header that never came is no fault, but one that may still come.
    pub(super) fn may_begin_later(&self) -> bool {
        matches!(self, Origin::Followed(_))
    }

    /// Whether no later file is known.
    pub(super) fn is_last(&self, file: u32) -> bool {
        matches!(self, Origin::Followed(followed) if followed.is_last(file))
    }

    /// The name of a file for messages.
    pub(super) fn name(&self, file: u32) -> PathBuf {
        match self {
            Origin::Files(paths, _) | Origin::Parquet(paths) => {
                paths.get(file as usize).cloned().unwrap_or_default()
            }
            Origin::Followed(followed) => followed.path(file),
            Origin::Journal(ingest, name) if file < ingest.session() => {
                let inner = name.display().to_string();
                let inner = inner.trim_matches(['<', '>']).replace("standard", "the standard");
                format!("<session {file} of {inner}>").into()
            }
            Origin::Journal(_, name) => name.clone(),
            Origin::Stdin(_) => STANDARD_INPUT.into(),
            Origin::Stream(_, stream, _) => stream.stream().name().into(),
        }
    }
}

/// The standard input or a named pipe, waited for no longer than until the run is stopped: then it
/// seems to end.
struct Patient {
    input: File,
    control: Control,
}

impl Patient {
    /// A named pipe, which need not have a writer yet: opened as a file it would wait for one, and
    /// hear no signal.
    fn of_pipe(path: &Path, offset: u64, control: &Control) -> Result<Self, SourceError> {
        if offset > 0 {
            // What was read of it is gone.
            return Err(io_error(path, ErrorKind::NotSeekable.into()));
        }
        let input =
            rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
        let input = input.map_err(|source| io_error(path, source.into()))?.into();
        Ok(Patient { input, control: control.clone() })
    }
}

impl Read for Patient {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !self.control.is_stopped() {
            if is_ready(self.input.as_fd(), PollFlags::IN)? {
                match (&self.input).read(buffer) {
                    Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                    read => return read,
                }
            }
        }
        Ok(0)
    }
}

/// The bytes of a file from an offset on.
pub(super) fn stream_at(path: &Path, offset: u64) -> Result<Stream, SourceError> {
    Ok(Stream::new(open_at(path, offset)?, offset))
}

/// Opens a file at an offset that it must have.
pub(super) fn open_at(path: &Path, offset: u64) -> Result<File, SourceError> {
    let mut file = File::open(path).map_err(|source| io_error(path, source))?;
    if offset > 0 {
        let found = file.seek(SeekFrom::End(0)).map_err(|source| io_error(path, source))?;
        if found < offset {
            return Err(SourceError::Shrunk { path: path.into(), found, offset });
        }
        file.seek(SeekFrom::Start(offset)).map_err(|source| io_error(path, source))?;
    }
    Ok(file)
}

/// The error of reading `path`: one of ours where the journal's thread, files or a reader of rows
/// have told it.
pub(super) fn io_error(path: &Path, source: io::Error) -> SourceError {
    let io = |source| SourceError::Io { path: path.into(), source };
    let state = |source: io::Error| source.downcast::<StateError>().map_or_else(io, SourceError::Journal);
    let format = |source: io::Error| source.downcast::<FormatError>().map_or_else(state, SourceError::from);
    source.downcast::<SourceError>().unwrap_or_else(format)
}
