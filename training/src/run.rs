//! Runs a training loop on the workers of this process, and the same without privacy, to measure
//! the cost of privacy.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use hushflow_mechanism::mechanism::Strategies;
use hushflow_mechanism::noise::NoiseSource;
use hushflow_operators::{CommitLog, EpochCommit, Fault, ReleasedEpoch};
use timely::worker::Worker;

use crate::adam::{Adam, AdamError, AdamHyperparameters, Parameters, UpdatePart};
use crate::data::Split;
use crate::model::{Network, Workspace, shuffled};
use crate::plan::{TrainingError, TrainingPlan};
use crate::training_loop::{Learner, training_loop};

/// Longest sleep of a worker before it checks for a fault.
const PARK_TIMEOUT: Duration = Duration::from_millis(50);

/// Numbers in a batch of gradients that are clipped together, about the size of a processor's
/// cache.
const BATCH_NUMBERS: usize = 1 << 17;

/// Result of training.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingResult {
    /// One entry for each pass.
    pub passes: Vec<Pass>,
    /// Mean of the parameters after the steps of the last pass.
    pub parameters: Vec<f64>,
    /// The public log of releases.
    pub released: Vec<ReleasedEpoch>,
    /// Number of gradients that were not finite. **Private**, for the operator only.
    pub not_finite: u64,
}

/// Results after a pass over the data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pass {
    /// ε spent so far, for the plan's δ.
    pub epsilon: f64,
    /// Share of test images that are classified correctly by the mean of the parameters after the
    /// steps of this pass.
    pub accuracy: f64,
}

/// Where training runs, with its seed and noise.
#[derive(Clone, Copy, Debug)]
pub struct TrainingOptions {
    /// Number of worker threads. The result does not depend on it.
    pub workers: usize,
    /// Seed of the model's initial parameters and the order of records, both public.
    pub seed: u64,
    /// Source of noise and of sampled batches. A seeded one is for experiments and is not private.
    pub noise: NoiseSource,
    /// Whether to keep the releases: 16 bytes for each coordinate and step.
    pub keep_releases: bool,
}

/// Trains a network on the training images of a split, and tests it after each pass.
///
/// # Errors
/// [`TrainingError`].
pub fn train(
    network: &Network,
    images: &Arc<Split>,
    plan: &TrainingPlan,
    strategies: &Strategies,
    options: TrainingOptions,
) -> Result<TrainingResult, TrainingError> {
    let setup = plan.setup(strategies, network.initial(options.seed), options.noise)?;
    let mechanism = setup.measurement.mechanism();
    let spent = (1..=plan.passes.get()).map(|passes| plan.spent(mechanism, passes));
    let spent = spent.collect::<Result<Vec<f64>, _>>()?;
    let not_finite = setup.not_finite.clone();
    let order = Arc::new(shuffled(images.training.len(), options.seed));
    let ((report, reports), (release, releases)) = (channel(), channel());
    let fault = Fault::new();
    let work = {
        let (network, images, plan) = (network.clone(), images.clone(), *plan);
        let fault = fault.clone();
        move |worker: &mut Worker| {
            let learner = ImageLearner {
                workspace: network.workspace(),
                gradients: Vec::new(),
                network: network.clone(),
                images: images.clone(),
                order: order.clone(),
                plan,
                reports: (worker.index() == 0).then(|| report.clone()),
                mean: PassMean::default(),
            };
            let release = release.clone();
            let log = move |epochs: &[EpochCommit<u64>]| {
                let mut kept = epochs.iter().filter(|_| options.keep_releases);
                kept.try_for_each(|epoch| Ok(release.send(epoch.released.clone())?))
            };
            let log = (worker.index() == 0).then(|| Box::new(log) as Box<dyn CommitLog<u64>>);
            let (setup, watched) = (setup.clone(), fault.clone());
            worker.dataflow(|scope| training_loop(scope, setup, learner, log, fault.clone()));
            while !watched.is_raised() && worker.step_or_park(Some(PARK_TIMEOUT)) {}
            // After a fault, timely must not wait for dataflows that never finish.
            worker.installed_dataflows().into_iter().for_each(|dataflow| worker.drop_dataflow(dataflow));
        }
    };
    timely::execute(timely::Config::process(options.workers), work)
        .and_then(|guards| guards.join().into_iter().collect::<Result<Vec<()>, _>>())
        .map_err(TrainingError::Fault)?;
    if let Some(reason) = fault.reason() {
        return Err(TrainingError::Fault(reason.into()));
    }
    let (accuracies, parameters): (Vec<_>, Vec<_>) = reports.try_iter().unzip();
    let passes = spent.into_iter().zip(accuracies).map(|(epsilon, accuracy)| Pass { epsilon, accuracy });
    Ok(TrainingResult {
        passes: passes.collect(),
        parameters: parameters.into_iter().next_back().unwrap_or_default(),
        released: releases.try_iter().collect(),
        not_finite: not_finite.load(Ordering::Relaxed),
    })
}

