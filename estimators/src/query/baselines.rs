//! Expected errors of other strategies for linear queries, at sensitivity 1.
//!
//! | strategy | C |
//! |---|---|
//! | identity | noise on every cell |
//! | answers | noise on the answers themselves, W in place of C (the Gaussian mechanism) |
//! | hierarchical | sums of all nodes of a binary tree (Hay et al. 2010), least squares |
//! | wavelet | the total and the difference of the halves of each node (Xiao et al. 2010) |
//! | spectral | V^(1/4): the optimum if all columns are alike (Li & Miklau 2013) |
//! | low-rank | the Low-Rank Mechanism ([`low_rank`]), up to [`low_rank::MAX_CELLS`] cells |

use super::path::PathOptimum;
use super::{QueryError, QueryWorkload, low_rank};
use nalgebra::{DMatrix, SymmetricEigen};

/// Share of the identity in a singular C.
const RIDGE: f64 = 1e-9;

/// Expected squared error of a strategy, in total over all queries, at σ = 1.
#[derive(Clone, Debug, PartialEq)]
pub struct StrategyError {
    /// Its name.
    pub name: &'static str,
    /// The error at sensitivity 1.
    pub error: f64,
}

/// The errors for a workload on a path, whose V is not stored as a matrix.
pub(super) fn on_path(workload: &QueryWorkload) -> Result<Vec<StrategyError>, QueryError> {
    let n = workload.cells();
    let spectral = PathOptimum::spectral_error(workload).ok_or(QueryError::Numerical)?;
    let shared = |i, j| workload.shared(i, j);
    let low_rank = (n <= low_rank::MAX_CELLS).then(|| DMatrix::from_fn(n, n, shared));
    let low_rank = low_rank.and_then(|form| low_rank::error(&form));
    Ok(baselines(n, shared, workload.queries(), spectral, low_rank))
}

/// The errors for any V.
pub(super) fn of_form(form: &DMatrix<f64>, queries: usize) -> Result<Vec<StrategyError>, QueryError> {
    let n = form.nrows();
    let spectral = spectral(form).ok_or(QueryError::Numerical)?;
    let low_rank = Some(form).filter(|_| n <= low_rank::MAX_CELLS).and_then(low_rank::error);
    Ok(baselines(n, |i, j| form[(i, j)], queries, spectral, low_rank))
}

fn baselines(
    n: usize,
    form: impl Fn(usize, usize) -> f64,
    queries: usize,
    spectral: f64,
    low_rank: Option<f64>,
) -> Vec<StrategyError> {
    let diagonal = || (0..n).map(|cell| form(cell, cell));
    let mut baselines = vec![
        ("identity", diagonal().sum()),
        ("answers", queries as f64 * diagonal().fold(0.0, f64::max)),
        ("hierarchical", hierarchical(n, &form)),
        ("wavelet", wavelet(n, &form)),
        ("spectral", spectral),
    ];
    baselines.extend(low_rank.map(|error| ("low-rank", error)));
    baselines.into_iter().map(|(name, error)| StrategyError { name, error }).collect()
}

/// The first cell of the right half of a node of the binary tree.
fn middle(first: usize, last: usize) -> usize {
    first + (last - first).div_ceil(2)
}

/// Number of levels below a node of this many cells.
fn levels(cells: usize) -> u32 {
    cells.next_power_of_two().trailing_zeros()
}

/// The inverse of the Gram matrix of the sums of all nodes, by the formula of Sherman and Morrison:
/// a node adds 11ᵀ to the matrices of its halves. For each node, from the leaves up, it holds the
/// cells, the solution for the vector 1, and the sum of the solution.
struct TreeInverse {
    nodes: Vec<(usize, usize, Vec<f64>, f64)>,
}

impl TreeInverse {
    fn new(n: usize) -> Self {
        let mut tree = Self { nodes: Vec::new() };
        tree.add(0, n);
        tree
    }

    fn add(&mut self, first: usize, last: usize) -> Vec<f64> {
        let mut solution = vec![1.0];
        if last - first > 1 {
            let middle = middle(first, last);
            solution = [self.add(first, middle), self.add(middle, last)].concat();
            let sum = solution.iter().sum::<f64>();
            self.nodes.push((first, last, solution.clone(), sum));
            solution.iter_mut().for_each(|value| *value /= 1.0 + sum);
        }
        solution
    }

    /// The solution for the unit vector of a cell.
    fn column(&self, cell: usize, n: usize) -> Vec<f64> {
        let mut column = vec![0.0; n];
        column[cell] = 1.0;
        for (first, last, solution, sum) in &self.nodes {
            if (*first..*last).contains(&cell) {
                let part = &mut column[*first..*last];
                let share = part.iter().sum::<f64>() / (1.0 + sum);
                part.iter_mut().zip(solution).for_each(|(value, ones)| *value -= share * ones);
            }
        }
        column
    }
}

