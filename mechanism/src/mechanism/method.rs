//! The methods by name, and each method's claim with its derivation. Algorithms and sections are
//! those of "Continual Release Moment Estimation with Differential Privacy" (Kalinin, Upadhyay &
//! Lampert 2025).

use super::{JointClaim, MechanismError, MomentGeometry, MomentParameters};
use crate::moments::SecondMoment;
use crate::sensitivity::{
    BatchQuery, MomentWeights, Neighbours, OutOfRange, TrainingBatch, free_second_weight, rounded_up,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU32;

/// A method that makes counts, first and second moments private.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Method {
    /// Joint moment estimation: all moments through one Gaussian mechanism, with their joint
    /// sensitivity.
    #[default]
    Jme,
    /// Independent moment estimation: two Gaussian mechanisms that share the budget.
    Ime {
        /// α = μ₁²/μ², above 0 and below 1: the share of counts and first moments in the budget.
        first_moment_share: f64,
    },
    /// Concatenate and split: one Gaussian mechanism, with twice the norm of a record's
    /// concatenated moments.
    Cs,
    /// Post-processing: only counts and first moments are released; second moments are squares of
    /// the decoded first moments.
    Pp,
    /// A record and its square are clipped together, to a norm of ζ.
    JointClip,
    /// Second moments are the squares of the sums of whole epochs, not sums of squares.
    BatchSquares {
        /// m, the maximum number of records in an epoch.
        size: NonZeroU32,
    },
}

impl Method {
    /// Returns the method's claim about the sensitivity.
    pub(super) fn claim(
        self,
        parameters: &MomentParameters,
        geometry: &MomentGeometry,
    ) -> Result<JointClaim, MechanismError> {
        match self {
            _ if parameters.released_layout().second_len() == 0 => pp_claim(parameters, geometry),
            Self::Jme => jme_claim(parameters, geometry),
            Self::Ime { first_moment_share } => ime_claim(parameters, geometry, first_moment_share),
            Self::Cs => cs_claim(parameters, geometry),
            Self::Pp => pp_claim(parameters, geometry),
            Self::JointClip => joint_clip_claim(parameters, geometry),
            Self::BatchSquares { size } => batch_squares_claim(parameters, geometry, size),
        }
    }

    pub(super) fn check(self) -> Result<(), OutOfRange> {
        match self {
            Self::Ime { first_moment_share: value } if !(value > 0.0 && value < 1.0) => Err(OutOfRange {
                name: "first_moment_share",
                value,
                expected: "a number above 0 and below 1",
            }),
            _ => Ok(()),
        }
    }

    /// Returns the real value of 1 in the summed second moments of records, in units of ζ².
    pub(crate) fn second_unit(self, weights: MomentWeights) -> f64 {
        if self == Self::JointClip { 1.0 / weights.second.sqrt() } else { 1.0 }
    }

    /// Returns whether the method requires second moments.
    pub fn needs_second_moments(self) -> bool {
        self != Self::Jme
    }

    /// Returns whether values may be missing one by one
    /// ([`Clipper::with_indicators`](crate::moments::Clipper::with_indicators)). This requires
    /// second moments of records, and records that are not clipped with their squares.
    pub fn takes_missing_values(self) -> bool {
        matches!(self, Self::Jme | Self::Ime { .. } | Self::Cs)
    }

    /// Returns whether the method has a weight for second moments.
    pub fn weighs_second_moments(self) -> bool {
        matches!(self, Self::Jme | Self::Cs | Self::JointClip | Self::BatchSquares { .. })
    }
}

/// Prints the name used in pipeline files.
impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Jme => "jme",
            Self::Ime { .. } => "ime",
            Self::Cs => "cs",
            Self::Pp => "pp",
            Self::JointClip => "joint-clip",
            Self::BatchSquares { .. } => "batch-squares",
        })
    }
}

