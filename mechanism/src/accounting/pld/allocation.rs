//! Random allocation: a record goes to one of b bins, uniformly, and every bin is released with
//! Gaussian noise.
//!
//! # Theorem
//! Neighbours differ in the presence of one record (`zero-out`). The record's contribution to the
//! release of its bin has norm at most μ, in deviations of the noise, and may depend on the
//! releases of earlier bins. Then the release is dominated by the pair
//!
//! ```text
//! P = (1/b) Σ_i N(μ e_i, I_b),   Q = N(0, I_b),   dP/dQ = L = (1/b) Σ_i W_i,
//! W_i = exp(μ x_i − μ²/2),   x_i independent and standard normal under Q,
//! ```
//!
//! and by (Q, P) the other way round. *Proof.* Let u_i be the contribution to bin i, given the
//! releases y_1 … y_(i−1). Without the record, y_i less the other contributions is standard normal,
//! given the past. The ratio of the densities with and without the record is `L = (1/b) Σ_i W_i`
//! with `W_i = exp(⟨u_i, y_i⟩ − ‖u_i‖²/2)`, and the hockey-stick divergences of both directions are
//! E_Q f(L) with the convex `f(L) = (L − e^ε)₊` and `f(L) = (1 − e^ε L)₊`. Given the past, W_i is
//! exp(‖u_i‖x − ‖u_i‖²/2): geometric Brownian motion at the time ‖u_i‖² ≤ μ², a martingale. So by
//! Jensen E f(s + W_i/b) grows with the time, for every convex f and every s. Replace ‖u_i‖ by μ,
//! from the last bin to the first: each replacement leaves a convex function of the sum of the
//! earlier terms, and none lowers the expectation. ∎
//!
//! This is the pair of "Balls-and-Bins Sampling for DP-SGD" (Chua et al. 2024) and, for C = I, of
//! "Near Exact Privacy Amplification for Matrix Mechanisms" (Choquette-Choo et al. 2025), which
//! estimate its divergences by Monte Carlo. "Efficient privacy loss accounting for subsampling and
//! random allocation" (Feldman & Shenfeld, 2602.17284) computes these divergences. The computation
//! here is our own.
//!
//! # Computation
//! P has the density L with respect to Q. So the distribution of L under Q is all that is needed.
//! It is computed on a grid of values e^(jh), by doubling the number of terms. Where a value z
//! falls between grid points v < w, its mass goes to v and w such that the mean stays. That is a
//! mean-preserving spread. So the computed L' is at least L in convex order, `E f(L') ≥ E f(L)` for
//! both f at every ε, and the pair of L' dominates the pair of L. The same holds for the ends of
//! the grid and for sums:
//!
//! - mass below the grid goes to 0 and the first point;
//! - mass above the grid goes to 0 and to a value that tends to infinity. Its share of the mean is
//!   mass of P at an infinite loss;
//! - a sum of independent spreads is a spread of the sum. Where one of them is 0, which is rare,
//!   the mass of the sum goes to 0 and to infinity, too.
//!
//! Every mass is a sum of products of positive numbers. With at most 2¹³ terms and a few roundings
//! in a stage, relative errors at most double in each doubling and gain 10⁻¹²: at the end, masses
//! are right to b·10⁻¹² ([`ROUNDING`]), and are raised by that.

use super::mixture::{MAX_SHIFT, upper as upper_tail};
use super::pair::{LOWER_TAIL, MAX_LOSS, Tail};
use crate::accounting::{AccountingError, NoiseMultiplier};
use std::f64::consts::LN_2;

/// The grid is refined while it has at most half this number of points.
const POINTS: usize = 1 << 12;

/// Mass, under Q or under P, that a stage may move off an end of the grid.
const OFF_GRID: f64 = 1e-24;

/// Range of x on the first grid, in deviations around 0 and μ.
const DEVIATIONS: f64 = 11.0;

/// Exceeds the relative error of a mass, divided by the number of bins.
pub(super) const ROUNDING: f64 = 4e-12;

/// Exceeds the relative error of a sum of masses.
pub(super) const SUM_ROUNDING: f64 = 4e-12;

/// Largest number of bins.
pub(super) const MAX_BINS: u64 = 1 << 20;

/// Nodes and weights of the four-point Gauss–Legendre rule on [0, 1].
pub(super) const RULE: [(f64, f64); 4] = [
    (0.069_431_844_202_973_71, 0.173_927_422_568_726_93),
    (0.330_009_478_207_571_87, 0.326_072_577_431_273_07),
    (0.669_990_521_792_428_1, 0.326_072_577_431_273_07),
    (0.930_568_155_797_026_3, 0.173_927_422_568_726_93),
];

