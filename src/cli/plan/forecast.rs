//! What a stream will be like: errors, sensitivity, noise and memory, exactly and before any data are seen.

use std::str::FromStr;

use hushflow::mechanism::accounting::{Delta, Epsilon, NoiseMultiplier};
use hushflow::mechanism::error::ExpectedError;
use hushflow::mechanism::jme::{JointMechanism, JointMechanismError, JointParameters};
use hushflow::mechanism::moments::{Layout, SecondMoment};
use hushflow::mechanism::sensitivity::{MomentWeights, Neighbours, joint_sensitivity_squared};
use hushflow::mechanism::strategy::{ColumnGeometry, StrategyName, build};
use hushflow::mechanism::workload::Workload;
use hushflow::publication::{PublicationError, calibrate};
use serde::Serialize;

/// How much a squared sensitivity may rise and still be called free: more than its roundings add up to.
const ROUNDING: f64 = 1e-12;

/// A stream, but for its strategy.
pub(super) struct Plan {
    pub(super) workload: Workload,
    /// Number of epochs.
    pub(super) horizon: u64,
    pub(super) participation: Participation,
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

/// How often what is protected takes part in the stream.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Participation {
    Single,
}

impl FromStr for Participation {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split('x').next() {
            Some("1") => Ok(Self::Single),
            _ => Err("this version protects single records, which take part once: leave the flag out; \
                  several participations come with a later version"),
        }
    }
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

/// What one strategy makes of a plan.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Forecast {
    pub(super) workload: Workload,
    pub(super) strategy: StrategyName,
    pub(super) horizon: u64,
    pub(super) participation: Participation,
    #[serde(flatten)]
    pub(super) error: ExpectedError,
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
    /// Of an entry of the mean after the last epoch, for records close to the centre.
    pub(super) mean_noise: Option<f64>,
    /// Bytes of encoder state.
    pub(super) memory_per_coordinate: usize,
}

impl Plan {
    /// The forecasts of these strategies, the least error first.
    pub(super) fn compare(&self, strategies: &[StrategyName]) -> Result<Vec<Forecast>, PublicationError> {
        let mut forecasts: Vec<_> =
            strategies.iter().map(|strategy| self.forecast(strategy)).collect::<Result<_, _>>()?;
        forecasts.sort_by(|a, b| a.error.rmse.total_cmp(&b.error.rmse));
        Ok(forecasts)
    }

    /// What the stream will be like with this strategy.
    pub(super) fn forecast(&self, name: &StrategyName) -> Result<Forecast, PublicationError> {
        let strategy = build(name.clone(), &self.workload, Some(self.horizon))?;
        let error = ExpectedError::new(&self.workload, strategy.as_ref(), self.horizon)?;
        let mechanism = JointMechanism::new(self.joint_parameters(strategy.geometry())?)?;
        let MomentWeights { second, count } = mechanism.weights();
        let [alone, with_second, with_count] = [(0.0, 0.0), (second, 0.0), (second, count)]
            .map(|(second, count)| squared_sensitivity(&mechanism, MomentWeights { second, count }));
        let (alone, with_second, with_count) = (alone?, with_second?, with_count?);
        let (epsilon, delta) = self.budget.guarantee().unzip();
        let last_noise = noise(&mechanism, error.last_row);
        Ok(Forecast {
            workload: self.workload.clone(),
            strategy: name.clone(),
            horizon: self.horizon,
            participation: self.participation,
            error,
            neighbours: self.neighbours,
            dimension: self.layout.dimension,
            moments: self.layout.second,
            clip_norm: self.clip_norm,
            lambda: mechanism.second_moment_weight(),
            count_weight: mechanism.count_weight(),
            joint_sensitivity: mechanism.sensitivity(),
            first_moment_sensitivity: alone.sqrt() * self.clip_norm,
            second_moment_free: with_second <= alone * (1.0 + ROUNDING),
            count_free: with_count <= with_second * (1.0 + ROUNDING),
            epsilon,
            delta,
            noise_multiplier: self.budget.is_known().then_some(mechanism.parameters().noise_multiplier),
            first_noise: noise(&mechanism, error.first_row),
            last_noise,
            rms_noise: noise(&mechanism, error.frobenius / (self.horizon as f64).sqrt()),
            records_per_epoch: self.records_per_epoch,
            mean_noise: self
                .records_per_epoch
                .map(|records| last_noise.first / (records * self.last_weight())),
            memory_per_coordinate: strategy.encoder_bytes(),
        })
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
                calibrate(epsilon, delta, parameters, self.keys as f64 * self.horizon as f64)
            }
        }
    }

    /// Sum of the last row of the workload: how many epochs the last view weighs.
    fn last_weight(&self) -> f64 {
        self.workload.row_sums().nth(self.horizon as usize - 1).unwrap_or(0.0)
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