/// JME, joint moment estimation: one Gaussian mechanism for all moments, with their joint
/// sensitivity.
///
/// This is λ-JME, Algorithms 1 and 3, with a private count. It uses the joint sensitivity for the
/// given neighbours, strategies and participations, by the theorems at the heads of
/// [`sensitivity`](crate::sensitivity) and its submodules. [`mechanism`](crate::mechanism) derives
/// the noise from the claim.
///
/// If records are replaced in place, the default λ is that of Algorithm 1. For other neighbours it
/// is that of [`MomentWeights::default_for`]. If C₁ ≠ C₂, the default is multiplied by V₁/V₂, the
/// ratio of the squared sensitivities of C₁ and C₂ for vectors of norm 1. So the noise of first
/// moments does not depend on the scale of C₂. Under replace-one the count has the largest weight
/// that does not increase the sensitivity: c = ½ with ν = ½ if C₁ = C₂, and c = 1 otherwise. Under
/// zero-out every weight increases the sensitivity, and c = ½.
fn jme_claim(parameters: &MomentParameters, geometry: &MomentGeometry) -> Result<JointClaim, MechanismError> {
    let (neighbours, dimension) = (parameters.neighbours, parameters.layout.dimension);
    let default = MomentWeights::default_for(neighbours, dimension);
    let separate = neighbours == Neighbours::ReplaceOne && !geometry.is_shared();
    let weights = MomentWeights {
        second: parameters.relative_second_weight(default.second * geometry.first_over_second()?)?,
        count: parameters.relative_count_weight(if separate { 1.0 } else { default.count })?,
    };
    Ok(JointClaim { weights, squared: geometry.joint(neighbours, dimension, weights)? })
}

/// The share that a pipeline uses by default.
pub const DEFAULT_FIRST_MOMENT_SHARE: f64 = 0.5;

/// α-IME, independent moment estimation: two Gaussian mechanisms that share the budget.
///
/// Algorithm 4. The first query is (κn, u) through C₁, the second S through C₂, each with noise for
/// its own sensitivity. s₁ is the joint sensitivity with ν = 0, and s₂ is derived at the head of
/// `mechanism/geometry.rs`. A Gaussian mechanism of noise multiplier 1/μ is μ-GDP, and two of them
/// together are √(μ₁² + μ₂²)-GDP (Dong, Roth & Su 2022, Cor. 2). The budget μ = 1/σ splits as
///
/// ```text
/// μ₁² = αμ²      noise of C₁u:  σ s₁/√α
/// μ₂² = (1−α)μ²  noise of C₂S:  σ s₂/√(1−α)
/// ```
///
/// where α is the share of counts and first moments. (The paper prints (αε, αδ); its Theorem 3.6
/// uses the split above.) For total errors a/α of first and b/(1−α) of second moments, a + b is
/// least at `α = √a/(√a + √b)`. By default α = ½.
///
/// # As a joint claim
/// With s = s₁/√α and ν = (s₁²/α)(1−α)/s₂² these are the noises of one mechanism of sensitivity s
/// for (κn, u, √ν·S). Its bound `s₁² + ν s₂² = s₁²/α = s²` assumes that both queries are at their
/// worst at once.
///
/// For replace-one through C₁ with overlaps of at least 0, the count weight c = 1 is free
/// (`max(4, 2(c + 1)) = 4`), and the default.
fn ime_claim(
    parameters: &MomentParameters,
    geometry: &MomentGeometry,
    first_moment_share: f64,
) -> Result<JointClaim, MechanismError> {
    let first = pp_claim(parameters, geometry)?;
    let second_alone = geometry.second_moments(parameters.neighbours, parameters.layout.dimension)?;
    let second = first.squared / first_moment_share * (1.0 - first_moment_share) / second_alone;
    let weights = MomentWeights { second, ..first.weights };
    Ok(JointClaim { weights, squared: rounded_up(first.squared + second * second_alone) })
}

