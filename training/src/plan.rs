//! The promise of a private training run, and its consequences: noise, optimiser, and the budget
//! spent after each pass.
//!
//! Records have one fixed, public order: step t takes batch `(t − 1) mod b` of b batches of m
//! records each. So in k passes every record takes part k times, exactly b steps apart (`k×b`).
//! Neighbours differ in one record, replaced in place; the number of records in a step is public.
//! There is no subsampling, so the guarantee does not rely on it.

use std::num::{NonZeroU32, NonZeroU64};

use hushflow_mechanism::accounting::{Delta, Epsilon, gaussian};
use hushflow_mechanism::mechanism::{MatrixMechanism, MechanismError, Method, MomentParameters, Strategies};
use hushflow_mechanism::moments::{Layout, SecondMoment};
use hushflow_mechanism::participation::Participation;
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_operators::MeasurementError;
use thiserror::Error;

use crate::adam::{AdamError, AdamSetting, GradientSquares};

/// Ways of making Adam private.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Privatisation {
    /// First moments and per-record squares, jointly.
    Jme,
    /// First moments and squares of the batch's mean: Algorithm 2 of the paper, with its actual
    /// sensitivity.
    BatchSquares,
    /// First moments and per-record squares of gradients, clipped together with their squares.
    JointClip,
    /// Squares of the noisy mean gradient: DP-Adam, DP-AdamBC, or scaling before clipping.
    PostProcessing(GradientSquares),
}

impl Privatisation {
    fn method(self, size: NonZeroU32) -> Method {
        match self {
            Self::Jme => Method::Jme,
            Self::BatchSquares => Method::BatchSquares { size },
            Self::JointClip => Method::JointClip,
            Self::PostProcessing(_) => Method::Pp,
        }
    }
}

/// A private training run.
#[derive(Clone, Copy, Debug)]
pub struct TrainingPlan {
    /// Number of records for training.
    pub records: usize,
    /// m, the number of records in a step.
    pub batch_size: NonZeroU32,
    /// k, the number of passes over the records.
    pub passes: NonZeroU32,
    /// ε of the whole run.
    pub epsilon: Epsilon,
    /// δ of the whole run, and of the spending after each pass.
    pub delta: Delta,
    /// ζ.
    pub clip_norm: f64,
    /// Method of making Adam private.
    pub privatisation: Privatisation,
    /// α.
    pub learning_rate: f64,
}

/// Why a run is invalid.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrainingError {
    /// There are fewer records than a batch needs.
    #[error("there are {records} records, fewer than the {batch_size} of a batch: choose smaller batches")]
    Batch {
        /// Number of records.
        records: usize,
        /// Number of records in a batch.
        batch_size: u32,
    },
    /// There is no such noise or guarantee.
    #[error(transparent)]
    Mechanism(#[from] MechanismError),
    /// There is no such measurement.
    #[error(transparent)]
    Measurement(#[from] MeasurementError),
    /// There is no such optimiser.
    #[error(transparent)]
    Adam(#[from] AdamError),
    /// The dataflow failed.
    #[error("training stopped: {0}")]
    Fault(String),
}

impl TrainingPlan {
    /// b, the number of steps in a pass. Records of an incomplete batch are left out.
    pub fn steps_per_pass(&self) -> u64 {
        self.records as u64 / u64::from(self.batch_size.get())
    }

    /// Number of steps.
    pub fn horizon(&self) -> u64 {
        self.steps_per_pass() * u64::from(self.passes.get())
    }

    /// Makes the release of gradients of a model with this number of parameters, with the least
    /// noise that keeps the promise.
    ///
    /// # Errors
    /// [`TrainingError`] names the problem.
    pub fn mechanism(
        &self,
        dimension: usize,
        strategies: &Strategies,
    ) -> Result<MatrixMechanism, TrainingError> {
        let continuous = gaussian::noise_multiplier(self.epsilon, self.delta).value();
        let mechanism = self.release(dimension, strategies, continuous, self.passes.get(), None)?;
        let cells = self.horizon() as f64;
        let multiplier = mechanism.moments().calibrated(self.epsilon, self.delta, cells)?;
        Ok(mechanism.with_noise_multiplier(multiplier)?)
    }

    /// Returns ε spent after this number of passes: the cost of a record's contributions until
    /// then, under the noise of the whole run. Infinite if the grid uses up δ.
    /// [`MomentMechanism::spent_by`] describes the computation.
    ///
    /// [`MomentMechanism::spent_by`]: hushflow_mechanism::mechanism::MomentMechanism::spent_by
    ///
    /// # Errors
    /// [`TrainingError`] as [`mechanism`](Self::mechanism).
    pub fn spent(&self, mechanism: &MatrixMechanism, passes: u32) -> Result<f64, TrainingError> {
        let moments = mechanism.moments();
        let multiplier = moments.parameters().noise_multiplier;
        let dimension = mechanism.layout().dimension;
        let weight = moments.second_moment_weight();
        let part = self.release(dimension, mechanism.strategies(), multiplier, passes, weight)?;
        let cells = self.steps_per_pass() as f64 * f64::from(passes);
        let spent = moments.spent_by(part.moments(), self.delta, cells)?;
        Ok(spent.map_or(f64::INFINITY, Epsilon::value))
    }

    fn release(
        &self,
        dimension: usize,
        strategies: &Strategies,
        noise_multiplier: f64,
        passes: u32,
        second_moment_weight: Option<f64>,
    ) -> Result<MatrixMechanism, TrainingError> {
        let records = self.records;
        let gap = NonZeroU64::new(self.steps_per_pass())
            .ok_or(TrainingError::Batch { records, batch_size: self.batch_size.get() })?;
        let parameters = MomentParameters {
            method: self.privatisation.method(self.batch_size),
            layout: Layout { dimension, second: SecondMoment::Diagonal },
            neighbours: Neighbours::ReplaceOneInPlace,
            clip_norm: self.clip_norm,
            noise_multiplier,
            second_moment_weight,
            count_weight: None,
        };
        let count = NonZeroU64::from(NonZeroU32::new(passes).unwrap_or(NonZeroU32::MIN));
        let participation = Participation::Fixed { count, gap };
        let horizon = u64::from(passes) * gap.get();
        Ok(MatrixMechanism::with_participation(parameters, strategies.clone(), participation, horizon)?)
    }

    /// Returns the optimiser's setting. Updates are clipped to norm 1, as in the paper's Table 4.
    pub fn setting(&self) -> AdamSetting {
        let squares = match self.privatisation {
            Privatisation::PostProcessing(squares) => squares,
            _ => GradientSquares::default(),
        };
        let update_norm = Some(1.0);
        AdamSetting { squares, update_norm, ..AdamSetting::new(self.batch_size, self.learning_rate) }
    }
}
