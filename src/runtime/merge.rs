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
use std::time::Instant;

use crossbeam::channel::{Select, TryRecvError};
use tracing::debug;

use super::feed::{ReadOutcome, RecordDistributor, TIMEOUT};
use super::ingest::SourceReaders;
use super::late::LateRule;
use super::progress::MergeProgress;
use super::readers::{PartitionName, PartitionReaders};
use super::threads::{ReaderEvent, ReaderThread};
use crate::check::SourceRows;
use crate::control::Control;
use crate::pipeline::{Pipeline, Source};
use crate::source::{RowCounters, RowSurvey, SourceEvent, SourceReader};

/// State of merging.
pub(super) struct Merge {
    pipeline: Pipeline,
    /// The sources, without their readers.
    sources: Vec<SourceReaders>,
    clocks: MergeProgress,
    compares_all: bool,
    late: LateRule,
    horizon: u64,
    /// Whether a source may never send another row.
    is_endless: bool,
    /// Whether the next row of a source may take long to arrive.
    is_live: bool,
    control: Control,
    /// Late records of each reader while it was not waited for.
    late_records: Vec<RowCounters>,
    /// The processes that read some of the partitions.
    elsewhere: Option<PartitionReaders>,
}

impl Merge {
    /// Merges the sources of a pipeline after the last committed epoch. `compares_all` compares the
    /// values of all rows with their bounds.
    pub(super) fn new(pipeline: &Pipeline, committed: u64, compares_all: bool, control: &Control) -> Self {
        Merge {
            pipeline: pipeline.clone(),
            sources: Vec::new(),
            clocks: MergeProgress::new(committed),
            compares_all,
            late: LateRule::new(pipeline),
            horizon: pipeline.epochs.schedule.horizon(),
            is_endless: pipeline.sources.iter().any(Source::is_endless),
            is_live: false,
            control: control.clone(),
            late_records: Vec::new(),
            elsewhere: None,
        }
    }

    /// Sets the processes that read some of the partitions.
    pub(super) fn among(self, elsewhere: Option<PartitionReaders>) -> Self {
        Merge { elsewhere, ..self }
    }

    /// Reads all sources to their ends and deals their events.
    pub(super) fn deal(
        mut self,
        mut sources: Vec<SourceReaders>,
        mut dealer: RecordDistributor,
    ) -> ReadOutcome {
        let mut readers = Vec::new();
        let opened: Vec<_> = sources.iter_mut().map(|source| std::mem::take(&mut source.readers)).collect();
        self.sources = sources;
        for (number, opened) in opened.into_iter().enumerate() {
            self.begin(number, opened, &mut readers, &dealer);
        }
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
        readers: &mut Vec<ReaderThread>,
        dealer: &RecordDistributor,
    ) {
        for reader in more {
            let mut reader = if self.compares_all { reader.comparing_all() } else { reader };
            self.is_live |= reader.is_live();
            let partition = self.clocks.readers_of(source).count() as u32;
            self.clocks.add(&self.pipeline, source).begin(&mut reader);
            self.late_records.push(RowCounters::default());
            let elsewhere = self.elsewhere(source, partition, (readers.len(), &mut reader));
            readers.push(elsewhere.unwrap_or_else(|| ReaderThread::start(reader, dealer.fault())));
        }
    }

    /// Hands a reader to another process, if it is its turn and it can read.
    fn elsewhere(
        &self,
        source: usize,
        partition: u32,
        (number, reader): (usize, &mut SourceReader),
    ) -> Option<ReaderThread> {
        let elsewhere = self.elsewhere.as_ref()?;
        let can_read = self.pipeline.sources[source].input.source().opens_anywhere();
        let found = self.sources[source].partitions.as_ref().map_or(0, |partitions| partitions.number());
        let name = PartitionName { source, partition, found };
        let read = (reader, self.sources[source].list.as_ref());
        if can_read { elsewhere.begin(number, name, read, self.clocks.closed) } else { None }
    }

