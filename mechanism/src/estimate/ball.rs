//! Confidence intervals of covariances under Gaussian noise: their range over a ball of moments.
//!
//! Let θ be a smooth function of the true moments μ, released as μ + noise, N(0, D). Then
//!
//! ```text
//! { θ(μ′) : (μ̂−μ′)ᵀ D⁻¹ (μ̂−μ′) ≤ z² }
//! ```
//!
//! is the interval of the likelihood ratio for θ. If θ is constant on hyperplanes, as a mean s/n
//! is, the interval contains the truth with probability P(|N(0, 1)| ≤ z), exactly (it is Fieller's
//! interval). A covariance S/n − sᵢsⱼ/n² is constant on surfaces that are nearly flat over the
//! length of the noise, unless the noise of the mean exceeds that of the second moment. In that
//! case intervals of estimate ± z standard deviations lose their level first.
//!
//! For a given count the covariance is linear in S and quadratic in (sᵢ, sⱼ), with the axes
//! (sᵢ±sⱼ)/√2, so its range follows from one Lagrange multiplier. If the count is noisy, the range
//! is found by a search over counts.

use super::interval::Interval;
use std::f64::consts::SQRT_2;

/// Steps of the search for a multiplier, and the relative change that ends it.
const STEPS: u32 = 36;
const ACCURACY: f64 = 1e-11;

/// Steps of the search over counts; each keeps 0.618 of an interval.
const SECTIONS: u32 = 16;

/// Threshold, relative to the spread, below which a value counts as 0.
const NEAR_ZERO: f64 = 1e-6;

/// A count, two sums (equal for one column) and their second moment, with standard deviations.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryMoments {
    pub(super) count: (f64, f64),
    pub(super) sums: (f64, f64),
    pub(super) sum_noise: f64,
    pub(super) second: (f64, f64),
    /// Whether both sums are the same.
    pub(super) same: bool,
}

impl EntryMoments {
    /// Returns the range of S/n − sᵢsⱼ/n² over moments within z standard deviations of the released
    /// ones.
    pub(super) fn covariance_range(&self, z: f64) -> Interval {
        let ((count, noise), z) = (self.count, z.max(0.0));
        if count <= z * noise {
            return Interval::UNBOUNDED;
        }
        let end = |sign| match noise == 0.0 {
            true => self.largest(count, z, sign),
            false => {
                maximum(|u| self.largest(count + u * z * noise, z * (1.0 - u * u).max(0.0).sqrt(), sign))
            }
        };
        Interval { lower: -end(-1.0), upper: end(1.0) }
    }

    /// Returns the largest value of the covariance times `sign` for this count and a ball of this
    /// radius in the other moments.
    fn largest(&self, count: f64, radius: f64, sign: f64) -> f64 {
        let (i, j) = (self.sums.0 / count, self.sums.1 / count);
        let squares = match self.same {
            true => [(-sign, i), (0.0, 0.0)],
            false => [(-0.5 * sign, (i + j) / SQRT_2), (0.5 * sign, (i - j) / SQRT_2)],
        };
        let (second, slope) = (self.second.0 / count, self.second.1 / count);
        let ball = NoiseBall { slope, spread: self.sum_noise / count, radius };
        sign * second + ball.supremum(squares)
    }
}

/// The ball w² + Σ xₖ² ≤ radius², and the coefficients of a function on it.
struct NoiseBall {
    slope: f64,
    spread: f64,
    radius: f64,
}

impl NoiseBall {
    /// Returns the largest value of slope·w + Σₖ hₖ (aₖ + spread·xₖ)² on the ball, given all (hₖ,
    /// aₖ).
    ///
    /// At the maximum (w, x)·m equals half the gradient, with a multiplier m ≥ v hₖ for all k, v =
    /// spread². The norm of the solution falls as m grows, and its reciprocal is concave (Moré &
    /// Sorensen 1983). So Newton's method rises to the multiplier from any smaller one, such as one
    /// at which a single coordinate leaves the ball. Signs of a do not matter, so they are taken
    /// positive and kept away from 0, where the multiplier would not determine x. The remaining
    /// error of m is mostly in the norm, which is then corrected.
    fn supremum(&self, squares: [(f64, f64); 2]) -> f64 {
        let squares = squares.map(|(h, a)| (h, a.abs().max(NEAR_ZERO * self.spread)));
        let variance = self.spread * self.spread;
        let least = squares.iter().map(|(h, _)| h * variance).fold(0.0, f64::max);
        let pulls = squares.map(|(h, a)| h * self.spread * a);
        let gaps = squares.map(|(h, _)| least - h * variance);
        let pull = self.slope / 2.0;
        let solution = |excess: f64| {
            [pull / (least + excess), pulls[0] / (excess + gaps[0]), pulls[1] / (excess + gaps[1])]
        };
        let norm = |[w, x, y]: [f64; 3]| (w * w + x * x + y * y).sqrt();
        let steepest = norm([pull, pulls[0], pulls[1]]);
        if steepest == 0.0 || self.radius == 0.0 {
            return squares.iter().map(|(h, a)| h * a * a).sum();
        }
        let terms = [(pull.abs(), least), (pulls[0].abs(), gaps[0]), (pulls[1].abs(), gaps[1])];
        let alone = terms.map(|(pull, gap)| pull / self.radius - gap);
        let mut excess = alone.into_iter().fold(f64::MIN_POSITIVE, f64::max);
        for _ in 0..STEPS {
            let at = solution(excess);
            let length = norm(at);
            let steepness: f64 = at.iter().zip(terms).map(|(x, (_, gap))| x * x / (excess + gap)).sum();
            let step = (length / self.radius - 1.0) * length * length / steepness;
            // A first coordinate may overflow. Then the step overflows too.
            if step.is_nan() || step <= ACCURACY * excess || step == f64::INFINITY {
                break;
            }
            excess += step;
        }
        let root = solution(excess);
        let [w, x, y] = root.map(|x| x / norm(root) * self.radius);
        let square = |((h, a), x): ((f64, f64), f64)| h * (a + self.spread * x).powi(2);
        self.slope * w + square((squares[0], x)) + square((squares[1], y))
    }
}

