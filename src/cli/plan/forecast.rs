//! Forecasts a stream before any data are read: exact errors, sensitivity, noise and memory.

use std::sync::Arc;

use hushflow::mechanism::accounting::{Delta, Epsilon, NoiseMultiplier, gaussian};
use hushflow::mechanism::error::ExpectedError;
use hushflow::mechanism::mechanism::{
    MechanismError, Method, MomentGeometry, MomentMechanism, MomentParameters,
};
use hushflow::mechanism::moments::{Bins, Layout, SecondMoment};
use hushflow::mechanism::participation::Participation;
use hushflow::mechanism::sensitivity::{
    ClaimKind, MomentWeights, Neighbours, OutOfRange, participation_sensitivity,
};
use hushflow::mechanism::strategy::{Objective, Purpose, StrategyName};
use hushflow::mechanism::workload::Workload;
use hushflow::publication::{DiscoverySetting, Grid, PublicationError, check_width};
use hushflow::strategies::Candidate;
use serde::Serialize;

use super::advice::SecondMomentAdvice;
use super::noise::{EstimateNoise, NoiseLevels, noise};

/// Relative increase of a squared sensitivity that still counts as free: above the rounding error.
const ROUNDING: f64 = 1e-12;

/// Weight at which moments have a negligible cost, in units of the clip norm.
const NEGLIGIBLE: f64 = 1e-9;

/// Number of points of an error curve.
const CURVE_POINTS: f64 = 400.0;

/// The parameters of a stream, except its strategies.
pub(super) struct StreamPlan {
    pub(super) purpose: Purpose,
    pub(super) method: Method,
    /// Whether values may be missing one by one: layout and clip norm include their indicators.
    pub(super) by_column: bool,
    pub(super) layout: Layout,
    pub(super) neighbours: Neighbours,
    pub(super) clip_norm: f64,
    pub(super) second_moment_weight: Option<f64>,
    /// Weight of histograms.
    pub(super) bin_weight: Option<f64>,
    pub(super) keys: u64,
    /// How keys are discovered; `None` if they are listed.
    pub(super) discovery: Option<DiscoverySetting>,
    /// m: maximum number of records that one record or entity has in an epoch. The sensitivity is m
    /// times that of one record.
    pub(super) records_at_once: u32,
    pub(super) budget: RequestedBudget,
    /// Expected records of one key per epoch.
    pub(super) records_per_epoch: Option<f64>,
    /// Longest horizon for which advice on second moments is computed.
    pub(super) advice_horizon: u64,
}

/// The requested privacy budget.
#[derive(Clone, Copy)]
pub(super) enum RequestedBudget {
    /// No budget: figures are for a noise multiplier of 1.
    None,
    NoiseMultiplier(NoiseMultiplier),
    Guarantee(Epsilon, Delta),
}

/// The forecast for one strategy.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Forecast {
    pub(super) strategy: StrategyName,
    /// The strategy of second moments, if they have one of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) second_strategy: Option<StrategyName>,
    #[serde(flatten)]
    pub(super) problem: ForecastInput,
    #[serde(flatten)]
    pub(super) factorization: FactorizationError,
    #[serde(flatten)]
    pub(super) sensitivity: JointSensitivity,
    #[serde(flatten)]
    pub(super) budget: ForecastBudget,
    #[serde(flatten)]
    pub(super) noise: NoiseLevels,
    #[serde(flatten)]
    pub(super) cost: StrategyCost,
    /// JME or post-processing; `None` if no advice was computed.
    pub(super) second_moment_advice: Option<SecondMomentAdvice>,
    /// Errors of single epochs for noise multiplier 1.
    #[serde(skip)]
    pub(super) curve: Vec<(f64, f64)>,
}

/// The stream and its release, without the strategy.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ForecastInput {
    pub(super) workload: Workload,
    pub(super) horizon: u64,
    pub(super) participation: Participation,
    pub(super) records_at_once: u32,
    pub(super) stamps: u64,
    pub(super) objective: Objective,
    pub(super) method: Method,
    pub(super) neighbours: Neighbours,
    pub(super) dimension: usize,
    /// Whether rows count for the columns that they have. The clip norm includes their indicators.
    pub(super) by_column: bool,
    pub(super) moments: SecondMoment,
    pub(super) clip_norm: f64,
    pub(super) records_per_epoch: Option<f64>,
}

