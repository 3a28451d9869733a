//! Guards a run against rows that don't count. It checks the first rows and judges later ones
//! before anything is charged or published; with `preflight = "stop"`, also before each further
//! epoch is published. Private problems stop a run only with `"stop"`. Otherwise they are lines for
//! the operator.
//!
//! Records are dealt as they come; only the first closed epochs are held back, because nothing is
//! committed before one closes. So no row is lost or reordered, and what is held is a few marks.
//! The first check ends after [`FIRST_ROWS`] rows from the first epoch on, or at the end of the
//! input. In a live stream it also ends when an epoch has closed and the next row has not arrived:
//! a live stream is never delayed by a wait for more rows. Of several sources, [`FIRST_ROWS`] rows
//! each are examined, so the first check does not depend on which one is read first. If one of them
//! is live, the first check ends after a tenth of a second without a row.
//!
//! Later rows are judged whenever the clock closes epochs, before any of these is published. A run
//! that stops there first commits the epochs before, each with the state of the judge. The next run
//! reads the rows after these epochs again, and continues from that state. So it comes to the same
//! judgement and publishes no more either, unless the source was corrected.
//!
//! Without `"stop"`, one later fact is still reported to everyone, because it is public: that the
//! clock of a first run fell back. What the limits of entities leave out is followed to the end of
//! a first run if private problems are shown, and always where later rows are judged.
//!
//! The rules that decide are in [`crate::check`].

use hushflow_operators::{Entity, EntityHistory, Records};

use super::resume::SourceResume;
use crate::check::{FIRST_ROWS, JudgeState, Problem, RowJudge, SourceRows};
use crate::control::Control;
use crate::pipeline::{Pipeline, Preflight};
use crate::source::{RowCounters, RowSurvey};

/// Epochs that the clock closes with one mark.
pub(super) struct ClosedEpochs {
    /// The last of them.
    pub(super) epoch: u64,
    /// The last epoch that the same row has closed, with this mark or the next ones.
    pub(super) due: u64,
    /// The number of rows of all sources at which their clocks closed `epoch`.
    pub(super) rows: u64,
    /// Outcome of these rows of each source, without duplicates and without rows that an earlier
    /// run has judged.
    pub(super) counters: Vec<RowCounters>,
    /// The position at which each source, or each of its partitions, resumes.
    pub(super) resumes: Vec<SourceResume>,
    /// The state of the judge, if later rows are judged: a resumed run continues from it.
    pub(super) judged: Option<Box<JudgeState>>,
}

/// Judges the rows of a run.
pub(super) struct RowGuard {
    judge: RowJudge,
    /// Whether several clocks are merged. Then the merge decides when enough rows were examined.
    is_merging: bool,
    control: Control,
    /// Whether rows are judged after the first epoch is published, too.
    judges_later_rows: bool,
    /// The last epoch that may be published.
    published: u64,
    /// The check of the first rows, until it is over.
    first_check: Option<FirstCheck>,
    /// Rows of all sources.
    rows: u64,
    duplicates: u64,
    /// Whether the run began with the first epoch.
    is_first: bool,
    /// Problems that were reported to the operator.
    reported: Vec<Problem>,
    /// Clocks that fell back, which were reported to everyone. What is reported here must not
    /// depend on private problems, so it has a list of its own.
    fallen: Vec<Problem>,
}

/// A check of the first rows.
struct FirstCheck {
    /// Outcome and survey of the rows of each source.
    sources: Vec<(RowCounters, RowSurvey)>,
    /// Closed epochs that wait for its end.
    epochs: Vec<ClosedEpochs>,
}

