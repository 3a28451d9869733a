//! Progress of several sources, or of the partitions of a source: how far the clock of each reader
//! has come, which epochs all of them have closed, and the outcome of the rows up to there.

use std::collections::VecDeque;
use std::time::Duration;

use super::preflight::ClosedEpochs;
use super::resume::SourceResume;
use super::source::EPOCHS_AHEAD;
use crate::check::FIRST_ROWS;
use crate::pipeline::{Pipeline, Source};
use crate::source::{EpochMark, ResumePoint, RowCounters, SourceError, SourceReader};
use crate::state::Position;

/// Progress of each reader and of all together.
pub(super) struct MergeProgress {
    /// The readers of each source, in the order of its partitions.
    pub(super) readers: Vec<ReaderProgress>,
    /// Epochs up to this one are closed.
    pub(super) closed: u64,
}

/// Progress of the reader of a source or of a partition.
pub(super) struct ReaderProgress {
    /// Index of its source.
    pub(super) source: usize,
    pub(super) name: String,
    /// Silence after which it is idle.
    pub(super) limits: SilenceLimits,
    /// Its own clock has closed the epochs up to this one.
    pub(super) closed: u64,
    /// Marks of epochs still open, with the counters at each; `resume` is the position of the last
    /// mark before them.
    marks: VecDeque<(EpochMark, RowCounters)>,
    resume: ResumePoint,
    /// The public position of that mark, once this run has passed one.
    read: Option<Position>,
    /// Rows up to that mark.
    rows: u64,
    /// The counters at that mark, and those of all rows so far.
    counters: (RowCounters, RowCounters),
    /// Rows read by this run, from the first epoch on.
    rows_read: u64,
    pub(super) next_row: u64,
    /// Row that an earlier run had reached. The merge waits for the source up to there.
    pub(super) recorded_row: u64,
    pub(super) idle: Idleness,
    pub(super) ended: bool,
    /// Why it can't be read further. Its clock still counts.
    pub(super) fault: Option<SourceError>,
}

/// Limits of a reader's silence before it counts as idle.
#[derive(Clone, Copy, Default)]
pub(super) struct SilenceLimits {
    /// Limit if other partitions of its source are active.
    partitions: Option<Duration>,
    /// Limit if other sources are active.
    sources: Option<Duration>,
}

impl SilenceLimits {
    fn of(source: &Source) -> Self {
        let partitioning = source.input.source().partitioning();
        SilenceLimits { partitions: partitioning.map(|partitioning| partitioning.idle), sources: source.idle }
    }

    /// Returns for whom a reader is idle. `is_silent` tests whether it was silent for a time.
    pub(super) fn idleness(self, is_silent: impl Fn(Duration) -> bool) -> Idleness {
        let [partition, source] =
            [self.partitions, self.sources].map(|timeout| timeout.is_some_and(&is_silent));
        Idleness { partition, source }
    }
}

/// Which other readers continue without an idle reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Idleness {
    /// Other partitions of its source.
    partition: bool,
    /// Other sources.
    source: bool,
}

impl ReaderProgress {
    /// State before the first event, after the closed epochs.
    fn new(source: usize, name: &str, limits: SilenceLimits, closed: u64) -> Self {
        ReaderProgress {
            source,
            name: name.into(),
            limits,
            closed,
            marks: VecDeque::new(),
            resume: ResumePoint::START,
            read: None,
            rows: 0,
            counters: Default::default(),
            rows_read: 0,
            next_row: 0,
            recorded_row: 0,
            idle: Idleness::default(),
            ended: false,
            fault: None,
        }
    }

    /// Begins at the position of its reader.
    pub(super) fn begin(&mut self, reader: &mut SourceReader) {
        (self.resume, self.next_row) = (reader.here(), reader.next_row());
        self.recorded_row = reader.late_from();
    }

    /// Records the outcome of the rows up to the latest event, except those that an earlier run has
    /// judged.
    pub(super) fn count(&mut self, unjudged: RowCounters) {
        self.rows_read = unjudged.rows;
        self.counters.1 = unjudged;
    }

    /// Records that its own clock has closed more epochs, some of which may be closed already.
    pub(super) fn advance(&mut self, mark: EpochMark, closed: u64) {
        self.closed = mark.epoch;
        self.marks.push_back((mark, self.counters.1));
        self.pass(closed);
    }

    fn pass(&mut self, epoch: u64) {
        while let Some((mark, counters)) = self.marks.front().filter(|(mark, _)| mark.epoch <= epoch) {
            (self.resume, self.rows, self.counters.0) = (mark.resume, mark.rows, *counters);
            self.read = Some(mark.read);
            self.marks.pop_front();
        }
    }

    /// Returns the mark that closes `epoch`, if its own clock has reached it.
    fn closing(&self, epoch: u64) -> Option<&(EpochMark, RowCounters)> {
        self.marks.iter().find(|(mark, _)| mark.epoch >= epoch)
    }

