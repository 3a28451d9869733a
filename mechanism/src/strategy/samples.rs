//! Weighted samples of the rows of a decoder: a few thousand samples represent 10⁸ rows.
//!
//! Let `A = D⁻¹T` with T Toeplitz and D the row divisors. Row t of `A C⁻¹` holds the first t terms
//! of the series `T C⁻¹`, divided by the divisor of t. C⁻¹ decays, so later terms are sums of a few
//! lasting parts: powers of a pole of T or of a slow buffer. The squared norm is then a sum of
//! geometric sums, which has a closed form and is smooth in t.
//!
//! The lasting parts follow from the poles, and are used once they agree with terms computed one by
//! one. If they never agree, every row is a sample. Sensitivities do not use samples.

use crate::{
    series::sum_rule,
    strategy::RowNorms,
    workload::{Decay, Workload},
};
use libm::{exp, expm1, log1p};

/// A row that represents a range of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowSample {
    /// Step, from 1; may lie between two steps.
    pub step: f64,
    /// `Σ_t f(t, ‖B_t‖)` over all rows is `Σ weight·f(step, norm)` over the samples, to a relative
    /// error of about 1e-10, for any f that is smooth in the late rows. May be negative. If norms
    /// are monotonic over the late rows, as for all but unusual strategies, the largest row is
    /// among the samples.
    pub weight: f64,
    /// Norm of the row.
    pub norm: f64,
}

/// Samples of the rows of a decoder. The first sample is the first row, the last is the last row.
pub type RowSamples<'a> = Box<dyn Iterator<Item = RowSample> + 'a>;

