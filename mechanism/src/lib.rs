//! The mathematics of hushflow.
//!
//! Pure functions and state machines: no I/O, no clock, no dataflow, no global state. Modules are named by
//! the field's own words; the way of the data through them is
//! [`epochs`] → [`moments`] → [`strategy`] → [`release`] by a [`mechanism`] of one of its [`method`](mechanism::method)s and [`noise`] →
//! [`view`] of a [`workload`] → [`estimate`]. An [`audit`] tries to tell neighbours apart.

pub mod accounting;
pub mod audit;
pub mod epochs;
pub mod error;
pub mod estimate;
pub mod mechanism;
pub mod moments;
pub mod noise;
pub mod optimize;
pub mod participation;
mod quantile;
pub mod release;
pub mod sensitivity;
pub mod series;
pub mod strategy;
pub mod view;
pub mod workload;
