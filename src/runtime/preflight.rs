//! The look at the first rows of a run, before anything is charged or published.
//!
//! Records are dealt as they come; only the first closed epochs are held back, because nothing is
//! committed before one closes. So no row is lost or reordered, and what is held is a few marks.
//! The look ends after [`LOOK_ROWS`] rows, at the end of the input, or, for rows that come as time
//! goes on, when an epoch has closed and the next row is not there yet: a live stream is never
//! delayed by a wait for more rows. With several sources it ends after a tenth of a second of
//! silence.
//!
//! What the look may decide: [`crate::check`].

use crate::check::{Observation, Problem, RecordTally, problems, problems_of_epochs};
use crate::control::Control;
use crate::pipeline::{Pipeline, Preflight, Source};
use crate::source::{RecordBatch, ResumePoint, RowCounters, RowSurvey};

/// Rows that are looked at.
pub(super) const LOOK_ROWS: u64 = 4096;

/// Rows from which shares mean anything.
const LEAST_ROWS: u64 = 20;

/// Closed epochs that wait for the end of the look.
pub(super) struct HeldClosing {
    pub(super) epoch: u64,
    pub(super) rows: u64,
    pub(super) resumes: Vec<ResumePoint>,
}

/// A look at the first rows.
pub(super) struct FirstLook {
    pipeline: Pipeline,
    control: Control,
    seen: Observation,
    held: Vec<HeldClosing>,
    /// Closed epochs, and the marks that closed them.
    closed: u64,
    marks: u64,
}

/// The outcome of a look.
pub(super) struct LookOutcome {
    /// The epochs to close now.
    pub(super) held: Vec<HeldClosing>,
    /// Kinds of problems that were reported to the operator.
    pub(super) reported: Vec<&'static str>,
    /// Why the run must not begin.
    pub(super) refusal: Option<String>,
}

impl FirstLook {
    /// Begins the look of a run, unless the pipeline turns it off or an earlier run has looked.
    pub(super) fn new(pipeline: &Pipeline, committed: u64, control: &Control) -> Option<Self> {
        (committed == 0 && pipeline.preflight != Preflight::Off).then(|| FirstLook {
            pipeline: pipeline.clone(),
            control: control.clone(),
            seen: Observation { tally: RecordTally::new(pipeline), ..Observation::default() },
            held: Vec::new(),
            closed: 0,
            marks: 0,
        })
    }

    /// Looks at records, which are dealt at once.
    pub(super) fn batch(&mut self, batch: &RecordBatch) {
        self.seen.tally.add(&batch.records);
    }

    /// Holds back closed epochs.
    pub(super) fn close(&mut self, closing: HeldClosing) {
        (self.closed, self.marks) = (closing.epoch, self.marks + 1);
        self.held.push(closing);
    }

    /// Notes what became of the rows so far.
    pub(super) fn count(&mut self, counters: RowCounters, survey: Option<&RowSurvey>) {
        self.seen.counters = counters;
        if let Some(survey) = survey {
            self.seen.survey = survey.clone();
        }
    }

    /// Whether enough rows have been seen.
    pub(super) fn is_over(&self) -> bool {
        self.seen.counters.rows >= LOOK_ROWS
    }

    /// Whether closed epochs wait.
    pub(super) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Ends the look.
    pub(super) fn end(self) -> LookOutcome {
        let mut found = problems(&self.pipeline, &self.seen, LEAST_ROWS);
        found.extend(problems_of_epochs(&self.pipeline, self.closed, self.marks));
        // A stream may begin before its first epoch.
        let is_endless = self.pipeline.sources.iter().any(Source::goes_on);
        found.retain(|problem| !(is_endless && problem.kind == "before the start"));
        let stops = |problem: &&Problem| problem.public || self.pipeline.preflight == Preflight::Stop;
        let refusal = found.iter().find(stops).map(|problem| {
            format!(
                "among the first rows, {}; nothing was published or spent (hushflow check shows more; preflight = \"off\" in \
                 [source] runs all the same)",
                problem.message
            )
        });
        let mut reported = Vec::new();
        for problem in found.iter().filter(|_| refusal.is_none()) {
            self.control.private_notice(&private_notice("among the first rows, ", problem));
            reported.push(problem.kind);
        }
        LookOutcome { held: self.held, reported, refusal }
    }
}

/// Returns a private problem as a line for the operator. The words before the message mark it as
/// private wherever it ends up.
pub(super) fn private_notice(among: &str, problem: &Problem) -> String {
    format!("private, for the operator: {among}{}; hushflow check shows more", problem.message)
}

/// Returns the lines for the operator about all rows of a run, except problems that the look
/// reported.
pub(super) fn private_notices(
    pipeline: &Pipeline,
    counters: RowCounters,
    survey: RowSurvey,
    reported: &[&'static str],
) -> Vec<String> {
    let seen = Observation { counters, survey, tally: RecordTally::new(pipeline) };
    let found = problems(pipeline, &seen, 1).into_iter();
    found
        .filter(|problem| !reported.contains(&problem.kind))
        .map(|problem| private_notice("", &problem))
        .collect()
}
