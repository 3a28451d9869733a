//! From a source that can't be read again into the ingest journal: two threads and a bounded buffer between them.
//!
//! One thread reads what comes. The other takes all that has come since, cuts it after the last whole record, appends it
//! and syncs: so records share a sync when there are many, and the first one after a pause is synced at once. A reader of
//! the journal that is far behind holds up neither. A disk that is slow holds up the source.

use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use super::csv::CsvRows;
use super::error::SourceError;
use super::files::{STANDARD_INPUT, Stream, io_error};
use super::framing::Framing;
use super::roles::Roles;
use super::row::RECORD_LIMIT;
use crate::pipeline::{Format, Pipeline};
use crate::state::Ingest;

/// What is read of the source at once.
const CHUNK: usize = 1 << 16;

/// Bytes that may wait for the disk.
const WAITING_BYTES: usize = 1 << 20;

/// The least time between two syncs, unless [`WAITING_BYTES`] wait.
const SYNC_INTERVAL: Duration = Duration::from_millis(5);

/// Takes a source in, until it ends or this is dropped.
pub(crate) struct Intake {
    waiting: Arc<Waiting>,
    writer: Option<JoinHandle<()>>,
}

/// What has been read and not been taken by the writer.
#[derive(Default)]
struct Waiting {
    buffer: Mutex<Buffer>,
    changed: Condvar,
}

#[derive(Default)]
struct Buffer {
    bytes: Zeroizing<Vec<u8>>,
    /// The source has ended, with an error or without.
    ended: Option<io::Result<()>>,
    /// The run is over.
    stopped: bool,
}

impl Intake {
    /// Begins to take `input` into `ingest`, as a session in whose header the pipeline's columns must be.
    pub(crate) fn start(
        input: impl Read + Send + 'static,
        ingest: &Arc<Ingest>,
        pipeline: &Pipeline,
    ) -> Self {
        let waiting = Arc::new(Waiting::default());
        let reader = Arc::clone(&waiting);
        // Never joined: it may wait for a source that says nothing more.
        thread::spawn(move || reader.read(input));
        let mut session =
            Session::new(Arc::clone(ingest), pipeline.source.format, Roles::new(pipeline).wanted);
        let writer = thread::spawn({
            let (waiting, ingest) = (Arc::clone(&waiting), Arc::clone(ingest));
            move || ingest.end(waiting.write(&mut session).err().map(io::Error::other))
        });
        Intake { waiting, writer: Some(writer) }
    }
}

impl Drop for Intake {
    /// When this returns, the journal is written no more.
    fn drop(&mut self) {
        self.waiting.buffer().stopped = true;
        self.waiting.changed.notify_all();
        if let Some(writer) = self.writer.take() {
            // A writer that panicked has ended as well.
            let _ = writer.join();
        }
    }
}

