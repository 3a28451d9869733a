//! The dual of the optimal-strategy problem, and its Newton step.
//!
//! Consider the Gram matrices X = CᵀC with `Σ_(i,j ∈ π) X_ij ≤ 1` for every pattern π, whose
//! entries between different steps of a pattern vanish or, if patterns overlap, are non-negative.
//! The least total squared error tr(V X⁻¹) over them is the largest value of
//! `2 tr(Rᵀ V R)^(1/2) − Σ_π v_π` over U = R Rᵀ ≥ 0. U is block-diagonal over the classes and made
//! of multipliers (v, w) as in [`Patterns`](super::classes::Patterns). See Choquette-Choo et al.
//! 2023, Theorem 3.1, and for classes of one step Yuan et al. 2016, Lemma 3, as corrected. If X_ij
//! must vanish, w_ij may have any sign; then v needs no bound either, as it is the diagonal of U.
//! If patterns overlap both must be non-negative: [`Interior`](super::search::Interior).
//!
//! U may be scaled, so every U gives the lower bound `(tr(Rᵀ V R)^(1/2))² / Σ v_π`. X(U) = R⁻ᵀ (Rᵀ
//! V R)^(1/2) R⁻¹ nearly satisfies the constraints when U is nearly optimal. With Rᵀ V R = Q
//! diag(s²) Qᵀ and T = R⁻ᵀ Q, the derivative of X(U) along D is `−T (K ∘ (Tᵀ D T)) Tᵀ`, K_ab = s_a
//! s_b / (s_a + s_b).
//!
//! # Preconditioner
//! Newton's equation is preconditioned by an approximate inverse of the dual's curvature in the
//! multipliers.
//!
//! Without restricting D to matrices of multipliers, D ↦ dX(U) has the inverse G ↦ −(Z G U + U G
//! Z), Z = X⁻¹. For block-diagonal G it needs only the blocks of Z. Restricted to the multipliers
//! this is P, an approximate inverse of the curvature H. The interior-point method adds a diagonal
//! Θ to H, and `(P⁻¹ + Θ)⁻¹ = P − P (Θ⁻¹ + P)⁻¹ P` needs a factorisation only for constraints with
//! a large Θ.

use super::algebra::{Eigen, conjugate_gradients, dot, plus};
use super::classes::{Blocks, Classes, Patterns};
use super::search::Interior;
use super::{algebra, classes};
use faer::linalg::solvers::{Llt, Solve};
use faer::{Mat, MatRef, Side};
use std::ops::Range;

/// Limit of conjugate-gradient steps, each two half products; beyond it a new eigendecomposition is
/// cheaper.
const CONJUGATE_GRADIENT_STEPS: usize = 60;

/// The preconditioner raises eigenvalues of X(U) to at least this fraction of the largest.
const PRECONDITIONER_FLOOR: f64 = 1e-9;

/// Minimum energy of a residual, relative to the bound, that conjugate gradients reach despite
/// rounding.
const LEAST_ENERGY: f64 = 1e-26;

/// A point U of the dual, scaled so that its value is the best along its ray, with V in its
/// coordinates.
pub(super) struct DualPoint {
    /// v and w.
    pub(super) multipliers: Vec<f64>,
    /// U.
    matrices: Blocks,
    /// R, lower triangular.
    roots: Blocks,
    inverse_roots: Blocks,
    /// s.
    values: Vec<f64>,
    /// Q.
    vectors: Mat<f64>,
    /// Σ v.
    total: f64,
}

impl DualPoint {
    /// Returns `None` unless U is positive definite. Otherwise costs one eigendecomposition.
    /// `weight` is the interior-point method's weight of the logarithm of the scale, or 0.
    pub(super) fn new(
        form: MatRef<'_, f64>,
        classes: &Classes,
        multipliers: &[f64],
        weight: f64,
    ) -> Option<Self> {
        let matrices = classes.matrices(multipliers);
        let roots: Blocks =
            matrices.iter().map(|block| algebra::cholesky(block.as_ref())).collect::<Option<_>>()?;
        let half = classes.times(form, &roots);
        let Eigen { values, vectors } = algebra::eigen(classes.times(half.transpose(), &roots).as_ref())?;
        let values: Vec<f64> = values.into_iter().map(f64::sqrt).collect();
        let total = dot(multipliers, &classes.limits());
        let sum = values.iter().sum::<f64>();
        let scale = (sum + (sum * sum + 4.0 * total * weight).sqrt()) / (2.0 * total);
        let inverse = |root: &Mat<f64>| {
            let identity = Mat::<f64>::identity(root.nrows(), root.nrows());
            algebra::solve_lower((root * faer::Scale(scale)).as_ref(), identity.as_ref())
        };
        Some(Self {
            multipliers: multipliers.iter().map(|multiplier| multiplier * scale * scale).collect(),
            matrices: classes::scaled(&matrices, scale * scale),
            inverse_roots: roots.iter().map(inverse).collect(),
            roots: classes::scaled(&roots, scale),
            values: values.into_iter().map(|value| value * scale).collect(),
            vectors,
            total: total * scale * scale,
        })
    }

