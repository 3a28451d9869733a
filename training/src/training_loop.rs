//! A training loop inside the dataflow: parameters flow back to the operator that takes gradients.
//!
//! ```text
//! gradients ─ release ─ commit ─ adam
//!     ↑                           │  the update of step t, at time t
//!     └─── feedback, t → t + 1 ───┘
//! ```
//!
//! The batches of the setup ([`sampling`](crate::sampling)) select the records of each step.
//! Gradients are clipped and added as they arrive ([`ClippedSums`]), so the first operator sends
//! the exact sums of its worker. An epoch is one step of the optimiser. Parameters are public.
//! Every worker has all of them, takes the gradients of its share of a step's records, and applies
//! the same updates in the same order. So all workers hold equal parameters. Integer sums do not
//! depend on order, so the parameters do not depend on the number of workers.

use crate::adam::{Parameters, UpdatePart};
use crate::batch_squares::{FirstSums, square_batches};
use crate::optimise::{AdamSetup, Optimise, SharedUpdate};
use crate::sampling::{DrawnBatches, WorkerBatches};
use hushflow_mechanism::mechanism::Method;
use hushflow_mechanism::moments::{ClippedSums, ClippedSumsError, Layout, Sums};
use hushflow_mechanism::noise::{EntropyError, NoiseSource};
use hushflow_mechanism::release::Shards;
use hushflow_mechanism::sampling::Scheme;
use hushflow_operators::{ClosedEpoch, Commit, CommitLog, EveryEpoch, Fault, Measurement, ReleaseMoments};
use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::ToStream;
use timely::dataflow::operators::{ConnectLoop, Feedback};
use timely::dataflow::{Scope, StreamVec};

/// A model that learns. One instance runs on each worker.
pub trait Learner: 'static {
    /// Number type of gradients: `f64` or `f32`.
    type Number: Copy + Into<f64>;

    /// Computes the gradients, at these parameters, of this worker's share of a step's records.
    /// Passes them to `give`: one whole gradient per record, concatenated, in any order. Larger
    /// slices are added faster. The last call is for the step after the last one, without records.
    ///
    /// `records` are the numbers of records, from 0. They are **private** if batches are sampled:
    /// do not pass them on. Each record's gradient must depend on that record and the parameters
    /// alone.
    fn gradients(
        &mut self,
        step: u64,
        records: &[usize],
        parameters: &[f64],
        give: &mut dyn FnMut(&[Self::Number]),
    );
}

/// Parameters of a training loop. Equal on every worker.
///
/// The measurement and the batches belong together, so neither can be replaced alone: a
/// [`TrainingPlan`](crate::plan::TrainingPlan) makes sampled batches together with their noise.
#[derive(Clone)]
pub struct TrainingSetup {
    pub(crate) measurement: Measurement,
    pub(crate) batches: DrawnBatches,
    /// The optimiser; its horizon is the number of steps.
    pub adam: AdamSetup,
    /// Initial parameters.
    pub parameters: Vec<f64>,
    /// Number of gradients that are not finite. **Private**, for the operator only.
    pub not_finite: Arc<AtomicU64>,
}

impl TrainingSetup {
    /// Takes the records in order, as many in each step as the optimiser's batch size.
    ///
    /// The measurement has one key, and its columns are those of the gradients. No reader waits for
    /// a release, so noise is best [drawn late](hushflow_operators::MeasurementBuilder::draw_late),
    /// and best correlated ahead of the sums where the strategy allows it:
    /// [`Strategies::correlated`](hushflow_mechanism::mechanism::Strategies::correlated).
    pub fn in_order(measurement: Measurement, adam: AdamSetup, parameters: Vec<f64>, records: usize) -> Self {
        let scheme = Scheme::InOrder { batch_size: adam.setting.batch_size.get().into() };
        let batches = DrawnBatches { records, scheme, source: NoiseSource::System };
        Self { measurement, batches, adam, parameters, not_finite: Arc::default() }
    }
}

/// Builds the loop around a learner. `log` is used on worker 0 only.
pub fn training_loop<'scope>(
    scope: Scope<'scope, u64>,
    setup: TrainingSetup,
    learner: impl Learner,
    log: Option<Box<dyn CommitLog<u64>>>,
    fault: Fault,
) {
    let measurement = setup.measurement.clone();
    let (loop_end, updates) = scope.feedback(1);
    let ends = vec![setup.adam.horizon].to_stream(scope);
    let layout = measurement.layout();
    let sums = match measurement.mechanism().moments().parameters().method {
        Method::BatchSquares { size } => {
            let first_sums = |_, shard, sums| FirstSums { shard, sums };
            let sums =
                gradients(updates, &setup, layout.without_second(), learner, first_sums, fault.clone());
            square_batches(sums, size.get(), &measurement, fault.clone())
        }
        _ => {
            let measurement = measurement.clone();
            let partial_sums = move |step, shard, sums| measurement.partial_sums(step, shard, 0, sums);
            gradients(updates, &setup, layout, learner, partial_sums, fault.clone())
        }
    };
    sums.release(ends, &measurement, fault.clone())
        .commit(Vec::new().to_stream(scope), &measurement, log, fault.clone())
        .adam(&measurement, setup.adam, fault)
        .connect_loop(loop_end);
}

