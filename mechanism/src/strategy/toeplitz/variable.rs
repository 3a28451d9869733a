//! Bands whose rows and columns are scaled near both ends of the stream:
//!
//! ```text
//! C[t,i] = ρ_t m_(t−i) s_i    for t − i below the number of bands;    column i has norm 1
//! ```
//!
//! Far from both ends the best C for a sliding window is nearly Toeplitz, and its coefficients are
//! nearly those of the square root. Near the ends it is not Toeplitz. There the row factors ρ
//! approximate it, and the column factors s keep the norms at 1. An encoder keeps the last rows of
//! sums, as for any bands, and is exact.
//!
//! *Row factors.* `log ρ_t = a(t) + z(n + 1 − t)`. Both curves are cubic splines over
//! `log(1 + 32 (t − ½)/reach)`, and 0 from `reach` on: between the two ends ρ is 1. So a stored
//! strategy has m and a dozen other numbers, and C takes memory only for its ends, at any horizon.
//! Curves are evaluated by single IEEE operations and `libm`.
//!
//! *Column norms.* Let N be the norm of column i for s = 1, computed as a sum of b squares. A term
//! is rounded three times, the sum b − 1 times, all terms are positive. So the relative error of N
//! is at most `(b/2 + 3) 2⁻⁵³`. The division, the factor below 1 and the two products of an entry
//! add at most `5 · 2⁻⁵³`. The column factor is lowered by `(b + 16) 2⁻⁵²`, which is more, and
//! entries are rounded towards 0 to integers in units of 2⁻⁴⁰. So no column exceeds norm 1.
//!
//! *Overlaps.* An entry of C is within 2⁻⁴⁰ of the product of its factors. So a column of b entries
//! is within `√b 2⁻⁴⁰` of that of the products, and the overlap of two columns is off by at most
//! `2 √b 2⁻⁴⁰ + b 2⁻⁸⁰`, plus the rounding of a sum of b terms. [`Scaling`] charges more.

use super::{Toeplitz, real, rows};
use crate::{
    series::{self, cubic_splines},
    strategy::{
        COEFFICIENT_BITS, MAX_DENSE_HORIZON, Matrix, MatrixError, RowNorms, RowSample, Specification,
        Strategy, StrategyError, StrategyName, StrategyParameters, check_horizon, matrix::dot, step,
    },
    workload::Workload,
};
use libm::{exp, log1p};
use nalgebra::DMatrix;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Maximum number of scaled bands. The time to compute overlaps grows with its square.
pub(in crate::strategy) const MAX_SCALED_BANDS: u32 = 1 << 10;

/// Longest horizon of scaled bands. Except for windows, errors are computed from every step.
pub(in crate::strategy) const MAX_SCALED_HORIZON: u64 = 1 << 24;

/// Maximum number of steps at either end whose rows are scaled.
pub(in crate::strategy) const MAX_REACH: u64 = 1 << 13;

/// Largest number of coefficients of a curve.
const MAX_KNOTS: usize = 64;

/// Largest magnitude of a coefficient of a curve, a logarithm.
pub(in crate::strategy) const MAX_LOGARITHM: f64 = 4.0;

/// The axis of a curve is linear up to about its reach divided by this number, then logarithmic.
const FINEST: f64 = 32.0;

/// Terms of an inverse below this share of the largest count as 0.
const FADED: f64 = 1.0 / (1u64 << 48) as f64;

/// Bands whose rows and columns are scaled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariableBands {
    /// Number of steps.
    pub horizon: u64,
    /// m, in units of 2^-[`COEFFICIENT_BITS`], at most 2⁴⁰ in magnitude; the first is positive.
    pub coefficients: Vec<i64>,
    /// Number of steps at either end whose rows are scaled.
    pub reach: u64,
    /// Coefficients of a cubic spline for the logarithms of the row factors after the start; at
    /// most 64.
    pub start: Vec<f64>,
    /// Coefficients of the spline before the end, at most 64.
    pub end: Vec<f64>,
}