pub(super) fn all(norms: RowNorms<'_>) -> RowSamples<'_> {
    Box::new(norms.zip(1_u64..).map(|(norm, t)| RowSample { step: t as f64, weight: 1.0, norm }))
}

/// Minimum and maximum number of terms computed one by one.
const TERMS: [u64; 2] = [1 << 14, 1 << 20];

/// Relative error allowed between a term and its lasting parts.
const AGREEMENT: f64 = 1e-10;

const WITNESSES: usize = 64;

/// A part `amplitude·(1 − complement)^l` of the term with lag l.
#[derive(Clone, Copy, Debug)]
pub(super) struct GeometricTerm {
    pub(super) amplitude: f64,
    pub(super) complement: f64,
}

/// The poles of the Toeplitz part of a workload, as complements. A window has the pole of running
/// sums. `None` for a matrix.
pub(super) fn poles(workload: &Workload) -> Option<Vec<f64>> {
    let complement = |decay: &Decay| 1.0 - decay.get();
    match workload {
        Workload::Prefix | Workload::Average | Workload::Window(_) | Workload::WindowMean(_) => {
            Some(vec![0.0])
        }
        Workload::Exponential(decay) | Workload::Adam(decay) => Some(vec![complement(decay)]),
        Workload::Momentum(decay) => Some(vec![0.0, complement(decay)]),
        Workload::Matrix(_) => None,
    }
}

/// The workload whose impulse response is that of the Toeplitz part; for a window, until its first
/// value leaves it.
pub(super) fn base(workload: &Workload) -> Workload {
    match workload.undivided() {
        Workload::Window(_) => Workload::Prefix,
        other => other,
    }
}

/// Returns the parts of a workload's poles; `response` returns `C⁻¹(1/(1 − complement))`.
pub(super) fn parts_of_workload(poles: &[f64], response: impl Fn(f64) -> f64) -> Vec<GeometricTerm> {
    let amplitude = |&complement: &f64| {
        let others = poles.iter().filter(|other| **other != complement);
        others
            .fold(response(complement), |product, other| product * (1.0 - complement) / (other - complement))
    };
    poles.iter().map(|pole| GeometricTerm { amplitude: amplitude(pole), complement: *pole }).collect()
}

/// Samples for a series with the `terms` of the [`base`] of a workload and the lasting `parts`.
/// Parts that decay soon may be missing. `memory` consecutive terms determine all later ones.
/// `None` if the terms do not converge to the parts.
pub(super) fn of_series(
    workload: &Workload,
    steps: u64,
    terms: impl Iterator<Item = f64>,
    parts: &[GeometricTerm],
    memory: usize,
) -> Option<Vec<RowSample>> {
    let window = match workload {
        Workload::Window(length) | Workload::WindowMean(length) => Some(length.get()),
        _ => None,
    };
    let series = TermSeries::settled(steps, terms, parts, memory.max(WITNESSES))?;
    let settled = series.first.len() as u64;
    let mut rows = RowSampler { workload, square: 0.0, unit: 1.0, samples: Vec::new() };
    match window.filter(|&length| length < steps) {
        None => {
            rows.unit = window.map_or(1.0, |length| length as f64);
            (0..settled).for_each(|lag| rows.push(lag, series.term(lag)));
            rows.extend(settled, steps, 0, &series.lasting);
        }
        Some(length) => {
            rows.unit = length as f64;
            (0..settled.min(length)).for_each(|lag| rows.push(lag, series.term(lag)));
            if settled < length {
                rows.extend(settled, length, 0, &series.lasting);
            }
            let end = steps.min(length + settled);
            let leaving = |lag: u64| match lag < length {
                true => 0.0,
                false => series.term(lag - length),
            };
            (length..end).for_each(|lag| rows.push(lag, series.term(lag) - leaving(lag)));
            let left = |part: &GeometricTerm| GeometricTerm {
                amplitude: part.amplitude * expm1(length as f64 * log1p(-part.complement)),
                ..*part
            };
            let lasting: Vec<GeometricTerm> = series.lasting.iter().map(left).collect();
            rows.extend(end, steps, length, &lasting);
        }
    }
    Some(rows.samples)
}

struct TermSeries {
    first: Vec<f64>,
    /// Amplitudes as of the first term after `first`.
    lasting: Vec<GeometricTerm>,
}

impl TermSeries {
    fn settled(
        steps: u64,
        mut terms: impl Iterator<Item = f64>,
        parts: &[GeometricTerm],
        witnesses: usize,
    ) -> Option<Self> {
        let mut series = TermSeries { first: Vec::new(), lasting: Vec::new() };
        let mut length = TERMS[0];
        while length <= TERMS[1] && 2 * length <= steps {
            let missing = length as usize - series.first.len();
            series.first.extend(terms.by_ref().take(missing));
            let after = length as f64;
            // The other parts have decayed, or the terms will differ from the lasting parts.
            let lasts = |part: &&GeometricTerm| part.complement >= 0.0 && part.complement * after < 46.0;
            let moved = |part: &GeometricTerm| GeometricTerm {
                amplitude: part.amplitude * exp(after * log1p(-part.complement)),
                ..*part
            };
            series.lasting = parts.iter().filter(lasts).map(moved).collect();
            if series.agrees(steps, witnesses) {
                return Some(series);
            }
            length *= 2;
        }
        None
    }

    /// Whether the last terms match the lasting parts. Over all steps, the difference may have at
    /// most the effect of a relative error of [`AGREEMENT`] in the terms.
    fn agrees(&self, steps: u64, witnesses: usize) -> bool {
        let squares: f64 = self.first.iter().map(|term| term * term).sum();
        let least = (squares / steps as f64).sqrt();
        let length = self.first.len();
        (length.saturating_sub(witnesses)..length).all(|lag| {
            let expected = value(&self.lasting, lag as f64 - length as f64);
            (self.first[lag] - expected).abs() <= AGREEMENT * expected.abs().max(least)
        })
    }

    fn term(&self, lag: u64) -> f64 {
        let length = self.first.len() as u64;
        self.first.get(lag as usize).copied().unwrap_or_else(|| value(&self.lasting, (lag - length) as f64))
    }
}

fn value(parts: &[GeometricTerm], lag: f64) -> f64 {
    parts.iter().map(|part| part.amplitude * exp(lag * log1p(-part.complement))).sum()
}

/// Sum of the squares of the first `terms` terms with these parts.
fn energy(parts: &[GeometricTerm], terms: f64) -> f64 {
    let pair = |one: &GeometricTerm, other: &GeometricTerm| {
        let complement = one.complement + other.complement - one.complement * other.complement;
        let sum = match complement {
            0.0 => terms,
            _ => -expm1(terms * log1p(-complement)) / complement,
        };
        one.amplitude * other.amplitude * sum
    };
    parts.iter().map(|one| parts.iter().map(|other| pair(one, other)).sum::<f64>()).sum()
}

struct RowSampler<'a> {
    workload: &'a Workload,
    square: f64,
    unit: f64,
    samples: Vec<RowSample>,
}

