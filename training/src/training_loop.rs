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
use crate::optimise::{AdamSetup, Optimise, Optimiser, SharedUpdate};
use hushflow_mechanism::mechanism::Method;
use hushflow_mechanism::moments::{ClippedSums, ClippedSumsError, Layout, Sums};
use hushflow_mechanism::release::Shards;
use hushflow_operators::{Commit, CommitLog, Fault, Measurement, Release};
use std::borrow::Borrow;
use std::collections::BTreeMap;
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
    let (horizon, runs) = (setup.adam.horizon, Optimiser::new(&setup.measurement, setup.adam).runs());
    let mut parameters = Parameters::new(setup.parameters.clone(), &setup.adam.setting);
    let mut summer = Summer {
        sums: ClippedSums::new(setup.measurement.clipper().clone(), layout),
        shards: Shards::new(1, layout, setup.measurement.shards().number()),
        not_finite: setup.not_finite.clone(),
        scaled: Vec::new(),
    };
    updates.unary(Pipeline, "Gradients", move |capability, _info| {
        let mut step = 1;
        let mut capabilities = BTreeMap::from([(step, capability.delayed(&step))]);
        drop(capability);
        let mut parts: BTreeMap<u64, Vec<SharedUpdate>> = BTreeMap::from([(step, Vec::new())]);
        move |input, output| {
            input.for_each_time(|time, batches| {
                capabilities.entry(*time.time()).or_insert_with(|| time.retain(0));
                parts.entry(*time.time()).or_default().extend(batches.flat_map(|batch| batch.drain(..)));
            });
            let complete = |parts: &Vec<SharedUpdate>, step| step == 1 || parts.len() == runs;
            while !fault.is_raised() && parts.get(&step).is_some_and(|parts| complete(parts, step)) {
                let mut update = parts.remove(&step).unwrap_or_default();
                update.sort_by_key(|part| Borrow::<UpdatePart>::borrow(part).start);
                if step > 1
                    && let Err(error) = parameters.apply(&update)
                {
                    return fault.raise(error);
                }
                drop(update);
                if step > horizon {
                    learner.gradients(step, parameters.values(), &mut |_| {});
                } else {
                    // Keep the capability on a fault: dropping it would look like the end of the
                    // stream.
                    match summer.sums_of_step(step, &parameters, &mut learner) {
                        Ok(sums) => {
                            let Some(capability) = capabilities.get(&step) else { return };
                            let sums = sums.map(|(shard, sums)| of_shard(shard, sums));
                            output.session(capability).give_iterator(sums);
                        }
                        Err(error) => return fault.raise(error),
                    }
                }
                capabilities.remove(&step);
                step += 1;
            }
        }
    })
}

struct Summer {
    sums: ClippedSums,
    shards: Shards,
    not_finite: Arc<AtomicU64>,
    /// Buffer for gradients that are scaled before they are clipped.
    scaled: Vec<f64>,
}

impl Summer {
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
mod tests {
    mod alike;

    use super::*;
    use crate::adam::AdamSetting;
    use hushflow_mechanism::mechanism::{MatrixMechanism, MechanismError, MomentParameters, Strategies};
    use hushflow_mechanism::moments::SecondMoment;
    use hushflow_mechanism::noise::NoiseSource;
    use hushflow_mechanism::participation::Participation;
    use hushflow_mechanism::sensitivity::Neighbours;
    use hushflow_mechanism::strategy::buffered::{Buffered, BufferedParameters, Buffers, ExponentialBuffer};
    use hushflow_mechanism::strategy::build;
    use hushflow_mechanism::workload::Workload;
    use hushflow_operators::{EpochCommit, ReleasedEpoch};
    use std::error::Error;
    use std::num::NonZeroU32;
    use std::sync::{Mutex, mpsc};
    use std::time::Duration;
    use timely::dataflow::operators::Inspect;
    use timely::dataflow::operators::vec::Delay;
    use timely::worker::Worker;

    const DIMENSION: usize = 40;
    const STEPS: u64 = 6;

    type Seen = Vec<(u64, Vec<f64>)>;