/// Error of the factorisation alone, for noise multiplier 1.
#[derive(Clone, Debug, Serialize)]
pub(super) struct FactorizationError {
    #[serde(flatten)]
    pub(super) error: ExpectedError,
    /// Whether streams attain the sensitivity, or the kind of upper bound.
    pub(super) sensitivity_kind: String,
    /// Lower bound on the loss of every strategy; `None` if none was computed.
    pub(super) loss_lower_bound: Option<f64>,
    /// The share by which the loss is above the bound.
    pub(super) loss_excess: Option<f64>,
}

impl FactorizationError {
    /// Compares the loss with a lower bound.
    pub(super) fn bound(&mut self, bound: Option<f64>) {
        self.loss_lower_bound = bound;
        self.loss_excess = bound.map(|bound| (self.error.loss / bound - 1.0).max(0.0));
    }
}

/// Sensitivity for unit contributions that are added or removed.
struct UnitSensitivity {
    sensitivity: f64,
    /// The kind of claim.
    kind: String,
    /// Determines the joint sensitivity.
    geometry: MomentGeometry,
}

/// Joint sensitivity of count, first and second moments.
#[derive(Clone, Debug, Serialize)]
pub(super) struct JointSensitivity {
    /// λ, with the default filled in; `None` if no second moments are released.
    pub(super) lambda: Option<f64>,
    /// κ; `None` if counts are public.
    pub(super) count_weight: Option<f64>,
    pub(super) joint_sensitivity: f64,
    /// Joint sensitivity without count and second moments.
    pub(super) first_moment_sensitivity: f64,
    /// Share of the joint sensitivity that is due to the rounding of the encoder.
    pub(super) rounding: f64,
    pub(super) second_moment_free: bool,
    pub(super) count_free: bool,
    /// Factor by which histograms raise the noise of the moments; absent without histograms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) histogram_growth: Option<f64>,
}

/// The privacy budget and the noise multiplier that it requires.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct ForecastBudget {
    pub(super) epsilon: Option<f64>,
    pub(super) delta: Option<f64>,
    /// `None` without a budget; noise levels are then for 1.
    pub(super) noise_multiplier: Option<f64>,
}

/// Cost of running the strategy.
#[derive(Clone, Debug, Serialize)]
pub(super) struct StrategyCost {
    /// Whether `run` can use the strategy; the others are for comparison.
    pub(super) runs: bool,
    /// Bytes of encoder state; `None` if the strategy does not run.
    pub(super) memory_per_coordinate: Option<usize>,
    /// Multiplications of encoding and decoding; `None` if the strategy does not run.
    pub(super) multiplications_per_step: Option<usize>,
}

/// Figures from one pass over the decoder rows.
struct DecoderErrors {
    error: ExpectedError,
    /// Row norms divided by row sums: noise of a mean for one record per epoch.
    relative: EstimateNoise,
    curve: Vec<(f64, f64)>,
}

impl StreamPlan {
    /// Returns the forecast for this strategy, and for that of second moments if they have one of
    /// their own.
    pub(super) fn forecast(
        &self,
        candidate: &Candidate,
        second: Option<&Candidate>,
    ) -> Result<Forecast, PublicationError> {
        let horizon = self.purpose.horizon;
        let UnitSensitivity { sensitivity, kind, geometry } = self.unit_sensitivity(candidate, second)?;
        let DecoderErrors { error, relative, curve } = self.rows(candidate, sensitivity);
        let of_second = second.map(|second| self.rows(second, sensitivity));
        let of_second = of_second.map_or((error, relative), |second| (second.error, second.relative));
        let (mechanism, noise_multiplier) = self.mechanism(&geometry)?;
        Ok(Forecast {
            strategy: candidate.chosen.name.clone(),
            second_strategy: second.map(|second| second.chosen.name.clone()),
            problem: self.problem(),
            factorization: FactorizationError {
                error,
                sensitivity_kind: kind,
                loss_lower_bound: candidate.loss_lower_bound,
                loss_excess: None,
            },
            sensitivity: self.joint_sensitivity(&mechanism, &geometry)?,
            budget: self.budget.with(noise_multiplier),
            noise: self.noise_levels(&mechanism, [(&error, relative), (&of_second.0, of_second.1)]),
            cost: StrategyCost::new(candidate, second, horizon),
            second_moment_advice: SecondMomentAdvice::new(
                self,
                candidate,
                &geometry,
                *mechanism.parameters(),
                &error,
            ),
            curve,
        })
    }

