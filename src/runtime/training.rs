//! Trains a model. Each step releases noisy sums of the clipped gradients of its batch, and commits
//! them like an epoch.
//!
//! ```text
//! rows ─ gradients ─ clip ─ add ─ release ─ commit ─→ both logs
//!            ↑                                │  the release of step t
//!            └───── parameters after t ←──────┘
//! ```
//!
//! A step is committed before anyone sees it, the loop included. So a killed run leaves a step in
//! one of two states. Without a committed frame, nobody has seen it. With one, the next run reads
//! it back and does not draw its noise again. Parameters are a function of the public log
//! ([`TrainedModel`]).
//!
//! Random batches follow from a secret key that is committed with every step, in the private log. A
//! resumed run takes the same batches as an uninterrupted one. One thread chooses the batches. No
//! count, message or metric depends on their sizes.
//!
//! Several workers share the rows of a step. Each clips and adds the gradients of its rows. The
//! sums are integers. So neither the sums nor the releases depend on the number of workers.

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

/// Source tag of a position that holds the digest of the rows instead of a source's position. The
/// partitions of an embedder have the same tag, but never in the state directory of a training run.
const ROW_DIGEST_TAG: u32 = 8;

/// Number of gradients passed to the clipper in one call. Each is clipped on its own.
const GRADIENTS_PER_CALL: usize = 64;

/// Trains until all steps are released or the run is stopped. `publication` belongs to the state
/// directory in `options`, and `examples` holds the pipeline's rows. `listen` receives the model
/// before the first new step and after every step.
///
/// # Errors
/// [`RunError`]. Steps that were committed stay committed.
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
    let (store, recovered) = open_store(pipeline, &Publication::Moments(publication.clone()), options)?;
    // A publication without training has no scheme, and the model above has refused it.
    let scheme = publication.batch_scheme()?.ok_or(RunError::Checkpoint)?;
    let key = match recovered.positions.first() {
        Some(position) => recover_key(position, examples, scheme)?,
        None => BatchKey::draw(noise).map_err(|error| RunError::Start(error.to_string()))?,
    };
    let position = row_digest_position(examples, scheme, &key);
    let mut batches = WorkerBatches::of_key(examples.len(), scheme, key);
    let (start, _) = RunStart::recover(publication, recovered, noise)?;
    let measurement =
        publication.measurement(noise)?.build().map_err(crate::publication::PublicationError::from)?;
    let shards = measurement.shards();
    let mut release_shards: Vec<ReleaseShard> =
        (0..shards.number()).map(|shard| measurement.machine(shard)).collect();
    for (release_shard, shard) in release_shards.iter_mut().zip(0..) {
        release_shard.restore(start.states.get(&shard).ok_or(RunError::Checkpoint)?)?;
    }
    read_back(pipeline, options, start.first_epoch, &mut model)?;
    let mut journal =
        Journal::new(store, (Vec::new(), None), None, Arc::clone(&options.metrics)).always_at(position);
    info!(first_step = start.first_epoch, "training starts at this step");
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
        let released = release_shards.iter_mut().zip(&sums);
        let released = released.map(|(shard, sums)| shard.release_row(step, sums.row()));
        let released = ReleasedEpoch::new(step, released.collect::<Result<_, _>>()?);
        let states = match step.is_multiple_of(CHECKPOINT_INTERVAL) {
            true => (0..).zip(release_shards.iter().map(ReleaseShard::save)).collect(),
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

/// Returns the position committed with every step: the digest of the rows and, for random batches,
/// the key that chooses them. The key is durable before the first step is released, so the batch of
/// a released step is never drawn again. The key is as secret as the exact sums beside it.
fn row_digest_position(examples: &Examples, scheme: Scheme, key: &BatchKey) -> SourcePosition {
    let mut payload = examples.digest().to_vec();
    if is_random(scheme) {
        payload.extend(key.as_bytes());
    }
    SourcePosition { partition: ROW_DIGEST_TAG, offset: 0, payload }
}

/// Returns the batch key of an earlier run. Fails with [`RunError::OtherRows`] if the rows have
/// changed.
fn recover_key(found: &SourcePosition, examples: &Examples, scheme: Scheme) -> Result<BatchKey, RunError> {
    let digest = examples.digest();
    let key = found.payload.strip_prefix(&digest).ok_or(RunError::OtherRows)?;
    // Batches in order have no key, and need none.
    let key =
        if is_random(scheme) { key.try_into().map_err(|_| RunError::OtherRows)? } else { [0; KEY_BYTES] };
    let key = BatchKey::from_bytes(key);
    if *found == row_digest_position(examples, scheme, &key) { Ok(key) } else { Err(RunError::OtherRows) }
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
    let rows_per_worker = rows.len().div_ceil(workers.len()).max(1);
    thread::scope(|scope| {
        let mut shares = workers.iter_mut().zip(rows.chunks(rows_per_worker));
        let own = shares.next();
        let add =
            |(worker, rows): (&mut GradientWorker, &[usize])| worker.add(rows, (parameters, scale), examples);
        let others: Vec<_> = shares.map(|share| scope.spawn(move || add(share))).collect();
        let own = own.map_or(Ok(()), add);
        let joined =
            others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        joined.fold(own, Result::and)
    })?;
    let pieces = shards.split(0..shards.coordinates());
    let ranges = pieces.map(|(_, range)| range.start as usize..range.end as usize);
    let add = |left: Vec<Sums>, right: Vec<Sums>| -> Vec<Sums> {
        left.into_iter().zip(&right).map(|(left, right)| left.plus(0, right, None)).collect()
    };
    let of_workers = workers.iter_mut().map(|worker| worker.sums.take(ranges.clone()));
    Ok(of_workers.reduce(add).unwrap_or_default())
}

/// Clips and adds the gradients of a share of a step's rows. Its buffers are zeroed on drop.
struct GradientWorker {
    sums: ClippedSums,
    /// Gradients waiting to be clipped, one by one, in the next call.
    gradients: zeroize::Zeroizing<Vec<f64>>,
    /// Length of `gradients` at which they are clipped and added.
    capacity: usize,
}

impl GradientWorker {
    fn new(sums: ClippedSums, publication: &MomentPublication) -> Self {
        let capacity = GRADIENTS_PER_CALL * publication.layout().dimension;
        Self { sums, gradients: zeroize::Zeroizing::new(Vec::with_capacity(capacity)), capacity }
    }

    fn add(
        &mut self,
        rows: &[usize],
        (parameters, scale): (&[f64], &[f64]),
        examples: &Examples,
    ) -> Result<(), ClippedSumsError> {
        let Self { sums, gradients, capacity } = self;
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
            if gradients.len() >= *capacity {
                add(gradients);
            }
        });
        add(gradients);
        added
    }
}
