//! A training loop inside the dataflow: parameters flow back to the operator that takes gradients.
//!
//! ```text
//! gradients ─ release ─ commit ─ adam
//!     ↑                           │  the update of step t, at time t
//!     └─── feedback, t → t + 1 ───┘
//! ```
//!
//! Gradients are clipped and added as they arrive ([`ClippedSums`]), so the first operator sends
//! one worker's exact sums. An epoch is one step of the optimiser. Parameters are public. Every
//! worker has all of them, takes the gradients of its share of a step's records, and applies the
//! same updates in the same order. So all workers hold equal parameters. Sums are of integers, so
//! one worker alone would hold the same parameters.

use crate::adam::{Parameters, UpdatePart};
use crate::batch_squares::{FirstSums, square_batches};
use crate::optimise::{AdamSetup, Optimise, SharedUpdate};
use hushflow_mechanism::mechanism::Method;
use hushflow_mechanism::moments::{ClippedSums, ClippedSumsError, Layout, Sums};
use hushflow_mechanism::release::Shards;
use hushflow_operators::{ClosedEpoch, Commit, CommitLog, EveryEpoch, Fault, Measurement, ReleaseMoments};
use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::ToStream;
use timely::dataflow::operators::{ConnectLoop, Feedback};
use timely::dataflow::{Scope, StreamVec};

/// A model that learns. One instance runs on each worker.
pub trait Learner: 'static {
    /// Number type of gradients: `f64` or `f32`.
    type Number: Copy + Into<f64>;

    /// Takes the gradients, at these parameters, of this worker's share of the records of a step.
    /// Passes whole gradients, end to end and in any order, to `give`; larger pieces are added
    /// faster. The last call is for the step after the last one, and its gradients are ignored.
    ///
    /// The assignment of records to workers must not depend on the data. Each record's gradient
    /// must depend on that record and the parameters alone.
    fn gradients(&mut self, step: u64, parameters: &[f64], give: &mut dyn FnMut(&[Self::Number]));
}

/// Parameters of a training loop. Equal on every worker.
#[derive(Clone)]
pub struct TrainingSetup {
    /// A measurement with one key, whose columns are those of the gradients. Nothing waits here, so
    /// noise is best [drawn late](hushflow_operators::MeasurementBuilder::draw_late), and best
    /// correlated ahead of the sums where the strategy allows it:
    /// [`Strategies::correlated`](hushflow_mechanism::mechanism::Strategies::correlated).
    pub measurement: Measurement,
    /// The optimiser; its horizon is the number of steps.
    pub adam: AdamSetup,
    /// Initial parameters.
    pub parameters: Vec<f64>,
    /// Number of gradients that are not finite. **Private**, for the operator only.
    pub not_finite: Arc<AtomicU64>,
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
            let first_sums = |shard, sums| FirstSums { shard, sums };
            let sums =
                gradients(updates, &setup, layout.without_second(), learner, first_sums, fault.clone());
            square_batches(sums, size.get(), &measurement, fault.clone())
        }
        _ => {
            let measurement = measurement.clone();
            let partial_sums = move |shard, sums| measurement.partial_sums(shard, 0, sums);
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
    of_shard: impl Fn(u32, Sums) -> S + 'static,
    fault: Fault,
) -> StreamVec<'scope, u64, S> {
    let horizon = setup.adam.horizon;
    let mut parameters = Parameters::new(setup.parameters.clone(), &setup.adam.setting);
    let mut gradient_sums = GradientSums {
        sums: ClippedSums::new(setup.measurement.clipper().clone(), layout),
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
                        learner.gradients(step, parameters.values(), &mut |_| {});
                    } else {
                        let sums = gradient_sums.sums_of_step(step, &parameters, &mut learner);
                        let sums = sums.map_err(|error| error.to_string())?;
                        output.session(time).give_iterator(sums.map(|(shard, sums)| of_shard(shard, sums)));
                    }
                }
                Ok(())
            });
        }
    })
}

struct GradientSums {
    sums: ClippedSums,
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
    ) -> Result<impl Iterator<Item = (u32, Sums)> + use<L>, ClippedSumsError> {
        let (mut unusable, scale) = (Ok(0), parameters.scale());
        learner.gradients(step, parameters.values(), &mut |gradients| {
            if let Ok(count) = &mut unusable {
                match self.add(gradients, scale) {
                    Ok(more) => *count += more,
                    Err(error) => unusable = Err(error),
                }
            }
        });
        self.not_finite.fetch_add(unusable?, Ordering::Relaxed);
        let cut = self.shards.split(0..self.shards.coordinates());
        let runs = cut.clone().map(|(_, run)| run.start as usize..run.end as usize);
        Ok(cut.map(|(shard, _)| shard).zip(self.sums.take(runs)))
    }

    fn add<V: Copy + Into<f64>>(&mut self, gradients: &[V], scale: &[f64]) -> Result<u64, ClippedSumsError> {
        if scale.is_empty() {
            return self.sums.add(gradients);
        }
        self.scaled.clear();
        self.scaled
            .extend(gradients.iter().zip(scale.iter().cycle()).map(|(&value, scale)| value.into() * scale));
        self.sums.add(&self.scaled)
    }
}

#[cfg(test)]
mod tests;
