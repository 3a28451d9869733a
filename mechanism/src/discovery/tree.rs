//! The noise of one key's number of records so far: a binary tree, in integers.
//!
//! A node of level ℓ covers 2^ℓ epochs, and epoch t ends one node of each level up to the number of
//! trailing zeros of t. Each node has noise Z of its own. Every node that is complete is used: with
//! the weights of Honaker ("Efficient Use of Differentially Private Binary Trees", 2015) the best
//! unbiased estimate of the sum under a node of level ℓ is
//!
//! ```text
//! (Σ_j 2^j · sum of the noisy nodes of level j below it, itself included) / (2^(ℓ+1) − 1)
//! ```
//!
//! The numerator E is additive: `E(node) = 2^ℓ·Z + E(left) + E(right)`. The first t epochs are
//! those under one node for each bit of t, so a key needs one number for each bit.

use crate::noise::{DiscreteGaussian, NoiseGenerator};
use zeroize::Zeroizing;

/// Maximum number of levels of a tree.
pub(super) const MOST_LEVELS: usize = 21;

/// Noise of a key after some number of epochs.
#[derive(Clone, Default)]
pub(super) struct KeyNoise {
    epochs: u64,
    /// E of the nodes that cover these epochs, from the longest to the shortest.
    nodes: Zeroizing<Vec<i128>>,
}

/// Returns the levels of the nodes that cover the first `epochs` epochs, from the longest to the
/// shortest.
fn levels(epochs: u64) -> impl Iterator<Item = u32> {
    (0..u64::BITS).rev().filter(move |level| epochs >> level & 1 == 1)
}

/// Number of levels of a tree over this many epochs: nodes that no epoch completes are never used.
pub(super) fn height(horizon: u64) -> u32 {
    horizon.max(1).ilog2() + 1
}

/// Returns the variance of the noise after this many epochs, in units of that of one node.
pub(super) fn variance(epochs: u64) -> f64 {
    // The weights of a node's tree have Σ_j 2^(ℓ−j)·2^(2j) = 2^ℓ(2^(ℓ+1) − 1) as sum of squares.
    let of_node = |level: u32| 2f64.powi(level as i32) / (2f64.powi(level as i32 + 1) - 1.0);
    levels(epochs).map(of_node).sum()
}

impl KeyNoise {
    pub(super) fn epochs(&self) -> u64 {
        self.epochs
    }

    /// Adds the next epoch and the nodes that it completes.
    pub(super) fn advance(&mut self, gaussian: &DiscreteGaussian, generator: &mut NoiseGenerator) {
        self.epochs += 1;
        let completed = self.epochs.trailing_zeros() as usize;
        let mut noise = Zeroizing::new([0; MOST_LEVELS]);
        gaussian.fill(generator, &mut noise[..=completed]);
        self.nodes.reserve(MOST_LEVELS);
        let mut node = noise[0];
        for (level, own) in noise[1..=completed].iter().enumerate() {
            node += (own << (level + 1)) + self.nodes.pop().unwrap_or_default();
        }
        self.nodes.push(node);
    }

    /// Returns the noise of the sum of all epochs so far, rounded down node by node.
    ///
    /// With the exact sum n of a node of level ℓ, in units that are whole, the estimate from noisy
    /// nodes is `⌊(E + n(2^(ℓ+1) − 1))/(2^(ℓ+1) − 1)⌋ = n + ⌊E/(2^(ℓ+1) − 1)⌋`. So the exact count
    /// plus this noise is a function of the noisy nodes alone.
    pub(super) fn total(&self) -> i128 {
        let nodes = levels(self.epochs).zip(&*self.nodes);
        nodes.map(|(level, node)| node.div_euclid((2 << level) - 1)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::{NoiseScale, NoiseSource};

    fn gaussian() -> DiscreteGaussian {
        DiscreteGaussian::new(NoiseScale::at_least(2f64.powi(30)).unwrap())
    }

    /// Returns the estimates of prefixes from the noisy nodes of each level, by definition.
    fn by_definition(counts: &[i128], seed: u64) -> Vec<i128> {
        let mut nodes: Vec<Vec<i128>> = vec![Vec::new(); MOST_LEVELS];
        let mut estimates = Vec::new();
        for t in 1..=counts.len() {
            let completed = t.trailing_zeros() as usize;
            let mut noise = vec![0; completed + 1];
            let mut generator = NoiseSource::Seeded(seed).generator(t as u64, 0).unwrap();
            gaussian().fill(&mut generator, &mut noise);
            for (level, z) in noise.into_iter().enumerate() {
                let covered = counts[t - (1 << level)..t].iter().sum::<i128>();
                nodes[level].push(covered + z);
            }
            let (mut estimate, mut first) = (0, 0);
            for level in levels(t as u64) {
                let weighted = (0..=level).map(|j| {
                    let run = first >> j..(first + (1usize << level)) >> j;
                    nodes[j as usize][run].iter().sum::<i128>() << j
                });
                estimate += weighted.sum::<i128>().div_euclid((2 << level) - 1);
                first += 1 << level;
            }
            estimates.push(estimate);
        }
        estimates
    }

    #[test]
    fn estimates_are_functions_of_noisy_nodes() {
        let counts: Vec<i128> = (0..77).map(|t| ((t * t) % 7) << 40).collect();
        let estimates = by_definition(&counts, 3);
        let (mut noise, mut count) = (KeyNoise::default(), 0);
        for (t, estimate) in estimates.into_iter().enumerate() {
            let mut generator = NoiseSource::Seeded(3).generator(t as u64 + 1, 0).unwrap();
            noise.advance(&gaussian(), &mut generator);
            count += counts[t];
            assert_eq!(count + noise.total(), estimate, "epoch {}", t + 1);
        }
    }

    /// The mean square of 400 keys after each of 31 epochs is outside [0.6, 1.5] with a probability
    /// below 10⁻⁷.
    #[test]
    fn deviations_are_those_of_the_formula() {
        let sigma = gaussian().scale().sigma();
        let mut squares = [0.0; 31];
        for seed in 0..400 {
            let mut noise = KeyNoise::default();
            for (t, square) in (1..).zip(&mut squares) {
                noise.advance(&gaussian(), &mut NoiseSource::Seeded(seed).generator(t, 0).unwrap());
                *square += (noise.total() as f64 / sigma).powi(2) / 400.0 / variance(t);
            }
        }
        assert!(squares.iter().all(|square| (0.6..1.5).contains(square)), "{squares:?}");
    }

    #[test]
    fn a_tree_has_the_levels_that_epochs_complete() {
        assert_eq!([1, 2, 3, 4, 1000, 1024, 1 << 20].map(height), [1, 2, 2, 3, 10, 11, 21]);
        assert!((variance(1) - 1.0).abs() < 1e-15 && (variance(2) - 2.0 / 3.0).abs() < 1e-15);
        assert!((variance(7) - (1.0 + 2.0 / 3.0 + 4.0 / 7.0)).abs() < 1e-15);
    }
}
