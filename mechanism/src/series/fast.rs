//! Products and quotients of long series by the fast Fourier transform, for judging errors.
//!
//! A product is off by a few times 2^-53 of the product of the norms of its factors in every coefficient. A quotient
//! comes from an inverse found by Newton's method and one step of iterative refinement: what it is off by is then what
//! the last residual was off by, whatever the numerator. Which bits come out may differ between machines: nothing of
//! this may enter a mechanism.

use super::quotient as long_division;
use realfft::RealFftPlanner;

/// Below so many steps the plain methods are used: they are as fast, and exact to the last places.
const PLAIN_STEPS: usize = 1 << 24;

/// Terms of an inverse with which Newton's method begins.
const START: usize = 1 << 10;

/// Largest coefficient that may remain of `numerator − denominator · quotient`, times the sum of the magnitudes of the
/// inverse, relative to the largest coefficient of the quotient.
const RESIDUAL: f64 = 1e-11;

/// First `terms` coefficients of `left · right`.
pub fn product(left: &[f64], right: &[f64], terms: usize) -> Vec<f64> {
    let (left, right) = (&left[..left.len().min(terms)], &right[..right.len().min(terms)]);
    if left.len() * right.len() <= PLAIN_STEPS {
        return super::product(left, right, terms);
    }
    let size = (left.len() + right.len()).next_power_of_two();
    let mut planner = RealFftPlanner::new();
    let (forward, backward) = (planner.plan_fft_forward(size), planner.plan_fft_inverse(size));
    let spectrum = |series: &[f64]| {
        let (mut padded, mut spectrum) = (series.to_vec(), forward.make_output_vec());
        padded.resize(size, 0.0);
        forward.process(&mut padded, &mut spectrum).expect("buffers have the planned lengths");
        spectrum
    };
    let (mut spectra, factors, mut product) = (spectrum(left), spectrum(right), backward.make_output_vec());
    spectra.iter_mut().zip(factors).for_each(|(value, factor)| *value = *value * factor / size as f64);
    // Exactly real at both ends, as the transform of real numbers is.
    for end in [0, spectra.len() - 1] {
        spectra[end].im = 0.0;
    }
    backward.process(&mut spectra, &mut product).expect("buffers have the planned lengths");
    product.resize(terms, 0.0);
    product
}

/// First `terms` coefficients of `numerator / denominator`, as [`super::quotient`] gives them: that is what is used
/// for few terms, and where the inverse grows so much that the transform would lose its digits.
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

/// Newton's method: every round doubles the number of terms that are right.
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

/// Infinite when a term is no number.
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

    /// Sums of squares, as row norms are made of, to 1e-12 of long division.
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

    /// `1/(1 − 1.01x)` grows long past what a transform can hold beside the first terms.
    #[test]
    fn what_grows_is_divided_at_length() {
        let mut denominator = vec![0.0; TERMS];
        denominator[..2].copy_from_slice(&[1.0, -1.01]);
        let found = quotient(&[1.0], &denominator, TERMS);
        assert_eq!(found[20_000], long_division(&[1.0], &denominator[..2], TERMS)[20_000]);
    }
}
