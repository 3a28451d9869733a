//! Joint sensitivity of counts, first and second moments when one entity takes part several times.
//!
//! # Setting
//! As at the head of [`sensitivity`](super), a record x adds `φ(x) = (√c, x, √ν·xxᵀ)` to its cell,
//! in units of ζ, and `k(x,y) = ⟨φ(x),φ(y)⟩`, `K = c + 1 + ν = max k`. Neighbours differ in *all*
//! records of one entity, at most one in a step, at the steps of a pattern. The records are
//! blanked, replaced in place, or replaced by records in any cells of another pattern, also of
//! other keys. Counts and first moments go through C₁, second moments through C₂; `X_ℓ = C_ℓᵀC_ℓ`,
//! `Z_ℓ(π) = Σ_(i,j∈π) |X_ℓ,ij|`.
//!
//! Let V be the squared sensitivity of C for vectors of norm 1 in any dimension, as
//! [`participation_sensitivity`](super::participation_sensitivity) bounds it. If records of several
//! keys move, those of different keys do not overlap. Their contributions can be treated as
//! orthogonal vectors, so V bounds them too.
//!
//! # Diagonal second moments
//! The theorems below are for full second moments, and hold for diagonal ones.
//! `φ_D(x) = (√c, x, √ν·x∘x) = Πφ(x)` with the orthogonal projection Π that drops the entries off
//! the diagonal. Π acts on coordinates and C on steps, so Π applied to all steps of the release of
//! full moments gives the release of diagonal ones. `‖ΠD‖ ≤ ‖D‖` for the difference D of any two
//! streams, so no neighbours are further apart. (The steps of the proof need not hold with
//! `⟨x∘x, y∘y⟩` in place of `⟨x,y⟩²`. For x = (1,1)/√2, y = −x and ν = c = ½ the kernel is ½ − 1 +
//! ¼ = −¼, while m below is 0.)
//!
//! # One strategy, C₁ = C₂
//! ```text
//! ZeroOut              sens² ≤ K·V
//! ReplaceOneInPlace    sens² ≤ r_d(ν)·V
//! ReplaceOne           sens² ≤ max(2K, r₂(ν))·V                       X ≥ 0 everywhere
//!                      sens² ≤ min(4K·V, max(2K, r₂(ν))·(V + k²g))    X ≥ −g, k participations
//! ```
//! *Proof.* The difference in step i is `φ(x_i)` of squared norm at most K, or `φ(x_i) − φ(y_i)` of
//! squared norm at most r_d(ν). This gives the first two lines. Where V is exact with equal
//! contributions, one optimal record or pair used at every step attains both bounds. In place,
//! signs may differ as well, because a pair can be swapped.
//!
//! Now, for full second moments, let `P = Σ_(i∈π) c_i ⊗ φ(x_i)` become `Q = Σ_(j∈π') c_j ⊗ φ(y_j)`.
//! Then `‖P‖², ‖Q‖² ≤ K·V`, hence `‖P − Q‖² ≤ 4K·V`. With `m = −min(0, min_(|s|≤1) c + s + νs²)` no
//! k(x,y) is below −m. So for `X ≥ 0`,
//! `⟨P,Q⟩ = Σ_ij X_ij k(x_i,y_j) ≥ −m Σ_ij X_ij = −m⟨C1_π, C1_π'⟩ ≥ −m·V`, and
//! `‖P − Q‖² ≤ 2(K + m)·V`. The minimum is at `s = −min(1, 1/(2ν))`, which makes
//! `2(K + m) = max(2K, r₂(ν))`. With overlaps down to −g, let N ≤ k²g be the sum of the magnitudes
//! of those below 0. Then `−⟨P,Q⟩ ≤ m(V + N) + K·N`, which gives the last line. ∎
//!
//! A single participation of d = 1 has r₁ in place of r₂ by [`joint_sensitivity_squared`], which is
//! used for that case. The defaults ν = c = ½ of replace-one stay free: `m = 0` and `2K = 4`.
//!
//! # Two strategies
//! ```text
//! ZeroOut              sens² ≤ max_π (1 + c)·Z₁ + ν·Z₂
//! ReplaceOneInPlace    sens² ≤ max_π Σ_(i∈π) w₁ᵢ r_d(ν w₂ᵢ/w₁ᵢ),        w_ℓi = Σ_(j∈π) |X_ℓ,ij|
//!                            ≤ max_π 4·Z₁ + 2ν·Z₂
//! ReplaceOne           sens² ≤ max_π 4(1 + c)·Z₁ + 4ν·Z₂
//!                      sens² ≤ max_π f·Z₁ + 2ν·Z₂ + k²(f·g₁ + 2ν·g₂)
//!                            X_ℓ ≥ −g_ℓ, f = max(4, 2 + 2c)
//! ```
//! *Proof.* Zero-out: all inner products are at their largest, attained by x = e₁ everywhere if
//! `X ≥ 0`.
//!
//! In place: `2|X_ij ⟨u_i,u_j⟩| ≤ |X_ij|(‖u_i‖² + ‖u_j‖²)` gives `Σ_i w₁ᵢ‖u_i‖² + ν w₂ᵢ‖U_i‖²`,
//! whose terms are at most `w₁ᵢ r_d(ν w₂ᵢ/w₁ᵢ)`; and `‖u_i‖² ≤ 4`, `‖U_i‖² ≤ 2`. The bound is
//! attained where one pair of records is the best for all i: where w₂/w₁ is constant on the
//! pattern, and where r_d = 4 throughout.
//!
//! Replace-one: second moments have `⟨xxᵀ,yyᵀ⟩ ≥ 0`, so `‖P₂ − Q₂‖² ≤ ‖P₂‖² + ‖Q₂‖²`. Counts and
//! first moments are the case ν = 0 above with `2(K + m) = max(2 + 2c, 4) = f`, where the cross
//! term is split by `√(Z₁(π)Z₁(π')) ≤ (Z₁(π) + Z₁(π'))/2`. Overlaps below 0 add at most f·k²g₁ and
//! 2ν·k²g₂. And always `‖P − Q‖² ≤ 2‖P‖² + 2‖Q‖²`. ∎

