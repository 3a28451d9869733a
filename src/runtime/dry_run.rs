//! Reads the sources of a pipeline as a run does, and keeps nothing: no state, no journal, no
//! release.

use hushflow_mechanism::epochs::Schedule;

use super::copies::DuplicateFilter;
use crate::check::{Observation, Problem, RecordTally, problems, problems_of_epochs};
use crate::control::Control;
use crate::pipeline::Pipeline;
use crate::source::{ResumePoint, SourceError, SourceEvent, SourceReader};

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
    /// The rows.
    pub seen: Observation,
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
/// of them.
pub fn dry_run(pipeline: &Pipeline, limits: &DryRunLimits, progress: &mut dyn FnMut(u64)) -> DryRun {
    let seen = Observation { tally: RecordTally::new(pipeline), ..Observation::default() };
    let mut run = DryRun { seen, closed: 0, is_whole: true, fault: None, problems: Vec::new() };
    let (mut copies, mut marks) = (DuplicateFilter::default(), 0);
    let number = pipeline.sources.len() as u64;
    for (source, index) in pipeline.sources.iter().zip(0..) {
        let opened = SourceReader::controlled((pipeline, source), &limits.control, ResumePoint::START, 0);
        let read = opened.and_then(|reader| {
            let mut reader = reader.among((index, number)).surveying(limits.rows.unwrap_or(u64::MAX));
            let before = run.seen.counters.rows;
            let read = loop {
                let event = reader.next_event();
                progress(before + reader.counters().rows);
                match event {
                    Err(error) => break Err(error),
                    Ok(SourceEvent::Batch(mut batch)) => {
                        copies.take_out(&mut batch);
                        run.seen.tally.add(&batch.records);
                    }
                    Ok(SourceEvent::Mark(mark)) => {
                        (run.closed, marks) = (run.closed.max(mark.epoch), marks + 1);
                        if number == 1 {
                            copies.forget(mark.epoch);
                        }
                    }
                    Ok(SourceEvent::End) => break Ok(()),
                }
            };
            let mut rest = reader.take_batch();
            copies.take_out(&mut rest);
            run.seen.tally.add(&rest.records);
            run.seen.counters += *reader.counters();
            run.seen.survey.merge(reader.survey());
            run.is_whole &= reader.has_ended();
            read
        });
        if let Err(error) = read {
            (run.fault, run.is_whole) = (Some(error), false);
            break;
        }
    }
    run.seen.counters.copies = copies.found();
    run.problems = problems(pipeline, &run.seen, 1);
    run.problems.extend(problems_of_epochs(pipeline, run.closed, marks));
    if run.problems.is_empty() {
        run.problems.extend(empty_epochs(pipeline, &run));
    }
    if run.fault.is_some() {
        // The fault says the same more exactly.
        run.problems.retain(|problem| !problem.public && problem.kind != "before the start");
    }
    run
}

/// Epochs of a whole input of which nearly all have no record.
fn empty_epochs(pipeline: &Pipeline, run: &DryRun) -> Option<Problem> {
    let Schedule::ByTime(_) = &pipeline.epochs.schedule else { return None };
    let filled = run.seen.tally.epochs.len() as u64;
    let nearly_all = run.is_whole && run.closed >= 20 && filled.saturating_mul(10) < run.closed;
    nearly_all.then(|| Problem {
        kind: "empty epochs",
        public: false,
        message: "nearly all epochs would be published without a record: correct start, length or horizon in [epochs]".into(),
    })
}
