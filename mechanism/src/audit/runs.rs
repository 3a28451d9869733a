//! Runs many trials in parallel: some to learn a test, others to count its events.
//!
//! # Statistic
//! The statistic of a trial is the linear one that best separates the two worlds.
//!
//! The adversary sees y = v + Z, where v is one of two known vectors. If Z has independent
//! coordinates of deviation σ_q, as claimed, the most powerful test projects y on the difference
//! d = v⁰ − v¹ in units of the noise (Neyman & Pearson), and
//!
//! ```text
//! T = Σ_q (y − v¹)_q d_q/σ_q² / ‖d/σ‖      N(‖d/σ‖, 1) in the one world, N(0, 1) in the other
//! ```
//!
//! A broken release need not have such noise. If noise is drawn again after a restart, it is the
//! same in two epochs, and their difference has none. So the covariance of the noise is learned
//! first, from separate trials, and the direction is Σ̂⁻¹d (Fisher's linear discriminant). The
//! bound from the other trials is valid for any learned direction, because the statistic is fixed
//! before they are drawn. For correct noise, learning from n trials lowers the bound of μ by about
//! the share `FEATURES/n`.
//!
//! Releases of more than [`FEATURES`] coordinates are cut into at most [`FEATURES`] runs of
//! coordinates, and each run is projected on its part of d.

use super::bound::{Count, EventPair};
use super::{AuditError, AuditSettings, AuditSubject, Canary};
use crate::accounting::Delta;
use crate::mechanism::CoordinateNoise;
use crate::noise::NoiseSource;
use nalgebra::{Cholesky, DMatrix, DVector};
use rand::Rng;

/// Number of trials from which covariance and thresholds are learned.
const LEARNING_TRIALS: usize = 16_384;

/// Number of thresholds that are compared for the direct bound of ε, from one world's mean to
/// [`MAX_DEVIATIONS`] deviations above it.
const THRESHOLDS: u32 = 60;

const MAX_DEVIATIONS: f64 = 6.0;

/// A repeatable run: trials with their own keys, half of them in each world.
pub(super) struct TrialRuns<'a> {
    subject: &'a dyn AuditSubject,
    worlds: Vec<usize>,
    sums: Vec<Vec<i128>>,
}

/// The statistic and thresholds that are applied to a trial.
pub(super) struct ThresholdTest {
    statistic: Statistic,
    /// The best threshold for μ.
    centre: f64,
    /// The best threshold for ε at δ.
    far: f64,
}

/// Counts of the events of a test, by world.
#[derive(Default)]
pub(super) struct EventCounts {
    pub(super) centre: EventPair,
    pub(super) far: EventPair,
    /// Noisy values whose lowest bit is 1.
    pub(super) odd: [Count; 2],
}

impl<'a> TrialRuns<'a> {
    /// Prepares a run. For every pair of trials, a coin decides which trial is in which world.
    pub(super) fn new(
        subject: &'a dyn AuditSubject,
        epochs: u64,
        canary: &Canary,
        trials: usize,
    ) -> Result<Self, AuditError> {
        let mut coins = NoiseSource::System.generator(0, 0)?;
        let pair = |_| if coins.next_u64() & 1 == 0 { [0, 1] } else { [1, 0] };
        let worlds: Vec<usize> = (0..trials.div_ceil(2)).flat_map(pair).collect();
        let sums = subject.sums(&canary.stream(epochs, &worlds))?;
        Ok(Self { subject, worlds, sums })
    }

