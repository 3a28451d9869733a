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
//! - Besides the rows since the last judgement, epochs in a row of which each shows mostly rows
//!   that don't count are judged by themselves, and so is one in which the public clock fell back.
//! - The [state](JudgeState) after a judgement is committed with the epochs that it passes.

use hushflow_operators::Records;
use serde::{Deserialize, Serialize};

use super::coverage::{ClosedCoverage, Coverage};
use super::entities::EntityCut;
use super::problems::{Extent, Observation, Problem, SourceRows, falling_clock, is_nearly_empty, problems};
use crate::pipeline::{Pipeline, Preflight, Source};
use crate::source::{RowCounters, RowSurvey};

/// Fewest rows of a source that are judged after the look.
const LEAST_ROWS: u64 = 100;

/// Most rows of a source between two judgements, up to the next closed epoch.
const MOST_ROWS: u64 = 1 << 16;

/// Fewest epochs in a row, and fewest of their rows, that are judged by themselves.
const LEAST_RUN: (u64, u64) = (3, 20);

/// The share of all closed epochs that these are, and of all rows that a falling clock moves, as
/// its inverse.
const RUN_SHARE: u64 = 50;

/// Judges the rows of a run. Private.
///
/// After the look, the rows of a source are judged when the clock closes an epoch and they are at
/// least a tenth of all its rows of closed epochs. So a burst of missing values does not stop a
/// run, and a stream that has turned bad stops before it has used up another tenth of its length:
/// a fiftieth, or three epochs, if most rows of each of these epochs don't count.
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
    /// The newest epochs with rows, as long as most rows of each don't count.
    run: BadRun,
}

/// Epochs in a row of a source of which each shows mostly rows that don't count.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct BadRun {
    /// Number of times that the clock closed epochs with rows of the source.
    steps: u64,
    /// Rows of the epochs before.
    before: RowCounters,
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

    /// Notes what became of all rows of closed epochs since the judge began.
    fn close(&mut self, counters: RowCounters) {
        self.before = self.counts.closed;
        self.counts.closed = counters;
        self.counts.closed += self.earlier;
        let newest = self.newest();
        if newest.rows > 0 {
            let run = &mut self.counts.run;
            if run.steps == 0 {
                run.before = self.before;
            }
            run.steps = if 2 * newest.uncounted() > newest.rows { run.steps + 1 } else { 0 };
        }
    }

    /// Returns the rows of the newest closed epochs.
    fn newest(&self) -> RowCounters {
        self.counts.closed.since(&self.before)
    }

    /// Whether the public clock fell back in the newest closed epochs, for most of their rows and a
    /// good part of all.
    fn has_fallen(&self) -> bool {
        let (newest, rows) = (self.newest(), self.counts.closed.rows);
        2 * newest.behind_clock > newest.rows && newest.behind_clock >= LEAST_ROWS.max(rows / RUN_SHARE)
    }

    /// Returns the rows to judge now, if they are enough. The clock has closed epochs at `steps`
    /// rows.
    fn recent(&self, steps: u64) -> Option<RowCounters> {
        if self.has_fallen() {
            return Some(self.newest());
        }
        let SourceCounts { closed, judged, run } = &self.counts;
        let of_run = closed.since(&run.before);
        if run.steps >= LEAST_RUN.0.max(steps / RUN_SHARE) && of_run.rows >= LEAST_RUN.1 {
            return Some(of_run);
        }
        let recent = closed.since(judged);
        let least = LEAST_ROWS.max(closed.rows / 10).min(MOST_ROWS);
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
            source.close(counters);
        }
        true
    }

    /// Returns the problems of the first rows of each source, with those of open epochs, or of the
    /// newest epochs among them.
    pub fn look(&mut self, sources: &[SourceRows<'_>], copies: u64, cut: Option<&EntityCut>) -> Vec<Problem> {
        self.sources.iter_mut().for_each(|source| source.counts.judged = source.counts.closed);
        let mut problems = self.all(Extent::First, sources, copies);
        problems.extend(cut.and_then(EntityCut::problem));
        if problems.is_empty() {
            let surveys: Vec<_> = sources.iter().map(|rows| rows.survey).collect();
            return self.judge(&surveys);
        }
        let preflight = self.pipeline.preflight;
        self.marked(problems, |problem| match preflight {
            Preflight::Stop => true,
            Preflight::Warn => problem.public,
            Preflight::Off => false,
        })
    }

    /// Returns the problem of each source whose public clock fell back in the newest epochs.
    pub fn fallen(&self) -> Vec<Problem> {
        let fallen = self.sources.iter().zip(&self.pipeline.sources).filter(|(judge, _)| judge.has_fallen());
        let problem = |source: &Source| match self.pipeline.has_several_sources() {
            true => falling_clock("the latest rows").of_source(&source.name),
            false => falling_clock("the latest rows"),
        };
        fallen.map(|(_, source)| problem(source)).collect()
    }

    /// Returns the problems of the rows since the last judgement and of the epochs closed so far,
    /// which the newest of these epochs show too. The surveys find words only.
    pub fn judge(&mut self, surveys: &[&RowSurvey]) -> Vec<Problem> {
        let steps = self.coverage.closed.steps;
        let recent: Vec<_> = self.sources.iter().map(|source| source.recent(steps)).collect();
        let newest = self.coverage.closed.since(&self.before);
        let is_due = recent.iter().any(Option::is_some);
        if !is_due && !is_nearly_empty(&self.pipeline, &self.coverage, &newest) {
            return Vec::new();
        }
        let sources = self.sources.iter().zip(&recent).zip(surveys);
        let rows = sources.map(|((source, counters), survey)| SourceRows {
            counters: counters.unwrap_or_default(),
            newest: source.newest(),
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
