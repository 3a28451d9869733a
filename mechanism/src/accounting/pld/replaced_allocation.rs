//! Random allocation of a record that is replaced: it goes to one of b bins, uniformly, and has one
//! value or another there.
//!
//! # The divergence
//! By Theorem 4 of [`amplification`](crate::accounting::amplification), the pair
//! `P = (1/b) Σ N(μe_i, I)` against `Q = (1/b) Σ N(−μe_i, I)` dominates a round. With c = e^ε and
//! x_i independent and standard normal
//!
//! ```text
//! δ(ε) = E(Σ_i Z_i)₊/b = E[Z_1; Z_1 + R > 0],    R = Σ_(i>1) Z_i,
//! Z_i = W_i − cV_i,   W_i = exp(μx_i − μ²/2),   V_i = exp(−μx_i − μ²/2).
//! ```
//!
//! For a given ε these are sums of independent numbers on a line. The second form holds because all
//! Z_i have the same distribution.
//!
//! # An upper bound for one ε
//! E(Σ Z_i)₊ does not fall if Z_i becomes larger, or is spread with the same mean. So Z moves
//!
//! - from the middle of a cell of x to both of its ends. Masses of cells come from Gauss's rule,
//!   whose error is below the rounding of a mass;
//! - from above the largest value H to H and to infinity. E(Z − H)₊ is a part of δ: mass of P at an
//!   infinite loss;
//! - from below the smallest value up to it;
//! - from a value between multiples of the step h to both of them.
//!
//! Then R is a multiple of h, and a Fourier transform gives the distribution r of the sum of b − 1
//! terms. With `g(k) = E[Z; Z > −kh]` the bound is Σ r(k) g(k). Errors that are added (u = 2⁻⁵³):
//!
//! - *Masses* have relative errors below [`ROUNDING`], so the expectation of a positive function of
//!   b terms has b times that. Shares of a multiple of h move a mean by at most 4u(W + cV).
//! - *Transforms* move r by at most ρ in the Euclidean norm, by the argument of `sum`. By Cauchy
//!   and Schwarz the bound is off by at most ρ‖g‖. For c ≥ 1 g is negative for large k, down to
//!   1 − c. There 0 replaces it beyond a k of our choice: an upper bound with a smaller norm.
//! - *Aliasing.* r is cyclic with the length of a window. The window begins where g = 0, so mass
//!   below it adds nothing. Mass above it would lower the bound, unless raised values have left a
//!   positive g there. That g counts times the probability of such mass (Chernoff's bound). A value
//!   to which aliasing adds mass is too large. That lowers the bound only where g < 0, by at most c
//!   times the probability of R so far from there.
//!
//! # All ε
//! δ is convex in y = e^ε. So chords between the bounds f_i at some y_i ≥ 1 are above δ, and so is
//! a constant beyond the last one. A slope that is too small for a convex function is raised, from
//! the last one down, which raises f. Chords are the divergence of a discrete pair with mass
//! `q_i = s_(i−1) − s_i` of Q at the loss ε_i, for slopes −s_i. P has q_i y_i there. All f_i have
//! the same error added: it is a mass of P at an infinite loss. The pair (P, Q) is its own mirror
//! image, so losses −ε_i have the masses of ε_i, exchanged. By
//! `δ(−ε) = 1 − e^(−ε) + e^(−ε) δ(ε)`, which holds for both, the discrete pair dominates at
//! negative ε, too.

#[cfg(test)]
mod tests;

use super::allocation::{MAX_BINS, ROUNDING, RULE, SUM_ROUNDING};
use super::mixture::{MAX_SHIFT, upper};
use super::pair::{MAX_LOSS, Tail};
use super::sum::{PRODUCT, TRANSFORM, norm, power};
use crate::accounting::{AccountingError, NoiseMultiplier};
use crate::series::fourier::RealTransform;

/// E[W; x above all cells], a part of δ.
const MASS_BEYOND_CELLS: f64 = 1e-12;

/// Width of a cell of x.
const WIDTH: f64 = 1.0 / 128.0;

