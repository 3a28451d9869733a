//! The error of a buffered Toeplitz strategy as a function of its poles, in closed form.
//!
//! C has the poles θ_j and its inverse the poles θ̂_j, with `θ_1 > θ̂_1 > θ_2 > … > θ̂_b` exactly
//! when all weights are positive. So the poles are the free parameters. C is
//! `Π(1 − θ̂_j z)/Π(1 − θ_j z)`; its weights and the coefficients of A C⁻¹ are residues, products
//! of differences of poles. All computations use the complements δ = 1 − θ, which keep their digits
//! where θ is near 1. For a workload β^lag the poles of C are below β: then the coefficients of A
//! C⁻¹ are sums of positive terms too.
//!
//! # Impulse response
//! Weighted sums of squares of `d_l = Σ_p α_p λ_p^l` over up to billions of lags l, with
//! derivatives.
//!
//! Short lags are summed one by one. Beyond them λ^l is smooth on the scale of l, so a sum over [L,
//! 2L) is an integral over [L − ½, 2L − ½), up to a term that cancels from range to range and
//! leaves `f′(L)/24` of the first one. Gauss's rule computes the integral: to about 1e-7 of the
//! whole, in a few hundred terms.

use super::Objective;
use super::descent::DualNumber;
use crate::series::gauss_legendre;
use crate::workload::Workload;
use libm::{exp, expm1, log, log1p, pow};

/// Participation of an entity: up to `count` times, at least `gap` steps apart. The coefficients of
/// a fit are positive and never grow, so steps 0, gap, 2·gap, … are the worst case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Repetition {
    /// k, at least 1.
    pub(super) count: u64,
    /// b, at least 1.
    pub(super) gap: u64,
}

/// The loss of a fit: the squared sensitivity times a weighted sum of squares of the coefficients
/// of A C⁻¹.
pub(super) struct ToeplitzLoss {
    pub(super) steps: u64,
    pub(super) repetition: Repetition,
    /// 1 − β of the workload, 0 if it never forgets.
    pub(super) base: f64,
    error: ErrorTerms,
}

/// The squared error for unit noise, as a function of the coefficients of A C⁻¹.
enum ErrorTerms {
    Response {
        /// A pole of the workload other than its base.
        pole: Option<f64>,
        lags: Lags,
        /// Length of a window, and the lags from it on, where values leave the window.
        window: Option<(f64, Lags)>,
    },
    /// `eᵀ Q e` for the coefficients e of C⁻¹: a workload given entry by entry.
    Quadratic(Vec<Vec<f64>>),
}

impl ToeplitzLoss {
    pub(super) fn new(
        workload: &Workload,
        horizon: Option<u64>,
        steps: u64,
        repetition: Repetition,
        objective: Objective,
    ) -> Self {
        let base = match workload {
            Workload::Exponential(decay) | Workload::Adam(decay) => 1.0 - decay.get(),
            _ => 0.0,
        };
        let mean = objective == Objective::Rmse;
        let weight = |lag: f64| match horizon {
            Some(_) if mean => later_rows(workload, lag, steps) / steps as f64,
            _ => lasting_row(workload),
        };
        let lags = |count: u64, from: u64| Lags::new(count, |lag| weight(from as f64 + lag));
        let error = match workload {
            Workload::Matrix(_) => ErrorTerms::Quadratic(quadratic(workload, steps as usize, mean)),
            Workload::Window(length) | Workload::WindowMean(length) => {
                let inside = length.get().min(steps);
                let window = (length.get() as f64, lags(steps - inside, inside));
                ErrorTerms::Response { pole: None, lags: lags(inside, 0), window: Some(window) }
            }
            Workload::Momentum(decay) => {
                ErrorTerms::Response { pole: Some(1.0 - decay.get()), lags: lags(steps, 0), window: None }
            }
            _ => ErrorTerms::Response { pole: None, lags: lags(steps, 0), window: None },
        };
        Self { steps, repetition, base, error }
    }

