//! The noise of a forecast: of the sums of a view, and of estimates from them.

use hushflow::mechanism::mechanism::MomentMechanism;
use hushflow::mechanism::moments::Layout;
use serde::Serialize;

/// Standard deviations of the noise of a view, in the unit of the records.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct ForecastNoise {
    /// Noise of the count; 0 where counts are public.
    pub(super) count: f64,
    /// Noise of an entry of Σx.
    pub(super) first: f64,
    /// Noise of a diagonal entry of Σxxᵀ; an off-diagonal entry has 1/√2 of it. `None` where second
    /// moments are not released.
    pub(super) second: Option<f64>,
    /// Noise of the number of records that entities sent; absent where it is not released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sent: Option<f64>,
    /// Noise of a bin of histograms; absent without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bin: Option<f64>,
}

/// Standard deviations of the noise of estimates, for records near the centre, in the unit of the
/// records.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct EstimateNoise {
    pub(super) first_epoch: f64,
    pub(super) last_epoch: f64,
    /// Root mean square over all epochs.
    pub(super) average: f64,
}

impl EstimateNoise {
    pub(super) fn scaled(self, factor: f64) -> Self {
        let [first_epoch, last_epoch, average] =
            [self.first_epoch, self.last_epoch, self.average].map(|noise| noise * factor);
        Self { first_epoch, last_epoch, average }
    }
}

/// Noise of the view and of estimates from it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct NoiseLevels {
    pub(super) first_noise: ForecastNoise,
    pub(super) last_noise: ForecastNoise,
    pub(super) rms_noise: ForecastNoise,
    /// Noise of an entry of the mean.
    pub(super) mean_noise: Option<EstimateNoise>,
    /// Noise of a diagonal entry of the covariance.
    pub(super) covariance_noise: Option<EstimateNoise>,
}

impl ForecastNoise {
    /// Divides all levels by a number.
    pub(super) fn over(self, divisor: f64) -> Self {
        let [second, sent, bin] = [self.second, self.sent, self.bin].map(|noise| Some(noise? / divisor));
        Self { count: self.count / divisor, first: self.first / divisor, second, sent, bin }
    }
}

/// Returns the noise of a view whose decoder rows have these norms. The first is that of counts,
/// first moments, bins and the number of sent records, the second that of second moments.
pub(super) fn noise(mechanism: &MomentMechanism, row_norm: f64, second_row_norm: f64) -> ForecastNoise {
    let layout = mechanism.layout();
    let unit = |index: usize| mechanism.noise()[index].standard_deviation();
    let deviation = |index| unit(index) * row_norm;
    ForecastNoise {
        count: deviation(Layout::COUNT),
        first: deviation(layout.first().start),
        second: layout.second().next().map(|index| unit(index) * second_row_norm),
        sent: layout.sent().map(deviation),
        bin: layout.bins().next().map(deviation),
    }
}
