//! The Low-Rank Mechanism (Yuan et al. 2012): factors W = BL, with few rows in L, and adds noise to
//! Lx.
//!
//! Minimises ‖B‖² subject to W = BL and ‖column of L‖ ≤ 1 (Euclidean), by the augmented Lagrangian
//! method: B in closed form, L by accelerated projected gradients. The program is not convex, so
//! the search finds a local optimum. Its error is at least the certified lower bound. The error
//! depends on V = WᵀW alone, so any R with RᵀR = V may replace W.

use nalgebra::{DMatrix, SymmetricEigen};

/// Maximum number of cells. At this size a search takes seconds.
pub const MAX_CELLS: usize = 128;

/// Rows of L as a multiple of the rank of W (the paper's choice).
const RANK_FACTOR: f64 = 1.2;

/// Steps of the search.
const STEPS: usize = 120;

/// Rounds of a step: each solves for B, then for L.
const ROUNDS: usize = 2;

/// Gradient steps of L in each round.
const GRADIENT_STEPS: usize = 8;

/// Steps after which the penalty doubles.
const STEPS_PER_DOUBLING: usize = 10;

/// Eigenvalues below this share of the largest count as 0.
const RANK_TOLERANCE: f64 = 1e-10;

/// Largest share of W (in squares) outside the row space of L.
const MAX_RESIDUAL: f64 = 1e-9;

/// The total squared error at σ = 1; `None` if the search does not end with W = BL.
pub(super) fn error(form: &DMatrix<f64>) -> Option<f64> {
    let n = form.nrows();
    let unit = form.trace() / n as f64;
    let form = form / unit;
    let eigen = SymmetricEigen::try_new(form.clone(), f64::EPSILON, 100 * n + 100)?;
    let least = RANK_TOLERANCE * eigen.eigenvalues.max();
    let kept: Vec<usize> = (0..n).filter(|index| eigen.eigenvalues[*index] > least).collect();
    let root = DMatrix::from_fn(kept.len(), n, |i, j| {
        eigen.eigenvalues[kept[i]].sqrt() * eigen.eigenvectors[(j, kept[i])]
    });
    let rows = (RANK_FACTOR * kept.len() as f64).ceil() as usize;
    let strategy = search(&root, rows)?;
    let strategy_gram = strategy.tr_mul(&strategy);
    let largest = strategy_gram.diagonal().max();
    let eigen = SymmetricEigen::try_new(strategy_gram, f64::EPSILON, 100 * n + 100)?;
    let least = RANK_TOLERANCE * eigen.eigenvalues.max();
    let parts = (root * &eigen.eigenvectors).map(|entry| entry * entry).row_sum();
    let answered = parts.iter().zip(&eigen.eigenvalues).filter(|(_, value)| **value > least);
    let (error, share) =
        answered.fold((0.0, 0.0), |(error, share), (part, value)| (error + part / value, share + part));
    (share >= parts.sum() * (1.0 - MAX_RESIDUAL)).then_some(error * largest * unit)
}

fn search(root: &DMatrix<f64>, rows: usize) -> Option<DMatrix<f64>> {
    let (rank, n) = root.shape();
    // L starts with the rows of `root`, repeated beyond its rank and scaled as in the paper.
    let scale =
        root.column_iter().map(|column| column.norm()).fold(0.0, f64::max) * (rows as f64 / rank as f64);
    let mut left = DMatrix::zeros(rank, rows);
    let mut strategy = DMatrix::from_fn(rows, n, |i, j| root[(i % rank, j)] / scale);
    let mut multiplier = DMatrix::zeros(rank, n);
    let mut penalty = 1.0;
    for step in 1..=STEPS {
        for _ in 0..ROUNDS {
            let inner = &strategy * strategy.transpose() * penalty + DMatrix::identity(rows, rows);
            let target = (root * penalty + &multiplier) * strategy.transpose();
            left = inner.cholesky()?.solve(&target.transpose()).transpose();
            strategy = descend(&left, &(root + &multiplier / penalty), strategy);
        }
        multiplier += (root - &left * &strategy) * penalty;
        if step % STEPS_PER_DOUBLING == 0 {
            penalty *= 2.0;
        }
    }
    Some(strategy)
}

/// Minimises ‖target − BL‖² over L by accelerated projected gradient steps.
fn descend(left: &DMatrix<f64>, target: &DMatrix<f64>, start: DMatrix<f64>) -> DMatrix<f64> {
    let gram = left.tr_mul(left);
    let goal = left.tr_mul(target);
    // The largest eigenvalue of BᵀB is at most its largest row sum.
    let curvature =
        gram.row_iter().map(|row| row.iter().map(|x| x.abs()).sum::<f64>()).fold(f64::MIN_POSITIVE, f64::max);
    let (mut previous, mut current, mut momentum) = (start.clone(), start, 1.0f64);
    for _ in 0..GRADIENT_STEPS {
        let next_momentum = f64::midpoint(1.0, (1.0 + 4.0 * momentum * momentum).sqrt());
        let extrapolated = &current + (&current - &previous) * ((momentum - 1.0) / next_momentum);
        let mut next = &extrapolated - (&gram * &extrapolated - &goal) / curvature;
        for mut column in next.column_iter_mut() {
            let norm = column.norm();
            if norm > 1.0 {
                column /= norm;
            }
        }
        (previous, current, momentum) = (current, next, next_momentum);
    }
    current
}

#[cfg(test)]
mod tests {
    use super::super::{QueryStrategy, QueryWorkload};
    use super::*;

    /// The low-rank error is at least the certified bound, less than 1.3 times the bound, and
    /// smaller than that of noise on cells or on answers.
    #[test]
    fn low_rank_error_is_between_the_bound_and_the_baselines() {
        let few = DMatrix::from_fn(6, 40, |i, j| ((7 * i + 3 * j) % 5) as f64 - 2.0);
        let many = DMatrix::from_fn(30, 6, |i, j| ((3 * i + 5 * j) % 7) as f64 - 3.0);
        for workload in [QueryWorkload::Matrix(many * few), QueryWorkload::Prefixes(40)] {
            let strategy = QueryStrategy::optimal(&workload).unwrap();
            let (bound, baselines) = (strategy.error().1, strategy.baselines().unwrap());
            let error = |name: &str| baselines.iter().find(|baseline| baseline.name == name).unwrap().error;
            let low_rank = error("low-rank");
            assert!(low_rank >= bound * (1.0 - 1e-6), "{low_rank} {bound}");
            assert!(low_rank < 1.3 * bound, "{low_rank} {bound}");
            assert!(low_rank < error("identity").min(error("answers")), "{baselines:?}");
        }
    }
}