    pub(super) fn bound(&self) -> f64 {
        self.values.iter().sum::<f64>().powi(2) / self.total
    }

    /// The objective of the search.
    pub(super) fn value(&self, interior: Option<&Interior>) -> f64 {
        interior.map_or_else(
            || self.bound(),
            |interior| 2.0 * self.values.iter().sum::<f64>() - self.total + interior.value(&self.multipliers),
        )
    }

    /// X(U).
    pub(super) fn gram(&self, classes: &Classes) -> Mat<f64> {
        let mut half = self.transform(classes);
        algebra::scale_rows(&mut half, &self.values.iter().map(|s| s.sqrt()).collect::<Vec<_>>());
        algebra::gram(half.as_ref())
    }

    /// Tᵀ.
    fn transform(&self, classes: &Classes) -> Mat<f64> {
        classes.times(self.vectors.transpose(), &self.inverse_roots)
    }

    /// Returns the ascent direction from Newton's equation, by preconditioned conjugate gradients.
    /// The accuracy is the expected gain of the step, but no finer than `target` relative to the
    /// bound; with an interior-point method it makes X(U) as feasible as the weight of the barrier
    /// allows.
    pub(super) fn newton_direction(
        &self,
        gram: &Mat<f64>,
        classes: &Classes,
        target: f64,
        interior: Option<&Interior>,
    ) -> AscentDirection {
        let curvature = Curvature { transform: self.transform(classes), values: &self.values, classes };
        let stiffness = interior.map(|interior| interior.stiffness(&self.multipliers));
        let preconditioner =
            Preconditioner::new(classes, &self.matrices, self.inverse_gram(classes), stiffness.as_deref());
        let mut gradient = plus(&classes.adjoint(&classes.blocks_of(gram.as_ref())), -1.0, &classes.limits());
        if let Some(interior) = interior {
            gradient = plus(&gradient, 1.0, &interior.gradient(&self.multipliers));
        }
        let curved = |direction: &[f64]| {
            let curved = classes.adjoint(&curvature.apply(&classes.matrices(direction)));
            let stiff = |stiffness: &[f64]| {
                let terms = curved.iter().zip(stiffness).zip(direction);
                terms.map(|((curved, stiffness), step)| curved + stiffness * step).collect()
            };
            stiffness.as_deref().map_or_else(|| curved.clone(), stiff)
        };
        let bound = self.bound();
        let enough = |energy: f64| match interior {
            None => (energy * (energy / bound).min(0.01)).max(0.01 * target * bound).min(0.01 * energy),
            Some(interior) => {
                let gap = interior.weight * self.multipliers.len() as f64;
                (gap * gap / bound).max(LEAST_ENERGY * bound).min(0.01 * energy)
            }
        };
        let (ascent, steps) = conjugate_gradients(
            curved,
            |residual| preconditioner.apply(residual),
            &gradient,
            enough,
            CONJUGATE_GRADIENT_STEPS,
        );
        AscentDirection { rise: dot(&gradient, &ascent), ascent, conjugate_gradient_steps: steps }
    }

    /// Blocks of Z, for the preconditioner.
    fn inverse_gram(&self, classes: &Classes) -> Blocks {
        let largest = self.values.iter().fold(0.0, |largest: f64, &s| largest.max(s));
        let weight = |s: &f64| s.max(PRECONDITIONER_FLOOR * largest).sqrt().recip();
        let transposed: Blocks = self.roots.iter().map(|root| root.transpose().to_owned()).collect();
        let mut half = classes.times(self.vectors.transpose(), &transposed);
        algebra::scale_rows(&mut half, &self.values.iter().map(weight).collect::<Vec<_>>());
        classes.blocks_of_product(half.as_ref(), half.as_ref())
    }
}

pub(super) struct AscentDirection {
    pub(super) ascent: Vec<f64>,
    /// Slope of the value along `ascent`: twice the expected gain of a full step.
    pub(super) rise: f64,
    pub(super) conjugate_gradient_steps: usize,
}

/// Minus the second derivative of the dual.
pub(super) struct Curvature<'a> {
    /// Tᵀ.
    pub(super) transform: Mat<f64>,
    /// s.
    pub(super) values: &'a [f64],
    pub(super) classes: &'a Classes,
}

