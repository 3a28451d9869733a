//! The result of an estimate: a covariance, its measurements, and the graph of conditional
//! dependence.
//!
//! This file also computes linear regressions from private second moments: from a covariance of any
//! method, or from SSP (Wang 2018's AdaSSP, in zCDP).
//!
//! One third of the budget sets the ridge. The least eigenvalue of the regressors' second
//! moments is measured with noise, and the ridge raises it to a bound of the noise of the other
//! moments. All moments are in units of z, which is between −1 and 1.
//!
//! **Sensitivity** of the least eigenvalue of Σ qqᵀ: it moves by at most the spectral norm of vvᵀ −
//! uuᵀ ≤ R² (Weyl), plus the error of the eigenvalue search
//! ([`eigenvalue_slack`](super::baselines)).

use super::baselines::{eigenvalue_slack, eigenvalues};
use super::sample::{CovarianceSample, Noisy, add_noise, count, measure};
use super::spending::{BudgetPurpose, CovarianceBudget};
use super::{CovarianceError, CovarianceMethod};
use hushflow_mechanism::estimate::intervals::Confidence;
use hushflow_mechanism::moments::{Layout, SecondMoment};
use hushflow_mechanism::numbers;
use nalgebra::{Cholesky, DMatrix, DVector};
use rand::CryptoRng;
use std::fmt::Write;

/// A measured entry, in the columns' own units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EntryMeasurement {
    /// The larger index of the two columns, from 0.
    pub row: usize,
    /// The smaller index, or the same.
    pub column: usize,
    /// Average of its measurements, weighted by their precision.
    pub value: f64,
    /// Standard deviation of its noise.
    pub deviation: f64,
    /// Number of measurements.
    pub times: u32,
}

numbers!(struct EntryMeasurement { row, column, value, deviation, times });

/// A mean, in the columns' own units.
#[derive(Clone, Debug, PartialEq)]
pub struct Mean {
    /// The mean.
    pub values: Vec<f64>,
    /// Standard deviation of the noise of each value.
    pub deviations: Vec<f64>,
}

numbers!(struct Mean { values, deviations });

/// The partial correlation of a pair of columns whose entry was measured individually.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PartialCorrelation {
    /// The larger index of the two columns, from 0.
    pub row: usize,
    /// The smaller index.
    pub column: usize,
    /// The partial correlation.
    pub value: f64,
}

numbers!(struct PartialCorrelation { row, column, value });

/// A private covariance. All of it is public.
#[derive(Clone, Debug, PartialEq)]
pub struct CovarianceEstimate {
    /// Number of records: public, or private with noise.
    pub rows: f64,
    /// Standard deviation of the noise of `rows`; 0 if public.
    pub rows_deviation: f64,
    /// The measured mean about which moments are taken. `None`: the middle of the bounds.
    pub mean: Option<Mean>,
    /// Second moments about the mean, divided by the number of records.
    pub covariance: DMatrix<f64>,
    /// Measured entries, row by row; empty for methods that do not measure entries.
    pub measurements: Vec<EntryMeasurement>,
    /// Partial correlations of the pairs of columns that were measured individually.
    pub partial_correlations: Vec<PartialCorrelation>,
    /// Number of selections.
    pub rounds: u64,
    /// Largest norm of the records whose moments were measured, with columns between −1 and 1: √d
    /// if only the bounds clip them. `None` if they were clipped to an ellipsoid, or nothing is
    /// known of single entries.
    pub clip_norm: Option<f64>,
    /// Spent budget.
    pub budget: CovarianceBudget,
}

numbers!(struct CovarianceEstimate {
    rows, rows_deviation, mean, covariance, measurements, partial_correlations, rounds, clip_norm, budget
});

impl CovarianceEstimate {
    /// Number of pairs of different columns that were measured.
    pub fn measured_pairs(&self) -> usize {
        self.measurements.iter().filter(|entry| entry.row != entry.column).count()
    }