/// h, in standard deviations of Z. The grid adds at most 0.04²/4 of the variance of Z. If rare
/// values make the deviation larger than Z(1) − Z(−1), the unit is this difference.
const STEP: f64 = 0.04;

/// Largest number of steps up to the largest value, and half of the largest number of steps of a
/// window.
const MAX_STEPS: f64 = (1 << 18) as f64;
const MAX_WINDOW: usize = 1 << 21;

/// Length of the parts of a window below and above the mean of R, in standard deviations.
const BELOW: f64 = 24.0;
const ABOVE: f64 = 9.0;

/// The distance between successive ε is the larger of `FIRST` estimated standard deviations of the
/// loss and `GROWTH` times ε. A chord spreads losses over such a distance.
const FIRST: f64 = 0.06;
const GROWTH: f64 = 0.015;

/// Maximum number of points ε.
const POINTS: usize = 2048;

/// Slopes of Chernoff's bound, times the distance from the mean to the end.
const SLOPES: [f64; 3] = [24.0, 32.0, 48.0];

/// Number of terms that are summed at once, so that few roundings follow each other.
const CHUNK: usize = 512;

/// A discrete pair that dominates a round.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ReplacedAllocation {
    /// Ascending, and symmetric around 0.
    losses: Vec<f64>,
    /// Masses of P and Q at index i and all after it.
    above: Vec<[f64; 2]>,
}

impl ReplacedAllocation {
    pub(super) fn new(noise_multiplier: NoiseMultiplier, bins: u64) -> Result<Self, AccountingError> {
        let mu = noise_multiplier.mu();
        if !(1..=MAX_BINS).contains(&bins) {
            return Err(AccountingError::Bins(bins as f64));
        }
        if !(1e-6..=MAX_SHIFT / 2.0).contains(&mu) {
            return Err(AccountingError::PrivacyLoss(2.0 * mu * mu));
        }
        let mut bound = DivergenceBound::new(mu, bins);
        let deviation = 2.0 * mu.min(((mu * mu).exp_m1() / bins as f64).sqrt());
        let (mut epsilon, mut error) = (0.0, 0.0_f64);
        let (mut losses, mut divergences) = (Vec::new(), Vec::new());
        while losses.len() < POINTS && epsilon < MAX_LOSS {
            let found = bound.at(epsilon);
            losses.push(epsilon);
            divergences.push(found.value);
            error = error.max(found.error);
            if found.value <= found.error {
                break;
            }
            epsilon += (FIRST * deviation).max(GROWTH * epsilon);
        }
        divergences.iter_mut().for_each(|value| *value = (*value + error).min(1.0));
        Ok(Self::of_chords(&losses, &divergences))
    }

    /// Returns the symmetric pair whose divergences are chords between these, at ascending ε.
    fn of_chords(losses: &[f64], divergences: &[f64]) -> Self {
        let infinite = divergences.last().copied().unwrap_or(1.0);
        let mut steeper = 0.0_f64;
        let mut masses = Vec::with_capacity(losses.len());
        for index in (1..losses.len()).rev() {
            let width = losses[index - 1].exp() * (losses[index] - losses[index - 1]).exp_m1();
            let slope = (divergences[index - 1] - divergences[index]) / width * (1.0 + SUM_ROUNDING);
            let slope = slope.max(steeper);
            masses.push((losses[index], slope - steeper));
            steeper = slope;
        }
        masses.reverse();
        let both: f64 = masses.iter().map(|(loss, q)| q * (1.0 + loss.exp())).sum();
        let still = (1.0 - both - infinite).max(0.0);
        let below = masses.iter().rev().map(|&(loss, q)| (-loss, [q, q * loss.exp()]));
        let over = masses.iter().map(|&(loss, q)| (loss, [q * loss.exp(), q]));
        let all: Vec<_> = below.chain([(0.0, [still; 2])]).chain(over).collect();
        let mut sum = [infinite, 0.0];
        let mut above = vec![sum];
        for (_, [p, q]) in all.iter().rev() {
            sum = [sum[0] + p, sum[1] + q];
            above.push(sum);
        }
        above.reverse();
        Self { losses: all.into_iter().map(|(loss, _)| loss).collect(), above }
    }