    /// Pulls parameters towards a point, record by record. A record may do anything in a step.
    #[derive(Clone)]
    struct Pull {
        records: usize,
        odd: fn(step: u64, record: usize) -> Option<f64>,
        worker: usize,
        workers: usize,
        seen: Arc<Mutex<Seen>>,
    }

    impl Learner for Pull {
        type Number = f64;

        fn gradients(&mut self, step: u64, parameters: &[f64], give: &mut dyn FnMut(&[f64])) {
            if self.worker == 0 {
                self.seen.lock().unwrap().push((step, parameters.to_vec()));
            }
            for record in (self.worker..self.records).step_by(self.workers) {
                let target = |place: usize| ((place + record) % 7) as f64 / 7.0;
                let gradient = parameters.iter().enumerate().map(|(place, p)| p - target(place));
                give(&match (self.odd)(step, record) {
                    Some(value) => vec![value; DIMENSION],
                    None => gradient.collect(),
                });
            }
        }
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<Vec<i128>>>>);

    impl CommitLog<u64> for Log {
        fn commit(&mut self, epochs: &[EpochCommit<u64>]) -> Result<(), Box<dyn Error>> {
            self.0.lock().unwrap().extend(epochs.iter().map(|epoch| epoch.released.to_vec()));
            Ok(())
        }
    }

    fn setup(method: Method, setting: AdamSetting, draw_late: bool) -> TrainingSetup {
        let strategy = build("square-root", &Workload::Prefix, Some(STEPS)).unwrap();
        setup_of(method, setting, draw_late, |parameters| MatrixMechanism::new(parameters, strategy))
    }

    fn setup_of(
        method: Method,
        setting: AdamSetting,
        draw_late: bool,
        mechanism: impl FnOnce(MomentParameters) -> Result<MatrixMechanism, MechanismError>,
    ) -> TrainingSetup {
        setup_with(NoiseSource::Seeded(4), method, setting, draw_late, mechanism)
    }

    fn setup_with(
        source: NoiseSource,
        method: Method,
        setting: AdamSetting,
        draw_late: bool,
        mechanism: impl FnOnce(MomentParameters) -> Result<MatrixMechanism, MechanismError>,
    ) -> TrainingSetup {
        let parameters = MomentParameters {
            method,
            layout: Layout { dimension: DIMENSION, second: SecondMoment::Diagonal },
            neighbours: Neighbours::ReplaceOneInPlace,
            clip_norm: 1.0,
            noise_multiplier: 0.1,
            second_moment_weight: None,
            count_weight: None,
        };
        let measurement = Measurement::of_vectors(mechanism(parameters).unwrap()).shards_at_most(5);
        let measurement = measurement.noise(source);
        TrainingSetup {
            measurement: if draw_late { measurement.draw_late() } else { measurement }.build().unwrap(),
            adam: AdamSetup { setting, horizon: STEPS },
            parameters: vec![1.0; DIMENSION],
            not_finite: Arc::default(),
        }
    }

    /// Returns the parameters at every step, the number of gradients that were not finite, and the
    /// fault.
    fn run(
        workers: usize,
        records: usize,
        odd: fn(u64, usize) -> Option<f64>,
        setup: &TrainingSetup,
    ) -> (Seen, u64, Option<String>) {
        run_into(&Log::default(), workers, records, odd, setup)
    }

