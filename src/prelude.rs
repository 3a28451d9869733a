//! What a program needs that embeds the operators in a dataflow of its own: `use hushflow::prelude::*`.
//!
//! The operators' traits; the types that flow between them; and what describes a publication: who is protected, how
//! epochs are made, which strategy and which views.

pub use hushflow_mechanism::epochs::{Clock, ClockSource, CountSchedule, LatePolicy, Schedule, TimeSchedule};
pub use hushflow_mechanism::mechanism::{MatrixMechanism, Method, MomentParameters, Strategies};
pub use hushflow_mechanism::moments::{Layout, SecondMoment};
pub use hushflow_mechanism::noise::NoiseSource;
pub use hushflow_mechanism::sensitivity::Neighbours;
pub use hushflow_mechanism::strategy::StrategyName;
pub use hushflow_mechanism::view::{Moments, View};
pub use hushflow_mechanism::workload::Workload;
pub use hushflow_operators::{
    Accumulate, Bound, Clip, Commit, CommitLog, Densities, EpochCommit, Epochs, Estimated, Fault,
    Measurement, Records, Release, Released, Values, Views,
};

pub use crate::publication::{MomentPublication, Publication};
