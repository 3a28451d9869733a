//! Reads the sources of a pipeline as a run does, and keeps nothing: no state, no journal, no
//! release.

use std::collections::BTreeMap;

use super::duplicates::DuplicateFilter;
use super::ingest::{SourceReaders, from_start};
use super::preflight::ClosedEpochs;
use super::progress::MergeProgress;
use crate::check::{EntityCut, EntitySpread, Problem, RecordTally, RowJudge, SourceRows};
use crate::control::Control;
use crate::pipeline::Pipeline;
use crate::source::{RecordBatch, RowCounters, RowSurvey, SourceError, SourceEvent, SourceReader};

/// How much of the sources is read.
#[derive(Clone, Debug, Default)]
pub struct DryRunLimits {
    /// Rows of each source.
    pub rows: Option<u64>,
    /// Ends the reading when stopped, and decides when a source without an end is silent.
    pub control: Control,
    /// Whether to count the records of each entity in each epoch, which needs memory for them.
    pub spread: bool,
}

/// How a run would count the rows. Private.
pub struct DryRun {
    /// Outcomes of the rows.
    pub counters: RowCounters,
    /// Survey of their values.
    pub survey: RowSurvey,
    /// The records among them.
    pub tally: RecordTally,
    /// Records that the limits of entities leave out, if entities are protected.
    pub left_out: Option<u64>,
    /// Records that count if entities are protected: those within their limits, or means of these.
    pub counting: Option<u64>,
    /// Number of records that count by epoch; empty if single records are protected.
    pub counting_by_epoch: BTreeMap<u64, u64>,
    /// The number of values of each column among the records that count.
    pub values: Vec<u64>,
    /// The records of each entity in each epoch, if the limits of the dry run ask for them.
    pub spread: Option<EntitySpread>,
    /// The last epoch that the clock has closed.
    pub closed: u64,
    /// The last epoch that a run would publish before it stops; none if it does not stop.
    pub stops_after: Option<u64>,
    /// Whether all sources were read to their ends.
    pub is_whole: bool,
    /// Why a run could not read on. It is among the problems too.
    pub fault: Option<SourceError>,
    /// Problems of the rows.
    pub problems: Vec<Problem>,
}

impl DryRun {
    /// Whether the sources were read to their ends and have no row.
    pub fn is_empty(&self) -> bool {
        self.is_whole && self.counters.rows == 0
    }
}

/// Reads all sources and reports the number of rows to `progress`.
///
/// Of several sources, the one whose clock is furthest behind is read next. The rows are judged as
/// in a run, in which the order of reading decides nothing either, and then all together.
pub fn dry_run(pipeline: &Pipeline, limits: &DryRunLimits, progress: &mut dyn FnMut(u64)) -> DryRun {
    let sources: Result<Vec<SourceReaders>, SourceError> =
        (0..pipeline.sources.len()).map(|number| from_start(pipeline, number, &limits.control)).collect();
    let mut rehearsal = Rehearsal::new(pipeline);
    rehearsal.spread = limits.spread.then(EntitySpread::default);
    let sources = match sources {
        Err(fault) => return rehearsal.end(&[], Some(fault)),
        Ok(sources) => sources,
    };
    let mut readers = Vec::new();
    for (number, source) in sources.into_iter().enumerate() {
        for reader in source.readers {
            rehearsal.clocks.add(pipeline, number);
            let reader = reader.comparing_all().reading_on(u64::MAX);
            readers.push(reader.limited(limits.rows.unwrap_or(u64::MAX)));
        }
    }
    let fault = rehearsal.read(&mut readers, progress).err();
    let unreached = limits.control.unreached();
    let fault = fault.or((!unreached.is_empty()).then(|| SourceError::Unreached(unreached.join("; "))));
    readers.iter_mut().enumerate().for_each(|(number, reader)| rehearsal.add(number, reader.take_batch()));
    rehearsal.end(&readers, fault)
}

/// The state of a dry run.
struct Rehearsal {
    duplicates: DuplicateFilter,
    judge: RowJudge,
    tally: RecordTally,
    spread: Option<EntitySpread>,
    counters: RowCounters,
    /// Number of sources.
    sources: usize,
    clocks: MergeProgress,
    has_checked_first_rows: bool,
    problems: Vec<Problem>,
    /// The last epoch before a run would stop.
    stops_after: Option<u64>,
}

impl Rehearsal {
    fn new(pipeline: &Pipeline) -> Self {
        let mut judge = RowJudge::new(pipeline, 0, &[], None);
        judge.count_values();
        if pipeline.discovery().is_some() {
            judge.count_keys();
        }
        Rehearsal {
            duplicates: DuplicateFilter::default(),
            judge,
            tally: RecordTally::new(pipeline),
            spread: None,
            counters: RowCounters::default(),
            sources: pipeline.sources.len(),
            clocks: MergeProgress::new(0),
            has_checked_first_rows: false,
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
            let Some(index) = self.clocks.slowest(!self.has_checked_first_rows) else {
                if self.has_checked_first_rows {
                    return Ok(());
                }
                self.judge_first_rows(readers);
                continue;
            };
            let event = readers[index].next_event();
            self.counters = RowCounters::default();
            readers.iter().for_each(|reader| self.counters += *reader.counters());
            self.counters.duplicates = self.duplicates.found();
            progress(self.counters.rows);
            let reader = &readers[index];
            self.clocks.readers[index].count(reader.unjudged());
            match event {
                Ok(SourceEvent::Batch(batch)) => self.add(index, batch),
                Ok(SourceEvent::Mark(mark)) => {
                    self.clocks.readers[index].advance(mark, self.clocks.closed);
                }
                Ok(SourceEvent::End) => self.clocks.readers[index].ended = true,
                // A run that reads a single source stops at a fault without ending its first check.
                Err(fault) if readers.len() == 1 => return Err(fault),
                Err(fault) => self.clocks.readers[index].fault = Some(fault),
            }
            let mut published = self.clocks.closed;
            while let Some(closed) = self.clocks.close_next() {
                self.close(&closed, published, readers);
                published = closed.epoch;
            }
            if self.has_checked_first_rows
                && let Some(fault) = self.clocks.take_fault(false)
            {
                return Err(fault);
            }
        }
    }