/// τ-CS, concatenate and split: one Gaussian mechanism for (x, √τ·xxᵀ), with twice its norm as
/// sensitivity.
///
/// Algorithm 5, with the factor ‖C‖₁→₂ that the paper omits: `s = 2ζ√(1+τζ²)·max‖c_i‖`. The factor
/// 2 comes from the triangle inequality. With its exact sensitivity, CS is λ-JME with C₁ = C₂ and λ
/// = τ, so the paper's Theorem 3.7 compares JME with a bound. The claim here is
///
/// ```text
/// zero-out       joint sensitivity               one record vanishes: no triangle is needed
/// otherwise      max(4 Z, joint sensitivity)     Z = squared zero-out sensitivity of (x, √ν·xxᵀ),
///                                                without count
/// ```
///
/// For one participation 4Z is 4(1+ν)·max‖c_i‖². 4Z exceeds the joint sensitivity as long as the
/// weight of the count is small. It bounds records replaced in place, whose counts cancel; the
/// count matters only for records that move to another cell. If no overlaps are negative and all
/// moments go through one C, c = 1 + ν is still free: `2(c + 1 + ν) = 4(1 + ν)`, the default. τ is
/// [`second_moment_weight`](MomentParameters::second_moment_weight); by default ν = τζ² = ½.
fn cs_claim(parameters: &MomentParameters, geometry: &MomentGeometry) -> Result<JointClaim, MechanismError> {
    let (neighbours, dimension) = (parameters.neighbours, parameters.layout.dimension);
    let second = parameters.relative_second_weight(0.5 * geometry.first_over_second()?)?;
    let default_count = match neighbours {
        Neighbours::ReplaceOne if geometry.is_shared() => 1.0 + second,
        Neighbours::ReplaceOne => 1.0,
        _ => 0.5,
    };
    let weights = MomentWeights { second, count: parameters.relative_count_weight(default_count)? };
    let joint = geometry.joint(neighbours, dimension, weights)?;
    let squared = match neighbours {
        Neighbours::ZeroOut => joint,
        _ => {
            let concatenated = MomentWeights { second, count: 0.0 };
            joint.max(4.0 * geometry.joint(Neighbours::ZeroOut, dimension, concatenated)?)
        }
    };
    Ok(JointClaim { weights, squared })
}

/// PP, post-processing: only counts and first moments are released.
///
/// Algorithm 6. Readers of the release compute second moments as squares of decoded first moments
/// ([`view`](crate::view), which removes their bias). So the whole budget is spent on (κn, u). The
/// claim is the joint sensitivity with ν = 0. For replace-one through a C with overlaps of at least
/// 0, c = 1 is free (`max(4, 2(c + 1)) = 4`), and the default.
///
/// It is also the claim of a release that has no second moments, for every method.
fn pp_claim(parameters: &MomentParameters, geometry: &MomentGeometry) -> Result<JointClaim, MechanismError> {
    let default_count = if parameters.neighbours == Neighbours::ReplaceOne { 1.0 } else { 0.5 };
    let weights = MomentWeights { second: 0.0, count: parameters.relative_count_weight(default_count)? };
    let squared = geometry.joint(parameters.neighbours, parameters.layout.dimension, weights)?;
    Ok(JointClaim { weights, squared })
}

