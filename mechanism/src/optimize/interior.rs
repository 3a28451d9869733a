//! A primal-dual interior-point method for non-negative multipliers.
//!
//! If patterns overlap, some are slack at the optimum and some pairs have X_ij > 0: their
//! multipliers are 0 there. The search maximises the dual plus `μ Σ log θ` over all multipliers θ,
//! for decreasing μ. At each maximum X(U) is feasible, and the gap is μ times the number of
//! constraints. Newton's method treats every slack σ = μ/θ as a separate variable: the curvature of
//! the logarithm is then σ/θ, and a step stays good while μ falls.

/// First μ times the number of multipliers, relative to the bound.
const FIRST_GAP: f64 = 0.01;

/// Factor from the mean of σ θ to the next μ, once steps are long.
const DECREASE: f64 = 0.1;

/// Maximum share of the distance to a zero multiplier or slack that a step covers.
const WAY_TO_ZERO: f64 = 0.95;

/// Slacks stay within this factor of the values from the logarithm.
const SPREAD: f64 = 1e3;

pub(super) struct Interior {
    /// μ.
    pub(super) weight: f64,
    /// σ.
    slacks: Vec<f64>,
}

impl Interior {
    /// Starts on the central path, without the curvature of the dual.
    pub(super) fn new(multipliers: &[f64], bound: f64) -> Self {
        let weight = FIRST_GAP * bound / multipliers.len() as f64;
        Self { weight, slacks: multipliers.iter().map(|theta| weight / theta).collect() }
    }

    /// `μ Σ log θ`.
    pub(super) fn value(&self, multipliers: &[f64]) -> f64 {
        self.weight * multipliers.iter().map(|theta| theta.ln()).sum::<f64>()
    }

    /// μ/θ.
    pub(super) fn gradient(&self, multipliers: &[f64]) -> Vec<f64> {
        multipliers.iter().map(|theta| self.weight / theta).collect()
    }

    /// σ/θ.
    pub(super) fn stiffness(&self, multipliers: &[f64]) -> Vec<f64> {
        self.slacks.iter().zip(multipliers).map(|(slack, theta)| slack / theta).collect()
    }

    /// Newton's step of the slacks, with one of the multipliers along `ascent` of that `length`,
    /// and the next μ.
    pub(super) fn advance(&mut self, from: &[f64], ascent: &[f64], length: f64, to: &[f64]) {
        let change =
            |((slack, theta), step): ((&f64, &f64), &f64)| self.weight / theta - slack - slack / theta * step;
        let change: Vec<f64> = self.slacks.iter().zip(from).zip(ascent).map(change).collect();
        let slack_length = longest(&self.slacks, &change);
        self.slacks.iter_mut().zip(change).for_each(|(slack, change)| *slack += slack_length * change);
        let mean =
            self.slacks.iter().zip(to).map(|(slack, theta)| slack * theta).sum::<f64>() / to.len() as f64;
        if length.min(slack_length) > 0.5 {
            self.weight = DECREASE * mean;
        }
        for (slack, theta) in self.slacks.iter_mut().zip(to) {
            *slack = slack.max(self.weight / (SPREAD * theta)).min(SPREAD * mean / theta);
        }
    }
}

/// Largest share of a step, at most 1, that keeps positive numbers well positive.
pub(super) fn longest(from: &[f64], step: &[f64]) -> f64 {
    let shrinking = from.iter().zip(step).filter(|(_, step)| **step < 0.0);
    shrinking.map(|(from, step)| -WAY_TO_ZERO * from / step).fold(1.0, f64::min)
}
