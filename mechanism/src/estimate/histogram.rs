//! Counts, shares, distribution functions and quantiles from the noisy bins of one histogram.
//!
//! The bins n_b, b = 1 … B, have independent normal noise of deviation τ.
//!
//! # Consistency with the count
//! Where each record has a bin, the sum of the bins is the count. The count is released too, as c
//! with noise of deviation κ. Groups of bins may be released as well, as the nodes of a tree.
//! Generalised least squares makes all of them agree (`histogram/tree.rs`). For bins and a count it
//! is
//!
//! ```text
//! n̂_b = n_b + w(c − Σn)      w = τ²/(κ² + Bτ²)      covariance τ²(I − w·11ᵀ)
//! ```
//!
//! The noise of a bin falls little, but that of the total T = Σn̂ falls from τ√B to less than κ.
//!
//! # Shares
//! Let p be the share of the records in the first k bins, or in one bin, and N their noisy number.
//! Then N − pT is normal with mean 0 and the variance
//!
//! ```text
//! v(p) = s + (a − p)²·var T   [+ h·T·p(1−p) for the population]
//! ```
//!
//! with a and s of `histogram/tree.rs`, and h the heaviest weight of a record. So
//! {p : (N − pT)² ≤ z²v(p)}, an interval between the roots of a quadratic, contains p with the
//! probability of |N(0, 1)| ≤ z (Fieller 1954).
//!
//! # Bands of the distribution function
//! F_k is the share of the first k bins. The intervals of all F_k, k < B, hold together if z is
//! replaced by the quantile of `max_k |D_k|/√v(F_k)`, where D is the noise of N_k − F_k·T. The
//! quantile depends on F only slightly, so F̂ stands in for F. It is the quantile of a fixed sample
//! of noise, so equal releases have equal bands. Above a level of 99.9 %, where the sample is too
//! small, z is at least that of Bonferroni's inequality over the inner edges. F is monotone, so the
//! band may be tightened to monotone ends: no monotone F is lost.
//!
//! F̂ is the isotonic regression of N_k/T (pool adjacent violators), and shares of single bins are
//! those of the nearest counts that are at least 0 and sum to T.
//!
//! # Quantiles
//! The q-quantile lies in the bin b with F_{b−1} < q ≤ F_b. Edges are tested from both ends
//! inwards, up to the first whose test does not decide on which side of q its F lies. Each test
//! compares N_k − qT with 0, at a tail of (1 − level)/2. Only a wrong test at the bin's own edge
//! loses the quantile, so both tails together are at most 1 − level, however many edges are tested.
//! The interval is as coarse as the bins, and holds for any distribution inside them. The estimate
//! interpolates F̂ within the bin.
//!
//! # Conditional on the quality
//! A line reports shares only if T clearly exceeds its noise, so noise influences which lines have
//! shares. N = aT + ε with ε independent of T, so N and N − pT share the noise a·e and (a − p)·e
//! with the error e of T. Intervals of counts, shares and quantiles are those given the range of T
//! ([`selection`](super::selection)).

use super::debias::MIN_COUNT_TO_NOISE;
use super::interval::{Confidence, Interval, IntervalSubject};
use super::intervals::settle;
use super::selection::{Selection, conditional_quantiles, conditional_quantiles_beside};
use super::share::Share;
use crate::quantile;
use band::critical_value;
use tree::{NoiseOfSum, NoiseTree};

mod band;
#[cfg(test)]
mod tests;
mod tree;

/// Range of every share.
const SHARES: Interval = Interval { lower: 0.0, upper: 1.0 };

/// The bins of one histogram.
#[derive(Clone, Debug, PartialEq)]
pub struct NoisyHistogram {
    /// n̂: the estimated counts of the bins.
    counts: Vec<f64>,
    total: f64,
    tree: NoiseTree,
}

/// Returns the numbers of nodes of the levels of a tree over `bins` bins: the bins, groups of
/// `branching` neighbours, groups of groups, and so on to at most `branching` nodes. Without a
/// tree, the bins alone.
pub fn tree_levels(bins: usize, branching: Option<usize>) -> Vec<usize> {
    let mut levels = vec![bins];
    while let Some(branching) =
        branching.filter(|&branching| (2..levels[levels.len() - 1]).contains(&branching))
    {
        levels.push(levels[levels.len() - 1].div_ceil(branching));
    }
    levels
}