impl RowGuard {
    /// Begins with the rows after the last committed epoch; `None` if the pipeline turns the guard
    /// off. Only a run that publishes the first epoch checks its first rows. `histories` are those
    /// of the entities after the committed epochs.
    pub(super) fn new(
        pipeline: &Pipeline,
        committed: u64,
        histories: &[(Entity, EntityHistory)],
        judged: Option<&JudgeState>,
        control: &Control,
    ) -> Option<Self> {
        let is_first = committed == 0;
        (pipeline.preflight != Preflight::Off).then(|| {
            let mut guard = RowGuard {
                is_first,
                judge: RowJudge::new(pipeline, committed, histories, judged),
                is_merging: pipeline.has_several_sources() || pipeline.has_partitions(),
                control: control.clone(),
                judges_later_rows: pipeline.preflight == Preflight::Stop,
                published: committed,
                first_check: is_first.then(|| FirstCheck::new(pipeline.sources.len())),
                rows: 0,
                duplicates: 0,
                reported: Vec::new(),
                fallen: Vec::new(),
            };
            guard.forget_entities(is_first);
            if !guard.judges_later_rows {
                guard.judge.forget_values();
            }
            guard
        })
    }

    /// Forgets what the limits of entities leave out, unless it is still judged.
    fn forget_entities(&mut self, is_judged: bool) {
        if !self.judges_later_rows && !is_judged {
            self.judge.forget_entities();
        }
    }

    /// Adds records of a source, which are dealt at once. They hold no duplicates; `duplicates` is
    /// the number of those found so far.
    pub(super) fn add(&mut self, source: usize, records: &Records, duplicates: u64) {
        self.judge.add(source, records);
        self.duplicates = duplicates;
    }

    /// Whether it needs the records that other processes take: in a first run, until the first
    /// epoch is published. So whether they are sent is public.
    pub(super) fn needs_records(&self) -> bool {
        self.is_first && self.published == 0
    }

    /// Notes the number of rows so far.
    pub(super) fn count(&mut self, rows: u64) {
        self.rows = rows;
    }

    /// Records the outcome and the survey of the first rows of a source.
    pub(super) fn survey(&mut self, source: usize, rows: SourceRows<'_>) {
        if let Some(first_check) = &mut self.first_check {
            first_check.sources[source] = (rows.counters, rows.survey.clone());
        }
    }

    /// Whether the first check has seen enough rows.
    pub(super) fn has_checked_first_rows(&self) -> bool {
        // The survey may know more rows, which another process has taken.
        let of_source =
            |(counters, survey): &(RowCounters, RowSurvey)| counters.rows.saturating_sub(survey.early.rows);
        let first_check = self.first_check.as_ref().filter(|_| !self.is_merging);
        first_check.is_some_and(|check| check.sources.iter().map(of_source).sum::<u64>() >= FIRST_ROWS)
    }

    /// Whether the first check is not over.
    pub(super) fn is_checking_first_rows(&self) -> bool {
        self.first_check.is_some()
    }

    /// Whether closed epochs wait for the end of the first check.
    pub(super) fn holds_epochs(&self) -> bool {
        self.first_check.as_ref().is_some_and(|first_check| !first_check.epochs.is_empty())
    }

    /// Returns the epochs that may close now, or why the run must stop before they close. `surveys`
    /// has one of each source.
    pub(super) fn close(
        &mut self,
        mut closed: ClosedEpochs,
        surveys: &[&RowSurvey],
    ) -> Result<Option<ClosedEpochs>, String> {
        let is_new = self.judge.close(closed.due, &closed.counters);
        if is_new && self.is_first && !self.judges_later_rows {
            self.report_fallen();
        }
        if let Some(first_check) = &mut self.first_check {
            first_check.epochs.push(closed);
            return Ok(None);
        }
        if is_new && self.judge.judges_after(self.published) {
            let problems = self.judge.judge(surveys);
            if let Some(problem) = problems.iter().find(|problem| problem.stops) {
                return Err(refusal("among the latest rows, ", problem, "warn"));
            }
            self.warn("among the latest rows, ", problems);
        }
        self.published = closed.epoch;
        closed.judged = self.judges_later_rows.then(|| Box::new(self.judge.state()));
        Ok(Some(closed))
    }

    /// Reports a clock that fell back, once for each source: a public fact.
    fn report_fallen(&mut self) {
        for problem in self.judge.fallen() {
            if !self.fallen.iter().any(|fallen| fallen.is_same(&problem)) {
                self.control.notice(&format!("{}; hushflow check shows more", problem.message));
                self.fallen.push(problem);
            }
        }
    }

