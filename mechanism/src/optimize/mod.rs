//! Optimal strategies: the C of sensitivity 1 with the least total squared error ‖A C⁻¹‖_F², with a
//! proof.
//!
//! In X = CᵀC the problem is convex: minimise tr(V X⁻¹), V = AᵀA, with constraints on X that bound
//! the sensitivity by 1. Single participation bounds the diagonal of X ([`coa`]; Yuan et al. 2016,
//! program (9)). (k, b)-participation bounds the sum of X over k steps at distances of b
//! ([`multi_epoch`]; Choquette-Choo et al. 2023, section 3). Newton's method with preconditioned
//! conjugate gradients and Armijo steps solves both in the dual, which has one variable per
//! constraint and needs no ridge for a singular V. Every point of the dual is a lower bound and
//! yields a feasible X.
//!
//! An [`Optimum`] holds the value of a feasible X and a lower bound of all values;
//! [`certificate::verify`] checks both again from X and the multipliers. Values are floating-point
//! numbers, accurate to about 10⁻¹². No privacy guarantee depends on them: the sensitivity is
//! computed from the C that runs.

mod algebra;
mod bound;
pub mod certificate;
mod classes;
mod coa;
pub mod corners;
mod dual;
mod row_space;
mod search;

pub use algebra::QuadraticForm;
pub use bound::{BoundError, loss_bound};
pub use certificate::Certificate;
pub use coa::coa;
pub use coa::multi_epoch;

use nalgebra::DMatrix;
use search::{OptimizerProblem, OptimizerResult};
use std::ops::ControlFlow;
use thiserror::Error;

/// Stopping criteria of an optimiser.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptimizerSettings {
    /// Target of `objective / lower_bound − 1`. Rounding ends the search between 10⁻¹⁰ and 10⁻¹³;
    /// for a singular V, whose infimum has no invertible C, at 10⁻⁸.
    pub relative_gap: f64,
    /// Maximum number of points.
    pub iterations: usize,
}

impl Default for OptimizerSettings {
    /// A gap of 10⁻⁶, and far more iterations than needed.
    fn default() -> Self {
        Self { relative_gap: 1e-6, iterations: 500 }
    }
}

impl OptimizerSettings {
    /// Returns a gap of 10⁻¹¹ up to 512 steps, where one more Newton step is cheap: X is accurate
    /// only to the root of the gap, and figures of single steps come from X. Returns the default
    /// beyond.
    pub fn for_steps(steps: u64) -> Self {
        if steps <= 512 { Self { relative_gap: 1e-11, ..Self::default() } } else { Self::default() }
    }
}

/// Called after every point; [`ControlFlow::Break`] ends the search with the best so far.
pub type OnProgress<'a> = &'a mut dyn FnMut(&OptimizerProgress) -> ControlFlow<()>;

/// Progress of an optimiser, or of a fit of buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OptimizerProgress {
    /// Number of points.
    pub iteration: usize,
    /// Minimum value of a feasible X so far.
    pub objective: f64,
    /// Largest lower bound so far.
    pub lower_bound: f64,
    /// Number of eigendecompositions of matrices of V's size: the most expensive steps.
    pub eigendecompositions: usize,
    /// Number of conjugate-gradient steps. Each is a matrix product, the next most expensive step.
    pub conjugate_gradient_steps: usize,
}

impl OptimizerProgress {
    /// Returns `objective / lower_bound − 1`, at least 0; infinite while there is no bound.
    pub fn relative_gap(&self) -> f64 {
        relative_gap(self.objective, self.lower_bound)
    }
}

fn relative_gap(objective: f64, lower_bound: f64) -> f64 {
    if lower_bound > 0.0 { (objective / lower_bound - 1.0).max(0.0) } else { f64::INFINITY }
}

/// Reason why an optimiser stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// The target gap is reached.
    Gap,
    /// Rounding allows no further progress.
    Rounding,
    /// The maximum number of iterations is reached.
    Iterations,
    /// The progress callback cancelled it.
    Cancelled,
}

