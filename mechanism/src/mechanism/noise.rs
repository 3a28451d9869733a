//! Noise levels on the integer grid: from a sensitivity to the scale of every coordinate.

use super::{JointClaim, MechanismError, MomentGeometry, MomentParameters};
use crate::moments::RECORD_BITS;
use crate::noise::NoiseScale;
use crate::sensitivity::{MomentWeights, rounded_up};
use crate::strategy::COEFFICIENT_BITS;
use std::iter;

/// Noise of one released coordinate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoordinateNoise {
    /// Real value of one unit of the integer grid.
    pub unit: f64,
    /// Deviation of the discrete Gaussian in grid units; `None` when the coordinate is public and exact.
    pub scale: Option<NoiseScale>,
}

impl CoordinateNoise {
    /// Standard deviation of the noise of one released value of `C·sums`, in real units; 0 when exact.
    pub fn standard_deviation(&self) -> f64 {
        self.scale.map_or(0.0, |scale| scale.sigma() * self.unit)
    }

    /// ρ of zero-concentrated differential privacy for values this many grid units apart, rounded up.
    pub(super) fn concentrated_loss(&self, difference: i128) -> f64 {
        match self.scale {
            _ if difference == 0 => 0.0,
            Some(scale) => rounded_up((difference as f64 / scale.sigma()).powi(2) / 2.0),
            None => f64::INFINITY,
        }
    }
}

/// s/ζ, rounded up.
pub(super) fn relative_sensitivity(claim: JointClaim, rounding: f64) -> f64 {
    rounded_up(claim.squared.sqrt() + rounding)
}

/// What the rounding of recursive encoders can add to the distance of two encoded streams, in units of ζ: by the
/// triangle inequality it adds to the sensitivity. Streams that differ in k records differ in 2k cells at most, so in 2k
/// keys, and where they do not differ their encoders round alike. The units of count, first and second moments are 1,
/// ζ2⁻²⁰ and ζ²2⁻⁴⁰ times the method's own.
pub(super) fn rounding(
    parameters: &MomentParameters,
    weights: MomentWeights,
    geometry: &MomentGeometry,
) -> f64 {
    let layout = parameters.released_layout();
    let unit = 0.5_f64.powi(2 * RECORD_BITS as i32);
    let entries = |(i, j)| if i == j { 1.0 } else { 2.0 };
    let entries: f64 = layout.second_entries().map(entries).sum();
    let [first, second] = geometry.rounding_squared();
    let weight = weights.second * parameters.method.second_unit(weights).powi(2);
    let counts_and_first = first * (weights.count + layout.dimension as f64 * unit);
    let squares = counts_and_first + second * weight * entries * unit * unit;
    (2.0 * geometry.participations() as f64 * squares).sqrt()
}

/// Noise of all coordinates.
pub(super) fn of_moments(
    parameters: &MomentParameters,
    claim: JointClaim,
    rounding: f64,
) -> Result<Vec<CoordinateNoise>, MechanismError> {
    let MomentParameters { clip_norm, method, .. } = *parameters;
    let layout = parameters.released_layout();
    let weights = claim.weights;
    let deviation = parameters.noise_multiplier * relative_sensitivity(claim, rounding);
    let noise = |moment, degree: u32, unit: f64, weight: f64| -> Result<_, MechanismError> {
        let grid = (1_u128 << (degree * RECORD_BITS + COEFFICIENT_BITS)) as f64;
        let wanted = rounded_up(deviation / weight.sqrt() * grid);
        let scale =
            NoiseScale::at_least(wanted).map_err(|source| MechanismError::Scale { moment, source })?;
        Ok(CoordinateNoise { unit: unit * clip_norm.powi(degree as i32) / grid, scale: Some(scale) })
    };
    let count = if weights.count > 0.0 {
        noise("count", 0, 1.0, weights.count)?
    } else {
        CoordinateNoise { unit: 1.0 / (1_u128 << COEFFICIENT_BITS) as f64, scale: None }
    };
    let first = noise("first moments", 1, 1.0, 1.0)?;
    let mut coordinates: Vec<_> = iter::once(count).chain(iter::repeat_n(first, layout.dimension)).collect();
    if layout.second_len() > 0 {
        let unit = method.second_unit(weights);
        let weight = weights.second * unit * unit;
        let diagonal = noise("second moments", 2, unit, weight)?;
        let off_diagonal = noise("second moments off the diagonal", 2, unit, 2.0 * weight)?;
        let second = layout.second_entries().map(|(i, j)| if i == j { diagonal } else { off_diagonal });
        coordinates.extend(second);
    }
    Ok(coordinates)
}
