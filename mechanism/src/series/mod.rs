//! Truncated formal power series: the arithmetic of lower-triangular Toeplitz matrices.
//!
//! The matrix with `M[t,i] = m_(t−i)` is the series `m_0 + m_1 x + m_2 x² + …`. Products, inverses
//! and square roots of matrices are those of series. A series is the slice of its coefficients;
//! missing ones are 0.
//!
//! This module uses additions, multiplications, divisions and roots in a fixed order. It returns
//! the same bits on every machine, so its results may enter a mechanism. [`fast`] and its
//! transforms are only for computing errors, and so are the rules that sum smooth functions over
//! long runs of integers.

use std::num::NonZeroUsize;

pub mod fast;
pub(crate) mod fourier;

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
        .for_each(|(position, &coefficient)| *position = coefficient);
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

/// Coefficients of the inverse of a series, up to the last above the share `faded` of the largest;
/// at most `terms`. The first coefficient of the series must not be 0.
pub(crate) fn fading_inverse(series: &[f64], terms: usize, faded: f64) -> Vec<f64> {
    let Some((first, others)) = series.split_first() else { return Vec::new() };
    let (mut inverse, mut counted): (Vec<f64>, _) = (vec![1.0 / first], 1);
    let mut largest = inverse[0].abs();
    // Later terms depend only on the last terms, as many as the series has. If those are
    // negligible, so are all later ones.
    while inverse.len() < terms && inverse.len() < counted + others.len() {
        let earlier: f64 = others.iter().zip(inverse.iter().rev()).map(|(c, q)| c * q).sum();
        let next = -earlier / first;
        largest = largest.max(next.abs());
        inverse.push(next);
        let counts = next.is_nan() || next.abs() > faded * largest;
        if counts {
            counted = inverse.len();
        }
    }
    inverse.truncate(counted.min(terms));
    inverse
}

