//! What an accountant needs of random batches: the participations of a record, and their noise.

use serde::{Deserialize, Serialize};

use crate::accounting::amplification::{AmplificationError, RandomParticipation};
use crate::accounting::discrete::Discreteness;
use crate::accounting::pld::{Composition, DominatingPair};
use crate::accounting::{AccountingError, Delta, MARGIN, NoiseMultiplier};
use crate::sensitivity::Neighbours;

/// The participations of a record and their noise: what an accountant needs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomContributions {
    /// The steps in which a record takes part.
    pub participation: RandomParticipation,
    /// Deviation of the noise over the largest norm of one record's contribution.
    pub noise_multiplier: f64,
}

impl RandomContributions {
    /// Returns the pair that dominates a step or a round, and their number.
    ///
    /// # Errors
    /// [`AmplificationError`].
    pub fn dominating(&self, neighbours: Neighbours) -> Result<(DominatingPair, u64), AmplificationError> {
        self.participation.dominating(neighbours, NoiseMultiplier::new(self.noise_multiplier)?)
    }

    /// Returns ε of a release of these contributions, rounded up; infinite if the grid uses up δ.
    /// `pair` is that of [`dominating`](Self::dominating), which depends on the noise and not on
    /// the number of steps or rounds.
    pub fn epsilon(&self, pair: DominatingPair, discreteness: Discreteness, delta: Delta) -> f64 {
        let composition = Composition::default().compose(pair, self.participation.count()).either_direction();
        let found = composition.with_discreteness(discreteness).epsilon(delta);
        found.map_or(f64::INFINITY, |epsilon| epsilon.high)
    }
}

impl RandomContributions {
    /// Returns the noise multiplier of one Gaussian mechanism that reveals at least as much, and
    /// the total variation to add for it, at most `variation`.
    ///
    /// Given the steps in which the record takes part, the same in both streams, the release is a
    /// Gaussian mechanism. Its μ² is the number of these steps times the squared distance of
    /// neighbours over the noise. Divergences are jointly convex, so the most steps bound it. Balls
    /// in bins take part once in each round. Of n Poisson steps more than k have a probability of
    /// at most `exp(−n KL(k/n, q))` (Chernoff), which is the total variation.
    ///
    /// # Errors
    /// [`AccountingError`] if there is no such noise multiplier.
    pub fn gaussian_cover(
        &self,
        neighbours: Neighbours,
        variation: f64,
    ) -> Result<(NoiseMultiplier, f64), AccountingError> {
        let (steps, variation) = match self.participation {
            RandomParticipation::Allocation { rounds, .. } => (rounds, 0.0),
            RandomParticipation::Poisson { rate, steps } => most_steps(rate, steps, variation),
        };
        let norms = match neighbours {
            Neighbours::ReplaceOneInPlace => 2.0,
            _ => 1.0,
        };
        let multiplier = self.noise_multiplier / norms / (steps.max(1) as f64).sqrt() * (1.0 - MARGIN);
        Ok((NoiseMultiplier::new(multiplier)?, variation))
    }
}

/// Returns a number of steps that a binomial number exceeds with at most this probability, and a
/// bound of that probability.
fn most_steps(rate: f64, steps: u64, probability: f64) -> (u64, f64) {
    let log_bound = |most: u64| {
        let share = (most + 1) as f64 / steps as f64;
        if most >= steps {
            return f64::NEG_INFINITY;
        }
        if share <= rate {
            return 0.0;
        }
        let term = |share: f64, rate: f64| if share == 0.0 { 0.0 } else { share * (share / rate).ln() };
        let divergence = term(share, rate) + term(1.0 - share, 1.0 - rate);
        // The margin is for the rounding of the difference.
        -(steps as f64) * (divergence - 4.0 * f64::EPSILON).max(0.0)
    };
    let (mut low, mut high) = (0, steps);
    while low < high {
        let middle = low + (high - low) / 2;
        if log_bound(middle) <= probability.ln() { high = middle } else { low = middle + 1 }
    }
    (high, log_bound(high).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bound of a binomial tail holds, and is not far from the exact one.
    #[test]
    fn few_records_take_part_more_often() {
        for (rate, steps, probability) in
            [(0.01, 1000, 1e-9), (0.5, 40, 1e-6), (0.9, 10, 1e-12), (1.0, 7, 0.1)]
        {
            let (most, bound) = most_steps(rate, steps, probability);
            assert!(bound <= probability);
            let tail = |most: u64| {
                let mut term = (1.0 - rate).powi(steps as i32);
                let mut sum = 0.0;
                for taken in 0..steps {
                    term *= (steps - taken) as f64 / (taken + 1) as f64 * rate / (1.0 - rate);
                    sum += if taken + 1 > most { term } else { 0.0 };
                }
                sum
            };
            if rate < 1.0 && most < steps {
                assert!(tail(most) <= bound, "{rate} {steps}: {} {bound}", tail(most));
                assert!(most_steps(rate, steps, probability * 1e4).0 <= most);
            }
            assert!(most as f64 >= rate * steps as f64);
        }
        assert_eq!(most_steps(1.0, 7, 0.1), (7, 0.0));
        assert!(most_steps(0.01, 1000, 1e-9).0 < 45);
    }

    /// The cover of balls in bins is the mechanism of one participation in each round, and that of
    /// Poisson steps needs more.
    #[test]
    fn covers_have_the_distance_of_the_most_participations() {
        let of = |participation| RandomContributions { participation, noise_multiplier: 6.0 };
        let balls = of(RandomParticipation::Allocation { bins: 10, rounds: 9 });
        let (blanked, none) = balls.gaussian_cover(Neighbours::ZeroOut, 1e-12).unwrap();
        assert!((blanked.value() / 2.0 - 1.0).abs() < 1e-9 && none == 0.0);
        let (replaced, _) = balls.gaussian_cover(Neighbours::ReplaceOneInPlace, 1e-12).unwrap();
        assert!((replaced.value() - 1.0).abs() < 1e-9);
        let poisson = of(RandomParticipation::Poisson { rate: 0.1, steps: 90 });
        let (cover, variation) = poisson.gaussian_cover(Neighbours::ZeroOut, 1e-12).unwrap();
        assert!(cover.value() < 1.3 && cover.value() > 6.0 / 90f64.sqrt() && variation <= 1e-12);
    }
}
