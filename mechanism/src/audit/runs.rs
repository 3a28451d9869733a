//! Runs of many trials side by side: some to learn a test from, others to count its events.

use super::bound::{Count, EventPair};
use super::statistic::{CanaryWorlds, Covariance, Statistic};
use super::{AuditError, AuditSettings, AuditSubject, Canary};
use crate::accounting::Delta;
use crate::noise::NoiseSource;
use rand::Rng;

/// Number of trials from which covariance and thresholds are learned.
const LEARNT: usize = 16_384;

/// Number of thresholds that are compared for the direct bound of ε, from one world's mean to
/// [`HIGHEST`] deviations above it.
const THRESHOLDS: u32 = 60;

const HIGHEST: f64 = 6.0;

/// A repeatable run: trials with their own keys, half of them in each world.
pub(super) struct TrialRuns<'a> {
    subject: &'a dyn AuditSubject,
    worlds: Vec<usize>,
    sums: Vec<Vec<i128>>,
}

/// The statistic and thresholds that are applied to a trial.
pub(super) struct ThresholdTest {
    statistic: Statistic,
    /// The best thresholds for μ, and for ε at δ.
    centre: f64,
    far: f64,
}

/// The counts.
#[derive(Default)]
pub(super) struct EventCounts {
    pub(super) centre: EventPair,
    pub(super) far: EventPair,
    /// Lowest bits that are set.
    pub(super) odd: [Count; 2],
}

impl<'a> TrialRuns<'a> {
    /// For every pair of trials, a coin decides which trial is in which world.
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
        known: &CanaryWorlds,
        delta: Delta,
        settings: &AuditSettings,
    ) -> Result<ThresholdTest, AuditError> {
        let features = known.features();
        let mut covariance = Covariance::new(features.number());
        let mut trials = Vec::new();
        while trials.len() < LEARNT {
            for (world, published) in self.run()? {
                let values = features.of(&published);
                covariance.add(world, &values);
                trials.push((world, values));
            }
        }
        let combination = covariance.whitened(features.of(&known.moved()));
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

    /// Runs once, and counts.
    pub(super) fn look(&self, test: &ThresholdTest, seen: &mut EventCounts) -> Result<(), AuditError> {
        for (world, published) in self.run()? {
            let value = test.statistic.of(&published);
            seen.centre.worlds[world].add(value > test.centre);
            seen.far.worlds[world].add(value > test.far);
            for value in test.statistic.noisy(&published) {
                seen.odd[world].add(value & 1 == 1);
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
        let scores = (0..=THRESHOLDS).map(|i| HIGHEST * f64::from(i) / f64::from(THRESHOLDS));
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
