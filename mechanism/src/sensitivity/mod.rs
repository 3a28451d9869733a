//! Neighbouring streams and the joint sensitivity of their counts, first and second moments.
//!
//! # Setting
//! A *cell* is a pair of key and epoch. With lengths in units of the clip norm ζ, a record x,
//! `‖x‖ ≤ 1`, adds to its cell the vector `φ(x) = (√c, x, √ν·xxᵀ)`: the count, the first and the
//! second moments under the weights `c = κ²/ζ²` and `ν = λζ²` of [`MomentWeights`]. All coordinates
//! go through the same C, and keys do not mix. Let `X = CᵀC` between epochs of one key and
//! `X_ij = 0` between keys. A record x in cell i that becomes a record y in cell j moves the
//! release by
//!
//! ```text
//! F = X_ii k(x,x) + X_jj k(y,y) − 2 X_ij k(x,y),     k(x,y) = ⟨φ(x),φ(y)⟩ = c + ⟨x,y⟩ + ν⟨x,y⟩²
//! ```
//!
//! in squared norm, for full second moments. If only the diagonal Σ x∘x is kept, the release is an
//! orthogonal projection of the full one (the entries off the diagonal are dropped at every step),
//! so F is no larger. Write `A = max X_ii`, `−g` for a lower bound of all `X_ij` with `g ≥ 0`, and
//! `K = c + 1 + ν`. Two facts are used: `k(x,y) ≤ K`, and `‖φ(x) − φ(y)‖² ≤ r_d(ν)`
//! ([`replace_one_factor`]; the count cancels).
//!
//! # Theorem
//! ```text
//! ZeroOut              sup F = A·K
//! ReplaceOneInPlace    sup F = A·r_d(ν)
//! ReplaceOne           sup F ≤ max(A·r_d(ν), 2K(A + g))
//! ```
//! *Proof.* Zero-out has no y: `F = X_ii k(x,x) ≤ A·K`. In place, i = j: `F = X_ii‖φ(x) − φ(y)‖²`.
//! Replace-one allows both of these and i ≠ j. There F is affine in `X_ij`, which Cauchy-Schwarz
//! keeps in `[−g, a_i a_j]` (a² = X_ii), so F is largest at an end. At `−g`:
//! `F ≤ K(X_ii + X_jj + 2g)`. At `a_i a_j`, say with `a_j ≤ a_i`: `F = ‖a_i φ(x) − a_j φ(y)‖²` is
//! convex in `a_j ∈ [0, a_i]`. So it is at most the larger of its ends `a_i² k(x,x) ≤ A·K` and
//! `a_i²‖φ(x) − φ(y)‖² ≤ A·r_d(ν)`. ∎
//!
//! The bound `2K(A + g)` is attained by x = y = e₁ whenever two cells have `X_ii = X_jj = A` and
//! `X_ij = −g`. With two keys and g = 0 every C has such cells.
//!
//! # Moments that cost nothing
//! First moments alone cost 4A. With g = 0 replace-one costs no more while `ν ≤ ν*` and
//! `c + ν ≤ 1`. So `ν = c = ½` gives the second moments *and* a private count at no cost, in every
//! dimension. For d = 1 the paper's ν* ≈ 2.77 is free in place only: a record that moves between
//! cells costs 2(1 + ν*) ≈ 7.55 instead of 4.
//!
//! Source: "Continual Release Moment Estimation with Differential Privacy", Section 3 and Appendix
//! A, for records replaced in place and no count. The rest is proved above.
//!
//! # Records replaced in place
//! The sensitivity factor r_d(ν) of a record replaced within its cell, its free threshold ν* and
//! its inverse:
//!
//! ```text
//! r_d(ν) = sup ‖x − y‖² + ν‖xxᵀ − yyᵀ‖²_F   over ‖x‖, ‖y‖ ≤ 1
//!        = 4                        ν ≤ ν*     attained by y = −x
//!        = (1 + 2ν)²/(2ν)           ν > ν* = ½,            d ≥ 2
//!        = ν(1 + τ)(3 − τ)³/16      ν > ν* = (11 + 5√5)/8, d = 1,   τ = √(1 − 2/ν)
//! ```
//!
//! Derivation of the values. d ≥ 2: unit vectors with `⟨x,y⟩ = t` give `2 − 2t + ν(2 − 2t²)`, which
//! is largest at `t = −1/(2ν)` once that exceeds −1. d = 1: x = 1 and y = −β give
//! `(1 + β)²(1 + ν(1 − β)²)`, which for large ν has its maximum inside the interval, at
//! `β = (1 − τ)/2`.
//!
//! No other pair does better: "Continual Release Moment Estimation with Differential Privacy",
//! Theorems A.1, A.2 and Lemma 3.5. Its Theorem 4.3 gives the same values for the diagonal. The
//! forms here equal the paper's `2 + 2ν + 1/(2ν)` and `(3 − τ)²(ντ + 1 + ν)/8`, with fewer
//! roundings.

