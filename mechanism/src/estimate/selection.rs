//! Quantiles of an estimate's error, given that released numbers lie in known ranges.
//!
//! Released numbers decide whether a line is shown and how it is flagged. They share noise with the
//! estimates of the line. So the plain interval contains the truth less often among the lines with
//! one flag than among all lines. An interval conditional on the flag corrects this.
//!
//! Let t = (θ̂ − θ)/s be the standardised error of an estimate, and let the flag say that a
//! released number W = E W + w e lies in a range, with Gaussian noise: t and e are standard normal,
//! with a correlation ρ. The part of W that is independent of t is V = W − ρwt. Its mean is
//! unknown, and conditioning on V removes it (Lee, Sun, Sun & Taylor 2016, *Exact post-selection
//! inference*). At a hypothetical θ, W stays in its range as long as t moves from its value by less
//! than the distances of W from the ends of its range, over ρw. So, given the flag and V,
//!
//! ```text
//! t is standard normal, restricted to [t − l, t + u],
//! l = (W − lower)/(ρw),  u = (upper − W)/(ρw)
//! ```
//!
//! for ρ > 0; for ρ < 0 the ends change sides. The ranges of several numbers intersect. The
//! interval is every θ for which the probability F(t) = P(T ≤ t | t − l ≤ T ≤ t + u) is neither
//! below the tail nor above 1 − tail. F grows with t, because the family of truncated normal
//! distributions has a monotone likelihood ratio. So the interval is bounded by two quantiles of t,
//! which depend on l, u and the tail alone. They are ±z if W is far from the ends of its range, and
//! further away on the side that the selection hides. Given the flag, the interval holds the truth
//! at its level: exactly if the noise is Gaussian and the estimate linear, and otherwise to first
//! order.

use super::interval::Interval;
use crate::quantile;
use std::f64::consts::FRAC_1_SQRT_2;

/// A restriction further than this beyond the plain quantile, in deviations, has no effect.
const NEGLIGIBLE: f64 = 6.0;

/// Largest quantile that is searched for; a larger one counts as infinite.
const LARGEST: f64 = 36.0;

/// Share of the tail that is spent on the plain interval around a conditional one.
const PLAIN_SHARE: f64 = 0.1;

/// Halvings of the search.
const HALVINGS: u32 = 34;

/// A released number that decides the flag of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Selection {
    /// Distance to the lower end of its range, in standard deviations of its noise.
    pub below: f64,
    /// Distance to the upper end of its range, in standard deviations of its noise.
    pub above: f64,
    /// Correlation of its noise with that of the estimate.
    pub correlation: f64,
}

impl Selection {
    /// Returns the selection of a number by its range. Without noise it has no effect.
    pub fn by_range(number: f64, range: (f64, f64), noise: f64, correlation: f64) -> Self {
        if noise > 0.0 {
            let (below, above) = ((number - range.0) / noise, (range.1 - number) / noise);
            Selection { below: below.max(0.0), above: above.max(0.0), correlation }
        } else {
            Selection { below: f64::INFINITY, above: f64::INFINITY, correlation: 0.0 }
        }
    }

    /// Returns the same selection for another estimate. The noise of that estimate has this
    /// correlation with the noise of the first one, and is otherwise independent of the number.
    pub fn through(self, correlation: f64) -> Self {
        Selection { correlation: self.correlation * correlation, ..self }
    }

    /// Returns the selection of a number by a lower limit that it exceeds by `below`, in standard
    /// deviations of its noise. A correlation that is NaN counts as 0.
    pub fn exceeding(below: f64, correlation: f64) -> Self {
        let correlation = if correlation.is_nan() { 0.0 } else { correlation.clamp(-1.0, 1.0) };
        Selection { below, above: f64::INFINITY, correlation }
    }
}

/// Returns `(down, up)`: the interval holds every θ from θ̂ − `down`·s to θ̂ + `up`·s, where each
/// side misses with probability `tail`, given the selections. Either may be infinite. One may be
/// negative: then θ̂ itself is outside the interval.
pub fn conditional_quantiles(tail: f64, selections: &[Selection]) -> (f64, f64) {
    conditional_quantiles_beside(quantile::normal(tail), tail, selections)
}

/// The same for a known plain quantile z of the tail. Computing z would take most of the time if a
/// selection has no effect.
pub(super) fn conditional_quantiles_beside(z: f64, tail: f64, selections: &[Selection]) -> (f64, f64) {
    let (mut left, mut right) = (f64::INFINITY, f64::INFINITY);
    for &Selection { below, above, correlation } in selections {
        let size = correlation.abs();
        if size > 0.0 {
            let (down, up) = if correlation > 0.0 { (below, above) } else { (above, below) };
            left = left.min(down / size);
            right = right.min(up / size);
        }
    }
    if left.min(right) > z + NEGLIGIBLE {
        return (z, z);
    }
    (quantile_above(tail, left, right), quantile_above(tail, right, left))
}