    /// Logarithm of the squared error times the squared sensitivity, for alternating, ascending
    /// complements δ_j and δ̂_j.
    pub(super) fn log_loss<const N: usize>(&self, complements: &[[DualNumber<N>; 2]]) -> DualNumber<N> {
        let poles: Vec<_> = complements.iter().map(|pair| pair[0]).collect();
        let zeros: Vec<_> = complements.iter().map(|pair| pair[1]).collect();
        self.error_squared(&poles, &zeros).log()
            + self.sensitivity_squared(&poles, &weights(complements)).log()
    }

    pub(super) fn error_squared<const N: usize>(
        &self,
        poles: &[DualNumber<N>],
        zeros: &[DualNumber<N>],
    ) -> DualNumber<N> {
        match &self.error {
            ErrorTerms::Quadratic(form) => {
                let weights: Vec<_> = zeros.iter().map(|&zero| residue(zero, poles, zeros)).collect();
                quadratic_error(form, &weights, zeros)
            }
            ErrorTerms::Response { pole, lags, window } => {
                let all: Vec<_> = [Some(self.base), *pole]
                    .into_iter()
                    .flatten()
                    .map(DualNumber::constant)
                    .chain(zeros.iter().copied())
                    .collect();
                let amplitudes: Vec<_> =
                    (0..all.len()).map(|p| amplitude(p, &all, poles, pole.is_some())).collect();
                let first = energy(lags, &amplitudes, &all);
                let Some((length, later)) = window else { return first };
                let scale = DualNumber::constant(1.0 / (length * length));
                let leaving: Vec<_> =
                    amplitudes.iter().zip(&all).map(|(&a, &c)| a * power_less_one(c, *length)).collect();
                (first + energy(later, &leaving, &all)) * scale
            }
        }
    }

    /// The strategy's `participation_norm_squared`, with derivatives.
    fn sensitivity_squared<const N: usize>(
        &self,
        poles: &[DualNumber<N>],
        weights: &[DualNumber<N>],
    ) -> DualNumber<N> {
        let one = DualNumber::constant(1.0);
        let (gap, mut total) = (self.repetition.gap, DualNumber::constant(0.0));
        let mut buffers = vec![DualNumber::constant(0.0); poles.len()];
        let mut known: Option<(u64, Vec<DualNumber<N>>)> = None;
        let starts = (0..self.repetition.count).map(|m| (m, m.saturating_mul(gap)));
        for (m, start) in starts.take_while(|&(_, start)| start < self.steps) {
            let rest = self.steps - start;
            let length = if m + 1 == self.repetition.count { rest } else { gap.min(rest) };
            let diagonal = buffers.iter().fold(one, |sum, &buffers| sum + buffers);
            buffers.iter_mut().zip(poles).zip(weights).for_each(|((buffers, &pole), &weight)| {
                *buffers = *buffers * (one - pole) + weight;
            });
            let sums = match known.take().filter(|(known, _)| *known == length) {
                Some((_, sums)) => sums,
                None => geometric_sums(poles, length - 1),
            };
            total = total + diagonal * diagonal;
            for (j, &a) in buffers.iter().enumerate() {
                for (k, &b) in buffers[..=j].iter().enumerate() {
                    let times = if j == k { 1.0 } else { 2.0 };
                    total = total + a * b * sums[j * (j + 1) / 2 + k] * DualNumber::constant(times);
                }
            }
            known = Some((length, sums));
            buffers.iter_mut().zip(poles).for_each(|(buffers, &pole)| {
                *buffers = *buffers * (power_less_one(pole, (length - 1) as f64) + one);
            });
        }
        total
    }
}