/// Takes the gradients of this worker's share of a batch.
struct ImageLearner {
    network: Network,
    images: Arc<Split>,
    order: Arc<Vec<usize>>,
    plan: TrainingPlan,
    workspace: Workspace,
    gradients: Vec<f64>,
    /// Accuracy and parameters of every pass, from the first worker.
    reports: Option<Sender<(f64, Vec<f64>)>>,
    mean: PassMean,
}

/// Mean of the parameters after the steps of a pass: post-processing, with less noise than the last
/// of them.
#[derive(Default)]
struct PassMean {
    sums: Vec<f64>,
    steps: u64,
}

impl PassMean {
    fn add(&mut self, parameters: &[f64]) {
        self.sums.resize(parameters.len(), 0.0);
        self.sums.iter_mut().zip(parameters).for_each(|(sum, parameter)| *sum += parameter);
        self.steps += 1;
    }

    /// Returns the mean, and starts the next pass.
    fn take(&mut self) -> Vec<f64> {
        let Self { sums, steps } = std::mem::take(self);
        sums.into_iter().map(|sum| sum / steps as f64).collect()
    }
}

impl Learner for ImageLearner {
    type Number = f64;

    fn gradients(&mut self, step: u64, records: &[usize], parameters: &[f64], give: &mut dyn FnMut(&[f64])) {
        let done = step - 1;
        if let Some(reports) = &self.reports
            && done > 0
        {
            self.mean.add(parameters);
            if done.is_multiple_of(self.plan.steps_per_pass()) {
                let mean = self.mean.take();
                let accuracy = self.network.accuracy(&mean, &self.images.test);
                // The receiver is gone if training was abandoned.
                let _ = reports.send((accuracy, mean));
            }
        }
        let dimension = parameters.len();
        for records in records.chunks((BATCH_NUMBERS / dimension).max(1)) {
            let gradients = &mut self.gradients;
            gradients.resize(records.len() * dimension, 0.0);
            for (&record, gradient) in records.iter().zip(gradients.chunks_exact_mut(dimension)) {
                let (levels, class) = self.images.training.get(self.order[record]);
                self.network.gradient(parameters, levels, class.into(), &mut self.workspace, gradient);
            }
            give(gradients);
        }
    }
}

/// Trains like [`train`], by plain Adam on exact mean gradients in the same order, without clipping
/// and noise. The spent ε is infinite.
///
/// # Errors
/// [`TrainingError`] for an invalid plan.
pub fn train_exactly(
    network: &Network,
    images: &Split,
    plan: &TrainingPlan,
    seed: u64,
) -> Result<Vec<Pass>, TrainingError> {
    let setting = AdamHyperparameters { update_norm: None, ..plan.setting() };
    setting.check()?;
    let order = shuffled(images.training.len(), seed);
    let mut parameters = Parameters::new(network.initial(seed), &setting);
    let mut adam = Adam::new(&setting, network.parameters());
    let mut passes = Vec::new();
    for _ in 0..plan.passes.get() {
        let mut mean = PassMean::default();
        for batch in order.chunks_exact(plan.batch_size.get() as usize) {
            step(network, images, batch, &mut adam, &mut parameters)?;
            mean.add(parameters.values());
        }
        let accuracy = network.accuracy(&mean.take(), &images.test);
        passes.push(Pass { epsilon: f64::INFINITY, accuracy });
    }
    Ok(passes)
}

