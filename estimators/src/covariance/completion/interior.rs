//! Solves one connected component: a primal-dual interior-point method with one unknown per
//! measured entry.
//!
//! With the measurements y_jk of precision λ_jk, (j, k) ∈ S, barrier weight μ > 0 and W, M ≻ 0,
//!
//! ```text
//! min_W  ½ Σ_S λ_jk (W_jk − y_jk)² − μ log|W|      is solved by      W M = μI,   M_jk = 0 off S,
//!        W_jj = y_jj + M_jj/λ_jj,   W_jk = y_jk + 2 M_jk/λ_jk  (j ≠ k)
//! ```
//!
//! M = μW⁻¹ is the multiplier of W ⪰ 0, and M/μ is the precision matrix: at every iterate its
//! sparsity is exactly that of S. So a Newton step (Helmberg, Rendl, Vanderbei & Wolkowicz 1996,
//! Kojima et al. 1997 and Monteiro 1997, with Mehrotra's predictor and corrector) is a linear
//! system in the |S| entries of M, not in the d(d+1)/2 of W:
//!
//! ```text
//! Σ_b (tr(B_a W B_b M⁻¹) + [a = b] c_a) Δ_b = ⟨B_a, μM⁻¹ − ΔWΔM M⁻¹⟩ − ŷ_a − c_a M_a
//! ```
//!
//! As μ falls, (W, M) follows the central path. If the measurements have a positive definite
//! completion, the path ends at the one of maximum entropy. Otherwise it ends at the limit of the
//! entropy-regularised solutions (the paper's Σ*). μ has the unit of the log-likelihood: for m
//! columns the objective is within mμ of the optimum.
//!
//! Beyond [`MAX_FACTORED_ENTRIES`] entries, conjugate gradients solve the system with two matrix
//! products per iteration.
//!
//! # Linear algebra
//! The dense operations of the interior-point method run on one thread, so equal inputs give equal
//! bits for any number of workers.

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt::factor::{cholesky_in_place, cholesky_in_place_scratch};
use faer::linalg::matmul::matmul;
use faer::linalg::triangular_solve::{solve_lower_triangular_in_place, solve_upper_triangular_in_place};
use faer::{Accum, Mat, MatRef, Par};

/// Largest number of entries for which the Newton system is factored.
const MAX_FACTORED_ENTRIES: usize = 1600;

/// Maximum number of Newton steps; about fifteen are typical.
const MAX_NEWTON_STEPS: usize = 80;

/// Distance of WM/μ from I at the end of the path, unless rounding stops earlier.
const CENTRED_TOLERANCE: f64 = 1e-10;

/// As [`CENTRED_TOLERANCE`], for intermediate targets: those whose μ is at least this.
const COARSE_TOLERANCE: f64 = 1e-5;

/// Fraction of the distance to the boundary that a step covers.
const TO_THE_BOUNDARY: f64 = 0.95;

/// A measured entry, row ≥ column: its value, and the inverse variance of its noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MeasuredEntry {
    pub(super) row: usize,
    pub(super) column: usize,
    pub(super) value: f64,
    pub(super) precision: f64,
}

impl MeasuredEntry {
    fn diagonal(&self) -> bool {
        self.row == self.column
    }

    /// Weight of an entry in B_a = e_j e_kᵀ + e_k e_jᵀ: 1 on the diagonal, else 2.
    fn weight(&self) -> f64 {
        if self.diagonal() { 1.0 } else { 2.0 }
    }

    /// c_a in ⟨B_a, W⟩ = ŷ_a + c_a M_a.
    fn slack(&self) -> f64 {
        self.weight() * self.weight() / self.precision
    }
}

/// A point of the central path: W and M, both positive definite.
#[derive(Clone, Debug)]
pub(super) struct PathPoint {
    pub(super) covariance: Mat<f64>,
    pub(super) multiplier: Mat<f64>,
}

