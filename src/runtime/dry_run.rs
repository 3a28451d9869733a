//! Reads the sources of a pipeline as a run does, and keeps nothing: no state, no journal, no
//! release.

use super::copies::DuplicateFilter;
use super::preflight::ClosedEpochs;
use super::progress::MergeProgress;
use crate::check::{EntityCut, Problem, RecordTally, RowJudge, SourceRows};
use crate::control::Control;
use crate::pipeline::Pipeline;
use crate::source::{
    RecordBatch, ResumePoint, RowCounters, RowSurvey, SourceError, SourceEvent, SourceReader,
};

/// How much of the sources is read.
#[derive(Clone, Debug, Default)]
pub struct DryRunLimits {
    /// Rows of each source.
    pub rows: Option<u64>,
    /// Ends the reading when stopped, and decides when a source without an end is silent.
    pub control: Control,
}

/// What a run would make of the rows. Private.
pub struct DryRun {
    /// What became of the rows.
    pub counters: RowCounters,
    /// What they hold.
    pub survey: RowSurvey,
    /// The records among them.
    pub tally: RecordTally,
    /// Records that the limits of entities leave out, if entities are protected.
    pub left_out: Option<u64>,
    /// The last epoch that the clock has closed.
    pub closed: u64,
    /// The last epoch that a run would publish before it stops; none if it does not stop.
    pub stops_after: Option<u64>,
    /// Whether all sources were read to their ends.
    pub is_whole: bool,
    /// Why a run could not read on. It is among the problems too.
    pub fault: Option<SourceError>,
    /// What is wrong.
    pub problems: Vec<Problem>,
}

/// Reads all sources and reports the number of rows to `progress`.
///
/// Of several sources, the one whose clock is furthest behind is read next. The rows are judged as
/// in a run, in which the order of reading decides nothing either, and then all together.
pub fn dry_run(pipeline: &Pipeline, limits: &DryRunLimits, progress: &mut dyn FnMut(u64)) -> DryRun {
    let number = pipeline.sources.len() as u64;
    let open = |(source, index)| {
        let reader = SourceReader::controlled((pipeline, source), &limits.control, ResumePoint::START, 0)?;
        Ok(reader.among((index, number)).comparing_all().limited(limits.rows.unwrap_or(u64::MAX)))
    };
    let readers: Result<Vec<SourceReader>, SourceError> =
        pipeline.sources.iter().zip(0..).map(open).collect();
    let mut rehearsal = Rehearsal::new(pipeline);
    match readers {
        Err(fault) => rehearsal.end(&[], Some(fault)),
        Ok(mut readers) => {
            let fault = rehearsal.read(&mut readers, progress).err();
            (0..).zip(&mut readers).for_each(|(source, reader)| rehearsal.add(source, reader.take_batch()));
            rehearsal.end(&readers, fault)
        }
    }
}

/// The state of a dry run.
struct Rehearsal {
    copies: DuplicateFilter,
    judge: RowJudge,
    tally: RecordTally,
    counters: RowCounters,
    clocks: MergeProgress,
    has_looked: bool,
    problems: Vec<Problem>,
    /// The last epoch before a run would stop.
    stops_after: Option<u64>,
}

impl Rehearsal {
    fn new(pipeline: &Pipeline) -> Self {
        Rehearsal {
            copies: DuplicateFilter::default(),
            judge: RowJudge::new(pipeline, 0, &[], None),
            tally: RecordTally::new(pipeline),
            counters: RowCounters::default(),
            clocks: MergeProgress::new(pipeline, 0),
            has_looked: false,
            problems: Vec::new(),
            stops_after: None,
        }
    }