impl VariableBands {
    fn check(&self, name: &StrategyName) -> Result<(), StrategyError> {
        check_horizon(name, self.horizon, MAX_SCALED_HORIZON)?;
        let one = 1_u64 << COEFFICIENT_BITS;
        let bands = 1..=MAX_SCALED_BANDS as usize;
        let mut curves = self.start.iter().chain(&self.end);
        let reason = match () {
            () if !bands.contains(&self.coefficients.len()) => "expected 1 to 1024 coefficients",
            () if self.coefficients[0] <= 0 => "expected a first coefficient above 0",
            () if self.coefficients.iter().any(|m| m.unsigned_abs() > one) => {
                "expected coefficients of at most 2^40 in magnitude"
            }
            () if !(1..=MAX_REACH).contains(&self.reach) => "expected a reach of 1 to 8192 steps",
            () if self.start.len().max(self.end.len()) > MAX_KNOTS => {
                "expected curves of at most 64 coefficients"
            }
            () if !curves.all(|value| value.abs() <= MAX_LOGARITHM) => {
                "expected coefficients of curves between -4 and 4"
            }
            () => return Ok(()),
        };
        Err(StrategyError::Buffers { strategy: name.to_string(), reason })
    }

    /// ρ of a step, counted from 0.
    fn row_factor(&self, t: u64) -> f64 {
        exp(self.curve(&self.start, t) + self.curve(&self.end, self.horizon - 1 - t))
    }

    /// A curve `steps` steps from its end.
    fn curve(&self, values: &[f64], steps: u64) -> f64 {
        let (first, shares) = self.shares(values.len(), steps);
        let near = values.get(first..).unwrap_or(&[]);
        shares.iter().zip(near).map(|(share, value)| share * value).sum()
    }

    /// Index of the first spline that is not 0 at a distance of `steps` steps from the curve's end
    /// of the stream, and the values of this spline and the next three.
    pub(in crate::strategy) fn shares(&self, knots: usize, steps: u64) -> (usize, [f64; 4]) {
        let along = log1p(FINEST * (steps as f64 + 0.5) / self.reach as f64) / log1p(FINEST);
        let position = along * knots as f64;
        let first = position as usize;
        (first, cubic_splines(position - first as f64))
    }
}

/// Builds the strategy with fitted parameters.
pub(in crate::strategy) fn of_variable_bands(
    specification: &Specification<'_>,
) -> Result<Arc<dyn Strategy>, StrategyError> {
    let Some(StrategyParameters::VariableBands(bands)) = specification.fitted else {
        return Err(StrategyError::NotFitted { strategy: specification.name.to_string() });
    };
    Ok(Arc::new(Toeplitz::scaled_bands(specification.name.clone(), bands)?))
}

impl Toeplitz {
    /// # Errors
    /// [`StrategyError::Buffers`] and [`StrategyError::Horizon`] for parameters out of their
    /// documented ranges.
    pub(in crate::strategy) fn scaled_bands(
        name: StrategyName,
        bands: &VariableBands,
    ) -> Result<Self, StrategyError> {
        bands.check(&name)?;
        let used = bands.coefficients.iter().rposition(|&m| m != 0).map_or(1, |last| last + 1);
        let coefficients = bands.coefficients[..used].to_vec();
        let scaling = Scaling::new(bands, &coefficients);
        if !scaling.is_invertible(coefficients[0]) {
            let reason = "expected every diagonal entry to be at least 2^-40 of the norm of its column";
            return Err(StrategyError::Buffers { strategy: name.to_string(), reason });
        }
        let numbers = bands.start.iter().chain(&bands.end).map(|value| value.to_bits());
        let words = [bands.horizon, bands.reach, bands.start.len() as u64].into_iter().chain(numbers);
        let words = words.chain(coefficients.iter().map(|&m| m as u64));
        let fingerprint = step::fingerprint(b"bands".iter().copied().chain(words.flat_map(u64::to_le_bytes)));
        Ok(Self {
            horizon: Some(bands.horizon),
            fingerprint,
            scales: Some(super::Scales::RowsAndColumns(Arc::new(scaling))),
            ..Self::exact(name, coefficients)
        })
    }
}

/// A factor for every step, counted from 0. All steps between the two ends have the same factor.
#[derive(Clone, Debug)]
struct StepFactors {
    start: Vec<f64>,
    middle: f64,
    end: Vec<f64>,
    steps: u64,
}

