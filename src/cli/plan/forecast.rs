//! What a stream will be like: errors, sensitivity, noise and memory, exactly and before any data are seen.

use hushflow::mechanism::accounting::{Delta, Epsilon, NoiseMultiplier};
use hushflow::mechanism::error::ExpectedError;
use hushflow::mechanism::jme::{JointMechanism, JointMechanismError, JointParameters};
use hushflow::mechanism::moments::{Layout, SecondMoment};
use hushflow::mechanism::participation::Participation;
use hushflow::mechanism::sensitivity::{
    ClaimKind, MomentStrategies, MomentWeights, Neighbours, OutOfRange, joint_participation_sensitivity,
    joint_sensitivity_squared, participation_sensitivity,
};
use hushflow::mechanism::strategy::{ColumnGeometry, StrategyName};
use hushflow::mechanism::workload::Workload;
use hushflow::publication::{PublicationError, calibrate};
use hushflow::strategies::{Candidate, Objective, Purpose};
use serde::Serialize;

/// How much a squared sensitivity may rise and still be called free: more than its roundings add up to.
const ROUNDING: f64 = 1e-12;

/// Points of a curve of errors.
const CURVE_POINTS: f64 = 400.0;

/// A stream, but for its strategy.
pub(super) struct Plan {
    pub(super) purpose: Purpose,
    pub(super) layout: Layout,
    pub(super) neighbours: Neighbours,
    pub(super) clip_norm: f64,
    pub(super) second_moment_weight: Option<f64>,
    pub(super) keys: u64,
    pub(super) budget: Budget,
    /// Of one key.
    pub(super) records_per_epoch: Option<f64>,
}

/// What is known of the noise.
#[derive(Clone, Copy)]
pub(super) enum Budget {
    /// Nothing: figures are for a noise multiplier of 1.
    None,
    NoiseMultiplier(NoiseMultiplier),
    Guarantee(Epsilon, Delta),
}

/// Standard deviations of the noise of a view, in the unit of the records.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Noise {
    /// Of the count; 0 where counts are public.
    pub(super) count: f64,
    /// Of an entry of Σx.
    pub(super) first: f64,
    /// Of a diagonal entry of Σxxᵀ; an entry off the diagonal has 1/√2 of it.
    pub(super) second: f64,
}

/// Standard deviations of the noise of estimates, for records near the centre, in the unit of the records.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct EstimateNoise {
    pub(super) first_epoch: f64,
    pub(super) last_epoch: f64,
    /// Root of the mean square over all epochs.
    pub(super) average: f64,
}

impl EstimateNoise {
    fn scaled(self, factor: f64) -> Self {
        let [first_epoch, last_epoch, average] =
            [self.first_epoch, self.last_epoch, self.average].map(|noise| noise * factor);
        Self { first_epoch, last_epoch, average }
    }
}

/// What one strategy makes of a plan.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Forecast {
    pub(super) workload: Workload,
    pub(super) strategy: StrategyName,
    pub(super) horizon: u64,
    pub(super) participation: Participation,
    pub(super) stamps: u64,
    pub(super) objective: Objective,
    #[serde(flatten)]
    pub(super) error: ExpectedError,
    /// Whether streams attain the sensitivity, or which bound it is.
    pub(super) sensitivity_kind: String,
    /// No strategy of its kind has a loss below; `None` where no such bound was computed.
    pub(super) loss_lower_bound: Option<f64>,
    pub(super) neighbours: Neighbours,
    pub(super) dimension: usize,
    pub(super) moments: SecondMoment,
    pub(super) clip_norm: f64,
    /// λ, the default filled in.
    pub(super) lambda: f64,
    /// κ; `None` where counts are public.
    pub(super) count_weight: Option<f64>,
    pub(super) joint_sensitivity: f64,
    /// What the joint sensitivity would be without count and second moments.
    pub(super) first_moment_sensitivity: f64,
    /// What the rounding of the encoder adds to the joint sensitivity, as a share of it.
    pub(super) rounding: f64,
    pub(super) second_moment_free: bool,
    pub(super) count_free: bool,
    pub(super) epsilon: Option<f64>,
    pub(super) delta: Option<f64>,
    /// `None` without a budget: the noise levels are for 1 then.
    pub(super) noise_multiplier: Option<f64>,
    pub(super) first_noise: Noise,
    pub(super) last_noise: Noise,
    pub(super) rms_noise: Noise,
    pub(super) records_per_epoch: Option<f64>,
    /// Of an entry of the mean.
    pub(super) mean_noise: Option<EstimateNoise>,
    /// Of an entry of the covariance on the diagonal.
    pub(super) covariance_noise: Option<EstimateNoise>,
    /// Whether `run` can use it; the others are for comparison.
    pub(super) runs: bool,
    /// Bytes of encoder state; `None` where it does not run.
    pub(super) memory_per_coordinate: Option<usize>,
    /// Multiplications of encoding and decoding; `None` where it does not run.
    pub(super) multiplications_per_step: Option<usize>,
    /// Errors of single epochs, for noise multiplier 1.
    #[serde(skip)]
    pub(super) curve: Vec<(f64, f64)>,
}

