//! `[training]`: a model that is trained on the rows, and how.
//!
//! A training run is a publication whose records are the gradients of the rows and whose epochs are
//! the steps of the optimiser. Each row belongs to one batch of every pass: step t takes batch
//! `(t − 1) mod b` of b batches. So in k passes a row takes part k times, exactly b steps apart,
//! which is the participation `k×b`, and the sensitivity covers all of them together
//! ([`participation`](hushflow_mechanism::sensitivity)). A gradient depends on earlier releases
//! through the parameters. The guarantee holds for such adaptive streams
//! ([`release`](hushflow_mechanism::release)).
//!
//! With `sampling`, batches are drawn at random, and the noise is less
//! ([`sampling`](hushflow_mechanism::sampling)). Otherwise
//! batches follow from the position of a row and public numbers. A row that is replaced in place or
//! blanked keeps its position, so no other row moves. Neighbours that add or remove rows would
//! shift all later ones, and are refused.

use std::num::NonZeroU64;

use hushflow_mechanism::epochs::{CountSchedule, Schedule};
use hushflow_mechanism::mechanism::Method;
use hushflow_mechanism::participation::Participation;
use hushflow_mechanism::sampling::{Batches, Sampling};
use hushflow_mechanism::workload::{Decay, Workload};
use serde::{Deserialize, Serialize};

use super::{Column, Epochs};

/// A model and its training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Training {
    /// `model`.
    pub model: ModelKind,
    /// The columns of the source that are features, or coordinates of gradients.
    pub features: Vec<Column>,
    /// `target`, `classes`; `None` for gradients.
    pub target: Option<Target>,
    /// `records`: number of rows of the source.
    pub records: u64,
    /// m, `batch_size`: rows in a step.
    pub batch_size: u32,
    /// k, `passes`: passes over the rows.
    pub passes: u32,
    /// `order`: which rows are in a batch.
    pub order: RowOrder,
    /// `sampling`: how rows are assigned to steps.
    #[serde(default, skip_serializing_if = "Sampling::is_public")]
    pub sampling: Sampling,
    /// `optimiser`.
    pub optimiser: OptimiserKind,
    /// `learning_rate`.
    pub learning_rate: f64,
    /// β, `momentum`, for the optimiser `momentum`.
    pub momentum: f64,
    /// Learning rates of all steps, relative to `learning_rate`; empty if they are all 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<f64>,
}

/// Words of `model`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelKind {
    /// Linear regression.
    Linear,
    /// Logistic regression.
    Logistic,
    /// Softmax regression.
    Softmax,
    /// Every row is a gradient.
    Gradients,
}

/// Kind of a model's prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Target {
    /// A number between public bounds.
    Number(Column),
    /// One of these texts of a column.
    Class {
        /// The column.
        column: String,
        /// `classes`: all texts, in the order of the outputs.
        classes: Vec<String>,
    },
}

/// Words of `order`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowOrder {
    /// A fixed public permutation.
    Shuffled,
    /// As in the source.
    Source,
}

/// Words of `optimiser`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptimiserKind {
    /// Gradient descent.
    Sgd,
    /// Gradient descent with heavy-ball momentum.
    Momentum,
    /// Adam with squares of noisy means.
    DpAdam,
    /// Adam with squares of noisy means, without the variance of their noise.
    DpAdamBc,
    /// Adam whose root second moments scale gradients before clipping.
    ScaleThenPrivatise,
    /// Adam with released squares of the gradients of single rows.
    Jme,
    /// As `jme`, with gradients clipped together with their squares.
    JointClip,
}

impl Training {
    /// Returns b, the number of steps in a pass. Rows of an incomplete batch are left out.
    pub fn steps_per_pass(&self) -> u64 {
        self.batches().steps_per_pass()
    }

    /// Returns the public numbers of the batches.
    pub fn batches(&self) -> Batches {
        Batches { records: self.records, batch_size: self.batch_size, sampling: self.sampling }
    }

    /// Returns the number of steps.
    pub fn steps(&self) -> u64 {
        self.steps_per_pass().saturating_mul(self.passes.into())
    }

    /// Returns the steps as epochs.
    pub fn epochs(&self) -> Epochs {
        let schedule =
            CountSchedule { records_per_epoch: self.batch_size.into(), horizon: self.steps().max(1) };
        Epochs { schedule: Schedule::ByCount(schedule), time: None, arrival: None }
    }

    /// Returns the steps in which a row takes part in the first `passes` passes. For random batches
    /// a single step: [`batches`](Self::batches) accounts for the others.
    pub fn participation(&self, passes: u32) -> Participation {
        if !self.sampling.is_public() {
            return Participation::Single;
        }
        let positive = |number: u64| NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN);
        Participation::Fixed { count: positive(passes.into()), gap: positive(self.steps_per_pass()) }
    }

    /// Returns the workload whose sums determine the parameters.
    pub fn workload(&self) -> Workload {
        match Decay::new(self.momentum) {
            Ok(decay) if self.optimiser == OptimiserKind::Momentum => Workload::Momentum(decay),
            _ => Workload::Prefix,
        }
    }

    /// Returns how moments of gradients are released.
    pub fn method(&self) -> Method {
        match self.optimiser {
            OptimiserKind::Jme => Method::Jme,
            OptimiserKind::JointClip => Method::JointClip,
            _ => Method::Pp,
        }
    }

    /// Returns the number of outputs, each with a weight for every feature and an intercept.
    pub fn outputs(&self) -> usize {
        match (&self.target, self.model) {
            (Some(Target::Class { classes, .. }), ModelKind::Softmax) => classes.len(),
            _ => 1,
        }
    }

    /// Returns the columns of a gradient, one for each parameter, from −`clip_norm` to `clip_norm`.
    pub fn coordinates(&self, clip_norm: f64) -> Vec<Column> {
        let column =
            |name: String| Column { name, lower: -clip_norm, upper: clip_norm, bounds: Default::default() };
        let features = || self.features.iter().map(|feature| feature.name.clone());
        match (self.model, &self.target) {
            (ModelKind::Gradients, _) => features().map(column).collect(),
            (ModelKind::Softmax, Some(Target::Class { classes, .. })) => classes
                .iter()
                .flat_map(|class| weights(features()).map(move |name| format!("{class}: {name}")))
                .map(column)
                .collect(),
            _ => weights(features()).map(column).collect(),
        }
    }
}

/// Returns the names of the weights of an output and of its intercept.
fn weights(features: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    features.chain(["(intercept)".into()])
}