    /// Returns the standard deviation of the noise of each entry, before projection or completion;
    /// `None` for an entry that was not measured, but completed from others.
    pub fn noise(&self) -> Vec<Vec<Option<f64>>> {
        let size = self.covariance.nrows();
        let mut noise = vec![vec![None; size]; size];
        for &EntryMeasurement { row, column, deviation, .. } in &self.measurements {
            noise[row][column] = Some(deviation);
            noise[column][row] = Some(deviation);
        }
        noise
    }

    /// Returns the interval of each entry that contains, at this level, the second moment of the
    /// records clipped to [`clip_norm`](Self::clip_norm); `None` for entries that were not
    /// measured. It is about the measurement y of deviation δ, not about the estimate, so that
    /// projecting and shrinking leave its coverage unchanged: y ± z√(δ² + (yν)²), for a number of
    /// records with a relative noise of ν.
    pub fn intervals(&self, level: f64) -> Vec<Vec<Option<(f64, f64)>>> {
        let size = self.covariance.nrows();
        let mut intervals = vec![vec![None; size]; size];
        let quantile = Confidence { level, ..Confidence::default() }.normal_quantile();
        for &EntryMeasurement { row, column, value, deviation, .. } in &self.measurements {
            let reach = quantile * deviation.hypot(value * self.rows_deviation / self.rows);
            let interval = self.clip_norm.map(|_| (value - reach, value + reach));
            (intervals[row][column], intervals[column][row]) = (interval, interval);
        }
        intervals
    }

    /// Number of measurements of single entries, with repetitions.
    pub fn measurement_count(&self) -> u64 {
        self.measurements.iter().map(|entry| u64::from(entry.times)).sum()
    }

    /// Share of the pairs of columns whose entry in the precision matrix is 0; 1 for a single
    /// column. `None` for methods that measure no entries, whose precision matrix is dense.
    pub fn sparsity(&self) -> Option<f64> {
        let columns = self.covariance.nrows();
        let pairs = columns * columns.saturating_sub(1) / 2;
        match (pairs, self.measurements.is_empty()) {
            (0, _) => Some(1.0),
            (_, true) => None,
            _ => Some(1.0 - self.measured_pairs() as f64 / pairs as f64),
        }
    }

    /// Returns the graph of conditional dependence in the DOT language, with an edge and its
    /// partial correlation for each measured pair.
    pub fn dot(&self, names: &[String]) -> String {
        let mut graph = String::from("graph covariance {\n");
        let quoted = |name: &str| name.replace('\\', "\\\\").replace('"', "\\\"");
        for name in names {
            let _ = writeln!(graph, "  \"{}\";", quoted(name));
        }
        for &PartialCorrelation { row, column, value } in &self.partial_correlations {
            if let (Some(a), Some(b)) = (names.get(column), names.get(row)) {
                let _ = writeln!(graph, "  \"{}\" -- \"{}\" [label=\"{value:.3}\"];", quoted(a), quoted(b));
            }
        }
        graph + "}\n"
    }
}

pub(super) struct PreparedSample<'a> {
    pub(super) sample: CovarianceSample<'a>,
    pub(super) rows: (f64, f64),
    pub(super) mean: Option<Mean>,
}

impl<'a> PreparedSample<'a> {
    /// Spends `count_rho` on the count if it is private, and the share `centre` of the remaining
    /// budget on the mean.
    pub(super) fn new<R: CryptoRng + ?Sized>(
        sample: &CovarianceSample<'a>,
        count_rho: f64,
        centre: Option<f64>,
        budget: &mut CovarianceBudget,
        rng: &mut R,
    ) -> Result<Self, CovarianceError> {
        let rows = count(sample, budget, count_rho, rng)?;
        let Some(share) = centre else { return Ok(Self { sample: sample.clone(), rows, mean: None }) };
        check_share("centring", share)?;
        let sums = sample.moments(SecondMoment::None)?.to_wide();
        let first = &sums[1..];
        let sensitivity = sample.first_sensitivity() * (sample.dimension() as f64).sqrt();
        // A finer grid, because this noise is small.
        let fine = 1i128 << 30;
        let scaled: Vec<i128> = first.iter().map(|sum| sum * fine).collect();
        let part = (BudgetPurpose::Mean, share * budget.left());
        let noisy = add_noise(budget, part, &scaled, sensitivity * fine as f64, rng)?;
        let unit = sample.grid() / fine as f64 / rows.0;
        let position = DVector::from_iterator(
            noisy.len(),
            noisy.iter().map(|noisy| (noisy.value as f64 * unit).clamp(-1.0, 1.0)),
        );
        let centred = sample.centred(&position)?;
        let deviations = sample.half_widths().iter().map(|width| width * noisy[0].deviation * unit).collect();
        let mean = Mean { values: centred.centres().to_vec(), deviations };
        Ok(Self { sample: centred, rows, mean: Some(mean) })
    }

