//! Sensitivity of any C when one entity may take part several times.
//!
//! # Setting
//! Two streams are neighbours if one lacks all records of one entity (zero-out): contributions
//! `‖u_i‖ ≤ 1` at the steps i of a pattern π vanish. With `X = CᵀC`
//!
//! ```text
//! sens² = max_π sup_u ‖C u‖² = max_π sup_u Σ_(i,j∈π) X_ij ⟨u_i, u_j⟩
//! ```
//!
//! In dimension 1 the supremum is a maximum over signs, `S_π = max_s sᵀX_π s`, because a convex
//! function is largest at a corner. For vectors it lies between `S_π` and `(π/2)·S_π`, and is not
//! `S_π` in general.
//!
//! # Bounds, for every dimension
//! ```text
//! Z_π = Σ_ij |X_ij|        by ⟨u_i, u_j⟩ ≤ 1
//! (π/2)·S_π                Grothendieck's inequality, positive semi-definite X (Nesterov)
//! |π|·‖C_π‖₂²              Theorem 2.1
//! ```
//! **Exact.** If signs s exist with `s_i s_j X_ij ≥ 0` for all i, j in π, then `u_i = s_i e_1`
//! attains `Z_π` in every dimension. `X ≥ 0` elementwise (Eq. 3 of the paper) is the case s = 1.
//! Only the pattern with the largest `Z_π` must have such signs. Entries between steps of different
//! patterns do not matter.
//!
//! Source: "Multi-Epoch Matrix Factorization Mechanisms", Section 2 and Appendix H; its Theorem H.1
//! with √(π/2) in place of π/2.
//!
//! # Rounding
//! A computed overlap is off by at most `ε‖c_i‖‖c_j‖ ≤ ε(X_ii + X_jj)/2`, a sum over a pattern of k
//! steps by at most `εk·ΣX_ii ≤ εk·Z_π`. So raising `Z_π` by a factor `1 + εk` is safe for any
//! signs of small entries. In the search for signs, an entry within its error of 0 counts as 0.
//! "Exact" therefore means exact up to that factor.

mod absolute;
mod separated;
#[cfg(test)]
mod tests;

use super::Matrix;
use crate::{
    participation::{Participation, ParticipationSchedule},
    range::{OutOfRange, at_least_one, positive, rounded_up},
};
use serde::Serialize;
use std::{f64::consts::FRAC_PI_2, fmt};

pub(crate) use absolute::only_first_pattern;
#[cfg(test)]
pub(crate) use tests::{SCHEMAS, strategies};

/// A squared sensitivity, and how it was derived.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SensitivityClaim {
    /// The squared sensitivity, rounded up.
    pub squared: f64,
    /// Whether it is attained.
    pub kind: ClaimKind,
}

impl SensitivityClaim {
    /// Returns the sensitivity, rounded up.
    pub fn value(&self) -> f64 {
        self.squared.sqrt().next_up()
    }
}

/// Whether a sensitivity is attained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ClaimKind {
    /// Neighbouring streams attain it, up to rounding, in every dimension of the records.
    Exact,
    /// Attained by records of dimension 1, and not valid for vectors.
    ExactForScalars,
    /// Neighbouring streams never exceed it. They may not attain it.
    UpperBound(SensitivityBound),
}

/// The argument behind an upper bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SensitivityBound {
    /// `max_π Σ|X_ij|`: no two contributions have an inner product above 1.
    AbsoluteOverlaps,
    /// `(π/2)·max_s ‖C_π s‖²` over signs s.
    Grothendieck,
    /// `|π|·‖C_π‖₂²`.
    Spectral,
    /// Each participation is paired with the earlier ones with which its overlap can be largest.
    EarlierPartners,
    /// A larger C, with non-negative, non-increasing coefficients.
    Majorised,
    /// `(k max ‖c_i‖)²`.
    ColumnNorms,
    /// Twice the distance to the stream without the entity.
    Triangle,
    /// Overlaps below 0, counted at their worst.
    NegativeOverlaps,
    /// First and second moments at their worst at once, although each has its own strategy.
    SeparateStrategies,
}

impl fmt::Display for ClaimKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => f.write_str("exact"),
            Self::ExactForScalars => f.write_str("exact for scalars"),
            Self::UpperBound(bound) => write!(f, "upper bound ({bound})"),
        }
    }
}

