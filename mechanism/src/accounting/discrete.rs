//! The privacy cost of exact noise on a grid: the distance between a discrete Gaussian and a
//! rounded continuous one.
//!
//! Data and noise are integers, so the ideal release "data + continuous Gaussian, rounded to the
//! grid" equals "data + rounded Gaussian". This release is post-processing of the Gaussian
//! mechanism, and has the exact (ε, δ) of that mechanism. The actual noise is the discrete Gaussian
//! of the same σ. If the two are within total variation τ over all draws of a run, then the run is
//! (ε, δ + (1+e^ε)τ)-private: τ for the step to the ideal, e^ε τ for the step back.
//!
//! With s = σ/grid and u = k/s, the mass of the rounded Gaussian at k is that of the discrete one
//! times 1 + (u²−1)/(24s²) + O(s⁻⁴). Hence for one draw, with E|u²−1| = 4φ(1) and E(u²−1)² = 2,
//!
//! ```text
//! total variation = φ(1)/(12 s²) + O(s⁻⁴)  ≤ 0.0202/s²,      KL = 1/(576 s⁴) + O(s⁻⁶).
//! ```
//!
//! Over N draws total variations add up, and so do divergences, even when the data adapt to earlier
//! releases (chain rule). Pinsker's inequality turns the divergence into √(N·KL/2) ≤ 0.0295 √N/s².
//! The code takes the smaller of the two bounds.

use super::{AccountingError, Delta, Epsilon, MARGIN, NoiseMultiplier, gaussian};

/// Minimum number of grid steps per standard deviation for which the bounds apply: the coarsest
/// grid.
pub const MIN_GRID_SCALE: f64 = 64.0;

/// Bound of s² times the total variation of one draw.
const VARIATION: f64 = 0.0202;

/// Bound of s² times √(KL/2) of one draw.
const ROOT_HALF_DIVERGENCE: f64 = 0.0295;

/// Total variation between all the noise of a run and its ideal.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Discreteness(f64);

impl Discreteness {
    /// Returns the total variation of a run of `draws` draws in total, each with at least
    /// `grid_scale` = σ/grid grid steps per standard deviation.
    ///
    /// # Errors
    /// [`AccountingError::GridScale`] and [`AccountingError::Draws`] if these are out of range.
    pub fn new(grid_scale: f64, draws: f64) -> Result<Self, AccountingError> {
        if !(MIN_GRID_SCALE..=f64::MAX).contains(&grid_scale) {
            return Err(AccountingError::GridScale(grid_scale));
        }
        if !(1.0..=f64::MAX).contains(&draws) {
            return Err(AccountingError::Draws(draws));
        }
        let unscaled = (VARIATION * draws).min(ROOT_HALF_DIVERGENCE * draws.sqrt()) * (1.0 + MARGIN);
        Ok(Self((unscaled / grid_scale / grid_scale).clamp(f64::MIN_POSITIVE, 1.0)))
    }

    /// Wraps a total variation that was computed before.
    ///
    /// # Errors
    /// [`AccountingError::TotalVariation`] unless it is above 0 and at most 1.
    pub fn of_total_variation(total_variation: f64) -> Result<Self, AccountingError> {
        if (f64::MIN_POSITIVE..=1.0).contains(&total_variation) {
            Ok(Self(total_variation))
        } else {
            Err(AccountingError::TotalVariation(total_variation))
        }
    }

    /// Returns the total variation, rounded up; at most 1.
    pub fn total_variation(self) -> f64 {
        self.0
    }

    /// Returns the addition to δ: (1+e^ε) times the total variation, rounded up; infinite for an ε
    /// above 709.
    pub fn delta_cost(self, epsilon: Epsilon) -> f64 {
        (1.0 + epsilon.value().exp()) * self.0 * (1.0 + MARGIN)
    }
}

/// Returns an upper bound of the least noise multiplier that is (ε, δ)-private on the grid: that of
/// continuous noise for (ε, δ − cost).
///
/// # Errors
/// [`AccountingError::DiscretenessExceedsDelta`] if the cost is at least δ.
pub fn noise_multiplier_rounded_up(
    epsilon: Epsilon,
    delta: Delta,
    discreteness: Discreteness,
) -> Result<NoiseMultiplier, AccountingError> {
    let cost = discreteness.delta_cost(epsilon);
    let exceeded = AccountingError::DiscretenessExceedsDelta { cost, delta: delta.value() };
    let remaining = Delta::new(delta.value() - cost).map_err(|_| exceeded)?;
    Ok(gaussian::noise_multiplier_rounded_up(epsilon, remaining))
}

#[cfg(test)]
mod tests {
    use super::super::tests::assert_close;
    use super::*;
    use std::f64::consts::TAU;

    /// Masses at k = 0, 1, … of the rounded Gaussian and of the discrete one. `grid_scale` must be
    /// at least 4, so that the normaliser of the discrete Gaussian is σ√(2π) to the last bit.
    fn masses(grid_scale: f64) -> impl Iterator<Item = (f64, f64)> {
        let tail = move |x: f64| libm::erfc(x / (grid_scale * 2_f64.sqrt())) / 2.0;
        (0..(12.0 * grid_scale) as u32).map(f64::from).map(move |k| {
            let rounded = if k == 0.0 { 1.0 - 2.0 * tail(0.5) } else { tail(k - 0.5) - tail(k + 0.5) };
            (rounded, (-(k / grid_scale).powi(2) / 2.0).exp() / (grid_scale * TAU.sqrt()))
        })
    }