/// Sends one worker's sums of gradients, in this layout, shard by shard.
fn gradients<'scope, S: Clone + 'static>(
    updates: StreamVec<'scope, u64, SharedUpdate>,
    setup: &TrainingSetup,
    layout: Layout,
    mut learner: impl Learner,
    of_shard: impl Fn(u64, u32, Sums) -> S + 'static,
    fault: Fault,
) -> StreamVec<'scope, u64, S> {
    let horizon = setup.adam.horizon;
    let mut parameters = Parameters::new(setup.parameters.clone(), &setup.adam.setting);
    let sums = ClippedSums::new(setup.measurement.clipper().clone(), layout);
    let mut gradient_sums = GradientSums {
        sums: if setup.batches.have_private_sizes() { sums.hiding_count() } else { sums },
        batches: setup.batches.clone().of_worker(updates.scope().index(), updates.scope().peers()),
        dimension: layout.dimension,
        shards: Shards::new(1, layout, setup.measurement.shards().number()),
        not_finite: setup.not_finite.clone(),
        scaled: Vec::new(),
    };
    let last_call = vec![horizon + 1].to_stream(updates.scope()).container::<Vec<_>>();
    updates.binary_frontier(last_call, Pipeline, Pipeline, "Gradients", move |capability, _info| {
        let mut steps = EveryEpoch::new(capability, 1, fault);
        move |updates, last_call, output| {
            steps.on_close(updates, last_call, |run| {
                for ClosedEpoch { epoch: step, times: [time], data: mut update } in run {
                    if step > 1 {
                        update.sort_by_key(|part| Borrow::<UpdatePart>::borrow(part).start);
                        parameters.apply(&update).map_err(|error| error.to_string())?;
                    }
                    // The optimiser reuses the memory of updates without other references.
                    drop(update);
                    if step > horizon {
                        learner.gradients(step, &[], parameters.values(), &mut |_| {});
                    } else {
                        let sums = gradient_sums.sums_of_step(step, &parameters, &mut learner);
                        let sums = sums.map_err(|error| error.to_string())?;
                        output
                            .session(time)
                            .give_iterator(sums.map(|(shard, sums)| of_shard(step, shard, sums)));
                    }
                }
                Ok(())
            });
        }
    })
}

/// Reasons why the sums of a step can't be formed.
#[derive(Debug, Error)]
enum StepGradientsError {
    #[error(transparent)]
    Entropy(#[from] EntropyError),
    #[error(transparent)]
    Sums(#[from] ClippedSumsError),
    /// A record without a gradient, or with several.
    #[error(
        "a learner passed more or fewer gradients than it had records: it must pass one gradient per record"
    )]
    Gradients,
}

struct GradientSums {
    sums: ClippedSums,
    batches: WorkerBatches,
    dimension: usize,
    shards: Shards,
    not_finite: Arc<AtomicU64>,
    /// Buffer for gradients that are scaled before they are clipped.
    scaled: Vec<f64>,
}

impl GradientSums {
    /// Returns the sums of every shard.
    fn sums_of_step<L: Learner>(
        &mut self,
        step: u64,
        parameters: &Parameters,
        learner: &mut L,
    ) -> Result<impl Iterator<Item = (u32, Sums)> + use<L>, StepGradientsError> {
        let records = self.batches.of_step(step)?;
        let (mut unusable, mut numbers, scale) = (Ok(0), 0, parameters.scale());
        let (sums, scaled) = (&mut self.sums, &mut self.scaled);
        learner.gradients(step, records, parameters.values(), &mut |gradients| {
            numbers += gradients.len();
            if let Ok(count) = &mut unusable {
                match add(sums, scaled, gradients, scale) {
                    Ok(more) => *count += more,
                    Err(error) => unusable = Err(error),
                }
            }
        });
        self.not_finite.fetch_add(unusable?, Ordering::Relaxed);
        if numbers != records.len() * self.dimension {
            return Err(StepGradientsError::Gradients);
        }
        let cut = self.shards.split(0..self.shards.coordinates());
        let runs = cut.clone().map(|(_, run)| run.start as usize..run.end as usize);
        Ok(cut.map(|(shard, _)| shard).zip(self.sums.take(runs)))
    }
}

/// Adds gradients, multiplied by the factors `scale`. An empty `scale` leaves them unchanged.
pub(crate) fn add<V: Copy + Into<f64>>(
    sums: &mut ClippedSums,
    scaled: &mut Vec<f64>,
    gradients: &[V],
    scale: &[f64],
) -> Result<u64, ClippedSumsError> {
    if scale.is_empty() {
        return sums.add(gradients);
    }
    scaled.clear();
    scaled.extend(gradients.iter().zip(scale.iter().cycle()).map(|(&value, scale)| value.into() * scale));
    sums.add(scaled)
}

#[cfg(test)]
mod tests;
