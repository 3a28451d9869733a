//! Batches: which records take part in which step, and the randomness that chooses them.
//!
//! A plan owns its batches. A [`TrainingSetup`](crate::TrainingSetup) of a plan holds them, and the
//! loop passes each step's records to the learner. So noise that is calibrated for sampled batches
//! can't be used with others. (A learner that takes gradients of other records than it was passed
//! breaks its contract, like one that takes gradients of two records at once.)
//!
//! # Groups
//! For a strategy with b bands, the records are cut into b groups of equal size, up to one record,
//! in their public order. Step t draws from group t mod b. So the steps of a record are at least b
//! apart, and their columns of C have no row in common. For b = 1 all records are one group.
//!
//! | scheme | the batch of a step | size |
//! |---|---|---|
//! | `InOrder` | the next m records | public |
//! | `Poisson` | each record of the group with probability m b/N, independently | private |
//! | `BallsInBins` | in each pass, each record of the group in one of its steps | private |
//!
//! # What the guarantee needs of the draws
//! - *Independent of everything that is released.* Each draw takes 32 fresh bytes of
//!   operating-system entropy, as noise does.
//! - *Secret.* Batches stay in memory, are wiped, and are in no log, error or message. The number
//!   of records of a step is secret as well: no proof conditions on it. Counts are released as 0
//!   plus noise, or as 0. A step takes longer for a larger batch. The guarantee does not hold
//!   against someone who can time the steps.
//! - *Drawn once.* A step's batch is drawn before its release and never again. Draws are not
//!   stored. A killed run can't be resumed: its draws are lost, and a new run is a new release with
//!   a budget of its own. (If runs could be resumed, a Poisson step that is not yet committed could
//!   be drawn again, because steps are independent. A pass of balls in bins could not: a record
//!   could take part twice. Its bins would have to be synced with the private state before the
//!   pass's first commit.)
//! - *Each record once.* Every record belongs to one worker, for the whole run. Draws of different
//!   records are independent, so workers and processes need not agree on any of them.

use hushflow_mechanism::noise::{EntropyError, NoiseGenerator, NoiseSource};
use rand::Rng;
use std::fmt;
use std::num::NonZeroU64;
use std::ops::Range;
use std::str::FromStr;
use thiserror::Error;
use zeroize::Zeroizing;

/// Number of the random stream from which batches are drawn. No shard of a release has it.
const BATCH_STREAM: u64 = u64::MAX;

/// How records are assigned to steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// In one fixed, public order: every record takes part once in every pass, b steps apart.
    /// The batches are not random, so there is no amplification.
    InOrder,
    /// Poisson sampling; for a strategy with bands, cyclic Poisson sampling from one group per band
    /// (Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization").
    Poisson,
    /// Balls in bins, or random allocation: in every pass each record takes part in one random step
    /// of its group (Chua et al. 2024, "Balls-and-Bins Sampling for DP-SGD").
    BallsInBins,
}

impl Sampling {
    /// All schemes.
    pub const ALL: [Self; 3] = [Self::InOrder, Self::Poisson, Self::BallsInBins];
}

impl fmt::Display for Sampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InOrder => "in-order",
            Self::Poisson => "poisson",
            Self::BallsInBins => "balls-in-bins",
        })
    }
}

/// A name that is not one of a sampling scheme.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0:?} is not a sampling scheme: expected in-order, poisson or balls-in-bins")]
pub struct SamplingError(String);

impl FromStr for Sampling {
    type Err = SamplingError;

    fn from_str(text: &str) -> Result<Self, SamplingError> {
        let named = Self::ALL.into_iter().find(|sampling| sampling.to_string() == text);
        named.ok_or_else(|| SamplingError(text.into()))
    }
}

/// The batches of a run. Equal on every worker; draws nothing until a worker asks for a step.
#[derive(Clone, Debug)]
pub(crate) struct Batches {
    pub(crate) records: usize,
    pub(crate) scheme: Scheme,
    pub(crate) source: NoiseSource,
}

/// A sampling scheme with its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scheme {
    InOrder { batch_size: usize },
    Poisson { groups: NonZeroU64, probability: f64 },
    BallsInBins { groups: NonZeroU64, bins: NonZeroU64 },
}

