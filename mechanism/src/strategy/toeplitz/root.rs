//! Square roots of Toeplitz workloads and their inverses, as series.
//!
//! | workload | root |
//! |---|---|
//! | prefix sums (Fichtenberger et al., "Constant matters", 2023) | `(1 − x)^(−1/2)` |
//! | exponential sums | `(1 − βx)^(−1/2)` |
//! | momentum | `((1 − x)(1 − βx))^(−1/2)` |
//! | window of length k | `k^(−1/2) ((1 − x^k)/(1 − x))^(1/2)` |
//!
//! Averages and the workloads of Adam have the root of their Toeplitz part. Coefficients come from
//! binomial products and short recurrences, which keep digits that the square root of a series
//! would lose.

use crate::{
    series,
    strategy::{StrategyError, StrategyName},
    workload::Workload,
};
use std::num::NonZeroUsize;

/// Size of a product above which the root of a window is found by a recurrence, if that is shorter.
const LONG_PRODUCT: usize = 1 << 26;

/// Checks that the Toeplitz part of a workload has a root for `steps` steps whose coefficients are
/// finite and at most 2⁴⁰ times the first.
pub(in crate::strategy) fn check(
    name: &StrategyName,
    workload: &Workload,
    steps: u64,
) -> Result<(), StrategyError> {
    let first = workload.toeplitz_part(1).map(|part| part[0]);
    let reason = match (first, workload.horizon()) {
        (None, _) => "it is not a Toeplitz matrix",
        (Some(first), _) if first <= 0.0 => "its diagonal is not positive",
        (_, Some(rows)) if rows < steps => "it has fewer rows than the horizon",
        (_, Some(_)) if !is_encodable(&root(workload, steps as usize)) => {
            "its square root grows by more than 40 bits"
        }
        _ => return Ok(()),
    };
    Err(refused(name, workload, reason))
}

fn is_encodable(root: &[f64]) -> bool {
    root.iter().all(|c| c.is_finite()) && root[0] >= 0.5f64.powi(super::COEFFICIENT_BITS as i32)
}

pub(super) fn refused(name: &StrategyName, workload: &Workload, reason: &'static str) -> StrategyError {
    StrategyError::Workload { strategy: name.to_string(), workload: workload.to_string(), reason }
}

/// First `terms` coefficients of the square root of the Toeplitz part of a workload, all at most 1
/// in magnitude. A matrix given entry by entry is scaled down by a power of two if necessary, which
/// changes no error.
pub(in crate::strategy) fn root(workload: &Workload, terms: usize) -> Vec<f64> {
    match workload {
        Workload::Prefix | Workload::Average => series::binomial(-0.5, 1.0, terms),
        Workload::Exponential(decay) | Workload::Adam(decay) => series::binomial(-0.5, decay.get(), terms),
        Workload::Momentum(decay) => momentum(-0.5, decay.get(), terms),
        Workload::Window(length) | Workload::WindowMean(length) => {
            let mut root = window(0.5, length.get(), terms);
            root.iter_mut().for_each(|coefficient| *coefficient /= (length.get() as f64).sqrt());
            root
        }
        Workload::Matrix(_) => {
            let mut root = series::square_root(&workload.toeplitz_part(terms).unwrap_or_default(), terms);
            while root.iter().any(|c| c.is_finite() && c.abs() > 1.0) {
                root.iter_mut().for_each(|coefficient| *coefficient /= 2.0);
            }
            root
        }
    }
}

/// First `terms` coefficients of the inverse of the root, times the first coefficient of the root,
/// so that they begin with 1.
pub(super) fn inverse_root(workload: &Workload, terms: usize) -> Vec<f64> {
    match workload {
        Workload::Prefix | Workload::Average => series::binomial(0.5, 1.0, terms),
        Workload::Exponential(decay) | Workload::Adam(decay) => series::binomial(0.5, decay.get(), terms),
        Workload::Momentum(decay) => momentum(0.5, decay.get(), terms),
        Workload::Window(length) | Workload::WindowMean(length) => window(-0.5, length.get(), terms),
        Workload::Matrix(_) => {
            let root = root(workload, terms);
            series::quotient(&root[..1], &root, terms)
        }
    }
}

/// `((1 − x)(1 − βx))^exponent`, a power of a polynomial of degree 2: a recurrence over three
/// terms.
fn momentum(exponent: f64, beta: f64, terms: usize) -> Vec<f64> {
    series::power(&[1.0, -(1.0 + beta), beta], exponent, terms)
}