/// A nonnegative random variable: masses under Q on a geometric grid.
#[derive(Clone, Debug)]
struct GridLaw {
    /// h: the step of ln of the values.
    step: f64,
    /// j of the value e^(jh) of the first mass.
    first: i64,
    /// Masses at e^((first + i) h).
    masses: Vec<f64>,
    /// Mass at 0.
    zero: f64,
    /// Part of the mean that is at infinity.
    lost: f64,
    /// Number of terms W, which is the mean.
    terms: f64,
}

/// Sums of two points of a grid.
struct SumTable {
    /// For each distance d of the points: e^(jh) + e^((j−d)h) lies this number of whole cells above
    /// the upper point, and this share of its mass goes to the point above.
    sums: Vec<(usize, f64)>,
    /// Number of points that sums may need beyond the upper point, plus one.
    room: usize,
}

impl SumTable {
    fn new(step: f64, points: usize) -> Self {
        let sum = |distance: usize| {
            let above = (-(distance as f64) * step).exp().ln_1p();
            let cells = (above / step) as usize;
            (cells, split((above - cells as f64 * step).clamp(0.0, step), step).0)
        };
        Self { sums: (0..points).map(sum).collect(), room: (LN_2 / step) as usize + 3 }
    }
}

impl GridLaw {
    /// Returns a spread of W, the term of one bin.
    fn one(mu: f64) -> Self {
        let step = (2.0 * DEVIATIONS + mu) * mu / (POINTS - 2) as f64;
        // ln W = μx − μ²/2.
        let first = ((-DEVIATIONS - mu / 2.0) * mu / step).floor() as i64;
        let last = ((DEVIATIONS + mu / 2.0) * mu / step).ceil() as i64;
        let outcome = |log: f64| log / mu + mu / 2.0;
        let density = |x: f64| (-x * x / 2.0).exp() * 0.398_942_280_401_432_7;
        let mut masses = vec![0.0; (last - first + 1) as usize];
        for cell in 0..masses.len() - 1 {
            for (node, weight) in RULE {
                let offset = node * step;
                let log = (first + cell as i64) as f64 * step + offset;
                let mass = weight * step / mu * density(outcome(log));
                let (above, below) = split(offset, step);
                masses[cell] += mass * below;
                masses[cell + 1] += mass * above;
            }
        }
        let (low, high) = (outcome(first as f64 * step), outcome(last as f64 * step));
        // The mean of the part below the grid counts as infinite, too.
        let lost = upper_tail(high - mu) + upper_tail(mu - low);
        Self { step, first, masses, zero: upper_tail(-low) + upper_tail(high), lost, terms: 1.0 }
    }

    /// Returns the distribution of the sum of `terms` independent copies.
    fn of_terms(mu: f64, terms: u64) -> Self {
        let one = Self::one(mu);
        let digits = (0..terms.ilog2()).rev().map(|digit| terms >> digit & 1);
        digits.fold(one.clone(), |sum, digit| match digit {
            0 => sum.doubled(),
            _ => sum.doubled().plus(&one),
        })
    }

    /// Returns a spread of the sum of two independent copies.
    fn doubled(&self) -> Self {
        let table = SumTable::new(self.step, self.masses.len());
        let mut masses = vec![0.0; self.masses.len() + table.room];
        let mut products = vec![0.0; self.masses.len()];
        for (distance, &(cells, up)) in table.sums.iter().enumerate() {
            let factor = if distance == 0 { 1.0 } else { 2.0 };
            let pairs = self.masses.iter().zip(&self.masses[distance..]);
            let products = &mut products[distance..];
            products.iter_mut().zip(pairs).for_each(|(product, (low, high))| *product = factor * low * high);
            let (target, stay) = (&mut masses[distance + cells..], 1.0 - up);
            target.iter_mut().zip(products.iter()).for_each(|(to, product)| *to += product * stay);
            target[1..].iter_mut().zip(products.iter()).for_each(|(to, product)| *to += product * up);
        }
        let sum = Self {
            terms: 2.0 * self.terms,
            masses,
            zero: 2.0 * self.zero,
            lost: 2.0 * (self.lost + self.zero * self.terms),
            ..*self
        };
        sum.without_ends()
    }

