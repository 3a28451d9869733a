//! Predicts how the rows of a source would count in a release, and finds problems.
//!
//! One [`RowJudge`] serves three readers. `hushflow check` reads a whole source and shows the
//! operator everything. A first run looks at its first rows before it charges or publishes
//! anything. A run with `preflight = "stop"` is judged again before it publishes further epochs.
//!
//! **Privacy.** The judge sees exact counts of private rows, for the operator alone. A run may
//! *act* on a [`Problem`] in two cases only:
//!
//! - The problem is **public**: it follows from the configuration, the number of rows, and the
//!   public clock (arrivals, or event times where `neighbours` makes them public, and then keys and
//!   counts too). Neighbouring streams agree in all of these, so they stop alike.
//! - The operator has **agreed** by `preflight = "stop"`: then one record may decide whether a run
//!   begins, and at which epoch it stops. The guarantee holds among streams that pass, as with
//!   `malformed = "reject"`.
//!
//! Otherwise a private problem is a line for the operator on standard error, and changes nothing.
//! The operator's response is outside of the guarantee (`docs/privacy.md`).

mod clipping;
mod coverage;
mod discovered;
mod entities;
mod judge;
mod problems;
mod recent;
mod spread;
mod tally;

pub use coverage::{ClosedCoverage, Coverage};
pub use discovered::{DiscoveredKeys, KeyCount};
pub use entities::EntityCut;
pub use judge::{JudgeState, RowJudge};
pub use problems::{Extent, Observation, Problem, SourceRows, histogram_surveys, never_closes, problems};
pub use spread::EntitySpread;
pub use tally::RecordTally;

/// Number of rows of each source that a first run examines before it publishes anything: rows from
/// the first epoch on, or fewer at the end of the input.
pub(crate) const FIRST_ROWS: u64 = 4096;
