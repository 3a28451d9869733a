//! The dataflow of a pipeline that releases moments, from the source to the commit.

use std::sync::Arc;

use hushflow_operators::{
    Accumulate, Clip, Commit, CommitLog, Discover, Entity, Fault, KeyNames, Measurement, Records,
    ReleaseMoments, ReleasedEpoch, SplitEpochs, map_or_fault,
};
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::vec::Map;
use timely::dataflow::operators::{Concat, Inspect, Probe};
use timely::worker::Worker;

use super::cuts::EntityCuts;
use super::journal::{EpochExtra, Journal};
use super::source::{SourceStart, SourceStreams, epochs_ahead, source};
use super::{CHECKPOINT_INTERVAL, RunContext, RunError};
use crate::publication::MomentPublication;

/// Builds the dataflow of one worker.
pub(super) fn build(
    publication: &MomentPublication,
    worker: &mut Worker,
    run: RunContext<'_>,
    journal: Option<Journal>,
) {
    // All processes release with the noise and strategy of the log.
    let publication = match run.start.calibration.clone() {
        Some(calibration) => publication.clone().with_calibration(calibration),
        None => return run.fault.raise(RunError::Checkpoint),
    };
    let measured = publication.and_then(|publication| {
        let measurement = publication.measurement(run.noise)?;
        let measurement = measurement
            .checkpoint_interval(CHECKPOINT_INTERVAL)
            .resume(run.start.first_epoch, run.start.states.clone())
            .histories(run.start.histories.clone());
        Ok((measurement.build()?, publication))
    });
    match measured {
        Ok((measurement, publication)) => build_measured(&publication, &measurement, worker, run, journal),
        Err(error) => run.fault.raise(error),
    }
}

fn build_measured(
    publication: &MomentPublication,
    measurement: &Measurement,
    worker: &mut Worker,
    run: RunContext<'_>,
    journal: Option<Journal>,
) {
    let RunContext { feed, fault, cuts, texts, start, committed, last, .. } = run;
    let log = journal.map(|journal| Box::new(journal) as Box<dyn CommitLog<EpochExtra>>);
    let (number, first_epoch) = (worker.index(), start.first_epoch);
    let names = texts.cloned().map(|texts| -> KeyNames { Arc::new(move |number| texts.text(number)) });
    let cuts = publication.parameters().entity.is_some().then_some(cuts);
    let ahead = epochs_ahead(measurement.shards().coordinates());
    worker.dataflow::<u64, _, _>(|scope| {
        let SourceStreams { records, marks, ends } =
            source(scope, feed, number, SourceStart { first_epoch, ahead }, committed.clone(), fault.clone());
        let streams = RecordStreams {
            records,
            marks: marks.map(|(epoch, resume)| (epoch, EpochExtra::Resume(resume))),
            ends,
        };
        release(streams, (cuts, names), measurement, log, fault)
            .inspect(move |released| last.set(released.epoch + 1))
            .probe_with(committed);
    });
}

/// Input of a release.
pub(super) struct RecordStreams<'scope> {
    /// Records, at times no later than their epochs.
    pub(super) records: StreamVec<'scope, u64, Records>,
    /// Data stored with each epoch, at times no later than the epoch.
    pub(super) marks: StreamVec<'scope, u64, (u64, EpochExtra)>,
    /// The last epoch, once the source has ended.
    pub(super) ends: StreamVec<'scope, u64, u64>,
}

/// Returns the entities that take part in an epoch as data to store with it.
pub(super) fn admitted<'scope>(
    entities: StreamVec<'scope, u64, Vec<Entity>>,
    fault: &Fault,
) -> StreamVec<'scope, u64, (u64, EpochExtra)> {
    let admitted = |epoch, entities| Ok([(epoch, EpochExtra::Admitted(entities))]);
    map_or_fault(entities, Pipeline, "Admitted", fault.clone(), admitted)
}

/// Builds the operators from records to committed epochs. Where entities are protected, `cuts`
/// counts what their limits leave out; where keys are discovered, `names` has their names.
pub(super) fn release<'scope>(
    RecordStreams { records, mut marks, ends }: RecordStreams<'scope>,
    (cuts, names): (Option<&EntityCuts>, Option<KeyNames>),
    measurement: &Measurement,
    log: Option<Box<dyn CommitLog<EpochExtra>>>,
    fault: &Fault,
) -> StreamVec<'scope, u64, ReleasedEpoch> {
    // Every worker builds the same operators, because the choice follows from public parameters.
    let clipped = if let Some(cuts) = cuts {
        let bounded = cuts.bound(records.epochs(), measurement, fault.clone());
        marks = marks.concat(admitted(bounded.admitted, fault));
        bounded.records.clip(measurement, fault.clone())
    } else {
        records.clip(measurement, fault.clone())
    };
    let released = if let Some(names) = names {
        let (sums, names) = clipped.discover(ends.clone(), measurement, names, fault.clone());
        sums.release(ends, measurement, fault.clone()).concat(names)
    } else {
        let sums = clipped.accumulate(measurement, fault.clone());
        sums.release(ends, measurement, fault.clone())
    };
    released.commit(marks, measurement, log, fault.clone())
}