    /// Returns a spread of the sum with an independent number, whose grid is as fine or coarser.
    fn plus(&self, other: &Self) -> Self {
        let stride = (other.step / self.step).round() as i64;
        let last = self.end().max(stride * (other.end() - 1) + 1);
        let first = self.first.max(stride * other.first);
        let table = SumTable::new(self.step, (last - self.first.min(stride * other.first)) as usize);
        let mut masses = vec![0.0; (last - first) as usize + table.room];
        for (coarse, factor) in other.masses.iter().enumerate() {
            let one = stride * (other.first + coarse as i64);
            for (fine, mass) in self.masses.iter().enumerate() {
                let other = self.first + fine as i64;
                let (cells, up) = table.sums[one.abs_diff(other) as usize];
                let to = (one.max(other) - first) as usize + cells;
                masses[to] += factor * mass * (1.0 - up);
                masses[to + 1] += factor * mass * up;
            }
        }
        let sum = Self {
            step: self.step,
            terms: self.terms + other.terms,
            first,
            masses,
            zero: self.zero + other.zero,
            lost: self.lost + other.lost + self.zero * other.terms + other.zero * self.terms,
        };
        sum.without_ends()
    }

    fn end(&self) -> i64 {
        self.first + self.masses.len() as i64
    }

    /// Returns the same distribution on a grid that is twice as fine.
    fn refined(self) -> Self {
        let mut masses = vec![0.0; 2 * self.masses.len() - 1];
        masses.iter_mut().step_by(2).zip(&self.masses).for_each(|(to, mass)| *to = *mass);
        Self { step: self.step / 2.0, first: 2 * self.first, masses, ..self }
    }

    fn value(&self, index: usize) -> f64 {
        ((self.first + index as i64) as f64 * self.step).exp()
    }

    /// Spreads the small masses at both ends, and refines the grid if it has become short.
    fn without_ends(mut self) -> Self {
        let (mut low, mut below) = (0, 0.0);
        while low + 1 < self.masses.len() && below + self.masses[low] <= OFF_GRID {
            below += self.masses[low];
            low += 1;
        }
        for index in 0..low {
            let share = (-((low - index) as f64) * self.step).exp();
            self.zero += self.masses[index] * (1.0 - share);
            self.masses[low] += self.masses[index] * share;
        }
        let (mut high, mut lost) = (self.masses.len(), 0.0);
        while high > low + 1 && lost + self.masses[high - 1] * self.value(high - 1) <= OFF_GRID {
            lost += self.masses[high - 1] * self.value(high - 1);
            self.zero += self.masses[high - 1];
            high -= 1;
        }
        self.lost += lost;
        self.masses.truncate(high);
        self.masses.drain(..low);
        self.first += low as i64;
        if self.masses.len() <= POINTS / 2 { self.refined() } else { self }
    }
}

/// Returns the shares of the upper and the lower grid point in a mass whose value is e^offset times
/// the lower point.
fn split(offset: f64, step: f64) -> (f64, f64) {
    let whole = step.exp_m1();
    (offset.exp_m1() / whole, offset.exp() * (step - offset).exp_m1() / whole)
}

/// The pair (P, Q) of a spread of L.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RandomAllocation {
    mu: f64,
    bins: u64,
    /// ln L, ascending.
    losses: Vec<f64>,
    /// Masses of P and Q at index i and all after it, and those of all before it.
    above: Vec<[f64; 2]>,
    below: Vec<[f64; 2]>,
}

impl RandomAllocation {
    pub(super) fn new(noise_multiplier: NoiseMultiplier, bins: u64) -> Result<Self, AccountingError> {
        let mu = noise_multiplier.mu();
        if !(1..=MAX_BINS).contains(&bins) {
            return Err(AccountingError::Bins(bins as f64));
        }
        if !(1e-6..=MAX_SHIFT).contains(&mu) {
            return Err(AccountingError::PrivacyLoss(mu * mu / 2.0));
        }
        let law = GridLaw::of_terms(mu, bins);
        let number = bins as f64;
        let raised = 1.0 + number * ROUNDING;
        let mass =
            |(index, mass): (usize, &f64)| [mass * law.value(index) / number, *mass].map(|m| m * raised);
        let masses: Vec<[f64; 2]> = law.masses.iter().enumerate().map(mass).collect();
        let sums = |sum: &mut [f64; 2], mass: &[f64; 2]| {
            let before = *sum;
            *sum = [sum[0] + mass[0], sum[1] + mass[1]];
            Some((before, *sum))
        };
        let infinite = [law.lost / number * raised, 0.0];
        let mut above: Vec<_> = masses.iter().rev().scan(infinite, sums).map(|(_, sum)| sum).collect();
        above.reverse();
        above.push(infinite);
        let zero = [0.0, law.zero * raised];
        let mut below: Vec<_> = masses.iter().scan(zero, sums).map(|(before, _)| before).collect();
        let all = masses.iter().fold(zero, |sum, mass| [sum[0] + mass[0], sum[1] + mass[1]]);
        below.push(all);
        let losses = (0..masses.len()).map(|index| law.value(index).ln() - number.ln()).collect();
        Ok(Self { mu, bins, losses, above, below })
    }

