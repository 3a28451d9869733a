//! Sums of smooth functions over long runs of integers, from a few points.

pub(crate) const PLACES: usize = 12;

/// Points in (−1, 1) and weights of Gauss's rule. The points are the zeros of a Legendre
/// polynomial, found by Newton's method.
pub(crate) fn gauss_legendre() -> [[f64; 2]; PLACES] {
    let n = PLACES as f64;
    let legendre = |x: f64| {
        let next = |(last, this): (f64, f64), k: usize| {
            let k = k as f64;
            (this, ((2.0 * k + 1.0) * x * this - k * last) / (k + 1.0))
        };
        let (last, this) = (1..PLACES).fold((1.0, x), next);
        (this, n * (x * this - last) / (x * x - 1.0))
    };
    std::array::from_fn(|j| {
        let guess = libm::cos(std::f64::consts::PI * (j as f64 + 0.75) / (n + 0.5));
        let place = (0..8).fold(guess, |x, _| {
            let (value, slope) = legendre(x);
            x - value / slope
        });
        let (_, slope) = legendre(place);
        [place, 2.0 / ((1.0 - place * place) * slope * slope)]
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
        rule.extend(gauss.iter().rev().map(|[place, part]| [middle + half * place, half * part]));
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

    #[test]
    fn sums_are_those_of_all_terms() {
        let functions: [fn(f64) -> f64; 5] = [
            |_| 1.0,
            |t| 3.0 * t + 7.0,
            |t| 1.0 / t,
            |t| libm::exp(-1e-3 * t) + 1e-3,
            |t| (1.0 + libm::exp(-2e-5 * t)) / (t * t),
        ];
        for (first, last) in [(1 << 12, 1 << 12), (5000, 6023), (5000, 6024), (1 << 14, 3_000_017)] {
            for (number, f) in functions.iter().enumerate() {
                let expected: f64 = (first..=last).map(|t| f(t as f64)).sum();
                let found: f64 = sum_rule(first, last).iter().map(|&[place, weight]| weight * f(place)).sum();
                let error = (found / expected - 1.0).abs();
                assert!(error < 1e-9, "function {number} from {first} to {last}: off by {error:e}");
            }
        }
    }

    #[test]
    fn no_place_is_outside_and_both_ends_are_places() {
        for last in [5000, 6024, 100_000_000] {
            let rule = sum_rule(5000, last);
            assert!(rule.iter().all(|&[place, _]| (5000.0..=last as f64).contains(&place)));
            assert_eq!([rule[0][0], rule[rule.len() - 1][0]], [5000.0, last as f64]);
        }
    }
}
