//! Optimal strategies for cells, prefixes and all ranges, in time linear in the cells for each step
//! of the search.
//!
//! # Structure
//! For these workloads V = c·T⁻¹ with a tridiagonal T: the matrix of a path of resistors, whose
//! nodes are the cells. For multipliers u > 0 of the cells, U = diag(u) and S = U^(−½)TU^(−½),
//!
//! ```text
//! X  = U^(−½)S^(−½)U^(−½) = Σ ω (T + tU)⁻¹     the best Gram matrix for u, up to its scale
//! tr(VX⁻¹)·Σu ≥ tr(VX⁻¹)·tr(UX) ≥ c·(tr S^(−½))²     for every X with a diagonal of at most 1
//! ```
//!
//! The second line is the lower bound (Cauchy and Schwarz), with equality for this X when its
//! diagonal is constant. The [`Quadrature`] gives ω and t. An entry of (T + tU)⁻¹ is a product of
//! ratios of conductances along the path, all positive, so nothing cancels.
//!
//! # Search
//! u ← u∘diag(X) is the fixed point of Denisov et al. 2022; a power of diag(X) gets there in fewer
//! steps. The relative gap between error and bound is the largest entry of diag(X), divided by the
//! mean of its entries with weights u, minus 1. The search ends at a gap of [`GAP`].
//!
//! # Factor
//! X is a sum of J products, so its Cholesky factor is too: a recursion of J×J matrices along the
//! path (Riccati) gives the rows of C, and every entry is a sum of J terms.
//!
//! # Noise of answers
//! With D the differences along the path, T = DDᵀ and the prefix sums have the covariance
//! (DᵀU⁻¹D)^(−½) = Σ ω (DᵀU⁻¹D + t)⁻¹: a path again, whose nodes are the borders of cells.

use super::quadrature::Quadrature;
use super::{QueryError, QueryWorkload};

/// Relative gap between the error and the lower bound at which the search ends.
const GAP: f64 = 1e-8;

/// Maximum number of steps of the search.
const MAX_STEPS: usize = 2000;

/// Exponent of diag(X) in a step. Steps with an exponent below 2 converge. Prefixes of 1,000 cells
/// take 109 steps, and 179 with an exponent of 1.
const EXPONENT: f64 = 1.6;

/// Products below this share of the largest are dropped: far below the rounding of integers.
const DROPPED: f64 = 1e-40;

/// Resistors along a path of nodes and from each node to the ground, by their conductances.
struct Path {
    /// Between each node and the next.
    edges: Vec<f64>,
    /// From each node to the ground.
    ground: Vec<f64>,
}

/// The inverse of the matrix of a [`Path`]: for i ≤ j, entry ij is
/// `ratios[i]·…·ratios[j−1]·diagonal[j]`.
struct PathInverse {
    ratios: Vec<f64>,
    diagonal: Vec<f64>,
}

impl Path {
    /// The inverse after conductances to the ground are added.
    fn inverse(&self, added: impl Fn(usize) -> f64) -> PathInverse {
        let n = self.ground.len();
        let ground = |node: usize| self.ground[node] + added(node);
        // The conductance to the ground of an edge and the path behind it.
        let through = |edge: f64, behind: f64| edge * behind / (edge + behind);
        let (mut ratios, mut diagonal) = (vec![0.0; n - 1], vec![ground(0); n]);
        for node in 1..n {
            let (edge, before) = (self.edges[node - 1], diagonal[node - 1]);
            ratios[node - 1] = edge / (edge + before);
            diagonal[node] = ground(node) + through(edge, before);
        }
        let mut behind = 0.0;
        for node in (0..n).rev() {
            let right = if node + 1 < n { through(self.edges[node], behind) } else { 0.0 };
            diagonal[node] = (diagonal[node] + right).recip();
            behind = ground(node) + right;
        }
        PathInverse { ratios, diagonal }
    }
}

/// The certified optimum of a workload on a path.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PathOptimum {
    workload: QueryWorkload,
    /// u, with a mean of 1.
    multipliers: Vec<f64>,
    quadrature: Quadrature,
    /// The diagonal of X, and its largest entry, by which X is divided.
    diagonal: Vec<f64>,
    scale: f64,
    /// Σ u∘diag(X): tr S^(−½).
    trace: f64,
    /// Relative error of the quadrature, as [`Quadrature::error`] measures it.
    inexact: f64,
}