    pub(super) fn clipped(&self, norm: f64) -> Result<Self, CovarianceError> {
        Ok(Self { sample: self.sample.clipped(norm)?, rows: self.rows, mean: self.mean.clone() })
    }

    /// Factor from integers on the grid of second moments to z² per record.
    pub(super) fn unit(&self) -> f64 {
        self.sample.grid() * self.sample.grid() / self.rows.0
    }

    /// Factor from z² to the units of two columns.
    pub(super) fn own_units(&self, row: usize, column: usize) -> f64 {
        self.sample.half_widths()[row] * self.sample.half_widths()[column]
    }

    pub(super) fn estimate(
        self,
        covariance: &DMatrix<f64>,
        budget: CovarianceBudget,
    ) -> Result<CovarianceEstimate, CovarianceError> {
        let size = covariance.nrows();
        let covariance = DMatrix::from_fn(size, size, |i, j| covariance[(i, j)] * self.own_units(i, j));
        if !covariance.iter().all(|value| value.is_finite()) {
            return Err(CovarianceError::Numerical);
        }
        Ok(CovarianceEstimate {
            rows: self.rows.0,
            rows_deviation: self.rows.1,
            mean: self.mean,
            covariance,
            measurements: Vec::new(),
            partial_correlations: Vec::new(),
            rounds: 0,
            clip_norm: Some(self.sample.clip_norm()),
            budget,
        })
    }

    /// Returns the measurement of every entry, from values and deviations of z² per record.
    pub(super) fn measured(&self, values: &DMatrix<f64>, deviations: &DMatrix<f64>) -> Vec<EntryMeasurement> {
        let layout = Layout::new(values.nrows(), SecondMoment::Full);
        let entry = |(column, row): (usize, usize)| {
            let units = self.own_units(row, column);
            let (value, deviation) = (values[(row, column)] * units, deviations[(row, column)] * units);
            EntryMeasurement { row, column, value, deviation, times: 1 }
        };
        layout.second_entries().map(entry).collect()
    }

    /// Returns the noisy entries as z² per record.
    pub(super) fn matrix(&self, noisy: &[Noisy]) -> DMatrix<f64> {
        self.symmetric(noisy, |noisy| noisy.value as f64)
    }

    /// Returns the standard deviations of the noise of the entries, of z² per record.
    pub(super) fn deviations(&self, noisy: &[Noisy]) -> DMatrix<f64> {
        self.symmetric(noisy, |noisy| noisy.deviation)
    }

    fn symmetric(&self, noisy: &[Noisy], of: impl Fn(&Noisy) -> f64) -> DMatrix<f64> {
        let dimension = self.sample.dimension();
        let layout = Layout::new(dimension, SecondMoment::Full);
        let mut matrix = DMatrix::zeros(dimension, dimension);
        for ((i, j), noisy) in layout.second_entries().zip(noisy) {
            let value = of(noisy) * self.unit();
            (matrix[(i, j)], matrix[(j, i)]) = (value, value);
        }
        matrix
    }
}

pub(super) fn check_share(what: &'static str, share: f64) -> Result<(), CovarianceError> {
    if share > 0.0 && share < 1.0 { Ok(()) } else { Err(CovarianceError::Share { what, share }) }
}

