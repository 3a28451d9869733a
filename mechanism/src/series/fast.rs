//! Products and quotients of long series by the fast Fourier transform, for computing errors.
//!
//! Each coefficient of a product is off by a few times 2^-53 of the product of the norms of its
//! factors. A quotient uses an inverse found by Newton's method and one step of iterative
//! refinement, so its error is that of the last residual, for any numerator. Results may differ in
//! their last bits between machines, so they must not enter a mechanism.

use super::fourier::RealTransform;
use super::quotient as long_division;

/// Maximum number of multiplications for which a product uses the plain method. A quotient uses it
/// for up to 16 times as many. The plain methods are as fast, and accurate to the last digits.
const PLAIN_STEPS: usize = 1 << 24;

/// Number of terms of the inverse that Newton's method starts from.
const START: usize = 1 << 10;

/// Largest allowed coefficient of `numerator − denominator · quotient`, times the sum of the
/// magnitudes of the inverse, relative to the largest coefficient of the quotient.
const RESIDUAL: f64 = 1e-11;

/// First `terms` coefficients of `left · right`.
pub fn product(left: &[f64], right: &[f64], terms: usize) -> Vec<f64> {
    let (left, right) = (&left[..left.len().min(terms)], &right[..right.len().min(terms)]);
    if left.len() * right.len() <= PLAIN_STEPS {
        return super::product(left, right, terms);
    }
    let size = (left.len() + right.len()).next_power_of_two();
    let mut product = RealTransform::new(size).product(left, right);
    product.resize(terms, 0.0);
    product
}

/// First `terms` coefficients of `numerator / denominator`, as [`super::quotient`] returns them.
/// That function is used for few terms, and if the inverse grows so much that the transform would
/// lose its digits.
pub fn quotient(numerator: &[f64], denominator: &[f64], terms: usize) -> Vec<f64> {
    let denominator = &denominator[..denominator.len().min(terms)];
    if denominator.len() * terms <= 16 * PLAIN_STEPS {
        return long_division(numerator, denominator, terms);
    }
    let inverse = inverse(denominator, terms);
    let residual = |quotient: &[f64]| {
        let mut residual = product(denominator, quotient, terms);
        let numerator = numerator.iter().copied().chain(std::iter::repeat(0.0));
        residual.iter_mut().zip(numerator).for_each(|(found, wanted)| *found = wanted - *found);
        residual
    };
    let mut quotient = product(numerator, &inverse, terms);
    let correction = product(&residual(&quotient), &inverse, terms);
    quotient.iter_mut().zip(correction).for_each(|(term, correction)| *term += correction);
    let weight: f64 = inverse.iter().map(|term| term.abs()).sum();
    let error = largest(&residual(&quotient)) * weight;
    if error.is_finite() && error <= RESIDUAL * largest(&quotient) {
        quotient
    } else {
        long_division(numerator, denominator, terms)
    }
}

/// Newton's method: every round doubles the number of correct terms.
fn inverse(series: &[f64], terms: usize) -> Vec<f64> {
    let mut inverse = long_division(&[1.0], series, terms.min(START));
    while inverse.len() < terms {
        let known = inverse.len();
        let wanted = terms.min(2 * known);
        let error = product(&series[..series.len().min(wanted)], &inverse, wanted);
        let correction = product(&error[known..], &inverse, wanted - known);
        inverse.extend(correction.into_iter().map(|term| -term));
    }
    inverse
}

/// Largest magnitude; infinite if a term is NaN.
fn largest(series: &[f64]) -> f64 {
    series
        .iter()
        .fold(0.0, |largest, term| if term.is_nan() { f64::INFINITY } else { term.abs().max(largest) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::{binomial, power};

    const TERMS: usize = 50_000;

    fn check_close(found: &[f64], expected: &[f64], tolerance: f64) {
        assert_eq!(found.len(), expected.len());
        for (k, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert!((found - expected).abs() <= tolerance, "term {k}: {found} against {expected}");
        }
    }

    #[test]
    fn products_are_those_of_the_definition() {
        let (root, inverse) = (binomial(-0.5, 1.0, TERMS), binomial(0.5, 1.0, TERMS));
        check_close(&product(&root, &root, TERMS), &vec![1.0; TERMS], 1e-13);
        check_close(
            &product(&root, &inverse[..700], 600),
            &super::super::product(&root, &inverse, 600),
            1e-15,
        );
        assert_eq!(product(&[1.0, 2.0], &[3.0], 4), [3.0, 6.0, 0.0, 0.0]);
    }

    #[test]
    fn quotients_are_those_of_long_division() {
        let ones = vec![1.0; TERMS];
        let rounded: Vec<f64> =
            binomial(-0.5, 1.0, TERMS).iter().map(|c| (c * 2f64.powi(40)).round() / 2f64.powi(40)).collect();
        let check = |numerator: &[f64], denominator: &[f64], tolerance| {
            let found = quotient(numerator, denominator, TERMS);
            let expected = long_division(numerator, denominator, TERMS);
            check_close(&found, &expected, tolerance);
            let square = |series: &[f64]| series.iter().map(|term| term * term).sum::<f64>();
            let (found, expected) = (square(&found), square(&expected));
            assert!((found - expected).abs() <= 1e-12 * expected, "{found} against {expected}");
        };
        check(&ones, &rounded, 1e-13);
        check(&ones, &binomial(-0.5, 0.99, TERMS), 1e-11);
        check(&[1.0], &rounded, 1e-14);
        check(&[0.1; 10], &power(&[1.0; 10], 0.5, TERMS), 1e-13);
        check(&ones, &rounded[..20_000], 1e-13);
    }

    /// `1/(1 − 1.01x)` grows so much that a transform would lose the digits of the first terms.
    #[test]
    fn growing_quotients_use_long_division() {
        let mut denominator = vec![0.0; TERMS];
        denominator[..2].copy_from_slice(&[1.0, -1.01]);
        let found = quotient(&[1.0], &denominator, TERMS);
        assert_eq!(found[20_000], long_division(&[1.0], &denominator[..2], TERMS)[20_000]);
    }
}
