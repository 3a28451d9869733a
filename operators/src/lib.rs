//! timely operators that publish private moments. Each is a thin shell around a state machine of
//! [`hushflow_mechanism`].
//!
//! In the order of the data flow:
//!
//! | operator | takes | gives |
//! |---|---|---|
//! | [`SplitEpochs`] | [`Records`] at the source's time | the same at the time of their epoch |
//! | [`BoundEntities`] | [`Records`] of entities | at most m records of each in at most k epochs |
//! | [`Clip`] | [`Records`] | [`QuantisedRecords`] of bounded norm, on an integer grid |
//! | [`Accumulate`] | [`QuantisedRecords`] | [`PartialSums`]: one worker's exact sums of an epoch |
//! | [`Discover`] | [`QuantisedRecords`] | the same for keys that are not listed, and their names |
//! | [`ReleaseMoments`] | [`PartialSums`] | [`ShardRelease`] with exact noise, **every** epoch |
//! | [`Commit`] | [`ShardRelease`] of all shards | [`ReleasedEpoch`]: durable and public |
//! | [`Views`] | [`ReleasedEpoch`] | [`Moments`](hushflow_mechanism::view::Moments) of a workload |
//! | [`Densities`] | moments | [`DensityEstimate`]: mean and covariance beside the moments |
//! | [`ReleaseWindows`] | [`Records`] | [`ShardRelease`]: an answer for every key and epoch |
//!
//! [`OpenEpochs`] gives an operator each closed epoch once, in order, and [`EveryEpoch`] also those
//! without data. [`map_or_fault`] passes items on as they arrive. Operators of an embedder can use
//! them, too.
//!
//! All operators of a release take one [`Measurement`], which defines the measured quantities,
//! their bounds and the noise. Timestamps are epochs, from 1. Items that carry their epoch come at
//! its time or before, so a run of epochs that close together travels as one batch, at the time of
//! the first.
//!
//! Each worker sums its own records, and only sums are exchanged. The exceptions exchange records:
//! [`BoundEntities`] by entity, and [`ReleaseWindows`] by key. Everything before [`Commit`] is
//! private: its types print nothing.
//!
//! An operator that cannot continue raises the [`Fault`] and keeps its capability. A dropped
//! capability would look like the end of the stream and release half an epoch. The loop that steps
//! the worker watches the fault and ends the process.
//!
//! Examples that need a publication share one in hidden lines (`doc/setup.txt`): a `measurement` of
//! one column in [−1, 1], one key, at most 8 epochs, `square-root`. `hushflow::runtime::embed` has
//! a whole program.

mod accumulate;
#[cfg(test)]
mod blocks_tests;
mod bound;
mod clip;
mod closing;
mod commit;
mod discover;
mod epochs;
mod measurement;
mod records;
mod release;
mod view;
mod windows;

/// The version of timely that these operators use. A dataflow that embeds them must use the same.
pub use timely;

pub use accumulate::Accumulate;
pub use bound::{
    BoundEntities, BoundOutput, BoundPlan, BoundedRecords, ByEntity, Entity, EntityHasher, EntityHistory,
    EntityLimits, RepeatPolicy,
};
pub use clip::Clip;
pub use closing::{ClosedEpoch, EveryEpoch, Fault, OpenEpochs, map_or_fault};
pub use commit::{Commit, CommitLog, EpochCommit};
pub use discover::{DISCOVERY_SHARD, Discover, KeyNames, candidate_state, saved_candidates};
pub use epochs::SplitEpochs;
pub use measurement::{
    CommitPlan, EncoderStates, FixedMeasurement, Measurement, MeasurementBuilder, MeasurementError,
};
pub use records::{PartialSums, QuantisedRecords, Records, ReleasedEpoch, ShardRelease};
pub use release::{ReleaseMoments, shard_owner};
pub use view::{Densities, DensityEstimate, Views};
pub use windows::{ReleaseWindows, WindowEntities, WindowRows, Windows};
