//! The exact (ε, δ) of the Gaussian mechanism of sensitivity 1: Balle & Wang 2018, Theorem 8.
//!
//! With μ = 1/σ, `near` a = εσ − μ/2 and `far` b = εσ + μ/2 the theorem says
//!
//! ```text
//! δ = Q(a) − e^ε Q(b) = φ(a) (R(a) − R(b)),      Q = 1 − Φ,  R = Q/φ,
//! ```
//!
//! because e^ε φ(b) = φ(a). The right-hand side does not overflow. Nor does it cancel, because the
//! difference is computed as an integral where the terms nearly agree. So `log δ` is right far
//! below the least positive float. Where a is negative and δ may be close to 1, the code uses the
//! complement `1 − δ = φ(a) (R(−a) + R(b))`. δ falls in ε and in σ, so both inverses are found by
//! bisection.
//!
//! ```
//! use hushflow_mechanism::accounting::{Delta, Epsilon, gaussian};
//! let sigma = gaussian::noise_multiplier(Epsilon::new(1.0)?, Delta::new(1e-5)?);
//! assert!((sigma.value() - 3.730631634816464).abs() < 1e-12);
//! # Ok::<(), hushflow_mechanism::accounting::AccountingError>(())
//! ```
//!
//! # Mills' ratio
//! `R(x) = Q(x)/φ(x)` with `Q = 1 − Φ` is the normal tail without its exponential decay:
//! `R(x) = √(π/2) erfcx(x/√2)`.
//!
//! Below 2.5 it is computed from `erfc`. From 2.5 on it is computed by Laplace's continued fraction
//! `R(x) = 1/(x + K(x))`, `K(x) = 1/(x + 2/(x + 3/(x + …)))` (Abramowitz & Stegun 26.2.14).

use super::{Delta, Epsilon, MARGIN, NoiseMultiplier, least};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_PI_2};

/// `ln √(2π)`.
const LN_SQRT_TAU: f64 = 0.918_938_533_204_672_8;

/// Largest μ for which `log δ` is computed directly even for a < 0; there a ≥ −1/4.
const SMALL_MU: f64 = 0.5;

/// Returns the least δ for which noise of this multiplier is (ε, δ)-private; 0 when it is below the
/// least float.
pub fn delta(noise_multiplier: NoiseMultiplier, epsilon: Epsilon) -> f64 {
    log_delta(noise_multiplier, epsilon).exp()
}

/// Returns the natural logarithm of [`delta`]. Accurate even where δ is too small for a float; −∞
/// only beyond −10³⁰⁷.
pub fn log_delta(noise_multiplier: NoiseMultiplier, epsilon: Epsilon) -> f64 {
    let mu = noise_multiplier.mu();
    let scaled = epsilon.value() * noise_multiplier.value();
    let (near, far) = (scaled - mu / 2.0, scaled + mu / 2.0);
    if near < 0.0 && mu > SMALL_MU {
        (-density(near) * (ratio(-near) + ratio(far))).ln_1p()
    } else {
        decrease(near, mu).ln() - near * near / 2.0 - LN_SQRT_TAU
    }
}

/// Returns the least ε for which noise of this multiplier is (ε, δ)-private; 0 when δ is large
/// enough.
pub fn epsilon(noise_multiplier: NoiseMultiplier, delta: Delta) -> Epsilon {
    let log_target = delta.value().ln();
    Epsilon(least(0.0, f64::MAX, |epsilon| log_delta(noise_multiplier, Epsilon(epsilon)) <= log_target))
}

/// Returns the least noise multiplier that is (ε, δ)-private.
pub fn noise_multiplier(epsilon: Epsilon, delta: Delta) -> NoiseMultiplier {
    let log_target = delta.value().ln();
    let private = |sigma| log_delta(NoiseMultiplier(sigma), epsilon) <= log_target;
    NoiseMultiplier(least(NoiseMultiplier::MIN, f64::MAX, private))
}

/// Returns an upper bound of [`epsilon()`].
///
/// δ is lowered and ε raised by the relative margin.
pub fn epsilon_rounded_up(noise_multiplier: NoiseMultiplier, delta: Delta) -> Epsilon {
    Epsilon(epsilon(noise_multiplier, delta.rounded_down()).value() * (1.0 + MARGIN))
}

