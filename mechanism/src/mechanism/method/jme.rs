//! JME, joint moment estimation: one Gaussian mechanism for all moments, with their joint
//! sensitivity.
//!
//! This is λ-JME, Algorithms 1 and 3 of "Continual Release Moment Estimation with Differential
//! Privacy", with a private count beside it. It uses the joint sensitivity for the given
//! neighbours, strategies and participations: the theorems at the heads of
//! [`sensitivity`](crate::sensitivity) and its submodules. [`mechanism`](crate::mechanism) derives
//! the noise from the claim.
//!
//! The default λ is that of Algorithm 1 where records are replaced in place, and that of
//! [`MomentWeights::default_for`] elsewhere. If C₁ ≠ C₂ it is multiplied by V₁/V₂, the ratio of
//! their squared sensitivities for vectors of norm 1, so that λ does not depend on the scale of C₂.
//! The count then has the largest free weight: c = ½ beside ν = ½ through one C, c = 1 beside
//! second moments of another.

use super::super::{JointClaim, MechanismError, MomentGeometry, MomentParameters};
use crate::sensitivity::{MomentWeights, Neighbours};

pub(crate) fn claim(
    parameters: &MomentParameters,
    geometry: &MomentGeometry,
) -> Result<JointClaim, MechanismError> {
    let (neighbours, dimension) = (parameters.neighbours, parameters.layout.dimension);
    let default = MomentWeights::default_for(neighbours, dimension);
    let separate = neighbours == Neighbours::ReplaceOne && !geometry.is_shared();
    let weights = MomentWeights {
        second: parameters.relative_second_weight(default.second * geometry.first_over_second()?)?,
        count: parameters.relative_count_weight(if separate { 1.0 } else { default.count })?,
    };
    Ok(JointClaim { weights, squared: geometry.joint(neighbours, dimension, weights)? })
}