impl Batches {
    /// Returns whether the number of records in a step is private.
    pub(crate) fn have_private_sizes(&self) -> bool {
        !matches!(self.scheme, Scheme::InOrder { .. })
    }

    /// Returns the batches of one worker.
    pub(crate) fn of_worker(self, worker: usize, workers: usize) -> WorkerBatches {
        WorkerBatches {
            batches: self,
            worker,
            workers,
            bins: Zeroizing::default(),
            batch: Zeroizing::default(),
        }
    }

    fn group(&self, step: u64, groups: NonZeroU64) -> Range<usize> {
        let (group, groups) = (u128::from((step - 1) % groups), u128::from(groups.get()));
        let border = |group: u128| (self.records as u128 * group / groups) as usize;
        border(group)..border(group + 1)
    }
}

/// One worker's share of the batches.
pub(crate) struct WorkerBatches {
    batches: Batches,
    worker: usize,
    workers: usize,
    /// Bin of each record of this worker in this pass, in the order of records.
    bins: Zeroizing<Vec<u64>>,
    batch: Zeroizing<Vec<usize>>,
}

impl WorkerBatches {
    /// Draws this worker's records of a step. Steps are drawn in order, from 1.
    ///
    /// # Errors
    /// [`EntropyError`] if the operating system fails; it is fatal.
    pub(crate) fn of_step(&mut self, step: u64) -> Result<&[usize], EntropyError> {
        let (worker, workers) = (self.worker, self.workers);
        let is_mine = |record: &usize| record % workers == worker;
        self.batch.clear();
        match self.batches.scheme {
            Scheme::InOrder { batch_size } => {
                let steps = (self.batches.records / batch_size).max(1) as u64;
                let start = ((step - 1) % steps) as usize * batch_size;
                let end = self.batches.records.min(start + batch_size);
                self.batch.extend((start..end).skip(worker).step_by(workers));
            }
            Scheme::Poisson { groups, probability } => {
                let mut generator = self.batches.source.generator(step, BATCH_STREAM)?;
                let group = self.batches.group(step, groups);
                let threshold = threshold(probability);
                let sampled = group.filter(|_| u128::from(generator.next_u64()) < threshold);
                self.batch.extend(sampled.filter(is_mine));
            }
            Scheme::BallsInBins { groups, bins } => {
                let steps = groups.get() * bins.get();
                if (step - 1).is_multiple_of(steps) {
                    let mut generator = self.batches.source.generator(step, BATCH_STREAM)?;
                    self.bins.clear();
                    for record in 0..self.batches.records {
                        let bin = uniform(&mut generator, bins);
                        self.bins.extend(is_mine(&record).then_some(bin));
                    }
                }
                let now = (step - 1) % steps / groups;
                let group = self.batches.group(step, groups).filter(is_mine);
                self.batch.extend(group.filter(|record| self.bins[record / workers] == now));
            }
        }
        Ok(&self.batch)
    }
}

/// Returns the number of 64-bit words that select a record. It is rounded down, so the probability
/// is at most the one that is accounted for.
fn threshold(probability: f64) -> u128 {
    // Exact: a power of two, and a truncation.
    (probability * 2f64.powi(64)) as u128
}

