//! Privacy-loss masses on a grid whose hockey-stick divergence bounds that of a pair from above or
//! below.
//!
//! Write y = e^ε, y_i = e^(l_i) for the grid l_i = i·step, and f(y) = Σ w_i (1 − y/y_i)₊ + w_∞. f
//! is linear in y between grid values. With T_i the mass above l_i,
//!
//! ```text
//! T_i = (f_i − e^(−step) f_(i+1)) / (1 − e^(−step)),
//! ```
//!
//! and f grows with every T_i.
//!
//! **Pessimistic.** δ is convex in y (it is a supremum of lines). So f ≥ δ if f ≥ δ at the grid
//! values: between them f is a chord, below the first one the chord from (0, 1), and beyond the
//! last one it is constant, w_∞ = f_n. Where rounding disturbs the order, T is raised to the
//! largest T that follows.
//!
//! **Optimistic.** For every set A, P(A) − yQ(A) is a line below δ. Take the set {L > l} for l in
//! the middle of each cell, or just below its end where that line is below 0 at the end. If f_i is
//! at most the lines of both cells at y_i, then f is below one line in every cell, and so f ≤ δ, up
//! to the rounding of such a line. The line of the cell before the first grid value bounds the
//! total mass, and f_n = 0. Where rounding disturbs the order, T is lowered to the least T before
//! it.

use super::DominatingPair;
use super::pair::Tail;

/// A direction of rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounding {
    Pessimistic,
    Optimistic,
}

/// Upper bound of the relative error of T_i, given f.
const ROUNDING: f64 = 16.0 * f64::EPSILON;

/// Masses of the privacy loss on a grid.
#[derive(Clone, Debug, PartialEq)]
pub struct PrivacyLossDistribution {
    step: f64,
    /// Index of the first grid value.
    first: i64,
    log_masses: Vec<f64>,
    infinite: f64,
}

impl PrivacyLossDistribution {
    /// Returns masses whose hockey-stick divergence is at least that of the pair, on multiples of
    /// `step`, a power of two.
    pub fn pessimistic(pair: &DominatingPair, step: f64) -> Self {
        Self::of(pair, step, Rounding::Pessimistic)
    }

    /// Returns masses whose hockey-stick divergence is at most that of the pair.
    pub fn optimistic(pair: &DominatingPair, step: f64) -> Self {
        Self::of(pair, step, Rounding::Optimistic)
    }

    pub(super) fn of(pair: &DominatingPair, step: f64, rounding: Rounding) -> Self {
        let (low, high) = pair.range();
        let (first, last) = ((low / step).floor() as i64, (high / step).ceil() as i64 + 1);
        let grid = Grid { pair, step, first, last };
        match rounding {
            Rounding::Pessimistic => grid.pessimistic(),
            Rounding::Optimistic => grid.optimistic(),
        }
    }

    /// Returns Σ w_l (1 − e^(ε−l))₊ plus the mass of infinite losses.
    pub fn hockey_stick_divergence(&self, epsilon: f64) -> f64 {
        let beyond = self.values().filter(|(loss, _)| *loss > epsilon);
        self.infinite + beyond.map(|(loss, mass)| -mass * (epsilon - loss).exp_m1()).sum::<f64>()
    }

    /// Returns the probability of an infinite loss.
    pub fn infinite(&self) -> f64 {
        self.infinite
    }

    /// Returns finite losses with their probabilities, in ascending order.
    pub fn values(&self) -> impl Iterator<Item = (f64, f64)> {
        self.log_values().map(|(loss, log_mass)| (loss, log_mass.exp()))
    }

    /// Returns the distance between grid values.
    pub fn step(&self) -> f64 {
        self.step
    }

    pub(super) fn first(&self) -> i64 {
        self.first
    }