    fn problem(&self) -> ForecastInput {
        let Purpose { workload, horizon, participation, stamps, objective } = self.purpose.clone();
        ForecastInput {
            workload,
            horizon,
            participation,
            records_at_once: self.records_at_once,
            stamps,
            objective,
            method: self.method,
            neighbours: self.neighbours,
            dimension: self.layout.dimension / if self.by_column { 2 } else { 1 },
            by_column: self.by_column,
            moments: self.layout.second,
            clip_norm: self.clip_norm,
            records_per_epoch: self.records_per_epoch,
        }
    }

    fn joint_sensitivity(
        &self,
        mechanism: &MomentMechanism,
        geometry: &MomentGeometry,
    ) -> Result<JointSensitivity, PublicationError> {
        let at_once = f64::from(self.records_at_once);
        let alone = MomentWeights { second: 0.0, count: 0.0 };
        let alone = geometry.joint(self.neighbours, self.layout.dimension, alone).map_err(out_of_range)?;
        Ok(JointSensitivity {
            lambda: mechanism.second_moment_weight(),
            count_weight: mechanism.count_weight(),
            joint_sensitivity: at_once * mechanism.sensitivity(),
            first_moment_sensitivity: at_once * alone.sqrt() * self.clip_norm,
            rounding: mechanism.rounding_share(),
            second_moment_free: is_second_free(mechanism, geometry)?,
            count_free: is_count_free(mechanism, geometry)?,
            histogram_growth: histogram_growth(mechanism, geometry)?,
        })
    }

    fn noise_levels(
        &self,
        mechanism: &MomentMechanism,
        [(first, of_mean), (second, of_covariance)]: [(&ExpectedError, EstimateNoise); 2],
    ) -> NoiseLevels {
        let levels = |norm: fn(&ExpectedError) -> f64| noise(mechanism, norm(first), norm(second));
        let unit = noise(mechanism, 1.0, 1.0);
        let estimates =
            |relative: EstimateNoise, noise| Some(relative.scaled(noise / self.records_per_epoch?));
        let mean_square = noise(mechanism, first.frobenius, second.frobenius);
        NoiseLevels {
            first_noise: levels(|error| error.first_row),
            last_noise: levels(|error| error.last_row),
            rms_noise: mean_square.over((self.purpose.horizon as f64).sqrt()),
            mean_noise: estimates(of_mean, unit.first),
            covariance_noise: unit.second.and_then(|noise| estimates(of_covariance, noise)),
        }
    }

    fn unit_sensitivity(
        &self,
        candidate: &Candidate,
        second: Option<&Candidate>,
    ) -> Result<UnitSensitivity, PublicationError> {
        let Purpose { horizon, participation, .. } = self.purpose;
        if let (true, Some(strategy), None) = (participation.is_single(), &candidate.strategy, second) {
            let squared = candidate.factorization.max_column_norm_squared(horizon);
            let geometry = MomentGeometry::shared(strategy.geometry());
            let kind = ClaimKind::Exact.to_string();
            return Ok(UnitSensitivity { sensitivity: squared.sqrt(), kind, geometry });
        }
        let matrix = Arc::new(candidate.factorization.matrix(horizon)?);
        let claim =
            participation_sensitivity(&matrix, participation, self.layout.dimension).map_err(out_of_range)?;
        let other = match second {
            Some(second) => Arc::new(second.factorization.matrix(horizon)?),
            None => matrix.clone(),
        };
        let rounding = [candidate, second.unwrap_or(candidate)].map(|candidate| {
            candidate.strategy.as_ref().map_or(0.0, |strategy| strategy.geometry().rounding_squared)
        });
        let geometry = MomentGeometry::of_matrices(matrix, other, participation, rounding);
        let geometry = geometry.map_err(out_of_range)?;
        Ok(UnitSensitivity { sensitivity: claim.value(), kind: claim.kind.to_string(), geometry })
    }