/// Sum of squared scales of the rows from t = lag + 1 to the last: `Σ 1/divisor(t)²`. An integral
/// from [`EXACT_LAGS`] on.
fn later_rows(workload: &Workload, lag: f64, steps: u64) -> f64 {
    let row = |t: u64| 1.0 / (workload.row_divisor(t) * workload.row_divisor(t));
    let integral = |t: f64| match workload {
        Workload::Average => -1.0 / t,
        Workload::Adam(decay) => {
            let rate = -log(decay.get());
            let left = -expm1(-rate * t);
            (1.0 - decay.get()) * (1.0 - decay.get()) * (t + (log(left) - 1.0 / left) / rate)
        }
        Workload::WindowMean(length) => {
            let length = length.get() as f64;
            if t < length { -length * length / t } else { t - 2.0 * length }
        }
        _ => t,
    };
    let from = lag.max(EXACT_LAGS as f64).min(steps as f64);
    let exact: f64 = (lag as u64 + 1..=from as u64).map(row).sum();
    exact + integral(steps as f64 + 0.5) - integral(from + 0.5)
}

/// Squared scale of a row in the limit of long streams.
fn lasting_row(workload: &Workload) -> f64 {
    match workload {
        Workload::Adam(decay) => (1.0 - decay.get()) * (1.0 - decay.get()),
        _ => 1.0,
    }
}

/// `Π_k (δ_k − δ)/Π (δ_q − δ)` over the other q: the residue of `Π(1 − θ_k z)/Π(1 − q z)` at the
/// pole 1 − δ, divided by the pole if the degrees differ by more than 1.
fn ratio<const N: usize>(
    at: DualNumber<N>,
    tops: &[DualNumber<N>],
    bottoms: impl Iterator<Item = DualNumber<N>>,
) -> DualNumber<N> {
    let top = tops.iter().fold(DualNumber::constant(1.0), |product, &top| product * (top - at));
    bottoms.fold(top, |ratio, bottom| ratio / (bottom - at))
}

/// The weights ω of C, from its poles and zeros.
pub(super) fn weights<const N: usize>(complements: &[[DualNumber<N>; 2]]) -> Vec<DualNumber<N>> {
    let [poles, zeros] = [0, 1].map(|side| complements.iter().map(|pair| pair[side]).collect::<Vec<_>>());
    poles.iter().map(|&pole| residue(pole, &zeros, &poles)).collect()
}

/// The weight of a pole in `Π(1 − top z)/Π(1 − pole z)`.
fn residue<const N: usize>(
    at: DualNumber<N>,
    tops: &[DualNumber<N>],
    poles: &[DualNumber<N>],
) -> DualNumber<N> {
    ratio(at, tops, poles.iter().copied().filter(|pole| pole.value != at.value))
}

/// The contribution of a pole to the coefficients of A C⁻¹.
fn amplitude<const N: usize>(
    index: usize,
    all: &[DualNumber<N>],
    poles: &[DualNumber<N>],
    extra: bool,
) -> DualNumber<N> {
    let others = all.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, &pole)| pole);
    let ratio = ratio(all[index], poles, others);
    if extra { ratio * (DualNumber::constant(1.0) - all[index]) } else { ratio }
}

fn energy<const N: usize>(
    lags: &Lags,
    amplitudes: &[DualNumber<N>],
    complements: &[DualNumber<N>],
) -> DualNumber<N> {
    let values = |duals: &[DualNumber<N>]| duals.iter().map(|dual| dual.value).collect::<Vec<_>>();
    let energy = lags.energy(&values(amplitudes), &values(complements));
    let by_amplitude = amplitudes.iter().copied().zip(energy.by_amplitude);
    let by_complement = complements.iter().copied().zip(energy.by_complement);
    DualNumber::compose(energy.value, by_amplitude.chain(by_complement))
}

/// `(1 − δ)^exponent − 1` for an integer exponent.
fn power_less_one<const N: usize>(complement: DualNumber<N>, exponent: f64) -> DualNumber<N> {
    let c = complement.value;
    let value = if c < 0.5 { expm1(exponent * log1p(-c)) } else { pow(1.0 - c, exponent) - 1.0 };
    let slope = if c == 1.0 { 0.0 } else { -exponent * (value + 1.0) / (1.0 - c) };
    complement.map(value, slope)
}