    /// Begins to read partitions that were found since. Returns whether to continue.
    fn grow(&mut self, readers: &mut Vec<ReaderThread>, dealer: &mut RecordDistributor) -> bool {
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
    fn counters(&self, source: usize, readers: &[ReaderThread]) -> RowCounters {
        let mut counters = RowCounters::default();
        for number in self.clocks.readers_of(source) {
            counters += readers[number].counters;
            counters += self.late_records[number];
        }
        counters
    }

    /// Returns what the rows of a source hold.
    fn survey<'s>(&self, source: usize, readers: &'s [ReaderThread]) -> Cow<'s, RowSurvey> {
        let mut own = self.clocks.readers_of(source).map(|number| &*readers[number].survey);
        let mut survey = own.next().map_or_else(Cow::default, Cow::Borrowed);
        own.for_each(|more| survey.to_mut().merge(more));
        survey
    }

    fn sum_counters(&self, readers: &[ReaderThread]) -> RowCounters {
        let mut sum = RowCounters::default();
        (0..self.sources.len()).for_each(|source| sum += self.counters(source, readers));
        sum
    }

    /// Deals one event, or finds an idle source. Returns whether to continue.
    fn step(&mut self, sources: &mut Vec<ReaderThread>, dealer: &mut RecordDistributor) -> bool {
        // Other processes don't know of a stop. Open epochs stay open.
        if self.elsewhere.is_some() && self.control.is_stopped() {
            return dealer.end();
        }
        if dealer.has_block() {
            let mut awaited = self.clocks.awaited(dealer.is_checking_first_rows());
            let waits = awaited.all(|number| sources[number].events.is_empty());
            if (waits || dealer.is_block_full()) && !dealer.send_block() {
                return false;
            }
        }
        let waited = self.wait(sources, dealer.is_checking_first_rows());
        let is_silent = waited.is_none() && self.is_endless;
        let continues = match waited {
            Some((number, event)) => self.take(number, event, sources, dealer),
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
        sources: &[ReaderThread],
        is_checking_first_rows: bool,
    ) -> Option<(usize, Option<ReaderEvent>)> {
        let awaited: Vec<usize> = self.clocks.awaited(is_checking_first_rows).collect();
        let mut select = Select::new();
        for &number in &awaited {
            select.recv(&sources[number].events);
        }
        let number = awaited[select.ready_timeout(TIMEOUT).ok()?];
        match sources[number].events.try_recv() {
            Ok(event) => Some((number, Some(event))),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some((number, None)),
        }
    }

    /// Deals an event of a source; `None` means that its reader is gone.
    fn take(
        &mut self,
        number: usize,
        event: Option<ReaderEvent>,
        sources: &mut [ReaderThread],
        dealer: &mut RecordDistributor,
    ) -> bool {
        let Some(ReaderEvent { event, next_row, counters, unjudged, survey, partitions }) = event else {
            dealer.fault().raise("the reader of a source has stopped without saying why");
            return false;
        };
        let closed = self.clocks.closed;
        let more_wait = !sources[number].events.is_empty();
        sources[number].elsewhere.iter().for_each(|reader| reader.taken(closed, more_wait));
        let clock = &mut self.clocks.readers[number];
        clock.next_row = next_row;
        self.sources[clock.source].partitions.iter().for_each(|found| found.note(partitions));
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
                let late = &mut self.late_records[number];
                self.late.apply(&mut batch.records, &mut batch.fingerprints, closed, late);
                if is_surveyed {
                    let survey = self.survey(source, sources);
                    dealer.survey(source, SourceRows::new(self.counters(source, sources), &survey));
                }
                dealer.update_counters(self.sum_counters(sources));
                match sources[number].elsewhere {
                    Some(_) => dealer.batch_elsewhere(source, &batch.records),
                    None => dealer.batch(source, batch),
                }
            }
            Ok(SourceEvent::Mark(mark)) => {
                clock.advance(mark, closed);
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
}