    /// Returns the tail probabilities of losses above `loss` under P and Q.
    pub(super) fn tail(&self, loss: f64) -> Tail {
        let index = self.losses.partition_point(|&found| found <= loss);
        let [p, q] = self.above[index];
        Tail { p, q, error: SUM_ROUNDING }
    }

    /// Returns the losses between which the grid lies.
    pub(super) fn range(&self) -> (f64, f64) {
        let last = self.losses.last().copied().unwrap_or(0.0);
        (-last, last)
    }
}

/// A cell of x: W and V at its lower end, and their changes up to its upper end. `parts` are the
/// terms of W and V in the numerators of the masses at the lower (0) and upper end (1).
struct Cell {
    first: [f64; 2],
    width: [f64; 2],
    parts: [[f64; 2]; 2],
}

/// Upper bounds of δ for one pair.
struct DivergenceBound {
    mu: f64,
    bins: u64,
    cells: Vec<Cell>,
    /// Probability of x above all cells, which is also that of x below all cells.
    tail: f64,
    /// E[W; x above all cells].
    lost: f64,
    transform: Option<(usize, RealTransform)>,
}

/// Mean and standard deviation of R, and the size of a term at x = −5: lower terms are rare.
struct Moments {
    mean: f64,
    deviation: f64,
    cap: f64,
}

impl Moments {
    /// Returns b such that R is very rarely below −b.
    fn below(&self) -> f64 {
        self.mean.abs() + (BELOW * self.deviation).max(4.0 * self.cap)
    }
}

/// An upper bound without the part of its error that is the same for all ε.
struct Bounded {
    value: f64,
    error: f64,
}

impl DivergenceBound {
    fn new(mu: f64, bins: u64) -> Self {
        let mut half = 0;
        while upper(f64::from(half) * WIDTH - mu) > MASS_BEYOND_CELLS {
            half += 1;
        }
        let cell = |index: i32| {
            let x = f64::from(index) * WIDTH;
            let first = [1.0, -1.0].map(|sign| (sign * mu * x - mu * mu / 2.0).exp());
            // W rises and V falls by these factors: all differences are positive.
            let rises = |distance: f64| (mu * distance).exp_m1();
            let falls = |distance: f64| -(-mu * distance).exp_m1();
            let mut parts = [[0.0; 2]; 2];
            for (node, weight) in RULE {
                let (along, left) = (node * WIDTH, (1.0 - node) * WIDTH);
                let density = (-(x + along).powi(2) / 2.0).exp() * 0.398_942_280_401_432_7;
                let mass = weight * WIDTH * density;
                let [w, v] = first.map(|value| mass * value);
                parts[1][0] += w * rises(along);
                parts[1][1] += v * falls(along);
                parts[0][0] += w * (mu * along).exp() * rises(left);
                parts[0][1] += v * (-mu * along).exp() * falls(left);
            }
            Cell { first, width: [first[0] * rises(WIDTH), first[1] * falls(WIDTH)], parts }
        };
        let end = f64::from(half) * WIDTH;
        let cells = (-half..half).map(cell).collect();
        Self { mu, bins, cells, tail: upper(end), lost: upper(end - mu), transform: None }
    }

    /// Values of Z and their masses, and the probability of P at an infinite loss.
    fn law(&self, c: f64) -> (Vec<(f64, f64)>, f64) {
        let mut values: Vec<(f64, f64)> = Vec::with_capacity(self.cells.len() + 2);
        let mut carried = self.tail; // from below, raised to the first value
        for Cell { first: [w, v], width, parts } in &self.cells {
            let whole = width[0] + c * width[1];
            let [low, high] = parts.map(|[of_w, of_v]| (of_w + c * of_v) / whole);
            values.push((w - c * v, carried + low));
            carried = high;
        }
        if let Some(Cell { first: [w, v], width, .. }) = self.cells.last() {
            values.push((w + width[0] - c * (v - width[1]), carried));
        }
        // The mass above all cells goes to 0 and to infinity.
        values.push((0.0, self.tail));
        (values, self.lost)
    }

