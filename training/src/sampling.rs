//! Batches: which records take part in which step, and the randomness that chooses them.
//!
//! A plan owns its batches. A [`TrainingSetup`](crate::TrainingSetup) of a plan holds them, and the
//! loop passes each step's records to the learner. So noise that is calibrated for sampled batches
//! can't be used with others. (A learner that takes gradients of other records than it was passed
//! breaks its contract, like one that takes gradients of two records at once.)
//!
//! [`hushflow_mechanism::sampling`] has the schemes and their guarantee.
//!
//! # What the guarantee needs of the draws
//! - *Independent of everything that is released.* All draws of a run follow from one [`BatchKey`]
//!   of 256 bits of operating-system entropy, which is used for nothing else.
//! - *Secret.* Batches stay in memory, are wiped, and are in no log, error or message. The number
//!   of records of a step is secret as well: no proof conditions on it. Counts are released as 0
//!   plus noise, or as 0. A step takes longer for a larger batch. The guarantee does not hold
//!   against someone who can time the steps.
//! - *Drawn once.* The batch of a step is a function of the key and of the step. A run that keeps
//!   its key, as privately as its records, goes on after a crash with the same batches as an
//!   uninterrupted run: no batch is drawn twice. The loop of this crate keeps no key. A new run of
//!   it is a new release with a budget of its own.
//! - *Each record once.* Every record belongs to one worker, for the whole run. Draws of different
//!   records are independent, so workers and processes need not agree on any of them.

use hushflow_mechanism::noise::{EntropyError, NoiseGenerator, NoiseSource};
use hushflow_mechanism::sampling::{Scheme, group};
use rand::Rng;
use std::num::NonZeroU64;
use zeroize::Zeroizing;

pub use hushflow_mechanism::sampling::Sampling;

/// Number of the random stream from which batches are drawn. No shard of a release has it.
const BATCH_STREAM: u64 = u64::MAX;

/// The secret that chooses the batches of a run: 256 bits of the operating system's entropy. Wiped.
///
/// The words of step t are the keystream of ChaCha20 under this key and the nonce t. Balls in bins
/// take the words of a pass from its first step. Noise is the keystream of other keys.
#[derive(Clone)]
pub struct BatchKey(Zeroizing<[u8; KEY_BYTES]>);

/// Number of bytes of a [`BatchKey`].
pub const KEY_BYTES: usize = 32;

impl BatchKey {
    /// Draws a new key. A seeded source gives the key of its seed.
    ///
    /// # Errors
    /// [`EntropyError`] if the operating system fails; it is fatal.
    pub fn draw(source: NoiseSource) -> Result<Self, EntropyError> {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        source.generator(0, BATCH_STREAM)?.fill_bytes(&mut *key);
        Ok(Self(key))
    }

    /// Restores a key.
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Its bytes, to be kept as privately as the records are.
    pub fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    fn generator(&self, step: u64) -> NoiseGenerator {
        NoiseGenerator::of_key(&self.0, step)
    }
}

/// The batches of a run. Equal on every worker; draws nothing until a worker asks for a step.
#[derive(Clone, Debug)]
pub(crate) struct DrawnBatches {
    pub(crate) records: usize,
    pub(crate) scheme: Scheme,
    pub(crate) source: NoiseSource,
}

impl DrawnBatches {
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
            key: None,
            pass: None,
            bins: Zeroizing::default(),
            batch: Zeroizing::default(),
        }
    }
}

/// One worker's share of the batches.
pub struct WorkerBatches {
    batches: DrawnBatches,
    worker: usize,
    workers: usize,
    /// Drawn for the first step.
    key: Option<BatchKey>,
    /// First step of the pass of `bins`.
    pass: Option<u64>,
    /// Bin of each record of this worker in this pass, in the order of records.
    bins: Zeroizing<Vec<u64>>,
    batch: Zeroizing<Vec<usize>>,
}

impl WorkerBatches {
    /// Returns the whole batches that a key chooses.
    pub fn of_key(records: usize, scheme: Scheme, key: BatchKey) -> Self {
        // The source draws keys only, and here is one.
        let batches = DrawnBatches { records, scheme, source: NoiseSource::System };
        Self { key: Some(key), ..batches.of_worker(0, 1) }
    }

