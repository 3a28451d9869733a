//! Trains a model: each step releases the clipped gradients of its batch and commits them as an
//! epoch is committed.
//!
//! ```text
//! rows ─ gradients ─ clip ─ add ─ release ─ commit ─→ both logs
//!            ↑                                │  the release of step t
//!            └───── parameters after t ←──────┘
//! ```
//!
//! A step is committed before anyone sees it, the loop included. A killed run therefore leaves a
//! step either without a committed frame, so nobody saw it, or with one, which the next run reads
//! back. Its noise is never drawn again. Parameters are a function of the public log
//! ([`TrainedModel`]).

use std::sync::Arc;

use hushflow_mechanism::moments::{ClippedSums, Sums};
use hushflow_mechanism::release::ReleaseShard;
use hushflow_operators::{CommitLog, EpochCommit, ReleasedEpoch};
use tracing::info;

use super::journal::{Journal, RunStart, open_store};
use super::{CHECKPOINT_INTERVAL, RunError, RunOptions};
use crate::pipeline::Pipeline;
use crate::publication::{MomentPublication, Publication};
use crate::state::{PublicReader, SourcePosition};
use crate::training::{Examples, TrainedModel};

/// Number in place of a source tag that marks the digest of the rows.
const ROWS: u32 = 8;

/// Rows whose gradients are clipped together.
const TOGETHER: usize = 64;

/// Trains until all steps are released or the run is stopped. `publication` is the one of this
/// state directory, and `examples` are the rows of the pipeline. `listen` gets the model once
/// before the first new step, and after every step.
///
/// # Errors
/// [`RunError`]; what was committed before stays committed.
pub fn train(
    pipeline: &Pipeline,
    publication: &MomentPublication,
    options: &RunOptions,
    examples: &Examples,
    listen: &mut dyn FnMut(&TrainedModel),
) -> Result<TrainedModel, RunError> {
    let noise = pipeline.noise;
    // Nothing can be released without entropy, so check before anything is written.
    noise.generator(0, 0).map_err(|error| RunError::Start(error.to_string()))?;
    let fault = |error: &dyn std::fmt::Display| RunError::Fault(error.to_string());
    let mut model = TrainedModel::begin(publication).map_err(|error| fault(&error))?;
    let opened = open_store(pipeline, &Publication::Moments(publication.clone()), options)?;
    let (store, recovered) = opened;
    let rows = SourcePosition { partition: ROWS, offset: 0, payload: examples.digest().into() };
    if recovered.positions.iter().any(|position| *position != rows) {
        return Err(RunError::OtherRows);
    }
    let (start, _) = RunStart::recover(publication, recovered, noise)?;
    let measurement =
        publication.measurement(noise)?.build().map_err(crate::publication::PublicationError::from)?;
    let shards = measurement.shards();
    let mut machines: Vec<ReleaseShard> =
        (0..shards.number()).map(|shard| measurement.machine(shard)).collect();
    for (machine, shard) in machines.iter_mut().zip(0..) {
        machine.restore(start.states.get(&shard).ok_or(RunError::Checkpoint)?)?;
    }
    read_back(pipeline, options, start.first_epoch, &mut model)?;
    let mut journal =
        Journal::new(store, (Vec::new(), None), None, Arc::clone(&options.metrics)).always_at(rows);
    info!(first_step = start.first_epoch, "training resumes after the last committed step");
    options.control.begin();
    listen(&model);
    let mut sums = ClippedSums::new(measurement.clipper().clone(), measurement.layout());
    let mut batch = GradientBatch::new(publication.layout().dimension);
    for step in start.first_epoch..=publication.horizon() {
        if options.control.is_stopped() {
            break;
        }
        batch.add_step(step, &model, examples, &mut sums).map_err(|error| fault(&error))?;
        let runs = shards.split(0..shards.coordinates());
        let sums: Vec<Sums> = sums.take(runs.map(|(_, run)| run.start as usize..run.end as usize));
        let released = machines.iter_mut().zip(&sums);
        let released = released.map(|(machine, sums)| machine.release_row(step, sums.row()));
        let released = ReleasedEpoch::new(step, released.collect::<Result<_, _>>()?);
        let states = match step.is_multiple_of(CHECKPOINT_INTERVAL) {
            true => (0..).zip(machines.iter().map(ReleaseShard::save)).collect(),
            false => Vec::new(),
        };
        let commit = EpochCommit { released, marks: Vec::new(), sums, states };
        journal.commit(std::slice::from_ref(&commit)).map_err(|error| fault(&error))?;
        model.push(&commit.released).map_err(|error| fault(&error))?;
        listen(&model);
    }
    Ok(model)
}

/// Reads the steps of earlier runs from the public log.
fn read_back(
    pipeline: &Pipeline,
    options: &RunOptions,
    first: u64,
    model: &mut TrainedModel,
) -> Result<(), RunError> {
    if first > 1 {
        let mut log = PublicReader::open(pipeline.log_directory(&options.state))?;
        while model.step() + 1 < first
            && let Some(release) = log.next_frame()?
        {
            let released = ReleasedEpoch::released_before(release.epoch, release.values);
            model.push(&released).map_err(|error| RunError::Fault(error.to_string()))?;
        }
    }
    if model.step() + 1 == first { Ok(()) } else { Err(RunError::Checkpoint) }
}

/// Gradients that are clipped and added together. Wiped.
struct GradientBatch {
    gradients: zeroize::Zeroizing<Vec<f64>>,
    dimension: usize,
}

impl GradientBatch {
    fn new(dimension: usize) -> Self {
        Self { gradients: zeroize::Zeroizing::new(Vec::with_capacity(TOGETHER * dimension)), dimension }
    }

    /// Adds the gradients of a step.
    fn add_step(
        &mut self,
        step: u64,
        model: &TrainedModel,
        examples: &Examples,
        sums: &mut ClippedSums,
    ) -> Result<(), hushflow_mechanism::moments::ClippedSumsError> {
        let mut added = Ok(());
        let (gradients, most, scale) = (&mut self.gradients, TOGETHER * self.dimension, model.scale());
        let mut add = |gradients: &mut Vec<f64>| {
            if added.is_ok() {
                added = sums.add(gradients).map(drop);
            }
            gradients.clear();
        };
        examples.gradients(step, model.parameters(), &mut |gradient| {
            gradient.iter_mut().zip(scale).for_each(|(value, scale)| *value *= scale);
            gradients.extend_from_slice(gradient);
            if gradients.len() >= most {
                add(gradients);
            }
        });
        add(gradients);
        added
    }
}