fn step(
    network: &Network,
    images: &Split,
    batch: &[usize],
    adam: &mut Adam,
    parameters: &mut Parameters,
) -> Result<(), AdamError> {
    let dimension = network.parameters();
    let (mut gradient, mut mean, mut workspace) =
        (vec![0.0; dimension], vec![0.0; dimension], network.workspace());
    for &image in batch {
        let (levels, class) = images.training.get(image);
        network.gradient(parameters.values(), levels, class.into(), &mut workspace, &mut gradient);
        mean.iter_mut().zip(&gradient).for_each(|(mean, g)| *mean += g / batch.len() as f64);
    }
    let squares: Vec<f64> = mean.iter().map(|g| g * g).collect();
    let mut direction = vec![0.0; dimension];
    adam.step(&mean, &squares, 0.0, &mut direction);
    parameters.apply(&[UpdatePart::new(0, direction, Vec::new())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adam::GradientSquares;
    use crate::data::digits;
    use crate::model::Activation;
    use crate::plan::Privatisation;
    use crate::sampling::Sampling;
    use hushflow_mechanism::accounting::{Delta, Epsilon};
    use hushflow_mechanism::sensitivity::Neighbours;
    use hushflow_mechanism::strategy::buffered::{Buffered, BufferedParameters, Buffers, ExponentialBuffer};
    use hushflow_mechanism::strategy::build;
    use hushflow_mechanism::workload::Workload;
    use std::num::NonZeroU32;
    use std::path::Path;

    /// Digits, as many of them as fill batches of 140 and of 28.
    fn images() -> Arc<Split> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/digits_8x8.csv");
        let Split { training, test } = digits(Path::new(path)).unwrap();
        Arc::new(Split { training: training.choose(|image| image < 1400), test })
    }

    fn plan(images: &Split, privatisation: Privatisation) -> TrainingPlan {
        TrainingPlan {
            records: images.training.len(),
            batch_size: NonZeroU32::new(140).unwrap(),
            passes: NonZeroU32::new(4).unwrap(),
            sampling: Sampling::InOrder,
            neighbours: Neighbours::ReplaceOneInPlace,
            epsilon: Epsilon::new(30.0).unwrap(),
            delta: Delta::new(1e-6).unwrap(),
            clip_norm: 1.0,
            privatisation,
            learning_rate: 0.1,
        }
    }

    fn strategies(name: &str) -> Strategies {
        build(name, &"exponential:0.9".parse().unwrap(), Some(40)).unwrap().into()
    }

    fn trained(privatisation: Privatisation, name: &str, workers: usize) -> TrainingResult {
        let images = images();
        let network = Network::new(vec![64, 10], Activation::Tanh);
        let options =
            TrainingOptions { workers, seed: 1, noise: NoiseSource::Seeded(1), keep_releases: true };
        train(&network, &images, &plan(&images, privatisation), &strategies(name), options).unwrap()
    }

    /// Noise that is correlated ahead of the sums is calibrated for the actual grid, and spends the
    /// promised budget.
    #[test]
    fn correlated_noise_spends_the_promised_budget() {
        let images = images();
        let network = Network::new(vec![64, 10], Activation::Tanh);
        let buffers = Buffers::Toeplitz(vec![ExponentialBuffer { decay: 0.75, weight: 0.5 }]);
        let fitted = BufferedParameters { horizon: Some(40), buffers };
        let strategy = Arc::new(Buffered::new("blt:1".parse().unwrap(), fitted).unwrap());
        let plan = plan(&images, Privatisation::Jme);
        let options =
            TrainingOptions { workers: 2, seed: 1, noise: NoiseSource::Seeded(1), keep_releases: false };
        for strategies in
            [Strategies::shared(strategy.clone()), Strategies::shared(strategy.clone()).correlated()]
        {
            let TrainingResult { passes, .. } =
                train(&network, &images, &plan, &strategies, options).unwrap();
            assert!(passes.windows(2).all(|pair| pair[0].epsilon < pair[1].epsilon));
            assert!((29.9..=30.0 + 1e-9).contains(&passes[3].epsilon), "{passes:?}");
        }
    }

    #[test]
    fn every_method_learns_and_spends_the_promised_budget() {
        use GradientSquares::{Debiased, Raw, Scaling};
        let processed = [Debiased, Raw, Scaling { damping: 0.3 }].map(Privatisation::PostProcessing);
        for privatisation in [Privatisation::Jme, Privatisation::BatchSquares, Privatisation::JointClip]
            .into_iter()
            .chain(processed)
        {
            let TrainingResult { passes, released, not_finite, .. } = trained(privatisation, "identity", 2);
            assert_eq!((passes.len(), released.len(), not_finite), (4, 40, 0));
            // Guessing gets 10 %.
            assert!(passes[3].accuracy > 0.4, "{privatisation:?}: {passes:?}");
            assert!(passes.windows(2).all(|pair| pair[0].epsilon < pair[1].epsilon));
            let spent = passes[3].epsilon;
            assert!((29.9..=30.0).contains(&spent), "{privatisation:?}: {spent}");
        }
    }

    #[test]
    fn each_pass_has_its_own_mean() {
        let mut mean = PassMean::default();
        mean.add(&[1.0, 4.0]);
        mean.add(&[3.0, 0.0]);
        assert_eq!(mean.take(), [2.0, 2.0]);
        mean.add(&[5.0, 1.0]);
        assert_eq!(mean.take(), [5.0, 1.0]);
    }

    #[test]
    fn training_is_equal_on_one_and_two_workers() {
        for (privatisation, name) in [
            (Privatisation::Jme, "square-root"),
            (Privatisation::BatchSquares, "identity"),
            (Privatisation::PostProcessing(GradientSquares::Scaling { damping: 0.3 }), "square-root"),
        ] {
            let one = trained(privatisation, name, 1);
            assert!(one == trained(privatisation, name, 2), "{privatisation:?}");
        }
    }

    fn sampled(sampling: Sampling, neighbours: Neighbours, name: &str, workers: usize) -> TrainingResult {
        let images = images();
        let network = Network::new(vec![64, 10], Activation::Tanh);
        let options =
            TrainingOptions { workers, seed: 1, noise: NoiseSource::Seeded(1), keep_releases: true };
        let privatisation = Privatisation::PostProcessing(GradientSquares::Raw);
        let plan = TrainingPlan { sampling, neighbours, ..plan(&images, privatisation) };
        train(&network, &images, &plan, &strategies(name), options).unwrap()
    }

    /// Sampled batches learn the same on any number of workers, spend the promised budget, and
    /// release no number of records.
    #[test]
    #[ignore = "slow"]
    fn sampled_batches_learn_and_spend_the_promised_budget() {
        use Neighbours::{ReplaceOneInPlace, ZeroOut};
        for (sampling, neighbours, name) in [
            (Sampling::Poisson, ZeroOut, "identity"),
            (Sampling::Poisson, ReplaceOneInPlace, "banded-square-root:2"),
            (Sampling::BallsInBins, ZeroOut, "banded-square-root:2"),
        ] {
            let one = sampled(sampling, neighbours, name, 1);
            assert!(one == sampled(sampling, neighbours, name, 2), "{sampling} {name}");
            let passes = &one.passes;
            assert!(passes.windows(2).all(|pair| pair[0].epsilon < pair[1].epsilon), "{passes:?}");
            assert!((29.9..=30.0).contains(&passes[3].epsilon) && passes[3].accuracy > 0.5, "{passes:?}");
            if neighbours == ReplaceOneInPlace {
                assert!(one.released.iter().all(|released| released.to_vec()[0] == 0), "counts are hidden");
            }
        }
    }

    /// Amplification lowers the noise, and less of it is needed where a record is only blanked.
    #[test]
    fn sampling_lowers_the_noise_of_the_same_promise() {
        let privatisation = Privatisation::PostProcessing(GradientSquares::Raw);
        let plan = TrainingPlan {
            epsilon: Epsilon::new(1.7).unwrap(),
            batch_size: NonZeroU32::new(28).unwrap(),
            ..plan(&images(), privatisation)
        };
        let noise = |sampling, neighbours| {
            let plan = TrainingPlan { sampling, neighbours, ..plan };
            plan.expected_noise(650, &strategies("identity"), &Workload::Prefix).unwrap()
        };
        let [replaced, blanked] = [Neighbours::ReplaceOneInPlace, Neighbours::ZeroOut];
        let noise = |sampling| [noise(sampling, replaced), noise(sampling, blanked)];
        let (in_order, poisson) = (noise(Sampling::InOrder), noise(Sampling::Poisson));
        assert!((in_order[0].deviation / in_order[1].deviation - 2.0).abs() < 1e-3, "{in_order:?}");
        let balls = noise(Sampling::BallsInBins);
        for sampled in [poisson, balls] {
            assert!(sampled[1].deviation < sampled[0].deviation, "{sampled:?}");
        }
        assert!(poisson[0].deviation < in_order[1].deviation, "{poisson:?} {in_order:?}");
    }

    #[test]
    fn training_without_privacy_is_more_accurate() {
        let images = images();
        let network = Network::new(vec![64, 10], Activation::Tanh);
        let passes = train_exactly(&network, &images, &plan(&images, Privatisation::Jme), 1).unwrap();
        assert!(passes[3].accuracy > 0.9, "{passes:?}");
    }

    #[test]
    fn invalid_plans_are_refused() {
        let images = images();
        let network = Network::new(vec![64, 10], Activation::Tanh);
        let refused = |plan: TrainingPlan, message: &str| {
            let options =
                TrainingOptions { workers: 1, seed: 1, noise: NoiseSource::System, keep_releases: false };
            let error: TrainingError =
                train(&network, &images, &plan, &strategies("identity"), options).unwrap_err();
            assert!(error.to_string().starts_with(message), "{error}");
        };
        let plan = plan(&images, Privatisation::Jme);
        refused(
            TrainingPlan { batch_size: NonZeroU32::new(2000).unwrap(), ..plan },
            "there are 1400 records, fewer than the 2000 of a batch",
        );
        refused(TrainingPlan { neighbours: Neighbours::ReplaceOne, ..plan }, "neighbours replace-one move");
        let poisson = TrainingPlan { sampling: Sampling::Poisson, ..plan };
        refused(poisson, "sampling is poisson, but the method jme needs");
        refused(TrainingPlan { clip_norm: 0.0, ..plan }, "clip_norm is 0");
        refused(TrainingPlan { learning_rate: -1.0, ..plan }, "learning_rate is -1");
        let refuse_strategy = |sampling, neighbours, strategies: Strategies, message: &str| {
            let privatisation = Privatisation::PostProcessing(GradientSquares::Raw);
            let plan = TrainingPlan { sampling, neighbours, privatisation, ..plan };
            let error = plan.expected_noise(650, &strategies, &Workload::Prefix).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        };
        let buffers = Buffers::Toeplitz(vec![ExponentialBuffer { decay: 0.75, weight: 0.5 }]);
        let fitted = BufferedParameters { horizon: Some(40), buffers };
        let buffered = Strategies::shared(Arc::new(Buffered::new("blt:1".parse().unwrap(), fitted).unwrap()));
        let [poisson, balls] = [Sampling::Poisson, Sampling::BallsInBins];
        let blanked = Neighbours::ZeroOut;
        refuse_strategy(
            poisson,
            blanked,
            buffered,
            "sampling is poisson, but the strategy blt:1 has no bands",
        );
        refuse_strategy(
            poisson,
            blanked,
            strategies("square-root"),
            "a strategy with 40 bands draws batches",
        );
        refuse_strategy(
            balls,
            blanked,
            strategies("banded-square-root:3"),
            "balls-in-bins needs a multiple of 3",
        );
        let batch_size = NonZeroU32::new(130).unwrap();
        let privatisation = Privatisation::PostProcessing(GradientSquares::Raw);
        let uneven = TrainingPlan { batch_size, sampling: balls, neighbours: blanked, privatisation, ..plan };
        refused(uneven, "balls-in-bins puts each of 1400 records in one of the steps of a pass");
    }
}
