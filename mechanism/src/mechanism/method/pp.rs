//! PP, post-processing: only counts and first moments are released.
//!
//! Algorithm 6 of "Continual Release Moment Estimation with Differential Privacy". Readers of the
//! release compute second moments as squares of decoded first moments ([`view`](crate::view), which
//! removes their bias). So the whole budget is spent on (κn, u). The claim is the joint sensitivity
//! with ν = 0. For replace-one through a C with overlaps of at least 0, c = 1 is free
//! (`max(4, 2(c + 1)) = 4`), and the default.
//!
//! It is also the claim of a release that has no second moments, for every method.

use super::super::{JointClaim, MechanismError, MomentGeometry, MomentParameters};
use crate::sensitivity::{MomentWeights, Neighbours};

pub(crate) fn claim(
    parameters: &MomentParameters,
    geometry: &MomentGeometry,
) -> Result<JointClaim, MechanismError> {
    let default_count = if parameters.neighbours == Neighbours::ReplaceOne { 1.0 } else { 0.5 };
    let weights = MomentWeights { second: 0.0, count: parameters.relative_count_weight(default_count)? };
    let squared = geometry.joint(parameters.neighbours, parameters.layout.dimension, weights)?;
    Ok(JointClaim { weights, squared })
}
