//! Weighted sums of squares of `d_l = Σ_p α_p λ_p^l` over up to billions of lags l, with
//! derivatives.
//!
//! Short lags are summed one by one. Beyond them λ^l is smooth on the scale of l, so a sum over [L,
//! 2L) is an integral over [L − ½, 2L − ½), up to a term that cancels from range to range and
//! leaves `f′(L)/24` of the first one. Gauss's rule computes the integral: to about 1e-7 of the
//! whole, in a few hundred terms.

use crate::series::gauss_legendre;

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
            let places = rule.iter().map(|[place, part]| (middle + half * place, half * part));
            smooth.extend(places.map(|(lag, part)| [lag, part * weight(lag)]));
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

/// `(1 − complement)^lag` for long lags; 0 for complements above ½, which have vanished by then.
fn smooth_power(complement: f64, lag: f64) -> f64 {
    if complement > 0.5 { 0.0 } else { libm::exp(lag * libm::log1p(-complement)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_all_terms() {
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
    fn derivatives_are_those_of_differences() {
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