/// `Σ_(l<terms) (θ_j θ_k)^l` for k ≤ j.
fn geometric_sums<const N: usize>(poles: &[DualNumber<N>], terms: u64) -> Vec<DualNumber<N>> {
    let pairs = poles.iter().enumerate().flat_map(|(j, &a)| poles[..=j].iter().map(move |&b| (a, b)));
    pairs.map(|(a, b)| geometric_sum(a + b - a * b, terms as f64)).collect()
}

/// `(1 − (1 − x)^terms)/x`, by its series for small terms·x.
fn geometric_sum<const N: usize>(x: DualNumber<N>, terms: f64) -> DualNumber<N> {
    if terms * x.value < 1e-4 {
        let [second, third] = [terms * (terms - 1.0) / 2.0, terms * (terms - 1.0) * (terms - 2.0) / 6.0];
        return x.map(terms - (second - third * x.value) * x.value, 2.0 * third * x.value - second);
    }
    let rest = expm1(terms * log1p(-x.value));
    let slope = (terms * (rest + 1.0) / (1.0 - x.value) * x.value + rest) / (x.value * x.value);
    x.map(-rest / x.value, slope)
}

/// `Q_lm = Σ_i V_(i+l, i+m)` with `V = AᵀA`, divided by the number of rows. For the largest error
/// every row of a Toeplitz A is part of the next, so V is the outer square of the last row.
fn quadratic(workload: &Workload, steps: usize, mean: bool) -> Vec<Vec<f64>> {
    let a = workload.matrix(steps);
    let last = a.row(steps - 1);
    let gram = if mean { a.tr_mul(&a) / steps as f64 } else { last.tr_mul(&last) };
    let mut form = vec![vec![0.0; steps + 1]; steps + 1];
    for l in (0..steps).rev() {
        for m in (0..steps).rev() {
            form[l][m] = form[l + 1][m + 1] + gram[(l, m)];
        }
    }
    form
}

fn quadratic_error<const N: usize>(
    form: &[Vec<f64>],
    weights: &[DualNumber<N>],
    zeros: &[DualNumber<N>],
) -> DualNumber<N> {
    let power = |zero: &DualNumber<N>, lag: usize| pow(1.0 - zero.value, lag as f64 - 1.0);
    let entry = |lag: usize| match lag {
        0 => 1.0,
        _ => weights.iter().zip(zeros).map(|(weight, zero)| weight.value * power(zero, lag)).sum(),
    };
    let e: Vec<f64> = (0..form.len()).map(entry).collect();
    let applied: Vec<f64> = form.iter().map(|row| row.iter().zip(&e).map(|(q, e)| q * e).sum()).collect();
    let value = applied.iter().zip(&e).map(|(a, e)| a * e).sum();
    let parts = weights.iter().zip(zeros).flat_map(|(&weight, &zero)| {
        let (mut by_weight, mut by_zero) = (0.0, 0.0);
        for (lag, applied) in applied.iter().enumerate().skip(1) {
            let (power, exponent) = (power(&zero, lag), lag as f64 - 1.0);
            by_weight += 2.0 * applied * power;
            by_zero -= if lag > 1 {
                2.0 * applied * weight.value * exponent * power / (1.0 - zero.value)
            } else {
                0.0
            };
        }
        [(weight, by_weight), (zero, by_zero)]
    });
    DualNumber::compose(value, parts)
}

/// Larger than the increase of the sum of weights when a strategy is rounded.
const ROUNDING: f64 = 1e-9;