/// A distribution function with its band.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// F̂ at the upper edge of each bin; 1 at the last.
    pub values: Vec<f64>,
    /// Intervals that contain F at all edges together.
    pub band: Vec<Interval>,
}

/// A quantile, as positions among the edges of the bins, from 0 to B.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantileEstimate {
    /// The estimate: between edges i and i + 1 where its whole part is i.
    pub position: f64,
    /// Numbers of the edges between which the quantile lies.
    pub edges: [usize; 2],
}

impl NoisyHistogram {
    /// Takes noisy bins with noise of standard deviation `deviation`. `count` is the noisy count
    /// and its deviation, if every record has a bin.
    pub fn new(bins: &[f64], deviation: f64, count: Option<(f64, f64)>) -> Self {
        Self::of_tree(bins, bins.len(), None, deviation, count)
    }

    /// As [`new`](Self::new), for the nodes of all [levels](tree_levels) of a tree over `bins`
    /// bins.
    pub fn of_tree(
        nodes: &[f64],
        bins: usize,
        branching: Option<usize>,
        deviation: f64,
        count: Option<(f64, f64)>,
    ) -> Self {
        let levels = tree_levels(bins, branching);
        let tree = NoiseTree::new(&levels, branching.unwrap_or(bins), deviation, count.map(|count| count.1));
        let mut counts = nodes.to_vec();
        counts.resize(tree.nodes(), 0.0);
        let total = tree.solve(&mut counts, count.map_or(0.0, |count| count.0));
        counts.truncate(bins);
        Self { counts, total, tree }
    }

    /// Returns the numbers of records in the bins, which may be negative.
    pub fn counts(&self) -> &[f64] {
        &self.counts
    }

    /// Returns the standard deviation of the noise of a bin.
    pub fn count_noise(&self, bin: usize) -> f64 {
        let NoiseOfSum { slope, variance } = self.tree.noise_of(bin, true);
        (variance + slope * slope * self.tree.total_variance).sqrt()
    }

    /// Returns the interval of the number of records in a bin, at this level.
    pub fn count_interval(&self, bin: usize, level: f64) -> Interval {
        let (noise, tail) = (self.count_noise(bin), (1.0 - level) / 2.0);
        let selection = self.selection(self.tree.noise_of(bin, true).slope, noise);
        let (down, up) = conditional_quantiles(tail, &[selection]);
        let reach = |z: f64| if noise > 0.0 { z * noise } else { 0.0 };
        let (count, bounds) = (self.counts[bin], Interval { lower: 0.0, upper: f64::INFINITY });
        let interval = Interval { lower: count - reach(down), upper: count + reach(up) };
        interval.with(count).within(bounds, quantile::normal(tail) * noise)
    }

    /// Returns the number of records in all bins and the standard deviation of its noise.
    pub fn total(&self) -> (f64, f64) {
        (self.total, self.tree.total_variance.sqrt())
    }

    /// Whether the total can be told from 0, so that there are shares.
    pub fn has_shares(&self) -> bool {
        let (total, noise) = self.total();
        total > 0.0 && total >= MIN_COUNT_TO_NOISE * noise
    }

    /// Returns the total, which decides whether there are shares, as a selection for the count of
    /// all records.
    pub fn count_selection(&self) -> Selection {
        // The total is the best estimate of the count, so its noise is a part of that of the count.
        let correlation = match self.tree.deviations().1 {
            Some(deviation) if deviation > 0.0 => self.tree.total_variance.sqrt() / deviation,
            _ => 0.0,
        };
        Selection { correlation, ..self.selection(0.0, 0.0) }
    }

