//! Private training on real images: every way of making Adam private learns, spends the promised
//! budget, and gives the same result on any number of workers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use hushflow_mechanism::accounting::{Delta, Epsilon};
use hushflow_mechanism::mechanism::Strategies;
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::strategy::buffered::{Buffered, BufferedParameters, Buffers, ExponentialBuffer};
use hushflow_mechanism::strategy::build;
use hushflow_training::adam::GradientSquares;
use hushflow_training::data::{Split, digits};
use hushflow_training::model::{Activation, Network};
use hushflow_training::plan::{Privatisation, TrainingError, TrainingPlan};
use hushflow_training::{Trained, TrainingOptions, train, train_exactly};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

fn images() -> Arc<Split> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/digits_8x8.csv");
    Arc::new(digits(Path::new(path)).unwrap())
}

fn plan(images: &Split, privatisation: Privatisation) -> TrainingPlan {
    TrainingPlan {
        records: images.training.len(),
        batch_size: NonZeroU32::new(140).unwrap(),
        passes: NonZeroU32::new(4).unwrap(),
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

fn trained(privatisation: Privatisation, name: &str, workers: usize) -> Trained {
    let images = images();
    let network = Network::new(vec![64, 10], Activation::Tanh);
    let options = TrainingOptions { workers, seed: 1, noise: NoiseSource::Seeded(1), keep_releases: true };
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
        let Trained { passes, .. } = train(&network, &images, &plan, &strategies, options).unwrap();
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
        let Trained { passes, released, not_finite, .. } = trained(privatisation, "identity", 2);
        assert_eq!((passes.len(), released.len(), not_finite), (4, 40, 0));
        // Guessing gets 10 %.
        assert!(passes[3].accuracy > 0.4, "{privatisation:?}: {passes:?}");
        assert!(passes.windows(2).all(|pair| pair[0].epsilon < pair[1].epsilon));
        let spent = passes[3].epsilon;
        assert!((29.9..=30.0).contains(&spent), "{privatisation:?}: {spent}");
    }
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
        "there are 1438 records, fewer than the 2000 of a batch",
    );
    refused(TrainingPlan { clip_norm: 0.0, ..plan }, "clip_norm is 0");
    refused(TrainingPlan { learning_rate: -1.0, ..plan }, "learning_rate is -1");
}
