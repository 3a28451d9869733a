//! The guarantee of a private training run. The batches, the noise, the optimiser and the budget
//! spent after each pass follow from it.
//!
//! [`TrainingPlan::setup`] returns the batches and their noise as one value, so that neither can be
//! used without the other.
//!
//! - [`Sampling::InOrder`]: step t takes batch `(t − 1) mod b` of b batches of m records each. So
//!   in k passes every record takes part k times, exactly b steps apart (`k×b`). The number of
//!   records in a step is public, and the guarantee does not rely on random batches.
//! - Other schemes draw batches of m records on average
//!   ([`sampling`](hushflow_mechanism::sampling)). The guarantee requires that they are secret
//!   ([`amplification`](hushflow_mechanism::accounting::amplification)). They need a strategy with
//!   bands whose encoder is exact. The number of records in a step is private.

use std::num::{NonZeroU32, NonZeroU64};

use hushflow_mechanism::accounting::{Delta, Epsilon, gaussian};
use hushflow_mechanism::error::ExpectedError;
use hushflow_mechanism::mechanism::{MatrixMechanism, MechanismError, Method, MomentParameters, Strategies};
use hushflow_mechanism::moments::{Layout, SecondMoment};
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::participation::Participation;
use hushflow_mechanism::release::{ReleaseError, UNREAD_COUNT};
use hushflow_mechanism::sampling::{Batches, Sampling, SamplingError};
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_mechanism::strategy::{StepError, StrategyError};
use hushflow_mechanism::workload::Workload;
use hushflow_operators::{Measurement, MeasurementError};
use thiserror::Error;

use crate::adam::{AdamError, AdamHyperparameters, GradientSquares};
use crate::claims::ClaimError;
use crate::optimise::AdamSetup;
use crate::sampling::DrawnBatches;
use crate::training_loop::TrainingSetup;

/// Minimum number of shards, independent of the number of workers.
const SHARDS: u32 = 16;

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
    /// All methods with their names; scaling with the damping 0.3.
    pub const NAMED: [(&str, Self); 6] = [
        ("jme", Self::Jme),
        ("batch-squares", Self::BatchSquares),
        ("joint-clip", Self::JointClip),
        ("dp-adam", Self::PostProcessing(GradientSquares::Raw)),
        ("dp-adam-bc", Self::PostProcessing(GradientSquares::Debiased)),
        ("scale-then-privatise", Self::PostProcessing(GradientSquares::Scaling { damping: 0.3 })),
    ];

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
    /// m, the number of records in a step; the expected number if batches are sampled.
    pub batch_size: NonZeroU32,
    /// k, the number of passes over the records.
    pub passes: NonZeroU32,
    /// How records are assigned to steps.
    pub sampling: Sampling,
    /// The neighbour relation: [`Neighbours::ReplaceOneInPlace`] or [`Neighbours::ZeroOut`]. The
    /// number of records is public.
    pub neighbours: Neighbours,
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