    /// Sums an even function over all integers, given its values at 0, 1, ….
    fn sum_over_integers(terms: impl Iterator<Item = f64>) -> f64 {
        terms.enumerate().map(|(k, term)| if k == 0 { term } else { 2.0 * term }).sum()
    }

    #[test]
    fn constants_bound_the_exact_distances_and_are_sharp() {
        for grid_scale in [4.0, 8.0, 16.0, 32.0, 64.0, 256.0] {
            let variation = sum_over_integers(masses(grid_scale).map(|(p, q)| (p - q).abs() / 2.0));
            let divergence = sum_over_integers(masses(grid_scale).map(|(p, q)| {
                let excess = (q - p) / p;
                p * ((1.0 + excess) * excess.ln_1p() - excess)
            }));
            let check = |found: f64, bound: f64| {
                let scaled = found * grid_scale * grid_scale;
                assert!(scaled < bound && scaled > 0.98 * bound, "{grid_scale}: {scaled} {bound}");
            };
            check(variation, VARIATION);
            check((divergence / 2.0).sqrt(), ROOT_HALF_DIVERGENCE);
        }
    }

    #[test]
    fn few_draws_use_variations_and_many_use_divergences() {
        let variation = |scale: f64, draws: f64| Discreteness::new(scale, draws).unwrap().total_variation();
        assert_close(variation(64.0, 1.0), 0.0202 / 4096.0, 1e-11);
        assert_close(variation(2_f64.powi(40), 2_f64.powi(34)), 0.0295 * 2_f64.powi(17 - 80), 1e-11);
        assert!(variation(2_f64.powi(40), 2_f64.powi(34)) < 2_f64.powi(-68));
        assert_eq!(variation(64.0, 1e300), 1.0);
        assert!(variation(1e300, 1.0) > 0.0);
    }

    #[test]
    fn invalid_scales_and_draws_are_refused() {
        for scale in [f64::NAN, f64::INFINITY, 63.9, 0.0, -64.0] {
            assert!(matches!(Discreteness::new(scale, 1.0), Err(AccountingError::GridScale(_))), "{scale}");
        }
        for draws in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            assert!(matches!(Discreteness::new(64.0, draws), Err(AccountingError::Draws(_))), "{draws}");
        }
        for variation in [f64::NAN, f64::INFINITY, 0.0, -1.0, 1.1] {
            let found = Discreteness::of_total_variation(variation);
            assert!(matches!(found, Err(AccountingError::TotalVariation(_))), "{variation}");
        }
        let known = Discreteness::new(64.0, 1.0).unwrap();
        assert_eq!(Discreteness::of_total_variation(known.total_variation()), Ok(known));
    }

    #[test]
    fn calibration_charges_discreteness() {
        let (epsilon, delta) = (Epsilon::new(1.0).unwrap(), Delta::new(1e-6).unwrap());
        let fine = Discreteness::new(2_f64.powi(40), 2_f64.powi(34)).unwrap();
        let coarse = Discreteness::new(1000.0, 10.0).unwrap();
        let continuous = gaussian::noise_multiplier_rounded_up(epsilon, delta);
        let calibrated = |discreteness| noise_multiplier_rounded_up(epsilon, delta, discreteness);
        assert_close(calibrated(fine).unwrap().value(), continuous.value(), 1e-11);
        let raised = calibrated(coarse).unwrap();
        assert!(raised.value() > 1.01 * continuous.value());
        assert!(gaussian::delta(raised, epsilon) + coarse.delta_cost(epsilon) < delta.value());
    }

    #[test]
    fn discreteness_above_delta_is_an_error() {
        let discreteness = Discreteness::new(64.0, 1.0).unwrap();
        for epsilon in [1.0, 1e3].map(|x| Epsilon::new(x).unwrap()) {
            let cost = discreteness.delta_cost(epsilon);
            let found = noise_multiplier_rounded_up(epsilon, Delta::new(1e-6).unwrap(), discreteness);
            assert_eq!(found, Err(AccountingError::DiscretenessExceedsDelta { cost, delta: 1e-6 }));
        }
    }

    #[test]
    fn the_advised_epsilon_has_noise() {
        let discreteness = Discreteness::new(2_f64.powi(20), 100.0).unwrap();
        let noise = |epsilon| {
            let epsilon = Epsilon::new(epsilon).unwrap();
            noise_multiplier_rounded_up(epsilon, Delta::new(1e-6).unwrap(), discreteness)
        };
        let message = noise(50.0).unwrap_err().to_string();
        let (_, lower) = message.rsplit_once(' ').unwrap();
        assert!(noise(50.0 - lower.parse::<f64>().unwrap()).is_ok(), "{message}");
        let message = noise(800.0).unwrap_err().to_string();
        assert!(
            message.ends_with("choose one of at most 10, which is already weak") && noise(10.0).is_ok(),
            "{message}"
        );
    }
}
