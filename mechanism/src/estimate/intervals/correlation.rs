//! Confidence intervals of correlations.
//!
//! The interval holds all ρ for which the estimate is at most z standard deviations of its noise
//! away, to first order and at that ρ: with A = 1/(σᵢσⱼ), B = −ρ/(2σᵢᵢ) and C = −ρ/(2σⱼⱼ), the
//! error of ρ̂ is A dσᵢⱼ + B dσᵢᵢ + C dσⱼⱼ.
//!
//! **Given that it is narrower than [−1, 1].** It is all of [−1, 1] unless both variances exceed
//! z/√2 deviations of their noise; below, the roots for z need not exist. So noise has a say in
//! which correlations are narrower: they are those whose variances are too large by chance, and
//! whose estimates are too close to 0. Both variances are therefore selecting numbers, as the count
//! is ([`selection`](crate::estimate::selection)), and z is that of a restricted normal law. With
//! n dσᵢᵢ = dSᵢᵢ − 2mᵢ dsᵢ + (mᵢ² − σᵢᵢ) dn, the covariance of the errors of ρ̂ and σ̂ᵢᵢ is
//!
//! ```text
//! (B τ₂² + 2τ₁² mᵢ (A mⱼ + 2B mᵢ) + τ₀² (mᵢ² − σᵢᵢ) (A mᵢmⱼ + B mᵢ² + C mⱼ²)) / n²
//! ```
//!
//! All of this is of first order, so close to the threshold the level is approximate.

use super::{Interval, IntervalSubject, MomentIntervals, UNIT, settle};
use crate::estimate::selection::{Selection, conditional_quantiles};
use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};

impl MomentIntervals<'_> {
    /// Returns the estimated correlation of two columns and its interval, which is [−1, 1] if
    /// nothing is known; `None` if there is no such pair or if only diagonal moments are known.
    pub fn correlation(&self, i: usize, j: usize) -> Option<(f64, Interval)> {
        self.entry(i, j)?;
        if i == j {
            return Some((1.0, Interval { lower: 1.0, upper: 1.0 }));
        }
        let Some(interval) = self.uncut_correlation(i, j) else { return Some((0.0, UNIT)) };
        let within = self.correlation_estimate(i, j).clamp(-1.0, 1.0);
        let reach = self.z * self.correlation_noise(i, j, within);
        Some((within, interval.with(within).within(UNIT, reach)))
    }

    /// The interval before it is cut to [−1, 1]; `None` unless both variances are clear.
    pub(super) fn uncut_correlation(&self, i: usize, j: usize) -> Option<Interval> {
        let estimate = self.correlation_estimate(i, j);
        let are_clear = [i, j].iter().all(|&column| self.clearness(column) > 0.0);
        if !are_clear || !estimate.is_finite() {
            return None;
        }
        let variance = |correlation| self.correlation_noise(i, j, correlation).powi(2);
        let quantiles = |correlation: f64| self.correlation_quantiles(i, j, correlation.clamp(-1.0, 1.0));
        let within = estimate.clamp(-1.0, 1.0);
        let roots = |z| score(z, estimate, variance);
        let records = settle(roots(self.z), quantiles, roots);
        Some(match self.subject {
            IntervalSubject::Records => records,
            IntervalSubject::Population { .. } => self.sampled(records, estimate, |freedom| {
                let reach = self.z / (freedom - 2.0).sqrt();
                let end = |shift: f64| (within.atanh() + shift).tanh();
                (within - end(-reach), end(reach) - within)
            }),
        })
    }

    fn correlation_estimate(&self, i: usize, j: usize) -> f64 {
        self.covariance[(i, j)] / self.deviation(i) / self.deviation(j)
    }

    fn deviation(&self, column: usize) -> f64 {
        self.covariance[(column, column)].max(0.0).sqrt()
    }

    /// How far a variance exceeds the least one for a narrow interval, in deviations of its noise.
    fn clearness(&self, column: usize) -> f64 {
        let noise = self.entry_noise(column, column);
        let variance = self.covariance[(column, column)];
        if noise > 0.0 || variance <= 0.0 { variance / noise - self.z * FRAC_1_SQRT_2 } else { f64::INFINITY }
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
        let by_count = self.selection(self.correlation_slope(i, j, correlation) / noise);
        conditional_quantiles(self.tail, &[by_count, of_variance(i, j), of_variance(j, i)])
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

    /// How far an error of the count moves ρ̂, over n̂.
    fn correlation_slope(&self, i: usize, j: usize, correlation: f64) -> f64 {
        let [a, b, c] = self.correlation_derivatives(i, j, correlation);
        let means = (self.mean[i], self.mean[j]);
        a * means.0 * means.1 + b * means.0 * means.0 + c * means.1 * means.1
    }
}