impl ToeplitzLoss {
    /// Maps unbounded variables to complements: the first pole, then the logarithms of the steps
    /// from one to the next, in the logit between the base and 1. The last zero lies a step of any
    /// length after the last pole, and may lie beyond 1. For repeated participation that step is
    /// limited, so that the weights of C add up to less than 1: their sum is `Σ δ̂_j − Σ δ_j`, and
    /// the sensitivity requires coefficients that never grow.
    pub(super) fn complements<const N: usize>(&self, variables: &[DualNumber<N>]) -> Vec<[DualNumber<N>; 2]> {
        let one = DualNumber::<N>::constant(1.0);
        let mut position = DualNumber::constant(0.0);
        let mut all: Vec<DualNumber<N>> = Vec::new();
        for (index, &variable) in variables.iter().enumerate() {
            position = if index == 0 { variable } else { position + variable.exp() };
            let last = index + 1 == variables.len();
            let share = one / (one + (-position).exp());
            all.push(if last {
                let step =
                    if self.repeats() { room(&all) / (one + (-variable).exp()) } else { variable.exp() };
                all[index - 1] + step
            } else {
                share * DualNumber::constant(1.0 - self.base) + DualNumber::constant(self.base)
            });
        }
        all.as_chunks::<2>().0.to_vec()
    }

    /// Returns the variables of complements within the base; the inverse of
    /// [`complements`](Self::complements).
    pub(super) fn variables(&self, complements: &[f64]) -> Vec<f64> {
        let logit = |share: f64| log(share / (1.0 - share));
        let inner = |c: f64| logit((c - self.base) / (1.0 - self.base));
        let last = complements.len() - 1;
        let between = |j: usize| match j {
            0 => inner(complements[0]),
            _ if j == last => {
                let step = complements[last] - complements[last - 1];
                let before: Vec<DualNumber<0>> =
                    complements[..last].iter().map(|&c| DualNumber::constant(c)).collect();
                let share = || (step / room(&before).value).clamp(ROUNDING, 1.0 - ROUNDING);
                if self.repeats() { logit(share()) } else { log(step) }
            }
            _ => log(inner(complements[j]) - inner(complements[j - 1])),
        };
        (0..=last).map(between).collect()
    }

    fn repeats(&self) -> bool {
        self.repetition.count > 1
    }
}

/// Remaining length of the last step from a pole to its zero: 1 minus the other steps.
fn room<const N: usize>(before: &[DualNumber<N>]) -> DualNumber<N> {
    let pairs = before.as_chunks::<2>().0.iter();
    pairs.fold(DualNumber::constant(1.0 - ROUNDING), |room, &[pole, zero]| room - (zero - pole))
}

/// 2b complements, evenly spaced in the logarithm, from about one over the effective number of
/// steps to about 1.
pub(super) fn spread(base: f64, steps: u64, buffers: usize) -> Vec<f64> {
    let lowest = log((0.5 / steps as f64).max(0.5 * base).min(0.5));
    let position = |j: usize| exp(lowest * (1.0 - (j as f64 + 0.5) / (2 * buffers) as f64));
    (0..2 * buffers).map(|j| base + (1.0 - base) * position(j)).collect()
}

pub(super) const EXACT_LAGS: usize = 256;

#[derive(Clone, Debug)]
pub(super) struct Lags {
    /// Weights of the lags 0, 1, …
    exact: Vec<f64>,
    /// Lags beyond, with their weights.
    smooth: Vec<[f64; 2]>,
}

/// A sum and its derivatives by all α and by all complements 1 − λ.
#[derive(Clone, Debug)]
pub(super) struct Energy {
    pub(super) value: f64,
    pub(super) by_amplitude: Vec<f64>,
    pub(super) by_complement: Vec<f64>,
}

impl Lags {
    /// Makes the lags below `count`, with weights by a function that is smooth from [`EXACT_LAGS`]
    /// on.
    pub(super) fn new(count: u64, weight: impl Fn(f64) -> f64) -> Self {
        let exact = (0..count.min(EXACT_LAGS as u64)).map(|lag| weight(lag as f64)).collect();
        let (mut smooth, rule) = (Vec::new(), gauss_legendre());
        let mut start = EXACT_LAGS as u64;
        while start < count {
            let end = count.min(2 * start);
            let (middle, half) = (0.5 * (start + end) as f64 - 0.5, 0.5 * (end - start) as f64);
            let positions = rule.iter().map(|[position, part]| (middle + half * position, half * part));
            smooth.extend(positions.map(|(lag, part)| [lag, part * weight(lag)]));
            start = end;
        }
        Self { exact, smooth }
    }

