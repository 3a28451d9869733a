//! Confidence intervals of correlations.
//!
//! The interval holds all ρ for which the estimate is at most z standard deviations of its noise
//! away, to first order and at that ρ. With A = 1/(σᵢσⱼ), B = −ρ/(2σᵢᵢ) and C = −ρ/(2σⱼⱼ), the
//! error of ρ̂ is A dσᵢⱼ + B dσᵢᵢ + C dσⱼⱼ.
//!
//! **Conditional on being shown.** A correlation is shown if both variances exceed [`CLEAR`]·z
//! deviations of their noise, so that the half-width of the interval of each variance is at most
//! half of the variance. Otherwise there is no estimate, and the interval is [−1, 1].
//!
//! - The rule depends on the variances alone, not on the covariance. A rule that hides intervals
//!   for being wide, or all of [−1, 1], shows estimates far from 0 and hides those near 0.
//! - The rule depends on noise: it shows variances that are too large by chance, with estimates too
//!   close to 0. Like the count, both variances therefore select
//!   ([`selection`](crate::estimate::selection)). So z is a quantile of a truncated normal
//!   distribution, and it is bounded. Without the bound, an interval just above the threshold would
//!   be all of [−1, 1] if the estimate is near 0, and narrower if it is far from 0. The errors of
//!   ρ̂ and σ̂ᵢᵢ have the covariance
//!
//! ```text
//! (B τ₂² + 2τ₁² mᵢ (A mⱼ + 2B mᵢ) + τ₀² (mᵢ² − σᵢᵢ) (A mᵢmⱼ + B mᵢ² + C mⱼ²)) / n²
//! ```
//!
//!   because n dσᵢᵢ = dSᵢᵢ − 2mᵢ dsᵢ + (mᵢ² − σᵢᵢ) dn.
//!
//! - All of this is of first order. The relative noise of a variance is at most 1/(2z) by the
//!   rule, a quarter at 95 %. The first term that is left out is ρ/8 times the square of the
//!   difference of both relative errors, at most 0.016ρ on average. The noise of ρ̂ is at least
//!   0.18 at the threshold.

use super::{Interval, IntervalSubject, MomentIntervals, UNIT, settle};
use crate::estimate::selection::{Selection, hybrid_quantiles};
use std::f64::consts::SQRT_2;

/// Minimum of a variance, in half-widths of its interval, for which correlations with its
/// column are shown.
pub(in crate::estimate) const CLEAR: f64 = 2.0;

