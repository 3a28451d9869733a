//! Tests that the loop ends, gives the same parameters on any number of workers, and can be
//! replayed: with encoded sums and with correlated noise.
//!
//! The last tests train on two sets of gradients with equal releases: the noise is shifted by the
//! difference of the sums. The log, the width of its values and the parameters must then be equal,
//! with encoded sums and with correlated noise, on any number of workers. Two sets of gradients are
//! taken at the same parameters only if all earlier steps released the same values. So the offset
//! of each step needs a run of its own.

use super::*;
use crate::adam::AdamHyperparameters;
use hushflow_mechanism::mechanism::{MatrixMechanism, MomentParameters, Strategies};
use hushflow_mechanism::moments::{IntegerRow, SecondMoment};
use hushflow_mechanism::noise::{NoiseSource, Offsets};
use hushflow_mechanism::participation::Participation;
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_mechanism::strategy::buffered::{Buffered, BufferedParameters, Buffers, ExponentialBuffer};
use hushflow_mechanism::strategy::build;
use hushflow_mechanism::workload::Workload;
use hushflow_operators::{EpochCommit, ReleasedEpoch};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Mutex, mpsc};
use std::time::Duration;
use timely::dataflow::operators::Inspect;
use timely::dataflow::operators::vec::Delay;
use timely::worker::Worker;

const DIMENSION: usize = 40;
const STEPS: u64 = 6;
const RECORDS: usize = 30;
const METHODS: [Method; 3] =
    [Method::Jme, Method::Pp, Method::BatchSquares { size: NonZeroU32::new(RECORDS as u32).unwrap() }];

/// The value that replaces every coordinate of a record's gradient in a step; `None` keeps the
/// gradient.
type Replacement = fn(step: u64, record: usize) -> Option<f64>;

const UNCHANGED: Replacement = |_, _| None;

const EXTREME: Replacement = |step, record| match (record as u64 + step) % 9 {
    0 => Some(f64::NAN),
    1 => Some(f64::INFINITY),
    2 => Some(f64::NEG_INFINITY),
    3 => Some(5e-324),
    4 => Some(-1e-280),
    5 => Some(1e-160),
    6 => Some(1e300),
    7 => Some(-f64::MAX),
    _ => None,
};

/// All gradients in one direction, clipped to the largest norm.
const LONG: Replacement = |_, _| Some(1e200);

/// The opposite direction; in every third step no gradient is finite.
const OPPOSITE: Replacement = |step, _| if step % 3 == 2 { Some(f64::NAN) } else { Some(-1.0) };

/// Parameters by step, as bits.
type ParameterSteps = Vec<(u64, Vec<u64>)>;

fn bits(parameters: &[f64]) -> Vec<u64> {
    parameters.iter().map(|parameter| parameter.to_bits()).collect()
}

/// A learner with the gradients of a quadratic loss: each record pulls the parameters towards its
/// own point.
#[derive(Clone)]
struct QuadraticLearner {
    replacement: Replacement,
    worker: usize,
    steps: Arc<Mutex<ParameterSteps>>,
}

impl Learner for QuadraticLearner {
    type Number = f64;

    fn gradients(&mut self, step: u64, records: &[usize], parameters: &[f64], give: &mut dyn FnMut(&[f64])) {
        if self.worker == 0 {
            self.steps.lock().unwrap().push((step, bits(parameters)));
        }
        for &record in records {
            let target = |coordinate: usize| ((coordinate + record) % 7) as f64 / 7.0;
            let gradient = parameters.iter().enumerate().map(|(coordinate, p)| p - target(coordinate));
            give(&match (self.replacement)(step, record) {
                Some(value) => vec![value; DIMENSION],
                None => gradient.collect(),
            });
        }
    }
}

fn setting() -> AdamHyperparameters {
    AdamHyperparameters::new(NonZeroU32::new(RECORDS as u32).unwrap(), 0.05)
}

fn buffered() -> Strategies {
    let buffers = Buffers::Toeplitz(vec![ExponentialBuffer { decay: 0.75, weight: 0.5 }]);
    let parameters = BufferedParameters { horizon: Some(STEPS), buffers };
    Strategies::shared(Arc::new(Buffered::new("blt:1".parse().unwrap(), parameters).unwrap()))
}

