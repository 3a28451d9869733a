//! Merges several sources: decides which clocks count, and which records are late.
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
//! Idleness depends on this machine's clock, which a later reader can't reproduce. So the number of
//! each source's next row is recorded with each epoch ([`ResumePoint::late_from`]). Among the rows
//! after the recorded position, those before that number have counted if their epoch is closed;
//! those from that number on are late. A run that resumes waits for each source until it has
//! reached that row again.
//!
//! A source whose clock is far ahead of w is paused, which bounds memory.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Select, Sender, TryRecvError, bounded};
use hushflow_mechanism::epochs::{LatePolicy, Schedule};
use hushflow_operators::Fault;
use tracing::debug;

use super::copies::retain;
use super::feed::{EPOCHS_AHEAD, PATIENCE, ReadOutcome, RecordDealer};
use super::preflight::{ClosedEpochs, LOOK_ROWS};
use crate::control::Control;
use crate::pipeline::{Pipeline, Source};
use crate::source::{
    EpochMark, RecordBatch, ResumePoint, RowCounters, RowSurvey, SourceError, SourceEvent, SourceReader,
};

/// Most events of a source that may wait.
const WAITING_EVENTS: usize = 4;

/// Message from the reader of a source.
struct SourceMessage {
    event: Result<SourceEvent, SourceError>,
    /// The number of the source's next row.
    next_row: u64,
    counters: RowCounters,
    /// Survey of its rows, after the first rows and at the end.
    survey: Option<Box<RowSurvey>>,
}

/// State of merging.
pub(super) struct Merge {
    clocks: MergeProgress,
    late: LatePolicy,
    horizon: u64,
    /// Whether a source may never send another row.
    is_endless: bool,
    control: Control,
    /// Late records of sources that were not waited for.
    counters: RowCounters,
}

/// Progress of each source and of all together.
pub(super) struct MergeProgress {
    pub(super) sources: Vec<SourceProgress>,
    /// Epochs up to this one are closed.
    pub(super) closed: u64,
}

/// Progress of a source.
pub(super) struct SourceProgress {
    name: String,
    /// Silence after which it is idle.
    patience: Option<Duration>,
    /// Its own clock has closed the epochs up to this one.
    pub(super) closed: u64,
    /// The last epoch that the marks after this one are known to close.
    due: u64,
    /// Marks of epochs still open; `resume` is the position of the last mark before them.
    marks: VecDeque<EpochMark>,
    resume: ResumePoint,
    /// Rows up to that mark.
    rows: u64,
    next_row: u64,
    /// Row that an earlier run had reached. The merge waits for the source up to there.
    recorded_row: u64,
    idle: bool,
    pub(super) ended: bool,
    /// Why it can't be read further. Its clock still counts.
    fault: Option<SourceError>,
}

impl SourceProgress {
    /// State before the first event, after the last committed epoch.
    fn new(name: &str, patience: Option<Duration>, committed: u64) -> Self {
        SourceProgress {
            name: name.into(),
            patience,
            closed: committed,
            due: committed,
            marks: VecDeque::new(),
            resume: ResumePoint::START,
            rows: 0,
            next_row: 0,
            recorded_row: 0,
            idle: false,
            ended: false,
            fault: None,
        }
    }

    fn is_active(&self) -> bool {
        !self.idle && !self.ended
    }

    /// Records that its own clock has closed more epochs, some of which may be closed already.
    pub(super) fn advance(&mut self, mark: EpochMark, closed: u64) {
        (self.closed, self.due) = (mark.epoch, mark.due);
        self.marks.push_back(mark);
        self.pass(closed);
    }

    fn pass(&mut self, epoch: u64) {
        while let Some(mark) = self.marks.front().filter(|mark| mark.epoch <= epoch) {
            (self.resume, self.rows) = (mark.resume, mark.rows);
            self.marks.pop_front();
        }
    }

    /// Returns the mark that closes `epoch`, if its own clock has reached it.
    fn closing(&self, epoch: u64) -> Option<&EpochMark> {
        self.marks.iter().find(|mark| mark.epoch >= epoch)
    }

    /// Returns where it resumes after `epoch`.
    fn resume_after(&self, epoch: u64) -> ResumePoint {
        let resume = self.closing(epoch).map_or(self.resume, |mark| mark.resume);
        ResumePoint { late_from: self.next_row, ..resume }
    }
}