fn window(exponent: f64, length: u64, terms: usize) -> Vec<f64> {
    let stride =
        NonZeroUsize::try_from(usize::try_from(length).unwrap_or(usize::MAX)).unwrap_or(NonZeroUsize::MIN);
    let factors = terms.div_ceil(stride.get());
    if factors * terms > LONG_PRODUCT && stride.get() < factors {
        return series::power(&vec![1.0; stride.get()], exponent, terms);
    }
    let end = series::stretch(&series::binomial(exponent, 1.0, factors), stride, terms);
    series::product(&end, &series::binomial(-exponent, 1.0, terms), terms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn check_series(found: &[f64], indices: &Value, expected: &Value, relative: f64, absolute: f64) {
        for (index, expected) in indices.as_array().unwrap().iter().zip(expected.as_array().unwrap()) {
            let (index, expected) = (index.as_u64().unwrap() as usize, expected.as_f64().unwrap());
            let error = (found[index] - expected).abs();
            assert!(
                error <= relative * expected.abs() + absolute,
                "term {index}: {} {expected}",
                found[index]
            );
        }
    }

    fn check_sum(terms: impl Iterator<Item = f64>, expected: &Value, relative: f64) {
        let (sum, expected) = (terms.sum::<f64>(), expected.as_f64().unwrap());
        assert!((sum - expected).abs() <= relative * expected, "{sum} against {expected}");
    }

    #[test]
    fn roots_and_their_inverses_agree_with_the_reference() {
        for case in &crate::reference::cases(include_str!("../../../../tests/vectors/toeplitz_sqrt.json")) {
            let (input, expected) = (&case["input"], &case["expected"]);
            let n = input["n"].as_u64().unwrap() as usize;
            let window = input["workload"] == "window";
            let text = match input["workload"].as_str().unwrap() {
                "exp" => format!("exponential:{}", input["param"]),
                "window" => format!("window:{}", input["param"]),
                other => other.to_string(),
            };
            let found = root(&text.parse().unwrap(), n);
            let inverse: Vec<f64> =
                inverse_root(&text.parse().unwrap(), n).iter().map(|c| c / found[0]).collect();
            let (relative, absolute) = if window { (5e-12, 1e-15) } else { (1e-13, 1e-300) };
            check_series(&found, &expected["index"], &expected["sqrt_coef"], relative, absolute);
            let (relative, absolute) = if window { (0.0, 2e-14) } else { (1e-13, 1e-300) };
            check_series(&inverse, &expected["index"], &expected["inv_sqrt_coef"], relative, absolute);
            check_sum(found.iter().copied(), &expected["sum_sqrt"], 1e-13);
            check_sum(found.iter().map(|c| c * c), &expected["sumsq_sqrt"], 1e-13);
            check_sum(inverse.iter().map(|c| c.abs()), &expected["sum_abs_inv"], 1e-12);
            check_sum(inverse.iter().map(|c| c * c), &expected["sumsq_inv"], 1e-12);
        }
    }

    #[test]
    fn a_window_of_one_epoch_is_the_identity() {
        let root = root(&"window:1".parse().unwrap(), 50);
        assert_eq!(root[0], 1.0);
        assert!(root[1..].iter().all(|c| c.abs() < 1e-15));
    }

    #[test]
    fn a_window_longer_than_the_stream_is_a_scaled_prefix() {
        let window = root(&"window:18446744073709551615".parse().unwrap(), 50);
        let prefix = root(&Workload::Prefix, 50);
        assert!(window.iter().zip(prefix).all(|(w, p)| *w == p / 2f64.powi(32)));
    }

    #[test]
    fn inverses_of_banded_roots_have_the_reference_coefficients() {
        for case in &crate::reference::cases(include_str!("../../../../tests/vectors/banded_inverse.json")) {
            let (input, expected) = (&case["input"], &case["expected"]);
            let text = match input["workload"].as_str().unwrap() {
                "exp" => "exponential:0.9",
                "window" => "window:10",
                _ => "prefix",
            };
            let number = |field: &str| input[field].as_u64().unwrap() as usize;
            let banded = root(&text.parse().unwrap(), number("bands"));
            let inverse = series::quotient(&[1.0], &banded, number("n"));
            check_series(&inverse, &expected["index"], &expected["inv_coef"], 1e-11, 1e-15);
            check_sum(banded.iter().map(|c| c * c), &expected["sumsq_coef"], 1e-13);
            check_sum(inverse.iter().map(|c| c * c), &expected["sumsq_inv"], 1e-11);
        }
    }

    #[test]
    fn long_roots_of_windows_agree_with_the_product() {
        let (terms, length) = (30_000, 10);
        for exponent in [0.5, -0.5] {
            let product = window(exponent, length, terms);
            let end = series::power(&vec![1.0; length as usize], exponent, terms);
            assert!(product.iter().zip(end).all(|(a, b)| (a - b).abs() < 2e-14));
        }
        assert!(window(0.5, length, 1 << 17)[1 << 16].abs() < 1e-7);
    }

    #[test]
    fn the_root_of_momentum_is_the_product_of_both_roots() {
        let found = momentum(-0.5, 0.95, 2000);
        let product =
            series::product(&series::binomial(-0.5, 0.95, 2000), &series::binomial(-0.5, 1.0, 2000), 2000);
        assert!(found.iter().zip(product).all(|(a, b)| (a - b).abs() < 1e-12 * b));
    }
}