/// Failure probability of the ridge.
const TAIL: f64 = 0.05;

/// A private regression of one column on the others.
#[derive(Clone, Debug, PartialEq)]
pub struct RegressionEstimate {
    /// The coefficient of each column except the target, in the columns' own units.
    pub coefficients: Vec<f64>,
    /// The ridge, in z² per record.
    pub ridge: f64,
    /// Spent budget.
    pub budget: CovarianceBudget,
}

/// Returns the coefficients of the column `target` on the others, from second moments and a ridge.
/// `None` if they are not determined.
pub fn coefficients(moments: &DMatrix<f64>, target: usize, ridge: f64) -> Option<DVector<f64>> {
    let others = moments.clone().remove_row(target).remove_column(target);
    let with_target = moments.column(target).clone_owned().remove_row(target);
    let size = others.nrows();
    Some(Cholesky::new(others + DMatrix::identity(size, size) * ridge)?.solve(&with_target))
}

/// Regresses the column `target` on the other columns. Two thirds of the remaining budget go to
/// second moments by `method`, one third to the ridge. [`CovarianceMethod::Ssp`] makes it AdaSSP.
///
/// # Errors
/// [`CovarianceError`]: from public numbers alone, unless it [follows from
/// releases](CovarianceError::follows_from_releases). [`CovarianceError::Numerical`] also if
/// `target` is not a column or is the only one.
pub fn regress<R: CryptoRng + ?Sized>(
    method: CovarianceMethod,
    sample: &CovarianceSample<'_>,
    target: usize,
    mut budget: CovarianceBudget,
    rng: &mut R,
) -> Result<RegressionEstimate, CovarianceError> {
    if target >= sample.dimension() || sample.dimension() < 2 {
        return Err(CovarianceError::Numerical);
    }
    let third = budget.left() / 3.0;
    let others: Vec<f64> = sample
        .records()
        .chunks_exact(sample.dimension())
        .flat_map(|record| {
            record.iter().enumerate().filter(|(position, _)| *position != target).map(|(_, x)| *x)
        })
        .collect();
    let (centres, widths) = (sample.centres(), sample.half_widths());
    let kept = (0..sample.dimension()).filter(|position| *position != target);
    let bounds: Vec<(f64, f64)> = kept.map(|j| (centres[j] - widths[j], centres[j] + widths[j])).collect();
    let regressors = CovarianceSample::new(&bounds, &others, sample.neighbours())?;
    let least = eigenvalues(&regressors)?.last().copied().unwrap_or(0);
    let sensitivity = regressors.trace_sensitivity() + eigenvalue_slack(&regressors);
    let noisy = measure(&mut budget, (BudgetPurpose::Eigenvalues, third), least, sensitivity, rng)?;
    let unit = regressors.grid() * regressors.grid() / regressors.rows() as f64;
    let log = (6.0 / TAIL).ln();
    let least = ((noisy.value as f64 - noisy.deviation * (2.0 * log).sqrt()) * unit).max(0.0);
    let d = bounds.len() as f64;
    let spread = sample.matrix_sensitivity() / (2.0 * budget.left()).sqrt() * sample.grid().powi(2)
        / regressors.rows() as f64;
    let ridge = (spread * (d * (2.0 * d * d / TAIL).ln()).sqrt() - least).max(0.0);
    let estimate = method.estimate(sample, None, budget, rng)?;
    let size = sample.dimension();
    let moments = DMatrix::from_fn(size, size, |i, j| estimate.covariance[(i, j)] / (widths[i] * widths[j]));
    // A singular matrix needs a small positive ridge.
    let fitted = coefficients(&moments, target, ridge.max(1e-12)).ok_or(CovarianceError::Numerical)?;
    let others = (0..size).filter(|position| *position != target);
    let coefficients = others.zip(fitted.iter()).map(|(j, b)| b * widths[target] / widths[j]).collect();
    Ok(RegressionEstimate { coefficients, ridge, budget: estimate.budget })
}
