//! Copies a source that can't be read again into the ingest journal. Two threads share a bounded
//! buffer.
//!
//! One thread reads. The other takes all bytes that have come since its last sync, cuts them after
//! the last whole record, appends them and syncs. So many records share a sync, and the first
//! record after a pause is synced at once. A slow reader of the journal delays neither thread until
//! the journal reaches its limit. Then, or if the disk is slow or full, the writer waits, the
//! buffer fills, and the source is not read until there is room.
//!
//! A source may be a sequence of connections. A record cut by a disconnect is dropped and counted:
//! it was never acknowledged. A record that is too long is also dropped and counted, and ends its
//! connection, because the start of the next record is unknown.

use std::io::{self, ErrorKind, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tracing::info;
use zeroize::Zeroizing;

use super::JournalSession;
use crate::connect::{SourceError, io_error};
use crate::control::{Control, POLL_INTERVAL};
use crate::state::{IngestJournal, JournalFull, StateError};

/// Number of bytes read at once.
pub(in crate::connect) const CHUNK: usize = 1 << 16;

/// Maximum number of bytes that wait for the disk. It is larger than [`GROUP_BYTES`], so that a
/// slow disk syncs more bytes at once.
pub(super) const WAITING_BYTES: usize = 4 << 20;

/// Number of waiting bytes that starts a sync immediately.
const GROUP_BYTES: usize = 1 << 20;

const DISK_FULL: &str = "the disk has no room for the ingest journal: the source is held up, and nothing is lost; counting records \
    makes room, and so do you";

/// Minimum time between two notices that the journal is full.
const NOTICE_INTERVAL: Duration = Duration::from_secs(60);

/// Minimum time between two syncs, unless [`GROUP_BYTES`] wait.
const SYNC_INTERVAL: Duration = Duration::from_millis(5);

/// Copies a source into the journal until the source ends or this is dropped.
pub(crate) struct Intake {
    buffer: Arc<IntakeBuffer>,
    writer: Option<JoinHandle<()>>,
    cut_off: Arc<AtomicU64>,
    /// The number of safe records before anything was read.
    safe_before: Option<u64>,
    ingest: Arc<IngestJournal>,
    acknowledgers: Vec<JoinHandle<()>>,
}

/// Callback that receives the number of safe records.
pub(crate) type AcknowledgeCallback = Box<dyn Fn(u64) + Send>;

/// Buffer between the reading thread and the writer.
pub(in crate::connect) struct IntakeBuffer {
    buffer: Mutex<IntakeState>,
    changed: Condvar,
    control: Control,
}

#[derive(Default)]
struct IntakeState {
    bytes: Zeroizing<Vec<u8>>,
    /// The source has ended, with an error or without.
    ended: Option<io::Result<()>>,
    /// The run is over.
    stopped: bool,
    /// A connection ends after these bytes; the next one waits until the writer has handled that.
    broken: bool,
    /// Reason for refusing the rest of this connection.
    refused: Option<String>,
}

impl Intake {
    /// Starts copying what `read` delivers into the journal of `session`. If the source `outlives`
    /// an error, the error ends only a connection. `listener` receives the number of safe records.
    pub(in crate::connect) fn start(
        mut session: JournalSession,
        control: &Control,
        outlives: bool,
        listener: Option<AcknowledgeCallback>,
        read: impl FnOnce(&IntakeBuffer) + Send + 'static,
    ) -> io::Result<Self> {
        let (buffer, changed) = (Mutex::new(IntakeState::default()), Condvar::new());
        let buffer = Arc::new(IntakeBuffer { buffer, changed, control: control.clone() });
        buffer.buffer().bytes.reserve_exact(WAITING_BYTES + CHUNK);
        let (cut_off, ingest) = (session.cut_off(), session.ingest());
        let mut intake = Intake {
            buffer: Arc::clone(&buffer),
            writer: None,
            cut_off,
            safe_before: ingest.acknowledged(None),
            ingest,
            acknowledgers: Vec::new(),
        };
        listener.map_or(Ok(()), |listener| intake.report_to(listener))?;
        let (reader, ingest) = (Arc::clone(&buffer), intake.ingest());
        // Never joined: it may wait forever for a source that sends nothing.
        thread::spawn(move || read(&reader));
        intake.writer = Some(thread::spawn(move || {
            ingest.end(buffer.write(&mut session, outlives).err().map(io::Error::other));
        }));
        Ok(intake)
    }

    /// Reports each number of safe records, on a separate thread, beginning with the number before
    /// anything was read.
    ///
    /// # Errors
    /// If the system can't start a thread.
    pub(crate) fn report_to(&mut self, listener: AcknowledgeCallback) -> io::Result<()> {
        let (ingest, mut safe) = (self.ingest(), self.safe_before);
        let acknowledgers = thread::Builder::new().spawn(move || {
            while let Some(records) = safe {
                listener(records);
                safe = ingest.acknowledged(safe);
            }
        })?;
        self.acknowledgers.push(acknowledgers);
        Ok(())
    }

    pub(crate) fn ingest(&self) -> Arc<IngestJournal> {
        Arc::clone(&self.ingest)
    }

    /// Finishes after a normal end: drops counted records from the journal and waits until
    /// everything is acknowledged. Returns the number of records cut by disconnects.
    ///
    /// # Errors
    /// If the journal can't be written.
    pub(crate) fn finish(mut self) -> Result<u64, StateError> {
        self.stop();
        self.ingest.finish()?;
        for thread in std::mem::take(&mut self.acknowledgers) {
            // A thread that panicked has already reported it.
            let _ = thread.join();
        }
        Ok(self.cut_off.load(Ordering::Relaxed))
    }

    /// Stops the writer; the journal is not written after this returns.
    fn stop(&mut self) {
        self.buffer.buffer().stopped = true;
        self.buffer.changed.notify_all();
        if let Some(writer) = self.writer.take() {
            // A writer that panicked has ended as well.
            let _ = writer.join();
        }
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        self.stop();
    }
}

impl IntakeBuffer {
    fn buffer(&self) -> MutexGuard<'_, IntakeState> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while<'a>(
        &self,
        buffer: MutexGuard<'a, IntakeState>,
        waits: impl FnMut(&mut IntakeState) -> bool,
    ) -> MutexGuard<'a, IntakeState> {
        self.changed.wait_while(buffer, waits).unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads `input` to its end.
    pub(in crate::connect) fn read(&self, mut input: impl Read) {
        let mut chunk = Zeroizing::new(vec![0; CHUNK]);
        let ended = loop {
            match input.read(&mut chunk) {
                Ok(0) => break Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
                Ok(read) if !self.put(&chunk[..read]) => return,
                Ok(_) => {}
            }
        };
        self.end(ended);
    }

    /// Marks the end of the source.
    pub(in crate::connect) fn end(&self, ended: io::Result<()>) {
        self.buffer().ended = Some(ended);
        self.changed.notify_all();
    }

    /// Whether the writer accepts more.
    pub(in crate::connect) fn is_wanted(&self) -> bool {
        self.buffer().is_wanted()
    }

    /// Whether the run is over.
    pub(in crate::connect) fn is_stopped(&self) -> bool {
        self.buffer().stopped
    }

    /// Adds bytes to the buffer once there is room. Returns whether more are wanted.
    pub(in crate::connect) fn put(&self, bytes: &[u8]) -> bool {
        let full = |buffer: &mut IntakeState| buffer.bytes.len() >= WAITING_BYTES && buffer.is_wanted();
        let mut buffer = self.wait_while(self.buffer(), full);
        let (wanted, before) = (buffer.is_wanted(), buffer.bytes.len());
        if wanted {
            buffer.bytes.extend_from_slice(bytes);
            // Otherwise the writer is only waiting until its time to sync.
            if before == 0 || buffer.bytes.len() >= GROUP_BYTES {
                self.changed.notify_all();
            }
        }
        wanted
    }

    /// Waits until the writer has handled the end of the connection. Returns the reason if the
    /// connection was refused.
    pub(in crate::connect) fn end_connection(&self) -> Option<String> {
        let mut buffer = self.buffer();
        buffer.broken = true;
        self.changed.notify_all();
        let mut buffer =
            self.wait_while(buffer, |buffer| buffer.broken && !buffer.stopped && buffer.ended.is_none());
        buffer.refused.take()
    }

    /// Writes waiting bytes until the source has ended or the run is over. If the source `outlives`
    /// errors, an error in a connection ends only that connection.
    fn write(&self, session: &mut JournalSession, outlives: bool) -> Result<(), SourceError> {
        let mut batch = Zeroizing::new(Vec::with_capacity(WAITING_BYTES + CHUNK));
        let mut synced: Option<Instant> = None;
        let mut noticed: Option<Instant> = None;
        loop {
            let (ended, broken) = {
                let mut buffer = self.buffer();
                while buffer.bytes.is_empty() && buffer.may_receive_more() && !self.control.is_stopped() {
                    let waited = self.changed.wait_timeout(buffer, POLL_INTERVAL);
                    buffer = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                let gathering =
                    |buffer: &mut IntakeState| buffer.bytes.len() < GROUP_BYTES && buffer.may_receive_more();
                let left = synced.map_or(Duration::ZERO, |at| SYNC_INTERVAL.saturating_sub(at.elapsed()));
                let waited = self.changed.wait_timeout_while(buffer, left, gathering);
                let (mut buffer, _) = waited.unwrap_or_else(PoisonError::into_inner);
                if buffer.stopped || self.control.is_stopped() {
                    return Ok(());
                }
                batch.clear();
                std::mem::swap(&mut buffer.bytes, &mut batch);
                self.changed.notify_all();
                (buffer.ended.take(), buffer.broken)
            };
            let last = matches!(ended, Some(Ok(()))) && !outlives;
            let mut wait = |full| {
                if noticed.is_none_or(|at| at.elapsed() >= NOTICE_INTERVAL) {
                    noticed = Some(Instant::now());
                    self.report_full(full);
                }
                !self.buffer().stopped && !self.control.is_stopped()
            };
            match session.take(&batch, last, &mut wait) {
                Err(error) if outlives && !matches!(error, SourceError::Journal(_)) => {
                    session.disconnect();
                    self.refuse(error.to_string());
                }
                taken => taken?,
            }
            if broken {
                session.disconnect();
                self.buffer().broken = false;
                self.changed.notify_all();
            }
            synced = Some(Instant::now());
            match ended {
                None => {}
                Some(ended) => return ended.map_err(|error| io_error(session.name(), error)),
            }
        }
    }

    /// Reports why the source is blocked.
    fn report_full(&self, full: JournalFull) {
        match full {
            JournalFull::Limit => {
                info!("the ingest journal is at its limit: the source waits for records to be counted")
            }
            JournalFull::Disk => self.control.notice(DISK_FULL),
        }
    }

    /// Refuses the rest of the connection.
    fn refuse(&self, reason: String) {
        let mut buffer = self.buffer();
        buffer.refused = Some(reason);
        buffer.bytes.clear();
        self.changed.notify_all();
    }
}

impl IntakeState {
    /// Whether the writer may wait for more bytes.
    fn may_receive_more(&self) -> bool {
        self.ended.is_none() && !self.stopped && !self.broken
    }

    /// Whether the writer accepts more bytes.
    fn is_wanted(&self) -> bool {
        !self.stopped && self.refused.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Format;
    use crate::format::STANDARD_INPUT;
    use crate::format::form::RowLayout;
    use crate::format::row::RECORD_LIMIT;
    use crate::state::{IngestReader, Position, PublicHeader, Store};
    use std::path::Path;
    use std::sync::mpsc;

    /// Starts copying `input` into a journal.
    fn start(format: &str, input: impl Read + Send + 'static, ingest: &Arc<IngestJournal>) -> Intake {
        let format = if format == "csv" { Format::COMMAS } else { Format::Ndjson };
        let shape = RowLayout { format, header: None, wanted: vec!["x".into()] };
        let session = JournalSession::new(Arc::clone(ingest), shape, STANDARD_INPUT.into());
        Intake::start(session, &Control::new(), false, None, move |waiting| waiting.read(input)).unwrap()
    }

    /// A source that delivers the parts it receives.
    struct PartReader(mpsc::Receiver<Vec<u8>>);

    impl Read for PartReader {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let Ok(part) = self.0.recv() else { return Ok(0) };
            buffer[..part.len()].copy_from_slice(&part);
            Ok(part.len())
        }
    }

    /// A journal, and the directory that holds it.
    fn journal() -> (tempfile::TempDir, Arc<IngestJournal>) {
        let directory = tempfile::tempdir().unwrap();
        let header = PublicHeader { parameters: vec![], private: true };
        let (store, _) = Store::open(directory.path().join("state"), &header).unwrap();
        let ingest = Arc::new(store.ingest(Position::START, u64::MAX).unwrap());
        (directory, ingest)
    }

    /// Copies `input` into a journal and returns the header, the records and their number.
    fn take(format: &str, input: &[u8]) -> io::Result<(String, String, u64)> {
        take_from(format, io::Cursor::new(input.to_vec()))
    }

    fn take_from(format: &str, input: impl Read + Send + 'static) -> io::Result<(String, String, u64)> {
        let (_directory, ingest) = journal();
        let _intake = start(format, input, &ingest);
        let reader = IngestReader::open(&ingest, Position::START)?;
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
    fn complete_records_are_accepted_and_counted() {
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
        check("ndjson", "\u{feff}{}\n{}\n", "", "{}\n{}\n", 2);
        check("ndjson", "\u{feff}", "", "", 0);
        check("csv", "\u{feff}\r\n\nx\n1\n", "x\n", "1\n", 1);
        check("csv", "\u{feff}x", "x", "", 0);
        let many = "1\n".repeat(2_000_000);
        check("csv", &format!("x\n{many}"), "x\n", &many, 2_000_000);
    }

    /// Blank lines before, between and after records, far more than may wait for the disk.
    #[test]
    fn blank_lines_are_dropped_as_they_come() {
        for (format, record, end) in [("ndjson", &b"{}\n"[..], &b"  \t\r\n"[..]), ("csv", b"x\n", b"\r\n\n")]
        {
            let blanks = || io::Cursor::new(end.repeat(3 * WAITING_BYTES / end.len()));
            let record = || io::Cursor::new(record);
            let input = blanks().chain(record()).chain(blanks()).chain(record()).chain(blanks());
            let (_, records, number) = take_from(format, input.chain(record()).chain(blanks())).unwrap();
            assert_eq!(number, 3 - u64::from(format == "csv"), "{format}");
            // Blank lines that arrive together with a record may be kept.
            assert!(records.len() <= 3 * (WAITING_BYTES + CHUNK), "{format}: {} bytes", records.len());
            assert_eq!(records.split_ascii_whitespace().count() as u64, number);
        }
    }

    #[test]
    fn unreadable_input_is_refused_before_the_journal() {
        let check = |input: &str, parts: &[&str]| {
            let error = io_error(Path::new(STANDARD_INPUT), take("csv", input.as_bytes()).unwrap_err());
            parts.iter().for_each(|part| assert!(error.to_string().contains(part), "{error}"));
        };
        check("y\n1\n", &["<standard input>:1", "\"x\""]);
        check(&format!("x\n1\n\"{}", "2\n".repeat(RECORD_LIMIT)), &["<standard input>:3", "longer than"]);
        check(&"x".repeat(2 * RECORD_LIMIT), &["<standard input>:1", "longer than"]);
        check(&format!("x\n1\n{}", "2,".repeat(RECORD_LIMIT)), &["<standard input>:3", "longer than"]);
        for line in [" ".repeat(2 * RECORD_LIMIT), "\n\n".to_owned() + &"\t".repeat(RECORD_LIMIT + 1)] {
            let refused = take("ndjson", format!("{{}}\n{line}").as_bytes()).unwrap_err();
            assert!(refused.to_string().contains("longer than"), "{refused}");
        }
    }

    #[test]
    fn a_record_counts_as_soon_as_it_is_complete() {
        let (_directory, ingest) = journal();
        let (sender, parts) = mpsc::channel();
        let mut intake = start("csv", PartReader(parts), &ingest);
        assert_eq!(ingest.acknowledged(None), Some(0));
        for (part, expected) in [("x\n1", None), ("0\n2\n", Some(2)), ("3", None), ("4\r\n", Some(3))] {
            sender.send(part.as_bytes().to_vec()).unwrap();
            if expected.is_some() {
                let before = expected.map(|number| if number == 2 { 0 } else { 2 });
                assert_eq!(ingest.acknowledged(before), expected);
            }
        }
        // A listener first receives the number from which its sender was to begin.
        let (sender, numbers) = mpsc::channel();
        intake.report_to(Box::new(move |number| sender.send(number).unwrap())).unwrap();
        assert_eq!([(); 2].map(|()| numbers.recv().unwrap()), [0, 3]);
        // The source stays silent and does not end.
        drop(intake);
        assert_eq!(ingest.acknowledged(Some(3)), None);
    }
}