impl MergeProgress {
    /// State before the first event, after the last committed epoch.
    pub(super) fn new(pipeline: &Pipeline, committed: u64) -> Self {
        let clock = |source: &Source| SourceProgress::new(&source.name, source.idle, committed);
        MergeProgress { sources: pipeline.sources.iter().map(clock).collect(), closed: committed }
    }

    /// Takes why the run must stop: a source can't be read further, and all epochs that its clock
    /// has closed are closed. The number of published epochs then depends on the rows alone. A
    /// silent source may never close them; `is_silent` stops the run all the same.
    fn take_fault(&mut self, is_silent: bool) -> Option<SourceError> {
        let is_over = |source: &&mut SourceProgress| is_silent || source.closed <= self.closed;
        let mut failed = self.sources.iter_mut().filter(|source| source.fault.is_some());
        failed.find(is_over)?.fault.take()
    }

    /// Returns the source to read next: of those that have not ended, the one whose clock is
    /// furthest behind.
    pub(super) fn slowest(&self) -> Option<usize> {
        let behind = |&source: &usize| self.sources[source].closed;
        (0..self.sources.len()).filter(|&source| !self.sources[source].ended).min_by_key(behind)
    }

    /// Returns the last epoch that may be closed now.
    fn due(&self) -> u64 {
        self.reach(|source| source.closed)
    }

    /// Returns the last epoch that may be closed if each source's own clock reaches `clock`.
    fn reach(&self, clock: impl Fn(&SourceProgress) -> u64) -> u64 {
        let active = self.sources.iter().filter(|source| source.is_active()).map(&clock);
        active.min().or_else(|| self.sources.iter().map(&clock).max()).unwrap_or(0)
    }

    /// Closes the next epochs with the same resume positions.
    pub(super) fn close_next(&mut self) -> Option<ClosedEpochs> {
        let due = self.due();
        if due <= self.closed {
            return None;
        }
        let marks = self.sources.iter().filter_map(|source| source.marks.front());
        let epoch = marks.map(|mark| mark.epoch).fold(due, u64::min);
        let resumes = self.sources.iter().map(|source| source.resume_after(epoch)).collect();
        let rows = |source: &SourceProgress| source.closing(epoch).map_or(source.rows, |mark| mark.rows);
        let rows = self.sources.iter().map(rows).sum();
        let due = self.reach(|source| source.due);
        self.closed = epoch;
        self.sources.iter_mut().for_each(|source| source.pass(epoch));
        Some(ClosedEpochs { epoch, due, rows, resumes })
    }
}

impl Merge {
    /// Merges the sources of a pipeline after the last committed epoch.
    pub(super) fn new(pipeline: &Pipeline, committed: u64, control: &Control) -> Self {
        let late = match &pipeline.epochs.schedule {
            Schedule::ByTime(by) => by.late,
            Schedule::ByCount(_) => LatePolicy::Fold,
        };
        Merge {
            clocks: MergeProgress::new(pipeline, committed),
            late,
            horizon: pipeline.epochs.schedule.horizon(),
            is_endless: pipeline.sources.iter().any(Source::goes_on),
            control: control.clone(),
            counters: RowCounters::default(),
        }
    }

    /// Reads all sources to their ends and deals their events.
    pub(super) fn deal(mut self, readers: Vec<SourceReader>, mut dealer: RecordDealer) -> ReadOutcome {
        for (clock, reader) in self.clocks.sources.iter_mut().zip(&readers) {
            (clock.resume, clock.next_row) = (reader.here(), reader.next_row());
            clock.recorded_row = reader.late_from();
        }
        let mut sources: Vec<SourceThread> =
            readers.into_iter().map(|reader| SourceThread::of(reader, dealer.fault())).collect();
        while self.step(&mut sources, &mut dealer) {}
        dealer.outcome(self.sum_counters(&sources), &sum_surveys(&sources))
    }

    fn sum_counters(&self, sources: &[SourceThread]) -> RowCounters {
        let mut counters = self.counters;
        sources.iter().for_each(|source| counters += source.counters);
        counters
    }