    /// The selection by the total, for a number whose noise has this deviation and moves by `slope`
    /// with the noise of the total.
    fn selection(&self, slope: f64, deviation: f64) -> Selection {
        let (total, noise) = self.total();
        let least = MIN_COUNT_TO_NOISE * noise;
        let range = if self.has_shares() { (least, f64::INFINITY) } else { (f64::NEG_INFINITY, least) };
        let correlation = if deviation > 0.0 { (slope * noise / deviation).clamp(-1.0, 1.0) } else { 0.0 };
        Selection::by_range(total, range, noise, correlation)
    }

    /// The quantiles down and up for a share p; z is the unconditional one.
    fn quantiles(&self, noise: NoiseOfSum, p: f64, confidence: Confidence, z: f64) -> (f64, f64) {
        let deviation = self.variance(noise, p, confidence).max(0.0).sqrt();
        let (tail, selection) = ((1.0 - confidence.level) / 2.0, self.selection(noise.slope - p, deviation));
        conditional_quantiles_beside(z, tail, &[selection])
    }

    /// Returns the share of each bin; without estimates unless the histogram
    /// [has shares](Self::has_shares).
    pub fn shares(&self, confidence: Confidence) -> Vec<Share> {
        if !self.has_shares() {
            return vec![Share { estimate: None, interval: SHARES }; self.counts.len()];
        }
        let (total, z) = (self.total, confidence.normal_quantile());
        let share = |(bin, (&count, nearest)): (usize, (&f64, f64))| {
            let noise = self.tree.noise_of(bin, true);
            let interval =
                self.interval(noise, count, confidence, z, |p| self.quantiles(noise, p, confidence, z));
            let estimate = (nearest / total).clamp(interval.lower, interval.upper);
            Share { estimate: Some(estimate), interval }
        };
        let nearest = nearest_counts(&self.counts, total);
        self.counts.iter().zip(nearest).enumerate().map(share).collect()
    }

