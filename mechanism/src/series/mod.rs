//! Truncated formal power series: the arithmetic of lower-triangular Toeplitz matrices.
//!
//! The matrix with `M[t,i] = m_(t−i)` is the series `m_0 + m_1 x + m_2 x² + …`. Products, inverses
//! and square roots of matrices are those of series. A series is the slice of its coefficients;
//! missing ones are 0.
//!
//! This module uses additions, multiplications, divisions and roots in a fixed order. It returns
//! the same bits on every machine, so its results may enter a mechanism. [`fast`] is only for
//! computing errors.

pub mod fast;
pub(crate) mod quadrature;

use std::num::NonZeroUsize;

/// First `terms` coefficients of `(1 − βx)^exponent`, by the binomial recurrence.
///
/// The relative error of a coefficient is at most a few units in the last place per term.
///
/// ```
/// let root = hushflow_mechanism::series::binomial(-0.5, 1.0, 4);
/// assert_eq!(root, [1.0, 0.5, 0.375, 0.3125]);
/// ```
pub fn binomial(exponent: f64, beta: f64, terms: usize) -> Vec<f64> {
    let next = |coefficient: &mut f64, k: usize| {
        let current = *coefficient;
        *coefficient *= beta * ((k as f64 - exponent) / (k + 1) as f64);
        Some(current)
    };
    (0..terms).scan(1.0, next).collect()
}

/// First `terms` coefficients of `series(x^stride)`.
pub fn stretch(series: &[f64], stride: NonZeroUsize, terms: usize) -> Vec<f64> {
    let mut stretched = vec![0.0; terms];
    stretched
        .iter_mut()
        .step_by(stride.get())
        .zip(series)
        .for_each(|(place, &coefficient)| *place = coefficient);
    stretched
}

/// First `terms` coefficients of `left · right`. Each nonzero term of `left` costs one pass over
/// `right`.
pub fn product(left: &[f64], right: &[f64], terms: usize) -> Vec<f64> {
    let mut product = vec![0.0; terms];
    for (shift, &factor) in left.iter().enumerate().take(terms).filter(|&(_, &factor)| factor != 0.0) {
        product[shift..].iter_mut().zip(right).for_each(|(sum, &term)| *sum += factor * term);
    }
    product
}

/// First `terms` coefficients of `numerator / denominator`. The first coefficient of the
/// denominator must not be 0. The numerator `[1.0]` gives the inverse.
///
/// Long division: `terms` passes over the denominator.
pub fn quotient(numerator: &[f64], denominator: &[f64], terms: usize) -> Vec<f64> {
    let Some((first, others)) = denominator.split_first() else { return vec![f64::NAN; terms] };
    let mut remainder = numerator.to_vec();
    remainder.resize(terms, 0.0);
    for t in 0..terms {
        let (done, rest) = remainder.split_at_mut(t + 1);
        done[t] /= first;
        rest.iter_mut().zip(others).for_each(|(term, &coefficient)| *term -= done[t] * coefficient);
    }
    remainder
}

/// First `terms` coefficients of a power of a polynomial whose first coefficient is 1. For
/// `f = p^exponent` the recurrence follows from `p f' = exponent p' f` (Knuth, The Art of Computer
/// Programming, 4.7, exercise 4). Takes `terms` times the degree steps.
///
/// Rounding errors do not grow if all roots of the polynomial are simple and lie on or outside the
/// unit circle.
///
/// ```
/// let root = hushflow_mechanism::series::power(&[1.0, -1.0], -0.5, 4);
/// assert_eq!(root, [1.0, 0.5, 0.375, 0.3125]);
/// ```
pub fn power(polynomial: &[f64], exponent: f64, terms: usize) -> Vec<f64> {
    let mut power: Vec<f64> = Vec::with_capacity(terms);
    for t in 0..terms {
        let earlier = polynomial.iter().enumerate().skip(1).zip(power.iter().rev());
        let sum: f64 = earlier.map(|((j, p), f)| (exponent * j as f64 - (t - j) as f64) * p * f).sum();
        power.push(if t == 0 { 1.0 } else { sum / t as f64 });
    }
    power
}

/// First `terms` coefficients of the square root with positive first coefficient. The first
/// coefficient of `series` must be positive. Takes `terms²/2` steps.
pub fn square_root(series: &[f64], terms: usize) -> Vec<f64> {
    let mut root: Vec<f64> = Vec::with_capacity(terms);
    for t in 0..terms {
        let target = series.get(t).copied().unwrap_or(0.0);
        let coefficient = match root.first() {
            None => target.sqrt(),
            Some(first) => {
                let mixed: f64 = root[1..].iter().zip(root[1..].iter().rev()).map(|(a, b)| a * b).sum();
                (target - mixed) / (2.0 * first)
            }
        };
        root.push(coefficient);
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check_close(found: &[f64], expected: &[f64], tolerance: f64) {
        assert_eq!(found.len(), expected.len());
        for (k, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert!((found - expected).abs() <= tolerance, "term {k}: {found} against {expected}");
        }
    }

    #[test]
    fn binomial_series_are_those_of_the_textbook() {
        assert_eq!(binomial(0.5, 1.0, 5), [1.0, -0.5, -0.125, -0.0625, -0.0390625]);
        assert_eq!(binomial(-1.0, 0.5, 4), [1.0, 0.5, 0.25, 0.125]);
        assert_eq!(binomial(2.0, 1.0, 5), [1.0, -2.0, 1.0, 0.0, 0.0]);
        assert!(binomial(0.5, 1.0, 0).is_empty());
    }

    #[test]
    fn the_generic_root_meets_the_closed_form() {
        for beta in [0.3, 0.9, 1.0] {
            let (root, series) = (binomial(-0.5, beta, 300), binomial(-1.0, beta, 300));
            check_close(&square_root(&series, 300), &root, 1e-13);
            check_close(&product(&root, &root, 300), &series, 1e-13);
            check_close(&quotient(&[1.0], &root, 300), &binomial(0.5, beta, 300), 1e-14);
        }
    }

    #[test]
    fn stretching_spreads_the_terms() {
        let check = |series: &[f64], stride, expected: &[f64]| {
            assert_eq!(stretch(series, NonZeroUsize::new(stride).unwrap(), expected.len()), expected);
        };
        check(&[1.0, 2.0, 3.0], 2, &[1.0, 0.0, 2.0, 0.0]);
        check(&[1.0, 2.0], 1, &[1.0, 2.0, 0.0]);
    }

    #[test]
    fn powers_meet_products() {
        let window = [1.0; 7];
        let end = stretch(&binomial(0.5, 1.0, 100), NonZeroUsize::new(7).unwrap(), 700);
        check_close(&power(&window, 0.5, 700), &product(&end, &binomial(-0.5, 1.0, 700), 700), 1e-14);
        check_close(&power(&window, -1.0, 9), &[1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, -1.0], 1e-15);
        assert!(power(&window, 0.5, 0).is_empty());
    }

    proptest! {
        #[test]
        fn division_undoes_multiplication(
            left in prop::collection::vec(-1.0..1.0f64, 1..20),
            mut right in prop::collection::vec(-0.1..0.1f64, 1..20),
        ) {
            right[0] = 1.0;
            let quotient = quotient(&product(&left, &right, 40), &right, 40);
            for (k, found) in quotient.iter().enumerate() {
                prop_assert!((found - left.get(k).unwrap_or(&0.0)).abs() < 1e-12);
            }
        }
    }
}