use super::{
    ClaimKind, MomentWeights, Neighbours, OutOfRange, SensitivityBound, SensitivityClaim, at_least_one,
    free_second_weight, joint_sensitivity_squared, not_negative, positive, replace_one_factor, rounded_up,
};
use crate::{
    participation::{Participation, ParticipationSchedule},
    strategy::participation::{
        SensitivityWitness, all_patterns, attained, only_first_pattern, raised, worst,
    },
    strategy::{ColumnGeometry, Matrix, matrix::OVERLAP_ERROR},
};

/// The strategies of counts and first moments, and of second moments. They have equally many
/// columns and may be the same matrix.
#[derive(Clone, Copy, Debug)]
pub struct MomentStrategies<'a> {
    first: &'a Matrix,
    second: &'a Matrix,
}

impl<'a> MomentStrategies<'a> {
    /// Builds the case of one strategy for all moments.
    pub fn shared(matrix: &'a Matrix) -> Self {
        Self { first: matrix, second: matrix }
    }

    /// Builds the case of one strategy for counts and first moments, and another for second
    /// moments.
    ///
    /// # Errors
    /// [`OutOfRange`] if they have different numbers of steps.
    pub fn separate(first: &'a Matrix, second: &'a Matrix) -> Result<Self, OutOfRange> {
        if first.columns() == second.columns() {
            return Ok(Self { first, second });
        }
        let (name, value) = ("number of columns of the strategy of second moments", second.columns() as f64);
        Err(OutOfRange { name, value, expected: "as many as the strategy of first moments has" })
    }

    fn are_one(&self) -> bool {
        std::ptr::eq(self.first, self.second) || self.first == self.second
    }

    fn on(&self, participation: Participation) -> ParticipationSchedule {
        participation.on(self.first.columns())
    }
}

