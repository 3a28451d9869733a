//! The optimal strategy for linear queries.
//!
//! A strategy is an invertible n×n matrix C whose columns have a norm of at most 1. The answers are
//! W C⁻¹(Cx + noise), with a total expected squared error of σ²·tr(V (CᵀC)⁻¹), V = WᵀW. The optimum
//! minimises it (Yuan et al. 2016), with a certified lower bound for all strategies:
//! [`PathOptimum`] for cells, prefixes and all ranges, [`coa`] for all other workloads.

use super::baselines::{self, StrategyError};
use super::integers::TriangularIntegers;
use super::path::PathOptimum;
use super::{MAX_CELLS, MAX_PATH_CELLS, QueryError, QueryWorkload};
use hushflow_mechanism::optimize::{OptimizerSettings, Optimum, QuadraticForm, certificate, coa};
use nalgebra::DMatrix;
use std::ops::ControlFlow;

/// Largest relative gap between the error of the strategy and the lower bound of all strategies,
/// for more than 512 cells.
const GAP: f64 = 1e-3;

/// Seconds that the optimum of [`MAX_CELLS`] cells takes.
const SECONDS_AT_MOST: f64 = 150.0;

/// Largest difference between the squared norm of a column and its stated value, and between the
/// variance of an answer and its stated value.
const TOLERANCE: f64 = 1e-6;

/// The optimal strategy for a workload.
#[derive(Clone, Debug)]
pub struct QueryStrategy {
    workload: QueryWorkload,
    found: FoundStrategy,
}

#[derive(Clone, Debug)]
enum FoundStrategy {
    Path(PathOptimum),
    Dense { optimum: Box<Optimum>, form: QuadraticForm },
}

impl QueryStrategy {
    /// Finds the optimum and verifies its certificate.
    ///
    /// # Errors
    /// [`QueryError`] for a workload without an optimum or with too many cells, and
    /// [`QueryError::Certificate`] if the independent check fails.
    pub fn optimal(workload: &QueryWorkload) -> Result<Self, QueryError> {
        let cells = workload.cells();
        if cells == 0 || workload.queries() == 0 {
            return Err(QueryError::Empty);
        }
        let found = match workload {
            QueryWorkload::Matrix(matrix) if cells <= MAX_CELLS => Self::dense(matrix)?,
            QueryWorkload::Matrix(_) => {
                let minutes = SECONDS_AT_MOST * (cells as f64 / MAX_CELLS as f64).powi(3) / 60.0;
                return Err(QueryError::Cells { found: cells, minutes });
            }
            _ if cells <= MAX_PATH_CELLS => {
                FoundStrategy::Path(PathOptimum::new(workload).ok_or(QueryError::Numerical)?)
            }
            _ => return Err(QueryError::PathCells { found: cells }),
        };
        Ok(Self { workload: workload.clone(), found })
    }

    fn dense(matrix: &DMatrix<f64>) -> Result<FoundStrategy, QueryError> {
        let form = QuadraticForm::from_matrix(matrix)?;
        let settings = match matrix.ncols() {
            0..=512 => OptimizerSettings::default(),
            _ => OptimizerSettings { relative_gap: GAP, ..OptimizerSettings::default() },
        };
        let optimum = coa(&form, &settings, &mut |_| ControlFlow::Continue(()))?;
        certificate::verify(&optimum, &form).map_err(|error| QueryError::Certificate(error.to_string()))?;
        Ok(FoundStrategy::Dense { optimum: Box::new(optimum), form })
    }

    /// The workload.
    pub fn workload(&self) -> &QueryWorkload {
        &self.workload
    }

    /// Total expected squared error at σ = 1, and a lower bound of this error over all strategies.
    pub fn error(&self) -> (f64, f64) {
        match &self.found {
            FoundStrategy::Path(optimum) => optimum.error(),
            FoundStrategy::Dense { optimum, .. } => (optimum.objective, optimum.lower_bound),
        }
    }

    /// Expected errors of the baselines. None of them is below the lower bound.
    ///
    /// # Errors
    /// [`QueryError::Numerical`] if a factorisation fails.
    pub fn baselines(&self) -> Result<Vec<StrategyError>, QueryError> {
        match &self.found {
            FoundStrategy::Path(_) => baselines::on_path(&self.workload),
            FoundStrategy::Dense { form, .. } => baselines::of_form(form.matrix(), self.workload.queries()),
        }
    }

    /// C in integers.
    pub(super) fn integers(&self) -> Result<TriangularIntegers, QueryError> {
        let mut integers = TriangularIntegers::zeros(self.workload.cells());
        match &self.found {
            FoundStrategy::Dense { optimum, .. } => {
                for (index, row) in optimum.strategy.row_iter().enumerate() {
                    integers.set_row(index, row.iter().copied());
                }
            }
            FoundStrategy::Path(optimum) => {
                optimum.rows(|index, row| integers.set_row(index, row.iter().rev().copied()))?;
                let expected = optimum.squared_norms();
                let unit = TriangularIntegers::unit().powi(2);
                let mut pairs = integers.squared_norms().into_iter().zip(expected);
                if pairs.any(|(found, expected)| (found as f64 * unit - expected).abs() > TOLERANCE) {
                    return Err(QueryError::Numerical);
                }
            }
        }
        Ok(integers)
    }

