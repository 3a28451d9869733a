//! JME, joint moment estimation: the claim that second moments come free beside the first.
//!
//! This is λ-JME, Algorithms 1 and 3 of "Continual Release Moment Estimation with Differential Privacy", with a private
//! count beside it, and with the joint sensitivity for the neighbours, strategies and participations in force:
//! the theorems at the heads of [`sensitivity`](crate::sensitivity) and its submodules. How the claim becomes noise:
//! [`mechanism`](crate::mechanism).
//!
//! By default λ is Algorithm 1's where records are replaced in place, and of [`MomentWeights::default_for`] elsewhere, times
//! V₁/V₂ if C₁ ≠ C₂ (squared sensitivities of either for vectors of norm 1, lest λ depend on how C₂ is scaled). The
//! count then has all that is free: c = ½ beside ν = ½ through one C, c = 1 beside second moments of another.

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
