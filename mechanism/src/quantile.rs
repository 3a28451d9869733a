//! Quantiles of the normal, Student and χ² distributions, for confidence intervals, and tails of
//! χ².
//!
//! The Student and χ² quantiles are computed from the normal quantile z, so one confidence level
//! serves all three distributions.
//!
//! - Student: expansion of Fisher & Cornish (Abramowitz & Stegun 26.7.5). The relative error is
//!   below 10⁻³ from 9 degrees of freedom on.
//! - χ²: Wilson & Hilferty 1931. The error is below 2 % of the quantile's distance from the mean,
//!   for two-sided levels to 99 %.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// Maximum number of Newton steps.
const STEPS: u32 = 12;

/// Returns z with P(N(0, 1) > z) = `tail`, for 0 < `tail` ≤ 1/2.
///
/// ln P is concave and the start lies beyond the root (P ≤ e^(−z²/2)/2), so Newton's method
/// approaches the root from one side.
pub(crate) fn normal(tail: f64) -> f64 {
    let mut z = (-2.0 * (2.0 * tail).ln()).max(0.0).sqrt();
    for _ in 0..STEPS {
        let beyond = libm::erfc(z * FRAC_1_SQRT_2) / 2.0;
        let density = (-z * z / 2.0).exp() / (2.0 * PI).sqrt();
        let step = if density > 0.0 && beyond > 0.0 { (beyond / tail).ln() * beyond / density } else { 0.0 };
        if z + step == z {
            break;
        }
        z += step;
    }
    z
}

/// Returns the Student quantile at the level where the normal quantile is z.
pub(super) fn student(z: f64, freedom: f64) -> f64 {
    let square = z * z;
    let terms = [
        (square + 1.0) / 4.0,
        ((5.0 * square + 16.0) * square + 3.0) / 96.0,
        (((3.0 * square + 19.0) * square + 17.0) * square - 15.0) / 384.0,
        ((((79.0 * square + 776.0) * square + 1482.0) * square - 1920.0) * square - 945.0) / 92160.0,
    ];
    z * (1.0 + terms.iter().rev().fold(0.0, |sum, term| (sum + term) / freedom))
}

/// Returns the χ² quantile at the level where the normal quantile is z. z may be negative.
pub(super) fn chi_squared(z: f64, freedom: f64) -> f64 {
    let variance = 2.0 / (9.0 * freedom);
    freedom * (1.0 - variance + z * variance.sqrt()).max(0.0).powi(3)
}

/// Returns P(χ² > square) by its finite sum (Abramowitz & Stegun 26.4.4 and 26.4.5).
pub(super) fn chi_squared_tail(square: f64, freedom: usize) -> f64 {
    let half = square / 2.0;
    let odd = freedom % 2 == 1;
    // Terms e^(−y) y^a / Γ(a + 1), from a = ½ or 0 on, by their logarithms.
    let (mut tail, mut power) = if odd { (libm::erfc(half.sqrt()), 0.5) } else { (0.0, 0.0) };
    while half > 0.0 && power < freedom as f64 / 2.0 - 0.5 {
        tail += (power * half.ln() - half - libm::lgamma(power + 1.0)).exp();
        power += 1.0;
    }
    if half > 0.0 { tail.min(1.0) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with tables (Abramowitz & Stegun 26.5, 26.10, 26.8).
    #[test]
    fn quantiles_agree_with_tables() {
        let check = |found: f64, expected: f64, tolerance: f64| {
            assert!((found / expected - 1.0).abs() <= tolerance, "{found} {expected}");
        };
        assert_eq!(normal(0.5), 0.0);
        check(normal(0.025), 1.959_963_984_540_054, 1e-15);
        check(normal(0.005), 2.575_829_303_548_900_4, 1e-15);
        check(normal(1e-20), 9.262_340_089_798_408, 1e-14);
        check(student(normal(0.025), 9.0), 2.262_157, 1e-5);
        check(student(normal(0.005), 9.0), 3.249_836, 1e-4);
        check(student(normal(0.0005), 29.0), 3.659_405, 1e-5);
        check(chi_squared(normal(0.025), 9.0), 19.022_77, 1e-3);
        check(chi_squared(-normal(0.025), 9.0), 2.700_389, 1e-2);
        check(chi_squared(-normal(0.005), 29.0), 13.121_15, 4e-3);
        for (square, freedom, tail) in [
            (3.841_459, 1, 0.05),
            (5.991_465, 2, 0.05),
            (7.814_728, 3, 0.05),
            (23.209_25, 10, 0.01),
            (13.121_15, 29, 0.995),
        ] {
            check(chi_squared_tail(square, freedom), tail, 1e-5);
        }
        assert_eq!(chi_squared_tail(0.0, 4), 1.0);
    }
}
