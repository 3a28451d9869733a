//! Judges rows while they are read: the first ones, then those since the last judgement.
//!
//! A judgement depends on the rows alone. It does not depend on the order in which several sources
//! are read, nor on interruptions of the run:
//!
//! - A record counts in its epoch, any other row in the epoch that the clock of its own source has
//!   reached.
//! - Rows are judged when the clocks of all sources have closed an epoch, in the order of epochs,
//!   and by the closed epochs alone.
//! - Each source is judged by its own rows. Epochs and keys without a record are those of all
//!   sources together.
//! - Besides the rows since the last judgement, two kinds of epochs are judged by themselves:
//!   consecutive epochs in each of which most rows don't count, and an epoch in which the public
//!   clock fell back.
//! - The values of each column, below and above its bounds, are judged in the same way, and so are
//!   the records that the limits of entities leave out, over all sources together.
//! - The [state](JudgeState) after a judgement is committed with the epochs that it accepts.

use hushflow_operators::{Entity, EntityHistory, Records};
use serde::{Deserialize, Serialize};

use super::clipping::{ClippedColumn, ClippedValues};
use super::coverage::{ClosedCoverage, Coverage};
use super::entities::EntityCut;
use super::problems::{
    Extent, Observation, Problem, SourceRows, beyond_bounds, falling_clock, is_nearly_empty, lost_shares,
    problems,
};
use super::recent::{LEAST, RUN_SHARE, Recent, Share};
use crate::pipeline::{Pipeline, Preflight, Source};
use crate::source::{RowCounters, RowSurvey};

/// Judges the rows of a run, the values of its columns, and the records that the limits of entities
/// leave out. Private. `recent.rs` decides when rows are judged.
pub struct RowJudge {
    pipeline: Pipeline,
    coverage: Coverage,
    /// The closed epochs before the newest ones.
    before: ClosedCoverage,
    sources: Vec<SourceJudge>,
    /// Records that the limits of entities leave out, if entities are protected.
    cut: Option<EntityCut>,
}

/// Judges the rows of a source.
struct SourceJudge {
    rows: Recent<RowCounters>,
    /// Counters of earlier runs, to which those of this run are added.
    earlier: RowCounters,
    values: ClippedValues,
}

/// Tallies of the rows of a source.
#[derive(Clone, Serialize, Deserialize)]
struct SourceState {
    rows: Recent<RowCounters>,
    values: Vec<ClippedColumn>,
}

/// Tallies of the rows of closed epochs, from which another judge continues. Private.
#[derive(Clone, Serialize, Deserialize)]
pub struct JudgeState {
    coverage: ClosedCoverage,
    /// Whether each key has a record; empty if all keys have one.
    keys: Vec<bool>,
    /// The state of each source.
    sources: Vec<SourceState>,
    /// The records that the limits of entities leave out, if entities are protected.
    entities: Option<Recent<Share>>,
}

impl JudgeState {
    /// The last epoch whose rows were judged.
    pub fn last(&self) -> u64 {
        self.coverage.last
    }
}

impl SourceJudge {
    fn new(pipeline: &Pipeline, state: Option<&SourceState>) -> Self {
        let bounds = pipeline.columns.iter().map(|column| (column.lower, column.upper));
        let rows = state.map_or_else(Recent::default, |state| state.rows.resume());
        let values = ClippedValues::new(bounds, state.map(|state| &state.values[..]));
        SourceJudge { rows, earlier: rows.closed, values }
    }

    /// Records the outcomes of all rows of closed epochs since the judge began.
    fn close(&mut self, last: u64, mut counters: RowCounters) {
        counters += self.earlier;
        self.rows.close(counters);
        self.values.close(last);
    }

    fn set_judged(&mut self) {
        self.rows.set_judged();
        self.values.set_judged();
    }

    /// Whether the public clock fell back in the newest closed epochs, for most of their rows and
    /// for at least `LEAST` rows and one in `RUN_SHARE` of all rows.
    fn has_fallen(&self) -> bool {
        let (newest, rows) = (self.rows.newest(), self.rows.closed.rows);
        2 * newest.behind_clock > newest.rows && newest.behind_clock >= LEAST.max(rows / RUN_SHARE)
    }

