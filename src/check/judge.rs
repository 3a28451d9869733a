//! Judges rows while they are read: the first ones, then those since the last judgement.

use hushflow_operators::Records;

use super::coverage::Coverage;
use super::problems::{Extent, Observation, Problem, is_nearly_empty, problems};
use crate::pipeline::{Pipeline, Preflight, Source};
use crate::source::{RowCounters, RowSurvey};

/// Fewest rows that are judged after the look.
const LEAST_ROWS: u64 = 100;

/// Most rows between two judgements, up to the next closed epoch.
const MOST_ROWS: u64 = 1 << 16;

/// Judges the rows of a run. Private.
///
/// After the look, rows are judged when the clock closes an epoch and they are at least a tenth of
/// all rows read. So a burst of missing values does not stop a run, and a stream that has turned
/// bad stops before it has used up another tenth of its length.
pub struct RowJudge {
    pipeline: Pipeline,
    coverage: Coverage,
    /// The counters at the last judgement.
    judged: RowCounters,
}

impl RowJudge {
    /// Begins after this epoch.
    pub fn new(pipeline: &Pipeline, committed: u64) -> Self {
        RowJudge {
            pipeline: pipeline.clone(),
            coverage: Coverage::new(pipeline, committed),
            judged: RowCounters::default(),
        }
    }

    /// Adds records.
    pub fn add(&mut self, records: &Records) {
        self.coverage.add(records);
    }

    /// Notes that row number `row` has closed the epochs up to `due`, and that none up to `epoch`
    /// gets another record.
    pub fn close(&mut self, epoch: u64, due: u64, row: u64) {
        self.coverage.close(epoch, due, row);
    }

    /// Returns the problems of the first rows.
    pub fn look(&mut self, counters: RowCounters, survey: &RowSurvey) -> Vec<Problem> {
        self.judged = counters;
        let problems = self.problems(Extent::Part, counters, survey);
        let preflight = self.pipeline.preflight;
        self.marked(problems, |problem| match preflight {
            Preflight::Stop => true,
            Preflight::Warn => problem.public,
            Preflight::Off => false,
        })
    }

    /// Returns the problems of the rows since the last judgement and of the epochs closed so far.
    pub fn judge(&mut self, counters: RowCounters, survey: impl FnOnce() -> RowSurvey) -> Vec<Problem> {
        let recent = counters.since(&self.judged);
        let is_enough = recent.rows >= LEAST_ROWS.max(counters.rows / 10).min(MOST_ROWS);
        if !is_enough && !is_nearly_empty(&self.pipeline, &self.coverage) {
            return Vec::new();
        }
        let recent = if is_enough { recent } else { RowCounters::default() };
        if is_enough {
            self.judged = counters;
        }
        let problems = self.problems(Extent::Part, recent, &survey());
        let stops = self.pipeline.preflight == Preflight::Stop;
        self.marked(problems, |_| stops)
    }

    /// Returns the problems of all rows, at which no run stops.
    pub fn sum_up(&self, counters: RowCounters, survey: &RowSurvey) -> Vec<Problem> {
        self.problems(Extent::Whole, counters, survey)
    }

    fn problems(&self, extent: Extent, counters: RowCounters, survey: &RowSurvey) -> Vec<Problem> {
        problems(&self.pipeline, &Observation { extent, counters, survey, coverage: &self.coverage })
    }

    /// Marks the problems at which a run stops.
    fn marked(&self, mut found: Vec<Problem>, stops: impl Fn(&Problem) -> bool) -> Vec<Problem> {
        // A stream may begin before its first epoch.
        let is_endless = self.pipeline.sources.iter().any(Source::goes_on);
        found.retain(|problem| !(is_endless && problem.kind == "before the start"));
        found.iter_mut().for_each(|problem| problem.stops = stops(problem));
        found
    }
}
