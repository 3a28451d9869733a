//! Discovery of keys that nobody listed: a key is shown from the epoch in which a noisy count of
//! its records first exceeds a public threshold.
//!
//! A log with discovery has a fixed number of *slots*, which are released like listed keys. A
//! *candidate* is a key with a record. After every epoch t each candidate with a count n(t) of at
//! least `at_least` records is tested:
//!
//! ```text
//! n(t) + N(t) > τ(t) = at_least + z·s(t)
//! ```
//!
//! N(t) is the noise of the key's tree (`discovery/tree.rs`), and s(t) its deviation. A key that
//! passes takes the next free slot for good, several of an epoch in the order of their names. Its
//! earlier records enter the slot in that epoch, later ones in their own. When no slot is free,
//! nothing is tested.
//! The names are part of the release.
//!
//! # Theorem
//! Let the moments of the slots alone be a Gaussian mechanism of noise multiplier σ/√(1 − f) for
//! one record of the neighbours. Let the nodes of the trees have a deviation of σ√S/√f records,
//! with S = h for zero-out and S = 2h for replace-one, where h is the number of levels. Let
//! δ_d ≥ T·Q(z) + v, where T is the number of epochs, Q the upper tail of the normal distribution
//! and v the total variation between the noise of one tree and rounded continuous noise. Then for
//! neighbours D and D′ there are mechanisms M̃(D) and M̃(D′), the results of one Gaussian mechanism
//! of noise multiplier σ up to the total variation of discrete noise, within a total variation of
//! δ_d of the real M(D) and M(D′). So M is (ε, δ + (1 + e^ε)δ_d)-private if the Gaussian mechanism
//! is (ε, δ)-private, and composes like it, with δ_d added to the total variation.
//!
//! *Proof.* Let n and n′ be the counts of a key in D and D′. M̃, of either world, tests a key at t
//! if max(n(t), n′(t)) ≥ `at_least`. Where n = n′ always, M̃ and M are the same. The rule of M̃ is
//! one rule for both worlds, so given the noisy nodes of all keys, tests, names and slots are
//! post-processing.
//!
//! *Nodes.* A record is under h nodes of one tree at most. Zero-out moves h nodes by 1. Replace-one
//! moves nodes of two trees, or of one tree in which the differences of +1 and −1 may cancel: by 2h
//! in squares. In units of the deviation that is f/σ². The nodes of other keys do not differ, and
//! the noise of all nodes is independent.
//!
//! *Moments.* Given all that is released before the moments of an epoch, names of that epoch
//! included, a record is in one cell: the slot of its key, in its own epoch or in that of the
//! discovery, whichever is later; or it is in no cell. "No record" is one of the contents of a row,
//! so in each world the record is one of those that the sensitivity covers: at most (1 − f)/σ².
//!
//! *Together* the squares are at most 1/σ² on every path, and each difference is known before its
//! noise is drawn: a node's noise is first used when its last epoch closes, and the moments of an
//! epoch follow its names. That is the premise of the proof for adaptive streams
//! (`docs/privacy.md`), which gives one Gaussian mechanism of noise multiplier σ.
//!
//! *M is near M̃.* With the same noise the two differ in world D only if a key is tested by M̃
//! alone and passes. Then n(t) < `at_least` ≤ n′(t) for the key of the changed record. In D there
//! is at most one such key: only one key has more records in D′ than in D at some time. (A record
//! moved within a key adds to it in one world only.) It passes only if N(t) > τ(t) − n(t) >
//! z·s(t), with a probability of at most T·Q(z) + v for all t together, whatever is adapted to the
//! past, because N does not depend on it. ∎
//!
//! A key of at most `at_least` records in all is shown with a probability of at most δ_d, since
//! that needs N(t) ≥ z·s(t).
//!
//! *Normal tails.* N(t) is a sum of nodes' noise with weights that add up to at most ℓ + 1 for a
//! node of level ℓ, rounded down. Continuous noise that is rounded errs by ½ in each, so N exceeds
//! the normal variable of deviation s by at most (h + 1)² units of the grid. The threshold has
//! that much room.
//!
//! # Exactly once
//! The noise of an epoch's nodes comes from a secret of 32 bytes, drawn when the epoch closes, and
//! the name of the key ([`Candidates`]). The private log holds the secret beside the exact sums. So
//! a run that resumes finds the same noise for committed epochs, and keys that appear later get
//! nodes that were there from the first epoch: no clock begins with a private event. An epoch that
//! was not committed has released nothing, and its secret is gone. A copy of a state directory
//! draws secrets of its own. Noise of different keys is independent as long as SHA-256 and ChaCha20
//! are indistinguishable from random.
//!
//! # Sources
//! Thresholds for keys in one neighbour alone: Korolova et al. 2009; Wilson et al. 2020; for
//! streams Zhang et al., "Differentially Private Stream Processing at Scale" (arXiv 2303.18086).

