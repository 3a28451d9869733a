//! Discovery of keys that the pipeline does not list: a key is shown from the epoch in which its
//! noisy count first exceeds a public threshold.
//!
//! A log with discovery has a fixed number of *slots*, which are released like listed keys. A
//! *candidate* is a key with a record. Its count n(t) is the number of its records up to epoch t
//! or, where entities are protected, the number of *different entities* with a record of it
//! ([`Counted`]). After every epoch each candidate with a count of at least `at_least` is tested:
//!
//! ```text
//! n(t) + N(t) > τ(t) = at_least + z·s(t)      or a stated threshold
//! ```
//!
//! N(t) is the noise of the key's tree (`discovery/tree.rs`), and s(t) its standard deviation. A
//! key that passes takes the next free slot permanently. Several keys of one epoch take slots in
//! the order of their names. Earlier records of the key enter the slot in that epoch, later records
//! in their own epochs. When no slot is free, no key is tested. The names are part of the release.
//!
//! # Theorem
//! The unit of the guarantee has at most K records that pass the bound, in all epochs together: K =
//! 1 for a record. K = k·m for an entity that takes part in at most k epochs with at most m records
//! in each. So it touches at most K keys. Let the moments of the slots, for **one** record
//! anywhere, be a Gaussian mechanism of noise multiplier Kσ/√(1 − f). Let the nodes of the trees
//! have a deviation of σ√S/√f counts, with S = K·h for zero-out and S = 2K·h for replace-one, where
//! h is the number of levels. Let u be the number of units in which two streams may differ: 1 for
//! records, 2 for entities. Let δ_d ≥ uK·(Σ_t Q((τ(t) − at_least)/s(t)) + v), where Q is the upper
//! tail of the normal distribution and v the total variation between the noise of one tree and
//! rounded continuous noise. With z, the sum is T·Q(z) for T epochs. Then for neighbours D and D′
//! there are mechanisms M̃(D) and M̃(D′), the results of one Gaussian mechanism of noise multiplier
//! σ up to the total variation of discrete noise, within a total variation of δ_d of the real M(D)
//! and M(D′). So M is (ε, δ + (1 + e^ε)δ_d)-private if the Gaussian mechanism is (ε, δ)-private,
//! and composes like it, with δ_d added to the total variation.
//!
//! *Proof.* Let n and n′ be the counts of a key in D and D′. M̃, in either world, tests a key at t
//! if max(n(t), n′(t)) ≥ `at_least`. Where n = n′ always, M̃ and M are the same. M̃ applies the
//! same rule in both worlds, so given the noisy nodes of all keys, tests, names and slots are
//! post-processing.
//!
//! *Nodes.* A unit adds 1 to at most K keys, each in one epoch: a record to its key, an entity to
//! each of its keys in the epoch of its first record of that key. Each addition is under at most h
//! nodes of one tree, and those of different keys are in different trees. Zero-out moves at most
//! K·h nodes by 1. Replace-one moves nodes of 2K trees, or of one tree in which the differences of
//! +1 and −1 may cancel: by at most 2K·h in squares. In units of the deviation that is f/σ². The
//! nodes of other keys do not differ, and the noise of all nodes is independent.
//!
//! *Moments.* Given all that is released before the moments of an epoch, names of that epoch
//! included, a record is in one cell or in none. The cell is the slot of its key, in the epoch of
//! the record or in that of the discovery, whichever is later. "No record" is one of the contents
//! of a row. Number the records of the unit that pass in D, and those that pass in D′, by 1 … K,
//! with "no record" for those that are lacking. Change them one by one. Each change is one that the
//! sensitivity for one record covers, wherever its cells are. So by the triangle inequality all
//! together move the moments by at most K times that: (1 − f)/σ² in squares. Limits of the epochs
//! in which an entity takes part, or of the distance between them, do not lower the bound: records
//! of all its epochs may be of one key, and enter its slot in the epoch of the discovery. That
//! attains the bound.
//!
//! *Together* the squares are at most 1/σ² on every path, and each difference is known before its
//! noise is drawn. A node's noise is first used when its last epoch closes, and the moments of an
//! epoch follow its names. That is the premise of the proof for adaptive streams
//! (`docs/privacy.md`), which gives one Gaussian mechanism of noise multiplier σ.
//!
//! *M is near M̃.* With the same noise the two differ in world D only if a key is tested by M̃
//! alone and passes. Then n(t) < `at_least` ≤ n′(t), so the changed unit has more of the key in D′
//! than in D at some time: there are at most K such keys. (A record moved within a key raises the
//! count of the key in one world only.) Each passes only if N(t) > τ(t) − n(t) > τ(t) − `at_least`,
//! with a probability of at most Σ_t Q((τ(t) − `at_least`)/s(t)) + v for all t together. This holds
//! even if records adapt to the past, because N does not depend on it. The union over K keys gives
//! δ_d. ∎
//!
//! *Why u = 2.* A guarantee about entities converts to one about records, and a record may move
//! from one entity to another (`accounting/adjacency.rs`). Then the records of two entities differ,
//! and up to 2K keys have more of them in D′. The squared distances are those of the steps; the
//! total variation, which the ledger does not multiply by steps, covers both entities from the
//! start.
//!
//! Consider the keys all of whose records belong to one unit, with a count of at most `at_least`
//! each. All of them stay hidden with a probability of at least 1 − δ_d, since showing one requires
//! N(t) ≥ τ(t) − `at_least`.
//!
//! *Normal tails.* N(t) is a sum of nodes' noise with weights that add up to at most ℓ + 1 for a
//! node of level ℓ, rounded down. Rounding of continuous noise adds an error of at most ½ in each
//! node, so N exceeds the normal variable of deviation s by at most (h + 1)² units of the grid. The
//! threshold is raised by this amount.
//!
//! # Exactly once
//! The noise of an epoch's nodes is derived from the name of the key and a secret of 32 bytes,
//! which is drawn when the epoch closes ([`Candidates`]). The private log holds the secret beside
//! the exact sums. So a run that resumes computes the same noise for committed epochs. The tree of
//! a key also begins with the first epoch if the key appears later, so no part of the mechanism
//! starts at a private time. An epoch that was not committed has no release, and its secret is
//! lost. A copy of a state directory draws secrets of its own. Noise of different keys is
//! independent as long as SHA-256 and ChaCha20 are indistinguishable from random.
//!
//! # Sources
//! Thresholds for keys that only one neighbour has: Korolova et al. 2009; Wilson et al. 2020; for
//! streams Zhang et al., "Differentially Private Stream Processing at Scale" (arXiv 2303.18086).