impl PathOptimum {
    /// Finds the optimum; `None` for a workload that is not on a path.
    pub(super) fn new(workload: &QueryWorkload) -> Option<Self> {
        let mut found = Self::at(workload, vec![1.0; workload.cells()])?;
        for _ in 0..MAX_STEPS {
            if found.gap() <= GAP {
                break;
            }
            let n = found.diagonal.len() as f64;
            let raised = found.multipliers.iter().zip(&found.diagonal);
            let raised: Vec<f64> = raised.map(|(u, x)| u * x.powf(EXPONENT)).collect();
            let mean = raised.iter().sum::<f64>() / n;
            found = Self::at(workload, raised.iter().map(|u| u / mean).collect())?;
        }
        found.inexact = found.quadrature.error();
        Some(found)
    }

    /// The best strategy for given multipliers with a mean of 1.
    fn at(workload: &QueryWorkload, multipliers: Vec<f64>) -> Option<Self> {
        let (path, least) = cells(workload)?;
        let of = |pick: fn(f64, f64) -> f64, start| multipliers.iter().copied().fold(start, pick);
        // The eigenvalues of T are from `least` to 4.
        let interval = (least / of(f64::max, 0.0), 4.0 / of(f64::min, f64::INFINITY));
        let quadrature = Quadrature::inverse_root(interval.0, interval.1);
        let mut diagonal = vec![0.0; multipliers.len()];
        for (shift, weight) in quadrature.shifts.iter().zip(&quadrature.weights) {
            let inverse = path.inverse(|cell| shift * multipliers[cell]);
            diagonal.iter_mut().zip(&inverse.diagonal).for_each(|(sum, entry)| *sum += weight * entry);
        }
        let trace = diagonal.iter().zip(&multipliers).map(|(x, u)| x * u).sum();
        let scale = diagonal.iter().copied().fold(0.0, f64::max);
        let workload = workload.clone();
        Some(Self { workload, multipliers, quadrature, diagonal, scale, trace, inexact: 0.0 })
    }

    /// Returns the error of V^(1/4), the strategy for which all multipliers are equal.
    pub(super) fn spectral_error(workload: &QueryWorkload) -> Option<f64> {
        Self::at(workload, vec![1.0; workload.cells()]).map(|found| found.error().0)
    }

    fn gap(&self) -> f64 {
        self.scale * self.multipliers.len() as f64 / self.trace - 1.0
    }

    /// The squared error tr(VX⁻¹) = c·tr S^(−½)·scale at σ = 1, and the lower bound of all
    /// strategies, both with a margin for the quadrature.
    pub(super) fn error(&self) -> (f64, f64) {
        let n = self.multipliers.len() as f64;
        let factor = if matches!(self.workload, QueryWorkload::AllRanges(_)) { n + 1.0 } else { 1.0 };
        let margin = 3.0 * self.inexact;
        let error = factor * self.trace * self.scale * (1.0 + margin);
        (error, factor * self.trace.powi(2) / n * (1.0 - margin))
    }

    /// The diagonal of CᵀC.
    pub(super) fn squared_norms(&self) -> impl Iterator<Item = f64> {
        self.diagonal.iter().map(|entry| entry / self.scale)
    }

    /// Calls `row` with each row of the lower triangular C, from its diagonal entry backwards; the
    /// last row first.
    ///
    /// # Errors
    /// [`QueryError::Numerical`] if rounding makes X singular.
    pub(super) fn rows(&self, mut row: impl FnMut(usize, &[f64])) -> Result<(), QueryError> {
        let (path, _) = cells(&self.workload).ok_or(QueryError::Numerical)?;
        let (n, terms) = (self.multipliers.len(), self.quadrature.shifts.len());
        // For each cell the ratio to the next one, and ω times the diagonal, of each term.
        let (mut ratios, mut outputs) = (vec![0.0; n * terms], vec![0.0; n * terms]);
        for (term, (shift, weight)) in self.quadrature.shifts.iter().zip(&self.quadrature.weights).enumerate()
        {
            let inverse = path.inverse(|cell| shift * self.multipliers[cell]);
            for (cell, diagonal) in inverse.diagonal.iter().enumerate() {
                outputs[cell * terms + term] = weight / self.scale * diagonal;
                ratios[cell * terms + term] = inverse.ratios.get(cell).copied().unwrap_or(0.0);
            }
        }
        let (ones, mut covariance) = (vec![1.0; terms], vec![0.0; terms * terms]);
        let mut entries = Vec::with_capacity(n);
        for cell in (0..n).rev() {
            let output = &outputs[cell * terms..][..terms];
            let known: Vec<f64> =
                covariance.chunks_exact(terms).map(|entries| entries.iter().sum::<f64>()).collect();
            let square = output.iter().sum::<f64>() - known.iter().sum::<f64>();
            if square.is_nan() || square <= 0.0 {
                return Err(QueryError::Numerical);
            }
            let mut state: Vec<f64> =
                output.iter().zip(&known).map(|(output, known)| (output - known) / square.sqrt()).collect();
            if let Some(before) = cell.checked_sub(1) {
                let ratios = &ratios[before * terms..][..terms];
                for (i, entries) in covariance.chunks_exact_mut(terms).enumerate() {
                    for (j, entry) in entries.iter_mut().enumerate() {
                        *entry = ratios[i] * ratios[j] * (*entry + state[i] * state[j]);
                    }
                }
            }
            entries.clear();
            entries.push(square.sqrt());
            for ratios in ratios[..cell * terms].rchunks_exact(terms) {
                entries.push(advance(&mut state, ratios, &ones));
            }
            row(cell, &entries);
        }
        Ok(())
    }