    /// Returns the rows to judge next, if there are enough. The clock has closed epochs at `steps`
    /// rows.
    fn due(&self, steps: u64) -> Option<RowCounters> {
        if self.has_fallen() { Some(self.rows.newest()) } else { self.rows.due(steps) }
    }
}

impl RowJudge {
    /// Begins after the epoch `committed`, with the histories of entities after that epoch and with
    /// the state that was committed with it, if there is one.
    pub fn new(
        pipeline: &Pipeline,
        committed: u64,
        histories: &[(Entity, EntityHistory)],
        state: Option<&JudgeState>,
    ) -> Self {
        let coverage = match state {
            Some(state) => Coverage::resume(pipeline, state.coverage, &state.keys),
            None => Coverage::new(pipeline, committed),
        };
        let source =
            |index: usize| SourceJudge::new(pipeline, state.and_then(|state| state.sources.get(index)));
        let cut = pipeline.entity.as_ref().map(|entity| {
            let cut = EntityCut::new(entity.limits, committed, histories.iter().copied());
            match state.and_then(|state| Some((state.entities?, state.last()))) {
                Some((state, counted)) => cut.resume(state, counted),
                None => cut,
            }
        });
        RowJudge {
            sources: (0..pipeline.sources.len()).map(source).collect(),
            pipeline: pipeline.clone(),
            before: coverage.closed,
            coverage,
            cut,
        }
    }

    /// Returns the tallies of the closed epochs.
    pub fn state(&self) -> JudgeState {
        let state = |source: &SourceJudge| SourceState { rows: source.rows, values: source.values.state() };
        JudgeState {
            coverage: self.coverage.closed,
            keys: self.coverage.keys(),
            sources: self.sources.iter().map(state).collect(),
            entities: self.cut.as_ref().map(EntityCut::state),
        }
    }

    /// Adds records of a source.
    pub fn add(&mut self, source: usize, records: &Records) {
        self.coverage.add(records);
        self.sources[source].values.add(records, self.coverage.closed.last);
        if let Some(cut) = &mut self.cut {
            cut.add(records);
        }
    }

    /// Returns the records that the limits of entities leave out, if entities are protected.
    pub fn entities(&self) -> Option<&EntityCut> {
        self.cut.as_ref()
    }

    /// Stops counting values, which only [`judge`](Self::judge) uses.
    pub fn forget_values(&mut self) {
        let none = || ClippedValues::new(std::iter::empty(), None);
        self.sources.iter_mut().for_each(|source| source.values = none());
    }

    /// Also counts the values of each column in the records of entities that count.
    pub fn count_values(&mut self) {
        let columns = self.pipeline.columns.len();
        self.cut.iter_mut().for_each(|cut| cut.count_values(columns));
    }

    /// Counts the entities of each key whose records count, if entities are protected.
    pub fn count_keys(&mut self) {
        self.cut.iter_mut().for_each(EntityCut::count_keys);
    }

    /// Stops counting the records that the limits of entities leave out.
    pub fn forget_entities(&mut self) {
        self.cut = None;
    }

    /// Notes that the clocks have closed the epochs up to `last` at one row. `counters` are
    /// the outcomes of the rows of these epochs since the judge began, by source. Returns whether
    /// any of the epochs is new.
    pub fn close(&mut self, last: u64, counters: &[RowCounters]) -> bool {
        if last <= self.coverage.closed.last {
            return false;
        }
        self.before = self.coverage.closed;
        self.coverage.close(last);
        for (source, &counters) in self.sources.iter_mut().zip(counters) {
            source.close(last, counters);
        }
        if let Some(cut) = &mut self.cut {
            cut.close(last);
        }
        true
    }

