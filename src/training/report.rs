//! A trained model as a public JSON object, with coefficients in the units of the columns.

use std::collections::BTreeMap;

use hushflow_mechanism::sampling::Sampling;
use serde::Serialize;

use super::TrainedModel;
use super::examples::{centre, half_width};
use crate::pipeline::training::{ModelKind, OptimiserKind, Target};
use crate::publication::{MomentPublication, PublicationError};

/// A model and the guarantee under which it was trained.
#[derive(Clone, Debug, Serialize)]
pub struct ModelReport {
    /// Name of the pipeline.
    pub name: String,
    /// Kind of the model.
    pub model: ModelKind,
    /// Column that it predicts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// How parameters followed from noisy gradients.
    pub optimiser: OptimiserKind,
    /// Number of released steps.
    pub steps: u64,
    /// Number of all steps.
    pub horizon: u64,
    /// Passes that have begun.
    pub passes: u32,
    /// False if a seed drew the noise: the model then has no privacy protection.
    pub private: bool,
    /// Neighbours of the guarantee.
    pub neighbours: hushflow_mechanism::sensitivity::Neighbours,
    /// How rows were assigned to steps, if the guarantee requires that batches are secret.
    #[serde(skip_serializing_if = "Sampling::is_public")]
    pub sampling: Sampling,
    /// ε of the released steps. That of all steps is spent from the first one on.
    pub epsilon: f64,
    /// δ.
    pub delta: f64,
    /// One for each class of softmax, else one; empty for gradients.
    pub outputs: Vec<OutputReport>,
    /// Names of the parameters, in their order.
    pub names: Vec<String>,
    /// Means of the parameters over the steps of the last pass, for columns scaled to [−1, 1].
    pub parameters: Vec<f64>,
    /// Parameters after the last step.
    pub last: Vec<f64>,
}

/// The linear function of an output, of columns in their units.
#[derive(Clone, Debug, Serialize)]
pub struct OutputReport {
    /// The class whose score it is; none for linear regression. Logistic regression has the score
    /// of its second class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Value where all columns are 0.
    pub intercept: f64,
    /// Factors of the columns.
    pub coefficients: BTreeMap<String, f64>,
}

impl ModelReport {
    /// Describes a model of a publication.
    ///
    /// # Errors
    /// [`PublicationError`] if ε can't be counted.
    pub fn new(model: &TrainedModel, publication: &MomentPublication) -> Result<Self, PublicationError> {
        let (training, parameters) = (model.training(), publication.parameters());
        let epsilon = match model.pass() {
            0 => 0.0,
            passes => publication.spent_after(passes)?.unwrap_or_default(),
        };
        let target = training.target.as_ref().map(|target| match target {
            Target::Number(column) => column.name.clone(),
            Target::Class { column, .. } => column.clone(),
        });
        Ok(Self {
            name: parameters.name.clone(),
            model: training.model,
            target,
            optimiser: training.optimiser,
            steps: model.step(),
            horizon: publication.horizon(),
            passes: model.pass(),
            private: publication.is_private(),
            neighbours: parameters.privacy.neighbours,
            sampling: training.sampling,
            epsilon,
            delta: parameters.privacy.delta,
            outputs: outputs(model),
            names: parameters.column_names().into_iter().map(String::from).collect(),
            parameters: model.mean(),
            last: model.parameters().to_vec(),
        })
    }
}

/// Converts weights of columns in [−1, 1] to the units of the columns: with centre c and half-width
/// h, `w(x − c)/h` has the coefficient w/h and adds −wc/h to the intercept. A target in [−1, 1] is
/// converted back.
fn outputs(model: &TrainedModel) -> Vec<OutputReport> {
    let training = model.training();
    if training.model == ModelKind::Gradients {
        return Vec::new();
    }
    let (target_centre, target_width) = match &training.target {
        Some(Target::Number(column)) => (centre(column), half_width(column)),
        _ => (0.0, 1.0),
    };
    let class = |output: usize| match (&training.target, training.model) {
        (Some(Target::Class { classes, .. }), ModelKind::Logistic) => classes.last().cloned(),
        (Some(Target::Class { classes, .. }), _) => classes.get(output).cloned(),
        _ => None,
    };
    let (mean, width) = (model.mean(), training.features.len());
    let outputs = mean.chunks_exact(width + 1).enumerate().map(|(output, row)| {
        let (mut intercept, mut coefficients) = (row[width], BTreeMap::new());
        for (column, weight) in training.features.iter().zip(row) {
            let coefficient = weight / half_width(column);
            intercept -= coefficient * centre(column);
            coefficients.insert(column.name.clone(), coefficient * target_width);
        }
        OutputReport {
            class: class(output),
            intercept: target_centre + intercept * target_width,
            coefficients,
        }
    });
    outputs.collect()
}