    /// Returns where it resumes after `epoch`.
    fn resume_after(&self, epoch: u64) -> ResumePoint {
        let resume = self.closing(epoch).map_or(self.resume, |(mark, _)| mark.resume);
        ResumePoint { late_from: self.next_row, ..resume }
    }

    /// Returns the public position up to which it was read after `epoch`.
    fn read_after(&self, epoch: u64) -> Option<Position> {
        self.closing(epoch).map(|(mark, _)| mark.read).or(self.read)
    }

    /// Returns the outcome of its rows up to the one that closed `epoch`, or up to its end.
    fn counters_at(&self, epoch: u64) -> RowCounters {
        match self.closing(epoch) {
            Some((_, counters)) => *counters,
            None if self.ended => self.counters.1,
            None => self.counters.0,
        }
    }
}

impl MergeProgress {
    /// State without readers, after the last committed epoch.
    pub(super) fn new(committed: u64) -> Self {
        MergeProgress { readers: Vec::new(), closed: committed }
    }

    /// Adds a reader of a source, of its next partition if it has any.
    pub(super) fn add(&mut self, pipeline: &Pipeline, source: usize) -> &mut ReaderProgress {
        let Source { name, .. } = &pipeline.sources[source];
        let limits = SilenceLimits::of(&pipeline.sources[source]);
        let reader = ReaderProgress::new(source, name, limits, self.closed);
        self.readers.push(reader);
        let last = self.readers.len() - 1;
        &mut self.readers[last]
    }

    pub(super) fn readers_of(&self, source: usize) -> impl Iterator<Item = usize> {
        (0..self.readers.len()).filter(move |&reader| self.readers[reader].source == source)
    }

    /// Takes the reason why the run must stop, if a source can't be read further and all epochs
    /// that its own clock has closed are closed for all. The number of published epochs then
    /// depends on the rows alone. Another source may be silent and never let these epochs close;
    /// `is_silent` stops the run anyway.
    pub(super) fn take_fault(&mut self, is_silent: bool) -> Option<SourceError> {
        let is_over = |source: &&mut ReaderProgress| is_silent || source.closed <= self.closed;
        let mut failed = self.readers.iter_mut().filter(|source| source.fault.is_some());
        failed.find(is_over)?.fault.take()
    }

    /// Returns the readers to read on: those that are not too far ahead. A check of the first rows
    /// has seen enough when there is none.
    pub(super) fn awaited(&self, is_checking_first_rows: bool) -> impl Iterator<Item = usize> {
        let reach = self.closed.saturating_add(EPOCHS_AHEAD);
        let most_rows = if is_checking_first_rows { FIRST_ROWS } else { u64::MAX };
        (0..self.readers.len()).filter(move |&number| {
            let source = &self.readers[number];
            let continues = !source.ended && source.fault.is_none();
            continues && source.closed <= reach && source.rows_read < most_rows
        })
    }

    /// Returns the reader to read next: of the awaited ones, the one whose clock is furthest
    /// behind.
    pub(super) fn slowest(&self, is_checking_first_rows: bool) -> Option<usize> {
        self.awaited(is_checking_first_rows).min_by_key(|&source| self.readers[source].closed)
    }

    /// Returns the last epoch that may be closed now.
    fn due(&self) -> u64 {
        let sources = self.readers.iter().map(|reader| reader.source + 1).max().unwrap_or(0);
        let active = (0..sources).filter(|&source| self.waits_for(source)).map(|source| self.due_of(source));
        active.min().or_else(|| (0..sources).map(|source| self.due_of(source)).max()).unwrap_or(0)
    }

    /// Whether other sources wait for a source.
    fn waits_for(&self, source: usize) -> bool {
        let mut readers = self.readers_of(source).map(|reader| &self.readers[reader]);
        readers.any(|reader| !reader.ended && !reader.idle.source)
    }

    /// Returns the last epoch that may be closed by the clocks of a source.
    fn due_of(&self, source: usize) -> u64 {
        let readers = || self.readers_of(source).map(|reader| &self.readers[reader]);
        let active = readers().filter(|reader| !reader.ended && !reader.idle.partition);
        let closed = active.map(|reader| reader.closed).min();
        closed.or_else(|| readers().map(|reader| reader.closed).max()).unwrap_or(0)
    }

