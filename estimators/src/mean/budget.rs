//! The budget of one estimate, in μ² of Gaussian differential privacy, and the spending of each
//! step.
//!
//! # Why it may be spent adaptively
//! Every release of the Gaussian methods is an exact discrete Gaussian on integers. For every pair
//! of neighbours it moves by at most Δ deviations, and [`MeanBudget::spend`] charges Δ². The next
//! query, its share and the decision to stop depend only on earlier releases and public numbers. So
//! Σ Δ² ≤ μ² along every path, and the proof in `docs/privacy.md` ("Adaptivity, and why Gaussian
//! accounting may be used") applies: all releases together are no worse than *one* Gaussian
//! mechanism of noise multiplier 1/μ. A run that ends early spends the rest of its budget on its
//! last release.
//!
//! # δ
//! A share of 1/1024 of δ pays for total variation, (1 + e^ε)τ in total: of discrete noise from its
//! ideal, and of thresholds of histograms (`range`). σ = 1/μ is calibrated for the rest.
//!
//! # DPthreshold
//! DPthreshold (Algorithms 11 and 17): a score above which a random share of records is removed.
//!
//! Scores are counted in bins that double in width, from 1/4 to the largest possible score, which
//! is public. ρ is the largest bin edge such that the scores' excess over it, counted from their
//! bins' lower edges, is at least 0.31 of their total excess. The counts are one Gaussian release
//! of one histogram. The total excess follows from the moments released before.

use super::release::ClippedRecords;
use super::{MeanError, release};
use hushflow_mechanism::accounting::discrete::Discreteness;
use hushflow_mechanism::accounting::{Delta, Epsilon, NoiseMultiplier, discrete, gaussian};
use hushflow_mechanism::noise::NoiseGenerator;
use hushflow_mechanism::numbers;
use serde::Serialize;

/// Share of δ for total variation.
const VARIATION_SHARE: f64 = 1.0 / 1024.0;

/// Relative slack of μ² for rounding in sums of parts.
const SLACK: f64 = 1e-9;

/// Share of total variation for thresholds of histograms. The other half is for discrete noise.
const THRESHOLD_SHARE: f64 = 0.5;

/// Spending of one step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepCost {
    /// Purpose of the step: one of `STEPS`.
    pub step: &'static str,
    /// Number of releases of this kind.
    pub releases: u32,
    /// μ² of Gaussian differential privacy; 0 for other steps.
    pub squared_mu: f64,
    /// ε of a step that is not Gaussian; these add up by basic composition.
    pub epsilon: f64,
    /// δ of a step that is not Gaussian.
    pub delta: f64,
}

numbers!(struct StepCost { step: STEPS, releases, squared_mu, epsilon, delta });

/// Purposes of steps.
const STEPS: [&str; 13] = [
    "scale",
    "directions",
    "directed scale",
    "range",
    "refinement",
    "threshold",
    "rounds",
    "mean",
    "radii",
    "balloons",
    "goodness",
    "draw",
    "median",
];

#[derive(Clone, Debug)]
pub(super) struct MeanBudget {
    epsilon: Epsilon,
    delta: Delta,
    squared_mu: f64,
    /// The μ² to which shares refer.
    divisible: f64,
    /// Bound of τ for all draws and thresholds.
    variation: f64,
    /// Total variation of the draws so far.
    spent_variation: f64,
    parts: Vec<StepCost>,
}

impl MeanBudget {
    /// Converts (ε, δ) into μ² of one Gaussian mechanism.
    pub(super) fn new(epsilon: Epsilon, delta: Delta) -> Result<Self, MeanError> {
        let variation = delta.value() * VARIATION_SHARE / (1.0 + epsilon.value().exp());
        let uncountable =
            MeanError::Uncountable { epsilon: epsilon.value(), delta: delta.value(), released: false };
        let reserved = Discreteness::of_total_variation(variation).map_err(|_| uncountable)?;
        let sigma = discrete::noise_multiplier_rounded_up(epsilon, delta, reserved)?;
        let squared_mu = sigma.mu().powi(2) * (1.0 - SLACK);
        Ok(Self {
            epsilon,
            delta,
            squared_mu,
            divisible: squared_mu,
            variation,
            spent_variation: 0.0,
            parts: Vec::new(),
        })
    }

    /// The μ² to which shares refer: the whole of it until [`MeanBudget::divide_rest`].
    pub(super) fn whole(&self) -> f64 {
        self.divisible
    }

    /// Makes later shares refer to the rest.
    pub(super) fn divide_rest(&mut self) {
        self.divisible = self.left();
    }

    pub(super) fn left(&self) -> f64 {
        (self.squared_mu - self.spent()).max(0.0)
    }

    fn spent(&self) -> f64 {
        self.parts.iter().map(|part| part.squared_mu).sum()
    }

    /// τ for the threshold of each of `histograms` histograms.
    pub(super) fn threshold_variation(&self, histograms: u32) -> f64 {
        self.variation * THRESHOLD_SHARE / f64::from(histograms)
    }

