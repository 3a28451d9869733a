//! α-IME, independent moment estimation: two Gaussian mechanisms that share the budget.
//!
//! Algorithm 4 of "Continual Release Moment Estimation with Differential Privacy". The first query
//! is (κn, u) through C₁, the second S through C₂, each with noise for its own sensitivity: s₁ is
//! the joint sensitivity with ν = 0, s₂ is derived at the head of `mechanism/geometry.rs`. A
//! Gaussian mechanism of noise multiplier 1/μ is μ-GDP, and two of them together are √(μ₁² +
//! μ₂²)-GDP (Dong, Roth & Su 2022, Cor. 2). The budget μ = 1/σ splits as
//!
//! ```text
//! μ₁² = αμ²      noise of C₁u:  σ s₁/√α
//! μ₂² = (1−α)μ²  noise of C₂S:  σ s₂/√(1−α)
//! ```
//!
//! where α is the share of counts and first moments. (The paper prints (αε, αδ); its Theorem 3.6
//! uses the split above.) For total errors a/α of first and b/(1−α) of second moments, a + b is
//! least at `α = √a/(√a + √b)`. By default α = ½.
//!
//! # As a joint claim
//! With s = s₁/√α and ν = (s₁²/α)(1−α)/s₂² these are the noises of one mechanism of sensitivity s
//! for (κn, u, √ν·S), whose bound is `s₁² + ν s₂² = s₁²/α = s²`: both queries at their worst at
//! once.
//!
//! For replace-one through C₁ with overlaps of at least 0, the count weight c = 1 is free
//! (`max(4, 2(c + 1)) = 4`), and the default.

use super::super::{JointClaim, MechanismError, MomentGeometry, MomentParameters};
use super::pp;
use crate::sensitivity::{MomentWeights, rounded_up};

/// The share if a pipeline does not set one.
pub const DEFAULT_FIRST_MOMENT_SHARE: f64 = 0.5;

pub(crate) fn claim(
    parameters: &MomentParameters,
    geometry: &MomentGeometry,
    first_moment_share: f64,
) -> Result<JointClaim, MechanismError> {
    let first = pp::claim(parameters, geometry)?;
    let second_alone = geometry.second_moments(parameters.neighbours, parameters.layout.dimension)?;
    let second = first.squared / first_moment_share * (1.0 - first_moment_share) / second_alone;
    let weights = MomentWeights { second, ..first.weights };
    Ok(JointClaim { weights, squared: rounded_up(first.squared + second * second_alone) })
}
