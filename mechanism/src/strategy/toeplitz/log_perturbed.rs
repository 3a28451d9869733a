//! A root of prefix sums for unbounded streams: `(1 − x)^(−1/2)` times a power of a logarithm that
//! makes the column norms finite (Jacobsen and Fawaz, "Private continual counting of unbounded
//! streams", arXiv 2506.15018).
//!
//! The columns of the plain root have a squared norm of at least `(ln n)/π`, which grows without
//! bound. Dividing by a power a > 1/2 of a logarithm makes the norms converge, at the cost of the
//! same power in the decoder. Here
//!
//! `c(x) = (1 − x)^(−1/2) ((16 + L(x))/17)^(−3/2)`, `L(x) = ln(1/(1 − x))/x`.
//!
//! Exponent and shift keep the variance of a sum at every step close to that of the plain root made
//! for exactly that many steps: within a factor 1.75 from 64 to 2²⁰ steps. Exponents near 1/2
//! without a shift are asymptotically the best, but worse by factors of 2.7 to 4 at these lengths.
//! Errors compared with those of the plain root, which knows the horizon n:
//!
//! | n | root mean loss | of the plain root | root max loss | of the plain root |
//! |---|---|---|---|---|
//! | 64 | 2.854 | 2.230 | 3.158 | 2.389 |
//! | 2¹⁴ | 4.846 | 3.993 | 5.224 | 4.155 |
//! | 2²⁰ | 6.591 | 5.318 | 7.024 | 5.479 |
//!
//! *Coefficients.* `16 + L` has no zero off the cut [1, ∞) (L is a Stieltjes function), so Cauchy's
//! formula can be moved onto the cut: `c_k = (1/π) ∫ Im c(1 + u + 0i) (1 + u)^(−k−1) du` over all
//! positive u. The trapezoidal rule in ln u gives `Σ_j W_j q_j^k`, `q_j = 1/(1 + u_j)`, all
//! `W_j > 0`. With nodes a factor e apart it is accurate to four digits. This sum *is* the
//! strategy, so C needs no approximation argument. Its norm over the infinite stream has a closed
//! form: `Σ_k c_k² = Σ_ij W_i W_j/(1 − q_i q_j)`. With nodes down to `e^(−33)` the sum follows the
//! integral for 2⁴⁷ steps. Beyond that the guarantee still holds, but the error grows faster.

use super::{Toeplitz, UnboundedCoefficients, root};
use crate::{
    strategy::{COEFFICIENT_BITS, Kind, MAX_HISTORY_HORIZON, kind::FULL_HISTORY},
    workload::Workload,
};
use std::{f64::consts::PI, sync::Arc};

const SHIFT: f64 = 16.0;
const EXPONENT: f64 = 1.5;

/// Natural logarithms of the smallest and the largest u.
const NODES: std::ops::Range<i32> = -33..33;

/// `log-perturbed-root`: valid for any number of steps, but run only up to [`MAX_HISTORY_HORIZON`].
pub(in crate::strategy) static LOG_PERTURBED_ROOT: Kind = Kind {
    horizon: MAX_HISTORY_HORIZON,
    compared: |kind, purpose| match purpose.workload {
        Workload::Prefix | Workload::Average => Ok(vec![kind.name().up_to(FULL_HISTORY)]),
        _ => Err("for `prefix` and `average`"),
    },
    strategy: Some(|specification| {
        if !matches!(specification.workload, Workload::Prefix | Workload::Average) {
            return Err(root::refused(
                specification.name,
                specification.workload,
                "it is for `prefix` and `average`",
            ));
        }
        let endless = UnboundedCoefficients { coefficients, squared_norm: squared_norm() };
        Ok(Arc::new(Toeplitz::endless(specification.name.clone(), endless)))
    }),
    ..Kind::new("log-perturbed-root", "for running sums without a horizon")
};

/// Weights `W_j` and factors `q_j`.
fn exponentials() -> impl Iterator<Item = (f64, f64)> {
    NODES.map(|w| {
        let (w, u) = (f64::from(w), libm::exp(f64::from(w)));
        let (real, imaginary) = ((SHIFT - w / (1.0 + u)) / (SHIFT + 1.0), PI / (1.0 + u) / (SHIFT + 1.0));
        let angle = EXPONENT * libm::atan2(imaginary, real);
        // Im(i z^−a) = |z|^−a cos(a arg z), with L = (−ln u + πi)/(1 + u) above the cut.
        let size = libm::pow(real * real + imaginary * imaginary, -EXPONENT / 2.0);
        (libm::exp(w / 2.0) / (1.0 + u) * size * libm::cos(angle) / PI, 1.0 / (1.0 + u))
    })
}