impl Curvature<'_> {
    /// K_ab.
    pub(super) fn weight(&self, a: usize, b: usize) -> f64 {
        harmonic(self.values[a], self.values[b])
    }

    /// Blocks of a matrix with the symmetric part `T (K ∘ (Tᵀ D T)) Tᵀ`. Only the lower triangle of
    /// the symmetric inner matrix is formed, with half its diagonal, so that both products are half
    /// ones.
    pub(super) fn apply(&self, direction: &Blocks) -> Blocks {
        let left = self.classes.times(self.transform.as_ref(), direction);
        let mut inner = algebra::lower_product(left.as_ref(), self.transform.transpose());
        for (b, s_b) in self.values.iter().enumerate() {
            let column = inner.col_as_slice_mut(b)[b..].iter_mut();
            column.zip(&self.values[b..]).for_each(|(entry, s_a)| *entry *= harmonic(*s_a, *s_b));
            inner[(b, b)] /= 2.0;
        }
        let right = algebra::lower_times(inner.as_ref(), self.transform.as_ref());
        let half = self.classes.blocks_of_product(self.transform.as_ref(), right.as_ref());
        classes::scaled(&half, 2.0)
    }
}

/// `s_a s_b / (s_a + s_b)`.
fn harmonic(s_a: f64, s_b: f64) -> f64 {
    let sum = s_a + s_b;
    if sum > 0.0 { s_a * (s_b / sum) } else { 0.0 }
}

/// Initial multipliers. For each pattern, U has the correlations of V in it, those of different
/// steps times 0.9, and all times `(Σ_π √V_jj)^(3/2)`. With the factor 1 and the exponent 2 they
/// would be exact for disjoint patterns if one pattern holds all steps or V is diagonal.
pub(super) fn start(form: MatRef<'_, f64>, classes: &Classes) -> Vec<f64> {
    let class = |((patterns, _), range): ((&Patterns, Range<usize>), &Range<usize>)| {
        let deviation: Vec<f64> = range.clone().map(|i| form[(i, i)].sqrt()).collect();
        let pattern =
            |first: usize| deviation[first..first + patterns.length()].iter().sum::<f64>().powf(1.5);
        let weights: Vec<f64> = (0..patterns.number()).map(pattern).collect();
        let pair = |(i, j): (usize, usize)| {
            let correlation = form[(range.start + i, range.start + j)] / (deviation[i] * deviation[j]);
            weights[patterns.holding(i, j)].iter().sum::<f64>() * (1.0 - 0.9 * correlation)
        };
        let pairs: Vec<f64> = patterns.pairs().map(pair).collect();
        [weights, pairs].concat()
    };
    classes.parts().zip(classes.ranges()).flat_map(class).collect()
}

/// The factorisation includes constraints whose Θ is at least this fraction of the curvature;
/// others are damped.
const HELD_FROM: f64 = 0.1;

/// Maximum number of pairs of a class in the factorisation.
const HELD_PAIRS: usize = 1024;

pub(super) struct Preconditioner<'a> {
    classes: &'a Classes,
    /// U.
    matrices: &'a Blocks,
    /// Blocks of Z.
    inverse_gram: Blocks,
    stiff: Option<Stiff>,
}

struct Stiff {
    /// Factors of residual and result, for constraints that are not held.
    damping: Vec<f64>,
    active: Vec<ActiveConstraints>,
}

/// Held constraints of one class, and the factorisation of Θ⁻¹ + P for them.
struct ActiveConstraints {
    indices: Vec<usize>,
    factor: Llt<f64>,
}

impl<'a> Preconditioner<'a> {
    pub(super) fn new(
        classes: &'a Classes,
        matrices: &'a Blocks,
        inverse_gram: Blocks,
        stiffness: Option<&[f64]>,
    ) -> Self {
        let stiff = stiffness.map(|stiffness| Stiff::new(classes, &inverse_gram, matrices, stiffness));
        Self { classes, matrices, inverse_gram, stiff }
    }

    pub(super) fn apply(&self, residual: &[f64]) -> Vec<f64> {
        let Some(Stiff { damping, active }) = &self.stiff else { return self.unconstrained(residual) };
        let damped = |residual: &[f64]| times(&self.unconstrained(&times(residual, damping)), damping);
        let first = damped(residual);
        let mut rest = residual.to_vec();
        for ActiveConstraints { indices, factor } in active {
            let solved = factor.solve(Mat::from_fn(indices.len(), 1, |row, _| first[indices[row]]));
            indices.iter().enumerate().for_each(|(row, &index)| rest[index] -= solved[(row, 0)]);
        }
        damped(&rest)
    }

