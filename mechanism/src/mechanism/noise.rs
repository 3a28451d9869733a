//! Noise levels on the integer grid: derives the scale of each coordinate's noise from a
//! sensitivity.
//!
//! # Calibration
//! This file also calibrates the noise multiplier for (ε, δ) and computes the privacy cost of part
//! of a run.
//!
//! Noise on a grid costs δ, and costs more the coarser the grid is relative to the noise
//! ([`accounting::discrete`]). The relative coarseness depends on the noise multiplier, and the
//! multiplier depends on the δ that is left. So calibration uses a bound that holds for every
//! multiplier of at least σ₀, that of continuous noise. The result is at least σ₀, because it is
//! for a smaller δ.
//!
//! ## The least scale at all multipliers of at least σ₀
//! *Sums that are encoded.* The grid is fixed. A coordinate's deviation σs/√weight in grid units
//! grows with σ, and its [scale](crate::noise::NoiseScale) is that deviation, rounded up by less
//! than 2⁻²⁰ of itself. So with S₀ the least scale at σ₀, no scale at any σ ≥ σ₀ is below
//! `S₀(1 − 2⁻²⁰)`. The few roundings of s and of products add less than 2⁻⁴⁴.
//!
//! *Encoded sums that are rounded.* A coordinate whose grid is coarser than 2⁻⁴⁰ units of its sums
//! has a scale above 2⁴¹, at any multiplier (`Grid` below). A coordinate with the finest grid at
//! some multiplier has that grid at every smaller multiplier, and its scale there is larger by no
//! more than rounding. So no scale at any σ ≥ σ₀ is below the lesser of 2⁴¹ and `S₀(1 − 2⁻²⁰)`.
//!
//! *Noise that is correlated ahead of the sums.* The grid is chosen by the deviation in units of
//! sums: K is the least power of two with which σ_q = K·deviation is above 2⁴¹
//! ([`CorrelationUnits`](crate::strategy::Correlates)). Just past a multiplier where K halves, σ_q
//! falls from 2⁴² to 2⁴¹. So a larger multiplier may have half the scale, and cost four times as
//! much. But K and rounding up ensure that no scale is below 2⁴¹, at any multiplier.
//!
//! ## The cost of part of a run
//! A run of noise multiplier σ and sensitivity s draws noise of deviation σs, in units of the
//! sensitivity. Suppose neighbours move the releases so far by at most s_p. Then these releases lie
//! within `μ_p = s_p/(σs)` deviations of each other. With correlated noise they lie within
//! `s_p/(σs) + a`, where a is the effect of rounding the noise, in deviations, for any σ. (There s
//! is larger than the distance of the encoded sums by the factor 1/(1 − σa). So at the end of the
//! run the bound is `(1 − σa)/σ + a = 1/σ`.) The same holds for encoded sums that are rounded. The
//! part of the run so far is (ε, δ)-private if one Gaussian mechanism of multiplier 1/μ_p is (ε, δ
//! − (1 + e^ε)τ)-private, where τ is the total variation between the noise drawn so far and its
//! ideal. [`Spending`] finds the least ε.
//!
//! [`accounting::discrete`]: crate::accounting::discrete

use super::{JointClaim, MechanismError, MomentGeometry, MomentMechanism, MomentParameters};
use crate::accounting::composition::Spending;
use crate::accounting::discrete::{Discreteness, noise_multiplier_rounded_up};
use crate::accounting::{Delta, Epsilon, MARGIN, NoiseMultiplier, gaussian};
use crate::moments::RECORD_BITS;
use crate::noise::NoiseScale;
use crate::sensitivity::{MomentWeights, rounded_up};
use crate::strategy::{COEFFICIENT_BITS, Correlation, CorrelationUnits};
use std::iter;

/// The noise of one released coordinate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoordinateNoise {
    /// Real value of one unit of the integer grid.
    pub unit: f64,
    /// One unit of the sums is 2^`sum_bits` units of the grid.
    pub sum_bits: u8,
    /// Noise is correlated in units of 2^`coarse_bits` units of the grid; 0 if it is not
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

/// Maximum increase, by rounding, of the distance between two streams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum RoundingLoss {
    /// Encoders round sums. Holds their increase, in units of ζ.
    Encoders(f64),
    /// Encoders round sums, and encoded sums are rounded to a grid. Holds the increase by the
    /// encoders, in units of ζ, and the increase by the grid, in deviations of the noise.
    Grid(f64, f64),
    /// Correlators round noise. Holds their increase, in deviations of the noise.
    Correlators(f64),
}