    fn rows(&self, candidate: &Candidate, sensitivity: f64) -> DecoderErrors {
        let Purpose { workload, horizon, .. } = &self.purpose;
        let (mut squares, mut first, mut last) = (0.0, None, 0.0);
        let mut curve: Vec<(f64, f64)> = Vec::new();
        let stride = (*horizon as f64).powf(1.0 / CURVE_POINTS);
        let rows = candidate.factorization.decoder_row_samples(workload, *horizon).inspect(|row| {
            last = row.norm / workload.row_sum(row.step).abs();
            squares += row.weight * last * last;
            first.get_or_insert(last);
            if curve.last().is_none_or(|point| row.step >= point.0 * stride) {
                curve.push((row.step, row.norm * sensitivity));
            }
        });
        let error = ExpectedError::of_samples(sensitivity, rows);
        let average = (squares / *horizon as f64).sqrt();
        let relative = EstimateNoise { first_epoch: first.unwrap_or(0.0), last_epoch: last, average };
        DecoderErrors { error, relative, curve }
    }

    /// Returns the mechanism, with noise for all records at once, and the noise multiplier of the
    /// guarantee.
    fn mechanism(&self, geometry: &MomentGeometry) -> Result<(MomentMechanism, f64), PublicationError> {
        check_width(self.keys, self.layout)?;
        match self.budget {
            // The same grid as that of a run.
            RequestedBudget::Guarantee(..) => {
                let share = |(mechanism, _): &(MomentMechanism, f64)| mechanism.rounding_share();
                Ok(Grid::choose(|grid| self.mechanism_on(grid, geometry), share)?.0)
            }
            _ => self.mechanism_on(Grid::Exact, geometry),
        }
    }

    fn mechanism_on(
        &self,
        grid: Grid,
        geometry: &MomentGeometry,
    ) -> Result<(MomentMechanism, f64), PublicationError> {
        let near = match self.budget {
            RequestedBudget::None => 1.0,
            RequestedBudget::NoiseMultiplier(sigma) => sigma.value(),
            RequestedBudget::Guarantee(epsilon, delta) => gaussian::noise_multiplier(epsilon, delta).value(),
        };
        let parameters = MomentParameters {
            method: self.method,
            layout: self.layout,
            neighbours: self.neighbours,
            clip_norm: self.clip_norm,
            noise_multiplier: near * f64::from(self.records_at_once),
            second_moment_weight: self.second_moment_weight,
            count_weight: None,
            bin_weight: self.bin_weight,
        };
        let mechanism = match grid {
            Grid::Exact => MomentMechanism::new(parameters, geometry)?,
            Grid::Rounded => MomentMechanism::rounded(parameters, geometry, self.purpose.horizon)?,
        };
        let mechanism = mechanism.for_records_at_once(self.records_at_once)?;
        let cells = self.keys as f64 * self.purpose.horizon as f64;
        let multiplier = match (self.budget, &self.discovery) {
            (RequestedBudget::Guarantee(epsilon, delta), None) => {
                mechanism.calibrated(epsilon, delta, cells)?
            }
            (RequestedBudget::Guarantee(epsilon, delta), Some(setting)) => {
                mechanism.calibrated(epsilon, setting.delta_of_noise(epsilon, delta)?, cells)?
            }
            (_, None) => return Ok((mechanism, near)),
            (_, Some(_)) => near,
        };
        let of_moments =
            self.discovery.map_or(multiplier, |setting| setting.multiplier_of_moments(multiplier));
        Ok((mechanism.with_noise_multiplier(of_moments * f64::from(self.records_at_once))?, multiplier))
    }
}

