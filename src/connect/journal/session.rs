//! Writes a session of the ingest journal: takes bytes and stores whole records on disk.
//!
//! Drops a byte order mark, line ends before a header, and blank lines between groups of records.
//! Memory holds at most one partial record or header, within the limit of a record, and the latest
//! batch.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zeroize::Zeroizing;

use super::intake::{CHUNK, WAITING_BYTES};
use crate::connect::SourceError;
use crate::format::ByteStream;
use crate::format::csv::CsvRows;
use crate::format::form::RowLayout;
use crate::format::framing::Framing;
use crate::format::row::RECORD_LIMIT;
use crate::format::{BYTE_ORDER_MARK, Format, FormatError};
use crate::state::{IngestJournal, WaitForRoom};

/// The session that is being written.
pub(crate) struct JournalSession {
    ingest: Arc<IngestJournal>,
    shape: RowLayout,
    framing: Framing,
    /// Header of the current session.
    current: Option<Vec<u8>>,
    /// Whether records follow: the header has arrived, or none is expected.
    headed: bool,
    /// Whether anything has arrived after a byte order mark.
    begun: bool,
    /// Bytes of a partial header or record, which are not in the journal yet. The framing has seen
    /// the first `seen` of them.
    bytes: Zeroizing<Vec<u8>>,
    seen: usize,
    /// Number of records cut by disconnects.
    cut_off: Arc<AtomicU64>,
    /// Name of the source for messages.
    name: PathBuf,
}

impl JournalSession {
    /// Prepares the next session of a journal, whose header must have the wanted columns. `name` is
    /// the source's name for messages.
    pub(crate) fn new(ingest: Arc<IngestJournal>, shape: RowLayout, name: PathBuf) -> Self {
        JournalSession {
            ingest,
            framing: Framing::new(shape.format),
            shape,
            current: None,
            headed: false,
            begun: false,
            // At full size from the start: a growing vector would leave copies behind.
            bytes: Zeroizing::new(Vec::with_capacity(WAITING_BYTES + CHUNK + RECORD_LIMIT)),
            seen: 0,
            cut_off: Arc::default(),
            name,
        }
    }

    pub(in crate::connect) fn ingest(&self) -> Arc<IngestJournal> {
        Arc::clone(&self.ingest)
    }

    pub(in crate::connect) fn shape(&self) -> &RowLayout {
        &self.shape
    }

    pub(super) fn name(&self) -> &Path {
        &self.name
    }

    /// The number of records cut by disconnects.
    pub(super) fn cut_off(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.cut_off)
    }

    /// Takes a batch; `ended` is true after the last one. Whole records are on disk when this
    /// returns, unless `wait` has ended because the run has ended.
    pub(super) fn take(
        &mut self,
        batch: &[u8],
        ended: bool,
        wait: WaitForRoom<'_>,
    ) -> Result<(), SourceError> {
        if self.headed {
            return self.take_records(batch, ended, wait);
        }
        self.bytes.extend_from_slice(batch);
        if !self.drop_mark(ended) || !self.begin(ended, wait)? {
            return Ok(());
        }
        let records = Zeroizing::new(self.bytes.to_vec());
        self.bytes.clear();
        self.take_records(&records, ended, wait)
    }

    /// Drops a byte order mark. Returns false while more bytes are needed to decide.
    fn drop_mark(&mut self, ended: bool) -> bool {
        if !self.begun {
            let cut = self.bytes.len() < BYTE_ORDER_MARK.len() && BYTE_ORDER_MARK.starts_with(&self.bytes);
            if cut && !ended {
                return false;
            }
            if self.bytes.starts_with(BYTE_ORDER_MARK) {
                self.bytes.drain(..BYTE_ORDER_MARK.len());
            }
            self.begun = true;
        }
        true
    }

    /// Takes bytes that follow the header or continue a record.
    fn take_records(&mut self, batch: &[u8], ended: bool, wait: WaitForRoom<'_>) -> Result<(), SourceError> {
        let before = self.framing.records;
        let mut whole = self.framing.last_end(batch);
        let ends = ended && !self.framing.is_too_long();
        if ends {
            self.framing.end();
            whole = batch.len();
        }
        let count = self.framing.records - before;
        if count > 0 {
            self.ingest.append([&self.bytes, &batch[..whole]], count, wait)?;
        }
        if whole > 0 || ends {
            // Bytes without a record were blank lines.
            self.bytes.clear();
        }
        self.bytes.extend_from_slice(&batch[whole..]);
        self.seen = self.bytes.len();
        self.check_length()
    }

    /// Ends a connection: a partial record is dropped, and another header may come.
    pub(super) fn disconnect(&mut self) {
        let cut = self.headed && !self.framing.is_between();
        self.cut_off.fetch_add(u64::from(cut), Ordering::Relaxed);
        self.framing = Framing::new(self.shape.format);
        self.bytes.clear();
        (self.seen, self.headed, self.begun) = (0, false, false);
    }

    /// Begins a session once the header is complete, unless the current session has the same
    /// header. Returns whether records follow.
    fn begin(&mut self, ended: bool, wait: WaitForRoom<'_>) -> Result<bool, SourceError> {
        let in_stream = matches!(self.shape.format, Format::Csv(_)) && self.shape.header.is_none();
        let mut header = 0;
        if in_stream {
            let end = self.framing.first_end(&self.bytes[self.seen..]);
            self.check_length()?;
            header = match end {
                Some(end) => self.seen + end,
                None if ended && !self.framing.is_between() => self.bytes.len(),
                None => {
                    if self.framing.is_between() {
                        // The bytes are only line ends.
                        self.bytes.clear();
                    }
                    self.seen = self.bytes.len();
                    return Ok(false);
                }
            };
        } else if self.bytes.is_empty() {
            return Ok(false);
        }
        let is_line_end = |byte: &&u8| matches!(byte, b'\r' | b'\n');
        let blank = self.bytes[..header].iter().take_while(is_line_end).count();
        let named = self.shape.header.clone().unwrap_or_else(|| self.bytes[blank..header].to_vec());
        if self.current.as_ref() != Some(&named) {
            if let Format::Csv(delimiter) = self.shape.format {
                // Refuse a header that lacks a column before any record of its session counts.
                let stream = ByteStream::new(io::Cursor::new(named.clone()), 0);
                CsvRows::open(stream, &self.name, delimiter, &self.shape.wanted)?;
            }
            if !self.ingest.begin(&named, wait)? {
                return Ok(false);
            }
            self.current = Some(named);
        }
        self.bytes.drain(..header);
        (self.headed, self.seen) = (true, 0);
        self.framing.end();
        Ok(true)
    }

    /// Refuses a record that is too long.
    fn check_length(&self) -> Result<(), SourceError> {
        if !self.framing.is_too_long() {
            return Ok(());
        }
        let line = self.framing.record_line();
        Err(FormatError::RecordTooLong { path: self.name.clone(), line, limit: RECORD_LIMIT }.into())
    }
}
