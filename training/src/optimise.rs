//! The `adam` operator: turns released gradients into updates of a model's parameters.

use crate::adam::{AdamError, AdamHyperparameters, PrivateAdam, UpdatePart};
use hushflow_mechanism::mechanism::MatrixMechanism;
use hushflow_mechanism::moments::IntegerRow;
use hushflow_operators::{Fault, Measurement, ReleasedEpoch, map_or_fault};
use serde::{Deserialize, Serialize};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::vec::Broadcast;

/// Maximum number of runs that the parameters are cut into, independent of the number of workers.
const MAX_RUNS: usize = 16;

/// The optimiser and its number of steps. Equal on every worker.
#[derive(Clone, Copy, Debug)]
pub struct AdamSetup {
    /// The optimiser.
    pub setting: AdamHyperparameters,
    /// Number of steps.
    pub horizon: u64,
}

/// The optimiser with the mechanism whose releases it reads. The releases have one key.
#[derive(Clone)]
pub(crate) struct Optimiser {
    mechanism: Arc<MatrixMechanism>,
    setup: AdamSetup,
}

impl Optimiser {
    pub(crate) fn new(measurement: &Measurement, setup: AdamSetup) -> Self {
        Optimiser { mechanism: measurement.mechanism().clone(), setup }
    }

    /// Number of parts of an update.
    pub(crate) fn runs(&self) -> usize {
        let dimension = self.mechanism.layout().dimension;
        // The scale is relative to the mean of all coordinates, so one run must hold them all.
        if self.setup.setting.damping().is_some() { 1 } else { MAX_RUNS.min(dimension) }
    }

    pub(crate) fn run(&self, number: usize) -> Range<usize> {
        let begin = |number| self.mechanism.layout().dimension * number / self.runs();
        begin(number)..begin(number + 1)
    }

    pub(crate) fn of_run(&self, number: usize) -> Result<PrivateAdam, AdamError> {
        PrivateAdam::new(&self.mechanism, self.setup.setting, self.run(number), self.setup.horizon)
    }
}

/// The `adam` operator as a method of streams.
pub trait Optimise<'scope> {
    /// Returns the update of every step, in parts, on every worker.
    ///
    /// Each run of parameters belongs to one worker. This is post-processing of releases, which
    /// must come in the order of steps. They may come from a dataflow or from a log.
    fn adam(
        self,
        measurement: &Measurement,
        setup: AdamSetup,
        fault: Fault,
    ) -> StreamVec<'scope, u64, SharedUpdate>;
}

/// A part of an update, shared by all workers of a process.
#[derive(Clone, Serialize, Deserialize)]
#[serde(into = "UpdatePart", from = "UpdatePart")]
pub struct SharedUpdate(Arc<UpdatePart>);

impl SharedUpdate {
    /// Returns the part if this is its last reference.
    fn into_inner(self) -> Option<UpdatePart> {
        Arc::into_inner(self.0)
    }
}

impl From<UpdatePart> for SharedUpdate {
    fn from(part: UpdatePart) -> Self {
        SharedUpdate(Arc::new(part))
    }
}

impl From<SharedUpdate> for UpdatePart {
    fn from(SharedUpdate(part): SharedUpdate) -> Self {
        Arc::unwrap_or_clone(part)
    }
}

impl Borrow<UpdatePart> for SharedUpdate {
    fn borrow(&self) -> &UpdatePart {
        &self.0
    }
}

/// The released values of a run of parameters. Runs within a process share the values of the epoch.
/// A run sent to another process carries its number, the epoch, and its first and second moments.
#[derive(Clone, Serialize, Deserialize)]
#[serde(into = "((usize, u64), [Vec<i128>; 2])", from = "((usize, u64), [Vec<i128>; 2])")]
struct ReleasedRun {
    number: usize,
    released: ReleasedEpoch,
    /// Positions of the first and second moments; the second range may be empty.
    moments: [Range<usize>; 2],
}

impl ReleasedRun {
    fn moments(&self, which: usize) -> impl Iterator<Item = IntegerRow<'_>> + Clone {
        self.released.run(self.moments[which].clone())
    }
}

impl From<ReleasedRun> for ((usize, u64), [Vec<i128>; 2]) {
    fn from(run: ReleasedRun) -> Self {
        let moments = [0, 1].map(|which| run.moments(which).flat_map(IntegerRow::iter).collect());
        ((run.number, run.released.epoch), moments)
    }
}

impl From<((usize, u64), [Vec<i128>; 2])> for ReleasedRun {
    fn from(((number, epoch), moments): ((usize, u64), [Vec<i128>; 2])) -> Self {
        let [first, end] = [moments[0].len(), moments[0].len() + moments[1].len()];
        let released = ReleasedEpoch::released_before(epoch, moments.concat());
        ReleasedRun { number, released, moments: [0..first, first..end] }
    }
}

impl<'scope> Optimise<'scope> for StreamVec<'scope, u64, ReleasedEpoch> {
    fn adam(
        self,
        measurement: &Measurement,
        setup: AdamSetup,
        fault: Fault,
    ) -> StreamVec<'scope, u64, SharedUpdate> {
        let optimiser = Optimiser::new(measurement, setup);
        let by_run = Exchange::new(|run: &ReleasedRun| run.number as u64);
        let (mut optimisers, mut last_parts) = (BTreeMap::new(), BTreeMap::new());
        let runs = cut(self, optimiser.clone(), fault.clone());
        let updates = map_or_fault(runs, by_run, "Adam", fault, move |step, run| {
            let used = last_parts.remove(&run.number).and_then(SharedUpdate::into_inner);
            let part = SharedUpdate::from(update(&optimiser, &mut optimisers, step, &run, used)?);
            last_parts.insert(run.number, part.clone());
            Ok([part])
        });
        updates.broadcast()
    }
}

fn update(
    optimiser: &Optimiser,
    optimisers: &mut BTreeMap<usize, PrivateAdam>,
    step: u64,
    run: &ReleasedRun,
    used: Option<UpdatePart>,
) -> Result<UpdatePart, String> {
    let optimiser = match optimisers.remove(&run.number) {
        Some(optimiser) => Ok(optimiser),
        None => optimiser.of_run(run.number),
    };
    let optimiser = optimisers.entry(run.number).or_insert(optimiser.map_err(|error| error.to_string())?);
    if optimiser.next_step() != step {
        return Err(format!("step {step} came to an optimiser whose next step is {}", optimiser.next_step()));
    }
    used.into_iter().for_each(|part| optimiser.give_back(part));
    optimiser.push(run.moments(0), run.moments(1)).map_err(|error| error.to_string())
}

fn cut<'scope>(
    releases: StreamVec<'scope, u64, ReleasedEpoch>,
    optimiser: Optimiser,
    fault: Fault,
) -> StreamVec<'scope, u64, ReleasedRun> {
    let layout = optimiser.mechanism.layout();
    map_or_fault(releases, Pipeline, "CutRuns", fault, move |_, released| {
        let (found, expected) = (released.len(), layout.coordinates());
        if found != expected {
            return Err(AdamError::Length { found, expected }.to_string());
        }
        let run = |number| {
            let run = optimiser.run(number);
            let moments = [layout.first(), layout.second()].map(|range| {
                let position = |parameter: usize| (range.start + parameter).min(range.end);
                position(run.start)..position(run.end)
            });
            ReleasedRun { number, released: released.clone(), moments }
        };
        Ok((0..optimiser.runs()).map(run).collect::<Vec<_>>())
    })
}