    /// Charges a release of μ² with this number of draws, on a grid of `grid_scale` steps per
    /// deviation.
    ///
    /// # Errors
    /// [`MeanError::Overspent`] if it exceeds the rest, and [`MeanError::Uncountable`] if the grid
    /// is too coarse for δ.
    pub(super) fn spend(
        &mut self,
        step: &'static str,
        squared_mu: f64,
        grid_scale: f64,
        draws: f64,
    ) -> Result<(), MeanError> {
        self.spent_variation += Discreteness::new(grid_scale, draws)?.total_variation();
        let affordable = self.spent() + squared_mu <= self.squared_mu * (1.0 + SLACK / 2.0);
        if self.spent_variation > self.variation * (1.0 - THRESHOLD_SHARE) {
            let (epsilon, delta) = (self.epsilon.value(), self.delta.value());
            return Err(MeanError::Uncountable { epsilon, delta, released: !self.parts.is_empty() });
        }
        if !affordable {
            return Err(MeanError::Overspent);
        }
        match self.parts.iter_mut().find(|part| part.step == step) {
            Some(part) => {
                part.releases += 1;
                part.squared_mu += squared_mu;
            }
            None => self.parts.push(StepCost { step, releases: 1, squared_mu, epsilon: 0.0, delta: 0.0 }),
        }
        Ok(())
    }

    /// Returns the parts and their total ε at δ, rounded up.
    pub(super) fn close(self) -> (Vec<StepCost>, f64) {
        let total: f64 = self.spent();
        let remaining = Delta::new(self.delta.value() * (1.0 - VARIATION_SHARE)).unwrap_or(self.delta);
        let epsilon = NoiseMultiplier::new(total.sqrt().recip())
            .map_or(0.0, |sigma| gaussian::epsilon_rounded_up(sigma, remaining).value());
        (self.parts, epsilon.min(self.epsilon.value()))
    }
}

/// Lower edge of the first bin.
const FIRST_EDGE: f64 = 0.25;

/// Share of the total excess above the threshold (line 6 of Algorithm 17).
const EXCESS_SHARE: f64 = 0.31;

/// Maximum number of bins: scores are below 2¹⁰⁰⁰.
const MAX_BINS: usize = 1000;

/// Returns the threshold ρ for scores of at most `largest`, whose total excess is `excess` per
/// record. `None` if no bin suffices. The paper leaves this case open; here no records are removed.
pub(super) fn threshold(
    kept: &ClippedRecords,
    scores: &[f64],
    (largest, excess): (f64, f64),
    share: f64,
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<Option<f64>, MeanError> {
    let edges = edges(largest);
    let mut counts = vec![0i128; edges.len()];
    for (_, score) in scores.iter().enumerate().filter(|(position, _)| kept.is_kept(*position)) {
        // Rounding may put a score beyond the last edge. It counts in the last bin.
        if let Some(bin) = edges.partition_point(|edge| edge <= score).checked_sub(1) {
            counts[bin] += 1;
        }
    }
    let noisy = release::counts(&counts, 1.0, ("threshold", share), budget, rng)?;
    let records = kept.len() as f64;
    let beyond = |edge: f64| -> f64 {
        edges.iter().zip(&noisy).map(|(lower, count)| (lower - edge).max(0.0) * count / records).sum()
    };
    Ok(edges.iter().rev().copied().find(|&edge| beyond(edge) >= EXCESS_SHARE * excess))
}

/// Lower edges of bins up to a largest score.
fn edges(largest: f64) -> Vec<f64> {
    let doubled = std::iter::successors(Some(FIRST_EDGE), |edge| Some(2.0 * edge));
    doubled.take_while(|edge| *edge <= largest.max(FIRST_EDGE)).take(MAX_BINS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(epsilon: f64, delta: f64) -> MeanBudget {
        MeanBudget::new(Epsilon::new(epsilon).unwrap(), Delta::new(delta).unwrap()).unwrap()
    }

    #[test]
    fn parts_add_up_to_exactly_the_whole() {
        for (epsilon, delta) in [(1e-3, 1e-6), (1.0, 1e-6), (20.0, 0.01), (100.0, 0.01)] {
            let mut all = budget(epsilon, delta);
            let whole = all.whole();
            for _ in 0..10 {
                all.spend("one", whole / 20.0, 2_f64.powi(90), 10.0).unwrap();
            }
            all.spend("other", all.left(), 2_f64.powi(90), 10.0).unwrap();
            assert!(all.clone().spend("more", whole * 1e-6, 2_f64.powi(90), 1.0).is_err(), "{epsilon}");
            let (parts, spent) = all.close();
            assert_eq!(parts.iter().map(|part| part.releases).collect::<Vec<_>>(), [10, 1]);
            assert!(spent <= epsilon && spent > epsilon * (1.0 - 1e-2), "{epsilon}: {spent}");
        }
    }

    #[test]
    fn the_total_is_that_of_one_gaussian_mechanism() {
        let mut half = budget(2.0, 1e-6);
        let squared_mu = half.whole() / 2.0;
        half.spend("half", squared_mu, 2_f64.powi(90), 10.0).unwrap();
        let expected = gaussian::epsilon(
            NoiseMultiplier::new(squared_mu.sqrt().recip()).unwrap(),
            Delta::new(1e-6).unwrap(),
        );
        let (_, spent) = half.close();
        assert!(spent >= expected.value() && spent < expected.value() * 1.001, "{spent}");
    }

    #[test]
    fn a_coarse_grid_is_refused() {
        assert!(matches!(
            budget(1.0, 1e-6).spend("coarse", 1e-3, 64.0, 1.0),
            Err(MeanError::Uncountable { .. })
        ));
    }

    #[test]
    fn bins_double_up_to_the_largest_score() {
        assert_eq!(edges(3.0), [0.25, 0.5, 1.0, 2.0]);
        assert_eq!(edges(0.0), [0.25]);
    }
}
