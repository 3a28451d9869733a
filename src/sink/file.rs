//! Files of JSON lines that follow the public log: a reader of the log like any other, so it never holds up a run.
//!
//! Each epoch is in the files once. After a crash the last epoch of the newest file is written again, which gives the same
//! bytes, because every line is a function of the public log; and what the file holds must be of the same history.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hushflow_mechanism::view::{View as Weighted, ViewError};
use hushflow_operators::Estimated;
use serde_json::Value;
use thiserror::Error;

use super::{Format, WindowWriter, Writer};
use crate::estimates::WindowPublication;
use crate::pipeline::{Rotation, Sink, View};
use crate::publication::Publication;
use crate::runtime::WindowOutput;
use crate::state::{PublicReader, ReleaseFrame, StateError};

/// Why a file can't go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SinkError {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The public log can't be read.
    #[error(transparent)]
    State(#[from] StateError),
    /// A release doesn't fit the views.
    #[error(transparent)]
    View(#[from] ViewError),
    /// A release is none of the estimates that the header speaks of.
    #[error(
        "epoch {epoch} of the public log holds no estimates of windows: it was not written by this pipeline"
    )]
    NoEstimates {
        /// The epoch.
        epoch: u64,
    },
    /// The file goes on from releases that the log doesn't have.
    #[error(
        "{}: epoch {epoch} in this file is not of the history in the state directory: move the file away, or restore the \
         directory", path.display()
    )]
    OtherHistory {
        /// The file.
        path: PathBuf,
        /// The last epoch in it.
        epoch: u64,
    },
}

/// What is written of a log.
#[derive(Clone)]
pub enum Subject {
    /// Views of moments.
    Moments(Publication, Vec<View>),
    /// Estimates of windows, as they are.
    Windows(WindowPublication),
}

/// What makes lines of releases, one after the other from the first on.
enum Lines {
    Moments(Vec<(View, Weighted, Writer)>),
    Windows(Box<(WindowPublication, WindowWriter)>),
}

impl Lines {
    fn new(subject: &Subject) -> Self {
        match subject {
            Subject::Windows(publication) => {
                let writer = WindowWriter::new(publication.clone(), Format::Json);
                Lines::Windows(Box::new((publication.clone(), writer)))
            }
            Subject::Moments(publication, views) => {
                let made = |view: &View| {
                    let weighted = publication.view(&view.workload).with_square_bias(view.squares);
                    let writer =
                        Writer::new(publication.clone(), view.clone(), Format::Json, views.len() > 1);
                    (view.clone(), weighted, writer)
                };
                Lines::Moments(views.iter().map(made).collect())
            }
        }
    }

    /// The lines of a release; none where it is not `wanted`, but views have to see it all the same.
    fn of(&mut self, release: &ReleaseFrame, wanted: bool, sink: &Sink) -> Result<Vec<u8>, SinkError> {
        let mut lines = Vec::new();
        let refused = |source| sink.refused(source);
        match self {
            Lines::Moments(views) => {
                for (view, weighted, writer) in views {
                    for moments in weighted.push(&release.values)?.filter(|_| wanted) {
                        let density = moments.noisy().density_by(view.covariance);
                        let estimated = Estimated { density, moments };
                        writer.write(&estimated, &release.stamp(), &mut lines).map_err(refused)?;
                    }
                }
            }
            Lines::Windows(windows) if wanted => {
                let (publication, writer) = &mut **windows;
                let epoch = release.epoch;
                let found = publication.read(&release.values).ok_or(SinkError::NoEstimates { epoch })?;
                for (key, found) in (0..).zip(found) {
                    let output = WindowOutput { epoch, key, found, stamp: release.stamp() };
                    writer.write(&output, &mut lines).map_err(refused)?;
                }
            }
            Lines::Windows(..) => {}
        }
        Ok(lines)
    }
}

/// A sink of a pipeline, and how far it has come.
pub struct FileSink {
    sink: Sink,
    reader: PublicReader,
    lines: Lines,
    file: File,
    /// Bytes in the file, and the first epoch in it, if it has one.
    length: u64,
    first: Option<u64>,
    /// Epochs up to this one are in the files.
    written: u64,
    /// The last epoch that was found in a file, with its link: what the log must have too.
    found: Option<(u64, String)>,
}

/// What the newest file holds.
#[derive(Default)]
struct Contents {
    first: Option<u64>,
    /// The last epoch, its link, and where its lines begin.
    last: Option<(u64, String)>,
    begins: u64,
}

impl FileSink {
    /// Opens the newest file of a sink, and cuts its last epoch off to write it again.
    ///
    /// # Errors
    /// Where file or log can't be opened.
    pub fn open(sink: &Sink, state: &Path, subject: &Subject) -> Result<Self, SinkError> {
        let refused = |source| SinkError::Io { path: sink.path.clone(), source };
        if let Some(folder) = sink.path.parent() {
            fs::create_dir_all(folder).map_err(refused)?;
        }
        let file = File::options().read(true).append(true).create(true).open(&sink.path).map_err(refused)?;
        let contents = Contents::of(&file).map_err(refused)?;
        file.set_len(contents.begins).map_err(refused)?;
        let (first, written) = match &contents.last {
            Some((epoch, _)) => (contents.first.filter(|first| first < epoch), epoch - 1),
            None => (None, last_rotated(&sink.path).map_err(refused)?),
        };
        Ok(FileSink {
            sink: sink.clone(),
            reader: PublicReader::open(state)?,
            lines: Lines::new(subject),
            file,
            length: contents.begins,
            first,
            written,
            found: contents.last,
        })
    }