    /// Closes the next epochs with the same resume positions.
    pub(super) fn close_next(&mut self) -> Option<ClosedEpochs> {
        let due = self.due();
        if due <= self.closed {
            return None;
        }
        let marks = self.readers.iter().filter_map(|source| source.marks.front());
        let epoch = marks.map(|(mark, _)| mark.epoch).fold(due, u64::min);
        let sources = self.readers.iter().map(|reader| reader.source + 1).max().unwrap_or(0);
        let mut counters = vec![RowCounters::default(); sources];
        let mut resumes = Vec::with_capacity(self.readers.len());
        for reader in &self.readers {
            counters[reader.source] += reader.counters_at(epoch);
            let (resume, read) = (reader.resume_after(epoch), reader.read_after(epoch));
            resumes.push(SourceResume { source: reader.source, resume, read });
        }
        // A partition that was found late is behind those of other sources in `readers`.
        resumes.sort_by_key(|resume| resume.source);
        let rows = |source: &ReaderProgress| source.closing(epoch).map_or(source.rows, |(mark, _)| mark.rows);
        let rows = self.readers.iter().map(rows).sum();
        // Later marks may be known already. They must not count.
        let closing = self.readers.iter().filter_map(|source| source.closing(epoch));
        let due = closing.map(|(mark, _)| mark.due).min().unwrap_or(epoch);
        self.closed = epoch;
        self.readers.iter_mut().for_each(|source| source.pass(epoch));
        Some(ClosedEpochs { epoch, due, rows, counters, resumes, judged: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clocks(number: usize) -> MergeProgress {
        let clock = |number: usize| ReaderProgress::new(number, "", SilenceLimits::default(), 0);
        MergeProgress { readers: (0..number).map(clock).collect(), closed: 0 }
    }

    impl MergeProgress {
        /// The source's own clock closes epochs up to `epoch`, at row `row`, when the source is at
        /// `next_row`.
        fn mark(&mut self, source: usize, epoch: u64, row: u64, next_row: u64) {
            let position = Position::new(0, row);
            let resume = ResumePoint { position, ..ResumePoint::START };
            self.readers[source].next_row = next_row;
            self.readers[source].advance(
                EpochMark { epoch, due: epoch, resume, rows: 100 * row, read: position },
                self.closed,
            );
        }

        /// Returns what can be closed now: the epoch, and the offset and row of each position.
        fn close_all(&mut self) -> Vec<(u64, Vec<(u64, u64)>)> {
            std::iter::from_fn(|| self.close_next())
                .map(|ClosedEpochs { epoch, resumes, .. }| {
                    let position = |at: &SourceResume| (at.resume.position.offset, at.resume.late_from);
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
        clocks.readers[1].idle.source = true;
        // After epoch 1 its last known position is used, and its rows from 15 on are late.
        assert_eq!(clocks.close_all(), [(1, vec![(40, 41), (10, 15)]), (4, vec![(40, 41), (10, 15)])]);
        clocks.readers[1].idle.source = false;
        clocks.mark(0, 9, 90, 91);
        clocks.mark(1, 3, 30, 35);
        assert!(clocks.due() == 3 && clocks.close_all().is_empty());
        clocks.mark(1, 6, 60, 65);
        assert_eq!(clocks.close_all(), [(6, vec![(90, 91), (60, 65)])]);
        clocks.readers[1].ended = true;
        assert_eq!(clocks.close_all(), [(9, vec![(90, 91), (60, 65)])]);
        clocks.readers[0].ended = true;
        assert!(clocks.close_all().is_empty());
    }

    /// Readers 0 and 1 are partitions of one source, reader 2 is another source.
    #[test]
    fn idle_partitions_delay_only_their_own_source() {
        let mut clocks = clocks(3);
        (clocks.readers[1].source, clocks.readers[2].source) = (0, 1);
        clocks.mark(0, 4, 40, 41);
        clocks.mark(2, 9, 90, 91);
        assert!(clocks.close_all().is_empty());
        clocks.readers[1].idle.partition = true;
        assert_eq!(clocks.close_all(), [(4, vec![(40, 41), (0, 0), (90, 91)])]);
        // Without an active partition, the source's furthest clock counts, and the other source
        // still waits for it.
        clocks.readers[0].idle.partition = true;
        assert!(clocks.due() == 4 && clocks.close_all().is_empty());
        clocks.readers[1].idle.partition = false;
        clocks.mark(1, 6, 60, 65);
        assert_eq!(clocks.close_all(), [(6, vec![(40, 41), (60, 65), (90, 91)])]);
        clocks.readers[0].ended = true;
        clocks.readers[1].ended = true;
        assert_eq!(clocks.close_all(), [(9, vec![(40, 41), (60, 65), (90, 91)])]);
    }

    /// A partition that is found late belongs to the first source.
    #[test]
    fn positions_are_in_the_order_of_sources() {
        let mut clocks = clocks(2);
        clocks.readers.push(ReaderProgress::new(0, "", SilenceLimits::default(), 0));
        (0..3).for_each(|reader| clocks.mark(reader, 1, 10 * reader as u64, 50));
        assert_eq!(clocks.close_all(), [(1, vec![(0, 50), (20, 50), (10, 50)])]);
    }

    #[test]
    fn without_active_sources_the_fastest_clock_counts() {
        let mut clocks = clocks(2);
        clocks.mark(0, 2, 20, 21);
        clocks.mark(1, 7, 70, 71);
        clocks.readers.iter_mut().for_each(|source| source.ended = true);
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