fn setup(method: Method, draw_late: bool) -> TrainingSetup {
    let strategy = build("square-root", &Workload::Prefix, Some(STEPS)).unwrap();
    setup_of(NoiseSource::Seeded(4), method, strategy.into(), draw_late)
}

fn setup_of(source: NoiseSource, method: Method, strategies: Strategies, draw_late: bool) -> TrainingSetup {
    let parameters = MomentParameters {
        method,
        layout: Layout::new(DIMENSION, SecondMoment::Diagonal),
        neighbours: Neighbours::ReplaceOneInPlace,
        clip_norm: 1.0,
        noise_multiplier: 0.1,
        second_moment_weight: None,
        count_weight: None,
        bin_weight: None,
    };
    let mechanism = MatrixMechanism::with_participation(parameters, strategies, Participation::Single, STEPS);
    let measurement = Measurement::of_vectors(mechanism.unwrap()).shards_at_most(5).noise(source);
    let measurement = if draw_late { measurement.draw_late() } else { measurement }.build().unwrap();
    let adam = AdamSetup { setting: setting(), horizon: STEPS };
    TrainingSetup::in_order(measurement, adam, vec![1.0; DIMENSION], RECORDS)
}

/// Released integers of a step, and which shards send them as 64-bit integers.
type StepRelease = (Vec<i128>, Vec<bool>);

#[derive(Debug, PartialEq)]
struct TrainingOutcome {
    steps: ParameterSteps,
    releases: Vec<StepRelease>,
    fault: Option<String>,
}

impl TrainingOutcome {
    fn values(self) -> Vec<Vec<i128>> {
        self.releases.into_iter().map(|(values, _)| values).collect()
    }
}

