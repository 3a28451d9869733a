//! What the rows of a source would become in a release, and what is wrong with that.
//!
//! `hushflow check` reads a whole source and shows the operator everything. Every first run looks
//! at its first rows in the same way before it charges or publishes anything.
//!
//! **Privacy.** What is seen here are exact counts of private rows, for the operator alone. A run
//! may *act* on a [`Problem`] in two cases only:
//!
//! - The problem is **public**: it follows from the configuration, the number of rows, and the
//!   public clock (arrivals, or event times where `neighbours` makes them public, and then keys and
//!   counts too). Neighbouring streams agree in all of these, so they stop alike.
//! - The operator has **agreed** by `preflight = "stop"`: then one record may decide that a run
//!   stops before it publishes anything, and whoever sees that nothing appears learns that bit. The
//!   guarantee then holds among streams that pass, as with `malformed = "reject"`.
//!
//! Otherwise a private problem is printed for the operator and changes nothing. What the operator
//! does about it is outside of the guarantee (`docs/privacy.md`).

mod problems;
mod tally;

pub use problems::{Problem, never_closes, problems, problems_of_epochs};
pub use tally::RecordTally;

use crate::source::{RowCounters, RowSurvey};

/// What has been seen of the rows of all sources. Private.
#[derive(Clone, Default)]
pub struct Observation {
    /// What became of the rows.
    pub counters: RowCounters,
    /// What they hold.
    pub survey: RowSurvey,
    /// The records among them.
    pub tally: RecordTally,
}