/// Returns the squared joint sensitivity, in units of ζ², of counts, first and second moments when
/// one entity takes part as `participation` allows. The theorems are at the head of this module's
/// source. The bound is the same for full and diagonal second moments. In place the count is public
/// and its weight has no effect.
///
/// [`ClaimKind::Exact`] for replace-one assumes that there are two keys.
///
/// # Errors
/// [`OutOfRange`] for a dimension of 0, negative weights, and results beyond the range of f64.
///
/// ```
/// use hushflow_mechanism::sensitivity::{
///     MomentStrategies, MomentWeights, Neighbours, joint_participation_sensitivity,
/// };
/// use hushflow_mechanism::strategy::Matrix;
///
/// let identity = Matrix::toeplitz(vec![1.0], 1000)?;
/// let weights = MomentWeights::default_for(Neighbours::ReplaceOne, 3);
/// let strategies = MomentStrategies::shared(&identity);
/// let claim =
///     joint_participation_sensitivity(Neighbours::ReplaceOne, 3, strategies, "10x7+".parse()?, weights)?;
/// assert!((claim.squared - 10.0 * 4.0).abs() < 1e-9);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn joint_participation_sensitivity(
    neighbours: Neighbours,
    dimension: usize,
    strategies: MomentStrategies<'_>,
    participation: Participation,
    weights: MomentWeights,
) -> Result<SensitivityClaim, OutOfRange> {
    at_least_one("dimension", dimension)?;
    let second = not_negative("relative weight of second moments", weights.second)?;
    let count = not_negative("relative weight of the count", weights.count)?;
    let schedule = strategies.on(participation);
    let claim = match neighbours {
        _ if strategies.are_one() => shared(neighbours, dimension, strategies.first, schedule, weights)?,
        Neighbours::ZeroOut => linear(strategies, schedule, 1.0 + count, second),
        Neighbours::ReplaceOneInPlace => in_place(dimension, strategies, schedule, second),
        Neighbours::ReplaceOne => replaced(strategies, schedule, weights),
    };
    positive("squared joint sensitivity", claim.squared)?;
    Ok(claim)
}

fn shared(
    neighbours: Neighbours,
    dimension: usize,
    matrix: &Matrix,
    schedule: ParticipationSchedule,
    weights: MomentWeights,
) -> Result<SensitivityClaim, OutOfRange> {
    let vectors = attained(matrix, schedule, false)?;
    let one_record = weights.count + 1.0 + weights.second;
    match neighbours {
        Neighbours::ZeroOut => Ok(of_equal_records(&vectors, one_record)),
        Neighbours::ReplaceOneInPlace => {
            let factor = replace_one_factor(dimension, weights.second);
            Ok(SensitivityClaim { squared: rounded_up(vectors.claim.squared * factor), ..vectors.claim })
        }
        Neighbours::ReplaceOne => replaced_elsewhere(dimension, matrix, schedule, weights, &vectors),
    }
}

/// Returns the claim for a factor that the same record attains at every step.
fn of_equal_records(vectors: &SensitivityWitness, factor: f64) -> SensitivityClaim {
    let kind = match vectors.claim.kind {
        ClaimKind::Exact if !vectors.by_equal_contributions() => {
            ClaimKind::UpperBound(SensitivityBound::AbsoluteOverlaps)
        }
        kind => kind,
    };
    SensitivityClaim { squared: rounded_up(vectors.claim.squared * factor), kind }
}

fn replaced_elsewhere(
    dimension: usize,
    matrix: &Matrix,
    schedule: ParticipationSchedule,
    weights: MomentWeights,
    vectors: &SensitivityWitness,
) -> Result<SensitivityClaim, OutOfRange> {
    let one_record = weights.count + 1.0 + weights.second;
    let triangle = rounded_up(4.0 * one_record * vectors.claim.squared);
    let triangle =
        SensitivityClaim { squared: triangle, kind: ClaimKind::UpperBound(SensitivityBound::Triangle) };
    let Some(overlap) = matrix.negative_overlap() else {
        return Ok(triangle);
    };
    let once = schedule.count() == 1;
    let factor = |dimension| replace_one_factor(dimension, weights.second).max(2.0 * one_record);
    let squared = if once {
        let geometry = ColumnGeometry::exact(vectors.claim.squared, overlap);
        joint_sensitivity_squared(Neighbours::ReplaceOne, dimension, geometry, weights)?
    } else {
        let overlaps = overlap * (schedule.count() as f64).powi(2);
        rounded_up(factor(dimension.max(2)) * (vectors.claim.squared + overlaps))
    };
    if is_opposed(overlap, vectors.claim.squared) {
        let claim =
            SensitivityClaim { squared, kind: ClaimKind::UpperBound(SensitivityBound::NegativeOverlaps) };
        return Ok(if claim.squared <= triangle.squared { claim } else { triangle });
    }
    let tight = once || factor(dimension) == factor(dimension.max(2));
    let kind = if tight {
        of_equal_records(vectors, 1.0).kind
    } else {
        ClaimKind::UpperBound(SensitivityBound::Triangle)
    };
    Ok(SensitivityClaim { squared, kind })
}

