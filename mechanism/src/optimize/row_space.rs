//! Maximises the dual for a singular V and single participation, where constraints may be slack.
//!
//! Let V = M Mᵀ have rank r, with multipliers y ≥ 0. The r×r matrix G = Mᵀ diag(y) M is linear in
//! y, and the lower bound `(tr G^(1/2))² / Σ y` is smooth down to y_i = 0. `X = M G^(−1/2) Mᵀ`,
//! divided by its largest diagonal entry, has the value `tr G^(1/2) · max X_ii`, so V needs no
//! ridge (the paper's θ). A slack constraint has y_i = 0, which a projected Newton method finds
//! (Bertsekas 1982). With G = Q diag(s²) Qᵀ and T = M Q diag(1/s) the second derivative is that of
//! [`dual`](super::dual).

use super::{
    OnProgress, OptimizeError, OptimizerSettings, Stop,
    algebra::{self, conjugate_gradients},
    dual::Curvature,
    search::{HALVINGS, OptimizerProblem, OptimizerRecord, OptimizerResult, SUFFICIENT_RISE},
};
use faer::Mat;

/// Share of the identity in X, and its relative cost, so that an invertible C with CᵀC = X exists.
const IDENTITY_SHARE: f64 = 1e-8;

/// Multipliers stay above this fraction of the largest, so that they form a regular certificate.
const FLOOR: f64 = 1e-13;

/// Multipliers below this fraction of the largest count as slack if the bound rises as they fall
/// towards 0.
const NEAR_ZERO: f64 = 1e-3;

/// Added to the second derivative, relative to its diagonal, because the optimal y need not be
/// unique.
const DAMPING: f64 = 1e-7;

/// Extra precision of conjugate gradients over a definite V: the value depends on the largest X_ii.
const PRECISION: f64 = 1e-4;
const CONJUGATE_GRADIENT_STEPS: usize = 200;

/// Relative rounding error of the bound, by which a step may appear to reduce it.
const ROUNDING: f64 = 1e-13;

struct RowSpacePoint {
    /// y, scaled so that its bound is the best along its ray.
    multipliers: Vec<f64>,
    values: Vec<f64>,
    /// Tᵀ, r×n.
    transform: Mat<f64>,
    /// X_ii.
    diagonal: Vec<f64>,
}

impl RowSpacePoint {
    /// Returns `None` if G is singular.
    fn new(root: &Mat<f64>, multipliers: &[f64]) -> Option<Self> {
        let mut half = root.clone();
        algebra::scale_rows(&mut half, multipliers);
        let transformed = algebra::lower_product(root.transpose(), half.as_ref());
        let eigen = algebra::eigen(transformed.as_ref()).filter(|eigen| eigen.values[0] > 0.0)?;
        let values: Vec<f64> = eigen.values.iter().map(|value| value.sqrt()).collect();
        let scale = values.iter().sum::<f64>() / multipliers.iter().sum::<f64>();
        let values: Vec<f64> = values.into_iter().map(|s| s * scale).collect();
        let mut transform = eigen.vectors.transpose() * root.transpose();
        algebra::scale_rows(&mut transform, &values.iter().map(|s| s.recip()).collect::<Vec<_>>());
        let diagonal_entry =
            |column: usize| transform.col_as_slice(column).iter().zip(&values).map(|(t, s)| t * t * s).sum();
        let diagonal = (0..transform.ncols()).map(diagonal_entry).collect();
        let multipliers = multipliers.iter().map(|y| y * scale * scale).collect();
        Some(Self { multipliers, values, transform, diagonal })
    }

    fn bound(&self) -> f64 {
        self.values.iter().sum::<f64>().powi(2) / self.multipliers.iter().sum::<f64>()
    }

    /// X, feasible and definite.
    fn gram(&self) -> Mat<f64> {
        let mut half = self.transform.clone();
        let share = (1.0 - IDENTITY_SHARE) / largest(&self.diagonal);
        let weights: Vec<f64> = self.values.iter().map(|s| (s * share).sqrt()).collect();
        algebra::scale_rows(&mut half, &weights);
        algebra::gram(half.as_ref())
            + faer::Scale(IDENTITY_SHARE) * Mat::<f64>::identity(half.ncols(), half.ncols())
    }

    fn gradient(&self) -> Vec<f64> {
        self.diagonal.iter().map(|x| x - 1.0).collect()
    }

    /// Marks the multipliers that a Newton step may change: all except those near 0 for which the
    /// bound rises as they fall.
    fn free(&self, gradient: &[f64]) -> Vec<bool> {
        let top = largest(&self.multipliers);
        let moved = |(y, g): (&f64, &f64)| (y - (y + top * g).max(0.0)).abs();
        let unrest = self.multipliers.iter().zip(gradient).map(moved).fold(0.0, f64::max);
        let near = unrest.min(NEAR_ZERO * top).max(2.0 * FLOOR * top);
        self.multipliers.iter().zip(gradient).map(|(y, g)| *y > near || *g >= 0.0).collect()
    }