    /// Returns the tail probabilities of losses above `loss` under P and Q.
    pub(super) fn tail(&self, loss: f64) -> Tail {
        let index = self.losses.partition_point(|&found| found <= loss);
        let [p, q] = self.above[index];
        Tail { p, q, error: SUM_ROUNDING }
    }

    /// Returns the tail probabilities of the reversed pair's losses above `loss` under Q and P.
    pub(super) fn reversed_tail(&self, loss: f64) -> Tail {
        let index = self.losses.partition_point(|&found| found < -loss);
        let [q, p] = self.below[index];
        Tail { p, q, error: SUM_ROUNDING }
    }

    /// Returns the losses between which the grid lies.
    pub(super) fn range(&self) -> (f64, f64) {
        let index = self.below.partition_point(|sum| sum[0] <= LOWER_TAIL).saturating_sub(1);
        (self.loss(index).max(-MAX_LOSS), self.loss(self.losses.len() - 1).min(MAX_LOSS))
    }

    /// As [`range`](Self::range), for the reversed pair.
    pub(super) fn reversed_range(&self) -> (f64, f64) {
        let index = self.above.partition_point(|sum| sum[1] > LOWER_TAIL);
        (-self.loss(index).min(MAX_LOSS), -self.loss(0).max(-MAX_LOSS))
    }

    fn loss(&self, index: usize) -> f64 {
        self.losses[index.min(self.losses.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounting::gaussian;
    use crate::accounting::tests::{assert_close, eps, sigma};

    fn divergences(sigma: NoiseMultiplier, bins: u64, epsilon: f64) -> [f64; 2] {
        let pair = RandomAllocation::new(sigma, bins).unwrap();
        [pair.tail(epsilon), pair.reversed_tail(epsilon)].map(|Tail { p, q, .. }| p - epsilon.exp() * q)
    }

    #[test]
    fn one_bin_is_the_gaussian_mechanism() {
        for (noise, epsilon) in [(1.0, 1.0), (0.3, 5.0), (20.0, 0.1), (3.0, 0.0)] {
            let expected = gaussian::delta(sigma(noise), eps(epsilon));
            for found in divergences(sigma(noise), 1, epsilon) {
                assert_close(found, expected, 1e-4);
                assert!(found >= expected, "{noise} {epsilon}: {found} {expected}");
            }
        }
    }

    /// E (W₁ + W₂ − c)₊ by the trapezoidal rule over x₁, with the closed form for W₂. The rule
    /// converges faster than any power of the distance of its points.
    #[test]
    fn two_bins_agree_with_an_integral() {
        for (mu, epsilon) in [(1.0_f64, 0.5_f64), (0.2, 0.1), (2.5, 1.5)] {
            let call = |c: f64| {
                if c <= 0.0 {
                    return 1.0 - c;
                }
                let x = (c.ln() + mu * mu / 2.0) / mu;
                upper_tail(x - mu) - c * upper_tail(x)
            };
            let expectation = |f: &dyn Fn(f64) -> f64| -> f64 {
                let width = 1.0 / 512.0;
                let points = (-6144..=7168).map(|i| f64::from(i) * width);
                points.map(|x| f((mu * x - mu * mu / 2.0).exp()) * (-x * x / 2.0).exp()).sum::<f64>() * width
                    / (2.0 * std::f64::consts::PI).sqrt()
            };
            let with = expectation(&|w| call(2.0 * epsilon.exp() - w)) / 2.0;
            // (c − W)₊ = (W − c)₊ + c − W.
            let put = |c: f64| call(c) + c - 1.0;
            let without = epsilon.exp() / 2.0 * expectation(&|w| put(2.0 * (-epsilon).exp() - w));
            for (found, expected) in divergences(sigma(1.0 / mu), 2, epsilon).into_iter().zip([with, without])
            {
                assert_close(found, expected, 2e-4);
                assert!(found >= expected * (1.0 - 1e-7), "{mu} {epsilon}: {found} {expected}");
            }
        }
    }

    #[test]
    fn masses_have_the_sums_and_means_of_the_law() {
        for (mu, bins) in [(0.05, 7), (1.0, 50), (3.0, 1000), (0.4, 4097)] {
            let law = GridLaw::of_terms(mu, bins);
            assert_close(law.zero + law.masses.iter().sum::<f64>(), 1.0, 1e-8);
            let mean =
                law.masses.iter().enumerate().map(|(index, mass)| mass * law.value(index)).sum::<f64>();
            assert_close((law.lost + mean) / bins as f64, 1.0, 1e-8);
            assert!(law.zero + law.lost < 1e-12 * bins as f64);
        }
    }
}