impl MomentIntervals<'_> {
    /// Returns the estimated correlation of two columns and its interval. If a variance is too
    /// small relative to its noise, there is no estimate, and the interval is [−1, 1]. `None` if
    /// there is no such pair or if only diagonal moments are known.
    pub fn correlation(&self, i: usize, j: usize) -> Option<(Option<f64>, Interval)> {
        self.entry(i, j)?;
        if i == j {
            return Some((Some(1.0), Interval { lower: 1.0, upper: 1.0 }));
        }
        let estimate = self.correlation_estimate(i, j);
        let are_clear = [i, j].iter().all(|&column| self.clearness(column) > 0.0);
        if !are_clear || !estimate.is_finite() {
            return Some((None, UNIT));
        }
        let variance = |correlation| self.correlation_noise(i, j, correlation).powi(2);
        let quantiles = |correlation: f64| self.correlation_quantiles(i, j, correlation.clamp(-1.0, 1.0));
        let within = estimate.clamp(-1.0, 1.0);
        let roots = |z| score(z, estimate, variance);
        let records = settle(roots(self.z), quantiles, roots);
        let interval = match self.subject {
            IntervalSubject::Records => records,
            IntervalSubject::Population { .. } => self.sampled(records, estimate, |freedom| {
                let reach = self.z / (freedom - 2.0).sqrt();
                let end = |shift: f64| (within.atanh() + shift).tanh();
                (within - end(-reach), end(reach) - within)
            }),
        };
        let reach = self.z * self.correlation_noise(i, j, within);
        Some((Some(within), interval.with(within).within(UNIT, reach)))
    }

    fn correlation_estimate(&self, i: usize, j: usize) -> f64 {
        self.covariance[(i, j)] / self.deviation(i) / self.deviation(j)
    }

    fn deviation(&self, column: usize) -> f64 {
        self.covariance[(column, column)].max(0.0).sqrt()
    }

    /// Excess of a variance over the minimum for a correlation, in deviations of its noise.
    fn clearness(&self, column: usize) -> f64 {
        let noise = self.entry_noise(column, column);
        let variance = self.covariance[(column, column)];
        if noise > 0.0 || variance <= 0.0 { variance / noise - self.z * CLEAR } else { f64::INFINITY }
    }

    /// The quantiles down and up at a correlation, given the count and both variances.
    fn correlation_quantiles(&self, i: usize, j: usize, correlation: f64) -> (f64, f64) {
        let noise = self.correlation_noise(i, j, correlation).max(f64::MIN_POSITIVE);
        let of_variance = |column: usize, other: usize| {
            let covariance = self.error_covariance(column, other, correlation);
            Selection::exceeding(
                self.clearness(column),
                covariance / noise / self.entry_noise(column, column),
            )
        };
        let mut selections = self.selections(self.correlation_slope(i, j, correlation) / noise);
        selections.extend([of_variance(i, j), of_variance(j, i)]);
        hybrid_quantiles(self.tail, &selections)
    }

    /// The covariance of the errors of the correlation with `other` and of the variance of a
    /// column.
    fn error_covariance(&self, column: usize, other: usize, correlation: f64) -> f64 {
        let (noise, count) = (self.moments.noise, self.moments.count());
        let [a, b, _] = self.correlation_derivatives(column, other, correlation);
        let (mean, other_mean) = (self.mean[column], self.mean[other]);
        let second = b * noise.second.powi(2);
        let sums = 2.0 * noise.first.powi(2) * mean * (a * other_mean + 2.0 * b * mean);
        let ratio = mean * mean - self.covariance[(column, column)];
        let counts = noise.count.powi(2) * ratio * self.correlation_slope(column, other, correlation);
        (second + sums + counts) / (count * count)
    }

    /// Derivatives of ρ by σᵢⱼ, σᵢᵢ and σⱼⱼ.
    fn correlation_derivatives(&self, i: usize, j: usize, correlation: f64) -> [f64; 3] {
        let deviations = (self.deviation(i), self.deviation(j));
        let square = |deviation: f64| -correlation / (2.0 * deviation * deviation);
        [1.0 / (deviations.0 * deviations.1), square(deviations.0), square(deviations.1)]
    }

    /// Noise of ρ̂: the noises of the second moments, of both sums and of the count enter
    /// independently.
    fn correlation_noise(&self, i: usize, j: usize, correlation: f64) -> f64 {
        let noise = self.moments.noise;
        let [a, b, c] = self.correlation_derivatives(i, j, correlation);
        let means = (self.mean[i], self.mean[j]);
        let second = noise.second * (a / SQRT_2).hypot(b).hypot(c);
        let sums = (a * means.1 + 2.0 * b * means.0).hypot(a * means.0 + 2.0 * c * means.1);
        let ratio = self.correlation_slope(i, j, correlation);
        second.hypot(noise.first * sums).hypot(noise.count * ratio) / self.moments.count()
    }

    /// Change of ρ̂ for an error of the count, times n̂.
    fn correlation_slope(&self, i: usize, j: usize, correlation: f64) -> f64 {
        let [a, b, c] = self.correlation_derivatives(i, j, correlation);
        let means = (self.mean[i], self.mean[j]);
        a * means.0 * means.1 + b * means.0 * means.0 + c * means.1 * means.1
    }
}

