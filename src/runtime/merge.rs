//! Merges several sources, and the partitions of a source: decides which clocks count, and which
//! records are late.
//!
//! Each source is read on a thread of its own, with its own clock c, which closes its epochs up to
//! e(c). Let A be the **active** sources, neither ended nor idle. Epochs are closed up to
//!
//! ```text
//! w = min { e(c) : A }        if A is empty: w = max { e(c) : all }        and w never falls
//! ```
//!
//! The epoch of a record is decided by the clock of its own source. So other sources move no record
//! of an active one, and a reader that resumes assigns its rows as before. Only a source that was
//! not waited for can deliver records of epochs up to w. They are late: they join epoch w + 1 or
//! are dropped, as the pipeline says.
//!
//! **Partitions** are read like sources: e(c) of a source with partitions is the least of those
//! that are active, or without one the largest of all. They have an idle time of their own. One
//! that is found during the run begins after the epochs that are closed: its rows of these
//! are late. It is found before any epoch closes by a row of a connection that has seen it.
//!
//! Idleness depends on this machine's clock, which a later reader can't reproduce. So the number of
//! each source's next row is recorded with each epoch ([`ResumePoint::late_from`]). Among the rows
//! after the recorded position, those before that number have counted if their epoch is closed;
//! those from that number on are late. A run that resumes waits for each source until it has
//! reached that row again.
//!
//! A source whose clock is far ahead of w is paused, which bounds memory. While the first rows
//! are [checked](super::preflight), so is one that has delivered its share of them.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Select, Sender, TryRecvError, bounded};
use hushflow_mechanism::epochs::{LatePolicy, Schedule};
use hushflow_operators::Fault;
use tracing::debug;

use super::duplicates::retain;
use super::feed::{ReadOutcome, RecordDistributor, TIMEOUT};
use super::ingest::SourceReaders;
use super::progress::MergeProgress;
use crate::check::{FIRST_ROWS, SourceRows};
use crate::control::Control;
use crate::pipeline::{Pipeline, Source};
use crate::source::{RecordBatch, RowCounters, RowSurvey, SourceError, SourceEvent, SourceReader};

/// Maximum number of waiting events of a source.
const WAITING_EVENTS: usize = 4;

/// Message from the reader of a source.
struct SourceMessage {
    event: Result<SourceEvent, SourceError>,
    /// The number of the source's next row.
    next_row: u64,
    counters: RowCounters,
    /// The counters without rows that an earlier run has judged.
    unjudged: RowCounters,
    /// Survey of its rows, after the first rows and at the end.
    survey: Option<Box<RowSurvey>>,
}

/// State of merging.
pub(super) struct Merge {
    pipeline: Pipeline,
    /// The sources, without their readers.
    sources: Vec<SourceReaders>,
    clocks: MergeProgress,
    compares_all: bool,
    late: LatePolicy,
    horizon: u64,
    /// Whether a source may never send another row.
    is_endless: bool,
    /// Whether the next row of a source may take long to arrive.
    is_live: bool,
    control: Control,
    /// Late records of each reader while it was not waited for.
    late_records: Vec<RowCounters>,
}

impl Merge {
    /// Merges the sources of a pipeline after the last committed epoch. `compares_all` compares the
    /// values of all rows with their bounds.
    pub(super) fn new(pipeline: &Pipeline, committed: u64, compares_all: bool, control: &Control) -> Self {
        let late = match &pipeline.epochs.schedule {
            Schedule::ByTime(by) => by.late,
            Schedule::ByCount(_) => LatePolicy::Fold,
        };
        Merge {
            pipeline: pipeline.clone(),
            sources: Vec::new(),
            clocks: MergeProgress::new(committed),
            compares_all,
            late,
            horizon: pipeline.epochs.schedule.horizon(),
            is_endless: pipeline.sources.iter().any(Source::is_endless),
            is_live: false,
            control: control.clone(),
            late_records: Vec::new(),
        }
    }

    /// Reads all sources to their ends and deals their events.
    pub(super) fn deal(
        mut self,
        mut sources: Vec<SourceReaders>,
        mut dealer: RecordDistributor,
    ) -> ReadOutcome {
        let mut readers = Vec::new();
        for (number, source) in sources.iter_mut().enumerate() {
            self.begin(number, std::mem::take(&mut source.readers), &mut readers, &dealer);
        }
        self.sources = sources;
        while self.step(&mut readers, &mut dealer) {}
        let surveys: Vec<_> = (0..self.sources.len()).map(|source| self.survey(source, &readers)).collect();
        let rows = surveys.iter().enumerate();
        let rows = rows.map(|(source, survey)| SourceRows::new(self.counters(source, &readers), survey));
        dealer.outcome(&rows.collect::<Vec<_>>(), self.sum_counters(&readers))
    }

