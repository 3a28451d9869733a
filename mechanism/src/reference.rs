//! Data and statistics of the tests: reference settings with known results, simulated moments,
//! values as text, and checks of frequencies.
//!
//! A check of frequencies fails by chance with a probability of at most [`FALSE_ALARM`], by bounds
//! that hold for any number of draws.
//!
//! - **Counts of several outcomes.** Let p̂ be the shares of k outcomes among n draws from p. Then
//!   `P(n·KL(p̂‖p) ≥ x) ≤ e^(−x) (e·x/(k − 1))^(k − 1)` for x > k − 1 (Agrawal, "Finite-sample
//!   concentration of the multinomial in relative entropy", 2020, Theorem 1.2).
//! - **Counts of one event.** The bounds of Clopper & Pearson, from [`Count`].

use crate::audit::bound::Count;
use crate::estimate::debias::MomentNoise;
use crate::moments::{Layout, SecondMoment};
use crate::strategy::{Strategy, build};
use crate::workload::Workload;
use chacha20::ChaCha8Rng;
use nalgebra::{DMatrix, DVector};
use rand_distr::{Distribution, StandardNormal};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::f64::consts::SQRT_2;
use std::fmt::{Debug, Display};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

/// Probability that a check of frequencies fails by chance.
pub(crate) const FALSE_ALARM: f64 = 1e-8;

/// Asserts that independent draws, counted by outcome, may come from these probabilities.
#[track_caller]
pub(crate) fn assert_drawn_from(counts: &[u64], probabilities: &[f64]) {
    assert_eq!(counts.len(), probabilities.len());
    let draws = counts.iter().sum::<u64>() as f64;
    let term = |(&count, &probability): (&u64, &f64)| match count {
        0 => 0.0,
        count => count as f64 * (count as f64 / (draws * probability)).ln(),
    };
    let divergence: f64 = counts.iter().zip(probabilities).map(term).sum();
    let freedom = counts.len() as f64 - 1.0;
    let log_tail = freedom - divergence + freedom * (divergence / freedom).ln();
    let is_likely = divergence <= freedom || log_tail > FALSE_ALARM.ln();
    assert!(is_likely, "n·KL is {divergence} for {freedom} degrees of freedom: {counts:?}");
}

/// Asserts that the probability of a counted event may lie in a range.
#[track_caller]
pub(crate) fn assert_share(found: Count, wanted: RangeInclusive<f64>) {
    let possible = found.at_least(FALSE_ALARM)..=found.at_most(FALSE_ALARM);
    let meets = possible.start() <= wanted.end() && possible.end() >= wanted.start();
    assert!(meets && found.trials > 0, "{found:?} allows {possible:?}, expected one of {wanted:?}");
}

/// Asserts that a value written as text is read back from text and from JSON.
pub(crate) fn assert_read_back<T>(text: &str)
where
    T: FromStr<Err: Debug> + Display + Debug + PartialEq + Serialize + DeserializeOwned,
{
    let value: T = text.parse().unwrap();
    assert_eq!(value.to_string(), text);
    let json = serde_json::to_string(&value).unwrap();
    assert_eq!(json, format!("\"{text}\""));
    assert_eq!(serde_json::from_str::<T>(&json).unwrap(), value);
}

/// Reads the cases of a reference file.
pub(crate) fn cases(json: &str) -> Vec<Value> {
    let file: Value = serde_json::from_str(json).unwrap();
    file["cases"].as_array().unwrap().clone()
}

/// A setting, and its known results.
pub(crate) struct ReferenceCase {
    pub(crate) workload: Workload,
    pub(crate) strategy: Arc<dyn Strategy>,
    pub(crate) steps: u64,
    pub(crate) dimension: usize,
    pub(crate) clip_norm: f64,
    pub(crate) noise_multiplier: f64,
    data: String,
    seed: u64,
    expected: Value,
}

impl ReferenceCase {
    fn new(case: &Value) -> Self {
        let input = &case["input"];
        let name = input["workload"].as_str().unwrap_or("average");
        let workload: Workload = match name {
            "exp" => format!("exponential:{}", input["param"]).parse().unwrap(),
            name => name.parse().unwrap(),
        };
        let steps = input["n"].as_u64().unwrap();
        let strategy = if input["c"] == "sqrt" { "square-root" } else { "identity" };
        ReferenceCase {
            strategy: build(strategy, &workload, Some(steps)).unwrap(),
            workload,
            steps,
            dimension: input["d"].as_u64().unwrap() as usize,
            clip_norm: input["zeta"].as_f64().unwrap(),
            noise_multiplier: input["sigma_eps_delta"].as_f64().unwrap_or(f64::NAN),
            data: input["data"].as_str().unwrap_or("lcg").into(),
            seed: input["data_seed"].as_u64().unwrap(),
            expected: case.clone(),
        }
    }