    /// Diagonal of the second derivative.
    fn stiffness(&self, curvature: &Curvature<'_>) -> Vec<f64> {
        let rank = self.values.len();
        let inner = Mat::from_fn(rank, rank, |a, b| curvature.weight(a, b));
        let squares = Mat::from_fn(rank, self.transform.ncols(), |a, i| self.transform[(a, i)].powi(2));
        let product = inner * &squares;
        let dot =
            |i: usize| product.col_as_slice(i).iter().zip(squares.col_as_slice(i)).map(|(a, b)| a * b).sum();
        let stiffness: Vec<f64> = (0..squares.ncols()).map(dot).collect();
        let rounding = f64::EPSILON * largest(&stiffness);
        stiffness.into_iter().map(|entry: f64| entry + rounding).collect()
    }

    /// Returns Newton's direction in the free multipliers, with a step to 0 in all others, and the
    /// number of conjugate-gradient steps.
    fn direction(&self, problem: &OptimizerProblem<'_>, gradient: &[f64]) -> (Vec<f64>, usize) {
        let curvature =
            Curvature { transform: self.transform.clone(), values: &self.values, classes: problem.classes };
        let (free, stiffness) = (self.free(gradient), self.stiffness(&curvature));
        let masked = |entries: Vec<f64>| -> Vec<f64> {
            entries.iter().zip(&free).map(|(entry, free)| if *free { *entry } else { 0.0 }).collect()
        };
        let apply = |direction: &[f64]| {
            let curved = problem.classes.adjoint(&curvature.apply(&problem.classes.matrices(direction)));
            let damped = curved.iter().zip(direction).zip(&stiffness);
            masked(damped.map(|((h, d), stiff)| h + DAMPING * stiff * d).collect())
        };
        let precondition = |residual: &[f64]| -> Vec<f64> {
            residual.iter().zip(&stiffness).map(|(entry, stiff)| entry / stiff).collect()
        };
        let enough = |energy: f64| PRECISION * energy * (energy / self.bound()).min(0.01);
        let (ascent, steps) = conjugate_gradients(
            apply,
            precondition,
            &masked(gradient.to_vec()),
            enough,
            CONJUGATE_GRADIENT_STEPS,
        );
        let step = |((d, free), y): ((&f64, &bool), &f64)| if *free { *d } else { -y };
        (ascent.iter().zip(&free).zip(&self.multipliers).map(step).collect(), steps)
    }
}

fn largest(entries: &[f64]) -> f64 {
    entries.iter().copied().fold(0.0, f64::max)
}

/// `max(y + length·direction, floor)`.
fn moved(multipliers: &[f64], length: f64, direction: &[f64]) -> Vec<f64> {
    let floor = FLOOR * largest(multipliers);
    multipliers.iter().zip(direction).map(|(y, d)| (y + length * d).max(floor)).collect()
}

pub(super) fn search(
    problem: &OptimizerProblem<'_>,
    settings: &OptimizerSettings,
    callback: OnProgress<'_>,
) -> Result<OptimizerResult, OptimizeError> {
    let mut record = OptimizerRecord::new(problem, settings, callback)?;
    let start: Vec<f64> = (0..problem.form.nrows()).map(|i| problem.form[(i, i)].powf(0.75)).collect();
    let start = moved(&start, 0.0, &start);
    let mut point = RowSpacePoint::new(&problem.root, &start).ok_or(OptimizeError::Numerical)?;
    record.count(1, 0);
    loop {
        record.raise(point.bound(), &point.multipliers);
        let gram = point.gram();
        if let Some(objective) = problem.value(&gram) {
            record.lower(objective, gram);
        }
        if let Some(stop) = record.verdict() {
            return Ok(record.close(stop));
        }
        match climb(problem, &point, &mut record) {
            Some(next) => point = next,
            None => return Ok(record.close(Stop::Rounding)),
        }
    }
}

fn climb(
    problem: &OptimizerProblem<'_>,
    from: &RowSpacePoint,
    record: &mut OptimizerRecord<'_>,
) -> Option<RowSpacePoint> {
    let gradient = from.gradient();
    let (direction, steps) = from.direction(problem, &gradient);
    record.count(0, steps);
    (0..HALVINGS).map(|halvings| 0.5f64.powi(halvings)).find_map(|length| {
        let trial = moved(&from.multipliers, length, &direction);
        let change = trial.iter().zip(&from.multipliers).map(|(to, from)| to - from);
        let rise: f64 = change.zip(&gradient).map(|(change, g)| change * g).sum();
        record.count(1, 0);
        let enough = from.bound() * (1.0 - ROUNDING) + SUFFICIENT_RISE * rise;
        RowSpacePoint::new(&problem.root, &trial).filter(|next| next.bound() >= enough)
    })
}