/// First `terms` coefficients in units of 2^-[`COEFFICIENT_BITS`], rounded down: each is at most
/// `Σ_j W_j q_j^k`, for any number of terms, because powers are products that are rounded down.
fn coefficients(terms: usize) -> Vec<i64> {
    const UNITS: f64 = (1u64 << COEFFICIENT_BITS) as f64 * (1.0 - 1e-13);
    let (mut powers, factors): (Vec<f64>, Vec<f64>) = exponentials().unzip();
    let next = |_| {
        let sum: f64 = powers.iter().sum();
        powers.iter_mut().zip(&factors).for_each(|(p, q)| *p = (*p * q).next_down().max(0.0));
        (sum * UNITS) as i64
    };
    (0..terms).map(next).collect()
}

/// Upper bound of the squared norm of a column over any number of steps.
fn squared_norm() -> f64 {
    let pair = |(w, q): (f64, f64), (v, r): (f64, f64)| {
        // 1 − q is exact where it is small.
        let (x, y) = (1.0 - q, 1.0 - r);
        w * v / (x + y - x * y)
    };
    let sum: f64 = exponentials().flat_map(|a| exponentials().map(move |b| pair(a, b))).sum();
    sum * (1.0 + 1e-11)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::ExpectedError, series, strategy::build};

    const STEPS: usize = 2000;

    fn real() -> Vec<f64> {
        coefficients(STEPS).into_iter().map(|m| m as f64 / 2f64.powi(40)).collect()
    }

    #[test]
    fn the_sum_of_exponentials_agrees_with_the_perturbed_root() {
        let logarithm: Vec<f64> =
            (0..STEPS).map(|k| if k == 0 { 1.0 } else { 1.0 / (k + 1) as f64 / (SHIFT + 1.0) }).collect();
        let bent = series::power(&logarithm, -EXPONENT, STEPS);
        let expected = series::product(&bent, &series::binomial(-0.5, 1.0, STEPS), STEPS);
        for (k, (found, expected)) in real().into_iter().zip(expected).enumerate() {
            let error = (found - expected).abs();
            assert!(error < 2e-4 * expected, "{k}: {found} {expected}");
        }
    }

    #[test]
    fn an_unbounded_stream_costs_a_bounded_factor() {
        let variance = |name, n| {
            let strategy = build(name, &Workload::Prefix, Some(n)).unwrap();
            ExpectedError::new(&Workload::Prefix, strategy.as_ref(), n).unwrap().max_error.powi(2)
        };
        for n in [64, 1 << 10, 1 << 14] {
            let [endless, bounded] = ["log-perturbed-root", "square-root"].map(|name| variance(name, n));
            assert!(endless > bounded && endless < 1.75 * bounded, "{n}: {endless} {bounded}");
        }
    }

    #[test]
    fn stream_continues_past_its_first_coefficients() {
        let strategy = build("log-perturbed-root", &Workload::Prefix, None).unwrap();
        let (mut encoder, mut decoder) = (strategy.encoder(1), strategy.decoder(1));
        for t in 1..=2100i128 {
            let (mut y, mut x) = ([0], [0.0]);
            encoder.encode(&[t << 40], &mut y).unwrap();
            decoder.decode(&[y[0] as f64 / 2f64.powi(80)], &mut x).unwrap();
            assert!((x[0] - t as f64).abs() < 1e-9 * t as f64, "{t}: {x:?}");
            if [1022, 1023, 1024, 2050].contains(&t) {
                let saved = encoder.save();
                encoder = strategy.encoder(1);
                encoder.restore(&saved).unwrap();
            }
        }
        let sum: i128 =
            (1..=2100).zip(coefficients(2101).iter().rev()).map(|(x, &m)| x * i128::from(m)).sum();
        let (mut y, m) = ([0], i128::from(coefficients(1)[0]));
        encoder.encode(&[7 << 40], &mut y).unwrap();
        assert_eq!(y[0], (sum + 7 * m) << 40);
    }

    #[test]
    fn all_weights_are_positive_and_coefficients_fall() {
        assert!(exponentials().all(|(w, q)| w > 0.0 && q > 0.0 && q < 1.0));
        assert!(coefficients(STEPS).is_sorted_by(|a, b| a > b));
        assert_eq!(coefficients(STEPS)[..70], coefficients(70));
    }

    /// The terms after the first 2000 are summed as an integral.
    #[test]
    fn the_norm_agrees_with_the_infinite_stream() {
        let term = |k: f64| exponentials().map(|(w, q)| w * libm::exp(k * libm::log1p(q - 1.0))).sum::<f64>();
        let head: f64 = (0..STEPS).map(|k| term(k as f64).powi(2)).sum();
        // ∫ c² dk by the midpoint rule in ln k; c² is convex, so this equals the sum to 1e-6.
        let width: f64 = 1e-3;
        let middle = (0..).map(|j| (STEPS as f64 - 0.5) * ((j as f64 + 0.5) * width).exp());
        let tail: f64 = middle.take_while(|&k| k < 1e17).map(|k| term(k).powi(2) * k * width).sum();
        let found = squared_norm();
        assert!((found - head - tail).abs() < 1e-4, "{found} {head} {tail}");
        assert!(found >= real().iter().map(|c| c * c).sum::<f64>());
    }
}
