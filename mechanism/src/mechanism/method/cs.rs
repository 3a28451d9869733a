//! τ-CS, concatenate and split: one Gaussian mechanism for (x, √τ·xxᵀ), with twice its norm as
//! sensitivity.
//!
//! Algorithm 5 of "Continual Release Moment Estimation with Differential Privacy", with the factor
//! ‖C‖₁→₂ that the paper omits: `s = 2ζ√(1+τζ²)·max‖c_i‖`. This is the triangle inequality. With
//! its exact sensitivity, CS is λ-JME with C₁ = C₂ and λ = τ, so the paper's Theorem 3.7 compares
//! JME with a bound. The claim here is
//!
//! ```text
//! zero-out       joint sensitivity               one record vanishes: no triangle is needed
//! otherwise      max(4 Z, joint sensitivity)     Z = squared zero-out sensitivity of (x, √ν·xxᵀ),
//!                                                without count
//! ```
//!
//! For one participation 4Z is 4(1+ν)·max‖c_i‖². It exceeds the joint sensitivity as long as the
//! count is small: it bounds records replaced in place, whose count cancels, and the count matters
//! for records that move. Where no overlaps are negative and all moments go through one C, c = 1 +
//! ν is still free: `2(c + 1 + ν) = 4(1 + ν)`, the default. τ is
//! [`second_moment_weight`](MomentParameters::second_moment_weight); by default ν = τζ² = ½.

use super::super::{JointClaim, MechanismError, MomentGeometry, MomentParameters};
use crate::sensitivity::{MomentWeights, Neighbours};

pub(crate) fn claim(
    parameters: &MomentParameters,
    geometry: &MomentGeometry,
) -> Result<JointClaim, MechanismError> {
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