impl StepFactors {
    /// `near` is the number of steps at either end that may differ.
    fn new(steps: u64, near: u64, factor: impl Fn(u64) -> f64) -> Self {
        let long = steps > 2 * near;
        let (start, end) = if long { (0..near, steps - near..steps) } else { (0..steps, steps..steps) };
        let middle = if long { factor(near) } else { 1.0 };
        Self { start: start.map(&factor).collect(), middle, end: end.map(&factor).collect(), steps }
    }

    fn at(&self, t: u64) -> f64 {
        let before_end = self.steps - self.end.len() as u64;
        match self.start.get(t as usize) {
            Some(factor) => *factor,
            None if t < before_end => self.middle,
            None => self.end[(t - before_end) as usize],
        }
    }

    /// The factors of a stream of `steps` steps with the same ends and fewer steps between.
    fn shortened(&self, steps: u64) -> Vec<f64> {
        let factors = Self { steps, ..self.clone() };
        (0..steps).map(|t| factors.at(t)).collect()
    }

    fn first(&self, steps: usize) -> Vec<f64> {
        (0..steps as u64).map(|t| self.at(t)).collect()
    }
}

/// Factors of rows and columns.
#[derive(Clone, Debug)]
pub(super) struct Scaling {
    rows: StepFactors,
    columns: StepFactors,
    /// Number of steps at either end that differ from those in between.
    near: u64,
    negative_overlap: f64,
}

impl Scaling {
    fn new(bands: &VariableBands, coefficients: &[i64]) -> Self {
        let (steps, near) = (bands.horizon, bands.reach + coefficients.len() as u64);
        let rows = StepFactors::new(steps, near, |t| bands.row_factor(t));
        let margin = 1.0 - (coefficients.len() + 16) as f64 * f64::EPSILON;
        let columns = StepFactors::new(steps, near, |i| {
            let entries = coefficients.iter().zip(i..steps).map(|(&m, t)| rows.at(t) * real(m));
            margin / entries.map(|entry| entry * entry).sum::<f64>().sqrt()
        });
        let mut scaling = Self { rows, columns, near, negative_overlap: 0.0 };
        scaling.negative_overlap = scaling.overlap_bound(coefficients);
        scaling
    }

    /// An entry of C in units of 2^-[`COEFFICIENT_BITS`], rounded towards 0.
    pub(super) fn entry(&self, coefficient: i64, t: u64, i: u64) -> i64 {
        (coefficient as f64 * (self.rows.at(t) * self.columns.at(i))) as i64
    }

    pub(super) fn negative_overlap(&self) -> f64 {
        self.negative_overlap
    }

    fn is_invertible(&self, diagonal: i64) -> bool {
        let near = 0..(2 * self.near + 1).min(self.rows.steps);
        near.clone().chain(near.map(|t| self.rows.steps - 1 - t)).all(|t| self.entry(diagonal, t, t) > 0)
    }

    /// Number of steps of a stream that has the same ends, and at most `between` steps between
    /// them.
    fn short_steps(&self, between: u64) -> u64 {
        self.rows.steps.min(2 * self.near + between)
    }

    /// Upper bound of `−(CᵀC)_ij` over all i ≠ j, at least 0. The overlap of columns i and i + l is
    /// `s_i s_(i+l) Σ_d ρ²_(i+l+d) m_d m_(d+l)`.
    fn overlap_bound(&self, coefficients: &[i64]) -> f64 {
        if coefficients.iter().all(|&m| m >= 0) {
            return 0.0;
        }
        let bands = coefficients.len();
        let steps = self.short_steps(2 * bands as u64);
        let squares: Vec<f64> = self.rows.shortened(steps).iter().map(|factor| factor * factor).collect();
        let columns = self.columns.shortened(steps);
        let m: Vec<f64> = coefficients.iter().map(|&m| real(m)).collect();
        let mut lowest: f64 = 0.0;
        for lag in 1..bands.min(columns.len()) {
            let products: Vec<f64> = m.iter().zip(&m[lag..]).map(|(a, b)| a * b).collect();
            for (later, squares) in (lag..columns.len()).map(|later| (later, &squares[later..])) {
                let terms = products.len().min(squares.len());
                let overlap = dot(&products[..terms], &squares[..terms]);
                lowest = lowest.min(columns[later - lag] * columns[later] * overlap);
            }
        }
        4.0 * (bands as f64).sqrt() * real(1) - lowest
    }