impl Waiting {
    fn buffer(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads `input` to its end.
    fn read(&self, mut input: impl Read) {
        let mut chunk = Zeroizing::new(vec![0; CHUNK]);
        self.buffer().bytes.reserve_exact(WAITING_BYTES + CHUNK);
        let ended = loop {
            match input.read(&mut chunk) {
                Ok(0) => break Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
                Ok(read) => {
                    let full = |buffer: &mut Buffer| buffer.bytes.len() >= WAITING_BYTES && !buffer.stopped;
                    let buffer = self.changed.wait_while(self.buffer(), full);
                    let mut buffer = buffer.unwrap_or_else(PoisonError::into_inner);
                    if buffer.stopped {
                        return;
                    }
                    buffer.bytes.extend_from_slice(&chunk[..read]);
                    self.changed.notify_all();
                }
            }
        };
        self.buffer().ended = Some(ended);
        self.changed.notify_all();
    }

    /// Takes what waits, again and again, until the source has ended or the run is over.
    fn write(&self, session: &mut Session) -> Result<(), SourceError> {
        let mut batch = Zeroizing::new(Vec::with_capacity(WAITING_BYTES + CHUNK));
        let mut synced: Option<Instant> = None;
        loop {
            let ended = {
                let idle = |buffer: &mut Buffer| buffer.bytes.is_empty() && buffer.goes_on();
                let buffer = self.changed.wait_while(self.buffer(), idle);
                let gathering = |buffer: &mut Buffer| buffer.bytes.len() < WAITING_BYTES && buffer.goes_on();
                let left = synced.map_or(Duration::ZERO, |at| SYNC_INTERVAL.saturating_sub(at.elapsed()));
                let buffer = buffer.unwrap_or_else(PoisonError::into_inner);
                let buffer = self.changed.wait_timeout_while(buffer, left, gathering);
                let (mut buffer, _) = buffer.unwrap_or_else(PoisonError::into_inner);
                if buffer.stopped {
                    return Ok(());
                }
                batch.clear();
                std::mem::swap(&mut buffer.bytes, &mut batch);
                self.changed.notify_all();
                buffer.ended.take()
            };
            session.take(&batch, matches!(ended, Some(Ok(()))))?;
            synced = Some(Instant::now());
            match ended {
                None => {}
                Some(ended) => return ended.map_err(|error| io_error(Path::new(STANDARD_INPUT), error)),
            }
        }
    }
}

impl Buffer {
    fn goes_on(&self) -> bool {
        self.ended.is_none() && !self.stopped
    }
}

/// The session that is being written.
struct Session {
    ingest: Arc<Ingest>,
    framing: Framing,
    wanted: Vec<String>,
    /// Whether the header, if there is one, has been written.
    begun: bool,
    /// Bytes that have come and are not in the journal; the framing has seen the first `seen` of them.
    bytes: Zeroizing<Vec<u8>>,
    seen: usize,
    has_header: bool,
}

impl Session {
    fn new(ingest: Arc<Ingest>, format: Format, wanted: Vec<String>) -> Self {
        let framing = Framing::new(format);
        // At full size from the start: a vector that grows leaves copies behind.
        let bytes = Zeroizing::new(Vec::with_capacity(WAITING_BYTES + CHUNK + RECORD_LIMIT));
        let has_header = format == Format::Csv;
        Session { ingest, framing, wanted, begun: false, bytes, seen: 0, has_header }
    }

    /// Takes in what has come; `ended` if nothing more will. What is whole is on disk when this returns.
    fn take(&mut self, batch: &[u8], ended: bool) -> Result<(), SourceError> {
        self.bytes.extend_from_slice(batch);
        if !self.begun && !self.begin(ended)? {
            return Ok(());
        }
        let before = self.framing.records;
        let mut whole = match self.framing.last_end(&self.bytes[self.seen..]) {
            0 => 0,
            end => self.seen + end,
        };
        if ended && !self.framing.is_too_long() {
            self.framing.end();
            whole = self.bytes.len();
        }
        if whole > 0 {
            self.ingest.append(&self.bytes[..whole], self.framing.records - before)?;
            self.ingest.sync()?;
            self.bytes.drain(..whole);
        }
        self.seen = self.bytes.len();
        self.check_length()
    }

    /// Begins the session once its header is whole; whether it has begun.
    fn begin(&mut self, ended: bool) -> Result<bool, SourceError> {
        let mut header = 0;
        if self.has_header {
            let end = self.framing.first_end(&self.bytes[self.seen..]);
            self.check_length()?;
            header = match end {
                Some(end) => self.seen + end,
                None if ended && !self.framing.is_between() => self.bytes.len(),
                None => {
                    self.seen = self.bytes.len();
                    return Ok(false);
                }
            };
            // A header that lacks a column is found out before anything of its session counts.
            let stream = Stream::new(io::Cursor::new(self.bytes[..header].to_vec()), 0);
            CsvRows::open(stream, Path::new(STANDARD_INPUT), &self.wanted)?;
        } else if self.bytes.is_empty() {
            return Ok(false);
        }
        self.ingest.begin(&self.bytes[..header])?;
        self.bytes.drain(..header);
        (self.begun, self.seen) = (true, 0);
        self.framing.end();
        Ok(true)
    }