    fn add(&mut self, reader: usize, mut batch: RecordBatch) {
        self.duplicates.take_out(&mut batch);
        self.judge.add(self.clocks.readers[reader].source, &batch.records);
        self.tally.add(&batch.records);
        self.spread.iter_mut().for_each(|spread| spread.add(&batch.records));
    }

    /// Closes epochs after those that are `published`.
    fn close(&mut self, closed: &ClosedEpochs, published: u64, readers: &[SourceReader]) {
        self.duplicates.forget(closed.epoch);
        let is_new = self.judge.close(closed.due, &closed.counters);
        if self.has_checked_first_rows && is_new && self.problems.is_empty() {
            let surveys = self.surveys(readers);
            self.problems = self.judge.judge(&surveys.iter().collect::<Vec<_>>());
            for problem in &mut self.problems {
                problem.message = format!("among the latest rows, {}", problem.message);
            }
            self.note_stop(published);
        }
    }

    /// Judges the first rows, once.
    fn judge_first_rows(&mut self, readers: &[SourceReader]) {
        if !std::mem::replace(&mut self.has_checked_first_rows, true) {
            let (surveys, counters) = (self.surveys(readers), self.row_counters(readers));
            self.problems = self.judge.judge_first_rows(&seen(&counters, &surveys), self.duplicates.found());
            self.note_stop(0);
        }
    }

    /// Notes that a run stops at a problem once these epochs are published.
    fn note_stop(&mut self, published: u64) {
        if self.problems.iter().any(|problem| problem.stops) {
            self.stops_after.get_or_insert(published);
        }
    }

    /// Returns what the rows of each source hold.
    fn surveys(&self, readers: &[SourceReader]) -> Vec<RowSurvey> {
        let survey = |source| sum_surveys(self.clocks.readers_of(source).map(|reader| &readers[reader]));
        (0..self.sources).take_while(|_| !readers.is_empty()).map(survey).collect()
    }

    /// Returns the outcomes of the rows of each source.
    fn row_counters(&self, readers: &[SourceReader]) -> Vec<RowCounters> {
        let sum = |source| {
            let mut sum = RowCounters::default();
            self.clocks.readers_of(source).for_each(|reader| sum += *readers[reader].counters());
            sum
        };
        (0..self.sources).take_while(|_| !readers.is_empty()).map(sum).collect()
    }

    fn end(mut self, readers: &[SourceReader], fault: Option<SourceError>) -> DryRun {
        if fault.is_some() {
            let published = if self.has_checked_first_rows { self.clocks.closed } else { 0 };
            self.stops_after.get_or_insert(published);
        }
        self.judge_first_rows(readers);
        let left_out = self.judge.entities().map(EntityCut::left_out);
        let counting = self.judge.entities().map(EntityCut::counting);
        let by_epoch = self.judge.entities().map(EntityCut::counting_by_epoch);
        let values = self.judge.entities().map_or_else(|| self.tally.values.clone(), EntityCut::values);
        if let Some(entities) = self.judge.entities().and_then(EntityCut::entities_of_keys) {
            self.tally.discovered = entities;
        }
        let (surveys, counters) = (self.surveys(readers), self.row_counters(readers));
        let mut problems = self.problems;
        for problem in self.judge.sum_up(&seen(&counters, &surveys), self.duplicates.found()) {
            if !problems.iter().any(|found| found.is_same(&problem)) {
                problems.push(problem);
            }
        }
        if let Some(fault) = &fault {
            // The fault says the same more exactly.
            problems.retain(|problem| !problem.public && problem.kind != "before the start");
            problems.push(Problem::of_fault(fault));
        } else if self.counters.rows == 0 {
            // Epochs without records and a clock that never moves follow from it.
            problems.clear();
            self.stops_after = None;
            problems.push(Problem::new("no rows", true, "the source has no row"));
        }
        DryRun {
            counters: self.counters,
            survey: sum_surveys(readers.iter()),
            tally: self.tally,
            left_out,
            counting,
            counting_by_epoch: by_epoch.unwrap_or_default(),
            values,
            spread: self.spread,
            closed: self.clocks.closed,
            stops_after: self.stops_after,
            is_whole: fault.is_none() && readers.iter().all(SourceReader::has_ended),
            fault,
            problems,
        }
    }
}

/// Returns what was seen of the rows of each source.
fn seen<'s>(counters: &[RowCounters], surveys: &'s [RowSurvey]) -> Vec<SourceRows<'s>> {
    counters.iter().zip(surveys).map(|(&counters, survey)| SourceRows::new(counters, survey)).collect()
}

/// Returns what the rows of several readers hold.
fn sum_surveys<'r>(readers: impl Iterator<Item = &'r SourceReader>) -> RowSurvey {
    let mut surveys = readers.map(SourceReader::survey);
    let mut sum = surveys.next().cloned().unwrap_or_default();
    surveys.for_each(|more| sum.merge(more));
    sum
}