impl PathPoint {
    /// Returns the point of a single column on its central path: λ(W − y) = μ/W.
    pub(super) fn single(value: f64, precision: f64, barrier: f64) -> Self {
        let root = (value * value + 4.0 * barrier / precision).sqrt();
        // Choose the form without cancellation.
        let covariance = match value > 0.0 {
            true => (value + root) / 2.0,
            false => 2.0 * barrier / precision / (root - value),
        };
        let scalar = |value| Mat::from_fn(1, 1, |_, _| value);
        PathPoint { covariance: scalar(covariance), multiplier: scalar(barrier / covariance) }
    }

    /// Joins points of different components, without correlation between them.
    pub(super) fn block_diagonal(points: &[&PathPoint]) -> Self {
        let size = points.iter().map(|point| point.covariance.nrows()).sum();
        let block_diagonal = |matrix: fn(&PathPoint) -> &Mat<f64>| {
            let (mut joint, mut start) = (Mat::zeros(size, size), 0);
            for part in points.iter().map(|point| matrix(point)) {
                joint.as_mut().submatrix_mut(start, start, part.nrows(), part.nrows()).copy_from(part);
                start += part.nrows();
            }
            joint
        };
        PathPoint {
            covariance: block_diagonal(|point| &point.covariance),
            multiplier: block_diagonal(|point| &point.multiplier),
        }
    }

    /// ⟨W, M⟩/m: the μ of the nearest point of the path.
    fn barrier(&self) -> f64 {
        inner(&self.covariance, &self.multiplier) / self.covariance.nrows() as f64
    }
}

/// The end of a path and a start for a later one.
pub(super) struct Solution {
    pub(super) end: PathPoint,
    /// The last point with at least the requested μ.
    pub(super) begin: PathPoint,
    pub(super) steps: usize,
}

/// Follows the central path from `start` to `target` and keeps the last point with μ ≥ `warm`.
pub(super) fn follow(entries: &[MeasuredEntry], start: PathPoint, target: f64, warm: f64) -> Solution {
    let mut path = CentralPath { entries, begin: start.clone(), point: start };
    let scale = entries.iter().fold(0.0, |scale: f64, entry| scale.max(entry.value.abs()));
    let tolerance = if target < COARSE_TOLERANCE { CENTRED_TOLERANCE } else { COARSE_TOLERANCE };
    let (mut steps, mut off_centre) = (0, f64::INFINITY);
    while steps < MAX_NEWTON_STEPS {
        let barrier = path.point.barrier();
        if barrier >= warm {
            path.begin = path.point.clone();
        }
        let near = barrier <= target * 1.5 && path.residual() <= 1e-11 * scale;
        if near {
            let before = std::mem::replace(&mut off_centre, path.off_centre(target));
            if off_centre <= tolerance || off_centre > before / 2.0 {
                break;
            }
        }
        if path.step(target, near).is_none() {
            break;
        }
        steps += 1;
    }
    Solution { end: path.point, begin: path.begin, steps }
}

struct CentralPath<'a> {
    entries: &'a [MeasuredEntry],
    point: PathPoint,
    begin: PathPoint,
}

/// ΔW and ΔM.
struct NewtonDirection {
    covariance: Mat<f64>,
    multiplier: Mat<f64>,
}