#[cfg(test)]
mod attack;
mod candidates;
#[cfg(test)]
mod entity_attack;
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

pub use candidates::{Candidates, ClosedKeys, DiscoveryError, KeyArrival};
pub use names::names_of;

/// One count is 2 to this power units of the grid of its noise.
const GRID_BITS: u32 = 40;

const GRID_UNITS: f64 = (1_u64 << GRID_BITS) as f64;

/// Maximum number of epochs of a log with discovery. The log keeps the secrets of all epochs.
pub const MOST_EPOCHS: u64 = 1 << 20;

/// Maximum number of records of an entity in all epochs. For more records, noise would hide every
/// key.
pub const MOST_RECORDS: u32 = 1 << 20;

/// The count of a key that discovery tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// The number of the key's records. A record is the unit of the guarantee.
    Records,
    /// The number of different entities with a record of the key, each counted once over all
    /// epochs. An entity is the unit of the guarantee.
    Entities {
        /// K: the maximum number of records of an entity in all epochs, and so of keys that it
        /// touches.
        records: u32,
    },
}

impl Counted {
    /// K: the maximum number of records of a unit of the guarantee, and so of keys that it touches.
    pub fn most_records(self) -> u32 {
        match self {
            Counted::Records => 1,
            Counted::Entities { records } => records,
        }
    }

    /// u: the number of units in which two streams may differ.
    fn units(self) -> f64 {
        match self {
            Counted::Records => 1.0,
            Counted::Entities { .. } => 2.0,
        }
    }
}

/// The public parameters of discovery.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiscoveryParameters {
    /// δ_d, above 0 and below 1.
    pub delta: f64,
    /// f: share of the squared budget μ² that finds keys, above 0 and below 1.
    pub share: f64,
    /// Number of slots, at least 1.
    pub most: u32,
    /// A key with a smaller count is never shown; at least 1.
    pub at_least: u64,
    /// One threshold for all epochs. By default each epoch has its own: the least that `delta`
    /// allows.
    pub threshold: Option<u64>,
    /// The tested count.
    pub counted: Counted,
}

/// Reasons why parameters of discovery are invalid.
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
    /// The keys of all rows are public, so there is no key to discover.
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
    /// A threshold that shows the keys of a single unit with too large a probability.
    #[error(
        "threshold: with {found} a key of one neighbour alone is shown with a probability of up to {delta:.3e}, and `delta` \
         states {stated:e}: state a threshold of at least {least}, or a larger `delta`"
    )]
    Threshold {
        /// The stated threshold.
        found: u64,
        /// The δ that the stated threshold costs.
        delta: f64,
        /// δ_d.
        stated: f64,
        /// A threshold that costs at most δ_d.
        least: u64,
    },
    /// δ_d is below the distance of discrete noise from continuous noise.
    #[error("delta: found {found}, expected more than {least:e}: choose a larger one")]
    Delta {
        /// δ_d.
        found: f64,
        /// The distance of discrete noise from continuous noise.
        least: f64,
    },
}