    /// Deals one event, or finds an idle source; returns whether to go on.
    fn step(&mut self, sources: &mut [SourceThread], dealer: &mut RecordDealer) -> bool {
        let waited = self.wait(sources);
        let is_silent = waited.is_none() && self.is_endless;
        let goes_on = match waited {
            Some((number, messages)) => self.take(number, messages, sources, dealer),
            None => !dealer.fault().is_raised() && (!dealer.holds_epochs() || dealer.end_look()),
        };
        if !goes_on {
            return false;
        }
        for (source, clock) in sources.iter().zip(&mut self.clocks.sources) {
            let silent = clock.patience.is_some_and(|patience| source.is_silent(patience));
            let idle = silent && clock.next_row >= clock.recorded_row && clock.fault.is_none();
            if std::mem::replace(&mut clock.idle, idle) != idle {
                debug!(source = clock.name, idle, "whether its clock counts has changed");
            }
        }
        while let Some(closed) = self.clocks.close_next() {
            if !dealer.close(closed, &|| sum_surveys(sources)) {
                return false;
            }
        }
        if let Some(fault) = self.clocks.take_fault(is_silent) {
            return dealer.end_look() && dealer.refuse(fault);
        }
        if self.clocks.closed >= self.horizon || self.clocks.sources.iter().all(|source| source.ended) {
            return dealer.end();
        }
        true
    }

