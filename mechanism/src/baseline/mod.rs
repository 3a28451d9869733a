//! The methods that JME is measured against, through the same release path.
//!
//! Source: Section 3.3, Algorithms 4 to 6 and Section 5 of "Continual Release Moment Estimation with Differential
//! Privacy", with its slips mended: each file says which, and holds for all neighbours, strategies and participations.

pub mod batch_squares;
pub mod cs;
pub mod ime;
pub mod joint_clip;
pub mod pp;
