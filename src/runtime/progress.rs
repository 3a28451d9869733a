//! Progress of several sources: how far the clock of each has come, which epochs all of them have
//! closed, and what became of the rows up to there.

use std::collections::VecDeque;
use std::time::Duration;

use super::preflight::{ClosedEpochs, LOOK_ROWS};
use super::source::EPOCHS_AHEAD;
use crate::pipeline::{Pipeline, Source};
use crate::source::{EpochMark, ResumePoint, RowCounters, SourceError, SourceReader};

/// Progress of each source and of all together.
pub(super) struct MergeProgress {
    pub(super) sources: Vec<SourceProgress>,
    /// Epochs up to this one are closed.
    pub(super) closed: u64,
}

/// Progress of a source.
pub(super) struct SourceProgress {
    pub(super) name: String,
    /// Silence after which it is idle.
    pub(super) patience: Option<Duration>,
    /// Its own clock has closed the epochs up to this one.
    pub(super) closed: u64,
    /// Marks of epochs still open, with the counters at each; `resume` is the position of the last
    /// mark before them.
    marks: VecDeque<(EpochMark, RowCounters)>,
    resume: ResumePoint,
    /// Rows up to that mark.
    rows: u64,
    /// The counters at that mark, and those of all rows so far.
    counters: (RowCounters, RowCounters),
    /// Rows read by this run.
    rows_read: u64,
    pub(super) next_row: u64,
    /// Row that an earlier run had reached. The merge waits for the source up to there.
    pub(super) recorded_row: u64,
    pub(super) idle: bool,
    pub(super) ended: bool,
    /// Why it can't be read further. Its clock still counts.
    pub(super) fault: Option<SourceError>,
}

impl SourceProgress {
    /// State before the first event, after the last committed epoch.
    fn new(name: &str, patience: Option<Duration>, committed: u64) -> Self {
        SourceProgress {
            name: name.into(),
            patience,
            closed: committed,
            marks: VecDeque::new(),
            resume: ResumePoint::START,
            rows: 0,
            counters: Default::default(),
            rows_read: 0,
            next_row: 0,
            recorded_row: 0,
            idle: false,
            ended: false,
            fault: None,
        }
    }

    /// Goes on where its reader does.
    pub(super) fn begin(&mut self, reader: &mut SourceReader) {
        (self.resume, self.next_row) = (reader.here(), reader.next_row());
        self.recorded_row = reader.late_from();
    }

    fn is_active(&self) -> bool {
        !self.idle && !self.ended
    }

    /// Records what became of its rows up to its latest event: of those that this run has read, and
    /// of those that no earlier run has judged.
    pub(super) fn count(&mut self, counters: &RowCounters, unjudged: RowCounters) {
        self.rows_read = counters.rows;
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

    /// Returns what became of its rows up to the one that closed `epoch`, or up to its end.
    fn counters_at(&self, epoch: u64) -> RowCounters {
        match self.closing(epoch) {
            Some((_, counters)) => *counters,
            None if self.ended => self.counters.1,
            None => self.counters.0,
        }
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
    pub(super) fn take_fault(&mut self, is_silent: bool) -> Option<SourceError> {
        let is_over = |source: &&mut SourceProgress| is_silent || source.closed <= self.closed;
        let mut failed = self.sources.iter_mut().filter(|source| source.fault.is_some());
        failed.find(is_over)?.fault.take()
    }

    /// Returns the sources to read on: those that are not too far ahead. A look at the first rows
    /// has seen enough when there is none.
    pub(super) fn awaited(&self, is_looking: bool) -> impl Iterator<Item = usize> {
        let reach = self.closed.saturating_add(EPOCHS_AHEAD);
        let most_rows = if is_looking { LOOK_ROWS } else { u64::MAX };
        (0..self.sources.len()).filter(move |&number| {
            let source = &self.sources[number];
            let goes_on = !source.ended && source.fault.is_none();
            goes_on && source.closed <= reach && source.rows_read < most_rows
        })
    }

    /// Returns the source to read next: of the awaited ones, the one whose clock is furthest
    /// behind.
    pub(super) fn slowest(&self, is_looking: bool) -> Option<usize> {
        self.awaited(is_looking).min_by_key(|&source| self.sources[source].closed)
    }

    /// Returns the last epoch that may be closed now.
    fn due(&self) -> u64 {
        let active = self.sources.iter().filter(|source| source.is_active()).map(|source| source.closed);
        active.min().or_else(|| self.sources.iter().map(|source| source.closed).max()).unwrap_or(0)
    }

    /// Closes the next epochs with the same resume positions.
    pub(super) fn close_next(&mut self) -> Option<ClosedEpochs> {
        let due = self.due();
        if due <= self.closed {
            return None;
        }
        let marks = self.sources.iter().filter_map(|source| source.marks.front());
        let epoch = marks.map(|(mark, _)| mark.epoch).fold(due, u64::min);
        let resumes = self.sources.iter().map(|source| source.resume_after(epoch)).collect();
        let rows = |source: &SourceProgress| source.closing(epoch).map_or(source.rows, |(mark, _)| mark.rows);
        let rows = self.sources.iter().map(rows).sum();
        // Not what other marks close that happen to be known already.
        let closing = self.sources.iter().filter_map(|source| source.closing(epoch));
        let due = closing.map(|(mark, _)| mark.due).min().unwrap_or(epoch);
        let counters = self.sources.iter().map(|source| source.counters_at(epoch)).collect();
        self.closed = epoch;
        self.sources.iter_mut().for_each(|source| source.pass(epoch));
        Some(ClosedEpochs { epoch, due, rows, counters, resumes, judged: None })
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