    /// Waits up to [`PATIENCE`] for the next event of a source that is not too far ahead.
    fn wait(&self, sources: &[SourceThread]) -> Option<(usize, Option<SourceMessage>)> {
        let reach = self.clocks.closed.saturating_add(EPOCHS_AHEAD);
        let is_awaited =
            |clock: &SourceProgress| !clock.ended && clock.fault.is_none() && clock.closed <= reach;
        let awaited: Vec<usize> =
            (0..sources.len()).filter(|&number| is_awaited(&self.clocks.sources[number])).collect();
        let mut select = Select::new();
        for &number in &awaited {
            select.recv(&sources[number].messages);
        }
        let number = awaited[select.ready_timeout(PATIENCE).ok()?];
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
        dealer: &mut RecordDealer,
    ) -> bool {
        let Some(SourceMessage { event, next_row, counters, survey }) = messages else {
            dealer.fault().raise("the reader of a source has stopped without saying why");
            return false;
        };
        let clock = &mut self.clocks.sources[number];
        clock.next_row = next_row;
        (sources[number].last, sources[number].counters) = (Instant::now(), counters);
        let is_surveyed = survey.is_some();
        sources[number].survey = survey.unwrap_or(std::mem::take(&mut sources[number].survey));
        match event {
            Err(fault) => {
                clock.fault = Some(fault);
                true
            }
            Ok(SourceEvent::Batch(mut batch)) => {
                self.judge(&mut batch);
                let survey = is_surveyed.then(|| sum_surveys(sources));
                dealer.update_counters(self.sum_counters(sources), survey.as_ref());
                dealer.batch(batch)
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
    fn judge(&mut self, batch: &mut RecordBatch) {
        let (closed, open) = (self.clocks.closed, self.clocks.closed + 1);
        let late = batch.records.epochs.iter().filter(|&&epoch| epoch <= closed).count() as u64;
        match self.late {
            _ if late == 0 => {}
            LatePolicy::Fold if open <= self.horizon => {
                batch.records.epochs.iter_mut().for_each(|epoch| *epoch = open.max(*epoch));
                self.counters.folded += late;
            }
            _ => {
                let kept: Vec<bool> = batch.records.epochs.iter().map(|&epoch| epoch > closed).collect();
                let mut kept_too = kept.iter();
                batch.fingerprints.retain(|_| kept_too.next() == Some(&true));
                retain(&mut batch.records, &kept);
                self.counters.late += late;
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

/// Returns what the rows of all sources hold.
fn sum_surveys(sources: &[SourceThread]) -> RowSurvey {
    let mut sum = RowSurvey::default();
    sources.iter().for_each(|source| sum.merge(&source.survey));
    sum
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

    fn is_silent(&self, patience: Duration) -> bool {
        self.messages.is_empty() && self.last.elapsed() >= patience
    }
}

/// Sends all events of a source, until it ends, fails or the receiver is gone.
fn forward_events(mut reader: SourceReader, sender: &Sender<SourceMessage>) {
    loop {
        let event = reader.next_event();
        let ends = matches!(event, Err(_) | Ok(SourceEvent::End));
        let counters = *reader.counters();
        let is_first = counters.rows <= 2 * LOOK_ROWS;
        let survey = (is_first || ends).then(|| Box::new(reader.survey().clone()));
        let messages = SourceMessage { event, next_row: reader.next_row(), counters, survey };
        if sender.send(messages).is_err() || ends {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Position;

    fn clocks(number: usize) -> MergeProgress {
        let clock = |number: usize| SourceProgress::new(&number.to_string(), None, 0);
        MergeProgress { sources: (0..number).map(clock).collect(), closed: 0 }
    }

    impl MergeProgress {
        /// The source's own clock closes epochs up to `epoch`, at row `row`, when the source is at
        /// `next_row`.
        fn mark(&mut self, source: usize, epoch: u64, row: u64, next_row: u64) {
            let position = Position::new(0, row);
            let resume = ResumePoint { position, ..ResumePoint::START };
            self.sources[source].next_row = next_row;
            self.sources[source]
                .advance(EpochMark { epoch, due: epoch, resume, rows: 100 * row }, self.closed);
        }

        /// Returns what can be closed now: the epoch, and the offset and row of each position.
        fn close_all(&mut self) -> Vec<(u64, Vec<(u64, u64)>)> {
            std::iter::from_fn(|| self.close_next())
                .map(|ClosedEpochs { epoch, resumes, .. }| {
                    let position = |resume: &ResumePoint| (resume.position.offset, resume.late_from);
                    (epoch, resumes.iter().map(position).collect())
                })
                .collect()
        }
    }

    #[test]
    fn the_slowest_active_clock_counts() {
        let mut clocks = clocks(2);
        clocks.mark(0, 3, 30, 40);
        assert!(clocks.close_all().is_empty());
        clocks.mark(1, 1, 10, 15);
        assert_eq!(clocks.close_all(), [(1, vec![(30, 40), (10, 15)])]);
        clocks.mark(1, 2, 20, 25);
        clocks.mark(1, 5, 50, 60);
        let both = [(2, vec![(30, 40), (20, 60)]), (3, vec![(30, 40), (50, 60)])];
        assert_eq!(clocks.close_all(), both);
    }

    #[test]
    fn idle_and_ended_sources_do_not_delay_the_clock() {
        let mut clocks = clocks(2);
        clocks.mark(0, 4, 40, 41);
        clocks.mark(1, 1, 10, 15);
        clocks.sources[1].idle = true;
        // After epoch 1 its last known position is used, and its rows from 15 on are late.
        assert_eq!(clocks.close_all(), [(1, vec![(40, 41), (10, 15)]), (4, vec![(40, 41), (10, 15)])]);
        clocks.sources[1].idle = false;
        clocks.mark(0, 9, 90, 91);
        clocks.mark(1, 3, 30, 35);
        assert!(clocks.due() == 3 && clocks.close_all().is_empty());
        clocks.mark(1, 6, 60, 65);
        assert_eq!(clocks.close_all(), [(6, vec![(90, 91), (60, 65)])]);
        clocks.sources[1].ended = true;
        assert_eq!(clocks.close_all(), [(9, vec![(90, 91), (60, 65)])]);
        clocks.sources[0].ended = true;
        assert!(clocks.close_all().is_empty());
    }

    #[test]
    fn without_active_sources_the_fastest_clock_counts() {
        let mut clocks = clocks(2);
        clocks.mark(0, 2, 20, 21);
        clocks.mark(1, 7, 70, 71);
        clocks.sources.iter_mut().for_each(|source| source.ended = true);
        assert_eq!(clocks.close_all(), [(2, vec![(20, 21), (70, 71)]), (7, vec![(20, 21), (70, 71)])]);
    }

    /// If positions are private, so is the number of marks. The row counts do not depend on it.
    #[test]
    fn rows_do_not_depend_on_how_marks_are_split() {
        let rows_at = |split: bool| {
            let mut clocks = clocks(2);
            for (epoch, row) in [(3, 30), (9, 90)] {
                if split {
                    clocks.mark(0, epoch - 1, row, row);
                }
                clocks.mark(0, epoch, row, row);
            }
            let mut rows = Vec::new();
            for epoch in 1..=9 {
                clocks.mark(1, epoch, 1, 1);
                while let Some(ClosedEpochs { epoch, rows: sum, .. }) = clocks.close_next() {
                    rows.push((epoch, sum));
                }
            }
            rows
        };
        assert_eq!(rows_at(false), rows_at(true));
        let expected = (1..=9).map(|epoch| (epoch, 100 + if epoch <= 3 { 3000 } else { 9000 }));
        assert!(rows_at(false).into_iter().eq(expected));
    }
}