/// Maximum relative increase of the sensitivity by correlated noise or by the grid, and maximum
/// error in deviations of the noise.
const MAX_CORRELATION_ERROR: f64 = 0.01;

impl RoundingLoss {
    /// Returns s/ζ, rounded up. By the triangle inequality rounding adds to the distance. Suppose
    /// it adds `a` deviations. One deviation is σs, and the total distance may be at most 1/σ
    /// deviations. So `√squared/(σs) + a ≤ 1/σ` is solved for s.
    pub(super) fn relative_sensitivity(
        self,
        claim: JointClaim,
        noise_multiplier: f64,
    ) -> Result<f64, MechanismError> {
        match self {
            RoundingLoss::Encoders(added) => Ok(rounded_up(claim.squared.sqrt() + added)),
            RoundingLoss::Grid(added, deviations) => {
                let share = share_of_sensitivity(deviations, noise_multiplier)?;
                Ok(rounded_up((claim.squared.sqrt() + added) / (1.0 - share)))
            }
            RoundingLoss::Correlators(deviations) => {
                let share = share_of_sensitivity(deviations, noise_multiplier)?;
                Ok(rounded_up(claim.squared.sqrt() / (1.0 - share)))
            }
        }
    }

    /// Whether the grid follows from the noise. Such noise fits 64 bits.
    fn has_own_grid(self) -> bool {
        !matches!(self, RoundingLoss::Encoders(_))
    }

    /// Returns the grid for noise of a moment that has this deviation in the units of sums.
    fn units(self, moment: &'static str, deviation: f64) -> Result<CorrelationUnits, MechanismError> {
        match self {
            RoundingLoss::Encoders(_) => {
                Ok(CorrelationUnits { sum_bits: COEFFICIENT_BITS as u8, coarse_bits: 0 })
            }
            RoundingLoss::Grid(..) => Ok(CorrelationUnits::of_rounded_sums(deviation)),
            RoundingLoss::Correlators(_) => {
                CorrelationUnits::for_deviation(deviation).ok_or(MechanismError::CorrelationRange { moment })
            }
        }
    }
}

fn share_of_sensitivity(deviations: f64, noise_multiplier: f64) -> Result<f64, MechanismError> {
    let share = rounded_up(deviations * noise_multiplier);
    if share.max(deviations) > MAX_CORRELATION_ERROR || share.is_nan() {
        return Err(MechanismError::GridRounding { share: share.max(deviations) });
    }
    Ok(share)
}

/// Returns the maximum distance that rounding encoded sums to the grid adds over `steps` steps, in
/// deviations of the noise. `encoders` is the distance that encoders add. A rounded sum errs by at
/// most half a unit, so between neighbours it moves by at most one unit more than the sum. A unit
/// of a rounded coordinate is less than 2⁻⁴¹ deviations. The coordinates and steps that may differ
/// are those of [`of_correlators`]. `None` for sent records, which differ in more keys.
pub(super) fn of_grid(
    parameters: &MomentParameters,
    encoders: f64,
    participations: usize,
    steps: u64,
) -> Option<RoundingLoss> {
    let layout = parameters.released_layout();
    let cells = 2.0 * participations as f64 * steps as f64;
    let deviations = (cells * layout.coordinates() as f64).sqrt() / CorrelationUnits::LEAST_SCALE;
    layout.sent.is_none().then(|| RoundingLoss::Grid(encoders, rounded_up(deviations)))
}

/// Returns the maximum distance that the rounding of recursive encoders adds between two encoded
/// streams, in units of ζ. By the triangle inequality it adds to the sensitivity. Streams that
/// differ in k records differ in at most 2k cells, so in at most 2k keys. Where they do not differ,
/// their encoders round alike. The units of count, first and second moments are 1, ζ2⁻²⁰ and ζ²2⁻⁴⁰
/// times the method's own.
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
    let counts = weights.count + parameters.sent_weight().unwrap_or(0.0);
    // The bins that differ are at most 2k for each histogram.
    let histograms = f64::from(layout.bins.histograms);
    let counts = counts + histograms * parameters.relative_bin_weight().unwrap_or(0.0);
    let counts_and_first = first * (counts + layout.dimension as f64 * unit);
    let squares = counts_and_first + second * weight * entries * unit * unit;
    (2.0 * geometry.participations() as f64 * squares).sqrt()
}

