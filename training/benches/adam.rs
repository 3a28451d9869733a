//! Benchmarks a step of private Adam with a million parameters, on one worker and on two. The step
//! clips 16 gradients, sums them and their squares, releases the sums with exact noise through a
//! strategy with buffers, commits them, and updates the parameters. It runs in both forms: with
//! correlated noise, and with encoded sums that are decoded after the release.
//!
//! Run `cargo bench -p hushflow-training`. The baseline `python3 training/benches/adam.py` takes
//! the same step in numpy. Gradients are made beforehand, in single precision, as trainers have
//! them.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use hushflow_mechanism::mechanism::{MatrixMechanism, Method, MomentParameters, Strategies};
use hushflow_mechanism::moments::{Layout, SecondMoment};
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_mechanism::strategy::buffered::{BufferedParameters, Buffers, ExponentialBuffer};
use hushflow_mechanism::strategy::{StrategyChoice, StrategyParameters, build_chosen};
use hushflow_mechanism::workload::Workload;
use hushflow_operators::{EpochCommit, Fault, Measurement};
use hushflow_training::adam::AdamHyperparameters;
use hushflow_training::{AdamSetup, Learner, TrainingSetup, training_loop};
use timely::worker::Worker;

const DIMENSION: usize = 1_000_000;
const BATCH: usize = 16;

fn main() {
    divan::main();
}

/// Samples differ only in their number of steps. So the difference of their times over the
/// difference of their steps is the time of a step, without the start.
#[divan::bench(args = [(1, 2), (1, 12), (2, 2), (2, 12)], sample_count = 5, sample_size = 1)]
fn correlated_noise(bencher: divan::Bencher<'_, '_>, (workers, steps): (usize, u64)) {
    bench(bencher, workers, setup(steps, Strategies::correlated));
}

#[divan::bench(args = [(1, 2), (1, 12), (2, 2), (2, 12)], sample_count = 5, sample_size = 1)]
fn encoded_sums(bencher: divan::Bencher<'_, '_>, (workers, steps): (usize, u64)) {
    bench(bencher, workers, setup(steps, |strategies| strategies));
}

fn bench(bencher: divan::Bencher<'_, '_>, workers: usize, setup: TrainingSetup) {
    let gradients: Arc<Vec<f32>> = Arc::new((0..BATCH * DIMENSION).map(|i| (i as f32).sin()).collect());
    bencher.bench(|| {
        let (setup, gradients) = (setup.clone(), gradients.clone());
        let work = move |worker: &mut Worker| train(worker, &setup, gradients.clone());
        timely::execute(timely::Config::process(workers), work).expect("threads can be started").join()
    });
}

fn setup(steps: u64, form: impl FnOnce(Strategies) -> Strategies) -> TrainingSetup {
    // Any buffers will do; these are good ones for running sums.
    let buffers = [(0.998046875, 0.046875), (0.984375, 0.09375), (0.90625, 0.1875)];
    let buffers = buffers.map(|(decay, weight)| ExponentialBuffer { decay, weight });
    let fitted = BufferedParameters { horizon: Some(64), buffers: Buffers::Toeplitz(buffers.to_vec()) };
    let name = "blt:3".parse().expect("a strategy");
    let chosen = StrategyChoice { name, fitted: Some(StrategyParameters::Buffered(fitted)) };
    let strategy = build_chosen(&chosen, &Workload::Prefix, Some(64)).expect("sound buffers");
    let parameters = MomentParameters {
        method: Method::Jme,
        layout: Layout::new(DIMENSION, SecondMoment::Diagonal),
        neighbours: Neighbours::ReplaceOneInPlace,
        clip_norm: 1.0,
        noise_multiplier: 1.0,
        second_moment_weight: None,
        count_weight: None,
        bin_weight: None,
    };
    let participation = "1".parse().expect("a schema");
    let strategies = form(Strategies::shared(strategy));
    let mechanism = MatrixMechanism::with_participation(parameters, strategies, participation, 64);
    let measurement = Measurement::of_vectors(mechanism.expect("sound parameters")).shards_at_least(16);
    let setting = AdamHyperparameters::new(NonZeroU32::new(BATCH as u32).unwrap_or(NonZeroU32::MIN), 1e-3);
    let measurement = measurement.checkpoint_interval(u64::MAX).draw_late().build().expect("sound parts");
    TrainingSetup::in_order(measurement, AdamSetup { setting, horizon: steps }, vec![0.0; DIMENSION], BATCH)
}

fn train(worker: &mut Worker, setup: &TrainingSetup, gradients: Arc<Vec<f32>>) {
    let learner = PreparedGradients { gradients };
    let (setup, fault) = (setup.clone(), Fault::new());
    let watched = fault.clone();
    let log = |epochs: &[EpochCommit<u64>]| {
        divan::black_box(epochs);
        Ok(())
    };
    worker.dataflow(|scope| training_loop(scope, setup, learner, Some(Box::new(log)), fault));
    while !watched.is_raised() && worker.step_or_park(Some(Duration::from_millis(50))) {}
    assert!(!watched.is_raised(), "{:?}", watched.reason());
}

/// Gradients that are made beforehand.
struct PreparedGradients {
    gradients: Arc<Vec<f32>>,
}

impl Learner for PreparedGradients {
    type Number = f32;

    fn gradients(&mut self, _: u64, records: &[usize], parameters: &[f64], give: &mut dyn FnMut(&[f32])) {
        // All records are equal, so those of a worker can be any range of the prepared ones.
        give(&self.gradients[..records.len() * parameters.len()]);
    }
}
