//! Strategies for linear queries, and their expected errors at sensitivity 1.
//!
//! A strategy is an invertible n×n matrix C whose columns have a norm of at most 1. The answers are
//! W C⁻¹(Cx + noise), with a total expected squared error of σ²·tr(V (CᵀC)⁻¹), V = WᵀW.
//!
//! | strategy | C |
//! |---|---|
//! | optimal | minimises the error ([`coa`]; Yuan et al. 2016), with a certified lower bound |
//! | identity | noise on every cell |
//! | hierarchical | sums of all nodes of a binary tree (Hay et al. 2010), least squares |
//! | wavelet | the total and the difference of the halves of each node (Xiao et al. 2010) |
//! | answers | noise on the answers themselves, W in place of C (the Gaussian mechanism) |
//! | spectral | V^(1/4): the optimum if all columns are alike (Li & Miklau 2013) |
//!
//! The Low-Rank Mechanism (Yuan et al. 2012) is not here: its program has local optima, and the
//! certified optimum is below all of them.

use super::{QueryError, QueryWorkload};
use hushflow_mechanism::optimize::{OptimizerSettings, Optimum, QuadraticForm, certificate, coa};
use nalgebra::{DMatrix, SymmetricEigen};
use std::ops::ControlFlow;

/// Largest relative gap between the error of the strategy and the lower bound of all strategies,
/// for more than 512 cells.
const GAP: f64 = 1e-3;

/// Share of the identity in a singular C.
const RIDGE: f64 = 1e-9;

/// Expected squared error of a strategy, in total over all queries, at σ = 1.
#[derive(Clone, Debug, PartialEq)]
pub struct StrategyError {
    /// Its name.
    pub name: &'static str,
    /// The error; at sensitivity 1.
    pub error: f64,
}

/// The optimal strategy for a workload.
#[derive(Clone, Debug)]
pub struct QueryStrategy {
    pub(super) optimum: Optimum,
    form: QuadraticForm,
}

impl QueryStrategy {
    /// Finds the optimum and verifies its certificate.
    ///
    /// # Errors
    /// [`QueryError`] for a workload without an optimum, and [`QueryError::Certificate`] if the
    /// independent check fails.
    pub fn optimal(workload: &QueryWorkload) -> Result<Self, QueryError> {
        let form = workload.form()?;
        let settings = match workload.cells() {
            0..=512 => OptimizerSettings::default(),
            _ => OptimizerSettings { relative_gap: GAP, ..OptimizerSettings::default() },
        };
        let optimum = coa(&form, &settings, &mut |_| ControlFlow::Continue(()))?;
        certificate::verify(&optimum, &form).map_err(|error| QueryError::Certificate(error.to_string()))?;
        Ok(Self { optimum, form })
    }

    /// Expected squared error in total at σ = 1, and a lower bound of that of all strategies.
    pub fn error(&self) -> (f64, f64) {
        (self.optimum.objective, self.optimum.lower_bound)
    }

    /// Expected errors of the rivals. None has less than the lower bound.
    ///
    /// # Errors
    /// [`QueryError::Numerical`] if a factorisation fails.
    pub fn rivals(&self, workload: &QueryWorkload) -> Result<Vec<StrategyError>, QueryError> {
        let (n, form) = (workload.cells(), self.form.matrix());
        let of = |name, strategy: DMatrix<f64>| -> Result<StrategyError, QueryError> {
            let sensitivity = strategy.column_iter().map(|column| column.norm_squared()).fold(0.0, f64::max);
            let gram = strategy.transpose() * &strategy;
            let inverse = gram.cholesky().ok_or(QueryError::Numerical)?.solve(form);
            Ok(StrategyError { name, error: inverse.trace() * sensitivity })
        };
        let largest = form.diagonal().max();
        let mut rivals = vec![
            StrategyError { name: "identity", error: form.trace() },
            StrategyError { name: "answers", error: workload.queries() as f64 * largest },
            of(
                "hierarchical",
                tree(n, |first, middle, last| vec![(first, middle, 1.0), (middle, last, 1.0)]),
            )?,
            of("wavelet", haar(n))?,
        ];
        rivals.push(of("spectral", fourth_root(form).ok_or(QueryError::Numerical)?)?);
        Ok(rivals)
    }
}

/// Rows for all nodes of a binary tree: the total, and those that `parts` gives for each node.
fn tree(n: usize, parts: impl Fn(usize, usize, usize) -> Vec<(usize, usize, f64)>) -> DMatrix<f64> {
    let mut rows: Vec<Vec<(usize, usize, f64)>> = vec![vec![(0, n, 1.0)]];
    let mut nodes = vec![(0, n)];
    while let Some((first, last)) = nodes.pop() {
        if last - first > 1 {
            let middle = first + (last - first).div_ceil(2);
            rows.extend(parts(first, middle, last).into_iter().map(|part| vec![part]));
            nodes.extend([(first, middle), (middle, last)]);
        }
    }
    written(n, &rows)
}

fn haar(n: usize) -> DMatrix<f64> {
    let mut rows: Vec<Vec<(usize, usize, f64)>> = vec![vec![(0, n, 1.0)]];
    let mut nodes = vec![(0, n)];
    while let Some((first, last)) = nodes.pop() {
        if last - first > 1 {
            let middle = first + (last - first).div_ceil(2);
            rows.push(vec![(first, middle, 1.0), (middle, last, -1.0)]);
            nodes.extend([(first, middle), (middle, last)]);
        }
    }
    written(n, &rows)
}

fn written(n: usize, rows: &[Vec<(usize, usize, f64)>]) -> DMatrix<f64> {
    let mut matrix = DMatrix::zeros(rows.len(), n);
    for (row, parts) in rows.iter().enumerate() {
        for &(first, last, weight) in parts {
            matrix.row_mut(row).columns_mut(first, last - first).fill(weight);
        }
    }
    matrix
}

/// V^(1/4), with a share of the identity so that it is invertible.
fn fourth_root(form: &DMatrix<f64>) -> Option<DMatrix<f64>> {
    let eigen = SymmetricEigen::try_new(form.clone(), f64::EPSILON, 100 * form.nrows() + 100)?;
    let least = RIDGE * eigen.eigenvalues.max();
    let roots = eigen.eigenvalues.map(|value| value.max(least).powf(0.25));
    Some(&eigen.eigenvectors * DMatrix::from_diagonal(&roots) * eigen.eigenvectors.transpose())
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
        ]
    }

    #[test]
    fn no_rival_is_better_than_the_certified_optimum() {
        for (name, workload) in workloads(64) {
            let strategy = QueryStrategy::optimal(&workload).unwrap();
            let (error, bound) = strategy.error();
            assert!(error <= bound * (1.0 + 1e-5), "{name}: {error} {bound}");
            let rivals = strategy.rivals(&workload).unwrap();
            assert_eq!(rivals.len(), 5, "{name}");
            for rival in rivals {
                assert!(rival.error >= bound * (1.0 - 1e-9), "{name}: {rival:?} {bound}");
            }
        }
    }

    #[test]
    fn trees_have_a_column_norm_for_each_level() {
        for (matrix, rows) in [
            (tree(8, |first, middle, last| vec![(first, middle, 1.0), (middle, last, 1.0)]), 15),
            (haar(8), 8),
        ] {
            assert_eq!(matrix.nrows(), rows);
            assert!(matrix.column_iter().all(|column| column.norm_squared() == 4.0));
        }
    }
}