/// Draws a uniform number from 0..`bins`. Words of an incomplete last cycle are drawn again.
fn uniform(generator: &mut NoiseGenerator, bins: NonZeroU64) -> u64 {
    let surplus = (u64::MAX % bins + 1) % bins;
    loop {
        let word = generator.next_u64();
        if word <= u64::MAX - surplus {
            return word % bins;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEDED: NoiseSource = NoiseSource::Seeded(5);

    fn batches(records: usize, scheme: Scheme, source: NoiseSource) -> Batches {
        Batches { records, scheme, source }
    }

    fn poisson(groups: u64, probability: f64) -> Scheme {
        Scheme::Poisson { groups: NonZeroU64::new(groups).unwrap(), probability }
    }

    fn balls(groups: u64, bins: u64) -> Scheme {
        let [groups, bins] = [groups, bins].map(|number| NonZeroU64::new(number).unwrap());
        Scheme::BallsInBins { groups, bins }
    }

    fn drawn(batches: &Batches, steps: u64, workers: usize) -> Vec<Vec<usize>> {
        let mut shares: Vec<_> =
            (0..workers).map(|worker| batches.clone().of_worker(worker, workers)).collect();
        let step = |step| {
            let records = shares.iter_mut().flat_map(|share| share.of_step(step).unwrap().to_vec());
            let mut records: Vec<_> = records.collect();
            records.sort_unstable();
            records
        };
        (1..=steps).map(step).collect()
    }

    #[test]
    fn seeded_batches_are_equal_on_any_number_of_workers() {
        let in_order = Scheme::InOrder { batch_size: 20 };
        for scheme in [in_order, poisson(1, 0.3), poisson(4, 0.5), balls(1, 6), balls(3, 4)] {
            let batches = batches(103, scheme, SEEDED);
            let expected = drawn(&batches, 30, 1);
            for workers in [2, 3, 8] {
                assert_eq!(drawn(&batches, 30, workers), expected, "{scheme:?}");
            }
        }
    }

    #[test]
    fn fresh_entropy_draws_other_batches() {
        for scheme in [poisson(1, 0.5), balls(1, 6)] {
            let batches = batches(200, scheme, NoiseSource::System);
            assert_ne!(drawn(&batches, 3, 1), drawn(&batches, 3, 1));
        }
    }

    /// Steps of a record are at least as far apart as there are groups, and every record is in a
    /// group.
    #[test]
    fn steps_of_a_record_are_separated() {
        for (scheme, groups) in [(poisson(4, 1.0), 4), (balls(3, 5), 3), (balls(5, 1), 5)] {
            let batches = drawn(&batches(83, scheme, NoiseSource::System), 60, 2);
            for record in 0..83 {
                let steps: Vec<usize> = (0..60).filter(|&step| batches[step].contains(&record)).collect();
                assert!(!steps.is_empty() && steps.windows(2).all(|pair| pair[1] - pair[0] >= groups));
            }
        }
    }

    #[test]
    fn balls_in_bins_take_every_record_once_in_each_pass() {
        let batches = drawn(&batches(100, balls(2, 5), NoiseSource::System), 30, 3);
        for pass in batches.chunks(10) {
            let mut records = pass.concat();
            records.sort_unstable();
            assert!(records.into_iter().eq(0..100));
        }
        assert_ne!(batches[..10], batches[10..20]);
    }

    /// Frequencies are those of the scheme: each is a sum of at least 2·10⁴ independent draws and
    /// lies within 5.5 standard deviations, which fails by chance below 10⁻⁶ (seed fixed).
    #[test]
    fn draws_have_the_frequencies_of_the_scheme() {
        let check = |scheme, records: usize, expected: f64| {
            let batches = drawn(&batches(records, scheme, SEEDED), 40, 1);
            let number: usize = batches.iter().map(Vec::len).sum();
            let trials = (40 * records) as f64;
            let deviation = (trials * expected * (1.0 - expected)).sqrt();
            assert!((number as f64 - trials * expected).abs() < 5.5 * deviation, "{scheme:?}: {number}");
            batches
        };
        check(poisson(1, 0.01), 5000, 0.01);
        check(poisson(1, 0.7), 5000, 0.7);
        check(poisson(4, 0.2), 5000, 0.05);
        let bins = check(balls(1, 8), 8000, 0.125);
        let first: Vec<usize> = bins[..8].iter().map(Vec::len).collect();
        let deviation = (8000.0 * 0.125 * 0.875_f64).sqrt();
        assert!(first.iter().all(|&size| (size as f64 - 1000.0).abs() < 5.5 * deviation), "{first:?}");
    }

    #[test]
    fn probability_is_never_rounded_up() {
        for probability in [0.0, 1e-300, 0.1, 1.0 / 3.0, 0.999_999_999_999_999_9, 1.0] {
            let taken = threshold(probability);
            assert!(taken as f64 <= probability * 2f64.powi(64), "{probability}");
        }
        assert_eq!((threshold(1.0), threshold(0.5)), (1 << 64, 1 << 63));
    }

    #[test]
    fn schemes_have_names() {
        for sampling in Sampling::ALL {
            assert_eq!(sampling.to_string().parse(), Ok(sampling));
        }
        let error = "shuffle".parse::<Sampling>().unwrap_err().to_string();
        assert!(error.starts_with("\"shuffle\" is not a sampling scheme: expected in-order, poisson"));
    }
}