#[cfg(test)]
mod attack;
mod batch;
#[cfg(test)]
mod entity_attack;
mod joint_participation;

use crate::numbers;
pub use crate::range::OutOfRange;
pub(crate) use crate::range::{at_least_one, positive, rounded_up};
use crate::strategy::ColumnGeometry;
pub use crate::strategy::{ClaimKind, SensitivityBound, SensitivityClaim, participation_sensitivity};
pub use batch::{BatchQuery, TrainingBatch, batch_participation_sensitivity, batch_sensitivity_squared};
pub use joint_participation::{
    MomentStrategies, free_second_weight_under_participation, joint_participation_sensitivity,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The neighbour relation: which two streams must be hard to tell apart. Part of every sensitivity,
/// guarantee and ledger entry.
///
/// The sequence of arrivals (how many rows came, and when by the public clock) is the same in both
/// streams. The *contents* of one row differ; where an entity is protected as a whole, those of all
/// its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Neighbours {
    /// One record is replaced by any other: other values, another key, another epoch, or no valid
    /// record at all. Counts are private.
    ReplaceOne,
    /// One record's values are replaced; its key and epoch stay. Keys, epochs and therefore all
    /// counts are public and released exactly. Whether values are usable (present, numeric, finite)
    /// is part of the values. So a record with unusable values must count as well, as the centre of
    /// the bounds ([`Clipper::counting_unusable`](crate::moments::Clipper::counting_unusable)).
    ReplaceOneInPlace,
    /// One record is blanked. Counts are private.
    ZeroOut,
}

numbers!(enum Neighbours { 0 ReplaceOne, 1 ReplaceOneInPlace, 2 ZeroOut });

impl Neighbours {
    /// Returns whether counts are the same in both streams, and so are released exactly.
    pub fn counts_are_public(self) -> bool {
        self == Neighbours::ReplaceOneInPlace
    }
}

impl fmt::Display for Neighbours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Neighbours::ReplaceOne => "replace-one",
            Neighbours::ReplaceOneInPlace => "replace-one-in-place",
            Neighbours::ZeroOut => "zero-out",
        })
    }
}

/// Weights of the second moments and of the count relative to first moments of weight 1, as squared
/// norms for records of norm at most 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MomentWeights {
    /// ν = λζ² ≥ 0.
    pub second: f64,
    /// c = κ²/ζ² ≥ 0; 0 when no count is released or counts are public.
    pub count: f64,
}

impl MomentWeights {
    /// Returns the default weights: free for replace-one when no two columns of C point away from
    /// each other, and always free in place.
    ///
    /// - [`Neighbours::ReplaceOne`]: ν = c = ½. Columns that point away from each other by g raise
    ///   the squared sensitivity from 4A to 4(A + g), at most twofold. To stay free, ν and c would
    ///   have to shrink until `ν + c ≤ (A − g)/(A + g)`, with unbounded noise on count and second
    ///   moments as g nears A.
    /// - [`Neighbours::ReplaceOneInPlace`]: ν = ν*, and the count is public.
    /// - [`Neighbours::ZeroOut`]: ν = c = ½. Nothing is free here: the squared sensitivity is 2A,
    ///   and the first moments alone cost A.
    pub fn default_for(neighbours: Neighbours, dimension: usize) -> Self {
        match neighbours {
            Neighbours::ReplaceOneInPlace => Self { second: free_second_weight(dimension), count: 0.0 },
            Neighbours::ReplaceOne | Neighbours::ZeroOut => Self { second: 0.5, count: 0.5 },
        }
    }
}

