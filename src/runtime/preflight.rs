//! Guards a run against rows that don't count: the look at its first rows, before anything is
//! charged or published, and with `preflight = "stop"` the judgement of later rows, before more is
//! published.
//!
//! Records are dealt as they come; only the first closed epochs are held back, because nothing is
//! committed before one closes. So no row is lost or reordered, and what is held is a few marks.
//! The look ends after [`LOOK_ROWS`] rows, at the end of the input, or, for rows that come as time
//! goes on, when an epoch has closed and the next row is not there yet: a live stream is never
//! delayed by a wait for more rows. Several sources are looked at for [`LOOK_ROWS`] rows each, so
//! the look does not depend on which one is read first. If one of them is live, the look ends after
//! a tenth of a second of silence.
//!
//! Later rows are judged whenever the clock closes epochs, before any of these is published. A run
//! that stops there first commits the epochs before, each with the state of the judge. The next run
//! reads the rows after them again, goes on from that state, judges them alike, and publishes no
//! more either.
//!
//! What may decide: [`crate::check`].

use crate::check::{JudgeState, Problem, RowJudge};
use crate::control::Control;
use crate::pipeline::{Pipeline, Preflight};
use crate::source::{RecordBatch, ResumePoint, RowCounters, RowSurvey};

/// Rows of each source that are looked at.
pub(super) const LOOK_ROWS: u64 = 4096;

/// Epochs that the clock closes with one mark.
pub(super) struct ClosedEpochs {
    /// The last of them.
    pub(super) epoch: u64,
    /// The last epoch that the same row has closed, with this mark or the next ones.
    pub(super) due: u64,
    /// The number of rows of all sources at which their clocks closed it.
    pub(super) rows: u64,
    /// What became of these rows, except for copies and for rows that an earlier run has judged.
    pub(super) counters: RowCounters,
    /// The position at which each source resumes.
    pub(super) resumes: Vec<ResumePoint>,
    /// The state of the judge, if a run that resumes judges its rows.
    pub(super) judged: Option<Box<JudgeState>>,
}

/// Judges the rows of a run.
pub(super) struct RowGuard {
    judge: RowJudge,
    /// Whether there are several sources, of which the merge says when enough rows were looked at.
    is_merging: bool,
    control: Control,
    /// Whether rows after the look are judged too.
    goes_on: bool,
    /// The look at the first rows, until it is over.
    look: Option<FirstLook>,
    counters: RowCounters,
    /// Kinds of problems that were reported to the operator.
    reported: Vec<&'static str>,
}

/// A look at the first rows.
#[derive(Default)]
struct FirstLook {
    survey: RowSurvey,
    /// Closed epochs that wait for its end.
    epochs: Vec<ClosedEpochs>,
}

impl RowGuard {
    /// Begins with the rows after the last committed epoch, unless the pipeline turns it off. Only
    /// a run that publishes the first epoch looks at its first rows.
    pub(super) fn new(
        pipeline: &Pipeline,
        committed: u64,
        judged: Option<&JudgeState>,
        control: &Control,
    ) -> Option<Self> {
        (pipeline.preflight != Preflight::Off).then(|| RowGuard {
            judge: RowJudge::new(pipeline, committed, judged),
            is_merging: pipeline.has_several_sources(),
            control: control.clone(),
            goes_on: pipeline.preflight == Preflight::Stop,
            look: (committed == 0).then(FirstLook::default),
            counters: RowCounters::default(),
            reported: Vec::new(),
        })
    }

    /// Adds records, which are dealt at once, and the epochs of copies that were taken out.
    pub(super) fn add(&mut self, batch: &RecordBatch, copies: &[u64]) {
        self.judge.add(&batch.records, copies);
    }

    /// Notes what became of the rows so far.
    pub(super) fn count(&mut self, counters: RowCounters, survey: Option<&RowSurvey>) {
        self.counters = counters;
        if let (Some(look), Some(survey)) = (&mut self.look, survey) {
            look.survey = survey.clone();
        }
    }

    /// Whether the look has seen enough rows.
    pub(super) fn has_looked(&self) -> bool {
        self.is_looking() && !self.is_merging && self.counters.rows >= LOOK_ROWS
    }

    /// Whether the look is not over.
    pub(super) fn is_looking(&self) -> bool {
        self.look.is_some()
    }

    /// Whether closed epochs wait for the end of the look.
    pub(super) fn holds_epochs(&self) -> bool {
        self.look.as_ref().is_some_and(|look| !look.epochs.is_empty())
    }

    /// Returns the epochs that may close now, or why the run must stop before.
    pub(super) fn close(
        &mut self,
        mut closed: ClosedEpochs,
        survey: &dyn Fn() -> RowSurvey,
    ) -> Result<Option<ClosedEpochs>, String> {
        let is_new = self.judge.close(closed.due, closed.counters);
        if let Some(look) = &mut self.look {
            look.epochs.push(closed);
            return Ok(None);
        }
        if self.goes_on && is_new {
            let problems = self.judge.judge(survey);
            if let Some(problem) = problems.iter().find(|problem| problem.stops) {
                return Err(refusal("among the latest rows, ", problem, "warn"));
            }
        }
        closed.judged = self.goes_on.then(|| Box::new(self.judge.state()));
        Ok(Some(closed))
    }

    /// Ends the look, if it is not over. Returns the epochs to close now, or why the run must not
    /// begin.
    pub(super) fn end_look(&mut self) -> Result<Vec<ClosedEpochs>, String> {
        let Some(FirstLook { survey, mut epochs }) = self.look.take() else { return Ok(Vec::new()) };
        let problems = self.judge.look(self.counters, &survey);
        if let Some(problem) = problems.iter().find(|problem| problem.stops) {
            return Err(refusal("among the first rows, ", problem, "off"));
        }
        for problem in &problems {
            self.control.private_notice(&private_notice("among the first rows, ", problem));
            self.reported.push(problem.kind);
        }
        let state = self.goes_on.then(|| Box::new(self.judge.state()));
        epochs.iter_mut().for_each(|closed| closed.judged.clone_from(&state));
        Ok(epochs)
    }

    /// Ends the look at the end of the input. Without a row, which is public, no epoch closes.
    pub(super) fn end_input(&mut self) -> Result<Vec<ClosedEpochs>, String> {
        if self.look.is_some() && self.counters.rows == 0 {
            self.look = None;
            return Ok(Vec::new());
        }
        self.end_look()
    }

    /// Returns the lines for the operator about all rows of a run, except problems that the look
    /// has reported.
    pub(super) fn private_notices(&self, counters: RowCounters, survey: &RowSurvey) -> Vec<String> {
        let problems = self.judge.sum_up(counters, survey).into_iter();
        problems
            .filter(|problem| !self.reported.contains(&problem.kind))
            .map(|problem| private_notice("", &problem))
            .collect()
    }
}

/// Returns why a run stops, and the `preflight` with which it goes on.
fn refusal(among: &str, problem: &Problem, preflight: &str) -> String {
    let message = &problem.message;
    format!(
        "{among}{message} (hushflow check shows more; preflight = \"{preflight}\" in [source] goes on all the same)"
    )
}

/// Returns a private problem as a line for the operator. The words before the message mark it as
/// private wherever it ends up.
fn private_notice(among: &str, problem: &Problem) -> String {
    format!("private, for the operator: {among}{}; hushflow check shows more", problem.message)
}
