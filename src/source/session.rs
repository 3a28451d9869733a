//! A session of the ingest journal as it is written: bytes in, whole records on disk.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zeroize::Zeroizing;

use super::csv::{CsvRows, header_row};
use super::error::SourceError;
use super::files::Stream;
use super::framing::Framing;
use super::intake::{CHUNK, WAITING_BYTES};
use super::roles::Roles;
use super::row::RECORD_LIMIT;
use crate::pipeline::{Format, Pipeline, Source};
use crate::state::Ingest;

/// The session that is being written.
pub(super) struct Session {
    ingest: Arc<Ingest>,
    format: Format,
    framing: Framing,
    wanted: Vec<String>,
    /// The header that the pipeline gives to rows that come without one.
    given: Option<Vec<u8>>,
    /// The header of the session that has begun.
    current: Option<Vec<u8>>,
    /// Whether what comes now are records, and the header, if there is one, has come.
    headed: bool,
    /// Bytes that have come and are not in the journal: of a header that is not whole, or of a record. The framing has
    /// seen the first `seen` of them.
    bytes: Zeroizing<Vec<u8>>,
    seen: usize,
    /// Records that a disconnect has cut.
    torn: Arc<AtomicU64>,
    /// The source, for messages.
    name: PathBuf,
}

impl Session {
    pub(super) fn new(ingest: Arc<Ingest>, pipeline: &Pipeline, source: &Source, name: PathBuf) -> Self {
        let format = source.format;
        Session {
            ingest,
            format,
            framing: Framing::new(format),
            wanted: Roles::new(pipeline, source).wanted,
            given: source.header.as_deref().map(header_row),
            current: None,
            headed: false,
            // At full size from the start: a vector that grows leaves copies behind.
            bytes: Zeroizing::new(Vec::with_capacity(WAITING_BYTES + CHUNK + RECORD_LIMIT)),
            seen: 0,
            torn: Arc::default(),
            name,
        }
    }

    pub(super) fn name(&self) -> &Path {
        &self.name
    }

    /// The number of records that a disconnect has cut.
    pub(super) fn torn(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.torn)
    }

    /// Takes in what has come; `ended` if nothing more will. What is whole is on disk when this returns.
    pub(super) fn take(&mut self, batch: &[u8], ended: bool) -> Result<(), SourceError> {
        if self.headed {
            return self.take_records(batch, ended);
        }
        self.bytes.extend_from_slice(batch);
        if !self.begin(ended)? {
            return Ok(());
        }
        let records = Zeroizing::new(self.bytes.to_vec());
        self.bytes.clear();
        self.take_records(&records, ended)
    }

    /// Takes in what has come behind the header, and behind the beginning of a record.
    fn take_records(&mut self, batch: &[u8], ended: bool) -> Result<(), SourceError> {
        let before = self.framing.records;
        let mut whole = self.framing.last_end(batch);
        let mut ends = whole > 0;
        if ended && !self.framing.is_too_long() {
            self.framing.end();
            (whole, ends) = (batch.len(), !(batch.is_empty() && self.bytes.is_empty()));
        }
        if ends {
            self.ingest.append([&self.bytes, &batch[..whole]], self.framing.records - before)?;
            self.ingest.sync()?;
            self.bytes.clear();
        }
        self.bytes.extend_from_slice(&batch[whole..]);
        self.seen = self.bytes.len();
        self.check_length()
    }

    /// The connection has ended: what is not a whole record is dropped, and another header may come.
    pub(super) fn disconnect(&mut self) {
        let cut = self.headed && !self.framing.is_between();
        self.torn.fetch_add(u64::from(cut), Ordering::Relaxed);
        self.framing = Framing::new(self.format);
        self.bytes.clear();
        (self.seen, self.headed) = (0, false);
    }

    /// Begins the session once its header is whole, unless it is the one that has begun already; whether what comes now
    /// are records.
    fn begin(&mut self, ended: bool) -> Result<bool, SourceError> {
        let in_stream = self.format == Format::Csv && self.given.is_none();
        let mut header = 0;
        if in_stream {
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
        } else if self.bytes.is_empty() {
            return Ok(false);
        }
        let named = self.given.clone().unwrap_or_else(|| self.bytes[..header].to_vec());
        if self.current.as_ref() != Some(&named) {
            if self.format == Format::Csv {
                // A header that lacks a column is found out before anything of its session counts.
                let stream = Stream::new(io::Cursor::new(named.clone()), 0);
                CsvRows::open(stream, &self.name, &self.wanted)?;
            }
            self.ingest.begin(&named)?;
            self.current = Some(named);
        }
        self.bytes.drain(..header);
        (self.headed, self.seen) = (true, 0);
        self.framing.end();
        Ok(true)
    }

    /// A record that is too long will never be whole.
    fn check_length(&self) -> Result<(), SourceError> {
        if !self.framing.is_too_long() {
            return Ok(());
        }
        let line = self.framing.record_line();
        Err(SourceError::RecordTooLong { path: self.name.clone(), line, limit: RECORD_LIMIT })
    }
}