    /// Largest squared norm of a column over the first steps.
    pub(super) fn max_column_norm_squared(&self, coefficients: &[i64], steps: u64) -> f64 {
        // The first column is complete, and no column has a norm above 1.
        if steps >= coefficients.len() as u64 {
            return 1.0;
        }
        let square = |i: u64| {
            let entries = coefficients.iter().zip(i..steps).map(|(&m, t)| real(self.entry(m, t, i)));
            entries.map(|entry| entry * entry).sum::<f64>()
        };
        let margin = 1.0 + (coefficients.len() + 4) as f64 * f64::EPSILON;
        ((0..steps).map(square).fold(0.0, f64::max) * margin).min(1.0)
    }

    /// C, with its integer entries, for a number of steps that can be written out.
    pub(super) fn matrix(&self, coefficients: &[i64], steps: usize) -> Result<Matrix, MatrixError> {
        let limit = MAX_DENSE_HORIZON as usize;
        if steps > limit {
            return Err(MatrixError::WrittenOut { found: steps, limit });
        }
        let entry = |t: usize, i: usize| {
            let m = t.checked_sub(i).and_then(|lag| coefficients.get(lag));
            m.map_or(0.0, |&m| real(self.entry(m, t as u64, i as u64)))
        };
        Matrix::dense(DMatrix::from_fn(steps, steps, entry))
    }

    /// Norms of the rows of `A C⁻¹`. For windows they are equal between the ends, where the inverse
    /// of earlier ends has faded.
    pub(super) fn decoder_row_norms<'a>(
        &self,
        workload: &Workload,
        coefficients: &[f64],
        steps: u64,
    ) -> RowNorms<'a> {
        match self.window_rows(workload, coefficients, steps) {
            Some(WindowRows { start, middle: (norm, count), end }) => {
                let middle = std::iter::repeat_n(norm, count as usize);
                Box::new(start.into_iter().chain(middle).chain(end))
            }
            None => {
                let inverse = series::fading_inverse(coefficients, steps as usize, FADED);
                let (rows, columns) = (self.rows.first(steps as usize), self.columns.first(steps as usize));
                rows::of_scaled(workload, &inverse, &columns, Some(&rows))
            }
        }
    }

    /// [`decoder_row_norms`](Self::decoder_row_norms) in time independent of the number of steps;
    /// `None` if the workload is not a window or the stream is short.
    pub(super) fn decoder_row_samples(
        &self,
        workload: &Workload,
        coefficients: &[f64],
        steps: u64,
    ) -> Option<Vec<RowSample>> {
        let WindowRows { start, middle: (norm, count), end } =
            self.window_rows(workload, coefficients, steps)?;
        let before_end = start.len() as u64 + count;
        let sample = |step: f64, weight: f64, norm: f64| RowSample { step, weight, norm };
        let middle = sample(start.len() as f64 + (count + 1) as f64 / 2.0, count as f64, norm);
        let start = start.into_iter().zip(1_u64..).map(|(norm, t)| sample(t as f64, 1.0, norm));
        let end = end.into_iter().zip(before_end + 1..).map(|(norm, t)| sample(t as f64, 1.0, norm));
        Some(start.chain([middle]).chain(end).collect())
    }

    fn window_rows(&self, workload: &Workload, coefficients: &[f64], steps: u64) -> Option<WindowRows> {
        let (Workload::Window(length) | Workload::WindowMean(length)) = workload else { return None };
        // A row of a window adds few terms, so more can be left out than for running sums.
        let inverse = series::fading_inverse(coefficients, usize::try_from(steps).ok()?, FADED * 4096.0);
        let settled = (inverse.len() as u64).checked_add(length.get())?.checked_add(self.near)?;
        let short = settled + 1 + self.near;
        if steps != self.rows.steps || steps <= short {
            return None;
        }
        let (rows, columns) = (self.rows.shortened(short), self.columns.shortened(short));
        let mut start: Vec<f64> = rows::of_scaled(workload, &inverse, &columns, Some(&rows)).collect();
        let end = start.split_off(settled as usize + 1);
        let middle = start.pop()?;
        Some(WindowRows { start, middle: (middle, steps - short + 1), end })
    }
}

