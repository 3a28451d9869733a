//! Joint clipping: bounds the norm of a record together with its square, instead of the norm of the
//! record.
//!
//! The heuristic of Section 5 of "Continual Release Moment Estimation with Differential Privacy"
//! (DP-Adam-Clip in its Table 3): `x̃ = (x, √τ·xxᵀ)` is scaled as a whole to a norm of at most R,
//! then privatised like CS, with sensitivity 2R. R is the
//! [`clip_norm`](MomentParameters::clip_norm) ζ, τ the
//! [`second_moment_weight`](MomentParameters::second_moment_weight), by default ½/ζ² as in the
//! paper's Table 4. Where records are short, R = ζ needs less noise than CS, whose R is
//! `ζ√(1+τζ²)`. Long records shrink more, and both moments are biased.
//!
//! A record of norm r keeps the share `f = min(1, R/√(r² + τr⁴))`: it adds f·x to first moments and
//! f·xxᵀ to second ones. [`Clipper::jointly`](crate::moments::Clipper::jointly) does that in
//! integers. With q ≈ f·x and p ≈ √f·τ^¼·x, in units that make R 2²⁰, it tests `‖q‖² + ‖p‖⁴ ≤ R²`
//! exactly, and p pᵀ is f·√τ·xxᵀ. So second moments are summed in units of ζ²/√ν instead of ζ², ν =
//! τζ².
//!
//! # Sensitivity
//! In units of ζ a record adds φ = (√c, z, √ν·M) to its cell, `‖z‖² + ν‖M‖² ≤ 1`, with M a
//! multiple ≥ 0 of zzᵀ. For all moments through one C, the proofs at the heads of
//! [`sensitivity`](crate::sensitivity) and of its `joint_participation` require of records only
//! that `⟨φ,φ'⟩ ≤ c + 1` and `⟨φ,φ'⟩ ≥ c − 1`, which holds because `⟨M,M'⟩ ≥ 0`, and in place that
//! `‖φ − φ'‖² ≤ 4`. These are the bounds for ν = 0. So the claim is that of counts and first
//! moments of records of norm 1, and so is the count's default weight. In place the claim is CS's
//! 2R, which nothing attains. Like CS it needs C₁ = C₂.

use super::super::{JointClaim, MechanismError, Method, MomentGeometry, MomentParameters};
use super::pp;
use crate::sensitivity::MomentWeights;

pub(crate) fn claim(
    parameters: &MomentParameters,
    geometry: &MomentGeometry,
) -> Result<JointClaim, MechanismError> {
    if !geometry.is_shared() {
        return Err(MechanismError::OneStrategy { method: Method::JointClip });
    }
    let JointClaim { weights, squared } = pp::claim(parameters, geometry)?;
    let second = parameters.relative_second_weight(0.5)?;
    Ok(JointClaim { weights: MomentWeights { second, ..weights }, squared })
}

/// Returns the real value of 1 in the sums of second moments, in units of ζ².
pub(crate) fn second_unit(relative_weight: f64) -> f64 {
    1.0 / relative_weight.sqrt()
}