/// Values at `x`, between 0 and 1, of the four cubic B-splines with knots at the integers that are
/// not 0 there, from the left.
pub(crate) fn cubic_splines(x: f64) -> [f64; 4] {
    let (after, before) = (x, 1.0 - x);
    let inner = |x: f64| 2.0 / 3.0 - x * x * (1.0 - 0.5 * x);
    let outer = |x: f64| x * x * x / 6.0;
    [outer(before), inner(after), inner(before), outer(after)]
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

pub(crate) const GAUSS_POINTS: usize = 12;

/// Points in (−1, 1) and weights of Gauss's rule. The points are the zeros of a Legendre
/// polynomial, found by Newton's method.
pub(crate) fn gauss_legendre() -> [[f64; 2]; GAUSS_POINTS] {
    let n = GAUSS_POINTS as f64;
    let legendre = |x: f64| {
        let next = |(last, this): (f64, f64), k: usize| {
            let k = k as f64;
            (this, ((2.0 * k + 1.0) * x * this - k * last) / (k + 1.0))
        };
        let (last, this) = (1..GAUSS_POINTS).fold((1.0, x), next);
        (this, n * (x * this - last) / (x * x - 1.0))
    };
    std::array::from_fn(|j| {
        let guess = libm::cos(std::f64::consts::PI * (j as f64 + 0.75) / (n + 0.5));
        let position = (0..8).fold(guess, |x, _| {
            let (value, slope) = legendre(x);
            x - value / slope
        });
        let (_, slope) = legendre(position);
        [position, 2.0 / ((1.0 - position * position) * slope * slope)]
    })
}

/// Points and weights with `Σ_(first ≤ t ≤ last) f(t) = Σ weight·f(point)` to a relative error of
/// about 1e-13, for functions that are smooth on the scale of t from `first` on, where `first` is
/// at least 2¹². All points lie in the range; its two ends are among them.
///
/// Euler–Maclaurin: the sum is the integral, plus half of f at both ends, plus a twelfth of the
/// increase of f′. The remainder is `f‴/720`, of order `f/t³`. Gauss's rule takes the integral over
/// ranges that at most double t.
pub(crate) fn sum_rule(first: u64, last: u64) -> Vec<[f64; 2]> {
    let (first, last) = (first as f64, last as f64);
    if last - first < 1024.0 {
        return (0..=(last - first) as u64).map(|step| [first + step as f64, 1.0]).collect();
    }
    // f′ from one-sided differences of three points.
    let slope = [-3.0, 4.0, -1.0].map(|part: f64| -part / 24.0);
    let mut rule: Vec<[f64; 2]> = (0..3).map(|step| [first + step as f64, slope[step]]).collect();
    rule[0][1] += 0.5;
    let ranges = libm::ceil(libm::log2(last / first)).max(1.0);
    let ratio = libm::pow(last / first, 1.0 / ranges);
    let gauss = gauss_legendre();
    let (mut start, mut ended) = (first, 0.0);
    while ended < ranges {
        ended += 1.0;
        let end = if ended == ranges { last } else { start * ratio };
        let (middle, half) = (0.5 * (start + end), 0.5 * (end - start));
        rule.extend(gauss.iter().rev().map(|[position, part]| [middle + half * position, half * part]));
        start = end;
    }
    rule.extend((0..3).rev().map(|step| [last - step as f64, slope[step]]));
    if let Some([_, weight]) = rule.last_mut() {
        *weight += 0.5;
    }
    rule
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
    fn binomial_series_agree_with_textbook_values() {
        assert_eq!(binomial(0.5, 1.0, 5), [1.0, -0.5, -0.125, -0.0625, -0.0390625]);
        assert_eq!(binomial(-1.0, 0.5, 4), [1.0, 0.5, 0.25, 0.125]);
        assert_eq!(binomial(2.0, 1.0, 5), [1.0, -2.0, 1.0, 0.0, 0.0]);
        assert!(binomial(0.5, 1.0, 0).is_empty());
    }

    #[test]
    fn square_roots_agree_with_the_closed_form() {
        for beta in [0.3, 0.9, 1.0] {
            let (root, series) = (binomial(-0.5, beta, 300), binomial(-1.0, beta, 300));
            check_close(&square_root(&series, 300), &root, 1e-13);
            check_close(&product(&root, &root, 300), &series, 1e-13);
            check_close(&quotient(&[1.0], &root, 300), &binomial(0.5, beta, 300), 1e-14);
        }
    }

    #[test]
    fn a_fading_inverse_ends_at_negligible_terms() {
        assert_eq!(fading_inverse(&[2.0], 9, 0.5f64.powi(48)), [0.5]);
        assert_eq!(fading_inverse(&[1.0, 0.5], 3, 0.5f64.powi(48)), [1.0, -0.5, 0.25]);
        assert_eq!(fading_inverse(&[1.0, 0.5], 999, 0.5f64.powi(48)).len(), 48);
        assert_eq!(fading_inverse(&[1.0, 0.0, 0.0, 0.5], 999, 0.5f64.powi(48)).len(), 3 * 47 + 1);
        assert_eq!(fading_inverse(&[1.0, -2.0], 99, 0.5f64.powi(48)).len(), 99);
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
    fn powers_agree_with_repeated_products() {
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

    #[test]
    fn sums_equal_those_of_all_terms() {
        let functions: [fn(f64) -> f64; 5] = [
            |_| 1.0,
            |t| 3.0 * t + 7.0,
            |t| 1.0 / t,
            |t| libm::exp(-1e-3 * t) + 1e-3,
            |t| (1.0 + libm::exp(-2e-5 * t)) / (t * t),
        ];
        for (first, last) in [(1 << 12, 1 << 12), (5000, 6023), (5000, 6024), (1 << 14, 3_000_017)] {
            for (number, f) in functions.iter().enumerate() {
                let blocks = (first..=last).step_by(1024);
                let block = |start: u64| (start..=last).take(1024).map(|t| f(t as f64)).sum::<f64>();
                let expected: f64 = blocks.map(block).sum();
                let found: f64 =
                    sum_rule(first, last).iter().map(|&[position, weight]| weight * f(position)).sum();
                let error = (found / expected - 1.0).abs();
                assert!(error < 1e-12, "function {number} from {first} to {last}: off by {error:e}");
            }
        }
    }

    #[test]
    fn bin_positions_cover_exactly_their_range() {
        for last in [5000, 6024, 100_000_000] {
            let rule = sum_rule(5000, last);
            assert!(rule.iter().all(|&[position, _]| (5000.0..=last as f64).contains(&position)));
            assert_eq!([rule[0][0], rule[rule.len() - 1][0]], [5000.0, last as f64]);
        }
    }
}