    /// P.
    fn unconstrained(&self, residual: &[f64]) -> Vec<f64> {
        let lifted = self.classes.lifted(residual);
        let blocks = self.inverse_gram.iter().zip(&lifted).zip(self.matrices);
        let product = blocks.map(|((z, g), u)| faer::Scale(2.0) * (z * g) * u).collect();
        self.classes.solved(&product)
    }
}

impl Stiff {
    fn new(classes: &Classes, inverse_gram: &Blocks, matrices: &Blocks, stiffness: &[f64]) -> Self {
        let mut damping = vec![1.0; stiffness.len()];
        let blocks = classes.parts().zip(inverse_gram).zip(matrices);
        let active = blocks.filter_map(|(((patterns, part), z), u)| {
            let pairs = held_pairs(patterns, z, u, &stiffness[part.clone()], &mut damping[part.clone()]);
            ActiveConstraints::new(patterns, &pairs, z, u, part, stiffness)
        });
        Self { active: active.collect(), damping }
    }
}

/// Returns the held pairs, each with its index among the multipliers of its class; damps the
/// others.
fn held_pairs(
    patterns: &Patterns,
    z: &Mat<f64>,
    u: &Mat<f64>,
    stiffness: &[f64],
    damping: &mut [f64],
) -> Vec<(usize, (usize, usize))> {
    let weight = |index: usize, (i, j): (usize, usize)| {
        stiffness[index] * ((z[(i, i)] * u[(j, j)] + z[(j, j)] * u[(i, i)]) / 2.0 + z[(i, j)] * u[(i, j)])
    };
    let pairs = (patterns.number()..).zip(patterns.pairs());
    let mut weighed: Vec<_> = pairs.map(|(index, pair)| (weight(index, pair), (index, pair))).collect();
    weighed.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let active = weighed.iter().take_while(|(weight, _)| *weight >= HELD_FROM).count().min(HELD_PAIRS);
    weighed[active..]
        .iter()
        .for_each(|(weight, (index, _))| damping[*index] = (1.0 + weight.max(0.0)).sqrt().recip());
    weighed[..active].iter().map(|(_, pair)| *pair).collect()
}

impl ActiveConstraints {
    /// Factors the constraints of all patterns of a class and of these pairs. Constraint β is a
    /// matrix G_β = diag(g_β) − (e_i e_jᵀ + e_j e_iᵀ)/2, the second part for pairs only, and
    /// `P_αβ = 2 tr(G_α Z G_β U)`.
    fn new(
        patterns: &Patterns,
        pairs: &[(usize, (usize, usize))],
        z: &Mat<f64>,
        u: &Mat<f64>,
        part: Range<usize>,
        stiffness: &[f64],
    ) -> Option<Self> {
        let number = patterns.number();
        let indices: Vec<usize> = (0..number)
            .chain(pairs.iter().map(|(index, _)| *index))
            .map(|index| part.start + index)
            .collect();
        let mut diagonals = Mat::<f64>::zeros(z.nrows(), indices.len());
        let mut add = |column: usize, pattern: usize| {
            let entries = diagonals.col_as_slice_mut(column).iter_mut();
            entries.zip(patterns.diagonal_of(pattern)).for_each(|(sum, entry)| *sum += entry);
        };
        (0..number).for_each(|pattern| add(pattern, pattern));
        for (column, (_, (i, j))) in (number..).zip(pairs) {
            patterns.holding(*i, *j).for_each(|pattern| add(column, pattern));
        }
        let both = Mat::from_fn(z.nrows(), z.nrows(), |a, b| z[(a, b)] * u[(a, b)] / 2.0);
        let mut half = both * &diagonals;
        for (column, (_, (i, j))) in (number..).zip(pairs) {
            let entries = half.col_as_slice_mut(column).iter_mut().enumerate();
            entries.for_each(|(a, sum)| *sum -= (z[(a, *i)] * u[(a, *j)] + z[(a, *j)] * u[(a, *i)]) / 2.0);
        }
        let mixed = diagonals.transpose() * half;
        let crossed = |((i, j), (k, l)): ((usize, usize), (usize, usize))| {
            (z[(j, k)] * u[(i, l)] + z[(j, l)] * u[(i, k)] + z[(i, k)] * u[(j, l)] + z[(i, l)] * u[(j, k)])
                / 4.0
        };
        let entry = |a: usize, b: usize| {
            let pairs =
                if a.min(b) < number { 0.0 } else { crossed((pairs[a - number].1, pairs[b - number].1)) };
            let slack = if a == b { stiffness[indices[a]].recip() } else { 0.0 };
            2.0 * (mixed[(a, b)] + mixed[(b, a)] + pairs) + slack
        };
        let factor = Mat::from_fn(indices.len(), indices.len(), entry).llt(Side::Lower).ok()?;
        Some(Self { indices, factor })
    }
}

fn times(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}