/// Returns the largest value on [−1, 1] of a unimodal function.
fn maximum(function: impl Fn(f64) -> f64) -> f64 {
    let golden = (5f64.sqrt() - 1.0) / 2.0;
    let (mut low, mut high) = (-1.0, 1.0);
    let (mut left, mut right) = (-golden * 2.0 + 1.0, golden * 2.0 - 1.0);
    let (mut at_left, mut at_right) = (function(left), function(right));
    for _ in 0..SECTIONS {
        if at_left > at_right {
            (high, right, at_right) = (right, left, at_left);
            left = high - golden * (high - low);
            at_left = function(left);
        } else {
            (low, left, at_left) = (left, right, at_right);
            right = low + golden * (high - low);
            at_right = function(right);
        }
    }
    at_left.max(at_right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chacha20::ChaCha8Rng;
    use rand::SeedableRng;
    use rand_distr::{Distribution, StandardNormal};

    /// Checks that no point of the ball is outside the range, and that the extremes of many points
    /// are close to its ends.
    #[track_caller]
    fn check(entry: EntryMoments, near: f64) {
        let z = 1.7;
        let range = entry.covariance_range(z);
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let (mut lower, mut upper) = (f64::INFINITY, f64::NEG_INFINITY);
        for _ in 0..100_000 {
            let mut point: [f64; 4] = [(); 4].map(|()| StandardNormal.sample(&mut random));
            let noisy = [entry.count.1 > 0.0, true, !entry.same, true];
            point.iter_mut().zip(noisy).for_each(|(x, noisy)| *x *= f64::from(u8::from(noisy)));
            let norm = point.iter().map(|x| x * x).sum::<f64>().sqrt();
            let [n, i, j, s] = point.map(|x| x / norm * z);
            let count = entry.count.0 + n * entry.count.1;
            let first = entry.sums.0 + i * entry.sum_noise;
            let other = if entry.same { first } else { entry.sums.1 + j * entry.sum_noise };
            let value = (entry.second.0 + s * entry.second.1) / count - first * other / (count * count);
            lower = f64::min(lower, value);
            upper = f64::max(upper, value);
        }
        let slack = near * (range.upper - range.lower);
        let rounding = 1e-5 * (range.upper - range.lower);
        assert!(
            range.lower - rounding <= lower && upper <= range.upper + rounding,
            "{range:?} {lower} {upper}"
        );
        assert!(lower <= range.lower + slack && range.upper - slack <= upper, "{range:?} {lower} {upper}");
    }

    #[test]
    fn the_range_is_that_of_the_ball() {
        let entry = EntryMoments {
            count: (100.0, 0.0),
            sums: (80.0, 80.0),
            sum_noise: 5.0,
            second: (110.0, 8.0),
            same: true,
        };
        check(entry, 1e-3);
        check(EntryMoments { sum_noise: 60.0, ..entry }, 1e-3);
        check(EntryMoments { sums: (0.0, 0.0), sum_noise: 200.0, ..entry }, 1e-3);
        check(EntryMoments { count: (100.0, 12.0), sum_noise: 20.0, ..entry }, 1e-2);
        let pair = EntryMoments { sums: (80.0, -30.0), same: false, ..entry };
        check(pair, 1e-2);
        check(EntryMoments { sums: (0.0, 0.0), sum_noise: 90.0, ..pair }, 1e-2);
        check(EntryMoments { count: (100.0, 15.0), sum_noise: 30.0, ..pair }, 2e-2);
    }

    #[test]
    fn without_noise_the_range_is_a_point_and_a_lost_count_gives_none() {
        let entry = EntryMoments {
            count: (10.0, 0.0),
            sums: (5.0, 20.0),
            sum_noise: 0.0,
            second: (30.0, 0.0),
            same: false,
        };
        let range = entry.covariance_range(2.0);
        assert!((range.lower - 2.0).abs() < 1e-12 && range.lower == range.upper, "{range:?}");
        let lost = EntryMoments { count: (10.0, 5.0), ..entry };
        assert_eq!(lost.covariance_range(2.0), Interval::UNBOUNDED);
    }
}