/// The ρ with estimate − ρ = ±z √variance(ρ), for a variance that is quadratic in ρ.
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
    use crate::estimate::debias::{MomentNoise, NoisyMoments};
    use crate::estimate::intervals::Confidence;
    use crate::moments::{Layout, SecondMoment};
    use crate::reference::{layout, moments, noise, released};
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

    /// A correlation of 2, a negative variance, a mean beyond its bound, and a covariance beyond
    /// that of the largest variances: each interval keeps a length, and the line is marked.
    #[test]
    fn an_interval_wholly_beyond_its_bounds_is_no_point() {
        let possible = [1000.0, 0.0, 0.0, 200.0, 150.0, 200.0];
        assert!(!intervals(&possible).is_beyond_bounds());
        let change = |changes: &[(usize, f64)]| {
            let mut coordinates = possible;
            changes.iter().for_each(|&(at, value)| coordinates[at] = value);
            coordinates
        };
        let check = |coordinates: [f64; 6], interval: fn(&MomentIntervals<'_>) -> Interval, end: f64| {
            let found = intervals(&coordinates);
            assert!(found.is_beyond_bounds(), "{coordinates:?}");
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

    /// Number of correlations that are narrower than [−1, 1], of those that hold the truth, and of
    /// all lines, for variances of this many deviations of their noise.
    fn narrow(correlation: f64, deviations: f64, seed: u64) -> (f64, f64, f64) {
        let variance = deviations * NOISE.second / 1000.0;
        let covariance = [variance, correlation * variance, correlation * variance, variance];
        let exact = moments(two(), 1000.0, &[0.0, 0.0], &covariance);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let (mut narrow, mut held, mut all) = (0.0, 0.0, 0.0);
        for _ in 0..8_000 {
            let coordinates = released(two(), &exact, NOISE, &mut random);
            let moments = NoisyMoments { layout: two(), coordinates: &coordinates, noise: NOISE };
            let intervals = moments.intervals(Confidence::default()).unwrap().within_bounds();
            let (_, interval) = intervals.correlation(0, 1).unwrap();
            all += f64::from(u8::from(interval.contains(correlation)));
            if interval != UNIT {
                narrow += 1.0;
                held += f64::from(u8::from(interval.contains(correlation)));
            }
        }
        (narrow, held, all / 8_000.0)
    }

    /// Near the threshold noise decides which correlations are narrow. They hold their level all
    /// the same: shares are at most 5.2 standard errors below it, a false alarm of 10⁻⁷ for each
    /// of ten comparisons.
    #[test]
    fn narrow_correlations_hold_given_that_noise_selects_them() {
        for (seed, deviations) in [1.0, 1.5, 2.0, 3.0, 6.0].into_iter().enumerate() {
            let (narrow, held, all) = narrow(0.95, deviations, seed as u64);
            assert!(narrow > 100.0, "{deviations}: {narrow}");
            let error = |share: f64, number: f64| 5.2 * (share * (1.0 - share) / number).sqrt();
            assert!(held / narrow > 0.95 - error(0.95, narrow), "{deviations}: {held} of {narrow}");
            assert!(all > 0.95 - error(0.95, 8_000.0), "{deviations}: {all}");
        }
    }
}