/// Row norms of a long stream of windows: those of both ends, and the common norm and the number of
/// the rows in between.
struct WindowRows {
    start: Vec<f64>,
    middle: (f64, u64),
    end: Vec<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::{Factorization as _, conformance, toeplitz::root};
    use proptest::prelude::{ProptestConfig, prop_assert, proptest};

    /// Coefficients of the root of a window, with oscillating curves.
    fn bands(horizon: u64, window: &str, bands: usize, reach: u64, size: f64) -> VariableBands {
        let root = root::root(&window.parse().unwrap(), bands);
        let coefficients = super::super::units(&root);
        let curve = |phase: f64| (0..5).map(|j| size * (phase + f64::from(j)).sin()).collect();
        VariableBands { horizon, coefficients, reach, start: curve(0.3), end: curve(2.0) }
    }

    fn strategy(bands: &VariableBands) -> Toeplitz {
        Toeplitz::scaled_bands("variable-banded:3".parse().unwrap(), bands).unwrap()
    }

    #[test]
    fn streaming_agrees_with_the_matrix() {
        let workloads = [
            "prefix",
            "average",
            "exponential:0.9",
            "momentum:0.8",
            "adam:0.9",
            "window:3",
            "window-mean:3",
            "window:40",
        ];
        for workload in workloads {
            for (steps, count, reach) in [(1, 1, 1), (2, 2, 9), (24, 30, 16), (40, 4, 5), (60, 7, 8)] {
                let strategy = strategy(&bands(steps, "window:3", count, reach, 0.4));
                let kept = count.min(strategy.coefficients.len()) - 1;
                assert_eq!(strategy.encoder_bytes(), 16 * kept);
                conformance::check(&strategy, &workload.parse().unwrap(), steps as usize);
            }
        }
        let rows = DMatrix::from_fn(30, 30, |t, i| if i > t { 0.0 } else { 1.0 + (t * i % 7) as f64 });
        let any = Workload::from_matrix("any", rows).unwrap();
        conformance::check(&strategy(&bands(30, "window:4", 9, 12, 0.5)), &any, 30);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// Checks in exact integers that no column is longer than 1 and no overlap below its bound.
        #[test]
        fn columns_keep_to_their_bounds(
            horizon in 1u64..90, count in 1usize..20, reach in 1u64..40, size in 0.0..4.0f64, window in 2u32..9,
        ) {
            let strategy = strategy(&bands(horizon, &format!("window:{window}"), count, reach, size));
            let n = horizon as usize;
            let rows: Vec<Vec<i64>> = (0..horizon).map(|t| strategy.row(t).collect()).collect();
            let entry = |t: usize, i: usize| i128::from(rows[t].get(t - i).copied().unwrap_or(0));
            let overlap = |i: usize, j: usize| (j..n).map(|t| entry(t, i) * entry(t, j)).sum::<i128>();
            let norms: Vec<i128> = (0..n).map(|i| overlap(i, i)).collect();
            prop_assert!(norms.iter().all(|&norm| norm <= 1 << 80));
            prop_assert!(norms.iter().all(|&norm| norm as f64 > 2f64.powi(80) * (1.0 - 1e-7)));
            let pairs = (0..n).flat_map(|j| (0..j).map(move |i| (i, j)));
            let lowest = pairs.map(|(i, j)| overlap(i, j)).min().unwrap_or(0).min(0);
            let bound = strategy.geometry().negative_overlap;
            let found = -lowest as f64 * 0.5f64.powi(80);
            prop_assert!(bound >= found && bound <= found + 1e-7, "{} against {}", bound, found);
        }
    }