    /// Begins to read with more readers of a source.
    fn begin(
        &mut self,
        source: usize,
        more: Vec<SourceReader>,
        readers: &mut Vec<SourceThread>,
        dealer: &RecordDistributor,
    ) {
        for reader in more {
            let mut reader = if self.compares_all { reader.comparing_all() } else { reader };
            self.is_live |= reader.is_live();
            self.clocks.add(&self.pipeline, source).begin(&mut reader);
            self.late_records.push(RowCounters::default());
            readers.push(SourceThread::of(reader, dealer.fault()));
        }
    }

    /// Begins to read partitions that were found since. Returns whether to continue.
    fn grow(&mut self, readers: &mut Vec<SourceThread>, dealer: &mut RecordDistributor) -> bool {
        for source in 0..self.sources.len() {
            let first = self.clocks.readers_of(source).count() as u32;
            let read = (&self.pipeline, source);
            let found = self.sources[source].open_from(read, &self.control, (first, &[]), self.clocks.closed);
            match found {
                Ok(found) => self.begin(source, found, readers, dealer),
                Err(fault) => return dealer.refuse(fault),
            }
        }
        true
    }

    /// Returns the outcome of the rows of a source.
    fn counters(&self, source: usize, readers: &[SourceThread]) -> RowCounters {
        let mut counters = RowCounters::default();
        for number in self.clocks.readers_of(source) {
            counters += readers[number].counters;
            counters += self.late_records[number];
        }
        counters
    }

    /// Returns what the rows of a source hold.
    fn survey<'s>(&self, source: usize, readers: &'s [SourceThread]) -> Cow<'s, RowSurvey> {
        let mut own = self.clocks.readers_of(source).map(|number| &*readers[number].survey);
        let mut survey = own.next().map_or_else(Cow::default, Cow::Borrowed);
        own.for_each(|more| survey.to_mut().merge(more));
        survey
    }

    fn sum_counters(&self, readers: &[SourceThread]) -> RowCounters {
        let mut sum = RowCounters::default();
        (0..self.sources.len()).for_each(|source| sum += self.counters(source, readers));
        sum
    }

    /// Deals one event, or finds an idle source. Returns whether to continue.
    fn step(&mut self, sources: &mut Vec<SourceThread>, dealer: &mut RecordDistributor) -> bool {
        if dealer.has_block() {
            let mut awaited = self.clocks.awaited(dealer.is_checking_first_rows());
            let waits = awaited.all(|number| sources[number].messages.is_empty());
            if (waits || dealer.is_block_full()) && !dealer.send_block() {
                return false;
            }
        }
        let waited = self.wait(sources, dealer.is_checking_first_rows());
        let is_silent = waited.is_none() && self.is_endless;
        let continues = match waited {
            Some((number, messages)) => self.take(number, messages, sources, dealer),
            None if dealer.fault().is_raised() => false,
            None => !(self.is_live && dealer.holds_epochs()) || dealer.end_first_check(),
        };
        if !continues || !self.grow(sources, dealer) {
            return false;
        }
        for (source, clock) in sources.iter().zip(&mut self.clocks.readers) {
            let is_due = clock.next_row >= clock.recorded_row && clock.fault.is_none();
            let idle = clock.limits.idleness(|timeout| is_due && source.is_silent(timeout));
            if std::mem::replace(&mut clock.idle, idle) != idle {
                debug!(source = clock.name, ?idle, "whether its clock counts has changed");
            }
        }
        while let Some(mut closed) = self.clocks.close_next() {
            for (clock, &late) in self.clocks.readers.iter().zip(&self.late_records) {
                closed.counters[clock.source] += late;
            }
            let surveys: Vec<_> =
                (0..self.sources.len()).map(|source| self.survey(source, sources)).collect();
            if !dealer.close(closed, &surveys.iter().map(Cow::as_ref).collect::<Vec<_>>()) {
                return false;
            }
        }
        if dealer.is_checking_first_rows()
            && self.clocks.awaited(true).next().is_none()
            && !dealer.end_first_check()
        {
            return false;
        }
        if (is_silent || !dealer.is_checking_first_rows())
            && let Some(fault) = self.clocks.take_fault(is_silent)
        {
            return dealer.end_first_check() && dealer.refuse(fault);
        }
        let is_over = self.clocks.closed >= self.horizon && !dealer.is_checking_first_rows();
        if is_over || self.clocks.readers.iter().all(|source| source.ended) {
            return dealer.end();
        }
        true
    }

    /// Waits up to [`TIMEOUT`] for the next event of an awaited source.
    fn wait(
        &self,
        sources: &[SourceThread],
        is_checking_first_rows: bool,
    ) -> Option<(usize, Option<SourceMessage>)> {
        let awaited: Vec<usize> = self.clocks.awaited(is_checking_first_rows).collect();
        let mut select = Select::new();
        for &number in &awaited {
            select.recv(&sources[number].messages);
        }
        let number = awaited[select.ready_timeout(TIMEOUT).ok()?];
        match sources[number].messages.try_recv() {
            Ok(messages) => Some((number, Some(messages))),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some((number, None)),
        }
    }

    /// Deals a message of a source; `None` means that its reader is gone.
    fn take(
        &mut self,
        number: usize,
        messages: Option<SourceMessage>,
        sources: &mut [SourceThread],
        dealer: &mut RecordDistributor,
    ) -> bool {
        let Some(SourceMessage { event, next_row, counters, unjudged, survey }) = messages else {
            dealer.fault().raise("the reader of a source has stopped without saying why");
            return false;
        };
        let clock = &mut self.clocks.readers[number];
        clock.next_row = next_row;
        clock.count(unjudged);
        (sources[number].last, sources[number].counters) = (Instant::now(), counters);
        let is_surveyed = survey.is_some();
        sources[number].survey = survey.unwrap_or(std::mem::take(&mut sources[number].survey));
        match event {
            Err(fault) => {
                clock.fault = Some(fault);
                true
            }
            Ok(SourceEvent::Batch(mut batch)) => {
                let source = clock.source;
                self.judge(&mut batch, number);
                if is_surveyed {
                    let survey = self.survey(source, sources);
                    dealer.survey(source, SourceRows::new(self.counters(source, sources), &survey));
                }
                dealer.update_counters(self.sum_counters(sources));
                dealer.batch(source, batch)
            }
            Ok(SourceEvent::Mark(mark)) => {
                clock.advance(mark, self.clocks.closed);
                true
            }
            // After a stop, open epochs stay open.
            Ok(SourceEvent::End) if self.control.is_stopped() => dealer.end(),
            Ok(SourceEvent::End) => {
                debug!(source = clock.name, "a source has ended");
                clock.ended = true;
                true
            }
        }
    }

    /// Moves records of closed epochs to the oldest open one, or drops them.
    fn judge(&mut self, batch: &mut RecordBatch, source: usize) {
        let (closed, open) = (self.clocks.closed, self.clocks.closed + 1);
        let late = batch.records.epochs.iter().filter(|&&epoch| epoch <= closed).count() as u64;
        match self.late {
            _ if late == 0 => {}
            LatePolicy::Fold if open <= self.horizon => {
                batch.records.epochs.iter_mut().for_each(|epoch| *epoch = open.max(*epoch));
                self.late_records[source].folded += late;
            }
            _ => {
                let kept: Vec<bool> = batch.records.epochs.iter().map(|&epoch| epoch > closed).collect();
                let mut kept_too = kept.iter();
                batch.fingerprints.retain(|_| kept_too.next() == Some(&true));
                retain(&mut batch.records, &kept);
                self.late_records[source].late += late;
            }
        }
    }
}