#[cfg(test)]
mod attack;
mod candidates;
mod names;
mod tree;

use std::f64::consts::FRAC_1_SQRT_2;

use crate::accounting::discrete::Discreteness;
use crate::accounting::{AccountingError, MARGIN};
use crate::noise::scale::NoiseScaleError;
use crate::noise::{DiscreteGaussian, NoiseScale};
use crate::quantile;
use crate::sensitivity::{Neighbours, rounded_up};
use thiserror::Error;

pub use candidates::{Candidates, ClosedKeys, DiscoveryError};
pub use names::names_of;

/// One record is 2 to this power units of the grid of its noise.
const GRID_BITS: u32 = 40;

/// Most epochs of a log with discovery: the secrets of all of them are kept.
pub const MOST_EPOCHS: u64 = 1 << 20;

/// The public parameters of discovery.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiscoveryParameters {
    /// δ_d, above 0 and below 1.
    pub delta: f64,
    /// f: share of the squared budget μ² that finds keys, above 0 and below 1.
    pub share: f64,
    /// Number of slots, at least 1.
    pub most: u32,
    /// A key with fewer records is never shown; at least 1.
    pub at_least: u64,
}

/// Parameters for which there is no discovery.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum DiscoveryParameterError {
    /// A parameter is out of its range.
    #[error("{name}: found {found}, expected {expected}")]
    Range {
        /// The parameter.
        name: &'static str,
        /// Its value.
        found: f64,
        /// Its range.
        expected: &'static str,
    },
    /// Keys of rows are public.
    #[error(
        "with neighbours = \"replace-one-in-place\" the keys of all rows are public, so there is nothing to find: list the keys \
         in `values`, or choose other neighbours"
    )]
    InPlace,
    /// The noise is out of the sampler's range.
    #[error(transparent)]
    Noise(#[from] NoiseScaleError),
    /// The discrete noise can't be accounted for.
    #[error(transparent)]
    Accounting(#[from] AccountingError),
    /// δ_d is below the distance of discrete noise from continuous noise.
    #[error("delta: found {found}, expected more than {least:e}: choose a larger one")]
    Delta {
        /// δ_d.
        found: f64,
        /// What the noise costs.
        least: f64,
    },
}

/// Noise and thresholds of discovery.
#[derive(Clone)]
pub struct Discovery {
    parameters: DiscoveryParameters,
    horizon: u64,
    gaussian: DiscreteGaussian,
    /// z.
    quantile: f64,
    total_variation: f64,
}

impl Discovery {
    /// Computes noise and thresholds. `noise_multiplier` is σ of the slots and the discovery
    /// together, `horizon` the number of epochs.
    ///
    /// # Errors
    /// [`DiscoveryParameterError`] names the parameter and its range.
    pub fn new(
        parameters: DiscoveryParameters,
        neighbours: Neighbours,
        noise_multiplier: f64,
        horizon: u64,
    ) -> Result<Self, DiscoveryParameterError> {
        let DiscoveryParameters { delta, share, most, at_least } = parameters;
        in_range("delta", delta, "a number above 0 and below 1", delta > 0.0 && delta < 1.0)?;
        in_range("share", share, "a number above 0 and below 1", share > 0.0 && share < 1.0)?;
        in_range("most", most.into(), "at least 1", most >= 1)?;
        let is_count = (1..=1 << 40).contains(&at_least);
        in_range("at_least", at_least as f64, "a number of records from 1 to 2^40", is_count)?;
        let epochs = "at most 1048576 epochs with discovered keys";
        in_range("horizon", horizon as f64, epochs, (1..=MOST_EPOCHS).contains(&horizon))?;
        let height = f64::from(tree::height(horizon));
        let sensitivity_squared = match neighbours {
            Neighbours::ZeroOut => height,
            Neighbours::ReplaceOne => 2.0 * height,
            Neighbours::ReplaceOneInPlace => return Err(DiscoveryParameterError::InPlace),
        };
        let deviation = rounded_up(noise_multiplier * (sensitivity_squared / share).sqrt());
        let scale = NoiseScale::at_least(deviation * 2f64.powi(GRID_BITS as i32))?;
        // A tree has fewer than two nodes for each epoch. Two trees differ between neighbours.
        let of_trees = |trees: f64| Discreteness::new(scale.sigma(), 2.0 * trees * horizon as f64);
        let of_one = of_trees(1.0)?.total_variation();
        let tail = (delta - of_one) / horizon as f64 * (1.0 - MARGIN);
        if tail < f64::MIN_POSITIVE {
            return Err(DiscoveryParameterError::Delta { found: delta, least: of_one });
        }
        // The quantile is exact to the last bits, and is raised by more.
        let quantile = quantile::normal(tail.min(0.5)) * (1.0 + 1e-9);
        let total_variation = rounded_up(delta + of_trees(2.0)?.total_variation());
        let gaussian = DiscreteGaussian::new(scale);
        Ok(Self { parameters, horizon, gaussian, quantile, total_variation })
    }

    /// The noise multiplier of the moments of slots, rounded up, if that of slots and discovery
    /// together is `noise_multiplier`.
    pub fn multiplier_of_slots(parameters: DiscoveryParameters, noise_multiplier: f64) -> f64 {
        rounded_up(noise_multiplier / (1.0 - parameters.share).sqrt())
    }

    /// The public parameters.
    pub fn parameters(&self) -> DiscoveryParameters {
        self.parameters
    }

    /// Distance of the discovery from one that is part of a Gaussian mechanism: δ_d and the price
    /// of discrete noise.
    pub fn total_variation(&self) -> f64 {
        self.total_variation
    }

    /// Standard deviation of the noise of a key's count after an epoch, in records.
    pub fn deviation(&self, epoch: u64) -> f64 {
        self.gaussian.scale().sigma() * tree::variance(epoch).sqrt() / 2f64.powi(GRID_BITS as i32)
    }

    /// τ: the number of records beyond which a noisy count shows a key after an epoch.
    pub fn threshold(&self, epoch: u64) -> f64 {
        self.threshold_in_grid(epoch) as f64 / 2f64.powi(GRID_BITS as i32)
    }

    /// τ in units of the grid, rounded up.
    fn threshold_in_grid(&self, epoch: u64) -> i128 {
        let reach = self.quantile * self.gaussian.scale().sigma() * tree::variance(epoch).sqrt();
        let room = i128::from(tree::height(self.horizon) + 1).pow(2);
        (i128::from(self.parameters.at_least) << GRID_BITS) + rounded_up(reach).ceil() as i128 + room
    }

    /// Probability that a key with this exact count passes the test after this epoch. Private, as
    /// the count is.
    pub fn chance(&self, epoch: u64, count: u64) -> f64 {
        let missing = (self.threshold(epoch) - count as f64) / self.deviation(epoch);
        let is_tested = count >= self.parameters.at_least;
        if is_tested { libm::erfc(missing * FRAC_1_SQRT_2) / 2.0 } else { 0.0 }
    }

    /// Whether a key with this exact count and noise is shown.
    fn shows(&self, epoch: u64, count: i128, noise: i128) -> bool {
        (count << GRID_BITS).saturating_add(noise) > self.threshold_in_grid(epoch)
    }
}

fn in_range(
    name: &'static str,
    found: f64,
    expected: &'static str,
    holds: bool,
) -> Result<(), DiscoveryParameterError> {
    if holds { Ok(()) } else { Err(DiscoveryParameterError::Range { name, found, expected }) }
}