/// Trains on this many workers. Three workers exchange serialised messages, as processes do.
fn run(workers: usize, records: usize, replacement: Replacement, setup: &TrainingSetup) -> TrainingOutcome {
    let (steps, fault) = (Arc::default(), Fault::new());
    setup.not_finite.store(0, Ordering::Relaxed);
    let quadratic = QuadraticLearner { replacement, worker: 0, steps: Arc::clone(&steps) };
    let batches = DrawnBatches { records, ..setup.batches.clone() };
    let setup = TrainingSetup { batches, ..setup.clone() };
    let (shared, watched, (commit, commits)) = (setup.clone(), fault.clone(), mpsc::channel());
    let work = move |worker: &mut Worker| {
        let learner = QuadraticLearner { worker: worker.index(), ..quadratic.clone() };
        let commit = commit.clone();
        let log = move |epochs: &[EpochCommit<u64>]| {
            epochs.iter().try_for_each(|EpochCommit { released, .. }| {
                let narrow = released.run(0..released.len()).map(|row| matches!(row, IntegerRow::Narrow(_)));
                Ok(commit.send((released.to_vec(), narrow.collect()))?)
            })
        };
        let log = (worker.index() == 0).then(|| Box::new(log) as Box<dyn CommitLog<u64>>);
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
    let steps = std::mem::take(&mut *steps.lock().unwrap());
    TrainingOutcome { steps, releases: commits.try_iter().collect(), fault: fault.reason().map(String::from) }
}

/// Returns whether training brought the parameters closer to the mean of the targets, 3/7.
fn has_learned(steps: &ParameterSteps) -> bool {
    let distance =
        |step: usize| steps[step].1.iter().map(|&p| (f64::from_bits(p) - 3.0 / 7.0).abs()).sum::<f64>();
    distance(STEPS as usize) < 0.8 * distance(0)
}

/// Checks that the parameters depend neither on the number of workers nor on when noise is drawn.
/// Returns them.
fn check_same_on_any_number_of_workers(setup: impl Fn(bool) -> TrainingSetup) -> ParameterSteps {
    let (early, late) = (setup(false), setup(true));
    let TrainingOutcome { steps, fault, .. } = run(1, RECORDS, UNCHANGED, &late);
    assert_eq!(fault, None);
    assert!(steps.iter().map(|(step, _)| *step).eq(1..=STEPS + 1));
    for workers in [2, 3] {
        assert_eq!(run(workers, RECORDS, UNCHANGED, &late).steps, steps, "{workers} workers");
    }
    assert_eq!(run(2, RECORDS, UNCHANGED, &early).steps, steps, "noise is the same whenever it is drawn");
    steps
}

#[test]
fn training_is_equal_on_any_number_of_workers() {
    for method in METHODS {
        assert!(has_learned(&check_same_on_any_number_of_workers(|draw_late| setup(method, draw_late))));
    }
}

#[test]
fn training_with_correlated_noise_is_equal_on_any_number_of_workers() {
    for method in METHODS {
        let form = |strategies, draw_late| setup_of(NoiseSource::Seeded(4), method, strategies, draw_late);
        let correlated =
            check_same_on_any_number_of_workers(|draw_late| form(buffered().correlated(), draw_late));
        let encoded = run(1, RECORDS, UNCHANGED, &form(buffered(), true)).steps;
        assert!(has_learned(&correlated) && has_learned(&encoded));
    }
}

/// Returns the parameters that follow from the released integers alone.
fn replayed(releases: Vec<Vec<i128>>, setup: &TrainingSetup) -> ParameterSteps {
    let (sender, updates) = mpsc::channel();
    let (measurement, adam) = (setup.measurement.clone(), setup.adam);
    timely::example(move |scope| {
        let released =
            (1..).zip(releases).map(|(epoch, values)| ReleasedEpoch::released_before(epoch, values));
        let released = released.to_stream(scope).container::<Vec<_>>();
        let released = released.delay(|released, _| released.epoch);
        released.adam(&measurement, adam, Fault::new()).inspect_time(move |step, part| {
            sender.send((*step, part.clone())).unwrap();
        });
    });
    let mut parts: BTreeMap<u64, Vec<SharedUpdate>> = BTreeMap::new();
    updates.iter().for_each(|(step, part)| parts.entry(step).or_default().push(part));
    let mut parameters = Parameters::new(setup.parameters.clone(), &setup.adam.setting);
    let mut replayed = vec![(1, bits(parameters.values()))];
    for (step, mut update) in parts {
        update.sort_by_key(|part| Borrow::<UpdatePart>::borrow(part).start);
        parameters.apply(&update).unwrap();
        replayed.push((step + 1, bits(parameters.values())));
    }
    replayed
}

/// A replay from the log's integers alone agrees bit for bit, with encoded sums and with correlated
/// noise, on any number of workers.
#[test]
fn a_replay_of_the_log_gives_the_same_parameters() {
    for strategies in [buffered(), buffered().correlated()] {
        let setup = setup_of(NoiseSource::Seeded(4), Method::Jme, strategies, true);
        let one_nan: Replacement = |step, record| (step == 2 && record == 3).then_some(f64::NAN);
        let outcome = run(1, RECORDS, one_nan, &setup);
        assert_eq!(outcome.fault, None);
        assert_eq!(run(3, RECORDS, one_nan, &setup), outcome);
        let steps = outcome.steps.clone();
        assert_eq!(replayed(outcome.values(), &setup), steps);
    }
}

#[test]
fn gradients_that_are_not_finite_count_as_zero() {
    let setup = setup(Method::Jme, true);
    let extreme = |step: u64, record: usize| match (step, record) {
        (2, 3) => Some(f64::NAN),
        (2, 4) => Some(f64::NEG_INFINITY),
        (3, 0) => Some(1e300),
        _ => None,
    };
    let zeros = |step: u64, record: usize| match (step, record) {
        (2, 3 | 4) => Some(0.0),
        // Clipping gives the same gradient for 1 and for 1e300.
        (3, 0) => Some(1.0),
        _ => None,
    };
    let outcome = run(2, RECORDS, extreme, &setup);
    assert_eq!((setup.not_finite.load(Ordering::Relaxed), &outcome.fault), (2, &None));
    assert_eq!(outcome.steps, run(1, RECORDS, zeros, &setup).steps);
}

#[test]
fn steps_without_gradients_are_released() {
    let outcome = run(2, 0, UNCHANGED, &setup(Method::Pp, true));
    assert_eq!((outcome.steps.len() as u64, outcome.fault), (STEPS + 1, None));
    assert!(
        outcome
            .steps
            .iter()
            .flat_map(|(_, parameters)| parameters)
            .all(|&value| f64::from_bits(value).is_finite())
    );
}

#[test]
fn an_unusable_setting_is_a_fault() {
    let mut setup = setup(Method::Jme, true);
    setup.adam.setting.learning_rate = 0.0;
    let fault = run(2, 3, UNCHANGED, &setup).fault;
    assert!(fault.is_some_and(|reason| reason.starts_with("learning_rate is 0")));
}

fn setup_with_offsets(is_correlated: bool, offsets: &[Vec<i128>]) -> TrainingSetup {
    let source = NoiseSource::Shifted { seed: 4, offsets: Offsets::new(offsets.to_vec()).leaked() };
    let strategies = if is_correlated { buffered().correlated() } else { buffered() };
    setup_of(source, Method::Jme, strategies, true)
}

/// Returns the noise offsets with which these gradients release `target`.
fn offsets_for(target: &[Vec<i128>], replacement: Replacement, is_correlated: bool) -> Vec<Vec<i128>> {
    let mut offsets: Vec<Vec<i128>> = Vec::new();
    for (step, target) in target.iter().enumerate() {
        let outcome = run(1, RECORDS, replacement, &setup_with_offsets(is_correlated, &offsets));
        let values = outcome.values().swap_remove(step);
        offsets.push(target.iter().zip(values).map(|(target, value)| target - value).collect());
    }
    offsets
}

/// Returns the values with three of four coordinates that have noise moved to integers around
/// 2^bits or −2^bits.
fn around(bits: u32, values: &[Vec<i128>], setup: &TrainingSetup) -> Vec<Vec<i128>> {
    let noise = setup.measurement.mechanism().moments().noise().to_vec();
    let integer = |(at, &value): (usize, &i128)| match at % 4 {
        _ if noise[at].scale.is_none() => value,
        0 => value,
        1 => -(1 << bits) - (at as i128 / 4) % 3 + 1,
        _ => (1 << bits) + (at as i128 / 4) % 3 - 1,
    };
    values.iter().map(|values| values.iter().enumerate().map(integer).collect()).collect()
}

fn check_equal_releases(is_correlated: bool, [one, other]: [Replacement; 2], bits: Option<u32>) {
    let plain = setup_with_offsets(is_correlated, &[]);
    let natural = run(1, RECORDS, one, &plain).values();
    assert_ne!(natural, run(1, RECORDS, other, &plain).values(), "the gradients differ");
    let target = bits.map_or_else(|| natural.clone(), |bits| around(bits, &natural, &plain));
    let worlds = [one, other].map(|replacement| {
        (replacement, setup_with_offsets(is_correlated, &offsets_for(&target, replacement, is_correlated)))
    });
    let expected = run(1, RECORDS, one, &worlds[0].1);
    assert_eq!(expected.fault, None);
    assert!(
        expected.releases.iter().map(|(values, _)| values).eq(&target),
        "the offsets give these releases"
    );
    for workers in [1, 2, 3] {
        for (replacement, setup) in &worlds {
            let outcome = run(workers, RECORDS, *replacement, setup);
            assert!(outcome == expected, "{workers} workers, correlated: {is_correlated}, {bits:?}");
        }
    }
    assert_eq!(replayed(target, &plain), expected.steps, "from the log alone");
}

#[test]
fn equal_releases_of_other_gradients_give_equal_parameters() {
    for is_correlated in [false, true] {
        for worlds in [[UNCHANGED, EXTREME], [EXTREME, LONG], [LONG, OPPOSITE]] {
            check_equal_releases(is_correlated, worlds, None);
        }
    }
}

/// Correlated noise starts from independent noise in 64 bits. So with correlated noise the chosen
/// releases go up to 2⁶² only.
#[test]
fn equal_releases_around_a_width_give_equal_parameters() {
    for (is_correlated, widths) in [(false, &[31, 63, 64, 100][..]), (true, &[31, 53, 61, 62])] {
        for &bits in widths {
            check_equal_releases(is_correlated, [EXTREME, OPPOSITE], Some(bits));
        }
    }
}