/// The values ρ that solve estimate − ρ = ±z √variance(ρ), for a variance quadratic in ρ.
fn score(z: f64, estimate: f64, variance: impl Fn(f64) -> f64) -> Interval {
    let (at_minus, at_zero, at_one) = (variance(-1.0), variance(0.0), variance(1.0));
    let (radius, z) = (z, z * z);
    let scale = 1.0 - z * ((at_one + at_minus) / 2.0 - at_zero);
    if scale <= 0.0 {
        return Interval::UNBOUNDED;
    }
    let centre = estimate + z * (at_one - at_minus) / 4.0;
    let product = estimate * estimate - z * at_zero;
    let reach = (centre * centre - scale * product).max(0.0).sqrt().copysign(radius);
    Interval { lower: (centre - reach) / scale, upper: (centre + reach) / scale }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::bound::Count;
    use crate::estimate::debias::{MomentNoise, NoisyMoments};
    use crate::estimate::intervals::Confidence;
    use crate::moments::{Layout, SecondMoment};
    use crate::reference::{assert_share, layout, moments, noise, released};
    use chacha20::ChaCha8Rng;
    use rand::SeedableRng;

    const NOISE: MomentNoise = noise(0.0, 5.0, 10.0);

    fn two() -> Layout {
        layout(2, SecondMoment::Full)
    }

    /// The intervals of 1000 records with these sums, squares and product.
    fn intervals(coordinates: &[f64; 6]) -> MomentIntervals<'_> {
        let moments = NoisyMoments { layout: two(), coordinates, noise: NOISE };
        moments.intervals(Confidence::default()).unwrap().within_bounds()
    }

    /// Estimates beyond their bounds: correlations of 2 and −2, a negative variance, a mean, a
    /// variance, and a covariance beyond that of the largest variances. Each interval ends at a
    /// bound, and is longer than 0.005.
    #[test]
    fn an_interval_wholly_beyond_its_bounds_is_no_point() {
        let possible = [1000.0, 0.0, 0.0, 200.0, 150.0, 200.0];
        let change = |changes: &[(usize, f64)]| {
            let mut coordinates = possible;
            changes.iter().for_each(|&(at, value)| coordinates[at] = value);
            coordinates
        };
        let check = |coordinates: [f64; 6], interval: fn(&MomentIntervals<'_>) -> Interval, end: f64| {
            let found = intervals(&coordinates);
            let interval = interval(&found);
            assert!(interval.lower == end || interval.upper == end, "{interval:?}");
            assert!(interval.width() > 0.005, "{interval:?}");
        };
        let correlation = |found: &MomentIntervals<'_>| found.correlation(0, 1).unwrap().1;
        check(change(&[(4, 400.0)]), correlation, 1.0);
        check(change(&[(4, -400.0)]), correlation, -1.0);
        check(change(&[(3, -100.0)]), |found| found.covariance(0, 0).unwrap(), 0.0);
        check(change(&[(1, 1100.0), (3, 1300.0)]), |found| found.mean(0).unwrap(), 1.0);
        let full = change(&[(3, 1100.0), (5, 1100.0)]);
        check(full, |found| found.covariance(1, 1).unwrap(), 1.0);
        check(change(&[(3, 999.0), (4, 1100.0), (5, 999.0)]), |found| found.covariance(0, 1).unwrap(), 1.0);
    }

    /// Coverage of the correlations that are shown: of all, and of those with an interval narrower
    /// than [−1, 1]. Columns have this mean and variances of this many deviations of their noise.
    fn shown(correlation: f64, mean: f64, deviations: f64, seed: u64) -> [Count; 2] {
        let variance = deviations * NOISE.second.hypot(2.0 * mean * NOISE.first) / 1000.0;
        let covariance = [variance, correlation * variance, correlation * variance, variance];
        let exact = moments(two(), 1000.0, &[mean, mean], &covariance);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut counts = [Count::default(); 2];
        for _ in 0..8_000 {
            let coordinates = released(two(), &exact, NOISE, &mut random);
            let moments = NoisyMoments { layout: two(), coordinates: &coordinates, noise: NOISE };
            let intervals = moments.intervals(Confidence::default()).unwrap().within_bounds();
            let (Some(_), interval) = intervals.correlation(0, 1).unwrap() else { continue };
            counts[0].add(interval.contains(correlation));
            if interval != UNIT {
                counts[1].add(interval.contains(correlation));
            }
        }
        counts
    }

    /// Near the threshold, noise decides which correlations are shown. The shown ones still have
    /// their nominal coverage, and so have the narrower ones among them. A rule with a lower
    /// threshold that hides the widest intervals would cover only 80 % in some of these settings.
    #[test]
    fn shown_correlations_hold_given_that_noise_selects_them() {
        let mut seed = 0;
        for (correlation, mean) in [(0.95, 0.0), (0.0, 0.0), (0.0, 0.7), (-0.6, 0.7)] {
            for deviations in [3.0, 4.0, 5.0, 8.0] {
                seed += 1;
                for count in shown(correlation, mean, deviations, seed) {
                    assert!(count.trials > 100, "{correlation} {mean} {deviations}: {count:?}");
                    assert_share(count, 0.95..=1.0);
                }
            }
        }
    }
}