    /// Returns the problems of the first rows of each source, including rows of open epochs. If
    /// there are none, returns the problems of the newest epochs among these rows. Nothing is
    /// published yet.
    pub fn judge_first_rows(&mut self, sources: &[SourceRows<'_>], duplicates: u64) -> Vec<Problem> {
        self.sources.iter_mut().for_each(SourceJudge::set_judged);
        if let Some(cut) = &mut self.cut {
            cut.set_judged();
        }
        let problems = self.all(Extent::First, sources, duplicates);
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

    /// Whether later rows are judged, once these epochs are published.
    pub fn judges_after(&self, published: u64) -> bool {
        match self.pipeline.preflight {
            Preflight::Stop => true,
            Preflight::Warn => published == 0,
            Preflight::Off => false,
        }
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
    /// if the newest of these epochs show the same problems, before more epochs are published. The
    /// surveys only supply details for the messages. A run stops at them only by the operator's
    /// word, because private facts decide when rows are judged.
    pub fn judge(&mut self, surveys: &[&RowSurvey]) -> Vec<Problem> {
        let steps = self.coverage.closed.steps;
        let mut found = self.judge_rows(surveys, steps);
        for (judge, source) in self.sources.iter_mut().zip(&self.pipeline.sources) {
            found.extend(judge.values.judge(steps).into_iter().map(|(column, is_above)| {
                let problem = beyond_bounds(&self.pipeline.columns[column], is_above);
                if self.pipeline.has_several_sources() { problem.of_source(&source.name) } else { problem }
            }));
        }
        found.extend(self.cut.as_mut().and_then(|cut| cut.judge(steps)));
        let stops = self.pipeline.preflight == Preflight::Stop;
        self.marked(found, |_| stops)
    }

    fn judge_rows(&mut self, surveys: &[&RowSurvey], steps: u64) -> Vec<Problem> {
        let recent: Vec<_> = self.sources.iter().map(|source| source.due(steps)).collect();
        let newest = self.coverage.closed.since(&self.before);
        let is_due = recent.iter().any(Option::is_some);
        if !is_due && !is_nearly_empty(&self.pipeline, &self.coverage, &newest) {
            return Vec::new();
        }
        let sources = self.sources.iter().zip(&recent).zip(surveys);
        let rows = sources.map(|((source, counters), survey)| SourceRows {
            counters: counters.unwrap_or_default(),
            newest: source.rows.newest(),
            survey,
        });
        let rows: Vec<SourceRows<'_>> = rows.collect();
        let seen = Observation {
            extent: Extent::Later,
            sources: &rows,
            duplicates: 0,
            coverage: &self.coverage,
            newest,
        };
        let found = problems(&self.pipeline, &seen);
        for (source, _) in self.sources.iter_mut().zip(&recent).filter(|(_, recent)| recent.is_some()) {
            source.rows.set_judged();
        }
        found
    }

    /// Returns the problems of all rows of each source. These problems never stop a run.
    pub fn sum_up(&self, sources: &[SourceRows<'_>], duplicates: u64) -> Vec<Problem> {
        self.all(Extent::Whole, sources, duplicates)
    }

    /// Returns the losses of each source that are not problems yet, over all rows: malformed rows
    /// and values beyond their bounds, if they are more than one in twenty.
    pub fn lost_shares(&self, sources: &[SourceRows<'_>], problems: &[Problem]) -> Vec<Problem> {
        let of_source = |(source, rows): (&Source, &SourceRows<'_>)| {
            let lost = lost_shares(&self.pipeline, rows);
            let named = lost.into_iter().map(|problem| match self.pipeline.has_several_sources() {
                true => problem.of_source(&source.name),
                false => problem,
            });
            named.collect::<Vec<_>>()
        };
        let all = self.pipeline.sources.iter().zip(sources).flat_map(of_source);
        all.filter(|lost| !problems.iter().any(|known| known.is_same(lost))).collect()
    }

    fn all(&self, extent: Extent, sources: &[SourceRows<'_>], duplicates: u64) -> Vec<Problem> {
        let coverage = &self.coverage.with_open();
        let seen = Observation { extent, sources, duplicates, coverage, newest: coverage.closed };
        let limits = self.cut.as_ref().and_then(EntityCut::problem);
        problems(&self.pipeline, &seen).into_iter().chain(limits).collect()
    }

    /// Marks the problems at which a run stops.
    fn marked(&self, mut found: Vec<Problem>, stops: impl Fn(&Problem) -> bool) -> Vec<Problem> {
        // A stream may begin before its first epoch.
        let is_endless = self.pipeline.sources.iter().any(Source::is_endless);
        found.retain(|problem| !(is_endless && problem.kind == "before the start"));
        found.iter_mut().for_each(|problem| problem.stops = stops(problem));
        found
    }
}
