//! Scales of the integer noise: the standard deviations that the exact sampler can draw.
//!
//! The sampler divides the deviation σ into 64 bins, each a whole number of grid units wide. So σ
//! is `64·w·2^k` with integers w and k. Rounding a requested deviation *up* to such a number costs
//! accuracy, never privacy. With the largest possible w it costs less than 2⁻³¹ of σ from σ = 2³⁷
//! grid units on, and always less than 2⁻²⁰.

use crate::numbers;
use thiserror::Error;

/// Number of bins in one deviation σ.
pub const BINS_PER_DEVIATION: u32 = 64;
const MAX_EXPONENT: u32 = 64;
const SMALLEST_DEVIATION: f64 = (1_u64 << 26) as f64;

/// Deviation σ = 64·w·2^k of a discrete Gaussian, in grid units, with 1 ≤ w < 2³² and 0 ≤ k ≤ 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NoiseScale {
    significand: u32,
    exponent: u32,
}

/// Reasons why no noise scale fits.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum NoiseScaleError {
    /// The grid would be too coarse for the noise.
    #[error(
        "noise of {deviation:?} grid units is too small for the grid, expected at least 2^26: raise the noise multiplier or lower this moment's weight"
    )]
    TooSmall {
        /// Requested σ in grid units.
        deviation: f64,
    },
    /// The noise would exceed 128-bit integers.
    #[error(
        "noise of {deviation:?} grid units is too large for exact integers, expected less than 2^102: lower the noise multiplier or raise this moment's weight"
    )]
    TooLarge {
        /// Requested σ in grid units.
        deviation: f64,
    },
    /// Laplace noise of this scale can't be drawn.
    #[error("Laplace noise of scale {scale:?} grid units can't be drawn: give one between 1 and 2^100")]
    Laplace {
        /// Requested scale in grid units.
        scale: f64,
    },
}

numbers!(enum NoiseScaleError { 0 TooSmall { deviation }, 1 TooLarge { deviation }, 2 Laplace { scale } });

impl NoiseScale {
    /// Returns σ = 64·`significand`·2^`exponent`; `None` unless `significand` ≥ 1 and
    /// `exponent` ≤ 64.
    pub fn new(significand: u32, exponent: u32) -> Option<Self> {
        (significand >= 1 && exponent <= MAX_EXPONENT).then_some(Self { significand, exponent })
    }

    /// Returns the smallest scale whose σ is at least `deviation` grid units.
    ///
    /// # Errors
    /// [`NoiseScaleError`] unless `deviation` lies between 2²⁶ and 64·(2³² − 1)·2⁶⁴.
    ///
    /// ```
    /// use hushflow_mechanism::noise::scale::NoiseScale;
    /// let scale = NoiseScale::at_least(3e18)?;
    /// assert!(scale.sigma() >= 3e18 && scale.sigma() < 3e18 * (1.0 + 0.5_f64.powi(31)));
    /// # Ok::<(), hushflow_mechanism::noise::scale::NoiseScaleError>(())
    /// ```
    pub fn at_least(deviation: f64) -> Result<Self, NoiseScaleError> {
        if deviation.is_nan() || deviation < SMALLEST_DEVIATION {
            return Err(NoiseScaleError::TooSmall { deviation });
        }
        // Division by powers of two is exact, so the ceiling is exact.
        let bins = deviation / f64::from(BINS_PER_DEVIATION);
        let significand = |exponent: u32| (bins / (1_u128 << exponent) as f64).ceil();
        (0..=MAX_EXPONENT)
            .find(|&exponent| significand(exponent) <= f64::from(u32::MAX))
            .map(|exponent| Self { significand: significand(exponent) as u32, exponent })
            .ok_or(NoiseScaleError::TooLarge { deviation })
    }

