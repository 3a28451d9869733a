//! Training of models: the model that follows from the public log of a training run, and the
//! gradients of its rows.
//!
//! A [`TrainedModel`] is a function of released gradients, so a resumed run and a reader of the log
//! compute the same parameters, bit for bit. [`Examples`] are the private rows.
//! [`runtime::training`](crate::runtime::training) runs the loop between them.

mod examples;
mod report;

use std::num::NonZeroU32;

use hushflow_mechanism::moments::Layout;
use hushflow_operators::ReleasedEpoch;
use hushflow_training::adam::{AdamError, AdamHyperparameters, GradientSquares, Parameters, PrivateAdam};
use hushflow_training::linear::LinearModel;
use thiserror::Error;

use crate::pipeline::Training;
use crate::pipeline::training::{ModelKind, OptimiserKind};
use crate::publication::MomentPublication;

pub use examples::{Evaluation, Examples, ExamplesError};
pub use report::{ModelReport, OutputReport};

/// ρ of `scale-then-privatise`.
const DAMPING: f64 = 0.3;

/// Largest norm of an update of Adam, as in
/// [`TrainingPlan`](hushflow_training::plan::TrainingPlan).
const UPDATE_NORM: f64 = 1.0;

/// Reasons why there is no model.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrainingError {
    /// The publication releases moments of records, not gradients.
    #[error("no model is trained here: the pipeline file has no section [training]")]
    NoTraining,
    /// The optimiser refuses its setting or a release.
    #[error(transparent)]
    Adam(#[from] AdamError),
}

/// Parameters after the released steps. Public.
pub struct TrainedModel {
    training: Training,
    layout: Layout,
    optimiser: PrivateAdam,
    parameters: Parameters,
    /// Sums of the parameters after the steps of the last pass that has begun.
    sums: Vec<f64>,
    step: u64,
}

impl TrainedModel {
    /// Starts before the first step, with all parameters 0.
    ///
    /// # Errors
    /// [`TrainingError`].
    pub fn begin(publication: &MomentPublication) -> Result<Self, TrainingError> {
        let training = publication.parameters().training.clone().ok_or(TrainingError::NoTraining)?;
        let (layout, setting) = (publication.layout(), setting(&training));
        let dimension = layout.dimension;
        let optimiser =
            PrivateAdam::new(publication.mechanism(), setting, 0..dimension, publication.horizon())?;
        let parameters = Parameters::new(vec![0.0; dimension], &setting);
        Ok(Self { training, layout, optimiser, parameters, sums: vec![0.0; dimension], step: 0 })
    }

    /// Takes the release of the next step.
    ///
    /// # Errors
    /// [`TrainingError::Adam`] if it is not a release of this run; the model must not be used
    /// afterwards.
    pub fn push(&mut self, released: &ReleasedEpoch) -> Result<(), TrainingError> {
        let (first, second) = (released.run(self.layout.first()), released.run(self.layout.second()));
        let update = self.optimiser.push(first, second)?;
        let rate = self.training.rates.get(self.step as usize).copied().unwrap_or(1.0);
        self.parameters.apply_at(rate, std::slice::from_ref(&update))?;
        self.optimiser.give_back(update);
        if self.step.is_multiple_of(self.training.steps_per_pass().max(1)) {
            self.sums.fill(0.0);
        }
        self.sums.iter_mut().zip(self.parameters.values()).for_each(|(sum, value)| *sum += value);
        self.step += 1;
        Ok(())
    }

    /// The model and how it is trained.
    pub fn training(&self) -> &Training {
        &self.training
    }

    /// Number of released steps.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Number of passes that have begun.
    pub fn pass(&self) -> u32 {
        let passes = self.step.div_ceil(self.training.steps_per_pass().max(1));
        u32::try_from(passes).unwrap_or(u32::MAX)
    }

    /// Whether all steps are released.
    pub fn is_complete(&self) -> bool {
        self.step >= self.training.steps()
    }

    /// Parameters after the last step, at which the next gradients are taken.
    pub fn parameters(&self) -> &[f64] {
        self.parameters.values()
    }

    /// Returns factors of the next gradients before clipping; empty if they are not scaled.
    pub fn scale(&self) -> &[f64] {
        self.parameters.scale()
    }

    /// Returns the mean of the parameters after the steps of the last pass that has begun. It has
    /// less noise than the last parameters.
    pub fn mean(&self) -> Vec<f64> {
        let steps = match self.step {
            0 => 1,
            step => (step - 1) % self.training.steps_per_pass().max(1) + 1,
        };
        self.sums.iter().map(|sum| sum / steps as f64).collect()
    }
}

/// Returns the linear model of these rows; `None` for gradients.
fn linear_model(training: &Training) -> Option<LinearModel> {
    let features = training.features.len();
    match training.model {
        ModelKind::Linear => Some(LinearModel::linear(features)),
        ModelKind::Logistic => Some(LinearModel::logistic(features)),
        ModelKind::Softmax => Some(LinearModel::softmax(features, training.outputs())),
        ModelKind::Gradients => None,
    }
}

fn setting(training: &Training) -> AdamHyperparameters {
    let batch_size = NonZeroU32::new(training.batch_size).unwrap_or(NonZeroU32::MIN);
    let setting = AdamHyperparameters::new(batch_size, training.learning_rate);
    let adam = AdamHyperparameters { update_norm: Some(UPDATE_NORM), ..setting };
    match training.optimiser {
        OptimiserKind::Sgd => {
            AdamHyperparameters { heavy_ball: Some(0.0), squares: GradientSquares::Raw, ..setting }
        }
        OptimiserKind::Momentum => AdamHyperparameters {
            heavy_ball: Some(training.momentum),
            squares: GradientSquares::Raw,
            ..setting
        },
        OptimiserKind::DpAdam => AdamHyperparameters { squares: GradientSquares::Raw, ..adam },
        OptimiserKind::DpAdamBc => AdamHyperparameters { squares: GradientSquares::Debiased, ..adam },
        OptimiserKind::ScaleThenPrivatise => {
            AdamHyperparameters { squares: GradientSquares::Scaling { damping: DAMPING }, ..adam }
        }
        OptimiserKind::Jme | OptimiserKind::JointClip => adam,
    }
}