    /// Returns a number that was computed independently.
    pub(crate) fn expected(&self, path: &[&str]) -> f64 {
        path.iter().fold(&self.expected["expected"], |value, name| &value[*name]).as_f64().unwrap()
    }

    /// Returns a number of the setting.
    pub(crate) fn input(&self, name: &str) -> f64 {
        self.expected["input"][name].as_f64().unwrap()
    }

    /// Returns the records, in the ball of radius ζ.
    pub(crate) fn records(&self) -> Vec<Vec<f64>> {
        let mut generator = Congruential(self.seed);
        let signed = |sign: f64| {
            let mut record = vec![0.0; self.dimension];
            record[0] = sign * self.clip_norm;
            record
        };
        let record = |t: u64| match self.data.as_str() {
            "constant" => signed(1.0),
            "alternating" => signed(if t.is_multiple_of(2) { 1.0 } else { -1.0 }),
            _ => generator.record(self.dimension, self.clip_norm),
        };
        (0..self.steps).map(record).collect()
    }
}

/// Returns the settings of first and second moments.
pub(crate) fn second_moment_cases() -> Vec<ReferenceCase> {
    moment_cases(include_str!("../../tests/vectors/jme_errors.json"), 7)
}

/// Returns the settings of covariances.
pub(crate) fn covariance_cases() -> Vec<ReferenceCase> {
    moment_cases(include_str!("../../tests/vectors/jme_covariance_errors.json"), 5)
}

fn moment_cases(text: &str, number: usize) -> Vec<ReferenceCase> {
    let cases: Vec<_> = cases(text).iter().map(ReferenceCase::new).collect();
    assert_eq!(cases.len(), number);
    cases
}

/// Compares within a relative error.
pub(crate) fn close(what: &str, found: f64, expected: f64, relative: f64) {
    assert!((found - expected).abs() <= relative * expected.abs(), "{what}: {found}, expected {expected}");
}

/// The portable generator of the reference data.
pub(crate) struct Congruential(pub(crate) u64);

impl Congruential {
    pub(crate) fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / 2_f64.powi(53)
    }

    pub(crate) fn normal(&mut self) -> f64 {
        let (radius, angle) = (self.uniform(), self.uniform());
        (-2.0 * (1.0 - radius).ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }

    /// Draws a record of random direction, and of length between ζ/2 and ζ.
    fn record(&mut self, dimension: usize, clip_norm: f64) -> Vec<f64> {
        let direction: Vec<f64> = (0..dimension).map(|_| self.normal()).collect();
        let norm = direction.iter().map(|x| x * x).sum::<f64>().sqrt();
        let length = clip_norm * (0.5 + 0.5 * self.uniform());
        direction.iter().map(|x| x / norm * length).collect()
    }
}

pub(crate) const fn noise(count: f64, first: f64, second: f64) -> MomentNoise {
    MomentNoise { count, first, second }
}

pub(crate) const fn layout(dimension: usize, second: SecondMoment) -> Layout {
    Layout::new(dimension, second)
}

pub(crate) fn normal(random: &mut ChaCha8Rng) -> f64 {
    StandardNormal.sample(random)
}

/// The exact moments of `count` records with this mean and covariance (row by row).
pub(crate) fn moments(layout: Layout, count: f64, mean: &[f64], covariance: &[f64]) -> Vec<f64> {
    let entry = |(i, j)| covariance[i * layout.dimension + j] + mean[i] * mean[j];
    let entries = layout.second_entries().map(entry);
    [1.0].into_iter().chain(mean.iter().copied()).chain(entries).map(|x| x * count).collect()
}

/// The exact moments of `count` records drawn from N(mean, factor·factorᵀ).
pub(crate) fn sampled(
    layout: Layout,
    count: usize,
    mean: &[f64],
    factor: &DMatrix<f64>,
    random: &mut ChaCha8Rng,
) -> Vec<f64> {
    let mut sums = vec![0.0; layout.coordinates()];
    for _ in 0..count {
        let deviates = DVector::from_fn(layout.dimension, |_, _| normal(random));
        let record = DVector::from_column_slice(mean) + factor * deviates;
        let entries = layout.second_entries().map(|(i, j)| record[i] * record[j]);
        let terms = [1.0].into_iter().chain(record.iter().copied()).chain(entries);
        sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
    }
    sums
}

pub(crate) fn released(
    layout: Layout,
    exact: &[f64],
    noise: MomentNoise,
    random: &mut ChaCha8Rng,
) -> Vec<f64> {
    let first = std::iter::repeat_n(noise.first, layout.dimension);
    let second = layout.second_entries().map(|(i, j)| noise.second / if i == j { 1.0 } else { SQRT_2 });
    let deviations = [noise.count].into_iter().chain(first).chain(second);
    exact.iter().zip(deviations).map(|(x, deviation)| x + deviation * normal(random)).collect()
}