/// Decoder rows, looked at once: there may be a hundred million of them.
struct Rows {
    error: ExpectedError,
    /// Row norms over row sums: noise of a mean for one record an epoch.
    relative: EstimateNoise,
    curve: Vec<(f64, f64)>,
}

impl Plan {
    /// What the stream will be like with this strategy.
    pub(super) fn forecast(&self, candidate: &Candidate) -> Result<Forecast, PublicationError> {
        let horizon = self.purpose.horizon;
        let (sensitivity, kind, geometry) = self.sensitivity(candidate)?;
        let Rows { error, relative, curve } = self.rows(candidate, sensitivity);
        let mechanism = JointMechanism::new(self.joint_parameters(geometry)?)?;
        let MomentWeights { second, count } = mechanism.weights();
        let [alone, with_second, with_count] = [(0.0, 0.0), (second, 0.0), (second, count)]
            .map(|(second, count)| squared_sensitivity(&mechanism, MomentWeights { second, count }));
        let (alone, with_second, with_count) = (alone?, with_second?, with_count?);
        let (epsilon, delta) = self.budget.guarantee().unzip();
        let unit = noise(&mechanism, 1.0);
        let estimates = |noise| Some(relative.scaled(noise / self.records_per_epoch?));
        let strategy = candidate.strategy.as_ref();
        // Strategies without a horizon say what a longer stream would take.
        let history = (horizon as usize).saturating_mul(size_of::<i128>());
        Ok(Forecast {
            workload: self.purpose.workload.clone(),
            strategy: candidate.chosen.name.clone(),
            horizon,
            participation: self.purpose.participation,
            stamps: self.purpose.stamps,
            objective: self.purpose.objective,
            error,
            sensitivity_kind: kind,
            loss_lower_bound: candidate.loss_lower_bound,
            neighbours: self.neighbours,
            dimension: self.layout.dimension,
            moments: self.layout.second,
            clip_norm: self.clip_norm,
            lambda: mechanism.second_moment_weight(),
            count_weight: mechanism.count_weight(),
            joint_sensitivity: mechanism.sensitivity(),
            first_moment_sensitivity: alone.sqrt() * self.clip_norm,
            rounding: mechanism.rounding_share(),
            second_moment_free: with_second <= alone * (1.0 + ROUNDING),
            count_free: with_count <= with_second * (1.0 + ROUNDING),
            epsilon,
            delta,
            noise_multiplier: self.budget.is_known().then_some(mechanism.parameters().noise_multiplier),
            first_noise: noise(&mechanism, error.first_row),
            last_noise: noise(&mechanism, error.last_row),
            rms_noise: noise(&mechanism, error.frobenius / (horizon as f64).sqrt()),
            records_per_epoch: self.records_per_epoch,
            mean_noise: estimates(unit.first),
            covariance_noise: estimates(unit.second),
            runs: strategy.is_some(),
            memory_per_coordinate: strategy.map(|strategy| strategy.encoder_bytes().min(history)),
            multiplications_per_step: strategy
                .map(|strategy| strategy.multiplications().min(2 * horizon as usize)),
            curve,
        })
    }

