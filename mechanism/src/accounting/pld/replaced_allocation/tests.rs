//! Compares divergences with closed forms, an integral and simulated outputs.

use super::*;
use crate::accounting::gaussian;
use crate::accounting::tests::{assert_close, eps, sigma};

fn bound(mu: f64, bins: u64, epsilon: f64) -> f64 {
    let Bounded { value, error } = DivergenceBound::new(mu, bins).at(epsilon);
    assert!(error < 1e-9, "{mu} {bins} {epsilon}: {error}");
    value + error
}

/// One bin is the Gaussian mechanism of twice the distance.
#[test]
fn one_bin_agrees_with_the_closed_form() {
    for (mu, epsilon) in [(1.0, 0.5), (0.5, 0.0), (0.05, 0.1), (2.0, 3.0), (1e-3, 1e-3)] {
        let expected = gaussian::delta(sigma(0.5 / mu), eps(epsilon));
        let found = bound(mu, 1, epsilon);
        assert_close(found, expected, 1e-4);
        assert!(found >= expected, "{mu} {epsilon}: {found} {expected}");
    }
}

/// E(Z₁ + Z₂)₊ by the trapezoidal rule over x₁, with the closed form of E(s + Z)₊.
#[test]
fn two_bins_agree_with_an_integral() {
    for (mu, epsilon) in [(1.0_f64, 0.5_f64), (0.2, 0.1), (2.0, 1.5), (0.5, 0.0)] {
        let c = epsilon.exp();
        let term = |x: f64, sign: f64| (sign * mu * x - mu * mu / 2.0).exp();
        let call = |s: f64| {
            // The root of s + Z, with a = e^(μx − μ²/2): a + s − c e^(−μ²)/a = 0.
            let product = c * (-mu * mu).exp();
            let root = (s * s / 4.0 + product).sqrt();
            let a = if s > 0.0 { product / (s / 2.0 + root) } else { root - s / 2.0 };
            let x = (a.ln() + mu * mu / 2.0) / mu;
            s * upper(x) + upper(x - mu) - c * upper(x + mu)
        };
        let width = 1.0 / 256.0;
        let points = (-3072..=3072).map(|i| f64::from(i) * width);
        let integral: f64 =
            points.map(|x| call(term(x, 1.0) - c * term(x, -1.0)) * (-x * x / 2.0).exp()).sum();
        let expected = integral * width / (2.0 * std::f64::consts::PI).sqrt() / 2.0;
        let found = bound(mu, 2, epsilon);
        assert_close(found, expected, 1e-3);
        assert!(found >= expected * (1.0 - 1e-9), "{mu} {epsilon}: {found} {expected}");
    }
}

/// The bound of many bins is within six standard deviations of a mean over outputs.
#[test]
fn many_bins_agree_with_outputs() {
    use rand::{RngExt, SeedableRng};
    const OUTPUTS: u32 = 100_000;
    let mut random = chacha20::ChaCha8Rng::seed_from_u64(1);
    for (mu, bins, epsilon) in [(1.0, 20_u64, 0.3), (0.4, 50, 0.05)] {
        let loss = |random: &mut chacha20::ChaCha8Rng| {
            let mut sums = [0.0; 2];
            for bin in 0..bins {
                let x: f64 = random.sample(rand_distr::StandardNormal);
                let x = if bin == 0 { x + mu } else { x };
                sums[0] += (mu * x).exp();
                sums[1] += (-mu * x).exp();
            }
            (sums[0] / sums[1]).ln()
        };
        let excess = (0..OUTPUTS).map(|_| -(epsilon - loss(&mut random)).min(0.0).exp_m1());
        let mean = excess.sum::<f64>() / f64::from(OUTPUTS);
        let found = bound(mu, bins, epsilon);
        // Values in [0, 1]: their variance is at most the mean. Six deviations: 2e-9.
        let deviation = (mean / f64::from(OUTPUTS)).sqrt();
        assert!((found - mean).abs() < 6.0 * deviation, "{mu} {bins}: {found} {mean} {deviation}");
    }
}

/// Chords are above the bounds at other ε, and near them.
#[test]
fn chords_dominate() {
    let pair = ReplacedAllocation::new(sigma(1.0), 10).unwrap();
    for epsilon in [0.0, 0.01, 0.123, 0.7, 2.2] {
        for sign in [1.0, -1.0] {
            let Tail { p, q, .. } = pair.tail(sign * epsilon);
            let (found, exact) = (p - (sign * epsilon).exp() * q, bound(1.0, 10, epsilon));
            let expected = if sign > 0.0 { exact } else { 1.0 - (-epsilon).exp() + (-epsilon).exp() * exact };
            assert!(found >= expected * (1.0 - 1e-9), "{sign} {epsilon}: {found} {expected}");
            assert_close(found, expected, 3e-2);
        }
    }
    assert!((pair.above[0][0] - 1.0).abs() < 1e-9 && pair.above[0][1] <= 1.0 + 1e-9);
}