    /// Ends the first check, if it is not over. Returns the epochs to close now, or why the run
    /// must not begin.
    pub(super) fn end_first_check(&mut self) -> Result<Vec<ClosedEpochs>, String> {
        let Some(FirstCheck { sources, mut epochs }) = self.first_check.take() else { return Ok(Vec::new()) };
        let rows: Vec<_> =
            sources.iter().map(|(counters, survey)| SourceRows::new(*counters, survey)).collect();
        let problems = self.judge.judge_first_rows(&rows, self.duplicates);
        self.forget_entities(self.control.shows_private());
        // A public reason says nothing about private ones.
        let reasons = || problems.iter().filter(|problem| problem.stops);
        if let Some(problem) = reasons().find(|problem| problem.public).or_else(|| reasons().next()) {
            let preflight = if problem.public { "off" } else { "warn" };
            return Err(refusal("among the first rows, ", problem, preflight));
        }
        self.warn("among the first rows, ", problems);
        self.report_early_rows(&sources);
        self.published = epochs.last().map_or(self.published, |closed| closed.epoch);
        let state = self.judges_later_rows.then(|| Box::new(self.judge.state()));
        epochs.iter_mut().for_each(|closed| closed.judged.clone_from(&state));
        Ok(epochs)
    }

    /// Reports to everyone that the first epoch begins late: by the public clock, most rows of all
    /// sources so far come before it. That may be intended.
    fn report_early_rows(&self, sources: &[(RowCounters, RowSurvey)]) {
        let rows: u64 = sources.iter().map(|(counters, _)| counters.rows).sum();
        let early: u64 = sources.iter().map(|(counters, _)| counters.early_clock).sum();
        if self.is_first && 2 * early > rows {
            self.control.notice(
                "by the public clock, most rows so far come before the first epoch and don't count: if that is not meant, stop the \
                 run and correct start in [epochs]; hushflow check shows more",
            );
        }
    }

    /// Warns the operator of private problems, once of each, before anything is charged.
    fn warn(&mut self, among: &str, problems: Vec<Problem>) {
        for problem in problems {
            if !problem.public && !self.reported.iter().any(|known| known.is_same(&problem)) {
                self.control.early_warning(&format!(
                    "{PRIVATE_MARK}{among}{} (hushflow check shows more; preflight = \"stop\" in [source] would have \
                     stopped this run before it spent anything)",
                    problem.message
                ));
                self.reported.push(problem);
            }
        }
    }

    /// Ends the first check at the end of the input. Without a row, which is public, no epoch
    /// closes.
    pub(super) fn end_input(&mut self) -> Result<Vec<ClosedEpochs>, String> {
        if self.first_check.is_some() && self.rows == 0 {
            self.first_check = None;
            return Ok(Vec::new());
        }
        self.end_first_check()
    }

    /// Returns the lines for the operator about all rows of each source, except problems that the
    /// first check has reported.
    pub(super) fn private_notices(&self, sources: &[SourceRows<'_>]) -> Vec<String> {
        let mut problems = self.judge.sum_up(sources, self.duplicates);
        problems.extend(self.judge.lost_shares(sources, &problems));
        problems
            .iter()
            .filter(|problem| !self.reported.iter().chain(&self.fallen).any(|known| known.is_same(problem)))
            .map(|problem| format!("{PRIVATE_MARK}{}; hushflow check shows more", problem.message))
            .collect()
    }
}

impl FirstCheck {
    fn new(sources: usize) -> Self {
        let sources = (0..sources).map(|_| Default::default()).collect();
        FirstCheck { sources, epochs: Vec::new() }
    }
}

/// Returns why a run stops, and the `preflight` with which it continues.
fn refusal(among: &str, problem: &Problem, preflight: &str) -> String {
    let message = &problem.message;
    format!(
        "{among}{message} (hushflow check shows more; preflight = \"{preflight}\" in [source] continues anyway)"
    )
}

/// Begins lines about private facts, and marks them as private wherever they end up.
const PRIVATE_MARK: &str = "private, for the operator: ";