/// Returns the quantiles of [`conditional_quantiles`] for a share 1 − [`PLAIN_SHARE`] of the tail,
/// bounded by the plain quantile for the rest of the tail. Conditional quantiles grow without limit
/// if a number is close to the end of its range. The bound keeps the interval useful there: whether
/// it is all that bounds allow does not depend on the estimate (hybrid intervals of Andrews,
/// Kitagawa & McCloskey 2024, *Inference on winners*). Over all releases, the plain interval misses
/// with a tenth of the tail probability. It may miss more often among the selected releases, if
/// these are few.
pub(super) fn hybrid_quantiles(tail: f64, selections: &[Selection]) -> (f64, f64) {
    let plain = quantile::normal(tail);
    if conditional_quantiles(tail, selections) == (plain, plain) {
        return (plain, plain);
    }
    let (down, up) = conditional_quantiles(tail * (1.0 - PLAIN_SHARE), selections);
    let most = quantile::normal(tail * PLAIN_SHARE);
    (down.min(most), up.min(most))
}

/// Returns the interval of a count with this noise, given the selections. It begins at 0 or above.
pub fn count_interval(count: f64, noise: f64, level: f64, selections: &[Selection]) -> Interval {
    let (down, up) = conditional_quantiles((1.0 - level) / 2.0, selections);
    let reach = |z: f64| if noise > 0.0 { z * noise } else { 0.0 };
    let interval = Interval { lower: count - reach(down), upper: count + reach(up) };
    let plain = quantile::normal((1.0 - level) / 2.0) * noise;
    interval.with(count).within(Interval { lower: 0.0, upper: f64::INFINITY }, plain)
}

/// The largest t with P(T > t | t − left ≤ T ≤ t + right) ≥ tail.
fn quantile_above(tail: f64, left: f64, right: f64) -> f64 {
    let (mut low, mut high) = (-LARGEST, LARGEST);
    if exceeds(high, left, right) >= tail {
        return f64::INFINITY;
    }
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        if exceeds(middle, left, right) >= tail { low = middle } else { high = middle }
    }
    low
}

/// P(T > t | t − left ≤ T ≤ t + right) for a standard normal T.
fn exceeds(t: f64, left: f64, right: f64) -> f64 {
    // Differences of tails on the same side of 0 lose no digits.
    let between = |from: f64, to: f64| match from > 0.0 {
        true => upper_tail(from) - upper_tail(to),
        false if to < 0.0 => upper_tail(-to) - upper_tail(-from),
        false => 1.0 - upper_tail(-from) - upper_tail(to),
    };
    let (beyond, all) = (between(t, t + right), between(t - left, t + right));
    match all > 0.0 {
        true => (beyond / all).clamp(0.0, 1.0),
        // The range is a point, or so far out that its probability underflows: T then lies near the
        // end of the range that is closer to 0.
        false if t > 0.0 => 0.0,
        false => 1.0,
    }
}

fn upper_tail(x: f64) -> f64 {
    libm::erfc(x * FRAC_1_SQRT_2) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::bound::Count;
    use crate::reference::{assert_share, normal};
    use chacha20::ChaCha8Rng;
    use rand::SeedableRng;

    #[test]
    fn without_a_selection_quantiles_are_plain() {
        let z = quantile::normal(0.025);
        assert_eq!(conditional_quantiles(0.025, &[]), (z, z));
        let far = Selection { below: 20.0, above: f64::INFINITY, correlation: 1.0 };
        let independent = Selection { below: 0.1, above: 0.1, correlation: 0.0 };
        assert_eq!(conditional_quantiles(0.025, &[far, independent]), (z, z));
    }

    #[test]
    fn a_reversed_correlation_exchanges_the_sides() {
        let selection = Selection { below: 0.5, above: 2.0, correlation: 0.8 };
        let (down, up) = conditional_quantiles(0.025, &[selection]);
        let reversed = Selection { correlation: -0.8, ..selection };
        assert_eq!(conditional_quantiles(0.025, &[reversed]), (up, down));
        assert!(down > up, "{down} {up}");
    }

    /// The estimate is the selecting number, or shares noise with it. Given the selection, each
    /// side misses the truth at the rate of its tail, at every distance of the truth from the
    /// threshold. In one setting the plain interval nearly always misses.
    #[test]
    fn selected_estimates_cover_at_their_level() {
        let mut random = ChaCha8Rng::seed_from_u64(4);
        for correlation in [1.0f64, 0.6, -0.9] {
            for (distance, range) in [(0.0, 4.0), (-2.0, 4.0), (3.0, f64::INFINITY), (-1.5, f64::INFINITY)] {
                let (mut sides, mut plain) = ([Count::default(); 2], Count::default());
                while plain.trials < 4_000 {
                    let (t, other) = (normal(&mut random), normal(&mut random));
                    let number =
                        distance + correlation * t + (1.0 - correlation * correlation).sqrt() * other;
                    if !(0.0..=range).contains(&number) {
                        continue;
                    }
                    let selection = Selection::by_range(number, (0.0, range), 1.0, correlation);
                    let (down, up) = conditional_quantiles(0.025, &[selection]);
                    sides[0].add(t <= down);
                    sides[1].add(-up <= t);
                    plain.add(t.abs() <= 1.96);
                }
                sides.into_iter().for_each(|held| assert_share(held, 0.975..=0.975));
                if correlation == 1.0 && distance == -2.0 {
                    assert!(plain.hits * 10 < plain.trials, "{plain:?}");
                }
            }
        }
    }
}