    /// Returns the smallest scale of few bits whose σ is at least `deviation`, for packed draws. It
    /// costs less than 2⁻¹⁹ of σ. `None` unless there is one with `w < 2²⁰` and `k ≤ 32`.
    pub(crate) fn packed_at_least(deviation: f64) -> Option<Self> {
        let bins = deviation / f64::from(BINS_PER_DEVIATION);
        let significand = |exponent: u32| (bins / 2f64.powi(exponent as i32)).ceil();
        let exponent = (0..=32).find(|&exponent| significand(exponent) < 2f64.powi(20))?;
        let scale = Self { significand: significand(exponent) as u32, exponent };
        (scale.significand >= 1 << 19).then_some(scale)
    }

    /// Returns the factor w.
    pub fn significand(self) -> u32 {
        self.significand
    }

    /// Returns the power k.
    pub fn exponent(self) -> u32 {
        self.exponent
    }

    /// Returns the width w·2^k of one bin, in grid units.
    pub fn bin_width(self) -> u128 {
        u128::from(self.significand) << self.exponent
    }

    /// Returns σ in grid units, exactly.
    pub fn sigma(self) -> f64 {
        self.bin_width() as f64 * f64::from(BINS_PER_DEVIATION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TWO_TO_102: f64 = (1_u128 << 102) as f64;

    fn check(deviation: f64, significand: u32, exponent: u32) {
        assert_eq!(NoiseScale::at_least(deviation).unwrap(), NoiseScale { significand, exponent });
    }

    #[test]
    fn takes_the_largest_significand() {
        check(SMALLEST_DEVIATION, 1 << 20, 0);
        check(SMALLEST_DEVIATION.next_up(), (1 << 20) + 1, 0);
        check(64.0 * f64::from(u32::MAX), u32::MAX, 0);
        check((64.0 * f64::from(u32::MAX)).next_up(), 1 << 31, 1);
        check(2_f64.powi(60), 1 << 31, 23);
        check(64.0 * f64::from(u32::MAX) * 2_f64.powi(64), u32::MAX, 64);
    }

    #[test]
    fn there_are_packed_scales_for_some_deviations() {
        for deviation in [2_f64.powi(24), 2_f64.powi(59), f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(NoiseScale::packed_at_least(deviation), None);
        }
    }

    #[test]
    fn invalid_scales_are_refused() {
        for deviation in [f64::NAN, f64::NEG_INFINITY, 0.0, SMALLEST_DEVIATION.next_down()] {
            assert!(matches!(NoiseScale::at_least(deviation), Err(NoiseScaleError::TooSmall { .. })));
        }
        for deviation in [f64::INFINITY, TWO_TO_102] {
            assert!(matches!(NoiseScale::at_least(deviation), Err(NoiseScaleError::TooLarge { .. })));
        }
        assert_eq!(NoiseScale::new(0, 3), None);
        assert_eq!(NoiseScale::new(1, 65), None);
        assert_eq!(NoiseScale::new(u32::MAX, 64).unwrap().bin_width(), u128::from(u32::MAX) << 64);
        assert_eq!(NoiseScale::new(3, 2).unwrap().sigma(), 768.0);
    }

    proptest! {
        #[test]
        fn packed_scales_are_rounded_up_by_little(logarithm in 25.0_f64..58.0) {
            let deviation = logarithm.exp2();
            let scale = NoiseScale::packed_at_least(deviation).unwrap();
            prop_assert!(scale.sigma() >= deviation && scale.sigma() <= deviation * (1.0 + 0.5_f64.powi(19)));
            prop_assert!(scale.significand() >= 1 << 19 && scale.significand() < 1 << 20 && scale.exponent() <= 32);
        }

        #[test]
        fn deviation_is_rounded_up_by_little(logarithm in 26.0_f64..101.9) {
            let deviation = logarithm.exp2().max(SMALLEST_DEVIATION);
            let scale = NoiseScale::at_least(deviation).unwrap();
            let bits = if logarithm < 37.0 { 20 } else { 31 };
            prop_assert!(scale.sigma() >= deviation);
            prop_assert!(scale.sigma() <= deviation * (1.0 + 0.5_f64.powi(bits)));
            prop_assert_eq!(scale.bin_width() as f64 * 64.0, scale.sigma());
        }
    }
}
