//! Judges rows while they are read: the first ones, then those since the last judgement.
//!
//! A judgement is a function of the rows alone, whatever the order in which several sources are
//! read, and whether a run was interrupted:
//!
//! - A record counts in its epoch, any other row in the epoch in which the clock of its own source
//!   stands.
//! - Rows are judged when the clocks of all sources have closed an epoch, in the order of epochs,
//!   and by the closed epochs alone.
//! - The [state](JudgeState) after a judgement is committed with the epochs that it passes.

use std::collections::BTreeMap;

use hushflow_operators::Records;
use serde::{Deserialize, Serialize};

use super::coverage::{ClosedCoverage, Coverage};
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
/// all rows of closed epochs. So a burst of missing values does not stop a run, and a stream that
/// has turned bad stops before it has used up another tenth of its length.
pub struct RowJudge {
    pipeline: Pipeline,
    coverage: Coverage,
    /// The counters that this one continues.
    earlier: RowCounters,
    /// The counters of closed epochs.
    closed: RowCounters,
    /// The counters at the last judgement.
    judged: RowCounters,
    /// Copies by epoch after the closed ones.
    copies: BTreeMap<u64, u64>,
    closed_copies: u64,
}

/// What a judge has seen of the closed epochs, from which another one continues. Private.
#[derive(Clone, Serialize, Deserialize)]
pub struct JudgeState {
    coverage: ClosedCoverage,
    /// Whether each key has a record; no keys if all have.
    keys: Vec<bool>,
    closed: RowCounters,
    judged: RowCounters,
}

impl JudgeState {
    /// The last epoch whose rows were judged.
    pub fn last(&self) -> u64 {
        self.coverage.last
    }
}

impl RowJudge {
    /// Begins after this epoch, from the state that was committed with it, if any.
    pub fn new(pipeline: &Pipeline, committed: u64, state: Option<&JudgeState>) -> Self {
        let coverage = match state {
            Some(state) => Coverage::resume(pipeline, state.coverage, &state.keys),
            None => Coverage::new(pipeline, committed),
        };
        let (closed, judged) = state.map_or_else(Default::default, |state| (state.closed, state.judged));
        RowJudge {
            pipeline: pipeline.clone(),
            coverage,
            earlier: closed,
            closed,
            judged,
            copies: BTreeMap::new(),
            closed_copies: 0,
        }
    }

    /// Returns what it has seen of the closed epochs.
    pub fn state(&self) -> JudgeState {
        let (coverage, keys) = (self.coverage.closed, self.coverage.keys());
        JudgeState { coverage, keys, closed: self.closed, judged: self.judged }
    }

    /// Adds records, and the epochs of copies that were taken out.
    pub fn add(&mut self, records: &Records, copies: &[u64]) {
        self.coverage.add(records);
        for &epoch in copies.iter().filter(|&&epoch| epoch > self.coverage.closed.last) {
            *self.copies.entry(epoch).or_default() += 1;
        }
    }

    /// Notes that the clocks have closed the epochs up to `last` at one row, and what became of the
    /// rows of these epochs since the judge began, except for copies. Returns whether any of the
    /// epochs is new.
    pub fn close(&mut self, last: u64, counters: RowCounters) -> bool {
        if last <= self.coverage.closed.last {
            return false;
        }
        self.coverage.close(last);
        let later = self.copies.split_off(&(last + 1));
        self.closed_copies += std::mem::replace(&mut self.copies, later).values().sum::<u64>();
        self.closed = RowCounters { copies: self.closed_copies, ..counters };
        self.closed += self.earlier;
        true
    }

    /// Returns the problems of the first rows, with those of open epochs.
    pub fn look(&mut self, counters: RowCounters, survey: &RowSurvey) -> Vec<Problem> {
        self.judged = self.closed;
        let problems = self.problems(Extent::First, counters, survey);
        let preflight = self.pipeline.preflight;
        self.marked(problems, |problem| match preflight {
            Preflight::Stop => true,
            Preflight::Warn => problem.public,
            Preflight::Off => false,
        })
    }

    /// Returns the problems of the rows since the last judgement and of the epochs closed so far.
    /// The survey finds words only.
    pub fn judge(&mut self, survey: impl FnOnce() -> RowSurvey) -> Vec<Problem> {
        let recent = self.closed.since(&self.judged);
        let is_enough = recent.rows >= LEAST_ROWS.max(self.closed.rows / 10).min(MOST_ROWS);
        if !is_enough && !is_nearly_empty(&self.pipeline, &self.coverage) {
            return Vec::new();
        }
        let recent = if is_enough { recent } else { RowCounters::default() };
        let problems = self.problems(Extent::Later, recent, &survey());
        if is_enough {
            self.judged = self.closed;
        }
        let stops = self.pipeline.preflight == Preflight::Stop;
        self.marked(problems, |_| stops)
    }

    /// Returns the problems of all rows, at which no run stops.
    pub fn sum_up(&self, counters: RowCounters, survey: &RowSurvey) -> Vec<Problem> {
        self.problems(Extent::Whole, counters, survey)
    }

    fn problems(&self, extent: Extent, counters: RowCounters, survey: &RowSurvey) -> Vec<Problem> {
        let with_open = (extent != Extent::Later).then(|| self.coverage.with_open());
        let coverage = with_open.as_ref().unwrap_or(&self.coverage);
        problems(&self.pipeline, &Observation { extent, counters, survey, coverage })
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