impl RowSampler<'_> {
    fn sample(&mut self, step: f64, weight: f64, square: f64) {
        let norm = square.sqrt() / (self.unit * self.workload.divisor_at(step));
        self.samples.push(RowSample { step, weight, norm });
    }

    fn push(&mut self, lag: u64, term: f64) {
        self.square += term * term;
        self.sample(lag as f64 + 1.0, 1.0, self.square);
    }

    /// Adds rows `from + 1` to `to`, whose terms have these parts from the lag `from` on. Norms are
    /// smooth on the scale of the time since `origin`.
    fn extend(&mut self, from: u64, to: u64, origin: u64, parts: &[GeometricTerm]) {
        if from >= to {
            return;
        }
        for [position, weight] in sum_rule(from + 1 - origin, to - origin) {
            let step = origin as f64 + position;
            self.sample(step, weight, self.square + energy(parts, step - from as f64));
        }
        self.square += energy(parts, (to - from) as f64);
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        error::ExpectedError,
        strategy::{
            Factorization, RowSample, StrategyName,
            buffered::{Buffered, BufferedParameters, Buffers, ExponentialBuffer, PowerLawBuffer},
            build, samples,
        },
        workload::Workload,
    };

    /// Long enough for every workload here to have samples, short enough to compute all rows.
    const STEPS: u64 = 150_000;

    const WORKLOADS: [&str; 16] = [
        "prefix",
        "average",
        "exponential:0.5",
        "exponential:0.999",
        "exponential:0.999999",
        "window:1",
        "window:1000",
        "window-mean:1000",
        "window-mean:50000",
        "window-mean:1000000",
        "window:50000",
        "window:1000000",
        "momentum:0.9",
        "momentum:0.99999",
        "adam:0.9",
        "adam:0.99999",
    ];

    fn figures(workload: &Workload, samples: impl Iterator<Item = RowSample>) -> [f64; 6] {
        let (mut relative, mut last) = (0.0, 0.0);
        let error = ExpectedError::of_samples(
            1.0,
            samples.inspect(|row| {
                last = row.norm / workload.row_sum(row.step);
                relative += row.weight * last * last;
            }),
        );
        [error.frobenius, error.max_row, error.first_row, error.last_row, relative, last]
    }

    fn check(strategy: &dyn Factorization, text: &str, steps: u64, tolerance: f64) -> usize {
        let workload: Workload = text.parse().unwrap();
        let expected = figures(&workload, samples::all(strategy.decoder_row_norms(&workload, steps)));
        let all: Vec<RowSample> = strategy.decoder_row_samples(&workload, steps).collect();
        assert_eq!([all[0].step, all[all.len() - 1].step], [1.0, steps as f64]);
        let found = figures(&workload, all.iter().copied());
        for (position, (found, expected)) in found.into_iter().zip(expected).enumerate() {
            let error = (found / expected - 1.0).abs();
            let name = strategy.name();
            assert!(
                error < tolerance,
                "{name} for {text}, figure {position}: {found}, not {expected}: {error:e}"
            );
        }
        all.len()
    }

    fn buffered(buffers: &[(f64, f64)]) -> Buffered {
        let buffer =
            |&(complement, weight): &(f64, f64)| ExponentialBuffer { decay: 1.0 - complement, weight };
        let buffers = Buffers::Toeplitz(buffers.iter().map(buffer).collect());
        let parameters = BufferedParameters { horizon: Some(1 << 30), buffers };
        let name = format!("blt:{}", parameters.count()).parse().unwrap();
        Buffered::new(name, parameters).unwrap()
    }

    #[test]
    fn sums_over_samples_agree_with_sums_over_all_rows() {
        let two = |power: i32| 2f64.powi(-power);
        let fits = [
            buffered(&[(two(1), 0.5)]),
            buffered(&[(two(16), two(8)), (two(2), two(2))]),
            buffered(&[
                (two(20), two(10)),
                (two(15), two(7)),
                (two(10), two(5)),
                (two(5), two(4)),
                (two(1), two(2)),
            ]),
        ];
        for text in WORKLOADS {
            for fit in &fits {
                assert!(check(fit, text, STEPS, 1e-9) < STEPS as usize, "{text}: all rows were gone through");
            }
            for name in ["identity", "banded-square-root:7", "banded-inverse-square-root:7"] {
                let Ok(strategy) = build(name, &text.parse().unwrap(), Some(STEPS)) else {
                    continue;
                };
                let samples = check(strategy.as_ref(), text, STEPS, 1e-9);
                assert!(name != "identity" || samples < STEPS as usize, "{text}: all rows were gone through");
            }
        }
    }

    #[test]
    #[ignore = "slow"]
    fn samples_of_a_power_law_skip_rows() {
        let buffers = [(0.4, 0.95, 0.3), (0.1, 1.2, 0.25)];
        let buffer = |(growth, decay, weight)| PowerLawBuffer { growth, decay, weight };
        for count in [1, 2] {
            let buffers = Buffers::PowerLaw(buffers[..count].iter().copied().map(buffer).collect());
            let name: StrategyName = format!("power-law:{count}").parse().unwrap();
            let strategy = Buffered::new(name, BufferedParameters { horizon: None, buffers }).unwrap();
            for text in ["average", "prefix"] {
                assert!(check(&strategy, text, STEPS, 1e-6) < STEPS as usize, "{text}");
            }
            check(&strategy, "exponential:0.99", 20_000, 1e-12);
        }
    }

    #[test]
    fn short_horizons_are_sampled_at_every_row() {
        for steps in [1, 2, 100, (1 << 15) - 1] {
            let strategy = buffered(&[(0.25, 0.5)]);
            assert_eq!(check(&strategy, "prefix", steps, 1e-15), steps as usize);
        }
    }
}