    /// Returns finite losses with the logarithms of their probabilities, in ascending order.
    pub(super) fn log_values(&self) -> impl Iterator<Item = (f64, f64)> {
        let losses = (self.first..).map(|index| index as f64 * self.step);
        losses.zip(self.log_masses.iter().copied())
    }

    pub(super) fn len(&self) -> usize {
        self.log_masses.len()
    }
}

/// The grid values first·step to last·step for a pair.
struct Grid<'a> {
    pair: &'a DominatingPair,
    step: f64,
    first: i64,
    last: i64,
}

impl Grid<'_> {
    fn pessimistic(&self) -> PrivacyLossDistribution {
        let above = |index: i64| {
            let loss = index as f64 * self.step;
            let (p, q, error) = weighted(self.pair.tail(loss), loss);
            ((p - q).max(0.0) + error).min(1.0)
        };
        let divergences: Vec<f64> = (self.first..=self.last).map(above).collect();
        let infinite = divergences.last().copied().unwrap_or(1.0);
        let mut tails = self.tails(&divergences, 1.0 + ROUNDING);
        let mut largest = infinite;
        for tail in tails.iter_mut().rev() {
            largest = largest.max(tail.min(1.0));
            *tail = largest;
        }
        self.masses(1.0, tails, infinite)
    }

    fn optimistic(&self) -> PrivacyLossDistribution {
        let at = |tail: Tail, index: i64| {
            let (p, q, error) = weighted(tail, index as f64 * self.step);
            p - q - error
        };
        // Accept a line that is 0 at the end of its cell up to rounding: the largest loss lies
        // there.
        let usable = |tail: &Tail, index: i64| {
            let (p, q, error) = weighted(*tail, index as f64 * self.step);
            p - q >= -2.0 * error
        };
        let line = |cell: i64| {
            let own = |loss: f64| Some(self.pair.tail(loss)).filter(|tail| usable(tail, cell + 1));
            let end = (cell + 1) as f64 * self.step;
            own(end - self.step / 2.0).or_else(|| own(end.next_down())).unwrap_or(Tail::NONE)
        };
        let mut before = line(self.first - 1);
        let whole = (before.p * (1.0 - before.error)).min(1.0);
        let mut least = 1.0_f64;
        let mut divergences = Vec::with_capacity((self.last - self.first + 1) as usize);
        for index in self.first..self.last {
            let own = line(index);
            least = least.min(at(before, index)).min(at(own, index)).max(0.0);
            divergences.push(least);
            before = own;
        }
        divergences.push(0.0);
        let mut tails = self.tails(&divergences, 1.0 - ROUNDING);
        let mut least = whole;
        for tail in &mut tails {
            least = least.min(tail.max(0.0));
            *tail = least;
        }
        self.masses(whole, tails, 0.0)
    }

    /// Returns T_i for the given f_i.
    fn tails(&self, divergences: &[f64], factor: f64) -> Vec<f64> {
        let width = -(-self.step).exp_m1();
        let tail = |two: &[f64]| ((two[0] - two[1]) / width + two[1]) * factor;
        divergences.windows(2).map(tail).collect()
    }

    /// Returns the masses: differences between successive tails, from the `whole` mass down to the
    /// mass of `infinite` losses.
    fn masses(&self, whole: f64, tails: Vec<f64>, infinite: f64) -> PrivacyLossDistribution {
        let above = [whole].into_iter().chain(tails.iter().copied());
        let below = tails.iter().copied().chain([infinite]);
        let log_masses = above.zip(below).map(|(above, below)| (above - below).max(0.0).ln()).collect();
        PrivacyLossDistribution { step: self.step, first: self.first, log_masses, infinite }
    }
}

/// Returns P, yQ and a bound of the error of P − yQ.
fn weighted(tail: Tail, loss: f64) -> (f64, f64, f64) {
    let q = tail.q * loss.exp();
    (tail.p, q, (tail.error + (4.0 + loss.abs()) * f64::EPSILON) * (tail.p + q))
}