impl CentralPath<'_> {
    /// Largest |W_jk − y_jk − c M_jk| over the measured entries.
    fn residual(&self) -> f64 {
        let PathPoint { covariance, multiplier } = &self.point;
        let off = self.entries.iter().map(|entry| {
            let at = (entry.row, entry.column);
            let shift = entry.slack() / entry.weight() * multiplier[at];
            (covariance[at] - entry.value - shift).abs()
        });
        off.fold(0.0, f64::max)
    }

    /// Largest entry of WM/μ − I.
    fn off_centre(&self, barrier: f64) -> f64 {
        let product = product(self.point.covariance.as_ref(), self.point.multiplier.as_ref());
        let size = product.nrows();
        let off = (0..size)
            .flat_map(|j| (0..size).map(move |i| (i, j)))
            .map(|at| (product[at] / barrier - if at.0 == at.1 { 1.0 } else { 0.0 }).abs());
        off.fold(0.0, f64::max)
    }

    /// Takes one step towards `target`, directly if it is near. `None` if rounding allows no
    /// progress.
    fn step(&mut self, target: f64, near: bool) -> Option<()> {
        let inverse = inverse(&cholesky(self.point.multiplier.clone())?);
        let system = NewtonSystem::new(self.entries, &self.point.covariance, &inverse)?;
        let barrier = self.point.barrier();
        let direction = if near {
            self.direction(&system, &inverse, target, None)?
        } else {
            let predictor = self.direction(&system, &inverse, 0.0, None)?;
            let reach = self.reach(&predictor)?;
            let ahead = self.at(&predictor, reach).barrier();
            let aim = (barrier * (ahead / barrier).clamp(0.0, 1.0).powi(3)).max(target);
            self.direction(&system, &inverse, aim, Some(&predictor))?
        };
        let reach = self.reach(&direction)?;
        self.point = self.at(&direction, reach);
        Some(())
    }

    fn direction(
        &self,
        system: &NewtonSystem<'_>,
        inverse: &Mat<f64>,
        barrier: f64,
        predictor: Option<&NewtonDirection>,
    ) -> Option<NewtonDirection> {
        let PathPoint { covariance, multiplier } = &self.point;
        let second_order = predictor.map(|by| {
            let square = product(by.covariance.as_ref(), by.multiplier.as_ref());
            symmetric_part(product(square.as_ref(), inverse.as_ref()))
        });
        let second = |at| second_order.as_ref().map_or(0.0, |second: &Mat<f64>| second[at]);
        let right: Vec<f64> = self
            .entries
            .iter()
            .map(|entry| {
                let at = (entry.row, entry.column);
                entry.weight() * (barrier * inverse[at] - second(at) - entry.value)
                    - entry.slack() * multiplier[at]
            })
            .collect();
        let size = covariance.nrows();
        let change = spread(self.entries, &system.solve(&right)?, size);
        let turned = product(product(covariance.as_ref(), change.as_ref()).as_ref(), inverse.as_ref());
        let turned = symmetric_part(turned);
        let shift = Mat::from_fn(size, size, |i, j| {
            barrier * inverse[(i, j)] - covariance[(i, j)] - turned[(i, j)] - second((i, j))
        });
        Some(NewtonDirection { covariance: symmetric_part(shift), multiplier: change })
    }

    fn at(&self, direction: &NewtonDirection, step: f64) -> PathPoint {
        PathPoint {
            covariance: moved(&self.point.covariance, step, &direction.covariance),
            multiplier: moved(&self.point.multiplier, step, &direction.multiplier),
        }
    }

    /// Returns the step length that keeps both matrices positive definite.
    fn reach(&self, direction: &NewtonDirection) -> Option<f64> {
        let inside = |step: f64| {
            let PathPoint { covariance, multiplier } = self.at(direction, step);
            cholesky(covariance).is_some() && cholesky(multiplier).is_some()
        };
        if inside(1.0) {
            return Some(1.0);
        }
        let (mut low, mut high) = (0.0, 1.0);
        while high - low > 0.02 * high {
            let middle = if low > 0.0 { (low + high) / 2.0 } else { high / 2.0 };
            if inside(middle) {
                low = middle
            } else {
                high = middle
            }
            if high < 1e-8 {
                return None;
            }
        }
        Some(TO_THE_BOUNDARY * low)
    }
}

/// Returns the symmetric matrix with these entries.
fn spread(entries: &[MeasuredEntry], values: &[f64], size: usize) -> Mat<f64> {
    let mut matrix = Mat::zeros(size, size);
    for (entry, &value) in entries.iter().zip(values) {
        matrix[(entry.row, entry.column)] = value;
        matrix[(entry.column, entry.row)] = value;
    }
    matrix
}