/// tr(V G⁻¹) times the number of levels.
fn hierarchical(n: usize, form: &impl Fn(usize, usize) -> f64) -> f64 {
    let inverse = TreeInverse::new(n);
    let of_cell = |cell| {
        let column = inverse.column(cell, n);
        column.iter().enumerate().map(|(other, value)| value * form(cell, other)).sum::<f64>()
    };
    (0..n).map(of_cell).sum::<f64>() * f64::from(levels(n) + 1)
}

/// Σ hᵀVh over the columns h of the inverse, times the largest squared column norm. Noise on a
/// total or a difference goes to both halves evenly, at each level below.
fn wavelet(n: usize, form: &impl Fn(usize, usize) -> f64) -> f64 {
    fn spread(shares: &mut [f64], share: f64) {
        match shares.len() {
            1 => shares[0] = share,
            length => {
                let (left, right) = shares.split_at_mut(length.div_ceil(2));
                spread(left, share / 2.0);
                spread(right, share / 2.0);
            }
        }
    }
    let mut total = vec![0.0; n];
    spread(&mut total, 1.0);
    let squared = |first: usize, column: &[f64]| -> f64 {
        let row = |(i, value): (usize, &f64)| {
            let others = column.iter().enumerate();
            value * others.map(|(j, other)| other * form(first + i, first + j)).sum::<f64>()
        };
        column.iter().enumerate().map(row).sum()
    };
    let mut error = squared(0, &total);
    let mut nodes = vec![(0, n)];
    while let Some((first, last)) = nodes.pop() {
        if last - first > 1 {
            let middle = middle(first, last);
            let mut column = vec![0.0; last - first];
            spread(&mut column[..middle - first], 0.5);
            spread(&mut column[middle - first..], -0.5);
            error += squared(first, &column);
            nodes.extend([(first, middle), (middle, last)]);
        }
    }
    error * f64::from(levels(n) + 1)
}

/// The error of V^(1/4), with a share of the identity so that it is invertible.
fn spectral(form: &DMatrix<f64>) -> Option<f64> {
    let eigen = SymmetricEigen::try_new(form.clone(), f64::EPSILON, 100 * form.nrows() + 100)?;
    let least = RIDGE * eigen.eigenvalues.max();
    let roots = eigen.eigenvalues.map(|value| value.max(least).sqrt());
    let squared_norms =
        eigen.eigenvectors.row_iter().map(|row| row.iter().zip(&roots).map(|(v, root)| v * v * root).sum());
    let error: f64 = eigen.eigenvalues.iter().zip(&roots).map(|(value, root)| value / root).sum();
    Some(error * squared_norms.fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dense rows of a tree: the total, and the rows of each inner node.
    fn written(n: usize, halves: fn(&mut [f64], &mut [f64]) -> bool) -> DMatrix<f64> {
        let mut rows = vec![vec![1.0; n]];
        let mut nodes = vec![(0, n)];
        while let Some((first, last)) = nodes.pop() {
            if last - first > 1 {
                let middle = middle(first, last);
                let mut row = vec![0.0; n];
                let (left, right) = row.split_at_mut(middle);
                if halves(&mut left[first..], &mut right[..last - middle]) {
                    rows.push(row);
                } else {
                    let ends = [(first, middle), (middle, last)];
                    rows.extend(ends.map(|(from, to)| {
                        (0..n).map(|cell| f64::from(u8::from((from..to).contains(&cell)))).collect()
                    }));
                }
                nodes.extend([(first, middle), (middle, last)]);
            }
        }
        DMatrix::from_row_slice(rows.len(), n, &rows.concat())
    }

    #[test]
    fn trees_have_the_errors_of_their_written_out_rows() {
        for n in [1, 2, 7, 8, 13] {
            let form = |i: usize, j: usize| QueryWorkload::AllRanges(n).shared(i, j);
            let haar = written(n, |left, right| {
                left.fill(1.0);
                right.fill(-1.0);
                true
            });
            let sums = written(n, |_, _| false);
            for (strategy, error) in [(haar, wavelet(n, &form)), (sums, hierarchical(n, &form))] {
                let largest = strategy.column_iter().map(|column| column.norm_squared()).fold(0.0, f64::max);
                let inverse = (strategy.tr_mul(&strategy)).try_inverse().unwrap();
                let expected = (inverse * DMatrix::from_fn(n, n, form)).trace() * largest;
                assert!((error / expected - 1.0).abs() < 1e-9, "{n}: {error} {expected}");
            }
        }
    }
}