    /// Writes the epochs that have been published since: how many.
    ///
    /// # Errors
    /// [`SinkError`]. After one, open the sink anew.
    pub fn catch_up(&mut self) -> Result<u64, SinkError> {
        let mut count = 0;
        while let Some(release) = self.reader.next_frame()? {
            self.compare(release.epoch, &release.chain.short())?;
            let lines = self.lines.of(&release, release.epoch > self.written, &self.sink)?;
            if release.epoch > self.written {
                self.append(release.epoch, &lines)?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// Whether the log has what the file had.
    fn compare(&mut self, epoch: u64, link: &str) -> Result<(), SinkError> {
        match &self.found {
            Some((found, chain)) if *found == epoch && chain != link => {
                Err(SinkError::OtherHistory { path: self.sink.path.clone(), epoch })
            }
            _ => Ok(()),
        }
    }

    fn append(&mut self, epoch: u64, lines: &[u8]) -> Result<(), SinkError> {
        let refused = |source| self.sink.refused(source);
        if let Some(first) = self.first
            && self.sink.is_full(self.length + lines.len() as u64, epoch - first)
        {
            self.file.sync_all().map_err(refused)?;
            fs::rename(&self.sink.path, rotated(&self.sink.path, first, epoch - 1)).map_err(refused)?;
            self.file = File::options().append(true).create(true).open(&self.sink.path).map_err(refused)?;
            (self.first, self.length) = (None, 0);
        }
        self.file.write_all(lines).map_err(refused)?;
        self.length += lines.len() as u64;
        self.first.get_or_insert(epoch);
        self.written = epoch;
        Ok(())
    }
}

/// How often the log is looked at.
const INTERVAL: Duration = Duration::from_millis(100);

/// A sink that follows the log on a thread of its own, until it is told that there will be no more.
pub struct Following {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), SinkError>>,
}

impl Following {
    /// Follows the log in `state`, which may still have to be begun. What goes wrong is tried again; `notice` hears of it.
    pub fn start(
        sink: Sink,
        state: PathBuf,
        subject: Subject,
        notice: impl Fn(&str) + Send + 'static,
    ) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let over = Arc::clone(&over);
            move || follow(&over, || FileSink::open(&sink, &state, &subject), &notice)
        });
        Following { over, thread }
    }

    /// Waits until everything is written that has been published.
    ///
    /// # Errors
    /// What kept it from that. The next run goes on where it stopped.
    pub fn finish(self) -> Result<(), SinkError> {
        self.over.store(true, Ordering::Release);
        // A thread that panicked has said so.
        self.thread.join().unwrap_or(Ok(()))
    }
}

fn follow(
    over: &AtomicBool,
    open: impl Fn() -> Result<FileSink, SinkError>,
    notice: &impl Fn(&str),
) -> Result<(), SinkError> {
    let (mut opened, mut told) = (None, false);
    loop {
        // Asked for before the log is read: then all of it is.
        let last = over.load(Ordering::Acquire);
        let caught_up = opened.take().map_or_else(&open, Ok).and_then(|mut sink| {
            sink.catch_up()?;
            Ok(sink)
        });
        match caught_up {
            Ok(_) if last => return Ok(()),
            Ok(sink) => (opened, told) = (Some(sink), false),
            Err(error) if last => return Err(error),
            // No run has begun the log yet.
            Err(SinkError::State(StateError::Missing { .. })) => {}
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    notice(&format!("{error}; trying again"));
                }
            }
        }
        thread::sleep(INTERVAL);
    }
}

impl Sink {
    fn refused(&self, source: io::Error) -> SinkError {
        SinkError::Io { path: self.path.clone(), source }
    }

    /// Whether a file with these bytes, or one epoch more than these, would be too large.
    fn is_full(&self, bytes: u64, epochs: u64) -> bool {
        match self.rotate {
            None => false,
            Some(Rotation::Bytes(most)) => bytes > most,
            Some(Rotation::Epochs(most)) => epochs >= most,
        }
    }
}

impl Contents {
    /// Up to the last whole line.
    fn of(file: &File) -> io::Result<Self> {
        let (mut contents, mut offset) = (Contents::default(), 0);
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
            let value: Value = serde_json::from_slice(&line)
                .map_err(|_| io::Error::other("a line of it is no JSON: it was not written by this sink"))?;
            let (epoch, chain) =
                (value["epoch"].as_u64().unwrap_or(0), value["chain"].as_str().unwrap_or_default());
            contents.first.get_or_insert(epoch);
            if contents.last.as_ref().is_none_or(|(last, _)| *last != epoch) {
                contents.last = Some((epoch, chain.into()));
                contents.begins = offset;
            }
            offset += line.len() as u64;
            line.clear();
        }
        Ok(contents)
    }
}

/// The name of a file that is full: `releases-0000000001-0000000100.ndjson`.
fn rotated(path: &Path, first: u64, last: u64) -> PathBuf {
    let (stem, extension) = (part(path.file_stem()), part(path.extension()));
    path.with_file_name(format!("{stem}-{first:010}-{last:010}.{extension}"))
}

fn part(part: Option<&std::ffi::OsStr>) -> String {
    part.map_or_else(String::new, |part| part.to_string_lossy().into_owned())
}

/// The last epoch in the files that are full, 0 if there is none.
fn last_rotated(path: &Path) -> io::Result<u64> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (prefix, suffix) = (format!("{}-", part(path.file_stem())), format!(".{}", part(path.extension())));
    let mut last = 0;
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let epochs = name.strip_prefix(&prefix).and_then(|name| name.strip_suffix(&suffix));
        let end = epochs.and_then(|epochs| epochs.split_once('-')?.1.parse().ok());
        last = last.max(end.unwrap_or(0));
    }
    Ok(last)
}