/// Returns the maximum distance that correlators add over `steps` steps, in deviations of the
/// noise. With e the relative error of a [`Correlation`], this is 2e for each step and each
/// coordinate of the keys that differ, at most 2k as in [`of_encoders`], added in squares.
/// `correlations` are those of counts and first moments, and of second moments. `None` if the noise
/// does not fit 51 bits, and for sent records, which differ in more keys.
pub(super) fn of_correlators(
    parameters: &MomentParameters,
    correlations: [Correlation; 2],
    participations: usize,
    steps: u64,
) -> Option<RoundingLoss> {
    let layout = parameters.released_layout();
    if layout.sent.is_some() {
        return None;
    }
    let seconds = layout.second_len();
    let numbers = [layout.coordinates() - seconds, seconds];
    let mut squares = 0.0;
    for (correlation, number) in correlations.iter().zip(numbers).filter(|(_, number)| *number > 0) {
        squares += number as f64 * (2.0 * correlation.relative_error()?).powi(2);
    }
    let deviations = (2.0 * participations as f64 * steps as f64 * squares).sqrt();
    Some(RoundingLoss::Correlators(rounded_up(deviations)))
}

/// Returns the noise of all coordinates. The noise multiplier is for m `records_at_once`.
pub(super) fn of_moments(
    parameters: &MomentParameters,
    claim: JointClaim,
    rounding: RoundingLoss,
    records_at_once: u32,
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
        let packed = rounding.has_own_grid().then(|| NoiseScale::packed_at_least(wanted)).flatten();
        let scale = packed.map_or_else(|| NoiseScale::at_least(wanted), Ok);
        let scale = scale.map_err(|source| MechanismError::Scale { moment, source })?;
        let unit = unit * clip_norm.powi(degree as i32) / grid;
        Ok(CoordinateNoise { unit, sum_bits, coarse_bits, scale: Some(scale) })
    };
    let exact = || {
        let unit = 1.0 / (1_u128 << COEFFICIENT_BITS) as f64;
        CoordinateNoise { unit, sum_bits: COEFFICIENT_BITS as u8, coarse_bits: 0, scale: None }
    };
    let count = if weights.count > 0.0 { noise("count", 0, 1.0, weights.count)? } else { exact() };
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
    if let Some(most) = layout.sent {
        let ratio = f64::from(records_at_once) / f64::from(most.get());
        coordinates.push(match parameters.sent_weight() {
            Some(weight) => noise("sent records", 0, 1.0, weight * ratio * ratio)?,
            None => exact(),
        });
    }
    if let Some(weight) = parameters.relative_bin_weight() {
        let bin = noise("bins of histograms", 0, 1.0, weight)?;
        coordinates.extend(iter::repeat_n(bin, layout.bins.number as usize));
    }
    Ok(coordinates)
}

impl MomentMechanism {
    /// Returns the least noise multiplier for (ε, δ), including the grid's cost in δ when `cells`
    /// pairs of key and epoch are released. This mechanism's own multiplier does not matter.
    ///
    /// # Errors
    /// [`MechanismError::Accounting`] and [`MechanismError::Scale`] if no noise gives the
    /// guarantee.
    pub fn calibrated(&self, epsilon: Epsilon, delta: Delta, cells: f64) -> Result<f64, MechanismError> {
        let discreteness = self.discreteness(epsilon, delta, cells)?;
        Ok(noise_multiplier_rounded_up(epsilon, delta, discreteness)?.value())
    }

    /// Returns an upper bound on the distance between the noise of `cells` cells and its ideal, for
    /// the calibrated noise multiplier and every larger one. Calibration subtracts its cost from δ.
    ///
    /// # Errors
    /// As [`calibrated`](Self::calibrated).
    pub fn discreteness(
        &self,
        epsilon: Epsilon,
        delta: Delta,
        cells: f64,
    ) -> Result<Discreteness, MechanismError> {
        let continuous = gaussian::noise_multiplier(epsilon, delta).value() * (1.0 - MARGIN);
        let least_scale = self.least_scale_from(continuous)?;
        Ok(Discreteness::new(least_scale, cells * self.noise.len() as f64)?)
    }

    /// Returns a lower bound of the scales of all coordinates, at this noise multiplier and all
    /// above it. The proof is at the head of this module.
    fn least_scale_from(&self, noise_multiplier: f64) -> Result<f64, MechanismError> {
        match self.rounding {
            RoundingLoss::Encoders(_) => {
                Ok(self.with_noise_multiplier(noise_multiplier)?.least_scale() * (1.0 - 2f64.powi(-19)))
            }
            RoundingLoss::Grid(..) => {
                let finest = self.with_noise_multiplier(noise_multiplier)?.least_scale();
                Ok(CorrelationUnits::LEAST_SCALE.min(finest * (1.0 - 2f64.powi(-19))))
            }
            RoundingLoss::Correlators(_) => Ok(CorrelationUnits::LEAST_SCALE),
        }
    }

