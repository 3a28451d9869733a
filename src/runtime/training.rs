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
//!
//! Random batches follow from a secret key that is committed with every step, in the private log. A
//! run that goes on takes the batches that it would have taken. They are chosen by one thread, and
//! no count, message or metric depends on their sizes.
//!
//! Several workers share the rows of a step. Each clips and adds the gradients of its rows. The
//! sums are integers, so they, and with them everything that is released, do not depend on the
//! number of workers.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use hushflow_mechanism::moments::{ClippedSums, ClippedSumsError, Sums};
use hushflow_mechanism::release::{ReleaseShard, Shards};
use hushflow_mechanism::sampling::Scheme;
use hushflow_operators::{CommitLog, EpochCommit, ReleasedEpoch};
use hushflow_training::sampling::{BatchKey, KEY_BYTES, WorkerBatches};
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
    let scheme = publication.batch_scheme()?.ok_or(RunError::Checkpoint)?;
    let key = match recovered.positions.first() {
        Some(position) => key_of(position, examples, scheme)?,
        None => BatchKey::draw(noise).map_err(|error| RunError::Start(error.to_string()))?,
    };
    let rows = position(examples, scheme, &key);
    let mut batches = WorkerBatches::of_key(examples.len(), scheme, key);
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
    let sums = || {
        let sums = ClippedSums::new(measurement.clipper().clone(), measurement.layout());
        if is_random(scheme) { sums.hiding_count() } else { sums }
    };
    let mut workers: Vec<GradientWorker> =
        (0..options.workers.max(1)).map(|_| GradientWorker::new(sums(), publication)).collect();
    for step in start.first_epoch..=publication.horizon() {
        if options.control.is_stopped() {
            break;
        }
        let batch = examples.rows(batches.of_step(step).map_err(|error| fault(&error))?);
        let sums = sums_of_step(&mut workers, (&batch, &model), examples, shards);
        let sums = sums.map_err(|error| fault(&error))?;
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

fn is_random(scheme: Scheme) -> bool {
    !matches!(scheme, Scheme::InOrder { .. })
}

/// Returns the position that every step is committed with: the digest of the rows and, if batches
/// are random, the key that chooses them. The key is durable with the first released step, so no
/// coin of a released step is tossed again. It is as secret as the sums beside it.
fn position(examples: &Examples, scheme: Scheme, key: &BatchKey) -> SourcePosition {
    let mut payload = examples.digest().to_vec();
    if is_random(scheme) {
        payload.extend(key.as_bytes());
    }
    SourcePosition { partition: ROWS, offset: 0, payload }
}

/// Returns the key of an earlier run over the same rows.
fn key_of(found: &SourcePosition, examples: &Examples, scheme: Scheme) -> Result<BatchKey, RunError> {
    let digest = examples.digest();
    let key = found.payload.strip_prefix(&digest).ok_or(RunError::OtherRows)?;
    // Batches in order have no key, and need none.
    let key =
        if is_random(scheme) { key.try_into().map_err(|_| RunError::OtherRows)? } else { [0; KEY_BYTES] };
    let key = BatchKey::from_bytes(key);
    if *found == position(examples, scheme, &key) { Ok(key) } else { Err(RunError::OtherRows) }
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

/// Returns the exact sums of a step, shard by shard.
fn sums_of_step(
    workers: &mut [GradientWorker],
    (rows, model): (&[usize], &TrainedModel),
    examples: &Examples,
    shards: Shards,
) -> Result<Vec<Sums>, ClippedSumsError> {
    let (parameters, scale) = (model.parameters(), model.scale());
    let each = rows.len().div_ceil(workers.len()).max(1);
    thread::scope(|scope| {
        let mut shares = workers.iter_mut().zip(rows.chunks(each));
        let own = shares.next();
        let add =
            |(worker, rows): (&mut GradientWorker, &[usize])| worker.add(rows, (parameters, scale), examples);
        let others: Vec<_> = shares.map(|share| scope.spawn(move || add(share))).collect();
        let own = own.map_or(Ok(()), add);
        let joined =
            others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        joined.fold(own, Result::and)
    })?;
    let cut = shards.split(0..shards.coordinates());
    let runs = cut.map(|(_, run)| run.start as usize..run.end as usize);
    let plus = |these: Vec<Sums>, those: Vec<Sums>| -> Vec<Sums> {
        these.into_iter().zip(&those).map(|(these, those)| these.plus(0, those, None)).collect()
    };
    let of_workers = workers.iter_mut().map(|worker| worker.sums.take(runs.clone()));
    Ok(of_workers.reduce(plus).unwrap_or_default())
}

/// Clips and adds the gradients of some rows of a step. Wiped.
struct GradientWorker {
    sums: ClippedSums,
    /// Gradients that are clipped together.
    gradients: zeroize::Zeroizing<Vec<f64>>,
    /// Number of values in `gradients` at which they are clipped.
    most: usize,
}

impl GradientWorker {
    fn new(sums: ClippedSums, publication: &MomentPublication) -> Self {
        let most = TOGETHER * publication.layout().dimension;
        Self { sums, gradients: zeroize::Zeroizing::new(Vec::with_capacity(most)), most }
    }

    fn add(
        &mut self,
        rows: &[usize],
        (parameters, scale): (&[f64], &[f64]),
        examples: &Examples,
    ) -> Result<(), ClippedSumsError> {
        let Self { sums, gradients, most } = self;
        let mut added = Ok(());
        let mut add = |gradients: &mut Vec<f64>| {
            if added.is_ok() {
                added = sums.add(gradients).map(drop);
            }
            gradients.clear();
        };
        examples.gradients(rows, parameters, &mut |gradient| {
            gradient.iter_mut().zip(scale).for_each(|(value, scale)| *value *= scale);
            gradients.extend_from_slice(gradient);
            if gradients.len() >= *most {
                add(gradients);
            }
        });
        add(gradients);
        added
    }
}