/// Joint clipping: bounds the norm of a record together with its square, instead of the norm of the
/// record.
///
/// The heuristic of Section 5 (DP-Adam-Clip in its Table 3): `x̃ = (x, √τ·xxᵀ)` is scaled to a norm
/// of at most R, then privatised like CS, with sensitivity 2R. R is the
/// [`clip_norm`](MomentParameters::clip_norm) ζ, τ the
/// [`second_moment_weight`](MomentParameters::second_moment_weight), by default ½/ζ² as in the
/// paper's Table 4. For short records, R = ζ needs less noise than CS, whose R is `ζ√(1+τζ²)`. Long
/// records shrink more, and both moments are biased.
///
/// A record of norm r keeps the share `f = min(1, R/√(r² + τr⁴))`: it adds f·x to first moments and
/// f·xxᵀ to second ones. [`Clipper::jointly`](crate::moments::Clipper::jointly) does that in
/// integers. With q ≈ f·x and p ≈ √f·τ^¼·x, in units that make R 2²⁰, it tests `‖q‖² + ‖p‖⁴ ≤ R²`
/// exactly, and p pᵀ is f·√τ·xxᵀ. So second moments are summed in units of ζ²/√ν instead of ζ², ν =
/// τζ².
///
/// # Sensitivity
/// In units of ζ a record adds φ = (√c, z, √ν·M) to its cell, `‖z‖² + ν‖M‖² ≤ 1`, with M a
/// multiple ≥ 0 of zzᵀ. For all moments through one C, the proofs at the heads of
/// [`sensitivity`](crate::sensitivity) and of its `joint_participation` require of records only
/// that `⟨φ,φ'⟩ ≤ c + 1` and `⟨φ,φ'⟩ ≥ c − 1`, which holds because `⟨M,M'⟩ ≥ 0`. For
/// replace-one-in-place they also require that `‖φ − φ'‖² ≤ 4`. These are the bounds for ν = 0. So
/// the claim is that of counts and first moments of records of norm 1, and so is the count's
/// default weight. For replace-one-in-place the claim is CS's 2R, which no pair of records attains.
/// Like CS it needs C₁ = C₂.
fn joint_clip_claim(
    parameters: &MomentParameters,
    geometry: &MomentGeometry,
) -> Result<JointClaim, MechanismError> {
    if !geometry.is_shared() {
        return Err(MechanismError::OneStrategy { method: Method::JointClip });
    }
    let JointClaim { weights, squared } = pp_claim(parameters, geometry)?;
    let second = parameters.relative_second_weight(0.5)?;
    Ok(JointClaim { weights: MomentWeights { second, ..weights }, squared })
}

/// Squares of batches: the sum of an epoch's records and the square of that sum, coordinate by
/// coordinate.
///
/// This is the query of Algorithm 2, and of Adam as usually written, with sums instead of means. It
/// differs from sums of squares, and is never free: a record replaced in a batch of m moves `(Σg,
/// √ν·(Σg)²)`, in units of ζ, by a squared distance of up to
///
/// ```text
/// 4(1 + 4ν(m − 1)²)    for m ≥ 2,        r_d(ν)    for m = 1
/// ```
///
/// [`batch_sensitivity_squared`](crate::sensitivity::batch_sensitivity_squared) has the proof. The
/// paper uses the value for m = 1, and so promises more privacy than it gives.
///
/// By default ν is `1/(4(m − 1)²)`, which gives both moments the same share of the sensitivity.
/// First moments then have √2 times the noise that they have alone. The number of records in a
/// batch must be public, and at most m.
fn batch_squares_claim(
    parameters: &MomentParameters,
    geometry: &MomentGeometry,
    size: NonZeroU32,
) -> Result<JointClaim, MechanismError> {
    let MomentParameters { neighbours, layout, .. } = *parameters;
    if !neighbours.counts_are_public() || layout.second != SecondMoment::Diagonal {
        return Err(MechanismError::BatchSquares);
    }
    let others = f64::from(size.get()) - 1.0;
    let balanced =
        if others > 0.0 { 1.0 / (4.0 * others * others) } else { free_second_weight(layout.dimension) };
    let second = parameters.relative_second_weight(balanced)?;
    let batch = TrainingBatch { query: BatchQuery::SquareOfSum, size: size.get() as usize };
    let squared = geometry.of_batches(batch, neighbours, layout.dimension, second)?;
    Ok(JointClaim { weights: MomentWeights { second, count: 0.0 }, squared })
}