/// The Newton system of a point: symmetric, positive definite.
enum NewtonSystem<'a> {
    Factored(Mat<f64>),
    Iterative {
        entries: &'a [MeasuredEntry],
        covariance: &'a Mat<f64>,
        inverse: &'a Mat<f64>,
        diagonal: Vec<f64>,
    },
}

impl<'a> NewtonSystem<'a> {
    fn new(entries: &'a [MeasuredEntry], covariance: &'a Mat<f64>, inverse: &'a Mat<f64>) -> Option<Self> {
        if entries.len() <= MAX_FACTORED_ENTRIES {
            return cholesky(newton_matrix(entries, covariance, inverse)).map(NewtonSystem::Factored);
        }
        let diagonal = entries.iter().map(|a| coefficient(a, a, covariance, inverse) + a.slack()).collect();
        Some(NewtonSystem::Iterative { entries, covariance, inverse, diagonal })
    }

    fn solve(&self, right: &[f64]) -> Option<Vec<f64>> {
        let solution = match self {
            NewtonSystem::Factored(factor) => solve(factor, right),
            NewtonSystem::Iterative { diagonal, .. } => {
                conjugate_gradients(|vector| self.times(vector), diagonal, right)
            }
        };
        solution.iter().all(|value| value.is_finite()).then_some(solution)
    }

    fn times(&self, vector: &[f64]) -> Vec<f64> {
        let NewtonSystem::Iterative { entries, covariance, inverse, .. } = self else { return Vec::new() };
        let change = spread(entries, vector, covariance.nrows());
        let turned = product(product(covariance.as_ref(), change.as_ref()).as_ref(), inverse.as_ref());
        let terms = entries.iter().zip(vector).map(|(entry, value)| {
            let (i, j) = (entry.row, entry.column);
            entry.weight() * (turned[(i, j)] + turned[(j, i)]) / 2.0 + entry.slack() * value
        });
        terms.collect()
    }
}

/// tr(B_a W B_b X).
fn coefficient(a: &MeasuredEntry, b: &MeasuredEntry, w: &Mat<f64>, x: &Mat<f64>) -> f64 {
    let (i, j, k, l) = (a.row, a.column, b.row, b.column);
    let sum = w[(j, k)] * x[(i, l)] + w[(j, l)] * x[(i, k)] + w[(i, k)] * x[(j, l)] + w[(i, l)] * x[(j, k)];
    sum * a.weight() * b.weight() / 4.0
}

/// Returns the lower triangle of the system.
fn newton_matrix(entries: &[MeasuredEntry], w: &Mat<f64>, x: &Mat<f64>) -> Mat<f64> {
    let size = entries.len();
    let mut matrix = Mat::zeros(size, size);
    for (position, b) in entries.iter().enumerate() {
        let (wk, wl) = (w.col_as_slice(b.row), w.col_as_slice(b.column));
        let (xk, xl) = (x.col_as_slice(b.row), x.col_as_slice(b.column));
        let column = &mut matrix.col_as_slice_mut(position)[position..];
        for (target, a) in column.iter_mut().zip(&entries[position..]) {
            let (i, j) = (a.row, a.column);
            let sum = wk[j] * xl[i] + wl[j] * xk[i] + wk[i] * xl[j] + wl[i] * xk[j];
            *target = sum * a.weight() * b.weight() / 4.0;
        }
        column[0] += b.slack();
    }
    matrix
}