/// A strategy, its total squared error at sensitivity 1, and a proof of its distance from the
/// optimum.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimum {
    /// X = CᵀC.
    pub gram: DMatrix<f64>,
    /// C, lower triangular with a positive diagonal, n×n. Its sensitivity is 1 up to rounding,
    /// about 10⁻¹⁴: a caller must compute and charge the sensitivity of the exact numbers that run.
    pub strategy: DMatrix<f64>,
    /// Largest norm of a column of `strategy`, in floating point: its sensitivity under single
    /// participation.
    pub column_norm: f64,
    /// tr(V X⁻¹) = ‖A C⁻¹‖_F².
    pub objective: f64,
    /// Lower bound of the objective over all strategies within the constraints.
    pub lower_bound: f64,
    /// Proof of the lower bound.
    pub certificate: Certificate,
    /// Number of points.
    pub iterations: usize,
    /// Number of eigendecompositions of n×n matrices.
    pub eigendecompositions: usize,
    /// Reason why the optimiser stopped.
    pub stop: Stop,
}

impl Optimum {
    /// Returns `objective / lower_bound − 1`, at least 0.
    pub fn relative_gap(&self) -> f64 {
        relative_gap(self.objective, self.lower_bound)
    }

    fn new(found: &OptimizerResult, problem: &OptimizerProblem<'_>) -> Result<Self, OptimizeError> {
        let gram = problem.classes.unsorted(found.gram.as_ref());
        let strategy = algebra::reverse_cholesky(gram.as_ref()).ok_or(OptimizeError::Numerical)?;
        let strategy = algebra::dense(strategy.as_ref());
        Ok(Self {
            gram: algebra::dense(gram.as_ref()),
            column_norm: strategy.column_iter().map(|column| column.norm()).fold(0.0, f64::max),
            strategy,
            objective: found.progress.objective,
            lower_bound: found.progress.lower_bound,
            certificate: Certificate::new(problem.classes, &found.multipliers),
            iterations: found.progress.iteration,
            eigendecompositions: found.progress.eigendecompositions,
            stop: found.stop,
        })
    }
}

fn check_participation(count: usize, gap: usize) -> Result<(), OptimizeError> {
    if count == 0 || gap == 0 { Err(OptimizeError::Participation { count, gap }) } else { Ok(()) }
}

/// Reasons why there is no optimal strategy.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptimizeError {
    /// A workload without rows or columns.
    #[error("the workload is {rows}×{columns}; expected at least one row and one column")]
    Empty {
        /// Number of rows.
        rows: usize,
        /// Number of columns.
        columns: usize,
    },
    /// An entry is NaN, infinite, or too large to be squared.
    #[error(
        "the entry of the workload or of its square in row {row}, column {column} is not a finite number; expected \
         entries below 1e150"
    )]
    NotFinite {
        /// Row from 1.
        row: usize,
        /// Column from 1.
        column: usize,
    },
    /// All entries are zero.
    #[error("all entries of the workload are zero: every strategy answers it without error")]
    Zero,
    /// A count or gap of 0.
    #[error("{count} participations {gap} steps apart: both numbers must be at least 1")]
    Participation {
        /// Number of participations k.
        count: usize,
        /// Steps between them b.
        gap: usize,
    },
    /// Linearly dependent columns, under several participations.
    #[error(
        "the columns of the workload are linearly dependent; for several participations they must be independent, \
         as those of every triangular workload without zeros on its diagonal are"
    )]
    Singular,
    /// Too many steps for a method for small instances.
    #[error("{found} steps; this method is for up to {limit}")]
    TooManySteps {
        /// Number of steps n.
        found: usize,
        /// Largest number of steps.
        limit: usize,
    },
    /// The workload is so ill-conditioned that a factorisation failed.
    #[error(
        "a matrix factorisation failed: the entries of the workload differ by too many orders of magnitude"
    )]
    Numerical,
}