    /// Runs once. Returns for each trial its world and its published values, epochs end to end.
    fn run(&self) -> Result<impl Iterator<Item = (usize, Vec<i128>)> + '_, AuditError> {
        let epochs = self.subject.release(&self.sums, NoiseSource::System)?;
        let trials = self.worlds.len();
        Ok(self.worlds.iter().enumerate().map(move |(trial, &world)| {
            let of_epoch = |row: &Vec<i128>| {
                let width = row.len() / trials;
                row[trial * width..(trial + 1) * width].to_vec()
            };
            (world, epochs.iter().flat_map(of_epoch).collect())
        }))
    }

    /// Learns the covariance of the noise, and the thresholds whose events are most informative.
    pub(super) fn learn(
        &self,
        worlds: &CanaryWorlds,
        delta: Delta,
        settings: &AuditSettings,
    ) -> Result<ThresholdTest, AuditError> {
        let features = worlds.features();
        let mut covariance = Covariance::new(features.number());
        let mut trials = Vec::new();
        while trials.len() < LEARNING_TRIALS {
            for (world, published) in self.run()? {
                let values = features.of(&published);
                covariance.add(world, &values);
                trials.push((world, values));
            }
        }
        let combination = covariance.whitened(features.of(&worlds.moved()));
        let mut of_world = [vec![], vec![]];
        for (world, values) in &trials {
            of_world[*world].push(combination.dot(values));
        }
        let means = of_world.each_ref().map(|values| mean(values.iter().copied()));
        let squares = of_world
            .iter()
            .zip(means)
            .flat_map(|(values, mean)| values.iter().map(move |value| (value - mean).powi(2)));
        let deviation = mean(squares).sqrt();
        Ok(ThresholdTest::new(features.combined(&combination), means, deviation, delta, settings))
    }

    /// Runs once and counts the events in the published values.
    pub(super) fn count_events(
        &self,
        test: &ThresholdTest,
        counts: &mut EventCounts,
    ) -> Result<(), AuditError> {
        for (world, published) in self.run()? {
            let value = test.statistic.of(&published);
            counts.centre.worlds[world].add(value > test.centre);
            counts.far.worlds[world].add(value > test.far);
            for value in test.statistic.noisy(&published) {
                counts.odd[world].add(value & 1 == 1);
            }
        }
        Ok(())
    }
}

impl ThresholdTest {
    /// Chooses thresholds for a statistic of these means and deviation, as if it were normal. If it
    /// is not, the bounds are weaker but valid.
    pub(super) fn new(
        statistic: Statistic,
        means: [f64; 2],
        deviation: f64,
        delta: Delta,
        settings: &AuditSettings,
    ) -> Self {
        let each = settings.trials / 2;
        let expected = |score: f64| {
            let hits = libm::erfc(score / std::f64::consts::SQRT_2) / 2.0 * each as f64;
            Count { hits: (hits.round() as u64).min(each), trials: each }
        };
        let promise = |score: &f64| {
            let shift = (means[0] - means[1]) / deviation;
            let event = EventPair { worlds: [expected(score - shift), expected(*score)] };
            event.epsilon(delta, settings.alpha())
        };
        let scores = (0..=THRESHOLDS).map(|i| MAX_DEVIATIONS * f64::from(i) / f64::from(THRESHOLDS));
        let best = scores.max_by(|a, b| promise(a).total_cmp(&promise(b))).unwrap_or_default();
        Self { statistic, centre: (means[0] + means[1]) / 2.0, far: means[1] + best * deviation }
    }
}

impl EventCounts {
    pub(super) fn trials(&self) -> u64 {
        self.centre.worlds.iter().map(|count| count.trials).sum()
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, number) = values.fold((0.0, 0.0), |(sum, number), value| (sum + value, number + 1.0));
    sum / f64::max(number, 1.0)
}

/// Number of features of a trial.
pub(super) const FEATURES: usize = 32;

/// Ridge that keeps a singular covariance invertible, as a share of its trace.
const RIDGE: f64 = 1e-9;

/// A linear function of the published values of a trial, epochs end to end.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Statistic {
    origin: Vec<i128>,
    weights: Vec<f64>,
    /// Whether a coordinate has noise.
    is_noisy: Vec<bool>,
}

impl Statistic {
    pub(super) fn of(&self, published: &[i128]) -> f64 {
        self.terms(published).sum()
    }

    fn terms(&self, published: &[i128]) -> impl Iterator<Item = f64> {
        let terms = published.iter().zip(&self.origin).zip(&self.weights);
        terms.map(|((y, origin), weight)| y.wrapping_sub(*origin) as f64 * weight)
    }

    /// Returns the values that have noise.
    pub(super) fn noisy(&self, published: &[i128]) -> impl Iterator<Item = i128> {
        published.iter().zip(&self.is_noisy).filter(|(_, noisy)| **noisy).map(|(value, _)| *value)
    }
}

/// The properties of a canary that are known before any noise is drawn.
pub(super) struct CanaryWorlds {
    /// v¹, the release of the second world without noise.
    pub(super) origin: Vec<i128>,
    /// d = v⁰ − v¹, the difference of the two releases without noise.
    pub(super) difference: Vec<i128>,
    /// Claimed reciprocal deviations in grid units; 0 if a coordinate is public.
    precisions: Vec<f64>,
}