/// Returns an upper bound of [`noise_multiplier()`].
///
/// δ is lowered and σ raised by the relative margin.
pub fn noise_multiplier_rounded_up(epsilon: Epsilon, delta: Delta) -> NoiseMultiplier {
    NoiseMultiplier(noise_multiplier(epsilon, delta.rounded_down()).value() * (1.0 + MARGIN))
}

/// The least x for which the continued fraction is used.
const FAR: f64 = 2.5;

/// Levels of the continued fraction: enough for full precision at [`FAR`].
const LEVELS: u32 = 70;

/// Positive nodes and weights of the six-point Gauss–Legendre rule on [−1, 1].
const NODES: [(f64, f64); 3] = [
    (0.238_619_186_083_196_9, 0.467_913_934_572_691_05),
    (0.661_209_386_466_264_5, 0.360_761_573_048_138_6),
    (0.932_469_514_203_152, 0.171_324_492_379_170_35),
];

/// Returns `φ(x)`.
fn density(x: f64) -> f64 {
    (-x * x / 2.0).exp() * FRAC_1_SQRT_2 / FRAC_PI_2.sqrt() * FRAC_1_SQRT_2
}

/// Returns `R(x)`, for `x ≥ −1`.
fn ratio(x: f64) -> f64 {
    if x < FAR {
        FRAC_PI_2.sqrt() * (x * x / 2.0).exp() * libm::erfc(x * FRAC_1_SQRT_2)
    } else {
        (x + continued_fraction(x)).recip()
    }
}

/// Returns `R(x) − R(x + step)`, for `x ≥ −1`, `step > 0`.
///
/// Where the two terms nearly agree, the code integrates `−R′` instead. The error of the rule is
/// below the last bit, because `−R′` is entire, and changes over lengths of about max(1, x).
fn decrease(x: f64, step: f64) -> f64 {
    if step > (x / 4.0).max(0.5) {
        return ratio(x) - ratio(x + step);
    }
    let half = step / 2.0;
    let pair =
        |(node, weight)| weight * (descent(x + half * (1.0 - node)) + descent(x + half * (1.0 + node)));
    half * NODES.map(pair).iter().sum::<f64>()
}

/// Returns `−R′(x) = 1 − x R(x)`.
fn descent(x: f64) -> f64 {
    if x < FAR {
        1.0 - x * ratio(x)
    } else {
        let tail = continued_fraction(x);
        tail / (x + tail)
    }
}