/// Returns the squared joint sensitivity of counts, first and second moments that all go through
/// the same C, in units of ζ², rounded up: the theorem at the head of this module. It is the same
/// for full and diagonal second moments.
///
/// In place the count is public and its weight has no effect.
///
/// # Errors
/// [`OutOfRange`] for a dimension of 0, negative weights, a geometry that no invertible C has, and
/// results beyond the range of f64.
///
/// ```
/// use hushflow_mechanism::sensitivity::{MomentWeights, Neighbours, joint_sensitivity_squared};
/// use hushflow_mechanism::strategy::ColumnGeometry;
/// let identity = ColumnGeometry::exact(1.0, 0.0);
/// let weights = MomentWeights { second: 0.5, count: 0.5 };
/// let squared = joint_sensitivity_squared(Neighbours::ReplaceOne, 3, identity, weights)?;
/// assert!(squared >= 4.0 && squared < 4.0 + 1e-12);
/// # Ok::<(), hushflow_mechanism::sensitivity::OutOfRange>(())
/// ```
pub fn joint_sensitivity_squared(
    neighbours: Neighbours,
    dimension: usize,
    geometry: ColumnGeometry,
    weights: MomentWeights,
) -> Result<f64, OutOfRange> {
    at_least_one("dimension", dimension)?;
    let second = not_negative("relative weight of second moments", weights.second)?;
    let count = not_negative("relative weight of the count", weights.count)?;
    let longest = positive("largest squared column norm", geometry.max_norm_squared)?;
    // By Cauchy-Schwarz no overlap exceeds the longest column.
    let overlap = not_negative("negative overlap of columns", geometry.negative_overlap)?.min(longest);
    let one_record = count + 1.0 + second;
    let in_place = longest * replace_one_factor(dimension, second);
    let squared = match neighbours {
        Neighbours::ZeroOut => longest * one_record,
        Neighbours::ReplaceOneInPlace => in_place,
        Neighbours::ReplaceOne => in_place.max(2.0 * one_record * (longest + overlap)),
    };
    positive("squared joint sensitivity", rounded_up(squared))
}

fn not_negative(name: &'static str, value: f64) -> Result<f64, OutOfRange> {
    let expected = "a finite number, at least 0";
    if value >= 0.0 && value.is_finite() { Ok(value) } else { Err(OutOfRange { name, value, expected }) }
}

/// Returns ν*: the largest relative weight ν at which second moments cost nothing when records are
/// replaced in place. ½ for `dimension` ≥ 2, (11 + 5√5)/8 ≈ 2.77 for dimension 1.
pub fn free_second_weight(dimension: usize) -> f64 {
    if dimension == 1 { (11.0 + 5.0 * 5_f64.sqrt()) / 8.0 } else { 0.5 }
}

/// Returns r_d(ν): the squared joint sensitivity of one record's first and ν-weighted second
/// moments, replaced in place, in the unit ball of `dimension` ≥ 1. Rounded to nearest, not up; NaN
/// for NaN.
pub fn replace_one_factor(dimension: usize, second_weight: f64) -> f64 {
    let nu = second_weight;
    if nu <= free_second_weight(dimension) {
        4.0
    } else if dimension == 1 {
        let tau = (1.0 - 2.0 / nu).sqrt();
        nu * (1.0 + tau) * (3.0 - tau).powi(3) / 16.0
    } else {
        let root = 1.0 + 2.0 * nu;
        root / (2.0 * nu) * root
    }
}