impl fmt::Display for SensitivityBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AbsoluteOverlaps => "absolute overlaps",
            Self::Grothendieck => "Grothendieck",
            Self::Spectral => "spectral norm",
            Self::EarlierPartners => "earlier partners",
            Self::Majorised => "majorised coefficients",
            Self::ColumnNorms => "column norms",
            Self::Triangle => "triangle inequality",
            Self::NegativeOverlaps => "negative overlaps",
            Self::SeparateStrategies => "separate strategies",
        })
    }
}

/// Returns the largest change of `C u` when all contributions of one entity, of norm at most 1 and
/// of `dimension` coordinates each, are zeroed out.
///
/// The horizon is the number of columns. A bound for scalars (`dimension` 1) is never used for
/// vectors. If the two differ, dimension 1 gives [`ClaimKind::ExactForScalars`], and other
/// dimensions give a larger upper bound.
///
/// # Errors
/// [`OutOfRange`] for a dimension of 0.
///
/// ```
/// use hushflow_mechanism::sensitivity::{ClaimKind, participation_sensitivity};
/// use hushflow_mechanism::strategy::Matrix;
///
/// let identity = Matrix::toeplitz(vec![1.0], 2000)?;
/// let claim = participation_sensitivity(&identity, "20x100+".parse()?, 8)?;
/// assert_eq!(claim.kind, ClaimKind::Exact);
/// assert!((claim.squared - 20.0).abs() < 1e-10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn participation_sensitivity(
    matrix: &Matrix,
    participation: Participation,
    dimension: usize,
) -> Result<SensitivityClaim, OutOfRange> {
    at_least_one("dimension", dimension)?;
    Ok(attained(matrix, participation.on(matrix.columns()), dimension == 1)?.claim)
}

/// A claim and, if it is exact, the contributions ±1 along one axis that attain it, as pairs of
/// step and sign.
#[derive(Clone, Debug)]
pub(crate) struct SensitivityWitness {
    pub(crate) claim: SensitivityClaim,
    pub(crate) witness: Option<Vec<(usize, f64)>>,
}

impl SensitivityWitness {
    /// Returns whether equal contributions attain it in every dimension.
    pub(crate) fn by_equal_contributions(&self) -> bool {
        let equal = |witness: &Vec<(usize, f64)>| witness.iter().all(|&(_, sign)| sign > 0.0);
        self.claim.kind == ClaimKind::Exact && self.witness.as_ref().is_some_and(equal)
    }
}

/// The largest `Σ w |X_ij|` over all patterns, for a weighted sum of matrices.
#[derive(Clone, Debug)]
pub(crate) struct WorstPattern {
    pub(crate) squared: f64,
    /// A pattern that comes closest to the bound.
    pub(crate) pattern: Vec<usize>,
    /// The reason why `squared` exceeds the sum of this pattern, if it does.
    pub(crate) bound: Option<SensitivityBound>,
}

/// Weighted matrices of equally many columns: `X = Σ w·CᵀC`.
pub(super) type Terms<'a> = [(f64, &'a Matrix)];

/// Returns the largest sum of absolute overlaps, not yet raised for rounding.
pub(crate) fn worst(terms: &Terms<'_>, schedule: ParticipationSchedule) -> WorstPattern {
    if schedule.is_flexible() { separated::worst(terms, schedule) } else { absolute::worst(terms, schedule) }
}

/// Raises a sum of absolute overlaps over `count` steps by more than rounding can have lost.
pub(crate) fn raised(squared: f64, count: usize) -> f64 {
    rounded_up(squared * (1.0 + count as f64 * 256.0 * f64::EPSILON))
}

/// Maximum length of a pattern that is searched for signs.
const MAX_SEARCHED: usize = 4096;
/// Maximum number of values computed in a search through all patterns.
const SEARCH_WORK: usize = 1 << 31;
/// Maximum number of overlaps that such a search may store.
const SEARCH_MEMORY: usize = 1 << 24;

pub(crate) fn attained(
    matrix: &Matrix,
    schedule: ParticipationSchedule,
    scalar: bool,
) -> Result<SensitivityWitness, OutOfRange> {
    let worst = worst(&[(1.0, matrix)], schedule);
    let squared = positive("squared sensitivity", raised(worst.squared, schedule.count()))?;
    let signs = worst.bound.is_none().then(|| signs_of(matrix, &worst.pattern)).flatten();
    if let Some(signs) = signs {
        let witness = Some(worst.pattern.into_iter().zip(signs).collect());
        return Ok(SensitivityWitness {
            claim: SensitivityClaim { squared, kind: ClaimKind::Exact },
            witness,
        });
    }
    let kind = ClaimKind::UpperBound(worst.bound.unwrap_or(SensitivityBound::AbsoluteOverlaps));
    let by_overlaps = SensitivityWitness { claim: SensitivityClaim { squared, kind }, witness: None };
    let searched = all_patterns(schedule, &[matrix]).map(|patterns| search(matrix, patterns, scalar));
    Ok(searched.filter(|found| found.claim.squared <= squared * (1.0 + 1e-12)).unwrap_or(by_overlaps))
}

