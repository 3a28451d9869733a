//! The mathematics of hushflow.
//!
//! Pure functions and state machines: no I/O, no clock, no dataflow, no global state. Modules are named by
//! the field's own words; the way of the data through them is
//! [`epochs`] → [`moments`] → [`strategy`] → [`release`] by a [`mechanism`] of one of its [`method`](mechanism::method)s and [`noise`] →
//! [`view`] of a [`workload`] → [`estimate`]. Records of a file or a window may also be looked at all at once:
//! [`covariance`] and [`mean`]. An [`audit`] tries to tell neighbours apart.

pub mod accounting;
pub mod audit;
pub mod covariance;
pub mod epochs;
pub mod error;
pub mod estimate;
pub mod mean;
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