/// Returns `max_π α·Z₁ + β·Z₂`, or `(α + β)·V` for one strategy. It is attained by changes that are
/// the same at every step, up to the sign if they can be reversed, as they can in place.
pub(super) fn affine_of_strategies(
    neighbours: Neighbours,
    strategies: MomentStrategies<'_>,
    participation: Participation,
    first: f64,
    second: f64,
) -> Result<SensitivityClaim, OutOfRange> {
    let schedule = strategies.on(participation);
    if !strategies.are_one() {
        return Ok(linear(strategies, schedule, first, second));
    }
    let vectors = attained(strategies.first, schedule, false)?;
    let claim = of_equal_records(&vectors, first + second);
    let reversible = neighbours == Neighbours::ReplaceOneInPlace;
    Ok(if reversible { SensitivityClaim { kind: vectors.claim.kind, ..claim } } else { claim })
}

/// Returns `max_π α·Z₁ + β·Z₂`. The claim is exact where all overlaps of the worst pattern are at
/// least 0.
fn linear(
    strategies: MomentStrategies<'_>,
    schedule: ParticipationSchedule,
    first: f64,
    second: f64,
) -> SensitivityClaim {
    let matrices = [strategies.first, strategies.second];
    let worst = worst(&[(first, matrices[0]), (second, matrices[1])], schedule);
    let squared = raised(worst.squared, schedule.count());
    let kind = match worst.bound {
        Some(bound) => ClaimKind::UpperBound(bound),
        None if matrices.iter().all(|matrix| not_opposed(matrix, &worst.pattern)) => ClaimKind::Exact,
        None => ClaimKind::UpperBound(SensitivityBound::AbsoluteOverlaps),
    };
    SensitivityClaim { squared, kind }
}

/// Returns whether no two columns of a pattern point away from each other, within rounding; `false`
/// if the pattern is too long to check.
fn not_opposed(matrix: &Matrix, pattern: &[usize]) -> bool {
    let apart = || pattern.windows(2).all(|pair| pair[1] - pair[0] > matrix.reach());
    let opposed = || {
        let gram = matrix.gram(pattern);
        let error = 2.0 * OVERLAP_ERROR * gram.diagonal().max();
        gram.min() < -error
    };
    matrix.is_nonnegative() || apart() || (pattern.len() <= MAX_PATTERN && !opposed())
}

/// Longest pattern whose overlaps are all checked.
const MAX_PATTERN: usize = 4096;

/// Returns whether a bound of the overlaps below 0 exceeds the rounding error. Smaller overlaps
/// can't be told from rounding.
fn is_opposed(negative_overlap: f64, squared: f64) -> bool {
    negative_overlap > 4.0 * OVERLAP_ERROR * squared
}

fn replaced(
    strategies: MomentStrategies<'_>,
    schedule: ParticipationSchedule,
    weights: MomentWeights,
) -> SensitivityClaim {
    let MomentWeights { second, count } = weights;
    let triangle = linear(strategies, schedule, 4.0 + 4.0 * count, 4.0 * second);
    let triangle = SensitivityClaim { kind: ClaimKind::UpperBound(SensitivityBound::Triangle), ..triangle };
    let overlaps = [strategies.first, strategies.second].map(Matrix::negative_overlap);
    let [Some(first_overlap), Some(second_overlap)] = overlaps else {
        return triangle;
    };
    let first = (2.0 + 2.0 * count).max(4.0);
    let opposed = (first * first_overlap + 2.0 * second * second_overlap) * (schedule.count() as f64).powi(2);
    let squared = rounded_up(linear(strategies, schedule, first, 2.0 * second).squared + opposed);
    let bound = if is_opposed(opposed, squared) {
        SensitivityBound::NegativeOverlaps
    } else {
        SensitivityBound::SeparateStrategies
    };
    let claim = SensitivityClaim { squared, kind: ClaimKind::UpperBound(bound) };
    if claim.squared <= triangle.squared { claim } else { triangle }
}

/// w₁ᵢ and w₂ᵢ for the steps of a pattern.
type RowSums = Vec<[f64; 2]>;

fn in_place(
    dimension: usize,
    strategies: MomentStrategies<'_>,
    schedule: ParticipationSchedule,
    weight: f64,
) -> SensitivityClaim {
    let coarse = linear(strategies, schedule, 4.0, 2.0 * weight);
    let coarse =
        SensitivityClaim { kind: ClaimKind::UpperBound(SensitivityBound::SeparateStrategies), ..coarse };
    let patterns = row_sums(strategies, schedule).unwrap_or_default();
    let bounds =
        patterns.iter().map(|(sums, pattern)| (in_place_bound(dimension, weight, sums), sums, pattern));
    let Some((largest, sums, pattern)) = bounds.max_by(|a, b| a.0.total_cmp(&b.0)) else {
        return coarse;
    };
    let squared = raised(largest, schedule.count());
    let MomentStrategies { first, second } = strategies;
    let opposed = [first, second].iter().any(|matrix| !not_opposed(matrix, pattern));
    let tight = !opposed && one_pair_is_best(dimension, weight, sums);
    let kind =
        if tight { ClaimKind::Exact } else { ClaimKind::UpperBound(SensitivityBound::SeparateStrategies) };
    SensitivityClaim { squared, kind }
}