/// Reasons why a training run is invalid or fails.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrainingError {
    /// A record would move to another step.
    #[error(
        "neighbours replace-one move records between steps, but training keeps them: choose replace-one-in-place or zero-out"
    )]
    MovedRecords,
    /// Batches can't be drawn that way.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// Sampled batches, although the program forms its own batches.
    #[error(
        "sampling is {sampling}, but the program takes its own batches: choose in-order, or let the training loop draw them"
    )]
    OwnBatches {
        /// The sampling.
        sampling: Sampling,
    },
    /// Gradients that do not fit the records of a batch.
    #[error(
        "found {values} values, expected one gradient of {dimension} values for each of at most {most} more records of the step"
    )]
    Gradients {
        /// Number of values.
        values: usize,
        /// Number of parameters.
        dimension: usize,
        /// Records that the step still takes.
        most: usize,
    },
    /// A step that must not be drawn.
    #[error(transparent)]
    Claim(ClaimError),
    /// A step can't be released.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// A saved state can't be restored.
    #[error(transparent)]
    State(#[from] StepError),
    /// No noise gives the guarantee.
    #[error(transparent)]
    Mechanism(#[from] MechanismError),
    /// The errors of a strategy can't be computed.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// The measurement can't be made.
    #[error(transparent)]
    Measurement(#[from] MeasurementError),
    /// The optimiser can't be made.
    #[error(transparent)]
    Adam(#[from] AdamError),
    /// The dataflow failed.
    #[error("training stopped: {0}")]
    Fault(String),
}

/// Noise of a plan, computed without data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpectedNoise {
    /// Standard deviation of the noise divided by the sensitivity of the whole run or, if batches
    /// are sampled, by the sensitivity of one participation.
    pub noise_multiplier: f64,
    /// Root mean square, over the steps, of the standard deviation of the noise in the workload of
    /// mean gradients, in each coordinate and in units of ζ.
    pub deviation: f64,
}

impl TrainingPlan {
    /// Public numbers of the batches.
    pub(crate) fn batches(&self) -> Batches {
        Batches { records: self.records as u64, batch_size: self.batch_size.get(), sampling: self.sampling }
    }

    /// b, the number of steps in a pass. Batches in order leave out the records of an incomplete
    /// batch.
    pub fn steps_per_pass(&self) -> u64 {
        self.batches().steps_per_pass()
    }

    /// Number of steps.
    pub fn horizon(&self) -> u64 {
        self.steps_per_pass() * u64::from(self.passes.get())
    }

    /// Returns what [`training_loop`](crate::training_loop) needs for a model with these initial
    /// parameters: the batches, the least noise that gives the guarantee, and the optimiser.
    ///
    /// # Errors
    /// [`TrainingError`] names the problem.
    pub fn setup(
        &self,
        strategies: &Strategies,
        parameters: Vec<f64>,
        noise: NoiseSource,
    ) -> Result<TrainingSetup, TrainingError> {
        let mechanism = self.mechanism(parameters.len(), strategies)?;
        let setting = self.setting();
        setting.check_release(&mechanism)?;
        let scheme = self.batches().scheme(&mechanism, self.horizon())?;
        let batches = DrawnBatches { records: self.records, scheme, source: noise };
        let measurement = Measurement::of_vectors(mechanism).shards_at_least(SHARDS).noise(noise);
        let measurement = measurement.checkpoint_interval(u64::MAX).draw_late().build()?;
        let adam = AdamSetup { setting, horizon: self.horizon() };
        Ok(TrainingSetup { measurement, batches, adam, parameters, not_finite: Default::default() })
    }

    /// Returns the noise of this plan for a model of this number of parameters, in a workload:
    /// `adam:0.9` gives the averages that Adam uses, and `prefix` the sums that make up the
    /// parameters.
    ///
    /// # Errors
    /// As [`setup`](Self::setup).
    pub fn expected_noise(
        &self,
        dimension: usize,
        strategies: &Strategies,
        workload: &Workload,
    ) -> Result<ExpectedNoise, TrainingError> {
        let mechanism = self.mechanism(dimension, strategies)?;
        let moments = mechanism.moments();
        let noise_multiplier = moments.parameters().noise_multiplier;
        let deviation = noise_multiplier * moments.sensitivity() / self.clip_norm;
        let error = ExpectedError::new(workload, strategies.first(), self.horizon())?;
        let rows = error.frobenius / (self.horizon() as f64).sqrt();
        let deviation = deviation * rows / f64::from(self.batch_size.get());
        Ok(ExpectedNoise { noise_multiplier, deviation })
    }

    /// Returns the mechanism that releases gradients of a model with this number of parameters. It
    /// has the least noise that gives the guarantee. Private to the crate, because it is valid only
    /// together with the sampled batches.
    pub(crate) fn mechanism(
        &self,
        dimension: usize,
        strategies: &Strategies,
    ) -> Result<MatrixMechanism, TrainingError> {
        let passes = self.passes.get();
        let continuous = gaussian::noise_multiplier(self.epsilon, self.delta).value();
        let mechanism = self.release(dimension, strategies, continuous, passes, None)?;
        let (run, guarantee) = ((self.horizon(), passes), (self.epsilon, self.delta));
        let multiplier = match self.batches().calibrated(&mechanism, run, guarantee, &mut |_| ())? {
            Some(multiplier) => multiplier,
            None => mechanism.moments().calibrated(self.epsilon, self.delta, self.horizon() as f64)?,
        };
        Ok(mechanism.with_noise_multiplier(multiplier)?)
    }

    /// Returns ε spent after this number of passes: the cost of a record's contributions until
    /// then, under the noise of the whole run. Infinite if the grid uses up δ. Batches in order use
    /// [`MomentMechanism::spent_by`](hushflow_mechanism::mechanism::MomentMechanism::spent_by).
    pub(crate) fn spent(&self, mechanism: &MatrixMechanism, passes: u32) -> Result<f64, TrainingError> {
        let (moments, strategies) = (mechanism.moments(), mechanism.strategies());
        let cells = self.steps_per_pass() as f64 * f64::from(passes);
        if let Some(epsilon) = self.batches().epsilon(mechanism, (self.horizon(), passes), self.delta)? {
            return Ok(epsilon);
        }
        let multiplier = moments.parameters().noise_multiplier;
        let dimension = mechanism.layout().dimension;
        let weight = moments.second_moment_weight();
        let part = self.release(dimension, strategies, multiplier, passes, weight)?;
        let spent = moments.spent_by(part.moments(), self.delta, cells)?;
        Ok(spent.map_or(f64::INFINITY, Epsilon::value))
    }

    /// Returns the mechanism that releases this number of passes. Sampled batches have the
    /// sensitivity of one participation.
    fn release(
        &self,
        dimension: usize,
        strategies: &Strategies,
        noise_multiplier: f64,
        passes: u32,
        second_moment_weight: Option<f64>,
    ) -> Result<MatrixMechanism, TrainingError> {
        let (records, batch_size) = (self.records as u64, self.batch_size.get());
        let gap = NonZeroU64::new(self.steps_per_pass());
        let gap = gap.ok_or(SamplingError::Batch { records, batch_size })?;
        let count_weight = match self.neighbours {
            Neighbours::ReplaceOneInPlace => None,
            Neighbours::ZeroOut => Some(UNREAD_COUNT.sqrt() * self.clip_norm),
            Neighbours::ReplaceOne => return Err(TrainingError::MovedRecords),
        };
        let parameters = MomentParameters {
            method: self.privatisation.method(self.batch_size),
            layout: Layout::new(dimension, SecondMoment::Diagonal),
            neighbours: self.neighbours,
            clip_norm: self.clip_norm,
            noise_multiplier,
            second_moment_weight,
            count_weight,
            bin_weight: None,
        };
        let count = NonZeroU64::from(NonZeroU32::new(passes).unwrap_or(NonZeroU32::MIN));
        let participation = match self.sampling {
            Sampling::InOrder => Participation::Fixed { count, gap },
            Sampling::Poisson | Sampling::BallsInBins => Participation::Single,
        };
        let horizon = u64::from(passes) * gap.get();
        Ok(MatrixMechanism::with_participation(parameters, strategies.clone(), participation, horizon)?)
    }

    /// Returns the optimiser's setting. Updates are clipped to norm 1, as in the paper's Table 4.
    pub fn setting(&self) -> AdamHyperparameters {
        let squares = match self.privatisation {
            Privatisation::PostProcessing(squares) => squares,
            _ => GradientSquares::default(),
        };
        let update_norm = Some(1.0);
        AdamHyperparameters {
            squares,
            update_norm,
            ..AdamHyperparameters::new(self.batch_size, self.learning_rate)
        }
    }
}
