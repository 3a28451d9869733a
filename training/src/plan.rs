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
//!   ([`sampling`](crate::sampling)), and the guarantee requires that the batches are secret
//!   ([`amplification`](hushflow_mechanism::accounting::amplification)). They need a strategy with
//!   bands whose encoder is exact. The number of records in a step is private.

use std::num::{NonZeroU32, NonZeroU64};

use hushflow_mechanism::accounting::amplification::{AmplificationError, RandomParticipation};
use hushflow_mechanism::accounting::{AccountingError, Delta, Epsilon, NoiseMultiplier, gaussian};
use hushflow_mechanism::error::ExpectedError;
use hushflow_mechanism::mechanism::{MatrixMechanism, MechanismError, Method, MomentParameters, Strategies};
use hushflow_mechanism::moments::{Layout, SecondMoment};
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::participation::Participation;
use hushflow_mechanism::release::{ReleaseError, UNREAD_COUNT};
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_mechanism::strategy::{MatrixError, StepError, Strategy, StrategyError};
use hushflow_mechanism::workload::Workload;
use hushflow_operators::{Measurement, MeasurementError};
use thiserror::Error;

use crate::adam::{AdamError, AdamSetting, GradientSquares};
use crate::claims::ClaimError;
use crate::optimise::AdamSetup;
use crate::sampling::{Batches, Sampling, Scheme};
use crate::training_loop::TrainingSetup;

/// Minimum number of shards, independent of the number of workers.
const SHARDS: u32 = 16;

