//! Judges rows while they are read: the first ones, then those since the last judgement.
//!
//! A judgement is a function of the rows alone, whatever the order in which several sources are
//! read, and whether a run was interrupted:
//!
//! - A record counts in its epoch, any other row in the epoch in which the clock of its own source
//!   stands.
//! - Rows are judged when the clocks of all sources have closed an epoch, in the order of epochs,
//!   and by the closed epochs alone.
//! - Each source is judged by its own rows. Epochs and keys without a record are those of all
//!   sources together.
//! - The [state](JudgeState) after a judgement is committed with the epochs that it passes.

use hushflow_operators::Records;
use serde::{Deserialize, Serialize};

use super::coverage::{ClosedCoverage, Coverage};
use super::problems::{Extent, Observation, Problem, SourceRows, is_nearly_empty, problems};
use crate::pipeline::{Pipeline, Preflight, Source};
use crate::source::{RowCounters, RowSurvey};

/// Fewest rows of a source that are judged after the look.
const LEAST_ROWS: u64 = 100;

/// Most rows of a source between two judgements, up to the next closed epoch.
const MOST_ROWS: u64 = 1 << 16;

/// Judges the rows of a run. Private.
///
/// After the look, the rows of a source are judged when the clock closes an epoch and they are at
/// least a tenth of all its rows of closed epochs. So a burst of missing values does not stop a
/// run, and a stream that has turned bad stops before it has used up another tenth of its length.
pub struct RowJudge {
    pipeline: Pipeline,
    coverage: Coverage,
    /// The closed epochs before the newest ones.
    before: ClosedCoverage,
    sources: Vec<SourceJudge>,
}

/// Judges the rows of a source.
#[derive(Clone, Copy, Default)]
struct SourceJudge {
    counts: SourceCounts,
    /// The counters that those of this run continue.
    earlier: RowCounters,
    /// The counters before the newest closed epochs.
    before: RowCounters,
}

/// What became of the rows of a source.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct SourceCounts {
    /// Rows of closed epochs.
    closed: RowCounters,
    /// Rows up to the last judgement.
    judged: RowCounters,
}

/// What a judge has seen of the closed epochs, from which another one continues. Private.
#[derive(Clone, Serialize, Deserialize)]
pub struct JudgeState {
    coverage: ClosedCoverage,
    /// Whether each key has a record; no keys if all have.
    keys: Vec<bool>,
    /// One for each source.
    sources: Vec<SourceCounts>,
}

impl JudgeState {
    /// The last epoch whose rows were judged.
    pub fn last(&self) -> u64 {
        self.coverage.last
    }
}

impl SourceJudge {
    fn resume(counts: SourceCounts) -> Self {
        SourceJudge { counts, earlier: counts.closed, before: counts.closed }
    }

    /// Returns the rows since the last judgement, if they are enough for another one.
    fn recent(&self) -> Option<RowCounters> {
        let recent = self.counts.closed.since(&self.counts.judged);
        let least = LEAST_ROWS.max(self.counts.closed.rows / 10).min(MOST_ROWS);
        (recent.rows >= least).then_some(recent)
    }
}

impl RowJudge {
    /// Begins after this epoch, from the state that was committed with it, if any.
    pub fn new(pipeline: &Pipeline, committed: u64, state: Option<&JudgeState>) -> Self {
        let (coverage, sources) = match state {
            Some(state) => (
                Coverage::resume(pipeline, state.coverage, &state.keys),
                state.sources.iter().copied().map(SourceJudge::resume).collect(),
            ),
            None => {
                (Coverage::new(pipeline, committed), vec![SourceJudge::default(); pipeline.sources.len()])
            }
        };
        RowJudge { pipeline: pipeline.clone(), before: coverage.closed, coverage, sources }
    }

    /// Returns what it has seen of the closed epochs.
    pub fn state(&self) -> JudgeState {
        let sources = self.sources.iter().map(|source| source.counts).collect();
        JudgeState { coverage: self.coverage.closed, keys: self.coverage.keys(), sources }
    }

    /// Adds records.
    pub fn add(&mut self, records: &Records) {
        self.coverage.add(records);
    }

    /// Notes that the clocks have closed the epochs up to `last` at one row, and what became of the
    /// rows of these epochs since the judge began, by source. Returns whether any of the epochs is
    /// new.
    pub fn close(&mut self, last: u64, counters: &[RowCounters]) -> bool {
        if last <= self.coverage.closed.last {
            return false;
        }
        self.before = self.coverage.closed;
        self.coverage.close(last);
        for (source, &counters) in self.sources.iter_mut().zip(counters) {
            source.before = source.counts.closed;
            source.counts.closed = counters;
            source.counts.closed += source.earlier;
        }
        true
    }

    /// Returns the problems of the first rows of each source, with those of open epochs.
    pub fn look(&mut self, sources: &[SourceRows<'_>], copies: u64) -> Vec<Problem> {
        self.sources.iter_mut().for_each(|source| source.counts.judged = source.counts.closed);
        let problems = self.all(Extent::First, sources, copies);
        let preflight = self.pipeline.preflight;
        self.marked(problems, |problem| match preflight {
            Preflight::Stop => true,
            Preflight::Warn => problem.public,
            Preflight::Off => false,
        })
    }

    /// Returns the problems of the rows since the last judgement and of the epochs closed so far,
    /// which the newest of these epochs show too. The surveys find words only.
    pub fn judge(&mut self, surveys: &[&RowSurvey]) -> Vec<Problem> {
        let recent: Vec<_> = self.sources.iter().map(SourceJudge::recent).collect();
        let newest = self.coverage.closed.since(&self.before);
        let is_due = recent.iter().any(Option::is_some);
        if !is_due && !is_nearly_empty(&self.pipeline, &self.coverage, &newest) {
            return Vec::new();
        }
        let sources = self.sources.iter().zip(&recent).zip(surveys);
        let rows = sources.map(|((source, counters), survey)| SourceRows {
            counters: counters.unwrap_or_default(),
            newest: source.counts.closed.since(&source.before),
            survey,
        });
        let rows: Vec<SourceRows<'_>> = rows.collect();
        let seen = Observation {
            extent: Extent::Later,
            sources: &rows,
            copies: 0,
            coverage: &self.coverage,
            newest,
        };
        let found = problems(&self.pipeline, &seen);
        for (source, _) in self.sources.iter_mut().zip(&recent).filter(|(_, recent)| recent.is_some()) {
            source.counts.judged = source.counts.closed;
        }
        let stops = self.pipeline.preflight == Preflight::Stop;
        self.marked(found, |_| stops)
    }

    /// Returns the problems of all rows of each source, at which no run stops.
    pub fn sum_up(&self, sources: &[SourceRows<'_>], copies: u64) -> Vec<Problem> {
        self.all(Extent::Whole, sources, copies)
    }

    fn all(&self, extent: Extent, sources: &[SourceRows<'_>], copies: u64) -> Vec<Problem> {
        let coverage = &self.coverage.with_open();
        problems(&self.pipeline, &Observation { extent, sources, copies, coverage, newest: coverage.closed })
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
