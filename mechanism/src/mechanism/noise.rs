//! Noise levels on the integer grid: derives the scale of every coordinate from a sensitivity.

use super::{JointClaim, MechanismError, MomentGeometry, MomentParameters};
use crate::moments::RECORD_BITS;
use crate::noise::NoiseScale;
use crate::sensitivity::{MomentWeights, rounded_up};
use crate::strategy::{COEFFICIENT_BITS, Correlation, CorrelationUnits};
use std::iter;

/// Noise of one released coordinate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoordinateNoise {
    /// Real value of one unit of the integer grid.
    pub unit: f64,
    /// A sum of 1, in the units of the sums, is 2^`sum_bits` units of the grid.
    pub sum_bits: u8,
    /// Noise is correlated in units of 2^`coarse_bits` units of the grid; 0 where it is not
    /// correlated.
    pub coarse_bits: u8,
    /// Deviation of the discrete Gaussian in grid units; `None` when the coordinate is public and
    /// exact.
    pub scale: Option<NoiseScale>,
}

impl CoordinateNoise {
    /// Returns the standard deviation of the noise of one value of `C·sums`, in real units; 0 when
    /// exact.
    pub fn standard_deviation(&self) -> f64 {
        self.scale.map_or(0.0, |scale| scale.sigma() * self.unit)
    }

    /// Returns ρ of zero-concentrated differential privacy for values this many grid units apart,
    /// rounded up.
    pub(super) fn concentrated_loss(&self, difference: i128) -> f64 {
        match self.scale {
            _ if difference == 0 => 0.0,
            Some(scale) => rounded_up((difference as f64 / scale.sigma()).powi(2) / 2.0),
            None => f64::INFINITY,
        }
    }
}

/// The increase of the distance of two streams by rounding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rounding {
    /// Encoders round sums: the most they add, in units of ζ.
    Encoders(f64),
    /// Correlators round noise: the most they add, in deviations of the noise.
    Correlators(f64),
}

/// The most that correlating noise may add to the sensitivity, relative to it, and the largest
/// error in deviations of the noise.
const MOST_CORRELATED: f64 = 0.01;

impl Rounding {
    /// Returns s/ζ, rounded up. By the triangle inequality rounding adds to the distance. If it
    /// adds a deviations, distances must be within 1/σ deviations and deviations are σs. So
    /// `√squared/(σs) + a ≤ 1/σ` is solved for s.
    pub(super) fn relative_sensitivity(
        self,
        claim: JointClaim,
        noise_multiplier: f64,
    ) -> Result<f64, MechanismError> {
        match self {
            Rounding::Encoders(added) => Ok(rounded_up(claim.squared.sqrt() + added)),
            Rounding::Correlators(deviations) => {
                let share = rounded_up(deviations * noise_multiplier);
                if share.max(deviations) > MOST_CORRELATED || share.is_nan() {
                    return Err(MechanismError::CorrelationError { share: share.max(deviations) });
                }
                Ok(rounded_up(claim.squared.sqrt() / (1.0 - share)))
            }
        }
    }

    pub(super) fn is_of_correlators(self) -> bool {
        matches!(self, Rounding::Correlators(_))
    }

    /// Returns the grid for noise of a moment that has this deviation in the units of sums.
    fn units(self, moment: &'static str, deviation: f64) -> Result<CorrelationUnits, MechanismError> {
        match self {
            Rounding::Encoders(_) => {
                Ok(CorrelationUnits { sum_bits: COEFFICIENT_BITS as u8, coarse_bits: 0 })
            }
            Rounding::Correlators(_) => {
                CorrelationUnits::for_deviation(deviation).ok_or(MechanismError::CorrelationRange { moment })
            }
        }
    }
}

/// Returns what the rounding of recursive encoders can add to the distance of two encoded streams,
/// in units of ζ. By the triangle inequality it adds to the sensitivity. Streams that differ in k
/// records differ in at most 2k cells, so in at most 2k keys. Where they do not differ, their
/// encoders round alike. The units of count, first and second moments are 1, ζ2⁻²⁰ and ζ²2⁻⁴⁰ times
/// the method's own.
pub(super) fn of_encoders(
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

/// Returns what correlators add over `steps` steps, in deviations of the noise: 2e for each step
/// and each coordinate of the keys that differ, at most 2k as in [`of_encoders`]. `correlations`
/// are those of counts and first moments, and of second moments. `None` where noise has no room.
pub(super) fn of_correlators(
    parameters: &MomentParameters,
    correlations: [Correlation; 2],
    participations: usize,
    steps: u64,
) -> Option<Rounding> {
    let layout = parameters.released_layout();
    let seconds = layout.second_len();
    let numbers = [layout.coordinates() - seconds, seconds];
    let mut squares = 0.0;
    for (correlation, number) in correlations.iter().zip(numbers).filter(|(_, number)| *number > 0) {
        squares += number as f64 * (2.0 * correlation.relative_error()?).powi(2);
    }
    let deviations = (2.0 * participations as f64 * steps as f64 * squares).sqrt();
    Some(Rounding::Correlators(rounded_up(deviations)))
}

/// Returns the noise of all coordinates.
pub(super) fn of_moments(
    parameters: &MomentParameters,
    claim: JointClaim,
    rounding: Rounding,
) -> Result<Vec<CoordinateNoise>, MechanismError> {
    let MomentParameters { clip_norm, method, .. } = *parameters;
    let layout = parameters.released_layout();
    let weights = claim.weights;
    let deviation =
        parameters.noise_multiplier * rounding.relative_sensitivity(claim, parameters.noise_multiplier)?;
    let noise = |moment, degree: u32, unit: f64, weight: f64| -> Result<_, MechanismError> {
        let of_sums = deviation / weight.sqrt() * 2f64.powi((degree * RECORD_BITS) as i32);
        let CorrelationUnits { sum_bits, coarse_bits } = rounding.units(moment, of_sums)?;
        let grid = 2f64.powi((degree * RECORD_BITS + u32::from(sum_bits)) as i32);
        let wanted = rounded_up(deviation / weight.sqrt() * grid);
        let packed = rounding.is_of_correlators().then(|| NoiseScale::packed_at_least(wanted)).flatten();
        let scale = packed.map_or_else(|| NoiseScale::at_least(wanted), Ok);
        let scale = scale.map_err(|source| MechanismError::Scale { moment, source })?;
        let unit = unit * clip_norm.powi(degree as i32) / grid;
        Ok(CoordinateNoise { unit, sum_bits, coarse_bits, scale: Some(scale) })
    };
    let count = if weights.count > 0.0 {
        noise("count", 0, 1.0, weights.count)?
    } else {
        let unit = 1.0 / (1_u128 << COEFFICIENT_BITS) as f64;
        CoordinateNoise { unit, sum_bits: COEFFICIENT_BITS as u8, coarse_bits: 0, scale: None }
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