    /// Returns an upper bound on the distance between the noise that this mechanism draws for
    /// `cells` pairs of key and epoch, and its ideal.
    ///
    /// # Errors
    /// [`MechanismError::Accounting`] if the cost can't be counted.
    pub fn drawn_discreteness(&self, cells: f64) -> Result<Discreteness, MechanismError> {
        Ok(Discreteness::new(self.least_scale(), cells * self.noise.len() as f64)?)
    }

    fn least_scale(&self) -> f64 {
        let scales = self.noise.iter().filter_map(|noise| noise.scale);
        scales.map(|scale| scale.sigma()).fold(f64::INFINITY, f64::min)
    }

    /// Returns the least ε with which a part of this run is (ε, δ)-private, rounded up; `None`
    /// if the cost of the grid exceeds δ. `part` is the mechanism for that part alone, made with
    /// the weights of this one. `cells` is the number of pairs of key and epoch that the part
    /// released.
    ///
    /// # Errors
    /// [`MechanismError::Accounting`] if the cost can't be counted.
    pub fn spent_by(&self, part: &Self, delta: Delta, cells: f64) -> Result<Option<Epsilon>, MechanismError> {
        let moved = rounded_up(part.moved_in_deviations_of(self));
        let multiplier = NoiseMultiplier::new(moved.recip() * (1.0 - f64::EPSILON))?;
        let discreteness = self.drawn_discreteness(cells)?;
        Ok(Spending::of(multiplier, discreteness)?.epsilon(delta))
    }