/// Relative tolerance of the least noise multiplier for sampled batches.
const CLOSE: f64 = 1e-4;

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
    /// There are fewer records than a batch needs.
    #[error("there are {records} records, fewer than the {batch_size} of a batch: choose smaller batches")]
    Batch {
        /// Number of records.
        records: usize,
        /// Number of records in a batch.
        batch_size: u32,
    },
    /// A record would move to another step.
    #[error(
        "neighbours replace-one move records between steps, but training keeps them: choose replace-one-in-place or zero-out"
    )]
    MovedRecords,
    /// A strategy without exact bands.
    #[error(
        "sampling is {sampling}, but the strategy {strategy} has no bands that are encoded exactly: choose identity, a banded strategy such as banded-toeplitz-optimal:4, or batches in-order"
    )]
    Unbanded {
        /// The sampling.
        sampling: Sampling,
        /// Name of the strategy.
        strategy: String,
    },
    /// Groups that are too small for the batches.
    #[error(
        "a strategy with {bands} bands draws batches of {batch_size} records from groups of {records}/{bands}: choose fewer bands or smaller batches"
    )]
    Groups {
        /// Number of bands, and of groups.
        bands: u64,
        /// Number of records in a batch.
        batch_size: u32,
        /// Number of records.
        records: usize,
    },
    /// A pass that does not divide into cycles of groups.
    #[error(
        "balls-in-bins needs a multiple of {bands} steps in a pass, one for each band, but there are {steps}: choose another batch size or number of bands"
    )]
    Cycles {
        /// Number of bands.
        bands: u64,
        /// Number of steps in a pass.
        steps: u64,
    },
    /// Second moments that can't be released from sampled batches.
    #[error(
        "sampling is {sampling}, but the method {method} needs batches of public size, or neighbours zero-out: choose dp-adam, or batches in-order"
    )]
    SampledMethod {
        /// The sampling.
        sampling: Sampling,
        /// The method.
        method: Method,
    },
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
    /// There is no amplified guarantee.
    #[error(transparent)]
    Amplification(#[from] AmplificationError),
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

impl From<AccountingError> for TrainingError {
    fn from(error: AccountingError) -> Self {
        Self::Mechanism(error.into())
    }
}

impl From<MatrixError> for TrainingError {
    fn from(error: MatrixError) -> Self {
        Self::Mechanism(error.into())
    }
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
    /// b, the number of steps in a pass. Batches in order leave out the records of an incomplete
    /// batch.
    pub fn steps_per_pass(&self) -> u64 {
        self.records as u64 / u64::from(self.batch_size.get())
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
        let batches = Batches { records: self.records, scheme: self.scheme(strategies)?, source: noise };
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
        let multiplier = match self.random_participation(strategies, passes)? {
            None => mechanism.moments().calibrated(self.epsilon, self.delta, self.horizon() as f64)?,
            Some(participation) => self.calibrated(&mechanism, participation)?,
        };
        Ok(mechanism.with_noise_multiplier(multiplier)?)
    }

    /// Returns ε spent after this number of passes: the cost of a record's contributions until
    /// then, under the noise of the whole run. Infinite if the grid uses up δ. Batches in order use
    /// [`MomentMechanism::spent_by`](hushflow_mechanism::mechanism::MomentMechanism::spent_by).
    pub(crate) fn spent(&self, mechanism: &MatrixMechanism, passes: u32) -> Result<f64, TrainingError> {
        let (moments, strategies) = (mechanism.moments(), mechanism.strategies());
        let cells = self.steps_per_pass() as f64 * f64::from(passes);
        if let Some(participation) = self.random_participation(strategies, passes)? {
            return self.amplified_epsilon(mechanism, participation, cells);
        }
        let multiplier = moments.parameters().noise_multiplier;
        let dimension = mechanism.layout().dimension;
        let weight = moments.second_moment_weight();
        let part = self.release(dimension, strategies, multiplier, passes, weight)?;
        let spent = moments.spent_by(part.moments(), self.delta, cells)?;
        Ok(spent.map_or(f64::INFINITY, Epsilon::value))
    }

    /// Returns ε of the sampled steps so far, rounded up; infinite if the grid uses up δ.
    fn amplified_epsilon(
        &self,
        mechanism: &MatrixMechanism,
        participation: RandomParticipation,
        cells: f64,
    ) -> Result<f64, TrainingError> {
        let moments = mechanism.moments();
        // The sensitivity in place is twice the norm of one contribution: 4A = (2√A)².
        let norms = match self.neighbours {
            Neighbours::ReplaceOneInPlace => 2.0,
            _ => 1.0,
        };
        let multiplier = NoiseMultiplier::new(moments.parameters().noise_multiplier * norms)?;
        let composition = participation.composition(self.neighbours, multiplier)?;
        let composition = composition.with_discreteness(moments.drawn_discreteness(cells)?);
        Ok(composition.epsilon(self.delta).map_or(f64::INFINITY, |epsilon| epsilon.high))
    }

    /// Returns a noise multiplier that gives the guarantee with sampled batches, at most [`CLOSE`]
    /// above the least one.
    ///
    /// ln ε falls almost linearly in ln σ. So each guess is the point at which the line through
    /// both ends reaches ε, shifted by a third of the tolerance to alternating sides. Any result is
    /// valid, because its own ε was computed.
    fn calibrated(
        &self,
        mechanism: &MatrixMechanism,
        participation: RandomParticipation,
    ) -> Result<f64, TrainingError> {
        let cells = self.horizon() as f64;
        let excess = |log_multiplier: f64| -> Result<f64, TrainingError> {
            let mechanism = mechanism.with_noise_multiplier(log_multiplier.exp())?;
            let epsilon = self.amplified_epsilon(&mechanism, participation, cells)?;
            Ok((epsilon / self.epsilon.value()).ln().min(100.0))
        };
        let mut high = mechanism.moments().parameters().noise_multiplier.ln();
        let mut above = excess(high)?;
        let (mut low, mut below) = (high, above);
        while above > 0.0 {
            (low, below) = (high, above);
            high += 1.0;
            above = excess(high)?;
        }
        while below <= 0.0 {
            (high, above) = (low, below);
            low -= 1.0;
            // If accounting fails for this noise, the noise is too small.
            below = excess(low).unwrap_or(100.0);
        }
        let mut side = 1.0;
        while high - low > CLOSE {
            let share = if below < 10.0 && above > -10.0 { below / (below - above) } else { 0.5 };
            let guess = low + (high - low) * share + side * CLOSE / 3.0;
            let margin = (high - low) / 8.0;
            let guess = if high - low < 4.0 * CLOSE { (low + high) / 2.0 } else { guess };
            let guess = guess.clamp(low + margin.min(CLOSE / 4.0), high - margin.min(CLOSE / 4.0));
            let found = excess(guess)?;
            if found <= 0.0 {
                (high, above) = (guess, found);
            } else {
                (low, below) = (guess, found);
            }
            side = -side;
        }
        Ok(high.exp())
    }

    /// Returns the random participation of a record in these passes; `None` for batches in order.
    fn random_participation(
        &self,
        strategies: &Strategies,
        passes: u32,
    ) -> Result<Option<RandomParticipation>, TrainingError> {
        let passes = u64::from(passes);
        Ok(match self.scheme(strategies)? {
            Scheme::InOrder { .. } => None,
            Scheme::Poisson { groups, probability: rate } => {
                let steps = (self.steps_per_pass() * passes).div_ceil(groups.get());
                Some(RandomParticipation::Poisson { rate, steps })
            }
            Scheme::BallsInBins { bins, .. } => {
                Some(RandomParticipation::Allocation { bins: bins.get(), rounds: passes })
            }
        })
    }

    fn scheme(&self, strategies: &Strategies) -> Result<Scheme, TrainingError> {
        let (records, batch_size) = (self.records, self.batch_size.get());
        let steps = self.gap()?;
        if self.sampling == Sampling::InOrder {
            return Ok(Scheme::InOrder { batch_size: batch_size as usize });
        }
        let method = self.privatisation.method(self.batch_size);
        let in_place = self.neighbours == Neighbours::ReplaceOneInPlace;
        if matches!(method, Method::BatchSquares { .. }) || (in_place && method != Method::Pp) {
            return Err(TrainingError::SampledMethod { sampling: self.sampling, method });
        }
        let mut groups = self.bands(strategies.first())?;
        if method != Method::Pp {
            groups = groups.max(self.bands(strategies.second())?);
        }
        let bands = groups.get();
        if self.sampling == Sampling::Poisson {
            let expected = u64::from(batch_size).saturating_mul(bands);
            if expected > records as u64 {
                return Err(TrainingError::Groups { bands, batch_size, records });
            }
            return Ok(Scheme::Poisson { groups, probability: expected as f64 / records as f64 });
        }
        match NonZeroU64::new(steps.get() / bands).filter(|_| steps.get().is_multiple_of(bands)) {
            Some(bins) => Ok(Scheme::BallsInBins { groups, bins }),
            None => Err(TrainingError::Cycles { bands, steps: steps.get() }),
        }
    }

    /// Returns the number of bands of a strategy that encodes exactly: the contribution of a record
    /// to a step changes at most this number of rows.
    fn bands(&self, strategy: &dyn Strategy) -> Result<NonZeroU64, TrainingError> {
        let matrix = strategy.matrix(self.horizon())?;
        let exact = strategy.geometry().rounding_squared == 0.0 && matrix.discrepancy().relative == 0.0;
        let bands = matrix.bands().filter(|_| exact).and_then(|bands| NonZeroU64::new(bands as u64));
        bands.ok_or_else(|| TrainingError::Unbanded { sampling: self.sampling, strategy: strategy.name() })
    }

    fn gap(&self) -> Result<NonZeroU64, TrainingError> {
        let (records, batch_size) = (self.records, self.batch_size.get());
        NonZeroU64::new(self.steps_per_pass()).ok_or(TrainingError::Batch { records, batch_size })
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
        let gap = self.gap()?;
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
    pub fn setting(&self) -> AdamSetting {
        let squares = match self.privatisation {
            Privatisation::PostProcessing(squares) => squares,
            _ => GradientSquares::default(),
        };
        let update_norm = Some(1.0);
        AdamSetting { squares, update_norm, ..AdamSetting::new(self.batch_size, self.learning_rate) }
    }
}