    /// The variance of each answer, for noise of variance 1 on the answers to C.
    pub(super) fn variances(&self, integers: &TriangularIntegers) -> Result<Vec<f64>, QueryError> {
        let cells = self.workload.cells();
        match (&self.found, &self.workload) {
            (FoundStrategy::Path(optimum), workload) => {
                let variances = optimum.variances();
                // The last cell alone, or the sum of all cells.
                let first = if matches!(workload, QueryWorkload::Cells(_)) { cells - 1 } else { 0 };
                let query = (0..cells).map(|cell| f64::from(u8::from(cell >= first))).collect();
                let close = (variances[cells - 1] / integers.variance(query) - 1.0).abs() < TOLERANCE;
                if close { Ok(variances) } else { Err(QueryError::Numerical) }
            }
            (FoundStrategy::Dense { .. }, QueryWorkload::Matrix(matrix)) => {
                let identity = DMatrix::identity(cells, cells);
                let inverse =
                    integers.matrix().solve_lower_triangular(&identity).ok_or(QueryError::Numerical)?;
                Ok((matrix * inverse).row_iter().map(|row| row.norm_squared()).collect())
            }
            _ => Err(QueryError::Numerical),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chacha20::ChaCha20Rng;
    use rand::{Rng, SeedableRng};

    /// The paper's four workloads: sparse signs, ranges, marginals, and sums of few queries.
    fn workloads(n: usize) -> Vec<(&'static str, QueryWorkload)> {
        let mut random = ChaCha20Rng::seed_from_u64(5);
        let mut uniform = || (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let discrete = DMatrix::from_fn(n / 2, n, |_, _| if uniform() < 0.02 { 1.0 } else { -1.0 });
        let mut ranges = DMatrix::zeros(n / 2, n);
        for mut row in ranges.row_iter_mut() {
            let ends = [uniform(), uniform()].map(|x| (x * n as f64) as usize);
            let (first, last) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
            row.columns_mut(first, last + 1 - first).fill(1.0);
        }
        let few = DMatrix::from_fn(n / 4, n, |_, _| uniform() - 0.5);
        let related = DMatrix::from_fn(n / 2, n / 4, |_, _| uniform() - 0.5) * few;
        vec![
            ("discrete", QueryWorkload::Matrix(discrete)),
            ("range", QueryWorkload::Matrix(ranges)),
            ("marginal", QueryWorkload::marginals(&[4, 4, 4], 2).unwrap()),
            ("related", QueryWorkload::Matrix(related)),
            ("all ranges", QueryWorkload::AllRanges(n)),
            ("prefixes", QueryWorkload::Prefixes(n)),
            ("cells", QueryWorkload::Cells(n)),
        ]
    }

    #[test]
    fn no_baseline_is_better_than_the_certified_optimum() {
        for (name, workload) in workloads(64) {
            let strategy = QueryStrategy::optimal(&workload).unwrap();
            let (error, bound) = strategy.error();
            assert!(error <= bound * (1.0 + 1e-5), "{name}: {error} {bound}");
            let baselines = strategy.baselines().unwrap();
            assert_eq!(baselines.len(), 6, "{name}");
            for baseline in baselines {
                assert!(baseline.error >= bound * (1.0 - 1e-6), "{name}: {baseline:?} {bound}");
            }
        }
    }

    /// Both searches find the same optimum, both checks accept it, and the variance of every answer
    /// agrees with the variance that the integers give.
    #[test]
    fn workloads_on_a_path_have_the_optimum_of_the_search_for_all_workloads() {
        for n in [1, 2, 3, 10, 41] {
            for workload in [QueryWorkload::Cells(n), QueryWorkload::Prefixes(n), QueryWorkload::AllRanges(n)]
            {
                let written = QueryWorkload::Matrix(workload.written_out());
                let [path, dense] =
                    [&workload, &written].map(|workload| QueryStrategy::optimal(workload).unwrap());
                let ([error, bound], [other, _]) =
                    ([path.error().0, path.error().1], [dense.error().0, dense.error().1]);
                assert!(bound <= error && error <= bound * (1.0 + 2e-8), "{workload:?}: {error} {bound}");
                assert!((error / other - 1.0).abs() < 1e-5, "{workload:?}: {error} {other}");
                let integers = path.integers().unwrap();
                let variances = path.variances(&integers).unwrap();
                assert!((variances.iter().sum::<f64>() / error - 1.0).abs() < 1e-8, "{workload:?}");
                for (row, variance) in workload.written_out().row_iter().zip(&variances) {
                    let exact = integers.variance(row.iter().copied().collect());
                    assert!((variance / exact - 1.0).abs() < 1e-8, "{workload:?}: {variance} {exact}");
                }
            }
        }
    }

    /// For 2,000 cells, checks the gap, and the variances of some ranges against the integers.
    #[test]
    fn large_histograms_have_a_certified_optimum() {
        for workload in [QueryWorkload::Prefixes(2000), QueryWorkload::AllRanges(2000)] {
            let strategy = QueryStrategy::optimal(&workload).unwrap();
            let (error, bound) = strategy.error();
            assert!(bound < error && error < bound * (1.0 + 2e-8), "{error} {bound}");
            let integers = strategy.integers().unwrap();
            let variances = strategy.variances(&integers).unwrap();
            for last in [1, 700, 1998] {
                let query = (0..2000).map(|cell| f64::from(u8::from(cell <= last))).collect();
                let exact = integers.variance(query);
                assert!((variances[last] / exact - 1.0).abs() < 1e-7, "{last}: {} {exact}", variances[last]);
            }
        }
    }
}
