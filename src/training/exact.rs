//! Training without privacy, to measure the cost of privacy: plain Adam on exact mean gradients.

use hushflow_mechanism::estimate::adam::{Adam, AdamError, AdamSetting, Parameters, UpdatePart};

use super::data::Split;
use super::model::{Network, shuffled};
use super::plan::{TrainingError, TrainingPlan};
use super::run::Pass;

/// Trains like [`train`](super::train), in the same order, without clipping and noise. The spent ε
/// is infinite.
///
/// # Errors
/// [`TrainingError`] for an invalid plan.
pub fn train_exactly(
    network: &Network,
    images: &Split,
    plan: &TrainingPlan,
    seed: u64,
) -> Result<Vec<Pass>, TrainingError> {
    let setting = AdamSetting { update_norm: None, ..plan.setting() };
    setting.check()?;
    let order = shuffled(images.training.len(), seed);
    let mut parameters = Parameters::new(network.initial(seed), &setting);
    let mut adam = Adam::new(&setting, network.parameters());
    let mut passes = Vec::new();
    for _ in 0..plan.passes.get() {
        for batch in order.chunks_exact(plan.batch_size.get() as usize) {
            step(network, images, batch, &mut adam, &mut parameters)?;
        }
        let accuracy = network.accuracy(parameters.values(), &images.test);
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