    pub(super) fn energy(&self, amplitudes: &[f64], complements: &[f64]) -> Energy {
        let zeros = || vec![0.0; amplitudes.len()];
        let mut energy = Energy { value: 0.0, by_amplitude: zeros(), by_complement: zeros() };
        let (mut powers, mut slopes) = (vec![1.0; amplitudes.len()], zeros());
        for &weight in &self.exact {
            energy.add(weight, amplitudes, &powers, &slopes);
            for ((power, slope), complement) in powers.iter_mut().zip(&mut slopes).zip(complements) {
                *slope = *slope * (1.0 - complement) - *power;
                *power *= 1.0 - complement;
            }
        }
        for &[lag, weight] in &self.smooth {
            for ((power, slope), &complement) in powers.iter_mut().zip(&mut slopes).zip(complements) {
                *power = smooth_power(complement, lag);
                *slope = if *power > 0.0 { -lag * *power / (1.0 - complement) } else { 0.0 };
            }
            energy.add(weight, amplitudes, &powers, &slopes);
        }
        energy
    }
}

impl Energy {
    fn add(&mut self, weight: f64, amplitudes: &[f64], powers: &[f64], slopes: &[f64]) {
        let coefficient: f64 = amplitudes.iter().zip(powers).map(|(a, p)| a * p).sum();
        self.value += weight * coefficient * coefficient;
        let factor = 2.0 * weight * coefficient;
        self.by_amplitude.iter_mut().zip(powers).for_each(|(by, power)| *by += factor * power);
        let parts = amplitudes.iter().zip(slopes);
        self.by_complement.iter_mut().zip(parts).for_each(|(by, (a, slope))| *by += factor * a * slope);
    }
}

/// `(1 − complement)^lag` for long lags; 0 for complements above ½, whose powers are negligible
/// there.
fn smooth_power(complement: f64, lag: f64) -> f64 {
    if complement > 0.5 { 0.0 } else { libm::exp(lag * libm::log1p(-complement)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_equal_those_of_all_terms() {
        let (amplitudes, complements) = ([0.004, 0.03, 0.1, 0.4, -0.1], [0.0, 1e-4, 0.01, 0.5, 1.1]);
        for count in [1, 2, 255, 256, 257, 300, 1000, 100_000] {
            let weight = |lag: f64| (count as f64 - lag) / count as f64;
            let found = Lags::new(count, weight).energy(&amplitudes, &complements);
            let term = |lag: u64| {
                let parts = amplitudes.iter().zip(complements).map(|(a, c)| a * (1.0 - c).powi(lag as i32));
                weight(lag as f64) * parts.sum::<f64>().powi(2)
            };
            let expected: f64 = (0..count).map(term).sum();
            assert!((found.value - expected).abs() < 2e-7 * expected, "{count}: {} {expected}", found.value);
        }
    }

    #[test]
    fn derivatives_agree_with_differences() {
        let (amplitudes, complements) = ([0.004, 0.03, 0.4], [1e-4, 0.01, 1.2]);
        let lags = Lags::new(5000, |lag| 1.0 / (1.0 + lag));
        let found = lags.energy(&amplitudes, &complements);
        for j in 0..3 {
            let moved = |values: &[f64; 3], by: f64| {
                let mut moved = *values;
                moved[j] *= 1.0 + by;
                moved
            };
            let by = |f: &dyn Fn(f64) -> f64| (f(1e-5) - f(-1e-5)) / 2e-5;
            let amplitude = by(&|d| lags.energy(&moved(&amplitudes, d), &complements).value);
            let complement = by(&|d| lags.energy(&amplitudes, &moved(&complements, d)).value);
            assert!((found.by_amplitude[j] * amplitudes[j] - amplitude).abs() < 1e-8 * found.value);
            assert!((found.by_complement[j] * complements[j] - complement).abs() < 1e-8 * found.value);
        }
    }
}