    /// Reads all sources to their ends.
    fn read(
        &mut self,
        readers: &mut [SourceReader],
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), SourceError> {
        loop {
            let Some(index) = self.clocks.slowest(!self.has_looked) else {
                if self.has_looked {
                    return Ok(());
                }
                self.look(readers);
                continue;
            };
            let event = readers[index].next_event();
            self.counters = RowCounters::default();
            readers.iter().for_each(|reader| self.counters += *reader.counters());
            self.counters.copies = self.copies.found();
            progress(self.counters.rows);
            let reader = &readers[index];
            self.clocks.sources[index].count(reader.counters(), reader.unjudged());
            match event {
                Ok(SourceEvent::Batch(batch)) => self.add(index, batch),
                Ok(SourceEvent::Mark(mark)) => {
                    self.clocks.sources[index].advance(mark, self.clocks.closed);
                }
                Ok(SourceEvent::End) => self.clocks.sources[index].ended = true,
                // A run that reads a single source does not end its look.
                Err(fault) if readers.len() == 1 => return Err(fault),
                Err(fault) => self.clocks.sources[index].fault = Some(fault),
            }
            let mut published = self.clocks.closed;
            while let Some(closed) = self.clocks.close_next() {
                self.close(&closed, published, readers);
                published = closed.epoch;
            }
            if self.has_looked
                && let Some(fault) = self.clocks.take_fault(false)
            {
                return Err(fault);
            }
        }
    }

    fn add(&mut self, source: usize, mut batch: RecordBatch) {
        self.copies.take_out(&mut batch);
        self.judge.add(source, &batch.records);
        self.tally.add(&batch.records);
    }

    /// Closes epochs after those that are `published`.
    fn close(&mut self, closed: &ClosedEpochs, published: u64, readers: &[SourceReader]) {
        self.copies.forget(closed.epoch);
        let is_new = self.judge.close(closed.due, &closed.counters);
        if self.has_looked && is_new && self.problems.is_empty() {
            let surveys: Vec<&RowSurvey> = readers.iter().map(SourceReader::survey).collect();
            self.problems = self.judge.judge(&surveys);
            self.note_stop(published);
        }
    }

    /// Judges the first rows, once.
    fn look(&mut self, readers: &[SourceReader]) {
        if !std::mem::replace(&mut self.has_looked, true) {
            self.problems = self.judge.look(&seen(readers), self.copies.found());
            self.note_stop(0);
        }
    }

    /// Notes that a run stops at a problem once these epochs are published.
    fn note_stop(&mut self, published: u64) {
        if self.problems.iter().any(|problem| problem.stops) {
            self.stops_after.get_or_insert(published);
        }
    }

    fn end(mut self, readers: &[SourceReader], fault: Option<SourceError>) -> DryRun {
        if fault.is_some() {
            let published = if self.has_looked { self.clocks.closed } else { 0 };
            self.stops_after.get_or_insert(published);
        }
        self.look(readers);
        let left_out = self.judge.entities().map(EntityCut::left_out);
        let mut problems = self.problems;
        for problem in self.judge.sum_up(&seen(readers), self.copies.found()) {
            if !problems.iter().any(|found| found.is_same(&problem)) {
                problems.push(problem);
            }
        }
        if let Some(fault) = &fault {
            // The fault says the same more exactly.
            problems.retain(|problem| !problem.public && problem.kind != "before the start");
            problems.push(Problem::of_fault(fault));
        } else if self.counters.rows == 0 {
            problems.push(Problem::new("no rows", true, "the source has no row"));
        }
        DryRun {
            counters: self.counters,
            survey: sum_surveys(readers),
            tally: self.tally,
            left_out,
            closed: self.clocks.closed,
            stops_after: self.stops_after,
            is_whole: fault.is_none() && readers.iter().all(SourceReader::has_ended),
            fault,
            problems,
        }
    }
}

/// Returns what was seen of the rows of each source.
fn seen(readers: &[SourceReader]) -> Vec<SourceRows<'_>> {
    readers.iter().map(SourceRows::of).collect()
}

/// Returns what the rows of all sources hold.
fn sum_surveys(readers: &[SourceReader]) -> RowSurvey {
    let mut sum = RowSurvey::default();
    readers.iter().for_each(|reader| sum.merge(reader.survey()));
    sum
}
