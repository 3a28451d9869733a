//! Preconditioner of Newton's equation: an approximate inverse of the dual's curvature in the
//! multipliers.
//!
//! Without restricting D to matrices of multipliers, D ↦ dX(U) has the inverse G ↦ −(Z G U + U G
//! Z), Z = X⁻¹. For block-diagonal G it needs only the blocks of Z. Restricted to the multipliers
//! this is P, an approximate inverse of the curvature H. The interior-point method adds a diagonal
//! Θ to H, and `(P⁻¹ + Θ)⁻¹ = P − P (Θ⁻¹ + P)⁻¹ P` needs a factorisation only for constraints with
//! a large Θ.

use super::{
    classes::{Blocks, Classes},
    patterns::Patterns,
};
use faer::{
    Mat, Side,
    linalg::solvers::{Llt, Solve},
};
use std::ops::Range;

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
    held: Vec<ActiveConstraints>,
}

/// Held constraints of one class, and the factorisation of Θ⁻¹ + P for them.
struct ActiveConstraints {
    places: Vec<usize>,
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
        let Some(Stiff { damping, held }) = &self.stiff else { return self.unconstrained(residual) };
        let damped = |residual: &[f64]| times(&self.unconstrained(&times(residual, damping)), damping);
        let first = damped(residual);
        let mut rest = residual.to_vec();
        for ActiveConstraints { places, factor } in held {
            let solved = factor.solve(Mat::from_fn(places.len(), 1, |row, _| first[places[row]]));
            places.iter().enumerate().for_each(|(row, &place)| rest[place] -= solved[(row, 0)]);
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
        let held = blocks.filter_map(|(((patterns, part), z), u)| {
            let pairs = held_pairs(patterns, z, u, &stiffness[part.clone()], &mut damping[part.clone()]);
            ActiveConstraints::new(patterns, &pairs, z, u, part, stiffness)
        });
        Self { held: held.collect(), damping }
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
    let weight = |place: usize, (i, j): (usize, usize)| {
        stiffness[place] * ((z[(i, i)] * u[(j, j)] + z[(j, j)] * u[(i, i)]) / 2.0 + z[(i, j)] * u[(i, j)])
    };
    let pairs = (patterns.number()..).zip(patterns.pairs());
    let mut weighed: Vec<_> = pairs.map(|(place, pair)| (weight(place, pair), (place, pair))).collect();
    weighed.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let held = weighed.iter().take_while(|(weight, _)| *weight >= HELD_FROM).count().min(HELD_PAIRS);
    weighed[held..]
        .iter()
        .for_each(|(weight, (place, _))| damping[*place] = (1.0 + weight.max(0.0)).sqrt().recip());
    weighed[..held].iter().map(|(_, pair)| *pair).collect()
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
        let places: Vec<usize> = (0..number)
            .chain(pairs.iter().map(|(place, _)| *place))
            .map(|place| part.start + place)
            .collect();
        let mut diagonals = Mat::<f64>::zeros(z.nrows(), places.len());
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
            let slack = if a == b { stiffness[places[a]].recip() } else { 0.0 };
            2.0 * (mixed[(a, b)] + mixed[(b, a)] + pairs) + slack
        };
        let factor = Mat::from_fn(places.len(), places.len(), entry).llt(Side::Lower).ok()?;
        Some(Self { places, factor })
    }
}

fn times(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}