/// A source read on a thread of its own.
struct SourceThread {
    messages: Receiver<SourceMessage>,
    /// Time of its last message.
    last: Instant,
    counters: RowCounters,
    survey: Box<RowSurvey>,
}

impl SourceThread {
    fn of(reader: SourceReader, fault: &Fault) -> Self {
        let (sender, messages) = bounded(WAITING_EVENTS);
        // Never joined: it may wait for a source that stays silent.
        let started = std::thread::Builder::new().spawn(move || forward_events(reader, &sender));
        if let Err(error) = started {
            fault.raise(format_args!("no thread for a source: {error}"));
        }
        let (counters, survey) = (RowCounters::default(), Box::default());
        SourceThread { messages, last: Instant::now(), counters, survey }
    }

    fn is_silent(&self, timeout: Duration) -> bool {
        self.messages.is_empty() && self.last.elapsed() >= timeout
    }
}

/// Sends all events of a source, until it ends, fails or the receiver is gone.
fn forward_events(mut reader: SourceReader, sender: &Sender<SourceMessage>) {
    loop {
        let event = reader.next_event();
        let ends = matches!(event, Err(_) | Ok(SourceEvent::End));
        let counters = *reader.counters();
        let is_first = reader.unjudged().rows <= 2 * FIRST_ROWS;
        let survey = (is_first || ends).then(|| Box::new(reader.survey().clone()));
        let (next_row, unjudged) = (reader.next_row(), reader.unjudged());
        let messages = SourceMessage { event, next_row, counters, unjudged, survey };
        if sender.send(messages).is_err() || ends {
            return;
        }
    }
}
