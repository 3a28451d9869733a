//! Mills' ratio of the normal distribution, and its decrease over an interval without cancellation.
//!
//! `R(x) = Q(x)/φ(x)` with `Q = 1 − Φ` is the normal tail without its exponential decay:
//! `R(x) = √(π/2) erfcx(x/√2)`.
//!
//! Below 2.5 it is computed from `erfc`. From 2.5 on it is computed by Laplace's continued fraction
//! `R(x) = 1/(x + K(x))`, `K(x) = 1/(x + 2/(x + 3/(x + …)))` (Abramowitz & Stegun 26.2.14).

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_PI_2};

/// The least x for which the continued fraction is used.
const FAR: f64 = 2.5;

/// Levels of the continued fraction: enough for the last bit at [`FAR`].
const LEVELS: u32 = 70;

/// Positive nodes and weights of the six-point Gauss–Legendre rule on [−1, 1].
const NODES: [(f64, f64); 3] = [
    (0.238_619_186_083_196_9, 0.467_913_934_572_691_05),
    (0.661_209_386_466_264_5, 0.360_761_573_048_138_6),
    (0.932_469_514_203_152, 0.171_324_492_379_170_35),
];

/// Returns `φ(x)`.
pub(super) fn density(x: f64) -> f64 {
    (-x * x / 2.0).exp() * FRAC_1_SQRT_2 / FRAC_PI_2.sqrt() * FRAC_1_SQRT_2
}

/// Returns `R(x)`, for `x ≥ −1`.
pub(super) fn ratio(x: f64) -> f64 {
    if x < FAR {
        FRAC_PI_2.sqrt() * (x * x / 2.0).exp() * libm::erfc(x * FRAC_1_SQRT_2)
    } else {
        (x + continued_fraction(x)).recip()
    }
}

/// Returns `R(x) − R(x + step)`, for `x ≥ −1`, `step > 0`.
///
/// Where the two terms nearly agree, the code integrates `−R′` instead, by a rule whose error is
/// below the last bit: `−R′` is entire, and changes over lengths of about max(1, x).
pub(super) fn decrease(x: f64, step: f64) -> f64 {
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
    use super::super::tests::assert_close;
    use super::*;

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
