//! Everything needed to publish from another dataflow: `use hushflow::prelude::*`.
//!
//! [`embed`](crate::runtime::embed) shows a complete program. Single operators are in
//! [`operators`](crate::operators).

pub use hushflow_mechanism::workload::Workload;
pub use hushflow_operators::{Densities, DensityEstimate, Entity, Fault, Views};

pub use crate::pipeline::Pipeline;
pub use crate::runtime::RunError;
pub use crate::runtime::embed::*;
pub use crate::source::entity;