    /// A record that is too long will never be whole.
    fn check_length(&self) -> Result<(), SourceError> {
        if !self.framing.is_too_long() {
            return Ok(());
        }
        let (path, line) = (STANDARD_INPUT.into(), self.framing.record_line());
        Err(SourceError::RecordTooLong { path, line, limit: RECORD_LIMIT })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{IngestPlace, IngestReader, PublicHeader, Store};
    use std::sync::mpsc;

    fn pipeline(format: &str) -> Pipeline {
        let text = format!(
            "name = 'n'\nsource = {{ path = '-', format = '{format}', journal = true }}\nrelease.strategy = 'identity'
            columns = [{{ name = 'x', lower = 0, upper = 1 }}]\nprivacy = {{ epsilon = 1, delta = 1e-6 }}
            epochs = {{ records = 2, horizon = 9 }}"
        );
        Pipeline::parse(&text, "p.toml".as_ref()).unwrap()
    }

    /// A source that says what it is given, part by part.
    struct Parts(mpsc::Receiver<Vec<u8>>);

    impl Read for Parts {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let Ok(part) = self.0.recv() else { return Ok(0) };
            buffer[..part.len()].copy_from_slice(&part);
            Ok(part.len())
        }
    }

    /// A journal, and the directory that holds it.
    fn journal() -> (tempfile::TempDir, Arc<Ingest>) {
        let directory = tempfile::tempdir().unwrap();
        let header = PublicHeader { parameters: vec![], private: true };
        let (store, _) = Store::open(directory.path().join("state"), &header).unwrap();
        let ingest = Arc::new(store.ingest(IngestPlace::START).unwrap());
        (directory, ingest)
    }

    /// What comes of taking `input` in: header and records, and how many.
    fn take(format: &str, input: &[u8]) -> io::Result<(String, String, u64)> {
        let (_directory, ingest) = journal();
        let _intake = Intake::start(io::Cursor::new(input.to_vec()), &ingest, &pipeline(format));
        let reader = IngestReader::open(&ingest, IngestPlace::START)?;
        let Some(mut reader) = reader else { return Ok(Default::default()) };
        let (header, mut records) = (String::from_utf8_lossy(reader.header()).into_owned(), String::new());
        reader.read_to_string(&mut records)?;
        let mut number = None;
        while let Some(more) = ingest.acknowledged(number) {
            number = Some(more);
        }
        Ok((header, records, number.unwrap_or(0)))
    }

    #[test]
    fn whole_records_are_taken_and_counted() {
        let check = |format, input: &str, header: &str, records: &str, number| {
            let taken = take(format, input.as_bytes()).unwrap();
            assert_eq!(taken, (header.into(), records.into(), number), "{input:?}");
        };
        check("csv", "x\n1\n2\n", "x\n", "1\n2\n", 2);
        check("csv", "\"a\nb\",x\r\n1,\"\n\"\r\n2,3", "\"a\nb\",x\r", "\n1,\"\n\"\r\n2,3", 2);
        check("csv", "x", "x", "", 0);
        check("csv", "\n", "", "", 0);
        check("csv", "", "", "", 0);
        check("ndjson", "{\"x\":1}\n\n{}", "", "{\"x\":1}\n\n{}", 2);
        let many = "1\n".repeat(2_000_000);
        check("csv", &format!("x\n{many}"), "x\n", &many, 2_000_000);
    }

    #[test]
    fn what_can_never_be_read_is_refused_before_it_is_in_the_journal() {
        let check = |input: &str, parts: &[&str]| {
            let error = io_error(Path::new(STANDARD_INPUT), take("csv", input.as_bytes()).unwrap_err());
            parts.iter().for_each(|part| assert!(error.to_string().contains(part), "{error}"));
        };
        check("y\n1\n", &["<standard input>:1", "\"x\""]);
        check(&format!("x\n1\n\"{}", "2\n".repeat(RECORD_LIMIT)), &["<standard input>:3", "longer than"]);
        check(&"x".repeat(2 * RECORD_LIMIT), &["<standard input>:1", "longer than"]);
    }

    #[test]
    fn a_record_counts_as_soon_as_it_is_whole() {
        let (_directory, ingest) = journal();
        let (sender, parts) = mpsc::channel();
        let intake = Intake::start(Parts(parts), &ingest, &pipeline("csv"));
        assert_eq!(ingest.acknowledged(None), Some(0));
        for (part, expected) in [("x\n1", None), ("0\n2\n", Some(2)), ("3", None), ("4\r\n", Some(3))] {
            sender.send(part.as_bytes().to_vec()).unwrap();
            if expected.is_some() {
                let before = expected.map(|number| if number == 2 { 0 } else { 2 });
                assert_eq!(ingest.acknowledged(before), expected);
            }
        }
        // The source says nothing more and does not end.
        drop(intake);
        assert_eq!(ingest.acknowledged(Some(3)), None);
    }
}