fn signs_of(matrix: &Matrix, pattern: &[usize]) -> Option<Vec<f64>> {
    let is_separated = pattern.windows(2).all(|pair| pair[1] - pair[0] > matrix.reach());
    if is_separated || matrix.is_nonnegative() {
        Some(vec![1.0; pattern.len()])
    } else if pattern.len() <= MAX_SEARCHED {
        absolute::balancing(&matrix.gram(pattern))
    } else {
        None
    }
}

/// Returns all patterns that can be the worst, or `None` if examining each takes too long.
pub(crate) fn all_patterns(schedule: ParticipationSchedule, matrices: &[&Matrix]) -> Option<Vec<Vec<usize>>> {
    let starts = if only_first_pattern(matrices) { 0..1 } else { schedule.first_steps() };
    let rows = matrices.iter().map(|matrix| matrix.rows()).max().unwrap_or(1);
    let pairs = schedule.count().saturating_mul(schedule.count());
    let limit =
        (SEARCH_WORK / pairs.saturating_mul(rows).max(1)).min(SEARCH_MEMORY / pairs.max(1)).min(1 << 14);
    let is_feasible = limit > 0 && schedule.count() <= MAX_SEARCHED;
    is_feasible.then(|| schedule.patterns(starts, limit)).flatten().filter(|patterns| patterns.len() <= limit)
}

/// Returns the largest bound of all patterns, where each pattern's bound is the least one known.
fn search(matrix: &Matrix, patterns: Vec<Vec<usize>>, scalar: bool) -> SensitivityWitness {
    let grams = patterns.into_iter().map(|pattern| {
        let gram = matrix.gram(&pattern);
        (raised(gram.iter().map(|overlap| overlap.abs()).sum(), pattern.len()), gram, pattern)
    });
    let mut grams: Vec<_> = grams.collect();
    grams.sort_by(|a, b| b.0.total_cmp(&a.0));
    let none =
        SensitivityClaim { squared: 0.0, kind: ClaimKind::UpperBound(SensitivityBound::AbsoluteOverlaps) };
    let mut largest = SensitivityWitness { claim: none, witness: None };
    let mut corners = absolute::MAX_CORNERS;
    for (absolute, gram, pattern) in grams {
        if absolute <= largest.claim.squared {
            break;
        }
        let (claim, signs) = of_pattern(&gram, absolute, scalar, &mut corners);
        if claim.squared > largest.claim.squared {
            let witness = signs.map(|signs| pattern.into_iter().zip(signs).collect());
            largest = SensitivityWitness { claim, witness };
        }
    }
    largest
}

/// Returns the least known bound of one pattern. Takes trial signs from `corners`, and stops trying
/// signs when these run out.
fn of_pattern(
    gram: &nalgebra::DMatrix<f64>,
    absolute: f64,
    scalar: bool,
    corners: &mut usize,
) -> (SensitivityClaim, Option<Vec<f64>>) {
    let claim = |squared, kind| SensitivityClaim { squared, kind };
    if let Some(signs) = absolute::balancing(gram) {
        return (claim(absolute, ClaimKind::Exact), Some(signs));
    }
    let bound = |squared, bound| claim(squared, ClaimKind::UpperBound(bound));
    let mut bounds = vec![bound(absolute, SensitivityBound::AbsoluteOverlaps)];
    bounds.extend(absolute::spectral(gram).map(|squared| bound(squared, SensitivityBound::Spectral)));
    if let Some((maximum, signs)) = absolute::maximum(gram, corners) {
        // The error of the sum is proportional to the sum of absolute overlaps.
        let maximum = maximum + (raised(absolute, gram.nrows()) - absolute);
        if scalar {
            return (claim(maximum, ClaimKind::ExactForScalars), Some(signs));
        }
        bounds.push(bound(rounded_up(FRAC_PI_2 * maximum), SensitivityBound::Grothendieck));
    }
    let least = bounds.into_iter().min_by(|a, b| a.squared.total_cmp(&b.squared));
    (least.unwrap_or(bound(absolute, SensitivityBound::AbsoluteOverlaps)), None)
}
