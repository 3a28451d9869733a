//! Everything needed to embed the operators in another dataflow: `use hushflow::prelude::*`.
//!
//! It holds the operators' traits, the types that flow between them, and the description of a
//! publication: the protected unit, the epochs, the strategy and the views.

pub use hushflow_mechanism::epochs::{Clock, ClockSource, CountSchedule, LatePolicy, Schedule, TimeSchedule};
pub use hushflow_mechanism::mechanism::{MatrixMechanism, Method, MomentParameters, Strategies};
pub use hushflow_mechanism::moments::{Layout, SecondMoment};
pub use hushflow_mechanism::noise::NoiseSource;
pub use hushflow_mechanism::sensitivity::Neighbours;
pub use hushflow_mechanism::strategy::StrategyName;
pub use hushflow_mechanism::view::{Moments, View};
pub use hushflow_mechanism::workload::Workload;
pub use hushflow_operators::{
    Accumulate, BoundEntities, Clip, Commit, CommitLog, Densities, DensityEstimate, EpochCommit, Fault,
    Measurement, Records, ReleaseMoments, ReleaseWindows, ReleasedEpoch, SplitEpochs, Views, Windows,
};

pub use crate::publication::{MomentPublication, Publication};