/// Solves a positive definite system by conjugate gradients with diagonal preconditioning, to
/// twelve digits or as far as rounding allows.
fn conjugate_gradients(times: impl Fn(&[f64]) -> Vec<f64>, diagonal: &[f64], right: &[f64]) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let scaled = |r: &[f64]| r.iter().zip(diagonal).map(|(r, d)| r / d).collect::<Vec<f64>>();
    let (mut solution, mut residual) = (vec![0.0; right.len()], right.to_vec());
    let mut search = scaled(&residual);
    let mut size = dot(&residual, &search);
    let tolerance = size * 1e-24;
    for _ in 0..right.len().min(2000) {
        let image = times(&search);
        let step = size / dot(&search, &image);
        if !step.is_finite() {
            break;
        }
        solution.iter_mut().zip(&search).for_each(|(x, p)| *x += step * p);
        residual.iter_mut().zip(&image).for_each(|(r, q)| *r -= step * q);
        let ahead = scaled(&residual);
        let next = dot(&residual, &ahead);
        if next <= tolerance {
            break;
        }
        search.iter_mut().zip(&ahead).for_each(|(p, z)| *p = z + next / size * *p);
        size = next;
    }
    solution
}

/// Returns the lower-triangular L with L Lᵀ = matrix, from the lower triangle; `None` unless the
/// matrix is positive definite.
pub(super) fn cholesky(mut matrix: Mat<f64>) -> Option<Mat<f64>> {
    let size = matrix.nrows();
    let scratch = cholesky_in_place_scratch::<f64>(size, Par::Seq, Default::default());
    let mut memory = MemBuffer::new(scratch);
    let stack = MemStack::new(&mut memory);
    cholesky_in_place(matrix.as_mut(), Default::default(), Par::Seq, stack, Default::default()).ok()?;
    for j in 0..size {
        matrix.col_as_slice_mut(j)[..j].fill(0.0);
    }
    (0..size).all(|j| matrix[(j, j)].is_normal()).then_some(matrix)
}

/// (L Lᵀ)⁻¹.
pub(super) fn inverse(factor: &Mat<f64>) -> Mat<f64> {
    let mut root = Mat::identity(factor.nrows(), factor.nrows());
    solve_lower_triangular_in_place(factor.as_ref(), root.as_mut(), Par::Seq);
    product(root.transpose(), root.as_ref())
}

/// (L Lᵀ)⁻¹ · right.
pub(super) fn solve(factor: &Mat<f64>, right: &[f64]) -> Vec<f64> {
    let mut solution = Mat::from_fn(right.len(), 1, |i, _| right[i]);
    solve_lower_triangular_in_place(factor.as_ref(), solution.as_mut(), Par::Seq);
    solve_upper_triangular_in_place(factor.transpose(), solution.as_mut(), Par::Seq);
    solution.col_as_slice(0).to_vec()
}

pub(super) fn product(left: MatRef<'_, f64>, right: MatRef<'_, f64>) -> Mat<f64> {
    let mut product = Mat::zeros(left.nrows(), right.ncols());
    matmul(product.as_mut(), Accum::Replace, left, right, 1.0, Par::Seq);
    product
}

/// (A + Aᵀ)/2.
pub(super) fn symmetric_part(mut matrix: Mat<f64>) -> Mat<f64> {
    for j in 0..matrix.ncols() {
        for i in 0..j {
            let middle = (matrix[(i, j)] + matrix[(j, i)]) / 2.0;
            (matrix[(i, j)], matrix[(j, i)]) = (middle, middle);
        }
    }
    matrix
}

/// Σ a_ij b_ij.
pub(super) fn inner(a: &Mat<f64>, b: &Mat<f64>) -> f64 {
    let columns = (0..a.ncols()).map(|j| (a.col_as_slice(j), b.col_as_slice(j)));
    columns.map(|(a, b)| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>()).sum()
}

/// a + step·b.
pub(super) fn moved(a: &Mat<f64>, step: f64, b: &Mat<f64>) -> Mat<f64> {
    let mut moved = a.clone();
    for j in 0..a.ncols() {
        let column = moved.col_as_slice_mut(j).iter_mut().zip(b.col_as_slice(j));
        column.for_each(|(a, b)| *a += step * b);
    }
    moved
}