/// Returns `K(x)`, for `x ≥` [`FAR`].
fn continued_fraction(x: f64) -> f64 {
    (1..=LEVELS).rev().fold(0.0, |tail, level| f64::from(level) / (x + tail))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_close, del, eps, sigma};
    use super::*;
    use crate::reference::cases;
    use proptest::prelude::*;

    #[test]
    fn noise_multiplier_agrees_with_the_reference() {
        for case in cases(include_str!("../../../tests/vectors/gaussian_sigma.json")) {
            let number = |group: &str, name: &str| case[group][name].as_f64().unwrap();
            let found = noise_multiplier(eps(number("input", "eps")), del(number("input", "delta")));
            assert_close(found.value(), number("expected", "sigma"), 1e-13);
            assert_close(found.mu(), number("expected", "mu_gdp"), 1e-13);
            assert_close(found.rho().value(), number("expected", "rho_zcdp"), 1e-13);
        }
    }

    /// Cases beyond the reference file. Values by bisection of Theorem 8 in 100-digit arithmetic.
    #[test]
    fn noise_multiplier_is_right_at_the_extremes() {
        let check = |epsilon: f64, delta: f64, expected: f64| {
            assert_close(noise_multiplier(eps(epsilon), del(delta)).value(), expected, 1e-13);
        };
        check(0.0, 1e-12, 398942280401.4327);
        check(0.0, 0.5, 0.7413011092528009);
        check(0.0, 0.999, 0.15195135636333354);
        check(1e-8, 1e-30, 927600089.3096443);
        check(0.001, 1e-30, 10411.137950399481);
        check(0.001, 1e-12, 5412.302193843927);
        check(0.001, 0.3, 1.2960329894186775);
        check(1.0, 1e-30, 11.083102948976993);
        check(50.0, 1e-30, 0.2646369228793299);
        check(50.0, 1e-5, 0.149760607560836);
        check(50.0, 0.9, 0.08720186477696874);
        check(1e3, 1e-6, 0.02485036668694772);
        check(1e9, 1e-9, 2.2363678868421844e-5);
    }

    #[test]
    fn epsilon_agrees_with_the_reference() {
        for case in cases(include_str!("../../../tests/vectors/gaussian_eps.json")) {
            let number = |group: &str, name: &str| case[group][name].as_f64().unwrap();
            let noise_multiplier = sigma(number("input", "sigma"));
            let found = epsilon(noise_multiplier, del(number("input", "delta")));
            assert_close(found.value(), number("expected", "eps_exact"), 1e-12);
            assert_close(noise_multiplier.mu(), number("expected", "mu"), 1e-15);
            assert_close(noise_multiplier.rho().value(), number("expected", "rho"), 1e-15);
        }
    }

    #[test]
    fn delta_agrees_with_the_reference() {
        for case in cases(include_str!("../../../tests/vectors/gaussian_delta.json")) {
            let number = |group: &str, name: &str| case[group][name].as_f64().unwrap();
            let (noise_multiplier, epsilon) = (sigma(number("input", "sigma")), eps(number("input", "eps")));
            let log_error = log_delta(noise_multiplier, epsilon) - number("expected", "log_delta_exact");
            assert!(log_error.abs() < 3e-13, "{}: {log_error:e}", case["id"]);
            assert_close(delta(noise_multiplier, epsilon), number("expected", "delta_exact"), 3e-13);
        }
    }

    #[test]
    fn delta_at_epsilon_zero_is_the_total_variation() {
        for exponent in -5..=5 {
            let noise_multiplier = 10_f64.powi(exponent);
            let variation = libm::erf(1.0 / (8_f64.sqrt() * noise_multiplier));
            assert_close(delta(sigma(noise_multiplier), eps(0.0)), variation, 1e-14);
        }
    }

    #[test]
    fn epsilon_is_zero_once_delta_is_the_total_variation() {
        assert_eq!(epsilon(sigma(1.0), del(0.383)).value(), 0.0);
        assert!(epsilon(sigma(1.0), del(0.382)).value() > 0.0);
    }

    #[test]
    fn inverses_undo_each_other_over_eleven_decades() {
        for (decade, exponent) in (-5..=5).flat_map(|decade| [-300, -30, -9, -2].map(|e| (decade, e))) {
            let (noise_multiplier, target) = (sigma(10_f64.powi(decade)), del(10_f64.powi(exponent)));
            let cost = epsilon(noise_multiplier, target);
            if cost.value() > 0.0 {
                assert_close(super::noise_multiplier(cost, target).value(), noise_multiplier.value(), 1e-12);
                assert!(log_delta(noise_multiplier, cost) <= target.value().ln());
            }
        }
    }

    #[test]
    fn every_valid_input_gives_a_number() {
        let sigmas = [NoiseMultiplier::MIN, 1e-100, 1e-5, 1.0, 1e5, 1e100, f64::MAX];
        let epsilons = [0.0, f64::MIN_POSITIVE, 1e-5, 1.0, 1e5, 1e300, f64::MAX];
        for noise_multiplier in sigmas.map(sigma) {
            for epsilon in epsilons.map(eps) {
                assert!(log_delta(noise_multiplier, epsilon) <= 0.0, "{noise_multiplier:?} {epsilon:?}");
            }
        }
        for target in [f64::MIN_POSITIVE, 1e-30, 0.5, 1.0 - f64::EPSILON].map(del) {
            for noise_multiplier in sigmas.map(sigma) {
                let found = epsilon_rounded_up(noise_multiplier, target);
                assert!(Epsilon::new(found.value()).is_ok(), "{noise_multiplier:?} {target:?}");
            }
            for epsilon in epsilons.map(eps) {
                let found = noise_multiplier_rounded_up(epsilon, target);
                assert!(NoiseMultiplier::new(found.value()).is_ok(), "{epsilon:?} {target:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn delta_falls_in_sigma_and_epsilon_and_is_convex_in_exp_epsilon(
            log_sigma in -3.0..3.0_f64, units in -3.0..6.0_f64, step in 0.01..1.0_f64,
        ) {
            let noise_multiplier = sigma(log_sigma.exp());
            let mu = noise_multiplier.mu();
            let start = (mu * (units + mu / 2.0)).max(0.0);
            let at = |steps: f64| delta(noise_multiplier, eps(start + steps * step * mu));
            prop_assert!(at(0.0) > at(1.0) && at(1.0) > at(2.0));
            let ratio = (-step * mu).exp();
            prop_assert!(at(0.0) + ratio * at(2.0) > (1.0 + ratio) * at(1.0) * (1.0 - 1e-13));
            let louder = sigma(noise_multiplier.value() * (1.0 + step));
            prop_assert!(at(1.0) > delta(louder, eps(start + step * mu)));
        }

        #[test]
        fn rounding_up_is_safe_and_costs_little(log_sigma in -9.0..9.0_f64, log_target in -60.0..-0.1_f64) {
            let (noise_multiplier, target) = (sigma(log_sigma.exp()), del(log_target.exp()));
            let bound = epsilon_rounded_up(noise_multiplier, target);
            prop_assert!(delta(noise_multiplier, bound) < target.value());
            let calibrated = noise_multiplier_rounded_up(bound, target);
            prop_assert!(calibrated > super::noise_multiplier(bound, target));
            prop_assert!(delta(calibrated, bound) < target.value());
            if bound.value() > 0.0 {
                prop_assert!((calibrated.value() / noise_multiplier.value() - 1.0).abs() < 1e-10);
            }
        }
    }

    #[test]
    fn ratio_agrees_with_60_digit_values() {
        let check = |x: f64, expected: f64| assert_close(ratio(x), expected, 2e-15);
        check(-1.0, 3.4770518117036944);
        check(-0.25, 1.548372621547658);
        check(0.0, 1.2533141373155003);
        check(0.5, 0.8763644564536923);
        check(1.9999, 0.4213849559764444);
        check(2.0, 0.4213692292880545);
        check(3.0, 0.3045902987101033);
        check(5.0, 0.19280810471531576);
        check(10.0, 0.09902859647173193);
        check(100.0, 0.009999000299850106);
        check(1e10, 1e-10);
        assert_eq!(ratio(f64::INFINITY), 0.0);
    }

    #[test]
    fn decrease_agrees_with_60_digit_values() {
        let check = |x: f64, step: f64, expected: f64| assert_close(decrease(x, step), expected, 2e-14);
        check(-0.25, 0.5, 0.5105480456939314);
        check(-5e-6, 1e-5, 1.0000000000083334e-5);
        check(0.0, 0.3, 0.2514767363233445);
        check(0.0, 0.50001, 0.37695529900975294);
        check(1.9, 0.4, 0.059064808076124485);
        check(3.0, 0.1, 0.008399050718576275);
        check(3.0, 1.0, 0.06793791579654263);
        check(10.0, 1e-5, 9.714025841471656e-8);
        check(10.0, 2.0, 0.016262309970362744);
        check(10.0, 2.6, 0.020154261762056546);
        check(50.0, 12.4, 0.003970481112144821);
        check(50.0, 13.0, 0.004122989936917138);
        check(1e4, 1.0, 9.998999800050005e-9);
        check(1e4, 3000.0, 2.3076922532089234e-5);
    }

    #[test]
    fn decreases_add_up_across_both_ways_of_computing_them() {
        for x in [-0.2, 0.0, 1.0, 1.9, 2.5, 7.0, 40.0, 1e3] {
            for step in [0.01, 0.3, 0.5, 0.8, 2.0, 20.0] {
                let parts = decrease(x, step) + decrease(x + step, step);
                assert_close(decrease(x, 2.0 * step), parts, 2e-14);
            }
        }
    }
}