    /// Compares rows of long streams, by short inverses and equal rows, with full inverses.
    #[test]
    fn rows_of_long_streams_are_those_of_full_inverses() {
        let steps = 900;
        for (window, count) in [("window:2", 5), ("window:4", 13)] {
            let strategy = strategy(&bands(steps, window, count, 20, 0.4));
            let Some(super::super::Scales::RowsAndColumns(scaling)) = &strategy.scales else {
                unreachable!()
            };
            let coefficients = strategy.real_coefficients(count);
            let inverse = series::quotient(&[1.0], &coefficients, steps as usize);
            for workload in [window, "prefix", "average", "exponential:0.99", "momentum:0.9", "window:100"] {
                let workload = workload.parse().unwrap();
                let (rows, columns) = (scaling.rows.first(900), scaling.columns.first(900));
                let full = rows::of_scaled(&workload, &inverse, &columns, Some(&rows));
                let found = strategy.decoder_row_norms(&workload, steps);
                for (t, (full, found)) in full.zip(found).enumerate() {
                    assert!((full - found).abs() < 1e-10 * full, "{workload}, row {t}: {found} {full}");
                }
                let squares = |norm: f64, weight: f64| weight * norm * norm;
                let all: f64 =
                    strategy.decoder_row_norms(&workload, steps).map(|norm| squares(norm, 1.0)).sum();
                let samples = strategy.decoder_row_samples(&workload, steps);
                let sampled: f64 = samples.map(|sample| squares(sample.norm, sample.weight)).sum();
                assert!((all - sampled).abs() < 1e-12 * all, "{workload}: {sampled} against {all}");
            }
        }
    }

    #[test]
    fn row_norms_of_a_long_stream_depend_only_on_its_ends() {
        let parameters = bands(1 << 24, "window:10", 31, 80, 0.3);
        let long = strategy(&parameters);
        let workload = "window:10".parse().unwrap();
        let samples: Vec<RowSample> = long.decoder_row_samples(&workload, 1 << 24).collect();
        assert!(samples.len() < 2500, "{}", samples.len());
        let weights: f64 = samples.iter().map(|sample| sample.weight).sum();
        let steps: f64 = samples.iter().map(|sample| sample.weight * sample.step).sum();
        assert_eq!(weights, f64::from(1 << 24));
        assert_eq!(steps, f64::from(1 << 23) * f64::from((1 << 24) + 1));
        let short = strategy(&VariableBands { horizon: 5000, ..parameters });
        let [long, short]: [Vec<f64>; 2] =
            [(long, 1 << 24), (short, 5000)].map(|(strategy, steps): (Toeplitz, u64)| {
                let samples = strategy.decoder_row_samples(&workload, steps);
                samples.map(|sample| sample.norm).collect()
            });
        assert_eq!(long, short);
    }

    #[test]
    fn invalid_parameters_are_refused_with_the_reason() {
        let good = bands(20, "window:3", 4, 5, 0.4);
        let check = |change: &dyn Fn(&mut VariableBands), part: &str| {
            let mut bands = good.clone();
            change(&mut bands);
            let message = Toeplitz::scaled_bands("variable-banded:3".parse().unwrap(), &bands).err();
            let message = message.map_or(String::new(), |error| error.to_string());
            assert!(message.contains(part), "{part}: {message}");
        };
        check(&|bands| bands.horizon = 0, "horizon");
        check(&|bands| bands.horizon = MAX_SCALED_HORIZON + 1, "horizon");
        check(&|bands| bands.coefficients = Vec::new(), "1 to 1024");
        check(&|bands| bands.coefficients = vec![1; 1025], "1 to 1024");
        check(&|bands| bands.coefficients[0] = 0, "above 0");
        check(&|bands| bands.coefficients[1] = i64::MIN, "2^40");
        check(&|bands| bands.reach = 0, "reach");
        check(&|bands| bands.reach = u64::MAX, "reach");
        check(&|bands| bands.start = vec![0.0; 65], "at most 64");
        check(&|bands| bands.start[2] = f64::NAN, "between -4 and 4");
        check(&|bands| bands.end[2] = 4.1, "between -4 and 4");
        check(&|bands| bands.coefficients = vec![1, 1 << 40], "diagonal entry");
    }
}