impl Forecast {
    /// Returns the names of its strategies.
    pub(super) fn name(&self) -> String {
        match &self.second_strategy {
            Some(second) => format!("{} and {second}", self.strategy),
            None => self.strategy.to_string(),
        }
    }

    /// Returns the error that an objective minimises.
    pub(super) fn error(&self, objective: Objective) -> f64 {
        self.factorization.error.of(objective)
    }
}

impl RequestedBudget {
    /// Returns the budget that this noise multiplier keeps.
    fn with(self, noise_multiplier: f64) -> ForecastBudget {
        let (epsilon, delta) = match self {
            Self::Guarantee(epsilon, delta) => (Some(epsilon.value()), Some(delta.value())),
            Self::None | Self::NoiseMultiplier(_) => (None, None),
        };
        let known = !matches!(self, Self::None);
        ForecastBudget { epsilon, delta, noise_multiplier: known.then_some(noise_multiplier) }
    }
}

impl StrategyCost {
    /// Strategies without a horizon report the cost of a longer stream; `horizon` limits it. Each
    /// of two strategies has its own coordinates, and the larger cost is reported.
    fn new(candidate: &Candidate, second: Option<&Candidate>, horizon: u64) -> Self {
        let history = (horizon as usize).saturating_mul(size_of::<i128>());
        let strategies: Option<Vec<_>> =
            [Some(candidate), second].into_iter().flatten().map(|of| of.strategy.as_ref()).collect();
        let strategies = strategies.as_ref();
        Self {
            runs: strategies.is_some(),
            memory_per_coordinate: strategies
                .and_then(|all| all.iter().map(|strategy| strategy.encoder_bytes().min(history)).max()),
            multiplications_per_step: strategies.and_then(|all| {
                all.iter().map(|strategy| strategy.multiplications().min(2 * horizon as usize)).max()
            }),
        }
    }
}

/// Whether second moments are free: a negligible weight for them would not lower the sensitivity.
fn is_second_free(mechanism: &MomentMechanism, geometry: &MomentGeometry) -> Result<bool, MechanismError> {
    let parameters = mechanism.parameters();
    let without = match parameters.method {
        Method::Ime { .. } => return Ok(false),
        Method::Pp => return Ok(true),
        _ if mechanism.second_moment_weight().is_none() => return Ok(true),
        _ => MomentParameters {
            second_moment_weight: Some((NEGLIGIBLE / parameters.clip_norm).powi(2)),
            count_weight: mechanism.count_weight(),
            ..*parameters
        },
    };
    Ok(mechanism.claim().squared <= without.claim(geometry)?.squared * (1.0 + ROUNDING))
}

/// Whether the count is free: a negligible weight for it would not lower the sensitivity.
fn is_count_free(mechanism: &MomentMechanism, geometry: &MomentGeometry) -> Result<bool, MechanismError> {
    let parameters = *mechanism.parameters();
    let count_weight = mechanism.count_weight().map(|_| NEGLIGIBLE * parameters.clip_norm);
    let without = MomentParameters { count_weight, ..parameters }.claim(geometry)?;
    Ok(mechanism.claim().squared <= without.squared * (1.0 + ROUNDING))
}

/// Returns the factor by which histograms raise the noise of the moments; `None` without any.
fn histogram_growth(
    mechanism: &MomentMechanism,
    geometry: &MomentGeometry,
) -> Result<Option<f64>, PublicationError> {
    let parameters = *mechanism.parameters();
    if parameters.layout.bins == Bins::NONE {
        return Ok(None);
    }
    let layout = Layout { bins: Bins::NONE, ..parameters.layout };
    let without = MomentParameters { layout, bin_weight: None, ..parameters }.claim(geometry)?;
    Ok(Some((mechanism.claim().squared / without.squared).sqrt()))
}

fn out_of_range(error: OutOfRange) -> PublicationError {
    PublicationError::Mechanism(error.into())
}