    fn at(&mut self, epsilon: f64) -> Bounded {
        let c = epsilon.exp();
        let (mut values, mut infinite) = self.law(c);
        let mean: f64 = values.iter().map(|(value, mass)| value * mass).sum();
        let square: f64 = values.iter().map(|(value, mass)| (value - mean).powi(2) * mass).sum();
        let deviation = square.sqrt();
        let others = (self.bins - 1) as f64;
        let at = |x: f64| (self.mu * x - self.mu * self.mu / 2.0).exp();
        // Z at x = −5: smaller values are rare, and their size hardly matters.
        let cap = c * at(5.0);
        let rest = Moments { mean: others * mean, deviation: deviation * others.sqrt(), cap };
        let change = (1.0 + c) * (at(1.0) - at(-1.0)); // Z at x = 1, less Z at x = −1
        let step = (STEP * deviation.min(change)).max(4.0 * rest.below() / MAX_WINDOW as f64);
        let largest = values.iter().fold(0.0_f64, |most, (value, _)| most.max(*value)).min(MAX_STEPS * step);
        let smallest = -cap.min(MAX_STEPS * step);
        for (value, mass) in &mut values {
            infinite += (*value - largest).max(0.0) * *mass;
            *value = value.clamp(smallest, largest);
        }
        let grid = Discretization::new(&values, step);
        let sums = self.sum(&grid, c, &rest);
        let raised = 1.0 + self.bins as f64 * ROUNDING;
        let value = (sums.value + infinite) * raised;
        let error = sums.error * raised + 8.0 * f64::EPSILON * (1.0 + c);
        let is_known = value.is_finite() && error.is_finite();
        if is_known { Bounded { value, error } } else { Bounded { value: 1.0, error: 1.0 } }
    }

    /// Returns Σ r(k) g(k) and its error.
    fn sum(&mut self, grid: &Discretization, c: f64, moments: &Moments) -> Bounded {
        if self.bins == 1 {
            let positive = grid.moments().filter(|(index, _)| *index > 0);
            return Bounded { value: positive.map(|(_, moment)| moment).sum(), error: 0.0 };
        }
        let reach = grid.last() + 1;
        let below = moments.below() / grid.step;
        let needed = below + ABOVE * moments.deviation / grid.step + reach as f64;
        let length = (needed.max(2.3 * reach as f64) as usize).next_power_of_two().clamp(64, 2 * MAX_WINDOW);
        // r is needed from −reach on, where g is 0.
        let (rest, rounding) = self.rest(grid, length, reach);
        let mut along = grid.moments().rev().peekable();
        let (mut g, mut sizes) = (Vec::with_capacity(length), Vec::with_capacity(length));
        let (mut sum, mut size) = (0.0, 0.0);
        for k in (-reach..).take(length) {
            while let Some((_, moment)) = along.next_if(|(index, _)| *index > -k) {
                sum += moment;
                size += moment.abs();
            }
            g.push(sum);
            sizes.push(size);
        }
        // Beyond some k, a negative g counts as 0. The search for this k goes down from the largest
        // index that values below the window do not reach.
        let last = (length - (below as usize).min(length) + reach as usize).min(length);
        let mut squares: f64 = g[..last].iter().map(|g| g * g).sum();
        let (mut left_out, mut kept, mut least) = (0.0, last, rounding * squares.sqrt());
        for (k, &g) in g[..last].iter().enumerate().rev() {
            if g > 0.0 {
                break;
            }
            squares = (squares - g * g).max(0.0);
            left_out += -g * rest[k].max(0.0);
            let cost = left_out + rounding * squares.sqrt();
            if cost < least {
                (least, kept) = (cost, k);
            }
        }
        let norm = norm(&g[..kept]);
        let chunks = rest[..kept].chunks(CHUNK).zip(g.chunks(CHUNK));
        let value = chunks.map(|(rest, g)| rest.iter().zip(g).map(|(r, g)| r * g).sum::<f64>()).sum();
        let size: f64 = rest[..kept].iter().zip(&sizes).map(|(r, size)| r.abs() * size).sum();
        let roundings = (2 * grid.masses.len() + CHUNK + length / CHUNK + 16) as f64;
        // Negative g begins at k = 0 or above, so another value reaches it only from this distance.
        let negative = kept.saturating_sub(reach as usize);
        let down = length - negative.min(length);
        let outside = |sign: f64, end: usize| self.outside(grid, moments.mean, sign, end as f64 * grid.step);
        // g falls from k = 0 on. Raised values can leave it positive where the sum ends, and above.
        let left = g[kept.min(length - 1)].max(0.0) * outside(1.0, negative);
        let rounded = rounding * norm * (1.0 + 1e-6) + 2.0 * roundings * f64::EPSILON * size;
        let error = rounded + c * (outside(-1.0, down) + outside(1.0, length)) + left;
        Bounded { value, error }
    }