impl CanaryWorlds {
    /// Builds the worlds. `noise` is that of one epoch of one trial, and is the same in every
    /// epoch.
    pub(super) fn new(worlds: [Vec<i128>; 2], noise: &[CoordinateNoise]) -> Self {
        let [one, origin] = worlds;
        let difference = one.iter().zip(&origin).map(|(a, b)| a.wrapping_sub(*b)).collect();
        let precision = |noise: &CoordinateNoise| noise.scale.map_or(0.0, |scale| scale.sigma().recip());
        let precisions = noise.iter().map(precision).cycle().take(origin.len()).collect();
        Self { origin, difference, precisions }
    }

    /// Returns d/σ.
    fn in_noise_units(&self) -> Vec<f64> {
        self.difference.iter().zip(&self.precisions).map(|(&d, precision)| d as f64 * precision).collect()
    }

    fn statistic(&self, weights_in_noise_units: &[f64]) -> Statistic {
        let weights = weights_in_noise_units.iter().zip(&self.precisions).map(|(w, precision)| w * precision);
        let is_noisy = self.precisions.iter().map(|&precision| precision > 0.0).collect();
        Statistic { origin: self.origin.clone(), weights: weights.collect(), is_noisy }
    }

    /// Returns the features whose covariance is learned.
    pub(super) fn features(&self) -> Features {
        let direction = self.in_noise_units();
        let length = direction.len().div_ceil(FEATURES).max(1);
        let weights: Vec<f64> = direction.chunks(length).flat_map(|run| normalised(run.to_vec())).collect();
        Features { statistic: self.statistic(&weights), length }
    }

    /// Returns v⁰, the release of the first world without noise.
    pub(super) fn moved(&self) -> Vec<i128> {
        let values = self.origin.iter().zip(&self.difference);
        values.map(|(origin, difference)| origin.wrapping_add(*difference)).collect()
    }
}

/// Statistics of runs of `length` coordinates each.
pub(super) struct Features {
    statistic: Statistic,
    length: usize,
}

impl Features {
    pub(super) fn number(&self) -> usize {
        self.statistic.weights.len().div_ceil(self.length)
    }

    pub(super) fn of(&self, published: &[i128]) -> DVector<f64> {
        let mut values = DVector::zeros(self.number());
        for (position, term) in self.statistic.terms(published).enumerate() {
            values[position / self.length] += term;
        }
        values
    }

    /// Returns a linear combination of the features.
    pub(super) fn combined(&self, combination: &DVector<f64>) -> Statistic {
        let weights = self.statistic.weights.iter().enumerate();
        let weights = weights.map(|(position, weight)| weight * combination[position / self.length]);
        Statistic { weights: weights.collect(), ..self.statistic.clone() }
    }
}

/// Returns a vector of norm 1 in the same direction, or the first axis for a zero vector.
fn normalised(mut vector: Vec<f64>) -> Vec<f64> {
    let norm = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
    if norm > 0.0 {
        vector.iter_mut().for_each(|value| *value /= norm);
    } else if let Some(first) = vector.first_mut() {
        *first = 1.0;
    }
    vector
}

/// Covariance of the features' noise, where each world is centred on its own mean.
pub(super) struct Covariance {
    counts: [f64; 2],
    sums: [DVector<f64>; 2],
    products: DMatrix<f64>,
}

impl Covariance {
    pub(super) fn new(features: usize) -> Self {
        let zero = || DVector::zeros(features);
        Self { counts: [0.0; 2], sums: [zero(), zero()], products: DMatrix::zeros(features, features) }
    }

    pub(super) fn add(&mut self, world: usize, features: &DVector<f64>) {
        self.counts[world] += 1.0;
        self.sums[world] += features;
        self.products.ger(1.0, features, features, 1.0);
    }

    /// Returns Σ̂⁻¹d, or d if the inverse does not exist.
    pub(super) fn whitened(&self, difference: DVector<f64>) -> DVector<f64> {
        let mut covariance = self.products.clone();
        for (count, sum) in self.counts.iter().zip(&self.sums) {
            covariance.ger(-1.0 / count.max(1.0), sum, sum, 1.0);
        }
        let ridge = RIDGE * covariance.trace().max(f64::MIN_POSITIVE);
        covariance += DMatrix::identity(difference.len(), difference.len()) * ridge;
        Cholesky::new(covariance).map_or(difference.clone(), |factors| factors.solve(&difference))
    }
}