/// Inverse of [`replace_one_factor`]: returns the largest ν with r_d(ν) ≤ `factor`, for
/// `factor` ≥ 4.
///
/// d ≥ 2: the larger root of `(1 + 2ν)² = 2νR`. d = 1: with u = 1 − τ the equation reads
/// `u = (2 + u)³/(8R)`. Its smallest root is the limit of the iteration from 0, because the right
/// side is increasing, with slope at most 0.58 up to that root.
pub(crate) fn largest_second_weight(dimension: usize, factor: f64) -> f64 {
    if dimension == 1 {
        let u = (0..80).fold(0.0_f64, |u, _| (2.0 + u).powi(3) / (8.0 * factor));
        2.0 / (u * (2.0 - u))
    } else {
        (factor - 2.0 + (factor * (factor - 4.0)).sqrt()) / 4.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn squared(neighbours: Neighbours, dimension: usize, a: f64, g: f64, second: f64, count: f64) -> f64 {
        let geometry = ColumnGeometry::exact(a, g);
        joint_sensitivity_squared(neighbours, dimension, geometry, MomentWeights { second, count }).unwrap()
    }

    #[test]
    fn defaults_are_free_where_promised() {
        for dimension in [1, 2, 7] {
            for neighbours in [Neighbours::ReplaceOne, Neighbours::ReplaceOneInPlace] {
                let MomentWeights { second, count } = MomentWeights::default_for(neighbours, dimension);
                assert_eq!(squared(neighbours, dimension, 1.5, 0.0, second, count), rounded_up(6.0));
            }
            let MomentWeights { second, count } = MomentWeights::default_for(Neighbours::ZeroOut, dimension);
            assert_eq!(squared(Neighbours::ZeroOut, dimension, 1.5, 0.0, second, count), rounded_up(3.0));
        }
    }

    #[test]
    fn invalid_geometries_and_weights_are_refused() {
        let check = |dimension, a, g, second, count, name| {
            let geometry = ColumnGeometry::exact(a, g);
            let weights = MomentWeights { second, count };
            let found = joint_sensitivity_squared(Neighbours::ReplaceOne, dimension, geometry, weights);
            assert_eq!(found.unwrap_err().name, name);
        };
        check(0, 1.0, 0.0, 0.5, 0.5, "dimension");
        for value in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-310] {
            check(2, value, 0.0, 0.5, 0.5, "largest squared column norm");
        }
        for value in [-1e-300, f64::NAN, f64::INFINITY] {
            check(2, 1.0, value, 0.5, 0.5, "negative overlap of columns");
            check(2, 1.0, 0.0, value, 0.5, "relative weight of second moments");
            check(2, 1.0, 0.0, 0.5, value, "relative weight of the count");
        }
        check(2, 1e300, 0.0, 1e300, 0.5, "squared joint sensitivity");
    }

    const ALL: [Neighbours; 3] = [Neighbours::ReplaceOne, Neighbours::ReplaceOneInPlace, Neighbours::ZeroOut];

    proptest! {
        #[test]
        fn grows_with_every_argument(
            dimension in 1_usize..4, a in 0.1..9.0, g in 0.0..2.0, second in 0.0..9.0, count in 0.0..9.0,
            more in 0.0..3.0,
        ) {
            for neighbours in ALL {
                let base = squared(neighbours, dimension, a, g, second, count);
                prop_assert!(squared(neighbours, dimension, a + more, g, second, count) >= base);
                prop_assert!(squared(neighbours, dimension, a, g + more, second, count) >= base);
                prop_assert!(squared(neighbours, dimension, a, g, second, count + more) >= base);
                let larger = squared(neighbours, dimension, a, g, second + more, count);
                prop_assert!(larger >= base * (1.0 - 1e-14));
            }
        }

        #[test]
        fn neighbours_are_ordered(
            dimension in 1_usize..4, a in 0.1..9.0, g in 0.0..9.0, second in 0.0..9.0, count in 0.0..9.0,
        ) {
            let [replaced, in_place, zeroed] = ALL.map(|n| squared(n, dimension, a, g, second, count));
            prop_assert!(replaced >= in_place);
            prop_assert!(in_place >= squared(Neighbours::ZeroOut, dimension, a, g, second, 0.0));
            prop_assert!(replaced >= 2.0 * zeroed * (1.0 - 1e-15));
            // Replacing is at most zeroing out twice.
            prop_assert!(replaced <= 4.0 * zeroed * (1.0 + 1e-15));
        }
    }

    #[test]
    fn agrees_with_the_reference_values() {
        let cases = &crate::reference::cases(include_str!("../../../tests/vectors/jme_rd.json"));
        assert!(cases.len() > 50);
        for case in cases {
            let dimension = case["input"]["d"].as_u64().unwrap() as usize;
            let found = replace_one_factor(dimension, case["input"]["nu"].as_f64().unwrap());
            let expected = case["expected"]["r_d"].as_f64().unwrap();
            assert!((found / expected - 1.0).abs() <= 1e-13, "{}: {found}", case["id"]);
        }
    }

    #[test]
    fn replace_one_factor_grows_with_the_weight_from_four() {
        for dimension in 1..4 {
            let values: Vec<_> =
                (0..2000).map(|i| replace_one_factor(dimension, 1e-3 * 1.01_f64.powi(i))).collect();
            assert!(values.is_sorted());
            assert_eq!(values[0], 4.0);
            assert_eq!(replace_one_factor(dimension, free_second_weight(dimension)), 4.0);
            assert!(replace_one_factor(dimension, f64::NAN).is_nan());
        }
    }

    #[test]
    fn inverse_undoes_the_factor() {
        for dimension in 1..4 {
            let threshold = free_second_weight(dimension);
            assert!((largest_second_weight(dimension, 4.0) / threshold - 1.0).abs() < 1e-14);
            for weight in [1.2, 2.0, 17.0, 1e6].map(|multiple| multiple * threshold) {
                let found = largest_second_weight(dimension, replace_one_factor(dimension, weight));
                assert!((found / weight - 1.0).abs() < 1e-13, "dimension {dimension}: {found} for {weight}");
            }
        }
    }
}