/// Noise and thresholds of discovery.
#[derive(Clone)]
pub struct Discovery {
    parameters: DiscoveryParameters,
    horizon: u64,
    gaussian: DiscreteGaussian,
    /// z: the normal quantile of each epoch's share of δ_d.
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
        let DiscoveryParameters { delta, share, most, at_least, threshold, counted } = parameters;
        in_range("delta", delta, "a number above 0 and below 1", delta > 0.0 && delta < 1.0)?;
        in_range("share", share, "a number above 0 and below 1", share > 0.0 && share < 1.0)?;
        in_range("most", most.into(), "at least 1", most >= 1)?;
        let is_count = (1..=1 << 40).contains(&at_least);
        in_range("at_least", at_least as f64, "a number from 1 to 2^40", is_count)?;
        let epochs = "at most 1048576 epochs with discovered keys";
        in_range("horizon", horizon as f64, epochs, (1..=MOST_EPOCHS).contains(&horizon))?;
        let records = counted.most_records();
        let of_entity = "participations × records_per_epoch";
        in_range(of_entity, records.into(), "from 1 to 1048576", (1..=MOST_RECORDS).contains(&records))?;
        let nodes = f64::from(records) * f64::from(tree::height(horizon));
        let sensitivity_squared = match neighbours {
            Neighbours::ZeroOut => nodes,
            Neighbours::ReplaceOne => 2.0 * nodes,
            Neighbours::ReplaceOneInPlace => return Err(DiscoveryParameterError::InPlace),
        };
        let deviation = rounded_up(noise_multiplier * (sensitivity_squared / share).sqrt());
        let scale = NoiseScale::at_least(deviation * GRID_UNITS)?;
        // A tree has fewer than two nodes for each epoch. Two trees differ for each key that has
        // more records in one neighbour.
        let of_trees = |trees: f64| Discreteness::new(scale.sigma(), 2.0 * trees * horizon as f64);
        let of_one = of_trees(1.0)?.total_variation();
        let keys = counted.units() * f64::from(records);
        let tail = (delta / keys - of_one) / horizon as f64 * (1.0 - MARGIN);
        if tail < f64::MIN_POSITIVE {
            return Err(DiscoveryParameterError::Delta { found: delta, least: keys * of_one });
        }
        // The margin exceeds the error of the quantile, a few units in the last place.
        let quantile = quantile::normal(tail.min(0.5)) * (1.0 + 1e-9);
        let total_variation = rounded_up(delta + of_trees(2.0 * keys)?.total_variation());
        let gaussian = DiscreteGaussian::new(scale);
        let discovery = Self { parameters, horizon, gaussian, quantile, total_variation };
        let Some(found) = threshold else { return Ok(discovery) };
        let cost = keys * (discovery.tails_beyond(found) + of_one) * (1.0 + MARGIN);
        if cost <= delta {
            return Ok(discovery);
        }
        let least = (1..=horizon).map(|epoch| discovery.least_in_grid(epoch)).max().unwrap_or_default();
        let least = u64::try_from(least >> GRID_BITS).unwrap_or(u64::MAX).saturating_add(1);
        Err(DiscoveryParameterError::Threshold { found, delta: cost.min(1.0), stated: delta, least })
    }

    /// Returns Σ_t Q((τ − `at_least`)/s(t)) of a threshold τ: an upper bound of the probability
    /// that the noise of one key ever exceeds τ − `at_least`.
    fn tails_beyond(&self, threshold: u64) -> f64 {
        let beyond = threshold as f64 - self.parameters.at_least as f64 - self.room() as f64 / GRID_UNITS;
        let tail = |epoch| libm::erfc(beyond / self.deviation(epoch) * FRAC_1_SQRT_2) / 2.0;
        (1..=self.horizon).map(tail).sum::<f64>() * (1.0 + 1e-9)
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

    /// Total variation between the discovery and one that is part of a Gaussian mechanism: δ_d plus
    /// the cost of discrete noise.
    pub fn total_variation(&self) -> f64 {
        self.total_variation
    }

    /// Standard deviation of the noise of a key's count after an epoch.
    pub fn deviation(&self, epoch: u64) -> f64 {
        self.gaussian.scale().sigma() * tree::variance(epoch).sqrt() / GRID_UNITS
    }

    /// τ: a noisy count beyond it shows a key after an epoch.
    pub fn threshold(&self, epoch: u64) -> f64 {
        self.threshold_in_grid(epoch) as f64 / GRID_UNITS
    }

    /// τ in units of the grid, rounded up.
    fn threshold_in_grid(&self, epoch: u64) -> i128 {
        let stated = self.parameters.threshold.map(|threshold| i128::from(threshold) << GRID_BITS);
        stated.unwrap_or_else(|| self.least_in_grid(epoch))
    }

    /// The least τ, in units of the grid, for which each epoch has the same share of δ_d.
    fn least_in_grid(&self, epoch: u64) -> i128 {
        let reach = self.quantile * self.gaussian.scale().sigma() * tree::variance(epoch).sqrt();
        (i128::from(self.parameters.at_least) << GRID_BITS) + rounded_up(reach).ceil() as i128 + self.room()
    }

    /// Upper bound of the error that rounding adds to the noise of a count, in units of the grid.
    fn room(&self) -> i128 {
        i128::from(tree::height(self.horizon) + 1).pow(2)
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