    /// The variance of each answer at σ = 1, raised for the quadrature.
    pub(super) fn variances(&self) -> Vec<f64> {
        let conductances: Vec<f64> = self.multipliers.iter().map(|u| u.recip()).collect();
        let n = conductances.len();
        let path = match self.workload {
            QueryWorkload::Cells(_) => Path { edges: vec![0.0; n - 1], ground: conductances },
            QueryWorkload::Prefixes(_) => {
                let ground = (0..n).map(|border| if border == 0 { conductances[0] } else { 0.0 }).collect();
                Path { edges: conductances[1..].to_vec(), ground }
            }
            _ => Path { edges: conductances, ground: vec![0.0; n + 1] },
        };
        let borders = path.ground.len();
        let terms = self.quadrature.shifts.len();
        let (mut ratios, mut outputs) = (vec![0.0; borders * terms], vec![0.0; borders * terms]);
        let mut diagonal = vec![0.0; borders];
        for (term, (shift, weight)) in self.quadrature.shifts.iter().zip(&self.quadrature.weights).enumerate()
        {
            let inverse = path.inverse(|_| *shift);
            for (border, (sum, entry)) in diagonal.iter_mut().zip(&inverse.diagonal).enumerate() {
                let output = weight * entry;
                *sum += output;
                outputs[border * terms + term] = output;
                ratios[border * terms + term] = inverse.ratios.get(border).copied().unwrap_or(0.0);
            }
        }
        let factor = self.scale * (1.0 + 3.0 * self.inexact);
        if borders == n {
            return diagonal.into_iter().map(|variance| variance * factor).collect();
        }
        // The order of the answers: by the first cell, then by the border after the last one.
        let mut variances = Vec::with_capacity(n * (n + 1) / 2);
        for first in 0..n {
            let mut state = vec![1.0; terms];
            let after = ratios[first * terms..]
                .chunks_exact(terms)
                .zip(outputs[first * terms..].chunks_exact(terms).skip(1));
            for ((ratios, outputs), variance) in after.zip(&diagonal[first + 1..]) {
                let shared = advance(&mut state, ratios, outputs);
                variances.push((diagonal[first] + variance - 2.0 * shared).max(0.0) * factor);
            }
        }
        variances
    }
}

/// Multiplies each term by its ratio and returns their sum by weights.
fn advance(state: &mut [f64], ratios: &[f64], weights: &[f64]) -> f64 {
    let mut sums = [0.0; 4];
    for ((state, ratios), weights) in state.chunks_mut(4).zip(ratios.chunks(4)).zip(weights.chunks(4)) {
        for (((state, ratio), weight), sum) in state.iter_mut().zip(ratios).zip(weights).zip(&mut sums) {
            let next = *state * ratio;
            // Denormal numbers would take most of the time.
            *state = if next.abs() < DROPPED { 0.0 } else { next };
            *sum += *state * weight;
        }
    }
    sums.iter().sum()
}

/// The path of T and a lower bound of its eigenvalues, which are at most 4.
fn cells(workload: &QueryWorkload) -> Option<(Path, f64)> {
    let n = workload.cells();
    let angle = |parts: f64| 4.0 * (std::f64::consts::FRAC_PI_2 / parts).sin().powi(2);
    let (edge, grounded, least): (f64, fn(usize, usize) -> bool, f64) = match workload {
        QueryWorkload::Cells(_) => (0.0, |_, _| true, 1.0),
        QueryWorkload::Prefixes(_) => (1.0, |cell, n| cell + 1 == n, angle(2.0 * n as f64 + 1.0)),
        QueryWorkload::AllRanges(_) => (1.0, |cell, n| cell == 0 || cell + 1 == n, angle(n as f64 + 1.0)),
        QueryWorkload::Matrix(_) => return None,
    };
    let both_ends = matches!(workload, QueryWorkload::AllRanges(1));
    let ground = |cell| if both_ends { 2.0 } else { f64::from(u8::from(grounded(cell, n))) };
    Some((Path { edges: vec![edge; n - 1], ground: (0..n).map(ground).collect() }, least * (1.0 - 1e-9)))
}
