//! Squares of batches: the sum of an epoch's records and, beside it, the square of that sum,
//! coordinate by coordinate.
//!
//! This is the query of Algorithm 2 of "Continual Release Moment Estimation with Differential
//! Privacy", and of Adam as usually written, with sums instead of means. It differs from sums of
//! squares, and is never free: a record replaced in a batch of m moves `(Σg, √ν·(Σg)²)`, in units
//! of ζ, by a squared distance of up to
//!
//! ```text
//! 4(1 + 4ν(m − 1)²)    for m ≥ 2,        r_d(ν)    for m = 1
//! ```
//!
//! [`batch_sensitivity_squared`](crate::sensitivity::batch_sensitivity_squared) has the proof. The
//! paper uses the value for m = 1, and so promises more privacy than it gives.
//!
//! By default ν is `1/(4(m − 1)²)`, which gives both moments the same share of the sensitivity.
//! First moments then have √2 times the noise that they have alone. The number of records in a
//! batch must be public, and at most m.

use super::super::{JointClaim, MechanismError, MomentGeometry, MomentParameters};
use crate::moments::SecondMoment;
use crate::sensitivity::{BatchQuery, MomentWeights, TrainingBatch, free_second_weight};
use std::num::NonZeroU32;

pub(crate) fn claim(
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