    /// Like [`run`], with a log. Three workers exchange bytes, as processes do.
    fn run_into(
        log: &(impl CommitLog<u64> + Clone + Send + Sync),
        workers: usize,
        records: usize,
        odd: fn(u64, usize) -> Option<f64>,
        setup: &TrainingSetup,
    ) -> (Seen, u64, Option<String>) {
        let (seen, fault) = (Arc::default(), Fault::new());
        setup.not_finite.store(0, Ordering::Relaxed);
        let pull = Pull { records, odd, worker: 0, workers, seen: Arc::clone(&seen) };
        let (shared, watched, log) = (setup.clone(), fault.clone(), log.clone());
        let work = move |worker: &mut Worker| {
            let learner = Pull { worker: worker.index(), ..pull.clone() };
            let log = (worker.index() == 0).then(|| Box::new(log.clone()) as Box<dyn CommitLog<u64>>);
            let setup = shared.clone();
            worker.dataflow(|scope| training_loop(scope, setup, learner, log, watched.clone()));
            while !watched.is_raised() && worker.step_or_park(Some(Duration::from_millis(20))) {}
            worker.installed_dataflows().into_iter().for_each(|dataflow| worker.drop_dataflow(dataflow));
        };
        let communication = match workers {
            3 => timely::CommunicationConfig::ProcessBinary(workers),
            _ => timely::CommunicationConfig::Process(workers),
        };
        let config = timely::Config { communication, worker: timely::WorkerConfig::default() };
        timely::execute(config, work).unwrap().join();
        let not_finite = setup.not_finite.load(Ordering::Relaxed);
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        (seen, not_finite, fault.reason().map(String::from))
    }

    fn setting() -> AdamSetting {
        AdamSetting::new(NonZeroU32::new(30).unwrap(), 0.05)
    }

    #[test]
    fn the_loop_ends_and_learns_the_same_on_any_number_of_workers() {
        for method in [Method::Jme, Method::Pp, Method::BatchSquares { size: NonZeroU32::new(30).unwrap() }] {
            let [early, setup] = [false, true].map(|draw_late| setup(method, setting(), draw_late));
            let (seen, _, fault) = run(1, 30, |_, _| None, &setup);
            assert_eq!(fault, None);
            assert!(seen.iter().map(|(step, _)| *step).eq(1..=STEPS + 1));
            let distance = |parameters: &[f64]| parameters.iter().map(|p| (p - 3.0 / 7.0).abs()).sum::<f64>();
            assert!(distance(&seen[STEPS as usize].1) < 0.8 * distance(&seen[0].1));
            for workers in [2, 3] {
                assert_eq!(run(workers, 30, |_, _| None, &setup).0, seen, "{workers} workers");
            }
            assert_eq!(run(2, 30, |_, _| None, &early).0, seen, "noise is the same whenever it is drawn");
        }
    }

    #[test]
    fn correlated_noise_trains_alike() {
        let buffers = Buffers::Toeplitz(vec![ExponentialBuffer { decay: 0.75, weight: 0.5 }]);
        let fitted = BufferedParameters { horizon: Some(STEPS), buffers };
        let strategy = Arc::new(Buffered::new("blt:1".parse().unwrap(), fitted).unwrap());
        for method in [Method::Jme, Method::Pp, Method::BatchSquares { size: NonZeroU32::new(30).unwrap() }] {
            let form = |draw_late, form: fn(Strategies) -> Strategies| {
                let (strategies, single) =
                    (form(Strategies::shared(strategy.clone())), Participation::Single);
                setup_of(method, setting(), draw_late, |parameters| {
                    MatrixMechanism::with_participation(parameters, strategies, single, STEPS)
                })
            };
            let [early, setup] = [false, true].map(|draw_late| form(draw_late, Strategies::correlated));
            let (seen, _, fault) = run(1, 30, |_, _| None, &setup);
            assert_eq!((fault, seen.len() as u64), (None, STEPS + 1));
            for workers in [2, 3] {
                assert_eq!(run(workers, 30, |_, _| None, &setup).0, seen, "{workers} workers");
            }
            assert_eq!(run(2, 30, |_, _| None, &early).0, seen, "noise is the same whenever it is drawn");
            let distance = |parameters: &[f64]| parameters.iter().map(|p| (p - 3.0 / 7.0).abs()).sum::<f64>();
            let (encoded, _, _) = run(1, 30, |_, _| None, &form(true, |strategies| strategies));
            for seen in [&seen, &encoded] {
                assert!(distance(&seen[STEPS as usize].1) < 0.8 * distance(&seen[0].1));
            }
        }
    }