    /// Sensitivity for unit contributions that are added or removed, what is known of it, and the geometry from which the
    /// joint sensitivity follows: for several participations, that of one whose longest column makes it what it is.
    fn sensitivity(&self, candidate: &Candidate) -> Result<(f64, String, ColumnGeometry), PublicationError> {
        let Purpose { horizon, participation, .. } = self.purpose;
        if let (true, Some(strategy)) = (participation.is_single(), &candidate.strategy) {
            let squared = candidate.factorization.max_column_norm_squared(horizon);
            return Ok((squared.sqrt(), ClaimKind::Exact.to_string(), strategy.geometry()));
        }
        let dimension = self.layout.dimension;
        let matrix = candidate.factorization.matrix(horizon)?;
        let claim = participation_sensitivity(&matrix, participation, dimension).map_err(out_of_range)?;
        let weights = self.weights();
        let strategies = MomentStrategies::shared(&matrix);
        let joint =
            joint_participation_sensitivity(self.neighbours, dimension, strategies, participation, weights)
                .map_err(out_of_range)?;
        let one = ColumnGeometry::exact(1.0, 0.0);
        let unit =
            joint_sensitivity_squared(self.neighbours, dimension, one, weights).map_err(out_of_range)?;
        let rounding =
            candidate.strategy.as_ref().map_or(0.0, |strategy| strategy.geometry().rounding_squared);
        let geometry = ColumnGeometry {
            max_norm_squared: joint.squared / unit,
            negative_overlap: 0.0,
            // Every participation may be in a key of its own.
            rounding_squared: rounding * participation.on(horizon as usize).count() as f64,
        };
        Ok((claim.value(), claim.kind.to_string(), geometry))
    }

    /// Weights of the moments, defaults filled in.
    fn weights(&self) -> MomentWeights {
        let defaults = MomentWeights::default_for(self.neighbours, self.layout.dimension);
        let second = self.second_moment_weight.map(|lambda| lambda * self.clip_norm.powi(2));
        MomentWeights { second: second.unwrap_or(defaults.second), ..defaults }
    }

    fn rows(&self, candidate: &Candidate, sensitivity: f64) -> Rows {
        let Purpose { workload, horizon, .. } = &self.purpose;
        let (mut squares, mut first, mut last) = (0.0, None, 0.0);
        let mut curve: Vec<(f64, f64)> = Vec::new();
        let stride = (*horizon as f64).powf(1.0 / CURVE_POINTS);
        let norms = candidate.factorization.decoder_row_norms(workload, *horizon);
        let rows = norms.zip(workload.row_sums()).zip(1_u64..).map(|((norm, sum), t)| {
            last = norm / sum.abs();
            squares += last * last;
            first.get_or_insert(last);
            let t = t as f64;
            if curve.last().is_none_or(|point| t >= point.0 * stride) {
                curve.push((t, norm * sensitivity));
            }
            norm
        });
        let error = ExpectedError::of_rows(sensitivity, rows);
        let average = (squares / *horizon as f64).sqrt();
        let relative = EstimateNoise { first_epoch: first.unwrap_or(0.0), last_epoch: last, average };
        Rows { error, relative, curve }
    }

    fn joint_parameters(&self, geometry: ColumnGeometry) -> Result<JointParameters, PublicationError> {
        let parameters = JointParameters {
            layout: self.layout,
            neighbours: self.neighbours,
            clip_norm: self.clip_norm,
            noise_multiplier: 1.0,
            geometry,
            second_moment_weight: self.second_moment_weight,
            count_weight: None,
        };
        match self.budget {
            Budget::None => Ok(parameters),
            Budget::NoiseMultiplier(sigma) => {
                Ok(JointParameters { noise_multiplier: sigma.value(), ..parameters })
            }
            Budget::Guarantee(epsilon, delta) => {
                calibrate(epsilon, delta, parameters, self.keys as f64 * self.purpose.horizon as f64)
            }
        }
    }
}

impl Budget {
    fn is_known(self) -> bool {
        !matches!(self, Self::None)
    }

    fn guarantee(self) -> Option<(f64, f64)> {
        match self {
            Self::Guarantee(epsilon, delta) => Some((epsilon.value(), delta.value())),
            _ => None,
        }
    }
}

/// Squared sensitivity of the moments under other weights, in units of ζ².
fn squared_sensitivity(mechanism: &JointMechanism, weights: MomentWeights) -> Result<f64, PublicationError> {
    let JointParameters { neighbours, layout, geometry, .. } = *mechanism.parameters();
    let squared = joint_sensitivity_squared(neighbours, layout.dimension, geometry, weights);
    Ok(squared.map_err(JointMechanismError::from)?)
}

fn out_of_range(error: OutOfRange) -> PublicationError {
    PublicationError::Mechanism(error.into())
}

/// The noise of a row of the view whose decoder has this norm.
fn noise(mechanism: &JointMechanism, row_norm: f64) -> Noise {
    let layout = mechanism.parameters().layout;
    let deviation = |place: usize| mechanism.noise()[place].standard_deviation() * row_norm;
    Noise {
        count: deviation(Layout::COUNT),
        first: deviation(layout.first().start),
        second: deviation(layout.second().start),
    }
}