    /// Returns the cyclic distribution of the sum of b − 1 terms, from −`reach` on, and a bound of
    /// its error.
    fn rest(&mut self, grid: &Discretization, length: usize, reach: i64) -> (Vec<f64>, f64) {
        if self.transform.as_ref().is_none_or(|(known, _)| *known != length) {
            self.transform = Some((length, RealTransform::new(length)));
        }
        let Some((_, fourier)) = &self.transform else { return (Vec::new(), f64::INFINITY) };
        let mut masses = vec![0.0; length];
        for (index, mass) in &grid.masses {
            masses[index.rem_euclid(length as i64) as usize] += mass;
        }
        let (count, total, own) = ((self.bins - 1) as f64, masses.iter().sum::<f64>(), norm(&masses));
        let transform = TRANSFORM * (length as f64).log2();
        let spectrum: Vec<_> =
            fourier.forward(&masses).into_iter().map(|value| power(value, self.bins - 1)).collect();
        let mut rest = fourier.inverse(&spectrum);
        let found = norm(&rest);
        let growth = count * ((total - 1.0).max(0.0) + transform * (length as f64).sqrt() * own);
        let products = 2.0 * count * PRODUCT + 2.0 * transform;
        let error = growth.exp() * (count * transform * own + products * found) * (1.0 + 1e-3);
        rest.rotate_left((-reach).rem_euclid(length as i64) as usize);
        (rest, error)
    }

    /// Bounds the probability of sign·R at or above `end`.
    fn outside(&self, grid: &Discretization, mean: f64, sign: f64, end: f64) -> f64 {
        let count = (self.bins - 1) as f64;
        let bound = |slope: f64| {
            let exponent = |index: i64| sign * slope * index as f64 * grid.step;
            let moment: f64 = grid.masses.iter().map(|(index, mass)| mass * exponent(*index).exp()).sum();
            (count * (moment.ln() + ROUNDING) - slope * end + 1e-9).exp()
        };
        let distance = end - sign * mean;
        if distance <= 0.0 {
            return 1.0;
        }
        SLOPES.into_iter().map(|slope| bound(slope / distance)).fold(1.0, f64::min)
    }
}

/// A distribution on multiples of a step, in ascending order; an index may occur several times.
struct Discretization {
    step: f64,
    masses: Vec<(i64, f64)>,
}

impl Discretization {
    fn new(values: &[(f64, f64)], step: f64) -> Self {
        let mut masses = Vec::with_capacity(2 * values.len());
        for (value, mass) in values {
            let position = value / step;
            let (index, share) = (position.floor(), position - position.floor());
            masses.push((index as i64, mass * (1.0 - share)));
            masses.push((index as i64 + 1, mass * share));
        }
        masses.sort_unstable_by_key(|(index, _)| *index);
        Self { step, masses }
    }

    fn last(&self) -> i64 {
        self.masses.last().map_or(0, |(index, _)| *index)
    }

    /// Values times their masses.
    fn moments(&self) -> impl DoubleEndedIterator<Item = (i64, f64)> {
        self.masses.iter().map(|(index, mass)| (*index, *index as f64 * self.step * mass))
    }
}