    fn replayed(log: Vec<Vec<i128>>, setup: &TrainingSetup) -> Seen {
        let (sender, updates) = mpsc::channel();
        let (measurement, adam) = (setup.measurement.clone(), setup.adam);
        timely::example(move |scope| {
            let released =
                (1..).zip(log).map(|(epoch, values)| ReleasedEpoch::released_before(epoch, values));
            let released = released.to_stream(scope).container::<Vec<_>>();
            let released = released.delay(|released, _| released.epoch);
            released.adam(&measurement, adam, Fault::new()).inspect_time(move |step, part| {
                sender.send((*step, part.clone())).unwrap();
            });
        });
        let mut parts: BTreeMap<u64, Vec<SharedUpdate>> = BTreeMap::new();
        updates.iter().for_each(|(step, part)| parts.entry(step).or_default().push(part));
        let mut parameters = Parameters::new(setup.parameters.clone(), &setup.adam.setting);
        let mut replayed = vec![(1, parameters.values().to_vec())];
        for (step, mut update) in parts {
            update.sort_by_key(|part| Borrow::<UpdatePart>::borrow(part).start);
            parameters.apply(&update).unwrap();
            replayed.push((step + 1, parameters.values().to_vec()));
        }
        replayed
    }

    /// A replay agrees bit for bit in both forms, with the log's integers alone and for any number
    /// of workers.
    #[test]
    fn a_replay_of_the_log_comes_to_the_same_parameters() {
        let buffers = Buffers::Toeplitz(vec![ExponentialBuffer { decay: 0.75, weight: 0.5 }]);
        let fitted = BufferedParameters { horizon: Some(STEPS), buffers };
        let strategy = Arc::new(Buffered::new("blt:1".parse().unwrap(), fitted).unwrap());
        for form in [|strategies| strategies, Strategies::correlated] {
            let strategies = form(Strategies::shared(strategy.clone()));
            let setup = setup_of(Method::Jme, setting(), true, |parameters| {
                MatrixMechanism::with_participation(parameters, strategies, Participation::Single, STEPS)
            });
            let odd = |step: u64, record: usize| (step == 2 && record == 3).then_some(f64::NAN);
            let (log, on_the_wire) = (Log::default(), Log::default());
            let (seen, _, fault) = run_into(&log, 1, 30, odd, &setup);
            assert_eq!(fault, None);
            assert_eq!(run_into(&on_the_wire, 3, 30, odd, &setup).0, seen);
            let log = log.0.lock().unwrap().clone();
            assert_eq!(*on_the_wire.0.lock().unwrap(), log);

            assert_eq!(replayed(log, &setup), seen);
        }
    }

    #[test]
    fn gradients_that_are_not_finite_are_counted_and_do_no_harm() {
        let setup = setup(Method::Jme, setting(), true);
        let odd = |step: u64, record: usize| match (step, record) {
            (2, 3) => Some(f64::NAN),
            (2, 4) => Some(f64::NEG_INFINITY),
            (3, 0) => Some(1e300),
            _ => None,
        };
        let zeros = |step: u64, record: usize| match (step, record) {
            (2, 3 | 4) => Some(0.0),
            // Clipped to the same record.
            (3, 0) => Some(1.0),
            _ => None,
        };
        let (seen, not_finite, fault) = run(2, 30, odd, &setup);
        assert_eq!((not_finite, fault), (2, None));
        assert_eq!(seen, run(1, 30, zeros, &setup).0, "they count as zero");
    }

    #[test]
    fn steps_without_gradients_are_steps() {
        let setup = setup(Method::Pp, setting(), true);
        let (seen, _, fault) = run(2, 0, |_, _| None, &setup);
        assert_eq!((seen.len() as u64, fault), (STEPS + 1, None));
        assert!(seen.iter().flat_map(|(_, parameters)| parameters).all(|value| value.is_finite()));
    }

    #[test]
    fn a_setting_that_can_not_be_is_a_fault() {
        let setup = setup(Method::Jme, AdamSetting { learning_rate: 0.0, ..setting() }, true);
        let (_, _, fault) = run(2, 3, |_, _| None, &setup);
        assert!(fault.is_some_and(|reason| reason.starts_with("learning_rate is 0")));
    }
}