    /// Returns how far neighbours move the release, in deviations of the noise that `other` draws.
    fn moved_in_deviations_of(&self, other: &Self) -> f64 {
        let deviation = other.parameters.noise_multiplier * other.relative_sensitivity;
        match self.rounding {
            RoundingLoss::Encoders(added) => (self.claim.squared.sqrt() + added) / deviation,
            RoundingLoss::Grid(added, of_grid) => (self.claim.squared.sqrt() + added) / deviation + of_grid,
            RoundingLoss::Correlators(added) => self.claim.squared.sqrt() / deviation + added,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mechanism::{MatrixMechanism, Method, MomentParameters, Strategies};
    use crate::moments::{Layout, SecondMoment};
    use crate::participation::Participation;
    use crate::sensitivity::Neighbours;
    use crate::strategy::buffered::{Buffered, BufferedParameters, Buffers, ExponentialBuffer};
    use std::sync::Arc;

    const STEPS: u64 = 1000;
    const LAYOUT: Layout = Layout::new(3, SecondMoment::Diagonal);

    fn strategies() -> Strategies {
        let buffers = Buffers::Toeplitz(vec![ExponentialBuffer { decay: 0.75, weight: 0.5 }]);
        let fitted = BufferedParameters { horizon: Some(STEPS), buffers };
        Strategies::shared(Arc::new(Buffered::new("blt:1".parse().unwrap(), fitted).unwrap()))
    }

    fn mechanism(strategies: Strategies, noise_multiplier: f64, steps: u64) -> MomentMechanism {
        let parameters = MomentParameters {
            method: Method::Jme,
            layout: LAYOUT,
            neighbours: Neighbours::ReplaceOneInPlace,
            clip_norm: 1.0,
            noise_multiplier,
            second_moment_weight: None,
            count_weight: None,
            bin_weight: None,
        };
        let single = Participation::Single;
        let all = MatrixMechanism::with_participation(parameters, strategies, single, steps).unwrap();
        all.moments().clone()
    }

    /// Covers noise at which the grid becomes coarser: both sides of a power of two, and far
    /// beyond.
    #[test]
    fn the_least_scale_bounds_that_of_every_larger_multiplier() {
        for (strategies, falls) in
            [(strategies(), false), (strategies().rounded(), true), (strategies().correlated(), true)]
        {
            let any = mechanism(strategies, 1.0, STEPS);
            let mut fell = false;
            for power in -3..6 {
                for offset in [-0.3, -1e-3, -1e-9, 0.0, 1e-9, 1e-3, 0.3] {
                    // Deviations start at powers of two times the sensitivity.
                    let start = 2f64.powi(power) / any.relative_sensitivity * (1.0 + offset);
                    let least = any.least_scale_from(start).unwrap();
                    let at_start = any.with_noise_multiplier(start).unwrap().least_scale();
                    for growth in [1.0, 1.0 + 1e-12, 1.0 + 1e-6, 1.001, 1.4, 2.0, 3.0, 7.9] {
                        let scale = any.with_noise_multiplier(start * growth).unwrap().least_scale();
                        assert!(least <= scale, "{start} times {growth}: {least} above {scale}");
                        fell |= scale < at_start * (1.0 - 2f64.powi(-19));
                    }
                }
            }
            assert_eq!(fell, falls);
        }
    }

    /// For δ so small that the grid matters, the cost of the mechanism that runs is within the
    /// promise.
    #[test]
    fn the_cost_of_the_grid_is_charged() {
        let (epsilon, cells) = (Epsilon::new(1.0).unwrap(), 1e9);
        for (strategies, log_delta) in
            [(strategies(), -75.0_f64), (strategies().rounded(), -45.0), (strategies().correlated(), -45.0)]
        {
            let delta = Delta::new(log_delta.exp()).unwrap();
            let any = mechanism(strategies, 1.0, STEPS);
            let calibrated = any.calibrated(epsilon, delta, cells).unwrap();
            let runs = any.with_noise_multiplier(calibrated).unwrap();
            let discreteness =
                Discreteness::new(runs.least_scale(), cells * runs.noise().len() as f64).unwrap();
            let multiplier = NoiseMultiplier::new(calibrated).unwrap();
            let found = gaussian::delta(multiplier, epsilon) + discreteness.delta_cost(epsilon);
            assert!(found <= delta.value(), "{found:e} of {:e}", delta.value());
            let share = discreteness.delta_cost(epsilon) / delta.value();
            assert!(share > 1e-13, "the share of the grid is negligible: {share:e}");
        }
    }

    #[test]
    fn a_grid_that_takes_all_of_delta_is_refused() {
        let correlated = mechanism(strategies().correlated(), 1.0, STEPS);
        let [epsilon, delta] = [1.0, 1e-24];
        let found = correlated.calibrated(Epsilon::new(epsilon).unwrap(), Delta::new(delta).unwrap(), 1e9);
        assert!(matches!(found, Err(MechanismError::Accounting(_))), "{found:?}");
        assert_eq!(correlated.spent_by(&correlated, Delta::new(delta).unwrap(), 1e9), Ok(None));
    }

    /// A finished run has spent the budget it was calibrated for, including the grid and the
    /// rounding of noise.
    #[test]
    fn a_run_spends_its_guarantee_and_a_part_no_more() {
        let (epsilon, cells) = (Epsilon::new(1.0).unwrap(), STEPS as f64);
        for (strategies, log_delta) in [
            (strategies(), -14.0_f64),
            (strategies().rounded(), -14.0),
            (strategies().rounded(), -50.0),
            (strategies().correlated(), -14.0),
            (strategies().correlated(), -50.0),
        ] {
            let delta = Delta::new(log_delta.exp()).unwrap();
            let any = mechanism(strategies.clone(), 1.0, STEPS);
            let calibrated = any.calibrated(epsilon, delta, cells).unwrap();
            let whole = any.with_noise_multiplier(calibrated).unwrap();
            let spent = whole.spent_by(&whole, delta, cells).unwrap().unwrap().value();
            assert!((0.999..=1.0 + 1e-9).contains(&spent), "{spent}");
            // The spent ε covers the cost of one Gaussian mechanism and of the grid.
            let draws = cells * whole.noise().len() as f64;
            let grid = Discreteness::new(whole.least_scale(), draws).unwrap();
            let (spent_epsilon, sigma) =
                (Epsilon::new(spent).unwrap(), NoiseMultiplier::new(calibrated).unwrap());
            let found = gaussian::delta(sigma, spent_epsilon) + grid.delta_cost(spent_epsilon);
            assert!(found <= delta.value() * (1.0 + 1e-11), "{found:e} of {:e}", delta.value());
            let part = mechanism(strategies, calibrated, STEPS / 2);
            let after_half = whole.spent_by(&part, delta, cells / 2.0).unwrap().unwrap().value();
            // The record may be the first. So the releases of half the run move nearly as far as
            // those of all.
            assert!(after_half > 0.999 && after_half <= spent * (1.0 + 1e-9), "{after_half} of {spent}");
            if let RoundingLoss::Correlators(added) = part.rounding {
                let deviation = calibrated * whole.relative_sensitivity;
                let moved = part.moved_in_deviations_of(&whole);
                assert!(moved >= part.claim.squared.sqrt() / deviation + added);
            }
        }
    }
}
