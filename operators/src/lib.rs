//! timely operators that publish private moments: each a thin shell around a state machine of
//! [`hushflow_mechanism`].
//!
//! In the order of the data's way:
//!
//! | operator | takes | gives |
//! |---|---|---|
//! | [`Epochs`] | [`Records`] at the source's time | the same at the epoch they belong to |
//! | [`Bound`] | [`Records`] with their entities | those that pass: at most m of an entity in each of at most k epochs |
//! | [`Clip`] | [`Records`] | [`QuantisedRecords`] of bounded norm, on an integer grid |
//! | [`Accumulate`] | [`QuantisedRecords`] | [`PartialSums`]: one worker's exact sums of an epoch |
//! | [`AdaptiveCovariance`] | [`Records`] at their epochs | [`WindowCovariance`]: a private covariance of every key and epoch |
//! | [`Release`] | [`PartialSums`] of all workers | [`ShardRelease`]: encoded, with exact noise, for **every** epoch |
//! | [`Commit`] | [`ShardRelease`] of all shards | [`Released`]: what is durable, and so may be seen by anyone |
//! | [`Views`] | [`Released`] | [`Moments`](hushflow_mechanism::view::Moments) of a workload |
//! | [`Densities`] | moments | [`Estimated`]: mean and covariance beside the moments |
//! | [`RobustMeans`] | [`Records`] of all workers | [`WindowMean`]: a robust mean of every key and epoch, by itself |
//! | [`ReleaseWindows`] | [`Records`] of all workers | [`ShardRelease`]: what is said of every key and epoch by itself, as bytes to commit |
//! | [`Optimise`] | [`Released`] gradients | [`UpdatePart`](hushflow_mechanism::estimate::adam::UpdatePart)s of Adam |
//!
//! [`WindowedSums`] stands beside them: [`QuantisedRecords`] to exact sums of sliding windows, by retraction.
//! [`training_loop`] closes a loop around them, from the optimiser's updates back to gradients.
//!
//! All operators of a release take one [`Measurement`], which says what is measured, how it is bounded and with which noise.
//!
//! Timestamps are epochs, from 1. Records are not exchanged: each worker sums its own, and only sums travel. The
//! exceptions are [`Bound`], where those of an entity meet, and [`AdaptiveCovariance`], [`RobustMeans`] and [`ReleaseWindows`], where those
//! of a key do.
//! Everything before [`Commit`] is private: its types print nothing.
//!
//! An operator that can't go on raises the [`Fault`] and keeps its capability, because a dropped capability
//! would look like the end of the stream and release half an epoch. Whoever steps the worker watches the
//! fault and ends the process.
//!
//! The example of each operator embeds it in a small dataflow. Where one needs a publication around it, they share
//! one in hidden lines (`doc/setup.txt`): a `measurement` of one column in [−1, 1], one key, at most 8 epochs, `square-root`. A whole program is
//! `examples/embed_in_timely.rs` in the repository.

mod accumulate;
mod adam;
mod adaptive_covariance;
mod batch_squares;
mod bound;
mod clip;
mod closing;
mod commit;
mod density;
mod entity;
mod epochs;
mod fault;
mod measurement;
mod records;
mod release;
mod robust_mean;
mod training;
mod view;
mod windowed_sums;
mod windows;

/// The very differential dataflow that [`WindowedSums`] gives collections of.
pub use differential_dataflow;
/// The very timely that these operators are made for: a dataflow that embeds them must use no other version.
pub use timely;

pub use accumulate::Accumulate;
pub use adam::{AdamSetup, Optimise, SharedUpdate};
pub use adaptive_covariance::{AdaptiveCovariance, CovarianceSetup, WindowCovariance};
pub use bound::{Bound, Bounded, BoundedRecords};
pub use clip::Clip;
pub use commit::{Commit, CommitLog, EpochCommit, Released};
pub use density::{Densities, Estimated};
pub use entity::{Entity, EntityLimits, Several, Standing};
pub use epochs::Epochs;
pub use fault::Fault;
pub use measurement::{
    CommitPlan, FixedMeasurement, Measurement, MeasurementBuilder, MeasurementError, States,
};
pub use records::{PartialSums, QuantisedRecords, Records, ShardRelease, Values};
pub use release::{Release, shard_owner};
pub use robust_mean::{MeanSetup, RobustMeans, WindowMean};
pub use training::{Learner, TrainingSetup, training_loop};
pub use view::Views;
pub use windowed_sums::{Sums, WindowedSums};
pub use windows::{ReleaseWindows, Windows};
