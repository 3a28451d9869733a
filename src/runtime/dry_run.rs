//! Reads the sources of a pipeline as a run does, and keeps nothing: no state, no journal, no
//! release.

use super::copies::DuplicateFilter;
use super::preflight::LOOK_ROWS;
use crate::check::{EntityCut, Problem, RecordTally, RowJudge};
use crate::control::Control;
use crate::pipeline::Pipeline;
use crate::source::{
    EpochMark, RecordBatch, ResumePoint, RowCounters, RowSurvey, SourceError, SourceEvent, SourceReader,
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
    /// The last epoch that a run would close.
    pub closed: u64,
    /// Whether all sources were read to their ends.
    pub is_whole: bool,
    /// Why a run could not read on.
    pub fault: Option<SourceError>,
    /// What is wrong.
    pub problems: Vec<Problem>,
}

/// Reads all sources, one after the other, and reports the number of rows to `progress`.
///
/// The records of several sources are assigned by their own clocks, as in a run that waits for all
/// of them. The rows of a single source are judged as in a run, and then all together.
pub fn dry_run(pipeline: &Pipeline, limits: &DryRunLimits, progress: &mut dyn FnMut(u64)) -> DryRun {
    let mut rehearsal = Rehearsal::new(pipeline);
    let (mut is_whole, mut fault) = (true, None);
    let number = pipeline.sources.len() as u64;
    for (source, index) in pipeline.sources.iter().zip(0..) {
        let opened = SourceReader::controlled((pipeline, source), &limits.control, ResumePoint::START, 0);
        let read = opened.and_then(|reader| {
            let mut reader = reader.among((index, number)).surveying(limits.rows.unwrap_or(u64::MAX));
            let read = rehearsal.read(&mut reader, progress);
            is_whole &= reader.has_ended();
            read
        });
        if let Err(error) = read {
            (fault, is_whole) = (Some(error), false);
            break;
        }
    }
    rehearsal.end(is_whole, fault)
}

/// The state of a dry run.
struct Rehearsal {
    copies: DuplicateFilter,
    judge: RowJudge,
    tally: RecordTally,
    cut: Option<EntityCut>,
    counters: RowCounters,
    survey: RowSurvey,
    closed: u64,
    /// Whether there is one source, so that epochs are closed as in a run.
    is_single: bool,
    has_looked: bool,
    problems: Vec<Problem>,
}

impl Rehearsal {
    fn new(pipeline: &Pipeline) -> Self {
        Rehearsal {
            copies: DuplicateFilter::default(),
            judge: RowJudge::new(pipeline, 0),
            tally: RecordTally::new(pipeline),
            cut: pipeline.entity.as_ref().map(|entity| EntityCut::new(entity.limits)),
            counters: RowCounters::default(),
            survey: RowSurvey::default(),
            closed: 0,
            is_single: pipeline.sources.len() == 1,
            has_looked: false,
            problems: Vec::new(),
        }
    }

    /// Reads one source to its end.
    fn read(&mut self, reader: &mut SourceReader, progress: &mut dyn FnMut(u64)) -> Result<(), SourceError> {
        let before = self.counters;
        let read = loop {
            let event = reader.next_event();
            self.counters = before;
            self.counters += *reader.counters();
            self.counters.copies = self.copies.found();
            progress(self.counters.rows);
            match event {
                Err(error) => break Err(error),
                Ok(SourceEvent::Batch(batch)) => {
                    self.add(batch);
                    if self.is_single && self.counters.rows >= LOOK_ROWS {
                        self.look(reader.survey());
                    }
                }
                Ok(SourceEvent::Mark(mark)) => self.close(mark, reader),
                Ok(SourceEvent::End) => break Ok(()),
            }
        };
        self.add(reader.take_batch());
        self.survey.merge(reader.survey());
        read
    }

    fn add(&mut self, mut batch: RecordBatch) {
        self.copies.take_out(&mut batch);
        self.judge.add(&batch.records);
        self.tally.add(&batch.records);
        if let Some(cut) = &mut self.cut {
            cut.add(&batch.records);
        }
    }

    fn close(&mut self, EpochMark { epoch, due, rows, .. }: EpochMark, reader: &SourceReader) {
        self.closed = self.closed.max(epoch);
        if !self.is_single {
            return;
        }
        self.copies.forget(epoch);
        self.judge.close(epoch, due, rows);
        if let Some(cut) = &mut self.cut {
            cut.close(epoch);
        }
        if self.has_looked && self.problems.is_empty() {
            self.problems = self.judge.judge(self.counters, || reader.survey().clone());
        }
    }

    /// Judges the first rows, once.
    fn look(&mut self, survey: &RowSurvey) {
        if !std::mem::replace(&mut self.has_looked, true) {
            self.problems = self.judge.look(self.counters, survey);
        }
    }

    fn end(mut self, is_whole: bool, fault: Option<SourceError>) -> DryRun {
        let survey = std::mem::take(&mut self.survey);
        let left_out = self.cut.take().map(|mut cut| {
            cut.close(u64::MAX);
            cut.left_out()
        });
        if !self.is_single {
            self.judge.close(self.closed, self.closed, self.counters.rows);
        }
        self.look(&survey);
        let mut problems = self.problems;
        for problem in self.judge.sum_up(self.counters, &survey) {
            if problems.iter().all(|found| found.kind != problem.kind) {
                problems.push(problem);
            }
        }
        if fault.is_some() {
            // The fault says the same more exactly.
            problems.retain(|problem| !problem.public && problem.kind != "before the start");
        } else if self.counters.rows == 0 {
            problems.push(Problem {
                kind: "no rows",
                public: true,
                stops: false,
                message: "the source has no row".into(),
            });
        }
        if left_out.is_some_and(|count| count.saturating_mul(2) > self.tally.records) {
            problems.push(Problem {
                kind: "entity limits",
                public: false,
                stops: false,
                message: "the limits of entities leave out most records, which don't count: raise participations in [entity], or \
                          lengthen epochs and let more records of an entity count in each"
                    .into(),
            });
        }
        DryRun {
            counters: self.counters,
            survey,
            tally: self.tally,
            left_out,
            closed: self.closed,
            is_whole,
            fault,
            problems,
        }
    }
}