    /// Returns the distribution function; `None` unless the histogram
    /// [has shares](Self::has_shares).
    pub fn distribution(&self, confidence: Confidence) -> Option<Distribution> {
        let values = self.distribution_values()?;
        let critical = critical_value(self, &values, confidence);
        let sums = self.counts.iter().scan(0.0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        let inner = sums.zip(1..self.counts.len());
        let interval = |(sum, k)| {
            let noise = self.tree.noise_of(k, false);
            self.interval(noise, sum, confidence, critical, |_| (critical, critical))
        };
        let mut band: Vec<_> = inner.map(interval).collect();
        let mut least = 0.0_f64;
        for interval in &mut band {
            least = least.max(interval.lower);
            interval.lower = least;
        }
        let mut most = 1.0_f64;
        for interval in band.iter_mut().rev() {
            most = most.min(interval.upper);
            interval.upper = most.max(interval.lower);
        }
        band.push(Interval { lower: 1.0, upper: 1.0 });
        Some(Distribution { values, band })
    }

    /// Returns the q-quantile, 0 < q < 1; `None` unless the histogram
    /// [has shares](Self::has_shares).
    pub fn quantile(&self, q: f64, confidence: Confidence) -> Option<QuantileEstimate> {
        let values = self.distribution_values()?;
        let (bins, z) = (self.counts.len(), confidence.normal_quantile());
        let mut sum = 0.0;
        // Whether F is certainly below q at each inner edge (−1), certainly above (1), or neither.
        let tests: Vec<i8> = (1..bins)
            .map(|k| {
                sum += self.counts[k - 1];
                let apart = sum - q * self.total;
                let noise = self.tree.noise_of(k, false);
                let deviation = self.variance(noise, q, confidence).max(0.0).sqrt();
                let (down, up) = self.quantiles(noise, q, confidence, z);
                let reach = |z: f64| if deviation > 0.0 { z * deviation } else { 0.0 };
                if apart > reach(down) { 1 } else { -i8::from(apart < -reach(up)) }
            })
            .collect();
        let lower = tests.iter().take_while(|&&test| test < 0).count();
        let upper = bins - tests.iter().rev().take_while(|&&test| test > 0).count();
        let bin = values.partition_point(|&value| value < q).min(bins - 1);
        let below = if bin == 0 { 0.0 } else { values[bin - 1] };
        let inside = ((q - below) / (values[bin] - below)).clamp(0.0, 1.0);
        let position = bin as f64 + if inside.is_finite() { inside } else { 0.5 };
        let edges = [lower.min(upper), upper.max(lower)];
        Some(QuantileEstimate { position: position.clamp(edges[0] as f64, edges[1] as f64), edges })
    }

    /// Returns F̂: the isotonic regression of the noisy distribution function.
    fn distribution_values(&self) -> Option<Vec<f64>> {
        if !self.has_shares() {
            return None;
        }
        let sums = self.counts.iter().scan(0.0, |sum, count| {
            *sum += count / self.total;
            Some(*sum)
        });
        let inner: Vec<f64> = sums.take(self.counts.len() - 1).collect();
        let mut values = isotonic(&inner);
        values.iter_mut().for_each(|value| *value = value.clamp(0.0, 1.0));
        values.push(1.0);
        Some(values)
    }

    /// v(p): the variance of N − pT.
    fn variance(&self, noise: NoiseOfSum, p: f64, confidence: Confidence) -> f64 {
        let of_noise = noise.variance + (noise.slope - p).powi(2) * self.tree.total_variance;
        of_noise + self.sampling(confidence) * p * (1.0 - p)
    }

    /// h·T, or 0 for statements about the records.
    fn sampling(&self, confidence: Confidence) -> f64 {
        match confidence.subject {
            IntervalSubject::Records => 0.0,
            IntervalSubject::Population { heaviest } => heaviest * self.total.max(0.0),
        }
    }

    /// Returns the interval of the share of some bins, whose noisy number is `number`, with the
    /// quantiles down and up at a share; z is the unconditional one.
    fn interval(
        &self,
        noise: NoiseOfSum,
        number: f64,
        confidence: Confidence,
        z: f64,
        quantiles: impl Fn(f64) -> (f64, f64),
    ) -> Interval {
        let (total, sampling) = (self.total, self.sampling(confidence));
        let NoiseOfSum { slope, variance } = noise;
        let of_total = self.tree.total_variance;
        let roots = |z: f64| {
            // a·p² − 2b·p + c ≤ 0
            let square = z * z;
            let a = total * total - square * (of_total - sampling);
            let b = number * total + square * (sampling / 2.0 - slope * of_total);
            let c = number * number - square * (variance + slope * slope * of_total);
            if a <= 0.0 || !square.is_finite() {
                return SHARES;
            }
            let root = (b * b - a * c).max(0.0).sqrt().copysign(z);
            Interval { lower: (b - root) / a, upper: (b + root) / a }
        };
        let interval = settle(roots(z), |p| quantiles(p.clamp(0.0, 1.0)), roots);
        let nearest = (number / total).clamp(0.0, 1.0);
        let reach = z * self.variance(noise, nearest, confidence).max(0.0).sqrt() / total;
        interval.with(nearest).within(SHARES, reach)
    }
}

/// Returns the nearest numbers that are at least 0 and have this sum, above 0.
fn nearest_counts(counts: &[f64], total: f64) -> Vec<f64> {
    let mut descending = counts.to_vec();
    descending.sort_by(|one, other| other.total_cmp(one));
    let mut sum = 0.0;
    let mut shift = 0.0;
    for (number, count) in (1..).zip(descending) {
        sum += count;
        let candidate = (sum - total) / f64::from(number);
        if count - candidate <= 0.0 {
            break;
        }
        shift = candidate;
    }
    counts.iter().map(|count| (count - shift).max(0.0)).collect()
}

/// Returns the nearest nondecreasing numbers, by pooling adjacent violators.
fn isotonic(values: &[f64]) -> Vec<f64> {
    let mut pools: Vec<(f64, usize)> = Vec::with_capacity(values.len());
    for &value in values {
        let mut pool = (value, 1);
        while let Some(&(before, length)) = pools.last().filter(|(before, _)| *before > pool.0) {
            let all = (length + pool.1) as f64;
            pool = ((before * length as f64 + pool.0 * pool.1 as f64) / all, length + pool.1);
            pools.pop();
        }
        pools.push(pool);
    }
    pools.into_iter().flat_map(|(value, length)| std::iter::repeat_n(value, length)).collect()
}
