//! The methods by name. Each submodule makes one method's claim.

pub mod batch_squares;
pub mod cs;
pub mod ime;
pub mod jme;
pub mod joint_clip;
pub mod pp;

use super::{JointClaim, MechanismError, MomentGeometry, MomentParameters};
use crate::sensitivity::{MomentWeights, OutOfRange};
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
        /// m, the most records in an epoch.
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
            _ if parameters.released_layout().second_len() == 0 => pp::claim(parameters, geometry),
            Self::Jme => jme::claim(parameters, geometry),
            Self::Ime { first_moment_share } => ime::claim(parameters, geometry, first_moment_share),
            Self::Cs => cs::claim(parameters, geometry),
            Self::Pp => pp::claim(parameters, geometry),
            Self::JointClip => joint_clip::claim(parameters, geometry),
            Self::BatchSquares { size } => batch_squares::claim(parameters, geometry, size),
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
        if self == Self::JointClip { joint_clip::second_unit(weights.second) } else { 1.0 }
    }

    /// Returns whether the method requires second moments.
    pub fn needs_second_moments(self) -> bool {
        self != Self::Jme
    }

    /// Returns whether values may be missing one by one
    /// ([`Clipper::with_indicators`](crate::moments::Clipper::with_indicators)): where second
    /// moments are those of records, and records are not clipped with their squares.
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