    /// Returns this worker's records of a step, numbered from 0 in their public order. A step's
    /// records are the same whenever it is asked for.
    ///
    /// # Errors
    /// [`EntropyError`] if the operating system fails; it is fatal.
    pub fn of_step(&mut self, step: u64) -> Result<&[usize], EntropyError> {
        let (worker, workers) = (self.worker, self.workers);
        let is_mine = |record: &usize| record % workers == worker;
        let DrawnBatches { records, scheme, source } = self.batches;
        let key = match self.key.take() {
            Some(key) => self.key.insert(key),
            None => self.key.insert(BatchKey::draw(source)?),
        };
        let group = |groups| {
            let group = group(records as u64, step, groups);
            group.start as usize..group.end as usize
        };
        self.batch.clear();
        match scheme {
            Scheme::InOrder { batch_size } => {
                let batch_size = usize::try_from(batch_size).unwrap_or(usize::MAX).max(1);
                let steps = (records / batch_size).max(1) as u64;
                let start = ((step - 1) % steps) as usize * batch_size;
                let end = records.min(start + batch_size);
                self.batch.extend((start..end).skip(worker).step_by(workers));
            }
            Scheme::Poisson { groups, probability } => {
                let mut generator = key.generator(step);
                let threshold = threshold(probability);
                let sampled = group(groups).filter(|_| u128::from(generator.next_u64()) < threshold);
                self.batch.extend(sampled.filter(is_mine));
            }
            Scheme::BallsInBins { groups, bins } => {
                let steps = groups.get() * bins.get();
                let pass = step - (step - 1) % steps;
                if self.pass != Some(pass) {
                    let mut generator = key.generator(pass);
                    self.bins.clear();
                    for record in 0..records {
                        let bin = uniform(&mut generator, bins);
                        self.bins.extend(is_mine(&record).then_some(bin));
                    }
                    self.pass = Some(pass);
                }
                let now = (step - pass) / groups;
                let mine = group(groups).filter(is_mine);
                self.batch.extend(mine.filter(|record| self.bins[record / workers] == now));
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
    use hushflow_mechanism::audit::bound::Count;

    const SEEDED: NoiseSource = NoiseSource::Seeded(5);

    fn batches(records: usize, scheme: Scheme, source: NoiseSource) -> DrawnBatches {
        DrawnBatches { records, scheme, source }
    }

    fn poisson(groups: u64, probability: f64) -> Scheme {
        Scheme::Poisson { groups: NonZeroU64::new(groups).unwrap(), probability }
    }

    fn balls(groups: u64, bins: u64) -> Scheme {
        let [groups, bins] = [groups, bins].map(|number| NonZeroU64::new(number).unwrap());
        Scheme::BallsInBins { groups, bins }
    }

    fn drawn(batches: &DrawnBatches, steps: u64, workers: usize) -> Vec<Vec<usize>> {
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

    /// Asserts that the share of an event may be `expected`: a false alarm has a probability of at
    /// most 2·10⁻⁹ (Clopper & Pearson).
    #[track_caller]
    fn assert_frequency(hits: usize, trials: usize, expected: f64) {
        let count = Count { hits: hits as u64, trials: trials as u64 };
        let possible = count.at_least(1e-9)..=count.at_most(1e-9);
        assert!(possible.contains(&expected), "{count:?}, expected {expected}");
    }

    #[test]
    fn poisson_samples_have_their_rate() {
        for (groups, probability) in [(1, 0.01), (1, 0.7), (4, 0.2)] {
            let batches = drawn(&batches(5000, poisson(groups, probability), SEEDED), 40, 1);
            let number = batches.iter().map(Vec::len).sum();
            assert_frequency(number, 40 * 5000, probability / groups as f64);
        }
    }

    /// Every pair of bins of two passes has its share of the records, so bins are uniform, and
    /// independent of those of the pass before.
    #[test]
    fn balls_fall_into_uniform_and_independent_bins() {
        let records = 8000;
        let batches = drawn(&batches(records, balls(1, 8), SEEDED), 16, 1);
        for first in &batches[..8] {
            for second in &batches[8..] {
                let both = first.iter().filter(|record| second.binary_search(record).is_ok()).count();
                assert_frequency(both, records, 1.0 / 64.0);
            }
        }
    }

    #[test]
    fn probability_is_never_rounded_up() {
        for probability in [0.0, 1e-300, 0.1, 1.0 / 3.0, 0.999_999_999_999_999_9, 1.0] {
            let taken = threshold(probability);
            assert!(taken as f64 <= probability * 2f64.powi(64), "{probability}");
        }
        assert_eq!((threshold(1.0), threshold(0.5)), (1 << 64, 1 << 63));
    }

    /// A run that resumes at any step with its key takes the same batches as an uninterrupted run.
    #[test]
    fn a_key_chooses_the_same_batches_from_any_step_on() {
        for scheme in [Scheme::InOrder { batch_size: 20 }, poisson(4, 0.5), balls(3, 4)] {
            let key = BatchKey::draw(NoiseSource::System).unwrap();
            let mut whole = WorkerBatches::of_key(103, scheme, key.clone());
            let expected: Vec<_> = (1..=40).map(|step| whole.of_step(step).unwrap().to_vec()).collect();
            for first in [1, 2, 12, 13, 40] {
                let key = BatchKey::from_bytes(*key.as_bytes());
                let mut resumed = WorkerBatches::of_key(103, scheme, key);
                for step in (first..=40).chain([first]) {
                    assert_eq!(resumed.of_step(step).unwrap(), expected[step as usize - 1], "{scheme:?}");
                }
            }
        }
    }
}