/// Returns whether the same pair of records is the best at every step.
fn one_pair_is_best(dimension: usize, weight: f64, sums: &[[f64; 2]]) -> bool {
    let ratios = || sums.iter().map(|[first, second]| second / first);
    let (least, largest) =
        ratios().fold((f64::INFINITY, 0.0_f64), |(a, b), ratio| (a.min(ratio), b.max(ratio)));
    largest.is_finite()
        && (weight * largest <= free_second_weight(dimension) || largest - least <= 1e-12 * largest)
}

/// Returns `Σ_i w₁ᵢ r_d(ν w₂ᵢ/w₁ᵢ)`, rounded to nearest.
fn in_place_bound(dimension: usize, weight: f64, sums: &[[f64; 2]]) -> f64 {
    let of_step = |&[first, second]: &[f64; 2]| {
        let relative = weight * second / first;
        // For tiny columns of C₁, r_d(ν) ≤ 4 + 2ν.
        if relative < 1e12 {
            first * replace_one_factor(dimension, relative)
        } else {
            4.0 * first + 2.0 * weight * second
        }
    };
    sums.iter().map(of_step).sum()
}

/// Returns the row sums of all patterns that can be the worst, or `None` if there are too many.
/// For Toeplitz strategies with non-negative, non-increasing coefficients whose worst pattern is
/// the first one, with equal gaps, this pattern maximises every w_ℓi, so it is the only one
/// returned.
fn row_sums(
    strategies: MomentStrategies<'_>,
    schedule: ParticipationSchedule,
) -> Option<Vec<(RowSums, Vec<usize>)>> {
    let MomentStrategies { first, second } = strategies;
    let falls = |matrix: &Matrix| {
        let toeplitz =
            matrix.as_toeplitz().filter(|_| matrix.is_nonnegative() && only_first_pattern(&[matrix]));
        toeplitz.is_some_and(|(coefficients, _)| coefficients.is_sorted_by(|a, b| a >= b))
    };
    let patterns = if falls(first) && falls(second) && schedule.count() <= MAX_PATTERN {
        vec![schedule.pattern(0)]
    } else {
        all_patterns(schedule, &[first, second])?
    };
    let of_pattern = |pattern: Vec<usize>| {
        let [one, two] = [first, second].map(|matrix| matrix.gram(&pattern));
        let sum = |gram: &nalgebra::DMatrix<f64>, row: usize| gram.row(row).iter().map(|x| x.abs()).sum();
        ((0..pattern.len()).map(|row| [sum(&one, row), sum(&two, row)]).collect(), pattern)
    };
    Some(patterns.into_iter().map(of_pattern).collect())
}

/// Returns the largest ν at which second moments are free in place: the bound stays `4·max_π Z₁`,
/// that of the first moments alone. It is ν* if both strategies are the same, and 0 where there are
/// too many patterns to check.
///
/// If all patterns are checked, it is at least ν* times the least `w₁ᵢ/w₂ᵢ`.
///
/// # Errors
/// [`OutOfRange`] for a dimension of 0, and results beyond the range of f64.
pub fn free_second_weight_under_participation(
    dimension: usize,
    strategies: MomentStrategies<'_>,
    participation: Participation,
) -> Result<f64, OutOfRange> {
    at_least_one("dimension", dimension)?;
    if strategies.are_one() {
        return Ok(free_second_weight(dimension));
    }
    let Some(patterns) = row_sums(strategies, strategies.on(participation)) else {
        return Ok(0.0);
    };
    let bound = |weight: f64| {
        patterns.iter().map(|(sums, _)| in_place_bound(dimension, weight, sums)).fold(0.0, f64::max)
    };
    let free = |weight: f64| bound(weight) <= bound(0.0);
    let (mut low, mut high) = (0.0, 1.0_f64);
    while free(high) && high.is_finite() {
        (low, high) = (high, 2.0 * high);
    }
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if free(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    not_negative("free weight of second moments", low)
}

#[cfg(test)]
mod tests;
